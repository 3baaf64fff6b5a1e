"""Follows the events of a workspace over any number of connections; decides, but does no I/O.

V1 Each connection goes on after the newest event that was given out, so that none is missed or given twice;
   where the daemon cannot, it says `resync`.
V2 It ends with an error once the daemon was away for the time of one call, or refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muniment.client.core import Core
from muniment.client.errors import BadAnswer, Unproven, Unreachable
from muniment.client.exchange import (
    FIRST_PAUSE,
    LAST_PAUSE,
    NOT_NOW,
    OK,
    Lost,
    Reply,
    Try,
    checked,
    decoded,
    retry_after,
    without,
)
from muniment.client.reading import event_of
from muniment.client.results import Event
from muniment.client.sse import Frames

QUIET_SECONDS: Final = 45.0
"""Seconds of silence after which a connection is taken for dead: the daemon says something every 15."""

MARK: Final = ""
"""The type of what is no event."""


class Following:
    """One follower.

    Args:
        core: of the client.
        after: the id of an event; None: from now on.
    """

    def __init__(self, core: Core, after: str | None) -> None:
        self._core = core
        self._frames = Frames(after or "")
        self._pause, self._doubling, self._afresh = 0.0, FIRST_PAUSE, False
        self._away_since: float | None = None
        self._secret, self._workspace = "", core.follow_ask("").workspace

    def again(self) -> Try:
        """The next connection."""
        self._frames = Frames(self._frames.last_id)
        return Try(self._core.follow_ask(self._frames.last_id), QUIET_SECONDS, self._pause, self._afresh)

    def answered(self, reply: Reply) -> bool:
        """Whether a stream begins with this answer; the body of one that does not is there as a whole.

        Raises:
            Problem, BadAnswer: it does not, nor will another one.
        """
        self._secret = reply.secret
        if reply.status == OK:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                raise BadAnswer("the answer is no stream of events; is this the daemon?")
            return True
        if reply.status not in NOT_NOW or self._is_away_too_long():
            checked(reply, self._workspace)
            raise BadAnswer(f"the answer has the status {reply.status}; it is no stream of events")
        self._wait(retry_after(reply))
        return False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that a piece of the stream completes; one of no type only says where it stands.

        Raises:
            BadAnswer: it is no such stream.
        """
        self._away_since, self._doubling = None, FIRST_PAUSE
        for frame in self._frames.feed(chunk):
            event_id = without(self._secret, frame.id)
            if frame.data is None:
                yield Event(event_id, MARK, {})
            else:
                yield event_of(event_id, decoded(frame.data, self._secret))

    def lost(self, lost: Lost) -> None:
        """Note that a connection ended, or was not made.

        Raises:
            Unreachable: too many times (V2).
            Unproven: somebody else takes the connections.
        """
        if lost.is_stranger and self._afresh:
            raise Unproven(lost.why)
        if self._is_away_too_long():
            raise Unreachable(lost.why)
        self._wait(None)
        self._afresh = True

    def _wait(self, told: float | None) -> None:
        self._pause = self._doubling if told is None else told
        self._doubling = min(self._doubling * 2, LAST_PAUSE)

    def _is_away_too_long(self) -> bool:
        now = self._core.clock()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since >= self._core.timeout
