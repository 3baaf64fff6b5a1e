"""`muniment serve` for an operator: output, rejections, shutdown; and its tokens."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock, Mock

import httpx2
import pytest

import muniment as package
from kit.cli.commands import read_logging
from kit.cli.process import SECONDS, launch
from kit.server.process import start_daemon_process
from kit.server.raw import start_local_daemon
from muniment.cli import daemon as command

NEEDS_HOST_NAME = "is not a loopback address; set the allowed Host names: --allow-host NAME"
OTHER_SOCKET = "use another --socket"
SERVING = re.compile(rb"serving (http://(127\.0\.0\.1|\[::1\]):[0-9]+)\n")


@pytest.fixture
def start(tmp_path):
    """Start daemons with output for a person; return the process, the URL and the other output."""
    running = []

    def start(*arguments, **environment):
        process = launch(tmp_path, "serve", *arguments, **environment)
        running.append(process)
        lines = [process.stdout.readline() for _ in range(4)]
        found = SERVING.fullmatch(lines[0])
        assert found, (lines, process.stderr.read())
        return process, found[1].decode(), b"".join(lines[1:]).decode()

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=SECONDS)


def get_path(url, base, path="/healthz", **more):
    token = (base / "home" / "state" / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", **more}
    with httpx2.Client(base_url=url, trust_env=False, timeout=SECONDS, headers=headers) as http:
        return http.get(path)


# -- output --------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_addresses_and_cleans_up_on_signal(start, tmp_path, number):
    path, state = tmp_path / "d.sock", tmp_path / "home" / "state"
    names = ("memory.test", "memory.test:8443", "10.0.0.1", "[fe80::1]", "a_b-c")
    flags = (f"--allow-host={name}" for name in names)
    process, url, output = start("--socket", str(path), *flags, "--allow-origin=https://Memory.Test:443")
    token = f"  the owner's token: {state}/token; token for a client: muniment token add NAME"
    assert output == f"  socket {path}\n{token}\n  workspace {tmp_path}/work\n"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (state / "token", path)] == [0o600, 0o600]
    flags = (get_path(url, tmp_path, Host=host).status_code for host in ("memory.test", "other.test"))
    assert (get_path(url, tmp_path).json(), *flags) == ({"status": "ok"}, 200, 421)
    origins = "https://memory.test", "https://other.test"
    assert [get_path(url, tmp_path, "/health", Origin=each).status_code for each in origins] == [200, 403]
    with httpx2.Client(base_url="http://d", transport=httpx2.HTTPTransport(uds=str(path))) as local:
        assert local.get("/healthz").status_code == 200
    address = json.loads((state / "daemon.json").read_text())
    assert (address["url"], address["pid"]) == (url, process.pid)
    process.send_signal(number)
    process.send_signal(number)
    assert process.wait(SECONDS) == 0
    assert [each.exists() for each in (path, state / "daemon.json")] == [False, False]
    events = re.findall(r'"event": ?"(daemon_\w+)"', process.stderr.read().decode())
    assert events == ["daemon_started", "daemon_stopping", "daemon_stopped"]


@pytest.mark.slow
def test_serve_listens_on_ipv6_loopback(start, tmp_path):
    if f"{1:032}" not in Path("/proc/net/if_inet6").read_text():
        pytest.skip("this machine has no ::1")
    assert get_path(start("--host", "::1")[1], tmp_path).status_code == 200


@pytest.mark.slow
def test_serve_with_broken_policy_is_not_ready(start, tmp_path):
    (tmp_path / "broken.toml").write_text("nonsense = 1\n")
    process, url, _ = start("--policy", f"{tmp_path}/broken.toml")
    note = next(line for line in iter(process.stderr.readline, b"") if line.startswith(b"note: ")).decode()
    assert re.fullmatch(rf"note: {tmp_path}/work accepts no tasks yet: .* \[policy_invalid\]\n", note)
    answer = get_path(url, tmp_path, "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


@pytest.mark.slow
def test_serve_enables_garbage_collection(start, tmp_path):
    result_file = tmp_path / "told"
    exit_code = f"atexit.register(lambda: open({str(result_file)!r}, 'w').write(str(gc.isenabled())))"
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, gc; {exit_code}")
    process, *_ = start(PYTHONPATH=f"{tmp_path}:{Path(package.__file__).parents[1]}")
    process.terminate()
    process.wait(SECONDS)
    assert result_file.read_text() == "True"


# -- rejections ----------------------------------------------------------------------------------------


def test_serve_rejects_invalid_options_with_reason(cli, work_directory, home, tmp_path):
    plain, long = tmp_path / "plain", "x" * 200
    plain.write_text("precious\n")
    with socket.create_server(("127.0.0.1", 0)) as occupied, start_local_daemon(tmp_path / "other") as other:
        port = occupied.getsockname()[1]
        for arguments, reason in (
            *((f"--host {host}", f"{host} {NEEDS_HOST_NAME}") for host in ("0.0.0.0", "::", "x" * 70)),
            (f"--host {'x' * 70} --allow-host x", f"cannot listen on {'x' * 70}: invalid host name"),
            (
                "--allow-host http://x.y/",
                "invalid --allow-host 'http://x.y/': use a host name such as",
            ),
            ("--allow-host ok --allow-host ", "invalid --allow-host '': use a host name"),
            ("--allow-origin null", "invalid --allow-origin 'null': use an origin such as https://"),
            ("--allow-origin https://a.b/", "invalid --allow-origin 'https://a.b/': use an origin such as"),
            (f"--socket {long}", f"cannot listen at {long}: AF_UNIX path too long; {OTHER_SOCKET}"),
            ("--socket no/where", f"cannot listen at no/where: No such file or directory; {OTHER_SOCKET}"),
            (f"--socket {plain}", f"cannot listen at {plain}: "),
            (f"--socket {other.unix}", f"cannot listen at {other.unix}: Address already in use; "),
            ("--workspace nowhere", "workspace nowhere not found"),
            ("--workspace . --workspace .", f"duplicate workspace {work_directory}: list it once"),
            *(("--root user=nowhere --root user=x", ""), ("--model m", "the model 'm' needs a server")),
            (f"--port {port}", f"cannot listen on 127.0.0.1 port {port}: Address already in use [config"),
        ):
            done = cli("serve", *arguments.split(" "))
            assert (done.exit_code, done.stdout) == (1, ""), arguments
            (message,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
            assert (message.startswith(f"not served: {reason}"), message.endswith(" [config_invalid]")) == (
                True,
                True,
            )
        assert other.send_request("GET", "/healthz", address=other.unix).status == 200
        other_home = str(other.base / "home")
        other_daemon = f"in use by another daemon (process {os.getpid()} at {other.daemon.url}); use that one"
        message = (
            f"not served: {other_home}/state: {other_daemon}, or stop it first [managed_memory_unavailable]"
        )
        assert cli.run_for_lines("serve", code=1, MUNIMENT_HOME=other_home)[-1] == message
        failure = json.loads(cli.run_for_lines("serve", "--json", code=1, MUNIMENT_HOME=other_home)[0])[
            "error"
        ]
        assert failure["code"] == "managed_memory_unavailable"
    assert plain.read_text() == "precious\n"
    assert not (home / "state" / "daemon.json").exists()


def test_commands_restore_umask_and_log_of_process(cli):
    def read_process():
        names = ("", "muniment", "psycopg.pool")
        return umask(), [read_logging(logging.getLogger(name or None)) for name in names]

    before = read_process()
    assert cli("serve", "--workspace", "nowhere").exit_code == 1
    assert cli("ls").exit_code == 0
    assert read_process() == before


def umask():
    """Return the umask of this process."""
    found = os.umask(0o077)
    os.umask(found)
    return found


@pytest.mark.usefixtures("work_directory")
def test_serve_rejects_unsafe_token_file(cli, home):
    for directory in (home, home / "state"):
        directory.mkdir(mode=0o700)
    path, not_private = home / "state" / "token", "is not a private file of this user (mode 0600)"
    other = home.parent / "another's token"
    other.write_text("x" * 43)
    other.chmod(0o600)
    for make, undo, reason in (
        (lambda: path.write_text("") or path.chmod(0o600), path.unlink, "does not contain a token; "),
        (lambda: path.write_text("x" * 43) and path.chmod(0o644), path.unlink, not_private),
        *((path.mkdir, path.rmdir, not_private), (lambda: path.symlink_to(other), path.unlink, "cannot")),
    ):
        make()
        message = cli.run_for_lines("serve", code=1)[-1]
        assert re.fullmatch(
            rf"not served: {path}: {re.escape(reason)}.* \[managed_memory_unavailable\]", message
        )
        undo()


@pytest.mark.usefixtures("work_directory")
def test_serve_removes_model_key_from_environment(cli, monkeypatch):
    """Check processes that are started later; see `cli.command.open_model_and_drop_key`."""
    has_key, record_environment = [], lambda *_, **__: has_key.append("MUNIMENT_API_KEY" in os.environ)
    monkeypatch.setattr(command, "_run", AsyncMock(side_effect=record_environment))
    named = ("--model", "m", "--base-url", "http://127.0.0.1:1/v1")
    assert (cli("serve", *named, MUNIMENT_API_KEY="a-key").exit_code, has_key) == (0, [False])


# -- shutdown ------------------------------------------------------------------------------------------


def test_second_signal_ends_the_grace_period():
    async def raise_signals():
        while stopping.stop.call_count < 2:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)

    stopping = MagicMock(url="", core=Mock(workspaces={}), stop=AsyncMock(), wait_stopped=raise_signals)
    stopping.__aenter__.return_value, stopping.__aexit__.return_value = stopping, None
    options = Mock(grace=600, socket=None, settings=Mock(state=Path()))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    asyncio.run(command._run(stopping, options, lambda _: None))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert [each.kwargs["at_once"] for each in stopping.stop.call_args_list[:2]] == [False, True]


def test_blocked_stop_exits_with_event(monkeypatch, caplog):
    exit_codes = []
    monkeypatch.setattr(os, "_exit", exit_codes.append)
    with caplog.at_level(logging.INFO, "muniment"):
        command._force_exit()
    assert (exit_codes, json.loads(caplog.messages[-1])["event"]) == ([1], "daemon_forced")


@pytest.mark.slow
def test_serve_stops_although_ledger_is_locked(tmp_path):
    with (
        start_daemon_process(tmp_path, "--grace", "0") as daemon,
        closing(sqlite3.connect(daemon.home / "state" / "ledger.db", isolation_level=None)) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        other.execute("BEGIN IMMEDIATE")
        request = threads.submit(daemon.local.post, "/workspace/memory/dream", json={})
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(command.FORCE_EXIT_SECONDS + 10) == 1
        assert request.exception(SECONDS) or request.result().status_code == 503


# -- tokens --------------------------------------------------------------------------------------------

TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def test_token_is_created_listed_and_revoked(cli):
    (created,) = cli.run_for_lines("token", "add", "editor", "--client-id", "ide-2", "--client-id", "ide-1")
    assert TOKEN.fullmatch(created)
    cli("token", "add", "script", "--trust", "owner")
    listed = ["editor: trust agent, client ids ide-1, ide-2", "script: trust owner, client ids none"]
    assert cli.run_for_lines("token", "list") == listed
    for name in ("editor", "script"):
        assert cli.run_for_lines("token", "revoke", name) == [f"revoked: {name}"]
    message = "no tokens except the owner's; to create one: muniment token add NAME"
    assert cli.run_for_lines("token", "list") == [message]
    created = cli.run_for_document("token", "add", "editor", "--client-id", "ide", "--trust", "external")
    assert TOKEN.fullmatch(created.pop("token"))
    assert created == {"name": "editor", "clients": ["ide"], "trust": "external"}
    assert cli.run_for_document("token", "list") == {"tokens": [created]}
    assert cli.run_for_document("token", "revoke", "editor")["status"] == "revoked"
    assert cli.run_for_error_code("token", "revoke", "editor") == "not_found"


def test_invalid_token_is_rejected_with_advice(cli):
    cli("token", "add", "editor", "--client-id", "ide")
    names = (("owner", "'owner'"), ("", "''"), ("a\nb", "'a\\nb'"))
    for name, flags, reason in (
        ("editor", [], "the token 'editor' already exists; revoke it first, or use another name"),
        ("other", ["--client-id=ide"], "the client id 'ide' belongs to the token 'editor'"),
        *((name, [], f"invalid token name {quoted}") for name, quoted in names),
        ("other", ["--client-id=a b"], "invalid client id 'a b'"),
        ("other", ["--trust=boss"], "unknown trust 'boss'; use one of owner, workspace, agent, external"),
    ):
        (message,) = cli.run_for_lines("token", "add", name, *flags, code=1)
        assert re.fullmatch(rf"no token was created: {re.escape(reason)}.* \[config_invalid\]", message)
    assert len(cli.run_for_document("token", "list")["tokens"]) == 1
