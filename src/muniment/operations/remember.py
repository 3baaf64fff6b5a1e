"""Remember a fact: a headless agent stores it, the broker judges and commits.

1. The request is checked: content, scope, context mode. A secret in it is rejected or redacted.
2. The run's policy is the operator's, restricted by `clean` if requested, and to writes in one scope if the
   request has one: a request can only narrow it.
3. A run: a worker, a model, at most six turns (`agent/runner.py`).
4. If the run ends with `final_text` and has changes, they are committed; every other end commits nothing
   (`_raise_unless_final`).
5. If an entry that the run depends on changed in the meantime, the run is repeated once within the same
   budget.
6. The committed or already known text must contain the fact (`content/provenance.py`). If a model's proposal
   does not, or if it would wait for review because it replaces another author's text, the rules store the
   fact verbatim. They also do so after any other end that the model caused: wrong paths and names, three
   denials, a denied change set, no valid response. If the operator prefers an error, the task fails instead
   (`Place.on_model_failure`). A path that leads out (`operations/escapes.py`) fails the task. The result
   reports it.

The outcome is read from the committed change set, never from the model's words: code writes every text in a
result, an error or a record. The model's last words are returned only on request, as data.
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

CHATTER: Final = "nothing to remember: it is only thanks, a greeting, or a yes or no"


def remember(
    request: RememberRequest,
    place: Place,
    model: Model,
    *,
    cancel: Cancel | None = None,
    observe: Observer = lambda _: None,
    witness: Witness = lambda _: None,
) -> RememberResult:
    """Carry out one request; errors are returned in the result's `error`, never raised.

    Args:
        request: the fact to remember, from an untrusted caller.
        place: the policy and the roots; the caller closes them.
        model: decides which entry contains the fact.
        cancel: cancels the run; a commit that has begun to write is completed.
        observe: called with every tool call.
        witness: called with every message between model and run. It must not raise.
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
    """Run steps 1 to 6."""
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
        task.notes.append(f"{how}; the rules stored the fact verbatim; {MODEL_ADVICE}")
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
        summary=f"already saved by this task: {', '.join(paths) or 'erased since'}",
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
            return RememberRefused(f"the change set was denied: {told}")
        case WorkerLost():
            return failed(str(problem))
        case _:
            return problem


def _event_fields(result: RememberResult) -> dict[str, object]:
    """Return the fields of the event at the end of a task."""
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
    """Reject a fact that was queued without its secret, unless the policy accepts the rest."""
    if request.secret is not None and (not request.content or place.policy.content.secrets != "redact"):
        raise RememberRefused("rejected: the text contains a possible secret; remove it")


