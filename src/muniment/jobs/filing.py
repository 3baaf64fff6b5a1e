"""How what a remember proposed is committed: under which name, with which trust, stamped how."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from muniment.agent.decision import DESCRIPTION_CHARS, in_one_line, slug, title_of
from muniment.agent.filing import read
from muniment.content.entry import parse, shortened
from muniment.content.frontmatter import written
from muniment.content.gates import decode, encode
from muniment.content.provenance import Whose, names, stands_in, whose
from muniment.content.secrets import redacted
from muniment.content.words import is_running
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.jobs.place import Place
from muniment.names import RelPath, Scope, Trust, joined
from muniment.policy.grammar import FILE_SUFFIX, CanonicalPath
from muniment.sandbox import JobTerms, Sandbox
from muniment.store.audit import timestamp
from muniment.store.commit import Stamp
from muniment.store.ledger import Draft, Origin, root_key
from muniment.store.trust import ChangeOrigin, Ruling, TrustRule, by_words, new_ulid, stamp, trust_at
from muniment.store.upkeep import trusts_shown

KIND: Final = "remember"

FOLDER_WORDS: Final = 3
NAME_WORDS: Final = 12
"""Words that a run may give a new folder or file; more of them are a sentence."""

KEYWORDS: Final = 12
KEYWORD_CHARS: Final = 40
"""Keywords of a run that are looked at, and how long they may be."""

_LONE_WORD: Final = re.compile(r"[^\W_](?:[^\W_A-Z]{0,14}|[A-Z]{0,14})")
_RUNNING_CHARS: Final = 4
"""Characters of a lone word in a script without spaces, where more of them are a sentence."""

_NUMBERED: Final = re.compile(r"(?:-[0-9]{1,3}|-[0-9a-f]{8})?")
_COUNTED: Final = re.compile(r"-[0-9]{1,2}\Z")
_BETWEEN_WORDS: Final = re.compile(r"[-_ .]+")


class NotTheirWords(Exception):
    """A run would put words of its own in the place of somebody's."""


@dataclass(frozen=True, slots=True)
class Filing:
    """What the commit of one fact is bound to.

    Attributes:
        trust: of the request.
        decided_by: `rules`, or the model's name.
    """

    place: Place
    task: str
    fact: str
    trust: Trust
    decided_by: str

    def terms(self, box: Sandbox, indexes: Collection[Scope], *, holds_up: bool) -> JobTerms:
        """The terms for what a run proposed in `box`, after it was shown the indexes of some scopes.

        Args:
            box: of the run.
            indexes: of these scopes.
            holds_up: where a model's words would wait for review in the place of somebody's, let them wait;
                else the commit raises `NotTheirWords`.
        """
        now = datetime.now(UTC)
        state, policy = self.place.state, self.place.policy.label
        origin = Origin(
            self.task,
            KIND,
            timestamp(now),
            self.trust,
            self.decided_by,
            policy,
            fact=state.keyed(self.fact),
        )
        # Where secrets are taken out instead of refused, so they are of the fact.
        is_redacted = self.place.policy.content.secrets == "redact"
        fact = redacted(self.fact) if is_redacted else self.fact
        words = _Words(fact)
        rule = by_words(fact, self.trust, _least_shown(self.place, box, indexes))
        return JobTerms(
            origin, rule if holds_up else _not_in_place_of_others(rule), self._stamp(now, words), words.rename
        )

    def _stamp(self, now: datetime, words: _Words) -> Stamp:
        def stamped(after: bytes, before: bytes | None, path: CanonicalPath, trust: Trust) -> bytes:
            provenance = ChangeOrigin(
                new_ulid(), now, self.task, trust, self.decided_by, self.place.policy.label
            )
            return stamp(words.labelled(after, before), before, path, provenance)

        return stamped


