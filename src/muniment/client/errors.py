"""What can go wrong for a client of the daemon, beside what can for everybody.

    MunimentError
    └── ClientError               client_closed
        ├── Unreachable           unreachable, or daemon_unproven (who answered does not know the token)
        ├── WaitTimeout           wait_timeout  (the task is not over; it goes on)
        ├── BadAnswer             bad_answer    (what answered does not speak the contract)
        ├── Problem               (the daemon answered that it does not do this)
        └── TaskFailed            (a task ended without effect)

What has a code for which `muniment.errors` has a class is raised as both: a queue that is full is a
`Problem` and a `QueueFull`, a task that waits for review a `TaskFailed` and a `PendingReview`. So who catches
errors of the library catches those of a daemon as well. `code` is always what the daemon said. Messages are
the daemon's sentences, shortened to a printable line; they hold no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from muniment.errors import CODES, MunimentError, printable


class ClientError(MunimentError):
    """Anything that a client raises on purpose."""


class Unreachable(ClientError):
    """The daemon did not answer.

    Attributes:
        code: `daemon_unproven` of a stranger: who answered did not prove to know the token, and was sent
            neither the token nor a request.
        may_have_arrived: whether it may have carried out what it was sent.
    """

    codes = ("unreachable", "daemon_unproven")

    def __init__(self, why: str, *, may_have_arrived: bool = False, is_stranger: bool = False) -> None:
        self.may_have_arrived = may_have_arrived
        text = f"the daemon did not answer: {why}"
        if is_stranger:
            text = (
                f"what answers does not prove that it knows this token ({why}), and was not sent it: either "
                "this is not the daemon, which may have ended, or the token was revoked or made by an older "
                "version"
            )
        elif may_have_arrived:
            text += "; it may have been carried out all the same"
        super().__init__(text, code=self.codes[is_stranger])


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


def client_closed() -> ClientError:
    """That the client was closed before, or meanwhile."""
    return ClientError("this client was closed; make another", code="client_closed")


class Problem(ClientError):
    """The daemon answered that it does not do what it was asked.

    Attributes:
        code: what the daemon said; stable.
        status: of the answer, such as 409.
        fields: what else it said, by its names: ids, logical paths.
        review_id: what the owner may approve, where the daemon named it.
        paths: logical paths that stand in the way, where the daemon named them.
        retry_after: seconds after which it may be asked again, where it said so.
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
        code: what the daemon said; stable.
        task_id: which task.
        review_id: what the owner may approve, of a task that waits for that.
        paths: logical paths that were changed meanwhile, or of what would be too much to forget, where the
            daemon named them.
        meant, limit: how many things a forget would have removed, and how many it may; None: that is not why.
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


_UNTOLD: Final = {
    **dict.fromkeys(
        ("reasons", "requested", "decision", "by", "what", "reason", "rule", "layer", "where"), ""
    ),
    **dict.fromkeys(("problem", "required", "offered", "task_id"), ""),
    **dict.fromkeys(("via", "tool", "line", "meant", "limit")),
    "reasons": (),
}
"""What errors of the library have of which the daemon tells nothing, and the value for that."""


@cache
def _of_library() -> Mapping[str, type[MunimentError]]:
    """Class of the library by code."""
    classes = [each for each in _below(MunimentError) if not issubclass(each, ClientError)]
    return {
        code: each
        for each in classes
        for code in vars(each).get("codes", (vars(each).get("code"),))
        if code in CODES
    }


def told_as(kind: type[E], code: str) -> type[E]:
    """The class that a problem or a failure of a code is raised as: the library's as well, if it has one."""
    each = _of_library().get(code)
    return kind if each is None else type(each.__name__, (kind, each), {**_UNTOLD, "__module__": __name__})


def _below(top: type[MunimentError]) -> Iterator[type[MunimentError]]:
    for each in top.__subclasses__():
        yield each
        yield from _below(each)
