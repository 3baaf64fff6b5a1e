"""Takes back commits that were begun and never done: their process was killed, or its disk failed.

R1 It runs under the locks of the roots, when a memory is opened and before each commit that touches them; a
   commit of a living process holds its locks, so what is found unfinished here has nobody any more.
R2 A file is touched only if it is as before the commit or as that left it (`takeback.py`). Anything else is
   somebody's later work: it stays, and is told (`recovery_conflict`).
R3 Afterwards nothing of the commit is left: no file, no directory that it made and nobody uses, no temporary
   name; what a person had written in place of an index is kept as an entry. Its task may try again.
R4 The ledger forgets the commit last, once the indexes are right: a recovery may be killed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from muniment import events
from muniment.confine.binding import BoundRoot
from muniment.confine.writing import Staged, is_temporary, open_directory, remove_empty_directory
from muniment.errors import NotFound, PathEscape, StoreConflict, ToolError
from muniment.names import INDEX_DIRECTORY, RelPath, joined
from muniment.policy.grammar import FILE_SUFFIX
from muniment.store import audit
from muniment.store.index import is_generated
from muniment.store.indexing import SAVED_NAME
from muniment.store.ledger import (
    Kept,
    KeptChange,
    RootKey,
    abandon,
    is_of_index,
    temporary_of,
    temporary_prefix,
    unfinished,
)
from muniment.store.naming import free_name
from muniment.store.state import State
from muniment.store.takeback import take_back
from muniment.tools.overlay import digest


def recover(
    state: State, roots: Mapping[RootKey, BoundRoot], at: str, index: Callable[[], Iterable[str]]
) -> tuple[str, ...]:
    """Take back what unfinished commits did in `roots`, whose locks the caller holds.

    Args:
        state: whose ledger.
        roots: where to do it.
        at: when; see `audit.timestamp`.
        index: brings the indexes of `roots` up to date; asked once the files are back, if anything was
            unfinished. Only then the ledger forgets: a recovery that is killed itself is done again.

    Returns:
        What a person should know, a line each.

    Raises:
        ManagedMemoryUnavailable: a file or the ledger cannot be written; nothing is lost, the next
            recovery tries again.
        Whatever `index` does; likewise.
    """
    found = unfinished(state, roots)
    notes: list[str] = []
    conflicts: dict[int, list[str]] = {}
    for kept in found:
        conflicts[kept.id] = bring_back(kept.changes, kept.token, roots)
        notes += _told(kept, conflicts[kept.id], _clear_all(kept, roots))
    if found:
        notes += index()
    for kept in found:
        _forget(state, kept, roots, at, conflicts[kept.id])
    return tuple(notes)


def bring_back(changes: Sequence[KeptChange], token: str, roots: Mapping[RootKey, BoundRoot]) -> list[str]:
    """Bring the files of one commit back, and remove the directories that it made; paths left alone (R2).

    Args:
        changes: of the commit.
        token: of the commit.
        roots: where to do it; changes in other roots are left.

    Raises:
        ManagedMemoryUnavailable: the disk fails.
    """
    conflicts: list[str] = []
    ours = [(item, roots[item.root]) for item in changes if item.root in roots]
    for item, root in reversed(ours):
        above, _, name = item.rel.rpartition("/")
        try:
            with open_directory(root.root, above, create=False) as directory:
                take_back(directory, name, item.before, item.after, temporary_of(token, item.number))
                directory.sync()
        except NotFound:
            # Without its directory a new file is gone, and an old one was removed with it by somebody.
            if item.before is not None:
                conflicts.append(item.path)
        except (StoreConflict, PathEscape, ToolError):
            conflicts.append(item.path)
    for item, root in ours:
        for made in reversed(item.made):
            with suppress(PathEscape):  # Somebody else's link has taken its place.
                remove_empty_directory(root.root, made)
    return conflicts


def _told(kept: Kept, conflicts: Sequence[str], saved: Sequence[str]) -> Iterator[str]:
    yield f"took back {kept.origin.task}, which was interrupted; run it again"
    yield from (f"{path} was changed since and is left alone (recovery_conflict)" for path in conflicts)
    yield from (f"{path} holds what somebody wrote meanwhile" for path in saved)


def _forget(
    state: State, kept: Kept, roots: Mapping[RootKey, BoundRoot], at: str, conflicts: Sequence[str]
) -> None:
    paths = [item.path for item in kept.changes if item.root in roots]
    with state.ledger.transaction():
        abandon(state, kept.id, roots)
        body = {"paths": paths, "conflicts": list(conflicts)}
        audit.append(state, at, "recovery", kept.origin.task, body)
    events.emit("commit_recovered", task_id=kept.origin.task, files=len(paths), conflicts=list(conflicts))


def _clear_all(kept: Kept, roots: Mapping[RootKey, BoundRoot]) -> list[str]:
    """Leave no temporary name of a commit; the logical paths of what was not ours, now under other names."""
    places = dict.fromkeys(
        (item.root, where)
        for item in kept.changes
        if item.root in roots
        for where in ("", INDEX_DIRECTORY, item.rel.rpartition("/")[0])
    )
    return [
        f"{roots[key].scope}/{rel}" for key, where in places for rel in _clear(roots[key], where, kept.token)
    ]


def clear_index(root: BoundRoot) -> None:
    """Drop what index writes outside any commit left under temporary names when they were killed.

    Whoever writes an index holds the root's lock, as the caller does: so these have nobody any more.
    """
    for where in ("", INDEX_DIRECTORY):
        try:
            directory = open_directory(root.root, where, create=False)
        except (NotFound, PathEscape, ToolError):
            continue
        with directory:
            names = [each.name for each in root.root.list_directory(where)]
            for name in (name for name in names if is_temporary(name) and is_of_index(name)):
                with suppress(PathEscape, ToolError):  # A link or something special: not ours to drop.
                    content = directory.read(name)
                    if is_generated(content.rstrip(b"\0")):
                        directory.discard(Staged(name, digest(content)))


def _clear(root: BoundRoot, where: str, token: str) -> list[RelPath]:
    """Leave no temporary name of a commit in a directory; what is not ours gets a name of its own."""
    saved: list[RelPath] = []
    try:
        directory = open_directory(root.root, where, create=False)
    except (NotFound, PathEscape, ToolError):
        return saved
    with directory:
        names = [each.name for each in root.root.list_directory(where)]
        for name in names:
            if not name.startswith(temporary_prefix(token)):
                continue
            try:
                content = directory.read(name)
            except (PathEscape, ToolError):
                continue  # A link or something special that a peer put there: not ours to drop.
            staged = Staged(name, digest(content))
            if is_of_index(name) and is_generated(content.rstrip(b"\0")):  # Zeros stay when the power fails.
                directory.discard(staged)
            else:
                free = free_name(root.scope, where, SAVED_NAME, FILE_SUFFIX, lambda _: names)
                directory.publish_new(staged, free)
                saved.append(joined(where, free))
        directory.sync()
    return saved
