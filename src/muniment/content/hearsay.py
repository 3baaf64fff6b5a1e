"""What people and programs are told of a model's own words: its last ones, and the paths that it asked for.

H1 `quoted`: words that pass every content gate, whatever a policy says, as text of the least trust: fenced,
   with nothing invisible. Any other words are not told, only which gate stopped them.
H2 `shape`: a path with nothing of it but how it is made; only names that code knows stand in it.

Does not hold: words that pass may still be false, or ask for something in words that no rule knows. They are
data for whoever asked to see them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from muniment.content.admission import held_for
from muniment.content.gates import one_line, visible
from muniment.content.quoting import fenced
from muniment.names import Trust

MAX_QUOTED_CHARS: Final = 300
"""Characters of a model's words that anybody is told."""

_SUFFIX: Final = re.compile(r"(?s)(.*?)(\.md)?")
_DOTS: Final = frozenset({"", ".", ".."})


def stopped_by(words: str, trust: Trust = Trust.EXTERNAL) -> str | None:
    """The gate that words do not pass; None: they pass all (H1).

    Args:
        words: of a model.
        trust: `WORKSPACE` for sentences of ours that may quote them, and address whoever reads.
    """
    return held_for(words.encode("utf-8", "replace"), "", trust)


def own(sentence: str, instead: str) -> str:
    """A sentence of ours that may quote a model or its server; another one if it does not pass the gates."""
    return sentence if sentence and stopped_by(sentence, Trust.WORKSPACE) is None else instead


def quoted(words: str, token: str) -> str:
    """A model's words as data (H1).

    Args:
        words: of any length; the whole of them is gated.
        token: random text for the fence.
    """
    gate = stopped_by(words)
    if gate is not None:
        return f"(the model's words are not shown: they do not pass the gate {gate!r})"
    return fenced(visible(one_line(words)[:MAX_QUOTED_CHARS]), "words of the model", token)


def shape(unsafe_path: str, known: Collection[str]) -> str:
    """How a path is made, such as `user/<12>/../../<14>.md` (H2).

    Args:
        unsafe_path: anything.
        known: names of scopes.
    """
    first, *rest = unsafe_path.split("/")
    return "/".join([first if first in known else _length(first), *map(_length, rest)])


def _length(segment: str) -> str:
    if segment in _DOTS:
        return segment
    found = _SUFFIX.fullmatch(segment)
    stem, suffix = (found[1], found[2] or "") if found else (segment, "")
    return f"<{len(stem)}>{suffix}"
