"""Files outside every root: opened by descriptors with a limited lifetime, and written atomically.

F1 A file opened by `open_descriptor` is closed when the block ends, for any reason. Opening a FIFO does not
   wait, and a link at the last name is not followed unless the caller requests it.
F2 A name refers to the complete new content or to none of it, also if the disk is full or the process dies.
F3 A new file has its mode from the beginning, and no link is written through.

Only `kernel` opens the memory. `policy.ownership` checks who else may write a file that is read here.
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
_OTHERS_MASK: Final = 0o077


def _combine_flags(*names: str) -> int:
    return sum(getattr(os, name, 0) for name in names)


FOLLOW_FLAGS: Final = os.O_RDONLY | _combine_flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
"""Flags to read the file that a path resolves to. Windows has only the last of these."""

READ_FLAGS: Final = FOLLOW_FLAGS | _combine_flags("O_NOFOLLOW")
"""Flags to read the file at a path itself."""

LIST_FLAGS: Final = os.O_RDONLY | _combine_flags("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
"""Flags to list the directory at a path itself."""

CREATE_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | _combine_flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
)
"""Flags to write a file at an unused name."""


@contextmanager
def open_descriptor(path: str | Path, flags: int = READ_FLAGS, *, dir_fd: int | None = None) -> Iterator[int]:
    """Open a descriptor for the duration of the block (F1); raises as `os.open`."""
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def read_up_to(fd: int, size: int) -> bytes:
    """Return the first `size` bytes of an open file, or all of a shorter one; raises OSError."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        return file.read(size)


def is_private(path: Path, found: os.stat_result) -> bool:
    """Return whether a file belongs to this user, and no other user has any access."""
    if IS_WINDOWS:
        return not path.is_symlink() and is_in_own_folder(path)
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MASK


@contextmanager
def write_atomically(
    path: Path, rename: Callable[[Path, Path], object], mode: int = PRIVATE
) -> Iterator[BinaryIO]:
    """Open a file for writing in the block, and give it its name at the end (F2, F3), after syncing it.

    Args:
        path: its name.
        rename: renames the first path to the second: `os.replace`; or `os.link` if the name must be unused,
            so that only one of several processes succeeds.
        mode: of the file.

    Raises:
        OSError: the system denies it. Nothing is changed or left, also if the block or `rename` raises.
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
    """Create a file that only this user can access, complete under its name or not at all (F2, F3).

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
    """Give a file its name, which must be unused; without hard links, this is not atomic."""
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
    """Sync the names in a directory to disk; Windows has no call for that.

    Raises:
        OSError: the system denies it.
    """
    if IS_WINDOWS:
        return
    fd = os.open(directory, os.O_RDONLY | _combine_flags("O_DIRECTORY", "O_CLOEXEC"))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_package_tables(package: str, name: str) -> dict[str, Any]:
    """Return the parsed `name`.toml of an internal package; callers cache it."""
    return tomllib.loads(read_package_text(package, f"{name}.toml"))


def read_package_text(package: str, name: str) -> str:
    """Return the text of a file of a package of this project."""
    return package_files(package).joinpath(name).read_text(encoding="utf-8")
