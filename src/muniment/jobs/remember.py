"""Remember: a fact goes in, a headless agent files it, the broker judges and commits.

1. The request is checked: content, scope, context mode.
2. The run's policy is the operator's, met with `clean` if asked for and with "writes only in this
   scope" if one is given: a request can only narrow.
3. A run: a worker, a model, at most six turns (`agent/runner.py`).
4. `final_text` with changes is committed; every other end commits nothing (`_raise_unless_final`).
5. If what the run rested on changed meanwhile, the run is repeated once within the same budget.

What happened is read from the committed change-set, never from the model's words.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from muniment import events
from muniment.agent.budget import Budget
from muniment.agent.model import Brief, Model, ScopeBrief
from muniment.agent.prompt import IndexExcerpt
from muniment.agent.runner import RUN_NAME, Observer, Runner, RunOutcome, Witness
from muniment.confine.cancel import Cancel, Patience
from muniment.confine.evidence import Held
from muniment.content.gates import visible
from muniment.errors import (
    Cancelled,
    MunimentError,
    PathEscape,
    Refusal,
    RememberPathEscape,
    StoreConflict,
    ToolError,
    WorkerLost,
)
from muniment.job_errors import (
    InvalidContextMode,
    RememberFailed,
    RememberNoUpdate,
    RememberRefused,
    RememberScopeMismatch,
    RememberTimeout,
)
from muniment.jobs.ending import as_job_error, put_on_record, spent
from muniment.jobs.filing import KIND, Filing
from muniment.jobs.repeating import check_task_id, done_before, id_of_task
from muniment.jobs.request import Place, RememberRequest, RememberResult, Status, check_content
from muniment.names import INDEX_NAME, ContextMode, RelPath, Scope, Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import CanonicalPath
from muniment.policy.load import load_policy
from muniment.policy.meet import meet, narrow_writes
from muniment.policy.model import Policy
from muniment.sandbox import RunTerms, Sandbox
from muniment.store.commit import Commit
from muniment.store.index import excerpt, is_index_path
from muniment.store.ledger import Kept
from muniment.store.upkeep import is_as_written
from muniment.tools.arguments import WRITING_TOOLS
from muniment.tools.outcome import Outcome

MAX_SUMMARY_CHARS: Final = 300
"""Characters of the model's last words that a result keeps."""


@dataclass(slots=True)
class _Task:
    """What stays the same over the attempts of one request."""

    request: RememberRequest
    place: Place
    model: Model
    observe: Observer
    witness: Witness
    cancel: Cancel
    id: str
    held: Held | None = None

    def result(self, budget: Budget | None, **more: Any) -> RememberResult:
        return RememberResult(
            task_id=self.id,
            enforcement=self.held.enforcement if self.held else None,
            missing_layers=self.held.missing if self.held else (),
            decided_by=self.model.name,
            policy=self.place.policy.label,
            **spent(budget),
            **{"summary": "", "files_touched": (), "touched_scopes": (), **more},
        )


def remember(
    request: RememberRequest,
    place: Place,
    model: Model,
    *,
    cancel: Cancel | None = None,
    observe: Observer = lambda _: None,
    witness: Witness = lambda _: None,
) -> RememberResult:
    """Carry out one request; what goes wrong is in the result's `error`, never raised.

    Args:
        request: what to remember, from an untrusted caller.
        place: the policy and the roots; they stay the caller's.
        model: what decides where the fact belongs.
        cancel: ends the run early; once the commit has begun to write it runs to its end.
        observe: told of every tool call.
        witness: told of every message between model and run. It must not raise.
    """
    with ExitStack() as stack:
        token = stack.enter_context(Cancel()) if cancel is None else cancel
        task = _Task(request, place, model, observe, witness, token, id_of_task(KIND, request.task_id))
        budget: Budget | None = None
        try:
            fact = check_content(request.content)
            check_task_id(task.id)
            done = None if request.dry_run else done_before(place, KIND, task.id, place.state.keyed(fact))
            if done is not None:
                return _again(task, done)
            brief, policy = _prepare(task, fact)
            budget = Budget(policy.limits, token, place.clock)
            result = _attempts(task, brief, policy, budget)
        except MunimentError as error:
            status: Status = "cancelled" if isinstance(error, Cancelled) else "failed"
            result = task.result(budget, status=status, error=_as_job_error(error))
        if result.error is not None:
            put_on_record(
                place.state,
                KIND,
                task.id,
                result.error,
                decided_by=result.decided_by,
                policy=result.policy,
            )
    _log(result)
    return result


