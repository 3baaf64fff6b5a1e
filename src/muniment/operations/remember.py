"""Remember: a fact goes in, a headless agent files it, the broker judges and commits.

1. The request is checked: content, scope, context mode; a secret in it ends it, or is taken out of it.
2. The run's policy is the operator's, met with `clean` if asked for and with "writes only in this
   scope" if one is given: a request can only narrow.
3. A run: a worker, a model, at most six turns (`agent/runner.py`).
4. `final_text` with changes is committed; every other end commits nothing (`_raise_unless_final`).
5. If what the run rested on changed meanwhile, the run is repeated once within the same budget.
6. What is committed, or was known already, holds the fact (`content/provenance.py`). Where what a model
   proposed does not, or would wait for review in the place of somebody's words, the rules file the fact
   verbatim. They also do so after any other end that the model caused, unless the operator wants that to be a
   failure (`Place.on_model_failure`): wrong paths and names, three refusals, a refused change set, no usable
   answer. A path that leads out (`operations/escapes.py`) fails the task. The result says so.

What happened is read from the committed change-set, never from the model's words: whatever a result, an error
or a record says is code's sentence. Only who asks for it is told the model's last words, as data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Brief, Model, ModelError, ScopeBrief
from muniment.agent.runner import RUN_NAME, Observer, Runner, RunOutcome, Witness
from muniment.agent.updates import is_chatter, supersedes
from muniment.cancelling import Cancel
from muniment.content.admission import own, quoted
from muniment.content.entry import Entry, parse
from muniment.content.gates import on_one_line
from muniment.content.markdown import fence_token
from muniment.content.provenance import separate_items
from muniment.content.secrets import find_secret, redacted
from muniment.errors import (
    Cancelled,
    InvalidContent,
    JobError,
    JobFailed,
    JobTimeout,
    MunimentError,
    PathEscape,
    Refusal,
    RememberNoUpdate,
    RememberPathEscape,
    RememberRefused,
    StoreConflict,
    ToolError,
    WorkerLost,
)
from muniment.events import span
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import NO_GRANT, Judge, Policy
from muniment.kernel.names import Scope, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.names import ContextMode
from muniment.operations.escapes import REQUEST_SCOPE, RunScopes, find_escape
from muniment.operations.indexes import run_indexes
from muniment.operations.job import (
    MODEL_ADVICE,
    check_retry,
    emit_end,
    model_failed,
    model_failure,
    own_cancel,
    status_of,
)
from muniment.operations.labels import FactWords
from muniment.operations.naming import name_of_replaced
from muniment.operations.place import Place
from muniment.operations.related import gone_by, linked_entries, related_to
from muniment.operations.remember_job import KIND, FallBackToRules, RememberJob, body_of, failed, read_end
from muniment.operations.request import check_content
from muniment.operations.visibility import ALREADY_KNOWN
from muniment.policy.load import load_policy
from muniment.policy.tables import meet, narrow_writes
from muniment.sandbox.sandbox import Sandbox
from muniment.sandbox.tools.calls import WRITING_TOOLS, Outcome, stopped
from muniment.store.audit import described
from muniment.store.commit import Commit
from muniment.store.index import is_index_path
from muniment.store.ledger import ChangeRow, CommitRow
from muniment.store.trust import Ruling, by_words
from muniment.store.upkeep import trusts_shown
from muniment.types import RememberRequest, RememberResult
from muniment.types.results import superseded_by

CHATTER: Final = "nothing to keep: it is only thanks, a greeting, or a yes or no"


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
    with own_cancel(cancel) as cancelling, span("task", kind=KIND) as task_span:
        job = RememberJob(request, place, model, cancelling, observe, witness)
        try:
            result = _remember(job)
        except (MunimentError, ModelError) as problem:
            error = job.record_failure(_public_error(job, problem))
            result = replace(job.result(), status=status_of(error), error=error)
        emit_end(KIND, result, task_span, **_event_fields(result))
    return result


def _remember(task: RememberJob) -> RememberResult:
    """Steps 1 to 6."""
    _refuse_secret(task.request, task.place)
    task.content = check_content(task.request.content)
    earlier = task.find_earlier(task.place.state.keyed(task.content))
    if earlier is not None:
        return _repeated(task, earlier)
    brief, policy = _prepare(task, task.content)
    if is_chatter(task.content):
        return replace(task.result(), status="completed", summary=CHATTER, unchanged=True)
    task.begin(policy.limits)
    try:
        return _as_items_or_one(task, brief, policy)
    except FallBackToRules as failure:
        events.emit("remember_by_rules", task_id=task.id, model=task.model.name)
        why = on_one_line(str(failure))
        how = model_failure(task.model.name, why)
        task.notes.append(f"{how}; the rules filed the fact as it is; {MODEL_ADVICE}")
    task.model = RuleWriter()
    task.budget.renew(policy.limits)
    return _as_items_or_one(task, brief, policy)


def _repeated(task: RememberJob, done: CommitRow) -> RememberResult:
    """Return the result of a task that has committed before, as far as the ledger knows it."""
    paths = tuple(change.path for change in done.known if change.kind != "delete")
    entries = [entry for each in done.changes if (entry := _entry_after(each)) is not None]
    result = task.result()
    return replace(
        result,
        status="completed",
        summary=f"saved before by this task: {', '.join(paths) or 'what was erased since'}",
        repeated=True,
        files_touched=paths,
        touched_scopes=done.touched_scopes,
        changes=done.known,
        superseded=superseded_by(done.known),
        similar=linked_entries(task.place, done),
        trust=done.trust,
        notes=(*result.notes, *done.notes),
        expires=next((each.expires for each in entries if each.expires), None),
        ends=next((str(each.ends) for each in entries if each.ends), None),
    )


def _public_error(task: RememberJob, problem: MunimentError | ModelError) -> MunimentError | ModelError:
    """Return a problem as callers may see it: without a path or text that a model chose."""
    match problem:
        case PathEscape():
            requested = described(problem.requested, task.place.state, task.place.roots)
            return RememberPathEscape(problem.via, requested, problem.tool)
        case RememberRefused() if isinstance(problem.__cause__, Refusal | ToolError):
            told = _reason(stopped(problem.__cause__))
            return RememberRefused(f"the change-set was refused: {told}")
        case WorkerLost():
            return failed(str(problem))
        case _:
            return problem


def _event_fields(result: RememberResult) -> dict[str, object]:
    """Return the fields of the event of its end."""
    escape = result.error if isinstance(result.error, PathEscape) else None
    return {
        "run": RUN_NAME,
        "via": None if escape is None else str(escape.via),
        "tool": None if escape is None else escape.tool,
        "touched_scopes": list(result.touched_scopes),
        "files": len(result.files_touched),
        "turns": result.turns,
        "seconds": round(result.seconds, 3),
        "policy": result.policy,
        "enforcement": result.enforcement,
        "missing_layers": list(result.missing_layers),
    }


def _refuse_secret(request: RememberRequest, place: Place) -> None:
    """Refuse what was queued without its secret, unless the policy is content with the rest."""
    if request.secret is not None and (not request.content or place.policy.content.secrets != "redact"):
        raise RememberRefused("refused: the text holds what looks like a secret; leave it out")


def _prepare(task: RememberJob, fact: str) -> tuple[Brief, Policy]:
    """Step 1, but for the fact itself, and step 2."""
    request, place = task.request, task.place
    if request.context not in list(ContextMode):
        known = ", ".join(ContextMode)
        raise InvalidContent(
            f"there is no context mode {request.context!r}; there are {known}", code="invalid_context_mode"
        )
    context = ContextMode(request.context)
    task.ends = read_end(request, fact)
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
    return Brief(_without_secrets(fact, policy), scopes, context, ends=task.ends), policy


def _without_secrets(fact: str, policy: Policy) -> str:
    """What a model may be told of a fact: what it has not seen it puts into no name and no title."""
    if policy.content.secrets == "redact":
        fact = redacted(fact)
    if (found := find_secret(fact.encode(), "")) is not None:
        what = f"line {found.line} holds what looks like a secret ({found.rule}); leave it out"
        raise RememberRefused(f"refused: {what}")
    return fact


def _as_items_or_one(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """By the rules a list of facts is filed item by item, or whole where that cannot be."""
    try:
        return _attempts(task, brief, policy)
    except (JobFailed, RememberRefused, RememberNoUpdate):
        if not (task.is_by_rules and separate_items(brief.fact)):
            raise
        task.notes.append("the facts of the list could not be filed each by itself; they are one entry")
    task.budget.renew(policy.limits)
    return _attempts(task, replace(brief, is_one=True), policy)


def _attempts(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Step 5: retry at most once, after a conflict, with what is left of the budget."""
    try:
        return _attempt(task, brief, policy)
    except StoreConflict as problem:
        check_retry(policy, KIND, task.id, problem, turns_left=task.budget.turns_left)
        conflict = problem
    try:
        return _attempt(task, brief, policy)
    except (RememberNoUpdate, JobFailed) as error:
        raise conflict from error


