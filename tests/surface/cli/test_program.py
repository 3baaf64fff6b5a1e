"""The program as a process: what it loads, and that Ctrl-C ends it with nothing written."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit.memories import CANARY, make_roots, photograph
from muniment.testing.chat_server import ChatServer, tool_call, tool_calls, words

PROGRAM = Path(sys.executable).with_name("muniment")
FACT = "The user prefers dark mode"
HEAVY = ("pydantic", "openai", "starlette", "structlog", "re2", "httpx", "httpx2")


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def start(tmp_path, roots):
    """Starts the program over the roots."""
    running = []

    def start(*arguments, **terms):
        (tmp_path / "home").mkdir(mode=0o700, exist_ok=True)
        pairs = [f"--root={scope}={path}" for scope, path in roots.items()]
        process = subprocess.Popen(
            [PROGRAM, *arguments, *pairs],
            cwd=tmp_path,
            env={
                "PATH": "/usr/bin:/bin",
                "MUNIMENT_HOME": str(tmp_path / "home"),
                "HOME": str(tmp_path),
                **terms,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_fact_goes_in_and_an_entry_comes_out(start, roots):
    out, err = start("remember", "-", "--json").communicate(FACT.encode(), timeout=30)
    document = json.loads(out)
    assert (document["status"], err) == ("completed", b"")
    assert (roots["user"].parent / document["files_touched"][0]).exists()


def test_ctrl_c_while_the_commit_waits_for_a_lock_writes_nothing(start, roots):
    held = os.open(roots["user"], os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    before = photograph(roots["user"], roots["project"])
    process = start("remember", FACT, "--scope", "user", "--json", MUNIMENT_LOG="INFO")
    # It has reached its wait when it has opened a second handle of the root, to lock it.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and locks_wanted(process.pid, roots["user"]) == 0:
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    os.close(held)
    assert process.returncode == 130
    document = json.loads(out)
    assert (document["status"], document["error"]["code"]) == ("cancelled", "cancelled")
    assert photograph(roots["user"], roots["project"]) == before


def locks_wanted(pid, root):
    """Readable descriptors that the process has of the root: those of a lock, since a root is O_PATH."""
    wanted = 0
    for name in (f"/proc/{pid}/fd/{number}" for number in descriptors(pid)):
        try:
            if Path(name).samefile(root):
                flags = Path(name.replace("/fd/", "/fdinfo/")).read_text().split("flags:")[1].split()[0]
                wanted += not int(flags, 8) & os.O_PATH
        except OSError:
            continue
    return wanted


def descriptors(pid):
    try:
        return [entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


@pytest.mark.slow
def test_ctrl_c_while_it_waits_for_standard_input_ends_it(start):
    process = start("remember", "-")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not waits_for_a_pipe(process.pid):
        assert process.poll() is None
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert b"nothing was written" in process.stderr.read()


def test_ctrl_c_while_it_waits_for_a_key_ends_it(start, tmp_path, roots):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = start(
        "remember", FACT, "--model=m", "--base-url=http://127.0.0.1:1/v1", f"--api-key-file={fifo}"
    )
    writer = os.open(fifo, os.O_RDWR)  # A FIFO that somebody may write to keeps its reader waiting.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (has_open(process.pid, fifo) and waits_for_a_pipe(process.pid)):
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    os.close(writer)
    assert process.stderr.read() == b"cancelled: nothing was written [cancelled]\n"
    assert list(roots["user"].iterdir()) == []


def has_open(pid, path):
    try:
        return path in {Path(f"/proc/{pid}/fd/{number}").readlink() for number in descriptors(pid)}
    except OSError:  # One of them was closed meanwhile.
        return False


def waits_for_a_pipe(pid):
    wait = Path(f"/proc/{pid}/wchan").read_text()
    call = Path(f"/proc/{pid}/syscall").read_text().split()
    return "pipe" in wait or call[:2] == ["0", "0x0"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], HEAVY),
        # Typer itself takes pydantic to parse options; nothing of ours does before a command runs.
        (["--version"], HEAVY[1:]),
        (["remember", "--help"], HEAVY[1:]),
        (["index", "--help"], HEAVY[1:]),
        (["ls"], ("openai", "starlette", "structlog", "httpx", "httpx2")),
        (["show", "user/a.md"], ("openai", "starlette", "structlog", "httpx", "httpx2")),
        (["doctor"], ("openai", "starlette", "structlog", "httpx", "httpx2", "asyncio", "ssl", "rich")),
        (["remember", FACT], ("openai", "starlette", "httpx", "httpx2", "asyncio", "ssl")),
    ],
)
def test_a_command_loads_only_what_it_needs(tmp_path, arguments, absent):
    code = (
        "import sys; from muniment.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "MUNIMENT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)},
        timeout=30,
    )
    loaded = done.stdout.rpartition("LOADED ")[2].split()
    assert "typer" in loaded
    assert not set(absent) & set(loaded)


def test_the_code_of_the_commands_loads_no_pydantic(tmp_path):
    code = "import sys, muniment.cli.app, muniment.cli.entry; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "False\n"


def shell(script, tmp_path, **environment):
    """Runs `script` with the program as $MUNIMENT, as a person or supervisor would."""
    return subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=50,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MUNIMENT": str(PROGRAM), **environment},
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_fact_is_saved_under_a_supervisor_that_closes_standard_streams(closed, tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / ".muniment" / "user").rglob("*.md"))) == 2


def test_closed_standard_input_is_an_empty_fact_and_no_traceback(tmp_path):
    done = shell("$MUNIMENT remember - <&-", tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("[invalid_content]\n")


@pytest.mark.slow
def test_a_reader_that_left_does_not_make_a_saved_fact_a_failure(tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' | true", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_output_is_told_and_does_not_make_a_saved_fact_a_failure(tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' >/dev/full", tmp_path)
    assert done.returncode == 0
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_begins_with_a_tilde_is_the_persons_home(tmp_path):
    shell(f"$MUNIMENT remember '{FACT}'", tmp_path, MUNIMENT_HOME="~/elsewhere")
    assert (tmp_path / "elsewhere" / "user" / "MEMORY.md").exists()


@pytest.mark.slow
def test_looking_at_a_memory_that_is_not_there_creates_nothing(tmp_path):
    done = shell("$MUNIMENT ls && $MUNIMENT index verify && $MUNIMENT index rebuild", tmp_path)
    assert done.stdout.splitlines() == [
        "user: nothing yet",
        "project: nothing yet",
        "the indexes are correct",
        "the indexes are rebuilt",
    ]
    assert list(tmp_path.iterdir()) == []
    done = shell("$MUNIMENT show user/a.md", tmp_path)
    assert done.stderr == "not shown: nothing is remembered in user yet [not_found]\n"


def test_the_module_is_the_program(tmp_path):
    done = shell(f"{sys.executable} -m muniment --version", tmp_path)
    assert (done.returncode, done.stdout.split()[0]) == (0, "muniment")


SAVES = (
    tool_calls(tool_call("write_file", {"path": "user/a.md", "content": "Prefers dark mode.\n"})),
    words("Saved to user/a.md."),
)
ELSEWHERE = dict.fromkeys(
    ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "http://127.0.0.1:1/v1"
)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("--api-key-file <(printf '%s\\n' $KEY)", {}),
        ("--api-key-file /dev/stdin <<<$KEY", {"MUNIMENT_API_KEY": "another"}),
        ("", {"MUNIMENT_API_KEY": CANARY}),
        ("", {"MUNIMENT_API_KEY": CANARY, "OPENAI_API_KEY": "another"}),
    ],
)
def test_a_language_model_is_reached_with_our_key_and_by_our_settings_alone(tmp_path, options, environment):
    with ChatServer(SAVES) as server:
        done = shell(
            f"$MUNIMENT remember '{FACT}' --model org/m --base-url $URL --protocol tools {options}",
            tmp_path,
            URL=server.base_url,
            KEY=CANARY,
            MUNIMENT_LOG="DEBUG",
            **ELSEWHERE,
            **environment,
        )
        requests = server.requests
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("  org/m, 2 turns, ")
    assert [request.headers["authorization"] for request in requests] == [f"Bearer {CANARY}"] * 2
    assert [request.body["model"] for request in requests] == ["org/m"] * 2
    assert CANARY not in done.stdout + done.stderr
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()
    ]


@pytest.mark.slow
def test_without_a_key_none_is_sent_whatever_other_programs_have(tmp_path):
    with ChatServer(SAVES) as server:
        done = shell(
            f"$MUNIMENT remember '{FACT}' --model m --base-url $URL",
            tmp_path,
            URL=server.base_url,
            OPENAI_API_KEY=CANARY,
        )
        requests = server.requests
    assert done.returncode == 0, done.stderr
    assert not any("authorization" in request.headers for request in requests)
    assert CANARY not in repr(requests)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("url", ["http://127.0.0.1:1/chat/completions", "127.0.0.1:1", "ftp://127.0.0.1/v1"])
def test_a_base_url_that_is_none_is_told_without_a_traceback(tmp_path, url):
    done = shell(f"$MUNIMENT remember '{FACT}' --model m --base-url {url}", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("not saved: the base URL ")
    assert done.stderr.endswith("[config_invalid]\n")
    assert list(tmp_path.iterdir()) == []
