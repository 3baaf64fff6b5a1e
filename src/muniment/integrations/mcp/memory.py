"""Open the memory in this process, and execute the calls of the MCP tools on it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muniment.cancelling import Cancel, await_completion
from muniment.content.gates import clean_foreign_line
from muniment.errors import ManagedMemoryUnavailable, MunimentError, PathEscape
from muniment.integrations.mcp.tools import ForgetCall, RememberCall, ReportTurn, T, W
from muniment.integrations.results import ToolProblem
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Trust
from muniment.names import RECALL_SECONDS

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.operations.job_context import JobContext
    from muniment.operations.visibility import Reader
    from muniment.recall.recaller import Recaller
    from muniment.settings import Settings
    from muniment.types import ForgetResult, Recalled, RememberResult

THREADS: Final = 8
"""Maximum number of calls that run at the same time on the memory of this process; further calls wait."""

MAX_WAITING: Final = 16
"""Maximum number of waiting calls that write, as for a lane of the daemon."""

DESTINATION: Final = "mcp"
"""The destination of injected entries, as the ledger records it."""

MAX_OWN_TASKS: Final = 1_000
"""Maximum number of own tasks whose ids a process remembers, as for a lane of the daemon."""


class LazyMemory:
    """The memory of this process, which is opened when it is first used, in any thread. Close it when done.

    Args:
        settings: returns the settings of the program.
        workspace: as for `open_context`.
        open_model: opens the model of the settings.
        warn: prints a line for the user who started the program.
        in_process: as for `open_context`.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        workspace: Path | None,
        open_model: Callable[[Settings], AbstractContextManager[Model]],
        warn: Callable[[str], None],
        *,
        in_process: bool = False,
    ) -> None:
        self._settings, self._workspace = settings, workspace
        self._open_model, self._warn, self._in_process = open_model, warn, in_process
        self._lock = threading.RLock()
        self._resources, self._last_warning = ExitStack(), ""
        self._context: JobContext | None = None
        self._recaller: tuple[JobContext, Recaller] | None = None
        self._model: Model | None = None

    def get_context(self) -> JobContext:
        """Return the policy, roots and state; open them at the first call.

        Raises:
            ManagedMemoryUnavailable: a root was replaced; the next call opens the memory again.
            MunimentError: as `open_context`.
        """
        from muniment.opening import open_context

        with self._lock:
            if self._context is None:
                try:
                    found = open_context(self._settings(), self._workspace, in_process=self._in_process)
                # Tools report only the code; this line is for the user who started the program.
                except MunimentError as error:
                    self._warn_once(f"not opened: {clean_foreign_line(str(error))} [{error.code}]")
                    raise
                self._context = self._resources.enter_context(closing(found))
                for note in self._context.notes:
                    self._warn(f"note: {clean_foreign_line(note)}")
            context = self._context
            try:
                context.select_scopes(None)
            except PathEscape as error:  # A root was replaced: the next call binds the new one.
                self._context = None
                raise ManagedMemoryUnavailable(error.requested, "was replaced while it was served") from error
            return context

    def _warn_once(self, text: str) -> None:
        if text != self._last_warning:
            self._warn(text)
        self._last_warning = text

    def get_recaller(self) -> Recaller:
        """Return the object that searches the memory."""
        from muniment.opening import create_recaller

        with self._lock:
            context = self.get_context()
            if self._recaller is None or self._recaller[0] is not context:
                self._recaller = context, self._resources.enter_context(closing(create_recaller(context)))
            return self._recaller[1]

    def get_model(self) -> Model:
        """Return the model that stores facts; open it at the first call."""
        with self._lock:
            if self._model is None:
                self._model = self._resources.enter_context(self._open_model(self._settings()))
            return self._model

    def close(self) -> None:
        """Close the memory, and the model if it was opened."""
        self._resources.close()


