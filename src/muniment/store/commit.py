"""Commits change-sets: locked, judged, written and indexed as one.

1. Every path, claims included, is canonicalised, and the budgets are checked: an escape ends here, before any
   lock.
2. The roots that are touched are locked, in order of device and inode, and are still where they were. What an
   interrupted commit left there is taken back (`upkeep.py`). A task that has committed before ends here,
   unless it only asks.
3. New files get other names (`upkeep.py`), if the caller asks for it. The broker reads the before-state
   itself; parts that rest on what is no longer so are rejected (`judge.py`).
4. The final bytes are made, each with its trust (`trust.py`): provenance and front matter, if the caller
   stamps.
5. The final bytes are judged (`judge.py`). What has to wait for the owner becomes a pending review.
6. Deadline and cancel are checked for the last time.
7. The intent stands in the ledger; the files are written, all or none (`apply.py`); catalog and indexes
   follow, which can be rebuilt and so hold up nothing (`upkeep.py`); the ledger says that it is done.

Promise: nothing but what the judge allowed; all of it or, after recovery, none; each file whole at every
instant; once `commit` returns it is durable. A reader without the lock may see a commit half applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from muniment.errors import PendingReview, StoreConflict
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, joint
from muniment.kernel.land import lock_roots
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.policy.decide import Policy
from muniment.store.apply import Expected, Stuck, Write, apply
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.judge import Author, check_budgets, check_paths, draft, judge, look, settle
from muniment.store.ledger import (
    Change,
    Kept,
    KeptChange,
    Origin,
    abandon,
    begin,
    change_of,
    classify_touched_scopes,
    finish,
    new_token,
    of_task,
    root_key,
    temporary_of,
    temporary_of_index,
)
from muniment.store.review import hold
from muniment.store.state import State
from muniment.store.trust import TrustedDraft, TrustRule, reasons_for_review, trust_at
from muniment.store.upkeep import Rename, bring_back, follow_or_tell, recover, renamed, settle_names, view_of

Stamp = Callable[[bytes, bytes | None, CanonicalPath, Trust], bytes]
"""Final bytes from (proposed bytes, bytes before or None, path, trust)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a commit is bound to.

    Attributes:
        patience: how long to wait for locks, and whether to begin writing at all.
        trust: says how far the new bytes are trusted.
        author: says what is asked of the text.
        stamp: makes the final bytes; None keeps the proposed ones.
        rename: says where a new file goes instead; None: where it was proposed.
        settle_names: give a new file whose name is taken another one, instead of a conflict; for
            runs that were not allowed to know what is there.
        dry_run: do everything but step 7; what would wait for review only notes that.
        reviewed: the owner has approved exactly this.
        attended: nobody has; removals wait for the owner too.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    patience: Patience
    state: State
    origin: Origin
    trust: TrustRule
    author: Author = Author.MODEL
    stamp: Stamp | None = None
    rename: Rename | None = None
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


def commit(parts: Sequence[ChangeSet], terms: Terms) -> Commit:
    """Carry out the steps of the module's docstring; without any change nothing at all is done.

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

    Cost: two durable transactions; an fsync a file and directory; a look at each known directory of the
    touched scopes, and at every file of those that changed.
    """
    whole = joint(parts)
    if not whole.changes:
        return Commit()
    check_paths(whole)
    if terms.author is Author.MODEL:
        check_budgets(whole, terms.policy)
    scopes = {path.scope for path in whole.paths}
    touched = {scope: terms.roots[scope] for scope in sorted(scopes)}
    with lock_roots(touched.values(), terms.patience):
        work = _Work(terms, touched)  # Recovers, so that a task that was interrupted may try again.
        done = None if terms.dry_run else of_task(terms.state, terms.origin.task)
        return _again(done) if done is not None else work.carry_out(parts)


