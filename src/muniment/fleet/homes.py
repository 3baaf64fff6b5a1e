"""The homes of a fleet, as its owner makes, lists and removes them."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from muniment.errors import ConfigInvalid, NotFound, printable
from muniment.fleet import schema
from muniment.fleet.postgres import LedgerPool
from muniment.kernel.names import Trust
from muniment.names import hello_key, hello_name
from muniment.server.tokens import Tokens
from muniment.store.state import Shared, State
from muniment.store.tasks import OWNER

MAX_NAME: Final = 128
"""Characters of a home's name."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}", re.ASCII)
_EPOCH_BYTES: Final = 4


def check_name(home: str) -> str:
    """The name of a home.

    Raises:
        ConfigInvalid: it can be none.
    """
    if _NAME.fullmatch(home) is None:
        raise ConfigInvalid(
            f"{printable(home)} cannot name a home; use up to {MAX_NAME} letters, digits, . _ : @ -"
        )
    return home


def key_of(fleet: bytes, home: str) -> bytes:
    """The key of a home: it chains its records and digests what is asked there; no other home's is alike."""
    return hmac.digest(fleet, b"muniment home\n" + home.encode(), "sha256")


def keyed(key: bytes, text: str) -> str:
    """The digest of a token by the key of a fleet, by which its home is found: 64 hexadecimal digits."""
    return hmac.digest(key, b"muniment door\n" + text.encode(), "sha256").hex()


def add_home(url: str, home: str) -> bool:
    """Make a home; False: it is there already.

    Args:
        url: of the owner of the tables.
        home: its name.

    Raises:
        ConfigInvalid: it can be none.
        LedgerAway: nobody answers.
    """
    with schema.owning(url, check_name(home)) as connection:
        made = connection.execute(
            "INSERT INTO home (home) VALUES (%s) ON CONFLICT DO NOTHING", (home,)
        ).rowcount
        if made:
            epoch = secrets.token_hex(_EPOCH_BYTES)
            connection.execute("INSERT INTO series (one, epoch) VALUES (1, %s)", (epoch,))
        return bool(made)


def add_token(
    url: str,
    key: bytes,
    home: str,
    name: str = OWNER,
    clients: Collection[str] = (),
    trust: Trust = Trust.OWNER,
) -> str:
    """Make a token of a home; this is the only time that it is told.

    Args:
        url: of the owner of the tables.
        key: of the fleet.
        home: which must be there.
        name: of the token; `owner`: it may do everything in the home.
        clients: ids that may come with it.
        trust: of what comes with it.

    Raises:
        ConfigInvalid: a name cannot be one, or is taken; or the key is not the fleet's.
        ManagedMemoryUnavailable: there is no such home, or nobody answers.
    """
    with _state_of(url, key, check_name(home)) as state:
        token = Tokens(state, keyed=partial(keyed, key)).add(name, clients, trust, may_own=True)
    with schema.owning(url, home) as connection:
        hello = hello_key(token)
        connection.execute("UPDATE door SET name = %s WHERE hello = %s", (hello_name(hello), hello))
    return token


def revoke_token(url: str, key: bytes, home: str, name: str) -> None:
    """Make a token invalid, from the next request on; raises as `add_token`, and `NotFound`."""
    with _state_of(url, key, check_name(home)) as state:
        Tokens(state).revoke(name)


def remove_home(url: str, home: str) -> None:
    """Delete a home with everything that was remembered in it, its tokens and its records.

    Raises:
        NotFound: there is no such home.
        LedgerAway: nobody answers.
    """
    with schema.owning(url, check_name(home)) as connection:
        if not connection.execute("DELETE FROM home WHERE home = %s", (home,)).rowcount:
            raise NotFound(f"there is no home {printable(home)!r}")


def homes(url: str) -> tuple[str, ...]:
    """The names of all homes, in order."""
    with schema.owning(url, "") as connection:
        return tuple(home for (home,) in connection.execute("SELECT home FROM home ORDER BY home").fetchall())


@contextmanager
def _state_of(url: str, key: bytes, home: str) -> Iterator[State]:
    """The state of a home, for what needs none of its files."""
    with closing(LedgerPool(url, 1)) as pool, TemporaryDirectory() as directory:
        schema.check_key(pool, key)
        shared = Shared(pool.home(home), key_of(key, home), Path(directory))
        with State(None, shared=shared) as state:
            yield state
