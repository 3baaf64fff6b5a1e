"""Decide whether a fact replaces another one, by its words alone; if that is not certain, both facts stay.

The tables named below are the phrases of `cues.toml` under `update`.

U1  Each fact is one statement. The new fact contains no word that adds to the old one, limits it, or applies
    only for a time (`also`, `only`, `today`). No later clause of it has another subject (`says Ben`).
U2  *Denied*: both facts begin in the same way, and the new one contains all words of the old one. Some of
    these words, and no others, follow a phrase that marks a former state (`no longer`, `instead of`,
    `switched from`). A simple negation (`not`), a comparison (`no longer than`) and a double negation do not
    mark one. `from` and `to` mark a former and a new state if they follow a verb of change (`was renamed from
    … to …`) and nothing else is omitted.
U3  *Changed*: the facts differ, word for word, in one position after their subject. A word of change (`now`)
    precedes this position; or it follows, and then the position is the last part of the sentence. Without a
    word of change, another number, day, name or place is another fact. Then both facts stay, however similar
    they are (`is_similar`).
U4  The differing words are not only a relation to the rest (`on`, `for`). They must not be of a kind that may
    have several values (`also speaks`). They are a value, or belong to a property that has one value (`live
    in`, `is called`).
U5  Parts of the old fact that describe its own past are ignored: `now`, `no longer on Tuesdays` next to
    another day, and `instead of pip` at its end. If the old fact contains `now`, the differing words must be
    a value, or belong to a property that has one value (`live in`).

Not guaranteed: that every update is found. If one is missed, the new fact becomes a separate entry.

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
"""Maximum words of a fact that is compared; a longer text is not a single statement."""

_MAX_CHANGED_WORDS: Final = 4
"""Maximum words of the position in which two statements may differ."""

_STEM_CHARS: Final = 5
"""Words that begin with the same characters, up to this number, count as inflections of one word."""

_MIN_SHARED: Final = 2
"""Number of shared words that connect a clause to a statement; one shared content word is also enough."""

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
"""Names of tables whose words mark a change, and are not part of the statement itself."""

_IDLE_SENSITIVE: Final = frozenset({*_CHANGE_TABLES, "ended", "now"})
"""Names of tables whose phrases are ignored inside a phrase of the table `idle`.

