"""`muniment recall`: for a person, as a document, and as a hook that never stands in a host's way."""

import json
import os
import re
import sqlite3
import subprocess
import threading
from contextlib import closing
from datetime import UTC, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from kit.cli.launched import launch
from kit.memories import make_roots, put
from muniment.cli import recall
from muniment.errors import DeadlineExceeded, ManagedMemoryUnavailable
from muniment.kernel import cancel
from muniment.kernel.cancel import Patience
from muniment.kernel.listing import OpenDirectory
from muniment.store import told, upkeep, visit, watching
from muniment.store.audit import records
from muniment.store.state import State
from muniment.types import Recalled
from muniment.workspaces.projects import workspace_key

NOTHING = "{}"


@pytest.fixture
def roots(tmp_path):
    found = make_roots(tmp_path)
    for name, text in (("Dark mode", "Prefers dark mode"), ("Font", "Prefers a dark serif font")):
        path = f"editor/{name.lower().partition(' ')[0]}.md"
        put(found["user"], path, f"---\nname: {name}\n---\n{text} in the editor\n")
    put(found["project"], "staging.md", "Staging runs on Postgres 16 behind pgbouncer\n")
    return found


@pytest.fixture
def hook(muniment):
    """What the hook answers to an event, and what it says besides; it never fails."""

    def hook(event='{"prompt": "dark mode editor"}', *flags):
        done = muniment("recall", "--hook", *flags, stdin=event)
        assert done.exit_code == 0
        (line,) = done.stdout.splitlines()
        return line, done.stderr

    return hook


def test_a_person_is_shown_path_trust_day_and_text_and_nothing_raw(muniment, roots):
    first, text, *_ = muniment.lines("recall", "dark", "mode", "in", "my", "editor")
    assert first.startswith("user/editor/dark.md (trust: owner, 2")
    assert text == "  Prefers dark mode in the editor"
    assert muniment.lines("recall", "capital", "of", "France") == ["no entry matches"]
    for name, odd in (("odd", "\x1b[2J is \x07"), ("let-pass", "is \ue000")):
        put(roots["user"], f"{name}.md", f"The zebra colour scheme {odd} loud\n")
    shown = " ".join(muniment.lines("recall", "zebra colour scheme"))
    assert "The zebra colour scheme is \\u{e000} loud" in shown
    assert not set("\x1b\x07\ue000") & set(shown)
    (told,) = muniment.lines("recall", "x", "--scope=nowhere", code=1)
    assert told.endswith("unknown scope 'nowhere'; use one of user, project [invalid_scope]")


def test_the_document_names_what_may_be_excluded_and_limit_scope_and_budget_hold(muniment):
    first = muniment.document("recall", "dark mode editor")
    assert set(first) == {"entries", "text", "tokens", "abstained"}
    assert first["entries"][0]["path"] == "user/editor/dark.md"
    assert first["text"].count("<<memory ") == 1
    seen = {entry["id"] for entry in first["entries"]}
    again = muniment.document("recall", "dark mode editor", *(f"--exclude={each}" for each in seen))
    assert not seen & {entry["id"] for entry in again["entries"]}
    assert len(muniment.document("recall", "dark editor", "--limit=1")["entries"]) == 1
    assert muniment.document("recall", "dark editor", "--scope=project")["abstained"]
    small = muniment.document("recall", "dark editor", "--budget=140")
    assert (small["tokens"] <= 140, len(small["entries"])) == (True, 1)
    refused = muniment.document("recall", "dark editor", "--budget=20", code=1)
    assert "too small for one entry; use at least" in refused["error"]["message"]


# -- in a tree where nothing was ever committed --------------------------------------------------------


