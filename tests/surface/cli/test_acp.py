"""`muniment acp` as the child of a host: real tasks, and every way in which a conversation ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import muniment
from kit.cli.launched import REPOSITORY, SECONDS, has_open, launch, run
from kit.daemon.process import descendants, serving
from kit.memories import IN_A_WORKER
from muniment.cli import daemon as acp
from muniment.confine.cancel import Cancel
from muniment.daemon.acp import AVAILABILITY, BASE, MAX_LINE_BYTES, METHODS
from muniment.lane import BACKSTOP_SECONDS, MAX_PENDING
from muniment.testing.chat_server import ChatServer
from muniment.testing.minds import perfect, through

REMEMBER = f"_{BASE}/remember"
SOURCE = str(Path(muniment.__file__).parents[1])
SOON = 15
"""Seconds, fewer than those for which a process waits for another one's lock."""

FACT = "The user prefers dark mode in all editors"


class Host:
    """A host that started the program as its child."""

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

    def end(self):
        """Close its input: exit code, what it still says, its errors."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()

    @property
    def entries(self):
        top = self.base / "home"
        return sorted(str(path.relative_to(top)) for path in top.rglob("*.md") if path.name != "MEMORY.md")


@pytest.fixture
def start(tmp_path):
    hosts = []

    def start(*arguments, **environment):
        hosts.append(Host(tmp_path, *arguments, **environment))
        return hosts[-1]

    yield start
    for host in hosts:
        if host.process.poll() is None:
            host.process.kill()
        host.process.communicate()


class HeldModel(ChatServer):
    """A language model that answers nothing until it is released."""

    def __init__(self):
        self.is_free = threading.Event()
        super().__init__(self._answer)

    def _answer(self, request):
        def answer(connection):
            while not self.is_free.is_set():
                connection.pause(0.01)
            through(perfect)(request)(connection)

        return answer


@pytest.fixture
def model():
    with HeldModel() as held:
        yield held
        held.is_free.set()


def flags(model):
    return ("--model", "scripted", "--base-url", model.base_url, "--protocol", "tools")


def test_a_host_has_a_fact_remembered_and_forgotten(start):
    host = start()
    host.send(id=0, method="initialize", params={"protocolVersion": 1})
    assert host.answer()["result"]["agentInfo"]["name"] == "muniment"
    host.send(id=1, method=AVAILABILITY)
    assert host.answer()["result"] == {"available": True}
    host.send(id=2, method=REMEMBER, params={"content": FACT})
    saved = host.answer()["result"]
    assert host.entries == saved["filesTouched"]
    assert (saved["touchedScopes"], saved["decidedBy"]) == (["user"], "rules")
    assert saved["enforcement"] == IN_A_WORKER
    host.send(id=3, method=f"{BASE}/forget", params={"query": "dark mode", "dryRun": True})
    assert [each["filePath"] for each in host.answer()["result"]["removedEntries"]] == host.entries
    host.send(id=4, method=f"{BASE}/forget", params={"query": "dark mode"})
    assert host.answer()["result"]["touchedScopes"] == ["user"]
    assert host.entries == []
    host.send(id=5, method=f"{BASE}/dream", params={})
    assert host.answer()["result"]["dedupedEntries"] == 0
    assert host.end() == (0, [], "")


def test_what_the_host_did_is_in_the_history_of_the_owner(start, tmp_path):
    host = start()
    host.send(id=1, method=REMEMBER, params={"content": FACT})
    path = host.answer()["result"]["filesTouched"][0]
    host.end()
    code, out, _ = run(tmp_path, "why", path, "--json")
    assert code == 0
    assert '"owner"' in out


def test_a_task_that_fails_is_told_with_its_code_and_the_next_one_runs(start, tmp_path):
    host = start("--workspace", tmp_path / "work")
    host.send(id=1, method=REMEMBER, params={"content": "The password is hunter2-Tr0ub4dor&3-xyzzy"})
    host.send(id=2, method=REMEMBER, params={"content": FACT})
    first, second = host.answer(), host.answer()
    assert first["error"]["data"]["code"].startswith("remember_")
    assert "hunter2" not in json.dumps(first)
    assert second["result"]["filesTouched"]


def test_a_running_task_is_cancelled_and_its_worker_is_gone(start, model):
    host = start(*flags(model))
    host.send(id="x", method=REMEMBER, params={"content": FACT})
    model.wait_for_requests(1, SECONDS)
    host.send(method="$/cancel_request", params={"requestId": "x"})
    answer = host.answer()
    assert (answer["error"]["code"], answer["error"]["data"]["code"]) == (-32800, "cancelled")
    assert host.entries == []
    model.is_free.set()
    host.send(id="y", method=REMEMBER, params={"content": FACT})
    assert host.answer()["result"]["decidedBy"] == "scripted"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("end", ["the input ends", "SIGTERM", "SIGINT"])
def test_the_end_cancels_what_runs_answers_it_and_leaves_nothing(start, model, end):
    host = start(*flags(model))
    for number in (1, 2):
        host.send(id=number, method=REMEMBER, params={"content": f"{FACT} {number}"})
    model.wait_for_requests(1, SECONDS)
    children = descendants(host.process.pid)
    assert children
    if end == "the input ends":
        code, answers, err = host.end()
    else:
        host.process.send_signal(getattr(signal, end))
        host.process.wait(SECONDS)
        code, answers, err = host.end()
    assert (code, err) == (0, "")
    assert {each["id"]: each["error"]["code"] for each in answers} == {1: -32800, 2: -32800}
    assert host.entries == []
    assert not [pid for pid in children if is_alive(pid)]


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def ledger_locked(base):
    """The ledger, as while another process commits."""
    path = base / "home" / "state" / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield path


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_start_that_waits_for_another_process(start, tmp_path, name):
    assert start().end()[0] == 0
    with ledger_locked(tmp_path) as path:
        process = start().process
        while not has_open(process.pid, path):
            assert process.poll() is None
        process.send_signal(getattr(signal, name))
        assert process.wait(SOON) == -getattr(signal, name)
    assert process.stderr.read() == b""


@pytest.mark.slow
def test_a_look_that_waits_for_another_process_is_cancelled_and_keeps_nobody(start, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("nonsense = 1\n")
    host = start("--policy", str(policy))
    host.send(id=0, method=AVAILABILITY)
    assert host.answer()["result"] == {"available": False}
    with ledger_locked(tmp_path):
        policy.write_text((REPOSITORY / "policies" / "strict.toml").read_text())
        host.send(id=1, method=AVAILABILITY)
        host.send(id=2, method=AVAILABILITY)
        host.send(method="$/cancel_request", params={"requestId": 1})
        assert host.answer()["error"]["data"]["code"] == "cancelled"
        host.process.terminate()
        assert host.process.wait(SOON) == 0
        assert host.answer()["error"]["data"]["code"] == "cancelled"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("also_closed", [(), ("stderr",)])
def test_a_host_that_is_gone_ends_it(start, also_closed):
    host = start(**({} if also_closed else {"MUNIMENT_LOG": "INFO"}))
    host.send(id=0, method="initialize")
    host.answer()
    for name in ("stdout", *also_closed):
        getattr(host.process, name).close()
    host.send(id=1, method="initialize")
    assert host.process.wait(SECONDS) == 0
    if not also_closed:
        (event,) = [json.loads(line) for line in host.process.stderr.read().splitlines()]
        assert (event["event"], event["problem"]) == ("host_gone", "BrokenPipeError")


def test_a_line_without_end_is_refused_and_costs_no_more_than_a_line(start):
    host = start()
    for _ in range(20):
        host.process.stdin.write(b"x" * MAX_LINE_BYTES)
    host.process.stdin.write(b"\n")
    host.send(id=1, method="initialize")
    assert host.answer()["error"]["data"]["code"] == "body_too_large"
    assert host.answer()["id"] == 1


@pytest.mark.slow
def test_what_libraries_print_goes_to_standard_error(tmp_path):
    """Also what is printed behind Python's back, to the descriptor itself."""
    code = (
        "import os, sys\n"
        "from muniment.daemon.core import Workspace\n"
        "def problem(self):\n"
        "    print('stray'); os.write(1, b'stray\\n')\n"
        "Workspace.problem = problem\n"
        "from muniment.cli.entry import main\n"
        "sys.argv[1:] = ['acp']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n',
        capture_output=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": SOURCE},
        timeout=SECONDS,
        check=True,
    )
    assert json.loads(done.stdout)["id"] == 1
    assert done.stderr == b"stray\nstray\n"


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--workspace", "nowhere"], "not started: the workspace nowhere does not exist [config_invalid]\n"),
        (["--model", "m"], "not started: the model 'm' needs a server"),
        (["--base-url", "http://127.0.0.1:1/v1"], "not started: "),
    ],
)
def test_what_cannot_start_says_why_and_answers_nothing(tmp_path, arguments, why):
    code, out, err = run(tmp_path, "acp", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(why)


def test_a_broken_policy_is_said_at_the_start_and_to_whoever_asks(start, tmp_path):
    policy = tmp_path / "broken.toml"
    policy.write_text("nonsense = 1\n")
    host = start("--policy", str(policy))
    host.send(id=1, method=AVAILABILITY)
    assert host.answer()["result"] == {"available": False}
    host.send(id=2, method=REMEMBER, params={"content": FACT})
    error = host.answer()["error"]
    assert (error["code"], error["data"]["code"]) == (-32000, "managed_memory_unavailable")
    code, answers, err = host.end()
    assert (code, answers) == (0, [])
    assert err.startswith("note: ")
    assert "takes no tasks yet" in err
    assert err.endswith("[policy_invalid]\n")


@pytest.mark.slow
def test_no_input_at_all_is_the_end(tmp_path):
    assert run(tmp_path, "acp") == (0, "", "")


@pytest.mark.slow
def test_nothing_of_the_server_is_loaded(tmp_path):
    code = (
        "import sys; from muniment.cli.entry import main\n"
        "sys.argv[1:] = ['acp']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": SOURCE},
        timeout=SECONDS,
    )
    assert "pydantic" in done.stderr.split()
    assert not {"starlette", "uvicorn", "openai", "asyncio"} & set(done.stderr.split())


