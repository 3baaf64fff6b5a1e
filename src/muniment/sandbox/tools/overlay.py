"""The memory as one run sees it: its pending writes over the files of its roots.

Reads return pending writes first. This module writes nothing to disk and does not judge: callers check the
policy before they use the overlay.

Separate from the tools, which decide: the content of the memory does not depend on the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from muniment.errors import BadName, NotAFile, NotFound, PathEscape, ToolError
from muniment.kernel.change import ChangeSet, Claim, FileChange, digest
from muniment.kernel.names import MAX_DEPTH, Digest, RelPath, Scope, join_path
from muniment.kernel.path import CanonicalPath, find_segment_problem, fold
from muniment.kernel.root import Kind, PathStatus, Root

InjectedDigests = Mapping[CanonicalPath, Digest]
"""Entries that are injected into a run before it begins, with the digests of their files."""

NOTHING_INJECTED: Final[InjectedDigests] = MappingProxyType({})


class Overlay:
    """The pending writes of one run over the files of its roots.

    A scope without a root has no files; `clean` runs get no roots.
    """

    def __init__(self, roots: Mapping[Scope, Root]) -> None:
        self._roots = roots
        self._pending: dict[CanonicalPath, FileChange] = {}
        self._claims: dict[CanonicalPath, Digest | None] = {}

    @property
    def files_written(self) -> int:
        """Return the number of files that the run has written."""
        return len(self._pending)

    def bytes_written(self, *, without: CanonicalPath) -> int:
        """Return the number of bytes that the run has written, except to the file `without`."""
        return sum(item.size for path, item in self._pending.items() if path != without)

    def has_pending(self, path: CanonicalPath) -> bool:
        """Return whether the run has written `path`."""
        return path in self._pending

    def is_known(self, path: CanonicalPath) -> bool:
        """Return whether the run has read or written `path`."""
        return path in self._claims or path in self._pending

    def read_disk(self, path: CanonicalPath) -> bytes:
        """Return the bytes of `path` under its root, without pending writes.

        Raises:
            NotFound: the file does not exist, or the run has no root for its scope.
            NotAFile, Unreadable, TooLarge, PathEscape: as described in `Root.read_bytes`.
        """
        root = self._roots.get(path.scope)
        if root is None:
            raise NotFound(f"{path.text} not found")
        return root.read_bytes(path)

    def read(self, path: CanonicalPath) -> bytes:
        """Return the bytes of the file `path` as the run sees it.

        Raises:
            NotFound, NotAFile, Unreadable, TooLarge, PathEscape: as described in `read_disk`.
        """
        pending = self._pending.get(path)
        return pending.after or b"" if pending else self.read_disk(path)

    def claim(self, path: CanonicalPath, seen_digest: Digest) -> None:
        """Make the commit depend on the state of a file that the run has read.

        Does nothing if the run has read the file before, or has written it.

        Args:
            path: the file.
            seen_digest: digest of the bytes that the run saw.
        """
        if path not in self._pending:
            self._claims.setdefault(path, seen_digest)

    def read_base(self, path: CanonicalPath) -> Digest | None:
        """Return the digest of the file that a write of `path` would replace, or None for a new file.

        Raises:
            NotAFile, Unreadable, TooLarge, PathEscape: as described in `read_disk`.
        """
        pending = self._pending.get(path)
        if pending:
            return pending.base
        try:
            return digest(self.read_disk(path))
        except NotFound:
            return None

    def read_size(self, path: CanonicalPath) -> int | None:
        """Return the size in bytes of the file `path` as the run sees it, or None if it is unknown."""
        with suppress(PathEscape, ToolError):  # The size of a hard link must not be revealed.
            return examined.size if (examined := self._examine(path)) else None
        return None

    def is_file(self, path: CanonicalPath) -> bool:
        """Return whether `path` is a file, pending or on disk.

        Raises:
            PathEscape, Unreadable: as described in `Root.examine`.
        """
        examined = self._examine(path)
        return examined is not None and examined.kind == "file"

    def read_kind(self, path: CanonicalPath) -> Kind | None:
        """Return the kind of `path` as the run sees it, or None if it is missing or would be an escape."""
        prefix = join_path(path.rel, "")
        if any(other.scope == path.scope and other.rel.startswith(prefix) for other in self._pending):
            return "directory"
        with suppress(PathEscape, ToolError):
            return examined.kind if (examined := self._examine(path)) else None
        return None

    def write(self, path: CanonicalPath, content: bytes, base: Digest | None) -> None:
        """Set `content` as the pending content of `path`, and make the commit depend on the replaced file.

        Args:
            path: the file.
            content: the complete new content.
            base: digest of the replaced file; None: the file must not exist.
        """
        self._pending[path] = FileChange(path, base, content)
        self._claims.setdefault(path, base)

    def rewrite(self, path: CanonicalPath, content: bytes, before: bytes) -> None:
        """Set `content` as the pending content of a file that the run has read.

        Args:
            path: the file.
            content: the complete new content.
            before: the bytes that the run read.
        """
        pending = self._pending.get(path)
        self.write(path, content, pending.base if pending else digest(before))

    def check_new_name(self, path: CanonicalPath) -> None:
        """Reject a new file whose path would mean an existing path on some systems.

        Raises:
            ToolError: a component differs from an existing name only by case or normalisation (`exists_as`).
            NotAFile: a component that must be a directory is a file, or the last one is a directory.
        """
        parent = CanonicalPath(path.scope, RelPath(""))
        segments = path.rel.split("/")
        for position, segment in enumerate(segments):
            existing = self._list_names(parent)
            last = position == len(segments) - 1
            if existing.get(segment) == "file" and not last:
                raise NotAFile(f"{parent.text}/{segment} is a file; choose another folder")
            if existing.get(segment) == "directory" and last:
                raise NotAFile(f"{path.text} is a folder; choose another name")
            if segment not in existing:
                alias = next((name for name in existing if fold(name) == fold(segment)), None)
                if alias is not None:
                    displayed_alias = alias if find_segment_problem(alias) is None else "an existing name"
                    raise ToolError(
                        f"{segment} exists already as {displayed_alias}; use that spelling or another name",
                        code="exists_as",
                    )
            parent = parent.child(segment)

    def list_children(self, directory: CanonicalPath) -> list[tuple[CanonicalPath, Kind]]:
        """Return the files and directories in `directory` that have a canonical path, sorted.

        Raises:
            NotFound, NotAFile, Unreadable, PathEscape: as described in `Root.list_directory`.
        """
        children: list[tuple[CanonicalPath, Kind]] = []
        for name, kind in sorted(self._list_names(directory, must_exist=True).items()):
            if kind != "other":
                with suppress(BadName, PathEscape):
                    children.append((directory.child(name), kind))
        return children

    def iterate_files(
        self, directory: CanonicalPath, may_enter: Callable[[CanonicalPath], bool]
    ) -> Iterator[CanonicalPath]:
        """Yield every file under `directory`, depth first in order of names.

        Skips a directory that `may_enter` rejects, that cannot be listed, that was removed meanwhile, or that
        is a mount or link.
        """
        try:
            children = self.list_children(directory)
        except (PathEscape, ToolError):
            return
        for path, kind in children:
            if kind == "file":
                yield path
            elif len(path.segments) < MAX_DEPTH and may_enter(path):
                yield from self.iterate_files(path, may_enter)

    def change_set(self) -> ChangeSet:
        """Return the pending writes and all claims of the run, in order of paths."""
        return ChangeSet(
            tuple(self._pending[path] for path in sorted(self._pending)),
            tuple(Claim(path, seen) for path, seen in sorted(self._claims.items())),
        )

    def _examine(self, path: CanonicalPath) -> PathStatus | None:
        """Return the kind and size of `path` as the run sees it, or None if it does not exist.

        Raises:
            PathEscape, Unreadable: as described in `Root.examine`.
        """
        if pending := self._pending.get(path):
            return PathStatus("file", pending.size)
        root = self._roots.get(path.scope)
        return root.examine(path) if root else None

    def _list_names(self, directory: CanonicalPath, *, must_exist: bool = False) -> dict[str, Kind]:
        """Return the names in `directory` as the run sees it, with their kinds.

        Args:
            directory: the directory.
            must_exist: raise `NotFound` if the directory does not exist.
        """
        names: dict[str, Kind] = {}
        prefix = join_path(directory.rel, "")
        for path in self._pending:
            if path.scope == directory.scope and path.rel.startswith(prefix):
                name, _, rest = path.rel[len(prefix) :].partition("/")
                names[name] = "directory" if rest else "file"
        root = self._roots.get(directory.scope)
        try:
            listed = root.list_directory(directory) if root else ()
        except NotFound:
            if must_exist and not names:
                raise
            listed = ()
        return {item.name: item.kind for item in listed} | names
