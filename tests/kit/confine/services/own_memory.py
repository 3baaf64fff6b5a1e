"""All that a process can read of its own memory; used before the fence, and by the control."""

from __future__ import annotations

import os
from collections.abc import Iterator

UNREADABLE = {"[vvar]", "[vvar_vclock]", "[vsyscall]"}
"""The kernel's own pages: no memory of any process, and not to be read this way."""


def regions() -> Iterator[tuple[str, bytes | None]]:
    """Name and content of each readable mapping; None where the kernel gives none."""
    mem = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        for line in _maps().splitlines():
            span, permissions, *more = line.split(maxsplit=5)
            if permissions.startswith("r"):
                start, end = (int(number, 16) for number in span.split("-"))
                name = more[3] if len(more) > 3 else "anonymous"
                yield name, None if name in UNREADABLE else _read(mem, start, end)
    finally:
        os.close(mem)


def _maps() -> str:
    fd = os.open("/proc/self/maps", os.O_RDONLY)
    with os.fdopen(fd, "rb") as maps:
        return maps.read().decode()


def _read(mem: int, start: int, end: int) -> bytes | None:
    pieces = []
    while start < end:
        try:
            piece = os.pread(mem, min(end - start, 1 << 20), start)
        except OSError:
            # Behind the end of a mapped file, say; what was read before still counts.
            break
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces) or None
