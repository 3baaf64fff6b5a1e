"""Messages between the broker and a worker: framing that trusts no length and no text.

A message is one header, followed by the body that the header announces:

    header   u32 length, big-endian · JSON object in UTF-8, 2 to `MAX_FRAME_BYTES` bytes
    body     if the header contains `"body": n`, n ≥ 1: exactly n raw bytes in frames of a u32 length and
             `MAX_PIECE_BYTES` bytes, only the last one shorter; so one body has one encoding

C1 Every length is checked before use, and no memory is reserved for more bytes than have arrived.
C2 A header is one JSON object without NaN, infinities, duplicate keys or nesting beyond `MAX_NESTING`. Its
   strings may contain lone surrogates: names on disk need not be UTF-8.
C3 Exactly one message is read from the socket; further bytes of a peer stay in the kernel.
C4 A message that cannot be sent is rejected before its first byte is sent.

The callers check the content of a header, by models that accept no unknown member. Both ends use this file.
Start reading at `Channel`. Tested with attacks by `tests/units/sandbox/test_wire.py`.
"""

from __future__ import annotations

import array
import json
import math
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NoReturn

# -- wire --------------------------------------------------------------------------------------------

MAX_FRAME_BYTES: Final = 256 * 1024
"""Maximum bytes of a header. A hostile frame of 8 MiB cost strict models 3 to 8 s and 2 GB (measured); one of
this size at most 35 ms and 22 MB."""

MAX_PIECE_BYTES: Final = 64 * 1024
"""Bytes of body in one frame: the maximum that a reader stores before it checks the next length."""

MAX_NESTING: Final = 64
"""Maximum nesting of objects and arrays; no message needs ten levels."""

_LENGTH_BYTES: Final = 4
_BODY: Final = "body"

WaitReady = Callable[[int], None]
"""Called with `select.POLLIN` or `POLLOUT` before each socket operation; waits for the socket, or raises."""


class ExitCode(IntEnum):
    """The reasons why a worker ended, as exit codes."""

    OK = 0
    """The broker closed the connection."""
    PROTOCOL = 64
    """The worker received a well-formed message that is not valid at this point."""
    FRAME = 65
    """The worker received bytes that are not a message."""
    MEMORY = 66
    """The worker had no memory left."""
    FENCE = 67
    """The worker could not drop inherited rights or descriptors, so it never served."""
    BUG = 70
    """The worker ended because of any other error."""


class ProtocolViolation(ValueError):
    """The peer sent an invalid message. The connection cannot be used further."""


class FrameViolation(ProtocolViolation):
    """The peer sent bytes that are not a message."""


class Unsendable(ValueError):
    """A message that the format cannot represent. Nothing was sent; the connection is unchanged."""