class LocalBackend:
    """A `Backend` that executes calls in this process.

    Args:
        opened: the memory; the caller closes it.
        trust: the trust of every call.
    """

    def __init__(self, opened: LazyMemory, trust: Trust) -> None:
        self._opened, self._trust = opened, trust
        self._threads = ThreadPoolExecutor(THREADS, "memory")
        self._own_tasks: dict[str, None] = {}
        self._write_lock, self._waiting = asyncio.Lock(), 0

    @property
    def is_owner(self) -> bool:
        """Return whether the calls have the trust of the owner."""
        return self._trust is Trust.OWNER

    async def remember(self, call: RememberCall, report_turn: ReportTurn) -> RememberResult:
        """Store a fact, after all earlier writes."""
        from muniment.operations.remember import remember
        from muniment.sandbox.tools.calls import get_tool_label
        from muniment.types import RememberRequest

        request = RememberRequest(call.content, call.scope, trust=self._trust)

        def body(cancel: Cancel) -> RememberResult:
            result = remember(
                request,
                self._opened.get_context(),
                self._opened.get_model(),
                cancel=cancel,
                observe=lambda done: report_turn(
                    done.turn, f"{get_tool_label(done.tool)}: {done.outcome.verdict}"
                ),
            )
            if result.error is not None:
                raise result.error
            self._record_own_task(result.task_id)
            return result

        return await self._run_in_order(body)

    async def recall(self, query: str, limit: int) -> Recalled:
        """Recall entries for a query; write to the ledger which entries are returned."""
        return await self._recall(
            lambda recaller, deadline: recaller.recall(query, limit=limit, deadline=deadline)
        )

    async def read_standing_context(self) -> Recalled:
        """Return the standing context; write to the ledger which entries are returned."""
        from muniment.recall.standing import read_standing

        return await self._recall(
            lambda recaller, deadline: read_standing(recaller, recaller.standing_tokens, deadline)
        )

    async def _recall(self, work: Callable[[Recaller, Deadline], Recalled]) -> Recalled:
        def body(cancel: Cancel) -> Recalled:
            recaller = self._opened.get_recaller()
            recalled = work(recaller, Deadline(time.monotonic() + RECALL_SECONDS, cancel))
            if recalled.entries:
                recaller.record(recalled, DESTINATION)
            return recalled

        return await self._run_in_thread(body)

    async def forget(self, call: ForgetCall) -> ForgetResult:
        """Return a preview of a removal, or remove the previewed entries; after all earlier writes."""
        from muniment.operations.forget import forget
        from muniment.types import ForgetRequest

        request = ForgetRequest(call.description, dry_run=not call.yes, trust=self._trust, digest=call.digest)

        def body(cancel: Cancel) -> ForgetResult:
            result = forget(request, self._opened.get_context(), self._opened.get_model(), cancel=cancel)
            if result.error is not None:
                raise result.error
            if call.yes:
                self._record_own_task(result.task_id)
            # A caller that may not remove an entry must not learn that it exists.
            return result if self.is_owner else replace(result, kept=())

        return await self._run_in_order(body)

    async def check_undo(self, task_id: str) -> None:
        """Do nothing: this process serves one client, so that the checks of `undo_task` are sufficient."""

    async def write(self, body: Callable[[JobContext, Reader, Cancel], W]) -> W:
        """Run `body`, which changes the memory, after all earlier writes, and return its result."""

        def run(cancel: Cancel) -> W:
            answer = body(self._opened.get_context(), self._create_reader(), cancel)
            if answer.task_id is not None:
                self._record_own_task(answer.task_id)
            return answer

        return await self._run_in_order(run)

    async def read(self, body: Callable[[JobContext, Reader], T]) -> T:
        """Run `body`, which reads the memory, and return its result."""
        return await self._run_in_thread(lambda _: body(self._opened.get_context(), self._create_reader()))

    def _create_reader(self) -> Reader:
        """Return the reader for visibility checks. The reader owns the tasks of this process."""
        from muniment.operations.visibility import Reader

        return Reader(self._trust, self._own_tasks.__contains__)

    def _record_own_task(self, task_id: str) -> None:
        """Remember the id of a task of this process; only the newest `MAX_OWN_TASKS` ids are stored."""
        self._own_tasks[task_id] = None
        if len(self._own_tasks) > MAX_OWN_TASKS:
            del self._own_tasks[next(iter(self._own_tasks))]

    def close(self) -> None:
        """Cancel calls that have not started, and accept no further calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run_in_order(self, body: Callable[[Cancel], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise ToolProblem(
                "remember_queue_full", f"{MAX_WAITING} calls already wait to write; try again later"
            )
        self._waiting += 1
        try:
            async with self._write_lock:
                return await self._run_in_thread(body)
        finally:
            self._waiting -= 1

    async def _run_in_thread(self, body: Callable[[Cancel], T]) -> T:
        with Cancel() as cancel:
            running = asyncio.get_running_loop().run_in_executor(self._threads, body, cancel)
            return await await_completion(running, cancel)
