"""Read JSON strictly, so that every other reader of the same bytes gets the same value.

J1 The text is exactly one JSON document; no object has a key twice.
J2 Every number is finite, every string can be encoded as UTF-8, and `json.dumps` can write the value again.

Not limited here: the size of the text, which its source limits. The interpreter limits the nesting to a
thousand levels or a few thousand, so code that walks a value does not recurse.

Some modules read JSON differently on purpose. The headers of the fence contain file names that are not UTF-8,
and nest less (`sandbox.fence.wire`). Data written by this program is read with plain `json`. A file of
another program is read plainly too: the reader of that program decides which duplicate key counts. If such
data may be damaged, `read_json_or_none` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

_BYTE_ORDER_MARK: Final = "\ufeff"
_WHITE_SPACE: Final = " \t\n\r"


class NotJson(ValueError):
    """The text is not one strict JSON document. The message of this error does not contain the text."""


def parse_json(text: str | bytes, *, allow_byte_order_mark: bool = True, repair: bool = False) -> Any:
    """Return the value of `text`, which must be one strict JSON document, with or without outer spaces.

    Args:
        text: the complete text.
        allow_byte_order_mark: whether to allow a byte order mark at the start; some model servers send one.
        repair: whether to replace lone surrogates by U+FFFD instead of rejecting the text. Clients that cut
            texts in the middle of an emoji send them.

    Raises:
        NotJson: the text is not exactly one document or not UTF-8, has a duplicate key, or has a value that
            JSON cannot express.

    Cost: linear; the document is parsed once and written once.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise NotJson("the text is not UTF-8") from None
    text = (text.removeprefix(_BYTE_ORDER_MARK) if allow_byte_order_mark else text).strip(_WHITE_SPACE)
    value, end = parse_first_json(text, 0, repair=repair)
    if end != len(text):
        raise NotJson(f"the JSON document ends at character {end}, but more text follows")
    return value


def read_json_or_none(text: str | bytes) -> Any:
    """Return the value of a JSON text by Python's `json`; None if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def find_request_id_problem(message: object) -> str | None:
    """Return the problem with the id of a JSON-RPC request; None if the id is valid or missing.

    Args:
        message: the parsed JSON message.

    Source: jsonrpc.org/specification, "Request object"; the Model Context Protocol also forbids null.
    """
    if not isinstance(message, dict) or "method" not in message or "id" not in message:
        return None
    request_id = message["id"]
    if isinstance(request_id, str | int) and not isinstance(request_id, bool):
        return None
    return "invalid request id: use a string or a whole number"


def parse_first_json(text: str, start: int, *, repair: bool = False) -> tuple[Any, int]:
    """Return the strict JSON document that begins exactly at `text[start]`, and the position of its end.

    Args:
        text: any text.
        start: the start position. Text after the document is not read.
        repair: as in `parse_json`.

    Raises:
        NotJson: no document begins at `start`, has a duplicate key, or has a value that JSON cannot express.

    Cost: linear in the document; if none can be read, linear in the rest of the text.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
        value = _map_texts(value, replace_lone_surrogates) if repair and "\\u" in text else value
        # Writing the value again finds NaN, infinity and lone surrogates anywhere in it.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        raise NotJson(f"no JSON at character {error.pos}: {error.msg}") from None
    except UnicodeEncodeError:
        raise NotJson("a string contains a lone surrogate") from None
    except ValueError:
        raise NotJson("a number is not finite, or has too many digits") from None
    except RecursionError:
        raise NotJson("the document is nested too deeply") from None
    return value, end


def replace_lone_surrogates(text: str) -> str:
    """Return `text` with U+FFFD in place of each lone surrogate; pairs of surrogates become one character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def normalize_arguments(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a client sent, in one normal form for the checks.

    Null members are dropped, and a number without a fraction becomes an integer (5.0 is 5). U+FFFD replaces
    each lone surrogate. Objects and lists are changed down to `_DEPTH` levels.
    """
    return {name: _normalize_value(value, _DEPTH) for name, value in sent.items() if value is not None}


_DEPTH: Final = 2
"""Levels of nesting that are normalized. Deeper values stay unchanged, and the checks reject them."""


def describe_mistake(mistake: Mapping[str, Any]) -> str:
    """Return a short text that describes what pydantic found wrong with an argument."""
    known = {
        "missing": "is missing",
        "string_type": "is not a string",
        "string_unicode": "is not valid Unicode",
        "string_too_long": "is too long",
        "int_type": "is not a whole number",
        "bool_type": "is neither true nor false",
        "greater_than_equal": "is too small",
        "less_than_equal": "is too large",
    }
    return known.get(mistake["type"], "does not match the schema")


def _normalize_value(value: Any, depth: int) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict) and depth:
        return {name: _normalize_value(each, depth - 1) for name, each in value.items() if each is not None}
    if isinstance(value, list) and depth:
        return [_normalize_value(each, depth - 1) for each in value]
    return replace_lone_surrogates(value) if isinstance(value, str) else value


def repair_json(text: bytes) -> bytes | None:
    """Return a JSON document with U+FFFD in place of lone surrogates, except in its member names.

    Return None if the text is not JSON, or if it is a message whose id has a lone surrogate: a response could
    not repeat that id.
    """
    try:
        found = parse_json(text, repair=True)
    except NotJson:
        return None
    return None if has_broken_id(found) else json.dumps(found).encode()


def has_broken_id(message: object) -> bool:
    """Return whether the id of a JSON-RPC message had a lone surrogate, which U+FFFD has replaced."""
    request_id = message.get("id") if isinstance(message, dict) else None
    return isinstance(request_id, str) and "\ufffd" in request_id


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: _map_texts(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [_map_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object with these members; reject duplicate keys, because readers treat them differently."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotJson("an object has the same key twice")
    return members


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_build_object)
