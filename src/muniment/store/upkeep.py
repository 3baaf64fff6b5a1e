"""What keeps a root in order besides commits: recovery, its view, its index."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from muniment import events
from muniment.content.entry import parse, titled
from muniment.errors import (
    BadName,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    MunimentError,
    NotAFile,
    NotFound,
    PathEscape,
    QuotaExceeded,
    Refused,
    StoreConflict,
    ToolError,
    Unreadable,
    printable,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, IndexFile, Standing, digest
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.land import Landed, LockedRoots, generated, land, lock_roots
from muniment.kernel.names import (
    INDEX_DIRECTORY,
    INDEX_NAME,
    MAX_PATH_BYTES,
    MAX_SEGMENT_BYTES,
    SAVED_NAME,
    Digest,
    RelPath,
    Scope,
    Trust,
    Verb,
    Via,
    joined,
)
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.kernel.write import Recovered, clear_index, new_token, recover, temporary_of_index
from muniment.policy.grammar import check_creatable
from muniment.policy.platforms import may_write, require_writing
from muniment.portable import SYSTEM
from muniment.store.audit import timestamp
from muniment.store.catalog import Look, View
from muniment.store.database import Database
from muniment.store.index import (
    EXPIRES_AT,
    STAND_IN,
    IndexRow,
    entry_line,
    is_index_path,
    is_page_name,
    lay_out,
    lengthy_line,
    says_nothing_else,
)
from muniment.store.journal import CatalogFacts, LedgerJournal
from muniment.store.ledger import root_key
from muniment.store.rows import Assessed
from muniment.store.state import PLANNED, WRITTEN, IndexedFile, State
from muniment.store.trust import NONE_KNOWN, Known, assessing, basis

# -- naming ------------------------------------------------------------------------------------------
#
# Other names for new files: free ones, by appending numbers, and ones that the caller chooses. Pure.
#
# What is taken comes from a view under the lock; the judge compares the result with the same view.

MAX_SUFFIX: Final = 999
"""Highest number that is appended; more files of one name are a loop, not a memory."""


Rename = Callable[[FileChange, Callable[[str], Collection[str] | None]], RelPath]
"""Where a new file goes, as it was proposed; given the names in a folder of its scope, None for none."""


def renamed(
    change_set: ChangeSet,
    rename: Rename,
    policy: Policy,
    views: Mapping[Scope, View],
) -> ChangeSet:
    """Move every new file to where `rename` says, under a free name there.

    Raises:
        Refused, BadName, QuotaExceeded: as `settle_names`.
    """

    def moved(change: FileChange, names: _DirectoryNames) -> CanonicalPath:
        path, rel = change.path, rename(change, names)
        directory, _, name = rel.rpartition("/")
        return path if rel == path.rel else _free_file(path.scope, directory, name, names)

    return replace(change_set, changes=tuple(_moved(change_set.changes, moved, policy, views)))


def renamed_replacements(
    change_set: ChangeSet,
    rename: Rename,
    policy: Policy,
    views: Mapping[Scope, View],
) -> tuple[ChangeSet, dict[CanonicalPath, FileChange]]:
    """Give entries whose text is replaced the names that `rename` says, as far as the policy grants that.

    Args:
        change_set: its replacements are to be asked about where they have their `before`.
        rename: as for `renamed`; the path that a change has: it stays.
        policy: has to let the new file be created, and the old one be removed.
        views: of the scopes.

    Returns:
        The change-set, in which an entry is removed and created instead of changed; and what was proposed, by
        the new paths.

    Raises:
        QuotaExceeded: as `free_name`.
    """
    judge, names = Judge(policy), {scope: _DirectoryNames(view) for scope, view in views.items()}
    changes, origins = list[FileChange](), dict[CanonicalPath, FileChange]()
    for each in change_set.changes:
        path, rel = each.path, each.path.rel
        if each.kind == "modify" and each.before is not None:
            rel = rename(each, names[path.scope])
        if rel == path.rel or not _may_move(judge, path, CanonicalPath(path.scope, rel)):
            changes.append(replace(each, before=None))
            continue
        directory, _, name = rel.rpartition("/")
        to = _free_file(path.scope, directory, name, names[path.scope])
        origins[to] = each
        changes += (FileChange(path, each.base, None), FileChange(to, None, each.after))
    return replace(change_set, changes=tuple(changes)), origins


def _may_move(judge: Judge, path: CanonicalPath, to: CanonicalPath) -> bool:
    try:
        judge.require_removal(path)
        judge.require(Verb.CREATE, to)
        check_creatable(to)
    except (Refused, BadName):
        return False
    return True


def settle_names(change_set: ChangeSet, policy: Policy, views: Mapping[Scope, View]) -> ChangeSet:
    """Move every new file whose name is taken to a free one; such a run has no claims worth keeping.

    Raises:
        Refused, BadName: the proposed name may not be created.
        QuotaExceeded: as `free_name`.
    """
    return ChangeSet(
        tuple(_moved(change_set.changes, lambda each, names: _free_path(each.path, names), policy, views))
    )


def _moved(
    changes: Iterable[FileChange],
    move: Callable[[FileChange, _DirectoryNames], CanonicalPath],
    policy: Policy,
    views: Mapping[Scope, View],
) -> Iterator[FileChange]:
    """What the policy or the grammar refuses is refused here: another name would only hide it."""
    decider = Judge(policy)
    names = {scope: _DirectoryNames(view) for scope, view in views.items()}
    for proposed in changes:
        path = proposed.path
        if proposed.base is None:
            decider.require(Verb.CREATE, path)
            check_creatable(path)
            path = move(proposed, names[path.scope])
        yield replace(proposed, path=path)


class _DirectoryNames:
    """The names in each directory of a scope, with those that were given out meanwhile."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._given: dict[str, set[str]] = {"": set()}

    def __call__(self, directory: str) -> Collection[str] | None:
        found, given = self._view.names(directory), self._given.get(directory)
        return found if given is None else given | (found or frozenset())

    def give(self, directory: str, name: str) -> None:
        self._given.setdefault(directory, set()).add(name)


