"""Dream: tidies the memory. Removes duplicates and expired entries, and counts the other findings.

1. Code scans every entry of each scope.
2. Code removes expired entries and exact duplicates. Entries that have ended by their own text stay; the
   result lists them, so that a user may remove them.
3. A language model, if configured, sees almost equal entries, one group of one trust at a time. It may choose
   one entry to replace others, unchanged or with a text composed of their words (`agent/questions.py`). It
   has no tools and sees no path, so no confined worker is needed. An invalid response changes nothing in its
   group; without a response the whole dream ends.
4. All expired entries are removed. Of the other entries of a scope at most `max_scope_share` change, or one
   step if that is more. The rest is left for the next dream.
5. One commit contains all steps. Each step has preconditions on all its entries: it is rejected if one of
   them changed in the meantime, and an entry is removed only if its replacement exists. A dry run writes
   nothing.

Remembers may commit in the meantime. `undo` restores the tree from before the dream. After a failure of any
kind, nothing is changed.

S1 A step is a part of the commit: it has a precondition on every entry that it depends on, and two steps
   never change the same entry.
S2 The number of entries written or removed in a scope is at most its share (at least one step, in which one
   entry replaces another). A model changes at most as much as a run may write. Expired entries do not count,
   neither in the share nor in the number of which it is computed.
S3 A merge by a model is accepted only if the text, or the entry that stays, consists of whole units of the
   merged entries, with every negation and number (`content.provenance`, P4). Entries of agents may be
   restated in another order, but with all of their words: another day or name is another fact. The text must
   pass the gates, and all entries must be removable. The model does not see external entries, nor entries
   that are too long for a response.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Final

from muniment.agent.model import Model, ModelError
from muniment.agent.questions import Asker, Merge
from muniment.cancelling import Cancel
from muniment.content.admission import check_entry, own
from muniment.content.entry import MAX_DESCRIPTION_CHARS, completed, parse, shortened
from muniment.content.gates import encode, one_line
from muniment.content.provenance import is_made_of
from muniment.content.titles import title_of
from muniment.content.words import STOP_WORDS, features
from muniment.errors import MunimentError, StoreConflict, ToolError
from muniment.events import span
from muniment.kernel.change import ChangeSet, Claim, FileChange
from muniment.kernel.decide import Policy
from muniment.kernel.names import Scope, Trust
from muniment.operations.findings import Findings, Same
from muniment.operations.job import Job, check_retry, emit_end, own_cancel, status_of
from muniment.operations.place import Holding, Place
from muniment.operations.removals import check_preview, expired_by, preview_digest, topics_of
from muniment.store.audit import timestamp
from muniment.store.commit import Commit, commit
from muniment.store.erase import is_forgotten
from muniment.store.ledger import CommitRow, of_task
from muniment.store.trust import Ruling, entry_id, is_risky, stamp
from muniment.types import Counts, DreamRequest, DreamResult

KIND: Final = "dream"


class _DreamJob(Job):
    """The state of one request over its attempts, and the findings of the last attempt.

    Attributes:
        files: number of files that a model's merges may still change.
        bytes: number of bytes that they may still write.
    """

    kind = KIND

    def __init__(self, request: DreamRequest, place: Place, model: Model, cancel: Cancel) -> None:
        super().__init__(place, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request = request
        self.files = self.bytes = 0

    def result(self, counts: Counts, gone: Collection[str] = (), over: Collection[str] = ()) -> DreamResult:
        """Return the result of a task that removed the entries `gone`, of which `over` had expired."""
        merged = tuple(sorted(set(gone).difference(over)))
        return DreamResult(
            **self.members(),
            status="preview" if self.is_dry else "completed",
            touched_topics=(),
            counts=counts,
            rejected=counts.rejected,
            deduped_entries=len(merged),
            deduped_paths=merged,
            expired_paths=tuple(sorted(over)),
        )

    def trust_of(self, draft: FileChange, held: Trust | None) -> Ruling:
        """Return the trust of merged text: that of its entries, since `step_of_merge` checks its words."""
        asked = self.trust
        return Ruling(asked if draft.after is None or held is None else asked.capped(held))


def dream(request: DreamRequest, place: Place, model: Model, *, cancel: Cancel | None = None) -> DreamResult:
    """Carry out one request; errors are returned in the result's `error`, never raised.

    Args:
        request: the scope, and whether it is a preview.
        place: the policy, roots and state; the caller closes them.
        model: may merge similar entries; the embedded rules only count them.
        cancel: cancels the task; a commit that has begun to write is completed.

    Cost: about half a second for a thousand entries, without the time of the model.
    """
    with own_cancel(cancel) as cancelling, span("task", kind=KIND) as task_span:
        job = _DreamJob(request, place, model, cancelling)
        try:
            result = _dream(job)
        except (MunimentError, ModelError) as problem:
            error = job.record_failure(problem)
            result = replace(job.result(Counts()), status=status_of(error), error=error)
        fields = {"turns": result.turns, "seconds": round(result.seconds, 3), **asdict(result.counts)}
        emit_end(KIND, result, task_span, **fields)
    return result


def _dream(task: _DreamJob) -> DreamResult:
    """Run steps 1 to 5; retry if another process wrote during the commit."""
    earlier = task.find_earlier(None)  # All dream requests have the same content.
    if earlier is not None:
        return _repeated(task, earlier)
    scopes = task.place.chosen(task.request.scope)
    task.begin(task.place.policy.limits)
    try:
        return _attempt(task, scopes)
    except StoreConflict as conflict:
        check_retry(task.place.policy, KIND, task.id, conflict)
    return _attempt(task, scopes)


def _repeated(task: _DreamJob, done: CommitRow) -> DreamResult:
    """Return the result of a task that has committed before, as far as the ledger knows it."""
    known = done.known
    gone = {change.path for change in known if change.kind == "delete"}
    over = expired_by(task.place, done)
    counts = Counts(merged=len(gone - over), removed_expired=len(over), rewritten=len(known) - len(gone))
    task.notes = list(done.notes)
    return replace(
        task.result(counts, gone, over),
        summary=f"already done by this task: {_told(counts)}",
        repeated=True,
        touched_topics=topics_of(done.changes),
        touched_scopes=done.touched_scopes,
    )


def _attempt(task: _DreamJob, scopes: Sequence[Scope]) -> DreamResult:
    """Run steps 1 to 5 once."""
    task.notes, limits = [], task.place.policy.limits
    task.files, task.bytes = limits.files_written, limits.write_bytes
    now = timestamp()
    found = [Findings(task, scope, now) for scope in scopes]
    steps = [step for each in found for step in steps_by_code(each)]
    if not task.is_by_rules:
        for each in found:
            steps += _steps_by_model(task, each)
    named = preview_digest(task.place, KIND, steps)
    check_preview(task.request.digest, named, is_dry=task.is_dry)
    # The time of the scan: entries that had expired by then are reported as expired.
    terms = replace(task.terms(task.trust_of), run=replace(task.run(), at=now), stamp=stamp)
    done = commit(steps, replace(terms, attended=task.request.attended))
    if (earlier := task.find_quicker(done)) is not None:
        return _repeated(task, earlier)
    task.notes += done.notes
    return replace(_result(task, found, done), digest=named if task.is_dry else None)


def _steps_by_model(task: _DreamJob, found: Findings) -> Iterator[ChangeSet]:
    """Run step 3 for one scope."""
    asker = Asker(task.model, task.budget)
    not_asked = 0
    for group in found.questions():
        if task.budget.turns_left == 0:
            not_asked += len(group)
            continue
        try:
            merges = asker.which_to_merge([each.entry.body for each in group])
        except ModelError as problem:
            if not problem.has_answered:
                raise
            task.notes.append(
                f"{len(group)} similar entries stay unchanged: {own(str(problem), 'no response')}"
            )
            continue
        for merge in merges:
            step = step_of_merge(merge, group, task.place.policy)
            if step is None or is_forgotten(task.place.state, merge.text):
                task.notes.append(
                    f"rejected a text of {task.model.name} for {len(merge.drop) + 1} entries: it states "
                    "more or less than they do or ends sooner, a gate rejects it, or it was erased"
                )
            elif _is_within(task, step) and found.room.take_whole(len(step.changes)):
                task.files -= len(step.changes)
                task.bytes -= _bytes(step)
                yield step
    if not_asked:
        task.notes.append(f"{not_asked} similar entries of {found.scope} were not compared: no turns left")


def _is_within(task: _DreamJob, step: ChangeSet) -> bool:
    """Return whether a model may still change as much as `step` does."""
    size = len(step.changes)
    if size <= task.files and _bytes(step) <= task.bytes:
        return True
    task.notes.append(f"a merge of {size} entries exceeds what one run may still write")
    return False


def _bytes(step: ChangeSet) -> int:
    return sum(item.size for item in step.changes)


def _result(task: _DreamJob, found: Sequence[Findings], done: Commit) -> DreamResult:
    """Return the result of a dream, read from its commit."""
    gone = {change.path for change in done.changes if change.kind == "delete"}
    over = {holding.path.text for each in found for holding in each.expired} & gone
    groups = [
        tuple(path for path in _paths(group) if path not in gone) for each in found for group in each.alike
    ]
    counts = Counts(
        entries=sum(each.entries for each in found),
        exact_duplicates=sum(each.repeated for each in found),
        near_duplicates=sum(len(group) for each in found for group in each.alike),
        expired=sum(each.past for each in found),
        ended=sum(len(each.ended) for each in found),
        unreadable=sum(each.unreadable for each in found),
        broken_links=sum(each.broken_links for each in found),
        merged=len(gone) - len(over),
        removed_expired=len(over),
        rewritten=len(done.changes) - len(gone),
        left=sum(each.room.left for each in found),
        rejected=done.rejected,
    )
    kept = of_task(task.place.state, task.id) if done.changes and not task.is_dry else None
    ended = tuple(sorted({path for each in found for path in each.ended} - gone))
    return replace(
        task.result(counts, gone, over),
        summary=_summary(counts, is_preview=task.is_dry),
        ended_entries=len(ended) or None,
        ended_paths=ended,
        alike=tuple(group for group in groups if len(group) > 1),
        kept=tuple(kept for each in found for kept in each.kept),
        touched_topics=() if kept is None else topics_of(kept.changes),
        touched_scopes=() if task.is_dry else done.touched_scopes,
    )


def _paths(group: Sequence[Holding]) -> tuple[str, ...]:
    return tuple(each.path.text for each in group)


def _told(counts: Counts) -> str:
    done = {
        "merged": counts.merged,
        "rewrote": counts.rewritten,
        "removed as expired": counts.removed_expired,
    }
    return ", ".join(f"{what} {number}" for what, number in done.items() if number) or "changed nothing"


def _summary(counts: Counts, *, is_preview: bool) -> str:
    left = f"; left {counts.left} for the next dream" if counts.left else ""
    seen = "1 entry" if counts.entries == 1 else f"{counts.entries} entries"
    return f"{'would have ' if is_preview else ''}{_told(counts)}; {seen} checked{left}"


def steps_by_code(findings: Findings) -> Iterator[ChangeSet]:
    """Return the removals that code decides: first expired entries, then duplicates."""
    for holding in findings.expired:
        yield ChangeSet((_going(holding),))
    for same in findings.same:
        if going := same.going[: findings.room.take(len(same.going))]:
            yield _removal(Same(same.stays, going))


def step_of_merge(merge: Merge, group: Sequence[Holding], policy: Policy) -> ChangeSet | None:
    """Return the step of a model's merge, or None if it is rejected (S3).

    Args:
        merge: by numbers of `group`.
        group: the entries in the query.
        policy: determines the gates for a text.
    """
    merge = _keep_filed(merge, group)
    stays, going = group[merge.keep], tuple(group[number] for number in merge.drop)
    sources = [each.entry.body for each in (stays, *going)]
    if stays.trust.satisfies(Trust.WORKSPACE) and not is_made_of(merge.text or stays.entry.body, sources):
        return None
    if not merge.text:
        if any(each.outlasts(stays) for each in going) or not _has_words_of(stays, going):
            return None
        return _removal(Same(stays, going))
    said, used = features(merge.text), frozenset.union(*map(features, sources))
    if not used - STOP_WORDS <= said <= used | STOP_WORDS:
        return None
    written = _written(merge.text, stays, policy)
    if written is None:
        return None
    return ChangeSet((FileChange(stays.path, stays.digest, written), *map(_going, going)))


def _keep_filed(merge: Merge, group: Sequence[Holding]) -> Merge:
    """Return a merge that retains an entry of this memory, with the text that was to stay (D2)."""
    stays = group[merge.keep]
    filed = next((number for number in merge.drop if group[number].at), None)
    is_filed = bool(stays.at or entry_id(stays.entry))
    if is_filed or filed is None or {stays.row.expires, group[filed].row.expires} != {None}:
        return merge
    drop = tuple(merge.keep if number == filed else number for number in merge.drop)
    return replace(merge, keep=filed, drop=drop, text=merge.text or stays.entry.body)


def _has_words_of(stays: Holding, going: Iterable[Holding]) -> bool:
    """Return whether an entry has all significant words of others: another day or name is another fact."""
    said = features(stays.entry.body) | STOP_WORDS
    return all(features(each.entry.body) <= said for each in going)


def _removal(same: Same) -> ChangeSet:
    return ChangeSet(tuple(map(_going, same.going)), (Claim(same.stays.path, same.stays.digest),))


def _written(text: str, stays: Holding, policy: Policy) -> bytes | None:
    """Return an entry with `text` that replaces another one, or None if a gate rejects it."""
    description = shortened(one_line(text), MAX_DESCRIPTION_CHARS)
    kind = stays.entry.type or "reference"
    try:
        labels = {"name": title_of(text), "description": description, "type": kind}
        data = encode(completed(parse(f"{text}\n"), labels))
        check_entry(data, stays.path.rel, policy.content)
    except ToolError:
        return None
    if is_risky(text, stays.trust, policy):
        return None
    return data


def _going(holding: Holding) -> FileChange:
    return FileChange(holding.path, holding.digest, None)
