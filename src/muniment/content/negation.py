"""Find texts that deny a fact or state that it is over.

A request to forget a fact must not remove such texts.

- N1. `is_ended`: the text states that something is over or was replaced ("no longer", "instead of", "statt",
  不再), and a query word occurs in that clause only.
- N2. `is_denied`: a query word follows directly after "not" or a similar word, and occurs only there.
- N3. `has_denial`: the query itself contains a denial. The caller then searches for the query unchanged.

A clause ends at punctuation and at the end of a line. In scripts without spaces, a clause is checked as a
whole. Not guaranteed: a denial without one of the listed words is not found. The tables cover some large
languages. `provenance` has separate tables: it only needs to know whether any word reverses a meaning, not
which one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from muniment.content.words import STOP_WORDS, is_unspaced
from muniment.files import load_package_tables
from muniment.kernel.path import fold

FindWords = Callable[[str], frozenset[str]]
"""Function that returns the query words that occur in a piece of text."""

MAX_CHARS: Final = 8_000
"""Maximum number of characters of a text that are checked. A query is a sentence, an item or a paragraph."""

_CLAUSE_CHARS: Final = 400
"""Maximum number of characters of one clause. Clauses written by people are shorter."""

_MAX_WORDS_AFTER_DENIAL: Final = 3
"""Number of words checked after a denial. The first one that is not a stop word is the denied word."""

_CLAUSE: Final = re.compile(
    "[,;:.!?()\r\n\u2013\u2014\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u060c\u0964]+"
)
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


class _DenialTables(NamedTuple):
    """The tables of `negation.toml`, compiled.

    Attributes:
        ended: finds a phrase that states that something is over or was replaced.
        denial: finds "not" or a similar word in scripts with spaces.
        running: finds a denial in scripts without spaces.
    """

    ended: re.Pattern[str]
    denial: re.Pattern[str]
    running: re.Pattern[str]


@cache
def _load_denials() -> _DenialTables:
    """Return the compiled tables of `negation.toml`. Cost: reads and compiles the file once per process."""
    tables = load_package_tables("muniment.content", "negation")
    ended = (
        rf"\b(?:{tables['moved']}) (?P<left>\S+(?: \S+){{0,9}}?)(?: to | into |\Z)"
        rf"|\bvon (?P<weg>\S+(?: \S+){{0,5}}?) (?:auf|zu) "
        rf"|\b(?:{'|'.join(tables['instead'])})\b(?P<instead>.*)"
        rf"|\b(?:{'|'.join(tables['lapsed'])})\b(?P<lapsed>.*)|(?:{tables['running']})"
    )
    denial = rf"\b(?:{'|'.join(tables['denial'])})\b"
    return _DenialTables(re.compile(ended), re.compile(denial), re.compile(tables["running_denial"]))


def has_denial(text: str) -> bool:
    """Return whether a text denies something, or states that something is over."""
    plain = fold(text[:MAX_CHARS])
    return any(found.search(plain) for found in _load_denials())


def is_ended(text: str, find_words: FindWords) -> bool:
    """Return whether a text states that the queried fact is over or was replaced.

    Args:
        text: a sentence, an item or a paragraph.
        find_words: returns the query words that occur in a piece of text.

    Cost: linear, with one or two calls of `find_words` per clause.
    """
    over, remaining = frozenset[str](), frozenset[str]()
    for number, clause in enumerate(_split_clauses(text)):
        named = _find_ended_words(clause, find_words)
        if not named and number and _load_denials().denial.match(clause):
            named = _find_denied_words(clause, find_words)  # "on Mondays, not Tuesdays"
        over, remaining = over | named, remaining | (find_words(clause) - named)
    return bool(over - remaining)


def is_denied(text: str, find_words: FindWords) -> bool:
    """Return whether a text denies the queried fact, as in "not on Tuesdays".

    Args:
        text: a sentence, an item or a paragraph.
        find_words: returns the query words that occur in a piece of text.

    Cost: linear, with two calls of `find_words` per clause.
    """
    over, remaining = frozenset[str](), frozenset[str]()
    for clause in _split_clauses(text):
        named = _find_denied_words(clause, find_words)
        over, remaining = over | named, remaining | (find_words(clause) - named)
    return bool(over - remaining)


def _split_clauses(text: str) -> list[str]:
    """Return the clauses of a text, folded and with single spaces. Very long clauses are split."""
    clauses = (" ".join(clause.split()) for clause in _CLAUSE.split(fold(text[:MAX_CHARS])))
    return [
        clause[start : start + _CLAUSE_CHARS]
        for clause in clauses
        for start in range(0, len(clause), _CLAUSE_CHARS)
    ]


def _find_ended_words(clause: str, find_words: FindWords) -> frozenset[str]:
    """Return the query words that a clause states to be over, as in "no longer on Mondays"."""
    found = _load_denials().ended.search(clause)
    if found is None:
        return frozenset()
    part = next((part for part in found.groups() if part is not None), None)
    named = frozenset[str]() if part is None else find_words(part)
    return find_words(clause) if not named and found.lastgroup in {None, "lapsed"} else named


def _find_denied_words(clause: str, find_words: FindWords) -> frozenset[str]:
    """Return the query words that a clause denies, as in "not on Mondays"."""
    is_denied = _load_denials().running.search(clause) is not None
    if is_denied or is_unspaced(clause[:1]):
        return find_words(clause) if is_denied else frozenset()
    named = frozenset[str]()
    for found in _load_denials().denial.finditer(clause):
        following = (word[0] for word in _WORD.finditer(clause, found.end()))
        for _, word in zip(range(_MAX_WORDS_AFTER_DENIAL), following, strict=False):
            if word not in STOP_WORDS:
                named |= find_words(word)
                break
    return named
