"""Invalid behaviour of a Chat Completions server, by name; one function per kind.

    `ANSWERS = misbehaviours()`

    @pytest.mark.parametrize("name", ANSWERS)
    def test_bad_response_writes_nothing(name):
        `with ChatServer(always(ANSWERS[name])) as server: ...`

Some never end: use `stalls()` only with a client that has a short deadline.

All calls here write to `user/never/`, in which no client may store anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from muniment.testing.chat_server import (
    CHUNKED,
    HEAD,
    Answer,
    Response,
    bomb,
    completion,
    document,
    drip,
    endless,
    failure,
    raw,
    redirect,
    tool_call,
    tool_calls,
    words,
)


def _refusal(status: int, **error: Any) -> Response:
    return document({"error": error}, status)


_TOO_LONG: Final = "This model's maximum context length is 4096 tokens. However, "
_NO_TOOL_CHOICE: Final = (
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
)
_VLLM: Final = {"type": "BadRequestError", "param": None, "code": 400}
_ASKED: Final = "you requested 5172 tokens (4148 in the messages, 1024 in the completion). "
_REDUCE: Final = "Please reduce the length of the messages"

OVERFLOWS: Final[Mapping[str, Response]] = {
    "openai": failure(
        400,
        f"{_TOO_LONG}your messages resulted in 5172 tokens. {_REDUCE}.",
        code="context_length_exceeded",
        param="messages",
    ),
    "llama-server": _refusal(
        400,
        code=400,
        message="request (5172 tokens) exceeds the available context size (4096 tokens), try increasing it",
        type="exceed_context_size_error",
        n_prompt_tokens=5172,
        n_ctx=4096,
    ),
    "llama-server of 2025": _refusal(
        400,
        code=400,
        message="the request exceeds the available context size. "
        "try increasing the context size or enable context shift",
        type="exceed_context_size_error",
        n_prompt_tokens=5172,
        n_ctx=4096,
    ),
    "vllm": _refusal(400, message=f"{_TOO_LONG}{_ASKED}{_REDUCE} or completion.", **_VLLM),
    "vllm before 0.10.1": document(
        {"object": "error", "message": f"{_TOO_LONG}{_ASKED}{_REDUCE} or completion.", **_VLLM}, 400
    ),
}
"""The messages of a request are too long for the model."""

NO_TOOLS: Final[Mapping[str, Response]] = {
    "ollama": _refusal(
        400,
        message="registry.ollama.ai/library/gemma3:4b does not support tools",
        type="api_error",
        param=None,
        code=None,
    ),
    "llama-server without --jinja": _refusal(
        500, code=500, message="tools param requires --jinja flag", type="server_error"
    ),
    "vllm": _refusal(400, message=_NO_TOOL_CHOICE, **_VLLM),
    "vllm before 0.10.1": document({"object": "error", "message": _NO_TOOL_CHOICE, **_VLLM}, 400),
}
"""The server does not accept `tools` for this model."""

NO_RESPONSE_FORMAT: Final[Mapping[str, Response]] = {
    "openai": failure(
        400,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        param="response_format",
    ),
    "error as text": document({"error": "'response_format.type' must be 'text'"}, 400),
}
"""The server does not accept `response_format` with a JSON Schema for this model."""

UNSUPPORTED: Final[Mapping[str, Response]] = {
    "max_tokens": failure(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
        code="unsupported_parameter",
        param="max_tokens",
    ),
    "temperature": failure(
        400,
        "Unsupported value: 'temperature' does not support 0 with this model. "
        "Only the default (1) value is supported.",
        code="unsupported_value",
        param="temperature",
    ),
}
"""The model does not accept this parameter, or only its default."""


NOWHERE: Final = "http://127.0.0.1:9/v1/chat/completions"
"""A URL of this machine with a closed port (port 9, discard)."""

_NEVER: Final = tool_calls(tool_call("write_file", {"path": "user/never/transfer.md", "content": "Never."}))


def misbehaviours() -> dict[str, Answer]:
    """Return every misbehaviour of the functions and tables here, by name."""
    refusals = {
        f"{kind}: {name}": response
        for kind, table in (
            ("context overflow", OVERFLOWS),
            ("no tools", NO_TOOLS),
            ("no response_format", NO_RESPONSE_FORMAT),
            ("unsupported", UNSUPPORTED),
        )
        for name, response in table.items()
    }
    return {**stalls(), **broken_transfers(), **broken_bodies(), **odd_calls(), **refusals}


def stalls(every: float = 0.05) -> dict[str, Answer]:
    """Return responses that block until the client ends the wait. Dripping ones send one byte per `every`
    seconds.
    """
    return {
        "stall before the first byte": raw(math.inf),
        "stall in the headers": raw(HEAD + b"x-wait: ", math.inf),
        "stall in the body": raw(HEAD + b'content-length: 999\r\n\r\n{"id": "', math.inf),
        "drip of headers": drip(Response(b"{}", headers={"x-wait": "a" * 100_000}), every=every),
        "drip of spaces": endless(b" ", every=every),
    }


def broken_transfers(elsewhere: str = NOWHERE) -> dict[str, Answer]:
    """Return responses without the announced JSON, or with far too much; redirects use `elsewhere`."""
    cut = _NEVER.encoded()[:-20]
    return {
        "reset before the first byte": raw(reset=True),
        "reset in the body": raw(cut, reset=True),
        "closed without an answer": raw(),
        "closed in the headers": raw(HEAD),
        "no HTTP": raw(b"SSH-2.0-OpenSSH_9.9\r\n"),
        "content-length too long": raw(cut),
        "content-length too short": replace(_NEVER, headers={"content-length": "20"}),
        "broken chunk": raw(CHUNKED + b'10\r\n{"id": "chatcmpl-\r\nzz\r\n'),
        "unended chunks": raw(CHUNKED + b"%x\r\n%s\r\n" % (len(_NEVER.body), _NEVER.body)),
        "broken gzip": replace(_NEVER, headers={"content-encoding": "gzip"}),
        "gzip bomb of spaces": bomb(_NEVER),
        "gzip bomb of zeros": bomb(Response(b""), filler=b"\0"),
        "gzip bomb as an error": bomb(failure(400, "bad request")),
        "endless body": endless(),
        "huge headers": replace(words("Hm."), headers={f"x-{number}": "a" * 8_000 for number in range(100)}),
        "informational flood": raw(b"HTTP/1.1 102 Processing\r\n\r\n" * 10_000 + words("Hm.").encoded()),
        **{f"redirect {status}": redirect(elsewhere, status) for status in (301, 302, 303, 307, 308)},
        "redirect without a place": Response(b"", 307),
        "web page": Response(b"<!doctype html><title>Sign in</title>", headers={"content-type": "text/html"}),
        "web page as JSON": Response(b"<!doctype html><title>Sign in</title>"),
    }


def broken_bodies() -> dict[str, Answer]:
    """Return complete HTTP responses with status 200 whose body is not a completion, or an empty one."""
    never = _NEVER.body.decode()
    choices = never[never.index('"choices"') : never.index(', "usage"')]
    return {
        "no body": Response(b""),
        "truncated JSON": Response(never[:-20].encode()),
        "two documents": Response(2 * never.encode()),
        "duplicate keys": Response(f'{{{choices}, "choices": [], {choices}}}'.encode()),
        "NaN": Response(never.replace("100", "NaN").encode()),
        "number without end": Response(never.replace("100", "1" * 10_000).encode()),
        "number beyond infinity": Response(never.replace("100", "1e999").encode()),
        "deep nesting": Response(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "lone surrogates": words("half a character: \ud83d"),
        "not UTF-8": Response(never.replace("Never", "N\xeaver").encode("latin-1")),
        "UTF-16": Response(never.encode("utf-16")),
        "text": document("Saved."),
        "list": document([json.loads(never)]),
        "null": document(None),
        "no choices": document({"object": "chat.completion"}),
        "null choices": document({"choices": None}),
        "empty choices": document({"choices": []}),
        "null choice": document({"choices": [None]}),
        "choices as an object": document({"choices": {"0": {"message": {"content": "Saved."}}}}),
        "missing message": document({"choices": [{"index": 0, "finish_reason": "stop"}]}),
        "null message": document({"choices": [{"message": None}]}),
        "message as text": document({"choices": [{"message": "Saved."}]}),
        "error with status 200": document({"error": {"message": "the model crashed", "code": 500}}),
        "content in parts": completion(
            {"content": [{"type": "text", "text": "Hm"}, {"type": "text", "text": "."}]}
        ),
        "content in odd parts": completion(
            {"content": [None, 1, {"type": "image_url"}, {"type": "text", "text": None}]}
        ),
        "content as a number": completion({"content": 7}),
        "null content": words(None),
        "empty content": words(""),
        "white space": words(" \n\t\u3000\n"),
        "endless repetition": words("the " * 250_000, "length"),
        "odd usage": Response(words("Hm.").body.replace(b"100", b'"many"')),
    }


def odd_calls() -> dict[str, Answer]:
    """Return completions with calls that OpenAI would not send. A client may understand some of them."""
    look = tool_call("ls", {"path": "user"})
    name, never = "write_file", {"path": "user/never/odd.md", "content": "Never."}
    text = json.dumps(never)

    def called(arguments: Any, tool: Any = name) -> Response:
        return tool_calls(
            {"id": "call-1", "type": "function", "function": {"name": tool, "arguments": arguments}}
        )

    return {
        "arguments encoded twice": called(json.dumps(json.dumps({"path": "user"})), "ls"),
        "arguments as an object": called({"path": "user"}, "ls"),
        "missing ids": tool_calls(_without("id", look), _without("id", tool_call("ls", {"path": "project"}))),
        "duplicate ids": tool_calls(look, tool_call("ls", {"path": "project"})),
        "no type": tool_calls(_without("type", look)),
        "legacy function_call": completion(
            {"content": None, "function_call": look["function"]}, "function_call"
        ),
        "parallel calls": tool_calls(*_greps(8)),
        "ten thousand calls": tool_calls(*_greps(10_000)),
        "null tool_calls": completion({"content": None, "tool_calls": None}),
        "tool_calls as an object": completion({"content": None, "tool_calls": look}),
        "null function": tool_calls({"id": "call-1", "type": "function", "function": None}),
        "null call": tool_calls(None),
        "call as text": tool_calls(f"{name}({text})"),
        "tool as a number": called(text, 7),
        "tool unknown": called(text, "Bash"),
        "arguments no JSON": called("{'path': 'user/never/odd.md', 'content': 'Never.'}"),
        "arguments a list": called(json.dumps([never])),
        "arguments null": called(None),
        "arguments with duplicate keys": called(text[:-1] + ', "path": "user/never/other.md"}'),
        "arguments nested deeply": called('{"path": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        "path with half a character": called(json.dumps({**never, "path": "user/never/\ud83d.md"})),
        "call cut off": completion(
            {"content": None, "tool_calls": [{**look, "function": {"name": name, "arguments": text[:-9]}}]},
            "length",
        ),
        "call that is whole at the limit": completion(
            {"content": None, "tool_calls": [tool_call(name, never)]}, "length"
        ),
    }


def _without(key: str, call: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != key}


def _greps(count: int) -> list[dict[str, Any]]:
    return [tool_call("grep", {"pattern": f"word {number}"}, f"call-{number}") for number in range(count)]
