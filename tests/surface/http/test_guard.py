"""What every request passes before any route sees it, attacked over sockets: G1 to G6, one by one."""

from __future__ import annotations

import pytest

from kit.daemon.raw import running
from muniment.daemon.guard import HEADERS

MISDIRECTED = (421, "misdirected_request")
FOREIGN = (403, "foreign_origin")
NOWHERE = (404, "not_found")
NO_HTTP = (400, "invalid_http")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("guard"), allow_hosts=("memory.example",)) as made:
        made.client = made.add("editor", "editor-1")
        yield made


@pytest.fixture(autouse=True)
def well(daemon):
    yield
    daemon.check()


def head(daemon, *lines, method="GET", target="/healthz", version="1.1"):
    """A request of these header lines alone, with the owner's token."""
    first = f"{method} {target} HTTP/{version}"
    return "\r\n".join([first, *lines, f"Authorization: Bearer {daemon.token}", "", ""]).encode("latin-1")


# -- G1: Host ------------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="one_host")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "localhost.:{port}",
        "localhost",
        "127.0.0.1:1",
        "127.1:{port}",
        "2130706433:{port}",
        "0.0.0.0:{port}",
        "user@127.0.0.1:{port}",
        "127.0.0.1:{port},evil.example",
        "127.0.0.1:{port}/",
        "[::ffff:127.0.0.1]:{port}",
    ],
)
def test_a_page_whose_name_was_rebound_to_this_address_is_told_nothing(daemon, host):
    assert daemon.ask("GET", "/healthz", host=host.format(port=daemon.port)).code == MISDIRECTED


def test_a_request_without_a_host_is_refused(daemon):
    assert daemon.raw(head(daemon)).code == NO_HTTP
    assert daemon.raw(head(daemon, version="1.0")).code == MISDIRECTED
    assert daemon.raw(head(daemon, "Host:")).code == MISDIRECTED


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_two_hosts_are_refused_also_where_both_are_ours(daemon, version):
    ours = f"Host: {daemon.host}"
    for other in (ours, "Host: evil.example"):
        for lines in ((ours, other), (other, ours)):
            assert daemon.raw(head(daemon, *lines, version=version)).code in {MISDIRECTED, NO_HTTP}


@pytest.mark.parametrize(
    "target",
    ["http://{host}/healthz", "http://evil.example/healthz", "https://{host}/healthz", "file:///healthz"],
)
def test_a_target_that_names_a_host_itself_leads_nowhere(daemon, target):
    target = target.format(host=daemon.host)
    for host in (daemon.host, "evil.example"):
        found = daemon.ask("GET", target, host=host).code
        assert found == (NOWHERE if host == daemon.host else MISDIRECTED)


@pytest.mark.parametrize(
    "target", ["healthz", "x/healthz", "http:/healthz", "*/healthz", "@/healthz", "*", "?/"]
)
def test_a_target_that_is_no_path_leads_nowhere(daemon, target):
    assert daemon.ask("GET", target).code == NOWHERE


def test_the_unix_socket_takes_any_one_name_and_no_second(daemon):
    assert daemon.ask("GET", "/healthz", address=daemon.unix, host="anything", token="").status == 200
    two = daemon.request("GET", "/healthz", "Host: a", token="", host="b")
    assert daemon.raw(two, daemon.unix).code == NO_HTTP
    none = head(daemon, version="1.0")
    assert daemon.raw(none, daemon.unix).code == MISDIRECTED


# -- G2: Origin ----------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-01", control="own_origin")
@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "NULL",
        "http://evil.example",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "http://127.0.0.1:{port}.evil.example",
        "http://evil.example:{port}",
        "http://127.0.0.1:{port}/",
        "http://127.0.0.1:{port} http://evil.example",
        "file://",
        "chrome-extension://abcdef",
        "",
    ],
)
@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_a_page_of_another_origin_is_refused_even_with_the_token(daemon, origin, where):
    header = f"Origin: {origin.format(port=daemon.port)}"
    assert daemon.ask("GET", "/healthz", header, address=getattr(daemon, where)).code == FOREIGN


