"""The commands about projects, and their options; bodies load what they need. Apart: a group of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.options import Json

projects_app = typer.Typer(help="Which memory belongs to which repository.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A directory in the repository.", show_default="this one")
]
ProjectName = Annotated[
    str, typer.Argument(metavar="ID|NAME", help="A project, as `projects list` shows it.")
]


@projects_app.command("list")
def list_projects(json: Json = False) -> None:
    """List the projects: how many entries, where they lie, from where they were cloned."""
    from muniment.cli.projects import list_projects as run

    raise typer.Exit(run(as_json=json))


@projects_app.command()
def link(project: ProjectName, directory: Directory = Path(), json: Json = False) -> None:
    """Have this repository use the memory of a project. Nothing is merged, nothing deleted."""
    from muniment.cli.projects import link_checkout

    raise typer.Exit(link_checkout(project, directory, as_json=json))


@projects_app.command()
def unlink(directory: Directory = Path(), json: Json = False) -> None:
    """Give this repository a memory of its own from now on; the one that it had stays where it is."""
    from muniment.cli.projects import unlink_checkout

    raise typer.Exit(unlink_checkout(directory, as_json=json))


@projects_app.command()
def rename(
    project: ProjectName,
    name: Annotated[str, typer.Argument(metavar="NEW-NAME", help="What people are to call it.")],
    json: Json = False,
) -> None:
    """Call a project by another name; its id and its directory stay."""
    from muniment.cli.projects import rename_project

    raise typer.Exit(rename_project(project, name, as_json=json))


def init(
    directory: Directory = Path(),
    folder: Annotated[
        str, typer.Option(metavar="FOLDER", help="Where, beneath the repository.")
    ] = ".muniment",
    leave: Annotated[
        bool, typer.Option("--leave", help="Also where the home has entries of the project: they stay there.")
    ] = False,
    home: Annotated[bool, typer.Option("--home", help="The other way: keep it in the home again.")] = False,
    json: Json = False,
) -> None:
    """Keep the memory of this project inside its repository, where git takes it along."""
    from muniment.cli.projects import init_checkout

    raise typer.Exit(init_checkout(directory, None if home else folder, leave=leave, as_json=json))
