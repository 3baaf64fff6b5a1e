"""`muniment acp` as a child process of a host: real tasks, and every end of a conversation."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.cli.process import REPOSITORY, SECONDS, has_open, launch, wait_until
from kit.memories import WORKER_CONFINEMENT
from kit.server.process import PausableModel, find_descendants
from muniment.cancelling import Cancel
from muniment.cli import daemon as acp
from muniment.errors import ConfigInvalid
from muniment.server.acp import AVAILABILITY, BASE, MAX_LINE_BYTES, METHODS
from muniment.server.lane import MAX_PENDING
from muniment.server.runner import BACKSTOP_SECONDS
from muniment.store.state import State

REMEMBER = f"_{BASE}/remember"
# Seconds, less than a process waits for the lock of another one.
LOCK_SECONDS = 15

FACT = "The user prefers dark mode in all editors"


class Host:
    """A host that starts the program as its child process."""

    def __init__(self, base, *arguments, **environment):
        self.base = base
        self.process = launch(base, "acp", *arguments, **environment)

    def send(self, **document):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **document}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def ask(self, method, number=1, **params):
        """Send a request and return its result or its error."""
        self.send(id=number, method=method, params=params)
        reply = self.answer()
        assert reply["id"] == number
        return reply.get("result") or reply["error"]

    def end(self):
        """Close the input; return the exit code, the remaining output and the errors."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()

    @property
    def entries(self):
        top = self.base / "home"
        return sorted(str(path.relative_to(top)) for path in top.rglob("*.md") if path.name != "MEMORY.md")


@pytest.fixture
def start(tmp_path):
    with ExitStack() as running:

        def start(*arguments, **environment):
            host = Host(tmp_path, *arguments, **environment)
            running.callback(host.process.communicate)
            running.callback(host.process.kill)
            return host

        yield start


def test_acp_host_remembers_forgets_and_owner_sees_facts(start, cli, tmp_path):
    host = start("--workspace", str(tmp_path / "work"))
    assert host.ask("initialize", 0, protocolVersion=1)["agentInfo"]["name"] == "muniment"
    assert host.ask(AVAILABILITY) == {"available": True}
    failed = host.ask(REMEMBER, content="The password is hunter2-Tr0ub4dor&3-xyzzy")
    assert (failed["data"]["code"].startswith("remember_"), "hunter2" in json.dumps(failed)) == (True, False)
    saved = host.ask(REMEMBER, content=FACT)
    assert host.entries == saved["filesTouched"]
    assert (saved["touchedScopes"], saved["decidedBy"]) == (["user"], "rules")
    assert saved["enforcement"] == WORKER_CONFINEMENT
    origin = cli.run_for_document("why", *host.entries, "--workspace", tmp_path / "work", bound=False)
    assert '"owner"' in json.dumps(origin)
    for _ in range(20):  # An endless line is rejected and uses no more memory than one line.
        host.process.stdin.write(b"x" * MAX_LINE_BYTES)
    host.process.stdin.write(b"\n")
    host.process.stdin.flush()
    assert host.answer()["error"]["data"]["code"] == "body_too_large"
    would = host.ask(f"{BASE}/forget", query="dark mode", dryRun=True)
    assert [each["filePath"] for each in would["removedEntries"]] == host.entries
    assert host.ask(f"{BASE}/forget", query="dark mode")["touchedScopes"] == ["user"]
    assert host.entries == []
    assert host.ask(f"{BASE}/dream")["dedupedEntries"] == 0
    assert host.end() == (0, [], "")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "the input ends"])
def test_acp_cancel_and_shutdown_cancel_running_tasks(start, end):
    with PausableModel() as model:
        model.pause()
        host = start(*model.flags)
        host.send(id="x", method=REMEMBER, params={"content": FACT})
        model.wait_for_requests()
        host.send(method="$/cancel_request", params={"requestId": "x"})
        error = host.answer()["error"]
        assert (error["code"], error["data"]["code"]) == (-32800, "cancelled")
        assert host.entries == []
        model.resume()
        assert host.ask(REMEMBER, content=FACT)["decidedBy"] == "scripted"
        before, request_count = host.entries, len(model.server.requests)
        model.pause()
        for number in (1, 2):
            host.send(id=number, method=REMEMBER, params={"content": f"Fact {number} is another one"})
        model.wait_for_requests(request_count + 1)
        children = find_descendants(host.process.pid)
        assert children
        if end.startswith("SIG"):
            host.process.send_signal(getattr(signal, end))
            host.process.wait(SECONDS)
        code, answers, err = host.end()
    assert (code, err) == (0, "")
    assert {each["id"]: each["error"]["code"] for each in answers} == {1: -32800, 2: -32800}
    assert host.entries == before
    for pid in children:
        with suppress(OSError):
            assert ") Z " in Path(f"/proc/{pid}/stat").read_text()


@contextmanager
def ledger_locked(base):
    """Lock the ledger like a process that commits."""
    (base / "home").mkdir(mode=0o700, exist_ok=True)
    with State(base / "home" / "state"):
        path = base / "home" / "state" / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield path


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "command"), [("SIGTERM", "acp"), ("SIGINT", "serve"), ("SIGINT", "acp")])
def test_signal_stops_startup_that_waits_for_ledger_lock(tmp_path, name, command):
    with ledger_locked(tmp_path) as path:
        process = launch(tmp_path, command)
        wait_until(process, lambda: has_open(process.pid, path))
        process.send_signal(getattr(signal, name))
        assert process.wait(LOCK_SECONDS) == -getattr(signal, name)
    assert process.communicate() == (b"", b"")


