"""`muniment serve` as an operator meets it: what it says, why it refuses, how it ends; and its tokens."""

from __future__ import annotations

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
from types import SimpleNamespace

import httpx2
import pytest

import muniment as package
from kit.cli.launched import SECONDS, has_open, launch, reached
from kit.daemon.process import serving
from kit.daemon.raw import running
from kit.daemon.world import locked
from muniment.cli import daemon as command
from muniment.daemon.service import LOCK_NAME

REACHED = "can be reached from other machines; say by which name: --allow-host NAME"
ANOTHER = "give another --socket"
SERVING = re.compile(rb"serving (http://(127\.0\.0\.1|\[::1\]):[0-9]+)\n")


@pytest.fixture
def start(tmp_path):
    """Starts a daemon that speaks to a person; it, its URL and what it said besides."""
    running = []

    def start(*arguments, **environment):
        process = launch(tmp_path, "serve", *arguments, **environment)
        running.append(process)
        said = [process.stdout.readline() for _ in range(4)]
        found = SERVING.fullmatch(said[0])
        assert found, (said, process.stderr.read())
        return process, found[1].decode(), b"".join(said[1:]).decode()

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=SECONDS)


def ask(url, base, path="/healthz", **more):
    token = (base / "home" / "state" / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", **more}
    with httpx2.Client(base_url=url, trust_env=False, timeout=SECONDS, headers=headers) as http:
        return http.get(path)


# -- what it says ----------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_and_what_it_serves_and_a_signal_ends_it_with_nothing_left_behind(
    start, tmp_path, number
):
    path, state = tmp_path / "d.sock", tmp_path / "home" / "state"
    names = ("memory.test", "memory.test:8443", "10.0.0.1", "[fe80::1]", "a_b-c")
    process, url, said = start("--socket", str(path), *(f"--allow-host={name}" for name in names))
    token = f"  the owner's token: {state}/token; one for a client: muniment token add NAME"
    assert said == f"  socket {path}\n{token}\n  workspace {tmp_path}/work\n"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (state / "token", path)] == [0o600, 0o600]
    assert ask(url, tmp_path).json() == {"status": "ok"}
    assert ask(url, tmp_path, Host="memory.test").status_code == 200
    assert ask(url, tmp_path, Host="other.test").status_code == 421
    with httpx2.Client(base_url="http://d", transport=httpx2.HTTPTransport(uds=str(path))) as local:
        assert local.get("/healthz").status_code == 200
    told = json.loads((state / "daemon.json").read_text())
    assert (told["url"], told["pid"]) == (url, process.pid)
    process.send_signal(number)
    process.send_signal(number)
    assert process.wait(SECONDS) == 0
    assert not path.exists()
    assert not (state / "daemon.json").exists()
    events = [json.loads(line)["event"] for line in process.stderr.read().splitlines()]
    assert [each for each in events if each.startswith("daemon_")] == [
        *("daemon_started", "daemon_stopping", "daemon_stopped")
    ]


@pytest.mark.slow
def test_it_listens_on_the_loopback_of_ipv6_too(start, tmp_path):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    assert ask(start("--host", "::1")[1], tmp_path).status_code == 200


