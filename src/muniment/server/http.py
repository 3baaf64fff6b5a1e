"""The type of HTTP operations, the requests to them, and the OpenAPI document that is generated from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from muniment.content.exact_json import NotJson, parse_json
from muniment.errors import CODES
from muniment.kernel.change import digest
from muniment.names import __version__
from muniment.server.contract import MAX_BODY_BYTES, Erasure, HttpProblem
from muniment.server.core import ServedCore, ServedWorkspace
from muniment.server.guard import PRINCIPAL, SLOT, WORKSPACE, Slot
from muniment.server.requests import M, validate_document
from muniment.server.tokens import Principal
from muniment.store.tasks import Originator
from muniment.types.documents import WireDocument, create_document

# -- body --------------------------------------------------------------------------------------------
#
# Reads the JSON body of a request, with limits of size and time. Ambiguous JSON is rejected.

BODY_SECONDS: Final = 15.0
"""Seconds within which a body must arrive; 512 KiB take 4 s over a connection of 1 Mbit/s."""


_CLOSE: Final = {"Connection": "close"}

DRAIN_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes to read of a body that is too large. They are discarded, so that the client can read the
response.
"""


async def read_json(request: Request) -> Any:
    """Return the JSON value in the body of a request. If the body is empty, return an empty object.

    Raises:
        HttpProblem: the body is not JSON, too large, too slow, or has another media type.
    """
    data = await read_body(request)
    if not data.strip():
        return {}
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpProblem("unsupported_media_type")
    try:
        return parse_json(data, allow_byte_order_mark=False, repair=True)
    except NotJson:
        raise HttpProblem("invalid_json") from None


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        HttpProblem: the body is too large or too slow.
    """
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > DRAIN_BYTES:
        raise HttpProblem("body_too_large", headers=_CLOSE)
    data, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for block in request.stream():
                size += len(block)
                if size > DRAIN_BYTES:
                    break
                if size <= MAX_BODY_BYTES:
                    data += block
    except TimeoutError:
        raise HttpProblem("request_timeout", headers=_CLOSE) from None
    except ClientDisconnect:
        raise HttpProblem("invalid_http") from None
    if size > MAX_BODY_BYTES:
        raise HttpProblem("body_too_large", headers=_CLOSE)
    return bytes(data)


# -- operation ---------------------------------------------------------------------------------------
#
# Routes as values. The application, the OpenAPI document and its page are generated from them.

ORIGINAL_CLIENT: Final = "x-qwen-client-id"
CLIENT_HEADERS: Final = (ORIGINAL_CLIENT, "x-muniment-client-id")
"""Headers that identify the client of a token; a request may use either."""

TRUST_HEADER: Final = "x-muniment-trust"
"""Header that limits the trust of the sent facts. The trust of the token is the maximum."""

COMMON_CODES: Final = (
    "invalid_http",
    "token_required",
    "foreign_origin",
    "misdirected_request",
    "busy",
    "ledger_away",
    "internal_error",
)
"""Error codes that every request may return."""

JSON: Final = "application/json"


class Call:
    """A request for an operation.

    Attributes:
        request: the HTTP request.
        core: the core that serves the request.
        principal: the identity of the request's token.
        workspace: the requested workspace; set by `find_workspace`.
    """

    workspace: ServedWorkspace

    def __init__(self, request: Request, core: ServedCore) -> None:
        self.request, self.core = request, core
        self.principal: Principal = getattr(request.state, PRINCIPAL)

    async def find_workspace(self) -> None:
        """Find the requested workspace, and set `workspace`.

        Raises:
            HttpProblem: the daemon does not serve the workspace, or the request must specify a workspace.
        """
        self.workspace = await self.core.workspace(getattr(self.request.state, WORKSPACE))

    async def find_originator(self) -> Originator:
        """Return the originator of the request: its token and, if a header contains one, its client id.

        Raises:
            HttpProblem: the client id does not belong to the token.
        """
        sent = {each for name in CLIENT_HEADERS for each in self.request.headers.getlist(name)}
        if not sent:
            return Originator(self.principal.name)
        client = sent.pop()
        known = self.principal.clients
        if known is None:
            known = frozenset(
                each for other in await self.core.list_principals() for each in other.clients or ()
            )
        if sent or client not in known:
            raise HttpProblem("invalid_client_id")
        return Originator(self.principal.name, client)

    @property
    def is_original(self) -> bool:
        """Return whether the client uses the original contract, which is the HTTP API of `qwen serve`.

        It does if it uses a path `/session/…` or the header `X-Qwen-Client-Id`. Such a client knows no
        `cancelled` tasks, and expects other responses to an invalid cursor.
        """
        is_of_session: bool = self.request.scope["raw_path"].startswith(b"/session/")
        return is_of_session or ORIGINAL_CLIENT in self.request.headers

    async def is_token_valid(self) -> bool:
        """Return whether the token of the request is still valid: not revoked and not replaced."""
        return await self.core.is_still_valid(self.principal)

    async def json(self, otherwise: str = "invalid_request") -> dict[str, Any]:
        """Return the JSON object in the body of the request; empty if the body is empty.

        Args:
            otherwise: error code if the body is JSON, but not an object.

        Raises:
            HttpProblem: the body is not a JSON object.
        """
        found = await read_json(self.request)
        if not isinstance(found, dict):
            raise HttpProblem(otherwise)
        return found

    async def body(self, model: type[M]) -> M:
        """Return the body of the request, parsed as `model`.

        Raises:
            HttpProblem: invalid body.
        """
        return validate_document(model, await self.json())

    def wait(self) -> None:
        """Count this request among those that wait, and no longer among those in progress.

        Raises:
            HttpProblem: too many requests wait already.
        """
        self._slot.wait()

    def follow(self) -> None:
        """Count this request among those that follow events, and no longer among those in progress.

        Raises:
            HttpProblem: too many requests follow events already.
        """
        self._slot.follow()

    @property
    def _slot(self) -> Slot:
        slot: Slot = getattr(self.request.state, SLOT)
        return slot


Endpoint = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or header of an operation.

    Attributes:
        schema: JSON Schema of the parameter's value.
    """

    name: str
    location: Literal["query", "header"]
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    is_required: bool = False


