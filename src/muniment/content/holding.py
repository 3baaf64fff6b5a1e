"""Whether an entry holds a fact: what was asked to be remembered stands there, and still says it. Pure.

H1 All words of the fact stand in the text one after the other, with nothing between them. Numbers, signs,
   words with a capital and words of other scripts are the same; a small word of a to z may be inflected.
H2 Left out of the comparison: case and compatibility forms, white space and line breaks, list markers, marks
   of emphasis, quotation marks and common punctuation, articles, and a leading "the user", "user", "I" or
   "we", where no other subject stands in its place.
H3 The sentence around them denies nothing that the fact does not deny.
H4 A fact that is a list of items may stand in several texts, each item by H1 to H3.

In doubt a text does not hold it: then code files the fact verbatim, which loses nothing. Attacked by
`tests/content/test_holding.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muniment.policy.grammar import normalised

MAX_PLACES: Final = 8
"""Places of a text that are looked at more closely: a text that says half of a fact more often is odd."""

SENTENCE_CHARS: Final = 1_000
"""Characters before and after a fact in which its sentence is looked at."""

_MARKER: Final = re.compile(r"^[ \t]*(?:[-*+>]|#{1,6}|\d{1,9}[.)])[ \t]+", re.MULTILINE)
_ITEM: Final = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_EMPHASIS: Final = re.compile(r"(?<![\w*_])(\*{1,3}|_{1,3})(?=[^\s*_])([^*_\n]+)(?<=[^\s*_])\1(?![\w*_])")
_TOKEN: Final = re.compile(
    r"(?<![\w.)\]])[-\u2212+](?=\w)|\d+(?:[.,:]\d+)+|\w+(?:['\u2019]\w+)*"
    r"|[^\w\s.,;:!()\[\]{}\"'`\u2018-\u201f\u00ab\u00bb\u2010-\u2015\u2026\u3001\u3002\uff0c-]"
)
_ARTICLES: Final = frozenset({"a", "an", "the", "An", "The"})  # But not "Plan A".
_HIDDEN: Final = re.compile(r"<!--.*?(?:-->|\Z)|~~[^~\n]*~~", re.DOTALL)
MAX_ITEMS: Final = 64
"""Items of a list that may stand in several texts; of a longer one code makes one text."""

_SUBJECTS: Final = frozenset({"user", "i", "I", "we"})
_SMALL: Final = re.compile(r"[a-z]{2,}(?:'s)?")
_ENDINGS: Final = ("'s", "ies", "ied", "es", "ed", "ing", "s", "e", "y")
_MIN_STEM: Final = 3
_SENTENCE_END: Final = re.compile(r"[.!?;\u3002\uff01\uff1f](?=\s|\Z)|\n[ \t]*+\n")
_DENIAL: Final = re.compile(
    r"\b(?:not|no|never|none|nor|neither|without|cannot|\w+n['\u2019]?t|false(?:ly)?|untrue|wrong(?:ly)?|incorrect"
    r"|nicht|kein\w*|nie|niemals|ohne|falsch|pas|jamais|sans|faux|nunca|jam\u00e1s|sin|non|mai|senza"
    r"|n\u00e3o|sem|niet|geen|nooit|\u043d\u0435|\u043d\u0435\u0442|\u043d\u0438\u043a\u043e\u0433\u0434\u0430)\b"
    r"|[\u4e0d\u6ca1\u6c92\u7121\u65e0\u975e]|\u306a\u3044|\u307e\u305b\u3093"
)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a text, as it is compared.

    Attributes:
        stem: its form without an inflection, the same for all forms of a word.
        is_exact: whether no other form will do.
    """

    text: str
    stem: str
    is_exact: bool
    start: int
    end: int


