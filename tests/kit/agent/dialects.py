"""Formats in which servers and models encode tool calls and actions.

    `ChatServer(through(perfect, DIALECTS["unclosed tag"]))`

A `Dialect` applies if the request offers tools, and partly if the prompt alone asks for a JSON action. If the
request has a schema, there is only one encoding. `asked_for` reads the kind of a request from its body.

Sources: the OpenAI API reference, the chat templates of the models named next to each dialect, and the issue
trackers of servers that failed to parse these calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from muniment.testing.chat_server import Response, completion, tool_call

Call = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""

AskedFor = Literal["tools", "action", "action in text", "decision", "decision in text", "words"]


@dataclass(frozen=True, slots=True)
class Say:
    """A final answer in text: the model is done."""

    text: str


@dataclass(frozen=True, slots=True)
class AskForCalls:
    """A request for tool calls. In an action response only the first call is encoded."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Decide:
    """A decision about where to store a fact."""

    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Utter:
    """Exactly this text, for any kind of request."""

    content: str


Thought = Say | AskForCalls | Decide | Utter


@dataclass(frozen=True, slots=True)
class SpokenMessage:
    """The members of a message except its role, and the finish reason."""

    message: Mapping[str, Any]
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to encode the calls of a model.

    Attributes:
        speak: encodes calls as a message; the text is the prefix of the call ids.
        wrap: wraps a JSON object in the text of a model that the prompt asked for JSON.
        before: text before everything else.
    """

    speak: Callable[[Sequence[Call], str], SpokenMessage]
    wrap: Callable[[str], str] = str
    before: str = ""


def asked_for(body: Mapping[str, Any]) -> AskedFor:
    """Return the kind of response that a request body expects."""
    if body.get("tools"):
        return "tools"
    match body.get("response_format"):
        case {"json_schema": {"name": "decision"}}:
            return "decision"
        case {"json_schema": _}:
            return "action"
    prompt = str(body["messages"][0].get("content"))
    if '"action"' in prompt:
        return "action in text"
    return "decision in text" if "its scope is" in prompt else "words"


def spell(thought: Thought, dialect: Dialect, body: Mapping[str, Any]) -> Response:
    """Encode `thought` in `dialect` as the response to the request with this body."""
    wanted = asked_for(body)
    if isinstance(thought, Utter):
        return completion({"content": thought.content})
    if isinstance(thought, AskForCalls) and wanted == "tools":
        spoken = dialect.speak(thought.calls, f"call-{len(body['messages'])}")
        message = dict(spoken.message)
        if dialect.before:
            message["content"] = f"{dialect.before}{message['content'] or ''}"
        return completion(message, spoken.finish_reason)
    if isinstance(thought, Say) and "action" not in wanted:
        text = thought.text
    else:
        text = json.dumps(_object(thought))
    if wanted.endswith("in text"):
        text = dialect.wrap(text)
    constrained = wanted in {"action", "decision"}
    return completion({"content": text if constrained else f"{dialect.before}{text}"})


def thinking(dialect: Dialect) -> Dialect:
    """Return `dialect` after a thinking block that drafts another call and discards it."""
    return replace(dialect, before=_THOUGHTS)


def _object(thought: Say | AskForCalls | Decide) -> Mapping[str, Any]:
    """Build the JSON object of an action or decision."""
    match thought:
        case Say(text):
            return {"action": "done", "summary": text}
        case AskForCalls(calls):
            tool, arguments = calls[0]
            return {"action": tool, **arguments}
        case Decide(decision):
            return decision


_DRAFT: Final = {"path": "user/never/draft.md", "content": "A draft."}
_THOUGHTS: Final = (
    "<think>\nI could answer with\n"
    f"{json.dumps({'action': 'write_file', **_DRAFT})}\nor with\n"
    f"<tool_call>\n{json.dumps({'name': 'write_file', 'arguments': _DRAFT})}\n</tool_call>\n"
    "No, something else fits better.\n</think>\n\n"
)


def _native(calls: Sequence[Call], stem: str) -> SpokenMessage:
    listed = [
        tool_call(tool, dict(arguments), f"{stem}-{number}") for number, (tool, arguments) in enumerate(calls)
    ]
    return SpokenMessage({"content": None, "tool_calls": listed}, "tool_calls")


def _native_but(change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Dialect:
    """Return a dialect of native calls in which `change` is applied to each call."""

    def speak(calls: Sequence[Call], stem: str) -> SpokenMessage:
        spoken = _native(calls, stem)
        listed = [change(call) for call in spoken.message["tool_calls"]]
        return replace(spoken, message={**spoken.message, "tool_calls": listed})

    return Dialect(speak)


def _with_arguments(call: Mapping[str, Any], change: Callable[[str], Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": change(function["arguments"])}}


def _legacy(calls: Sequence[Call], _stem: str) -> SpokenMessage:
    (tool, arguments), *_ = calls
    function = tool_call(tool, dict(arguments))["function"]
    return SpokenMessage({"content": None, "function_call": function}, "function_call")


def _in_words(
    spell_one: Callable[[str, str], str], wrap: Callable[[str], str] = str, around: str = "{}"
) -> Dialect:
    """Return a dialect that writes calls as text, one after the other, from the tool and its arguments as
    JSON.
    """

    def speak(calls: Sequence[Call], _stem: str) -> SpokenMessage:
        lines = [spell_one(tool, json.dumps(dict(arguments))) for tool, arguments in calls]
        return SpokenMessage({"content": around.replace("{}", "\n".join(lines))})

    return Dialect(speak, wrap)


def _named(tool: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(tool)}, "arguments": {arguments}}}'


def _parametrised(tool: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(tool)}, "parameters": {arguments}}}'


def _fenced(text: str) -> str:
    return f"```json\n{text}\n```"


def _chatty(text: str) -> str:
    return f"Let me take the next step.\n\n{_fenced(text)}\n\nThis is what I would do."


def _listed(calls: Sequence[Call], _stem: str) -> SpokenMessage:
    return SpokenMessage(
        {"content": json.dumps([{"name": tool, "arguments": dict(args)} for tool, args in calls])}
    )


def _mistral(calls: Sequence[Call], stem: str) -> SpokenMessage:
    return SpokenMessage({"content": f"[TOOL_CALLS] {_listed(calls, stem).message['content']}"})


def _as_xml(tool: str, arguments: str) -> str:
    parameters = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for name, value in json.loads(arguments).items()
    )
    return f"<tool_call>\n<function={tool}>\n{parameters}</function>\n</tool_call>"


def _deepseek(token: str) -> str:
    """Build a token of DeepSeek, which uses special bars and blanks."""
    return f"<\uff5c{token.replace(' ', chr(0x2581))}\uff5c>"


_SEP, _CALL, _END = _deepseek("tool sep"), _deepseek("tool call begin"), _deepseek("tool call end")
_CALLS: Final = f"{_deepseek('tool calls begin')}{{}}{_deepseek('tool calls end')}"

_HERMES: Final = _in_words(lambda tool, args: f"<tool_call>\n{_named(tool, args)}\n</tool_call>")
_BARE: Final = _in_words(_named)

DIALECTS: Final[Mapping[str, Dialect]] = {
    "native": Dialect(_native),
    "native, no ids": _native_but(lambda call: {key: call[key] for key in call if key != "id"}),
    "native, arguments as an object": _native_but(lambda call: _with_arguments(call, json.loads)),
    "native, arguments encoded twice": _native_but(lambda call: _with_arguments(call, json.dumps)),
    "native, finish_reason stop": Dialect(lambda calls, stem: SpokenMessage(_native(calls, stem).message)),
    "legacy function_call": Dialect(_legacy),
    "fence": _in_words(lambda tool, args: _fenced(_named(tool, args)), _fenced),
    "prose and fence": _in_words(lambda tool, args: _chatty(_named(tool, args)), _chatty),
    "tag": _HERMES,  # Hermes, Qwen
    "unclosed tag": _in_words(lambda tool, args: f"<tool_call>\n{_named(tool, args)}"),
    "bare": _BARE,
    "bare, parameters": _in_words(_parametrised),  # Llama 3
    "bare, tool and args": _in_words(lambda tool, args: f'{{"tool": {json.dumps(tool)}, "args": {args}}}'),
    "bare, function": _in_words(
        lambda tool, args: f'{{"type": "function", "function": {_named(tool, args)}}}'
    ),
    "list": Dialect(_listed),
    "python tag": _in_words(_parametrised, around="<|python_tag|>{}"),  # Llama 3.1
    "function tag": _in_words(lambda tool, args: f"<function={tool}>{args}</function>"),  # Llama 3.1
    "TOOL_CALLS": Dialect(_mistral),  # Mistral
    "xml": _in_words(_as_xml),  # Qwen3-Coder
    "deepseek": _in_words(
        lambda tool, args: f"{_CALL}function{_SEP}{tool}\n{_fenced(args)}{_END}", around=_CALLS
    ),
    "deepseek 3.1": _in_words(lambda tool, args: f"{_CALL}{tool}{_SEP}{args}{_END}", around=_CALLS),
    "thinking, native": thinking(Dialect(_native)),
    "thinking, tag": thinking(_HERMES),
    "thinking, bare": thinking(_BARE),
}
"""Every dialect, by name."""
