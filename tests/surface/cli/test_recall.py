"""`muniment recall`: for a person, as a document, and as a hook that never stands in a host's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit.cli.launched import launch, run
from kit.memories import make_roots, put
from muniment.cli import recall
from muniment.cli.app import app
from muniment.confine.root import OpenDirectory
from muniment.errors import DeadlineExceeded
from muniment.recall.recaller import Recalled
from muniment.store import catalog, upkeep
from muniment.store.audit import records
from muniment.store.state import State

NOTHING = '{"additionalContext": ""}'


@pytest.fixture
def roots(tmp_path):
    found = make_roots(tmp_path)
    put(found["user"], "editor/dark.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n")
    put(found["user"], "editor/font.md", "---\nname: Font\n---\nPrefers a dark serif font in the editor\n")
    put(found["project"], "staging.md", "Staging runs on Postgres 16 behind pgbouncer\n")
    return found


@pytest.fixture
def muniment(tmp_path, roots):
    def run(*arguments, given=None, command="recall"):
        (tmp_path / "workspace").mkdir(exist_ok=True)
        places = [f"--root={scope}={path}" for scope, path in roots.items()]
        places.append(f"--workspace={tmp_path / 'workspace'}")
        env = {"MUNIMENT_HOME": str(tmp_path / "home")}
        return CliRunner().invoke(app, [command, *arguments, *places], env=env, input=given)

    return run


def test_a_person_is_shown_path_trust_day_and_text(muniment):
    done = muniment("dark", "mode", "in", "my", "editor")
    assert done.exit_code == 0
    first, text, *_ = done.stdout.splitlines()
    assert first.startswith("user/editor/dark.md (trust: owner, 2")
    assert text == "  Prefers dark mode in the editor"


def test_where_nothing_helps_it_says_so(muniment):
    done = muniment("capital", "of", "France")
    assert (done.exit_code, done.stdout) == (0, "nothing in the memory is about that\n")


def test_the_document_names_what_may_be_excluded_the_next_time(muniment):
    first = json.loads(muniment("dark mode editor", "--json").stdout)
    assert {"entries", "text", "tokens", "abstained"} == set(first)
    assert [entry["path"] for entry in first["entries"]][:1] == ["user/editor/dark.md"]
    assert first["text"].count("<<memory ") == 1
    again = json.loads(
        muniment(
            "dark mode editor", "--json", *(f"--exclude={each['id']}" for each in first["entries"])
        ).stdout
    )
    assert not {each["id"] for each in first["entries"]} & {each["id"] for each in again["entries"]}


def test_limit_scope_and_budget_hold(muniment):
    assert len(json.loads(muniment("dark editor", "--json", "--limit=1").stdout)["entries"]) == 1
    assert json.loads(muniment("dark editor", "--json", "--scope=project").stdout)["abstained"]
    small = json.loads(muniment("dark editor", "--json", "--budget=120").stdout)
    assert small["tokens"] <= 120
    assert len(small["entries"]) <= 1


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "say what to recall"),
        (("  ",), 2, "say what to recall"),
        (("x", "--limit=0"), 2, "--limit"),
        (("x", "--hook"), 2, "from standard input"),
        (("--hook", "--json"), 2, "from standard input"),
        (("x", "--scope=nowhere"), 1, "there is no scope 'nowhere'; there are user, project [invalid_scope]"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(muniment, arguments, code, told):
    done = muniment(*arguments)
    assert done.exit_code == code
    assert told in done.output


def test_a_memory_that_cannot_be_searched_is_told_with_its_code(muniment, tmp_path):
    (tmp_path / "home" / "state").mkdir(parents=True, mode=0o700)
    (tmp_path / "home" / "state" / "ledger.db").write_bytes(b"no database" * 1_000)
    done = muniment("dark mode editor", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["code"] == "managed_memory_unavailable"


def test_an_escape_sequence_in_an_entry_reaches_no_terminal(muniment, roots):
    put(roots["user"], "odd.md", "The zebra colour scheme \x1b[2J is \x07 loud\n")
    output = muniment("zebra colour scheme").output
    assert "\x1b" not in output
    assert "\x07" not in output


# -- in a tree where nothing was ever committed --------------------------------------------------------


def tree_of(roots):
    """All that stands in the roots, with what tells whether it was written to."""
    return {
        path: (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes())
        for root in roots.values()
        for path in (root, *root.rglob("*"))
    }


def reads_of(monkeypatch):
    """The files that are read for rows, as they are."""
    found, real = [], OpenDirectory.read

    def read(self, name):
        found.append(name)
        return real(self, name)

    monkeypatch.setattr(OpenDirectory, "read", read)
    return found


@pytest.mark.parametrize("first", [("recall", "dark"), ("recall", "--hook"), ("ls",), ("index", "rebuild")])
def test_who_reads_a_tree_first_makes_the_catalog_and_nobody_reads_it_again(
    muniment, roots, tmp_path, monkeypatch, first
):
    for path in (path for root in roots.values() for path in (root, *root.rglob("*"))):
        os.utime(path, (1, 1))
    before, reads = tree_of(roots), reads_of(monkeypatch)
    monkeypatch.setattr(catalog, "_RACY_NS", -(10**18))  # The clock need not tick for the test.
    monkeypatch.setattr(catalog, "_RACY_COARSE_NS", -(10**18))
    done = muniment(*first[1:], command=first[0], given='{"prompt": "which Postgres does staging run"}')
    assert (done.exit_code, len(reads)) == (0, 3)
    assert (tmp_path / "home" / "state" / "catalog.db").exists()
    if first[0] == "index":
        return  # It writes the index, which is what it is asked for.
    assert tree_of(roots) == before
    assert "Dark mode" in muniment("dark mode editor", "--json").output
    assert "Postgres" in muniment("--hook", given='{"prompt": "which Postgres does staging run"}').output
    assert len(reads) == 3


def test_where_no_state_can_be_kept_it_is_said_once_and_recalled_all_the_same(muniment, roots, tmp_path):
    before = tree_of(roots)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "state").write_text("in the way")
    for arguments in (("dark mode editor",), ("--hook",)):
        done = muniment(*arguments, given='{"prompt": "dark mode editor"}')
        assert done.exit_code == 0
        assert "dark" in done.stdout
        (note,) = done.stderr.splitlines()
        assert note.startswith("note: ")
        assert note.endswith("so the memory is read anew each time")
    assert tree_of(roots) == before


def test_a_history_that_cannot_be_read_is_not_taken_for_none(muniment, tmp_path, monkeypatch):
    muniment("dark mode editor")
    (tmp_path / "home" / "state").chmod(0o770)
    done = muniment("dark mode editor", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "config_invalid"
    (tmp_path / "home" / "state").chmod(0o700)

    real = Path.lstat

    def refuse(path):
        if path.name == "ledger.db":
            raise PermissionError
        return real(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    (tmp_path / "home" / "state" / "ledger.db").write_bytes(b"no database" * 1_000)
    assert muniment("dark mode editor").exit_code == 1


def test_a_hook_that_has_no_time_to_read_everything_answers_and_gets_further(muniment, monkeypatch):
    monkeypatch.setattr(catalog, "BATCH", 1)
    reads, real = reads_of(monkeypatch), upkeep._patiently

    def one_at_a_time(assess, patience):
        left = [1]

        def one(*asked):
            if not left[0]:
                raise DeadlineExceeded("no time")
            left[0] -= 1
            return assess(*asked)

        return real(one, patience)

    monkeypatch.setattr(upkeep, "_patiently", one_at_a_time)
    answers = [muniment("--hook", given='{"prompt": "dark mode editor"}') for _ in range(5)]
    assert "in the editor" in answers[0].stdout
    assert "dark mode in the editor" in answers[-1].stdout
    assert all(each.exit_code == 0 for each in answers)
    assert len(reads) < 20


# -- as a hook -----------------------------------------------------------------------------------------


def test_a_hook_answers_an_event_and_puts_it_on_record(muniment, tmp_path):
    with State(tmp_path / "home" / "state"):
        pass
    done = muniment("--hook", given=json.dumps({"prompt": "Which Postgres does staging run?", "cwd": "/"}))
    answer = json.loads(done.stdout)
    assert set(answer) == {"additionalContext"}
    assert "Staging runs on Postgres 16" in answer["additionalContext"]
    with State(tmp_path / "home" / "state") as state:
        (record,) = [each for each in records(state) if each.kind == "injection"]
    assert record.body["where"] == "hook"
    assert [each["path"] for each in record.body["entries"]] == ["project/staging.md"]
    assert "pgbouncer" not in json.dumps(record.body)


def test_a_host_that_names_its_event_finds_the_answer_below_that_name(muniment):
    event = {"prompt": "staging postgres", "hook_event_name": "UserPromptSubmit"}
    answer = json.loads(muniment("--hook", given=json.dumps(event)).stdout)
    assert answer["hookSpecificOutput"] == {
        "hookEventName": "UserPromptSubmit",
        "additionalContext": answer["additionalContext"],
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "there is no JSON on standard input"),
        ("{", "there is no JSON on standard input"),
        ("[" * 100_000, "there is no JSON on standard input"),
        ("[]", 'no object with a text as "prompt"'),
        ('{"prompt": 7}', 'no object with a text as "prompt"'),
        ('{"message": "x"}', 'no object with a text as "prompt"'),
    ],
)
def test_whatever_a_host_sends_it_gets_an_answer_and_zero(muniment, given, told):
    done = muniment("--hook", given=given)
    assert (done.exit_code, done.stdout.strip()) == (0, NOTHING)
    assert f"nothing was recalled: {told}" in done.stderr or told in done.stderr


@pytest.mark.parametrize("arguments", [("--policy=nowhere",), ("--root=nix=/nowhere/at/all",)])
def test_a_hook_that_cannot_open_the_memory_answers_all_the_same(muniment, arguments):
    done = muniment("--hook", *arguments, given='{"prompt": "dark mode editor"}')
    assert (done.exit_code, done.stdout.strip()) == (0, NOTHING)
    assert done.stderr.startswith("nothing was recalled: ")


def test_a_disk_that_hangs_keeps_no_host_waiting(muniment, monkeypatch):
    release = threading.Event()

    def hang(*_args, **_named):
        release.wait(30)
        return Recalled()

    monkeypatch.setattr(recall, "_recalled", hang)
    monkeypatch.setattr(recall, "HOOK_SECONDS", 0.05)
    done = muniment("--hook", given='{"prompt": "dark mode editor"}')
    release.set()
    assert (done.exit_code, done.stdout.strip()) == (0, NOTHING)
    assert done.stderr == "nothing was recalled: it took more than 0.05 s\n"


def test_a_defect_keeps_no_host_from_going_on(muniment, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(recall, "find_place", lambda *_args, **_named: 1 / 0)
    done = muniment("--hook", given='{"prompt": "dark mode editor"}')
    assert (done.exit_code, done.stdout.strip(), done.stderr) == (
        0,
        NOTHING,
        "nothing was recalled: a defect\n",
    )


@pytest.mark.slow
def test_a_host_that_never_ends_its_event_is_answered_in_five_seconds(tmp_path):
    process = launch(tmp_path, "recall", "--hook")
    answer = json.loads(process.stdout.readline())
    assert process.wait(10) == 0
    assert answer == {"additionalContext": ""}
    assert process.communicate() == (b"", b"nothing was recalled: it took more than 4 s\n")


def test_the_hook_is_one_process_with_one_answer(tmp_path):
    assert run(tmp_path, "remember", "The user prefers dark mode in all editors")[0] == 0
    code, out, err = run(tmp_path, "recall", "--hook", given=b'{"prompt": "dark mode in my editor"}')
    assert (code, err) == (0, "")
    assert "Prefers dark mode in all editors" in json.loads(out)["additionalContext"]


def test_a_recall_loads_no_client_of_a_model_and_no_server(tmp_path):
    code = (
        "import sys, muniment.cli.recall; "
        "print({'openai', 'starlette', 'uvicorn', 'httpx2', 'muniment.daemon'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "set()\n"
