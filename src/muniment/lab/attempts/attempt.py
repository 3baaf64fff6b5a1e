"""The forbidden actions in one table, the code of each action, and the worker's part of a trial.

The code of an action is called an act.

- A1 An act makes its system calls by number, so that no C library rejects, replaces or retries them.
- A2 An act that succeeds does no harm: it touches only the targets, its own process or processes of the
  trial, and has no lasting effect on anything else. If an action needs privileges, the act passes arguments
  that the Linux kernel rejects after its check of privileges (`_expect_error`).
- A3 An act returns if the action really succeeded. It raises `OSError` with the errno of a denial, and
  `NotImplementedError` with the reason if it cannot run here.

Start with `ATTEMPTS`. Acts leave descriptors and mappings open until their process ends. This module is
separate from `trial`, which observes the worker from outside. This file is excluded from coverage, because
acts run only in throwaway workers: `tests/units/lab/test_attempts.py` runs them, and shows that each succeeds
without the fence.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import mmap
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from muniment.kernel.syscalls import LIBC, fstat, read_last_error
from muniment.names import FenceLayer
from muniment.sandbox.fence.calls import NUMBERS
from muniment.sandbox.fence.layers import MissingLayers
from muniment.sandbox.fence.wire import Channel

# -- attempt -----------------------------------------------------------------------------------------

DONE: Final = "done"
"""The outcome of an act that succeeded; any other outcome is the name of an error, or `UNTRIED`."""

UNTRIED: Final = "untried"
"""The outcome of an act that cannot run here."""

MACHINE: Final = os.uname().machine


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of attempts, created for one trial.

    Attributes:
        root: descriptor of the worker's only root, with the files that `trial.py` lists.
        connection: descriptor of the worker's socket; the broker has the other end.
        outside: absolute path of a directory next to that root.
        canary: a random text; the content of the secret file in `outside`.
        broker: id of the process that runs the trial.
        canary_address: address of the canary in the broker's memory.
        listener: descriptor of a socket in the broker.
        pipe: descriptor, in the broker, of the read end of a pipe that contains the canary.
        zygote: process id of the zygote.
        sibling: process id of another worker of that zygote.
        tcp: port on the loopback that accepts TCP connections.
        udp: port on the loopback that receives UDP datagrams.
        abstract: name of a listening abstract socket, without its NUL.
        handle: handle of the secret file, as name_to_handle_at(2) returns it, in hexadecimal; empty if the
            file has none.
        library: path of a shared object that no worker of the trial has loaded.
        needle: part of a harmless environment variable of the broker, in hexadecimal; empty if all harmless
            variables are missing.
    """

    root: int
    connection: int
    outside: str
    canary: str
    broker: int
    canary_address: int
    listener: int
    pipe: int
    zygote: int
    sibling: int
    tcp: int
    udp: int
    abstract: str
    handle: str
    library: str
    needle: str

    @property
    def folder(self) -> bytes:
        """Return the path of the directory outside the root, as bytes."""
        return self.outside.encode()

    def outside_path(self, name: str) -> bytes:
        """Return the path of the file `name` in the directory outside the root."""
        return f"{self.outside}/{name}".encode()

    @property
    def secret(self) -> bytes:
        """Return the path of the secret file outside the root."""
        return self.outside_path("secret")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One forbidden action.

    Attributes:
        name: unique name of the attempt.
        what: description for users, which follows "tries to".
        expected: the outcome with the full fence: an errno, a signal, another error's name, or `DONE` if the
            fence does not stop the action.
        stopped_by: layers that each stop the action alone, for any user. If empty, no layer stops it: a
            failure then depends on the clean process of the worker.
        act: the code of the action (rules A1 to A3 in the module docstring).
        ordinary: further layers that stop the action alone if the worker's user is not root.
        landlock_abi: the first Landlock ABI that stops the action, if Landlock is in `stopped_by`.
        by_openat: whether the act uses `openat`, which seccomp must allow on systems without `openat2`.
        consequence: for users, the effect of a success, if `what` does not state it.
    """

    name: str
    what: str
    expected: str
    stopped_by: frozenset[FenceLayer]
    act: Callable[[Targets], object]
    ordinary: frozenset[FenceLayer] = frozenset()
    landlock_abi: int = 1
    by_openat: bool = False
    consequence: str = ""

    def find_stopping_layers(self, abi: int, *, has_openat2: bool) -> frozenset[FenceLayer]:
        """Return the layers that stop the action on a system.

        Args:
            abi: version of the Landlock ABI.
            has_openat2: whether the system has the call `openat2`.
        """
        stopped = self.stopped_by if abi >= self.landlock_abi else self.stopped_by - {FenceLayer.LANDLOCK}
        return stopped if has_openat2 or not self.by_openat else stopped - {FenceLayer.SECCOMP}

    @property
    def is_residual(self) -> bool:
        """Return whether even the full fence does not stop the action."""
        return self.expected == DONE


# -- primitives --------------------------------------------------------------------------------------
#
# Building blocks of the acts.

AT_FDCWD: Final = -100
_BUFFER_BYTES: Final = 1024
"""Size in bytes of the buffers that acts use."""

_READ, _WRITE = os.O_RDONLY, os.O_WRONLY
_LIST: Final = _READ | os.O_DIRECTORY
_NEW: Final = _WRITE | os.O_CREAT | os.O_EXCL
_PRIVATE: Final = 0o600
_HANDLE_BYTES: Final = 128

_syscall, _dlopen = LIBC["syscall"], LIBC["dlopen"]
_syscall.restype, _dlopen.restype = ctypes.c_long, ctypes.c_void_p
_pthread_create, _pthread_join = LIBC["pthread_create"], LIBC["pthread_join"]


def make_system_call(name: str, *arguments: Any) -> int:
    """Make a system call and return its result.

    Args:
        name: name of the call, as in `sandbox.fence.calls.NUMBERS`.
        arguments: integers of any width, bytes, None for NULL, or ctypes pointers.

    Raises:
        OSError: the Linux kernel rejects the call.
        NotImplementedError: this machine has no such call.
    """
    number = NUMBERS[MACHINE].get(name)
    if number is None:
        raise NotImplementedError(f"{MACHINE} has no system call {name}")
    return _call_number(number, *arguments)


def _call_number(number: int, *arguments: Any) -> int:
    values = [ctypes.c_long(word) if isinstance(word, int) else word for word in (number, *arguments)]
    result: int = _syscall(*values)
    if result < 0:
        raise read_last_error()
    return result


def _expect_error(number: int, name: str, *arguments: Any) -> None:
    """Make a call that must end with the error `number`, after it passed every check that could forbid it.

    Raises:
        OSError: the call ended with another error.
    """
    try:
        make_system_call(name, *arguments)
    except OSError as error:
        if error.errno != number:
            raise


def _openat(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a file with the call that a C library uses, `openat`."""
    return make_system_call("openat", dir_fd, path, flags | os.O_CLOEXEC, mode)


