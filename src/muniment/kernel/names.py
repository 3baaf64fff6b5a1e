"""Shared definitions: string types that must not be mixed, closed enums, and hard limits.

Standard library only, no I/O, no code runs on import. The limits of a policy are at most the limits in this
file. No setting can raise the limits in this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NewType, Self

Scope = NewType("Scope", str)
"""A named part of the memory that a policy declares, such as `user` or `project`."""

RelPath = NewType("RelPath", str)
"""A canonical path inside a scope, `/`-separated. It is only text: only `muniment.kernel.root` opens it."""

Digest = NewType("Digest", str)
"""SHA-256 as 64 lower-case hexadecimal digits."""


def join_path(directory: str, name: str) -> RelPath:
    """Return the path of `name` in `directory`, as text inside one scope. For the scope itself, pass ""."""
    return RelPath(f"{directory}/{name}" if directory else name)


class Verb(StrEnum):
    """The kind of access to a path that a request needs and that a policy grants."""

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
    """An enum whose members are ordered, the strongest first."""

    def satisfies(self, required: Self) -> bool:
        """Return whether this member is at least as strong as `required`."""
        order = tuple(type(self))
        return order.index(self) <= order.index(required)


class Enforcement(_OrderedEnum):
    """The confinement that is in force around the worker of a run."""

    FULL = "full"
    """A clean process with directory handles only, and every `FenceLayer` except the optional `mdwe`."""
    PARTIAL = "partial"
    """A clean process with directory handles only: stops a hostile model, but not native code."""
    NONE = "none"
    """No separate process: the tools run in the broker, and open files only through directory handles."""


class Trust(_OrderedEnum):
    """The kind of source of a fact, from most to least trusted."""

    OWNER = "owner"
    WORKSPACE = "workspace"
    AGENT = "agent"
    EXTERNAL = "external"

    def cap(self, *maximums: Trust) -> Trust:
        """Return the lowest trust among this one and `maximums`."""
        return max((self, *maximums), key=tuple(Trust).index)


MAX_PATH_BYTES: Final = 1024
"""Maximum UTF-8 bytes of a complete logical path, scope included."""

MAX_SEGMENT_BYTES: Final = 255
"""Maximum UTF-8 bytes of one path segment: NAME_MAX of the file systems in use."""

MAX_DEPTH: Final = 9
"""Maximum number of segments of a logical path, scope included."""

MAX_FILE_BYTES: Final = 1_048_576
"""Maximum bytes of one memory file that Muniment reads or writes; no quota can raise it."""

INDEX_NAME: Final = "MEMORY.md"
"""Name of the generated index in each root."""

INDEX_DIRECTORY: Final = "index"
"""The directory of generated index pages in each root."""

SAVED_NAME: Final = "memory-before-muniment"
"""Name, without suffix, of the entry that saves a file of the user that was at the path of an index."""
