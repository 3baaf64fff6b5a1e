"""Send one request with its retries, and parse a stream of events; this module does no I/O.

It is separate from `core`, which contains the requests, because the forwarder of the Model Context Protocol
(`integrations.mcp.pipe`) uses it for other requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from muniment.client.errors import BadAnswer, Problem, Unreachable, choose_error_class
from muniment.errors import RETRYABLE_STATUSES

# -- exchange ----------------------------------------------------------------------------------------
#
# One request, its response, and its retries; without I/O.
#
# A plan is a generator: it yields each `ServerAttempt`, receives its outcome, and returns the result. The two
# shells (one with threads, one with asyncio) execute the attempts, and make no decisions.
#
# X1 A request that may have arrived is sent again only if that is safe. It is safe for a GET, a DELETE, a
#    POST that recalls, and a POST that queues a task: every attempt has the same Idempotency-Key, so no task
#    is duplicated.
# X2 After status 429 or 503 the request is sent again, after the time in Retry-After or a pause that doubles.
#    After other responses it is not sent again.
# X3 No attempt begins after the deadline of its call. An attempt gets the remaining time, or `GRACE_SECONDS`
#    if that is more. If Retry-After of a 429 or 503 is later than the deadline, the error is raised without
#    waiting.

ATTEMPT_SECONDS: Final = 10.0
"""Maximum seconds of one attempt; the daemon responds in milliseconds."""

GRACE_SECONDS: Final = 1.0
"""Minimum seconds of an attempt, so that even a wait with a timeout of 0 gets a response."""

FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 2.0
"""Seconds between attempts: the first pause, and the maximum after doubling."""

MAX_RETRY_AFTER: Final = 60.0
"""Maximum seconds of a Retry-After header; a longer time is shortened to this."""

MIN_SECRET: Final = 20
"""Characters of the shortest token that a daemon creates. A shorter text is not removed: it may be an
ordinary word.
"""

OK: Final = 200
_FIRST_ERROR_STATUS: Final = 400


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request to the daemon.

    Attributes:
        path: the path of the URL, percent-encoded, with its query string.
        is_repeatable: whether the request may be sent again although it may have arrived (rule X1 above).
        long_poll: seconds for which the daemon may delay its response, because the request asks for that.
        workspace: the workspace of the request, for error messages.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    is_repeatable: bool = True
    long_poll: float = 0.0
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One HTTP response of the daemon.

    Attributes:
        headers: the headers; their names are in lower case.
        secret: the token, which is removed from all texts of the response; empty: nothing is removed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The outcome of an attempt that got no response.

    Attributes:
        reason: a description of the cause, written by this program.
        may_have_arrived: whether the request may have reached the daemon.
        is_unverified: whether the server did not prove that it is the daemon.
    """

    reason: str
    may_have_arrived: bool
    is_unverified: bool = False


@dataclass(frozen=True, slots=True)
class ServerAttempt:
    """The next step that a shell executes: wait, find the daemon, and send the request.

    Attributes:
        request: the request to send.
        seconds: time limit of the attempt, after the pause.
        pause: seconds to wait first.
        should_rediscover: whether to search for the daemon again, because it may have moved.
    """

    request: HttpRequest
    seconds: float
    pause: float = 0.0
    should_rediscover: bool = False


Outcome = HttpResponse | NoResponse
S = TypeVar("S")
T = TypeVar("T")
Plan = Generator[ServerAttempt, Outcome, T]


def exchange(
    request: HttpRequest, clock: Callable[[], float], deadline: float, pause: float = 0.0
) -> Plan[HttpResponse]:
    """Send a request until there is a valid response, and return the response.

    Args:
        request: the request.
        clock: returns monotonic seconds.
        deadline: the time on this clock after which no attempt begins.
        pause: seconds before the first attempt.

    Raises:
        Unreachable: no response came in time, or the server does not prove that it is the daemon.
        Problem: the daemon rejected the request.
        BadAnswer: the response does not follow the contract of the daemon.
    """
    next_pause, should_rediscover = FIRST_PAUSE, False
    while True:
        remaining = deadline - clock() - pause
        seconds = max(min(remaining, ATTEMPT_SECONDS + request.long_poll), GRACE_SECONDS)
        outcome = yield ServerAttempt(request, seconds, pause, should_rediscover)
        if isinstance(outcome, HttpResponse) and outcome.status not in RETRYABLE_STATUSES:
            return check_response(outcome, request.workspace)
        remaining = deadline - clock()
        if isinstance(outcome, NoResponse):
            if (
                outcome.is_unverified and should_rediscover
            ):  # At the first time, search again and retry, because the daemon may have moved.
                raise Unreachable(outcome.reason, is_unverified=True)
            is_over = remaining <= 0 or (outcome.may_have_arrived and not request.is_repeatable)
            if is_over:
                raise Unreachable(
                    outcome.reason, may_have_arrived=outcome.may_have_arrived and request.method != "GET"
                )
            pause = min(next_pause, remaining)
        else:
            requested_pause = parse_retry_after(outcome)
            pause = next_pause if requested_pause is None else requested_pause
            if pause >= remaining:
                raise_problem(outcome)
        should_rediscover = isinstance(outcome, NoResponse)
        next_pause = min(next_pause * 2, LAST_PAUSE)


def check_response(response: HttpResponse, workspace: str = "") -> HttpResponse:
    """Return `response` if its status is 200 or 202.

    Args:
        response: the response.
        workspace: the workspace of the request, for the error message.

    Raises:
        Problem: the response is an error of the daemon.
        BadAnswer: the response has another status, or is an error that the daemon does not send.
    """
    if response.status >= _FIRST_ERROR_STATUS:
        raise_problem(response, workspace)
    if response.status not in {OK, 202}:
        raise BadAnswer(
            f"the response has status {response.status}; expected 200 or 202; check the address: "
            "redirects are not followed"
        )
    return response


