"""Both shells do what the core decides, over real sockets, and tell nobody the token."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpcore2
import pytest

from kit.client.driving import KEY, opened
from kit.client.scripted import (
    DROP,
    HANG,
    RECALLED,
    REMEMBERED,
    TOKEN,
    Scripted,
    answer,
    event,
    problem,
    proof,
    raw,
    stream,
    task,
)
from kit.where import TESTS
from muniment.client import AsyncClient, Client, core, transport
from muniment.client.errors import (
    BadAnswer,
    ClientClosed,
    InvalidContent,
    PathEscape,
    QueueFull,
    TokenRequired,
    Unreachable,
    WaitTimeout,
)
from muniment.client.finding import Where
from muniment.errors import ConfigInvalid

BOTH = pytest.mark.parametrize("shell", [Client, AsyncClient])
CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"
DONE = task("completed", result=REMEMBERED)


@pytest.fixture
def hasty(monkeypatch):
    """Patience scaled down."""
    monkeypatch.setattr(core, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(core, "TRY_SECONDS", 0.1)


@pytest.fixture
def logged(caplog):
    """Everything that any library logs, at every level."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx2", "httpcore2", "asyncio", "muniment"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


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


@BOTH
def test_a_fact_is_sent_waited_for_and_told(shell):
    steps = answer(202, task()), answer(200, task("running")), answer(200, DONE)
    with Scripted(*steps) as server, opened(shell, url=server.url, token=TOKEN, client_id="web") as client:
        handle = client.remember("A fact.", scope="user")
        result = handle.wait(timeout=30)
    assert (handle.task_id, handle.kind, handle.replayed) == ("remember-1", "remember", False)
    assert result.files_touched == ("user/editor.md",)
    posted, *looks = server.sent
    assert posted.json == {"content": "A fact.", "scope": "user"}
    assert posted.headers == {
        "host": server.url.removeprefix("http://"),
        "accept": "application/json",
        "accept-encoding": "identity",
        "authorization": f"Bearer {TOKEN}",
        "content-length": str(len(posted.body)),
        "content-type": "application/json",
        "idempotency-key": posted.headers["idempotency-key"],
        "user-agent": posted.headers["user-agent"],
        "x-muniment-client-id": "web",
    }
    assert {look.path for look in looks} == {f"/workspaces/{KEY}/memory/remember/remember-1"}
    assert repr(handle).endswith("TaskHandle('remember-1')")


