"""The program as a process: what it loads, its streams, and that Ctrl-C ends it with nothing written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from kit.cli.launched import SECONDS, has_open, launch, reached
from kit.memories import CANARY, photograph
from kit.server.process import locked
from muniment.cli.app import app
from muniment.testing.chat_server import ChatServer, tool_call, tool_calls, words

PROGRAM = Path(sys.executable).with_name("muniment")
FACT = "The user prefers dark mode"


def test_ctrl_c_while_the_commit_waits_for_a_lock_writes_nothing(tmp_path):
    root = tmp_path / "home" / "user"
    for directory in (root.parent, root):
        directory.mkdir(mode=0o700)
    before = photograph(root)
    with locked(root):
        process = launch(tmp_path, "remember", FACT, "--scope", "user", "--json", MUNIMENT_LOG="INFO")
        reached(process, lambda: wants_lock(process.pid, root))
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=SECONDS)[0])
    told = process.returncode, document["status"], document["error"]["code"]
    assert (*told, photograph(root) == before) == (130, "cancelled", "cancelled", True)


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
    assert process.communicate(timeout=SECONDS) == (b"", b"cancelled; nothing was written [cancelled]\n")
    os.close(writer)
    assert process.returncode == 130
    assert list((tmp_path / "home").iterdir()) == []


# -- what it loads ---------------------------------------------------------------------------------------


def loaded(base, *lines):
    """What a process has loaded once it has imported the commands, and after each of these command lines."""
    code = f"""
import os, sys
from muniment.cli import app
from muniment.cli.entry import main
def tell(): print('\\nLOADED', *sys.modules)
tell()
for line in {lines!r}:
    sys.argv[1:] = line.split()
    try: main()
    except SystemExit as end: assert end.code in (None, 0, 1), line
    tell()
"""
    env = {"PATH": "/usr/bin:/bin", "MUNIMENT_HOME": str(base / "home"), "HOME": str(base)}
    terms = {"capture_output": True, "text": True, "cwd": base, "env": env, "input": ""}
    said = subprocess.run([sys.executable, "-c", code], check=True, **terms).stdout
    told = (line.split()[1:] for line in said.splitlines() if line.startswith("LOADED "))
    return [{*names, *(name.partition(".")[0] for name in names)} for names in told]


def test_a_command_loads_only_what_it_needs(tmp_path):
    helps = (f"{name} --help" for name in ("remember", "index", "policy", "policy prove"))
    imported, helped, *_, last = loaded(tmp_path, "--help", "--version", *helps)
    models = {"openai", "starlette", "uvicorn", "httpx", "httpx2", "asyncio", "ssl", "muniment.server"}
    heavy = models | {"structlog", "re2", "pathspec"}
    assert not (heavy | {"pydantic"}) & (imported | helped)
    # Typer itself takes pydantic to parse options; nothing of ours does before a command runs.
    assert not {name for name in last if name in heavy or name.startswith("muniment.policy.")}
    lines = ("remember mode", "doctor", "ls", "show user/a.md", "recall x", "acp")
    _, remembered, *_, recalled, conversed = loaded(tmp_path, *lines)
    assert (models | {"structlog", "rich"}) & (remembered | recalled) == set()
    assert {"openai", "starlette", "uvicorn", "asyncio"} & conversed == set()


def test_what_the_table_says_of_a_command_is_how_its_help_begins():
    def checked(group, words=()):
        for name, told in list(group.commands.items()):
            whole = group.load(name)
            assert whole.help.startswith(told.help), (*words, name)
            assert whole.help[len(told.help) :][:2] in {"", "\n\n"}, (*words, name)
            checked(whole, (*words, name)) if hasattr(whole, "commands") else None

    checked(typer.main.get_command(app))


# -- its streams -----------------------------------------------------------------------------------------


def shell(script, base, **environment):
    """Runs `script` with the program as $MUNIMENT, as a person or supervisor would."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(base), "MUNIMENT": str(PROGRAM), **environment}
    terms = {"capture_output": True, "text": True, "cwd": base, "timeout": SECONDS, "env": env}
    return subprocess.run(["/bin/bash", "-o", "pipefail", "-c", script], check=False, **terms)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-", "2>&-", "| true"])
def test_a_fact_is_saved_though_streams_are_closed_or_their_reader_has_left(closed, tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / ".muniment" / "user").rglob("*.md"))) == 2


def test_a_full_output_is_told_and_does_not_make_a_saved_fact_a_failure(tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' >/dev/full", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "standard output cannot be written: No space left on device" in done.stderr


@pytest.mark.slow
def test_closed_standard_input_is_an_empty_fact_and_no_traceback(tmp_path):
    done = shell("$MUNIMENT remember - <&-", tmp_path)
    assert (done.returncode, done.stderr.endswith("[invalid_content]\n")) == (1, True)


# -- language models -------------------------------------------------------------------------------------

ARGUMENTS = {"path": "user/a.md", "content": "Prefers dark mode.\n"}
SAVES = (tool_calls(tool_call("write_file", ARGUMENTS)), words("Saved to user/a.md."))
PROXIES = ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
OTHERS = dict.fromkeys(PROXIES, "http://127.0.0.1:1/v1")
OTHERS |= {"OPENAI_API_KEY": "another", "MUNIMENT_LOG": "DEBUG"}


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
    for name, key in (("with", CANARY), ("without", None)):
        environment = OTHERS | {"MUNIMENT_HOME": f"~/{name}", "HOME": str(tmp_path)}
        environment |= {"MUNIMENT_API_KEY": key} if key else {}
        with ChatServer(SAVES) as server:
            terms = ("--model=org/m", "--protocol=tools", f"--base-url={server.base_url}")
            done = muniment("remember", FACT, *terms, bound=False, **environment)
        check(server.requests, done.stdout + done.stderr, tmp_path / name, key)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["<(printf '%s\\n' $KEY)", "/dev/stdin <<<$KEY"])
def test_a_key_comes_through_a_pipe(tmp_path, path):
    with ChatServer(SAVES) as server:
        terms = f"--model org/m --base-url {server.base_url} --protocol tools --api-key-file {path}"
        environment = OTHERS | {"MUNIMENT_API_KEY": "another", "KEY": CANARY}
        done = shell(f"$MUNIMENT remember '{FACT}' {terms}", tmp_path, **environment)
    check(server.requests, done.stdout + done.stderr, tmp_path, CANARY)
