"""Serve `/mcp`: the workspaces of the daemon for MCP clients, by streamable HTTP.

H1 Every caller has passed the guard, and has the trust of its token, or less if the request contains a lower
   one. A write is a task of the workspace's lane, like every other write.
H2 Each token has separate sessions, at most `MAX_SESSIONS` in a workspace: another token cannot use them or
   take their slots. After a token is revoked, nothing more is sent for it.
H3 Only the owner can undo every task; a client can undo tasks that were requested with its token.

Separate from `routes`: the first request loads this module with the SDK, which takes half a second and 25 MB.
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
from muniment.content.exact_json import json_or_none, repaired_json, request_id_problem
from muniment.content.gates import one_line
from muniment.errors import MunimentError
from muniment.integrations.mcp.actions import CommitsSince, owner_required
from muniment.integrations.mcp.server import LOOK_SECONDS, Context, MemoryServer, notify_of_commits
from muniment.integrations.mcp.tools import Backend, ForgetCall, RememberCall, T, W
from muniment.integrations.telling import ToolProblem, marked
from muniment.kernel.names import Trust
from muniment.operations.place import Place
from muniment.operations.visibility import Reader
from muniment.server import asking
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem, RecallBody, sentence_of
from muniment.server.core import MAX_OWNER, MAX_READS, Places
from muniment.server.http import INVALID_REQUEST, TRUST_HEADER, Call
from muniment.server.lane_tasks import NewTask, find
from muniment.server.routes import accept
from muniment.store.tasks import OWNER, Originator, QueuedTask
from muniment.types import ForgetResult, RememberResult
from muniment.types.documents import read

if TYPE_CHECKING:
    from muniment.cancelling import Cancel
    from muniment.server.core import DaemonCore, ServedWorkspace
    from muniment.types import Recalled

MAX_SESSIONS: Final = 128
"""Maximum sessions of a token in a workspace; clients of 2026 need none."""

IDLE_SECONDS: Final = 1_800.0
"""Seconds without a request or a listener after which a session ends."""

MAX_UNDOS: Final = MAX_OWNER - MAX_READS - 2
"""Maximum undos at once, of all tokens: of the slots of `ServedCore.at`, two stay reserved for the owner."""

R = TypeVar("R", RememberResult, ForgetResult)

BACKEND: Final = "mcp"
"""Name of the attribute of a request's state that contains its backend."""


async def answer(core: DaemonCore, call: Call, body: bytes) -> Response:
    """Handle a request, see `McpSessions.answer`; the first one creates the sessions of the daemon."""
    if not isinstance(core.mcp, McpSessions):
        core.mcp = McpSessions(core)
    return await core.mcp.answer(call, body)