def _attempt(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Steps 3 and 4, once."""
    place, patience = task.place, Patience(task.budget.deadline, task.cancel)
    brief = replace(brief, related=related_to(brief, task.trust, place, policy, patience, task.end_of))
    with Sandbox.for_run(
        policy,
        place.roots,
        place.state,
        in_process=place.in_process,
        symlinks=place.symlinks,
        context=brief.context,
        patience=patience,
        shown=gone_by(brief.related),
    ) as box:
        task.held = box.held  # Before the model is asked anything.
        runner = Runner(
            task.model,
            box.call,
            task.budget,
            abort_on_escape=policy.confinement.on_escape == "abort",
            token=fence_token(),
            observe=task.observe,
            witness=task.witness,
        )
        indexes = run_indexes(brief, place, policy, task.trust)
        outcome = runner.run(brief, indexes)
        task.decided_by = outcome.decided_by or task.model.name
        scopes = _run_scopes(task, brief, policy)
        _raise_unless_final(task, outcome, scopes)
        task.budget.check()
        try:
            return _judged(task, brief, box, outcome, [each.scope for each in indexes], scopes)
        except FallBackToRules:
            _raise_escape(task, outcome, scopes)
            raise


def _judged(
    task: RememberJob,
    brief: Brief,
    box: Sandbox,
    outcome: RunOutcome,
    indexes: Collection[Scope],
    scopes: RunScopes,
) -> RememberResult:
    """Commit what a finished run proposed, or return what else became of it."""
    done = _filed_or_refused(task, brief, box, outcome, indexes)
    if (earlier := task.find_quicker(done)) is not None:
        return _repeated(task, earlier)
    if not done.changes:
        known = _known_entries(task, box, outcome)
        if known:
            task.require_fact(brief.fact, known.values())
        return _without_changes(task, outcome, known, scopes)
    return _committed(task, outcome, done)


def _filed_or_refused(
    task: RememberJob, brief: Brief, box: Sandbox, outcome: RunOutcome, indexes: Collection[Scope]
) -> Commit:
    """Commit as `_filed`; a proposal that is refused is a failure of the model that made it."""
    try:
        return _filed(task, brief, box, outcome, indexes)
    except RememberRefused as refused:
        if not isinstance(refused.__cause__, Refusal | ToolError):
            raise
        failure = task.choose_failure(refused, _reason(stopped(refused.__cause__)))
        if failure is refused:
            raise
        raise failure from None


def _filed(
    task: RememberJob, brief: Brief, box: Sandbox, outcome: RunOutcome, indexes: Collection[Scope]
) -> Commit:
    """Commit what a run proposed that was shown some indexes, in the words of the fact as far as it can be.

    Raises:
        FallBackToRules: it does not hold the fact, or words of a model would wait for review in the place of
            somebody's though the rules could file the fact.
        Whatever `Sandbox.commit` does.
    """
    words = FactWords(task, brief.fact, brief.related)
    task.similar = words.similar
    rule = by_words(brief.fact, task.trust, _least_shown(task.place, box, words, indexes), supersedes)
    waits = task.is_by_rules or task.place.on_model_failure == "fail"

    def ruled(draft: FileChange, held: Trust | None) -> Ruling:
        ruling = rule(draft, held)
        if not waits and ruling.note is not None and held is not None and not ruling.trust.satisfies(held):
            raise task.replacement_error()
        is_shown = held is not None and not (ruling.by or ruling.trust).satisfies(held)  # In a review.
        is_change = draft.before is not None and draft.after is not None and not is_shown
        if is_change and words.drops(draft.after or b"", draft.before or b""):
            raise task.replacement_error()
        return ruling

    def accept(proposed: ChangeSet) -> None:
        written = {each.path.text: body_of(each.after or b"") for each in proposed.changes}
        task.require_fact(brief.fact, (_known_entries(task, box, outcome) | written).values())

    return box.commit(
        task.run(),
        trust=ruled,
        stamp=words.stamped,
        rename=words.rename,
        replaced=name_of_replaced,
        dry_run=task.is_dry,
        accept=accept,
    )


def _run_scopes(task: RememberJob, brief: Brief, policy: Policy) -> RunScopes:
    """Return the scopes of a run; one without a directory counts as open unless the request excludes it."""
    roots = task.place.roots
    absent = () if task.request.scope else (scope for scope in policy.scopes if scope not in roots)
    folders = [str(roots[scope].trusted_path) for scope in brief.writable]
    return RunScopes.of({*brief.writable, *absent}, policy.scopes, folders)


def _raise_unless_final(task: RememberJob, outcome: RunOutcome, scopes: RunScopes) -> None:
    """The table of how a run ended and what becomes of it; only `final_text` goes on."""
    if outcome.ended_by not in {"final_text", "deadline", "cancelled", "worker_lost"}:
        _raise_escape(task, outcome, scopes)
    match outcome.ended_by:
        case "final_text":
            return
        case "escape":
            error = outcome.escape or failed("the agent tried to escape")
            raise task.choose_failure(error, "it gave an invalid path")
        case "refusals":
            why = "it was refused three times"
            raise task.choose_failure(RememberRefused(task.blame_model(why)), why)
        case "deadline":
            raise JobTimeout("the time of the task ran out; nothing was written", code="remember_timeout")
        case "cancelled":
            raise Cancelled("nothing was written")
        case "turns":
            why = "it used up its turns without finishing"
            told = task.blame_model(why)
            raise task.choose_failure(JobFailed(told, code="remember_failed", reason=told), why)
        case "model_error":
            why = own(outcome.detail, "the model failed")
            raise task.choose_failure(model_failed(KIND, task.model.name, why), why)
        case "worker_lost":
            raise failed(f"{own(outcome.detail, 'the worker was lost')}; nothing was written")


def _raise_escape(task: RememberJob, outcome: RunOutcome, scopes: RunScopes) -> None:
    """Raise if a run that commits nothing tried to leave the memory; the rules do not store the fact then.

    `operations.escapes` says which paths lead out. A call that only reads counts if refusals ended the run.

    Raises:
        PathEscape: a write leads out.
        RememberRefused: refusals ended the run, and a read leads out or a write leads to another scope.
        JobError: a write leads to another scope than that of the request.
    """
    writes = [each for each in outcome.denied if each.tool in WRITING_TOOLS]
    if (escape := find_escape(writes, scopes)) is not None:
        raise escape
    is_elsewhere = any(each.outcome.rule == REQUEST_SCOPE for each in writes)
    if outcome.ended_by == "refusals" and (is_elsewhere or find_escape(outcome.denied, scopes)):
        raise RememberRefused(task.blame_model("it was refused three times"))
    if is_elsewhere:
        raise JobError(
            f"the agent found no place for this in scope {task.request.scope!r}; try without a scope",
            code="remember_scope_mismatch",
        )


def _without_changes(
    task: RememberJob, outcome: RunOutcome, known: Collection[str], scopes: RunScopes
) -> RememberResult:
    """The agent finished and proposed nothing: known already, refused, or idle."""
    if known:
        summary = f"{ALREADY_KNOWN}: {', '.join(sorted(known))}"
        if task.request.expires is not None:
            task.notes.append(
                "it was known already, and was given no end by this: forget it first, or write one into it"
            )
        said = _detail(task, outcome)
        return replace(task.result(), status="completed", summary=summary, unchanged=True, detail=said)
    _raise_escape(task, outcome, scopes)
    refused = [
        decision.outcome
        for decision in outcome.decisions
        if decision.tool in WRITING_TOOLS and _was_refused(decision.outcome)
    ]
    if refused:
        paths = [each.path for each in outcome.denied if each.outcome is refused[-1]]
        is_named_wrong = bool(paths) and refused[-1].rule == NO_GRANT and not paths[0].endswith(FILE_SUFFIX)
        why = "it named a file without .md at the end" if is_named_wrong else _reason(refused[-1])
        raise task.choose_failure(RememberRefused(f"refused: {task.blame_model(why)}"), why)
    why = "it proposed no change"
    raise task.choose_failure(RememberNoUpdate(task.blame_model(why)), why)


def _committed(task: RememberJob, outcome: RunOutcome, done: Commit) -> RememberResult:
    paths = tuple(change.path for change in done.changes if change.kind != "delete")
    result, ends = task.result(), task.ends
    return replace(
        result,
        summary=f"{'would save' if task.is_dry else 'saved'} {', '.join(paths)}",
        files_touched=() if task.is_dry else paths,
        touched_scopes=() if task.is_dry else done.touched_scopes,
        trust=done.trust,
        similar=tuple(each for _, each in sorted(task.similar.items())),
        changes=done.changes,
        superseded=superseded_by(done.changes),
        notes=(*result.notes, *done.notes),
        detail=_detail(task, outcome),
        expires=str(ends.day) if ends is not None and ends.is_explicit else None,
        ends=str(ends.day) if ends is not None and not ends.is_explicit else None,
    )


def _detail(task: RememberJob, outcome: RunOutcome) -> str | None:
    """The model's last words as data, where they were asked for."""
    return quoted(outcome.final_text, fence_token()) if task.request.detail else None


def _was_refused(outcome: Outcome) -> bool:
    return outcome.verdict == "deny" or outcome.code == "content_rejected"


def _known_entries(task: RememberJob, box: Sandbox, outcome: RunOutcome) -> dict[str, str]:
    """The entries that the agent read and that its last words name: text by names without links.

    No others than whoever asks may rely on: trusted as far as he is, and not to end before the fact does.
    """
    place, known = task.place, dict[str, str]()
    for shown in outcome.read:
        try:
            path = box.without_links(shown)
            is_named = not is_index_path(path.rel) and (
                shown.text in outcome.final_text or path.text in outcome.final_text
            )
            if is_named:
                content = place.read(path)
                if place.trust_at(path, content).satisfies(task.trust) and task.lasts(content):
                    known[path.text] = body_of(content)
        except (PathEscape, Refusal, ToolError):
            continue
    return known


def _reason(outcome: Outcome) -> str:
    """Why a call was stopped, in words of ours: what a refusal quotes of a path is the model's."""
    match outcome.code:
        case "refused":
            return f"the policy does not allow it (rule {outcome.rule!r})"
        case "bad_name":
            return "the agent chose a name that no entry may have"
        case "path_escape":
            return f"the agent asked for what lies outside the memory ({outcome.via})"
        case _:
            return own(outcome.text, f"gate {outcome.rule!r}")


def _least_shown(
    place: Place, box: Sandbox, words: FactWords, indexes: Collection[Scope]
) -> Callable[[], Trust | None]:
    """Asks for the least trust of all that a run was shown; None: nothing."""

    def least() -> Trust | None:
        made = {change.path for change in box.changes() if change.kind == "create"}
        seen = box.seen | words.shown()
        trusts = [trust for path in seen if (trust := _trust_at(place, box, path, made)) is not None]
        for scope in indexes:
            trusts += trusts_shown(place.state, place.roots[scope], place.policy)
        return trusts[0].capped(*trusts[1:]) if trusts else None

    return least


def _trust_at(place: Place, box: Sandbox, path: CanonicalPath, made: Collection[str]) -> Trust | None:
    """The trust of what stands at a path that was shown; None where the run had written that itself."""
    try:
        found = box.without_links(path)
        content = place.read(found)
    except (PathEscape, Refusal, ToolError):
        # It went since: nobody can say any more who it came from.
        return None if path.text in made else Trust.EXTERNAL
    return place.trust_at(found, content)


def _entry_after(row: ChangeRow) -> Entry | None:
    return None if row.change.after is None else parse(row.change.after)
