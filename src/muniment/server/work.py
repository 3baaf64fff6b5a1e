"""Run the tasks of one workspace of a daemon or host: its `Place`, its jobs and its metrics.

Separate from `core`, so that `muniment acp` loads neither asyncio nor an HTTP server.
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
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Trust
from muniment.opening import find_place
from muniment.operations.place import Place
from muniment.sandbox.tools.calls import TOOLS, known_tool
from muniment.server.contract import task_error
from muniment.server.lane import Lane
from muniment.server.lane_tasks import Ended
from muniment.server.runner import Tell
from muniment.settings import Settings
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.tasks import OWNER, QueuedTask
from muniment.types import (
    MAX_KEPT,
    DreamRequest,
    DreamResult,
    ForgetRequest,
    ForgetResult,
    RememberRequest,
    RememberResult,
    Turn,
)
from muniment.types.documents import document
from muniment.workspaces.projects import find_project

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller


# -- metrics -----------------------------------------------------------------------------------------
#
# Metrics of the daemon for Prometheus. Labels are kinds, codes, tools and workspaces, never data of a task.

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_WAITS: Final = (0.005, 0.015, 0.05, 0.25, 1, 5, 30, 120, 600, 3600)
_RUNS: Final = (0.05, 0.25, 1, 5, 15, 30, 60, 120, 300)


C = TypeVar("C", Counter, Gauge, Histogram)


class Metrics:
    """The counters of one daemon."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def made(kind: type[C], name: str, told: str, *labels: str, **more: Any) -> C:
            return kind(f"muniment_{name}", told, labels, registry=self._registry, **more)

        self._tasks = made(Counter, "tasks", "Tasks that ended", "kind", "status", "code")
        self._wait = made(
            Histogram, "task_wait_seconds", "Seconds from acceptance to start", "kind", buckets=_WAITS
        )
        self._run = made(Histogram, "task_run_seconds", "Seconds from start to end", "kind", buckets=_RUNS)
        self._pending = made(Gauge, "pending_tasks", "Tasks that wait or run", "workspace")
        self._escapes = made(
            Counter, "escapes", "Tasks that failed because of a path outside the memory", "tool"
        )
        self._tokens = made(
            Counter, "model_tokens", "Model tokens as counted by the model's server", "direction"
        )
        self._recalls = made(Counter, "recalls", "Recalls that were answered", "outcome")

    def watch_pending(self, workspace: str, count: Callable[[], float]) -> None:
        """Report the number of pending tasks of a workspace, counted at each scrape."""
        self._pending.labels(workspace).set_function(count)

    def began(self, kind: str, waited: timedelta) -> None:
        """Record the start of a task."""
        self._wait.labels(kind).observe(max(0.0, waited.total_seconds()))

    def ended(self, kind: str, status: str, code: str, seconds: float) -> None:
        """Record the end of a task."""
        self._tasks.labels(kind, status, code).inc()
        self._run.labels(kind).observe(seconds)

    def spent(self, error: MunimentError | None, timeline: Sequence[Turn]) -> None:
        """Record the model tokens of a task, and whether a path escape ended it."""
        if isinstance(error, PathEscape):
            self._escapes.labels(error.tool if error.tool in TOOLS else "").inc()
        for turn in timeline:
            self._tokens.labels("input").inc(turn.usage.input_tokens)
            self._tokens.labels("output").inc(turn.usage.output_tokens)

    def recalled(self, outcome: Literal["found", "abstained", "failed"]) -> None:
        """Record a recall and its outcome."""
        self._recalls.labels(outcome).inc()

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


# -- workspace ---------------------------------------------------------------------------------------
#
# A workspace that the daemon serves: its roots and policy, its lane, and whether both are available.