def _prepare(task: _Task, fact: str) -> tuple[Brief, Policy]:
    """Step 1, but for the fact itself, and step 2."""
    request, place = task.request, task.place
    if request.context not in list(ContextMode):
        known = ", ".join(ContextMode)
        raise InvalidContextMode(f"there is no context mode {request.context!r}; there are {known}")
    context = ContextMode(request.context)
    policy, chosen = place.policy, place.chosen(request.scope)
    if request.scope is not None:
        policy = narrow_writes(policy, chosen[0])
    if context is ContextMode.CLEAN:
        policy = meet(policy, load_policy("clean"))
    judge = Judge(policy)
    scopes = tuple(
        ScopeBrief(scope, writable=judge.reaches(Verb.CREATE, scope))
        for scope in place.roots
        if scope in policy.scopes
    )
    return Brief(fact, scopes, context), policy


def _attempts(task: _Task, brief: Brief, policy: Policy, budget: Budget) -> RememberResult:
    """Step 5: at most one repeat, on a conflict, with what is left of the budget."""
    try:
        return _attempt(task, brief, policy, budget)
    except StoreConflict as conflict:
        if policy.changes.conflict != "retry" or budget.turns_left == 0:
            raise
        events.emit("remember_repeated", task_id=task.id)
        try:
            return _attempt(task, brief, policy, budget)
        except (RememberNoUpdate, RememberFailed) as error:
            raise conflict from error  # What was left of the budget did not suffice for a second run.


def _attempt(task: _Task, brief: Brief, policy: Policy, budget: Budget) -> RememberResult:
    """Steps 3 and 4, once."""
    terms = RunTerms(
        brief.context,
        must_read=True,
        patience=Patience(budget.deadline, task.cancel),
        is_job=True,
        symlinks=task.place.symlinks,
    )
    place = task.place
    with Sandbox.for_run(policy, place.roots, place.state, terms, in_process=place.in_process) as box:
        task.held = box.held  # Before the model is asked anything.
        runner = Runner(
            task.model,
            box.call,
            budget,
            abort_on_escape=policy.confinement.on_escape == "abort",
            token=secrets.token_hex(8),
            observe=task.observe,
            witness=task.witness,
        )
        indexes = _indexes(brief, place, policy)
        outcome = runner.run(brief, indexes)
        _raise_unless_final(outcome)
        budget.check()
        filing = Filing(place, task.id, brief.fact, task.request.trust, task.model.name)
        job = filing.terms(box, tuple(each.scope for each in indexes))
        done = box.commit(job, dry_run=task.request.dry_run)
        if done.repeated and (other := done_before(place, KIND, task.id, job.origin.fact)) is not None:
            return _again(task, other)  # An attempt that had been given up was quicker.
        if not done.changes:
            return _without_changes(task, budget, outcome, _known_entries(place, box, outcome))
        return _committed(task, budget, outcome, done)


def _raise_unless_final(outcome: RunOutcome) -> None:
    """The table of how a run ended and what becomes of it; only `final_text` goes on."""
    match outcome.ended_by:
        case "final_text":
            return
        case "escape":
            raise outcome.escape or RememberFailed("the agent tried to escape")
        case "refusals":
            raise RememberRefused("the agent was refused three times; nothing was written")
        case "deadline":
            raise RememberTimeout("the time of the task ran out; nothing was written")
        case "cancelled":
            raise Cancelled("nothing was written")
        case "turns":
            raise RememberFailed("the agent used up its turns without finishing; nothing was written")
        case "model_error" | "worker_lost":
            raise RememberFailed(f"{outcome.detail or 'the model failed'}; nothing was written")


def _without_changes(
    task: _Task, budget: Budget, outcome: RunOutcome, known: Collection[str]
) -> RememberResult:
    """The agent finished and proposed nothing: known already, refused, or idle."""
    if known:
        summary = f"already known: {', '.join(sorted(known))}"
        return task.result(budget, status="completed", summary=summary, unchanged=True)
    stopped = [
        decision.outcome
        for decision in outcome.decisions
        if decision.tool in WRITING_TOOLS and _was_refused(decision.outcome)
    ]
    if stopped and all(each.rule == "request-scope" for each in stopped):
        raise RememberScopeMismatch(
            f"the agent found no place for this in scope {task.request.scope!r}; try without a scope"
        )
    if stopped:
        raise RememberRefused(f"refused: {stopped[-1].text}")
    raise RememberNoUpdate("the agent proposed no change; nothing was written")


