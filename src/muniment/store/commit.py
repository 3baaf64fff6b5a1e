"""Commits change-sets by the kernel, with what a store adds: trust, provenance, reviews, the index.

The order of a commit stands in `kernel.commit`; here stands what it asks of a proposal. New files get other
names (`naming.py`), if the caller asks for it. The final bytes are made, each with its trust (`trust.py`):
provenance and front matter, if the caller stamps. What has to wait for the owner becomes a pending review.
Catalog and indexes follow what was written; they can be rebuilt, and so hold up nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from muniment.content.admission import is_cut
from muniment.errors import NotFound, PathEscape, PendingReview, StoreConflict, ToolError
from muniment.events import span
from muniment.kernel import commit as kernel
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, Judged, digest, joint
from muniment.kernel.decide import Layer, Policy, Rule
from muniment.kernel.land import Landed, LockedRoots
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import Recovered, temporary_of_index
from muniment.policy.platforms import require_writing
from muniment.store.catalog import View
from muniment.store.journal import CatalogFacts, LedgerJournal, gates_of
from muniment.store.ledger import (
    CommitRow,
    Run,
    changes_of,
    classify_touched_scopes,
    is_current,
    least_trust,
    of_task,
    root_key,
    source_of,
)
from muniment.store.naming import Rename, renamed, renamed_replacements, settle_names
from muniment.store.passages import Authorship
from muniment.store.review import hold
from muniment.store.state import State
from muniment.store.trust import TrustRule, authorship_at, reasons_for_review
from muniment.store.upkeep import after_recovery, follow_or_tell, tell_degraded
from muniment.store.watching import looks_of
from muniment.types import Change

Stamp = Callable[[bytes, bytes | None, CanonicalPath, Run], bytes]
"""Final bytes from (proposed bytes, bytes before or None, path, the run with the trust of these bytes)."""


NewName = Callable[[FileChange, bool], RelPath]
"""Where an entry goes whose text is replaced: from the change, and whether its new text is trusted more."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a commit is bound to.

    Attributes:
        policy: judges it.
        patience: how long to wait for locks, and whether to begin writing at all.
        trust: says how far the new bytes are trusted.
        stamp: makes the final bytes; None keeps the proposed ones.
        rename: says where a new file goes instead; None: where it was proposed.
        replaced: says where an entry goes whose text is replaced, and whether the new text is trusted more is
            the last argument; None: each stays.
        settle_names: give a new file whose name is taken another one, instead of a conflict; for
            runs that were not allowed to know what is there.
        dry_run: write nothing; what would wait for review only notes that.
        reviewed: the owner has approved exactly this.
        attended: nobody has; removals wait for the owner too.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    patience: Patience
    state: State
    run: Run
    trust: TrustRule
    stamp: Stamp | None = None
    rename: Rename | None = None
    replaced: NewName | None = None
    settle_names: bool = False
    dry_run: bool = False
    reviewed: bool = False
    attended: bool = True


