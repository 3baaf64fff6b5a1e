"""What the tasks of lanes hold of a text that is to be erased, and how it goes; `erase.py` asks for it.

K1 What a task was asked, and what it says, may hold some of it; what everybody is shown of a task does not.
K2 A task that is cleared keeps its id, kind, place and what is shown of it. It has failed with the code
   `erased`, even where it had completed, so that no reader meets a result without content; one that was
   cancelled stays so.
K3 One that waited is never begun, and its end is an event; nothing is told of those that were over.
K4 One that runs is not cleared: it has the text in memory, and may be about to write it. It must end first.
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
from muniment.store.database import Ledger, reporting
from muniment.store.state import LedgerState, State, put
from muniment.store.table import Table

# -- outbox ------------------------------------------------------------------------------------------
#
# The outbox: events in the ledger, written with what they tell of, for whoever follows by number.
#
# - O1 an event is there exactly if the transaction of what it tells of was committed.
# - O2 numbers grow and are never used again; who has read up to one reads on from there, in any process.
# - O3 the newest `MAX_EVENTS` are kept. A number is only good together with the `epoch` of its series,
#   which
#   another ledger does not have, nor one that was put back from a copy.
#
# Events hold ids, names of scopes and codes, never content.

MAX_EVENTS: Final = 10_000
"""Events that are kept: of some hours under load, of months otherwise."""

_SWEEP: Final = 256
"""Every so many events the oldest are deleted."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
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


_LAST: Final = "(SELECT last FROM series)"
_FORGET_OLDEST: Final = f"DELETE FROM event WHERE number <= {_LAST} - ? AND {_LAST} % ? = 0"  # noqa: S608
_EVENTS: Final = Table("event", OutboxEvent, given="number", by=_LAST)


def append(state: LedgerState, event: OutboxEvent) -> None:
    """Add an event, inside the caller's transaction of the ledger.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        # By none of these anything is asked, so that a ledger that is elsewhere need not answer.
        connection.executemany("UPDATE series SET last = last + ?", [(1,)])
        _EVENTS.insert(connection, [event])
        connection.executemany(_FORGET_OLDEST, [(MAX_EVENTS, _SWEEP)])


def read(ledger: Ledger, after: int, limit: int) -> tuple[OutboxEvent, ...]:
    """The oldest events with a number above `after`.

    Args:
        ledger: any connection to it.
        after: a number, see `span`.
        limit: at most so many.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return _EVENTS.read(ledger, "WHERE number > ? ORDER BY number LIMIT ?", (after, limit))


def of_task(ledger: Ledger, task: str) -> tuple[OutboxEvent, ...]:
    """What is kept of the events about a task, in order. Raises as `read`.

    Cost: a look at all that are kept, some ms.
    """
    return _EVENTS.read(ledger, "WHERE task = ? ORDER BY number", (task,))


def span(ledger: Ledger) -> tuple[str, int, int]:
    """The epoch of the series, and the lowest and highest number after which `read` misses nothing.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    ((epoch, first, last),) = ledger.rows("SELECT epoch, (SELECT min(number) FROM event), last FROM series")
    return epoch, last if first is None else first - 1, last


# -- traces ------------------------------------------------------------------------------------------
#
# Which pieces of a text occur in other bytes. Pure; what an erasure looks for, and is checked by.
#
# A *run* is `RUN_BYTES` bytes in a row. Whatever of a text is somewhere, at any offset and in whatever
# surroundings, shares a run with it, unless it is shorter than one.

RUN_BYTES: Final = 16
"""Bytes of a run: of random text no two are alike by chance, and of prose about three words."""

_STEP: Final = RUN_BYTES // 2
"""Every run holds a whole block of this length that begins at a multiple of it."""


class Runs:
    """The runs of some texts.

    Args:
        texts: those shorter than a run have none.

    Cost: about 200 bytes of memory and 2 µs for each byte of text; `found_in` about 20 ns a byte.
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._runs = {
            text[start : start + RUN_BYTES] for text in texts for start in range(len(text) - RUN_BYTES + 1)
        }
        self._blocks = set(_blocks(self._runs))

    def __len__(self) -> int:
        return len(self._runs)

    def found_in(self, data: bytes) -> set[bytes]:
        """Those that occur in `data`."""
        found: set[bytes] = set()
        for at in range(0, len(data) - _STEP + 1, _STEP):
            if data[at : at + _STEP] in self._blocks:
                starts = range(max(0, at - _STEP), at + 1)
                found.update(data[start : start + RUN_BYTES] for start in starts)
        return found & self._runs

    def without(self, others: Iterable[bytes]) -> Runs:
        """Those that occur in none of `others`."""
        left = Runs(())
        left._runs = set(self._runs)
        for data in others:
            left._runs -= self.found_in(data)
        left._blocks = set(_blocks(left._runs))
        return left


