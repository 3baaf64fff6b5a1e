"""What every request passes before any route sees it, attacked over sockets: G1 to G6, one by one."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from kit.daemon.process import BASE, path_of
from kit.daemon.raw import HeldWriter, running
from muniment.daemon import guard, stream
from muniment.daemon.contract import HttpProblem
from muniment.daemon.guard import HEADERS
from muniment.daemon.tokens import RESERVE, Shares
from muniment.lane import OWNER

MISDIRECTED, FOREIGN, NOWHERE = (421, "misdirected_request"), (403, "foreign_origin"), (404, "not_found")
NO_HTTP, NOBODY, BUSY = (400, "invalid_http"), (401, "token_required"), (503, "busy")
WHERE = ("tcp", "unix")


def head(daemon, *lines, method="GET", target="/healthz", version="1.1"):
    """A request of these header lines alone, with the owner's token."""
    first = f"{method} {target} HTTP/{version}"
    return "\r\n".join([first, *lines, f"Authorization: Bearer {daemon.token}", "", ""]).encode("latin-1")


# -- G1: Host ------------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="one_host")
def test_a_page_whose_name_was_rebound_to_this_address_is_told_nothing(quiet):
    hosts = """evil.example evil.example:P 127.0.0.1.evil.example:P localhost.:P localhost 127.0.0.1:1 127.1:P
        2130706433:P 0.0.0.0:P user@127.0.0.1:P 127.0.0.1:P,evil.example 127.0.0.1:P/ [::ffff:127.0.0.1]:P"""
    for host in hosts.replace("P", str(quiet.port)).split():
        assert quiet.ask("GET", "/healthz", host=host).code == MISDIRECTED, host
    targets = "http://evil.example/healthz https://HOST/healthz http://HOST/healthz file:///healthz"
    for target in targets.replace("HOST", quiet.host).split():
        assert quiet.ask("GET", target).code == NOWHERE
        assert quiet.ask("GET", target, host="evil.example").code == MISDIRECTED


def test_one_host_is_named_once_and_over_the_unix_socket_any_one(quiet):
    assert quiet.raw(head(quiet)).code == NO_HTTP
    for address in quiet.tcp, quiet.unix:
        assert quiet.raw(head(quiet, version="1.0"), address).code == MISDIRECTED
    assert quiet.raw(head(quiet, "Host:")).code == MISDIRECTED
    ours, evil = f"Host: {quiet.host}", "Host: evil.example"
    for lines in (ours, ours), (ours, evil), (evil, ours):
        for version in "1.0", "1.1":
            assert quiet.raw(head(quiet, *lines, version=version)).code in {MISDIRECTED, NO_HTTP}
    assert quiet.ask("GET", "/healthz", address=quiet.unix, host="anything", token="").status == 200
    two = quiet.request("GET", "/healthz", "Host: a", token="", host="b")
    assert quiet.raw(two, quiet.unix).code == NO_HTTP


# -- G2: Origin ----------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="own_origin")
@pytest.mark.parametrize("where", WHERE)
def test_a_page_of_another_origin_is_refused_even_with_the_token(quiet, where):
    origins = """null NULL http://evil.example https://127.0.0.1:P http://127.0.0.1 http://127.0.0.1:1
        http://127.0.0.1:P.evil.example http://evil.example:P http://127.0.0.1:P/ file://
        chrome-extension://abcdef"""
    for origin in ("", "http://127.0.0.1:P http://evil.example", *origins.split()):
        header = f"Origin: {origin.replace('P', str(quiet.port))}"
        assert quiet.ask("GET", "/healthz", header, address=getattr(quiet, where)).code == FOREIGN, origin


def test_our_own_origin_is_let_through_but_not_twice_and_what_a_browser_says_of_the_site_counts(quiet):
    ours, site = f"Origin: http://{quiet.host}", "Sec-Fetch-Site: "
    for headers in (
        *((ours,), (f"Origin: http://LOCALHOST:{quiet.port}",), (site + "same-origin",), (site + "none",)),
    ):
        assert quiet.ask("GET", "/healthz", *headers).status == 200
    for headers in (
        *((ours, ours), (ours, "Origin: http://evil.example"), (site + "none", site + "cross-site")),
        *((site + each,) for each in ("cross-site", "same-site", "Cross-Site", "anything-new")),
    ):
        assert quiet.ask("GET", "/healthz", *headers).code == FOREIGN, headers


