"""Who calls: tokens that are none, and whom the Unix socket serves; G4 of the guard, over sockets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kit.daemon.raw import running
from muniment.daemon import guard

NOBODY = (401, "token_required")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("guard"), allow_hosts=("memory.example",)) as made:
        made.client = made.add("editor", "editor-1")
        yield made


@pytest.fixture(autouse=True)
def well(daemon):
    yield
    daemon.check()


# -- G4: tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic {token}",
        "Token {token}",
        "{token}",
        "Bearer: {token}",
        "Bearer {token} {token}",
        "Bearer {token},",
        "Bearer {token}=",
        "Bearer {token}\xa0",
        "Bearer \x85{token}",
        "Bearer\xa0{token}",
        'Bearer "{token}"',
        "Bearer {short}",
        "Bearer {upper}",
        "Bearer " + "A" * 43,
        "Bearer " + "A" * 20_000,
        "Bearer \xc3\xa9" + "A" * 40,
    ],
)
@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_a_token_that_is_not_exactly_one_of_ours_is_nobodys(daemon, value, where):
    token = daemon.token
    sent = value.format(token=token, short=token[:-1], upper=token.swapcase())
    answer = daemon.ask("GET", "/healthz", f"Authorization: {sent}", token="", address=getattr(daemon, where))
    assert answer.code == NOBODY
    assert answer.values("www-authenticate") == ["Bearer"]
    assert answer.values("connection") == ["close"]


@pytest.mark.threat("T-API-01", control="bearer_tokens")
def test_without_a_token_nothing_is_told_over_tcp_not_even_health(daemon):
    for path in (
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/capabilities",
        "/metrics",
        "/workspace/memory/tasks",
    ):
        assert daemon.ask("GET", path, token="").code == NOBODY
        assert daemon.ask("POST", path, body={}, token="").code == NOBODY


@pytest.mark.parametrize("path", ["/nothing", "/workspace/memory/tasks", "/workspaces/x/memory/tasks"])
def test_who_has_no_token_cannot_tell_what_is_there(daemon, path):
    assert daemon.ask("PUT", path, token="").code == NOBODY


def test_two_tokens_are_none(daemon):
    second = f"Authorization: Bearer {daemon.token}"
    assert daemon.ask("GET", "/healthz", second).code == NOBODY
    assert daemon.ask("GET", "/healthz", second, token=daemon.client).code == NOBODY


def test_a_token_of_another_daemon_is_nobodys_here(daemon, tmp_path):
    with running(tmp_path) as other:
        theirs = other.add("editor", "editor-1")
        assert other.ask("GET", "/healthz", token=theirs).status == 200
        for token in (other.token, theirs):
            assert daemon.ask("GET", "/healthz", token=token).code == NOBODY


def test_a_revoked_token_is_nobodys_from_the_next_request_on_a_line_that_is_open(daemon):
    token = daemon.add("passing", "passing-1")
    with daemon.line() as line:
        line.send(daemon.request("GET", "/healthz", token=token))
        assert line.answer().status == 200
        daemon.daemon.core.tokens.revoke("passing")
        line.send(daemon.request("GET", "/healthz", token=token))
        assert line.answer().code == NOBODY
        assert line.is_closed()


def test_a_client_may_not_what_the_owner_alone_may(daemon):
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/workspace/memory/review"),
        ("POST", "/workspace/memory/undo"),
        ("POST", "/workspace/memory/erase"),
        ("GET", "/workspace/memory/audit/head"),
        ("GET", "/workspace/memory/policy/explain?verb=read&path=user/a.md"),
    ):
        body = {} if method == "POST" else None
        assert daemon.ask(method, path, token=daemon.client, body=body).code == (403, "owner_required")


def test_a_client_id_is_one_of_the_tokens_or_the_request_is_refused(daemon):
    daemon.add("other", "other-1")
    refused = (400, "invalid_client_id")
    ask = "GET", "/workspace/memory/tasks"
    for name in ("X-Qwen-Client-Id", "X-Muniment-Client-Id"):
        assert daemon.ask(*ask, f"{name}: editor-1", token=daemon.client).status == 200
        assert daemon.ask(*ask, f"{name}: other-1").status == 200
        for bad in ("other-1", "", "EDITOR-1", "editor-1,other-1", "owner", "editor-1\xa0"):
            assert daemon.ask(*ask, f"{name}: {bad}", token=daemon.client).code == refused
        assert daemon.ask(*ask, f"{name}: nobody-1").code == refused
    both = ("X-Qwen-Client-Id: editor-1", "X-Muniment-Client-Id: other-1")
    assert daemon.ask(*ask, *both).code == refused


def test_the_unix_socket_serves_its_own_user_as_the_owner(daemon):
    assert (daemon.base / "d.sock").stat().st_mode & 0o777 == 0o600
    assert daemon.ask("GET", "/metrics", address=daemon.unix, token="").status == 200
    as_client = daemon.ask("GET", "/metrics", address=daemon.unix, token=daemon.client)
    assert as_client.code == (403, "owner_required")


STRANGER = """
import os, socket, sys
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
line = socket.socket(socket.AF_UNIX)
line.connect("d.sock")
line.sendall(sys.stdin.buffer.read())
sys.stdout.buffer.write(line.makefile("rb").readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize(("token", "status"), [("", b"401"), ("theirs", b"200")])
def test_another_user_who_came_to_the_unix_socket_is_nobody_without_a_token(daemon, token, status):
    sent = daemon.request("GET", "/healthz", token=daemon.client if token else "")
    modes = {daemon.base: 0o711, daemon.base / "d.sock": 0o666}
    kept = {path: path.stat().st_mode for path in modes}
    for path, mode in modes.items():
        path.chmod(mode)
    try:
        done = subprocess.run(
            [sys.executable, "-IS", "-c", STRANGER],
            cwd=daemon.base,
            input=sent,
            capture_output=True,
            check=False,
            timeout=50,
        )
    finally:
        for path, mode in kept.items():
            path.chmod(mode)
    assert done.stdout.split(b" ")[1:2] == [status], done.stderr


def test_a_process_of_the_overflow_user_knows_nobody_by_the_socket(monkeypatch, tmp_path):
    """Every user that a namespace does not map looks like that one."""
    overflow = int(guard._OVERFLOW.read_text())
    monkeypatch.setattr(os, "geteuid", lambda: overflow)
    assert guard._this_user() is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert guard._this_user() == 1000
    for content in ("", "x", None):
        unusual = tmp_path / "overflowuid"
        unusual.unlink(missing_ok=True)
        if content is not None:
            unusual.write_text(content)
        monkeypatch.setattr(guard, "_OVERFLOW", unusual)
        assert guard._this_user() == 1000
        monkeypatch.setattr(os, "geteuid", lambda: 65_534)
        assert guard._this_user() is None
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
