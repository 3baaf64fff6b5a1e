"""Reject characters that a reader of a file would not see. Each check is called a gate.

Guarantees, for the gates that are turned on:

- G1. `control`: no control characters except tab, line feed and carriage return; neither U+2028 nor U+2029.
- G2. `ansi`: no ESC, and no C1 characters that begin a terminal sequence.
- G3. `bidi`: no embedding, override or isolate. A single mark (U+200E, U+200F or U+061C) passes if a
  right-to-left letter is among the three characters on either side. Neither neighbour may be another mark.
- G4. `tag-chars`: no tag characters (U+E0000 to U+E007F) outside the flags of England, Scotland and Wales.
- G5. `zero-width`: no other character that is invisible by Unicode (format characters, fillers, variation
  selectors). Exceptions: - U+FEFF as the first character; - ZWJ and ZWNJ after a virama (RFC 5892, A.1 and
  A.2); - ZWJ between a letter and a virama, which Bengali and Kannada need; - ZWNJ next to a letter of a
  joining script, with a letter or digit on its other side (A.1, with complete
    scripts in place of joining types, which Python does not know);
  - ZWJ and ZWNJ that end a word, directly after a letter of a joining script and before a full stop, white
    space or the end, which Persian and Sorani need;
  - ZWJ between emoji;
  - one variation selector after a character that has variants.
- G6. An error contains the gate, the code point and the line, never the text.
- G7. `marks`, always on: at most `MAX_MARKS` combining marks in a row. No language writes more, no screen
  displays them, and other programs may need quadratic time to normalize them.

Not guaranteed: text without invisible characters can still deceive (lookalikes, private use, white space of
many widths). Variation selectors after ideographs pass, and each can hide a byte. Khmer and Thai text that
marks its words with U+200B is rejected, because it looks the same as hidden data. A fact from a caller passes
through `drop_invisible` before any gate reads it. The time is linear.

Attacks on these rules are in tests/units/content/test_gates.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

from muniment.content.expressions import compile_when_used
from muniment.errors import ContentRejected, ToolError
from muniment.kernel.normal_forms import MAX_MARKS, find_overlong_run

GATES: Final = ("control", "ansi", "bidi", "tag-chars", "zero-width")
"""The gates of this module that a policy may turn off, by their names in policies."""

MARKS_GATE: Final = "marks"
"""The gate against long runs of combining marks, which a policy cannot turn off."""

_CONTROL: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029"
_BIDI_MARKS: Final = "\u200e\u200f\u061c"
_BIDI: Final = f"{_BIDI_MARKS}\u202a-\u202e\u2066-\u2069"
_TAGS: Final = "\U000e0000-\U000e007f"
# Default_Ignorable_Code_Point of Unicode 16 and the format characters, without the ones above and without the
# prepended marks of Arabic, Syriac and Kaithi, which are of category Cf but have a shape.
_ZERO_WIDTH: Final = (
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0080-\U000e0fff"
)
_FLAGS: Final = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)

_INVISIBLE_CLASS: Final = f"[{_CONTROL}{_BIDI}{_TAGS}{_ZERO_WIDTH}]"
_INVISIBLE: Final = compile_when_used(_INVISIBLE_CLASS)
_SUSPECT: Final = compile_when_used(f"{_FLAGS}|{_INVISIBLE_CLASS}")
_NOT_DISPLAYED: Final = compile_when_used(
    f"{_INVISIBLE_CLASS}|\r(?!\n)|[\ud800-\udfff\ue000-\uf8ff\U000f0000-\U0010ffff]",
)
_PLAIN_ASCII: Final = b"\t\n\r" + bytes(range(0x20, 0x7F))
_IS_CONTROL: Final = compile_when_used(f"[{_CONTROL}]")
_IS_ANSI: Final = compile_when_used("[\x1b\x90\x98\x9b\x9d-\x9f]")
_IS_BIDI: Final = compile_when_used(f"[{_BIDI}]")
_IS_TAG: Final = compile_when_used(f"[{_TAGS}]")
_IS_IDEOGRAPH: Final = compile_when_used("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
_IS_EMOJI: Final = compile_when_used(
    "[\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_IS_JOINING: Final = compile_when_used(
    "[\u0620-\u064a\u066e-\u06d3\u06d5-\u074f\u0750-\u077f\u07ca-\u07ea\u0840-\u0858\u0860-\u08c9\u1820-\u18aa"
    "\ua840-\ua873\U00010ac0-\U00010ae4\U00010b80-\U00010baf\U00010d00-\U00010d23\U00010f30-\U00010f54"
    "\U0001e900-\U0001e943]"
)
_IS_MONGOLIAN: Final = compile_when_used("[\u1820-\u18aa]")
_HAS_DOTTED_FORM: Final = compile_when_used("[\u1000-\u109f\ua840-\ua877]")
_WORD_ENDS: Final = frozenset({"", ".", "\u06d4", " ", "\t", "\r", "\n"})
_ZWNJ, _ZWJ, _EMOJI_STYLE = "\u200c", "\u200d", "\ufe0f"
_ALWAYS_DROPPED: Final = compile_when_used("[\xad\u200b\u2060\ufeff]")
_JOINERS: Final = compile_when_used(f"[{_ZWNJ}{_ZWJ}]")
_VIRAMA_CLASS: Final = 9  # canonical combining class of a virama, as defined in RFC 5892


def decode(data: bytes) -> str:
    """Return the text of `data`, or reject bytes that are not text. A policy cannot turn this check off.

    Raises:
        ToolError: the bytes are not strict UTF-8 (overlong forms and surrogates are invalid), or contain NUL.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ToolError(f"this is not UTF-8: invalid byte {problem.start + 1}", code="not_text") from None
    _require_no_nul(text)
    return text


