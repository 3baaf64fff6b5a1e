"""`muniment recall`: as text, as JSON, and as a hook that never blocks a host."""

import json
import os
import re
import sqlite3
import subprocess
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from kit.cli.process import launch
from kit.cli.tool_events import TOOLS, get_event_name, get_injected_text, make_event
from kit.memories import make_roots, write_file
from muniment.cli import recall
from muniment.errors import DeadlineExceeded, ManagedMemoryUnavailable
from muniment.integrations.coding_tools import hook as hook_module
from muniment.kernel import cancel
from muniment.kernel.cancel import Deadline
from muniment.kernel.listing import OpenDirectory
from muniment.recall.recaller import Recaller
from muniment.store import injected, upkeep, visit, watching
from muniment.store.audit import read_records
from muniment.store.state import State
from muniment.types import Recalled
from muniment.workspaces.projects import compute_project_id

NOTHING = "{}"


@pytest.fixture
def roots(tmp_path):
    found = make_roots(tmp_path)
    for name, text in (("Dark mode", "Prefers dark mode"), ("Font", "Prefers a dark serif font")):
        path = f"editor/{name.lower().partition(' ')[0]}.md"
        write_file(found["user"], path, f"---\nname: {name}\n---\n{text} in the editor\n")
    write_file(found["project"], "staging.md", "Staging runs on Postgres 16 behind pgbouncer\n")
    return found


@pytest.fixture
def hook(cli, monkeypatch):
    """Return a function that sends an event to the hook and returns answer and notes; it never fails.

    Sessions get no standing context; test_hook.py has its tests.
    """
    monkeypatch.setenv("MUNIMENT_STANDING", "off")

    def hook(event='{"prompt": "dark mode editor"}', *flags):
        done = cli("recall", "--hook", *flags, stdin=event)
        assert done.exit_code == 0
        (line,) = done.stdout.splitlines()
        return line, done.stderr

    return hook


def test_recall_prints_records_with_escaped_text(cli, roots):
    first, *_ = cli.run_for_records("recall", "dark", "mode", "in", "my", "editor")
    assert (first.text, first.place, first.trust) == (
        "Prefers dark mode in the editor",
        "user/editor",
        "owner",
    )
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[0-9:.]+Z", first.time)
    assert cli.run_for_document("show", first.handle)["path"] == "user/editor/dark.md"
    (staging,) = cli.run_for_records("recall", STAGING)
    assert re.fullmatch(r"Staging runs on .* pgbouncer", staging.text)
    assert (staging.place, staging.trust) == ("project", "workspace")
    nothing = cli("recall", "capital", "of", "France")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "note: no entry matches; to list all entries: muniment ls\n"
    for name, odd in (("odd", "\x1b[2J is \x07"), ("let-pass", "is \ue000")):
        write_file(roots["user"], f"{name}.md", f"The zebra colour scheme {odd} loud\n")
    output = " ".join(cli.run_for_lines("recall", "zebra colour scheme"))
    assert "The zebra colour scheme is \\u{e000} loud" in output
    assert not set("\x1b\x07\ue000") & set(output)
    (message,) = cli.run_for_lines("recall", "x", "--scope=nowhere", code=1)
    assert message.endswith("unknown scope 'nowhere'; use one of user, project [invalid_scope]")


def test_recall_json_supports_exclude_limit_scope_and_budget(cli):
    first = cli.run_for_document("recall", "dark mode editor")
    assert set(first) == {"entries", "text", "tokens", "abstained"}
    assert first["entries"][0]["path"] == "user/editor/dark.md"
    assert first["text"].count("<<memory ") == 1
    ids = {entry["id"] for entry in first["entries"]}
    second = cli.run_for_document("recall", "dark mode editor", *(f"--exclude={each}" for each in ids))
    assert not ids & {entry["id"] for entry in second["entries"]}
    assert len(cli.run_for_document("recall", "dark editor", "--limit=1")["entries"]) == 1
    assert cli.run_for_document("recall", "dark editor", "--scope=project")["abstained"]
    small = cli.run_for_document("recall", "dark editor", "--budget=95")
    assert (small["tokens"] <= 95, len(small["entries"])) == (True, 1)
    refused = cli.run_for_document("recall", "dark editor", "--budget=20", code=1)
    assert "too small for one entry; use at least" in refused["error"]["message"]


