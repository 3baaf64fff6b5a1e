"""Judge a change set from scratch; every statement in it may be false.

1. `check_paths`: every path occurs once, and no path is under another one.
2. `read_current`: the broker reads the current file at every path through its own handles.
3. `drop_conflicting`: parts that rely on an outdated file are dropped. So an older state never overwrites a
   newer one.
4. `judge`: checks the verb by policy (`create` for a new file, else `modify`), names of new files, sizes,
   gates and quotas.

This module writes nothing. An escape that is found here is handled like one that a tool finds.

The checks of texts, similar names and quotas rely on the arguments `gates`, `root_info` and `is_known`. A
wrong gate accepts a bad text; wrong information about a root accepts one file too many. Two checks rely only
on the policy and the disk: which paths may be written, and that a replaced file is the one that was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Protocol

from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import _SEAL, ChangeSet, FileChange, JudgedChanges, digest, validated_copy
from muniment.kernel.decide import Policy, PolicyEvaluator, Quota
from muniment.kernel.names import MAX_FILE_BYTES, Digest, RelPath, Scope, Verb
from muniment.kernel.path import CanonicalPath, check_suffix, fold
from muniment.kernel.refusal import NotAFile, NotFound, QuotaExceeded, Refused, StoreConflict, TooLarge

# isort: split
from muniment.kernel.refusal import ToolError

Gates = Callable[[FileChange], None]
"""A function that raises a refusal if the new bytes of a change are not allowed at its path."""

IsKnown = Callable[[CanonicalPath, Digest], bool]
"""A function that returns whether a file with this digest was at the path before. Gates skip such a file."""

_UNREADABLE_DIGEST: Final = Digest("unreadable")
"""Replaces the digest of a file that cannot be read now. A part that relies on such a file is dropped."""


class RootInfo(Protocol):
    """Known properties of the locked roots that the broker does not read from the files."""

    def find_aliases(self, directory: CanonicalPath, name: str) -> frozenset[str]:
        """Return the names in `directory` that equal `name` if case and normalisation are ignored."""

    def usage(self, scope: Scope, is_counted: Callable[[RelPath], bool] | None) -> tuple[int, int]:
        """Return the number of entries in a scope and their bytes in total.

        Args:
            scope: the scope.
            is_counted: selects the entries to count by their path in the scope; None: all entries.
        """

    def is_index(self, scope: Scope, content: bytes) -> bool:
        """Return whether Muniment wrote exactly these bytes as an index file of the scope."""


@dataclass(frozen=True, slots=True)
class CurrentFile:
    """The file that the broker found at a path.

    Attributes:
        content: its bytes; None if it does not exist, cannot be read, or is not to be changed.
        digest: its digest; None if the file does not exist.
    """

    content: bytes | None
    digest: Digest | None


def check_paths(change_set: ChangeSet) -> None:
    """Check that each path of a change set is a file, occurs once, and is not under another path.

    Raises:
        Refused: a path is a scope, occurs twice, or is under another path.
    """
    if not all(path.rel for path in change_set.paths):
        raise _build_refusal("a scope is not a file; propose a file in it")
    for first, second in pairwise(sorted(f"{path.text}/" for path in change_set.paths)):
        # In this order a path comes directly before the first one under it.
        if second.startswith(first):
            raise _build_refusal("a path is proposed twice, or is under another one; propose each file once")


def read_current(
    parts: Sequence[ChangeSet], roots: Mapping[Scope, BoundRoot], deadline: Deadline
) -> Mapping[CanonicalPath, CurrentFile]:
    """Read the current file at every path that a part changes or claims.

    The result contains bytes only for the files that a part changes.

    Raises:
        PathEscape: a path contains a link, a hard link or a special file.
        DeadlineExceeded, Cancelled: the wait ended before all paths were read.
    """
    touched = {path for part in parts for path in part.paths}
    claimed = {claim.path for part in parts for claim in part.claims}
    found: dict[CanonicalPath, CurrentFile] = {}
    for path in sorted(touched | claimed):
        deadline.check()
        try:
            content = roots[path.scope].root.read_bytes(path)
        except NotFound:
            found[path] = CurrentFile(None, None)
        except ToolError:
            found[path] = CurrentFile(None, _UNREADABLE_DIGEST)
        else:
            found[path] = CurrentFile(content if path in touched else None, digest(content))
    return found


def drop_conflicting(
    parts: Sequence[ChangeSet], found: Mapping[CanonicalPath, CurrentFile]
) -> tuple[tuple[ChangeSet, ...], tuple[str, ...]]:
    """Drop the parts that rely on another state of a file than the current one.

    Args:
        parts: the proposed parts, in their order.
        found: the current files, from `read_current`.

    Returns:
        The parts that still apply, in their order; and the paths on which the dropped parts conflict.
    """
    current_digests = {path: each.digest for path, each in found.items()}
    applicable: list[ChangeSet] = []
    conflicting: set[str] = set()
    for part in parts:
        expected = [(each.path, each.base) for each in part.changes]
        expected += [(each.path, each.digest) for each in part.claims]
        mismatched = {
            path.text
            for path, wanted in expected
            if current_digests[path] != wanted or wanted == _UNREADABLE_DIGEST
        }
        conflicting |= mismatched
        if not mismatched:
            applicable.append(part)
            current_digests |= {each.path: each.digest for each in part.changes}
    return tuple(applicable), tuple(sorted(conflicting))


def fill_before(change_set: ChangeSet, found: Mapping[CanonicalPath, CurrentFile]) -> ChangeSet:
    """Return a copy of `change_set` with the current bytes of each file in `before`."""
    changes = tuple(replace(each, before=found[each.path].content) for each in change_set.changes)
    return replace(change_set, changes=changes)


def judge(
    change_set: ChangeSet,
    policy: Policy,
    roots: Mapping[Scope, BoundRoot],
    *,
    gates: Gates,
    root_info: RootInfo,
    is_known: IsKnown,
) -> JudgedChanges:
    """Check every change by the policy, the name grammar, the size limits, the gates and the quotas.

    The result can be written only in `roots`, under the same locks.

    Raises:
        TypeError: a value is of a class whose values could change later.
        BadName, Refused: the policy or the name grammar does not allow a change, or two new names differ only
            by case or normalisation.
        TooLarge: a file has more than `MAX_FILE_BYTES`.
        NotAFile: a parent of a new file is a file, not a directory.
        QuotaExceeded: a scope would exceed a quota.
        StoreConflict: a new name differs from an existing one only by case or normalisation, or a change is
            not based on the bytes in its `before`.
        Any error of `gates`, `root_info` and `is_known`.
    """
    change_set = validated_copy(change_set)
    check_paths(change_set)
    evaluator, new_names = PolicyEvaluator(policy), _collect_new_names(change_set)
    new_directories: list[tuple[CanonicalPath, ...]] = []
    for item in change_set.changes:
        new_directories.append(())
        if item.base != (None if item.before is None else digest(item.before)):
            raise StoreConflict((item.path.text,))
        if item.after is None:
            if item.base is None:
                raise StoreConflict((item.path.text,))
            evaluator.require_removal(item.path)
            continue
        evaluator.require(item.verb, item.path)
        if item.verb is Verb.CREATE:
            check_suffix(item.path)
            _check_alias(item.path, root_info, new_names)
            new_directories[-1] = _find_missing_directories(roots[item.path.scope], item.path)
        if len(item.after) > MAX_FILE_BYTES:
            raise TooLarge(f"{item.path.text} has more than {MAX_FILE_BYTES} bytes; shorten it")
        if not is_known(item.path, digest(item.after)):
            gates(replace(item))
    for scope in {path.scope for path in change_set.paths}:
        _check_quotas([item for item in change_set.changes if item.path.scope == scope], evaluator, root_info)
    return JudgedChanges(_SEAL, change_set, tuple(new_directories), roots)


def _find_missing_directories(root: BoundRoot, path: CanonicalPath) -> tuple[CanonicalPath, ...]:
    """Return the missing directories above a new file, outermost first.

    Raises:
        NotAFile: a parent of the new file is a file.
        StoreConflict: a parent cannot be examined now.
    """
    missing: list[CanonicalPath] = []
    for parent, _ in list(_iterate_steps(path))[1:]:
        try:
            examined = root.root.examine(parent)
        except ToolError:
            raise StoreConflict((path.text,)) from None
        if examined is None:
            missing.append(parent)
        elif examined.kind == "file":
            raise NotAFile(f"{parent.text} is a file; choose another folder")
    return tuple(missing)


def _build_refusal(message: str) -> Refused:
    return Refused(message, rule="change-set", layer="judge")


def _collect_new_names(change_set: ChangeSet) -> Mapping[CanonicalPath, set[str]]:
    """Return, for each directory, the names that the changes write in it: files and subdirectories."""
    new_names: dict[CanonicalPath, set[str]] = defaultdict(set)
    for item in change_set.changes:
        for directory, name in _iterate_steps(item.path) if item.after is not None else ():
            new_names[directory].add(name)
    return new_names


def _check_alias(path: CanonicalPath, info: RootInfo, new_names: Mapping[CanonicalPath, set[str]]) -> None:
    """Check that a new path differs from every existing and every proposed path by more than case."""
    for directory, segment in _iterate_steps(path):
        aliases = info.find_aliases(directory, segment)
        if segment in aliases:
            continue
        if aliases:
            raise StoreConflict((path.text,))
        if any(name != segment and fold(name) == fold(segment) for name in new_names[directory]):
            raise _build_refusal("two proposed names differ only by case or normalisation")


def _iterate_steps(path: CanonicalPath) -> Iterator[tuple[CanonicalPath, str]]:
    """Yield each directory above `path`, outermost first, and the name in it that leads to `path`."""
    directory = CanonicalPath(path.scope, RelPath(""))
    for segment in path.rel.split("/"):
        yield directory, segment
        directory = directory.child(segment)


def _check_quotas(changes: Sequence[FileChange], evaluator: PolicyEvaluator, root_info: RootInfo) -> None:
    """Check that the changes of one scope exceed no quota.

    If a scope already exceeds a quota, it may still shrink.
    """
    scope = changes[0].path.scope
    for quota in {quota for item in changes for quota in evaluator.quotas_for(item.path)}:
        counted = [item for item in changes if quota in evaluator.quotas_for(item.path)]
        if any(item.size > quota.max_file_bytes for item in counted):
            raise QuotaExceeded(f"a file may have at most {quota.max_file_bytes} bytes here; shorten it")
        more_files = sum((item.base is None) - (item.after is None) for item in counted)
        more_bytes = sum(item.size - len(item.before or b"") for item in counted)
        if more_files <= 0 and more_bytes <= 0:
            continue
        files, size = root_info.usage(scope, _build_quota_filter(quota, evaluator, scope))
        if more_files > 0 and files + more_files > quota.max_files:
            raise QuotaExceeded(f"{scope} may have at most {quota.max_files} files; forget some first")
        if more_bytes > 0 and size + more_bytes > quota.max_total_bytes:
            raise QuotaExceeded(f"{scope} may have at most {quota.max_total_bytes} bytes; forget some first")


def _build_quota_filter(
    quota: Quota, evaluator: PolicyEvaluator, scope: Scope
) -> Callable[[RelPath], bool] | None:
    """Return a filter that selects the files that a quota counts, or None if the quota counts all files."""
    if "/**" in quota.paths:
        return None
    return lambda rel: quota in evaluator.quotas_for(CanonicalPath(scope, rel))
