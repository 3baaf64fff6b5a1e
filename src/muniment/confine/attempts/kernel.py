"""Attempts on the kernel itself: privileges, namespaces, mounts, and calls that have a history of holes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from typing import Final

from muniment.confine.attempts.attempt import (
    AT_FDCWD,
    MACHINE,
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
from muniment.confine.syscall_table import NUMBERS
from muniment.names import FenceLayer

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
