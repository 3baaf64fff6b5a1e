"""The routes of tasks, of recalls and of the daemon itself; other routes are in `owner` and `entries`.

This module is separate from `service`, which serves the routes.

The code for `/mcp` is in `integrations.mcp.http`, above this package. The first request imports that module
by name, so that every `Daemon` of a program serves `/mcp` without an option.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from muniment import types as contract
from muniment.cancelling import Cancel
from muniment.errors import MunimentError, NotFound
from muniment.names import MAX_FACT_BYTES, UNIX_ADDRESS, ContextMode, __version__
from muniment.operations.job_context import JobContext
from muniment.operations.visibility import Reader, Visibility, may_list_foreign_paths, redact_task
from muniment.server import requests
from muniment.server.contract import (
    MAX_BODY_BYTES,
    MAX_WAIT_SECONDS,
    ContextQuery,
    DreamBody,
    ForgetBody,
    HttpProblem,
    RecallBody,
    RememberBody,
    UiBody,
    choose_recall_code,
    get_sentence,
)
from muniment.server.core import DaemonCore
from muniment.server.entries import ENTRY_OPERATIONS
from muniment.server.guard import HELLO, LOOPBACK, PEER
from muniment.server.http import (
    BASE,
    JSON,
    MCP,
    Call,
    Endpoint,
    Operation,
    Parameter,
    build_response,
    read_body,
)
from muniment.server.lane import MAX_PENDING, MAX_RECORDS, MAX_TIDYING, SubmitResult
from muniment.server.lane_tasks import NewTask
from muniment.server.owner import OWNER_OPERATIONS
from muniment.server.page.access import CODE_SECONDS
from muniment.server.runner import BACKSTOP_SECONDS
from muniment.server.stream import Subscription
from muniment.server.work import MEDIA_TYPE
from muniment.store.tasks import Originator, QueuedTask, Status
from muniment.types.documents import parse_document

# -- tasks -------------------------------------------------------------------------------------------
#
# The routes of tasks: create one, read it or wait for it, cancel it.

PAGE_SIZE: Final = 100
"""Maximum tasks in one response."""

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_CURSOR: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_WAIT: Final = re.compile(r"(?:.*,)?\s*wait\s*=\s*([0-9]{1,4})\s*(?:,.*)?", re.ASCII)
_STATUSES: Final = ("queued", "running", "completed", "failed", "cancelled")

_RESPONSES: Final[Mapping[str, type[contract.PublicTask]]] = {
    "remember": contract.RememberTask,
    "forget": contract.ForgetTask,
    "dream": contract.DreamTask,
}

CLIENT_ID: Final = Parameter(
    "X-Muniment-Client-Id",
    "header",
    "A client id of the token: limits the response to tasks of that id. `X-Qwen-Client-Id` is a synonym.",
)
_IDEMPOTENCY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "1 to 255 printable ASCII characters: the same key with the same body is the same task, for 24 hours.",
    {"type": "string", "minLength": 1, "maxLength": 255},
)
_PREFER: Final = Parameter(
    "Prefer",
    "header",
    f"`wait=20`: respond once the task is over, or after 20 seconds; at most {MAX_WAIT_SECONDS}.",
)
_ETAG: Final = Parameter("If-None-Match", "header", "An ETag; if the response is unchanged: 304.")


def _build_pattern_schema(pattern: re.Pattern[str]) -> dict[str, str]:
    return {"type": "string", "pattern": f"^{pattern.pattern}$"}


def _choose_status(task: QueuedTask, call: Call, viewer: Originator) -> Status:
    """Return the status of a task for a viewer.

    A cancelled task is `cancelled` for its canceller, and `failed` for others. If the canceller uses the
    original contract (`Call.is_original`), the task is `failed` for the canceller too.
    """
    is_hidden = call.is_original or viewer != task.cancelled_by
    return "failed" if task.status == "cancelled" and is_hidden else task.status


async def hide_paths(call: Call, tasks: Sequence[QueuedTask]) -> list[QueuedTask]:
    """Return copies of `tasks` without paths that the request's principal may not see now.

    If the memory is not available, every path whose visibility is unknown is removed.
    """
    reader = Reader(call.principal.trust)
    if reader.is_owner:
        return list(tasks)
    if not any(map(may_list_foreign_paths, tasks)):
        return [redact_task(each, None) for each in tasks]

    def body(context: JobContext, cancel: Cancel) -> list[QueuedTask]:
        visibility = Visibility(context, reader, cancel)
        return [redact_task(each, visibility) for each in tasks]

    try:
        async with call.core.read_slots.use_slot(call.principal.share):
            return await call.core.run_in_context(call.workspace, body, can_write=False)
    except (MunimentError, HttpProblem):
        return [redact_task(each, None) for each in tasks]


def render_task(task: QueuedTask, call: Call, viewer: Originator) -> contract.PublicTask:
    """Return the response for a task.

    Args:
        task: a task as `hide_paths` returns it.
        call: the request.
        viewer: the originator of the request; it decides which status is shown.
    """
    status = _choose_status(task, call, viewer)
    error = task.error if status == task.status else {"code": "cancelled"}
    document: dict[str, Any] = {
        "taskId": task.id,
        "status": status,
        "createdAt": task.created,
        "updatedAt": task.updated,
        "result": task.result,
        **task.shown,
    }
    if error is not None:
        document["error"] = {**error, "message": get_sentence(error["code"])}
        document["reviewId"] = error.get("reviewId")
    return parse_document(_RESPONSES[task.kind], document, "a task")


async def remember(call: Call) -> Response:
    """Remember a fact."""
    document = await call.json("invalid_content")
    return await _accept_request(call, requests.parse_remember(document, call.workspace))


async def forget(call: Call) -> Response:
    """Forget an entry, given by its path or by a description."""
    document = await call.json("invalid_query")
    return await _accept_request(call, requests.parse_forget(document, call.workspace))


async def dream(call: Call) -> Response:
    """Tidy the memory: merge duplicates, remove expired entries."""
    return await _accept_request(call, requests.parse_dream(await call.json(), call.workspace))


async def show_task(call: Call) -> Response:
    """Return a task; with `Prefer: wait`, first wait for its end."""
    viewer = await call.find_originator()
    task = await _find_task(call, viewer)
    seconds = _parse_wait(call)
    if seconds and not task.is_finished:
        call.wait()
        try:
            task = await call.core.wait(call.workspace, task.id, seconds)
        except NotFound:
            raise HttpProblem(f"{task.kind}_task_not_found") from None
        if not await call.is_token_valid():
            raise HttpProblem("token_required", headers={"WWW-Authenticate": "Bearer"})
    headers = {} if task.is_finished else {"Retry-After": "1"}
    (visible,) = await hide_paths(call, [task])
    return build_response(
        render_task(visible, call, viewer), headers=headers, etag=call.request.headers.get("if-none-match")
    )


async def cancel(call: Call) -> Response:
    """Cancel a task; a finished task stays unchanged."""
    viewer = await call.find_originator()
    task = await _find_task(call, viewer)
    try:
        task = await call.core.cancel(call.workspace, task.id, viewer)
    except NotFound:
        raise HttpProblem(f"{task.kind}_task_not_found") from None
    (visible,) = await hide_paths(call, [task])
    return build_response(render_task(visible, call, viewer))


@Operation(
    "GET",
    f"{BASE}/tasks",
    contract.TaskList,
    ("invalid_request", "invalid_client_id", "managed_memory_unavailable"),
    parameters=(
        CLIENT_ID,
        Parameter(
            "status", "query", "Only tasks with this status.", {"type": "string", "enum": list(_STATUSES)}
        ),
        Parameter(
            "cursor", "query", "The `nextCursor` of the previous page.", _build_pattern_schema(_CURSOR)
        ),
    ),
)
async def list_tasks(call: Call) -> Response:
    """List tasks, newest first."""
    viewer = await call.find_originator()
    status, cursor = call.request.query_params.get("status"), call.request.query_params.get("cursor")
    if (status is not None and status not in _STATUSES) or (
        cursor is not None and _CURSOR.fullmatch(cursor) is None
    ):
        raise HttpProblem("invalid_request")
    before = None if cursor is None else int(cursor)
    found = [
        task
        for task in await call.core.tasks(call.workspace, before=before)
        if viewer.can_see(task.originator) and status in {None, _choose_status(task, call, viewer)}
    ]
    page = found[:PAGE_SIZE]
    more = str(page[-1].seq) if len(found) > PAGE_SIZE else None
    rendered_tasks = tuple(render_task(task, call, viewer) for task in await hide_paths(call, page))
    return build_response(contract.TaskList(tasks=rendered_tasks, next_cursor=more))


async def accept(
    call: Call, new_task: NewTask, originator: Originator, key: str | None = None
) -> SubmitResult:
    """Accept a task of a workspace: store it durably, so that it will run.

    Args:
        call: the request.
        new_task: the task. If its trust is higher than that of the caller, it is reduced.
        originator: the originator of the task, who may see it.
        key: idempotency key; the same request with the same key is the same task.

    Raises:
        HttpProblem: the task is not accepted.
    """
    await call.core.check(call.workspace, new_task.kind)
    trust = new_task.trust.cap(call.principal.trust)
    task = replace(new_task, originator=originator, trust=trust, idempotency_key=key)
    return await call.core.submit(call.workspace, task, call.request.headers.getlist("traceparent"))


async def _accept_request(call: Call, new_task: NewTask) -> Response:
    """Accept a task, and return the response with the task and its location."""
    originator = await call.find_originator()
    keys = call.request.headers.getlist("idempotency-key")
    if len(keys) > 1 or (keys and _KEY.fullmatch(keys[0]) is None):
        raise HttpProblem("invalid_request")
    submitted = await accept(call, new_task, originator, keys[0] if keys else None)
    task = submitted.task
    path = call.request.scope["raw_path"].decode("ascii")
    headers = {"Location": f"{path}/{task.id}", "Retry-After": "1"}
    if submitted.is_repeated:
        headers["Idempotency-Replayed"] = "true"
    (visible,) = await hide_paths(call, [task])
    return build_response(render_task(visible, call, originator), status=202, headers=headers)


async def _find_task(call: Call, viewer: Originator) -> QueuedTask:
    """Return the task that the path of the request names, if the viewer may see it.

    Raises:
        HttpProblem: the task does not exist, has another kind, or is hidden from the viewer. The error is the
            same in each case.
    """
    kind, task_id = call.request.scope["path"].split("/")[-2], call.request.path_params["taskId"]
    task = await call.core.find(call.workspace, task_id)
    if task is None or task.kind != kind or not viewer.can_see(task.originator):
        raise HttpProblem(f"{kind}_task_not_found")
    return task


def _parse_wait(call: Call) -> int:
    """Return the seconds that the client wants to wait (`Prefer: wait=20`), or 0."""
    for sent in call.request.headers.getlist("prefer"):
        if found := _WAIT.fullmatch(sent):
            return min(int(found[1]), MAX_WAIT_SECONDS)
    return 0


def _build_operations(
    kind: str, endpoint: Endpoint, body: type[BaseModel], *codes: str
) -> tuple[Operation, ...]:
    """Return the three operations of a kind of task: create a task, show it, cancel it."""
    rejection_codes = (
        "invalid_client_id",
        "managed_memory_unavailable",
        "idempotency_mismatch",
        "remember_queue_full",
        f"{kind}_failed",
        "workspace_draining",
    )
    lookup_codes = ("invalid_client_id", f"{kind}_task_not_found", "managed_memory_unavailable")
    path, of_one, response = f"{BASE}/{kind}", f"{BASE}/{kind}/{{taskId}}", _RESPONSES[kind]
    create = Operation(
        "POST",
        path,
        response,
        (*codes, *rejection_codes),
        status=202,
        body=body,
        parameters=(CLIENT_ID, _IDEMPOTENCY),
    )
    return (
        create(endpoint),
        Operation("GET", of_one, response, lookup_codes, parameters=(CLIENT_ID, _PREFER, _ETAG))(show_task),
        Operation("DELETE", of_one, response, lookup_codes, parameters=(CLIENT_ID,))(cancel),
    )


_FACT_CODES: Final = ("invalid_content", "invalid_context_mode", "invalid_scope", "invalid_expires")

TASK_OPERATIONS: Final = (
    *_build_operations("remember", remember, RememberBody, *_FACT_CODES),
    *_build_operations("forget", forget, ForgetBody, "invalid_query", "invalid_scope"),
    *_build_operations("dream", dream, DreamBody, "invalid_scope"),
    list_tasks,
)


# -- recall ------------------------------------------------------------------------------------------
#
# The routes of recalls, for every token: search the memory for entries that help with a message, or return
# the standing context.


_RECALL_CLIENT_ID: Final = Parameter(
    CLIENT_ID.name,
    "header",
    "A client id of the token; it does not affect the result. `X-Qwen-Client-Id` is a synonym.",
)


@Operation(
    "POST",
    f"{BASE}/recall",
    contract.Recalled,
    ("invalid_client_id", "invalid_scope", "workspace_draining"),
    body=RecallBody,
    parameters=(_RECALL_CLIENT_ID,),
)
async def recall(call: Call) -> Response:
    """Recall entries that help with a message."""
    return await _respond_to_recall(call, requests.parse_recall(await call.json(), call.workspace))


@Operation(
    "GET",
    f"{BASE}/context",
    contract.Recalled,
    ("invalid_client_id", "invalid_request", "workspace_draining"),
    parameters=(
        _RECALL_CLIENT_ID,
        Parameter("budget", "query", "Maximum tokens of the text; default: the setting `standing_tokens`."),
    ),
)
async def standing_context(call: Call) -> Response:
    """Return the standing context: the text that a session of an assistant starts with."""
    query = requests.parse_query(ContextQuery, call.request.query_params, call.workspace)
    return await _respond_to_recall(call, query)


async def _respond_to_recall(call: Call, body: RecallBody | ContextQuery) -> Response:
    await call.find_originator()
    call.wait()
    recalled = await call.core.recall(call.workspace, call.principal.share, body)
    if not await call.is_token_valid():
        raise HttpProblem("token_required", headers={"WWW-Authenticate": "Bearer"})
    if recalled.error is not None:
        recalled = replace(recalled, error=MunimentError(code=choose_recall_code(recalled.error)))
    return build_response(recalled)


# -- about -------------------------------------------------------------------------------------------
#
# The routes of the daemon itself, and its stream of events.

_NAME: Final = re.compile("[0-9a-f]{32}")
_NONCE: Final = re.compile("[0-9a-f]{64}")

EVENT_STREAM: Final = "text/event-stream"

EPOCH: Final = "X-Qwen-Event-Epoch"
"""Header with the epoch of an event stream. Numbers of events are unique within an epoch."""

ORIGINAL_SCOPES: Final = ("user", "project")
"""Scopes that a client of the original contract (`qwen serve`) may use, if the capabilities list them."""

HOOK: Final = "/hook"
"""Path of the events of coding tools."""

ANSWER: Final = "X-Muniment-Answer"
"""Header with the name of an answer, with which a client confirms that it printed the answer."""

_LISTEN: Final = "subscriptions/listen"


@Operation("GET", "/capabilities", contract.Capabilities)
async def capabilities(call: Call) -> Response:
    """Return the features and limits of the daemon."""
    workspace = call.core.get_any_workspace()
    if workspace is None:
        raise HttpProblem("untrusted_workspace")
    # All workspaces have the same policy, and so the same scopes.
    scopes = tuple(sorted(workspace.scopes().values()))
    details = {
        "workspace_memory_remember": contract.Feature(modes=tuple(ContextMode), scopes=scopes),
        "workspace_memory_forget": contract.Feature(scopes=scopes),
        "workspace_memory_dream": contract.Feature(),
        "workspace_memory_recall": contract.Feature(),
    }
    original_scopes = [scope for scope in ORIGINAL_SCOPES if scope in scopes]
    scope_features = [f"workspace_memory_remember_{scope}_scope" for scope in original_scopes]
    scope_features += ["workspace_memory_forget_scope"] if original_scopes else []
    return build_response(
        contract.Capabilities(
            version=__version__,
            workspace=workspace.key,
            features=("health", "capabilities", "session_events", *details, *scope_features),
            feature_details=details,
            limits=contract.DaemonLimits(
                content_bytes=MAX_FACT_BYTES,
                body_bytes=MAX_BODY_BYTES,
                pending_tasks=MAX_PENDING,
                pending_tidying_tasks=MAX_TIDYING,
                kept_tasks=MAX_RECORDS,
                wait_seconds=MAX_WAIT_SECONDS,
                task_seconds=BACKSTOP_SECONDS,
            ),
        )
    )


@Operation("GET", "/healthz", contract.Health)
async def health(_: Call) -> Response:
    """Return whether the daemon runs."""
    return build_response(contract.Health())


@Operation(
    "GET",
    HELLO,
    contract.Hello,
    ("invalid_request",),
    parameters=(
        Parameter(
            "token", "query", "The public name of the token.", _build_pattern_schema(_NAME), is_required=True
        ),
        Parameter(
            "nonce",
            "query",
            "A new random value for each connection.",
            _build_pattern_schema(_NONCE),
            is_required=True,
        ),
    ),
    is_open=True,
)
async def hello(call: Call) -> Response:
    """Prove the daemon's identity to a client. The route needs no token, and reveals nothing else."""
    query = call.request.query_params
    if _NONCE.fullmatch(query.get("nonce", "")) is None or _NAME.fullmatch(query.get("token", "")) is None:
        raise HttpProblem("invalid_request")
    proof = await call.core.create_proof(query["token"], query["nonce"], _find_dialled_address(call))
    return build_response(contract.Hello(proof=proof))


