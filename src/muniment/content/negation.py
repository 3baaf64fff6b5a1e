"""What a text says does not hold, or no longer: forgetting takes what was so, not what says that. Pure.

- N1. `ended`: the text tells that something is over, or that something else stands in its place ("no longer",
  "instead of", "statt", 不再), and a word that was asked for stands in it there and nowhere else.
- N2. `denied`: right behind a "not" or its like comes a word that was asked for, which stands nowhere else.
- N3. What denies something itself is asked for as it is: `turns`.

A clause ends at punctuation and at the end of a line. Of scripts without spaces a clause is looked at whole.
What does not hold: that a denial is found which has none of these words. The tables are in some large
languages; they stand apart from those of `provenance`, which ask whether any word turns a meaning, not which.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from muniment.content.words import STOP_WORDS, is_running
from muniment.files import shipped_tables
from muniment.kernel.path import fold

Says = Callable[[str], frozenset[str]]
"""Which of the words that were asked for stand in a piece of text."""

MAX_CHARS: Final = 8_000
"""Characters of a text that are looked at; what was asked for is a sentence, an item or a paragraph."""

_CLAUSE_CHARS: Final = 400
"""Characters of one clause; those of people are shorter."""

_NEXT_WORDS: Final = 3
"""Words behind a denial among which the first that says something is taken for what is denied."""

_CLAUSE: Final = re.compile(
    "[,;:.!?()\r\n\u2013\u2014\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u060c\u0964]+"
)
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


class _Denials(NamedTuple):
    """The tables of `negation.toml`, compiled."""

    ended: re.Pattern[str]
    denial: re.Pattern[str]
    running: re.Pattern[str]


@cache
def _denials() -> _Denials:
    """The shipped tables. Cost: reads and compiles a file of the package, once a process."""
    tables = shipped_tables("muniment.content", "negation")
    ended = (
        rf"\b(?:{tables['moved']}) (?P<left>\S+(?: \S+){{0,9}}?)(?: to | into |\Z)"
        rf"|\bvon (?P<weg>\S+(?: \S+){{0,5}}?) (?:auf|zu) "
        rf"|\b(?:{'|'.join(tables['instead'])})\b(?P<instead>.*)"
        rf"|\b(?:{'|'.join(tables['lapsed'])})\b(?P<lapsed>.*)|(?:{tables['running']})"
    )
    denial = rf"\b(?:{'|'.join(tables['denial'])})\b"
    return _Denials(re.compile(ended), re.compile(denial), re.compile(tables["running_denial"]))


def turns(text: str) -> bool:
    """Whether a text denies or ends anything (N3)."""
    plain = fold(text[:MAX_CHARS])
    return any(found.search(plain) for found in _denials())


def ended(text: str, says: Says) -> bool:
    """Whether a text says that what was asked for is over (N1).

    Args:
        text: a sentence, an item or a paragraph.
        says: see `Says`.

    Cost: linear, with one `says` a clause or two.
    """
    over, holds = frozenset[str](), frozenset[str]()
    for number, clause in enumerate(_clauses(text)):
        named = _ended_in(clause, says)
        if not named and number and _denials().denial.match(clause):
            named = _denied_in(clause, says)  # "on Mondays, not Tuesdays"
        over, holds = over | named, holds | (says(clause) - named)
    return bool(over - holds)


def denied(text: str, says: Says) -> bool:
    """Whether a text denies what was asked for (N2). Arguments and cost as of `ended`."""
    over, holds = frozenset[str](), frozenset[str]()
    for clause in _clauses(text):
        named = _denied_in(clause, says)
        over, holds = over | named, holds | (says(clause) - named)
    return bool(over - holds)


def _clauses(text: str) -> list[str]:
    """The clauses of a text, each between single spaces; of a very long one its pieces."""
    clauses = (" ".join(clause.split()) for clause in _CLAUSE.split(fold(text[:MAX_CHARS])))
    return [
        clause[start : start + _CLAUSE_CHARS]
        for clause in clauses
        for start in range(0, len(clause), _CLAUSE_CHARS)
    ]


def _ended_in(clause: str, says: Says) -> frozenset[str]:
    """Which words a clause says are over (N1)."""
    found = _denials().ended.search(clause)
    if found is None:
        return frozenset()
    part = next((part for part in found.groups() if part is not None), None)
    named = frozenset[str]() if part is None else says(part)
    return says(clause) if not named and found.lastgroup in {None, "lapsed"} else named


def _denied_in(clause: str, says: Says) -> frozenset[str]:
    """Which words a clause denies (N2)."""
    is_denied = _denials().running.search(clause) is not None
    if is_denied or is_running(clause[:1]):
        return says(clause) if is_denied else frozenset()
    named = frozenset[str]()
    for found in _denials().denial.finditer(clause):
        behind = (word[0] for word in _WORD.finditer(clause, found.end()))
        for _, word in zip(range(_NEXT_WORDS), behind, strict=False):
            if word not in STOP_WORDS:
                named |= says(word)
                break
    return named
