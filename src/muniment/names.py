"""The vocabulary that packages other than the kernel share, the proof of a daemon, and the version.

Uses only the standard library and the kernel's vocabulary; no I/O, and no side effects on import.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muniment.kernel.names import Enforcement

HOME_VARIABLE: Final = "MUNIMENT_HOME"
"""The variable with the directory of Muniment's data."""

URI: Final = "muniment://"
"""Prefix of the address of an entry; its scope and path follow, percent-encoded."""

MAX_CONFIG_BYTES: Final = 65_536
"""Bytes of `config.toml`; it has only a few lines."""


class FenceLayer(StrEnum):
    """The layers of the kernel fence, in the order in which a worker applies them."""

    LIMITS = "limits"
    """Limits on memory, processor time, descriptors, processes and file sizes."""
    CAPABILITIES = "capabilities"
    """No privileges, and no way to gain one."""
    DUMPABLE = "dumpable"
    """No other process of the same user may trace the worker or read its memory."""
    MDWE = "mdwe"
    """Writable memory does not become executable; seccomp also enforces this, so `full` needs no MDWE."""
    NO_NEW_PRIVS = "no_new_privs"
    """A program that the worker might start has no more rights than the worker."""
    LANDLOCK = "landlock"
    """The only file access is reading under the worker's roots."""
    SECCOMP = "seccomp"
    """Only about two dozen system calls are allowed."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement of a worker.

    Attributes:
        enforcement: the overall level.
        missing: layers that the kernel does not enforce, in the order of the fence.
    """

    enforcement: Enforcement
    missing: tuple[FenceLayer, ...]


IN_PROCESS: Final = Confinement(Enforcement.NONE, tuple(FenceLayer))
"""The confinement of tools that run in the broker's process."""


class Symlinks(StrEnum):
    """The treatment of symbolic links under a root, from its binding."""

    REFUSE = "refuse"
    """A path with a link is an escape."""
    BENEATH = "beneath"
    """A path with a link is resolved and judged again, if its target is under the root."""


class ContextMode(StrEnum):
    """The part of the existing memory that a run may see."""

    WORKSPACE = "workspace"
    """The index and the five tools."""
    CLEAN = "clean"
    """Nothing: no index, no names, no counts, no root."""


MAX_RECALLED: Final = 20
"""Entries of one recall."""

MAX_FACT_BYTES: Final = 65_536
"""UTF-8 bytes of a fact, after trimming."""

# -- how a daemon proves that it knows a token, before the token is sent to it (ADR 0026) --------------

_HELLO: Final = "muniment-hello/1"
"""Prefix of all keyed input of a proof, so that no output is valid in another context."""

UNIX_ADDRESS: Final = "unix"
"""The address in a proof over a Unix socket; over TCP it is the Host header, in lower case."""


def derive_hello_key(token: str) -> bytes:
    """Return the daemon's stored key for proving that it knows a token; it does not reveal the token."""
    return hmac.digest(token.encode(), f"{_HELLO} key".encode(), "sha256")


def derive_hello_name(key: bytes) -> str:
    """Return the identifier of a token that a client sends: 32 hexadecimal digits without secrets."""
    return hmac.digest(key, f"{_HELLO} name".encode(), "sha256").hex()[:32]


def compute_hello_proof(key: bytes, nonce: str, address: str) -> str:
    """Return the proof of a key for a nonce at an address: 64 hexadecimal digits."""
    return hmac.digest(key, f"{_HELLO} proof\n{nonce}\n{address}".encode(), "sha256").hex()


# -- version -------------------------------------------------------------------------------------------
#
# The version, in one place.

__version__ = "0.1.0"
