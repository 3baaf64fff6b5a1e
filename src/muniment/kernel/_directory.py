"""What is done to names in one open directory beneath a root; `land` alone uses it, for what may be landed.

On success:

- W1 no write follows a link or crosses a mount: a name is always a single component beneath a directory
  that was opened through the root's resolver.
- W2 a file is whole at every instant: its bytes are on disk under a temporary name (0600 before the first
  of them) before its own name leads to them.
- W3 nothing is replaced or removed but what was claimed: it is set aside atomically, hashed, and put back if
  it is something else (`Landing.ATOMIC`). Where the file system lacks `renameat2` flags the claim is
  checked just before a plain rename (`Landing.PLAIN_RENAME`): a write of another process in between is lost.
- W4 nothing is deleted recursively or by path.
- W5 what is made on the way is 0700 and synced into its parent, and is named by the result, so that an
  aborted commit can take it away again.

Does not hold: a directory that another process moves out of the root during a write takes that write along;
a process that holds a replaced file open may still write to its old bytes.

Order of use: `open_directory`, `Directory.stage`, then `publish_new`, `replace`, `replace_link` or
`withdraw`, then `Directory.sync`. Temporary names come from `temporary_name`, so that a journal can have them
before they exist. Each has two companions, so that a recovery can tell from the name what a file is:

- `partial_name`: bytes that are being written. They are ours, and perhaps not whole.
- the temporary name itself: whole bytes that were staged, or what they displaced.
- `rollback_name`: the same, for the bytes that a rollback puts back.
"""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muniment.kernel.change import digest
from muniment.kernel.names import MAX_FILE_BYTES, Digest, Scope, Via
from muniment.kernel.path import CanonicalPath
from muniment.kernel.refusal import (
    BadName,
    ManagedMemoryUnavailable,
    NotAFile,
    NotFound,
    PathEscape,
    StoreConflict,
    TooLarge,
    ToolError,
    Unreadable,
    printable,
)
from muniment.kernel.root import Descriptor, Root, leaf, open_leaf, refusal_of
from muniment.kernel.syscalls import LIST, MACHINE, last_error, os
from muniment.kernel.syscalls import renameat2 as _renameat2

_TEMPORARY: Final = re.compile(r"(\.muniment-[0-9a-f]{16})(-part|-back)?\.tmp", re.ASCII)
_TOKEN_BYTES: Final = 8

_NOREPLACE, _EXCHANGE = 1, 2
_LACKS_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS})
_FILE_MODE: Final = 0o600
_MODE: Final = 0o700
_IN_USE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})

_REASONS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "this user may not write there; correct its permissions",
    errno.EPERM: "this user may not write there; correct its permissions or attributes",
    errno.EIO: "the disk reports an error while reading or writing",
    errno.EMFILE: "this process has too many files open",
    errno.ENFILE: "the system has too many files open",
    errno.ENOENT: "one of its directories was removed meanwhile; try again",
    errno.ENOLCK: "its file system cannot lock directories; bind one on a local disk",
    errno.EOPNOTSUPP: "its file system cannot lock directories; bind one on a local disk",
}


class Landing(StrEnum):
    """How a name changed; callers log anything but `ATOMIC`."""

    ATOMIC = "atomic"
    """Checked and changed with no moment in between."""
    PLAIN_RENAME = "plain_rename"
    """Checked, then changed: the file system has no better way."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes that lie on disk under a temporary name of one directory."""

    temporary: str
    digest: Digest


def temporary_name(random_bytes: Callable[[int], bytes]) -> str:
    """A name for `Directory.stage` or `withdraw`: 64 random bits, nothing to plant ahead of time."""
    return f".muniment-{random_bytes(_TOKEN_BYTES).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether `name` could have come from `temporary_name`, or is a companion of such a name."""
    return type(name) is str and _TEMPORARY.fullmatch(name) is not None


def partial_name(temporary: str) -> str:
    """Return the name under which the bytes for `temporary` are written until they are whole."""
    return _TEMPORARY.sub(r"\1-part.tmp", as_temporary(temporary))


def rollback_name(temporary: str) -> str:
    """Return the name that a rollback uses where the commit used `temporary`."""
    return _TEMPORARY.sub(r"\1-back.tmp", as_temporary(temporary))


