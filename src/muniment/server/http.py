"""Operations as values, what they are asked, and the OpenAPI document that is made of both."""

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
from muniment.server.asking import M, parsed
from muniment.server.contract import MAX_BODY_BYTES, Erasure, HttpProblem
from muniment.server.core import ServedCore, ServedWorkspace
from muniment.server.guard import PRINCIPAL, SLOT, WORKSPACE, Slot
from muniment.server.tokens import Principal
from muniment.store.tasks import Originator
from muniment.types.documents import WireAnswer, document

# -- body --------------------------------------------------------------------------------------------
#
# Reads the body of a request: JSON, within bounds of size and time, and without two meanings.

BODY_SECONDS: Final = 15.0
"""Seconds for a body to arrive in; 512 KiB take 4 s over a line of 1 Mbit/s."""


_CLOSE: Final = {"Connection": "close"}

DRAIN_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a body that is too large which are still read, so that its sender gets to read the answer."""


async def read_json(request: Request) -> Any:
    """The JSON value that a request carries; an empty body is an empty object.

    Raises:
        Problem: it is none, too large, too slow, or of another media type.
    """
    data = await read_body(request)
    if not data.strip():
        return {}
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpProblem("unsupported_media_type")
    try:
        return parse_json(data, marked=False, repair=True)
    except NotJson:
        raise HttpProblem("invalid_json") from None


async def read_body(request: Request) -> bytes:
    """All that a request carries.

    Raises:
        Problem: it is too large or too slow.
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
# What a route is, as a value: from these the application, the OpenAPI document and its page are made.

ORIGINAL_CLIENT: Final = "x-qwen-client-id"
CLIENT_HEADERS: Final = (ORIGINAL_CLIENT, "x-muniment-client-id")
"""Either says which client of a token asks."""

TRUST_HEADER: Final = "x-muniment-trust"
"""Says that what comes is trusted less than the token."""

EVERYWHERE: Final = (
    "invalid_http",
    "token_required",
    "foreign_origin",
    "misdirected_request",
    "busy",
    "ledger_away",
    "internal_error",
)
"""Codes that every request may be answered with."""

JSON: Final = "application/json"


class Call:
    """A request for an operation.

    Attributes:
        request: as it was sent.
        core: what it is about.
        principal: who sent it.
        workspace: that it names, once it was found.
    """

    workspace: ServedWorkspace

    def __init__(self, request: Request, core: ServedCore) -> None:
        self.request, self.core = request, core
        self.principal: Principal = getattr(request.state, PRINCIPAL)

    async def find_workspace(self) -> None:
        """Find the workspace that it names.

        Raises:
            Problem: the daemon was not started for it, or it has to be named.
        """
        self.workspace = await self.core.workspace(getattr(self.request.state, WORKSPACE))

    async def originator(self) -> Originator:
        """Who asks.

        Raises:
            Problem: a client id is not one of the token's.
        """
        sent = {each for name in CLIENT_HEADERS for each in self.request.headers.getlist(name)}
        if not sent:
            return Originator(self.principal.name)
        client = sent.pop()
        known = self.principal.clients
        if known is None:
            known = frozenset(each for other in await self.core.known() for each in other.clients or ())
        if sent or client not in known:
            raise HttpProblem("invalid_client_id")
        return Originator(self.principal.name, client)

    @property
    def is_original(self) -> bool:
        """Whether its client is one of the original contract: it follows a session, or names itself so.

        Such a one knows no task that was `cancelled`, and other words for a cursor that is none.
        """
        is_of_session: bool = self.request.scope["raw_path"].startswith(b"/session/")
        return is_of_session or ORIGINAL_CLIENT in self.request.headers

    async def is_still_known(self) -> bool:
        """Whether the token that this came with was not revoked since, nor made anew by the same name."""
        return await self.core.still_knows(self.principal)

    async def json(self, otherwise: str = "invalid_request") -> dict[str, Any]:
        """The JSON object in its body; an empty one where there is none.

        Args:
            otherwise: the code where it is JSON, but no object.

        Raises:
            Problem: there is something else.
        """
        found = await read_json(self.request)
        if not isinstance(found, dict):
            raise HttpProblem(otherwise)
        return found

    async def body(self, model: type[M]) -> M:
        """Its body as `model`.

        Raises:
            Problem: it is none.
        """
        return parsed(model, await self.json())

    def wait(self) -> None:
        """Count this request no more among those that are being answered: from now on it waits.

        Raises:
            Problem: too many do already.
        """
        self._slot.wait()

    def follow(self) -> None:
        """Count it among those that follow events instead.

        Raises:
            Problem: too many do already.
        """
        self._slot.follow()

    @property
    def _slot(self) -> Slot:
        slot: Slot = getattr(self.request.state, SLOT)
        return slot