def tree_of(roots):
    """All that stands in the roots, with what tells whether it was written to."""
    paths = [path for root in roots.values() for path in (root, *root.rglob("*"))]
    return {path: (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in paths}


@pytest.fixture
def reads(monkeypatch):
    """The files that are read for rows, as they are."""
    found, real = [], OpenDirectory.read
    monkeypatch.setattr(OpenDirectory, "read", lambda self, name: found.append(name) or real(self, name))
    return found


@pytest.fixture
def settled(monkeypatch):
    """What was just written counts as written long ago: its row is believed without a tick."""
    monkeypatch.setattr(visit, "_RACY_NS", -(10**18))
    monkeypatch.setattr(visit, "_RACY_COARSE_NS", -(10**18))


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("first", ["recall dark", "recall --hook", "ls", "index rebuild"])
def test_who_reads_a_tree_first_makes_its_catalog(muniment, hook, roots, home, reads, first):
    for path in tree_of(roots):
        os.utime(path, (1, 1))
    before = tree_of(roots)
    event = '{"prompt": "which Postgres does staging run"}'
    muniment.lines(*first.split(), stdin=event)
    assert (len(reads), (home / "state" / "catalog.db").exists()) == (3, True)
    if first == "index rebuild":
        return  # It writes the index, which is what it is asked for.
    assert tree_of(roots) == before
    assert "Dark mode" in muniment("recall", "dark mode editor", "--json").output
    assert "Postgres" in hook(event)[0]
    assert len(reads) == 3


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("few", [2_000, 0])
def test_an_append_of_another_process_is_found_by_the_next_recall_of_a_new_process(
    muniment, roots, monkeypatch, few
):
    monkeypatch.setattr(watching, "FEW_FILES", few)
    muniment("recall", "dark mode editor")
    file = roots["user"] / "editor" / "dark.md"
    inode = file.stat().st_ino
    subprocess.run(["/bin/sh", "-c", 'echo "Light mode outdoors" >> "$0"', str(file)], check=True, timeout=20)
    assert file.stat().st_ino == inode
    assert "Light mode outdoors" in muniment("recall", "dark mode editor").stdout
    if few:  # Among many files by what it had said before, and by new words in a minute at most.
        subprocess.run(
            ["/bin/sh", "-c", 'echo "and in zeppelins" >> "$0"', str(file)], check=True, timeout=20
        )
        assert "zeppelins" in muniment("recall", "what in zeppelins, outdoors?").stdout


def test_where_no_state_can_be_kept_it_is_said_once_and_recalled_all_the_same(muniment, hook, roots, home):
    before = tree_of(roots)
    home.mkdir()
    (home / "state").write_text("in the way")
    done = muniment("recall", "dark mode editor")
    assert done.exit_code == 0
    for said, note in ((done.stdout, done.stderr), hook()):
        assert "dark" in said
        assert re.fullmatch("note: .*therefore the memory is read completely each time\n", note)
    assert tree_of(roots) == before


def test_a_history_that_cannot_be_read_is_not_taken_for_none(muniment, home, monkeypatch):
    muniment("recall", "dark mode editor")
    (home / "state").chmod(0o770)
    assert muniment.failure("recall", "dark mode editor") == "config_invalid"
    (home / "state").chmod(0o700)
    (home / "state" / "ledger.db").write_bytes(b"no database" * 1_000)
    assert muniment.failure("recall", "dark mode editor") == "managed_memory_unavailable"
    real, refused = Path.lstat, Mock(side_effect=PermissionError)
    monkeypatch.setattr(Path, "lstat", lambda path: (refused if path.name == "ledger.db" else real)(path))
    assert muniment("recall", "dark mode editor").exit_code == 1


@pytest.mark.usefixtures("settled")
def test_a_hook_that_has_no_time_to_read_everything_answers_and_gets_further(hook, reads, monkeypatch):
    def one_at_a_time(*terms):
        def one(*asked):
            if first.called:
                raise DeadlineExceeded("no time")
            return first(*asked)

        first = Mock(wraps=real(*terms))
        return one

    real = upkeep.assessing
    monkeypatch.setattr(visit, "BATCH", 1)
    monkeypatch.setattr(upkeep, "assessing", one_at_a_time)
    answers = [hook()[0] for _ in range(5)]
    assert "in the editor" in answers[0]
    assert "dark mode in the editor" in answers[-1]
    assert len(reads) < 20


# -- as a hook -----------------------------------------------------------------------------------------


def test_a_hook_answers_an_event_without_a_name_and_puts_it_on_record(hook, home):
    with State(home / "state"):
        pass
    answer = json.loads(hook(json.dumps({"prompt": "Which Postgres does staging run?", "cwd": "/"}))[0])
    assert set(answer) == {"additionalContext"}
    assert "Staging runs on Postgres 16" in answer["additionalContext"]
    with State(home / "state") as state:
        (body,) = [each.body for each in records(state) if each.kind == "injection"]
    assert (body["where"], [each["path"] for each in body["entries"]]) == ("hook", ["project/staging.md"])
    assert "pgbouncer" not in json.dumps(body)


# What each tool sends, and the one answer that it accepts (docs/setup.md names the pages; the first four were
# also run). A member more, an empty text, or an answer to another event is refused by one of them or another.
CLAUDE = {
    "session_id": "s",
    "transcript_path": "/t",
    "cwd": "/",
    "permission_mode": "default",
    "prompt_id": "p",
}
CODEX = {"session_id": "s", "turn_id": "1", "transcript_path": None, "cwd": "/", "model": "m"}
QWEN = {"session_id": "s", "transcript_path": "/t", "cwd": "/", "timestamp": "2026-11-26T00:00:00Z"}
CURSOR = {"conversation_id": "s", "generation_id": "g", "cursor_version": "3.20.17"}
STAGING, OFF_TOPIC = "Which Postgres does staging run?", "capital of France"
TOOLS = {
    "claude-code": (CLAUDE, "UserPromptSubmit", "SessionStart"),
    "codex": (CODEX, "UserPromptSubmit", "SessionStart"),
    "qwen-code": (QWEN, "UserPromptSubmit", "PreCompact"),
    "gemini-cli": (QWEN, "BeforeAgent", "PreCompress"),
    "cursor": (CURSOR, "beforeSubmitPrompt", "sessionStart"),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_each_coding_tool_gets_the_answer_that_it_accepts_and_an_empty_one_where_there_is_nothing(hook, tool):
    sent, prompts, begins = TOOLS[tool]

    def answer(**more):
        line, said = hook(json.dumps(sent | more))
        assert (said, len(line) < 10_000) == ("", True)
        return json.loads(line)

    told = answer(hook_event_name=prompts, prompt=STAGING)
    if tool == "cursor":
        assert set(told) == {"continue", "additional_context"}
        assert told["continue"] is True
        assert "Staging runs on Postgres 16" in told["additional_context"]
    else:
        assert set(told) == {"hookSpecificOutput"}
        assert set(told["hookSpecificOutput"]) == {"hookEventName", "additionalContext"}
        assert told["hookSpecificOutput"]["hookEventName"] == prompts
        assert "Staging runs on Postgres 16" in told["hookSpecificOutput"]["additionalContext"]
    for nothing in (OFF_TOPIC, STAGING, ""):  # Off topic, told already, and no words at all.
        assert answer(hook_event_name=prompts, prompt=nothing) == {}
    assert answer(hook_event_name=begins, source="resume") == {}
    assert answer(hook_event_name=prompts, prompt=STAGING) == {}, "the old conversation has it still"
    assert answer(hook_event_name=begins, source="compact") == {}
    assert set(answer(hook_event_name=prompts, prompt=STAGING)) == set(told)


def test_a_hook_that_cursor_starts_anywhere_recalls_from_the_workspace_that_it_names(
    muniment, tmp_path, monkeypatch, home
):
    work = tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    (work.parent / ".git").mkdir()
    memory = home / "projects" / workspace_key(work.parent) / "memory"
    memory.mkdir(parents=True)
    for directory in (home, *home.rglob("*")):
        directory.chmod(0o700)
    put(memory, "staging.md", "Staging runs on Postgres 16 behind pgbouncer\n")
    monkeypatch.chdir("/")
    event = CURSOR | {"hook_event_name": "beforeSubmitPrompt", "prompt": STAGING}
    for roots, found in (([str(work)], True), (["/nowhere/at/all"], False), ([7], False), ("/", False)):
        sent = json.dumps(event | {"workspace_roots": roots})
        line = muniment("recall", "--hook", stdin=sent, bound=False).stdout
        assert ("Postgres 16" in line, line == "{}\n") == (found, not found)


def test_a_hook_asks_with_what_the_user_wrote_where_a_tool_tells_it_apart(hook):
    event = QWEN | {"hook_event_name": "UserPromptSubmit", "prompt": OFF_TOPIC, "submitted_prompt": STAGING}
    assert "Postgres 16" in hook(json.dumps(event))[0]
    event |= {"prompt": STAGING, "submitted_prompt": OFF_TOPIC}
    assert hook(json.dumps(event))[0] == NOTHING


def test_a_hook_stays_below_what_tools_take_whatever_budget_and_limit_are_asked_for(hook, roots):
    for number in range(40):
        put(roots["user"], f"zebra/{number}.md", f"The zebra colour scheme {number} is loud {'é' * 900}\n")
    named = {"prompt": "zebra colour scheme", "hook_event_name": "UserPromptSubmit"}
    line, _ = hook(json.dumps(named), "--budget=100000", "--limit=40")
    text = json.loads(line)["hookSpecificOutput"]["additionalContext"]
    assert 5_000 < len(text.encode()) < 10_000


def test_whatever_a_host_sends_and_whatever_breaks_it_gets_an_answer_and_zero(hook, monkeypatch):
    no_json, no_prompt = (
        "invalid event on standard input: not JSON",
        'expected an object with a string "prompt"',
    )
    dark = '{"prompt": "dark mode editor"}'
    for why, event, *flags in (
        *((no_json, given) for given in ("", "{", "[" * 100_000)),
        *((no_prompt, given) for given in ("[]", '{"prompt": 7}', '{"message": "x"}')),
        *(("", dark, flag) for flag in ("--policy=nowhere", "--root=nix=/nowhere/at/all")),
    ):
        line, said = hook(event, *flags)
        assert (line, said.startswith("nothing was recalled: "), why in said) == (NOTHING, True, True)
    release = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(recall, "_recalled", lambda *_, **__: release.wait(30) and Recalled())
        patch.setattr(recall, "HOOK_SECONDS", 0.05)
        assert hook() == (NOTHING, "nothing was recalled: it took longer than 0.05 s\n")
        release.set()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("muniment.opening.find_place", lambda *_args, **_named: 1 / 0)
    assert hook() == (NOTHING, "nothing was recalled: internal error\n")


# -- what a session was told ---------------------------------------------------------------------------

DARK = "dark mode editor"


@pytest.fixture
def prompt(hook):
    """What a prompt of a session is answered with."""

    def prompt(session, text=DARK, **more):
        event = json.dumps({"prompt": text, "session_id": session, **more})
        answer = json.loads(hook(event)[0])
        return answer.get("hookSpecificOutput", answer).get("additionalContext", "")

    return prompt


def kept(home):
    """Rows of sessions and of what they were told."""
    with State(home / "state") as state:
        return tuple(
            state.ledger.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("session", "told")
        )


def test_the_second_prompt_of_a_session_gets_nothing_new_until_an_edit_or_another_session(prompt, roots):
    assert "dark mode in the editor" in prompt("one")
    assert prompt("one") == prompt("one", "which dark font, which mode in the editor?") == ""
    assert "Staging" in prompt("one", STAGING)
    with (roots["user"] / "editor" / "dark.md").open("a") as file:  # In place: its directory does not tell.
        file.write("But light mode outdoors\n")
    edited = prompt("one")
    assert ("light mode outdoors" in edited, "serif" in edited) == (True, False)
    assert prompt("one") == ""
    assert "dark mode in the editor" in prompt("two")
    assert prompt(None)
    assert prompt(None)  # Whoever names no session is told each time.


@pytest.mark.parametrize(
    "event", ["SessionStart", "PreCompact", "PostCompact", "PreCompress", "sessionStart", "session_start"]
)
def test_a_host_that_compacts_or_begins_a_session_is_told_again(prompt, hook, home, event):
    assert prompt("one") != prompt("one") == ""
    line, said = hook(json.dumps({"session_id": "one", "hook_event_name": event, "source": "compact"}))
    assert (line, said, kept(home)) == (NOTHING, "", (0, 0))
    assert prompt("one", hook_event_name="UserPromptSubmit") != ""
    assert prompt("one", hook_event_name="Stop") == ""
    assert prompt("one", hook_event_name=event) != ""  # Of an event that has a prompt, too.


def test_what_a_session_was_told_ends_with_its_days_and_a_clock_that_goes_back_hides_nothing(
    prompt, home, monkeypatch
):
    now = Mock(wraps=recall.datetime)
    monkeypatch.setattr(recall, "datetime", now)
    began = recall.datetime.now(UTC)
    for days, is_told in (
        (0, True),
        (29, False),
        (-0.9, False),
        (31, True),
        (31, False),
        (-5, True),
        (-5, False),
    ):
        now.now = lambda _zone, days=days: began + timedelta(days=days)
        assert (prompt("one") != "") == is_told, days
    assert kept(home)[0] == 1


def test_of_sessions_and_what_they_were_told_the_oldest_go(prompt, home, monkeypatch):
    monkeypatch.setattr(told, "MAX_SESSIONS", 3)
    monkeypatch.setattr(told, "MAX_TOLD", 2)
    for number in range(6):
        prompt(f"s{number}")
        prompt(f"s{number}", STAGING)
    assert kept(home) == (3, 6)
    assert prompt("s5", STAGING) == ""
    assert "editor" in prompt("s5")  # Of its three entries the first ones told had to go.
    assert prompt("s0") != ""


def test_a_hostile_session_id_is_a_session_like_any_other_and_stands_nowhere(prompt, hook, home):
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
    assert kept(home)[0] == len(ids)
    for unsafe in (None, 7, "", [], {"a": 1}, True):
        assert all(prompt(unsafe) for _ in range(2)), unsafe
    assert kept(home)[0] == len(ids)
    assert not any(b"CANARY" in path.read_bytes() for path in (home / "state").iterdir())
    assert hook(json.dumps({"prompt": DARK, "session_id": "x" * 10_000_000}))[0] == NOTHING


def test_what_was_not_answered_in_time_was_not_told(prompt, monkeypatch):
    release, real = threading.Event(), recall._recalled
    threads = set(threading.enumerate())

    def slow(*asked):
        release.wait(30)
        return real(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(recall, "_recalled", slow)
        patch.setattr(recall, "HOOK_SECONDS", 0.05)
        patch.setattr(cancel, "Patience", lambda _: Patience(float("inf")))  # It does not notice.
        patch.setattr(recall, "AFTER_SECONDS", 0.0)
        assert prompt("one") == ""
        release.set()
        for thread in set(threading.enumerate()) - threads:
            thread.join(30)
    assert prompt("one") != ""


def test_a_ledger_that_cannot_be_written_takes_no_answer_away_and_one_that_is_busy_neither(
    prompt, home, monkeypatch
):
    refused = Mock(side_effect=ManagedMemoryUnavailable("ledger.db", "full"))
    with monkeypatch.context() as patch:
        patch.setattr(told.HookSession, "tell", refused)
        assert prompt("one") != ""
    with closing(sqlite3.connect(home / "state" / "ledger.db")) as other, monkeypatch.context() as patch:
        patch.setattr(recall, "AFTER_SECONDS", 0.0)
        patch.setattr(recall, "HOOK_SECONDS", 3.0)
        patch.setattr("muniment.store.database.BUSY_SECONDS", 0.05)
        other.execute("BEGIN IMMEDIATE")
        assert prompt("one") != ""
        other.rollback()
    assert (prompt("one") != "", prompt("one")) == (True, "")


def test_an_erased_entry_leaves_no_session_that_was_told_of_it(muniment, prompt, home):
    prompt("one")
    assert kept(home) == (1, 2)
    muniment("erase", "user/editor/dark.md", "--yes")
    assert kept(home) == (0, 0)


@pytest.mark.slow
def test_a_host_that_never_ends_its_event_is_answered_in_five_seconds(tmp_path):
    process = launch(tmp_path, "recall", "--hook")
    answer = json.loads(process.stdout.readline())
    assert (process.wait(10), answer) == (0, {})
    assert process.communicate() == (b"", b"nothing was recalled: it took longer than 4 s\n")