# -- in a tree without a commit ------------------------------------------------------------------------


def photograph_tree(roots):
    """Return everything in the roots, with the data that shows writes."""
    paths = [path for root in roots.values() for path in (root, *root.rglob("*"))]
    return {path: (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in paths}


@pytest.fixture
def reads(monkeypatch):
    """Record the files that are read for catalog rows."""
    found, real = [], OpenDirectory.read
    monkeypatch.setattr(OpenDirectory, "read", lambda self, name: found.append(name) or real(self, name))
    return found


@pytest.fixture
def no_racy_times(monkeypatch):
    """Treat recent writes as old ones: their rows need no extra check."""
    monkeypatch.setattr(visit, "_RACY_NS", -(10**18))
    monkeypatch.setattr(visit, "_RACY_COARSE_NS", -(10**18))


@pytest.mark.usefixtures("no_racy_times")
@pytest.mark.parametrize("first", ["recall dark", "recall --hook", "ls", "index rebuild"])
def test_first_reader_of_tree_creates_catalog(cli, hook, roots, home, reads, first):
    for path in photograph_tree(roots):
        os.utime(path, (1, 1))
    before = photograph_tree(roots)
    event = '{"prompt": "which Postgres does staging run"}'
    cli.run_for_lines(*first.split(), stdin=event)
    assert (len(reads), (home / "state" / "catalog.db").exists()) == (3, True)
    if first == "index rebuild":
        return  # It has to write the index.
    assert photograph_tree(roots) == before
    assert "Dark mode" in cli("recall", "dark mode editor", "--json").output
    assert "Postgres" in hook(event)[0]
    assert len(reads) == 3


@pytest.mark.usefixtures("no_racy_times")
@pytest.mark.parametrize("few", [2_000, 0])
def test_recall_finds_append_of_another_process(cli, roots, monkeypatch, few):
    monkeypatch.setattr(watching, "FEW_FILES", few)
    cli("recall", "dark mode editor")
    file = roots["user"] / "editor" / "dark.md"
    inode = file.stat().st_ino
    subprocess.run(["/bin/sh", "-c", 'echo "Light mode outdoors" >> "$0"', str(file)], check=True, timeout=20)
    assert file.stat().st_ino == inode
    assert "Light mode outdoors" in cli("recall", "dark mode editor").stdout
    if few:  # With many files: by its old words at once, and by new words within a minute.
        subprocess.run(
            ["/bin/sh", "-c", 'echo "and in zeppelins" >> "$0"', str(file)], check=True, timeout=20
        )
        assert "zeppelins" in cli("recall", "what in zeppelins, outdoors?").stdout


def test_recall_without_state_works_and_prints_one_note(cli, hook, roots, home):
    before = photograph_tree(roots)
    home.mkdir()
    (home / "state").write_text("in the way")
    done = cli("recall", "dark mode editor")
    assert done.exit_code == 0
    for output, note in ((done.stdout, done.stderr), hook()):
        assert "dark" in output
        assert re.fullmatch("note: .*therefore each command reads the whole memory, which is slower\n", note)
    assert photograph_tree(roots) == before


def test_unreadable_ledger_is_an_error(cli, home, monkeypatch):
    cli("recall", "dark mode editor")
    (home / "state").chmod(0o770)
    assert cli.run_for_error_code("recall", "dark mode editor") == "config_invalid"
    (home / "state").chmod(0o700)
    (home / "state" / "ledger.db").write_bytes(b"no database" * 1_000)
    assert cli.run_for_error_code("recall", "dark mode editor") == "managed_memory_unavailable"
    real, refused = Path.lstat, Mock(side_effect=PermissionError)
    monkeypatch.setattr(Path, "lstat", lambda path: (refused if path.name == "ledger.db" else real)(path))
    assert cli("recall", "dark mode editor").exit_code == 1


@pytest.mark.usefixtures("no_racy_times")
def test_hook_without_time_answers_and_makes_progress(hook, reads, monkeypatch):
    def limit_to_one(*options):
        def assess_one(*arguments):
            if first.called:
                raise DeadlineExceeded("no time")
            return first(*arguments)

        first = Mock(wraps=real(*options))
        return assess_one

    real = upkeep.build_assessment
    monkeypatch.setattr(visit, "BATCH", 1)
    monkeypatch.setattr(upkeep, "build_assessment", limit_to_one)
    answers = [hook()[0] for _ in range(5)]
    assert "in the editor" in answers[0]
    assert "dark mode in the editor" in answers[-1]
    assert len(reads) < 20


# -- as a hook -----------------------------------------------------------------------------------------


def test_hook_answers_unnamed_event_and_records_injection(hook, home):
    with State(home / "state"):
        pass
    answer = json.loads(hook(json.dumps({"prompt": "Which Postgres does staging run?", "cwd": "/"}))[0])
    assert set(answer) == {"additionalContext"}
    assert "Staging runs on Postgres 16" in answer["additionalContext"]
    with State(home / "state") as state:
        (body,) = [each.body for each in read_records(state) if each.kind == "injection"]
    assert (body["where"], [each["path"] for each in body["entries"]]) == ("hook", ["project/staging.md"])
    assert "pgbouncer" not in json.dumps(body)


STAGING, OFF_TOPIC = "Which Postgres does staging run?", "capital of France"
COMPACTIONS = {
    **dict.fromkeys(("claude-code", "codex", "qwen-code"), ("SessionStart", {"source": "compact"})),
    "gemini-cli": ("PreCompress", {"trigger": "manual"}),
    "cursor": ("preCompact", {}),
}


# Each other member, empty text, or answer to another event is rejected by at least one of the tools.
@pytest.mark.parametrize("tool", TOOLS)
def test_hook_answers_each_tool_in_its_format(hook, tool):
    compaction, members = COMPACTIONS[tool]

    def answer(event, **more):
        line, notes = hook(json.dumps(make_event(tool, event, **more)))
        assert (notes, len(line) < 10_000) == ("", True)
        return json.loads(line)

    first = answer("prompt", prompt=STAGING)
    if tool == "cursor":
        assert set(first) == {"continue", "additional_context"}
        assert first["continue"] is True
        assert "Staging runs on Postgres 16" in first["additional_context"]
    else:
        assert set(first) == {"hookSpecificOutput"}
        assert set(first["hookSpecificOutput"]) == {"hookEventName", "additionalContext"}
        assert first["hookSpecificOutput"]["hookEventName"] == get_event_name(tool, "prompt")
        assert "Staging runs on Postgres 16" in first["hookSpecificOutput"]["additionalContext"]
    for empty_prompt in (OFF_TOPIC, STAGING, ""):  # Off topic, already injected, and without words.
        assert answer("prompt", prompt=empty_prompt) == {}
    assert answer("start", source="resume") == {}
    assert answer("prompt", prompt=STAGING) == {}, "the old conversation still has it"
    assert answer(compaction, **members) == {}
    assert set(answer("prompt", prompt=STAGING)) == set(first)


def test_hook_from_cursor_uses_named_workspace(cli, tmp_path, monkeypatch, home):
    work = tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    (work.parent / ".git").mkdir()
    memory = home / "projects" / compute_project_id(work.parent) / "memory"
    memory.mkdir(parents=True)
    for directory in (home, *home.rglob("*")):
        directory.chmod(0o700)
    write_file(memory, "staging.md", "Staging runs on Postgres 16 behind pgbouncer\n")
    monkeypatch.chdir("/")
    event = make_event("cursor", "prompt", prompt=STAGING)
    for roots, found in (([str(work)], True), (["/nowhere/at/all"], False), ([7], False), ("/", False)):
        sent = json.dumps(event | {"workspace_roots": roots})
        line = cli("recall", "--hook", stdin=sent, bound=False).stdout
        assert ("Postgres 16" in line, line == "{}\n") == (found, not found)


def test_hook_prefers_submitted_prompt(hook):
    event = make_event("qwen-code", "prompt", prompt=OFF_TOPIC, submitted_prompt=STAGING)
    assert "Postgres 16" in hook(json.dumps(event))[0]
    event |= {"prompt": STAGING, "submitted_prompt": OFF_TOPIC}
    assert hook(json.dumps(event))[0] == NOTHING


def test_hook_output_stays_below_tool_limit(hook, roots):
    for number in range(40):
        write_file(
            roots["user"], f"zebra/{number}.md", f"The zebra colour scheme {number} is loud {'é' * 900}\n"
        )
    named = {"prompt": "zebra colour scheme", "hook_event_name": "UserPromptSubmit"}
    line, _ = hook(json.dumps(named), "--budget=100000", "--limit=40")
    text = json.loads(line)["hookSpecificOutput"]["additionalContext"]
    assert 5_000 < len(text.encode()) < 10_000


def test_hook_never_fails_for_any_input(hook, monkeypatch):
    no_json, no_prompt = (
        "invalid event on standard input: not JSON; use a JSON object",
        'expected an object with a string "prompt"',
    )
    dark = '{"prompt": "dark mode editor"}'
    for why, event, *flags in (
        *((no_json, text) for text in ("", "{", "[" * 100_000)),
        *((no_prompt, text) for text in ("[]", '{"prompt": 7}', '{"message": "x"}')),
        *(("", dark, flag) for flag in ("--policy=nowhere", "--root=nix=/nowhere/at/all")),
    ):
        line, notes = hook(event, *flags)
        assert (line, notes.startswith("nothing was recalled: "), why in notes) == (NOTHING, True, True)
    release = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Recaller, "recall", lambda *_, **__: release.wait(30) and Recalled())
        patch.setattr(hook_module, "HOOK_SECONDS", 0.05)
        assert hook() == (NOTHING, "nothing was recalled: it took longer than 0.05 s\n")
        release.set()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("muniment.opening.open_context", lambda *_args, **_named: 1 / 0)
    assert hook() == (NOTHING, "nothing was recalled: internal error\n")


