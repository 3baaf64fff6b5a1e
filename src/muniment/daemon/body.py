"""Reads the body of a request: JSON, within bounds of size and time, and without two meanings.

What another parser might read differently is refused: a key that is there twice, half of a surrogate pair, NaN
and infinities, bytes that are not UTF-8.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, NoReturn

from starlette.requests import ClientDisconnect, Request

from muniment.daemon.contract import MAX_BODY_BYTES
from muniment.daemon.problems import Problem

BODY_SECONDS: Final = 15.0
"""Seconds for a body to arrive in; 512 KiB take 4 s over a line of 1 Mbit/s."""


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries; an empty body is an empty one.

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
        found = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refuse)
        json.dumps(found, ensure_ascii=False).encode()  # Fails on half of a surrogate pair.
    except (ValueError, RecursionError):
        raise Problem("invalid_json") from None
    if not isinstance(found, dict):
        raise Problem("invalid_json")
    return found


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        raise Problem("body_too_large", headers={"Connection": "close"})
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for block in request.stream():
                data += block
                if len(data) > MAX_BODY_BYTES:
                    raise Problem("body_too_large", headers={"Connection": "close"})
    except TimeoutError:
        raise Problem("request_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise Problem("invalid_http") from None
    return bytes(data)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
