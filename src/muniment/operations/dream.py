"""Dream: tidies the memory. What says the same twice is said once, what is over goes, the rest is counted.

1. Code looks at every entry of each scope.
2. By code go what has expired and what says exactly what another entry says. What has ended by its words
   stays; it is named, so that a person may remove it.
3. A language model, if there is one, is shown entries that are almost the same, a group of one trust at a
   time. It may say that one of them stands for others, as it is or with a text that is made of their words
   (`agent/questions.py`). It has no tools and sees no path, so there is no worker to cage. An answer that
   cannot be used changes nothing in its group; without an answer the whole dream ends.
4. What has expired goes; of the other entries of a scope at most `max_scope_share` change, or one step
   where that is less. The rest is left for the next dream.
5. One commit of steps: each claims all the entries that it is about, so that it is rejected if one of them
   has changed meanwhile, and nothing goes unless what stands for it is there. A dry run writes nothing.

Remembers may land meanwhile. `undo` gives the tree that never dreamt. A failure of any kind changes
nothing.

S1 A step is a part of the commit: it claims everything that it rests on, and no two change the same entry.
S2 No more entries of a scope are written or removed than its share, which is one step at least, by which
   one entry goes for another one; nor by a model than a run may write. What is over takes none of it, and
   is none of which a share is taken.
S3 What a model proposes is taken only if its text, or the entry that stays, is made of whole units of the
   entries that it stands for, with each that turns a meaning or holds a number (`content.provenance`, P4);
   entries that agents wrote may be told in another order, with all of their words: another day or name is
   another fact. It passes the gates; and only for entries that may all be removed. Nothing from outside is
   shown to it, and nothing that is too long to be answered with.
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
    """What stays the same over the attempts of one request, and what the last one had to say.

    Attributes:
        files: how many more files a model's merges may change.
        bytes: how many more bytes they may write.
    """

    kind = KIND

    def __init__(self, request: DreamRequest, place: Place, model: Model, cancel: Cancel) -> None:
        super().__init__(place, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request = request
        self.files = self.bytes = 0

    def result(self, counts: Counts, gone: Collection[str] = (), over: Collection[str] = ()) -> DreamResult:
        """Return the result of a task that removed some entries, of which some had expired."""
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
        """A text that a model made of entries of one trust has that: `step_of_merge` saw to its words."""
        asked = self.trust
        return Ruling(asked if draft.after is None or held is None else asked.capped(held))


def dream(request: DreamRequest, place: Place, model: Model, *, cancel: Cancel | None = None) -> DreamResult:
    """Carry out one request; what goes wrong is in the result's `error`, never raised.

    Args:
        request: where to tidy, and whether to do it.
        place: the policy, roots and state; they stay the caller's.
        model: what may merge what is alike; the embedded rules only count that.
        cancel: ends it early; once the commit has begun to write it runs to its end.

    Cost: about half a second for a thousand entries, besides the model.
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
    """Steps 1 to 5; again if somebody wrote just while it committed."""
    earlier = task.find_earlier(None)  # Whatever is asked of a dream is the same.
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
        summary=f"done before by this task: {_told(counts)}",
        repeated=True,
        touched_topics=topics_of(done.changes),
        touched_scopes=done.touched_scopes,
    )


def _attempt(task: _DreamJob, scopes: Sequence[Scope]) -> DreamResult:
    """Steps 1 to 5, once."""
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
    # As of when it looked: what was over then is told to have been so.
    terms = replace(task.terms(task.trust_of), run=replace(task.run(), at=now), stamp=stamp)
    done = commit(steps, replace(terms, attended=task.request.attended))
    if (earlier := task.find_quicker(done)) is not None:
        return _repeated(task, earlier)
    task.notes += done.notes
    return replace(_result(task, found, done), digest=named if task.is_dry else None)


def _steps_by_model(task: _DreamJob, found: Findings) -> Iterator[ChangeSet]:
    """Step 3, for one scope."""
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
                f"{len(group)} entries that are alike stay as they are: {own(str(problem), 'no answer')}"
            )
            continue
        for merge in merges:
            step = step_of_merge(merge, group, task.place.policy)
            if step is None or is_forgotten(task.place.state, merge.text):
                task.notes.append(
                    f"a text of {task.model.name} for {len(merge.drop) + 1} entries is not taken: it says "
                    "more or less than they do or ends sooner, a gate refuses it, or it was erased"
                )
            elif _is_within(task, step) and found.room.take_whole(len(step.changes)):
                task.files -= len(step.changes)
                task.bytes -= _bytes(step)
                yield step
    if not_asked:
        task.notes.append(
            f"{not_asked} entries of {found.scope} that are alike were not asked about any more"
        )


def _is_within(task: _DreamJob, step: ChangeSet) -> bool:
    """Whether a model may still change as much as `step` does."""
    size = len(step.changes)
    if size <= task.files and _bytes(step) <= task.bytes:
        return True
    task.notes.append(f"a merge of {size} entries is more than one run may still write")
    return False


def _bytes(step: ChangeSet) -> int:
    return sum(item.size for item in step.changes)


def _result(task: _DreamJob, found: Sequence[Findings], done: Commit) -> DreamResult:
    """What happened, read from what was committed."""
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
    return f"{'would have ' if is_preview else ''}{_told(counts)}; {seen} looked at{left}"


def steps_by_code(findings: Findings) -> Iterator[ChangeSet]:
    """What goes without asking anybody: first what is over, then what says the same as another entry."""
    for holding in findings.expired:
        yield ChangeSet((_going(holding),))
    for same in findings.same:
        if going := same.going[: findings.room.take(len(same.going))]:
            yield _removal(Same(same.stays, going))


def step_of_merge(merge: Merge, group: Sequence[Holding], policy: Policy) -> ChangeSet | None:
    """What a model's merge comes to; None if it is not taken (S3).

    Args:
        merge: by numbers of `group`.
        group: what it was asked about.
        policy: says which gates a text passes.
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
    """Return a merge that keeps an entry of this memory, with the text that was to stay (D2)."""
    stays = group[merge.keep]
    filed = next((number for number in merge.drop if group[number].at), None)
    is_filed = bool(stays.at or entry_id(stays.entry))
    if is_filed or filed is None or {stays.row.expires, group[filed].row.expires} != {None}:
        return merge
    drop = tuple(merge.keep if number == filed else number for number in merge.drop)
    return replace(merge, keep=filed, drop=drop, text=merge.text or stays.entry.body)


def _has_words_of(stays: Holding, going: Iterable[Holding]) -> bool:
    """Return whether an entry has all telling words of others: another day or name is another fact."""
    said = features(stays.entry.body) | STOP_WORDS
    return all(features(each.entry.body) <= said for each in going)


def _removal(same: Same) -> ChangeSet:
    return ChangeSet(tuple(map(_going, same.going)), (Claim(same.stays.path, same.stays.digest),))


def _written(text: str, stays: Holding, policy: Policy) -> bytes | None:
    """An entry that says `text` in place of another one; None if a gate refuses it."""
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
