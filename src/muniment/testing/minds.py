"""What a scripted model thinks, from the body of a request alone.

    with ChatServer(through(perfect, DIALECTS["tag"])) as server: ...
    with ChatServer(through(noise(seed=7))) as server: ...

`perfect` does what a model is asked to do when a fact is to be remembered; it keeps no state, so that any
number of runs may ask it at once. `noise` does anything at all, the same for the same seed and order of
requests. A mind is any function from a `ChatRequest` to a `Thought`; `through` spells it in a dialect.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Literal

from muniment.agent.model import ModelError, ModelRequest, Reply, ToolCall
from muniment.kernel.change import digest
from muniment.testing.chat_server import Answer, ChatRequest, Response, completion, tool_call

# -- scripted ----------------------------------------------------------------------------------------
#
# Models that follow a script: for tests of programs that embed Muniment, and for its own.
#
# `model = ScriptedModel([`
#     `calls(call("write_file", path="user/editor.md", content="Prefers dark mode.\n")),`
#     `say("Saved to user/editor.md."),`
# `])`

Step = Reply | Callable[[ModelRequest], Reply]


def call(tool: str, **arguments: Any) -> ToolCall:
    """A call of `tool`."""
    return ToolCall(f"call-{tool}", tool, arguments)


def calls(*requested: ToolCall) -> Reply:
    """A reply that asks for tool calls."""
    return Reply(calls=requested)


def say(text: str) -> Reply:
    """A reply in words."""
    return Reply(text=text)


class ScriptedModel:
    """Answers the turns of a run with the steps of a script, in order.

    A step is a `Reply`, or a function from the `Request` to one, which may raise. `requests` keeps what
    was asked. A run that asks for more steps than there are gets the last words again, if these were the last
    step, else a `ModelError`.
    """

    def __init__(self, steps: Iterable[Step], name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._steps = iter(steps)
        self._last = Reply()

    def respond(self, request: ModelRequest) -> Reply:
        """The next step of the script."""
        self.requests.append(request)
        for step in self._steps:
            self._last = step(request) if callable(step) else step
            return self._last
        if self._last.text and not self._last.calls:
            return self._last
        raise ModelError("the script has no further step")


# -- clock -------------------------------------------------------------------------------------------
#
# A monotonic clock that moves only when told to.


class FakeClock:
    """Call it for the time in seconds; `advance` moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Seconds since an arbitrary moment."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now += seconds


# -- dialects ----------------------------------------------------------------------------------------
#
# How servers and models spell what a model wants: the same calls, in many ways.
#
#     `ChatServer(through(perfect, DIALECTS["unclosed tag"]))`
#
# A `Dialect` matters where the request offers tools, and in part where a JSON action is asked for in the
# prompt alone; a server that is asked for a schema spells its answer in one way only. Which of these a
# request is (`asked_for`) is read from its body.
#
# Sources: the OpenAI API reference, the chat templates of the models named beside each dialect, and the
# issue trackers of the servers that should have parsed them and did not.

Call = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""

AskedFor = Literal["tools", "action", "action in text", "decision", "decision in text", "words"]


@dataclass(frozen=True, slots=True)
class Say:
    """The model is done and says so."""

    text: str


@dataclass(frozen=True, slots=True)
class AskForCalls:
    """The model wants these calls made. Where actions are asked for, it takes the first one only."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Decide:
    """The model decides where a fact belongs."""

    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Utter:
    """The model writes this, whatever it was asked for."""

    content: str


Thought = Say | AskForCalls | Decide | Utter


@dataclass(frozen=True, slots=True)
class SpokenMessage:
    """The keys of a message beside its role, and why the model stopped."""

    message: Mapping[str, Any]
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to spell what a model wants.

    Attributes:
        speak: calls as a message; the text begins the ids of its calls.
        wrap: a JSON object as the words of a model that was asked for one in the prompt.
        before: what the model writes before anything else.
    """

    speak: Callable[[Sequence[Call], str], SpokenMessage]
    wrap: Callable[[str], str] = str
    before: str = ""


def asked_for(body: Mapping[str, Any]) -> AskedFor:
    """What the body of a request wants its answer to be."""
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
    """`thought` in `dialect`, as an answer to the request with this body."""
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
    """`dialect` behind a block of thought, in which the model drafts another call and drops it."""
    return replace(dialect, before=_THOUGHTS)


