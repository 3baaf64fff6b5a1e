"""Free names for new files whose own name is taken, by appending numbers. Pure.

What is taken comes from a scan under the lock; the judge compares the result with the same scan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from muniment.errors import QuotaExceeded
from muniment.names import MAX_PATH_BYTES, MAX_SEGMENT_BYTES, Scope, Verb, joined
from muniment.policy.decide import Judge
from muniment.policy.grammar import FILE_SUFFIX, CanonicalPath, canonicalise, check_creatable, fold
from muniment.policy.model import Policy
from muniment.store.scan import Scan
from muniment.tools.changeset import ChangeSet, Proposed

MAX_SUFFIX: Final = 999
"""Highest number that is appended; more files of one name are a loop, not a memory."""


def settle_names(
    change_set: ChangeSet, policy: Policy, scopes: Collection[Scope], scans: Mapping[Scope, Scan]
) -> ChangeSet:
    """Move every new file whose name is taken to a free one; such a run has no claims worth keeping.

    What the policy or the grammar refuses is refused here: another name would only hide it.

    Raises:
        Refused, BadName: the proposed name may not be created.
        QuotaExceeded: as `free_name`.
    """
    decider = Judge(policy)
    names = {
        scope: {"": set(), **{directory: set(listed) for directory, listed in scanned.names.items()}}
        for scope, scanned in scans.items()
    }
    settled: list[Proposed] = []
    for proposed in change_set.changes:
        path = canonicalise(proposed.unsafe_path, scopes)
        if proposed.base is None:
            decider.require(Verb.CREATE, path)
            check_creatable(path)
            path = _free_path(path, names[path.scope])
        settled.append(replace(proposed, unsafe_path=path.text))
    return ChangeSet(tuple(settled))


def _free_path(path: CanonicalPath, names: dict[str, set[str]]) -> CanonicalPath:
    """Where `path` can go, entered in `names`: the names in each directory of its scope."""
    *folders, name = path.rel.split("/")
    directory = ""
    for folder in folders:
        free = free_name(path.scope, directory, folder, "", names)
        names[directory].add(free)
        directory = joined(directory, free)
        names.setdefault(directory, set())
    free = free_name(path.scope, directory, name.removesuffix(FILE_SUFFIX), FILE_SUFFIX, names)
    names[directory].add(free)
    return CanonicalPath(path.scope, joined(directory, free))


def free_name(
    scope: Scope, directory: str, stem: str, suffix: str, names: Mapping[str, Collection[str]]
) -> str:
    """The first numbering of a name that neither something else nor an alias has.

    Args:
        scope: of the directory.
        directory: where, inside its scope; "" for the root.
        stem: of the name.
        suffix: of a file; empty for a folder, which may also be one that is there, however it is spelled.
        names: in each directory that could be listed.

    Raises:
        QuotaExceeded: all numbers up to `MAX_SUFFIX` are taken.
    """
    taken: dict[str, list[str]] = {}
    for each in sorted(names[directory]):
        taken.setdefault(fold(each), []).append(each)
    above = len(f"{scope}/{joined(directory, '')}".encode())
    room = min(MAX_SEGMENT_BYTES, MAX_PATH_BYTES - above)
    for number in range(1, MAX_SUFFIX + 1):
        ending = f"-{number}{suffix}"
        free = stem + suffix if number == 1 else _cut(stem, room - len(ending)) + ending
        standing = taken.get(fold(free), [])
        if not standing:
            return free
        folders = [each for each in standing if not suffix and joined(directory, each) in names]
        if folders:
            return free if free in folders else folders[0]
    raise QuotaExceeded("there are too many files of that name; choose another")


def _cut(stem: str, size: int) -> str:
    """`stem` within `size` bytes of UTF-8, never inside a character."""
    return stem.encode()[: max(0, size)].decode(errors="ignore").rstrip(" .")
