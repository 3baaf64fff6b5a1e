"""The routes of tasks: to ask for one, to look at it or wait for it, to cancel it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import Response

from muniment.daemon import asking, contract
from muniment.daemon.contract import MAX_WAIT_SECONDS
from muniment.daemon.problems import Problem, sentence_of
from muniment.daemon.routes.operation import Call, Endpoint, Operation, Parameter, answered
from muniment.errors import NotFound
from muniment.lane import Kind, NewTask, Originator, Status, Task

PAGE: Final = 100
"""Tasks of one answer."""

BASE: Final = "/workspace/memory"

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_CURSOR: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_WAIT: Final = re.compile(r"(?:.*,)?\s*wait\s*=\s*([0-9]{1,4})\s*(?:,.*)?", re.ASCII)
_STATUSES: Final = ("queued", "running", "completed", "failed", "cancelled")

AnyTask = contract.RememberTask | contract.ForgetTask | contract.DreamTask

_MODELS: Final[Mapping[str, type[AnyTask]]] = {
    "remember": contract.RememberTask,
    "forget": contract.ForgetTask,
    "dream": contract.DreamTask,
}

CLIENT_ID: Final = Parameter(
    "X-Muniment-Client-Id",
    "header",
    "One of the token's client ids: only what that id asked for is seen. `X-Qwen-Client-Id` is the same.",
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
    f"`wait=20`: answer once the task is over, or after so many seconds, at most {MAX_WAIT_SECONDS}.",
)
_ETAG: Final = Parameter("If-None-Match", "header", "An ETag: 304 where it still is the answer's.")


def rendered(task: Task, viewer: Originator) -> AnyTask:
    """A task as `viewer` is told of it: `cancelled` alone for who did so, as old clients know no such end."""
    error = task.error
    status: Status = task.status
    if status == "cancelled" and viewer != task.cancelled_by:
        status, error = "failed", {"code": "cancelled"}
    fields: dict[str, Any] = {
        "task_id": task.id,
        "status": status,
        "created_at": task.created,
        "updated_at": task.updated,
        "result": task.result,
        **task.shown,
    }
    if error is not None:
        fields["error"] = {**error, "message": sentence_of(error["code"])}
        fields["review_id"] = error.get("reviewId")
    return _MODELS[task.kind].model_validate(fields)


async def remember(call: Call) -> Response:
    """Accept a fact."""
    document = await call.json("invalid_content")
    return await _accepted(call, "remember", asking.remember(document, call.workspace))


async def forget(call: Call) -> Response:
    """Accept words of what is to be forgotten."""
    document = await call.json("invalid_query")
    return await _accepted(call, "forget", asking.forget(document, call.workspace))


async def dream(call: Call) -> Response:
    """Accept a dream."""
    return await _accepted(call, "dream", asking.dream(await call.json(), call.workspace))


async def look(call: Call) -> Response:
    """Answer how a task stands."""
    viewer = call.originator()
    task = _task(call, viewer)
    seconds = _wait(call)
    if seconds and not task.is_over:
        call.wait()
        try:
            task = await call.core.wait(call.workspace, task.id, seconds)
        except NotFound:
            raise Problem(f"{task.kind}_task_not_found") from None
        if not call.is_still_known():
            raise Problem("token_required", headers={"WWW-Authenticate": "Bearer"})
    headers = {} if task.is_over else {"Retry-After": "1"}
    return answered(rendered(task, viewer), headers=headers, etag=call.wanted_etag)


async def cancel(call: Call) -> Response:
    """Cancel a task."""
    viewer = call.originator()
    task = _task(call, viewer)
    try:
        task = await call.core.cancel(call.workspace, task.id, viewer)
    except NotFound:
        raise Problem(f"{task.kind}_task_not_found") from None
    return answered(rendered(task, viewer))


async def list_tasks(call: Call) -> Response:
    """Answer which tasks there are."""
    viewer = call.originator()
    status, cursor = call.request.query_params.get("status"), call.request.query_params.get("cursor")
    if (status is not None and status not in _STATUSES) or (
        cursor is not None and _CURSOR.fullmatch(cursor) is None
    ):
        raise Problem("invalid_request")
    before = None if cursor is None else int(cursor)
    found = [
        (task.seq, rendered(task, viewer))
        for task in call.core.tasks(call.workspace, before=before)
        if viewer.sees(task.originator)
    ]
    found = [(seq, task) for seq, task in found if status in {None, task.status}]
    page = found[:PAGE]
    more = str(page[-1][0]) if len(found) > PAGE else None
    return answered(contract.TaskList(tasks=[task for _, task in page], next_cursor=more))


async def _accepted(call: Call, kind: Kind, wanted: asking.Wanted) -> Response:
    """Accept a task, and answer where it is."""
    originator = call.originator()
    keys = call.request.headers.getlist("idempotency-key")
    if len(keys) > 1 or (keys and _KEY.fullmatch(keys[0]) is None):
        raise Problem("invalid_request")
    workspace = call.workspace
    await call.core.check(workspace, kind)
    asked = NewTask(
        kind,
        wanted.arguments,
        originator,
        wanted.shown,
        wanted.trust.capped(call.principal.trust),
        wanted.ref,
        keys[0] if keys else None,
    )
    submitted = await call.core.submit(workspace, asked)
    task = submitted.task
    path = call.request.scope["raw_path"].decode("ascii")
    headers = {"Location": f"{path}/{task.id}", "Retry-After": "1"}
    if submitted.repeated:
        headers["Idempotency-Replayed"] = "true"
    return answered(rendered(task, originator), status=202, headers=headers)


def _task(call: Call, viewer: Originator) -> Task:
    """The task that a request names, if it may know of it; the same answer in all other cases."""
    kind, task_id = call.request.scope["path"].split("/")[-2], call.request.path_params["taskId"]
    task = call.core.find(call.workspace, task_id)
    if task is None or task.kind != kind or not viewer.sees(task.originator):
        raise Problem(f"{kind}_task_not_found")
    return task


def _wait(call: Call) -> int:
    """Seconds that a client prefers to wait."""
    for sent in call.request.headers.getlist("prefer"):
        if found := _WAIT.fullmatch(sent):
            return min(int(found[1]), MAX_WAIT_SECONDS)
    return 0


def _of_kind(
    kind: str, endpoint: Endpoint, body: type[BaseModel], summary: str, codes: tuple[str, ...]
) -> tuple[Operation, ...]:
    """The three operations of a kind of task."""
    refused = (
        "invalid_client_id",
        "managed_memory_unavailable",
        "idempotency_mismatch",
        "remember_queue_full",
        f"{kind}_failed",
        "workspace_draining",
    )
    found = ("invalid_client_id", f"{kind}_task_not_found", "managed_memory_unavailable")
    path, model = f"{BASE}/{kind}", _MODELS[kind]
    return (
        Operation(
            "POST",
            path,
            endpoint,
            summary,
            model,
            (*codes, *refused),
            202,
            body,
            (CLIENT_ID, _IDEMPOTENCY),
        ),
        Operation(
            "GET",
            f"{path}/{{taskId}}",
            look,
            "Look at a task, or wait for its end.",
            model,
            found,
            parameters=(CLIENT_ID, _PREFER, _ETAG),
        ),
        Operation(
            "DELETE",
            f"{path}/{{taskId}}",
            cancel,
            "Cancel a task; one that is over stays as it is.",
            model,
            found,
            parameters=(CLIENT_ID,),
        ),
    )


OPERATIONS: Final = (
    *_of_kind(
        "remember",
        remember,
        contract.RememberBody,
        "Remember a fact.",
        ("invalid_content", "invalid_context_mode", "invalid_scope"),
    ),
    *_of_kind(
        "forget",
        forget,
        contract.ForgetBody,
        "Forget an entry, or what holds all words of a query.",
        ("invalid_query", "invalid_scope"),
    ),
    *_of_kind(
        "dream",
        dream,
        contract.DreamBody,
        "Tidy the memory: merge what says the same, remove what has expired.",
        (),
    ),
    Operation(
        "GET",
        f"{BASE}/tasks",
        list_tasks,
        "List tasks, the newest first.",
        contract.TaskList,
        ("invalid_request", "invalid_client_id", "managed_memory_unavailable"),
        parameters=(
            CLIENT_ID,
            Parameter("status", "query", "Only these.", {"type": "string", "enum": list(_STATUSES)}),
            Parameter(
                "cursor",
                "query",
                "From `nextCursor` on.",
                {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"},
            ),
        ),
    ),
)
