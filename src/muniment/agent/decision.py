"""What is decided about a fact, and the names that code makes of it.

A `Decision` comes from the rules, or from a language model that may decide but not file. Nothing of
it is trusted further on: the file name is judged like any other path. The names made here pass the
name grammar for any fact (`slug`), so that no text can make the rule writer ask for a refused path.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from muniment.agent.cues import is_word_character
from muniment.content.entry import EntryType
from muniment.names import Scope
from muniment.policy.grammar import (
    BLANKS,
    CONFUSABLES,
    FILE_SUFFIX,
    is_normalised,
    normalised,
    segment_problem,
)

TITLE_CHARS: Final = 80
"""Characters of a title: one line of an index."""

DESCRIPTION_CHARS: Final = 120
"""Characters of a description: what still fits beside the title in a listing."""

_LOOKED_AT: Final = 2_000
"""Characters of a line of which a title is made, and of a text of which a description is."""

SLUG_CHARS: Final = 60
SLUG_BYTES: Final = 150
"""Characters and UTF-8 bytes of a file name without suffixes: short enough to type, far below NAME_MAX."""

RESERVED_STEMS: Final = frozenset(
    {
        "memory",
        "memory-before-muniment",
        "agent",
        "agents",
        "claude",
        "conventions",
        "crush",
        "copilot-instructions",
        "gemini",
        "qwen",
        "skill",
        "warp",
        "index",
        "readme",
    }
)
"""Stems of files that the store writes itself or that other agents load as instructions."""

_SUBJECT: Final = re.compile(r"\A(?:the\s+)?user\s+(?=[a-z])", re.IGNORECASE)
_LEAD_IN: Final = re.compile(
    r"\A(?:(?:please\s+)?(?:remember|note)(?:\s+that\b|\s*:)|fyi\s*[:,]?|btw\s*,?)\s+", re.IGNORECASE
)
_MARKER: Final = re.compile(r"\A\s*(?:[-*+>]|\#{1,6}|\d{1,3}[.)]|`{3}\w*)\s+")
_JOINERS: Final = "\u200c\u200d"
_FINAL_PUNCTUATION: Final = " .,;:!?\u2026\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u060c\u061b\u061f\u0964"
_ENDS_WITH_JOINER: Final = _JOINERS + _FINAL_PUNCTUATION


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a fact is to be filed.

    Attributes:
        file: the path in the scope, `topic/slug.md` or `slug.md`; a taken name gets a number.
        title: one line, at most `TITLE_CHARS` characters.
        text: the fact, verbatim.
    """

    scope: Scope
    type: EntryType
    file: str
    title: str
    text: str

    @property
    def description(self) -> str:
        """The text on one line, at most `DESCRIPTION_CHARS` characters."""
        return _cut(one_line(self.text[:_LOOKED_AT]), DESCRIPTION_CHARS)


def title_of(fact: str) -> str:
    """One line for `fact`: its first line without list markers, `the user` and final punctuation."""
    lines = (_bare(line[:_LOOKED_AT]) for line in fact[: 4 * _LOOKED_AT].splitlines())
    first = next((line for line in lines if _words(line)), one_line(fact[:_LOOKED_AT]))
    whole = first.rstrip(_FINAL_PUNCTUATION)
    plain = _SUBJECT.sub("", _LEAD_IN.sub("", whole, count=1), count=1)
    cut = _cut(plain or whole or first, TITLE_CHARS).strip(_JOINERS)
    return cut[:1].upper() + cut[1:] if plain != whole else cut or "Note"


def slug(title: str, fact: str) -> str:
    """A file name without its suffix, made of the words of `title`, that the name grammar allows.

    Letters and digits of every script stay, with their marks; where nothing is left (emoji), or the
    name would be outside the grammar, it is `note-` and eight digits of the SHA-256 of `fact`.
    """
    words = [word.lower() if is_normalised("NFKC", word.lower()) else word for word in _words(title)]
    stem = _cut_stem(normalised("NFKC", "-".join(words)))
    if not stem:
        return anonymous(fact)
    if stem.casefold() in RESERVED_STEMS or segment_problem(stem + FILE_SUFFIX) is not None:
        stem = f"note-{stem}"
    return stem if segment_problem(stem + FILE_SUFFIX) is None else anonymous(fact)


def anonymous(fact: str) -> str:
    """A file name without its suffix that says nothing, the same for the same fact."""
    return f"note-{hashlib.sha256(fact.encode()).hexdigest()[:8]}"


def one_line(text: str) -> str:
    """`text` with white space folded and controls and format characters removed, joiners apart."""
    spaced = "".join(" " if char.isspace() else char for char in text)
    kept = (
        char for char in spaced if char in _JOINERS or unicodedata.category(char) not in {"Cc", "Cf", "Cs"}
    )
    return " ".join("".join(kept).split())


def _bare(line: str) -> str:
    return _MARKER.sub("", one_line(line) + " ", count=1).strip().lstrip(_JOINERS)


def _words(text: str) -> list[str]:
    """Runs of word characters in NFKC, each beginning with a letter or digit."""
    kept = "".join(
        char if is_word_character(char) and char not in BLANKS and char not in CONFUSABLES else " "
        for char in normalised("NFKC", text.replace("'", "").replace("\u2019", ""))
    )
    runs = (_from_first_base(run) for run in kept.split())
    return [run for run in runs if run]


def _from_first_base(run: str) -> str:
    """`run` without the marks at its beginning, which have nothing to stand upon."""
    return run[next((at for at, char in enumerate(run) if not _is_mark(char)), len(run)) :]


def _cut(line: str, limit: int) -> str:
    """At most `limit` characters of `line`, cut between words where there are any, else clusters."""
    if len(line) <= limit:
        return line
    kept = _whole_clusters(line, limit - 1)
    at = kept.rfind(" ")
    return (kept[:at] if at > limit // 2 else kept).rstrip(_ENDS_WITH_JOINER) + "\u2026"


def _cut_stem(stem: str) -> str:
    """As much of `stem` as a name may have, cut between words where there are any, else clusters."""
    end = min(SLUG_CHARS, len(stem.encode()[:SLUG_BYTES].decode(errors="ignore")))
    if len(stem) <= end:
        return stem
    kept = _whole_clusters(stem, end)
    at = kept.rfind("-")
    return (kept[:at] if at > len(kept) // 2 else kept).strip("-")


def _whole_clusters(text: str, end: int) -> str:
    """`text` up to `end` without a letter whose marks would be cut off."""
    while 0 < end < len(text) and (_is_mark(text[end]) or text[end] in _JOINERS or text[end - 1] in _JOINERS):
        end -= 1
    return text[:end]


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")