def _free_path(path: CanonicalPath, names: _DirectoryNames) -> CanonicalPath:
    """Where `path` can go, given out in `names`."""
    *folders, name = path.rel.split("/")
    directory = ""
    for folder in folders:
        free = free_name(path.scope, directory, folder, "", names)
        names.give(directory, free)
        directory = joined(directory, free)
    return _free_file(path.scope, directory, name, names)


def _free_file(scope: Scope, directory: str, name: str, names: _DirectoryNames) -> CanonicalPath:
    """Where a file can go in a directory, given out in `names`."""
    free = free_name(scope, directory, name.removesuffix(FILE_SUFFIX), FILE_SUFFIX, names)
    names.give(directory, free)
    return CanonicalPath(scope, joined(directory, free))


def free_name(
    scope: Scope, directory: str, stem: str, suffix: str, names: Callable[[str], Collection[str] | None]
) -> str:
    """The first numbering of a name that neither something else nor an alias has.

    Args:
        scope: of the directory.
        directory: where, inside its scope; "" for the root.
        stem: of the name.
        suffix: of a file; empty for a folder, which may also be one that is there, however it is spelled.
        names: all of a directory, None for one that is not there or could not be listed.

    Raises:
        QuotaExceeded: all numbers up to `MAX_SUFFIX` are taken.
    """
    taken: dict[str, list[str]] = {}
    for each in sorted(names(directory) or ()):
        taken.setdefault(fold(each), []).append(each)
    above = len(f"{scope}/{joined(directory, '')}".encode())
    room = min(MAX_SEGMENT_BYTES, MAX_PATH_BYTES - above)
    for number in range(1, MAX_SUFFIX + 1):
        ending = f"-{number}{suffix}"
        free = stem + suffix if number == 1 else _cut(stem, room - len(ending)) + ending
        standing = taken.get(fold(free), [])
        if not standing:
            return free
        folders = [each for each in standing if not suffix and names(joined(directory, each)) is not None]
        if folders:
            return free if free in folders else folders[0]
    raise QuotaExceeded("there are too many files of that name; choose another")


def _cut(stem: str, size: int) -> str:
    """`stem` within `size` bytes of UTF-8, never inside a character."""
    return stem.encode()[: max(0, size)].decode(errors="ignore").rstrip(" .")


# -- indexing ----------------------------------------------------------------------------------------
#
# Keeps the index of a root, `MEMORY.md` and the pages in `index/`, equal to what the catalog says.
#
# - X1 The index is derived: it claims nothing, may be rebuilt at any time, and what goes wrong with it is
#   told.
# - X2 What a person wrote where an index file belongs is never lost: it is first saved whole as an entry.
#   Ours
#   is what was written here last, to the byte, and what says nothing but what the entries say, or said in a
#   version that the ledger keeps. What stands in `index/` under a name that no index file has now is left
#   alone, unless we wrote it.
# - X3 A link or hard link at the name of an index file is replaced, not followed.
# - X4 A view that is not complete overwrites nothing.
# - X5 `MEMORY.md` is compared with the disk each time. A page is only written when its entries changed, and
#   so
#   one that somebody else spoils stays until `rebuild`; `verify` tells.
#
# Which files there are and what they hold: `index.py`.

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