INVALID_REQUEST: Final = -32600
"""Error number of JSON-RPC for an invalid request."""

BASE: Final = "/workspace/memory"
"""Path of the memory; the paths of its operations start with it."""

MCP: Final = "/mcp"
"""Path of the MCP endpoint."""


async def _raise_not_found(_: Call) -> Response:
    raise HttpProblem("not_found")


@dataclass(frozen=True, slots=True)
class Operation:
    """An HTTP method of a path, with its endpoint.

    Used as a decorator, it sets the endpoint. The docstring of the endpoint becomes the summary.

    Attributes:
        path: path with variable segments in braces.
        response: class of the response body, or its media types.
        codes: error codes that the operation may return in addition to `COMMON_CODES`.
        status: status of a successful response.
        body: model of the request body.
        parameters: query parameters and headers.
        is_owner_only: callers without the owner's token get `owner_required`.
        is_global: the operation concerns everything that the daemon serves; the owner of one home of a fleet
            gets `owner_required`.
        is_open: the operation needs no token.
        summary: one sentence.
        is_workspace_operation: the operation concerns one workspace, and also has a long path that names it.
    """

    method: str
    path: str
    response: type[WireDocument | Erasure] | str
    codes: tuple[str, ...] = ()
    status: int = 200
    body: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    is_owner_only: bool = False
    is_global: bool = False
    is_open: bool = False
    summary: str = ""
    endpoint: Endpoint = _raise_not_found

    def __call__(self, endpoint: Endpoint) -> Operation:
        """Return this operation with `endpoint` as its endpoint."""
        return replace(self, endpoint=endpoint, summary=endpoint.__doc__ or "")

    @property
    def is_workspace_operation(self) -> bool:
        """Return whether the operation concerns one workspace, and also has a long path that names it."""
        return self.path.startswith("/workspace/") or self.path == MCP

    @property
    def all_codes(self) -> tuple[str, ...]:
        """Return every error code that the operation may return."""
        codes = list(self.codes)
        if self.body is not None:
            codes += ["invalid_json", "invalid_request", "body_too_large", "unsupported_media_type"]
            codes += ["request_timeout"]
        if self.is_owner_only:
            codes.append("owner_required")
        if self.is_workspace_operation:
            codes += ["workspace_required", "untrusted_workspace"]
        everywhere = [code for code in COMMON_CODES if not (self.is_open and code == "token_required")]
        return tuple(dict.fromkeys((*codes, *everywhere)))


def build_response(
    value: WireDocument,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    etag: str | None = None,
) -> Response:
    """Return the response with `value` as its body.

    Args:
        value: the body.
        status: HTTP status of the response.
        headers: additional headers.
        etag: the client's `If-None-Match`; if it matches, the response is 304 without a body.
    """
    body = json.dumps(create_document(value)).encode()
    tag = f'"{digest(body)[:32]}"'
    sent = {**(headers or {}), "ETag": tag}
    if etag is not None and tag in {each.strip().removeprefix("W/") for each in etag.split(",")}:
        return Response(status_code=304, headers=sent)
    return Response(body, status, sent, JSON)


