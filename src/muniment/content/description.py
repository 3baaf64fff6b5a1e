"""Compare a user's description of an entry with texts that the description does not quote.

- D1. Function and question words of the description's language are ignored, and so are the particles of
  scripts without spaces. Some words are ignored only next to a question word, as in "how long". A word with a
  capital inside a sentence is a name and is never ignored. Words that deny or end something are never
  ignored.
- D2. A text matches strictly even if it lacks question words, articles, auxiliary verbs and similar words
  (`structure`). It must have the other function words, such as prepositions and pronouns: they express owner,
  origin and receiver. Only a strict match may be removed.
- D3. A strict match has each word in the same form, and names in the same order. Other inflections only rank
  near texts. A description with a piece of a script without spaces never matches strictly.

`DescribedWords.is_contained_in` checks for a strict match. `DescribedWords.compute_share` only ranks near
texts. The tables are in `function_words.toml`. Not guaranteed: a synonym is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from muniment.content.function_words import choose_languages, load_function_word_tables
from muniment.content.words import is_unspaced, split_words
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import fold

MAX_CHARS: Final = 8_000
"""Maximum number of characters of a text that are compared. Users describe a sentence or a paragraph."""

_STEM_CHARS: Final = 4
"""Minimum number of characters that two inflections of a word share at their beginning."""

_NEAR_SHARE: Final = 0.6
"""Minimum share of the longer word that two near words have in common at their beginning."""

_NEAR_PAIRS: Final = 0.5
"""Minimum share of the character pairs of a piece that a near text contains."""

_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_CLITIC: Final = re.compile("['\u2019](?:s|d|m|ll|re|ve)\\Z", re.IGNORECASE)
_KANA: Final = re.compile("[\u3041-\u3096\u309d-\u309f\u30fc]+")
_HANGUL: Final = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]+")
_MARKS: Final = re.compile("[\u0300-\u036f]")
_ARTICLE: Final = re.compile("\\A(?:وال|بال|كال|فال|ال|لل)(?=..)")


class _Tables(NamedTuple):
    """The tables of `function_words.toml`, compiled."""

    languages: Mapping[str, frozenset[str]]
    near_question: frozenset[str]
    questions: frozenset[str]
    particles: re.Pattern[str]
    suffixes: re.Pattern[str]
    structure: Mapping[str, frozenset[str]]
    degrees: frozenset[str]


@cache
def _load_tables() -> _Tables:
    """Return the compiled tables of `function_words.toml`. Cost: reads the file once per process."""
    tables = load_function_word_tables()
    unspaced = {name: [each.strip() for each in line.split(",")] for name, line in tables["running"].items()}
    suffixes = sorted(unspaced.pop("ko"), key=len, reverse=True)
    particles = sorted({each for line in unspaced.values() for each in line}, key=len, reverse=True)
    near_question, questions = (
        frozenset(map(fold, tables["beside"][key].split())) for key in ("words", "questions")
    )
    return _Tables(
        {name: frozenset(map(fold, line.split())) - near_question for name, line in tables["words"].items()},
        near_question,
        questions,
        re.compile("|".join(map(re.escape, particles))),
        re.compile(rf"(?:{'|'.join(map(re.escape, suffixes))})\Z"),
        {name: frozenset(map(fold, line.split())) for name, line in tables["structure"].items()},
        frozenset(map(fold, tables["beside"]["degrees"].split())),
    )


class _NameWord(NamedTuple):
    """A word of a text, folded, and whether it is written with a capital."""

    text: str
    is_capital: bool


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text, split for the comparison with descriptions.

    Attributes:
        words: the folded words of scripts with spaces, in order; the value is whether one begins with a
            capital.
        unspaced: the runs of characters of scripts without spaces, joined by spaces.
    """

    words: Mapping[str, bool]
    unspaced: str

    @classmethod
    def from_text(cls, text: str) -> SplitText:
        """Return the first `MAX_CHARS` characters of a text, split into words. Cost: linear."""
        words: dict[str, bool] = {}
        running: list[str] = []
        for word in _split_text(text[:MAX_CHARS]):
            if is_unspaced(word.text):
                running.append(word.text)
            else:
                words[word.text] = words.get(word.text, False) or word.is_capital
        return cls(words, " ".join(running))


