"""The commands and their options. Bodies load what they need, so that `--help` stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.conformance_app import conformance
from muniment.cli.daemon_app import acp, serve, token_app
from muniment.cli.ledger_app import audit_app, erase, history, review_app, undo, why
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
from muniment.cli.policy_app import policy_app
from muniment.cli.recall_app import recall
from muniment.cli.tidying_app import dream, forget
from muniment.names import __version__

app = typer.Typer(
    name="muniment",
    help="Long-term memory for AI agents as plain markdown.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
index_app = typer.Typer(help="Rebuild or verify the generated index of each scope.", no_args_is_help=True)
app.add_typer(index_app, name="index")
app.add_typer(review_app, name="review")
app.add_typer(audit_app, name="audit")
app.add_typer(policy_app, name="policy")
app.add_typer(token_app, name="token")


@app.callback(invoke_without_command=True)
def _program(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"muniment {__version__}")
        raise typer.Exit


@app.command()
def remember(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    fact: Annotated[str, typer.Argument(help="The fact, or - to read it from standard input.")],
    scope: Annotated[str | None, typer.Option(help="The one scope that may be written.")] = None,
    workspace: Workspace = None,
    context: Annotated[
        str, typer.Option(metavar="workspace|clean", help="clean: the agent sees nothing of the memory.")
    ] = "workspace",
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
    task_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Your name for this task: asked again with it, nothing is done twice."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge and report; commit nothing.")] = False,
    transcript: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what was said between model and run to a new file."),
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Print the model's last words too, as data.")
    ] = False,
    json: Json = False,
) -> None:
    """Remember a fact."""
    from muniment.cli.model import ModelFlags
    from muniment.cli.remember import Asked, run

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    asked = Asked(
        fact,
        scope,
        context,
        workspace,
        policy,
        root or [],
        symlinks,
        flags,
        transcript,
        task_id,
        dry_run=dry_run,
        detail=detail,
        json=json,
    )
    raise typer.Exit(run(asked))


@app.command("ls")
def list_entries(
    path: Annotated[str, typer.Argument(help="Scope or directory; all scopes if empty.")] = "",
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """List the entries, with whatever cannot be read or named."""
    from muniment.cli.inspect import Where, list_memory

    raise typer.Exit(list_memory(Where(workspace, policy, root or [], json=json), path))


@app.command()
def show(
    path: Annotated[
        str,
        typer.Argument(
            help="An entry, such as user/editor/dark-mode.md, or ENTRY@TASK: as that task left it."
        ),
    ],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Print an entry."""
    from muniment.cli.inspect import Where, show_entry

    raise typer.Exit(show_entry(Where(workspace, policy, root or [], json=json), path))


@index_app.command("rebuild")
def index_rebuild(
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Write the index of every scope anew from its entries."""
    from muniment.cli.inspect import Where, rebuild_indexes

    raise typer.Exit(rebuild_indexes(Where(workspace, policy, root or [], json=json)))


@index_app.command("verify")
def index_verify(
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Compare every index with its entries; exit 1 if one differs."""
    from muniment.cli.inspect import Where, verify_indexes

    raise typer.Exit(verify_indexes(Where(workspace, policy, root or [], json=json)))


@app.command()
def doctor(
    policy: PolicyName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    json: Json = False,
) -> None:
    """Try what the kernel fence holds here, or, with --model, what a model's server can do."""
    if not (model or base_url or api_key_file or protocol):
        from muniment.cli.doctor import examine

        raise typer.Exit(examine(policy, as_json=json))
    if policy is not None:
        raise typer.BadParameter("it is for the fence; examine a model without it", param_hint="--policy")
    from muniment.cli.doctor_model import examine_model
    from muniment.cli.model import ModelFlags

    flags = ModelFlags(model=model, base_url=base_url, api_key_file=api_key_file, protocol=protocol)
    raise typer.Exit(examine_model(flags, as_json=json))


@app.command()
def tool(
    root: Roots = None,
    policy: PolicyName = None,
    symlinks: Symlinks = None,
    state: Annotated[Path | None, typer.Option(help="Directory for what Muniment keeps.")] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help='Without a worker; the policy must say require = "none".')
    ] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Commit at the end of input.")] = False,
) -> None:
    """Answer tool calls given as JSON lines.

    Each line of standard input is an object with "tool" and "args"; each answer is one with
    "verdict", "code" and "text". Directories are bound with --root; the default ones are not used.
    """
    from muniment.cli.tool import serve

    raise typer.Exit(
        serve(
            policy or "strict", root or [], symlinks or "refuse", state, in_process=in_process, commit=commit
        )
    )


for command in (recall, forget, dream, history, why, undo, erase, serve, acp, conformance):
    app.command()(command)
