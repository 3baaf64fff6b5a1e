"""Attempts on other processes, and to become another one."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from typing import Final

from muniment.confine.attempts.attempt import AT_FDCWD, Attempt, Targets, call
from muniment.confine.syscalls import LIBC
from muniment.names import FenceLayer

_LANDLOCK: Final = frozenset({FenceLayer.LANDLOCK})
_SECCOMP: Final = frozenset({FenceLayer.SECCOMP})
_EITHER: Final = _LANDLOCK | _SECCOMP
_DUMPABLE: Final = frozenset({FenceLayer.DUMPABLE})
_LIMITS: Final = frozenset({FenceLayer.LIMITS})

EXECUTED: Final = 42
"""Exit code of the program that attempts execute; it does nothing else."""

_PTRACE_SEIZE: Final = 0x4206
_AT_EMPTY_PATH: Final = 0x1000
_CLOCK_SCHED: Final = 2
_CODES: Final = {
    # mov eax, 60 (exit); mov edi, EXECUTED; syscall
    "x86_64": (62, bytes.fromhex("b83c000000bf2a0000000f05")),
    # mov x8, 93 (exit); mov x0, EXECUTED; svc 0
    "aarch64": (183, bytes.fromhex("a80b80d2400580d2010000d4")),
}
_ELF_HEADER_BYTES, _PROGRAM_HEADER_BYTES, _LOAD_ADDRESS = 64, 56, 0x40_0000

_pthread_create, _pthread_join = LIBC["pthread_create"], LIBC["pthread_join"]


def program(machine: str) -> bytes:
    """The smallest program that a kernel loads: it exits with `EXECUTED`.

    Source: elf(5).
    """
    kind, code = _CODES[machine]
    start = _ELF_HEADER_BYTES + _PROGRAM_HEADER_BYTES
    size = start + len(code)
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(identity, 2, kind, 1, _LOAD_ADDRESS + start, _ELF_HEADER_BYTES, 0, 0),
        *(_ELF_HEADER_BYTES, _PROGRAM_HEADER_BYTES, 1, 0, 0, 0),
    )
    readable_and_executable = 5
    segment = (1, readable_and_executable, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 0x1000)
    return header + struct.pack("<IIQQQQQQ", *segment) + code


def _signal(pid: int) -> None:
    call("pidfd_send_signal", call("pidfd_open", pid, 0), 0, None, 0)


def _take_descriptor(targets: Targets) -> None:
    call("pidfd_getfd", call("pidfd_open", targets.broker, 0), targets.listener, 0)


def _read_limits(pid: int) -> None:
    call("prlimit64", pid, resource.RLIMIT_NOFILE, None, ctypes.create_string_buffer(16))


def _read_clock(pid: int) -> None:
    # How the kernel numbers the clock of the processor time of another process; <linux/posix-timers.h>.
    call("clock_gettime", ~pid << 3 | _CLOCK_SCHED, ctypes.create_string_buffer(16))


def _fork(_: Targets) -> None:
    pid = call("clone", signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _start_thread(_: Targets) -> None:
    thread = ctypes.c_ulong()
    # What the thread runs is a function of the C library, which takes no notice of arguments.
    entry = ctypes.cast(LIBC["getpid"], ctypes.c_void_p)
    number = _pthread_create(ctypes.byref(thread), None, entry, None)
    if number != 0:
        raise OSError(number, os.strerror(number))
    _pthread_join(thread, None)


def _execute(targets: Targets) -> None:
    call("execveat", AT_FDCWD, f"{targets.outside}/program".encode(), _NO_WORDS, _NO_WORDS, 0)


def _execute_memory(_: Targets) -> None:
    fd, code = call("memfd_create", b"program", 0), program(os.uname().machine)
    call("write", fd, code, len(code))
    call("execveat", fd, b"", _NO_WORDS, _NO_WORDS, _AT_EMPTY_PATH)


_NO_WORDS: Final = (ctypes.c_char_p * 1)(None)

PROCESSES: Final = (
    Attempt(
        "kill-broker",
        "send the broker a signal",
        lambda on: call("kill", on.broker, 0),
        "EPERM",
        _EITHER,
        landlock_abi=6,
    ),
    Attempt(
        "kill-zygote",
        "send the zygote a signal",
        lambda on: call("kill", on.zygote, 0),
        "EPERM",
        _EITHER,
        landlock_abi=6,
    ),
    Attempt(
        "kill-sibling",
        "send another worker a signal",
        lambda on: call("kill", on.sibling, 0),
        "EPERM",
        _EITHER,
        landlock_abi=6,
    ),
    Attempt(
        "signal-broker",
        "send the broker a signal by a descriptor",
        lambda on: _signal(on.broker),
        "SIGSYS",
        _EITHER,
        landlock_abi=6,
    ),
    Attempt(
        "take-descriptor-of-broker",
        "take a descriptor out of the broker",
        _take_descriptor,
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "trace-broker",
        "trace the broker",
        lambda on: call("ptrace", _PTRACE_SEIZE, on.broker, 0, 0),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "trace-sibling",
        "trace another worker",
        lambda on: call("ptrace", _PTRACE_SEIZE, on.sibling, 0, 0),
        "SIGSYS",
        _EITHER,
        _DUMPABLE,
    ),
    Attempt(
        "read-limits-of-broker",
        "read the limits of the broker, which is how they are changed",
        lambda on: _read_limits(on.broker),
        "EPERM",
        _SECCOMP,
    ),
    Attempt(
        "other-process-clock",
        "read how much processor time the broker took",
        lambda on: _read_clock(on.broker),
        "EPERM",
        _SECCOMP,
    ),
    Attempt("fork", "start a process", _fork, "SIGSYS", _SECCOMP, _LIMITS),
    Attempt("thread", "start a thread", _start_thread, "EPERM", _SECCOMP, _LIMITS),
    Attempt("execute", "execute a program", _execute, "SIGSYS", _EITHER),
    Attempt(
        "execute-memory", "execute a program out of memory", _execute_memory, "SIGSYS", _SECCOMP | _LIMITS
    ),
)
"""All of them."""