def _prepare(task: RememberJob, fact: str) -> tuple[Brief, Policy]:
    """Run step 2, and the part of step 1 that does not concern the fact."""
    request, place = task.request, task.place
    if request.context not in list(ContextMode):
        known = ", ".join(ContextMode)
        raise InvalidContent(
            f"unknown context mode {request.context!r}; use one of {known}", code="invalid_context_mode"
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
    """Return a fact as a model may see it, without secrets.

    A model cannot put a secret that it never saw into a name or title.
    """
    if policy.content.secrets == "redact":
        fact = redacted(fact)
    if (found := find_secret(fact.encode(), "")) is not None:
        what = f"line {found.line} contains a possible secret ({found.rule}); remove it"
        raise RememberRefused(f"rejected: {what}")
    return fact


def _as_items_or_one(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Run the attempts; if the rules cannot store a list of facts item by item, store it as one entry."""
    try:
        return _attempts(task, brief, policy)
    except (JobFailed, RememberRefused, RememberNoUpdate):
        if not (task.is_by_rules and separate_items(brief.fact)):
            raise
        task.notes.append("the facts of the list could not be stored one by one; they are one entry")
    task.budget.renew(policy.limits)
    return _attempts(task, replace(brief, is_one=True), policy)


def _attempts(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Run step 5: retry at most once, after a conflict, with the rest of the budget."""
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
    """Run steps 3 and 4 once."""
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
        task.held = box.held  # Before the first turn of the model.
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
    """Commit the proposal of a finished run, or return the other outcome of the run."""
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
    """Commit as `_filed`; treat a denied proposal as a failure of its model."""
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
    """Commit the proposal of a run that saw some indexes, in the words of the fact as far as possible.

    Raises:
        FallBackToRules: it does not contain the fact, or it would wait for review because a model's words
            replace another author's, although the rules could store the fact.
        Exception: as `Sandbox.commit`.
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
    """Return the scopes of a run.

    A scope without a directory counts as writable unless the request excludes it.
    """
    roots = task.place.roots
    absent = () if task.request.scope else (scope for scope in policy.scopes if scope not in roots)
    folders = [str(roots[scope].trusted_path) for scope in brief.writable]
    return RunScopes.of({*brief.writable, *absent}, policy.scopes, folders)


def _raise_unless_final(task: RememberJob, outcome: RunOutcome, scopes: RunScopes) -> None:
    """Map the end of a run to its outcome: return for `final_text`, raise for all others."""
    if outcome.ended_by not in {"final_text", "deadline", "cancelled", "worker_lost"}:
        _raise_escape(task, outcome, scopes)
    match outcome.ended_by:
        case "final_text":
            return
        case "escape":
            error = outcome.escape or failed("the agent tried to leave the memory")
            raise task.choose_failure(error, "it gave an invalid path")
        case "refusals":
            why = "three of its calls were denied"
            raise task.choose_failure(RememberRefused(task.blame_model(why)), why)
        case "deadline":
            raise JobTimeout("the task exceeded its time limit; nothing was written", code="remember_timeout")
        case "cancelled":
            raise Cancelled("nothing was written")
        case "turns":
            why = "it used all its turns without finishing"
            told = task.blame_model(why)
            raise task.choose_failure(JobFailed(told, code="remember_failed", reason=told), why)
        case "model_error":
            why = own(outcome.detail, "the model failed")
            raise task.choose_failure(model_failed(KIND, task.model.name, why), why)
        case "worker_lost":
            raise failed(f"{own(outcome.detail, 'the worker was lost')}; nothing was written")


def _raise_escape(task: RememberJob, outcome: RunOutcome, scopes: RunScopes) -> None:
    """Raise if a run that commits nothing tried to leave the memory; the rules do not store the fact then.

    `operations.escapes` defines which paths lead out. A read counts only if denials ended the run.

    Raises:
        PathEscape: a write leads out.
        RememberRefused: denials ended the run, and a read leads out or a write leads to another scope.
        JobError: a write leads to another scope than that of the request.
    """
    writes = [each for each in outcome.denied if each.tool in WRITING_TOOLS]
    if (escape := find_escape(writes, scopes)) is not None:
        raise escape
    is_elsewhere = any(each.outcome.rule == REQUEST_SCOPE for each in writes)
    if outcome.ended_by == "refusals" and (is_elsewhere or find_escape(outcome.denied, scopes)):
        raise RememberRefused(task.blame_model("three of its calls were denied"))
    if is_elsewhere:
        raise JobError(
            f"the agent could not store this in scope {task.request.scope!r}; try without a scope",
            code="remember_scope_mismatch",
        )


def _without_changes(
    task: RememberJob, outcome: RunOutcome, known: Collection[str], scopes: RunScopes
) -> RememberResult:
    """Return the result of a run without a proposal: already known, denied or idle."""
    if known:
        summary = f"{ALREADY_KNOWN}: {', '.join(sorted(known))}"
        if task.request.expires is not None:
            task.notes.append(
                "the fact was already known, and its end was not changed: forget it first, or edit the entry"
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
        why = "it used a file name that does not end with .md" if is_named_wrong else _reason(refused[-1])
        raise task.choose_failure(RememberRefused(f"denied: {task.blame_model(why)}"), why)
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
    """Return the model's last words as data, if requested."""
    return quoted(outcome.final_text, fence_token()) if task.request.detail else None


def _was_refused(outcome: Outcome) -> bool:
    return outcome.verdict == "deny" or outcome.code == "content_rejected"


def _known_entries(task: RememberJob, box: Sandbox, outcome: RunOutcome) -> dict[str, str]:
    """Return the entries that the agent read and that its last words cite: text by path without links.

    Only entries that the caller may rely on count: of at least the caller's trust, and not ending before the
    fact.
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
    """Return why a call was denied, in a text of this program.

    A path quoted in a denial comes from the model.
    """
    match outcome.code:
        case "refused":
            return f"the policy denies it (rule {outcome.rule!r})"
        case "bad_name":
            return "the agent chose an invalid name for an entry"
        case "path_escape":
            return f"the agent requested a path outside the memory ({outcome.via})"
        case _:
            return own(outcome.text, f"gate {outcome.rule!r}")


def _least_shown(
    place: Place, box: Sandbox, words: FactWords, indexes: Collection[Scope]
) -> Callable[[], Trust | None]:
    """Return a function that returns the lowest trust of all text that a run saw, or None."""

    def least() -> Trust | None:
        made = {change.path for change in box.changes() if change.kind == "create"}
        seen = box.seen | words.shown()
        trusts = [trust for path in seen if (trust := _trust_at(place, box, path, made)) is not None]
        for scope in indexes:
            trusts += trusts_shown(place.state, place.roots[scope], place.policy)
        return trusts[0].capped(*trusts[1:]) if trusts else None

    return least


def _trust_at(place: Place, box: Sandbox, path: CanonicalPath, made: Collection[str]) -> Trust | None:
    """Return the trust of the file at a displayed path, or None if the run wrote that file itself."""
    try:
        found = box.without_links(path)
        content = place.read(found)
    except (PathEscape, Refusal, ToolError):
        # It was deleted since, so its origin is unknown.
        return None if path.text in made else Trust.EXTERNAL
    return place.trust_at(found, content)


def _entry_after(row: ChangeRow) -> Entry | None:
    return None if row.change.after is None else parse(row.change.after)
