"""What a workspace of a daemon or of a host does: its place, its tasks, and what is counted of them.

Apart from `core`, so that `muniment acp` loads neither asyncio nor an HTTP server.
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
# What the daemon counts, for Prometheus. Labels are kinds, codes, tools and workspaces, never of a task.

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
            Histogram, "task_wait_seconds", "From acceptance to beginning", "kind", buckets=_WAITS
        )
        self._run = made(Histogram, "task_run_seconds", "From beginning to end", "kind", buckets=_RUNS)
        self._pending = made(Gauge, "pending_tasks", "Tasks that wait or run", "workspace")
        self._escapes = made(Counter, "escapes", "Tasks that a path outside the memory ended", "tool")
        self._tokens = made(Counter, "model_tokens", "Tokens as the model's server counts", "direction")
        self._recalls = made(Counter, "recalls", "Recalls that were answered", "outcome")

    def watch_pending(self, workspace: str, count: Callable[[], float]) -> None:
        """Report how many tasks of a workspace are pending, counted whenever somebody asks."""
        self._pending.labels(workspace).set_function(count)

    def began(self, kind: str, waited: timedelta) -> None:
        """A task began."""
        self._wait.labels(kind).observe(max(0.0, waited.total_seconds()))

    def ended(self, kind: str, status: str, code: str, seconds: float) -> None:
        """A task ended."""
        self._tasks.labels(kind, status, code).inc()
        self._run.labels(kind).observe(seconds)

    def spent(self, error: MunimentError | None, timeline: Sequence[Turn]) -> None:
        """What a task took of the model, and whether it ended by an escape."""
        if isinstance(error, PathEscape):
            self._escapes.labels(error.tool if error.tool in TOOLS else "").inc()
        for turn in timeline:
            self._tokens.labels("input").inc(turn.usage.input_tokens)
            self._tokens.labels("output").inc(turn.usage.output_tokens)

    def recalled(self, outcome: Literal["found", "abstained", "failed"]) -> None:
        """A recall was answered."""
        self._recalls.labels(outcome).inc()

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


# -- workspace ---------------------------------------------------------------------------------------
#
# A workspace that the daemon serves: its roots and policy, its lane, and whether both can be used now.


class Workspace:
    """One workspace. Close it when its lane has stopped.

    Args:
        path: its real path.
        key: that of its project, see `workspaces.projects.Binding.key`.
        state: shared by all workspaces; stays the caller's.
        find: finds its place.

    Attributes:
        lane: its tasks.
    """

    def __init__(self, path: Path, key: str, state: State, find: Callable[[], Place]) -> None:
        self.path, self.key = path, key
        self.lane = Lane(state, key)
        self._state, self._find = state, find
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._bound: list[Place] = []  # Also those whose roots were replaced: a task may still use them.
        self._recallers: list[tuple[Place, Recaller]] = []  # Likewise.
        self._scopes: Mapping[str, str] = {}

    def place(self) -> Place:
        """The policy and the bound roots, as they were when they could last be opened.

        Raises:
            ManagedMemoryUnavailable: also where a root was replaced; the next call binds what is there then.
            PolicyInvalid, InvalidScope, ConfinementUnavailable, ConfigInvalid, DeadlineExceeded: they cannot
                be used now, with the reason.

        Cost: some 50 ms until they are open, then a look at each root.
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
        """What recalls from the place, the same for as long as that is; it stays this workspace's.

        Raises as `place`.

        Cost: the first time what `place` takes, and some 30 ms for what it is made of.
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
        """What recalls from the place until the block ends; raises as `place`."""
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
        """Whether the scopes are those of roots that are bound now."""
        return self._place is not None

    def problem(self) -> MunimentError | None:
        """Why no task can be accepted now; None: nothing speaks against it."""
        try:
            self.place()
        except MunimentError as error:
            return error
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of how the place was found; nothing while it is not open."""
        return () if self._place is None else self._place.notes

    def scopes(self) -> Mapping[str, str]:
        """The names of the scopes by the keys of their roots, as these were last opened; none before that."""
        return self._scopes

    def close(self) -> None:
        """Close the roots, and what recalls from them."""
        for _, recaller in self._recallers:
            recaller.close()
        for place in self._bound:
            place.close_roots()


def workspace_at(directory: Path, settings: Settings, state: State, *, in_process: bool) -> Workspace:
    """The workspace around a directory.

    Args:
        directory: in it, which a person named.
        settings: with what policy and roots.
        state: shared by all workspaces; stays the caller's.
        in_process: as `open`.

    Raises:
        ConfigInvalid: there is no such directory, or `projects.json` cannot be used.
    """
    found = find_project(settings.home, directory)
    path = found.checkout.path
    find = partial(find_place, settings, path, in_process=in_process, state=state)
    return Workspace(path, found.key, state, find)


# -- work --------------------------------------------------------------------------------------------
#
# Carries out a task of a lane as the job of its kind; what came of it is told in the contract's words.


class Work:
    """What a workspace's runner does.

    Args:
        workspace: whose tasks.
        model: what files the facts.
        metrics: told of each task.
        parents: the spans of callers that tasks are parts of.
    """

    def __init__(
        self, workspace: Workspace, model: Model, metrics: Metrics, parents: TraceParents | None = None
    ) -> None:
        self._workspace, self._model, self._metrics = workspace, model, metrics
        self._parents = TraceParents() if parents is None else parents

    def __call__(self, task: QueuedTask, cancel: Cancel, tell: Tell) -> Ended:
        """Carry out a task of the lane."""
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
        # Who may not remove it learns not that it is there.
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
