"""`muniment mcp` and its options. Apart from `app`, which has many; bodies load what they need."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from muniment.cli.options import (
    ApiKeyFile,
    BaseUrl,
    ModelName,
    OnModelFailure,
    PolicyName,
    ProtocolName,
    Roots,
    Symlinks,
    Workspace,
)


def mcp(  # noqa: PLR0913, PLR0917  every argument is an option of the command
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
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
) -> None:
    """Serve the memory to a tool that speaks the Model Context Protocol, on standard input and output."""
    if url is not None or daemon:
        if url is not None and daemon:
            raise typer.BadParameter("choose one of --url and --daemon")
        if policy or root or symlinks or model or base_url or api_key_file or protocol or on_model_failure:
            raise typer.BadParameter(
                "the daemon has its own policy, roots and model; leave those options out"
            )
        from muniment.cli.mcp_pipe import PipeArguments, serve_pipe

        raise typer.Exit(serve_pipe(PipeArguments(url, workspace, trust)))
    gc.disable()  # Until it serves: what is loaded stays, and looking through it takes a tenth of the start.
    from muniment.cli.mcp import McpArguments, serve_memory
    from muniment.cli.terminal import ModelFlags

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    raise typer.Exit(serve_memory(McpArguments(workspace, policy, root or [], symlinks, flags, trust)))
