"""What of an entry is found by its words: the four columns of its full-text row, and how text becomes words.

Pure. A query goes through `folded` as well, so that both sides agree:

- F1. Differences of compatibility and case are gone (NFKC, casefold); the tokenizer of the table,
  `porter unicode61`, then cuts words and takes away accents and endings.
- F2. Irregular verbs of English are one word in all forms: `kept` is `keep`, as `keeps` is by its ending.
- F3. Chinese, Japanese and Korean, which are written without spaces or with few, are cut into every pair of
  neighbouring characters. Two characters or more are found wherever they stand in a text, one is not, unless
  it stands alone. Other scripts without spaces are parted from words of letters that stand beside them.
- F4. Linear time and space, also for text that is made to normalise slowly or into much: no more than
  `MAX_INDEXED_CHARS` characters come out, before pairing, and none is normalised together with more than
  `_PIECE_CHARS` others.

What does not hold: that a word longer than `_PIECE_CHARS` is found whole.

Attacked in tests/store/test_fulltext.py.
Source: UAX #15, 13 (Stream-Safe Text Format), for why long runs of marks must be cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from muniment.content.gates import one_line
from muniment.content.words import apart
from muniment.policy.grammar import FILE_SUFFIX, fold
from muniment.store.irregular import IRREGULAR

MAX_INDEXED_CHARS: Final = 1 << 20
"""Characters of a column: as many as the largest file can hold; only where one folds into many (U+FDFA: into
18) is anything cut."""

_PIECE_CHARS: Final = 256
# As much as fits up to the end of a word; else, within an endless word, as much as fits.
_PIECE: Final = re.compile(rf".{{1,{_PIECE_CHARS}}}(?!\S)|.{{1,{_PIECE_CHARS}}}", re.DOTALL)

_WORD: Final = re.compile(r"(?<![^\W_])[a-z]{3,10}(?![^\W_])")

_CJK: Final = re.compile(
    "["
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"  # Han
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "]+"
)


class Columns(NamedTuple):
    """The full-text row of an entry; see `columns`."""

    name: str
    description: str
    body: str
    context: str


def columns(rel: str, name: str, description: str, body: str, keywords: Sequence[str]) -> Columns:
    """The words of an entry, by where they stand.

    The last column gathers what tells the subject of an entry, however the entry itself is written: the names
    of its folders and file, its keywords, and what its line in the index says.

    Args:
        rel: canonical path inside the scope.
        name: as listed, not cleaned.
        description: likewise.
        body: all behind the front matter.
        keywords: of the front matter.
    """
    context = "\n".join([rel.removesuffix(FILE_SUFFIX), *keywords, one_line(name), one_line(description)])
    return Columns(folded(name), folded(description), folded(body), folded(context))


def folded(text: str) -> str:
    """`text` as it is indexed and as it is asked for (F1 to F3), up to `MAX_INDEXED_CHARS` (F4)."""
    if text.isascii():
        return _WORD.sub(_verb, text[:MAX_INDEXED_CHARS].lower())
    pieces: list[str] = []
    room = MAX_INDEXED_CHARS
    for piece in _PIECE.finditer(text):
        pieces.append(fold(piece[0])[:room])
        room -= len(pieces[-1])
        if not room:
            break
    return _WORD.sub(_verb, _CJK.sub(_in_pairs, apart("".join(pieces))))


def _verb(word: re.Match[str]) -> str:
    """What a word is a form of (F2)."""
    return IRREGULAR.get(word[0], word[0])


def _in_pairs(run: re.Match[str]) -> str:
    """The pairs of a run, apart from each other and from the words beside it."""
    text = run[0]
    return f" {' '.join(map(''.join, pairwise(text))) or text} "
