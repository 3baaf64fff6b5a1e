"""Judges a change-set from scratch: whoever proposed it may have lied about everything.

1. `check_paths`: every path is canonical text of a bound scope, named once, with none beneath another; an
   escape anywhere in the change-set, claims included, wins over whatever else is wrong.
2. `check_budgets`: it is no more than a run may write.
3. `look`: the broker reads what stands at every path itself, through its own handles.
4. `settle`: what rests on something that is no longer so is rejected, by `rebase`.
5. `judge`: policy verb by existence; names of new files; size, encoding and content gates; quotas.

Nothing here writes. An escape found here is as final as one found by a tool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.content.admission import check_entry
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
from muniment.names import MAX_FILE_BYTES, Digest, RelPath, Scope, Verb
from muniment.policy.decide import Judge, Policy, Quota
from muniment.policy.grammar import CanonicalPath, canonicalise, check_creatable, fold
from muniment.store.catalog import View
from muniment.store.change import Draft
from muniment.store.rebase import Node, Part, rebase
from muniment.tools.overlay import ChangeSet, digest


class Author(Enum):
    """Who proposes, which says what is asked of the text; of paths the same is asked of all but `ERASE`."""

    MODEL = "model"
    """Budgets and content gates."""
    CODE = "code"
    """Content gates."""
    RESTORE = "restore"
    """Neither: the text was there before, and comes back or is only cut."""
    ERASE = "erase"
    """The owner removes a file by its exact path, whatever the policy says about removals."""


_UNREADABLE: Final = Digest("unreadable")
"""Stands for the digest of what cannot be read now: no claim is equal to it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the broker found at a path: bytes and their digest, or None twice where nothing is."""

    content: bytes | None
    digest: Digest | None


def check_paths(change_set: ChangeSet, roots: Mapping[Scope, BoundRoot]) -> None:
    """Step 1, from the text alone.

    Raises:
        PathEscape: a path leads outside the scopes.
        BadName, Refused: a path is not canonical, names a scope, is named twice or lies beneath another.
    """
    proposed = change_set.unsafe_paths
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
    if len(change_set.unsafe_paths) > policy.limits.files_written:
        raise BudgetSpent("the change-set holds more files than a run may write")
    if sum(len(item.content) for item in change_set.changes) > policy.limits.write_bytes:
        raise BudgetSpent("the change-set holds more bytes than a run may write")


def look(
    parts: Sequence[ChangeSet], roots: Mapping[Scope, BoundRoot], patience: Patience
) -> Mapping[str, Standing]:
    """Step 3: by canonical path, what stands at every path that is proposed or claimed.

    The bytes are kept of what would be touched only.

    Raises:
        PathEscape: a path meets a link, a hard link or a special file.
        DeadlineExceeded, Cancelled: there are more paths than time.
    """
    touched = {path for part in parts for path in part.unsafe_paths}
    claimed = {canonicalise(claim.unsafe_path, roots).text for part in parts for claim in part.claims}
    found: dict[str, Standing] = {}
    for text in sorted(touched | claimed):
        patience.check()
        path = canonicalise(text, roots)
        try:
            content = roots[path.scope].root.read_bytes(path.rel)
        except NotFound:
            found[text] = Standing(None, None)
        except ToolError:
            found[text] = Standing(None, _UNREADABLE)
        else:
            found[text] = Standing(content if text in touched else None, digest(content))
    return found


def settle(
    parts: Sequence[ChangeSet], standing: Mapping[str, Standing], roots: Mapping[Scope, BoundRoot]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Step 4: the numbers of the parts that still hold, and the paths that broke the others."""
    live = [Node(path, found.digest) for path, found in standing.items() if found.digest is not None]
    rebased = rebase(live, [_part(part, roots) for part in parts])
    broken = {path for rejected in rebased.rejected for path in rejected.broken}
    return rebased.applied, tuple(sorted(broken))


def draft(
    change_set: ChangeSet, standing: Mapping[str, Standing], roots: Mapping[Scope, BoundRoot]
) -> tuple[Draft, ...]:
    """What a change-set that holds would do.

    Raises:
        NotAFile: a file stands where a directory is needed.
        StoreConflict: the way to a new file cannot be looked at.
    """
    after = {item.unsafe_path: item.content for item in change_set.changes}
    drafts: list[Draft] = []
    for text in change_set.unsafe_paths:
        path = canonicalise(text, roots)
        root, before = roots[path.scope], standing[text].content
        if before is None:
            _check_parents(root, path)
        drafts.append(Draft(path, root, before, after.get(text)))
    return tuple(drafts)


