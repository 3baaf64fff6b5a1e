"""The attempts, behind less than the whole fence, as the name of the function says.

`all`, `only_X`, `without_X` or `nothing`, X a layer; then `_as_self`, or who the workers become first:
`_as_powerless` (root without a capability) or `_as_nobody`. `no_new_privs` stays beside X, since the kernel
wants it for two of them.

The zygote can be traced and read here: what an attempt meets would not be the layers alone otherwise, since
a fork inherits that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable

from muniment.confine import fence
from muniment.confine.attempts.system import serve, warm
from muniment.names import FenceLayer

__all__ = ["warm"]

NOBODY = 65534
PR_SET_DUMPABLE = 4
LIBC = ctypes.CDLL(None, use_errno=True)


def refuse(_grounds: fence.Grounds) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def become_powerless() -> None:
    """Stay who it is, without a capability."""
    header = struct.pack("=Ii", 0x20080522, 0)
    if LIBC.capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


BECOME: dict[str, Callable[[], None]] = {
    "self": lambda: None,
    "powerless": become_powerless,
    "nobody": become_nobody,
}


def layers_of(which: str) -> set[FenceLayer]:
    """The layers that stand."""
    kind, _, name = which.partition("_")
    if kind == "without":
        return set(FenceLayer) - {FenceLayer(name)}
    if kind == "only":
        return {FenceLayer(name), FenceLayer.NO_NEW_PRIVS}
    return set(FenceLayer) if kind == "all" else set()


def __getattr__(name: str) -> object:
    which, _, who = name.partition("_as_")
    if who not in BECOME:
        raise AttributeError(name)
    stand = layers_of(which)
    fence.STEPS = {layer: step if layer in stand else refuse for layer, step in fence.STEPS.items()}
    BECOME[who]()
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    return serve