def test_our_own_origin_is_let_through_but_not_twice(daemon):
    ours = f"Origin: http://{daemon.host}"
    assert daemon.ask("GET", "/healthz", ours).status == 200
    assert daemon.ask("GET", "/healthz", f"Origin: http://LOCALHOST:{daemon.port}").status == 200
    assert daemon.ask("GET", "/healthz", ours, ours).code == FOREIGN
    assert daemon.ask("GET", "/healthz", ours, "Origin: http://evil.example").code == FOREIGN


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        ("cross-site", FOREIGN),
        ("same-site", FOREIGN),
        ("Cross-Site", FOREIGN),
        ("anything-new", FOREIGN),
        ("same-origin", 200),
        ("none", 200),
    ],
)
def test_what_a_browser_says_about_the_site_counts(daemon, site, expected):
    assert daemon.ask("GET", "/healthz", f"Sec-Fetch-Site: {site}").code == expected


def test_one_bad_site_among_two_is_enough(daemon):
    sites = ("Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site")
    assert daemon.ask("GET", "/healthz", *sites).code == FOREIGN


def test_a_preflight_is_granted_nothing(daemon):
    asked = (
        "Origin: http://evil.example",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization",
    )
    answer = daemon.ask("OPTIONS", "/workspace/memory/remember", *asked, token="")
    assert answer.code == FOREIGN
    assert not [name for name, _ in answer.headers if name.startswith("access-control")]
    own = daemon.ask("OPTIONS", "/workspace/memory/remember")
    assert own.code == (405, "method_not_allowed")
    assert own.values("allow") == ["POST"]


@pytest.mark.threat("T-API-01", control="json_alone")
@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "application/json-seq",
        "application/jsonx",
        "",
    ],
)
def test_a_form_is_refused_whatever_it_holds(daemon, media_type):
    body = b'{"content": "The user prefers light mode"}'
    answer = daemon.post("remember", body, f"Content-Type: {media_type}")
    assert answer.code == (415, "unsupported_media_type")
    assert daemon.ask("GET", "/workspace/memory/tasks").json["tasks"] == []


# -- G3: paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "//healthz",
        "/./healthz",
        "/../healthz",
        "/x/../healthz",
        "/healthz/",
        "/healthz/.",
        "/healthz//",
        "/%2fhealthz",
        "/%2Fhealthz",
        "/%2e/healthz",
        "/health%7a",
        "/healthz%00",
        "/healthz;",
        "/healthz;x=1",
        "/healthz%20",
        "/healthz%0d%0aX:%20y",
        "/healthz%c0%af",
        "/%c0%ae%c0%ae/healthz",
        "/%u002fhealthz",
        "/healthz%",
        "/healthz%2",
        "/HEALTHZ",
        "/healthz#x",
        "\\healthz",
        "/\\healthz",
        "/workspace\\memory\\tasks",
        "/workspace/memory//tasks",
        "/workspace//memory/tasks",
        "/workspace/./memory/tasks",
        "/workspace/x/../memory/tasks",
        "/workspace/memory/tasks/",
        "/workspace%2fmemory%2ftasks",
        "/workspace/memory/%74asks",
        "/workspaces/x/memory",
        "/workspaces/x/memory/../../../healthz",
        "/workspaces/x/healthz",
        "/workspaces/x/y/memory/tasks",
        "/workspaces/%ff/memory/tasks",
        "/workspaces/%c0%ae/memory/tasks",
        "/session/a/b/events",
        "/session/a/events/",
        "/session//events",
        "/session/../events",
        "/session/a/tasks",
        "/",
        "/.",
        "/etc/passwd",
    ],
)
def test_no_other_spelling_of_a_path_leads_anywhere(daemon, path):
    target = daemon.request("GET", "@").replace(b"@", path.encode(), 1)
    assert daemon.raw(target).code == NOWHERE


@pytest.mark.parametrize(
    "name",
    ["", "%2e", "..", "%2e%2e", "other", "%2fetc", "%00", "%2f", "a;b", "memory", "%25", "%F0%9F%94%92"],
)
def test_a_workspace_that_nobody_named_is_refused(daemon, name):
    answer = daemon.ask("GET", f"/workspaces/{name}/memory/tasks")
    assert answer.code == (403, "untrusted_workspace")


