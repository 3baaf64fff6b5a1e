"""One serial lane of a workspace: tasks in the order in which they were accepted, one at a time.

L1 Order: tasks begin in the order of their acceptance, whatever their kind; one that was begun and cut
short keeps its place. L2 Exclusion: a task begins only while no other of the workspace is running. L3
Loss: what `submit` returned is in the ledger, durably, until it is over. L4 Zombies: an attempt that was
given up changes nothing any more, however late it ends. L5 Caps: at most `MAX_PENDING` tasks are pending,
of them `MAX_TIDYING` to forget or dream; of `MAX_RECORDS` those that are over are forgotten, first the
oldest of the token that has most of them. L6 Repeats: the same key of the same originator is the same
task, for `REPEAT_HOURS`; with another request it is refused. So long its record counts for no cap but
`MAX_KEYED`, and is not forgotten. L7 Each transition is an event in the same transaction; what was
accepted is on record, too, and what was cancelled once it had begun. L8 Secrets: what the rules find of
one in a text to remember, or in where it comes from, is taken out before the ledger has it; the task says
so (`secret`). No write-ahead log and no free page ever holds it. Of whatever else was asked nothing
stands in a free page once it is over, nor in the log after `tidy`.

A lane begins nothing by itself: the runner does. Methods are transactions of the ledger, so that callers
may group them (`Writer`). Who opens a lane anew calls `recover` once, before anything is begun.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from muniment.content.gates import drop_invisible
from muniment.content.secrets import find_secret, redacted
from muniment.errors import IdempotencyMismatch, ManagedMemoryUnavailable, NotFound, QueueFull
from muniment.server.lane_tasks import (
    FOREMOST,
    PENDING,
    Ended,
    NewTask,
    find,
    find_repeated,
    read_task,
    running,
)
from muniment.store import tasks as outbox
from muniment.store.audit import append, timestamp
from muniment.store.ledger import of_task
from muniment.store.state import LedgerState
from muniment.store.tasks import TASKS, Kind, Originator, QueuedTask, Status, event_of

MAX_PENDING: Final = 16
"""Tasks that wait or run. One may take five minutes: who is the seventeenth would wait for over an hour."""

MAX_TIDYING: Final = 8
"""Of these, tasks that forget or dream, so that facts are still taken while many of them wait."""

MAX_RECORDS: Final = 1_000
"""Tasks of a workspace that are remembered, with those that are over, and without those of L6."""

MAX_KEYED: Final = 100_000
"""Tasks of a workspace that are remembered in all: with a key each, more than one a second all day."""

MAX_ATTEMPTS: Final = 3
"""How often a task is begun. One that a crash cut short three times may well be why.

