"""The command that recalls, and its options. Its bodies load what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from muniment.cli.options import Json, PolicyName, Roots, Workspace


def recall(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    words: Annotated[
        list[str] | None, typer.Argument(help="A message, or some words of what is meant.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Entries at most.")] = 5,
    budget: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Tokens of the text at most.")] = 2_000,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="An entry that was shown, by its id in --json. May be repeated."),
    ] = None,
    scope: Annotated[str | None, typer.Option(help="The one scope to look in.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help='Answer a JSON event with "prompt" on standard input by one with "additionalContext".',
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Recall what helps with a message.

    With --hook the exit code is 0 and an answer is there within 5 seconds, whatever goes wrong.
    """
    from muniment.cli.inspect import Where
    from muniment.cli.recall import Asked, answer_hook, run

    where = Where(workspace, policy, root or [], json=json)
    asked = Asked(" ".join(words or []), limit, budget, tuple(exclude or ()), scope)
    if hook:
        if words or json:
            raise typer.BadParameter("it reads what is asked from standard input", param_hint="--hook")
        raise typer.Exit(answer_hook(where, asked))
    if not asked.query.strip():
        raise typer.BadParameter("say what to recall", param_hint="WORDS")
    raise typer.Exit(run(where, asked))
