"""Compare the words of a description with a text, for a person who names an entry in other words. Pure.

- D1. Function and question words of the description's language say nothing, and no particle of a script
  without spaces does; some words only beside a question word, as in "how long". A word with a capital inside
  a sentence is a name and never one of them. Words that deny or end something do say something.
- D2. Of these, a text that is to be removed may leave out question words, articles, auxiliary verbs and the
  like (`structure`). It has to have the others, such as prepositions and pronouns: they say who owns what,
  from where and to whom.
- D3. A text says a word if it has the same form of it: inflections only order what is near. Names have to
  come in the same order. A description with a piece of a script without spaces is said by no text.

`DescribedWords.is_said_by` is strict: every word is said. `DescribedWords.share` only orders what is near.
The tables are in `function_words.toml`. What does not hold: that another word for the same thing is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from muniment.content.words import is_running, split_words
from muniment.files import shipped_tables
from muniment.kernel.normal_forms import normalised
from muniment.kernel.path import fold

MAX_CHARS: Final = 8_000
"""Characters of a text that are compared; what people describe is a sentence, an item or a paragraph."""

_STEM_CHARS: Final = 4
"""Characters that two inflections of a word share at least."""

_NEAR_SHARE: Final = 0.6
"""Share of the longer word that two words have in common if one is near the other."""

_NEAR_PAIRS: Final = 0.5
"""Share of the pairs of characters of a piece that a text has if it says something near it."""

_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_CLITIC: Final = re.compile("['\u2019](?:s|d|m|ll|re|ve)\\Z", re.IGNORECASE)
_KANA: Final = re.compile("[\u3041-\u3096\u309d-\u309f\u30fc]+")
_HANGUL: Final = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]+")
_MARKS: Final = re.compile("[\u0300-\u036f]")
_ARTICLE: Final = re.compile("\\A(?:وال|بال|كال|فال|ال|لل)(?=..)")


class _Tables(NamedTuple):
    """The tables of `function_words.toml`, compiled."""

    languages: Mapping[str, frozenset[str]]
    beside: frozenset[str]
    questions: frozenset[str]
    particles: re.Pattern[str]
    suffixes: re.Pattern[str]
    structure: Mapping[str, frozenset[str]]
    degrees: frozenset[str]


@cache
def _tables() -> _Tables:
    """Return the shipped tables. Cost: reads and compiles a file of the package, once a process."""
    tables = shipped_tables("muniment.content", "function_words")
    running = {name: [each.strip() for each in line.split(",")] for name, line in tables["running"].items()}
    suffixes = sorted(running.pop("ko"), key=len, reverse=True)
    particles = sorted({each for line in running.values() for each in line}, key=len, reverse=True)
    beside, questions = (
        frozenset(map(fold, tables["beside"][key].split())) for key in ("words", "questions")
    )
    return _Tables(
        {name: frozenset(map(fold, line.split())) - beside for name, line in tables["words"].items()},
        beside,
        questions,
        re.compile("|".join(map(re.escape, particles))),
        re.compile(rf"(?:{'|'.join(map(re.escape, suffixes))})\Z"),
        {name: frozenset(map(fold, line.split())) for name, line in tables["structure"].items()},
        frozenset(map(fold, tables["beside"]["degrees"].split())),
    )


class _CutWord(NamedTuple):
    """A word of a text: folded, and whether it is written with a capital."""

    text: str
    is_capital: bool


@dataclass(frozen=True, slots=True)
class SaidText:
    """A text, cut into what descriptions are compared with.

    Attributes:
        words: those that stand by themselves, folded, in order, with whether one begins with a capital.
        running: runs of the scripts without spaces, each between spaces.
    """

    words: Mapping[str, bool]
    running: str

    @classmethod
    def of(cls, text: str) -> SaidText:
        """Cut a text, of which `MAX_CHARS` characters are read. Cost: linear."""
        words: dict[str, bool] = {}
        running: list[str] = []
        for word in _cut(text[:MAX_CHARS]):
            if is_running(word.text):
                running.append(word.text)
            else:
                words[word.text] = words.get(word.text, False) or word.is_capital
        return cls(words, " ".join(running))


@dataclass(frozen=True, slots=True)
class DescribedWords:
    """The words of a description that say something (D1).

    Attributes:
        words: those that stand by themselves, in order, with whether they are names.
        pieces: those of scripts without spaces.
        relations: function words that a text has to have too, if it is to be removed (D2).
    """

    words: Mapping[str, bool]
    pieces: tuple[str, ...]
    relations: frozenset[str]

    @classmethod
    def of(cls, text: str) -> DescribedWords:
        """Return what a description says. Cost: linear; `MAX_CHARS` characters are read."""
        cut = list(_cut(text[:MAX_CHARS]))
        plain = [word for word in cut if not is_running(word.text)]
        said = [word.text for word in plain]
        left_out, structure = _function_words(said)
        words: dict[str, bool] = {}
        relations: set[str] = set()
        for number, word in enumerate(plain):
            is_empty = word.text in left_out or _is_beside_question(said, number)
            if not is_empty or (word.is_capital and number):
                words.setdefault(word.text, word.is_capital)
            elif word.text not in structure and not _is_degree(said, number):
                relations.add(word.text)
        pieces = dict.fromkeys(piece for word in cut if is_running(word.text) for piece in _pieces(word.text))
        return cls(words, tuple(pieces), frozenset(relations))

    @property
    def units(self) -> tuple[str, ...]:
        """The words and pieces."""
        return (*self.words, *self.pieces)

    @property
    def is_telling(self) -> bool:
        """Whether it says enough to mean one entry: two words, or a longer piece."""
        return len(self.units) > 1 or any(len(piece) > 3 for piece in self.pieces)  # noqa: PLR2004  two pairs

    def is_said_by(self, said: SaidText) -> bool:
        """Return whether a text says every word, and names in the same order (D2, D3)."""
        if not self.words or self.pieces or not {*self.words, *self.relations} <= {*said.words}:
            return False
        places = {word: place for place, word in enumerate(said.words)}
        names = [places[word] for word, is_name in self.words.items() if is_name or said.words[word]]
        return names == sorted(names)

    def said_in(self, said: SaidText) -> frozenset[str]:
        """Return the words and pieces that a text says, or something near them."""
        return frozenset(unit for unit in self.units if self._is_near(unit, said))

    def share(self, said: SaidText, weights: Mapping[str, float]) -> float:
        """Return the share of the words, by weight, that a text says, or something near them: 0 to 1."""
        whole = sum(weights[unit] for unit in self.units)
        near = self.said_in(said)
        return sum(weights[unit] for unit in self.units if unit in near) / whole if whole else 0.0

    def beginnings(self) -> Iterator[str]:
        """Yield the beginnings by which a table finds texts that say something near a word."""
        for word in self.words:
            length = max(_STEM_CHARS, round(len(word) * _NEAR_SHARE))
            yield word if len(word) <= _STEM_CHARS or _has_digit(word) else word[:length]

    def _is_near(self, unit: str, said: SaidText) -> bool:
        if unit not in self.words:
            pairs = [first + second for first, second in pairwise(unit)] or [unit]
            return sum(pair in said.running for pair in pairs) >= _NEAR_PAIRS * len(pairs)
        return unit in said.words or any(_are_near(unit, word) for word in said.words)


def _cut(text: str) -> Iterator[_CutWord]:
    """Yield the words of a text in order, without what English puts after an apostrophe."""
    for found in _WORD.finditer(normalised("NFC", text)):
        written = _CLITIC.sub("", found[0])
        for number, word in enumerate(split_words(written)):
            yield _CutWord(word, number == 0 and written[0].isupper())


def _function_words(words: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the function words of the language that has most of the words, and those that are structure.

    Of several languages it is all their function words, and only what is structure in each of them.
    """
    tables = _tables()
    counts = {name: sum(word in known for word in words) for name, known in tables.languages.items()}
    most = max(counts.values())
    chosen = [name for name, count in counts.items() if most and count == most]
    if not chosen:
        return frozenset(), frozenset()
    structure = [tables.structure.get(name, frozenset[str]()) for name in chosen]
    left_out = frozenset[str]().union(*(tables.languages[name] for name in chosen))
    return left_out, structure[0].intersection(*structure)


