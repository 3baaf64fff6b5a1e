"""How a job ends: as which error, on record, and as part of a JSON document; and when it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from muniment import events
from muniment.agent.model import Budget, ModelError, Turn
from muniment.content.admission import own
from muniment.errors import (
    DeadlineExceeded,
    JobError,
    MunimentError,
    PathEscape,
    PendingReview,
    StoreConflict,
)
from muniment.policy.decide import Policy
from muniment.store.audit import append, timestamp
from muniment.store.state import State

T = TypeVar("T")


def as_job_error(
    error: MunimentError | ModelError, failed: type[JobError], timed_out: type[JobError]
) -> MunimentError:
    """The error that a caller sees for one that ended a job."""
    match error:
        case ModelError():
            return failed(f"{own(str(error), 'the model failed')}; nothing was written")
        case DeadlineExceeded():
            return timed_out(str(error))
        case _:
            return error


def once_more(policy: Policy, kind: str, task: str, attempt: Callable[[], T]) -> T:
    """What `attempt` returns; tried again where somebody wrote just while it committed, as the policy says.

    Raises:
        StoreConflict: somebody did so again, or the policy does not retry.
    """
    try:
        return attempt()
    except StoreConflict:
        if policy.changes.conflict != "retry":
            raise
        events.emit(f"{kind}_repeated", task_id=task)
        return attempt()


def put_on_record(
    state: State, kind: str, task: str, error: MunimentError, *, decided_by: str, policy: str
) -> None:
    """Record that a task ended without effect; where the ledger cannot be written, only log that."""
    body = {"kind": kind, "code": error.code, "decided_by": decided_by, "policy": policy}
    if isinstance(error, PathEscape):
        body |= {"via": error.via, "requested": error.requested, "tool": error.tool or ""}
    try:
        append(state, timestamp(datetime.now(UTC)), "ended", task, body)
    except MunimentError as problem:
        events.emit("record_lost", task_id=task, code=problem.code)


def spent(budget: Budget | None) -> dict[str, Any]:
    """What a task took of its budget, as fields of its result."""
    if budget is None:
        return {"turns": 0, "seconds": 0.0, "timeline": ()}
    return {"turns": budget.turns, "seconds": budget.seconds, "timeline": tuple(budget.timeline)}


def ending_json(
    seconds: float, timeline: Sequence[Turn], policy: str, error: MunimentError | None
) -> dict[str, Any]:
    """The end of a result's document."""
    return {
        "seconds": round(seconds, 3),
        "timeline": [
            {
                "seconds": round(turn.seconds, 3),
                "input_tokens": turn.usage.input_tokens,
                "output_tokens": turn.usage.output_tokens,
            }
            for turn in timeline
        ],
        "policy": policy,
        **error_json(error),
    }


def error_json(error: MunimentError | None) -> dict[str, Any]:
    """How a result's document says why it failed, and which review it waits for."""
    document: dict[str, Any] = {
        "error": None if error is None else {"code": error.code, "message": str(error)}
    }
    if isinstance(error, PendingReview):
        document["review_id"] = error.review_id
    return document
