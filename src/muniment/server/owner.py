"""The routes of the owner: reviews, undo, erase, the audit head, and the decisions of the policy."""

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
from muniment.operations.place import Place
from muniment.operations.review import undo
from muniment.server.contract import (
    ApproveBody,
    EraseBody,
    Erasure,
    HttpProblem,
    RejectBody,
    UndoBody,
)
from muniment.server.http import BASE, Call, Operation, Parameter, answered
from muniment.store.audit import head

T = TypeVar("T")

UNAVAILABLE: Final = ("managed_memory_unavailable", "deadline", "invalid_scope")
REFUSED: Final = ("store_conflict", "refused", "path_escape", "bad_name", "quota", "content_rejected")


@Operation("GET", f"{BASE}/review", contract.ReviewList, UNAVAILABLE, owner_only=True)
async def list_reviews(call: Call) -> Response:
    """List the pending reviews."""
    found = await at_place(call, lambda place, _: review.list_reviews(place), writes=False)
    return answered(contract.ReviewList(reviews=found))


@Operation(
    "GET",
    f"{BASE}/review/{{reviewId}}",
    contract.ReviewShown,
    (*UNAVAILABLE, "review_not_found", "review_closed", "bad_name", "path_escape"),
    owner_only=True,
)
async def show_review(call: Call) -> Response:
    """Show a pending review, with the digest that an approval must contain."""
    review_id = call.request.path_params["reviewId"]
    shown = await at_place(
        call, lambda place, _: review.show(review_id, place), "review_not_found", writes=False
    )
    return answered(shown)


@Operation(
    "POST",
    f"{BASE}/review/{{reviewId}}/approve",
    contract.ReviewDecision,
    (*UNAVAILABLE, *REFUSED, "review_not_found", "review_closed", "review_changed"),
    body=ApproveBody,
    owner_only=True,
)
async def approve(call: Call) -> Response:
    """Commit exactly the changes that were shown."""
    body = await call.body(ApproveBody)
    review_id = call.request.path_params["reviewId"]
    decided = await at_place(
        call,
        lambda place, cancel: review.approve(review_id, body.digest, place, cancel=cancel),
        "review_not_found",
    )
    return answered(decided)


@Operation(
    "POST",
    f"{BASE}/review/{{reviewId}}/reject",
    contract.ReviewDecision,
    (*UNAVAILABLE, "review_not_found", "review_closed"),
    body=RejectBody,
    owner_only=True,
)
async def reject(call: Call) -> Response:
    """Reject a pending review permanently."""
    await call.body(RejectBody)
    review_id = call.request.path_params["reviewId"]
    decided = await at_place(
        call, lambda place, cancel: review.reject(review_id, place, cancel=cancel), "review_not_found"
    )
    return answered(decided)


@Operation(
    "POST",
    f"{BASE}/undo",
    contract.UndoResult,
    (
        *(*UNAVAILABLE, *REFUSED, "task_not_found", "undo_overlap", "already_undone", "erased"),
        "pending_review",
    ),
    body=UndoBody,
    owner_only=True,
)
async def undo_task(call: Call) -> Response:
    """Undo the changes of a task."""
    body = await call.body(UndoBody)
    result = await at_place(call, lambda place, cancel: undo(body.task_id, place, cancel=cancel))
    if isinstance(result.error, NotFound):
        raise HttpProblem("task_not_found")
    if result.error is not None:
        raise result.error
    return answered(result)


@Operation(
    "POST",
    f"{BASE}/erase",
    Erasure,
    (*UNAVAILABLE, *REFUSED, "nothing_to_erase"),
    body=EraseBody,
    owner_only=True,
)
async def erase(call: Call) -> Response:
    """Erase an entry or the changes of a task permanently, or only list what would be erased."""
    asked = await call.body(EraseBody)

    def body(place: Place, cancel: Cancel) -> contract.ErasePlan | contract.EraseResult:
        return operations.erase(place, asked.target, dry_run=asked.dry_run, cancel=cancel)

    return answered(await at_place(call, body, "nothing_to_erase", writes=not asked.dry_run))


@Operation("GET", f"{BASE}/audit/head", contract.AuditHead, ("managed_memory_unavailable",), owner_only=True)
async def audit_head(call: Call) -> Response:
    """Return the head of the audit chain."""
    found = await at_place(call, lambda place, _: head(place.state), writes=False)
    return answered(contract.AuditHead(head=str(found), records=found.seq))


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
    owner_only=True,
)
async def explain(call: Call) -> Response:
    """Explain how the policy decides a verb on a path."""
    asked = call.request.query_params
    if asked.get("verb") not in list(Verb) or "path" not in asked:
        raise HttpProblem("invalid_request")
    verb, path = asked["verb"], asked["path"]
    explained = await at_place(call, lambda place, _: operations.explain(place, verb, path), writes=False)
    return answered(explained)


async def at_place(
    call: Call, body: Callable[[Place, Cancel], T], not_found: str = "not_found", *, writes: bool = True
) -> T:
    """Run `body` in a separate thread, with the `Place` of the request's workspace; see `ServedCore.at`.

    Raises:
        MunimentError: raised by `body`.
        HttpProblem: the object was not found, or the daemon is not available.
    """
    workspace = call.workspace
    call.wait()
    try:
        return await call.core.at(workspace, body, writes=writes)
    except NotFound:
        raise HttpProblem(not_found) from None


OWNER_OPERATIONS: Final = (list_reviews, show_review, approve, reject, undo_task, erase, audit_head, explain)
