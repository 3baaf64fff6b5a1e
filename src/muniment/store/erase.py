"""Erases a file or what a task did, for good: from the memory and from everything in the state directory.

Steps of `erase`; a process that is killed between any two leaves a state in which running it again finishes:

1. What interrupted commits left is taken back. Files that are still there are removed, by a commit; then the
   directories above them that stand empty.
2. One transaction of the ledger, under the locks of the roots: the bytes, names and digests of every version
   go, with the provenance, the pending reviews and the records that name them; likewise the versions of
   *other* files that hold a piece of the same text which no file holds any more, and what tasks of lanes hold
   of it (`tasks.py`). A record names the records whose bodies went. Keyed digests stay in `forgotten`, so
   that no dream writes the text again. Before, transcripts that hold some of it are deleted.
3. The ledger is written anew without its free pages, its log emptied; copies from upgrades go.
4. The catalog is deleted, and made again with the indexes.

Does not cover: blocks of the file system, backups, other copies that somebody made, what the provider of a
model keeps, the history of a version control system. Processes that have the memory open hold the old
catalog, deleted but readable to them, until they end.

A task of a lane that runs and holds some of it must end first; that is looked at before step 1 and in step 2.

`left_over` checks: it reads every file of the state directory as bytes, and tasks as what they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.confine.writing import lock_roots
from muniment.errors import (
    ConfigInvalid,
    DeadlineExceeded,
    InvalidScope,
    NotFound,
    PathEscape,
    Refused,
    StoreConflict,
    ToolError,
    printable,
)
from muniment.names import RelPath, Scope, Trust
from muniment.policy.decide import Policy
from muniment.policy.grammar import canonicalise
from muniment.store import tasks
from muniment.store.audit import timestamp
from muniment.store.commit import Terms, commit
from muniment.store.emptied import remove_emptied
from muniment.store.erasure import Found, Target, drop, scrub, search
from muniment.store.index import is_index_path
from muniment.store.judge import Author
from muniment.store.ledger import ERASED, Origin, RootKey, erased_name, root_key
from muniment.store.receipt import NOT_COVERED, Plan, Receipt
from muniment.store.stamp import new_ulid
from muniment.store.state import LEDGER_NAME, State
from muniment.store.traces import RUN_BYTES, Runs, telling
from muniment.store.transcripts import remove_telling
from muniment.store.trust import constant
from muniment.store.upkeep import rebuild, recover_all, view_of
from muniment.tools.overlay import ChangeSet, Claim, digest

__all__ = ["NOT_COVERED", "Plan", "Receipt", "Where", "erase", "left_over", "plan"]

_Entry = tuple[BoundRoot, RelPath]


@dataclass(frozen=True, slots=True)
class Where:
    """What an erasure works on; all of it stays the caller's."""

    state: State
    roots: Mapping[Scope, BoundRoot]
    policy: Policy
    patience: Patience


def plan(unsafe_target: str, where: Where) -> Plan:
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
    found = _search(target, present, where, _staying(where))
    return Plan(
        unsafe_target,
        tuple(sorted(present)),
        len(found.versions) + len(found.others),
        found.other_paths,
        tuple(sorted(found.tasks)),
        found.reviews,
        len(found.records),
        len(found.lane_tasks),
        where.state.copies(),
    )


