"""`muniment serve` as an operator meets it: what it says, why it refuses, how it ends."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import sqlite3
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

import muniment
from kit.cli.launched import SECONDS, has_open, launch, run
from kit.daemon.process import serving
from kit.daemon.world import locked
from muniment.cli import daemon as command
from muniment.daemon.service import LOCK_NAME

REACHED = "can be reached from other machines; say by which name: --allow-host NAME"
ANOTHER = "give another --socket"
SERVING = re.compile(rb"serving (http://127\.0\.0\.1:[0-9]+)\n")


@pytest.fixture
def start(tmp_path):
    """Starts a daemon that speaks to a person; its URL and its first lines."""
    running = []

    def start(*arguments, lines=3, **environment):
        process = launch(tmp_path, "serve", *arguments, **environment)
        running.append(process)
        said = [process.stdout.readline() for _ in range(lines)]
        found = SERVING.fullmatch(said[0])
        assert found, (said, process.stderr.read())
        return process, found[1].decode(), said

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=SECONDS)


def token_of(base):
    return (base / "home" / "state" / "token").read_text().strip()


def ask(url, base, path="/healthz", **more):
    headers = {"Authorization": f"Bearer {token_of(base)}"}
    with httpx2.Client(base_url=url, trust_env=False, timeout=SECONDS, headers=headers) as http:
        return http.get(path, **more)


# -- what it says ----------------------------------------------------------------------------------------


def test_it_says_where_it_serves_what_and_where_the_token_is(start, tmp_path):
    process, url, said = start("--socket", str(tmp_path / "d.sock"), lines=4)
    assert said[1].decode() == f"  socket {tmp_path}/d.sock\n"
    token_file = tmp_path / "home" / "state" / "token"
    assert said[2].decode().startswith(f"  the owner's token: {token_file}; ")
    assert said[3].decode() == f"  workspace {tmp_path}/work\n"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert ask(url, tmp_path).json() == {"status": "ok"}
    told = json.loads((tmp_path / "home" / "state" / "daemon.json").read_text())
    assert (told["url"], told["pid"]) == (url, process.pid)


@pytest.mark.slow
def test_a_socket_is_the_owners_alone_and_needs_no_token(tmp_path):
    with serving(tmp_path) as daemon:
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
        assert daemon.local.get("/healthz").status_code == 200
        daemon.stop()
        assert not daemon.socket.exists()


@pytest.mark.slow
def test_it_listens_on_the_loopback_of_ipv6_too(tmp_path):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    process = launch(tmp_path, "serve", "--host", "::1", "--json")
    try:
        document = json.loads(process.stdout.readline())
        assert document["url"].startswith("http://[::1]:")
        assert ask(document["url"], tmp_path).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


@pytest.mark.parametrize("name", ["memory.test", "memory.test:8443", "10.0.0.1", "[fe80::1]", "a_b-c"])
def test_what_a_host_header_says_may_be_a_name(name):
    assert command._name(name) == name


def test_it_serves_under_the_names_that_it_was_given_and_no_other(start, tmp_path):
    _, url, _ = start("--allow-host", "memory.test")
    assert ask(url, tmp_path, headers={"Host": "memory.test"}).status_code == 200
    assert ask(url, tmp_path, headers={"Host": "other.test"}).status_code == 421


@pytest.mark.slow
def test_a_broken_policy_is_said_and_served_without_tasks(start, tmp_path):
    policy = tmp_path / "broken.toml"
    policy.write_text("nonsense = 1\n")
    process, url, _ = start("--policy", str(policy))
    note = process.stderr.readline().decode()
    while not note.startswith("note: "):
        note = process.stderr.readline().decode()
    assert note.startswith(f"note: {tmp_path}/work takes no tasks yet: ")
    assert note.endswith(" [policy_invalid]\n")
    answer = ask(url, tmp_path, "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


@pytest.mark.slow
def test_while_it_serves_garbage_is_collected(start, tmp_path):
    told = tmp_path / "told"
    when_it_ends = (
        f"import atexit, gc; atexit.register(lambda: open({str(told)!r}, 'w').write(str(gc.isenabled())))"
    )
    (tmp_path / "sitecustomize.py").write_text(when_it_ends)
    path = f"{tmp_path}:{Path(muniment.__file__).parents[1]}"
    process, *_ = start(PYTHONPATH=path)
    process.terminate()
    process.wait(SECONDS)
    assert told.read_text() == "True"


# -- why it refuses --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_daemon_says_who_serves_and_where(start, tmp_path):
    process, url, _ = start()
    code, out, err = run(tmp_path, "serve")
    assert (code, out) == (1, "")
    assert err == (
        f"not served: {tmp_path}/home/state: another daemon serves it (process {process.pid} at {url}); "
        "use that one, or stop it first [managed_memory_unavailable]\n"
    )
    assert ask(url, tmp_path).status_code == 200
    code, out, _ = run(tmp_path, "serve", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (1, "managed_memory_unavailable")
    assert out.count("\n") == 1  # As what it says when it serves: who reads lines reads either.


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--host", "0.0.0.0"], f"0.0.0.0 {REACHED}"),
        (["--host", "::"], f":: {REACHED}"),
        (["--host", "x" * 70], f"{'x' * 70} {REACHED}"),
        (["--host", "x" * 70, "--allow-host", "x"], f"cannot listen on {'x' * 70}: this is no name of a"),
        (["--allow-host", "http://x.y/"], "--allow-host http://x.y/: this is no name of a machine, such as"),
        (["--allow-host", "ok", "--allow-host", ""], "--allow-host : this is no name of a machine"),
        (["--socket", "x" * 200], f"cannot listen at {'x' * 200}: AF_UNIX path too long; {ANOTHER}"),
        (["--socket", "no/where"], f"cannot listen at no/where: No such file or directory; {ANOTHER}"),
        (["--workspace", "nowhere"], "the workspace nowhere does not exist"),
        (["--workspace", ".", "--workspace", "."], "the workspace {base}/work is named twice"),
        (["--root", "user=nowhere", "--root", "user=x"], ""),
        (["--model", "m"], "the model 'm' needs a server"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(tmp_path, arguments, why):
    code, out, err = run(tmp_path, "serve", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"not served: {why.format(base=tmp_path)}"), err
    assert err.endswith(" [config_invalid]\n")
    assert err.count("\n") == 1
    assert not (tmp_path / "home" / "state" / "daemon.json").exists()


def test_a_port_that_is_taken_is_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run(tmp_path, "serve", "--port", str(port))
    assert (code, err) == (
        1,
        f"not served: cannot listen on 127.0.0.1 port {port}: Address already in use [config_invalid]\n",
    )


@pytest.mark.slow
def test_a_file_at_the_place_of_a_socket_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "plain"
    path.write_text("precious\n")
    code, _, err = run(tmp_path, "serve", "--socket", str(path))
    assert (code, path.read_text()) == (1, "precious\n")
    assert err.startswith(f"not served: cannot listen at {path}: ")


@pytest.mark.slow
def test_a_socket_that_a_daemon_answers_on_is_refused_and_left_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "one") as daemon:
        code, _, err = run(tmp_path / "two", "serve", "--socket", str(daemon.socket))
        assert code == 1
        assert err.startswith(f"not served: cannot listen at {daemon.socket}: Address already in use; ")
        assert daemon.local.get("/healthz").status_code == 200


@pytest.mark.slow
def test_a_socket_that_a_killed_daemon_left_is_replaced(tmp_path):
    with serving(tmp_path) as daemon:
        daemon.kill()
        assert daemon.socket.exists()
        daemon.start()
        assert daemon.local.get("/healthz").status_code == 200


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_text("") or path.chmod(0o600), "holds no token; delete it"),
        (lambda path: path.write_text("x" * 43) and path.chmod(0o644), "is no file of yours alone (0600)"),
        (lambda path: path.mkdir(), "is no file of yours alone (0600)"),
        (lambda path: path.symlink_to("/etc/hostname"), "cannot be read"),
    ],
    ids=["empty", "readable by others", "a directory", "a link"],
)
def test_a_token_file_that_cannot_be_relied_on_is_refused(tmp_path, spoil, why):
    (tmp_path / "home" / "state").mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    path = tmp_path / "home" / "state" / "token"
    spoil(path)
    code, out, err = run(tmp_path, "serve")
    assert (code, out) == (1, "")
    assert err.startswith(f"not served: {path}: {why}")
    assert err.endswith(" [managed_memory_unavailable]\n")


def test_a_port_that_is_none_is_a_command_line_that_cannot_be_parsed(tmp_path):
    assert run(tmp_path, "serve", "--port", "70000")[0] == 2


# -- how it ends -----------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_with_nothing_left_behind(start, tmp_path, number):
    path = tmp_path / "d.sock"
    process, _, _ = start("--socket", str(path), lines=4)
    began = time.monotonic()
    process.send_signal(number)
    process.send_signal(number)
    assert process.wait(SECONDS) == 0
    assert time.monotonic() - began < 5
    assert not path.exists()
    assert not (tmp_path / "home" / "state" / "daemon.json").exists()
    events = [json.loads(line)["event"] for line in process.stderr.read().splitlines()]
    assert events == ["daemon_started", "daemon_stopping", "daemon_stopped"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits_for_another_process(tmp_path, number):
    state = tmp_path / "home" / "state"
    state.mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    with locked(state):
        process = launch(tmp_path, "serve")
        while not has_open(process.pid, state / LOCK_NAME):
            assert process.poll() is None, process.stderr.read()
        process.send_signal(number)
        assert process.wait(15) == -number
        assert process.communicate() == (b"", b"")


def test_the_key_of_a_models_server_is_not_handed_on(monkeypatch, tmp_path):
    """To the processes that are started from then on; see `cli.model.forget_key`."""
    seen = []
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MUNIMENT_API_KEY", "a-key")

    async def look(*_, **__):
        seen.append("MUNIMENT_API_KEY" in command.os.environ)

    monkeypatch.setattr(command, "_run", look)
    monkeypatch.setattr(command.service, "configure_logs", lambda: None)
    umask = command.os.umask(0o077)
    flags = {"model": "m", "base_url": "http://127.0.0.1:1/v1", "api_key_file": None, "protocol": None}
    asked = command.ServeArguments(
        [tmp_path], "127.0.0.1", 0, None, [], None, [], None, flags, 1.0, json=True
    )
    assert command.serve(asked) == 0
    command.os.umask(umask)
    assert seen == [False]


def test_what_holds_a_stop_up_is_left_with_an_event(monkeypatch, caplog):
    left = []
    monkeypatch.setattr(command.os, "_exit", left.append)
    with caplog.at_level(logging.INFO, "muniment"):
        command._leave()
    assert left == [1]
    assert [json.loads(record.getMessage())["event"] for record in caplog.records] == ["daemon_forced"]


@pytest.mark.slow
def test_a_ledger_that_somebody_keeps_does_not_keep_the_daemon(tmp_path):
    with (
        serving(tmp_path, "--grace", "0") as daemon,
        closing(sqlite3.connect(daemon.home / "state" / "ledger.db", isolation_level=None)) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        other.execute("BEGIN IMMEDIATE")
        asked = threads.submit(daemon.local.post, "/workspace/memory/dream", json={})
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(command.LAST_SECONDS + 10) == 1
        assert asked.exception(SECONDS) or asked.result().status_code == 503
