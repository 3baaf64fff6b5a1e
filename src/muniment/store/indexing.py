"""Keeps the index of a root, `MEMORY.md` and the pages in `index/`, equal to what the catalog says.

- X1 The index is derived: it claims nothing, may be rebuilt at any time, and what goes wrong with it is told.
- X2 What a person wrote where an index file belongs is never lost: it is first saved whole as an entry. Ours
  is what was written here last, to the byte, and what says nothing but what the entries say, or said in a
  version that the ledger keeps. What stands in `index/` under a name that no index file has now is left
  alone, unless we wrote it.
- X3 A link or hard link at the name of an index file is replaced, not followed.
- X4 A view that is not complete overwrites nothing.
- X5 `MEMORY.md` is compared with the disk each time. A page is only written when its entries changed, and so
  one that somebody else spoils stays until `rebuild_index`; `verify_index` tells.

Which files there are and what they hold: `layout.py`, `pages.py`, `index.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from muniment.confine.binding import BoundRoot
from muniment.content.entry import parse, titled
from muniment.errors import NotFound, PathEscape, ToolError, printable
from muniment.names import INDEX_DIRECTORY, INDEX_NAME, Digest, RelPath, Trust, Via, joined
from muniment.policy.grammar import FILE_SUFFIX
from muniment.store.apply import Expected, Write
from muniment.store.database import Database
from muniment.store.index import IndexRow, entry_line, is_page_name, says_nothing_else
from muniment.store.layout import lay_out
from muniment.store.naming import free_name
from muniment.tools.overlay import digest

SAVED_NAME: Final = "memory-before-muniment"
"""Stem of the entry that keeps an index which we did not write."""

MAX_TOLD: Final = 20
"""Files that `verify_index` names; the rest is counted."""

_BEFORE: Final[dict[object, str]] = {Expected.ABSENT: "is missing", Expected.LINK: "is a link"}
_REPLACED: Final = frozenset({Via.SYMLINK, Via.HARDLINK})


Versions = Callable[[RelPath], Iterable[bytes]]


class View(Protocol):
    """What is asked of a `catalog.View`."""

    @property
    def key(self) -> str:
        """Of the root in the catalog."""

    @property
    def complete(self) -> bool:
        """Whether everything was looked at that may hold entries."""

    def names(self, directory: str) -> frozenset[str] | None:
        """All names in a directory, None if it was not listed."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What is to be written so that an index is right.

    Attributes:
        writes: to be carried out all or none.
        notes: what a person should know.
        problems: those of the notes that say what cannot be written, and why.
        saved: index files that were not ours, of which `writes` keep copies as entries.
        files: what stands in index files once `writes` are carried out, as far as it is known.
        gone: files that are no index files any more.
        upto: the last row of `relisted` that is heeded; 0 for none, as long as there are problems.
        whole: nothing was taken from what was written before.
    """

    writes: tuple[Write, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    saved: frozenset[RelPath] = frozenset()
    files: tuple[tuple[RelPath, Digest], ...] = ()
    gone: tuple[RelPath, ...] = ()
    upto: int = 0
    whole: bool = False

    @property
    def saves(self) -> bool:
        """Whether `writes` make new entries, of what was not ours. They must last, and are in no index yet.

        Once they are written the view has to look again at the root's own directory, and the index to be
        planned again.
        """
        return bool(self.saved)


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What is wrong with an index, and what a person may want to know besides."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def plan_index(
    database: Database, root: BoundRoot, view: View, *, whole: bool = False, versions: Versions = lambda _: ()
) -> IndexPlan:
    """The writes that make the index of `root` say what the catalog says (X1 to X5).

    Args:
        database: the catalog.
        root: whose index it is.
        view: of the same catalog, just refreshed.
        whole: compare every page, and list `index/` for pages that we left behind. So it is done at any rate
            where the catalog does not know what was written.
        versions: what a file held before, as far as it is known; its line then is ours, too.

    Raises:
        QuotaExceeded: as `free_name`, for the entry that keeps what is not ours.
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    if not view.complete:
        problem = f"{_shown(root, INDEX_NAME)} cannot be rebuilt: the memory could not be read completely"
        return IndexPlan(notes=(problem,), problems=(problem,))
    return _Planning(database, root, view, versions, whole=whole).plan()


def about_to_write(database: Database, view: View, plan: IndexPlan) -> None:
    """Keep in mind what the writes of `plan` are: who is killed meanwhile knows it for ours afterwards.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be written.
    """
    digests = dict(plan.files)
    rows = [(view.key, each.rel, digests[each.rel]) for each in plan.writes if each.rel in digests]
    if rows:
        with database.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO planned (root, rel, digest) VALUES (?, ?, ?)", rows)


