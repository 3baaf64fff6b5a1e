"""`muniment ui` and its options. Apart from `app`, which has many; bodies load what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from muniment.cli.options import Json, Workspace


def ui(
    workspace: Workspace = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser of this desktop.")] = False,
    json: Json = False,
) -> None:
    """Show the memory on a page: search it, see where it comes from, review, edit, undo.

    It is a page of the daemon that runs; where none does, one is started, until Ctrl-C.
    """
    from muniment.cli.ui import UiArguments, show_page

    raise typer.Exit(show_page(UiArguments(workspace, opens, json)))
