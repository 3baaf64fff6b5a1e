"""A root: the open directory of a scope, and reading beneath it by handle, never by a checked string.

On success of any method:

- C1 no component of the path was a symbolic link; nothing was followed.
- C2 what was opened lay beneath the root, on its mount (the walk's limit: see `muniment.confine.walk`).
- C3 a file whose bytes are returned is regular, has one name (`st_nlink == 1`) and is within the limit. This
  was asked of the descriptor that is then read.
- C4 no call waited for another process.
- C5 no descriptor with an offset outlives a call or is shared: the root is O_PATH, listings open their own,
  reads give their position.

Does not hold: that the root is still where it was bound (`muniment.confine.binding.BoundRoot.verify`), that a
file does not change while it is read, or that a name, once listed, still exists.

Text is checked in this order before any system call, and never normalised:

1. NUL (a C string ends there), 2. a leading `/`, 3. a `..` segment: `PathEscape`.
4. an empty or `.` segment, 5. text that is not UTF-8, 6. more than `MAX_PATH_BYTES`: `BadName`.

The empty text is the root itself. Attacked by `tests/confine/test_root*.py`.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, Protocol, Self

from muniment.confine.openat2 import Openat2Resolver, available
from muniment.confine.syscalls import (
    EXAMINE,
    LIST,
    READ,
    Purpose,
    Stat,
    entries,
    fstat,
    require_known_machine,
)
from muniment.confine.walk import WalkResolver
from muniment.errors import (
    BadName,
    MunimentError,
    NotAFile,
    NotFound,
    PathEscape,
    TooLarge,
    Unreadable,
    printable,
)
from muniment.names import MAX_FILE_BYTES, MAX_PATH_BYTES, Scope, Via

Kind = Literal["file", "directory", "other"]
"""What a name is; `other` is a link, FIFO, socket or device, none of which is ever opened for use."""

MAX_ENTRIES: Final = 65_536
"""Names in one listing. A memory has some thousand; beyond this a listing would fill the worker's memory."""

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
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


class Resolver(Protocol):
    """How a path beneath a directory becomes a descriptor: by `openat2`, or component by component."""

    @property
    def name(self) -> str:
        """`openat2` or `walk`, for logs and `doctor`."""

    def open(self, dir_fd: int, path: bytes, purpose: Purpose) -> int:
        """Open `path` beneath `dir_fd` without following or leaving anything.

        Args:
            dir_fd: an open directory, O_PATH or not; stays the caller's.
            path: relative, without NUL, empty, `.` or `..` segments; or exactly `.`.
            purpose: `READ`, `LIST` or `EXAMINE`.

        Returns:
            A descriptor that the caller closes. Its file was not looked at.

        Raises:
            OSError: ELOOP at a link, EXDEV at a mount, otherwise what the system says. Nothing stays open.
        """


def choose_resolver() -> Resolver:
    """`openat2` where the kernel offers it to this process, else the walk.

    Raises:
        PlatformUnsupported: the machine is neither x86-64 nor aarch64.
    """
    require_known_machine()
    return Openat2Resolver() if available() else WalkResolver()