def _find_dialled_address(call: Call) -> str:
    """Return the address that the client connected to.

    Raises:
        HttpProblem: the client used another loopback name than this listener. Another program may listen at
            that name and relay the connection, so the daemon must not prove its identity (ADR 0026).
    """
    if getattr(call.request.state, PEER) is not None:
        return UNIX_ADDRESS
    host = call.request.headers["host"].lower()
    ip, port = call.request.scope["server"]
    here = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    if ipaddress.ip_address(ip).is_loopback and host in {f"{name}:{port}" for name in LOOPBACK} - {here}:
        raise HttpProblem("misdirected_request")
    return host


@Operation("GET", "/readyz", contract.Readiness, ("not_ready",))
async def ready(call: Call) -> Response:
    """Return whether the daemon accepts tasks."""
    call.wait()
    problems = await call.core.list_problems()
    if call.core.is_draining:
        raise HttpProblem("not_ready", reason="draining", workspaces=problems)
    if any(problems.values()):
        raise HttpProblem("not_ready", reason="unavailable", workspaces=problems)
    return build_response(contract.Readiness(workspaces=tuple(problems)))


@Operation(
    "GET",
    f"{BASE}/events",
    EVENT_STREAM,
    ("invalid_client_id",),
    parameters=(
        CLIENT_ID,
        Parameter(
            "Last-Event-ID",
            "header",
            "The id or number of the last received event: all later events are delivered.",
        ),
        Parameter(EPOCH, "header", "For a number: the epoch that it belongs to."),
    ),
)
async def follow(call: Call) -> Response:
    """Follow the events of a workspace, as server-sent events."""
    workspace = call.workspace
    stream = await call.core.open_stream()
    view = Subscription(
        workspace.key, workspace.scopes, await call.find_originator(), call.is_original, call.is_token_valid
    )
    headers = call.request.headers
    cursor, epoch = headers.get("last-event-id"), headers.get(EPOCH)
    if cursor is not None and epoch is not None and cursor.isdecimal():
        cursor = f"{epoch}-{cursor}"
    call.follow()
    frames = stream.follow(view, cursor)
    return StreamingResponse(frames, headers={EPOCH: stream.epoch}, media_type=EVENT_STREAM)


