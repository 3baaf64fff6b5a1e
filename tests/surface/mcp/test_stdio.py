"""`muniment mcp` over pipes in this process; the tests that need another process are slow."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress

import anyio
import pytest
from mcp import StdioServerParameters

from kit.jsonrpc import INVALID_IDS
from kit.mcp import ERAS, PROGRAM, ChangeListener, read_error_code, run_host, run_with_client, wait_for_change
from kit.server.process import write_policy
from muniment.cli.command import open_model_and_drop_key
from muniment.integrations.mcp import stdio, wire
from muniment.integrations.mcp.memory import LazyMemory
from muniment.integrations.mcp.stdio import serve_wire
from muniment.integrations.mcp.tools import TOOLS
from muniment.integrations.mcp.wire import MAX_LINE_BYTES, Wire
from muniment.kernel.names import Trust
from muniment.settings import Settings

HELLO = {
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}


class HostPipes:
    """The host's ends of two pipes, on the event loop of the server."""

    def __init__(self):
        (self.server_in, self._to), (self._from, self.server_out) = os.pipe(), os.pipe()
        self._lines = os.fdopen(self._from, "rb")

    async def send(self, *messages):
        """Write messages; write bytes unchanged."""
        for each in messages:
            line = each if isinstance(each, bytes) else json.dumps({"jsonrpc": "2.0", **each}).encode()
            await self.send_bytes(line + b"\n")

    async def send_bytes(self, left):
        """Write bytes that may be an incomplete line."""
        with suppress(BrokenPipeError):
            while left:
                left = left[await asyncio.to_thread(os.write, self._to, left[:65_536]) :]

    async def answer(self):
        """Return the next message."""
        line = await asyncio.wait_for(asyncio.to_thread(self._lines.readline), 30)
        assert line, "the server sent no further message"
        return json.loads(line)

    async def answers(self, count):
        """Return the next `count` messages by their id."""
        return {each["id"]: each for each in [await self.answer() for _ in range(count)]}

    def end(self):
        """Close the input of the server."""
        if self._to >= 0:
            os.close(self._to)
        self._to = -1

    def close(self):
        self.end()
        self._lines.close()
        for fd in (self.server_in, self.server_out):
            os.close(fd)


