"""What a name in a memory is, by its path and kind; and whether what stands there is what was seen before.

- N1. Everything is reached by handle; no link is followed, and nothing but regular `.md` files is read.
- N2. No entry is dropped silently: one that cannot be read is listed as unreadable, a name that is no entry's
  (outside the grammar, a link, a FIFO, a file with a second name, too deep) is odd, with the reason. Dot
  names, files without `.md`, and the index are no entries and passed over, and nothing is seen of what is in
  dot directories, odd directories and `index/`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from muniment.confine.root import Kind
from muniment.errors import printable
from muniment.names import MAX_DEPTH, MAX_PATH_BYTES, Scope, joined
from muniment.policy.grammar import FILE_SUFFIX, segment_problem
from muniment.store.index import is_index_path

MAX_NAMES: Final = 100_000
"""Names of one root that are looked at: five times the files that the default policy allows."""

Stamp = tuple[int, int, int, int]
"""By what a file is known to be the one that was read: inode, size, `mtime_ns`, `ctime_ns`."""

_SECOND: Final = 1_000_000_000
_RACY_NS: Final = 50_000_000
"""Within so many nanoseconds two changes may bear one time: a kernel takes it from a clock that ticks every 1
to 10 ms; the rest is for that clock's lag."""
_RACY_COARSE_NS: Final = 2 * _SECOND + _RACY_NS
"""Likewise where times are whole seconds: FAT counts in steps of two."""
_MASK: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Odd:
    """A name on disk that is no entry's though it may look like one.

    Attributes:
        path: the path inside the scope in printable form; not a path to open.
        reason: why, in a few words.
    """

    path: str
    reason: str


def odd(path: str, reason: str) -> Odd:
    """What is odd at `path`, any text inside a scope; "" is the root."""
    return Odd(printable(path or "."), reason)


@dataclass(frozen=True, slots=True)
class Named:
    """What a name is, judged without opening it.

    Attributes:
        is_entry: its file is an entry, if it can be opened as one.
        is_directory: it is to be walked.
        odd: why it is neither though it may look like it; None also for what is passed over.
    """

    is_entry: bool = False
    is_directory: bool = False
    odd: str | None = None


_PASSED_OVER: Final = Named()
_ENTRY: Final = Named(is_entry=True)
_DIRECTORY: Final = Named(is_directory=True)
_SPECIAL: Final = Named(odd="a link or special file")


def named(scope: Scope, directory: str, name: str, kind: Kind) -> Named:
    """What `name` in `directory` is (N2)."""
    path = joined(directory, name)
    if name.startswith(".") or is_index_path(path):
        return _PASSED_OVER
    if problem := _path_problem(scope, path, name):
        return Named(odd=problem)
    if kind == "directory":
        return _DIRECTORY
    if kind == "other":
        return _SPECIAL
    return _ENTRY if name.endswith(FILE_SUFFIX) else _PASSED_OVER


def stamp(status: os.stat_result) -> Stamp:
    """What of a status is recorded, as integers that a database takes: times may lie in any year."""
    return (
        status.st_ino & _MASK,
        status.st_size,
        status.st_mtime_ns & _MASK,
        status.st_ctime_ns & _MASK,
    )


def is_racy(status: os.stat_result, now_ns: int) -> bool:
    """Whether what was looked at may still change without its times telling.

    Args:
        status: as it was just before it was looked at.
        now_ns: the wall clock, no later than `status`.

    Does not hold for a file system whose clock is not this machine's and runs behind it.
    """
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    return newest > now_ns - (_RACY_NS if newest % _SECOND else _RACY_COARSE_NS)


def _path_problem(scope: Scope, path: str, name: str) -> str | None:
    if problem := segment_problem(name):
        return problem
    if path.count("/") + 2 > MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} levels"
    if len(f"{scope}/{path}".encode()) > MAX_PATH_BYTES:
        return f"a path longer than {MAX_PATH_BYTES} bytes"
    return None
