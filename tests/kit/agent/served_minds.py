"""Scripted behaviour of a model, computed from the body of a request alone.

    with ChatServer(through(perfect, DIALECTS["tag"])) as server: ...
    with ChatServer(through(noise(seed=7))) as server: ...

`perfect` remembers a fact as the prompt requires. It keeps no state: any number of runs may use it at once.
`noise` responds at random, reproducibly for the same seed and order of requests. A behaviour is a function
from a `ChatRequest` to a `Thought`; `through` encodes it in a dialect.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kit.agent.dialects import (
    DIALECTS,
    AskForCalls,
    Call,
    Decide,
    Dialect,
    Say,
    Thought,
    Utter,
    asked_for,
    spell,
)
from muniment.kernel.change import digest
from muniment.testing.chat_server import Answer, ChatRequest

Mind = Callable[[ChatRequest], Thought]

_HIT_CHARS: Final = 100
"""Characters that identify a line in a result of `grep`, which shows at most 200."""

_SOUGHT_CHARS: Final = 60
_TITLE_CHARS: Final = 60
_OPENING: Final = re.compile(r"^<<(\w+) (\w+)>>\n", re.MULTILINE)
_SCOPES: Final = re.compile(r"^Scopes of this run: (.*)\.$", re.MULTILINE)
_HIT: Final = re.compile(r"(.+?):\d+: (.*)")
_LINE_NUMBER: Final = re.compile(r"^\d+\t", re.MULTILINE)


def through(mind: Mind, dialect: Dialect = DIALECTS["native"]) -> Callable[[ChatRequest], Answer]:
    """Return a responder for a `ChatServer` that encodes the thoughts of `mind` in `dialect`."""
    return lambda request: spell(mind(request), dialect, request.body)


def perfect(request: ChatRequest) -> Thought:
    """Return the next step for the fact of the request: search, then write it unless it is known.

    1. If `grep` is offered, search for the start of the first line of the fact.
    2. Read each file with a hit that contains this line; if the file contains the fact, report it.
    3. Otherwise write the fact, verbatim after front matter, to a path derived from its digest.
    4. End with a sentence that contains the path.

    It uses the first writable scope. If the request wants a decision, it returns one.
    """
    if "decision" in asked_for(request.body):
        return Decide({"scope": _offered_scope(request.body), "type": "user"})
    told = _Body.by(request.body)
    if not told.fact:
        return AskForCalls([("ls", {"path": "user"})])  # The request of `muniment doctor`.
    line = next(filter(None, map(str.strip, told.fact.splitlines())))
    digits = digest(told.fact.encode())[:12]
    title = " ".join(_words(line))[:_TITLE_CHARS] or f"Fact {digits}"
    for _, arguments, text in told.done("write_file"):
        is_saved = text.startswith(("created ", "replaced "))
        return Say(f"Saved to {arguments.get('path')}." if is_saved else f"Not saved: {text}")
    read = {str(arguments.get("path")): text for _, arguments, text in told.done("read_file")}
    for path, text in read.items():
        if told.fact in _LINE_NUMBER.sub("", text):
            return Say(f"Already known: {path}")
    for path in _holding(line, told):
        if path not in read:
            return AskForCalls([("read_file", {"path": path})])
    if told.offers("grep") and not told.done("grep"):
        return AskForCalls([("grep", {"pattern": re.escape(line[:_SOUGHT_CHARS]), "path": ""})])
    if not told.offers("write_file"):
        return Say("Not saved: no turn left for a write.")
    front = f"name: Fact {digits}\ndescription: {json.dumps(title, ensure_ascii=False)}\ntype: user"
    content = f"---\n{front}\n---\n{told.fact}\n"
    return AskForCalls([("write_file", {"path": f"{told.scope}/fact-{digits}.md", "content": content})])


def _offered_scope(body: Mapping[str, Any]) -> str:
    """Return the first scope that the request offers for a decision."""
    match body.get("response_format"):
        case {"json_schema": {"schema": {"properties": {"scope": {"enum": [first, *_]}}}}}:
            return str(first)
        case _:
            found = re.search(r"its scope is (\S+)", str(body["messages"][0]["content"]))
            return found[1] if found else "user"


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, content) of each fence in a message, without nested ones."""
    position = 0
    while opening := _OPENING.search(text, position):
        kind, token = opening.groups()
        closing = f"\n<<end {token}>>"
        end = text.find(closing, opening.end() - 1)
        if end < 0:
            return
        yield kind, text[opening.end() : end]
        position = end + len(closing)


