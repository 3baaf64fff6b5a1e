"""One serial lane of a workspace: tasks in the order in which they were accepted, one at a time.

L1 Order: tasks begin in the order of their acceptance, whatever their kind; one that was begun and cut short
   keeps its place.
L2 Exclusion: a task begins only while no other of the workspace is running.
L3 Loss: what `submit` returned is in the ledger, durably, until it is over.
L4 Zombies: an attempt that was given up changes nothing any more, however late it ends.
L5 Caps: at most `MAX_PENDING` tasks are pending, of them `MAX_TIDYING` to forget or dream; of `MAX_RECORDS`
   those that are over are forgotten, first the oldest of the token that has most of them.
L6 Repeats: the same key of the same originator is the same task, for `REPEAT_HOURS` and while its record
   lasts; with another request it is refused.
L7 Each transition is an event in the same transaction; what was accepted is on record, too, and what was
   cancelled once it had begun.
L8 Secrets: what the rules find of one in a text to remember, or in where it comes from, is taken out before
   the ledger has it; the task says so (`secret`). No write-ahead log and no free page ever holds it.
   Of whatever else was asked nothing stands in a free page once it is over, nor in the log after `tidy`.

A lane begins nothing by itself: `runner.py` does. Methods are transactions of the ledger, so that callers may
group them (`writer.py`). Who opens a lane anew calls `recover` once, before anything is begun.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from muniment.content.secrets import find_secret, redacted
from muniment.errors import ManagedMemoryUnavailable
from muniment.job_errors import IdempotencyMismatch, QueueFull
from muniment.lane import reading
from muniment.lane.task import Asked, Ended, Kind, Originator, Status, Task
from muniment.store import outbox
from muniment.store.audit import append, timestamp
from muniment.store.ledger import of_task
from muniment.store.state import State

MAX_PENDING: Final = 16
"""Tasks that wait or run. One may take five minutes: who is the seventeenth would wait for over an hour."""

MAX_TIDYING: Final = 8
"""Of these, tasks that forget or dream, so that facts are still taken while many of them wait."""

MAX_RECORDS: Final = 1_000
"""Tasks of a workspace that are remembered, with those that are over."""

MAX_ATTEMPTS: Final = 3
"""How often a task is begun. One that a crash cut short three times may well be why.

