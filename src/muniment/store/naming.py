"""Other names for new files: free ones, by appending numbers, and ones that the caller chooses. Pure.

What is taken comes from a view under the lock; the judge compares the result with the same view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from muniment.errors import BadName, QuotaExceeded, Refused
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import MAX_PATH_BYTES, MAX_SEGMENT_BYTES, RelPath, Scope, Verb, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.policy.grammar import check_creatable
from muniment.store.catalog import View

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