class _Words:
    """Labels and names that a fact's own words make; whatever else is proposed gives way to code's."""

    def __init__(self, fact: str) -> None:
        self._fact = fact
        self._topic = read(fact).topic
        self._title = title_of(fact)
        self._description = shortened(in_one_line(fact), DESCRIPTION_CHARS)
        self._stem = slug(self._title, fact)

    def rename(self, path: CanonicalPath, listed: Callable[[str], Collection[str] | None]) -> RelPath:
        """Where a new file goes. One word of its path may be anybody's: it says nothing by itself."""
        *folders, name = path.rel.split("/")
        stem, kept, spare = name.removesuffix(FILE_SUFFIX), "", 1
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
        """A file with front matter that is the fact's; of one that it changes, with what that had.

        Words that are not the fact's get a title that is made of them, and are trusted like an agent's. When
        an entry ends people say: by a run it could only hide what they wanted to be told.
        """
        entry, old = parse(decode(after)), None if before is None else parse(before)
        by = whose(entry.body, self._fact, None if old is None else old.body)
        if old is not None and by is not Whose.FACT:
            kept = (before or b"").decode("utf-8", "replace")
            return encode((kept.removesuffix(old.body) or "---\n---\n") + entry.body)
        labels = {"name": entry.name, "description": entry.description}
        said = {key: label for key, label in labels.items() if label is not None and self._says(label)}
        if by is Whose.FACT:
            said = {"name": self._title, "description": self._description} | said
        lines = [f"{key}: {written(label)}" for key, label in said.items()]
        lines += [f"type: {kind}" for kind in (entry.type or (old and old.type),) if kind]
        if words := [
            written(word)
            for word in entry.keywords[:KEYWORDS]
            if len(word) <= KEYWORD_CHARS and self._says(word)
        ]:
            lines.append(f"keywords: [{', '.join(words)}]")
        return encode("\n".join(["---", *lines, "---", entry.body]))

    def _says(self, label: str) -> bool:
        return stands_in(label, self._fact)

    def _names(self, name: str, most: int) -> bool:
        """Whether a name is of at most so many words of the fact, or code's with a number."""
        if name.startswith(self._stem) and _NUMBERED.fullmatch(name[len(self._stem) :]):
            return True
        words = _BETWEEN_WORDS.sub(" ", _COUNTED.sub("", name))
        return len(words.split()) <= most and names(words, self._fact)


def _not_in_place_of_others(rule: TrustRule) -> TrustRule:
    def ruled(draft: Draft, held: Trust | None) -> Ruling:
        ruling = rule(draft, held)
        if ruling.note is not None and held is not None and not ruling.trust.satisfies(held):
            raise NotTheirWords
        return ruling

    return ruled


def _is_lone_word(name: str) -> bool:
    is_short = len(name) <= _RUNNING_CHARS or not any(map(is_running, name.casefold()))
    return is_short and _LONE_WORD.fullmatch(name) is not None


def _least_shown(place: Place, box: Sandbox, indexes: Collection[Scope]) -> Callable[[], Trust | None]:
    """Asks for the least trust of all that a run was shown; None: nothing."""

    def least() -> Trust | None:
        made = {change.path for change in box.changes() if change.kind == "create"}
        trusts = [trust for path in box.seen if (trust := _trust_at(place, box, path, made)) is not None]
        for scope in indexes:
            trusts += trusts_shown(place.state, place.roots[scope], place.policy)
        return trusts[0].capped(*trusts[1:]) if trusts else None

    return least


def _trust_at(place: Place, box: Sandbox, path: str, made: Collection[str]) -> Trust | None:
    """The trust of what stands at a path that was shown; None where the run had written that itself."""
    scope, _, rel = path.partition("/")
    try:
        found = box.without_links(CanonicalPath(Scope(scope), RelPath(rel)))
        root = place.roots[found.scope]
        content = root.root.read_bytes(found.rel)
    except (PathEscape, Refusal, ToolError):
        # It went since: nobody can say any more who it came from.
        return None if path in made else Trust.EXTERNAL
    return trust_at(place.state, root_key(place.state, root), found, content, place.policy)
