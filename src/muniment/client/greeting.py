"""Asks whoever answers to prove that it knows the token, before it is sent; without doing any I/O.

E1 Each connection over which a token would go begins with a nonce of its own. The token goes only to who
   answers with the proof of `names.hello_proof` for that nonce and the address that was dialled: what was
   recorded proves nothing again, and what a daemon at another address says proves nothing here.
E2 Nobody learns more than the token's name, from which it cannot be found.

Does not hold: against who stands on the way between the two, where there is no TLS: it sees what goes by once
the daemon has proved itself. On the loopback only root does.

Source: ADR 0026.
"""

from __future__ import annotations

import hmac
from typing import Final

import h11
import httpx2

from muniment.client.exchange import NOT_NOW, OK, decoded
from muniment.client.finding import Where
from muniment.names import UNIX_ADDRESS, hello_key, hello_name, hello_proof

MAX_BYTES: Final = 4096
"""Bytes of the answer; it has some 500."""


class Stranger(httpx2.TransportError):
    """Who answers there does not prove to know the token."""


class Greeting:
    """The beginning of one connection.

    Args:
        where: with a token.
        nonce: 64 hexadecimal digits that were never used before.

    Attributes:
        request: what is to be sent.
    """

    def __init__(self, where: Where, nonce: str) -> None:
        key = hello_key(where.token or "")
        host = httpx2.URL(where.url).netloc.decode().lower()
        address = host if where.socket is None else UNIX_ADDRESS
        self._proof, self._body, self._read = hello_proof(key, nonce, address), b"", 0
        self._status = 0
        self._connection = h11.Connection(h11.CLIENT, MAX_BYTES)
        target = f"/hello?token={hello_name(key)}&nonce={nonce}"
        asked = h11.Request(method="GET", target=target, headers=[("host", host)])
        self.request = (self._connection.send(asked) or b"") + (
            self._connection.send(h11.EndOfMessage()) or b""
        )

    def feed(self, data: bytes) -> bool:
        """Whether the daemon has proved itself by what came so far; b"": nothing more comes.

        Raises:
            Stranger: it never will.
            httpx2.ConnectError: the connection ends here; another one may do.
        """
        self._read += len(data)
        try:
            self._connection.receive_data(data)
            while (event := self._connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._check()
                    return True
                elif isinstance(event, h11.ConnectionClosed):
                    raise httpx2.ConnectError("the connection ended early")
        except h11.RemoteProtocolError:
            if not data:
                raise httpx2.ConnectError("the connection ended early") from None
            raise Stranger("it speaks no HTTP") from None
        if self._read > MAX_BYTES:
            raise Stranger("its answer is too long")
        return False

    def _check(self) -> None:
        if self._status in NOT_NOW:
            raise httpx2.ConnectError("the daemon is busy")
        said = decoded(self._body, "") if self._status == OK else None
        proof = said.get("proof") if isinstance(said, dict) else None
        if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise Stranger(f"it answered {self._status}, without the proof")
        if self._connection.their_state is not h11.DONE or self._connection.trailing_data[0]:
            raise httpx2.ConnectError("the connection ended early")