@BOTH
def test_every_call_asks_what_it_says(shell):
    changed = {"filesTouched": [], "touchedScopes": [], "notes": []}
    decided = {"reviewId": "r1", "status": "approved", "taskId": "x-1", **changed}
    plan = {"files": [], "versions": 1, "others": [], "reviews": [], "records": 1, "tasks": []}
    calls = [
        (lambda c: c.forget("x", dry_run=True).task_id, task(kind="forget"), "forget-1"),
        (lambda c: c.dream().kind, task(kind="dream"), "dream"),
        (lambda c: c.handle("forget-9").get().task_id, task(kind="forget", number=9), "forget-9"),
        (lambda c: c.handle("forget-9").cancel().status, task("cancelled", "forget"), "cancelled"),
        (lambda c: c.tasks(), {"tasks": []}, ()),
        (lambda c: c.capabilities()["v"], {"v": 1}, 1),
        (lambda c: c.recall("x", exclude=["a"], limit=2).entries[0].path, RECALLED, "user/editor.md"),
        (lambda c: c.remember_workspace_memory("x", context_mode="clean").context_mode, task(), "workspace"),
        (lambda c: c.forget_workspace_memory("x", scope="user").kind, task(kind="forget"), "forget"),
        (lambda c: c.dream_workspace_memory().status, task(kind="dream"), "queued"),
        (lambda c: c.get_workspace_memory_remember_task("remember-1").is_over, DONE, True),
        (lambda c: c.get_workspace_memory_forget_task("forget-1").kind, task(kind="forget"), "forget"),
        (lambda c: c.get_workspace_memory_dream_task("dream-1").kind, task(kind="dream"), "dream"),
        (lambda c: c.reviews(), {"reviews": []}, ()),
        (lambda c: c.review("r1").digest, {"reviewId": "r1", "text": "t", "digest": "d"}, "d"),
        (lambda c: c.approve("r1", "d").task_id, decided, "x-1"),
        (lambda c: c.reject("r1").status, decided | {"status": "rejected"}, "rejected"),
        (lambda c: c.undo("remember-1").undone, {"taskId": "undo-1", "undone": "u", **changed}, "u"),
        (
            lambda c: c.erase("user/a.md").versions,
            {"status": "preview", **plan, "copies": [], "notCovered": "n"},
            1,
        ),
        (lambda c: c.audit_head().head, {"head": "h", "records": 3}, "h"),
        (lambda c: c.explain("read", "user/a.md").verdict, {"policy": "p", "verdict": "allow"}, "allow"),
    ]
    with (
        Scripted(*(answer(200, document) for _, document, _ in calls)) as server,
        opened(shell, url=server.url) as client,
    ):
        for call, _, expected in calls:
            assert call(client) == expected
    assert [(sent.method, sent.path.removeprefix(f"/workspaces/{KEY}/memory/")) for sent in server.sent] == [
        ("POST", "forget"),
        ("POST", "dream"),
        ("GET", "forget/forget-9"),
        ("DELETE", "forget/forget-9"),
        ("GET", "tasks"),
        ("GET", "/capabilities"),
        ("POST", "recall"),
        ("POST", "remember"),
        ("POST", "forget"),
        ("POST", "dream"),
        ("GET", "remember/remember-1"),
        ("GET", "forget/forget-1"),
        ("GET", "dream/dream-1"),
        ("GET", "review"),
        ("GET", "review/r1"),
        ("POST", "review/r1/approve"),
        ("POST", "review/r1/reject"),
        ("POST", "undo"),
        ("POST", "erase"),
        ("GET", "audit/head"),
        ("GET", "policy/explain?verb=read&path=user%2Fa.md"),
    ]
    assert all("authorization" not in sent.headers for sent in server.sent)


@BOTH
def test_a_request_whose_answer_was_lost_is_sent_again_under_the_same_key(shell):
    with (
        Scripted(DROP, [b"HTTP/1.1 202 Acc", None], answer(202, task())) as server,
        opened(shell, url=server.url) as client,
    ):
        assert client.remember("A fact.").task_id == "remember-1"
        keys = {sent.headers["idempotency-key"] for sent in server.sent}
    assert len(keys) == 1
    assert len({sent.body for sent in server.sent}) == 1


@BOTH
def test_not_now_is_asked_again_after_the_time_it_says(shell):
    full = problem(429, "remember_queue_full", retry_after=5)
    with Scripted(full, full, answer(202, task())) as server, opened(shell, url=server.url) as client:
        client.remember("A fact.")
        assert client.pauses == [5.0, 5.0]


@BOTH
def test_a_refusal_is_raised_as_the_class_of_its_code(shell):
    steps = (
        problem(400, "invalid_content"),
        problem(401, "token_required"),
        problem(429, "remember_queue_full", retry_after=99),
    )
    with Scripted(*steps) as server, opened(shell, url=server.url) as client:
        for kind in (InvalidContent, TokenRequired, QueueFull):
            with pytest.raises(kind):
                client.remember("")
        assert len(server.sent) == 3


@BOTH
def test_a_task_that_failed_raises_its_class(shell):
    failed = task("failed", error={"code": "remember_path_escape", "message": "Stopped."})
    with Scripted(answer(200, failed)) as server, opened(shell, url=server.url) as client:
        with pytest.raises(PathEscape) as caught:
            client.handle("remember-1").wait()
        assert caught.value.task_id == "remember-1"


@BOTH
def test_nobody_at_the_address_is_said_after_the_time_of_a_call(shell):
    url = f"http://127.0.0.1:{free_port()}"
    with (
        opened(shell, url=url, timeout=0.05, hasty=False) as client,
        pytest.raises(Unreachable) as caught,
    ):
        client.capabilities()
    assert not caught.value.may_have_arrived