def _openat2(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a file with `openat2`, which seccomp allows, without restrictions on path resolution."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, 0)
    return make_system_call("openat2", dir_fd, path, how, len(how))


def _open_either(path: bytes, flags: int) -> int:
    """Open a file with `openat2` or, if it is missing or denied, with `openat`."""
    try:
        return _openat2(AT_FDCWD, path, flags)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
        return _openat(AT_FDCWD, path, flags)


def _create_buffer() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(_BUFFER_BYTES)


def _read_into_buffer(name: str, fd: int, *position: int) -> bytes:
    """Return the bytes that a reading system call puts into a buffer."""
    buffer = _create_buffer()
    count = make_system_call(name, fd, buffer, _BUFFER_BYTES, *position)
    return buffer.raw[:count]


def _read(fd: int, position: int = 0) -> bytes:
    """Return the bytes of a file from a position on, at most one buffer."""
    return _read_into_buffer("pread64", fd, position)


def _require_content(content: bytes, expected: bytes) -> None:
    """Check that `content` contains `expected`; otherwise the act did not succeed.

    Raises:
        OSError: the content does not contain it (ENODATA).
    """
    if expected not in content:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))


def _read_secret(on: Targets, fd: int) -> None:
    _require_content(_read(fd), on.canary.encode())


def _write(fd: int) -> None:
    make_system_call("write", fd, b"x", 1)


def read_handle(path: bytes) -> bytes:
    """Return the handle of a file for open_by_handle_at(2).

    Raises:
        OSError: the Linux kernel rejects the call, or the file system has no handles.
    """
    handle = ctypes.create_string_buffer(struct.pack("=Ii", _HANDLE_BYTES, 0) + bytes(_HANDLE_BYTES))
    make_system_call("name_to_handle_at", AT_FDCWD, path, handle, ctypes.byref(ctypes.c_int()), 0)
    return handle.raw


