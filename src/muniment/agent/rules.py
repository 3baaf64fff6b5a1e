"""The embedded writer: a deterministic model without network or key, driven like any other.

It routes the fact by the cue tables (`routing.py`) and files it through the tools of the run
(`filing.py`). The same request gets the same reply: it keeps nothing between turns, and reads no
message but the answers to its own calls.
"""

from __future__ import annotations

from muniment.agent.filing import next_reply
from muniment.agent.model import Reply, Request
from muniment.agent.routing import route


class RuleWriter:
    """A `Model` that decides by rules.

    Example:
        `muniment.open(workspace=".")` uses it unless told otherwise.
    """

    name = "rules"

    def respond(self, request: Request) -> Reply:
        """The next step; never raises for any fact or answer of a tool. Cost: milliseconds, no I/O."""
        decision = route(request.brief)
        if decision is None:
            return Reply("Not saved: this run may write nowhere.")
        return next_reply(decision, request)
