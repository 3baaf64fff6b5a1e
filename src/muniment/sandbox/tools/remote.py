"""The broker's end of the protocol: it exchanges messages with a worker and trusts none of them.

Every message is checked against a closed model and a size before it is used; an invalid message ends the
worker (`WorkerLost`). The content of a message (texts, decisions, a change set) is input for the model and
for the judge, never a decision.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, Protocol, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from muniment.errors import BadArguments, PathEscape, Refusal, TooLarge, ToolError, WorkerLost
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, read_proposal
from muniment.kernel.decide import Policy
from muniment.kernel.names import MAX_FILE_BYTES, MAX_PATH_BYTES, Digest, Scope, Via
from muniment.names import FenceLayer, Held
from muniment.policy.frozen import Frozen
from muniment.policy.grammar import NO_LINKS, Links
from muniment.sandbox.fence.evidence import read_status, what_holds
from muniment.sandbox.fence.pool import Worker
from muniment.sandbox.tools.calls import Outcome, check_sizes, check_tool, stopped
from muniment.sandbox.tools.overlay import NOTHING_SHOWN, Shown
from muniment.sandbox.tools.service import MAX_CALL_BYTES

MAX_ANSWER_BYTES: Final = 1 << 20
"""Bytes of the text of one result; the tools return far less."""

_Digest = Annotated[Digest, Field(pattern=r"^[0-9a-f]{64}$")]
_Path = Annotated[str, Field(max_length=4 * MAX_PATH_BYTES)]


_T = TypeVar("_T")


class _Hello(Frozen):
    t: Literal["hello"]
    missing: dict[Annotated[FenceLayer, Field(strict=False)], int]


class _Ready(Frozen):
    t: Literal["ready"]
    digest: _Digest


class _Result(Frozen):
    t: Literal["result"]
    n: int
    verdict: Literal["allow", "deny", "error"]
    code: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")] | None
    rule: Annotated[str, Field(max_length=100)] | None
    via: Annotated[Via, Field(strict=False)] | None


class _WireChange(Frozen):
    t: Literal["change"]
    path: _Path
    base: _Digest | None


class _Claim(Frozen):
    t: Literal["claim"]
    path: _Path
    digest: _Digest | None


class _EndOfChanges(Frozen):
    t: Literal["end"]


_HELLO: Final = TypeAdapter(_Hello)
_READY: Final = TypeAdapter(_Ready)
_RESULT: Final = TypeAdapter(_Result)
_ITEM: Final = TypeAdapter[_WireChange | _Claim | _EndOfChanges](
    Annotated[_WireChange | _Claim | _EndOfChanges, Field(discriminator="t")]
)


class Bench(Protocol):
    """Executes the calls of a run: a `Workbench` in this process, or one in a worker."""

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one call."""
        ...

    def change_set(self) -> ChangeSet:
        """Return the changes that the run has proposed until now."""
        ...


def greet(worker: Worker, patience: Patience) -> Held:
    """Receive the first message of a fresh worker; return its confinement.

    Raises:
        WorkerLost: it died, or sent another message.
        DeadlineExceeded, Cancelled: as `patience`; the worker was ended.
    """
    header, _ = worker.receive(max_body=0, patience=patience)
    hello = _valid(worker, _HELLO, header, "hello")
    status = read_status(worker.pid)
    worker.check_alive()
    return what_holds(hello.missing, status, read_status(os.getpid()))


def _valid(worker: Worker, model: TypeAdapter[_T], header: Mapping[str, object], what: str) -> _T:
    try:
        return model.validate_python(header)
    except ValidationError:
        raise _lost(worker, f"sent an invalid {what}") from None


def _lost(worker: Worker, what: str) -> WorkerLost:
    worker.kill()
    return WorkerLost(f"the worker {what}")


class RemoteBench:
    """A workbench in a worker.

    Args:
        worker: a fresh worker after `greet`, without further messages.
        scopes: the scopes of the run.
        must_read: as `Workbench`.
        patience: called before every wait; returns the deadline.
        links: as `Workbench`.
        shown: as `Workbench`.
    """

    def __init__(
        self,
        worker: Worker,
        policy: Policy,
        scopes: tuple[Scope, ...],
        *,
        must_read: bool,
        patience: Callable[[], Patience],
        links: Mapping[Scope, Links] = NO_LINKS,
        shown: Shown = NOTHING_SHOWN,
    ) -> None:
        self._worker, self._policy, self._patience, self._scopes = worker, policy, patience, scopes
        self._calls, self._shown = 0, len(shown)
        terms = {
            "t": "init",
            "policy": policy.name,
            "scopes": list(scopes),
            "must_read": must_read,
            "links": list(links),
            "shown": [[path.scope, path.rel, seen] for path, seen in shown.items()],
        }
        worker.send(terms, policy.text.encode(), patience=patience())
        for mapped in links.values():
            worker.send({"t": "links"}, json.dumps(mapped).encode(), patience=patience())
        header, _ = worker.receive(max_body=0, patience=patience())
        if _valid(worker, _READY, header, "ready").digest != policy.digest:
            raise _lost(worker, "loaded another policy than the one that was sent")

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one call in the worker.

        Raises:
            DeadlineExceeded, Cancelled: the wait ended; the worker was ended.
            WorkerLost: the worker died or broke the protocol.
        """
        try:
            name = check_tool(tool)
            check_sizes(arguments)
            body = _encoded(arguments)
        except (PathEscape, Refusal, ToolError) as error:
            return stopped(error)
        self._calls += 1
        asked = {"t": "call", "n": self._calls, "tool": name}
        header, answer = self._worker.request(
            asked, body, max_body=MAX_ANSWER_BYTES, patience=self._patience()
        )
        result = _valid(self._worker, _RESULT, header, "result")
        if result.n != self._calls:
            raise _lost(self._worker, "returned the result of another call")
        if (result.verdict == "allow") != (result.code is None):
            raise _lost(self._worker, "returned a verdict that contradicts its code")
        try:
            text = answer.decode()
        except UnicodeDecodeError:
            raise _lost(self._worker, "returned bytes that are not text") from None
        return Outcome(result.verdict, result.code, text, rule=result.rule, via=result.via)

    def change_set(self) -> ChangeSet:
        """Fetch the changes that the worker proposes; raise as `call` and `read_proposal`.

        Bounded by the policy's limits, and by the number of injected entries and calls: each adds one claim
        at most.
        """
        changes: list[tuple[str, Digest | None, bytes]] = []
        claims: list[tuple[str, Digest | None]] = []
        limits = self._policy.limits
        room = limits.write_bytes
        patience = self._patience()
        self._worker.send({"t": "changes"}, patience=patience)
        while True:
            header, content = self._worker.receive(max_body=min(room, MAX_FILE_BYTES), patience=patience)
            match _valid(self._worker, _ITEM, header, "change-set"):
                case _EndOfChanges():
                    return read_proposal(changes, claims, self._scopes)
                case _WireChange() as item:
                    room -= len(content)
                    changes.append((item.path, item.base, content))
                case _Claim() as item:
                    claims.append((item.path, item.digest))
            if len(changes) > limits.files_written or len(claims) > self._calls + self._shown:
                raise _lost(self._worker, "proposed more than its budget")


def _encoded(arguments: object) -> bytes:
    try:
        body = json.dumps(arguments, allow_nan=False).encode()
    except ValueError:
        raise BadArguments("the arguments contain NaN or infinity; use finite numbers") from None
    if len(body) > MAX_CALL_BYTES:
        raise TooLarge("the arguments are too large; shorten them")
    return body
