"""The real service behind the real fence, with as little memory as the function's name says.

`tight_service:with_4` is what a worker is with 4 KiB of address space on top of what it was forked with.
"""

from __future__ import annotations

from muniment.confine import fence
from muniment.confine.zygote import Serve
from muniment.tools import service

warm = service.warm


def __getattr__(name: str) -> Serve:
    kind, _, kibibytes = name.partition("_")
    if kind != "with":
        raise AttributeError(name)
    fence.MEMORY_BYTES = int(kibibytes) << 10
    return service.serve
