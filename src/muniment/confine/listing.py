"""An open directory beneath a root, to look at: its names, what each is, and the bytes of its files.

For whoever keeps account of a memory and wants to know what changed in it. On success of any method, C1 to
C5 of `muniment.confine.root` hold, and:

- L1 every name is a single component in the directory that was opened, wherever that is by now: no other
  process can lead a second call elsewhere than the first.
- L2 the times of the directory were taken before its names, and those of a file before its bytes, of the very
  descriptor that is read: what changes meanwhile has later times than were told.

The broker's only: a fenced worker may not make these calls. Attacked by `tests/confine/test_listing.py`.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Self

from muniment.confine.root import MAX_ENTRIES, Kind, Root, encoded
from muniment.confine.syscalls import LIST
from muniment.errors import BadName, NotFound, TooLarge, printable
from muniment.names import MAX_FILE_BYTES


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
