"""The commands of the daemon, and their options. Bodies load what they need."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.options import (
    ApiKeyFile,
    BaseUrl,
    Json,
    ModelName,
    OnModelFailure,
    PolicyName,
    ProtocolName,
    Roots,
    Symlinks,
    Workspace,
)

token_app = typer.Typer(help="The tokens with which clients call the daemon.", no_args_is_help=True)

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Of the token, such as editor.")]


def serve(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    workspace: Annotated[
        list[Path] | None,
        typer.Option(help="A directory in a workspace to serve. May be repeated.", show_default="this one"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0: any that is free.")] = 0,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Unix socket, on which processes of this user need no token.",
            show_default="daemon.sock in the home",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which other machines call. May be repeated."),
    ] = None,
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
    grace: Annotated[
        float, typer.Option(min=0, max=300, help="Seconds that a running task is given when stopped.")
    ] = 10.0,
    json: Json = False,
) -> None:
    """Serve workspaces over HTTP until SIGTERM or Ctrl-C; the log goes to standard error."""
    gc.disable()  # Until it serves: what is loaded stays, and looking through it takes a tenth of the start.
    from muniment.cli.model import ModelFlags
    from muniment.cli.serve import Asked
    from muniment.cli.serve import serve as run

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    asked = Asked(
        workspace or [Path()],
        host,
        port,
        socket,
        allow_host or [],
        policy,
        root or [],
        symlinks,
        flags,
        grace,
        json=json,
    )
    raise typer.Exit(run(asked))


def acp(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
) -> None:
    """Answer a host that speaks the Agent Client Protocol, on standard input and output, until its end.

    Extension methods: qwen/control/workspace/memory/remember, remember/availability, forget and dream.
    """
    from muniment.cli.acp import Asked
    from muniment.cli.acp import serve as run
    from muniment.cli.model import ModelFlags

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    raise typer.Exit(run(Asked(workspace or Path(), policy, root or [], symlinks, flags)))


@token_app.command("add")
def token_add(
    name: TokenName,
    client_id: Annotated[
        list[str] | None, typer.Option("--client-id", metavar="ID", help="An id that it may give.")
    ] = None,
    trust: Annotated[
        str, typer.Option(metavar="owner|workspace|agent|external", help="Of the facts that come with it.")
    ] = "agent",
    json: Json = False,
) -> None:
    """Make a token and print it; it is shown this once."""
    from muniment.cli.token import add_token

    raise typer.Exit(add_token(name, client_id or [], trust, as_json=json))


@token_app.command("list")
def token_list(json: Json = False) -> None:
    """List whose tokens there are."""
    from muniment.cli.token import list_tokens

    raise typer.Exit(list_tokens(as_json=json))


@token_app.command("revoke")
def token_revoke(name: TokenName, json: Json = False) -> None:
    """Make a token invalid, from the next request on."""
    from muniment.cli.token import revoke_token

    raise typer.Exit(revoke_token(name, as_json=json))
