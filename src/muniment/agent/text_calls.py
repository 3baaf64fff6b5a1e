"""Read tool calls that a model wrote into its text instead of using the call format of the server.

If a server cannot parse the calls of a model, they appear in the text: as JSON in tags, in code fences or
without both; or completely as tags. They are read here, so that such a model can drive a run. They pass the
same checks as other calls.

The danger is an honest model that *quotes*: the fact, or an entry that it read, contains a call, and its last
words repeat it. So every call must meet these conditions:
S1  The call is outside the model's thinking, and in a position for calls: after a call tag, in a separate
    code fence, or as bare JSON at the very end of the text. Bare JSON that is followed by other text is text.
    After JSON that cannot be read, any bare JSON is text, since it may be a piece of the unreadable JSON.
S2  The call was not shown to the model (`agent/quotation.py`).
S3  Its JSON is strict (`content/exact_json.py`). A call that consists completely of tags is ignored if the
    displayed texts contain such tags, or if one of its arguments does.

Models write calls as JSON in several shapes. An object has the name of its tool under `name`, `tool`,
`tool_name`, `function` or `action`. It has the arguments under `arguments`, `parameters`, `args`, `input` or
`action_input` (an object, or an object as JSON text), or next to the name. `{"type": "function", "function":
{...}}` is a wrapper. An object with `done` as its tool means that the model has finished; its `summary` is
text.

An object that can be read in two ways is ignored.

Not guaranteed: that every call is found. Unreadable calls are reported (`TextCalls.is_broken`), not guessed.

Separate from `response.py`, which reads calls in the call format of the server.

Start at `parse_text_calls`; attacked by `tests/units/agent/test_text_calls.py`. Sources of the forms: the
chat templates of Hermes, Qwen, Llama 3, Mistral, DeepSeek, Kimi and Granite, and reports of their users.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from muniment.agent.quotation import DisplayedTexts, contains_tags
from muniment.content.exact_json import NotJson, parse_first_json, parse_json
from muniment.sandbox.tools.calls import SCHEMAS

MAX_DOCUMENTS: Final = 32
"""Maximum consecutive JSON documents that are read; a run may make fewer calls in total."""

DONE: Final = "done"
"""The name of the tool in an object by which the model reports that it has finished."""

TOOL_KEYS: Final = ("name", "tool", "tool_name", "function", "action")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "action_input")
SEPARATORS: Final = " \t\r\n;,"
"""Characters that may separate consecutive JSON documents."""

_IGNORED_KEYS: Final = frozenset({"id", "type", "tool_call_id"})


MAX_CHARS: Final = 262_144
"""Maximum characters of a text that are read; the rest is dropped. No valid call is so long."""

MAX_CALLS: Final = 32
"""Maximum calls of one text that are read, including quoted ones; about as many as a run may make."""

MAX_ATTEMPTS: Final = 64
"""Maximum positions of one text at which reading a call is tried.

