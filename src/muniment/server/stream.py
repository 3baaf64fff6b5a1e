"""The stream of events: what the ledger's outbox tells, for everybody who follows.

- E1 A follower reads by a cursor of its own, from memory or, further back, from the ledger. However slowly it
  reads, it holds nothing here.
- E2 A cursor is `<epoch>-<number>`. Whoever comes with one misses nothing of what is kept; whoever comes with
  another one, or reads so slowly that what is next is no longer kept, is told `resync`: look at everything
  again, then follow from here.
- E3 Everybody of a workspace is told that its memory changed; of a task only its originator and the owner. A
  task that was cancelled is `cancelled` for whoever did so, and has `failed` for everybody else.
- E4 An event is a line of JSON, so that no text in it ends it and begins another one.
- E5 Where the follower is a client of the original contract, `resync` is `state_resync_required`, after which
  all that is kept comes again; `replay_complete` follows what was asked for by a cursor; and no task is
  `cancelled`.

What this process commits is told at once, what others do within `LOOK_SECONDS`.

Source: html.spec.whatwg.org/multipage/server-sent-events.html; sqlite.org/pragma.html, `data_version`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from muniment import events
from muniment.errors import MunimentError
from muniment.store import tasks
from muniment.store.database import Ledger
from muniment.store.tasks import Originator

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks whether another process has committed something."""

HEARTBEAT_SECONDS: Final = 15.0
"""Seconds of silence after which a follower is sent where it stands, so that both sides see a dead line."""

RECONNECT_MS: Final = 1_000
"""Milliseconds that a browser waits before it comes again."""

CHECK_SECONDS: Final = 1.0
"""Seconds for which it is not asked again whether somebody may follow."""

RING: Final = 2_048
"""Events that are kept in memory, some 1 MB: whoever is further behind reads the ledger."""

BATCH: Final = 256
"""Events of one write to a follower."""

_CURSOR: Final = re.compile(r"(?:([A-Za-z0-9_-]{1,64})-)?([0-9]{1,18})", re.ASCII)
"""An epoch, of this daemon or another one, and a number; a number alone is of no epoch that can be told."""


T = TypeVar("T")


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class StreamView:
    """Who follows, and of what.

    Attributes:
        workspace: key of the workspace.
        scopes: asks for the names of its scopes by the key of their root, as they are by now.
        originator: who asks.
        is_original: whether its client is one of the original contract (E5).
        may_follow: whether it still may; asked every second in which something happens.
    """

    workspace: str
    scopes: Callable[[], Mapping[str, str]]
    originator: Originator
    is_original: bool = False
    may_follow: Callable[[], Awaitable[bool]] = _always


@dataclass(frozen=True, slots=True)
class _Told:
    """An event and the frames that it was rendered to."""

    event: tasks.OutboxEvent
    frames: dict[tuple[str, bool], bytes] = field(default_factory=dict)


async def at_once(ask: Callable[[], T]) -> T:
    """What `ask` returns, asked on the loop: for a ledger that answers in some microseconds."""
    return ask()


