"""Reads the body of a request: JSON, within bounds of size and time, and without two meanings."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from muniment.daemon.contract import MAX_BODY_BYTES
from muniment.daemon.problems import Problem
from muniment.daemon.strict_json import loads

BODY_SECONDS: Final = 15.0
"""Seconds for a body to arrive in; 512 KiB take 4 s over a line of 1 Mbit/s."""


_CLOSE: Final = {"Connection": "close"}

DRAIN_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a body that is too large which are still read, so that its sender gets to read the answer."""


async def read_json(request: Request) -> Any:
    """The JSON value that a request carries; an empty body is an empty object.

    Raises:
        Problem: it is none, too large, too slow, or of another media type.
    """
    data = await _read(request)
    if not data.strip():
        return {}
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem("unsupported_media_type")
    try:
        return loads(data)
    except ValueError:
        raise Problem("invalid_json") from None


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > DRAIN_BYTES:
        raise Problem("body_too_large", headers=_CLOSE)
    data, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for block in request.stream():
                size += len(block)
                if size > DRAIN_BYTES:
                    break
                if size <= MAX_BODY_BYTES:
                    data += block
    except TimeoutError:
        raise Problem("request_timeout", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem("invalid_http") from None
    if size > MAX_BODY_BYTES:
        raise Problem("body_too_large", headers=_CLOSE)
    return bytes(data)