One that has committed by then is begun once more, to find out what it did.
"""

REPEAT_HOURS: Final = 24
"""Hours for which a key names a task."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What `submit` did.

    Attributes:
        repeated: the task was there already.
    """

    task: Task
    repeated: bool = False


class Lane:
    """The lane of one workspace. Threads may share it; nothing of it is kept in memory.

    Args:
        state: whose ledger.
        workspace: key of the workspace.
        now: the time of day.
    """

    def __init__(
        self, state: State, workspace: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._state, self.workspace, self._now = state, workspace, now

    def submit(self, asked: Asked) -> Submitted:
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
                found = reading.repeated(self._state.ledger, repeat)
                if found is not None and found.created > self._hours_ago(REPEAT_HOURS):
                    return self._again(found, repeated)
                connection.execute("UPDATE task SET repeat = NULL WHERE repeat = ?", (repeat,))
            self._check_caps(asked.kind)
            task_id = f"{asked.kind}-{uuid.uuid4()}"
            connection.execute(
                "INSERT INTO task (id, workspace, kind, status, token, client, trust, arguments, shown, "
                "repeat, repeated, created, updated) VALUES (?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    task_id,
                    self.workspace,
                    asked.kind,
                    asked.originator.token,
                    asked.originator.client,
                    asked.trust,
                    json.dumps(_withheld(asked.arguments)),
                    json.dumps(dict(asked.shown)),
                    repeat,
                    repeated,
                    now,
                    now,
                ),
            )
            task = self.get(task_id)
            body = {"kind": asked.kind, "token": asked.originator.token, "client": asked.originator.client}
            append(
                self._state,
                now,
                "accepted",
                task_id,
                {**body, "trust": asked.trust, "ref": _cleared(asked.ref)},
            )
            self._tell(task)
            self._evict()
            return Submitted(task)

    def claim(self) -> Task | None:
        """Begin the next task; None: none waits, or one is running.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was begun.
        """
        with self._state.ledger.transaction():
            first = reading.foremost(self._state.ledger, self.workspace)
            if first is None or first.status == "running":
                return None
            return self._move(first, "running", attempt=first.attempt + 1, claim=first.claim + 1)

    def finish(self, begun: Task, ended: Ended) -> Task | None:
        """Tell how an attempt ended; None: it had been given up before, and this changes nothing (L4).

        Args:
            begun: as `claim` returned it.
            ended: how.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. There the attempt still runs.
        """
        with self._state.ledger.transaction():
            if self._current(begun) is None:
                return None
            result = None if ended.result is None else json.dumps(dict(ended.result))
            error = None if ended.error is None else json.dumps(dict(ended.error))
            return self._move(begun, ended.status, arguments=None, result=result, error=error)

    def requeue(self, begun: Task) -> Task | None:
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

    def tell(self, begun: Task, data: Mapping[str, Any]) -> None:
        """Add an event about an attempt that runs, for its originator and the owner; later nothing (L4).

        Args:
            begun: as `claim` returned it.
            data: JSON of names, numbers and codes.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was added.
        """
        with self._state.ledger.transaction():
            if self._current(begun) is not None:
                self._add_event(begun, timestamp(self._now()), data)

    def cancel(self, task_id: str, by: Originator) -> Task:
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

    def recover(self) -> tuple[Task, ...]:
        """Give up what was running when its process ended; those tasks, as they are now.

        They wait again, unless they were begun `MAX_ATTEMPTS` times. One that was cancelled is over.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was given up.
        """
        with self._state.ledger.transaction():
            return tuple(map(self._recovered, reading.running(self._state.ledger, self.workspace)))

    def tidy(self) -> bool:
        """Leave nothing in the ledger's log of tasks that are over (L8); False: somebody reads, try again."""
        try:
            return self._state.ledger.tidy()
        except ManagedMemoryUnavailable:
            return True  # Who writes next is told.

    def get(self, task_id: str) -> Task:
        """A task of this lane.

        Raises:
            NotFound: there is no such task.
            ManagedMemoryUnavailable: the ledger cannot be read.
        """
        return reading.task(self._state.ledger, self.workspace, task_id)

    def _current(self, begun: Task) -> Task | None:
        """The task of an attempt as it is now; None: that is not the one that runs."""
        task = reading.find(self._state.ledger, self.workspace, begun.id)
        is_current = task is not None and task.status == "running" and task.claim == begun.claim
        return task if is_current else None

    def _move(self, task: Task, status: Status, **columns: object) -> Task:
        """Give a task another status, and tell."""
        changed = {"status": status, "updated": timestamp(self._now()), **columns}
        sets = ", ".join(f"{name} = ?" for name in changed)
        with self._state.ledger.transaction() as connection:
            connection.execute(f"UPDATE task SET {sets} WHERE id = ?", (*changed.values(), task.id))  # noqa: S608
        moved = self.get(task.id)
        self._tell(moved)
        return moved

    def _recovered(self, task: Task) -> Task:
        has_committed = self._has_committed(task)
        if task.cancelled_by is not None and not has_committed:
            return self._move(task, "cancelled", arguments=None)
        if task.attempt >= MAX_ATTEMPTS + has_committed:
            return self._move(task, "failed", arguments=None, error=json.dumps({"code": "interrupted"}))
        return self._move(task, "queued")

    def _has_committed(self, task: Task) -> bool:
        """Whether an attempt came as far as its commit; another one then only finds what it did."""
        return of_task(self._state, task.id) is not None

    def _check_caps(self, kind: Kind) -> None:
        pending = reading.pending(self._state.ledger, self.workspace)
        tidying = sum(pending.values()) - pending.get("remember", 0)
        if sum(pending.values()) >= MAX_PENDING or (kind != "remember" and tidying >= MAX_TIDYING):
            raise QueueFull(sum(pending.values()))

    def _evict(self) -> None:
        with self._state.ledger.transaction() as connection:
            ((kept,),) = self._state.ledger.rows(
                "SELECT count(*) FROM task WHERE workspace = ?", (self.workspace,)
            )
            for _ in range(kept - MAX_RECORDS):
                connection.execute(
                    "DELETE FROM task WHERE seq = (SELECT min(seq) FROM task INDEXED BY task_over "
                    "WHERE workspace = ? AND status IN ('completed', 'failed', 'cancelled') "
                    "GROUP BY token ORDER BY count(*) DESC, min(seq) LIMIT 1)",
                    (self.workspace,),
                )

    def _repeat_of(self, asked: Asked) -> tuple[str | None, str | None]:
        """Digests of the key and of what it names."""
        if asked.repeat is None:
            return None, None
        who = [self.workspace, asked.originator.token, asked.originator.client, asked.repeat]
        what = [asked.kind, dict(asked.arguments), asked.trust, asked.ref]
        keyed = self._state.keyed
        return keyed(json.dumps(who)), keyed(json.dumps(what, sort_keys=True))

    def _again(self, found: Task, repeated: str | None) -> Submitted:
        ((then,),) = self._state.ledger.rows("SELECT repeated FROM task WHERE id = ?", (found.id,))
        if then != repeated:
            raise IdempotencyMismatch(found.id)
        return Submitted(found, repeated=True)

    def _hours_ago(self, hours: int) -> str:
        return timestamp(self._now() - timedelta(hours=hours))

    def _tell(self, task: Task) -> None:
        """Add the event of a transition."""
        data: dict[str, Any] = {"status": task.status, "attempt": task.attempt}
        if task.error is not None:
            data["code"] = task.error["code"]
        if task.cancelled_by is not None:
            data["cancelled_by"] = [task.cancelled_by.token, task.cancelled_by.client]
        self._add_event(task, task.updated, data)

    def _add_event(self, task: Task, at: str, data: Mapping[str, Any]) -> None:
        outbox.append(
            self._state,
            outbox.Event(
                type="task",
                at=at,
                task=task.id,
                data={"kind": task.kind, **data},
                workspace=self.workspace,
                token=task.originator.token,
                client=task.originator.client,
            ),
        )


def _withheld(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be done as the ledger may have it (L8): `left` where a secret cannot be taken out alone."""
    content = arguments.get("content")
    if not isinstance(content, str) or (rest := _cleared(content)) == content:
        return dict(arguments)
    return {**arguments, "content": rest, "secret": "taken" if rest else "left"}


def _cleared(text: str | None) -> str | None:
    """A text without secrets; empty where one is left in whatever is taken out."""
    if text is None or not _holds_secret(text):
        return text
    rest = redacted(text)
    return "" if _holds_secret(rest) else rest


def _holds_secret(text: str) -> bool:
    return find_secret(text.encode("utf-8", "replace"), "") is not None