def test_a_preflight_is_granted_nothing(quiet):
    asks = [f"Access-Control-Request-{each}" for each in ("Method: POST", "Headers: authorization")]
    answer = quiet.ask("OPTIONS", f"{BASE}/remember", "Origin: http://evil.example", *asks, token="")
    assert answer.code == FOREIGN
    assert not [name for name, _ in answer.headers if name.startswith("access-control")]
    own = quiet.ask("OPTIONS", f"{BASE}/remember")
    assert (own.code, own.values("allow")) == ((405, "method_not_allowed"), ["POST"])


@pytest.mark.threat("T-API-01", control="json_alone")
def test_a_form_is_refused_whatever_it_holds(quiet):
    for media_type in (
        *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""),
        *("text/plain; application/json", "application/json-seq", "application/jsonx"),
    ):
        body = b'{"content": "The user prefers light mode"}'
        answer = quiet.task("remember", body, f"Content-Type: {media_type}")
        assert answer.code == (415, "unsupported_media_type"), media_type


# -- G3: paths -----------------------------------------------------------------------------------------


def test_no_other_spelling_of_a_path_or_a_workspace_leads_anywhere(quiet):
    paths = r"""//healthz /./healthz /../healthz /x/../healthz /healthz/ /healthz/. /healthz// /%2fhealthz
        /%2Fhealthz /%2e/healthz /health%7a /healthz%00 /healthz; /healthz;x=1 /healthz%20
        /healthz%0d%0aX:%20y /healthz%c0%af /%c0%ae%c0%ae/healthz /%u002fhealthz /healthz%
        /healthz%2 /HEALTHZ /healthz#x \healthz /\healthz /workspace\memory\tasks
        /workspace/memory//tasks /workspace//memory/tasks /workspace/./memory/tasks
        /workspace/x/../memory/tasks /workspace/memory/tasks/ /workspace%2fmemory%2ftasks
        /workspace/memory/%74asks /workspaces/x/memory /workspaces/x/memory/../../../healthz
        /workspaces/x/healthz /workspaces/x/y/memory/tasks /workspaces/%ff/memory/tasks
        /workspaces/%c0%ae/memory/tasks /session/a/b/events /session/a/events/ /session//events
        /session/../events /session/a/tasks / /. /etc/passwd healthz x/healthz http:/healthz
        */healthz @/healthz * ?/"""
    for path in paths.split():
        found = quiet.raw(quiet.request("GET", "@").replace(b"@", path.encode(), 1))
        assert (found.code, found.values("location")) == (NOWHERE, []), path
    for name in (
        "",
        *["%2e", "..", "%2e%2e", "other", "%2fetc", "%00", "%2f", "a;b", "memory", "%25", "%F0%9F%94%92"],
    ):
        found = quiet.ask("GET", f"/workspaces/{name}/memory/tasks").code
        assert found == (403, "untrusted_workspace"), name


# -- G4: tokens ----------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="bearer_tokens")
def test_without_a_token_nothing_is_told_over_tcp_not_even_what_is_there(quiet):
    paths = "/healthz /readyz /openapi.json /capabilities /metrics /nothing /workspaces/x/memory/tasks"
    for path in (f"{BASE}/tasks", *paths.split()):
        for method, body in ("GET", None), ("POST", {}), ("PUT", None):
            assert quiet.ask(method, path, token="", body=body).code == NOBODY, (method, path)


@pytest.mark.parametrize("where", WHERE)
def test_a_token_that_is_not_exactly_one_of_ours_is_nobodys(quiet, where, tmp_path):
    token = quiet.token
    with running(tmp_path / "other") as other:
        assert other.ask("GET", "/healthz", token=other.client).status == 200
        theirs = (f"Bearer {other.token}", f"Bearer {other.client}")
    for value in (
        *("", "Bearer", "Bearer ", "Bearer x", f"Basic {token}", f"Token {token}", token, f"Bearer: {token}"),
        *(f"Bearer {token} {token}", f"Bearer {token},", f"Bearer {token}=", f"Bearer {token}\xa0"),
        *(f"Bearer \x85{token}", f"Bearer\xa0{token}", f'Bearer "{token}"', f"Bearer {token[:-1]}"),
        *(f"Bearer {token.swapcase()}", "Bearer " + "A" * 43, "Bearer " + "A" * 20_000),
        *("Bearer \xc3\xa9" + "A" * 40, *theirs, f"Bearer {token}\r\nAuthorization: Bearer {token}"),
        f"Bearer {quiet.client}\r\nAuthorization: Bearer {token}",
    ):
        header = f"Authorization: {value}"
        answer = quiet.ask("GET", "/healthz", header, token="", address=getattr(quiet, where))
        assert answer.code == NOBODY, value
        assert answer.values("www-authenticate") == ["Bearer"]
        assert answer.values("connection") == ["close"]


