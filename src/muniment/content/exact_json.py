"""JSON read strictly: what comes back means the same to every other reader of the same bytes.

J1 The text is one JSON document and nothing else; no key of an object stands there twice.
J2 Every number is finite, every text can be encoded as UTF-8, and `json.dumps` can write the value again.

Not limited here: how large the text is; its source bounds that. How deep a value may nest is up to the
interpreter, a thousand levels or a few thousand, so whoever walks one does not recurse.

Others read otherwise on purpose. The fence's headers carry names of files that are no UTF-8, and nest less
(`sandbox.fence.wire`). What we wrote ourselves is read plainly, and so is a file of another program, whose
own reader decides what a key that stands there twice means; where either may be damaged, `json_or_none`
reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

_BYTE_ORDER_MARK: Final = "\ufeff"
_WHITE_SPACE: Final = " \t\n\r"


class NotJson(ValueError):
    """A text is not one strict JSON document. The message holds none of the text."""


def parse_json(text: str | bytes, *, marked: bool = True, repair: bool = False) -> Any:
    """The value of `text`: one JSON document, with white space around it.

    Args:
        text: all of it.
        marked: whether a byte order mark may stand in front, as some servers of models put one.
        repair: replace lone surrogates by U+FFFD instead of rejecting the text: clients that cut texts in the
            middle of an emoji send them.

    Raises:
        NotJson: it is anything else, or no UTF-8 (J1, J2).

    Cost: linear; the document is parsed once and written once.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise NotJson("this is not UTF-8") from None
    text = (text.removeprefix(_BYTE_ORDER_MARK) if marked else text).strip(_WHITE_SPACE)
    value, end = first_json(text, 0, repair=repair)
    if end != len(text):
        raise NotJson(f"the JSON document ends at character {end}, but the text goes on")
    return value


def json_or_none(text: str | bytes) -> Any:
    """The value of a JSON text as Python reads it; None: it is no JSON, or too deep to read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def request_id_problem(message: object) -> str | None:
    """Return what is wrong with the id of a JSON-RPC request, or None.

    Args:
        message: the value of a JSON text.

    Source: jsonrpc.org/specification, "Request object"; the Model Context Protocol forbids null as well.
    """
    if not isinstance(message, dict) or "method" not in message or "id" not in message:
        return None
    request_id = message["id"]
    if isinstance(request_id, str | int) and not isinstance(request_id, bool):
        return None
    return "invalid request id: use a text or a whole number"


def first_json(text: str, at: int, *, repair: bool = False) -> tuple[Any, int]:
    """The document that begins exactly at `text[at]`, and where it ends; what follows is not looked at.

    Args:
        text: any.
        at: where to begin.
        repair: as of `parse_json`.

    Raises:
        NotJson: none begins there, or it breaks J1 or J2.

    Cost: linear in the document; where none can be read, in the rest of the text.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
        value = _map_texts(value, whole_text) if repair and "\\u" in text else value
        # Writing it again finds NaN, infinity, and lone surrogates, wherever in the value they are.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        raise NotJson(f"no JSON at character {error.pos}: {error.msg}") from None
    except UnicodeEncodeError:
        raise NotJson("half of a surrogate pair is no character") from None
    except ValueError:
        raise NotJson("a number is not finite, or has too many digits") from None
    except RecursionError:
        raise NotJson("it is nested too deep") from None
    return value, end


def whole_text(text: str) -> str:
    """Return `text` with U+FFFD in place of each lone surrogate, and the character of each pair of them."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain_arguments(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a client in the one form that is checked.

    A member that is null is left out, a number without a fraction is a whole one (5.0 is 5), and U+FFFD
    replaces each lone surrogate, also in objects and lists, down to the `_DEPTH` that requests have.
    """
    return {name: _plain(value, _DEPTH) for name, value in sent.items() if value is not None}


_DEPTH: Final = 2
"""How deep the values of a request nest below it; what is deeper is rejected as it is."""


def mistake_in_words(mistake: Mapping[str, Any]) -> str:
    """Return what is wrong with an argument, of one of pydantic's errors."""
    known = {
        "missing": "is missing",
        "string_type": "is no text",
        "string_unicode": "is no valid Unicode",
        "string_too_long": "is too long",
        "int_type": "is no whole number",
        "bool_type": "is neither true nor false",
        "greater_than_equal": "is too small",
        "less_than_equal": "is too large",
    }
    return known.get(mistake["type"], "is not as the schema says")


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict) and depth:
        return {name: _plain(each, depth - 1) for name, each in value.items() if each is not None}
    if isinstance(value, list) and depth:
        return [_plain(each, depth - 1) for each in value]
    return whole_text(value) if isinstance(value, str) else value


def repaired_json(text: bytes) -> bytes | None:
    """Return a JSON document with U+FFFD in place of lone surrogates, except in its names.

    None if it is not JSON, or a message whose id has one: an answer could not repeat that.
    """
    try:
        found = parse_json(text, repair=True)
    except NotJson:
        return None
    return None if has_broken_id(found) else json.dumps(found).encode()


def has_broken_id(message: object) -> bool:
    """Return whether the id of a JSON-RPC message had a lone surrogate."""
    request_id = message.get("id") if isinstance(message, dict) else None
    return isinstance(request_id, str) and "\ufffd" in request_id


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: _map_texts(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [_map_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Readers differ in which of two equal keys they keep, so there may be none."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotJson("an object has the same key twice")
    return members


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)