@Operation("GET", "/metrics", MEDIA_TYPE, is_owner_only=True, is_global=True)
async def metrics(call: Call) -> Response:
    """Return the metrics, for Prometheus."""
    return Response(call.core.metrics.text(), media_type=MEDIA_TYPE)


async def mcp(call: Call) -> Response:
    """Handle a message of the Model Context Protocol."""
    if not isinstance(call.core, DaemonCore):
        raise HttpProblem("not_found")
    if importlib.util.find_spec("mcp") is None:
        raise HttpProblem("mcp_not_installed")
    is_stream = call.request.method == "GET" or call.request.headers.get("mcp-method") == _LISTEN
    body = await read_body(call.request)
    (call.follow if is_stream else call.wait)()
    loaded = await asyncio.to_thread(importlib.import_module, "muniment.integrations.mcp.http")
    # After this check nothing is awaited until the sessions are registered with the code that ends them.
    if call.core.is_draining:
        raise HttpProblem("workspace_draining", headers={"Retry-After": "1"})
    response: Response = await loaded.handle_request(call.core, call, body)
    return response


async def hook(call: Call) -> Response:
    """Answer an event of a coding tool, as `muniment recall --hook` does in a directory."""
    event, hooks = await call.json(), await _load_hooks(call)
    directory = call.request.query_params.get("directory", "")
    response, name = await hooks.answer(event, directory)
    return JSONResponse(response, headers={ANSWER: name})


