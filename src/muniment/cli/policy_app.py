"""The commands of `muniment policy`; bodies load what they need. Apart: they are a program of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.options import Json

policy_app = typer.Typer(help="Review, test, prove, pin and sign policies.", no_args_is_help=True)

Policy = Annotated[str, typer.Argument(metavar="POLICY", help="Name or path of a policy.")]
Policies = Annotated[list[str], typer.Argument(metavar="POLICY…", help="Names or paths of policies.")]


@policy_app.command()
def lint(policies: Policies, json: Json = False) -> None:
    """Say what is wrong with policies, or risky.

    Each finding has a line and a fix. Exit 1 if one of the policies is unfit.
    """
    from muniment.cli.policy import lint as run

    raise typer.Exit(run(policies, as_json=json))


@policy_app.command()
def explain(
    policy: Policy,
    verb: Annotated[str, typer.Argument(help="list, read, create, modify, delete, or removal (by code).")],
    path: Annotated[str, typer.Argument(help="As a model would write it, such as user/editor.md.")],
    json: Json = False,
) -> None:
    """Say what a policy answers to a request, and why.

    Also which rules were consulted, and what the model and the operator are told.
    """
    from muniment.cli.policy import explain as run

    raise typer.Exit(run(policy, verb, path, as_json=json))


@policy_app.command()
def diff(
    old: Annotated[str, typer.Argument(help="Name or path of a policy.")],
    new: Annotated[str, typer.Argument(help="Name or path of another one, or of the same as edited.")],
    accepted: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where agreed widenings stand, such as WIDENINGS.md.")
    ] = None,
    json: Json = False,
) -> None:
    """Prove that NEW grants no more than OLD.

    Or show the shortest path on which it does, with the rule. Exit 0 only if it is proved or accepted.
    """
    from muniment.cli.policy import diff as run

    raise typer.Exit(run(old, new, accepted, as_json=json))


@policy_app.command("test")
def run_tests(policies: Policies, json: Json = False) -> None:
    """Run inline tests, and try to fool them.

    Each rule is weakened to see whether they notice. Exit 1 if they fail, or do not notice.
    """
    from muniment.cli.policy import test as run

    raise typer.Exit(run(policies, as_json=json))


@policy_app.command()
def prove(
    invariants: Annotated[
        str, typer.Argument(help="A file of invariants, such as policies/invariants.toml.")
    ],
    policies: Policies,
    json: Json = False,
) -> None:
    """Prove invariants, or refute them by a path.

    Exit 0 only if all are proved for all policies.
    """
    from muniment.cli.policy import prove as run

    raise typer.Exit(run(invariants, policies, as_json=json))


@policy_app.command("show")
def show_policy(
    policy: Policy,
    effective: Annotated[
        bool, typer.Option("--effective", help="What it comes to with all that it extends, and who says so.")
    ] = False,
    normal: Annotated[
        bool, typer.Option("--normal", help="What it comes to, as the text whose SHA-256 is its digest.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a policy."""
    from muniment.cli.policy import show as run

    if effective and normal:
        raise typer.BadParameter("choose one of --effective and --normal")
    raise typer.Exit(run(policy, effective=effective, normal=normal, as_json=json))


@policy_app.command()
def lock(
    folder: Annotated[Path, typer.Argument(help="Where the policies lie.")] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if the lock is stale.")
    ] = False,
    json: Json = False,
) -> None:
    """Pin the policies of a folder to their digests."""
    from muniment.cli.policy import lock as run

    raise typer.Exit(run(folder, check=check, as_json=json))


@policy_app.command()
def sign(
    policy: Policy,
    key: Annotated[Path, typer.Option(metavar="FILE", help="A private key for ssh-keygen.")],
    json: Json = False,
) -> None:
    """Sign a policy with ssh-keygen, into a file beside it."""
    from muniment.cli.policy import sign as run

    raise typer.Exit(run(policy, key, as_json=json))


@policy_app.command()
def verify(
    policy: Policy,
    signers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Who may sign (ssh-keygen's ALLOWED SIGNERS).", show_default="as configured"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say who has signed a policy."""
    from muniment.cli.policy import verify as run

    raise typer.Exit(run(policy, signers, as_json=json))