def telling(data: bytes) -> Iterator[bytes]:
    """The parts of a file that say something: text, name, description and keywords, as a reader sees them.

    Left out is the front matter as such, which one entry shares with the next.
    """
    entry = parse(data)
    if "�" in entry.body:
        yield data
        return
    yield entry.body.encode()
    for part in (entry.name, entry.description, *entry.keywords):
        if part is not None:
            yield part.encode("utf-8", "surrogatepass")


def _blocks(runs: Iterable[bytes]) -> Iterator[bytes]:
    for run in runs:
        for start in range(RUN_BYTES - _STEP + 1):
            yield run[start : start + _STEP]


# -- tasks -------------------------------------------------------------------------------------------

_ERASED: Final[Mapping[str, Any]] = {"code": "erased"}


OWNER: Final = "owner"
"""The name of the token that may see and do everything; no other token may have it."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]

TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
"""A task that has one of these never changes again."""


@dataclass(frozen=True, slots=True)
class Originator:
    """Who sends a request.

    Attributes:
        token: the name of the token that it came with.
        client: the id that the client gave, one of those of the token; None: it gave none.
    """

    token: str
    client: str | None = None

    def sees(self, other: Originator) -> bool:
        """Whether this one may know of what `other` asked for.

        With an id only what that id asked for; without one the owner everything, a token its own.
        """
        if self.client is not None:
            return self.client == other.client
        return self.token in {OWNER, other.token}


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task as the ledger has it.

    Attributes:
        attempt: how often it was begun, without those that were put back.
        claim: how often it was begun in all: the number of its last attempt, which no other of it ever has.
        created, updated: ISO-8601, UTC, milliseconds.
        arguments: as in `server.lane_tasks.NewTask`, as `shown` is; None once it is over.
        cancelled_by: who asked to cancel it; a running one may still complete.
        repeat, repeated: keyed digests of the key that names it, and of what was asked with that.
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
    def is_over(self) -> bool:
        """Whether it will never change again."""
        return self.status in TERMINAL

    @property
    def said(self) -> list[Any]:
        """What it was asked, and what it says (K1)."""
        return [self.arguments, self.result, self.error]

    @property
    def cleared(self) -> QueuedTask:
        """It as it is once it is cleared (K2)."""
        if self.status == "cancelled":
            return self  # What it was asked was forgotten when it was cancelled.
        return replace(self, arguments=None, result=None, error=_ERASED, status="failed")


TASKS: Final = Table(
    "task",
    QueuedTask,
    given="seq",
    broken="task {} is not as it was written; bring the ledger back from a backup",
)


def event_of(task: QueuedTask, at: str, data: Mapping[str, Any]) -> OutboxEvent:
    """An event about a task, for its originator and the owner; `data` as there."""
    who = task.originator
    of_it = {"kind": task.kind, **data}
    return OutboxEvent("task", at, task.id, of_it, task.workspace, token=who.token, client=who.client)


def clearing(state: State, tasks: Collection[str]) -> tuple[QueuedTask, ...]:
    """Those of some tasks that clearing them changes, in their order: the others were cleared already."""
    return tuple(each for each in all_tasks(state) if each.id in tasks and each != each.cleared)


def clear(state: State, tasks: Sequence[QueuedTask], at: str) -> None:
    """Clear tasks, none of which runs (K2, K3), inside the caller's transaction in which they were found.

    Args:
        state: whose ledger.
        tasks: see `clearing`.
        at: when; see `audit.timestamp`.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        for before in tasks:
            task = before.cleared
            connection.execute(
                "UPDATE task SET status = ?, updated = ?, arguments = NULL, result = NULL, error = ? "
                "WHERE id = ?",
                (task.status, at, json.dumps(task.error), task.id),
            )
            if before.status == "queued":
                told = {"status": task.status, "attempt": task.attempt, **_ERASED}
                append(state, event_of(task, at, told))


