"""An open directory beneath a root: its names, the kind of each, and the bytes of its files.

For callers that keep account of a memory and want to know what changed in it. On success of any method, C1 to
C5 of `muniment.kernel.root` hold, and:

- L1 every name is a single component in the directory that was opened, wherever that is by now: no other
  process can lead a second call elsewhere than the first.
- L2 the times of the directory were taken before its names, and those of a file before its bytes, of the very
  descriptor that is read: what changes meanwhile has later times than were returned.

The broker's only: a fenced worker may not make these calls. Attacked by `tests/units/kernel/test_root.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from muniment.kernel.names import MAX_FILE_BYTES
from muniment.kernel.path import CanonicalPath
from muniment.kernel.refusal import NotFound, TooLarge, printable
from muniment.kernel.root import MAX_ENTRIES, Descriptor, Kind, Root, leaf, open_leaf, refusal_of, unreadable
from muniment.kernel.syscalls import LIST, os


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
        shown = f"{self._path.text}/{name}"
        try:
            return os.stat(leaf(name), dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            if isinstance(refusal_of(shown, error), NotFound):
                return None
            raise unreadable(shown, error) from error

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
