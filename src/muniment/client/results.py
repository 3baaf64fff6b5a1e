"""What the daemon says, as frozen values with the names of Python.

Fields that other implementations of the contract leave out may be None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from muniment.client.errors import TaskFailed, told_as

# -- results -----------------------------------------------------------------------------------------

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]
Document = Mapping[str, Any]
"""What the daemon says, under its own names."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_OVER: Final = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class SupersededEntry:
    """An entry that no longer holds: the fact stands in its place.

    Attributes:
        path: of both.
        id: likewise; empty where it had none.
    """

    path: str
    id: str


@dataclass(frozen=True, slots=True)
class RememberResult:
    """What a remember did.

    Attributes:
        files_touched: logical paths, such as `user/editor.md`.
        touched_scopes: such as `user`; of the commit.
        enforcement: what held the worker: `full`, `partial` or `none`.
        decided_by: the model, or `rules`.
        trust: of what was written; below that of the request where a model used words of its own.
        notes: what a person should know.
        superseded: what no longer holds.
        expires: the day on which what was written is no longer told; None: it lasts.
    """

    summary: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    enforcement: str | None = None
    decided_by: str | None = None
    trust: str | None = None
    notes: tuple[str, ...] = ()
    superseded: tuple[SupersededEntry, ...] = ()
    expires: str | None = None


@dataclass(frozen=True, slots=True)
class RemovedEntry:
    """An entry, or a part of one, that went; of a dry run, that would go.

    Attributes:
        line: where in the file what goes begins; None: all of it goes.
        text: the lines that go; None: all of the file.
    """

    topic: str
    summary: str
    file_path: str
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """An entry that was meant and stays, and why."""

    file_path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """What a forget did.

    Attributes:
        kept: what was meant and stays.
        near: where nothing was meant, paths of entries that share a word with the query.
        notes: what a person should know.
        digest: of a dry run: names exactly what would go; None: nothing would.
    """

    summary: str
    removed_entries: tuple[RemovedEntry, ...]
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    kept: tuple[KeptEntry, ...] = ()
    near: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class DreamResult:
    """What a dream did.

    Attributes:
        deduped_entries: how many entries went because another one says the same.
        rejected: how many groups were left alone, since they changed meanwhile.
    """

    summary: str
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    deduped_entries: int
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Review:
    """A change-set that waits for the owner.

    Attributes:
        kind: of the task that proposed it.
        at: since when; ISO-8601, UTC.
        reasons: why it waits, each in one line.
        paths: logical paths that it would change.
    """

    review_id: str
    kind: str
    at: str
    reasons: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReviewShown:
    """A review as it would be approved now.

    Attributes:
        digest: what an approval of this names.
    """

    review_id: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a decision.

    Attributes:
        status: `approved` or `rejected`.
        task_id: as which it was committed; None: it was rejected.
    """

    review_id: str
    status: str
    task_id: str | None
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did.

    Attributes:
        task_id: of the undo; undo that to have the changes again.
        undone: the task whose changes were taken back.
    """

    task_id: str
    undone: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """What an erasure would do; nothing was erased.

    Attributes:
        lane_tasks: tasks of the daemon whose texts would go.
    """

    files: tuple[str, ...]
    versions: int
    others: tuple[str, ...]
    reviews: tuple[str, ...]
    records: int
    tasks: tuple[str, ...]
    copies: tuple[str, ...]
    not_covered: str
    lane_tasks: int = 0