@dataclass(frozen=True, slots=True)
class _Body:
    """The content of a request body.

    Attributes:
        fact: the fact to remember.
        scope: the first writable scope.
        exchanges: tool, arguments and result of every answered call.
        offer: text that contains the name of every offered tool.
    """

    fact: str
    scope: str
    exchanges: Sequence[tuple[str, Mapping[str, Any], str]]
    offer: str

    @classmethod
    def by(cls, body: Mapping[str, Any]) -> _Body:
        messages = body["messages"]
        job = next(str(message["content"]) for message in messages if message["role"] == "user")
        fact = dict(fences(job)).get("fact", "")
        listed = _SCOPES.search(job)
        scopes = listed[1].split(", ") if listed else []
        scope = next((each for each in scopes if not each.endswith(" (read only)")), "user")
        wanted = asked_for(body)
        named_in = body.get("tools") if wanted == "tools" else body.get("response_format")
        offer = str(messages[0]["content"]) if wanted.endswith("in text") else json.dumps(named_in)
        return cls(fact, scope, list(_exchanges(messages)), offer)

    def done(self, tool: str) -> list[tuple[str, Mapping[str, Any], str]]:
        return [exchange for exchange in self.exchanges if exchange[0] == tool]

    def offers(self, tool: str) -> bool:
        return re.search(rf'"{tool}"|^{tool} \(', self.offer, re.MULTILINE) is not None


