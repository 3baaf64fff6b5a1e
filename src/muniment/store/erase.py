"""Erases a file or what a task did, for good: from the memory and from everything in the state directory.

Steps of `erase`; a process that is killed between any two leaves a state in which running it again finishes:

1. What interrupted commits left is taken back. Files that are still there are removed, by a commit; then the
   directories above them that stand empty.
2. One transaction of the ledger, under the locks of the roots: the bytes, names and digests of every version
   go, with the provenance, the pending reviews and the records that name them; likewise the versions of
   *other* files that hold a piece of the same text which no file holds any more, and what tasks of lanes hold
   of it (`tasks.py`). A record names the records whose bodies went. Keyed digests stay in `forgotten`, so
   that no dream writes the text again. What sessions of hosts were told goes whole (`told.py`). Before,
   transcripts that hold some of it are deleted.
3. The ledger is written anew without its free pages, its log emptied; copies from upgrades go.
4. The catalog is deleted, and made again with the indexes.

Does not cover: blocks of the file system, backups, other copies that somebody made, what the provider of a
model keeps, the history of a version control system. Processes that have the memory open hold the old
catalog, deleted but readable to them, until they end.

A task of a lane that runs and holds some of it must end first; that is looked at before step 1 and in step 2.

`left_over` checks: it reads every file of the state directory as bytes, and what is JSON as what it says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from muniment.content.entry import parse
from muniment.errors import (
    ConfigInvalid,
    DeadlineExceeded,
    InvalidScope,
    NotFound,
    PathEscape,
    Refused,
    StoreConflict,
    ToolError,
    Unreadable,
    printable,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.decide import Policy
from muniment.kernel.land import lock_roots, remove_directories
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.policy.platforms import require_writing
from muniment.store import audit
from muniment.store.audit import timestamp
from muniment.store.commit import Terms, commit, granting
from muniment.store.index import is_index_path
from muniment.store.ledger import ERASED, Run, commits, erased_name, root_key
from muniment.store.state import LEDGER_NAME, State
from muniment.store.table import Table
from muniment.store.tasks import (
    RUN_BYTES,
    QueuedTask,
    Runs,
    all_tasks,
    as_read,
    clear,
    clearing,
    remove_telling,
    strings,
    telling,
)
from muniment.store.told import forget_all
from muniment.store.trust import constant, new_ulid
from muniment.store.upkeep import rebuild, recover_all, view_of
from muniment.types import ErasePlan, EraseResult
from muniment.types.keys import RootKey

# -- emptied -----------------------------------------------------------------------------------------
#
# Removes directories that an undo or an erasure has left empty.


def remove_emptied(
    roots: Mapping[Scope, BoundRoot], directories: Collection[CanonicalPath], patience: Patience
) -> None:
    """Remove `directories` where nothing stands in them any more, the innermost first.

    Under the locks, since a commit that is under way may be about to put a file there.

    Raises:
        ManagedMemoryUnavailable: the system refuses.
        DeadlineExceeded, Cancelled: somebody held the lock of a root.
    """
    scopes = {directory.scope for directory in directories}
    if scopes:
        with lock_roots([roots[scope] for scope in scopes], patience) as held:
            remove_directories(directories, held)


# -- receipt -----------------------------------------------------------------------------------------
#
# What an erasure would do, and what it did: values.

NOT_COVERED: Final = (
    "blocks of the file system, backups and other copies, transcripts that were moved, version control, "
    "the provider of a model"
)
"""What no erasure here reaches, for people."""


# -- erasure -----------------------------------------------------------------------------------------
#
# What the ledger holds of files that are to be erased, and how it goes; `erase.py` says when.
#
# Text may stand in versions of files, each one side of a row of `change`; in what waits for a review and why;
# in notes, in records and in tasks of lanes (`tasks.py`). One walk goes over all of it, twice: first for what
# is the target's own, then for what holds a run of its text which no file holds any more.
#
# E1 What says something is the target's own if it is of a task that wrote it, or if a string names the path,
#    or says just what was asked for then. JSON is read before it is compared. What can only be a fixed word
#    or a name (`_WORDS`) is not compared.

_File = tuple[RootKey, RelPath]
_Place = Literal["before", "after", "review", "notes", "record", "task"]
_Key = tuple[int | str, ...]

_WORDS: Final = frozenset(
    {"code", "context", "decidedBy", "enforcement", "scope", "topic", "touchedScopes", "touchedTopics"}
)
"""Fields that hold fixed words, or names of scopes and models. Any other may hold text."""

_PATHS: Final = frozenset({"filesTouched", "filePath", "paths"})
"""Fields that hold logical paths, one a string."""


def _gone(side: str) -> tuple[str, str]:
    here = "change_set = ?1 AND position = ?2"
    of_it = f"SELECT root, rel, {side}_digest FROM change WHERE {here}"  # noqa: S608  a column
    return (
        f"DELETE FROM provenance WHERE (root, rel, digest) IN ({of_it})",  # noqa: S608
        f"UPDATE change SET {side} = NULL, {side}_digest = '{ERASED}' WHERE {here}",  # noqa: S608
    )


_GONE: Final[Mapping[_Place, Sequence[str]]] = {
    "before": _gone("before"),
    "after": _gone("after"),
    "review": ("DELETE FROM change_set WHERE review = ?1", "DELETE FROM review WHERE id = ?1"),
    "notes": ("UPDATE change_set SET notes = '[]' WHERE id = ?1",),
    "record": ("UPDATE record SET body = NULL WHERE seq = ?1",),
}
"""What takes something out of a place of the ledger, by its key there; `tasks.clear` does with tasks."""


@dataclass(frozen=True, slots=True)
class EraseTarget:
    """What is to be erased.

    Attributes:
        files: every version of these.
        paths: their logical paths, by every name that their scopes had or have.
        tasks: what is known of these besides files.
    """

    files: frozenset[_File]
    paths: frozenset[str]
    tasks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TargetTraces:
    """What the ledger holds of a target.

    Attributes:
        at: the keys of what goes, by its place.
        other_paths: the logical paths of other files of which versions go.
        tasks: that wrote the target's versions.
        facts: keyed digests of what they were asked, and of the text itself.
        lane_tasks: those of lanes that are to be cleared.
        runs: of its text.
    """

    at: Mapping[_Place, Sequence[_Key]]
    other_paths: tuple[str, ...]
    tasks: frozenset[str]
    facts: frozenset[str]
    lane_tasks: tuple[QueuedTask, ...]
    runs: Runs

    @property
    def versions(self) -> int:
        """How many versions of files go."""
        return len(self.at["before"]) + len(self.at["after"])

    @property
    def records(self) -> tuple[int, ...]:
        """The numbers of the records of which the bodies go."""
        return tuple(int(seq) for (seq,) in self.at["record"])


@dataclass(frozen=True, slots=True)
class _HeldText:
    """Something that stands in the ledger and may be of a text.

    Attributes:
        task: that wrote or asked it.
        files: that it is about.
        texts: bytes of these.
        said: what it says besides, see `_said`; each string with the name of its field.
        fact: keyed digest of what was asked; empty: of nothing.
        path: of the one file that it is a version of; empty: it is none.
    """

    place: _Place
    key: _Key
    task: str
    files: Collection[_File] = frozenset()
    texts: Sequence[bytes] = ()
    said: Sequence[tuple[str, str]] = ()
    fact: str = ""
    path: str = ""

    def holds(self, runs: Runs) -> bool:
        """Whether anything of it holds a run."""
        return any(map(runs.found_in, (*self.texts, *(text.encode() for _, text in self.said))))

    def says(self, named: Sequence[re.Pattern[str]], paths: Collection[str]) -> bool:
        """Whether it names one of `paths`, for which `named` looks in what is no path (E1)."""
        return any(
            text in paths if field in _PATHS else any(each.search(text) for each in named)
            for field, text in self.said
        )


class _Forgotten(NamedTuple):
    """A keyed digest of what must not be learnt again."""

    fact: str
    at: str
    task: str


_FORGOTTEN: Final = Table("forgotten", _Forgotten)


def drop(state: State, target: EraseTarget, found: TargetTraces, run: Run) -> None:
    """Take everything that was found out of the rows, in one transaction, with a record of it.

    None of the tasks that were found runs.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written. Nothing of it holds.
    """
    with state.ledger.transaction() as connection:
        for place, gone in _GONE.items():
            for statement in gone:
                connection.executemany(statement, found.at[place])
        for root, rel in target.files:
            connection.execute("DELETE FROM provenance WHERE root = ? AND rel = ?", (root, rel))
            connection.execute(
                "UPDATE change SET rel = ?, made = '[]' WHERE root = ? AND rel = ?",
                (erased_name(state, root, rel), root, rel),
            )
        each = [(task,) for task in found.tasks]
        connection.executemany("UPDATE change_set SET fact = NULL WHERE task = ?", each)
        facts = [_Forgotten(fact, run.at, run.task) for fact in found.facts]
        _FORGOTTEN.insert(connection, facts, more="ON CONFLICT DO NOTHING")
        clear(state, found.lane_tasks, run.at)
        forget_all(state)
        body = {
            "records": list(found.records),
            "versions": found.versions,
            "reviews": len(found.at["review"]),
            "lane_tasks": len(found.lane_tasks),
            "files": sorted(erased_name(state, root, rel) for root, rel in target.files),
        }
        audit.append(state, run.at, audit.ERASE, run.task, body)


def scrub(state: State) -> None:
    """Leave nothing of what was deleted in the files of the state directory; the catalog is empty afterwards.

    Raises:
        ManagedMemoryUnavailable: the disk is full, or another process reads the ledger for too long.

    Cost: writes the ledger anew; while that lasts it needs as much room again.
    """
    state.ledger.scrub()
    state.remove_copies()
    state.renew_catalog()


def _all_held(state: State) -> Iterator[_HeldText]:
    """The walk: versions of files first, one at a time, since all may be more than fits into memory."""
    with state.ledger.each(
        "SELECT change_set, position, root, scope, rel, before, after, task, fact "
        "FROM step WHERE done IS NOT NULL"
    ) as rows:
        for number, position, root, scope, rel, before, after, task, fact in rows:
            sides: tuple[tuple[_Place, bytes | None], ...] = (("before", before), ("after", after))
            for side, content in sides:
                if content is not None:
                    of = ((number, position), task, {(root, rel)}, (content,))
                    yield _HeldText(side, *of, fact=fact or "", path=f"{scope}/{rel}")
    waiting = {kept.review: kept for kept in commits(state, "review IS NOT NULL")}
    for review, task, reasons in state.ledger.rows("SELECT id, task, reasons FROM review"):
        kept = waiting.get(review)  # Of one that was decided only why it had waited is left.
        changes = () if kept is None else kept.changes
        texts = [row.change.after for row in changes if row.change.after is not None]
        fact = (kept and kept.run.fact) or ""
        yield _HeldText(
            "review", (review,), task, _files_of(state, review), texts, _said(as_read(reasons)), fact
        )
    for number, task, notes in state.ledger.rows(
        "SELECT id, task, notes FROM change_set WHERE notes <> '[]'"
    ):
        yield _HeldText("notes", (number,), task, said=_said(as_read(notes)))
    for seq, task, body in state.ledger.rows(
        # Those of erasures hold only numbers and keyed digests.
        "SELECT seq, task, body FROM record WHERE body IS NOT NULL AND kind <> ?",
        (audit.ERASE,),
    ):
        yield _HeldText("record", (seq,), task or "", said=_said(as_read(body)))
    for each in all_tasks(state):
        yield _HeldText("task", (each.id,), each.id, said=_said(each.said))


def _said(value: Any) -> Sequence[tuple[str, str]]:
    """What may say something in JSON that was read (E1)."""
    return [
        (field, text.encode("utf-8", "replace").decode())
        for field, text in strings(value)
        if field not in _WORDS
    ]


def _files_of(state: State, review: str) -> set[_File]:
    """What the change-set of a review names."""
    rows = state.ledger.rows(
        "SELECT root, rel FROM change JOIN change_set ON change_set.id = change_set WHERE review = ?1 "
        "UNION SELECT root, rel FROM claim JOIN change_set ON change_set.id = change_set WHERE review = ?1",
        (review,),
    )
    return set(rows)


def is_forgotten(state: State, text: str) -> bool:
    """Whether the body of an erased entry, or what was asked for it, said exactly this."""
    return bool(state.ledger.rows("SELECT 1 FROM forgotten WHERE fact = ?", (state.keyed(text.strip()),)))


# -- erase -------------------------------------------------------------------------------------------

_Entry = tuple[BoundRoot, RelPath]


@dataclass(frozen=True, slots=True)
class EraseGround:
    """What an erasure works on; all of it stays the caller's."""

    state: State
    roots: Mapping[Scope, BoundRoot]
    policy: Policy
    patience: Patience


