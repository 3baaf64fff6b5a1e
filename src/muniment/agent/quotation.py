"""Decide whether a call was only quoted: an honest model repeats what it was shown, and that may hold a call.

Q1  A call whose own text, or whose tool and arguments, in any order, were shown to the model, is quoted.
Q2  Letters are compared and nothing else, with escapes resolved: no change of white space, quotation marks,
    escaping, case, digits or line numbers hides a quotation.
Q3  Of several arguments the last is compared by name alone: a quotation whose end is left open (a string
    that the fact does not close) goes on in the model's own words.

In doubt it is a quotation, save for a reading call without any text, which does next to nothing. What
does not hold: a model that was talked into a call of its own making, or tells in other words or another
notation what it was shown, is not quoting.

Start at `ShownTexts`; attacked by `tests/units/agent/test_spoken.py`.

Apart from `spoken.py`, which reads calls: this compares texts, whatever stands in them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from muniment.kernel.normal_forms import normalised
from muniment.sandbox.tools.calls import WRITING_TOOLS

MAX_TEXTS: Final = 12
"""Texts among the arguments of a call that are compared: the first ones. No tool takes as many."""

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_LEFT_OUT: Final = re.compile(r"\.{3,}|\u2026")
_ESCAPES: Final = re.compile(r"(?<!\\)(?:(?:\\++u[0-9a-fA-F]{4})+|\\++[nrtbf])")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_FOUND_AT: Final = re.compile(r"^\S+:\d+: ", re.MULTILINE)
"""What `grep` puts before a line; `read_file` puts digits there, which are not compared."""

_TAG_FORM: Final = re.compile(r"<\s*+/?\s*+(?:function|invoke|parameter|param)(?![a-z])", re.IGNORECASE)

_BEFORE: Final = (
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
"""What may stand right before the name of a tool in a call, by its letters."""


@dataclass(frozen=True, slots=True)
class ShownTexts:
    """The texts shown to a model, as they are compared.

    Attributes:
        letters: theirs, thrice: with escapes resolved and not, and without what `grep` puts before lines.
        has_tags: whether they hold tags of the form that writes arguments between tags, where no text can be
            escaped: whose tag ends an argument is then anybody's guess.
    """

    letters: str
    has_tags: bool
    _known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Cost: linear, about a quarter of a second a million characters."""
        plain = _plain("\n".join(texts))
        text = _resolved(plain)
        spellings = (plain, text, _FOUND_AT.sub("", text))
        return cls("\0".join(map(_letters, spellings)), holds_tags(text))

    def holds(self, text: str) -> bool:
        """Whether `text` was shown, as it stands (Q1, Q2). Cost: linear the first time, none again."""
        if text not in self._known:
            self._known[text] = _letters(_resolved(_plain(text))) in self.letters
        return self._known[text]

    def holds_call(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call was shown, in any order and form (Q1 to Q3).

        Texts are compared; numbers and whatever no tool takes are not, as if they had been shown. What an
        ellipsis leaves out of a text may be anything.

        Cost: a search in `letters` for each argument.
        """
        if not any(self.holds(word + tool) for word in _BEFORE):
            return False
        texts = [(key, value) for key, value in arguments.items() if isinstance(value, str)][:MAX_TEXTS]
        if tool not in WRITING_TOOLS and not any(value for _, value in texts):
            return False  # It shows next to nothing, and its letters may stand anywhere by chance.
        if len(texts) > 1:
            texts[-1] = (texts[-1][0], "")
        return all(self.holds(piece) for key, value in texts for piece in _LEFT_OUT.split(key + value))


def holds_tags(text: str) -> bool:
    """Whether `text` holds a tag that opens or closes a call or an argument of one."""
    return _TAG_FORM.search(text) is not None


def _resolved(plain: str) -> str:
    """Plain letters without escapes of JSON, however many backslashes they have, and of HTML, thrice over."""
    unescaped = _ESCAPES.sub(_unescaped, plain)
    for _ in range(3):
        unescaped = html.unescape(unescaped)
    return plain if unescaped == plain else _plain(unescaped)


def _plain(text: str) -> str:
    return _INVISIBLE.sub("", normalised("NFKD", text))


def _unescaped(escapes: re.Match[str]) -> str:
    codes = escapes[0].replace("\\", "")
    if not codes.startswith("u"):
        return " "
    return bytes.fromhex(codes.replace("u", "")).decode("utf-16-be", "ignore")


def _letters(resolved: str) -> str:
    return _NO_LETTERS.sub("", resolved.casefold())