@dataclass(frozen=True, slots=True)
class Listed:
    """A name in a directory, and what it was when listed. A mount point is listed as what it covers."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Examined:
    """What a name beneath a root is; see `Root.examine`. Sizes in bytes."""

    kind: Kind
    size: int


class OpenFile:
    """A regular file beneath a root, open for reading. Use it in a `with` statement.

    A plain class because it is made at every open, where a frozen dataclass costs as much as a system call.

    Attributes:
        fd: the descriptor, or -1 once closed.
        size: bytes, when it was opened.
    """

    __slots__ = ("_rel", "_root", "fd", "size")

    def __init__(self, fd: int, size: int, root: Root, rel: str) -> None:
        self.fd = fd
        self.size = size
        self._root = root
        self._rel = rel

    def read(self, count: int) -> bytes:
        """The first `count` bytes, or fewer if the file ends before. Reads in pieces if the system does.

        Raises:
            Unreadable: the system failed to read; the message names the error, no host path.
        """
        pieces: list[bytes] = []
        position = 0
        try:
            while position < count and (piece := os.pread(self.fd, count - position, position)):
                pieces.append(piece)
                position += len(piece)
        except OSError as error:
            raise self._root.refusal(self._rel, error) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_whole(self, limit: int) -> bytes:
        """All bytes, `MAX_FILE_BYTES` at most whatever `limit` says.

        Raises:
            TooLarge: the file is larger, or grew past the limit while it was read. At most `limit + 1` bytes
                were read.
            Unreadable: as `read`.
        """
        limit = min(limit, MAX_FILE_BYTES)
        # A file that lies about its size, or grows, is noticed by the one byte more.
        content = b"" if self.size > limit else self.read(limit + 1)
        if self.size > limit or len(content) > limit:
            raise TooLarge(f"{self._root.shown(self._rel)} is larger than {limit} bytes")
        return content

    def close(self) -> None:
        """Close the descriptor; harmless when repeated."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Root:
    """The handle of a scope that a worker holds: a name, an O_PATH directory, a way to open beneath it.

    The descriptor belongs to whoever bound it. Every method takes `rel`, a path inside the scope as text, and
    trusts nothing about it.
    """

    scope: Scope
    fd: int
    resolver: Resolver

    def open_file(self, rel: str) -> OpenFile:
        """Open an existing file for reading.

        Raises:
            PathEscape: the text leads outwards, or meets a link, a mount, a hard link or something special.
            BadName: the text is no path (steps 4 to 6 above).
            NotFound: nothing of that name, or it was removed while it was opened.
            NotAFile: the name belongs to a directory.
            Unreadable: the system refuses; the message names its error.

        Cost: one `openat2` and one `fstat`; the path is never built or searched again.
        Source: openat2(2).
        """
        path = encoded(rel)
        try:
            fd = self.resolver.open(self.fd, path, READ)
        except OSError as error:
            raise self.refusal(rel, error) from error
        try:
            found = fstat(fd)
            if found.st_mode & _TYPE_BITS != _REGULAR or found.st_nlink != 1:
                self._refuse_object(rel, found)
        except BaseException:
            os.close(fd)
            raise
        return OpenFile(fd, found.st_size, self, rel)

    def read_bytes(self, rel: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """The whole file.

        Args:
            rel: path inside the scope.
            limit: bytes; `MAX_FILE_BYTES` holds as well.

        Raises:
            MunimentError: as `open_file` and `OpenFile.read_whole`.
        """
        with self.open_file(rel) as file:
            return file.read_whole(limit)

    def list_directory(self, rel: str) -> tuple[Listed, ...]:
        """Names in a directory, sorted by code point; names that are not UTF-8 hold surrogate escapes.

        Raises:
            NotAFile: a file stands there.
            TooLarge: more than `MAX_ENTRIES` names.
            MunimentError: otherwise as `open_file`; `NotFound` also for a directory that was removed.

        Cost: an open of its own, so that no offset is shared; where the file system gives no types, an open
        a name.
        """
        path = encoded(rel)
        try:
            fd = self.resolver.open(self.fd, path, LIST)
        except OSError as error:
            self._refuse_directory(rel, error)
        try:
            found = self._entries(fd, rel)
        except OSError as error:
            raise self.refusal(rel, error) from error
        finally:
            os.close(fd)
        return tuple(sorted(found, key=lambda entry: entry.name))

    def examine(self, rel: str) -> Examined | None:
        """What stands at `rel`, without opening it; `None` if nothing does.

        Answers about files and directories only, the same that could be opened: the rest raises.

        Raises:
            PathEscape: as `open_file`, hard links included.
            BadName: as `open_file`.
            Unreadable: the system refuses the way there.
        """
        path = encoded(rel)
        try:
            fd = self.resolver.open(self.fd, path, EXAMINE)
        except OSError as error:
            refusal = self.refusal(rel, error)
            if isinstance(refusal, NotFound):
                return None
            raise refusal from error
        try:
            found = fstat(fd)
        finally:
            os.close(fd)
        if found.st_nlink == 0:
            return None
        kind: Kind = "directory" if stat.S_ISDIR(found.st_mode) else "file"
        if kind == "file" and (not stat.S_ISREG(found.st_mode) or found.st_nlink != 1):
            self._refuse_object(rel, found)
        return Examined(kind, found.st_size)

    def refusal(self, rel: str, error: OSError) -> MunimentError:
        """What a failed open of `rel` means, in words fit for a model: one line, no host path."""
        if (via := _ESCAPES.get(error.errno or 0)) is not None:
            return PathEscape(via, rel)
        if error.errno in _ABSENT:
            return NotFound(f"{self.shown(rel)} does not exist")
        return _unreadable(self.shown(rel), error)

    def _entries(self, fd: int, rel: str) -> list[Listed]:
        found: list[Listed] = []
        for name, d_type in entries(fd):
            kind = self._kind_of(fd, name) if d_type == _DT_UNKNOWN else _D_TYPES.get(d_type, "other")
            if kind is None:
                continue
            if len(found) == MAX_ENTRIES:
                raise TooLarge(f"{self.shown(rel)} holds more than {MAX_ENTRIES} names")
            found.append(Listed(name.decode("utf-8", "surrogateescape"), kind))
        return found

    def _kind_of(self, dir_fd: int, name: bytes) -> Kind | None:
        """The kind of a name for which the directory gives no type; `None` if it is gone."""
        try:
            fd = self.resolver.open(dir_fd, name, EXAMINE)
        except FileNotFoundError:
            return None
        except OSError:
            # A link or a mount; whatever else stops an O_PATH open also stops any use of it.
            return "other"
        try:
            mode = fstat(fd).st_mode
        finally:
            os.close(fd)
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def _refuse_directory(self, rel: str, error: OSError) -> NoReturn:
        """Say why `rel` cannot be listed: ENOTDIR does not tell a file from a FIFO or a missing parent."""
        if error.errno == errno.ENOTDIR and self.examine(rel) is not None:
            raise NotAFile(f"{self.shown(rel)} is a file, not a directory") from error
        raise self.refusal(rel, error) from error

    def _refuse_object(self, rel: str, found: Stat) -> NoReturn:
        """Say why what was opened is not a file of its own."""
        if stat.S_ISDIR(found.st_mode):
            raise NotAFile(f"{self.shown(rel)} is a directory")
        if not stat.S_ISREG(found.st_mode):
            raise PathEscape(Via.SPECIAL, rel)
        if found.st_nlink == 0:
            raise NotFound(f"{self.shown(rel)} does not exist")
        # Another name of the same file may stand anywhere: which one is ours cannot be told.
        raise PathEscape(Via.HARDLINK, rel)

    def shown(self, rel: str) -> str:
        """A path in the words of messages: logical, and printable."""
        return printable(f"{self.scope}/{rel}" if rel else self.scope)


def encoded(rel: str) -> bytes:
    """The bytes of `rel` for the system, after the checks 1 to 6 of the module docstring.

    Raises:
        PathEscape: `nul`, `absolute` or `dotdot`.
        BadName: no path.
    """
    if not rel:
        return b"."
    # A quick test that no text refused by 1 to 4 passes; what it stops is looked at closely.
    between = f"/{rel}/"
    if "/." in between or "//" in between or "\0" in rel:
        _refuse_text(rel)
    try:
        # Surrogate escapes stand for the bytes 0x80 to 0xff only, so none of them can become `.`, `/` or NUL.
        path = rel.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadName(f"{printable(rel)!r} is not text that a file name can hold") from error
    if len(path) > MAX_PATH_BYTES:
        raise BadName(f"{printable(rel)!r}… is longer than {MAX_PATH_BYTES} bytes")
    return path


def _refuse_text(rel: str) -> None:
    if "\0" in rel:
        raise PathEscape(Via.NUL, rel)
    if rel.startswith("/"):
        raise PathEscape(Via.ABSOLUTE, rel)
    segments = rel.split("/")
    if ".." in segments:
        raise PathEscape(Via.DOTDOT, rel)
    if "" in segments or "." in segments:
        raise BadName(f"{printable(rel)!r} has an empty or '.' segment; write each directory once")


def _unreadable(shown: str, error: OSError) -> Unreadable:
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    return Unreadable(f"the system does not let this process read {shown} ({name})")
