"""The HTTP/1.1 protocol of the daemon: uvicorn's, with three things that it leaves open.

- a connection that sends no whole header within `HEADER_SECONDS` is closed, also its first one;
- on the Unix socket the peer's user is asked from the kernel, once a connection;
- what is no HTTP is answered as every other problem is.

Source: unix(7), SO_PEERCRED.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from muniment.daemon.problems import Problem

HEADER_SECONDS: Final = 10.0
"""Seconds for the header of a request to arrive in."""

MAX_HEADER_BYTES: Final = 32 * 1024
"""Bytes of a header; browsers send some 2 KiB."""

MAX_CONNECTIONS: Final = 512
"""Connections at once: 200 that follow events, and as many again that ask."""

PEER: Final = "peer"
"""Key of a request's state for the user id at the other end of a Unix socket; None: it came over TCP."""

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""On every answer."""

_CREDENTIALS: Final = struct.Struct("3i")


class Protocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: _peer(transport.get_extra_info("socket"))}
        self._header_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > MAX_CONNECTIONS:
            self.transport.abort()
            return
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()
        elif self._header_timer is None and self.conn.trailing_data[0]:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        del msg
        problem = Problem("invalid_http")
        body = json.dumps(problem.body()).encode()
        headers = [
            *HEADERS,
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=problem.status, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_header(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _peer(connection: Any) -> int | None:
    """The user id at the other end of a Unix socket, when it connected."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)
