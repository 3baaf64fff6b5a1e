"""Calls as objects of JSON, in the shapes in which models write them.

An object names its tool under `name`, `tool`, `tool_name`, `function` or `action`, and holds the
arguments under `arguments`, `parameters`, `args`, `input` or `action_input` (an object, or the JSON text
of one), or flat beside the name. `{"type": "function", "function": {...}}` is what it wraps. An object
that says `done` in place of a tool has finished; its `summary` is words.

An object that could be read in two ways is not read at all.

Apart from `spoken.py`, which finds where calls begin: an object is read the same way wherever it is found.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from muniment.content.exact_json import NotJson, first_json, parse_json

MAX_DOCUMENTS: Final = 32
"""Documents read in a row; a run may make fewer calls in all."""

DONE: Final = "done"
"""What an object names in place of a tool to say that the model has finished."""

TOOL_KEYS: Final = ("name", "tool", "tool_name", "function", "action")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "action_input")
SEPARATORS: Final = " \t\r\n;,"
"""What may stand between documents in a row."""

_BESIDES: Final = frozenset({"id", "type", "tool_call_id"})


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call, its arguments unchecked, and the text that it was read from."""

    tool: str
    arguments: dict[str, Any]
    source: str


def read_calls(
    text: str, at: int, offered: Collection[str], *, is_certain: bool = False
) -> tuple[tuple[JsonCall, ...], int]:
    """The calls of the JSON documents in a row that begin exactly at `text[at]`, and where the last one ends.

    Each document is an object or a list of objects. If any is no call, none is.

    Args:
        text: any text.
        at: where the first document begins.
        offered: names of the tools on offer; an object that names none of them is no call.
        is_certain: calls were announced, so that a tool need not be on offer to be one.

    Raises:
        NotJson: the first document cannot be read; an object is a call that cannot be read; or it is no
            call where that `is_certain`.

    Cost: linear in the documents; where one cannot be read, in the rest of the text.
    """
    calls: list[JsonCall | None] = []
    end, following = at, at
    for _ in range(MAX_DOCUMENTS):
        try:
            value, end = first_json(text, following)
        except NotJson:
            if following == at:
                raise
            break
        objects, source = value if isinstance(value, list) else [value], text[following:end]
        calls += [_call(each, offered, source, is_certain=is_certain) for each in objects]
        following = past_separators(text, end)
        if not text.startswith(("{", "["), following):
            break
    found = tuple(call for call in calls if call is not None)
    if is_certain and (not found or len(found) < len(calls)):
        raise NotJson("an object in a call tag names no tool")
    return found if len(found) == len(calls) else (), end


def as_arguments(value: object) -> dict[str, Any]:
    """Arguments, which some models write as JSON in a text, and some leave out.

    Raises:
        NotJson: they are no object.
    """
    if isinstance(value, str) and value:
        value = parse_json(value)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise NotJson("arguments are an object")
    return value


def past_separators(text: str, at: int) -> int:
    """The first index from `at` on that is no separator."""
    return len(text) - len(text[at:].lstrip(SEPARATORS))


def _call(value: object, offered: Collection[str], source: str, *, is_certain: bool) -> JsonCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(inner := value.get("function"), dict):
        value = inner
    named = [(key, value[key]) for key in TOOL_KEYS if isinstance(value.get(key), str)]
    known = [(key, tool) for key, tool in named if tool in offered or tool == DONE]
    given = [key for key in ARGUMENT_KEYS if key in value]
    if not known and not (named and is_certain):
        return None
    if len(known) > 1 or len(given) > 1:
        raise NotJson("an object that names two tools, or holds two sets of arguments")
    key, tool = (known or named)[0]
    flat = {name: each for name, each in value.items() if name != key and name not in _BESIDES}
    return JsonCall(tool, as_arguments(value[given[0]] if given else flat), source)
