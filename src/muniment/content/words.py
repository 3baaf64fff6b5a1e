"""The words of a text as forgetting and comparing see them: folded, whole, in any script. Pure.

- W1. Words are compared in NFKC and casefold. A word is a run of letters, digits and marks; `art` is none in
  `start`, and `snake_case` is two.
- W2. In scripts without spaces (Han, kana, Thai and their like) and in Hangul, where particles are written on
  to words, no word can be told from the next: there a word of a query is a run of at least two characters,
  and is found wherever these stand side by side.
- W3. `significant` leaves out what says nothing by itself: stop words, and words of one character. What is
  left must all be found; what is left out widens nothing but the text that may stand around it.
"""

from __future__ import annotations

import hashlib
import re
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from muniment.kernel.path import fold

# -- words -------------------------------------------------------------------------------------------

_ENGLISH: Final = """
an and are as at be been by for from had has have he her his if in into is it its me my of on or our she so
that the their them these they this those to was we were which who will with would you your
"""
_OTHERS: Final = """
das dem den der des ein eine einem einen einer mit sind und von zum zur
aux avec dans elle est et il la le les ou par pour que qui sont sur un une
con como del el en es esta este las los para por una
che da della delle di gli nel sono
ao do dos em um uma
een het van voor
"""
STOP_WORDS: Final = frozenset(f"{_ENGLISH}{_OTHERS}".split())
"""Words that stand in almost every text, in some large languages: none that negates, and none of two letters
that is a name somewhere, such as `os` and `su`."""

_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_UNPAIRED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese, Khmer: written without spaces, and not cut into pairs for the full-text rows."""

_RUNNING: Final = (
    f"{_UNPAIRED}\u1100-\u11ff\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"
    "\uf900-\ufaff\U00020000-\U0003fffd"
)
_UNPAIRED_RUNS: Final = re.compile(f"[{_UNPAIRED}]+")
_PRIVATE: Final = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
_PARTS: Final = re.compile(f"[{_RUNNING}]+|[^{_RUNNING}]+")
_IS_RUNNING: Final = re.compile(f"[{_RUNNING}]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a text says, for `holds`.

    Attributes:
        words: those that stand by themselves.
        running: runs of the scripts of W2, each between spaces.
    """

    words: frozenset[str]
    running: str

    def holds(self, wanted: Collection[str]) -> bool:
        """Whether every one of these words of a query is in the text; nothing is held by every text."""
        return bool(wanted) and all(
            word in self.running if is_running(word) else word in self.words for word in wanted
        )


def vocabulary(text: str) -> Vocabulary:
    """The words of `text`. Cost: linear."""
    words = set(split_words(text))
    running = {word for word in words if is_running(word)}
    return Vocabulary(frozenset(words - running), " ".join(sorted(running)))


def significant(query: str) -> tuple[str, ...]:
    """The words of a query that say something, each once, in order (W3). Maybe none."""
    return tuple(
        dict.fromkeys(word for word in split_words(query) if len(word) > 1 and word not in STOP_WORDS)
    )


def features(text: str) -> frozenset[str]:
    """What two texts share if they are alike: their words; of the runs of W2 each two characters in turn."""
    found: set[str] = set()
    for word in set(split_words(text)):
        if is_running(word) and len(word) > 1:
            found.update(first + second for first, second in pairwise(word))
        else:
            found.add(word)
    return frozenset(found)


def apart(text: str) -> str:
    """`text` with a space wherever a word ends for us (W1, W2) and not for SQLite's tokenizer.

    That is between letters and scripts without spaces, and at characters of private use, which no word holds.
    Han, kana and Hangul are left to those who cut them into pairs.
    """
    return _PRIVATE.sub(" ", _UNPAIRED_RUNS.sub(r" \g<0> ", text))


def is_running(word: str) -> bool:
    """Whether a word is of a script of W2."""
    return _IS_RUNNING.match(word) is not None


def split_words(text: str) -> Iterator[str]:
    """Yield the words of `text` in order, folded (W1, W2)."""
    plain = fold(text)
    if plain.isascii():
        yield from _ASCII_WORD.findall(plain)
        return
    spaced = "".join(char if is_word_character(char) else " " for char in plain)
    for run in spaced.split():
        yield from _PARTS.findall(run)


@lru_cache(maxsize=4096)
def is_word_character(char: str) -> bool:
    """Whether `char` belongs to a word in its script: letters, digits and the marks upon them."""
    return unicodedata.category(char)[0] in "LMN"


# -- likeness ----------------------------------------------------------------------------------------
#
# Which texts say the same, and which say almost the same. Pure.
#
# *Same*: equal once case, compatibility forms, white space and final punctuation are left out (but no mark
# of a
# question). That is the rules' "same fact", and all that code merges by itself.
#
# *Alike*: at least `ALIKE` of the words of both are in both. That is a question to put to somebody, never
# an
# answer: "use tabs here" and "never use tabs here" may be alike. Pairs are found by MinHash with bands and
# then
# compared word by word: what is named is so, and of pairs at the threshold two in ten thousand are
# overlooked.
#
# Source: Broder, "On the resemblance and containment of documents", 1997; Leskovec, Rajaraman and Ullman,
# "Mining of Massive Datasets", 3.4 (bands).

ALIKE: Final = 0.8
"""Share of the words of two texts that both have, from which on they are alike (Jaccard)."""

HASHES: Final = 64
BANDS: Final = 16
"""Bands of four hashes: two texts at `ALIKE` agree in one of them with probability 1 - (1 - 0.8^4)^16."""

FINAL_PUNCTUATION: Final = ".!,: \u3002\u0964\u061b\u060c"
"""What makes no other fact. Not `;`, which Greek asks with, and NFKC makes of U+037E."""

MAX_ITEMS: Final = 1_000
"""Items of a list that are sayings; those of a longer one are none."""

_ITEM: Final = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])[ \t]+(\S.*)", re.DOTALL)
_EMPHASIS: Final = "*_`~ "
_OPTION: Final = re.compile(r"(?<![\w-])-[A-Z](?!\w)")
_ROWS: Final = HASHES // BANDS
_HASH: Final = struct.Struct(f"<{HASHES}I")


def comparable(text: str) -> str:
    """Return `text` without what does not tell two facts apart: texts that say the same give the same.

    The case of an option of one letter does: `-d` is another one than `-D`.
    """
    whole = " ".join(fold(text).split())
    if options := _OPTION.findall(text):
        whole = f"{' '.join(options)} {whole}"
    return whole.rstrip(FINAL_PUNCTUATION) or whole


def sayings(body: str) -> tuple[str, ...]:
    """What a text says by itself, each as `comparable` has it: the whole, and the items of a bare flat list.

    A line of any other text is none of them: what stands around it may turn its meaning ("Never do any of
    this:").
    """
    lines = [line for line in body.splitlines() if line.strip()]
    items = [match[1] for line in lines if (match := _ITEM.fullmatch(line)) is not None]
    introduces = any(fold(item).rstrip(_EMPHASIS).endswith(":") for item in items)
    is_list = len(items) == len(lines) <= MAX_ITEMS and not introduces
    parts = (body, *items) if is_list else (body,)
    return tuple(dict.fromkeys(said for part in parts if (said := comparable(part))))


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
