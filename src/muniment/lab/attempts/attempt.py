"""An attempt: one forbidden thing as data, and how it is done.

- A1 an act makes its calls by number, so that no C library refuses, replaces or retries them.
- A2 an act that succeeds harms nothing: it touches the stage, its own process or processes of the trial,
  and changes nothing that outlives them. Where only privileged arguments would do, it passes some that the
  kernel refuses behind its check of privilege (`reaches`).
- A3 it returns when the thing was really done, and raises `OSError` with the errno of a refusal.

Acts leave descriptors and mappings to the end of their process. Excluded from coverage, like the modules of
the acts, since they run in throwaway workers only: driven by `tests/units/lab/test_attempts.py`, where
each also succeeds without the fence.

Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from muniment.fence.calls import NUMBERS
from muniment.kernel.syscalls import LIBC, fstat, last_error
from muniment.names import FenceLayer

# -- attempt -----------------------------------------------------------------------------------------

DONE: Final = "done"
"""What an act that went through answers; any other answer names an error."""

UNTRIED: Final = "untried"
"""What an act answers that has nothing to be tried on here."""

AT_FDCWD: Final = -100
MACHINE: Final = os.uname().machine
READ_BYTES: Final = 64

_PATH_FLAGS: Final = os.O_PATH | os.O_CLOEXEC

_syscall = LIBC["syscall"]
_syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Targets:
    """What attempts are aimed at; all of it made by the stage, for one trial.

    Attributes:
        root: descriptor of the worker's one root, which holds what `stage.py` lists.
        connection: descriptor of the worker's socket, whose other end the broker has.
        outside: a directory beside that root; absolute.
        canary: what the secret file outside says.
        broker: process id of whoever runs the trial.
        canary_address: where the canary stands in the broker's memory.
        listener: descriptor of a socket in the broker.
        pipe: descriptor, in the broker, of the end to read of a pipe that holds the canary.
        zygote: process id.
        sibling: process id of another worker of that zygote.
        tcp: port on the loopback that accepts.
        udp: port on the loopback that receives.
        abstract: name of a listening abstract socket, without its NUL.
        handle: of the secret file, as name_to_handle_at(2) gives it, in hexadecimal; empty: it has none.
        library: a shared object that no worker of the trial has loaded.
        needle: part of an environment variable of the broker that is no secret, in hexadecimal; empty: it has
            none.
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
    def secret(self) -> bytes:
        """The file outside whose content nobody may learn."""
        return f"{self.outside}/secret".encode()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One forbidden thing.

    Attributes:
        name: unique.
        what: for people, after "tries to".
        act: does it (A1 to A3).
        expected: what the full fence makes of it: an errno, a signal, another error's name, or `DONE` for
            what it leaves open.
        stopped_by: layers each of which stops it alone, whoever runs it. Empty: none does, and where it
            does not succeed, that rests on the worker's clean process.
        ordinary: further layers that stop it alone where the worker's user is not root.
        privileged: the kernel itself refuses it to whoever is not root with all capabilities.
        landlock_abi: Landlock stops it from this one on, where it is said to.
        by_openat: it opens by that call, which seccomp has to let through where a system has no `openat2`.
        consequence: for people, what follows where it succeeds, if `what` does not say it already.
    """

    name: str
    what: str
    act: Callable[[Targets], object]
    expected: str
    stopped_by: frozenset[FenceLayer]
    ordinary: frozenset[FenceLayer] = frozenset()
    privileged: bool = False
    landlock_abi: int = 1
    by_openat: bool = False
    consequence: str = ""

    def stopped_with(self, abi: int, *, has_openat2: bool) -> frozenset[FenceLayer]:
        """`stopped_by`, where Landlock has this ABI."""
        stopped = self.stopped_by if abi >= self.landlock_abi else self.stopped_by - {FenceLayer.LANDLOCK}
        return stopped if has_openat2 or not self.by_openat else stopped - {FenceLayer.SECCOMP}

    @property
    def is_residual(self) -> bool:
        """Whether the full fence leaves it open."""
        return self.expected == DONE


class Untried(Exception):
    """There is nothing here to try it on; the message says why."""


def call(name: str, *arguments: Any) -> int:
    """Make a system call.

    Args:
        name: as `syscall_table.NUMBERS` has it.
        arguments: integers of any width, bytes, None for NULL, or ctypes pointers.

    Raises:
        OSError: the kernel refuses.
        Untried: this machine has no such call.
    """
    number = NUMBERS[MACHINE].get(name)
    if number is None:
        raise Untried(f"{MACHINE} has no {name}")
    return call_number(number, *arguments)


def call_number(number: int, *arguments: Any) -> int:
    """`call`, by number."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in (number, *arguments)]
    result: int = _syscall(*words)
    if result < 0:
        raise last_error()
    return result


