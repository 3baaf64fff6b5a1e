"""Compare texts sentence by sentence: find the words of one text in another, in any format.

A text is read as sentences, and a sentence as words. Two words are equal if they differ only in ways that a
formatter, an editor or a spelling corrector causes:

- K1. These do not count: case, accents, compatibility forms, invisible characters, apostrophes, hyphens,
  emphasis, escapes, entities, quotation marks, and all other punctuation. White space, line ends, a byte
  order mark, list markers, task boxes, heading markers, block quotes and table pipes do not count either.
- K2. A word of three or more letters from a to z is reduced to its first letter and the set of its other
  consonants. A spelling corrector seldom changes these. Digits, number words, shorter words, and words of
  other scripts are compared exactly. In scripts without spaces each character is a word.
- K3. Some words are compared, but if they are new, they do not count as written by a person: words of an
  address, a link target, a tag, a keyword such as `$Id$`, or the language of a code block
  (`ComparedWord.is_counted`); and words of one or two letters from a to z next to known words, except `no`
  (`ComparedWord.is_small`).
- K4. A sentence ends at its punctuation or at the end of its line, if that is earlier.

A gram is a sequence of adjacent words. `list_known_grams` returns the grams that are stored for a text with a
known author. `compare_sentences` finds these grams in another text. Both ignore where sentences and lines
end, with one exception: the first and the last gram of a sentence show whether the complete sentence still
exists.

Cost: linear in the text.
"""

from __future__ import annotations

import codecs
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from muniment.content.entry import Entry, parse
from muniment.content.expressions import compile_when_used
from muniment.content.titles import derive_titles, read_current_titles
from muniment.content.words import is_unspaced, split_words
from muniment.kernel.names import RelPath
from muniment.kernel.normal_forms import normalise

MAX_WORDS: Final = 70_000
"""Maximum number of words of a text that are compared: no entry of 128 KiB has as many."""

MAX_KNOWN_PER_NEW_WORD: Final = 15
"""Maximum number of known words of a sentence that get the author of one new word in it."""

MIN_SENTENCE_WORDS: Final = 3
"""Minimum number of words of a sentence that is recognized alone in another text or inside a sentence."""

Gram = tuple[str, ...]
"""Keys of adjacent words after a mark: one of the marks below, which is empty inside a text."""

_INSIDE, _FIRST, _LAST, _WHOLE, _BODY = "", "^", "$", "^$", "="

_BYTE_ORDER_MARKS: Final = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SENTENCE_END: Final = compile_when_used(
    "(?<=[.!?\u2026\u061f\u0964])[\"')\\]\u201d\u2019\u00bb*_`~]*\\s+|(?<=[\u3002\uff01\uff1f])"
)
_MARKERS: Final = compile_when_used(
    r"[\s>|]*(?:(?:\\?[-*+\u2022]|[0-9]{1,9}\\?[.)]|\\?#{1,6})[ \t]+)*(?:\\?\[[ xX/-]\\?\][ \t]+)?"
)
_TOOL_LINE: Final = compile_when_used(r"[\s>|]*(?:```|~~~|:::|\[![A-Za-z]+\][+-]?\s*$)|[<=>|]{7}(?:\s|$)")
"""A line of a code block, a callout, or a conflict marker of git."""
_IGNORED: Final = compile_when_used(
    "[*_~`=\\\\'\u2018\u2019\u201b\u2032\u2010-\u2015\u2212\ufe63\uff0d\u00ad\u200b-\u200f\u2028-\u202e"
    "\x00-\x08\x0e-\x1f\x7f\u2060-\u2069\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f-]"
)
_NOT_COUNTED: Final = compile_when_used(
    r"""
    \[\[[^\[\]\n]{0,300}\]\]                    # a link of a wiki
    | \]\([^()\s]{0,2000}(?:\s+"[^"\n]{0,300}")?\)  # the target of a link
    | \[\^[^\]\s]{1,50}\]                       # a footnote
    | ^\s*\[[^\]\n]{1,300}\]:\s*\S+             # the target of a reference
    | <!--.{0,200}?--> | </?[A-Za-z][^<>\n]{0,500}>
    | \b[A-Za-z][A-Za-z0-9+.-]{1,20}://\S+ | \bwww\.\S+ | \bmailto:\S+
    | \$[A-Z][A-Za-z]{1,20}(?::[^$\n]{0,200})?\$  # what git or another tool fills in
    | (?<=\s)\^[A-Za-z0-9-]{1,40}\s*$           # the name of a block
    | ^\s*muniment:\s*\{.{0,4000}\}\s*$         # what Muniment writes of an entry
    """,
    re.VERBOSE,
)
_PLAIN_TAG: Final = compile_when_used(
    r"</?(?:br|p|b|i|em|strong|u|s|del|ins|mark|code|kbd|sub|sup|span|div|pre|blockquote|[uo]l|li|h[1-6r]|"
    r"table|thead|tbody|t[rdh])[ ]?/?>",
    re.IGNORECASE,
)
_NUMBERS: Final = """
zero none one two four five nine seven eight three six ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million
"""
_NUMBER_WORDS: Final = frozenset(_NUMBERS.split())
_MIN_LETTERS: Final = 3
_LETTERS_PER_ERROR: Final = 5
_MAX_RESPELLED: Final = 120
_VOWELS: Final = frozenset("aeiouyhw")
_PUNCTUATION: Final = compile_when_used(r"[\s!-/:-@\[-`{-~\u2010-\u2027\u2022]+")


