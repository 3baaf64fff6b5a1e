"""Puts a small file of the state directory into place: whole and on disk, or not at all.

- P1 a name leads to all of the content or to none of it, also where the disk is full or the process dies.
- P2 the file is 0600 from the beginning on; no link is written through.
- P3 of many who put a file where none is to be replaced, one does.
"""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex
from typing import Final

_PRIVATE: Final = 0o600


def put(path: Path, content: bytes, *, over: bool) -> None:
    """Write a file.

    Args:
        path: its name.
        content: all of it.
        over: replace what stands there.

    Raises:
        FileExistsError: something stands there, and is not to be replaced.
        OSError: the system refuses. Nothing is changed or left.

    Cost: two syncs and a listing of the directory, some milliseconds.
    """
    unfinished = path.with_name(f"{path.name}.{token_hex(4)}.unfinished")
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        try:
            left = content
            while left:  # A disk that is nearly full takes a part, and refuses the next.
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        if over:
            unfinished.rename(path)
        else:
            os.link(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    for left_over in path.parent.glob(f"{path.name}*.unfinished"):  # By processes that died.
        left_over.unlink(missing_ok=True)
    sync(path.parent)


def sync(directory: Path) -> None:
    """Have the names in a directory on disk.

    Raises:
        OSError: the system refuses.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
