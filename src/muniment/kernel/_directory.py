"""Create, replace and remove files by name in one open directory under a root. Only `apply` uses this module.

Promises of each call that succeeds:

- W1 No write follows a link or crosses a mount. A name is always a single path component in a directory that
  was opened through the resolver of the root.
- W2 A file is complete at every instant. All its bytes are on disk under a temporary name (mode 0600 before
  the first byte) before its final name points to them.
- W3 A file is replaced or removed only if it has the digest that the caller expects (`claimed`). It is moved
  aside atomically, hashed, and moved back if its digest differs (`ReplaceMethod.ATOMIC`). If the file system
  does not support the flags of `renameat2`, the digest is checked just before a plain rename
  (`ReplaceMethod.PLAIN_RENAME`). A write of another process between this check and the rename is lost.
- W4 Each deletion removes one name from one open directory. No deletion is recursive.
- W5 New directories have mode 0700, are synced into their parents, and are listed in `Directory.created`, so
  that an aborted commit can remove them.

Not guaranteed: If another process moves the directory out of the root during a write, the file is written in
the moved directory. A process that opened a file before its replacement may still write to the old bytes.

Order of calls: `open_directory`, `Directory.stage`, then `publish_new`, `replace`, `replace_link` or
`remove`, then `Directory.sync`. Temporary names come from `build_temporary_name`, so that a journal can
record them before the files exist. From each temporary name, two more names are built. A recovery can read
from the name of a file what the file contains:

- the name from `build_partial_name`: bytes that are being written, and may be incomplete.
- the temporary name: the complete new file, or the file that it displaced.
- the name from `build_rollback_name`: the file that a rollback restores, or the file that it displaced.
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
from muniment.kernel.root import Descriptor, Root, convert_open_error, encode_name, open_name
from muniment.kernel.syscalls import LIST, MACHINE, os, read_last_error
from muniment.kernel.syscalls import renameat2 as _renameat2

_TEMPORARY: Final = re.compile(r"(\.muniment-[0-9a-f]{16})(-part|-back)?\.tmp", re.ASCII)
_TOKEN_BYTES: Final = 8

_NOREPLACE, _EXCHANGE = 1, 2
_LACKS_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS})
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_NOT_REMOVABLE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})

_REASONS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "this user may not write there; change the permissions",
    errno.EPERM: "this user may not write there; change permissions or attributes",
    errno.EIO: "the disk reports an error while reading or writing",
    errno.EMFILE: "this process has too many files open",
    errno.ENFILE: "the system has too many files open",
    errno.ENOENT: "one of its directories was removed meanwhile; try again",
    errno.ENOLCK: "its file system cannot lock directories; bind one on a local disk",
    errno.EOPNOTSUPP: "its file system cannot lock directories; bind one on a local disk",
}


class ReplaceMethod(StrEnum):
    """The method by which a file was renamed. Callers log every method except `ATOMIC`."""

    ATOMIC = "atomic"
    """No other process could change the file between its check and its rename."""
    PLAIN_RENAME = "plain_rename"
    """The file was checked and then renamed, because the file system supports no atomic method."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file on disk that still has its temporary name."""

    temporary: str
    digest: Digest


def build_temporary_name(random_bytes: Callable[[int], bytes]) -> str:
    """Return a new temporary file name with 64 random bits, so that an attacker cannot predict it.

    Args:
        random_bytes: returns the given number of random bytes.
    """
    return f".muniment-{random_bytes(_TOKEN_BYTES).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether `name` has the form of a temporary name, or of its partial or rollback name."""
    return type(name) is str and _TEMPORARY.fullmatch(name) is not None


def build_partial_name(temporary: str) -> str:
    """Return the name under which a file is written until it is complete and is renamed to `temporary`."""
    return _TEMPORARY.sub(r"\1-part.tmp", require_temporary_name(temporary))


def build_rollback_name(temporary: str) -> str:
    """Return the temporary name of a file that a rollback restores; it differs from `temporary`."""
    return _TEMPORARY.sub(r"\1-back.tmp", require_temporary_name(temporary))


