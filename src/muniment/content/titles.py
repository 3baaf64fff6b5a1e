"""Derive a title, a description and a file name from a text.

`build_slug` returns a valid file name for any text, so that a text cannot make the rule writer request a
denied path.

Attacks on this guarantee are in tests/units/agent/test_rules.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from muniment.content.entry import Entry, Titles, read_titles
from muniment.content.name_words import find_words, is_mark, select_name_words
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath
from muniment.kernel.normal_forms import is_normalised, normalise
from muniment.kernel.path import FILE_SUFFIX, find_segment_problem

TITLES_KEY: Final = "titles"
"""Key in the provenance of an entry for the mark that `build_title_mark` returns."""

NAME_KEY: Final = "named"
"""Key in the provenance of an entry for the mark that `build_name_mark` returns."""

TITLE_CHARS: Final = 80
"""Maximum number of characters of a title: one line of an index."""

DESCRIPTION_CHARS: Final = 120
"""Maximum number of characters of a description: it fits next to the title in a listing."""

_DIGITS: Final = 12

_MAX_READ_CHARS: Final = 2_000
"""Maximum number of characters that are read of a line for a title, and of a text for a description."""

MAX_NAME_WORDS: Final = 5
"""Maximum number of words of a file name that code or a model chooses."""

SLUG_CHARS: Final = 32
"""Maximum number of characters of such a name. With a number (`-9999`) and the suffix it has at most 40."""

_LONG_SLUG_CHARS: Final = 60
_LONG_SLUG_BYTES: Final = 150
"""The limits of earlier versions, whose names are still recognized."""

_MAX_SLUG_SOURCE: Final = 400
"""Maximum number of characters that are searched for the words of a name."""

_RESERVED: Final = """
memory memory-before-muniment index readme
agent agents claude conventions crush copilot-instructions gemini qwen skill warp
bootstrap heartbeat identity iflow jules soul tools user
"""
RESERVED_STEMS: Final = frozenset(_RESERVED.split())
"""Names without suffix of files that the store writes itself, or that other agents load as instructions."""

_USER_PREFIX: Final = re.compile(r"\A(?:the\s+)?user\s+(?=[a-z])", re.IGNORECASE)
_LEAD_IN: Final = re.compile(
    r"\A(?:(?:please\s+)?(?:remember|note)(?:\s+that\b|\s*:)|fyi\s*[:,]?|btw\s*,?)\s+", re.IGNORECASE
)
_MARKER: Final = re.compile(r"\A\s*(?:[-*+>]|\#{1,6}|\d{1,3}[.)]|`{3}\w*)\s+")
_NUMBER: Final = re.compile(r"(?:-[0-9]{1,4}|-[0-9a-f]{8})?")
_SCHEME: Final = re.compile(r"\b(?:https?|ftp)://(?:www\.)?(?=\w)", re.IGNORECASE)
_EMPHASIS: Final = re.compile(
    r"(?<![\w*_`])(\*{1,3}|_{1,3}|`{1,2})(?=[^\s*_`])([^*_`\n]*[^\s*_`])\1(?![\w*_`])"
)
_RANDOM: Final = re.compile(
    r"(?=\S*[0-9])(?=\S*[a-z])(?=\S*[A-Z])\S{8,}|[0-9A-Fa-f-]{32,}|(?=\S*[0-9])(?=\S*[A-Za-z])[0-9A-Za-z]{16,}"
)
"""Words of a title that may be a secret: they are left out of file names."""
_JOINERS: Final = "\u200c\u200d"
_FINAL_PUNCTUATION: Final = " .,;:!?\u2026\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u060c\u061b\u061f\u0964"
_ENDS_WITH_JOINER: Final = _JOINERS + _FINAL_PUNCTUATION


def derive_title(fact: str) -> str:
    """Return a title: the first line of `fact` without markers, emphasis, `the user` and final punctuation.

    The scheme of web addresses (`https://`) is left out, so that viewers do not turn the rest into a link.
    Users can still read the address.
    """
    lines = (
        _strip_emphasis(_strip_marker(line[:_MAX_READ_CHARS]))
        for line in fact[: 4 * _MAX_READ_CHARS].splitlines()
    )
    first = next((line for line in lines if _has_word(line)), clean_title_line(fact[:_MAX_READ_CHARS]))
    first_stripped = first.rstrip(_FINAL_PUNCTUATION)
    plain = _USER_PREFIX.sub("", _LEAD_IN.sub("", first_stripped, count=1), count=1)
    cut = _cut_line(plain or first_stripped or first, TITLE_CHARS).strip(_JOINERS)
    return cut[:1].upper() + cut[1:] if plain != first_stripped else cut or "Note"


def derive_description(fact: str) -> str:
    """Return `fact` on one line, cleaned like a title, with at most `DESCRIPTION_CHARS` characters."""
    return _cut_line(_strip_emphasis(clean_title_line(fact[:_MAX_READ_CHARS])), DESCRIPTION_CHARS)


def derive_titles(body: str) -> Titles:
    """Return the title and description that code derives from the body of an entry."""
    return Titles(derive_title(body.strip()), derive_description(body))


def build_title_mark(titles: Titles, body: str) -> str:
    """Return a mark that records which of two titles code derived from a body.

    For name and description, the mark has a digest if code derived the text, else `-`. If code derived
    neither, the mark is empty. `read_current_titles` reads the mark.

    Args:
        titles: the name and description of the entry.
        body: the body of the entry.
    """
    derived = derive_titles(body)
    if titles.name != derived.name and titles.description != derived.description:
        return ""
    return " ".join(
        _digest(title) if title == derived_title else "-"
        for title, derived_title in ((titles.name, derived.name), (titles.description, derived.description))
    )


def read_current_titles(entry: Entry, rel: RelPath | str) -> Titles:
    """Return the titles of an entry; a title that code derived is derived again from the current body.

    A title that a user or model chose stays. The mark in the entry (`TITLES_KEY`) shows which titles code
    derived. The mark proves nothing: at worst, a chosen title is replaced by a derived one.

    Args:
        entry: the entry.
        rel: the path of its file, for an entry without titles.
    """
    stored = read_titles(entry, rel)
    marks = str((entry.muniment or {}).get(TITLES_KEY, "")).split(" ")
    if len(marks) != len(("name", "description")) or not entry.body.strip():
        return stored
    derived = derive_titles(entry.body)
    return Titles(
        derived.name if marks[0] == _digest(stored.name) else stored.name,
        derived.description if marks[1] == _digest(stored.description) else stored.description,
    )


def build_name_mark(stem: str) -> str:
    """Return a mark that records that no person chose the name of a file.

    Args:
        stem: the name without suffix.
    """
    return _digest(stem)


def is_name_unchosen(entry: Entry, stem: str) -> bool:
    """Return whether an entry has the mark of `build_name_mark` for its present name.

    The mark proves nothing: at worst, a chosen name is replaced.
    """
    return (entry.muniment or {}).get(NAME_KEY) == _digest(stem)


def is_generated_name(text: str, stem: str) -> bool:
    """Return whether code generated a name from a text; the name may end in a number or a digest.

    The names of earlier versions are recognized too: they repeat the title.
    """
    title = derive_title(text)
    return any(
        stem.startswith(generated) and _NUMBER.fullmatch(stem[len(generated) :]) is not None
        for generated in (build_slug(title, text), build_anonymous_slug(text), _build_long_slug(title, text))
    )


def build_slug(title: str, fact: str) -> str:
    """Return a file name without suffix, built from the words of `title` that carry meaning.

    Letters and digits of every script stay, with their marks; other characters are dropped. If no valid name
    remains, for example from emoji, the name is `note-` and eight digits of the SHA-256 of `fact`.
    """
    source = _drop_random_words(title)[:_MAX_SLUG_SOURCE]
    words = select_name_words(source, MAX_NAME_WORDS, SLUG_CHARS)
    return _build_valid_stem([_lower_word(word) for word in words], fact, SLUG_CHARS)


def shorten_name(name: str, fact: str) -> str:
    """Return a file name without suffix for a name that another program or a person chose.

    It has all words of `name`, if they fit the limits; else the words that carry meaning.
    """
    words = find_words(_drop_random_words(name)[:_MAX_SLUG_SOURCE])
    if len(words) > MAX_NAME_WORDS or len("-".join(words)) > SLUG_CHARS:
        return build_slug(name, fact)
    return _build_valid_stem([_lower_word(word) for word in words], fact, SLUG_CHARS)


def build_anonymous_slug(fact: str) -> str:
    """Return a file name without suffix that reveals no words and is the same for the same fact."""
    return f"note-{digest(fact.encode())[:8]}"


def clean_title_line(text: str) -> str:
    """Return `text` on one line without control and format characters; zero-width joiners stay."""
    folded = " ".join(text.split())
    if folded.isprintable():  # Then no character is removed, in any script.
        return folded
    spaced = "".join(" " if char.isspace() else char for char in text)
    remaining = (
        char for char in spaced if char in _JOINERS or unicodedata.category(char) not in {"Cc", "Cf", "Cs"}
    )
    return " ".join("".join(remaining).split())


def _build_long_slug(title: str, fact: str) -> str:
    """Return the name that earlier versions generated."""
    words = [_lower_word(word) for word in find_words(_drop_random_words(title))]
    return _build_valid_stem(words, fact, _LONG_SLUG_CHARS)


def _drop_random_words(title: str) -> str:
    parts = title.split()
    return " ".join(part for part in parts if not _RANDOM.fullmatch(part)) if len(parts) > 1 else title


def _lower_word(word: str) -> str:
    return word.lower() if is_normalised("NFKC", word.lower()) else word


def _build_valid_stem(words: Sequence[str], fact: str, limit: int) -> str:
    """Return words as a valid file name without suffix; without words, return the anonymous name."""
    stem = _cut_stem(normalise("NFKC", "-".join(words)), limit)
    if not stem:
        return build_anonymous_slug(fact)
    if stem.casefold() in RESERVED_STEMS or find_segment_problem(stem + FILE_SUFFIX) is not None:
        stem = f"note-{stem}"
    return stem if find_segment_problem(stem + FILE_SUFFIX) is None else build_anonymous_slug(fact)


def _digest(title: str) -> str:
    return digest(title.encode("utf-8", "surrogatepass"))[:_DIGITS]


def _strip_emphasis(line: str) -> str:
    line = _SCHEME.sub("", line) if "://" in line else line
    return _EMPHASIS.sub(r"\2", line) if any(mark in line for mark in "*_`") else line


def _strip_marker(line: str) -> str:
    return _MARKER.sub("", clean_title_line(line) + " ", count=1).strip().lstrip(_JOINERS)


def _has_word(line: str) -> bool:
    """Return whether a line contains a word."""
    return (line.isascii() and any(map(str.isalnum, line))) or bool(find_words(line))


def _cut_line(line: str, limit: int) -> str:
    """Return at most `limit` characters of `line`, cut between words if possible.

    Otherwise the line is cut between letters, without separating a letter from its marks.
    """
    if len(line) <= limit:
        return line
    part = _cut_to_clusters(line, limit - 1)
    position = part.rfind(" ")
    return (part[:position] if position > limit // 2 else part).rstrip(_ENDS_WITH_JOINER) + "\u2026"


def _cut_stem(stem: str, limit: int) -> str:
    """Return the part of `stem` that fits a file name, cut between words if possible."""
    end = min(limit, len(stem.encode()[:_LONG_SLUG_BYTES].decode(errors="ignore")))
    if len(stem) <= end:
        return stem
    part = _cut_to_clusters(stem, end)
    position = part.rfind("-")
    return (part[:position] if position > len(part) // 2 else part).strip("-")


def _cut_to_clusters(text: str, end: int) -> str:
    """Return `text` up to `end`, or less, so that no letter is separated from its marks."""
    while 0 < end < len(text) and (is_mark(text[end]) or text[end] in _JOINERS or text[end - 1] in _JOINERS):
        end -= 1
    return text[:end]