def call(number, tool, **arguments):
    return {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


@pytest.fixture
def run_hosted(tmp_path):
    """Return a function that runs a body as the host of a server in this process, after the handshake."""

    def run(body, *, begin=True, model=None):
        policy = write_policy(tmp_path, require='"none"')
        settings = Settings(tmp_path / "home", policy=str(policy))
        (tmp_path / "work" / ".git").mkdir(parents=True)

        async def both():
            with closing(
                LazyMemory(
                    lambda: settings, tmp_path / "work", open_model_and_drop_key, print, in_process=True
                )
            ) as opened:
                if model is not None:
                    opened.get_model = lambda: model
                with closing(HostPipes()) as host:
                    line = Wire(host.server_in, host.server_out)
                    serving = asyncio.create_task(serve_wire(line, opened, Trust.AGENT))
                    if begin:
                        await host.send(HELLO, {"method": "notifications/initialized"})
                        assert (await host.answer())["result"]["serverInfo"]["name"] == "muniment"
                    try:
                        return await body(host, line)
                    finally:
                        host.end()
                        line.stop()
                        await serving

        return asyncio.run(asyncio.wait_for(both(), 60))

    return run


MALFORMED = (
    (b"{", -32700, None),
    (b"\xff\xfe{}", -32700, None),
    (b"[" * 100_000, -32700, None),
    (b"[]", -32600, None),
    (b"null", -32600, None),
    (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, 7),
    (b'{"jsonrpc": "2.0", "id": "seven", "method": 7}', -32600, "seven"),
    (b"x" * (MAX_LINE_BYTES + 1), -32600, None),
)


def test_invalid_line_is_answered_and_next_is_served(run_hosted):
    async def body(host, _):
        for line, number, request_id in MALFORMED:
            await host.send(b"", line)
            answer = await host.answer()
            assert (answer["error"]["code"], answer["id"]) == (number, request_id), line[:40]
        await host.send({"id": 1, "method": "ping"})
        assert await host.answer() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        await host.send({"id": 2, "method": "no/such"})
        assert (await host.answer())["error"]["code"] == -32601

    run_hosted(body)


def test_stdio_request_with_invalid_id_gets_error(run_hosted):
    async def body(host, _):
        for text in INVALID_IDS:
            for method in ("ping", "tools/list", "no/such"):
                await host.send(f'{{"jsonrpc": "2.0", "id": {text}, "method": "{method}"}}'.encode())
                answer = await host.answer()
                assert (answer["error"]["code"], answer["id"]) == (-32600, None), text
        for number in (0, -7, 2**63, 10**30, "", "1.5"):
            await host.send({"id": number, "method": "ping"})
            assert await host.answer() == {"jsonrpc": "2.0", "id": number, "result": {}}
        await host.send(b'{"jsonrpc": "2.0", "id": ' + b"9" * 5_000 + b', "method": "ping"}')
        assert (await host.answer())["error"]["code"] in {-32700, -32600}

    run_hosted(body)


def test_too_large_arguments_are_error_and_server_continues(run_hosted):
    async def body(host, _):
        for tool, name in (
            ("remember", "content"),
            ("recall", "query"),
            ("show", "path"),
            ("undo", "task_id"),
        ):
            await host.send(call(tool, tool, **{name: "x" * (1 << 20)}))
            result = (await host.answer())["result"]
            assert (result["isError"], len(str(result)) < 1_000) == (True, True), tool
        await host.send({"id": 1, "method": "ping"})
        assert (await host.answer())["id"] == 1

    run_hosted(body)


def test_running_requests_are_answered_after_input_ends(run_hosted):
    async def body(host, _):
        await host.send(
            call(1, "remember", content="The user keeps a goat"),
            {"id": 2, "method": "tools/list"},
        )
        await host.send_bytes(json.dumps({"jsonrpc": "2.0", **call(3, "recall", query="goat")}).encode())
        host.end()
        answers = await host.answers(3)
        assert answers[1]["result"]["structuredContent"]["paths"]
        assert len(answers[2]["result"]["tools"]) == 9

    run_hosted(body)


class BlockedModel:
    """A model that runs until it is cancelled."""

    name = "held"

    def __init__(self):
        self.is_called, self.was_cancelled = threading.Event(), False

    def respond(self, request):
        self.is_called.set()
        while not request.cancel.is_set():
            request.cancel.fileno()
        self.was_cancelled = True


def test_signal_cancels_running_call_and_ends_server(run_hosted, tmp_path):
    model = BlockedModel()

    async def body(host, line):
        await host.send(call(1, "remember", content="The user waits"))
        await asyncio.to_thread(model.is_called.wait, 30)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(line.stopped.wait(), 30)

    run_hosted(body, model=model)
    assert model.was_cancelled
    assert not list((tmp_path / "home" / "user").glob("**/*.md"))


def test_too_many_requests_in_flight_get_busy_error(run_hosted, monkeypatch):
    monkeypatch.setattr(stdio, "MAX_IN_FLIGHT", 2)
    model = BlockedModel()

    async def body(host, _):
        await host.send(
            call(1, "remember", content="The user waits"), call(2, "remember", content="The user waits")
        )
        await asyncio.to_thread(model.is_called.wait, 30)
        await host.send({"id": 3, "method": "ping"})
        assert (await host.answer())["error"]["code"] == wire.BUSY
        for number in (1, 2):
            await host.send({"method": "notifications/cancelled", "params": {"requestId": number}})
        await host.send({"id": 4, "method": "ping"})
        assert (await host.answer())["id"] == 4

    run_hosted(body, model=model)


@pytest.mark.parametrize("named", [[1], {}, None, 1.5])
def test_cancel_with_invalid_request_id_is_ignored(run_hosted, named):
    async def body(host, _):
        await host.send(
            {"method": "notifications/cancelled", "params": {"requestId": named}}, {"id": 1, "method": "ping"}
        )
        assert (await host.answer())["id"] == 1

    run_hosted(body)


def test_server_ends_if_host_closes_output(run_hosted):
    async def body(host, line):
        host._lines.close()
        await host.send({"id": 1, "method": "tools/list"})
        await asyncio.wait_for(line.stopped.wait(), 30)

    run_hosted(body)


def test_memory_open_error_is_returned_and_retried(run_hosted, tmp_path):
    user = tmp_path / "home" / "user"
    user.parent.mkdir(mode=0o700)
    user.write_text("no directory")

    async def body(host, _):
        await host.send(call(1, "recall", query="goat"), {"id": 2, "method": "tools/list"})
        answers = await host.answers(2)
        assert answers[1]["result"]["isError"]
        assert "managed_memory_unavailable" in str(answers[1])
        assert str(tmp_path) not in str(answers[1])
        user.unlink()
        await host.send(call(3, "recall", query="goat"))
        assert (await host.answer())["result"]["isError"] is False

    run_hosted(body)


def test_mcp_without_extra_prints_install_hint(run_command, monkeypatch):
    monkeypatch.setattr("muniment.cli.mcp.importlib.util.find_spec", lambda _: None)
    code, output = run_command("mcp")
    assert (code, output) == (1, "muniment mcp needs the extra `mcp`: pip install 'muniment[mcp]'\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--trust", "king"), "unknown trust 'king'"),
        (("--url", "http://127.0.0.1:1"), "MUNIMENT_TOKEN is not set; create a token"),
        (("--url", "http://127.0.0.1:1", "--daemon"), "use either --url or --daemon"),
        (("--daemon", "--policy", "strict"), "the daemon has its own policy"),
    ],
)
def test_invalid_start_options_print_one_line_error(run_command, flags, message):
    code, output = run_command("mcp", *flags)
    assert code in {1, 2}
    assert message in output.replace("\n│ ", " ")


# -- processes -----------------------------------------------------------------------------------------


