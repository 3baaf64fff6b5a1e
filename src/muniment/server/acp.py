"""Memory for hosts that use the Agent Client Protocol and start this program as their child process.

A1 Tasks run one at a time, in the order of their requests, with the same code as in the daemon. They do not
   use the daemon's lane: none of them outlives this process. The locks of the roots put them in sequence with
   tasks of other processes.
A2 Every request gets one response, within `server.runner.BACKSTOP_SECONDS` of its arrival plus the moment
   that a worker takes to end. A task that still waits when this time has passed never begins.
A3 A host can cancel waiting and running tasks. A task that has committed before its cancellation has
   completed.
A4 The only notification with an effect is a cancellation: the outcome of other notifications could not be
   reported.
A5 At most `server.lane.MAX_PENDING` tasks are pending.

The host has the trust of the owner: it runs as the same user and owns standard input and output.

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
from muniment.content.exact_json import NotJson, find_request_id_problem, has_broken_id, parse_json
from muniment.errors import Cancelled, MunimentError
from muniment.kernel.cancel import Deadline
from muniment.names import RECALL_SECONDS, __version__
from muniment.server import requests
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem, convert_error, get_sentence
from muniment.server.lane import MAX_PENDING
from muniment.server.lane_tasks import NewTask, TaskOutcome
from muniment.server.runner import BACKSTOP_SECONDS, RunTask
from muniment.server.work import Workspace
from muniment.store.audit import timestamp
from muniment.store.tasks import OWNER, Kind, Originator, QueuedTask

# -- jsonrpc -----------------------------------------------------------------------------------------
#
# JSON-RPC 2.0, one JSON object per line: converts bytes to messages and responses to bytes, without I/O.
#
# - J1 A line has at most `MAX_LINE_BYTES`. The rest of a longer line is discarded; the next line is read as
#   usual.
# - J2 A message must be unambiguous for every JSON parser (`parse_json`), and not a batch.
# - J3 A response is one line of ASCII, so that text in it cannot end the line and start another one.
#
# Source: jsonrpc.org/specification; agentclientprotocol.com/protocol (transports, cancellation).

MAX_LINE_BYTES: Final = MAX_BODY_BYTES
"""Maximum bytes of a line: the same as for an HTTP body, so that a fact of 64 KiB fits with any escaping."""

_TOO_LONG: Final = f"The line has more than {MAX_LINE_BYTES} bytes; send a shorter request."

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
    """A message from the host.

    Attributes:
        method: name of the method; None for a response, which the host should not send.
        params: parameters of the method.
        id: id of a request; None for a notification.
    """

    method: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    id: Id | None = None


class LineSplitter:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that `data` completes; None for each line longer than `MAX_LINE_BYTES`."""
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
    """Parse a line and return its message. If the line is not a valid message, return the error response."""
    try:
        found = parse_json(line, allow_byte_order_mark=False, repair=True)
    except NotJson:
        return format_error(None, PARSE_ERROR, "invalid_json", "The line is not valid, unambiguous JSON.")
    if has_broken_id(found):
        return format_error(
            None, PARSE_ERROR, "invalid_json", "The `id` contains a lone surrogate; send valid Unicode."
        )
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        return _format_invalid_request("The line is not a JSON-RPC 2.0 object.")
    if "method" not in found and ("result" in found or "error" in found):
        return RpcMessage()
    method, request_id, params = found.get("method"), found.get("id"), found.get("params", {})
    if not isinstance(method, str):
        return _format_invalid_request("`method` must be a string.")
    if "id" not in found:
        return RpcMessage(method, params if isinstance(params, dict) else {})
    if (problem := find_request_id_problem(found)) is not None:
        return _format_invalid_request(problem)
    if not isinstance(params, dict):
        return format_error(request_id, INVALID_PARAMS, "invalid_request", "`params` must be an object.")
    return RpcMessage(method, params, request_id)


def _format_invalid_request(text: str) -> bytes:
    """Return the error response to an invalid request; `text` explains the problem."""
    return format_error(None, INVALID_REQUEST, "invalid_request", text)


