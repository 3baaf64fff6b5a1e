"""Reads a stream of server-sent events, piece by piece, wherever the pieces end.

S1 The frames are the same however the bytes are cut, also inside a character or between CR and LF.
S2 A line and a frame hold at most `MAX_FRAME_BYTES`; what is more raises, and is not kept.

Does no I/O. Source: the HTML standard, 9.2.6, "Interpreting an event stream"; `retry` is ignored, as the
client has pauses of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muniment.client.errors import BadAnswer

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Bytes of one event; those of the daemon hold ids and names, some 300 bytes."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream.

    Attributes:
        id: the newest one that the stream gave; "" if it gave none.
        event: its type; `message` where it has none.
        data: its lines of data; None: it has none, and is no event; it says where the stream stands.
    """

    id: str
    event: str
    data: str | None


class Frames:
    """The frames of one connection.

    Args:
        last_id: the one that the connection went on from.

    Attributes:
        last_id: that of the newest frame that came as a whole; what a further connection goes on from.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = self._id = last_id
        self._line = bytearray()
        self._after_cr = False
        self._is_first = True
        self._event = ""
        self._data: list[str] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that `chunk` completes.

        Raises:
            BadAnswer: there is no end to a line or a frame (S2).
        """
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        *lines, rest = _LINE_END.split(chunk)
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        for end in lines:
            self._grow(end)
            line = bytes(self._line)
            self._line.clear()
            if (frame := self._take(line)) is not None:
                yield frame
        self._grow(rest)

    def _grow(self, piece: bytes) -> None:
        if len(self._line) + len(piece) + self._bytes > MAX_FRAME_BYTES:
            raise BadAnswer(f"the stream has an event of more than {MAX_FRAME_BYTES} bytes")
        self._line += piece

    def _take(self, line: bytes) -> Frame | None:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")
        match name:
            case b"data":
                self._data.append(text)
                self._bytes += len(line) + 1
            case b"event":
                self._event = text
            case b"id" if "\0" not in text:
                self._id = text
            case _:
                pass  # A comment, such as a heartbeat, or a field that means nothing to us.
        return None

    def _dispatch(self) -> Frame | None:
        data, event, has_moved = self._data, self._event, self._id != self.last_id
        self._data, self._event, self._bytes, self.last_id = [], "", 0, self._id
        if data:
            return Frame(self.last_id, event or "message", "\n".join(data))
        return Frame(self.last_id, event, None) if has_moved else None
