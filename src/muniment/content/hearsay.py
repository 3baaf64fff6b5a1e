"""What people and programs are told of a model's last words.

Words that pass every content gate, whatever a policy says, are told as text of the least trust: fenced, with
nothing invisible. Of any others it is told only which gate stopped them.

Does not hold: words that pass may still be false, or ask for something in words that no rule knows. They are
data for whoever asked to see them.
"""

from __future__ import annotations

from typing import Final

from muniment.content.admission import held_for
from muniment.content.gates import one_line, visible
from muniment.content.quoting import fenced
from muniment.names import Trust

MAX_QUOTED_CHARS: Final = 300
"""Characters of a model's words that anybody is told."""


def stopped_by(words: str, trust: Trust = Trust.EXTERNAL) -> str | None:
    """The gate that words do not pass; None: they pass all.

    Args:
        words: of a model.
        trust: `WORKSPACE` for sentences of ours that may quote them, and address whoever reads.
    """
    return held_for(words.encode("utf-8", "replace"), "", trust)


def own(sentence: str, instead: str) -> str:
    """A sentence of ours that may quote a model or its server; another one if it does not pass the gates."""
    return sentence if sentence and stopped_by(sentence, Trust.WORKSPACE) is None else instead


def quoted(words: str, token: str) -> str:
    """A model's words as data.

    Args:
        words: of any length; the whole of them is gated.
        token: random text for the fence.
    """
    gate = stopped_by(words)
    if gate is not None:
        return f"(the model's words are not shown: they do not pass the gate {gate!r})"
    return fenced(visible(one_line(words)[:MAX_QUOTED_CHARS]), "words of the model", token)
