"""Pages of allowed origins may call the daemon with a token; other pages may not (G2)."""

from __future__ import annotations

import json
from itertools import product

import pytest

from kit.catching import catch_error
from kit.server.process import BASE
from kit.server.raw import REMEMBER, start_local_daemon
from muniment.errors import ConfigInvalid
from muniment.server import guard
from muniment.server.guard import normalize_origin
from muniment.server.service import OPERATIONS

FOREIGN, MISDIRECTED, NOBODY = (403, "foreign_origin"), (421, "misdirected_request"), (401, "token_required")
APP = "https://app.example"
ALLOWED = (APP, "http://pages.example:8080", "https://usual.example", "http://[::1]:3000")
PREFLIGHT = (
    "Access-Control-Request-Method: POST",
    "Access-Control-Request-Headers: authorization,content-type",
)


def read_cors_headers(answer):
    """Return the CORS headers of an answer."""
    return {name: value for name, value in answer.headers if name.startswith("access-control-")}


def test_page_of_allowed_origin_may_call(checked_daemon):
    for origin, site in product(ALLOWED, ("cross-site", "same-site")):
        headers = (f"Origin: {origin}", f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: cors")
        granted = checked_daemon.send_request("OPTIONS", REMEMBER, *headers, *PREFLIGHT, token="")
        assert (granted.status, granted.body, granted.get_header_values("vary")) == (204, b"", ["Origin"])
        cors_headers = read_cors_headers(granted)
        assert cors_headers["access-control-allow-origin"] == origin
        assert "POST" in cors_headers["access-control-allow-methods"].split(", ")
        allowed = cors_headers["access-control-allow-headers"].lower().split(", ")
        assert {"authorization", "content-type", "last-event-id"} <= set(allowed)
        assert checked_daemon.send_request("GET", "/health", *headers, token="").code == NOBODY
        answer = checked_daemon.send_request("GET", "/health", *headers)
        assert (answer.status, answer.json, answer.get_header_values("vary")) == (
            200,
            {"status": "ok"},
            ["Origin"],
        )
        assert read_cors_headers(answer)["access-control-allow-origin"] == origin


def test_cors_headers_cover_every_request_and_answer_header():
    parameters = {
        each.name for operation in OPERATIONS for each in operation.parameters if each.location == "header"
    }
    more = {"Authorization", "Content-Type", "X-Qwen-Client-Id", "X-Muniment-Trust"}
    more |= {f"Mcp-{name}" for name in ("Method", "Name", "Protocol-Version", "Session-Id")}
    assert parameters | more == set(guard.ALLOWED_HEADERS.split(", "))
    assert {operation.method for operation in OPERATIONS} == set(guard.ALLOWED_METHODS.split(", "))


TRICKS = """null NULL * https://app.example. https://app.example/ https://app.example:443 https://app.example:8443
    http://app.example https://APP.example HTTPS://app.example https://app.example.evil.test
    https://evil-app.example https://evilapp.example https://x.app.example https://appXexample
    https://app.example@evil.test https://app.example%2eevil.test https://app.example,https://evil.test
    app.example //app.example http://pages.example http://pages.example:80 http://pages.example:80800
    https://pages.example:8080 http://usual.example http://usual.example:443 http://[::1]:3001 http://[::1]
    http://localhost:3000 http://127.0.0.1:3000 file:// chrome-extension://app.example"""


@pytest.mark.threat("T-API-01", control="own_origin")
def test_similar_origin_gets_no_access(checked_daemon, tmp_path):
    lists = f"{APP} https://evil.test", f"https://evil.test {APP}", f"{APP}\thttps://evil.test", f"{APP}é"
    with start_local_daemon(tmp_path) as plain:

        def send(daemon, method, *lines, token):
            answer = daemon.send_request(method, REMEMBER, *lines, token=token)
            return answer.status, answer.body, [each for each in answer.headers if each[0] != "date"]

        for origin in (*TRICKS.split(), *lists):
            header = f"Origin: {origin}"
            for method, more, token in ("OPTIONS", PREFLIGHT, ""), ("GET", (), None):
                found = send(checked_daemon, method, header, *more, token=token)
                assert found == send(plain, method, header, *more, token=token), origin
                assert (found[0], "access-control" in str(found)) == (403, False), origin
    for headers in (f"Origin: {APP}",) * 2, (f"Origin: {APP}", "Origin: null"):
        answer = checked_daemon.send_request("GET", "/health", *headers)
        assert (answer.code, read_cors_headers(answer)) == (FOREIGN, {}), headers
    for site in "cross-site", "same-site":  # A page without an Origin header, which may read nothing.
        assert checked_daemon.send_request("GET", "/health", f"Sec-Fetch-Site: {site}").code == FOREIGN


@pytest.mark.threat("T-API-01", control="one_host")
def test_allowed_origin_with_rebound_host_is_rejected(checked_daemon):
    for host in "app.example", f"app.example:{checked_daemon.port}", f"evil.example:{checked_daemon.port}":
        for method, more, token in ("OPTIONS", PREFLIGHT, ""), ("GET", (), None):
            answer = checked_daemon.send_request(
                method, REMEMBER, f"Origin: {APP}", *more, token=token, host=host
            )
            assert (answer.code, read_cors_headers(answer)) == (MISDIRECTED, {}), host


def test_only_preflight_needs_no_token_and_cookies_are_ignored(checked_daemon):
    header = f"Origin: {APP}"
    for method, more in (
        ("OPTIONS", ()),
        ("OPTIONS", PREFLIGHT[1:]),
        ("GET", PREFLIGHT),
        ("HEAD", PREFLIGHT),
        ("POST", PREFLIGHT),
    ):
        answer = checked_daemon.send_request(
            method, "/capabilities", header, *more, "Cookie: token=x", token=""
        )
        assert answer.status == 401, (method, more)
    # A page is not the owner over the Unix socket either: the owner may run a proxy there.
    assert (
        checked_daemon.send_request("GET", "/health", header, token="", address=checked_daemon.unix).code
        == NOBODY
    )
    assert checked_daemon.send_request("GET", "/health", token="", address=checked_daemon.unix).status == 200
    with_body = checked_daemon.send_request(
        "OPTIONS", REMEMBER, header, *PREFLIGHT, token="", body=b"x" * 100
    )
    assert (with_body.status, with_body.get_header_values("connection")) == (204, ["close"])
    granted = {
        checked_daemon.send_request("OPTIONS", path, header, *PREFLIGHT, token="").status
        for path in ("/", "//x", "/nowhere")
    }
    assert granted == {204}  # It reveals no existing path.
    for path, token in (
        ("/health", None),
        ("/health", ""),
        ("/metrics", checked_daemon.client),
        ("/nowhere", None),
    ):
        answer = checked_daemon.send_request("GET", path, header, token=token)
        assert read_cors_headers(answer)["access-control-allow-origin"] == APP  # Problems are also readable.
        assert answer.get_header_values("vary") == ["Origin"]
        assert "credentials" not in str(answer.headers)


def test_page_follows_events_and_reads_epoch(tmp_path):
    with start_local_daemon(tmp_path, allow_origins=(APP,)) as daemon, daemon.open_connection() as line:
        lines = f"Origin: {APP}", "Sec-Fetch-Site: cross-site", "Accept: text/event-stream"
        line.send(daemon.build_request("GET", f"{BASE}/events", *lines))
        task_id = daemon.remember("The user reads this on a page")
        answer = line.read_answer()
        assert (answer.status, read_cors_headers(answer)["access-control-allow-origin"]) == (200, APP)
        assert "X-Qwen-Event-Epoch" in read_cors_headers(answer)["access-control-expose-headers"].split(", ")
        assert answer.get_header_values("x-qwen-event-epoch") == [daemon.core.stream.epoch]
        while not (sent := line.read_line()).startswith(b"data: "):
            pass
        assert json.loads(sent.removeprefix(b"data: "))["data"]["taskId"] == task_id


def test_origin_is_normalized_like_in_browsers():
    for text, origin in (
        *((each, each) for each in ("https://a.example", "http://127.0.0.1:3000", "http://[::1]:1")),
        ("HTTPS://A.Example:443", "https://a.example"),
        ("http://a.example:80", "http://a.example"),
        ("http://a.example:443", "http://a.example:443"),
        ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
    ):
        assert normalize_origin(text) == origin
    invalid = """* null a.example //a.example https:// https:a.example https://* https://*.example https://a/
        https://a.example/ https://a.example/x https://a.example?x https://a.example#x https://u@a.example
        https://a.example: https://a.example:0 https://a.example:08 https://a.example:65536 https://[x]
        https://a.example:x https://é.example https://a,b file:// file:///x 1https://a https://a\u212a.example"""
    for text in ("", " ", *invalid.split(), "https://a.example ", " https://a", "https://a\n", "https://a b"):
        error = catch_error(ConfigInvalid, normalize_origin, text)
        assert "use an origin such as https://" in str(error), text
