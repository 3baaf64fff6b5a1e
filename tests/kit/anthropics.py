"""The memory tools for the anthropic SDK and its error, loaded when a test first asks: that takes a second.

Every process that runs tests loads every file of them, and one runs these.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from anthropic.tools import ToolError

    from kit.corpus.memory_tool import MemoryToolSubject
    from muniment.integrations.anthropic import AsyncMunimentMemoryTool, MunimentMemoryTool

    for each in (ToolError, MemoryToolSubject, MunimentMemoryTool, AsyncMunimentMemoryTool):
        if each.__name__ == name:
            return each
    raise AttributeError(name)