class Directory(Descriptor):
    """An open directory beneath a root, for writing.

    Every `name` is one component. Digests are those of whole files.

    Attributes:
        root: the handle beneath which it was reached.
        path: where it was reached.
        created: directories made on the way, outermost first. Their parents are already synced.
    """

    __slots__ = ("created", "path", "root")

    def __init__(self, root: Root, fd: int, path: CanonicalPath) -> None:
        super().__init__(fd)
        self.root, self.path = root, path
        self.created: tuple[CanonicalPath, ...] = ()

    def read(self, name: str) -> bytes:
        """Return the bytes of a file in this directory, by the rules of `Root.read_bytes`.

        Raises:
            ManagedMemoryUnavailable: the system does not let it be read now, so nobody knows what it is.
            PathEscape, NotFound, NotAFile, TooLarge: as `Root.read_bytes`; something else has the name.
        """
        try:
            with open_leaf(self.root, self.fd, name, f"{self.path.text}/{name}") as file:
                return file.read_whole(MAX_FILE_BYTES)
        except Unreadable as error:
            raise ManagedMemoryUnavailable(self.root.scope, str(error)) from error
        except PathEscape as error:
            # The error of a device that is gone is also that of a socket.
            found = self._status(name) if error.via is Via.SPECIAL else None
            if found is not None and stat.S_ISREG(found.st_mode):
                raise ManagedMemoryUnavailable(self.root.scope, f"its device is gone: {error}") from error
            raise

    def stage(self, temporary: str, content: bytes, *, durable: bool = True) -> Staged:
        """Put `content` on disk under a temporary name, once it is whole: 0600 before the first byte.

        Args:
            temporary: the name, see `temporary_name`; until all is written the file is at its `partial_name`.
            content: the bytes.
            durable: sync them; else they may be lost when the power fails, with the name that they get.

        Raises:
            TooLarge: more than `MAX_FILE_BYTES`.
            BadName: `temporary` is not a temporary name.
            StoreConflict: a temporary name is taken.
            ManagedMemoryUnavailable: the system refuses. The partial file is removed, if that can be done.
        """
        if len(content) > MAX_FILE_BYTES:
            raise TooLarge(f"more than {MAX_FILE_BYTES} bytes in one file")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        partial = partial_name(temporary)
        if self._status(temporary) is not None:
            raise self._conflict(temporary)
        with reporting(self.root.scope):
            try:
                fd = os.open(partial, flags, _FILE_MODE, dir_fd=self.fd)
            except FileExistsError as error:
                raise self._conflict(partial) from error
            try:
                try:
                    os.fchmod(fd, _FILE_MODE)
                    _write_all(fd, content)
                    if durable:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                # Nobody else knows this name, so a plain rename replaces nothing.
                os.rename(partial, temporary, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except BaseException:
                self._unlink(partial)
                raise
        return Staged(temporary, digest(content))

    def publish_new(self, staged: Staged, name: str) -> Landing:
        """Give staged bytes a name that nothing has.

        Raises:
            StoreConflict: something has the name. The staged bytes stay under their temporary one.
            ManagedMemoryUnavailable: the system refuses.
        """
        return self._move(staged.temporary, name, conflict=name)

    def replace(self, staged: Staged, name: str, claimed: Digest) -> Landing:
        """Give staged bytes the name of a file that still is what was claimed, and drop that file.

        Raises:
            StoreConflict: the name is gone, is no file of its own, or holds other bytes. What stood there
                stands there again, and the staged bytes stay under their temporary name.
            ManagedMemoryUnavailable: the system refuses. Either name may hold either file.
        """
        return self._swap_in(staged, name, lambda at: self._require(at, claimed, name))

    def replace_link(self, staged: Staged, name: str) -> Landing:
        """Give staged bytes the name of a link, which is replaced and not followed.

        Of a hard link the other names keep the bytes.

        Raises:
            StoreConflict: the name is gone, or no link has it any more: that stands there again, and the
                staged bytes stay under their temporary name.
            ManagedMemoryUnavailable: the system refuses.
        """
        return self._swap_in(staged, name, lambda at: self._require_link(at, name))

    def withdraw(self, name: str, temporary: str, claimed: Digest) -> Landing:
        """Remove a file that still is what was claimed.

        It is set aside under `temporary` before it is hashed for the last time: what is hashed is removed.

        Raises:
            StoreConflict: the name is gone, is no file of its own, or holds other bytes. It has its name
                again, unless somebody took that meanwhile: then it stays under the temporary one.
            BadName: `temporary` is not a temporary name.
            ManagedMemoryUnavailable: the system refuses.
        """
        aside = as_temporary(temporary)
        self._require(name, claimed, name)
        landing = self._move(name, aside, conflict=name)
        try:
            self._require(aside, claimed, name)
        except BaseException:
            self._move(aside, name, conflict=name)
            raise
        self._unlink(aside)
        return landing

    def set_aside(self, name: str, above: Directory, kept: str, claimed: Digest) -> Landing:
        """Give a file that still is what was claimed another name, in another directory of its root.

        Raises:
            StoreConflict: either name is not so; what stood at `name` stands there again.
            ManagedMemoryUnavailable: the system refuses.
        """
        self._require(name, claimed, name)
        landing = self._move(name, kept, conflict=kept, to=above)
        try:
            above._require(kept, claimed, name)
        except BaseException:
            above._move(kept, name, conflict=name, to=self)
            raise
        return landing

    def discard(self, staged: Staged) -> None:
        """Unlink a temporary name that still holds what was staged. Harmless when it is gone.

        Raises:
            BadName: the name is not a temporary one.
            StoreConflict: it holds something else, which stays.
            ManagedMemoryUnavailable: the system refuses.
        """
        if self._status(as_temporary(staged.temporary)) is not None:
            self._require(staged.temporary, staged.digest, staged.temporary)
            self._unlink(staged.temporary)

    def drop_partial(self, temporary: str) -> None:
        """Unlink what was being written for a temporary name, whatever it holds. Harmless if it is gone.

        Raises:
            BadName: the name is not a temporary one.
            ManagedMemoryUnavailable: the system refuses.
        """
        self._unlink(partial_name(temporary))

    def sync(self) -> None:
        """Put the names of this directory on disk: one `fsync`.

        Raises:
            ManagedMemoryUnavailable: the disk reports an error.
        """
        with reporting(self.root.scope):
            os.fsync(self.fd)

    def _move(self, old: str, new: str, *, conflict: str, to: Directory | None = None) -> Landing:
        """Rename to a name that nothing has; `StoreConflict` about `conflict` if either side is not so."""
        with reporting(self.root.scope):
            try:
                return self._rename(old, new, _NOREPLACE, to or self)
            except (FileExistsError, FileNotFoundError) as error:
                raise self._conflict(conflict) from error

    def _swap_in(self, staged: Staged, name: str, check: Callable[[str], None]) -> Landing:
        """Give staged bytes a name whose holder `check` accepts, and drop that holder.

        `check` raises `StoreConflict` unless what is at the name that it is given may be dropped. It is asked
        twice: before, so that what is plainly something else is not even moved for a moment, and of what was
        really displaced, since only that cannot change any more by its name.
        """
        check(name)
        with reporting(self.root.scope):
            try:
                landing = self._rename(staged.temporary, name, _EXCHANGE, self)
            except FileNotFoundError as error:
                raise self._conflict(name) from error
            if landing is not Landing.ATOMIC:
                return landing
            try:
                check(staged.temporary)
            except BaseException:
                self._rename(staged.temporary, name, _EXCHANGE, self)
                raise
        self._unlink(staged.temporary)
        return landing

    def _require_link(self, name: str, conflict: str) -> None:
        """Raise `StoreConflict` about `conflict` unless `name` is a link or a name of a hard-linked file."""
        found = self._status(name)
        is_link = found is not None and (
            stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1)
        )
        if not is_link:
            raise self._conflict(conflict)

    def _status(self, name: str) -> os.stat_result | None:
        """What has a name, a link itself included; None: nothing."""
        with reporting(self.root.scope), suppress(FileNotFoundError):
            return os.stat(leaf(name), dir_fd=self.fd, follow_symlinks=False)
        return None

    def _unlink(self, name: str) -> None:
        with reporting(self.root.scope), suppress(FileNotFoundError):
            os.unlink(leaf(name), dir_fd=self.fd)

    def _rename(self, old: str, new: str, flags: int, to: Directory) -> Landing:
        """By `renameat2`; where the file system lacks its flags, look and rename."""
        if _renameat2(MACHINE.renameat2, self.fd, leaf(old), to.fd, leaf(new), flags) >= 0:
            return Landing.ATOMIC
        if (error := last_error()).errno not in _LACKS_FLAGS:
            raise error
        if flags == _NOREPLACE and to._status(new) is not None:
            raise FileExistsError
        os.rename(leaf(old), leaf(new), src_dir_fd=self.fd, dst_dir_fd=to.fd)
        return Landing.PLAIN_RENAME

    def _require(self, name: str, claimed: Digest, conflict: str) -> None:
        """Raise `StoreConflict` about `conflict` unless the file `name` holds what was claimed.

        Raises:
            ManagedMemoryUnavailable: it cannot be read now, so nobody knows whether it does.
        """
        leaf(name)
        try:
            content = self.read(name)
        except (PathEscape, ToolError) as error:
            # A link, a directory, a file that is too large: it is not what was claimed.
            raise self._conflict(conflict) from error
        if digest(content) != claimed:
            raise self._conflict(conflict)

    def _conflict(self, name: str) -> StoreConflict:
        return StoreConflict((printable(f"{self.path.text}/{name}"),))