# -- upkeep ------------------------------------------------------------------------------------------

LOOK_SHARE: Final = 0.7
"""Of the time that a recall has: how much it may spend on looking what changed before it answers."""


def view_of(
    state: State,
    root: BoundRoot,
    policy: Policy,
    *,
    sweep: bool = False,
    patience: Patience | None = None,
    look: Look | None = None,
    known: Known = NONE_KNOWN,
) -> View:
    """What is in a root now; a catalog that turns out to be damaged is begun anew.

    Args:
        state: whose catalog.
        root: the root; whoever goes on to write holds its lock.
        policy: says how its files are trusted and kept.
        sweep: look at every file, so that edits in place are found.
        patience: looked at first, and at each file that is read; it ends no wait for another thread that
            writes rows. None: however long it takes.
        look: says where to look instead of everywhere.
        known: as of `assessing`.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: the patience ended; no row is changed.
    """
    if patience is not None:
        patience.check()
    view, depends_on = _view(state, root, policy, known, patience), basis(policy, root.scope)
    for_it = look or Look(sweep=sweep)
    try:
        return view.refresh(depends_on, for_it)
    except ManagedMemoryUnavailable as error:
        if not state.catalog.is_damaged(error):
            raise
    state.renew_catalog()
    return view.refresh(depends_on, for_it)


def view_in_time(
    state: State, root: BoundRoot, policy: Policy, patience: Patience, look: Look | None = None
) -> View:
    """As `view_of`, but what takes more than `LOOK_SHARE` of the patience is left to the next look.

    Then the view says what is known until then, and `memory_not_read_yet` tells.
    """
    now = time.monotonic()
    sooner = Patience(now + LOOK_SHARE * (patience.deadline - now), patience.cancel)
    try:
        return view_of(state, root, policy, patience=sooner, look=look)
    except DeadlineExceeded:
        patience.check()
    events.emit("memory_not_read_yet", scope=root.scope)
    return view_as_it_is(state, root, policy)


def view_as_it_is(state: State, root: BoundRoot, policy: Policy) -> View:
    """What the rows say, whatever stands there by now.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    return _view(state, root, policy)


def _view(
    state: State,
    root: BoundRoot,
    policy: Policy,
    known: Known = NONE_KNOWN,
    patience: Patience | None = None,
) -> View:
    key = root_key(state, root)
    assess = assessing(state, key, root.scope, policy, known)

    def patient(rel: RelPath, found: Digest, data: bytes) -> Assessed:
        if patience is not None:
            patience.check()
        return assess(rel, found, data)

    return View(state.catalog, key, root, patient, embedder=state.embedder)


def trusts_shown(state: State, root: BoundRoot, policy: Policy) -> list[Trust]:
    """The trusts of the entries whose text stands in the index of a root.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    view_of(state, root, policy)
    rows = state.catalog.rows(
        "SELECT DISTINCT trust FROM entry WHERE root = ? AND readable AND held IS NULL",
        (root_key(state, root),),
    )
    return [trust for (text,) in rows if (trust := Trust(text)).satisfies(Trust.WORKSPACE)]


