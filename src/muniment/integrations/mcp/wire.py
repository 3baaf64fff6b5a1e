"""Read and write lines of JSON-RPC over standard input and output, for `muniment mcp`.

W1 Both streams are first moved to other descriptors. Output of a library or a child process then goes to
   standard error, and cannot appear between two messages.
W2 A line has at most `MAX_LINE_BYTES`. The rest of a longer line is dropped, and the next line is read
   normally.
W3 The end of the input, SIGINT, SIGTERM and a closed output end the iteration over lines, even if the program
   waits.
W4 A host that ends without reading its responses blocks nothing. After the end of the input, sending stops
   after `END_SECONDS`. If the program cannot process a line for `STUCK_SECONDS` because the host does not
   read responses, the host counts as disconnected.

Both the server and the pipe to a daemon use this module. It needs no SDK and no system-specific functions:
threads read and write.

Source: modelcontextprotocol.io/specification, "Transports", stdio; jsonrpc.org/specification.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import select
import signal
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from muniment.content.exact_json import find_request_id_problem

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of a line. A fact has at most 64 KiB; the tool itself reports a longer fact."""

READ_BYTES: Final = 65_536
"""Maximum bytes of one read, which is the size of a pipe."""

MAX_WAITING: Final = 64
"""Maximum number of lines that were read and wait to be processed."""

END_SECONDS: Final = 10.0
"""Seconds after the end of the input in which the host may still read responses."""

STUCK_SECONDS: Final = 60.0
"""Seconds without a processed line after which the host counts as disconnected."""

CHECK_SECONDS: Final = 0.25
"""Seconds between two checks whether the host has closed the input, while lines wait to be processed."""

DRAIN_SECONDS: Final = 10.0
"""Maximum seconds to respond to requests after the end of the input."""

MAX_IN_FLIGHT: Final = 256
"""Maximum number of requests and streams at the same time; further requests get the error `TOO_MANY`."""

TOO_MANY: Final = f"{MAX_IN_FLIGHT} requests are already pending; try again later"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
BUSY: Final = -32000


def redirect_streams() -> tuple[int, int]:
    """Move standard input and output to new descriptors, and return these, so that nothing else uses them."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


class Wire:
    """Lines that are read from one descriptor and written to another; the caller closes both.

    Attributes:
        stopped: set if the lines were ended by `stop`, not by the end of the input.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._free_slots = threading.Semaphore(MAX_WAITING)
        self._outgoing_lines: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self._waiting: set[asyncio.Future[None]] = set()
        self._end_timer: asyncio.TimerHandle | None = None
        self.stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start the threads that read and write."""
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[tuple[bytes | None] | None] = asyncio.Queue()
        for work in (self._read, self._write):
            # A thread that waits for a pipe cannot be stopped.
            threading.Thread(target=work, daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._loop.add_signal_handler(number, self.stop)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: self._loop.call_soon_threadsafe(self.stop))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.stop()
        if self._end_timer is not None:
            self._end_timer.cancel()

    def stop(self) -> None:
        """End the iteration over lines immediately, and release waiting senders."""
        self.stopped.set()
        for each in list(self._waiting):
            _release(each)

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield each line of the input without its line end; None for a line that was too long."""
        ending = asyncio.create_task(self.stopped.wait())
        try:
            while True:
                getting = asyncio.create_task(self._lines.get())
                await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
                if self.stopped.is_set() or not getting.done():
                    getting.cancel()
                    return
                found = getting.result()
                if found is None:  # The end of the input.
                    return
                self._free_slots.release()
                yield found[0]
        finally:
            ending.cancel()

    async def send(self, line: bytes) -> None:
        """Write a line, and wait until the pipe has accepted it. After `stop`, the line is dropped."""
        if not self.stopped.is_set():
            done = self._loop.create_future()
            self._waiting.add(done)
            done.add_done_callback(self._waiting.discard)
            self._outgoing_lines.put((line, done))
            await done

    async def send_error(self, number: int, text: str, request_id: Any = None) -> None:
        """Send a JSON-RPC error response.

        Args:
            number: the error code of JSON-RPC.
            text: the message.
            request_id: the id of the request; None if it is unknown.
        """
        error = {"code": number, "message": text}
        await self.send(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode())

    async def reject_line(self, line: bytes | None) -> None:
        """Send an error response for a line that is not a valid message; ignore an empty line.

        Args:
            line: the line; None if it was too long.
        """
        if line is None:
            await self.send_error(
                INVALID_REQUEST, f"the message is too long: at most {MAX_LINE_BYTES} bytes are allowed"
            )
        elif line.strip():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                await self.send_error(PARSE_ERROR, "this line is not JSON")
            else:
                sent_id = found.get("id") if isinstance(found, dict) else None
                request_id = (
                    sent_id if isinstance(sent_id, str | int) and not isinstance(sent_id, bool) else None
                )
                text = find_request_id_problem(found) or "this is not a JSON-RPC 2.0 message"
                await self.send_error(INVALID_REQUEST, text, request_id)

    def _read(self) -> None:
        rest, is_too_long = bytearray(), False
        with suppress(OSError, RuntimeError):  # The descriptor or the loop is closed.
            while data := os.read(self._incoming, READ_BYTES):
                *ends, last = data.split(b"\n")
                for part in ends:
                    line = (
                        None if is_too_long or len(rest) + len(part) > MAX_LINE_BYTES else bytes(rest + part)
                    )
                    rest.clear()
                    is_too_long = False
                    self._wait_for_slot()
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, (line,))
                is_too_long = is_too_long or len(rest) + len(last) > MAX_LINE_BYTES
                if is_too_long:
                    rest.clear()
                else:
                    rest += last
        if rest:  # The last line may lack a line end.
            self._call_in_loop(partial(self._lines.put_nowait, (bytes(rest),)))
        self._call_in_loop(partial(self._lines.put_nowait, None))
        self._call_in_loop(self._end_soon)

    def _wait_for_slot(self) -> None:
        """Wait until another line may be queued; meanwhile, detect whether the host has disconnected."""
        waited = 0.0
        while not self._free_slots.acquire(timeout=CHECK_SECONDS):
            waited += CHECK_SECONDS
            if waited >= STUCK_SECONDS:
                self._call_in_loop(self.stop)
            elif _is_disconnected(self._incoming):
                self._call_in_loop(self._end_soon)

    def _end_soon(self) -> None:
        """Stop the wire after `END_SECONDS`; later calls do not extend this time."""
        if self._end_timer is None:
            self._end_timer = self._loop.call_later(END_SECONDS, self.stop)

    def _write(self) -> None:
        while True:
            line, done = self._outgoing_lines.get()
            remaining = memoryview(line + b"\n")
            try:
                while remaining:
                    remaining = remaining[os.write(self._outgoing, remaining) :]
            except OSError:
                self._call_in_loop(self.stop)
            self._call_in_loop(partial(_release, done))

    def _call_in_loop(self, callback: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(callback)


def _is_disconnected(fd: int) -> bool:
    """Return whether the host has closed the input, even if unread data remains."""
    if not hasattr(select, "poll"):  # Windows
        return False
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return True  # A file has no other end.
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def _release(done: asyncio.Future[None]) -> None:
    if not done.done():  # The waiting task may have been cancelled.
        done.set_result(None)
