"""A `Request` as the body of a Chat Completions request: a pure function of values.

There are three forms. `tools`: the tools of the run in the server's own way. `json`: one JSON object a
turn, which the server is asked to constrain to a schema. `text`: the same object, asked for in the prompt
alone, with no roles but `user` and `assistant`, and these in turns, as the strictest chat templates want it.

B1 What a model made of a call is never echoed as it came: arguments are written anew as JSON, or left
   out where they were none, and names are made plain, since servers refuse a history with bad ones.
B2 Every call is answered, in its order; in the forms without tools by a fenced result.
B3 No message is empty: some servers refuse one.
B4 What a call may have said at length is echoed up to `ECHOED_CHARS`: no model grows its history for ever.

Source: the OpenAI API reference, "Create chat completion".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from muniment.agent.model import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from muniment.agent.prompt import action_instructions
from muniment.content.markdown import fenced
from muniment.errors import BadArguments, BadName, TooLarge
from muniment.tools.calls import check_sizes

Form = Literal["tools", "json", "text"]
"""How one request is put. A protocol (`model.PROTOCOLS`) is what a person chooses: which forms are tried."""

Document = dict[str, Any]

ANSWER_TOKENS: Final = 1024
"""Tokens that an answer may have beyond the fact itself: the end of one that repeats itself for ever. At ten
a second that is a third of the time of a run."""

DECISION_TOKENS: Final = 64
"""Tokens of an answer that only decides; it takes ten or so."""

FACT_BYTES_PER_TOKEN: Final = 2
"""UTF-8 bytes of a fact for each token granted to write it: no common tokenizer needs more tokens."""

ECHOED_CHARS: Final = 70_000
"""Characters of an argument that stand in the history: the longest fact with its front matter."""

BOUNDED_CHARS: Final = 1900
"""Characters up to which a string of a schema is bounded: llama.cpp refuses a repetition beyond 2 000."""

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_SHORT_CHARS: Final = 300
_FRONT_MATTER_CHARS: Final = 600
_NOTHING: Final = "(nothing)"


def body(request: Request, form: Form, model: str, schema: tuple[str, Document] | None) -> Document:
    """The body of the request.

    Args:
        request: one model call.
        form: how the model is to act.
        model: the server's name for it.
        schema: name and JSON Schema of the answer, in the form `json`.
    """
    document: Document = {"model": model, "messages": _messages(request, form)}
    if form == "tools" and request.tools:
        document["tools"] = [_function(tool) for tool in request.tools]
    if form == "json" and schema is not None:
        name, shape = schema
        document["response_format"] = {"type": "json_schema", "json_schema": {"name": name, "schema": shape}}
    return document


def answer_tokens(fact: str) -> int:
    """Tokens that one answer may have."""
    return ANSWER_TOKENS + len(fact.encode()) // FACT_BYTES_PER_TOKEN


def with_actions(request: Request) -> Request:
    """`request` for a model that acts by JSON: its instructions say how."""
    system, *rest = request.messages
    if not isinstance(system, SystemMessage):
        return request
    told = SystemMessage(f"{system.text}\n\n{action_instructions(request.tools)}")
    return replace(request, messages=(told, *rest))


def action_schema(request: Request) -> tuple[str, Document]:
    """Name and JSON Schema of one action: a tool with its arguments, or the end."""
    is_long = len(request.brief.fact) + _FRONT_MATTER_CHARS > BOUNDED_CHARS
    actions = [_action(tool.name, tool.parameters, is_long=is_long) for tool in request.tools]
    done = {"properties": {"summary": {"type": "string"}}, "required": ["summary"]}
    return "action", {"anyOf": [*actions, _action("done", done, is_long=is_long)]}


def _action(name: str, parameters: Mapping[str, Any], *, is_long: bool) -> Document:
    properties = {
        key: _bounded(key, each, is_long=is_long) if each.get("type") == "string" else each
        for key, each in parameters["properties"].items()
    }
    return {
        "type": "object",
        "properties": {"action": {"type": "string", "enum": [name]}, **properties},
        "required": ["action", *parameters["required"]],
        "additionalProperties": False,
    }


def _bounded(key: str, schema: Mapping[str, Any], *, is_long: bool) -> Document:
    """A string that cannot go on for ever, unless the fact in it is so long that no grammar can count it."""
    if key not in {"content", "old_string", "new_string"}:
        return {**schema, "maxLength": _SHORT_CHARS}
    return dict(schema) if is_long else {**schema, "maxLength": BOUNDED_CHARS}


def _function(tool: ToolSpec) -> Document:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _messages(request: Request, form: Form) -> list[Document]:
    if form == "tools":
        return [_native(message) for message in request.messages]
    tools = {
        call.id: call.tool
        for message in request.messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
    }
    said = (_spoken(message, tools, request.token) for message in request.messages)
    if form == "text":
        said = (("user" if role == "system" else role, text) for role, text in said)
    return _in_turns(said)


def _native(message: Message) -> Document:
    match message:
        case SystemMessage(text):
            return {"role": "system", "content": text}
        case UserMessage(text):
            return {"role": "user", "content": text}
        case ToolMessage(call_id, _, _, text):
            return {"role": "tool", "tool_call_id": call_id, "content": text or _NOTHING}
        case AssistantMessage(text, ()):
            return {"role": "assistant", "content": text or _NOTHING}
        case AssistantMessage(text, calls):
            return {"role": "assistant", "content": text, "tool_calls": [_call(call) for call in calls]}


def _call(call: ToolCall) -> Document:
    arguments = json.dumps(_object(call.arguments), ensure_ascii=False)
    name = _NOT_IN_A_NAME.sub("_", call.tool) or "_"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _object(arguments: Any) -> Document:
    """Arguments as they may stand in a history (B1, B4): what no tool takes is left out."""
    if not isinstance(arguments, Mapping):
        return {}
    cut = {
        key: f"{value[:ECHOED_CHARS]} (cut)"
        if isinstance(value, str) and len(value) > ECHOED_CHARS
        else value
        for key, value in arguments.items()
    }
    try:
        check_sizes(cut)
    except (BadArguments, BadName, TooLarge):
        return {}
    return cut


def _spoken(message: Message, tools: Mapping[str, str], token: str) -> tuple[str, str]:
    """Role and text of a message where there are no tools."""
    match message:
        case SystemMessage(text):
            return "system", text
        case UserMessage(text):
            return "user", text
        case ToolMessage(call_id, verdict, _, text):
            done = "" if verdict == "allow" else " (not done)"
            return "user", f"{tools[call_id]}{done}:\n{fenced(text, 'result', token)}"
        case AssistantMessage(text, ()):
            return "assistant", text or _NOTHING
        case AssistantMessage(_, calls):
            return "assistant", "\n".join(map(_action_of, calls))


def _action_of(call: ToolCall) -> str:
    arguments = {key: value for key, value in _object(call.arguments).items() if key != "action"}
    return json.dumps({"action": call.tool, **arguments}, ensure_ascii=False)


def _in_turns(said: Iterable[tuple[str, str]]) -> list[Document]:
    """Messages with what the same role says in a row put together."""
    turns: list[tuple[str, list[str]]] = []
    for role, text in said:
        if turns and turns[-1][0] == role:
            turns[-1][1].append(text)
        else:
            turns.append((role, [text]))
    return [{"role": role, "content": "\n\n".join(texts)} for role, texts in turns]


def shown_texts(messages: Sequence[Message]) -> tuple[str, ...]:
    """What a run has shown to its model as data: the job and the results."""
    return tuple(message.text for message in messages if isinstance(message, UserMessage | ToolMessage))
