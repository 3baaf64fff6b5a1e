"""Files outside every root: opened by a descriptor that has an owner, and put into place whole.

F1 What `opened` opens is closed when the block ends, however it ends. Nothing is waited for at a FIFO, and a
   link at the last name is not followed unless the caller says so.
F2 A name leads to all of a new content or to none of it, also where the disk is full or the process dies.
F3 A new file has its mode from the beginning on, and no link is written through.

Memory is opened by `kernel` alone. Who else may write what is read here is asked by `policy.ownership`.
"""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files as package_files
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final

from muniment.errors import ConfigInvalid, printable
from muniment.portable import IS_WINDOWS, is_in_own_folder

PRIVATE: Final = 0o600
_OTHERS: Final = 0o077


def _flags(*names: str) -> int:
    return sum(getattr(os, name, 0) for name in names)


FOLLOWING: Final = os.O_RDONLY | _flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
"""To read what a path leads to. Windows has none of these but the last."""

READING: Final = FOLLOWING | _flags("O_NOFOLLOW")
"""To read what stands at a path itself."""

LISTING: Final = os.O_RDONLY | _flags("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
"""To list the directory at a path itself."""

NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
"""To write a file where nothing stands."""


@contextmanager
def opened(path: str | Path, flags: int = READING, *, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor for the time of the block (F1); raises as `os.open`."""
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def read_up_to(fd: int, size: int) -> bytes:
    """The first `size` bytes of an open file, or all there are; raises OSError."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        return file.read(size)


def is_ours_alone(path: Path, found: os.stat_result) -> bool:
    """Whether what was found at a path is this user's, and nobody else has any right to it."""
    if IS_WINDOWS:
        return not path.is_symlink() and is_in_own_folder(path)
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS


@contextmanager
def placing(path: Path, name: Callable[[Path, Path], object], mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A file to be written in the block and given its name at the end (F2, F3), on disk before that.

    Args:
        path: its name.
        name: gives what stands at the first path the second: `os.replace`; `os.link` where nothing may stand
            there yet, and of many who do that one does.
        mode: of the file.

    Raises:
        OSError: the system refuses. Nothing is changed or left; nor is it where the block or `name` raises.
    """
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.unfinished")
    fd = os.open(unfinished, NEW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        name(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def new_file(target: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A new file of this user alone, whole under its name or not there (F2, F3).

    Raises:
        ConfigInvalid: something stands there, or it cannot be written.
    """
    path, shown = Path(target), printable(os.fspath(target))
    if not path.name:
        raise ConfigInvalid(f"{shown!r} is no name of a file to write")
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it is there already; choose another name, or remove it")
        with placing(path, _name_new) as file:
            yield file
    except OSError as error:
        raise ConfigInvalid(f"{shown} cannot be written: {error.strerror or error}") from error


def _name_new(unfinished: Path, path: Path) -> None:
    """Give a file its name, in the place of none; where there are no hard links, as on a stick, nearly so."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise
        unfinished.rename(path)
    with suppress(OSError):  # Some file systems have no sync of a directory.
        sync(path.parent)


def sync(directory: Path) -> None:
    """Have the names in a directory on disk; Windows has no call for that.

    Raises:
        OSError: the system refuses.
    """
    if IS_WINDOWS:
        return
    fd = os.open(directory, os.O_RDONLY | _flags("O_DIRECTORY", "O_CLOEXEC"))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def shipped_tables(package: str, name: str) -> dict[str, Any]:
    """What `name`.toml of a package of ours says. Cost: reads and parses it, so whoever asks keeps it."""
    return tomllib.loads(shipped_text(package, f"{name}.toml"))


def shipped_text(package: str, name: str) -> str:
    """Return the text of a file of a package of ours."""
    return package_files(package).joinpath(name).read_text(encoding="utf-8")