class ComparedWord(NamedTuple):
    """A word of a text in the form that is compared.

    Attributes:
        key: a key that is the same for words that count as equal.
        text: the word, folded.
        is_counted: whether the word, if it is new, counts as written by the author of the text; False for
            example for words of a web address.
    """

    key: str
    text: str
    is_counted: bool

    @property
    def is_small(self) -> bool:
        """Return whether the word has one or two letters from a to z, and is not `no`.

        Next to known words, such a word does not count as written by a person.
        """
        return len(self.key) < _MIN_LETTERS and self.key.isascii() and self.key.isalpha() and self.key != "no"


class Sentence(NamedTuple):
    """A sentence, or the part of a sentence that is on one line.

    Attributes:
        text: the sentence as in the file, without the markers of its line.
        words: the words of the sentence, at least one.
    """

    text: str
    words: tuple[ComparedWord, ...]

    @property
    def is_counted(self) -> bool:
        """Return whether any word of the sentence counts as written by the author of the text."""
        return any(word.is_counted for word in self.words)


@dataclass(frozen=True, slots=True)
class ComparedText:
    """An entry in the form that is compared.

    Attributes:
        body: the sentences of the body in order.
        titles: the sentences of the name, the description and the longer keywords, unless code derived them
            from the body.
        front: the text of the front matter, which becomes a part of the body if an edit breaks it.
        is_whole: whether the entry has at most `MAX_WORDS` words; further words are left out.
    """

    body: tuple[Sentence, ...]
    titles: tuple[Sentence, ...]
    front: str
    is_whole: bool

    @property
    def body_gram(self) -> Gram:
        """Return the words of the complete body as one gram."""
        return (_BODY, *_list_keys(self.body))


class SentenceMatch(NamedTuple):
    """The result of comparing a sentence with known texts.

    Attributes:
        known: for each word of the sentence, the smallest value of the known grams (sequences of words) that
            contain it; None: the word is new.
        is_intact: whether the sentence contains a complete known sentence of `MIN_SENTENCE_WORDS` words or
            more.
    """

    known: tuple[GramValue | None, ...]
    is_intact: bool


GramValue = tuple[int, int]
"""A pair of numbers that the caller stores for a gram (a sequence of adjacent words)."""

FindGrams = Callable[[Collection[Gram]], Mapping[Gram, GramValue]]
"""Function that returns the values of those grams (sequences of words) that are known."""


def decode_text(data: bytes) -> str:
    """Return the text of a file, even if an editor saved it in UTF-16 or in a Windows code page."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def read_text(data: bytes, rel: RelPath) -> ComparedText:
    """Return the sentences of an entry, at most `MAX_WORDS` words of them.

    Args:
        data: the file of the entry.
        rel: the path of the file inside its scope.
    """
    entry = parse(decode_text(data))
    body, is_whole = _take_words(MAX_WORDS, read_sentences(entry.body))
    titles, has_all_titles = _take_words(
        MAX_WORDS, chain.from_iterable(map(read_sentences, _list_chosen_titles(entry, rel)))
    )
    front = entry.text[: len(entry.text) - len(entry.body)]
    return ComparedText(body, titles, front, is_whole and has_all_titles)


def read_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text, each with its words in the form that is compared."""
    for line in text.splitlines():
        rest = line[_MARKERS.match(line).end() :]  # type: ignore[union-attr]  # It matches anything.
        counts = _TOOL_LINE.match(line) is None
        for part in _SENTENCE_END.split(rest):
            if words := tuple(_read_words(part, counts=counts)):
                yield Sentence(part.strip(), words)


