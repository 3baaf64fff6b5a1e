"""Scripted behaviour of a model, computed from the body of a request alone.

    with ChatServer(build_answerer(remember_fact, DIALECTS["tag"])) as server: ...
    with ChatServer(build_answerer(make_random_behavior(seed=7))) as server: ...

`remember_fact` remembers a fact as the prompt requires. It keeps no state: any number of runs may use it at
once. `make_random_behavior` responds at random, reproducibly for the same seed and order of requests. A
behaviour is a function from a `ChatRequest` to an `Intent`; `build_answerer` encodes it in a dialect.
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
    Call,
    Decide,
    Dialect,
    FinishWithText,
    Intent,
    RequestCalls,
    WriteText,
    classify_request,
    encode_response,
)
from muniment.kernel.change import digest
from muniment.testing.chat_server import ChatRequest, Responder

Behavior = Callable[[ChatRequest], Intent]

_HIT_CHARS: Final = 100
"""Characters that identify a line in a result of `grep`, which shows at most 200."""

_PATTERN_CHARS: Final = 60
_TITLE_CHARS: Final = 60
_FENCE_START: Final = re.compile(r"^<<(\w+) (\w+)>>\n", re.MULTILINE)
_SCOPES: Final = re.compile(r"^Scopes of this run: (.*)\.$", re.MULTILINE)
_HIT: Final = re.compile(r"(.+?):\d+: (.*)")
_LINE_NUMBER: Final = re.compile(r"^\d+\t", re.MULTILINE)


def build_answerer(
    behavior: Behavior, dialect: Dialect = DIALECTS["native"]
) -> Callable[[ChatRequest], Responder]:
    """Return a responder for a `ChatServer` that encodes the intents of `behavior` in `dialect`."""
    return lambda request: encode_response(behavior(request), dialect, request.body)


def remember_fact(request: ChatRequest) -> Intent:
    """Return the next step for the fact of the request: search, then write it unless it is known.

    1. If `grep` is offered, search for the start of the first line of the fact.
    2. Read each file with a hit that contains this line; if the file contains the fact, report it.
    3. Otherwise write the fact, verbatim after front matter, to a path derived from its digest.
    4. End with a sentence that contains the path.

    It uses the first writable scope. If the request wants a decision, it returns one.
    """
    if "decision" in classify_request(request.body):
        return Decide({"scope": _find_offered_scope(request.body), "type": "user"})
    parsed = _ParsedRequest.parse(request.body)
    if not parsed.fact:
        return RequestCalls([("ls", {"path": "user"})])  # The request of `muniment doctor`.
    line = next(filter(None, map(str.strip, parsed.fact.splitlines())))
    digits = digest(parsed.fact.encode())[:12]
    title = " ".join(_split_words(line))[:_TITLE_CHARS] or f"Fact {digits}"
    for _, arguments, text in parsed.find_exchanges("write_file"):
        is_saved = text.startswith(("created ", "replaced "))
        return FinishWithText(f"Saved to {arguments.get('path')}." if is_saved else f"Not saved: {text}")
    read = {str(arguments.get("path")): text for _, arguments, text in parsed.find_exchanges("read_file")}
    for path, text in read.items():
        if parsed.fact in _LINE_NUMBER.sub("", text):
            return FinishWithText(f"Already known: {path}")
    for path in _find_paths_with_line(line, parsed):
        if path not in read:
            return RequestCalls([("read_file", {"path": path})])
    if parsed.offers("grep") and not parsed.find_exchanges("grep"):
        return RequestCalls([("grep", {"pattern": re.escape(line[:_PATTERN_CHARS]), "path": ""})])
    if not parsed.offers("write_file"):
        return FinishWithText("Not saved: no turn left for a write.")
    front = f"name: Fact {digits}\ndescription: {json.dumps(title, ensure_ascii=False)}\ntype: user"
    content = f"---\n{front}\n---\n{parsed.fact}\n"
    return RequestCalls([("write_file", {"path": f"{parsed.scope}/fact-{digits}.md", "content": content})])


def _find_offered_scope(body: Mapping[str, Any]) -> str:
    """Return the first scope that the request offers for a decision."""
    match body.get("response_format"):
        case {"json_schema": {"schema": {"properties": {"scope": {"enum": [first, *_]}}}}}:
            return str(first)
        case _:
            found = re.search(r"its scope is (\S+)", str(body["messages"][0]["content"]))
            return found[1] if found else "user"


def find_fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, content) of each fence in a message, without nested ones."""
    position = 0
    while opening := _FENCE_START.search(text, position):
        kind, token = opening.groups()
        closing = f"\n<<end {token}>>"
        end = text.find(closing, opening.end() - 1)
        if end < 0:
            return
        yield kind, text[opening.end() : end]
        position = end + len(closing)