class Directory(Descriptor):
    """An open directory under a root, for writing.

    Every argument `name` is a single path component. Every digest is the digest of a complete file.

    Attributes:
        root: the root through which the directory was opened.
        path: the path of the directory when it was opened.
        created: directories that were created to open this one, outermost first. Their parents are synced.
    """

    __slots__ = ("created", "path", "root")

    def __init__(self, root: Root, fd: int, path: CanonicalPath) -> None:
        super().__init__(fd)
        self.root, self.path = root, path
        self.created: tuple[CanonicalPath, ...] = ()

    def read(self, name: str) -> bytes:
        """Return the bytes of the file `name` in this directory, with the checks of `Root.read_bytes`.

        Raises:
            ManagedMemoryUnavailable: the file cannot be read now, so its content is unknown.
            PathEscape, NotFound, NotAFile, TooLarge: `name` is not a regular file that `Root.read_bytes`
                accepts.
        """
        try:
            with open_name(self.root, self.fd, name, f"{self.path.text}/{name}") as file:
                return file.read_whole(MAX_FILE_BYTES)
        except Unreadable as error:
            raise ManagedMemoryUnavailable(self.root.scope, str(error)) from error
        except PathEscape as error:
            # A removed device causes the same error as a socket.
            found = self._read_status(name) if error.via is Via.SPECIAL else None
            if found is not None and stat.S_ISREG(found.st_mode):
                raise ManagedMemoryUnavailable(self.root.scope, f"its device was removed: {error}") from error
            raise

    def stage(self, temporary: str, content: bytes, *, durable: bool = True) -> StagedFile:
        """Write a complete file with the bytes `content` to disk, under a temporary name.

        The bytes are written under the name from `build_partial_name`, with mode 0600 before the first byte.
        The complete file is then renamed to `temporary`.

        Args:
            temporary: a name from `build_temporary_name`.
            content: all bytes of the file.
            durable: sync the file to disk. If False, a power failure may lose the file, even after it has its
                final name.

        Raises:
            TooLarge: `content` has more than `MAX_FILE_BYTES`.
            BadName: `temporary` is not a temporary name.
            StoreConflict: `temporary` or its partial name is in use.
            ManagedMemoryUnavailable: the system denies the write. The partial file is removed if possible.
        """
        if len(content) > MAX_FILE_BYTES:
            raise TooLarge(f"a file has more than {MAX_FILE_BYTES} bytes; shorten it")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        partial = build_partial_name(temporary)
        if self._read_status(temporary) is not None:
            raise self._build_conflict(temporary)
        with convert_os_errors(self.root.scope):
            try:
                fd = os.open(partial, flags, _FILE_MODE, dir_fd=self.fd)
            except FileExistsError as error:
                raise self._build_conflict(partial) from error
            try:
                try:
                    os.fchmod(fd, _FILE_MODE)
                    _write_all(fd, content)
                    if durable:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                # No other process knows this name, so a plain rename replaces nothing.
                os.rename(partial, temporary, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except BaseException:
                self._unlink(partial)
                raise
        return StagedFile(temporary, digest(content))

    def publish_new(self, staged: StagedFile, name: str) -> ReplaceMethod:
        """Rename the complete file `staged` from its temporary name to `name`, which must be free.

        Raises:
            StoreConflict: `name` is in use. The staged file keeps its temporary name.
            ManagedMemoryUnavailable: the system denies the rename.
        """
        return self._move(staged.temporary, name, conflict=name)

    def replace(self, staged: StagedFile, name: str, claimed: Digest) -> ReplaceMethod:
        """Replace the file `name` with a staged file, if the digest of the file `name` is still `claimed`.

        Raises:
            StoreConflict: `name` is missing, is not a regular file, or has another digest. The file still has
                its name, and the staged file still has its temporary name.
            ManagedMemoryUnavailable: the system denies the rename. The two files may have exchanged their
                names.
        """
        return self._exchange(staged, name, lambda at: self._require_digest(at, claimed, name))

    def replace_link(self, staged: StagedFile, name: str) -> ReplaceMethod:
        """Replace the link `name` with a staged file. The target of the link is not changed.

        A file with several hard links is handled like a link: its other names keep the old bytes.

        Raises:
            StoreConflict: `name` is missing or is not a link. The file there still has its name, and the
                staged file still has its temporary name.
            ManagedMemoryUnavailable: the system denies the rename.
        """
        return self._exchange(staged, name, lambda at: self._require_link(at, name))

    def remove(self, name: str, temporary: str, claimed: Digest) -> ReplaceMethod:
        """Remove the file `name`, if its digest is still `claimed`.

        The file is first moved to `temporary` and hashed again, so that exactly the hashed file is removed.

        Raises:
            StoreConflict: `name` is missing, is not a regular file, or has another digest. The file gets its
                name back. If the name is in use by then, the file keeps the name `temporary`.
            BadName: `temporary` is not a temporary name.
            ManagedMemoryUnavailable: the system denies the removal.
        """
        temporary_path = require_temporary_name(temporary)
        self._require_digest(name, claimed, name)
        method = self._move(name, temporary_path, conflict=name)
        try:
            self._require_digest(temporary_path, claimed, name)
        except BaseException:
            self._move(temporary_path, name, conflict=name)
            raise
        self._unlink(temporary_path)
        return method

    def move_to(self, name: str, target: Directory, new_name: str, claimed: Digest) -> ReplaceMethod:
        """Move the file `name` to `new_name` in `target`, if its digest is still `claimed`.

        Args:
            name: the name of the file in this directory.
            target: an open directory under the same root.
            new_name: a free name in `target`.
            claimed: the expected digest of the file.

        Raises:
            StoreConflict: the file has another digest, or `new_name` is in use. The file still has its old
                name.
            ManagedMemoryUnavailable: the system denies the rename.
        """
        self._require_digest(name, claimed, name)
        method = self._move(name, new_name, conflict=new_name, to=target)
        try:
            target._require_digest(new_name, claimed, name)
        except BaseException:
            target._move(new_name, name, conflict=name, to=self)
            raise
        return method

    def discard(self, staged: StagedFile) -> None:
        """Remove a staged file if it still has the staged bytes. Do nothing if it is missing.

        Raises:
            BadName: the name of the staged file is not a temporary name.
            StoreConflict: the file has other bytes. It is not removed.
            ManagedMemoryUnavailable: the system denies the removal.
        """
        if self._read_status(require_temporary_name(staged.temporary)) is not None:
            self._require_digest(staged.temporary, staged.digest, staged.temporary)
            self._unlink(staged.temporary)

    def drop_partial(self, temporary: str) -> None:
        """Remove the incomplete file that belongs to a temporary name. Do nothing if it is missing.

        Args:
            temporary: the name that the file gets when it is complete.

        Raises:
            BadName: `temporary` is not a temporary name.
            ManagedMemoryUnavailable: the system denies the removal.
        """
        self._unlink(build_partial_name(temporary))

    def sync(self) -> None:
        """Sync the file names of this directory to disk, with one `fsync`.

        Raises:
            ManagedMemoryUnavailable: the disk reports an error.
        """
        with convert_os_errors(self.root.scope):
            os.fsync(self.fd)

    def _move(self, old: str, new: str, *, conflict: str, to: Directory | None = None) -> ReplaceMethod:
        """Rename `old` to `new`, which must be free.

        Args:
            old: a name in this directory.
            new: the new name.
            conflict: the file name that the `StoreConflict` contains.
            to: the directory of `new`; None: this directory.

        Raises:
            StoreConflict: `new` is in use, or `old` is missing.
        """
        with convert_os_errors(self.root.scope):
            try:
                return self._rename(old, new, _NOREPLACE, to or self)
            except (FileExistsError, FileNotFoundError) as error:
                raise self._build_conflict(conflict) from error

    def _exchange(self, staged: StagedFile, name: str, check: Callable[[str], None]) -> ReplaceMethod:
        """Replace the file `name` with a staged file, if `check` accepts the file `name`.

        `check` gets a file name and raises `StoreConflict` unless that file may be removed. It is called
        before the exchange, so that a wrong file is not moved even for a moment. After an atomic exchange, it
        is called again for the displaced file, which other processes can no longer change by its old name.
        """
        check(name)
        with convert_os_errors(self.root.scope):
            try:
                method = self._rename(staged.temporary, name, _EXCHANGE, self)
            except FileNotFoundError as error:
                raise self._build_conflict(name) from error
            if method is not ReplaceMethod.ATOMIC:
                return method
            try:
                check(staged.temporary)
            except BaseException:
                self._rename(staged.temporary, name, _EXCHANGE, self)
                raise
        self._unlink(staged.temporary)
        return method

    def _require_link(self, name: str, conflict: str) -> None:
        """Raise `StoreConflict` unless `name` is a link, or one of several names of a hard-linked file.

        Args:
            name: the name to check.
            conflict: the file name that the error contains.
        """
        found = self._read_status(name)
        is_link = found is not None and (
            stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1)
        )
        if not is_link:
            raise self._build_conflict(conflict)

    def _read_status(self, name: str) -> os.stat_result | None:
        """Return the `stat` result of `name` without following a link, or None if `name` does not exist."""
        with convert_os_errors(self.root.scope), suppress(FileNotFoundError):
            return os.stat(encode_name(name), dir_fd=self.fd, follow_symlinks=False)
        return None

    def _unlink(self, name: str) -> None:
        with convert_os_errors(self.root.scope), suppress(FileNotFoundError):
            os.unlink(encode_name(name), dir_fd=self.fd)

    def _rename(self, old: str, new: str, flags: int, to: Directory) -> ReplaceMethod:
        """Rename by `renameat2`, or check and then rename if the file system does not support `flags`."""
        if _renameat2(MACHINE.renameat2, self.fd, encode_name(old), to.fd, encode_name(new), flags) >= 0:
            return ReplaceMethod.ATOMIC
        if (error := read_last_error()).errno not in _LACKS_FLAGS:
            raise error
        if flags == _NOREPLACE and to._read_status(new) is not None:
            raise FileExistsError
        os.rename(encode_name(old), encode_name(new), src_dir_fd=self.fd, dst_dir_fd=to.fd)
        return ReplaceMethod.PLAIN_RENAME

    def _require_digest(self, name: str, claimed: Digest, conflict: str) -> None:
        """Raise `StoreConflict` unless the file `name` has the digest `claimed`.

        Args:
            name: the file to read.
            claimed: the expected digest.
            conflict: the file name that the error contains.

        Raises:
            ManagedMemoryUnavailable: the file cannot be read now, so its digest is unknown.
        """
        encode_name(name)
        try:
            content = self.read(name)
        except (PathEscape, ToolError) as error:
            # A link, a directory or a file that is too large is not the claimed file.
            raise self._build_conflict(conflict) from error
        if digest(content) != claimed:
            raise self._build_conflict(conflict)

    def _build_conflict(self, name: str) -> StoreConflict:
        return StoreConflict((printable(f"{self.path.text}/{name}"),))


