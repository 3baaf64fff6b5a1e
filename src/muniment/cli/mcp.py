"""`muniment mcp`: the memory of this home for a host of the Model Context Protocol, or its pipe to a daemon.

The pipe is no second server: what a tool is and who may do what is said once, by the daemon, here or on
another machine; and a machine without a memory of its own loads neither the SDK nor the fence.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muniment.cli.command import command, settings_of, trust_of
from muniment.cli.options import RunFlags, Workspace
from muniment.cli.terminal import EXIT_FAILED
from muniment.content.exact_json import json_or_none, repaired_json
from muniment.errors import ConfigInvalid
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.cli.wire import Wire
    from muniment.client.mcp import McpPipe

TOKEN_VARIABLE: Final = "MUNIMENT_TOKEN"  # noqa: S105  a variable's name

DRAIN_SECONDS: Final = 10.0
"""Seconds that a daemon has to answer what it was asked once the input has ended."""

_PRIVATE_UMASK: Final = 0o077


@command("not started", has_json=False)
def mcp(
    *,
    workspace: Workspace = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Pass everything on to this daemon, with the token in MUNIMENT_TOKEN."
        ),
    ] = None,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="Pass everything on to the daemon of this home, if one runs.")
    ] = False,
    trust: Annotated[
        str,
        typer.Option(
            metavar="owner|workspace|agent|external", help="Of the facts that come this way, and of who asks."
        ),
    ] = "agent",
    flags: RunFlags,
) -> int:
    """Serve the memory to a tool that speaks the Model Context Protocol, on standard input and output."""
    if url is None and not daemon:
        return _serve_memory(workspace, trust, flags)
    if url is not None and daemon:
        raise typer.BadParameter("choose one of --url and --daemon")
    if any(flags.values()):
        raise typer.BadParameter("the daemon has its own policy, roots and model; leave those options out")
    _serve_pipe(url, workspace, trust_of(trust))
    return 0


def _serve_memory(workspace: Path | None, trust: str, flags: RunFlags) -> int:
    """Answer until the input ends, SIGTERM or Ctrl-C; the exit code."""
    gc.disable()  # Until it serves: what is loaded stays, and looking through it takes a tenth of the start.
    os.umask(_PRIVATE_UMASK)
    if importlib.util.find_spec("mcp") is None:
        print("muniment mcp needs its extra: pip install 'muniment[mcp]'", file=sys.stderr)
        return EXIT_FAILED
    import asyncio

    from muniment.cli.mcp_server import OpenedMemory, serve
    from muniment.cli.wire import Wire, set_aside

    # The SDK logs what it was sent; what we log goes by the rules of `events`.
    logging.getLogger("mcp").propagate = False
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    granted = trust_of(trust)
    with closing(OpenedMemory(lambda: settings_of(flags), workspace)) as opened:
        asyncio.run(serve(Wire(*set_aside()), opened, granted))
    return 0


def _serve_pipe(url: str | None, workspace: Path | None, trust: Trust) -> None:
    """Pass messages on until the input ends, SIGTERM or Ctrl-C; without a URL to the daemon of the home.

    Raises:
        ConfigInvalid: there is no such daemon, or no token for it.
    """
    import asyncio

    from muniment.cli.wire import Wire, set_aside
    from muniment.client.finding import name_workspace, place
    from muniment.client.mcp import McpPipe

    token = os.environ.get(TOKEN_VARIABLE) or None
    if url is not None and token is None:
        raise ConfigInvalid(f"{TOKEN_VARIABLE} is to hold a token of that daemon: muniment token add NAME")
    where = place(os.environ, url=url, token=token)
    named = name_workspace(None if workspace is None else str(workspace))
    asyncio.run(_pass_on(Wire(*set_aside()), lambda wire: McpPipe(where, named, trust, wire.send)))


async def _pass_on(wire: Wire, make: Callable[[Wire], McpPipe]) -> None:
    async with wire:
        pipe = make(wire)
        async for line in wire.lines():
            message = _message(line)
            if message is None:
                await wire.fail_line(line)
            else:
                await pipe.take(message)
        await pipe.finish(0 if wire.stopped.is_set() else DRAIN_SECONDS)


def _message(line: bytes | None) -> dict[str, Any] | None:
    """The message of a line; None: it is none."""
    found = json_or_none((repaired_json(line) if line else None) or line or b"")
    is_message = isinstance(found, dict) and found.get("jsonrpc") == "2.0"
    return found if is_message and (isinstance(found.get("method"), str) or "id" in found) else None