def format_result(request_id: Id, result: Mapping[str, Any]) -> bytes:
    """Return the line of a response with a result."""
    return _format_line({"id": request_id, "result": result})


def format_error(
    request_id: Id | None, number: int, code: str, text: str, fields: Mapping[str, Any] | None = None
) -> bytes:
    """Return the line of an error response.

    Args:
        request_id: id of the request; None: unknown.
        number: error number of JSON-RPC.
        code: stable code, see `muniment.errors`.
        text: a fixed sentence.
        fields: additional members of the error's `data`.
    """
    data = {"errorKind": code, "code": code, **(fields or {})}
    return _format_line({"id": request_id, "error": {"code": number, "message": text, "data": data}})


def _format_line(document: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **document}).encode() + b"\n"


# -- acp ---------------------------------------------------------------------------------------------

PROTOCOL_VERSION: Final = 1
"""Version of the Agent Client Protocol; a host that does not support it must disconnect."""

BASE: Final = "qwen/control/workspace/memory"
AVAILABILITY: Final = f"{BASE}/remember/availability"
CONTEXT: Final = f"{BASE}/context"
METHODS: Final[Mapping[str, Callable[[dict[str, Any], Workspace], NewTask]]] = {
    f"{BASE}/remember": requests.parse_remember,
    f"{BASE}/forget": requests.parse_forget,
    f"{BASE}/dream": requests.parse_dream,
}
"""Extension methods that create tasks. A host may write `_` before the name of any extension method."""

LOOKUP_END_SECONDS: Final = 1.0
"""Seconds to wait for a running lookup during shutdown; a lookup takes a few milliseconds."""

_Reason = Literal["asked", "backstop"]


@dataclass(slots=True)
class _Pending:
    """A request without a response yet.

    Attributes:
        kind: kind of the task of the request; None: the request is a lookup, not a task.
        deadline: time on the clock of the session at which the request is ended.
        reason: why the request was ended; None: it was not. The first reason counts.
    """

    kind: Kind | None
    deadline: float
    cancel: Cancel
    future: Future[TaskOutcome]
    reason: _Reason | None = None

    def interrupt(self, reason: _Reason) -> None:
        self.reason = self.reason or reason
        if not self.future.cancel():
            self.cancel.set()


