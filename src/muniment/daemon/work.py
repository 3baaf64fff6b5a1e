"""Carries out a task of a lane as the job of its kind; what came of it is told in the contract's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel

from muniment.agent.model import Model, Turn
from muniment.agent.runner import ToolDecision
from muniment.confine.cancel import Cancel
from muniment.daemon import contract
from muniment.daemon.metrics import Metrics
from muniment.daemon.problems import task_error
from muniment.daemon.workspace import Workspace
from muniment.errors import Cancelled, MunimentError
from muniment.jobs.place import Place
from muniment.jobs.request import (
    DreamRequest,
    DreamResult,
    ForgetRequest,
    ForgetResult,
    RememberRequest,
    RememberResult,
)
from muniment.lane import OWNER, Ended, Task, Tell
from muniment.tools.calls import TOOLS

_Result = RememberResult | ForgetResult | DreamResult


class Work:
    """What a workspace's runner does.

    Args:
        workspace: whose tasks.
        model: what files the facts.
        metrics: told of each task.
    """

    def __init__(self, workspace: Workspace, model: Model, metrics: Metrics) -> None:
        self._workspace, self._model, self._metrics = workspace, model, metrics

    def __call__(self, task: Task, cancel: Cancel, tell: Tell) -> Ended:
        """Carry out a task; see `lane.runner.Work`."""
        import structlog

        self._metrics.began(task.kind, datetime.now(UTC) - datetime.fromisoformat(task.created))
        started = time.monotonic()
        context = {
            "task": task.id,
            "attempt": task.attempt,
            "client": task.originator.client,
            "workspace": self._workspace.key,
        }
        with structlog.contextvars.bound_contextvars(**context):
            ended, error, timeline = self._carried_out(task, cancel, tell)
        code = "" if ended.error is None else ended.error["code"]
        self._metrics.ended(task.kind, ended.status, code, time.monotonic() - started)
        self._metrics.spent(error, timeline)
        return ended

    def _carried_out(
        self, task: Task, cancel: Cancel, tell: Tell
    ) -> tuple[Ended, MunimentError | None, Sequence[Turn]]:
        try:
            place = self._workspace.place()
        except MunimentError as error:
            return Ended("failed", error={"code": "managed_memory_unavailable"}), error, ()
        result = _JOBS[task.kind](self, task, place, cancel, tell)
        match result.error:
            case None:
                return Ended("completed", contract.as_wire(_answer(result))), None, result.timeline
            case Cancelled():
                return Ended("cancelled"), None, result.timeline
            case failure:
                return Ended("failed", error=task_error(failure, task.kind)), failure, result.timeline

    def _remember(self, task: Task, place: Place, cancel: Cancel, tell: Tell) -> RememberResult:
        from muniment.jobs.remember import remember

        def observe(decision: ToolDecision) -> None:
            outcome = decision.outcome
            tell(
                {
                    "status": "running",
                    "attempt": task.attempt,
                    "turn": decision.turn,
                    "tool": decision.tool if decision.tool in TOOLS else "unknown",
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
        )
        return remember(request, place, self._model, cancel=cancel, observe=observe)

    def _forget(self, task: Task, place: Place, cancel: Cancel, _: Tell) -> ForgetResult:
        from muniment.jobs.forget import forget

        asked = task.arguments or {}
        request = ForgetRequest(
            asked["query"], asked["scope"], yes=not asked["dry_run"], trust=task.trust, task_id=task.id
        )
        return forget(request, place, self._model, cancel=cancel)

    def _dream(self, task: Task, place: Place, cancel: Cancel, _: Tell) -> DreamResult:
        from muniment.jobs.dream import dream

        attended = task.originator.token == OWNER
        request = DreamRequest(yes=True, trust=task.trust, attended=attended, task_id=task.id)
        return dream(request, place, self._model, cancel=cancel)


_JOBS: Final[Mapping[str, Callable[[Work, Task, Place, Cancel, Tell], _Result]]] = {
    "remember": Work._remember,  # noqa: SLF001  of this class, by kind
    "forget": Work._forget,  # noqa: SLF001
    "dream": Work._dream,  # noqa: SLF001
}


def _answer(result: _Result) -> BaseModel:
    match result:
        case RememberResult():
            return contract.RememberResult(
                summary=result.summary,
                files_touched=list(result.files_touched),
                touched_scopes=list(result.touched_scopes),
                enforcement=result.enforcement,
                decided_by=result.decided_by,
                trust=result.trust,
                notes=list(result.notes),
            )
        case ForgetResult():
            removed = [
                contract.RemovedEntry(topic=each.topic, summary=each.summary, file_path=each.path)
                for each in result.removed_entries
            ]
            return contract.ForgetResult(
                summary=result.summary,
                removed_entries=removed,
                touched_topics=sorted({each.topic for each in removed}) if result.touched_scopes else [],
                touched_scopes=list(result.touched_scopes),
            )
        case DreamResult():
            return contract.DreamResult(
                summary=result.summary,
                touched_topics=list(result.touched_topics),
                touched_scopes=list(result.touched_scopes),
                deduped_entries=len(result.deduped_entries),
                rejected=result.counts.rejected,
            )