def _is_degree(words: Sequence[str], number: int) -> bool:
    """Return whether a word only asks for a degree, as in "how long"."""
    beside = {*words[max(0, number - 1) : number], *words[number + 1 : number + 2]}
    return words[number] in _tables().degrees and bool(beside & _tables().questions)


def _is_beside_question(words: Sequence[str], number: int) -> bool:
    """Return whether a word belongs to a question word, as in "how long", or opens the description."""
    if words[number] not in _tables().beside:
        return False
    beside = {*words[max(0, number - 1) : number], *words[number + 1 : number + 2]}
    return number == 0 or bool(beside & _tables().questions)


def _pieces(run: str) -> Iterator[str]:
    """Yield what stands between particles in a run of a script without spaces (D1)."""
    tables = _tables()
    if _HANGUL.fullmatch(run):
        if run not in tables.languages["ko"]:
            stem = tables.suffixes.sub("", run)
            yield stem if len(stem) > 1 else run
        return
    for piece in tables.particles.split(run):
        if len(piece) > 1 or (piece and not _KANA.fullmatch(piece)):
            yield piece


@lru_cache(maxsize=65_536)
def _bare(word: str) -> str:
    """Return a word without accents, and in Arabic without its article."""
    if word.isascii():
        return word
    return _ARTICLE.sub("", normalised("NFC", _MARKS.sub("", normalised("NFKD", word))))


def _has_digit(word: str) -> bool:
    return any(char.isdigit() for char in word)


def _common(one: str, other: str) -> int:
    """Return how many characters two words have in common at their beginnings."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (first, second) in pairs if first != second), min(len(one), len(other)))


def _are_near(one: str, other: str) -> bool:
    """Return whether two words begin so much alike that one may be the other."""
    first, second = _bare(one), _bare(other)
    if first == second:
        return True
    if _has_digit(first) or _has_digit(second):
        return False
    common = _common(first, second)
    return common >= max(_STEM_CHARS, _NEAR_SHARE * max(len(first), len(second)))


def weights_of(description: DescribedWords, texts: Sequence[SaidText]) -> dict[str, float]:
    """Return how much each word of a description says among some texts: the fewer say it, the more."""
    near = [description.said_in(said) for said in texts]
    counts = {unit: sum(unit in each for each in near) for unit in description.units}
    return {unit: 1 / (1 + count) ** 0.5 for unit, count in counts.items()}
