"""Score how similar a passage is to texts that make agents do harm, with learned weights.

A passage becomes a set of features: its words, and pieces of 3 to 5 characters of each word. Addresses and
digits are replaced first. Each feature listed in `poison_weights.txt` has a weight and a size. The score is
the sum of the weights divided by the length of the vector of sizes: one linear model, in whole numbers.

Separate from `poison.py` because this module scores words only and has no rules.

Guarantees:

- Windows of `WINDOW_WORDS` words of a long passage are scored too, so that harmless words around harmful ones
  do not dilute the score.
- Linear time: each word of a passage is in at most three sets, and has a bounded number of features.

Not guaranteed: that the score is correct. It depends on the training texts: benchmarks/RESULTS.md.

Source: benchmarks/learn_poison.py writes the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from math import sqrt
from typing import Final

from muniment.files import read_package_text

SCALE: Final = 100
"""Score of a passage at the distance 1 from the boundary of the model."""

WINDOW_WORDS: Final = 24
"""Number of words in a window.

A passage with more than twice as many words is also scored in windows, which overlap by half.
"""

MIN_SCORED_BYTES: Final = 24
"""Minimum size of a passage that can score above 0: a title or a key has too few words."""

PIECE_CHARS: Final = (3, 4, 5)
"""Lengths of the pieces of words."""

MAX_WORD_CHARS: Final = 80
"""Maximum number of characters that are split into pieces, for each word between spaces."""

MAX_REASON_WORDS: Final = 3
"""Maximum number of words that a reason lists."""

_WORD_MARK: Final = "§"
_EDGE: Final = "¶"
_HOST: Final = re.compile(
    r"[\w-]+(?:\.[\w-]+)*\.(?:example|test|com|org|net|io|dev|sh|app|cloud|co|ai|invalid|xyz)\b"
)
_DIGITS: Final = re.compile(r"\d+")
_WORD: Final = re.compile(r"\w+")


def split_passage(passage: str) -> set[str]:
    """Return the features of a passage in lower case and without accents: its words and their pieces."""
    return {part for word in _normalize_words(passage) for part in _split_word(word)}


def score_passage(passage: str) -> float:
    """Return the harm score of a passage in lower case and without accents.

    For a long passage, the score is the highest score of the passage and its windows of `WINDOW_WORDS` words.

    Cost: about 0.1 ms for a sentence.
    """
    known = [_weigh_parts(word) for word in _normalize_words(passage)]
    if len(passage.encode()) < MIN_SCORED_BYTES:
        return min(_compute_score(known), 0.0)
    if len(known) <= 2 * WINDOW_WORDS:
        return _compute_score(known)
    step = WINDOW_WORDS // 2
    starts = range(0, len(known) - step, step)
    return max(
        _compute_score(known), *(_compute_score(known[start : start + WINDOW_WORDS]) for start in starts)
    )


def find_heaviest_words(passage: str) -> tuple[str, ...]:
    """Return the words of a passage that raise its harm score most, the most harmful first."""
    words = {
        found[0]: sum(weight for _, _, weight in _weigh_parts(word))
        for word in _normalize_words(passage)
        for found in _WORD.finditer(word)
    }
    ranked = sorted(words, key=lambda word: (-words[word], word))
    return tuple(word for word in ranked if words[word] > 0)[:MAX_REASON_WORDS]


def _normalize_words(passage: str) -> list[str]:
    """Return the words of a passage, split at spaces, with addresses and digits replaced."""
    return [_DIGITS.sub("0", _replace_address(word)) for word in passage.split()]


def _replace_address(word: str) -> str:
    if "://" in word:
        return "zzurl"
    name, sign, host = word[:MAX_WORD_CHARS].strip("`'\"()[]<>,;:!?").partition("@")
    if sign:
        return "zzmail" if "." in host else word
    return "zzurl" if "." in name and _HOST.match(name) else word


def _split_word(word: str) -> Iterator[str]:
    """Yield the features of a string without spaces: its words, and its pieces."""
    yield from (_WORD_MARK + found[0] for found in _WORD.finditer(word))
    edged = f"{_EDGE}{word[:MAX_WORD_CHARS]}{_EDGE}"
    for size in PIECE_CHARS:
        yield from (edged[index : index + size] for index in range(max(1, len(edged) - size + 1)))


@lru_cache(maxsize=1024)
def _weigh_parts(word: str) -> tuple[tuple[str, int, int], ...]:
    """Return the features of a word that the model knows, each as (feature, size, weight)."""
    _, weights = _load_model()
    return tuple((part, *weights[part]) for part in {*_split_word(word)} if part in weights)


def _compute_score(words: list[tuple[tuple[str, int, int], ...]]) -> float:
    base, _ = _load_model()
    known = {each for parts in words for each in parts}
    size = sqrt(sum(size * size for _, size, _ in known))
    return base + (sum(weight for _, _, weight in known) / size if known else 0)


@cache
def _load_model() -> tuple[int, Mapping[str, tuple[int, int]]]:
    """Return the score of an empty passage, and (size, weight) by feature."""
    lines = read_package_text("muniment.content", "poison_weights.txt").splitlines()
    base = 0
    weights: dict[str, tuple[int, int]] = {}
    for line in lines:
        if line.startswith("base "):
            base = int(line.removeprefix("base "))
        elif not line.startswith("#"):
            size, weight, *parts = line.split(" ")
            weights |= dict.fromkeys(parts, (int(size), int(weight)))
    return base, weights