@dataclass(frozen=True, slots=True)
class Commit:
    """What was committed, without indexes, and what a person should know of it.

    Attributes:
        trust: the least of the new bytes; None: nothing but removals.
        rejected: how many of the parts rested on what is no longer so.
        repeated: the task had committed before; this is what it did then.
    """

    changes: tuple[Change, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    trust: Trust | None = None
    rejected: int = 0
    repeated: bool = False


def granting(policy: Policy, verbs: Iterable[Verb], paths: Iterable[CanonicalPath]) -> Policy:
    """A policy with the terms of another one, which grants verbs on files that their owner named alone."""
    rule = Rule("named", tuple(verbs), tuple(f"/{each.text}" for each in paths))
    return replace(policy, layers=(Layer("owner", (rule,), ()),))


def commit(parts: Sequence[ChangeSet], terms: Terms) -> Commit:
    """Commit `parts` by the rules of `kernel.commit`; without any change nothing at all is done.

    Args:
        parts: each is committed whole, or rejected because what it rests on has changed; all that are not
            rejected are one commit.
        terms: what it is bound to.

    Raises:
        PathEscape: something in a change-set lies outside its root.
        Refusal, ToolError: the judge does not allow a change.
        PendingReview: the owner has to look at it first.
        StoreConflict: every part was rejected, or somebody changed a file while it was written.
        ManagedMemoryUnavailable: a root or the state cannot be locked or written. Nothing is changed, or what
            is will be taken back before anything else is done.
        DeadlineExceeded, Cancelled: before the first write.
        PlatformUnsupported: as `policy.platforms.require_writing`.

    Cost: two durable transactions; an fsync a file and directory; a look at each known directory of the
    touched scopes, and at every file of those that changed.
    """
    if not joint(parts).changes:
        return Commit()
    require_writing(terms.policy)
    if not terms.dry_run:
        terms.state.require_writable()
    work = _Work(parts, terms)
    with span("commit", task_id=terms.run.task, dry_run=terms.dry_run) as told:
        done = kernel.commit(
            work,
            rules=terms.policy,
            roots=terms.roots,
            journal=work.journal,
            gates=gates_of(terms.state, terms.policy, terms.roots),
            facts=work.facts,
            patience=terms.patience,
        )
        result = work.result(done)
        told.tell(files=len(result.changes), rejected=result.rejected, repeated=result.repeated)
    return result


class _Work:
    """One commit under way: the proposal of `kernel.commit`."""

    def __init__(self, parts: Sequence[ChangeSet], terms: Terms) -> None:
        self.parts = parts
        self.journal = LedgerJournal(terms.state, terms.roots, terms.run)
        self.facts = CatalogFacts(
            lambda scope: looks_of(terms.state).whole_view(terms.roots[scope], terms.policy)
        )
        self._terms, self._state = terms, terms.state
        self._repeats: CommitRow | None = None
        self._drafts: list[tuple[FileChange, Trust | None, Trust]] = []
        self._notes: list[str] = []
        self._origins: dict[CanonicalPath, FileChange] = {}

    def recovered(self, done: Sequence[Recovered], held: LockedRoots) -> None:
        """See `Proposal`."""
        terms = self._terms
        self._notes += after_recovery(self._state, held, terms.policy, done, terms.run.trust)

    def placed(self, held: LockedRoots) -> Sequence[ChangeSet] | None:
        """See `Proposal`: a task that has committed before ends here, unless it only asks."""
        terms = self._terms
        self._repeats = None if terms.dry_run else of_task(self._state, terms.run.task)
        if self._repeats is not None:
            return None
        views = {scope: self.facts.view(scope) for scope in held}
        parts = self.parts
        if terms.rename is not None:
            parts = [renamed(part, terms.rename, terms.policy, views) for part in parts]
        if terms.settle_names:
            parts = [settle_names(part, terms.policy, views) for part in parts]
        if terms.replaced is not None:
            parts = [self._with_new_names(part, terms.replaced, held, views) for part in parts]
        return parts

    def _with_new_names(
        self, part: ChangeSet, new_name: NewName, held: LockedRoots, views: Mapping[Scope, View]
    ) -> ChangeSet:
        """The part, with entries whose text is replaced where `Terms.replaced` says."""

        def rename(change: FileChange, _names: object) -> RelPath:
            old = self._authorship_at(change.path, change.before or b"").trust
            new = self._terms.trust(change, old).trust
            return new_name(change, not old.satisfies(new)) if new.satisfies(old) else change.path.rel

        read = replace(part, changes=tuple(_with_text(each, held) for each in part.changes))
        part, origins = renamed_replacements(read, rename, self._terms.policy, views)
        self._origins |= origins
        return part

    def _authorship_at(self, path: CanonicalPath, content: bytes) -> Authorship:
        key, found = root_key(self._state, self._terms.roots[path.scope]), digest(content)
        if not is_current(self._state, key, path.rel, found):
            raise StoreConflict((path.text,))  # Somebody changed the file of a working copy.
        source = source_of(self._state, key, path.rel, found)
        return authorship_at(self._state, key, path, content, self._terms.policy, source)

    def completed(self, change: FileChange) -> FileChange:
        """See `Proposal`: with its trust, and what the caller stamps."""
        terms, path = self._terms, change.path
        origin = self._origins.get(path, change)  # What the entry was that has got another name.
        before, held, most = origin.before, None, None
        if before is not None:
            by = self._authorship_at(origin.path, before)
            held, most = by.trust, by.most
        ruling = terms.trust(replace(change, path=origin.path, base=origin.base, before=before), held)
        if ruling.note is not None:
            self._notes.append(ruling.note)
        if change.after is not None:
            after = change.after
            if terms.stamp is not None:
                after = terms.stamp(after, before, path, replace(terms.run, trust=ruling.trust))
            change = replace(change, after=after, trust=ruling.trust)
        self._drafts.append((change, most, ruling.by or ruling.trust))
        return change

    def accepted(self, judged: Judged) -> bool:
        """See `Proposal`: what has to wait for its owner waits."""
        terms = self._terms
        found = dict.fromkeys(
            reason
            for draft, held, by in self._drafts
            for reason in reasons_for_review(
                draft, held, by, terms.policy, is_new_text=self._is_new_text(draft)
            )
        )
        reasons = tuple(found)
        if terms.reviewed:
            return not terms.dry_run
        if not terms.attended and any(draft.after is None for draft, _, _ in self._drafts):
            reasons = (*reasons, "it removes entries, and nobody was there to say yes")
        if reasons and terms.dry_run:
            self._notes += [f"would wait for review: {reason}" for reason in reasons]
        elif reasons:
            waits, policy = judged.change_set, terms.policy.digest
            review_id = hold(self._state, terms.run, waits, reasons, policy=policy, roots=terms.roots)
            raise PendingReview(review_id, reasons)
        return not terms.dry_run

    def followed(self, held: LockedRoots, landed: Landed, token: str) -> Sequence[str]:
        """See `Proposal`: catalog and indexes are up to date."""
        tell_degraded(landed)
        temporary = partial(temporary_of_index, token)
        for scope in held:
            paths = [draft.path for draft, _, _ in self._drafts]
            changed = {path.parent.rel for path in paths if path.scope == scope}
            self._notes += follow_or_tell(
                self._state, held, self.facts.view(scope), temporary, changed=changed
            )
        return self._notes

    def result(self, done: kernel.CommitOutcome | None) -> Commit:
        """What callers are told."""
        if done is None:
            assert self._repeats is not None  # noqa: S101  for the type checker: that is why
            return _told((each.change for each in self._repeats.changes), self._repeats.notes, repeated=True)
        return _told(done.changes, self._notes, rejected=done.rejected)

    def _is_new_text(self, change: FileChange) -> bool:
        """Whether a change says what did not stand there before."""
        after, before = change.after or b"", change.before
        if before is not None and is_cut(before, after):
            return False
        return not self.journal.knows(change.path, digest(after))


def _with_text(change: FileChange, held: LockedRoots) -> FileChange:
    """A change of a file with what stands there, if that is what the change rests on."""
    try:
        found = held[change.path.scope].root.read_bytes(change.path)
    except (NotFound, PathEscape, ToolError):
        return change  # The judge says so.
    return replace(change, before=found) if digest(found) == change.base else change


def _told(
    changes: Iterable[FileChange], notes: Iterable[str], *, rejected: int = 0, repeated: bool = False
) -> Commit:
    """What callers are told of what was committed."""
    every = tuple(changes)
    told, scopes = changes_of(every), classify_touched_scopes(every)
    return Commit(told, scopes, tuple(notes), least_trust(every), rejected, repeated)
