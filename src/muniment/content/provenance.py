"""Determine the author of a text from its words, so that trust depends on the words, not the request. Pure.

P1 A text consists of a fact if it is the fact, word by word and in order, except for the case of its first
   letter. Plain prose may be wrapped differently and become a list item or quotation. A text with structure
   (lists, headings, lead-ins, code, markup) must match line by line.
P2 A text keeps an entry if it is the entry, line by line, followed by the fact: as one more item of its list,
   or as lines of its prose. An entry with headings, lead-ins, code or markup cannot be extended: they change
   the meaning of the lines below.
P3 A fact replaces an entry only if the caller's rule allows it (`agent.updates.supersedes`: the fact states
   that something changed). A unit is a sentence, line or list item.
P4 A label (title, description, keyword) consists of a fact if it is part of a unit from its beginning (small
   words may be skipped) and has every word of the fact that reverses a meaning. A name need not begin with
   the unit.
P5 A text consists of other texts if it has all of their units, the units of each in order, and no other, and
   none of them is a heading or lead-in.

Not guaranteed: that the words are true or harmless. They are exactly the words of their author.

Start at `whose`; attacked in tests/units/content/test_provenance.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from muniment.content.leaning import lean_on_one_another
from muniment.content.words import STOP_WORDS, features, is_running
from muniment.files import shipped_tables
from muniment.kernel.normal_forms import normalised

# -- containment -------------------------------------------------------------------------------------
#
# Check whether an entry contains a fact that a caller wants remembered, with the same meaning. Pure.
#
# H1 All words of the fact are in the text, consecutive and in order. Numbers, signs, words with a capital and
#    words of other scripts must be the same; a small word of a to z may be inflected.
# H2 Ignored: case and compatibility forms, white space and line breaks, list markers, marks of emphasis,
#    quotation marks and common punctuation, articles, and a leading "the user", "user", "I" or "we", if no
#    other subject is in its place.
# H3 The sentence around the words has no denial, unless the fact has one.
# H4 A fact that is a list of items may be split over several texts; H1 to H3 apply to each item.
#
# In doubt a text does not contain it: then code stores the fact verbatim, which loses nothing. Attacked by
# `tests/units/content/test_provenance.py`.

MAX_SEPARATE: Final = 8
"""Maximum items of a list that are stored separately: the default number of files that a run may write."""

MIN_STATEMENT_WORDS: Final = 3

MAX_PLACES: Final = 8
"""Maximum positions of a text that are checked in detail: a text that repeats half of a fact more often is
unusual.
"""

SENTENCE_CHARS: Final = 1_000
"""Characters before and after a fact that are searched for the ends of its sentence."""

_MARKER: Final = re.compile(r"^[ \t]*(?:[-*+>]|#{1,6}|\d{1,9}[.)])[ \t]+", re.MULTILINE)
_ITEM: Final = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_BULLET: Final = re.compile(r"[-*+][ \t]+(?!\[[ xX]\])(\S.*)")
_EMPHASIS: Final = re.compile(r"(?<![\w*_])(\*{1,3}|_{1,3})(?=[^\s*_])([^*_\n]+)(?<=[^\s*_])\1(?![\w*_])")
_TOKEN: Final = re.compile(
    r"(?<![\w.)\]])[-\u2212+](?=\w)|\d+(?:[.,:]\d+)+|\w+(?:['\u2019]\w+)*"
    r"|[^\w\s.,;:!()\[\]{}\"'`\u2018-\u201f\u00ab\u00bb\u2010-\u2015\u2026\u3001\u3002\uff0c-]"
)
_ARTICLES: Final = frozenset({"a", "an", "the", "An", "The"})  # But not "Plan A".
_HIDDEN: Final = re.compile(r"<!--.*?(?:-->|\Z)|~~[^~\n]*~~", re.DOTALL)
MAX_ITEMS: Final = 64
"""Maximum items of a list that may be split over several texts; code stores a longer list as one text."""

_SUBJECTS: Final = frozenset({"user", "i", "I", "we"})
_SMALL_WORDS: Final = re.compile(r"[a-z]{2,}(?:'s)?")
_ENDINGS: Final = ("'s", "ies", "ied", "es", "ed", "ing", "s", "e", "y")
_MIN_STEM: Final = 3
_SENTENCE_END: Final = re.compile(r"[.!?;\u3002\uff01\uff1f](?=\s|\Z)|\n[ \t]*+\n")
_DENIAL: Final = re.compile(
    r"\b(?:not|no|never|none|nor|neither|without|cannot|\w+n['\u2019]?t|false(?:ly)?|untrue|wrong(?:ly)?|incorrect"
    r"|nicht|kein\w*|nie|niemals|ohne|falsch|pas|jamais|sans|faux|nunca|jam\u00e1s|sin|non|mai|senza"
    r"|n\u00e3o|sem|niet|geen|nooit|\u043d\u0435|\u043d\u0435\u0442|\u043d\u0438\u043a\u043e\u0433\u0434\u0430)\b"
    r"|[\u4e0d\u6ca1\u6c92\u7121\u65e0\u975e]|\u306a\u3044|\u307e\u305b\u3093"
)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a text in the form that is compared.

    Attributes:
        stem: its form without an inflection, the same for all forms of a word.
        is_exact: whether no other form matches.
    """

    text: str
    stem: str
    is_exact: bool
    start: int
    end: int


