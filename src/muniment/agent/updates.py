"""Decide whether a fact replaces another, by its form alone; if that is not certain, both stay.

U1  Both are one statement. No word adds to, limits or dates the new one (`also`, `only`, `today`), and no
    clause after it has another subject (`says Ben`).
U2  *Denied*: both begin in the same way, and all words of the old one are in the new one. Some of them, and
    no others, follow words that mark a former state (`no longer`, `instead of`, `switched from`). A simple
    negation (`not`), a comparison (`no longer than`) and a double negation do not mark one. `from` and `to`
    with a verb of change do (`was renamed from … to …`), if nothing else is omitted.
U3  *Changed*: the two differ, word for word, in one position after their subject. A word of change (`now`)
    precedes it, or it is the last part of the sentence. Without such a word another number, day, name or
    place is another fact: both stay, however similar they are (`is_similar`).
U4  The differing part is a word, not its relation to the rest (`on`, `for`). It must not be of a kind with
    several values (`also speaks`): it is a value, or a property with one value (`live in`, `is called`).
U5  The part of the old text about its own past is ignored: `now`, `no longer on Tuesdays` beside another day,
    and `instead of pip` at its end. If it contains `now` itself, the differing part must be a value, or a
    property with one value (`live in`).

Not guaranteed: that every update is found. A missed one becomes a separate entry.

Attacked in tests/units/agent/test_updates.py, with tests/facts/updates.json.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

from muniment.agent.decision import cues, is_unspaced, plain_words
from muniment.content.provenance import telling_words
from muniment.content.words import STOP_WORDS

MAX_WORDS: Final = 80
"""Words of a statement that is compared; a longer one is not a single statement."""

_MAX_SLOT: Final = 4
"""Words of the position in which two statements differ."""

_WORD_BEGINNING: Final = 5
"""Characters that identify a word in another inflection."""

_MIN_SHARED: Final = 2
"""Shared words that connect a clause to a statement; one content word is enough."""

_MAX_CHARS: Final = 1_000
_CLAUSES: Final = re.compile(
    r"([:=](?=\s)|(?<!\d)\uff1a)|[,;](?=\s)|[\u3001\uff0c\uff1b\u2014\u2013]|(?<!\d)[.!](?=\s|\Z)|[\u3002\uff01\n]"
)
_CLAUSE_ENDS: Final = re.compile(r"[,;.!\u3001\u3002\uff0c\uff01\u2026\n]")
_SENTENCES: Final = re.compile(r"(?<!\d)[.!]\s+(?=\S)|[\u3002\uff01](?=.)|\n\s*(?=\S)")
_QUESTION: Final = re.compile(r"[?\uff1f\u061f]")
_MARKER: Final = re.compile(r"\A\s*[-*+>]\s+")
_ENDINGS: Final = ("ing", "ed", "es", "s")
_MIN_STEM: Final = 3
_CUES: Final = ("changed", "former", "more", "replaced")
"""Tables of words that mark a change and are not part of the statement."""

_OF_CHANGE: Final = frozenset({*_CUES, "ended", "now"})
"""Tables whose cues are ignored in a phrase of the table `idle`."""

_SPEAKERS: Final = (
    (("the", "user", "s"), "my"),
    (("user", "s"), "my"),
    (("the", "user"), "i"),
    (("user",), "i"),
)
"""The openings of a fact about the person, and the same in the first person."""


def supersedes(new: str, old: str) -> bool:
    """Return whether the fact `new` replaces `old` (U1 to U5).

    Cost: linear in the texts up to `_MAX_CHARS`, and the square of `MAX_WORDS`.
    """
    told, said = _statement(new, sentences=2), _statement(old, sentences=1)
    if told is None or said is None or not _tells_change(told) or not _is_as_limited(told, said):
        return False
    was = said.as_it_holds()
    if not _is_all_of_it(told, was):
        return False
    if _is_denied(told, was) or _is_replaced(told, was) or _is_moved(told, was):
        return True
    return _is_changed(told, was, is_again=_has("now", said))


def _is_all_of_it(told: _Statement, was: _Statement) -> bool:
    """Return whether each clause after that of the change belongs to the old statement (U1).

    Another clause may revoke the statement: `says Ben`, `which is a lie`. A clause belongs to it if it shares
    a content word or two other words, contains a word of change, or gives the new value (`but in Porto`).
    """
    tables = ("changed", "replaced", "past", "more", "turned")
    cues_at = {at for name in tables for at in _covered(name, told.words)}
    first = min((told.clauses[at] for at in cues_at), default=0)
    content = _content(was.words)
    for number in {each for each in told.clauses if each > first}:
        places = [at for at, each in enumerate(told.clauses) if each == number]
        clause = [told.words[at] for at in places]
        contrast = _first("contrast", clause)
        if contrast is not None and contrast[0] == 0 and len(clause) - contrast[1] <= _MAX_SLOT:
            continue
        shared = {*clause}.intersection(was.words)
        if not cues_at.intersection(places) and len(shared) < _MIN_SHARED and not shared & content:
            return False
    return True


def says_change(fact: str) -> bool:
    """Return whether a fact states itself that something has changed."""
    told = _statement(fact, sentences=2)
    return told is not None and _tells_change(told)


def is_similar(one: str, other: str) -> bool:
    """Return whether two facts have the same subject, so that they are linked although both stay.

    They share half of the significant words of the longer one, or two words and half of those of the shorter
    one; numbers do not count. Or one is a longer wording of the other: it has all of its words.
    """
    words, others = _without_numbers(telling_words(one)), _without_numbers(telling_words(other))
    shared, (fewer, more) = len(words & others), sorted((len(words), len(others)))
    if shared and (2 * shared >= more or (shared > 1 and 2 * shared >= fewer)):
        return True
    return _is_worded_in(one, other) or _is_worded_in(other, one)


def _without_numbers(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not _is_number(word)) or words


def _is_worded_in(short: str, long: str) -> bool:
    """Return whether each word of a text occurs in another one, in some inflection."""
    words, others = list(_words(short[:_MAX_CHARS])), list(_words(long[:_MAX_CHARS]))
    if not 1 < len(words) <= MAX_WORDS or not _content(words) or len(others) > MAX_WORDS:
        return False
    known = {word[:_WORD_BEGINNING] for word in others}
    return all(word[:_WORD_BEGINNING] in known for word in words)


def _is_as_limited(told: _Statement, said: _Statement) -> bool:
    """Return whether both or neither of two statements add, limit or date something (U1)."""
    return _has("blocked", told) == _has("blocked", said)


@lru_cache(maxsize=4096)
def _tells_change(told: _Statement) -> bool:
    """Return whether a statement contains a change; without one it replaces nothing."""
    is_told = any(_has(name, told) for name in ("changed", "replaced")) or _first_denial(told) is not None
    return is_told or _from_and_to(told.words) is not None


def is_chatter(text: str) -> bool:
    """Return whether a text contains only thanks, greetings, yes or no, in one language."""
    if len(text) > _MAX_CHARS or _QUESTION.search(text):
        return False
    clauses = [clause for each in _CLAUSE_ENDS.split(text) if (clause := plain_words(each).strip())]
    return bool(clauses) and any(all(_is_talk(each, cues) for each in clauses) for cues in _chatter())


def _is_talk(clause: str, said: frozenset[str]) -> bool:
    """Return whether a clause consists of some cues; a negation only counts as a complete clause."""
    if clause in said:
        return True
    words = clause.split()
    at = 0
    while at < len(words):
        sizes = range(len(words) - at, 0, -1)
        size = next((size for size in sizes if " ".join(words[at : at + size]) in said - _denials()), 0)
        if not size:
            return False
        at += size
    return True


@dataclass(frozen=True, slots=True)
class _Statement:
    """The words of a statement.

    Attributes:
        words: in the form for comparison; single characters in scripts without spaces.
        clauses: the number of its clause for each word.
    """

    words: tuple[str, ...]
    clauses: tuple[int, ...]

    def without(self, dropped: Collection[int]) -> tuple[str, ...]:
        """Return the words without those at some positions."""
        return tuple(word for at, word in enumerate(self.words) if at not in dropped)

    def as_it_holds(self) -> _Statement:
        """Return the statement without the parts about its own past (U5)."""
        gone = {*_covered("now", self.words), *self._former_clause(), *self._instead()}
        kept = [at for at in range(len(self.words)) if at not in gone]
        return _Statement(tuple(self.words[at] for at in kept), tuple(self.clauses[at] for at in kept))

    def _former_clause(self) -> list[int]:
        """Return the positions of a last clause about a former value.

        It denies the value, with the relation of the clause before it.
        """
        for start, end in _places("ended", self.words):
            clause, before = self.rest_of_clause(start), self.clause_of(start - 1) if start else ()
            relation = _relations(self.words[end : end + 1])
            is_last = clause[-1] == len(self.words) - 1
            if is_last and relation and relation[0] in {self.words[at] for at in before}:
                return clause
        return []

    def _instead(self) -> list[int]:
        """Return the positions of an end of the statement that only gives the replaced thing."""
        for start, end in _places("instead", self.words):
            named = self.words[end:]
            if start and len(_as_told(named)) == len(_content(named)) == 1:
                return list(range(start, len(self.words)))
        return []

    def clause_of(self, place: int) -> list[int]:
        """Return the positions of a clause."""
        return [at for at, number in enumerate(self.clauses) if number == self.clauses[place]]

    def rest_of_clause(self, start: int) -> list[int]:
        """Return the positions from one to the end of its clause."""
        return [at for at in range(start, len(self.words)) if self.clauses[at] == self.clauses[start]]


@lru_cache(maxsize=4096)
def _statement(text: str, *, sentences: int) -> _Statement | None:
    """Return the words of a text that is one statement, or None."""
    said = _MARKER.sub("", text.strip())
    if len(said) > _MAX_CHARS or _QUESTION.search(said) or len(_SENTENCES.findall(said)) >= sentences:
        return None
    pairs = [(word, number) for number, clause in _clauses(said) for word in _without_nouns(clause)]
    words = [word for word, _ in pairs]
    for opening, speaker in _SPEAKERS:
        if tuple(words[: len(opening)]) == opening:
            pairs[: len(opening)] = [(speaker, 0)]
            break
    if not 1 < len(pairs) <= MAX_WORDS:
        return None
    return _Statement(tuple(word for word, _ in pairs), tuple(number for _, number in pairs))


def _without_nouns(clause: Sequence[str]) -> Iterator[str]:
    """Yield the words of a clause; mark words that are a cue only as a separate clause (`Update: …`)."""
    is_heading = len([word for word in clause if word != ":"]) == 1
    for word in clause:
        yield word if is_heading or (word,) not in _table("heading") else f"={word}"


def _clauses(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the clauses of a text by number; a colon before a value is a word of the clause before it."""
    at = number = 0
    for end in (*_CLAUSES.finditer(text), None):
        words = list(_words(text[at : len(text) if end is None else end.start()]))
        if end is not None:
            words += [":"] if end[1] else []
            at = end.end()
        if words:
            yield number, words
            number += 1


