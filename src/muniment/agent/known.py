"""What the memory already holds of a fact: what to search for, and what the answers mean.

The answers come from files that anyone may have written. Every path in them is canonicalised before it
is used, a line that does not parse is passed over, and no text of an entry is ever more than compared.

Same fact: the same as `content.likeness` sees it, as the whole body of an entry or as an item of a body that
is nothing but one flat list.
Elsewhere what stands around a line may turn its meaning ("Never do any of this:"), so a fact that stands
there is saved once more. Likewise where only a part of the file was shown. Looked for are the entries
that hold the fact's first words in sequence, or at least half of its rarest words; another spelling of
all of them is not found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from muniment.agent.cues import CUE_CHARS, cues, folded, is_unspaced, is_word_character
from muniment.content.entry import parse
from muniment.content.words import comparable
from muniment.errors import PathEscape, Refusal
from muniment.names import INDEX_DIRECTORY, INDEX_NAME, Scope
from muniment.policy.grammar import CanonicalPath, canonicalise, fold, normalised

LINE_WORDS: Final = 24
"""Words of the fact searched for as the beginning of a line, or the whole of it if there are no more."""

SEQUENCE_WORDS: Final = 5
"""Words of the fact searched for anywhere in a line, for entries that were wrapped or listed."""

SEQUENCE_CHARS: Final = 700
"""Characters of a pattern of words in sequence; `grep` takes 1000."""

SEQUENCE_MATCHES: Final = 60
TERM_MATCHES: Final = 250
"""Matching lines asked for, at most 200 characters each: `grep` shows 60 000 characters."""

TERMS: Final = 8
"""Rare words searched for in any order."""

TERM_CHARS: Final = 40
"""Characters of a word that are searched for; the rest of a longer one is not looked at."""

READS: Final = 6
"""Entries that are read to compare them."""

_HIT: Final = re.compile(r"([^:\n]{1,1024}):[0-9]{1,9}: (.*)", re.DOTALL)
_NUMBERED: Final = re.compile(r"([0-9]{1,9})\t(.*)", re.DOTALL)
_ITEM: Final = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])[ \t]+(\S.*)", re.DOTALL)
_CUT_MARK: Final = "\u2026"
"""What `grep` ends a line with that is too long to be shown whole."""

_CUT: Final = re.compile(r"\[truncated: [0-9]+ lines in all; read on with offset=[0-9]+\]")
_CHUNK: Final = re.compile("[\u30a0-\u30ff]{2,}|[\u3400-\u9fff]{2}|[a-z0-9]{2,}|[\u0e00-\u0eff]{4,12}")
"""Parts of a run without spaces: a katakana word, two Han characters, a Latin word, some Thai."""

_BETWEEN: Final = r"[\W_]"
"""What may stand between two words: in RE2 everything but ASCII letters and digits. That is too much, but
`[^\\pL\\pM\\pN]` once a word makes a pattern that takes 25 times as long to compile (measured)."""

_EMPHASIS: Final = "*_`~ "


@dataclass(frozen=True, slots=True)
class Search:
    """One `grep` to make: its arguments, and whether it looks for words in sequence or for any of some."""

    in_sequence: bool
    arguments: dict[str, Any]


@dataclass(slots=True)
class Hit:
    """What the searches found in one file.

    Attributes:
        in_sequence: how many of the searches for words in sequence found it.
        terms: the rare words of the fact on its matching lines.
        is_equal: whether one of these lines begins as the fact does and, where it is shown whole, equals it.
    """

    path: CanonicalPath
    is_equal: bool = False
    in_sequence: int = 0
    terms: set[str] = field(default_factory=set)


def searches(fact: str) -> list[Search]:
    """What to search for to find `fact`: its words in sequence, then its rare words. Never empty."""
    lines = (line for line in fact.splitlines() if any(map(is_word_character, line)))
    words = _tokens(next(lines, ""))
    if words:
        patterns = [_line_of(words), _sequence(words[:SEQUENCE_WORDS])[0]]
    else:
        patterns = [_quoted("".join(fact.split())[:TERM_CHARS])]
    asked = [(True, pattern, SEQUENCE_MATCHES) for pattern in patterns]
    if alternatives := _alternatives(fact):
        asked.append((False, "|".join(map(_quoted, alternatives)), TERM_MATCHES))
    return [
        Search(in_sequence, {"pattern": pattern, "path": "", "ignore_case": True, "max_matches": count})
        for in_sequence, pattern, count in asked
    ]


def terms(fact: str) -> tuple[str, ...]:
    """The fact's rare words, folded: the longest that are not common; all words if there are none."""
    seen = dict.fromkeys(word for token in folded(fact[:CUE_CHARS]).split() for word in _chunks(token))
    rare = [word for word in seen if not _is_common(word)]
    return tuple(sorted(rare or seen, key=len, reverse=True)[:TERMS])


@lru_cache(maxsize=2)
def hits(fact: str, answers: tuple[tuple[bool, str], ...], scopes: frozenset[Scope]) -> tuple[Hit, ...]:
    """What the answers to `searches` found, best first. Kept for the next turn, which asks the same.

    Args:
        fact: what was searched for.
        answers: of each search, whether it was one for words in sequence, and its text.
        scopes: the scopes that count; files elsewhere, indexes and anything that is no path are dropped.
    """
    wanted = terms(fact)
    first = comparable(next(iter(fact.splitlines()), ""))
    found: dict[str, Hit] = {}
    for in_sequence, answer in answers:
        for path, text in _parsed_hits(answer, scopes):
            hit = found.setdefault(path.text, Hit(path))
            hit.in_sequence += in_sequence
            hit.is_equal = hit.is_equal or _equals(text, first)
            words = folded(text)
            hit.terms.update(term for term in wanted if term in words)
    return tuple(
        sorted(
            found.values(),
            key=lambda hit: (not hit.is_equal, -hit.in_sequence, -len(hit.terms), hit.path),
        )
    )