def holds(texts: Sequence[str], fact: str) -> bool:
    """Return whether one of `texts` contains `fact`, or each item of a list is in any of them.

    Args:
        texts: bodies of entries, without front matter.
        fact: the fact to remember.

    Cost: linear in both, plus `MAX_PLACES` times the fact.
    """
    readable = [_Readable(text) for text in texts]
    return any(each.holds(fact) for each in readable) or (
        len(items := _items(fact)) > 1 and all(any(each.holds(item) for each in readable) for item in items)
    )


def missing_statements(text: str, before: str) -> Iterator[str]:
    """Yield the sentences, headings and list items of an earlier text that a text does not contain.

    Cost: linear in both for each statement that is not in the text word for word.
    """
    kept, readable = {unit.words for unit in _units(text)}, _Readable(text)
    for unit in _units(before):
        statement = " ".join(unit.words)
        if unit.words not in kept and not readable.holds(statement):
            yield statement


class _Readable:
    """A text that is searched for facts."""

    def __init__(self, text: str) -> None:
        self._text = _plain(text)
        self._words = _words(self._text)
        self._stems = _joined(self._words)

    def holds(self, fact: str) -> bool:
        plain = _plain(fact)
        words = _words(plain)
        wanted = words[1:] if len(words) > 1 and words[0].text in _SUBJECTS else words
        if not wanted:
            return " ".join(plain.split()) in " ".join(self._text.split())
        is_denial = _DENIAL.search(plain.casefold()) is not None
        sought, at, number, counted = _joined(wanted), -1, 0, 0
        for _ in range(MAX_PLACES):
            at = self._stems.find(sought, at + 1)
            if at < 0:
                return False
            number += self._stems.count("\0", counted, at)
            counted = at
            found = self._words[number : number + len(wanted)]
            before, after = self._around(found[0].start, found[-1].end)
            is_same = all(
                one.text == other.text or not one.is_exact for one, other in zip(wanted, found, strict=True)
            )
            is_of_another = len(wanted) < len(words) and _other_subjects(before)
            is_denied = not is_denial and _DENIAL.search(f"{before}\n{after}".casefold())
            if is_same and not is_of_another and not is_denied:
                return True
        return False

    def _around(self, start: int, end: int) -> tuple[str, str]:
        """Return the text before and after a range in its sentence."""
        before = self._text[max(0, start - SENTENCE_CHARS) : start]
        after = self._text[end : end + SENTENCE_CHARS]
        begin = max((each.end() for each in _SENTENCE_END.finditer(before)), default=0)
        ending = _SENTENCE_END.search(after)
        return before[begin:], after[: ending.start() if ending else None]


def _other_subjects(before: str) -> set[str]:
    """Return words before a fact in its sentence that may be another subject than the user."""
    line = {each.text for each in _words(before.rpartition("\n")[2])}
    # A line with its own subject is independent of the line above.
    return (line or {each.text for each in _words(before)}) - _SUBJECTS


