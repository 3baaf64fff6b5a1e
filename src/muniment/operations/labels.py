"""Derive the labels, name and relations of a file from the text of the fact.

If the agent of a run chose other ones, they are replaced. Separate from `remember.py`, which commits: this
module decides about the text of one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from muniment.agent.filing import read_cues
from muniment.agent.model import RelatedEntry
from muniment.agent.updates import is_similar, supersedes
from muniment.content.entry import ENDS_KEY, parse
from muniment.content.frontmatter import EXPIRY_KEY, quote_scalar
from muniment.content.gates import decode, encode
from muniment.content.provenance import (
    Authorship,
    determine_authorship,
    find_missing_statements,
    is_label_of_fact,
    is_name_in_fact,
    split_separate_items,
)
from muniment.content.titles import MAX_NAME_WORDS, SLUG_CHARS, build_slug, derive_titles
from muniment.content.words import build_comparison_key, is_unspaced
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import RelPath, Scope, join_path
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.operations.naming import is_name_generated
from muniment.operations.remember_job import RememberJob, read_body
from muniment.store.ledger import SUPERSEDES, Run
from muniment.store.trust import NO_RELATIONS, SEE, stamp_entry
from muniment.types import SimilarEntry

MAX_FOLDER_WORDS: Final = 3
"""Maximum number of words that a run may use in the name of a new folder."""

MAX_KEYWORDS: Final = 12
MAX_KEYWORD_CHARS: Final = 40
"""Maximum number of keywords of a run that are checked, and their maximum length."""

_LONE_WORD: Final = re.compile(r"[^\W_](?:[^\W_A-Z]{0,14}|[A-Z]{0,14})")
_MAX_UNSPACED_CHARS: Final = 4
"""Maximum length of a lone word in a script without spaces; a longer one is a sentence."""

_NUMBERED: Final = re.compile(r"(?:-[0-9]{1,4}|-[0-9a-f]{8})?")
_WITH_DIGEST: Final = re.compile(r"-[0-9a-f]{8}")
_COUNTED: Final = re.compile(r"-[0-9]{1,2}\Z")
_WORD_SEPARATORS: Final = re.compile(r"[-_ .]+")


class FactLabels:
    """The labels, names and relations that the text of a fact allows in a file; code replaces all others.

    Args:
        task: the job; it contains the end date of the fact, or of an item of a list of facts.
        fact: the text of the fact; without its secrets, if the policy redacts secrets.
        related: entries of the memory that are similar to the fact.

    Attributes:
        similar: the existing entries that new entries are linked to, by path.
    """

    def __init__(self, task: RememberJob, fact: str, related: Sequence[RelatedEntry]) -> None:
        self.fact = fact
        self._task, self._related = task, related
        self._items = {
            build_comparison_key(each): FactLabels(task, each, related) for each in split_separate_items(fact)
        }
        self._replaced: dict[str, CanonicalPath] = {}
        self.similar: dict[str, SimilarEntry] = {}
        self._topic = read_cues(fact).topic
        self._titles = derive_titles(fact)
        self._stem = build_slug(self._titles.name, fact)

    def select_item(self, content: bytes) -> FactLabels:
        """Return the labels of the list item that a file contains, or of the whole fact."""
        return self._items.get(build_comparison_key(read_body(content)), self)

    def choose_path(
        self, change: FileChange, list_folder: Callable[[str], Collection[str] | None]
    ) -> RelPath:
        """Return the path of a new file, with names from the fact.

        One word of the path may come from any author, because one word does not state a fact.

        Args:
            change: the new file.
            list_folder: returns the names in a folder, or None if it is missing.
        """
        return self.select_item(change.after or b"")._choose_path(change.path, list_folder)  # noqa: SLF001  of this class

    def _choose_path(
        self, path: CanonicalPath, list_folder: Callable[[str], Collection[str] | None]
    ) -> RelPath:
        *folders, name = path.rel.split("/")
        stem, folder_path, foreign_words_left = name.removesuffix(FILE_SUFFIX), "", 1
        if _WITH_DIGEST.fullmatch(stem.removeprefix(self._stem)):
            stem = self._stem  # A run cannot see which numbers are free.
        for folder in folders:
            if folder != self._topic and not self._is_allowed_name(folder, MAX_FOLDER_WORDS):
                foreign_words_left -= 1
                if folder not in (list_folder(folder_path) or ()) and (
                    foreign_words_left < 0 or not _is_lone_word(folder)
                ):
                    folder_path = self._topic
                    break
            folder_path = join_path(folder_path, folder)
        if not (len(stem) <= SLUG_CHARS and self._is_allowed_name(stem, MAX_NAME_WORDS)) and not (
            foreign_words_left > 0 and _is_lone_word(_COUNTED.sub("", stem))
        ):
            stem = self._stem
        return RelPath(join_path(folder_path, stem + FILE_SUFFIX))

    def add_labels(self, after: bytes, before: bytes | None) -> bytes:
        """Return a file with front matter from the fact; a changed file may keep its own.

        A changed file keeps its front matter unless its new text is exactly the fact. If the text of a new
        file is not from the fact, its title is generated from its text, and it has the trust of an agent.
        Only people decide when an entry ends: a run could use an end date to hide facts from the user.
        Therefore a fact that ends becomes a separate entry.

        Args:
            after: the proposed file.
            before: the file that it replaces; None: it is new.

        Raises:
            FallBackToRules, RememberRefused: a fact that ends would be added to an entry that does not end,
            or would replace such an entry.
        """
        entry, old = parse(decode(after)), None if before is None else parse(before)
        authorship, ends = (
            self._classify_authorship(after, None if old is None else old.body),
            self._task.find_end(entry.body),
        )
        is_other = old is not None and not old.has_same_end(ends)
        if (
            is_other
            and authorship is not Authorship.SAME
            and (ends is not None or authorship is Authorship.FACT)
        ):
            raise self._task.create_replacement_error()
        if old is not None and authorship is not Authorship.FACT:
            old_text = (before or b"").decode("utf-8", "replace")
            return encode((old_text.removesuffix(old.body) or "---\n---\n") + entry.body)
        labels = {"name": entry.name, "description": entry.description}
        accepted_labels = {
            key: label for key, label in labels.items() if label is not None and self._is_from_fact(label)
        }
        if authorship is Authorship.FACT:
            accepted_labels = {
                "name": self._titles.name,
                "description": self._titles.description,
            } | accepted_labels
        lines = [f"{key}: {quote_scalar(label)}" for key, label in accepted_labels.items()]
        lines += [] if ends is None else [f"{EXPIRY_KEY if ends.is_explicit else ENDS_KEY}: {ends.day}"]
        lines += [f"type: {kind}" for kind in (entry.type or (old and old.type),) if kind]
        if keywords := [
            quote_scalar(word)
            for word in entry.keywords[:MAX_KEYWORDS]
            if len(word) <= MAX_KEYWORD_CHARS and self._is_from_fact(word)
        ]:
            lines.append(f"keywords: [{', '.join(keywords)}]")
        return encode("\n".join(["---", *lines, "---", entry.body]))

    def complete_file(self, after: bytes, before: bytes | None, path: CanonicalPath, run: Run) -> bytes:
        """Return the final bytes of a file, with links to the entries that it replaces or resembles.

        Args:
            after: the proposed file.
            before: the file that it replaces; None: it is new.
            path: the path of the file.
            run: the description of the task for the ledger.

        Raises:
            FallBackToRules, RememberRefused: as `add_labels`; or one fact would replace several entries.
        """
        labels = self.select_item(after)
        labelled_file = labels.add_labels(after, before)
        if before is None:
            return stamp_entry(
                labelled_file,
                before,
                path,
                run,
                relations=self.find_links(labelled_file, path.scope),
                is_name_new=True,
            )
        if labels._classify_authorship(labelled_file, parse(before).body) is not Authorship.FACT:  # noqa: SLF001
            return stamp_entry(labelled_file, before, path, run, relations=NO_RELATIONS)
        if self._replaced.setdefault(labels.fact, path) != path:
            raise self._task.create_replacement_error()  # One fact replaces at most one entry.
        return stamp_entry(
            labelled_file,
            before,
            path,
            run,
            relations={SUPERSEDES: digest(before)},
            is_name_new=is_name_generated(labelled_file, path),
        )

    def find_links(self, after: bytes, scope: Scope) -> Mapping[str, object]:
        """Return the links of a new entry to similar entries of its scope.

        A similar entry of another scope is reported, but not linked: other people may read a project file,
        and it must not refer to the user's entries.
        """
        body = parse(after).body
        found = [each for each in self._related if is_similar(body, each.body)]
        self.similar |= {each.path.text: SimilarEntry(each.path.text, each.id) for each in found}
        names = [each.id or each.digest for each in found if each.path.scope == scope]
        return {SEE: names[0] if len(names) == 1 else names} if names else NO_RELATIONS

    def drops_statement(self, after: bytes, before: bytes) -> bool:
        """Return whether a change removes a statement of an entry although the fact does not replace it."""
        labels, old_body = self.select_item(after), parse(before).body
        if labels._classify_authorship(after, old_body) is not Authorship.OTHERS:  # noqa: SLF001  of this class
            return False
        return any(
            not supersedes(labels.fact, each) for each in find_missing_statements(read_body(after), old_body)
        )

    def list_displayed(self) -> set[CanonicalPath]:
        """Return the paths of the entries that the model saw before its first turn."""
        return {each.path for each in self._related if each.is_visible}

    def _classify_authorship(self, after: bytes, old: str | None) -> Authorship:
        return determine_authorship(parse(after).body, self.fact, old, supersedes)

    def _is_from_fact(self, label: str) -> bool:
        return is_label_of_fact(label, self.fact)

    def _is_allowed_name(self, name: str, max_words: int) -> bool:
        """Return whether code generated a name, or it has at most `max_words` words, all from the fact."""
        if name.startswith(self._stem) and _NUMBERED.fullmatch(name[len(self._stem) :]):
            return True
        words = _WORD_SEPARATORS.sub(" ", _COUNTED.sub("", name))
        return len(words.split()) <= max_words and is_name_in_fact(words, self.fact)


def _is_lone_word(name: str) -> bool:
    is_short = len(name) <= _MAX_UNSPACED_CHARS or not any(map(is_unspaced, name.casefold()))
    return is_short and _LONE_WORD.fullmatch(name) is not None