@dataclass(frozen=True, slots=True)
class DescribedWords:
    """The significant words of a description, without the function and question words of its language.

    Attributes:
        words: the words of scripts with spaces, in order; the value is whether a word is a name.
        pieces: the pieces of scripts without spaces.
        relations: the ignored function words, such as prepositions, that a strict match must have too.
    """

    words: Mapping[str, bool]
    pieces: tuple[str, ...]
    relations: frozenset[str]

    @classmethod
    def from_text(cls, text: str) -> DescribedWords:
        """Return the significant words in the first `MAX_CHARS` characters of a description. Cost: linear."""
        cut = list(_split_text(text[:MAX_CHARS]))
        plain = [word for word in cut if not is_unspaced(word.text)]
        folded = [word.text for word in plain]
        left_out, structure = _find_function_words(folded)
        words: dict[str, bool] = {}
        relations: set[str] = set()
        for number, word in enumerate(plain):
            is_empty = word.text in left_out or _is_near_question(folded, number)
            if not is_empty or (word.is_capital and number):
                words.setdefault(word.text, word.is_capital)
            elif word.text not in structure and not _is_degree(folded, number):
                relations.add(word.text)
        pieces = dict.fromkeys(
            piece for word in cut if is_unspaced(word.text) for piece in _split_pieces(word.text)
        )
        return cls(words, tuple(pieces), frozenset(relations))

    @property
    def units(self) -> tuple[str, ...]:
        """Return all significant words: the words of scripts with spaces, and the pieces of other scripts."""
        return (*self.words, *self.pieces)

    @property
    def is_specific(self) -> bool:
        """Return whether the description is long enough to identify one entry.

        This needs two significant words, or more than three characters of a script without spaces.
        """
        return len(self.units) > 1 or any(len(piece) > 3 for piece in self.pieces)  # noqa: PLR2004  two pairs

    def is_contained_in(self, text: SplitText) -> bool:
        """Return whether a text contains every word of the description, and the names in the same order.

        Function words that change the meaning, such as prepositions, must occur too. If the description has a
        piece of a script without spaces, the result is False.
        """
        if not self.words or self.pieces or not {*self.words, *self.relations} <= {*text.words}:
            return False
        positions = {word: position for position, word in enumerate(text.words)}
        names = [positions[word] for word, is_name in self.words.items() if is_name or text.words[word]]
        return names == sorted(names)

    def find_near_words(self, text: SplitText) -> frozenset[str]:
        """Return the words and pieces of the description that a text contains, exactly or inflected."""
        return frozenset(unit for unit in self.units if self._is_near(unit, text))

    def compute_share(self, text: SplitText, weights: Mapping[str, float]) -> float:
        """Return the weighted share of the description that a text contains, exactly or as inflections.

        Args:
            text: the text.
            weights: the weight of each word and piece of the description, from `compute_weights`.

        Returns:
            The share, from 0 to 1.
        """
        total = sum(weights[unit] for unit in self.units)
        near = self.find_near_words(text)
        return sum(weights[unit] for unit in self.units if unit in near) / total if total else 0.0

    def list_prefixes(self) -> Iterator[str]:
        """Yield prefixes for a search: every text with a described word, even inflected, matches one."""
        for word in self.words:
            length = max(_STEM_CHARS, round(len(word) * _NEAR_SHARE))
            yield word if len(word) <= _STEM_CHARS or _has_digit(word) else word[:length]

    def _is_near(self, unit: str, text: SplitText) -> bool:
        if unit not in self.words:
            pairs = [first + second for first, second in pairwise(unit)] or [unit]
            return sum(pair in text.unspaced for pair in pairs) >= _NEAR_PAIRS * len(pairs)
        return unit in text.words or any(_are_near(unit, word) for word in text.words)