class _LookupThread:
    """Runs lookups one after the other, on a daemon thread, which does not delay the end of the process.

    A lookup may wait for a database that another process has locked. A lookup can be cancelled at any time:
    then its request is over, and its result is discarded.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[TaskOutcome], Callable[[], TaskOutcome]] | None]
        self._queue = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)
        self._thread.start()

    def submit(self, lookup: Callable[[Cancel], TaskOutcome], cancel: Cancel) -> Future[TaskOutcome]:
        future: Future[TaskOutcome] = Future()
        self._queue.put((future, partial(lookup, cancel)))
        return future

    def close(self) -> bool:
        """Accept no more lookups; wait at most `LOOKUP_END_SECONDS`, and return whether the thread ended."""
        self._queue.put(None)
        self._thread.join(LOOKUP_END_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, lookup = item
            if future.cancelled():
                continue
            with suppress(InvalidStateError):  # It was cancelled in the meantime.
                try:
                    future.set_result(lookup())
                except Exception as error:  # noqa: BLE001  the future raises it
                    future.set_exception(error)


class HostSession:
    """The conversation with one host. One thread feeds it; that thread and others send responses.

    Args:
        workspace: the memory; the caller closes it.
        run_task: runs a task.
        send: sends a response, which is one line; several threads call this function.
        clock: returns seconds.
        seconds: seconds after its arrival at which a request without a response is ended.
    """

    def __init__(
        self,
        workspace: Workspace,
        run_task: RunTask,
        send: Callable[[bytes], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = BACKSTOP_SECONDS,
    ) -> None:
        self._workspace, self._run_task, self._send = workspace, run_task, send
        self._clock, self._seconds = clock, seconds
        self._tasks = ThreadPoolExecutor(1, "task")
        self._lookups = _LookupThread()
        self._lock = threading.Lock()
        self._pending: dict[Id, _Pending] = {}
        self._accepted = 0

    @property
    def deadline(self) -> float:
        """Return the time at which to call `expire`, in seconds of `clock`; infinite without requests."""
        with self._lock:
            waiting = [each.deadline for each in self._pending.values() if each.reason is None]
        return min(waiting, default=math.inf)

    def receive(self, line: bytes | None) -> None:
        """Process a line from the host.

        Args:
            line: the line without its line end; None: a line longer than `MAX_LINE_BYTES`.
        """
        if line is None:
            self._send(format_error(None, PARSE_ERROR, "body_too_large", _TOO_LONG))
        elif line.strip():
            message = read_message(line)
            if isinstance(message, bytes):
                self._send(message)
            else:
                self._handle_message(message)

    def expire(self) -> None:
        """End all requests whose deadline has passed."""
        now = self._clock()
        self._interrupt("backstop", lambda _, pending: pending.deadline <= now)

    def close(self) -> bool:
        """Cancel all pending requests, and wait until every task has ended.

        Returns:
            True: nothing uses the workspace any more. False: a lookup still uses it.
        """
        self._interrupt("asked", lambda *_: True)
        self._tasks.shutdown()
        return self._lookups.close()

    def _handle_message(self, message: RpcMessage) -> None:
        match message:
            case RpcMessage(method=str(method), id=str() | int() as request_id):
                try:
                    self._handle_request(request_id, method, message.params)
                except HttpProblem as problem:
                    self._send(_format_failure(request_id, {"code": problem.code, **problem.fields}))
            case RpcMessage(method="$/cancel_request", params=params):
                cancelled_id = params.get("requestId", params.get("id"))
                self._interrupt("asked", lambda request_id, _: _is_same_id(request_id, cancelled_id))
            case _:
                events.emit("acp_ignored", what="answered" if message.method is None else "notification")

    def _handle_request(self, request_id: Id, method_name: str, params: Mapping[str, Any]) -> None:
        method = method_name.removeprefix("_")
        if method_name == "initialize":
            self._send(format_result(request_id, _build_introduction()))
        elif method == AVAILABILITY:
            self._begin(request_id, None, self._check_availability)
        elif method == CONTEXT:
            self._begin(request_id, None, self._read_standing_context)
        elif (parse := METHODS.get(method)) is not None:
            document = {name: value for name, value in params.items() if name != "_meta"}
            task = parse(document, self._workspace)
            self._begin(request_id, task.kind, partial(self._run_new_task, task))
        else:
            self._send(format_error(request_id, METHOD_NOT_FOUND, "method_not_found", "Method not found."))

    def _begin(self, request_id: Id, kind: Kind | None, operation: Callable[[Cancel], TaskOutcome]) -> None:
        """Queue the operation of a request. Lookups and tasks have separate queues.

        Args:
            request_id: id of the request.
            kind: kind of the task; None: the operation is a lookup.
            operation: the operation to run.

        Raises:
            HttpProblem: `MAX_PENDING` lookups or tasks are already pending.
        """
        if request_id in self._pending:  # Only this thread adds to it.
            self._send(
                _format_invalid_request("A request with this `id` is already pending; use a new `id`.")
            )
            return
        executor = self._lookups if kind is None else self._tasks
        with self._lock:
            same_sort = [each for each in self._pending.values() if (each.kind is None) == (kind is None)]
            if len(same_sort) >= MAX_PENDING:
                raise HttpProblem("remember_queue_full")
            cancel = Cancel()
            future = executor.submit(operation, cancel)
            pending = _Pending(kind, self._clock() + self._seconds, cancel, future)
            self._pending[request_id] = pending
        future.add_done_callback(partial(self._send_outcome, request_id, pending))

    def _check_availability(self, _: Cancel) -> TaskOutcome:
        return TaskOutcome("completed", {"available": self._workspace.problem() is None})

    def _read_standing_context(self, cancel: Cancel) -> TaskOutcome:
        from muniment.recall.standing import read_standing

        try:
            recaller = self._workspace.get_recaller()
        except MunimentError as error:
            return _describe_failed_read(error)
        deadline = Deadline(time.monotonic() + RECALL_SECONDS, cancel)
        recalled = read_standing(recaller, recaller.standing_tokens, deadline)
        if recalled.error is not None:
            return _describe_failed_read(recalled.error)
        if recalled.entries:
            recaller.record(recalled, "acp")
        return TaskOutcome("completed", {"text": recalled.text, "tokens": recalled.tokens})

    def _run_new_task(self, new_task: NewTask, cancel: Cancel) -> TaskOutcome:
        self._accepted += 1
        now = timestamp()
        task = QueuedTask(
            seq=self._accepted,
            id=f"{new_task.kind}-{uuid.uuid4()}",
            kind=new_task.kind,
            status="running",
            originator=Originator(OWNER),
            trust=new_task.trust,
            attempt=1,
            created=now,
            updated=now,
            shown=new_task.public_arguments,
            arguments=new_task.arguments,
        )
        return self._run_task(task, cancel, lambda _: None)

    def _send_outcome(self, request_id: Id, pending: _Pending, future: Future[TaskOutcome]) -> None:
        with self._lock:
            del self._pending[request_id]
        pending.cancel.close()
        kind = pending.kind or "remember"
        if not future.cancelled() and (defect := future.exception()) is not None:
            events.emit_defect("task_broke", defect)
            outcome = TaskOutcome("failed", error={"code": f"{kind}_failed"})
        else:
            outcome = TaskOutcome("cancelled") if future.cancelled() else future.result()
        if outcome.result is not None:
            self._send(format_result(request_id, outcome.result))
            return
        error = outcome.error or {"code": "cancelled"}
        if error["code"] == "cancelled":
            codes = {"asked": "cancelled", "backstop": f"{kind}_timeout", None: f"{kind}_failed"}
            error = {"code": codes[pending.reason]}
        self._send(_format_failure(request_id, error))

    def _interrupt(self, reason: _Reason, is_affected: Callable[[Id, _Pending], bool]) -> None:
        with self._lock:
            found = [each for request_id, each in self._pending.items() if is_affected(request_id, each)]
        # Start with the last one; otherwise the next one would begin for a moment.
        for each in reversed(found):
            each.interrupt(reason)


def _describe_failed_read(error: MunimentError) -> TaskOutcome:
    """Return the outcome of a lookup that could not read the memory."""
    if isinstance(error, Cancelled):
        return TaskOutcome("cancelled")
    return TaskOutcome("failed", error={"code": convert_error(error).code})


def _is_same_id(one: Id, other: object) -> bool:
    """Return whether two JSON ids are equal; `True` and 1 are equal in Python, but not in JSON."""
    return type(one) is type(other) and one == other


def get_error_number(code: str) -> int:
    """Return the JSON-RPC error number for the stable code of a task or request."""
    if code == "cancelled":
        return CANCELLED
    if code.startswith("invalid_"):
        return INVALID_PARAMS
    return INTERNAL_ERROR if code.endswith("_failed") else FAILED


def _format_failure(request_id: Id, error: Mapping[str, Any]) -> bytes:
    """Return the line of the error response for a task or request that failed with `error`."""
    code = error["code"]
    return format_error(request_id, get_error_number(code), code, get_sentence(code), error)


def _build_introduction() -> Mapping[str, Any]:
    """Return the result of `initialize`: it offers only the extension methods, no sessions."""
    methods = [*METHODS, AVAILABILITY, CONTEXT]
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {"loadSession": False, "_meta": {"muniment": {"methods": methods}}},
        "agentInfo": {"name": "muniment", "title": "Muniment", "version": __version__},
        "authMethods": [],
    }
