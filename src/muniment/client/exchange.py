"""One request, its answer, and when it is sent again; without doing any I/O.

A plan is a generator that yields each `Try`, is sent what came of it, and returns the result. The two shells
carry tries out, one by threads, one by asyncio, and decide nothing.

X1 What may have arrived is sent again only where that changes nothing: a GET, a DELETE, a POST that recalls,
   and one that queues a task, whose one Idempotency-Key goes with every try, so that no task is doubled.
X2 429 and 503 are asked again after their Retry-After, or after a pause that doubles; no other answer is.
X3 No try begins past the deadline of its call, and none is given more than what is left of it, or
   `GRACE_SECONDS` where that is more. A "not now" whose time lies past the deadline is raised at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from muniment.client.errors import PROBLEMS, BadAnswer, Problem, Unproven, Unreachable, UntrustedWorkspace

TRY_SECONDS: Final = 10.0
"""Seconds of one try; the daemon answers in milliseconds."""

GRACE_SECONDS: Final = 1.0
"""Seconds that a try is given though less is left, so that a wait of 0 s is an answer."""

FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 2.0
"""Seconds between tries: the first pause, and what doubling it leads to at most."""

MAX_RETRY_AFTER: Final = 60.0
"""Seconds of a Retry-After that are obeyed."""

NOT_NOW: Final = frozenset({429, 503})
"""Statuses of answers that may be others soon."""

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
class Reply:
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


Outcome = Reply | Lost
S = TypeVar("S")
T = TypeVar("T")
Plan = Generator[Try, Outcome, T]


def exchange(ask: Ask, clock: Callable[[], float], deadline: float, pause: float = 0.0) -> Plan[Reply]:
    """Send until there is an answer that is one.

    Args:
        ask: the request.
        clock: seconds, monotonic.
        deadline: on that clock.
        pause: seconds before the first try.

    Raises:
        Unreachable: there was none in time.
        Unproven: somebody else takes the connections.
        Problem: it is that the daemon does not do this.
        BadAnswer: it is none of this contract.
    """
    doubling, afresh = FIRST_PAUSE, False
    while True:
        left = deadline - clock() - pause
        seconds = max(min(left, TRY_SECONDS + ask.hold), GRACE_SECONDS)
        outcome = yield Try(ask, seconds, pause, afresh)
        if isinstance(outcome, Reply) and outcome.status not in NOT_NOW:
            return checked(outcome, ask.workspace)
        left = deadline - clock()
        if isinstance(outcome, Lost):
            if outcome.is_stranger and afresh:  # Once more first: the daemon may have moved.
                raise Unproven(outcome.why)
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


def checked(reply: Reply, workspace: str = "") -> Reply:
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


def raise_problem(reply: Reply, workspace: str = "") -> NoReturn:
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
    if code in UntrustedWorkspace.codes and workspace:
        message = f"{message} It was asked for {workspace}."
    fields = {name: said[name] for name in said.keys() - {"type", "title", "status", "error", "code"}}
    raise PROBLEMS.get(code, Problem)(
        code, message, status=reply.status, fields=fields, retry_after=retry_after(reply)
    )


def retry_after(reply: Reply) -> float | None:
    """Seconds after which to ask again, if the answer says so in seconds; at most `MAX_RETRY_AFTER`."""
    text = reply.headers.get("retry-after", "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return min(float(text), MAX_RETRY_AFTER)


def then(plan: Plan[S], read: Callable[[S], T]) -> Plan[T]:
    """A plan whose result is read from that of another one."""
    return read((yield from plan))


def document_of(reply: Reply) -> dict[str, Any]:
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
