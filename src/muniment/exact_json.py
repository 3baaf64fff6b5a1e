"""JSON read strictly: what comes back means the same to every other reader of the same bytes.

J1 The text is one JSON document and nothing else; no key of an object stands there twice.
J2 Every number is finite, every text can be encoded as UTF-8, and `json.dumps` can write the value again.

Not limited here: how large the text is; its source bounds that. How deep a value may nest is up to the
interpreter, a thousand levels or a few thousand, so whoever walks one does not recurse.

Others read otherwise on purpose. The fence's headers carry names of files that are no UTF-8, and nest less
(`fence.wire`). What we wrote ourselves is read plainly, and so is a file of another program, whose own reader
decides what a key that stands there twice means; where either may be damaged, `json_or_none` reads it.
"""

from __future__ import annotations

import json
from typing import Any, Final

_BYTE_ORDER_MARK: Final = "\ufeff"
_WHITE_SPACE: Final = " \t\n\r"


class NotJson(ValueError):
    """A text is not one strict JSON document. The message holds none of the text."""


def parse_json(text: str | bytes, *, marked: bool = True) -> Any:
    """The value of `text`: one JSON document, with white space around it.

    Args:
        text: all of it.
        marked: whether a byte order mark may stand in front, as some servers of models put one.

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
    value, end = first_json(text, 0)
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


def first_json(text: str, at: int) -> tuple[Any, int]:
    """The document that begins exactly at `text[at]`, and where it ends; what follows is not looked at.

    Raises:
        NotJson: none begins there, or it breaks J1 or J2.

    Cost: linear in the document; where none can be read, in the rest of the text.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Readers differ in which of two equal keys they keep, so there may be none."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotJson("an object has the same key twice")
    return members


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)
