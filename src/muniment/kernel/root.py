"""A root: the open directory of a scope, and reading beneath it by handle, never by a checked string.

On success of any method:

- C1 no component of the path was a symbolic link; nothing was followed.
- C2 what was opened lay beneath the root, on its mount (the walk's limit: see `muniment.kernel.walk`).
- C3 a file whose bytes are returned is regular, has one name (`st_nlink == 1`) and is within the limit. This
  was asked of the descriptor that is then read.
- C4 no call waited for another process.
- C5 no descriptor with an offset outlives a call or is shared: the root is O_PATH, listings open their own,
  reads give their position.

Does not hold: that the root is still where it was bound (`muniment.kernel.binding.BoundRoot.verify`), that a
file does not change while it is read, or that a name, once listed, still exists.

Every way in is a `CanonicalPath` of the root's own scope, so that no text leads anywhere. Within a directory
that is open, `leaf` lets single names through, also such as no path may hold. Attacked by
`tests/units/kernel/test_root*.py`.
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
from muniment.kernel.syscalls import (
    EXAMINE,
    LIST,
    READ,
    Openat2Resolver,
    Purpose,
    Stat,
    available,
    entries,
    fstat,
    os,
    require_known_machine,
)
from muniment.kernel.walk import WalkResolver

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


class Descriptor:
    """Something open. Close it, or use it in a `with` statement.

    A plain class because one is made at every open, where a frozen dataclass costs as much as a system call.

    Attributes:
        fd: the descriptor, or -1 once closed.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close the descriptor; harmless when repeated."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class OpenFile(Descriptor):
    """A regular file beneath a root, open for reading.

    Attributes:
        size: bytes, when it was opened.
    """

    __slots__ = ("_shown", "size")

    def __init__(self, fd: int, size: int, shown: str) -> None:
        self.fd = fd
        self.size = size
        self._shown = shown

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
            raise unreadable(self._shown, error) from error
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
            raise TooLarge(f"{printable(self._shown)} is larger than {limit} bytes")
        return content


@dataclass(frozen=True, slots=True)
class Root:
    """The handle of a scope that a worker holds: a name, an O_PATH directory, a way to open beneath it.

    The descriptor belongs to whoever bound it. Every method takes a path of this scope, and raises
    `ValueError` for one of another and `TypeError` for text.
    """

    scope: Scope
    fd: int
    resolver: Resolver

    def way(self, path: CanonicalPath) -> bytes:
        """The bytes of `path`, seen from here, for the system.

        Raises:
            TypeError: it is no path.
            ValueError: it is one of another scope.
        """
        if type(path) is not CanonicalPath:
            raise TypeError("only a CanonicalPath leads beneath a root")
        if path.scope != self.scope:
            raise ValueError(f"{path.scope} is not beneath the root of {self.scope}")
        return path.rel.encode() or b"."

    def open_file(self, path: CanonicalPath) -> OpenFile:
        """Open an existing file for reading.

        Raises:
            PathEscape: the way meets a link, a mount, a hard link or something special.
            NotFound: nothing of that name, or it was removed while it was opened.
            NotAFile: the name belongs to a directory.
            Unreadable: the system refuses; the message names its error.

        Cost: one `openat2` and one `fstat`; the path is never built or searched again.
        Source: openat2(2).
        """
        return _opened(self.resolver, self.fd, self.way(path), path.text)

    def read_bytes(self, path: CanonicalPath, limit: int = MAX_FILE_BYTES) -> bytes:
        """The whole file.

        Args:
            path: which.
            limit: bytes; `MAX_FILE_BYTES` holds as well.

        Raises:
            MunimentError: as `open_file` and `OpenFile.read_whole`.
        """
        with self.open_file(path) as file:
            return file.read_whole(limit)

    def list_directory(self, path: CanonicalPath) -> tuple[Listed, ...]:
        """Names in a directory, sorted by code point; names that are not UTF-8 hold surrogate escapes.

        Raises:
            NotAFile: a file stands there.
            TooLarge: more than `MAX_ENTRIES` names.
            MunimentError: otherwise as `open_file`; `NotFound` also for a directory that was removed.

        Cost: an open of its own, so that no offset is shared; where the file system gives no types, an open
        a name.
        """
        try:
            with Descriptor(self.resolver.open(self.fd, self.way(path), LIST)) as opened:
                found = self._entries(opened.fd, path.text)
        except OSError as error:
            # ENOTDIR does not tell a file from a FIFO or a missing parent.
            if error.errno == errno.ENOTDIR and self.examine(path) is not None:
                raise NotAFile(f"{printable(path.text)} is a file, not a directory") from error
            raise refusal_of(path.text, error) from error
        return tuple(sorted(found, key=lambda entry: entry.name))

    def link_target(self, path: CanonicalPath) -> bytes | None:
        """Where the link at `path` says that it leads; it is not followed. None: no link can be read there.

        Cost: an open and two system calls.
        """
        try:
            with Descriptor(self.resolver.open(self.fd, self.way(path.parent), EXAMINE)) as above:
                return os.readlink(path.name.encode(), dir_fd=above.fd)
        except OSError:
            return None

    def examine(self, path: CanonicalPath) -> Examined | None:
        """What stands at `path`, without opening it; `None` if nothing does.

        Answers about files and directories only, the same that could be opened: the rest raises.

        Raises:
            PathEscape: as `open_file`, hard links included.
            Unreadable: the system refuses the way there.
        """
        try:
            with Descriptor(self.resolver.open(self.fd, self.way(path), EXAMINE)) as opened:
                found = fstat(opened.fd)
        except OSError as error:
            if isinstance(told := refusal_of(path.text, error), NotFound):
                return None
            raise told from error
        if found.st_nlink == 0:
            return None
        kind: Kind = "directory" if stat.S_ISDIR(found.st_mode) else "file"
        if kind == "file" and (not stat.S_ISREG(found.st_mode) or found.st_nlink != 1):
            _refuse_object(path.text, found)
        return Examined(kind, found.st_size)

    def _entries(self, fd: int, shown: str) -> list[Listed]:
        found: list[Listed] = []
        for name, d_type in entries(fd):
            kind = self._kind_of(fd, name) if d_type == _DT_UNKNOWN else _D_TYPES.get(d_type, "other")
            if kind is None:
                continue
            if len(found) == MAX_ENTRIES:
                raise TooLarge(f"{printable(shown)} holds more than {MAX_ENTRIES} names")
            found.append(Listed(name.decode("utf-8", "surrogateescape"), kind))
        return found

    def _kind_of(self, dir_fd: int, name: bytes) -> Kind | None:
        """The kind of a name for which the directory gives no type; `None` if it is gone."""
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