def all_tasks(state: State) -> tuple[QueuedTask, ...]:
    """Every task of every lane: at most 1000 of each, and those named by a key."""
    return TASKS.read(state.ledger, "ORDER BY seq")


def as_read(text: str) -> Any:
    """JSON as it reads; what somebody edited so that it is none, as it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every string in JSON that was read, each with the name of the field that it is in."""
    match value:
        case str():
            yield field, value
        case dict():
            for name, each in value.items():
                yield from strings(each, name)
        case list():
            for each in value:
                yield from strings(each, field)


# -- transcripts -------------------------------------------------------------------------------------
#
# Which transcripts of runs were written and where, so that an erasure reaches them.
#
# A transcript is a file that the operator asked for, anywhere (`cli/remember.py`): it holds all that was
# said. One of a task that is erased, or that holds a run of the text, is deleted whole: what
# a model made of the text is in it in other words as well. A file that was moved, or replaced by another
# one, is left alone.

NAME: Final = "transcripts.jsonl"
"""In the state directory: a line for each, with its task, its path, and by what the file is known."""

_PRIVATE: Final = 0o600


def note(state: State, task: str, path: Path) -> None:
    """Keep in mind that a transcript of a task is written to a file, which is there.

    Raises:
        ManagedMemoryUnavailable: the state directory cannot be written.
    """
    file = state.directory / NAME
    with reporting(file):
        line = json.dumps([task, str(path.absolute()), *_identity(path)])
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        with os.fdopen(fd, "w", encoding="ascii") as lines:
            print(line, file=lines)


def remove_telling(state: State, tasks: Collection[str], runs: Runs) -> int:
    """Delete the transcripts of some tasks, and those that hold one of some runs; how many those were.

    Raises:
        ManagedMemoryUnavailable: one cannot be read or deleted.
    """
    file = state.directory / NAME
    with reporting(file):
        if not file.exists():
            return 0
        lines = file.read_text("ascii").splitlines(keepends=True)
        kept, removed = [], 0
        for line in lines:
            task, name, *identity = json.loads(line)
            path = Path(name)
            if not path.is_file() or _identity(path) != identity or not _is_transcript(path):
                continue
            if task in tasks or runs.found_in("\n".join(_said(path)).encode("utf-8", "replace")):
                path.unlink()
                removed += 1
            else:
                kept.append(line)
        if kept != lines:
            put(file, "".join(kept).encode("ascii"), over=True)
    return removed


def _identity(path: Path) -> list[int]:
    found = path.stat(follow_symlinks=False)
    return [found.st_dev, found.st_ino]


def _is_transcript(path: Path) -> bool:
    """Whether a file begins as one does; a number of a file that went may be another one's by now."""
    return path.read_text("utf-8", "replace").startswith('{"from": "system"')


def _said(path: Path) -> Iterator[str]:
    """What a transcript says, as it reads once the JSON is read."""
    for line in path.read_text("utf-8", "replace").splitlines():
        yield from (text for _, text in strings(as_read(line)))
