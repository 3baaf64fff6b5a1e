"""Simulate macOS or Windows in this process: names that Python lacks there are removed or fail as there.

Use it as a plugin (`pytest -p kit.elsewhere`, with `FAKED_SYSTEM`); no module of the product is loaded
before. It is only a simulation: paths, file systems, sockets and locks are those of Linux.
"""

import builtins
import errno
import importlib
import importlib.abc
import io
import os
import select
import shutil
import socket
import stat
import sys
import tempfile
import types
from functools import partial

FENCE = "muniment.sandbox.fence"

words = str.split

LINUX = words("""
    O_PATH O_TMPFILE EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE eventfd eventfd_read eventfd_write pidfd_open
    memfd_create sched_getaffinity sched_setaffinity setns unshare splice copy_file_range getrandom
    posix_fadvise posix_fallocate pipe2 setresuid setresgid getresuid getresgid
""")
"""Names of `os` that neither system has."""

POSIX = words("""
    O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_NOCTTY O_CLOEXEC O_SYNC O_DSYNC O_NDELAY O_ASYNC fchmod fchown fchdir
    chown lchown chroot geteuid getegid getuid getgid getgroups initgroups setuid setgid seteuid setegid pread
    pwrite preadv pwritev readv writev statvfs fstatvfs ST_RDONLY ST_NOSUID fork forkpty mkfifo mknod uname
    killpg getpgid getpgrp setpgid setsid getsid waitid wait wait3 wait4 fdatasync sync openpty ttyname nice
    getpriority setpriority register_at_fork posix_spawn posix_spawnp lockf tcgetpgrp tcsetpgrp ctermid
    getloadavg sched_yield sendfile confstr pathconf fpathconf
""")
"""More names of `os` that Windows lacks."""

MISSING = {
    "darwin": set(),
    "win32": set(words("fcntl resource pwd grp termios tty pty readline syslog spwd crypt")),
}
LIBRARIES = words("""
    asyncio concurrent.futures.thread ctypes getpass h11 http.client httpcore2 httpx2 idna importlib.resources
    json logging pathspec pydantic pydantic.root_model re2 rich.console rich.table rich.traceback sqlite3 ssl
    structlog subprocess tomlkit tomllib typer typer.core typer.rich_utils uuid
""")
"""Libraries loaded beforehand, because their platform code is not under test."""

BY_DESCRIPTOR = words(
    "stat unlink remove rename replace mkdir rmdir readlink link symlink access utime chmod open"
)
REAL_FLOCK = importlib.import_module("fcntl").flock


class Missing(importlib.abc.MetaPathFinder):
    """Import hook that blocks the modules a system lacks, and the fence."""

    def __init__(self, names, *, refuses_fence):
        self.names, self.refuses_fence = names, refuses_fence

    def find_spec(self, name, _path=None, _target=None):
        is_fence = self.refuses_fence and (name == FENCE or name.startswith(f"{FENCE}."))
        if name in self.names or is_fence:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become(system, *, refuses_fence=True):
    """Make this process look like one of `system` from now on.

    Args:
        system: a value of `sys.platform`.
        refuses_fence: block every import of the fence; otherwise the fence itself reports that it is
            unavailable.
    """
    for name in LIBRARIES:
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.partition(".")[0] == "muniment"]
    sys.platform = system
    for name in MISSING[system]:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing(MISSING[system], refuses_fence=refuses_fence))
    for name in (*LINUX, *(POSIX if system == "win32" else ())):
        if hasattr(os, name):
            delattr(os, name)
    for module, names in ((os, "open readlink stat lstat"), (builtins, "open"), (io, "open")):
        for name in words(names):
            setattr(module, name, partial(without_proc, getattr(module, name)))
    socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)  # Event loops need one on every system.
    del socket.SO_PEERCRED, select.epoll
    tempfile._O_TMPFILE_WORKS = False
    if system == "win32":
        become_windows()


def without_proc(real, path, *rest, **named):
    """Call a function of a system without /proc and /sys."""
    if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
    return real(path, *rest, **named)


def become_windows():
    """Make calls fail for directory descriptors, hide owners and modes, and provide locks in `msvcrt`."""
    real_fstat, real_replace = os.fstat, os.replace
    for name in BY_DESCRIPTOR:
        setattr(os, name, partial(by_path, getattr(os, name)))
    for name in ("stat", "lstat", "fstat"):
        setattr(os, name, partial(everybodys, getattr(os, name)))
    for name in ("scandir", "listdir"):
        setattr(os, name, partial(of_path, getattr(os, name)))
    os.open = partial(no_directory, os.open, real_fstat)
    os.rename = partial(no_replace, real_replace)
    os.supports_dir_fd.clear()
    os.supports_fd.clear()
    shutil._use_fd_functions = False
    del select.poll, socket.AF_UNIX
    sys.modules["msvcrt"] = msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.locking = 2, locking


def by_path(real, *paths, **named):
    """Call a function that does not accept `dir_fd`."""
    descriptors = [named.pop(each, None) for each in ("dir_fd", "src_dir_fd", "dst_dir_fd")]
    if descriptors != [None] * 3:
        raise NotImplementedError("dir_fd unavailable on this platform")
    return real(*paths, **named)


def everybodys(real, *paths, **named):
    """Return a status without an owner and with read and write permission for everyone."""
    found = real(*paths, **named)
    mode = stat.S_IFMT(found.st_mode) | (0o777 if stat.S_ISDIR(found.st_mode) else 0o666)
    times = {name: getattr(found, name) for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")}
    seconds = map(int, (found.st_atime, found.st_mtime, found.st_ctime))
    fields = (mode, found.st_ino, found.st_dev, found.st_nlink, 0, 0, found.st_size, *seconds)
    return os.stat_result(fields, times)


def no_directory(real, real_fstat, path, flags, mode=0o777, **named):
    """Behave like an `os.open` that rejects directories and supports few flags."""
    assert flags < 1 << 24, "flag unknown to Windows"
    fd = real(path, flags, mode, **named)
    if stat.S_ISDIR(real_fstat(fd).st_mode):
        os.close(fd)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))
    return fd


def of_path(real, path="."):
    """Call a listing function that does not accept descriptors."""
    if isinstance(path, int):
        raise TypeError("path should be string, bytes, os.PathLike or None, not int")
    return real(path)


def no_replace(real, old, new):
    """Behave like an `os.rename` that never replaces a file."""
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(old))
    return real(old, new)


def locking(fd, _mode, _count):
    """Behave like `msvcrt.locking` without waiting: a lock per descriptor, released when it is closed."""
    REAL_FLOCK(fd, 2 | 4)  # LOCK_EX | LOCK_NB


def pytest_load_initial_conftests():
    """Start the simulation as a plugin, before any conftest and before the product is loaded."""
    become(os.environ["FAKED_SYSTEM"])
