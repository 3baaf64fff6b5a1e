"""The errors of the client, in addition to those of the library.

    MunimentError
    └── ClientError               client_closed
        ├── Unreachable           unreachable, or daemon_unproven (the server does not know the token)
        ├── WaitTimeout           wait_timeout  (the task is not over; it continues)
        ├── BadAnswer             bad_answer    (the response does not follow the contract)
        ├── Problem               (the daemon rejected the request)
        └── TaskFailed            (a task ended without effect)

An error whose code has a class in `muniment.errors` is raised as both: a full queue is a `Problem` and a
`QueueFull`, a task that needs a review a `TaskFailed` and a `PendingReview`. So code that catches errors of
the library also catches those of a daemon. `code` is always the code from the daemon. Messages are the
daemon's sentences, shortened to a printable line; they contain no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from muniment.errors import CODES, MunimentError, printable


class ClientError(MunimentError):
    """Base class of the errors that a client raises on purpose."""


class Unreachable(ClientError):
    """The daemon did not respond.

    Attributes:
        code: `daemon_unproven` if the server did not prove that it knows the token; it received neither the
            token nor a request.
        may_have_arrived: whether the request may have been processed.
    """

    codes = ("unreachable", "daemon_unproven")

    def __init__(self, reason: str, *, may_have_arrived: bool = False, is_unverified: bool = False) -> None:
        self.may_have_arrived = may_have_arrived
        text = f"the daemon did not respond: {reason}"
        if is_unverified:
            text = (
                f"the server did not prove that it knows this token ({reason}), and did not receive it: "
                "either it is not the daemon, which may have ended, or the token was revoked or created by "
                "an older version"
            )
        elif may_have_arrived:
            text += "; the request may have been processed anyway"
        super().__init__(text, code=self.codes[is_unverified])


class WaitTimeout(ClientError):
    """The task is not over yet; it continues, and you can wait for it again.

    Attributes:
        task_id: id of the task.
        status: its last known status; None: unknown.
    """

    code = "wait_timeout"

    def __init__(self, task_id: str, status: str | None) -> None:
        self.task_id, self.status = task_id, status
        super().__init__(
            f"{task_id} is not over yet ({status or 'the daemon did not respond'}); it continues"
        )


class BadAnswer(ClientError):
    """The response does not follow the contract of the daemon."""

    code = "bad_answer"


def build_closed_error() -> ClientError:
    """Return the error for a closed client."""
    return ClientError("this client is closed; create a new one", code="client_closed")


class Problem(ClientError):
    """The daemon rejected the request.

    Attributes:
        code: code from the daemon; stable.
        status: HTTP status of the response, such as 409.
        fields: other members of the response by their names: ids, logical paths.
        review_id: the review that the owner may approve, if the response contains one.
        paths: logical paths that cause the conflict, if the response contains them.
        retry_after: seconds after which to retry, if the response contains them.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int,
        fields: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.status, self.retry_after = status, retry_after
        self.fields: Mapping[str, Any] = MappingProxyType(dict(fields or {}))
        review, paths = self.fields.get("reviewId"), self.fields.get("paths")
        self.review_id = review if isinstance(review, str) else None
        self.paths = tuple(map(str, paths)) if isinstance(paths, list) else ()
        MunimentError.__init__(self, printable(message), code=printable(code))


class TaskFailed(ClientError):
    """A task ended without effect on the memory.

    Attributes:
        code: code from the daemon; stable.
        task_id: id of the task.
        review_id: the pending review of the task, if it has one.
        paths: logical paths that were changed in the meantime, or that exceed the limit of a forget, if the
            daemon sent them.
        meant, limit: how many items a forget matched, and how many it may delete; None: not the reason.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        task_id: str,
        review_id: str | None = None,
        paths: tuple[str, ...] = (),
        meant: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.task_id, self.review_id, self.paths = task_id, review_id, paths
        self.meant, self.limit = meant, limit
        MunimentError.__init__(self, f"{printable(message)} ({task_id})", code=printable(code))


E = TypeVar("E", Problem, TaskFailed)


_DEFAULT_ATTRIBUTES: Final = {
    **dict.fromkeys(
        ("reasons", "requested", "decision", "by", "what", "reason", "rule", "layer", "where"), ""
    ),
    **dict.fromkeys(("problem", "required", "offered", "task_id"), ""),
    **dict.fromkeys(("via", "tool", "line", "meant", "limit")),
    "reasons": (),
}
"""Attributes of library errors that the daemon does not send, with their default values."""


@cache
def _list_library_errors() -> Mapping[str, type[MunimentError]]:
    """Return the error classes of the library by code."""
    classes = [each for each in _iterate_subclasses(MunimentError) if not issubclass(each, ClientError)]
    return {
        code: each
        for each in classes
        for code in vars(each).get("codes", (vars(each).get("code"),))
        if code in CODES
    }


def choose_error_class(kind: type[E], code: str) -> type[E]:
    """Return the class to raise for a code; also a subclass of the library's error, if there is one."""
    each = _list_library_errors().get(code)
    return (
        kind
        if each is None
        else type(each.__name__, (kind, each), {**_DEFAULT_ATTRIBUTES, "__module__": __name__})
    )


def _iterate_subclasses(top: type[MunimentError]) -> Iterator[type[MunimentError]]:
    for each in top.__subclasses__():
        yield each
        yield from _iterate_subclasses(each)
