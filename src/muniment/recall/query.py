"""Extract the significant words of a message for a search; repeated words once. Pure except for the stemmer.

- Q1. A message cannot add syntax to the full-text search: the tokenizer cuts every word.
- Q2. Single characters, stop words and words of small talk (`please`, `谢谢`) are ignored.
- Q3. *Weak* words do not find entries; they only rank entries that other words found. Weak are words of two
  letters, words that occur in any message to a coding agent (`file`), and pairs of Hiragana, which are mostly
  endings.
- Q4. A compound name (`10.42.7.19`, `snake_case`, `src/app.py`) is also searched as a phrase, if one of its
  parts is a number or a word that Q2 does not ignore.
- Q5. *Common* words (`two`, `begin`, `after`) find and rank entries, but do not identify a subject: an entry
  that shares only common words with the message is not about its subject.
- Q6. The time is linear. Of a long message, only the first and the last `_END_CHARS` characters are read. Of
  many words, only the first and the last are used, at most `MAX_WORDS` in total. The question is usually at
  the beginning or at the end, with pasted text between.

Attacked in tests/units/recall/test_query.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final, TypeVar

from muniment.content.gates import drop_invisible
from muniment.content.words import STOP_WORDS
from muniment.files import load_package_tables
from muniment.recall.stems import MAX_CACHED_STEMS, Stemmer, Term
from muniment.store.rows import normalize_for_index

MAX_WORDS: Final = 48
"""Maximum number of words and phrases of a message that are searched; each costs about 10 µs."""

_MIN_CHARS: Final = 2
_WEAK_CHARS: Final = 2
_PAIR: Final = 2
_MAX_PHRASES: Final = 4
_MAX_PHRASE_WORDS: Final = 16
"""Maximum number of words in a phrase; an address, a path or a date with its time has fewer."""

_END_CHARS: Final = 2_000

_Item = TypeVar("_Item")


@cache
def _load_words() -> dict[str, frozenset[str]]:
    """Return the lists of words in `talk.toml`, by name, split as the tokenizer does.

    Cost: reads one file, once per process.
    """
    tables = load_package_tables("muniment.recall", "talk")
    return {name: frozenset(words.replace("'", " ").split()) for name, words in tables.items()}


_SALUTATION: Final = re.compile(r"\bgood (?:morning|afternoon|evening|night|day)\b")
_HIRAGANA: Final = re.compile("[\u3041-\u309f]+")
# Only from the beginning of a word: otherwise a long word is scanned once for each of its letters.
_NAME: Final = re.compile(r"(?<![^\W_])[^\W_]+(?:[._/:@#-]+[^\W_]+)+")
_IS_ONE_NAME: Final = re.compile(r"[0-9._/:@#]")
_SYMBOL: Final = re.compile(r"[^\w\x00-\x7f\u0300-\u036f]")
"""Characters that separate words. These include emoji, which SQLite's older Unicode tables treat as letters.
"""


@dataclass(frozen=True, slots=True)
class Word:
    """A word or phrase of a message that is searched.

    Attributes:
        text: the word without case and accents; the words of a phrase are separated by spaces.
        stem: the stem as in the full-text rows; for a phrase, the stems of its words.
        is_weak: whether the word is only used for ranking (rule Q3 of the module).
        overlaps_previous: whether the word shares a character with the strong word before it. This is true
            for the pairs of characters into which a Chinese or Japanese word is cut.
        is_common: whether the word does not identify a subject alone (rule Q5 of the module).
    """

    text: str
    stem: str
    is_weak: bool = False
    overlaps_previous: bool = False
    is_common: bool = False

    @property
    def is_phrase(self) -> bool:
        """Return whether this is a phrase of several words, not a single word."""
        return " " in self.text


def read_query(text: str, stemmer: Stemmer, *, is_fact: bool = False) -> tuple[Word, ...]:
    """Return the words and phrases to search for a message; at most `MAX_WORDS`, and possibly none.

    Args:
        text: the message; any text.
        stemmer: cuts words and finds stems; the caller closes it.
        is_fact: the text is a fact, not a message: words of small talk are then not ignored, because the fact
            may be about them (`works`).

    Cost: 0.2 ms for a sentence, some milliseconds for a message of any length.
    """
    text = text if is_fact else strip_blocks(text)
    if len(text) > 2 * _END_CHARS:
        text = f"{text[:_END_CHARS]} {text[-_END_CHARS:]}"
    plain = _SALUTATION.sub(" ", normalize_for_index(drop_invisible(text)))
    phrases = tuple(_build_phrases(plain, stemmer))
    single_words = tuple(_build_words(stemmer.split_terms(_SYMBOL.sub(" ", plain)), is_fact=is_fact))
    first, last = _take_ends(single_words, MAX_WORDS - len(phrases))
    if last:
        last = (replace(last[0], overlaps_previous=False), *last[1:])
    return (*phrases, *first, *last)


def strip_blocks(text: str) -> str:
    """Remove the tagged blocks, such as `<context>…</context>`, before the text of a message.

    Return the message unchanged if it has no text except such blocks.

    Cost: linear.
    """
    end = 0
    while block := _BLOCK.match(text, end):
        end = block.end()
    return text[end:] if text[end:].strip() else text


_BLOCK: Final = re.compile(r"\s*<([A-Za-z][\w:-]{0,60})(?:\s[^<>]{0,500})?>(?s:.*?)</\1>")
"""A block of context that a host adds before the user's text, such as `<context>…</context>`."""


