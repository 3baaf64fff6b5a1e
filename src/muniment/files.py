"""Open and write files that are not part of a memory; files are written atomically.

F1 `open_descriptor` closes its file when the block ends, for any reason. Opening a FIFO does not wait. If the
   last name of the path is a link, opening fails, unless the caller passes `FOLLOW_FLAGS`.
F2 A file that is written contains the complete new content or, if the disk is full or the process dies, none
   of it.
F3 A new file has its mode from the beginning, and the name is never a link that is followed.

Only the package `kernel` opens files of the memory. `policy.ownership` checks which other users may write a
file that this module reads.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final

from muniment.errors import ConfigInvalid, printable
from muniment.portable import IS_WINDOWS, is_in_own_folder

PRIVATE: Final = 0o600
_OTHERS_MASK: Final = 0o077


def _combine_flags(*names: str) -> int:
    return sum(getattr(os, name, 0) for name in names)


FOLLOW_FLAGS: Final = os.O_RDONLY | _combine_flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
"""Flags to open a file for reading; a link is followed. Windows has only the last flag."""

READ_FLAGS: Final = FOLLOW_FLAGS | _combine_flags("O_NOFOLLOW")
"""Flags to open a file for reading; opening fails if the last name of the path is a link."""

LIST_FLAGS: Final = os.O_RDONLY | _combine_flags("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
"""Flags to open a directory for listing; opening fails if the last name of the path is a link."""

CREATE_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | _combine_flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
)
"""Flags to create a file for writing; opening fails if the name exists."""


@contextmanager
def open_descriptor(path: str | Path, flags: int = READ_FLAGS, *, dir_fd: int | None = None) -> Iterator[int]:
    """Open a file as a descriptor, and close it at the end of the block; raises the errors of `os.open`.

    Args:
        path: the file.
        flags: for `os.open`; by default, read the file, and fail if it is a link.
        dir_fd: descriptor of the directory that a relative path starts from; None: the current directory.
    """
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def read_up_to(fd: int, size: int) -> bytes:
    """Return at most `size` bytes from the current position of an open file; raises OSError."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        return file.read(size)


def is_private(path: Path, found: os.stat_result) -> bool:
    """Return whether a file belongs to this user, and no other user has any access.

    Args:
        path: the file.
        found: the status of the file.
    """
    if IS_WINDOWS:
        return not path.is_symlink() and is_in_own_folder(path)
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MASK


@contextmanager
def write_atomically(
    path: Path, rename: Callable[[Path, Path], object], mode: int = PRIVATE
) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; at the end of the block, sync it and rename it to `path`.

    If the block or `rename` raises, remove the temporary file and do not change `path`.

    Args:
        path: the name of the finished file.
        rename: renames the first path to the second, for example `os.replace`. If `path` must not exist yet,
            pass `os.link`: then only one of several processes succeeds.
        mode: the permissions of the file.

    Raises:
        OSError: the file cannot be written or renamed.
    """
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.unfinished")
    fd = os.open(unfinished, CREATE_FLAGS, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def create_file(target: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file for writing in the block; only this user can access it.

    The file gets its name at the end of the block. If the block raises, no file remains.

    Raises:
        ConfigInvalid: the name exists, or the file cannot be written.
    """
    path, displayed_path = Path(target), printable(os.fspath(target))
    if not path.name:
        raise ConfigInvalid(f"invalid file name {displayed_path!r}: give the path of a file")
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it already exists; choose another name, or remove it")
        with write_atomically(path, _link_or_rename) as file:
            yield file
    except OSError as error:
        raise ConfigInvalid(f"{displayed_path} cannot be written: {error.strerror or error}") from error


def _link_or_rename(unfinished: Path, path: Path) -> None:
    """Rename `unfinished` to `path`, which must not exist.

    If the file system has no hard links, another process may create `path` between the check and the rename.
    """
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise
        unfinished.rename(path)
    with suppress(OSError):  # Some file systems cannot sync a directory.
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync a directory to disk, so that new names in it survive a crash. On Windows, do nothing.

    Raises:
        OSError: the directory cannot be opened or synced.
    """
    if IS_WINDOWS:
        return
    fd = os.open(directory, os.O_RDONLY | _combine_flags("O_DIRECTORY", "O_CLOEXEC"))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_package_tables(package: str, name: str) -> dict[str, Any]:
    """Return the content of the TOML file `name`.toml in a package of this project; callers cache it."""
    import tomllib

    return tomllib.loads(read_package_text(package, f"{name}.toml"))


def split_words(line: str) -> list[str]:
    """Return the words of a line in such a file; commas separate them. `tomllib` reads lists slowly."""
    return [word.lstrip() for word in line.split(",")] if line else []


def read_package_text(package: str, name: str) -> str:
    """Return the text of the file `name` in a package of this project."""
    return locate_package(package).joinpath(name).read_text(encoding="utf-8")


def locate_package(package: str) -> Path:
    """Return the directory of an imported package. `importlib.resources` needs 10 ms to be imported."""
    return Path(str(sys.modules[package].__file__)).parent
