"""Remember a fact: an agent proposes how to store it, the broker judges the proposal and commits it.

1. The request is checked: content, scope, context mode. A secret in the content is rejected or redacted.
2. The run gets the operator's policy. A request can only narrow it: mode `clean` adds the policy `clean`, and
   a scope in the request limits writes to this scope.
3. The agent runs with one worker and one model, in at most six turns by default (`agent/runner.py`).
4. If the run ends with a final text and has changes, they are committed. After any other end, nothing is
   committed (`_raise_unless_final`).
5. If an entry that the run depends on changed in the meantime, the run is repeated once within the same
   budget.
6. The text that is committed, or the entry that already has it, must contain the fact
   (`content/provenance.py`).
7. If the model failed, the rules store the fact verbatim, and the result reports this. A model failed if its
   proposal does not contain the fact, or would wait for review because it replaces another author's text. It
   also failed after wrong paths and names, three denials, a denied change set, or no valid response. If the
   operator prefers an error (`JobContext.on_model_failure`), the task fails instead. It always fails if a
   path leads out of the memory (`operations/escapes.py`).

The result is read from the committed change set, never from the model's words: code writes every text in a
result, an error or a record. The model's last words are returned only if the request wants them, as data.
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
from muniment.content.admission import quote_model_text, replace_if_rejected
from muniment.content.entry import Entry, parse
from muniment.content.gates import clean_foreign_line
from muniment.content.markdown import create_fence_token
from muniment.content.provenance import split_separate_items
from muniment.content.secrets import find_secret, redact_secrets
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
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import NO_GRANT, Policy, PolicyEvaluator
from muniment.kernel.names import Scope, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.names import ContextMode
from muniment.operations.escapes import REQUEST_SCOPE, RunScopes, find_escape
from muniment.operations.indexes import load_run_indexes
from muniment.operations.job import (
    MODEL_ADVICE,
    create_model_error,
    describe_model_failure,
    determine_status,
    log_end,
    log_retry_or_raise,
    start_task,
)
from muniment.operations.job_context import JobContext
from muniment.operations.labels import FactLabels
from muniment.operations.naming import choose_path
from muniment.operations.related import find_linked_entries, find_related, list_dependencies
from muniment.operations.remember_job import (
    KIND,
    FallBackToRules,
    RememberJob,
    create_failure,
    determine_end,
    read_body,
)
from muniment.operations.request import check_content
from muniment.operations.visibility import ALREADY_KNOWN
from muniment.policy.combine import meet, narrow_writes
from muniment.policy.shipped import load_policy_files
from muniment.sandbox.sandbox import Sandbox
from muniment.sandbox.tools.calls import WRITING_TOOLS, Outcome, build_error_outcome
from muniment.store.audit import describe_path
from muniment.store.commit import CommitResult
from muniment.store.index import is_index_path
from muniment.store.ledger import ChangeRow, CommitRow
from muniment.store.trust import TrustDecision, build_fact_rule
from muniment.store.upkeep import list_displayed_trusts
from muniment.types import RememberRequest, RememberResult
from muniment.types.results import list_superseded

CHATTER: Final = "nothing to remember: it is only thanks, a greeting, or a yes or no"


def remember(
    request: RememberRequest,
    context: JobContext,
    model: Model,
    *,
    cancel: Cancel | None = None,
    observe: Observer = lambda _: None,
    witness: Witness = lambda _: None,
) -> RememberResult:
    """Store the fact of a request in the memory; return an error in the result's `error`, never raise it.

    Args:
        request: the fact to remember, from an untrusted caller.
        context: the policy and the roots; the caller closes them.
        model: decides which entry contains the fact.
        cancel: cancels the run; a commit that has begun to write is completed.
        observe: called with every tool call.
        witness: called with every message between model and run. It must not raise.
    """
    with start_task(KIND, "remembering", cancel) as (used_cancel, task_span):
        job = RememberJob(request, context, model, used_cancel, observe, witness)
        try:
            result = _run_remember(job)
        except (MunimentError, ModelError) as problem:
            error = job.record_failure(_public_error(job, problem))
            result = replace(job.create_result(), status=determine_status(error), error=error)
        log_end(KIND, result, task_span, **_collect_event_fields(result))
    return result


def _run_remember(task: RememberJob) -> RememberResult:
    """Check the request, run the agent and commit its proposal (steps 1 to 7 in the module docstring)."""
    _reject_secret(task.request, task.context)
    task.content = check_content(task.request.content)
    earlier = task.find_earlier(task.context.state.compute_keyed_digest(task.content))
    if earlier is not None:
        return _create_repeated_result(task, earlier)
    brief, policy = _prepare_run(task, task.content)
    if is_chatter(task.content):
        return replace(task.create_result(), status="completed", summary=CHATTER, unchanged=True)
    task.start_budget(policy.limits)
    try:
        return _run_with_list_fallback(task, brief, policy)
    except FallBackToRules as failure:
        events.emit("remember_by_rules", task_id=task.id, model=task.model.name)
        why = clean_foreign_line(str(failure))
        how = describe_model_failure(task.model.name, why)
        task.notes.append(f"{how}; the rules stored the fact verbatim; {MODEL_ADVICE}")
    task.model = RuleWriter()
    task.budget.renew(policy.limits)
    return _run_with_list_fallback(task, brief, policy)


def _create_repeated_result(task: RememberJob, done: CommitRow) -> RememberResult:
    """Return the result of a task that committed earlier, from its commit in the ledger."""
    paths = tuple(change.path for change in done.known_changes if change.kind != "delete")
    entries = [entry for each in done.changes if (entry := _parse_result(each)) is not None]
    result = task.create_result()
    return replace(
        result,
        status="completed",
        summary=f"already saved by this task: {', '.join(paths) or 'erased since'}",
        repeated=True,
        files_touched=paths,
        touched_scopes=done.touched_scopes,
        changes=done.known_changes,
        superseded=list_superseded(done.known_changes),
        similar=find_linked_entries(task.context, done),
        trust=done.trust,
        notes=(*result.notes, *done.notes),
        expires=next((each.expires for each in entries if each.expires), None),
        ends=next((str(each.ends) for each in entries if each.ends), None),
    )


def _public_error(task: RememberJob, problem: MunimentError | ModelError) -> MunimentError | ModelError:
    """Return the error that callers get for a problem, without a path or text that a model chose."""
    match problem:
        case PathEscape():
            requested = describe_path(problem.requested, task.context.state, task.context.roots)
            return RememberPathEscape(problem.via, requested, problem.tool)
        case RememberRefused() if isinstance(problem.__cause__, Refusal | ToolError):
            reason = _describe_denial(build_error_outcome(problem.__cause__))
            return RememberRefused(f"the change set was denied: {reason}")
        case WorkerLost():
            return create_failure(str(problem))
        case _:
            return problem


def _collect_event_fields(result: RememberResult) -> dict[str, object]:
    """Return the fields of the event that is logged at the end of a task."""
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


def _reject_secret(request: RememberRequest, context: JobContext) -> None:
    """Reject a fact that was queued without its secret, unless the policy redacts secrets."""
    if request.secret is not None and (not request.content or context.policy.content.secrets != "redact"):
        raise RememberRefused("rejected: the text contains a possible secret; remove it")


def _prepare_run(task: RememberJob, fact: str) -> tuple[Brief, Policy]:
    """Check context mode, end date and scope of a request, and return the brief and the policy of its run."""
    request, context = task.request, task.context
    if request.context not in list(ContextMode):
        known = ", ".join(ContextMode)
        raise InvalidContent(
            f"unknown context mode {request.context!r}; use one of {known}", code="invalid_context_mode"
        )
    mode = ContextMode(request.context)
    task.ends = determine_end(request, fact)
    policy, selected_scopes = context.policy, context.select_scopes(request.scope)
    if request.scope is not None:
        policy = narrow_writes(policy, selected_scopes[0])
    if mode is ContextMode.CLEAN:
        policy = meet(policy, load_policy_files("clean", None).policy)
    judge = PolicyEvaluator(policy)
    scopes = tuple(
        ScopeBrief(scope, writable=judge.may_grant_in(Verb.CREATE, scope))
        for scope in context.roots
        if scope in policy.scopes
    )
    return Brief(_redact_secrets(fact, policy), scopes, mode, ends=task.ends), policy


def _redact_secrets(fact: str, policy: Policy) -> str:
    """Return a fact as a model may see it, without secrets.

    A model cannot put a secret that it never saw into a name or title.

    Raises:
        RememberRefused: the fact contains a secret that the policy does not redact.
    """
    if policy.content.secrets == "redact":
        fact = redact_secrets(fact)
    if (found := find_secret(fact.encode(), "")) is not None:
        problem = f"line {found.line} contains a possible secret ({found.rule}); remove it"
        raise RememberRefused(f"rejected: {problem}")
    return fact


def _run_with_list_fallback(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Run the task; if the rules cannot store a list of facts item by item, store the list as one entry."""
    try:
        return _run_with_retry(task, brief, policy)
    except (JobFailed, RememberRefused, RememberNoUpdate):
        if not (task.uses_rules and split_separate_items(brief.fact)):
            raise
        task.notes.append("the facts of the list could not be stored one by one; they are one entry")
    task.budget.renew(policy.limits)
    return _run_with_retry(task, replace(brief, is_single_entry=True), policy)