def _words(text: str) -> Iterator[str]:
    for word in plain_words(text).split():
        if is_unspaced(word):
            yield from word
        else:
            yield _stem(word)


def _stem(word: str) -> str:
    ending = next((each for each in _ENDINGS if word.endswith(each)), "")
    is_long = word.isascii() and len(word) - len(ending) >= _MIN_STEM
    return word.removesuffix(ending) if is_long else word


# -- denied --------------------------------------------------------------------------------------------


def _is_denied(told: _Statement, was: _Statement) -> bool:
    """Return whether the new statement denies the old one (U2)."""
    negated, replaced = _first_denial(told, was.words), _first("replaced", told.words)
    start, end = replaced or negated or (0, 0)
    if not end or _first("former", was.words) or _first("replaced", was.words):
        return False
    cues_at = {at for name in _CUES for at in _covered(name, told.words)}
    cues_at -= {at for at in _covered("more", told.words) if told.words[at] in was.words}
    clause = told.clause_of(end - 1)
    if not replaced and not _is_denied_once(told, clause):
        return False
    gone = _up_to_target([at for at in clause if at >= end], told) or [at for at in clause if at < start]
    content, left = _content(was.words), told.without(cues_at)
    denied = _content([told.words[at] for at in (gone if replaced else clause) if at not in cues_at])
    is_of_it = bool(denied) and denied <= content <= _content(left)
    if replaced and _has_target(gone, told):
        is_of_it &= _content(told.words[:start]) <= content | _words_of("predicate")
    elif replaced:
        is_of_it &= _relations(told.without({*cues_at, *gone})) == _relations(was.words)
    return is_of_it and _opening(left, content) == _opening(was.words, content)


