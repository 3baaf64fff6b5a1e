"""The daemon's descriptions of itself: features, limits, and whether it is ready.

The meaning of a member is in the `Annotated` text of its type, see `results`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from muniment.names import ContextMode
from muniment.types.documents import WireDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(WireDocument):
    """A feature of the daemon, with its details."""

    since: Literal["v1"] = "v1"
    modes: tuple[ContextMode, ...] | None = None
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLimits(WireDocument):
    """The limits of the daemon: sizes of requests, numbers of tasks per workspace, and durations."""

    content_bytes: int
    body_bytes: int
    pending_tasks: int
    pending_tidying_tasks: int
    kept_tasks: int
    wait_seconds: int
    task_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolVersions(WireDocument):
    """The versions of the HTTP API that the daemon supports."""

    current: Literal["v1"] = "v1"
    supported: tuple[str, ...] = field(default_factory=lambda: ("v1",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities(WireDocument):
    """The features and limits of the daemon in a workspace."""

    v: Literal[1] = 1
    protocol_versions: ProtocolVersions = ProtocolVersions()
    mode: Annotated[Literal["http-bridge"], "Always this value; use `features` instead."] = "http-bridge"
    version: str
    workspace: Annotated[str, "The key of the workspace, as in `/workspaces/{workspace}/memory/…`."]
    features: Annotated[tuple[str, ...], "The names of the features."]
    feature_details: Annotated[Mapping[str, Feature], "The details of some features, by name."]
    transports: tuple[str, ...] = field(default_factory=lambda: ("rest",))
    model_services: Annotated[tuple[str, ...], "Always empty: the daemon offers no models to clients."] = (
        field(default_factory=tuple)
    )
    limits: DaemonLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(WireDocument):
    """The response of a daemon that runs."""

    status: Literal["ok"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(WireDocument):
    """The proof that the daemon knows a token."""

    proof: Annotated[str, "HMAC-SHA-256 of the nonce and the address with the key of the token, hexadecimal."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness(WireDocument):
    """The response of a daemon that accepts tasks, with the keys of its workspaces."""

    status: Literal["ready"] = "ready"
    workspaces: tuple[str, ...]