@dataclass(frozen=True, slots=True)
class _ParsedRequest:
    """The content of a request body.

    Attributes:
        fact: the fact to remember.
        scope: the first writable scope.
        exchanges: tool, arguments and result of every answered call.
        offered_tools: text that contains the name of every offered tool.
    """

    fact: str
    scope: str
    exchanges: Sequence[tuple[str, Mapping[str, Any], str]]
    offered_tools: str

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> _ParsedRequest:
        messages = body["messages"]
        job = next(str(message["content"]) for message in messages if message["role"] == "user")
        fact = dict(find_fences(job)).get("fact", "")
        scope_line = _SCOPES.search(job)
        scopes = scope_line[1].split(", ") if scope_line else []
        scope = next((each for each in scopes if not each.endswith(" (read only)")), "user")
        kind = classify_request(body)
        named_in = body.get("tools") if kind == "tools" else body.get("response_format")
        offer = str(messages[0]["content"]) if kind.endswith("in text") else json.dumps(named_in)
        return cls(fact, scope, list(_read_exchanges(messages)), offer)

    def find_exchanges(self, tool: str) -> list[tuple[str, Mapping[str, Any], str]]:
        return [exchange for exchange in self.exchanges if exchange[0] == tool]

    def offers(self, tool: str) -> bool:
        return re.search(rf'"{tool}"|^{tool} \(', self.offered_tools, re.MULTILINE) is not None


