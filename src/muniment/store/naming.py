"""Names for new files: names that a caller chooses, and free names with an appended number. Pure.

Existing names come from a view of the catalog, under the lock of the root. The judge uses the same view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from muniment.errors import BadName, QuotaExceeded, Refused
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import MAX_PATH_BYTES, MAX_SEGMENT_BYTES, RelPath, Scope, Verb, join_path
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.policy.grammar import check_creatable
from muniment.store.catalog import View

MAX_SUFFIX: Final = 9_999
"""Highest number that is appended to a name; more files with one name are probably a loop."""


Rename = Callable[[FileChange, Callable[[str], Collection[str] | None]], RelPath]
"""Returns the path for a new file.

The arguments are: the proposed change; a function that lists the names in a folder of the file's scope, or
returns None if the folder is missing.
"""


def rename_new_files(
    change_set: ChangeSet,
    rename: Rename,
    policy: Policy,
    views: Mapping[Scope, View],
) -> ChangeSet:
    """Move every new file to the path that `rename` returns; if that path exists, to a free name there.

    Args:
        change_set: the proposed changes.
        rename: chooses the path of a new file.
        policy: must allow to create the proposed path.
        views: catalog views of the scopes.

    Raises:
        Refused, BadName, QuotaExceeded: as `resolve_name_conflicts`.
    """
    kept_paths = [
        each.path
        for each in change_set.changes
        if each.base is None and rename(each, _DirectoryNames(views[each.path.scope])) == each.path.rel
    ]

    def move(change: FileChange, names: _DirectoryNames) -> CanonicalPath:
        path = change.path
        if path in kept_paths:
            return path
        for each in kept_paths:
            if each.scope == path.scope:
                names.reserve(each.rel.rpartition("/")[0], each.name)
        directory, _, name = rename(change, names).rpartition("/")
        return _find_free_file(path.scope, directory, name, names)

    return replace(change_set, changes=tuple(_move_new_files(change_set.changes, move, policy, views)))


def rename_replaced_entries(
    change_set: ChangeSet,
    rename: Rename,
    policy: Policy,
    views: Mapping[Scope, View],
) -> tuple[ChangeSet, dict[CanonicalPath, FileChange]]:
    """Move entries whose text is replaced to the path that `rename` returns, if the policy allows that.

    Args:
        change_set: a replacement is only moved if its change contains the bytes before.
        rename: as for `rename_new_files`; an entry stays if its own path is returned.
        policy: must allow to create the new file and to remove the old one.
        views: catalog views of the scopes.

    Returns:
        The change set, in which a moved entry is removed and created instead of changed; and the original
        changes of moved entries, by new path.

    Raises:
        QuotaExceeded: as `find_free_name`.
    """
    judge, names = PolicyEvaluator(policy), {scope: _DirectoryNames(view) for scope, view in views.items()}
    changes, original_changes = list[FileChange](), dict[CanonicalPath, FileChange]()
    for each in change_set.changes:
        path, rel = each.path, each.path.rel
        if each.kind == "modify" and each.before is not None:
            rel = rename(each, names[path.scope])
        if rel == path.rel or not _is_move_allowed(judge, path, CanonicalPath(path.scope, rel)):
            changes.append(replace(each, before=None))
            continue
        directory, _, name = rel.rpartition("/")
        to = _find_free_file(path.scope, directory, name, names[path.scope])
        original_changes[to] = each
        changes += (FileChange(path, each.base, None), FileChange(to, None, each.after))
    return replace(change_set, changes=tuple(changes)), original_changes


def _is_move_allowed(judge: PolicyEvaluator, path: CanonicalPath, target: CanonicalPath) -> bool:
    try:
        judge.require_removal(path)
        judge.require(Verb.CREATE, target)
        check_creatable(target)
    except (Refused, BadName):
        return False
    return True


def resolve_name_conflicts(change_set: ChangeSet, policy: Policy, views: Mapping[Scope, View]) -> ChangeSet:
    """Move every new file whose name already exists to a free name, and drop the claims of the change set.

    A run that needs this could not see existing files, so its claims prove nothing.

    Args:
        change_set: the proposed changes.
        policy: must allow to create the proposed path.
        views: catalog views of the scopes.

    Raises:
        Refused, BadName: the proposed name may not be created.
        QuotaExceeded: as `find_free_name`.
    """
    return ChangeSet(
        tuple(
            _move_new_files(
                change_set.changes, lambda each, names: _find_free_path(each.path, names), policy, views
            )
        )
    )


def _move_new_files(
    changes: Iterable[FileChange],
    move: Callable[[FileChange, _DirectoryNames], CanonicalPath],
    policy: Policy,
    views: Mapping[Scope, View],
) -> Iterator[FileChange]:
    """Yield the changes; new files have the path that `move` returns.

    A proposed path that policy or name grammar denies raises an error, before the file is moved: another name
    would only hide the violation.
    """
    evaluator = PolicyEvaluator(policy)
    names = {scope: _DirectoryNames(view) for scope, view in views.items()}
    for proposed in changes:
        path = proposed.path
        if proposed.base is None:
            evaluator.require(Verb.CREATE, path)
            check_creatable(path)
            path = move(proposed, names[path.scope])
        yield replace(proposed, path=path)


class _DirectoryNames:
    """Returns the names in a directory of a scope, including the names that were assigned to new files."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._reserved: dict[str, set[str]] = {"": set()}

    def __call__(self, directory: str) -> Collection[str] | None:
        found, reserved = self._view.names(directory), self._reserved.get(directory)
        return found if reserved is None else reserved | (found or frozenset())

    def reserve(self, directory: str, name: str) -> None:
        self._reserved.setdefault(directory, set()).add(name)