def reaches(number: int, name: str, *arguments: Any) -> None:
    """Make a call whose arguments end in the error `number` once everything that could forbid it did not.

    Raises:
        OSError: it ended in another.
    """
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno != number:
            raise


def openat(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open as a C library does."""
    return call("openat", dir_fd, path, flags | os.O_CLOEXEC, mode)


def openat2(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open by the call that seccomp lets through, and ask the kernel to resolve whatever there is."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, 0)
    return call("openat2", dir_fd, path, how, len(how))


def open_path(path: bytes) -> int:
    """A descriptor that only names a file, by the call that the filter of this worker lets through."""
    try:
        return openat2(AT_FDCWD, path, _PATH_FLAGS)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
        return openat(AT_FDCWD, path, _PATH_FLAGS)


def read(fd: int, position: int = 0) -> bytes:
    """The bytes of a file at a position."""
    buffer = ctypes.create_string_buffer(READ_BYTES)
    count = call("pread64", fd, buffer, READ_BYTES, position)
    return buffer.raw[:count]


def must_hold(content: bytes, expected: bytes) -> None:
    """Take nothing for a success that did not bring the canary.

    Raises:
        OSError: ENODATA; it did not.
    """
    if expected not in content:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))


# -- files -------------------------------------------------------------------------------------------
#
# Attempts on files: reading outside the roots, and changing anything anywhere.
#
# Most are made twice. `openat` is what libraries call, and seccomp refuses it; `openat2` it must let
# through, so there Landlock stands alone. What neither judges is a descriptor that only names a file: its
# metadata is learned, and whoever serves the file system hears the name, so what is written into names can
# leave that way.

_LANDLOCK: Final = frozenset({FenceLayer.LANDLOCK})
_SECCOMP: Final = frozenset({FenceLayer.SECCOMP})
_EITHER: Final = _LANDLOCK | _SECCOMP
_LIMITS: Final = frozenset({FenceLayer.LIMITS})

_LIST: Final = os.O_RDONLY | os.O_DIRECTORY
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NEITHER: Final = os.O_ACCMODE
_PRIVATE: Final = 0o600
_BUFFER_BYTES: Final = 1024


def _read_secret(targets: Targets, fd: int) -> None:
    must_hold(read(fd), targets.canary.encode())


def _list(targets: Targets) -> None:
    fd = openat2(AT_FDCWD, targets.outside.encode(), _LIST)
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    count = call("getdents64", fd, buffer, _BUFFER_BYTES)
    must_hold(buffer.raw[:count], b"secret")


def _read_pipe(targets: Targets) -> None:
    fd = openat2(AT_FDCWD, b"/proc/%d/fd/%d" % (targets.broker, targets.pipe), os.O_RDONLY | os.O_NONBLOCK)
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    count = call("read", fd, buffer, _BUFFER_BYTES)
    must_hold(buffer.raw[:count], targets.canary.encode())


def _metadata(targets: Targets) -> None:
    size = fstat(open_path(targets.secret)).st_size
    must_hold(b"%d" % size, b"%d" % len(targets.canary))


def _open_for_neither(targets: Targets) -> None:
    try:
        openat2(AT_FDCWD, targets.secret, _NEITHER)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
        openat(AT_FDCWD, targets.secret, _NEITHER)


def _stat(targets: Targets) -> None:
    call("newfstatat", AT_FDCWD, targets.secret, ctypes.create_string_buffer(_BUFFER_BYTES), 0)


def _where_link_leads(targets: Targets) -> None:
    call("readlinkat", targets.root, b"link", ctypes.create_string_buffer(_BUFFER_BYTES), _BUFFER_BYTES)


def _write(fd: int) -> None:
    call("write", fd, b"x", 1)


def _set_attribute(targets: Targets) -> None:
    call("setxattr", targets.secret, b"user.muniment", b"x", 1, 0)


_READING: Final = (
    Attempt(
        "read-outside",
        "read a file outside by its absolute path",
        lambda on: _read_secret(on, openat(AT_FDCWD, on.secret, os.O_RDONLY)),
        "EPERM",
        _EITHER,
        by_openat=True,
    ),
    Attempt(
        "read-outside-openat2",
        "read a file outside by its absolute path, by openat2",
        lambda on: _read_secret(on, openat2(AT_FDCWD, on.secret, os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "read-dotdot",
        "read a file outside by .. from a root",
        lambda on: _read_secret(on, openat(on.root, b"../outside/secret", os.O_RDONLY)),
        "EPERM",
        _EITHER,
        by_openat=True,
    ),
    Attempt(
        "read-dotdot-openat2",
        "read a file outside by .. from a root, by openat2",
        lambda on: _read_secret(on, openat2(on.root, b"../outside/secret", os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "read-link",
        "read a file outside through a link in a root",
        lambda on: _read_secret(on, openat(on.root, b"link", os.O_RDONLY)),
        "EPERM",
        _EITHER,
        by_openat=True,
    ),
    Attempt(
        "read-link-openat2",
        "read a file outside through a link in a root, by openat2",
        lambda on: _read_secret(on, openat2(on.root, b"link", os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "read-linked-directory",
        "read a file outside through a linked directory in a root",
        lambda on: _read_secret(on, openat2(on.root, b"linked/secret", os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt("list-outside", "list a directory outside", _list, "EACCES", _LANDLOCK),
    Attempt(
        "read-own-environment",
        "read its own environment in /proc",
        lambda _: read(openat2(AT_FDCWD, b"/proc/self/environ", os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
        frozenset({FenceLayer.DUMPABLE}),
    ),
    Attempt(
        "read-zygote-environment",
        "read the zygote's environment in /proc",
        lambda on: read(openat2(AT_FDCWD, b"/proc/%d/environ" % on.zygote, os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "read-broker-environment",
        "read the broker's environment, where its keys are, in /proc",
        lambda on: read(openat2(AT_FDCWD, b"/proc/%d/environ" % on.broker, os.O_RDONLY)),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt("read-broker-pipe", "read a pipe of the broker, by /proc", _read_pipe, "EACCES", _LANDLOCK),
    Attempt(
        "metadata-outside",
        "learn the size of a file outside by a descriptor that only names it",
        _metadata,
        DONE,
        frozenset(),
        consequence="a network, FUSE or automounted file system outside hears the names that are looked up, "
        "so data can leave that way",
    ),
    Attempt(
        "open-outside-for-neither",
        "open a file outside for neither reading nor writing (access mode 3)",
        _open_for_neither,
        DONE,
        frozenset(),
        consequence="a device outside that acts when it is opened acts; nothing is read, written or mapped",
    ),
    Attempt("stat-outside", "learn the size of a file outside by stat", _stat, "EPERM", _SECCOMP),
    Attempt(
        "access-outside",
        "learn by access that a file outside may be read",
        lambda on: call("faccessat", AT_FDCWD, on.secret, os.R_OK),
        "EPERM",
        _SECCOMP,
    ),
    Attempt("read-a-link", "learn where a link leads", _where_link_leads, "EPERM", _SECCOMP),
    Attempt(
        "change-directory",
        "make a directory outside its working directory",
        lambda on: call("chdir", on.outside.encode()),
        "EPERM",
        _SECCOMP,
    ),
)

_WRITING: Final = (
    Attempt(
        "write",
        "write into a file of a root",
        lambda on: _write(openat(on.root, b"written.md", os.O_WRONLY)),
        "EPERM",
        _EITHER | _LIMITS,
        by_openat=True,
    ),
    Attempt(
        "write-openat2",
        "write into a file of a root, by openat2",
        lambda on: _write(openat2(on.root, b"written.md", os.O_WRONLY)),
        "EACCES",
        _EITHER | _LIMITS,
    ),
    Attempt(
        "write-outside",
        "write into a file outside",
        lambda on: _write(openat2(AT_FDCWD, b"%s/written" % on.outside.encode(), os.O_WRONLY)),
        "EACCES",
        _EITHER | _LIMITS,
    ),
    Attempt(
        "empty-openat2",
        "empty a file of a root by opening it for reading, by openat2",
        lambda on: openat2(on.root, b"emptied.md", os.O_RDONLY | os.O_TRUNC),
        "EACCES",
        _LANDLOCK,
        landlock_abi=3,
    ),
    Attempt(
        "truncate",
        "shorten a file outside",
        lambda on: call("truncate", b"%s/shortened" % on.outside.encode(), 1),
        "SIGSYS",
        _EITHER,
        landlock_abi=3,
    ),
    Attempt(
        "create",
        "create a file in a root",
        lambda on: openat(on.root, b"new.md", _NEW, _PRIVATE),
        "EPERM",
        _EITHER,
        by_openat=True,
    ),
    Attempt(
        "create-openat2",
        "create a file in a root, by openat2",
        lambda on: openat2(on.root, b"newer.md", _NEW, _PRIVATE),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "create-outside",
        "create a file outside",
        lambda on: openat2(AT_FDCWD, b"%s/new" % on.outside.encode(), _NEW, _PRIVATE),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "create-nameless",
        "create a file without a name in a root",
        lambda on: openat2(on.root, b".", os.O_WRONLY | os.O_TMPFILE, _PRIVATE),
        "EACCES",
        _LANDLOCK,
    ),
    Attempt(
        "unlink",
        "delete a file of a root",
        lambda on: call("unlinkat", on.root, b"deleted.md", 0),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "rename",
        "rename a file of a root",
        lambda on: call("renameat2", on.root, b"old.md", on.root, b"renamed.md", 0),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "hard-link",
        "link a file outside into a root",
        lambda on: call("linkat", AT_FDCWD, on.secret, on.root, b"hard.md", 0),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "symbolic-link",
        "make a symbolic link in a root",
        lambda on: call("symlinkat", b"/", on.root, b"soft.md"),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "make-directory",
        "make a directory in a root",
        lambda on: call("mkdirat", on.root, b"made", 0o700),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "make-fifo",
        "make a FIFO in a root",
        lambda on: call("mknodat", on.root, b"fifo.md", stat.S_IFIFO | _PRIVATE, 0),
        "SIGSYS",
        _EITHER,
    ),
    Attempt(
        "change-mode",
        "change the mode of a file of a root",
        lambda on: call("fchmodat", on.root, b"moded.md", 0o640),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "change-mode-outside",
        "change the mode of a file outside",
        lambda on: call("fchmodat", AT_FDCWD, on.secret, 0o640),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "change-times",
        "change the times of a file outside",
        lambda on: call("utimensat", AT_FDCWD, on.secret, None, 0),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt(
        "set-attribute", "set an extended attribute of a file outside", _set_attribute, "SIGSYS", _SECCOMP
    ),
)

FILES: Final = (*_READING, *_WRITING)
"""All of them."""