async def confirm_hook(call: Call) -> Response:
    """Confirm that an answer was printed, so that its session does not receive the entries again."""
    await (await _load_hooks(call)).confirm(call.request.headers.get(ANSWER, ""))
    return JSONResponse({})


async def _load_hooks(call: Call) -> Any:
    """Return the object that answers events; create it at the first event."""
    if not isinstance(call.core, DaemonCore):
        raise HttpProblem("not_found")
    loaded = await asyncio.to_thread(
        importlib.import_module, "muniment.integrations.coding_tools.hook_server"
    )
    call.core.require_open()
    if call.core.hooks is None:
        call.core.hooks = loaded.HookServer(call.core.settings.home)
    return call.core.hooks


@Operation(
    "POST",
    "/ui",
    contract.UiOpened,
    ("ui_not_installed", "ui_not_local", "ui_port_taken"),
    body=UiBody,
    is_owner_only=True,
)
async def open_ui(call: Call) -> Response:
    """Open the page of the daemon, and create a sign-in code for it."""
    await call.body(UiBody)
    url, code = call.core.open_ui()
    return build_response(contract.UiOpened(url=url, code=code, seconds=round(CODE_SECONDS)))


_HEALTH: Final = replace(
    health, path="/health", summary="Return whether the daemon runs; the path of the original contract."
)

OPERATIONS: Final = (
    *TASK_OPERATIONS,
    recall,
    standing_context,
    *OWNER_OPERATIONS,
    *ENTRY_OPERATIONS,
    *(follow, capabilities, hello, health, _HEALTH, ready, open_ui, metrics),
)
"""All operations of the daemon, except `describe_api` in `service` and those of the next two tables."""

HOOK_OPERATIONS: Final = (
    Operation("POST", HOOK, JSON, is_owner_only=True, is_global=True)(hook),
    Operation("POST", f"{HOOK}/confirm", JSON, is_owner_only=True, is_global=True)(confirm_hook),
)
"""The operations for `muniment recall --hook`. The coding tools define their events, so OpenAPI does not
describe these operations.
"""

MCP_OPERATIONS: Final = tuple(
    Operation(method, MCP, EVENT_STREAM)(mcp) for method in ("POST", "GET", "DELETE")
)
"""The operations of the Model Context Protocol, which defines their messages; so OpenAPI does not describe
them.
"""
