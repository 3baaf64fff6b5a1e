"""Bytes of a compromised worker: messages of the frame format with errors.

A message is a header (u32 length, big-endian; a JSON object) and, if it announces `"body": n`, frames of at
most 65 536 bytes with n bytes in total. The format is implemented again from its description, so that it does
not share errors with the subject.
"""

from __future__ import annotations

import json
import struct
from typing import Final

from hypothesis import strategies as st

PIECE_BYTES: Final = 65_536
"""Bytes of body in one frame."""

_LENGTHS: Final = (
    0,
    1,
    2,
    3,
    255,
    256,
    65_535,
    65_536,
    65_537,
    262_144,
    262_145,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)

_HEADERS: Final = (
    *(b"{}", b"[]", b"null", b"1", b'"{}"', b"", b" ", b"{", b"}{", b"{}{}", b"{} ", b"\xef\xbb\xbf{}"),
    *(b"\xff{}", b"{}\0"),
    *(b'{"a":NaN}', b'{"a":1e999}', b'{"a":-Infinity}', b'{"a":1,"a":2}', b'{"a":{"b":1,"\\u0062":2}}'),
    b"{'a':1}",
    *(b'{"a":"\\ud800"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\n"}', b'{"a":01}', b'{"a":.5}', b'{"a":1}//'),
    b'{"a":+1}',
    *(b'{"body":0}', b'{"body":-1}', b'{"body":true}', b'{"body":1.0}', b'{"body":"3"}', b'{"body":null}'),
    b'{"body":[]}',
    *(b'{"body":3,"body":4}', b'{"body":99999999999999999999}', b'{"body":1e2}', '{"a":1}'.encode("utf-16")),
    *(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", b'{"a":' * 3_000),
    *(b'{"a":' + b"9" * 4_301 + b"}", b'{"a":"' + b"x" * 70_000 + b'"}'),
)
"""Headers, most of them invalid."""


def frame(data: bytes) -> bytes:
    """Return `data` after its length."""
    return struct.pack("!I", len(data)) + data


def messages() -> st.SearchStrategy[bytes]:
    """Return one valid message."""
    texts = st.text(max_size=8)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    )
    headers = st.dictionaries(texts.filter(lambda key: key != "body"), values, max_size=3)
    sizes = st.sampled_from([0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 150_000])
    bodies = st.binary(max_size=12) | sizes.map(lambda size: b"x" * size)
    return st.builds(_message, headers, bodies, st.booleans())


def frames() -> st.SearchStrategy[bytes]:
    """Return streams: valid and invalid messages, complete or truncated, and junk."""
    known = st.sampled_from(_HEADERS)
    header = st.one_of(known, known, known, st.binary(max_size=8))
    lying = st.builds(
        lambda length, data: struct.pack("!I", length) + data, st.sampled_from(_LENGTHS), header
    )
    piece = st.binary(max_size=6).map(frame)
    announced = st.builds(
        lambda size, pieces: frame(b'{"body":%d}' % size) + b"".join(pieces),
        st.integers(0, 20) | st.sampled_from(_LENGTHS),
        st.lists(piece | lying, max_size=3),
    )
    whole = header.map(frame)
    junk = st.binary(max_size=12) | messages().flatmap(_cut)
    part = st.one_of(messages(), whole, whole, whole, announced, lying, junk)
    return st.lists(part, min_size=1, max_size=3).map(b"".join)


def _message(header: dict[str, object], body: bytes, ascii_only: bool) -> bytes:  # noqa: FBT001 - drawn
    announced = {**header, "body": len(body)} if body else header
    text = json.dumps(announced, ensure_ascii=ascii_only)
    pieces = [body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)]
    return frame(text.encode()) + b"".join(map(frame, pieces))


def _cut(message: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(message)).map(lambda end: message[:end])
