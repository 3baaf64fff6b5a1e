"""What stands between the agent loop and whatever answers it: one protocol with one method.

A model is stateless as far as the loop is concerned: everything it may know of a run is in the
`Request`. A language model reads `messages`; the rule writer reads `brief` and the results of its
own earlier calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

from muniment.content.expiry import End
from muniment.content.gates import visible
from muniment.errors import Cancelled, ConfigInvalid, DeadlineExceeded, MunimentError, printable
from muniment.kernel.cancel import Cancelling
from muniment.kernel.decide import Limits
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.types import Turn, Usage

# -- model -------------------------------------------------------------------------------------------

ProtocolName = Literal["auto", "tools", "json", "text", "decide"]

PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)
"""How a run may speak with a language model; `auto` finds out what the server can do."""

OnModelFailure = Literal["rules", "fail"]
"""If the model fails: the rules do the work, or the task fails."""

MAX_MODEL_CHARS: Final = 200
"""Characters of a model's name, which is part of results, entries and lines on terminals."""


def check_model_name(name: str) -> str:
    """`name`, if it can be a model's: it shows whole, so that every gate lets an entry pass that says it.

    Raises:
        ConfigInvalid: it has not 1 to `MAX_MODEL_CHARS` printable characters, or a space at either end.
    """
    is_shown_whole = name.isprintable() and name == name.strip() and name == visible(name)
    if not (1 <= len(name) <= MAX_MODEL_CHARS and is_shown_whole):
        raise ConfigInvalid(
            f"a model's name has 1 to {MAX_MODEL_CHARS} printable characters, and no space at either end; "
            "this one has not"
        )
    return name


def check_protocol(protocol: str) -> ProtocolName:
    """`protocol`, if it is one of `PROTOCOLS`.

    Raises:
        ConfigInvalid: it is not.
    """
    known = next((each for each in PROTOCOLS if each == protocol), None)
    if known is None:
        there_are = f"{', '.join(PROTOCOLS[:-1])} and {PROTOCOLS[-1]}"
        raise ConfigInvalid(f"there is no protocol {printable(protocol)!r}; there are {there_are}")
    return known


def check_on_model_failure(value: str) -> OnModelFailure:
    """`value`, if it says what follows a model that failed.

    Raises:
        ConfigInvalid: it does not.
    """
    known: OnModelFailure | None = next((each for each in get_args(OnModelFailure) if each == value), None)
    if known is None:
        raise ConfigInvalid(f"on_model_failure is rules or fail, not {printable(value)!r}")
    return known


@dataclass(frozen=True, slots=True)
class ScopeBrief:
    """A scope as the model may know it: its name, and whether this run may write there."""

    name: Scope
    writable: bool