def _map_memory(size: int, protection: int) -> int:
    return make_system_call("mmap", None, size, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def _open_pidfd(pid: int) -> int:
    return make_system_call("pidfd_open", pid, 0)


def _socket(family: int, kind: int) -> int:
    return make_system_call("socket", family, kind | socket.SOCK_CLOEXEC, 0)


def _pack_inet_address(port: int) -> bytes:
    """Return the `struct sockaddr_in` of a port on the loopback."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + b"\x7f\0\0\x01" + bytes(8)


def _connect(family: int, address: bytes) -> None:
    make_system_call("connect", _socket(family, socket.SOCK_STREAM), address, len(address))


def _connect_unix(name: bytes) -> None:
    """Connect to a Unix socket; `name` is the name in its `struct sockaddr_un`."""
    _connect(socket.AF_UNIX, struct.pack("=H", socket.AF_UNIX) + name)


# -- acts --------------------------------------------------------------------------------------------
#
# Acts of more than one line.

_ZEROS: Final = bytes(512)
_SYS_ADMIN: Final = 1 << 21
_X32_BIT: Final = 0x4000_0000
_CLONE_NEWUSER: Final = 0x1000_0000
_REMOUNT_BIND: Final = 0x1020
_PR_SET_DUMPABLE: Final = 4
_PROCESS_KEYRING: Final = -2
_PTRACE_SEIZE: Final = 0x4206
_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_READ_EXECUTE: Final = mmap.PROT_READ | mmap.PROT_EXEC
_TOO_MUCH: Final = 1 << 30
_TOO_MANY: Final = 200

_MARKER_TEXT: Final = b"mark of every worker of one zygote"
_MARKER: Final = ctypes.create_string_buffer(_MARKER_TEXT)
"""A text in the memory of each worker. Workers of one zygote share their memory layout, so its address is the
same in each of them.
"""

EXECUTED: Final = 42
"""Exit code of the program that attempts execute. The program does nothing except exit."""

_CODES: Final = {
    # mov eax, 60 (exit); mov edi, EXECUTED; syscall
    "x86_64": (62, bytes.fromhex("b83c000000bf2a0000000f05")),
    # mov x8, 93 (exit); mov x0, EXECUTED; svc 0
    "aarch64": (183, bytes.fromhex("a80b80d2400580d2010000d4")),
}
_ELF_HEADER_BYTES, _PROGRAM_HEADER_BYTES, _LOAD_ADDRESS = 64, 56, 0x40_0000
_NO_ARGUMENTS: Final = (ctypes.c_char_p * 1)(None)


def build_program() -> bytes:
    """Return the smallest program that the kernel of this machine loads: it exits with `EXECUTED`.

    Source: elf(5).
    """
    kind, code = _CODES[MACHINE]
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


@functools.cache
def _locate_initial_stack() -> tuple[int, int] | None:
    """Return address and size of the initial stack of this process, or None if they are unknown.

    The stack contains the initial environment. The result is computed before the fence, and cached.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - one word for it
            line = next((line for line in maps if line.rstrip().endswith("[stack]")), "0-0")
    except OSError:
        return None
    start, _, end = line.split()[0].partition("-")
    return int(start, 16), int(end, 16) - int(start, 16)


def _find_environment(on: Targets) -> None:
    """Search the initial stack, which the Linux kernel copied, for the broker's environment."""
    if not on.needle:
        raise NotImplementedError("the broker's environment contains none of PATH, HOME, PWD and LANG")
    stack = _locate_initial_stack()
    if stack is None:
        raise NotImplementedError("/proc does not show the stack")
    _require_content(ctypes.string_at(*stack), bytes.fromhex(on.needle))


def _read_metadata(on: Targets) -> None:
    size = fstat(_open_either(on.secret, os.O_PATH)).st_size
    _require_content(b"%d" % size, b"%d" % len(on.canary))


def _read_pipe(on: Targets) -> None:
    path = b"/proc/%d/fd/%d" % (on.broker, on.pipe)
    _require_content(
        _read_into_buffer("read", _openat2(AT_FDCWD, path, _READ | os.O_NONBLOCK)), on.canary.encode()
    )


def _read_memory(pid: int, address: int, expected: bytes) -> None:
    _require_content(_read(_openat2(AT_FDCWD, b"/proc/%d/mem" % pid, _READ), address), expected)


def _copy_memory(pid: int, address: int, expected: bytes) -> None:
    buffer = _create_buffer()
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(expected))
    remote = (ctypes.c_size_t * 2)(address, len(expected))
    make_system_call("process_vm_readv", pid, local, 1, remote, 1, 0)
    _require_content(buffer.raw, expected)


def _load_library(on: Targets) -> None:
    if not on.library:
        raise NotImplementedError("no library to load was found")
    if not _dlopen(on.library.encode(), os.RTLD_LAZY):
        raise ImportError(on.library)  # The C library does not return the errno.


def _open_too_many(on: Targets) -> None:
    for _ in range(_TOO_MANY):
        _openat2(on.root, b".", _LIST)


def _listen(_: Targets) -> None:
    fd, address = _socket(socket.AF_INET, socket.SOCK_STREAM), _pack_inet_address(0)
    make_system_call("bind", fd, address, len(address))
    make_system_call("listen", fd, 1)


