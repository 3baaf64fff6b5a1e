"""Derive the labels, name and relations of a file from the text of the fact.

If a run chose anything else, the choice of code replaces it. Separate from `remember.py`, which commits: this
module decides about the text of one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from muniment.agent.filing import read
from muniment.agent.model import Related
from muniment.agent.updates import is_similar, supersedes
from muniment.content.entry import ENDS_KEY, EXPIRY_KEY, parse
from muniment.content.frontmatter import written
from muniment.content.gates import decode, encode
from muniment.content.provenance import Whose, missing_statements, names, separate_items, stands_in, whose
from muniment.content.titles import slug, titles_of
from muniment.content.words import comparable, is_running
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import RelPath, Scope, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.operations.remember_job import RememberJob, body_of
from muniment.store.ledger import SUPERSEDES, Run
from muniment.store.trust import NO_RELATIONS, SEE, stamp
from muniment.types import SimilarEntry

FOLDER_WORDS: Final = 3
NAME_WORDS: Final = 12
"""Words that a run may use in the name of a new folder or file; a longer name is a sentence."""

KEYWORDS: Final = 12
KEYWORD_CHARS: Final = 40
"""Keywords of a run that are checked, and their greatest length."""

_LONE_WORD: Final = re.compile(r"[^\W_](?:[^\W_A-Z]{0,14}|[A-Z]{0,14})")
_RUNNING_CHARS: Final = 4
"""Characters of a lone word in a script without spaces; a longer one is a sentence."""

_NUMBERED: Final = re.compile(r"(?:-[0-9]{1,3}|-[0-9a-f]{8})?")
_WITH_DIGEST: Final = re.compile(r"-[0-9a-f]{8}")
_COUNTED: Final = re.compile(r"-[0-9]{1,2}\Z")
_BETWEEN_WORDS: Final = re.compile(r"[-_ .]+")


class FactWords:
    """The labels, names and relations that the text of a fact allows in a file; code replaces all others.

    Args:
        task: contains the end date of the fact, or of an item of a list of facts.
        fact: the fact; without its secrets, if the policy redacts instead of denying.
        related: similar entries.

    Attributes:
        similar: entries that new ones are linked to, by path.
    """

    def __init__(self, task: RememberJob, fact: str, related: Sequence[Related]) -> None:
        self.fact = fact
        self._task, self._related = task, related
        self._items = {comparable(each): FactWords(task, each, related) for each in separate_items(fact)}
        self._replaced: dict[str, CanonicalPath] = {}
        self.similar: dict[str, SimilarEntry] = {}
        self._topic = read(fact).topic
        self._titles = titles_of(fact)
        self._stem = slug(self._titles.name, fact)

    def of(self, content: bytes) -> FactWords:
        """Return the labels of the item of a list that a file contains, or of the whole fact."""
        return self._items.get(comparable(body_of(content)), self)

    def rename(self, change: FileChange, listed: Callable[[str], Collection[str] | None]) -> RelPath:
        """Return the path of a new file.

        One word of the path may come from any author: one word states no fact.
        """
        return self.of(change.after or b"")._renamed(change.path, listed)  # noqa: SLF001  of this class

    def _renamed(self, path: CanonicalPath, listed: Callable[[str], Collection[str] | None]) -> RelPath:
        *folders, name = path.rel.split("/")
        stem, kept, spare = name.removesuffix(FILE_SUFFIX), "", 1
        if _WITH_DIGEST.fullmatch(stem.removeprefix(self._stem)):
            stem = self._stem  # A run cannot see which numbers are free.
        for folder in folders:
            if folder != self._topic and not self._names(folder, FOLDER_WORDS):
                spare -= 1
                if folder not in (listed(kept) or ()) and (spare < 0 or not _is_lone_word(folder)):
                    kept = self._topic
                    break
            kept = joined(kept, folder)
        if not self._names(stem, NAME_WORDS) and not (spare > 0 and _is_lone_word(_COUNTED.sub("", stem))):
            stem = self._stem
        return RelPath(joined(kept, stem + FILE_SUFFIX))

    def labelled(self, after: bytes, before: bytes | None) -> bytes:
        """Return a file with front matter from the fact; a changed file retains its front matter.

        If the text is not from the fact, its title is generated from it, and it has the trust of an agent.
        Only people decide when an entry ends: a run could use an end date to hide facts from the user.
        Therefore a fact that ends becomes a separate entry.

        Raises:
            FallBackToRules, RememberRefused: a fact that ends would be merged into an entry that does not, or
            replace it.
        """
        entry, old = parse(decode(after)), None if before is None else parse(before)
        by, ends = self._whose(after, None if old is None else old.body), self._task.end_of(entry.body)
        is_other = old is not None and not old.has_same_end(ends)
        if is_other and by is not Whose.SAME and (ends is not None or by is Whose.FACT):
            raise self._task.replacement_error()
        if old is not None and by is not Whose.FACT:
            kept = (before or b"").decode("utf-8", "replace")
            return encode((kept.removesuffix(old.body) or "---\n---\n") + entry.body)
        labels = {"name": entry.name, "description": entry.description}
        said = {key: label for key, label in labels.items() if label is not None and self._says(label)}
        if by is Whose.FACT:
            said = {"name": self._titles.name, "description": self._titles.description} | said
        lines = [f"{key}: {written(label)}" for key, label in said.items()]
        lines += [] if ends is None else [f"{EXPIRY_KEY if ends.is_explicit else ENDS_KEY}: {ends.day}"]
        lines += [f"type: {kind}" for kind in (entry.type or (old and old.type),) if kind]
        if words := [
            written(word)
            for word in entry.keywords[:KEYWORDS]
            if len(word) <= KEYWORD_CHARS and self._says(word)
        ]:
            lines.append(f"keywords: [{', '.join(words)}]")
        return encode("\n".join(["---", *lines, "---", entry.body]))

    def stamped(self, after: bytes, before: bytes | None, path: CanonicalPath, by: Run) -> bytes:
        """Return the final bytes of a file, with links to the entries that it replaces or resembles.

        Raises:
            FallBackToRules, RememberRefused: as `labelled`; or one fact would be stored in several entries.
        """
        of = self.of(after)
        labelled = of.labelled(after, before)
        if before is None:
            return stamp(labelled, before, path, by, relations=self._links(labelled, path.scope))
        if of._whose(labelled, parse(before).body) is not Whose.FACT:  # noqa: SLF001
            return stamp(labelled, before, path, by, relations=NO_RELATIONS)
        if self._replaced.setdefault(of.fact, path) != path:
            raise self._task.replacement_error()  # One fact replaces at most one entry.
        return stamp(labelled, before, path, by, relations={SUPERSEDES: digest(before)})

    def _links(self, after: bytes, scope: Scope) -> Mapping[str, object]:
        """Return the links of a new entry to similar entries of its scope.

        A similar entry of another scope is reported, but not linked: other people may read a project file,
        and it must not refer to the user's entries.
        """
        body = parse(after).body
        found = [each for each in self._related if is_similar(body, each.body)]
        self.similar |= {each.path.text: SimilarEntry(each.path.text, each.id) for each in found}
        names = [each.id or each.digest for each in found if each.path.scope == scope]
        return {SEE: names[0] if len(names) == 1 else names} if names else NO_RELATIONS

    def drops(self, after: bytes, before: bytes) -> bool:
        """Return whether a changed entry loses a statement that the fact does not replace."""
        of, was = self.of(after), parse(before).body
        if of._whose(after, was) is not Whose.OTHERS:  # noqa: SLF001  of this class
            return False
        return any(not supersedes(of.fact, each) for each in missing_statements(body_of(after), was))

    def shown(self) -> set[CanonicalPath]:
        """Return the paths of the entries that the model saw before its first turn."""
        return {each.path for each in self._related if each.is_shown}

    def _whose(self, after: bytes, old: str | None) -> Whose:
        return whose(parse(after).body, self.fact, old, supersedes)

    def _says(self, label: str) -> bool:
        return stands_in(label, self.fact)

    def _names(self, name: str, most: int) -> bool:
        """Return whether a name is generated, or has at most `most` words, all from the fact."""
        if name.startswith(self._stem) and _NUMBERED.fullmatch(name[len(self._stem) :]):
            return True
        words = _BETWEEN_WORDS.sub(" ", _COUNTED.sub("", name))
        return len(words.split()) <= most and names(words, self.fact)


def _is_lone_word(name: str) -> bool:
    is_short = len(name) <= _RUNNING_CHARS or not any(map(is_running, name.casefold()))
    return is_short and _LONE_WORD.fullmatch(name) is not None
