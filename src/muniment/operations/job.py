"""What all jobs do alike, from what is asked of one to its record: `carry_out`.

K1  A job never raises: what goes wrong is in its result, and on record, as the error that its callers know.
K2  A task that names itself commits at most once, and waits for the owner at most once. Asked again, it
    answers with what it did then, or that it still waits; likewise where another attempt was quicker.
K3  From when its body begins a task has one deadline and one budget, whatever it tries.
K4  Where somebody wrote just while it committed it is tried once more, if the policy says so.

A job is a subclass of `Job`: its checks, its body, and what it says of a commit that was made before.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final, Generic, Literal, Protocol, TypeVar

from muniment import events
from muniment.agent.model import Budget, Model, ModelError
from muniment.cancelling import Cancel
from muniment.content.admission import own
from muniment.content.gates import on_one_line
from muniment.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidContent,
    JobFailed,
    JobTimeout,
    MunimentError,
    PathEscape,
    PendingReview,
    Refusal,
    RememberNoUpdate,
    RememberRefused,
    StoreConflict,
    ToolError,
)
from muniment.events import Span, span
from muniment.kernel.cancel import Cancelling, Patience
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import Limits, Policy
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.place import Place
from muniment.operations.request import MAX_TASK_CHARS
from muniment.operations.visibility import Reader, Visibility
from muniment.store.audit import append, timestamp
from muniment.store.commit import Commit, Stamp, Terms, commit
from muniment.store.ledger import ChangeRow, CommitRow, Run, of_task
from muniment.store.review import waiting_of
from muniment.store.trust import TrustRule, new_ulid, stamp
from muniment.types import Turn

_TASK_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TASK_CHARS}}}", re.ASCII)

T = TypeVar("T")


Fruitless = Literal["failed", "cancelled"]
"""How a task ends that came to nothing."""


class _JobAnswer(Protocol):
    """What every job answers."""

    @property
    def task_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def error(self) -> MunimentError | None: ...


R = TypeVar("R", bound=_JobAnswer)


class Job(ABC, Generic[R]):
    """A task under way, over all its attempts.

    Args:
        place: the policy, roots and state; they stay the caller's.
        decided_by: what chooses the places and words, as the ledger has it.
        trust: of whoever asks.
        task_id: as it was asked for, not yet checked; None: a new one.
        is_dry: nothing is written; and who only asks is not told what the task did before.

    Attributes:
        kind: such as `forget`.
        model: what decides, where anything is to be decided.
        cancel: ends it early; once the commit has begun to write it runs to its end.
        fact: keyed digest of what is asked for; None: nothing is said.
        notes: what a person should know.
    """

    kind: ClassVar[str]
    model: Model
    cancel: Cancelling

    def __init__(
        self, place: Place, decided_by: str, trust: Trust, task_id: str | None, *, is_dry: bool
    ) -> None:
        self.place, self.decided_by, self.trust, self.is_dry = place, decided_by, trust, is_dry
        self.id = id_of_task(self.kind, task_id)
        self.fact: str | None = None
        self.notes: list[str] = []
        self._begun: Budget | None = None

    @abstractmethod
    def check(self) -> str | None:
        """The `fact`, if it can be asked for.

        Raises:
            MunimentError: it cannot.
        """

    @abstractmethod
    def body(self) -> R:
        """Do it; what this raises ends the task."""

    @abstractmethod
    def again(self, done: CommitRow) -> R:
        """What a task answers that has committed before, as far as the ledger knows it."""

    @abstractmethod
    def ended(self, status: Fruitless, error: MunimentError) -> R:
        """What it answers where it came to nothing."""

    @abstractmethod
    def of_event(self, result: R) -> dict[str, object]:
        """What its event tells besides id, status and code."""

    @property
    def is_by_rules(self) -> bool:
        """Whether the embedded rules decide, and no language model."""
        from muniment.agent.filing import RuleWriter  # here, since an undo has none and starts without it

        return isinstance(self.model, RuleWriter)

    @property
    def budget(self) -> Budget:
        """What it may still use; only what has begun may use anything."""
        assert self._begun is not None  # noqa: S101  for the type checker: a body begins first
        return self._begun

    @property
    def spent(self) -> tuple[int, float, tuple[Turn, ...]]:
        """Turns, seconds and timeline of what it used so far."""
        begun = self._begun
        return (0, 0.0, ()) if begun is None else (begun.turns, begun.seconds, tuple(begun.timeline))

    def begin(self, limits: Limits) -> None:
        """From here on its time runs (K3)."""
        self._begun = Budget(limits, self.cancel, self.place.clock)

    def run(self) -> Run:
        """Who commits now, and why."""
        return replace(run_of(self.place, self.kind, self.id, self.trust, self.decided_by), fact=self.fact)

    def terms(self, trust: TrustRule) -> Terms:
        """What its commit is bound to."""
        patience = Patience(self.budget.deadline, self.budget.cancel)
        return replace(terms_of(self.place, self.run(), patience, trust), dry_run=self.is_dry)

    def repeated(self, done: Commit) -> R | None:
        """What it answers where an attempt that had been given up was quicker to commit (K2)."""
        earlier = done_before(self.place, self.kind, self.id, self.fact) if done.repeated else None
        if earlier is None:
            return None
        self._begun = None  # What is told is what the other attempt did.
        return self.again(earlier)

    def as_error(self, problem: MunimentError) -> MunimentError:
        """The error that callers see for one that ended it."""
        if isinstance(problem, DeadlineExceeded):
            return JobTimeout(str(problem), code=f"{self.kind}_timeout")
        return problem


def carry_out(job: Job[R], cancel: Cancel | None) -> R:
    """Carry out a job; what goes wrong is in the result's `error` (K1).

    Args:
        job: new.
        cancel: of whoever asks; None: nobody wants it to end early.
    """
    with Cancel() if cancel is None else nullcontext(cancel) as job.cancel:
        return ended_as(job.kind, partial(_body, job), partial(_fruitless, job), job.of_event)


def ended_as(
    kind: str,
    body: Callable[[], R],
    fruitless: Callable[[MunimentError], R],
    of_event: Callable[[R], dict[str, object]],
) -> R:
    """What `body` returns, or `fruitless` makes of its error: in a span, and with an event that says so."""
    with span("task", kind=kind) as told:
        try:
            result = body()
        except MunimentError as error:
            result = fruitless(error)
        emit_end(kind, result, told, **of_event(result))
    return result


def emit_end(kind: str, result: _JobAnswer, task_span: Span, **fields: object) -> None:
    """Log the end of a task as an event with some fields, and put it into the task's span."""
    code = None if result.error is None else result.error.code
    task_span.tell(task_id=result.task_id, status=result.status, error=code)
    events.emit(f"{kind}_ended", task_id=result.task_id, status=result.status, code=code, **fields)


