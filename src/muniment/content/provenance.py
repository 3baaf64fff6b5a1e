"""Whose words a text is made of, so that trust can follow the words and not the request. Pure.

P1 A text is a fact's if it is the fact, word by word and in order, but for the case of its first letter.
   Plain prose may be wrapped otherwise and made a list item or quotation; what has a structure of its own
   (lists, headings, lead-ins, code, markup) stands line by line as it is.
P2 A text keeps an entry if it is the entry, line by line, with the fact behind it: as one more item of its
   list, or as lines of its prose. An entry with headings, lead-ins, code or markup is not added to: what
   stands below them is turned by them.
P3 A fact takes the place of an entry only if the caller's rule says so (`agent.updates.supersedes`: the fact
   says that something changed). A unit is a sentence, line or list item.
P4 A label (title, description, keyword) is a fact's if it is a stretch of a unit from its beginning, small
   words aside, and has every word of the fact that turns a meaning. A name need not begin with the unit.
P5 A text is made of others if it has all of their units, those of each in order, and no other, and none of
   them is a heading or lead-in.

What does not hold: that the words are true, or harmless. They are somebody's own, as he said them.

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

# -- holding -----------------------------------------------------------------------------------------
#
# Whether an entry holds a fact: what was asked to be remembered stands there, and still says it. Pure.
#
# H1 All words of the fact stand in the text one after the other, with nothing between them. Numbers, signs,
# words with a capital and words of other scripts are the same; a small word of a to z may be inflected. H2
# Left out of the comparison: case and compatibility forms, white space and line breaks, list markers, marks
# of emphasis, quotation marks and common punctuation, articles, and a leading "the user", "user", "I" or
# "we", where no other subject stands in its place. H3 The sentence around them denies nothing that the fact
# does not deny. H4 A fact that is a list of items may stand in several texts, each item by H1 to H3.
#
# In doubt a text does not hold it: then code files the fact verbatim, which loses nothing. Attacked by
# `tests/units/content/test_provenance.py`.

MAX_SEPARATE: Final = 8
"""Items of a list that are filed each by itself: as many files as a run may write unless a policy says so."""

MIN_STATEMENT_WORDS: Final = 3

MAX_PLACES: Final = 8
"""Places of a text that are looked at more closely: a text that says half of a fact more often is odd."""

SENTENCE_CHARS: Final = 1_000
"""Characters before and after a fact in which its sentence is looked at."""

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
"""Items of a list that may stand in several texts; of a longer one code makes one text."""

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
    """A word of a text, as it is compared.

    Attributes:
        stem: its form without an inflection, the same for all forms of a word.
        is_exact: whether no other form will do.
    """

    text: str
    stem: str
    is_exact: bool
    start: int
    end: int


def holds(texts: Sequence[str], fact: str) -> bool:
    """Whether `fact` stands in one of `texts`, or each item of a list in any of them.

    Args:
        texts: bodies of entries, without front matter.
        fact: what was to be remembered.

    Cost: linear in both, but for `MAX_PLACES` times the fact.
    """
    readable = [_Readable(text) for text in texts]
    return any(each.holds(fact) for each in readable) or (
        len(items := _items(fact)) > 1 and all(any(each.holds(item) for each in readable) for item in items)
    )


def missing_statements(text: str, before: str) -> Iterator[str]:
    """Yield the sentences, headings and list items of an earlier text that a text does not hold.

    Cost: linear in both for each of them that does not stand there word for word.
    """
    kept, readable = {unit.words for unit in _units(text)}, _Readable(text)
    for unit in _units(before):
        statement = " ".join(unit.words)
        if unit.words not in kept and not readable.holds(statement):
            yield statement


class _Readable:
    """A text that facts are looked for in."""

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
        """What stands before and after a stretch of the text in its sentence."""
        before = self._text[max(0, start - SENTENCE_CHARS) : start]
        after = self._text[end : end + SENTENCE_CHARS]
        begin = max((each.end() for each in _SENTENCE_END.finditer(before)), default=0)
        ending = _SENTENCE_END.search(after)
        return before[begin:], after[: ending.start() if ending else None]


def _other_subjects(before: str) -> set[str]:
    """What may be spoken of instead of the user, in what stands before a fact in its sentence."""
    line = {each.text for each in _words(before.rpartition("\n")[2])}
    # With a subject of its own a line begins anew, whatever the one above says.
    return (line or {each.text for each in _words(before)}) - _SUBJECTS


def separate_items(fact: str) -> tuple[str, ...]:
    """The items of a list of facts that may be filed each by itself; none where it is no such list.

    It is flat, of `-`, `*` or `+`, nothing else stands in it, and every item is a statement of three words or
    more, introduces nothing, and speaks of no other one. Steps that are numbered stay together.
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
    """The items of a flat list, where the fact is nothing else; else nothing."""
    lines = [line for line in fact.splitlines() if line.strip()]
    return list(dict.fromkeys(lines)) if len(lines) <= MAX_ITEMS and all(map(_ITEM.match, lines)) else []


