"""A task of a lane, what it is made from, and how it is read from the ledger, by any connection to it.

A connection of one's own waits for no writer.
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
    """A task as it is sent.

    Attributes:
        arguments: what is to be done, for whoever carries it out; JSON. Forgotten once the task is over.
        shown: what everybody who sees the task is told of that; JSON of fixed words and scopes alone,
            since an erasure leaves it.
        trust: of the originator.
        ref: where the fact comes from, in the words of the originator.
        repeat: the key by which the same request, sent twice, is one task.
    """

    kind: Kind
    arguments: Mapping[str, Any]
    originator: Originator
    shown: Mapping[str, Any]
    trust: Trust = Trust.OWNER
    ref: str | None = None
    repeat: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task ended.

    Attributes:
        result: JSON; of a completed one, and of no other.
        error: JSON with a stable `code`; of a failed one, and of no other.

    Raises:
        TypeError, ValueError: it is not so. Whoever carries out a task learns it there, not its lane later.
    """

    status: Literal["completed", "failed", "cancelled"]
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.result is not None) != (self.status == "completed"):
            raise ValueError("a task has a result exactly if it completed")
        if (self.error is not None and "code" in self.error) != (self.status == "failed"):
            raise ValueError("a task has an error with a code exactly if it failed")
        for part in (self.result, self.error):
            if part is not None:
                json.dumps(dict(part), allow_nan=False)


MAX_LISTED: Final = 1_000
"""Tasks of one list."""

PENDING: Final = "INDEXED BY task_pending WHERE workspace = ? AND status IN ('queued', 'running')"
"""What waits or runs: left to itself, SQLite would look through all that is over as well."""

FOREMOST: Final = f"{PENDING} ORDER BY status = 'queued', seq"
"""What runs, or else has waited longest."""


def read_task(ledger: Ledger, workspace: str, task_id: str) -> QueuedTask:
    """A task of a workspace.

    Raises:
        NotFound: there is no such task.
        ManagedMemoryUnavailable: the ledger cannot be read; so do all of these.
    """
    found = find(ledger, workspace, task_id)
    if found is None:
        raise NotFound("there is no such task")
    return found


def running(ledger: Ledger, workspace: str) -> tuple[QueuedTask, ...]:
    """What runs, or did when its process ended; never two, unless somebody edited the ledger."""
    return TASKS.read(ledger, f"{PENDING} AND status = 'running' ORDER BY seq", (workspace,))


def find(ledger: Ledger, workspace: str, task_id: str) -> QueuedTask | None:
    """A task of a workspace; None: there is none of that id."""
    return TASKS.first(ledger, "WHERE workspace = ? AND id = ?", (workspace, task_id))


def find_repeated(ledger: Ledger, repeat: str) -> QueuedTask | None:
    """The task that the digest of a key names; None: none."""
    return TASKS.first(ledger, "WHERE repeat = ?", (repeat,))


def tasks(
    ledger: Ledger, workspace: str, *, before: int | None = None, limit: int = MAX_LISTED
) -> tuple[QueuedTask, ...]:
    """The tasks of a workspace, the newest first.

    Args:
        ledger: where they are.
        workspace: its key.
        before: older than this `seq`.
        limit: how many at most.
    """
    older = "WHERE workspace = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
    return TASKS.read(ledger, older, (workspace, ALL if before is None else before, limit))


def count_pending(ledger: Ledger, workspace: str) -> dict[str, int]:
    """How many wait or run, by kind."""
    return dict(ledger.rows(f"SELECT kind, count(*) FROM task {PENDING} GROUP BY kind", (workspace,)))  # noqa: S608  constants