def test_the_unix_socket_serves_its_own_user_as_the_owner(quiet):
    assert (quiet.base / "d.sock").stat().st_mode & 0o777 == 0o600
    assert quiet.ask("GET", "/metrics", address=quiet.unix, token="").status == 200
    as_client = quiet.ask("GET", "/metrics", address=quiet.unix, token=quiet.client)
    assert as_client.code == (403, "owner_required")


STRANGER = """
import os, socket, sys
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
for sent in sys.stdin.buffer.read().split(b"@"):
    line = socket.socket(socket.AF_UNIX)
    line.connect("d.sock")
    line.sendall(sent)
    sys.stdout.buffer.write(line.makefile("rb").readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_another_user_who_came_to_the_unix_socket_is_nobody_without_a_token(quiet):
    sent = b"@".join(quiet.request("GET", "/healthz", token=token) for token in ("", quiet.client))
    socket, program = quiet.base / "d.sock", [sys.executable, "-IS", "-c", STRANGER]
    try:
        quiet.base.chmod(0o711)
        socket.chmod(0o666)
        done = subprocess.run(
            program, cwd=quiet.base, input=sent, capture_output=True, check=False, timeout=50
        )
    finally:
        quiet.base.chmod(0o700)
        socket.chmod(0o600)
    assert re.findall(rb"HTTP/1.1 (\d+)", done.stdout) == [b"401", b"200"], done.stderr


def test_a_process_of_the_overflow_user_knows_nobody_by_the_socket(monkeypatch, tmp_path):
    """Every user that a namespace does not map looks like that one."""
    unusual, overflow = tmp_path / "overflowuid", int(guard._OVERFLOW.read_text())
    for content, nobody in (None, 65_534), ("", 65_534), ("x", 65_534), (str(overflow), overflow):
        if content is not None:
            unusual.write_text(content)
        monkeypatch.setattr(guard, "_OVERFLOW", unusual)
        for user, known in (1000, 1000), (nobody, None):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            assert guard._this_user() == known


# -- proofs to whoever asks ------------------------------------------------------------------------------

NONCE = "5" * 64


def keyed(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256)


def named(token):
    """The name and the key of a token, as the page says."""
    key = keyed(token.encode(), "muniment-hello/1 key").digest()
    return keyed(key, "muniment-hello/1 name").hexdigest()[:32], key


def hello(daemon, name, nonce=NONCE, **more):
    return daemon.ask("GET", f"/hello?token={name}&nonce={nonce}", **{"token": "", **more})


def test_each_token_is_proved_for_a_nonce_and_an_address(quiet, monkeypatch):
    monkeypatch.setattr(guard, "MAX_HELLOS", 10_000)
    proofs = set()
    for token in quiet.token, quiet.client:
        name, key = named(token)
        for host, address in (quiet.host, quiet.host), ("Memory.Example", "memory.example"), ("", "unix"):
            for nonce in NONCE, "a" * 64:
                way = {"host": host} if host else {"address": quiet.unix}
                said = hello(quiet, name, nonce, **way)
                proof = keyed(key, f"muniment-hello/1 proof\n{nonce}\n{address}").hexdigest()
                assert (said.status, said.json) == (200, {"proof": proof})
                proofs.add(proof)
    assert len(proofs) == 12


@pytest.mark.threat("T-API-10", control="decoys")
def test_who_has_no_token_cannot_tell_which_there_are(quiet):
    """What is said of a token that is none looks the same, each time."""
    names = [named(quiet.token)[0], named(quiet.client)[0], named(secrets.token_urlsafe())[0], "0" * 32]
    shapes, proofs = set(), set()
    for name in names:
        first, second = hello(quiet, name), hello(quiet, name)
        assert first.body == second.body
        headers = re.sub("[0-9a-f]{32}", "…", str([each for each in first.headers if each[0] != "date"]))
        shapes.add((first.status, headers, len(first.body)))
        proofs.add(first.json["proof"])
    assert len(shapes) == 1
    assert len(proofs) == len(names)


def test_nothing_else_is_told_without_a_token_and_no_more_often_than_it_may(quiet, monkeypatch):
    name, _ = named(quiet.token)
    good = f"/hello?token={name}&nonce={NONCE}"
    for target in (
        *("/hello", f"/hello?token={name}", f"/hello?token={name}&nonce=5"),
        *(f"/hello?token={name.upper()}x&nonce={NONCE}", f"/hello?token={name}&nonce={'g' * 64}"),
    ):
        assert quiet.ask("GET", target, token="").code == (400, "invalid_request")
    for method in "POST", "PUT", "HEAD":
        assert quiet.ask(method, good, token="").status == 401
    for path in "/hello/", "//hello", "/hello/x", "/workspace/hello":
        assert quiet.ask("GET", path, token="").status in {401, 404}
    for host in "elsewhere.example", f"localhost:{quiet.port}", f"[::1]:{quiet.port}":
        assert hello(quiet, name, host=host).code == MISDIRECTED
    assert quiet.ask("GET", good, "Origin: http://evil.example", token="").code == FOREIGN
    now = [100.0]
    monkeypatch.setattr(guard, "MAX_HELLOS", 3)
    monkeypatch.setattr(guard.time, "monotonic", lambda: now[0])
    assert [hello(quiet, name).code for _ in range(5)] == [200, 200, 200, BUSY, BUSY]
    assert quiet.ask("GET", "/healthz").status == 200
    now[0] += 1
    assert hello(quiet, name).code == 200


# -- G5: how many, and that no client shuts out another one or the owner ----------------------------------

CAP = 40


def taken(shares, token):
    """How many places a token gets."""
    before = len(shares)
    with suppress(HttpProblem):
        for _ in range(CAP + 1):
            shares.take(token)
    with pytest.raises(HttpProblem) as refused:
        shares.take(token)
    assert (refused.value.code, refused.value.headers) == ("busy", {"Retry-After": "3"})
    return len(shares) - before


def test_a_client_gets_half_all_clients_leave_the_owner_some_and_the_owner_may_have_all():
    shares = Shares(CAP, 3)
    assert taken(shares, "one") == CAP // 2
    assert taken(shares, "other") == CAP - RESERVE - CAP // 2
    assert taken(shares, "third") == 0
    assert taken(shares, OWNER) == RESERVE
    assert len(shares) == CAP
    shares.leave("one")
    assert taken(shares, "third") == 1
    alone = Shares(CAP, 3)
    assert taken(alone, OWNER) == CAP
    assert taken(alone, "one") == 0
    assert list(alone._taken) == [OWNER]  # Of a refused token nothing is kept.


def shut_out(daemon, request, shares):
    """Send what keeps its place until one client has all it gets; then a second's and the owner's do."""
    one, two = daemon.tokens
    others = CAP - RESERVE - CAP // 2
    with ExitStack() as opened:

        def send(token):
            line = opened.enter_context(daemon.line())
            line.send(request(token))
            return line

        for _ in range(CAP // 2):
            send(one)
        daemon.until(lambda: len(shares) == CAP // 2)
        assert send(one).answer().code == BUSY
        for _ in range(others):
            send(two)
        daemon.until(lambda: len(shares) == CAP // 2 + others)
        assert send(two).answer().code == BUSY
        send(daemon.token)
        daemon.until(lambda: len(shares) == CAP // 2 + others + 1)
        if shares is daemon.guard.waiting:
            daemon.free.set()
            daemon.until(lambda: len(shares) == 0)
    daemon.until(lambda: len(shares) == 0)
    assert daemon.ask("GET", "/healthz", token=one).status == 200


@pytest.mark.threat("T-API-03", control="shares")
def test_bodies_that_do_not_come_waits_and_followers_of_one_token_keep_nobody_else_out(tmp_path, monkeypatch):
    model = HeldWriter()
    with running(tmp_path, model) as daemon:
        daemon.free, daemon.tokens = model.free, [daemon.client, daemon.add("two")]
        daemon.remember("The user waits")
        tasks = {token: daemon.submit("dream", {}, token=token) for token in (*daemon.tokens, daemon.token)}
        for each in (daemon.guard.answering, daemon.guard.waiting, daemon.guard.following):
            monkeypatch.setattr(each, "cap", CAP)

        def slow(token):
            return daemon.request("POST", f"{BASE}/remember", body={"content": "x" * 100}, token=token)[:-50]

        def follows(token):
            return daemon.request("GET", f"{BASE}/events", token=token)

        def waits(token):
            return daemon.request("GET", f"{BASE}/dream/{tasks[token]}", "Prefer: wait=60", token=token)

        shut_out(daemon, slow, daemon.guard.answering)
        shut_out(daemon, follows, daemon.guard.following)
        shut_out(daemon, waits, daemon.guard.waiting)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_token_that_is_revoked_is_told_nothing_more_on_an_open_line_nor_by_a_wait_nor_a_follower(
    tmp_path, monkeypatch, is_made_anew
):
    monkeypatch.setattr(stream, "CHECK_SECONDS", 0.0)
    model = HeldWriter()
    with running(tmp_path, model) as daemon, ExitStack() as opened:
        token, lines = (
            daemon.add("passing", "passing-1"),
            [opened.enter_context(daemon.line()) for _ in range(3)],
        )
        task = daemon.remember("The user waits", token=token)
        ask, wait = (
            daemon.request("GET", path, "Prefer: wait=60", token=token)
            for path in ("/healthz", path_of(task))
        )
        lines[0].send(ask)
        assert lines[0].answer().status == 200
        lines[1].send(wait)
        waiting, follower = daemon.guard.waiting, opened.enter_context(daemon.follow(token=token))
        follower.start()
        daemon.until(lambda: len(waiting) == 1)
        daemon.core.tokens.revoke("passing")
        if is_made_anew:
            daemon.add("passing", "passing-1")
        lines[0].send(ask)
        model.free.set()
        for line in lines[:2]:
            answer = line.answer()
            assert (answer.code, answer.values("www-authenticate")) == (NOBODY, ["Bearer"])
        assert lines[0].is_closed()
        assert list(follower) == []


def test_one_request_too_many_is_told_to_come_again_and_followers_are_not_counted(quiet, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(quiet.guard.answering, "cap", 0)
        answer = quiet.ask("GET", "/healthz")
        assert (answer.code, answer.values("retry-after")) == (BUSY, ["1"])
    monkeypatch.setattr(quiet.guard.answering, "cap", 1)
    with quiet.line() as follower, quiet.line() as second:
        for line in (follower, second):
            line.send(quiet.request("GET", f"{BASE}/events"))
            assert line.answer().status == 200
        assert quiet.ask("GET", "/healthz").status == 200


# -- G6: what every answer has ---------------------------------------------------------------------------


def test_every_answer_has_the_headers_that_keep_a_browser_from_using_it(quiet):
    answers = [
        *(quiet.ask("GET", path) for path in ("/healthz", "/openapi.json", "/metrics", "/nothing")),
        quiet.ask("PUT", "/healthz"),
        quiet.ask("GET", "/healthz", token=""),
        quiet.ask("GET", "/healthz", host="evil.example"),
        quiet.ask("GET", "/healthz", "Origin: null"),
        *(quiet.task("remember", body) for body in ({"content": ""}, b"x" * (600 * 1024))),
        quiet.raw(b"no http\r\n\r\n"),
    ]
    with quiet.line() as line:
        line.send(quiet.request("GET", f"{BASE}/events"))
        answers.append(line.answer())
    assert [each.status for each in answers] == [200, 200, 200, 404, 405, 401, 421, 403, 400, 413, 400, 200]
    for answer in answers:
        for name, value in HEADERS:
            assert answer.values(name.decode()) == [value.decode()]
        assert not answer.values("server")
        assert not [name for name, _ in answer.headers if name.startswith("access-control")]


def test_a_route_that_breaks_says_so_without_what_was_raised(alone, monkeypatch):
    """In the middle of an answer its length is not known: the client sees that the last chunk is missing."""

    def broken(*_, **__):
        raise RuntimeError("canary-7f3a")

    async def broken_later(*_):
        yield b"id: 1\n"
        broken()

    monkeypatch.setattr(type(alone.core), "tasks", broken)
    monkeypatch.setattr(type(alone.core.stream), "follow", broken_later)
    before = len(alone.records)
    answer = alone.ask("GET", f"{BASE}/tasks")
    assert answer.code == (500, "internal_error")
    (told,) = [record.getMessage() for record in alone.records[before:]]
    assert '"problem": "RuntimeError"' in told
    assert "canary" not in told + answer.body.decode()
    with alone.line() as line:
        line.send(alone.request("GET", f"{BASE}/events"))
        assert line.answer().status == 200
        assert [line.line() for _ in range(3)] == [b"6\r\n", b"id: 1\n", b"\r\n"]
        assert line.is_closed()
    alone.until(lambda: len(alone.records) >= before + 3)
    told = "".join(record.getMessage() for record in alone.records[before + 1 :])
    assert "canary" not in told
    assert '"event": "request_broke"' in told
