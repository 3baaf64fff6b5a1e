"""Which entries may hold certain words, by the full-text rows of the catalog; who asks reads the files.

An entry that holds all the words (`content.words`) is among those that are named, if its row is up to date
and it is not held; others may be too. Words that the table's tokenizer cuts otherwise narrow nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from muniment.names import RelPath
from muniment.store.catalog import View
from muniment.store.fulltext import folded
from muniment.store.state import State

_FINDABLE: Final = re.compile(
    "[0-9a-z\u00c0-\u024f\u0370-\u0527]+"
    "|[\u1100-\u11ff\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003fffd]+"
)
"""Words that SQLite's tokenizer, whose tables are of Unicode 6.1, and `fulltext` cut as `content.words` does:
those of Latin, Greek and Cyrillic letters, and pairs of Han, kana and Hangul."""

_MAX_WORD_CHARS: Final = 100


def may_hold(state: State, view: View, words: Collection[str]) -> frozenset[RelPath] | None:
    """The entries of a view that may hold all of `words`; None: any may.

    Args:
        state: whose catalog.
        view: of a root, up to date.
        words: as `significant` gives them.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    pieces = {piece for word in words if len(word) <= _MAX_WORD_CHARS for piece in folded(word).split()}
    wanted = sorted(filter(_FINDABLE.fullmatch, pieces))
    if not wanted:
        return None
    rows = state.catalog.rows(
        "SELECT entry.rel FROM text JOIN entry ON entry.id = text.rowid "
        "WHERE text MATCH ? AND entry.root = ?",
        (" ".join(f'"{piece}"' for piece in wanted), view.key),
    )
    return frozenset(RelPath(rel) for (rel,) in rows)
