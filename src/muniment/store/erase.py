"""Erase a file, or everything that a task wrote, permanently from the memory and the state directory.

Steps of `erase`. If the process is killed between any two steps, running it again finishes the erasure:

1. Roll back interrupted commits. Remove existing files by a commit, then the empty directories above them.
2. Delete transcripts that contain some of the text. Then run one transaction of the ledger, under the locks
   of the roots:
   - Delete the bytes, names and digests of every version, also those under earlier names of the entry, and
     the provenance, pending reviews and records that refer to them.
   - Also delete versions of *other* files, and texts of tasks in lanes (`tasks.py`), that contain a piece of
     the same text, unless a file still contains that piece.
   - Delete the injected entries of all hook sessions (`injected.py`).
   - Add a record with the list of the records whose bodies were deleted. Keyed digests of the text stay in
     the table `forgotten`, so that no dream writes the text again.
3. Rewrite the ledger without its free pages, empty its log, and delete the copies from upgrades.
4. Delete the catalog, and rebuild it and the indexes.

Not covered: blocks of the file system, backups, other copies, the data of a model's provider, the history of
a version control system. Processes that have the memory open can read the deleted catalog until they end.

If a running task of a lane contains some of the text, that task must end first. This is checked before step 1
and in step 2.

`find_remains` verifies the result: it reads every file of the state directory as bytes, and JSON also in
decoded form.
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
from muniment.kernel.apply import lock_roots, remove_directories
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.policy.platforms import require_writing
from muniment.store import audit
from muniment.store.audit import timestamp
from muniment.store.commit import CommitOptions, commit, grant_listed_files
from muniment.store.index import is_index_path
from muniment.store.index_upkeep import rebuild_index
from muniment.store.injected import delete_all_sessions
from muniment.store.ledger import ERASED, MAX_STEPS, Run, build_erased_name, get_root_key, read_commits
from muniment.store.recovery import recover_roots
from muniment.store.renames import read_whole_history
from muniment.store.state import LEDGER_NAME, State
from muniment.store.table import Table
from muniment.store.tasks import (
    RUN_BYTES,
    QueuedTask,
    Runs,
    clear_tasks,
    decode_json,
    delete_transcripts,
    iterate_strings,
    list_tasks,
    select_uncleared,
    split_meaningful_parts,
)
from muniment.store.trust import build_constant_rule, generate_ulid
from muniment.store.upkeep import open_view
from muniment.types import ErasePlan, EraseResult
from muniment.types.keys import RootKey

# -- empty directories ---------------------------------------------------------------------------------
#
# Removes directories that an undo or an erasure has left empty.


def remove_empty_directories(
    roots: Mapping[Scope, BoundRoot], directories: Collection[CanonicalPath], deadline: Deadline
) -> None:
    """Remove those of `directories` that are empty now, the innermost first.

    This acquires the locks of the roots, because a commit may be about to create a file in such a directory.

    Raises:
        ManagedMemoryUnavailable: the system denies it.
        DeadlineExceeded, Cancelled: another process held the lock of a root for too long.
    """
    scopes = {directory.scope for directory in directories}
    if scopes:
        with lock_roots([roots[scope] for scope in scopes], deadline) as locked_roots:
            remove_directories(directories, locked_roots)


# -- receipt -------------------------------------------------------------------------------------------
#
# The preview and the result of an erasure: values.

NOT_COVERED: Final = (
    "blocks of the file system, backups and other copies, transcripts that were moved, version control, "
    "the provider of a model"
)
"""The places that an erasure does not cover, as text for the user."""


# -- erasure -------------------------------------------------------------------------------------------
#
# The data of a target in the ledger, and how it is deleted; `erase` defines when.
#
# Text may be in versions of files (each one side of a row of `change`), in pending reviews and their reasons,
# in notes, in records and in tasks of lanes (`tasks.py`). All of it is read twice. The first pass finds the
# target's own items. The second finds items that contain a run of its text which no file contains any longer.
#
# E1 An item is the target's own if its task wrote the target, or if one of its strings contains the path, or
#    is exactly the request. JSON is decoded before it is compared. Fields that contain only fixed words or
#    names (`_FIXED_FIELDS`) are not compared.

_File = tuple[RootKey, RelPath]
_ItemKind = Literal["before", "after", "review", "notes", "record", "task"]
_Key = tuple[int | str, ...]

_FIXED_FIELDS: Final = frozenset(
    {"code", "context", "decidedBy", "enforcement", "scope", "topic", "touchedScopes", "touchedTopics"}
)
"""Fields that contain fixed words, or names of scopes and models. Any other field may contain text."""

_PATH_FIELDS: Final = frozenset({"filesTouched", "filePath", "paths"})
"""Fields that contain logical paths, one in each string."""


def _build_delete_statements(side: str) -> tuple[str, str]:
    here = "change_set = ?1 AND position = ?2"
    of_it = f"SELECT root, rel, {side}_digest FROM change WHERE {here}"  # noqa: S608  a column
    return (
        f"DELETE FROM provenance WHERE (root, rel, digest) IN ({of_it})",  # noqa: S608
        f"UPDATE change SET {side} = NULL, {side}_digest = '{ERASED}' WHERE {here}",  # noqa: S608
    )


_DELETE_STATEMENTS: Final[Mapping[_ItemKind, Sequence[str]]] = {
    "before": _build_delete_statements("before"),
    "after": _build_delete_statements("after"),
    "review": ("DELETE FROM change_set WHERE review = ?1", "DELETE FROM review WHERE id = ?1"),
    "notes": ("UPDATE change_set SET notes = '[]' WHERE id = ?1",),
    "record": ("UPDATE record SET body = NULL WHERE seq = ?1",),
}
"""SQL statements that delete an item of each kind from the ledger, by its key.