def _committed(task: _Task, budget: Budget, outcome: RunOutcome, done: Commit) -> RememberResult:
    paths = tuple(change.path for change in done.changes)
    words = " ".join(outcome.final_text.split())[:MAX_SUMMARY_CHARS]
    if task.request.context == ContextMode.CLEAN or task.request.dry_run:
        words = ""  # The model does not know the names that its files were given, nor that nothing is saved.
    return task.result(
        budget,
        status="dry_run" if task.request.dry_run else "completed",
        summary=visible(words) or f"{'would save' if task.request.dry_run else 'saved'} {', '.join(paths)}",
        files_touched=() if task.request.dry_run else paths,
        touched_scopes=() if task.request.dry_run else done.touched_scopes,
        changes=done.changes,
        notes=done.notes,
    )


def _was_refused(outcome: Outcome) -> bool:
    return outcome.verdict == "deny" or outcome.code == "content_rejected"


def _known_entries(place: Place, box: Sandbox, outcome: RunOutcome) -> set[str]:
    """The entries that the agent read and that its last words name, by their names without links."""
    known: set[str] = set()
    for read in outcome.read:
        scope, _, rel = read.partition("/")
        try:
            path = box.without_links(CanonicalPath(Scope(scope), RelPath(rel)))
            found = place.roots[path.scope].root.examine(path.rel)
        except (PathEscape, Refusal, ToolError):
            continue
        is_entry = found is not None and found.kind == "file" and not is_index_path(path.rel)
        if is_entry and (read in outcome.final_text or path.text in outcome.final_text):
            known.add(path.text)
    return known


def _indexes(brief: Brief, place: Place, policy: Policy) -> tuple[IndexExcerpt, ...]:
    """The indexes that the run is shown: ours, of scopes that it may write, without what it may not read."""
    if brief.context is ContextMode.CLEAN:
        return ()
    judge = Judge(policy)
    found: list[IndexExcerpt] = []
    for scope in (each.name for each in brief.scopes if each.writable):

        def shows(rel: RelPath, scope: Scope = scope) -> bool:
            path = CanonicalPath(scope, rel)
            return judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)

        try:
            index = place.roots[scope].root.read_bytes(INDEX_NAME)
        except (PathEscape, ToolError):
            continue  # Without an index the agent still has its tools; the next commit writes one.
        # Of another's making it may say anything, and nobody could tell how far to trust that.
        if shows(RelPath(INDEX_NAME)) and is_as_written(place.state, place.roots[scope], index):
            found.append(IndexExcerpt(scope, policy.trust_of(scope), excerpt(index, shows)))
    return tuple(found)


def _as_job_error(error: MunimentError) -> MunimentError:
    """The error that a caller sees for one that escaped a step."""
    match error:
        case PathEscape() if not isinstance(error, RememberPathEscape):
            return RememberPathEscape(error.via, error.requested, error.tool)
        case WorkerLost():
            return RememberFailed(str(error))
        case _:
            return as_job_error(error, RememberFailed, RememberTimeout)


def _again(task: _Task, done: Kept) -> RememberResult:
    """The result of a task that committed already, as far as the ledger knows it."""
    changes = tuple(item.change for item in done.changes if not item.is_erased)
    paths = tuple(change.path for change in changes)
    return task.result(
        None,
        status="completed",
        summary=f"saved before by this task: {', '.join(paths) or 'what was erased since'}",
        repeated=True,
        files_touched=paths,
        touched_scopes=tuple(sorted({item.scope for item in done.changes})),
        changes=changes,
        notes=done.notes,
    )


def _log(result: RememberResult) -> None:
    escape = result.error if isinstance(result.error, PathEscape) else None
    events.emit(
        "remember_ended",
        run=RUN_NAME,
        task_id=result.task_id,
        status=result.status,
        code=None if result.error is None else result.error.code,
        via=None if escape is None else str(escape.via),
        tool=None if escape is None else escape.tool,
        touched_scopes=list(result.touched_scopes),
        files=len(result.files_touched),
        turns=result.turns,
        seconds=round(result.seconds, 3),
        policy=result.policy,
        enforcement=result.enforcement,
        missing_layers=list(result.missing_layers),
    )
