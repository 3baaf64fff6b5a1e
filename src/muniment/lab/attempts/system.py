"""Attempts on the system: its kernel, memory, network and processes; and the worker's end of a trial.

Apart from `trial.py`, which looks on from outside the worker.
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
import struct
from collections.abc import Mapping
from typing import Any, Final

from muniment.fence.calls import NUMBERS
from muniment.fence.layers import Missing
from muniment.fence.wire import Channel
from muniment.kernel.syscalls import LIBC
from muniment.lab.attempts.attempt import (
    AT_FDCWD,
    DONE,
    FILES,
    MACHINE,
    READ_BYTES,
    UNTRIED,
    Attempt,
    Targets,
    Untried,
    call,
    call_number,
    must_hold,
    openat2,
    reaches,
    read,
)
from muniment.names import FenceLayer

# -- kernel ------------------------------------------------------------------------------------------
#
# Attempts on the kernel itself: privileges, namespaces, mounts, and calls that have a history of holes.

_SECCOMP: Final = frozenset({FenceLayer.SECCOMP})
_PRIVILEGE: Final = frozenset({FenceLayer.CAPABILITIES})
_LANDLOCK: Final = frozenset({FenceLayer.LANDLOCK})

_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_REMOUNT_BIND: Final = 0x1020
_X32_BIT: Final = 0x4000_0000
_ENTRIES: Final = 4
_ZEROS: Final = bytes(512)
_HANDLE_BYTES: Final = 128
_PR_SET_DUMPABLE: Final = 4
_PROCESS_KEYRING: Final = -2
_SYS_ADMIN: Final = 1 << 21


def _join_namespace(_: Targets) -> None:
    # Landlock takes no charge of the file systems that the kernel keeps for itself.
    call("setns", openat2(AT_FDCWD, b"/proc/self/ns/net", os.O_RDONLY), _CLONE_NEWNET)


def _name_to_handle(targets: Targets) -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", _HANDLE_BYTES, 0) + bytes(_HANDLE_BYTES))
    call("name_to_handle_at", AT_FDCWD, targets.secret, handle, ctypes.byref(ctypes.c_int()), 0)


def _open_handle(targets: Targets) -> None:
    if not targets.handle:
        raise Untried("the file system of the temporary directory gives no handles")
    mount = openat2(targets.root, b".", os.O_RDONLY | os.O_DIRECTORY)
    must_hold(
        read(call("open_by_handle_at", mount, bytes.fromhex(targets.handle), os.O_RDONLY)),
        targets.canary.encode(),
    )


def _make_bpf_map(_: Targets) -> None:
    array, key_bytes, value_bytes = 2, 4, 4
    attributes = struct.pack("=IIII", array, key_bytes, value_bytes, _ENTRIES) + bytes(112)
    call("bpf", 0, attributes, len(attributes))


def _watch_events(_: Targets) -> None:
    software, size, dummy = 1, 112, 9
    excluding_kernel_and_hypervisor = 1 << 5 | 1 << 6
    attributes = struct.pack("=IIQQQQQ", software, size, dummy, 0, 0, 0, excluding_kernel_and_hypervisor)
    call("perf_event_open", attributes + bytes(size - len(attributes)), 0, -1, -1, 0)


def _shared_memory(_: Targets) -> None:
    ipc_private, ipc_rmid = 0, 0
    call("shmctl", call("shmget", ipc_private, mmap.PAGESIZE, 0o600), ipc_rmid, None)


def _gain_capability(_: Targets) -> None:
    version_3, this_process = 0x2008_0522, 0
    sets = struct.pack("=IIIIII", _SYS_ADMIN, _SYS_ADMIN, 0, 0, 0, 0)
    call("capset", struct.pack("=Ii", version_3, this_process), sets)


def _other_abi(_: Targets) -> None:
    if MACHINE != "x86_64":
        raise Untried("only x86-64 has a second table of 64-bit calls")
    call_number(_X32_BIT | NUMBERS[MACHINE]["getpid"])


KERNEL: Final = (
    Attempt(
        "mount",
        "change a mount",
        lambda on: reaches(errno.EINVAL, "mount", None, on.outside.encode(), None, _REMOUNT_BIND, None),
        "SIGSYS",
        _SECCOMP | _LANDLOCK | _PRIVILEGE,
        privileged=True,
    ),
    Attempt(
        "change-root",
        "take a directory outside for the root of its file system",
        lambda on: call("chroot", on.outside.encode()),
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
    Attempt(
        "new-user-namespace",
        "enter a user namespace of its own",
        lambda _: call("unshare", _CLONE_NEWUSER),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "join-namespace",
        "join the broker's network namespace",
        _join_namespace,
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
    Attempt("name-to-handle", "get a handle of a file outside", _name_to_handle, "SIGSYS", _SECCOMP),
    Attempt(
        "open-by-handle",
        "open a file outside by its handle",
        _open_handle,
        "SIGSYS",
        _SECCOMP | _LANDLOCK | _PRIVILEGE,
        privileged=True,
    ),
    Attempt(
        "gain-capability",
        "take a capability back",
        _gain_capability,
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
    Attempt(
        "set-user",
        "set its user",
        lambda _: call("setuid", os.getuid()),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "be-traceable",
        "make itself traceable again",
        lambda _: call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0),
        "EPERM",
        _SECCOMP,
    ),
    Attempt(
        "reboot",
        "reboot the machine",
        lambda _: reaches(errno.EINVAL, "reboot", 0, 0, 0, None),
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
    Attempt(
        "rename-machine",
        "give the machine another name",
        lambda _: reaches(errno.EINVAL, "sethostname", _ZEROS, -1),
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
    Attempt(
        "io-uring",
        "make calls through a ring of memory",
        lambda _: call("io_uring_setup", _ENTRIES, ctypes.create_string_buffer(_ZEROS)),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "bpf", "make a map for programs in the kernel", _make_bpf_map, "SIGSYS", _SECCOMP, privileged=True
    ),
    Attempt("perf", "watch events of the processor", _watch_events, "SIGSYS", _SECCOMP),
    Attempt(
        "userfaultfd",
        "hold up page faults",
        lambda _: call("userfaultfd", 1),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "keyring",
        "reach the keys of its session",
        lambda _: call("keyctl", 0, _PROCESS_KEYRING, 1),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "add-key",
        "leave a key in the kernel",
        lambda _: call("add_key", b"user", b"muniment", b"x", 1, _PROCESS_KEYRING),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt("shared-memory", "make shared memory", _shared_memory, "SIGSYS", _SECCOMP),
    Attempt(
        "personality",
        "read its execution domain, which is how it is changed",
        lambda _: call("personality", 0xFFFF_FFFF),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt("x32", "make a call of another table", _other_abi, "SIGSYS", _SECCOMP),
)
"""All of them."""


# -- memory ------------------------------------------------------------------------------------------
#
# Attempts on memory: that of other processes, executable, too much of it, and what is left in its own.

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


# -- network -----------------------------------------------------------------------------------------
#
# Attempts on the network and on sockets of this machine.

_LOOPBACK: Final = b"\x7f\0\0\x01"


def _internet(port: int) -> bytes:
    """`struct sockaddr_in` of a port on the loopback."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + _LOOPBACK + bytes(8)


