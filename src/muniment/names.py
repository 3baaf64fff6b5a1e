"""Names and limits that several packages share, the proof that a daemon knows a token, and the version.

Imports only the standard library and `kernel.names`. No I/O, and no side effects on import.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muniment.kernel.names import Enforcement

HOME_VARIABLE: Final = "MUNIMENT_HOME"
"""The environment variable with the directory of all Muniment data."""

URI: Final = "muniment://"
"""Prefix of the address of an entry. The scope and the path of the entry follow, percent-encoded."""

MAX_CONFIG_BYTES: Final = 65_536
"""Maximum size of `config.toml` in bytes."""


class FenceLayer(StrEnum):
    """The layers of the confinement of a worker, in the order in which the worker applies them."""

    LIMITS = "limits"
    """Limits on memory, processor time, descriptors, processes and file sizes."""
    CAPABILITIES = "capabilities"
    """The worker has no capabilities, and cannot gain any."""
    DUMPABLE = "dumpable"
    """No other process of the same user may trace the worker or read its memory."""
    MDWE = "mdwe"
    """Writable memory cannot become executable. The level `full` does not need this layer, because seccomp
    enforces the same."""
    NO_NEW_PRIVS = "no_new_privs"
    """A program that the worker starts cannot get more rights than the worker."""
    LANDLOCK = "landlock"
    """The only permitted file access is reading under the roots of the worker."""
    SECCOMP = "seccomp"
    """The worker may use only about two dozen system calls."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement of a worker.

    Attributes:
        enforcement: the overall level: `full`, `partial` or `none`.
        missing: the layers that the Linux kernel does not enforce, in the order of `FenceLayer`.
    """

    enforcement: Enforcement
    missing: tuple[FenceLayer, ...]


IN_PROCESS: Final = Confinement(Enforcement.NONE, tuple(FenceLayer))
"""The confinement of tools that run in the broker's process."""


class Symlinks(StrEnum):
    """The treatment of symbolic links inside a root."""

    REFUSE = "refuse"
    """Every path through a link is rejected as a path escape."""
    BENEATH = "beneath"
    """If the target of a link is inside the root, the resolved path is checked again by the policy."""


class ContextMode(StrEnum):
    """The part of the existing memory that a run may see."""

    WORKSPACE = "workspace"
    """The run may read the index, and use the five tools `read_file`, `grep`, `ls`, `write_file`, `edit`."""
    CLEAN = "clean"
    """The run sees nothing of the memory: no index, no names, no counts, no directory."""


RECALL_SECONDS: Final = 5.0
"""Time limit of a recall in seconds. Only a recall that must read changed files takes more than milliseconds.
"""

MAX_RECALLED: Final = 20
"""Maximum number of entries that one recall returns."""

MAX_FACT_BYTES: Final = 65_536
"""Maximum size of a fact in UTF-8 bytes, after trimming."""

# -- how a daemon proves that it knows a token, before the token is sent to it (ADR 0026) --------------

_HELLO: Final = "muniment-hello/1"
"""Prefix of all texts that are hashed for a proof, so that no hash is valid for another purpose."""

UNIX_ADDRESS: Final = "unix"
"""The address in a proof over a Unix socket. Over TCP, the address is the Host header in lower case."""


def derive_hello_key(token: str) -> bytes:
    """Return the key with which a daemon proves that it knows a token; the key does not reveal the token."""
    return _compute_hmac(token.encode(), f"{_HELLO} key")


def derive_hello_name(key: bytes) -> str:
    """Return the identifier of a token that a client may send openly: 32 hexadecimal digits.

    Args:
        key: from `derive_hello_key`.
    """
    return _compute_hmac(key, f"{_HELLO} name").hex()[:32]


def compute_hello_proof(key: bytes, nonce: str, address: str) -> str:
    """Return the proof that a daemon knows a token: 64 hexadecimal digits.

    Args:
        key: from `derive_hello_key`.
        nonce: random digits that the client chose for this proof.
        address: the address to which the client is connected, or `UNIX_ADDRESS`.
    """
    return _compute_hmac(key, f"{_HELLO} proof\n{nonce}\n{address}").hex()


def _compute_hmac(key: bytes, text: str) -> bytes:
    """Return the HMAC of a text with SHA-256; OpenSSL is imported here, because it takes 8 ms."""
    import hmac

    return hmac.digest(key, text.encode(), "sha256")


# -- version -------------------------------------------------------------------------------------------

__version__ = "0.1.0"
