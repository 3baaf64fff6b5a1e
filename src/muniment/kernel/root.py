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

Text is checked in this order before any system call, and never normalised:

1. NUL (a C string ends there), 2. a leading `/`, 3. a `..` segment: `PathEscape`.
4. an empty or `.` segment, 5. text that is not UTF-8, 6. more than `MAX_PATH_BYTES`: `BadName`.

The empty text is the root itself. Attacked by `tests/units/kernel/test_root*.py`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, NoReturn, Protocol, Self

from muniment.kernel.names import MAX_DEPTH, MAX_FILE_BYTES, MAX_PATH_BYTES, RelPath, Scope, Via, joined
from muniment.kernel.path import segment_problem
from muniment.kernel.refusal import (
    BadName,
    ManagedMemoryUnavailable,
    MunimentError,
    NotAFile,
    NotFound,
    PathEscape,
    TooLarge,
    ToolError,
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

_STEP: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


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
                below = os.open(name, _STEP, dir_fd=at)
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


class OpenDirectory:
    """A directory beneath a root, open to look at. Use it in a `with` statement.

    Args:
        root: the handle beneath which it is reached.
        rel: where, inside the scope; "" is the root.

    Attributes:
        status: what it was when it was opened (L2).

    Raises:
        PathEscape, BadName, Unreadable: as `Root.open_file`.
        NotFound: nothing of that name, or no directory.

    Cost: one `openat2`, one `fstat`.
    """

    __slots__ = ("_beneath", "_fd", "_rel", "_root", "status")

    def __init__(self, root: Root, rel: str) -> None:
        self._fd = -1
        try:
            self._fd = root.resolver.open(root.fd, encoded(rel), LIST)
            self.status = os.fstat(self._fd)
        except OSError as error:
            self.close()
            raise root.refusal(rel, error) from error
        self._root = root
        self._rel = rel
        self._beneath = Root(root.scope, self._fd, root.resolver)

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
            raise NotFound(f"{self._root.shown(self._rel)} does not exist")
        try:
            with os.scandir(self._fd) as listed:
                for item in listed:
                    if len(found) == MAX_ENTRIES:
                        raise TooLarge(f"{self._root.shown(self._rel)} holds more than {MAX_ENTRIES} names")
                    # A name was decoded by the locale's rules; here it is always UTF-8.
                    raw = os.fsencode(item.name)
                    name = raw.decode("utf-8", "surrogateescape")
                    if item.is_file(follow_symlinks=False):
                        found.append(Sighted(raw, name, "file", _status(item)))
                    else:
                        is_directory = item.is_dir(follow_symlinks=False)
                        found.append(Sighted(raw, name, "directory" if is_directory else "other", None))
        except OSError as error:
            raise self._root.refusal(self._rel, error) from error
        return found

    def status_of(self, name: str) -> os.stat_result | None:
        """What stands at a name, a link itself included; None if nothing does or the system does not tell.

        Cost: one `newfstatat`.
        """
        try:
            return os.stat(_leaf(name), dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return None

    def read(self, name: str) -> tuple[bytes, os.stat_result]:
        """The whole file of that name, and what it was before its first byte was read (L2).

        Raises:
            MunimentError: as `Root.read_bytes`.
        """
        _leaf(name)
        with self._beneath.open_file(name) as file:
            status = os.fstat(file.fd)
            return file.read_whole(MAX_FILE_BYTES), status

    def close(self) -> None:
        """Close the descriptor; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _status(item: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return item.stat(follow_symlinks=False)
    except OSError:
        return None


def _leaf(name: str) -> bytes:
    path = encoded(name)
    if not name or b"/" in path:
        raise BadName(f"{printable(name)!r} is not the name of something in one directory")
    return path


# -- links -------------------------------------------------------------------------------------------
#
# The symbolic links beneath a root, read by the broker when a run starts.
#
# On success of `read_links`:
#
# - K1 every name in the map was, at one moment during the call, a link of that target, in a directory
#   beneath the root and on its mount. Directories are reached by handle; links are read, never followed.
# - K2 every link is in the map that a canonical path can name, dot names included: a policy may grant
#   those. Left out is what no such path leads to, what cannot be listed or read, and what vanished
#   meanwhile.
# - K3 no more than `MAX_NAMES` names were looked at, and the map holds no more than `MAX_LINKS` links and
#   `MAX_LINK_BYTES` bytes.
#
# Does not hold: that the links are still so. Whoever opens what the map leads to follows nothing either, so
# a link that is missing here, or became one later, is refused. Targets are text that nobody has looked at:
# they may be absolute, endless, or outside the grammar (`muniment.policy.grammar`). Attacked by
# `tests/units/kernel/test_root.py`.

MAX_NAMES: Final = MAX_ENTRIES
"""Names of all kinds that are looked at: three times the files that the default policy allows. A single
directory of more cannot be listed either. Looking at as many takes about 0.3 s."""

MAX_LINKS: Final = 4_096
"""Links of one root. People link some dozens by hand, and tools a folder for each tag."""

MAX_LINK_BYTES: Final = 1 << 20
"""Bytes of all paths and targets of one root, 256 for each of `MAX_LINKS`: every worker is sent them."""


def read_links(root: Root) -> dict[RelPath, str]:
    """The target of each link beneath `root`, by the link's canonical path inside the scope.

    Targets that are not UTF-8 hold surrogate escapes; absolute ones are told as `/`, since the map is handed
    to workers.

    Raises:
        ManagedMemoryUnavailable: there are more names or links than K3 allows; says what to do.

    Cost: a listing a directory and a system call a link: 50 ms for 10 000 names in 500 directories.
    """
    links: dict[RelPath, str] = {}
    directories = [RelPath("")]
    names, size = 0, 0
    while directories:
        directory = directories.pop()
        listed = _listed(root, directory)
        names += len(listed)
        if names > MAX_NAMES:
            raise _too_many(root, f"more than {MAX_NAMES} names")
        directories += (joined(directory, name) for name in _of(listed, "directory"))
        with closing(_targets(root, directory, _of(listed, "other"))) as targets:
            for rel, target in targets:
                links[rel] = target
                size += len(rel.encode()) + len(target.encode(errors="surrogateescape"))
                if len(links) > MAX_LINKS or size > MAX_LINK_BYTES:
                    raise _too_many(root, f"more than {MAX_LINKS} links, or links with very long targets")
    return links


def _listed(root: Root, directory: RelPath) -> tuple[Listed, ...]:
    """What stands in a directory; nothing if it cannot be listed, or is deeper than any path leads."""
    if directory.count("/") + 2 >= MAX_DEPTH:
        return ()
    try:
        return root.list_directory(directory)
    except TooLarge:
        raise _too_many(root, f"more than {MAX_NAMES} names") from None
    except (PathEscape, ToolError):
        return ()  # A mount, or gone, or not ours to read: its links stay out and are refused (K2).


def _of(listed: Sequence[Listed], kind: Kind) -> list[str]:
    """The names of a kind that a canonical path may hold."""
    return [item.name for item in listed if item.kind == kind and segment_problem(item.name) is None]


def _targets(root: Root, directory: RelPath, names: Sequence[str]) -> Generator[tuple[RelPath, str]]:
    """Each of `names` in `directory` that is a link, as a path inside the scope, with its target."""
    if not names:
        return
    try:
        fd = root.resolver.open(root.fd, encoded(directory), EXAMINE)
    except OSError:
        return  # The directory went, or was replaced, since it was listed.
    try:
        for name in names:
            try:
                target = os.readlink(name.encode(), dir_fd=fd)
            except OSError:
                continue  # Something else than a link, or gone.
            # Wherever an absolute target leads, it leads outside: where is nobody's business.
            shown = b"/" if target.startswith(b"/") else target
            yield joined(directory, name), shown.decode(errors="surrogateescape")
    finally:
        os.close(fd)


def _too_many(root: Root, what: str) -> ManagedMemoryUnavailable:
    reason = f"it holds {what}, too many to resolve its links; bind a smaller directory, or refuse links"
    return ManagedMemoryUnavailable(root.scope, f"{reason} (symlinks = 'refuse')")
