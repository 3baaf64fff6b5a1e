"""Keeps the index of a root, `MEMORY.md` and the pages in `index/`, equal to what the catalog says.

- X1 The index is derived: it claims nothing, may be rebuilt at any time, and what goes wrong with it is
  told.
- X2 What a person wrote where an index file belongs is never lost: it is first saved whole as an entry.
  Ours is what was written here last, to the byte, and what says nothing but what the entries say, or said
  in a version that the ledger keeps. What stands in `index/` under a name that no index file has now is
  left alone, unless we wrote it.
- X3 A link or hard link at the name of an index file is replaced, not followed.
- X4 A view that is not complete overwrites nothing.
- X5 `MEMORY.md` is compared with the disk each time. A page is only written when its entries changed, and
  so one that somebody else spoils stays until `rebuild`; `verify` tells.

Which files there are and what they hold: `index_layout.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from muniment.content.entry import parse, titled
from muniment.errors import NotAFile, NotFound, PathEscape, ToolError, Unreadable, printable
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import IndexFile, Standing, digest
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, SAVED_NAME, Digest, RelPath, Trust, Via, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.database import Database
from muniment.store.index import IndexRow, entry_line, is_page_name, lengthy_line, says_nothing_else
from muniment.store.index_layout import lay_out
from muniment.store.naming import free_name
from muniment.store.state import PLANNED, WRITTEN, IndexedFile

MAX_TOLD: Final = 20
"""Files that `verify` names; the rest is counted."""

_BEFORE: Final[dict[object, str]] = {Standing.ABSENT: "is missing", Standing.LINK: "is a link"}
_REPLACED: Final = frozenset({Via.SYMLINK, Via.HARDLINK})


Versions = Callable[[RelPath], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What is wrong with an index, and what a person may want to know besides."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


class IndexPlan:
    """What is to be written so that the index of a root says what the catalog says (X1 to X5).

    Args:
        database: the catalog.
        root: whose index it is.
        view: of the same catalog, just refreshed.
        versions: what a file held before, as far as it is known; its line then is ours, too.
        whole: compare every page, and list `index/` for pages that we left behind. So it is done at any rate
            where the catalog does not know what was written.
        always: plan it also where there is none yet, and nothing to list.

    Attributes:
        writes: to be carried out all or none.
        problems: what cannot be written, and why.
        saved: index files that were not ours, which `writes` keep as entries. They must last, and are in no
            index yet: once they are written the view has to look again at the root's own directory, and the
            index to be planned again.
        files: what stands in index files once `writes` are carried out, as far as it is known.
        gone: files that are no index files any more.
        unread: files that the system does not let be read now: what the catalog knows of them stays.
        listed: what stands in `index/`, if it was listed.
        upto: the last row of `relisted` that is heeded; 0 for none, as long as there are problems.
        whole: nothing was taken from what was written before.

    Raises:
        QuotaExceeded: as `free_name`, for the entry that keeps what is not ours.
        ManagedMemoryUnavailable: the catalog cannot be used.
    """

    def __init__(
        self,
        database: Database,
        root: BoundRoot,
        view: View,
        versions: Versions = lambda _: (),
        *,
        whole: bool = False,
        always: bool = False,
    ) -> None:
        self._database, self._root, self._view, self._versions = database, root, view, versions
        self._always = always
        self._names = set(view.names("") or ())
        self.writes: list[IndexFile] = []
        self.problems: list[str] = []
        self.saved: set[RelPath] = set()
        self.files: dict[RelPath, Digest] = {}
        self.gone: list[RelPath] = []
        self.unread: set[RelPath] = set()
        self.listed: list[RelPath] = []
        self.upto = 0
        self._told: list[str] = []
        self.whole = False
        if view.complete:
            self.whole = whole or not self._is_any_written(f"rel = '{INDEX_NAME}'")
            self._make()
        else:
            shown = _shown(root, INDEX_NAME)
            self.problems.append(f"{shown} cannot be rebuilt: the memory could not be read completely")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know."""
        return (*self.problems, *self._told)

    def _make(self) -> None:
        obstacle = _obstacle(self._root)
        if obstacle is None and self._is_any_written(f"rel > '{INDEX_DIRECTORY}/'"):
            self.whole = True  # Somebody removed them all.
        layout = lay_out(
            self._database,
            self._view.key,
            self._root.scope,
            now=timestamp(),
            whole=self.whole,
            pages=not obstacle,
        )
        if obstacle and layout.paged:
            self.problems.append(f"{obstacle}; move it away, then run: muniment index rebuild")
        for rel, content in layout.files.items():
            self._write(rel, content, needed=self._always or layout.entries > 0)
        for rel in sorted({*layout.gone, *self._left_behind()} - layout.files.keys()):
            self._remove(rel)
        # What could not be written is forgotten as well; with what stays relisted it is tried again.
        self.gone = sorted({*layout.gone, *layout.files} - self.files.keys() - self.unread)
        self.upto = 0 if self.problems else layout.upto

    def _is_any_written(self, condition: str) -> bool:
        """Whether any file of the last index was one of these."""
        query = f"SELECT 1 FROM written WHERE root = ? AND {condition} LIMIT 1"  # noqa: S608  constants
        return bool(self._database.rows(query, (self._view.key,)))

    def _left_behind(self) -> Iterator[RelPath]:
        """What may be a page that nobody remembers."""
        if not self.whole:
            return
        try:
            found = self._root.root.list_directory(_in(self._root, INDEX_DIRECTORY))
        except (NotFound, PathEscape, NotAFile):
            return
        except ToolError as error:
            self.problems.append(f"{_shown(self._root, INDEX_DIRECTORY)} cannot be listed: {error}")
            return
        self.listed = [joined(INDEX_DIRECTORY, item.name) for item in found]
        yield from (rel for rel in self.listed if is_page_name(rel.rpartition("/")[2]))

    def _write(self, rel: RelPath, content: bytes, *, needed: bool) -> None:
        """Put a file into the plan, unless nothing but a problem can come of it."""
        path, shown = _in(self._root, rel), _shown(self._root, rel)
        before: bytes | Standing
        kept = None
        try:
            before = self._root.root.read_bytes(path)
        except NotFound:
            if not needed:
                return
            before = Standing.ABSENT
        except PathEscape as escape:
            if escape.via not in _REPLACED:
                self.problems.append(
                    f"{shown} cannot be rebuilt: something special has its name ({escape.via}); move it away"
                )
                return
            before = Standing.LINK
            self._told.append(f"{shown} was a link; the index takes its place, what it led to is left alone")
        except ToolError as error:
            self.problems.append(f"{shown} cannot be rebuilt: {error}; move it away")
            if isinstance(error, Unreadable):
                self.unread.add(rel)
            return
        self.files[rel] = digest(content)
        if before == content:
            return
        if isinstance(before, bytes) and not self._is_ours(rel, before, content):
            kept = self._save(rel)
        self.writes.append(IndexFile(path, before, content, kept))

    def _remove(self, rel: RelPath) -> None:
        """Remove a file if we wrote it."""
        path = _in(self._root, rel)
        try:
            before = self._root.root.read_bytes(path)
        except Unreadable as error:
            self.problems.append(f"{_shown(self._root, rel)} cannot be removed: {error}")
            self.unread.add(rel)
            return
        except (PathEscape, ToolError):
            return
        if self._is_ours(rel, before, b""):
            self.writes.append(IndexFile(path, before, None))

    def _is_ours(self, rel: RelPath, before: bytes, content: bytes) -> bool:
        known = self._database.rows(
            "SELECT digest FROM written WHERE root = ? AND rel = ?"
            " UNION SELECT digest FROM planned WHERE root = ? AND rel = ?",
            (self._view.key, rel) * 2,
        )
        return (digest(before),) in known or says_nothing_else(before, rel, content, self._lines_of)

    def _lines_of(self, rel: RelPath) -> set[str]:
        """The lines that an entry has or had, or would have for somebody who trusts it otherwise."""
        found = self._database.rows(
            "SELECT name, description, line FROM entry WHERE root = ? AND rel = ?", (self._view.key, rel)
        )
        titles = [(name, description) for name, description, _ in found]
        for data in self._versions(rel):
            before = titled(parse(data), rel)
            titles.append((before.name, before.description))
        rows = [IndexRow(rel, *each, Trust.OWNER) for each in titles]
        if rows:
            rows += [IndexRow(rel, "", "", trust) for trust in (Trust.AGENT, Trust.EXTERNAL)]
            rows += [replace(rows[0], readable=False), replace(rows[0], held=True)]
        return {*(line for *_, line in found), *map(entry_line, rows), *map(lengthy_line, rows)}

    def _save(self, rel: RelPath) -> str:
        """The name under which what stands there is kept."""
        scope = self._root.scope
        saved = free_name(scope, "", SAVED_NAME, FILE_SUFFIX, lambda _: self._names)
        self._names.add(saved)
        self.saved.add(rel)
        self._told.append(f"{_shown(self._root, rel)} was not ours; it is saved as {scope}/{saved}")
        return saved


