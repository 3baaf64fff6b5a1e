"""Derive a title, a description and a file name from a text. Pure.

The file names match the name grammar for any text (`slug`), so that a text cannot make the rule writer
request a denied path.

Attacked in tests/units/agent/test_rules.py.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from muniment.content.entry import Entry, Titled, titled
from muniment.content.words import is_word_character
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath
from muniment.kernel.normal_forms import is_normalised, normalised
from muniment.kernel.path import BLANKS, CONFUSABLES, FILE_SUFFIX, segment_problem

TITLES_KEY: Final = "titles"
"""Key in the provenance of an entry, see `mark_of`."""

TITLE_CHARS: Final = 80
"""Characters of a title: one line of an index."""

DESCRIPTION_CHARS: Final = 120
"""Characters of a description: it fits next to the title in a listing."""

_DIGITS: Final = 12

_LOOKED_AT: Final = 2_000
"""Characters that are read of a line for a title, and of a text for a description."""

SLUG_CHARS: Final = 60
SLUG_BYTES: Final = 150
"""Characters and UTF-8 bytes of a file name without suffixes: short enough to type, far below NAME_MAX."""

_RESERVED: Final = """
memory memory-before-muniment index readme
agent agents claude conventions crush copilot-instructions gemini qwen skill warp
bootstrap heartbeat identity iflow jules soul tools user
"""
RESERVED_STEMS: Final = frozenset(_RESERVED.split())
"""Stems of files that the store writes itself, or that other agents load as instructions."""

_SUBJECT: Final = re.compile(r"\A(?:the\s+)?user\s+(?=[a-z])", re.IGNORECASE)
_LEAD_IN: Final = re.compile(
    r"\A(?:(?:please\s+)?(?:remember|note)(?:\s+that\b|\s*:)|fyi\s*[:,]?|btw\s*,?)\s+", re.IGNORECASE
)
_MARKER: Final = re.compile(r"\A\s*(?:[-*+>]|\#{1,6}|\d{1,3}[.)]|`{3}\w*)\s+")
_SCHEME: Final = re.compile(r"\b(?:https?|ftp)://(?:www\.)?(?=\w)", re.IGNORECASE)
_EMPHASIS: Final = re.compile(
    r"(?<![\w*_`])(\*{1,3}|_{1,3}|`{1,2})(?=[^\s*_`])([^*_`\n]*[^\s*_`])\1(?![\w*_`])"
)
_RANDOM: Final = re.compile(
    r"(?=\S*[0-9])(?=\S*[a-z])(?=\S*[A-Z])\S{8,}|[0-9A-Fa-f-]{32,}|(?=\S*[0-9])(?=\S*[A-Za-z])[0-9A-Za-z]{16,}"
)
"""Words of a title that may be a secret without a rule: they are left out of file names."""
_JOINERS: Final = "\u200c\u200d"
_FINAL_PUNCTUATION: Final = " .,;:!?\u2026\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u060c\u061b\u061f\u0964"
_ENDS_WITH_JOINER: Final = _JOINERS + _FINAL_PUNCTUATION


def title_of(fact: str) -> str:
    """Return a title: the first line of `fact` without markers, emphasis, `the user` and final punctuation.

    The scheme of web addresses is left out: then viewers do not turn the rest into a link, and users can
    still read it.
    """
    lines = (_readable(_bare(line[:_LOOKED_AT])) for line in fact[: 4 * _LOOKED_AT].splitlines())
    first = next((line for line in lines if _says(line)), in_one_line(fact[:_LOOKED_AT]))
    whole = first.rstrip(_FINAL_PUNCTUATION)
    plain = _SUBJECT.sub("", _LEAD_IN.sub("", whole, count=1), count=1)
    cut = _cut(plain or whole or first, TITLE_CHARS).strip(_JOINERS)
    return cut[:1].upper() + cut[1:] if plain != whole else cut or "Note"


def description_of(fact: str) -> str:
    """Return `fact` on one line, cleaned like `title_of`, with at most `DESCRIPTION_CHARS` characters."""
    return _cut(_readable(in_one_line(fact[:_LOOKED_AT])), DESCRIPTION_CHARS)


def titles_of(body: str) -> Titled:
    """Return the title and description that code derives from that body."""
    return Titled(title_of(body.strip()), description_of(body))


def mark_of(titles: Titled, body: str) -> str:
    """Return a mark that later shows which titles code derived from a body.

    It is a digest for each derived title and `-` for another one, or empty if neither was derived.
    """
    ours = titles_of(body)
    if titles.name != ours.name and titles.description != ours.description:
        return ""
    return " ".join(
        _digest(title) if title == made else "-"
        for title, made in ((titles.name, ours.name), (titles.description, ours.description))
    )


def current_titles(entry: Entry, rel: RelPath | str) -> Titled:
    """Return the titles as `titled` does, but derive them again if the body was corrected since.

    A title that a user or model chose stays. The mark in the entry (`TITLES_KEY`) proves nothing: at worst, a
    chosen title is replaced by a derived one.
    """
    told = titled(entry, rel)
    marks = str((entry.muniment or {}).get(TITLES_KEY, "")).split(" ")
    if len(marks) != len(("name", "description")) or not entry.body.strip():
        return told
    ours = titles_of(entry.body)
    return Titled(
        ours.name if marks[0] == _digest(told.name) else told.name,
        ours.description if marks[1] == _digest(told.description) else told.description,
    )


def slug(title: str, fact: str) -> str:
    """Return a file name without its suffix: words of `title` that the name grammar allows.

    Letters and digits of every script stay, with their marks. If no word remains (emoji), or the name does
    not match the grammar, it is `note-` and eight digits of the SHA-256 of `fact`.
    """
    if len(parts := title.split()) > 1:
        title = " ".join(part for part in parts if not _RANDOM.fullmatch(part))
    words = [word.lower() if is_normalised("NFKC", word.lower()) else word for word in _words(title)]
    stem = _cut_stem(normalised("NFKC", "-".join(words)))
    if not stem:
        return anonymous(fact)
    if stem.casefold() in RESERVED_STEMS or segment_problem(stem + FILE_SUFFIX) is not None:
        stem = f"note-{stem}"
    return stem if segment_problem(stem + FILE_SUFFIX) is None else anonymous(fact)


def anonymous(fact: str) -> str:
    """Return a file name without its suffix that reveals no words, the same for the same fact."""
    return f"note-{digest(fact.encode())[:8]}"


def in_one_line(text: str) -> str:
    """Return `text` on one line without control and format characters; joiners stay."""
    folded = " ".join(text.split())
    if folded.isprintable():  # Then no character is removed, in any script.
        return folded
    spaced = "".join(" " if char.isspace() else char for char in text)
    kept = (
        char for char in spaced if char in _JOINERS or unicodedata.category(char) not in {"Cc", "Cf", "Cs"}
    )
    return " ".join("".join(kept).split())


def _digest(title: str) -> str:
    return digest(title.encode("utf-8", "surrogatepass"))[:_DIGITS]


def _readable(line: str) -> str:
    line = _SCHEME.sub("", line) if "://" in line else line
    return _EMPHASIS.sub(r"\2", line) if any(mark in line for mark in "*_`") else line


def _bare(line: str) -> str:
    return _MARKER.sub("", in_one_line(line) + " ", count=1).strip().lstrip(_JOINERS)


def _says(line: str) -> bool:
    """Return whether a line contains a word; for most lines the first letter decides."""
    return (line.isascii() and any(map(str.isalnum, line))) or bool(_words(line))


def _words(text: str) -> list[str]:
    """Return runs of word characters in NFKC, each beginning with a letter or digit."""
    kept = "".join(
        char if is_word_character(char) and char not in BLANKS and char not in CONFUSABLES else " "
        for char in normalised("NFKC", text.replace("'", "").replace("\u2019", ""))
    )
    runs = (_from_first_base(run) for run in kept.split())
    return [run for run in runs if run]


def _from_first_base(run: str) -> str:
    """Return `run` without the marks at its beginning, which have no base character."""
    return run[next((at for at, char in enumerate(run) if not _is_mark(char)), len(run)) :]


def _cut(line: str, limit: int) -> str:
    """Return at most `limit` characters of `line`, cut between words if possible, else between clusters."""
    if len(line) <= limit:
        return line
    kept = _whole_clusters(line, limit - 1)
    at = kept.rfind(" ")
    return (kept[:at] if at > limit // 2 else kept).rstrip(_ENDS_WITH_JOINER) + "\u2026"


def _cut_stem(stem: str) -> str:
    """Return as much of `stem` as a name may have, cut between words if possible, else between clusters."""
    end = min(SLUG_CHARS, len(stem.encode()[:SLUG_BYTES].decode(errors="ignore")))
    if len(stem) <= end:
        return stem
    kept = _whole_clusters(stem, end)
    at = kept.rfind("-")
    return (kept[:at] if at > len(kept) // 2 else kept).strip("-")


def _whole_clusters(text: str, end: int) -> str:
    """Return `text` up to `end`, without a letter whose marks would be cut off."""
    while 0 < end < len(text) and (_is_mark(text[end]) or text[end] in _JOINERS or text[end - 1] in _JOINERS):
        end -= 1
    return text[:end]


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")
