"""What a tree looks like, and what has changed between two looks."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ROOTS: Final = ("user", "project")
"""Scope roots."""

FORBIDDEN: Final = ("outside", "user-evil")
"""Trees that nothing may read or change."""

HASHED_BYTES: Final = 16 << 20
"""Files above this size are compared by size, blocks, times and both ends: a sparse one may have 4 GiB."""

_END_BYTES: Final = 1 << 16
_AGED_NS: Final = 1_000_000_000_000_000_000
"""An access time (2001) so old that the next read replaces it, on every mount that keeps access times."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a photograph keeps of one name; `accessed` is compared in forbidden trees only."""

    kind: str
    mode: int
    links: int
    size: int
    content: str
    modified: int
    accessed: int


Photograph = dict[str, Entry]
"""Entries by path relative to the photographed tree."""


def photograph(tree: Path, *, age: bool) -> Photograph:
    """Every name beneath a tree; no link is followed.

    Args:
        tree: a directory.
        age: also set all access times back, so that the next photograph shows who was read.
    """
    found: Photograph = {}
    _photograph(tree, "", found, age=age)
    return found


def changes(before: Photograph, after: Photograph, *, roots: bool, swapped: bool = False) -> Iterator[str]:
    """What changed that may not have, a line a name.

    Args:
        before: taken with `age`.
        after: taken without.
        roots: whether the scope roots may not have changed either. They may have been read.
        swapped: whether somebody exchanged names in them; this alone changes the times of directories.
    """
    for top in FORBIDDEN:
        yield from _differences(part(before, top), part(after, top))
    beside = {_top(name) for name in (*before, *after) if name} - {*FORBIDDEN, *ROOTS}
    yield from (f"{name!r} stands beside the roots" for name in sorted(beside))
    for top in ROOTS if roots else ():
        looks = (_without_times(part(look, top), swapped=swapped) for look in (before, after))
        yield from _differences(*looks)


def changed_names(before: Photograph, after: Photograph) -> list[str]:
    """Names beneath the roots that stand for something else now, whatever their times."""
    return [
        name
        for name in sorted({*before, *after})
        if _top(name) in ROOTS and _substance(before.get(name)) != _substance(after.get(name))
    ]


def part(look: Photograph, top: str) -> Photograph:
    """What lies beneath one name of the tree."""
    return {name: entry for name, entry in look.items() if _top(name) == top}


def _substance(entry: Entry | None) -> tuple[str, int, str] | None:
    return (entry.kind, entry.mode, entry.content) if entry else None


def _top(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def _without_times(look: Photograph, *, swapped: bool) -> Photograph:
    return {
        name: replace(entry, accessed=0, modified=0 if swapped and entry.kind != "file" else entry.modified)
        for name, entry in look.items()
    }


def _differences(before: Photograph, after: Photograph) -> list[str]:
    """What changed, a line a name."""
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            lines.append(f"{name!r} {'appeared' if old is None else 'vanished'}")
        elif old != new:
            fields = [field for field in Entry.__slots__ if getattr(old, field) != getattr(new, field)]
            lines.append(f"{name!r} changed: {', '.join(fields)}")
    return lines


def _photograph(path: Path, name: str, found: Photograph, *, age: bool) -> None:
    info = path.lstat()
    names: list[str] = []
    content = ""
    try:
        if stat.S_ISDIR(info.st_mode):
            names = sorted(os.listdir(path))  # noqa: PTH208 - names, not paths
        elif stat.S_ISREG(info.st_mode):
            content = _digest(path, info)
        elif stat.S_ISLNK(info.st_mode):
            content = os.fsdecode(path.readlink())
    except PermissionError:
        content = "unreadable"
    if age:
        os.utime(path, ns=(_AGED_NS, info.st_mtime_ns), follow_symlinks=False)
        info = path.lstat()
    found[name] = Entry(
        _kind(info.st_mode),
        stat.S_IMODE(info.st_mode),
        info.st_nlink,
        info.st_size,
        content,
        info.st_mtime_ns,
        info.st_atime_ns,
    )
    for child in names:
        _photograph(path / child, f"{name}/{child}" if name else child, found, age=age)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else f"other {stat.S_IFMT(mode):o}"


def _digest(path: Path, info: os.stat_result) -> str:
    with path.open("rb") as file:
        if info.st_size <= HASHED_BYTES:
            return hashlib.sha256(file.read()).hexdigest()
        head = file.read(_END_BYTES)
        file.seek(-_END_BYTES, os.SEEK_END)
        return hashlib.sha256(head + file.read() + str(info.st_blocks).encode()).hexdigest()
