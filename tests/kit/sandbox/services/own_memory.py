"""All readable memory of this or another process; used before the fence, and by the control."""

import os
from pathlib import Path

UNREADABLE = {"[vvar]", "[vvar_vclock]", "[vsyscall]"}
"""Pages of the kernel: not memory of a process, and not readable in this way."""


def regions():
    """Yield name and content of each readable mapping; None if the kernel denies access."""
    return mapped("self")


def mapped(pid):
    """Yield the same for another process, if it may be read."""
    mem = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, permissions, *more = line.split(maxsplit=5)
            if permissions.startswith("r"):
                start, end = (int(number, 16) for number in span.split("-"))
                name = more[3] if len(more) > 3 else "anonymous"
                yield name, None if name in UNREADABLE else _read(mem, start, end)
    finally:
        os.close(mem)


def _read(mem, start, end):
    try:  # After the end of a mapped file reads fail; data read before still counts.
        return os.pread(mem, end - start, start) or None
    except OSError:
        return None