def _read_exchanges(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield calls with their results, from tool messages or fences, in order."""
    open_calls: dict[str, Call] = {}
    for message in messages:
        content = str(message.get("content") or "")
        match message["role"]:
            case "assistant":
                open_calls = dict(_read_calls(message))
            case "tool":
                yield (*open_calls.pop(message["tool_call_id"]), content)
            case "user":
                results = (text for kind, text in find_fences(content) if kind == "result")
                for call, text in zip(open_calls.values(), results, strict=False):
                    yield (*call, text)


def _read_calls(message: Mapping[str, Any]) -> Iterator[tuple[str, Call]]:
    """Yield (id, call) of the calls in an earlier assistant message."""
    for each in message.get("tool_calls") or ():
        function = each["function"]
        yield each["id"], (function["name"], json.loads(function["arguments"]))
    for number, line in enumerate(str(message.get("content") or "").split("\n")):
        match _parse_json(line):
            case {"action": str(tool), **arguments}:
                yield f"line {number}", (tool, {str(name): value for name, value in arguments.items()})


def _parse_json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _find_paths_with_line(line: str, parsed: _ParsedRequest) -> Iterator[str]:
    """Yield the paths of grep hits that contain `line`, or as much of it as grep shows."""
    for _, _, text in parsed.find_exchanges("grep"):
        for hit in map(_HIT.match, text.splitlines()):
            if hit is not None and not hit[1].endswith("/MEMORY.md") and line[:_HIT_CHARS] in hit[2]:
                yield hit[1]


def _split_words(line: str) -> list[str]:
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
_ODD_CHARS: Final = (
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


def make_random_behavior(seed: int, *, constrained: bool = False) -> Behavior:
    """Return a behaviour that responds at random: text, JSON, or calls of tools, which may not exist.

    Args:
        seed: of the random numbers.
        constrained: answer a request that has a schema with a random instance of it, as a server with
            constrained decoding does. Strings may contain any Unicode, up to the allowed length.
    """
    numbers = count()

    def choose_intent(request: ChatRequest) -> Intent:
        chance = random.Random(f"{seed} {next(numbers)}")
        match request.body.get("response_format"):
            case {"json_schema": {"schema": schema}} if constrained:
                return WriteText(json.dumps(make_instance(schema, chance)))
            case _:
                return _make_random_intent(chance)

    return choose_intent


def make_instance(schema: Mapping[str, Any], chance: random.Random) -> Any:
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
            return make_instance(chance.choice(options), chance)
        case {"type": "object", **rest}:
            required = rest.get("required", ())
            return {
                name: make_instance(each, chance)
                for name, each in rest.get("properties", {}).items()
                if name in required or _flip_coin(chance)
            }
        case {"type": "array", "items": each}:
            return [make_instance(each, chance) for _ in range(chance.randrange(4))]
        case _:
            return _make_scalar(schema, chance)


def _make_scalar(schema: Mapping[str, Any], chance: random.Random) -> Any:
    match schema:
        case {"type": "string", **rest} if "pattern" not in rest:
            return _make_text(chance, rest.get("minLength", 0), rest.get("maxLength", _SPAN))
        case {"type": "integer", **rest}:
            low = rest.get("minimum", -_SPAN)
            return chance.randint(low, rest.get("maximum", max(low, 0) + _SPAN))
        case {"type": "boolean"}:
            return _flip_coin(chance)
        case {"type": "null"}:
            return None
    raise ValueError(f"unsupported schema {schema} in a request")


def _make_text(chance: random.Random, min_chars: int, max_chars: int) -> str:
    """Return a text of `min_chars` to `max_chars` characters, mixed from special markers and any other
    characters.
    """
    length = chance.randint(min_chars, chance.choice((min(max_chars, min_chars + _SPAN), max_chars)))
    text = ""
    while len(text) < length:
        any_character = chr(chance.choice((chance.randrange(0xD800), chance.randrange(0xE000, 0x110000))))
        text += chance.choice(
            (chance.choice(_PATHS + _MARKS + _ODD_CHARS), any_character, chr(chance.randrange(32, 127)))
        )
    return text[:length]


def _flip_coin(chance: random.Random) -> bool:
    return chance.choice((True, False))


def _make_random_intent(chance: random.Random) -> Intent:
    match chance.randrange(4):
        case 0:
            return FinishWithText(_make_text(chance, 0, 5 * _SPAN))
        case 1:
            return WriteText(_make_text(chance, 0, 5 * _SPAN))
        case 2:
            return WriteText(json.dumps(_make_value(chance, 3)))
        case _:
            return RequestCalls([_make_call(chance) for _ in range(chance.randint(1, 3))])


def _make_call(chance: random.Random) -> Call:
    tool = chance.choice((*_TOOLS, _make_text(chance, 0, _SPAN)))
    names = chance.sample(_NAMES, chance.randint(0, 4))
    return tool, {
        name: chance.choice((_make_text(chance, 0, _SPAN), _make_value(chance, 1))) for name in names
    }


def _make_value(chance: random.Random, depth: int) -> Any:
    """Return a random JSON value with at most `depth` levels."""
    match chance.randrange(6 if depth else 4):
        case 0:
            return chance.choice((None, True, False, 0, -1, 10**20, 0.5, 1e300))
        case 4:
            return [_make_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        case 5:
            return {chance.choice(_NAMES): _make_value(chance, depth - 1) for _ in range(chance.randrange(4))}
        case _:
            return chance.choice((_make_text(chance, 0, _SPAN), "\ud83d"))
