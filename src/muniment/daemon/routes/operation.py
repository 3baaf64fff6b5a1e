"""What a route is, as a value: from these the application, the OpenAPI document and its page are made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from muniment.daemon.asking import parsed
from muniment.daemon.body import read_json
from muniment.daemon.contract import as_wire
from muniment.daemon.core import Core
from muniment.daemon.guard import PRINCIPAL, SLOT, WORKSPACE, Slot
from muniment.daemon.problems import Problem
from muniment.daemon.tokens import Principal
from muniment.daemon.workspace import Workspace
from muniment.lane import Originator

CLIENT_HEADERS: Final = ("x-qwen-client-id", "x-muniment-client-id")
"""Either says which client of a token asks."""

EVERYWHERE: Final = (
    "invalid_http",
    "token_required",
    "foreign_origin",
    "misdirected_request",
    "busy",
    "internal_error",
)
"""Codes that every request may be answered with."""

JSON: Final = "application/json"

M = TypeVar("M", bound=BaseModel)


class Call:
    """A request for an operation.

    Attributes:
        request: as it was sent.
        core: what it is about.
        principal: who sent it.
    """

    def __init__(self, request: Request, core: Core) -> None:
        self.request, self.core = request, core
        self.principal: Principal = getattr(request.state, PRINCIPAL)

    @property
    def workspace(self) -> Workspace:
        """The workspace that it names.

        Raises:
            Problem: the daemon was not started for it.
        """
        return self.core.workspace(getattr(self.request.state, WORKSPACE))

    def originator(self) -> Originator:
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
            known = frozenset(each for other in self.core.tokens.all() for each in other.clients or ())
        if sent or client not in known:
            raise Problem("invalid_client_id")
        return Originator(self.principal.name, client)

    def is_still_known(self) -> bool:
        """Whether the token that this came with was not revoked since, nor made anew by the same name."""
        return self.principal.is_owner or self.principal in self.core.tokens.all()

    async def json(self, otherwise: str = "invalid_request") -> dict[str, Any]:
        """The JSON object in its body; an empty one where there is none.

        Args:
            otherwise: the code where it is JSON, but no object.

        Raises:
            Problem: there is something else.
        """
        found = await read_json(self.request)
        if not isinstance(found, dict):
            raise Problem(otherwise)
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

    @property
    def wanted_etag(self) -> str | None:
        """What the client has already."""
        return self.request.headers.get("if-none-match")


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


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    Attributes:
        path: with names of its variable segments in braces.
        summary: one sentence.
        answer: the model of what it answers, or a media type.
        codes: with which problems it answers, besides `EVERYWHERE`.
        status: of that answer.
        body: the model of what it takes.
        parameters: of the query, and headers.
        owner_only: others get `owner_required`.
        is_open: whoever asks needs no token.
        of_workspace: it is about a workspace, and so can be asked by the long path as well.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    answer: type[BaseModel] | str
    codes: tuple[str, ...] = ()
    status: int = 200
    body: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    owner_only: bool = False
    is_open: bool = False

    @property
    def of_workspace(self) -> bool:
        """Whether it can be asked of any workspace by its long path."""
        return self.path.startswith("/workspace/")

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
            codes.append("untrusted_workspace")
        everywhere = [code for code in EVERYWHERE if not (self.is_open and code == "token_required")]
        return tuple(dict.fromkeys((*codes, *everywhere)))


def answered(
    model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None, etag: str | None = None
) -> Response:
    """The answer that says `model`.

    Args:
        model: what is said.
        status: of the answer.
        headers: further ones.
        etag: what the client has; where that is the answer, it is told so instead.
    """
    body = json.dumps(as_wire(model)).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    sent = {**(headers or {}), "ETag": tag}
    if etag is not None and tag in {each.strip().removeprefix("W/") for each in etag.split(",")}:
        return Response(status_code=304, headers=sent)
    return Response(body, status, sent, JSON)
