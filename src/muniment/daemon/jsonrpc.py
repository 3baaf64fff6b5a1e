"""JSON-RPC 2.0, a JSON object a line: bytes to messages and answers to bytes, without input or output.

- J1 A line has at most `MAX_LINE_BYTES`; of a longer one no more is kept, and the next one is read as ever.
- J2 A message is what every parser reads it as (`strict_json`), and no batch.
- J3 An answer is one line of ASCII, so that no text in it ends it and begins another one.

Source: jsonrpc.org/specification; agentclientprotocol.com/protocol (transports, cancellation).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from muniment.daemon.contract import MAX_BODY_BYTES
from muniment.daemon.strict_json import loads

MAX_LINE_BYTES: Final = MAX_BODY_BYTES
"""Bytes of a line: as of a body over HTTP, a fact of 64 KiB however it is escaped."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CANCELLED: Final = -32800
FAILED: Final = -32000

Id = str | int


@dataclass(frozen=True, slots=True)
class Request:
    """What wants an answer."""

    id: Id
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """What wants none."""

    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the other side, to something that was never asked."""


class Malformed(Exception):
    """What is no message.

    Attributes:
        id: of the request that it was to be, where that can be told.
        number: of JSON-RPC, for what is wrong.
        code: likewise, in words.
    """

    def __init__(self, number: int, code: str, message: str, request_id: Id | None = None) -> None:
        self.number, self.code, self.id = number, code, request_id
        super().__init__(message)


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that are complete with `data`; None for one that was too long (J1)."""
        *ends, rest = data.split(b"\n")
        lines: list[bytes | None] = []
        for part in ends:
            self._add(part)
            lines.append(None if self._is_too_long else bytes(self._line))
            self._line.clear()
            self._is_too_long = False
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._line) + len(part) > MAX_LINE_BYTES
        if self._is_too_long:
            self._line.clear()
        else:
            self._line += part


def message(line: bytes) -> Request | Notification | Answered:
    """The message of a line.

    Raises:
        Malformed: it holds none (J2).
    """
    try:
        found = loads(line)
    except ValueError:
        raise Malformed(
            PARSE_ERROR, "invalid_json", "The line is no JSON, or JSON of two meanings."
        ) from None
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        raise Malformed(INVALID_REQUEST, "invalid_request", "The line is no JSON-RPC 2.0 object.")
    if "method" not in found and ("result" in found or "error" in found):
        return Answered()
    method, request_id, params = found.get("method"), found.get("id"), found.get("params", {})
    if not isinstance(method, str):
        raise Malformed(INVALID_REQUEST, "invalid_request", "`method` must be a text.")
    if "id" not in found:
        return Notification(method, params if isinstance(params, dict) else {})
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        raise Malformed(INVALID_REQUEST, "invalid_request", "`id` must be a text or a whole number.")
    if not isinstance(params, dict):
        raise Malformed(INVALID_PARAMS, "invalid_request", "`params` must be an object.", request_id)
    return Request(request_id, method, params)


def succeeded(request_id: Id, result: Mapping[str, Any]) -> bytes:
    """The answer that says `result`."""
    return _line({"id": request_id, "result": result})


def failed(
    request_id: Id | None, number: int, code: str, text: str, fields: Mapping[str, Any] | None = None
) -> bytes:
    """The answer that says why not.

    Args:
        request_id: None: which request it was cannot be told.
        number: of JSON-RPC.
        code: stable, see `problems`.
        text: a fixed sentence.
        fields: further members of its data.
    """
    data = {"errorKind": code, "code": code, **(fields or {})}
    return _line({"id": request_id, "error": {"code": number, "message": text, "data": data}})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **document}).encode() + b"\n"
