"""Score how well a text matches a query, by the words that they share and by how rare these words are.

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
"""Weights of the columns name, description, body and context.

A name describes the subject better than a line of the body.
"""

_BODY: Final = 2

_MAX_COMPARED_CHARS: Final = 2_000
"""Maximum characters of an entry that is compared with other entries; a longer one is more than one fact."""

_SUBJECT_COLUMNS: Final = (0, 3)
"""The numbers of the columns that describe the subject of an entry: its name, and its context (topic,
keywords).
"""

_SATURATION: Final = 1.2
"""Saturation of repeated words in a score: the usual `k1` of bm25."""

_LETTERS: Final = re.compile(r"[^\W_]+")

_WORD_SEPARATOR: Final = r"[\W_]{1,3}"
"""Pattern of the text between the words of a phrase."""


@dataclass(frozen=True, slots=True)
class WeighedWord:
    """A word of a query with its frequency in the catalog.

    Attributes:
        word: the word or phrase.
        rows: the number of rows in which the word occurs.
        weight: the inverse document frequency of the word; doubled for a phrase.
        is_prefix: whether the word is searched as a prefix.
    """

    word: Word
    rows: int
    weight: float
    is_prefix: bool = False

    @property
    def expression(self) -> str:
        """Return the word as a full-text expression; it contains no characters that have a meaning in it."""
        return f'"{self.word.text}"{"*" * self.is_prefix}'


@dataclass(frozen=True)
class Score:
    """How well an entry matches a query. A query word is *strong* if it can find entries alone.

    Attributes:
        score: the total score, to compare entries.
        units: the corrected count of the matched strong words, see `query.count_units`.
        weight: the total weight of the matched strong words.
        name_weight: the weight of the rarest matched strong word in the name or context of the entry.
        specific_words: the number of matched strong words that identify a subject alone.
        matched: the positions of the matched strong words in the query.
        body: the text of the entry; empty if it is too long to be compared.
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
        """Return the first letters of each significant word of the body.

        Words that differ only in their endings then count as equal.
        """
        words = _LETTERS.findall(self.body)
        return frozenset(word[:_PREFIX_CHARS] for word in words if not is_ignored(word))

    def is_similar_to(self, other: Score) -> bool:
        """Return whether two entries match the same query words and have similar texts.

        The texts are similar if they share half of the significant words of the shorter text.
        """
        if self.matched != other.matched:
            return False
        own_prefixes, other_prefixes = self.prefixes, other.prefixes
        return 2 * len(own_prefixes & other_prefixes) >= min(len(own_prefixes), len(other_prefixes)) > 0


class Ranking:
    """Scores texts by the words of one query.

    Args:
        words: all words of the query in order, including words that occur in no row.
        stemmer: the stemmer that the query was read with.
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
        """Return the score of each full-text row.

        Args:
            rows: the name, description, body and context of each row, folded as in the catalog.

        Cost: linear in the columns, about 2 µs per KiB; 0.1 ms more for words that were never seen before.
        """
        texts = [[self._stemmer.strip_accents(column) for column in columns] for columns in rows]
        found = [[self._find_candidates(text) for text in row] for row in texts]
        numbers_by_word = self._match_query_words({word for row in found for words in row for word in words})
        return [self._score_row(row, words, numbers_by_word) for row, words in zip(texts, found, strict=True)]

    def _find_candidates(self, text: str) -> Collection[str]:
        """Return the words of a text that begin like a word of the query.

        A word that occurs twice in the text is returned twice.
        """
        found: dict[int, str] = {}  # By position: several query words may begin the same word.
        for start in self._starts:  # A search for a text is ten times faster than one for a pattern.
            position = text.find(start)
            while position >= 0:
                if not (position and text[position - 1].isalnum()) and (
                    word := _LETTERS.match(text, position)
                ):
                    found[position] = word[0]
                position = text.find(start, position + 1)
        return found.values()

    def _match_query_words(self, found: Collection[str]) -> dict[str, list[int]]:
        """Return, for each word of a text, the positions of the query words that it matches."""
        stems = self._stemmer.find_stems(found)
        numbers = {
            each.word.stem: position for position, each in enumerate(self._words) if not each.is_prefix
        }
        begun = [(each.word.text, position) for position, each in enumerate(self._words) if each.is_prefix]
        return {
            word: [numbers[stem] for stem in (stems.get(word),) if stem in numbers]
            + [position for text, position in begun if word.startswith(text)]
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
            numbers = [position for word in words for position in numbers_by_word[word]]
            for position in numbers:
                frequencies[position] += weight
            if column in _SUBJECT_COLUMNS:
                in_subject.update(numbers)
        for position, each in enumerate(self._words):
            if each.word.is_phrase:
                times = [len(self._phrases[each.word.text].findall(text)) for text in texts]
                frequencies[position] = sum(map(mul, COLUMN_WEIGHTS, times))
                in_subject.update(
                    position for column in _SUBJECT_COLUMNS if column < len(times) and times[column]
                )
        score, matched, name_weight, matched_numbers = 0.0, list[WeighedWord](), 0.0, set[int]()
        for position, each in enumerate(self._words):
            if frequencies[position]:
                score += each.weight * frequencies[position] / (frequencies[position] + _SATURATION)
                if not each.word.is_weak:
                    matched.append(each)
                    matched_numbers.add(position)
                    name_weight = max(name_weight, each.weight) if position in in_subject else name_weight
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
        """Return the score of a passage of an entry.

        Cost: as `score_rows`, and 20 µs.
        """
        return self.score_rows([("", "", folded)])[0].score

    def _count_units(self, matched: Sequence[WeighedWord]) -> int:
        """Return the corrected count of the matched words, see `query.count_units`.

        A pair of characters counts as overlapping only if the previous pair also matches.
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
    """Return the common prefix of all words that have the same stem as a query word.

    An ending changes at most the last letter of the stem.
    """
    return each.word.text if each.is_prefix else each.word.stem[: max(1, len(each.word.stem) - 1)]


_PREFIX_CHARS: Final = 5
"""Number of first letters by which words of two entries are compared: `Tuesday` and `Tuesdays` are equal."""
