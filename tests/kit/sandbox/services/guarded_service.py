"""The real service, which survives no import behind the fence, and no system call that is refused.

Where the fence refuses a call with EPERM, this one kills (SIGSYS): a worker that lives was refused nothing.
An import ends it with `IMPORTED`.
"""

import os
import sys

from muniment.names import FenceLayer
from muniment.sandbox.fence import layers
from muniment.sandbox.tools import service

IMPORTED = 99

warm = service.warm

layers._EPERM = layers._KILL
FILTERS = {key: layers.program(*key) for key in layers._FILTERS}


def _install(grounds):
    """As the fence does, without trying out what would kill."""
    opener = "openat2" if layers.available() else "openat"
    layers.install(FILTERS[grounds.machine, opener])


layers.STEPS = {**layers.STEPS, FenceLayer.SECCOMP: _install}


class Guard:
    """Is asked before anything is loaded; what is loaded already is not asked for."""

    def find_spec(self, *_):
        os._exit(IMPORTED)


def serve(sock, roots, missing):
    """As the service does, guarded."""
    sys.meta_path[:] = [Guard()]
    service.serve(sock, roots, missing)


def importing(sock, roots, missing):
    """Import something, to show that this is noticed."""
    sys.meta_path[:] = [Guard()]
    __import__("this_is_no_module")
    service.serve(sock, roots, missing)


def asking(sock, roots, missing):
    """Make a call that the fence refuses, to show that this is noticed."""
    os.getppid()
    service.serve(sock, roots, missing)
