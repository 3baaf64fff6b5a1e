"""Memory for hosts that speak the Agent Client Protocol and start this as a child of their own.

A1 Tasks are carried out one at a time, in the order of their requests, by the same code as those of the
   daemon. They are not in its lane: nothing of them outlives this process, and its turn among others it gets
   from the locks of the roots.
A2 Every request gets one answer, within `server.runner.BACKSTOP_SECONDS` of its arrival and the moment that a
   worker takes to end. A task that still waits by then is never begun: its host has given up on it.
A3 A host can cancel what waits and what runs; what has committed by then has completed.
A4 A notification is never carried out but to cancel: nobody would learn how it ended.
A5 At most `server.lane.MAX_PENDING` tasks are pending.

The host is trusted as the owner: it runs as the same user, with standard input and output of its own.

Source: agentclientprotocol.com/protocol (initialization, extensibility, cancellation).
"""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Literal

from muniment import events
from muniment.cancelling import Cancel
from muniment.content.exact_json import NotJson, has_broken_id, parse_json, request_id_problem
from muniment.names import __version__
from muniment.server import asking
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem, sentence_of
from muniment.server.lane import MAX_PENDING
from muniment.server.lane_tasks import Ended, NewTask
from muniment.server.runner import BACKSTOP_SECONDS, Work
from muniment.server.work import Workspace
from muniment.store.audit import timestamp
from muniment.store.tasks import OWNER, Kind, Originator, QueuedTask

# -- jsonrpc -----------------------------------------------------------------------------------------
#
# JSON-RPC 2.0, a JSON object a line: bytes to messages and answers to bytes, without input or output.
#
# - J1 A line has at most `MAX_LINE_BYTES`; of a longer one no more is kept, and the next one is read as
#   ever.
# - J2 A message is what every parser reads it as (`strict_json`), and no batch.
# - J3 An answer is one line of ASCII, so that no text in it ends it and begins another one.
#
# Source: jsonrpc.org/specification; agentclientprotocol.com/protocol (transports, cancellation).

MAX_LINE_BYTES: Final = MAX_BODY_BYTES
"""Bytes of a line: as of a body over HTTP, a fact of 64 KiB however it is escaped."""

_TOO_LONG: Final = f"The line has more than {MAX_LINE_BYTES} bytes."

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CANCELLED: Final = -32800
FAILED: Final = -32000