@contextmanager
def convert_os_errors(scope: Scope) -> Iterator[None]:
    """Convert an `OSError` in the block to `ManagedMemoryUnavailable`, with a reason for the user."""
    try:
        yield
    except OSError as error:
        raise build_unavailable_error(scope, error) from error


def build_unavailable_error(scope: Scope, error: OSError) -> ManagedMemoryUnavailable:
    """Return the error for a root that cannot be used because of a system error."""
    reason = _REASONS.get(error.errno or 0, f"the system reports {error.strerror}")
    return ManagedMemoryUnavailable(scope, reason)


def require_temporary_name(name: str) -> str:
    """Return `name`, or raise `BadName` if it does not have the form of a temporary name."""
    if not is_temporary(name):
        raise BadName(f"{printable(name)!r} is not a temporary name")
    return name


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def open_directory(root: Root, path: CanonicalPath, *, create: bool) -> Directory:
    """Open the directory `path` under a root for writing.

    Args:
        root: the handle of the root.
        path: the directory, in the scope of the root.
        create: create missing directories, each with mode 0700, and sync their parents.

    Raises:
        PathEscape: the path contains a link or a mount.
        NotFound: the directory or one of its parents does not exist.
        NotAFile: one component of the path is a file.
        ManagedMemoryUnavailable: the system denies the operation.
        TypeError, ValueError: `path` is not a path of this root, as described in `Root.encode_path`.

    Cost: one open. For each new directory, two more opens and one `fsync`.
    """
    try:
        return _open_existing(root, path)
    except NotFound:
        if not create or not path.rel:
            raise
    with open_directory(root, path.parent, create=True) as parent:
        try:
            with convert_os_errors(root.scope):
                # If another process creates it in this moment, it belongs to that process.
                with suppress(FileExistsError):
                    os.mkdir(encode_name(path.name), _DIRECTORY_MODE, dir_fd=parent.fd)
                    parent.created = (*parent.created, path)
                os.fsync(parent.fd)
            directory = _open_existing(root, path)
        except BaseException:
            for created in reversed(parent.created):
                remove_empty_directory(root, created)
            raise
    directory.created = parent.created
    return directory


