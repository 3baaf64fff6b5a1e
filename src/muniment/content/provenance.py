"""Determine the author of a text from its words, so that trust does not depend on a claim.

P1 A text consists of a fact if it is the fact, word by word and in order; only the case of its first letter
   may differ. Plain prose may be wrapped differently, and may become a list item or a quotation. A text with
   structure (lists, headings, lead-ins, code, markup) must match line by line.
P2 A text keeps an entry if it is the entry, line by line, followed by the fact: as one more item of its list,
   or as lines of its prose. An entry with headings, lead-ins, code or markup cannot be extended, because they
   change the meaning of the lines below.
P3 A fact replaces an entry only if the caller's rule allows it (`agent.updates.supersedes`: the fact states
   that something changed).
P4 A label is a title, a description or a keyword. It consists of a fact if a unit of the fact begins with it
   (small words before it may be skipped). It must have every word of the fact that reverses a meaning, such
   as "not". A name may come from any part of a unit.
P5 A text consists of other texts if it has all units of these texts and no other unit. The units of each text
   must be in order, and none of them may be a heading or lead-in.

A unit is a sentence, a line or a list item.

Not guaranteed: that the words are true or harmless. They are exactly the words of their author.

Start reading at `determine_authorship`. Attacks on these rules are in tests/units/content/test_provenance.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from muniment.content.dependence import has_dependent_item
from muniment.content.expressions import compile_when_used
from muniment.content.words import STOP_WORDS, extract_features, is_unspaced
from muniment.files import load_package_tables
from muniment.kernel.normal_forms import normalise

# -- containment -------------------------------------------------------------------------------------
#
# Check whether an entry contains a fact that a caller wants remembered, with the same meaning.
#
# H1 All words of the fact are in the text, consecutive and in order. Numbers, signs, words with a capital and
#    words of other scripts must be the same; a small word of a to z may be inflected.
# H2 Ignored: case and compatibility forms, white space and line breaks, list markers, marks of emphasis,
#    quotation marks and common punctuation, articles, and a leading "the user", "user", "I" or "we", if no
#    other subject is in its place.
# H3 The sentence around the words has no denial, unless the fact has one.
# H4 A fact that is a list of items may be split over several texts; H1 to H3 apply to each item.
#
# In doubt the result is that a text does not contain the fact: then code stores the fact verbatim, which
# loses nothing. Attacks on these rules are in tests/units/content/test_provenance.py.

MAX_SEPARATE_ITEMS: Final = 8
"""Maximum number of list items that are stored separately: as many files as a run may write by default."""

MIN_STATEMENT_WORDS: Final = 3

MAX_POSITIONS: Final = 8
"""Maximum number of positions of a text that are checked in detail for a fact.

