"""Commit change sets: the kernel's transaction, with the names, trust, reviews and indexes of a store.

`commit` reads from top to bottom:

- roll back commits that were interrupted,
- choose the final names of files (`naming.py`) and read their current state,
- create the final bytes: their trust (`trust.py`) and front matter,
- judge the changes, and queue those that the owner must approve,
- write the files.

Catalog and indexes are updated last. They can be rebuilt, so a problem with them does not stop a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from muniment.content.admission import is_text_with_lines_removed
from muniment.errors import NotFound, PathEscape, PendingReview, StoreConflict, ToolError
from muniment.events import span, track_progress
from muniment.kernel import commit as kernel
from muniment.kernel.apply import ApplyResult, LockedRoots
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, FileChange, JudgedChanges, digest, merge
from muniment.kernel.decide import Layer, Policy, Rule
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import get_index_temporary_name
from muniment.policy.platforms import require_writing
from muniment.store.handles import find_renames
from muniment.store.index_upkeep import log_degraded, update_after_recovery, update_index
from muniment.store.journal import CatalogRootInfo, LedgerJournal, build_gates
from muniment.store.ledger import (
    Run,
    build_changes,
    classify_touched_scopes,
    find_commit,
    find_least_trust,
    find_source,
    get_root_key,
    is_current,
)
from muniment.store.naming import Rename, rename_new_files, rename_replaced_entries, resolve_name_conflicts
from muniment.store.passages import TextTrust
from muniment.store.review import queue_for_review
from muniment.store.state import State
from muniment.store.trust import TrustRule, compute_text_trust, find_review_reasons
from muniment.store.watching import get_watcher
from muniment.types import Change

Stamp = Callable[[bytes, bytes | None, CanonicalPath, Run], bytes]
"""Returns the final bytes of a file.

The arguments are: the proposed bytes; the bytes before, or None; the path; the run, with the trust of the
proposed bytes.
"""


ChooseName = Callable[[FileChange, bool], RelPath]
"""Returns the path for an entry whose text is replaced.