def remove_empty_directory(root: Root, path: CanonicalPath) -> bool:
    """Remove an empty directory that an aborted commit created.

    Returns:
        True if the directory no longer exists; False if it is not empty or is not a directory.

    Raises:
        PathEscape: the path contains a link or a mount.
        ManagedMemoryUnavailable: the system denies the removal.
        BadName: `path` is a root.
    """
    name = encode_name(path.rel.rpartition("/")[2])
    try:
        with open_directory(root, path.parent, create=False) as directory:
            os.rmdir(name, dir_fd=directory.fd)
    except (NotFound, FileNotFoundError):
        return True
    except NotAFile:
        return False
    except OSError as error:
        if error.errno not in _NOT_REMOVABLE:
            raise build_unavailable_error(root.scope, error) from error
        return False
    return True


def _open_existing(root: Root, path: CanonicalPath) -> Directory:
    """Open an existing directory without following links."""
    with convert_os_errors(root.scope):
        try:
            return Directory(root, root.resolver.open(root.fd, root.encode_path(path), LIST), path)
        except NotADirectoryError as error:
            raise NotAFile(printable(f"{path.text} is a file, not a directory")) from error
        except OSError as error:
            refusal = convert_open_error(path.text, error)
            if isinstance(refusal, Unreadable) or (
                isinstance(refusal, PathEscape) and refusal.via is Via.SPECIAL  # its device was removed
            ):
                raise
            raise refusal from error