def _split_text(text: str) -> Iterator[_NameWord]:
    """Yield the words of a text in order, without English endings after an apostrophe, such as 's."""
    for found in _WORD.finditer(normalise("NFC", text)):
        written = _CLITIC.sub("", found[0])
        for number, word in enumerate(split_words(written)):
            yield _NameWord(word, number == 0 and written[0].isupper())


def _find_function_words(words: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the function words of the language of a description, and which of them a text may lack.

    The words that a text may lack are articles, question words and similar words. The language with most
    function words among `words` counts. If several languages have equally many, return the function words of
    all of them, and the words that a text may lack in each of them.
    """
    tables = _load_tables()
    counts = {name: sum(word in known for word in words) for name, known in tables.languages.items()}
    chosen = choose_languages(counts)
    if not chosen:
        return frozenset(), frozenset()
    structure = [tables.structure.get(name, frozenset[str]()) for name in chosen]
    left_out = frozenset[str]().union(*(tables.languages[name] for name in chosen))
    return left_out, structure[0].intersection(*structure)


def _is_degree(words: Sequence[str], number: int) -> bool:
    """Return whether a word is part of a question about a degree, as in "how long".

    Args:
        words: the folded words of the description.
        number: the position of the word.
    """
    neighbours = {*words[max(0, number - 1) : number], *words[number + 1 : number + 2]}
    return words[number] in _load_tables().degrees and bool(neighbours & _load_tables().questions)


def _is_near_question(words: Sequence[str], number: int) -> bool:
    """Return whether a word belongs to a question word, as in "how long", or begins the description.

    Args:
        words: the folded words of the description.
        number: the position of the word.
    """
    if words[number] not in _load_tables().near_question:
        return False
    neighbours = {*words[max(0, number - 1) : number], *words[number + 1 : number + 2]}
    return number == 0 or bool(neighbours & _load_tables().questions)


def _split_pieces(run: str) -> Iterator[str]:
    """Yield the pieces between particles in a run of a script without spaces."""
    tables = _load_tables()
    if _HANGUL.fullmatch(run):
        if run not in tables.languages["ko"]:
            stem = tables.suffixes.sub("", run)
            yield stem if len(stem) > 1 else run
        return
    for piece in tables.particles.split(run):
        if len(piece) > 1 or (piece and not _KANA.fullmatch(piece)):
            yield piece


@lru_cache(maxsize=65_536)
def _strip_accents(word: str) -> str:
    """Return a word without accents, and an Arabic word without its article."""
    if word.isascii():
        return word
    return _ARTICLE.sub("", normalise("NFC", _MARKS.sub("", normalise("NFKD", word))))


def _has_digit(word: str) -> bool:
    return any(char.isdigit() for char in word)


def _count_common_prefix(one: str, other: str) -> int:
    """Return the length of the common prefix of two words."""
    pairs = enumerate(zip(one, other, strict=False))
    return next(
        (position for position, (first, second) in pairs if first != second), min(len(one), len(other))
    )


def _are_near(one: str, other: str) -> bool:
    """Return whether two words may be inflections of one word, because they begin with the same letters."""
    first, second = _strip_accents(one), _strip_accents(other)
    if first == second:
        return True
    if _has_digit(first) or _has_digit(second):
        return False
    common = _count_common_prefix(first, second)
    return common >= max(_STEM_CHARS, _NEAR_SHARE * max(len(first), len(second)))


def compute_weights(description: DescribedWords, texts: Sequence[SplitText]) -> dict[str, float]:
    """Return a weight for each word of a description: higher if fewer texts contain the word."""
    near = [description.find_near_words(text) for text in texts]
    counts = {unit: sum(unit in each for each in near) for unit in description.units}
    return {unit: 1 / (1 + count) ** 0.5 for unit, count in counts.items()}
