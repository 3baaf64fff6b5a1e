"""A daemon whose tasks do nothing: it only accepts, queues, reports and finishes. For `daemon.py`.

Run it like `muniment serve`, with the same options.
"""

from __future__ import annotations

import sys

from muniment.cli.app import app
from muniment.server import core
from muniment.server.lane_tasks import TaskOutcome

RESULT = {"summary": "", "filesTouched": [], "touchedScopes": [], "enforcement": None, "decidedBy": "none"}


class NoWork:
    """A job that ends every task at once."""

    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, *_: object) -> TaskOutcome:
        """Do nothing."""
        return TaskOutcome("completed", result=RESULT)


if __name__ == "__main__":
    core.TaskExecutor = NoWork
    sys.argv[1:1] = ["serve"]
    app()