def _unix(name: bytes) -> bytes:
    """`struct sockaddr_un`."""
    return struct.pack("=H", socket.AF_UNIX) + name


def _socket(family: int, kind: int) -> int:
    return call("socket", family, kind | socket.SOCK_CLOEXEC, 0)


def _connect_tcp(targets: Targets) -> None:
    _connect(socket.AF_INET, _internet(targets.tcp))


def _connect(family: int, address: bytes) -> None:
    call("connect", _socket(family, socket.SOCK_STREAM), address, len(address))


def _listen(_: Targets) -> None:
    fd, address = _socket(socket.AF_INET, socket.SOCK_STREAM), _internet(0)
    call("bind", fd, address, len(address))
    call("listen", fd, 1)


def _send(targets: Targets) -> None:
    fd, address = _socket(socket.AF_INET, socket.SOCK_DGRAM), _internet(targets.udp)
    call("sendto", fd, b"x", 1, 0, address, len(address))


def _send_out_of_band(targets: Targets) -> None:
    """Leave a byte on the worker's own connection, which a reader who does not ask for it passes over."""
    call("sendto", targets.connection, b"x", 1, socket.MSG_OOB, None, 0)


def _connect_to_path(targets: Targets) -> None:
    path = f"{targets.outside}/socket".encode()
    if len(path) >= 108:  # noqa: PLR2004  sockaddr_un holds no longer one
        raise Untried("the temporary directory has too long a name for a socket")
    _connect(socket.AF_UNIX, _unix(path + b"\0"))