def erase(unsafe_target: str, where: Where) -> Receipt:
    """Carry out the steps of the module's docstring.

    Raises:
        StoreConflict: somebody wrote a file anew meanwhile; run it again.
        DeadlineExceeded, Cancelled: before step 2; the former also where a task of a lane holds some of it
            and runs.
        NotFound, InvalidScope, PathEscape, Refusal, ToolError, ManagedMemoryUnavailable: as `plan`, or as a
            commit. Unless nothing was there to do, running it again finishes.

    Cost: as `search`, and the ledger written anew.
    """
    state = where.state
    recover_all(state, where.roots, where.policy, where.patience)
    target = _target(unsafe_target, where)
    if tasks.is_any_running(state):
        _require_rest(_search(target, _present(target, where), where, _staying(where)))
    at = timestamp(datetime.now(UTC))
    origin = Origin(f"erase-{new_ulid()}", "erase", at, Trust.OWNER, "code", where.policy.label)
    removed = _remove(target, origin, where, is_by_path="/" in unsafe_target)
    remove_emptied(where.roots, _above(target, where), where.patience)
    with lock_roots(where.roots.values(), where.patience):
        staying = _staying(where)  # The catalog may not be asked for inside a transaction of the ledger.
        with state.ledger.transaction():
            if present := _present(target, where):
                raise StoreConflict(tuple(present))
            found = _search(target, {}, where, staying, removed=removed)
            _require_rest(found)
            of_lanes = {each.before.id for each in found.lane_tasks}
            transcripts = remove_telling(state, found.tasks | of_lanes, found.runs)
            drop(state, target, found, origin)
    scrub(state)
    notes = [f"transcripts that were deleted: {transcripts}"] if transcripts else []
    notes += [
        note for root in where.roots.values() for note in rebuild(state, root, where.policy, where.patience)
    ]
    return _receipt(origin, target, found, removed, notes, where)


def left_over(text: bytes, where: Where) -> dict[str, int]:
    """How many runs of `text` are in which file of the state directory, besides those of files that stay.

    Args:
        text: what was erased, or any part of it; of a whole file what says something, see `traces.telling`.
        where: on what.

    Raises:
        ConfigInvalid: the text is shorter than a run, so that there is nothing to look for.
        ManagedMemoryUnavailable: the state cannot be read.
    """
    runs = Runs(telling(text))
    if not len(runs):
        raise ConfigInvalid(f"the text is shorter than {RUN_BYTES} bytes, so it cannot be looked for")
    runs = runs.without(_remaining(Target(frozenset(), frozenset()), where, _staying(where)))
    said = runs.found_in("\n".join(tasks.strings_of_all(where.state)).encode("utf-8", "replace"))
    found: dict[str, int] = {}
    for name in where.state.files():
        seen = {run for block in where.state.blocks(name, RUN_BYTES - 1) for run in runs.found_in(block)}
        seen |= said if name == LEDGER_NAME else set()
        if seen:
            found[name] = len(seen)
    return found


def _target(unsafe_target: str, where: Where) -> Target:
    if "/" in unsafe_target:
        path = canonicalise(unsafe_target, where.roots)
        if not path.rel or is_index_path(path.rel):
            reason = "erase names one entry or task; indexes are made from entries"
            raise Refused(reason, rule="erase", layer="store")
        key = root_key(where.state, where.roots[path.scope])
        return Target(frozenset({(key, path.rel)}), _names(where.state, {(key, path.rel): path.scope}))
    return _target_of_task(unsafe_target, where)


def _target_of_task(task: str, where: Where) -> Target:
    state = where.state
    scopes = {root_key(state, root): scope for scope, root in where.roots.items()}
    files: dict[tuple[RootKey, RelPath], Scope] = {}
    for root, scope, rel in state.ledger.rows(
        "SELECT root, scope, rel FROM change JOIN change_set ON change_set.id = change_set WHERE task = ?",
        (task,),
    ):
        if root not in scopes:
            raise InvalidScope(
                f"{printable(task)} wrote to another directory of {scope!r}; erase it in the workspace, "
                "or with the --root, in which it ran"
            )
        if not rel.startswith(f"{ERASED}-"):
            files[root, rel] = scopes[root]
    known = "SELECT 1 FROM {} WHERE task = ? LIMIT 1"
    tables = ("change_set", "review", "record")
    if not tasks.is_task(state, task) and not any(
        state.ledger.rows(known.format(table), (task,)) for table in tables
    ):
        raise NotFound(f"no task {printable(task)!r} is known; see: muniment history")
    return Target(frozenset(files), _names(state, files), frozenset({task}))


def _names(state: State, files: Mapping[tuple[RootKey, RelPath], Scope]) -> frozenset[str]:
    """The logical paths of files, by the names that their scopes have and had."""
    names = {f"{scope}/{rel}" for (_, rel), scope in files.items()}
    for root, rel in files:
        rows = state.ledger.rows("SELECT DISTINCT scope FROM change WHERE root = ? AND rel = ?", (root, rel))
        names |= {f"{scope}/{rel}" for (scope,) in rows}
    return frozenset(names)