def encode(text: str) -> bytes:
    """Return `text` as the bytes of a file.

    Raises:
        ToolError: the text contains NUL or half a surrogate pair, which no text file may contain.
    """
    _require_no_nul(text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise ToolError(
            f"this is not text: half a surrogate pair at {problem.start + 1}", code="not_text"
        ) from None


def check_text(text: str, reject: Collection[str]) -> None:
    """Raise an error if one of the given gates rejects an invisible character in `text`.

    Each gate checks for one kind of character. The gate `marks`, against long runs of combining marks, always
    applies.

    Args:
        text: the text.
        reject: names of gates in `GATES`.

    Raises:
        ContentRejected: a gate rejects a character. The error names the first such character and its line.
        ValueError: `reject` contains a name that is not in `GATES`; ignoring it would allow everything.
    """
    unknown = set(reject).difference(GATES)
    if unknown:
        raise ValueError(f"unknown gate {min(unknown)!r}; use one of {', '.join(GATES)}")
    if text.isascii() and not text.encode().translate(None, _PLAIN_ASCII):
        return  # true for nearly every entry, and thirty times as fast
    if (start := find_overlong_run(text)) is not None:
        raise ContentRejected(
            f"line {count_line(text, start)} contains more than {MAX_MARKS} marks in a row; remove them",
            rule=MARKS_GATE,
        )
    for found in _SUSPECT.finditer(text):
        if len(found[0]) > 1:  # a complete flag (G4)
            continue
        for gate in _list_rejecting_gates(text, found.start()):
            if gate in reject:
                what = f"line {count_line(text, found.start())} contains U+{ord(found[0]):04X}"
                raise ContentRejected(f"{what}, which the gate {gate!r} rejects; remove it", rule=gate)


def drop_invisible(text: str) -> str:
    """Return `text` without the invisible characters that come from web pages and change no word.

    These are soft hyphens, zero-width spaces, word joiners and byte order marks in any position. Joiners and
    non-joiners are removed if neither a script nor an emoji needs them. Other characters stay for the gates.
    """
    if text.isascii():
        return text
    text = _ALWAYS_DROPPED.sub("", text)
    while text != (cleaned := _JOINERS.sub(partial(_keep_needed_joiner, text), text)):
        text = cleaned
    return text


def _keep_needed_joiner(text: str, found: re.Match[str]) -> str:
    return found[0] if _is_needed(text, found.start()) else ""


def escape_invisible(text: str) -> str:
    r"""Return `text` with invisible characters written as `\u{…}`, including those that the gates allow."""
    return _NOT_DISPLAYED.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def clean_line(text: str) -> str:
    """Return `text` on one line, with single spaces and without invisible characters.

    Invisible characters that the gates allow are removed too, and so are halves of surrogate pairs.
    """
    if text.isascii() and text.isprintable() and "  " not in text:  # Most texts; ten times faster.
        return text.strip()
    flat = " ".join(text.split())
    return " ".join(re.sub("[\ud800-\udfff]", "", _INVISIBLE.sub("", flat)).split())


def clean_foreign_line(text: str) -> str:
    """Return text from another source on one line, so that it cannot forge lines of output or hide text."""
    return escape_invisible(clean_line(text))


def count_line(text: str, offset: int) -> int:
    """Return the number of the line that contains the character at `offset`; the first line is 1."""
    return len(re.findall("\r\n|\n|\r", text[:offset])) + 1


def _require_no_nul(text: str) -> None:
    if "\0" in text:
        raise ToolError("this is not text: it contains NUL", code="not_text")


def _list_rejecting_gates(text: str, position: int) -> Iterator[str]:
    """Yield the gates that reject the invisible character at `position`, the most specific first."""
    char = text[position]
    if _IS_ANSI.match(char):
        yield "ansi"
    if _IS_CONTROL.match(char):
        yield "control"
    elif _IS_BIDI.match(char):
        if not (char in _BIDI_MARKS and _is_near_right_to_left(text, position)):
            yield "bidi"
    elif _IS_TAG.match(char):
        yield "tag-chars"
    elif not _is_needed(text, position):
        yield "zero-width"


def _is_near_right_to_left(text: str, position: int) -> bool:
    before, after = text[max(0, position - 3) : position], text[position + 1 : position + 4]
    if set(before[-1:] + after[:1]).intersection(_BIDI_MARKS):
        return False
    return any(
        unicodedata.bidirectional(char) in ("R", "AL") and char not in _BIDI_MARKS for char in before + after
    )


def _is_needed(text: str, position: int) -> bool:
    """Return whether the characters next to the invisible one at `position` need it for their form."""
    char = text[position]
    before, after = text[position - 1 : position] if position else "", text[position + 1 : position + 2]
    if char == "\ufeff":
        return position == 0
    if not before:
        return False
    if char in (_ZWJ, _ZWNJ) and (
        unicodedata.combining(before) == _VIRAMA_CLASS or _ends_word(before, after)
    ):
        return True
    if char == _ZWJ:
        return _joins_characters(text, position, before, after)
    if char == _ZWNJ:
        return _separates_letters(text, position)
    return _is_valid_selector(before, char)


def _ends_word(before: str, after: str) -> bool:
    return before.isalpha() and _IS_JOINING.match(before) is not None and after in _WORD_ENDS


def _joins_characters(text: str, position: int, before: str, after: str) -> bool:
    if not after:
        return False
    if before == _EMOJI_STYLE:
        before = text[position - 2 : position - 1]
    emoji = _IS_EMOJI.match(before) is not None and _IS_EMOJI.match(after) is not None
    return emoji or (before.isalpha() and unicodedata.combining(after) == _VIRAMA_CLASS)


def _separates_letters(text: str, position: int) -> bool:
    left, right = position - 1, position + 1
    while left > 0 and unicodedata.category(text[left]) == "Mn":
        left -= 1
    while right < len(text) - 1 and unicodedata.category(text[right]) == "Mn":
        right += 1
    before, after = text[left], text[right : right + 1]
    joining = _IS_JOINING.match(before) or _IS_JOINING.match(after)
    return joining is not None and before.isalnum() and after.isalnum()


def _is_valid_selector(before: str, char: str) -> bool:
    if char in "\ufe0e\ufe0f":
        shape = unicodedata.category(before) in ("So", "Sm") or _IS_EMOJI.match(before) is not None
        return shape or before in "0123456789#*‼⁉〰ℹ"  # noqa: RUF001
    if "\U000e0100" <= char <= "\U000e01ef" or char in "\ufe00\ufe01\ufe02":
        dotted = char == "\ufe00" and _HAS_DOTTED_FORM.match(before) is not None
        return dotted or _IS_IDEOGRAPH.match(before) is not None
    return "\u180b" <= char <= "\u180f" and _IS_MONGOLIAN.match(before) is not None
