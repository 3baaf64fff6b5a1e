"""The attempts with some layers of the fence, selected by the name of the function.

`all`, `only_X`, `without_X` or `nothing`, where X is a layer. `no_new_privs` is always combined with X,
because the kernel requires it for two of them.

The zygote can be traced and read here: a fork inherits this, and attempts should test only the layers.
"""

import ctypes
import errno
import os

from muniment.lab.attempts.attempt import serve_attempt, warm
from muniment.names import FenceLayer
from muniment.sandbox.fence import layers

__all__ = ["warm"]

PR_SET_DUMPABLE = 4
LIBC = ctypes.CDLL(None, use_errno=True)


def fail_step(_grounds):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def parse_layers(which):
    """Return the active layers."""
    kind, _, name = which.partition("_")
    if kind == "without":
        return set(FenceLayer) - {FenceLayer(name)}
    if kind == "only":
        return {FenceLayer(name), FenceLayer.NO_NEW_PRIVS}
    return set(FenceLayer) if kind == "all" else set()


def __getattr__(name):
    if name not in {"nothing", "all"} and not name.startswith(("only_", "without_")):
        raise AttributeError(name)
    active = parse_layers(name)
    layers.STEPS = {layer: step if layer in active else fail_step for layer, step in layers.STEPS.items()}
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    return serve_attempt