def _opened(resolver: Resolver, dir_fd: int, way: bytes, shown: str) -> OpenFile:
    """`Root.open_file`, of bytes from `Root.way` or `leaf`."""
    try:
        fd = resolver.open(dir_fd, way, READ)
    except OSError as error:
        raise refusal_of(shown, error) from error
    try:
        found = fstat(fd)
        if found.st_mode & _TYPE_BITS != _REGULAR or found.st_nlink != 1:
            _refuse_object(shown, found)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise unreadable(shown, error) from error
        raise
    return OpenFile(fd, found.st_size, shown)


def _refuse_object(shown: str, found: Stat) -> NoReturn:
    """Say why what was opened is not a file of its own."""
    if stat.S_ISDIR(found.st_mode):
        raise NotAFile(f"{printable(shown)} is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise PathEscape(Via.SPECIAL, shown)
    if found.st_nlink == 0:
        raise NotFound(f"{printable(shown)} does not exist")
    # Another name of the same file may stand anywhere: which one is ours cannot be told.
    raise PathEscape(Via.HARDLINK, shown)


def refusal_of(shown: str, error: OSError) -> MunimentError:
    """What a failed open of what is `shown` means, in words fit for a model: one line, no host path."""
    if (via := _ESCAPES.get(error.errno or 0)) is not None:
        return PathEscape(via, shown)
    if error.errno in _ABSENT:
        return NotFound(f"{printable(shown)} does not exist")
    return unreadable(shown, error)


def unreadable(shown: str, error: OSError) -> Unreadable:
    """Return the refusal for an error that says neither that a file is absent nor that it is an escape."""
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    return Unreadable(f"the system does not let this process read {printable(shown)} ({name})")


def leaf(name: str) -> bytes:
    """The bytes of a single component; a `/` would lead elsewhere, at the front even past the descriptor.

    Raises:
        PathEscape: it holds NUL, where a C string ends, or leads upwards or to the system's root.
        BadName: it is empty, `.`, more than one component, or nothing that a file name can hold.
        TypeError: it is not text, or of a class of text that may say something else later.
    """
    if type(name) is not str:
        raise TypeError("a name is plain text")
    if "/" in name or "\0" in name or name in {"", ".", ".."}:
        _refuse_name(name)
    try:
        # Surrogate escapes stand for the bytes 0x80 to 0xff only, so none of them can become `.`, `/` or NUL.
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadName(f"{printable(name)!r} is not text that a file name can hold") from error


def _refuse_name(name: str) -> NoReturn:
    if "\0" in name:
        raise PathEscape(Via.NUL, name)
    if name.startswith("/") or ".." in name.split("/"):
        raise PathEscape(Via.ABSOLUTE if name.startswith("/") else Via.DOTDOT, name)
    raise BadName(f"{printable(name)!r} is not the name of something in one directory")


def open_leaf(root: Root, dir_fd: int, name: str, shown: str) -> OpenFile:
    """Open a file in a directory that was reached beneath `root`, by the rules of `Root.open_file`.

    Raises:
        MunimentError: as `leaf` and `Root.open_file`; about what is `shown`.
    """
    return _opened(root.resolver, dir_fd, leaf(name), shown)
