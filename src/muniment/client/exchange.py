"""How the daemon is asked, and answers: one request with its tries, and a stream of events; does no I/O.

Apart from `core`, which says what is asked: the pipe of the Model Context Protocol sends messages of others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from muniment.client.errors import BadAnswer, Problem, Unreachable, told_as
from muniment.errors import NOT_NOW

# -- exchange ----------------------------------------------------------------------------------------
#
# One request, its answer, and when it is sent again; without doing any I/O.
#
# A plan is a generator that yields each `Try`, is sent what came of it, and returns the result. The two
# shells carry tries out, one by threads, one by asyncio, and decide nothing.
#
# X1 What may have arrived is sent again only where that changes nothing: a GET, a DELETE, a POST that
# recalls, and one that queues a task, whose one Idempotency-Key goes with every try, so that no task is
# doubled. X2 429 and 503 are asked again after their Retry-After, or after a pause that doubles; no other
# answer is. X3 No try begins past the deadline of its call, and none is given more than what is left of it,
# or `GRACE_SECONDS` where that is more. A "not now" whose time lies past the deadline is raised at once.

TRY_SECONDS: Final = 10.0
"""Seconds of one try; the daemon answers in milliseconds."""

GRACE_SECONDS: Final = 1.0
"""Seconds that a try is given though less is left, so that a wait of 0 s is an answer."""

FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 2.0
"""Seconds between tries: the first pause, and what doubling it leads to at most."""

MAX_RETRY_AFTER: Final = 60.0
"""Seconds of a Retry-After that are obeyed."""

MIN_SECRET: Final = 20
"""Characters of the shortest token of a daemon. What is shorter may be a word of the contract itself."""

OK: Final = 200
_BROKEN_OFF: Final = 400


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        path: percent-encoded, with its query.
        repeatable: whether it may be sent again though it may have arrived (X1).
        hold: seconds for which the daemon may keep it waiting on purpose.
        workspace: that it is about, for messages.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    repeatable: bool = True
    hold: float = 0.0
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """One answer.

    Attributes:
        headers: names in lower case.
        secret: what it must not tell again; "": nothing.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer.

    Attributes:
        why: in words of ours.
        may_have_arrived: whether the request may have reached the daemon.
        is_stranger: whether somebody took the connection who did not prove to be the daemon.
    """

    why: str
    may_have_arrived: bool
    is_stranger: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    """What a shell is to do: wait, look where the daemon is now, send.

    Attributes:
        pause: seconds to wait before.
        seconds: for the answer.
        afresh: whether the daemon may have moved meanwhile.
    """

    ask: Ask
    seconds: float
    pause: float = 0.0
    afresh: bool = False


Outcome = HttpReply | Lost
S = TypeVar("S")
T = TypeVar("T")
Plan = Generator[Try, Outcome, T]


def exchange(ask: Ask, clock: Callable[[], float], deadline: float, pause: float = 0.0) -> Plan[HttpReply]:
    """Send until there is an answer that is one.

    Args:
        ask: the request.
        clock: seconds, monotonic.
        deadline: on that clock.
        pause: seconds before the first try.

    Raises:
        Unreachable: there was none in time.
        Unreachable: nobody who proves to be the daemon takes the connections.
        Problem: it is that the daemon does not do this.
        BadAnswer: it is none of this contract.
    """
    doubling, afresh = FIRST_PAUSE, False
    while True:
        left = deadline - clock() - pause
        seconds = max(min(left, TRY_SECONDS + ask.hold), GRACE_SECONDS)
        outcome = yield Try(ask, seconds, pause, afresh)
        if isinstance(outcome, HttpReply) and outcome.status not in NOT_NOW:
            return checked(outcome, ask.workspace)
        left = deadline - clock()
        if isinstance(outcome, Lost):
            if outcome.is_stranger and afresh:  # Once more first: the daemon may have moved.
                raise Unreachable(outcome.why, is_stranger=True)
            is_over = left <= 0 or (outcome.may_have_arrived and not ask.repeatable)
            if is_over:
                raise Unreachable(
                    outcome.why, may_have_arrived=outcome.may_have_arrived and ask.method != "GET"
                )
            pause = min(doubling, left)
        else:
            told = retry_after(outcome)
            pause = doubling if told is None else told
            if pause >= left:
                raise_problem(outcome)
        afresh = isinstance(outcome, Lost)
        doubling = min(doubling * 2, LAST_PAUSE)


def checked(reply: HttpReply, workspace: str = "") -> HttpReply:
    """`reply`, which is one that carries out what was asked of a workspace.

    Raises:
        Problem: it says why not.
        BadAnswer: it says neither.
    """
    if reply.status >= _BROKEN_OFF:
        raise_problem(reply, workspace)
    if reply.status not in {OK, 202}:
        raise BadAnswer(f"the answer has the status {reply.status}; it is not followed elsewhere")
    return reply


def raise_problem(reply: HttpReply, workspace: str = "") -> NoReturn:
    """Raise what an answer says of why not, about a workspace.

    Raises:
        Problem: a class of it, by the code.
        BadAnswer: it says nothing that this contract knows.
    """
    try:
        said = document_of(reply)
    except BadAnswer:
        raise BadAnswer(f"the answer has the status {reply.status}, and does not say why") from None
    code, message = said.get("code"), said.get("error")
    if not isinstance(code, str) or not isinstance(message, str):
        raise BadAnswer(f"the answer has the status {reply.status}, and does not say why")
    if code == "untrusted_workspace" and workspace:
        message = f"{message} It was asked for {workspace}."
    if isinstance(detail := said.get("detail"), str):
        message = f"{message} ({detail})"
    fields = {name: said[name] for name in said.keys() - {"type", "title", "status", "error", "code"}}
    raise told_as(Problem, code)(
        code, message, status=reply.status, fields=fields, retry_after=retry_after(reply)
    )


def retry_after(reply: HttpReply) -> float | None:
    """Seconds after which to ask again, if the answer says so in seconds; at most `MAX_RETRY_AFTER`."""
    text = reply.headers.get("retry-after", "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return min(float(text), MAX_RETRY_AFTER)


def then(plan: Plan[S], read: Callable[[S], T]) -> Plan[T]:
    """A plan whose result is read from that of another one."""
    return read((yield from plan))


def document_of(reply: HttpReply) -> dict[str, Any]:
    """The JSON object in an answer.

    Raises:
        BadAnswer: there is none.
    """
    document = decoded(reply.body, reply.secret)
    if not isinstance(document, dict):
        raise BadAnswer("the answer is no JSON object; is this the daemon?")
    return document


def decoded(text: str | bytes, secret: str) -> Any:
    """The value of a JSON text, whose texts no longer have the secret in them; None: it is no JSON.

    Args:
        text: from the daemon.
        secret: a shorter one than `MIN_SECRET` is not looked for.
    """
    try:
        return _without(secret, json.loads(text))
    except (ValueError, RecursionError):
        return None


def without(secret: str, text: str) -> str:
    """A text without the secret, as `decoded`."""
    return text.replace(secret, "[token]") if len(secret) >= MIN_SECRET else text


def _without(secret: str, value: Any) -> Any:
    if isinstance(value, str):
        return without(secret, value)
    if isinstance(value, list):
        return [_without(secret, each) for each in value]
    if isinstance(value, dict):
        return {without(secret, name): _without(secret, each) for name, each in value.items()}
    return value


# -- sse ---------------------------------------------------------------------------------------------
#
# Reads a stream of server-sent events, piece by piece, wherever the pieces end.
#
# S1 The frames are the same however the bytes are cut, also inside a character or between CR and LF.
# S2 A line and a frame hold at most `MAX_FRAME_BYTES`; what is more raises, and is not kept.
#
# Does no I/O. Source: the HTML standard, 9.2.6, "Interpreting an event stream"; `retry` is ignored, as the
# client has pauses of its own.

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Bytes of one event; those of the daemon hold ids and names, some 300 bytes."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream.

    Attributes:
        id: the newest one that the stream gave; "" if it gave none.
        event: its type; `message` where it has none.
        data: its lines of data; None: it has none, and is no event; it says where the stream stands.
    """

    id: str
    event: str
    data: str | None


class Frames:
    """The frames of one connection.

    Args:
        last_id: the one that the connection went on from.

    Attributes:
        last_id: that of the newest frame that came as a whole; what a further connection goes on from.
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
        """The frames that `chunk` completes.

        Raises:
            BadAnswer: there is no end to a line or a frame (S2).
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
            if (frame := self._take(line)) is not None:
                yield frame
        self._grow(rest)

    def _grow(self, piece: bytes) -> None:
        if len(self._line) + len(piece) + self._bytes > MAX_FRAME_BYTES:
            raise BadAnswer(f"the stream has an event of more than {MAX_FRAME_BYTES} bytes")
        self._line += piece

    def _take(self, line: bytes) -> Frame | None:
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
                pass  # A comment, such as a heartbeat, or a field that means nothing to us.
        return None

    def _dispatch(self) -> Frame | None:
        data, event, has_moved = self._data, self._event, self._id != self.last_id
        self._data, self._event, self._bytes, self.last_id = [], "", 0, self._id
        if data:
            return Frame(self.last_id, event or "message", "\n".join(data))
        return Frame(self.last_id, event, None) if has_moved else None
