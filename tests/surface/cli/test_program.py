"""The program as a process: loaded modules, streams, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from kit.cli.process import SECONDS, has_open, launch, wait_until
from kit.memories import CANARY, take_snapshot
from kit.server.process import lock_roots
from muniment.cli.app import app
from muniment.cli.options import ToolName
from muniment.testing.chat_server import ChatServer, make_tool_call, text_response, tool_calls_response

PROGRAM = Path(sys.executable).with_name("muniment")
FACT = "The user prefers dark mode"


def test_ctrl_c_during_lock_wait_writes_nothing(tmp_path):
    root = tmp_path / "home" / "user"
    for directory in (root.parent, root):
        directory.mkdir(mode=0o700)
    before = take_snapshot(root)
    with lock_roots(root):
        process = launch(tmp_path, "remember", FACT, "--scope", "user", "--json", MUNIMENT_LOG="INFO")
        wait_until(process, lambda: wants_lock(process.pid, root))
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=SECONDS)[0])
    outcome = process.returncode, document["status"], document["error"]["code"]
    assert (*outcome, take_snapshot(root) == before) == (130, "cancelled", "cancelled", True)


def wants_lock(pid, root):
    """Return whether the process has a readable descriptor of the root, which is that of a lock (a root is
    O_PATH).
    """
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            flags = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text().split("flags:")[1].split()[0]
            if each.samefile(root) and not int(flags, 8) & os.O_PATH:
                return True
        except OSError:
            continue
    return False


def test_ctrl_c_during_key_read_exits(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    flags = ("--model=m", "--base-url=http://127.0.0.1:1/v1", f"--api-key-file={fifo}")
    process = launch(tmp_path, "remember", FACT, *flags)
    writer = os.open(fifo, os.O_RDWR)  # A FIFO with a writer makes its reader wait.
    wait_until(process, lambda: has_open(process.pid, fifo))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=SECONDS) == (b"", b"cancelled: nothing was written [cancelled]\n")
    os.close(writer)
    assert process.returncode == 130
    assert list((tmp_path / "home").iterdir()) == []


# -- loaded modules ------------------------------------------------------------------------------------


def list_loaded_modules(base, *lines):
    """Return the modules that a process has loaded after importing the commands and after each line."""
    code = f"""
import os, sys
from muniment.cli import app
from muniment.cli.entry import main
def report(): print('\\nLOADED', *sys.modules)
report()
for line in {lines!r}:
    sys.argv[1:] = line.split()
    try: main()
    except SystemExit as end: assert end.code in (None, 0, 1), line
    report()
"""
    env = {"PATH": "/usr/bin:/bin", "MUNIMENT_HOME": str(base / "home"), "HOME": str(base)}
    options = {"capture_output": True, "text": True, "cwd": base, "env": env, "input": ""}
    output = subprocess.run([sys.executable, "-c", code], check=True, **options).stdout
    listings = (line.split()[1:] for line in output.splitlines() if line.startswith("LOADED "))
    return [{*names, *(name.partition(".")[0] for name in names)} for names in listings]


def test_command_loads_only_required_modules(tmp_path):
    helps = (f"{name} --help" for name in ("remember", "index", "policy", "policy prove"))
    imported, helped, *_, last = list_loaded_modules(tmp_path, "--help", "--version", *helps)
    models = {"openai", "starlette", "uvicorn", "httpx", "httpx2", "asyncio", "ssl", "muniment.server"}
    heavy = models | {"structlog", "re2", "pathspec"}
    assert not (heavy | {"pydantic"}) & (imported | helped)
    # Typer loads pydantic to convert options; Muniment loads nothing before a command runs.
    assert not {name for name in last if name in heavy or name.startswith("muniment.policy.")}

    lines = ("remember mode", "doctor", "ls", "show user/a.md", "recall x", "acp")
    _, remembered, *_, recalled, conversed = list_loaded_modules(tmp_path, *lines)
    assert (models | {"structlog", "rich"}) & (remembered | recalled) == set()
    assert {"openai", "starlette", "uvicorn", "asyncio"} & conversed == set()


def test_plain_recall_and_ls_load_no_models(tmp_path):
    *_, last = list_loaded_modules(tmp_path, "ls", "ls user", "recall tea", "recall tea --json --scope user")
    unused = {"pydantic", "pathspec", "muniment.policy.load", "muniment.policy.tables"}
    assert not unused & last


VALUES = {
    "recall tea": {"words": ["tea"], "limit": 5, "exclude": (), "workspace": None, "hook": False},
    "recall a --limit 7": {"words": ["a"], "limit": 7},
    "recall a b --exclude x --exclude y": {"words": ["a", "b"], "exclude": ["x", "y"]},
    "recall a --workspace /tmp": {"workspace": Path("/tmp")},
    "ls": {"path": "", "root": ()},
    "ls user": {"path": "user"},
    "setup codex": {"tool": ToolName.CODEX, "daemon": False},
}


@pytest.mark.parametrize("line", VALUES)
def test_option_has_its_declared_type(line):
    name, *words = line.split()
    program = typer.main.get_command(app)
    with program.load(name).make_context(name, words) as context:
        found = {key: context.params[key] for key in VALUES[line]}
    assert found == VALUES[line]
    assert [*map(type, found.values())] == [*map(type, VALUES[line].values())]


@pytest.mark.parametrize("words", [["a", "--limit", "0"], ["a", "--limit", "x"], ["a", "--nothing"]])
def test_wrong_option_of_recall_is_a_usage_error(words):
    recall = typer.main.get_command(app).load("recall")
    with pytest.raises(typer.BadParameter.__base__):
        recall.make_context("recall", words)


def test_command_table_matches_help():
    def check_group(group, prefix=()):
        for name, listed in list(group.commands.items()):
            whole = group.load(name)
            assert whole.help.startswith(listed.help), (*prefix, name)
            assert whole.help[len(listed.help) :][:2] in {"", "\n\n"}, (*prefix, name)
            check_group(whole, (*prefix, name)) if hasattr(whole, "commands") else None

    check_group(typer.main.get_command(app))


# -- streams -------------------------------------------------------------------------------------------


def shell(script, base, **environment):
    """Run `script` with the program as $MUNIMENT, like a person or a supervisor."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(base), "MUNIMENT": str(PROGRAM), **environment}
    options = {"capture_output": True, "text": True, "cwd": base, "timeout": SECONDS, "env": env}
    return subprocess.run(["/bin/bash", "-o", "pipefail", "-c", script], check=False, **options)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-", "2>&-", "| true"])
