"""The characters of canonical paths, sorted into letters: as many as some patterns can tell apart.

A pattern names a few characters; to it, all others are one. A letter stands for all characters that every
pattern at hand sees alike, in each of the three forms in which paths are matched (`pattern`, M1 and M2):
as written, folded, and with the case of single characters folded.

Contract:
    A1  Each character that the name grammar lets through is covered by exactly one letter, which sees it in
        all three forms as the patterns do. So a path is a sequence of letters, and what holds for all of
        those holds for all paths.
    A2  That folding a path is folding its characters one by one is a rule of the name grammar (G2), not an
        assumption.

What does not hold: that every sequence of letters is a canonical path. It may be too long, be a device of
Windows, or hold a mark that composes with the letter before it.

Cost: 40 ms once in a process, to find the characters that folding changes; then 1 ms for 20 patterns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final
from unicodedata import combining

from muniment.policy.grammar import fold, is_canonical_character
from muniment.policy.pattern import fold_single

OTHER: Final = "\uffff"
"""Stands for a character that no pattern names; a noncharacter, so no pattern can name it."""

WILDCARDS: Final = frozenset("*?/")

CASED_BELOW: Final = 0x20000
"""No character from here on changes when it is folded; a test looks at all of them. Source: Unicode keeps
planes 2 and 3 for ideographs, which have no case, and the others hold nothing that a name may have."""

_ORDINARY: Final = "abcdefghijklmnopqrstuvwxyz0123456789-_"
_ALONE: Final = "-_0123456789"


@dataclass(frozen=True, slots=True)
class Letter:
    """A set of characters that no pattern at hand can tell apart.

    Attributes:
        text: one of them, for witnesses; the plainest.
        written: how patterns see it as it is written: itself, or `OTHER`.
        folded: how they see what it folds to; one character or more.
        single: how they see it with its own case folded; one character.
    """

    text: str
    written: str
    folded: str
    single: str


@dataclass(frozen=True, slots=True)
class Named:
    """The characters that patterns name, in each of the three forms of a path."""

    written: frozenset[str]
    folded: frozenset[str]
    single: frozenset[str]


def letters_for(exact: Iterable[str], trees: Iterable[str]) -> tuple[Letter, ...]:
    """The letters that these patterns can tell apart, with `/` as the last.

    The first is the one for all characters that no pattern names.

    Args:
        exact: patterns as in allow rules and quotas.
        trees: patterns as in deny rules.
    """
    exact, trees = tuple(exact), tuple(trees)
    wild = [pattern for pattern in trees if "?" in pattern]
    named = Named(
        _characters([*exact, *wild]), _characters(map(fold, trees)), _characters(map(fold_single, wild))
    )
    return _letters(named)


def plain_letters_for(tree: str) -> tuple[Letter, ...]:
    """Letters to spell a path that the deny pattern matches: what it names as it folds, and all others.

    They do not cover every character (A1), so they can show a path and prove nothing.
    """
    folded = fold(tree)
    named = Named(_characters([tree]), _characters([folded]), _characters([fold_single(tree)]))
    spelled = sorted(named.folded)
    letters = (_letter(char, named) for char in (_filler(spelled), *spelled))
    return (*letters, Letter("/", "/", "/", "/"))


@lru_cache(maxsize=16)
def _letters(named: Named) -> tuple[Letter, ...]:
    spelled = sorted(char for char in named.written | named.folded | named.single if char != OTHER)
    found = sorted((_letter(char, named) for char in (*spelled, *cased_characters())), key=_plainness)
    by_look: dict[tuple[str, str, str], Letter] = {}
    for letter in (_letter(_filler(spelled), named), *found):
        by_look.setdefault((letter.written, letter.folded, letter.single), letter)
    return (*by_look.values(), Letter("/", "/", "/", "/"))


def _filler(named: Collection[str]) -> str:
    """A character that folds to itself, to stand for whatever no pattern names.

    Beside a pattern that names a combining mark it is none that a mark composes with.
    """
    ideographs = map(chr, range(0x4E00, 0x9FFF))  # more than all patterns of a policy can name
    ordinary = _ALONE if any(map(combining, named)) else _ORDINARY
    return next(char for char in chain(ordinary, ideographs) if char not in named)


def _letter(char: str, named: Named) -> Letter:
    def seen(text: str, names: frozenset[str]) -> str:
        return "".join(each if each in names else OTHER for each in text)

    return Letter(
        char, seen(char, named.written), seen(fold(char), named.folded), seen(fold_single(char), named.single)
    )


def _plainness(letter: Letter) -> tuple[bool, bool, str]:
    return not letter.text.isascii(), letter.text not in _ORDINARY, letter.text


def _characters(patterns: Iterable[str]) -> frozenset[str]:
    named = frozenset("".join(patterns)) - WILDCARDS
    return frozenset(char for char in named if is_canonical_character(char))


@lru_cache(maxsize=1)
def cased_characters() -> tuple[str, ...]:
    """Every character of the name grammar that folding changes: some 1 400."""
    found = (char for char in map(chr, range(CASED_BELOW)) if char.casefold() != char)
    return tuple(char for char in found if is_canonical_character(char) and fold(char) != char)