NETWORK: Final = (
    Attempt("tcp-connect", "connect to a TCP port", _connect_tcp, "SIGSYS", _EITHER, landlock_abi=4),
    Attempt("tcp-listen", "listen on a TCP port", _listen, "SIGSYS", _EITHER, landlock_abi=4),
    Attempt("udp-send", "send a datagram", _send, "SIGSYS", _SECCOMP),
    Attempt("unix-path", "connect to a socket with a path", _connect_to_path, "SIGSYS", _SECCOMP),
    Attempt(
        "unix-abstract",
        "connect to an abstract socket",
        lambda on: _connect(socket.AF_UNIX, _unix(b"\0" + on.abstract.encode())),
        "SIGSYS",
        _EITHER,
        landlock_abi=6,
    ),
    Attempt(
        "netlink",
        "speak with the kernel's network configuration",
        lambda _: _socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt("out-of-band", "send a byte out of band to the broker", _send_out_of_band, "SIGSYS", _SECCOMP),
    Attempt(
        "packets",
        "read raw packets",
        lambda _: _socket(socket.AF_PACKET, socket.SOCK_RAW),
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
)
"""All of them."""


# -- processes ---------------------------------------------------------------------------------------
#
# Attempts on other processes, and to become another one.

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


# -- table -------------------------------------------------------------------------------------------
#
# All attempts.

ATTEMPTS: Final[Mapping[str, Attempt]] = {
    attempt.name: attempt for attempt in (*FILES, *MEMORY, *NETWORK, *PROCESSES, *KERNEL)
}
"""By name, in the order in which they are tried."""


# -- service -----------------------------------------------------------------------------------------
#
# A worker's end of a trial: one attempt, and the answer, if the worker lives to give one.
#
#     worker → broker  hello{missing}
#     broker → worker  attempt{name, targets}    → outcome{outcome, why}
#
# Everything that an act needs is imported before the fence. `trial.py` is the other end.

ROOT = "root"
"""The scope of the one root that a worker of a trial gets."""


def warm() -> None:
    """Look up what no worker may look up any more."""
    initial_stack()


def serve(sock: socket.socket, roots: Mapping[str, int], missing: Missing) -> None:
    """Say what is missing, then make the attempt that the broker names.

    Raises:
        EOFError: it names none.
    """
    channel = Channel(sock)
    channel.send({"t": "hello", "missing": missing})
    header, _ = channel.receive(0)
    described: Any = header["targets"]
    attempt = ATTEMPTS[str(header["name"])]
    outcome, why = outcome_of(attempt, Targets(roots[ROOT], sock.fileno(), **described))
    channel.send({"t": "outcome", "outcome": outcome, "why": why})


def outcome_of(attempt: Attempt, targets: Targets) -> tuple[str, str]:
    """Make an attempt: what came of it, and for one that could not be made why."""
    try:
        attempt.act(targets)
    except Untried as reason:
        return UNTRIED, str(reason)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, f"errno {error.errno}"), ""
    except (ImportError, MemoryError) as error:
        return type(error).__name__, ""
    return DONE, ""