def judge(drafts: Sequence[Draft], policy: Policy, views: Mapping[Scope, View], author: Author) -> None:
    """Step 5.

    Raises:
        BadName, Refused: the policy or the name grammar does not allow a change, or two new names
            are aliases.
        ContentRejected, TooLarge, NotText: a gate does not.
        QuotaExceeded: the scope would pass a limit.
        StoreConflict: a new name is now an alias of an existing one.
        ValueError: a drafted scope has no view, and so would go unjudged.
    """
    if any(item.path.scope not in views for item in drafts):
        raise ValueError("a drafted scope was not looked at")
    decider = Judge(policy)
    for scope, view in views.items():
        ours = [item for item in drafts if item.path.scope == scope]
        afterwards = _Names(view, [item for item in ours if item.after is not None])
        for item in ours:
            if item.after is None:
                if author is not Author.ERASE:
                    decider.require_removal(item.path)
                continue
            decider.require(item.verb, item.path)
            if item.verb is Verb.CREATE:
                check_creatable(item.path)
                _check_alias(item.path, afterwards)
            if len(item.after) > MAX_FILE_BYTES:
                raise TooLarge(f"{item.path.text} holds more than {MAX_FILE_BYTES} bytes")
            if author in {Author.MODEL, Author.CODE}:
                check_entry(item.after, item.path.rel, policy.content)
        _check_quotas(ours, decider, view)


def _part(change_set: ChangeSet, roots: Mapping[Scope, BoundRoot]) -> Part:
    """A change-set as `rebase` sees it: nodes are files, all that it rests on is claimed."""
    bases = [Node(item.unsafe_path, item.base) for item in change_set.changes]
    bases += [Node(item.unsafe_path, item.digest) for item in change_set.removals]
    claims = [Node(canonicalise(claim.unsafe_path, roots).text, claim.digest) for claim in change_set.claims]
    return Part(
        claims=(*bases, *claims),
        replaces=tuple(node.id for node in bases if node.digest is not None),
        adds=tuple(Node(item.unsafe_path, item.digest) for item in change_set.changes),
    )


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


class _Names:
    """The names in every directory of a scope, now and once the drafts have landed."""

    def __init__(self, view: View, drafts: Sequence[Draft]) -> None:
        self._view = view
        self._coming: dict[str, set[str]] = defaultdict(set)
        for item in drafts:
            for directory, name in _steps(item.path):
                self._coming[directory].add(name)

    def now(self, directory: str) -> frozenset[str]:
        return self._view.names(directory) or frozenset()

    def afterwards(self, directory: str) -> frozenset[str]:
        return self.now(directory) | self._coming[directory]


def _check_alias(path: CanonicalPath, names: _Names) -> None:
    """A new path may differ from every existing one, and from the others proposed, by more than case."""
    for directory, segment in _steps(path):
        existing = names.now(directory)
        if segment in existing:
            continue
        folded = fold(segment)
        aliases = {name for name in names.afterwards(directory) if name != segment and fold(name) == folded}
        if aliases.intersection(existing):
            raise StoreConflict((path.text,))
        if aliases:
            raise _refused("two proposed names differ only by case or normalisation")


def _steps(path: CanonicalPath) -> Iterator[tuple[str, str]]:
    """Every directory on the way to `path`, relative to its root, with the name that is taken there."""
    segments = path.rel.split("/")
    for depth, segment in enumerate(segments):
        yield "/".join(segments[:depth]), segment


def _check_quotas(drafts: Sequence[Draft], decider: Judge, view: View) -> None:
    """A change may not pass a quota; a scope that is over one already may still shrink."""
    for quota in {quota for item in drafts for quota in decider.quotas_for(item.path)}:
        ours = [item for item in drafts if quota in decider.quotas_for(item.path)]
        if any(len(item.after or b"") > quota.max_file_bytes for item in ours):
            raise QuotaExceeded(f"a file may hold {quota.max_file_bytes} bytes here")
        more_files = sum((item.before is None) - (item.after is None) for item in ours)
        more_bytes = sum(len(item.after or b"") - len(item.before or b"") for item in ours)
        if more_files <= 0 and more_bytes <= 0:
            continue
        usage = view.usage(_counted_by(quota, decider, view.scope))
        if more_files > 0 and usage.files + more_files > quota.max_files:
            raise QuotaExceeded(f"{view.scope} may hold {quota.max_files} files; forget some first")
        if more_bytes > 0 and usage.bytes + more_bytes > quota.max_total_bytes:
            raise QuotaExceeded(
                f"{view.scope} may hold {quota.max_total_bytes} bytes; forget something first"
            )


def _counted_by(quota: Quota, decider: Judge, scope: Scope) -> Callable[[RelPath], bool] | None:
    """What of a scope a quota counts; None: everything, which takes no walk over the rows."""
    if "/**" in quota.paths:
        return None
    return lambda rel: quota in decider.quotas_for(CanonicalPath(scope, rel))