def _is_denied_once(told: _Statement, clause: Sequence[int]) -> bool:
    more = _covered("more", told.words)
    return sum(start in clause and start not in more for start, _ in _places("former", told.words)) <= 1


def _first_denial(told: _Statement, known: Collection[str] = ()) -> tuple[int, int] | None:
    """Return where a statement first marks something as a former state, or None.

    Args:
        told: the statement.
        known: words that do not mark it, since the old statement has them too.
    """
    more = {at for at in _covered("more", told.words) if told.words[at] not in known}
    for start, end in _places("former", told.words):
        cue, clause = tuple(told.words[start:end]), told.clause_of(start)
        is_past = cue in _table("past") or (cue in _table("earlier") and 0 < start == clause[0])
        if is_past or (cue in _table("not") and any(at >= end for at in more.intersection(clause))):
            return start, end
    return None


def _has_target(gone: Sequence[int], told: _Statement) -> bool:
    return bool(gone) and (told.words[gone[-1] + 1 : gone[-1] + 2]) in _table("target")


def _up_to_target(places: Sequence[int], told: _Statement) -> list[int]:
    """Return the positions up to a word that introduces the new value (`from … to`), if any precede it."""
    targets = _table("target")
    for number, at in enumerate(places):
        if number and (told.words[at],) in targets:
            return list(places[:number])
    return list(places)


