"""The real service, which tells what its process holds instead of serving calls."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

from muniment.confine.fence import Missing
from muniment.confine.wire import Channel
from muniment.tools import service


def warm() -> None:
    """What the real service does before it is forked."""
    service.warm()


def serve(sock: socket.socket, roots: Mapping[str, int], missing: Missing) -> None:  # noqa: ARG001
    """Tell the modules and the environment."""
    Channel(sock).send({"modules": sorted(sys.modules), "environ": dict(os.environ), "roots": list(roots)})