def list_known_grams(text: ComparedText, size: int) -> Iterator[Gram]:
    """Yield the grams (sequences of words) to store for a text, so that other texts can be compared with it.

    Args:
        text: a text of a known author.
        size: the number of words of a gram; must be the same for `compare_sentences`.
    """
    if len(text.body_gram) > MIN_SENTENCE_WORDS:
        yield text.body_gram
    for sentences in (text.body, text.titles):
        keys = _list_keys(sentences)
        yield from ((_INSIDE, *keys[index : index + size]) for index in range(len(keys) - size + 1))
    for sentence in text.body:
        keys = _list_keys([sentence])
        if len(keys) >= size:
            yield (_FIRST, *keys[:size])
            yield (_LAST, *keys[-size:])
        elif len(keys) >= MIN_SENTENCE_WORDS:
            yield (_WHOLE, *keys)


def list_short_grams(text: ComparedText, size: int) -> Iterator[Gram]:
    """Yield additional grams (sequences of words) to compare a text with later versions of its file.

    They are the grams of up to `size` words, for short sentences, and the grams of the front matter.

    Args:
        text: a text of a known author.
        size: the number of words of a gram; must be the same for `compare_sentences`.
    """
    yield text.body_gram
    for sentences in (text.body, text.titles, tuple(read_sentences(text.front))):
        keys = _list_keys(sentences)
        for length in range(1, size + 1):
            yield from ((_INSIDE, *keys[index : index + length]) for index in range(len(keys) - length + 1))


def compare_sentences(
    sentences: Sequence[Sentence], size: int, find: FindGrams, *, match_short: bool
) -> list[SentenceMatch]:
    """Return for each sentence which of its words are known.

    Args:
        sentences: consecutive sentences of one text.
        size: the number of words of the stored grams (sequences of words).
        find: returns the values of the grams that are known; called a second time only if it found some.
        match_short: whether a sentence of fewer than `size` words is known if `list_short_grams` has its
            gram.
    """
    keys, spans = _list_keys(sentences), list(_list_spans(sentences))
    windows = {position: keys[position : position + size] for position in range(len(keys) - size + 1)}
    small = {
        (start, end): (_INSIDE if match_short else _WHOLE, *keys[start:end])
        for start, end in spans
        if end - start < size and (match_short or end - start >= MIN_SENTENCE_WORDS)
    }
    found = find({*((_INSIDE, *window) for window in windows.values()), *small.values()})
    known: list[GramValue | None] = [None] * len(keys)
    covered = [
        ((position, position + size), found.get((_INSIDE, *window))) for position, window in windows.items()
    ]
    for (start, end), value in (*covered, *((span, found.get(gram)) for span, gram in small.items())):
        for position in range(start, end) if value else ():
            known[position] = min(filter(None, (known[position], value)))
    ends = _find_intact_ends(
        {position: windows[position] for (position, _), value in covered if value}, size, find
    )
    return [
        SentenceMatch(
            tuple(known[start:end]), any(ends.get(position, end + 1) <= end for position in range(start, end))
        )
        for start, end in spans
    ]


def _find_intact_ends(windows: Mapping[int, Gram], size: int, find: FindGrams) -> dict[int, int]:
    """Return the end of each complete known sentence, by its start; the shortest sentence counts.

    Args:
        windows: the known windows of words, by their start.
        size: the number of words of a window.
        find: as in `compare_sentences`.
    """
    found = find({(mark, *window) for window in windows.values() for mark in (_FIRST, _LAST)})
    ends: dict[int, int] = {}
    nearest: int | None = None
    for position in sorted(windows, reverse=True):
        if position + 1 not in windows:
            nearest = None
        if (_LAST, *windows[position]) in found:
            nearest = position + size
        if nearest is not None and (_FIRST, *windows[position]) in found:
            ends[position] = nearest
    return ends


def find_known_words(known: Sequence[ComparedWord], words: Sequence[ComparedWord]) -> set[int]:
    """Return the positions in `words` that `known` has in the same order, in any spelling.

    Args:
        known: the words of the most similar part of a known text.
        words: the words of a sentence.
    """
    keys = [each.key for each in known], [each.key for each in words]
    old: set[int] = set()
    for kind, start, end, position, to in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and _has_respelled(known[start:end], words[position:to])):
            old.update(range(position, to))
    return old


