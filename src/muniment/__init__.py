"""Long-term memory for AI agents as plain markdown, written by a model that is treated as hostile.

Start with `muniment.open`. To use only the confined tools, without a memory, start with `muniment.Sandbox`.
`__all__` lists every stable name, and `muniment.types` every result type; docs/api.md describes them.
Everything else is private.

A name is loaded when it is first used, so importing this package has no cost and no side effects.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  an old Python must fail with this message
    _HERE = ".".join(map(str, sys.version_info[:2]))
    _NEEDED = f"muniment needs Python 3.11 or later, and this is Python {_HERE}"
    # While `python -m muniment` searches for the package, its first argument is "-m".
    raise SystemExit(_NEEDED) if sys.argv[:1] == ["-m"] else ImportError(_NEEDED)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from muniment.names import __version__

if TYPE_CHECKING:
    from muniment.api import Memory, open  # noqa: A004
    from muniment.async_api import AsyncMemory
    from muniment.cancelling import Cancel
    from muniment.client import AsyncClient, Client
    from muniment.errors import (
        AlreadyUndone,
        BadArguments,
        BadName,
        Cancelled,
        ConfigInvalid,
        ConfinementUnavailable,
        DeadlineExceeded,
        Erased,
        IdempotencyMismatch,
        InvalidContent,
        InvalidScope,
        JobError,
        JobFailed,
        JobTimeout,
        ManagedMemoryUnavailable,
        MunimentError,
        NotFound,
        PathEscape,
        PendingReview,
        PlatformUnsupported,
        PolicyInvalid,
        QueueFull,
        QuotaExceeded,
        Refusal,
        Refused,
        RememberNoUpdate,
        RememberPathEscape,
        RememberRefused,
        ReviewChanged,
        ReviewClosed,
        StateTooNew,
        StoreConflict,
        ToolError,
        UndoOverlap,
        WorkerLost,
    )
    from muniment.kernel.names import Trust
    from muniment.recall.context import Budgets
    from muniment.recall.context_graph import ContextGraph
    from muniment.recall.conversation import CompactionOptions, Conversation
    from muniment.recall.subagent import SubagentMemory
    from muniment.sandbox.sandbox import Sandbox

__all__ = [
    "AlreadyUndone",
    "AsyncClient",
    "AsyncMemory",
    "BadArguments",
    "BadName",
    "Budgets",
    "Cancel",
    "Cancelled",
    "Client",
    "CompactionOptions",
    "ConfigInvalid",
    "ConfinementUnavailable",
    "ContextGraph",
    "Conversation",
    "DeadlineExceeded",
    "Erased",
    "IdempotencyMismatch",
    "InvalidContent",
    "InvalidScope",
    "JobError",
    "JobFailed",
    "JobTimeout",
    "ManagedMemoryUnavailable",
    "Memory",
    "MunimentError",
    "NotFound",
    "PathEscape",
    "PendingReview",
    "PlatformUnsupported",
    "PolicyInvalid",
    "QueueFull",
    "QuotaExceeded",
    "Refusal",
    "Refused",
    "RememberNoUpdate",
    "RememberPathEscape",
    "RememberRefused",
    "ReviewChanged",
    "ReviewClosed",
    "Sandbox",
    "StateTooNew",
    "StoreConflict",
    "SubagentMemory",
    "ToolError",
    "Trust",
    "UndoOverlap",
    "WorkerLost",
    "__version__",
    "open",
]

_HOMES = {
    "AsyncClient": "muniment.client",
    "AsyncMemory": "muniment.async_api",
    "Budgets": "muniment.recall.context",
    "Cancel": "muniment.cancelling",
    "Client": "muniment.client",
    "CompactionOptions": "muniment.recall.conversation",
    "ContextGraph": "muniment.recall.context_graph",
    "Conversation": "muniment.recall.conversation",
    "Memory": "muniment.api",
    "Sandbox": "muniment.sandbox.sandbox",
    "SubagentMemory": "muniment.recall.subagent",
    "Trust": "muniment.kernel.names",
    "open": "muniment.api",
}
"""The module that defines each public name; a name that is missing here is in `muniment.errors`."""


def __getattr__(name: str) -> Any:
    if name in {"client", "errors", "types"}:
        return import_module(f"muniment.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'muniment' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "muniment.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