class _Work:
    """One commit under way, under the locks of its roots."""

    def __init__(self, terms: Terms, touched: Mapping[Scope, BoundRoot]) -> None:
        self._terms, self._touched, self._state = terms, touched, terms.state
        self._keys = {scope: root_key(self._state, root) for scope, root in touched.items()}
        self._by_key = {self._keys[scope]: root for scope, root in touched.items()}
        self._notes = list(recover(self._state, self._by_key, _now(), self._index))

    def carry_out(self, parts: Sequence[ChangeSet]) -> Commit:
        """Steps 3 to 7."""
        terms = self._terms
        views = {scope: view_of(self._state, root, terms.policy) for scope, root in self._touched.items()}
        if terms.rename is not None:
            parts = [renamed(part, terms.rename, terms.policy, views) for part in parts]
        if terms.settle_names:
            parts = [settle_names(part, terms.policy, views) for part in parts]
        standing = look(parts, terms.roots, terms.patience)
        applied, broken = settle(parts, standing)
        if not applied:
            raise StoreConflict(broken)
        whole = joint([parts[number] for number in applied])
        items = [self._trusted(item) for item in draft(whole, standing, terms.roots)]
        drafts = [item.draft for item in items]
        judge(drafts, terms.policy, views, terms.author)
        self._ask_owner(items, whole)
        terms.patience.check()
        if not terms.dry_run:
            self._write(items, views)
        changes = tuple(change_of(item) for item in drafts)
        trusts = [item.trust for item in items if item.trust is not None]
        return Commit(
            changes,
            classify_touched_scopes(drafts),
            tuple(self._notes),
            trust=trusts[0].capped(*trusts) if trusts else None,
            rejected=len(parts) - len(applied),
        )

    def _index(self) -> Iterator[str]:
        """Bring the indexes up to date after a recovery, whatever becomes of this commit."""
        for root in self._touched.values():
            view = view_of(self._state, root, self._terms.policy)
            yield from follow_or_tell(self._state, root, view, partial(temporary_of_index, new_token()))

    def _trusted(self, item: FileChange) -> TrustedDraft:
        """Step 4, for one file."""
        terms, scope = self._terms, item.path.scope
        held = None
        if item.before is not None:
            held = trust_at(self._state, self._keys[scope], item.path, item.before, terms.policy)
        ruling = terms.trust(item, held)
        trust = ruling.trust
        if ruling.note is not None:
            self._notes.append(ruling.note)
        by = terms.origin.trust if terms.author in {Author.RESTORE, Author.ERASE} else trust
        if item.after is None:
            return TrustedDraft(item, held, None, by)
        if terms.stamp is not None:
            item = replace(item, after=terms.stamp(item.after, item.before, item.path, trust))
        return TrustedDraft(item, held, trust, by)

    def _ask_owner(self, items: Sequence[TrustedDraft], proposed: ChangeSet) -> None:
        """Step 5, second half."""
        terms = self._terms
        reasons = reasons_for_review(
            items, terms.policy, is_new_text=terms.author in {Author.MODEL, Author.CODE}
        )
        if terms.reviewed:
            return
        if not terms.attended and any(item.trust is None for item in items):
            reasons = (*reasons, "it removes entries, and nobody was there to say yes")
        if reasons and terms.dry_run:
            self._notes += [f"would wait for review: {reason}" for reason in reasons]
        elif reasons:
            trusts = {item.draft.path.text: item.trust for item in items}
            held = replace(proposed, changes=tuple(replace(item.draft, before=None) for item in items))
            review_id = hold(
                self._state,
                terms.origin,
                [held],
                trusts,
                reasons,
                policy=terms.policy.digest,
                roots=terms.roots,
                author=terms.author.value,
            )
            raise PendingReview(review_id, reasons)

    def _write(self, items: Sequence[TrustedDraft], views: Mapping[Scope, View]) -> None:
        """Step 7."""
        state, origin, token = self._state, self._terms.origin, new_token()
        kept = [self._kept(number, item, views) for number, item in enumerate(items)]
        number = begin(state, origin, token, kept)
        try:
            apply([_write(item.draft, self._touched) for item in items], partial(temporary_of, token))
        except Stuck:
            raise  # The intent stays: recovery will try again.
        except BaseException:
            abandon(state, number)
            raise
        try:
            self._follow(items, views, token)
            finish(state, number, origin, kept, self._notes, _now())
        except BaseException:
            # What is not done may not be seen; the intent stays for what cannot be taken back now. But
            # a signal may also come just after it was done.
            if of_task(state, origin.task) is None:
                bring_back(kept, token, self._by_key)
            raise

    def _kept(self, number: int, item: TrustedDraft, views: Mapping[Scope, View]) -> KeptChange:
        path, before, after = item.draft.path, item.draft.before, item.draft.after
        folders = path.rel.split("/")[:-1]
        above = [RelPath("/".join(folders[: depth + 1])) for depth in range(len(folders))]
        made = tuple(each for each in above if views[path.scope].names(each) is None)
        key = self._keys[path.scope]
        return KeptChange(number, key, path.scope, path.rel, before, after, made, item.trust)

    def _follow(self, items: Sequence[TrustedDraft], views: Mapping[Scope, View], token: str) -> None:
        """Bring catalog and indexes up to date."""
        paths = [item.draft.path for item in items]
        temporary = partial(temporary_of_index, token)
        for scope, view in views.items():
            changed = {path.rel.rpartition("/")[0] for path in paths if path.scope == scope}
            root = self._touched[scope]
            self._notes += follow_or_tell(self._state, root, view, temporary, changed=changed)


def _write(item: FileChange, roots: Mapping[Scope, BoundRoot]) -> Write:
    before = Expected.ABSENT if item.before is None else item.before
    return Write(roots[item.path.scope], item.path.rel, before, item.after)


def _again(done: Kept) -> Commit:
    """What a task did when it committed."""
    changes = tuple(item.change for item in done.changes)
    scopes = tuple(sorted({item.scope for item in done.changes}))
    return Commit(changes, scopes, done.notes, trust=done.trust, repeated=True)


def _now() -> str:
    return timestamp(datetime.now(UTC))