@pytest.mark.slow
def test_a_broken_policy_is_said_and_served_without_tasks(start, tmp_path):
    policy = tmp_path / "broken.toml"
    policy.write_text("nonsense = 1\n")
    process, url, _ = start("--policy", str(policy))
    note = ""
    while not note.startswith("note: "):
        note = process.stderr.readline().decode()
    assert re.fullmatch(rf"note: {tmp_path}/work takes no tasks yet: .* \[policy_invalid\]\n", note)
    answer = ask(url, tmp_path, "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


@pytest.mark.slow
def test_while_it_serves_garbage_is_collected(start, tmp_path):
    told = tmp_path / "told"
    when_it_ends = f"atexit.register(lambda: open({str(told)!r}, 'w').write(str(gc.isenabled())))"
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, gc; {when_it_ends}")
    process, *_ = start(PYTHONPATH=f"{tmp_path}:{Path(package.__file__).parents[1]}")
    process.terminate()
    process.wait(SECONDS)
    assert told.read_text() == "True"


# -- why it refuses --------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_refused_with_the_reason(muniment, at_work, home, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("precious\n")
    with socket.create_server(("127.0.0.1", 0)) as taken, running(tmp_path / "other") as other:
        port = taken.getsockname()[1]
        for arguments, why in (
            ("--host 0.0.0.0", f"0.0.0.0 {REACHED}"),
            ("--host ::", f":: {REACHED}"),
            (f"--host {'x' * 70}", f"{'x' * 70} {REACHED}"),
            (f"--host {'x' * 70} --allow-host x", f"cannot listen on {'x' * 70}: this is no name of a"),
            ("--allow-host http://x.y/", "--allow-host http://x.y/: this is no name of a machine, such as"),
            ("--allow-host ok --allow-host ", "--allow-host : this is no name of a machine"),
            (f"--socket {'x' * 200}", f"cannot listen at {'x' * 200}: AF_UNIX path too long; {ANOTHER}"),
            ("--socket no/where", f"cannot listen at no/where: No such file or directory; {ANOTHER}"),
            (f"--socket {plain}", f"cannot listen at {plain}: "),
            (f"--socket {other.unix}", f"cannot listen at {other.unix}: Address already in use; "),
            ("--workspace nowhere", "the workspace nowhere does not exist"),
            ("--workspace . --workspace .", f"the workspace {at_work} is named twice"),
            ("--root user=nowhere --root user=x", ""),
            ("--model m", "the model 'm' needs a server"),
            (f"--port {port}", f"cannot listen on 127.0.0.1 port {port}: Address already in use [config"),
        ):
            done = muniment("serve", *arguments.split(" "))
            assert (done.exit_code, done.stdout) == (1, ""), arguments
            (told,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
            assert told.startswith(f"not served: {why}")
            assert told.endswith(" [config_invalid]")
        assert other.ask("GET", "/healthz", address=other.unix).status == 200
        theirs = str(other.base / "home")
        assert muniment.lines("serve", code=1, MUNIMENT_HOME=theirs)[-1] == (
            f"not served: {theirs}/state: another daemon serves it (process {os.getpid()} at "
            f"{other.daemon.url}); use that one, or stop it first [managed_memory_unavailable]"
        )
        (line,) = muniment.lines("serve", "--json", code=1, MUNIMENT_HOME=theirs)
        assert json.loads(line)["error"]["code"] == "managed_memory_unavailable"
    assert plain.read_text() == "precious\n"
    assert not (home / "state" / "daemon.json").exists()


@pytest.mark.usefixtures("at_work")
def test_a_token_file_that_cannot_be_relied_on_is_refused(muniment, home):
    (home / "state").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    path, alone = home / "state" / "token", "is no file of yours alone (0600)"
    for make, undo, why in (
        (lambda: path.write_text("") or path.chmod(0o600), path.unlink, "holds no token; delete it"),
        (lambda: path.write_text("x" * 43) and path.chmod(0o644), path.unlink, alone),
        (path.mkdir, path.rmdir, alone),
        (lambda: path.symlink_to("/etc/hostname"), path.unlink, "cannot be read"),
    ):
        make()
        told = muniment.lines("serve", code=1)[-1]
        assert told.startswith(f"not served: {path}: {why}")
        assert told.endswith(" [managed_memory_unavailable]")
        undo()


@pytest.mark.usefixtures("at_work")
def test_the_key_of_a_models_server_is_handed_on_to_nobody(muniment, monkeypatch):
    """To the processes that are started from then on; see `cli.terminal.forget_key`."""
    seen = []

    async def look(*_, **__):
        seen.append("MUNIMENT_API_KEY" in os.environ)

    monkeypatch.setattr(command, "_run", look)
    named = ("--model", "m", "--base-url", "http://127.0.0.1:1/v1")
    assert muniment("serve", *named, MUNIMENT_API_KEY="a-key").exit_code == 0
    assert seen == [False]


# -- how it ends -----------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits_for_another_process(tmp_path, number):
    state = tmp_path / "home" / "state"
    state.mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    with locked(state):
        process = launch(tmp_path, "serve")
        reached(process, lambda: has_open(process.pid, state / LOCK_NAME))
        process.send_signal(number)
        assert process.wait(15) == -number
        assert process.communicate() == (b"", b"")


def test_the_first_signal_leaves_what_runs_its_grace_and_the_second_none():
    class Stopping:
        url, core, asked = "", SimpleNamespace(workspaces={}), []

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def stop(self, *, at_once):
            self.asked.append(at_once)

        async def stopped(self):
            while len(self.asked) < 2:
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0)

    options = SimpleNamespace(grace=600, socket=None, settings=SimpleNamespace(state=Path()))
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    asyncio.run(command._run(Stopping(), options, as_json=False))
    for number, handler in kept.items():
        signal.signal(number, handler)
    assert Stopping.asked[:2] == [False, True]


def test_what_holds_a_stop_up_is_left_with_an_event(monkeypatch, caplog):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
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


# -- tokens ----------------------------------------------------------------------------------------------

TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def test_a_token_is_made_listed_and_revoked(muniment):
    (made,) = muniment.lines("token", "add", "editor", "--client-id", "ide-2", "--client-id", "ide-1")
    assert TOKEN.fullmatch(made)
    muniment("token", "add", "script", "--trust", "owner")
    assert muniment.lines("token", "list") == [
        "editor: trust agent, client ids ide-1, ide-2",
        "script: trust owner, client ids none",
    ]
    for name in ("editor", "script"):
        assert muniment.lines("token", "revoke", name) == [f"revoked: {name}"]
    told = "no tokens but the owner's; to make one: muniment token add NAME"
    assert muniment.lines("token", "list") == [told]
    made = muniment.document("token", "add", "editor", "--client-id", "ide", "--trust", "external")
    assert TOKEN.fullmatch(made.pop("token"))
    assert made == {"name": "editor", "clients": ["ide"], "trust": "external"}
    assert muniment.document("token", "list") == {"tokens": [made]}
    assert muniment.document("token", "revoke", "editor")["status"] == "revoked"
    assert muniment.failure("token", "revoke", "editor") == "not_found"


def test_a_token_that_cannot_be_is_refused_with_what_to_do(muniment):
    muniment("token", "add", "editor", "--client-id", "ide")
    for name, flags, why in (
        ("editor", [], "there is a token 'editor' already; revoke it first, or take another name"),
        ("other", ["--client-id=ide"], "the client id 'ide' belongs to the token 'editor'"),
        ("owner", [], "'owner' cannot name a token"),
        ("", [], "'' cannot name a token"),
        ("a\nb", [], "'a\\nb' cannot name a token"),
        ("other", ["--client-id=a b"], "'a b' cannot be a client id"),
        ("other", ["--trust=boss"], "there is no trust 'boss'; there are owner, workspace, agent, external"),
    ):
        done = muniment("token", "add", name, *flags)
        assert (done.exit_code, done.stdout) == (1, "")
        assert re.fullmatch(rf"no token was made: {re.escape(why)}.* \[config_invalid\]\n", done.stderr)
    assert len(muniment.document("token", "list")["tokens"]) == 1
