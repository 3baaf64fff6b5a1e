"""Who may ask: tokens, what each may, and how much of the queue.

Apart from `guard`, so that commands load no HTTP server for them.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, NotFound
from muniment.files import is_ours_alone, opened, read_up_to
from muniment.kernel.names import Trust
from muniment.names import hello_key, hello_name, hello_proof
from muniment.server.contract import HttpProblem
from muniment.store.audit import append, timestamp
from muniment.store.database import Ledger
from muniment.store.state import LedgerState, put
from muniment.store.tasks import OWNER

# -- shares ------------------------------------------------------------------------------------------
#
# Divides a limited number of places, so that no client's token shuts out the others or the owner.

RESERVE: Final = 16
"""Places that all clients together leave to the owner, where there are many."""


class Shares:
    """Places, of which one client's token gets at most half. Belongs to one event loop.

    Of a fleet one home gets at most half, and a client of it half of that.

    Args:
        cap: how many there are, more than `reserve`.
        seconds: after which somebody who found none may come again.
        reserve: how many of them all clients together leave to the owner.
    """

    def __init__(self, cap: int, seconds: int, reserve: int = RESERVE) -> None:
        self.cap, self._seconds, self._reserve = cap, seconds, reserve
        self._taken: Counter[str] = Counter()
        self._by_homes: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def take(self, token: str) -> None:
        """Give a place to whoever has this share, see `Principal.share`.

        Raises:
            Problem: there is none for it.
        """
        home, name = _split(token)
        half = self.cap // 2
        is_full = len(self) >= self.cap
        if token != OWNER:
            is_full = is_full or len(self) - self._taken[OWNER] >= self.cap - self._reserve
            is_full = is_full or self._taken[token] >= (half // 2 if home and name != OWNER else half)
            is_full = is_full or (home != "" and self._by_homes[home] >= half)
        if is_full:
            raise HttpProblem("busy", headers={"Retry-After": str(self._seconds)})
        self._taken[token] += 1
        self._by_homes[home] += 1

    def leave(self, token: str) -> None:
        """Take a place back from who has one."""
        for taken, of in ((self._taken, token), (self._by_homes, _split(token)[0])):
            taken[of] -= 1
            if not taken[of]:
                del taken[of]


def _split(share: str) -> tuple[str, str]:
    """The home and the name of a share; no home where there is one memory."""
    home, _, name = share.rpartition("/")
    return home, name


# -- tokens ------------------------------------------------------------------------------------------
#
# Who may call: the owner's token in a file, those of clients in the ledger, by keyed digest alone.
#
# - K1 the owner's token stands in `state/token`, alone on a line, 0600. It is made once, and refused where
#   others could read it or it is no plain file of ours.
# - K2 a client's token is shown once, when it is made; the ledger has its keyed digest, and the ids and the
#   trust that belong to it. An id belongs to one token.
# - K3 tokens are compared by digests of one length, in constant time.
# - K4 who asks for a proof that a token is known gets one, whether there is such a token or not, and cannot
#   tell the two apart without it. What is kept to prove it is no way to the token.
#
# Does not hold: anything against another process of the same user, who can read the file.

TOKEN_NAME: Final = "token"  # noqa: S105  a file's name
TOKEN_BYTES: Final = 32

_MAX_TOKEN_FILE_BYTES: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a token belongs to.

    Attributes:
        name: `owner`, or that of the client's token.
        trust: of what comes with it.
        clients: the ids that may be given with it; None: every registered one.
        digest: of a client's token, so that one that was made anew by the same name is another one.
        home: of a fleet, that it is of; empty: there is but one memory here.
    """

    name: str
    trust: Trust
    clients: frozenset[str] | None
    digest: str = field(default="", repr=False)
    home: str = ""

    @property
    def is_owner(self) -> bool:
        """Whether this may do everything."""
        return self.name == OWNER

    @property
    def share(self) -> str:
        """Whose part of what is limited it uses; only the owner of all is preferred to others."""
        return f"{self.home}/{self.name}" if self.home else self.name


THE_OWNER: Final = Principal(OWNER, Trust.OWNER, None)