def _opening(words: Sequence[str], content: Collection[str]) -> list[str]:
    """Return the words before the first content word, without words that are neither content nor subject."""
    at = next((at for at, word in enumerate(words) if word in content), len(words))
    return _as_told(words[:at])


def _is_replaced(told: _Statement, was: _Statement) -> bool:
    """Return whether another value replaces the one after `instead of`, with all other words equal (U2)."""
    cue = _first("instead", told.words)
    places = _differing(was.words, told.as_it_holds().words)
    if cue is None or len(places) != 1:
        return False
    ((old, new, _),) = places
    is_named = _as_told(old) == _as_told(told.words[cue[1] :])
    return is_named and _may_be_slot(new) and _relations(old) == _relations(new)


def _is_moved(told: _Statement, was: _Statement) -> bool:
    """Return whether `told` gives the old value with a verb of change (`moved from … to …`)."""
    found = _from_and_to(told.words)
    if found is None:
        return False
    gone, come = found
    verbs, denied = _covered("turned", told.words), _content([told.words[at] for at in gone])
    rest = [at for at in range(len(told.words)) if at not in verbs and at not in gone and at not in come]
    content, left = _content(was.words), _content([told.words[at] for at in rest])
    idle = _words_of("predicate")
    is_of_it = bool(denied) and denied <= content and left - idle <= content - denied
    if not is_of_it or not content - denied - idle <= left:
        return False
    said = {told.words[at] for at in (*verbs, *gone)}
    return _subject(told.words, said | idle) == _subject(was.words, denied | idle)


