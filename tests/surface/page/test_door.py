"""Access to the page (D1 to D5, G7), byte by byte: requests that browsers send, and requests that they never
send.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
import sqlite3
import time
from contextlib import ExitStack, closing
from functools import partial
from html import unescape
from html.parser import HTMLParser
from itertools import product
from urllib.parse import quote

import pytest

from kit.catching import catch_error
from kit.server.page_clients import FORM, SAME, PageClient
from kit.server.process import BASE
from kit.server.raw import start_local_daemon
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem
from muniment.server.page.access import MAX_CODES, MAX_NOTICES, MAX_SESSIONS, PageAccess, Session
from muniment.server.page.call import MAX_FIELDS

MISDIRECTED, FOREIGN, NOT_FOUND = (421, "misdirected_request"), (403, "foreign_origin"), (404, "not_found")
NO_TOKEN, INVALID_HTTP = (401, "token_required"), (400, "invalid_http")
NAVIGATE = "Sec-Fetch-Mode: navigate"
SIGN_IN_MARK, VIEW_MARK = b'action="/sign-in"', b'data-events="'
"""Marks of the two pages: the sign-in form, and a view of the memory."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with start_local_daemon(
        tmp_path_factory.mktemp("page"), allow_origins=("https://app.example",)
    ) as served:
        assert served.client
        yield served


@pytest.fixture
def guest(daemon):
    """A caller with a code; after the test, the daemon has no defect."""
    yield PageClient(daemon)
    daemon.assert_healthy()


@pytest.fixture
def owner(guest):
    """A signed-in caller."""
    assert guest.sign_in().status == 303
    return guest


@pytest.fixture
def clock(monkeypatch):
    """The clock of the doors that are created from now on: a list of one number, in seconds."""
    now = [0.0]
    monkeypatch.setattr("muniment.server.core.PageAccess", partial(PageAccess, lambda: now[0]))
    return now


def list_tasks(daemon):
    """Return the tasks of the daemon."""
    return daemon.get(f"{BASE}/tasks").json()["tasks"]


# -- D1: the host name


def test_page_name_exists_after_invite_and_is_unique(tmp_path):
    names = set()
    for each in "first", "second":
        with start_local_daemon(tmp_path / each) as daemon:
            for host in "m-.localhost", f"m-{'0' * 32}.localhost", "localhost.localhost", ".localhost":
                answer = daemon.send_request("GET", "/", SAME, token="", host=f"{host}:{daemon.port}")
                assert answer.code == MISDIRECTED
            invites = [daemon.post("/ui").json() for _ in range(2)]
            assert (invites[0]["url"], invites[0]["seconds"]) == (invites[1]["url"], 60)
            assert re.fullmatch(rf"http://m-[0-9a-f]{{32}}\.localhost:{daemon.port}", invites[0]["url"])
            assert len(invites[0]["code"]) >= 22  # 128 bits.
            assert invites[0]["code"] != invites[1]["code"]
            names.add(invites[0]["url"].partition(".")[0])
    assert len(names) == 2