def rpc_problem(problem: HttpProblem) -> Response:
    """Return a problem as a JSON-RPC error. MCP clients display its message to users."""
    error = {
        "code": INVALID_REQUEST,
        "message": f"{problem.sentence} [{problem.code}]",
        "data": {"code": problem.code},
    }
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, problem.status)


# -- openapi -----------------------------------------------------------------------------------------
#
# The OpenAPI document, generated from the operations and their models.

PROBLEM: Final = "application/problem+json"

_REFERENCE: Final = "#/components/schemas/{model}"

_TEXT: Final = {"type": "string"}
_PROBLEM: Final[Mapping[str, Any]] = {
    "additionalProperties": True,
    "description": "The reason why a request failed; RFC 9457.",
    "properties": {
        "type": {"const": "about:blank", "title": "Type", **_TEXT},
        "title": {"title": "Title", **_TEXT},
        "status": {"title": "Status", "type": "integer"},
        "error": {"title": "Error", **_TEXT},
        "code": {"title": "Code", **_TEXT},
        "field": {"title": "Field", "description": "The invalid field.", **_TEXT},
        "detail": {"title": "Detail", "description": "The field and the problem with it.", **_TEXT},
    },
    "required": ["type", "title", "status", "error", "code"],
    "title": "Problem",
    "type": "object",
}
"""JSON Schema of `HttpProblem.body`."""


def build_openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `operations`."""
    known = tuple(operations)
    bodies, responses = {each.body for each in known}, {each.response for each in known}
    models = [model for model in bodies | responses if isinstance(model, type)]
    _, generated = TypeAdapter.json_schemas(
        [
            (model.__name__, "validation" if model in bodies else "serialization", TypeAdapter[Any](model))
            for model in sorted(models, key=lambda model: model.__name__)
        ],
        ref_template=_REFERENCE,
    )
    schemas = {"Problem": dict(_PROBLEM), **generated["$defs"]}
    paths: dict[str, dict[str, Any]] = {}
    for each in known:
        paths.setdefault(each.path, {})[each.method.lower()] = _describe_operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muniment",
            "version": __version__,
            "description": "Persist facts without a session. Every path `/workspace/…` exists for each "
            "workspace of the daemon as `/workspaces/{workspace}/…`, with its key or its path.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _describe_operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _build_operation_id(operation),
        "summary": operation.summary,
        "parameters": list(_describe_parameters(operation)),
        "responses": {**_describe_responses(operation), **dict(_describe_problems(operation))},
    }
    if operation.is_open:
        described["security"] = []
    if operation.is_owner_only:
        described["description"] = "Requires the owner's token."
    if operation.body is not None:
        described["requestBody"] = {
            "required": any(field.is_required() for field in operation.body.model_fields.values()),
            "content": {JSON: {"schema": _build_reference(operation.body.__name__)}},
        }
    return described


def _build_operation_id(operation: Operation) -> str:
    path_parts = [
        part for part in operation.path.replace(".", "/").split("/") if part and part != "workspace"
    ]
    return "_".join([operation.method.lower(), *(word.strip("{}") for word in path_parts)])


def _describe_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for segment in operation.path.split("/"):
        if segment.startswith("{"):
            yield {"name": segment.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}}
    for each in operation.parameters:
        yield {
            "name": each.name,
            "in": each.location,
            "required": each.is_required,
            "description": each.description,
            "schema": dict(each.schema),
        }


def _describe_responses(operation: Operation) -> dict[str, Any]:
    response = operation.response
    if isinstance(response, str):
        schema = {"type": "object" if response == JSON else "string"}
        content: dict[str, Any] = {media_type: {"schema": schema} for media_type in response.split(", ")}
    else:
        content = {JSON: {"schema": _build_reference(response.__name__)}}
    descriptions = {str(operation.status): {"description": operation.summary, "content": content}}
    if any(each.name == "If-None-Match" for each in operation.parameters):
        descriptions["304"] = {"description": "Unchanged: the client has the current version."}
    return descriptions


def _describe_problems(operation: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    by_status: dict[int, list[str]] = {}
    for code in operation.all_codes:
        by_status.setdefault(CODES[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        schema = {
            "allOf": [
                _build_reference("Problem"),
                {"properties": {"code": {"enum": codes}, "status": {"const": status}}},
            ]
        }
        yield (
            str(status),
            {
                "description": " ".join(f"`{code}`: {CODES[code].sentence}" for code in codes),
                "content": {PROBLEM: {"schema": schema}},
            },
        )


def _build_reference(model: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model)}
