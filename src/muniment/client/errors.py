"""What can go wrong for a client of the daemon: one tree, by the codes that the daemon gives.

    MunimentError
    └── ClientError
        ├── Unreachable           unreachable          (no answer; see `may_have_arrived`)
        │   └── Unproven          daemon_unproven      (who answered does not know the token; it was not sent)
        ├── WaitTimeout           wait_timeout         (the task is not over; it goes on)
        ├── BadAnswer             bad_answer           (what answered does not speak the contract)
        ├── ClientClosed          client_closed
        ├── Problem               (the daemon answered that it does not do this)
        │   ├── InvalidRequest    invalid_request, invalid_json, invalid_http, bad_name
        │   │   ├── InvalidContent, InvalidContextMode, InvalidScope, InvalidExpires
        │   │   ├── InvalidQuery, InvalidClientId
        │   │   └── IdempotencyMismatch
        │   ├── TokenRequired
        │   ├── WorkspaceRequired, UntrustedWorkspace, OwnerRequired
        │   ├── TaskNotFound      {remember,forget,dream}_task_not_found, task_not_found
        │   ├── ReviewNotFound, NothingToErase
        │   ├── MemoryUnavailable managed_memory_unavailable
        │   ├── NotAllowed        refused, path_escape, content_rejected, quota
        │   ├── ReviewNeeded      pending_review
        │   ├── Conflict          store_conflict, erased
        │   │   └── ReviewClosed, ReviewChanged, UndoOverlap, AlreadyUndone
        │   ├── QueueFull         remember_queue_full
        │   └── NotNow            busy, workspace_draining, deadline, not_ready, ledger_away
        └── TaskFailed            (a task ended without effect)
            ├── PathEscape        remember_path_escape, path_escape
            ├── NoUpdate          remember_no_update
            ├── ScopeMismatch     remember_scope_mismatch
            ├── Refused           remember_refused, refused, content_rejected, quota
            ├── TimedOut          {remember,forget,dream}_timeout
            ├── PendingReview     pending_review
            ├── StoreConflict     store_conflict
            └── Interrupted, Cancelled, Erased

Each class that stands without a code has its name in snake_case. A code that is not drawn here gives
`Problem` or `TaskFailed` itself. `code` is always what the daemon said. Messages are the daemon's sentences,
shortened to a printable line; they hold no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from muniment.errors import MunimentError, printable


class ClientError(MunimentError):
    """Anything that a client raises on purpose."""


class Unreachable(ClientError):
    """The daemon did not answer.

    Attributes:
        may_have_arrived: whether it may have carried out what it was sent.
    """

    code = "unreachable"

    def __init__(self, why: str, *, may_have_arrived: bool = False) -> None:
        self.may_have_arrived = may_have_arrived
        outcome = "; it may have been carried out all the same" if may_have_arrived else ""
        super().__init__(f"the daemon did not answer: {why}{outcome}")


class Unproven(Unreachable):
    """Who answered did not prove to know the token; it was sent neither the token nor a request."""

    code = "daemon_unproven"

    def __init__(self, why: str) -> None:
        self.may_have_arrived = False
        ClientError.__init__(
            self,
            f"what answers does not prove that it knows this token ({why}), and was not sent it: either this "
            "is not the daemon, which may have ended, or the token was revoked or made by an older version",
        )


class WaitTimeout(ClientError):
    """The task is not over yet; it goes on, and may be waited for again.

    Attributes:
        task_id: which task.
        status: what it had when it was last heard of; None: it was not heard of.
    """

    code = "wait_timeout"

    def __init__(self, task_id: str, status: str | None) -> None:
        self.task_id, self.status = task_id, status
        super().__init__(f"{task_id} is not over yet ({status or 'the daemon did not answer'}); it goes on")


class BadAnswer(ClientError):
    """What answered does not speak the contract of the daemon."""

    code = "bad_answer"


class ClientClosed(ClientError):
    """The client was closed before, or meanwhile."""

    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("this client was closed; make another")


class Problem(ClientError):
    """The daemon answered that it does not do what it was asked.

    Attributes:
        code: what the daemon said; stable.
        status: of the answer, such as 409.
        fields: what else it said, by its names: ids, logical paths.
        retry_after: seconds after which it may be asked again, where it said so.
    """

    code: str  # type: ignore[misc]  # Unknown codes are kept as they came.
    codes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int,
        fields: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.code, self.status, self.retry_after = printable(code), status, retry_after
        self.fields: Mapping[str, Any] = MappingProxyType(dict(fields or {}))
        super().__init__(f"{printable(message)} ({self.code})")


class InvalidRequest(Problem):
    """The request is not one that the daemon takes."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_request", "invalid_json", "invalid_http", "bad_name")


