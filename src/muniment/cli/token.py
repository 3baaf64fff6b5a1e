"""`muniment token`: the tokens with which clients call the daemon."""

from __future__ import annotations

import os
from collections.abc import Callable

from muniment.cli.report import configure_logging, on_one_line, print_document, print_failure, say
from muniment.daemon.guard import Tokens
from muniment.errors import ConfigInvalid, MunimentError
from muniment.names import Trust
from muniment.settings import read_settings
from muniment.store.state import State


def add_token(name: str, clients: list[str], trust: str, *, as_json: bool) -> int:
    """Make a token and print it, this once; the exit code."""

    def body(tokens: Tokens) -> None:
        if trust not in list(Trust):
            raise ConfigInvalid(f"there is no trust {trust!r}; there are {', '.join(Trust)}")
        token = tokens.add(name, clients, Trust(trust))
        if as_json:
            print_document({"name": name, "clients": clients, "trust": trust, "token": token})
        else:
            say(token)

    return _with_tokens(body, "no token was made", as_json=as_json)


def list_tokens(*, as_json: bool) -> int:
    """Print whose tokens there are; the exit code."""

    def body(tokens: Tokens) -> None:
        found = tokens.all()
        if as_json:
            print_document(
                {
                    "tokens": [
                        {"name": each.name, "clients": sorted(each.clients or ()), "trust": each.trust}
                        for each in found
                    ]
                }
            )
            return
        for each in found:
            clients = ", ".join(sorted(each.clients or ())) or "none"
            say(on_one_line(f"{each.name}: trust {each.trust}, client ids {clients}"))
        if not found:
            say("no tokens but the owner's; to make one: muniment token add NAME")

    return _with_tokens(body, "not listed", as_json=as_json)


def revoke_token(name: str, *, as_json: bool) -> int:
    """Make a token invalid; the exit code."""

    def body(tokens: Tokens) -> None:
        tokens.revoke(name)
        if as_json:
            print_document({"name": name, "status": "revoked"})
        else:
            say(on_one_line(f"revoked: {name}"))

    return _with_tokens(body, "not revoked", as_json=as_json)


def _with_tokens(body: Callable[[Tokens], None], what: str, *, as_json: bool) -> int:
    configure_logging()
    try:
        with State(read_settings(os.environ).state) as state:
            body(Tokens(state))
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what=what)
    return 0
