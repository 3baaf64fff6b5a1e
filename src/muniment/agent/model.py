"""The interface between the agent loop and its models: one protocol with one method.

A model is stateless for the loop: the `ModelRequest` contains everything that it may know about a run. A
language model reads `messages`; the rule writer reads `brief` and the results of its earlier calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

from muniment.content.expiry import End
from muniment.content.gates import escape_invisible
from muniment.errors import Cancelled, ConfigInvalid, DeadlineExceeded, MunimentError, printable
from muniment.kernel.cancel import CancelToken
from muniment.kernel.decide import Limits
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.types import Turn, Usage

# -- model -------------------------------------------------------------------------------------------

ProtocolName = Literal["auto", "tools", "json", "text", "decide"]

PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)
"""The protocols between a run and a language model; `auto` detects what the server supports."""

OnModelFailure = Literal["rules", "fail"]
"""The reaction to a failed model: the rules do the work, or the task fails."""

MAX_MODEL_CHARS: Final = 200
"""Characters of a model's name; the name is part of results, entries and terminal output."""


def check_model_name(name: str) -> str:
    """Return `name` if it is valid: every character is visible, so that every gate accepts an entry with it.

    Raises:
        ConfigInvalid: it does not have 1 to `MAX_MODEL_CHARS` printable characters, or has a space at either
            end.
    """
    is_fully_visible = name.isprintable() and name == name.strip() and name == escape_invisible(name)
    if not (1 <= len(name) <= MAX_MODEL_CHARS and is_fully_visible):
        raise ConfigInvalid(
            f"invalid model name: use 1 to {MAX_MODEL_CHARS} printable characters, "
            "without a space at either end"
        )
    return name


def check_protocol(protocol: str) -> ProtocolName:
    """Return `protocol` if it is one of `PROTOCOLS`.

    Raises:
        ConfigInvalid: it is not.
    """
    known = next((each for each in PROTOCOLS if each == protocol), None)
    if known is None:
        choices = f"{', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}"
        raise ConfigInvalid(f"unknown protocol {printable(protocol)!r}; use one of {choices}")
    return known


def check_on_model_failure(value: str) -> OnModelFailure:
    """Return `value` if it is a valid reaction to a failed model.

    Raises:
        ConfigInvalid: it is not.
    """
    known: OnModelFailure | None = next((each for each in get_args(OnModelFailure) if each == value), None)
    if known is None:
        raise ConfigInvalid(f"unknown on_model_failure {printable(value)!r}; use rules or fail")
    return known


@dataclass(frozen=True, slots=True)
class ScopeBrief:
    """A scope as the model sees it: its name, and whether this run may write in it."""

    name: Scope
    writable: bool


@dataclass(frozen=True, slots=True)
class RelatedEntry:
    """An entry of the memory that is similar to the fact of a run.

    Attributes:
        id: of its provenance; empty: it has none.
        path: its logical path.
        digest: of its file, on which the run depends.
        trust: of the entry.
        age: the time since it was written, in words.
        type: one of `TYPES`, or None.
        title: one line.
        body: its text.
        statements: its independent statements, see `content.words.list_statements`, if the requester may
            rely on them.
        is_replaceable: whether the fact may replace it: the requester has at least its trust, and the policy
            lets the run change it.
        is_visible: whether a language model sees it; text of agents and external authors could manipulate the
            model.
    """

    id: str
    path: CanonicalPath
    digest: Digest
    trust: Trust
    age: str
    type: str | None
    title: str
    body: str
    statements: frozenset[str]
    is_replaceable: bool
    is_visible: bool


