"""Both clients follow the decisions of the core, over real sockets, and never reveal the token."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpcore2
import pytest

from kit.catching import catch_error
from kit.client.scripted import (
    DONE,
    DROP,
    HANG,
    TOKEN,
    ScriptedServer,
    make_answer,
    make_event,
    make_problem,
    make_raw,
    make_stream,
    make_task,
)
from kit.client.shells import KEY, open_client, open_scripted
from kit.locations import TESTS
from muniment import errors as library
from muniment.client import AsyncClient, Client, errors, exchange, follower, transport
from muniment.client.discovery import DaemonAddress
from muniment.errors import ConfigInvalid

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"
OK = make_answer(200, {"v": 1})
UNREACHABLE = "http://127.0.0.1:1"


def shorten_timeouts(monkeypatch, seconds):
    """Shorten the timeouts."""
    for module, name in (
        (exchange, "GRACE_SECONDS"),
        (exchange, "ATTEMPT_SECONDS"),
        (follower, "QUIET_SECONDS"),
    ):
        monkeypatch.setattr(module, name, seconds)


short_timeouts = pytest.fixture(lambda monkeypatch: shorten_timeouts(monkeypatch, 0.5))


@pytest.fixture
def all_logs(caplog):
    """Record the logs of every library at every level."""
    for name in (None, "httpx2", "httpcore2", "asyncio", "muniment"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def escape_token(status, document):
    """Return an answer whose JSON contains the token in an escaped form."""
    return status, json.dumps(document).replace("tkn", "\\u0074kn").encode()


def describe_error(error):
    """Return every text that may be printed for an error and its causes."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), repr(vars(error)), repr(getattr(error, "doc", None))]
        error = error.__cause__ or error.__context__
    return texts


# -- calls ---------------------------------------------------------------------------------------------


def test_remember_is_sent_and_waited_for(client_class):
    steps = make_answer(202, make_task()), make_answer(200, make_task("running")), make_answer(200, DONE)
    with open_scripted(client_class, *steps, token=TOKEN, client_id="web") as (server, client):
        handle = client.remember("A fact.", scope="user")
        assert handle.wait(timeout=30).files_touched == ("user/editor.md",)
    assert (handle.task_id, handle.kind, handle.replayed) == ("remember-1", "remember", False)
    posted, *polls = server.requests
    assert posted.json == {"content": "A fact.", "scope": "user"}
    expected = {name: posted.headers[name] for name in ("idempotency-key", "user-agent")}
    expected |= {"host": server.url.removeprefix("http://"), "content-length": str(len(posted.body))}
    expected |= {"accept": "application/json", "accept-encoding": "identity", "x-muniment-client-id": "web"}
    more = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    assert posted.headers == expected | more
    assert {poll.path for poll in polls} == {f"/workspaces/{KEY}/memory/remember/remember-1"}


def test_app_calls_send_expected_requests(client_class):
    forget = make_task(kind="forget")
    calls = (
        ("POST forget", lambda c: c.forget_workspace_memory("x", scope="user").kind, forget, "forget"),
        ("POST dream", lambda c: c.dream_workspace_memory().status, make_task(kind="dream"), "queued"),
        ("GET forget/f-1", lambda c: c.get_workspace_memory_forget_task("f-1").kind, forget, "forget"),
        ("DELETE forget/forget-9", lambda c: c.handle("forget-9").cancel().kind, forget, "forget"),
        ("GET /capabilities", lambda c: c.capabilities()["v"], {"v": 1}, 1),
    )
    with open_scripted(client_class, *(make_answer(200, document) for _, _, document, _ in calls)) as (
        server,
        client,
    ):
        for expected_request, call, _, expected in calls:
            assert call(client) == expected, expected_request
        catch_error(ConfigInvalid, client.handle, "undo-1")
        catch_error(ConfigInvalid, client.get, "")
    prefix = f"/workspaces/{KEY}/memory/"
    sent = [f"{each.method} {each.path.removeprefix(prefix)}" for each in server.requests]
    assert sent == [expected_request for expected_request, *_ in calls]
    assert all("authorization" not in each.headers for each in server.requests)