@contextmanager
def reporting(scope: Scope) -> Iterator[None]:
    """Turn an error of the system into `ManagedMemoryUnavailable`, with a reason that a person can act on."""
    try:
        yield
    except OSError as error:
        raise unavailable(scope, error) from error


def unavailable(scope: Scope, error: OSError) -> ManagedMemoryUnavailable:
    """What an error of the system means to the person who owns the root."""
    return ManagedMemoryUnavailable(
        scope, _REASONS.get(error.errno or 0, f"the system refused: {error.strerror}")
    )


def as_temporary(name: str) -> str:
    """`name`, if it is one that holds nobody's entry."""
    if not is_temporary(name):
        raise BadName(f"{printable(name)!r} is not a temporary name")
    return name


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def open_directory(root: Root, path: CanonicalPath, *, create: bool) -> Directory:
    """Open a directory beneath a root for writing.

    Args:
        root: the handle to stay beneath.
        path: which directory, in the scope of the root.
        create: make what is missing, each 0700, and sync the directory that each is made in.

    Raises:
        PathEscape: the way meets a link or a mount.
        NotFound: the directory, or one on the way, does not exist.
        NotAFile: a file stands where a directory is needed.
        ManagedMemoryUnavailable: the system refuses to create.
        TypeError, ValueError: as `Root.way`.

    Cost: an open; for each directory that is made, two more, and an `fsync`.
    """
    try:
        return _opened(root, path)
    except NotFound:
        if not create or not path.rel:
            raise
    with open_directory(root, path.parent, create=True) as above:
        try:
            with reporting(root.scope):
                # Somebody else may have made it in this moment: then it is theirs to remove.
                with suppress(FileExistsError):
                    os.mkdir(leaf(path.name), _MODE, dir_fd=above.fd)
                    above.created = (*above.created, path)
                os.fsync(above.fd)
            directory = _opened(root, path)
        except BaseException:
            for made in reversed(above.created):
                remove_empty_directory(root, made)
            raise
    directory.created = above.created
    return directory


