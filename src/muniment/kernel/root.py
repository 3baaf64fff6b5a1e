"""A root is the open directory of a scope. Files under it are opened by handle, never by a checked string.

Promises of each method that succeeds:

- C1 No component of the path was a symbolic link; no link was followed.
- C2 The opened file was under the root, on its mount (for the limit of the walk, see `muniment.kernel.walk`).
- C3 A file whose bytes are returned is regular, has one name (`st_nlink == 1`) and is within the limit. This
  was checked on the descriptor that is then read.
- C4 No call waited for another process.
- C5 No descriptor with an offset is shared or stays open after a call. The root is O_PATH, each listing opens
  a new descriptor, and reads pass their position.

Not guaranteed: that the root is still at its bound path (`muniment.kernel.binding.BoundRoot.verify`), that a
file does not change while it is read, or that a listed name still exists.

Every method takes a `CanonicalPath` in the scope of the root, so no text can be opened. Within an open
directory, `encode_name` accepts single names, including names that a path may not contain. Tested with
attacks by `tests/units/kernel/test_root*.py`.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, Protocol, Self

from muniment.kernel.names import MAX_FILE_BYTES, Scope, Via
from muniment.kernel.path import CanonicalPath
from muniment.kernel.refusal import (
    BadName,
    MunimentError,
    NotAFile,
    NotFound,
    PathEscape,
    TooLarge,
    Unreadable,
    printable,
)
from muniment.kernel.syscalls import EXAMINE, LIST, READ, Openat2Resolver, Purpose, Stat

# isort: split
from muniment.kernel.syscalls import fstat, is_openat2_available, iterate_entries, os, require_known_machine
from muniment.kernel.walk import WalkResolver

Kind = Literal["file", "directory", "other"]
"""The kind of a name; `other` is a link, FIFO, socket or device, which is never opened for use."""

MAX_ENTRIES: Final = 65_536
"""Maximum names in one listing. A memory has some thousand; more would fill the memory of the worker."""

_TYPE_BITS, _REGULAR = 0o170000, stat.S_IFREG
_DT_UNKNOWN: Final = 0
_D_TYPES: Final[dict[int, Kind]] = {4: "directory", 8: "file"}
"""`d_type` values of readdir(3): DT_DIR and DT_REG."""

_ESCAPES: Final = {
    errno.ELOOP: Via.SYMLINK,
    errno.EXDEV: Via.MOUNT,
    errno.ENXIO: Via.SPECIAL,  # a socket, or a device without a driver
    errno.ENODEV: Via.SPECIAL,
}
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


class Resolver(Protocol):
    """Opens a path under a directory: by `openat2`, or component by component."""

    @property
    def name(self) -> str:
        """Return the name of this resolver, `openat2` or `walk`, for logs and `doctor`."""

    def open(self, dir_fd: int, path: bytes, purpose: Purpose) -> int:
        """Open `path` under `dir_fd`; reject a link, and a path that leaves the directory or its mount.

        Args:
            dir_fd: an open directory, O_PATH or not; the caller keeps it open and closes it.
            path: relative, without NUL, empty, `.` or `..` segments; or exactly `.`.
            purpose: `READ`, `LIST` or `EXAMINE`.

        Returns:
            A new descriptor, which the caller closes. The opened file is not checked.

        Raises:
            OSError: ELOOP at a link, EXDEV at a mount, otherwise the error of the system. Nothing stays open.
        """


def choose_resolver() -> Resolver:
    """Return a resolver that uses `openat2` or, if this process cannot use that call, one that walks.

    Raises:
        PlatformUnsupported: the machine is neither x86-64 nor aarch64.
    """
    require_known_machine()
    return Openat2Resolver() if is_openat2_available() else WalkResolver()


@dataclass(frozen=True, slots=True)
class ListedName:
    """A name in a directory, with its kind when it was listed.

    A mount point has the kind of the directory that it covers.
    """

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class PathStatus:
    """The kind and the size in bytes of a path under a root; see `Root.examine`."""

    kind: Kind
    size: int


class Descriptor:
    """An open descriptor. Close it, or use it in a `with` statement.

    A plain class because each open creates an object, and a frozen dataclass costs as much as a system call.

    Attributes:
        fd: the descriptor, or -1 after it is closed.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close the descriptor; do nothing if it is already closed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class OpenFile(Descriptor):
    """A regular file under a root, open for reading.

    Attributes:
        size: size in bytes when the file was opened.
    """

    __slots__ = ("_displayed_path", "size")

    def __init__(self, fd: int, size: int, displayed_path: str) -> None:
        self.fd = fd
        self.size = size
        self._displayed_path = displayed_path

    def read(self, count: int) -> bytes:
        """Return the first `count` bytes of the file, or all of them if it is shorter. Repeats short reads.

        Raises:
            Unreadable: the system failed to read; the message contains the error, but no host path.
        """
        pieces: list[bytes] = []
        position = 0
        try:
            while position < count and (piece := os.pread(self.fd, count - position, position)):
                pieces.append(piece)
                position += len(piece)
        except OSError as error:
            raise build_unreadable_error(self._displayed_path, error) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_whole(self, limit: int) -> bytes:
        """Return all bytes of the file.

        Args:
            limit: the largest accepted size in bytes. `MAX_FILE_BYTES` is a further limit.

        Raises:
            TooLarge: the file is larger, or grew past the limit while it was read. At most `limit + 1` bytes
                were read.
            Unreadable: the system failed to read.
        """
        limit = min(limit, MAX_FILE_BYTES)
        # One byte more than the limit detects a file that reports a false size or grows.
        content = b"" if self.size > limit else self.read(limit + 1)
        if self.size > limit or len(content) > limit:
            raise TooLarge(f"{printable(self._displayed_path)} is larger than {limit} bytes")
        return content