A text with more positions is a listing, and none of its calls is read.
"""

_HEAD_CHARS: Final = 60
"""Characters at the beginning of an unreadable call that identify its tool; only they are compared."""

# In the special tokens of models, \uff5c is a wide bar and \u2581 a low block. Quantifiers over text that may
# repeat are possessive, so that no text is scanned twice for one match.
_TOKEN: Final = re.compile(
    r"""<(?P<thinking>think|thinking|reasoning)>
      | (?P<thought></(?:think|thinking|reasoning)>)
      | (?P<tag><(?:tool|function)_calls?>|<tools?>|\[TOOL_CALLS\]
          |<[|\uff5c](?:tool[_\u2581]call(?:[_\u2581](?:start|begin))?|python_tag)[|\uff5c]>)
      | <(?:function|invoke)(?:=|[ ]name=)"?(?P<function>[\w.-]{1,80}+)"?>
      | (?P<noise></(?:(?:tool|function)_calls?|tools?|function|invoke)>
          |<[|\uff5c][\w\u2581]{1,40}+[|\uff5c]>)
      | (?P<fence>```(?:json|tool_calls?|tool)?\s*+(?=[\[{]))
      | (?P<bare>\{(?=\s*+["'])|\[(?=\s*+\{))""",
    re.VERBOSE,
)
_HEADER: Final = re.compile(
    r"""\s*+(?:function<[|\uff5c]tool[_\u2581]sep[|\uff5c]>)?
        (?:functions\.)?(?:(?P<tool>[\w-]{1,80}+)(?::\d{1,4}+)?(?P<apart>[ ])?)?
        \s*+(?:\[CALL_ID\]\w{1,40}+)?(?:\[ARGS\]|<[|\uff5c]tool[\w\u2581]{1,40}+[|\uff5c]>)?
        \s*+(?:```(?:json)?\s*+)?(?=[\[{])""",
    re.VERBOSE,
)
"""Matches the text between a call tag and JSON: empty, or the name of the tool with separators."""

_WRAPPED: Final = re.compile(r"\s*+<")
_CALL_START: Final = re.compile(r"\s*+(?:[\w.-]{1,80}+\s*+)?(?:[(<{\[]|\Z)")
_PARAMETER: Final = re.compile(r'\s*+<(parameter|param)(?:=| name=)"?([\w.-]{1,60}+)"?>')
_FUNCTION_END: Final = re.compile(r"\s*+</(?:function|invoke)>")
_FENCE_END: Final = re.compile(r"\s*+(?:```|\Z)")
_TAG_END: Final = re.compile(r"(?:\s*+```)?\s*+</(?:(?:tool|function)_calls?|tools?)>|\s*+```")
_NAMED_FIRST: Final = re.compile(rf'[\[{{\s]*+"(?:{"|".join((*TOOL_KEYS, *ARGUMENT_KEYS))})"\s*+:')
_INTEGER: Final = re.compile(r"\s*+-?[0-9]{1,18}+\s*+")


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call that was read from a text.

    Attributes:
        tool: the name of the tool.
        arguments: the arguments; they are not checked yet.
        source: the text of the call.
    """

    tool: str
    arguments: dict[str, Any]
    source: str


@dataclass(frozen=True, slots=True)
class TextCalls:
    """The text of a model, split into calls and words.

    Attributes:
        calls: tool and arguments of each call, in the order of the text, at most `MAX_CALLS`. The arguments
            are a JSON object that is not checked yet. The tool may be unknown if a tag clearly marks a call.
        text: the other text, without thinking and without the text of `calls`. Quoted calls are part of it.
        is_broken: whether the text contains the beginning of a call but no readable call. Then `text` does
            not count as the last words of the model.
    """

    calls: tuple[tuple[str, dict[str, Any]], ...]
    text: str
    is_broken: bool


@dataclass(frozen=True, slots=True)
class _TextPart:
    """A part of a text that does not consist of plain words.

    Attributes:
        kind: the kind of the part. Calls in a `bare` part count only at the end of the text.
        start: index of its first character.
        end: index after its last character.
        calls: the calls in it.
    """

    kind: Literal["thought", "noise", "call", "in_tags", "bare", "debris"]
    start: int
    end: int
    calls: tuple[JsonCall, ...] = ()


def parse_text_calls(
    text: str, available_tools: Collection[str], displayed_texts: Sequence[str]
) -> TextCalls:
    """Return the calls that a model wrote into its text, and the other words of the text.

    Args:
        text: the text of the model; any text.
        available_tools: the names of the available tools. In a code fence, or as bare JSON, an object is a
            call only if it names one of them.
        displayed_texts: the data that the model saw: its job and the results of tools. Instructions are not
            part of it, because a model may follow their examples.

    Cost: linear in `text` and `displayed_texts`; for a hostile text, at most `MAX_ATTEMPTS` times
        `MAX_CHARS`.
    """
    scanned = text[:MAX_CHARS]
    parts = _split_text(scanned, available_tools)
    displayed = DisplayedTexts.from_texts(
        displayed_texts if any(part.kind not in {"thought", "noise"} for part in parts) else ()
    )
    tail, begin = _find_tail(text, parts), _find_start(scanned, parts)
    calls: list[JsonCall] = []
    calls_left = MAX_CALLS
    removed_parts = [part for part in parts if part.kind == "thought"]
    is_broken = False
    for part in parts:
        part_calls = part.calls[:calls_left]
        calls_left -= len(part_calls)
        unquoted = tuple(
            call
            for call in part_calls
            if not (displayed.contains(call.source) or displayed.contains_call(call.tool, call.arguments))
        )
        is_in_tags = part.kind == "in_tags" and not displayed.has_tags
        if part.kind == "debris":
            is_broken = not displayed.contains(scanned[part.start : part.start + _HEAD_CHARS])
        elif part.kind == "call" or is_in_tags or (part.kind == "bare" and part.start >= tail):
            calls += unquoted
            removed_parts += [part] if unquoted == part.calls else []
        elif unquoted and (part.kind == "in_tags" or part.start == begin):
            is_broken = True
        if is_broken:
            break  # The rest of the text may be a piece of the broken call.
    tool_calls = [(call.tool, call.arguments) for call in calls if not _is_done(call, available_tools)]
    removed_parts += [part for part in parts if part.kind == "noise" and calls]
    return TextCalls(
        tuple(tool_calls),
        _remove_parts(scanned, removed_parts, available_tools),
        is_broken=is_broken and not tool_calls,
    )


def _split_text(text: str, offered: Collection[str]) -> list[_TextPart]:
    """Return the parts of a text that are not plain words, in order.

    Args:
        text: the text of the model.
        offered: the names of the available tools.
    """
    parts: list[_TextPart] = []
    position, attempts, may_be_bare = 0, 0, True
    while (token := _TOKEN.search(text, position)) is not None:
        kind, start, position = token.lastgroup, token.start(), token.end()
        if kind == "thinking":
            closing = f"</{token['thinking']}>"
            found = text.find(closing, position)
            position = len(text) if found < 0 else found + len(closing)
            parts.append(_TextPart("thought", start, position))
        elif kind == "thought":  # The prompt opened the thinking, so all text up to here is thinking.
            parts, may_be_bare = [_TextPart("thought", 0, position)], True
        elif kind == "noise":
            parts.append(_TextPart("noise", start, position))
        elif kind != "bare" or may_be_bare:
            attempts += 1
            if attempts > MAX_ATTEMPTS:
                return [part for part in parts if part.kind in {"thought", "debris"}]
            part = _read_part(text, token, offered, is_first=start == _find_start(text, parts))
            if part is not None:
                parts.append(part)
                position = part.end
            if part.kind == "debris" if part else kind == "bare":
                may_be_bare = False
    return parts


def _find_start(text: str, parts: Sequence[_TextPart]) -> int:
    """Return the index at which the text after the model's thinking starts."""
    position = 0
    for part in parts:
        if part.kind != "thought" or text[position : part.start].strip():
            break
        position = part.end
    return len(text) - len(text[position:].lstrip())


def _find_tail(text: str, parts: Sequence[_TextPart]) -> int:
    """Return the index from which the text contains only calls and separators."""
    end = len(text)
    for part in reversed(parts):
        ends_tail = part.kind == "debris" or (part.kind == "bare" and not part.calls)
        if ends_tail or text[part.end : end].strip(SEPARATORS):
            break
        end = part.start
    return end


def _remove_parts(text: str, removed_parts: Sequence[_TextPart], offered: Collection[str]) -> str:
    """Return the text without the given parts.

    A part by which the model reports that it has finished is replaced by its summary.

    Args:
        text: the text of the model.
        removed_parts: the parts to remove.
        offered: the names of the available tools.
    """
    pieces, position = [], 0
    for part in sorted(removed_parts, key=lambda part: part.start):
        summaries = [call.arguments.get("summary") for call in part.calls if _is_done(call, offered)]
        pieces += [
            text[position : part.start],
            *(each if isinstance(each, str) else DONE for each in summaries),
        ]
        position = part.end
    return "".join([*pieces, text[position:]]).strip()


def _is_done(call: JsonCall, offered: Collection[str]) -> bool:
    return call.tool == DONE and DONE not in offered


def _read_part(
    text: str, token: re.Match[str], offered: Collection[str], *, is_first: bool
) -> _TextPart | None:
    """Return the part of the text that begins with a token, or None if it consists only of words.

    Args:
        text: the text of the model.
        token: the match of `_TOKEN` at which the part begins.
        offered: the names of the available tools.
        is_first: whether the part is at the beginning of the text after the thinking.
    """
    kind, (start, position) = token.lastgroup, token.span()
    try:
        if kind == "tag":
            return _read_tagged(text, start, position, offered)
        if kind == "function":
            return _read_tag_call(text, token)
        position = position if kind == "fence" else start
        calls, end = parse_json_calls(text, position, offered)
    except NotJson:
        head = text[position : position + _HEAD_CHARS].replace("'", '"')
        looks_like_call = any(f'"{tool}"' in head for tool in offered) or (
            is_first and _NAMED_FIRST.match(head)
        )
        return (
            _TextPart("debris", start, token.end())
            if kind in {"tag", "function"} or looks_like_call
            else None
        )
    closing = _FENCE_END.match(text, end) if kind == "fence" and calls else None
    return _TextPart("call", start, closing.end(), calls) if closing else _TextPart("bare", start, end, calls)


def _read_tagged(text: str, start: int, tag_end: int, offered: Collection[str]) -> _TextPart | None:
    """Return the part that begins with a call tag: JSON objects, or the name of a tool and its arguments.

    Return None if the text only mentions the tag.

    Args:
        text: the text of the model.
        start: index at which the tag begins.
        tag_end: index at which the tag ends.
        offered: the names of the available tools.

    Raises:
        NotJson: the tag begins a call that cannot be read.
    """
    header = _HEADER.match(text, tag_end)
    if header is not None and (header["apart"] is None or header["tool"] in offered):
        if header["tool"] is None:
            calls, end = parse_json_calls(text, header.end(), offered, is_certain=True)
        else:
            value, end = parse_first_json(text, header.end())
            calls = (JsonCall(header["tool"], parse_arguments(value), text[start:end]),)
        closing = _TAG_END.match(text, end)
        return _TextPart("call", start, closing.end() if closing else end, calls)
    if _WRAPPED.match(text, tag_end):
        return _TextPart("noise", start, tag_end)
    first_word = text[tag_end : tag_end + _HEAD_CHARS].split(maxsplit=1)[:1]
    if _CALL_START.match(text, tag_end) or any(word in offered for word in first_word):
        raise NotJson("a call tag without JSON")
    return None


def _read_tag_call(text: str, token: re.Match[str]) -> _TextPart:
    """Return the call after a tag that names its tool.

    Its arguments are JSON, or each argument has a separate tag.

    Raises:
        NotJson: the call is cut off or ambiguous.
    """
    tool, (start, position) = token["function"], token.span()
    brace = skip_separators(text, position)
    if text.startswith("{", brace):
        value, end = parse_first_json(text, brace)
        return _TextPart("call", start, end, (JsonCall(tool, parse_arguments(value), text[start:end]),))
    arguments: dict[str, Any] = {}
    while (opening := _PARAMETER.match(text, position)) is not None:
        tag, name = opening.groups()
        closing = text.find(f"</{tag}>", opening.end())
        value = text[opening.end() : closing]
        if closing < 0 or name in arguments or contains_tags(value):
            raise NotJson("an argument that is cut off, or occurs twice, or contains tags")
        arguments[name] = _convert_argument(tool, name, value.removeprefix("\n").removesuffix("\n"))
        position = closing + len(f"</{tag}>")
    if (ending := _FUNCTION_END.match(text, position)) is None:
        raise NotJson("a call that is cut off")
    return _TextPart("in_tags", start, ending.end(), (JsonCall(tool, arguments, text[start : ending.end()]),))


def _convert_argument(tool: str, name: str, value: str) -> str | int | bool:
    """Convert the text of an argument to the type that the tool expects.

    Between tags, every value is a text.
    """
    schema = SCHEMAS.get(tool, {}).get(name, {})
    if schema.get("type") == "integer" and _INTEGER.fullmatch(value):
        return int(value)
    if schema.get("type") == "boolean":
        return {"true": True, "false": False}.get(value.strip().lower(), value)
    return value


def parse_json_calls(
    text: str, start: int, offered: Collection[str], *, is_certain: bool = False
) -> tuple[tuple[JsonCall, ...], int]:
    """Return the calls in consecutive JSON documents, and the index after the last document.

    Each document is an object or a list of objects. If one of the objects is not a call, the tuple of calls
    is empty.

    Args:
        text: any text.
        start: index of the first document.
        offered: the names of the available tools; an object that names none of them is not a call.
        is_certain: whether the text has announced calls, so that the tool may be unknown.

    Raises:
        NotJson: the first document cannot be read, or a call in it cannot be read. If `is_certain`, this is
            also raised for an object that is not a call.

    Cost: linear in the documents; if one cannot be read, linear in the rest of the text.
    """
    calls: list[JsonCall | None] = []
    end, next_start = start, start
    for _ in range(MAX_DOCUMENTS):
        try:
            value, end = parse_first_json(text, next_start)
        except NotJson:
            if next_start == start:
                raise
            break
        objects, source = value if isinstance(value, list) else [value], text[next_start:end]
        calls += [_parse_call(each, offered, source, is_certain=is_certain) for each in objects]
        next_start = skip_separators(text, end)
        if not text.startswith(("{", "["), next_start):
            break
    found = tuple(call for call in calls if call is not None)
    if is_certain and (not found or len(found) < len(calls)):
        raise NotJson("an object in a call tag has no tool")
    return found if len(found) == len(calls) else (), end


def parse_arguments(value: object) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    Some models write them as JSON in a text, and some omit them (the result is then empty).

    Raises:
        NotJson: the arguments are not an object.
    """
    if isinstance(value, str) and value:
        value = parse_json(value)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise NotJson("arguments must be an object")
    return value


def skip_separators(text: str, start: int) -> int:
    """Return the first index, from `start` on, at which the character is not a separator."""
    return len(text) - len(text[start:].lstrip(SEPARATORS))


def _parse_call(value: object, offered: Collection[str], source: str, *, is_certain: bool) -> JsonCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(inner := value.get("function"), dict):
        value = inner
    named_tools = [(key, value[key]) for key in TOOL_KEYS if isinstance(value.get(key), str)]
    known_tools = [(key, tool) for key, tool in named_tools if tool in offered or tool == DONE]
    argument_keys = [key for key in ARGUMENT_KEYS if key in value]
    if not known_tools and not (named_tools and is_certain):
        return None
    if len(known_tools) > 1 or len(argument_keys) > 1:
        raise NotJson("an object with two tools, or with two sets of arguments")
    key, tool = (known_tools or named_tools)[0]
    flat_arguments = {name: each for name, each in value.items() if name != key and name not in _IGNORED_KEYS}
    return JsonCall(
        tool, parse_arguments(value[argument_keys[0]] if argument_keys else flat_arguments), source
    )
