"""The errors of the client, in addition to those of the library.

    MunimentError
    └── ClientError               client_closed
        ├── Unreachable           unreachable, or daemon_unproven (the server does not know the token)
        ├── WaitTimeout           wait_timeout  (the task is not over; it continues)
        ├── BadAnswer             bad_answer    (the response does not follow the contract)
        ├── Problem               (the daemon rejected the request)
        └── TaskFailed            (a task ended without effect)

If `muniment.errors` has a class for the code of an error, the raised exception is an instance of both
classes. For example, a full queue raises a `Problem` that is also a `QueueFull`. So code that catches errors
of the library also catches the same errors from a daemon. `code` is always the code from the daemon. A
message is the daemon's sentence, shortened to one printable line; it never contains a token.
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
        code: `unreachable`; or `daemon_unproven` if the server did not prove that it knows the token. Such a
            server received neither the token nor a request.
        may_have_arrived: whether the daemon may have processed the request.
    """

    codes = ("unreachable", "daemon_unproven")

    def __init__(self, reason: str, *, may_have_arrived: bool = False, is_unverified: bool = False) -> None:
        self.may_have_arrived = may_have_arrived
        text = f"the daemon did not respond: {reason}"
        if is_unverified:
            text = (
                f"the server did not prove that it knows this token ({reason}), so the token was not sent: "
                "check that the daemon still runs at this address, and that the token was not revoked or "
                "created by an older version"
            )
        elif may_have_arrived:
            text += "; the request may have been processed anyway"
        super().__init__(text, code=self.codes[is_unverified])


class WaitTimeout(ClientError):
    """The task is not over yet; it continues, and you can call `wait` again.

    Attributes:
        task_id: id of the task.
        status: last known status of the task; None: the daemon did not respond.
    """

    code = "wait_timeout"

    def __init__(self, task_id: str, status: str | None) -> None:
        self.task_id, self.status = task_id, status
        super().__init__(
            f"{task_id} is not over yet ({status or 'the daemon did not respond'}); it continues, "
            "so wait for it again"
        )


class BadAnswer(ClientError):
    """The response of the server does not follow the contract of the daemon."""

    code = "bad_answer"


def build_closed_error() -> ClientError:
    """Return the error for a call of a client that is closed."""
    return ClientError("this client is closed; create a new one", code="client_closed")


class Problem(ClientError):
    """The daemon rejected the request.

    Attributes:
        code: the code from the daemon; it does not change between versions.
        status: HTTP status of the response, such as 409.
        fields: all other members of the response by name, such as ids and logical paths.
        review_id: id of the review that the owner may approve, if the response contains one.
        paths: logical paths that cause the conflict, if the response contains them.
        retry_after: seconds after which a retry may succeed, if the response contains them.
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
    """A task ended without changing the memory: it failed, or was cancelled.

    Attributes:
        code: the code from the daemon; it does not change between versions.
        task_id: id of the task.
        review_id: id of the pending review that the task created, if it created one.
        paths: logical paths that the daemon named as the reason: files that changed in the meantime, or
            entries that exceed the limit of one forget.
        meant, limit: the number of entries that a forget matched, and the number that it may delete; None:
        the task failed for another reason.
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
"""Attributes of library errors that the daemon does not send, with the value that they get instead."""


@cache
def _list_library_errors() -> Mapping[str, type[MunimentError]]:
    """Return the error classes of the library, by their code."""
    classes = [each for each in _iterate_subclasses(MunimentError) if not issubclass(each, ClientError)]
    return {
        code: each
        for each in classes
        for code in vars(each).get("codes", (vars(each).get("code"),))
        if code in CODES
    }


def choose_error_class(kind: type[E], code: str) -> type[E]:
    """Return the class of the exception to raise for a code from the daemon.

    If the library has an error class for this code, the result is a subclass of `kind` and of that class.

    Args:
        kind: `Problem` or `TaskFailed`.
        code: the code from the daemon.
    """
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