def about_to_write(database: Database, view: View, plan: IndexPlan) -> None:
    """Record what `plan` writes and drops, so that a recovery can tell it from what somebody else wrote.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be written.
    """
    files = [
        IndexedFile(view.key, each.path.rel, digest(content))
        for each in plan.writes
        for content in (each.after, None if each.kept else each.before)
        if isinstance(content, bytes)
    ]
    if files:
        with database.transaction() as connection:
            PLANNED.insert(connection, files, "INSERT OR IGNORE")


def written(database: Database, view: View, plan: IndexPlan) -> None:
    """Keep in mind that the writes of `plan` were carried out.

    What was relisted since it was made stays so.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be written. The next plan writes the same files again.
    """
    forget = "WHERE root = ? AND rel NOT IN (SELECT value FROM json_each(?))"
    all_but_unread = (view.key, json.dumps(sorted(plan.unread)))
    with database.transaction() as connection:
        if plan.whole:
            connection.execute(f"DELETE FROM written {forget}", all_but_unread)  # noqa: S608  a constant
        connection.executemany(
            "DELETE FROM written WHERE root = ? AND rel = ?", [(view.key, rel) for rel in plan.gone]
        )
        files = [IndexedFile(view.key, *file) for file in plan.files.items()]
        WRITTEN.insert(connection, files, "INSERT OR REPLACE")
        connection.execute(f"DELETE FROM planned {forget}", all_but_unread)  # noqa: S608  a constant
        connection.execute("DELETE FROM relisted WHERE root = ? AND id <= ?", (view.key, plan.upto))


