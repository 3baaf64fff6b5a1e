"""The commands about what became of the memory, and their options. Bodies load what they need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.options import Json, PolicyName, Roots, Workspace

review_app = typer.Typer(
    help="Decide about changes that wait for their owner: list, show, approve, reject.", no_args_is_help=True
)
audit_app = typer.Typer(help="Check the chain of records for edits, removals and cuts.", no_args_is_help=True)

ReviewId = Annotated[str, typer.Argument(metavar="ID", help="As `review list` shows it, such as r3k9x2m.")]


def history(
    path: Annotated[str, typer.Argument(help="An entry, folder or scope; everything if empty.")] = "",
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """List what was committed, the newest first."""
    from muniment.cli.history import show_history
    from muniment.cli.inspect import Where

    raise typer.Exit(show_history(Where(workspace, policy, root or [], json=json), path))


def why(
    path: Annotated[str, typer.Argument(help="An entry, such as user/editor/dark-mode.md.")],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Say where an entry comes from, and whether it was edited by hand since."""
    from muniment.cli.history import show_why
    from muniment.cli.inspect import Where

    raise typer.Exit(show_why(Where(workspace, policy, root or [], json=json), path))


def undo(
    task: Annotated[str, typer.Argument(help="The id of a task, as `history` shows it.")],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Take back what a task did; refused where its files were changed since."""
    from muniment.cli.history import undo_task
    from muniment.cli.inspect import Where

    raise typer.Exit(undo_task(Where(workspace, policy, root or [], json=json), task))


def erase(
    target: Annotated[
        str, typer.Argument(help="An entry, or the id of a task: then every file that it wrote.")
    ] = "",
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase; else it is only shown what would go.")] = False,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Look for pieces of the text in this file (- for standard input) instead."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Erase an entry with its whole history, for good; or, with --verify, look for what is left of a text."""
    from muniment.cli.erase import erase_target, look_for
    from muniment.cli.inspect import Where

    if bool(target) == (verify is not None) or (verify is not None and yes):
        raise typer.BadParameter("name what to erase, or a text to look for with --verify FILE")
    where = Where(workspace, policy, root or [], json=json)
    raise typer.Exit(look_for(where, verify) if verify is not None else erase_target(where, target, yes=yes))


@review_app.command("list")
def review_list(
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """List what waits."""
    from muniment.cli.inspect import Where
    from muniment.cli.review import list_reviews

    raise typer.Exit(list_reviews(Where(workspace, policy, root or [], json=json)))


@review_app.command("show")
def review_show(
    review_id: ReviewId,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Show what waits: the whole text, with everything invisible made visible, and its digest."""
    from muniment.cli.inspect import Where
    from muniment.cli.review import show_review

    raise typer.Exit(show_review(Where(workspace, policy, root or [], json=json), review_id))


@review_app.command("approve")
def review_approve(
    review_id: ReviewId,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    digest: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="Approve exactly what `review show` showed with this."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve whatever it is now, unseen.")] = False,
    json: Json = False,
) -> None:
    """Commit what waits; on a terminal it is shown first, and you are asked."""
    from muniment.cli.inspect import Where
    from muniment.cli.review import approve_review, is_asked_on_terminal

    if not (digest or yes or is_asked_on_terminal()):
        raise typer.BadParameter("without a terminal it takes --digest, as `review show` shows it, or --yes")
    where = Where(workspace, policy, root or [], json=json)
    raise typer.Exit(approve_review(where, review_id, digest, yes=yes))


@review_app.command("reject")
def review_reject(
    review_id: ReviewId,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Decide that what waits is never committed."""
    from muniment.cli.inspect import Where
    from muniment.cli.review import reject_review

    raise typer.Exit(reject_review(Where(workspace, policy, root or [], json=json), review_id))


@audit_app.command("verify")
def audit_verify(
    head_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds a head that `audit head` printed earlier, kept elsewhere."),
    ] = None,
    json: Json = False,
) -> None:
    """Check the whole chain; exit 1 if anything was edited, removed or cut."""
    from muniment.cli.audit import verify_chain

    raise typer.Exit(verify_chain(head_file, as_json=json))


@audit_app.command("head")
def audit_head(json: Json = False) -> None:
    """Print the end of the chain, to be kept where nobody can change it with the ledger."""
    from muniment.cli.audit import print_head

    raise typer.Exit(print_head(as_json=json))


@audit_app.command("show")
def audit_show(
    task: Annotated[str | None, typer.Option(help="Only the records of this task.")] = None,
    json: Json = False,
) -> None:
    """Print the records."""
    from muniment.cli.audit import show_records

    raise typer.Exit(show_records(task, as_json=json))
