"""Dream: tidies the memory. What says the same twice is said once, what is over goes, the rest is counted.

1. Code looks at every entry of each scope (`dream_findings.py`).
2. By code go what has expired and what says exactly what another entry says.
3. A language model, if there is one, is shown entries that are almost the same, a group of one trust at a
   time. It may say that one of them stands for others, as it is or with a text that is made of their words
   (`agent/runner.py`, `dream_steps.py`). It has no tools and sees no path, so there is no worker to cage.
   An answer that cannot be used changes nothing in its group; without an answer the whole dream ends.
4. What has expired goes; besides, at most `max_scope_share` of the entries of a scope change, or one where
   that is less than one. The rest is left for the next dream.
5. One commit of steps: each claims all the entries that it is about, so that it is rejected if one of them
   has changed meanwhile, and nothing goes unless what stands for it is there. Nothing is written without
   `yes`.

Remembers may land meanwhile. `undo` gives the tree that never dreamt. A failure of any kind changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Budget, Model, ModelError
from muniment.agent.runner import Asker, UnusableAnswer
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import Cancelled, DreamFailed, DreamTimeout, MunimentError
from muniment.jobs.dream_findings import Findings, look
from muniment.jobs.dream_request import Counts, DreamRequest, DreamResult
from muniment.jobs.dream_steps import Room, Step, questions, step_of_merge, steps_by_code
from muniment.jobs.ending import as_job_error, once_more, put_on_record, spent
from muniment.jobs.holding import Holding
from muniment.jobs.place import Place
from muniment.jobs.removals import expired_by, topics_of
from muniment.jobs.repeating import check_task_id, done_before, id_of_task
from muniment.names import Scope, Trust
from muniment.policy.grammar import CanonicalPath
from muniment.store.audit import timestamp
from muniment.store.commit import Commit, Terms, commit
from muniment.store.erase import is_forgotten
from muniment.store.judge import Author
from muniment.store.ledger import Draft, Kept, Origin, of_task
from muniment.store.trust import ChangeOrigin, Ruling, new_ulid, stamp

KIND: Final = "dream"


@dataclass(slots=True)
class _Task:
    """What stays the same over the attempts of one request, and what the last one had to say.

    Attributes:
        files: how many more files a model's merges may change.
        bytes: how many more bytes they may write.
    """

    request: DreamRequest
    place: Place
    model: Model
    id: str
    notes: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def result(self, budget: Budget | None, **more: Any) -> DreamResult:
        return DreamResult(
            task_id=self.id,
            decided_by=self.model.name,
            policy=self.place.policy.label,
            **spent(budget),
            **{"summary": "", "notes": tuple(self.notes), **more},
        )


def dream(request: DreamRequest, place: Place, model: Model, *, cancel: Cancel | None = None) -> DreamResult:
    """Carry out one request; what goes wrong is in the result's `error`, never raised.

    Args:
        request: where to tidy, and whether to do it.
        place: the policy, roots and state; they stay the caller's.
        model: what may merge what is alike; the embedded rules only count that.
        cancel: ends it early; once the commit has begun to write it runs to its end.

    Cost: about half a second for a thousand entries, besides the model.
    """
    with ExitStack() as stack:
        token = stack.enter_context(Cancel()) if cancel is None else cancel
        task = _Task(request, place, model, id_of_task(KIND, request.task_id))
        budget: Budget | None = None
        try:
            check_task_id(task.id)
            done = done_before(place, KIND, task.id) if request.yes else None
            if done is not None:
                return _again(task, done)
            scopes = place.chosen(request.scope)
            budget = Budget(place.policy.limits, token, place.clock)
            result = once_more(place.policy, KIND, task.id, lambda: _attempt(task, scopes, budget))
        except (MunimentError, ModelError) as problem:
            error = as_job_error(problem, DreamFailed, DreamTimeout)
            status = "cancelled" if isinstance(error, Cancelled) else "failed"
            result = task.result(budget, status=status, error=error)
            put_on_record(place.state, KIND, task.id, error, decided_by=model.name, policy=place.policy.label)
    events.emit(
        "dream_ended",
        task_id=task.id,
        status=result.status,
        code=None if result.error is None else result.error.code,
        turns=result.turns,
        seconds=round(result.seconds, 3),
        **result.counts.as_json(),
    )
    return result


def _attempt(task: _Task, scopes: Sequence[Scope], budget: Budget) -> DreamResult:
    """Steps 1 to 5, once."""
    policy = task.place.policy
    task.notes = []
    task.files, task.bytes = policy.limits.files_written, policy.limits.write_bytes
    now = datetime.now(UTC)
    found = [look(task.place, scope, task.request.trust, timestamp(now), budget) for scope in scopes]
    rooms = [Room(each.entries - len(each.expired), policy.changes.max_scope_share) for each in found]
    steps = [step for each, room in zip(found, rooms, strict=True) for step in steps_by_code(each, room)]
    if not isinstance(task.model, RuleWriter):
        for each, room in zip(found, rooms, strict=True):
            steps += _steps_by_model(task, each, room, budget)
    done = _commit(task, steps, now, budget)
    if done.repeated and (other := done_before(task.place, KIND, task.id)) is not None:
        return _again(task, other)  # An attempt that had been given up was quicker.
    task.notes += done.notes
    return _result(task, budget, found, steps, done, sum(room.left for room in rooms))


def _steps_by_model(task: _Task, found: Findings, room: Room, budget: Budget) -> Iterator[Step]:
    """Step 3, for one scope."""
    asker = Asker(task.model, budget, secrets.token_hex(8))
    not_asked = 0
    for group in questions(found, task.place.policy, task.request.trust):
        if budget.turns_left == 0:
            not_asked += len(group)
            continue
        try:
            merges = asker.which_to_merge([each.entry.body for each in group])
        except UnusableAnswer as problem:
            task.notes.append(f"{len(group)} entries that are alike stay as they are: {problem}")
            continue
        for merge in merges:
            step = step_of_merge(merge, group, task.place.policy)
            if step is None or is_forgotten(task.place.state, merge.text):
                task.notes.append(
                    f"a text of {task.model.name} for {len(merge.drop) + 1} entries is not taken: it says "
                    "more or less than they do or ends sooner, a gate refuses it, or it was erased"
                )
            elif _is_within(task, step) and room.take_whole(step.size):
                task.files -= step.size
                task.bytes -= _bytes(step)
                yield step
    if not_asked:
        task.notes.append(
            f"{not_asked} entries of {found.scope} that are alike were not asked about any more"
        )


def _is_within(task: _Task, step: Step) -> bool:
    """Whether a model may still change as much as `step` does."""
    if step.size <= task.files and _bytes(step) <= task.bytes:
        return True
    task.notes.append(f"a merge of {step.size} entries is more than one run may still write")
    return False


def _bytes(step: Step) -> int:
    return sum(len(item.content) for item in step.change_set.changes)


def _commit(task: _Task, steps: Sequence[Step], now: datetime, budget: Budget) -> Commit:
    """Step 5."""
    request, place = task.request, task.place
    origin = Origin(task.id, KIND, timestamp(now), request.trust, task.model.name, place.policy.label)

    def trust(draft: Draft, held: Trust | None) -> Ruling:
        # A text that a model made of entries of one trust has that trust: `step_of_merge` saw to its words.
        return Ruling(request.trust if draft.after is None or held is None else request.trust.capped(held))

    def stamped(after: bytes, before: bytes | None, path: CanonicalPath, trust: Trust) -> bytes:
        provenance = ChangeOrigin(new_ulid(), now, task.id, trust, task.model.name, place.policy.label)
        return stamp(after, before, path, provenance)

    terms = Terms(
        place.policy,
        place.roots,
        Patience(budget.deadline, budget.cancel),
        place.state,
        origin,
        trust,
        author=Author.CODE,
        stamp=stamped,
        dry_run=not request.yes,
        attended=request.attended,
    )
    return commit([step.change_set for step in steps], terms)


def _result(
    task: _Task,
    budget: Budget,
    found: Sequence[Findings],
    steps: Sequence[Step],
    done: Commit,
    left: int,
) -> DreamResult:
    """What happened, read from what was committed."""
    gone = {change.path for change in done.changes if change.kind == "delete"}
    over = {each.unsafe_path for step in steps if step.is_over for each in step.change_set.removals} & gone
    groups = [
        tuple(path for path in _paths(group) if path not in gone) for each in found for group in each.alike
    ]
    counts = Counts(
        entries=sum(each.entries for each in found),
        exact_duplicates=sum(each.repeated for each in found),
        near_duplicates=sum(len(group) for each in found for group in each.alike),
        expired=sum(each.past for each in found),
        unreadable=sum(each.unreadable for each in found),
        broken_links=sum(each.broken_links for each in found),
        merged=len(gone) - len(over),
        removed_expired=len(over),
        rewritten=len(done.changes) - len(gone),
        left=left,
        rejected=done.rejected,
    )
    return task.result(
        budget,
        status="completed" if task.request.yes else "preview",
        summary=_summary(counts, is_preview=not task.request.yes),
        counts=counts,
        deduped_entries=tuple(sorted(gone - over)),
        expired_entries=tuple(sorted(over)),
        alike=tuple(group for group in groups if len(group) > 1),
        kept=tuple(kept for each in found for kept in each.kept),
        touched_topics=_touched_topics(task, done),
        touched_scopes=done.touched_scopes if task.request.yes else (),
    )


def _touched_topics(task: _Task, done: Commit) -> tuple[str, ...]:
    kept = of_task(task.place.state, task.id) if task.request.yes and done.changes else None
    return () if kept is None else topics_of(kept.changes)


def _again(task: _Task, done: Kept) -> DreamResult:
    """The result of a task that committed already, as far as the ledger knows it."""
    known = [item.change for item in done.changes if not item.is_erased]
    gone = {change.path for change in known if change.kind == "delete"}
    over = expired_by(task.place, done)
    counts = Counts(
        merged=len(gone - over),
        removed_expired=len(over),
        rewritten=len(known) - len(gone),
    )
    task.notes = list(done.notes)
    return task.result(
        None,
        status="completed",
        summary=f"done before by this task: {_told(counts)}",
        repeated=True,
        counts=counts,
        deduped_entries=tuple(sorted(gone - over)),
        expired_entries=tuple(sorted(over)),
        touched_topics=topics_of(done.changes),
        touched_scopes=tuple(sorted({item.scope for item in done.changes})),
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