Id = str | int


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """What the other side says.

    Attributes:
        method: what is asked; None: nothing is, it answers what it was never asked.
        id: of a request; None: it wants no answer.
    """

    method: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    id: Id | None = None


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that are complete with `data`; None for one that was too long (J1)."""
        *ends, rest = data.split(b"\n")
        lines: list[bytes | None] = []
        for part in ends:
            self._add(part)
            lines.append(None if self._is_too_long else bytes(self._line))
            self._line.clear()
            self._is_too_long = False
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._line) + len(part) > MAX_LINE_BYTES
        if self._is_too_long:
            self._line.clear()
        else:
            self._line += part


def read_message(line: bytes) -> RpcMessage | bytes:
    """The message of a line; or, of a line that holds none (J2), the answer to it."""
    try:
        found = parse_json(line, marked=False, repair=True)
    except NotJson:
        return failed(None, PARSE_ERROR, "invalid_json", "The line is no JSON, or JSON of two meanings.")
    if has_broken_id(found):
        return failed(
            None, PARSE_ERROR, "invalid_json", "The `id` contains half of a character; send whole ones."
        )
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        return _invalid("The line is no JSON-RPC 2.0 object.")
    if "method" not in found and ("result" in found or "error" in found):
        return RpcMessage()
    method, request_id, params = found.get("method"), found.get("id"), found.get("params", {})
    if not isinstance(method, str):
        return _invalid("`method` must be a text.")
    if "id" not in found:
        return RpcMessage(method, params if isinstance(params, dict) else {})
    if (problem := request_id_problem(found)) is not None:
        return _invalid(problem)
    if not isinstance(params, dict):
        return failed(request_id, INVALID_PARAMS, "invalid_request", "`params` must be an object.")
    return RpcMessage(method, params, request_id)


def _invalid(text: str) -> bytes:
    """The answer to what is no request, or none that may be."""
    return failed(None, INVALID_REQUEST, "invalid_request", text)


def succeeded(request_id: Id, result: Mapping[str, Any]) -> bytes:
    """The answer that says `result`."""
    return _line({"id": request_id, "result": result})


def failed(
    request_id: Id | None, number: int, code: str, text: str, fields: Mapping[str, Any] | None = None
) -> bytes:
    """The answer that says why not.

    Args:
        request_id: None: which request it was cannot be told.
        number: of JSON-RPC.
        code: stable, see `problems`.
        text: a fixed sentence.
        fields: further members of its data.
    """
    data = {"errorKind": code, "code": code, **(fields or {})}
    return _line({"id": request_id, "error": {"code": number, "message": text, "data": data}})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **document}).encode() + b"\n"


# -- acp ---------------------------------------------------------------------------------------------

PROTOCOL_VERSION: Final = 1
"""Of the Agent Client Protocol; a host that cannot speak it has to leave."""

BASE: Final = "qwen/control/workspace/memory"
AVAILABILITY: Final = f"{BASE}/remember/availability"
METHODS: Final[Mapping[str, Callable[[dict[str, Any], Workspace], NewTask]]] = {
    f"{BASE}/remember": asking.remember,
    f"{BASE}/forget": asking.forget,
    f"{BASE}/dream": asking.dream,
}
"""Extension methods that are tasks. A host may write `_` before the name of any extension method."""

REST_SECONDS: Final = 1.0
"""Seconds that a look is given to end once everything is to; it takes some milliseconds."""

_Reason = Literal["asked", "backstop"]


@dataclass(slots=True)
class _Pending:
    """A request without an answer so far.

    Attributes:
        kind: of its task; None: it is a look, and no task.
        until: second on the clock at which it is given up.
        reason: why it was ended, if it was; the first one counts.
    """

    kind: Kind | None
    until: float
    cancel: Cancel
    future: Future[Ended]
    reason: _Reason | None = None

    def interrupt(self, reason: _Reason) -> None:
        self.reason = self.reason or reason
        if not self.future.cancel():
            self.cancel.set()


class _Looks:
    """What only looks, one after the other, on a thread that the process does not wait for when it ends.

    A look may wait for a database that another process holds. It can be cancelled at any time: then it is
    over for whoever asked, and what it finds counts for nothing.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Ended], Callable[[], Ended]] | None]
        self._asked = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)
        self._thread.start()

    def submit(self, do: Callable[[Cancel], Ended], cancel: Cancel) -> Future[Ended]:
        future: Future[Ended] = Future()
        self._asked.put((future, partial(do, cancel)))
        return future

    def close(self) -> bool:
        """Take no more; whether the thread has ended, which is waited for no longer than `REST_SECONDS`."""
        self._asked.put(None)
        self._thread.join(REST_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, do = asked
            if future.cancelled():
                continue
            with suppress(InvalidStateError):  # It was cancelled meanwhile.
                try:
                    future.set_result(do())
                except Exception as error:  # noqa: BLE001  whoever asked is told
                    future.set_exception(error)


class HostSession:
    """The conversation with one host. One thread feeds it; answers are sent by that and by others.

    Args:
        workspace: whose memory; it stays the caller's.
        work: carries out tasks.
        send: takes an answer, a line; called by several threads.
        clock: seconds.
        seconds: see A2.
    """

    def __init__(
        self,
        workspace: Workspace,
        work: Work,
        send: Callable[[bytes], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = BACKSTOP_SECONDS,
    ) -> None:
        self._workspace, self._work, self._send = workspace, work, send
        self._clock, self._seconds = clock, seconds
        self._tasks = ThreadPoolExecutor(1, "task")
        self._looks = _Looks()
        self._lock = threading.Lock()
        self._pending: dict[Id, _Pending] = {}
        self._accepted = 0

    @property
    def deadline(self) -> float:
        """Second on the clock at which to call `expire`."""
        with self._lock:
            waiting = [each.until for each in self._pending.values() if each.reason is None]
        return min(waiting, default=math.inf)

    def receive(self, line: bytes | None) -> None:
        """Take a line of the host; None: one that was too long."""
        if line is None:
            self._send(failed(None, PARSE_ERROR, "body_too_large", _TOO_LONG))
        elif line.strip():
            message = read_message(line)
            if isinstance(message, bytes):
                self._send(message)
            else:
                self._take(message)

    def expire(self) -> None:
        """Give up whatever has had its time (A2)."""
        now = self._clock()
        self._interrupt("backstop", lambda _, pending: pending.until <= now)

    def close(self) -> bool:
        """Cancel all that is pending, and wait until every task has ended; what writes by then ends writing.

        Returns:
            True: nothing uses the workspace any more. False: a look still does, and nobody waits for it.
        """
        self._interrupt("asked", lambda *_: True)
        self._tasks.shutdown()
        return self._looks.close()

    def _take(self, message: RpcMessage) -> None:
        match message:
            case RpcMessage(method=str(method), id=str() | int() as request_id):
                try:
                    self._answer(request_id, method, message.params)
                except HttpProblem as problem:
                    self._send(_failure(request_id, {"code": problem.code, **problem.fields}))
            case RpcMessage(method="$/cancel_request", params=params):
                wanted = params.get("requestId", params.get("id"))
                self._interrupt("asked", lambda request_id, _: _is_same(request_id, wanted))
            case _:
                events.emit("acp_ignored", what="answered" if message.method is None else "notification")

    def _answer(self, request_id: Id, asked: str, params: Mapping[str, Any]) -> None:
        method = asked.removeprefix("_")
        if asked == "initialize":
            self._send(succeeded(request_id, _introduction()))
        elif method == AVAILABILITY:
            self._begin(request_id, None, self._is_available)
        elif (ask := METHODS.get(method)) is not None:
            document = {name: value for name, value in params.items() if name != "_meta"}
            task = ask(document, self._workspace)
            self._begin(request_id, task.kind, partial(self._carry_out, task))
        else:
            self._send(failed(request_id, METHOD_NOT_FOUND, "method_not_found", "There is no such method."))

    def _begin(self, request_id: Id, kind: Kind | None, do: Callable[[Cancel], Ended]) -> None:
        """Have something done for a request, once everything before it of its sort is.

        Raises:
            Problem: too much of its sort is pending (A5).
        """
        if request_id in self._pending:  # Which this thread alone adds to.
            self._send(_invalid("A request with this `id` is pending; it goes on."))
            return
        executor = self._looks if kind is None else self._tasks
        with self._lock:
            alike = [each for each in self._pending.values() if (each.kind is None) == (kind is None)]
            if len(alike) >= MAX_PENDING:
                raise HttpProblem("remember_queue_full")
            cancel = Cancel()
            future = executor.submit(do, cancel)
            pending = _Pending(kind, self._clock() + self._seconds, cancel, future)
            self._pending[request_id] = pending
        future.add_done_callback(partial(self._over, request_id, pending))

    def _is_available(self, _: Cancel) -> Ended:
        return Ended("completed", {"available": self._workspace.problem() is None})

    def _carry_out(self, asked: NewTask, cancel: Cancel) -> Ended:
        self._accepted += 1
        now = timestamp()
        task = QueuedTask(
            seq=self._accepted,
            id=f"{asked.kind}-{uuid.uuid4()}",
            kind=asked.kind,
            status="running",
            originator=Originator(OWNER),
            trust=asked.trust,
            attempt=1,
            created=now,
            updated=now,
            shown=asked.shown,
            arguments=asked.arguments,
        )
        return self._work(task, cancel, lambda _: None)

    def _over(self, request_id: Id, pending: _Pending, future: Future[Ended]) -> None:
        with self._lock:
            del self._pending[request_id]
        pending.cancel.close()
        kind = pending.kind or "remember"
        if not future.cancelled() and (defect := future.exception()) is not None:
            events.emit_defect("task_broke", defect)
            ended = Ended("failed", error={"code": f"{kind}_failed"})
        else:
            ended = Ended("cancelled") if future.cancelled() else future.result()
        if ended.result is not None:
            self._send(succeeded(request_id, ended.result))
            return
        error = ended.error or {"code": "cancelled"}
        if error["code"] == "cancelled":
            codes = {"asked": "cancelled", "backstop": f"{kind}_timeout", None: f"{kind}_failed"}
            error = {"code": codes[pending.reason]}
        self._send(_failure(request_id, error))

    def _interrupt(self, reason: _Reason, which: Callable[[Id, _Pending], bool]) -> None:
        with self._lock:
            found = [each for request_id, each in self._pending.items() if which(request_id, each)]
        for each in reversed(found):  # The last one first, or the next one would begin for a moment.
            each.interrupt(reason)


def _is_same(one: Id, other: object) -> bool:
    """Whether two ids are one; in JSON, unlike here, true is not 1."""
    return type(one) is type(other) and one == other


def number_of(code: str) -> int:
    """The number of JSON-RPC for a code of a task or request."""
    if code == "cancelled":
        return CANCELLED
    if code.startswith("invalid_"):
        return INVALID_PARAMS
    return INTERNAL_ERROR if code.endswith("_failed") else FAILED


def _failure(request_id: Id, error: Mapping[str, Any]) -> bytes:
    """The answer for a task or request that failed with `error`."""
    code = error["code"]
    return failed(request_id, number_of(code), code, sentence_of(code), error)


def _introduction() -> Mapping[str, Any]:
    """What `initialize` answers: there are no sessions here, only the extension methods."""
    methods = [*METHODS, AVAILABILITY]
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {"loadSession": False, "_meta": {"muniment": {"methods": methods}}},
        "agentInfo": {"name": "muniment", "title": "Muniment", "version": __version__},
        "authMethods": [],
    }
