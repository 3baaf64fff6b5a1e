"""Implement `muniment mcp`: serve the memory of this home to an MCP host, or forward to a daemon.

With `--url` or `--daemon` the program only forwards messages: the daemon, on this machine or on another one,
defines the tools and the permissions. A machine without a memory therefore loads neither the SDK nor the
fence.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from muniment.cli.command import command, load_settings, open_model_and_drop_key, parse_trust
from muniment.cli.options import RunFlags, Workspace
from muniment.cli.terminal import EXIT_FAILED
from muniment.errors import ConfigInvalid
from muniment.kernel.names import Trust

TOKEN_VARIABLE: Final = "MUNIMENT_TOKEN"  # noqa: S105  a variable's name

_PRIVATE_UMASK: Final = 0o077


@command("not started", has_json=False)
def mcp(
    *,
    workspace: Workspace = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Forward all messages to this daemon, with the token in MUNIMENT_TOKEN."
        ),
    ] = None,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="Forward all messages to the running daemon of this home.")
    ] = False,
    trust: Annotated[
        str,
        typer.Option(metavar="owner|workspace|agent|external", help="Trust of the client and of its facts."),
    ] = "agent",
    flags: RunFlags,
) -> int:
    """Serve a Model Context Protocol host on standard input.

    Responses are written to standard output.
    """
    if url is None and not daemon:
        return _serve_memory(workspace, trust, flags)
    if url is not None and daemon:
        raise typer.BadParameter("use either --url or --daemon")
    if any(flags.values()):
        raise typer.BadParameter("the daemon has its own policy, roots and model; remove these options")
    _forward_messages(url, workspace, parse_trust(trust))
    return 0


def _serve_memory(workspace: Path | None, trust: str, flags: RunFlags) -> int:
    """Serve the memory until the input ends, or until SIGTERM or Ctrl-C; return the exit code."""
    # Off until it serves: loaded modules stay in memory, and a collection takes a tenth of the start time.
    gc.disable()
    os.umask(_PRIVATE_UMASK)
    if importlib.util.find_spec("mcp") is None:
        print("muniment mcp needs the extra `mcp`: pip install 'muniment[mcp]'", file=sys.stderr)
        return EXIT_FAILED
    import asyncio

    from muniment.integrations.mcp.memory import LazyMemory
    from muniment.integrations.mcp.stdio import serve
    from muniment.integrations.mcp.wire import Wire, redirect_streams

    # The SDK logs the messages that it receives, so its log is dropped; Muniment logs only the data that
    # `events` allows.
    logging.getLogger("mcp").propagate = False
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    client_trust = parse_trust(trust)
    with closing(
        LazyMemory(lambda: load_settings(flags), workspace, open_model_and_drop_key, _print_warning)
    ) as opened:
        asyncio.run(serve(Wire(*redirect_streams()), opened, client_trust))
    return 0


def _print_warning(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _forward_messages(url: str | None, workspace: Path | None, trust: Trust) -> None:
    """Forward messages to a daemon until the input ends, or until SIGTERM or Ctrl-C.

    Args:
        url: URL of the daemon; None: the daemon of the home.
        workspace: a directory of the workspace; None: the current directory.
        trust: trust of the client, and of the facts that it sends.

    Raises:
        ConfigInvalid: the daemon is not found, or its token is missing.
    """
    import asyncio

    from muniment.client.discovery import create_locator, resolve_workspace
    from muniment.integrations.mcp.pipe import forward_messages
    from muniment.integrations.mcp.wire import Wire, redirect_streams

    token = os.environ.get(TOKEN_VARIABLE) or None
    if url is not None and token is None:
        raise ConfigInvalid(
            f"{TOKEN_VARIABLE} is not set; create a token at that daemon: muniment token add NAME"
        )
    daemon = create_locator(os.environ, url=url, token=token)
    workspace_name = resolve_workspace(None if workspace is None else str(workspace))
    asyncio.run(forward_messages(Wire(*redirect_streams()), daemon, workspace_name, trust))