@dataclass(frozen=True, slots=True)
class Root:
    """The handle of a scope: its name, its open directory, and a resolver that opens files under it.

    The code that bound the root owns the descriptor `fd`, which is O_PATH. Every method takes a path of this
    scope. It raises `ValueError` for a path of another scope and `TypeError` for text.
    """

    scope: Scope
    fd: int
    resolver: Resolver

    def encode_path(self, path: CanonicalPath) -> bytes:
        """Return the bytes of `path`, relative to this root, for a system call.

        Raises:
            TypeError: `path` is not a `CanonicalPath`.
            ValueError: `path` belongs to another scope.
        """
        if type(path) is not CanonicalPath:
            raise TypeError("only a CanonicalPath can be opened under a root")
        if path.scope != self.scope:
            raise ValueError(f"{path.scope} is not the scope of this root, {self.scope}")
        return path.rel.encode() or b"."

    def open_file(self, path: CanonicalPath) -> OpenFile:
        """Open an existing file for reading.

        Raises:
            PathEscape: the path contains a link, a mount, a hard link or a special file.
            NotFound: the file does not exist, or was removed while it was opened.
            NotAFile: the path is a directory.
            Unreadable: the system denies access to the file; the message contains the error.

        Cost: one `openat2` and one `fstat`. The path is resolved only once.
        Source: openat2(2).
        """
        return _open_regular_file(self.resolver, self.fd, self.encode_path(path), path.text)

    def read_bytes(self, path: CanonicalPath, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return all bytes of the file at `path`.

        Args:
            path: path of the file.
            limit: the largest accepted size in bytes. `MAX_FILE_BYTES` is a further limit.

        Raises:
            MunimentError: as described in `open_file` and `OpenFile.read_whole`.
        """
        with self.open_file(path) as file:
            return file.read_whole(limit)

    def list_directory(self, path: CanonicalPath) -> tuple[ListedName, ...]:
        """Return the names in the directory `path`, sorted by code point.

        Bytes that are not valid UTF-8 become surrogate escapes.

        Raises:
            NotAFile: the path is a file.
            TooLarge: the directory has more than `MAX_ENTRIES` names.
            MunimentError: otherwise as described in `open_file`; `NotFound` also for a directory that was
                removed.

        Cost: one open, so that no offset is shared. If the file system reports no types, one more per name.
        """
        try:
            with Descriptor(self.resolver.open(self.fd, self.encode_path(path), LIST)) as opened:
                found = self._read_entries(opened.fd, path.text)
        except OSError as error:
            # ENOTDIR may mean a file, a FIFO or a missing parent.
            if error.errno == errno.ENOTDIR and self.examine(path) is not None:
                raise NotAFile(f"{printable(path.text)} is a file, not a directory") from error
            raise convert_open_error(path.text, error) from error
        return tuple(sorted(found, key=lambda entry: entry.name))

    def read_link_target(self, path: CanonicalPath) -> bytes | None:
        """Return the target of the link at `path`, without following it; None if no link can be read there.

        Cost: an open and two system calls.
        """
        try:
            with Descriptor(self.resolver.open(self.fd, self.encode_path(path.parent), EXAMINE)) as parent:
                return os.readlink(path.name.encode(), dir_fd=parent.fd)
        except OSError:
            return None

    def examine(self, path: CanonicalPath) -> PathStatus | None:
        """Return the kind and size of `path` without opening its file, or None if it does not exist.

        Raises an error for anything except a directory or a file that `open_file` accepts.

        Raises:
            PathEscape: the path contains a link, a mount, a hard link or a special file.
            Unreadable: the system denies access to a directory of the path.
        """
        try:
            with Descriptor(self.resolver.open(self.fd, self.encode_path(path), EXAMINE)) as opened:
                found = fstat(opened.fd)
        except OSError as error:
            if isinstance(refusal := convert_open_error(path.text, error), NotFound):
                return None
            raise refusal from error
        if found.st_nlink == 0:
            return None
        kind: Kind = "directory" if stat.S_ISDIR(found.st_mode) else "file"
        if kind == "file" and (not stat.S_ISREG(found.st_mode) or found.st_nlink != 1):
            _raise_file_type_error(path.text, found)
        return PathStatus(kind, found.st_size)

    def _read_entries(self, fd: int, displayed_path: str) -> list[ListedName]:
        found: list[ListedName] = []
        for name, d_type in iterate_entries(fd):
            kind = self._read_kind(fd, name) if d_type == _DT_UNKNOWN else _D_TYPES.get(d_type, "other")
            if kind is None:
                continue
            if len(found) == MAX_ENTRIES:
                raise TooLarge(f"{printable(displayed_path)} has more than {MAX_ENTRIES} names")
            found.append(ListedName(name.decode("utf-8", "surrogateescape"), kind))
        return found

    def _read_kind(self, dir_fd: int, name: bytes) -> Kind | None:
        """Return the kind of `name` if the directory does not report it; None if the name does not exist."""
        try:
            with Descriptor(self.resolver.open(dir_fd, name, EXAMINE)) as opened:
                mode = fstat(opened.fd).st_mode
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno in _ESCAPES:  # A link or a mount.
                return "other"
            raise
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _open_regular_file(resolver: Resolver, dir_fd: int, encoded_path: bytes, displayed_path: str) -> OpenFile:
    """Open a file under the directory `dir_fd`, with the checks of `Root.open_file`.

    Args:
        resolver: opens the path.
        dir_fd: the open directory.
        encoded_path: the path, from `Root.encode_path` or `encode_name`.
        displayed_path: the path that errors contain.
    """
    try:
        fd = resolver.open(dir_fd, encoded_path, READ)
    except OSError as error:
        raise convert_open_error(displayed_path, error) from error
    try:
        found = fstat(fd)
        if found.st_mode & _TYPE_BITS != _REGULAR or found.st_nlink != 1:
            _raise_file_type_error(displayed_path, found)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise build_unreadable_error(displayed_path, error) from error
        raise
    return OpenFile(fd, found.st_size, displayed_path)


def _raise_file_type_error(displayed_path: str, found: Stat) -> NoReturn:
    """Raise the error for an opened file that is not a regular file or has several names."""
    if stat.S_ISDIR(found.st_mode):
        raise NotAFile(f"{printable(displayed_path)} is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise PathEscape(Via.SPECIAL, displayed_path)
    if found.st_nlink == 0:
        raise NotFound(f"{printable(displayed_path)} not found")
    # The other name may be anywhere, and the system does not show which name is the original.
    raise PathEscape(Via.HARDLINK, displayed_path)


def convert_open_error(displayed_path: str, error: OSError) -> MunimentError:
    """Return the error for a failed open of `displayed_path`: one line for a model, without a host path."""
    if (via := _ESCAPES.get(error.errno or 0)) is not None:
        return PathEscape(via, displayed_path)
    if error.errno in _MISSING:
        return NotFound(f"{printable(displayed_path)} not found")
    return build_unreadable_error(displayed_path, error)


def build_unreadable_error(displayed_path: str, error: OSError) -> Unreadable:
    """Return the error for a system error that means neither a missing file nor an escape."""
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    return Unreadable(f"{printable(displayed_path)} cannot be read ({name})")


def encode_name(name: str) -> bytes:
    """Return the bytes of `name`, which must be a single path component.

    A name with a `/` could open a file in another directory, even outside the root.

    Raises:
        PathEscape: the name contains NUL, which ends a C string, begins with `/`, or contains `..`.
        BadName: the name is empty, `.`, more than one component, or cannot be the name of a file.
        TypeError: the name is not text, or is of a subclass of `str`, whose value may change later.
    """
    if type(name) is not str:
        raise TypeError("a name must be plain text (str)")
    if "/" in name or "\0" in name or name in {"", ".", ".."}:
        _raise_name_error(name)
    try:
        # Surrogate escapes represent the bytes 0x80 to 0xff only, so none of them can become `.`, `/` or NUL.
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadName(f"{printable(name)!r} is not valid as a file name; use valid Unicode text") from error


def _raise_name_error(name: str) -> NoReturn:
    if "\0" in name:
        raise PathEscape(Via.NUL, name)
    if name.startswith("/") or ".." in name.split("/"):
        raise PathEscape(Via.ABSOLUTE if name.startswith("/") else Via.DOTDOT, name)
    raise BadName(f"{printable(name)!r} is not a single name; use a name without slashes")


def open_name(root: Root, dir_fd: int, name: str, displayed_path: str) -> OpenFile:
    """Open the file `name` in a directory under `root`, with the checks of `Root.open_file`.

    Args:
        root: the root.
        dir_fd: the open directory.
        name: a single path component.
        displayed_path: the path that errors contain.

    Raises:
        MunimentError: as described in `encode_name` and `Root.open_file`.
    """
    return _open_regular_file(root.resolver, dir_fd, encode_name(name), displayed_path)