def _object(thought: Say | AskForCalls | Decide) -> Mapping[str, Any]:
    """The JSON object of an action or decision."""
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


# -- calls in their own place --------------------------------------------------------------------------


def _native(calls: Sequence[Call], stem: str) -> SpokenMessage:
    listed = [
        tool_call(tool, dict(arguments), f"{stem}-{number}") for number, (tool, arguments) in enumerate(calls)
    ]
    return SpokenMessage({"content": None, "tool_calls": listed}, "tool_calls")


def _native_but(change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Dialect:
    """Native calls, each of them changed."""

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


# -- calls in the words --------------------------------------------------------------------------------


def _in_words(
    spell_one: Callable[[str, str], str], wrap: Callable[[str], str] = str, around: str = "{}"
) -> Dialect:
    """Calls written one after the other, each from its tool and its arguments as JSON."""

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
        {"content": json.dumps([{"name": tool, "arguments": dict(given)} for tool, given in calls])}
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
    """A token of DeepSeek, which writes bars and blanks of its own."""
    return f"<\uff5c{token.replace(' ', chr(0x2581))}\uff5c>"


_SEP, _CALL, _END = _deepseek("tool sep"), _deepseek("tool call begin"), _deepseek("tool call end")
_CALLS: Final = f"{_deepseek('tool calls begin')}{{}}{_deepseek('tool calls end')}"

_HERMES: Final = _in_words(lambda tool, given: f"<tool_call>\n{_named(tool, given)}\n</tool_call>")
_BARE: Final = _in_words(_named)

DIALECTS: Final[Mapping[str, Dialect]] = {
    "native": Dialect(_native),
    "native, no ids": _native_but(lambda call: {key: call[key] for key in call if key != "id"}),
    "native, arguments as an object": _native_but(lambda call: _with_arguments(call, json.loads)),
    "native, arguments encoded twice": _native_but(lambda call: _with_arguments(call, json.dumps)),
    "native, finish_reason stop": Dialect(lambda calls, stem: SpokenMessage(_native(calls, stem).message)),
    "legacy function_call": Dialect(_legacy),
    "fence": _in_words(lambda tool, given: _fenced(_named(tool, given)), _fenced),
    "prose and fence": _in_words(lambda tool, given: _chatty(_named(tool, given)), _chatty),
    "tag": _HERMES,  # Hermes, Qwen
    "unclosed tag": _in_words(lambda tool, given: f"<tool_call>\n{_named(tool, given)}"),
    "bare": _BARE,
    "bare, parameters": _in_words(_parametrised),  # Llama 3
    "bare, tool and args": _in_words(lambda tool, given: f'{{"tool": {json.dumps(tool)}, "args": {given}}}'),
    "bare, function": _in_words(
        lambda tool, given: f'{{"type": "function", "function": {_named(tool, given)}}}'
    ),
    "list": Dialect(_listed),
    "python tag": _in_words(_parametrised, around="<|python_tag|>{}"),  # Llama 3.1
    "function tag": _in_words(lambda tool, given: f"<function={tool}>{given}</function>"),  # Llama 3.1
    "TOOL_CALLS": Dialect(_mistral),  # Mistral
    "xml": _in_words(_as_xml),  # Qwen3-Coder
    "deepseek": _in_words(
        lambda tool, given: f"{_CALL}function{_SEP}{tool}\n{_fenced(given)}{_END}", around=_CALLS
    ),
    "deepseek 3.1": _in_words(lambda tool, given: f"{_CALL}{tool}{_SEP}{given}{_END}", around=_CALLS),
    "thinking, native": thinking(Dialect(_native)),
    "thinking, tag": thinking(_HERMES),
    "thinking, bare": thinking(_BARE),
}
"""Every dialect, by name."""


# -- minds -------------------------------------------------------------------------------------------

Mind = Callable[[ChatRequest], Thought]

_HIT_CHARS: Final = 100
"""Characters by which a line is recognised in a result of `grep`, which shows no more than 200."""

_SOUGHT_CHARS: Final = 60
_TITLE_CHARS: Final = 60
_OPENING: Final = re.compile(r"^<<(\w+) (\w+)>>\n", re.MULTILINE)
_SCOPES: Final = re.compile(r"^Scopes of this run: (.*)\.$", re.MULTILINE)
_HIT: Final = re.compile(r"(.+?):\d+: (.*)")
_LINE_NUMBER: Final = re.compile(r"^\d+\t", re.MULTILINE)


def through(mind: Mind, dialect: Dialect = DIALECTS["native"]) -> Callable[[ChatRequest], Answer]:
    """What `mind` thinks, in `dialect`, for a `ChatServer`."""
    return lambda request: spell(mind(request), dialect, request.body)


# -- a mind that does its job --------------------------------------------------------------------------


def perfect(request: ChatRequest) -> Thought:
    """The next step for the fact of the request: look for it, and write it unless it is known.

    1. Where `grep` is offered, it looks for the beginning of the fact's first line.
    2. It reads each file of which a line found holds that line; if the file holds the fact, it says so.
    3. Else it writes the fact, verbatim and behind front matter, to a path made of its digest.
    4. It ends with a sentence that names the path.

    It takes the first scope that it may write. Asked for a decision, it decides so.
    """
    if "decision" in asked_for(request.body):
        return Decide({"scope": _offered_scope(request.body), "type": "user"})
    told = _Body.by(request.body)
    if not told.fact:
        return AskForCalls([("ls", {"path": "user"})])  # What `muniment doctor` asks for.
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
        return Say("Not saved: there is no turn left to write in.")
    front = f"name: Fact {digits}\ndescription: {json.dumps(title, ensure_ascii=False)}\ntype: user"
    content = f"---\n{front}\n---\n{told.fact}\n"
    return AskForCalls([("write_file", {"path": f"{told.scope}/fact-{digits}.md", "content": content})])


def _offered_scope(body: Mapping[str, Any]) -> str:
    """The first scope that a decision may name."""
    match body.get("response_format"):
        case {"json_schema": {"schema": {"properties": {"scope": {"enum": [first, *_]}}}}}:
            return str(first)
        case _:
            found = re.search(r"its scope is (\S+)", str(body["messages"][0]["content"]))
            return found[1] if found else "user"


def fences(text: str) -> Iterator[tuple[str, str]]:
    """(kind, what stands between them) of the fences in a message, none from inside another."""
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
    """What the body of a request tells.

    Attributes:
        fact: the fact to remember.
        scope: the first that may be written.
        exchanges: tool, arguments and result of every call so far that was answered.
        offer: text in which each tool on offer is named.
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
    """Calls with their results, which come as messages of their own or between fences, in order."""
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
    """(id, call) of the calls in an earlier answer, as the history of a request holds them."""
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
    """Paths of entries that the searches found to hold `line`, or as much of it as they show."""
    for _, _, text in told.done("grep"):
        for hit in map(_HIT.match, text.splitlines()):
            if hit is not None and not hit[1].endswith("/MEMORY.md") and line[:_HIT_CHARS] in hit[2]:
                yield hit[1]


def _words(line: str) -> list[str]:
    return re.findall(r"[^\W_]+", line)


# -- a mind that does anything -------------------------------------------------------------------------

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
    """A mind that answers at random: words, JSON, or calls of tools, which may not exist.

    Args:
        seed: of the random numbers.
        constrained: whether a request with a schema is answered with a random instance of it, as by a
            server that holds a model to the schema. Texts may be any Unicode, as long as allowed.
    """
    numbers = count()

    def think(request: ChatRequest) -> Thought:
        chance = random.Random(f"{seed} {next(numbers)}")  # noqa: S311  reproducible on purpose, guards nothing
        match request.body.get("response_format"):
            case {"json_schema": {"schema": schema}} if constrained:
                return Utter(json.dumps(instance(schema, chance)))
            case _:
                return _anything(chance)

    return think


def instance(schema: Mapping[str, Any], chance: random.Random) -> Any:
    """A random value that conforms to a JSON Schema.

    Raises:
        ValueError: the schema is of a kind that no schema of a request here has: `pattern`, say.
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
    raise ValueError(f"no instance of {schema} can be made here")


def _text(chance: random.Random, least: int, most: int) -> str:
    """A text of `least` to `most` characters, of pieces that mean something to someone and of any others."""
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
    """Any JSON, nested at most so deeply."""
    match chance.randrange(6 if depth else 4):
        case 0:
            return chance.choice((None, True, False, 0, -1, 10**20, 0.5, 1e300))
        case 4:
            return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        case 5:
            return {chance.choice(_NAMES): _value(chance, depth - 1) for _ in range(chance.randrange(4))}
        case _:
            return chance.choice((_text(chance, 0, _SPAN), "\ud83d"))
