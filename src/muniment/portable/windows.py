r"""The parts of `os` and `fcntl` that the kernel and the state directory use, for Windows.

Python has no directory descriptors on Windows. So an open directory is a generated number, to which its path
and its identity (volume and file number) belong:

- D1. A name that is opened in a directory must be a single name, without `\`, `/` or `:`, and without an
  ending that
  Windows would drop. A link is not followed: for a symbolic link or a junction (any name surrogate) the error
  is ELOOP.
- D2. Before and after a call, the directory must be the same one that was opened. After a file was opened, it
  must be the
  file at that name. If not, the error is ENOENT or ELOOP, and nothing stays open.
- D3. A directory that is opened by a path, such as a root, must be in the folder of this user
  (`portable.is_in_own_folder`). This check replaces owner and mode: each status then reports this user as the
  owner.
- D4. A directory is locked by a lock file in the folder for temporary files, with `msvcrt.locking`. Windows
  releases the
  lock when the process ends.

Not guaranteed: changes between the two checks of D2, and locks against other users of the machine. New names
survive a power failure only if the file system ensures that, because a directory cannot be synced.

Separate, because no other system loads it. Source: learn.microsoft.com, "Reparse Point Tags" (the bit of a
name surrogate), "Naming Files, Paths, and Namespaces".
"""

from __future__ import annotations

# ruff: noqa: PTH102, PTH105, PTH106, PTH108, PTH115, PTH116
import contextlib
import errno
import importlib
import os as _os
import stat as _stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from muniment.portable import is_in_own_folder
from muniment.portable.waiting import LatchingOs, numbers

_SURROGATE: Final = 0x20000000
"""Bit of a reparse tag: the file represents another name. Placeholders of cloud storage do not have it."""

_READ_ONLY: Final = 1


def _raise_os_error(number: int) -> NoReturn:
    raise OSError(number, _os.strerror(number))


def _is_link(found: _os.stat_result) -> bool:
    return _stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0) & _SURROGATE)


