"""The routes about the daemon itself, and its stream of events."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import Final

from starlette.responses import Response, StreamingResponse

from muniment.daemon import contract
from muniment.daemon.contract import MAX_BODY_BYTES, MAX_WAIT_SECONDS
from muniment.daemon.guard import HELLO
from muniment.daemon.metrics import MEDIA_TYPE
from muniment.daemon.problems import Problem
from muniment.daemon.protocol import LOOPBACK, PEER
from muniment.daemon.routes.operation import Call, Operation, Parameter, answered
from muniment.daemon.routes.tasks import BASE, CLIENT_ID
from muniment.daemon.stream import View
from muniment.lane import BACKSTOP_SECONDS, MAX_PENDING, MAX_RECORDS, MAX_TIDYING
from muniment.names import MAX_FACT_BYTES, UNIX_ADDRESS, ContextMode, __version__

_NAME: Final = re.compile("[0-9a-f]{32}")
_NONCE: Final = re.compile("[0-9a-f]{64}")

EVENT_STREAM: Final = "text/event-stream"


async def capabilities(call: Call) -> Response:
    """Answer what the daemon can do."""
    workspace = call.workspace
    scopes = sorted(workspace.scopes().values())
    return answered(
        contract.Capabilities(
            version=__version__,
            workspace=workspace.key,
            features={
                "workspace_memory_remember": contract.Feature(modes=list(ContextMode), scopes=scopes),
                "workspace_memory_forget": contract.Feature(scopes=scopes),
                "workspace_memory_dream": contract.Feature(),
                "workspace_memory_recall": contract.Feature(),
            },
            limits=contract.Limits(
                content_bytes=MAX_FACT_BYTES,
                body_bytes=MAX_BODY_BYTES,
                pending_tasks=MAX_PENDING,
                pending_tidying_tasks=MAX_TIDYING,
                kept_tasks=MAX_RECORDS,
                wait_seconds=MAX_WAIT_SECONDS,
                task_seconds=BACKSTOP_SECONDS,
            ),
        )
    )


async def health(_: Call) -> Response:
    """Answer that the daemon runs."""
    return answered(contract.Health())


async def hello(call: Call) -> Response:
    """Answer that the token of a name is known here, to whoever asks."""
    asked = call.request.query_params
    if _NONCE.fullmatch(asked.get("nonce", "")) is None or _NAME.fullmatch(asked.get("token", "")) is None:
        raise Problem("invalid_request")
    return answered(contract.Hello(proof=call.core.proof(asked["token"], asked["nonce"], _dialled(call))))


def _dialled(call: Call) -> str:
    """The address that a client has dialled if nobody stands between (ADR 0026).

    Raises:
        Problem: somebody may: on the loopback there are several addresses, and others may take those at which
            this does not listen, and pass on what they are asked.
    """
    if getattr(call.request.state, PEER) is not None:
        return UNIX_ADDRESS
    host = call.request.headers["host"].lower()
    ip, port = call.request.scope["server"]
    here = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    if ipaddress.ip_address(ip).is_loopback and host in {f"{name}:{port}" for name in LOOPBACK} - {here}:
        raise Problem("misdirected_request")
    return host


async def ready(call: Call) -> Response:
    """Answer whether it accepts tasks."""
    call.wait()
    workspaces = call.core.workspaces
    found = await asyncio.gather(*(call.core.reason(each) for each in workspaces.values()))
    problems = dict(zip(workspaces, found, strict=True))
    if call.core.is_draining:
        raise Problem("not_ready", reason="draining", workspaces=problems)
    if any(problems.values()):
        raise Problem("not_ready", reason="unavailable", workspaces=problems)
    return answered(contract.Readiness(workspaces=list(problems)))


async def follow(call: Call) -> Response:
    """Answer with what happens, as long as the client listens."""
    workspace = call.workspace
    stream = call.core.stream
    view = View(workspace.key, workspace.scopes, call.originator(), call.is_still_known)
    cursor = call.request.headers.get("last-event-id")
    call.follow()
    return StreamingResponse(stream.follow(view, cursor), media_type=EVENT_STREAM)


async def metrics(call: Call) -> Response:
    """Answer what was counted."""
    return Response(call.core.metrics.text(), media_type=MEDIA_TYPE)


def _of(pattern: re.Pattern[str]) -> dict[str, str]:
    return {"type": "string", "pattern": f"^{pattern.pattern}$"}


OPERATIONS: Final = (
    Operation(
        "GET",
        f"{BASE}/events",
        follow,
        "Follow what happens, as server-sent events.",
        EVENT_STREAM,
        ("invalid_client_id",),
        parameters=(
            CLIENT_ID,
            Parameter(
                "Last-Event-ID", "header", "The id of the last event that was seen: nothing since is missed."
            ),
        ),
    ),
    Operation(
        "GET", "/capabilities", capabilities, "What the daemon can do, and its limits.", contract.Capabilities
    ),
    Operation(
        "GET",
        HELLO,
        hello,
        "Prove to a client that this is the daemon. Needs no token, and tells nothing else.",
        contract.Hello,
        ("invalid_request",),
        parameters=(
            Parameter("token", "query", "The name of the token, see above.", _of(_NAME), is_required=True),
            Parameter("nonce", "query", "Fresh for each connection.", _of(_NONCE), is_required=True),
        ),
        is_open=True,
    ),
    Operation("GET", "/healthz", health, "Whether the daemon runs.", contract.Health),
    Operation("GET", "/readyz", ready, "Whether it accepts tasks.", contract.Readiness, ("not_ready",)),
    Operation("GET", "/metrics", metrics, "What was counted, for Prometheus.", MEDIA_TYPE, owner_only=True),
)
