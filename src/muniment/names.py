"""The words that packages beside the kernel share, how a daemon proves itself, and the version.

On the standard library and the words of the kernel; no I/O, nothing happens on import.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muniment.kernel.names import Enforcement

HOME_VARIABLE: Final = "MUNIMENT_HOME"
"""Names the directory of what Muniment keeps."""

URI: Final = "muniment://"
"""Begins the address of an entry: its scope and path follow, percent-encoded."""

MAX_CONFIG_BYTES: Final = 65_536
"""Bytes of `config.toml`; it has a handful of lines."""


class FenceLayer(StrEnum):
    """What the kernel fence consists of, in the order in which a worker puts it up."""

    LIMITS = "limits"
    """Bounds on memory, processor time, descriptors, processes and file sizes."""
    CAPABILITIES = "capabilities"
    """No privilege left, nor a way to gain one."""
    DUMPABLE = "dumpable"
    """No other process of the same user may trace it or read its memory."""
    MDWE = "mdwe"
    """Memory that was writable does not become executable; seccomp holds the same, so `full` goes without."""
    NO_NEW_PRIVS = "no_new_privs"
    """No program that it might start has more rights than it."""
    LANDLOCK = "landlock"
    """Reading beneath its roots is all that it may do with files."""
    SECCOMP = "seccomp"
    """Some two dozen system calls are all that it may make."""


@dataclass(frozen=True, slots=True)
class Held:
    """What holds a worker.

    Attributes:
        enforcement: as a whole.
        missing: layers that the kernel does not hold, in the order of the fence.
    """

    enforcement: Enforcement
    missing: tuple[FenceLayer, ...]


IN_PROCESS: Final = Held(Enforcement.NONE, tuple(FenceLayer))
"""What holds tools that run in the broker's own process."""


class Symlinks(StrEnum):
    """What becomes of symbolic links beneath a root, as its binding says."""

    REFUSE = "refuse"
    """A path that meets one is an escape."""
    BENEATH = "beneath"
    """A path that meets one is resolved, and judged again, where that stays beneath the root."""


class ContextMode(StrEnum):
    """What a run may see of the memory that is already there."""

    WORKSPACE = "workspace"
    """The index and the five tools."""
    CLEAN = "clean"
    """Nothing: no index, no names, no counts, no root."""


MAX_RECALLED: Final = 20
"""Entries of one recall."""

MAX_FACT_BYTES: Final = 65_536
"""UTF-8 bytes of a fact, after trimming."""

# -- how a daemon proves that it knows a token, before the token is sent to it (ADR 0026) -------------------

_HELLO: Final = "muniment-hello/1"
"""Begins all that is keyed for a proof, so that none of it means anything elsewhere."""

UNIX_ADDRESS: Final = "unix"
"""The address in a proof over a Unix socket; over TCP it is the Host header, in lower case."""


def hello_key(token: str) -> bytes:
    """What a daemon keeps of a token to prove that it knows it; the token cannot be found from it."""
    return hmac.digest(token.encode(), f"{_HELLO} key".encode(), "sha256")


def hello_name(key: bytes) -> str:
    """By which a client says which token it means: 32 hexadecimal digits that tell nothing else."""
    return hmac.digest(key, f"{_HELLO} name".encode(), "sha256").hex()[:32]


def hello_proof(key: bytes, nonce: str, address: str) -> str:
    """What only who has the key can say about a nonce, at an address: 64 hexadecimal digits."""
    return hmac.digest(key, f"{_HELLO} proof\n{nonce}\n{address}".encode(), "sha256").hex()


# -- version -----------------------------------------------------------------------------------------
#
# The version, in one place.

__version__ = "0.1.0"
