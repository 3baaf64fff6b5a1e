"""Serve `/mcp` of the daemon: MCP clients use its workspaces over streamable HTTP.

H1 Every caller was authenticated. A request has the trust of its token, or a lower trust that it names. A
   write is a task in the lane of the workspace, like every other write.
H2 Each token has its own sessions, at most `MAX_SESSIONS` in a workspace. Another token cannot use them, and
   does not count towards this limit. After a token is revoked, nothing is sent for it any more.
H3 Only the owner can undo every task. A client can undo tasks that were requested with its token.

`server.routes` loads this module only for the first request, because the SDK takes half a second and 25 MB.
Source: modelcontextprotocol.io/specification, "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from sse_starlette import sse
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from muniment import events
from muniment.content.exact_json import find_request_id_problem, read_json_or_none, repair_json
from muniment.content.gates import clean_line
from muniment.errors import MunimentError
from muniment.integrations.mcp.actions import CommitsSince, create_owner_problem
from muniment.integrations.mcp.server import CHECK_SECONDS, Context, MemoryServer, notify_of_commits
from muniment.integrations.mcp.tools import Backend, ForgetCall, RememberCall, T, W
from muniment.integrations.results import ToolProblem, quote_as_data
from muniment.kernel.names import Trust
from muniment.operations.job_context import JobContext
from muniment.operations.visibility import Reader
from muniment.server import requests
from muniment.server.contract import MAX_BODY_BYTES, ContextQuery, HttpProblem, RecallBody, get_sentence
from muniment.server.core import MAX_OWNER_OPERATIONS, MAX_READS
from muniment.server.http import INVALID_REQUEST, TRUST_HEADER, Call
from muniment.server.lane_tasks import NewTask, find_task
from muniment.server.recalls import SlotPool
from muniment.server.routes import accept
from muniment.store.tasks import OWNER, Originator, QueuedTask
from muniment.types import ForgetResult, RememberResult
from muniment.types.documents import parse_document

if TYPE_CHECKING:
    from muniment.cancelling import Cancel
    from muniment.server.core import DaemonCore, ServedWorkspace
    from muniment.types import Recalled

MAX_SESSIONS: Final = 128
"""Maximum number of sessions of a token in a workspace; clients of the protocol version 2026 need none."""

IDLE_SECONDS: Final = 1_800.0
"""Seconds after which a session ends if it has no request and no listener."""

MAX_PARALLEL_UNDOS: Final = MAX_OWNER_OPERATIONS - MAX_READS - 2
"""Maximum number of undos that run at the same time, for all tokens.

Two slots of `ServedCore.run_in_context` stay free for the owner.
"""

R = TypeVar("R", RememberResult, ForgetResult)

BACKEND: Final = "mcp"
"""Name of the attribute of a request's state that contains the backend of the request."""


async def handle_request(core: DaemonCore, call: Call, body: bytes) -> Response:
    """Return the response to a request for `/mcp`; the first request creates the sessions of the daemon.

    Args:
        core: the core of the daemon.
        call: the request.
        body: the complete body of the request.
    """
    if not isinstance(core.mcp, McpSessions):
        core.mcp = McpSessions(core)
    return await core.mcp.handle_request(call, body)