def _run_with_retry(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Run one attempt; after a conflict with another writer, retry once with the rest of the budget."""
    try:
        return _run_attempt(task, brief, policy)
    except StoreConflict as problem:
        log_retry_or_raise(policy, KIND, task.id, problem, turns_left=task.budget.turns_left)
        conflict = problem
    try:
        return _run_attempt(task, brief, policy)
    except (RememberNoUpdate, JobFailed) as error:
        raise conflict from error


def _run_attempt(task: RememberJob, brief: Brief, policy: Policy) -> RememberResult:
    """Run the agent once, and commit its proposal if the run ended with a final text."""
    context, deadline = task.context, Deadline(task.budget.deadline, task.cancel)
    brief = replace(brief, related=find_related(brief, task.trust, context, policy, deadline, task.find_end))
    with Sandbox.for_run(
        policy,
        context.roots,
        context.state,
        in_process=context.in_process,
        symlinks=context.symlinks,
        context=brief.context,
        deadline=deadline,
        injected=list_dependencies(brief.related),
    ) as box:
        task.confinement = box.confinement  # Before the first turn of the model.
        runner = Runner(
            task.model,
            box.call,
            task.budget,
            abort_on_escape=policy.confinement.on_escape == "abort",
            token=create_fence_token(),
            observe=task.observe,
            witness=task.witness,
        )
        indexes = load_run_indexes(brief, context, policy, task.trust)
        outcome = runner.run(brief, indexes)
        task.decided_by = outcome.decided_by or task.model.name
        scopes = _create_run_scopes(task, brief, policy)
        _raise_unless_final(task, outcome, scopes)
        task.budget.check()
        try:
            return _commit_or_report(task, brief, box, outcome, [each.scope for each in indexes], scopes)
        except FallBackToRules:
            _raise_escape(task, outcome, scopes)
            raise


def _commit_or_report(
    task: RememberJob,
    brief: Brief,
    box: Sandbox,
    outcome: RunOutcome,
    indexes: Collection[Scope],
    scopes: RunScopes,
) -> RememberResult:
    """Commit the proposal of a finished run; if it has no changes, return or raise the reason.

    Args:
        task: the job.
        brief: the brief of the run.
        box: the sandbox with the proposal.
        outcome: the end of the run.
        indexes: the scopes whose index the model saw.
        scopes: the scopes in which the run may write, and the others.
    """
    done = _commit_or_fall_back(task, brief, box, outcome, indexes)
    if (earlier := task.find_faster_commit(done)) is not None:
        return _create_repeated_result(task, earlier)
    if not done.changes:
        known = _find_known_entries(task, box, outcome)
        if known:
            task.require_fact(brief.fact, known.values())
        return _report_unchanged(task, outcome, known, scopes)
    return _create_result(task, outcome, done)


def _commit_or_fall_back(
    task: RememberJob, brief: Brief, box: Sandbox, outcome: RunOutcome, indexes: Collection[Scope]
) -> CommitResult:
    """Commit the proposal of a run; treat a denied proposal as a failure of the model."""
    try:
        return _commit_proposal(task, brief, box, outcome, indexes)
    except RememberRefused as refused:
        if not isinstance(refused.__cause__, Refusal | ToolError):
            raise
        failure = task.choose_failure(refused, _describe_denial(build_error_outcome(refused.__cause__)))
        if failure is refused:
            raise
        raise failure from None


def _commit_proposal(
    task: RememberJob, brief: Brief, box: Sandbox, outcome: RunOutcome, indexes: Collection[Scope]
) -> CommitResult:
    """Commit the proposal of a run, with labels and names from the text of the fact.

    Args:
        task: the job.
        brief: the brief of the run.
        box: the sandbox with the proposal.
        outcome: the end of the run.
        indexes: the scopes whose index the model saw.

    Raises:
        FallBackToRules: the proposal does not contain the fact. Or it would wait for review because a model's
            words replace another author's text, although the rules could store the fact.
        Exception: as `Sandbox.commit`.
    """
    labels = FactLabels(task, brief.fact, brief.related)
    task.similar = labels.similar
    rule = build_fact_rule(
        brief.fact, task.trust, _create_lowest_trust_rule(task.context, box, labels, indexes), supersedes
    )
    can_wait_for_review = task.uses_rules or task.context.on_model_failure == "fail"

    def decide_trust(draft: FileChange, previous_trust: Trust | None) -> TrustDecision:
        ruling = rule(draft, previous_trust)
        if (
            not can_wait_for_review
            and ruling.note is not None
            and previous_trust is not None
            and not ruling.trust.satisfies(previous_trust)
        ):
            raise task.create_replacement_error()
        needs_review = previous_trust is not None and not (ruling.author_trust or ruling.trust).satisfies(
            previous_trust
        )  # A change that a review must approve.
        is_change = draft.before is not None and draft.after is not None and not needs_review
        if is_change and labels.drops_statement(draft.after or b"", draft.before or b""):
            raise task.create_replacement_error()
        return ruling

    def check_fact(proposed: ChangeSet) -> None:
        written = {each.path.text: read_body(each.after or b"") for each in proposed.changes}
        task.require_fact(brief.fact, (_find_known_entries(task, box, outcome) | written).values())

    return box.commit(
        task.create_run(),
        trust=decide_trust,
        stamp=labels.complete_file,
        rename=labels.choose_path,
        replaced=choose_path,
        dry_run=task.is_dry,
        approve=check_fact,
    )


def _create_run_scopes(task: RememberJob, brief: Brief, policy: Policy) -> RunScopes:
    """Return the scopes in which a run may write, and the other scopes of its policy.

    A scope without a directory counts as writable, unless the request names a scope.
    """
    roots = task.context.roots
    absent = () if task.request.scope else (scope for scope in policy.scopes if scope not in roots)
    folders = [str(roots[scope].trusted_path) for scope in brief.writable]
    return RunScopes.from_policy({*brief.writable, *absent}, policy.scopes, folders)


def _raise_unless_final(task: RememberJob, outcome: RunOutcome, scopes: RunScopes) -> None:
    """Return if a run ended with a final text; raise the error for any other end."""
    if outcome.ended_by not in {"final_text", "deadline", "cancelled", "worker_lost"}:
        _raise_escape(task, outcome, scopes)
    match outcome.ended_by:
        case "final_text":
            return
        case "escape":
            error = outcome.escape or create_failure(
                "the agent tried to leave the memory; nothing was written"
            )
            raise task.choose_failure(error, "it gave an invalid path")
        case "refusals":
            why = "three of its calls were denied"
            raise task.choose_failure(RememberRefused(task.describe_model_failure(why)), why)
        case "deadline":
            raise JobTimeout("the task exceeded its time limit; nothing was written", code="remember_timeout")
        case "cancelled":
            raise Cancelled("nothing was written")
        case "turns":
            why = "it used all its turns without finishing"
            message = task.describe_model_failure(why)
            raise task.choose_failure(JobFailed(message, code="remember_failed", reason=message), why)
        case "model_error":
            why = replace_if_rejected(outcome.detail, "the model failed")
            raise task.choose_failure(create_model_error(KIND, task.model.name, why), why)
        case "worker_lost":
            raise create_failure(
                f"{replace_if_rejected(outcome.detail, 'the worker was lost')}; nothing was written"
            )


def _raise_escape(task: RememberJob, outcome: RunOutcome, scopes: RunScopes) -> None:
    """Raise if a run that commits nothing tried to leave the memory or the scope of its request.

    The rules then do not store the fact. `operations.escapes` defines which paths lead out. A read counts
    only if denials ended the run.

    Raises:
        PathEscape: a write leads out of the memory.
        RememberRefused: denials ended the run, and a read leads out or a write leads to another scope.
        JobError: a write leads to another scope than that of the request.
    """
    writes = [each for each in outcome.denied if each.tool in WRITING_TOOLS]
    if (escape := find_escape(writes, scopes)) is not None:
        raise escape
    writes_other_scope = any(each.outcome.rule == REQUEST_SCOPE for each in writes)
    if outcome.ended_by == "refusals" and (writes_other_scope or find_escape(outcome.denied, scopes)):
        raise RememberRefused(task.describe_model_failure("three of its calls were denied"))
    if writes_other_scope:
        raise JobError(
            f"the agent could not store this in scope {task.request.scope!r}; try without a scope",
            code="remember_scope_mismatch",
        )


def _report_unchanged(
    task: RememberJob, outcome: RunOutcome, known: Collection[str], scopes: RunScopes
) -> RememberResult:
    """Return the result of a run without changes if the fact is already known; raise the reason if not.

    Args:
        task: the job.
        outcome: the end of the run.
        known: the paths of the entries that contain the fact.
        scopes: the scopes in which the run may write, and the others.
    """
    if known:
        summary = f"{ALREADY_KNOWN}: {', '.join(sorted(known))}"
        if task.request.expires is not None:
            task.notes.append(
                "the fact was already known, and its end was not changed; forget it first, or edit the entry"
            )
        detail = _quote_last_words(task, outcome)
        return replace(
            task.create_result(), status="completed", summary=summary, unchanged=True, detail=detail
        )
    _raise_escape(task, outcome, scopes)
    denied = [
        decision.outcome
        for decision in outcome.decisions
        if decision.tool in WRITING_TOOLS and _was_denied(decision.outcome)
    ]
    if denied:
        paths = [each.path for each in outcome.denied if each.outcome is denied[-1]]
        has_wrong_name = bool(paths) and denied[-1].rule == NO_GRANT and not paths[0].endswith(FILE_SUFFIX)
        why = (
            "it used a file name that does not end with .md"
            if has_wrong_name
            else _describe_denial(denied[-1])
        )
        raise task.choose_failure(RememberRefused(f"denied: {task.describe_model_failure(why)}"), why)
    why = "it proposed no change"
    raise task.choose_failure(RememberNoUpdate(task.describe_model_failure(why)), why)


def _create_result(task: RememberJob, outcome: RunOutcome, done: CommitResult) -> RememberResult:
    paths = tuple(change.path for change in done.changes if change.kind != "delete")
    result, ends = task.create_result(), task.ends
    return replace(
        result,
        summary=f"{'would save' if task.is_dry else 'saved'} {', '.join(paths)}",
        files_touched=() if task.is_dry else paths,
        touched_scopes=() if task.is_dry else done.touched_scopes,
        trust=done.trust,
        similar=tuple(each for _, each in sorted(task.similar.items())),
        changes=done.changes,
        superseded=list_superseded(done.changes),
        notes=(*result.notes, *done.notes),
        detail=_quote_last_words(task, outcome),
        expires=str(ends.day) if ends is not None and ends.is_explicit else None,
        ends=str(ends.day) if ends is not None and not ends.is_explicit else None,
    )


def _quote_last_words(task: RememberJob, outcome: RunOutcome) -> str | None:
    """Return the model's last words, quoted as data, if the request wants them; otherwise None."""
    return quote_model_text(outcome.final_text, create_fence_token()) if task.request.detail else None


def _was_denied(outcome: Outcome) -> bool:
    return outcome.verdict == "deny" or outcome.code == "content_rejected"


def _find_known_entries(task: RememberJob, box: Sandbox, outcome: RunOutcome) -> dict[str, str]:
    """Return the texts of the entries that the agent read and that its last words cite, by path.

    Links in the paths are resolved. An entry counts only if it has at least the caller's trust and does not
    end before the fact.
    """
    context, known = task.context, dict[str, str]()
    for read_path in outcome.read:
        try:
            path = box.resolve_links(read_path)
            is_cited = not is_index_path(path.rel) and (
                read_path.text in outcome.final_text or path.text in outcome.final_text
            )
            if is_cited:
                content = context.read_file(path)
                if context.read_trust(path, content).satisfies(task.trust) and task.covers_end(content):
                    known[path.text] = read_body(content)
        except (PathEscape, Refusal, ToolError):
            continue
    return known


def _describe_denial(outcome: Outcome) -> str:
    """Return why a call was denied, in words of this program.

    The denial itself may quote a path that the model chose.
    """
    match outcome.code:
        case "refused":
            return f"the policy denies it (rule {outcome.rule!r})"
        case "bad_name":
            return "the agent chose an invalid name for an entry"
        case "path_escape":
            return f"the agent requested a path outside the memory ({outcome.via})"
        case _:
            return replace_if_rejected(outcome.text, f"gate {outcome.rule!r}")


def _create_lowest_trust_rule(
    context: JobContext, box: Sandbox, labels: FactLabels, indexes: Collection[Scope]
) -> Callable[[], Trust | None]:
    """Return a function that returns the lowest trust of all text that a run saw, or None if it saw none."""

    def find_lowest_trust() -> Trust | None:
        created_paths = {change.path for change in box.changes() if change.kind == "create"}
        seen = box.displayed_paths | labels.list_displayed()
        trusts = [
            trust for path in seen if (trust := _read_trust(context, box, path, created_paths)) is not None
        ]
        for scope in indexes:
            trusts += list_displayed_trusts(context.state, context.roots[scope], context.policy)
        return trusts[0].cap(*trusts[1:]) if trusts else None

    return find_lowest_trust


def _read_trust(
    context: JobContext, box: Sandbox, path: CanonicalPath, created_paths: Collection[str]
) -> Trust | None:
    """Return the trust of a file that the model saw, or None if the run created the file itself."""
    try:
        found = box.resolve_links(path)
        content = context.read_file(found)
    except (PathEscape, Refusal, ToolError):
        # It was deleted since, so its origin is unknown.
        return None if path.text in created_paths else Trust.EXTERNAL
    return context.read_trust(found, content)


def _parse_result(row: ChangeRow) -> Entry | None:
    return None if row.change.after is None else parse(row.change.after)
