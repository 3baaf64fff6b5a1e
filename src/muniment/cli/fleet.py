"""Implement `muniment fleet`, and create a node of a fleet for `muniment serve --ledger`."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muniment.cli.command import Report, command, load_settings
from muniment.cli.options import Ledger
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid, printable
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.fleet.node import FleetNode
    from muniment.settings import Settings

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)

HomeName = Annotated[str, typer.Argument(metavar="HOME", help="A home: one memory, such as that of a user.")]


def require_installed() -> None:
    """Check that the packages for a fleet are installed.

    Raises:
        ConfigInvalid: a package is missing.
    """
    if None in map(importlib.util.find_spec, ("psycopg", "psycopg_pool", "procrastinate")):
        raise ConfigInvalid("a fleet needs the extra `fleet`: pip install 'muniment[fleet]'")


def create_core(
    settings: Settings, model: Model, ledger: str, name: str | None, slots: int, lease: float
) -> FleetNode:
    """Create a node of a fleet for `muniment serve`.

    Args:
        settings: the settings of the program.
        model: the model that decides.
        ledger: URL of the database, or path of a file that contains it; empty: use `MUNIMENT_LEDGER`.
        name: name of the node; empty: the name of this host.
        slots: maximum number of homes to serve at the same time.
        lease: seconds after which another node replaces a lost one.

    Raises:
        ConfigInvalid: a value is invalid, or a package is missing.
    """
    require_installed()
    from muniment.fleet.address import load_ledger_url
    from muniment.fleet.node import FleetNode, NodeOptions

    name = name or os.uname().nodename
    if _NODE.fullmatch(name) is None:
        raise ConfigInvalid(f"invalid node name {printable(name)!r}: use up to 63 letters, digits, . _ -")
    options = NodeOptions(load_ledger_url(ledger, os.environ), name, slots, lease)
    return FleetNode(settings, model, options)


def _read_database(ledger: str) -> tuple[str, bytes]:
    """Return the URL of the database, and the key of the fleet.

    Args:
        ledger: the URL, or path of a file that contains it; empty: use `MUNIMENT_LEDGER`.

    Raises:
        ConfigInvalid: the URL or a package is missing.
    """
    require_installed()
    from muniment.fleet.address import load_ledger_url
    from muniment.policy.ownership import create_private_directory
    from muniment.store.state import read_key

    settings = load_settings()
    create_private_directory(settings.state)
    return load_ledger_url(ledger, os.environ), read_key(settings.state)


@command("not migrated")
def fleet_migrate(
    *,
    ledger: Ledger = "",
    role: Annotated[str, typer.Option(help="The PostgreSQL role that nodes use.")] = "muniment_node",
) -> Report:
    """Create or update the tables of a fleet.

    Run it as the PostgreSQL role that owns the tables.
    """
    url, key = _read_database(ledger)
    from muniment.fleet.schema import get_newest_version, migrate

    done = list(migrate(url, key, role))
    lines = [f"applied {each}" for each in done]
    lines.append(f"the database has version {get_newest_version()}; nodes connect as {role}")
    return Report({"status": "migrated", "version": get_newest_version(), "done": done}, lines)


@command("no status")
def fleet_status(*, ledger: Ledger = "") -> Report:
    """Show the nodes, homes, leases and waiting tasks."""
    url, _ = _read_database(ledger)
    from muniment.fleet.schema import read_status

    found = read_status(url)
    return Report(found, _format_status(found))


def _format_status(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"homes: {found['homes']}, with a lease now: {found['leases']}"
    waiting = ", ".join(f"{each['tasks']} {each['status']} since {each['oldest']}" for each in found["tasks"])
    yield f"tasks: {waiting or 'none waiting'}"
    for node in found["nodes"]:
        problem = f", accepts no work: {node['problem']}" if node["problem"] else ""
        details = f"{node['running']} turns, seen {node['seconds']:.0f} s ago, {node['version']}{problem}"
        yield f"node {clean_foreign_line(node['name'])}: {details}"


@command("not added")
def fleet_home_add(
    *,
    home: HomeName,
    token: Annotated[
        str, typer.Option(metavar="NAME", help="Create a token with this name instead of the owner's.")
    ] = "",
    client: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A client id that may be sent with this token. May be repeated."),
    ] = None,
    trust: Annotated[
        str,
        typer.Option(help="Trust of the facts sent with this token: owner, workspace, agent or external."),
    ] = "owner",
    ledger: Ledger = "",
) -> Report:
    """Create a home if it does not exist, and a token for it.

    The token is printed only once.
    """
    url, key = _read_database(ledger)
    from muniment.fleet import homes
    from muniment.server.tokens import check_names
    from muniment.store.tasks import OWNER

    if trust not in list(Trust):
        raise ConfigInvalid(f"unknown trust {printable(trust)!r}; use one of {', '.join(Trust)}")
    name, clients = token or OWNER, client or []
    if name == OWNER and Trust(trust) is not Trust.OWNER:
        raise ConfigInvalid(
            "the owner's token always has trust owner; to create another token, use --token NAME"
        )
    # Check this before the home is created, so that no home is left without a token.
    check_names(name, clients, allow_owner_name=True)
    is_new = homes.add_home(url, home)
    token_value = homes.add_token(url, key, home, name, clients, Trust(trust))
    line = f"{'created' if is_new else 'found'} the home {home}; its token {name}, printed only once:"
    return Report({"home": home, "is_new": is_new, "name": name, "token": token_value}, [line, token_value])


@command("not listed")
def fleet_home_list(*, ledger: Ledger = "") -> Report:
    """List the homes."""
    url, _ = _read_database(ledger)
    from muniment.fleet import homes

    found = list(homes.list_homes(url))
    return Report({"homes": found}, found)


@command("not revoked")
def fleet_home_revoke(
    *,
    home: HomeName,
    token: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a token of the home; `owner` is its owner's token.")
    ],
    ledger: Ledger = "",
) -> Report:
    """Revoke a token of a home.

    The nodes reject it from the next request on.
    """
    url, key = _read_database(ledger)
    from muniment.fleet import homes

    homes.revoke_token(url, key, home, token)
    return Report({"home": home, "revoked": token}, [f"revoked {token} of {home}"])


@command("not removed")
def fleet_home_remove(
    *,
    home: HomeName,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion.")] = False,
    ledger: Ledger = "",
) -> Report:
    """Delete a home with its entries, history and tokens."""
    url, _ = _read_database(ledger)
    from muniment.fleet import homes

    if not yes:
        raise ConfigInvalid(
            f"this deletes all entries and the history of {printable(home)}; to confirm, use --yes"
        )
    homes.remove_home(url, home)
    return Report({"removed": home}, [f"removed {home}"])