class McpSessions:
    """The MCP sessions of a daemon, for all workspaces and tokens.

    An object belongs to one event loop; end it with `stop`.

    Args:
        core: the core of the daemon.
    """

    def __init__(self, core: DaemonCore) -> None:
        self._core = core
        self._sessions: dict[_SessionKey, _TokenSessions] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._undos = asyncio.Semaphore(MAX_PARALLEL_UNDOS)

    async def handle_request(self, call: Call, body: bytes) -> Response:
        """Return the response to a request for `/mcp`; the SDK writes its content.

        Args:
            call: the request.
            body: the complete body of the request.

        Raises:
            HttpProblem: the token may not use the client id, or the request contains an invalid trust.
        """
        originator, trust = await call.find_originator(), _read_trust(call)
        body = (repair_json(body) if b"\\u" in body else None) or body
        if (problem := find_request_id_problem(read_json_or_none(body))) is not None:
            return JSONResponse(
                {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": problem}}, 400
            )
        backend = _LaneBackend(call, originator, trust, self._core.read_slots, self._undos)
        setattr(call.request.state, BACKEND, backend)
        session = await self._get_session(call)
        return _SdkResponse(session.manager, call, body)

    async def stop(self) -> None:
        """End every session and stream in the regular way."""
        for watching in self._watching.values():
            watching.cancel()
        await asyncio.gather(*(each.stop() for each in self._sessions.values()))
        await _end_watcher()

    async def _get_session(self, call: Call) -> _TokenSessions:
        session_key = _create_session_key(call, call.workspace)
        session = self._sessions.get(session_key)
        watching = self._watching.get(session_key.workspace)
        if watching is None or watching.done():  # It failed; the log has the reason.
            self._watching[session_key.workspace] = asyncio.create_task(self._watch(session_key.workspace))
        if session is None:
            session = self._sessions[session_key] = _TokenSessions()
            await self._drop_revoked()
        await session.started.wait()
        return session

    async def _drop_revoked(self) -> None:
        known = {(each.name, each.digest) for each in self._core.tokens.list_principals()}
        revoked = [each for each in self._sessions if each.digest and (each.token, each.digest) not in known]
        # All are removed from the dict first.
        await asyncio.gather(*[self._sessions.pop(each).stop() for each in revoked])

    async def _watch(self, key: str) -> None:
        """Notify the MCP clients of a workspace of each commit, until cancelled.

        Args:
            key: the key of the workspace.
        """
        stream = self._core.stream
        commits = CommitsSince(self._core.workspaces[key].open_context, stream.last)

        async def notify(paths: Collection[str]) -> None:
            sessions = [each for session_key, each in self._sessions.items() if session_key.workspace == key]
            await asyncio.gather(*(each.server.notify_changed(paths) for each in sessions))

        while not stream.is_closed:
            try:
                await notify_of_commits(stream, commits, notify)
            except MunimentError as error:
                events.emit("events_unavailable", code=error.code)


async def _end_watcher() -> None:
    """Cancel the task that the SDK's event streams leave running.

    This task checks twice a second whether uvicorn ends.
    """
    cancelled = []
    for task in asyncio.all_tasks():
        code = getattr(task.get_coro(), "cr_code", None)
        if code is not None and (code.co_filename, code.co_name) == (sse.__file__, "_shutdown_watcher"):
            task.cancel()
            cancelled.append(task)
    await asyncio.gather(*cancelled, return_exceptions=True)


def _read_trust(call: Call) -> Trust:
    """Return the trust of a request: the trust of its token, or a lower trust that the request names.

    Raises:
        HttpProblem: the request contains an invalid trust.
    """
    sent = call.request.headers.getlist(TRUST_HEADER)
    if not set(sent) <= set(Trust):
        raise HttpProblem("invalid_request")
    return call.principal.trust.cap(*map(Trust, sent))


class _SessionKey(NamedTuple):
    """The workspace and the token that sessions belong to.

    If a token is deleted and created again under the same name, its digest is different.
    """

    workspace: str
    token: str
    digest: str


def _create_session_key(call: Call, workspace: ServedWorkspace) -> _SessionKey:
    return _SessionKey(workspace.key, call.principal.name, call.principal.digest)


class _TokenSessions:
    """The MCP sessions of one token in one workspace; one task starts and ends them, as the SDK requires."""

    def __init__(self) -> None:
        self.server = MemoryServer(_get_backend)
        self.manager = StreamableHTTPSessionManager(
            self.server,
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=MAX_SESSIONS,
            max_request_body_size=MAX_BODY_BYTES,
        )
        self._stop, self.started = asyncio.Event(), asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self.server.end_listening()
        await asyncio.sleep(0)  # Its streams send their last frame.
        self._stop.set()
        await self._running

    async def _run(self) -> None:
        try:
            async with self.manager.run():
                self.started.set()
                await self._stop.wait()
        finally:
            self.started.set()  # Waiting requests get the SDK's error for an ended manager.


def _get_backend(context: Context) -> Backend:
    assert context.request is not None  # noqa: S101  over HTTP there is one
    backend: Backend = getattr(context.request.state, BACKEND)
    return backend


class _SdkResponse(Response):
    """A response that the SDK writes; it ends early if the token is revoked."""

    def __init__(self, manager: StreamableHTTPSessionManager, call: Call, body: bytes) -> None:
        self._manager, self._call, self._body = manager, call, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read, is_revoked, is_ended = False, asyncio.Event(), False

        async def receive_message() -> Message:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": self._body, "more_body": False}
            revoked, disconnected = asyncio.create_task(is_revoked.wait()), asyncio.ensure_future(receive())
            try:
                await asyncio.wait({revoked, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"}
            finally:
                revoked.cancel()
                disconnected.cancel()

        async def send_message(message: Message) -> None:
            nonlocal is_ended
            is_body = message["type"] == "http.response.body"
            if is_body and not is_revoked.is_set() and not await self._call.is_token_valid():
                is_revoked.set()
            if is_ended or (is_body and is_revoked.is_set()):
                return
            is_ended = is_body and not message.get("more_body", False)
            await send(message)

        await self._manager.handle_request(scope, receive_message, send_message)
        if is_revoked.is_set() and not is_ended:
            await send({"type": "http.response.body", "body": b""})


@contextmanager
def _convert_problems() -> Iterator[None]:
    """Convert each `HttpProblem` in the block to a `ToolProblem` with the same code."""
    try:
        yield
    except HttpProblem as problem:
        detail = f" ({problem.fields['detail']})" if "detail" in problem.fields else ""
        raise ToolProblem(problem.code, f"{problem.sentence}{detail}") from None


@dataclass(frozen=True, slots=True)
class _LaneBackend:
    """A `Backend` for one request to the daemon; its writes are tasks in the lane of the workspace.

    Attributes:
        call: the request.
        originator: the token and client id that request tasks.
        trust: the trust of the request.
        reads: the slots for reading; a call waits for one.
        undos: limits the undos that run at the same time.
    """

    call: Call
    originator: Originator
    trust: Trust
    reads: SlotPool
    undos: asyncio.Semaphore

    @property
    def is_owner(self) -> bool:
        """Return whether the request comes from the owner, with the owner's token and trust."""
        return self.trust is Trust.OWNER and self.originator == Originator(OWNER)

    async def remember(self, call: RememberCall, report_turn: Callable[[int, str], None]) -> RememberResult:
        """Store a fact by a task of the lane, and return its result."""
        document = call.model_dump(exclude_none=True)
        return await self._run_task(RememberResult, document, requests.parse_remember, report_turn)

    async def recall(self, query: str, limit: int) -> Recalled:
        """Recall entries for a query."""
        return await self._recall(RecallBody.model_validate({"query": query, "limit": limit}))

    async def read_standing_context(self) -> Recalled:
        """Return the standing context."""
        return await self._recall(ContextQuery())

    async def _recall(self, body: RecallBody | ContextQuery) -> Recalled:
        with _convert_problems():
            async with self.reads.use_slot(self.call.principal.share):
                return await self.call.core.recall(self.call.workspace, self.originator.token, body)

    async def forget(self, call: ForgetCall) -> ForgetResult:
        """Return a preview of a removal, or remove the previewed entries, by a task of the lane."""
        document = {"query": call.description, "dryRun": not call.yes, "digest": call.digest}
        return await self._run_task(ForgetResult, document, requests.parse_forget)

    async def check_undo(self, task_id: str) -> None:
        """Raise `ToolProblem` if the caller is neither the owner nor the client that requested the task."""
        if not self.is_owner:
            task = await self.call.core.find(self.call.workspace, task_id)
            if task is None or not self.originator.can_see(task.originator):
                raise create_owner_problem()

    async def write(self, body: Callable[[JobContext, Reader, Cancel], W]) -> W:
        """Run `body`, which changes the memory, in a thread, and return its result."""
        async with self.undos:
            return await self._run(body)

    async def read(self, body: Callable[[JobContext, Reader], T]) -> T:
        """Run `body`, which reads the memory, in a thread, and return its result."""
        with _convert_problems():
            async with self.reads.use_slot(self.call.principal.share):
                return await self._run(lambda context, reader, _: body(context, reader))

    async def _run(self, body: Callable[[JobContext, Reader, Cancel], T]) -> T:
        with _convert_problems():
            return await self.call.core.run_in_context(
                self.call.workspace,
                lambda context, cancel: body(context, self._create_reader(context), cancel),
            )

    def _create_reader(self, context: JobContext) -> Reader:
        """Return the reader for visibility checks.

        Tasks that were requested with the same token, and with at most the same trust, count as its own.
        """

        def owns(task_id: str) -> bool:
            task = find_task(context.state.ledger, self.call.workspace.key, task_id)
            if task is None or not self.trust.satisfies(task.trust):
                return False
            # The owner's token with less trust belongs to a tool; it sees only tasks that no tool requested.
            is_tool = self.originator.token == OWNER
            return task.originator == self.originator if is_tool else self.originator.can_see(task.originator)

        return Reader(self.trust, owns)

    async def _run_task(
        self,
        kind: type[R],
        document: dict[str, Any],
        create_task: Callable[[dict[str, Any], ServedWorkspace], NewTask],
        report_turn: Callable[[int, str], None] = lambda *_: None,
    ) -> R:
        """Queue a task in the lane of the workspace, wait until it ends, and return its result.

        If the awaiting task is cancelled, cancel the queued task.

        Args:
            kind: the class of the result.
            document: the body of the request, as for the HTTP API.
            create_task: creates the task from the body.
            report_turn: called with each turn of the model.

        Raises:
            ToolProblem: the task failed, was cancelled, or was not accepted.
        """
        number = (await self.call.core.open_stream()).last
        with _convert_problems():
            new_task = create_task(document, self.call.workspace)
            new_task = replace(new_task, trust=new_task.trust.cap(self.trust))
            task = (await accept(self.call, new_task, self.originator)).task
        try:
            task = await self._wait_for_task(task, number, report_turn)
        except asyncio.CancelledError:
            if not self.call.core.is_draining:  # Otherwise the next daemon executes it.
                with anyio.CancelScope(shield=True), suppress(MunimentError, HttpProblem):
                    # It may be finished already.
                    await self.call.core.cancel(self.call.workspace, task.id, self.originator)
            raise
        match task.status:
            case "completed":
                return replace(parse_document(kind, task.result or {}, "a result"), task_id=task.id)
            case "cancelled":
                raise ToolProblem("cancelled", get_sentence("cancelled"))
            case "failed" if task.error is not None:
                raise _create_problem(task.error)
            case _:
                raise ToolProblem("workspace_draining", f"{get_sentence('workspace_draining')} ({task.id})")

    async def _wait_for_task(
        self, task: QueuedTask, number: int, report_turn: Callable[[int, str], None]
    ) -> QueuedTask:
        stream = await self.call.core.open_stream()
        while True:
            task = await self.call.core.find(self.call.workspace, task.id) or task
            # Read events after the task, so that no turn of a finished task is missed; they may already
            # contain its end.
            number, events_since = await stream.read_since(number)
            task_events = [event.data for event in events_since if event.task == task.id]
            for data in task_events:
                if "turn" in data:
                    report_turn(data["turn"], f"{data['tool']}: {data['verdict']}")
            if task.is_finished or stream.is_closed:
                return task
            if not task_events:
                await stream.wait_for_change(CHECK_SECONDS)


def _create_problem(error: Mapping[str, Any]) -> ToolProblem:
    code, text = error["code"], get_sentence(error["code"])
    if "reviewId" in error:
        text += f" The owner can show it with: muniment review show {error['reviewId']}"
    if error.get("reason"):
        text += "\n" + quote_as_data(clean_line(error["reason"]))
    if error.get("paths"):
        text += "\n" + quote_as_data("\n".join(map(clean_line, error["paths"])))
    return ToolProblem(code, text)
