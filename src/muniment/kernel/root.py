"""A root: the open directory of a scope, and reading beneath it by handle, never by a checked string.

On success of any method:

- C1 no component of the path was a symbolic link; nothing was followed.
- C2 what was opened lay beneath the root, on its mount (the walk's limit: see `muniment.kernel.root`).
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
from typing import Final, Literal, NamedTuple, NoReturn, Protocol, Self

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
    STEP,
    Openat2Resolver,
    Purpose,
    Stat,
    available,
    entries,
    fstat,
    os,
    require_known_machine,
)

# -- walk --------------------------------------------------------------------------------------------
#
# Opening beneath a root one component at a time, for systems without `openat2`.
#
# The contract is that of `muniment.kernel.syscalls`, and so are the error numbers, with two differences:
#
# - A mount is seen by its device number only. A bind mount from the same file system is not seen; where
#   files of one mount have several device numbers (some stacked file systems) they are refused.
# - Between two components another process may move the directory just reached. What is opened is still a
#   descendant of a directory that was beneath the root at one moment during the walk.
#
# Directories on the way are opened O_PATH, so that nothing but the last component is opened in earnest, and
# are asked by descriptor what they are: a link is found to be a link, not guessed from ENOTDIR.


class WalkResolver:
    """The portable resolver. Holds nothing; may be shared."""

    __slots__ = ()
    name: Final = "walk"

    def open(self, dir_fd: int, path: bytes, purpose: Purpose) -> int:
        """A new descriptor of `path` beneath `dir_fd`; see `muniment.kernel.root.Resolver`.

        Cost: an `openat`, `fstat` and `close` a component.
        """
        device = fstat(dir_fd).st_dev
        names = path.split(b"/")
        # A directory is walked to its end and then opened as ".", so that its last component is checked
        # alike.
        last = b"." if purpose & os.O_DIRECTORY else names.pop()
        at = dir_fd
        try:
            for name in names:
                below = os.open(name, STEP, dir_fd=at)
                at = _moved(at, below, dir_fd)
                if not stat.S_ISDIR(_checked(at, device)):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            fd = os.open(last, purpose | os.O_NOFOLLOW, dir_fd=at)
        finally:
            _moved(at, dir_fd, dir_fd)
        try:
            _checked(fd, device)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _moved(from_fd: int, to_fd: int, keep_fd: int) -> int:
    """`to_fd`, after closing the directory that the walk leaves; the caller's own stays open."""
    if from_fd != keep_fd:
        os.close(from_fd)
    return to_fd


def _checked(fd: int, device: int) -> int:
    """The mode of `fd`, unless it is a link or on another device."""
    found = fstat(fd)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if found.st_dev != device:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return found.st_mode


# -- root --------------------------------------------------------------------------------------------

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
            raise _unreadable(self._shown, error) from error
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
            raise _unreadable(shown, error) from error
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
    return _unreadable(shown, error)


def _unreadable(shown: str, error: OSError) -> Unreadable:
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    return Unreadable(f"the system does not let this process read {printable(shown)} ({name})")


# -- names -------------------------------------------------------------------------------------------


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


# -- listing -----------------------------------------------------------------------------------------
#
# An open directory beneath a root, to look at: its names, what each is, and the bytes of its files.
#
# For whoever keeps account of a memory and wants to know what changed in it. On success of any method, C1
# to C5 of `muniment.kernel.root` hold, and:
#
# - L1 every name is a single component in the directory that was opened, wherever that is by now: no other
#   process can lead a second call elsewhere than the first.
# - L2 the times of the directory were taken before its names, and those of a file before its bytes, of the
#   very descriptor that is read: what changes meanwhile has later times than were told.
#
# The broker's only: a fenced worker may not make these calls. Attacked by
# `tests/units/kernel/test_root.py`.


class Sighted(NamedTuple):
    """A name in a directory, and what it was when listed. A mount point is listed as what it covers.

    A plain tuple because a sweep makes one of every name there is.

    Attributes:
        raw: the name as the system has it.
        name: as text; bytes that are not UTF-8 are surrogate escapes.
        kind: what it is.
        status: of a file, unless it vanished.
    """

    raw: bytes
    name: str
    kind: Kind
    status: os.stat_result | None


class OpenDirectory(Descriptor):
    """A directory beneath a root, open to look at.

    Args:
        root: the handle beneath which it is reached.
        path: where; the scope is the root.

    Attributes:
        status: what it was when it was opened (L2).

    Raises:
        PathEscape, Unreadable, ValueError, TypeError: as `Root.open_file`.
        NotFound: nothing of that name, or no directory.

    Cost: one `openat2`, one `fstat`.
    """

    __slots__ = ("_path", "_root", "status")

    def __init__(self, root: Root, path: CanonicalPath) -> None:
        self.fd, self._root, self._path = -1, root, path
        try:
            self.fd = root.resolver.open(root.fd, root.way(path), LIST)
            self.status = os.fstat(self.fd)
        except OSError as error:
            self.close()
            raise refusal_of(path.text, error) from error

    def entries(self) -> list[Sighted]:
        """Its names, in no order.

        Raises:
            TooLarge: more than `MAX_ENTRIES` names.
            NotFound: the directory was removed.
            Unreadable: the system refuses.

        Cost: a `newfstatat` a file.
        """
        found: list[Sighted] = []
        if not self.status.st_nlink:  # The C library would call it empty.
            raise NotFound(f"{printable(self._path.text)} does not exist")
        try:
            with os.scandir(self.fd) as listed:
                for item in listed:
                    if len(found) == MAX_ENTRIES:
                        raise TooLarge(f"{printable(self._path.text)} holds more than {MAX_ENTRIES} names")
                    # A name was decoded by the locale's rules; here it is always UTF-8.
                    raw = os.fsencode(item.name)
                    name = raw.decode("utf-8", "surrogateescape")
                    if item.is_file(follow_symlinks=False):
                        found.append(Sighted(raw, name, "file", _status(item)))
                    else:
                        kind: Kind = "directory" if item.is_dir(follow_symlinks=False) else "other"
                        found.append(Sighted(raw, name, kind, None))
        except OSError as error:
            raise refusal_of(self._path.text, error) from error
        return found

    def status_of(self, name: str) -> os.stat_result | None:
        """Return what stands at a name, a link itself included, or None if nothing does.

        Raises:
            Unreadable: the system does not tell.

        Cost: one `newfstatat`.
        """
        try:
            return os.stat(leaf(name), dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise _unreadable(f"{self._path.text}/{name}", error) from error

    def read(self, name: str) -> tuple[bytes, os.stat_result]:
        """The whole file of that name, and what it was before its first byte was read (L2).

        Raises:
            MunimentError: as `Root.read_bytes`.
        """
        with open_leaf(self._root, self.fd, name, f"{self._path.text}/{name}") as file:
            status = os.fstat(file.fd)
            return file.read_whole(MAX_FILE_BYTES), status


def _status(item: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return item.stat(follow_symlinks=False)
    except OSError:
        return None