def _search(
    target: Target, present: Mapping[str, bytes], where: Where, staying: Sequence[_Entry], *, removed: int = 0
) -> Found:
    """What is known of a target.

    Raises:
        NotFound: nothing is, nor was anything erased there before.
    """
    found = search(where.state, target, present.values(), lambda: _remaining(target, where, staying))
    known = found.versions or found.reviews or found.records or found.lane_tasks
    if target.tasks or present or removed or known:
        return found
    for root, rel in target.files:
        name = erased_name(where.state, root, rel)
        if where.state.ledger.rows("SELECT 1 FROM change WHERE root = ? AND rel = ?", (root, name)):
            return found  # What a process that was killed has left of it is not in rows any more.
    raise NotFound(f"nothing is remembered at {min(target.paths)}, nor was it; see: muniment history")


def _require_rest(found: Found) -> None:
    """Refuse to go on while a task runs that holds some of it.

    Raises:
        DeadlineExceeded: one does.
    """
    task = tasks.running(found.lane_tasks)
    if task is not None:
        raise DeadlineExceeded(f"{task} runs and holds it; try again once it is over, or cancel it")


def _present(target: Target, where: Where) -> dict[str, bytes]:
    """The files of a target that are there, with their bytes."""
    found: dict[str, bytes] = {}
    for scope, root in where.roots.items():
        key = root_key(where.state, root)
        for rel in (rel for of, rel in target.files if of == key):
            try:
                found[f"{scope}/{rel}"] = root.root.read_bytes(rel)
            except NotFound:
                continue
    return found


def _remove(target: Target, origin: Origin, where: Where, *, is_by_path: bool) -> int:
    """Step 1, second half: how many files went."""
    claims = [Claim(path, digest(content)) for path, content in _present(target, where).items()]
    terms = Terms(
        where.policy,
        where.roots,
        where.patience,
        where.state,
        origin,
        constant(Trust.OWNER),
        # What a policy protects goes only where its owner names it.
        author=Author.ERASE if is_by_path else Author.RESTORE,
        reviewed=True,
    )
    return len(commit([ChangeSet(removals=tuple(claims))], terms).changes)


def _above(target: Target, where: Where) -> dict[Scope, list[RelPath]]:
    """The directories above the files of a target."""
    above: dict[Scope, list[RelPath]] = {}
    for scope, root in where.roots.items():
        key = root_key(where.state, root)
        for segments in (rel.split("/") for of, rel in target.files if of == key):
            above.setdefault(scope, []).extend(
                RelPath("/".join(segments[:depth])) for depth in range(1, len(segments))
            )
    return above


def _staying(where: Where) -> list[_Entry]:
    """Every entry that is there."""
    return [
        (root, entry.rel)
        for root in where.roots.values()
        for entry in view_of(where.state, root, where.policy, sweep=True).entries()
    ]


def _remaining(target: Target, where: Where, staying: Sequence[_Entry]) -> Iterator[bytes]:
    """What every file holds that stays; of roots that are not bound here, what the ledger last knew of it."""
    keys = {root.scope: root_key(where.state, root) for root in where.roots.values()}
    for root, rel in staying:
        if (keys[root.scope], rel) in target.files:
            continue
        try:
            yield root.root.read_bytes(rel)
        except (ToolError, PathEscape):
            continue  # Gone meanwhile, or unreadable to anybody who would look.
    marks = ", ".join("?" * len(keys))
    for (content,) in where.state.ledger.rows(
        "SELECT after FROM change JOIN (SELECT root, rel, max(change_set) AS change_set FROM change "  # noqa: S608
        f"WHERE root NOT IN ({marks}) GROUP BY root, rel) USING (root, rel, change_set)",
        list(keys.values()),
    ):
        if content is not None:
            yield content


def _receipt(
    origin: Origin, target: Target, found: Found, removed: int, notes: list[str], where: Where
) -> Receipt:
    return Receipt(
        origin.task,
        origin.at,
        tuple(sorted(erased_name(where.state, root, rel) for root, rel in target.files)),
        tuple(sorted(found.tasks - {origin.task})),
        removed,
        len(found.versions) + len(found.others),
        len(found.reviews),
        len(found.records),
        len(found.lane_tasks),
        tuple(notes),
    )
