r"""Models that follow a script, for tests of programs that embed Muniment and for its own tests.

    model = ScriptedModel([
        reply_with_calls(make_call("write_file", path="user/editor.md", content="Prefers dark mode.\n")),
        reply_with_text("Saved to user/editor.md."),
    ])

A step may also be a function that receives the request and returns a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from muniment.agent.model import ModelError, ModelRequest, Reply, ToolCall

Step = Reply | Callable[[ModelRequest], Reply]


def make_call(tool: str, **arguments: Any) -> ToolCall:
    """Return a call of the tool `tool` with these arguments."""
    return ToolCall(f"call-{tool}", tool, arguments)


def reply_with_calls(*requested: ToolCall) -> Reply:
    """Return a reply of a model that requests these tool calls."""
    return Reply(calls=requested)


def reply_with_text(text: str) -> Reply:
    """Return a reply of a model that consists of `text`."""
    return Reply(text=text)


class ScriptedModel:
    """A model that replies to the turns of a run with the steps of a script, in order.

    A step is a `Reply`, or a function that receives the `ModelRequest` and returns a `Reply`; the function
    may raise. If a run needs more steps, the last reply is repeated if it is text, otherwise `ModelError` is
    raised.

    Args:
        steps: the script.
        name: name of the model.

    Attributes:
        requests: all requests, in order.
    """

    def __init__(self, steps: Iterable[Step], name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._steps = iter(steps)
        self._last = Reply()

    def respond(self, request: ModelRequest) -> Reply:
        """Return the reply of the next step of the script, and record the request.

        Raises:
            ModelError: the script has no further step, and the last reply cannot be repeated.
        """
        self.requests.append(request)
        for step in self._steps:
            self._last = step(request) if callable(step) else step
            return self._last
        if self._last.text and not self._last.calls:
            return self._last
        raise ModelError("the script has no further step")