def _find_free_path(path: CanonicalPath, names: _DirectoryNames) -> CanonicalPath:
    """Return a free path for a new file, and reserve it in `names`; `path` itself if it is free."""
    *folders, name = path.rel.split("/")
    directory = ""
    for folder in folders:
        free = find_free_name(path.scope, directory, folder, "", names)
        names.reserve(directory, free)
        directory = join_path(directory, free)
    return _find_free_file(path.scope, directory, name, names)


def _find_free_file(scope: Scope, directory: str, name: str, names: _DirectoryNames) -> CanonicalPath:
    """Return a free path for a file in a directory, and reserve it in `names`.

    Args:
        scope: scope of the directory.
        directory: path inside the scope.
        name: the preferred file name.
        names: the names in each directory.
    """
    free = find_free_name(scope, directory, name.removesuffix(FILE_SUFFIX), FILE_SUFFIX, names)
    names.reserve(directory, free)
    return CanonicalPath(scope, join_path(directory, free))


def find_free_name(
    scope: Scope, directory: str, stem: str, suffix: str, names: Callable[[str], Collection[str] | None]
) -> str:
    """Return the first free name: `stem` itself, or `stem` with an appended number.

    A name is free if no other name in the directory is equal to it in lower case and normalized form.

    Args:
        scope: scope of the directory.
        directory: path inside the scope; "" for the root.
        stem: the preferred name, without suffix.
        suffix: suffix of a file; empty for a folder. An existing folder is reused, even if its spelling
            differs.
        names: returns the names in a directory; None if it is missing or could not be listed.

    Raises:
        QuotaExceeded: the names with all numbers up to `MAX_SUFFIX` exist.
    """
    existing: dict[str, list[str]] = {}
    for each in sorted(names(directory) or ()):
        existing.setdefault(fold(each), []).append(each)
    prefix_bytes = len(f"{scope}/{join_path(directory, '')}".encode())
    max_bytes = min(MAX_SEGMENT_BYTES, MAX_PATH_BYTES - prefix_bytes)
    for number in range(1, MAX_SUFFIX + 1):
        ending = f"-{number}{suffix}"
        free = stem + suffix if number == 1 else _truncate(stem, max_bytes - len(ending)) + ending
        conflicting = existing.get(fold(free), [])
        if not conflicting:
            return free
        folders = [
            each for each in conflicting if not suffix and names(join_path(directory, each)) is not None
        ]
        if folders:
            return free if free in folders else folders[0]
    raise QuotaExceeded("too many files have this name; use another name")


def _truncate(stem: str, size: int) -> str:
    """Return `stem` cut to `size` bytes of UTF-8, but never inside a character."""
    return stem.encode()[: max(0, size)].decode(errors="ignore").rstrip(" .")
