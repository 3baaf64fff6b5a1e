"""Long-term memory for AI agents as plain markdown, written by a model that is treated as hostile.

Start with `muniment.open`; `muniment.Sandbox` is the confined tools alone. Names load when first used,
so that importing this package costs nothing and does nothing.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  it says what an old one needs, before anything that it lacks
    _HERE = ".".join(map(str, sys.version_info[:2]))
    _NEEDED = f"muniment needs Python 3.11 or later, and this is Python {_HERE}"
    # While `python -m muniment` looks for the package, its first argument is just that.
    raise SystemExit(_NEEDED) if sys.argv[:1] == ["-m"] else ImportError(_NEEDED)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from muniment.names import __version__

if TYPE_CHECKING:
    from muniment.api import Memory, open  # noqa: A004
    from muniment.async_api import AsyncMemory
    from muniment.errors import MunimentError
    from muniment.sandbox.sandbox import Sandbox

_HOMES = {
    "AsyncMemory": "muniment.async_api",
    "Memory": "muniment.api",
    "MunimentError": "muniment.errors",
    "Sandbox": "muniment.sandbox.sandbox",
    "open": "muniment.api",
}

__all__ = ["AsyncMemory", "Memory", "MunimentError", "Sandbox", "__version__", "open"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'muniment' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
