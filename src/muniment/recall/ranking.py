"""Score how well a text matches a query, by its words and their rarity.

Pure except for the stemmer. Attacked in tests/units/recall/test_query.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul
from typing import Final

from muniment.recall.query import Word, count_units, is_ignored
from muniment.recall.stems import Stemmer

COLUMN_WEIGHTS: Final = (2.0, 2.0, 1.0, 1.5)
"""For name, description, body, context: a name describes the subject better than a line of the body."""

_BODY: Final = 2

_MAX_COMPARED_CHARS: Final = 2_000
"""Maximum characters of an entry that is one fact, and may have the same subject as another."""

_SUBJECT_COLUMNS: Final = (0, 3)
"""The columns that describe the subject of an entry: its name, and its context (topic, keywords)."""

_SATURATION: Final = 1.2
"""Saturation of repeated words: the usual `k1` of bm25."""

_LETTERS: Final = re.compile(r"[^\W_]+")

_WORD_SEPARATOR: Final = r"[\W_]{1,3}"
"""Text between the words of a name."""


@dataclass(frozen=True, slots=True)
class WeighedWord:
    """A word of a query with its data from the catalog.

    Attributes:
        rows: the number of rows in which it occurs.
        weight: its inverse document frequency; doubled for a phrase, which has two words.
        is_prefix: whether it is searched as a prefix.
    """

    word: Word
    rows: int
    weight: float
    is_prefix: bool = False

    @property
    def expression(self) -> str:
        """Return it as a full-text expression; only letters, digits and spaces, so that no syntax gets in."""
        return f'"{self.word.text}"{"*" * self.is_prefix}'


@dataclass(frozen=True)
class Score:
    """The match of an entry with a query.

    Attributes:
        score: to compare with others.
        units: the number of strong query words in it, see `query.count_units`.
        weight: the total weight of these words.
        name_weight: the weight of the rarest of them in its name or its context.
        specific_words: the number of them that identify a subject alone.
        matched: the numbers of these query words.
        body: the body; empty for a long one.
    """

    score: float
    units: int
    weight: float
    name_weight: float
    specific_words: int
    matched: frozenset[int]
    body: str

    @cached_property
    def prefixes(self) -> frozenset[str]:
        """Return the beginnings of the significant words of the body, so that endings do not count."""
        words = _LETTERS.findall(self.body)
        return frozenset(word[:_PREFIX_CHARS] for word in words if not is_ignored(word))

    def is_similar_to(self, other: Score) -> bool:
        """Return whether two entries match the same words and are about the same subject."""
        if self.matched != other.matched:
            return False
        own_prefixes, other_prefixes = self.prefixes, other.prefixes
        return 2 * len(own_prefixes & other_prefixes) >= min(len(own_prefixes), len(other_prefixes)) > 0


class Ranking:
    """Scores texts by the words of one query.

    Args:
        words: all words in their order, including words that occur in no row.
        stemmer: the stemmer of the query.
    """

    def __init__(self, words: Sequence[WeighedWord], stemmer: Stemmer) -> None:
        self._every, self._stemmer = words, stemmer
        self._words = [each for each in words if each.rows]
        self._starts = {_find_prefix(each) for each in self._words if not each.word.is_phrase}
        self._phrases = {
            each.word.text: re.compile(
                rf"(?<![^\W_]){_WORD_SEPARATOR.join(map(re.escape, each.word.text.split()))}(?![^\W_])"
            )
            for each in self._words
            if each.word.is_phrase
        }
        self._is_plain = not any(each.word.overlaps_previous or each.word.is_phrase for each in words)

    def score_rows(self, rows: Sequence[Sequence[str]]) -> list[Score]:
        """Return the scores of full-text rows.

        Args:
            rows: name, description, body and context of each, as the catalog folds them.

        Cost: linear in the columns, about 2 µs per KiB; 0.1 ms more for words that were never seen before.
        """
        texts = [[self._stemmer.strip_accents(column) for column in columns] for columns in rows]
        found = [[self._find_candidates(text) for text in row] for row in texts]
        numbers_by_word = self._match_query_words({word for row in found for words in row for word in words})
        return [self._score_row(row, words, numbers_by_word) for row, words in zip(texts, found, strict=True)]

    def _find_candidates(self, text: str) -> Collection[str]:
        """Return every occurrence of words in a text that begin like a query word."""
        found: dict[int, str] = {}  # By position: several query words may begin the same word.
        for start in self._starts:  # A search for a text is ten times faster than one for a pattern.
            at = text.find(start)
            while at >= 0:
                if not (at and text[at - 1].isalnum()) and (word := _LETTERS.match(text, at)):
                    found[at] = word[0]
                at = text.find(start, at + 1)
        return found.values()

    def _match_query_words(self, found: Collection[str]) -> dict[str, list[int]]:
        """Return the numbers of the query words for each word of a text."""
        stems = self._stemmer.find_stems(found)
        numbers = {each.word.stem: at for at, each in enumerate(self._words) if not each.is_prefix}
        begun = [(each.word.text, at) for at, each in enumerate(self._words) if each.is_prefix]
        return {
            word: [numbers[stem] for stem in (stems.get(word),) if stem in numbers]
            + [at for text, at in begun if word.startswith(text)]
            for word in found
        }

    def _score_row(
        self,
        texts: Sequence[str],
        found: Sequence[Collection[str]],
        numbers_by_word: Mapping[str, Sequence[int]],
    ) -> Score:
        frequencies, in_subject = [0.0] * len(self._words), set[int]()  # how often, weighted by column
        for column, (weight, words) in enumerate(zip(COLUMN_WEIGHTS, found, strict=False)):
            numbers = [at for word in words for at in numbers_by_word[word]]
            for at in numbers:
                frequencies[at] += weight
            if column in _SUBJECT_COLUMNS:
                in_subject.update(numbers)
        for at, each in enumerate(self._words):
            if each.word.is_phrase:
                times = [len(self._phrases[each.word.text].findall(text)) for text in texts]
                frequencies[at] = sum(map(mul, COLUMN_WEIGHTS, times))
                in_subject.update(at for column in _SUBJECT_COLUMNS if column < len(times) and times[column])
        score, matched, name_weight, matched_numbers = 0.0, list[WeighedWord](), 0.0, set[int]()
        for at, each in enumerate(self._words):
            if frequencies[at]:
                score += each.weight * frequencies[at] / (frequencies[at] + _SATURATION)
                if not each.word.is_weak:
                    matched.append(each)
                    matched_numbers.add(at)
                    name_weight = max(name_weight, each.weight) if at in in_subject else name_weight
        specific_words = sum(not each.word.is_common for each in matched)
        weight = sum(each.weight for each in matched)
        body = texts[_BODY] if len(texts[_BODY]) <= _MAX_COMPARED_CHARS else ""
        return Score(
            score,
            self._count_units(matched),
            weight,
            name_weight,
            specific_words,
            frozenset(matched_numbers),
            body,
        )

    def score_passage(self, folded: str) -> float:
        """Return the score of a passage alone.

        Cost: as `score_rows`, and 20 µs.
        """
        return self.score_rows([("", "", folded)])[0].score

    def _count_units(self, matched: Sequence[WeighedWord]) -> int:
        """Return as how many words the matched words count.

        A pair continues only if the previous pair matches.
        """
        if self._is_plain:
            return len(matched)
        present = {each.word for each in matched}
        counted: list[Word] = []
        before: Word | None = None
        for each in self._every:
            if each.word in present:
                counted.append(
                    each.word if before in present else replace(each.word, overlaps_previous=False)
                )
            before = each.word
        return count_units(counted)


def _find_prefix(each: WeighedWord) -> str:
    """Return the common beginning of all words with a stem: endings change at most its last letter."""
    return each.word.text if each.is_prefix else each.word.stem[: max(1, len(each.word.stem) - 1)]


_PREFIX_CHARS: Final = 5
"""Characters by which words of two entries are compared: `Tuesday` and `Tuesdays` are equal."""
