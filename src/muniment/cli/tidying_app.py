"""The commands that take things out of the memory, and their options. Bodies load what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from muniment.cli.options import (
    ApiKeyFile,
    BaseUrl,
    Json,
    ModelName,
    PolicyName,
    ProtocolName,
    Roots,
    Workspace,
)


def forget(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    words: Annotated[
        list[str], typer.Argument(help="The path of an entry, or words that it holds, all of them.")
    ],
    scope: Annotated[str | None, typer.Option(help="The one scope to look in.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown what would go.")] = False,
    json: Json = False,
) -> None:
    """Forget an entry, or what holds these words; `undo` brings it back until it is erased."""
    from muniment.cli.forget import run
    from muniment.cli.inspect import Where
    from muniment.cli.model import ModelFlags
    from muniment.jobs.request import ForgetRequest

    flags = ModelFlags(model=model, base_url=base_url, api_key_file=api_key_file, protocol=protocol)
    where = Where(workspace, policy, root or [], json=json)
    raise typer.Exit(run(where, flags, ForgetRequest(" ".join(words), scope, yes=yes)))


def dream(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    scope: Annotated[str | None, typer.Option(help="The one scope to tidy.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown what would be.")] = False,
    json: Json = False,
) -> None:
    """Tidy the memory: merge what says the same, remove what has expired, count the rest."""
    from muniment.cli.dream import run
    from muniment.cli.inspect import Where
    from muniment.cli.model import ModelFlags
    from muniment.jobs.request import DreamRequest

    flags = ModelFlags(model=model, base_url=base_url, api_key_file=api_key_file, protocol=protocol)
    where = Where(workspace, policy, root or [], json=json)
    raise typer.Exit(run(where, flags, DreamRequest(scope, yes=yes)))
