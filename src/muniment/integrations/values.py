"""Convert namespaces, keys and values of a store to folders, file names and entries, and back.

Pure. Separate from `langgraph.py`, because this module needs no SDK.

V1 `decode_name(encode_name(text)) == text` for every text. Different texts have different names, even on a
   file system that ignores case.
V2 A value is returned exactly as it was stored. Its entry is markdown that users can read and that search
   finds. The text under one of `TEXT_KEYS` becomes the body; all other members of the value follow in a block
   of JSON.
V3 An entry that no store wrote is returned as the value `{"content": its text}`. So is an entry whose block
   of JSON was edited and can no longer be read.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from muniment.content.entry import Entry
from muniment.content.titles import RESERVED_STEMS
from muniment.errors import BadArguments
from muniment.kernel.path import FILE_SUFFIX, find_segment_problem, fold, is_canonical_character
from muniment.operations.entries import build_file_text
from muniment.policy.grammar import find_lookalike

TEXT_KEYS: Final = ("content", "text", "memory", "data")
"""Common keys for the main text of a value; the first key that a value has is used."""

KEY: Final = "value"
"""Front matter key that describes the body of an entry.

Its value is one of `TEXT_KEYS` (the body is the text under this key), `json` (the body is a block of JSON),
or both joined by a plus. Without this front matter key, the body is the text under `content`.
"""

_JSON: Final = "json"
_BLOCK_START, _BLOCK_END = "```json\n", "\n```\n"
_EMPTY: Final = "="
_ESCAPED: Final = re.compile("=([0-9a-f]{2}(?:=[0-9a-f]{2})*)")
_MAX_DEPTH: Final = 64
"""Maximum nesting of a value; the parser of JSON would allow more."""

_MAX_BITS: Final = 8_192
"""Maximum bits of an integer; Python cannot parse an integer of more than about 14 000 bits."""

# -- names -------------------------------------------------------------------------------------------


def encode_name(text: str) -> str:
    """Return the name of a file or folder, without suffix, for a key of a store or a label of a namespace.

    Lower-case letters, digits, `-` and `_` stay unchanged. Any other character becomes `=` and two
    hexadecimal digits for each byte of UTF-8: `user:123` becomes `user=3a123`.

    Raises:
        BadArguments: the text contains an unpaired surrogate.
    """
    try:
        name = "".join(char if _is_plain(char) else _escape(char) for char in text) or _EMPTY
        # Adjacent letters that normalisation would combine.
        if find_segment_problem(name + FILE_SUFFIX) is not None:
            name = "".join(char if char.isascii() else _escape(char) for char in name)
        if (
            name in RESERVED_STEMS
            or find_segment_problem(name + FILE_SUFFIX)
            or find_lookalike(name + FILE_SUFFIX)
        ):
            name = _escape(name[0]) + name[1:]  # Reserved by Muniment or Windows, or similar to such a name.
    except UnicodeEncodeError:
        raise BadArguments("a key or label contains a lone surrogate") from None
    return name


def decode_name(name: str) -> str:
    """Return the key or label from which `encode_name` created a name; return other names unchanged."""
    if name == _EMPTY:
        return ""
    try:
        return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].replace("=", "")).decode(), name)
    except UnicodeDecodeError:
        return name


def _is_plain(char: str) -> bool:
    return char in "-_" or (char.isalnum() and fold(char) == char and is_canonical_character(char))


def _escape(char: str) -> str:
    return "".join(f"={byte:02x}" for byte in char.encode())


# -- values ------------------------------------------------------------------------------------------


def create_entry_text(value: Mapping[str, Any]) -> str:
    """Return the text of an entry that contains a value.

    Raises:
        BadArguments: the value cannot be represented in JSON; the message describes the invalid part.
    """
    _check_json(value, "value", 0)
    key = next((each for each in TEXT_KEYS if isinstance(value.get(each), str)), None)
    rest = {name: each for name, each in value.items() if name != key}
    kinds = [*([key] if key else []), *([_JSON] if rest or not key else [])]
    body = str(value[key]) if key else ""
    if _JSON in kinds:
        block = f"{_BLOCK_START}{json.dumps(rest, ensure_ascii=False, indent=1)}{_BLOCK_END}"
        body = f"{body}\n\n{block}" if key else block
    return build_file_text(body, {} if kinds == [TEXT_KEYS[0]] else {KEY: "+".join(kinds)})


def read_value(entry: Entry) -> dict[str, Any]:
    """Return the value that an entry contains; for an entry that no store wrote, `{"content": its text}`."""
    fields = () if entry.front is None else entry.front.fields
    kinds = next((each.first.strip() for each in fields if each.key == KEY), TEXT_KEYS[0]).split("+")
    try:
        text, rest = _split_body(entry.body) if kinds[-1] == _JSON else (entry.body, {})
    except (ValueError, RecursionError):
        return {TEXT_KEYS[0]: entry.body}
    match kinds:
        case ["json"] if not text:
            return rest
        case [key] if key in TEXT_KEYS:
            return {key: text}
        case [key, "json"] if key in TEXT_KEYS and text.endswith("\n\n"):
            return {key: text[:-2], **rest}
        case _:
            return {TEXT_KEYS[0]: entry.body}


def collect_strings(value: object) -> str:
    """Return all keys and strings in a value, one per line and unescaped, so that they can be checked."""
    match value:
        case str():
            return value
        case Mapping():
            return "\n".join([*map(str, value), *map(collect_strings, value.values())])
        case list():
            return "\n".join(map(collect_strings, value))
        case _:
            return ""


def _split_body(body: str) -> tuple[str, dict[str, Any]]:
    """Return the text before the block of JSON at the end of a body, and the object in the block.

    Raises:
        ValueError: the body does not end with such a block.
    """
    start = body.rindex(_BLOCK_START)
    if not body.endswith(_BLOCK_END):
        raise ValueError("text after the block")
    rest = json.loads(body[start + len(_BLOCK_START) : -len(_BLOCK_END)])
    if not isinstance(rest, dict):
        raise ValueError("not an object")  # noqa: TRY004  of a text, not of an argument
    return body[:start], rest


def _check_json(value: object, location: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise BadArguments(f"the value is nested too deeply: at most {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        for name, each in value.items():
            if type(name) is not str:
                raise BadArguments(f"{location} has a key that is not a string")
            _check_scalar(name, f"a key of {location}")
            _check_json(each, f"{location}[{name[:40]!r}]", depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _check_json(each, f"{location}[{number}]", depth + 1)
    else:
        _check_scalar(value, location)


def _check_scalar(value: object, location: str) -> None:
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise BadArguments(f"{location} contains a lone surrogate")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadArguments(f"{location} is not finite, so JSON cannot represent it")
    elif isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise BadArguments(f"{location} is too large: at most {_MAX_BITS} bits")
    elif value is not None:
        raise BadArguments(f"{location} is a {type(value).__name__}, which JSON does not support")


# -- filters -----------------------------------------------------------------------------------------


_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(found: Any, wanted: Any) -> bool:
    """Return whether a value matches a filter.

    The result is the same as in LangGraph's `InMemoryStore`, but comparing a string with a number is not an
    error.

    Args:
        found: the value.
        wanted: the filter: a value, or an object with operators such as `{"$gt": 3}`.

    Raises:
        ValueError: the filter contains an unknown operator.
    """
    if isinstance(wanted, dict):
        if any(str(name).startswith("$") for name in wanted):
            return all(_compare(found, name, each) for name, each in wanted.items())
        return isinstance(found, dict) and all(
            matches(found.get(name), each) for name, each in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(matches, found, wanted))
    return bool(found == wanted)


def _compare(found: Any, name: str, wanted: Any) -> bool:
    if name in {"$eq", "$ne"}:
        return bool(found == wanted) is (name == "$eq")
    if name not in _ORDERS:
        raise ValueError(f"Unsupported operator: {name}")
    try:
        return _ORDERS[name](float(found), float(wanted))
    except (TypeError, ValueError, OverflowError):
        return False
