"""Reads tasks from the ledger, by any connection to it: one of its own waits for no writer."""

from __future__ import annotations

import json
from typing import Any, Final

from muniment.errors import NotFound
from muniment.lane.task import Originator, Task
from muniment.names import Trust
from muniment.store.database import Database, unavailable

MAX_LISTED: Final = 1_000
"""Tasks of one list."""

_PENDING: Final = "FROM task INDEXED BY task_pending WHERE workspace = ? AND status IN ('queued', 'running')"
"""What waits or runs: left to itself, SQLite would look through all that is over as well."""

_COLUMNS: Final = (
    "seq, id, kind, status, token, client, trust, attempt, claim, created, updated, "
    "shown, arguments, result, error, cancelled_by"
)


def task(ledger: Database, workspace: str, task_id: str) -> Task:
    """A task of a workspace.

    Raises:
        NotFound: there is no such task.
        ManagedMemoryUnavailable: the ledger cannot be read; so do all of these.
    """
    found = find(ledger, workspace, task_id)
    if found is None:
        raise NotFound("there is no such task")
    return found


def running(ledger: Database, workspace: str) -> tuple[Task, ...]:
    """What runs, or did when its process ended; never two, unless somebody edited the ledger."""
    rows = ledger.rows(f"SELECT {_COLUMNS} {_PENDING} AND status = 'running' ORDER BY seq", (workspace,))
    return tuple(_task(ledger, row) for row in rows)


def find(ledger: Database, workspace: str, task_id: str) -> Task | None:
    """A task of a workspace; None: there is none of that id."""
    return _first(ledger, "FROM task WHERE workspace = ? AND id = ?", workspace, task_id)


def repeated(ledger: Database, repeat: str) -> Task | None:
    """The task that the digest of a key names; None: none."""
    return _first(ledger, "FROM task WHERE repeat = ?", repeat)


def tasks(ledger: Database, workspace: str, *, before: int | None = None) -> tuple[Task, ...]:
    """The tasks of a workspace, the newest first, at most `MAX_LISTED`.

    Args:
        ledger: where they are.
        workspace: its key.
        before: older than this `seq`.
    """
    rows = ledger.rows(
        f"SELECT {_COLUMNS} FROM task WHERE workspace = ?1 AND (?2 IS NULL OR seq < ?2) "  # noqa: S608  constants
        "ORDER BY seq DESC LIMIT ?3",
        (workspace, before, MAX_LISTED),
    )
    return tuple(_task(ledger, row) for row in rows)


def pending(ledger: Database, workspace: str) -> dict[str, int]:
    """How many wait or run, by kind."""
    return dict(
        ledger.rows(
            f"SELECT kind, count(*) {_PENDING} GROUP BY kind",
            (workspace,),
        )
    )


def foremost(ledger: Database, workspace: str) -> Task | None:
    """The task that runs, otherwise the one that has waited longest; None: nothing is pending."""
    return _first(ledger, f"{_PENDING} ORDER BY status = 'queued', seq", workspace)


def _first(ledger: Database, which: str, *values: str) -> Task | None:
    rows = ledger.rows(f"SELECT {_COLUMNS} {which} LIMIT 1", values)
    return _task(ledger, rows[0]) if rows else None


def _task(ledger: Database, row: tuple[Any, ...]) -> Task:
    seq, task_id, kind, status, token, client, trust, attempt, claim, created, updated, shown, *parts = row
    try:
        arguments, result, error, by = (None if each is None else json.loads(each) for each in parts)
        return Task(
            seq,
            task_id,
            kind,
            status,
            Originator(token, client),
            Trust(trust),
            attempt,
            created,
            updated,
            json.loads(shown),
            arguments,
            result,
            error,
            None if by is None else Originator(*by),
            claim,
        )
    except (ValueError, TypeError) as reason:
        raise unavailable(
            ledger.path, f"task {seq} is not as it was written; bring the ledger back from a backup"
        ) from reason