def status_of(error: MunimentError) -> Fruitless:
    """How a task ended that ended with an error."""
    return "cancelled" if isinstance(error, Cancelled) else "failed"


def _body(job: Job[R]) -> R:
    job.fact = job.check()
    check_task_id(job.id)
    done = None if job.is_dry else done_before(job.place, job.kind, job.id, job.fact)
    if done is None and not job.is_dry:
        job.place.state.require_writable()
    try:
        return job.body() if done is None else job.again(done)
    except ModelError as problem:
        told = own(str(problem), "the model failed")
    # Raised out here, so that nothing hangs on to the words of the model, which it does not quote.
    raise model_failed(job.kind, job.model.name, told)


def model_failed(kind: str, model: str, why: str) -> JobFailed:
    """Return the error of a job whose model failed; `why` has passed the gates (`own`)."""
    reason = model_failure(model, why)
    return JobFailed(f"{why}; nothing was written", code=f"{kind}_failed", reason=reason)


MODEL_ADVICE: Final = "if this happens often: muniment doctor, --protocol decide, or a larger model"
"""What a person can do whose model fails."""


def model_failure(model: str, why: str) -> str:
    """Say on one line that a model failed, and why."""
    return on_one_line(f"the model {model} failed: {why}")


def _fruitless(job: Job[R], problem: MunimentError) -> R:
    error = Visibility(job.place, Reader(job.trust)).conceal(job.as_error(problem))
    result = job.ended(status_of(error), error)
    put_on_record(job.place, job.kind, job.id, error, decided_by=job.decided_by)
    return result


def once_more(
    policy: Policy, kind: str, task: str, attempt: Callable[[], T], *, budget: Budget | None = None
) -> T:
    """What `attempt` returns; tried again where somebody wrote just while it committed, as the policy says.

    Args:
        policy: of the task.
        kind: of job.
        task: its id.
        attempt: what to do.
        budget: that may leave no turn for another try; None: none is needed.

    Raises:
        StoreConflict: somebody did so again, there is no other try, or what was left did not suffice for it.
    """
    try:
        return attempt()
    except StoreConflict as conflict:
        if policy.changes.conflict != "retry" or (budget is not None and budget.turns_left == 0):
            raise
        events.emit(f"{kind}_repeated", task_id=task)
        try:
            return attempt()
        except (RememberNoUpdate, JobFailed) as error:
            if budget is None:
                raise
            raise conflict from error


