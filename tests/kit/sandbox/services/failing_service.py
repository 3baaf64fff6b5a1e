"""The real service with the real fence, in which a call may fail like native code.

The pattern of a `grep` selects the failure. As `hasty`, its workers have one second of processor time.
"""

import ctypes
import os

from muniment.sandbox.fence import layers
from muniment.sandbox.tools import service
from muniment.sandbox.tools.workbench import Workbench

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
HUGE = 1 << 30

warm, serve = service.warm, service.serve
_honest = Workbench.call


def _spin():
    while True:
        pass


def _recurse():
    _recurse()


DEEDS = {
    "fork": os.fork,
    "write": lambda: os.write(0, b"x"),
    "allocate": lambda: bytearray(HUGE),
    "malloc": lambda: LIBC.memset(LIBC.malloc(HUGE), 1, HUGE),
    "spin": _spin,
    "abort": os.abort,
    "recurse": _recurse,
}


def _call(self, tool, arguments):
    if tool == "grep" and isinstance(arguments, dict) and arguments["pattern"] in DEEDS:
        DEEDS[arguments["pattern"]]()
    return _honest(self, tool, arguments)


Workbench.call = _call


def __getattr__(name):
    if name != "hasty":
        raise AttributeError(name)
    layers.CPU_SECONDS = 1
    return serve
