"""`muniment mcp --url` and `--daemon`: forward messages of a host to a daemon, which may restart."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
from mcp import StdioServerParameters

from kit.jsonrpc import INVALID_IDS
from kit.mcp import ERAS, INITIALIZE, PROGRAM, ChangeListener, run_with_client, wait_for_change
from kit.server.process import PausableModel, start_daemon_process
from kit.server.raw import start_local_daemon
from muniment.client.discovery import create_locator
from muniment.integrations.mcp.pipe import RETRY_SECONDS, McpPipe

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def request(number, method, modern, **params):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {**params, **({"_meta": meta} if modern else {})}
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(number, tool, modern, **arguments):
    return request(number, "tools/call", modern, name=tool, arguments=arguments)


class Host:
    """Receives the messages that the pipe sends to its host."""

    def __init__(self):
        self._messages = asyncio.Queue()

    async def receive(self, line):
        assert b"\n" not in line
        self._messages.put_nowait(json.loads(line))

    async def next_answer(self):
        """Return the next answer; skip notifications of the server."""
        while "id" not in (message := await asyncio.wait_for(self._messages.get(), 30)):
            pass
        return message


def run_piped(daemon, body, *, token=None, trust="agent", address=None):
    """Run a body with a pipe to a daemon and its host, and return its result."""

    async def both():
        host = Host()
        target = address or create_locator({}, url=daemon.url, token=token or daemon.token)
        pipe = McpPipe(target, daemon.key, trust, host.receive)
        try:
            return await body(pipe, host)
        finally:
            await pipe.close()

    return asyncio.run(asyncio.wait_for(both(), 60))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with start_local_daemon(tmp_path_factory.mktemp("pipe")) as served:
        yield served


@pytest.mark.parametrize("modern", [False, True])
def test_host_of_either_era_gets_answers_of_daemon(daemon, modern):
    async def body(pipe, host):
        if not modern:
            await pipe.forward(INITIALIZE)
            assert (await host.next_answer())["result"]["serverInfo"]["name"] == "muniment"
            await pipe.forward(INITIALIZED)
        await pipe.forward(call("a", "remember", modern, content=f"The user keeps goat {modern:d}"))
        done = await host.next_answer()
        await pipe.forward(request(7, "resources/read", modern, uri="muniment://user/größe.md"))
        return done, await host.next_answer()

    done, missing = run_piped(daemon, body)
    assert (done["id"], done["result"]["structuredContent"]["trust"]) == ("a", "agent")
    assert (missing["id"], missing["error"]["code"], missing["error"]["data"]) == (
        7,
        -32602,
        {"code": "not_found"},
    )


def test_too_deeply_nested_message_is_error(daemon):
    deep = {}
    for _ in range(5_000):
        deep = {"a": deep}

    async def body(pipe, host):
        await pipe.forward({"jsonrpc": "2.0", "method": "notifications/progress", "params": deep})
        await pipe.forward({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
        await asyncio.wait_for(pipe._notifications.join(), 20)
        await pipe.forward({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": deep})
        return await host.next_answer()

    answer = run_piped(daemon, body)
    assert (answer["id"], answer["error"]["message"]) == (1, "the message is nested too deeply")


def test_restarted_daemon_is_found_without_error(tmp_path):
    address = create_locator({"MUNIMENT_HOME": str(tmp_path / "home")})

    async def body(pipe, host):
        await pipe.forward(INITIALIZE)
        await host.next_answer()
        await pipe.forward(INITIALIZED)
        await asyncio.to_thread(first.run_coroutine, first.daemon.stop())
        recall = asyncio.create_task(pipe.forward(call(1, "recall", False, query="goat")))
        await asyncio.to_thread(restarted.enter_context, start_local_daemon(tmp_path))
        await recall
        return await host.next_answer()

    with ExitStack() as restarted, start_local_daemon(tmp_path) as first:
        answer = run_piped(first, body, address=address)
    assert (answer["id"], answer["result"]["isError"]) == (1, False)


def test_request_without_daemon_gets_error(daemon, monkeypatch):
    monkeypatch.setattr("muniment.integrations.mcp.pipe.RETRY_SECONDS", 0.1)

    async def body(pipe, host):
        await pipe.forward(INITIALIZE)
        return await host.next_answer()

    answer = run_piped(daemon, body, address=create_locator({}, url="http://127.0.0.1:1", token="x" * 40))
    assert (answer["id"], answer["error"]["code"]) == (0, -32000)
    assert "cannot connect to the daemon" in answer["error"]["message"]


def test_odd_message_is_error_or_ignored_and_next_is_served(daemon):
    async def body(pipe, host):
        odd = request(1, "tools/é", True), request(2, "tools/list", True)
        odd[1]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-é"
        notifications = [{key: value for key, value in each.items() if key != "id"} for each in odd]
        for each in (*notifications, *odd):
            await pipe.forward(each)
        answers = [await host.next_answer(), await host.next_answer()]
        await pipe.forward(call(3, "recall", True, query="goat"))
        return answers, await host.next_answer()

    answers, served = run_piped(daemon, body)
    assert {each["id"] for each in answers if "error" in each} == {1, 2}
    assert (served["id"], served["result"]["isError"]) == (3, False)


def test_pipe_request_with_invalid_id_gets_error(daemon):
    async def body(pipe, host):
        for text in INVALID_IDS:
            await pipe.forward(json.loads(f'{{"jsonrpc": "2.0", "id": {text}, "method": "ping"}}'))
            answer = await host.next_answer()
            assert (answer["id"], answer["error"]["code"]) == (None, -32600), text

    run_piped(daemon, body)


def test_too_many_requests_in_flight_get_error(daemon, monkeypatch):
    monkeypatch.setattr("muniment.integrations.mcp.pipe.MAX_IN_FLIGHT", 2)

    async def body(pipe, host):
        for number in range(3):
            await pipe.forward(request(number, "subscriptions/listen", True, notifications={}))
        return await host.next_answer()

    answer = run_piped(daemon, body)
    assert (answer["id"], answer["error"]["code"]) == (2, -32000)


def test_notification_without_daemon_does_not_block(daemon):
    async def body(pipe, _host):
        await asyncio.wait_for(pipe.forward(INITIALIZED), RETRY_SECONDS / 2)

    run_piped(daemon, body, address=create_locator({}, url="http://127.0.0.1:1", token="x" * 40))


def test_streams_of_changes_end_with_the_input(daemon):
    async def body(pipe, _host):
        wanted = {"resourcesListChanged": True}
        await pipe.forward(request(1, "subscriptions/listen", True, notifications=wanted))
        await asyncio.wait_for(pipe.finish(30), 10)

    run_piped(daemon, body)


def test_token_is_not_sent_to_unverified_server(daemon, monkeypatch):
    monkeypatch.setattr("muniment.integrations.mcp.pipe.RETRY_SECONDS", 0.1)

    async def body(pipe, host):
        await pipe.forward(INITIALIZE)
        return await host.next_answer()

    answer = run_piped(daemon, body, token="a-token-that-nobody-here-knows")
    assert answer["error"]["code"] == -32000
    assert "without the proof" in answer["error"]["message"]


def test_rejection_of_daemon_has_its_code(daemon):
    async def body(pipe, host):
        await pipe.forward(request(1, "tools/list", True) | {"padding": "x" * (1 << 20)})
        return await host.next_answer()

    assert "[body_too_large]" in run_piped(daemon, body)["error"]["message"]


@pytest.mark.parametrize("modern", [False, True])
def test_cancel_of_host_cancels_task_of_daemon(tmp_path, modern):
    with PausableModel() as model, start_local_daemon(tmp_path, model) as served:
        model.pause()

        async def body(pipe, host):
            if not modern:
                await pipe.forward(INITIALIZE)
                await host.next_answer()
                await pipe.forward(INITIALIZED)
            await pipe.forward(call(1, "remember", modern, content="The user waits"))
            await asyncio.to_thread(model.wait_for_requests)
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": 1}}
            await pipe.forward({"jsonrpc": "2.0", **cancelled})
            (task,) = served.get("/workspace/memory/tasks").json()["tasks"]
            return await asyncio.to_thread(served.wait_for_task, task["taskId"])

        assert run_piped(served, body)["status"] in {"cancelled", "failed"}


def test_pipe_loads_no_fence_memory_or_sdk():
    code = (
        "import sys, muniment.cli.mcp, muniment.integrations.mcp.wire, muniment.integrations.mcp.pipe\n"
        "parts = ('fence', 'store', 'policy', 'agent', 'jobs', 'tools', 'api', 'daemon')\n"
        "heavy = {'mcp', 'mcp_types', 'pydantic', 'sqlite3', *(f'muniment.{part}' for part in parts)}\n"
        "print(sorted(heavy & {'.'.join(each.split('.')[:n]) for each in sys.modules for n in (1, 2)}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("how", ["--daemon", "--url"])
def test_official_client_uses_daemon_through_program(tmp_path, era, how):
    listener = ChangeListener()
    with start_daemon_process(tmp_path) as daemon:
        flags = [how, *([daemon.url] if how == "--url" else []), f"--workspace={daemon.work}"]
        env = {"MUNIMENT_HOME": str(daemon.home if how == "--daemon" else tmp_path / "nowhere")}
        env |= {"MUNIMENT_TOKEN": daemon.token} if how == "--url" else {}

        def target():
            return StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], *flags], env=env)

        async def change():
            done = await asyncio.to_thread(daemon.remember, "The user sails in June")
            await asyncio.to_thread(daemon.wait_for_task, done)

        async def body(client):
            steps = []
            done = await client.call_tool(
                "remember",
                {"content": "The user keeps a goat"},
                progress_callback=lambda progress, *_: asyncio.sleep(0, steps.append(progress)),
            )
            await wait_for_change(client, listener, change)
            answers = await asyncio.gather(
                *(client.call_tool("recall", {"query": f"goat {number}"}) for number in range(200))
            )
            assert not any(each.is_error for each in answers)
            return done.structured_content["trust"], steps

        assert run_with_client(target, era, body, message_handler=listener) == ("agent", [1])
