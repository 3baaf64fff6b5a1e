"""Decide whether a call was only quoted.

An honest model repeats text that it saw, and this may contain a call.

Q1  A call is quoted if its source text, or its tool and arguments in any order, were shown to the model.
Q2  Only letters are compared, with escapes resolved: no change of white space, quotation marks, escaping,
    case, digits or line numbers hides a quotation.
Q3  Of several arguments only the name of the last one is compared. If the end of a quotation is open (a
    string that the fact does not close), the model's own words follow in it.

In doubt it is a quotation, except for a reading call without any text, which has almost no effect. Not
covered: if a text talks a model into a call that it writes itself, or if the model expresses the displayed
text in other words or another notation, this is not a quotation.

Start at `DisplayedTexts`; attacked by `tests/units/agent/test_text_calls.py`.

Separate from `text_calls.py`, which reads calls: this module compares texts of any content.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from muniment.kernel.normal_forms import normalise
from muniment.sandbox.tools.calls import WRITING_TOOLS

MAX_TEXTS: Final = 12
"""Texts among the arguments of a call that are compared: the first ones. No tool has as many."""

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_ELLIPSIS: Final = re.compile(r"\.{3,}|\u2026")
_ESCAPES: Final = re.compile(r"(?<!\\)(?:(?:\\++u[0-9a-fA-F]{4})+|\\++[nrtbf])")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_GREP_PREFIX: Final = re.compile(r"^\S+:\d+: ", re.MULTILINE)
"""The prefix of a line from `grep`; `read_file` puts digits there, which are not compared."""

_TAG_FORM: Final = re.compile(r"<\s*+/?\s*+(?:function|invoke|parameter|param)(?![a-z])", re.IGNORECASE)

_CALL_WORDS: Final = (
    "name",
    "tool",
    "function",
    "functions",
    "invoke",
    "action",
    "call",
    "calls",
    "tools",
    "tag",
    "sep",
    "begin",
    "start",
)
"""Words that may directly precede the name of a tool in a call, by their letters."""


@dataclass(frozen=True, slots=True)
class DisplayedTexts:
    """The texts that a model saw, in the form in which they are compared.

    Attributes:
        letters: their letters, three times: with and without resolved escapes, and without the prefixes of
            `grep`.
        has_tags: whether they contain tags that enclose arguments. Text in such tags cannot be escaped, so
            the tag that ends an argument is ambiguous.
    """

    letters: str
    has_tags: bool
    _cache: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Self:
        """Prepare `texts` for comparison. Cost: linear, about 0.25 s per million characters."""
        plain = _normalize("\n".join(texts))
        text = _resolve_escapes(plain)
        spellings = (plain, text, _GREP_PREFIX.sub("", text))
        return cls("\0".join(map(_extract_letters, spellings)), contains_tags(text))

    def contains(self, text: str) -> bool:
        """Return whether the letters of `text` were shown (Q1, Q2). Cost: linear once, then cached."""
        if text not in self._cache:
            self._cache[text] = _extract_letters(_resolve_escapes(_normalize(text))) in self.letters
        return self._cache[text]

    def contains_call(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call was shown, in any order and form (Q1 to Q3).

        Texts are compared; numbers and arguments of other types count as shown. An ellipsis in a text
        matches any text.

        Cost: a search in `letters` for each argument.
        """
        if not any(self.contains(word + tool) for word in _CALL_WORDS):
            return False
        texts = [(key, value) for key, value in arguments.items() if isinstance(value, str)][:MAX_TEXTS]
        if tool not in WRITING_TOOLS and not any(value for _, value in texts):
            return False  # It has almost no effect, and its letters may occur anywhere by chance.
        if len(texts) > 1:
            texts[-1] = (texts[-1][0], "")
        return all(self.contains(piece) for key, value in texts for piece in _ELLIPSIS.split(key + value))


def contains_tags(text: str) -> bool:
    """Return whether `text` contains a tag that opens or closes a call or an argument of one."""
    return _TAG_FORM.search(text) is not None


def _resolve_escapes(plain: str) -> str:
    """Return the letters of a text without escapes.

    Escapes of JSON, with any number of backslashes, and of HTML, up to three times, are resolved.
    """
    unescaped = _ESCAPES.sub(_decode_escape, plain)
    for _ in range(3):
        unescaped = html.unescape(unescaped)
    return plain if unescaped == plain else _normalize(unescaped)


def _normalize(text: str) -> str:
    return _INVISIBLE.sub("", normalise("NFKD", text))


def _decode_escape(escapes: re.Match[str]) -> str:
    codes = escapes[0].replace("\\", "")
    if not codes.startswith("u"):
        return " "
    return bytes.fromhex(codes.replace("u", "")).decode("utf-16-be", "ignore")


def _extract_letters(resolved: str) -> str:
    return _NO_LETTERS.sub("", resolved.casefold())