class McpSessions:
    """The sessions of a daemon. Belongs to one event loop; end it with `stop`.

    Args:
        core: the core of the daemon.
    """

    def __init__(self, core: DaemonCore) -> None:
        self._core = core
        self._hosted: dict[_Whose, _Hosted] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._undos = asyncio.Semaphore(MAX_UNDOS)

    async def answer(self, call: Call, body: bytes) -> Response:
        """Return the response to a request; the SDK writes it.

        Args:
            call: the request.
            body: its complete body.

        Raises:
            Problem: the token may not use the client id, or the workspace is not served.
        """
        originator, trust = await call.originator(), _trust_of(call)
        body = (repaired_json(body) if b"\\u" in body else None) or body
        if (problem := request_id_problem(json_or_none(body))) is not None:
            return JSONResponse(
                {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": problem}}, 400
            )
        backend = _LaneMemory(call, originator, trust, self._core.reads, self._undos)
        setattr(call.request.state, BACKEND, backend)
        hosted = await self._hosted_for(call)
        return _Bridged(hosted.manager, call, body)

    async def stop(self) -> None:
        """End every session and stream in the regular way."""
        for watching in self._watching.values():
            watching.cancel()
        await asyncio.gather(*(each.stop() for each in self._hosted.values()))
        await _end_watcher()

    async def _hosted_for(self, call: Call) -> _Hosted:
        whose = _whose(call, call.workspace)
        hosted = self._hosted.get(whose)
        watching = self._watching.get(whose.workspace)
        if watching is None or watching.done():  # It failed; the log has the reason.
            self._watching[whose.workspace] = asyncio.create_task(self._watch(whose.workspace))
        if hosted is None:
            hosted = self._hosted[whose] = _Hosted()
            await self._drop_revoked()
        await hosted.started.wait()
        return hosted

    async def _drop_revoked(self) -> None:
        known = {(each.name, each.digest) for each in self._core.tokens.all()}
        revoked = [each for each in self._hosted if each.digest and (each.token, each.digest) not in known]
        # All are removed from the dict first.
        await asyncio.gather(*[self._hosted.pop(each).stop() for each in revoked])

    async def _watch(self, key: str) -> None:
        """Notify the clients of a workspace of each commit, until cancelled."""
        stream = self._core.stream
        commits = CommitsSince(self._core.workspaces[key].place, stream.last)

        async def notify(paths: Collection[str]) -> None:
            ours = [each for whose, each in self._hosted.items() if whose.workspace == key]
            await asyncio.gather(*(each.server.changed(paths) for each in ours))

        while not stream.is_closed:
            try:
                await notify_of_commits(stream, commits, notify)
            except MunimentError as error:
                events.emit("events_unavailable", code=error.code)


async def _end_watcher() -> None:
    """End the task that the SDK's streams leave running; it checks twice a second whether uvicorn ends."""
    left = []
    for task in asyncio.all_tasks():
        code = getattr(task.get_coro(), "cr_code", None)
        if code is not None and (code.co_filename, code.co_name) == (sse.__file__, "_shutdown_watcher"):
            task.cancel()
            left.append(task)
    await asyncio.gather(*left, return_exceptions=True)


def _trust_of(call: Call) -> Trust:
    """Return the trust of a request: that of its token, or the lower one that it contains.

    Raises:
        Problem: the request contains an invalid trust.
    """
    sent = call.request.headers.getlist(TRUST_HEADER)
    if not set(sent) <= set(Trust):
        raise HttpProblem("invalid_request")
    return call.principal.trust.capped(*map(Trust, sent))


class _Whose(NamedTuple):
    """The owner of the sessions of a manager; the digest distinguishes a token from one created again."""

    workspace: str
    token: str
    digest: str


def _whose(call: Call, workspace: ServedWorkspace) -> _Whose:
    return _Whose(workspace.key, call.principal.name, call.principal.digest)


class _Hosted:
    """The sessions of one token in one workspace; started and ended in one task, as the SDK requires."""

    def __init__(self) -> None:
        self.server = MemoryServer(_backend_of)
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


def _backend_of(context: Context) -> Backend:
    assert context.request is not None  # noqa: S101  over HTTP there is one
    backend: Backend = getattr(context.request.state, BACKEND)
    return backend


class _Bridged(Response):
    """A response that the SDK writes, until the token is revoked (H2)."""

    def __init__(self, manager: StreamableHTTPSessionManager, call: Call, body: bytes) -> None:
        self._manager, self._call, self._sent = manager, call, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read, is_revoked, is_ended = False, asyncio.Event(), False

        async def receiving() -> Message:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": self._sent, "more_body": False}
            revoked, gone = asyncio.create_task(is_revoked.wait()), asyncio.ensure_future(receive())
            try:
                await asyncio.wait({revoked, gone}, return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"}
            finally:
                revoked.cancel()
                gone.cancel()

        async def sending(message: Message) -> None:
            nonlocal is_ended
            is_body = message["type"] == "http.response.body"
            if is_body and not is_revoked.is_set() and not await self._call.is_still_known():
                is_revoked.set()
            if is_ended or (is_body and is_revoked.is_set()):
                return
            is_ended = is_body and not message.get("more_body", False)
            await send(message)

        await self._manager.handle_request(scope, receiving, sending)
        if is_revoked.is_set() and not is_ended:
            await send({"type": "http.response.body", "body": b""})


@contextmanager
def _problems() -> Iterator[None]:
    """Convert problems of the daemon to `ToolProblem`s with the same code."""
    try:
        yield
    except HttpProblem as problem:
        detail = f" ({problem.fields['detail']})" if "detail" in problem.fields else ""
        raise ToolProblem(problem.code, f"{problem.sentence}{detail}") from None


@dataclass(frozen=True, slots=True)
class _LaneMemory:
    """A `Backend` whose writes are tasks of a lane."""

    call: Call
    originator: Originator
    trust: Trust
    reads: Places
    undos: asyncio.Semaphore

    @property
    def is_owner(self) -> bool:
        """Return whether the owner calls, with the trust of the owner."""
        return self.trust is Trust.OWNER and self.originator == Originator(OWNER)

    async def remember(self, asked: RememberCall, tell: Callable[[int, str], None]) -> RememberResult:
        """Store a fact."""
        document = asked.model_dump(exclude_none=True)
        return await self._result(RememberResult, document, asking.remember, tell)

    async def recall(self, query: str, limit: int) -> Recalled:
        """Recall entries for a query."""
        body = RecallBody.model_validate({"query": query, "limit": limit})
        with _problems():
            async with self.reads.held(self.call.principal.share):
                return await self.call.core.recall(self.call.workspace, self.originator.token, body)

    async def forget(self, asked: ForgetCall) -> ForgetResult:
        """Preview a removal, or remove the previewed entries."""
        document = {"query": asked.description, "dryRun": not asked.yes, "digest": asked.digest}
        return await self._result(ForgetResult, document, asking.forget)

    async def check_undo(self, task_id: str) -> None:
        """Raise if the caller is neither the owner nor the client that requested the task (H3)."""
        if not self.is_owner:
            task = await self.call.core.find(self.call.workspace, task_id)
            if task is None or not self.originator.sees(task.originator):
                raise owner_required()

    async def write(self, body: Callable[[Place, Reader, Cancel], W]) -> W:
        """Return the result of `body`, which changes the memory."""
        async with self.undos:
            return await self._at(body)

    async def at(self, body: Callable[[Place, Reader], T]) -> T:
        """Return the result of `body`, which reads the memory."""
        with _problems():
            async with self.reads.held(self.call.principal.share):
                return await self._at(lambda place, reader, _: body(place, reader))

    async def _at(self, body: Callable[[Place, Reader, Cancel], T]) -> T:
        with _problems():
            return await self.call.core.at(
                self.call.workspace, lambda place, cancel: body(place, self._reader(place), cancel)
            )

    def _reader(self, place: Place) -> Reader:
        """Return the reader; it owns the tasks of its token that had at most its trust."""

        def owns(task_id: str) -> bool:
            task = find(place.state.ledger, self.call.workspace.key, task_id)
            if task is None or not self.trust.satisfies(task.trust):
                return False
            # The owner's token with less trust belongs to a tool; it sees only tasks that no tool requested.
            is_tool = self.originator.token == OWNER
            return task.originator == self.originator if is_tool else self.originator.sees(task.originator)

        return Reader(self.trust, owns)

    async def _result(
        self,
        kind: type[R],
        document: dict[str, Any],
        ask: Callable[[dict[str, Any], ServedWorkspace], NewTask],
        tell: Callable[[int, str], None] = lambda *_: None,
    ) -> R:
        """Return the result of a task after it has completed.

        Raises:
            ToolProblem: it failed, or was not accepted.
        """
        number = (await self.call.core.followed()).last
        with _problems():
            asked = ask(document, self.call.workspace)
            asked = replace(asked, trust=asked.trust.capped(self.trust))
            task = (await accept(self.call, asked, self.originator)).task
        try:
            task = await self._over(task, number, tell)
        except asyncio.CancelledError:
            if not self.call.core.is_draining:  # Otherwise the next daemon executes it.
                with anyio.CancelScope(shield=True), suppress(MunimentError, HttpProblem):
                    # It may be finished already.
                    await self.call.core.cancel(self.call.workspace, task.id, self.originator)
            raise
        match task.status:
            case "completed":
                return replace(read(kind, task.result or {}, "a result"), task_id=task.id)
            case "cancelled":
                raise ToolProblem("cancelled", sentence_of("cancelled"))
            case "failed" if task.error is not None:
                raise _problem_of(task.error)
            case _:
                raise ToolProblem("workspace_draining", f"{sentence_of('workspace_draining')} ({task.id})")

    async def _over(self, task: QueuedTask, number: int, tell: Callable[[int, str], None]) -> QueuedTask:
        stream = await self.call.core.followed()
        while True:
            task = await self.call.core.find(self.call.workspace, task.id) or task
            # Read events after the task, so that no turn of a finished task is missed; they may already
            # contain its end.
            number, told = await stream.since(number)
            ours = [event.data for event in told if event.task == task.id]
            for data in ours:
                if "turn" in data:
                    tell(data["turn"], f"{data['tool']}: {data['verdict']}")
            if task.is_over or stream.is_closed:
                return task
            if not ours:
                await stream.changed(LOOK_SECONDS)


def _problem_of(error: Mapping[str, Any]) -> ToolProblem:
    code, text = error["code"], sentence_of(error["code"])
    if "reviewId" in error:
        text += f" The owner can show it with: muniment review show {error['reviewId']}"
    if error.get("reason"):
        text += "\n" + marked(one_line(error["reason"]))
    if error.get("paths"):
        text += "\n" + marked("\n".join(map(one_line, error["paths"])))
    return ToolProblem(code, text)
