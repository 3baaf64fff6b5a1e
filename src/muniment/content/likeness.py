"""Which texts say the same, and which say almost the same. Pure.

*Same*: equal once case, compatibility forms, white space and final punctuation are left out (but no mark of a
question). That is the rules' "same fact", and all that code merges by itself.

*Alike*: at least `ALIKE` of the words of both are in both. That is a question to put to somebody, never an
answer: "use tabs here" and "never use tabs here" may be alike. Pairs are found by MinHash with bands and then
compared word by word: what is named is so, and of pairs at the threshold two in ten thousand are overlooked.

Source: Broder, "On the resemblance and containment of documents", 1997; Leskovec, Rajaraman and Ullman,
"Mining of Massive Datasets", 3.4 (bands).
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final

from muniment.content.words import features, folded

ALIKE: Final = 0.8
"""Share of the words of two texts that both have, from which on they are alike (Jaccard)."""

HASHES: Final = 64
BANDS: Final = 16
"""Bands of four hashes: two texts at `ALIKE` agree in one of them with probability 1 - (1 - 0.8^4)^16."""

FINAL_PUNCTUATION: Final = ".!,: \u3002\u0964\u061b\u060c"
"""What makes no other fact. Not `;`, which Greek asks with, and NFKC makes of U+037E."""

_ROWS: Final = HASHES // BANDS
_HASH: Final = struct.Struct(f"<{HASHES}I")


def comparable(text: str) -> str:
    """`text` without what does not tell two facts apart: texts that say the same give the same."""
    whole = " ".join(folded(text).split())
    return whole.rstrip(FINAL_PUNCTUATION) or whole


def alike(texts: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The groups of texts that are alike, each sorted, with the key of every text that belongs to one.

    A group may be a chain, whose ends are not alike. In a crowd of texts that agree in a band each is
    compared with the one before it and with the first alone, so that a thousand texts of one pattern cost no
    million comparisons.

    Args:
        texts: by any key; those without a word are like none.

    Cost: linear, about 0.2 ms for a text of thirty words.
    """
    words = {key: found for key, text in sorted(texts.items()) if (found := features(text))}
    bands: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for key, found in words.items():
        signature = minhash(found)
        for band in range(BANDS):
            bands[band, signature[band * _ROWS : (band + 1) * _ROWS]].append(key)
    groups = _Groups()
    for crowd in bands.values():
        for earlier, later in pairwise(crowd):
            for other in dict.fromkeys((earlier, crowd[0])):
                if groups.are_apart(other, later) and resemblance(words[other], words[later]) >= ALIKE:
                    groups.join(other, later)
    return groups.found()


def minhash(found: frozenset[str]) -> tuple[int, ...]:
    """The signature of a set that is not empty: under each of `HASHES` hash functions its least value."""
    return tuple(map(min, *map(_hashes, found))) if len(found) > 1 else _hashes(*found)


def resemblance(one: frozenset[str], other: frozenset[str]) -> float:
    """The share of what either holds that both hold (Jaccard); 1 for two empty sets."""
    either = len(one | other)
    return len(one & other) / either if either else 1.0


@lru_cache(maxsize=65_536)
def _hashes(word: str) -> tuple[int, ...]:
    return _HASH.unpack(hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(_HASH.size))


class _Groups:
    """Sets of keys that are joined pair by pair (union-find)."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def are_apart(self, one: str, other: str) -> bool:
        return self._top(one) != self._top(other)

    def join(self, one: str, other: str) -> None:
        first, second = sorted((self._top(one), self._top(other)))
        self._above[second] = first

    def found(self) -> list[tuple[str, ...]]:
        members: defaultdict[str, list[str]] = defaultdict(list)
        for key in sorted({*self._above, *self._above.values()}):
            members[self._top(key)].append(key)
        return sorted(map(tuple, members.values()))

    def _top(self, key: str) -> str:
        while (above := self._above.get(key, key)) != key:
            self._above[key] = self._above.get(above, above)
            key = above
        return key
