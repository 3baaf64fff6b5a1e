"""All that a process can read of its own memory, or another's; used before the fence, and by the control."""

import os
from pathlib import Path

UNREADABLE = {"[vvar]", "[vvar_vclock]", "[vsyscall]"}
"""The kernel's own pages: no memory of any process, and not to be read this way."""


def regions():
    """Name and content of each readable mapping; None where the kernel gives none."""
    return mapped("self")


def mapped(pid):
    """As `regions`, of another process, where that may be read."""
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
    try:  # Behind the end of a mapped file, say, there is nothing; what was read before still counts.
        return os.pread(mem, end - start, start) or None
    except OSError:
        return None