Tasks are missing here: `tasks.clear_tasks` deletes their texts.
"""


@dataclass(frozen=True, slots=True)
class EraseTarget:
    """The target of an erasure.

    Attributes:
        files: the files of which all versions are erased.
        paths: the logical paths of these files, with every name that their scopes have or had.
        tasks: the tasks of which all other data is also erased.
    """

    files: frozenset[_File]
    paths: frozenset[str]
    tasks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TargetTraces:
    """The data of a target in the ledger.

    Attributes:
        item_keys: keys of the items to delete, by kind of item.
        other_paths: logical paths of other files that lose versions with the same text.
        tasks: the tasks that wrote versions of the target.
        facts: keyed digests of the requests of these tasks, and of the erased text itself.
        lane_tasks: tasks of lanes whose texts must be deleted.
        runs: pieces of the erased text that no remaining file contains.
    """

    item_keys: Mapping[_ItemKind, Sequence[_Key]]
    other_paths: tuple[str, ...]
    tasks: frozenset[str]
    facts: frozenset[str]
    lane_tasks: tuple[QueuedTask, ...]
    runs: Runs

    @property
    def version_count(self) -> int:
        """Return the number of versions of files to delete."""
        return len(self.item_keys["before"]) + len(self.item_keys["after"])

    @property
    def record_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the audit records whose bodies are deleted."""
        return tuple(int(seq) for (seq,) in self.item_keys["record"])


@dataclass(frozen=True, slots=True)
class _StoredText:
    """An item of the ledger that may contain text: a version of a file, a review, notes, a record or a task.

    Attributes:
        kind: kind of the item.
        key: key of its row.
        task: id of the task that wrote or requested the item.
        files: the files that the item is about.
        texts: bytes of these files.
        strings: other strings of the item, each with the name of its field before it (`_list_strings`).
        fact: keyed digest of the request; empty if not known.
        path: if the item is a version of a file: path of the file; otherwise empty.
    """

    kind: _ItemKind
    key: _Key
    task: str
    files: Collection[_File] = frozenset()
    texts: Sequence[bytes] = ()
    strings: Sequence[tuple[str, str]] = ()
    fact: str = ""
    path: str = ""

    def contains_run(self, runs: Runs) -> bool:
        """Return whether any part of the item contains one of `runs`."""
        return any(map(runs.find_runs, (*self.texts, *(text.encode() for _, text in self.strings))))

    def refers_to(self, path_patterns: Sequence[re.Pattern[str]], paths: Collection[str]) -> bool:
        """Return whether the item mentions the path of an erased file.

        Args:
            path_patterns: match the paths inside any string.
            paths: the logical paths; a string in a field for paths must be equal to one of them.
        """
        return any(
            text in paths if field in _PATH_FIELDS else any(each.search(text) for each in path_patterns)
            for field, text in self.strings
        )


