"""Decide whether a model only quoted a tool call in its text.

An honest model may repeat a text that it saw, and this text may contain a call.

Q1  A call is quoted if its source text was shown to the model, or its tool and all arguments, in any order.
Q2  Only letters are compared, after escapes are resolved. So a change of white space, quotation marks,
    escaping, case, digits or line numbers does not hide a quotation.
Q3  If a call has several arguments, only the name of the last one is compared, but not its value. The quoted
    text may end inside this value (a string that the fact does not close), and the model's own words then
    follow.

In doubt, a call counts as quoted. The exception is a reading call without any text, because it has almost no
effect. Not covered: a text that persuades a model to write a call in its own words, and a model that
expresses a displayed call in other words or another notation. Such calls do not count as quoted.

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
"""Maximum arguments of a call that are compared, the first ones; no tool has so many."""

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_ELLIPSIS: Final = re.compile(r"\.{3,}|\u2026")
_ESCAPES: Final = re.compile(r"(?<!\\)(?:(?:\\++u[0-9a-fA-F]{4})+|\\++[nrtbf])")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_GREP_PREFIX: Final = re.compile(r"^\S+:\d+: ", re.MULTILINE)
"""Matches the beginning of a line in the result of `grep`.

In a result of `read_file` it consists of digits, which are not compared.
"""

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
"""Words that may directly precede the name of a tool in a call; they are compared by their letters."""


@dataclass(frozen=True, slots=True)
class DisplayedTexts:
    """The texts that a model saw, in the form in which they are compared.

    Attributes:
        letters: the letters of the texts, in three versions: unchanged, with escapes resolved, and also
            without the prefixes of `grep`.
        has_tags: whether the texts contain tags that enclose arguments. A text inside such a tag cannot be
            escaped, so the end of the argument is ambiguous.
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
        """Return whether the letters of `text` were shown to the model.

        Cost: linear in the texts, then cached.
        """
        if text not in self._cache:
            self._cache[text] = _extract_letters(_resolve_escapes(_normalize(text))) in self.letters
        return self._cache[text]

    def contains_call(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call was shown to the model, with its arguments in any order and form.

        Only arguments that are texts are compared. An ellipsis in a text matches any text.

        Args:
            tool: the name of the called tool.
            arguments: the arguments of the call.

        Cost: a search in `letters` for each argument.
        """
        if not any(self.contains(word + tool) for word in _CALL_WORDS):
            return False
        texts = [(key, value) for key, value in arguments.items() if isinstance(value, str)][:MAX_TEXTS]
        if tool not in WRITING_TOOLS and not any(value for _, value in texts):
            return False  # Such a call has almost no effect, and its letters may occur in any text by chance.
        if len(texts) > 1:
            texts[-1] = (texts[-1][0], "")
        return all(self.contains(piece) for key, value in texts for piece in _ELLIPSIS.split(key + value))


def contains_tags(text: str) -> bool:
    """Return whether `text` contains a tag that opens or closes a call, or an argument of a call."""
    return _TAG_FORM.search(text) is not None


def _resolve_escapes(plain: str) -> str:
    """Return a text with its escapes resolved.

    These are escapes of JSON, with any number of backslashes, and escapes of HTML, up to three times.
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
