"""Measure the cost of the adapter: one turn through it, through the bare library, and through plain sockets.

Run it with `python benchmarks/model_turn.py`. The server is a separate process on the loopback that responds
immediately, so that only the client is measured. Prints medians and ratios of one run.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

import openai

from muniment.agent.chat import build_body, create_job_message, create_system_message, list_tools
from muniment.agent.model import Brief, ModelRequest, ScopeBrief
from muniment.agent.openai import OpenAIModel
from muniment.agent.text_calls import parse_text_calls
from muniment.kernel.names import Scope
from muniment.names import ContextMode
from muniment.testing.chat_server import ChatServer, make_tool_call, repeat_responder, tool_calls_response

TURNS = 200
ROUNDS = 9
WORDS = (
    'I will save it.\n<tool_call>{"name": "write_file", "arguments": {"path": "user/a.md", "content": "x"}}'
)


def serve(ready: multiprocessing.Queue[str], done: multiprocessing.Event) -> None:
    """Answer every request with one call until `done` is set."""
    with ChatServer(
        repeat_responder(tool_calls_response(make_tool_call("grep", {"pattern": "dark"})))
    ) as server:
        ready.put(server.base_url)
        done.wait()


def first_request() -> ModelRequest:
    """Return the first request of a run with an empty memory."""
    brief = Brief(
        "The user prefers dark mode", (ScopeBrief(Scope("user"), writable=True),), ContextMode.WORKSPACE
    )
    messages = (create_system_message(brief), create_job_message(brief, (), "0123456789abcdef"))
    return ModelRequest(brief, messages, list_tools(brief.context), 295.0)


def medians(actions: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """Return the median wall and CPU milliseconds of each action; the rounds take turns."""
    walls: dict[str, list[float]] = {name: [] for name in actions}
    cpus: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(TURNS):
                action()
            walls[name].append((time.perf_counter() - wall) / TURNS * 1000)
            cpus[name].append((time.process_time() - cpu) / TURNS * 1000)
    return {name: (statistics.median(walls[name]), statistics.median(cpus[name])) for name in actions}


def measure(base_url: str) -> None:
    """Measure and print."""
    request = first_request()
    document = build_body(request, "tools", "scripted")
    host, path = urlsplit(base_url).netloc, urlsplit(base_url).path
    raw = http.client.HTTPConnection(host)

    def plain() -> object:
        raw.request(
            "POST", f"{path}/chat/completions", json.dumps(document), {"Content-Type": "application/json"}
        )
        return json.loads(raw.getresponse().read())

    with (
        closing(OpenAIModel("scripted", base_url=base_url)) as model,
        openai.OpenAI(base_url=base_url, api_key="none") as library,
    ):
        figures = medians(
            {
                "plain": plain,
                "library": lambda: library.chat.completions.create(**document),
                "adapter": lambda: model.respond(request),
                "spoken": lambda: parse_text_calls(
                    WORDS, {"write_file"}, [m.text for m in request.messages[1:]]
                ),
            }
        )
    raw.close()
    names = {
        "plain": "http.client and json",
        "library": "openai, unchanged",
        "adapter": "the adapter",
        "spoken": "reading calls from text",
    }
    for name, (wall, cpu) in figures.items():
        print(f"{names[name]:28} {wall:6.2f} ms wall  {cpu:6.2f} ms CPU")
    print(
        f"adapter / library: {figures['adapter'][0] / figures['library'][0]:.2f} wall, "
        f"{figures['adapter'][1] / figures['library'][1]:.2f} CPU"
    )


def main() -> None:
    """Start the server and measure."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Queue(), context.Event()
    server = context.Process(target=serve, args=(ready, done))
    server.start()
    try:
        measure(ready.get())
    finally:
        done.set()
        server.join()


if __name__ == "__main__":
    main()
