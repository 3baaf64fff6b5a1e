"""The throwaway targets of a trial: a root, an outside, sockets, and a canary in this process's memory.

Everything that an attempt may change lies in one private temporary directory, each file for one attempt only,
so that no attempt depends on what another one did:

    root      link → outside/secret, linked → outside, and the files that are to be changed
    outside   secret, program, socket, and the files that are to be changed
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muniment.confine.attempts.attempt import AT_FDCWD, MACHINE, call
from muniment.confine.attempts.processes import program
from muniment.confine.pool import import_directories

IN_ROOT: Final = ("written.md", "emptied.md", "deleted.md", "old.md", "moded.md")
IN_OUTSIDE: Final = ("written", "shortened")

_HANDLE_BYTES: Final = 128
_NEEDLE_BYTES: Final = 64
_NO_SECRETS: Final = (b"PATH", b"HOME", b"PWD", b"LANG")
"""Variables that a worker of a trial may hear of; the others may hold keys."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that stands.

    Attributes:
        directory: what holds it.
        root: the root that workers are given; a descriptor.
        targets: fields of `Targets` by name, but for the processes of the trial, `root` and `connection`.
    """

    directory: Path
    root: int
    targets: dict[str, Any]


@contextlib.contextmanager
def standing(parent: Path | None = None) -> Iterator[Stage]:
    """Set a stage, and clear it away.

    Args:
        parent: where its directory is made; None: where this system keeps temporary files.

    Raises:
        OSError: it cannot be set.
    """
    canary = secrets.token_hex(16)
    kept = ctypes.create_string_buffer(canary.encode())
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="muniment-trial-", dir=parent))
        )
        outside = _fill(directory, canary)
        root = os.open(directory / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, root)
        targets = {
            "outside": str(outside),
            "canary": canary,
            "broker": os.getpid(),
            "canary_address": ctypes.addressof(kept),
            **_sockets(stack, outside),
            "pipe": _pipe(stack, canary),
            "handle": _handle(outside / "secret"),
            "library": _library(),
            "needle": _needle().hex(),
        }
        yield Stage(directory, root, targets)


def _fill(directory: Path, canary: str) -> Path:
    root, outside = directory / "root", directory / "outside"
    for each in (root, outside):
        each.mkdir(mode=0o700)
    for path in (*(root / name for name in IN_ROOT), *(outside / name for name in IN_OUTSIDE)):
        path.write_text("text\n", encoding="utf-8")
    (outside / "secret").write_text(canary, encoding="utf-8")
    (outside / "program").write_bytes(program(MACHINE))
    (outside / "program").chmod(0o700)
    (root / "link").symlink_to(outside / "secret")
    (root / "linked").symlink_to(outside)
    return outside


def _sockets(stack: contextlib.ExitStack, outside: Path) -> dict[str, Any]:
    tcp = stack.enter_context(socket.socket())
    tcp.bind(("127.0.0.1", 0))
    tcp.listen()
    udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    abstract.bind("")  # The kernel chooses a name that nobody has.
    abstract.listen()
    with contextlib.suppress(OSError):  # A path may be too long for a socket; the attempt says so.
        path = stack.enter_context(socket.socket(socket.AF_UNIX))
        path.bind(str(outside / "socket"))
        path.listen()
    return {
        "listener": tcp.fileno(),
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "abstract": abstract.getsockname()[1:].decode(),
    }


def _pipe(stack: contextlib.ExitStack, canary: str) -> int:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    for fd in (reading, writing):
        stack.callback(os.close, fd)
    os.write(writing, canary.encode())
    return reading


def _handle(path: Path) -> str:
    """The handle of a file, in hexadecimal; empty: its file system gives none, or a filter forbids to ask."""
    handle = ctypes.create_string_buffer(struct.pack("=Ii", _HANDLE_BYTES, 0) + bytes(_HANDLE_BYTES))
    try:
        call("name_to_handle_at", AT_FDCWD, os.fsencode(path), handle, ctypes.byref(ctypes.c_int()), 0)
    except OSError:
        return ""
    return handle.raw.hex()


def _library() -> str:
    """A library that nothing in a worker of a trial needs; empty: there is none."""
    (directory,) = import_directories(("pydantic_core",))
    return str(next(Path(directory, "pydantic_core").glob("*.so"), ""))


def _needle() -> bytes:
    """The longest variable of this process's environment that is no secret, or its beginning; empty: none.

    A process has all of its environment or none, so that one variable tells of all.
    """
    variables = (b"%s=%s" % (name, value) for name in _NO_SECRETS if (value := os.environb.get(name)))
    return max(variables, key=len, default=b"")[:_NEEDLE_BYTES]