def raise_problem(response: HttpResponse, workspace: str = "") -> NoReturn:
    """Raise the error that a failed response contains.

    Args:
        response: a response with a status of 400 or higher.
        workspace: the workspace of the request, for the error message.

    Raises:
        Problem: the error; the class of the exception depends on its code.
        BadAnswer: the response does not contain an error in the format of the daemon.
    """
    try:
        document = read_document(response)
    except BadAnswer:
        raise BadAnswer(f"status {response.status}, and the response is not an error of the daemon") from None
    code, message = document.get("code"), document.get("error")
    if not isinstance(code, str) or not isinstance(message, str):
        raise BadAnswer(f"status {response.status}, and the response is not an error of the daemon")
    if code == "untrusted_workspace" and workspace:
        message = f"{message} The requested workspace is {workspace}."
    if isinstance(detail := document.get("detail"), str):
        message = f"{message} ({detail})"
    fields = {name: document[name] for name in document.keys() - {"type", "title", "status", "error", "code"}}
    raise choose_error_class(Problem, code)(
        code, message, status=response.status, fields=fields, retry_after=parse_retry_after(response)
    )


def parse_retry_after(response: HttpResponse) -> float | None:
    """Return the seconds in the header Retry-After, at most `MAX_RETRY_AFTER`.

    Return None if the header is missing, or is not a number of seconds.
    """
    text = response.headers.get("retry-after", "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return min(float(text), MAX_RETRY_AFTER)


def map_result(plan: Plan[S], read: Callable[[S], T]) -> Plan[T]:
    """Return a plan that executes `plan` and converts its result with `read`."""
    return read((yield from plan))


def read_document(response: HttpResponse) -> dict[str, Any]:
    """Return the JSON object in the body of a response.

    Raises:
        BadAnswer: the body is not a JSON object.
    """
    document = decode_json(response.body, response.secret)
    if not isinstance(document, dict):
        raise BadAnswer("the response is not a JSON object; check that this is the daemon")
    return document


def decode_json(text: str | bytes, secret: str) -> Any:
    """Decode a JSON text, and replace the token in all strings of the value by `[token]`.

    Args:
        text: a text from the daemon.
        secret: the token; not replaced if it is shorter than `MIN_SECRET`.

    Returns:
        The decoded value; None if the text is not valid JSON.
    """
    try:
        return _remove_secret(secret, json.loads(text))
    except (ValueError, RecursionError):
        return None


def remove_secret(secret: str, text: str) -> str:
    """Return `text` with the token replaced by `[token]`, unless the token is shorter than `MIN_SECRET`."""
    return text.replace(secret, "[token]") if len(secret) >= MIN_SECRET else text


def _remove_secret(secret: str, value: Any) -> Any:
    if isinstance(value, str):
        return remove_secret(secret, value)
    if isinstance(value, list):
        return [_remove_secret(secret, each) for each in value]
    if isinstance(value, dict):
        return {remove_secret(secret, name): _remove_secret(secret, each) for name, each in value.items()}
    return value


# -- sse ---------------------------------------------------------------------------------------------
#
# Reads a stream of server-sent events, piece by piece; without I/O.
#
# S1 The result does not depend on how the bytes are split into pieces, even inside a character or between CR
#    and LF.
# S2 A line and a frame have at most `MAX_FRAME_BYTES`; a longer one raises an error, and is not stored.
#
# Source: the HTML standard, 9.2.6, "Interpreting an event stream". The field `retry` is ignored, because the
# client chooses its pauses itself.

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Maximum bytes of one event; an event of the daemon contains ids and names, and has about 300 bytes."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One complete message of an event stream.

    Attributes:
        id: the newest id that the stream has sent; empty: it has sent none.
        event: the type of the message; `message` if the stream did not name one.
        data: the text of the message. None: the message only reports a new id, and is not an event.
    """

    id: str
    event: str
    data: str | None


class FrameParser:
    """Parses the bytes of one connection into frames.

    Args:
        last_id: the id after which the connection continues.

    Attributes:
        last_id: the id of the newest complete frame, after which the next connection must continue.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = self._id = last_id
        self._line = bytearray()
        self._after_cr = False
        self._is_first = True
        self._event = ""
        self._data: list[str] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Add a piece of the stream, and yield the frames that are now complete.

        Raises:
            BadAnswer: a line or a frame has more than `MAX_FRAME_BYTES`.
        """
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        *lines, rest = _LINE_END.split(chunk)
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        for end in lines:
            self._grow(end)
            line = bytes(self._line)
            self._line.clear()
            if (frame := self._parse_line(line)) is not None:
                yield frame
        self._grow(rest)

    def _grow(self, piece: bytes) -> None:
        if len(self._line) + len(piece) + self._bytes > MAX_FRAME_BYTES:
            raise BadAnswer(f"the event stream contains an event of more than {MAX_FRAME_BYTES} bytes")
        self._line += piece

    def _parse_line(self, line: bytes) -> Frame | None:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")
        match name:
            case b"data":
                self._data.append(text)
                self._bytes += len(line) + 1
            case b"event":
                self._event = text
            case b"id" if "\0" not in text:
                self._id = text
            case _:
                pass  # A comment, such as a heartbeat, or an unknown field.
        return None

    def _dispatch(self) -> Frame | None:
        data, event, has_moved = self._data, self._event, self._id != self.last_id
        self._data, self._event, self._bytes, self.last_id = [], "", 0, self._id
        if data:
            return Frame(self.last_id, event or "message", "\n".join(data))
        return Frame(self.last_id, event, None) if has_moved else None