def run_of(place: Place, kind: str, task: str, trust: Trust, decided_by: str) -> Run:
    """Who asks for something now, and why, under the policy of a place."""
    return Run(task, timestamp(), trust, decided_by, place.policy.label, kind)


def terms_of(place: Place, run: Run, patience: Patience, trust: TrustRule) -> Terms:
    """What a commit at a place is bound to; the bytes stay as they are proposed."""
    return Terms(place.policy, place.roots, patience, place.state, run, trust)


def put_on_record(place: Place, kind: str, task: str, error: MunimentError, *, decided_by: str) -> None:
    """Record that a task ended without effect; where the ledger cannot be written, only log that."""
    body = {"kind": kind, "code": error.code, "decided_by": decided_by, "policy": place.policy.label}
    if isinstance(error, PathEscape):
        body |= {"via": error.via, "requested": error.requested, "tool": error.tool or ""}
    try:
        append(place.state, timestamp(), "ended", task, body)
    except MunimentError as problem:
        events.emit("record_lost", task_id=task, code=problem.code)


# -- repeating ---------------------------------------------------------------------------------------


def id_of_task(kind: str, asked: str | None) -> str:
    """The id that was asked for, not yet checked; None: a new one."""
    return f"{kind}-{new_ulid()}" if asked is None else asked


def check_task_id(task: str) -> None:
    """Refuse what cannot be the id of a task.

    Raises:
        InvalidContent: it is empty, too long, or has other characters.
    """
    if _TASK_ID.fullmatch(task) is None:
        raise InvalidContent(f"a task id has 1 to {MAX_TASK_CHARS} of A-Z a-z 0-9 . _ -")


def done_before(place: Place, kind: str, task: str, fact: str | None) -> CommitRow | None:
    """The commit of a task, with the names that its scopes have here; None: it is to be carried out.

    Args:
        place: where it is asked for now.
        kind: of job, likewise.
        task: its id.
        fact: keyed digest of what is asked for; None: nothing is said.

    Raises:
        InvalidContent: the id is that of another job, of one in another workspace, or of one that was asked
            for something else, as far as that was not erased. Its commit must not stand for what is asked
            for now.
        PendingReview: it waits for the owner; nothing of it is asked of a model once more.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    here = place.scopes_by_key()
    done, waiting = of_task(place.state, task), waiting_of(place.state, task)
    if done is not None:
        _check_same(task, kind, fact, done.run, is_here=all(item.root in here for item in done.changes))
        return replace(done, changes=tuple(_renamed(item, here[item.root]) for item in done.changes))
    if waiting is not None:
        _check_same(task, kind, fact, waiting.run, is_here=here.keys() >= set(waiting.roots.values()))
        raise PendingReview(waiting.id, waiting.reasons)
    return None


def _renamed(row: ChangeRow, scope: Scope) -> ChangeRow:
    """A row with the name that its scope has now."""
    path = replace(row.change.path, scope=scope)
    return row._replace(change=replace(row.change, path=path))


def _check_same(task: str, kind: str, fact: str | None, run: Run, *, is_here: bool) -> None:
    is_other = None not in (fact, run.fact) and fact != run.fact
    if run.kind != kind or is_other or not is_here:
        raise InvalidContent(f"another task has the id {task!r}; nothing was written, choose another id")


# -- edits -------------------------------------------------------------------------------------------
#
# What somebody does to entries that he names is a task as well, but no job: it raises what goes wrong.

EDIT: Final = "edit"


def commit_edit(changes: Sequence[FileChange], terms: Terms) -> Commit:
    """Commit what somebody does to entries that he names.

    Raises:
        RememberRefused: gates, quotas or the policy do not let it be so.
        MunimentError: as `store.commit`.
    """
    try:
        return commit([ChangeSet(tuple(changes))], terms)
    except (Refusal, ToolError) as error:
        raise RememberRefused(f"the change was refused: {error}") from error


def stamped_like(kept: Mapping[CanonicalPath, bytes]) -> Stamp:
    """Completes new bytes as those of the entries that were, by their new paths: they keep their ids."""
    return lambda data, _base, path, run: stamp(data, kept[path], path, run)
