"""What a server answered, read without trust: bytes in, a `Reply` out.

Servers and models differ in all that a specification could fix, so presence counts and nothing else does.

A1 Calls are calls whatever `finish_reason` says, except that of an answer cut off at `length` none is
   believed: its last argument may be half of what was meant.
A2 Ids are kept where they are plain and new to the run, else invented: nine letters and digits, which is
   the one form that every chat template takes.
A3 Arguments may be an object, JSON text of one, or JSON text of that text. What is none of these stays
   text, which no tool takes, and the model is told so.
A4 Calls written into the words are recovered where the words are the model's own.
A5 An answer with neither calls nor words, or with the debris of a call, is an empty `Reply`.

Apart from `openai.py`, which does the talking: this is pure, and fuzzed alone.

Source: the OpenAI API reference; what servers answer instead was collected from their issue trackers.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, Final, Literal, Self

from muniment.agent.chat import Form, shown_texts
from muniment.agent.model import (
    AssistantMessage,
    ModelRequest,
    Reply,
    ToolCall,
    Usage,
    undoubled,
)
from muniment.content.exact_json import NotJson, first_json, parse_json
from muniment.content.gates import on_one_line
from muniment.kernel.normal_forms import normalised
from muniment.sandbox.tools.calls import TOOLS, WRITING_TOOLS

# -- complaint ---------------------------------------------------------------------------------------
#
# What a server that does not answer complains of, and what may be done about it.
#
# A pure function of the status and the body. Servers say the same things in different words; the words are
# looked for where the status alone does not tell.
#
# Source: RFC 9110 for the statuses; error texts of the OpenAI API, llama.cpp, vLLM and Ollama.

Kind = Literal["overflow", "limit", "form", "failed", "busy", "final"]
"""What to try: fewer messages; another limit of tokens; another form; the same again and then another
form; the same again; nothing."""

MAX_TOLD_CHARS: Final = 200
"""Characters of a server's own words in an error."""

