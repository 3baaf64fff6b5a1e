"""Tasks of lanes in the ledger: their events, and the deletion of their text by an erasure (`erase.py`).

K1 Arguments, result and error of a task may contain erased text; the public fields of a task do not.
K2 A cleared task retains its id, kind, position and public fields. Its status becomes `failed` with the code
   `erased`, even if it had completed, so that no reader finds a result without content. A cancelled task
   stays cancelled.
K3 If a queued task is cleared, it is never begun, and an event reports its end. A finished task produces no
   event.
K4 A running task is not cleared: it has the text in memory, and may be about to write it. It must end first.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from muniment.content.entry import parse
from muniment.kernel.names import Trust
from muniment.kernel.syscalls import os
from muniment.store.database import Ledger, convert_errors
from muniment.store.state import LedgerState, State, write_file
from muniment.store.table import Table

# -- outbox --------------------------------------------------------------------------------------------
#
# The outbox: events in the ledger, written with the changes that they report, for followers that read by
# number.
#
# - O1 An event exists if and only if the transaction of its change was committed.
# - O2 Numbers grow and are never reused. A follower continues after its last number, in any process.
# - O3 The newest `MAX_EVENTS` are retained. A number is only valid together with the `epoch` of its series,
#   which another ledger or a restored one does not have.
#
# Events contain ids, names of scopes and codes, never content.

MAX_EVENTS: Final = 10_000
"""Number of events that are retained: those of a few hours under load, otherwise of months."""

_SWEEP: Final = 256
"""Number of new events after which the oldest events are deleted."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event about a change of the memory or of a task.

    Attributes:
        type: `memory_changed` or `task`.
        at: time of the change.
        task: id of the task that the event is about.
        data: JSON; for `memory_changed` without the scopes, because their names depend on the workspace.
        workspace: key of the workspace that receives the event; None: every workspace that binds one of
            `roots`.
        roots: keys of the roots that changed.
        token, client: the requester of the task, if known.
        number: number of the event, assigned by `append_event`.
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


_LAST: Final = "(SELECT last FROM series)"
_DELETE_OLDEST: Final = f"DELETE FROM event WHERE number <= {_LAST} - ? AND {_LAST} % ? = 0"  # noqa: S608
_EVENTS: Final = Table("event", OutboxEvent, generated_column="number", generated_sql=_LAST)


def append_event(state: LedgerState, event: OutboxEvent) -> None:
    """Append an event to the ledger, in the caller's transaction.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        # These statements return nothing, so that a remote ledger needs no round trip.
        connection.executemany("UPDATE series SET last = last + ?", [(1,)])
        _EVENTS.insert(connection, [event])
        connection.executemany(_DELETE_OLDEST, [(MAX_EVENTS, _SWEEP)])


def read_events(ledger: Ledger, after: int, limit: int) -> tuple[OutboxEvent, ...]:
    """Return the oldest events whose number is greater than `after`.

    Args:
        ledger: any connection to the ledger.
        after: number of the last event that the caller has read, see `read_range`.
        limit: maximum number of events.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return _EVENTS.read(ledger, "WHERE number > ? ORDER BY number LIMIT ?", (after, limit))


def read_task_events(ledger: Ledger, task: str) -> tuple[OutboxEvent, ...]:
    """Return the retained events about a task, in order; raise as `read_events`.

    Cost: a scan of all retained events, a few ms.
    """
    return _EVENTS.read(ledger, "WHERE task = ? ORDER BY number", (task,))


