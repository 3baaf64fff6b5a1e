"""The commands about fleets, and their options; bodies load what they need. Apart: a group of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from muniment.cli.options import Json

fleet_app = typer.Typer(help="Many nodes over one PostgreSQL: see docs/fleet.md.", no_args_is_help=True)
home_app = typer.Typer(help="The homes of a fleet, and their tokens.", no_args_is_help=True)
fleet_app.add_typer(home_app, name="home")

Ledger = Annotated[
    str,
    typer.Option(
        metavar="URL|FILE",
        help="The database: a URL without a password, or the path of a file that holds one.",
        show_default="what MUNIMENT_LEDGER says",
    ),
]
NodeName = Annotated[
    str, typer.Option(metavar="NAME", help="With --ledger: the name of this node.", show_default="the host's")
]
Slots = Annotated[
    int, typer.Option(min=1, max=256, help="With --ledger: homes that have their turn at once.")
]
Lease = Annotated[
    float, typer.Option(min=1, max=300, help="With --ledger: seconds until others go on for a lost node.")
]
HomeName = Annotated[str, typer.Argument(metavar="HOME", help="A home: one memory, such as that of a user.")]


@fleet_app.command()
def migrate(
    ledger: Ledger = "",
    role: Annotated[str, typer.Option(help="The role as which nodes connect.")] = "muniment_node",
    json: Json = False,
) -> None:
    """Make the tables of a fleet, or bring them up to date; as the role that owns them."""
    from muniment.cli.fleet import migrate_tables

    raise typer.Exit(migrate_tables(ledger, role, as_json=json))


@fleet_app.command()
def status(ledger: Ledger = "", json: Json = False) -> None:
    """Show the nodes, how many homes and leases there are, and what waits since when."""
    from muniment.cli.fleet import show_status

    raise typer.Exit(show_status(ledger, as_json=json))


@home_app.command()
def add(
    home: HomeName,
    token: Annotated[
        str, typer.Option(metavar="NAME", help="Make this token of the home instead of its owner's.")
    ] = "",
    client: Annotated[
        list[str] | None, typer.Option(help="An id that may be given with it. May be repeated.")
    ] = None,
    trust: Annotated[
        str, typer.Option(help="Of what comes with it: owner, workspace, agent or external.")
    ] = "owner",
    ledger: Ledger = "",
    json: Json = False,
) -> None:
    """Make a home, if there is none of that name, and a token for it, which is shown once."""
    from muniment.cli.fleet import add_home

    raise typer.Exit(add_home(home, ledger, token=token, clients=client or [], trust=trust, as_json=json))


@home_app.command("list")
def list_homes(ledger: Ledger = "", json: Json = False) -> None:
    """List the homes."""
    from muniment.cli.fleet import list_homes as run

    raise typer.Exit(run(ledger, as_json=json))


@home_app.command()
def revoke(
    home: HomeName,
    token: Annotated[str, typer.Argument(metavar="NAME", help="A token of it; `owner`: that of its owner.")],
    ledger: Ledger = "",
    json: Json = False,
) -> None:
    """Make a token of a home invalid, from the next request on."""
    from muniment.cli.fleet import revoke_token

    raise typer.Exit(revoke_token(home, token, ledger, as_json=json))


@home_app.command()
def remove(
    home: HomeName,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
    ledger: Ledger = "",
    json: Json = False,
) -> None:
    """Delete a home with everything that is remembered in it, its history and its tokens."""
    from muniment.cli.fleet import remove_home

    raise typer.Exit(remove_home(home, ledger, yes=yes, as_json=json))
