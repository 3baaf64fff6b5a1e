"""`muniment conformance` and its options. The body is loaded when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from muniment.cli.options import Json


def conformance(
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="What is under test: muniment, anthropic, mcp=COMMAND or command=COMMAND.",
        ),
    ] = "muniment",
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Another tool to set beside it. May be repeated."),
    ] = None,
    attack_class: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="CLASS", help="Only the cases of a class. May be repeated."),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only, or also, this case. May be repeated.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, metavar="N", help="Cases at a time.", show_default="the processors, at most 4"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Attack a memory tool with the shipped corpus, in throwaway directories, and tell what held.

    A COMMAND speaks the JSON lines of `muniment tool`, or the Model Context Protocol. In it {user}, {project}
    and {state} stand for directories. Exit 1 if anything escaped, leaked, hung or crashed.
    """
    from muniment.cli.conformance import Asked, Misused, conform

    try:
        code = conform(Asked(target, peer or [], attack_class or [], case or [], jobs, json=json))
    except Misused as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    raise typer.Exit(code)
