"""The memory behind the memory tool of the `anthropic` SDK (`memory_20250818`): `muniment[anthropic]`.

    from anthropic import Anthropic
    from muniment.adapters.anthropic import MunimentMemoryTool

    with muniment.open(".") as memory:
        tool = MunimentMemoryTool(memory)
        Anthropic().beta.messages.tool_runner(..., tools=[tool]).until_done()

What holds stands in `adapters/memories.py`. Nothing but the SDK's `ToolError` comes out of a command: of any
other exception its runner shows the model the `repr`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from muniment.adapters.memories import MemoriesDirectory, NotDone
from muniment.adapters.threads import in_thread
from muniment.api import Memory
from muniment.cancelling import Cancel
from muniment.kernel.names import Trust

try:
    from anthropic.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )
except ImportError:
    raise ImportError(
        "this needs anthropic 2.14 or later of its 2.x: pip install 'muniment[anthropic]'"
    ) from None


class MunimentMemoryTool(BetaAbstractMemoryTool):
    """A tool for `client.beta.messages.tool_runner`; make one a conversation.

    Args:
        memory: stays the caller's, who closes it after this.
        scope: the one scope that `/memories` is; None: it lists the scopes, as directories.
        trust: of what the model writes. Name a higher one than `agent` only where a person chose every word.
        cache_control: as of the SDK.

    Raises:
        InvalidScope: no such scope is bound.
        ValueError: there is no such trust.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        scope: str | None = None,
        trust: Trust | str = Trust.AGENT,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._directory = MemoriesDirectory(memory, scope=scope, trust=trust)

    def call(self, input: object) -> str:  # noqa: A002  the SDK's name
        """Carry a command out; see `MemoriesDirectory.answer`.

        Raises:
            ToolError: it was not carried out; the model is told why.
        """
        return _answered(self._directory, input)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """As `call`."""
        return self.call(dict(command))

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """As `call`."""
        return self.call(dict(command))

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """As `call`."""
        return self.call(dict(command))

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """As `call`."""
        return self.call(dict(command))

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """As `call`."""
        return self.call(dict(command))

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """As `call`."""
        return self.call(dict(command))


class AsyncMunimentMemoryTool(BetaAsyncAbstractMemoryTool):
    """As `MunimentMemoryTool`, for the asynchronous client; commands run in threads.

    A command whose task is cancelled ends early, and writes nothing unless it has by then.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        scope: str | None = None,
        trust: Trust | str = Trust.AGENT,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._directory = MemoriesDirectory(memory, scope=scope, trust=trust)

    async def call(self, input: object) -> str:  # noqa: A002  the SDK's name
        """Carry a command out; see `MemoriesDirectory.answer`.

        Raises:
            ToolError: it was not carried out; the model is told why.
        """
        return await in_thread(partial(_answered, self._directory, input))

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """As `call`."""
        return await self.call(dict(command))

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """As `call`."""
        return await self.call(dict(command))

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """As `call`."""
        return await self.call(dict(command))

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """As `call`."""
        return await self.call(dict(command))

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """As `call`."""
        return await self.call(dict(command))

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """As `call`."""
        return await self.call(dict(command))


def _answered(directory: MemoriesDirectory, asked: Any, cancel: Cancel | None = None) -> str:
    try:
        return directory.answer(asked, cancel)
    except NotDone as problem:
        raise ToolError(str(problem)) from None
