"""One serial lane of a workspace: runs tasks in the order of their acceptance, one at a time.

L1 Order: tasks of all kinds begin in the order of their acceptance; an interrupted task keeps its
   position.
L2 Exclusion: a task begins only if no other task of the workspace is running.
L3 Durability: a task that `submit` returned stays in the ledger until it is over.
L4 Zombies: an abandoned attempt can no longer change anything, even if it ends later.
L5 Limits: at most `MAX_PENDING` tasks are pending, of them at most `MAX_TIDYING` that forget or dream. At
   most `MAX_RECORDS` tasks are stored. If there are more, finished tasks are deleted: first those of the
   token with the most tasks, oldest first.
L6 Repeats: for `REPEAT_HOURS`, a second request with the same key and originator returns the same task. If
   the second request is different, it is rejected. During that time the task counts only for the limit
   `MAX_KEYED` and is not deleted.
L7 Events: each change of a task's status adds an event in the same transaction. The audit log records each
   acceptance, and the cancellation of a task that has begun.
L8 Secrets: if the rules detect a secret in a text to remember or in its reference, it is removed before the
   ledger stores the text, and the task records that (`secret`). The secret is never in the write-ahead log or
   in a free page. The other arguments of a finished task are not in a free page. After `try_truncate_log`,
   they are not in the log either.

A lane starts nothing by itself: the runner does. Methods are transactions of the ledger, so that callers may
group them (`Writer`). After opening a lane, call `recover` once before any task begins.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from muniment.content.gates import drop_invisible
from muniment.content.secrets import find_secret, redact_secrets
from muniment.errors import IdempotencyMismatch, ManagedMemoryUnavailable, NotFound, QueueFull
from muniment.server.lane_tasks import (
    NEXT_FIRST,
    PENDING,
    NewTask,
    TaskOutcome,
    find_by_key,
    find_task,
    list_running,
    read_task,
)
from muniment.store import tasks as outbox
from muniment.store.audit import append, timestamp
from muniment.store.ledger import find_commit
from muniment.store.state import LedgerState
from muniment.store.tasks import TASKS, Kind, Originator, QueuedTask, Status, build_event

MAX_PENDING: Final = 16
"""Maximum tasks that wait or run in a lane. Each may take five minutes: one more would wait over an hour."""

MAX_TIDYING: Final = 8
"""Maximum pending tasks that forget or dream, so that facts are still accepted while many such tasks wait."""

MAX_RECORDS: Final = 1_000
"""Maximum tasks stored for a workspace, including finished ones, excluding those that a key still identifies.
"""

MAX_KEYED: Final = 100_000
"""Maximum tasks stored for a workspace, including those that a key identifies: more than one per second all
day.
"""

MAX_ATTEMPTS: Final = 3
"""Maximum attempts of a task. A task that was interrupted by three crashes may be their cause.

A task that has committed is begun once more than this, to find out its result.
"""

MAX_CLAIMS: Final = 20
"""Maximum attempts of a task, including attempts that do not count because the ledger failed."""

REPEAT_HOURS: Final = 24
"""Hours for which an idempotency key identifies a task."""

_IS_FINISHED: Final = "status IN ('completed', 'failed', 'cancelled')"
_IS_KEY_EXPIRED: Final = "(repeat IS NULL OR created <= ?)"
_LATEST: Final = "~"
"""A text that sorts after any timestamp."""


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The result of `Lane.submit`.

    Attributes:
        task: the accepted task.
        is_repeated: the request was repeated, so that its task existed already.
        is_only_pending: no other task of the lane was pending when this one was accepted.
    """

    task: QueuedTask
    is_repeated: bool = False
    is_only_pending: bool = False