def _plain(text: str) -> str:
    """`text` without compatibility forms, markup and what is struck out or commented out (H2)."""
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
    """`word` without the endings of English, for as long as enough of it is left."""
    for _ in range(2):
        ending = next((each for each in _ENDINGS if word.endswith(each)), "")
        if len(word) - len(ending) >= _MIN_STEM:
            word = word.removesuffix(ending)
    return word


def _joined(words: Sequence[_Word]) -> str:
    """The stems between marks that no text holds."""
    return "\0".join(["", *(word.stem for word in words), ""])


# -- provenance --------------------------------------------------------------------------------------

MAX_LABEL_CHARS: Final = 300
"""Characters of a label; a longer one is a text."""


class _TurningWords(NamedTuple):
    """Those of `turning.toml`, which says what they are."""

    turning: frozenset[str]
    running: tuple[str, ...]
    loose: frozenset[str]
    of_anything: frozenset[str]


@cache
def _lists() -> _TurningWords:
    """The shipped words. Cost: reads a file of the package, once a process."""
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
    """Whose the words of a new text are."""

    SAME = "same"
    """The text that it replaces has the same."""
    FACT = "fact"
    """Those of the fact alone."""
    KEPT = "kept"
    """Those of the text that it replaces, and the fact's."""
    OTHERS = "others"
    """Not the requester's, or not as he said them."""


Replaces = Callable[[str, str], bool]
"""Whether a fact may take the place of the body of an entry."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, heading or list item.

    Attributes:
        place: white space and markers at the beginning of its line; None: it goes on in a line.
        number: the marker of a numbered list.
        leads: whether it says how to read what follows: a heading, or a line that ends in a colon.
    """

    words: tuple[str, ...]
    place: str | None
    number: str
    leads: bool


def whose(body: str, fact: str, before: str | None, replaces: Replaces) -> Whose:
    """Whose the words of an entry are (P1 to P3).

    Args:
        body: of the entry as it is to be.
        fact: what was said; of a list of facts (`separate_items`) each item by itself is one, too.
        before: body of the entry that it replaces; None: there is none.
        replaces: whether a fact may take the place of a body.

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
    """Return whether two texts hold the same statements, however they are marked and wrapped."""
    lost, added = missing_statements(body, before), missing_statements(before, body)
    return next(chain(lost, added), None) is None


def telling_words(text: str) -> frozenset[str]:
    """Return the words of a text that say what it is about."""
    return _features(_units(text))


def stands_in(label: str, fact: str) -> bool:
    """Whether a label says nothing but what a fact says (P4). Cost: linear in the fact."""
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
    """Whether the words of a name stand side by side in a unit of a fact, with all that turns its meaning."""
    wanted, said = _WORD.findall(name.casefold()), [_WORD.findall(unit) for unit in _folded_units(fact)]
    if not wanted or not {word for words in said for word in words if _is_turning(word)} <= set(wanted):
        return False
    size = len(wanted)
    return any(words[at : at + size] == wanted for words in said for at in range(len(words) - size + 1))


def is_made_of(text: str, sources: Sequence[str]) -> bool:
    """Whether a text has all units of others, those of each in order, and no other (P5)."""
    said, theirs = _units(text), [_units(source) for source in sources]
    if any(unit.leads for units in theirs for unit in units):
        return False
    return all(_stand_in_order(units, said) for units in theirs) and set(said) <= set(chain(*theirs))


def _is_fact(said: Sequence[str], fact: str) -> bool:
    """Whether lines are a fact's (P1)."""
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
    """Whether lines are a fact that may stand behind others (P2)."""
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
    """Whether a label is a stretch of a unit, before which nothing but small words stands."""
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
    """Lines without white space at their ends, and without blank ones around them."""
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
            # What stands right above the items of a list says how to read them.
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
    """Whether a line that is no heading by its marker reads like one."""
    is_bold = words[0].startswith(("**", "__", "<")) and words[-1].endswith(("**", "__", ">"))
    return is_bold or words[-1].rstrip("*_").endswith((":", "\uff1a")) or not words[-1].strip("=-")


def _goes_on(words: Sequence[str]) -> bool:
    """Whether a line ends in the middle of a sentence, as far as its last word tells."""
    return bool(words) and (
        words[-1].casefold() in _lists().loose
        or _is_turning(words[-1])
        or words[-1].endswith((",", ";", "-"))
    )


def _tokens(text: str) -> list[str]:
    """Words as labels are compared by: all of their characters, but for case and what ends a clause."""
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
