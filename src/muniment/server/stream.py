"""The stream of events: delivers the events of the ledger's outbox to all followers.

- E1 A follower has a separate cursor. It reads events from memory or, if they are no longer cached, from the
  ledger. A slow follower blocks nothing here.
- E2 A cursor is `<epoch>-<number>`. A follower with a valid cursor misses no stored event. If the cursor is
  invalid, or the next event is no longer stored, the follower receives `resync`: it must read everything
  again, then follow.
- E3 All followers of a workspace are notified of changes of its memory. Only the originator and the owner are
  notified of a task. A cancelled task is `cancelled` for its canceller, and `failed` for the others.
- E4 An event is one line of JSON, so that text in it cannot end it and start another event.
- E5 A client of the original contract, the HTTP API of `qwen serve`, receives `state_resync_required` instead
  of `resync`, then all stored events again. It receives `replay_complete` after the events that its cursor
  requested, and no `cancelled` task.

Commits of this process are delivered immediately, those of other processes within `POLL_SECONDS`.

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

POLL_SECONDS: Final = 0.5
"""Seconds between two checks for commits of other processes."""

HEARTBEAT_SECONDS: Final = 15.0
"""Seconds of silence after which a follower receives its cursor, so that both sides detect a dead connection.
"""

RECONNECT_MS: Final = 1_000
"""Milliseconds that a browser waits before it reconnects."""

CHECK_SECONDS: Final = 1.0
"""Seconds after which the permission of a follower is checked again."""

CACHE_SIZE: Final = 2_048
"""Events cached in memory, about 1 MB. A follower that needs older events reads the ledger."""

BATCH: Final = 256
"""Maximum events in one write to a follower."""

_CURSOR: Final = re.compile(r"(?:([A-Za-z0-9_-]{1,64})-)?([0-9]{1,18})", re.ASCII)
"""A cursor: an epoch, of this daemon or another one, and a number. The epoch may be missing; then it is
unknown.
"""


T = TypeVar("T")


async def _allow_always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Subscription:
    """A follower and the part of the stream that it may read.

    Attributes:
        workspace: key of the workspace.
        scopes: returns the current name of each scope by the key of its root.
        originator: the token and the client of the follower.
        is_original: whether the follower uses the original contract, the HTTP API of `qwen serve`.
        may_follow: returns whether the follower still may follow; called at most once per second, and only if
            events arrive.
    """

    workspace: str
    scopes: Callable[[], Mapping[str, str]]
    originator: Originator
    is_original: bool = False
    may_follow: Callable[[], Awaitable[bool]] = _allow_always


@dataclass(frozen=True, slots=True)
class _RenderedEvent:
    """An event with its frames, each rendered once for all followers that receive the same frame."""

    event: tasks.OutboxEvent
    frames: dict[tuple[str, bool], bytes] = field(default_factory=dict)


async def run_now(query: Callable[[], T]) -> T:
    """Run `query` on the event loop and return its result; for a ledger that responds in microseconds."""
    return query()


class Stream:
    """The events of a ledger. Belongs to one event loop.

    Args:
        reads: a connection to the ledger that only this stream uses.
        span: the epoch, and the lowest and highest number after which events can be read, see
            `tasks.read_range`.
        run_query: runs a read of the ledger; in a thread if the ledger is on another machine.
    """

    def __init__(
        self,
        reads: Ledger,
        span: tuple[str, int, int],
        run_query: Callable[[Callable[[], Any]], Awaitable[Any]] = run_now,
    ) -> None:
        self._reads, self._run_query = reads, run_query
        self.epoch, _, self.last = span
        self._cache: deque[_RenderedEvent] = deque(maxlen=CACHE_SIZE)
        self._version, self._was_lost = reads.read_data_version(), False
        self._change_future = asyncio.get_running_loop().create_future()
        self._read_task: asyncio.Task[None] | None = None
        self._read_lock = asyncio.Lock()
        self._recheck_count = self._waiting = 0
        self.is_closed = False

    @property
    def is_followed(self) -> bool:
        """Return whether a follower waits for events."""
        return self._waiting > 0

    @property
    def is_lost(self) -> bool:
        """Return whether the ledger file was moved or deleted, so that a later daemon finds no new events."""
        return self._reads.is_lost()

    def wake(self) -> None:
        """Schedule a read of new events; several calls in one turn of the event loop cause one read."""
        if self._read_task is None and not self.is_closed:
            self._read_task = asyncio.create_task(self._read_new())

    async def watch(self) -> None:
        """Check for commits of other processes every `POLL_SECONDS`. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.is_lost != self._was_lost:
                self._was_lost = not self._was_lost
                events.emit("ledger_gone" if self._was_lost else "ledger_back")
            with suppress(MunimentError, OSError):  # Writers of the ledger report that it is unavailable.
                version = self._reads.read_data_version()
                if version != self._version:
                    self._version = version
                    await self._read_new()

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait at most `seconds` for new events; return whether there are any, or the stream was closed."""
        if self.is_closed:
            return True
        self._waiting += 1
        try:
            done, _ = await asyncio.wait([self._change_future], timeout=seconds)
        finally:
            self._waiting -= 1
        return bool(done)

    async def read_since(self, number: int) -> tuple[int, list[tasks.OutboxEvent]]:
        """Read the stored events that follow the event `number`.

        Returns:
            The number after which to read next time, and the events.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be read.
        """
        await self._read_new()
        found: list[tasks.OutboxEvent] = []
        while batch := await self._read_after(number):
            found += [each.event for each in batch]
            number = found[-1].number
        return number, found

    def close(self) -> None:
        """Close the stream, which disconnects every follower."""
        self.is_closed = True
        self._notify_waiters()

    async def cursor(self) -> str:
        """Return the cursor for a follower that reads the memory now and later events afterwards."""
        await self._read_new()
        return f"{self.epoch}-{self.last}"

    def recheck_permissions(self) -> None:
        """Check immediately whether each follower still may follow."""
        self._recheck_count += 1
        self._notify_waiters()

    async def follow(self, subscription: Subscription, cursor: str | None) -> AsyncIterator[bytes]:
        """Yield frames for a follower, starting after `cursor`, until the stream or its permission ends.

        Args:
            subscription: the follower and the part of the stream that it may read.
            cursor: the cursor as the follower sent it; None: yield only events from now on.
        """
        try:
            await self._read_new()
            number = self.last if cursor is None else await self._parse_cursor(cursor)
            if number is None:
                number, frame = await self._resume_after_loss(cursor or "", subscription)
                yield frame
            replay_end = self.last if subscription.is_original and cursor is not None else None
            replayed = 0
            yield f"retry: {RECONNECT_MS}\n{self._format_position(number)}".encode()
            last_sent = last_checked = time.monotonic()
            recheck_count = self._recheck_count
            while not self.is_closed:
                if time.monotonic() >= last_checked + CHECK_SECONDS or recheck_count != self._recheck_count:
                    if not await subscription.may_follow():
                        return
                    last_checked, recheck_count = time.monotonic(), self._recheck_count
                frames: list[bytes] = []
                if batch := await self._read_after(number):
                    number, frames = self._render_frames(batch, number, subscription)
                    await asyncio.sleep(0)  # Let other tasks run, even if there are many events to deliver.
                replayed += len(frames)
                if replay_end is not None and number >= replay_end:
                    counted = {
                        "lastReplayedEventId": number,
                        "lastEventId": number,
                        "replayedCount": replayed,
                    }
                    frames.append(_format_control("replay_complete", counted))
                    replay_end = None
                left = last_sent + HEARTBEAT_SECONDS - time.monotonic()
                if frames:
                    yield b"".join(frames)
                elif (batch and left > 0) or (not batch and await self.wait_for_change(max(0.0, left))):
                    continue  # None of these events are for this follower.
                else:
                    yield self._format_position(number).encode()
                last_sent = time.monotonic()
        except MunimentError as error:
            events.emit("events_unavailable", code=error.code)  # The follower reconnects with its cursor.

    async def _read_new(self) -> None:
        """Read new events from the ledger, and notify the waiting followers."""
        async with self._read_lock:
            self._read_task = None
            before = self.last
            try:
                is_complete = False
                while not is_complete:  # An event that arrives in the meantime wakes this again.
                    found = await self._run_query(partial(tasks.read_events, self._reads, self.last, BATCH))
                    self._cache.extend(map(_RenderedEvent, found))
                    self.last = found[-1].number if found else self.last
                    is_complete = len(found) < BATCH
            except MunimentError as error:
                events.emit("events_unavailable", code=error.code)
            if self.last != before:
                self._notify_waiters()

    def _notify_waiters(self) -> None:
        if not self._change_future.done():
            self._change_future.set_result(None)
        if not self.is_closed:
            self._change_future = asyncio.get_running_loop().create_future()

    async def _read_after(self, number: int) -> list[_RenderedEvent]:
        """Return the next events after `number`, at most `BATCH`, from the cache or the ledger."""
        if number >= self.last:
            return []
        if self._cache and self._cache[0].event.number <= number + 1:
            start = len(self._cache)
            while start and self._cache[start - 1].event.number > number:
                start -= 1
            return list(islice(self._cache, start, start + BATCH))
        stored: tuple[tasks.OutboxEvent, ...] = await self._run_query(
            partial(tasks.read_events, self._reads, number, BATCH)
        )
        return list(map(_RenderedEvent, stored))

    async def _parse_cursor(self, cursor: str) -> int | None:
        """Return the number of a cursor; None if the cursor is invalid, or an event after it is missing."""
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            return None
        epoch, first, _ = await self._run_query(partial(tasks.read_range, self._reads))
        number = int(found[2])
        return number if found[1] == epoch and first <= number <= self.last else None

    def _render_frames(
        self, batch: list[_RenderedEvent], number: int, subscription: Subscription
    ) -> tuple[int, list[bytes]]:
        """Return the position of a follower after a batch of events, and the frames for the follower."""
        frames = [frame for each in batch if (frame := self._render_frame(each, subscription)) is not None]
        if batch[-1].event.number != number + len(batch):  # Some events in between are no longer stored.
            if not subscription.is_original:
                return self.last, [self._format_resync(self.last)]
            frames.insert(0, _format_resync_required("ring_evicted", number, batch[0].event.number))
        return batch[-1].event.number, frames

    def _render_frame(self, rendered: _RenderedEvent, subscription: Subscription) -> bytes | None:
        """Return the frame of an event for `subscription`, or None if the follower may not see the event."""
        event = rendered.event
        if event.type == "memory_changed":
            key = (subscription.workspace, False)
            names = subscription.scopes()
            scopes = sorted({names[root] for root in event.roots if root in names})
            if not scopes:
                return None
            data = {"scope": "managed", **event.data, "taskId": event.task, "touchedScopes": scopes}
        else:
            originator = Originator(event.token or "", event.client)
            if event.workspace != subscription.workspace or not subscription.originator.can_see(originator):
                return None
            data = {"taskId": event.task, **event.data}
            canceller = data.pop("cancelled_by", None)
            did_cancel = (
                canceller is not None
                and not subscription.is_original
                and subscription.originator == Originator(*canceller)
            )
            if data["status"] == "cancelled" and not did_cancel:
                data |= {"status": "failed", "code": "cancelled"}
            key = (subscription.workspace, did_cancel)
        if key not in rendered.frames:
            document: dict[str, Any] = {"id": event.number, "v": 1, "type": event.type, "data": data}
            if event.client is not None:
                document["originatorClientId"] = event.client
            rendered.frames[key] = self._format_frame(event.type, event.number, document)
        return rendered.frames[key]

    async def _resume_after_loss(self, cursor: str, subscription: Subscription) -> tuple[int, bytes]:
        """Return the new position of a follower with an invalid cursor, and the frame that reports it."""
        if not subscription.is_original:
            return self.last, self._format_resync(self.last)
        found = _CURSOR.fullmatch(cursor)
        epoch, first, last = await self._run_query(partial(tasks.read_range, self._reads))
        number = int(found[2]) if found is not None else 0
        is_of_series = found is not None and found[1] == epoch and number <= last
        return first, _format_resync_required(
            "ring_evicted" if is_of_series else "epoch_reset", number, first + 1
        )

    def _format_resync(self, number: int) -> bytes:
        return self._format_frame("resync", number, {"v": 1, "type": "resync", "data": {}})

    def _format_frame(self, kind: str, number: int, document: Mapping[str, Any]) -> bytes:
        return f"id: {self.epoch}-{number}\nevent: {kind}\ndata: {json.dumps(document)}\n\n".encode()

    def _format_position(self, number: int) -> str:
        """Return the position of a follower as an event without data, which event parsers ignore."""
        return f": \nid: {self.epoch}-{number}\n\n"


def _format_resync_required(reason: str, delivered: int, earliest: int) -> bytes:
    """Return the frame that replaces `resync` for a client of the original contract (`qwen serve`).

    Args:
        reason: `epoch_reset`: the cursor belongs to another epoch; `ring_evicted`: the next event was
            already deleted.
        delivered: the number in the follower's cursor; 0: unknown.
        earliest: the lowest number that is still stored, or the next one if no event is stored.
    """
    return _format_control(
        "state_resync_required",
        {"reason": reason, "lastDeliveredId": delivered, "earliestAvailableId": earliest},
    )


def _format_control(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return a control frame. It is not an event, and does not change the follower's cursor."""
    return f"event: {kind}\ndata: {json.dumps({'v': 1, 'type': kind, 'data': data})}\n\n".encode()