def _exchanges(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield calls with their results, from tool messages or fences, in order."""
    open_calls: dict[str, Call] = {}
    for message in messages:
        content = str(message.get("content") or "")
        match message["role"]:
            case "assistant":
                open_calls = dict(_calls(message))
            case "tool":
                yield (*open_calls.pop(message["tool_call_id"]), content)
            case "user":
                results = (text for kind, text in fences(content) if kind == "result")
                for call, text in zip(open_calls.values(), results, strict=False):
                    yield (*call, text)


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str, Call]]:
    """Yield (id, call) of the calls in an earlier assistant message."""
    for each in message.get("tool_calls") or ():
        function = each["function"]
        yield each["id"], (function["name"], json.loads(function["arguments"]))
    for number, line in enumerate(str(message.get("content") or "").split("\n")):
        match _parsed(line):
            case {"action": str(tool), **arguments}:
                yield f"line {number}", (tool, {str(name): value for name, value in arguments.items()})


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _holding(line: str, told: _Body) -> Iterator[str]:
    """Yield the paths of grep hits that contain `line`, or as much of it as grep shows."""
    for _, _, text in told.done("grep"):
        for hit in map(_HIT.match, text.splitlines()):
            if hit is not None and not hit[1].endswith("/MEMORY.md") and line[:_HIT_CHARS] in hit[2]:
                yield hit[1]


def _words(line: str) -> list[str]:
    return re.findall(r"[^\W_]+", line)


_PATHS: Final = ("user/", "project/", "user/notes.md", "../../etc/passwd", "MEMORY.md", "/", "\0", "\n", "\t")
_MARKS: Final = (
    "---\n",
    "name: ",
    "<<end ",
    "<think>",
    "</think>",
    "<tool_call>",
    "```json\n",
    '{"',
    "}",
    "\\",
)
_SIGNS: Final = (
    "\x1b[31m",
    "\u202e",
    "\u200b",
    "\ufeff",
    "\U0001f600",
    "e\u0301",
    "\u0130",
    "\r\n",
    " ",
    '"',
)
_TOOLS: Final = ("read_file", "grep", "ls", "write_file", "edit")
_NAMES: Final = ("path", "content", "pattern", "old_string", "new_string", "limit", "replace_all", "action")
_SPAN: Final = 40


def noise(seed: int, *, constrained: bool = False) -> Mind:
    """Return a mind that answers at random: text, JSON, or calls of tools, which may not exist.

    Args:
        seed: of the random numbers.
        constrained: answer a request that has a schema with a random instance of it, as a server with
            constrained decoding does. Strings may contain any Unicode, up to the allowed length.
    """
    numbers = count()

    def think(request: ChatRequest) -> Thought:
        chance = random.Random(f"{seed} {next(numbers)}")
        match request.body.get("response_format"):
            case {"json_schema": {"schema": schema}} if constrained:
                return Utter(json.dumps(instance(schema, chance)))
            case _:
                return _anything(chance)

    return think


def instance(schema: Mapping[str, Any], chance: random.Random) -> Any:
    """Return a random value that conforms to a JSON Schema.

    Raises:
        ValueError: unsupported schema, such as one with `pattern`.
    """
    match schema:
        case {"const": value}:
            return value
        case {"enum": values}:
            return chance.choice(values)
        case {"anyOf": options}:
            return instance(chance.choice(options), chance)
        case {"type": "object", **rest}:
            required = rest.get("required", ())
            return {
                name: instance(each, chance)
                for name, each in rest.get("properties", {}).items()
                if name in required or _coin(chance)
            }
        case {"type": "array", "items": each}:
            return [instance(each, chance) for _ in range(chance.randrange(4))]
        case _:
            return _plain_instance(schema, chance)


def _plain_instance(schema: Mapping[str, Any], chance: random.Random) -> Any:
    match schema:
        case {"type": "string", **rest} if "pattern" not in rest:
            return _text(chance, rest.get("minLength", 0), rest.get("maxLength", _SPAN))
        case {"type": "integer", **rest}:
            low = rest.get("minimum", -_SPAN)
            return chance.randint(low, rest.get("maximum", max(low, 0) + _SPAN))
        case {"type": "boolean"}:
            return _coin(chance)
        case {"type": "null"}:
            return None
    raise ValueError(f"unsupported schema {schema} in a request")


def _text(chance: random.Random, least: int, most: int) -> str:
    """Return a text of `least` to `most` characters, mixed from special markers and any other characters."""
    length = chance.randint(least, chance.choice((min(most, least + _SPAN), most)))
    text = ""
    while len(text) < length:
        any_character = chr(chance.choice((chance.randrange(0xD800), chance.randrange(0xE000, 0x110000))))
        text += chance.choice(
            (chance.choice(_PATHS + _MARKS + _SIGNS), any_character, chr(chance.randrange(32, 127)))
        )
    return text[:length]


def _coin(chance: random.Random) -> bool:
    return chance.choice((True, False))


def _anything(chance: random.Random) -> Thought:
    match chance.randrange(4):
        case 0:
            return Say(_text(chance, 0, 5 * _SPAN))
        case 1:
            return Utter(_text(chance, 0, 5 * _SPAN))
        case 2:
            return Utter(json.dumps(_value(chance, 3)))
        case _:
            return AskForCalls([_call(chance) for _ in range(chance.randint(1, 3))])


def _call(chance: random.Random) -> Call:
    tool = chance.choice((*_TOOLS, _text(chance, 0, _SPAN)))
    names = chance.sample(_NAMES, chance.randint(0, 4))
    return tool, {name: chance.choice((_text(chance, 0, _SPAN), _value(chance, 1))) for name in names}


def _value(chance: random.Random, depth: int) -> Any:
    """Return a random JSON value with at most `depth` levels."""
    match chance.randrange(6 if depth else 4):
        case 0:
            return chance.choice((None, True, False, 0, -1, 10**20, 0.5, 1e300))
        case 4:
            return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        case 5:
            return {chance.choice(_NAMES): _value(chance, depth - 1) for _ in range(chance.randrange(4))}
        case _:
            return chance.choice((_text(chance, 0, _SPAN), "\ud83d"))