One that has committed by then is begun once more, to find out what it did.
"""

MAX_CLAIMS: Final = 20
"""How often a task is begun that failed while its ledger did."""

REPEAT_HOURS: Final = 24
"""Hours for which a key names a task."""

_OVER: Final = "status IN ('completed', 'failed', 'cancelled')"
_LAPSED: Final = "(repeat IS NULL OR created <= ?)"
_ALWAYS: Final = "~"
"""Later than any time."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What `submit` did.

    Attributes:
        repeated: the task was there already.
        is_alone: none of its lane waited or ran before it.
    """

    task: QueuedTask
    repeated: bool = False
    is_alone: bool = False


class Lane:
    """The lane of one workspace. Threads may share it; nothing of it is kept in memory.

    Args:
        state: whose ledger.
        workspace: key of the workspace.
        now: the time of day.
    """

    def __init__(
        self, state: LedgerState, workspace: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._state, self.workspace, self._now = state, workspace, now

    def submit(self, asked: NewTask) -> Submitted:
        """Accept a task, durably.

        Raises:
            QueueFull: too many are pending (L5).
            IdempotencyMismatch: its key names a task that was asked something else (L6).
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was accepted.

        Cost: one durable transaction.
        """
        now = timestamp(self._now())
        with self._state.ledger.transaction() as connection:
            repeat, repeated = self._repeat_of(asked)
            if repeat is not None:
                found = find_repeated(self._state.ledger, repeat)
                if found is not None and found.created > self._hours_ago(REPEAT_HOURS):
                    if found.repeated != repeated:
                        raise IdempotencyMismatch(found.id)
                    return Submitted(found, repeated=True)
                connection.execute("UPDATE task SET repeat = NULL WHERE repeat = ?", (repeat,))
            pending, kept = self._counted()
            _check_caps(asked.kind, pending)
            new = QueuedTask(
                seq=0,
                id=f"{asked.kind}-{uuid.uuid4()}",
                kind=asked.kind,
                status="queued",
                originator=asked.originator,
                trust=asked.trust,
                attempt=0,
                created=now,
                updated=now,
                shown=asked.shown,
                arguments=_withheld(asked.arguments),
                workspace=self.workspace,
                repeat=repeat,
                repeated=repeated,
            )
            task = TASKS.add(self._state.ledger, new)
            body = {"kind": asked.kind, "token": asked.originator.token, "client": asked.originator.client}
            append(
                self._state,
                now,
                "accepted",
                task.id,
                {**body, "trust": asked.trust, "ref": _cleared(asked.ref)},
            )
            self._tell(task)
            self._evict(kept + 1)
            return Submitted(task, is_alone=not pending)

    def claim(self) -> QueuedTask | None:
        """Begin the next task; None: none waits, or one is running.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was begun.
        """
        return self._moved(
            f"id = (SELECT id FROM task {FOREMOST} LIMIT 1) AND status = 'queued'",  # noqa: S608  constants
            (self.workspace,),
            "running",
            {},
            "attempt = attempt + 1, claim = claim + 1",
        )

    def finish(self, begun: QueuedTask, ended: Ended) -> QueuedTask | None:
        """Tell how an attempt ended; None: it had been given up before, and this changes nothing (L4).

        Args:
            begun: as `claim` returned it.
            ended: how.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. There the attempt still runs.
        """
        with self._state.ledger.transaction():
            result = None if ended.result is None else json.dumps(dict(ended.result))
            error = None if ended.error is None else json.dumps(dict(ended.error))
            columns = {"arguments": None, "result": result, "error": error}
            return self._moved(
                "id = ? AND status = 'running' AND claim = ?", (begun.id, begun.claim), ended.status, columns
            )

    def requeue(self, begun: QueuedTask) -> QueuedTask | None:
        """Put an attempt back that was ended without effect, as if it had not been made; None as `finish`.

        One that somebody cancelled meanwhile is over, unless it has committed: it will complete.

        Raises:
            ManagedMemoryUnavailable: as `finish`.
        """
        with self._state.ledger.transaction():
            current = self._current(begun)
            if current is None:
                return None
            if current.cancelled_by is not None and not self._has_committed(begun):
                return self._move(begun, "cancelled", arguments=None)
            return self._move(begun, "queued", attempt=begun.attempt - 1)

    def tell(self, begun: QueuedTask, data: Mapping[str, Any]) -> None:
        """Add an event about an attempt that runs, for its originator and the owner; later nothing (L4).

        Args:
            begun: as `claim` returned it.
            data: JSON of names, numbers and codes.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was added.
        """
        with self._state.ledger.transaction():
            if self._current(begun) is not None:
                outbox.append(self._state, event_of(begun, timestamp(self._now()), data))

    def cancel(self, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task: one that waits at once; of one that runs it is noted, and its runner has to end it.

        A task that is over stays as it is; one that was cancelled before is not cancelled again. One that has
        committed, and waits only to find out what it did, is noted as well and will complete.

        Raises:
            NotFound: there is no such task.
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was cancelled.
        """
        with self._state.ledger.transaction() as connection:
            task = self.get(task_id)
            if task.is_over or task.cancelled_by is not None:
                return task
            who = json.dumps([by.token, by.client])
            connection.execute("UPDATE task SET cancelled_by = ? WHERE id = ?", (who, task_id))
            if task.claim:  # Otherwise who cancels what it sent would fill the record with nothing.
                body = {"token": by.token, "client": by.client}
                append(self._state, timestamp(self._now()), "cancelled", task_id, body)
            if task.status == "queued" and not self._has_committed(task):
                return self._move(task, "cancelled", arguments=None)
            return self.get(task_id)

    def recover(self) -> tuple[QueuedTask, ...]:
        """Give up what was running when its process ended; those tasks, as they are now.

        They wait again, unless they were begun `MAX_ATTEMPTS` times. One that was cancelled is over.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was given up.
        """
        with self._state.ledger.transaction():
            return tuple(map(self._recovered, running(self._state.ledger, self.workspace)))

    def tidy(self) -> bool:
        """Leave nothing in the ledger's log of tasks that are over (L8); False: somebody reads, try again."""
        try:
            return self._state.ledger.tidy()
        except ManagedMemoryUnavailable:
            return True  # Who writes next is told.

    @property
    def failures(self) -> int:
        """How often the ledger failed so far, see there."""
        return self._state.ledger.failures

    def get(self, task_id: str) -> QueuedTask:
        """A task of this lane.

        Raises:
            NotFound: there is no such task.
            ManagedMemoryUnavailable: the ledger cannot be read.
        """
        return read_task(self._state.ledger, self.workspace, task_id)

    def _current(self, begun: QueuedTask) -> QueuedTask | None:
        """The task of an attempt as it is now; None: that is not the one that runs."""
        task = find(self._state.ledger, self.workspace, begun.id)
        is_current = task is not None and task.status == "running" and task.claim == begun.claim
        return task if is_current else None

    def _move(self, task: QueuedTask, status: Status, **columns: object) -> QueuedTask:
        """Give a task another status, and tell."""
        moved = self._moved("id = ?", (task.id,), status, columns)
        if moved is None:
            raise NotFound("there is no such task")
        return moved

    def _moved(
        self,
        which: str,
        values: Sequence[object],
        status: Status,
        columns: Mapping[str, object],
        *more: str,
    ) -> QueuedTask | None:
        """Likewise of the one that is meant; None: none is."""
        changed = {"status": status, "updated": timestamp(self._now()), **columns}
        sets = ", ".join([*(f"{name} = ?" for name in changed), *more])
        statement = f"UPDATE task SET {sets} WHERE {which}"  # noqa: S608  constants
        with self._state.ledger.transaction():
            moved = TASKS.changed(self._state.ledger, statement, (*changed.values(), *values))
            for task in moved:
                self._tell(task)
        return moved[0] if moved else None

    def _recovered(self, task: QueuedTask) -> QueuedTask:
        has_committed = self._has_committed(task)
        if task.cancelled_by is not None and not has_committed:
            return self._move(task, "cancelled", arguments=None)
        if task.attempt >= MAX_ATTEMPTS + has_committed:
            return self._move(task, "failed", arguments=None, error=json.dumps({"code": "interrupted"}))
        return self._move(task, "queued")

    def _has_committed(self, task: QueuedTask) -> bool:
        """Whether an attempt came as far as its commit; another one then only finds what it did."""
        return of_task(self._state, task.id) is not None

    def _counted(self) -> tuple[dict[str, int], int]:
        """How many tasks wait or run, by kind, and how many are remembered in all."""
        query = (
            f"SELECT kind, count(*) FROM task {PENDING} GROUP BY kind "  # noqa: S608  constants
            "UNION ALL SELECT '', count(*) FROM task WHERE workspace = ?"
        )
        counts = dict(self._state.ledger.rows(query, (self.workspace, self.workspace)))
        kept = counts.pop("")
        return counts, kept

    def _evict(self, kept: int) -> None:
        """Forget records that are over (L5), but for those that a key still names (L6)."""
        if kept > MAX_RECORDS:
            self._keep(MAX_RECORDS, self._hours_ago(REPEAT_HOURS))
        if kept > MAX_KEYED:
            self._keep(MAX_KEYED, _ALWAYS)

    def _keep(self, most: int, until: str) -> None:
        """Keep so many of the records that have no key, are not over, or were made up to a time."""
        with self._state.ledger.transaction() as connection:
            ((kept,),) = self._state.ledger.rows(
                f"SELECT count(*) FROM task WHERE workspace = ? AND ({_LAPSED} OR NOT {_OVER})",  # noqa: S608  constants
                (self.workspace, until),
            )
            if kept > most:  # The oldest of whoever has the most, again and again: who stands furthest back.
                connection.execute(
                    "DELETE FROM task WHERE seq IN (SELECT seq FROM ("  # noqa: S608  constants
                    "SELECT seq, row_number() OVER (PARTITION BY token ORDER BY seq DESC) AS place FROM task "
                    f"WHERE workspace = ? AND {_LAPSED} AND {_OVER}) AS it "
                    "ORDER BY place DESC, seq LIMIT ?)",
                    (self.workspace, until, kept - most),
                )

    def _repeat_of(self, asked: NewTask) -> tuple[str | None, str | None]:
        """Digests of the key and of what it names."""
        if asked.repeat is None:
            return None, None
        who = [self.workspace, asked.originator.token, asked.originator.client, asked.repeat]
        what = [asked.kind, dict(asked.arguments), asked.trust, asked.ref]
        keyed = self._state.keyed
        return keyed(json.dumps(who)), keyed(json.dumps(what, sort_keys=True))

    def _hours_ago(self, hours: int) -> str:
        return timestamp(self._now() - timedelta(hours=hours))

    def _tell(self, task: QueuedTask) -> None:
        """Add the event of a transition."""
        data: dict[str, Any] = {"status": task.status, "attempt": task.attempt}
        if task.error is not None:
            data["code"] = task.error["code"]
        if task.cancelled_by is not None:
            data["cancelled_by"] = [task.cancelled_by.token, task.cancelled_by.client]
        outbox.append(self._state, event_of(task, task.updated, data))


def _check_caps(kind: Kind, pending: Mapping[str, int]) -> None:
    count = sum(pending.values())
    tidying = count - pending.get("remember", 0)
    if count >= MAX_PENDING or (kind != "remember" and tidying >= MAX_TIDYING):
        raise QueueFull(count)


def _withheld(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be done as the ledger may have it (L8): `left` where a secret cannot be taken out alone."""
    content = arguments.get("content")
    if not isinstance(content, str) or (rest := _cleared(content)) == content:
        return dict(arguments)
    return {**arguments, "content": rest, "secret": "taken" if rest else "left"}


def _cleared(text: str | None) -> str | None:
    """Return a text without secrets; empty if one is left in whatever is taken out.

    A secret that invisible characters cut is found as the job will read it, without them.
    """
    if text is None:
        return None
    plain = drop_invisible(text)
    if not _holds_secret(text) and not (plain != text and _holds_secret(plain)):
        return text
    rest = redacted(plain)
    return "" if _holds_secret(rest) else rest


def _holds_secret(text: str) -> bool:
    return find_secret(text.encode("utf-8", "replace"), "") is not None