def separate_items(fact: str) -> tuple[str, ...]:
    """Return the items of a list of facts that may be stored separately; empty for other texts.

    The list is flat, with `-`, `*` or `+`, and without other lines. Every item is a statement of three words
    or more, introduces nothing, and does not refer to another item. Numbered steps stay together.
    """
    lines = [line.rstrip(" \t") for line in fact.splitlines() if line.strip()]
    items, count = [match[1] for line in lines if (match := _BULLET.fullmatch(line))], len(lines)
    if not 1 < len(items) == count <= MAX_SEPARATE or len(set(items)) < count:
        return ()
    is_statement = all(is_running(item) or len(item.split()) >= MIN_STATEMENT_WORDS for item in items)
    is_structured = any(map(_MARKUP.search, items)) or any(unit.leads for unit in _units(fact))
    may_be_told_alone = is_statement and not is_structured and not lean_on_one_another(items)
    return tuple(items) if may_be_told_alone else ()


def _items(fact: str) -> list[str]:
    """Return the items of a flat list if the fact has no other lines, else an empty list."""
    lines = [line for line in fact.splitlines() if line.strip()]
    return list(dict.fromkeys(lines)) if len(lines) <= MAX_ITEMS and all(map(_ITEM.match, lines)) else []


def _plain(text: str) -> str:
    """Return `text` without compatibility forms, markup, and struck out or commented out text (H2)."""
    text = _HIDDEN.sub(" ", text.replace("\0", " "))
    return _EMPHASIS.sub(r"\2", _MARKER.sub("\n", normalised("NFKC", text)))


def _words(plain: str) -> list[_Word]:
    found: list[_Word] = []
    for each in _TOKEN.finditer(plain):
        said = each[0].replace("\u2019", "'").replace("\u2212", "-")
        folded = said.casefold()
        if said in _ARTICLES:
            continue
        is_small = _SMALL_WORDS.fullmatch(said) is not None
        stem = _stem(folded) if _SMALL_WORDS.fullmatch(folded) else folded
        text = said if len(said) == 1 else folded  # `-d` is not `-D`.
        found.append(_Word(text, stem, not is_small, each.start(), each.end()))
    return found


def _stem(word: str) -> str:
    """Return `word` without English endings, as long as the stem is not too short."""
    for _ in range(2):
        ending = next((each for each in _ENDINGS if word.endswith(each)), "")
        if len(word) - len(ending) >= _MIN_STEM:
            word = word.removesuffix(ending)
    return word


def _joined(words: Sequence[_Word]) -> str:
    """Return the stems between marks that never occur in a text."""
    return "\0".join(["", *(word.stem for word in words), ""])


# -- provenance --------------------------------------------------------------------------------------

MAX_LABEL_CHARS: Final = 300
"""Maximum characters of a label; a longer one is a text."""


class _TurningWords(NamedTuple):
    """The words of `turning.toml`, which describes them."""

    turning: frozenset[str]
    running: tuple[str, ...]
    loose: frozenset[str]
    of_anything: frozenset[str]


@cache
def _lists() -> _TurningWords:
    """Return the words of the package. Cost: reads one file, once per process."""
    words = {name: text.split() for name, text in shipped_tables("muniment.content", "turning").items()}
    turning, loose = frozenset(words["turning"]), frozenset(words["loose"])
    turning |= {f"{verb}nt" for verb in words["verbs"]}
    return _TurningWords(turning, tuple(words["running"]), loose, STOP_WORDS | loose | {*words["anything"]})


_MARKERS: Final = re.compile(r"[ \t]*((?:[-*+>][ \t]+)*)((?:[0-9]{1,3}[.)][ \t]+)?)((?:[-*+>][ \t]+)*)")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_ENDS_SENTENCE: Final = re.compile(r"[.!?\u2026\u3002\uff01\uff1f\u061f\u0964][\"')\]\u201d\u2019\u00bb]*\Z")
_WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)*")
_NUMBER: Final = re.compile(r"\d")
_MARKUP: Final = re.compile(r"^[ \t]*(?:```|~~~|\||={2,}|-{2,})|^(?: {4}|\t)|<[!/?a-zA-Z]|~~")
_ENDING: Final = ".,;:!\u2026\u3002\uff0c"