class _Forgotten(NamedTuple):
    """A keyed digest of an erased text, which no run may learn again."""

    fact: str
    at: str
    task: str


_FORGOTTEN: Final = Table("forgotten", _Forgotten)


def delete_traces(state: State, target: EraseTarget, found: TargetTraces, run: Run) -> None:
    """Delete the data in `found` from the ledger, in one transaction that also adds a record of the erasure.

    The caller ensures that none of the tasks in `found` is running.

    Args:
        state: has the ledger.
        target: the target of the erasure.
        found: all data of the target.
        run: the run of the erasure.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written. Nothing is deleted.
    """
    with state.ledger.transaction() as connection:
        for kind, statements_to_run in _DELETE_STATEMENTS.items():
            for statement in statements_to_run:
                connection.executemany(statement, found.item_keys[kind])
        for root, rel in target.files:
            connection.execute("DELETE FROM provenance WHERE root = ? AND rel = ?", (root, rel))
            connection.execute(
                "UPDATE change SET rel = ?, made = '[]' WHERE root = ? AND rel = ?",
                (build_erased_name(state, root, rel), root, rel),
            )
        each = [(task,) for task in found.tasks]
        connection.executemany("UPDATE change_set SET fact = NULL WHERE task = ?", each)
        facts = [_Forgotten(fact, run.at, run.task) for fact in found.facts]
        _FORGOTTEN.insert(connection, facts, suffix="ON CONFLICT DO NOTHING")
        clear_tasks(state, found.lane_tasks, run.at)
        delete_all_sessions(state)
        body = {
            "records": list(found.record_numbers),
            "versions": found.version_count,
            "reviews": len(found.item_keys["review"]),
            "lane_tasks": len(found.lane_tasks),
            "files": sorted(build_erased_name(state, root, rel) for root, rel in target.files),
        }
        audit.append(state, run.at, audit.ERASE, run.task, body)


def scrub(state: State) -> None:
    """Remove all deleted data from the files of the state directory. The catalog is empty after this.

    Raises:
        ManagedMemoryUnavailable: the disk is full, or another process reads the ledger for too long.

    Cost: rewrites the ledger; this temporarily needs its size again.
    """
    state.ledger.scrub()
    state.remove_copies()
    state.recreate_catalog()


def _iterate_texts(state: State) -> Iterator[_StoredText]:
    """Yield all items of the ledger that may contain text, the versions of files first.

    The items are read one by one, because all versions together may not fit into memory.
    """
    with state.ledger.iterate_rows(
        "SELECT change_set, position, root, scope, rel, before, after, task, fact "
        "FROM step WHERE done IS NOT NULL"
    ) as rows:
        for number, position, root, scope, rel, before, after, task, fact in rows:
            sides: tuple[tuple[_ItemKind, bytes | None], ...] = (("before", before), ("after", after))
            for side, content in sides:
                if content is not None:
                    of = ((number, position), task, {(root, rel)}, (content,))
                    yield _StoredText(side, *of, fact=fact or "", path=f"{scope}/{rel}")
    pending_commits = {
        commit_row.review: commit_row for commit_row in read_commits(state, "review IS NOT NULL")
    }
    for review, task, reasons in state.ledger.rows("SELECT id, task, reasons FROM review"):
        commit_row = pending_commits.get(review)  # If a review was decided, only its reasons are left.
        changes = () if commit_row is None else commit_row.changes
        texts = [row.change.after for row in changes if row.change.after is not None]
        fact = (commit_row and commit_row.run.fact) or ""
        yield _StoredText(
            "review",
            (review,),
            task,
            _list_review_files(state, review),
            texts,
            _list_strings(decode_json(reasons)),
            fact,
        )
    for number, task, notes in state.ledger.rows(
        "SELECT id, task, notes FROM change_set WHERE notes <> '[]'"
    ):
        yield _StoredText("notes", (number,), task, strings=_list_strings(decode_json(notes)))
    for seq, task, body in state.ledger.rows(
        # Records of erasures contain only numbers and keyed digests.
        "SELECT seq, task, body FROM record WHERE body IS NOT NULL AND kind <> ?",
        (audit.ERASE,),
    ):
        yield _StoredText("record", (seq,), task or "", strings=_list_strings(decode_json(body)))
    for each in list_tasks(state):
        yield _StoredText("task", (each.id,), each.id, strings=_list_strings(each.texts))