Endpoint = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header.

    Attributes:
        schema: JSON Schema of its value.
    """

    name: str
    where: Literal["query", "header"]
    meaning: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    is_required: bool = False


INVALID_REQUEST: Final = -32600
"""An error number of JSON-RPC."""

BASE: Final = "/workspace/memory"
"""The path of a memory; below it are its operations."""

MCP: Final = "/mcp"
"""Where the Model Context Protocol is spoken."""


async def _nothing(_: Call) -> Response:
    raise HttpProblem("not_found")


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path; as a decorator it is carried out by an endpoint, whose documentation sums it up.

    Attributes:
        path: with names of its variable segments in braces.
        answer: the class of what it answers, or its media types.
        codes: with which problems it answers, besides `EVERYWHERE`.
        status: of that answer.
        body: the model of what it takes.
        parameters: of the query, and headers.
        owner_only: others get `owner_required`.
        of_all: it tells of all that is served here, so not to the owner of one home of a fleet.
        is_open: whoever asks needs no token.
        summary: one sentence.
        of_workspace: it is about a workspace, which has to be known, and has a long path as well.
    """

    method: str
    path: str
    answer: type[WireAnswer | Erasure] | str
    codes: tuple[str, ...] = ()
    status: int = 200
    body: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    owner_only: bool = False
    of_all: bool = False
    is_open: bool = False
    summary: str = ""
    endpoint: Endpoint = _nothing

    def __call__(self, endpoint: Endpoint) -> Operation:
        """The operation, carried out by an endpoint."""
        return replace(self, endpoint=endpoint, summary=endpoint.__doc__ or "")

    @property
    def of_workspace(self) -> bool:
        """Whether it can be asked of any workspace by its long path."""
        return self.path.startswith("/workspace/") or self.path == MCP

    @property
    def all_codes(self) -> tuple[str, ...]:
        """Every code that it may answer with."""
        codes = list(self.codes)
        if self.body is not None:
            codes += ["invalid_json", "invalid_request", "body_too_large", "unsupported_media_type"]
            codes += ["request_timeout"]
        if self.owner_only:
            codes.append("owner_required")
        if self.of_workspace:
            codes += ["workspace_required", "untrusted_workspace"]
        everywhere = [code for code in EVERYWHERE if not (self.is_open and code == "token_required")]
        return tuple(dict.fromkeys((*codes, *everywhere)))


def answered(
    answer: WireAnswer,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    etag: str | None = None,
) -> Response:
    """The response that says `answer`.

    Args:
        answer: what is said.
        status: of the answer.
        headers: further ones.
        etag: what the client has; where that is the answer, it is told so instead.
    """
    body = json.dumps(document(answer)).encode()
    tag = f'"{digest(body)[:32]}"'
    sent = {**(headers or {}), "ETag": tag}
    if etag is not None and tag in {each.strip().removeprefix("W/") for each in etag.split(",")}:
        return Response(status_code=304, headers=sent)
    return Response(body, status, sent, JSON)


