"""Judges a change-set from scratch: whoever proposed it may have lied about everything.

1. `check_paths`: every path is canonical text of a bound scope, named once, with none beneath another; an
   escape anywhere in the change-set, claims included, wins over whatever else is wrong.
2. `check_budgets`: it is no more than a run may write.
3. `draft`: the broker reads the before-state itself, through its own handles.
4. `check_claims`: what the run read or replaces is still what it was.
5. `judge`: policy verb by existence; names of new files; size, encoding and content gates; quotas.

Nothing here writes. An escape found here is as final as one found by a tool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.content.entry import check_entry
from muniment.errors import (
    BudgetSpent,
    NotAFile,
    NotFound,
    QuotaExceeded,
    Refusal,
    Refused,
    StoreConflict,
    TooLarge,
    ToolError,
)
from muniment.names import MAX_FILE_BYTES, Scope, Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import CanonicalPath, canonicalise, check_creatable, fold
from muniment.policy.model import Policy
from muniment.store.change import Draft
from muniment.store.scan import Scan
from muniment.tools.changeset import ChangeSet, Claim, digest


def check_paths(change_set: ChangeSet, roots: Mapping[Scope, BoundRoot]) -> None:
    """Step 1, from the text alone.

    Raises:
        PathEscape: a path leads outside the scopes.
        BadName, Refused: a path is not canonical, names a scope, is named twice or lies beneath another.
    """
    proposed = [item.unsafe_path for item in change_set.changes]
    refusal: Refusal | None = None
    for unsafe_path in (*proposed, *(item.unsafe_path for item in change_set.claims)):
        try:
            canonicalise(unsafe_path, roots)
        except Refusal as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    for unsafe_path in proposed:
        path = canonicalise(unsafe_path, roots)
        if path.text != unsafe_path or not path.rel:
            raise _refused("a proposed path is not canonical")
    for first, second in pairwise(sorted(f"{text}/" for text in proposed)):
        # In this order a path stands just before the first one beneath it.
        if second.startswith(first):
            raise _refused("a path is proposed twice, or beneath another one")


def check_budgets(change_set: ChangeSet, policy: Policy) -> None:
    """Step 2; what was proposed counts, not what the broker adds to it.

    Raises:
        BudgetSpent: the change-set holds more files or bytes than a run may write.
    """
    if len(change_set.changes) > policy.limits.files_written:
        raise BudgetSpent("the change-set holds more files than a run may write")
    if sum(len(item.content) for item in change_set.changes) > policy.limits.write_bytes:
        raise BudgetSpent("the change-set holds more bytes than a run may write")


def draft(change_set: ChangeSet, roots: Mapping[Scope, BoundRoot]) -> tuple[Draft, ...]:
    """Steps 1 and 3: what the change-set would do, found out by the broker itself.

    Raises:
        PathEscape, BadName, Refused: as `check_paths`; also of a path that meets a link, a hard link
            or a special file.
        NotAFile: a file stands where a directory is needed.
        StoreConflict: with every file that cannot be read now, or is not what the run replaces.
    """
    check_paths(change_set, roots)
    drafts: list[Draft] = []
    broken: list[str] = []
    for proposed in change_set.changes:
        path = canonicalise(proposed.unsafe_path, roots)
        root = roots[path.scope]
        try:
            before = _current(root, path)
        except StoreConflict as conflict:
            broken += conflict.paths
            continue
        if proposed.base != (None if before is None else digest(before)):
            broken.append(path.text)
        drafts.append(Draft(path, root, before, proposed.content))
    if broken:
        raise StoreConflict(tuple(broken))
    for item in drafts:
        if item.before is None:
            _check_parents(item.root, item.path)
    return tuple(drafts)


def check_claims(claims: Sequence[Claim], roots: Mapping[Scope, BoundRoot], patience: Patience) -> None:
    """Step 4.

    Raises:
        PathEscape, BadName, Refused: a claim names no canonical path.
        StoreConflict: with every path whose claim no longer holds.
        DeadlineExceeded, Cancelled: there are more claims than time.
    """
    broken: list[str] = []
    for claim in claims:
        patience.check()
        path = canonicalise(claim.unsafe_path, roots)
        try:
            now = _current(roots[path.scope], path)
        except StoreConflict:
            broken.append(path.text)
            continue
        if claim.digest != (None if now is None else digest(now)):
            broken.append(path.text)
    if broken:
        raise StoreConflict(tuple(broken))


def judge(drafts: Sequence[Draft], policy: Policy, scans: Mapping[Scope, Scan]) -> None:
    """Step 5.

    Raises:
        BadName, Refused: the policy or the name grammar does not allow a change, or two new names
            are aliases.
        ContentRejected, TooLarge, NotText: a gate does not.
        QuotaExceeded: the scope would pass a limit.
        StoreConflict: a new name is now an alias of an existing one.
        ValueError: a drafted scope has no scan, and so would go unjudged.
    """
    if any(item.path.scope not in scans for item in drafts):
        raise ValueError("a drafted scope was not scanned")
    decider = Judge(policy)
    for scope, scan in scans.items():
        ours = [item for item in drafts if item.path.scope == scope]
        afterwards = _names_afterwards(ours, scan)
        for item in ours:
            decider.require(item.verb, item.path)
            if item.verb is Verb.CREATE:
                check_creatable(item.path)
                _check_alias(item.path, afterwards, scan)
            if len(item.after) > MAX_FILE_BYTES:
                raise TooLarge(f"{item.path.text} holds more than {MAX_FILE_BYTES} bytes")
            check_entry(item.after, policy.content_reject)
        _check_quotas(ours, decider, scan)


def _current(root: BoundRoot, path: CanonicalPath) -> bytes | None:
    try:
        return root.root.read_bytes(path.rel)
    except NotFound:
        return None
    except ToolError:
        raise StoreConflict((path.text,)) from None


def _check_parents(root: BoundRoot, path: CanonicalPath) -> None:
    """Refuse a new file beneath a file: opening it only told that it is not there."""
    for parent, _ in _steps(path):
        try:
            examined = root.root.examine(parent)
        except ToolError:
            raise StoreConflict((path.text,)) from None
        if examined is not None and examined.kind == "file":
            raise NotAFile(f"{path.scope}/{parent} is a file; choose another folder")


def _refused(message: str) -> Refused:
    return Refused(message, rule="change-set", layer="judge")


def _names_afterwards(drafts: Sequence[Draft], scan: Scan) -> Mapping[str, set[str]]:
    """The names in every directory of a scope once the drafts have landed."""
    names = defaultdict(set, {directory: set(found) for directory, found in scan.names.items()})
    for item in drafts:
        for directory, name in _steps(item.path):
            names[directory].add(name)
    return names


def _check_alias(path: CanonicalPath, afterwards: Mapping[str, set[str]], scan: Scan) -> None:
    """A new path may differ from every existing one, and from the others proposed, by more than case."""
    for directory, segment in _steps(path):
        existing = scan.names.get(directory, ())
        if segment in existing:
            continue
        aliases = {name for name in afterwards[directory] if name != segment and fold(name) == fold(segment)}
        if aliases.intersection(existing):
            raise StoreConflict((path.text,))
        if aliases:
            raise _refused("two proposed names differ only by case or normalisation")


def _steps(path: CanonicalPath) -> Iterator[tuple[str, str]]:
    """Every directory on the way to `path`, relative to its root, with the name that is taken there."""
    segments = path.rel.split("/")
    for depth, segment in enumerate(segments):
        yield "/".join(segments[:depth]), segment


def _check_quotas(drafts: Sequence[Draft], decider: Judge, scan: Scan) -> None:
    """A change may not pass a quota; a scope that is over one already may still shrink."""
    for quota in {quota for item in drafts for quota in decider.quotas_for(item.path)}:
        ours = [item for item in drafts if quota in decider.quotas_for(item.path)]
        if any(len(item.after) > quota.max_file_bytes for item in ours):
            raise QuotaExceeded(f"a file may hold {quota.max_file_bytes} bytes here")
        more_files = sum(item.before is None for item in ours)
        more_bytes = sum(len(item.after) - len(item.before or b"") for item in ours)
        scope = ours[0].path.scope
        sizes = [
            entry.size
            for entry in scan.entries
            if quota in decider.quotas_for(CanonicalPath(scope, entry.rel))
        ]
        if more_files > 0 and len(sizes) + more_files > quota.max_files:
            raise QuotaExceeded(f"{scope} may hold {quota.max_files} files; forget some first")
        if more_bytes > 0 and sum(sizes) + more_bytes > quota.max_total_bytes:
            raise QuotaExceeded(f"{scope} may hold {quota.max_total_bytes} bytes; forget something first")