# -- injected entries ----------------------------------------------------------------------------------

DARK = "dark mode editor"


@pytest.fixture
def prompt(hook):
    """Return a function that sends a prompt of a session and returns the injected text."""

    def prompt(session, text=DARK, **more):
        event = json.dumps({"prompt": text, "session_id": session, **more})
        return get_injected_text(json.loads(hook(event)[0]))

    return prompt


def count_rows(home):
    """Return the row counts of sessions and injected entries."""
    with State(home / "state") as state:
        return tuple(
            state.ledger.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("session", "told")
        )


def test_session_receives_only_new_entries(prompt, roots):
    assert "dark mode in the editor" in prompt("one")
    assert prompt("one") == prompt("one", "which dark font, which mode in the editor?") == ""
    assert "Staging" in prompt("one", STAGING)
    with (roots["user"] / "editor" / "dark.md").open("a") as file:  # In place: the directory does not change.
        file.write("But light mode outdoors\n")
    edited = prompt("one")
    assert ("light mode outdoors" in edited, "serif" in edited) == (True, False)
    assert prompt("one") == ""
    assert "dark mode in the editor" in prompt("two")
    assert prompt(None)
    assert prompt(None)  # Without a session the entries are injected each time.


@pytest.mark.parametrize(
    "event", ["SessionStart", "PreCompact", "PostCompact", "PreCompress", "sessionStart", "session_start"]
)
def test_session_start_and_compaction_reset_injected_entries(prompt, hook, home, event):
    assert prompt("one") != prompt("one") == ""
    line, notes = hook(json.dumps({"session_id": "one", "hook_event_name": event, "source": "compact"}))
    assert (line, notes, count_rows(home)) == (NOTHING, "", (0, 0))
    assert prompt("one", hook_event_name="UserPromptSubmit") != ""
    assert prompt("one", hook_event_name="Stop") == ""