def remove_empty_directory(root: Root, path: CanonicalPath) -> bool:
    """Remove a directory that an aborted commit created, unless somebody uses it.

    Returns:
        Whether it is gone; not if anything stands in it, or something else in its place.

    Raises:
        PathEscape: the way meets a link or a mount.
        ManagedMemoryUnavailable: the system refuses.
        BadName: it is a scope.
    """
    name = leaf(path.rel.rpartition("/")[2])
    try:
        with open_directory(root, path.parent, create=False) as directory:
            os.rmdir(name, dir_fd=directory.fd)
    except (NotFound, FileNotFoundError):
        return True
    except NotAFile:
        return False
    except OSError as error:
        if error.errno not in _IN_USE:
            raise unavailable(root.scope, error) from error
        return False
    return True


def _opened(root: Root, path: CanonicalPath) -> Directory:
    """Open a directory that exists, following nothing."""
    with reporting(root.scope):
        try:
            return Directory(root, root.resolver.open(root.fd, root.way(path), LIST), path)
        except NotADirectoryError as error:
            raise NotAFile(printable(f"{path.text} is a file, not a directory")) from error
        except OSError as error:
            refusal = refusal_of(path.text, error)
            if isinstance(refusal, Unreadable) or (
                isinstance(refusal, PathEscape) and refusal.via is Via.SPECIAL  # Its device is gone.
            ):
                raise
            raise refusal from error
