"""What is in a root: every entry with its title and size, and every name that stands in the way of a new one.

Holds:

- N1. Everything is read through the root's handle; no link is followed, nothing but the first `HEAD_BYTES` of
  regular `.md` files is read.
- N2. No entry is dropped silently: one that cannot be read is listed as unreadable, a name that is no entry's
  (outside the grammar, a link, a FIFO, a file with a second name, too deep) is in `odd` with the reason. Dot
  names, files without `.md`, and the index are no entries and left out; all but what lies in dot directories,
  odd directories and `index/` is in `names`.
- N3. `complete` is False if anything was not looked at that may hold entries: a directory that could not be
  listed, or more than `max_names` names. An index is not rebuilt from such a scan, and a collision check on
  it proves nothing.
- N4. `patched` gives what a scan after the changes would give.

What does not hold: that the tree is still so. A scan is not a snapshot either: another process may write
meanwhile.

Attacked in tests/store/test_scan.py.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from muniment.confine.root import Listed, Root
from muniment.content.entry import parse, titled
from muniment.content.frontmatter import MAX_FRONT_MATTER_BYTES
from muniment.errors import BadName, NotAFile, NotFound, PathEscape, TooLarge, Unreadable, printable
from muniment.names import MAX_DEPTH, MAX_PATH_BYTES, RelPath, Scope, Trust, joined
from muniment.policy.grammar import FILE_SUFFIX, segment_problem
from muniment.store.index import IndexRow, is_index_path

HEAD_BYTES: Final = 2 * MAX_FRONT_MATTER_BYTES
"""Bytes read of each file: the longest front matter, and as much of the body to take a title from."""

MAX_NAMES: Final = 100_000
"""Names after which a scan stops: five times the files that the default policy allows."""


@dataclass(frozen=True, slots=True)
class ScannedEntry:
    """One entry, as the first bytes of its file show it.

    Attributes:
        rel: canonical path inside the scope.
        size: bytes; 0 where even that could not be found out.
        name: by front matter, heading or file name; never empty, not cleaned.
        description: likewise; empty only for an unreadable entry.
        type: by front matter, or None.
        readable: whether the file could be read.
        note: what was not understood or why it could not be read; empty if nothing.
    """

    rel: RelPath
    size: int
    name: str
    description: str
    type: str | None
    readable: bool
    note: str


@dataclass(frozen=True, slots=True)
class Odd:
    """A name on disk that is no entry's though it may look like one.

    Attributes:
        path: the path inside the scope in printable form; not a path to open.
        reason: why, in a few words.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The entries of a root, sorted by path.

    Attributes:
        scope: whose root it is.
        entries: all entries, unreadable ones too.
        names: for each directory that was listed (the root is the empty text), all names in it, sorted.
        odd: names that are no entry's, with the reason.
        complete: see N3.
    """

    scope: Scope
    entries: tuple[ScannedEntry, ...]
    names: Mapping[str, tuple[str, ...]]
    odd: tuple[Odd, ...]
    complete: bool

    def patched(self, changes: Mapping[RelPath, bytes | None]) -> Scan:
        """The scan as it will be once `changes` are committed (N4), without looking at the disk.

        Args:
            changes: by canonical path, the bytes of each file written, None for each file removed.
                Directories stay.
        """
        entries = {entry.rel: entry for entry in self.entries}
        names = {directory: set(listed) for directory, listed in self.names.items()}
        for rel, data in changes.items():
            directory, _, name = rel.rpartition("/")
            if data is None:
                entries.pop(rel, None)
                names.get(directory, set()).discard(name)
                continue
            if _is_entry(rel):
                entries[rel] = _read_entry(rel, data[:HEAD_BYTES], len(data))
            _add_name(names, rel)
        return replace(
            self,
            entries=tuple(entries[rel] for rel in sorted(entries)),
            names=_frozen(names),
        )


def scan(root: Root, *, max_names: int = MAX_NAMES) -> Scan:
    """Walk a root and read the head of every entry (N1 to N3).

    Raises:
        Nothing that the tree can cause; what goes wrong is in the result.

    Cost: a listing a directory, an open and a read a file: for 10 000 entries about half a second.
    """
    walk = _Walk(root, max_names)
    walk.run()
    return Scan(
        scope=root.scope,
        entries=tuple(sorted(walk.entries, key=lambda entry: entry.rel)),
        names=_frozen(walk.names),
        odd=tuple(sorted(walk.odd, key=lambda odd: (odd.path, odd.reason))),
        complete=walk.complete,
    )


def index_rows(scanned: Scan, trust: Trust) -> tuple[IndexRow, ...]:
    """The rows of the index.

    Args:
        scanned: the entries.
        trust: the scope's, which every entry of it has.
    """
    return tuple(
        IndexRow(entry.rel, entry.name, entry.description, trust, readable=entry.readable)
        for entry in scanned.entries
    )


class _Walk:
    """One scan under way: what is still to list, and what was found."""

    def __init__(self, root: Root, max_names: int) -> None:
        self._root = root
        self._left = max_names
        self._directories = [""]
        self.entries: list[ScannedEntry] = []
        self.names: dict[str, set[str]] = {}
        self.odd: list[Odd] = []
        self.complete = True

    def run(self) -> None:
        while self._directories and self._left >= 0:
            directory = self._directories.pop()
            try:
                listed = self._root.list_directory(directory)
            except PathEscape as escape:
                # A mount, or a link that took the directory's place: not part of this memory.
                self._add_odd(directory, f"leads outside the memory ({escape.via})")
                continue
            except (BadName, NotFound, NotAFile, TooLarge, Unreadable):
                self._add_odd(directory, "this directory could not be listed")
                self.complete = False
                continue
            self.names[directory] = {item.name for item in listed}
            for item in listed:
                self._left -= 1
                if self._left < 0:
                    self.complete = False
                    break
                self._look_at(item, joined(directory, item.name))

    def _look_at(self, item: Listed, path: str) -> None:
        if _is_passed_over(path):
            return
        if problem := _path_problem(self._root.scope, path, item.name):
            self._add_odd(path, problem)
        elif item.kind == "directory":
            self._directories.append(path)
        elif item.kind == "other":
            self._add_odd(path, "a link or special file")
        elif item.name.endswith(FILE_SUFFIX):
            self._read(RelPath(path))

    def _read(self, rel: RelPath) -> None:
        try:
            head, size = self._root.read_head(rel, HEAD_BYTES)
        except PathEscape as escape:
            self._add_odd(rel, f"leads outside the memory ({escape.via})")
        except NotFound:
            return  # Removed since it was listed: as if it had been removed before.
        except NotAFile:
            self._add_odd(rel, "became a directory while it was looked at")
            self.complete = False
        except Unreadable:
            self.entries.append(_unreadable_entry(rel, self._size(rel)))
        else:
            self.entries.append(_read_entry(rel, head, size))

    def _size(self, rel: RelPath) -> int:
        try:
            examined = self._root.examine(rel)
        except (PathEscape, Unreadable):
            return 0
        return examined.size if examined is not None else 0

    def _add_odd(self, path: str, reason: str) -> None:
        self.odd.append(Odd(printable(path or "."), reason))


def _path_problem(scope: Scope, path: str, name: str) -> str | None:
    if problem := segment_problem(name):
        return problem
    if path.count("/") + 2 > MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} levels"
    if len(f"{scope}/{path}".encode()) > MAX_PATH_BYTES:
        return f"a path longer than {MAX_PATH_BYTES} bytes"
    return None


def _is_entry(rel: str) -> bool:
    return rel.endswith(FILE_SUFFIX) and not is_index_path(rel) and "/." not in f"/{rel}"


def _is_passed_over(path: str) -> bool:
    """Whether a walk that came to `path` neither reads nor enters it."""
    return path.rpartition("/")[2].startswith(".") or is_index_path(path)


def _read_entry(rel: RelPath, head: bytes, size: int) -> ScannedEntry:
    # A character that the end of the head cuts in two is left out, so that it is not taken for damage.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(head)
    cut = len(decoder.getstate()[0]) if size > len(head) else 0
    entry = parse(head[: len(head) - cut])
    titles = titled(entry, rel)
    return ScannedEntry(
        rel, size, titles.name, titles.description, entry.type, readable=True, note="; ".join(entry.notes)
    )


def _unreadable_entry(rel: RelPath, size: int) -> ScannedEntry:
    stem = rel.rpartition("/")[2].removesuffix(FILE_SUFFIX)
    return ScannedEntry(rel, size, stem, "", None, readable=False, note="the file cannot be read")


def _add_name(names: dict[str, set[str]], rel: str) -> None:
    directory = ""
    for name in rel.split("/"):
        names.setdefault(directory, set()).add(name)
        directory = joined(directory, name)
        if _is_passed_over(directory):
            return


def _frozen(names: Mapping[str, set[str]]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({directory: tuple(sorted(names[directory])) for directory in sorted(names)})