def _identity(found: _os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _build_private_status(found: _os.stat_result) -> _os.stat_result:
    """Return a status that reports this user as the owner, and no rights for others."""
    times = {name: getattr(found, name) for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")}
    # For a link that is not symbolic, Windows reports the type of its target.
    mode = _stat.S_IFLNK if _is_link(found) else found.st_mode & ~0o077
    fields = (mode, found.st_ino, found.st_dev, max(1, found.st_nlink), 0, 0)
    seconds = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    return _os.stat_result((*fields, found.st_size, *seconds), times)


@dataclass(slots=True)
class _OpenDirectory:
    path: str
    identity: tuple[int, int]
    lock: int | None = None


class _DirEntry:
    """An entry of a directory, as `os.scandir` yields it.

    On Windows, the original entries lack the file number.
    """

    def __init__(self, name: str, found: _os.stat_result) -> None:
        self.name, self._found = name, found

    def is_file(self, *, follow_symlinks: bool) -> bool:  # noqa: ARG002  as in os.DirEntry
        return _stat.S_ISREG(self._found.st_mode)

    def is_dir(self, *, follow_symlinks: bool) -> bool:  # noqa: ARG002
        return _stat.S_ISDIR(self._found.st_mode)

    def stat(self, *, follow_symlinks: bool) -> _os.stat_result:  # noqa: ARG002
        return self._found


class _Os(LatchingOs):
    """The module `os` of Windows, extended by numbers for open directories."""

    O_DIRECTORY: Final = 1 << 28
    O_NOFOLLOW: Final = 1 << 27
    O_NONBLOCK = O_NOCTTY = 0
    O_CLOEXEC: Final = getattr(_os, "O_NOINHERIT", 0)
    ST_RDONLY: Final = _READ_ONLY

    def __init__(self) -> None:
        self._open: dict[int, _OpenDirectory] = {}
        self._lock = threading.Lock()

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file or directory, as `os.open` does on Linux (D1 to D3 in the module docstring)."""
        fd = self._open_native(self._build_path(path, dir_fd), flags, mode, is_relative=dir_fd is not None)
        try:
            if dir_fd is not None:
                self._get_path(dir_fd)
        except BaseException:
            self.close(fd)
            raise
        return fd

    def _open_native(self, path: str, flags: int, mode: int, *, is_relative: bool) -> int:
        if flags & self.O_DIRECTORY:
            return self._open_directory(path, is_relative=is_relative)
        with contextlib.suppress(FileNotFoundError):
            before = _os.lstat(path)
            if flags & self.O_NOFOLLOW and _is_link(before):
                _raise_os_error(errno.ELOOP)
            if _stat.S_ISDIR(before.st_mode):
                if flags & (_os.O_WRONLY | _os.O_RDWR):
                    _raise_os_error(errno.EISDIR)
                return self._open_directory(path, is_relative=is_relative)
            if not _stat.S_ISREG(before.st_mode) and not _is_link(before):
                _raise_os_error(errno.ENXIO)  # Opening it could wait.
        native = flags & ~(self.O_DIRECTORY | self.O_NOFOLLOW) | getattr(_os, "O_BINARY", 0)
        fd = _os.open(path, native, mode)
        try:
            if flags & self.O_NOFOLLOW:
                self._check_opened(fd, path)
        except BaseException:
            _os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        """Close a file or directory, as `os.close` does on Linux."""
        with self._lock:
            found = self._open.pop(fd, None)
        if found is None:
            super().close(fd)
        elif found.lock is not None:
            _os.close(found.lock)

    def fstat(self, fd: int) -> _os.stat_result:
        """Return the status of an open file or directory, as `os.fstat` does.

        The owner is always this user.
        """
        return _build_private_status(_os.lstat(self._get_path(fd)) if fd in self._open else _os.fstat(fd))

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> _os.stat_result:
        """Return the status of a path, as `os.stat` does on Linux; the owner is always this user."""
        return _build_private_status(
            _os.stat(self._build_path(path, dir_fd), follow_symlinks=follow_symlinks)
        )

    @contextlib.contextmanager
    def scandir(self, fd: int) -> Iterator[Iterator[_DirEntry]]:
        """Yield the entries of an open directory, as `os.scandir` does on Linux."""
        path = self._get_path(fd)
        with _os.scandir(path) as listed:
            yield self._iterate_statuses(listed)
        self._get_path(fd)

    def readlink(self, path: Any, *, dir_fd: int) -> bytes:
        """Return the target of a link as bytes, as `os.readlink` does on Linux."""
        return _os.fsencode(_os.readlink(self._build_path(path, dir_fd)))

    def mkdir(self, path: Any, mode: int, *, dir_fd: int) -> None:
        """Create a directory, as `os.mkdir` does on Linux."""
        _os.mkdir(self._build_path(path, dir_fd), mode)

    def rmdir(self, path: Any, *, dir_fd: int) -> None:
        """Remove a directory, as `os.rmdir` does on Linux."""
        _os.rmdir(self._build_path(path, dir_fd))

    def unlink(self, path: Any, *, dir_fd: int) -> None:
        """Remove a file, as `os.unlink` does on Linux."""
        _os.unlink(self._build_path(path, dir_fd))

    def rename(self, old: Any, new: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """Rename a file, and replace an existing file with the new name, as `os.rename` does on Linux."""
        _os.replace(self._build_path(old, src_dir_fd), self._build_path(new, dst_dir_fd))

    def fsync(self, fd: int) -> None:
        """Write a file to the disk, as `os.fsync` does; for a directory, do nothing."""
        if fd not in self._open:
            _os.fsync(fd)

    def fchmod(self, _fd: int, _mode: int) -> None:
        """Do nothing: rights on Windows come from the folder of the user."""

    def pread(self, fd: int, count: int, at: int) -> bytes:
        """Read from a file at an offset, as `os.pread` does on Linux.

        This is safe only if all callers use this method.
        """
        with self._lock:
            _os.lseek(fd, at, _os.SEEK_SET)
            return _os.read(fd, count)

    def geteuid(self) -> int:
        """Return 0, the owner of all files in the statuses of this module."""
        return 0

    getegid = geteuid

    def statvfs(self, path: Any) -> Any:
        """Return a status without flags: this module knows no read-only file system."""
        del path
        return type("Statvfs", (), {"f_flag": 0})

    def lock(self, fd: int) -> None:
        """Lock an open directory (D4 of the module docstring) without waiting.

        Raises:
            BlockingIOError: another process holds the lock.
        """
        msvcrt = importlib.import_module("msvcrt")
        directory = self._open[fd]
        name = "muniment-{:x}-{:x}.lock".format(*directory.identity)
        lock = _os.open(Path(tempfile.gettempdir(), name), _os.O_RDWR | _os.O_CREAT, 0o600)
        try:
            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
        except OSError:
            _os.close(lock)
            raise BlockingIOError(errno.EAGAIN, _os.strerror(errno.EAGAIN)) from None
        directory.lock = lock

    def unlock(self, fd: int) -> None:
        """Release the lock of an open directory; do nothing if it is not locked."""
        directory = self._open.get(fd)
        if directory is not None and directory.lock is not None:
            lock, directory.lock = directory.lock, None
            _os.close(lock)

    def _open_directory(self, path: str, *, is_relative: bool) -> int:
        found = _os.lstat(path)
        if _is_link(found):
            _raise_os_error(errno.ELOOP)
        if not _stat.S_ISDIR(found.st_mode):
            _raise_os_error(errno.ENOTDIR)
        if not is_relative and not is_in_own_folder(path):
            raise PermissionError(
                errno.EACCES,
                "it is outside your user folder, so others may write there; move it into that folder",
            )
        with self._lock:
            number = next(numbers)
            self._open[number] = _OpenDirectory(path, _identity(found))
        return number

    def _check_opened(self, fd: int, where: str) -> None:
        now = _os.lstat(where)
        if _is_link(now) or _identity(now) != _identity(_os.fstat(fd)):
            _raise_os_error(errno.ELOOP)

    def _get_path(self, fd: int) -> str:
        """Return the path of an open directory, after a check that it is still the same directory."""
        try:
            directory = self._open[fd]
        except KeyError:
            _raise_os_error(errno.EBADF)
        found = _os.lstat(directory.path)
        if _is_link(found) or _identity(found) != directory.identity:
            _raise_os_error(errno.ENOENT)
        return directory.path

    def _build_path(self, path: Any, dir_fd: int | None) -> str:
        """Return the path of a name in an open directory, after a check of the name.

        Without a directory, return the path itself.
        """
        name = _os.fsdecode(path)
        if dir_fd is None:
            return name
        directory = self._get_path(dir_fd)
        if name == ".":
            return directory
        if set(name) & set("\\/:") or name.endswith((".", " ")) or not name:
            _raise_os_error(errno.ENOENT)
        return f"{directory}{_os.sep}{name}"

    def _iterate_statuses(self, listed: Iterator[_os.DirEntry[str]]) -> Iterator[_DirEntry]:
        for item in listed:
            with contextlib.suppress(FileNotFoundError):
                yield _DirEntry(item.name, _build_private_status(_os.lstat(item.path)))


class _Fcntl:
    """The function `fcntl.flock` for directories; it never waits."""

    LOCK_EX, LOCK_NB, LOCK_UN = 2, 4, 8

    def flock(self, fd: int, operation: int) -> None:
        """Lock an open directory, or release its lock; raise as `_Os.lock`."""
        if operation == self.LOCK_UN:
            os.unlock(fd)
        else:
            os.lock(fd)


os: Final = _Os()
fcntl: Final = _Fcntl()
