"""What a tool call came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muniment.errors import ContentRejected, PathEscape, Refusal, Refused, ToolError
from muniment.names import Via

ToolVerdict = Literal["allow", "deny", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one call.

    Attributes:
        verdict: `allow`: done; `deny`: outside the roots or forbidden; `error`: an ordinary mistake.
        code: None if allowed, else the stable code of the error.
        text: what the model sees; one line unless allowed.
        rule: the policy rule or content gate that stopped the call, if one did.
        via: how the request would have left its root, if it would.
    """

    verdict: ToolVerdict
    code: str | None
    text: str
    rule: str | None = None
    via: Via | None = None


def allowed(text: str) -> Outcome:
    """An outcome of a call that was carried out."""
    return Outcome("allow", None, text)


def stopped(error: PathEscape | Refusal | ToolError) -> Outcome:
    """The outcome that stands for `error`."""
    if isinstance(error, PathEscape):
        return Outcome("deny", error.code, str(error), via=error.via)
    verdict: ToolVerdict = "deny" if isinstance(error, Refusal) else "error"
    rule = error.rule if isinstance(error, Refused | ContentRejected) else None
    return Outcome(verdict, error.code, str(error), rule=rule)
