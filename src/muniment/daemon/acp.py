"""Memory for hosts that speak the Agent Client Protocol and start this as a child of their own.

A1 Tasks are carried out one at a time, in the order of their requests, by the same code as those of the
   daemon. They are not in its lane: nothing of them outlives this process, and its turn among others it gets
   from the locks of the roots.
A2 Every request gets one answer, within `lane.runner.BACKSTOP_SECONDS` of its arrival and the moment that a
   worker takes to end. A task that still waits by then is never begun: its host has given up on it.
A3 A host can cancel what waits and what runs; what has committed by then has completed.
A4 A notification is never carried out but to cancel: nobody would learn how it ended.
A5 At most `lane.lane.MAX_PENDING` tasks are pending.

The host is trusted as the owner: it runs as the same user, with standard input and output of its own.

Source: agentclientprotocol.com/protocol (initialization, extensibility, cancellation).
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Literal

from muniment import events
from muniment.confine.cancel import Cancel
from muniment.daemon import asking, jsonrpc
from muniment.daemon.jsonrpc import Id, Malformed, Notification, Request
from muniment.daemon.problems import Problem, sentence_of
from muniment.daemon.workspace import Workspace
from muniment.lane import BACKSTOP_SECONDS, MAX_PENDING, OWNER, Kind, Originator, Task, Work
from muniment.names import __version__
from muniment.store.audit import timestamp

PROTOCOL_VERSION: Final = 1
"""Of the Agent Client Protocol; a host that cannot speak it has to leave."""

BASE: Final = "qwen/control/workspace/memory"
AVAILABILITY: Final = f"{BASE}/remember/availability"
METHODS: Final[Mapping[str, Kind]] = {
    f"{BASE}/remember": "remember",
    f"{BASE}/forget": "forget",
    f"{BASE}/dream": "dream",
}
"""Extension methods that are tasks. A host may write `_` before the name of any extension method."""

_WANTED: Final = {"remember": asking.remember, "forget": asking.forget, "dream": asking.dream}

REST_SECONDS: Final = 1.0
"""Seconds that a look is given to end once everything is to; it takes some milliseconds."""

_CANCEL: Final = "$/cancel_request"

_Reason = Literal["asked", "backstop"]


class _Failed(Exception):
    """A task that failed, with the error that it ended with."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error = error
        super().__init__(error["code"])


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
    future: Future[Mapping[str, Any]]
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
        self._asked: SimpleQueue[tuple[Future[Mapping[str, Any]], Callable[[], Mapping[str, Any]]] | None]
        self._asked = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)
        self._thread.start()

    def submit(self, do: Callable[[Cancel], Mapping[str, Any]], cancel: Cancel) -> Future[Mapping[str, Any]]:
        future: Future[Mapping[str, Any]] = Future()
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
                    found = do()
                except Exception as error:  # noqa: BLE001  whoever asked is told
                    future.set_exception(error)
                else:
                    future.set_result(found)