A text that repeats half of a fact more often is unusual.
"""

SENTENCE_CHARS: Final = 1_000
"""Number of characters before and after a fact that are searched for the ends of its sentence."""

_MARKER: Final = compile_when_used(r"^[ \t]*(?:[-*+>]|#{1,6}|\d{1,9}[.)])[ \t]+", re.MULTILINE)
_ITEM: Final = compile_when_used(r"(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_BULLET: Final = compile_when_used(r"[-*+][ \t]+(?!\[[ xX]\])(\S.*)")
_EMPHASIS: Final = compile_when_used(
    r"(?<![\w*_])(\*{1,3}|_{1,3})(?=[^\s*_])([^*_\n]+)(?<=[^\s*_])\1(?![\w*_])"
)
_TOKEN: Final = compile_when_used(
    r"(?<![\w.)\]])[-\u2212+](?=\w)|\d+(?:[.,:]\d+)+|\w+(?:['\u2019]\w+)*"
    r"|[^\w\s.,;:!()\[\]{}\"'`\u2018-\u201f\u00ab\u00bb\u2010-\u2015\u2026\u3001\u3002\uff0c-]"
)
_ARTICLES: Final = frozenset({"a", "an", "the", "An", "The"})  # But not "Plan A".
_HIDDEN: Final = compile_when_used(r"<!--.*?(?:-->|\Z)|~~[^~\n]*~~", re.DOTALL)
MAX_SPLIT_ITEMS: Final = 64
"""Maximum number of items of a list that may be split over several texts. A longer list stays one text."""

_SUBJECTS: Final = frozenset({"user", "i", "I", "we"})
_SMALL_WORD: Final = compile_when_used(r"[a-z]{2,}(?:'s)?")
_ENDINGS: Final = ("'s", "ies", "ied", "es", "ed", "ing", "s", "e", "y")
_MIN_STEM: Final = 3
_SENTENCE_END: Final = compile_when_used(r"[.!?;\u3002\uff01\uff1f](?=\s|\Z)|\n[ \t]*+\n")
_DENIAL: Final = compile_when_used(
    r"\b(?:not|no|never|none|nor|neither|without|cannot|\w+n['\u2019]?t|false(?:ly)?|untrue|wrong(?:ly)?|incorrect"
    r"|nicht|kein\w*|nie|niemals|ohne|falsch|pas|jamais|sans|faux|nunca|jam\u00e1s|sin|non|mai|senza"
    r"|n\u00e3o|sem|niet|geen|nooit|\u043d\u0435|\u043d\u0435\u0442|\u043d\u0438\u043a\u043e\u0433\u0434\u0430)\b"
    r"|[\u4e0d\u6ca1\u6c92\u7121\u65e0\u975e]|\u306a\u3044|\u307e\u305b\u3093"
)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a text in the form that is compared.

    Attributes:
        text: the word, folded; a single character keeps its case.
        stem: the word without an inflection, the same for all forms of a word.
        is_exact: whether only the same form matches this word.
        start: the offset of the word in the text.
        end: the offset after the word.
    """

    text: str
    stem: str
    is_exact: bool
    start: int
    end: int


def contains_fact(texts: Sequence[str], fact: str) -> bool:
    """Return whether one of `texts` contains `fact` with the same meaning.

    If the fact is a list, each of its items may be in another text.

    Args:
        texts: the bodies of entries, without front matter.
        fact: the fact to remember.

    Cost: linear in the texts and the fact, plus `MAX_POSITIONS` times the fact.
    """
    readable = [_SearchableText(text) for text in texts]
    return any(each.contains_fact(fact) for each in readable) or (
        len(items := _split_list_items(fact)) > 1
        and all(any(each.contains_fact(item) for each in readable) for item in items)
    )


def find_missing_statements(text: str, before: str) -> Iterator[str]:
    """Yield the sentences, headings and list items of the text `before` that `text` does not contain.

    Cost: linear in both texts for each statement that is not in `text` word for word.
    """
    present, readable = {unit.words for unit in _split_units(text)}, _SearchableText(text)
    for unit in _split_units(before):
        statement = " ".join(unit.words)
        if unit.words not in present and not readable.contains_fact(statement):
            yield statement


class _SearchableText:
    """A text, prepared for searching facts in it."""

    def __init__(self, text: str) -> None:
        self._text = _strip_markup(text)
        self._words = _split_words(self._text)
        self._stems = _join_stems(self._words)

    def contains_fact(self, fact: str) -> bool:
        plain = _strip_markup(fact)
        words = _split_words(plain)
        wanted = words[1:] if len(words) > 1 and words[0].text in _SUBJECTS else words
        if not wanted:
            return " ".join(plain.split()) in " ".join(self._text.split())
        is_denial = _DENIAL.search(plain.casefold()) is not None
        sought, position, number, counted = _join_stems(wanted), -1, 0, 0
        for _ in range(MAX_POSITIONS):
            position = self._stems.find(sought, position + 1)
            if position < 0:
                return False
            number += self._stems.count("\0", counted, position)
            counted = position
            found = self._words[number : number + len(wanted)]
            before, after = self._find_sentence_around(found[0].start, found[-1].end)
            is_same = all(
                one.text == other.text or not one.is_exact for one, other in zip(wanted, found, strict=True)
            )
            is_of_another = len(wanted) < len(words) and _find_other_subjects(before)
            is_denied = not is_denial and _DENIAL.search(f"{before}\n{after}".casefold())
            if is_same and not is_of_another and not is_denied:
                return True
        return False

    def _find_sentence_around(self, start: int, end: int) -> tuple[str, str]:
        """Return the text before and after a range, up to the ends of its sentence."""
        before = self._text[max(0, start - SENTENCE_CHARS) : start]
        after = self._text[end : end + SENTENCE_CHARS]
        begin = max((each.end() for each in _SENTENCE_END.finditer(before)), default=0)
        ending = _SENTENCE_END.search(after)
        return before[begin:], after[: ending.start() if ending else None]