def written(database: Database, view: View, plan: IndexPlan) -> None:
    """Keep in mind that the writes of `plan` were carried out.

    What was relisted since it was made stays so.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be written. The next plan writes the same files again.
    """
    with database.transaction() as connection:
        if plan.whole:
            connection.execute("DELETE FROM written WHERE root = ?", (view.key,))
        connection.executemany(
            "DELETE FROM written WHERE root = ? AND rel = ?", [(view.key, rel) for rel in plan.gone]
        )
        connection.executemany(
            "INSERT OR REPLACE INTO written (root, rel, digest) VALUES (?, ?, ?)",
            [(view.key, *file) for file in plan.files],
        )
        connection.execute("DELETE FROM planned WHERE root = ?", (view.key,))
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
        versions: as of `plan_index`.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `plan_index`.
    """
    plan = plan_index(database, root, view, whole=True, versions=versions)
    wrong = {write.rel: write for write in plan.writes if write.rel in plan.saved or _is_of_index(write.rel)}
    known = {*dict(plan.files), *wrong}
    notes = [
        f"{_shown(root, rel)} is no file of the index; it is left alone"
        for rel in _listed(root)
        if rel not in known and not rel.startswith(f"{INDEX_DIRECTORY}/.")
    ]
    told = [f"{_shown(root, rel)} {_wrong(write, plan)}" for rel, write in sorted(wrong.items())]
    return IndexCheck((*plan.problems, *_some(told)), _some(notes))


class _Planning:
    """One plan in the making."""

    def __init__(
        self, database: Database, root: BoundRoot, view: View, versions: Versions, *, whole: bool
    ) -> None:
        self._database, self._root, self._view, self._versions = database, root, view, versions
        self._whole = whole or not self._was_written(RelPath(INDEX_NAME))
        self._names = set(view.names("") or ())
        self._writes: list[Write] = []
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._saved: set[RelPath] = set()
        self._files: dict[RelPath, Digest] = {}

    def plan(self) -> IndexPlan:
        obstacle = _obstacle(self._root)
        if obstacle is None and self._had_pages():
            self._whole = True  # Somebody removed them all.
        layout = lay_out(
            self._database, self._view.key, self._root.scope, whole=self._whole, pages=not obstacle
        )
        is_blocked = bool(obstacle) and layout.paged
        if is_blocked:
            self._problems.append(f"{obstacle}; move it away, then run: muniment index rebuild")
        for rel, content in layout.files.items():
            self._write(rel, content, needed=layout.entries > 0)
        # What could not be written is forgotten as well; with what stays relisted it is tried again.
        gone = {*layout.gone, *layout.files} - self._files.keys()
        for rel in sorted({*layout.gone, *self._left_behind()} - layout.files.keys()):
            self._remove(rel)
        return IndexPlan(
            writes=tuple(self._writes),
            notes=(*self._problems, *self._notes),
            problems=tuple(self._problems),
            saved=frozenset(self._saved),
            files=tuple(self._files.items()),
            gone=tuple(sorted(gone)),
            upto=0 if self._problems else layout.upto,
            whole=self._whole,
        )

    def _had_pages(self) -> bool:
        return bool(
            self._database.rows(
                "SELECT 1 FROM written WHERE root = ? AND rel > ? LIMIT 1",
                (self._view.key, f"{INDEX_DIRECTORY}/"),
            )
        )

    def _left_behind(self) -> Iterator[RelPath]:
        """What may be a page that nobody remembers."""
        if self._whole:
            yield from (rel for rel in _listed(self._root) if is_page_name(rel.rpartition("/")[2]))

    def _write(self, rel: RelPath, content: bytes, *, needed: bool) -> None:
        """Put a file into the plan, unless nothing but a problem can come of it."""
        shown = _shown(self._root, rel)
        before: bytes | Expected
        try:
            before = self._root.root.read_bytes(rel)
        except NotFound:
            if not needed:
                return
            before = Expected.ABSENT
        except PathEscape as escape:
            if escape.via not in _REPLACED:
                self._problems.append(
                    f"{shown} cannot be rebuilt: something special has its name ({escape.via}); move it away"
                )
                return
            before = Expected.LINK
            self._notes.append(f"{shown} was a link; the index takes its place, what it led to is left alone")
        except ToolError as error:
            self._problems.append(f"{shown} cannot be rebuilt: {error}; move it away")
            return
        self._files[rel] = digest(content)
        if before == content:
            return
        if isinstance(before, bytes) and not self._is_ours(rel, before, content):
            self._save(rel, before)
        self._writes.append(Write(self._root, rel, before, content))

    def _remove(self, rel: RelPath) -> None:
        """Remove a file if we wrote it."""
        try:
            before = self._root.root.read_bytes(rel)
        except (NotFound, PathEscape, ToolError):
            return
        if self._is_ours(rel, before, b""):
            self._writes.append(Write(self._root, rel, before, None))

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
        return {*(line for *_, line in found), *map(entry_line, rows)}

    def _was_written(self, rel: RelPath) -> bool:
        return bool(
            self._database.rows("SELECT 1 FROM written WHERE root = ? AND rel = ?", (self._view.key, rel))
        )

    def _save(self, rel: RelPath, content: bytes) -> None:
        scope = self._root.scope
        saved = RelPath(free_name(scope, "", SAVED_NAME, FILE_SUFFIX, lambda _: self._names))
        self._names.add(saved)
        self._saved.add(rel)
        self._writes.append(Write(self._root, saved, Expected.ABSENT, content))
        self._notes.append(f"{_shown(self._root, rel)} was not ours; it is saved as {scope}/{saved}")


def _obstacle(root: BoundRoot) -> str | None:
    """Why nothing can be written into `index/`: empty if it can, None if there is no such directory yet."""
    shown = _shown(root, INDEX_DIRECTORY)
    try:
        found = root.root.examine(INDEX_DIRECTORY)
    except PathEscape as escape:
        return f"{shown} cannot be used: it leads elsewhere ({escape.via})"
    except ToolError as error:
        return f"{shown} cannot be used: {error}"
    if found is None:
        return None
    return "" if found.kind == "directory" else f"{shown} cannot be used: it is a file"


def _listed(root: BoundRoot) -> list[RelPath]:
    """Everything in `index/`, sorted; nothing where it cannot be listed."""
    try:
        found = root.root.list_directory(INDEX_DIRECTORY)
    except (PathEscape, ToolError):
        return []
    return [joined(INDEX_DIRECTORY, item.name) for item in found]


def _is_of_index(rel: RelPath) -> bool:
    return rel == INDEX_NAME or rel.startswith(f"{INDEX_DIRECTORY}/")


def _wrong(write: Write, plan: IndexPlan) -> str:
    if write.rel in plan.saved:
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