@BOTH
def test_nobody_at_the_socket_leaves_no_socket_open(shell, tmp_path):
    """A warning of Python's that one was not closed would be an error here."""
    with Scripted(path=tmp_path / "d.sock"):
        pass
    for name in ("d.sock", "missing.sock", "x" * 200):
        with (
            opened(shell, socket=tmp_path / name, timeout=0.01, hasty=False) as client,
            pytest.raises(Unreachable, match="nobody takes the connection"),
        ):
            client.capabilities()


@BOTH
@pytest.mark.usefixtures("hasty")
def test_a_daemon_that_says_nothing_is_left_after_its_time(shell):
    with Scripted(HANG, HANG) as server, opened(shell, url=server.url, timeout=0.05) as client:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="it took too long; it may have been carried out"):
            client.remember("A fact.")
        with pytest.raises(WaitTimeout):
            client.handle("remember-1").wait(timeout=0)
    assert time.monotonic() - begun < 5


@pytest.fixture
def drips(monkeypatch):
    """40 bytes, each within the time that all should take; setting the event has the rest sent at once."""
    for name in ("GRACE_SECONDS", "TRY_SECONDS"):
        monkeypatch.setattr(core, name, 0.4)
    monkeypatch.setattr(core, "QUIET_SECONDS", 0.4)
    tick = threading.Event()
    return tick, [part for _ in range(40) for part in (b" ", lambda: tick.wait(0.05))]


@BOTH
def test_a_body_that_drips_is_left_after_its_time(shell, drips):
    tick, pieces = drips
    slow = [b"HTTP/1.1 200 OK\r\ncontent-length: 42\r\n\r\n", *pieces, b"{}"]
    with Scripted(slow) as server, opened(shell, url=server.url, timeout=0.05) as client:
        with pytest.raises(Unreachable, match="it took too long"):
            client.capabilities()
        tick.set()


@BOTH
def test_a_header_that_drips_is_left_after_its_time(shell, drips):
    tick, pieces = drips
    slow = [b"HTTP/1.1 200 OK\r\nx-slow: ", *pieces, b"\r\ncontent-length: 2\r\n\r\n{}"]
    with Scripted(slow) as server, opened(shell, url=server.url, timeout=0.05) as client:
        with pytest.raises(Unreachable, match="it took too long"):
            client.capabilities()
        tick.set()


@BOTH
def test_a_connection_that_was_idle_is_used_again_before_others_close_it(shell, monkeypatch):
    """A daemon keeps it for 75 s; what else speaks the contract, mostly for 5 s."""
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    for module in (httpcore2._sync.http11, httpcore2._async.http11):
        monkeypatch.setattr(module, "time", now)
    with Scripted(*[answer(200, {"v": 1})] * 3) as server, opened(shell, url=server.url) as client:
        opened_by_then = []
        for seconds in (0, 3.9, 4.1):
            now.at += seconds
            client.capabilities()
            opened_by_then.append(len(server._open))
    assert opened_by_then == [1, 1, 2]


@BOTH
def test_no_redirect_is_followed_and_the_token_goes_nowhere_else(shell):
    with Scripted(answer(200, {})) as other:
        away = raw(307, b"", location=f"{other.url}/capabilities", set_cookie="a=b")
        with (
            Scripted(away, answer(200, {"v": 1})) as server,
            opened(shell, url=server.url, token=TOKEN) as client,
        ):
            with pytest.raises(BadAnswer, match="307"):
                client.capabilities()
            client.capabilities()
        assert other.sent == []
    assert "cookie" not in server.sent[1].headers


@BOTH
def test_no_variable_of_the_environment_leads_anywhere(shell, monkeypatch, tmp_path):
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    with Scripted(answer(200, {})) as proxy, Scripted(answer(200, {"v": 1})) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing"))
        with opened(shell, url=server.url) as client:
            assert client.capabilities() == {"v": 1}
        assert proxy.sent == []
    assert "authorization" not in server.sent[0].headers