def _list_strings(value: Any) -> Sequence[tuple[str, str]]:
    """Return the strings in decoded JSON that may contain text, each as (name of the field, string)."""
    return [
        (field, text.encode("utf-8", "replace").decode())
        for field, text in iterate_strings(value)
        if field not in _FIXED_FIELDS
    ]


def _list_review_files(state: State, review: str) -> set[_File]:
    """Return the files that a review changes or depends on."""
    rows = state.ledger.rows(
        "SELECT root, rel FROM change JOIN change_set ON change_set.id = change_set WHERE review = ?1 "
        "UNION SELECT root, rel FROM claim JOIN change_set ON change_set.id = change_set WHERE review = ?1",
        (review,),
    )
    return set(rows)


def is_erased_text(state: State, text: str) -> bool:
    """Return whether `text` is exactly the body of an erased entry, or the request for such an entry."""
    return bool(
        state.ledger.rows(
            "SELECT 1 FROM forgotten WHERE fact = ?", (state.compute_keyed_digest(text.strip()),)
        )
    )


# -- erase -------------------------------------------------------------------------------------------

_Entry = tuple[BoundRoot, RelPath]


@dataclass(frozen=True, slots=True)
class EraseContext:
    """State, roots and limits of an erasure; the caller closes them."""

    state: State
    roots: Mapping[Scope, BoundRoot]
    policy: Policy
    deadline: Deadline


