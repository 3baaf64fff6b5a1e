"""Parse requests of clients into the form that the jobs accept.

This module is separate from `http`, so that `muniment acp` parses requests in the same way without loading an
HTTP server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from muniment.content.exact_json import describe_mistake, normalize_arguments
from muniment.content.expiry import compute_local_day, parse_expiry
from muniment.errors import MunimentError
from muniment.names import ContextMode
from muniment.operations.request import check_content, check_query
from muniment.server import contract
from muniment.server.contract import HttpProblem
from muniment.server.lane_tasks import NewTask
from muniment.store.tasks import Originator

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from muniment.server.core import ServedWorkspace

# -- requests ----------------------------------------------------------------------------------------

M = TypeVar("M", bound=BaseModel)

_REMEMBER: Final = {
    "content": "invalid_content",
    "contextMode": "invalid_context_mode",
    "expires": "invalid_expires",
    "scope": "invalid_scope",
}
_FORGET: Final = {"query": "invalid_query", "scope": "invalid_scope"}


UNSET_ORIGINATOR: Final = Originator("")
"""Placeholder originator of a new task. The component that accepts the task replaces it."""


def parse_remember(document: dict[str, Any], workspace: ServedWorkspace) -> NewTask:
    """Return the task for a request to remember a fact.

    Args:
        document: body of the request.
        workspace: the workspace of the request; its scopes are valid.

    Raises:
        HttpProblem: invalid body.
    """
    document = normalize_arguments(document)
    content = _parse_text(document, "content", "invalid_content")
    body = validate_document(contract.RememberBody, document, _REMEMBER)
    context = body.context_mode or ContextMode.WORKSPACE
    scope = _check_scope(body.scope, body.model_fields_set, workspace)
    arguments = {"content": content, "scope": scope, "context": context}
    if body.expires is not None:
        try:
            parse_expiry(body.expires, compute_local_day())
        except ValueError:
            raise _build_field_problem(
                "invalid_expires",
                "expires",
                "use today or a later day (2026-12-31), or a number of days (30d)",
            ) from None
        arguments["expires"] = body.expires
    public_arguments = {"contextMode": context} | _build_public_scope(scope)
    return NewTask(
        "remember", arguments, UNSET_ORIGINATOR, public_arguments, body.source.trust, body.source.ref
    )


def parse_forget(document: dict[str, Any], workspace: ServedWorkspace) -> NewTask:
    """Return the task for a request to forget entries.

    Args:
        document: body of the request.
        workspace: the workspace of the request; its scopes are valid.

    Raises:
        HttpProblem: invalid body.
    """
    document = normalize_arguments(document)
    query = _parse_text(document, "query", "invalid_query", "forget")
    body = validate_document(contract.ForgetBody, document, _FORGET)
    scope = _check_scope(body.scope, body.model_fields_set, workspace)
    arguments = {"query": query, "scope": scope, "dry_run": body.dry_run}
    if body.digest is not None:
        arguments["digest"] = body.digest
    return NewTask("forget", arguments, UNSET_ORIGINATOR, _build_public_scope(scope))


def parse_dream(document: dict[str, Any], workspace: ServedWorkspace) -> NewTask:
    """Return the task for a request to tidy the memory.

    Args:
        document: body of the request.
        workspace: the workspace of the request; its scopes are valid.

    Raises:
        HttpProblem: invalid body.
    """
    body = validate_document(contract.DreamBody, document, {"scope": "invalid_scope"})
    scope = _check_scope(body.scope, body.model_fields_set, workspace)
    arguments = {"scope": scope, "dry_run": body.dry_run}
    return NewTask("dream", {name: value for name, value in arguments.items() if value}, UNSET_ORIGINATOR, {})


def parse_query(model: type[M], sent: QueryParams, workspace: ServedWorkspace) -> M:
    """Return the query parameters of a request, parsed as `model`; reject repeated and unknown ones.

    Raises:
        HttpProblem: invalid query, or unknown scope.
    """
    values = dict(sent)
    if len(values) != len(sent.multi_items()):
        raise HttpProblem("invalid_request", detail="a parameter is sent twice; send it once")
    body = validate_document(model, values, {"scope": "invalid_scope"})
    if "scope" in values:
        _check_scope(values["scope"], {"scope"}, workspace)
    return body


def parse_recall(document: dict[str, Any], workspace: ServedWorkspace) -> contract.RecallBody:
    """Return the parsed body of a request to recall entries. Its query is trimmed.

    Raises:
        HttpProblem: invalid body, or unknown scope.
    """
    document = normalize_arguments(document)
    body = validate_document(contract.RecallBody, document, {"scope": "invalid_scope"})
    _check_scope(body.scope, body.model_fields_set, workspace)
    return body.model_copy(update={"query": _parse_text(document, "query", "invalid_request", "recall")})


def validate_document(model: type[M], document: dict[str, Any], codes: Mapping[str, str] | None = None) -> M:
    """Validate a document and return it as an instance of `model`.

    Args:
        model: the expected model.
        document: the document as it was sent.
        codes: error code for each field. If several fields are invalid, the first one listed here is
            reported.

    Raises:
        HttpProblem: the document is invalid.
    """
    known, is_closed = _select_known(model, normalize_arguments(document))
    try:
        body = model.model_validate(known)
    except ValidationError as error:
        errors_by_field = {str(each["loc"][0]): each for each in error.errors() if each["loc"]}
        invalid_names = [name for name in codes or {} if name in errors_by_field] or sorted(errors_by_field)
        if not invalid_names:
            raise HttpProblem("invalid_request") from None
        code = (codes or {}).get(invalid_names[0], "invalid_request")
        mistake = errors_by_field[invalid_names[0]]
        raise _build_field_problem(
            code, ".".join(map(str, mistake["loc"])), describe_mistake(mistake)
        ) from None
    if not is_closed:
        # Do not repeat what was sent, not even its names.
        names = ", ".join(to_camel(name) for name in model.model_fields) or "no field"
        raise HttpProblem("invalid_request", detail=f"unknown field; this request accepts {names}")
    return body


def _build_field_problem(code: str, name: str, reason: str) -> HttpProblem:
    """Return the error for an invalid field of a request; `reason` describes the problem."""
    return HttpProblem(code, field=name, detail=f"{name}: {reason}")


def _select_known(model: type[BaseModel], document: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the fields of a document that `model` defines, and whether the document has only such fields.

    Validation with the model would also reject unknown fields, but would create one error for each of tens of
    thousands.
    """
    fields = {to_camel(name): field.annotation for name, field in model.model_fields.items()}
    known, is_closed = {}, document.keys() <= fields.keys()
    for name in fields.keys() & document.keys():
        part, value = fields[name], document[name]
        if isinstance(value, dict) and isinstance(part, type) and issubclass(part, BaseModel):
            value, is_part_closed = _select_known(part, value)
            is_closed = is_closed and is_part_closed
        known[name] = value
    return known, is_closed


def _parse_text(document: Mapping[str, Any], name: str, code: str, purpose: str | None = None) -> str:
    sent = document.get(name)
    if not isinstance(sent, str):
        raise _build_field_problem(code, name, "is missing" if sent is None else "is not a string")
    try:
        return check_content(sent) if purpose is None else check_query(sent, purpose)
    except MunimentError as error:
        raise _build_field_problem(code, name, str(error)) from None


def _check_scope(sent: str | None, fields: set[str], workspace: ServedWorkspace) -> str | None:
    """Return the scope of a request, or None if the request contains no scope.

    Raises:
        HttpProblem: unknown scope. While the roots are not open, every name is accepted here, because no task
            is accepted then.
    """
    if "scope" not in fields:
        return None
    known = workspace.scopes().values()
    if not sent or (workspace.is_open and sent not in known):
        raise _build_field_problem(
            "invalid_scope",
            "scope",
            "unknown scope; use a scope that the policy declares, or omit this field",
        )
    return sent


def _build_public_scope(scope: str | None) -> dict[str, Any]:
    return {} if scope is None else {"scope": scope}