@BOTH
def test_the_token_is_in_no_error_no_log_and_nothing_that_is_printed(shell, logged):
    echo = problem(400, "invalid_content", error=f"You sent Bearer {TOKEN}", sent=[{TOKEN: TOKEN}])
    spelt = raw(*spell(400, {"code": "invalid_content", "error": f"You sent {TOKEN}"}))
    steps = echo, spelt, answer(200, [TOKEN]), raw(200, TOKEN.encode()), DROP, DROP
    with (
        Scripted(*steps) as server,
        opened(shell, url=server.url, token=TOKEN, timeout=0.05) as client,
    ):
        told = [repr(client), repr(client.handle("dream-1"))]
        for _ in range(5):
            with pytest.raises((InvalidContent, BadAnswer, Unreachable)) as caught:
                client.undo("remember-1")
            told += everything_of(caught.value)
    assert server.sent[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert sum("[token]" in each for each in told) > 2
    assert TOKEN not in "".join((*told, logged.text))


@BOTH
def test_the_token_is_in_no_event_and_no_task(shell, logged):
    _, body = spell(200, {"type": "task", "data": {"a": [TOKEN]}, "originatorClientId": TOKEN})
    failed = spell(200, task("failed", error={"code": "remember_failed", "message": TOKEN}))
    events = stream(f"id: {TOKEN}\ndata: ".encode() + body + b"\n\n", f"data: {TOKEN}\n\n".encode())
    with (
        Scripted(events, raw(*failed)) as server,
        opened(shell, url=server.url, token=TOKEN) as client,
    ):
        following = client.events()
        told = [repr(next(following))]
        with pytest.raises(BadAnswer) as caught:
            next(following)
        told += everything_of(caught.value)
        task_told = client.handle("remember-1").get()
        told.append(repr(task_told))
    assert task_told.error.message == "[token]"
    assert told[0].count("[token]") == 3
    assert TOKEN not in "".join((*told, logged.text))


@BOTH
def test_a_token_that_may_be_any_word_is_not_looked_for(shell):
    with (
        Scripted(answer(200, {"tasks": [task()]}), greet=partial(proof, token="tasks")) as server,
        opened(shell, url=server.url, token="tasks") as client,
    ):
        assert [each.task_id for each in client.tasks()] == ["remember-1"]


@BOTH
def test_an_answer_that_is_too_long_or_compressed_is_refused(shell, monkeypatch):
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1000)
    steps = answer(200, {"v": "x" * 1000}), raw(200, b"\x1f\x8b", content_encoding="gzip")
    with Scripted(*steps) as server, opened(shell, url=server.url) as client:
        with pytest.raises(BadAnswer, match="more than 1000 bytes"):
            client.capabilities()
        with pytest.raises(BadAnswer, match="compressed"):
            client.capabilities()


@BOTH
def test_what_speaks_no_http_is_unreachable(shell):
    with (
        Scripted(b"SSH-2.0-OpenSSH_9.6\r\n\r\n") as server,
        opened(shell, url=server.url) as client,
        pytest.raises(Unreachable, match="ended early"),
    ):
        client.undo("remember-1")