def test_lost_request_is_retried_under_its_idempotency_key(client_class):
    full = make_problem(429, "remember_queue_full", retry_after=5)
    steps = (
        DROP,
        [b"HTTP/1.1 202 Acc", None],
        full,
        full,
        make_answer(202, make_task()),
        make_answer(202, make_task()),
    )
    with open_scripted(client_class, *steps) as (server, client):
        assert client.remember("A fact.").task_id == "remember-1"
        assert client.pauses[2:] == [5.0, 5.0]
        client.remember("A fact.")
    assert len({sent.body for sent in server.requests}) == 1
    *tries, last = [sent.headers["idempotency-key"] for sent in server.requests]
    assert (len(tries), len(set(tries)), last in tries) == (5, 1, False)


def test_problems_and_failed_tasks_raise_their_class(client_class):
    failed = make_task("failed", error={"code": "remember_path_escape", "message": "Stopped."})
    full = make_problem(429, "remember_queue_full", retry_after=99)
    with open_scripted(client_class, full, make_answer(200, failed), make_problem(401, "token_required")) as (
        server,
        client,
    ):
        catch_error(library.QueueFull, client.remember, "")
        assert len(server.requests) == 1
        assert catch_error(library.PathEscape, client.handle("remember-1").wait).task_id == "remember-1"
        catch_error(errors.Problem, next, client.events())