def _subject(words: Sequence[str], predicate: Collection[str]) -> frozenset[str]:
    """Return the subject before a predicate: its content words, or pronouns if it has none."""
    before = words[: next((at for at, word in enumerate(words) if word in predicate), len(words))]
    return _content(before) or frozenset(before)


def _from_and_to(words: Sequence[str]) -> tuple[range, range] | None:
    """Return the positions of the old and new value after `from` and `to` of a verb of change."""
    verbs, targets, end = _covered("turned", words), _table("target") | _table("inward"), len(words)
    if not verbs:
        return None
    start = next((at for at, word in enumerate(words) if at and (word,) in _table("from")), end)
    stop = next((at for at in range(start + 2, end) if (words[at],) in targets), end)
    last = next((at for at in range(stop + 1, end) if at in verbs), end)
    gone, come = range(start + 1, stop), range(stop + 1, last)
    return (gone, come) if 0 < len(gone) <= _MAX_SLOT and 0 < len(come) <= _MAX_SLOT else None


def _as_told(words: Sequence[str]) -> list[str]:
    """Return the words without those that are neither content nor subject."""
    return [word for word in words if (word,) not in _table("article")]


# -- changed -------------------------------------------------------------------------------------------


def _is_changed(told: _Statement, was: _Statement, *, is_again: bool) -> bool:
    """Return whether the new statement changes one value of the old one (U3, U4).

    Args:
        told: the new statement.
        was: the old statement, without the parts about its own past.
        is_again: whether the old statement also marks itself as a change.
    """
    cue = _first("changed", told.words)
    if cue is None:
        return False
    new, old = told.without(_covered("changed", told.words)), was.words
    new = new[1:] if new[:1] == (":",) else new
    found = _differing(old, new)
    if not found or not all(one and other for one, other, _ in found):
        return False
    if len(found) > 1 and not all(_is_value(one) and _is_value(other) for one, other, _ in found):
        return False
    start, end = found[0][2].start, found[-1][2].stop
    come, gone = new[start:end], old[start : len(old) - len(new) + end]
    if not (_may_be_slot(gone) and _may_be_slot(come)) or _relations(gone) != _relations(come):
        return False
    is_value = all(map(_is_value, (gone, come)))
    if any(map(_is_number, gone)) != any(map(_is_number, come)):
        return False
    if is_again and not (is_value or _ends("single", new[:start])):
        return False
    is_own = is_value and len(told.clause_of(cue[0])) <= cue[1] - cue[0] + 1  # `Correction: …`, `Actually, …`
    return _is_said_to_change(cue[0], new, start, end, is_value=is_value, is_own=is_own)


def _differing(old: Sequence[str], new: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str], range]]:
    """Return where two texts differ: the words of both, and the positions in the new one."""
    matched = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(old[a:b], new[c:d], range(c, d)) for kind, a, b, c, d in matched if kind != "equal"]


def _may_be_slot(words: Sequence[str]) -> bool:
    is_denied = _first("former", words) or _first("replaced", words)
    return 0 < len(words) <= _MAX_SLOT and bool(_content(words)) and not is_denied


def _relations(words: Sequence[str]) -> list[str]:
    return [word for word in words if (word,) in _table("relation")]


