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
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from muniment.cli.command import command, model_of, settings_of, trust_of
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

    from muniment.integrations.mcp.memory import OpenedMemory
    from muniment.integrations.mcp.stdio import serve
    from muniment.integrations.mcp.wire import Wire, set_aside

    # The SDK logs what it was sent; what we log goes by the rules of `events`.
    logging.getLogger("mcp").propagate = False
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    granted = trust_of(trust)
    with closing(OpenedMemory(lambda: settings_of(flags), workspace, model_of, _warn)) as opened:
        asyncio.run(serve(Wire(*set_aside()), opened, granted))
    return 0


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _serve_pipe(url: str | None, workspace: Path | None, trust: Trust) -> None:
    """Pass messages on until the input ends, SIGTERM or Ctrl-C; without a URL to the daemon of the home.

    Raises:
        ConfigInvalid: there is no such daemon, or no token for it.
    """
    import asyncio

    from muniment.client.finding import name_workspace, place
    from muniment.integrations.mcp.pipe import pass_on
    from muniment.integrations.mcp.wire import Wire, set_aside

    token = os.environ.get(TOKEN_VARIABLE) or None
    if url is not None and token is None:
        raise ConfigInvalid(f"{TOKEN_VARIABLE} is to hold a token of that daemon: muniment token add NAME")
    where = place(os.environ, url=url, token=token)
    named = name_workspace(None if workspace is None else str(workspace))
    asyncio.run(pass_on(Wire(*set_aside()), where, named, trust))