class Stream:
    """The events of a ledger. Belongs to one event loop.

    Args:
        reads: a connection to the ledger of this stream's own.
        span: where it stands now, see `tasks.span`.
        ask: has the ledger asked; one that is elsewhere in a thread.
    """

    def __init__(
        self,
        reads: Ledger,
        span: tuple[str, int, int],
        ask: Callable[[Callable[[], Any]], Awaitable[Any]] = at_once,
    ) -> None:
        self._reads, self._ask = reads, ask
        self.epoch, _, self.last = span
        self._ring: deque[_Told] = deque(maxlen=RING)
        self._version, self._was_lost = reads.version(), False
        self._next = asyncio.get_running_loop().create_future()
        self._looking: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._doubts = self._waiting = 0
        self.is_closed = False

    @property
    def is_followed(self) -> bool:
        """Whether anybody waits for further events."""
        return self._waiting > 0

    @property
    def is_lost(self) -> bool:
        """Whether the ledger is no longer where it was opened: no next daemon would find what is added."""
        return self._reads.is_lost()

    def wake(self) -> None:
        """Look for new events soon; calls in one turn of the loop are one look."""
        if self._looking is None and not self.is_closed:
            self._looking = asyncio.create_task(self._look())

    async def watch(self) -> None:
        """Look for what other processes commit, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.is_lost != self._was_lost:
                self._was_lost = not self._was_lost
                events.emit("ledger_gone" if self._was_lost else "ledger_back")
            with suppress(
                MunimentError, OSError
            ):  # Whoever changes the ledger is told that it is unavailable.
                version = self._reads.version()
                if version != self._version:
                    self._version = version
                    await self._look()

    async def changed(self, seconds: float) -> bool:
        """Wait for further events; whether there are any, or this was closed."""
        if self.is_closed:
            return True
        self._waiting += 1
        try:
            done, _ = await asyncio.wait([self._next], timeout=seconds)
        finally:
            self._waiting -= 1
        return bool(done)

    async def since(self, number: int) -> tuple[int, list[tasks.OutboxEvent]]:
        """Where somebody who stood at `number` stands now, and what happened since, as far as it is kept.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be read.
        """
        await self._look()
        told: list[tasks.OutboxEvent] = []
        while further := await self._after(number):
            told += [each.event for each in further]
            number = told[-1].number
        return number, told

    def close(self) -> None:
        """End every follower."""
        self.is_closed = True
        self._tell()

    async def cursor(self) -> str:
        """Where somebody stands who is about to look at the memory."""
        await self._look()
        return f"{self.epoch}-{self.last}"

    def ask_again(self) -> None:
        """Have it asked at once who may still follow."""
        self._doubts += 1
        self._tell()

    async def follow(self, view: StreamView, cursor: str | None) -> AsyncIterator[bytes]:
        """Frames for a follower, from after `cursor` on, until the stream closes or it may follow no more.

        Args:
            view: who follows, and of what.
            cursor: as it was sent; None: from now on.
        """
        try:
            await self._look()
            number = self.last if cursor is None else await self._number(cursor)
            if number is None:
                number, frame = await self._lost(cursor or "", view)
                yield frame
            replay_end = self.last if view.is_original and cursor is not None else None
            replayed = 0
            yield f"retry: {RECONNECT_MS}\n{self._mark(number)}".encode()
            said = checked = time.monotonic()
            doubts = self._doubts
            while not self.is_closed:
                if time.monotonic() >= checked + CHECK_SECONDS or doubts != self._doubts:
                    if not await view.may_follow():
                        return
                    checked, doubts = time.monotonic(), self._doubts
                frames: list[bytes] = []
                if told := await self._after(number):
                    number, frames = self._frames_of(told, number, view)
                    await asyncio.sleep(0)  # Others have their turn, however much there is to catch up with.
                replayed += len(frames)
                if replay_end is not None and number >= replay_end:
                    counted = {
                        "lastReplayedEventId": number,
                        "lastEventId": number,
                        "replayedCount": replayed,
                    }
                    frames.append(_control("replay_complete", counted))
                    replay_end = None
                left = said + HEARTBEAT_SECONDS - time.monotonic()
                if frames:
                    yield b"".join(frames)
                elif (told and left > 0) or (not told and await self.changed(max(0.0, left))):
                    continue  # There is nothing to say yet: what happened is none of this one's business.
                else:
                    yield self._mark(number).encode()
                said = time.monotonic()
        except MunimentError as error:
            events.emit("events_unavailable", code=error.code)  # The follower comes again with its cursor.

    async def _look(self) -> None:
        """Read what is new, and tell those who wait."""
        async with self._reading:
            self._looking = None
            before = self.last
            try:
                is_all = False
                while not is_all:  # What comes meanwhile wakes this again.
                    found = await self._ask(partial(tasks.read, self._reads, self.last, BATCH))
                    self._ring.extend(map(_Told, found))
                    self.last = found[-1].number if found else self.last
                    is_all = len(found) < BATCH
            except MunimentError as error:
                events.emit("events_unavailable", code=error.code)
            if self.last != before:
                self._tell()

    def _tell(self) -> None:
        if not self._next.done():
            self._next.set_result(None)
        if not self.is_closed:
            self._next = asyncio.get_running_loop().create_future()

    async def _after(self, number: int) -> list[_Told]:
        """The next events after a number."""
        if number >= self.last:
            return []
        if self._ring and self._ring[0].event.number <= number + 1:
            start = len(self._ring)
            while start and self._ring[start - 1].event.number > number:
                start -= 1
            return list(islice(self._ring, start, start + BATCH))
        kept: tuple[tasks.OutboxEvent, ...] = await self._ask(partial(tasks.read, self._reads, number, BATCH))
        return list(map(_Told, kept))

    async def _number(self, cursor: str) -> int | None:
        """The number of a cursor after which nothing is missed; None: there is no such."""
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            return None
        epoch, first, _ = await self._ask(partial(tasks.span, self._reads))
        number = int(found[2])
        return number if found[1] == epoch and first <= number <= self.last else None

    def _frames_of(self, told: list[_Told], number: int, view: StreamView) -> tuple[int, list[bytes]]:
        """Where somebody who stood at `number` stands after what is `told`, and the frames of it."""
        frames = [frame for each in told if (frame := self._frame_of(each, view)) is not None]
        if told[-1].event.number != number + len(told):  # Some between are no longer kept.
            if not view.is_original:
                return self.last, [self._resync(self.last)]
            frames.insert(0, _resync_required("ring_evicted", number, told[0].event.number))
        return told[-1].event.number, frames

    def _frame_of(self, told: _Told, view: StreamView) -> bytes | None:
        """What `view` is told of an event; None: nothing."""
        event = told.event
        if event.type == "memory_changed":
            key = (view.workspace, False)
            names = view.scopes()
            scopes = sorted({names[root] for root in event.roots if root in names})
            if not scopes:
                return None
            data = {"scope": "managed", **event.data, "taskId": event.task, "touchedScopes": scopes}
        else:
            originator = Originator(event.token or "", event.client)
            if event.workspace != view.workspace or not view.originator.sees(originator):
                return None
            data = {"taskId": event.task, **event.data}
            who = data.pop("cancelled_by", None)
            did_cancel = who is not None and not view.is_original and view.originator == Originator(*who)
            if data["status"] == "cancelled" and not did_cancel:
                data |= {"status": "failed", "code": "cancelled"}
            key = (view.workspace, did_cancel)
        if key not in told.frames:
            document: dict[str, Any] = {"id": event.number, "v": 1, "type": event.type, "data": data}
            if event.client is not None:
                document["originatorClientId"] = event.client
            told.frames[key] = self._frame(event.type, event.number, document)
        return told.frames[key]

    async def _lost(self, cursor: str, view: StreamView) -> tuple[int, bytes]:
        """Where somebody stands who came with a cursor that is none, and the frame that says so."""
        if not view.is_original:
            return self.last, self._resync(self.last)
        found = _CURSOR.fullmatch(cursor)
        epoch, first, last = await self._ask(partial(tasks.span, self._reads))
        number = int(found[2]) if found is not None else 0
        is_of_series = found is not None and found[1] == epoch and number <= last
        return first, _resync_required("ring_evicted" if is_of_series else "epoch_reset", number, first + 1)

    def _resync(self, number: int) -> bytes:
        return self._frame("resync", number, {"v": 1, "type": "resync", "data": {}})

    def _frame(self, kind: str, number: int, document: Mapping[str, Any]) -> bytes:
        return f"id: {self.epoch}-{number}\nevent: {kind}\ndata: {json.dumps(document)}\n\n".encode()

    def _mark(self, number: int) -> str:
        """Where a follower stands, as an event without data, which no reader tells of."""
        return f": \nid: {self.epoch}-{number}\n\n"


def _resync_required(reason: str, delivered: int, earliest: int) -> bytes:
    """What a client of the original contract is told in place of `resync`.

    Args:
        reason: `epoch_reset`: the cursor is of another series; `ring_evicted`: what is next is kept no more.
        delivered: the number that it came with; 0: none can be told.
        earliest: the lowest number that is still kept, or is to come.
    """
    return _control(
        "state_resync_required",
        {"reason": reason, "lastDeliveredId": delivered, "earliestAvailableId": earliest},
    )


def _control(kind: str, data: Mapping[str, Any]) -> bytes:
    """A frame that is no event and moves no cursor."""
    return f"event: {kind}\ndata: {json.dumps({'v': 1, 'type': kind, 'data': data})}\n\n".encode()