class Whose(Enum):
    """The author of the words of a new text."""

    SAME = "same"
    """It has the same words as the text that it replaces."""
    FACT = "fact"
    """It consists of the fact only."""
    KEPT = "kept"
    """It consists of the replaced text and the fact."""
    OTHERS = "others"
    """It contains other words, or words that were changed."""


Replaces = Callable[[str, str], bool]
"""Function that returns whether a fact may replace the body of an entry."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, heading or list item.

    Attributes:
        place: white space and markers at the beginning of its line; None: it starts inside a line.
        number: the marker of a numbered list.
        leads: whether it changes how the next lines are read: a heading, or a line that ends in a colon.
    """

    words: tuple[str, ...]
    place: str | None
    number: str
    leads: bool


def whose(body: str, fact: str, before: str | None, replaces: Replaces) -> Whose:
    """Return the author of the words of an entry (P1 to P3).

    Args:
        body: the new body of the entry.
        fact: the fact from the caller; each item of a list of facts (`separate_items`) also counts as a fact.
        before: body of the entry that it replaces; None: it is new.
        replaces: whether a fact may replace a body.

    Cost: linear in the texts.
    """
    said, old = _lines(body), None if before is None else _lines(before)
    if old is not None and said == old:
        return Whose.SAME
    for each in (fact, *separate_items(fact)):
        if _is_fact(said, each):
            is_ours = not old or _says_the_same(body, before or "")
            is_ours = is_ours or replaces(each, before or "")
            return Whose.FACT if is_ours else Whose.OTHERS
        if old and said[: len(old)] == old and _may_follow(said[len(old) :], old, each):
            return Whose.KEPT
    return Whose.OTHERS


def _says_the_same(body: str, before: str) -> bool:
    """Return whether two texts contain the same statements, with any markers and line breaks."""
    lost, added = missing_statements(body, before), missing_statements(before, body)
    return next(chain(lost, added), None) is None


def telling_words(text: str) -> frozenset[str]:
    """Return the words of a text that describe its subject."""
    return _features(_units(text))


def stands_in(label: str, fact: str) -> bool:
    """Return whether a label contains only words of a fact (P4). Cost: linear in the fact."""
    wanted = _tokens(label)
    if len(label) > MAX_LABEL_CHARS or not set(wanted) - _lists().loose:
        return False
    if not {token for token in _tokens(fact) if _is_turning(token)} <= set(wanted):
        return False
    units = [_tokens(unit) for unit in _folded_units(fact)]
    if any(map(is_running, wanted)):
        return any("".join(unit).startswith("".join(wanted)) for unit in units)
    return any(_begins(unit, wanted) for unit in units)


def names(name: str, fact: str) -> bool:
    """Return whether a unit of a fact contains a name, and the name has all words that reverse a meaning."""
    wanted, said = _WORD.findall(name.casefold()), [_WORD.findall(unit) for unit in _folded_units(fact)]
    if not wanted or not {word for words in said for word in words if _is_turning(word)} <= set(wanted):
        return False
    size = len(wanted)
    return any(words[at : at + size] == wanted for words in said for at in range(len(words) - size + 1))


def is_made_of(text: str, sources: Sequence[str]) -> bool:
    """Return whether a text has all units of others, the units of each in order, and no other (P5)."""
    said, theirs = _units(text), [_units(source) for source in sources]
    if any(unit.leads for units in theirs for unit in units):
        return False
    return all(_stand_in_order(units, said) for units in theirs) and set(said) <= set(chain(*theirs))


def _is_fact(said: Sequence[str], fact: str) -> bool:
    """Return whether lines consist of a fact (P1)."""
    told = _lines(fact)
    if list(said) == told:
        return bool(told)
    units, ours = _units("\n".join(said)), _units(fact)
    if not units or not ours or any(map(_MARKUP.search, [*told, *said])):
        return False
    if any(unit.leads or unit.place or unit.number for unit in ours):
        return False
    if any(unit.place or unit.number for unit in units[1:]) or units[0].number not in {"", "1."}:
        return False
    words, wanted = list(_flat(units)), list(_flat(ours))
    if units[0].place and _NUMBER.match(words[0]):
        return False  # Before a number a dash is a sign.
    return words[1:] == wanted[1:] and _lowered(words[0]) == _lowered(wanted[0])


