"""The checks before every route (G1 to G6), and malformed requests."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import permutations, product

import pytest

from kit.catching import catch_error
from kit.server.process import BASE, build_task_path
from kit.server.raw import REMEMBER, build_incomplete_request, encode_chunks, start_local_daemon
from muniment.server import guard, http, stream
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem
from muniment.server.tokens import RESERVE, SlotShares
from muniment.store.tasks import OWNER

MISDIRECTED, FOREIGN, NOWHERE = (421, "misdirected_request"), (403, "foreign_origin"), (404, "not_found")
NO_HTTP, UNAUTHORIZED, BUSY = (400, "invalid_http"), (401, "token_required"), (503, "busy")
NO_JSON, TOO_LARGE = (400, "invalid_json"), (413, "body_too_large")
WHERE = ("tcp", "unix")


def make_request(daemon, *lines, method="GET", target="/healthz", version="1.1"):
    """Return a request with only these header lines and the owner token."""
    first = f"{method} {target} HTTP/{version}"
    return "\r\n".join([first, *lines, f"Authorization: Bearer {daemon.token}", "", ""]).encode("latin-1")


# -- G1: Host ------------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="one_host")
def test_rebound_host_name_is_rejected(checked_daemon):
    hosts = """evil.example evil.example:P 127.0.0.1.evil.example:P localhost.:P localhost 127.0.0.1:1 127.1:P
        2130706433:P 0.0.0.0:P user@127.0.0.1:P 127.0.0.1:P,evil.example 127.0.0.1:P/ [::ffff:127.0.0.1]:P"""
    for host in hosts.replace("P", str(checked_daemon.port)).split():
        assert checked_daemon.send_request("GET", "/healthz", host=host).code == MISDIRECTED, host
    targets = "http://evil.example/healthz https://HOST/healthz http://HOST/healthz file:///healthz"
    for target in targets.replace("HOST", checked_daemon.host).split():
        assert checked_daemon.send_request("GET", target).code == NOWHERE
        assert checked_daemon.send_request("GET", target, host="evil.example").code == MISDIRECTED


def test_exactly_one_host_is_required_over_tcp(checked_daemon):
    assert checked_daemon.send_raw(make_request(checked_daemon)).code == NO_HTTP
    for address in checked_daemon.tcp, checked_daemon.unix:
        assert (
            checked_daemon.send_raw(make_request(checked_daemon, version="1.0"), address).code == MISDIRECTED
        )
    assert checked_daemon.send_raw(make_request(checked_daemon, "Host:")).code == MISDIRECTED
    own, foreign = f"Host: {checked_daemon.host}", "Host: evil.example"
    for lines in (own, own), (own, foreign), (foreign, own):
        for version in "1.0", "1.1":
            assert checked_daemon.send_raw(make_request(checked_daemon, *lines, version=version)).code in {
                MISDIRECTED,
                NO_HTTP,
            }
    local = {"address": checked_daemon.unix, "host": "anything"}  # Its peer is the owner or has a token.
    statuses = [
        checked_daemon.send_request("GET", "/metrics", token=token, **local).status
        for token in ("", checked_daemon.client)
    ]
    assert statuses == [200, 403]
    two = checked_daemon.build_request("GET", "/healthz", "Host: a", token="", host="b")
    assert checked_daemon.send_raw(two, checked_daemon.unix).code == NO_HTTP


# -- G2: Origin ----------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="own_origin")
@pytest.mark.parametrize("where", WHERE)
def test_foreign_origin_is_rejected_even_with_token(checked_daemon, where):
    origins = """null NULL http://evil.example https://127.0.0.1:P http://127.0.0.1 http://127.0.0.1:1
        http://127.0.0.1:P.evil.example http://evil.example:P http://127.0.0.1:P/ file://
        chrome-extension://abcdef"""
    for origin in ("", "http://127.0.0.1:P http://evil.example", *origins.split()):
        header = f"Origin: {origin.replace('P', str(checked_daemon.port))}"
        assert (
            checked_daemon.send_request(
                "GET", "/healthz", header, address=getattr(checked_daemon, where)
            ).code
            == FOREIGN
        ), origin