The arguments are: the change; whether the new text has a higher trust than the old one.
"""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """The options of a commit.

    Attributes:
        policy: judges the changes.
        roots: the bound roots, by scope.
        deadline: ends the wait for locks, and prevents a write that would begin too late.
        state: has ledger and catalog.
        run: the origin of the changes.
        trust: returns the trust of the new bytes of a change.
        stamp: returns the final bytes; None: use the proposed ones.
        rename: returns another path for a new file; None: use the proposed one.
        rename_replaced: returns the path for an entry whose text is replaced; None: each entry stays at its
            path.
        should_resolve_names: if the name of a new file exists, use another name instead of raising a
            conflict; for runs that could not know the existing names.
        dry_run: write nothing. A change that would wait for a review only adds a note.
        is_reviewed: the owner has approved exactly this commit.
        is_attended: a user is present. If no user is present, removals must also wait for the owner.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    deadline: Deadline
    state: State
    run: Run
    trust: TrustRule
    stamp: Stamp | None = None
    rename: Rename | None = None
    rename_replaced: ChooseName | None = None
    should_resolve_names: bool = False
    dry_run: bool = False
    is_reviewed: bool = False
    is_attended: bool = True


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: its changes, without index files, and notes for the user.

    Attributes:
        changes: one for each changed file.
        touched_scopes: the scopes of the changes, sorted.
        notes: texts for the user.
        trust: the lowest trust of the new bytes; None if files were only removed.
        rejected: number of parts that were dropped because their files had changed meanwhile.
        is_repeated: the task had committed before; this is the earlier result.
    """

    changes: tuple[Change, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    trust: Trust | None = None
    rejected: int = 0
    is_repeated: bool = False


def grant_listed_files(policy: Policy, verbs: Iterable[Verb], paths: Iterable[CanonicalPath]) -> Policy:
    """Return a copy of `policy` in which the owner grants `verbs` on exactly the files `paths`."""
    rule = Rule("named", tuple(verbs), tuple(f"/{each.text}" for each in paths))
    return replace(policy, layers=(Layer("owner", (rule,), ()),))


def commit(parts: Sequence[ChangeSet], options: CommitOptions) -> CommitResult:
    """Commit `parts` in one transaction of the kernel; do nothing if they contain no change.

    Args:
        parts: change sets. Each is committed completely, or dropped if a file that it depends on has changed
            meanwhile. The remaining parts form one commit.
        options: policy, roots, origin and rules of the commit.

    Raises:
        PathEscape: a path in a change set is outside its root.
        Refusal, ToolError: the judge does not allow a change.
        PendingReview: the owner must approve the change first.
        StoreConflict: every part was dropped, or another process changed a file during the write.
        ManagedMemoryUnavailable: a root or the state cannot be locked or written. Nothing is changed, or the
            next command rolls the change back first.
        DeadlineExceeded, Cancelled: before the first write.
        PlatformUnsupported: as `policy.platforms.require_writing`.

    Cost: two durable transactions of the ledger; one fsync for each file and directory; one stat for each
    known directory of the touched scopes, and for every file of changed directories.
    """
    if not merge(parts).changes:
        return CommitResult()
    require_writing(options.policy)
    if not options.dry_run:
        options.state.require_writable()
    state, notes = options.state, list[str]()
    journal = LedgerJournal(state, options.roots, options.run)
    facts = CatalogRootInfo(
        lambda scope: get_watcher(state).open_current_view(options.roots[scope], options.policy)
    )
    with (
        span("commit", task_id=options.run.task, dry_run=options.dry_run) as trace,
        _open_transaction(parts, options, journal, facts) as tx,
    ):
        with tx.recover() as recovered:
            if recovered:
                notes += update_after_recovery(state, tx.locked, options.policy, recovered, options.run.trust)
        earlier = None if options.dry_run else find_commit(state, options.run.task)
        if earlier is not None:
            result = _build_result((each.change for each in earlier.changes), earlier.notes, repeated=True)
        else:
            named_parts, original_changes = _assign_final_names(parts, options, facts, tx.locked)
            current, rejected = tx.resolve(named_parts)
            drafts = [
                _create_draft(each, original_changes.get(each.path, each), options)
                for each in current.changes
            ]
            notes += [each.note for each in drafts if each.note is not None]
            judged = tx.judge(replace(current, changes=tuple(each.change for each in drafts)))
            notes += _require_review(judged, drafts, options, journal)
            if not options.dry_run:
                with tx.write(judged) as writing:
                    notes += _update_derived(
                        writing.apply(), writing.token, drafts, options, facts, tx.locked
                    )
                    writing.finish(notes)
            result = _build_result(judged.change_set.changes, notes, rejected=rejected)
        trace.set_attributes(files=len(result.changes), rejected=result.rejected, repeated=result.is_repeated)
    return result


@contextmanager
def _open_transaction(
    parts: Sequence[ChangeSet], options: CommitOptions, journal: LedgerJournal, root_info: CatalogRootInfo
) -> Iterator[kernel.CommitTransaction]:
    with (
        track_progress("checking the change" if options.dry_run else "saving"),
        kernel.transaction(
            parts,
            policy=options.policy,
            roots=options.roots,
            journal=journal,
            gates=build_gates(options.state, options.policy, options.roots),
            root_info=root_info,
            deadline=options.deadline,
        ) as tx,
    ):
        yield tx


def _assign_final_names(
    parts: Sequence[ChangeSet], options: CommitOptions, facts: CatalogRootInfo, locked: LockedRoots
) -> tuple[Sequence[ChangeSet], Mapping[CanonicalPath, FileChange]]:
    """Return the parts with final names, and the original changes of the entries that were renamed.

    Returns:
        The renamed parts; the original changes by new path.
    """
    origins: dict[CanonicalPath, FileChange] = {}
    views = {scope: facts.view(scope) for scope in locked}
    if options.rename is not None:
        parts = [rename_new_files(part, options.rename, options.policy, views) for part in parts]
    if options.should_resolve_names:
        parts = [resolve_name_conflicts(part, options.policy, views) for part in parts]
    if options.rename_replaced is not None:
        new_name = partial(_choose_replaced_name, options.rename_replaced, options)
        found = [
            rename_replaced_entries(_read_current_text(part, locked), new_name, options.policy, views)
            for part in parts
        ]
        parts = [part for part, _ in found]
        for _, renamed_from in found:
            origins |= renamed_from
    return parts, origins


def _read_current_text(part: ChangeSet, locked: LockedRoots) -> ChangeSet:
    """Return `part` with the current bytes of each file that has not changed since the change was proposed.

    Args:
        part: the proposed changes.
        locked: the locked roots.
    """
    changes = []
    for change in part.changes:
        try:
            found = locked[change.path.scope].root.read_bytes(change.path)
        except (NotFound, PathEscape, ToolError):
            changes.append(change)  # The judge reports it.
        else:
            changes.append(replace(change, before=found) if digest(found) == change.base else change)
    return replace(part, changes=tuple(changes))


def _choose_replaced_name(
    new_name: ChooseName, options: CommitOptions, change: FileChange, _names: object
) -> RelPath:
    """Return the path of an entry whose text is replaced.

    Args:
        new_name: chooses the new path.
        options: options of the commit.
        change: the change, with the bytes before and after.
    """
    old = _read_text_trust(change.path, change.before or b"", options).trust
    new = options.trust(change, old).trust
    return new_name(change, not old.satisfies(new))


def _read_text_trust(path: CanonicalPath, content: bytes, options: CommitOptions) -> TextTrust:
    key, found = get_root_key(options.state, options.roots[path.scope]), digest(content)
    if not is_current(options.state, key, path.rel, found):
        raise StoreConflict((path.text,))  # Another program changed a file of the working copy.
    source = find_source(options.state, key, path.rel, found)
    return compute_text_trust(options.state, key, path, content, options.policy, source)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A change with its final bytes.

    Attributes:
        change: the change.
        trust_before: the highest trust of the sentences of the text before; None if the file is new.
        author: the trust of the author of the new text.
        note: text for the user, or None.
    """

    change: FileChange
    trust_before: Trust | None
    author: Trust
    note: str | None


