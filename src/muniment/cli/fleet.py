"""`muniment fleet`, and what `muniment serve --ledger` needs besides the daemon."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from muniment.cli.terminal import on_one_line, print_document, print_failure, say
from muniment.errors import ConfigInvalid, MunimentError, printable
from muniment.kernel.names import Trust
from muniment.settings import Settings, read_settings
from muniment.store.state import read_key
from muniment.store.tasks import OWNER

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.fleet.node import FleetNode

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def require_installed() -> None:
    """Check that what a fleet needs is installed.

    Raises:
        ConfigInvalid: it is not.
    """
    if None in map(importlib.util.find_spec, ("psycopg", "psycopg_pool", "procrastinate")):
        raise ConfigInvalid("a fleet needs more than is installed; run: pip install 'muniment[fleet]'")


def node_of(
    settings: Settings, model: Model, ledger: str, name: str | None, slots: int, lease: float
) -> FleetNode:
    """A node for `muniment serve`.

    Raises:
        ConfigInvalid: it cannot be one, with the reason.
    """
    require_installed()
    from muniment.fleet.address import ledger_url
    from muniment.fleet.node import FleetNode, NodeOptions

    name = name or os.uname().nodename
    if _NODE.fullmatch(name) is None:
        raise ConfigInvalid(f"{printable(name)} cannot name a node; use up to 63 letters, digits, . _ -")
    return FleetNode(settings, model, NodeOptions(ledger_url(ledger, os.environ), name, slots, lease))


def migrate_tables(ledger: str, role: str, *, as_json: bool) -> int:
    """Carry out `fleet migrate`; the exit code."""

    def run(url: str, key: bytes) -> None:
        from muniment.fleet.schema import migrate, newest

        done = migrate(url, key, role)
        if as_json:
            print_document({"status": "migrated", "version": newest(), "done": list(done)})
            return
        for each in done:
            say(f"carried out {each}")
        say(f"the database has version {newest()}; nodes connect as {role}")

    return _told(ledger, run, as_json=as_json, what="not migrated")


def show_status(ledger: str, *, as_json: bool) -> int:
    """Carry out `fleet status`; the exit code."""

    def run(url: str, _: bytes) -> None:
        from muniment.fleet.schema import status

        found = status(url)
        if as_json:
            print_document(found)
            return
        say(f"homes: {found['homes']}, with a lease now: {found['leases']}")
        waiting = ", ".join(
            f"{each['tasks']} {each['status']} since {each['oldest']}" for each in found["tasks"]
        )
        say(f"tasks: {waiting or 'none waits'}")
        for node in found["nodes"]:
            problem = f", takes no work: {node['problem']}" if node["problem"] else ""
            told = f"{node['running']} turns, seen {node['seconds']:.0f} s ago, {node['version']}{problem}"
            say(f"node {on_one_line(node['name'])}: {told}")

    return _told(ledger, run, as_json=as_json, what="no status")


def add_home(home: str, ledger: str, *, token: str, clients: Sequence[str], trust: str, as_json: bool) -> int:
    """Carry out `fleet home add`; the exit code."""

    def run(url: str, key: bytes) -> None:
        from muniment.daemon.tokens import check_names
        from muniment.fleet import homes

        if trust not in list(Trust):
            raise ConfigInvalid(f"there is no trust {printable(trust)}; there are {', '.join(Trust)}")
        name = token or OWNER
        if name == OWNER and Trust(trust) is not Trust.OWNER:
            raise ConfigInvalid(
                "the owner's token has the trust of the owner; name another one: --token NAME"
            )
        check_names(name, clients, may_own=True)  # Before there is a home that nobody has a token for.
        is_new = homes.add_home(url, home)
        made = homes.add_token(url, key, home, name, clients, Trust(trust))
        if as_json:
            print_document({"home": home, "is_new": is_new, "name": name, "token": made})
            return
        say(f"{'made' if is_new else 'there is'} the home {home}; its token {name}, shown this once:")
        say(made)

    return _told(ledger, run, as_json=as_json, what="not added")


def list_homes(ledger: str, *, as_json: bool) -> int:
    """Carry out `fleet home list`; the exit code."""

    def run(url: str, _: bytes) -> None:
        from muniment.fleet import homes

        found = homes.homes(url)
        if as_json:
            print_document({"homes": list(found)})
            return
        for each in found:
            say(each)

    return _told(ledger, run, as_json=as_json, what="not listed")


def revoke_token(home: str, token: str, ledger: str, *, as_json: bool) -> int:
    """Carry out `fleet home revoke`; the exit code."""

    def run(url: str, key: bytes) -> None:
        from muniment.fleet import homes

        homes.revoke_token(url, key, home, token)
        _say_done({"home": home, "revoked": token}, f"revoked {token} of {home}", as_json=as_json)

    return _told(ledger, run, as_json=as_json, what="not revoked")


def remove_home(home: str, ledger: str, *, yes: bool, as_json: bool) -> int:
    """Carry out `fleet home remove`; the exit code."""

    def run(url: str, _: bytes) -> None:
        from muniment.fleet import homes

        if not yes:
            raise ConfigInvalid(
                f"this deletes everything that {printable(home)} remembers; say so with --yes"
            )
        homes.remove_home(url, home)
        _say_done({"removed": home}, f"removed {home}", as_json=as_json)

    return _told(ledger, run, as_json=as_json, what="not removed")


def _say_done(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_document(document)
    else:
        say(text)


def _told(ledger: str, run: Callable[[str, bytes], None], *, as_json: bool, what: str) -> int:
    """Carry out a command with the URL of the database and the fleet's key; the exit code."""
    try:
        require_installed()
        from muniment.fleet.address import ledger_url
        from muniment.ownership import create_private_directory

        settings = read_settings(os.environ)
        create_private_directory(settings.state)
        run(ledger_url(ledger, os.environ), read_key(settings.state))
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what=what)
    return 0
