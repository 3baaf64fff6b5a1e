"""Whether an item of a list may be about another one, so that alone it says nothing, or something else. Pure.

The words of all languages are looked for at once: in doubt a list stays one text, which loses nothing.
Apart from `provenance.py` because no trust hangs on it: it is a guess by words.

What does not hold: that an item is found which leans on another without such a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from muniment.files import shipped_tables

_WORD: Final = re.compile(r"\w+(?:['\u2019-]\w+)*")
_UNSPACED: Final = "zh_ja"


def lean_on_one_another(items: Sequence[str]) -> bool:
    """Whether any item has a word that may mean another one, or the list.

    Cost: linear in the items, some 5 µs each.
    """
    return any(_leans(item, is_first=not at) for at, item in enumerate(items))


def _leans(item: str, *, is_first: bool) -> bool:
    opens, holds, lists = (_cues(name) for name in ("opens", "holds", "lists"))
    words = _WORD.findall(item.casefold().replace("\u2019", "'"))
    text = f" {' '.join(words)} "
    if any(f" {cue} " in text for cue in lists) or any(cue in item for cue in _unspaced("lists")):
        return True
    is_about_others = not holds.isdisjoint(words) or any(cue in item for cue in _unspaced("holds"))
    return not is_first and (is_about_others or (bool(words) and words[0] in opens))


@cache
def _tables() -> dict[str, dict[str, str]]:
    return shipped_tables("muniment.content", "leaning")


@cache
def _cues(name: str) -> frozenset[str]:
    """What stands in the tables of all languages whose words are told apart."""
    lines = (table[name] for language, table in _tables().items() if language != _UNSPACED)
    return frozenset(cue.strip() for line in lines for cue in line.split(","))


@cache
def _unspaced(name: str) -> tuple[str, ...]:
    return tuple(cue.strip() for cue in _tables()[_UNSPACED][name].split(",") if cue.strip())
