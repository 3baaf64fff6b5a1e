"""The cue tables of `cues.toml`, compiled once on first use, and the folding that they match on.

A text is folded to words between single spaces, with one at each end; a cue then is a regular
expression over that string. Python's `re` backtracks, but a cue holds no repetition, so matching is
linear in the text, and only the first `CUE_CHARS` characters of a fact are looked at.

The file says what the cues mean and how their weights were chosen.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

from muniment.policy.grammar import normalised

CUE_CHARS: Final = 2_000
"""Characters of a fact that are searched for cues: what it is about stands at its beginning."""

_STOPPED_BY: Final = "|"
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Scripts that put no space between words: Thai, Lao, Burmese, Khmer, kana, Han."""


@dataclass(frozen=True, slots=True)
class CueClass:
    """Cues that say the same thing about a fact, and how much that says.

    Attributes:
        scope: the scope that it speaks for, `user` or `project`.
        weight: what it adds to that scope's sum, once.
    """

    name: str
    scope: str
    weight: int
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Cues:
    """Every table of `cues.toml`, ready to be matched against `folded` text."""

    classes: tuple[CueClass, ...]
    pointer: re.Pattern[str]
    lead_in: re.Pattern[str]
    opening: frozenset[str]
    topics: tuple[tuple[str, re.Pattern[str]], ...]
    common: frozenset[str]


@cache
def cues() -> Cues:
    """The shipped tables. Cost: reads and compiles one file of the package, once a process."""
    tables = tomllib.loads(files("muniment.agent").joinpath("cues.toml").read_text(encoding="utf-8"))
    classes = tuple(
        CueClass(name, table["scope"], table["weight"], _compile(_languages(table)))
        for name, table in tables["class"].items()
    )
    return Cues(
        classes=classes,
        pointer=_compile(_languages(tables["pointer"])),
        lead_in=_compile([f"^{cue}" for cue in _languages(tables["lead_in"])]),
        opening=frozenset(folded(word).strip() for word in _languages(tables["opening"])),
        topics=tuple((topic, _compile(_split(line))) for topic, line in tables["topic"].items()),
        common=frozenset(folded(word).strip() for word in _languages(tables["common"])),
    )


def folded(text: str) -> str:
    """`text` as cues see it: ` words in lower case without accents ` between single spaces.

    Accents are dropped where Latin, Greek and Cyrillic write them, so that `cafe` and `café`
    are one word; the marks of other scripts are letters there, and stay.
    """
    if text.isascii():
        return f" {' '.join(_ASCII_WORD.findall(text.lower()))} "
    bare = "".join(
        char
        for char in normalised("NFKD", text.casefold())
        if not ("\u0300" <= char <= "\u036f" or "\u064b" <= char <= "\u0652")
    )
    joined = normalised("NFKC", bare)
    spaced = "".join(char if is_word_character(char) else " " for char in joined)
    return f" {' '.join(spaced.split())} "


@lru_cache(maxsize=4096)
def is_word_character(char: str) -> bool:
    """Whether `char` belongs to a word in its script: letters, digits and the marks upon them."""
    return unicodedata.category(char)[0] in "LMN"


def is_unspaced(text: str) -> bool:
    """Whether `text` holds a letter of a script that puts no space between words."""
    return _UNSPACED.search(text) is not None


def _languages(table: dict[str, object]) -> list[str]:
    """All cues of a table with one line a language."""
    return [
        cue
        for key, line in table.items()
        if isinstance(line, str) and key not in {"scope", "why"}
        for cue in _split(line)
    ]


def _split(line: str) -> list[str]:
    return [cue.lstrip() for cue in line.split(",")]


def _compile(written: list[str]) -> re.Pattern[str]:
    """One expression for all of `written`; longer cues first, so that a match takes the longest."""
    return re.compile("|".join(_expression(cue) for cue in sorted(written, key=len, reverse=True)))


def _expression(written: str) -> str:
    cue, _, stopped = written.partition("!")
    words = re.escape(folded(cue.strip("^* ")).strip())
    unless = "|".join(
        re.escape(folded(stop).strip() + " " * stop.endswith(" ")) for stop in stopped.split(_STOPPED_BY)
    )
    if is_unspaced(cue):
        return ("^ " if cue.startswith("^") else "") + words + (f"(?!{unless})" if stopped else "")
    before = "^ " if cue.startswith("^") else "" if cue.startswith("*") else "(?<= )"
    after = "" if cue.endswith("*") else "(?= )"
    return before + words + after + (f"(?! (?:{unless}))" if stopped else "")