class InvalidContent(InvalidRequest):
    """The fact is empty, too long or not text."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_content",)


class InvalidExpires(InvalidRequest):
    """When the fact is to end is no day to come."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_expires",)


class InvalidContextMode(InvalidRequest):
    """The context mode is neither `workspace` nor `clean`."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_context_mode",)


class InvalidScope(InvalidRequest):
    """The policy has no such scope."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_scope",)


class InvalidQuery(InvalidRequest):
    """The query is empty, too long or not text."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_query",)


class InvalidClientId(InvalidRequest):
    """The client id is not registered for the token."""

    codes: ClassVar[tuple[str, ...]] = ("invalid_client_id",)


class IdempotencyMismatch(InvalidRequest):
    """The idempotency key was sent before with another request."""

    codes: ClassVar[tuple[str, ...]] = ("idempotency_mismatch",)


class TokenRequired(Problem):
    """No token was sent, or one that the daemon does not know."""

    codes: ClassVar[tuple[str, ...]] = ("token_required",)


class UntrustedWorkspace(Problem):
    """The daemon was not started for the workspace."""

    codes: ClassVar[tuple[str, ...]] = ("untrusted_workspace",)


class WorkspaceRequired(Problem):
    """The daemon serves several workspaces, and none was named."""

    codes: ClassVar[tuple[str, ...]] = ("workspace_required",)


class OwnerRequired(Problem):
    """Only the owner may do this."""

    codes: ClassVar[tuple[str, ...]] = ("owner_required",)


class TaskNotFound(Problem):
    """There is no such task, or it is not this client's to see."""

    codes: ClassVar[tuple[str, ...]] = (
        "remember_task_not_found",
        "forget_task_not_found",
        "dream_task_not_found",
        "task_not_found",
    )


class ReviewNotFound(Problem):
    """There is no review of this id."""

    codes: ClassVar[tuple[str, ...]] = ("review_not_found",)


class NothingToErase(Problem):
    """Nothing of this name is remembered, nor was it."""

    codes: ClassVar[tuple[str, ...]] = ("nothing_to_erase",)


class MemoryUnavailable(Problem):
    """The memory of the workspace cannot be used; nothing was queued."""

    codes: ClassVar[tuple[str, ...]] = ("managed_memory_unavailable",)


class NotAllowed(Problem):
    """The policy, a content gate or a quota refused an undo or an approval; nothing was written."""

    codes: ClassVar[tuple[str, ...]] = ("refused", "path_escape", "content_rejected", "quota")


class ReviewNeeded(Problem):
    """An undo waits for the owner's approval; nothing was written.

    Attributes:
        review_id: what to approve or reject.
    """

    codes: ClassVar[tuple[str, ...]] = ("pending_review",)

    @property
    def review_id(self) -> str | None:
        """See the class."""
        found = self.fields.get("reviewId")
        return found if isinstance(found, str) else None


class Conflict(Problem):
    """The memory is no longer what the request rests on; nothing was written.

    Attributes:
        paths: logical paths that stand in the way, where the daemon named them.
    """

    codes: ClassVar[tuple[str, ...]] = ("store_conflict", "erased")

    @property
    def paths(self) -> tuple[str, ...]:
        """See the class."""
        found = self.fields.get("paths")
        return tuple(map(str, found)) if isinstance(found, list) else ()


class ReviewClosed(Conflict):
    """The review was decided before."""

    codes: ClassVar[tuple[str, ...]] = ("review_closed",)


class ReviewChanged(Conflict):
    """The digest is not that of the review as it is now."""

    codes: ClassVar[tuple[str, ...]] = ("review_changed",)