@BOTH
def test_a_certificate_that_the_system_does_not_trust_ends_it_before_anything_is_sent(shell, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with (
        Scripted(certificate=CERTIFICATE) as server,
        opened(shell, url=server.url, token=TOKEN, timeout=0.01, hasty=False) as client,
        pytest.raises(Unreachable),
    ):
        client.capabilities()
    assert server.sent == []


@BOTH
def test_a_client_that_was_closed_sends_nothing_more(shell):
    with Scripted(answer(200, {})) as server, opened(shell, url=server.url) as client:
        client.capabilities()
        client.close()
        with pytest.raises(ClientClosed):
            client.capabilities()
        with pytest.raises(ClientClosed):
            next(client.events())


UNDER_WAY = pytest.mark.parametrize(
    ("call", "step"),
    [
        (lambda client: client.capabilities(), HANG),
        (lambda client: client.capabilities(), [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", HANG]),
        (lambda client: client.capabilities(), problem(503, "busy", retry_after=20)),
        (lambda client: _all(client.events()), [*stream(b": \n\n")[:-1], HANG]),
        (lambda client: _all(client.events()), problem(503, "busy", retry_after=20)),
    ],
    ids=["answer", "body", "pause", "events", "pause of events"],
)


async def _all(events):
    return [each async for each in events]


@UNDER_WAY
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_closing_ends_the_call_of_another_thread(call, step, tls, monkeypatch):
    if tls:
        trusting = ssl.create_default_context(cafile=CERTIFICATE)
        monkeypatch.setattr(transport, "_tls", lambda _: trusting)
    monkeypatch.setattr(sys.modules[__name__], "_all", list)
    with Scripted(step, certificate=CERTIFICATE if tls else None) as server, Client(server.url) as client:
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(call, client)
            assert server.acted.wait(10)
            begun = time.monotonic()
            client.close()
            with pytest.raises(ClientClosed):
                under_way.result(10)
            assert time.monotonic() - begun < core.TRY_SECONDS / 2
        with pytest.raises(ClientClosed):
            client.capabilities()


@UNDER_WAY
def test_closing_ends_the_call_of_another_task(call, step):
    async def main(url):
        async with AsyncClient(url) as client:
            under_way = asyncio.create_task(call(client))
            assert await asyncio.to_thread(server.acted.wait, 10)
            await client.close()
            with pytest.raises(ClientClosed):
                await asyncio.wait_for(under_way, 10)

    with Scripted(step) as server:
        asyncio.run(main(server.url))


@pytest.mark.usefixtures("hasty")
def test_closing_while_a_try_is_given_up_ends_the_call(monkeypatch):
    async def main():
        async with AsyncClient("http://127.0.0.1:1") as client:

            async def connect(*_args, **_kwargs):
                try:
                    await asyncio.Event().wait()
                finally:
                    await client.close()

            monkeypatch.setattr(httpcore2._backends.anyio.AnyIOBackend, "connect_tcp", connect)
            with pytest.raises(ClientClosed):
                await client.capabilities()

    asyncio.run(main())


def test_nothing_is_read_or_written_once_the_time_is_over():
    patience = transport.TryPatience(0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = transport._Stream(httpcore2._backends.sync.SyncStream(ours), Where("http://127.0.0.1"))
        theirs.sendall(b"x")
        with pytest.raises(httpcore2.ReadTimeout):
            stream.read(1, patience)
        with pytest.raises(httpcore2.WriteTimeout):
            stream.write(b"x", patience)
        assert stream.read(1, None) == b"x"


def test_a_connection_that_was_made_while_the_client_was_closed_is_closed(monkeypatch):
    with Scripted() as server, Client(server.url, timeout=0.01) as client:
        connect = socket.create_connection

        def late(*args, **kwargs):
            made = connect(*args, **kwargs)
            client.close()
            return made

        monkeypatch.setattr(socket, "create_connection", late)
        with pytest.raises((ClientClosed, Unreachable)):
            client.capabilities()
    assert server.sent == []


def test_closing_ends_the_call_of_another_task_while_it_connects(monkeypatch):
    async def main():
        connecting = asyncio.Event()

        async def connect(*_args, **_kwargs):
            connecting.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(httpcore2._backends.anyio.AnyIOBackend, "connect_tcp", connect)
        for call in (lambda client: client.capabilities(), lambda client: _all(client.events())):
            async with AsyncClient("http://127.0.0.1:1") as client:
                under_way = asyncio.create_task(call(client))
                await connecting.wait()
                await client.close()
                with pytest.raises(ClientClosed):
                    await asyncio.wait_for(under_way, 5)
            connecting.clear()

    asyncio.run(main())


@BOTH
def test_an_id_that_can_be_none_of_a_task_is_refused(shell):
    with opened(shell, url="http://127.0.0.1:1") as client:
        with pytest.raises(ConfigInvalid):
            client.handle("undo-1")
        with pytest.raises(ConfigInvalid):
            client.get("")


# -- the home ------------------------------------------------------------------------------------------


def announce(home, url=None, path=None):
    state = home / "state"
    state.mkdir(exist_ok=True, parents=True)
    for name, text in {
        "daemon.json": json.dumps({"url": url, "socket": path and str(path)}),
        "token": TOKEN,
    }.items():
        unfinished = state / "unfinished"
        unfinished.write_text(text)
        unfinished.chmod(0o600)
        unfinished.rename(state / name)


@BOTH
def test_the_daemon_of_the_home_is_found_by_the_environment(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path))
    with Scripted(answer(200, {"v": 1})) as server:
        announce(tmp_path, server.url)
        with opened(shell) as client:
            client.capabilities()
    assert server.sent[0].headers["authorization"] == f"Bearer {TOKEN}"


@BOTH
def test_its_socket_is_preferred_and_gets_no_token(shell, tmp_path):
    path = tmp_path / "d.sock"
    with Scripted(answer(200, {"v": 1}), path=path) as server:
        announce(tmp_path, "http://127.0.0.1:1", path)
        with opened(shell, home=tmp_path) as client:
            client.capabilities()
    assert server.sent[0].headers["host"] == "localhost"
    assert "authorization" not in server.sent[0].headers


@BOTH
def test_a_socket_may_be_named_with_a_token_for_it(shell, tmp_path):
    path = tmp_path / "d.sock"
    with (
        Scripted(answer(200, {"v": 1}), path=path) as server,
        opened(shell, socket=path, token=TOKEN) as client,
    ):
        client.capabilities()
    assert server.sent[0].headers["authorization"] == f"Bearer {TOKEN}"


@BOTH
def test_a_home_where_no_daemon_runs_says_what_to_do(shell, tmp_path):
    with opened(shell, home=tmp_path, timeout=0.01, hasty=False) as client:
        with pytest.raises(Unreachable, match="muniment serve"):
            client.capabilities()
        with pytest.raises(Unreachable, match="muniment serve"):
            next(client.events())


@BOTH
def test_a_wait_goes_on_at_the_address_that_the_next_daemon_says(shell, tmp_path):
    with Scripted(answer(200, DONE)) as second:

        def move():
            announce(tmp_path, second.url)
            return DROP

        with Scripted(answer(202, task()), answer(200, task("running")), move) as first:
            announce(tmp_path, first.url)
            with opened(shell, home=tmp_path) as client:
                assert client.remember("A fact.").wait(timeout=30).summary
    assert [len(first.sent), len(second.sent)] == [3, 1]


@BOTH
def test_a_daemon_that_is_away_for_a_while_is_waited_for(shell, tmp_path):
    """The first one ends and takes its address with it; the pause is when the next one comes."""
    with Scripted(answer(200, DONE)) as second:
        announce(tmp_path, f"http://127.0.0.1:{free_port()}")
        with opened(shell, home=tmp_path) as client:
            came = threading.Event()

            def come(seconds):
                (tmp_path / "state/daemon.json").unlink(missing_ok=True)
                if seconds > 1:
                    came.set()
                    announce(tmp_path, second.url)

            async def come_later(seconds):
                come(seconds)

            inner = getattr(client, "_inner", client)
            inner._shell._sleep = come if shell is Client else come_later
            assert client.handle("remember-1").wait(timeout=300).summary
    assert came.is_set()


# -- events --------------------------------------------------------------------------------------------


@BOTH
def test_events_come_once_each_over_lost_connections(shell):
    second = event(2)
    steps = (
        stream(b": \nid: 0badcafe-0\n\n", event(1), second[:30]),
        DROP,
        problem(503, "busy", retry_after=1),
        stream(second, event(3, "task", {"taskId": "dream-1"})),
    )
    with Scripted(*steps) as server, opened(shell, url=server.url) as client:
        told = client.events()
        found = [next(told) for _ in range(3)]
        told.close()
        assert client.pauses == [0.05, 0.1, 1.0]
    assert [each.id for each in found] == ["0badcafe-1", "0badcafe-2", "0badcafe-3"]
    assert [each.type for each in found] == ["memory_changed", "memory_changed", "task"]
    assert found[0].originator_client_id == "web"
    assert [sent.headers.get("last-event-id") for sent in server.sent] == [None, *["0badcafe-1"] * 3]
    assert server.sent[0].headers["accept"] == "text/event-stream"


@BOTH
def test_events_go_on_after_an_id(shell):
    with Scripted(stream(event(8))) as server, opened(shell, url=server.url) as client:
        told = client.events(after="0badcafe-7")
        assert next(told).id == "0badcafe-8"
        told.close()
    assert server.sent[0].headers["last-event-id"] == "0badcafe-7"


@BOTH
def test_where_the_events_stand_is_told_before_there_is_one(shell):
    with Scripted(DROP, stream(b": \nid: 0badcafe-7\n\n")) as server, opened(shell, url=server.url) as client:
        assert client.cursor() == "0badcafe-7"
        assert len(server.sent) == 2


@BOTH
def test_a_refusal_ends_the_events(shell):
    with (
        Scripted(problem(401, "token_required")) as server,
        opened(shell, url=server.url) as client,
        pytest.raises(TokenRequired),
    ):
        next(client.events())


@BOTH
def test_a_stream_that_falls_silent_is_taken_up_again(shell, monkeypatch):
    monkeypatch.setattr(core, "QUIET_SECONDS", 0.1)
    silent = threading.Event()
    steps = [*stream(event(1))[:-1], silent.wait, None], stream(event(2))
    with Scripted(*steps) as server, opened(shell, url=server.url) as client:
        told = client.events()
        assert [next(told).id, next(told).id] == ["0badcafe-1", "0badcafe-2"]
        silent.set()
        told.close()


@BOTH
def test_a_refusal_that_never_ends_is_left(shell, monkeypatch):
    monkeypatch.setattr(core, "QUIET_SECONDS", 0.1)
    held = threading.Event()
    endless = [b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\n", held.wait, None]
    with Scripted(endless, stream(event(1))) as server, opened(shell, url=server.url) as client:
        told = client.events()
        assert next(told).id == "0badcafe-1"
        held.set()
        told.close()


@BOTH
def test_a_refusal_that_drips_is_left(shell, drips):
    tick, pieces = drips
    body = problem(401, "token_required").partition(b"\r\n\r\n")[2]
    head = f"HTTP/1.1 401 No\r\ncontent-length: {40 + len(body)}\r\n\r\n".encode()
    with (
        Scripted([head, *pieces, body], stream(event(1))) as server,
        opened(shell, url=server.url) as client,
    ):
        told = client.events()
        assert next(told).id == "0badcafe-1"
        tick.set()
        told.close()


@BOTH
def test_a_stream_whose_header_drips_is_left(shell, drips):
    tick, pieces = drips
    rest = stream(event(1))[0].partition(b"\r\n")[2]
    dripping = [b"HTTP/1.1 200 OK\r\nx-slow: ", *pieces, b"\r\n", rest, event(1), None]
    with Scripted(dripping, stream(event(2))) as server, opened(shell, url=server.url) as client:
        told = client.events()
        assert next(told).id == "0badcafe-2"
        tick.set()
        told.close()


@BOTH
def test_a_stream_may_last_longer_than_its_header(shell, monkeypatch):
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    monkeypatch.setattr(transport, "time", now)
    is_later = threading.Event()
    steps = [*stream(event(1))[:-1], is_later.wait, event(2), None]
    with Scripted(steps, stream(event(3))) as server, opened(shell, url=server.url) as client:
        told = client.events()
        assert next(told).id == "0badcafe-1"
        now.at += 1000
        is_later.set()
        assert next(told).id == "0badcafe-2"
        told.close()


@BOTH
def test_who_no_longer_follows_has_no_connection(shell):
    closed = threading.Event()

    def until_closed():
        assert server._open[0].recv(1) == b""
        closed.set()

    steps = [*stream(event(1))[:-1], until_closed, None]
    with Scripted(steps) as server, opened(shell, url=server.url) as client:
        told = client.events()
        next(told)
        told.close()
        assert closed.wait(10)


# -- each by itself ------------------------------------------------------------------------------------


def test_threads_share_a_client():
    with Scripted(*[answer(200, DONE)] * 16) as server, Client(server.url) as client:
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(client.handle("remember-1").wait()))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 16


def test_a_cancelled_call_closes_its_connection():
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


def test_many_waits_share_a_loop():
    async def main(url):
        async with AsyncClient(url) as client, asyncio.TaskGroup() as group:
            calls = [group.create_task(client.handle("remember-1").wait()) for _ in range(16)]
        return [call.result() for call in calls]

    with Scripted(*[answer(200, DONE)] * 16) as server:
        assert len(asyncio.run(main(server.url))) == 16