class Workspace:
    """One workspace. Close it when its lane has stopped.

    Args:
        path: its real path.
        key: the key of its project, see `workspaces.projects.Binding.key`.
        state: shared by all workspaces; the caller closes it.
        find: finds its `Place`.

    Attributes:
        lane: its tasks.
    """

    def __init__(self, path: Path, key: str, state: State, find: Callable[[], Place]) -> None:
        self.path, self.key = path, key
        self.lane = Lane(state, key)
        self._state, self._find = state, find
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._bound: list[Place] = []  # Includes roots that were replaced, because a task may still use them.
        self._recallers: list[tuple[Place, Recaller]] = []  # Includes recallers of replaced roots.
        self._scopes: Mapping[str, str] = {}

    def place(self) -> Place:
        """Return the policy and the bound roots; open them if they are not open.

        Raises:
            ManagedMemoryUnavailable: also if a root was replaced; the next call binds the new root.
            PolicyInvalid, InvalidScope, ConfinementUnavailable, ConfigInvalid, DeadlineExceeded: they are not
                available, with the reason.

        Cost: about 50 ms to open them, then one check of each root.
        """
        with self._lock:
            place = self._place
            if place is None:
                place = self._place = self._bind()
        try:
            place.chosen(None)
        except PathEscape as error:
            with self._lock:
                if self._place is place:
                    self._place = None
            raise ManagedMemoryUnavailable(error.requested, "was replaced while it was served") from error
        return place

    def recaller(self) -> Recaller:
        """Return the recaller of the current `Place`, created once for each; the workspace closes it.

        Raises as `place`.

        Cost: on the first call the cost of `place`, and about 30 ms to create the recaller.
        """
        from muniment.opening import recaller_of

        place = self.place()
        with self._lock:
            for known, recaller in self._recallers:
                if known is place:
                    return recaller
            recaller = recaller_of(place)
            self._recallers.append((place, recaller))
        return recaller

    @contextmanager
    def recalling(self, patience: Patience) -> Iterator[Recaller]:
        """Provide the recaller until the block ends; raises as `place`."""
        del patience
        yield self.recaller()

    def _bind(self) -> Place:
        place = self._find()
        try:
            self._scopes = {root_key(self._state, root): scope for scope, root in place.roots.items()}
        except BaseException:
            place.close_roots()
            raise
        self._bound.append(place)
        return place

    @property
    def is_open(self) -> bool:
        """Return whether `scopes` lists roots that are currently bound."""
        return self._place is not None

    def problem(self) -> MunimentError | None:
        """Return why no task can be accepted, or None if tasks can be accepted."""
        try:
            self.place()
        except MunimentError as error:
            return error
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user about how the `Place` was found; empty if it is not open."""
        return () if self._place is None else self._place.notes

    def scopes(self) -> Mapping[str, str]:
        """Return the names of the scopes by the keys of their roots, as last opened; initially empty."""
        return self._scopes

    def close(self) -> None:
        """Close the roots and their recallers."""
        for _, recaller in self._recallers:
            recaller.close()
        for place in self._bound:
            place.close_roots()


def workspace_at(directory: Path, settings: Settings, state: State, *, in_process: bool) -> Workspace:
    """Return the workspace that contains a directory.

    Args:
        directory: a directory inside it, which the user specified.
        settings: its policy and roots.
        state: shared by all workspaces; the caller closes it.
        in_process: as in `open`.

    Raises:
        ConfigInvalid: the directory does not exist, or `projects.json` is invalid.
    """
    found = find_project(settings.home, directory)
    path = found.checkout.path
    find = partial(find_place, settings, path, in_process=in_process, state=state)
    return Workspace(path, found.key, state, find)


# -- work --------------------------------------------------------------------------------------------
#
# Runs a task of a lane as the job of its kind, and translates the outcome into the terms of the contract.


class Work:
    """Runs the tasks of a workspace for its `Runner`.

    Args:
        workspace: the workspace of the tasks.
        model: the model that files the facts.
        metrics: records each task.
        parents: trace spans of callers that are parents of tasks.
    """

    def __init__(
        self, workspace: Workspace, model: Model, metrics: Metrics, parents: TraceParents | None = None
    ) -> None:
        self._workspace, self._model, self._metrics = workspace, model, metrics
        self._parents = TraceParents() if parents is None else parents

    def __call__(self, task: QueuedTask, cancel: Cancel, tell: Tell) -> Ended:
        """Run a task of the lane."""
        import structlog

        self._metrics.began(task.kind, datetime.now(UTC) - datetime.fromisoformat(task.created))
        started = time.monotonic()
        context = {
            "task": task.id,
            "attempt": task.attempt,
            "client": task.originator.client,
            "workspace": self._workspace.key,
        }
        with structlog.contextvars.bound_contextvars(**context), self._parents.above(task.id):
            ended, error, timeline = self._carried_out(task, cancel, tell)
        code = "" if ended.error is None else ended.error["code"]
        self._metrics.ended(task.kind, ended.status, code, time.monotonic() - started)
        self._metrics.spent(error, timeline)
        return ended

    def _carried_out(
        self, task: QueuedTask, cancel: Cancel, tell: Tell
    ) -> tuple[Ended, MunimentError | None, Sequence[Turn]]:
        try:
            place = self._workspace.place()
        except MunimentError as error:
            return Ended("failed", error={"code": "managed_memory_unavailable"}), error, ()
        result = _JOBS[task.kind](self, task, place, cancel, tell)
        match result.error:
            case None:
                return Ended("completed", document(result)), None, result.timeline
            case Cancelled():
                return Ended("cancelled"), None, result.timeline
            case failure:
                return Ended("failed", error=task_error(failure, task.kind)), failure, result.timeline

    def _remember(self, task: QueuedTask, place: Place, cancel: Cancel, tell: Tell) -> RememberResult:
        from muniment.operations.remember import remember

        def observe(decision: ToolDecision) -> None:
            outcome = decision.outcome
            tell(
                {
                    "status": "running",
                    "attempt": task.attempt,
                    "turn": decision.turn,
                    "tool": known_tool(decision.tool),
                    "verdict": outcome.verdict,
                    **({} if outcome.code is None else {"toolCode": outcome.code}),
                }
            )

        asked = task.arguments or {}
        request = RememberRequest(
            asked["content"],
            asked["scope"],
            asked["context"],
            trust=task.trust,
            task_id=task.id,
            secret=asked.get("secret"),
            expires=asked.get("expires"),
        )
        return remember(request, place, self._model, cancel=cancel, observe=observe)

    def _forget(self, task: QueuedTask, place: Place, cancel: Cancel, _: Tell) -> ForgetResult:
        from muniment.operations.forget import forget

        asked = task.arguments or {}
        request = ForgetRequest(
            asked["query"],
            scope=asked["scope"],
            dry_run=asked["dry_run"],
            trust=task.trust,
            task_id=task.id,
            digest=asked.get("digest"),
        )
        result = forget(request, place, self._model, cancel=cancel)
        # A client that may not delete an entry must not learn that it exists.
        return replace(result, kept=result.kept[:MAX_KEPT] if task.trust is Trust.OWNER else ())

    def _dream(self, task: QueuedTask, place: Place, cancel: Cancel, _: Tell) -> DreamResult:
        from muniment.operations.dream import dream

        attended = task.originator.token == OWNER
        asked = task.arguments or {}
        request = DreamRequest(
            asked.get("scope"),
            dry_run=bool(asked.get("dry_run")),
            trust=task.trust,
            attended=attended,
            task_id=task.id,
        )
        return dream(request, place, self._model, cancel=cancel)


_JOBS: Final[
    Mapping[
        str, Callable[[Work, QueuedTask, Place, Cancel, Tell], RememberResult | ForgetResult | DreamResult]
    ]
] = {
    "remember": Work._remember,  # noqa: SLF001  of this class, by kind
    "forget": Work._forget,  # noqa: SLF001
    "dream": Work._dream,  # noqa: SLF001
}
