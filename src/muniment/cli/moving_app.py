"""The commands that move memory, and their options; bodies load what they need.

Apart from `app.py`: they are about a memory as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.options import Json, PolicyName, Roots, Workspace, where_of
from muniment.errors import PlatformUnsupported
from muniment.portable import IS_WINDOWS


def import_memory(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    path: Annotated[Path, typer.Argument(help="A file, a folder, a zip or an exported tar.")],
    format: Annotated[  # noqa: A002  hidden behind `--from`
        str,
        typer.Option(
            "--from",
            metavar="auto|markdown|claude-code|mcp-memory|mem0|chatgpt|basic-memory|muniment",
            help="What it is.",
        ),
    ] = "auto",
    trust: Annotated[
        str,
        typer.Option(
            metavar="owner|workspace|agent|external",
            help="Of all of it. owner: each word is yours. external: a stranger's, which waits for review.",
        ),
    ] = "agent",
    scope: Annotated[str | None, typer.Option(help="The one scope that it goes to.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge and report; write nothing.")] = False,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Import the memory of another tool, or an export; what is there already is not written twice.

    Exit 1 if anything was refused; the rest is imported all the same.
    """
    _require_here()
    from muniment.cli.moving import ImportArguments, import_from

    where = where_of(workspace, policy, root, json=json)
    raise typer.Exit(import_from(where, ImportArguments(path, format, trust, scope, dry_run)))


def export(
    to: Annotated[str, typer.Option(metavar="FILE.tar|FILE.jsonl|-", help="A new file, or standard output.")],
    scope: Annotated[str | None, typer.Option(help="The one scope to export.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Write every entry, with where it comes from, to one file that `import` reads."""
    _require_here()
    from muniment.cli.moving import export_to

    raise typer.Exit(export_to(where_of(workspace, policy, root, json=json), to, scope))


def backup(
    file: Annotated[str, typer.Argument(help="A new file.")],
    json: Json = False,
) -> None:
    """Back up the whole home, as it is at one moment, while others go on: files, ledger, configuration."""
    _require_here()
    from muniment.cli.moving import back_up_to

    raise typer.Exit(back_up_to(file, as_json=json))


def restore(
    file: Annotated[Path, typer.Argument(help="What `backup` wrote.")],
    json: Json = False,
) -> None:
    """Make the home of a backup, once all of it is checked; a home that holds anything is left alone."""
    _require_here()
    from muniment.cli.moving import restore_from

    raise typer.Exit(restore_from(file, as_json=json))


def _require_here() -> None:
    """Raise on Windows, which opens no file without following a link.

    Raises:
        PlatformUnsupported: this is Windows.
    """
    if IS_WINDOWS:
        raise PlatformUnsupported(
            "this does not run on Windows; export or import on Linux (docs/platforms.md)"
        )


def add_moving(app: typer.Typer) -> None:
    """Give a program these commands."""
    app.command("import")(import_memory)
    for command in (export, backup, restore):
        app.command()(command)
