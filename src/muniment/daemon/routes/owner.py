"""The routes of the owner alone: reviews, undo, erase, the audit head, and what the policy says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.responses import Response

from muniment.confine.cancel import Cancel, Patience
from muniment.daemon import contract
from muniment.daemon.problems import Problem
from muniment.daemon.routes.operation import Call, Operation, Parameter, answered
from muniment.daemon.routes.tasks import BASE
from muniment.errors import NotFound, PathEscape, Refusal
from muniment.jobs import review
from muniment.jobs.place import Place
from muniment.jobs.review import undo
from muniment.names import Verb
from muniment.policy.decide import Deny, Judge
from muniment.policy.grammar import canonicalise
from muniment.store import erase as erasing
from muniment.store.audit import head
from muniment.store.ledger import root_key
from muniment.store.review import pending

WAIT_SECONDS: Final = 60.0
"""Seconds that an erasure waits for the locks of its roots."""

T = TypeVar("T")


async def list_reviews(call: Call) -> Response:
    """Answer what waits in this workspace."""

    def body(place: Place, _: Cancel) -> contract.ReviewList:
        keys = {root_key(place.state, root) for root in place.roots.values()}
        return contract.ReviewList(
            reviews=[
                contract.Review(
                    review_id=each.id,
                    kind=each.origin.kind,
                    at=each.at,
                    reasons=list(each.reasons),
                    paths=list(each.change_set.unsafe_paths),
                )
                for each in pending(place.state)
                if keys.issuperset(each.roots.values())
            ]
        )

    return answered(await _at(call, body))


async def show_review(call: Call) -> Response:
    """Answer what a review would commit."""
    review_id = call.request.path_params["reviewId"]
    shown = await _at(call, lambda place, _: review.show(review_id, place), "review_not_found")
    return answered(contract.ReviewShown(review_id=shown.review_id, text=shown.text, digest=shown.digest))


async def approve(call: Call) -> Response:
    """Commit what waits."""
    body = await call.body(contract.ApproveBody)
    review_id = call.request.path_params["reviewId"]
    decided = await _at(
        call,
        lambda place, cancel: review.approve(review_id, body.digest, place, cancel=cancel),
        "review_not_found",
    )
    return answered(_decided(decided))


async def reject(call: Call) -> Response:
    """Decide that what waits is never committed."""
    await call.body(contract.RejectBody)
    review_id = call.request.path_params["reviewId"]
    return answered(
        _decided(
            await _at(
                call, lambda place, cancel: review.reject(review_id, place, cancel=cancel), "review_not_found"
            )
        )
    )


async def undo_task(call: Call) -> Response:
    """Take back what a task did."""
    body = await call.body(contract.UndoBody)
    result = await _at(call, lambda place, cancel: undo(body.task_id, place, cancel=cancel))
    if isinstance(result.error, NotFound):
        raise Problem("task_not_found")
    if result.error is not None:
        raise result.error
    return answered(
        contract.Undone(
            task_id=result.task_id,
            undone=result.undone,
            files_touched=[change.path for change in result.changes],
            touched_scopes=list(result.touched_scopes),
            notes=list(result.notes),
        )
    )


async def erase(call: Call) -> Response:
    """Erase an entry or what a task did; without `yes` only say what would go."""
    asked = await call.body(contract.EraseBody)

    def body(place: Place, cancel: Cancel) -> contract.Erasure:
        where = erasing.EraseGround(
            place.state, place.roots, place.policy, Patience(time.monotonic() + WAIT_SECONDS, cancel)
        )
        if not asked.yes:
            plan = erasing.plan(asked.target, where).as_json()
            del plan["target"]
            return contract.Erasure.model_validate(plan)
        return contract.Erasure.model_validate(erasing.erase(asked.target, where).as_json())

    return answered(await _at(call, body, "nothing_to_erase"))


async def audit_head(call: Call) -> Response:
    """Answer the end of the chain of records."""
    found = await _at(call, lambda place, _: head(place.state))
    return answered(contract.AuditHead(head=str(found), records=found.seq))


async def explain(call: Call) -> Response:
    """Answer what the policy says to a verb on a path."""
    asked = call.request.query_params
    if asked.get("verb") not in list(Verb) or "path" not in asked:
        raise Problem("invalid_request")
    verb, unsafe_path = Verb(asked["verb"]), asked["path"]

    def body(place: Place, _: Cancel) -> contract.Explained:
        try:
            verdict = Judge(place.policy).decide(verb, canonicalise(unsafe_path, place.roots))
        except (PathEscape, Refusal) as error:
            verdict = Deny(error.code, "paths", str(error))
        if isinstance(verdict, Deny):
            return contract.Explained(
                policy=place.policy.label,
                verdict="deny",
                rule=verdict.rule,
                layer=verdict.layer,
                reason=verdict.reason,
            )
        return contract.Explained(policy=place.policy.label, verdict="allow")

    return answered(await _at(call, body))


async def _at(call: Call, body: Callable[[Place, Cancel], T], not_found: str = "not_found") -> T:
    """Carry out `body` in a thread of its own, at the place of the request's workspace; see `Core.at`.

    Raises:
        MunimentError: as `body`.
        Problem: nothing of that name is there, or the daemon cannot do it now.
    """
    workspace = call.workspace
    call.wait()
    try:
        return await call.core.at(workspace, body)
    except NotFound:
        raise Problem(not_found) from None


def _decided(decided: review.Decided) -> contract.Decided:
    return contract.Decided(
        review_id=decided.review_id,
        status="rejected" if decided.task_id is None else "approved",
        task_id=decided.task_id,
        files_touched=[change.path for change in decided.changes],
        touched_scopes=list(decided.touched_scopes),
        notes=list(decided.notes),
    )


_UNAVAILABLE: Final = ("managed_memory_unavailable", "deadline", "invalid_scope")
_REFUSED: Final = ("store_conflict", "refused", "path_escape", "bad_name", "quota", "content_rejected")

OPERATIONS: Final = (
    Operation(
        "GET",
        f"{BASE}/review",
        list_reviews,
        "List what waits for the owner.",
        contract.ReviewList,
        _UNAVAILABLE,
        owner_only=True,
    ),
    Operation(
        "GET",
        f"{BASE}/review/{{reviewId}}",
        show_review,
        "Show what waits, with the digest that an approval names.",
        contract.ReviewShown,
        (*_UNAVAILABLE, "review_not_found", "review_closed", "bad_name", "path_escape"),
        owner_only=True,
    ),
    Operation(
        "POST",
        f"{BASE}/review/{{reviewId}}/approve",
        approve,
        "Commit exactly what was shown.",
        contract.Decided,
        (*_UNAVAILABLE, *_REFUSED, "review_not_found", "review_closed", "review_changed"),
        body=contract.ApproveBody,
        owner_only=True,
    ),
    Operation(
        "POST",
        f"{BASE}/review/{{reviewId}}/reject",
        reject,
        "Decide that it is never committed.",
        contract.Decided,
        (*_UNAVAILABLE, "review_not_found", "review_closed"),
        body=contract.RejectBody,
        owner_only=True,
    ),
    Operation(
        "POST",
        f"{BASE}/undo",
        undo_task,
        "Take back what a task did.",
        contract.Undone,
        (
            *_UNAVAILABLE,
            *_REFUSED,
            "task_not_found",
            "undo_overlap",
            "already_undone",
            "erased",
            "pending_review",
        ),
        body=contract.UndoBody,
        owner_only=True,
    ),
    Operation(
        "POST",
        f"{BASE}/erase",
        erase,
        "Erase an entry or what a task did, for good; without `yes` only say what would go.",
        contract.Erasure,
        (*_UNAVAILABLE, *_REFUSED, "nothing_to_erase"),
        body=contract.EraseBody,
        owner_only=True,
    ),
    Operation(
        "GET",
        f"{BASE}/audit/head",
        audit_head,
        "The end of the chain of records.",
        contract.AuditHead,
        ("managed_memory_unavailable",),
        owner_only=True,
    ),
    Operation(
        "GET",
        f"{BASE}/policy/explain",
        explain,
        "What the policy says to a verb on a path.",
        contract.Explained,
        (*_UNAVAILABLE, "invalid_request"),
        parameters=(
            Parameter(
                "verb", "query", "What is wanted.", {"type": "string", "enum": list(Verb)}, is_required=True
            ),
            Parameter("path", "query", "A logical path, such as user/editor/dark-mode.md.", is_required=True),
        ),
        owner_only=True,
    ),
)