def rpc_problem(problem: HttpProblem) -> Response:
    """Return a problem as an error of JSON-RPC, whose text clients of MCP show to a person."""
    error = {
        "code": INVALID_REQUEST,
        "message": f"{problem.sentence} [{problem.code}]",
        "data": {"code": problem.code},
    }
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, problem.status)


# -- openapi -----------------------------------------------------------------------------------------
#
# The OpenAPI document, made from the operations and their models.

PROBLEM: Final = "application/problem+json"

_REFERENCE: Final = "#/components/schemas/{model}"

_TEXT: Final = {"type": "string"}
_PROBLEM: Final[Mapping[str, Any]] = {
    "additionalProperties": True,
    "description": "Why a request was not carried out; RFC 9457.",
    "properties": {
        "type": {"const": "about:blank", "title": "Type", **_TEXT},
        "title": {"title": "Title", **_TEXT},
        "status": {"title": "Status", "type": "integer"},
        "error": {"title": "Error", **_TEXT},
        "code": {"title": "Code", **_TEXT},
        "field": {"title": "Field", "description": "The field that is wrong.", **_TEXT},
        "detail": {"title": "Detail", "description": "The field, and what is wrong with it.", **_TEXT},
    },
    "required": ["type", "title", "status", "error", "code"],
    "title": "Problem",
    "type": "object",
}
"""The schema of `HttpProblem.body`."""


def document_of(operations: Iterable[Operation]) -> dict[str, Any]:
    """The document of `operations`, as OpenAPI 3.1."""
    known = tuple(operations)
    bodies, told = {each.body for each in known}, {each.answer for each in known}
    models = [model for model in bodies | told if isinstance(model, type)]
    _, made = TypeAdapter.json_schemas(
        [
            (model.__name__, "validation" if model in bodies else "serialization", TypeAdapter[Any](model))
            for model in sorted(models, key=lambda model: model.__name__)
        ],
        ref_template=_REFERENCE,
    )
    schemas = {"Problem": dict(_PROBLEM), **made["$defs"]}
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
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _id(operation),
        "summary": operation.summary,
        "parameters": list(_parameters(operation)),
        "responses": {**_answers(operation), **dict(_problems(operation))},
    }
    if operation.is_open:
        described["security"] = []
    if operation.owner_only:
        described["description"] = "The owner's token alone."
    if operation.body is not None:
        described["requestBody"] = {
            "required": any(field.is_required() for field in operation.body.model_fields.values()),
            "content": {JSON: {"schema": _reference(operation.body.__name__)}},
        }
    return described


def _id(operation: Operation) -> str:
    words = [part for part in operation.path.replace(".", "/").split("/") if part and part != "workspace"]
    return "_".join([operation.method.lower(), *(word.strip("{}") for word in words)])


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for segment in operation.path.split("/"):
        if segment.startswith("{"):
            yield {"name": segment.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}}
    for each in operation.parameters:
        yield {
            "name": each.name,
            "in": each.where,
            "required": each.is_required,
            "description": each.meaning,
            "schema": dict(each.schema),
        }


def _answers(operation: Operation) -> dict[str, Any]:
    told = operation.answer
    if isinstance(told, str):
        schema = {"type": "object" if told == JSON else "string"}
        content: dict[str, Any] = {media_type: {"schema": schema} for media_type in told.split(", ")}
    else:
        content = {JSON: {"schema": _reference(told.__name__)}}
    answers = {str(operation.status): {"description": operation.summary, "content": content}}
    if any(each.name == "If-None-Match" for each in operation.parameters):
        answers["304"] = {"description": "It still is what the client has."}
    return answers


def _problems(operation: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    by_status: dict[int, list[str]] = {}
    for code in operation.all_codes:
        by_status.setdefault(CODES[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        schema = {
            "allOf": [
                _reference("Problem"),
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


def _reference(model: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model)}
