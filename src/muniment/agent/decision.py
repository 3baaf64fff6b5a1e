"""What is decided about a fact, and the cues by which rules decide it.

A `Decision` comes from the rules, or from a language model that may decide but not file. Nothing of
it is trusted further on: the file name is judged like any other path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Final

from muniment.content.entry import EntryType
from muniment.content.titles import description_of
from muniment.content.words import is_word_character
from muniment.files import shipped_tables
from muniment.kernel.names import Scope
from muniment.kernel.normal_forms import normalised
from muniment.kernel.path import CanonicalPath

# -- cues --------------------------------------------------------------------------------------------
#
# The cue tables of `cues.toml`, compiled once on first use, and the folding that they match on.
#
# A text is folded to words between single spaces, with one at each end; a cue then is a regular
# expression over that string. Python's `re` backtracks, but a cue holds no repetition, so matching is
# linear in the text, and only the first `CUE_CHARS` characters of a fact are looked at.
#
# The file says what the cues mean and how their weights were chosen.

CUE_CHARS: Final = 2_000
"""Characters of a fact that are searched for cues: what it is about stands at its beginning."""

_STOPPED_BY: Final = "|"
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Scripts that put no space between words: Thai, Lao, Burmese, Khmer, kana, Han."""


@dataclass(frozen=True, slots=True)
class Cue:
    """What to look for in folded text.

    Attributes:
        text: with a space where a word has to begin or end.
        opens: whether it counts only at the start of the text.
        unless: what may not follow.
    """

    text: str
    opens: bool
    unless: tuple[str, ...]

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of its words wherever they stand."""
        found = text.find(self.text, 0, len(self.text) if self.opens else None)
        while found >= 0:
            start = found + (self.text.startswith(" ") and not self.opens)
            end = found + len(self.text) - self.text.endswith(" ")
            if not text.startswith(self.unless, end):
                yield start, end
            found = -1 if self.opens else text.find(self.text, found + 1)


@dataclass(frozen=True, slots=True)
class CueTable:
    """Cues that say one thing, the longest as written first: of those that begin in one place it counts."""

    cues: tuple[Cue, ...]

    def occurs(self, text: str) -> bool:
        """Whether any of them stands in folded text."""
        return any(True for _ in self._places(text))

    def count(self, text: str) -> int:
        """How many of them stand in it, one beside the other."""
        counted = over = 0
        for start, end in sorted(self._places(text), key=itemgetter(0)):
            if start >= over:
                counted, over = counted + 1, end
        return counted

    def end_of_first(self, text: str) -> int | None:
        """Where the words end of the first that stands in it; None: none does."""
        return next((end for _, end in self._places(text)), None)

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        return (place for cue in self.cues if cue.text in text for place in cue.places(text))


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
    table: CueTable


@dataclass(frozen=True, slots=True)
class Cues:
    """Every table of `cues.toml`, ready to be matched against `plain_words` text.

    Attributes:
        updates: the tables of `updates.py`, as they are written.
        chatter: likewise, what says nothing to keep, by language.
    """

    classes: tuple[CueClass, ...]
    pointer: CueTable
    lead_in: CueTable
    opening: frozenset[str]
    topics: tuple[tuple[str, CueTable], ...]
    updates: Mapping[str, tuple[str, ...]]
    chatter: tuple[tuple[str, ...], ...]


@cache
def cues() -> Cues:
    """The shipped tables. Cost: reads and compiles one file of the package, once a process."""
    tables = shipped_tables("muniment.agent", "cues")
    classes = tuple(
        CueClass(name, table["scope"], table["weight"], cue_table(_languages(table)))
        for name, table in tables["class"].items()
    )
    chatter = {language: _split(line) for language, line in tables["chatter"].items()}
    shared = chatter.pop("every")
    return Cues(
        classes=classes,
        pointer=cue_table(_languages(tables["pointer"])),
        lead_in=cue_table([f"^{cue}" for cue in _languages(tables["lead_in"])]),
        opening=frozenset(plain_words(word).strip() for word in _languages(tables["opening"])),
        topics=tuple((topic, cue_table(_split(line))) for topic, line in tables["topic"].items()),
        updates={name: tuple(_languages(table)) for name, table in tables["update"].items()},
        chatter=tuple((*shared, *said) for said in chatter.values()),
    )


def plain_words(text: str) -> str:
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


def cue_table(written: list[str]) -> CueTable:
    """The cues of `written`, the longer ones first."""
    return CueTable(tuple(map(_cue, sorted(written, key=len, reverse=True))))


def _cue(written: str) -> Cue:
    cue, _, stopped = written.partition("!")
    words = plain_words(cue.strip("^* ")).strip()
    opens = cue.startswith("^")
    unless = [
        plain_words(stop).strip() + " " * stop.endswith(" ") for stop in stopped.split(_STOPPED_BY) if stopped
    ]
    if is_unspaced(cue):
        return Cue(" " * opens + words, opens, tuple(unless))
    begins, ends = opens or not cue.startswith("*"), not cue.endswith("*")
    return Cue(" " * begins + words + " " * ends, opens, tuple(f" {stop}" for stop in unless))


# -- decision ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a fact is to be filed.

    Attributes:
        file: the path in the scope, `topic/slug.md` or `slug.md`; a taken name gets a number.
        title: one line, at most `TITLE_CHARS` characters.
        text: the fact, verbatim.
        updates: the entry in whose place it is to stand; None: it gets a file of its own.
    """

    scope: Scope
    type: EntryType
    file: str
    title: str
    text: str
    updates: CanonicalPath | None = None

    @property
    def description(self) -> str:
        """The text on one line, see `content.titles.description_of`."""
        return description_of(self.text)
