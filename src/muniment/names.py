"""The words that every package shares: string types that must not mix, closed enums, hard limits.

Standard library only, no I/O, nothing happens on import. Policies set their limits below the ones
in this file; nothing can raise these.
"""

from __future__ import annotations

import hmac
from enum import StrEnum
from typing import Final, NewType

# -- names -------------------------------------------------------------------------------------------

Scope = NewType("Scope", str)
"""A named part of memory that a policy grants: `user`, `project`."""

RelPath = NewType("RelPath", str)
"""Canonical path inside a scope, `/`-separated. Still text: only `muniment.confine` opens it."""

Digest = NewType("Digest", str)
"""SHA-256 as 64 lower-case hexadecimal digits."""


def joined(directory: str, name: str) -> RelPath:
    """The path of `name` in `directory`, both as text inside one scope; "" is the scope itself."""
    return RelPath(f"{directory}/{name}" if directory else name)


class Verb(StrEnum):
    """What a request does to a path; the unit in which policies grant."""

    LIST = "list"
    READ = "read"
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"


class Via(StrEnum):
    """How a request would have left its root."""

    ABSOLUTE = "absolute"
    DOTDOT = "dotdot"
    SYMLINK = "symlink"
    MAGICLINK = "magiclink"
    MOUNT = "mount"
    HARDLINK = "hardlink"
    SPECIAL = "special"
    NUL = "nul"
    ROOT_REPLACED = "root_replaced"


class Enforcement(StrEnum):
    """What really holds the worker of a run."""

    FULL = "full"
    """A clean process, handles, and the kernel fence: every `FenceLayer` but perhaps `mdwe`."""
    PARTIAL = "partial"
    """A clean process and handles: holds against a hostile model, not against native code."""
    NONE = "none"
    """In the broker's own process: handles only."""

    def satisfies(self, required: Enforcement) -> bool:
        """Whether this is at least as strong as `required`."""
        order = (Enforcement.NONE, Enforcement.PARTIAL, Enforcement.FULL)
        return order.index(self) >= order.index(required)


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


class Trust(StrEnum):
    """Who a fact comes from, from most to least trusted."""

    OWNER = "owner"
    WORKSPACE = "workspace"
    AGENT = "agent"
    EXTERNAL = "external"

    def satisfies(self, required: Trust) -> bool:
        """Whether this is at least as much trust as `required`."""
        order = tuple(Trust)
        return order.index(self) <= order.index(required)

    def capped(self, *ceilings: Trust) -> Trust:
        """The least of this and `ceilings`."""
        return max((self, *ceilings), key=tuple(Trust).index)


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


MAX_PATH_BYTES: Final = 1024
"""UTF-8 bytes of a whole logical path, scope included."""

MAX_SEGMENT_BYTES: Final = 255
"""UTF-8 bytes of one path segment; NAME_MAX of the file systems in use."""

MAX_DEPTH: Final = 9
"""Segments of a logical path, scope included."""

MAX_FACT_BYTES: Final = 65_536
"""UTF-8 bytes of a fact, after trimming."""

MAX_FILE_BYTES: Final = 1_048_576
"""Bytes of one memory file that anything here reads or writes, whatever a quota says."""

INDEX_NAME: Final = "MEMORY.md"
"""The generated index in each root."""

INDEX_DIRECTORY: Final = "index"
"""The directory of generated index pages in each root."""


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