def expired_in(state: State, root: BoundRoot) -> frozenset[RelPath]:
    """The entries of a root that have expired, as far as its catalog knows.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    rows = state.catalog.rows(
        f"SELECT rel FROM entry WHERE root = ? AND expires > '' AND {EXPIRES_AT} <= ?",  # noqa: S608
        (root_key(state, root), timestamp()),
    )
    return frozenset(RelPath(rel) for (rel,) in rows)


def is_listable_in(state: State, root: BoundRoot) -> Callable[[RelPath], bool]:
    """Return a test: whether the catalog has an entry that is readable and neither withheld nor expired.

    Index files pass. `index.STAND_IN` stands for its folder: one such entry there is enough. Cost: one or two
    queries for each path.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read; so does the test.
    """
    key, now, rows = root_key(state, root), timestamp(), state.catalog.rows
    entries = "SELECT 1 FROM entry WHERE root = ?"
    listed = f"{entries} AND readable AND held IS NULL AND (expires IS NULL OR {EXPIRES_AT} > ?)"

    def is_listable(rel: RelPath) -> bool:
        if is_index_path(rel) or rows(f"{listed} AND rel = ?", (key, now, rel)):
            return True
        topic, _, name = rel.rpartition("/")
        is_folder = name == STAND_IN and not rows(f"{entries} AND rel = ?", (key, rel))
        return is_folder and bool(rows(f"{listed} AND topic = ? LIMIT 1", (key, now, topic)))

    return is_listable


def is_as_written(state: State, root: BoundRoot, index: bytes) -> bool:
    """Whether a `MEMORY.md` is, to the byte, what was written there last; not known of a new catalog.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    found = state.catalog.rows(
        "SELECT digest FROM written WHERE root = ? AND rel = ?", (root_key(state, root), INDEX_NAME)
    )
    return found == [(digest(index),)]


def has_foreign_index(state: State, root: BoundRoot) -> bool:
    """Return whether an index file of a root is missing or holds other bytes than were last written there.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.

    Cost: each index file is read.
    """
    rows = state.catalog.rows("SELECT rel, digest FROM written WHERE root = ?", (root_key(state, root),))
    for rel, written in rows:
        try:
            found = digest(root.root.read_bytes(_in(root, rel)))
        except (PathEscape, ToolError):
            return True
        if found != written:
            return True
    return False


def trusted_less(state: State, root: BoundRoot, reader: Trust) -> Callable[[RelPath], Trust | None]:
    """The trust of an entry of a root that a reader trusts less than themselves; else None.

    Of what is no entry the least counts that an entry of its folder has. Cost: a query for each question.
    """
    key = root_key(state, root)

    def below(rel: RelPath) -> Trust | None:
        rows = state.catalog.rows("SELECT trust FROM entry WHERE root = ? AND rel = ?", (key, rel))
        rows = rows or state.catalog.rows(
            "SELECT DISTINCT trust FROM entry WHERE root = ? AND topic = ?", (key, rel.rpartition("/")[0])
        )
        least = Trust.OWNER.capped(*(Trust(trust) for (trust,) in rows))
        return None if least.satisfies(reader) else least

    return below


def write_index(
    state: State,
    held: LockedRoots,
    view: View,
    temporary: Callable[[int], str],
    *,
    whole: bool = False,
    always: bool = False,
) -> tuple[str, ...]:
    """Make the index say what the view says; what a person should know.

    Args:
        state: whose catalog.
        held: the locked roots; the view is of one of them.
        view: of it, as it is now.
        temporary: names for what is being written.
        whole: look at every page, not only at those whose entries changed.
        always: write it also where there is none yet, and nothing to list.

    Raises:
        StoreConflict: somebody else keeps changing it.
        ManagedMemoryUnavailable: it cannot be written.
    """
    root = held[view.scope]
    notes: list[str] = []
    for is_last in (False, False, True):
        with state.catalog.transaction():
            plan = IndexPlan(state.catalog, root, view, _versions(state, root), whole=whole, always=always)
            about_to_write(state.catalog, view, plan)
        try:
            landed = land(generated(plan.writes), held, temporary, durable=bool(plan.saved))
        except StoreConflict:
            # Somebody edited an index in this moment: that is looked at, and saved if it is theirs.
            if is_last:
                raise
            continue
        tell_degraded(landed)
        written(state.catalog, view, plan)
        notes += plan.notes
        if not plan.saved:
            break
        view.follow({""})  # What was saved has become an entry.
    return tuple(dict.fromkeys(notes))


def tell_degraded(landed: Landed) -> None:
    """Tell of files whose name was changed by a plain rename."""
    for path in landed.degraded:
        events.emit("commit_degraded", scope=path.scope, landing="plain_rename")


def follow_or_tell(
    state: State,
    held: LockedRoots,
    view: View,
    temporary: Callable[[int], str],
    *,
    changed: Iterable[str] = (),
    whole: bool = False,
) -> tuple[str, ...]:
    """As `write_index`, but what goes wrong is only told: an index is derived, and holds up nothing.

    `changed` are directories in which the caller wrote since the view was made.
    """
    try:
        view.follow(changed)
        return write_index(state, held, view, temporary, whole=whole)
    except MunimentError as error:
        events.emit("index_behind", scope=view.scope, code=error.code)
        return (f"the index of {view.scope} is behind ({error}); run: muniment index rebuild",)