def _find_other_subjects(before: str) -> set[str]:
    """Return the words before a fact in its sentence that may be another subject than the user."""
    line = {each.text for each in _split_words(before.rpartition("\n")[2])}
    # A line with its own subject does not depend on the line above.
    return (line or {each.text for each in _split_words(before)}) - _SUBJECTS


def split_separate_items(fact: str) -> tuple[str, ...]:
    """Return the items of a list of facts that may be stored separately; empty for other texts.

    The list must be flat, with `-`, `*` or `+`, and without other lines. Every item must be a statement of
    three words or more that introduces nothing and does not refer to another item. Numbered steps stay
    together.
    """
    lines = [line.rstrip(" \t") for line in fact.splitlines() if line.strip()]
    items, count = [match[1] for line in lines if (match := _BULLET.fullmatch(line))], len(lines)
    if not 1 < len(items) == count <= MAX_SEPARATE_ITEMS or len(set(items)) < count:
        return ()
    is_statement = all(is_unspaced(item) or len(item.split()) >= MIN_STATEMENT_WORDS for item in items)
    is_structured = any(map(_MARKUP.search, items)) or any(unit.is_lead_in for unit in _split_units(fact))
    are_independent = is_statement and not is_structured and not has_dependent_item(items)
    return tuple(items) if are_independent else ()


def _split_list_items(fact: str) -> list[str]:
    """Return the items of a flat list; empty if the fact has other lines or too many items."""
    lines = [line for line in fact.splitlines() if line.strip()]
    return (
        list(dict.fromkeys(lines)) if len(lines) <= MAX_SPLIT_ITEMS and all(map(_ITEM.match, lines)) else []
    )


def _strip_markup(text: str) -> str:
    """Return `text` without compatibility forms, markup, and text that is struck out or commented out."""
    text = _HIDDEN.sub(" ", text.replace("\0", " "))
    return _EMPHASIS.sub(r"\2", _MARKER.sub("\n", normalise("NFKC", text)))


def _split_words(plain: str) -> list[_Word]:
    found: list[_Word] = []
    for each in _TOKEN.finditer(plain):
        token = each[0].replace("\u2019", "'").replace("\u2212", "-")
        folded = token.casefold()
        if token in _ARTICLES:
            continue
        is_small = _SMALL_WORD.fullmatch(token) is not None
        stem = _stem(folded) if _SMALL_WORD.fullmatch(folded) else folded
        text = token if len(token) == 1 else folded  # `-d` is not `-D`.
        found.append(_Word(text, stem, not is_small, each.start(), each.end()))
    return found


def _stem(word: str) -> str:
    """Return `word` without English endings, unless the rest would be too short."""
    for _ in range(2):
        ending = next((each for each in _ENDINGS if word.endswith(each)), "")
        if len(word) - len(ending) >= _MIN_STEM:
            word = word.removesuffix(ending)
    return word


def _join_stems(words: Sequence[_Word]) -> str:
    """Return the stems of words as one text, between marks that never occur in a text."""
    return "\0".join(["", *(word.stem for word in words), ""])


