"""Convert the response of an untrusted server to a `Reply`; this module does no I/O.

Servers and models deviate from the specification in every way. So this code relies only on the presence of
members.

A1 Calls count with any `finish_reason`. But if the response was cut off at the limit of tokens (`length`),
   all its calls are ignored, because the last argument may be incomplete.
A2 The id of a call is used if it is plain and new in the run. Otherwise an id is generated from nine letters
   and digits, the one form that every chat template accepts.
A3 Arguments may be an object, an object as JSON text, or such a text once more as JSON text. Anything else
   stays a text, which no tool accepts: the model gets an error.
A4 Calls that the model wrote into its text are used, unless the model only quotes them.
A5 A response without calls and text, or with the rest of a broken call, becomes an empty `Reply`.

Separate from `openai.py`, which communicates: this module is fuzzed separately.

Source: the OpenAI API reference; deviations of servers were collected from their issue trackers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from muniment.agent.chat import Form, list_displayed_texts
from muniment.agent.complaint import Complaint, find_complaint
from muniment.agent.model import (
    AssistantMessage,
    ModelRequest,
    Reply,
    ToolCall,
    undouble_braces,
)
from muniment.agent.text_calls import MAX_CALLS, MAX_CHARS, parse_text_calls
from muniment.content.exact_json import NotJson, parse_json
from muniment.types import Usage

MAX_NAME_CHARS: Final = 64
"""Maximum characters of a tool's name; longer names are cut. The API has the same limit."""

MAX_REPLY_CHARS: Final = 8_000
"""Maximum characters of a response's text that a run stores; a model may repeat itself without end."""

MAX_TOKENS: Final = 2**40
"""Limit for a plausible number of tokens; a larger number counts as 0."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


RawCall = tuple[object, str, Any]
"""A call as the server sent it: its id, its tool, and its arguments."""


@dataclass(frozen=True, slots=True)
class FirstChoice:
    """The first choice of a chat completion.

    Attributes:
        text: the text; if it came in parts, they are joined.
        calls: the first `MAX_CALLS` calls.
        was_cut: whether the server stopped the model at the limit of tokens.
        usage: the tokens that the server counted.
    """

    text: str
    calls: tuple[RawCall, ...]
    was_cut: bool
    usage: Usage


def parse_response(content: bytes) -> FirstChoice | Complaint:
    """Return the completion in the body of a 2xx response, or the problem with this body."""
    try:
        document = parse_json(content)
    except NotJson as problem:
        page = content.lstrip()[:1] == b"<"
        description = f"a response that is {'a web page' if page else f'not JSON ({problem})'}"
    else:
        match document:
            case {"choices": [{"message": {} as message, **choice}, *_]}:
                was_cut = choice.get("finish_reason") == "length"
                return FirstChoice(
                    _read_text(message), tuple(_read_calls(message)), was_cut, _parse_usage(document)
                )
        description = "a response without a message"
    return find_complaint(content) or Complaint(
        "busy", f"the server returned {description}; check that the base URL ends in /v1"
    )


def create_reply(choice: FirstChoice, request: ModelRequest, form: Form) -> Reply:
    """Convert a completion to the reply of the model (rules A1 to A5 in the module docstring).

    Args:
        choice: the completion.
        request: the request of the run that led to it.
        form: the form of that request.
    """
    calls: list[RawCall] = [(id_, tool, _parse_arguments(raw)) for id_, tool, raw in choice.calls]
    text_left, is_broken = choice.text, False
    if not calls:
        # If the server enforced the schema of one action, the reply cannot be a quotation. Only its text
        # shows whether the schema was enforced.
        is_action = form == "json" and _is_object(choice.text)
        displayed_texts = () if is_action else list_displayed_texts(request.messages)
        offered = {tool.name for tool in request.tools}
        text_calls = parse_text_calls(choice.text, offered, displayed_texts)
        if not text_calls.calls and "{{" in choice.text:
            undoubled_calls = parse_text_calls(
                undouble_braces(choice.text[:MAX_CHARS], 0), offered, displayed_texts
            )
            text_calls = undoubled_calls if undoubled_calls.calls else text_calls
        text_left, is_broken = text_calls.text, text_calls.is_broken
        calls = [(None, tool, arguments) for tool, arguments in text_calls.calls]
        if not calls and form != "tools":
            calls = _find_unknown_action(text_left, request)
    if is_broken or (calls and choice.was_cut):
        return Reply(usage=choice.usage)
    text = "" if calls and form != "tools" else text_left[:MAX_REPLY_CHARS]
    return Reply(text, _assign_ids(calls, request), choice.usage)


def _read_text(message: Mapping[str, Any]) -> str:
    match message.get("content"):
        case str(text):
            return text
        case [*parts]:
            return "".join(
                part["text"]
                for part in parts
                if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            )
        case _:
            refusal = message.get("refusal")
            return refusal if isinstance(refusal, str) else ""


def _read_calls(message: Mapping[str, Any]) -> list[RawCall]:
    listed = message.get("tool_calls")
    found = listed[:MAX_CALLS] if isinstance(listed, list) else []
    old = message.get("function_call")
    if not found and isinstance(old, Mapping):
        found = [{"function": old}]
    calls: list[RawCall] = []
    for each in found:
        call = each if isinstance(each, Mapping) else {}
        function = call.get("function")
        function = function if isinstance(function, Mapping) else call
        name = function.get("name")
        calls.append((call.get("id"), name if isinstance(name, str) else "", function.get("arguments")))
    return calls


def _parse_arguments(raw: Any) -> Any:
    """Return the arguments of a call as an object.

    If they are not an object, return the value that they are.
    """
    value = raw
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = (
                parse_json(undouble_braces(value, 0) if value.startswith("{{") else value)
                if value.strip()
                else {}
            )
        except NotJson:
            return raw
    return {} if value is None else value


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except NotJson:
        return False


def _find_unknown_action(text: str, request: ModelRequest) -> list[RawCall]:
    """Return the call in a JSON reply if its tool is unknown, so that the model gets an error.

    Otherwise return an empty list.
    """
    try:
        action = parse_json(text)
    except NotJson:
        return []
    match action:
        case {"action": str(tool), **arguments} if tool not in {each.name for each in request.tools}:
            return [(None, tool, arguments)]
        case _:
            return []


def _assign_ids(calls: list[RawCall], request: ModelRequest) -> tuple[ToolCall, ...]:
    """Return the calls with ids that are plain and new in the run."""
    replies = [message for message in request.messages if isinstance(message, AssistantMessage)]
    used_ids = {call.id for message in replies for call in message.calls}
    identified: list[ToolCall] = []
    for unsafe_id, tool, arguments in calls:
        if isinstance(unsafe_id, str) and _ID.fullmatch(unsafe_id) and unsafe_id not in used_ids:
            id_ = unsafe_id
        else:
            id_ = next(
                new for number in count() if (new := f"turn{len(replies):02}{number:03}") not in used_ids
            )
        used_ids.add(id_)
        identified.append(ToolCall(id_, tool[:MAX_NAME_CHARS], arguments))
    return tuple(identified)


def _parse_usage(document: Mapping[str, Any]) -> Usage:
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return Usage()
    return Usage(_parse_count(usage.get("prompt_tokens")), _parse_count(usage.get("completion_tokens")))


def _parse_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 <= value < MAX_TOKENS else 0
