"""The OpenAPI document, made from the operations and their models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from muniment.daemon.contract import Problem
from muniment.daemon.problems import HTTP
from muniment.daemon.routes.operation import JSON, Operation
from muniment.names import __version__

PROBLEM: Final = "application/problem+json"

_REFERENCE: Final = "#/components/schemas/{model}"


def document_of(operations: Iterable[Operation]) -> dict[str, Any]:
    """The document of `operations`, as OpenAPI 3.1."""
    known = tuple(operations)
    models = {
        model for each in known for model in (each.body, each.answer, Problem) if isinstance(model, type)
    }
    bodies = {each.body for each in known}
    schemas = models_json_schema(
        [(model, "validation" if model in bodies else "serialization") for model in _by_name(models)],
        ref_template=_REFERENCE,
    )[1]["$defs"]
    paths: dict[str, dict[str, Any]] = {}
    for each in known:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muniment",
            "version": __version__,
            "description": "Persist facts without a session. Every path `/workspace/…` can be asked of any "
            "workspace that the daemon serves as `/workspaces/{workspace}/…`, by its key or its path.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _by_name(models: Iterable[type[BaseModel]]) -> list[type[BaseModel]]:
    return sorted(models, key=lambda model: model.__name__)


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _id(operation),
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_parameters(operation)],
        "responses": {**_answers(operation), **dict(_problems(operation))},
    }
    if operation.is_open:
        described["security"] = []
    if operation.owner_only:
        described["description"] = "The owner's token alone."
    if operation.body is not None:
        described["requestBody"] = {
            "required": any(field.is_required() for field in operation.body.model_fields.values()),
            "content": {JSON: {"schema": _reference(operation.body)}},
        }
    return described


def _id(operation: Operation) -> str:
    words = [part for part in operation.path.replace(".", "/").split("/") if part and part != "workspace"]
    return "_".join([operation.method.lower(), *(word.strip("{}") for word in words)])


def _path_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for segment in operation.path.split("/"):
        if segment.startswith("{"):
            yield {
                "name": segment.strip("{}"),
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
            }


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for each in operation.parameters:
        yield {
            "name": each.name,
            "in": each.where,
            "required": each.is_required,
            "description": each.meaning,
            "schema": dict(each.schema),
        }


def _answers(operation: Operation) -> dict[str, Any]:
    answers = {str(operation.status): _answer(operation)}
    if any(each.name == "If-None-Match" for each in operation.parameters):
        answers["304"] = {"description": "It still is what the client has."}
    return answers


def _answer(operation: Operation) -> dict[str, Any]:
    if isinstance(operation.answer, str):
        schema = {"type": "object" if operation.answer == JSON else "string"}
        return {"description": operation.summary, "content": {operation.answer: {"schema": schema}}}
    return {"description": operation.summary, "content": {JSON: {"schema": _reference(operation.answer)}}}


def _problems(operation: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    by_status: dict[int, list[str]] = {}
    for code in operation.all_codes:
        by_status.setdefault(HTTP[code][0], []).append(code)
    for status, codes in sorted(by_status.items()):
        schema = {
            "allOf": [
                _reference(Problem),
                {"properties": {"code": {"enum": codes}, "status": {"const": status}}},
            ]
        }
        yield (
            str(status),
            {
                "description": " ".join(f"`{code}`: {HTTP[code][1]}" for code in codes),
                "content": {PROBLEM: {"schema": schema}},
            },
        )


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}
