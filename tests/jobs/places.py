"""Places to remember in, and a well-behaved model."""

from __future__ import annotations

import contextlib
import hashlib
import time

import re2

from memories import make_roots, strict
from muniment.agent.model import AssistantMessage, Reply, ToolCall, ToolMessage
from muniment.confine.binding import bind_all
from muniment.jobs.request import Place
from muniment.store.state import State


@contextlib.contextmanager
def opened(roots, policy=None, *, in_process=True, clock=time.monotonic):
    """A place over roots; in this process unless told otherwise."""
    policy = policy or strict(require="none")
    place = Place(policy, bind_all(roots), State(None), in_process=in_process, clock=clock)
    try:
        yield place
    finally:
        place.close()


@contextlib.contextmanager
def made(base, policy=None, **terms):
    """As `opened`, over new roots below `base`."""
    with opened(make_roots(base), policy, **terms) as place:
        yield place


class Diligent:
    """Greps for the fact, reads what it finds, else writes one file, and says where."""

    name = "diligent"

    def __init__(self, scope):
        self.scope = scope

    def respond(self, request):
        made = {
            call.id: call
            for message in request.messages
            if isinstance(message, AssistantMessage)
            for call in message.calls
        }
        answers = [message for message in request.messages if isinstance(message, ToolMessage)]
        fact = request.brief.fact
        if not answers:
            pattern = re2.escape(fact.splitlines()[0][:60])
            return Reply(calls=(ToolCall("grep", "grep", {"pattern": pattern}),))
        last = answers[-1]
        path = f"{self.scope}/facts/fact-{hashlib.sha256(fact.encode()).hexdigest()[:12]}.md"
        if last.call_id == "grep":
            if f"{path}:" in last.text:
                return Reply(calls=(ToolCall("read", "read_file", {"path": path}),))
            content = f"---\nname: a fact\ntype: {self.scope}\n---\n\n{fact}\n"
            return Reply(calls=(ToolCall("write", "write_file", {"path": path, "content": content}),))
        return Reply(text=f"It is at {made[last.call_id].arguments['path']}.")