class Channel:
    """One end of a connection that sends and receives messages.

    Args:
        sock: a connected stream socket. It is blocking if `ready` is never given, else non-blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(
        self, header: Mapping[str, object], body: bytes = b"", *, ready: WaitReady | None = None
    ) -> None:
        """Send one message.

        Args:
            header: a JSON object without the key `body`.
            body: raw bytes that follow the header; empty: the header announces no body.
            ready: called before each socket operation, see `WaitReady`; None: block in the socket.

        Raises:
            Unsendable: the header is not a JSON object, or exceeds a limit. Nothing is sent.
            EOFError: the peer has closed the connection.
        """
        frame = _encode(header, len(body))
        self._write(_encode_length(frame) + frame, ready)
        view = memoryview(body)
        for start in range(0, len(body), MAX_PIECE_BYTES):
            piece = view[start : start + MAX_PIECE_BYTES]
            self._write(_encode_length(piece), ready)
            self._write(piece, ready)

    def receive(self, max_body: int, *, ready: WaitReady | None = None) -> tuple[dict[str, object], bytes]:
        """Receive one message.

        Args:
            max_body: maximum bytes of body that the caller accepts; 0: none.
            ready: called before each socket operation, see `WaitReady`; None: block in the socket.

        Returns:
            The header without its key `body`, and the body.

        Raises:
            FrameViolation: the bytes are not a message (C1 and C2 above), or the body is above `max_body`.
            EOFError: the peer closed the connection, between two messages or within one.

        Cost: memory for what arrived, at most `MAX_FRAME_BYTES + max_body` and the parsed header.
        """
        length = self._read_length(ready)
        if not len(b"{}") <= length <= MAX_FRAME_BYTES:
            raise FrameViolation(f"invalid header: it has {length} bytes")
        header = parse_object(bytes(self._read(length, ready)))
        if _BODY not in header:
            return header, b""
        announced = header.pop(_BODY)
        if type(announced) is not int or not 1 <= announced <= max_body:
            raise FrameViolation("invalid body: its announced size is not a number or out of bounds")
        body = bytearray()
        while missing := announced - len(body):
            length = self._read_length(ready)
            if length != min(missing, MAX_PIECE_BYTES):
                raise FrameViolation(f"invalid piece: it has {length} bytes of {missing} missing ones")
            body += self._read(length, ready)
        return header, bytes(body)

    def _read_length(self, ready: WaitReady | None) -> int:
        return int.from_bytes(self._read(_LENGTH_BYTES, ready), "big")

    def _read(self, size: int, ready: WaitReady | None) -> bytearray:
        data = bytearray()
        while len(data) < size:
            if ready is not None:
                ready(select.POLLIN)
            try:
                chunk = self._sock.recv(min(size - len(data), MAX_PIECE_BYTES))
            except BlockingIOError:
                continue
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _write(self, data: bytes | memoryview, ready: WaitReady | None) -> None:
        remaining = memoryview(data)
        while remaining:
            if ready is not None:
                ready(select.POLLOUT)
            try:
                remaining = remaining[self._sock.send(remaining, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                continue
            except ConnectionError:
                raise EOFError from None


def parse_object(data: bytes) -> dict[str, object]:
    """Parse one untrusted JSON object.

    Raises:
        FrameViolation: the bytes are not UTF-8, not one JSON object, or contain NaN, an infinity, a duplicate
            key or too much nesting. The error does not quote the content.
    """
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_build_unique_dict,
            parse_constant=_reject_number,
            parse_float=_parse_finite,
        )
    except FrameViolation:
        raise
    except (ValueError, RecursionError):
        # ValueError covers UTF-8, JSON, and integers of more digits than Python converts.
        raise FrameViolation("invalid header: not JSON") from None
    if not isinstance(value, dict):
        raise FrameViolation("invalid header: not a JSON object")
    _check_nesting(value)
    return value


def _encode(header: Mapping[str, object], body_bytes: int) -> bytes:
    if _BODY in header:
        raise Unsendable("the key 'body' is reserved by the format")
    announced = {**header, _BODY: body_bytes} if body_bytes else dict(header)
    try:
        frame = json.dumps(announced, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        parse_object(frame)  # a header that the other end would reject is never sent
    except (TypeError, ValueError, RecursionError):
        raise Unsendable("the header is not a JSON object that the format can represent") from None
    if len(frame) > MAX_FRAME_BYTES:
        raise Unsendable(f"the header has {len(frame)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return frame


def _encode_length(data: bytes | memoryview) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big")


def _build_unique_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise FrameViolation("invalid header: duplicate key")
    return result


def _reject_number(_: str) -> NoReturn:
    raise FrameViolation("invalid header: NaN or infinity")


def _parse_finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _reject_number(text)


def _check_nesting(value: dict[str, object] | list[object], remaining: int = MAX_NESTING) -> None:
    if remaining == 0:
        raise FrameViolation(f"invalid header: nested deeper than {MAX_NESTING}")
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, dict | list):
            _check_nesting(child, remaining - 1)


# -- control -----------------------------------------------------------------------------------------
#
# Small messages with descriptors, between the broker and its zygote, over SEQPACKET sockets.
#
# In CPython 3.11, `socket.send_fds` and `socket.recv_fds` drop their `flags`, and with them MSG_CMSG_CLOEXEC:
# the next program that the broker starts would inherit a pidfd. So these two functions replace them.

MAX_CONTROL_BYTES: Final = 16 * 1024
"""Maximum bytes of one control message."""

MAX_ROOTS: Final = 64
"""Maximum roots of one worker. A message passes at most 253 descriptors (unix(7), SCM_MAX_FD)."""

FDS_BEFORE_ROOTS: Final = 2
"""Descriptors before the roots in a request: the report socket and the worker's socket."""

_MAX_FDS: Final = FDS_BEFORE_ROOTS + MAX_ROOTS


def send_with_fds(sock: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send one message with copies of the descriptors `fds`, without SIGPIPE.

    Raises:
        OSError: the error of `socket.sendmsg`.
    """
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    sock.sendmsg([message], [rights] if fds else [], socket.MSG_NOSIGNAL)


def receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int], bool]:
    """Receive one message with its descriptors.

    Returns:
        The message, empty at the end of file; its descriptors, which are close-on-exec and which the caller
        closes; and whether message and descriptors are complete.

    Raises:
        OSError: the error of `socket.recvmsg`.
    """
    fds = array.array("i")
    message, ancillary, flags, _ = sock.recvmsg(
        MAX_CONTROL_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for _, _, data in ancillary:
        # Always SCM_RIGHTS: no code requests credentials on these sockets.
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