@dataclass(frozen=True, slots=True)
class Related:
    """An entry of the memory that is like the fact of a run, and may be shown to it.

    Attributes:
        id: of its provenance; empty: it has none.
        path: its logical path.
        digest: of its file, on which the run rests.
        trust: who it comes from.
        age: how long ago it was written, in words.
        type: one of `TYPES`, or None.
        title: one line.
        body: its text.
        sayings: what it says by itself, see `content.words.sayings`, if whoever asks may rely on it.
        is_ours: whether the fact may stand in its place: whoever asks is trusted as far, and the policy lets
            the run change it.
        is_shown: whether a language model is shown it, who may be steered by what agents and strangers wrote.
    """

    id: str
    path: CanonicalPath
    digest: Digest
    trust: Trust
    age: str
    type: str | None
    title: str
    body: str
    sayings: frozenset[str]
    is_ours: bool
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Brief:
    """What a run is about, as data.

    Attributes:
        fact: the text to remember, trimmed; 1 to `MAX_FACT_BYTES` bytes of UTF-8.
        scopes: the scopes of the run, in the order of the policy.
        context: what the run may see.
        related: entries that are like the fact, the nearest first; the run counts as having read them.
        ends: when the fact ends; None: never.
        is_one: the fact is filed as one, also if it is a list of facts.
    """

    fact: str
    scopes: tuple[ScopeBrief, ...]
    context: ContextMode
    related: tuple[Related, ...] = ()
    ends: End | None = None
    is_one: bool = False

    @property
    def writable(self) -> tuple[Scope, ...]:
        """The scopes in which the run may write."""
        return tuple(scope.name for scope in self.scopes if scope.writable)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model asks for. `arguments` is whatever JSON the model sent, unchecked."""

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The instructions of the run."""

    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The job, or a nudge of the loop."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model answered in an earlier turn."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The outcome of one call.

    Attributes:
        call_id: the `ToolCall.id` that it answers.
        verdict: whether the call was allowed, denied or mistaken.
        code: the outcome's stable code, None if allowed.
        text: what the model sees.
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
        tools: the tools on offer; empty on the last turn, which must end in words.
        turns_left: this one included.
        seconds_left: until the run's deadline; the model must answer or raise within it.
        cancel: the caller's wish to stop, for models that wait; None: nobody can.
        token: random text of the run, unknown to whoever wrote the data that it fences.
        schema: name and JSON Schema that the answer's words are to have, where the model is asked a question
            instead of being given tools; None: it acts, or says what it likes.
    """

    brief: Brief
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    seconds_left: float
    turns_left: int = 6
    cancel: Cancelling | None = None
    token: str = ""
    schema: tuple[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered: words, calls, or both (the calls count). Neither: nothing that can be used.

    Attributes:
        decided_by: who decided where a fact belongs, if that was not the model.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    decided_by: str = ""


class ModelError(Exception):
    """The model cannot answer; the run ends as `model_error`. The message is for the operator.

    Attributes:
        has_answered: it did, but not what it was asked for; it may answer something else.
    """

    def __init__(self, message: str = "", *, has_answered: bool = False) -> None:
        super().__init__(message)
        self.has_answered = has_answered


class ContextOverflow(ModelError):
    """The messages are too long for the model; with fewer of them it may answer."""


class Model(Protocol):
    """Anything that can drive a run.

    Attributes:
        name: what results say decided: `rules`, or the model's own name.
    """

    name: str

    def respond(self, request: ModelRequest) -> Reply:
        """Answer one turn.

        Raises:
            ModelError: the model cannot answer.
            ContextOverflow: it could with fewer messages; the loop drops tool results and asks once more.
            DeadlineExceeded: `seconds_left` passed first.
            Cancelled: the caller cancelled first.
        """
        ...


# -- doubled braces ----------------------------------------------------------------------------------


def undoubled(text: str, at: int) -> str:
    """`text` from `at` on, with braces written once that a model doubled, as some chat templates show them.

    No object begins with an object, so a brace right behind one that opens is its double; what closes them is
    a pair as well. Braces in strings stay.

    Cost: linear.
    """
    pieces: list[str] = []
    is_doubled: list[bool] = []
    done = at
    while (token := _BRACE_OR_STRING.search(text, done)) is not None:
        pieces.append(text[done : token.start()])
        done = token.end()
        match token[0]:
            case "{":
                is_doubled.append(text.startswith("{", done))
                done += is_doubled[-1]
            case "}" if is_doubled:
                done += is_doubled.pop() and text.startswith("}", done)
        pieces.append(token[0])
    return "".join([*pieces, text[done:]])


_BRACE_OR_STRING: Final = re.compile(r'[{}]|"(?:[^"\\]|\\.)*+"', re.DOTALL)


# -- budget ------------------------------------------------------------------------------------------
#
# What one task may use, over all its attempts: turns, tool calls, and one monotonic deadline.


class Budget:
    """Counts down; a repeat after a conflict spends what is left.

    Args:
        limits: of the effective policy.
        cancel: the caller's wish to stop.
        clock: monotonic seconds.

    Attributes:
        timeline: the turns that were taken, in order, over all attempts.
    """

    def __init__(self, limits: Limits, cancel: Cancelling, clock: Callable[[], float]) -> None:
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
        """Since the task started."""
        return self._clock() - self._started

    @property
    def seconds_left(self) -> float:
        """Until the deadline, never negative."""
        return max(0.0, self.deadline - self._clock())

    def check(self) -> None:
        """Stop here if the task may not go on.

        Raises:
            Cancelled: the caller asked for it.
            DeadlineExceeded: the deadline has passed.
        """
        if self.cancel.is_set():
            raise Cancelled("nothing was written")
        if self._clock() >= self.deadline:
            raise DeadlineExceeded("the time of the task is used up; nothing was written")

    def renew(self, limits: Limits) -> None:
        """Give the turns and calls of a whole run anew, within the same deadline."""
        self.turns_left, self.calls_left = limits.turns, limits.tool_calls

    def spend_turn(self) -> bool:
        """Take a turn if one is left."""
        if self.turns_left == 0:
            return False
        self.turns_left -= 1
        self.turns += 1
        return True

    def spend_call(self) -> bool:
        """Take a tool call if one is left."""
        if self.calls_left == 0:
            return False
        self.calls_left -= 1
        return True

    @contextmanager
    def timed_turn(self) -> Iterator[list[Usage]]:
        """Put a turn on the timeline: the seconds of the block, and the usage that it adds to the list.

        Raises:
            DeadlineExceeded, Cancelled: as `check`, after the block.
        """
        started, usage = self.seconds, list[Usage]()
        try:
            yield usage
        finally:
            self.timeline.append(Turn(self.seconds - started, *usage or [Usage()]))
        self.check()


def respond(
    model: Model,
    budget: Budget,
    brief: Brief,
    messages: Sequence[Message],
    token: str,
    *,
    tools: tuple[ToolSpec, ...] = (),
    schema: tuple[str, dict[str, Any]] | None = None,
) -> Reply:
    """Return a model's reply. It is foreign code: any other error or result is a `ModelError`.

    Args:
        model: what is asked.
        budget: of the task, of which the turn was taken.
        brief: what the task is about.
        messages: all that was said so far.
        token: random text of the fences.
        tools: on offer.
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
        words = (reply.text, *(call.tool for call in reply.calls), *(call.id for call in reply.calls))
    except (ModelError, MunimentError):
        raise
    except Exception as error:
        raise ModelError(f"the model failed with {type(error).__name__}: {error}") from error
    if not all(isinstance(word, str) for word in words):
        raise ModelError("the model answered with something that is no reply", has_answered=True)
    return reply
