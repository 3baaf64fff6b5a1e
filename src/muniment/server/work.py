"""Run the tasks of one workspace: its `JobContext`, its jobs and its metrics.

The daemon and `muniment acp` use this module. It is separate from `core`, so that `muniment acp` loads
neither asyncio nor an HTTP server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from muniment.agent.model import Model
from muniment.agent.runner import ToolDecision
from muniment.cancelling import Cancel
from muniment.errors import (
    Cancelled,
    ManagedMemoryUnavailable,
    MunimentError,
    PathEscape,
)
from muniment.events import TraceParents
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Trust
from muniment.opening import open_context
from muniment.operations.job_context import JobContext
from muniment.sandbox.tools.calls import TOOLS, get_tool_label
from muniment.server.contract import build_task_error
from muniment.server.lane import Lane
from muniment.server.lane_tasks import TaskOutcome
from muniment.server.runner import Report
from muniment.settings import Settings
from muniment.store.ledger import get_root_key
from muniment.store.state import State
from muniment.store.tasks import OWNER, QueuedTask
from muniment.types import (
    MAX_RETAINED,
    DreamRequest,
    DreamResult,
    ForgetRequest,
    ForgetResult,
    RememberRequest,
    RememberResult,
    Turn,
)
from muniment.types.documents import create_document
from muniment.workspaces.projects import find_project

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller


# -- metrics -----------------------------------------------------------------------------------------
#
# Metrics of the daemon for Prometheus. Labels are kinds, codes, tools and workspaces, never data of a task.

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_WAIT_BUCKETS: Final = (0.005, 0.015, 0.05, 0.25, 1, 5, 30, 120, 600, 3600)
_RUN_BUCKETS: Final = (0.05, 0.25, 1, 5, 15, 30, 60, 120, 300)


C = TypeVar("C", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one daemon, for Prometheus."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def create(kind: type[C], name: str, description: str, *labels: str, **options: Any) -> C:
            return kind(f"muniment_{name}", description, labels, registry=self._registry, **options)

        self._tasks = create(Counter, "tasks", "Tasks that ended", "kind", "status", "code")
        self._wait_seconds = create(
            Histogram, "task_wait_seconds", "Seconds from acceptance to start", "kind", buckets=_WAIT_BUCKETS
        )
        self._run_seconds = create(
            Histogram, "task_run_seconds", "Seconds from start to end", "kind", buckets=_RUN_BUCKETS
        )
        self._pending = create(Gauge, "pending_tasks", "Tasks that wait or run", "workspace")
        self._escapes = create(
            Counter, "escapes", "Tasks that failed because of a path outside the memory", "tool"
        )
        self._tokens = create(
            Counter, "model_tokens", "Model tokens as counted by the model's server", "direction"
        )
        self._recalls = create(Counter, "recalls", "Recalls that were answered", "outcome")

    def watch_pending(self, workspace: str, count: Callable[[], float]) -> None:
        """Register a workspace; each scrape reports `count()` as its number of pending tasks."""
        self._pending.labels(workspace).set_function(count)

    def record_start(self, kind: str, waited: timedelta) -> None:
        """Record the start of a task that waited for `waited`."""
        self._wait_seconds.labels(kind).observe(max(0.0, waited.total_seconds()))

    def record_end(self, kind: str, status: str, code: str, seconds: float) -> None:
        """Record the end of a task.

        Args:
            kind: kind of the task.
            status: final status of the task.
            code: error code; empty if the task did not fail.
            seconds: time from start to end.
        """
        self._tasks.labels(kind, status, code).inc()
        self._run_seconds.labels(kind).observe(seconds)

    def record_usage(self, error: MunimentError | None, timeline: Sequence[Turn]) -> None:
        """Record the model tokens of a task, and a path escape if `error` is one."""
        if isinstance(error, PathEscape):
            self._escapes.labels(error.tool if error.tool in TOOLS else "").inc()
        for turn in timeline:
            self._tokens.labels("input").inc(turn.usage.input_tokens)
            self._tokens.labels("output").inc(turn.usage.output_tokens)

    def record_recall(self, outcome: Literal["found", "abstained", "failed"]) -> None:
        """Record a recall: it found entries, found none (`abstained`), or failed."""
        self._recalls.labels(outcome).inc()

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


# -- workspace ---------------------------------------------------------------------------------------
#
# A workspace that the daemon serves: its roots and policy, its lane, and whether both are available.


class Workspace:
    """A workspace that is served. Close it when its lane has stopped.

    Args:
        path: the real path of the workspace.
        key: the key of its project, see `workspaces.projects.Binding.key`.
        state: the state that all workspaces share; the caller closes it.
        find_context: opens the policy and the roots, and returns the `JobContext`.

    Attributes:
        lane: the tasks of the workspace.
    """

    def __init__(self, path: Path, key: str, state: State, find_context: Callable[[], JobContext]) -> None:
        self.path, self.key = path, key
        self.lane = Lane(state, key)
        self._state, self._find_context = state, find_context
        self._lock = threading.Lock()
        self._context: JobContext | None = None
        self._bound_contexts: list[
            JobContext
        ] = []  # Includes roots that were replaced, because a task may still use them.
        self._recallers: list[tuple[JobContext, Recaller]] = []  # Includes recallers of replaced roots.
        self._scopes: Mapping[str, str] = {}

    def open_context(self) -> JobContext:
        """Return the policy and the bound roots; open them if they are not open.

        Raises:
            ManagedMemoryUnavailable: the memory is not available, or a root was replaced; in the second case,
                the next call binds the new root.
            PolicyInvalid, InvalidScope, ConfinementUnavailable, ConfigInvalid, DeadlineExceeded: the policy
                or a root cannot be opened; the error contains the reason.

        Cost: about 50 ms to open the policy and the roots, then one check of each root.
        """
        with self._lock:
            context = self._context
            if context is None:
                context = self._context = self._bind_context()
        try:
            context.select_scopes(None)
        except PathEscape as error:
            with self._lock:
                if self._context is context:
                    self._context = None
            raise ManagedMemoryUnavailable(error.requested, "was replaced while it was served") from error
        return context

    def get_recaller(self) -> Recaller:
        """Return the recaller of the current `JobContext`. The workspace creates it once, and closes it.

        Raises:
            MunimentError: the memory is not available, see `open_context`.

        Cost: on the first call the cost of `open_context`, and about 30 ms to create the recaller.
        """
        from muniment.opening import create_recaller

        context = self.open_context()
        with self._lock:
            for bound_context, recaller in self._recallers:
                if bound_context is context:
                    return recaller
            recaller = create_recaller(context)
            self._recallers.append((context, recaller))
        return recaller

    @contextmanager
    def open_recaller(self, deadline: Deadline) -> Iterator[Recaller]:
        """Provide the recaller for the duration of the block.

        Args:
            deadline: not used.

        Raises:
            MunimentError: the memory is not available, see `open_context`.
        """
        del deadline
        yield self.get_recaller()

    def _bind_context(self) -> JobContext:
        context = self._find_context()
        try:
            self._scopes = {get_root_key(self._state, root): scope for scope, root in context.roots.items()}
        except BaseException:
            context.close_roots()
            raise
        self._bound_contexts.append(context)
        return context

    @property
    def is_open(self) -> bool:
        """Return whether the roots of the workspace are currently bound."""
        return self._context is not None

    def problem(self) -> MunimentError | None:
        """Return the error that prevents new tasks, or None if tasks can be accepted."""
        try:
            self.open_context()
        except MunimentError as error:
            return error
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user from opening the `JobContext`; empty if it is not open."""
        return () if self._context is None else self._context.notes

    def scopes(self) -> Mapping[str, str]:
        """Return the name of each scope by the key of its root, as last opened; initially empty."""
        return self._scopes

    def close(self) -> None:
        """Close the roots of the workspace and their recallers."""
        for _, recaller in self._recallers:
            recaller.close()
        for context in self._bound_contexts:
            context.close_roots()


