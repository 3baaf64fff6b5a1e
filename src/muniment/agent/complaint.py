"""Find the reason why a server returned no completion, and the reaction that may help.

The result depends only on the status and the body of the response. Servers report the same problem in
different words, so the words are searched if the status alone does not decide.

Source: RFC 9110 for the statuses; error texts of the OpenAI API, llama.cpp, vLLM and Ollama.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

from muniment.content.exact_json import NotJson, parse_json
from muniment.content.gates import clean_foreign_line

Kind = Literal["overflow", "limit", "form", "failed", "busy", "final"]
"""The next step after a problem.

`overflow`: send fewer messages. `limit`: use another limit of tokens. `form`: use another form. `failed`:
send the same request again, and then use another form. `busy`: send the same request again. `final`: stop.
"""

MAX_MESSAGE_CHARS: Final = 200
"""Maximum characters of the server's text in an error message."""

_OVERFLOW: Final = re.compile(
    r"context[ _-]?(?:length|size|window)|maximum context|too many tokens|(?:prompt|input) is too long",
    re.IGNORECASE,
)
_LIMIT: Final = re.compile(r"max_(?:completion_)?tokens", re.IGNORECASE)
_OF_FORM: Final = re.compile(r"tool|jinja|template|grammar|json_schema|response_format", re.IGNORECASE)
_KEYS: Final = "--api-key-file FILE, or MUNIMENT_API_KEY"
_BUSY: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
_FORM: Final = frozenset({400, 415, 422, 501})


@dataclass(frozen=True, slots=True)
class Complaint:
    """The reason why a response contains no completion.

    Attributes:
        kind: the next step that may help.
        message: the message for the operator, on one line.
        wait: seconds that the server requests to wait; 0: none requested.
    """

    kind: Kind
    message: str
    wait: float = 0.0


def parse_complaint(status: int, content: bytes, retry_after: str = "", *, has_key: bool = True) -> Complaint:
    """Return the problem that a response with a status other than 2xx reports.

    Args:
        status: the HTTP status.
        content: the body.
        retry_after: the value of the header Retry-After; empty: missing.
        has_key: whether the request contained a key.
    """
    if status == 401 and not has_key:  # noqa: PLR2004  RFC 9110, 15.5.2
        return Complaint("final", f"the server requires a key (401), and none was sent; pass one: {_KEYS}")
    return _classify(status, _parse_error(content), retry_after)


def find_complaint(content: bytes) -> Complaint | None:
    """Return the problem that a response with status 2xx reports in its body, or None without one.

    The code in the body is used as the status if it is an HTTP status; otherwise 500.
    """
    error = _parse_error(content)
    code = error.get("code")
    status = code if isinstance(code, int) and code in range(400, 600) else 500
    return _classify(status, error, "") if error else None


def _classify(status: int, error: Mapping[str, Any], retry_after: str) -> Complaint:
    server_text = str(error.get("message") or "").rstrip(". ")
    searched_text = f"{server_text} {error.get('code') or ''} {error.get('type') or ''}"
    message = f"the server returned {status}" + (f": {_shorten(server_text)}" if server_text else "")
    is_of_form = status in _FORM or (status in {404, 500} and _OF_FORM.search(searched_text))
    match status:
        case 401:
            return Complaint("final", f"the server rejected the key (401); pass a valid one: {_KEYS}")
        case 404 if not is_of_form:
            return Complaint("final", f"{message}; check the model's name, and that the base URL ends in /v1")
        case 413:
            return Complaint("overflow", message)
        case _ if status in range(300, 400):
            return Complaint(
                "final",
                f"the server returned a redirect ({status}), which is never followed; "
                "use the address of the server itself as base URL",
            )
    if status in {*_FORM, 500} and _OVERFLOW.search(searched_text):
        return Complaint("overflow", message)
    if status in _FORM and _LIMIT.search(searched_text):
        return Complaint("limit", message)
    if is_of_form:
        return Complaint("form", message)
    if status in _BUSY:
        return Complaint("busy", message, _parse_retry_after(retry_after))
    if status >= 500:  # noqa: PLR2004  RFC 9110, 15.6
        return Complaint("failed", message, _parse_retry_after(retry_after))
    return Complaint("final", message)


def _parse_error(content: bytes) -> dict[str, Any]:
    """Return the error in a body as a dictionary, with its `message` if it has one.

    The dictionary is empty if the body contains no error.
    """
    try:
        document = parse_json(content)
    except NotJson:
        return {}
    match document:
        case {"error": dict(error)}:
            return error
        case {"error": str(message)}:
            return {"message": message}
        case {"message": str()}:
            return dict(document)
        case {"detail": str(message)}:
            return {"message": message}
        case _:
            return {}


def _shorten(text: str) -> str:
    line = clean_foreign_line(text[: 4 * MAX_MESSAGE_CHARS])
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[:MAX_MESSAGE_CHARS]}…"


def _parse_retry_after(retry_after: str) -> float:
    """Convert the header Retry-After, a number or a date, to seconds; anything else becomes 0."""
    with suppress(ValueError, OverflowError):
        return max(0.0, float(int(retry_after)))
    with suppress(ValueError, OverflowError, TypeError):
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    return 0.0
