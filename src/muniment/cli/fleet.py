"""`muniment fleet`, and what `muniment serve --ledger` needs besides the daemon."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muniment.cli.command import Report, command, settings_of
from muniment.cli.options import Ledger
from muniment.content.gates import on_one_line
from muniment.errors import ConfigInvalid, printable
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.fleet.node import FleetNode
    from muniment.settings import Settings

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)

HomeName = Annotated[str, typer.Argument(metavar="HOME", help="A home: one memory, such as that of a user.")]


def require_installed() -> None:
    """Check that what a fleet needs is installed.

    Raises:
        ConfigInvalid: it is not.
    """
    if None in map(importlib.util.find_spec, ("psycopg", "psycopg_pool", "procrastinate")):
        raise ConfigInvalid("a fleet needs more than is installed; run: pip install 'muniment[fleet]'")


def core_of(
    settings: Settings, model: Model, ledger: str, name: str | None, slots: int, lease: float
) -> FleetNode:
    """What a node of a fleet serves, for `muniment serve`.

    Raises:
        ConfigInvalid: it cannot be one, with the reason.
    """
    require_installed()
    from muniment.fleet.address import ledger_url
    from muniment.fleet.node import FleetNode, NodeOptions

    name = name or os.uname().nodename
    if _NODE.fullmatch(name) is None:
        raise ConfigInvalid(f"{printable(name)} cannot name a node; use up to 63 letters, digits, . _ -")
    options = NodeOptions(ledger_url(ledger, os.environ), name, slots, lease)
    return FleetNode(settings, model, options)


def _database(ledger: str) -> tuple[str, bytes]:
    """The URL of the database, and the fleet's key.

    Raises:
        ConfigInvalid: there is none, or what a fleet needs is not installed.
    """
    require_installed()
    from muniment.fleet.address import ledger_url
    from muniment.policy.ownership import create_private_directory
    from muniment.store.state import read_key

    settings = settings_of()
    create_private_directory(settings.state)
    return ledger_url(ledger, os.environ), read_key(settings.state)


@command("not migrated")
def fleet_migrate(
    *,
    ledger: Ledger = "",
    role: Annotated[str, typer.Option(help="The role as which nodes connect.")] = "muniment_node",
) -> Report:
    """Make the tables of a fleet, or bring them up to date; as the role that owns them."""
    url, key = _database(ledger)
    from muniment.fleet.schema import migrate, newest

    done = list(migrate(url, key, role))
    lines = [f"carried out {each}" for each in done]
    lines.append(f"the database has version {newest()}; nodes connect as {role}")
    return Report({"status": "migrated", "version": newest(), "done": done}, lines)


@command("no status")
def fleet_status(*, ledger: Ledger = "") -> Report:
    """Show the nodes, how many homes and leases there are, and what waits since when."""
    url, _ = _database(ledger)
    from muniment.fleet.schema import status

    found = status(url)
    return Report(found, _status_lines(found))


def _status_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"homes: {found['homes']}, with a lease now: {found['leases']}"
    waiting = ", ".join(f"{each['tasks']} {each['status']} since {each['oldest']}" for each in found["tasks"])
    yield f"tasks: {waiting or 'none waits'}"
    for node in found["nodes"]:
        problem = f", takes no work: {node['problem']}" if node["problem"] else ""
        told = f"{node['running']} turns, seen {node['seconds']:.0f} s ago, {node['version']}{problem}"
        yield f"node {on_one_line(node['name'])}: {told}"


@command("not added")
def fleet_home_add(
    *,
    home: HomeName,
    token: Annotated[
        str, typer.Option(metavar="NAME", help="Make this token of the home instead of its owner's.")
    ] = "",
    client: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="An id that may be given with it. May be repeated.")
    ] = None,
    trust: Annotated[
        str, typer.Option(help="Of what comes with it: owner, workspace, agent or external.")
    ] = "owner",
    ledger: Ledger = "",
) -> Report:
    """Make a home, if there is none of that name, and a token for it, which is shown once."""
    url, key = _database(ledger)
    from muniment.fleet import homes
    from muniment.server.tokens import check_names
    from muniment.store.tasks import OWNER

    if trust not in list(Trust):
        raise ConfigInvalid(f"there is no trust {printable(trust)}; there are {', '.join(Trust)}")
    name, clients = token or OWNER, client or []
    if name == OWNER and Trust(trust) is not Trust.OWNER:
        raise ConfigInvalid("the owner's token has the trust of the owner; name another one: --token NAME")
    check_names(name, clients, may_own=True)  # Before there is a home that nobody has a token for.
    is_new = homes.add_home(url, home)
    made = homes.add_token(url, key, home, name, clients, Trust(trust))
    told = f"{'made' if is_new else 'there is'} the home {home}; its token {name}, shown this once:"
    return Report({"home": home, "is_new": is_new, "name": name, "token": made}, [told, made])


@command("not listed")
def fleet_home_list(*, ledger: Ledger = "") -> Report:
    """List the homes."""
    url, _ = _database(ledger)
    from muniment.fleet import homes

    found = list(homes.homes(url))
    return Report({"homes": found}, found)


@command("not revoked")
def fleet_home_revoke(
    *,
    home: HomeName,
    token: Annotated[str, typer.Argument(metavar="NAME", help="A token of it; `owner`: that of its owner.")],
    ledger: Ledger = "",
) -> Report:
    """Make a token of a home invalid, from the next request on."""
    url, key = _database(ledger)
    from muniment.fleet import homes

    homes.revoke_token(url, key, home, token)
    return Report({"home": home, "revoked": token}, [f"revoked {token} of {home}"])


@command("not removed")
def fleet_home_remove(
    *,
    home: HomeName,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
    ledger: Ledger = "",
) -> Report:
    """Delete a home with everything that is remembered in it, its history and its tokens."""
    url, _ = _database(ledger)
    from muniment.fleet import homes

    if not yes:
        raise ConfigInvalid(f"this deletes everything that {printable(home)} remembers; say so with --yes")
    homes.remove_home(url, home)
    return Report({"removed": home}, [f"removed {home}"])
