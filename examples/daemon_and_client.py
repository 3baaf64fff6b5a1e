"""Run the daemon inside your program and use its client: remember, read the events, forget.

Run this program with `python examples/daemon_and_client.py`.

Usually the daemon is a separate process, `muniment serve`. A client finds that daemon by `$MUNIMENT_HOME`, as
the client in this program does by the argument `home`. `Client` has the same methods for programs without
asyncio.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from muniment.agent.filing import RuleWriter
from muniment.client import AsyncClient, normalize
from muniment.client.errors import Problem, TaskFailed
from muniment.server.service import Daemon, Options
from muniment.settings import read_settings


async def use_memory(client: AsyncClient) -> None:
    """Remember a fact, read the events, and forget the fact, as a program would."""
    start = await client.cursor()
    handle = await client.remember("The user prefers dark mode in all editors", scope="user")
    saved = await handle.wait(timeout=30)
    print(f"saved: {', '.join(saved.files_touched)}, decided by {saved.decided_by}")

    page = "Our coffee machine is cleaned on Mondays"
    try:
        handle = await client.remember(page, trust="external", ref="https://example.org/")
        await handle.wait(timeout=30)
    except Problem as problem:  # The daemon rejects the request.
        print(f"rejected: {problem.code}")
    except TaskFailed as failure:  # The daemon accepted it, and the task failed.
        print(f"not saved: {failure.code}")

    forgotten = await (await client.forget("dark mode")).wait(timeout=30)
    print(f"forgot: {', '.join(entry.file_path for entry in forgotten.removed_entries)}")

    changes = 0
    async for event in client.events(after=start):
        if (change := normalize(event)) is not None:
            changes += 1
            print(f"event: {change['source']} touched {', '.join(change['touchedScopes'])}")
            if changes == 2:  # noqa: PLR2004  one fact, added and removed
                break


async def main() -> None:
    """Run a daemon in a throwaway home, and a client of this daemon."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch, "home")
        settings = read_settings({"MUNIMENT_HOME": str(home)})
        options = Options(settings, (Path(scratch),), socket=Path(scratch, "daemon.sock"))
        async with Daemon(options, RuleWriter()), AsyncClient(home=home, workspace=scratch) as client:
            await use_memory(client)


if __name__ == "__main__":
    asyncio.run(main())
