"""Whether a fact takes the place of another: by its form alone, so that what is not certain stays beside it.

U1  Both are one statement. Nothing adds to, limits or dates what the new one says (`also`, `only`, `today`),
    and no clause behind it is of something else (`says Ben`).
U2  *Denied*: both begin alike, all words of the old one stand in the new one, and behind words that say that
    something was so and is no longer (`no longer`, `instead of`, `switched from`) stand some of them and no
    others. A bare denial (`not`) and a comparison (`no longer than`) do not say that, nor does
    what is denied twice.
    So do `from` and `to` beside a verb of change (`was renamed from … to …`), if nothing else is left out.
U3  *Changed*: word for word the two differ in one place, behind what they tell of, and a word of change
    stands before it (`now`), or it is the last thing that is said. Without such a word another number, day,
    name or place is another fact: both stay, however alike they are (`is_similar`).
U4  What differs is a word, not its relation to the rest (`on`, `for`), and not of a kind of which there may
    be several (`also speaks`): a value, or what one thing has one of (`live in`, `is called`).
U5  What the old one says of its own past is left out: `now`, `no longer on Tuesdays` beside another day, and
    `instead of pip` at its end. If it says `now` itself, what differs is a value, or of what one has one
    (`live in`).

What does not hold: that every update is found. One that is not becomes an entry beside the old one.

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
"""Words of a statement that is compared; a longer one is a text."""

_MAX_SLOT: Final = 4
"""Words of the one place in which two statements differ."""

_WORD_BEGINNING: Final = 5
"""Characters by which a word is found again in another inflection."""

_MIN_SHARED: Final = 2
"""Words of any kind by which a clause is of a statement; one of its content is enough."""

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
"""Tables of the words that say that something is otherwise, and are no part of what is said."""

_OF_CHANGE: Final = frozenset({*_CUES, "ended", "now"})
"""Tables whose cues are none in a phrase of the table `idle`."""

_SPEAKERS: Final = (
    (("the", "user", "s"), "my"),
    (("user", "s"), "my"),
    (("the", "user"), "i"),
    (("user",), "i"),
)
"""What opens a fact that is told of the person, and what it is in his own words."""


def supersedes(new: str, old: str) -> bool:
    """Return whether the fact `new` takes the place of `old` (U1 to U5).

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
    """Return whether each clause behind that of the change is of the old statement (U1).

    Another one may take back what was said: `says Ben`, `which is a lie`. One that is has a word of its
    content, or two of its words, or is itself said to change, or says what holds instead (`but in Porto`).
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
    """Return whether a fact says itself that something is otherwise than it was."""
    told = _statement(fact, sentences=2)
    return told is not None and _tells_change(told)


def is_similar(one: str, other: str) -> bool:
    """Return whether two facts are about the same, so that they are linked although both stay.

    They share half of the telling words of the longer one, or two words and half of those of the shorter one;
    numbers tell nothing. Or one is the other in a longer wording: it has all of its words.
    """
    words, others = _without_numbers(telling_words(one)), _without_numbers(telling_words(other))
    shared, (fewer, more) = len(words & others), sorted((len(words), len(others)))
    if shared and (2 * shared >= more or (shared > 1 and 2 * shared >= fewer)):
        return True
    return _is_worded_in(one, other) or _is_worded_in(other, one)


def _without_numbers(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not _is_number(word)) or words


def _is_worded_in(short: str, long: str) -> bool:
    """Return whether each word of a text stands in another one, in some inflection."""
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
    """Return whether a statement says that something was otherwise: without that it replaces nothing."""
    is_told = any(_has(name, told) for name in ("changed", "replaced")) or _first_denial(told) is not None
    return is_told or _from_and_to(told.words) is not None


def is_chatter(text: str) -> bool:
    """Whether a text says nothing to keep: thanks, greetings, yes or no, all of it in one language."""
    if len(text) > _MAX_CHARS or _QUESTION.search(text):
        return False
    clauses = [clause for each in _CLAUSE_ENDS.split(text) if (clause := plain_words(each).strip())]
    return bool(clauses) and any(all(_is_talk(each, cues) for each in clauses) for cues in _chatter())


def _is_talk(clause: str, said: frozenset[str]) -> bool:
    """Whether a clause is one of some cues, or of several; a denial is one by itself alone."""
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
        words: as they are compared; a character each where none can be told from the next.
        clauses: of each word the number of its clause.
    """

    words: tuple[str, ...]
    clauses: tuple[int, ...]

    def without(self, dropped: Collection[int]) -> tuple[str, ...]:
        """The words but for those at some places."""
        return tuple(word for at, word in enumerate(self.words) if at not in dropped)

    def as_it_holds(self) -> _Statement:
        """Without what it says of its own past (U5)."""
        gone = {*_covered("now", self.words), *self._former_clause(), *self._instead()}
        kept = [at for at in range(len(self.words)) if at not in gone]
        return _Statement(tuple(self.words[at] for at in kept), tuple(self.clauses[at] for at in kept))

    def _former_clause(self) -> list[int]:
        """A clause that says with a relation of the clause before it, of what it is no longer so."""
        for start, end in _places("ended", self.words):
            clause, before = self.rest_of_clause(start), self.clause_of(start - 1) if start else ()
            relation = _relations(self.words[end : end + 1])
            is_last = clause[-1] == len(self.words) - 1
            if is_last and relation and relation[0] in {self.words[at] for at in before}:
                return clause
        return []

    def _instead(self) -> list[int]:
        """The end of a statement that names nothing but what something else took the place of."""
        for start, end in _places("instead", self.words):
            named = self.words[end:]
            if start and len(_as_told(named)) == len(_content(named)) == 1:
                return list(range(start, len(self.words)))
        return []

    def clause_of(self, place: int) -> list[int]:
        """The places of a clause."""
        return [at for at, number in enumerate(self.clauses) if number == self.clauses[place]]

    def rest_of_clause(self, start: int) -> list[int]:
        """The places from one to the end of its clause."""
        return [at for at in range(start, len(self.words)) if self.clauses[at] == self.clauses[start]]


