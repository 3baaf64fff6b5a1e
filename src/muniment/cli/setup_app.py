"""What brings Muniment into a person's tools and shell, and out again; bodies load what they need.

Apart: options of a group of their own.
"""

from __future__ import annotations

from typing import Annotated

import typer

from muniment.cli.options import Json, ShellName, ToolName

setup_app = typer.Typer()

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking; needed where there is no terminal.")]


@setup_app.command()
def setup(
    tool: Annotated[ToolName, typer.Argument(metavar="TOOL")],
    remove: Annotated[bool, typer.Option("--remove", help="Take out what an earlier setup put in.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Put the MCP server and the recall hook into the settings of a coding tool.

    The change is shown first, and nothing is written before you say yes.
    """
    from muniment.cli.setup import set_up

    raise typer.Exit(set_up(tool.value, remove=remove, yes=yes, as_json=json))


@setup_app.command()
def completion(
    context: typer.Context,
    shell: Annotated[ShellName, typer.Argument(metavar="SHELL")],
) -> None:
    """Print what lets a shell complete commands and options.

    For bash: eval "$(muniment completion bash)" in ~/.bashrc. For zsh the same in ~/.zshrc, behind compinit.
    For fish: muniment completion fish > ~/.config/fish/completions/muniment.fish
    """
    from muniment.cli.completion import print_completion

    raise typer.Exit(print_completion(context.find_root().command, shell.value))


@setup_app.command()
def uninstall(
    yes: Yes = False,
    erase_memory: Annotated[
        bool,
        typer.Option("--erase-memory", help="Erase the memory too, for good; you are asked a second time."),
    ] = False,
    json: Json = False,
) -> None:
    """Take Muniment out of the coding tools; the memory stays.

    What there is, what goes and what stays is shown first.
    """
    from muniment.cli.uninstall import uninstall as run

    raise typer.Exit(run(yes=yes, erase_memory=erase_memory, as_json=json))
