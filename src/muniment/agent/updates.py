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

from muniment.agent.decision import fold_words, is_unspaced, load_cues
from muniment.content.provenance import find_specific_words
from muniment.content.words import STOP_WORDS

MAX_STATEMENT_WORDS: Final = 80
"""Words of a statement that is compared; a longer one is not a single statement."""

_MAX_CHANGED_WORDS: Final = 4
"""Words of the position in which two statements differ."""

_STEM_CHARS: Final = 5
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
_CHANGE_TABLES: Final = ("changed", "former", "more", "replaced")
"""Tables of words that mark a change and are not part of the statement."""

_IDLE_SENSITIVE: Final = frozenset({*_CHANGE_TABLES, "ended", "now"})
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

    Cost: linear in the texts up to `_MAX_CHARS`, and the square of `MAX_STATEMENT_WORDS`.
    """
    new_statement, old_statement = _parse_statement(new, sentences=2), _parse_statement(old, sentences=1)
    if (
        new_statement is None
        or old_statement is None
        or not _contains_change(new_statement)
        or not _has_same_limits(new_statement, old_statement)
    ):
        return False
    current_part = old_statement.drop_past()
    if not _has_only_related_clauses(new_statement, current_part):
        return False
    if (
        _is_denied(new_statement, current_part)
        or _is_replaced(new_statement, current_part)
        or _is_moved(new_statement, current_part)
    ):
        return True
    return _is_changed(new_statement, current_part, is_repeated_change=_contains_cue("now", old_statement))


def _has_only_related_clauses(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether each clause after that of the change belongs to the old statement (U1).

    Another clause may revoke the statement: `says Ben`, `which is a lie`. A clause belongs to it if it shares
    a content word or two other words, contains a word of change, or gives the new value (`but in Porto`).
    """
    tables = ("changed", "replaced", "past", "more", "turned")
    cue_positions = {index for name in tables for index in _find_covered(name, new_statement.words)}
    first = min((new_statement.clauses[index] for index in cue_positions), default=0)
    content = _extract_content(old_statement.words)
    for number in {each for each in new_statement.clauses if each > first}:
        positions = [index for index, each in enumerate(new_statement.clauses) if each == number]
        clause = [new_statement.words[index] for index in positions]
        contrast = _find_first("contrast", clause)
        if contrast is not None and contrast[0] == 0 and len(clause) - contrast[1] <= _MAX_CHANGED_WORDS:
            continue
        shared = {*clause}.intersection(old_statement.words)
        if not cue_positions.intersection(positions) and len(shared) < _MIN_SHARED and not shared & content:
            return False
    return True


def states_change(fact: str) -> bool:
    """Return whether a fact states itself that something has changed."""
    statement = _parse_statement(fact, sentences=2)
    return statement is not None and _contains_change(statement)


def is_similar(one: str, other: str) -> bool:
    """Return whether two facts have the same subject, so that they are linked although both stay.

    They share half of the significant words of the longer one, or two words and half of those of the shorter
    one; numbers do not count. Or one is a longer wording of the other: it has all of its words.
    """
    words, others = _without_numbers(find_specific_words(one)), _without_numbers(find_specific_words(other))
    shared, (fewer, more) = len(words & others), sorted((len(words), len(others)))
    if shared and (2 * shared >= more or (shared > 1 and 2 * shared >= fewer)):
        return True
    return _is_contained_in(one, other) or _is_contained_in(other, one)


def _without_numbers(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not _is_number(word)) or words


def _is_contained_in(shorter: str, longer: str) -> bool:
    """Return whether each word of a text occurs in another one, in some inflection."""
    words, others = list(_split_words(shorter[:_MAX_CHARS])), list(_split_words(longer[:_MAX_CHARS]))
    if (
        not 1 < len(words) <= MAX_STATEMENT_WORDS
        or not _extract_content(words)
        or len(others) > MAX_STATEMENT_WORDS
    ):
        return False
    known = {word[:_STEM_CHARS] for word in others}
    return all(word[:_STEM_CHARS] in known for word in words)