def verify_index(
    database: Database, root: BoundRoot, view: View, versions: Versions = lambda _: ()
) -> IndexCheck:
    """What is wrong with the index of `root`: nothing if it is what a whole plan would write.

    Changes no file, and in the catalog only what follows from the entries.

    Args:
        database: the catalog.
        root: whose index it is.
        view: of the same catalog, just refreshed by a look at every file.
        versions: as of `IndexPlan`.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `IndexPlan`.
    """
    plan = IndexPlan(database, root, view, versions, whole=True)
    wrong = {write.path.rel: write for write in plan.writes}
    known = {*plan.files, *wrong}
    notes = [
        f"{_shown(root, rel)} is no file of the index; it is left alone"
        for rel in plan.listed
        if rel not in known and not rel.startswith(f"{INDEX_DIRECTORY}/.")
    ]
    told = [f"{_shown(root, rel)} {_wrong(write, plan)}" for rel, write in sorted(wrong.items())]
    return IndexCheck((*plan.problems, *_some(told)), _some(notes))


def _in(root: BoundRoot, rel: str) -> CanonicalPath:
    return CanonicalPath(root.scope, RelPath(rel))


def _obstacle(root: BoundRoot) -> str | None:
    """Why nothing can be written into `index/`: empty if it can, None if there is no such directory yet."""
    shown = _shown(root, INDEX_DIRECTORY)
    try:
        found = root.root.examine(_in(root, INDEX_DIRECTORY))
    except PathEscape as escape:
        return f"{shown} cannot be used: it leads elsewhere ({escape.via})"
    except ToolError as error:
        return f"{shown} cannot be used: {error}"
    if found is None:
        return None
    return "" if found.kind == "directory" else f"{shown} cannot be used: it is a file"


def _wrong(write: IndexFile, plan: IndexPlan) -> str:
    if write.path.rel in plan.saved:
        return "is not ours; a rebuild will first save it as an entry"
    if write.after is None:
        what = "belongs to the index no more"
    else:
        what = _BEFORE.get(write.before, "differs from its entries")
    return f"{what}; run: muniment index rebuild"


def _some(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - MAX_TOLD
    return tuple(lines) if more <= 0 else (*lines[:MAX_TOLD], f"and {more} more")


def _shown(root: BoundRoot, rel: str) -> str:
    return printable(f"{root.scope}/{rel}")