# -- provenance --------------------------------------------------------------------------------------

MAX_LABEL_CHARS: Final = 300
"""Maximum number of characters of a label; a longer label counts as a text."""


class _ReversingWords(NamedTuple):
    """The word lists of `reversing_words.toml`, which describes them."""

    reversing: frozenset[str]
    reversing_unspaced: tuple[str, ...]
    small: frozenset[str]
    unspecific: frozenset[str]


@cache
def _load_words() -> _ReversingWords:
    """Return the word lists of `reversing_words.toml`. Cost: reads the file once per process."""
    words = {
        name: text.split()
        for name, text in load_package_tables("muniment.content", "reversing_words").items()
    }
    reversing, small = frozenset(words["reversing"]), frozenset(words["small"])
    reversing |= {f"{verb}nt" for verb in words["verbs"]}
    return _ReversingWords(
        reversing, tuple(words["unspaced"]), small, STOP_WORDS | small | {*words["unspecific"]}
    )


_MARKERS: Final = compile_when_used(
    r"[ \t]*((?:[-*+>][ \t]+)*)((?:[0-9]{1,3}[.)][ \t]+)?)((?:[-*+>][ \t]+)*)"
)
_HEADING: Final = compile_when_used(r" {0,3}#{1,6}(?:[ \t]|$)")
_ENDS_SENTENCE: Final = compile_when_used(
    r"[.!?\u2026\u3002\uff01\uff1f\u061f\u0964][\"')\]\u201d\u2019\u00bb]*\Z"
)
_WORD: Final = compile_when_used(r"\w+(?:['\u2019]\w+)*")
_NUMBER: Final = compile_when_used(r"\d")
_MARKUP: Final = compile_when_used(r"^[ \t]*(?:```|~~~|\||={2,}|-{2,})|^(?: {4}|\t)|<[!/?a-zA-Z]|~~")
_ENDING: Final = ".,;:!\u2026\u3002\uff0c"


class Authorship(Enum):
    """The origin of the words of a new text."""

    SAME = "same"
    """The text has the same words as the text that it replaces."""
    FACT = "fact"
    """The text consists of the fact only."""
    EXTENDED = "kept"
    """The text consists of the replaced text and the fact."""
    OTHERS = "others"
    """The text contains other words, or words that were changed."""


CanReplace = Callable[[str, str], bool]
"""Function that returns whether a fact (first argument) may replace an entry's body (second)."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, heading or list item.

    Attributes:
        words: the words of the unit, as written.
        line_prefix: the white space and markers at the beginning of its line; None: the unit starts inside a
            line.
        number: the marker of a numbered list.
        is_lead_in: whether it changes how the next lines are read: a heading, or a line that ends in a colon.
    """

    words: tuple[str, ...]
    line_prefix: str | None
    number: str
    is_lead_in: bool


def determine_authorship(body: str, fact: str, before: str | None, can_replace: CanReplace) -> Authorship:
    """Return the origin of the words in the body of an entry: the fact, the replaced entry, both, or others.

    Args:
        body: the new body of the entry.
        fact: the fact from the caller; if it is a list of facts (`split_separate_items`), each item counts as
            a fact too.
        before: the body of the entry that is replaced; None: the entry is new.
        can_replace: returns whether a fact may replace a body.

    Cost: linear in the texts.
    """
    new, old = _split_lines(body), None if before is None else _split_lines(before)
    if old is not None and new == old:
        return Authorship.SAME
    for each in (fact, *split_separate_items(fact)):
        if _is_fact(new, each):
            is_allowed = not old or _has_same_statements(body, before or "")
            is_allowed = is_allowed or can_replace(each, before or "")
            return Authorship.FACT if is_allowed else Authorship.OTHERS
        if old and new[: len(old)] == old and _can_be_appended(new[len(old) :], old, each):
            return Authorship.EXTENDED
    return Authorship.OTHERS