def test_own_origin_is_accepted_once_and_fetch_site_counts(checked_daemon):
    own, site = f"Origin: http://{checked_daemon.host}", "Sec-Fetch-Site: "
    for header in own, f"Origin: http://LOCALHOST:{checked_daemon.port}", f"{site}same-origin", f"{site}none":
        assert checked_daemon.send_request("GET", "/healthz", header).status == 200
    pairs = (own, own), (own, "Origin: http://evil.example"), (f"{site}none", f"{site}cross-site")
    for headers in (*pairs, *((site + each,) for each in ("cross-site", "same-site", "anything-new"))):
        assert checked_daemon.send_request("GET", "/healthz", *headers).code == FOREIGN, headers


def test_preflight_of_foreign_origin_is_rejected(checked_daemon):
    headers = [f"Access-Control-Request-{each}" for each in ("Method: POST", "Headers: authorization")]
    answer = checked_daemon.send_request(
        "OPTIONS", f"{BASE}/remember", "Origin: http://evil.example", *headers, token=""
    )
    assert (answer.code, "access-control" in str(answer.headers)) == (FOREIGN, False)
    response = checked_daemon.send_request("OPTIONS", f"{BASE}/remember")
    assert (response.code, response.get_header_values("allow")) == ((405, "method_not_allowed"), ["POST"])


@pytest.mark.threat("T-API-01", control="json_alone")
def test_form_media_types_are_rejected(checked_daemon):
    types = """text/plain application/x-www-form-urlencoded multipart/form-data;boundary=x
        application/json-seq text/plain;application/json"""
    for media_type in ("", *types.split()):
        answer = checked_daemon.send_request(
            "POST", REMEMBER, f"Content-Type: {media_type}", body={"content": "framed"}
        )
        assert answer.code == (415, "unsupported_media_type"), media_type


# -- G3: paths -----------------------------------------------------------------------------------------


def test_other_spellings_of_paths_are_not_found(checked_daemon):
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
        found = checked_daemon.send_raw(
            checked_daemon.build_request("GET", "@").replace(b"@", path.encode(), 1)
        )
        assert (found.code, found.get_header_values("location")) == (NOWHERE, []), path
    for name in ("", "%2e", "..", "%2e%2e", "other", "%2fetc", "%00", "%2f", "a;b", "memory", "%F0%9F%94%92"):
        found = checked_daemon.send_request("GET", f"/workspaces/{name}/memory/tasks").code
        assert found == (403, "untrusted_workspace"), name


# -- G4: tokens ----------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="bearer_tokens")
def test_request_without_token_is_unauthorized_for_any_path(checked_daemon):
    paths = "/healthz /readyz /openapi.json /capabilities /metrics /nothing /workspaces/x/memory/tasks"
    for path in (f"{BASE}/tasks", *paths.split()):
        for method, body in ("GET", None), ("POST", {}), ("PUT", None):
            assert checked_daemon.send_request(method, path, token="", body=body).code == UNAUTHORIZED, (
                method,
                path,
            )


@pytest.mark.parametrize("where", WHERE)
def test_inexact_token_is_unauthorized(checked_daemon, where, tmp_path):
    token = checked_daemon.token
    with start_local_daemon(tmp_path / "other") as other:
        assert other.send_request("GET", "/healthz", token=other.client).status == 200
    wrong = ("x", f"{token} {token}", f"{token},", f"{token}=", f"{token}\xa0", f"\x85{token}", f'"{token}"')
    wrong += (token[:-1], token.swapcase(), "A" * 43, "A" * 20_000, "\xc3\xa9" + "A" * 40, other.token)
    wrong += (
        other.client,
        *(f"{each}\r\nAuthorization: Bearer {token}" for each in (token, checked_daemon.client)),
    )
    schemes = ("", "Basic ", "Token ", "Bearer: ", "Bearer\xa0")
    bare = ("", "Bearer", "Bearer ", *(scheme + token for scheme in schemes))
    for value in (*bare, *(f"Bearer {each}" for each in wrong)):
        header = f"Authorization: {value}"
        answer = checked_daemon.send_request(
            "GET", "/healthz", header, token="", address=getattr(checked_daemon, where)
        )
        headers = answer.get_header_values("www-authenticate"), answer.get_header_values("connection")
        assert (answer.code, headers) == (UNAUTHORIZED, (["Bearer"], ["close"])), value


