"""The interface between the loop of a run and its models: one protocol with one method.

A model stores nothing about a run: each `ModelRequest` contains everything that it may know. A language model
reads the `messages` of the request. The built-in rules read `brief` and the results of their earlier tool
calls.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from muniment.content.expiry import End
from muniment.errors import Cancelled, DeadlineExceeded, MunimentError
from muniment.events import track_progress
from muniment.kernel.cancel import CancelToken
from muniment.kernel.decide import Limits
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.types import Turn, Usage

# -- model -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScopeBrief:
    """A scope as the model sees it: its name, and whether this run may write in it."""

    name: Scope
    writable: bool


@dataclass(frozen=True, slots=True)
class RelatedEntry:
    """An entry of the memory that is similar to the fact of a run.

    Attributes:
        id: id in the provenance of the entry; empty: the entry has no provenance.
        path: logical path of the entry.
        digest: digest of the file; the run is only committed if the file still has this digest.
        trust: trust of the entry.
        age: the time since the entry was written, in words.
        type: one of `TYPES`, or None.
        title: title of the entry, on one line.
        body: text of the entry, without front matter.
        statements: the independent statements of the entry, see `content.words.list_statements`; empty if the
            requester must not rely on the entry.
        is_replaceable: whether the fact may replace the entry: the requester has at least the same trust, and
            the policy lets the run change the entry.
        is_visible: whether a language model sees the entry. Texts of agents and of external authors are
            hidden, because they could manipulate the model.
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
        fact: the text to remember, without white space around it; 1 to `MAX_FACT_BYTES` bytes of UTF-8.
        scopes: the scopes of the run, in the order of the policy.
        context: which existing data the run may see.
        related: entries that are similar to the fact, the most similar first; they count as read by the run.
        ends: the date at which the fact ends; None: it never ends.
        is_single_entry: whether to store the fact as one entry, even if it is a list of facts.
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
    """One tool call that a model requests.

    Attributes:
        arguments: the JSON value that the model sent; it is not checked yet.
    """

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The instructions of the run."""

    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The job of the run, or a reminder that the loop sends to the model."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The reply of the model in an earlier turn."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The outcome of one tool call.

    Attributes:
        call_id: the `ToolCall.id` of the call.
        verdict: whether the call was allowed, denied, or invalid (`error`).
        code: a code for the outcome that never changes; None if the call was allowed.
        text: the text that the model receives.
    """

    call_id: str
    verdict: Literal["allow", "deny", "error"]
    code: str | None
    text: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool for a model: its name, one sentence, and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    Attributes:
        brief: the job of the run.
        messages: the conversation so far.
        tools: the available tools; empty in the last turn, in which the model must answer in words.
        seconds_left: seconds until the deadline of the run; the model must reply or raise within this time.
        turns_left: the number of turns that are left, including this one.
        cancel: becomes set if the caller cancels the run; None: the run cannot be cancelled.
        token: random text of the run, which marks the fences around data. The authors of the data do not know
            it.
        schema: name and JSON Schema that the text of the reply must follow, for a query without tools. None:
            the model calls tools, or writes free text.
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
    """The reply of a model: a text, tool calls, or both. If it has calls, its text counts only as a remark.

    A reply with neither is invalid.

    Attributes:
        decided_by: who decided where to store the fact, if that was not the model; empty: the model.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    decided_by: str = ""


class ModelError(Exception):
    """The model cannot reply; the run ends with the reason `model_error`. The message is for the operator.

    Attributes:
        has_answered: whether the model replied, but with invalid content; another query may then succeed.
    """

    def __init__(self, message: str = "", *, has_answered: bool = False) -> None:
        super().__init__(message)
        self.has_answered = has_answered


class ContextOverflow(ModelError):
    """The messages are too long for the model; with fewer messages it may be able to reply."""


class Model(Protocol):
    """A model: anything that can decide the next step of a run.

    Attributes:
        name: the name that results report as the decider: `rules`, or the name of the language model.
    """

    name: str

    def respond(self, request: ModelRequest) -> Reply:
        """Return the reply for one turn.

        Raises:
            ModelError: the model cannot reply.
            ContextOverflow: the messages are too long; the loop drops tool results and retries once.
            DeadlineExceeded: `seconds_left` passed before the model replied.
            Cancelled: the caller cancelled the run before the model replied.
        """
        ...


# -- doubled braces ----------------------------------------------------------------------------------


def undouble_braces(text: str, start: int) -> str:
    """Return the part of `text` from index `start` on, with doubled braces replaced by single ones.

    Some models write each brace twice (`{{` and `}}`), because templates do. In a JSON object, a brace never
    follows an opening brace directly. So such a brace is a duplicate, and so is its closing brace. Braces
    inside strings are not changed.

    Cost: linear in the text.
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
    """The turns, tool calls and seconds that a task may still use, over all its attempts.

    If an attempt fails because of a conflict, the next attempt uses the rest.

    Args:
        limits: the limits of the effective policy.
        cancel: becomes set if the caller cancels the task.
        clock: returns monotonic seconds.

    Attributes:
        timeline: the past turns of all attempts, in order.
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
        """Raise if the task must end.

        Raises:
            Cancelled: the caller cancelled the task.
            DeadlineExceeded: the deadline of the task has passed.
        """
        if self.cancel.is_set():
            raise Cancelled("nothing was written")
        if self._clock() >= self.deadline:
            raise DeadlineExceeded("the task exceeded its time limit; nothing was written")

    def renew(self, limits: Limits) -> None:
        """Reset the turns and calls to those of a complete run; the deadline stays the same."""
        self.turns_left, self.calls_left = limits.turns, limits.tool_calls

    def spend_turn(self) -> bool:
        """Count one turn, and return whether a turn was left."""
        if self.turns_left == 0:
            return False
        self.turns_left -= 1
        self.turns += 1
        return True

    def spend_call(self) -> bool:
        """Count one tool call, and return whether a call was left."""
        if self.calls_left == 0:
            return False
        self.calls_left -= 1
        return True

    @property
    def tokens(self) -> int:
        """Return the tokens of the finished turns, as the model's server counted them."""
        return sum(each.usage.input_tokens + each.usage.output_tokens for each in self.timeline)

    @contextmanager
    def record_turn(self) -> Iterator[list[Usage]]:
        """Add one turn to the timeline, with the duration of the block and the usage of the model.

        Yields:
            A list to which the block appends the usage.

        Raises:
            DeadlineExceeded, Cancelled: after the block, as in `check`.
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
    """Return the reply of a model.

    A model is foreign code: if it raises an unexpected error, or returns an invalid value, a `ModelError` is
    raised.

    Args:
        model: the model.
        budget: the budget of the task, in which this turn is already counted.
        brief: the job of the run.
        messages: the conversation so far.
        token: random text that marks the fences around data.
        tools: the available tools.
        schema: name and JSON Schema of the reply, as in `ModelRequest`.

    Raises:
        ModelError, MunimentError: as in `Model.respond`.
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
        with track_progress(
            "asking the model",
            unit="tokens",
            detail=f"turn {budget.turns} of {budget.turns + budget.turns_left}",
            started_at=time.monotonic() - budget.seconds,
        ) as progress:
            progress.done = budget.tokens
            reply = model.respond(request)
        texts = (reply.text, *(call.tool for call in reply.calls), *(call.id for call in reply.calls))
    except (ModelError, MunimentError):
        raise
    except Exception as error:
        raise ModelError(f"the model failed with {type(error).__name__}: {error}") from error
    if not all(isinstance(word, str) for word in texts):
        raise ModelError("the model returned an invalid response", has_answered=True)
    return reply
