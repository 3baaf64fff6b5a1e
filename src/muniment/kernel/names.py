"""Shared definitions: string types that must not mix, closed enums, hard limits.

Standard library only, no I/O, no code runs on import. Policies set their limits below the ones in this file;
no setting can raise these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NewType, Self

Scope = NewType("Scope", str)
"""A named part of memory that a policy grants: `user`, `project`."""

RelPath = NewType("RelPath", str)
"""Canonical path inside a scope, `/`-separated. Still text: only `muniment.kernel.root` opens it."""

Digest = NewType("Digest", str)
"""SHA-256 as 64 lower-case hexadecimal digits."""


def join_path(directory: str, name: str) -> RelPath:
    """Return the path of `name` in `directory`, both as text inside one scope; "" is the scope itself."""
    return RelPath(f"{directory}/{name}" if directory else name)


class Verb(StrEnum):
    """The access of a request to a path; the unit in which policies grant."""

    LIST = "list"
    READ = "read"
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"


class Via(StrEnum):
    """The way in which a request would have left its root."""

    ABSOLUTE = "absolute"
    DOTDOT = "dotdot"
    SYMLINK = "symlink"
    MAGICLINK = "magiclink"
    MOUNT = "mount"
    HARDLINK = "hardlink"
    SPECIAL = "special"
    NUL = "nul"
    ROOT_REPLACED = "root_replaced"


class _OrderedEnum(StrEnum):
    """An enum with ordered members, the strongest first."""

    def satisfies(self, required: Self) -> bool:
        """Return whether this is at least as strong as `required`."""
        order = tuple(type(self))
        return order.index(self) <= order.index(required)


class Enforcement(_OrderedEnum):
    """The confinement that is really in force around the worker of a run."""

    FULL = "full"
    """A clean process, handles, and the kernel fence: every `FenceLayer`, with `mdwe` optional."""
    PARTIAL = "partial"
    """A clean process and handles: protects against a hostile model, not against native code."""
    NONE = "none"
    """In the broker's process: handles only."""


class Trust(_OrderedEnum):
    """The source of a fact, from most to least trusted."""

    OWNER = "owner"
    WORKSPACE = "workspace"
    AGENT = "agent"
    EXTERNAL = "external"

    def cap(self, *maximums: Trust) -> Trust:
        """Return the lowest of this and `maximums`."""
        return max((self, *maximums), key=tuple(Trust).index)


MAX_PATH_BYTES: Final = 1024
"""UTF-8 bytes of a complete logical path, scope included."""

MAX_SEGMENT_BYTES: Final = 255
"""UTF-8 bytes of one path segment; NAME_MAX of the file systems in use."""

MAX_DEPTH: Final = 9
"""Segments of a logical path, scope included."""

MAX_FILE_BYTES: Final = 1_048_576
"""Bytes of one memory file that the project reads or writes; no quota can raise it."""

INDEX_NAME: Final = "MEMORY.md"
"""The generated index in each root."""

INDEX_DIRECTORY: Final = "index"
"""The directory of generated index pages in each root."""

SAVED_NAME: Final = "memory-before-muniment"
"""Stem of the entry that saves a file found at the place of an index."""