def listen(address, *, port=0, reuse=False, ipv6_only=True):
    """Return a listening socket, as another program has it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as stack:
        sock = stack.enter_context(socket.socket(family))
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_only)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        sock.bind((address, port))
        sock.listen()
        stack.pop_all()
        return sock


@pytest.mark.threat("T-API-16", control="reserved_ports")
def test_other_server_cannot_use_port_of_page(tmp_path):
    with start_local_daemon(tmp_path / "first") as daemon:
        with listen("::1", port=daemon.port):  # Chromium tries this address first.
            assert daemon.send_request("POST", "/ui", body={}).code == (409, "ui_port_taken")
            assert daemon.send_request("GET", "/healthz").status == 200
        PageClient(daemon)
        for address in "::1", "::", "127.0.0.1", "0.0.0.0":
            for reuse in False, True:
                error = catch_error(OSError, listen, address, port=daemon.port, reuse=reuse)
                assert error.errno == errno.EADDRINUSE
        catch_error(ConnectionRefusedError, socket.create_connection, ("::1", daemon.port))
        assert PageClient(daemon).sign_in().status == 303
    for address in "::1", "127.0.0.1":
        listen(address, port=daemon.port, reuse=True).close()


def test_page_needs_both_loopback_addresses():
    for address, ipv6_only, others in (
        ("127.0.0.1", True, ["::1"]),
        ("0.0.0.0", True, ["::1"]),
        ("::1", True, ["127.0.0.1"]),
        ("::", True, ["127.0.0.1"]),
        ("::", False, ["127.0.0.1"]),
    ):
        with listen(address, ipv6_only=ipv6_only, reuse=True) as listener, closing(PageAccess()) as door:
            door.listener, port = listener, listener.getsockname()[1]
            assert door.create_code()[0] == door.create_code()[0]
            for other in others:
                catch_error(OSError, listen, other, port=port, reuse=True)
    with listen("127.0.0.2") as listener, closing(PageAccess()) as door:
        door.listener = listener
        assert catch_error(HttpProblem, door.create_code).code == "ui_not_local"
        assert not door.is_page_host("m-.localhost")


def test_page_works_without_ipv6(monkeypatch):
    original = socket.socket

    def fail_for_ipv6(family=socket.AF_INET, *more):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return original(family, *more)

    with listen("127.0.0.1") as listener, closing(PageAccess()) as door:
        monkeypatch.setattr("muniment.server.page.access.socket.socket", fail_for_ipv6)
        door.listener = listener
        assert door.create_code()[0].endswith(f".localhost:{listener.getsockname()[1]}")


@pytest.mark.threat("T-API-14", control="owners_alone")
def test_only_the_owners_token_opens_the_page(daemon):
    for token, code in ((daemon.client, (403, "owner_required")), ("", NO_TOKEN), ("x" * 43, NO_TOKEN)):
        assert daemon.send_request("POST", "/ui", body={}, token=token).code == code
    assert daemon.send_request("GET", "/ui").code == (405, "method_not_allowed")
    assert daemon.send_request("POST", "/ui", body={"for": "me"}).code == (400, "invalid_request")
    assert daemon.send_request("POST", "/ui", "Origin: http://evil.example", body={}).code == FOREIGN
    assert daemon.send_request("POST", "/ui", body={}, address=daemon.unix).status == 200


@pytest.mark.threat("T-API-16", control="page_alone")
def test_page_name_ignores_tokens_and_serves_no_api(daemon, owner):
    bearer = f"Authorization: Bearer {daemon.token}"
    paths = ("/healthz", "/capabilities", "/metrics", "/openapi.json", "/hello", f"{BASE}/tasks", "/mcp")
    for path in (*paths, f"{BASE}/events", "/session/x/events", f"/workspaces/{daemon.key}/memory/tasks"):
        for headers in ((), (bearer,)):
            answer = owner.get(path, *headers)
            assert answer.status == 404, path
            assert b"not_found" in answer.body
    owner.cookie = ""
    assert (owner.get(owner.memory, bearer).status, owner.get(f"{BASE}/tasks", bearer).status) == (401, 401)
    for path in "/ui", f"{BASE}/remember":
        form = f"Origin: {owner.url}", "Content-Type: application/json"
        assert owner.request("POST", path, SAME, bearer, *form, body=b'{"content": "x"}').status == 401
    assert list_tasks(daemon) == []


@pytest.mark.threat("T-API-14", control="page_name")
def test_api_names_ignore_cookie_and_serve_no_page(daemon, owner):
    cookie, port = f"Cookie: muniment={owner.cookie}", daemon.port
    for host in f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}":
        for path in (owner.memory, "/", "/sign-in", "/static/page.js", f"{BASE}/tasks", "/metrics"):
            assert daemon.send_request("GET", path, cookie, SAME, host=host, token="").code in {
                NO_TOKEN,
                NOT_FOUND,
            }
        for path in (owner.memory, "/", "/sign-in", "/static/page.js", f"/w/{daemon.key}/events"):
            assert daemon.send_request("GET", path, cookie, SAME, host=host).code == NOT_FOUND
        form = daemon.send_request(
            "POST", f"/w/{daemon.key}/remember", cookie, FORM, host=host, body=b"content=x"
        )
        assert form.code == NOT_FOUND
        page = f"Origin: {owner.url}"
        assert daemon.send_request("GET", "/healthz", page, host=host).code == FOREIGN
    for path in owner.memory, "/", "/sign-in":
        assert owner.get(path, address=daemon.unix).code == NOT_FOUND
    assert owner.post("/sign-in", code=owner.code).status == 401
    assert daemon.send_request("GET", "/", host=owner.host, token="", address=daemon.unix).code == NOT_FOUND


@pytest.mark.threat("T-API-01", control="page_name")
def test_similar_host_name_is_rejected(daemon, owner):
    name, port = owner.host.split(":")
    for host in (
        *(f"{name}.", f"{name}.:{port}", f"x.{name}:{port}", f"{name}.evil.example:{port}"),
        *(f"user@{name}:{port}", f"{name}@evil.example", f"{name},evil.example", f" {name[1:]}:{port}"),
        *(f"{name[:-1]}:{port}", f"m-{'0' * 32}.localhost:{port}", f"evil.example:{port}", f"[{name}]"),
        *(f"{name}/", f"{name}%2e", name.replace(".", "。").encode().decode("latin-1")),
    ):
        answer = owner.get(owner.memory, host=host)
        assert answer.code in {MISDIRECTED, INVALID_HTTP}, host
        assert VIEW_MARK not in answer.body
    for host in name, f"{name}:1", f"{name.upper()}:{port}":  # Through a tunnel, for example.
        assert owner.get(owner.memory, host=host).status == 200
    two = daemon.build_request("GET", owner.memory, f"Host: {owner.host}", SAME, token="", host=owner.host)
    assert daemon.send_raw(two).code == INVALID_HTTP
    target = daemon.build_request("GET", f"{owner.url}{owner.memory}", SAME, token="", host=owner.host)
    assert daemon.send_raw(target).code == NOT_FOUND
    assert daemon.send_raw(target.replace(owner.host.encode(), daemon.host.encode())).code == NOT_FOUND


def test_path_is_not_normalized(daemon, owner):
    key = daemon.key
    for path in (
        *(f"//w/{key}/memory", f"/w//{key}/memory", f"/w/{key}//memory", f"/w/{key}/memory/"),
        *(f"/w/{key}/../{key}/memory", f"/w/{key}/./memory", f"/w/{key}/%6demory", f"/%77/{key}/memory"),
        *(f"/w/{key}/memory%00", f"/w/{key}", "/w/", "/w", f"/w/{key}/nothing", "/memory", "/entry"),
        *("/static/../door.py", "/static/%2e%2e/door.py", "/static/", "/static/none.js", "/favicon.ico"),
        *(f"/w/{key}/memory;x", f"/W/{key}/memory", f"/w/{key}/Memory", f"/w/{key}/views.py"),
    ):
        assert owner.get(path).status == 404, path
    for other in "0" * 8, "%2e", key.upper() + "x":
        assert owner.get(f"/w/{other}/memory").status in {404, 400, 403}
    assert VIEW_MARK in owner.get(owner.memory).body


# -- D2: origin of requests


SITES = (None, "", "none", "cross-site", "same-site", "same-origin,none", "SAME-ORIGIN", "same-origin x")


@pytest.mark.threat("T-API-13", control="page_sites")
@pytest.mark.threat("T-API-16", control="page_sites")
def test_cross_site_request_sees_only_sign_in_form(daemon, owner):
    events = f"/w/{daemon.key}/events"
    for site in SITES:
        site_headers = [] if site is None else [f"Sec-Fetch-Site: {site}"]
        for path in owner.memory, events, "/static/page.js", "/":
            assert owner.request("GET", path, *site_headers).code == FOREIGN, site
            for mode in "cors", "no-cors", "websocket", "same-origin", "navigate, cors":
                assert owner.request("GET", path, *site_headers, f"Sec-Fetch-Mode: {mode}").code == FOREIGN
        answer = owner.request("GET", owner.memory, *site_headers, NAVIGATE)
        assert (VIEW_MARK in answer.body, SIGN_IN_MARK in answer.body) == (
            (site == "none"),
            (site != "none"),
        ), site
    for two in (SAME, SAME), (SAME, "Sec-Fetch-Site: cross-site"), ("Sec-Fetch-Site: none", SAME):
        assert owner.request("GET", owner.memory, *two).code == FOREIGN
        assert SIGN_IN_MARK in owner.request("GET", owner.memory, *two, NAVIGATE).body
    assert owner.request("GET", owner.memory, NAVIGATE, NAVIGATE).code == FOREIGN
    assert VIEW_MARK in owner.get(owner.memory).body


@pytest.mark.threat("T-API-13", control="page_origins")
def test_post_needs_exact_origin_of_page(daemon, owner):
    path, host, port = f"/w/{daemon.key}/remember", owner.host, daemon.port
    fact = b"content=The+user+prefers+dark+mode"
    origins = ("null", "", "http://evil.example", f"https://{host}", owner.url.rpartition(":")[0])
    others = (f"http://127.0.0.1:{port}", f"http://localhost:{port}", "https://app.example")
    more = (f"{owner.url[:-1]}0x", f"{owner.url}/", owner.url.upper(), f"{owner.url}, {owner.url}")
    for origin in (*origins, *others, *more, f"{owner.url.rpartition(':')[0]}:1"):
        for page in "/sign-in", "/sign-out", path:
            answer = owner.request("POST", page, SAME, f"Origin: {origin}", FORM, body=fact)
            assert answer.code == FOREIGN, origin
    own_origin = f"Origin: {owner.url}"
    for headers in ((), (own_origin, own_origin), (own_origin, "Origin: null"), ("Origin: null", own_origin)):
        assert owner.request("POST", path, SAME, *headers, FORM, body=fact).code == FOREIGN
    for site in SITES:
        site_headers = [] if site is None else [f"Sec-Fetch-Site: {site}"]
        for mode in (), (NAVIGATE,):
            assert (
                owner.request("POST", path, *site_headers, *mode, own_origin, FORM, body=fact).code == FOREIGN
            ), site
    assert list_tasks(daemon) == []
    assert owner.has_session()


def test_other_methods_are_rejected(daemon, owner):
    own_headers = SAME, f"Origin: {owner.url}"
    methods = "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"
    for method, path in product(methods, (owner.memory, "/", "/sign-in")):
        assert owner.request(method, path, SAME).status == 403
    for method in "PUT", "DELETE":
        answer = owner.request(method, owner.memory, *own_headers)
        assert (answer.status, b"method_not_allowed" in answer.body) == (405, True)
    preflight = f"Origin: {owner.url}", "Access-Control-Request-Method: POST"
    answer = owner.request("OPTIONS", owner.memory, SAME, *preflight)
    assert [name for name, _ in answer.headers if name.startswith("access-control")] == []
    assert owner.get(f"/w/{daemon.key}/remember").status == 405
    assert owner.post(f"/w/{daemon.key}/memory").status == 405
    for name in "forget", "dream", "pin", "undo", "approve", "reject", "cancel":
        assert owner.get(f"/w/{daemon.key}/{name}").status == 405
    assert owner.get("/sign-out").status == 404
    assert owner.has_session()


# -- D3, D4: codes, sessions, cookies ------------------------------------------------------------------


@pytest.mark.threat("T-API-14", control="codes_once")
def test_a_code_works_once_and_only_by_a_form(guest):
    code = guest.code
    for path in f"/?code={code}", f"/sign-in?code={code}", f"{guest.memory}?code={code}", f"/sign-in#{code}":
        for site in "same-origin", "none":
            answer = guest.request("GET", path, f"Sec-Fetch-Site: {site}", NAVIGATE)
            assert (answer.get_header_values("set-cookie"), VIEW_MARK in answer.body) == ([], False)
    for wrong in "", code[:-1], code.swapcase(), f"{code}x", "é" * 22, "\0" * 22:
        answer = guest.sign_in(wrong)
        assert (answer.status, answer.get_header_values("set-cookie"), SIGN_IN_MARK in answer.body) == (
            401,
            [],
            True,
        )
    assert b"Invalid or expired code." in guest.sign_in("x").body
    assert guest.sign_in(f" {code}\n").status == 303  # As pasted, with white space.
    assert guest.has_session()
    guest.cookie = None
    assert (guest.sign_in(code).status, guest.cookie) == (401, None)


def test_sign_in_redirects_only_to_views_of_page(daemon):
    view = f"/w/{daemon.key}/entry?path=user%2Fa.md"
    for wanted, found in (
        (view, view),
        *(
            (each, "/")
            for each in ("", "//evil.example", "https://evil.example/w/x/memory", "/static/page.js")
        ),
        *(
            (each, "/")
            for each in (f"{view}\r\nSet-Cookie: a=b", "/w/x/memory\n", "/w/x/../../y", "/sign-out")
        ),
        *(
            (each, "/")
            for each in ("/w//evil.example", "\\\\evil.example", "javascript:alert(1)", f"{view}#x")
        ),
    ):
        guest = PageClient(daemon)
        answer = guest.post("/sign-in", code=guest.code, to=wanted)
        assert (answer.status, answer.get_header_values("location")) == (303, [found]), wanted


def test_code_expires_after_minute_and_session_after_12_hours():
    now = [1000.0]
    door = PageAccess(lambda: now[0])
    late, good = door.create_code()[1], door.create_code()[1]
    now[0] += 59.9
    cookie = door.sign_in(good)
    now[0] += 0.1
    assert door.sign_in(late) is None
    headers = {"host": ["h"], "sec-fetch-site": ["same-origin"], "cookie": [f"muniment={cookie}"]}
    session = door.admit("GET", headers)
    assert door.is_valid(session)
    now[0] += 12 * 3600 - 0.2
    assert door.admit("GET", headers) is session
    now[0] += 0.2
    assert (door.admit("GET", headers), door.is_valid(session)) == (None, False)


def test_code_expires_while_machine_sleeps(monkeypatch):
    now = {time.CLOCK_BOOTTIME: 1000.0}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now[clock])
    door = PageAccess()
    code = door.create_code()[1]
    now[time.CLOCK_BOOTTIME] += 61
    assert door.sign_in(code) is None


def test_codes_and_sessions_are_limited_oldest_first():
    door = PageAccess(lambda: 0.0)
    codes = [door.create_code()[1] for _ in range(MAX_CODES + 1)]
    assert [door.sign_in(code) is None for code in codes] == [True, *[False] * MAX_CODES]
    cookies = [door.sign_in(door.create_code()[1]) for _ in range(MAX_SESSIONS + 1)]
    known = [
        door.admit("GET", {"sec-fetch-site": ["same-origin"], "cookie": [f"muniment={cookie}"]}) is not None
        for cookie in cookies
    ]
    assert known == [False, *[True] * MAX_SESSIONS]


@pytest.mark.threat("T-API-14", control="protected_cookies")
def test_cookie_is_host_only_and_http_only(guest):
    (cookie,) = guest.sign_in().get_header_values("set-cookie")
    value, *attributes = cookie.split("; ")
    assert len(value.removeprefix("muniment=")) >= 43  # 256 bits.
    assert {each.lower() for each in attributes} == {
        "httponly",
        "samesite=strict",
        "path=/",
    }  # No domain, no age.
    (deleted,) = guest.post("/sign-out").get_header_values("set-cookie")
    assert {"HttpOnly", "Path=/", "Max-Age=0"} <= set(deleted.split("; "))


def test_session_needs_exactly_one_valid_cookie(owner):
    good = owner.cookie
    for cookie in (good[:-1], good.swapcase(), f"{good}x", "x", f'"{good}', "é" * 43):
        assert owner.get(owner.memory, cookie=cookie).status == 401, cookie
    for headers in (
        ("Cookie: muniment=x", f"Cookie: muniment={good}"),
        (f"Cookie: muniment={good}", "Cookie: muniment=x"),
        (f"Cookie: muniment={good}; muniment=x",),
        (f"Cookie: Muniment={good}",),
        (f"Cookie: muniment2={good}",),
        (f"Cookie: x={good}",),
        ("Cookie: " + "; ".join(f"a{number}=b" for number in range(3_000)),),
        ("Cookie: muniment",),
        (f"Cookie: (x)=1; muniment={good}",),
        ("Cookie: ;;==\x7f",),
    ):
        answer = owner.daemon.send_request("GET", owner.memory, SAME, *headers, token="", host=owner.host)
        assert (answer.status, VIEW_MARK in answer.body) in {(401, False), (400, False)}, headers
    others = f"Cookie: a=1; muniment={good}; b=2"
    assert (
        owner.daemon.send_request("GET", owner.memory, SAME, others, token="", host=owner.host).status == 200
    )


def test_sign_out_ends_only_own_session(daemon, owner):
    other = PageClient(daemon)
    other.sign_in()
    assert b"You have signed out." in owner.post("/sign-out").body
    assert [each.has_session() for each in (owner, other)] == [False, True]
    assert owner.post("/sign-out").status == 401
    assert owner.post(f"/w/{daemon.key}/remember", content="x").status == 401
    assert list_tasks(daemon) == []


def test_event_stream_ends_with_its_session(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("muniment.server.stream.CHECK_SECONDS", 0.0)
    with start_local_daemon(tmp_path) as daemon:
        for end in (lambda owner: owner.post("/sign-out"), lambda _: clock.__setitem__(0, 12 * 3600.0)):
            owner = PageClient(daemon)
            owner.sign_in()
            with daemon.open_connection() as line:
                cookie = f"Cookie: muniment={owner.cookie}"
                path = f"/w/{daemon.key}/events"
                last = "Connection: close"
                line.send(daemon.build_request("GET", path, SAME, cookie, last, token="", host=owner.host))
                assert line.read_answer().get_header_values("content-type")[0].startswith("text/event-stream")
                assert b"retry" in line.read_line() + line.read_line()
                end(owner)
                assert owner.get(path).status == 401
                daemon.wait_for_task(
                    daemon.remember("The user prefers dark mode")
                )  # The stream must not contain it.
                rest = b"".join(iter(line.read_line, b""))
                assert b"event: " not in rest
            daemon.wait_until(lambda following=daemon.guard.following: len(following) == 0)


def test_unread_notices_are_limited():
    session = Session(0.0)
    for number in range(MAX_NOTICES + 3):
        session.notices.append(f"notice {number}")
    assert list(session.notices) == [f"notice {number + 3}" for number in range(MAX_NOTICES)]


# -- bodies --------------------------------------------------------------------------------------------


def test_form_body_must_be_small_plain_and_typed(daemon, owner):
    path, own_headers = f"/w/{daemon.key}/remember", (SAME, f"Origin: {owner.url}")
    for kind in "text/plain", "multipart/form-data; boundary=x", "application/json", "", "x-www-form":
        answer = owner.request("POST", path, *own_headers, f"Content-Type: {kind}", body=b"content=x")
        assert (answer.status, b"unsupported_media_type" in answer.body) == (415, True), kind
    for body in (
        b"content=\xff",
        b"content=%ff",
        b"content=\xc3\xa9",
        b"&".join(b"a=1" for _ in range(MAX_FIELDS + 1)),
    ):
        answer = owner.request("POST", path, *own_headers, FORM, body=body)
        assert (answer.status, b"invalid_request" in answer.body) == (400, True), body
    large = owner.request("POST", path, *own_headers, FORM, body=b"content=" + b"x" * MAX_BODY_BYTES)
    assert (large.status, b"body_too_large" in large.body) == (413, True)
    assert owner.request("GET", owner.memory, SAME, body=b"x").code == INVALID_HTTP
    doubtful = "Transfer-Encoding: chunked", "Content-Length: 5"
    assert owner.request("POST", path, *own_headers, FORM, *doubtful).code == INVALID_HTTP
    assert list_tasks(daemon) == []


# -- D5: security headers


def parse_policies(answer):
    """Return the content security policies of an answer, each as a mapping."""
    parts = [
        [each.split() for each in one.split(";")]
        for one in answer.get_header_values("content-security-policy")
    ]
    return [{name: values for name, *values in one} for one in parts]


@pytest.mark.threat("T-API-15", control="page_headers")
@pytest.mark.threat("T-MEM-35", control="page_headers")
def test_answers_forbid_frames_inline_code_and_foreign_content(daemon, owner):
    foreign = owner.request("GET", owner.memory, "Sec-Fetch-Site: cross-site", NAVIGATE)
    views = ("memory", "search", "reviews", "tasks", "timeline", "audit", "policy", "entry?path=x", "edit")
    files = "/static/page.js", "/static/page.css", "/static/icon.svg", "/none", "//"
    answers = [
        *(owner.get(f"/w/{daemon.key}/{view}") for view in views),
        *map(owner.get, files),
        *(owner.post(f"/w/{daemon.key}/{act}", id="x") for act in ("approve", "undo", "pin", "edit")),
        owner.request("GET", owner.memory, "Sec-Fetch-Site: cross-site"),
        owner.request("POST", "/sign-in", SAME, "Origin: null"),
        owner.get("/", cookie="x"),
        owner.get("/"),
        foreign,
        PageClient(daemon).sign_in(),
        owner.post("/sign-out"),
    ]
    assert {each.status for each in answers} >= {200, 303, 401, 403, 404}
    for answer in answers:
        policies = parse_policies(answer)
        assert len(policies) == 1
        policy = policies[0]
        for name in "default-src", "frame-ancestors", "base-uri", "trusted-types":
            assert policy[name] == ["'none'"]
        for name in "script-src", "style-src", "connect-src", "form-action", "img-src":
            assert policy[name] == ["'self'"]
        assert policy["require-trusted-types-for"] == ["'script'"]
        for name, value in (
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "same-origin"),
        ):
            assert answer.get_header_values(name) == [value]
        assert not [name for name, _ in answer.headers if name.startswith("access-control")]


# -- W1, W2: text is escaped

HOSTILE = """<script>alert(1)</script> <img src=x onerror=alert(1)> <svg onload=alert(1)> {{7*7}} {% raw %}
[a](javascript:alert(1)) ![b](http://evil.example/p.png) <http://evil.example/> <iframe src=//e.example>
</textarea></pre></title><base href=//evil.example> "><a onfocus=alert(1) href=//evil.example>x</a> '

| <style>*{}</style> | [r] |
|---|---|
| `<b onclick=x>` | &lt;i&gt; |

# <em>heading</em>

[r]: data:text/html,<script>alert(1)</script> "<title>"
"""


class Elements(HTMLParser):
    """The elements of a page: names with attributes."""

    def __init__(self, answer):
        super().__init__()
        self.found = []
        self.feed(answer.body.decode())
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.threat("T-MEM-35", control="escaped_page")
@pytest.mark.threat("T-MEM-35", control="text_alone")
def test_html_in_text_is_escaped_in_every_view(daemon, owner):
    quoted, line = quote(HOSTILE.replace("\n", " ")), HOSTILE.splitlines()[0]
    entry = daemon.get_root("user") / "hostile.md"
    entry.write_text(f"---\nname: '{line}'\ndescription: '{line}'\n---\n{HOSTILE}")
    try:
        for view in (
            *("memory?scope=user", "entry?path=user/hostile.md", "entry?path=user/hostile.md&raw=1"),
            *(
                "edit?path=user/hostile.md",
                f"search?q={quoted}",
                "search?q=alert",
                "tasks",
                "audit",
                "reviews",
            ),
            *(f"{view}?path={quoted}&id={quoted}" for view in ("entry", "edit", "task", "review", "policy")),
            f"memory?scope=user&topic={quoted}&after={quoted}",
        ):
            for tag, attributes in Elements(owner.get(f"/w/{daemon.key}/{view}")).found:
                assert tag not in {"iframe", "svg", "img", "style", "base", "em", "i", "b"}, view
                assert not [name for name in attributes if name.startswith("on") or name == "style"], view
                for name in "href", "src", "action":
                    assert re.match(r"/(?!/)|#", attributes.get(name, "/")), (view, tag, attributes)
                assert tag != "script" or attributes.get("src", "").startswith("/static/"), view
        page = unescape(owner.get(f"/w/{daemon.key}/entry?path=user/hostile.md").body.decode())
        for text in line, "javascript:alert(1)", "http://evil.example/p.png", "<em>heading</em>":
            assert text in page  # All of it can be read.
    finally:
        entry.unlink()


# -- secrets that must not be stored


@pytest.mark.threat("T-API-14", control="digests_alone")
def test_code_and_cookie_are_not_logged_or_stored(tmp_path):
    log = logging.getLogger()
    lines, handler = [], logging.Handler(logging.DEBUG)
    handler.emit = lambda record: lines.append(f"{record.getMessage()} {record.__dict__}")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with start_local_daemon(tmp_path) as daemon:
            unused, owner = PageClient(daemon), PageClient(daemon)
            owner.sign_in("wrong-code-0123456789")
            assert owner.sign_in().status == 303
            owner.post(f"/w/{daemon.key}/remember", content="The user prefers dark mode")
            owner.post(f"/w/{daemon.key}/undo", task="nothing")
            owner.get(f"/w/{daemon.key}/nothing")
            owner.sign_in(owner.code)
            task = daemon.wait_for_task(list_tasks(daemon)[0]["taskId"])
            assert task["status"] == "completed"
            door_state = vars(daemon.core.page_access)
            texts = [repr(door_state), daemon.get("/metrics").text, daemon.get("/capabilities").text]
            texts += [daemon.get(f"{BASE}/tasks").text, owner.get(f"/w/{daemon.key}/audit").body.decode()]
            state = tmp_path / "home"
            files = [each for each in state.rglob("*") if each.is_file()]
            assert state / "state" / "daemon.json" in files
            texts += [each.read_bytes().decode("latin-1") for each in files] + lines
            with closing(sqlite3.connect(state / "state" / "ledger.db")) as ledger:
                texts += list(ledger.iterdump())
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    for secret in unused.code, owner.code, owner.cookie, "wrong-code-0123456789":
        assert [each[:200] for each in texts if secret in each] == []
