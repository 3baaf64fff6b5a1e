"""The program as a process: what it loads, its streams, and that Ctrl-C ends it with nothing written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.cli.launched import SECONDS, has_open, launch, reached
from kit.daemon.world import locked
from kit.memories import CANARY, photograph
from muniment.testing.chat_server import ChatServer, tool_call, tool_calls, words

PROGRAM = Path(sys.executable).with_name("muniment")
FACT = "The user prefers dark mode"


def test_ctrl_c_while_the_commit_waits_for_a_lock_writes_nothing(tmp_path):
    root = tmp_path / "home" / "user"
    root.mkdir(parents=True)
    for directory in (root.parent, root):
        directory.chmod(0o700)
    before = photograph(root)
    with locked(root):
        process = launch(tmp_path, "remember", FACT, "--scope", "user", "--json", MUNIMENT_LOG="INFO")
        reached(process, lambda: wants_lock(process.pid, root))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    document = json.loads(out)
    assert (process.returncode, document["status"]) == (130, "cancelled")
    assert document["error"]["code"] == "cancelled"
    assert photograph(root) == before


def wants_lock(pid, root):
    """Whether the process has a readable descriptor of the root: that of a lock, since a root is O_PATH."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            flags = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text().split("flags:")[1].split()[0]
            if each.samefile(root) and not int(flags, 8) & os.O_PATH:
                return True
        except OSError:
            continue
    return False


def test_ctrl_c_while_it_waits_for_a_key_ends_it(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    flags = ("--model=m", "--base-url=http://127.0.0.1:1/v1", f"--api-key-file={fifo}")
    process = launch(tmp_path, "remember", FACT, *flags)
    writer = os.open(fifo, os.O_RDWR)  # A FIFO that somebody may write to keeps its reader waiting.
    reached(process, lambda: has_open(process.pid, fifo))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=SECONDS) == (b"", b"cancelled: nothing was written [cancelled]\n")
    os.close(writer)
    assert process.returncode == 130
    assert list((tmp_path / "home").iterdir()) == []


# -- what it loads ---------------------------------------------------------------------------------------


def loaded(base, *lines):
    """What a process has loaded once it has imported the commands, and after each of these command lines."""
    code = (
        "import os, sys\nfrom muniment.cli import app\nfrom muniment.cli.entry import main\n"
        "def tell(): print('\\nLOADED', *sys.modules)\ntell()\n"
        f"for line in {lines!r}:\n"
        "    sys.argv[1:] = line.split()\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code in (None, 0, 1), line\n"
        "    tell()\n"
    )
    env = {"PATH": "/usr/bin:/bin", "MUNIMENT_HOME": str(base / "home"), "HOME": str(base)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=base, env=env, input=""
    )
    told = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LOADED "))
    return [{*names, *(name.partition(".")[0] for name in names)} for names in told]


def test_a_command_loads_only_what_it_needs(tmp_path):
    helps = (f"{name} --help" for name in ("remember", "index", "policy", "policy prove"))
    imported, helped, *_, last = loaded(tmp_path, "--help", "--version", *helps)
    models = {"openai", "starlette", "uvicorn", "httpx", "httpx2", "asyncio", "ssl", "muniment.daemon"}
    heavy = models | {"structlog", "re2", "pathspec"}
    assert not (heavy | {"pydantic"}) & (imported | helped)
    # Typer itself takes pydantic to parse options; nothing of ours does before a command runs.
    assert not {name for name in last if name in heavy or name.startswith("muniment.policy.")}
    _, remembered, *others = loaded(tmp_path, "remember mode", "doctor", "ls", "show user/a.md", "recall x")
    assert (models | {"structlog", "rich"}) & remembered == set()
    assert (models | {"structlog", "rich"}) & others[-1] == set()


# -- its streams -----------------------------------------------------------------------------------------


def shell(script, base, **environment):
    """Runs `script` with the program as $MUNIMENT, as a person or supervisor would."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(base), "MUNIMENT": str(PROGRAM), **environment}
    bash = ["/bin/bash", "-o", "pipefail", "-c", script]
    return subprocess.run(
        bash, capture_output=True, text=True, cwd=base, timeout=SECONDS, check=False, env=env
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-", "2>&-", "| true"])
def test_a_fact_is_saved_though_streams_are_closed_or_their_reader_has_left(closed, tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / ".muniment" / "user").rglob("*.md"))) == 2


def test_a_full_output_is_told_and_does_not_make_a_saved_fact_a_failure(tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' >/dev/full", tmp_path)
    assert done.returncode == 0
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_closed_standard_input_is_an_empty_fact_and_no_traceback(tmp_path):
    done = shell("$MUNIMENT remember - <&-", tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("[invalid_content]\n")


# -- language models -------------------------------------------------------------------------------------

SAVES = (
    tool_calls(tool_call("write_file", {"path": "user/a.md", "content": "Prefers dark mode.\n"})),
    words("Saved to user/a.md."),
)
PROXIES = ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
OTHERS = dict.fromkeys(PROXIES, "http://127.0.0.1:1/v1") | {"OPENAI_API_KEY": "another"}


def check(requests, said, base, key):
    """It was asked with our key and model alone, and the key is neither told nor kept."""
    asked = [(each.headers.get("authorization"), each.body["model"]) for each in requests]
    assert asked == [(key and f"Bearer {key}", "org/m")] * 2
    assert "  org/m, 2 turns, " in said
    assert CANARY not in said
    assert list(base.iterdir())
    assert not [path for path in base.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


@pytest.mark.usefixtures("at_work")
def test_a_language_model_is_reached_with_our_key_and_by_our_settings_alone(muniment, tmp_path):
    for number, (key, environment) in enumerate(((CANARY, {"MUNIMENT_API_KEY": CANARY}), (None, {}))):
        environment |= {"MUNIMENT_LOG": "DEBUG", "MUNIMENT_HOME": f"~/home{number}", "HOME": str(tmp_path)}
        with ChatServer(SAVES) as server:
            terms = ("--model=org/m", "--protocol=tools", f"--base-url={server.base_url}")
            done = muniment("remember", FACT, *terms, bound=False, **(OTHERS | environment))
        check(server.requests, done.stdout + done.stderr, tmp_path / f"home{number}", key)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", ["--api-key-file <(printf '%s\\n' $KEY)", "--api-key-file /dev/stdin <<<$KEY"]
)
def test_a_key_comes_through_a_pipe(tmp_path, options):
    with ChatServer(SAVES) as server:
        line = f"$MUNIMENT remember '{FACT}' --model org/m --base-url $URL --protocol tools {options}"
        environment = OTHERS | {"MUNIMENT_API_KEY": "another", "MUNIMENT_LOG": "DEBUG"}
        done = shell(line, tmp_path, URL=server.base_url, KEY=CANARY, **environment)
    check(server.requests, done.stdout + done.stderr, tmp_path, CANARY)
