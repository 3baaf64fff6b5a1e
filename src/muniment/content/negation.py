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
from typing import Final

from muniment.content.words import STOP_WORDS, is_running
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

_MOVED: Final = r"(?:switch|mov|chang|migrat|upgrad|convert|go|went)\w*(?: \S+){0,3}? (?:away )?from"
_INSTEAD: Final = (
    # What stands behind it is over, and what stands before it holds.
    r"instead of|rather than|replaces|replaced(?! by| with)",
    r"anstatt|statt|anstelle (?:von|der|des)",
    r"au lieu d[e']|plut\u00f4t que",
    r"en vez de|en lugar de|em vez de|no lugar de",
    r"invece d[i']|al posto d[i']",
    r"in plaats van|zamiast|\u0432\u043c\u0435\u0441\u0442\u043e|i st\u00e4llet f\u00f6r|i stedet for",
)
_LAPSED: Final = (
    # What stands behind it is over, or else its whole clause.
    r"no longer|stopped|used to|formerly|previously|any ?more",
    r"nicht mehr|keine?[nmrs]? .{0,60}mehr|fr\u00fcher",
    r"ne plus|ne .{0,60} plus|n'.{0,60} plus|plus d[e']",
    r"ya no|antes|j\u00e1 n\u00e3o|n\u00e3o mais|n\u00e3o .{0,60} mais",
    r"non pi\u00f9|non .{0,60} pi\u00f9|niet meer|vroeger|ju\u017c nie",
    r"\u0431\u043e\u043b\u044c\u0448\u0435 \u043d\u0435|\u0443\u0436\u0435 \u043d\u0435",
    r"inte l\u00e4ngre|ikke l\u00e6ngere|ikke lenger",
    r"art\u0131k .{0,60}(?:de\u011fil|m[\u0131iu\u00fc]yor\w*|m[ae]z)|yerine",
)
_RUNNING: Final = (
    "\u4e0d\u518d|\u4ee3\u66ff|\u800c\u4e0d\u662f|\u3082\u3046.{0,40}?(?:\u306a\u3044|\u307e\u305b\u3093)"
    "|\u4ee3\u308f\u308a\u306b|\u3067\u306f\u306a\u304f|\ub354 \uc774\uc0c1|\ub300\uc2e0"
    "|\u0644\u0645 \u064a\u0639\u062f|\u0628\u062f\u0644\u0627 \u0645\u0646"
)
_ENDED: Final = re.compile(
    rf"\b(?:{_MOVED}) (?P<left>\S+(?: \S+){{0,9}}?)(?: to | into |\Z)"
    rf"|\bvon (?P<weg>\S+(?: \S+){{0,5}}?) (?:auf|zu) "
    rf"|\b(?:{'|'.join(_INSTEAD)})\b(?P<instead>.*)"
    rf"|\b(?:{'|'.join(_LAPSED)})\b(?P<lapsed>.*)|(?:{_RUNNING})"
)
_DENIAL: Final = re.compile(
    r"\b(?:not|no|never|cannot|\w+n['\u2019]t|without|avoid|nicht|keine?[nmrs]?|nie|niemals|ohne|pas|jamais|sans"
    r"|nunca|jam\u00e1s|sin|non|mai|senza|n\u00e3o|sem|niet|geen|nooit|zonder|\u043d\u0435|\u043d\u0435\u0442|\u0431\u0435\u0437"
    r"|\u043d\u0438\u043a\u043e\u0433\u0434\u0430|nie|bez|inte|ikke)\b"
)
_RUNNING_DENIAL: Final = re.compile(
    "[\u4e0d\u6ca1\u6c92\u65e0\u7121\u522b]|\u306a\u3044|\u307e\u305b\u3093|\uc54a|\uc5c6"
)


def turns(text: str) -> bool:
    """Whether a text denies or ends anything (N3)."""
    plain = fold(text[:MAX_CHARS])
    return any(found.search(plain) for found in (_ENDED, _DENIAL, _RUNNING_DENIAL))


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
        if not named and number and _DENIAL.match(clause):
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
    found = _ENDED.search(clause)
    if found is None:
        return frozenset()
    part = next((part for part in found.groups() if part is not None), None)
    named = frozenset[str]() if part is None else says(part)
    return says(clause) if not named and found.lastgroup in {None, "lapsed"} else named


def _denied_in(clause: str, says: Says) -> frozenset[str]:
    """Which words a clause denies (N2)."""
    if is_running(clause[:1]) or _RUNNING_DENIAL.search(clause):
        return says(clause) if _RUNNING_DENIAL.search(clause) else frozenset()
    named = frozenset[str]()
    for found in _DENIAL.finditer(clause):
        behind = (word[0] for word in _WORD.finditer(clause, found.end()))
        for _, word in zip(range(_NEXT_WORDS), behind, strict=False):
            if word not in STOP_WORDS:
                named |= says(word)
                break
    return named
