"""The routes for the owner: reviews, undo, erase, the audit head, and the decisions of the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from starlette.responses import Response

from muniment import types as contract
from muniment.cancelling import Cancel
from muniment.errors import NotFound
from muniment.kernel.names import Verb
from muniment.operations import owner as operations
from muniment.operations import review
from muniment.operations.job_context import JobContext
from muniment.server.contract import (
    ApproveBody,
    EraseBody,
    Erasure,
    HttpProblem,
    RejectBody,
    UndoBody,
)
from muniment.server.http import BASE, Call, Operation, Parameter, build_response
from muniment.store.audit import read_head

T = TypeVar("T")

UNAVAILABLE: Final = ("managed_memory_unavailable", "deadline", "invalid_scope")
REFUSED: Final = ("store_conflict", "refused", "path_escape", "bad_name", "quota", "content_rejected")


@Operation("GET", f"{BASE}/review", contract.ReviewList, UNAVAILABLE, is_owner_only=True)
async def list_reviews(call: Call) -> Response:
    """List the pending reviews."""
    found = await run_in_context(call, lambda context, _: review.list_reviews(context), writes=False)
    return build_response(contract.ReviewList(reviews=found))


@Operation(
    "GET",
    f"{BASE}/review/{{reviewId}}",
    contract.ReviewShown,
    (*UNAVAILABLE, "review_not_found", "review_closed", "bad_name", "path_escape"),
    is_owner_only=True,
)
async def show_review(call: Call) -> Response:
    """Show a pending review, with the digest that an approval must contain."""
    review_id = call.request.path_params["reviewId"]
    preview = await run_in_context(
        call, lambda context, _: review.show_review(review_id, context), "review_not_found", writes=False
    )
    return build_response(preview)


@Operation(
    "POST",
    f"{BASE}/review/{{reviewId}}/approve",
    contract.ReviewDecision,
    (*UNAVAILABLE, *REFUSED, "review_not_found", "review_closed", "review_changed"),
    body=ApproveBody,
    is_owner_only=True,
)
async def approve(call: Call) -> Response:
    """Approve a pending review: commit exactly the changes that were shown."""
    body = await call.body(ApproveBody)
    review_id = call.request.path_params["reviewId"]
    decision = await run_in_context(
        call,
        lambda context, cancel: review.approve_review(review_id, body.digest, context, cancel=cancel),
        "review_not_found",
    )
    return build_response(decision)


@Operation(
    "POST",
    f"{BASE}/review/{{reviewId}}/reject",
    contract.ReviewDecision,
    (*UNAVAILABLE, "review_not_found", "review_closed"),
    body=RejectBody,
    is_owner_only=True,
)
async def reject(call: Call) -> Response:
    """Reject a pending review permanently."""
    await call.body(RejectBody)
    review_id = call.request.path_params["reviewId"]
    decision = await run_in_context(
        call,
        lambda context, cancel: review.reject_review(review_id, context, cancel=cancel),
        "review_not_found",
    )
    return build_response(decision)


@Operation(
    "POST",
    f"{BASE}/undo",
    contract.UndoResult,
    (
        *(*UNAVAILABLE, *REFUSED, "task_not_found", "undo_overlap", "already_undone", "erased"),
        "pending_review",
    ),
    body=UndoBody,
    is_owner_only=True,
)
async def undo_task(call: Call) -> Response:
    """Undo the changes of a task."""
    body = await call.body(UndoBody)
    result = await run_in_context(
        call,
        lambda context, cancel: review.undo_task(body.task_id, context, accepts_handle=True, cancel=cancel),
    )
    if isinstance(result.error, NotFound):
        raise HttpProblem("task_not_found")
    if result.error is not None:
        raise result.error
    return build_response(result)


@Operation(
    "POST",
    f"{BASE}/erase",
    Erasure,
    (*UNAVAILABLE, *REFUSED, "nothing_to_erase"),
    body=EraseBody,
    is_owner_only=True,
)
async def erase(call: Call) -> Response:
    """Erase an entry or the changes of a task permanently; with `dryRun`, only list what would be erased."""
    request = await call.body(EraseBody)

    def body(context: JobContext, cancel: Cancel) -> contract.ErasePlan | contract.EraseResult:
        return operations.erase(context, request.target, dry_run=request.dry_run, cancel=cancel)

    return build_response(await run_in_context(call, body, "nothing_to_erase", writes=not request.dry_run))


@Operation(
    "GET", f"{BASE}/audit/head", contract.AuditHead, ("managed_memory_unavailable",), is_owner_only=True
)
async def audit_head(call: Call) -> Response:
    """Return the head of the audit chain."""
    found = await run_in_context(call, lambda context, _: read_head(context.state), writes=False)
    return build_response(contract.AuditHead(head=str(found), records=found.seq))


@Operation(
    "GET",
    f"{BASE}/policy/explain",
    contract.Explained,
    (*UNAVAILABLE, "invalid_request"),
    parameters=(
        Parameter(
            "verb",
            "query",
            "The verb of the request.",
            {"type": "string", "enum": list(Verb)},
            is_required=True,
        ),
        Parameter("path", "query", "A logical path, such as user/editor/dark-mode.md.", is_required=True),
    ),
    is_owner_only=True,
)
async def explain(call: Call) -> Response:
    """Explain how the policy decides a verb on a path."""
    query = call.request.query_params
    if query.get("verb") not in list(Verb) or "path" not in query:
        raise HttpProblem("invalid_request")
    verb, path = query["verb"], query["path"]
    explained = await run_in_context(
        call, lambda context, _: operations.explain(context, verb, path), writes=False
    )
    return build_response(explained)


async def run_in_context(
    call: Call,
    operation: Callable[[JobContext, Cancel], T],
    not_found: str = "not_found",
    *,
    writes: bool = True,
) -> T:
    """Run `operation` in a separate thread, with the `JobContext` of the request's workspace.

    See `ServedCore.run_in_context`.

    Args:
        call: the request; it is counted as waiting.
        operation: the operation to run.
        not_found: error code if `operation` raises `NotFound`.
        writes: whether the operation may change the memory.

    Raises:
        MunimentError: raised by `operation`, except `NotFound`; or the memory is not available.
        HttpProblem: `operation` raised `NotFound`, the daemon stops, or too many operations are running.
    """
    workspace = call.workspace
    call.wait()
    try:
        return await call.core.run_in_context(workspace, operation, can_write=writes)
    except NotFound:
        raise HttpProblem(not_found) from None


OWNER_OPERATIONS: Final = (list_reviews, show_review, approve, reject, undo_task, erase, audit_head, explain)
