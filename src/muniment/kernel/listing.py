"""List and read one open directory under a root: its names, their kinds, and the bytes of its files.

For callers that track the changes of a memory. Each method that succeeds keeps the promises C1 to C5 of
`muniment.kernel.root`, and:

- L1 Every name is a single component in the directory that was opened, even if that directory is moved.
  Another process cannot redirect a second call to another directory.
- L2 The times of the directory are read before its names. The times of a file are read before its bytes, from
  the same descriptor. So a change meanwhile has later times than the returned ones.

Only for the broker: a confined worker may not make these system calls. Tested with attacks by
`tests/units/kernel/test_root.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from muniment.kernel.names import MAX_FILE_BYTES
from muniment.kernel.path import CanonicalPath
from muniment.kernel.refusal import NotFound, TooLarge, printable
from muniment.kernel.root import MAX_ENTRIES, Descriptor, Kind, Root

# isort: split
from muniment.kernel.root import build_unreadable_error, convert_open_error, encode_name, open_name
from muniment.kernel.syscalls import LIST, os


class NameStatus(NamedTuple):
    """A name in a directory, with its state when it was listed.

    A mount point has the state of the directory that it covers. The class is a named tuple because one object
    is created for every name of a memory.

    Attributes:
        raw: the name in bytes.
        name: the name as text; bytes that are not UTF-8 are surrogate escapes.
        kind: the kind of the file.
        status: `stat` result of a regular file; None for other kinds, or if the file was removed meanwhile.
    """

    raw: bytes
    name: str
    kind: Kind
    status: os.stat_result | None


class OpenDirectory(Descriptor):
    """An open directory under a root, for listing and reading.

    Args:
        root: the handle of the root.
        path: path of the directory; the path of a scope is the root itself.

    Attributes:
        status: `stat` result of the directory when it was opened.

    Raises:
        PathEscape, Unreadable, ValueError, TypeError: as described in `Root.open_file`.
        NotFound: the path does not exist or is not a directory.

    Cost: one `openat2`, one `fstat`.
    """

    __slots__ = ("_path", "_root", "status")

    def __init__(self, root: Root, path: CanonicalPath) -> None:
        self.fd, self._root, self._path = -1, root, path
        try:
            self.fd = root.resolver.open(root.fd, root.encode_path(path), LIST)
            self.status = os.fstat(self.fd)
        except OSError as error:
            self.close()
            raise convert_open_error(path.text, error) from error

    def entries(self) -> list[NameStatus]:
        """Return the names in the directory with their status, unsorted.

        Raises:
            TooLarge: the directory has more than `MAX_ENTRIES` names.
            NotFound: the directory was removed.
            Unreadable: the system denies the listing.

        Cost: one `newfstatat` per file.
        """
        found: list[NameStatus] = []
        if not self.status.st_nlink:  # The C library would call it empty.
            raise NotFound(f"{printable(self._path.text)} not found")
        try:
            with os.scandir(self.fd) as listed:
                for item in listed:
                    if len(found) == MAX_ENTRIES:
                        raise TooLarge(f"{printable(self._path.text)} has more than {MAX_ENTRIES} names")
                    # Python decodes names by the locale; the project always uses UTF-8.
                    raw = os.fsencode(item.name)
                    name = raw.decode("utf-8", "surrogateescape")
                    if item.is_file(follow_symlinks=False):
                        found.append(NameStatus(raw, name, "file", _read_status(item)))
                    else:
                        kind: Kind = "directory" if item.is_dir(follow_symlinks=False) else "other"
                        found.append(NameStatus(raw, name, kind, None))
        except OSError as error:
            raise convert_open_error(self._path.text, error) from error
        return found

    def read_status(self, name: str) -> os.stat_result | None:
        """Return the `stat` result of `name` without following a link, or None if `name` does not exist.

        Raises:
            Unreadable: the system does not report the status.

        Cost: one `newfstatat`.
        """
        displayed_path = f"{self._path.text}/{name}"
        try:
            return os.stat(encode_name(name), dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            if isinstance(convert_open_error(displayed_path, error), NotFound):
                return None
            raise build_unreadable_error(displayed_path, error) from error

    def read(self, name: str) -> tuple[bytes, os.stat_result]:
        """Return all bytes of the file `name`, and its `stat` result from before the first byte was read.

        Raises:
            MunimentError: as described in `Root.read_bytes`.
        """
        with open_name(self._root, self.fd, name, f"{self._path.text}/{name}") as file:
            status = os.fstat(file.fd)
            return file.read_whole(MAX_FILE_BYTES), status


def _read_status(item: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return item.stat(follow_symlinks=False)
    except OSError:
        return None