def read_range(ledger: Ledger) -> tuple[str, int, int]:
    """Return the range of event numbers after which a reader can start without missing events.

    Returns:
        The epoch of the series of numbers; the lowest and the highest value for `after` of `read_events`.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    ((epoch, first, last),) = ledger.rows("SELECT epoch, (SELECT min(number) FROM event), last FROM series")
    return epoch, last if first is None else first - 1, last


# -- traces --------------------------------------------------------------------------------------------
#
# Finds the pieces of a text that occur in other bytes. Pure; used by an erasure, and by its check.
#
# A *run* is `RUN_BYTES` consecutive bytes. Any piece of a text in other bytes, at any offset and in any
# surroundings, shares a run with the text, unless the piece is shorter than a run.

RUN_BYTES: Final = 16
"""Number of bytes in a run. Runs of random text are never equal by chance; in prose a run is three words."""

_BLOCK_BYTES: Final = RUN_BYTES // 2
"""Number of bytes in a block. Every run contains a complete block that begins at a multiple of this number.
"""


class Runs:
    """All pieces of `RUN_BYTES` consecutive bytes of some texts; such a piece is called a run.

    Args:
        texts: the texts; a text that is shorter than a run has none.

    Cost: about 200 bytes of memory and 2 µs for each byte of text; `find_runs` about 20 ns for each byte.
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._runs = {
            text[start : start + RUN_BYTES] for text in texts for start in range(len(text) - RUN_BYTES + 1)
        }
        self._blocks = set(_iterate_blocks(self._runs))

    def __len__(self) -> int:
        return len(self._runs)

    def find_runs(self, data: bytes) -> set[bytes]:
        """Return those of these runs that occur in `data`."""
        found: set[bytes] = set()
        for offset in range(0, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            if data[offset : offset + _BLOCK_BYTES] in self._blocks:
                starts = range(max(0, offset - _BLOCK_BYTES), offset + 1)
                found.update(data[start : start + RUN_BYTES] for start in starts)
        return found & self._runs

    def remove_common(self, others: Iterable[bytes]) -> Runs:
        """Return those of these runs that occur in none of `others`."""
        left = Runs(())
        left._runs = set(self._runs)
        for data in others:
            left._runs -= self.find_runs(data)
        left._blocks = set(_iterate_blocks(left._runs))
        return left


def split_meaningful_parts(data: bytes) -> Iterator[bytes]:
    """Yield the meaningful parts of a file, decoded: text, name, description and keywords.

    The syntax of the front matter is omitted, because all entries share it.
    """
    entry = parse(data)
    if "�" in entry.body:
        yield data
        return
    yield entry.body.encode()
    for part in (entry.name, entry.description, *entry.keywords):
        if part is not None:
            yield part.encode("utf-8", "surrogatepass")


def _iterate_blocks(runs: Iterable[bytes]) -> Iterator[bytes]:
    for run in runs:
        for start in range(RUN_BYTES - _BLOCK_BYTES + 1):
            yield run[start : start + _BLOCK_BYTES]


# -- tasks -------------------------------------------------------------------------------------------

_ERASED: Final[Mapping[str, Any]] = {"code": "erased"}


OWNER: Final = "owner"
"""The name of the token with all permissions; no other token may have this name."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]

TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
"""The final statuses: a task with one of them never changes again."""


@dataclass(frozen=True, slots=True)
class Originator:
    """The sender of a request.

    Attributes:
        token: name of the token that the sender used.
        client: id of the client, which must be one of the token's; None: the sender sent no id.
    """

    token: str
    client: str | None = None

    def can_see(self, other: Originator) -> bool:
        """Return whether this sender may see the requests of `other`.

        With a client id: only requests with the same id. Without a client id: the owner sees all requests,
        and any other token sees its own.
        """
        if self.client is not None:
            return self.client == other.client
        return self.token in {OWNER, other.token}


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task in the ledger.

    Attributes:
        seq: position in the queue.
        attempt: number of starts, without those after which the task was put back into the queue.
        claim: number of all starts; identifies the last start, because it is never reused for this task.
        created, updated: ISO-8601, UTC, milliseconds.
        shown: as `public_arguments` of `server.lane_tasks.NewTask`.
        arguments: as in `server.lane_tasks.NewTask`; None after the task has ended.
        cancelled_by: the sender who requested the cancellation; a running task may still complete.
        workspace: key of the workspace.
        repeat, repeated: keyed digests of the idempotency key, and of the request that used this key.
    """

    seq: int
    id: str
    kind: Kind
    status: Status
    originator: Originator
    trust: Trust
    attempt: int
    created: str
    updated: str
    shown: Mapping[str, Any]
    arguments: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    cancelled_by: Originator | None = None
    claim: int = 0
    workspace: str = ""
    repeat: str | None = None
    repeated: str | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether the task has ended and will never change again."""
        return self.status in TERMINAL

    @property
    def texts(self) -> list[Any]:
        """Return the fields of the task that may contain erased text: arguments, result and error."""
        return [self.arguments, self.result, self.error]

    @property
    def cleared_copy(self) -> QueuedTask:
        """Return the task without its text, as an erasure leaves it: failed, with the code `erased`."""
        if self.status == "cancelled":
            return self  # Its arguments were deleted when it was cancelled.
        return replace(self, arguments=None, result=None, error=_ERASED, status="failed")


TASKS: Final = Table(
    "task",
    QueuedTask,
    generated_column="seq",
    invalid_message="task {} was changed after it was written; restore the ledger from a backup",
)


def build_event(task: QueuedTask, at: str, data: Mapping[str, Any]) -> OutboxEvent:
    """Return an event about a task, for its originator and the owner.

    Args:
        task: the task.
        at: time of the change.
        data: JSON about the change; the kind of the task is added.
    """
    who = task.originator
    of_it = {"kind": task.kind, **data}
    return OutboxEvent("task", at, task.id, of_it, task.workspace, token=who.token, client=who.client)


def select_uncleared(state: State, tasks: Collection[str]) -> tuple[QueuedTask, ...]:
    """Return those tasks with an id in `tasks` that still contain text, in the order of the queue."""
    return tuple(each for each in list_tasks(state) if each.id in tasks and each != each.cleared_copy)


def clear_tasks(state: State, tasks: Sequence[QueuedTask], at: str) -> None:
    """Delete the text of tasks that are not running; a queued task ends, and an event reports that.

    This runs in the transaction in which the caller read the tasks.

    Args:
        state: has the ledger.
        tasks: tasks from `select_uncleared`.
        at: time of the change, as `audit.timestamp` returns it.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        for before in tasks:
            task = before.cleared_copy
            connection.execute(
                "UPDATE task SET status = ?, updated = ?, arguments = NULL, result = NULL, error = ? "
                "WHERE id = ?",
                (task.status, at, json.dumps(task.error), task.id),
            )
            if before.status == "queued":
                data = {"status": task.status, "attempt": task.attempt, **_ERASED}
                append_event(state, build_event(task, at, data))


def list_tasks(state: State) -> tuple[QueuedTask, ...]:
    """Return all tasks of all lanes: at most 1000 of each lane, and those with an idempotency key."""
    return TASKS.read(state.ledger, "ORDER BY seq")


def decode_json(text: str) -> Any:
    """Decode JSON; return the text itself if it is not valid JSON, because it was edited."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def iterate_strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield, for every string in decoded JSON, the name of its field and the string."""
    match value:
        case str():
            yield field, value
        case dict():
            for name, each in value.items():
                yield from iterate_strings(each, name)
        case list():
            for each in value:
                yield from iterate_strings(each, field)


# -- transcripts ---------------------------------------------------------------------------------------
#
# The list of transcripts of runs and their paths, so that an erasure can delete them.
#
# A transcript is a file that the operator requested, at any path (`cli/remember.py`): it contains the
# complete conversation. A transcript of an erased task, or one that contains a run of the text, is deleted
# completely, because it also contains the model's paraphrases. A file that was moved or replaced is not
# touched.

TRANSCRIPTS_NAME: Final = "transcripts.jsonl"
"""File in the state directory with one line for each transcript: task, path and file identity."""

_PRIVATE: Final = 0o600


def record_transcript(state: State, task: str, path: Path) -> None:
    """Add the path of a task's transcript to the list of transcripts. The transcript must exist.

    Raises:
        ManagedMemoryUnavailable: the state directory cannot be written.
    """
    file = state.directory / TRANSCRIPTS_NAME
    with convert_errors(file):
        line = json.dumps([task, str(path.absolute()), *_read_identity(path)])
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        with os.fdopen(fd, "w", encoding="ascii") as lines:
            print(line, file=lines)


def delete_transcripts(state: State, tasks: Collection[str], runs: Runs) -> int:
    """Delete the transcripts of some tasks, and those that contain erased text; return their number.

    Args:
        state: has the list of transcripts.
        tasks: ids of the tasks.
        runs: pieces of the erased text.

    Raises:
        ManagedMemoryUnavailable: a transcript cannot be read or deleted.
    """
    file = state.directory / TRANSCRIPTS_NAME
    with convert_errors(file):
        if not file.exists():
            return 0
        lines = file.read_text("ascii").splitlines(keepends=True)
        remaining_lines, removed = [], 0
        for line in lines:
            task, name, *identity = json.loads(line)
            path = Path(name)
            if not path.is_file() or _read_identity(path) != identity or not _is_transcript(path):
                continue
            if task in tasks or runs.find_runs(
                "\n".join(_iterate_transcript_strings(path)).encode("utf-8", "replace")
            ):
                path.unlink()
                removed += 1
            else:
                remaining_lines.append(line)
        if remaining_lines != lines:
            write_file(file, "".join(remaining_lines).encode("ascii"), replace=True)
    return removed


def _read_identity(path: Path) -> list[int]:
    found = path.stat(follow_symlinks=False)
    return [found.st_dev, found.st_ino]


def _is_transcript(path: Path) -> bool:
    """Return whether a file begins like a transcript: another file may have got the same inode."""
    return path.read_text("utf-8", "replace").startswith('{"from": "system"')


def _iterate_transcript_strings(path: Path) -> Iterator[str]:
    """Yield the strings of a transcript, from its decoded JSON lines."""
    for line in path.read_text("utf-8", "replace").splitlines():
        yield from (text for _, text in iterate_strings(decode_json(line)))
