"""A model server for `coding_tools.py` that records each request and answers from a script.

It serves four interfaces on 127.0.0.1: Anthropic messages, OpenAI responses, OpenAI chat completions and
Gemini. The answer does not depend on the interface, only on the request's messages. It uses only the standard
library.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

COMPACTION = re.compile(
    r"create a detailed summary|CONTEXT CHECKPOINT COMPACTION|state_snapshot|summary of the conversation"
    r"|summarize the conversation",
    re.IGNORECASE,
)
"""Pattern of the last message of a request for a summary of the conversation."""

USAGE_TOKENS = 1_000
"""Tokens that the server reports for each request."""


@dataclass(frozen=True)
class Message:
    """One part of a request that the model reads.

    Attributes:
        role: `system`, `developer`, `user`, `assistant` or `tool`.
        text: the text of the part.
        place: the path of the part in the body of the request.
    """

    role: str
    text: str
    place: str


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in an answer."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The answer of the model: a text, or a tool call."""

    text: str
    call: ToolCall | None = None


@dataclass(frozen=True)
class Request:
    """A recorded request of a coding tool.

    Attributes:
        path: the path of the URL.
        body: the parsed body.
        number: the position among all requests of the server, from 1.
    """

    path: str
    body: dict[str, Any]
    number: int

    @property
    def messages(self) -> list[Message]:
        """Return all parts that the model reads, in their order, without tool descriptions."""
        return list(_list_messages(self.body))

    @property
    def tools(self) -> set[str]:
        """Return the names of the tools that the model may call."""
        return set(_list_tool_names(self.body.get("tools") or []))

    @property
    def is_compaction(self) -> bool:
        """Return whether the tool asks for a summary of the conversation."""
        last = [each for each in self.messages if each.role in {"user", "system", "developer"}]
        texts = [each.text for each in (last[:1] + last[-1:])]
        return any(COMPACTION.search(each) for each in texts[-1:]) or (
            not self.tools and any(COMPACTION.search(each) for each in texts)
        )


@dataclass
class ModelServer:
    """The server and its recorded requests; use it as a context manager.

    Attributes:
        answer: returns the answer to a request.
        transcripts: the directory for the recorded requests; None: they are only kept in memory.
        usage_tokens: the number of input tokens that is reported for each request.
    """

    answer: Callable[[Request], Answer]
    transcripts: Path | None = None
    usage_tokens: int = USAGE_TOKENS
    requests: list[Request] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        """Start the server on a free port."""
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Return the base of the server's URLs."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def record(self, path: str, body: dict[str, Any]) -> Request:
        """Record a request, in memory and as a file."""
        with self._lock:
            request = Request(path, body, len(self.requests) + 1)
            self.requests.append(request)
        if self.transcripts is not None:
            self.transcripts.mkdir(parents=True, exist_ok=True)
            document = {"path": path, "body": body}
            file = self.transcripts / f"{request.number:03}.json"
            file.write_text(json.dumps(document, indent=1, ensure_ascii=False))
        return request


class _Handler(BaseHTTPRequestHandler):
    """Serve one connection."""

    owner: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing; the requests are recorded."""

    def do_GET(self) -> None:
        """Answer with an empty list: the tools only ask for models and settings."""
        self.owner.unknown.append(f"GET {self.path}")
        self._send(200, "application/json", b'{"data": [], "models": []}')

    do_HEAD = do_GET  # noqa: N815  the name is given by the base class

    def do_POST(self) -> None:
        """Record a request to the model and answer it."""
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        try:
            body = json.loads(data or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self.owner.unknown.append(f"POST {path}")
            return self._send(400, "application/json", b"{}")
        if path.endswith(("count_tokens", ":countTokens")):
            size = {"input_tokens": len(data) // 4, "totalTokens": len(data) // 4}
            return self._send(200, "application/json", json.dumps(size).encode())
        encode = next((each for end, each in _ENCODERS.items() if path.endswith(end)), None)
        if encode is None:
            self.owner.unknown.append(f"POST {path}")
            return self._send(404, "application/json", b"{}")
        request = self.owner.record(path, body)
        kind, content = encode(request, self.owner.answer(request), self.owner.usage_tokens)
        return self._send(200, kind, content)

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


# -- requests ----------------------------------------------------------------------------------------


def _list_messages(body: dict[str, Any]) -> Iterator[Message]:
    for name in ("system", "instructions", "systemInstruction", "system_instruction"):
        for text, place in _list_texts(body.get(name), name):
            yield Message("system", text, place)
    for name in ("messages", "input", "contents"):
        items = body.get(name)
        if isinstance(items, str):
            yield Message("user", items, name)
            continue
        for index, item in enumerate(items or []):
            role = {"model": "assistant"}.get(item.get("role"), item.get("role"))
            if role is None:
                role = "tool" if str(item.get("type")).endswith("_output") else "assistant"
            for text, place in _list_texts(item, f"{name}[{index}]"):
                yield Message(role, text, place)


def _list_texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each text inside a message, with its place."""
    if isinstance(value, str):
        yield value, place
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _list_texts(each, f"{place}[{index}]")
    elif isinstance(value, dict):
        names = ("text", "content", "parts", "output", "arguments", "input", "functionResponse", "response")
        for name in names:
            if name in value:
                yield from _list_texts(value[name], f"{place}.{name}")
        if place.endswith(("input", "response")):
            for name in value.keys() - set(names):
                yield from _list_texts(value[name], f"{place}.{name}")