def _create_draft(change: FileChange, origin: FileChange, options: CommitOptions) -> _Draft:
    """Return `change` with the trust and the final bytes of its file.

    Args:
        change: the change, with the final name of the file.
        origin: the change before the entry was renamed, with the path and the bytes that it replaces.
        options: options of the commit.
    """
    path, before = origin.path, origin.before
    authorship = None if before is None else _read_text_trust(path, before, options)
    replaced = replace(change, path=path, base=origin.base, before=before)
    decision = options.trust(replaced, None if authorship is None else authorship.trust)
    if change.after is not None:
        after = change.after
        if options.stamp is not None:
            after = options.stamp(after, before, change.path, replace(options.run, trust=decision.trust))
        change = replace(change, after=after, trust=decision.trust)
    highest_trust = None if authorship is None else authorship.highest_trust
    return _Draft(change, highest_trust, decision.author_trust or decision.trust, decision.note)


def _require_review(
    judged: JudgedChanges, drafts: Sequence[_Draft], options: CommitOptions, journal: LedgerJournal
) -> Sequence[str]:
    """Queue the changes for review, and raise `PendingReview`, if the owner must approve them.

    Args:
        judged: the changes, as the judge allowed them.
        drafts: the same changes with trust and author.
        options: options of the commit.
        journal: knows which texts existed before.

    Returns:
        Notes for the user; for a dry run, these contain the reasons for a review, and nothing is raised.

    Raises:
        PendingReview: the changes are queued and wait for the owner.
        Refused: the policy rejects text of trust `external`.
    """
    found = dict.fromkeys(  # This may deny, even if the owner approved.
        reason
        for each in drafts
        for reason in find_review_reasons(
            each.change,
            each.trust_before,
            each.author,
            options.policy,
            is_new_text=_is_new_text(each.change, journal),
        )
    )
    reasons = tuple(found)
    if options.is_reviewed:
        return ()
    renamed = set(find_renames(each.change for each in drafts).values())
    if not options.is_attended and any(
        each.change.after is None and each.change.path not in renamed for each in drafts
    ):
        reasons = (*reasons, "it removes entries, and no user was present to confirm that")
    if reasons and not options.dry_run:
        pending_changes, policy = judged.change_set, options.policy.digest
        review_id = queue_for_review(
            options.state, options.run, pending_changes, reasons, policy=policy, roots=options.roots
        )
        raise PendingReview(review_id, reasons)
    return [f"would wait for review: {reason}" for reason in reasons]


def _is_new_text(change: FileChange, journal: LedgerJournal) -> bool:
    """Return whether a change adds text.

    False if the change only removes lines, or restores an earlier version of the file.
    """
    after, before = change.after or b"", change.before
    if before is not None and is_text_with_lines_removed(before, after):
        return False
    return not journal.is_known(change.path, digest(after))


def _update_derived(
    landed: ApplyResult,
    token: str,
    drafts: Sequence[_Draft],
    options: CommitOptions,
    facts: CatalogRootInfo,
    locked: LockedRoots,
) -> Iterator[str]:
    """Update catalog and indexes after the files were written; yield notes for the user.

    Args:
        landed: the result of the write.
        token: source of the temporary file names of the commit.
        drafts: the committed changes.
        options: options of the commit.
        facts: opens the catalog views.
        locked: the locked roots.
    """
    log_degraded(landed)
    temporary = partial(get_index_temporary_name, token)
    renames = find_renames(each.change for each in drafts)
    for scope in locked:
        changed = {each.change.path.parent.rel for each in drafts if each.change.path.scope == scope}
        yield from update_index(
            options.state, locked, facts.view(scope), temporary, changed=changed, renames=renames
        )


def _build_result(
    changes: Iterable[FileChange], notes: Iterable[str], *, rejected: int = 0, repeated: bool = False
) -> CommitResult:
    all_changes = tuple(changes)
    reported, scopes = build_changes(all_changes), classify_touched_scopes(all_changes)
    return CommitResult(reported, scopes, tuple(notes), find_least_trust(all_changes), rejected, repeated)
