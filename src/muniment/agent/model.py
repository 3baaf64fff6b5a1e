"""What stands between the agent loop and whatever answers it: one protocol with one method.

A model is stateless as far as the loop is concerned: everything it may know of a run is in the
`Request`. A language model reads `messages`; the rule writer reads `brief` and the results of its
own earlier calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

from muniment.confine.cancel import Cancel
from muniment.content.gates import visible
from muniment.errors import ConfigInvalid, printable
from muniment.names import ContextMode, Scope

ProtocolName = Literal["auto", "tools", "json", "text", "decide"]

PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)
"""How a run may speak with a language model; `auto` finds out what the server can do."""

OnModelFailure = Literal["rules", "fail"]
"""What follows a model that comes to nothing: the rules file the fact, or the task fails."""

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
class Brief:
    """What a run is about, as data.

    Attributes:
        fact: the text to remember, trimmed; 1 to `MAX_FACT_BYTES` bytes of UTF-8.
        scopes: the scopes of the run, in the order of the policy.
        context: what the run may see.
    """

    fact: str
    scopes: tuple[ScopeBrief, ...]
    context: ContextMode


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
class Request:
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
    cancel: Cancel | None = None
    token: str = ""
    schema: tuple[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; zero where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took of the model.

    Attributes:
        seconds: from asking it to its answer, or to its failure.
        usage: zero where it failed.
    """

    seconds: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered: words, calls, or both (the calls count). Neither: nothing that can be used.

    Attributes:
        decided_by: who decided where a fact belongs, if that was not the model.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    decided_by: str = ""


class ModelError(Exception):
    """The model cannot answer; the run ends as `model_error`. The message is for the operator."""


class ContextOverflow(ModelError):
    """The messages are too long for the model; with fewer of them it may answer."""


class Model(Protocol):
    """Anything that can drive a run.

    Attributes:
        name: what results say decided: `rules`, or the model's own name.
    """

    name: str

    def respond(self, request: Request) -> Reply:
        """Answer one turn.

        Raises:
            ModelError: the model cannot answer.
            ContextOverflow: it could with fewer messages; the loop drops tool results and asks once more.
            DeadlineExceeded: `seconds_left` passed first.
            Cancelled: the caller cancelled first.
        """
        ...
