"""Parse requests of clients into the form that the jobs accept.

Separate from `http`, so that `muniment acp` parses in the same way without loading an HTTP server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from muniment.content.exact_json import mistake_in_words, plain_arguments
from muniment.content.expiry import local_day, read_expiry
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


NOBODY: Final = Originator("")
"""Originator of a new task until the component that accepts it sets the real one."""


def remember(document: dict[str, Any], workspace: ServedWorkspace) -> NewTask:
    """Return the task for a request to remember.

    Raises:
        HttpProblem: invalid body.
    """
    document = plain_arguments(document)
    content = _text(document, "content", "invalid_content")
    body = parsed(contract.RememberBody, document, _REMEMBER)
    context = body.context_mode or ContextMode.WORKSPACE
    scope = _scope(body.scope, body.model_fields_set, workspace)
    arguments = {"content": content, "scope": scope, "context": context}
    if body.expires is not None:
        try:
            read_expiry(body.expires, local_day())
        except ValueError:
            raise _wrong_field(
                "invalid_expires",
                "expires",
                "use today or a later day (2026-12-31), or a number of days (30d)",
            ) from None
        arguments["expires"] = body.expires
    shown = {"contextMode": context} | _shown(scope)
    return NewTask("remember", arguments, NOBODY, shown, body.source.trust, body.source.ref)


def forget(document: dict[str, Any], workspace: ServedWorkspace) -> NewTask:
    """Return the task for a request to forget.

    Raises:
        HttpProblem: invalid body.
    """
    document = plain_arguments(document)
    query = _text(document, "query", "invalid_query", "forget")
    body = parsed(contract.ForgetBody, document, _FORGET)
    scope = _scope(body.scope, body.model_fields_set, workspace)
    arguments = {"query": query, "scope": scope, "dry_run": body.dry_run}
    if body.digest is not None:
        arguments["digest"] = body.digest
    return NewTask("forget", arguments, NOBODY, _shown(scope))


def dream(document: dict[str, Any], workspace: ServedWorkspace) -> NewTask:
    """Return the task for a request to tidy.

    Raises:
        HttpProblem: invalid body.
    """
    body = parsed(contract.DreamBody, document, {"scope": "invalid_scope"})
    scope = _scope(body.scope, body.model_fields_set, workspace)
    asked = {"scope": scope, "dry_run": body.dry_run}
    return NewTask("dream", {name: value for name, value in asked.items() if value}, NOBODY, {})


def query(model: type[M], sent: QueryParams, workspace: ServedWorkspace) -> M:
    """Return the query of a request as `model`; reject repeated and unknown parameters.

    Raises:
        HttpProblem: invalid query, or unknown scope.
    """
    values = dict(sent)
    if len(values) != len(sent.multi_items()):
        raise HttpProblem("invalid_request", detail="a parameter is sent twice")
    body = parsed(model, values, {"scope": "invalid_scope"})
    if "scope" in values:
        _scope(values["scope"], {"scope"}, workspace)
    return body


def recall(document: dict[str, Any], workspace: ServedWorkspace) -> contract.RecallBody:
    """Return the parsed body of a recall, its query trimmed.

    Raises:
        HttpProblem: invalid body, or unknown scope.
    """
    document = plain_arguments(document)
    body = parsed(contract.RecallBody, document, {"scope": "invalid_scope"})
    _scope(body.scope, body.model_fields_set, workspace)
    return body.model_copy(update={"query": _text(document, "query", "invalid_request", "recall")})


def parsed(model: type[M], document: dict[str, Any], codes: Mapping[str, str] | None = None) -> M:
    """Validate a document as `model`.

    Args:
        model: the expected model.
        document: the document as it was sent, see `plain_arguments`.
        codes: the error code of each field, in order of precedence.

    Raises:
        HttpProblem: the document is invalid.
    """
    known, is_closed = _known(model, plain_arguments(document))
    try:
        body = model.model_validate(known)
    except ValidationError as error:
        wrong = {str(each["loc"][0]): each for each in error.errors() if each["loc"]}
        named = [name for name in codes or {} if name in wrong] or sorted(wrong)
        if not named:
            raise HttpProblem("invalid_request") from None
        code = (codes or {}).get(named[0], "invalid_request")
        mistake = wrong[named[0]]
        raise _wrong_field(code, ".".join(map(str, mistake["loc"])), mistake_in_words(mistake)) from None
    if not is_closed:
        # Do not repeat what was sent, not even its names.
        names = ", ".join(to_camel(name) for name in model.model_fields) or "no field"
        raise HttpProblem("invalid_request", detail=f"unknown field; this request accepts {names}")
    return body


def _wrong_field(code: str, name: str, why: str) -> HttpProblem:
    """Return the error for an invalid field of a request."""
    return HttpProblem(code, field=name, detail=f"{name}: {why}")


def _known(model: type[BaseModel], document: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the fields of a document that `model` knows, and whether these are all its fields.

    Validation with the model would also reject unknown fields, but would create one error for each of tens of
    thousands.
    """
    fields = {to_camel(name): field.annotation for name, field in model.model_fields.items()}
    known, is_closed = {}, document.keys() <= fields.keys()
    for name in fields.keys() & document.keys():
        part, value = fields[name], document[name]
        if isinstance(value, dict) and isinstance(part, type) and issubclass(part, BaseModel):
            value, is_part_closed = _known(part, value)
            is_closed = is_closed and is_part_closed
        known[name] = value
    return known, is_closed


def _text(document: Mapping[str, Any], name: str, code: str, purpose: str | None = None) -> str:
    sent = document.get(name)
    if not isinstance(sent, str):
        raise _wrong_field(code, name, "is missing" if sent is None else "is not a string")
    try:
        return check_content(sent) if purpose is None else check_query(sent, purpose)
    except MunimentError as error:
        raise _wrong_field(code, name, str(error)) from None


def _scope(sent: str | None, fields: set[str], workspace: ServedWorkspace) -> str | None:
    """Return the scope of a request if it exists.

    Raises:
        HttpProblem: unknown scope. If the roots cannot be opened, every name passes: no task is accepted
            then.
    """
    if "scope" not in fields:
        return None
    known = workspace.scopes().values()
    if not sent or (workspace.is_open and sent not in known):
        raise _wrong_field(
            "invalid_scope",
            "scope",
            "unknown scope; use a scope of the policy, or leave it out",
        )
    return sent


def _shown(scope: str | None) -> dict[str, Any]:
    return {} if scope is None else {"scope": scope}