def _has_same_statements(body: str, before: str) -> bool:
    """Return whether two texts contain the same statements; list markers and line breaks may differ."""
    lost, added = find_missing_statements(body, before), find_missing_statements(before, body)
    return next(chain(lost, added), None) is None


def find_specific_words(text: str) -> frozenset[str]:
    """Return the words of a text that describe its subject, without stop words and other unspecific words."""
    return _extract_features(_split_units(text))


def is_label_of_fact(label: str, fact: str) -> bool:
    """Return whether a label (title, description, keyword) contains only words of one unit of a fact.

    A unit is a sentence, a line or a list item.

    A label that omits a word that reverses the meaning, such as "not", is rejected. Cost: linear in the fact.
    """
    wanted = _split_tokens(label)
    if len(label) > MAX_LABEL_CHARS or not set(wanted) - _load_words().small:
        return False
    if not {token for token in _split_tokens(fact) if _is_reversing(token)} <= set(wanted):
        return False
    units = [_split_tokens(unit) for unit in _list_folded_units(fact)]
    if any(map(is_unspaced, wanted)):
        return any("".join(unit).startswith("".join(wanted)) for unit in units)
    return any(_starts_with_label(unit, wanted) for unit in units)


def is_name_in_fact(name: str, fact: str) -> bool:
    """Return whether a sentence or list item of a fact contains a name.

    If the fact has words that reverse a meaning, such as "not", the name must have them too.
    """
    wanted, units = _WORD.findall(name.casefold()), [_WORD.findall(unit) for unit in _list_folded_units(fact)]
    if not wanted or not {word for words in units for word in words if _is_reversing(word)} <= set(wanted):
        return False
    size = len(wanted)
    return any(
        words[index : index + size] == wanted for words in units for index in range(len(words) - size + 1)
    )


def consists_of(text: str, sources: Sequence[str]) -> bool:
    """Return whether a text has all sentences and items of other texts, in their order, and no others.

    Args:
        text: the text.
        sources: the other texts. If one of them has a heading or a line that ends in a colon, the result
            is False.
    """
    text_units, source_units = _split_units(text), [_split_units(source) for source in sources]
    if any(unit.is_lead_in for units in source_units for unit in units):
        return False
    return all(_are_in_order(units, text_units) for units in source_units) and set(text_units) <= set(
        chain(*source_units)
    )


def _is_fact(lines: Sequence[str], fact: str) -> bool:
    """Return whether lines consist of a fact only (rule P1 in the module docstring)."""
    fact_lines = _split_lines(fact)
    if list(lines) == fact_lines:
        return bool(fact_lines)
    units, fact_units = _split_units("\n".join(lines)), _split_units(fact)
    if not units or not fact_units or any(map(_MARKUP.search, [*fact_lines, *lines])):
        return False
    if any(unit.is_lead_in or unit.line_prefix or unit.number for unit in fact_units):
        return False
    if any(unit.line_prefix or unit.number for unit in units[1:]) or units[0].number not in {"", "1."}:
        return False
    words, wanted = list(_list_words(units)), list(_list_words(fact_units))
    if units[0].line_prefix and _NUMBER.match(words[0]):
        return False  # Before a number a dash is a sign.
    return words[1:] == wanted[1:] and _lower_first(words[0]) == _lower_first(wanted[0])


def _can_be_appended(new: Sequence[str], old: Sequence[str], fact: str) -> bool:
    """Return whether the lines `new` are a fact that can be appended to `old` with the same meaning."""
    units = _split_units("\n".join(old))
    if any(unit.is_lead_in for unit in units) or any(map(_MARKUP.search, old)):
        return False
    if not _is_fact(_split_lines("\n".join(new)), fact):
        return False
    first, prefixes = (
        _split_units("\n".join(new))[0],
        {unit.line_prefix for unit in units if unit.line_prefix is not None},
    )
    if len(prefixes) > 1 or first.line_prefix not in prefixes or any(unit.number for unit in (first, *units)):
        return False
    return bool(first.line_prefix) or not new[0] or not _is_unfinished(units[-1].words)