@dataclass(frozen=True, slots=True)
class EraseReceipt:
    """What an erasure did, as `ErasePlan`. It holds no name and no text."""

    task_id: str
    at: str
    erased: tuple[str, ...]
    tasks: tuple[str, ...]
    files: int
    versions: int
    reviews: int
    records: int
    notes: tuple[str, ...]
    not_covered: str
    lane_tasks: int = 0


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The end of the chain of records; keep it where nobody can change it together with the ledger."""

    head: str
    records: int


@dataclass(frozen=True, slots=True)
class UiOpened:
    """Where the page of the daemon is, and how to sign in there.

    Attributes:
        code: signs in once, within `seconds`; put behind `#`, never into a query.
    """

    url: str
    code: str = field(repr=False)
    seconds: int


@dataclass(frozen=True, slots=True)
class Explained:
    """What the policy says to a verb on a path.

    Attributes:
        verdict: `allow` or `deny`.
        rule: which one denies, in which `layer`, and for which `reason`.
    """

    policy: str
    verdict: str
    rule: str | None = None
    layer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RecalledEntry:
    """An entry that helps with a message.

    Attributes:
        id: what `recall(exclude=…)` takes: its path, and a digest of what it says.
        path: logical.
        trust: whom it comes from: `owner`, `workspace`, `agent` or `external`.
        at: when it was written; ISO-8601, UTC.
        text: what of it stands in the text of the answer.
    """

    id: str
    path: str
    name: str
    trust: str
    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """What of the memory helps with a message.

    Attributes:
        entries: the best first.
        text: to be put before a model as it is: the entries, fenced as data; empty without entries.
        tokens: of the text, about.
        abstained: nothing in the memory is about the message but what was excluded.
        error: the code of why it is empty; None: nothing went wrong.
    """

    entries: tuple[RecalledEntry, ...]
    text: str
    tokens: int
    abstained: bool
    error: str | None = None


Result = RememberResult | ForgetResult | DreamResult


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why a task failed.

    Attributes:
        paths: what was changed meanwhile; or some of what would be too much to forget.
        meant: how much that is, where it is more than may be forgotten.
        limit: how much may be forgotten at once, where it is more.
    """

    code: str
    message: str
    review_id: str | None = None
    paths: tuple[str, ...] = ()
    meant: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the daemon knows it.

    Attributes:
        created_at, updated_at: ISO-8601, UTC, milliseconds.
        context_mode: of a remember alone.
        result: of a completed one alone.
        error: of a failed one alone.
    """

    task_id: str
    kind: Kind
    status: Status
    created_at: str
    updated_at: str
    context_mode: str | None = None
    scope: str | None = None
    result: Result | None = None
    error: TaskError | None = None

    @property
    def is_over(self) -> bool:
        """Whether it will never change again."""
        return self.status in _OVER

    @property
    def outcome(self) -> Result:
        """The result of a task that is over.

        Raises:
            TaskFailed: it has none; a class of it, by the code.
        """
        if self.result is not None:
            return self.result
        error = self.error or TaskError("cancelled", "The task was cancelled; nothing was written.")
        message = error.message
        if error.meant is not None:
            message += f" Meant are {error.meant} things, and {error.limit} may go at once."
        raise told_as(TaskFailed, error.code)(
            error.code,
            message,
            task_id=self.task_id,
            review_id=error.review_id,
            paths=error.paths,
            meant=error.meant,
            limit=error.limit,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a workspace.

    Attributes:
        id: what `events(after=…)` goes on from; "" where the daemon gave none.
        type: `memory_changed`, `task`, or `resync`: what came before was missed, read anew what you keep.
        data: under the daemon's own names.
        originator_client_id: of the client that asked for it, where it gave one.
    """

    id: str
    type: str
    data: Document
    originator_client_id: str | None = None


# -- normal ------------------------------------------------------------------------------------------
#
# Events as user interfaces of this contract know them: one shape for every change of the memory.
#
# Source: the event normaliser of the contract's TypeScript SDK; scopes other than `user` and `project` pass
# as well, since a policy may declare them.

_TYPE: Final = "workspace.memory.changed"


def normalize(event: Event | Document) -> dict[str, Any] | None:
    """A change of the memory; None: the event is about something else, or is not whole.

    Args:
        event: as `events()` gave it, or as it stands in a stream: `{"type": …, "data": {…}}`.

    Returns:
        `{"type": "workspace.memory.changed", "scope": "managed", "source", "taskId", "touchedScopes"}`; of a
        change to a context file, whose scope is `workspace` or `global`, instead of the last three
        `filePath`, `mode` and `bytesWritten`.
    """
    wire = {"type": event.type, "data": event.data} if isinstance(event, Event) else event
    kind, data = wire.get("type"), wire.get("data")
    if kind != "memory_changed" or not isinstance(data, dict):
        return None
    match data:
        case {
            "scope": "managed",
            "source": str(source),
            "taskId": str(task_id),
            "touchedScopes": list(scopes),
        }:
            is_whole = bool(source and task_id) and all(isinstance(each, str) for each in scopes)
            names = ("scope", "source", "taskId", "touchedScopes")
        case {
            "scope": "workspace" | "global",
            "filePath": str(path),
            "mode": "append" | "replace",
            "bytesWritten": int(written),
        }:
            is_whole = bool(path) and not isinstance(written, bool)
            names = ("scope", "filePath", "mode", "bytesWritten")
        case _:
            return None
    return {"type": _TYPE, **{name: data[name] for name in names}} if is_whole else None