def plan(unsafe_target: str, where: EraseGround) -> ErasePlan:
    """What erasing would do; changes nothing.

    Args:
        unsafe_target: the logical path of a file, or the id of a task: then every file that it wrote.
        where: on what.

    Raises:
        NotFound: nothing is known of it.
        PathEscape, Refusal: it is no path of a file that can be erased.
        InvalidScope: the task wrote to directories that are not bound here.
        ToolError: a file that is there cannot be read, and so not erased.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    target = _target(unsafe_target, where)
    present = _present(target, where)
    found = _search(target, present.values(), where, _staying(where))
    return ErasePlan(
        status="preview",
        not_covered=NOT_COVERED,
        target=unsafe_target,
        files=tuple(sorted(path.text for path in present)),
        versions=found.versions,
        others=found.other_paths,
        tasks=tuple(sorted(found.tasks)),
        reviews=tuple(str(review) for (review,) in found.at["review"]),
        records=len(found.records),
        lane_tasks=len(found.lane_tasks),
        copies=where.state.copies(),
    )


def erase(unsafe_target: str, where: EraseGround) -> EraseResult:
    """Carry out the steps of the module's docstring.

    Raises:
        StoreConflict: somebody wrote a file anew meanwhile; run it again.
        DeadlineExceeded, Cancelled: before step 2; the former also where a task of a lane holds some of it
            and runs.
        NotFound, InvalidScope, PathEscape, Refusal, ToolError, ManagedMemoryUnavailable: as `plan`, or as a
            commit. Unless nothing was there to do, running it again finishes.

    Cost: as `search`, and the ledger written anew.
    """
    require_writing(where.policy)
    state = where.state
    state.require_writable()
    recover_all(state, where.roots, where.policy, where.patience)
    target = _target(unsafe_target, where)
    if state.ledger.rows("SELECT 1 FROM task WHERE status = 'running' LIMIT 1"):
        _require_rest(_search(target, _present(target, where).values(), where, _staying(where)))
    at = timestamp()
    run = Run(f"erase-{new_ulid()}", at, Trust.OWNER, "code", where.policy.label, "erase")
    removed = _remove(target, run, where, is_by_path="/" in unsafe_target)
    above = {each for _, path in _files(target, where) for each in _above(path)}
    remove_emptied(where.roots, above, where.patience)
    with lock_roots(where.roots.values(), where.patience):
        staying = _staying(where)  # The catalog may not be asked for inside a transaction of the ledger.
        with state.ledger.transaction():
            if present := _present(target, where):
                raise StoreConflict(tuple(path.text for path in present))
            found = _search(target, (), where, staying, removed=removed)
            _require_rest(found)
            of_lanes = {task.id for task in found.lane_tasks}
            transcripts = remove_telling(state, found.tasks | of_lanes, found.runs)
            drop(state, target, found, run)
    scrub(state)
    notes = [f"transcripts that were deleted: {transcripts}"] if transcripts else []
    notes += [
        note for root in where.roots.values() for note in rebuild(state, root, where.policy, where.patience)
    ]
    return EraseResult(
        status="erased",
        not_covered=NOT_COVERED,
        task_id=run.task,
        at=at,
        erased=tuple(sorted(erased_name(state, root, rel) for root, rel in target.files)),
        tasks=tuple(sorted(found.tasks - {run.task})),
        files=removed,
        versions=found.versions,
        reviews=len(found.at["review"]),
        records=len(found.records),
        lane_tasks=len(found.lane_tasks),
        notes=tuple(notes),
    )


def left_over(text: bytes, where: EraseGround) -> dict[str, int]:
    """How many runs of `text` are in which file of the state directory, besides those of files that stay.

    Args:
        text: what was erased, or any part of it; of a whole file what says something, see
            `store.tasks.telling`.
        where: on what.

    Raises:
        ConfigInvalid: the text is shorter than a run, so that there is nothing to look for.
        ManagedMemoryUnavailable: the state cannot be read.
    """
    runs = Runs(telling(text))
    if not len(runs):
        raise ConfigInvalid(f"the text is shorter than {RUN_BYTES} bytes, so it cannot be looked for")
    runs = runs.without(_remaining(EraseTarget(frozenset(), frozenset()), where, _staying(where)))
    texts = (text for held in _all_held(where.state) for _, text in held.said)
    said = {run for text in texts for run in runs.found_in(text.encode())}
    found: dict[str, int] = {}
    for name in where.state.files():
        seen = {run for block in where.state.blocks(name, RUN_BYTES - 1) for run in runs.found_in(block)}
        seen |= said if name == LEDGER_NAME else set()
        if seen:
            found[name] = len(seen)
    return found


def _target(unsafe_target: str, where: EraseGround) -> EraseTarget:
    if "/" in unsafe_target:
        path = canonicalise(unsafe_target, where.roots)
        if not path.rel or is_index_path(path.rel):
            reason = "erase names one entry or task; indexes are made from entries"
            raise Refused(reason, rule="erase", layer="store")
        key = root_key(where.state, where.roots[path.scope])
        return EraseTarget(frozenset({(key, path.rel)}), _names(where.state, {(key, path.rel): path.scope}))
    return _target_of_task(unsafe_target, where)


def _target_of_task(task: str, where: EraseGround) -> EraseTarget:
    state = where.state
    scopes = {root_key(state, root): scope for scope, root in where.roots.items()}
    files: dict[tuple[RootKey, RelPath], Scope] = {}
    for root, scope, rel in state.ledger.rows("SELECT root, scope, rel FROM step WHERE task = ?", (task,)):
        if root not in scopes:
            raise InvalidScope(
                f"{printable(task)} wrote to another directory of {scope!r}; erase it in the workspace, "
                "or with the --root, in which it ran"
            )
        if not rel.startswith(f"{ERASED}-"):
            files[root, rel] = scopes[root]
    known = "SELECT 1 FROM {} WHERE {} = ? LIMIT 1"
    columns = {"step": "task", "review": "task", "record": "task", "task": "id"}
    if not any(state.ledger.rows(known.format(*each), (task,)) for each in columns.items()):
        raise NotFound(f"no task {printable(task)!r} is known; see: muniment history")
    return EraseTarget(frozenset(files), _names(state, files), frozenset({task}))


def _names(state: State, files: Mapping[tuple[RootKey, RelPath], Scope]) -> frozenset[str]:
    """The logical paths of files, by the names that their scopes have and had."""
    names = {f"{scope}/{rel}" for (_, rel), scope in files.items()}
    for root, rel in files:
        rows = state.ledger.rows("SELECT DISTINCT scope FROM step WHERE root = ? AND rel = ?", (root, rel))
        names |= {f"{scope}/{rel}" for (scope,) in rows}
    return frozenset(names)


def _search(
    target: EraseTarget,
    present: Collection[bytes],
    where: EraseGround,
    staying: Sequence[_Entry],
    *,
    removed: int = 0,
) -> TargetTraces:
    """Find everything that the ledger holds of `target`; inside a transaction as that sees it.

    Args:
        target: what is to be erased.
        present: what its files hold now.
        where: on what.
        staying: every file that stays.
        removed: how many of its files went just now.

    Raises:
        NotFound: nothing is known of it, nor was anything erased there before.

    Cost: reads every version in the ledger and every file that stays; about 0.1 s for 5 MB.
    """
    state = where.state
    at: dict[_Place, dict[_Key, str]] = {place: {} for place in get_args(_Place)}
    tasks, facts, texts = set(target.tasks), set[str](), set(present)
    # Right before and after a name stands nothing that another name could have there.
    named = [re.compile(rf"(?<![\w.-])(?<![\w.-]/){re.escape(path)}(?![\w/-])") for path in target.paths]
    for held in _all_held(state):  # Versions first, so that their tasks are known.
        is_own = not target.files.isdisjoint(held.files)
        if held.path and is_own:
            tasks.add(held.task)
        if is_own or (not held.path and (held.task in tasks or held.says(named, target.paths))):
            at[held.place][held.key] = ""
            texts.update(held.texts)
            facts |= {held.fact} - {""}
    facts |= {state.keyed(body) for text in texts if (body := parse(text).body.strip())}
    runs = Runs(part for text in texts for part in telling(text)).without(_remaining(target, where, staying))
    concerned = set(tasks)
    for held in _all_held(state):
        is_of_it = held.place == "record" and held.task in concerned  # It says digests of what went.
        is_it = held.place == "task" and any(
            state.keyed(text.strip()) in facts for field, text in held.said if field not in _PATHS
        )
        if held.key not in at[held.place] and (is_of_it or is_it or held.holds(runs)):
            at[held.place][held.key] = held.path
            concerned |= {held.task} if held.path else set()
    found = TargetTraces(
        {place: tuple(sorted(keys)) for place, keys in at.items()},
        tuple(sorted({path for keys in at.values() for path in keys.values() if path})),
        frozenset(tasks),
        frozenset(facts),
        clearing(state, {str(task) for (task,) in at["task"]}),
        runs,
    )
    if not (target.tasks or present or removed or any(at.values()) or _was_erased(target, state)):
        raise NotFound(f"nothing is remembered at {min(target.paths)}, nor was it; see: muniment history")
    return found


def _was_erased(target: EraseTarget, state: State) -> bool:
    """Whether a file was erased there: what a killed process has left of it is in no row any more."""
    query = "SELECT 1 FROM step WHERE root = ? AND rel = ?"
    names = ((root, erased_name(state, root, rel)) for root, rel in target.files)
    return any(state.ledger.rows(query, each) for each in names)


def _require_rest(found: TargetTraces) -> None:
    """Refuse to go on while a task runs that holds some of it.

    Raises:
        DeadlineExceeded: one does.
    """
    for task in found.lane_tasks:
        if task.status == "running":
            raise DeadlineExceeded(f"{task.id} runs and holds it; try again once it is over, or cancel it")


def _files(target: EraseTarget, where: EraseGround) -> Iterator[tuple[BoundRoot, CanonicalPath]]:
    """The files of a target whose roots are bound here, whether they are there or not."""
    for scope, root in where.roots.items():
        key = root_key(where.state, root)
        yield from ((root, CanonicalPath(scope, rel)) for of, rel in target.files if of == key)


def _present(target: EraseTarget, where: EraseGround) -> dict[CanonicalPath, bytes]:
    """The files of a target that are there, with their bytes."""
    found: dict[CanonicalPath, bytes] = {}
    for root, path in _files(target, where):
        with suppress(NotFound):
            found[path] = root.root.read_bytes(path)
    return found


def _remove(target: EraseTarget, run: Run, where: EraseGround, *, is_by_path: bool) -> int:
    """Step 1, second half: how many files went."""
    going = [FileChange(path, digest(content), None) for path, content in _present(target, where).items()]
    # What a policy protects goes only where its owner names it: then that is all that the rules grant.
    policy = where.policy
    if is_by_path:
        policy = granting(policy, [Verb.MODIFY], (each.path for each in going))
    terms = Terms(policy, where.roots, where.patience, where.state, run, constant(Trust.OWNER), reviewed=True)
    return len(commit([ChangeSet(tuple(going))], terms).changes)


def _above(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """The directories above a file, but for the root."""
    while (path := path.parent).rel:
        yield path


def _staying(where: EraseGround) -> list[_Entry]:
    """Every entry that is there."""
    return [
        (root, entry.rel)
        for root in where.roots.values()
        for entry in view_of(where.state, root, where.policy, sweep=True).entries()
    ]


def _remaining(target: EraseTarget, where: EraseGround, staying: Sequence[_Entry]) -> Iterator[bytes]:
    """What every file holds that stays; of roots that are not bound here, what the ledger last knew of it."""
    keys = {root.scope: root_key(where.state, root) for root in where.roots.values()}
    for root, rel in staying:
        if (keys[root.scope], rel) in target.files:
            continue
        try:
            yield root.root.read_bytes(CanonicalPath(root.scope, rel))
        except Unreadable:  # It may be read again: then it says what the ledger last knew of it.
            last = "SELECT after FROM step WHERE root = ? AND rel = ? ORDER BY change_set DESC LIMIT 1"
            rows = where.state.ledger.rows(last, (keys[root.scope], rel))
            yield from (content for (content,) in rows if content is not None)
        except (ToolError, PathEscape):
            continue  # Gone meanwhile, or no file of the memory any more.
    marks = ", ".join("?" * len(keys))
    for (content,) in where.state.ledger.rows(
        "SELECT after FROM step JOIN (SELECT root, rel, max(change_set) AS change_set FROM step "  # noqa: S608
        f"WHERE root NOT IN ({marks}) GROUP BY root, rel) USING (root, rel, change_set)",
        list(keys.values()),
    ):
        if content is not None:
            yield content