_OVERFLOW: Final = re.compile(
    r"context[ _-]?(?:length|size|window)|maximum context|too many tokens|(?:prompt|input) is too long",
    re.IGNORECASE,
)
_LIMIT: Final = re.compile(r"max_(?:completion_)?tokens", re.IGNORECASE)
_OF_FORM: Final = re.compile(r"tool|jinja|template|grammar|json_schema|response_format", re.IGNORECASE)
_KEYS: Final = "--api-key-file FILE, or MUNIMENT_API_KEY"
_BUSY: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
_FORM: Final = frozenset({400, 415, 422, 501})


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why there is no answer.

    Attributes:
        kind: what may be tried.
        told: for the operator, one line.
        wait: seconds that the server asks to wait; 0 where it does not.
    """

    kind: Kind
    told: str
    wait: float = 0.0


def complaint_of(status: int, content: bytes, retry_after: str = "", *, has_key: bool = True) -> Complaint:
    """The complaint of an answer with a status other than 2xx.

    Args:
        status: of HTTP.
        content: the body.
        retry_after: the header of that name.
        has_key: whether a key was sent.
    """
    if status == 401 and not has_key:  # noqa: PLR2004  RFC 9110, 15.5.2
        return Complaint("final", f"the server wants a key (401), and none was given; give one: {_KEYS}")
    return _judged(status, _error(content), retry_after)


def _complaint_in(content: bytes) -> Complaint | None:
    """The complaint that came with a 2xx, by the status that its code names, else as 500; None: no error."""
    error = _error(content)
    code = error.get("code")
    status = code if isinstance(code, int) and code in range(400, 600) else 500
    return _judged(status, error, "") if error else None


def _judged(status: int, error: Mapping[str, Any], retry_after: str) -> Complaint:
    words = str(error.get("message") or "").rstrip(". ")
    said = f"{words} {error.get('code') or ''} {error.get('type') or ''}"
    told = f"the server answered {status}" + (f": {_shortened(words)}" if words else "")
    is_of_form = status in _FORM or (status in {404, 500} and _OF_FORM.search(said))
    match status:
        case 401:
            return Complaint("final", f"the server refused the key (401); give one that it takes: {_KEYS}")
        case 404 if not is_of_form:
            return Complaint("final", f"{told}; check the model's name, and that the base URL ends in /v1")
        case 413:
            return Complaint("overflow", told)
        case _ if status in range(300, 400):
            return Complaint(
                "final",
                f"the server answered with a redirect ({status}), which is never followed; "
                "give the address that answers as base URL",
            )
    if status in {*_FORM, 500} and _OVERFLOW.search(said):
        return Complaint("overflow", told)
    if status in _FORM and _LIMIT.search(said):
        return Complaint("limit", told)
    if is_of_form:
        return Complaint("form", told)
    if status in _BUSY:
        return Complaint("busy", told, _seconds(retry_after))
    if status >= 500:  # noqa: PLR2004  RFC 9110, 15.6
        return Complaint("failed", told, _seconds(retry_after))
    return Complaint("final", told)


def _error(content: bytes) -> dict[str, Any]:
    """The error object of a body, with `message` where one was told; empty where there is none."""
    try:
        document = parse_json(content)
    except NotJson:
        return {}
    match document:
        case {"error": dict(error)}:
            return error
        case {"error": str(message)}:
            return {"message": message}
        case {"message": str()}:
            return dict(document)
        case {"detail": str(message)}:
            return {"message": message}
        case _:
            return {}


def _shortened(words: str) -> str:
    line = on_one_line(words[: 4 * MAX_TOLD_CHARS])
    return line if len(line) <= MAX_TOLD_CHARS else f"{line[:MAX_TOLD_CHARS]}…"


def _seconds(retry_after: str) -> float:
    """Seconds of a `Retry-After`, given as a number or as a date; 0 where it is neither."""
    with suppress(ValueError, OverflowError):
        return max(0.0, float(int(retry_after)))
    with suppress(ValueError, OverflowError, TypeError):
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    return 0.0


# -- json calls --------------------------------------------------------------------------------------
#
# Calls as objects of JSON, in the shapes in which models write them.
#
# An object names its tool under `name`, `tool`, `tool_name`, `function` or `action`, and holds the
# arguments under `arguments`, `parameters`, `args`, `input` or `action_input` (an object, or the JSON text
# of one), or flat beside the name. `{"type": "function", "function": {...}}` is what it wraps. An object
# that says `done` in place of a tool has finished; its `summary` is words.
#
# An object that could be read in two ways is not read at all.

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


# -- quotation ---------------------------------------------------------------------------------------
#
# Whether a call was only quoted: an honest model repeats what it was shown, and that may hold a call.
#
# Q1  A call whose own text, or whose tool and arguments, in any order, were shown to the model, is quoted.
# Q2  Letters are compared and nothing else, with escapes resolved: no change of white space, quotation marks,
#     escaping, case, digits or line numbers hides a quotation.
# Q3  Of several arguments the last is compared by name alone: a quotation whose end is left open (a string
#     that the fact does not close) goes on in the model's own words.
#
# In doubt it is a quotation, save for a reading call without any text, which does next to nothing. What
# does not hold: a model that was talked into a call of its own making, or tells in other words or another
# notation what it was shown, is not quoting.
#
# Start at `ShownTexts`; attacked by `tests/units/agent/test_spoken.py`.

MAX_TEXTS: Final = 12
"""Texts among the arguments of a call that are compared: the first ones. No tool takes as many."""

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_LEFT_OUT: Final = re.compile(r"\.{3,}|\u2026")
_ESCAPES: Final = re.compile(r"(?<!\\)(?:(?:\\++u[0-9a-fA-F]{4})+|\\++[nrtbf])")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_FOUND_AT: Final = re.compile(r"^\S+:\d+: ", re.MULTILINE)
"""What `grep` puts before a line; `read_file` puts digits there, which are not compared."""

_TAG_FORM: Final = re.compile(r"<\s*+/?\s*+(?:function|invoke|parameter|param)(?![a-z])", re.IGNORECASE)

_BEFORE: Final = (
    "name",
    "tool",
    "function",
    "functions",
    "invoke",
    "action",
    "call",
    "calls",
    "tools",
    "tag",
    "sep",
    "begin",
    "start",
)
"""What may stand right before the name of a tool in a call, by its letters."""


@dataclass(frozen=True, slots=True)
class ShownTexts:
    """The texts shown to a model, as they are compared.

    Attributes:
        letters: theirs, thrice: with escapes resolved and not, and without what `grep` puts before lines.
        has_tags: whether they hold tags of the form that writes arguments between tags, where no text can be
            escaped: whose tag ends an argument is then anybody's guess.
    """

    letters: str
    has_tags: bool
    _known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Cost: linear, about a quarter of a second a million characters."""
        plain = _plain("\n".join(texts))
        text = _resolved(plain)
        spellings = (plain, text, _FOUND_AT.sub("", text))
        return cls("\0".join(map(_letters, spellings)), holds_tags(text))

    def holds(self, text: str) -> bool:
        """Whether `text` was shown, as it stands (Q1, Q2). Cost: linear the first time, none again."""
        if text not in self._known:
            self._known[text] = _letters(_resolved(_plain(text))) in self.letters
        return self._known[text]

    def holds_call(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call was shown, in any order and form (Q1 to Q3).

        Texts are compared; numbers and whatever no tool takes are not, as if they had been shown. What an
        ellipsis leaves out of a text may be anything.

        Cost: a search in `letters` for each argument.
        """
        if not any(self.holds(word + tool) for word in _BEFORE):
            return False
        texts = [(key, value) for key, value in arguments.items() if isinstance(value, str)][:MAX_TEXTS]
        if tool not in WRITING_TOOLS and not any(value for _, value in texts):
            return False  # It shows next to nothing, and its letters may stand anywhere by chance.
        if len(texts) > 1:
            texts[-1] = (texts[-1][0], "")
        return all(self.holds(piece) for key, value in texts for piece in _LEFT_OUT.split(key + value))


def holds_tags(text: str) -> bool:
    """Whether `text` holds a tag that opens or closes a call or an argument of one."""
    return _TAG_FORM.search(text) is not None


def _resolved(plain: str) -> str:
    """Plain letters without escapes of JSON, however many backslashes they have, and of HTML, thrice over."""
    unescaped = _ESCAPES.sub(_unescaped, plain)
    for _ in range(3):
        unescaped = html.unescape(unescaped)
    return plain if unescaped == plain else _plain(unescaped)


def _plain(text: str) -> str:
    return _INVISIBLE.sub("", normalised("NFKD", text))


def _unescaped(escapes: re.Match[str]) -> str:
    codes = escapes[0].replace("\\", "")
    if not codes.startswith("u"):
        return " "
    return bytes.fromhex(codes.replace("u", "")).decode("utf-16-be", "ignore")


def _letters(resolved: str) -> str:
    return _NO_LETTERS.sub("", resolved.casefold())


# -- spoken ------------------------------------------------------------------------------------------
#
# Calls that a model wrote into its words instead of making them.
#
# Many models whose server knows no parser for them spell their calls in the text: as JSON in tags, in
# fences or bare, or in tags all the way. They are read here, so that such a model can drive a run, and go
# through the same gate as any call.
#
# The danger is an honest model that *quotes*: the fact, or a memory that it read, holds a call, and its
# last words repeat it. So, of every call that comes back:
# S1  It stands outside the model's thinking and where calls are made: after a call tag, in a fence of its
#     own, or bare at the very end. Bare JSON with words after it is words, and so is any after JSON that
#     cannot be read, since it may be a piece of that.
# S2  It was not shown to the model (`agent/answer.py`).
# S3  Its JSON is strict (`agent/model.py`). Tags all the way are not read where the texts shown hold
#     such tags, nor where an argument does.
#
# Not promised: that every call is found. What cannot be read is told (`Spoken.is_broken`), not guessed.
#
# Start at `spoken_calls`; attacked by `tests/units/agent/test_spoken.py`. Sources of the forms: the chat
# templates of Hermes, Qwen, Llama 3, Mistral, DeepSeek, Kimi and Granite, and what their users report.

MAX_CHARS: Final = 262_144
"""Characters of a text that are looked at; the rest is dropped. Nobody reads on, and no call is so long."""

MAX_CALLS: Final = 32
"""Calls of one text that are looked at, quoted ones included; about what a run may make in all."""

MAX_ATTEMPTS: Final = 64
"""Places of one text where reading is tried. A text with more is a listing, and no call is taken from it."""

_HEAD_CHARS: Final = 60
"""Characters by which an unreadable call is recognised: what it names, and whether it was shown."""

# In the tokens of models, \uff5c is a wide bar and \u2581 a low block. Quantifiers over what a text may
# repeat are possessive: nothing is scanned twice for one match.
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
"""What stands between a call tag and JSON: nothing, or the tool's name and what sets it off."""

_WRAPPED: Final = re.compile(r"\s*+<")
_BEGUN: Final = re.compile(r"\s*+(?:[\w.-]{1,80}+\s*+)?(?:[(<{\[]|\Z)")
_PARAMETER: Final = re.compile(r'\s*+<(parameter|param)(?:=| name=)"?([\w.-]{1,60}+)"?>')
_FUNCTION_END: Final = re.compile(r"\s*+</(?:function|invoke)>")
_FENCE_END: Final = re.compile(r"\s*+(?:```|\Z)")
_TAG_END: Final = re.compile(r"(?:\s*+```)?\s*+</(?:(?:tool|function)_calls?|tools?)>|\s*+```")
_NAMED_FIRST: Final = re.compile(rf'[\[{{\s]*+"(?:{"|".join((*TOOL_KEYS, *ARGUMENT_KEYS))})"\s*+:')
_INTEGER: Final = re.compile(r"\s*+-?[0-9]{1,18}+\s*+")


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a model said.

    Attributes:
        calls: (tool, arguments) in the order of the text, at most `MAX_CALLS`. Arguments are an object of
            JSON, unchecked. A tool may not be on offer where a tag left no doubt that a call was meant.
        words: the rest, without thinking and without the text of `calls`. Quoted calls stay.
        is_broken: a call was begun and none can be read, so `words` are no last words.
    """

    calls: tuple[tuple[str, dict[str, Any]], ...]
    words: str
    is_broken: bool


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of text that is not plain words. Calls in a `bare` one count at the end of the text alone."""

    kind: Literal["thought", "noise", "call", "in_tags", "bare", "debris"]
    start: int
    end: int
    calls: tuple[JsonCall, ...] = ()


def spoken_calls(text: str, offered: Collection[str], shown: Sequence[str]) -> Spoken:
    """The calls in `text`, and its words.

    Args:
        text: what the model answered; any text.
        offered: names of the tools on offer. In a fence or bare, only these make an object a call.
        shown: the data that the run has shown to the model: the job message and the results of tools.
            Neither instructions, whose examples a model rightly follows, nor words about its own calls.

    Cost: linear in `text` and `shown`; for a hostile text, at most `MAX_ATTEMPTS` times `MAX_CHARS`.
    """
    looked_at = text[:MAX_CHARS]
    parts = _parts(looked_at, offered)
    seen = ShownTexts.of(shown if any(part.kind not in {"thought", "noise"} for part in parts) else ())
    tail, begin = _tail(text, parts), _begin(looked_at, parts)
    calls: list[JsonCall] = []
    left = MAX_CALLS
    taken = [part for part in parts if part.kind == "thought"]
    is_broken = False
    for part in parts:
        looked_through = part.calls[:left]
        left -= len(looked_through)
        own = tuple(
            call
            for call in looked_through
            if not (seen.holds(call.source) or seen.holds_call(call.tool, call.arguments))
        )
        is_in_tags = part.kind == "in_tags" and not seen.has_tags
        if part.kind == "debris":
            is_broken = not seen.holds(looked_at[part.start : part.start + _HEAD_CHARS])
        elif part.kind == "call" or is_in_tags or (part.kind == "bare" and part.start >= tail):
            calls += own
            taken += [part] if own == part.calls else []
        elif own and (part.kind == "in_tags" or part.start == begin):
            is_broken = True
        if is_broken:
            break  # What follows may be a piece of it.
    made = [(call.tool, call.arguments) for call in calls if not _is_done(call, offered)]
    taken += [part for part in parts if part.kind == "noise" and calls]
    return Spoken(tuple(made), _words(looked_at, taken, offered), is_broken=is_broken and not made)


# -- where calls may stand -----------------------------------------------------------------------------


def _parts(text: str, offered: Collection[str]) -> list[_Stretch]:
    """What is not plain words, in order."""
    parts: list[_Stretch] = []
    at, attempts, may_be_bare = 0, 0, True
    while (token := _TOKEN.search(text, at)) is not None:
        kind, start, at = token.lastgroup, token.start(), token.end()
        if kind == "thinking":
            closing = f"</{token['thinking']}>"
            found = text.find(closing, at)
            at = len(text) if found < 0 else found + len(closing)
            parts.append(_Stretch("thought", start, at))
        elif kind == "thought":  # The prompt opened it: so far all was thinking.
            parts, may_be_bare = [_Stretch("thought", 0, at)], True
        elif kind == "noise":
            parts.append(_Stretch("noise", start, at))
        elif kind != "bare" or may_be_bare:
            attempts += 1
            if attempts > MAX_ATTEMPTS:
                return [part for part in parts if part.kind in {"thought", "debris"}]
            part = _read(text, token, offered, is_first=start == _begin(text, parts))
            if part is not None:
                parts.append(part)
                at = part.end
            if part.kind == "debris" if part else kind == "bare":
                may_be_bare = False
    return parts


def _begin(text: str, parts: Sequence[_Stretch]) -> int:
    """Where the text begins, after its thinking."""
    at = 0
    for part in parts:
        if part.kind != "thought" or text[at : part.start].strip():
            break
        at = part.end
    return len(text) - len(text[at:].lstrip())


def _tail(text: str, parts: Sequence[_Stretch]) -> int:
    """From where on there is nothing but calls and what surrounds them."""
    end = len(text)
    for part in reversed(parts):
        is_no_call = part.kind == "debris" or (part.kind == "bare" and not part.calls)
        if is_no_call or text[part.end : end].strip(SEPARATORS):
            break
        end = part.start
    return end


def _words(text: str, taken: Sequence[_Stretch], offered: Collection[str]) -> str:
    """The text without what was taken, with summaries in place of the objects that held them."""
    pieces, at = [], 0
    for part in sorted(taken, key=lambda part: part.start):
        said = [call.arguments.get("summary") for call in part.calls if _is_done(call, offered)]
        pieces += [text[at : part.start], *(each if isinstance(each, str) else DONE for each in said)]
        at = part.end
    return "".join([*pieces, text[at:]]).strip()


def _is_done(call: JsonCall, offered: Collection[str]) -> bool:
    return call.tool == DONE and DONE not in offered


# -- reading one ---------------------------------------------------------------------------------------


def _read(text: str, token: re.Match[str], offered: Collection[str], *, is_first: bool) -> _Stretch | None:
    """What `token` opens; None if it is but words."""
    kind, (start, at) = token.lastgroup, token.span()
    try:
        if kind == "tag":
            return _tagged(text, start, at, offered)
        if kind == "function":
            return _in_tags(text, token)
        at = at if kind == "fence" else start
        calls, end = read_calls(text, at, offered)
    except NotJson:
        head = text[at : at + _HEAD_CHARS].replace("'", '"')
        is_meant = any(f'"{tool}"' in head for tool in offered) or (is_first and _NAMED_FIRST.match(head))
        return _Stretch("debris", start, token.end()) if kind in {"tag", "function"} or is_meant else None
    closing = _FENCE_END.match(text, end) if kind == "fence" and calls else None
    return _Stretch("call", start, closing.end(), calls) if closing else _Stretch("bare", start, end, calls)


def _tagged(text: str, start: int, at: int, offered: Collection[str]) -> _Stretch | None:
    """What stands after the call tag that ends at `at`: objects, or a tool's name and its arguments.

    None if the tag is only talked about.

    Raises:
        NotJson: a call was begun that cannot be read.
    """
    header = _HEADER.match(text, at)
    if header is not None and (header["apart"] is None or header["tool"] in offered):
        if header["tool"] is None:
            calls, end = read_calls(text, header.end(), offered, is_certain=True)
        else:
            value, end = first_json(text, header.end())
            calls = (JsonCall(header["tool"], as_arguments(value), text[start:end]),)
        closing = _TAG_END.match(text, end)
        return _Stretch("call", start, closing.end() if closing else end, calls)
    if _WRAPPED.match(text, at):
        return _Stretch("noise", start, at)
    first_word = text[at : at + _HEAD_CHARS].split(maxsplit=1)[:1]
    if _BEGUN.match(text, at) or any(word in offered for word in first_word):
        raise NotJson("a call tag without JSON")
    return None


def _in_tags(text: str, token: re.Match[str]) -> _Stretch:
    """A call whose arguments are JSON, or each between tags of its own, after the tag that names the tool.

    Raises:
        NotJson: it is cut off, or cannot be read in one way only.
    """
    tool, (start, at) = token["function"], token.span()
    brace = past_separators(text, at)
    if text.startswith("{", brace):
        value, end = first_json(text, brace)
        return _Stretch("call", start, end, (JsonCall(tool, as_arguments(value), text[start:end]),))
    arguments: dict[str, Any] = {}
    while (opening := _PARAMETER.match(text, at)) is not None:
        tag, name = opening.groups()
        closing = text.find(f"</{tag}>", opening.end())
        value = text[opening.end() : closing]
        if closing < 0 or name in arguments or holds_tags(value):
            raise NotJson("an argument that is cut off, or is there twice, or holds tags")
        arguments[name] = _typed(tool, name, value.removeprefix("\n").removesuffix("\n"))
        at = closing + len(f"</{tag}>")
    if (ending := _FUNCTION_END.match(text, at)) is None:
        raise NotJson("a call that is cut off")
    return _Stretch("in_tags", start, ending.end(), (JsonCall(tool, arguments, text[start : ending.end()]),))


def _typed(tool: str, name: str, value: str) -> str | int | bool:
    """`value` as the tool takes it; between tags all is text."""
    field = TOOLS[tool].model_fields.get(name) if tool in TOOLS else None
    if field is not None and field.annotation is int and _INTEGER.fullmatch(value):
        return int(value)
    if field is not None and field.annotation is bool:
        return {"true": True, "false": False}.get(value.strip().lower(), value)
    return value


# -- answer ------------------------------------------------------------------------------------------

MAX_NAME_CHARS: Final = 64
"""Characters of a tool's name that are kept: what the API allows."""

MAX_WORDS: Final = 8_000
"""Characters of an answer's words that a run keeps: a model that repeats itself fills no memory."""

MAX_TOKENS: Final = 2**40
"""Tokens in a count that is believed."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


RawCall = tuple[object, str, Any]
"""A call as the server wrote it: its id, its tool, and its arguments."""


@dataclass(frozen=True, slots=True)
class FirstChoice:
    """The first choice of a chat completion.

    Attributes:
        text: the words, joined where they came in parts.
        calls: the first `MAX_CALLS` calls.
        was_cut: the server stopped it at the limit of tokens.
    """

    text: str
    calls: tuple[RawCall, ...]
    was_cut: bool
    usage: Usage


def read_answer(content: bytes) -> FirstChoice | Complaint:
    """The completion in the body of an answer with a 2xx; else what is wrong with it."""
    try:
        document = parse_json(content)
    except NotJson as problem:
        page = content.lstrip()[:1] == b"<"
        told = f"an answer that is {'a web page' if page else f'no JSON ({problem})'}"
    else:
        match document:
            case {"choices": [{"message": {} as message, **choice}, *_]}:
                was_cut = choice.get("finish_reason") == "length"
                return FirstChoice(_text(message), tuple(_raw_calls(message)), was_cut, _usage(document))
        told = "an answer without a message"
    return _complaint_in(content) or Complaint(
        "busy", f"the server gave {told}; check that the base URL ends in /v1"
    )


def as_reply(answer: FirstChoice, request: ModelRequest, form: Form) -> Reply:
    """What `answer` means to the run that asked `request` in `form` (A1 to A5)."""
    calls: list[RawCall] = [(id_, tool, _arguments(raw)) for id_, tool, raw in answer.calls]
    words, is_broken = answer.text, False
    if not calls:
        # An answer that was constrained to be one action cannot quote. Whether it was, only it can tell.
        is_action = form == "json" and _is_object(answer.text)
        shown = () if is_action else shown_texts(request.messages)
        offered = {tool.name for tool in request.tools}
        spoken = spoken_calls(answer.text, offered, shown)
        if not spoken.calls and "{{" in answer.text:
            undone = spoken_calls(undoubled(answer.text[:MAX_CHARS], 0), offered, shown)
            spoken = undone if undone.calls else spoken
        words, is_broken = spoken.words, spoken.is_broken
        calls = [(None, tool, arguments) for tool, arguments in spoken.calls]
        if not calls and form != "tools":
            calls = _unknown_action(words, request)
    if is_broken or (calls and answer.was_cut):
        return Reply(usage=answer.usage)
    said = "" if calls and form != "tools" else words[:MAX_WORDS]
    return Reply(said, _identified(calls, request), answer.usage)


def _text(message: Mapping[str, Any]) -> str:
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


def _raw_calls(message: Mapping[str, Any]) -> list[RawCall]:
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


def _arguments(raw: Any) -> Any:
    """The object that a call means, else what it holds instead (A3)."""
    value = raw
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = (
                parse_json(undoubled(value, 0) if value.startswith("{{") else value) if value.strip() else {}
            )
        except NotJson:
            return raw
    return {} if value is None else value


def _is_object(words: str) -> bool:
    try:
        return isinstance(parse_json(words), dict)
    except NotJson:
        return False


def _unknown_action(words: str, request: ModelRequest) -> list[RawCall]:
    """The action that the words are if they name no tool on offer, so that the model is told."""
    try:
        action = parse_json(words)
    except NotJson:
        return []
    match action:
        case {"action": str(tool), **arguments} if tool not in {each.name for each in request.tools}:
            return [(None, tool, arguments)]
        case _:
            return []


def _identified(calls: list[RawCall], request: ModelRequest) -> tuple[ToolCall, ...]:
    """The calls with ids that are plain and new to the run (A2)."""
    answers = [message for message in request.messages if isinstance(message, AssistantMessage)]
    taken = {call.id for message in answers for call in message.calls}
    identified: list[ToolCall] = []
    for unsafe_id, tool, arguments in calls:
        if isinstance(unsafe_id, str) and _ID.fullmatch(unsafe_id) and unsafe_id not in taken:
            id_ = unsafe_id
        else:
            id_ = next(new for number in count() if (new := f"turn{len(answers):02}{number:03}") not in taken)
        taken.add(id_)
        identified.append(ToolCall(id_, tool[:MAX_NAME_CHARS], arguments))
    return tuple(identified)


def _usage(document: Mapping[str, Any]) -> Usage:
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return Usage()
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 <= value < MAX_TOKENS else 0
