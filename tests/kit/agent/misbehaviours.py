"""Invalid behaviour of a Chat Completions server, by name; one function per kind.

    `ANSWERS = list_misbehaviours()`

    @pytest.mark.parametrize("name", ANSWERS)
    def test_bad_response_writes_nothing(name):
        `with ChatServer(repeat_responder(ANSWERS[name])) as server: ...`

Some never end: use `list_stalls()` only with a client that has a short deadline.

All calls here write to `user/never/`, in which no client may store anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from muniment.testing.chat_server import (
    CHUNKED_HEAD,
    RESPONSE_HEAD,
    Responder,
    Response,
    completion_response,
    drip_response,
    error_response,
    json_response,
    make_tool_call,
    redirect_response,
    send_endless_body,
    send_gzip_bomb,
    send_raw,
    text_response,
    tool_calls_response,
)


def _error_response(status: int, **error: Any) -> Response:
    return json_response({"error": error}, status)


_TOO_LONG: Final = "This model's maximum context length is 4096 tokens. However, "
_NO_TOOL_CHOICE: Final = (
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
)
_VLLM: Final = {"type": "BadRequestError", "param": None, "code": 400}
_REQUESTED: Final = "you requested 5172 tokens (4148 in the messages, 1024 in the completion). "
_REDUCE: Final = "Please reduce the length of the messages"

OVERFLOWS: Final[Mapping[str, Response]] = {
    "openai": error_response(
        400,
        f"{_TOO_LONG}your messages resulted in 5172 tokens. {_REDUCE}.",
        code="context_length_exceeded",
        param="messages",
    ),
    "llama-server": _error_response(
        400,
        code=400,
        message="request (5172 tokens) exceeds the available context size (4096 tokens), try increasing it",
        type="exceed_context_size_error",
        n_prompt_tokens=5172,
        n_ctx=4096,
    ),
    "llama-server of 2025": _error_response(
        400,
        code=400,
        message="the request exceeds the available context size. "
        "try increasing the context size or enable context shift",
        type="exceed_context_size_error",
        n_prompt_tokens=5172,
        n_ctx=4096,
    ),
    "vllm": _error_response(400, message=f"{_TOO_LONG}{_REQUESTED}{_REDUCE} or completion.", **_VLLM),
    "vllm before 0.10.1": json_response(
        {"object": "error", "message": f"{_TOO_LONG}{_REQUESTED}{_REDUCE} or completion.", **_VLLM}, 400
    ),
}
"""The messages of a request are too long for the model."""

NO_TOOLS: Final[Mapping[str, Response]] = {
    "ollama": _error_response(
        400,
        message="registry.ollama.ai/library/gemma3:4b does not support tools",
        type="api_error",
        param=None,
        code=None,
    ),
    "llama-server without --jinja": _error_response(
        500, code=500, message="tools param requires --jinja flag", type="server_error"
    ),
    "vllm": _error_response(400, message=_NO_TOOL_CHOICE, **_VLLM),
    "vllm before 0.10.1": json_response({"object": "error", "message": _NO_TOOL_CHOICE, **_VLLM}, 400),
}
"""The server does not accept `tools` for this model."""

NO_RESPONSE_FORMAT: Final[Mapping[str, Response]] = {
    "openai": error_response(
        400,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        param="response_format",
    ),
    "error as text": json_response({"error": "'response_format.type' must be 'text'"}, 400),
}
"""The server does not accept `response_format` with a JSON Schema for this model."""

UNSUPPORTED: Final[Mapping[str, Response]] = {
    "max_tokens": error_response(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
        code="unsupported_parameter",
        param="max_tokens",
    ),
    "temperature": error_response(
        400,
        "Unsupported value: 'temperature' does not support 0 with this model. "
        "Only the default (1) value is supported.",
        code="unsupported_value",
        param="temperature",
    ),
}
"""The model does not accept this parameter, or only its default."""


CLOSED_PORT_URL: Final = "http://127.0.0.1:9/v1/chat/completions"
"""A URL of this machine with a closed port (port 9, discard)."""

_NEVER: Final = tool_calls_response(
    make_tool_call("write_file", {"path": "user/never/transfer.md", "content": "Never."})
)


def list_misbehaviours() -> dict[str, Responder]:
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
    return {
        **list_stalls(),
        **list_broken_transfers(),
        **list_broken_bodies(),
        **list_odd_calls(),
        **refusals,
    }


def list_stalls(every: float = 0.05) -> dict[str, Responder]:
    """Return responses that block until the client ends the wait. Dripping ones send one byte per `every`
    seconds.
    """
    return {
        "stall before the first byte": send_raw(math.inf),
        "stall in the headers": send_raw(RESPONSE_HEAD + b"x-wait: ", math.inf),
        "stall in the body": send_raw(RESPONSE_HEAD + b'content-length: 999\r\n\r\n{"id": "', math.inf),
        "drip of headers": drip_response(
            Response(b"{}", headers={"x-wait": "a" * 100_000}), pause_seconds=every
        ),
        "drip of spaces": send_endless_body(b" ", pause_seconds=every),
    }


def list_broken_transfers(redirect_url: str = CLOSED_PORT_URL) -> dict[str, Responder]:
    """Return responses without the announced JSON, or with far too much; redirects use `redirect_url`."""
    cut = _NEVER.encode()[:-20]
    return {
        "reset before the first byte": send_raw(reset=True),
        "reset in the body": send_raw(cut, reset=True),
        "closed without an answer": send_raw(),
        "closed in the headers": send_raw(RESPONSE_HEAD),
        "no HTTP": send_raw(b"SSH-2.0-OpenSSH_9.9\r\n"),
        "content-length too long": send_raw(cut),
        "content-length too short": replace(_NEVER, headers={"content-length": "20"}),
        "broken chunk": send_raw(CHUNKED_HEAD + b'10\r\n{"id": "chatcmpl-\r\nzz\r\n'),
        "unended chunks": send_raw(CHUNKED_HEAD + b"%x\r\n%s\r\n" % (len(_NEVER.body), _NEVER.body)),
        "broken gzip": replace(_NEVER, headers={"content-encoding": "gzip"}),
        "gzip bomb of spaces": send_gzip_bomb(_NEVER),
        "gzip bomb of zeros": send_gzip_bomb(Response(b""), filler=b"\0"),
        "gzip bomb as an error": send_gzip_bomb(error_response(400, "bad request")),
        "endless body": send_endless_body(),
        "huge headers": replace(
            text_response("Hm."), headers={f"x-{number}": "a" * 8_000 for number in range(100)}
        ),
        "informational flood": send_raw(
            b"HTTP/1.1 102 Processing\r\n\r\n" * 10_000 + text_response("Hm.").encode()
        ),
        **{
            f"redirect {status}": redirect_response(redirect_url, status)
            for status in (301, 302, 303, 307, 308)
        },
        "redirect without a place": Response(b"", 307),
        "web page": Response(b"<!doctype html><title>Sign in</title>", headers={"content-type": "text/html"}),
        "web page as JSON": Response(b"<!doctype html><title>Sign in</title>"),
    }


def list_broken_bodies() -> dict[str, Responder]:
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
        "lone surrogates": text_response("half a character: \ud83d"),
        "not UTF-8": Response(never.replace("Never", "N\xeaver").encode("latin-1")),
        "UTF-16": Response(never.encode("utf-16")),
        "text": json_response("Saved."),
        "list": json_response([json.loads(never)]),
        "null": json_response(None),
        "no choices": json_response({"object": "chat.completion"}),
        "null choices": json_response({"choices": None}),
        "empty choices": json_response({"choices": []}),
        "null choice": json_response({"choices": [None]}),
        "choices as an object": json_response({"choices": {"0": {"message": {"content": "Saved."}}}}),
        "missing message": json_response({"choices": [{"index": 0, "finish_reason": "stop"}]}),
        "null message": json_response({"choices": [{"message": None}]}),
        "message as text": json_response({"choices": [{"message": "Saved."}]}),
        "error with status 200": json_response({"error": {"message": "the model crashed", "code": 500}}),
        "content in parts": completion_response(
            {"content": [{"type": "text", "text": "Hm"}, {"type": "text", "text": "."}]}
        ),
        "content in odd parts": completion_response(
            {"content": [None, 1, {"type": "image_url"}, {"type": "text", "text": None}]}
        ),
        "content as a number": completion_response({"content": 7}),
        "null content": text_response(None),
        "empty content": text_response(""),
        "white space": text_response(" \n\t\u3000\n"),
        "endless repetition": text_response("the " * 250_000, "length"),
        "odd usage": Response(text_response("Hm.").body.replace(b"100", b'"many"')),
    }


def list_odd_calls() -> dict[str, Responder]:
    """Return completions with calls that OpenAI would not send. A client may understand some of them."""
    ls_call = make_tool_call("ls", {"path": "user"})
    name, never = "write_file", {"path": "user/never/odd.md", "content": "Never."}
    text = json.dumps(never)

    def respond_with_call(arguments: Any, tool: Any = name) -> Response:
        return tool_calls_response(
            {"id": "call-1", "type": "function", "function": {"name": tool, "arguments": arguments}}
        )

    return {
        "arguments encoded twice": respond_with_call(json.dumps(json.dumps({"path": "user"})), "ls"),
        "arguments as an object": respond_with_call({"path": "user"}, "ls"),
        "missing ids": tool_calls_response(
            _without("id", ls_call), _without("id", make_tool_call("ls", {"path": "project"}))
        ),
        "duplicate ids": tool_calls_response(ls_call, make_tool_call("ls", {"path": "project"})),
        "no type": tool_calls_response(_without("type", ls_call)),
        "legacy function_call": completion_response(
            {"content": None, "function_call": ls_call["function"]}, "function_call"
        ),
        "parallel calls": tool_calls_response(*_make_greps(8)),
        "ten thousand calls": tool_calls_response(*_make_greps(10_000)),
        "null tool_calls": completion_response({"content": None, "tool_calls": None}),
        "tool_calls as an object": completion_response({"content": None, "tool_calls": ls_call}),
        "null function": tool_calls_response({"id": "call-1", "type": "function", "function": None}),
        "null call": tool_calls_response(None),
        "call as text": tool_calls_response(f"{name}({text})"),
        "tool as a number": respond_with_call(text, 7),
        "tool unknown": respond_with_call(text, "Bash"),
        "arguments no JSON": respond_with_call("{'path': 'user/never/odd.md', 'content': 'Never.'}"),
        "arguments a list": respond_with_call(json.dumps([never])),
        "arguments null": respond_with_call(None),
        "arguments with duplicate keys": respond_with_call(text[:-1] + ', "path": "user/never/other.md"}'),
        "arguments nested deeply": respond_with_call('{"path": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        "path with half a character": respond_with_call(
            json.dumps({**never, "path": "user/never/\ud83d.md"})
        ),
        "call cut off": completion_response(
            {
                "content": None,
                "tool_calls": [{**ls_call, "function": {"name": name, "arguments": text[:-9]}}],
            },
            "length",
        ),
        "call that is whole at the limit": completion_response(
            {"content": None, "tool_calls": [make_tool_call(name, never)]}, "length"
        ),
    }


def _without(key: str, call: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != key}


def _make_greps(count: int) -> list[dict[str, Any]]:
    return [
        make_tool_call("grep", {"pattern": f"word {number}"}, f"call-{number}") for number in range(count)
    ]