def test_the_long_paths_lead_where_the_short_ones_do(daemon):
    (workspace,) = daemon.daemon.core.workspaces.values()
    quoted = str(workspace.path).replace("/", "%2f")
    for name in (workspace.key, quoted):
        assert daemon.ask("GET", f"/workspaces/{name}/memory/tasks").status == 200
    with daemon.line() as line:
        line.send(daemon.request("GET", "/session/any%2fthing/events"))
        answer = line.answer()
    assert answer.status == 200
    assert answer.values("content-type") == ["text/event-stream; charset=utf-8"]


# -- G5 and G6: how many, and what every answer has -----------------------------------------------------


def test_one_request_too_many_is_told_to_come_again(daemon, monkeypatch):
    monkeypatch.setattr(daemon.guard.answering, "cap", 0)
    answer = daemon.ask("GET", "/healthz")
    assert answer.code == (503, "busy")
    assert answer.values("retry-after") == ["1"]
    monkeypatch.undo()


def test_who_waits_or_follows_is_not_counted_among_those_that_are_answered(daemon, monkeypatch):
    monkeypatch.setattr(daemon.guard.answering, "cap", 1)
    with daemon.line() as follower, daemon.line() as second:
        for line in (follower, second):
            line.send(daemon.request("GET", "/workspace/memory/events"))
            assert line.answer().status == 200
        assert daemon.ask("GET", "/healthz").status == 200


def test_every_answer_has_the_headers_that_keep_a_browser_from_using_it(daemon):
    answers = [
        daemon.ask("GET", "/healthz"),
        daemon.ask("GET", "/openapi.json"),
        daemon.ask("GET", "/metrics"),
        daemon.ask("GET", "/nothing"),
        daemon.ask("PUT", "/healthz"),
        daemon.ask("GET", "/healthz", token=""),
        daemon.ask("GET", "/healthz", host="evil.example"),
        daemon.ask("GET", "/healthz", "Origin: null"),
        daemon.post("remember", {"content": ""}),
        daemon.post("remember", b"x" * (600 * 1024)),
        daemon.raw(b"no http\r\n\r\n"),
    ]
    with daemon.line() as line:
        line.send(daemon.request("GET", "/workspace/memory/events"))
        answers.append(line.answer())
    assert [each.status for each in answers] == [200, 200, 200, 404, 405, 401, 421, 403, 400, 413, 400, 200]
    for answer in answers:
        for name, value in HEADERS:
            assert answer.values(name.decode()) == [value.decode()]
        assert not answer.values("server")
        assert not [name for name, _ in answer.headers if name.startswith("access-control")]


def test_a_route_that_breaks_says_so_without_what_was_raised(daemon, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("canary-7f3a")

    monkeypatch.setattr(type(daemon.daemon.core), "tasks", broken)
    before = len(daemon.records)
    answer = daemon.ask("GET", "/workspace/memory/tasks")
    assert answer.code == (500, "internal_error")
    told = [record.getMessage() for record in daemon.records[before:]]
    del daemon.records[before:]
    assert len(told) == 1
    assert '"problem": "RuntimeError"' in told[0]
    assert "canary" not in told[0] + answer.body.decode()


def test_a_route_that_breaks_in_the_middle_of_its_answer_ends_it_there(daemon, monkeypatch):
    """The length is not known yet: the client sees that the last chunk is missing."""

    async def broken(*_):
        yield b"id: 1\n"
        raise RuntimeError("canary-7f3a")

    monkeypatch.setattr(type(daemon.daemon.core.stream), "follow", broken)
    before = len(daemon.records)
    with daemon.line() as line:
        line.send(daemon.request("GET", "/workspace/memory/events"))
        assert line.answer().status == 200
        assert [line.line() for _ in range(3)] == [b"6\r\n", b"id: 1\n", b"\r\n"]
        assert line.is_closed()
    daemon.until(lambda: len(daemon.records) >= before + 2)
    told = [record.getMessage() for record in daemon.records[before:]]
    del daemon.records[before:]
    assert "canary" not in "".join(told)
    assert '"event": "request_broke"' in told[0]