def worth_reading(fact: str, found: Sequence[Hit]) -> list[Hit]:
    """The entries among `found` that may hold the same fact, at most `READS`."""
    half = len(terms(fact)) / 2
    return [hit for hit in found if hit.in_sequence or (hit.terms and len(hit.terms) >= half)][:READS]


def holds(shown: str, fact: str) -> bool:
    """Whether an entry that does not end, as `read_file` showed it, holds the same fact in its body."""
    wanted = comparable(fact)
    body = _body(shown)
    return any(comparable(part) == wanted for part in ("\n".join(body), *_items(body)))


def listed_names(answer: str) -> Iterator[str]:
    """Names of files and directories that an answer of `ls` lists."""
    for line in answer.split("\n"):
        yield line.rpartition(" (")[0] if line.endswith(" bytes)") else line.removesuffix("/")


def _parsed_hits(answer: str, scopes: Collection[Scope]) -> Iterator[tuple[CanonicalPath, str]]:
    for line in answer.split("\n"):
        match = _HIT.fullmatch(line)
        if match is None:
            continue
        try:
            path = canonicalise(match[1], scopes)
        except (PathEscape, Refusal):
            continue
        is_index = path.name == INDEX_NAME or path.segments[1:2] == (INDEX_DIRECTORY,)
        if path.rel and not is_index:
            yield path, match[2]


def _equals(line: str, first: str) -> bool:
    """Whether a line that `grep` shows, maybe cut and maybe of a list, is the fact's first one."""
    item = _ITEM.fullmatch(line)
    texts = [line] if item is None else [line, item[1]]
    if line.endswith(_CUT_MARK):
        return any(first.startswith(comparable(text.removesuffix(_CUT_MARK))) for text in texts)
    return any(comparable(text) == first for text in texts)


def _body(shown: str) -> list[str]:
    """The lines of `shown` below front matter, bare; none of a part of a file, nor of an entry that ends."""
    told = shown.split("\n")
    numbered = [match for line in told if (match := _NUMBERED.fullmatch(line))]
    if not numbered or int(numbered[0][1]) > 1 or any(map(_CUT.fullmatch, told)):
        return []
    lines = [match[2] for match in numbered]
    if parse("\n".join(lines)).expires is not None:
        return []
    if lines[0].removeprefix("\ufeff").rstrip() == "---":
        closing = (at for at, line in enumerate(lines[1:], 1) if line.rstrip() in {"---", "..."})
        return lines[next(closing, 0) + 1 :]
    return lines


def _items(body: Sequence[str]) -> list[str]:
    """The items of a body that is one flat list and nothing else, or nothing."""
    found = [_ITEM.fullmatch(line) for line in body if line.strip()]
    items = [match[1] for match in found if match is not None]
    introduces = any(fold(item).rstrip(_EMPHASIS).endswith(":") for item in items)
    return [] if introduces or len(items) < len(found) else items


def _line_of(words: Sequence[str]) -> str:
    """A pattern for a line that begins with `words`, after markers or digits; ends with them if all fit."""
    pattern, used = _sequence(words[:LINE_WORDS])
    return rf"^(?:{_BETWEEN}|\d)*?{pattern}" + (f"{_BETWEEN}*$" if used == len(words) else "")


def _sequence(words: Sequence[str]) -> tuple[str, int]:
    """A pattern for `words` in sequence, as many as fit, and how many it takes whole."""
    pattern = ""
    for used, word in enumerate(words):
        both = "|".join(map(_quoted, dict.fromkeys((word[:TERM_CHARS], _nfkc(word)[:TERM_CHARS]))))
        longer = f"{pattern}{f'{_BETWEEN}+' if pattern else ''}(?:{both})"
        if len(longer) > SEQUENCE_CHARS:
            return pattern, used
        pattern = longer
        if len(word) > TERM_CHARS:
            return pattern, used
    return pattern, len(words)


def _alternatives(fact: str) -> list[str]:
    """The fact's rare words as it spells them, and in NFKC."""
    wanted = terms(fact)
    spelled: dict[str, None] = {}
    for token in _tokens(fact[:CUE_CHARS]):
        inside = folded(token)
        of_token = [term for term in wanted if term in inside]
        if of_token and not is_unspaced(token):
            spelled.update(dict.fromkeys((token[:TERM_CHARS], _nfkc(token)[:TERM_CHARS])))
        else:
            spelled.update(dict.fromkeys(of_token))
    return list(spelled)[: 2 * TERMS]


def _chunks(token: str) -> list[str]:
    return _CHUNK.findall(token) if is_unspaced(token) else [token]


def _is_common(word: str) -> bool:
    return word in cues().common or word.isdecimal() or (len(word) < len("api") and not is_unspaced(word))


def _tokens(text: str) -> list[str]:
    return "".join(char if is_word_character(char) else " " for char in text).split()


def _nfkc(text: str) -> str:
    return normalised("NFKC", text)


def _quoted(text: str) -> str:
    """`text` as RE2 takes it literally: ASCII that is neither letter nor digit gets a backslash."""
    return "".join(char if char.isalnum() or not char.isascii() else f"\\{char}" for char in text)