def is_respelled(some: Sequence[ComparedWord], others: Sequence[ComparedWord]) -> bool:
    """Return whether two texts differ only in a few letters or word borders, and in no number."""
    if _list_numbers(some) != _list_numbers(others):
        return False
    one, other = ("".join(each.text for each in words) for words in (some, others))
    size, longest = sorted((len(one), len(other)))
    allowed = max(1, size // _LETTERS_PER_ERROR)
    if longest > _MAX_RESPELLED or longest - size > allowed:
        return False
    is_near = (Counter(one) - Counter(other)).total() <= allowed  # Otherwise their order does not matter.
    return is_near and _compute_edit_distance(one, other) <= allowed


def _has_respelled(some: Sequence[ComparedWord], words: Sequence[ComparedWord]) -> bool:
    """Return whether `words` are another spelling of the start or the end of `some`."""
    sizes = range(max(1, len(words) - 2), min(len(some), len(words) + 2) + 1)
    return any(is_respelled(part, words) for size in sizes for part in (some[:size], some[-size:]))


def _list_numbers(words: Iterable[ComparedWord]) -> list[str]:
    return [each.text for each in words if each.text in _NUMBER_WORDS or any(map(str.isdigit, each.text))]


def _compute_edit_distance(one: str, other: str) -> int:
    """Return how many letters were added, removed, replaced or exchanged with the next letter."""
    above: list[int] = []
    row = list(range(len(other) + 1))
    for index, letter in enumerate(one, 1):
        previous_row, above, row = above, row, [index]
        for to, other_letter in enumerate(other, 1):
            cost = min(row[-1] + 1, above[to] + 1, above[to - 1] + (letter != other_letter))
            if index > 1 and to > 1 and (letter, other_letter) == (other[to - 2], one[index - 2]):
                cost = min(cost, previous_row[to - 2] + 1)
            row.append(cost)
    return row[-1]


def _list_spans(sentences: Iterable[Sentence]) -> Iterator[tuple[int, int]]:
    start = 0
    for sentence in sentences:
        yield start, start + len(sentence.words)
        start += len(sentence.words)


def _list_keys(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    return tuple(word.key for sentence in sentences for word in sentence.words)


def _take_words(limit: int, sentences: Iterable[Sentence]) -> tuple[tuple[Sentence, ...], bool]:
    """Return the first sentences with at most `limit` words together, and whether they are all sentences."""
    taken: list[Sentence] = []
    for sentence in sentences:
        limit -= len(sentence.words)
        if limit < 0:
            return tuple(taken), False
        taken.append(sentence)
    return tuple(taken), True


def _list_chosen_titles(entry: Entry, rel: RelPath) -> Iterator[str]:
    """Yield the titles and longer keywords of the front matter that code did not derive from the body."""
    titles, made = read_current_titles(entry, rel), derive_titles(entry.body)
    if entry.name is not None and titles.name != made.name:
        yield titles.name
    if entry.description is not None and titles.description != made.description:
        yield titles.description
    yield from (each for each in entry.keywords if len(list(split_words(each))) >= MIN_SENTENCE_WORDS)


def _read_words(text: str, *, counts: bool) -> Iterator[ComparedWord]:
    plain = _PLAIN_TAG.sub(" ", text) if "<" in text else text
    plain = html.unescape(plain) if "&" in plain else plain
    position, is_any = 0, False
    for part, is_counted in _split_counted_parts(plain, counts):
        position += len(part)
        for word in split_words(_IGNORED.sub("", normalise("NFKC", part))):
            is_any = True
            if word.isascii() or not is_unspaced(word):
                yield _build_word(word, is_counted)
            else:
                yield from (ComparedWord(char, char, is_counted) for char in word)
    if not is_any and (signs := _PUNCTUATION.sub("", _IGNORED.sub("", plain))):
        key = f"\1{normalise('NFKC', signs)}"
        yield ComparedWord(key, key, counts)


def _split_counted_parts(text: str, counts: bool) -> Iterator[tuple[str, bool]]:  # noqa: FBT001  passed on
    """Yield the parts of a text, each with whether its new words count as written by a person."""
    position = 0
    for match in _NOT_COUNTED.finditer(text) if counts else ():
        yield text[position : match.start()], True
        yield match[0], False
        position = match.end()
    yield text[position:], counts


@lru_cache(maxsize=1 << 14)
def _build_word(word: str, counts: bool) -> ComparedWord:  # noqa: FBT001  passed on
    return ComparedWord(_build_spelling_key(word), word, counts)


def _build_spelling_key(word: str) -> str:
    """Return a key that is equal for words that differ only in their spelling."""
    if not word.isascii():
        bare = "".join(char for char in normalise("NFKD", word) if not unicodedata.combining(char))
        word = bare if bare.isascii() else word
    if not (word.isascii() and word.isalpha()) or len(word) < _MIN_LETTERS or word in _NUMBER_WORDS:
        return word
    return f"{word[0]}.{''.join(sorted({*word[1:].replace('z', 's')} - _VOWELS))}"
