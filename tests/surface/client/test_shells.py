"""Both shells do what the core decides, over real sockets, and tell nobody the token."""

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

from kit.client.driving import KEY, opened, talking
from kit.client.scripted import DONE, DROP, HANG, TOKEN, Scripted, answer, event, problem, raw, stream, task
from kit.raising import raised
from kit.where import TESTS
from muniment import errors as library
from muniment.client import AsyncClient, Client, core, errors, exchange, transport
from muniment.client.finding import Where
from muniment.errors import ConfigInvalid

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"
OK = answer(200, {"v": 1})
NOBODY = "http://127.0.0.1:1"


def scale(monkeypatch, seconds):
    """Patience scaled down."""
    for module, name in ((exchange, "GRACE_SECONDS"), (exchange, "TRY_SECONDS"), (core, "QUIET_SECONDS")):
        monkeypatch.setattr(module, name, seconds)


hasty = pytest.fixture(lambda monkeypatch: scale(monkeypatch, 0.5))


@pytest.fixture
def logged(caplog):
    """Everything that any library logs, at every level."""
    for name in (None, "httpx2", "httpcore2", "asyncio", "muniment"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def spell(status, document):
    """An answer whose JSON spells the token in another way."""
    return status, json.dumps(document).replace("tkn", "\\u0074kn").encode()


def everything_of(error):
    """What may be printed of an error, and of those that it came from."""
    told = []
    while error is not None:
        told += [str(error), repr(error), repr(vars(error)), repr(getattr(error, "doc", None))]
        error = error.__cause__ or error.__context__
    return told


# -- calls -----------------------------------------------------------------------------------------------


def test_remember_is_sent_and_waited_for(shell):
    steps = answer(202, task()), answer(200, task("running")), answer(200, DONE)
    with talking(shell, *steps, token=TOKEN, client_id="web") as (server, client):
        handle = client.remember("A fact.", scope="user")
        assert handle.wait(timeout=30).files_touched == ("user/editor.md",)
    assert (handle.task_id, handle.kind, handle.replayed) == ("remember-1", "remember", False)
    posted, *looks = server.sent
    assert posted.json == {"content": "A fact.", "scope": "user"}
    kept = {name: posted.headers[name] for name in ("idempotency-key", "user-agent")}
    kept |= {"host": server.url.removeprefix("http://"), "content-length": str(len(posted.body))}
    kept |= {"accept": "application/json", "accept-encoding": "identity", "x-muniment-client-id": "web"}
    sent = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    assert posted.headers == kept | sent
    assert {look.path for look in looks} == {f"/workspaces/{KEY}/memory/remember/remember-1"}


def test_app_calls_send_expected_requests(shell):
    forget = task(kind="forget")
    calls = (
        ("POST forget", lambda c: c.forget_workspace_memory("x", scope="user").kind, forget, "forget"),
        ("POST dream", lambda c: c.dream_workspace_memory().status, task(kind="dream"), "queued"),
        ("GET forget/f-1", lambda c: c.get_workspace_memory_forget_task("f-1").kind, forget, "forget"),
        ("DELETE forget/forget-9", lambda c: c.handle("forget-9").cancel().kind, forget, "forget"),
        ("GET /capabilities", lambda c: c.capabilities()["v"], {"v": 1}, 1),
    )
    with talking(shell, *(answer(200, document) for _, _, document, _ in calls)) as (server, client):
        for asked, call, _, expected in calls:
            assert call(client) == expected, asked
        raised(ConfigInvalid, client.handle, "undo-1")
        raised(ConfigInvalid, client.get, "")
    prefix = f"/workspaces/{KEY}/memory/"
    sent = [f"{each.method} {each.path.removeprefix(prefix)}" for each in server.sent]
    assert sent == [asked for asked, *_ in calls]
    assert all("authorization" not in each.headers for each in server.sent)


def test_lost_request_is_retried_under_its_idempotency_key(shell):
    full = problem(429, "remember_queue_full", retry_after=5)
    steps = DROP, [b"HTTP/1.1 202 Acc", None], full, full, answer(202, task()), answer(202, task())
    with talking(shell, *steps) as (server, client):
        assert client.remember("A fact.").task_id == "remember-1"
        assert client.pauses[2:] == [5.0, 5.0]
        client.remember("A fact.")
    assert len({sent.body for sent in server.sent}) == 1
    *tries, last = [sent.headers["idempotency-key"] for sent in server.sent]
    assert (len(tries), len(set(tries)), last in tries) == (5, 1, False)


def test_problems_and_failed_tasks_raise_their_class(shell):
    failed = task("failed", error={"code": "remember_path_escape", "message": "Stopped."})
    full = problem(429, "remember_queue_full", retry_after=99)
    with talking(shell, full, answer(200, failed), problem(401, "token_required")) as (server, client):
        raised(library.QueueFull, client.remember, "")
        assert len(server.sent) == 1
        assert raised(library.PathEscape, client.handle("remember-1").wait).task_id == "remember-1"
        raised(errors.Problem, next, client.events())


def test_absent_or_untrusted_daemon_is_unreachable(shell, tmp_path, monkeypatch):
    """A warning of Python's that a socket was not closed would be an error here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with Scripted(path=tmp_path / "d.sock"):
        pass
    sockets = ({"socket": tmp_path / name} for name in ("d.sock", "missing.sock", "x" * 200))
    for where in ({"url": url}, *sockets):
        with opened(shell, **where, timeout=0.01, hasty=False) as client:
            error = raised(errors.Unreachable, client.capabilities, match="nobody takes the connection")
            assert not error.may_have_arrived
    with opened(shell, home=tmp_path, timeout=0.01, hasty=False) as client:
        for ask in client.capabilities, partial(next, client.events()):
            raised(errors.Unreachable, ask, match="muniment serve")
    with talking(shell, b"SSH-2.0-OpenSSH_9.6\r\n\r\n") as (_, client):
        raised(errors.Unreachable, client.undo, "remember-1", match="ended early")
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    terms = {"certificate": CERTIFICATE, "token": TOKEN, "timeout": 0.01, "hasty": False}
    with talking(shell, **terms) as (server, client):
        raised(errors.Unreachable, client.capabilities)
    assert server.sent == []


@pytest.mark.usefixtures("hasty")
def test_silent_daemon_times_out(shell):
    with talking(shell, HANG, HANG, timeout=0.05) as (_, client):
        late = "it took too long; it may have been carried out"
        raised(errors.Unreachable, client.remember, "A fact.", match=late)
        raised(errors.WaitTimeout, client.handle("remember-1").wait, timeout=0)


@pytest.mark.parametrize("part", ["header", "body", "refusal of events", "header of events"])
def test_dripping_answer_times_out(shell, monkeypatch, part):
    """Bytes without end, each within the time that all should take."""
    scale(monkeypatch, 0.5)
    tick = threading.Event()
    pieces = [b" ", lambda: tick.wait(0.03)] * 40
    begun = b"HTTP/1.1 200 OK\r\n"
    slow = {
        "header": [begun + b"x-slow: ", *pieces, b"\r\ncontent-length: 2\r\n\r\n{}"],
        "body": [begun + b"content-length: 42\r\n\r\n", *pieces, b"{}"],
        "refusal of events": [b"HTTP/1.1 401 No\r\ncontent-length: 99\r\n\r\n", *pieces, b"{}"],
        "header of events": [begun + b"x-slow: ", *pieces, b"\r\n", stream()[0][17:], event(1), None],
    }[part]
    with talking(shell, slow, stream(event(2)), timeout=5.0 if "events" in part else 0.05) as (_, client):
        if "events" in part:
            told = client.events()
            assert next(told).id == "0badcafe-2"
            told.close()
        else:
            raised(errors.Unreachable, client.capabilities, match="it took too long")
        tick.set()


def test_idle_connection_is_reused_for_four_seconds(shell, monkeypatch):
    """A daemon keeps it for 75 s; what else speaks the contract, mostly for 5 s."""
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    for module in (httpcore2._sync.http11, httpcore2._async.http11):
        monkeypatch.setattr(module, "time", now)
    with talking(shell, OK, OK, OK) as (server, client):
        opened_by_then = []
        for seconds in (0, 3.9, 4.1):
            now.at += seconds
            client.capabilities()
            opened_by_then.append(len(server._open))
    assert opened_by_then == [1, 1, 2]


def test_redirects_and_environment_variables_are_ignored(shell, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing"))
    with Scripted(answer(200, {})) as other:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url)
        away = raw(307, b"", location=f"{other.url}/capabilities", set_cookie="a=b")
        with talking(shell, away, OK, token=TOKEN) as (server, client):
            raised(errors.BadAnswer, client.capabilities, match="307")
            assert client.capabilities() == {"v": 1}
        assert "cookie" not in server.sent[1].headers
        with talking(shell, OK) as (server, client):
            assert client.capabilities() == {"v": 1}
        assert "authorization" not in server.sent[0].headers
        assert other.sent == []


def test_token_appears_in_no_error_log_event_or_task(shell, logged):
    echo = problem(400, "invalid_content", error=f"You sent Bearer {TOKEN}", sent=[{TOKEN: TOKEN}])
    spelt = raw(*spell(400, {"code": "invalid_content", "error": f"You sent {TOKEN}"}))
    _, body = spell(200, {"type": "task", "data": {"a": [TOKEN]}, "originatorClientId": TOKEN})
    failed = spell(200, task("failed", error={"code": "remember_failed", "message": TOKEN}))
    events = stream(f"id: {TOKEN}\ndata: ".encode() + body + b"\n\n", f"data: {TOKEN}\n\n".encode())
    steps = echo, spelt, answer(200, [TOKEN]), raw(200, TOKEN.encode()), DROP, events, raw(*failed)
    with talking(shell, *steps, token=TOKEN, timeout=0.05) as (server, client):
        told = [repr(client), repr(client.handle("dream-1"))]
        for _ in range(5):
            kinds = library.InvalidContent, errors.BadAnswer, errors.Unreachable
            told += everything_of(raised(kinds, client.undo, "remember-1"))
        assert sum("[token]" in each for each in told) > 2
        following = client.events()
        told.append(repr(next(following)))
        assert told[-1].count("[token]") == 3
        told += everything_of(raised(errors.BadAnswer, next, following))
        task_told = client.handle("remember-1").get()
        told.append(repr(task_told))
    assert task_told.error.message == "[token]"
    assert server.sent[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in "".join((*told, logged.text))


def test_token_that_is_a_common_word_is_not_masked(shell):
    listed = answer(200, {"tasks": [task()]})
    with talking(shell, listed, token="tasks") as (_, client):
        assert [each.task_id for each in client.tasks()] == ["remember-1"]


def test_oversized_or_compressed_answer_is_rejected(shell, monkeypatch):
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1000)
    steps = answer(200, {"v": "x" * 1000}), raw(200, b"\x1f\x8b", content_encoding="gzip")
    with talking(shell, *steps) as (_, client):
        for told in ("more than 1000 bytes", "compressed"):
            raised(errors.BadAnswer, client.capabilities, match=told)


# -- the end of a client -----------------------------------------------------------------------------------


def test_closed_client_sends_nothing(shell):
    with talking(shell, OK) as (_, client):
        client.capabilities()
        client.close()
        for ask in client.capabilities, partial(next, client.events()):
            raised(errors.ClientError, ask, match="was closed")


def capabilities(client):
    return client.capabilities()


def follow(client):
    async def every(events):
        return [each async for each in events]

    return (list if isinstance(client, Client) else every)(client.events())


BEGUN = [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", HANG]
BUSY = problem(503, "busy", retry_after=20)
UNDER_WAY = [(capabilities, HANG), (capabilities, BEGUN), (capabilities, BUSY), (follow, BUSY)]
UNDER_WAY += [(follow, [*stream(b": \n\n")[:-1], HANG])]


@pytest.mark.parametrize(("call", "step"), UNDER_WAY)
@pytest.mark.parametrize("kind", ["threads", "threads over tls", "tasks"])
def test_close_ends_call_of_other_thread_or_task(call, step, kind, monkeypatch):
    async def in_tasks(url):
        async with AsyncClient(url) as client:
            under_way = asyncio.create_task(call(client))
            assert await asyncio.to_thread(server.acted.wait, 30)
            await client.close()
            await asyncio.wait_for(under_way, 30)

    def in_threads(url):
        with Client(url) as client, ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(call, client)
            assert server.acted.wait(30)
            client.close()
            under_way.result(30)

    monkeypatch.setattr(exchange, "TRY_SECONDS", 60)  # Longer than anybody waits here.
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    monkeypatch.setattr(transport, "_tls", lambda _: trusting)
    certificate = CERTIFICATE if "tls" in kind else None
    with (
        Scripted(step, certificate=certificate) as server,
        pytest.raises(errors.ClientError, match="was closed"),
    ):
        asyncio.run(in_tasks(server.url)) if kind == "tasks" else in_threads(server.url)


@pytest.mark.usefixtures("hasty")
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
        for call in (capabilities, follow):
            async with AsyncClient(NOBODY) as client:
                under_way = asyncio.create_task(call(client))
                await connecting.wait()
                await client.close()
                with pytest.raises(errors.ClientError, match="was closed"):
                    await asyncio.wait_for(under_way, 30)
            connecting.clear()
        async with AsyncClient(NOBODY) as client:
            closing.append(client)
            with pytest.raises(errors.ClientError, match="was closed"):
                await client.capabilities()

    monkeypatch.setattr(httpcore2._backends.anyio.AnyIOBackend, "connect_tcp", connect)
    asyncio.run(main())


def test_nothing_is_read_or_written_after_deadline():
    patience = transport.TryPatience(0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = transport._Stream(httpcore2._backends.sync.SyncStream(ours), Where("http://127.0.0.1"))
        theirs.sendall(b"x")
        raised(httpcore2.ReadTimeout, stream.read, 1, patience)
        raised(httpcore2.WriteTimeout, stream.write, b"x", patience)
        assert stream.read(1, None) == b"x"


def test_connection_made_during_close_is_closed(monkeypatch):
    with Scripted() as server, Client(server.url, timeout=0.01) as client:
        connect = socket.create_connection

        def late(*args, **kwargs):
            made = connect(*args, **kwargs)
            client.close()
            return made

        monkeypatch.setattr(socket, "create_connection", late)
        assert raised(errors.ClientError, client.capabilities).code in {"client_closed", "unreachable"}
    assert server.sent == []


# -- the home ------------------------------------------------------------------------------------------


def announce(home, url):
    (home / "state").mkdir(exist_ok=True)
    for name, text in {"daemon.json": json.dumps({"url": url, "socket": None}), "token": TOKEN}.items():
        unfinished = home / "state" / "unfinished"
        unfinished.write_text(text)
        unfinished.chmod(0o600)
        unfinished.replace(home / "state" / name)


def test_wait_continues_at_address_of_next_daemon(shell, tmp_path):
    """The first one ends and takes its address with it; the pause is when the next one comes."""
    with Scripted(answer(200, DONE)) as second:

        def end():
            (tmp_path / "state/daemon.json").unlink()
            return DROP

        with Scripted(answer(202, task()), answer(200, task("running")), end) as first:
            announce(tmp_path, first.url)
            with opened(shell, home=tmp_path) as client:
                client.pauses.then = lambda seconds: seconds > 1 and announce(tmp_path, second.url)
                assert client.remember("A fact.").wait(timeout=300).summary
                assert max(client.pauses) > 1
    assert (len(first.sent), len(second.sent)) == (3, 1)


# -- events --------------------------------------------------------------------------------------------


def test_events_arrive_once_over_lost_connections(shell):
    second, mark = event(2), b"retry: 1000\n: \nid: 0badcafe-9\n\n"
    began, busy = b": \nid: 0badcafe-0\n\n", problem(503, "busy", retry_after=1)
    steps = stream(began, event(1), second[:30]), DROP, busy, stream(second, mark), stream(event(10, "task"))
    with talking(shell, *steps) as (server, client):
        told = client.events()
        found = [next(told) for _ in range(3)]
        told.close()
        assert client.pauses == [0.05, 0.1, 1.0, 0.05]
    assert [each.id for each in found] == ["0badcafe-1", "0badcafe-2", "0badcafe-10"]
    assert [each.type for each in found] == ["memory_changed", "memory_changed", "task"]
    assert found[0].originator_client_id == "web"
    after = [sent.headers.get("last-event-id") for sent in server.sent]
    assert after == [None, *["0badcafe-1"] * 3, "0badcafe-9"]
    assert server.sent[0].headers["accept"] == "text/event-stream"


def test_events_continue_after_id_and_pass_resync(shell):
    steps = DROP, stream(b": \nid: 0badcafe-7\n\n"), stream(event(8, "resync"), event(9))
    with talking(shell, *steps) as (server, client):
        assert client.cursor() == "0badcafe-7"
        assert len(server.sent) == 2
        told = client.events(after="0badcafe-7")
        assert [next(told).type, next(told).type] == ["resync", "memory_changed"]
        told.close()
    assert server.sent[2].headers["last-event-id"] == "0badcafe-7"


@pytest.mark.usefixtures("hasty")
def test_silent_stream_is_reopened_and_endless_problem_left(shell):
    held = threading.Event()
    silent = [*stream(event(1))[:-1], held.wait, None]
    refusal = [b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\n", held.wait, None]
    with talking(shell, silent, stream(event(2)), refusal, stream(event(3))) as (_, client):
        told = client.events()
        assert [next(told).id for _ in range(3)] == ["0badcafe-1", "0badcafe-2", "0badcafe-3"]
        held.set()
        told.close()


def test_stream_may_last_and_closing_it_disconnects(shell, monkeypatch):
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    monkeypatch.setattr(transport, "time", now)
    is_later, closed = threading.Event(), threading.Event()

    def until_closed():
        assert server._open[0].recv(1) == b""
        closed.set()

    steps = [*stream(event(1))[:-1], is_later.wait, event(2), until_closed, None], stream(event(3))
    with talking(shell, *steps) as (server, client):
        told = client.events()
        assert next(told).id == "0badcafe-1"
        now.at += 1000
        is_later.set()
        assert next(told).id == "0badcafe-2"
        told.close()
        assert closed.wait(30)


# -- each by itself ------------------------------------------------------------------------------------


def test_threads_and_tasks_share_a_client():
    async def main(url):
        async with AsyncClient(url) as client, asyncio.TaskGroup() as group:
            calls = [group.create_task(client.handle("remember-1").wait()) for _ in range(16)]
        return [call.result() for call in calls]

    with Scripted(*[answer(200, DONE)] * 32) as server:
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

    with Scripted(until_closed) as server:
        asyncio.run(main(server.url))
