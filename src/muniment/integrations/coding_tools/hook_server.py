"""Answer the events of coding tools in the daemon, for `muniment.cli.hook_client`.

- D1. Only the owner may send events. The answer is that of `muniment recall --hook` in the same directory, or
  in the workspace that the event names. It depends on the present configuration and policy, and not on
  options and variables of the daemon.
- D2. The entries of an answer are recorded only after the client has confirmed that it printed the answer.
- D3. At most `MAX_MEMORIES` memories are open, and at most `MAX_UNCONFIRMED` answers wait for a confirmation;
  the oldest ones are dropped.
- D4. Events are answered one after the other, on one thread. A client that gets no answer in time answers the
  event itself.

The module is separate from `hook`, because `muniment recall --hook` runs without a daemon.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from muniment.errors import BadArguments, PathEscape, printable
from muniment.integrations.coding_tools.hook import (
    HOOK_SECONDS,
    HookAnswer,
    HookMemory,
    HookOptions,
    answer_event,
    find_workspace,
)
from muniment.kernel.cancel import Deadline
from muniment.names import HOME_VARIABLE
from muniment.opening import create_recaller, open_context
from muniment.operations.job_context import JobContext
from muniment.settings import Settings, load_configured_policy, read_settings
from muniment.workspaces.projects import find_project

MAX_MEMORIES: Final = 8
"""Maximum number of open memories; each takes about 2 MB and a few descriptors."""

MAX_UNCONFIRMED: Final = 64
"""Maximum number of answers that wait for a confirmation."""


class HookServer:
    """Answers events for any directory of this user. Belongs to one event loop; close it when done.

    Args:
        home: the home of the daemon.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._settings: Settings | None = None
        self._thread = ThreadPoolExecutor(1, "hook")
        self._memories: OrderedDict[str, tuple[HookMemory, ExitStack]] = OrderedDict()
        self._unconfirmed: OrderedDict[str, Callable[[], None]] = OrderedDict()

    async def answer(self, event: dict[str, Any], directory: str) -> tuple[dict[str, Any], str]:
        """Return the answer to an event, and the name with which the client confirms it.

        Args:
            event: the event.
            directory: the absolute path of the directory in which the tool runs.

        Raises:
            MunimentError: the event is invalid, or the memory cannot be read.
        """
        answer = await self._run(lambda: self._answer(event, directory))
        name = secrets.token_hex(16)
        self._unconfirmed[name] = answer.record
        while len(self._unconfirmed) > MAX_UNCONFIRMED:
            self._unconfirmed.popitem(last=False)
        return answer.response, name

    async def confirm(self, name: str) -> None:
        """Record what the session of an answer received; do nothing if the answer is unknown.

        Raises:
            MunimentError: the ledger cannot be written.
        """
        record = self._unconfirmed.pop(name, None)
        if record is not None:
            await self._run(record)

    def close(self) -> None:
        """Wait for the running answer, and close all memories."""
        self._thread.shutdown()
        self._close_memories()

    def _close_memories(self) -> None:
        while self._memories:
            _, (_, opened) = self._memories.popitem()
            opened.close()

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _answer(self, event: dict[str, Any], directory: str) -> HookAnswer:
        deadline = Deadline(time.monotonic() + HOOK_SECONDS)
        memory = self._open_memory(find_workspace(event) or Path(directory))
        return answer_event(event, memory, HookOptions(), deadline)

    def _open_memory(self, path: Path) -> HookMemory:
        """Return the memory of a directory; open it if it is not open or not current."""
        if not path.is_absolute():
            raise BadArguments(f"invalid directory {printable(str(path))!r}; use an absolute path")
        settings = read_settings({HOME_VARIABLE: str(self._home)})
        if settings != self._settings:
            self._close_memories()
            self._settings = settings
        key = find_project(settings.home, path).key
        if key in self._memories:
            memory, opened = self._memories[key]
            if _is_current(memory.context, settings):
                self._memories.move_to_end(key)
                return memory
            del self._memories[key]
            opened.close()
        with ExitStack() as resources:
            context = resources.enter_context(
                closing(open_context(settings, path, create=False, is_reader=True))
            )
            recaller = resources.enter_context(closing(create_recaller(context)))
            memory = HookMemory(context, recaller)
            self._memories[key] = memory, resources.pop_all()
        if len(self._memories) > MAX_MEMORIES:
            _, (_, oldest) = self._memories.popitem(last=False)
            oldest.close()
        return memory


def _is_current(context: JobContext, settings: Settings) -> bool:
    """Return whether the policy is unchanged, all scopes have a directory, and no directory was replaced."""
    try:
        context.select_scopes(None)
    except PathEscape:
        return False
    is_policy_same = load_configured_policy(settings).policy.digest == context.policy.digest
    return is_policy_same and len(context.roots) == len(context.policy.scopes)
