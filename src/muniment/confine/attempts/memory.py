"""Attempts on memory: that of other processes, executable, too much of it, and what is left in its own."""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
import os
from typing import Final

from muniment.confine.attempts.attempt import (
    AT_FDCWD,
    READ_BYTES,
    Attempt,
    Targets,
    Untried,
    call,
    must_hold,
    openat2,
    read,
)
from muniment.confine.syscalls import LIBC
from muniment.names import FenceLayer

_LANDLOCK: Final = frozenset({FenceLayer.LANDLOCK})
_SECCOMP: Final = frozenset({FenceLayer.SECCOMP})
_EITHER: Final = _LANDLOCK | _SECCOMP
_DUMPABLE: Final = frozenset({FenceLayer.DUMPABLE})
_LIMITS: Final = frozenset({FenceLayer.LIMITS})
_MDWE: Final = frozenset({FenceLayer.MDWE})

_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_ANONYMOUS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_PAGE: Final = mmap.PAGESIZE
_TOO_MUCH: Final = 1 << 30
_TOO_MANY: Final = 200
_UNUSED_MODULE: Final = "colorsys"

_MARK_TEXT: Final = b"mark of every worker of one zygote"
_MARK: Final = ctypes.create_string_buffer(_MARK_TEXT)
"""Workers of one zygote share their layout, so that this stands at the same address in another one."""

_dlopen = LIBC["dlopen"]
_dlopen.restype = ctypes.c_void_p
_RTLD_LAZY: Final = 1


@functools.cache
def initial_stack() -> tuple[int, int] | None:
    """Where this process keeps the environment that it was started with: address and bytes; None: unknown.

    Asked before the fence, and kept.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - one word for it
            line = next((line for line in maps if line.rstrip().endswith("[stack]")), "0-0")
    except OSError:
        return None
    start, _, end = line.split()[0].partition("-")
    return int(start, 16), int(end, 16) - int(start, 16)


def _read_by_file(pid: int, address: int, expected: bytes) -> None:
    must_hold(read(openat2(AT_FDCWD, b"/proc/%d/mem" % pid, os.O_RDONLY), address), expected)


def _read_by_call(pid: int, address: int, expected: bytes) -> None:
    buffer = ctypes.create_string_buffer(READ_BYTES)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(expected))
    there = (ctypes.c_size_t * 2)(address, len(expected))
    call("process_vm_readv", pid, here, 1, there, 1, 0)
    must_hold(buffer.raw, expected)


def _map(size: int, protection: int) -> int:
    return call("mmap", None, size, protection, _ANONYMOUS, -1, 0)


def _make_executable(_: Targets) -> None:
    call("mprotect", _map(_PAGE, _WRITABLE), _PAGE, mmap.PROT_READ | mmap.PROT_EXEC)


def _load_library(targets: Targets) -> None:
    if not targets.library:
        raise Untried("no library was found that no worker has loaded")
    if not _dlopen(targets.library.encode(), _RTLD_LAZY):
        raise ImportError(targets.library)  # The C library keeps the errno to itself.


def _open_too_many(targets: Targets) -> None:
    for _ in range(_TOO_MANY):
        openat2(targets.root, b".", os.O_RDONLY | os.O_DIRECTORY)


def _find_environment(targets: Targets) -> None:
    """Search the initial stack, where the kernel put it, for what the broker's environment says."""
    if not targets.needle:
        raise Untried("the broker's environment has none of PATH, HOME, PWD and LANG to look for")
    stack = initial_stack()
    if stack is None:
        raise Untried("/proc does not say where the stack is")
    must_hold(ctypes.string_at(*stack), bytes.fromhex(targets.needle))


MEMORY: Final = (
    Attempt(
        "read-broker-memory",
        "read the broker's memory in /proc",
        lambda on: _read_by_file(on.broker, on.canary_address, on.canary.encode()),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "copy-broker-memory",
        "copy the broker's memory",
        lambda on: _read_by_call(on.broker, on.canary_address, on.canary.encode()),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "read-sibling-memory",
        "read another worker's memory in /proc",
        lambda on: _read_by_file(on.sibling, ctypes.addressof(_MARK), _MARK_TEXT),
        "EACCES",
        _LANDLOCK,
        _DUMPABLE,
    ),
    Attempt(
        "copy-sibling-memory",
        "copy another worker's memory",
        lambda on: _read_by_call(on.sibling, ctypes.addressof(_MARK), _MARK_TEXT),
        "SIGSYS",
        _EITHER,
        _DUMPABLE,
    ),
    Attempt(
        "map-executable",
        "map memory that is writable and executable",
        lambda _: _map(_PAGE, _WRITABLE | mmap.PROT_EXEC),
        "SIGSYS",
        _SECCOMP | _MDWE,
    ),
    Attempt(
        "make-executable",
        "make memory executable that was writable",
        _make_executable,
        "SIGSYS",
        _SECCOMP | _MDWE,
    ),
    Attempt("load-library", "load a library", _load_library, "ImportError", _EITHER),
    Attempt(
        "import-module",
        "import a module that was not imported before",
        lambda _: importlib.import_module(_UNUSED_MODULE),
        "ModuleNotFoundError",
        _EITHER,
    ),
    Attempt("much-memory", "take 1 GiB of memory", lambda _: _map(_TOO_MUCH, _WRITABLE), "ENOMEM", _LIMITS),
    Attempt("many-descriptors", "open 200 directories", _open_too_many, "EMFILE", _LIMITS),
    Attempt(
        "find-environment",
        "find the broker's environment in its own memory",
        _find_environment,
        "ENODATA",
        frozenset(),
    ),
)
"""All of them."""