@dataclass(frozen=True, slots=True)
class Brief:
    """The job of a run, as data.

    Attributes:
        fact: the text to remember, trimmed; 1 to `MAX_FACT_BYTES` bytes of UTF-8.
        scopes: the scopes of the run, in the order of the policy.
        context: the data that the run may see.
        related: similar entries, the nearest first; they count as read by the run.
        ends: when the fact ends; None: never.
        is_single_entry: store the fact as one entry, even if it is a list of facts.
    """

    fact: str
    scopes: tuple[ScopeBrief, ...]
    context: ContextMode
    related: tuple[RelatedEntry, ...] = ()
    ends: End | None = None
    is_single_entry: bool = False

    @property
    def writable(self) -> tuple[Scope, ...]:
        """Return the scopes in which the run may write."""
        return tuple(scope.name for scope in self.scopes if scope.writable)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One requested call of a model. `arguments` is the JSON value that the model sent, unchecked."""

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The instructions of the run."""

    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The job, or a reminder from the loop."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The model's reply of an earlier turn."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The outcome of one call.

    Attributes:
        call_id: the `ToolCall.id` of the call.
        verdict: whether the call was allowed, denied or invalid.
        code: the outcome's stable code, None if allowed.
        text: the text for the model.
    """

    call_id: str
    verdict: Literal["allow", "deny", "error"]
    code: str | None
    text: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as offered to a model: its name, a sentence, and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call.

    Attributes:
        tools: the available tools; empty on the last turn, which must end in words.
        turns_left: including this one.
        seconds_left: until the run's deadline; the model must reply or raise within this time.
        cancel: the cancellation of the caller, for models that wait; None: it cannot be cancelled.
        token: random text of the run, unknown to the authors of the data inside its fences.
        schema: name and JSON Schema of the reply's text, for a query without tools; None: the model acts, or
            writes free text.
    """

    brief: Brief
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    seconds_left: float
    turns_left: int = 6
    cancel: CancelToken | None = None
    token: str = ""
    schema: tuple[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model: words, calls, or both (then the calls count). With neither it is invalid.

    Attributes:
        decided_by: the author of the decision about a fact, if that was not the model.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    decided_by: str = ""


class ModelError(Exception):
    """The model cannot reply; the run ends as `model_error`. The message is for the operator.

    Attributes:
        has_answered: it replied, but not with the requested content; another query may succeed.
    """

    def __init__(self, message: str = "", *, has_answered: bool = False) -> None:
        super().__init__(message)
        self.has_answered = has_answered


class ContextOverflow(ModelError):
    """The messages are too long for the model; with fewer of them it may reply."""


class Model(Protocol):
    """Anything that can drive a run.

    Attributes:
        name: the decider that results report: `rules`, or the model's name.
    """

    name: str

    def respond(self, request: ModelRequest) -> Reply:
        """Reply to one turn.

        Raises:
            ModelError: the model cannot reply.
            ContextOverflow: it could with fewer messages; the loop drops tool results and retries once.
            DeadlineExceeded: `seconds_left` passed first.
            Cancelled: the caller cancelled first.
        """
        ...


# -- doubled braces ----------------------------------------------------------------------------------


def undouble_braces(text: str, start: int) -> str:
    """Return `text` from `start` on, with `{{` and `}}` replaced by `{` and `}`.

    Some models write braces twice, because templates do. The first character in a JSON object is never a
    brace. So a brace directly after an opening brace is a duplicate, and so is its closing brace. Braces in
    strings are not changed.

    Cost: linear.
    """
    pieces: list[str] = []
    is_doubled: list[bool] = []
    position = start
    while (token := _BRACE_OR_STRING.search(text, position)) is not None:
        pieces.append(text[position : token.start()])
        position = token.end()
        match token[0]:
            case "{":
                is_doubled.append(text.startswith("{", position))
                position += is_doubled[-1]
            case "}" if is_doubled:
                position += is_doubled.pop() and text.startswith("}", position)
        pieces.append(token[0])
    return "".join([*pieces, text[position:]])


_BRACE_OR_STRING: Final = re.compile(r'[{}]|"(?:[^"\\]|\\.)*+"', re.DOTALL)


# -- budget ------------------------------------------------------------------------------------------
#
# The limits of one task over all its attempts: turns, tool calls, and one monotonic deadline.


class Budget:
    """The remaining turns, calls and time of a task; a retry after a conflict uses the rest.

    Args:
        limits: of the effective policy.
        cancel: the cancellation of the caller.
        clock: monotonic seconds.

    Attributes:
        timeline: the past turns, in order, over all attempts.
    """

    def __init__(self, limits: Limits, cancel: CancelToken, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self.cancel = cancel
        self.deadline = self._started + limits.seconds
        self.turns_left = limits.turns
        self.calls_left = limits.tool_calls
        self.turns = 0
        self.timeline: list[Turn] = []

    @property
    def seconds(self) -> float:
        """Return the seconds since the task started."""
        return self._clock() - self._started

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the deadline, never negative."""
        return max(0.0, self.deadline - self._clock())

    def check(self) -> None:
        """Raise if the task may not continue.

        Raises:
            Cancelled: the caller cancelled it.
            DeadlineExceeded: the deadline has passed.
        """
        if self.cancel.is_set():
            raise Cancelled("nothing was written")
        if self._clock() >= self.deadline:
            raise DeadlineExceeded("the task exceeded its time limit; nothing was written")

    def renew(self, limits: Limits) -> None:
        """Reset turns and calls to those of a complete run; the deadline stays."""
        self.turns_left, self.calls_left = limits.turns, limits.tool_calls

    def spend_turn(self) -> bool:
        """Use a turn, and return whether one was left."""
        if self.turns_left == 0:
            return False
        self.turns_left -= 1
        self.turns += 1
        return True

    def spend_call(self) -> bool:
        """Use a tool call, and return whether one was left."""
        if self.calls_left == 0:
            return False
        self.calls_left -= 1
        return True

    @contextmanager
    def record_turn(self) -> Iterator[list[Usage]]:
        """Add a turn to the timeline: the seconds of the block, and the usage that it appends to the list.

        Raises:
            DeadlineExceeded, Cancelled: as `check`, after the block.
        """
        started, usage = self.seconds, list[Usage]()
        try:
            yield usage
        finally:
            self.timeline.append(Turn(self.seconds - started, *usage or [Usage()]))
        self.check()


def query_model(
    model: Model,
    budget: Budget,
    brief: Brief,
    messages: Sequence[Message],
    token: str,
    *,
    tools: tuple[ToolSpec, ...] = (),
    schema: tuple[str, dict[str, Any]] | None = None,
) -> Reply:
    """Return a model's reply. The model is foreign code: any other error or result is a `ModelError`.

    Args:
        model: the model to query.
        budget: of the task; the turn is already counted.
        brief: the subject of the task.
        messages: the conversation.
        token: random text of the fences.
        tools: the available tools.
        schema: as of `ModelRequest`.

    Raises:
        ModelError, MunimentError: as `Model.respond`.
    """
    request = ModelRequest(
        brief,
        tuple(messages),
        tools,
        budget.seconds_left,
        turns_left=budget.turns_left + 1,
        cancel=budget.cancel,
        token=token,
        schema=schema,
    )
    try:
        reply = model.respond(request)
        texts = (reply.text, *(call.tool for call in reply.calls), *(call.id for call in reply.calls))
    except (ModelError, MunimentError):
        raise
    except Exception as error:
        raise ModelError(f"the model failed with {type(error).__name__}: {error}") from error
    if not all(isinstance(word, str) for word in texts):
        raise ModelError("the model returned an invalid response", has_answered=True)
    return reply
