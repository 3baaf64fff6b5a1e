"""Other names for new files: free ones, by appending numbers, and ones that the caller chooses. Pure.

What is taken comes from a view under the lock; the judge compares the result with the same view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from muniment.errors import QuotaExceeded
from muniment.names import MAX_PATH_BYTES, MAX_SEGMENT_BYTES, RelPath, Scope, Verb, joined
from muniment.policy.decide import Judge, Policy
from muniment.policy.grammar import FILE_SUFFIX, CanonicalPath, canonicalise, check_creatable, fold
from muniment.store.catalog import View
from muniment.tools.overlay import ChangeSet, Proposed

MAX_SUFFIX: Final = 999
"""Highest number that is appended; more files of one name are a loop, not a memory."""


Rename = Callable[[CanonicalPath, Callable[[str], Collection[str] | None]], RelPath]
"""Where a new file goes, from where it was proposed and the names in a folder of its scope, None for none."""


def renamed(
    change_set: ChangeSet,
    rename: Rename,
    policy: Policy,
    scopes: Collection[Scope],
    views: Mapping[Scope, View],
) -> ChangeSet:
    """Move every new file to where `rename` says, under a free name there.

    Raises:
        Refused, BadName, QuotaExceeded: as `settle_names`.
    """

    def moved(path: CanonicalPath, names: _Names) -> CanonicalPath:
        rel = rename(path, names)
        directory, _, name = rel.rpartition("/")
        return path if rel == path.rel else _free_file(path.scope, directory, name, names)

    return replace(change_set, changes=tuple(_moved(change_set.changes, moved, policy, scopes, views)))


def settle_names(
    change_set: ChangeSet, policy: Policy, scopes: Collection[Scope], views: Mapping[Scope, View]
) -> ChangeSet:
    """Move every new file whose name is taken to a free one; such a run has no claims worth keeping.

    Raises:
        Refused, BadName: the proposed name may not be created.
        QuotaExceeded: as `free_name`.
    """
    return ChangeSet(tuple(_moved(change_set.changes, _free_path, policy, scopes, views)))


def _moved(
    changes: Iterable[Proposed],
    move: Callable[[CanonicalPath, _Names], CanonicalPath],
    policy: Policy,
    scopes: Collection[Scope],
    views: Mapping[Scope, View],
) -> Iterator[Proposed]:
    """What the policy or the grammar refuses is refused here: another name would only hide it."""
    decider = Judge(policy)
    names = {scope: _Names(view) for scope, view in views.items()}
    for proposed in changes:
        path = canonicalise(proposed.unsafe_path, scopes)
        if proposed.base is None:
            decider.require(Verb.CREATE, path)
            check_creatable(path)
            path = move(path, names[path.scope])
        yield replace(proposed, unsafe_path=path.text)


class _Names:
    """The names in each directory of a scope, with those that were given out meanwhile."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._given: dict[str, set[str]] = {"": set()}

    def __call__(self, directory: str) -> Collection[str] | None:
        found, given = self._view.names(directory), self._given.get(directory)
        return found if given is None else given | (found or frozenset())

    def give(self, directory: str, name: str) -> None:
        self._given.setdefault(directory, set()).add(name)


def _free_path(path: CanonicalPath, names: _Names) -> CanonicalPath:
    """Where `path` can go, given out in `names`."""
    *folders, name = path.rel.split("/")
    directory = ""
    for folder in folders:
        free = free_name(path.scope, directory, folder, "", names)
        names.give(directory, free)
        directory = joined(directory, free)
    return _free_file(path.scope, directory, name, names)


def _free_file(scope: Scope, directory: str, name: str, names: _Names) -> CanonicalPath:
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
