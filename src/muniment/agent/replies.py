"""One question to a model and its reply, within the budget of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from muniment.agent.model import (
    Brief,
    Budget,
    Message,
    Model,
    ModelError,
    ModelRequest,
    Reply,
    ToolSpec,
    Turn,
    Usage,
)
from muniment.errors import MunimentError


def respond(
    model: Model,
    budget: Budget,
    brief: Brief,
    messages: Sequence[Message],
    token: str,
    *,
    tools: tuple[ToolSpec, ...] = (),
    schema: tuple[str, dict[str, Any]] | None = None,
) -> Reply:
    """Return a model's reply. It is foreign code: any other error or result is a `ModelError`.

    Args:
        model: what is asked.
        budget: of the task, of which the turn was taken.
        brief: what the task is about.
        messages: all that was said so far.
        token: random text of the fences.
        tools: on offer.
        schema: as of `ModelRequest`.

    Raises:
        ModelError, MunimentError: as `Model.respond`.
    """
    request = ModelRequest(
        brief,
        tuple(messages),
        tools,
        budget.seconds_left,
        turns_left=budget.turns_left + 1,
        cancel=budget.cancel,
        token=token,
        schema=schema,
    )
    try:
        reply = model.respond(request)
        words = (reply.text, *(call.tool for call in reply.calls), *(call.id for call in reply.calls))
    except (ModelError, MunimentError):
        raise
    except Exception as error:
        raise ModelError(f"the model failed with {type(error).__name__}: {error}") from error
    if not all(isinstance(word, str) for word in words):
        raise ModelError("the model answered with something that is no reply", has_answered=True)
    return reply


@contextmanager
def timed(budget: Budget) -> Iterator[list[Usage]]:
    """Put one turn on the timeline of a budget: its seconds, and the usage that the block adds to the list.

    Raises:
        DeadlineExceeded, Cancelled: as `Budget.check`, after the block.
    """
    started, usage = budget.seconds, list[Usage]()
    try:
        yield usage
    finally:
        budget.timeline.append(Turn(budget.seconds - started, *usage or [Usage()]))
    budget.check()
