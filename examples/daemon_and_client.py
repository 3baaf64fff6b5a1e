"""Run the daemon inside a program of your own, and talk to it: remember, follow the events, forget.

Run it with `python examples/daemon_and_client.py`.

A daemon usually is a process of its own, `muniment serve`, and the client finds it by `$MUNIMENT_HOME`, as
this one does by `home`. `Client` is the same for programs without asyncio.
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


async def use(client: AsyncClient) -> None:
    """What a program does with a memory."""
    begin = await client.cursor()
    handle = await client.remember("The user prefers dark mode in all editors", scope="user")
    saved = await handle.wait(timeout=30)
    print(f"saved: {', '.join(saved.files_touched)}, decided by {saved.decided_by}")

    page = "Our coffee machine is cleaned on Mondays"
    try:
        handle = await client.remember(page, trust="external", ref="https://example.org/")
        await handle.wait(timeout=30)
    except Problem as problem:  # The daemon does not take it.
        print(f"not taken: {problem.code}")
    except TaskFailed as failure:  # It took it, and the task ended without effect.
        print(f"not saved: {failure.code}")

    gone = await (await client.forget("dark mode")).wait(timeout=30)
    print(f"forgot: {', '.join(entry.file_path for entry in gone.removed_entries)}")

    changes = 0
    async for event in client.events(after=begin):
        if (change := normalize(event)) is not None:
            changes += 1
            print(f"event: {change['source']} touched {', '.join(change['touchedScopes'])}")
            if changes == 2:  # noqa: PLR2004  one fact that came, and went
                break


async def main() -> None:
    """A daemon in a home that is thrown away, and a client of it."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch, "home")
        settings = read_settings({"MUNIMENT_HOME": str(home)})
        options = Options(settings, (Path(scratch),), socket=Path(scratch, "daemon.sock"))
        async with Daemon(options, RuleWriter()), AsyncClient(home=home, workspace=scratch) as client:
            await use(client)


if __name__ == "__main__":
    asyncio.run(main())
