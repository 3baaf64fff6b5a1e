"""Read the events of a workspace over any number of connections.

This module decides when to reconnect, but does no I/O.

V1 Each connection continues after the last delivered event, so that no event is missed or delivered twice.
   If the daemon cannot continue there, it sends `resync`.
V2 The stream ends with an error if the daemon is not available for the duration of one call, or rejects the
   request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muniment.client.core import ClientCore
from muniment.client.errors import BadAnswer, Unreachable
from muniment.client.exchange import (
    FIRST_PAUSE,
    LAST_PAUSE,
    OK,
    FrameParser,
    HttpResponse,
    NoResponse,
    ServerAttempt,
    check_response,
    decode_json,
    parse_retry_after,
    remove_secret,
)
from muniment.client.responses import read_event
from muniment.client.results import Event
from muniment.errors import RETRYABLE_STATUSES

QUIET_SECONDS: Final = 45.0
"""Seconds without data after which a connection counts as lost; the daemon sends data every 15 seconds."""

MARK: Final = ""
"""The type of an event that only reports a position in the stream; it is not given to the caller."""


class Follower:
    """The state of one event stream over all its connections: the position, and when to reconnect.

    Args:
        core: the requests of the client.
        after: the id of an event: the stream continues after it; None: it starts now.
    """

    def __init__(self, core: ClientCore, after: str | None) -> None:
        self._core = core
        self._frames = FrameParser(after or "")
        self._pause, self._next_pause, self._should_rediscover = 0.0, FIRST_PAUSE, False
        self._away_since: float | None = None
        self._secret, self._workspace = "", core.build_follow_request("").workspace

    def build_attempt(self) -> ServerAttempt:
        """Return the next connection attempt: the request, the pause before it, and its time limit."""
        self._frames = FrameParser(self._frames.last_id)
        return ServerAttempt(
            self._core.build_follow_request(self._frames.last_id),
            QUIET_SECONDS,
            self._pause,
            self._should_rediscover,
        )

    def accept_response(self, reply: HttpResponse) -> bool:
        """Return True if the response is the beginning of an event stream.

        If it is False, the response was a temporary error, and the caller should make the next attempt.

        Raises:
            Problem, BadAnswer: the request was rejected, and a retry would not help.
        """
        self._secret = reply.secret
        if reply.status == OK:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                raise BadAnswer("the response is not an event stream; check that this is the daemon")
            return True
        if reply.status not in RETRYABLE_STATUSES or self._is_away_too_long():
            check_response(reply, self._workspace)
            raise BadAnswer(f"the response has status {reply.status} and is not an event stream")
        self._set_pause(parse_retry_after(reply))
        return False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that are complete after this piece of the stream.

        An event of the type `MARK` only reports a position.

        Raises:
            BadAnswer: the stream is invalid.
        """
        self._away_since, self._next_pause = None, FIRST_PAUSE
        for frame in self._frames.feed(chunk):
            event_id = remove_secret(self._secret, frame.id)
            if frame.data is None:
                yield Event(event_id, MARK, {})
            else:
                yield read_event(event_id, decode_json(frame.data, self._secret))

    def record_loss(self, loss: NoResponse) -> None:
        """Record that a connection was lost or could not be opened, so that the next attempt waits longer.

        Raises:
            Unreachable: the daemon was not available for the duration of one call; or the server that accepts
                the connections does not prove that it is the daemon.
        """
        if loss.is_unverified and self._should_rediscover:
            raise Unreachable(loss.reason, is_unverified=True)
        if self._is_away_too_long():
            raise Unreachable(loss.reason)
        self._set_pause(None)
        self._should_rediscover = True

    def _set_pause(self, seconds: float | None) -> None:
        self._pause = self._next_pause if seconds is None else seconds
        self._next_pause = min(self._next_pause * 2, LAST_PAUSE)

    def _is_away_too_long(self) -> bool:
        now = self._core.clock()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since >= self._core.timeout