def _has_same_limits(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether both or neither of two statements add, limit or date something (U1)."""
    return _contains_cue("blocked", new_statement) == _contains_cue("blocked", old_statement)


@lru_cache(maxsize=4096)
def _contains_change(statement: _Statement) -> bool:
    """Return whether a statement contains a change; without one it replaces nothing."""
    has_marker = (
        any(_contains_cue(name, statement) for name in ("changed", "replaced"))
        or _find_denial(statement) is not None
    )
    return has_marker or _find_from_and_to(statement.words) is not None


def is_chatter(text: str) -> bool:
    """Return whether a text contains only thanks, greetings, yes or no, in one language."""
    if len(text) > _MAX_CHARS or _QUESTION.search(text):
        return False
    clauses = [clause for each in _CLAUSE_ENDS.split(text) if (clause := fold_words(each).strip())]
    return bool(clauses) and any(
        all(_is_chatter_clause(each, cues) for each in clauses) for cues in _load_chatter()
    )


def _is_chatter_clause(clause: str, phrases: frozenset[str]) -> bool:
    """Return whether a clause consists of some cues; a negation only counts as a complete clause."""
    if clause in phrases:
        return True
    words = clause.split()
    position = 0
    while position < len(words):
        sizes = range(len(words) - position, 0, -1)
        size = next(
            (
                size
                for size in sizes
                if " ".join(words[position : position + size]) in phrases - _load_denials()
            ),
            0,
        )
        if not size:
            return False
        position += size
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

    def drop_positions(self, dropped: Collection[int]) -> tuple[str, ...]:
        """Return the words without those at some positions."""
        return tuple(word for index, word in enumerate(self.words) if index not in dropped)

    def drop_past(self) -> _Statement:
        """Return the statement without the parts about its own past (U5)."""
        dropped = {*_find_covered("now", self.words), *self._find_former_clause(), *self._find_replaced_end()}
        retained = [index for index in range(len(self.words)) if index not in dropped]
        return _Statement(
            tuple(self.words[index] for index in retained), tuple(self.clauses[index] for index in retained)
        )

    def _find_former_clause(self) -> list[int]:
        """Return the positions of a last clause about a former value.

        It denies the value, with the relation of the clause before it.
        """
        for start, end in _find_cues("ended", self.words):
            clause, before = self.find_clause_rest(start), self.find_clause(start - 1) if start else ()
            relation = _find_relations(self.words[end : end + 1])
            is_last = clause[-1] == len(self.words) - 1
            if is_last and relation and relation[0] in {self.words[at] for at in before}:
                return clause
        return []

    def _find_replaced_end(self) -> list[int]:
        """Return the positions of an end of the statement that only gives the replaced thing."""
        for start, end in _find_cues("instead", self.words):
            replaced_words = self.words[end:]
            if start and len(_drop_articles(replaced_words)) == len(_extract_content(replaced_words)) == 1:
                return list(range(start, len(self.words)))
        return []

    def find_clause(self, position: int) -> list[int]:
        """Return the positions of a clause."""
        return [index for index, number in enumerate(self.clauses) if number == self.clauses[position]]

    def find_clause_rest(self, start: int) -> list[int]:
        """Return the positions from one to the end of its clause."""
        return [
            index for index in range(start, len(self.words)) if self.clauses[index] == self.clauses[start]
        ]


@lru_cache(maxsize=4096)
def _parse_statement(text: str, *, sentences: int) -> _Statement | None:
    """Return the words of a text that is one statement, or None."""
    stripped = _MARKER.sub("", text.strip())
    if (
        len(stripped) > _MAX_CHARS
        or _QUESTION.search(stripped)
        or len(_SENTENCES.findall(stripped)) >= sentences
    ):
        return None
    pairs = [(word, number) for number, clause in _split_clauses(stripped) for word in _mark_headings(clause)]
    words = [word for word, _ in pairs]
    for opening, speaker in _SPEAKERS:
        if tuple(words[: len(opening)]) == opening:
            pairs[: len(opening)] = [(speaker, 0)]
            break
    if not 1 < len(pairs) <= MAX_STATEMENT_WORDS:
        return None
    return _Statement(tuple(word for word, _ in pairs), tuple(number for _, number in pairs))


def _mark_headings(clause: Sequence[str]) -> Iterator[str]:
    """Yield the words of a clause; mark words that are a cue only as a separate clause (`Update: …`)."""
    is_heading = len([word for word in clause if word != ":"]) == 1
    for word in clause:
        yield word if is_heading or (word,) not in _load_table("heading") else f"={word}"


def _split_clauses(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the clauses of a text by number; a colon before a value is a word of the clause before it."""
    position = number = 0
    for end in (*_CLAUSES.finditer(text), None):
        words = list(_split_words(text[position : len(text) if end is None else end.start()]))
        if end is not None:
            words += [":"] if end[1] else []
            position = end.end()
        if words:
            yield number, words
            number += 1


def _split_words(text: str) -> Iterator[str]:
    for word in fold_words(text).split():
        if is_unspaced(word):
            yield from word
        else:
            yield _strip_ending(word)


def _strip_ending(word: str) -> str:
    ending = next((each for each in _ENDINGS if word.endswith(each)), "")
    is_long = word.isascii() and len(word) - len(ending) >= _MIN_STEM
    return word.removesuffix(ending) if is_long else word


# -- denied --------------------------------------------------------------------------------------------


def _is_denied(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether the new statement denies the old one (U2)."""
    negated, replaced = (
        _find_denial(new_statement, old_statement.words),
        _find_first("replaced", new_statement.words),
    )
    start, end = replaced or negated or (0, 0)
    if not end or _find_first("former", old_statement.words) or _find_first("replaced", old_statement.words):
        return False
    cue_positions = {index for name in _CHANGE_TABLES for index in _find_covered(name, new_statement.words)}
    cue_positions -= {
        index
        for index in _find_covered("more", new_statement.words)
        if new_statement.words[index] in old_statement.words
    }
    clause = new_statement.find_clause(end - 1)
    if not replaced and not _is_denied_once(new_statement, clause):
        return False
    old_value = _cut_at_target([index for index in clause if index >= end], new_statement) or [
        index for index in clause if index < start
    ]
    content, remaining_words = (
        _extract_content(old_statement.words),
        new_statement.drop_positions(cue_positions),
    )
    denied = _extract_content(
        [
            new_statement.words[index]
            for index in (old_value if replaced else clause)
            if index not in cue_positions
        ]
    )
    belongs = bool(denied) and denied <= content <= _extract_content(remaining_words)
    if replaced and _has_target(old_value, new_statement):
        belongs &= _extract_content(new_statement.words[:start]) <= content | _load_single_words("predicate")
    elif replaced:
        belongs &= _find_relations(
            new_statement.drop_positions({*cue_positions, *old_value})
        ) == _find_relations(old_statement.words)
    return belongs and _find_opening(remaining_words, content) == _find_opening(old_statement.words, content)


def _is_denied_once(statement: _Statement, clause: Sequence[int]) -> bool:
    more = _find_covered("more", statement.words)
    return (
        sum(start in clause and start not in more for start, _ in _find_cues("former", statement.words)) <= 1
    )


def _find_denial(statement: _Statement, known: Collection[str] = ()) -> tuple[int, int] | None:
    """Return the first words of a statement that mark something as a former state, or None.

    The words are given as a start and an end index.

    Args:
        statement: the statement.
        known: words that do not mark it, since the old statement has them too.
    """
    more = {index for index in _find_covered("more", statement.words) if statement.words[index] not in known}
    for start, end in _find_cues("former", statement.words):
        cue, clause = tuple(statement.words[start:end]), statement.find_clause(start)
        is_past = cue in _load_table("past") or (cue in _load_table("earlier") and 0 < start == clause[0])
        if is_past or (
            cue in _load_table("not") and any(index >= end for index in more.intersection(clause))
        ):
            return start, end
    return None


def _has_target(old_value: Sequence[int], statement: _Statement) -> bool:
    return bool(old_value) and (statement.words[old_value[-1] + 1 : old_value[-1] + 2]) in _load_table(
        "target"
    )


def _cut_at_target(positions: Sequence[int], statement: _Statement) -> list[int]:
    """Return the positions up to a word that introduces the new value (`from … to`), if any precede it."""
    targets = _load_table("target")
    for number, index in enumerate(positions):
        if number and (statement.words[index],) in targets:
            return list(positions[:number])
    return list(positions)


def _find_opening(words: Sequence[str], content: Collection[str]) -> list[str]:
    """Return the words before the first content word, without words that are neither content nor subject."""
    index = next((index for index, word in enumerate(words) if word in content), len(words))
    return _drop_articles(words[:index])


def _is_replaced(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether another value replaces the one after `instead of`, with all other words equal (U2)."""
    cue = _find_first("instead", new_statement.words)
    differences = _find_differences(old_statement.words, new_statement.drop_past().words)
    if cue is None or len(differences) != 1:
        return False
    ((old, new, _),) = differences
    names_old_value = _drop_articles(old) == _drop_articles(new_statement.words[cue[1] :])
    return names_old_value and _is_possible_value(new) and _find_relations(old) == _find_relations(new)


def _is_moved(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether `new_statement` gives the old value with a verb of change (`moved from … to …`)."""
    found = _find_from_and_to(new_statement.words)
    if found is None:
        return False
    old_value, new_value = found
    verbs, denied = (
        _find_covered("turned", new_statement.words),
        _extract_content([new_statement.words[index] for index in old_value]),
    )
    rest = [
        index
        for index in range(len(new_statement.words))
        if index not in verbs and index not in old_value and index not in new_value
    ]
    content, remaining_words = (
        _extract_content(old_statement.words),
        _extract_content([new_statement.words[index] for index in rest]),
    )
    idle = _load_single_words("predicate")
    belongs = bool(denied) and denied <= content and remaining_words - idle <= content - denied
    if not belongs or not content - denied - idle <= remaining_words:
        return False
    predicate = {new_statement.words[index] for index in (*verbs, *old_value)}
    return _find_subject(new_statement.words, predicate | idle) == _find_subject(
        old_statement.words, denied | idle
    )


def _find_subject(words: Sequence[str], predicate: Collection[str]) -> frozenset[str]:
    """Return the subject before a predicate: its content words, or pronouns if it has none."""
    before = words[: next((index for index, word in enumerate(words) if word in predicate), len(words))]
    return _extract_content(before) or frozenset(before)


def _find_from_and_to(words: Sequence[str]) -> tuple[range, range] | None:
    """Return the positions of the old and new value after `from` and `to` of a verb of change."""
    verbs, targets, end = (
        _find_covered("turned", words),
        _load_table("target") | _load_table("inward"),
        len(words),
    )
    if not verbs:
        return None
    start = next((index for index, word in enumerate(words) if index and (word,) in _load_table("from")), end)
    stop = next((index for index in range(start + 2, end) if (words[index],) in targets), end)
    last = next((index for index in range(stop + 1, end) if index in verbs), end)
    old_value, new_value = range(start + 1, stop), range(stop + 1, last)
    return (
        (old_value, new_value)
        if 0 < len(old_value) <= _MAX_CHANGED_WORDS and 0 < len(new_value) <= _MAX_CHANGED_WORDS
        else None
    )


def _drop_articles(words: Sequence[str]) -> list[str]:
    """Return the words without those that are neither content nor subject."""
    return [word for word in words if (word,) not in _load_table("article")]


# -- changed -------------------------------------------------------------------------------------------


def _is_changed(new_statement: _Statement, old_statement: _Statement, *, is_repeated_change: bool) -> bool:
    """Return whether the new statement changes one value of the old one (U3, U4).

    Args:
        new_statement: the new statement.
        old_statement: the old statement, without the parts about its own past.
        is_repeated_change: whether the old statement also marks itself as a change.
    """
    cue = _find_first("changed", new_statement.words)
    if cue is None:
        return False
    new, old = (
        new_statement.drop_positions(_find_covered("changed", new_statement.words)),
        old_statement.words,
    )
    new = new[1:] if new[:1] == (":",) else new
    found = _find_differences(old, new)
    if not found or not all(one and other for one, other, _ in found):
        return False
    if len(found) > 1 and not all(_is_value(one) and _is_value(other) for one, other, _ in found):
        return False
    start, end = found[0][2].start, found[-1][2].stop
    new_value, old_value = new[start:end], old[start : len(old) - len(new) + end]
    if not (_is_possible_value(old_value) and _is_possible_value(new_value)) or _find_relations(
        old_value
    ) != _find_relations(new_value):
        return False
    is_value = all(map(_is_value, (old_value, new_value)))
    if any(map(_is_number, old_value)) != any(map(_is_number, new_value)):
        return False
    if is_repeated_change and not (is_value or _ends_with_cue("single", new[:start])):
        return False
    is_separate_clause = (
        is_value and len(new_statement.find_clause(cue[0])) <= cue[1] - cue[0] + 1
    )  # `Correction: …`, `Actually, …`
    return _is_marked_change(
        cue[0], new, start, end, is_value=is_value, is_separate_clause=is_separate_clause
    )


def _find_differences(
    old: Sequence[str], new: Sequence[str]
) -> list[tuple[Sequence[str], Sequence[str], range]]:
    """Return where two texts differ: the words of both, and the positions in the new one."""
    matched = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(old[a:b], new[c:d], range(c, d)) for kind, a, b, c, d in matched if kind != "equal"]


def _is_possible_value(words: Sequence[str]) -> bool:
    is_denied = _find_first("former", words) or _find_first("replaced", words)
    return 0 < len(words) <= _MAX_CHANGED_WORDS and bool(_extract_content(words)) and not is_denied


def _find_relations(words: Sequence[str]) -> list[str]:
    return [word for word in words if (word,) in _load_table("relation")]


def _is_marked_change(
    cue: int, new: Sequence[str], start: int, end: int, *, is_value: bool, is_separate_clause: bool
) -> bool:
    """Return whether a word of change after `cue` words applies to the differing part.

    If `is_separate_clause`, it applies to all.
    """
    before, after = new[:start], new[end:]
    if not _extract_content([*before, *after]) or not before or start < cue < end:
        return False
    if not is_value and (_find_first("gathering", [*before, *after]) or not _is_single_valued(before, after)):
        return False
    if is_value and _relates_to_number(before) and not any(map(_is_number, new[start:end])):
        return False  # The new part is a day on which something applies, not a new value: at 7 on Sundays.
    return is_separate_clause or 0 < cue <= start or not _extract_content(after)


def _is_single_valued(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether the context of the differing part is a property with one value.

    A relation (`go to`) has one place, target or tool, and a thing has one name or owner (`my manager is`).
    But most verbs have several objects (`I take`), and a person may be several things.
    """
    content = [word for word in before if word not in _load_single_words("determiner")]
    named = _ends_with_cue("copula", content) and tuple(before[:1]) in _load_table("determiner")
    return named or _ends_with_cue("single", before) or bool(_find_relations([*content[-1:], *after[:1]]))


def _relates_to_number(words: Sequence[str]) -> bool:
    """Return whether a number directly follows a word of relation."""
    return any(_find_relations([word]) and _is_number(after) for word, after in pairwise(words))


def _is_value(words: Sequence[str]) -> bool:
    """Return whether the words are a number, day or month, with its unit."""
    content = [
        word
        for word in words
        if (word,) not in _load_table("light") and (word,) not in _load_table("relation")
    ]
    return bool(content) and all(_is_number(word) or (word,) in _load_table("calendar") for word in content)


def _is_number(word: str) -> bool:
    return any(map(str.isdigit, word))


# -- tables --------------------------------------------------------------------------------------------


def _extract_content(words: Sequence[str]) -> frozenset[str]:
    """Return the content words."""
    return frozenset(
        word
        for word in words
        if (word,) not in _list_empty_words() and word not in STOP_WORDS and word != ":"
    )


@cache
def _list_empty_words() -> frozenset[tuple[str, ...]]:
    return _load_table("light") | _load_table("relation")


def _contains_cue(name: str, statement: _Statement) -> bool:
    return _find_first(name, statement.words) is not None


def _find_first(name: str, words: Sequence[str]) -> tuple[int, int] | None:
    """Return the position of the first cue of a table, or None."""
    return next(_find_cues(name, words), None)


def _find_covered(name: str, words: Sequence[str]) -> frozenset[int]:
    """Return the positions of all words that belong to cues of a table."""
    return frozenset(index for start, end in _find_cues(name, words) for index in range(start, end))


def _ends_with_cue(name: str, words: Sequence[str]) -> bool:
    """Return whether words end with a cue of a table."""
    return any(tuple(words[-size:]) in _load_table(name) for size in range(1, _find_longest(name) + 1))


def _find_cues(name: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of the cues of a table, the longest at each position, without overlap.

    A cue in a phrase that does not express a change (`used to cut`, `un'ora`) is skipped.
    """
    idle = () if name not in _IDLE_SENSITIVE else frozenset(_find_spans("idle", words))
    for start, end in _find_spans(name, words):
        if not any(first <= start and end <= last for first, last in idle):
            yield start, end


def _find_spans(name: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    table, longest, position = _load_table(name), _find_longest(name), 0
    while position < len(words):
        sizes = range(min(longest, len(words) - position), 0, -1)
        size = next((size for size in sizes if tuple(words[position : position + size]) in table), 0)
        if size:
            yield position, position + size
        position += size or 1


@cache
def _load_table(name: str) -> frozenset[tuple[str, ...]]:
    return frozenset(filter(None, (tuple(_split_words(cue)) for cue in load_cues().updates[name])))


@cache
def _load_single_words(name: str) -> frozenset[str]:
    """Return the single words of a table."""
    return frozenset(cue[0] for cue in _load_table(name) if len(cue) == 1)


@cache
def _find_longest(name: str) -> int:
    return max(map(len, _load_table(name)))


@cache
def _load_chatter() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(fold_words(cue).strip() for cue in phrases) for phrases in load_cues().chatter)


@cache
def _load_denials() -> frozenset[str]:
    return frozenset(fold_words(cue).strip() for cue in load_cues().updates["denial"])
