"""Whose words a text is made of, so that trust can follow the words and not the request. Pure.

P1 A text is a fact's if it is the fact, word by word and in order, but for the case of its first letter.
   Plain prose may be wrapped otherwise and made a list item or quotation; what has a structure of its own
   (lists, headings, lead-ins, code, markup) stands line by line as it is.
P2 A text keeps an entry if it is the entry, line by line, with the fact behind it: as one more item of its
   list, or as lines of its prose. An entry with headings, lead-ins, code or markup is not added to: what
   stands below them is turned by them.
P3 A fact takes the place of an entry that is about the same: they share half of the words that say something,
   and no unit of the entry turns a meaning. A unit is a sentence, line or list item.
P4 A label (title, description, keyword) is a fact's if it is a stretch of a unit from its beginning, small
   words aside, and has every word of the fact that turns a meaning. A name need not begin with the unit.
P5 A text is made of others if it has all of their units, those of each in order, and no other, and none of
   them is a heading or lead-in.

What does not hold: that the words are true, or harmless. They are somebody's own, as he said them.

Start at `whose`; attacked in tests/content/test_provenance.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final

from muniment.content.words import STOP_WORDS, features, is_running
from muniment.policy.grammar import normalised

MAX_LABEL_CHARS: Final = 300
"""Characters of a label; a longer one is a text."""

_DENIALS: Final = """
no not never none nobody nothing nowhere neither nor cannot without unless except only but however instead
although until if when false wrong untrue hardly rarely stop avoid than against
nicht nie niemals kein keine keinen keinem keiner keines nichts niemand ohne außer nur aber sondern statt
bis wenn falls falsch weder noch
ne pas jamais rien aucun aucune sans sauf mais plutôt seulement si quand faux ni
nunca jamás nada nadie ningún ninguna ninguno sin salvo excepto pero sino solo sólo cuando tampoco
non mai niente nessuno nessuna senza tranne ma però solo se quando né
não nunca nada ninguém nenhum nenhuma sem exceto mas só se quando nem
niet nooit geen niets niemand zonder behalve maar alleen tenzij fout
не нет ни никогда ничего никто без кроме но только если
"""
_VERBS: Final = "do does did ca wo is are was were should could would must have has had need ai"
_TURNING: Final = frozenset(f"{_DENIALS}".split()) | {f"{verb}nt" for verb in f"{_VERBS}".split()}
"""Words that deny, limit or turn what stands beside them, in some large languages."""

_RUNNING_DENIALS: Final = "不 没 沒 未 无 無 非 勿 莫 别 別 否 但 ない なかっ ません なし だけ 않 없 아니 못"
_TURNING_RUNNING: Final = tuple(f"{_RUNNING_DENIALS}".split())
"""Likewise in scripts where words are not told apart; each is looked for anywhere."""

_SMALL: Final = """
a an the is are was were be been of to in on at for and or with by as that this these those it its
i me my mine we our us you your he his she her they their user user's users has have had do does will
"""
_LOOSE: Final = frozenset(f"{_SMALL}".split())
"""Small words that a label may leave out or add, none of which turns a meaning."""

_PREFERENCES: Final = "like likes love loves prefer prefers want wants use uses need needs always"
_OF_ANYTHING: Final = STOP_WORDS | _LOOSE | frozenset(f"{_PREFERENCES}".split())
"""Words that make no two texts be about the same."""

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

    @property
    def turns(self) -> bool:
        """Whether it denies, limits or turns something."""
        return any(map(_is_turning, self.words))


def whose(body: str, fact: str, before: str | None) -> Whose:
    """Whose the words of an entry are (P1 to P3).

    Args:
        body: of the entry as it is to be.
        fact: what was said.
        before: body of the entry that it replaces; None: there is none.

    Cost: linear in the texts.
    """
    said, old = _lines(body), None if before is None else _lines(before)
    if old is not None and said == old:
        return Whose.SAME
    if _is_fact(said, fact):
        return Whose.FACT if not old or _may_go(_units(before or ""), _units(fact)) else Whose.OTHERS
    if old and said[: len(old)] == old and _may_follow(said[len(old) :], old, fact):
        return Whose.KEPT
    return Whose.OTHERS


def stands_in(label: str, fact: str) -> bool:
    """Whether a label says nothing but what a fact says (P4). Cost: linear in the fact."""
    wanted = _tokens(label)
    if len(label) > MAX_LABEL_CHARS or not set(wanted) - _LOOSE:
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


def _may_go(gone: Sequence[_Unit], told: Sequence[_Unit]) -> bool:
    """Whether a fact may take the place of some units (P3)."""
    old, new = _features(gone), _features(told)
    is_about_it = 2 * len(old & new) >= max(len(old), len(new), 1)
    return is_about_it and not any(unit.leads or unit.turns for unit in gone)


def _begins(unit: Sequence[str], label: Sequence[str]) -> bool:
    """Whether a label is a stretch of a unit, before which nothing but small words stands."""
    for at, token in enumerate(unit):
        if list(unit[at : at + len(label)]) == list(label):
            return True
        if token not in _LOOSE:
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
        words[-1].casefold() in _LOOSE or _is_turning(words[-1]) or words[-1].endswith((",", ";", "-"))
    )


def _tokens(text: str) -> list[str]:
    """Words as labels are compared by: all of their characters, but for case and what ends a clause."""
    found = (
        token.strip(_ENDING).replace("\u2019", "'") for token in normalised("NFC", text).casefold().split()
    )
    return [token for token in found if token]


def _features(units: Sequence[_Unit]) -> frozenset[str]:
    return features(" ".join(_flat(units))) - _OF_ANYTHING


def _folded_units(text: str) -> list[str]:
    return [" ".join(unit.words).casefold() for unit in _units(text)]


def _lowered(word: str) -> str:
    return word[:1].casefold() + word[1:]


def _is_turning(token: str) -> bool:
    words = [word.replace("\u2019", "'").strip("_") for word in _WORD.findall(token.casefold())]
    return any(
        word in _TURNING or word.endswith("n't") or any(mark in word for mark in _TURNING_RUNNING)
        for word in words
    )
