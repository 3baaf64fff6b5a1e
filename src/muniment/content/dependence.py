"""Guess whether an item of a list depends on another item, so that alone it would mean something else.

Words of all languages are checked together, without detecting the language. In doubt the list stays one text,
which loses no information. Separate from `provenance.py` because trust does not depend on this guess.

Not guaranteed: an item that depends on another item without such a word is not found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from muniment.files import load_package_tables

_WORD: Final = re.compile(r"\w+(?:['\u2019-]\w+)*")
_UNSPACED: Final = "zh_ja"


def has_dependent_item(items: Sequence[str]) -> bool:
    """Return whether any list item contains a word that may refer to another item or to the list.

    Cost: linear in the items, about 5 µs each.
    """
    return any(_is_dependent(item, is_first=not index) for index, item in enumerate(items))


def _is_dependent(item: str, *, is_first: bool) -> bool:
    openers, about_others, list_phrases = (
        _load_phrases(name) for name in ("openers", "references", "list_phrases")
    )
    words = _WORD.findall(item.casefold().replace("\u2019", "'"))
    text = f" {' '.join(words)} "
    if any(f" {cue} " in text for cue in list_phrases) or any(
        cue in item for cue in _load_unspaced_phrases("list_phrases")
    ):
        return True
    is_about_others = not about_others.isdisjoint(words) or any(
        cue in item for cue in _load_unspaced_phrases("references")
    )
    return not is_first and (is_about_others or (bool(words) and words[0] in openers))


@cache
def _load_tables() -> dict[str, dict[str, str]]:
    return load_package_tables("muniment.content", "dependent_items")


@cache
def _load_phrases(name: str) -> frozenset[str]:
    """Return the words of one table for all languages that put spaces between words."""
    lines = (table[name] for language, table in _load_tables().items() if language != _UNSPACED)
    return frozenset(cue.strip() for line in lines for cue in line.split(","))


@cache
def _load_unspaced_phrases(name: str) -> tuple[str, ...]:
    return tuple(cue.strip() for cue in _load_tables()[_UNSPACED][name].split(",") if cue.strip())
