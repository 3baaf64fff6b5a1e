"""Places to remember in, and a well-behaved model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time

import pytest
import re2

from kit.memories import make_roots, strict
from muniment.agent.model import AssistantMessage, Reply, ToolCall, ToolMessage
from muniment.confine.binding import bind_all
from muniment.jobs.place import Place
from muniment.store.state import State


@pytest.fixture
def any_words(monkeypatch):
    """As if whatever a model writes held the fact: for tests of what stands behind T-RUN-14."""
    monkeypatch.setattr("muniment.jobs.remember.holds", lambda *_: True)


@contextlib.contextmanager
def opened(roots, policy=None, *, in_process=True, clock=time.monotonic, on_model_failure="fail"):
    """A place over roots; in this process unless told otherwise. No rules hide there what a model did."""
    policy = policy or strict(require="none")
    place = Place(
        policy,
        bind_all(roots),
        State(None),
        in_process=in_process,
        clock=clock,
        on_model_failure=on_model_failure,
    )
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
            first = fact.splitlines()[0].strip()[:150]
            hits = re.findall(r"^([^:\n]+):\d+: (.*)$", last.text, re.MULTILINE)
            if known := [at for at, line in hits if line.strip()[:150] == first]:
                return Reply(calls=(ToolCall("read", "read_file", {"path": known[0]}),))
            name = json.dumps(" ".join(fact.split()[:4]))
            content = f"---\nname: {name}\ntype: {self.scope}\n---\n\n{fact}\n"
            return Reply(calls=(ToolCall("write", "write_file", {"path": path, "content": content}),))
        return Reply(text=f"It is at {made[last.call_id].arguments['path']}.")