def _starts_with_label(unit: Sequence[str], label: Sequence[str]) -> bool:
    """Return whether a label is a part of a sentence or item (`unit`) that only small words precede."""
    for index, token in enumerate(unit):
        if list(unit[index : index + len(label)]) == list(label):
            return True
        if token not in _load_words().small:
            return False
    return False


def _are_in_order(units: Sequence[_Unit], among: Sequence[_Unit]) -> bool:
    rest = iter(among)
    return all(unit in rest for unit in units)


def _list_words(units: Sequence[_Unit]) -> Iterator[str]:
    for unit in units:
        yield from unit.words


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text without trailing white space, and without blank lines at both ends."""
    lines = [line.rstrip() for line in normalise("NFC", text).splitlines()]
    filled = [index for index, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _split_units(text: str) -> list[_Unit]:
    units: list[_Unit] = []
    words: list[str] = []
    line_prefix: str | None = None
    number, is_heading = "", False

    def close(*, is_lead_in: bool = False) -> None:
        nonlocal words, line_prefix, number, is_heading
        if words:
            units.append(
                _Unit(tuple(words), line_prefix, number, is_lead_in or is_heading or _has_heading_form(words))
            )
        words, line_prefix, number, is_heading = [], None, "", False

    for line in normalise("NFC", text).splitlines():
        found = _MARKERS.match(line)
        marks, ordered = (found[0], found[2]) if found else ("", "")
        is_item = bool(marks.strip())
        if is_heading or is_item or not _is_unfinished(words) or not line.strip() or _HEADING.match(line):
            # A line directly above the items of a list defines how they are read.
            close(is_lead_in=is_item and not (line_prefix or "").strip() and not number)
        if not words:
            line_prefix, number = marks.replace(ordered, "", 1), ordered.strip()
            is_heading = _HEADING.match(line) is not None
        tokens = line[len(marks) :].split()
        for token, following in zip(tokens, [*tokens[1:], ""], strict=False):
            words.append(token)
            if following and not is_heading and _ENDS_SENTENCE.search(token) and not following[:1].islower():
                close()
    close()
    return units


def _has_heading_form(words: Sequence[str]) -> bool:
    """Return whether a line without a heading marker looks like a heading."""
    is_bold = words[0].startswith(("**", "__", "<")) and words[-1].endswith(("**", "__", ">"))
    return is_bold or words[-1].rstrip("*_").endswith((":", "\uff1a")) or not words[-1].strip("=-")


def _is_unfinished(words: Sequence[str]) -> bool:
    """Return whether a line ends in the middle of a sentence, judging by its last word."""
    return bool(words) and (
        words[-1].casefold() in _load_words().small
        or _is_reversing(words[-1])
        or words[-1].endswith((",", ";", "-"))
    )


def _split_tokens(text: str) -> list[str]:
    """Return the words of a label for a comparison: in lower case, without final punctuation."""
    found = (
        token.strip(_ENDING).replace("\u2019", "'") for token in normalise("NFC", text).casefold().split()
    )
    return [token for token in found if token]


def _extract_features(units: Sequence[_Unit]) -> frozenset[str]:
    return extract_features(" ".join(_list_words(units))) - _load_words().unspecific


def _list_folded_units(text: str) -> list[str]:
    return [" ".join(unit.words).casefold() for unit in _split_units(text)]


def _lower_first(word: str) -> str:
    return word[:1].casefold() + word[1:]


def _is_reversing(token: str) -> bool:
    known = _load_words()
    words = [word.replace("\u2019", "'").strip("_") for word in _WORD.findall(token.casefold())]
    return any(
        word in known.reversing
        or word.endswith("n't")
        or any(mark in word for mark in known.reversing_unspaced)
        for word in words
    )
