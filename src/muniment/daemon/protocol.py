"""The HTTP/1.1 protocol of the daemon: uvicorn's, with some things that it leaves open.

- a connection that sends no whole header within `HEADER_SECONDS` is closed, also its first one, and so is one
  that takes nothing of its answer for `UNREAD_SECONDS`;
- where there are too many connections, the one goes that has been idle for longest, not the one that comes;
  half of the process's descriptors are never connections, so that work goes on whoever connects;
- on the Unix socket the peer's user is asked from the kernel, once a connection;
- what is no HTTP is answered as every other problem is.

Source: unix(7), SO_PEERCRED.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from muniment.daemon.problems import Problem

HEADER_SECONDS: Final = 10.0
"""Seconds for the header of a request to arrive in."""

UNREAD_SECONDS: Final = 60.0
"""Seconds for a client to take some 48 KiB of what it was sent; a follower comes again where it stood."""

MAX_HEADER_BYTES: Final = 32 * 1024
"""Bytes of a header; browsers send some 2 KiB."""

MAX_CONNECTIONS: Final = 512
"""Connections at once: 200 that follow events, and as many again that ask; see `connections_allowed`."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names that a Host header may always say: a page that rebinds a name has another one."""

PEER: Final = "peer"
"""Key of a request's state for the user id at the other end of a Unix socket; None: it came over TCP."""

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""On every answer."""

_CREDENTIALS: Final = struct.Struct("3i")


def connections_allowed() -> int:
    """Connections at once, which leave half of the descriptors that there may be to work."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Protocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there are not too many."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: _peer(transport.get_extra_info("socket"))}
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > connections_allowed():
            ours = [each for each in self.connections if isinstance(each, Protocol)]
            idle = {each: since for each in ours if (since := each.idle_since()) is not None}
            if not idle:
                self.drop()
                return
            min(idle, key=idle.__getitem__).drop()
        self._expect_header()

    def idle_since(self) -> float | None:
        """When this began to wait for a request, by the loop's clock; None: it has one."""
        if self._header_timer is not None:
            return self._header_timer.when() - HEADER_SECONDS
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        return None

    def drop(self) -> None:
        """Close this at once, whatever was still to be sent."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what was sent."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()
        elif self._header_timer is None and self.conn.trailing_data[0]:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_expecting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Send nothing more until the client has taken some of what there is."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Send again."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and close."""
        del msg
        if self.cycle is not None:
            self.cycle.disconnected = True  # It may not answer any more, where it has not done so yet.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
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