class UndoOverlap(Conflict):
    """Later changes would be lost with those that were to be undone."""

    codes: ClassVar[tuple[str, ...]] = ("undo_overlap",)


class AlreadyUndone(Conflict):
    """The task was undone before."""

    codes: ClassVar[tuple[str, ...]] = ("already_undone",)


class QueueFull(Problem):
    """Too many tasks of the workspace are pending, also after the tries of this call."""

    codes: ClassVar[tuple[str, ...]] = ("remember_queue_full",)


class NotNow(Problem):
    """The daemon is busy or stops, also after the tries of this call; nothing was queued."""

    codes: ClassVar[tuple[str, ...]] = ("busy", "workspace_draining", "deadline", "not_ready", "ledger_away")


class TaskFailed(ClientError):
    """A task ended without effect on the memory.

    Attributes:
        code: what the daemon said; stable.
        task_id: which task.
        review_id: what the owner may approve, of a task that waits for that.
        paths: logical paths that were changed meanwhile, or of what would be too much to forget, where the
            daemon named them.
        meant, limit: how many things a forget would have removed, and how many it may; None: that is not why.
    """

    code: str  # type: ignore[misc]  # As that of `Problem`.
    codes: ClassVar[tuple[str, ...]] = ()
    meant: int | None = None
    limit: int | None = None

    def __init__(
        self,
        code: str,
        message: str,
        *,
        task_id: str,
        review_id: str | None = None,
        paths: tuple[str, ...] = (),
    ) -> None:
        self.code, self.task_id, self.review_id, self.paths = printable(code), task_id, review_id, paths
        super().__init__(f"{printable(message)} ({self.code}, {task_id})")


class PathEscape(TaskFailed):
    """The agent asked for something outside the memory, and was stopped."""

    codes: ClassVar[tuple[str, ...]] = ("remember_path_escape", "path_escape")


class NoUpdate(TaskFailed):
    """The agent ended without proposing a change."""

    codes: ClassVar[tuple[str, ...]] = ("remember_no_update",)


class ScopeMismatch(TaskFailed):
    """The agent found no place in the scope that was asked for."""

    codes: ClassVar[tuple[str, ...]] = ("remember_scope_mismatch",)


class Refused(TaskFailed):
    """The policy, a content gate or a quota refused the change."""

    codes: ClassVar[tuple[str, ...]] = ("remember_refused", "refused", "content_rejected", "quota")


class TimedOut(TaskFailed):
    """The task's own time passed; see `WaitTimeout` for that of a wait."""

    codes: ClassVar[tuple[str, ...]] = ("remember_timeout", "forget_timeout", "dream_timeout")


class PreviewChanged(TaskFailed):
    """Something else would go by now than the dry run said; nothing was removed."""

    codes: ClassVar[tuple[str, ...]] = ("preview_changed",)


class PendingReview(TaskFailed):
    """The change waits for the owner's approval, under `review_id`."""

    codes: ClassVar[tuple[str, ...]] = ("pending_review",)


class StoreConflict(TaskFailed):
    """Somebody else changed what the task rests on."""

    codes: ClassVar[tuple[str, ...]] = ("store_conflict",)


class Interrupted(TaskFailed):
    """The daemon ended while it carried out the task, too often to try it again."""

    codes: ClassVar[tuple[str, ...]] = ("interrupted",)


class Cancelled(TaskFailed):
    """The task was cancelled, by this client or another one."""

    codes: ClassVar[tuple[str, ...]] = ("cancelled",)


class Erased(TaskFailed):
    """What the task did, or was to do, was erased."""

    codes: ClassVar[tuple[str, ...]] = ("erased",)


def _below(top: type[Any]) -> Iterator[type[Any]]:
    for each in top.__subclasses__():
        yield each
        yield from _below(each)


PROBLEMS: Final[Mapping[str, type[Problem]]] = MappingProxyType(
    {code: each for each in _below(Problem) for code in each.codes}
)
"""Class by code, of answers."""

FAILURES: Final[Mapping[str, type[TaskFailed]]] = MappingProxyType(
    {code: each for each in _below(TaskFailed) for code in each.codes}
)
"""Class by code, of tasks."""
