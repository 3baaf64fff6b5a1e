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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from muniment.content.admission import check_entry
from muniment.errors import (
    BudgetSpent,
    NotAFile,
    NotFound,
    QuotaExceeded,
    Refused,
    StoreConflict,
    TooLarge,
    ToolError,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.names import MAX_FILE_BYTES, Digest, RelPath, Scope, Verb
from muniment.kernel.path import CanonicalPath, fold
from muniment.policy.decide import Judge, Policy, Quota
from muniment.policy.grammar import check_creatable
from muniment.store.catalog import View

# -- rebase ------------------------------------------------------------------------------------------
#
# Applies proposals to what is there now, as far as nothing that they rest on has changed. Pure.
#
# *Ancestral replacement* (optimistic concurrency with proof of claim): a proposal names what it read as it
# was
# then. Where all of that still stands unmodified, the proposal is fast-forwarded; where anything of it has
# changed, gone or come, it is rejected whole. Newer is never overwritten by older.
#
# The commit uses it for the claims of a run (nodes are files), a dream for each of its parts, and the
# compaction of a conversation for its summaries (nodes are ordered).


@dataclass(frozen=True, slots=True)
class Node:
    """Something that has an identity and a state.

    Attributes:
        digest: of its content; None, in a claim only: there must be no such node.
    """

    id: str
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ProposalPart:
    """A proposal, of which all is applied or nothing.

    Attributes:
        claims: what it rests on, as it was; what it replaces too.
        replaces: ids among the claims that go.
        adds: nodes that come, where the first replaced one stood; at the end where it replaces nothing.
        contiguous: whether the replaced nodes must still stand side by side, in the order of `replaces`.
    """

    claims: tuple[Node, ...]
    replaces: tuple[str, ...] = ()
    adds: tuple[Node, ...] = ()
    contiguous: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """A part that was not applied, and the ids of the nodes that were not as it needs them."""

    part: ProposalPart
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebased:
    """What came of it.

    Attributes:
        nodes: afterwards, in order.
        applied: the numbers of the parts that were applied, from 0.
        rejected: the others.
    """

    nodes: tuple[Node, ...]
    applied: tuple[int, ...]
    rejected: tuple[Rejected, ...]


def rebase(live: Sequence[Node], parts: Sequence[ProposalPart]) -> Rebased:
    """Apply `parts` in order to `live`; each sees what those before it left.

    Raises:
        ValueError: two live nodes have one id, or a part replaces what it does not claim: then nothing
            proves that it knew what it replaces.

    Cost: linear in the nodes and in what all parts claim, replace and add; for each part that replaces more
        than one node a walk over the nodes besides.
    """
    standing = _Standing(live)
    applied: list[int] = []
    rejected: list[Rejected] = []
    for number, part in enumerate(parts):
        if not set(part.replaces) <= {claim.id for claim in part.claims if claim.digest is not None}:
            raise ValueError("a part replaces what it does not claim")
        broken = standing.broken(part)
        if broken:
            rejected.append(Rejected(part, broken))
        else:
            standing.apply(part)
            applied.append(number)
    return Rebased(standing.nodes(), tuple(applied), tuple(rejected))


class _Standing:
    """Nodes in their order, as a ring of ids that begins and ends at None."""

    def __init__(self, live: Sequence[Node]) -> None:
        self._digests = {node.id: node.digest for node in live}
        if len(self._digests) != len(live):
            raise ValueError("two nodes have one id")
        ring = [None, *self._digests, None]
        self._next: dict[str | None, str | None] = dict(pairwise(ring))
        self._before: dict[str | None, str | None] = {after: before for before, after in pairwise(ring)}

    def nodes(self) -> tuple[Node, ...]:
        found: list[Node] = []
        at = self._next[None]
        while at is not None:
            found.append(Node(at, self._digests[at]))
            at = self._next[at]
        return tuple(found)

    def broken(self, part: ProposalPart) -> tuple[str, ...]:
        broken = [claim.id for claim in part.claims if self._digests.get(claim.id) != claim.digest]
        broken += [
            node.id
            for node in part.adds
            if node.id in self._digests and node.id not in part.replaces and node.id not in broken
        ]
        if not broken and part.contiguous:
            is_in_order = all(self._next[first] == second for first, second in pairwise(part.replaces))
            broken += () if is_in_order else part.replaces
        return tuple(broken)

    def apply(self, part: ProposalPart) -> None:
        gone = set(part.replaces)
        behind = self._first(gone) if gone else None
        while behind in gone:
            behind = self._next[behind]
        for each in gone:
            self._remove(each)
        for node in part.adds:
            self._digests[node.id] = node.digest
            self._link(self._before[behind], node.id)
            self._link(node.id, behind)

    def _first(self, gone: Collection[str]) -> str:
        """The one of `gone` that stands first."""
        if len(gone) == 1:
            return next(iter(gone))
        return next(node.id for node in self.nodes() if node.id in gone)

    def _remove(self, each: str) -> None:
        del self._digests[each]
        self._link(self._before.pop(each), self._next.pop(each))

    def _link(self, before: str | None, after: str | None) -> None:
        self._next[before], self._before[after] = after, before


# -- judge -------------------------------------------------------------------------------------------


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


def check_paths(change_set: ChangeSet) -> None:
    """Step 1, from the paths alone.

    Raises:
        Refused: a path is named twice or lies beneath another.
    """
    for first, second in pairwise(sorted(f"{path.text}/" for path in change_set.paths)):
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
    if sum(item.size for item in change_set.changes) > policy.limits.write_bytes:
        raise BudgetSpent("the change-set holds more bytes than a run may write")


def look(
    parts: Sequence[ChangeSet], roots: Mapping[Scope, BoundRoot], patience: Patience
) -> Mapping[CanonicalPath, Standing]:
    """Step 3: what stands at every path that is proposed or claimed.

    The bytes are kept of what would be touched only.

    Raises:
        PathEscape: a path meets a link, a hard link or a special file.
        DeadlineExceeded, Cancelled: there are more paths than time.
    """
    touched = {path for part in parts for path in part.paths}
    claimed = {claim.path for part in parts for claim in part.claims}
    found: dict[CanonicalPath, Standing] = {}
    for path in sorted(touched | claimed):
        patience.check()
        try:
            content = roots[path.scope].root.read_bytes(path.rel)
        except NotFound:
            found[path] = Standing(None, None)
        except ToolError:
            found[path] = Standing(None, _UNREADABLE)
        else:
            found[path] = Standing(content if path in touched else None, digest(content))
    return found


def settle(
    parts: Sequence[ChangeSet], standing: Mapping[CanonicalPath, Standing]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Step 4: the numbers of the parts that still hold, and the paths that broke the others."""
    live = [Node(path.text, found.digest) for path, found in standing.items() if found.digest is not None]
    rebased = rebase(live, [_part(part) for part in parts])
    broken = {path for rejected in rebased.rejected for path in rejected.broken}
    return rebased.applied, tuple(sorted(broken))


def draft(
    change_set: ChangeSet, standing: Mapping[CanonicalPath, Standing], roots: Mapping[Scope, BoundRoot]
) -> tuple[FileChange, ...]:
    """What a change-set that holds would do.

    Raises:
        NotAFile: a file stands where a directory is needed.
        StoreConflict: the way to a new file cannot be looked at.
    """
    for item in change_set.changes:
        if item.base is None:
            _check_parents(roots[item.path.scope], item.path)
    return tuple(replace(item, before=standing[item.path].content) for item in change_set.changes)


def judge(drafts: Sequence[FileChange], policy: Policy, views: Mapping[Scope, View], author: Author) -> None:
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


def _part(change_set: ChangeSet) -> ProposalPart:
    """A change-set as `rebase` sees it: nodes are files, all that it rests on is claimed."""
    bases = [Node(item.path.text, item.base) for item in change_set.changes]
    claims = [Node(claim.path.text, claim.digest) for claim in change_set.claims]
    return ProposalPart(
        claims=(*bases, *claims),
        replaces=tuple(node.id for node in bases if node.digest is not None),
        adds=tuple(
            Node(item.path.text, item.digest) for item in change_set.changes if item.after is not None
        ),
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

    def __init__(self, view: View, drafts: Sequence[FileChange]) -> None:
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


def _check_quotas(drafts: Sequence[FileChange], decider: Judge, view: View) -> None:
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
