r"""Independent checks: changes in trees that must not be touched, and secrets in outputs.

The module shares no code with the program under test: it opens files by path, with the standard library only.
Use it only for directories that the test created, while no other process works in them.

    outside = {"outside": tmp_path / "outside"}
    before = take_snapshot(outside)
    outcome = box.call("read_file", {"path": "user/link.md"})
    assert compare_snapshots(before, take_snapshot(outside)) == []
    assert find_text(CANARY, {"answer": outcome, "log": log, "state": tmp_path / "state"}) == []

Detected: names that appear or vanish; changes of kind, mode, number of links, size, bytes (by digest), link
targets and modification times; reads of files and listings of directories.

Not detected: owners and extended attributes; a change that was undone together with its times; reads on a
mount without access times (`noatime`); reads of metadata alone, which leave no trace. `find_text` searches
for the exact text of the secret: choose one that no escaping or encoding changes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

HASHED_BYTES: Final = 16 << 20
"""Files with more bytes are compared by size, blocks, times and both ends only: a sparse file may have 4 GiB.
"""

_END_BYTES: Final = 1 << 16
_OLD_ACCESS_NS: Final = 1_000_000_000_000_000_000
"""A time (2001) that is so old that the next read updates it, on every mount that records access times."""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """The recorded state of one name.

    Attributes:
        kind: `directory`, `file`, or `other` with the type bits.
        mode: permission bits.
        links: number of hard links.
        size: size in bytes.
        content: digest of a file, target of a link; otherwise empty.
        modified: modification time in nanoseconds.
        read: whether the file was read, or the directory listed, since the previous snapshot; without meaning
            in the first snapshot.
    """

    kind: str
    mode: int
    links: int
    size: int
    content: str
    modified: int
    read: bool


Snapshot = Mapping[str, SnapshotEntry]
"""The recorded states by path, such as `user/a.md`; `user` itself is the directory of the tree."""


def take_snapshot(trees: Mapping[str, Path]) -> Snapshot:
    """Record the state of every name in some trees; links are not followed.

    Resets the access time of every file, so that the next snapshot shows which files were read in between.
    Files that this user cannot read are recorded as unreadable.

    Args:
        trees: the directory of each tree by its name in the snapshot; one name may be empty.

    Raises:
        OSError: a tree is missing, or another process is changing it.
    """
    found: dict[str, SnapshotEntry] = {}
    for name, tree in trees.items():
        _record_entry(tree, name, found)
    return found


def compare_snapshots(before: Snapshot, after: Snapshot, *, reads: bool = True) -> list[str]:
    """Return the changes between two snapshots, one line for each name, in order.

    Args:
        before: the earlier snapshot.
        after: the next snapshot of the same trees.
        reads: whether reads and listings count as changes.
    """
    return [
        line
        for name in sorted({*before, *after})
        for line in _describe_change(name, before, after, reads=reads)
    ]


def find_text(text: str, values: Mapping[str, object]) -> list[str]:
    """Return the places where `text` occurs in some values, such as `answer.text` or `events[3].path`.

    Args:
        text: the secret; plain ASCII, because JSON or percent-encoding would change any other text.
        values: the values to search, by name. Texts, bytes, mappings (with their keys), sequences, sets and
            dataclasses are searched at any depth. For a `Path`, its files are searched; for any other value,
            its `repr`.
    """
    return [location for name, value in values.items() for location in _search(text, name, value)]


def _record_entry(path: Path, name: str, found: dict[str, SnapshotEntry]) -> None:
    info = path.lstat()
    names: list[str] = []
    content = ""
    try:
        if stat.S_ISDIR(info.st_mode):
            names = sorted(os.listdir(path))  # noqa: PTH208 - names, not paths
        elif stat.S_ISREG(info.st_mode):
            content = _hash_content(path, info)
        elif stat.S_ISLNK(info.st_mode):
            content = os.fsdecode(path.readlink())
    except PermissionError:
        content = "unreadable"
    os.utime(path, ns=(_OLD_ACCESS_NS, info.st_mtime_ns), follow_symlinks=False)
    found[name] = SnapshotEntry(
        _name_kind(info.st_mode),
        stat.S_IMODE(info.st_mode),
        info.st_nlink,
        info.st_size,
        content,
        info.st_mtime_ns,
        info.st_atime_ns != _OLD_ACCESS_NS,
    )
    for child in names:
        _record_entry(path / child, f"{name}/{child}" if name else child, found)


def _name_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else f"other {stat.S_IFMT(mode):o}"


def _hash_content(path: Path, info: os.stat_result) -> str:
    with path.open("rb") as file:
        if info.st_size <= HASHED_BYTES:
            return hashlib.sha256(file.read()).hexdigest()
        head = file.read(_END_BYTES)
        file.seek(-_END_BYTES, os.SEEK_END)
        return hashlib.sha256(head + file.read() + str(info.st_blocks).encode()).hexdigest()


def _describe_change(name: str, before: Snapshot, after: Snapshot, *, reads: bool) -> Iterator[str]:
    old, new = before.get(name), after.get(name)
    if old is None or new is None:
        yield f"{name!r} {'appeared' if old is None else 'vanished'}"
        return
    changed = [
        field.name
        for field in fields(SnapshotEntry)
        if field.name != "read" and getattr(old, field.name) != getattr(new, field.name)
    ]
    if changed:
        yield f"{name!r} changed: {', '.join(changed)}"
    if reads and new.read:
        yield f"{name!r} was read"


def _search(text: str, location: str, value: object) -> Iterator[str]:
    if isinstance(value, Path):
        for path in (value, *sorted(value.rglob("*"))):
            file_location = location if path == value else f"{location}:{path.relative_to(value).as_posix()}"
            if text.encode() in _read_visible(path):
                yield file_location
    elif isinstance(value, bytes | bytearray | memoryview):
        if text.encode() in bytes(value):
            yield location
    elif (parts := _list_members(value)) is not None:
        for step, part in parts:
            yield from _search(text, f"{location}{step}", part)
    elif text in (value if isinstance(value, str) else repr(value)):
        yield location


def _read_visible(path: Path) -> bytes:
    """Return the name and the content of `path`; for a link, its target instead of the content.

    FIFOs and other special files are not opened.
    """
    if path.is_symlink():
        return os.fsencode(path.name) + b"\0" + os.fsencode(path.readlink())
    return os.fsencode(path.name) + b"\0" + (path.read_bytes() if path.is_file() else b"")


def _list_members(value: Any) -> list[tuple[str, object]] | None:
    """Return the members of a container, each with its step in the location, or None for other values."""
    if isinstance(value, Mapping):
        keys = [(f"[key {number}]", key) for number, key in enumerate(value)]
        return keys + [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return None
