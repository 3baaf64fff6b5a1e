"""Workers that send their complete memory when they would be confined."""

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
    layers.prctl(PR_SET_DUMPABLE, 1)  # otherwise only root may open /proc/self/mem
    channel = Channel(sock)
    for name, content in regions():
        channel.send({"name": name, "read": content is not None}, content or b"")
    channel.send({"end": True})


def modules(sock, roots, missing):  # noqa: ARG001
    """Send the modules and the environment."""
    Channel(sock).send({"modules": sorted(sys.modules), "environ": dict(os.environ), "roots": list(roots)})
