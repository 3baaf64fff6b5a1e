"""Attempts on files: reading outside the roots, and changing anything anywhere.

Most are made twice. `openat` is what libraries call, and seccomp refuses it; `openat2` it must let through,
so there Landlock stands alone. What neither judges is a descriptor that only names a file: its metadata is
learned, and whoever serves the file system hears the name, so what is written into names can leave that way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Final

from muniment.confine.attempts.attempt import (
    AT_FDCWD,
    DONE,
    Attempt,
    Targets,
    call,
    must_hold,
    open_path,
    openat,
    openat2,
    read,
)
from muniment.confine.syscalls import fstat
from muniment.names import FenceLayer

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