def holds(texts: Sequence[str], fact: str) -> bool:
    """Whether `fact` stands in one of `texts`, or each item of a list in any of them.

    Args:
        texts: bodies of entries, without front matter.
        fact: what was to be remembered.

    Cost: linear in both, but for `MAX_PLACES` times the fact.
    """
    readable = [_Readable(text) for text in texts]
    return any(each.holds(fact) for each in readable) or (
        len(items := _items(fact)) > 1 and all(any(each.holds(item) for each in readable) for item in items)
    )


class _Readable:
    """A text that facts are looked for in."""

    def __init__(self, text: str) -> None:
        self._text = _plain(text)
        self._words = _words(self._text)
        self._stems = _joined(self._words)

    def holds(self, fact: str) -> bool:
        plain = _plain(fact)
        words = _words(plain)
        wanted = words[1:] if len(words) > 1 and words[0].text in _SUBJECTS else words
        if not wanted:
            return " ".join(plain.split()) in " ".join(self._text.split())
        is_denial = _DENIAL.search(plain.casefold()) is not None
        sought, at, number, counted = _joined(wanted), -1, 0, 0
        for _ in range(MAX_PLACES):
            at = self._stems.find(sought, at + 1)
            if at < 0:
                return False
            number += self._stems.count("\0", counted, at)
            counted = at
            found = self._words[number : number + len(wanted)]
            before, after = self._around(found[0].start, found[-1].end)
            is_same = all(
                one.text == other.text or not one.is_exact for one, other in zip(wanted, found, strict=True)
            )
            is_of_another = len(wanted) < len(words) and _other_subjects(before)
            is_denied = not is_denial and _DENIAL.search(f"{before}\n{after}".casefold())
            if is_same and not is_of_another and not is_denied:
                return True
        return False

    def _around(self, start: int, end: int) -> tuple[str, str]:
        """What stands before and after a stretch of the text in its sentence."""
        before = self._text[max(0, start - SENTENCE_CHARS) : start]
        after = self._text[end : end + SENTENCE_CHARS]
        begin = max((each.end() for each in _SENTENCE_END.finditer(before)), default=0)
        ending = _SENTENCE_END.search(after)
        return before[begin:], after[: ending.start() if ending else None]


def _other_subjects(before: str) -> set[str]:
    """What may be spoken of instead of the user, in what stands before a fact in its sentence."""
    line = {each.text for each in _words(before.rpartition("\n")[2])}
    # With a subject of its own a line begins anew, whatever the one above says.
    return (line or {each.text for each in _words(before)}) - _SUBJECTS


def _items(fact: str) -> list[str]:
    """The items of a flat list, where the fact is nothing else; else nothing."""
    lines = [line for line in fact.splitlines() if line.strip()]
    return list(dict.fromkeys(lines)) if len(lines) <= MAX_ITEMS and all(map(_ITEM.match, lines)) else []


def _plain(text: str) -> str:
    """`text` without compatibility forms, markup and what is struck out or commented out (H2)."""
    text = _HIDDEN.sub(" ", text.replace("\0", " "))
    return _EMPHASIS.sub(r"\2", _MARKER.sub("\n", normalised("NFKC", text)))


def _words(plain: str) -> list[_Word]:
    found: list[_Word] = []
    for each in _TOKEN.finditer(plain):
        said = each[0].replace("\u2019", "'").replace("\u2212", "-")
        folded = said.casefold()
        if said in _ARTICLES:
            continue
        is_small = _SMALL.fullmatch(said) is not None
        stem = _stem(folded) if _SMALL.fullmatch(folded) else folded
        text = said if len(said) == 1 else folded  # `-d` is not `-D`.
        found.append(_Word(text, stem, not is_small, each.start(), each.end()))
    return found


def _stem(word: str) -> str:
    """`word` without the endings of English, for as long as enough of it is left."""
    for _ in range(2):
        ending = next((each for each in _ENDINGS if word.endswith(each)), "")
        if len(word) - len(ending) >= _MIN_STEM:
            word = word.removesuffix(ending)
    return word


def _joined(words: Sequence[_Word]) -> str:
    """The stems between marks that no text holds."""
    return "\0".join(["", *(word.stem for word in words), ""])