def test_injected_entries_expire_and_clock_changes_hide_none(prompt, home, monkeypatch):
    now = Mock(wraps=datetime)
    monkeypatch.setattr(hook_module, "datetime", now)
    start = datetime.now(UTC)
    for days, is_injected in (
        (0, True),
        (29, False),
        (-0.9, False),
        (31, True),
        (31, False),
        (-5, True),
        (-5, False),
    ):
        now.now = lambda _zone, days=days: start + timedelta(days=days)
        assert (prompt("one") != "") == is_injected, days
    assert count_rows(home)[0] == 1


def test_oldest_sessions_and_injected_entries_are_removed(prompt, home, monkeypatch):
    monkeypatch.setattr(injected, "MAX_SESSIONS", 3)
    monkeypatch.setattr(injected, "MAX_INJECTED", 2)
    for number in range(6):
        prompt(f"s{number}")
        prompt(f"s{number}", STAGING)
    assert count_rows(home) == (3, 6)
    assert prompt("s5", STAGING) == ""
    assert "editor" in prompt("s5")  # The oldest of its three injected entries was removed.
    assert prompt("s0") != ""


def test_hostile_session_id_works_and_is_stored_nowhere(prompt, hook, home):
    ids = [
        "\0",
        "\ud800",
        "' OR 1=1 --",
        "\x1b[2J\n",
        "../../x",
        "x" * 3_000_000,
        "CANARY-5e1f",
        " ",
        "é",
        "e\u0301",
    ]
    for unsafe in ids:
        assert (prompt(unsafe) != "", prompt(unsafe)) == (True, ""), unsafe[:20]
    assert count_rows(home)[0] == len(ids)
    for unsafe in (None, 7, "", [], {"a": 1}, True):
        assert all(prompt(unsafe) for _ in range(2)), unsafe
    assert count_rows(home)[0] == len(ids)
    assert not any(b"CANARY" in path.read_bytes() for path in (home / "state").iterdir())
    assert hook(json.dumps({"prompt": DARK, "session_id": "x" * 10_000_000}))[0] == NOTHING


