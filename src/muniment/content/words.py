"""Split a text into folded words of any script, and compare texts by their words.

- W1. Words are compared in NFKC and casefold. A word is a run of letters, digits and marks: `start` does not
  contain the word `art`, and `snake_case` is two words.
- W2. In scripts without spaces (Han, kana, Thai and similar), words have no visible borders. In Hangul,
  particles are written at the end of words. For these scripts a query word is a run of at least two
  characters. It matches wherever the same characters are adjacent.
- W3. `find_significant_words` drops stop words and words of one character. A match needs all the remaining
  words. A dropped word may be present or missing in the text.
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

from muniment.content.expressions import compile_when_used
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
"""Words that occur in almost every text of some large languages.

Negations are excluded, and so are words of two letters that are also names, such as `os` and `su`.
"""

_ASCII_WORD: Final = compile_when_used("[a-z0-9]+")
_UNPAIRED_SCRIPTS: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese, Khmer: written without spaces, and not split into pairs for the full-text rows."""

_UNSPACED: Final = (
    f"{_UNPAIRED_SCRIPTS}\u1100-\u11ff\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"
    "\uf900-\ufaff\U00020000-\U0003fffd"
)
_UNPAIRED_RUNS: Final = compile_when_used(f"[{_UNPAIRED_SCRIPTS}]+")
_PRIVATE: Final = compile_when_used("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
_PARTS: Final = compile_when_used(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_STARTS_UNSPACED: Final = compile_when_used(f"[{_UNSPACED}]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of a text, prepared for `contains_all`.

    Attributes:
        words: the words of scripts with spaces.
        unspaced: the runs of characters of scripts without spaces, joined by spaces.
    """

    words: frozenset[str]
    unspaced: str

    def contains_all(self, wanted: Collection[str]) -> bool:
        """Return whether the text contains all words of `wanted`; False if `wanted` is empty."""
        return bool(wanted) and all(
            word in self.unspaced if is_unspaced(word) else word in self.words for word in wanted
        )


def build_vocabulary(text: str) -> Vocabulary:
    """Return the words of `text`, prepared for `Vocabulary.contains_all`. Cost: linear."""
    words = set(split_words(text))
    running = {word for word in words if is_unspaced(word)}
    return Vocabulary(frozenset(words - running), " ".join(sorted(running)))


def find_significant_words(query: str) -> tuple[str, ...]:
    """Return the distinct words of a query in order, without stop words and words of one character."""
    return tuple(
        dict.fromkeys(word for word in split_words(query) if len(word) > 1 and word not in STOP_WORDS)
    )


def extract_features(text: str) -> frozenset[str]:
    """Return the words of a text; in scripts without spaces, the pairs of adjacent characters."""
    found: set[str] = set()
    for word in set(split_words(text)):
        if is_unspaced(word) and len(word) > 1:
            found.update(first + second for first, second in pairwise(word))
        else:
            found.add(word)
    return frozenset(found)


def separate_words(text: str) -> str:
    """Insert spaces so that SQLite's tokenizer finds the same words as `split_words`.

    A space is inserted between letters and scripts without spaces, and replaces private-use characters, which
    are never part of a word. Han, kana and Hangul stay unchanged: callers split them into pairs.
    """
    return _PRIVATE.sub(" ", _UNPAIRED_RUNS.sub(r" \g<0> ", text))


def is_unspaced(word: str) -> bool:
    """Return whether a word belongs to a script without spaces, or to Hangul."""
    return _STARTS_UNSPACED.match(word) is not None


def split_words(text: str) -> Iterator[str]:
    """Yield the words of `text` in order, folded: letters, digits and marks in NFKC and casefold."""
    plain = fold(text)
    if plain.isascii():
        yield from _ASCII_WORD.findall(plain)
        return
    spaced = "".join(char if is_word_character(char) else " " for char in plain)
    for run in spaced.split():
        yield from _PARTS.findall(run)


@lru_cache(maxsize=4096)
def is_word_character(char: str) -> bool:
    """Return whether `char` can be part of a word: letters, digits and their combining marks."""
    return unicodedata.category(char)[0] in "LMN"


# -- similarity --------------------------------------------------------------------------------------
#
# Find equal and similar texts.
#
# *Equal*: two texts are the same if case, compatibility forms, white space and final punctuation are ignored
# (a question mark counts). Code merges only equal texts without a decision of the user.
#
# *Similar*: two texts share at least `SIMILARITY_THRESHOLD` of all their words. The user decides about
# similar texts: "use tabs here" and "never use tabs here" may be similar. MinHash with bands finds candidate
# pairs, and a comparison word by word confirms each pair. So every reported pair is correct. Of the pairs at
# the threshold, two in ten thousand are missed.
#
# Source: Broder, "On the resemblance and containment of documents", 1997; Leskovec, Rajaraman and Ullman,
# "Mining of Massive Datasets", 3.4 (bands).

SIMILARITY_THRESHOLD: Final = 0.8
"""Minimum share of common words (Jaccard) of two similar texts."""

HASHES: Final = 64
BANDS: Final = 16
"""Number of bands, with four hashes each.

Two texts at `SIMILARITY_THRESHOLD` agree in one band or more with probability 1 - (1 - 0.8^4)^16.
"""

FINAL_PUNCTUATION: Final = ".!,: \u3002\u0964\u061b\u060c"
"""Final characters that do not change a fact.

`;` is not among them: Greek uses it as a question mark, and NFKC maps U+037E to it.
"""

MAX_LIST_STATEMENTS: Final = 1_000
"""Maximum number of list items that count as separate statements. A longer list counts only as a whole."""

_ITEM: Final = compile_when_used(r"(?:[-*+]|[0-9]{1,9}[.)])[ \t]+(\S.*)", re.DOTALL)
_EMPHASIS: Final = "*_`~ "
_OPTION: Final = compile_when_used(r"(?<![\w-])-[A-Z](?!\w)")
_ROWS: Final = HASHES // BANDS
_HASH: Final = struct.Struct(f"<{HASHES}I")


def build_comparison_key(text: str) -> str:
    """Return a key that is equal for equal facts: it ignores case, white space and final punctuation.

    One-letter options keep their case: `-d` and `-D` differ.
    """
    folded = " ".join(fold(text).split())
    if options := _OPTION.findall(text):
        folded = f"{' '.join(options)} {folded}"
    return folded.rstrip(FINAL_PUNCTUATION) or folded


def list_statements(body: str) -> tuple[str, ...]:
    """Return the comparison keys of an entry's statements: the whole text, and the items of a flat list.

    The items count only if the text contains nothing except the list. Other lines may change the meaning of
    an item ("Never do any of this:").
    """
    lines = [line for line in body.splitlines() if line.strip()]
    items = [match[1] for line in lines if (match := _ITEM.fullmatch(line)) is not None]
    introduces = any(fold(item).rstrip(_EMPHASIS).endswith(":") for item in items)
    is_list = len(items) == len(lines) <= MAX_LIST_STATEMENTS and not introduces
    parts = (body, *items) if is_list else (body,)
    return tuple(dict.fromkeys(key for part in parts if (key := build_comparison_key(part))))


def group_similar(texts: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return groups of similar texts, each as sorted keys. A text without a similar one is in no group.

    A group may be a chain whose ends are not similar. If many texts agree in a band, each is compared only
    with the previous one and the first one. So a thousand texts of one pattern do not need a million
    comparisons.

    Args:
        texts: the texts by any key. Texts without words are not similar to any text.

    Cost: linear, about 0.2 ms for a text of thirty words.
    """
    words = {key: found for key, text in sorted(texts.items()) if (found := extract_features(text))}
    bands: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for key, found in words.items():
        signature = compute_minhash(found)
        for band in range(BANDS):
            bands[band, signature[band * _ROWS : (band + 1) * _ROWS]].append(key)
    groups = _Groups()
    for crowd in bands.values():
        for earlier, later in pairwise(crowd):
            for other in dict.fromkeys((earlier, crowd[0])):
                if (
                    groups.are_separate(other, later)
                    and compute_similarity(words[other], words[later]) >= SIMILARITY_THRESHOLD
                ):
                    groups.join(other, later)
    return groups.list_groups()


def compute_minhash(found: frozenset[str]) -> tuple[int, ...]:
    """Return the MinHash signature of a non-empty set of words: the minimum of each hash function."""
    return tuple(map(min, *map(_hash_word, found))) if len(found) > 1 else _hash_word(*found)


def compute_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets of words; 1 if both are empty."""
    either = len(one | other)
    return len(one & other) / either if either else 1.0


@lru_cache(maxsize=65_536)
def _hash_word(word: str) -> tuple[int, ...]:
    return _HASH.unpack(hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(_HASH.size))


class _Groups:
    """Disjoint sets of keys, joined pair by pair (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def are_separate(self, one: str, other: str) -> bool:
        return self._find_root(one) != self._find_root(other)

    def join(self, one: str, other: str) -> None:
        first, second = sorted((self._find_root(one), self._find_root(other)))
        self._parents[second] = first

    def list_groups(self) -> list[tuple[str, ...]]:
        members: defaultdict[str, list[str]] = defaultdict(list)
        for key in sorted({*self._parents, *self._parents.values()}):
            members[self._find_root(key)].append(key)
        return sorted(map(tuple, members.values()))

    def _find_root(self, key: str) -> str:
        while (parent := self._parents.get(key, key)) != key:
            self._parents[key] = self._parents.get(parent, parent)
            key = parent
        return key
