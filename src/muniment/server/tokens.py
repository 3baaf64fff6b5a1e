"""Bearer tokens: who may call, what each token allows, and its share of limited slots.

This module is separate from `guard`, so that CLI commands do not load an HTTP server.
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
from muniment.files import is_private, open_descriptor, read_up_to
from muniment.kernel.names import Trust
from muniment.names import compute_hello_proof, derive_hello_key, derive_hello_name
from muniment.server.contract import HttpProblem
from muniment.store.audit import append, timestamp
from muniment.store.database import Ledger
from muniment.store.state import LedgerState, write_file
from muniment.store.tasks import OWNER

# -- shares ------------------------------------------------------------------------------------------
#
# Divides a limited number of slots, so that one client's token cannot block other clients or the owner.

RESERVE: Final = 16
"""Slots that all clients together leave free for the owner, if the total number of slots is large."""


class SlotShares:
    """A limited number of slots; one client's token gets at most half. Belongs to one event loop.

    In a fleet, one home gets at most half of the slots, and one client of a home at most half of the home's
    part.

    Args:
        cap: number of slots, more than `reserve`.
        seconds: value of the `Retry-After` header when no slot is free.
        reserve: slots that all clients together leave to the owner.
    """

    def __init__(self, cap: int, seconds: int, reserve: int = RESERVE) -> None:
        self.cap, self._seconds, self._reserve = cap, seconds, reserve
        self._used: Counter[str] = Counter()
        self._used_by_home: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self._used.total()

    def acquire(self, token: str) -> None:
        """Acquire a slot.

        Args:
            token: share of the caller, see `Principal.share`.

        Raises:
            HttpProblem: no slot is free for this share.
        """
        home, name = _split_share(token)
        half_cap = self.cap // 2
        is_full = len(self) >= self.cap
        if token != OWNER:
            is_full = is_full or len(self) - self._used[OWNER] >= self.cap - self._reserve
            is_full = is_full or self._used[token] >= (half_cap // 2 if home and name != OWNER else half_cap)
            is_full = is_full or (home != "" and self._used_by_home[home] >= half_cap)
        if is_full:
            raise HttpProblem("busy", headers={"Retry-After": str(self._seconds)})
        self._used[token] += 1
        self._used_by_home[home] += 1

    def release(self, token: str) -> None:
        """Release a slot that was acquired with the same `token`."""
        for counter, key in ((self._used, token), (self._used_by_home, _split_share(token)[0])):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]


def _split_share(share: str) -> tuple[str, str]:
    """Return the home and the name that a share contains; the home is empty outside a fleet."""
    home, _, name = share.rpartition("/")
    return home, name


# -- tokens ------------------------------------------------------------------------------------------
#
# Authenticates callers. The owner's token is in a file. The ledger stores only keyed digests of client
# tokens.
#
# - K1 The owner's token is in `state/token`, alone on a line, mode 0600. It is created once. It is rejected
#   if others could read it, or if it is not a regular file of this user.
# - K2 A client's token is displayed once, when it is created. The ledger stores its keyed digest, and the
#   client ids and the trust that belong to it. A client id belongs to one token.
# - K3 Tokens are compared by digests of equal length, in constant time.
# - K4 A proof that a token is known is returned for existing and missing tokens. Without the token, a caller
#   cannot distinguish the two cases. The stored key of the proof does not reveal the token.
#
# Not guaranteed: protection against another process of the same user, which can read the file.

TOKEN_NAME: Final = "token"  # noqa: S105  a file's name
TOKEN_BYTES: Final = 32

_MAX_TOKEN_FILE_BYTES: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity that a token authenticates.

    Attributes:
        name: `owner`, or the name of the client's token.
        trust: maximum trust of the facts that are sent with the token.
        clients: the client ids that may be sent with the token; None: every registered client id.
        digest: digest of a client's token, so that a new token with an old name is a different principal.
        home: the home in a fleet; empty outside a fleet.
    """

    name: str
    trust: Trust
    clients: frozenset[str] | None
    digest: str = field(default="", repr=False)
    home: str = ""

    @property
    def is_owner(self) -> bool:
        """Return whether this principal may do everything."""
        return self.name == OWNER

    @property
    def share(self) -> str:
        """Return the key of the principal's share of limited slots, see `SlotShares`.

        Only the owner of the whole daemon has priority.
        """
        return f"{self.home}/{self.name}" if self.home else self.name


OWNER_PRINCIPAL: Final = Principal(OWNER, Trust.OWNER, None)


