"""One serial lane of a workspace: tasks in the order in which they were accepted, one at a time.

What a task is, how tasks are read and written, the lane itself, and the thread that carries its tasks out.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

from muniment import events
from muniment.cancelling import Cancel
from muniment.content.gates import drop_invisible
from muniment.content.secrets import find_secret, redacted
from muniment.errors import (
    IdempotencyMismatch,
    LaneError,
    LeaseLost,
    ManagedMemoryUnavailable,
    MunimentError,
    NotFound,
    QueueFull,
)
from muniment.kernel.names import Trust
from muniment.store import tasks as outbox
from muniment.store.audit import ALL, append, timestamp
from muniment.store.database import Ledger, Transaction
from muniment.store.ledger import of_task
from muniment.store.state import LedgerState
from muniment.store.tasks import TASKS, Kind, Originator, QueuedTask, Status, event_of

T = TypeVar("T")

# -- task --------------------------------------------------------------------------------------------
#
# A task of a lane, and what it is made from: values.


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


# -- reading -----------------------------------------------------------------------------------------
#
# Reads tasks from the ledger, by any connection to it: one of its own waits for no writer.

MAX_LISTED: Final = 1_000
"""Tasks of one list."""

_PENDING: Final = "INDEXED BY task_pending WHERE workspace = ? AND status IN ('queued', 'running')"
"""What waits or runs: left to itself, SQLite would look through all that is over as well."""

_FOREMOST: Final = f"{_PENDING} ORDER BY status = 'queued', seq"
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
    return TASKS.read(ledger, f"{_PENDING} AND status = 'running' ORDER BY seq", (workspace,))


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
    return dict(ledger.rows(f"SELECT kind, count(*) FROM task {_PENDING} GROUP BY kind", (workspace,)))  # noqa: S608  constants


# -- lane --------------------------------------------------------------------------------------------
#
# One serial lane of a workspace: tasks in the order in which they were accepted, one at a time.
#
# L1 Order: tasks begin in the order of their acceptance, whatever their kind; one that was begun and cut
# short keeps its place. L2 Exclusion: a task begins only while no other of the workspace is running. L3
# Loss: what `submit` returned is in the ledger, durably, until it is over. L4 Zombies: an attempt that was
# given up changes nothing any more, however late it ends. L5 Caps: at most `MAX_PENDING` tasks are pending,
# of them `MAX_TIDYING` to forget or dream; of `MAX_RECORDS` those that are over are forgotten, first the
# oldest of the token that has most of them. L6 Repeats: the same key of the same originator is the same
# task, for `REPEAT_HOURS`; with another request it is refused. So long its record counts for no cap but
# `MAX_KEYED`, and is not forgotten. L7 Each
# transition is an event in the same transaction; what was accepted is on record, too, and what was
# cancelled once it had begun. L8 Secrets: what the rules find of one in a text to remember, or in where it
# comes from, is taken out before the ledger has it; the task says so (`secret`). No write-ahead log and no
# free page ever holds it. Of whatever else was asked nothing stands in a free page once it is over, nor in
# the log after `tidy`.
#
# A lane begins nothing by itself: the runner does. Methods are transactions of the ledger, so that callers
# may group them (`Writer`). Who opens a lane anew calls `recover` once, before anything is begun.

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
            f"id = (SELECT id FROM task {_FOREMOST} LIMIT 1) AND status = 'queued'",  # noqa: S608  constants
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
            f"SELECT kind, count(*) FROM task {_PENDING} GROUP BY kind "  # noqa: S608  constants
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


# -- writer ------------------------------------------------------------------------------------------
#
# Group commit: changes of a ledger by many threads, as many as wait at once in one durable transaction.
#
# W1 Changes are carried out in the order in which they were submitted, each alone inside a savepoint: one
#    that raises takes back only itself.
# W2 A future is done once the transaction of its change is durable, or has failed; then nothing of the group
#    holds. None is left pending: what was submitted before `close` is carried out, later ones are refused.
# W3 A future that is cancelled before its change begins takes it along; later, `Future.cancel` does nothing.
# W4 Nothing that a change raises ends the thread, `SystemExit` neither: its future raises it.
#
# Does not hold: a change may not wait for another one, which would be behind it in the same thread.
#
# Source: sqlite.org/lang_savepoint.html; group commit as in DeWitt et al., 1984.

MAX_GROUP: Final = 128
"""Changes of one transaction: some 40 ms of work, which whoever else writes meanwhile has to wait for."""

_Waiting = tuple[Callable[[], Any], "Future[Any]"]
_Outcome = tuple[Any, BaseException | None]


class Carrier(Protocol):
    """What carries out changes of a ledger: a `Writer`, or whoever has a transaction for each."""

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """See `Writer.submit`."""

    def run(self, change: Callable[[], T]) -> T:
        """As `submit`, and wait."""
        return self.submit(change).result()


class Writer(Carrier):
    """One thread that changes a ledger for all others. Close it when done.

    Args:
        ledger: its connection; others may use it, too.
        committed: called in that thread after every durable group, before its futures are done.
    """

    def __init__(self, ledger: Ledger, *, committed: Callable[[], None] = lambda: None) -> None:
        self._ledger, self._committed = ledger, committed
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """Have `change` carried out inside a transaction; what it returns, once that is durable.

        The future raises what `change` raised, or `ManagedMemoryUnavailable`: then nothing of it holds.

        Raises:
            LaneError: the writer was closed. Nothing will be carried out.
        """
        future: Future[T] = Future()
        with self._lock:  # Nothing may come to stand behind the end of the queue.
            if self._is_closed:
                raise LaneError(
                    "the daemon is stopping; send it again to the next one", code="workspace_draining"
                )
            self._waiting.put((change, future))
        return future

    def close(self) -> None:
        """End the thread, after everything that waits; harmless when repeated."""
        with self._lock:
            if not self._is_closed:
                self._waiting.put(None)
            self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            group, is_last = self._group()
            wanted = [each for each in group if each[1].set_running_or_notify_cancel()]
            if wanted:
                self._carry_out(wanted)

    def _group(self) -> tuple[list[_Waiting], bool]:
        """What waits, once something does; whether nothing will follow."""
        group: list[_Waiting] = []
        while len(group) < MAX_GROUP:
            try:
                item = self._waiting.get(block=not group)
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
        return group, False

    def _carry_out(self, group: list[_Waiting]) -> None:
        try:
            with self._ledger.transaction() as connection:
                outcomes = [self._carried_out(connection, change) for change, _ in group]
        except BaseException as error:  # noqa: BLE001  told to all of them; without the thread all would hang
            outcomes = [(None, error)] * len(group)
        else:
            self._tell()
        for (_, future), (value, problem) in zip(group, outcomes, strict=True):
            if problem is None:
                future.set_result(value)
            else:
                future.set_exception(problem)

    def _tell(self) -> None:
        try:
            self._committed()
        except BaseException as error:  # noqa: BLE001  what is durable is so, whoever fails to hear of it
            events.emit("commit_untold", problem=type(error).__name__)

    def _carried_out(self, connection: Transaction, change: Callable[[], Any]) -> _Outcome:
        """What a change returned or raised; if it raised, nothing of it is left in the transaction.

        Raises:
            BaseException: as it did, where the whole transaction was taken back: a full disk, for one.
        """
        connection.execute("SAVEPOINT one")
        try:
            value = change()
            connection.execute("RELEASE one")  # Some of the change may be sent only with this.
        except BaseException as error:  # told to the one who waits for it
            if not self._ledger.is_lasting():
                raise
            connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            return None, error
        return value, None


# -- runner ------------------------------------------------------------------------------------------
#
# Carries out the tasks of a lane: one thread, one task at a time.
#
# R1 The next task begins only when the call that carried out the one before has returned, and so when its
# worker is gone, however it ended. R2 A task that takes longer than the backstop is cancelled; its own
# deadline is a little earlier. R3 One that was cancelled to stop the daemon waits again, as if it had not
# been begun. R4 What a task did is put into the ledger before the next begins, in the same transaction;
# where that cannot be written, it is tried again until it can, or the daemon stops. A next task that cannot
# be begun does not keep it from the ledger. R5 Where the system has no descriptor left, a task waits as if
# it had not been begun, and is tried again; the lane goes on. R6 Once no task waits, the ledger's log is
# emptied of what was asked. R7 What a task did counts: one that completes although it was cancelled has
# completed.

BACKSTOP_SECONDS: Final = 300.0
"""Seconds after which a task is cancelled that did not end by itself; a run has 295."""

RETRY_SECONDS: Final = 1.0
"""Seconds until a ledger that could not be written is tried again."""

Tell = Callable[[Mapping[str, Any]], None]
Work = Callable[[QueuedTask, Cancel, Tell], Ended]
"""Carries out a task until it ends or is cancelled, and tells of its turns; it leaves nothing running."""

_LAST_SECONDS: Final = 5.0
"""Seconds that a task has to end once it is put back: its worker is killed, its socket closed."""

_Reason = Literal["asked", "backstop", "stop"]
_Settle = Callable[[], object]
"""The change of the ledger that says how an attempt ended."""


@dataclass(slots=True)
class _Running:
    """The task that runs.

    Attributes:
        until: second on `time.monotonic()` of its backstop.
        reason: why it was cancelled, if it was; the first one counts.
    """

    task: QueuedTask
    cancel: Cancel
    until: float
    reason: _Reason | None = None

    def interrupt(self, reason: _Reason) -> None:
        self.reason = self.reason or reason
        self.cancel.set()


class LaneRunner:
    """The thread of one lane, or whoever calls `drain`; and one that watches the clock for it.

    Args:
        lane: whose tasks; `recover` was called.
        writer: what changes its ledger.
        work: carries them out.
        backstop: seconds, see R2.
    """

    def __init__(
        self, lane: Lane, writer: Carrier, work: Work, *, backstop: float = BACKSTOP_SECONDS
    ) -> None:
        self._lane, self._writer, self._work, self._backstop = lane, writer, work, backstop
        self._wake, self._stopping, self._over = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_lost, self._until = False, math.inf
        self._asked = 0  # The `seq` of the last task that was cancelled while it ran.
        self._threads = (
            threading.Thread(target=self._run, name=f"lane-{lane.workspace}", daemon=True),
            threading.Thread(target=self._watch, name=f"backstop-{lane.workspace}", daemon=True),
        )

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs: it was started, and has neither stopped nor broken."""
        return self._threads[0].is_alive()

    def start(self) -> None:
        """Begin to carry out tasks."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """A task was accepted."""
        self._wake.set()

    def cancel(self, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task; of one that runs, the worker is ended, and it is over a moment later.

        Raises:
            NotFound: there is no such task.
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing is cancelled.
            LaneError: the writer was closed. Nothing is cancelled.
        """
        task = self._writer.run(lambda: self._lane.cancel(task_id, by))
        if task.status == "running":
            self.interrupt(task)
        return task

    def interrupt(self, task: QueuedTask) -> None:
        """End the worker of a task that is cancelled while it runs."""
        with self._lock:
            # It may not have come as far as `_begin` yet. Tasks run in the order of `seq`: of two of
            # these, the later one may still run.
            self._asked = max(self._asked, task.seq)
            if self._running is not None and self._running.task.seq == task.seq:
                self._running.interrupt("asked")

    def give_up(self) -> None:
        """Begin no further task, and end the one that runs; it is put back where that can still be told."""
        with self._lock:
            self._stopping.set()
            if self._running is not None:
                self._running.interrupt("stop")

    def drain(self, seconds: float) -> None:
        """Carry out what waits in the calling thread, once.

        Args:
            seconds: after which it begins no further task: others have their turn.

        Raises:
            LeaseLost: another node has the lane; what was done here since does not count.
        """
        self._until = time.monotonic() + seconds
        self._threads[1].start()
        try:
            self._carry_out_all()
        finally:
            self._over.set()
            self._threads[1].join()
        if self._is_lost:
            raise LeaseLost(self._lane.workspace)

    def stop(self, grace: float) -> bool:
        """Begin no further task; whether the one that runs is over. Harmless when repeated.

        Args:
            grace: seconds that it is given to end by itself; then it is put back.
        """
        with self._lock:
            self._stopping.set()
        self._wake.set()
        thread = self._threads[0]
        if thread.ident is None:
            return True
        thread.join(grace)
        with self._lock:
            if self._running is not None:
                self._running.interrupt("stop")
        thread.join(_LAST_SECONDS)
        return not thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                self._wake.clear()  # Before the ledger is looked at: what comes after that sets it again.
                self._carry_out_all()
                if self._stopping.is_set():
                    return
                self._wake.wait(None if self._lane.tidy() else RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001  a thread has nobody else to tell; see `is_alive`
            events.emit_defect("lane_broke", error, workspace=self._lane.workspace)
        finally:
            self._over.set()

    def _carry_out_all(self) -> None:
        """Carry out one task after the other, until none is to be begun."""
        settle: _Settle | None = None
        while (task := self._persist(settle)) is not None:
            settle = self._carry_out(task)

    def _go_on(self, settle: _Settle | None) -> QueuedTask | None:
        """Put an attempt that ended into the ledger, and begin the next task."""
        if settle is not None:
            settle()
        is_over = self._stopping.is_set() or time.monotonic() >= self._until
        return None if is_over else self._lane.claim()

    def _carry_out(self, task: QueuedTask) -> _Settle:
        try:
            cancel = Cancel()
        except OSError as error:
            events.emit("no_descriptor", task_id=task.id, problem=type(error).__name__)
            self._stopping.wait(RETRY_SECONDS)
            return partial(self._lane.requeue, task)
        with cancel:
            running = self._begin(task, cancel)
            if running is None:
                return partial(self._lane.requeue, task)
            failures = self._lane.failures
            ended = self._ended(task, cancel)
            with self._lock:
                self._running = None
        # Where the ledger was away that may be why, or it has committed: another attempt will tell.
        is_doubtful = ended.status == "failed" and self._lane.failures != failures
        if is_doubtful and task.claim < MAX_CLAIMS:
            return partial(self._lane.requeue, task)
        if ended.status == "cancelled" and running.reason == "stop":
            return partial(self._lane.requeue, task)
        if ended.status == "cancelled" and running.reason != "asked":
            code = f"{task.kind}_timeout" if running.reason == "backstop" else f"{task.kind}_failed"
            ended = Ended("failed", error={"code": code})
        return partial(self._lane.finish, task, ended)

    def _begin(self, task: QueuedTask, cancel: Cancel) -> _Running | None:
        """From now on the task can be cancelled; None: there was a `stop`, and it is not begun at all."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._running = _Running(task, cancel, time.monotonic() + self._backstop)
            if self._asked == task.seq:
                self._running.interrupt("asked")
            return self._running

    def _ended(self, task: QueuedTask, cancel: Cancel) -> Ended:
        def tell(data: Mapping[str, Any]) -> None:
            self._writer.submit(lambda: self._lane.tell(task, data)).add_done_callback(_log_untold)

        try:
            return self._work(task, cancel, tell)
        except BaseException as error:  # noqa: BLE001  a defect must end this task, not the lane
            events.emit("task_broke", task_id=task.id, problem=type(error).__name__)
            return Ended("failed", error={"code": f"{task.kind}_failed"})

    def _watch(self) -> None:
        seconds = self._backstop
        while not self._over.wait(seconds):
            seconds = self._overdue()

    def _overdue(self) -> float:
        """Cancel what has run for too long (R2); seconds until that can be so of anything again."""
        with self._lock:
            if self._running is None:
                return self._backstop
            left = self._running.until - time.monotonic()
            if left > 0:
                return left
            self._running.interrupt("backstop")
            return self._backstop

    def _persist(self, settle: _Settle | None) -> QueuedTask | None:
        """Go on, by a change of the ledger that is tried again and again until it holds (R4)."""
        logged: tuple[str, str] | None = None
        while True:
            try:
                return self._writer.run(partial(self._go_on, settle))
            except LeaseLost:
                self._is_lost = True
                return None
            except (MunimentError, OSError) as error:
                code = error.code if isinstance(error, MunimentError) else "no_descriptor"
                reason = error.reason if isinstance(error, ManagedMemoryUnavailable) else ""
                if logged != (logged := (code, reason)):
                    events.emit(
                        "ledger_unavailable", workspace=self._lane.workspace, code=code, reason=reason
                    )
            # The next task may be what cannot be read. Repeated, it changes nothing (L4).
            if settle is not None:
                with suppress(MunimentError, OSError):  # It was told just now.
                    self._writer.run(settle)
            if self._stopping.wait(RETRY_SECONDS):
                return None


def _log_untold(told: Future[None]) -> None:
    """Log that a turn could not be told; the task goes on."""
    problem = told.exception()
    if problem is not None:
        events.emit("turn_untold", problem=type(problem).__name__)