class Session:
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
            self._send(jsonrpc.failed(None, *_TOO_LONG))
        elif line.strip():
            try:
                self._take(jsonrpc.message(line))
            except Malformed as error:
                self._send(jsonrpc.failed(error.id, error.number, error.code, str(error)))

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

    def _take(self, message: Request | Notification | jsonrpc.Answered) -> None:
        match message:
            case Request():
                try:
                    self._answer(message)
                except Problem as problem:
                    self._send(_failure(message.id, {"code": problem.code, **problem.fields}))
            case Notification(params=params) if message.method == _CANCEL:
                wanted = params.get("requestId", params.get("id"))
                self._interrupt("asked", lambda request_id, _: _is_same(request_id, wanted))
            case _:
                events.emit("acp_ignored", what=type(message).__name__.lower())

    def _answer(self, request: Request) -> None:
        method = request.method.removeprefix("_")
        if request.method == "initialize":
            self._send(jsonrpc.succeeded(request.id, _introduction()))
        elif method == AVAILABILITY:
            self._begin(request.id, None, self._is_available)
        elif (kind := METHODS.get(method)) is not None:
            params = {name: value for name, value in request.params.items() if name != "_meta"}
            wanted = _WANTED[kind](params, self._workspace)
            self._begin(request.id, kind, partial(self._carry_out, kind, wanted))
        else:
            text = "There is no such method."
            self._send(jsonrpc.failed(request.id, jsonrpc.METHOD_NOT_FOUND, "method_not_found", text))

    def _begin(self, request_id: Id, kind: Kind | None, do: Callable[[Cancel], Mapping[str, Any]]) -> None:
        """Have something done for a request, once everything before it of its sort is.

        Raises:
            Problem: too much of its sort is pending (A5).
            Malformed: the id is that of a request that is pending.
        """
        executor = self._looks if kind is None else self._tasks
        with self._lock:
            if request_id in self._pending:
                text = "A request with this `id` is pending; it goes on."
                raise Malformed(jsonrpc.INVALID_REQUEST, "invalid_request", text)
            alike = [each for each in self._pending.values() if (each.kind is None) == (kind is None)]
            if len(alike) >= MAX_PENDING:
                raise Problem("remember_queue_full")
            cancel = Cancel()
            future = executor.submit(do, cancel)
            pending = _Pending(kind, self._clock() + self._seconds, cancel, future)
            self._pending[request_id] = pending
        future.add_done_callback(partial(self._over, request_id, pending))

    def _is_available(self, _: Cancel) -> Mapping[str, Any]:
        return {"available": self._workspace.problem() is None}

    def _carry_out(self, kind: Kind, wanted: asking.Wanted, cancel: Cancel) -> Mapping[str, Any]:
        self._accepted += 1
        now = timestamp(datetime.now(UTC))
        task = Task(
            seq=self._accepted,
            id=f"{kind}-{uuid.uuid4()}",
            kind=kind,
            status="running",
            originator=Originator(OWNER),
            trust=wanted.trust,
            attempt=1,
            created=now,
            updated=now,
            shown=wanted.shown,
            arguments=wanted.arguments,
        )
        ended = self._work(task, cancel, lambda _: None)
        if ended.result is None:
            raise _Failed(ended.error or {"code": "cancelled"})
        return ended.result

    def _over(self, request_id: Id, pending: _Pending, future: Future[Mapping[str, Any]]) -> None:
        with self._lock:
            del self._pending[request_id]
        pending.cancel.close()
        kind = pending.kind or "remember"
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or (isinstance(error, _Failed) and error.error["code"] == "cancelled"):
            codes = {"asked": "cancelled", "backstop": f"{kind}_timeout", None: f"{kind}_failed"}
            self._send(_failure(request_id, {"code": codes[pending.reason]}))
        elif isinstance(error, _Failed):
            self._send(_failure(request_id, error.error))
        elif isinstance(error, Exception):
            events.emit_defect("task_broke", error)
            self._send(_failure(request_id, {"code": f"{kind}_failed"}))
        else:
            self._send(jsonrpc.succeeded(request_id, future.result()))

    def _interrupt(self, reason: _Reason, which: Callable[[Id, _Pending], bool]) -> None:
        with self._lock:
            found = [each for request_id, each in self._pending.items() if which(request_id, each)]
        for each in reversed(found):  # The last one first, or the next one would begin for a moment.
            each.interrupt(reason)


_TOO_LONG: Final = (
    jsonrpc.PARSE_ERROR,
    "body_too_large",
    f"The line has more than {jsonrpc.MAX_LINE_BYTES} bytes.",
)


def _is_same(one: Id, other: object) -> bool:
    """Whether two ids are one; in JSON, unlike here, true is not 1."""
    return type(one) is type(other) and one == other


def _failure(request_id: Id, error: Mapping[str, Any]) -> bytes:
    """The answer for a task or request that failed with `error`."""
    code = error["code"]
    if code == "cancelled":
        number = jsonrpc.CANCELLED
    elif code.startswith("invalid_"):
        number = jsonrpc.INVALID_PARAMS
    elif code.endswith("_failed"):
        number = jsonrpc.INTERNAL_ERROR
    else:
        number = jsonrpc.FAILED
    return jsonrpc.failed(request_id, number, code, sentence_of(code), error)


def _introduction() -> Mapping[str, Any]:
    """What `initialize` answers: there are no sessions here, only the extension methods."""
    methods = [*METHODS, AVAILABILITY]
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {"loadSession": False, "_meta": {"muniment": {"methods": methods}}},
        "agentInfo": {"name": "muniment", "title": "Muniment", "version": __version__},
        "authMethods": [],
    }