def test_late_answer_does_not_count_as_injected(prompt, monkeypatch):
    release, real = threading.Event(), Recaller.recall
    threads = set(threading.enumerate())

    def recall_slowly(*arguments, **named):
        release.wait(30)
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Recaller, "recall", recall_slowly)
        patch.setattr(hook_module, "HOOK_SECONDS", 0.05)
        patch.setattr(cancel, "Deadline", lambda _: Deadline(float("inf")))  # It ignores the deadline.
        patch.setattr(recall, "RECORD_SECONDS", 0.0)
        assert prompt("one") == ""
        release.set()
        for thread in set(threading.enumerate()) - threads:
            thread.join(30)
    assert prompt("one") != ""


def test_hook_answers_if_ledger_is_busy_or_unwritable(prompt, home, monkeypatch):
    refused = Mock(side_effect=ManagedMemoryUnavailable("ledger.db", "full"))
    with monkeypatch.context() as patch:
        patch.setattr(injected.HookSession, "record_injected", refused)
        assert prompt("one") != ""
    with closing(sqlite3.connect(home / "state" / "ledger.db")) as other, monkeypatch.context() as patch:
        patch.setattr(recall, "RECORD_SECONDS", 0.0)
        patch.setattr(hook_module, "HOOK_SECONDS", 3.0)
        patch.setattr("muniment.store.database.BUSY_SECONDS", 0.05)
        other.execute("BEGIN IMMEDIATE")
        assert prompt("one") != ""
        other.rollback()
    assert (prompt("one") != "", prompt("one")) == (True, "")


def test_erase_removes_sessions_that_received_the_entry(cli, prompt, home):
    prompt("one")
    assert count_rows(home) == (1, 2)
    cli("erase", "user/editor/dark.md", "--yes")
    assert count_rows(home) == (0, 0)


@pytest.mark.slow
def test_hook_answers_in_five_seconds_if_event_never_ends(tmp_path):
    process = launch(tmp_path, "recall", "--hook")
    answer = json.loads(process.stdout.readline())
    assert (process.wait(10), answer) == (0, {})
    assert process.communicate() == (b"", b"nothing was recalled: it took longer than 4 s\n")
