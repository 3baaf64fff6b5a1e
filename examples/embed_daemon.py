"""Run the daemon on the event loop of your program, and send requests to it.

Run this program with `python examples/embed_daemon.py`. An embedded daemon does not handle signals and does
not end the process. It runs as long as its `async with` block.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from muniment.agent.filing import RuleWriter
from muniment.client import AsyncClient
from muniment.server.service import Daemon, Options
from muniment.settings import read_settings


async def converse(home: Path, workspace: Path) -> None:
    """Send a fact twice with one key, wait for its task, and read its event."""
    async with AsyncClient(home=home, workspace=workspace) as client:
        cursor = await client.cursor()
        first = await client.remember("We deploy on Thursdays.", task_id="example-1")
        second = await client.remember("We deploy on Thursdays.", task_id="example-1")
        print(f"one task: {first.task_id == second.task_id}, replayed: {second.replayed}")
        result = await first.wait(timeout=60)
        print(f"saved: {result.files_touched}, enforcement {result.enforcement}")
        async for event in client.events(after=cursor):
            if event.type == "memory_changed":
                print(f"event: {event.type} in {event.data['touchedScopes']}")
                break


async def serve(home: Path, workspace: Path) -> None:
    """Run a daemon for one workspace during the conversation."""
    settings = read_settings({**os.environ, "MUNIMENT_HOME": str(home)})
    async with Daemon(Options(settings, (workspace,)), RuleWriter()) as daemon:
        print(f"serving on the loopback: {daemon.url.startswith('http://127.0.0.1:')}")
        await converse(home, workspace)


def main() -> None:
    """Run the daemon and the conversation in a throwaway home."""
    with tempfile.TemporaryDirectory() as scratch:
        home, workspace = Path(scratch, "home"), Path(scratch, "project")
        workspace.mkdir()
        asyncio.run(serve(home, workspace))
        print(f"connection file removed: {not (home / 'state' / 'daemon.json').exists()}")


if __name__ == "__main__":
    main()