def _send(on: Targets) -> None:
    fd, address = _socket(socket.AF_INET, socket.SOCK_DGRAM), _pack_inet_address(on.udp)
    make_system_call("sendto", fd, b"x", 1, 0, address, len(address))


def _connect_to_path(on: Targets) -> None:
    path = on.outside_path("socket")
    if len(path) >= 108:  # noqa: PLR2004  the limit of sockaddr_un
        raise NotImplementedError("the path of the temporary directory is too long for a socket")
    _connect_unix(path + b"\0")


def _read_clock(pid: int) -> None:
    # The kernel's number of the processor-time clock of another process; <linux/posix-timers.h>.
    processor_time = 2
    make_system_call("clock_gettime", ~pid << 3 | processor_time, _create_buffer())


def _fork(_: Targets) -> None:
    pid = make_system_call("clone", signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _start_thread(_: Targets) -> None:
    thread = ctypes.c_ulong()
    # The thread runs a function of the C library that ignores arguments.
    entry = ctypes.cast(LIBC["getpid"], ctypes.c_void_p)
    number = _pthread_create(ctypes.byref(thread), None, entry, None)
    if number != 0:
        raise OSError(number, os.strerror(number))
    _pthread_join(thread, None)


def _execute_memory(_: Targets) -> None:
    at_empty_path = 0x1000
    fd, code = make_system_call("memfd_create", b"program", 0), build_program()
    make_system_call("write", fd, code, len(code))
    make_system_call("execveat", fd, b"", _NO_ARGUMENTS, _NO_ARGUMENTS, at_empty_path)


def _join_namespace(_: Targets) -> None:
    # Landlock does not cover the internal file systems of the kernel.
    new_net = 0x4000_0000
    make_system_call("setns", _openat2(AT_FDCWD, b"/proc/self/ns/net", _READ), new_net)


def _open_handle(on: Targets) -> None:
    if not on.handle:
        raise NotImplementedError("the file system of the temporary directory has no handles")
    mount = _openat2(on.root, b".", _LIST)
    _read_secret(on, make_system_call("open_by_handle_at", mount, bytes.fromhex(on.handle), _READ))


def _make_bpf_map(_: Targets) -> None:
    array, key_bytes, value_bytes, entries = 2, 4, 4, 4
    attributes = struct.pack("=IIII", array, key_bytes, value_bytes, entries) + bytes(112)
    make_system_call("bpf", 0, attributes, len(attributes))


def _watch_events(_: Targets) -> None:
    software, size, dummy = 1, 112, 9
    excluding_kernel_and_hypervisor = 1 << 5 | 1 << 6
    attributes = struct.pack("=IIQQQQQ", software, size, dummy, 0, 0, 0, excluding_kernel_and_hypervisor)
    make_system_call("perf_event_open", attributes + bytes(size - len(attributes)), 0, -1, -1, 0)


def _create_shared_memory(_: Targets) -> None:
    ipc_private, ipc_rmid = 0, 0
    make_system_call(
        "shmctl", make_system_call("shmget", ipc_private, mmap.PAGESIZE, _PRIVATE), ipc_rmid, None
    )


def _gain_capability(_: Targets) -> None:
    version_3, this_process = 0x2008_0522, 0
    sets = struct.pack("=IIIIII", _SYS_ADMIN, _SYS_ADMIN, 0, 0, 0, 0)
    make_system_call("capset", struct.pack("=Ii", version_3, this_process), sets)


def _call_x32(_: Targets) -> None:
    if MACHINE != "x86_64":
        raise NotImplementedError("only x86-64 has a second table of 64-bit calls")
    _call_number(_X32_BIT | NUMBERS[MACHINE]["getpid"])


# -- table -------------------------------------------------------------------------------------------
#
# All attempts in the order of their execution: a name, the action, its result with the full fence, and the
# layers that each stop it alone; below that the act. Files come first, then memory, network, processes and
# the kernel itself.
#
# Most attempts on files are made twice. Libraries call `openat`, and seccomp denies it. Seccomp must allow
# `openat2`, so only Landlock stops it. Neither of them checks a path-only descriptor: it reveals metadata,
# and the server of the file system receives the name. So names can carry data out.

_LANDLOCK: Final = frozenset({FenceLayer.LANDLOCK})
_SECCOMP: Final = frozenset({FenceLayer.SECCOMP})
_EITHER: Final = _LANDLOCK | _SECCOMP
_LIMITS: Final = frozenset({FenceLayer.LIMITS})
_PRIVILEGE: Final = frozenset({FenceLayer.CAPABILITIES})
_DUMPABLE: Final = frozenset({FenceLayer.DUMPABLE})
_MDWE: Final = frozenset({FenceLayer.MDWE})
_NO_LAYER: Final = frozenset[FenceLayer]()

_NAMES_LEAK: Final = (
    "a network, FUSE or automounted file system outside the roots receives the names that are looked up, "
    "so data can leave that way"
)
_DEVICES_REACT: Final = (
    "a device outside the roots that reacts to an open is triggered; nothing is read, written or mapped"
)

# fmt: off
_ATTEMPT_ROWS: Final = (
    # -- reading
    Attempt("read-outside", "read a file outside the roots by its absolute path", "EPERM", _EITHER,
            lambda on: _read_secret(on, _openat(AT_FDCWD, on.secret, _READ)), by_openat=True),
    Attempt("read-outside-openat2", "read a file outside the roots by its absolute path, with openat2",
            "EACCES", _LANDLOCK, lambda on: _read_secret(on, _openat2(AT_FDCWD, on.secret, _READ))),
    Attempt("read-dotdot", "read a file outside the roots by .. from a root", "EPERM", _EITHER,
            lambda on: _read_secret(on, _openat(on.root, b"../outside/secret", _READ)), by_openat=True),
    Attempt("read-dotdot-openat2", "read a file outside the roots by .. from a root, with openat2",
            "EACCES", _LANDLOCK,
            lambda on: _read_secret(on, _openat2(on.root, b"../outside/secret", _READ))),
    Attempt("read-link", "read a file outside the roots through a link in a root", "EPERM", _EITHER,
            lambda on: _read_secret(on, _openat(on.root, b"link", _READ)), by_openat=True),
    Attempt("read-link-openat2", "read a file outside the roots through a link in a root, with openat2",
            "EACCES", _LANDLOCK, lambda on: _read_secret(on, _openat2(on.root, b"link", _READ))),
    Attempt("read-linked-directory", "read a file outside the roots through a linked directory in a root",
            "EACCES", _LANDLOCK, lambda on: _read_secret(on, _openat2(on.root, b"linked/secret", _READ))),
    Attempt("list-outside", "list a directory outside the roots", "EACCES", _LANDLOCK,
            lambda on: _require_content(
                _read_into_buffer("getdents64", _openat2(AT_FDCWD, on.folder, _LIST)), b"secret")),
    Attempt("read-own-environment", "read its own environment in /proc", "EACCES", _LANDLOCK,
            lambda _: _read(_openat2(AT_FDCWD, b"/proc/self/environ", _READ)), ordinary=_DUMPABLE),
    Attempt("read-zygote-environment", "read the zygote's environment in /proc", "EACCES", _LANDLOCK,
            lambda on: _read(_openat2(AT_FDCWD, b"/proc/%d/environ" % on.zygote, _READ))),
    Attempt("read-broker-environment", "read the broker's environment, which contains its keys, in /proc",
            "EACCES", _LANDLOCK,
            lambda on: _read(_openat2(AT_FDCWD, b"/proc/%d/environ" % on.broker, _READ))),
    Attempt("read-broker-pipe", "read a pipe of the broker through /proc", "EACCES", _LANDLOCK, _read_pipe),
    Attempt("metadata-outside", "read the size of a file outside the roots through a path-only descriptor",
            DONE, _NO_LAYER, _read_metadata, consequence=_NAMES_LEAK),
    Attempt("open-outside-for-neither",
            "open a file outside the roots for neither reading nor writing (access mode 3)",
            DONE, _NO_LAYER, lambda on: _open_either(on.secret, os.O_ACCMODE), consequence=_DEVICES_REACT),
    Attempt("stat-outside", "read the size of a file outside the roots with stat", "EPERM", _SECCOMP,
            lambda on: make_system_call("newfstatat", AT_FDCWD, on.secret, _create_buffer(), 0)),
    Attempt("access-outside", "check with access whether a file outside the roots is readable",
            "EPERM", _SECCOMP,
            lambda on: make_system_call("faccessat", AT_FDCWD, on.secret, os.R_OK)),
    Attempt("read-a-link", "read the target of a link", "EPERM", _SECCOMP,
            lambda on: make_system_call("readlinkat", on.root, b"link", _create_buffer(), _BUFFER_BYTES)),
    Attempt("change-directory", "change its working directory to one outside the roots", "EPERM", _SECCOMP,
            lambda on: make_system_call("chdir", on.folder)),
    # -- writing
    Attempt("write", "write into a file of a root", "EPERM", _EITHER | _LIMITS,
            lambda on: _write(_openat(on.root, b"written.md", _WRITE)), by_openat=True),
    Attempt("write-openat2", "write into a file of a root, with openat2", "EACCES", _EITHER | _LIMITS,
            lambda on: _write(_openat2(on.root, b"written.md", _WRITE))),
    Attempt("write-outside", "write into a file outside the roots", "EACCES", _EITHER | _LIMITS,
            lambda on: _write(_openat2(AT_FDCWD, on.outside_path("written"), _WRITE))),
    Attempt("empty-openat2", "empty a file of a root by opening it for reading, with openat2",
            "EACCES", _LANDLOCK,
            lambda on: _openat2(on.root, b"emptied.md", _READ | os.O_TRUNC), landlock_abi=3),
    Attempt("truncate", "shorten a file outside the roots", "SIGSYS", _EITHER,
            lambda on: make_system_call("truncate", on.outside_path("shortened"), 1), landlock_abi=3),
    Attempt("create", "create a file in a root", "EPERM", _EITHER,
            lambda on: _openat(on.root, b"new.md", _NEW, _PRIVATE), by_openat=True),
    Attempt("create-openat2", "create a file in a root, with openat2", "EACCES", _LANDLOCK,
            lambda on: _openat2(on.root, b"newer.md", _NEW, _PRIVATE)),
    Attempt("create-outside", "create a file outside the roots", "EACCES", _LANDLOCK,
            lambda on: _openat2(AT_FDCWD, on.outside_path("new"), _NEW, _PRIVATE)),
    Attempt("create-nameless", "create a file without a name in a root", "EACCES", _LANDLOCK,
            lambda on: _openat2(on.root, b".", _WRITE | os.O_TMPFILE, _PRIVATE)),
    Attempt("unlink", "delete a file of a root", "SIGSYS", _EITHER,
            lambda on: make_system_call("unlinkat", on.root, b"deleted.md", 0)),
    Attempt("rename", "rename a file of a root", "SIGSYS", _EITHER,
            lambda on: make_system_call("renameat2", on.root, b"old.md", on.root, b"renamed.md", 0)),
    Attempt("hard-link", "link a file outside the roots into a root", "SIGSYS", _EITHER,
            lambda on: make_system_call("linkat", AT_FDCWD, on.secret, on.root, b"hard.md", 0)),
    Attempt("symbolic-link", "make a symbolic link in a root", "SIGSYS", _EITHER,
            lambda on: make_system_call("symlinkat", b"/", on.root, b"soft.md")),
    Attempt("make-directory", "make a directory in a root", "SIGSYS", _EITHER,
            lambda on: make_system_call("mkdirat", on.root, b"made", 0o700)),
    Attempt("make-fifo", "make a FIFO in a root", "SIGSYS", _EITHER,
            lambda on: make_system_call("mknodat", on.root, b"fifo.md", stat.S_IFIFO | _PRIVATE, 0)),
    Attempt("change-mode", "change the mode of a file of a root", "SIGSYS", _SECCOMP,
            lambda on: make_system_call("fchmodat", on.root, b"moded.md", 0o640)),
    Attempt("change-mode-outside", "change the mode of a file outside the roots", "SIGSYS", _SECCOMP,
            lambda on: make_system_call("fchmodat", AT_FDCWD, on.secret, 0o640)),
    Attempt("change-times", "change the times of a file outside the roots", "SIGSYS", _SECCOMP,
            lambda on: make_system_call("utimensat", AT_FDCWD, on.secret, None, 0)),
    Attempt("set-attribute", "set an extended attribute of a file outside the roots", "SIGSYS", _SECCOMP,
            lambda on: make_system_call("setxattr", on.secret, b"user.muniment", b"x", 1, 0)),
    # -- memory: of other processes, executable, too much of it, and remains in its own
    Attempt("read-broker-memory", "read the broker's memory in /proc", "EACCES", _LANDLOCK,
            lambda on: _read_memory(on.broker, on.canary_address, on.canary.encode())),
    Attempt("copy-broker-memory", "copy the broker's memory", "SIGSYS", _EITHER,
            lambda on: _copy_memory(on.broker, on.canary_address, on.canary.encode())),
    Attempt("read-sibling-memory", "read another worker's memory in /proc", "EACCES", _LANDLOCK,
            lambda on: _read_memory(on.sibling, ctypes.addressof(_MARKER), _MARKER_TEXT), ordinary=_DUMPABLE),
    Attempt("copy-sibling-memory", "copy another worker's memory", "SIGSYS", _EITHER,
            lambda on: _copy_memory(on.sibling, ctypes.addressof(_MARKER), _MARKER_TEXT), ordinary=_DUMPABLE),
    Attempt("map-executable", "map memory that is writable and executable", "SIGSYS", _SECCOMP | _MDWE,
            lambda _: _map_memory(mmap.PAGESIZE, _WRITABLE | mmap.PROT_EXEC)),
    Attempt("make-executable", "make writable memory executable", "SIGSYS", _SECCOMP | _MDWE,
            lambda _: make_system_call(
                "mprotect", _map_memory(mmap.PAGESIZE, _WRITABLE), mmap.PAGESIZE, _READ_EXECUTE)),
    Attempt("load-library", "load a library", "ImportError", _EITHER, _load_library),
    Attempt("import-module", "import a new module", "ModuleNotFoundError", _EITHER,
            lambda _: importlib.import_module("colorsys")),
    Attempt("much-memory", "allocate 1 GiB", "ENOMEM", _LIMITS, lambda _: _map_memory(_TOO_MUCH, _WRITABLE)),
    Attempt("many-descriptors", "open 200 directories", "EMFILE", _LIMITS, _open_too_many),
    Attempt("find-environment", "find the broker's environment in its own memory", "ENODATA", _NO_LAYER,
            _find_environment),
    # -- the network, and sockets of this machine
    Attempt("tcp-connect", "connect to a TCP port", "SIGSYS", _EITHER,
            lambda on: _connect(socket.AF_INET, _pack_inet_address(on.tcp)), landlock_abi=4),
    Attempt("tcp-listen", "listen on a TCP port", "SIGSYS", _EITHER, _listen, landlock_abi=4),
    Attempt("udp-send", "send a datagram", "SIGSYS", _SECCOMP, _send),
    Attempt("unix-path", "connect to a socket with a path", "SIGSYS", _SECCOMP, _connect_to_path),
    Attempt("unix-abstract", "connect to an abstract socket", "SIGSYS", _EITHER,
            lambda on: _connect_unix(b"\0" + on.abstract.encode()), landlock_abi=6),
    Attempt("netlink", "access the kernel's network configuration", "SIGSYS", _SECCOMP,
            lambda _: _socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    # A byte on the worker's own connection, which the reader ignores unless it requests it.
    Attempt("out-of-band", "send a byte out of band to the broker", "SIGSYS", _SECCOMP,
            lambda on: make_system_call("sendto", on.connection, b"x", 1, socket.MSG_OOB, None, 0)),
    Attempt("packets", "read raw packets", "SIGSYS", _SECCOMP | _PRIVILEGE,
            lambda _: _socket(socket.AF_PACKET, socket.SOCK_RAW)),
    # -- other processes, and becoming another one
    Attempt("kill-broker", "send the broker a signal", "EPERM", _EITHER,
            lambda on: make_system_call("kill", on.broker, 0), landlock_abi=6),
    Attempt("kill-zygote", "send the zygote a signal", "EPERM", _EITHER,
            lambda on: make_system_call("kill", on.zygote, 0), landlock_abi=6),
    Attempt("kill-sibling", "send another worker a signal", "EPERM", _EITHER,
            lambda on: make_system_call("kill", on.sibling, 0), landlock_abi=6),
    Attempt("signal-broker", "send the broker a signal through a descriptor", "SIGSYS", _EITHER,
            lambda on: make_system_call("pidfd_send_signal", _open_pidfd(on.broker), 0, None, 0),
            landlock_abi=6),
    Attempt("take-descriptor-of-broker", "copy a descriptor from the broker", "SIGSYS", _EITHER,
            lambda on: make_system_call("pidfd_getfd", _open_pidfd(on.broker), on.listener, 0)),
    Attempt("trace-broker", "trace the broker", "SIGSYS", _EITHER,
            lambda on: make_system_call("ptrace", _PTRACE_SEIZE, on.broker, 0, 0)),
    Attempt("trace-sibling", "trace another worker", "SIGSYS", _EITHER,
            lambda on: make_system_call("ptrace", _PTRACE_SEIZE, on.sibling, 0, 0), ordinary=_DUMPABLE),
    Attempt("read-limits-of-broker", "read the limits of the broker with the call that also changes them",
            "EPERM", _SECCOMP,
            lambda on: make_system_call(
                "prlimit64", on.broker, resource.RLIMIT_NOFILE, None, _create_buffer())),
    Attempt("other-process-clock", "read the processor time of the broker", "EPERM", _SECCOMP,
            lambda on: _read_clock(on.broker)),
    Attempt("fork", "start a process", "SIGSYS", _SECCOMP, _fork, ordinary=_LIMITS),
    Attempt("thread", "start a thread", "EPERM", _SECCOMP, _start_thread, ordinary=_LIMITS),
    Attempt("execute", "execute a program", "SIGSYS", _EITHER,
            lambda on: make_system_call(
                "execveat", AT_FDCWD, on.outside_path("program"), _NO_ARGUMENTS, _NO_ARGUMENTS, 0)),
    Attempt("execute-memory", "execute a program from memory",
            "SIGSYS", _SECCOMP | _LIMITS, _execute_memory),
    # -- the kernel: privileges, namespaces, mounts, and calls with a history of vulnerabilities
    Attempt("mount", "change a mount", "SIGSYS", _SECCOMP | _LANDLOCK | _PRIVILEGE,
            lambda on: _expect_error(errno.EINVAL, "mount", None, on.folder, None, _REMOUNT_BIND, None)),
    Attempt("change-root", "change its root to a directory outside the roots",
            "SIGSYS", _SECCOMP | _PRIVILEGE, lambda on: make_system_call("chroot", on.folder)),
    Attempt("new-user-namespace", "enter a new user namespace", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("unshare", _CLONE_NEWUSER)),
    Attempt("join-namespace", "join the broker's network namespace",
            "SIGSYS", _SECCOMP | _PRIVILEGE, _join_namespace),
    Attempt("name-to-handle", "get a handle of a file outside the roots",
            "SIGSYS", _SECCOMP, lambda on: read_handle(on.secret)),
    Attempt("open-by-handle", "open a file outside the roots by its handle",
            "SIGSYS", _SECCOMP | _LANDLOCK | _PRIVILEGE, _open_handle),
    Attempt("gain-capability", "regain a capability", "SIGSYS", _SECCOMP | _PRIVILEGE, _gain_capability),
    Attempt("set-user", "set its user", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("setuid", os.getuid())),
    Attempt("be-traceable", "make itself traceable again", "EPERM", _SECCOMP,
            lambda _: make_system_call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)),
    Attempt("reboot", "reboot the machine", "SIGSYS", _SECCOMP | _PRIVILEGE,
            lambda _: _expect_error(errno.EINVAL, "reboot", 0, 0, 0, None)),
    Attempt("rename-machine", "rename the machine", "SIGSYS", _SECCOMP | _PRIVILEGE,
            lambda _: _expect_error(errno.EINVAL, "sethostname", _ZEROS, -1)),
    Attempt("io-uring", "make system calls through io_uring", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("io_uring_setup", 4, ctypes.create_string_buffer(_ZEROS))),
    Attempt("bpf", "create a BPF map", "SIGSYS", _SECCOMP, _make_bpf_map),
    Attempt("perf", "watch events of the processor", "SIGSYS", _SECCOMP, _watch_events),
    Attempt("userfaultfd", "intercept page faults", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("userfaultfd", 1)),
    Attempt("keyring", "access the keys of its session", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("keyctl", 0, _PROCESS_KEYRING, 1)),
    Attempt("add-key", "store a key in the kernel", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("add_key", b"user", b"muniment", b"x", 1, _PROCESS_KEYRING)),
    Attempt("shared-memory", "create shared memory", "SIGSYS", _SECCOMP, _create_shared_memory),
    Attempt("personality", "read its execution domain with the call that also changes it", "SIGSYS", _SECCOMP,
            lambda _: make_system_call("personality", 0xFFFF_FFFF)),
    Attempt("x32", "make a system call from another table", "SIGSYS", _SECCOMP, _call_x32),
)
# fmt: on

ATTEMPTS: Final[Mapping[str, Attempt]] = {attempt.name: attempt for attempt in _ATTEMPT_ROWS}
"""All attempts by name, in the order of the table."""


# -- service -----------------------------------------------------------------------------------------
#
# The worker's part of a trial: one attempt, and the response if the worker survives.
#
#     worker → broker  hello{missing}
#     broker → worker  attempt{name, targets}    → outcome{outcome, why}
#
# The imports of all acts happen before the fence is active. `trial.py` contains the broker's part.

ROOT = "root"
"""The scope of the only root of a worker in a trial."""


def warm() -> None:
    """Compute the values that cannot be read after the fence is active."""
    _locate_initial_stack()


def serve_attempt(sock: socket.socket, roots: Mapping[str, int], missing: MissingLayers) -> None:
    """Report the missing layers, then make the attempt that the broker requests, and send its outcome.

    Raises:
        EOFError: the broker sends no request.
    """
    channel = Channel(sock)
    channel.send({"t": "hello", "missing": missing})
    header, _ = channel.receive(0)
    targets: Any = header["targets"]
    attempt = ATTEMPTS[str(header["name"])]
    outcome, why = _make_attempt(attempt, Targets(roots[ROOT], sock.fileno(), **targets))
    channel.send({"t": "outcome", "outcome": outcome, "why": why})


def _make_attempt(attempt: Attempt, targets: Targets) -> tuple[str, str]:
    """Make an attempt and return its outcome, and the reason if it could not run (otherwise empty)."""
    try:
        attempt.act(targets)
    except NotImplementedError as reason:
        return UNTRIED, str(reason)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, f"errno {error.errno}"), ""
    except (ImportError, MemoryError) as error:
        return type(error).__name__, ""
    return DONE, ""