@lru_cache(maxsize=4096)
def _statement(text: str, *, sentences: int) -> _Statement | None:
    """The words of a text that is one statement; None: it is another."""
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
    """Yield the words of a clause, marked if only a clause of their own makes them a cue (`Update: …`)."""
    is_heading = len([word for word in clause if word != ":"]) == 1
    for word in clause:
        yield word if is_heading or (word,) not in _table("heading") else f"={word}"


def _clauses(text: str) -> Iterator[tuple[int, list[str]]]:
    """The clauses of a text by number; what gives a value (`:`) is a word of the one before it."""
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
    """U2."""
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
    """Return where a statement first says that something was so and is no longer, or None.

    Args:
        told: the statement.
        known: words that say nothing of that, since the old statement has them too.
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
    """Some places up to a word behind which something else is told (`from … to`), if any stand before it."""
    targets = _table("target")
    for number, at in enumerate(places):
        if number and (told.words[at],) in targets:
            return list(places[:number])
    return list(places)


def _opening(words: Sequence[str], content: Collection[str]) -> list[str]:
    """What stands before the first word of a content, without words that say nothing and are no subject."""
    at = next((at for at, word in enumerate(words) if word in content), len(words))
    return _as_told(words[:at])


def _is_replaced(told: _Statement, was: _Statement) -> bool:
    """U2, where something else stands word for word in the place of what is named."""
    cue = _first("instead", told.words)
    places = _differing(was.words, told.as_it_holds().words)
    if cue is None or len(places) != 1:
        return False
    ((old, new, _),) = places
    is_named = _as_told(old) == _as_told(told.words[cue[1] :])
    return is_named and _may_be_slot(new) and _relations(old) == _relations(new)


def _is_moved(told: _Statement, was: _Statement) -> bool:
    """Return whether `told` names with a verb of change what the old value was (`moved from … to …`)."""
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
    """Return the words before a predicate that tell of whom it is said: of pronouns all."""
    before = words[: next((at for at, word in enumerate(words) if word in predicate), len(words))]
    return _content(before) or frozenset(before)


def _from_and_to(words: Sequence[str]) -> tuple[range, range] | None:
    """Return the places of what was and of what is, behind `from` and `to` of a verb of change."""
    verbs, targets, end = _covered("turned", words), _table("target") | _table("inward"), len(words)
    if not verbs:
        return None
    start = next((at for at, word in enumerate(words) if at and (word,) in _table("from")), end)
    stop = next((at for at in range(start + 2, end) if (words[at],) in targets), end)
    last = next((at for at in range(stop + 1, end) if at in verbs), end)
    gone, come = range(start + 1, stop), range(stop + 1, last)
    return (gone, come) if 0 < len(gone) <= _MAX_SLOT and 0 < len(come) <= _MAX_SLOT else None


def _as_told(words: Sequence[str]) -> list[str]:
    """Words but for those that say nothing and are no subject."""
    return [word for word in words if (word,) not in _table("article")]


# -- changed -------------------------------------------------------------------------------------------


def _is_changed(told: _Statement, was: _Statement, *, is_again: bool) -> bool:
    """U3 and U4; `is_again`: the old one says itself that it is otherwise from some time on."""
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
    """Where two texts differ: the words of either, and the places of those of the new one."""
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
    """Whether a word of change, before which `cue` words stand, is of what differs; `is_own`: of all."""
    before, behind = new[:start], new[end:]
    if not _content([*before, *behind]) or not before or start < cue < end:
        return False
    if not is_value and (_first("gathering", [*before, *behind]) or not _is_of_one(before, behind)):
        return False
    if is_value and _tells_a_number(before) and not any(map(_is_number, new[start:end])):
        return False  # A day for which something holds, not what holds: at 7 on Sundays.
    return is_own or 0 < cue <= start or not _content(behind)


def _is_of_one(before: Sequence[str], behind: Sequence[str]) -> bool:
    """Return whether words stand around something of which there is one, and not beside what one does or has.

    There is one place, target or tool that a relation names (`go to`), and one name or holder of a thing
    (`my manager is`), but several objects of most verbs (`I take`) and several things that somebody is.
    """
    own = [word for word in before if word not in _words_of("determiner")]
    named = _ends("copula", own) and tuple(before[:1]) in _table("determiner")
    return named or _ends("single", before) or bool(_relations([*own[-1:], *behind[:1]]))


def _tells_a_number(words: Sequence[str]) -> bool:
    """Whether a number stands right behind a word that tells a relation."""
    return any(_relations([word]) and _is_number(after) for word, after in pairwise(words))


def _is_value(words: Sequence[str]) -> bool:
    """Whether they are a number, day or month, and what belongs to it."""
    told = [word for word in words if (word,) not in _table("light") and (word,) not in _table("relation")]
    return bool(told) and all(_is_number(word) or (word,) in _table("calendar") for word in told)


def _is_number(word: str) -> bool:
    return any(map(str.isdigit, word))


# -- tables --------------------------------------------------------------------------------------------


def _content(words: Sequence[str]) -> frozenset[str]:
    """The words that tell what something is about."""
    return frozenset(
        word for word in words if (word,) not in _empty() and word not in STOP_WORDS and word != ":"
    )


@cache
def _empty() -> frozenset[tuple[str, ...]]:
    return _table("light") | _table("relation")


def _has(name: str, statement: _Statement) -> bool:
    return _first(name, statement.words) is not None


def _first(name: str, words: Sequence[str]) -> tuple[int, int] | None:
    """Where the first cue of a table stands."""
    return next(_places(name, words), None)


def _covered(name: str, words: Sequence[str]) -> frozenset[int]:
    """The places of all words that belong to cues of a table."""
    return frozenset(at for start, end in _places(name, words) for at in range(start, end))


def _ends(name: str, words: Sequence[str]) -> bool:
    """Whether words end with a cue of a table."""
    return any(tuple(words[-size:]) in _table(name) for size in range(1, _longest(name) + 1))


def _places(name: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where the cues of a table stand, the longest at each place, one beside the other.

    A cue in a phrase that says nothing of a change (`used to cut`, `un'ora`) is none.
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
