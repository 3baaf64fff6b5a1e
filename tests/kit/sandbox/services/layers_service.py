"""The attempts, behind less than the whole fence, as the name of the function says.

`all`, `only_X`, `without_X` or `nothing`, X a layer. `no_new_privs` stays beside X, since the kernel wants
it for two of them.

The zygote can be traced and read here: what an attempt meets would not be the layers alone otherwise, since
a fork inherits that.
"""

import ctypes
import errno
import os

from muniment.lab.attempts.attempt import serve, warm
from muniment.names import FenceLayer
from muniment.sandbox.fence import layers

__all__ = ["warm"]

PR_SET_DUMPABLE = 4
LIBC = ctypes.CDLL(None, use_errno=True)


def refuse(_grounds):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def layers_of(which):
    """The layers that stand."""
    kind, _, name = which.partition("_")
    if kind == "without":
        return set(FenceLayer) - {FenceLayer(name)}
    if kind == "only":
        return {FenceLayer(name), FenceLayer.NO_NEW_PRIVS}
    return set(FenceLayer) if kind == "all" else set()


def __getattr__(name):
    if name not in {"nothing", "all"} and not name.startswith(("only_", "without_")):
        raise AttributeError(name)
    stand = layers_of(name)
    layers.STEPS = {layer: step if layer in stand else refuse for layer, step in layers.STEPS.items()}
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    return serve