A phrase of `idle` contains a word of change, but expresses no change, such as `used to cut`.
"""

_SPEAKERS: Final = (
    (("the", "user", "s"), "my"),
    (("user", "s"), "my"),
    (("the", "user"), "i"),
    (("user",), "i"),
)
"""The words with which a fact about the user may begin, and the same in the first person."""


def supersedes(new: str, old: str) -> bool:
    """Return whether the fact `new` replaces the fact `old` (rules U1 to U5 in the module docstring).

    Cost: linear in both texts, up to `_MAX_CHARS`, plus the square of `MAX_STATEMENT_WORDS`.
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
    """Return whether each clause that follows the change still belongs to the old statement.

    Another clause may revoke the change, such as `says Ben` or `which is a lie`. A clause belongs to the old
    statement if it shares a content word or two other words with it, contains a word of change, or gives the
    new value (`but in Porto`).
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
    """Return whether a fact contains a phrase that signals a change, such as `now` or `no longer`."""
    statement = _parse_statement(fact, sentences=2)
    return statement is not None and _contains_change(statement)


def is_similar(one: str, other: str) -> bool:
    """Return whether two facts have the same subject, so that their entries are linked although both stay.

    They have the same subject if they share half of the significant words of the longer fact, or two words
    and half of those of the shorter fact; numbers do not count. They also have it if one fact contains all
    words of the other.
    """
    words, others = _without_numbers(find_specific_words(one)), _without_numbers(find_specific_words(other))
    shared, (fewer, more) = len(words & others), sorted((len(words), len(others)))
    if shared and (2 * shared >= more or (shared > 1 and 2 * shared >= fewer)):
        return True
    return _is_contained_in(one, other) or _is_contained_in(other, one)


def _without_numbers(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not _is_number(word)) or words


def _is_contained_in(shorter: str, longer: str) -> bool:
    """Return whether each word of `shorter` occurs in `longer`, possibly in another inflection."""
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
    """Return whether both statements, or neither, contain a word that adds, limits or gives a time."""
    return _contains_cue("blocked", new_statement) == _contains_cue("blocked", old_statement)


@lru_cache(maxsize=4096)
def _contains_change(statement: _Statement) -> bool:
    """Return whether a statement contains a phrase that signals a change.

    Without such a phrase, a fact replaces nothing.
    """
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
    """Return whether a clause consists only of phrases without content.

    A negation such as `no` counts only if it is the complete clause.
    """
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
        words: the words in the form in which they are compared; in scripts without spaces, single characters.
        clauses: for each word, the number of its clause.
    """

    words: tuple[str, ...]
    clauses: tuple[int, ...]

    def drop_positions(self, dropped: Collection[int]) -> tuple[str, ...]:
        """Return the words except those at the indexes `dropped`."""
        return tuple(word for index, word in enumerate(self.words) if index not in dropped)

    def drop_past(self) -> _Statement:
        """Return the statement without the parts that describe its own past (U5 in the module docstring)."""
        dropped = {*_find_covered("now", self.words), *self._find_former_clause(), *self._find_replaced_end()}
        retained = [index for index in range(len(self.words)) if index not in dropped]
        return _Statement(
            tuple(self.words[index] for index in retained), tuple(self.clauses[index] for index in retained)
        )

    def _find_former_clause(self) -> list[int]:
        """Return the indexes of a last clause that only denies a former value, such as `no longer on Sunday`.

        It must use the same relation (`on`) as the clause before it. Without such a clause, return an empty
        list.
        """
        for start, end in _find_cues("ended", self.words):
            clause, before = self.find_clause_rest(start), self.find_clause(start - 1) if start else ()
            relation = _find_relations(self.words[end : end + 1])
            is_last = clause[-1] == len(self.words) - 1
            if is_last and relation and relation[0] in {self.words[position] for position in before}:
                return clause
        return []

    def _find_replaced_end(self) -> list[int]:
        """Return the indexes of an end that only names the replaced thing, such as `instead of pip`.

        Return an empty list if the statement has another end.
        """
        for start, end in _find_cues("instead", self.words):
            replaced_words = self.words[end:]
            if start and len(_drop_articles(replaced_words)) == len(_extract_content(replaced_words)) == 1:
                return list(range(start, len(self.words)))
        return []

    def find_clause(self, position: int) -> list[int]:
        """Return the indexes of all words in the clause of the word at `position`."""
        return [index for index, number in enumerate(self.clauses) if number == self.clauses[position]]

    def find_clause_rest(self, start: int) -> list[int]:
        """Return the indexes from `start` to the end of its clause."""
        return [
            index for index in range(start, len(self.words)) if self.clauses[index] == self.clauses[start]
        ]


@lru_cache(maxsize=4096)
def _parse_statement(text: str, *, sentences: int) -> _Statement | None:
    """Return a text as a statement, or None if it is not a single statement.

    Args:
        text: the text of a fact.
        sentences: the maximum number of sentences.
    """
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
    """Yield the words of a clause, and mark words such as `update` inside a longer clause.

    They count as words of change only if they are a separate clause (`Update: …`).
    """
    is_heading = len([word for word in clause if word != ":"]) == 1
    for word in clause:
        yield word if is_heading or (word,) not in _load_table("heading") else f"={word}"


