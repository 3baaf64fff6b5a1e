"""The real service, which dies of an import or of a denied system call in the fence.

Calls that the fence denies with EPERM kill this one (SIGSYS): if a worker lives, no call was denied. An
import ends it with `IMPORTED`.
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
    """Install the filter like the fence, without the test calls that would kill."""
    opener = "openat2" if layers.available() else "openat"
    layers.install(FILTERS[grounds.machine, opener])


layers.STEPS = {**layers.STEPS, FenceLayer.SECCOMP: _install}


class Guard:
    """Called before every import of a module that is not loaded."""

    def find_spec(self, *_):
        os._exit(IMPORTED)


def serve(sock, roots, missing):
    """Run the service with the guard."""
    sys.meta_path[:] = [Guard()]
    service.serve(sock, roots, missing)


def importing(sock, roots, missing):
    """Import a module, to show that this is detected."""
    sys.meta_path[:] = [Guard()]
    __import__("this_is_no_module")
    service.serve(sock, roots, missing)


def asking(sock, roots, missing):
    """Make a call that the fence denies, to show that this is detected."""
    os.getppid()
    service.serve(sock, roots, missing)