def create_workspace(directory: Path, settings: Settings, state: State, *, in_process: bool) -> Workspace:
    """Return the workspace that contains a directory.

    Args:
        directory: a directory inside the workspace, which the user specified.
        settings: policy and roots of the workspace.
        state: the state that all workspaces share; the caller closes it.
        in_process: run the tools in this process; the policy must contain `require = "none"`.

    Raises:
        ConfigInvalid: the directory does not exist, or `projects.json` is invalid.
    """
    found = find_project(settings.home, directory)
    path = found.checkout.path
    find_context = partial(open_context, settings, path, in_process=in_process, state=state)
    return Workspace(path, found.key, state, find_context)


# -- work --------------------------------------------------------------------------------------------
#
# Runs a task of a lane as the job of its kind, and converts the outcome to the form of the HTTP contract.


class TaskExecutor:
    """Runs the tasks of a workspace. A `LaneRunner` calls it for each task.

    Args:
        workspace: the workspace of the tasks.
        model: the model that files the facts.
        metrics: records each task.
        parents: the trace span of the caller of each task, which becomes the parent of the task's span.
    """

    def __init__(
        self, workspace: Workspace, model: Model, metrics: Metrics, parents: TraceParents | None = None
    ) -> None:
        self._workspace, self._model, self._metrics = workspace, model, metrics
        self._parents = TraceParents() if parents is None else parents

    def __call__(self, task: QueuedTask, cancel: Cancel, report: Report) -> TaskOutcome:
        """Run a task of the lane, and return its outcome.

        Args:
            task: the task.
            cancel: cancels the task.
            report: receives an event for each turn.
        """
        import structlog

        self._metrics.record_start(task.kind, datetime.now(UTC) - datetime.fromisoformat(task.created))
        started = time.monotonic()
        context = {
            "task": task.id,
            "attempt": task.attempt,
            "client": task.originator.client,
            "workspace": self._workspace.key,
        }
        with structlog.contextvars.bound_contextvars(**context), self._parents.attach(task.id):
            ended, error, timeline = self._run_job(task, cancel, report)
        code = "" if ended.error is None else ended.error["code"]
        self._metrics.record_end(task.kind, ended.status, code, time.monotonic() - started)
        self._metrics.record_usage(error, timeline)
        return ended

    def _run_job(
        self, task: QueuedTask, cancel: Cancel, report: Report
    ) -> tuple[TaskOutcome, MunimentError | None, Sequence[Turn]]:
        try:
            context = self._workspace.open_context()
        except MunimentError as error:
            return TaskOutcome("failed", error={"code": "managed_memory_unavailable"}), error, ()
        result = _JOBS[task.kind](self, task, context, cancel, report)
        match result.error:
            case None:
                return TaskOutcome("completed", create_document(result)), None, result.timeline
            case Cancelled():
                return TaskOutcome("cancelled"), None, result.timeline
            case failure:
                return (
                    TaskOutcome("failed", error=build_task_error(failure, task.kind)),
                    failure,
                    result.timeline,
                )

    def _remember(
        self, task: QueuedTask, context: JobContext, cancel: Cancel, report: Report
    ) -> RememberResult:
        from muniment.operations.remember import remember

        def observe(decision: ToolDecision) -> None:
            outcome = decision.outcome
            report(
                {
                    "status": "running",
                    "attempt": task.attempt,
                    "turn": decision.turn,
                    "tool": get_tool_label(decision.tool),
                    "verdict": outcome.verdict,
                    **({} if outcome.code is None else {"toolCode": outcome.code}),
                }
            )

        arguments = task.arguments or {}
        request = RememberRequest(
            arguments["content"],
            arguments["scope"],
            arguments["context"],
            trust=task.trust,
            task_id=task.id,
            secret=arguments.get("secret"),
            expires=arguments.get("expires"),
        )
        return remember(request, context, self._model, cancel=cancel, observe=observe)

    def _forget(self, task: QueuedTask, context: JobContext, cancel: Cancel, _: Report) -> ForgetResult:
        from muniment.operations.forget import forget

        arguments = task.arguments or {}
        request = ForgetRequest(
            arguments["query"],
            scope=arguments["scope"],
            dry_run=arguments["dry_run"],
            trust=task.trust,
            task_id=task.id,
            digest=arguments.get("digest"),
        )
        result = forget(request, context, self._model, cancel=cancel)
        # A client that may not delete an entry must not learn that it exists.
        return replace(result, kept=result.kept[:MAX_RETAINED] if task.trust is Trust.OWNER else ())

    def _dream(self, task: QueuedTask, context: JobContext, cancel: Cancel, _: Report) -> DreamResult:
        from muniment.operations.dream import dream

        is_attended = task.originator.token == OWNER
        arguments = task.arguments or {}
        request = DreamRequest(
            arguments.get("scope"),
            dry_run=bool(arguments.get("dry_run")),
            trust=task.trust,
            attended=is_attended,
            task_id=task.id,
        )
        return dream(request, context, self._model, cancel=cancel)


_JOBS: Final[
    Mapping[
        str,
        Callable[
            [TaskExecutor, QueuedTask, JobContext, Cancel, Report],
            RememberResult | ForgetResult | DreamResult,
        ],
    ]
] = {
    "remember": TaskExecutor._remember,  # noqa: SLF001  of this class, by kind
    "forget": TaskExecutor._forget,  # noqa: SLF001
    "dream": TaskExecutor._dream,  # noqa: SLF001
}
