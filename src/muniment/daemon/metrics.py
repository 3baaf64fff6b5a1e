"""What the daemon counts, for Prometheus. Labels are kinds, codes, tools and workspaces, never of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from muniment.agent.model import Turn
from muniment.errors import MunimentError, PathEscape
from muniment.tools.calls import TOOLS

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_WAITS: Final = (0.005, 0.015, 0.05, 0.25, 1, 5, 30, 120, 600, 3600)
_RUNS: Final = (0.05, 0.25, 1, 5, 15, 30, 60, 120, 300)


class Metrics:
    """The counters of one daemon."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._tasks = Counter(
            "muniment_tasks", "Tasks that ended", ["kind", "status", "code"], registry=self._registry
        )
        self._wait = Histogram(
            "muniment_task_wait_seconds",
            "From acceptance to beginning",
            ["kind"],
            buckets=_WAITS,
            registry=self._registry,
        )
        self._run = Histogram(
            "muniment_task_run_seconds",
            "From beginning to end",
            ["kind"],
            buckets=_RUNS,
            registry=self._registry,
        )
        self._pending = Gauge(
            "muniment_pending_tasks", "Tasks that wait or run", ["workspace"], registry=self._registry
        )
        self._escapes = Counter(
            "muniment_escapes",
            "Tasks that a path outside the memory ended",
            ["tool"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "muniment_model_tokens",
            "Tokens as the model's server counts",
            ["direction"],
            registry=self._registry,
        )
        self._recalls = Counter(
            "muniment_recalls", "Recalls that were answered", ["outcome"], registry=self._registry
        )

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
