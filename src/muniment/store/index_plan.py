"""Update the index of a root, `MEMORY.md` and the pages in `index/`, from the catalog.

- X1. The index is derived: it is not a source of truth, and may be rebuilt at any time. Problems with it are
  only reported.
- X2. Text that a user wrote in an index file is never lost: the complete file is first saved as an entry. A
  file counts as generated in two cases: it has exactly the bytes that were written last, or it contains only
  text of entries or of their versions in the ledger. A file in `index/` whose name is not in use is not
  touched, unless it was generated.
- X3. A link or hard link at the name of an index file is replaced, and its target is not changed.
- X4. If the view is not complete, nothing is overwritten.
- X5. `MEMORY.md` is compared with the disk each time. A page is only written if its entries changed. So if
  another program damages a page, it stays damaged until `muniment index rebuild`; `verify_index` reports it.

The set of files and their contents are defined in `index_layout.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from muniment.content.entry import parse, read_titles
from muniment.errors import NotAFile, NotFound, PathEscape, ToolError, Unreadable, printable
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import IndexFile, Precondition, digest
from muniment.kernel.names import (
    INDEX_DIRECTORY,
    INDEX_NAME,
    SAVED_NAME,
    Digest,
    RelPath,
    Trust,
    Via,
    join_path,
)
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.database import Database
from muniment.store.index import (
    IndexRow,
    format_entry_line,
    format_legacy_line,
    is_page_file_name,
    is_replaceable,
)
from muniment.store.index_layout import compute_layout
from muniment.store.naming import find_free_name
from muniment.store.state import PLANNED, WRITTEN, IndexedFile

MAX_LISTED_PROBLEMS: Final = 20
"""Maximum number of problems that `verify_index` lists; the others are counted."""

_PROBLEM_BY_PRECONDITION: Final[dict[object, str]] = {
    Precondition.ABSENT: "is missing",
    Precondition.LINK: "is a link",
}
_REPLACED: Final = frozenset({Via.SYMLINK, Via.HARDLINK})


Versions = Callable[[RelPath], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """The problems of an index, and notes for the user, each in one line."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