def _list_tool_names(tools: list[Any]) -> Iterator[str]:
    for each in tools:
        if "functionDeclarations" in each:
            yield from _list_tool_names(each["functionDeclarations"])
        elif isinstance(each.get("function"), dict):
            yield each["function"]["name"]
        elif each.get("type") == "namespace":
            yield from (f"{each['name']}.{name}" for name in _list_tool_names(each.get("tools") or []))
        else:
            yield str(each.get("name") or each.get("type"))


# -- answers -----------------------------------------------------------------------------------------


def _encode_events(events: list[dict[str, Any]], *, named: bool = True, end: str = "") -> tuple[str, bytes]:
    lines = [
        (f"event: {each['type']}\n" if named else "") + f"data: {json.dumps(each)}\n\n" for each in events
    ]
    return "text/event-stream", ("".join(lines) + end).encode()


def _encode_anthropic(request: Request, answer: Answer, tokens: int) -> tuple[str, bytes]:
    identity = f"msg_{request.number}"
    usage = {"input_tokens": tokens, "output_tokens": 5}
    block: dict[str, Any] = {"type": "text", "text": answer.text}
    delta: dict[str, Any] = {"type": "text_delta", "text": answer.text}
    if answer.call is not None:
        block = {"type": "tool_use", "id": f"toolu_{request.number}", "name": answer.call.name}
        block["input"] = answer.call.arguments
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.call.arguments)}
    reason = "end_turn" if answer.call is None else "tool_use"
    message = {
        "id": identity,
        "type": "message",
        "role": "assistant",
        "model": request.body.get("model"),
        "stop_sequence": None,
        "usage": usage,
    }
    if not request.body.get("stream"):
        whole = {**message, "content": [block], "stop_reason": reason}
        return "application/json", json.dumps(whole).encode()
    empty = dict(block)
    empty |= {"text": ""} if answer.call is None else {"input": {}}
    return _encode_events(
        [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": usage,
            },
            {"type": "message_stop"},
        ]
    )


def _encode_responses(request: Request, answer: Answer, tokens: int) -> tuple[str, bytes]:
    identity = f"resp_{request.number}"
    item: dict[str, Any] = {
        "type": "message",
        "id": f"msg_{request.number}",
        "role": "assistant",
        "content": [{"type": "output_text", "text": answer.text, "annotations": []}],
    }
    if answer.call is not None:
        namespace, _, name = answer.call.name.rpartition(".")
        item = {
            "type": "function_call",
            "id": f"fc_{request.number}",
            "call_id": f"call_{request.number}",
            "name": name,
            "arguments": json.dumps(answer.call.arguments),
        }
        if namespace:
            item["namespace"] = namespace
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 5,
    }
    return _encode_events(
        [
            {"type": "response.created", "response": {"id": identity}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": identity, "output": [item], "usage": usage}},
        ]
    )


def _encode_chat(request: Request, answer: Answer, tokens: int) -> tuple[str, bytes]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.call is not None:
        function = {"name": answer.call.name, "arguments": json.dumps(answer.call.arguments)}
        call = {"index": 0, "id": f"call_{request.number}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "stop" if answer.call is None else "tool_calls"
    head = {"id": f"chat_{request.number}", "created": 0, "model": request.body.get("model")}
    usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
    if not request.body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return "application/json", json.dumps(whole).encode()
    chunk = {**head, "object": "chat.completion.chunk"}
    return _encode_events(
        [
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**chunk, "choices": [], "usage": usage},
        ],
        named=False,
        end="data: [DONE]\n\n",
    )


def _encode_gemini(request: Request, answer: Answer, tokens: int) -> tuple[str, bytes]:
    part: dict[str, Any] = {"text": answer.text}
    if answer.call is not None:
        part = {"functionCall": {"name": answer.call.name, "args": answer.call.arguments}}
    document = {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": tokens,
            "candidatesTokenCount": 5,
            "totalTokenCount": tokens + 5,
        },
    }
    if request.path.endswith(":generateContent"):
        return "application/json", json.dumps(document).encode()
    return _encode_events([document], named=False)


_ENCODERS = {
    "/messages": _encode_anthropic,
    "/responses": _encode_responses,
    "/chat/completions": _encode_chat,
    ":streamGenerateContent": _encode_gemini,
    ":generateContent": _encode_gemini,
}
"""The function that encodes an answer, for the end of each path."""
