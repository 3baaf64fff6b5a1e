"""Operations on the homes of a fleet and their tokens, for the owner of the fleet."""

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
from muniment.names import derive_hello_key, derive_hello_name
from muniment.server.tokens import Tokens
from muniment.store.state import SharedLedger, State
from muniment.store.tasks import OWNER

MAX_NAME: Final = 128
"""Maximum characters of a home's name."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}", re.ASCII)
_EPOCH_BYTES: Final = 4


def check_name(home: str) -> str:
    """Return `home` if it is a valid name of a home.

    Raises:
        ConfigInvalid: invalid name.
    """
    if _NAME.fullmatch(home) is None:
        raise ConfigInvalid(
            f"invalid home name {printable(home)!r}: use up to {MAX_NAME} letters, digits, . _ : @ -"
        )
    return home


def derive_home_key(fleet: bytes, home: str) -> bytes:
    """Return the key of a home. It chains the audit records and digests the requests of that home only.

    Args:
        fleet: key of the fleet.
        home: name of the home.
    """
    return hmac.digest(fleet, b"muniment home\n" + home.encode(), "sha256")


def compute_keyed_digest(key: bytes, text: str) -> str:
    """Return the digest of a token under the key of a fleet: 64 hexadecimal digits.

    The database maps this digest to the home of the token.
    """
    return hmac.digest(key, b"muniment door\n" + text.encode(), "sha256").hex()


def add_home(url: str, home: str) -> bool:
    """Create a home; return False if it already exists.

    Args:
        url: URL for the role that owns the tables.
        home: name of the home.

    Raises:
        ConfigInvalid: invalid name.
        LedgerUnreachable: the database does not respond.
    """
    with schema.open_owner_transaction(url, check_name(home)) as connection:
        is_created = connection.execute(
            "INSERT INTO home (home) VALUES (%s) ON CONFLICT DO NOTHING", (home,)
        ).rowcount
        if is_created:
            epoch = secrets.token_hex(_EPOCH_BYTES)
            connection.execute("INSERT INTO series (one, epoch) VALUES (1, %s)", (epoch,))
        return bool(is_created)


def add_token(
    url: str,
    key: bytes,
    home: str,
    name: str = OWNER,
    clients: Collection[str] = (),
    trust: Trust = Trust.OWNER,
) -> str:
    """Create a token of a home and return it. The token cannot be displayed again.

    Args:
        url: URL for the role that owns the tables.
        key: key of the fleet.
        home: name of an existing home.
        name: name of the token; the token `owner` may do everything in the home.
        clients: client ids that may be sent with the token.
        trust: maximum trust of the facts that are sent with the token.

    Raises:
        ConfigInvalid: a name is invalid or in use, or `key` is not the key of the fleet.
        ManagedMemoryUnavailable: the home does not exist, or the database does not respond.
    """
    with _open_home_state(url, key, check_name(home)) as state:
        token = Tokens(state, compute_digest=partial(compute_keyed_digest, key)).add(
            name, clients, trust, allow_owner_name=True
        )
    with schema.open_owner_transaction(url, home) as connection:
        hello = derive_hello_key(token)
        connection.execute("UPDATE door SET name = %s WHERE hello = %s", (derive_hello_name(hello), hello))
    return token


def revoke_token(url: str, key: bytes, home: str, name: str) -> None:
    """Revoke a token of a home, effective from the next request.

    Args:
        url: URL for the role that owns the tables.
        key: key of the fleet.
        home: name of the home.
        name: name of the token.

    Raises:
        NotFound: the home has no token with this name.
        ConfigInvalid: the name of the home is invalid, or `key` is not the key of the fleet.
        ManagedMemoryUnavailable: the home does not exist, or the database does not respond.
    """
    with _open_home_state(url, key, check_name(home)) as state:
        Tokens(state).revoke(name)


def remove_home(url: str, home: str) -> None:
    """Delete a home with all its entries, tokens and records.

    Raises:
        NotFound: the home does not exist.
        LedgerUnreachable: the database does not respond.
    """
    with schema.open_owner_transaction(url, check_name(home)) as connection:
        if not connection.execute("DELETE FROM home WHERE home = %s", (home,)).rowcount:
            raise NotFound(f"home {printable(home)!r} not found; see: muniment fleet home list")


def list_homes(url: str) -> tuple[str, ...]:
    """Return the names of all homes of the fleet, sorted."""
    with schema.open_owner_transaction(url, "") as connection:
        return tuple(home for (home,) in connection.execute("SELECT home FROM home ORDER BY home").fetchall())


@contextmanager
def _open_home_state(url: str, key: bytes, home: str) -> Iterator[State]:
    """Provide the state of a home without its working copy, for operations that need only its ledger."""
    with closing(LedgerPool(url, 1)) as pool, TemporaryDirectory() as directory:
        schema.check_key(pool, key)
        shared = SharedLedger(pool.home(home), derive_home_key(key, home), Path(directory))
        with State(None, shared=shared) as state:
            yield state
