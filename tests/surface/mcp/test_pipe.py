"""`muniment mcp --url` and `--daemon`: a host's messages to a daemon, which may be started anew meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
from mcp import StdioServerParameters

from kit.jsonrpc import INVALID_IDS
from kit.mcp import ERAS, HELLO, PROGRAM, Heard, hears_of_change, with_client
from kit.server.process import HeldModel, serving
from kit.server.raw import running
from muniment.client.finding import place
from muniment.integrations.mcp.pipe import PATIENCE_SECONDS, McpPipe

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
    """What the other end of the pipe is told."""

    def __init__(self):
        self._told = asyncio.Queue()

    async def tell(self, line):
        assert b"\n" not in line
        self._told.put_nowait(json.loads(line))

    async def told(self):
        """The next answer; what the server tells by itself is passed over."""
        while "id" not in (told := await asyncio.wait_for(self._told.get(), 30)):
            pass
        return told


def piped(daemon, body, *, token=None, trust="agent", where=None):
    """What a body comes to with a pipe to a daemon and its host."""

    async def both():
        host = Host()
        named = where or place({}, url=daemon.url, token=token or daemon.token)
        pipe = McpPipe(named, daemon.key, trust, host.tell)
        try:
            return await body(pipe, host)
        finally:
            await pipe.close()

    return asyncio.run(asyncio.wait_for(both(), 60))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("pipe")) as served:
        yield served


@pytest.mark.parametrize("modern", [False, True])
def test_a_host_of_either_era_gets_what_the_daemon_answers(daemon, modern):
    async def body(pipe, host):
        if not modern:
            await pipe.take(HELLO)
            assert (await host.told())["result"]["serverInfo"]["name"] == "muniment"
            await pipe.take(INITIALIZED)
        await pipe.take(call("a", "remember", modern, content=f"The user keeps goat {modern:d}"))
        done = await host.told()
        await pipe.take(request(7, "resources/read", modern, uri="muniment://user/größe.md"))
        return done, await host.told()

    done, missing = piped(daemon, body)
    assert (done["id"], done["result"]["structuredContent"]["trust"]) == ("a", "agent")
    assert (missing["id"], missing["error"]["code"], missing["error"]["data"]) == (
        7,
        -32602,
        {"code": "not_found"},
    )


def test_what_is_nested_too_deep_to_be_written_again_hinders_nothing_else(daemon):
    deep = {}
    for _ in range(5_000):
        deep = {"a": deep}

    async def body(pipe, host):
        await pipe.take({"jsonrpc": "2.0", "method": "notifications/progress", "params": deep})
        await pipe.take({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
        await asyncio.wait_for(pipe._notified.join(), 20)
        await pipe.take({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": deep})
        return await host.told()

    answer = piped(daemon, body)
    assert (answer["id"], answer["error"]["message"]) == (1, "the message is nested too deeply")


def test_a_daemon_that_was_started_anew_is_found_and_the_host_notices_nothing(tmp_path):
    where = place({"MUNIMENT_HOME": str(tmp_path / "home")})

    async def body(pipe, host):
        await pipe.take(HELLO)
        await host.told()
        await pipe.take(INITIALIZED)
        await asyncio.to_thread(first.run, first.daemon.stop())
        asked = asyncio.create_task(pipe.take(call(1, "recall", False, query="goat")))
        await asyncio.to_thread(again.enter_context, running(tmp_path))
        await asked
        return await host.told()

    with ExitStack() as again, running(tmp_path) as first:
        answer = piped(first, body, where=where)
    assert (answer["id"], answer["result"]["isError"]) == (1, False)


def test_where_no_daemon_is_each_request_is_answered_with_an_error(daemon, monkeypatch):
    monkeypatch.setattr("muniment.integrations.mcp.pipe.PATIENCE_SECONDS", 0.1)

    async def body(pipe, host):
        await pipe.take(HELLO)
        return await host.told()

    answer = piped(daemon, body, where=place({}, url="http://127.0.0.1:1", token="x" * 40))
    assert (answer["id"], answer["error"]["code"]) == (0, -32000)
    assert "cannot connect to the daemon" in answer["error"]["message"]


def test_a_message_of_odd_words_is_an_error_or_nothing_and_the_next_one_is_served(daemon):
    async def body(pipe, host):
        odd = request(1, "tools/é", True), request(2, "tools/list", True)
        odd[1]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-é"
        notifications = [{key: value for key, value in each.items() if key != "id"} for each in odd]
        for each in (*notifications, *odd):
            await pipe.take(each)
        answers = [await host.told(), await host.told()]
        await pipe.take(call(3, "recall", True, query="goat"))
        return answers, await host.told()

    answers, served = piped(daemon, body)
    assert {each["id"] for each in answers if "error" in each} == {1, 2}
    assert (served["id"], served["result"]["isError"]) == (3, False)


def test_pipe_request_with_invalid_id_gets_error(daemon):
    async def body(pipe, host):
        for text in INVALID_IDS:
            await pipe.take(json.loads(f'{{"jsonrpc": "2.0", "id": {text}, "method": "ping"}}'))
            told = await host.told()
            assert (told["id"], told["error"]["code"]) == (None, -32600), text

    piped(daemon, body)


def test_a_host_that_asks_for_more_than_a_pipe_holds_is_told_so(daemon, monkeypatch):
    monkeypatch.setattr("muniment.integrations.mcp.pipe.MAX_IN_FLIGHT", 2)

    async def body(pipe, host):
        for number in range(3):
            await pipe.take(request(number, "subscriptions/listen", True, notifications={}))
        return await host.told()

    answer = piped(daemon, body)
    assert (answer["id"], answer["error"]["code"]) == (2, -32000)


def test_a_notification_holds_nothing_up_while_the_daemon_is_away(daemon):
    async def body(pipe, _host):
        await asyncio.wait_for(pipe.take(INITIALIZED), PATIENCE_SECONDS / 2)

    piped(daemon, body, where=place({}, url="http://127.0.0.1:1", token="x" * 40))


def test_streams_of_changes_end_with_the_input(daemon):
    async def body(pipe, _host):
        wanted = {"resourcesListChanged": True}
        await pipe.take(request(1, "subscriptions/listen", True, notifications=wanted))
        await asyncio.wait_for(pipe.finish(30), 10)

    piped(daemon, body)


def test_a_token_goes_to_nobody_who_does_not_know_it(daemon, monkeypatch):
    monkeypatch.setattr("muniment.integrations.mcp.pipe.PATIENCE_SECONDS", 0.1)

    async def body(pipe, host):
        await pipe.take(HELLO)
        return await host.told()

    answer = piped(daemon, body, token="a-token-that-nobody-here-knows")
    assert answer["error"]["code"] == -32000
    assert "without the proof" in answer["error"]["message"]


def test_what_the_daemon_refuses_is_told_by_its_code(daemon):
    async def body(pipe, host):
        await pipe.take(request(1, "tools/list", True) | {"padding": "x" * (1 << 20)})
        return await host.told()

    assert "[body_too_large]" in piped(daemon, body)["error"]["message"]


@pytest.mark.parametrize("modern", [False, True])
def test_what_the_host_cancels_is_cancelled_there(tmp_path, modern):
    with HeldModel() as model, running(tmp_path, model) as served:
        model.hold()

        async def body(pipe, host):
            if not modern:
                await pipe.take(HELLO)
                await host.told()
                await pipe.take(INITIALIZED)
            await pipe.take(call(1, "remember", modern, content="The user waits"))
            await asyncio.to_thread(model.wait_until_asked)
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": 1}}
            await pipe.take({"jsonrpc": "2.0", **cancelled})
            (task,) = served.get("/workspace/memory/tasks").json()["tasks"]
            return await asyncio.to_thread(served.wait, task["taskId"])

        assert piped(served, body)["status"] in {"cancelled", "failed"}


def test_it_loads_neither_the_fence_nor_the_memory_nor_the_sdk():
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
def test_the_official_client_uses_a_daemon_through_the_program(tmp_path, era, how):
    heard = Heard()
    with serving(tmp_path) as daemon:
        flags = [how, *([daemon.url] if how == "--url" else []), f"--workspace={daemon.work}"]
        env = {"MUNIMENT_HOME": str(daemon.home if how == "--daemon" else tmp_path / "nowhere")}
        env |= {"MUNIMENT_TOKEN": daemon.token} if how == "--url" else {}

        def target():
            return StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], *flags], env=env)

        async def change():
            done = await asyncio.to_thread(daemon.remember, "The user sails in June")
            await asyncio.to_thread(daemon.wait, done)

        async def body(client):
            steps = []
            done = await client.call_tool(
                "remember",
                {"content": "The user keeps a goat"},
                progress_callback=lambda progress, *_: asyncio.sleep(0, steps.append(progress)),
            )
            await hears_of_change(client, heard, change)
            answers = await asyncio.gather(
                *(client.call_tool("recall", {"query": f"goat {number}"}) for number in range(200))
            )
            assert not any(each.is_error for each in answers)
            return done.structured_content["trust"], steps

        assert with_client(target, era, body, message_handler=heard) == ("agent", [1])
