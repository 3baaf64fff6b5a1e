"""The protocol of the client: one request with its tries, and a stream of events; does no I/O.

Separate from `core`, which contains the requests: the pipe of the Model Context Protocol forwards other
messages.
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
# A plan is a generator that yields each `ServerAttempt`, receives its outcome, and returns the result. The
# two shells execute the attempts, one with threads, one with asyncio, and make no decisions.
#
# X1 A request that may have arrived is repeated only if that is safe: a GET, a DELETE, a POST that recalls,
# and one that queues a task, whose Idempotency-Key is the same in every try, so that no task is duplicated.
# X2 After 429 and 503 the request is retried, after Retry-After or a pause that doubles; after other
# responses it is not.
# X3 No try begins after the deadline of its call. A try gets the remaining time, or `GRACE_SECONDS` if that
# is more. A 429 or 503 whose Retry-After is later than the deadline is raised at once.

ATTEMPT_SECONDS: Final = 10.0
"""Seconds of one try; the daemon responds in milliseconds."""

GRACE_SECONDS: Final = 1.0
"""Minimum seconds of a try, so that a wait of 0 s also gets a response."""

FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 2.0
"""Seconds between tries: the first pause, and the maximum after doubling."""

MAX_RETRY_AFTER: Final = 60.0
"""Maximum seconds of a Retry-After that are respected."""

MIN_SECRET: Final = 20
"""Characters of the shortest token of a daemon. A shorter text may be a word of the contract."""

OK: Final = 200
_FIRST_ERROR_STATUS: Final = 400


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        path: percent-encoded, with its query.
        is_repeatable: whether it may be sent again although it may have arrived (X1).
        long_poll: seconds for which the daemon may delay the response on purpose.
        workspace: its workspace, for messages.
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
    """One response.

    Attributes:
        headers: names in lower case.
        secret: a text that is removed from its texts; "": none.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class NoResponse:
    """A missing response.

    Attributes:
        reason: reason, an internal text.
        may_have_arrived: whether the request may have reached the daemon.
        is_unverified: whether the server did not prove that it is the daemon.
    """

    reason: str
    may_have_arrived: bool
    is_unverified: bool = False


@dataclass(frozen=True, slots=True)
class ServerAttempt:
    """The next step of a shell: wait, find the daemon, send the request.

    Attributes:
        pause: seconds to wait first.
        seconds: time limit of the response.
        should_rediscover: whether the daemon may have moved in the meantime.
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
    """Send a request until there is a valid response.

    Args:
        request: the request.
        clock: returns monotonic seconds.
        deadline: on that clock.
        pause: seconds before the first try.

    Raises:
        Unreachable: no response in time.
        Unreachable: the server that accepts the connections does not prove that it is the daemon.
        Problem: the daemon rejected the request.
        BadAnswer: the response does not follow the contract.
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
            ):  # Retry once first, because the daemon may have moved.
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
    """Return `response` if it is a successful response about a workspace.

    Raises:
        Problem: it is an error response.
        BadAnswer: it is neither.
    """
    if response.status >= _FIRST_ERROR_STATUS:
        raise_problem(response, workspace)
    if response.status not in {OK, 202}:
        raise BadAnswer(f"the response has status {response.status}; redirects are not followed")
    return response


def raise_problem(response: HttpResponse, workspace: str = "") -> NoReturn:
    """Raise the error of a failed response about a workspace.

    Raises:
        Problem: the error; its class depends on the code.
        BadAnswer: the response contains no error of this contract.
    """
    try:
        document = read_document(response)
    except BadAnswer:
        raise BadAnswer(f"the response has status {response.status} and contains no reason") from None
    code, message = document.get("code"), document.get("error")
    if not isinstance(code, str) or not isinstance(message, str):
        raise BadAnswer(f"the response has status {response.status} and contains no reason")
    if code == "untrusted_workspace" and workspace:
        message = f"{message} The requested workspace is {workspace}."
    if isinstance(detail := document.get("detail"), str):
        message = f"{message} ({detail})"
    fields = {name: document[name] for name in document.keys() - {"type", "title", "status", "error", "code"}}
    raise choose_error_class(Problem, code)(
        code, message, status=response.status, fields=fields, retry_after=parse_retry_after(response)
    )


def parse_retry_after(response: HttpResponse) -> float | None:
    """Return the seconds of a Retry-After header, at most `MAX_RETRY_AFTER`; None without one in seconds."""
    text = response.headers.get("retry-after", "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return min(float(text), MAX_RETRY_AFTER)


def map_result(plan: Plan[S], read: Callable[[S], T]) -> Plan[T]:
    """Return a plan that converts the result of another one."""
    return read((yield from plan))


def read_document(response: HttpResponse) -> dict[str, Any]:
    """Return the JSON object in a response.

    Raises:
        BadAnswer: the body is not a JSON object.
    """
    document = decode_json(response.body, response.secret)
    if not isinstance(document, dict):
        raise BadAnswer("the response is not a JSON object; check that this is the daemon")
    return document


def decode_json(text: str | bytes, secret: str) -> Any:
    """Return the value of a JSON text with the secret removed from its texts; None if it is not JSON.

    Args:
        text: text from the daemon.
        secret: ignored if it is shorter than `MIN_SECRET`.
    """
    try:
        return _remove_secret(secret, json.loads(text))
    except (ValueError, RecursionError):
        return None


def remove_secret(secret: str, text: str) -> str:
    """Return a text without the secret, as `decode_json`."""
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
# Reads a stream of server-sent events, piece by piece.
#
# S1 The frames do not depend on how the bytes are split, even inside a character or between CR and LF.
# S2 A line and a frame have at most `MAX_FRAME_BYTES`; a longer one raises, and is not stored.
#
# Does no I/O. Source: the HTML standard, 9.2.6, "Interpreting an event stream"; `retry` is ignored, because
# the client chooses its pauses.

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Maximum bytes of one event; the daemon's events contain ids and names, about 300 bytes."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream.

    Attributes:
        id: the newest id of the stream; "" if it sent none.
        event: its type; `message` if it has none.
        data: its lines of data; None: a position mark without data, which is not an event.
    """

    id: str
    event: str
    data: str | None


class FrameParser:
    """The frames of one connection.

    Args:
        last_id: the id after which the connection continues.

    Attributes:
        last_id: id of the newest complete frame; the next connection continues after it.
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
        """Yield the frames that `chunk` completes.

        Raises:
            BadAnswer: a line or a frame is too long (S2).
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
            raise BadAnswer(f"the stream has an event of more than {MAX_FRAME_BYTES} bytes")
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