def _split_clauses(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the clauses of a text, each with its number and its words.

    A colon before a value is a word of the clause before it.
    """
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
    """Return whether the new statement denies the old one (rule U2 in the module docstring)."""
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
    """Return the start and end index of the first words that mark a former state, or None.

    Args:
        statement: the statement.
        known: words that do not mark a former state, because the old statement contains them, too.
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
    """Return the positions before a word that introduces the new value (`to` in `from … to`).

    Without such a word, return all positions.
    """
    targets = _load_table("target")
    for number, index in enumerate(positions):
        if number and (statement.words[index],) in targets:
            return list(positions[:number])
    return list(positions)


def _find_opening(words: Sequence[str], content: Collection[str]) -> list[str]:
    """Return the words before the first word of `content`, without articles."""
    index = next((index for index, word in enumerate(words) if word in content), len(words))
    return _drop_articles(words[:index])


def _is_replaced(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether the new statement names the old value after `instead of`, and is otherwise equal."""
    cue = _find_first("instead", new_statement.words)
    differences = _find_differences(old_statement.words, new_statement.drop_past().words)
    if cue is None or len(differences) != 1:
        return False
    ((old, new, _),) = differences
    names_old_value = _drop_articles(old) == _drop_articles(new_statement.words[cue[1] :])
    return names_old_value and _is_possible_value(new) and _find_relations(old) == _find_relations(new)


def _is_moved(new_statement: _Statement, old_statement: _Statement) -> bool:
    """Return whether the new statement names the old value after a verb of change (`moved from … to`)."""
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
    """Return the subject before a predicate: its content words, or its pronouns if it has none.

    Args:
        words: the words of a statement.
        predicate: the words of the predicate.
    """
    before = words[: next((index for index, word in enumerate(words) if word in predicate), len(words))]
    return _extract_content(before) or frozenset(before)


def _find_from_and_to(words: Sequence[str]) -> tuple[range, range] | None:
    """Return the positions of the old and the new value that follow `from` and `to` after a verb of change.

    Return None if the words do not have this form.
    """
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
    """Return the words without articles and similar words (`the`, `our`)."""
    return [word for word in words if (word,) not in _load_table("article")]


# -- changed -------------------------------------------------------------------------------------------


def _is_changed(new_statement: _Statement, old_statement: _Statement, *, is_repeated_change: bool) -> bool:
    """Return whether the new statement changes one value of the old one (U3 and U4 in the module docstring).

    Args:
        new_statement: the new statement.
        old_statement: the old statement, without the parts that describe its own past.
        is_repeated_change: whether the old statement already contained a word of change, such as `now`.
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
    )  # Such as `Correction: …` or `Actually, …`.
    return _is_marked_change(
        cue[0], new, start, end, is_value=is_value, is_separate_clause=is_separate_clause
    )


def _find_differences(
    old: Sequence[str], new: Sequence[str]
) -> list[tuple[Sequence[str], Sequence[str], range]]:
    """Return the differences of two lists of words.

    Returns:
        For each difference: the words in `old`, the words in `new`, and their positions in `new`.
    """
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
    """Return whether a word of change refers to the position in which two statements differ.

    Args:
        cue: index of the word of change.
        new: the words of the new statement.
        start: index of the first differing word.
        end: index after the last differing word.
        is_value: whether the differing words are a number, a day or a month.
        is_separate_clause: whether the word of change is a separate clause, and so refers to the whole
            statement.
    """
    before, after = new[:start], new[end:]
    if not _extract_content([*before, *after]) or not before or start < cue < end:
        return False
    if not is_value and (_find_first("gathering", [*before, *after]) or not _is_single_valued(before, after)):
        return False
    if is_value and _relates_to_number(before) and not any(map(_is_number, new[start:end])):
        # The new words are a day on which something applies, not a new value: `at 7 on Sundays`.
        return False
    return is_separate_clause or 0 < cue <= start or not _extract_content(after)


def _is_single_valued(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether the words around a position describe a property that has only one value.

    A relation (`go to`) has one place, target or tool, and a thing has one name or owner (`my manager is`).
    But most verbs have several objects (`I take`), and a person may be several things.

    Args:
        before: the words before the position.
        after: the words after it.
    """
    content = [word for word in before if word not in _load_single_words("determiner")]
    named = _ends_with_cue("copula", content) and tuple(before[:1]) in _load_table("determiner")
    return named or _ends_with_cue("single", before) or bool(_find_relations([*content[-1:], *after[:1]]))


def _relates_to_number(words: Sequence[str]) -> bool:
    """Return whether a number directly follows a word of relation, such as `at 7`."""
    return any(_find_relations([word]) and _is_number(after) for word, after in pairwise(words))


def _is_value(words: Sequence[str]) -> bool:
    """Return whether the words are a number, a day or a month, possibly with a unit."""
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
    """Return the content words: all words except articles, relations and other words without meaning."""
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
    """Return the start and end index of the first phrase of a table, or None."""
    return next(_find_cues(name, words), None)


def _find_covered(name: str, words: Sequence[str]) -> frozenset[int]:
    """Return the indexes of all words that belong to a phrase of a table."""
    return frozenset(index for start, end in _find_cues(name, words) for index in range(start, end))


def _ends_with_cue(name: str, words: Sequence[str]) -> bool:
    """Return whether the words end with a phrase of a table."""
    return any(tuple(words[-size:]) in _load_table(name) for size in range(1, _find_longest(name) + 1))


def _find_cues(name: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of each phrase of a table: the longest at each position, without overlap.

    A phrase inside another one that expresses no change (`used to cut`, `un'ora`) is skipped.
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
    """Return the phrases of a table that consist of one word."""
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
