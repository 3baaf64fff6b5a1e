"""The progress that commands show on a real terminal, and the progress that each operation reports."""

import json
import threading
from functools import partial
from subprocess import PIPE

import pytest

from kit.cli.device import INTERRUPT, TerminalDevice, list_visible_lines
from kit.cli.process import SECONDS, launch
from kit.memories import write_file
from muniment.events import watch_progress
from muniment.testing.chat_server import (
    ChatServer,
    completion_response,
    error_response,
    make_tool_call,
    text_response,
)

FACT = "The user prefers dark mode"
CALL = make_tool_call("write_file", {"path": "user/a.md", "content": f"{FACT}\n"})
WRITES = (
    completion_response({"content": None, "tool_calls": [CALL]}, "tool_calls", (1_800, 40)),
    text_response("Saved."),
)

SHOWN_SECONDS = 1.5
"""Time after which a terminal would show progress."""


class SlowModel:
    """A model's server that responds to each request when the test calls `respond`; a context manager."""

    def __init__(self, *responses):
        self._turns = [(threading.Event(), each) for each in responses]
        self.server = ChatServer([partial(self._respond, *turn) for turn in self._turns])

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)

    @property
    def options(self):
        return ("--model=tiny", f"--base-url={self.server.base_url}", "--protocol=tools")

    @staticmethod
    def _respond(event, response, connection):
        while not event.is_set():
            connection.pause(0.02)
        response(connection)

    def respond(self, turn):
        event, _ = self._turns[turn - 1]
        event.set()

    def respond_after(self, seconds):
        """Respond to the first request so long after it arrived, and to the others at once."""
        self.server.wait_for_requests(1)
        for event, _ in self._turns:
            threading.Timer(seconds, event.set).start()


# -- on a terminal -------------------------------------------------------------------------------------


def test_remember_shows_turns_and_tokens_until_end(tmp_path):
    with SlowModel(*WRITES) as model, TerminalDevice() as terminal:
        program = terminal.launch(tmp_path, "remember", FACT, *model.options)
        terminal.read_until(r"asking the model: turn 1 of \d+, \d+ s")
        model.respond(1)
        terminal.read_until(r"asking the model: turn 2 of \d+, 1 840 tokens, \d+ s")
        model.respond(2)
        output = terminal.read_rest()
        assert program.wait(SECONDS) == 0
    lines = list_visible_lines(output)
    assert lines[0].startswith('saved: "Prefers dark mode" (user, ')
    assert not [line for line in lines if "asking" in line or "remembering" in line]


def test_interrupt_on_terminal_removes_progress(tmp_path):
    with SlowModel(*WRITES) as model, TerminalDevice() as terminal:
        program = terminal.launch(tmp_path, "remember", FACT, *model.options)
        terminal.read_until("asking the model")
        terminal.type(INTERRUPT)
        lines = list_visible_lines(terminal.read_rest())
        assert program.wait(SECONDS) == 130
    assert lines == ["cancelled: nothing was written [cancelled]", ""]


def test_failure_on_terminal_removes_progress(tmp_path):
    with SlowModel(error_response(400, "no such model")) as model, TerminalDevice() as terminal:
        program = terminal.launch(tmp_path, "remember", FACT, "--on-model-failure=fail", *model.options)
        terminal.read_until("asking the model")
        model.respond(1)
        lines = list_visible_lines(terminal.read_rest())
        assert program.wait(SECONDS) == 1
    assert lines[0].startswith("not saved: ")


def test_json_output_stays_complete_beside_progress(tmp_path):
    with SlowModel(*WRITES) as model, TerminalDevice() as terminal:
        program = terminal.launch(tmp_path, "remember", FACT, "--json", *model.options, stdout=PIPE)
        terminal.read_until("asking the model")
        model.respond(1)
        model.respond(2)
        document = json.loads(program.communicate(timeout=SECONDS)[0])
        assert list_visible_lines(terminal.read_rest()) == [""]
    assert document["status"] == "completed"


@pytest.mark.parametrize("environment", [{"MUNIMENT_LOG": "ERROR"}, {"TERM": "dumb"}])
def test_progress_is_not_shown_beside_logs_or_on_dumb_terminal(tmp_path, environment):
    with SlowModel(*WRITES) as model, TerminalDevice() as terminal:
        program = terminal.launch(tmp_path, "remember", FACT, *model.options, **environment)
        model.respond_after(SHOWN_SECONDS)
        assert "asking" not in terminal.read_rest()
        assert program.wait(SECONDS) == 0


def test_progress_is_not_shown_in_pipe(tmp_path):
    with SlowModel(*WRITES) as model:
        program = launch(tmp_path, "remember", FACT, *model.options)
        model.respond_after(SHOWN_SECONDS)
        stdout, stderr = program.communicate(timeout=SECONDS)
    assert (stderr, stdout.startswith(b'saved: "Prefers dark mode" (user, ')) == (b"", True)


# -- what operations report ----------------------------------------------------------------------------


class Recorder:
    """Records the work that is reported, as if it was shown from the beginning."""

    def __init__(self):
        self.works = []

    def begin(self, progress):
        progress.is_shown = True
        self.works.append(progress)

    def end(self, progress):
        assert progress in self.works

    def take(self):
        """Return the done and total numbers of all work by its name; forget it."""
        found = {each.doing: (each.done, each.total) for each in self.works}
        self.works = []
        return found


@pytest.fixture
def take_reported():
    recorder = Recorder()
    with watch_progress(recorder):
        yield recorder.take


def write_facts(root, count):
    for number in range(count):
        write_file(root, f"{'a/b/' * (number % 3)}fact-{number}.md", f"Fact number {number} of many.\n")


def test_first_look_counts_all_files_of_tree(cli, roots, take_reported):
    write_facts(roots["user"], 30)
    cli.run_for_lines("ls", "user")
    done, total = take_reported()["reading files"]
    assert (done, done >= 30) == (total, True)


def test_commands_report_done_and_total_numbers(cli, tmp_path, take_reported):
    write_facts(tmp_path / "source", 12)
    cli.run_for_lines("import", tmp_path / "source")
    reported = take_reported()
    assert reported["importing"] == (12, 12)
    assert reported.keys() >= {"reading the source", "saving"}
    cli.run_for_lines("dream")
    reported = take_reported()
    assert (reported["reading entries"], reported["finding outdated entries"]) == ((12, 12), (12, 12))
    cli.run_for_lines("export", f"--to={tmp_path}/export.jsonl")
    reported = take_reported()
    assert (reported["exporting"], reported["checking the export"]) == ((12, 12), (12, 12))
    cli.run_for_lines("index", "rebuild")
    done, total = take_reported()["reading files"]
    assert done == total >= 12
    cli.run_for_lines("forget", "fact number 3")
    assert "forgetting" in take_reported()


def test_backup_and_restore_report_files_and_bytes(cli, home, tmp_path, take_reported):
    write_facts(home / "user", 12)
    write_file(home / "user", "large.txt", "x" * 3_000_000)
    cli.run_for_lines("backup", tmp_path / "backup", bound=False)
    done, total = take_reported()["backing up"]
    assert done == total >= 15
    cli.run_for_lines("restore", tmp_path / "backup", bound=False, MUNIMENT_HOME=str(tmp_path / "other"))
    done, total = take_reported()["restoring"]
    assert done == total >= 3
