"""Workers that hand over all that they hold, at the moment at which they would be fenced."""

import os
import sys

from own_memory import regions

from muniment.sandbox.fence import layers
from muniment.sandbox.fence.wire import Channel
from muniment.sandbox.tools import service

layers.STEPS = {}
PR_SET_DUMPABLE = 4


warm = service.warm


def serve(sock, roots, missing):  # noqa: ARG001
    """Send every readable region, then an end."""
    layers.prctl(PR_SET_DUMPABLE, 1)  # else /proc/self/mem is root's
    channel = Channel(sock)
    for name, content in regions():
        channel.send({"name": name, "read": content is not None}, content or b"")
    channel.send({"end": True})


def modules(sock, roots, missing):  # noqa: ARG001
    """Tell the modules and the environment."""
    Channel(sock).send({"modules": sorted(sys.modules), "environ": dict(os.environ), "roots": list(roots)})
