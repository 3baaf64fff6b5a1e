"""Tasks of a lane: the description of a new task, and functions that read tasks from the ledger.

The functions accept any connection. A reader with a separate connection does not wait for a writer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from muniment.errors import NotFound
from muniment.kernel.names import Trust
from muniment.store.audit import ALL
from muniment.store.database import Ledger
from muniment.store.tasks import TASKS, Kind, Originator, QueuedTask


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to submit.

    Attributes:
        kind: kind of the task: `remember`, `forget` or `dream`.
        arguments: arguments of the job; JSON. Deleted when the task is over.
        originator: the token and the client that submit the task.
        public_arguments: the part of the arguments that everyone who sees the task may see; JSON of fixed
            words and scopes only, because an erasure does not change it.
        trust: trust of the originator.
        ref: origin of the fact, as the originator describes it.
        idempotency_key: if a client sends the same request twice with the same key, it creates one task.
    """

    kind: Kind
    arguments: Mapping[str, Any]
    originator: Originator
    public_arguments: Mapping[str, Any]
    trust: Trust = Trust.OWNER
    ref: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The outcome of a task.

    Attributes:
        result: JSON; set if the task completed, otherwise None.
        error: JSON with a stable `code`; set if the task failed, otherwise None.

    Raises:
        TypeError, ValueError: `result` or `error` does not match `status`, or is not JSON. The error is
            raised when the job ends, not later in its lane.
    """

    status: Literal["completed", "failed", "cancelled"]
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.result is not None) != (self.status == "completed"):
            raise ValueError("a task must have a result if it completed, and only then")
        if (self.error is not None and "code" in self.error) != (self.status == "failed"):
            raise ValueError("a task must have an error with a code if it failed, and only then")
        for part in (self.result, self.error):
            if part is not None:
                json.dumps(dict(part), allow_nan=False)


MAX_LISTED: Final = 1_000
"""Maximum tasks that `list_tasks` returns."""

PENDING: Final = "INDEXED BY task_pending WHERE workspace = ? AND status IN ('queued', 'running')"
"""Selects pending tasks: those that wait or run. Without the hint, SQLite would also scan all finished tasks.
"""

NEXT_FIRST: Final = f"{PENDING} ORDER BY status = 'queued', seq"
"""Selects the running task first, then the one that has waited longest."""


def read_task(ledger: Ledger, workspace: str, task_id: str) -> QueuedTask:
    """Return a task of a workspace by its id.

    Raises:
        NotFound: the task does not exist.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    found = find_task(ledger, workspace, task_id)
    if found is None:
        raise NotFound("task not found")
    return found


def list_running(ledger: Ledger, workspace: str) -> tuple[QueuedTask, ...]:
    """Return the tasks with the status `running`; normally at most one.

    After a crash, these are the tasks that were running when their process ended.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return TASKS.read(ledger, f"{PENDING} AND status = 'running' ORDER BY seq", (workspace,))


def find_task(ledger: Ledger, workspace: str, task_id: str) -> QueuedTask | None:
    """Return a task of a workspace by its id, or None if the id is unknown.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return TASKS.read_first(ledger, "WHERE workspace = ? AND id = ?", (workspace, task_id))


def find_by_key(ledger: Ledger, key_digest: str) -> QueuedTask | None:
    """Return the task whose idempotency key has this digest, or None if it does not exist."""
    return TASKS.read_first(ledger, "WHERE repeat = ?", (key_digest,))


def list_tasks(
    ledger: Ledger, workspace: str, *, before: int | None = None, limit: int = MAX_LISTED
) -> tuple[QueuedTask, ...]:
    """Return the tasks of a workspace, newest first.

    Args:
        ledger: the ledger to read.
        workspace: key of the workspace.
        before: return only tasks with a smaller `seq`; None: no limit.
        limit: maximum number of tasks.
    """
    older = "WHERE workspace = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
    return TASKS.read(ledger, older, (workspace, ALL if before is None else before, limit))


def count_pending(ledger: Ledger, workspace: str) -> dict[str, int]:
    """Return the number of pending tasks of a workspace by kind. Pending tasks wait or run."""
    return dict(ledger.rows(f"SELECT kind, count(*) FROM task {PENDING} GROUP BY kind", (workspace,)))  # noqa: S608  constants
