"""The outbox: events in the ledger, written with what they tell of, for whoever follows by number.

- O1 an event is there exactly if the transaction of what it tells of was committed.
- O2 numbers grow and are never used again; who has read up to one reads on from there, in any process.
- O3 the newest `MAX_EVENTS` are kept. A number is only good together with the `epoch` of its series, which
  another ledger does not have, nor one that was put back from a copy (`series.py`).

Events hold ids, names of scopes and codes, never content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from muniment.store.database import Database
from muniment.store.state import State

MAX_EVENTS: Final = 10_000
"""Events that are kept: of some hours under load, of months otherwise."""

_SWEEP: Final = 256
"""Every so many events the oldest are deleted."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        type: `memory_changed` or `task`.
        task: id of the task that it is about.
        data: JSON; of `memory_changed` without the scopes, which each workspace names for itself.
        workspace: key of the one that is told; None: every one that binds one of `roots`.
        roots: keys of roots that changed.
        token, client: who asked for the task, where that is known.
        number: given by `append`.
    """

    type: str
    at: str
    task: str
    data: Mapping[str, Any]
    workspace: str | None = None
    roots: tuple[str, ...] = ()
    token: str | None = None
    client: str | None = None
    number: int = 0


def append(state: State, event: Event) -> None:
    """Add an event, inside the caller's transaction of the ledger.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        number = connection.execute(
            "INSERT INTO event (at, type, task, workspace, roots, token, client, data) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                event.at,
                event.type,
                event.task,
                event.workspace,
                json.dumps(event.roots),
                event.token,
                event.client,
                json.dumps(dict(event.data)),
            ),
        ).lastrowid
        assert number is not None  # noqa: S101  for the type checker: a row was inserted
        if number % _SWEEP == 0:
            connection.execute("DELETE FROM event WHERE number <= ?", (number - MAX_EVENTS,))


def read(ledger: Database, after: int, limit: int) -> tuple[Event, ...]:
    """The oldest events with a number above `after`.

    Args:
        ledger: any connection to it.
        after: a number, see `span`.
        limit: at most so many.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return tuple(
        Event(kind, at, task, json.loads(data), workspace, tuple(json.loads(roots)), token, client, number)
        for number, at, kind, task, workspace, roots, token, client, data in ledger.rows(
            "SELECT number, at, type, task, workspace, roots, token, client, data FROM event "
            "WHERE number > ? ORDER BY number LIMIT ?",
            (after, limit),
        )
    )


def span(ledger: Database) -> tuple[str, int, int]:
    """The epoch of the series, and the lowest and highest number after which `read` misses nothing.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    ((epoch, first, last),) = ledger.rows(
        "SELECT epoch, (SELECT min(number) FROM event), "
        "(SELECT seq FROM sqlite_sequence WHERE name = 'event') FROM series"
    )
    last = last or 0
    return epoch, last if first is None else first - 1, last