class IndexPlan:
    """The writes that make the index of a root match the catalog.

    The rules are X1 to X5 in the module docstring.

    Args:
        database: the catalog.
        root: the root of the index.
        view: view of the same catalog, just refreshed.
        versions: returns the known earlier contents of a file. Their lines also count as generated.
        compare_all: compare every page, and look for obsolete files in `index/`. This is always done if the
            catalog does not know which files were written.
        create_empty: plan an index even if it is missing and has no entry to list.

    Attributes:
        writes: the writes, to be carried out all or none.
        problems: files that cannot be written, and why.
        saved: index files that a user wrote; `writes` preserve them as entries. These entries are in no index
            yet: after the writes, the view must read the root's directory again, and the index must be
            planned again.
        files: contents of index files after `writes` are carried out, if known.
        obsolete: obsolete index files.
        unread: files that the system does not allow to read now; the catalog's record of them stays.
        listed: the files in `index/`, if the directory was listed.
        upto: number of the last row of `relisted` that the plan takes into account; 0 if there are problems.
        is_complete: whether all files were planned, without relying on earlier writes.

    Raises:
        QuotaExceeded: as `find_free_name`, for the entry that preserves a user's text.
        ManagedMemoryUnavailable: the catalog cannot be used.
    """

    def __init__(
        self,
        database: Database,
        root: BoundRoot,
        view: View,
        versions: Versions = lambda _: (),
        *,
        compare_all: bool = False,
        create_empty: bool = False,
    ) -> None:
        self._database, self._root, self._view, self._versions = database, root, view, versions
        self._create_empty = create_empty
        self._names = set(view.names("") or ())
        self.writes: list[IndexFile] = []
        self.problems: list[str] = []
        self.saved: set[RelPath] = set()
        self.files: dict[RelPath, Digest] = {}
        self.obsolete: list[RelPath] = []
        self.unread: set[RelPath] = set()
        self.listed: list[RelPath] = []
        self.upto = 0
        self._messages: list[str] = []
        self.is_complete = False
        if view.is_complete:
            self.is_complete = compare_all or not self._is_any_written(f"rel = '{INDEX_NAME}'")
            self._plan_writes()
        else:
            displayed_path = _format_path(root, INDEX_NAME)
            self.problems.append(
                f"{displayed_path} cannot be rebuilt: the memory was not read completely; see: muniment ls"
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the problems and messages of the plan, for the user."""
        return (*self.problems, *self._messages)

    def _plan_writes(self) -> None:
        obstacle = _find_obstacle(self._root)
        if obstacle is None and self._is_any_written(f"rel > '{INDEX_DIRECTORY}/'"):
            self.is_complete = True  # Another program removed all pages.
        layout = compute_layout(
            self._database,
            self._view.key,
            self._root.scope,
            now=timestamp(),
            rebuild=self.is_complete,
            can_write_pages=not obstacle,
        )
        if obstacle and layout.is_paged:
            self.problems.append(f"{obstacle}; move it away, then run: muniment index rebuild")
        for rel, content in layout.files.items():
            self._plan_write(rel, content, is_required=self._create_empty or layout.entries > 0)
        for rel in sorted({*layout.obsolete, *self._find_unrecorded_pages()} - layout.files.keys()):
            self._plan_removal(rel)
        # The record of unwritten files is deleted also; their entries stay relisted, so they are tried again.
        self.obsolete = sorted({*layout.obsolete, *layout.files} - self.files.keys() - self.unread)
        self.upto = 0 if self.problems else layout.upto

    def _is_any_written(self, condition: str) -> bool:
        """Return whether the last index had a file that matches an SQL condition."""
        query = f"SELECT 1 FROM written WHERE root = ? AND {condition} LIMIT 1"  # noqa: S608  constants
        return bool(self._database.rows(query, (self._view.key,)))

    def _find_unrecorded_pages(self) -> Iterator[RelPath]:
        """Yield the files in `index/` with the name of a page, even if the catalog has no record of them."""
        if not self.is_complete:
            return
        try:
            found = self._root.root.list_directory(_build_path(self._root, INDEX_DIRECTORY))
        except (NotFound, PathEscape, NotAFile):
            return
        except ToolError as error:
            self.problems.append(f"{_format_path(self._root, INDEX_DIRECTORY)} cannot be listed: {error}")
            return
        self.listed = [join_path(INDEX_DIRECTORY, item.name) for item in found]
        yield from (rel for rel in self.listed if is_page_file_name(rel.rpartition("/")[2]))

    def _plan_write(self, rel: RelPath, content: bytes, *, is_required: bool) -> None:
        """Add the write of an index file to the plan; if it cannot be written, add only a problem.

        Args:
            rel: path of the file inside the scope.
            content: new content of the file.
            is_required: write the file even if it does not exist.
        """
        path, displayed_path = _build_path(self._root, rel), _format_path(self._root, rel)
        before: bytes | Precondition
        saved_as = None
        try:
            before = self._root.root.read_bytes(path)
        except NotFound:
            if not is_required:
                return
            before = Precondition.ABSENT
        except PathEscape as escape:
            if escape.via not in _REPLACED:
                self.problems.append(
                    f"{displayed_path} cannot be rebuilt: a special file has its name ({escape.via}); "
                    "move it away"
                )
                return
            before = Precondition.LINK
            self._messages.append(
                f"{displayed_path} was a link; the index replaces it, the target of the link is not changed"
            )
        except ToolError as error:
            self.problems.append(f"{displayed_path} cannot be rebuilt: {error}; move it away")
            if isinstance(error, Unreadable):
                self.unread.add(rel)
            return
        self.files[rel] = digest(content)
        if before == content:
            return
        if isinstance(before, bytes) and not self._is_generated(rel, before, content):
            saved_as = self._plan_saved_copy(rel)
        self.writes.append(IndexFile(path, before, content, saved_as))

    def _plan_removal(self, rel: RelPath) -> None:
        """Add the removal of an index file to the plan, if the file was generated."""
        path = _build_path(self._root, rel)
        try:
            before = self._root.root.read_bytes(path)
        except Unreadable as error:
            self.problems.append(f"{_format_path(self._root, rel)} cannot be removed: {error}")
            self.unread.add(rel)
            return
        except (PathEscape, ToolError):
            return
        if self._is_generated(rel, before, b""):
            self.writes.append(IndexFile(path, before, None))

    def _is_generated(self, rel: RelPath, before: bytes, content: bytes) -> bool:
        known = self._database.rows(
            "SELECT digest FROM written WHERE root = ? AND rel = ?"
            " UNION SELECT digest FROM planned WHERE root = ? AND rel = ?",
            (self._view.key, rel) * 2,
        )
        return (digest(before),) in known or is_replaceable(before, rel, content, self._list_known_lines)

    def _list_known_lines(self, rel: RelPath) -> set[str]:
        """Return the lines that an entry has or had in `MEMORY.md`, or would have with another trust."""
        found = self._database.rows(
            "SELECT name, description, line FROM entry WHERE root = ? AND rel = ?", (self._view.key, rel)
        )
        titles = [(name, description) for name, description, _ in found]
        for data in self._versions(rel):
            before = read_titles(parse(data), rel)
            titles.append((before.name, before.description))
        rows = [IndexRow(rel, *each, Trust.OWNER) for each in titles]
        if rows:
            rows += [IndexRow(rel, "", "", trust) for trust in (Trust.AGENT, Trust.EXTERNAL)]
            rows += [replace(rows[0], is_readable=False), replace(rows[0], is_withheld=True)]
        return {*(line for *_, line in found), *map(format_entry_line, rows), *map(format_legacy_line, rows)}

    def _plan_saved_copy(self, rel: RelPath) -> str:
        """Return the name of a new entry that preserves an index file, and add a message about it."""
        scope = self._root.scope
        saved = find_free_name(scope, "", SAVED_NAME, FILE_SUFFIX, lambda _: self._names)
        self._names.add(saved)
        self.saved.add(rel)
        self._messages.append(
            f"{_format_path(self._root, rel)} was not generated by Muniment; it is saved as {scope}/{saved}"
        )
        return saved


def record_plan(database: Database, view: View, plan: IndexPlan) -> None:
    """Record the files that `plan` writes and removes, so that a recovery can recognize them.

    Args:
        database: the catalog.
        view: the view from which the plan was made.
        plan: a plan that is about to be carried out.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be written.
    """
    files = [
        IndexedFile(view.key, each.path.rel, digest(content))
        for each in plan.writes
        for content in (each.after, None if each.saved_as else each.before)
        if isinstance(content, bytes)
    ]
    if files:
        with database.transaction() as connection:
            PLANNED.insert(connection, files, "INSERT OR IGNORE")


def record_written(database: Database, view: View, plan: IndexPlan) -> None:
    """Record in the catalog that the writes of `plan` were carried out.

    Entries that were added to `relisted` after the plan was made stay there.

    Args:
        database: the catalog.
        view: the view from which the plan was made.
        plan: the plan that was carried out.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be written. The next plan writes the same files again.
    """
    stale_rows = "WHERE root = ? AND rel NOT IN (SELECT value FROM json_each(?))"
    all_but_unread = (view.key, json.dumps(sorted(plan.unread)))
    with database.transaction() as connection:
        if plan.is_complete:
            connection.execute(f"DELETE FROM written {stale_rows}", all_but_unread)  # noqa: S608  a constant
        connection.executemany(
            "DELETE FROM written WHERE root = ? AND rel = ?", [(view.key, rel) for rel in plan.obsolete]
        )
        files = [IndexedFile(view.key, *file) for file in plan.files.items()]
        WRITTEN.insert(connection, files, "INSERT OR REPLACE")
        connection.execute(f"DELETE FROM planned {stale_rows}", all_but_unread)  # noqa: S608  a constant
        connection.execute("DELETE FROM relisted WHERE root = ? AND id <= ?", (view.key, plan.upto))


def verify_index(
    database: Database, root: BoundRoot, view: View, versions: Versions = lambda _: ()
) -> IndexCheck:
    """Return the problems of the index of `root`: none if a complete plan would write nothing.

    This changes no file, and in the catalog only data that is derived from the entries.

    Args:
        database: the catalog.
        root: the root of the index.
        view: view of the same catalog, just refreshed with a check of every file.
        versions: as for `IndexPlan`.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `IndexPlan`.
    """
    plan = IndexPlan(database, root, view, versions, compare_all=True)
    wrong_files = {write.path.rel: write for write in plan.writes}
    known = {*plan.files, *wrong_files}
    notes = [
        f"{_format_path(root, rel)} is not a file of the index; it is not changed"
        for rel in plan.listed
        if rel not in known and not rel.startswith(f"{INDEX_DIRECTORY}/.")
    ]
    problems = [
        f"{_format_path(root, rel)} {_describe_problem(write, plan)}"
        for rel, write in sorted(wrong_files.items())
    ]
    return IndexCheck((*plan.problems, *_limit_lines(problems)), _limit_lines(notes))


def _build_path(root: BoundRoot, rel: str) -> CanonicalPath:
    return CanonicalPath(root.scope, RelPath(rel))


def _find_obstacle(root: BoundRoot) -> str | None:
    """Return why `index/` cannot be written: "" if it can be written, None if the directory is missing."""
    displayed_path = _format_path(root, INDEX_DIRECTORY)
    try:
        found = root.root.examine(_build_path(root, INDEX_DIRECTORY))
    except PathEscape as escape:
        return f"{displayed_path} cannot be used: it points to another place ({escape.via})"
    except ToolError as error:
        return f"{displayed_path} cannot be used: {error}"
    if found is None:
        return None
    return "" if found.kind == "directory" else f"{displayed_path} cannot be used: it is a file"


def _describe_problem(write: IndexFile, plan: IndexPlan) -> str:
    if write.path.rel in plan.saved:
        return "was not generated by Muniment; a rebuild will first save it as an entry"
    if write.after is None:
        what = "is not part of the index any more"
    else:
        what = _PROBLEM_BY_PRECONDITION.get(write.before, "differs from its entries")
    return f"{what}; run: muniment index rebuild"


def _limit_lines(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - MAX_LISTED_PROBLEMS
    return tuple(lines) if more <= 0 else (*lines[:MAX_LISTED_PROBLEMS], f"and {more} more")


def _format_path(root: BoundRoot, rel: str) -> str:
    return printable(f"{root.scope}/{rel}")
