"""The decision where to store a fact, and the cues by which the built-in rules make it.

A cue is a phrase that signals something about a fact, for example that it is about the user. A `Decision`
comes from these rules, or from a language model that may decide but not write. Later steps do not trust a
decision: the file name is judged like any other path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Final

from muniment.content.entry import EntryType
from muniment.content.titles import derive_description
from muniment.content.words import is_word_character
from muniment.files import load_package_tables, split_words
from muniment.kernel.names import Scope
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import CanonicalPath

# -- cues --------------------------------------------------------------------------------------------
#
# The tables of cues in `cues.toml`, compiled once on first use; and the conversion of texts to the form in
# which cues are searched.
#
# In this form, a text consists of lower-case words between single spaces, with a space at each end. A cue is
# searched as a plain substring, so the search is linear in the text. Only the first `CUE_CHARS` characters of
# a fact are searched.
#
# The file explains what the cues mean, and how their weights were chosen.

CUE_CHARS: Final = 2_000
"""Characters of a fact in which cues are searched: the beginning of a fact names its subject."""

_EXCEPTION_SEPARATOR: Final = "|"
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Matches a letter of a script without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han."""


@dataclass(frozen=True, slots=True)
class Cue:
    """A phrase that is searched in a text that `fold_words` has converted.

    Attributes:
        text: the words of the phrase; a space at its beginning or end marks the beginning or the end of a
            word.
        is_opening: whether the phrase counts only at the start of the text.
        exceptions: texts that must not follow the phrase.
    """

    text: str
    is_opening: bool
    exceptions: tuple[str, ...]

    def find_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and the end index of each occurrence of the phrase, without surrounding spaces."""
        found = text.find(self.text, 0, len(self.text) if self.is_opening else None)
        while found >= 0:
            start = found + (self.text.startswith(" ") and not self.is_opening)
            end = found + len(self.text) - self.text.endswith(" ")
            if not text.startswith(self.exceptions, end):
                yield start, end
            found = -1 if self.is_opening else text.find(self.text, found + 1)


@dataclass(frozen=True, slots=True)
class CueTable:
    """Cues with the same meaning, the longest first.

    If several cues occur at the same place, only the longest is counted.
    """

    cues: tuple[Cue, ...]

    def occurs(self, text: str) -> bool:
        """Return whether any cue of the table occurs in a text that `fold_words` has converted."""
        return any(True for _ in self._find_spans(text))

    def count_matches(self, text: str) -> int:
        """Return the number of cues of the table in a text; cues that overlap count once."""
        counted = covered_until = 0
        for start, end in sorted(self._find_spans(text), key=itemgetter(0)):
            if start >= covered_until:
                counted, covered_until = counted + 1, end
        return counted

    def find_first_end(self, text: str) -> int | None:
        """Return the index at which the first cue in a text ends, or None if no cue occurs."""
        return next((end for _, end in self._find_spans(text)), None)

    def _find_spans(self, text: str) -> Iterator[tuple[int, int]]:
        return (span for cue in self.cues if cue.text in text for span in cue.find_spans(text))


@dataclass(frozen=True, slots=True)
class CueClass:
    """Cues with the same meaning for a fact, and the weight of this meaning.

    Attributes:
        name: the name of the class in `cues.toml`.
        scope: the scope that these cues support, `user` or `project`.
        weight: the number that is added to the sum of this scope, once for any number of cues.
        table: the cues.
    """

    name: str
    scope: str
    weight: int
    table: CueTable


@dataclass(frozen=True, slots=True)
class Cues:
    """All tables of `cues.toml`, ready to be searched in texts that `fold_words` has converted.

    Attributes:
        classes: the cues that support a scope.
        pointer: cues of facts that refer to a source.
        lead_in: introductions at the start of a fact, which are skipped.
        opening: words that open a subordinate clause.
        topics: the topics, which become folders, with their cues.
        updates: the phrases for `updates.py`, as written in the file.
        chatter: phrases without content, such as thanks, as written in the file; one tuple for each language.
    """

    classes: tuple[CueClass, ...]
    pointer: CueTable
    lead_in: CueTable
    opening: frozenset[str]
    topics: tuple[tuple[str, CueTable], ...]
    updates: Mapping[str, tuple[str, ...]]
    chatter: tuple[tuple[str, ...], ...]


@cache
def load_cues() -> Cues:
    """Return the cue tables of the package. Cost: reads and compiles one file, once per process."""
    tables = load_package_tables("muniment.agent", "cues")
    classes = tuple(
        CueClass(name, table["scope"], table["weight"], build_cue_table(_read_cues(table)))
        for name, table in tables["class"].items()
    )
    chatter = {language: split_words(line) for language, line in tables["chatter"].items()}
    shared = chatter.pop("every")
    return Cues(
        classes=classes,
        pointer=build_cue_table(_read_cues(tables["pointer"])),
        lead_in=build_cue_table([f"^{cue}" for cue in _read_cues(tables["lead_in"])]),
        opening=frozenset(fold_words(word).strip() for word in _read_cues(tables["opening"])),
        topics=tuple((topic, build_cue_table(split_words(line))) for topic, line in tables["topic"].items()),
        updates={name: tuple(_read_cues(table)) for name, table in tables["update"].items()},
        chatter=tuple((*shared, *phrases) for phrases in chatter.values()),
    )


def fold_words(text: str) -> str:
    """Convert a text to the form in which cues are searched: lower-case words between single spaces.

    The result has a space at each end. Accents of Latin, Greek and Cyrillic letters are dropped, so that
    `cafe` and `café` are the same word. The marks of other scripts stay, because they are letters there.
    """
    if text.isascii():
        return f" {' '.join(_ASCII_WORD.findall(text.lower()))} "
    unaccented = "".join(
        char
        for char in normalise("NFKD", text.casefold())
        if not ("\u0300" <= char <= "\u036f" or "\u064b" <= char <= "\u0652")
    )
    joined = normalise("NFKC", unaccented)
    spaced = "".join(char if is_word_character(char) else " " for char in joined)
    return f" {' '.join(spaced.split())} "


def is_unspaced(text: str) -> bool:
    """Return whether `text` contains a letter of a script without spaces between words, such as Thai."""
    return _UNSPACED.search(text) is not None


def _read_cues(table: dict[str, object]) -> list[str]:
    """Return all cues of a table that has one line for each language."""
    return [
        cue
        for key, line in table.items()
        if isinstance(line, str) and key not in {"scope", "why"}
        for cue in split_words(line)
    ]


def build_cue_table(lines: list[str]) -> CueTable:
    """Return a table of the cues in `lines`, the longest first."""
    return CueTable(tuple(map(_parse_cue, sorted(lines, key=len, reverse=True))))


def _parse_cue(line: str) -> Cue:
    cue, _, exceptions_text = line.partition("!")
    words = fold_words(cue.strip("^* ")).strip()
    opens = cue.startswith("^")
    unless = [
        fold_words(stop).strip() + " " * stop.endswith(" ")
        for stop in exceptions_text.split(_EXCEPTION_SEPARATOR)
        if exceptions_text
    ]
    if is_unspaced(cue):
        return Cue(" " * opens + words, opens, tuple(unless))
    begins, ends = opens or not cue.startswith("*"), not cue.endswith("*")
    return Cue(" " * begins + words + " " * ends, opens, tuple(f" {stop}" for stop in unless))


# -- decision ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision where and how to store a fact.

    Attributes:
        scope: the scope.
        type: the type of the entry.
        file: the path in the scope, `topic/slug.md` or `slug.md`. If the name is in use, a suffix is added to
            it.
        title: the title on one line, at most `TITLE_CHARS` characters.
        text: the fact, verbatim.
        updates: the entry that the fact replaces; None: the fact gets a new file.
    """

    scope: Scope
    type: EntryType
    file: str
    title: str
    text: str
    updates: CanonicalPath | None = None

    @property
    def description(self) -> str:
        """Return the description for the front matter: the beginning of the text, on one line."""
        return derive_description(self.text)
