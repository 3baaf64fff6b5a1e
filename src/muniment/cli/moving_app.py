"""The commands that move memory, and their options; bodies load what they need.

Apart from `app.py`: they are about a memory as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.options import Json, PolicyName, Roots, Workspace, where_of


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
            help="Of all of it. owner: each word of it is yours. external: all of it waits for review.",
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
    from muniment.cli.moving import ImportArguments, import_from

    where = where_of(workspace, policy, root, json=json)
    raise typer.Exit(import_from(where, ImportArguments(path, format, trust, scope, dry_run)))
