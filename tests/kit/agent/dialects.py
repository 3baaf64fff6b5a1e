"""Formats in which servers and models encode tool calls and actions.

    `ChatServer(build_answerer(remember_fact, DIALECTS["unclosed tag"]))`

A `Dialect` applies if the request offers tools, and partly if the prompt alone asks for a JSON action. If the
request has a schema, there is only one encoding. `classify_request` reads the kind of a request from its
body.

Sources: the OpenAI API reference, the chat templates of the models named next to each dialect, and the issue
trackers of servers that failed to parse these calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from muniment.testing.chat_server import Response, completion_response, make_tool_call

Call = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""

RequestKind = Literal["tools", "action", "action in text", "decision", "decision in text", "words"]


@dataclass(frozen=True, slots=True)
class FinishWithText:
    """A final answer in text: the model is done."""

    text: str


@dataclass(frozen=True, slots=True)
class RequestCalls:
    """A request for tool calls. In an action response only the first call is encoded."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Decide:
    """A decision about where to store a fact."""

    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriteText:
    """Exactly this text, for any kind of request."""

    content: str


Intent = FinishWithText | RequestCalls | Decide | WriteText


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """The members of a message except its role, and the finish reason."""

    message: Mapping[str, Any]
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to encode the calls of a model.

    Attributes:
        encode: encodes calls as a message; the text is the prefix of the call ids.
        wrap: wraps a JSON object in the text of a model that the prompt asked for JSON.
        prefix: text before everything else.
    """

    encode: Callable[[Sequence[Call], str], EncodedMessage]
    wrap: Callable[[str], str] = str
    prefix: str = ""


def classify_request(body: Mapping[str, Any]) -> RequestKind:
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


def encode_response(intent: Intent, dialect: Dialect, body: Mapping[str, Any]) -> Response:
    """Encode `intent` in `dialect` as the response to the request with this body."""
    kind = classify_request(body)
    if isinstance(intent, WriteText):
        return completion_response({"content": intent.content})
    if isinstance(intent, RequestCalls) and kind == "tools":
        encoded = dialect.encode(intent.calls, f"call-{len(body['messages'])}")
        message = dict(encoded.message)
        if dialect.prefix:
            message["content"] = f"{dialect.prefix}{message['content'] or ''}"
        return completion_response(message, encoded.finish_reason)
    if isinstance(intent, FinishWithText) and "action" not in kind:
        text = intent.text
    else:
        text = json.dumps(build_object(intent))
    if kind.endswith("in text"):
        text = dialect.wrap(text)
    constrained = kind in {"action", "decision"}
    return completion_response({"content": text if constrained else f"{dialect.prefix}{text}"})


def add_thinking(dialect: Dialect) -> Dialect:
    """Return `dialect` after a thinking block that drafts another call and discards it."""
    return replace(dialect, prefix=_THINKING_BLOCK)


def build_object(intent: FinishWithText | RequestCalls | Decide) -> Mapping[str, Any]:
    """Build the JSON object of an action or decision."""
    match intent:
        case FinishWithText(text):
            return {"action": "done", "summary": text}
        case RequestCalls(calls):
            tool, arguments = calls[0]
            return {"action": tool, **arguments}
        case Decide(decision):
            return decision


_DRAFT: Final = {"path": "user/never/draft.md", "content": "A draft."}
_THINKING_BLOCK: Final = (
    "<think>\nI could answer with\n"
    f"{json.dumps({'action': 'write_file', **_DRAFT})}\nor with\n"
    f"<tool_call>\n{json.dumps({'name': 'write_file', 'arguments': _DRAFT})}\n</tool_call>\n"
    "No, something else fits better.\n</think>\n\n"
)


def _encode_native(calls: Sequence[Call], stem: str) -> EncodedMessage:
    encoded_calls = [
        make_tool_call(tool, dict(arguments), f"{stem}-{number}")
        for number, (tool, arguments) in enumerate(calls)
    ]
    return EncodedMessage({"content": None, "tool_calls": encoded_calls}, "tool_calls")


def _change_native(change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Dialect:
    """Return a dialect of native calls in which `change` is applied to each call."""

    def encode(calls: Sequence[Call], stem: str) -> EncodedMessage:
        encoded = _encode_native(calls, stem)
        encoded_calls = [change(call) for call in encoded.message["tool_calls"]]
        return replace(encoded, message={**encoded.message, "tool_calls": encoded_calls})

    return Dialect(encode)


def _change_arguments(call: Mapping[str, Any], change: Callable[[str], Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": change(function["arguments"])}}


def _encode_legacy(calls: Sequence[Call], _stem: str) -> EncodedMessage:
    (tool, arguments), *_ = calls
    function = make_tool_call(tool, dict(arguments))["function"]
    return EncodedMessage({"content": None, "function_call": function}, "function_call")


def _write_calls(
    encode_call: Callable[[str, str], str], wrap: Callable[[str], str] = str, around: str = "{}"
) -> Dialect:
    """Return a dialect that writes calls as text, one after the other, from the tool and its arguments as
    JSON.
    """

    def encode(calls: Sequence[Call], _stem: str) -> EncodedMessage:
        lines = [encode_call(tool, json.dumps(dict(arguments))) for tool, arguments in calls]
        return EncodedMessage({"content": around.replace("{}", "\n".join(lines))})

    return Dialect(encode, wrap)


def _format_named(tool: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(tool)}, "arguments": {arguments}}}'


def _format_parameters(tool: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(tool)}, "parameters": {arguments}}}'


def _fence(text: str) -> str:
    return f"```json\n{text}\n```"


def _add_prose(text: str) -> str:
    return f"Let me take the next step.\n\n{_fence(text)}\n\nThis is what I would do."


def _encode_list(calls: Sequence[Call], _stem: str) -> EncodedMessage:
    return EncodedMessage(
        {"content": json.dumps([{"name": tool, "arguments": dict(args)} for tool, args in calls])}
    )


def _encode_mistral(calls: Sequence[Call], stem: str) -> EncodedMessage:
    return EncodedMessage({"content": f"[TOOL_CALLS] {_encode_list(calls, stem).message['content']}"})


def _format_xml(tool: str, arguments: str) -> str:
    parameters = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for name, value in json.loads(arguments).items()
    )
    return f"<tool_call>\n<function={tool}>\n{parameters}</function>\n</tool_call>"


def _build_deepseek_token(token: str) -> str:
    """Build a token of DeepSeek, which uses special bars and blanks."""
    return f"<\uff5c{token.replace(' ', chr(0x2581))}\uff5c>"


_SEP, _CALL, _END = (
    _build_deepseek_token("tool sep"),
    _build_deepseek_token("tool call begin"),
    _build_deepseek_token("tool call end"),
)
_CALLS: Final = f"{_build_deepseek_token('tool calls begin')}{{}}{_build_deepseek_token('tool calls end')}"

_HERMES: Final = _write_calls(lambda tool, args: f"<tool_call>\n{_format_named(tool, args)}\n</tool_call>")
_BARE: Final = _write_calls(_format_named)

DIALECTS: Final[Mapping[str, Dialect]] = {
    "native": Dialect(_encode_native),
    "native, no ids": _change_native(lambda call: {key: call[key] for key in call if key != "id"}),
    "native, arguments as an object": _change_native(lambda call: _change_arguments(call, json.loads)),
    "native, arguments encoded twice": _change_native(lambda call: _change_arguments(call, json.dumps)),
    "native, finish_reason stop": Dialect(
        lambda calls, stem: EncodedMessage(_encode_native(calls, stem).message)
    ),
    "legacy function_call": Dialect(_encode_legacy),
    "fence": _write_calls(lambda tool, args: _fence(_format_named(tool, args)), _fence),
    "prose and fence": _write_calls(lambda tool, args: _add_prose(_format_named(tool, args)), _add_prose),
    "tag": _HERMES,  # Hermes, Qwen
    "unclosed tag": _write_calls(lambda tool, args: f"<tool_call>\n{_format_named(tool, args)}"),
    "bare": _BARE,
    "bare, parameters": _write_calls(_format_parameters),  # Llama 3
    "bare, tool and args": _write_calls(lambda tool, args: f'{{"tool": {json.dumps(tool)}, "args": {args}}}'),
    "bare, function": _write_calls(
        lambda tool, args: f'{{"type": "function", "function": {_format_named(tool, args)}}}'
    ),
    "list": Dialect(_encode_list),
    "python tag": _write_calls(_format_parameters, around="<|python_tag|>{}"),  # Llama 3.1
    "function tag": _write_calls(lambda tool, args: f"<function={tool}>{args}</function>"),  # Llama 3.1
    "TOOL_CALLS": Dialect(_encode_mistral),  # Mistral
    "xml": _write_calls(_format_xml),  # Qwen3-Coder
    "deepseek": _write_calls(
        lambda tool, args: f"{_CALL}function{_SEP}{tool}\n{_fence(args)}{_END}", around=_CALLS
    ),
    "deepseek 3.1": _write_calls(lambda tool, args: f"{_CALL}{tool}{_SEP}{args}{_END}", around=_CALLS),
    "thinking, native": add_thinking(Dialect(_encode_native)),
    "thinking, tag": add_thinking(_HERMES),
    "thinking, bare": add_thinking(_BARE),
}
"""Every dialect, by name."""
