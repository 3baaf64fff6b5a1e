"""The memory tools for the anthropic SDK and its error, imported on first use: the import takes a second.

Every test process loads all test files, but only one of them runs these tests.
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