def _is_said_to_change(
    cue: int, new: Sequence[str], start: int, end: int, *, is_value: bool, is_own: bool
) -> bool:
    """Return whether a word of change after `cue` words applies to the differing part; `is_own`: to all."""
    before, behind = new[:start], new[end:]
    if not _content([*before, *behind]) or not before or start < cue < end:
        return False
    if not is_value and (_first("gathering", [*before, *behind]) or not _is_of_one(before, behind)):
        return False
    if is_value and _tells_a_number(before) and not any(map(_is_number, new[start:end])):
        return False  # The new part is a day on which something applies, not a new value: at 7 on Sundays.
    return is_own or 0 < cue <= start or not _content(behind)


def _is_of_one(before: Sequence[str], behind: Sequence[str]) -> bool:
    """Return whether the context of the differing part is a property with one value.

    A relation (`go to`) has one place, target or tool, and a thing has one name or owner (`my manager is`).
    But most verbs have several objects (`I take`), and a person may be several things.
    """
    own = [word for word in before if word not in _words_of("determiner")]
    named = _ends("copula", own) and tuple(before[:1]) in _table("determiner")
    return named or _ends("single", before) or bool(_relations([*own[-1:], *behind[:1]]))


def _tells_a_number(words: Sequence[str]) -> bool:
    """Return whether a number directly follows a word of relation."""
    return any(_relations([word]) and _is_number(after) for word, after in pairwise(words))


def _is_value(words: Sequence[str]) -> bool:
    """Return whether the words are a number, day or month, with its unit."""
    told = [word for word in words if (word,) not in _table("light") and (word,) not in _table("relation")]
    return bool(told) and all(_is_number(word) or (word,) in _table("calendar") for word in told)


def _is_number(word: str) -> bool:
    return any(map(str.isdigit, word))


# -- tables --------------------------------------------------------------------------------------------


def _content(words: Sequence[str]) -> frozenset[str]:
    """Return the content words."""
    return frozenset(
        word for word in words if (word,) not in _empty() and word not in STOP_WORDS and word != ":"
    )


@cache
def _empty() -> frozenset[tuple[str, ...]]:
    return _table("light") | _table("relation")


def _has(name: str, statement: _Statement) -> bool:
    return _first(name, statement.words) is not None


def _first(name: str, words: Sequence[str]) -> tuple[int, int] | None:
    """Return the position of the first cue of a table, or None."""
    return next(_places(name, words), None)


def _covered(name: str, words: Sequence[str]) -> frozenset[int]:
    """Return the positions of all words that belong to cues of a table."""
    return frozenset(at for start, end in _places(name, words) for at in range(start, end))


def _ends(name: str, words: Sequence[str]) -> bool:
    """Return whether words end with a cue of a table."""
    return any(tuple(words[-size:]) in _table(name) for size in range(1, _longest(name) + 1))


def _places(name: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of the cues of a table, the longest at each position, without overlap.

    A cue in a phrase that does not express a change (`used to cut`, `un'ora`) is skipped.
    """
    idle = () if name not in _OF_CHANGE else frozenset(_spans("idle", words))
    for start, end in _spans(name, words):
        if not any(first <= start and end <= last for first, last in idle):
            yield start, end


def _spans(name: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    table, longest, at = _table(name), _longest(name), 0
    while at < len(words):
        sizes = range(min(longest, len(words) - at), 0, -1)
        size = next((size for size in sizes if tuple(words[at : at + size]) in table), 0)
        if size:
            yield at, at + size
        at += size or 1


@cache
def _table(name: str) -> frozenset[tuple[str, ...]]:
    return frozenset(filter(None, (tuple(_words(cue)) for cue in cues().updates[name])))


@cache
def _words_of(name: str) -> frozenset[str]:
    """Return the single words of a table."""
    return frozenset(cue[0] for cue in _table(name) if len(cue) == 1)


@cache
def _longest(name: str) -> int:
    return max(map(len, _table(name)))


@cache
def _chatter() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(plain_words(cue).strip() for cue in said) for said in cues().chatter)


@cache
def _denials() -> frozenset[str]:
    return frozenset(plain_words(cue).strip() for cue in cues().updates["denial"])