@pytest.mark.slow
def test_host_and_daemon_work_on_one_memory_side_by_side(start, tmp_path):
    with serving(tmp_path) as daemon:
        host = start()
        for number in range(3):
            task = daemon.remember(f"The daemon was told fact number {number}")
            host.send(
                id=number, method=REMEMBER, params={"content": f"The host was told fact number {number}"}
            )
            assert host.answer()["result"]["filesTouched"]
            assert daemon.wait(task)["status"] == "completed"
        host.end()
        assert len(host.entries) == 6
        assert daemon.muniment("audit", "verify")["whole"]


def test_a_host_that_does_not_read_counts_as_gone(monkeypatch):
    monkeypatch.setattr(acp, "SEND_SECONDS", 0.05)
    reader, writer = os.pipe()
    with Cancel() as stop:
        output = acp._Output(writer, stop)
        output(b"fits\n")
        assert not stop.is_set()
        output(b"x" * (1 << 20))
        assert stop.is_set()
        os.set_blocking(reader, False)
        assert os.read(reader, 1 << 21).rstrip(b"x") == b"fits\n"
        output(b"this would stand in the middle of another answer\n")
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_requests_are_given_up_also_while_the_host_says_nothing():
    class Silent:
        deadline = 0.0

        def expire(self):
            stop.set()

    reader, writer = os.pipe()
    with Cancel() as stop:
        acp._converse(Silent(), reader, stop)
        assert stop.is_set()
    os.close(reader)
    os.close(writer)


@pytest.mark.slow
def test_the_conversation_of_the_page_is_the_one_that_happens(start):
    page = (REPOSITORY / "docs" / "acp.md").read_text()
    (conversation,) = re.findall(r"```jsonl\n(.*?)```", page, re.DOTALL)
    host = start()
    for line in conversation.splitlines():
        who, document = line[0], json.loads(line[2:])
        if who == ">":
            host.send(**document)
            continue
        answer = host.answer()
        if "enforcement" in document.get("result", {}):
            answer["result"]["enforcement"] = document["result"]["enforcement"]
        assert answer == document
    assert all(method in page for method in (*METHODS, AVAILABILITY))
    for number in (str(MAX_PENDING), f"{BACKSTOP_SECONDS:.0f} seconds", f"{MAX_LINE_BYTES} bytes"):
        assert number in page