OTHER_USER = """
import os, socket, sys
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
for sent in sys.stdin.buffer.read().split(b"@"):
    line = socket.socket(socket.AF_UNIX)
    line.connect("d.sock")
    line.sendall(sent)
    sys.stdout.buffer.write(line.makefile("rb").readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
def test_other_user_on_unix_socket_needs_token(checked_daemon):
    sent = b"@".join(
        checked_daemon.build_request("GET", "/healthz", token=token) for token in ("", checked_daemon.client)
    )
    socket, program = checked_daemon.base / "d.sock", [sys.executable, "-IS", "-c", OTHER_USER]
    try:
        checked_daemon.base.chmod(0o711)
        socket.chmod(0o666)
        done = subprocess.run(program, cwd=checked_daemon.base, input=sent, capture_output=True, check=False)
    finally:
        checked_daemon.base.chmod(0o700)
        socket.chmod(0o600)
    assert re.findall(rb"HTTP/1.1 (\d+)", done.stdout) == [b"401", b"200"], done.stderr


def test_overflow_user_is_not_identified_by_socket(monkeypatch, tmp_path):
    """Every user that a namespace does not map looks like that user."""
    overflow_file = tmp_path / "overflowuid"
    monkeypatch.setattr(guard, "_OVERFLOW", overflow_file)
    for content, overflow_user in (None, 65_534), ("x", 65_534), ("4242", 4242):
        if content is not None:
            overflow_file.write_text(content)
        for user, known in (1000, 1000), (overflow_user, None):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            assert guard._read_user_id() == known


# -- proofs without a token ----------------------------------------------------------------------------

NONCE = "5" * 64


def make_hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256)


def name_and_key(token):
    """Return the name and the key of a token, as documented."""
    key = make_hmac(token.encode(), "muniment-hello/1 key").digest()
    return make_hmac(key, "muniment-hello/1 name").hexdigest()[:32], key


def request_hello(daemon, name, nonce=NONCE, **more):
    return daemon.send_request("GET", f"/hello?token={name}&nonce={nonce}", **{"token": "", **more})


def test_hello_proves_token_for_nonce_and_address(checked_daemon, monkeypatch):
    monkeypatch.setattr(guard, "MAX_HELLOS", 10_000)
    proofs = set()
    for token in checked_daemon.token, checked_daemon.client:
        name, key = name_and_key(token)
        for host, address in (
            (checked_daemon.host, checked_daemon.host),
            ("Memory.Example", "memory.example"),
            ("", "unix"),
        ):
            for nonce in NONCE, "a" * 64:
                address_options = {"host": host} if host else {"address": checked_daemon.unix}
                response = request_hello(checked_daemon, name, nonce, **address_options)
                proof = make_hmac(key, f"muniment-hello/1 proof\n{nonce}\n{address}").hexdigest()
                assert (response.status, response.json) == (200, {"proof": proof})
                proofs.add(proof)
    assert len(proofs) == 12


@pytest.mark.threat("T-API-10", control="decoys")
def test_hello_answers_unknown_token_with_decoy(checked_daemon):
    """The proof of an unknown token looks the same, each time."""
    names = [
        name_and_key(each)[0]
        for each in (checked_daemon.token, checked_daemon.client, secrets.token_urlsafe())
    ]
    shapes, proofs = set(), set()
    for name in (*names, "0" * 32):
        first = request_hello(checked_daemon, name)
        assert first.body == request_hello(checked_daemon, name).body
        headers = re.sub("[0-9a-f]{32}", "…", str([each for each in first.headers if each[0] != "date"]))
        shapes.add((first.status, headers, len(first.body)))
        proofs.add(first.json["proof"])
    assert (len(shapes), len(proofs)) == (1, 4)


def test_hello_is_only_endpoint_without_token_and_rate_limited(checked_daemon, monkeypatch):
    name, _ = name_and_key(checked_daemon.token)
    good = f"/hello?token={name}&nonce={NONCE}"
    for query in "", f"?token={name}", f"?token={name}x&nonce={NONCE}", f"?token={name}&nonce={'g' * 64}":
        assert checked_daemon.send_request("GET", f"/hello{query}", token="").code == (400, "invalid_request")
    for method in "POST", "PUT", "HEAD":
        assert checked_daemon.send_request(method, good, token="").status == 401
    for path in "/hello/", "//hello", "/hello/x", "/workspace/hello":
        assert checked_daemon.send_request("GET", path, token="").status in {401, 404}
    for host in "elsewhere.example", f"localhost:{checked_daemon.port}", f"[::1]:{checked_daemon.port}":
        assert request_hello(checked_daemon, name, host=host).code == MISDIRECTED
    assert checked_daemon.send_request("GET", good, "Origin: http://evil.example", token="").code == FOREIGN
    now = [100.0]
    monkeypatch.setattr(guard, "MAX_HELLOS", 3)
    monkeypatch.setattr(guard.time, "monotonic", lambda: now[0])
    assert [request_hello(checked_daemon, name).code for _ in range(5)] == [200, 200, 200, BUSY, BUSY]
    assert checked_daemon.send_request("GET", "/healthz").status == 200
    now[0] += 1
    assert request_hello(checked_daemon, name).code == 200


# -- G5: limits per client and for the owner -----------------------------------------------------------

CAP = 40


def take_all(shares, token):
    """Return how many places a token gets before it is rejected."""
    before = len(shares)
    with suppress(HttpProblem):
        for _ in range(CAP + 1):
            shares.acquire(token)
    refused = catch_error(HttpProblem, shares.acquire, token)
    assert (refused.code, refused.headers) == ("busy", {"Retry-After": "3"})
    return len(shares) - before


def test_client_share_is_limited_and_owner_has_reserve():
    shares, half = SlotShares(CAP, 3), CAP // 2
    places = [take_all(shares, token) for token in ("one", "other", "third", OWNER)]
    assert places == [half, CAP - RESERVE - half, 0, RESERVE]
    shares.release("one")
    assert take_all(shares, "third") == 1
    owner_first = SlotShares(CAP, 3)
    assert [take_all(owner_first, token) for token in (OWNER, "one")] == [CAP, 0]
    assert list(owner_first._used) == [OWNER]  # A rejected token leaves no state.


def fill_shares(daemon, model, tokens, request, shares):
    """Send requests that occupy all places of one client; then requests of a second one and the owner
    succeed.
    """
    one, two, owner = tokens
    with ExitStack() as stack:

        def send(token, times, total):
            for _ in range(times):
                (line := stack.enter_context(daemon.open_connection())).send(request(token))
            daemon.wait_until(lambda: len(shares) == total)
            return line

        for token, times, total in (one, CAP // 2, CAP // 2), (two, CAP // 2 - RESERVE, CAP - RESERVE):
            send(token, times, total)
            assert send(token, 1, total).read_answer().code == BUSY
        send(owner, 1, CAP - RESERVE + 1)
        if shares is daemon.guard.waiting:
            model.resume()
            daemon.wait_until(lambda: len(shares) == 0)
    daemon.wait_until(lambda: len(shares) == 0)
    assert daemon.send_request("GET", "/healthz", token=one).status == 200


@pytest.mark.threat("T-API-03", control="shares")
def test_slow_requests_of_one_token_block_no_one_else(blocked_daemon, model, monkeypatch):
    tokens = blocked_daemon.client, blocked_daemon.add_client("two"), blocked_daemon.token
    blocked_daemon.remember("The user waits")
    tasks = {token: blocked_daemon.submit("dream", {}, token=token) for token in tokens}
    build_request, limits = blocked_daemon.build_request, blocked_daemon.guard
    for shares, request in (
        (limits.in_progress, lambda token: build_request("POST", REMEMBER, body={1: "x"}, token=token)[:-5]),
        (limits.following, lambda token: build_request("GET", f"{BASE}/events", token=token)),
        (
            limits.waiting,
            lambda token: build_request("GET", build_task_path(tasks[token]), "Prefer: wait=60", token=token),
        ),
    ):
        monkeypatch.setattr(shares, "cap", CAP)
        fill_shares(blocked_daemon, model, tokens, request, shares)


@pytest.mark.parametrize("is_readded", [False, True])
def test_revoked_token_is_unauthorized_on_open_connections(
    blocked_daemon, model, exit_stack, monkeypatch, is_readded
):
    monkeypatch.setattr(stream, "CHECK_SECONDS", 0.0)
    token, lines = (
        blocked_daemon.add_client("passing"),
        [exit_stack.enter_context(blocked_daemon.open_connection()) for _ in range(2)],
    )
    task = blocked_daemon.remember("The user waits", token=token)
    request_bytes = blocked_daemon.build_request("GET", "/healthz", token=token)
    lines[0].send(request_bytes)
    assert lines[0].read_answer().status == 200
    lines[1].send(blocked_daemon.build_request("GET", build_task_path(task), "Prefer: wait=60", token=token))
    waiting, follower = (
        blocked_daemon.guard.waiting,
        exit_stack.enter_context(blocked_daemon.follow_events(token=token)),
    )
    follower.read_to_start()
    blocked_daemon.wait_until(lambda: len(waiting) == 1)
    blocked_daemon.core.tokens.revoke("passing")
    if is_readded:
        blocked_daemon.add_client("passing")
    lines[0].send(request_bytes)
    model.resume()
    for line in lines:
        answer = line.read_answer()
        assert (answer.code, answer.get_header_values("www-authenticate")) == (UNAUTHORIZED, ["Bearer"])
    assert lines[0].wait_for_close()
    assert list(follower) == []


def test_followers_do_not_count_as_answering_requests(checked_daemon, monkeypatch):
    monkeypatch.setattr(checked_daemon.guard.in_progress, "cap", 1)
    with checked_daemon.open_connection() as follower, checked_daemon.open_connection() as second:
        for line in (follower, second):
            line.send(checked_daemon.build_request("GET", f"{BASE}/events"))
            assert line.read_answer().status == 200
        assert checked_daemon.send_request("GET", "/healthz").status == 200


# -- G6: headers of every answer -----------------------------------------------------------------------


def test_every_answer_has_security_headers(checked_daemon):
    sent = [
        checked_daemon.build_request("GET", path)
        for path in ("/healthz", "/metrics", f"{BASE}/events", "/nothing")
    ]
    sent += [
        checked_daemon.build_request("GET", "/healthz", **each)
        for each in ({"token": ""}, {"host": "evil.example"})
    ]
    sent += [
        checked_daemon.build_request("PUT", "/healthz"),
        checked_daemon.build_request("GET", "/healthz", "Origin: null"),
    ]
    sent += [
        checked_daemon.build_request("POST", f"{BASE}/remember", body=body)
        for body in ({}, b"x" * (600 * 1024))
    ]
    answers = [checked_daemon.send_raw(each) for each in (*sent, b"no http\r\n\r\n")]
    assert [each.status for each in answers] == [200, 200, 200, 404, 401, 421, 405, 403, 400, 413, 400]
    for answer in answers:
        for name, value in guard.HEADERS:
            assert answer.get_header_values(name.decode()) == [value.decode()]
        assert (answer.get_header_values("server"), "access-control" in str(answer.headers)) == ([], False)


def test_broken_route_hides_exception_text(separate_daemon, monkeypatch, caplog):
    """The length of a streamed answer is unknown: the client sees that the last chunk is missing.

    The server logs the reason before it closes the connection, so the log is complete by then.
    """

    def fail(*_, **__):
        raise RuntimeError("canary-7f3a")

    async def fail_later(*_):
        yield b"id: 1\n"
        fail()

    monkeypatch.setattr(type(separate_daemon.core), "tasks", fail)
    monkeypatch.setattr(type(separate_daemon.core.stream), "follow", fail_later)
    answer = separate_daemon.send_request("GET", f"{BASE}/tasks")
    assert (answer.code, b"canary" in answer.body) == ((500, "internal_error"), False)
    with separate_daemon.open_connection() as line:
        line.send(separate_daemon.build_request("GET", f"{BASE}/events"))
        assert line.read_answer().status == 200
        assert [line.read_line() for _ in range(3)] == [b"6\r\n", b"id: 1\n", b"\r\n"]
        assert line.wait_for_close()
    log = "".join(caplog.messages)
    assert "canary" not in log
    assert log.count('"event": "request_broke"') == 2
    assert '"problem": "RuntimeError"' in log


TASKS = f"{BASE}/tasks"
EMPTY, READ = b'{"content": ""}', (400, "invalid_content")
"""A body that is read completely, and the error of its content."""


# -- headers -------------------------------------------------------------------------------------------


def test_ambiguous_header_is_invalid_http(checked_daemon):
    length, encoding = b"Content-Length: ", b"Transfer-Encoding: "
    codings = (b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked")
    for line in (
        *(b"X: a\x00b", b"X: a\rb", b"X\x00: a", b"X : a", b": a", b"X", "X\u00e9: a".encode()),
        *(length + value for value in (b"+2", b"-1", b"0x2", b"2, 3", b"9" * 21, b"9" * 5000, b"\xb2")),
        *(length + b"2\r\n" + length + b"3", encoding + b"chunked\r\n" + encoding + b"chunked"),
        *(b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked"),
        *(encoding + each for each in codings),
    ):
        request = build_incomplete_request(checked_daemon, "@").replace(b"@", line, 1)
        assert checked_daemon.send_raw(request + b"0\r\n\r\n").code == NO_HTTP, line


def test_request_smuggling_closes_the_connection(checked_daemon):
    """Smuggling: a proxy would see one request, and the daemon two."""
    smuggled, length_headers = (
        checked_daemon.build_request("GET", "/healthz"),
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
    )
    chunked_http_1_0 = build_incomplete_request(checked_daemon, length_headers[1]).replace(
        b"HTTP/1.1", b"HTTP/1.0", 1
    )  # HTTP/1.0 has no chunks.
    for request, code in (
        *(
            (build_incomplete_request(checked_daemon, *lines) + b"0\r\n\r\n", NO_HTTP)
            for lines in permutations(length_headers)
        ),
        (chunked_http_1_0 + encode_chunks(EMPTY), NO_HTTP),
        (checked_daemon.build_request("POST", REMEMBER, body=smuggled, token=""), UNAUTHORIZED),
        (
            checked_daemon.build_request(
                "GET", "/healthz", f"X: a\r\n Authorization: Bearer {checked_daemon.token}", token=""
            ),
            UNAUTHORIZED,
        ),
    ):
        with checked_daemon.open_connection() as line:
            line.send(request + smuggled)
            assert (line.read_answer().code, line.wait_for_close()) == (code, True)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kib", [33, 60, 1000])
@pytest.mark.parametrize("where", ["header", "target", "query", "many"])
def test_oversized_header_is_rejected(checked_daemon, kib, where):
    long = "a" * (kib * 1024)
    target = {"target": f"/{long}", "query": f"/healthz?{long}"}.get(where, "/healthz")
    headers = {"header": [f"X: {long}"], "many": [f"X{each}: a" for each in range(kib * 128)]}.get(where, ())
    request = checked_daemon.build_request("GET", target, *headers)
    assert checked_daemon.send_raw(request).code == NO_HTTP
    with checked_daemon.open_connection() as line:
        half = len(request) // 2
        assert line.send(request[:half])
        line.send(request[half:])
        answer = line.read_answer()
        assert answer is None or answer.code == NO_HTTP


def test_upgrade_is_ignored(checked_daemon):
    more = ("Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")
    for protocols in "websocket", "h2c", "foo, websocket":
        assert checked_daemon.send_request("GET", "/healthz", f"Upgrade: {protocols}", *more).status == 200


# -- time and connections ------------------------------------------------------------------------------


def test_endless_header_or_body_times_out(checked_daemon, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    starts = (b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nX")
    with ExitStack() as stack:
        for how in ("Content-Length: 100", "Transfer-Encoding: chunked"):
            line = stack.enter_context(checked_daemon.open_connection())
            line.send(build_incomplete_request(checked_daemon, how))
            assert line.read_answer().code == (408, "request_timeout")
            assert line.wait_for_close()
        second = stack.enter_context(checked_daemon.open_connection())
        assert get_status(checked_daemon, second) == 200
        # The timeout changes only now, because a request that needs an answer may arrive slowly.
        monkeypatch.setattr(guard, "HEADER_SECONDS", 0.05)
        second.send(b"GET /healthz HTT")
        lines = [stack.enter_context(checked_daemon.open_connection()) for _ in starts]
        for line, data in zip(lines, starts, strict=True):
            line.send(data)
        assert all(line.wait_for_close() for line in (second, *lines))


def test_unread_answers_and_dripping_header_are_cut_off(checked_daemon, monkeypatch):
    monkeypatch.setattr(guard, "UNREAD_SECONDS", 0.05)
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.05)
    for sent in checked_daemon.build_request("GET", "/openapi.json") * 50, b"X":
        with checked_daemon.open_connection() as line:
            while line.send(sent):
                pass


def get_status(daemon, line, path="/healthz", *headers):
    """Send a request on a connection and return the status of its answer."""
    line.send(daemon.build_request("GET", path, *headers))
    return getattr(line.read_answer(), "status", "no answer")


@pytest.mark.threat("T-API-03", control="idle_lines")
@pytest.mark.parametrize("address", ["tcp", "unix"])
def test_idle_connections_block_no_one(checked_daemon, monkeypatch, address):
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 40)
    with ExitStack() as opened:
        follower = opened.enter_context(checked_daemon.open_connection())
        assert get_status(checked_daemon, follower, f"{BASE}/events") == 200
        idle = [
            opened.enter_context(checked_daemon.open_connection(getattr(checked_daemon, address)))
            for _ in range(100)
        ]
        for each in idle[:-1:2]:
            each.send(b"GET /healthz HTTP/1.1\r\nX: y")
        # Its answer shows that all connections were accepted, so no later one makes the next one the oldest.
        assert get_status(checked_daemon, idle[-1]) == 200
        assert getattr(checked_daemon.send_request("GET", "/healthz"), "status", "no answer") == 200
        checked_daemon.wait_until(lambda: checked_daemon.count_connections() <= 40)
        assert follower.read_line()


def test_oldest_idle_connection_is_closed_first(checked_daemon, monkeypatch):
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)
    with ExitStack() as opened:
        lines = [opened.enter_context(checked_daemon.open_connection()) for _ in range(3)]
        for line in (lines[1], lines[2], lines[0]):
            assert get_status(checked_daemon, line) == 200
        newest = opened.enter_context(checked_daemon.open_connection())
        assert lines[1].wait_for_close()
        for line in (newest, lines[2], lines[0]):
            assert (get_status(checked_daemon, line), get_status(checked_daemon, line, f"{BASE}/events")) == (
                200,
                200,
            )
        assert opened.enter_context(checked_daemon.open_connection()).wait_for_close()
        assert all(line.read_line() for line in (newest, lines[2], lines[0]))


def test_data_after_final_answer_closes_connection(checked_daemon):
    """A second answer is impossible there, even for invalid HTTP."""
    with checked_daemon.open_connection() as line:
        assert get_status(checked_daemon, line, f"{BASE}/events", "Connection: close") == 200
        line.send(b"garbage")
        while b"HTTP/1.1" not in (text := line.read_line()) and text:
            pass
        assert text == b""


# -- bodies --------------------------------------------------------------------------------------------


def test_chunks_form_one_body_and_trailers_are_ignored(checked_daemon):
    for size in (1, 7, 4096):
        for end in (b"0\r\n\r\n", b"0;x=y\r\n\r\n", b"000\r\nAuthorization: x\r\nHost: y\r\n\r\n"):
            with checked_daemon.open_connection() as line:
                line.send(
                    build_incomplete_request(checked_daemon, "Transfer-Encoding: chunked")
                    + encode_chunks(EMPTY + b" " * 500, size, end)
                )
                assert (line.read_answer().code, get_status(checked_daemon, line)) == (READ, 200)


def test_invalid_chunk_ends_the_request(checked_daemon):
    """The result is the same if the body is not read and the answer was sent."""
    long = (b"1" * 40_000, b"1;" + b"x" * 40_000, b"0\r\n" + b"X: a\r\n" * 10_000)
    short = [each + b"\r\n" for each in (b"zz", b"-1", b"+1", b"0x1", b"", b" 1\r\na", b"1\r\nab", b"F" * 21)]
    not_found, not_allowed = (404, "not_found"), (405, "method_not_allowed")
    for path, code in (REMEMBER, NO_HTTP), ("/nothing", not_found), (TASKS, not_allowed):
        for bad in (*short, b"1\na\n\r\n", b"0\r\nX\x00: a\r\n\r\n", *long):
            with checked_daemon.open_connection() as line:
                line.send(
                    build_incomplete_request(checked_daemon, "Transfer-Encoding: chunked", path=path)
                    + b'5\r\n{"con\r\n'
                    + bad
                )
                first = line.read_answer()
                assert first.code in {NO_HTTP, code} if first is not None else bad in long
                assert line.wait_for_close()


def test_unwanted_or_oversized_body_is_not_awaited(checked_daemon):
    length, chunks = "Content-Length: 12000000", "Transfer-Encoding: chunked"
    not_found, not_allowed = ("/nothing", 404), (TASKS, 405)
    for how, (path, status) in (
        (length, (REMEMBER, 413)),
        *product((length, chunks), (not_found, not_allowed)),
    ):
        with checked_daemon.open_connection() as line:
            line.send(build_incomplete_request(checked_daemon, how, path=path))
            answer = line.read_answer()
            assert (answer.status, line.wait_for_close()) == (status, True)
            assert set(answer.get_header_values("connection")) == {"close"}


def test_endless_body_is_cut_off_early(checked_daemon, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 600.0)
    block = encode_chunks(b" " * 65_536, 65_536, b"")
    for path in REMEMBER, "/nothing":
        with checked_daemon.open_connection() as line:
            line.send(build_incomplete_request(checked_daemon, "Transfer-Encoding: chunked", path=path))
            while line.send(block):
                pass


@pytest.mark.sweep(4)
@pytest.mark.threat("T-API-03", control="body_caps")
@pytest.mark.parametrize("where", ["tcp", "unix"])
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 600 * 1024, 7_000_000])
@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_oversized_body_is_answered_with_reason(checked_daemon, where, size, how):
    data = b'{"content": "' + b"x" * (size - 15) + b'"}'
    request = checked_daemon.build_request("POST", REMEMBER, body=data)
    if how == "chunked":
        request = build_incomplete_request(checked_daemon, "Transfer-Encoding: chunked") + encode_chunks(data)
    with checked_daemon.open_connection(getattr(checked_daemon, where)) as line:
        assert line.send(request)
        assert (line.read_answer().code, line.wait_for_close()) == (TOO_LARGE, True)


@pytest.mark.parametrize("path", [REMEMBER, f"{BASE}/erase"])
def test_ambiguous_json_is_rejected(checked_daemon, path):
    fact, deep = '{"content": "a"}', b"[" * 100_000
    texts = (b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"a\nb", b"\\x41")
    values = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"01", b"0x1", b"1" * 5000)
    values += (deep + b"]" * 100_000,)
    for document in (
        *(b'{"content": %b}' % value for value in (*(b'"%b"' % text for text in texts), *values)),
        *(b'{"content": "a", "content": "b"}', b'{"content": "a", "c\\u006fntent": "b"}', b'{"\\ud800": 1}'),
        b'{"content": "a", "source": {"trust": "agent", "trust": "owner"}}',
        *(fact.encode(each) for each in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32")),
        *(b'{"content": "a"} {}', b'{"content": "a"}\x00', b"{'content': 'a'}", b'{"content": "a",}'),
        *(b"{", b"nul", b"\x00", b'"', deep, b'{"a":' * 100_000),
    ):
        assert checked_daemon.send_request("POST", path, body=document).code == NO_JSON, document[:40]
