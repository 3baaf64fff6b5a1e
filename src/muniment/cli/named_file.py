"""A file that a person named on the command line, or standard input for `-`."""

from __future__ import annotations

import sys
from pathlib import Path

from muniment.errors import ConfigInvalid, printable


def read_named(path: Path, limit: int) -> bytes:
    """All of it.

    Raises:
        ConfigInvalid: it cannot be read, or holds more than `limit` bytes.
    """
    shown = printable(str(path))
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with path.open("rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise ConfigInvalid(f"{shown} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ConfigInvalid(f"{shown} holds more than {limit} bytes")
    return content