def parameters(tmp_path, *flags):
    (tmp_path / "work" / ".git").mkdir(parents=True, exist_ok=True)
    return StdioServerParameters(
        command=PROGRAM[0],
        args=[*PROGRAM[1:], f"--workspace={tmp_path / 'work'}", *flags],
        env={"MUNIMENT_HOME": str(tmp_path / "home")},
    )


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_official_client_uses_all_and_is_notified_of_commits(tmp_path, era):
    listener, steps = ChangeListener(), []

    def change():
        command = [*PROGRAM[:-1], "remember", "The user sails in June", f"--workspace={tmp_path / 'work'}"]
        env = {**os.environ, "MUNIMENT_HOME": str(tmp_path / "home")}
        subprocess.run(command, check=True, capture_output=True, env=env)

    async def on_progress(progress, *_):
        steps.append(progress)

    async def body(client):
        arguments = {"content": "The user keeps a goat"}
        done = await client.call_tool("remember", arguments, progress_callback=on_progress)
        (path,) = done.structured_content["paths"]
        assert not (await client.call_tool("recall", {"query": "goat"})).is_error
        assert not (await client.call_tool("show", {"path": path})).is_error
        assert (await client.call_tool("history", {})).structured_content["steps"]
        preview = (await client.call_tool("forget", {"description": "goat"})).structured_content
        arguments = {"description": "goat", "yes": True, "digest": preview["digest"]}
        forgotten = (await client.call_tool("forget", arguments)).structured_content
        assert not (await client.call_tool("undo", {"task_id": forgotten["task_id"]})).is_error
        assert "goat" in (await client.read_resource(f"muniment://{path}")).contents[0].text
        assert (await client.list_resource_templates()).resource_templates
        assert (
            "goat" in (await client.get_prompt("memory-context", {"topic": "goat"})).messages[0].content.text
        )
        await wait_for_change(client, listener, lambda: asyncio.to_thread(change))
        with anyio.move_on_after(0.001):
            await client.call_tool("remember", {"content": "The user never says this"})
        answers = await asyncio.gather(
            *(client.call_tool("recall", {"query": f"goat {number}"}) for number in range(200))
        )
        assert not any(each.is_error for each in answers)
        assert (
            read_error_code(await client.call_tool("remember", {"content": "x" * (1 << 20)}))
            == "invalid_content"
        )
        return len((await client.list_tools()).tools)

    with_tools = run_with_client(lambda: parameters(tmp_path), era, body, message_handler=listener)
    assert (with_tools, steps) == (len(TOOLS), [1])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_process_ends_cleanly_on_signal_or_end_of_input(tmp_path, number):
    env = {"MUNIMENT_HOME": str(tmp_path / "home")}
    with run_host(f"--workspace={tmp_path}", **env) as host:
        host.handshake()
        host.call(1, "recall", query="goat")
        host.read_message()
        code, messages, errors = host.end(number)
    assert (code, messages, errors) == (0, [], "")


@pytest.mark.slow
def test_output_of_child_is_not_mixed_with_messages(tmp_path):
    code = (
        "import os, sys\n"
        "import muniment.integrations.mcp.tools as tools\n"
        "def noisy(*_):\n"
        "    print('printed'); os.system('echo from a child'); sys.stdout.flush()\n"
        "    raise RuntimeError('canary')\n"
        "tools.show_entry = noisy\n"
        "sys.argv = ['muniment', 'mcp', '--workspace', sys.argv[1]]\n"
        "from muniment.cli.entry import main\n"
        "main()\n"
    )
    env = {**os.environ, "MUNIMENT_HOME": str(tmp_path / "home")}
    lines = [HELLO, call(1, "show", path="user/x.md"), {"id": 2, "method": "tools/list"}]
    input_text = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in lines)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)],
        input=input_text,
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["id"] for each in answers} == {0, 1, 2}
    assert "canary" not in done.stdout
    assert ("printed" in done.stderr, "from a child" in done.stderr) == (True, True)


@pytest.mark.parametrize("flood", [b"", b"{\n" * 1_000])
def test_wire_stops_after_input_ends_without_reader(monkeypatch, flood):
    monkeypatch.setattr(wire, "END_SECONDS", 0.0)
    (incoming, feed), (unread, outgoing) = os.pipe(), os.pipe()
    os.write(feed, flood)
    os.close(feed)

    async def both():
        async with Wire(incoming, outgoing) as line:
            sending = asyncio.create_task(line.send(b"x" * (1 << 20)))
            await asyncio.wait_for(line.stopped.wait(), 30)
            await asyncio.wait_for(sending, 30)

    asyncio.run(both())
    os.close(unread)


def test_send_to_blocked_host_ends_when_wire_stops():
    (incoming, feed), (unread, outgoing) = os.pipe(), os.pipe()

    async def both():
        async with Wire(incoming, outgoing) as wire:
            sending = asyncio.create_task(wire.send(b"x" * (1 << 20)))
            await asyncio.sleep(0)
            wire.stop()
            await asyncio.wait_for(sending, 10)

    asyncio.run(both())
    os.close(feed)  # This ends the thread of the reader; the next line ends the thread of the writer.
    os.close(unread)