class Lane:
    """The lane of one workspace. Threads may share it; it caches no state in memory.

    Args:
        state: provides the ledger.
        workspace: key of the workspace.
        now: returns the current time.
    """

    def __init__(
        self, state: LedgerState, workspace: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._state, self.workspace, self._now = state, workspace, now

    def submit(self, new_task: NewTask) -> SubmitResult:
        """Accept a task: store it durably, and return it.

        If the request repeats an earlier one with the same key, return the earlier task.

        Raises:
            QueueFull: too many tasks are pending (`MAX_PENDING`, `MAX_TIDYING`).
            IdempotencyMismatch: the task's key belongs to a task with a different request.
            ManagedMemoryUnavailable: the ledger cannot be written. The task was not accepted.

        Cost: one durable transaction.
        """
        now = timestamp(self._now())
        with self._state.ledger.transaction() as connection:
            key_digest, request_digest = self._digest_request(new_task)
            if key_digest is not None:
                found = find_by_key(self._state.ledger, key_digest)
                if found is not None and found.created > self._compute_time(REPEAT_HOURS):
                    if found.repeated != request_digest:
                        raise IdempotencyMismatch(found.id)
                    return SubmitResult(found, is_repeated=True)
                connection.execute("UPDATE task SET repeat = NULL WHERE repeat = ?", (key_digest,))
            pending, stored_count = self._count_tasks()
            _check_caps(new_task.kind, pending)
            row = QueuedTask(
                seq=0,
                id=f"{new_task.kind}-{uuid.uuid4()}",
                kind=new_task.kind,
                status="queued",
                originator=new_task.originator,
                trust=new_task.trust,
                attempt=0,
                created=now,
                updated=now,
                shown=new_task.public_arguments,
                arguments=_redact_arguments(new_task.arguments),
                workspace=self.workspace,
                repeat=key_digest,
                repeated=request_digest,
            )
            task = TASKS.add(self._state.ledger, row)
            body = {
                "kind": new_task.kind,
                "token": new_task.originator.token,
                "client": new_task.originator.client,
            }
            append(
                self._state,
                now,
                "accepted",
                task.id,
                {**body, "trust": new_task.trust, "ref": _redact_text(new_task.ref)},
            )
            self._add_transition_event(task)
            self._evict(stored_count + 1)
            return SubmitResult(task, is_only_pending=not pending)

    def claim(self) -> QueuedTask | None:
        """Begin the next task and return it. If no task waits, or one is running, return None.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. No task was begun.
        """
        return self._update_matching(
            f"id = (SELECT id FROM task {NEXT_FIRST} LIMIT 1) AND status = 'queued'",  # noqa: S608  constants
            (self.workspace,),
            "running",
            {},
            "attempt = attempt + 1, claim = claim + 1",
        )

    def finish(self, begun: QueuedTask, ended: TaskOutcome) -> QueuedTask | None:
        """Record the outcome of an attempt, and return the finished task.

        If the attempt was abandoned before, change nothing and return None.

        Args:
            begun: the task that `claim` returned.
            ended: the outcome.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. The ledger still shows the attempt as
                running.
        """
        with self._state.ledger.transaction():
            result = None if ended.result is None else json.dumps(dict(ended.result))
            error = None if ended.error is None else json.dumps(dict(ended.error))
            columns = {"arguments": None, "result": result, "error": error}
            return self._update_matching(
                "id = ? AND status = 'running' AND claim = ?", (begun.id, begun.claim), ended.status, columns
            )

    def requeue(self, begun: QueuedTask) -> QueuedTask | None:
        """Queue a task again whose attempt ended without effect, and return the task.

        The attempt does not count. If it was abandoned before, change nothing and return None.
        If the task was cancelled in the meantime, it is over, unless it has committed: then it will complete.

        Args:
            begun: the task that `claim` returned.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. The ledger still shows the attempt as
                running.
        """
        with self._state.ledger.transaction():
            current = self._find_current(begun)
            if current is None:
                return None
            if current.cancelled_by is not None and not self._has_committed(begun):
                return self._set_status(begun, "cancelled", arguments=None)
            return self._set_status(begun, "queued", attempt=begun.attempt - 1)

    def add_event(self, begun: QueuedTask, data: Mapping[str, Any]) -> None:
        """Add an event about a running attempt, for its originator and the owner.

        If the attempt is over or was abandoned, no event is added.

        Args:
            begun: the task that `claim` returned.
            data: JSON of names, numbers and codes.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. No event was added.
        """
        with self._state.ledger.transaction():
            if self._find_current(begun) is not None:
                outbox.append_event(self._state, build_event(begun, timestamp(self._now()), data))

    def cancel(self, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task: a waiting one immediately; for a running one, record the request for its runner.

        A finished task stays unchanged; a repeated cancellation has no effect. If the task has committed and
        only waits to find out its result, the request is recorded, but the task will complete.

        Args:
            task_id: id of the task.
            by: the originator of the cancellation.

        Returns:
            The task after the cancellation.

        Raises:
            NotFound: the task does not exist.
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was cancelled.
        """
        with self._state.ledger.transaction() as connection:
            task = self.get(task_id)
            if task.is_finished or task.cancelled_by is not None:
                return task
            canceller = json.dumps([by.token, by.client])
            connection.execute("UPDATE task SET cancelled_by = ? WHERE id = ?", (canceller, task_id))
            if task.claim:  # Otherwise a client could fill the audit log by cancelling its own waiting tasks.
                body = {"token": by.token, "client": by.client}
                append(self._state, timestamp(self._now()), "cancelled", task_id, body)
            if task.status == "queued" and not self._has_committed(task):
                return self._set_status(task, "cancelled", arguments=None)
            return self.get(task_id)

    def recover(self) -> tuple[QueuedTask, ...]:
        """Abandon the attempts that were running when their process ended; return their tasks.

        The tasks are queued again. A task that was begun `MAX_ATTEMPTS` times fails instead; a cancelled task
        is over.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was abandoned.
        """
        with self._state.ledger.transaction():
            return tuple(map(self._recover_task, list_running(self._state.ledger, self.workspace)))

    def try_truncate_log(self) -> bool:
        """Remove the data of finished tasks from the ledger's log; return False if a reader prevents this."""
        try:
            return self._state.ledger.try_truncate_log()
        except ManagedMemoryUnavailable:
            return True  # The next write reports it.

    @property
    def failures(self) -> int:
        """Return the number of failed reads and writes of the ledger; 0 if the ledger is a local file."""
        return self._state.ledger.failures

    def get(self, task_id: str) -> QueuedTask:
        """Return the task of this lane with the id `task_id`.

        Raises:
            NotFound: the task does not exist.
            ManagedMemoryUnavailable: the ledger cannot be read.
        """
        return read_task(self._state.ledger, self.workspace, task_id)

    def _find_current(self, begun: QueuedTask) -> QueuedTask | None:
        """Return the current state of the task of an attempt, or None if that attempt no longer runs."""
        task = find_task(self._state.ledger, self.workspace, begun.id)
        is_current = task is not None and task.status == "running" and task.claim == begun.claim
        return task if is_current else None

    def _set_status(self, task: QueuedTask, status: Status, **columns: object) -> QueuedTask:
        """Change the status and other columns of a task, add the event for it, and return the task."""
        updated = self._update_matching("id = ?", (task.id,), status, columns)
        if updated is None:
            raise NotFound("task not found")
        return updated

    def _update_matching(
        self,
        condition: str,
        values: Sequence[object],
        status: Status,
        columns: Mapping[str, object],
        *assignments: str,
    ) -> QueuedTask | None:
        """Change the status of the task that matches a condition, add the event, and return the task.

        Args:
            condition: SQL condition for the task.
            values: values of the placeholders in the condition.
            status: the new status.
            columns: new values of other columns.
            *assignments: further assignments, as SQL.

        Returns:
            The changed task; None if no task matches.
        """
        columns_changed = {"status": status, "updated": timestamp(self._now()), **columns}
        sets = ", ".join([*(f"{name} = ?" for name in columns_changed), *assignments])
        statement = f"UPDATE task SET {sets} WHERE {condition}"  # noqa: S608  constants
        with self._state.ledger.transaction():
            updated = TASKS.change_rows(self._state.ledger, statement, (*columns_changed.values(), *values))
            for task in updated:
                self._add_transition_event(task)
        return updated[0] if updated else None

    def _recover_task(self, task: QueuedTask) -> QueuedTask:
        has_committed = self._has_committed(task)
        if task.cancelled_by is not None and not has_committed:
            return self._set_status(task, "cancelled", arguments=None)
        if task.attempt >= MAX_ATTEMPTS + has_committed:
            return self._set_status(task, "failed", arguments=None, error=json.dumps({"code": "interrupted"}))
        return self._set_status(task, "queued")

    def _has_committed(self, task: QueuedTask) -> bool:
        """Return whether an attempt of the task has committed; later ones then only find out its result."""
        return find_commit(self._state, task.id) is not None

    def _count_tasks(self) -> tuple[dict[str, int], int]:
        """Return the number of pending tasks by kind, and the number of stored tasks."""
        query = (
            f"SELECT kind, count(*) FROM task {PENDING} GROUP BY kind "  # noqa: S608  constants
            "UNION ALL SELECT '', count(*) FROM task WHERE workspace = ?"
        )
        counts = dict(self._state.ledger.rows(query, (self.workspace, self.workspace)))
        stored_count = counts.pop("")
        return counts, stored_count

    def _evict(self, stored_count: int) -> None:
        """Delete finished tasks above `MAX_RECORDS` or `MAX_KEYED`, but none that a key still identifies."""
        if stored_count > MAX_RECORDS:
            self._delete_finished(MAX_RECORDS, self._compute_time(REPEAT_HOURS))
        if stored_count > MAX_KEYED:
            self._delete_finished(MAX_KEYED, _LATEST)

    def _delete_finished(self, most: int, created_before: str) -> None:
        """Delete finished tasks until at most `most` tasks remain, but no task whose key is still valid.

        Args:
            most: maximum number of remaining tasks, not counting finished tasks with a valid key.
            created_before: a key is valid if its task was created after this time.
        """
        with self._state.ledger.transaction() as connection:
            ((stored_count,),) = self._state.ledger.rows(
                "SELECT count(*) FROM task "  # noqa: S608  constants
                f"WHERE workspace = ? AND ({_IS_KEY_EXPIRED} OR NOT {_IS_FINISHED})",
                (self.workspace, created_before),
            )
            # Repeatedly take the oldest task of the token with the most: the highest row number.
            if stored_count > most:
                connection.execute(
                    "DELETE FROM task WHERE seq IN (SELECT seq FROM ("  # noqa: S608  constants
                    "SELECT seq, row_number() OVER (PARTITION BY token ORDER BY seq DESC) AS place FROM task "
                    f"WHERE workspace = ? AND {_IS_KEY_EXPIRED} AND {_IS_FINISHED}) AS it "
                    "ORDER BY place DESC, seq LIMIT ?)",
                    (self.workspace, created_before, stored_count - most),
                )

    def _digest_request(self, new_task: NewTask) -> tuple[str | None, str | None]:
        """Return the digests of the idempotency key and of the request; without a key, both are None."""
        if new_task.idempotency_key is None:
            return None, None
        key_parts = [
            self.workspace,
            new_task.originator.token,
            new_task.originator.client,
            new_task.idempotency_key,
        ]
        request_parts = [new_task.kind, dict(new_task.arguments), new_task.trust, new_task.ref]
        compute_digest = self._state.compute_keyed_digest
        return compute_digest(json.dumps(key_parts)), compute_digest(
            json.dumps(request_parts, sort_keys=True)
        )

    def _compute_time(self, hours: int) -> str:
        return timestamp(self._now() - timedelta(hours=hours))

    def _add_transition_event(self, task: QueuedTask) -> None:
        """Add the event that reports the new status of a task."""
        data: dict[str, Any] = {"status": task.status, "attempt": task.attempt}
        if task.error is not None:
            data["code"] = task.error["code"]
        if task.cancelled_by is not None:
            data["cancelled_by"] = [task.cancelled_by.token, task.cancelled_by.client]
        outbox.append_event(self._state, build_event(task, task.updated, data))


def _check_caps(kind: Kind, pending: Mapping[str, int]) -> None:
    count = sum(pending.values())
    tidying = count - pending.get("remember", 0)
    if count >= MAX_PENDING or (kind != "remember" and tidying >= MAX_TIDYING):
        raise QueueFull(count)


def _redact_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the ledger may store them: without secrets in `content`.

    If a secret was found, `secret` is `taken`; if it could not be removed alone, `secret` is `left` and the
    content is empty.
    """
    content = arguments.get("content")
    if not isinstance(content, str) or (redacted_content := _redact_text(content)) == content:
        return dict(arguments)
    return {**arguments, "content": redacted_content, "secret": "taken" if redacted_content else "left"}


def _redact_text(text: str | None) -> str | None:
    """Return a text without secrets; empty if a secret remains after redaction.

    A secret may be split by invisible characters. It is detected, because the job also removes them.
    """
    if text is None:
        return None
    visible_text = drop_invisible(text)
    if not _contains_secret(text) and not (visible_text != text and _contains_secret(visible_text)):
        return text
    redacted_text = redact_secrets(visible_text)
    return "" if _contains_secret(redacted_text) else redacted_text


def _contains_secret(text: str) -> bool:
    return find_secret(text.encode("utf-8", "replace"), "") is not None