def _may_follow(new: Sequence[str], old: Sequence[str], fact: str) -> bool:
    """Return whether lines are a fact that may be appended to others (P2)."""
    units = _units("\n".join(old))
    if any(unit.leads for unit in units) or any(map(_MARKUP.search, old)):
        return False
    if not _is_fact(_lines("\n".join(new)), fact):
        return False
    first, places = _units("\n".join(new))[0], {unit.place for unit in units if unit.place is not None}
    if len(places) > 1 or first.place not in places or any(unit.number for unit in (first, *units)):
        return False
    return bool(first.place) or not new[0] or not _goes_on(units[-1].words)


def _begins(unit: Sequence[str], label: Sequence[str]) -> bool:
    """Return whether a label is a part of a unit after small words only."""
    for at, token in enumerate(unit):
        if list(unit[at : at + len(label)]) == list(label):
            return True
        if token not in _lists().loose:
            return False
    return False


def _stand_in_order(units: Sequence[_Unit], among: Sequence[_Unit]) -> bool:
    rest = iter(among)
    return all(unit in rest for unit in units)


def _flat(units: Sequence[_Unit]) -> Iterator[str]:
    for unit in units:
        yield from unit.words


def _lines(text: str) -> list[str]:
    """Return the lines without trailing white space, and without blank lines at both ends."""
    lines = [line.rstrip() for line in normalised("NFC", text).splitlines()]
    kept = [at for at, line in enumerate(lines) if line]
    return lines[kept[0] : kept[-1] + 1] if kept else []


def _units(text: str) -> list[_Unit]:
    units: list[_Unit] = []
    words: list[str] = []
    place: str | None = None
    number, is_heading = "", False

    def close(*, leads: bool = False) -> None:
        nonlocal words, place, number, is_heading
        if words:
            units.append(_Unit(tuple(words), place, number, leads or is_heading or _leads(words)))
        words, place, number, is_heading = [], None, "", False

    for line in normalised("NFC", text).splitlines():
        found = _MARKERS.match(line)
        marks, ordered = (found[0], found[2]) if found else ("", "")
        is_item = bool(marks.strip())
        if is_heading or is_item or not _goes_on(words) or not line.strip() or _HEADING.match(line):
            # A line directly above the items of a list defines how they are read.
            close(leads=is_item and not (place or "").strip() and not number)
        if not words:
            place, number = marks.replace(ordered, "", 1), ordered.strip()
            is_heading = _HEADING.match(line) is not None
        tokens = line[len(marks) :].split()
        for token, following in zip(tokens, [*tokens[1:], ""], strict=False):
            words.append(token)
            if following and not is_heading and _ENDS_SENTENCE.search(token) and not following[:1].islower():
                close()
    close()
    return units


def _leads(words: Sequence[str]) -> bool:
    """Return whether a line without a heading marker has the form of a heading."""
    is_bold = words[0].startswith(("**", "__", "<")) and words[-1].endswith(("**", "__", ">"))
    return is_bold or words[-1].rstrip("*_").endswith((":", "\uff1a")) or not words[-1].strip("=-")


def _goes_on(words: Sequence[str]) -> bool:
    """Return whether a line ends in the middle of a sentence, judging by its last word."""
    return bool(words) and (
        words[-1].casefold() in _lists().loose
        or _is_turning(words[-1])
        or words[-1].endswith((",", ";", "-"))
    )


def _tokens(text: str) -> list[str]:
    """Return the words of a label for comparison: all their characters except case and final punctuation."""
    found = (
        token.strip(_ENDING).replace("\u2019", "'") for token in normalised("NFC", text).casefold().split()
    )
    return [token for token in found if token]


def _features(units: Sequence[_Unit]) -> frozenset[str]:
    return features(" ".join(_flat(units))) - _lists().of_anything


def _folded_units(text: str) -> list[str]:
    return [" ".join(unit.words).casefold() for unit in _units(text)]


def _lowered(word: str) -> str:
    return word[:1].casefold() + word[1:]


def _is_turning(token: str) -> bool:
    known = _lists()
    words = [word.replace("\u2019", "'").strip("_") for word in _WORD.findall(token.casefold())]
    return any(
        word in known.turning or word.endswith("n't") or any(mark in word for mark in known.running)
        for word in words
    )