def test_remember_works_with_closed_streams(closed, tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / ".muniment" / "user").rglob("*.md"))) == 2


def test_full_output_is_reported_and_fact_is_saved(tmp_path):
    done = shell(f"$MUNIMENT remember '{FACT}' >/dev/full", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "standard output cannot be written: No space left on device" in done.stderr


@pytest.mark.slow
def test_closed_stdin_is_empty_fact_without_traceback(tmp_path):
    done = shell("$MUNIMENT remember - <&-", tmp_path)
    assert (done.returncode, done.stderr.endswith("[invalid_content]\n")) == (1, True)


# -- language models -----------------------------------------------------------------------------------

ARGUMENTS = {"path": "user/a.md", "content": "Prefers dark mode.\n"}
SAVES = (tool_calls_response(make_tool_call("write_file", ARGUMENTS)), text_response("Saved to user/a.md."))
PROXIES = ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
OTHERS = dict.fromkeys(PROXIES, "http://127.0.0.1:1/v1")
OTHERS |= {"OPENAI_API_KEY": "another", "MUNIMENT_LOG": "DEBUG"}


def check_requests(requests, output, base, key):
    """Check that only the given key and model were used, and that the key is neither printed nor stored."""
    sent = [(each.headers.get("authorization"), each.body["model"]) for each in requests]
    assert sent == [(key and f"Bearer {key}", "org/m")] * 2
    assert "  decided by org/m, 2 turns, " in output
    assert CANARY not in output
    assert list(base.iterdir())
    assert not [path for path in base.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


@pytest.mark.usefixtures("work_directory")
def test_language_model_uses_only_muniment_key_and_settings(cli, tmp_path):
    for name, key in (("with", CANARY), ("without", None)):
        environment = OTHERS | {"MUNIMENT_HOME": f"~/{name}", "HOME": str(tmp_path)}
        environment |= {"MUNIMENT_API_KEY": key} if key else {}
        with ChatServer(SAVES) as server:
            options = ("--model=org/m", "--protocol=tools", f"--base-url={server.base_url}", "--verbose")
            done = cli("remember", FACT, *options, bound=False, **environment)
        check_requests(server.requests, done.stdout + done.stderr, tmp_path / name, key)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["<(printf '%s\\n' $KEY)", "/dev/stdin <<<$KEY"])
def test_api_key_file_may_be_a_pipe(tmp_path, path):
    with ChatServer(SAVES) as server:
        options = (
            f"--model org/m --base-url {server.base_url} --protocol tools --api-key-file {path} --verbose"
        )
        environment = OTHERS | {"MUNIMENT_API_KEY": "another", "KEY": CANARY}
        done = shell(f"$MUNIMENT remember '{FACT}' {options}", tmp_path, **environment)
    check_requests(server.requests, done.stdout + done.stderr, tmp_path, CANARY)