class Tokens:
    """The tokens of a state directory; each question asks the ledger, so that a revocation holds at once.

    Args:
        state: whose key digests them, and whose ledger changes.
        reads: a connection of its own to the ledger, so that no question waits for a writer; None: that of
            `state`.
        keyed: digests tokens; None: as `state` does.
    """

    def __init__(
        self, state: LedgerState, reads: Ledger | None = None, keyed: Callable[[str], str] | None = None
    ) -> None:
        self._state, self._reads, self._keyed = state, reads or state.ledger, keyed or state.keyed

    def add(self, name: str, clients: Collection[str], trust: Trust, *, may_own: bool = False) -> str:
        """Make a token for a client; this is the only time that it is told.

        Args:
            name: of the token.
            clients: ids that may come with it.
            trust: of what does.
            may_own: it may be the owner's, where no file holds that.

        Raises:
            ConfigInvalid: the name or an id cannot be one, or is taken.
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        check_names(name, clients, may_own=may_own)
        token, now = secrets.token_urlsafe(TOKEN_BYTES), timestamp()
        with self._state.ledger.transaction() as connection:
            there = _all(self._state.ledger)
            taken = {each: other.name for other in there for each in other.clients or ()}
            if name in {other.name for other in there}:
                raise ConfigInvalid(
                    f"there is a token {name!r} already; revoke it first, or take another name"
                )
            for each in clients:
                if each in taken:
                    raise ConfigInvalid(f"the client id {each!r} belongs to the token {taken[each]!r}")
            connection.execute(
                "INSERT INTO token (name, digest, clients, trust, at, hello) VALUES (?, ?, ?, ?, ?, ?)",
                (name, self._digest(token), json.dumps(sorted(clients)), trust, now, hello_key(token)),
            )
            append(
                self._state, now, "token", None, {"added": name, "clients": sorted(clients), "trust": trust}
            )
        return token

    def all(self) -> tuple[Principal, ...]:
        """Those of clients, by name."""
        return _all(self._reads)

    def revoke(self, name: str) -> None:
        """Make a client's token invalid, from the next request on.

        Raises:
            NotFound: there is none of that name.
        """
        now = timestamp()
        with self._state.ledger.transaction() as connection:
            if connection.execute("DELETE FROM token WHERE name = ?", (name,)).rowcount == 0:
                raise NotFound(f"there is no token {name!r}; see: muniment token list")
            append(self._state, now, "token", None, {"revoked": name})

    def principal(self, unsafe_token: str, owners: str) -> Principal | None:
        """Who a request's token belongs to; None: nobody.

        Args:
            unsafe_token: as it was sent.
            owners: see `owner_token`.
        """
        if not is_token(unsafe_token):
            return None
        sent = self._digest(unsafe_token)
        if hmac.compare_digest(sent, self._digest(owners)):
            return THE_OWNER
        found = self._reads.rows("SELECT name, trust, clients, digest FROM token WHERE digest = ?", (sent,))
        for name, trust, clients, digest in found:
            if hmac.compare_digest(sent, digest):
                return Principal(name, Trust(trust), frozenset(json.loads(clients)), digest)
        return None

    def proof(self, unsafe_name: str, nonce: str, address: str, owners: str) -> str:
        """Proof that the token of this name is known (K4); of one that is not, what looks the same.

        Args:
            unsafe_name: see `names.hello_name`.
            nonce: of the client.
            address: that the client has dialled.
            owners: see `owner_token`.

        Cost: one row and two digests for each token of a client.
        """
        rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
        found = self._state.mac(b"hello", unsafe_name.encode())
        for key in (hello_key(owners), *(key for (key,) in rows)):
            if hmac.compare_digest(hello_name(key), unsafe_name):
                found = key
        return hello_proof(found, nonce, address)

    def _digest(self, token: str) -> str:
        return self._keyed(f"token {token}")


def check_names(name: str, clients: Collection[str], *, may_own: bool = False) -> None:
    """Check that a token and its clients may be named so.

    Raises:
        ConfigInvalid: they may not.
    """
    if _NAME.fullmatch(name) is None or (name == OWNER and not may_own):
        raise ConfigInvalid(
            f"{name!r} cannot name a token; use up to 64 letters, digits, . _ -, not {OWNER!r}"
        )
    for each in clients:
        if _ID.fullmatch(each) is None:
            raise ConfigInvalid(f"{each!r} cannot be a client id; use up to 128 letters, digits, . _ : -")


def is_token(unsafe_text: str) -> bool:
    """Whether a text has the form of a token."""
    return _TOKEN.fullmatch(unsafe_text) is not None


def _all(ledger: Ledger) -> tuple[Principal, ...]:
    return tuple(
        Principal(name, Trust(trust), frozenset(json.loads(clients)), digest)
        for name, trust, clients, digest in ledger.rows(
            "SELECT name, trust, clients, digest FROM token ORDER BY name"
        )
    )


def owner_token(directory: Path) -> str:
    """The owner's token (K1), made if there is none.

    Args:
        directory: the state directory.

    Raises:
        ManagedMemoryUnavailable: it cannot be made or relied on; the reason says what to do.
    """
    path = directory / TOKEN_NAME
    if not os.path.lexists(path):
        try:
            put(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), over=False)
        except OSError as error:
            if not os.path.lexists(path):  # Else somebody else has made it meanwhile.
                raise ManagedMemoryUnavailable(str(path), f"cannot be made: {error.strerror}") from None
    return _read(path)


def _read(path: Path) -> str:
    try:
        with opened(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not is_ours_alone(path, status):
                raise ManagedMemoryUnavailable(
                    str(path), "is no file of yours alone (0600); delete it, and the next start makes another"
                )
            text = read_up_to(fd, _MAX_TOKEN_FILE_BYTES).strip().decode("latin-1")
    except OSError as error:
        raise ManagedMemoryUnavailable(str(path), f"cannot be read: {error.strerror}") from None
    if _TOKEN.fullmatch(text) is None:
        raise ManagedMemoryUnavailable(
            str(path), "holds no token; delete it, and the next start makes another"
        )
    return text
