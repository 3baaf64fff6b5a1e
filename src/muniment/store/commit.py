"""Commit change sets: the kernel's transaction, with the names, trust, reviews and indexes of a store.

`commit` reads from top to bottom: roll back interrupted commits, name files (`naming.py`), read the current
state, create the final bytes with their trust (`trust.py`) and front matter, judge them, queue the changes
that the owner must approve, write. Catalog and indexes come last: they can be rebuilt, so they do not stop a
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from muniment.kernel.write import temporary_of_index
from muniment.policy.platforms import require_writing
from muniment.store.journal import CatalogFacts, LedgerJournal, gates_of
from muniment.store.ledger import (
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
"""Returns the path of an entry whose text is replaced, given the change and whether the new text is trusted
more.
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of a commit.

    Attributes:
        policy: judges the commit.
        patience: how long to wait for locks, and whether to begin writing.
        trust: returns the trust of the new bytes.
        stamp: returns the final bytes; None: use the proposed ones.
        rename: returns another path for a new file; None: use the proposed one.
        replaced: returns the path for an entry whose text is replaced; its last argument is whether the new
            text is trusted more. None: each entry stays.
        settle_names: if the name of a new file exists, use another one instead of a conflict; for runs that
            could not know the existing names.
        dry_run: write nothing; a change that would wait for review only adds a note.
        reviewed: the owner has approved exactly this commit.
        attended: a user is present. If not, removals wait for the owner also.
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
    """A committed change set, without indexes, and the notes about it for a user.

    Attributes:
        trust: the lowest trust of the new bytes; None: only removals.
        rejected: number of parts whose assumptions are outdated.
        repeated: the task had committed before; this is the earlier result.
    """

    changes: tuple[Change, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    trust: Trust | None = None
    rejected: int = 0
    repeated: bool = False


def granting(policy: Policy, verbs: Iterable[Verb], paths: Iterable[CanonicalPath]) -> Policy:
    """Return a copy of a policy that grants verbs only on the files that their owner listed."""
    rule = Rule("named", tuple(verbs), tuple(f"/{each.text}" for each in paths))
    return replace(policy, layers=(Layer("owner", (rule,), ()),))


def commit(parts: Sequence[ChangeSet], terms: Terms) -> Commit:
    """Commit `parts` in one transaction of the kernel; do nothing if they contain no change.

    Args:
        parts: each is committed completely or dropped; the remaining ones form one commit.
        terms: the options.

    Raises:
        PathEscape: a path in a change set is outside its root.
        Refusal, ToolError: the judge does not allow a change.
        PendingReview: the owner must approve the change first.
        StoreConflict: every part was dropped, or another process changed a file during the write.
        ManagedMemoryUnavailable: a root or the state cannot be locked or written. Nothing is changed, or the
            next command rolls the change back first.
        DeadlineExceeded, Cancelled: before the first write.
        PlatformUnsupported: as `policy.platforms.require_writing`.

    Cost: two durable transactions; one fsync for each file and directory; one stat for each known directory
        of
    the touched scopes, and for every file of changed directories.
    """
    if not joint(parts).changes:
        return Commit()
    require_writing(terms.policy)
    if not terms.dry_run:
        terms.state.require_writable()
    state, notes = terms.state, list[str]()
    journal = LedgerJournal(state, terms.roots, terms.run)
    facts = CatalogFacts(lambda scope: looks_of(state).whole_view(terms.roots[scope], terms.policy))
    with (
        span("commit", task_id=terms.run.task, dry_run=terms.dry_run) as trace,
        kernel.transaction(
            parts,
            policy=terms.policy,
            roots=terms.roots,
            journal=journal,
            gates=gates_of(state, terms.policy, terms.roots),
            facts=facts,
            patience=terms.patience,
        ) as tx,
    ):
        with tx.recover() as recovered:
            if recovered:
                notes += after_recovery(state, tx.locked, terms.policy, recovered, terms.run.trust)
        earlier = None if terms.dry_run else of_task(state, terms.run.task)
        if earlier is not None:
            result = _result((each.change for each in earlier.changes), earlier.notes, repeated=True)
        else:
            named, origins = _with_final_names(parts, terms, facts, tx.locked)
            current, rejected = tx.resolve(named)
            drafts = [_draft(each, origins.get(each.path, each), terms) for each in current.changes]
            notes += [each.note for each in drafts if each.note is not None]
            judged = tx.judge(replace(current, changes=tuple(each.change for each in drafts)))
            notes += _hold_for_review(judged, drafts, terms, journal)
            if not terms.dry_run:
                with tx.write(judged) as writing:
                    notes += _update_derived(writing.land(), writing.token, drafts, terms, facts, tx.locked)
                    writing.finish(notes)
            result = _result(judged.change_set.changes, notes, rejected=rejected)
        trace.tell(files=len(result.changes), rejected=result.rejected, repeated=result.repeated)
    return result


def _with_final_names(
    parts: Sequence[ChangeSet], terms: Terms, facts: CatalogFacts, locked: LockedRoots
) -> tuple[Sequence[ChangeSet], Mapping[CanonicalPath, FileChange]]:
    """Return the parts with final names, and by new path the original change of each renamed entry."""
    origins: dict[CanonicalPath, FileChange] = {}
    views = {scope: facts.view(scope) for scope in locked}
    if terms.rename is not None:
        parts = [renamed(part, terms.rename, terms.policy, views) for part in parts]
    if terms.settle_names:
        parts = [settle_names(part, terms.policy, views) for part in parts]
    if terms.replaced is not None:
        new_name = partial(_name_of_replaced, terms.replaced, terms)
        found = [
            renamed_replacements(_with_text(part, locked), new_name, terms.policy, views) for part in parts
        ]
        parts = [part for part, _ in found]
        for _, renamed_from in found:
            origins |= renamed_from
    return parts, origins


def _with_text(part: ChangeSet, locked: LockedRoots) -> ChangeSet:
    """Return the part with the current text of each file that still has the base of its change."""
    changes = []
    for change in part.changes:
        try:
            found = locked[change.path.scope].root.read_bytes(change.path)
        except (NotFound, PathEscape, ToolError):
            changes.append(change)  # The judge reports it.
        else:
            changes.append(replace(change, before=found) if digest(found) == change.base else change)
    return replace(part, changes=tuple(changes))


def _name_of_replaced(new_name: NewName, terms: Terms, change: FileChange, _names: object) -> RelPath:
    """Return the path for a replaced entry; it does not move if the new text is trusted less."""
    old = _authorship(change.path, change.before or b"", terms).trust
    new = terms.trust(change, old).trust
    return new_name(change, not old.satisfies(new)) if new.satisfies(old) else change.path.rel


def _authorship(path: CanonicalPath, content: bytes, terms: Terms) -> Authorship:
    key, found = root_key(terms.state, terms.roots[path.scope]), digest(content)
    if not is_current(terms.state, key, path.rel, found):
        raise StoreConflict((path.text,))  # Another program changed a file of the working copy.
    source = source_of(terms.state, key, path.rel, found)
    return authorship_at(terms.state, key, path, content, terms.policy, source)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A change with its final bytes.

    Attributes:
        trust_before: the most trusted author of the text before; None: the file is new.
        author: who the new text comes from.
    """

    change: FileChange
    trust_before: Trust | None
    author: Trust
    note: str | None


def _draft(change: FileChange, origin: FileChange, terms: Terms) -> _Draft:
    """Return the change with the trust and the stamp of its bytes; `origin` is the file that it replaces."""
    path, before = origin.path, origin.before
    authorship = None if before is None else _authorship(path, before, terms)
    replaced = replace(change, path=path, base=origin.base, before=before)
    ruling = terms.trust(replaced, None if authorship is None else authorship.trust)
    if change.after is not None:
        after = change.after
        if terms.stamp is not None:
            after = terms.stamp(after, before, change.path, replace(terms.run, trust=ruling.trust))
        change = replace(change, after=after, trust=ruling.trust)
    most = None if authorship is None else authorship.most
    return _Draft(change, most, ruling.by or ruling.trust, ruling.note)


def _hold_for_review(
    judged: Judged, drafts: Sequence[_Draft], terms: Terms, journal: LedgerJournal
) -> Sequence[str]:
    """Raise `PendingReview` if the owner must approve; for a dry run, return notes about that instead."""
    found = dict.fromkeys(  # This may deny, even if the owner approved.
        reason
        for each in drafts
        for reason in reasons_for_review(
            each.change,
            each.trust_before,
            each.author,
            terms.policy,
            is_new_text=_is_new_text(each.change, journal),
        )
    )
    reasons = tuple(found)
    if terms.reviewed:
        return ()
    if not terms.attended and any(each.change.after is None for each in drafts):
        reasons = (*reasons, "it removes entries, and no user was present to confirm that")
    if reasons and not terms.dry_run:
        waiting, policy = judged.change_set, terms.policy.digest
        review_id = hold(terms.state, terms.run, waiting, reasons, policy=policy, roots=terms.roots)
        raise PendingReview(review_id, reasons)
    return [f"would wait for review: {reason}" for reason in reasons]


def _is_new_text(change: FileChange, journal: LedgerJournal) -> bool:
    """Return whether a change adds text that was not there before."""
    after, before = change.after or b"", change.before
    if before is not None and is_cut(before, after):
        return False
    return not journal.knows(change.path, digest(after))


def _update_derived(
    landed: Landed,
    token: str,
    drafts: Sequence[_Draft],
    terms: Terms,
    facts: CatalogFacts,
    locked: LockedRoots,
) -> Iterator[str]:
    """Update catalog and indexes after a write; yield notes for a user."""
    tell_degraded(landed)
    temporary = partial(temporary_of_index, token)
    for scope in locked:
        changed = {each.change.path.parent.rel for each in drafts if each.change.path.scope == scope}
        yield from follow_or_tell(terms.state, locked, facts.view(scope), temporary, changed=changed)


def _result(
    changes: Iterable[FileChange], notes: Iterable[str], *, rejected: int = 0, repeated: bool = False
) -> Commit:
    every = tuple(changes)
    told, scopes = changes_of(every), classify_touched_scopes(every)
    return Commit(told, scopes, tuple(notes), least_trust(every), rejected, repeated)