class Tokens:
    """The tokens of a state directory.

    Each call queries the ledger, so a revocation takes effect immediately.

    Args:
        state: provides the key of the digests and the ledger for changes.
        reads: a separate connection to the ledger, so that lookups do not wait for a writer; None: the
            connection of `state`.
        compute_digest: computes the digest of a token; None: `LedgerState.compute_keyed_digest`.
    """

    def __init__(
        self,
        state: LedgerState,
        reads: Ledger | None = None,
        compute_digest: Callable[[str], str] | None = None,
    ) -> None:
        self._state, self._reads, self._compute_digest = (
            state,
            reads or state.ledger,
            compute_digest or state.compute_keyed_digest,
        )

    def add(
        self, name: str, clients: Collection[str], trust: Trust, *, allow_owner_name: bool = False
    ) -> str:
        """Create a token for a client and return it. The token cannot be displayed again.

        Args:
            name: name of the token.
            clients: client ids that may be sent with the token.
            trust: maximum trust of the facts that are sent with the token.
            allow_owner_name: allow the name `owner`; for a home whose owner's token is not in a file.

        Raises:
            ConfigInvalid: the name or a client id is invalid or already in use.
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        check_names(name, clients, allow_owner_name=allow_owner_name)
        token, now = secrets.token_urlsafe(TOKEN_BYTES), timestamp()
        with self._state.ledger.transaction() as connection:
            principals = _load_principals(self._state.ledger)
            token_by_client = {each: other.name for other in principals for each in other.clients or ()}
            if name in {other.name for other in principals}:
                raise ConfigInvalid(
                    f"the token {name!r} already exists; revoke it first, or use another name"
                )
            for each in clients:
                if each in token_by_client:
                    raise ConfigInvalid(
                        f"the client id {each!r} belongs to the token {token_by_client[each]!r}; use another"
                    )
            connection.execute(
                "INSERT INTO token (name, digest, clients, trust, at, hello) VALUES (?, ?, ?, ?, ?, ?)",
                (name, self._digest(token), json.dumps(sorted(clients)), trust, now, derive_hello_key(token)),
            )
            append(
                self._state, now, "token", None, {"added": name, "clients": sorted(clients), "trust": trust}
            )
        return token

    def list_principals(self) -> tuple[Principal, ...]:
        """Return the principals of all client tokens, sorted by name."""
        return _load_principals(self._reads)

    def revoke(self, name: str) -> None:
        """Revoke the client token `name`, effective from the next request.

        Raises:
            NotFound: no token has this name.
        """
        now = timestamp()
        with self._state.ledger.transaction() as connection:
            if connection.execute("DELETE FROM token WHERE name = ?", (name,)).rowcount == 0:
                raise NotFound(f"token {name!r} not found; see: muniment token list")
            append(self._state, now, "token", None, {"revoked": name})

    def find_principal(self, unsafe_token: str, owner_token: str) -> Principal | None:
        """Return the principal of a request's token, or None if the token is unknown.

        Args:
            unsafe_token: the token as it was sent.
            owner_token: the owner's token, see `load_owner_token`.
        """
        if not is_token(unsafe_token):
            return None
        sent = self._digest(unsafe_token)
        if hmac.compare_digest(sent, self._digest(owner_token)):
            return OWNER_PRINCIPAL
        found = self._reads.rows("SELECT name, trust, clients, digest FROM token WHERE digest = ?", (sent,))
        for name, trust, clients, digest in found:
            if hmac.compare_digest(sent, digest):
                return Principal(name, Trust(trust), frozenset(json.loads(clients)), digest)
        return None

    def create_proof(self, unsafe_name: str, nonce: str, address: str, owner_token: str) -> str:
        """Return a proof that the daemon knows a token. For an unknown token, the result looks like a proof.

        Args:
            unsafe_name: public name of the token, see `names.derive_hello_name`.
            nonce: random value from the client.
            address: the address that the client connected to.
            owner_token: the owner's token, see `load_owner_token`.

        Cost: one row and two digests for each client token.
        """
        rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
        found = self._state.mac(b"hello", unsafe_name.encode())
        for key in (derive_hello_key(owner_token), *(key for (key,) in rows)):
            if hmac.compare_digest(derive_hello_name(key), unsafe_name):
                found = key
        return compute_hello_proof(found, nonce, address)

    def _digest(self, token: str) -> str:
        return self._compute_digest(f"token {token}")


def check_names(name: str, clients: Collection[str], *, allow_owner_name: bool = False) -> None:
    """Check that the name of a token and its client ids are valid.

    Args:
        name: name of the token.
        clients: client ids that may be sent with the token.
        allow_owner_name: allow the name `owner`.

    Raises:
        ConfigInvalid: the name or a client id is invalid.
    """
    if _NAME.fullmatch(name) is None or (name == OWNER and not allow_owner_name):
        raise ConfigInvalid(
            f"invalid token name {name!r}: use up to 64 letters, digits, . _ -, not {OWNER!r}"
        )
    for each in clients:
        if _ID.fullmatch(each) is None:
            raise ConfigInvalid(f"invalid client id {each!r}: use up to 128 letters, digits, . _ : -")


def is_token(unsafe_text: str) -> bool:
    """Return whether a text has the form of a token."""
    return _TOKEN.fullmatch(unsafe_text) is not None


def _load_principals(ledger: Ledger) -> tuple[Principal, ...]:
    return tuple(
        Principal(name, Trust(trust), frozenset(json.loads(clients)), digest)
        for name, trust, clients, digest in ledger.rows(
            "SELECT name, trust, clients, digest FROM token ORDER BY name"
        )
    )


def load_owner_token(directory: Path) -> str:
    """Return the owner's token; if its file is missing, create the token and the file.

    Args:
        directory: the state directory.

    Raises:
        ManagedMemoryUnavailable: the file cannot be created, or others could have read it; the error contains
            the reason.
    """
    path = directory / TOKEN_NAME
    if not os.path.lexists(path):
        try:
            write_file(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), replace=False)
        except OSError as error:
            if not os.path.lexists(path):  # Otherwise another process has created it in the meantime.
                raise ManagedMemoryUnavailable(str(path), f"cannot be created: {error.strerror}") from None
    return _read_token(path)


def _read_token(path: Path) -> str:
    try:
        with open_descriptor(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not is_private(path, status):
                raise ManagedMemoryUnavailable(
                    str(path),
                    "is not a private file of this user (mode 0600); delete it: the next start replaces it",
                )
            text = read_up_to(fd, _MAX_TOKEN_FILE_BYTES).strip().decode("latin-1")
    except OSError as error:
        raise ManagedMemoryUnavailable(str(path), f"cannot be read: {error.strerror}") from None
    if _TOKEN.fullmatch(text) is None:
        raise ManagedMemoryUnavailable(
            str(path), "does not contain a token; delete it: the next start replaces it"
        )
    return text
