"""Open the memory of this process, and execute calls of the tools."""

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

from muniment.cancelling import Cancel, until_ended
from muniment.content.gates import on_one_line
from muniment.errors import ManagedMemoryUnavailable, MunimentError, PathEscape
from muniment.integrations.mcp.tools import ForgetCall, RememberCall, T, Tell, W
from muniment.integrations.telling import ToolProblem
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.operations.place import Place
    from muniment.operations.visibility import Reader
    from muniment.recall.recaller import Recaller
    from muniment.settings import Settings
    from muniment.types import ForgetResult, Recalled, RememberResult

THREADS: Final = 8
"""Maximum calls at once of a memory in this process; further ones wait."""

MAX_WAITING: Final = 16
"""Maximum waiting calls that write, the same as for a lane."""

RECALL_SECONDS: Final = 5.0
"""Maximum seconds of a recall; only the first read of changed files takes more than milliseconds."""

WHERE: Final = "mcp"
"""The destination of injected entries, as recorded in the ledger."""

MAX_OWN: Final = 1_000
"""Maximum recorded ids of own tasks of a process, the same as for a lane."""


class OpenedMemory:
    """The memory of this process, opened at the first use, in any thread. Close it when done.

    Args:
        settings: reads the settings of the program.
        workspace: as for `find_place`.
        open_model: opens the model of the settings.
        warn: prints a line for the user who started the program.
        in_process: as for `find_place`.
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
        self._opened, self._said = ExitStack(), ""
        self._place: Place | None = None
        self._recaller: tuple[Place, Recaller] | None = None
        self._model: Model | None = None

    def place(self) -> Place:
        """Return the policy, state and roots, as they were when opened; raise as `find_place`."""
        from muniment.opening import find_place

        with self._lock:
            if self._place is None:
                try:
                    found = find_place(self._settings(), self._workspace, in_process=self._in_process)
                # Tools report only the code; this line is for the user who started the program.
                except MunimentError as error:
                    self._say(f"not opened: {on_one_line(str(error))} [{error.code}]")
                    raise
                self._place = self._opened.enter_context(closing(found))
                for note in self._place.notes:
                    self._warn(f"note: {on_one_line(note)}")
            place = self._place
            try:
                place.chosen(None)
            except PathEscape as error:  # A root was replaced: the next call binds the new one.
                self._place = None
                raise ManagedMemoryUnavailable(error.requested, "was replaced while it was served") from error
            return place

    def _say(self, text: str) -> None:
        if text != self._said:
            self._warn(text)
        self._said = text

    def recaller(self) -> Recaller:
        """Return the recaller of the memory."""
        from muniment.opening import recaller_of

        with self._lock:
            place = self.place()
            if self._recaller is None or self._recaller[0] is not place:
                self._recaller = place, self._opened.enter_context(closing(recaller_of(place)))
            return self._recaller[1]

    def model(self) -> Model:
        """Return the model that stores facts."""
        with self._lock:
            if self._model is None:
                self._model = self._opened.enter_context(self._open_model(self._settings()))
            return self._model

    def close(self) -> None:
        """Close everything that was opened."""
        self._opened.close()


class OwnMemory:
    """A memory whose calls are executed in this process.

    Args:
        opened: the memory; owned by the caller.
        trust: of every call.
    """

    def __init__(self, opened: OpenedMemory, trust: Trust) -> None:
        self._opened, self._trust = opened, trust
        self._threads = ThreadPoolExecutor(THREADS, "memory")
        self._own: dict[str, None] = {}
        self._turn, self._waiting = asyncio.Lock(), 0

    @property
    def is_owner(self) -> bool:
        """Return whether the owner of the memory calls."""
        return self._trust is Trust.OWNER

    async def remember(self, asked: RememberCall, tell: Tell) -> RememberResult:
        """Store a fact, after all earlier writes."""
        from muniment.operations.remember import remember
        from muniment.sandbox.tools.calls import known_tool
        from muniment.types import RememberRequest

        request = RememberRequest(asked.content, asked.scope, trust=self._trust)

        def body(cancel: Cancel) -> RememberResult:
            result = remember(
                request,
                self._opened.place(),
                self._opened.model(),
                cancel=cancel,
                observe=lambda done: tell(done.turn, f"{known_tool(done.tool)}: {done.outcome.verdict}"),
            )
            if result.error is not None:
                raise result.error
            self._keep_own(result.task_id)
            return result

        return await self._in_turn(body)

    async def recall(self, query: str, limit: int) -> Recalled:
        """Recall entries for a query; the recall is recorded before it is returned."""

        def body(cancel: Cancel) -> Recalled:
            recaller = self._opened.recaller()
            patience = Patience(time.monotonic() + RECALL_SECONDS, cancel)
            recalled = recaller.recall(query, limit=limit, patience=patience)
            if recalled.entries:
                recaller.record(recalled, WHERE)
            return recalled

        return await self._in_thread(body)

    async def forget(self, asked: ForgetCall) -> ForgetResult:
        """Preview a removal, or remove the previewed entries, after all earlier writes."""
        from muniment.operations.forget import forget
        from muniment.types import ForgetRequest

        request = ForgetRequest(
            asked.description, dry_run=not asked.yes, trust=self._trust, digest=asked.digest
        )

        def body(cancel: Cancel) -> ForgetResult:
            result = forget(request, self._opened.place(), self._opened.model(), cancel=cancel)
            if result.error is not None:
                raise result.error
            if asked.yes:
                self._keep_own(result.task_id)
            # A caller that may not remove an entry must not learn that it exists.
            return result if self.is_owner else replace(result, kept=())

        return await self._in_turn(body)

    async def check_undo(self, task_id: str) -> None:
        """Allow every undo that `take_back` allows: this process serves one client."""

    async def write(self, body: Callable[[Place, Reader, Cancel], W]) -> W:
        """Return the result of `body`, which runs after all earlier writes."""

        def run(cancel: Cancel) -> W:
            answer = body(self._opened.place(), self._reader(), cancel)
            if answer.task_id is not None:
                self._keep_own(answer.task_id)
            return answer

        return await self._in_turn(run)

    async def at(self, body: Callable[[Place, Reader], T]) -> T:
        """Return the result of `body`, which reads the memory."""
        return await self._in_thread(lambda _: body(self._opened.place(), self._reader()))

    def _reader(self) -> Reader:
        """Return the reader; it owns the tasks of this process (`operations.visibility`)."""
        from muniment.operations.visibility import Reader

        return Reader(self._trust, self._own.__contains__)

    def _keep_own(self, task_id: str) -> None:
        """Record the id of a task of this process; only the newest `MAX_OWN` are stored."""
        self._own[task_id] = None
        if len(self._own) > MAX_OWN:
            del self._own[next(iter(self._own))]

    def close(self) -> None:
        """Accept no further calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, body: Callable[[Cancel], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise ToolProblem(
                "remember_queue_full", f"{MAX_WAITING} calls already wait to write; try again later"
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await self._in_thread(body)
        finally:
            self._waiting -= 1

    async def _in_thread(self, body: Callable[[Cancel], T]) -> T:
        with Cancel() as cancel:
            running = asyncio.get_running_loop().run_in_executor(self._threads, body, cancel)
            return await until_ended(running, cancel)