def test_absent_or_untrusted_daemon_is_unreachable(client_class, tmp_path, monkeypatch):
    """A Python warning about an unclosed socket would be an error here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with ScriptedServer(path=tmp_path / "d.sock"):
        pass
    sockets = ({"socket": tmp_path / name} for name in ("d.sock", "missing.sock", "x" * 200))
    for address in ({"url": url}, *sockets):
        with open_client(client_class, **address, timeout=0.01, skip_pauses=False) as client:
            error = catch_error(errors.Unreachable, client.capabilities, match="the connection was refused")
            assert not error.may_have_arrived
    with open_client(client_class, home=tmp_path, timeout=0.01, skip_pauses=False) as client:
        for call in client.capabilities, partial(next, client.events()):
            catch_error(errors.Unreachable, call, match="muniment serve")
    with open_scripted(client_class, b"SSH-2.0-OpenSSH_9.6\r\n\r\n") as (_, client):
        catch_error(errors.Unreachable, client.undo, "remember-1", match="ended early")
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    options = {"certificate": CERTIFICATE, "token": TOKEN, "timeout": 0.01, "skip_pauses": False}
    with open_scripted(client_class, **options) as (server, client):
        catch_error(errors.Unreachable, client.capabilities)
    assert server.requests == []


@pytest.mark.usefixtures("short_timeouts")
def test_silent_daemon_times_out(client_class):
    with open_scripted(client_class, HANG, HANG, timeout=0.05) as (_, client):
        late = "it took too long; the request may have been processed"
        catch_error(errors.Unreachable, client.remember, "A fact.", match=late)
        catch_error(errors.WaitTimeout, client.handle("remember-1").wait, timeout=0)


@pytest.mark.parametrize("part", ["header", "body", "refusal of events", "header of events"])
def test_dripping_answer_times_out(client_class, monkeypatch, part):
    """Endless bytes, each within the timeout of the whole answer."""
    shorten_timeouts(monkeypatch, 0.5)
    tick = threading.Event()
    pieces = [b" ", lambda: tick.wait(0.03)] * 40
    start_line = b"HTTP/1.1 200 OK\r\n"
    slow = {
        "header": [start_line + b"x-slow: ", *pieces, b"\r\ncontent-length: 2\r\n\r\n{}"],
        "body": [start_line + b"content-length: 42\r\n\r\n", *pieces, b"{}"],
        "refusal of events": [b"HTTP/1.1 401 No\r\ncontent-length: 99\r\n\r\n", *pieces, b"{}"],
        "header of events": [
            start_line + b"x-slow: ",
            *pieces,
            b"\r\n",
            make_stream()[0][17:],
            make_event(1),
            None,
        ],
    }[part]
    with open_scripted(
        client_class, slow, make_stream(make_event(2)), timeout=5.0 if "events" in part else 0.05
    ) as (_, client):
        if "events" in part:
            events = client.events()
            assert next(events).id == "0badcafe-2"
            events.close()
        else:
            catch_error(errors.Unreachable, client.capabilities, match="it took too long")
        tick.set()


def test_idle_connection_is_reused_for_four_seconds(client_class, monkeypatch):
    """The daemon keeps a connection for 75 s; other servers usually for 5 s."""
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    for module in (httpcore2._sync.http11, httpcore2._async.http11):
        monkeypatch.setattr(module, "time", now)
    with open_scripted(client_class, OK, OK, OK) as (server, client):
        open_connections = []
        for seconds in (0, 3.9, 4.1):
            now.at += seconds
            client.capabilities()
            open_connections.append(len(server._open))
    assert open_connections == [1, 1, 2]


def test_redirects_and_environment_variables_are_ignored(client_class, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing"))
    with ScriptedServer(make_answer(200, {})) as other:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url)
        redirect = make_raw(307, b"", location=f"{other.url}/capabilities", set_cookie="a=b")
        with open_scripted(client_class, redirect, OK, token=TOKEN) as (server, client):
            catch_error(errors.BadAnswer, client.capabilities, match="307")
            assert client.capabilities() == {"v": 1}
        assert "cookie" not in server.requests[1].headers
        with open_scripted(client_class, OK) as (server, client):
            assert client.capabilities() == {"v": 1}
        assert "authorization" not in server.requests[0].headers
        assert other.requests == []


def test_token_appears_in_no_error_log_event_or_task(client_class, all_logs):
    echo = make_problem(400, "invalid_content", error=f"You sent Bearer {TOKEN}", sent=[{TOKEN: TOKEN}])
    escaped = make_raw(*escape_token(400, {"code": "invalid_content", "error": f"You sent {TOKEN}"}))
    _, body = escape_token(200, {"type": "task", "data": {"a": [TOKEN]}, "originatorClientId": TOKEN})
    failed = escape_token(200, make_task("failed", error={"code": "remember_failed", "message": TOKEN}))
    events = make_stream(f"id: {TOKEN}\ndata: ".encode() + body + b"\n\n", f"data: {TOKEN}\n\n".encode())
    steps = (
        echo,
        escaped,
        make_answer(200, [TOKEN]),
        make_raw(200, TOKEN.encode()),
        DROP,
        events,
        make_raw(*failed),
    )
    with open_scripted(client_class, *steps, token=TOKEN, timeout=0.05) as (server, client):
        texts = [repr(client), repr(client.handle("dream-1"))]
        for _ in range(5):
            kinds = library.InvalidContent, errors.BadAnswer, errors.Unreachable
            texts += describe_error(catch_error(kinds, client.undo, "remember-1"))
        assert sum("[token]" in each for each in texts) > 2
        following = client.events()
        texts.append(repr(next(following)))
        assert texts[-1].count("[token]") == 3
        texts += describe_error(catch_error(errors.BadAnswer, next, following))
        fetched_task = client.handle("remember-1").get()
        texts.append(repr(fetched_task))
    assert fetched_task.error.message == "[token]"
    assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in "".join((*texts, all_logs.text))


def test_token_that_is_a_common_word_is_not_masked(client_class):
    listed = make_answer(200, {"tasks": [make_task()]})
    with open_scripted(client_class, listed, token="tasks") as (_, client):
        assert [each.task_id for each in client.tasks()] == ["remember-1"]


def test_oversized_or_compressed_answer_is_rejected(client_class, monkeypatch):
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 1000)
    steps = make_answer(200, {"v": "x" * 1000}), make_raw(200, b"\x1f\x8b", content_encoding="gzip")
    with open_scripted(client_class, *steps) as (_, client):
        for reason in ("more than 1000 bytes", "compressed"):
            catch_error(errors.BadAnswer, client.capabilities, match=reason)


# -- close ---------------------------------------------------------------------------------------------


def test_closed_client_sends_nothing(client_class):
    with open_scripted(client_class, OK) as (_, client):
        client.capabilities()
        client.close()
        for call in client.capabilities, partial(next, client.events()):
            catch_error(errors.ClientError, call, match="client is closed")


def capabilities(client):
    return client.capabilities()


def read_events(client):
    async def every(events):
        return [each async for each in events]

    return (list if isinstance(client, Client) else every)(client.events())


BEGUN = [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", HANG]
BUSY = make_problem(503, "busy", retry_after=20)
UNDER_WAY = [(capabilities, HANG), (capabilities, BEGUN), (capabilities, BUSY), (read_events, BUSY)]
UNDER_WAY += [(read_events, [*make_stream(b": \n\n")[:-1], HANG])]


@pytest.mark.parametrize(("call", "step"), UNDER_WAY)
@pytest.mark.parametrize("kind", ["threads", "threads over tls", "tasks"])
def test_close_ends_call_of_other_thread_or_task(call, step, kind, monkeypatch):
    async def in_tasks(url):
        async with AsyncClient(url) as client:
            under_way = asyncio.create_task(call(client))
            assert await asyncio.to_thread(server.step_done.wait, 30)
            await client.close()
            await asyncio.wait_for(under_way, 30)

    def in_threads(url):
        with Client(url) as client, ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(call, client)
            assert server.step_done.wait(30)
            client.close()
            under_way.result(30)

    monkeypatch.setattr(exchange, "ATTEMPT_SECONDS", 60)  # This is longer than any wait in this test.
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    monkeypatch.setattr(transport, "_choose_tls", lambda _: trusting)
    certificate = CERTIFICATE if "tls" in kind else None
    with (
        ScriptedServer(step, certificate=certificate) as server,
        pytest.raises(errors.ClientError, match="client is closed"),
    ):
        asyncio.run(in_tasks(server.url)) if kind == "tasks" else in_threads(server.url)


@pytest.mark.usefixtures("short_timeouts")
def test_close_ends_call_during_connect(monkeypatch):
    connecting, closing = asyncio.Event(), []

    async def connect(*_args, **_kwargs):
        connecting.set()
        try:
            await asyncio.Event().wait()
        finally:
            for client in closing:
                await client.close()

    async def main():
        for call in (capabilities, read_events):
            async with AsyncClient(UNREACHABLE) as client:
                under_way = asyncio.create_task(call(client))
                await connecting.wait()
                await client.close()
                with pytest.raises(errors.ClientError, match="client is closed"):
                    await asyncio.wait_for(under_way, 30)
            connecting.clear()
        async with AsyncClient(UNREACHABLE) as client:
            closing.append(client)
            with pytest.raises(errors.ClientError, match="client is closed"):
                await client.capabilities()

    monkeypatch.setattr(httpcore2._backends.anyio.AnyIOBackend, "connect_tcp", connect)
    asyncio.run(main())


def test_nothing_is_read_or_written_after_deadline():
    patience = transport.AttemptTimeout(0)
    near, far = socket.socketpair()
    with near, far:
        stream = transport._Stream(
            httpcore2._backends.sync.SyncStream(near), DaemonAddress("http://127.0.0.1")
        )
        far.sendall(b"x")
        catch_error(httpcore2.ReadTimeout, stream.read, 1, patience)
        catch_error(httpcore2.WriteTimeout, stream.write, b"x", patience)
        assert stream.read(1, None) == b"x"


def test_connection_made_during_close_is_closed(monkeypatch):
    with ScriptedServer() as server, Client(server.url, timeout=0.01) as client:
        connect = socket.create_connection

        def connect_and_close(*args, **kwargs):
            connection = connect(*args, **kwargs)
            client.close()
            return connection

        monkeypatch.setattr(socket, "create_connection", connect_and_close)
        assert catch_error(errors.ClientError, client.capabilities).code in {"client_closed", "unreachable"}
    assert server.requests == []


# -- the home ------------------------------------------------------------------------------------------


def write_address(home, url):
    (home / "state").mkdir(exist_ok=True)
    for name, text in {"daemon.json": json.dumps({"url": url, "socket": None}), "token": TOKEN}.items():
        temporary = home / "state" / "unfinished"
        temporary.write_text(text)
        temporary.chmod(0o600)
        temporary.replace(home / "state" / name)


def test_wait_continues_at_address_of_next_daemon(client_class, tmp_path):
    """The first daemon ends and removes its address; the next one starts during the pause."""
    with ScriptedServer(make_answer(200, DONE)) as second:

        def end_daemon():
            (tmp_path / "state/daemon.json").unlink()
            return DROP

        with ScriptedServer(
            make_answer(202, make_task()), make_answer(200, make_task("running")), end_daemon
        ) as first:
            write_address(tmp_path, first.url)
            with open_client(client_class, home=tmp_path) as client:
                client.pauses.on_pause = lambda seconds: seconds > 1 and write_address(tmp_path, second.url)
                assert client.remember("A fact.").wait(timeout=300).summary
                assert max(client.pauses) > 1
    assert (len(first.requests), len(second.requests)) == (3, 1)


# -- events --------------------------------------------------------------------------------------------


def test_events_arrive_once_over_lost_connections(client_class):
    second, mark = make_event(2), b"retry: 1000\n: \nid: 0badcafe-9\n\n"
    start, busy = b": \nid: 0badcafe-0\n\n", make_problem(503, "busy", retry_after=1)
    steps = (
        make_stream(start, make_event(1), second[:30]),
        DROP,
        busy,
        make_stream(second, mark),
        make_stream(make_event(10, "task")),
    )
    with open_scripted(client_class, *steps) as (server, client):
        events = client.events()
        found = [next(events) for _ in range(3)]
        events.close()
        assert client.pauses == [0.05, 0.1, 1.0, 0.05]
    assert [each.id for each in found] == ["0badcafe-1", "0badcafe-2", "0badcafe-10"]
    assert [each.type for each in found] == ["memory_changed", "memory_changed", "task"]
    assert found[0].originator_client_id == "web"
    after = [sent.headers.get("last-event-id") for sent in server.requests]
    assert after == [None, *["0badcafe-1"] * 3, "0badcafe-9"]
    assert server.requests[0].headers["accept"] == "text/event-stream"


def test_events_continue_after_id_and_pass_resync(client_class):
    steps = DROP, make_stream(b": \nid: 0badcafe-7\n\n"), make_stream(make_event(8, "resync"), make_event(9))
    with open_scripted(client_class, *steps) as (server, client):
        assert client.cursor() == "0badcafe-7"
        assert len(server.requests) == 2
        events = client.events(after="0badcafe-7")
        assert [next(events).type, next(events).type] == ["resync", "memory_changed"]
        events.close()
    assert server.requests[2].headers["last-event-id"] == "0badcafe-7"


@pytest.mark.usefixtures("short_timeouts")
def test_silent_stream_is_reopened_and_endless_problem_left(client_class):
    released = threading.Event()
    silent = [*make_stream(make_event(1))[:-1], released.wait, None]
    refusal = [b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\n", released.wait, None]
    with open_scripted(
        client_class, silent, make_stream(make_event(2)), refusal, make_stream(make_event(3))
    ) as (
        _,
        client,
    ):
        events = client.events()
        assert [next(events).id for _ in range(3)] == ["0badcafe-1", "0badcafe-2", "0badcafe-3"]
        released.set()
        events.close()


def test_stream_may_last_and_closing_it_disconnects(client_class, monkeypatch):
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    monkeypatch.setattr(transport, "time", now)
    is_resumed, closed = threading.Event(), threading.Event()

    def until_closed():
        assert server._open[0].recv(1) == b""
        closed.set()

    steps = (
        [*make_stream(make_event(1))[:-1], is_resumed.wait, make_event(2), until_closed, None],
        make_stream(make_event(3)),
    )
    with open_scripted(client_class, *steps) as (server, client):
        events = client.events()
        assert next(events).id == "0badcafe-1"
        now.at += 1000
        is_resumed.set()
        assert next(events).id == "0badcafe-2"
        events.close()
        assert closed.wait(30)


# -- concurrency ---------------------------------------------------------------------------------------


def test_threads_and_tasks_share_a_client():
    async def main(url):
        async with AsyncClient(url) as client, asyncio.TaskGroup() as group:
            calls = [group.create_task(client.handle("remember-1").wait()) for _ in range(16)]
        return [call.result() for call in calls]

    with ScriptedServer(*[make_answer(200, DONE)] * 32) as server:
        with Client(server.url) as client, ThreadPoolExecutor(16) as threads:
            results = list(threads.map(lambda _: client.handle("remember-1").wait(), range(16)))
        results += asyncio.run(main(server.url))
    assert len({each.summary for each in results}) == 1
    assert len(results) == 32


def test_cancelled_call_closes_its_connection():
    arrived, closed = threading.Event(), threading.Event()

    def until_closed():
        arrived.set()
        assert server._open[0].recv(1) == b""
        closed.set()
        return DROP

    async def main(url):
        async with AsyncClient(url) as client:
            call = asyncio.create_task(client.capabilities())
            assert await asyncio.to_thread(arrived.wait, 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(closed.wait, 10)

    with ScriptedServer(until_closed) as server:
        asyncio.run(main(server.url))