@pytest.mark.slow
def test_acp_availability_waiting_for_lock_is_cancelled(start, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("nonsense = 1\n")
    host = start("--policy", str(policy))
    assert host.ask(AVAILABILITY) == {"available": False}
    with ledger_locked(tmp_path):
        policy.write_text((REPOSITORY / "policies" / "strict.toml").read_text())
        host.send(id=1, method=AVAILABILITY)
        host.send(id=2, method=AVAILABILITY)
        host.send(method="$/cancel_request", params={"requestId": 1})
        assert host.answer()["error"]["data"]["code"] == "cancelled"
        host.process.terminate()
        assert host.process.wait(LOCK_SECONDS) == 0
        assert host.answer()["error"]["data"]["code"] == "cancelled"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("also_closed", [(), ("stderr",)])
def test_acp_reports_broken_policy_and_stops_without_host(start, tmp_path, also_closed):
    (tmp_path / "broken.toml").write_text("nonsense = 1\n")
    host = start(f"--policy={tmp_path}/broken.toml", **({} if also_closed else {"MUNIMENT_LOG": "INFO"}))
    assert host.ask(AVAILABILITY) == {"available": False}
    error = host.ask(REMEMBER, content=FACT)
    assert (error["code"], error["data"]["code"]) == (-32000, "managed_memory_unavailable")
    for name in ("stdout", *also_closed):
        getattr(host.process, name).close()
    host.send(id=1, method="initialize")
    assert host.process.wait(SECONDS) == 0
    if not also_closed:
        note, *_, event = host.process.stderr.read().decode().splitlines()
        assert re.fullmatch(r"note: .*accepts no tasks yet.* \[policy_invalid\]", note)
        assert '"host_gone"' in event
        assert '"BrokenPipeError"' in event


def test_acp_startup_failure_prints_reason_on_stderr(cli, work_directory, monkeypatch, capfd):
    for arguments, reason in (
        ("--workspace nowhere", "workspace nowhere not found [config_invalid]"),
        *(("--model m", "the model 'm' needs a server"), ("--base-url http://127.0.0.1:1/v1", "")),
    ):
        (message,) = cli.run_for_lines("acp", *arguments.split(), code=1)
        assert message.startswith(f"not started: {reason}")
    assert list(work_directory.iterdir()) == [work_directory / ".git"]

    def stray(*_args, **_named):
        os.write(1, b"stray\n")
        raise ConfigInvalid("no")

    monkeypatch.setattr(acp, "load_settings", stray)
    assert cli("acp").exit_code == 1
    assert capfd.readouterr() == ("", "stray\n")


def test_acp_stops_for_blocked_output_and_passed_deadline(monkeypatch):
    monkeypatch.setattr(acp, "SEND_SECONDS", 0.05)
    reader, writer = os.pipe()
    with Cancel() as stop:
        acp._run_session(SimpleNamespace(deadline=0.0, expire=stop.set), reader, stop)
        assert stop.is_set()
    with Cancel() as stop:
        output = acp._Output(writer, stop)
        output(b"fits\n")
        assert not stop.is_set()
        output(b"x" * (1 << 20))
        assert stop.is_set()
        os.set_blocking(reader, False)
        assert os.read(reader, 1 << 21).rstrip(b"x") == b"fits\n"
        output(b"this would be in the middle of another answer\n")
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.slow
def test_acp_redirects_library_output_to_stderr(tmp_path):
    stray = "Workspace.problem = lambda self: print('stray') or os.write(1, b'stray\\n') and None"
    code = f"import os, sys\nfrom muniment.server.work import Workspace\n{stray}\nsys.argv[1:] = ['acp']\n"
    code += "from muniment.cli.entry import main\nmain()"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "src")}
    options = {"capture_output": True, "cwd": tmp_path, "env": env, "timeout": SECONDS}
    request = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'
    done = subprocess.run([sys.executable, "-c", code], input=request, check=True, **options)
    assert (json.loads(done.stdout)["id"], done.stderr) == (1, b"stray\nstray\n")


@pytest.mark.slow
def test_acp_docs_conversation_matches_program(start):
    page = (REPOSITORY / "docs" / "acp.md").read_text()
    (conversation,) = re.findall(r"```jsonl\n(.*?)```", page, re.DOTALL)
    host = start()
    for line in conversation.splitlines():
        sender, document = line[0], json.loads(line[2:])
        if sender == ">":
            host.send(**document)
            continue
        answer = host.answer()
        for name in {"enforcement", "digest"} & document.get("result", {}).keys():
            assert answer["result"][name]
            answer["result"][name] = document["result"][name]
        assert answer == document
    limits = (f"{BACKSTOP_SECONDS:.0f} seconds", f"{MAX_LINE_BYTES} bytes", f"{MAX_PENDING}")
    assert [each for each in (*METHODS, AVAILABILITY, *limits) if each not in page] == []