def rebuild(state: State, root: BoundRoot, policy: Policy, patience: Patience) -> tuple[str, ...]:
    """Look at every file of a root and write its whole index anew, under its lock; what a person should know.

    Raises:
        StoreConflict, ManagedMemoryUnavailable: as `write_index`.
        DeadlineExceeded, Cancelled: before anything is written.
        PlatformUnsupported: as `policy.platforms.require_writing`.
    """
    require_writing(policy)
    state.require_writable()
    with lock_roots([root], patience) as held:
        notes = _recover(state, held, policy)
        facts = CatalogFacts(lambda _: view_of(state, root, policy))
        notes += tuple(_kept_notes(clear_index(held, root.scope, facts)))
        view = view_of(state, root, policy, sweep=True)
        patience.check()
        return notes + write_index(state, held, view, partial(temporary_of_index, new_token()), whole=True)


def verify(state: State, root: BoundRoot, policy: Policy) -> IndexCheck:
    """What is wrong with the index of a root, after a look at every file; changes none.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `verify_index`.
    """
    view = view_of(state, root, policy, sweep=True)
    return verify_index(state.catalog, root, view, _versions(state, root))


def recover_all(
    state: State, roots: Mapping[Scope, BoundRoot], policy: Policy, patience: Patience
) -> tuple[str, ...]:
    """Take back what interrupted commits left in `roots`, and bring the indexes there up to date.

    Costs one query where there is nothing to do, and takes no lock then.

    Raises:
        ManagedMemoryUnavailable: a file or the ledger cannot be written.
        DeadlineExceeded, Cancelled: somebody else holds the lock of a root.
    """
    found = LedgerJournal(state, roots).unfinished(roots)
    scopes = {path.scope for intent in found for path in (each.path for each in intent.changes.values())}
    notes: tuple[str, ...] = ()
    interrupted = f"a commit in {', '.join(sorted(scopes))} was interrupted and is not rolled back"
    if scopes and state.read_only_path is not None:
        return (
            f"{interrupted}: {state.read_only_path} cannot be written; make it writable and run this again",
        )
    if scopes and not may_write(policy):
        return (f"{interrupted} on {SYSTEM}",)
    for scope in (scope for scope in roots if scope in scopes):
        with lock_roots([roots[scope]], patience) as held:
            notes += _recover(state, held, policy)
    return notes


def after_recovery(
    state: State,
    held: LockedRoots,
    policy: Policy,
    done: Iterable[Recovered],
    reader: Trust = Trust.OWNER,
) -> Iterator[str]:
    """Bring the indexes of locked roots up to date, once files were taken back; what a person should know.

    A reader below the owner's trust gets no paths: those of another task may be hidden from it.
    """
    for each in done:
        yield f"took back {each.intent.task}, which was interrupted; run it again"
        for path in each.left:
            name = path.text if reader is Trust.OWNER else "a file of it"
            yield f"{name} was changed since and is left alone (recovery_conflict)"
        yield from _kept_notes(each.kept, reader)
    facts = CatalogFacts(lambda scope: view_of(state, held[scope], policy))
    for scope in held:
        yield from _kept_notes(clear_index(held, scope, facts), reader)
        temporary = partial(temporary_of_index, new_token())
        view = view_of(state, held[scope], policy, sweep=True)
        yield from follow_or_tell(state, held, view, temporary, whole=True)


def _kept_notes(kept: Iterable[CanonicalPath], reader: Trust = Trust.OWNER) -> Iterator[str]:
    names = (path.text if reader is Trust.OWNER else "another file" for path in kept)
    return (f"{name} holds what somebody wrote meanwhile" for name in names)


def _versions(state: State, root: BoundRoot) -> Callable[[RelPath], list[bytes]]:
    """What the ledger keeps of a file of a root."""
    key = root_key(state, root)

    def of(rel: RelPath) -> list[bytes]:
        query = "SELECT before, after FROM step WHERE root = ? AND rel = ?"
        return [data for row in state.ledger.rows(query, (key, rel)) for data in row if data is not None]

    return of


def _recover(state: State, held: LockedRoots, policy: Policy) -> tuple[str, ...]:
    """Recover locked roots."""
    facts = CatalogFacts(lambda scope: view_of(state, held[scope], policy))
    with recover(held, LedgerJournal(state, held), policy, facts) as recovered:
        return tuple(after_recovery(state, held, policy, recovered)) if recovered else ()