def plan_erasure(unsafe_target: str, context: EraseContext) -> ErasePlan:
    """Return a preview of an erasure; change nothing.

    Args:
        unsafe_target: the logical path of a file; or the id of a task, for every file that the task wrote.
        context: state, roots and limits.

    Raises:
        NotFound: the target is unknown.
        PathEscape, Refusal: the target is not the path of a file that can be erased.
        InvalidScope: the task wrote to a directory that is not bound here.
        ToolError: an existing file cannot be read, so it cannot be erased.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    target = _resolve_target(unsafe_target, context)
    present = _read_present(target, context)
    found = _find_traces(target, present.values(), context, _list_entries(context))
    return ErasePlan(
        status="preview",
        not_covered=NOT_COVERED,
        target=unsafe_target,
        files=tuple(sorted(path.text for path in present)),
        versions=found.version_count,
        others=found.other_paths,
        tasks=tuple(sorted(found.tasks)),
        reviews=tuple(str(review) for (review,) in found.item_keys["review"]),
        records=len(found.record_numbers),
        lane_tasks=len(found.lane_tasks),
        copies=context.state.list_copies(),
    )


def erase(unsafe_target: str, context: EraseContext) -> EraseResult:
    """Erase a target by the steps in the module docstring. For the arguments see `plan_erasure`.

    Raises:
        StoreConflict: another process created a file of the target again; run the erasure again.
        DeadlineExceeded, Cancelled: before step 2; the former also if a running task of a lane contains the
            text.
        NotFound, InvalidScope, PathEscape, Refusal, ToolError, ManagedMemoryUnavailable: as `plan_erasure` or
            `commit`. If the target exists, running the erasure again finishes it.

    Cost: as `plan_erasure`, and rewriting the ledger.
    """
    require_writing(context.policy)
    state = context.state
    state.require_writable()
    recover_roots(state, context.roots, context.policy, context.deadline)
    target = _resolve_target(unsafe_target, context)
    if state.ledger.rows("SELECT 1 FROM task WHERE status = 'running' LIMIT 1"):
        _require_idle_tasks(
            _find_traces(target, _read_present(target, context).values(), context, _list_entries(context))
        )
    at = timestamp()
    run = Run(f"erase-{generate_ulid()}", at, Trust.OWNER, "code", context.policy.label, "erase")
    removed = _remove_files(target, run, context, is_by_path="/" in unsafe_target)
    parents = {each for _, path in _iterate_files(target, context) for each in _iterate_parents(path)}
    remove_empty_directories(context.roots, parents, context.deadline)
    with lock_roots(context.roots.values(), context.deadline):
        remaining = _list_entries(context)  # The catalog may not be used inside a transaction of the ledger.
        with state.ledger.transaction():
            if present := _read_present(target, context):
                raise StoreConflict(tuple(path.text for path in present))
            found = _find_traces(target, (), context, remaining, removed=removed)
            _require_idle_tasks(found)
            lane_task_ids = {task.id for task in found.lane_tasks}
            transcripts = delete_transcripts(state, found.tasks | lane_task_ids, found.runs)
            delete_traces(state, target, found, run)
    scrub(state)
    notes = [f"deleted transcripts: {transcripts}"] if transcripts else []
    notes += [
        note
        for root in context.roots.values()
        for note in rebuild_index(state, root, context.policy, context.deadline)
    ]
    return EraseResult(
        status="erased",
        not_covered=NOT_COVERED,
        task_id=run.task,
        at=at,
        erased=tuple(sorted(build_erased_name(state, root, rel) for root, rel in target.files)),
        tasks=tuple(sorted(found.tasks - {run.task})),
        files=removed,
        versions=found.version_count,
        reviews=len(found.item_keys["review"]),
        records=len(found.record_numbers),
        lane_tasks=len(found.lane_tasks),
        notes=tuple(notes),
    )


def find_remains(text: bytes, context: EraseContext) -> dict[str, int]:
    """Count the pieces of `text` that each file of the state directory still contains.

    Pieces that a file of the memory contains are not counted.

    Args:
        text: the erased text, or a part of it. If it is a complete file, only its meaningful parts are
            searched for (see `store.tasks.split_meaningful_parts`).
        context: state, roots and limits.

    Raises:
        ConfigInvalid: the text is shorter than `RUN_BYTES`, so it cannot be searched for.
        ManagedMemoryUnavailable: the state cannot be read.
    """
    runs = Runs(split_meaningful_parts(text))
    if not len(runs):
        raise ConfigInvalid(f"the text is too short to search for: use a text of at least {RUN_BYTES} bytes")
    runs = runs.remove_common(
        _iterate_remaining(EraseTarget(frozenset(), frozenset()), context, _list_entries(context))
    )
    texts = (text for stored in _iterate_texts(context.state) for _, text in stored.strings)
    found_in_strings = {run for text in texts for run in runs.find_runs(text.encode())}
    found: dict[str, int] = {}
    for name in context.state.list_files():
        found_runs = {
            run for block in context.state.read_blocks(name, RUN_BYTES - 1) for run in runs.find_runs(block)
        }
        found_runs |= found_in_strings if name == LEDGER_NAME else set()
        if found_runs:
            found[name] = len(found_runs)
    return found


def _resolve_target(unsafe_target: str, context: EraseContext) -> EraseTarget:
    if "/" in unsafe_target:
        path = canonicalise(unsafe_target, context.roots)
        if not path.rel or is_index_path(path.rel):
            reason = (
                "erase needs the path of an entry or the id of a task; indexes are generated from entries"
            )
            raise Refused(reason, rule="erase", layer="store")
        files = _list_names(path, context)
        return EraseTarget(frozenset(files), _list_paths(context.state, files))
    return _resolve_task(unsafe_target, context)


def _list_names(path: CanonicalPath, context: EraseContext) -> dict[_File, Scope]:
    """Return the file at a path, and the earlier names of its entry at which no other file exists now."""
    state, root = context.state, context.roots[path.scope]
    key = get_root_key(state, root)
    steps = read_whole_history(state, {key: path.scope}, path, MAX_STEPS)
    earlier = {canonicalise(step.path, context.roots) for step in steps if not step.is_erased}
    names = {path, *(each for each in earlier if root.root.examine(each) is None)}
    return {(key, each.rel): path.scope for each in names}


def _resolve_task(task: str, context: EraseContext) -> EraseTarget:
    state = context.state
    scopes = {get_root_key(state, root): scope for scope, root in context.roots.items()}
    files: dict[tuple[RootKey, RelPath], Scope] = {}
    for root, scope, rel in state.ledger.rows("SELECT root, scope, rel FROM step WHERE task = ?", (task,)):
        if root not in scopes:
            raise InvalidScope(
                f"{printable(task)} wrote to another directory for {scope!r}; erase it in the workspace "
                "of that task, or with the same --root"
            )
        if not rel.startswith(f"{ERASED}-"):
            files[root, rel] = scopes[root]
    known = "SELECT 1 FROM {} WHERE {} = ? LIMIT 1"
    columns = {"step": "task", "review": "task", "record": "task", "task": "id"}
    if not any(state.ledger.rows(known.format(*each), (task,)) for each in columns.items()):
        raise NotFound(f"task {printable(task)!r} not found; see: muniment history")
    return EraseTarget(frozenset(files), _list_paths(state, files), frozenset({task}))


def _list_paths(state: State, files: Mapping[tuple[RootKey, RelPath], Scope]) -> frozenset[str]:
    """Return the logical paths of files, with the current and all earlier names of their scopes."""
    names = {f"{scope}/{rel}" for (_, rel), scope in files.items()}
    for root, rel in files:
        rows = state.ledger.rows("SELECT DISTINCT scope FROM step WHERE root = ? AND rel = ?", (root, rel))
        names |= {f"{scope}/{rel}" for (scope,) in rows}
    return frozenset(names)


def _find_traces(
    target: EraseTarget,
    present: Collection[bytes],
    context: EraseContext,
    remaining: Sequence[_Entry],
    *,
    removed: int = 0,
) -> TargetTraces:
    """Find all data of `target` in the ledger, as the current transaction sees it.

    Args:
        target: the target of the erasure.
        present: current contents of the target's files.
        context: state, roots and limits.
        remaining: every entry of the memory; entries of the target are ignored.
        removed: number of files that this erasure has already removed.

    Raises:
        NotFound: the target is unknown, and was not erased earlier.

    Cost: reads every version in the ledger and every remaining file; about 0.1 s for 5 MB.
    """
    state = context.state
    item_keys: dict[_ItemKind, dict[_Key, str]] = {place: {} for place in get_args(_ItemKind)}
    tasks, facts, texts = set(target.tasks), set[str](), set(present)
    path_patterns = [_compile_path(path) for path in target.paths]
    for stored in _iterate_texts(state):  # Versions come first, so that their tasks are known.
        is_own = not target.files.isdisjoint(stored.files)
        if stored.path and is_own:
            tasks.add(stored.task)
        if is_own or (
            not stored.path and (stored.task in tasks or stored.refers_to(path_patterns, target.paths))
        ):
            item_keys[stored.kind][stored.key] = ""
            texts.update(stored.texts)
            facts |= {stored.fact} - {""}
    facts |= {state.compute_keyed_digest(body) for text in texts if (body := parse(text).body.strip())}
    runs = Runs(part for text in texts for part in split_meaningful_parts(text)).remove_common(
        _iterate_remaining(target, context, remaining)
    )
    concerned_tasks = set(tasks)
    for stored in _iterate_texts(state):
        is_about_target = stored.kind == "record" and stored.task in concerned_tasks  # Contains digests.
        is_same_fact = stored.kind == "task" and _contains_fact(stored, facts, state)
        if stored.key not in item_keys[stored.kind] and (
            is_about_target or is_same_fact or stored.contains_run(runs)
        ):
            item_keys[stored.kind][stored.key] = stored.path
            concerned_tasks |= {stored.task} if stored.path else set()
    found = TargetTraces(
        {place: tuple(sorted(keys)) for place, keys in item_keys.items()},
        tuple(sorted({path for keys in item_keys.values() for path in keys.values() if path})),
        frozenset(tasks),
        frozenset(facts),
        select_uncleared(state, {str(task) for (task,) in item_keys["task"]}),
        runs,
    )
    if not (target.tasks or present or removed or any(item_keys.values()) or _was_erased(target, state)):
        raise NotFound(f"entry {min(target.paths)} not found, now or in the history; see: muniment history")
    return found


def _compile_path(path: str) -> re.Pattern[str]:
    """Compile a pattern that matches `path`, except as a part of a longer path."""
    return re.compile(rf"(?<![\w.-])(?<![\w.-]/){re.escape(path)}(?![\w/-])")


def _contains_fact(stored: _StoredText, facts: Collection[str], state: State) -> bool:
    """Return whether a text of an item has one of the keyed digests `facts`."""
    return any(
        state.compute_keyed_digest(text.strip()) in facts
        for field, text in stored.strings
        if field not in _PATH_FIELDS
    )


def _was_erased(target: EraseTarget, state: State) -> bool:
    """Return whether a file of the target was erased before.

    If it was, a target without rows is not an error: a killed process may have left data outside of all rows.
    """
    query = "SELECT 1 FROM step WHERE root = ? AND rel = ?"
    names = ((root, build_erased_name(state, root, rel)) for root, rel in target.files)
    return any(state.ledger.rows(query, each) for each in names)


def _require_idle_tasks(found: TargetTraces) -> None:
    """Check that no running task contains some of the text to erase.

    Args:
        found: all data of the target.

    Raises:
        DeadlineExceeded: such a task is running.
    """
    for task in found.lane_tasks:
        if task.status == "running":
            raise DeadlineExceeded(
                f"task {task.id} is running and contains the text; try again after it has ended, or cancel it"
            )


def _iterate_files(target: EraseTarget, context: EraseContext) -> Iterator[tuple[BoundRoot, CanonicalPath]]:
    """Yield the files of a target whose roots are bound here, existing or not."""
    for scope, root in context.roots.items():
        key = get_root_key(context.state, root)
        yield from ((root, CanonicalPath(scope, rel)) for of, rel in target.files if of == key)


def _read_present(target: EraseTarget, context: EraseContext) -> dict[CanonicalPath, bytes]:
    """Return the existing files of a target, with their bytes."""
    found: dict[CanonicalPath, bytes] = {}
    for root, path in _iterate_files(target, context):
        with suppress(NotFound):
            found[path] = root.root.read_bytes(path)
    return found


def _remove_files(target: EraseTarget, run: Run, context: EraseContext, *, is_by_path: bool) -> int:
    """Remove the existing files of a target by a commit, and return their number.

    Args:
        target: the target of the erasure.
        run: the run of the erasure.
        context: state, roots and limits.
        is_by_path: the owner requested the file by its path. Only then a protected file is removed.
    """
    removals = [
        FileChange(path, digest(content), None) for path, content in _read_present(target, context).items()
    ]
    # A protected file is removed only if its owner requests it by path; the rules then grant nothing else.
    policy = context.policy
    if is_by_path:
        policy = grant_listed_files(policy, [Verb.MODIFY], (each.path for each in removals))
    options = CommitOptions(
        policy,
        context.roots,
        context.deadline,
        context.state,
        run,
        build_constant_rule(Trust.OWNER),
        is_reviewed=True,
    )
    return len(commit([ChangeSet(tuple(removals))], options).changes)


def _iterate_parents(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """Yield the directories above a file, except the root."""
    while (path := path.parent).rel:
        yield path


def _list_entries(context: EraseContext) -> list[_Entry]:
    """Return every existing entry of the bound roots, with its root."""
    return [
        (root, entry.rel)
        for root in context.roots.values()
        for entry in open_view(context.state, root, context.policy, sweep=True).entries()
    ]


def _iterate_remaining(
    target: EraseTarget, context: EraseContext, remaining: Sequence[_Entry]
) -> Iterator[bytes]:
    """Yield the content of every file that remains after the erasure.

    For roots that are not bound here, this is the last version of each file in the ledger.

    Args:
        target: the target of the erasure; its files are skipped.
        context: state, roots and limits.
        remaining: the existing entries.
    """
    keys = {root.scope: get_root_key(context.state, root) for root in context.roots.values()}
    for root, rel in remaining:
        if (keys[root.scope], rel) in target.files:
            continue
        try:
            yield root.root.read_bytes(CanonicalPath(root.scope, rel))
        except Unreadable:  # It may become readable again; use the last version in the ledger.
            last = "SELECT after FROM step WHERE root = ? AND rel = ? ORDER BY change_set DESC LIMIT 1"
            rows = context.state.ledger.rows(last, (keys[root.scope], rel))
            yield from (content for (content,) in rows if content is not None)
        except (ToolError, PathEscape):
            continue  # It was removed meanwhile, or is no longer a file of the memory.
    marks = ", ".join("?" * len(keys))
    for (content,) in context.state.ledger.rows(
        "SELECT after FROM step JOIN (SELECT root, rel, max(change_set) AS change_set FROM step "  # noqa: S608
        f"WHERE root NOT IN ({marks}) GROUP BY root, rel) USING (root, rel, change_set)",
        list(keys.values()),
    ):
        if content is not None:
            yield content