def count_units(words: Iterable[Word]) -> int:
    """Return a corrected count of strong words (words that can find entries), to compare matches.

    A phrase counts as two words. Of pairs that share characters with the previous pair, only every second one
    counts.
    """
    count = run = 0
    for word in words:
        run = run + 1 if word.overlaps_previous else 1
        count += 2 if word.is_phrase else run % 2
    return count


def _build_phrases(plain: str, stemmer: Stemmer) -> Iterator[Word]:
    names = dict.fromkeys(name[0] for name in _NAME.finditer(plain) if _IS_ONE_NAME.search(name[0]))
    first, last = _take_ends(tuple(names), _MAX_PHRASES)
    for name in (*first, *last):
        terms = stemmer.split_terms(name)
        if 1 < len(terms) <= _MAX_PHRASE_WORDS and any(map(_is_distinctive, terms)):
            yield Word(" ".join(term.word for term in terms), " ".join(term.stem for term in terms))


def _build_words(terms: Sequence[Term], *, is_fact: bool) -> Iterator[Word]:
    common = _load_words()["common"]
    seen: set[str] = set()
    previous = ""
    for term in terms:
        word, stem = term
        if is_ignored(word, is_fact=is_fact) or stem in seen:
            previous = ""
            continue
        seen.add(stem)
        is_weak = _is_weak(word)
        overlaps_previous = not is_weak and _are_overlapping(previous, word)
        yield Word(
            word,
            stem,
            is_weak=is_weak,
            overlaps_previous=overlaps_previous,
            is_common=bool({word, stem} & common),
        )
        previous = "" if is_weak else word


def _take_ends(items: tuple[_Item, ...], limit: int) -> tuple[tuple[_Item, ...], tuple[_Item, ...]]:
    """Return the first and the last items, `limit` in total; if all fit, return all as the first items."""
    if len(items) <= limit:
        return items, ()
    half = limit // 2
    return items[: limit - half], items[len(items) - half :]


def is_ignored(word: str, *, is_fact: bool = False) -> bool:
    """Return whether a search ignores a word: a single character, a stop word, or a word of small talk.

    Args:
        word: the word, without case and accents.
        is_fact: the word is from a fact; words of small talk are then not ignored.
    """
    return len(word) < _MIN_CHARS or word in STOP_WORDS or (not is_fact and word in _load_words()["talk"])


def _is_distinctive(term: Term) -> bool:
    """Return whether a part of a compound name is significant; the parts of `e.g.` and `and/or` are not."""
    return term.word.isdigit() or not is_ignored(term.word)


@lru_cache(MAX_CACHED_STEMS)
def is_specific(word: str) -> bool:
    """Return whether a word alone can find entries and identify a subject.

    Weak words, common words and numbers cannot.
    """
    return not (is_ignored(word) or _is_weak(word) or word in _load_words()["common"] or word.isdigit())


def _are_overlapping(first: str, second: str) -> bool:
    """Return whether two words are consecutive pairs of characters that share one character."""
    return len(first) == len(second) == _PAIR and first[1] == second[0] and not second.isascii()


def _is_weak(word: str) -> bool:
    """Return whether a word is only used for ranking, because it finds too many entries alone."""
    is_short = len(word) <= _WEAK_CHARS and word.isascii()
    return is_short or word in _load_words()["weak"] or _HIRAGANA.fullmatch(word) is not None
