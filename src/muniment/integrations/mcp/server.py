"""Serve the memory on the official SDK of MCP, for any backend.

S1 The SDK does not validate arguments, and sends the text of exceptions to the client. Therefore this module
   validates everything. A handler only returns a response, or raises a protocol error with a generated text,
   or a cancellation.
S2 If a tool fails, the failure is its result, marked as an error, so that the model reads the reason. An
   unknown tool, resource or prompt is the error -32602 of the protocol.
S3 Clients are notified of changed resources: with the protocol of 2025 each connection, with that of 2026
   each listener. A client that does not read is skipped after `SEND_SECONDS`.

Source: modelcontextprotocol.io/specification, 2025-11-25 and 2026-07-28; `mcp` 2.3.0.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

import anyio
import mcp_types as t
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError

from muniment import events
from muniment.errors import BadName, NotFound, PathEscape, Refused
from muniment.integrations.mcp.actions import CommitsSince, list_resources, show_entry
from muniment.integrations.mcp.tools import (
    INSTRUCTIONS,
    TOOLS,
    Backend,
    ReportTurn,
    read_standing_context,
    recall_entries,
)
from muniment.integrations.results import ToolProblem, convert_errors, validate_arguments
from muniment.kernel.names import MAX_PATH_BYTES
from muniment.names import URI, __version__

if TYPE_CHECKING:
    from muniment.server.stream import Stream

MARKDOWN: Final = "text/markdown"

PROMPT: Final = "memory-context"

PROMPT_ENTRIES: Final = 5
"""Maximum number of entries in the response to the prompt."""

MAX_LISTENERS: Final = 64
"""Maximum number of clients that listen to changes at the same time, with the protocol of 2026."""

SEND_SECONDS: Final = 5.0
"""Maximum seconds that a notification may take to reach a client."""

CHECK_SECONDS: Final = 60.0
"""Seconds after which the server reads new commits, even if no event announces them."""

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")


def create_uri(path: str) -> str:
    """Return the address (`muniment://…`) of the entry at a path."""
    return f"{URI}{quote(path)}"


class MemoryServer(Server[Any]):
    """An MCP server for one or more memories.

    Args:
        get_backend: returns the backend of a request.
        start_listening: called when a client wants to be notified of changes.
    """

    def __init__(
        self, get_backend: Callable[[Context], Backend], start_listening: Callable[[], None] = lambda: None
    ) -> None:
        self._get_backend, self._start_listening = get_backend, start_listening
        self._bus = InMemorySubscriptionBus()
        self._listen_handler = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        super().__init__(
            "muniment",
            version=__version__,
            title="Muniment",
            description="Long-term memory as plain markdown.",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=_guard_handler(self._list_resources),
            on_list_resource_templates=self._list_templates,
            on_read_resource=_guard_handler(self._read_resource),
            on_list_prompts=self._list_prompts,
            on_get_prompt=_guard_handler(self._get_prompt),
            on_subscriptions_listen=self._listen,
            get_tool_input_schema=_get_input_schema,
        )
        self.middleware.clear()  # It would trace the content of messages.
        self.add_notification_handler(
            "notifications/initialized", t.NotificationParams, self._handle_initialized
        )

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the options of the server, which announce to clients that resources may change.

        Over HTTP, the SDK calls this method without arguments.
        """
        options = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)

    async def notify_changed(self, paths: Collection[str]) -> None:
        """Notify all clients that entries changed.

        Args:
            paths: the known paths of changed entries.
        """
        await self._bus.publish(ResourcesListChanged())
        for path in paths:
            await self._bus.publish(ResourceUpdated(uri=create_uri(path)))
        await asyncio.gather(*map(_notify_connection, list(self._connections)))

    def end_listening(self) -> None:
        """End every stream of changes in the regular way."""
        self._listen_handler.close()

    # -- tools ---------------------------------------------------------------------------------------------

    async def _list_tools(self, _: Context, __: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        return t.ListToolsResult(tools=list(_create_tools().values()))

    async def _call_tool(self, context: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
        call = TOOLS.get(params.name)
        if call is None:
            raise MCPError(t.INVALID_PARAMS, "unknown tool; tools/list lists the tools")
        try:
            with convert_errors("mcp_call_broke", tool=call.tool):
                tool_call = validate_arguments(call.tool, call, params.arguments or {})
                backend = self._get_backend(context)
                answer = await _report_progress(context, lambda notify: tool_call.execute(backend, notify))
        except ToolProblem as problem:
            return t.CallToolResult(content=[t.TextContent(text=problem.text_with_code)], is_error=True)
        return t.CallToolResult(
            content=[t.TextContent(text=answer.to_text())], structured_content=answer.model_dump(mode="json")
        )

    # -- resources -----------------------------------------------------------------------------------------

    async def _list_resources(
        self, context: Context, params: t.PaginatedRequestParams | None
    ) -> t.ListResourcesResult:
        after = None if params is None else params.cursor
        if after is not None and len(after) > MAX_PATH_BYTES:
            raise MCPError(t.INVALID_PARAMS, "invalid cursor: use one that this server returned")
        resources, more = await self._get_backend(context).read(
            lambda job_context, reader: list_resources(job_context, reader, after)
        )
        found = [t.Resource(uri=create_uri(path), name=name, mime_type=MARKDOWN) for path, name in resources]
        return t.ListResourcesResult(resources=found, next_cursor=more)

    async def _list_templates(
        self, _: Context, __: t.PaginatedRequestParams | None
    ) -> t.ListResourceTemplatesResult:
        entry = t.ResourceTemplate(
            uri_template=f"{URI}{{scope}}/{{+path}}",
            name="entry",
            description="One entry, such as muniment://user/editor/dark-mode.md, as data between marks.",
            mime_type=MARKDOWN,
        )
        return t.ListResourceTemplatesResult(resource_templates=[entry])

    async def _read_resource(
        self, context: Context, params: t.ReadResourceRequestParams
    ) -> t.ReadResourceResult:
        path = _parse_uri(params.uri)
        found = await self._get_backend(context).read(
            lambda job_context, reader: show_entry(job_context, reader, path)
        )
        content = t.TextResourceContents(uri=params.uri, mime_type=MARKDOWN, text=found.text)
        return t.ReadResourceResult(contents=[content])

    # -- prompts -------------------------------------------------------------------------------------------

    async def _list_prompts(self, _: Context, __: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        topic = t.PromptArgument(
            name="topic",
            description="The topic; without it the standing context is returned.",
            required=False,
        )
        prompt = t.Prompt(
            name=PROMPT,
            title="Context from memory",
            description="The standing context of a session, or the entries about a topic as data.",
            arguments=[topic],
        )
        return t.ListPromptsResult(prompts=[prompt])

    async def _get_prompt(self, context: Context, params: t.GetPromptRequestParams) -> t.GetPromptResult:
        prompt_arguments = params.arguments or {}
        if params.name != PROMPT or not prompt_arguments.keys() <= {"topic"}:
            raise MCPError(
                t.INVALID_PARAMS,
                f"unknown prompt or argument; the only prompt is {PROMPT}, with the argument topic",
            )
        backend = self._get_backend(context)
        if prompt_arguments.get("topic", "").strip():
            text = (await recall_entries(backend, prompt_arguments["topic"], PROMPT_ENTRIES)).to_text()
        else:
            text = (await read_standing_context(backend)).to_text()
        message = t.PromptMessage(role="user", content=t.TextContent(text=text))
        return t.GetPromptResult(description="From long-term memory.", messages=[message])

    # -- changes -------------------------------------------------------------------------------------------

    async def _handle_initialized(self, context: Context, _: t.NotificationParams | None) -> None:
        self._connections.add(context.session._connection)  # noqa: SLF001  the SDK has no public list
        self._start_listening()

    async def _listen(self, context: Context, params: t.SubscriptionsListenRequestParams) -> Any:
        self._start_listening()
        return await self._listen_handler(context, params)


async def notify_of_commits(
    stream: Stream, commits: CommitsSince, notify: Callable[[Collection[str]], Awaitable[object]]
) -> None:
    """Call `notify` with the paths of changed entries after each commit, until the stream is closed.

    Raises:
        MunimentError: as `CommitsSince.read_changes`.
    """
    while not stream.is_closed:
        await stream.wait_for_change(CHECK_SECONDS)
        if (paths := await asyncio.to_thread(commits.read_changes)) is not None:
            await notify(paths)


async def _notify_connection(connection: Connection) -> None:
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await connection.send_resource_list_changed()
    except TimeoutError:  # A client that does not read is skipped.
        pass
    except Exception as defect:  # noqa: BLE001  the others are still notified
        events.emit_defect("mcp_not_notified", defect)


@functools.cache
def _create_tools() -> dict[str, t.Tool]:
    """Return the tools in the form of the SDK, by name; created at the first request for them."""
    return {
        name: t.Tool(
            name=name,
            title=each.title,
            description=each.tool_description,
            input_schema=each.model_json_schema(),
            output_schema=each.response_type.model_json_schema(mode="serialization"),
            annotations=t.ToolAnnotations(
                title=each.title,
                read_only_hint=each.is_read_only,
                destructive_hint=each.is_destructive,
                idempotent_hint=each.is_read_only,
                open_world_hint=False,
            ),
        )
        for name, each in TOOLS.items()
    }


def _get_input_schema(name: str) -> dict[str, Any] | None:
    return _create_tools()[name].input_schema if name in TOOLS else None


def _parse_uri(uri: str) -> str:
    """Return the path in the address of an entry; whether the path is valid is checked later.

    Raises:
        MCPError: the text is not an address of this memory.
    """
    problem = MCPError(t.INVALID_PARAMS, f"invalid address: use {URI}scope/path, as in resources/list")
    if not uri.startswith(URI) or len(uri) > len(URI) + 3 * MAX_PATH_BYTES:
        raise problem
    try:
        return unquote(uri.removeprefix(URI), errors="strict")
    except UnicodeDecodeError:
        raise problem from None


def _guard_handler(handler: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Return a handler that converts each error to a protocol error with a text that is safe for clients."""

    @functools.wraps(handler)
    async def handle(*arguments: Any) -> T:
        try:
            with convert_errors("mcp_request_broke", MCPError):
                return await handler(*arguments)
        except ToolProblem as problem:
            is_invalid_request = isinstance(problem.__cause__, NotFound | PathEscape | BadName | Refused)
            number = t.INVALID_PARAMS if is_invalid_request else t.INTERNAL_ERROR
            raise MCPError(number, str(problem), {"code": problem.code}) from None

    return handle


async def _report_progress(context: Context, work: Callable[[ReportTurn], Awaitable[T]]) -> T:
    """Run `work`, report its turns to the client as progress, and return its result."""
    loop = asyncio.get_running_loop()
    turns: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()

    def report_turn(number: int, text: str) -> None:
        loop.call_soon_threadsafe(turns.put_nowait, (number, text))

    async def send_turns() -> None:
        last = 0
        while (turn := await turns.get()) is not None:
            if turn[0] > last:  # A turn may have several calls; progress only increases.
                last = turn[0]
                try:
                    await context.session.report_progress(last, None, f"turn {last}, {turn[1]}")
                except Exception as defect:  # noqa: BLE001  a failed report must not fail the work
                    events.emit_defect("mcp_progress_broke", defect)

    pumping = asyncio.create_task(send_turns())
    try:
        done = await work(report_turn)
        loop.call_soon(turns.put_nowait, None)  # Queued after the last turn, which uses the same way.
        await pumping
        return done
    finally:
        pumping.cancel()
        with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
            await pumping
