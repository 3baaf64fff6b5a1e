"""A home that this user cannot write: reads work and change nothing, each write fails in one line."""

import json
import re
from contextlib import ExitStack, closing, contextmanager

import pytest

import muniment as library
from kit.cli.commands import run_in_process
from kit.memories import take_snapshot
from kit.privileges import enforce_file_modes
from kit.server.process import write_policy
from muniment.store.state import State

READS = ("ls", "recall door", "show {path}", "history", "history {path}", "why {path}", "review list")
DOCUMENTS = tuple(f"{each} --json" for each in READS)
OTHER_READS = ("projects list", "audit show", "audit verify", "forget door", "dream", "index verify")
REMARKS = re.compile(
    r"note: (nothing waits for you|preview only; to forget, run this again with --yes|nothing to tidy|"
    r"\d entries checked)"
)
EXPORTS = ("export --to {out}/x.tar", "export --to -")


def make_read_only(top, *, files):
    """Make the directories below `top` read-only, and the files if `files` is set."""
    for path in (*top.rglob("*"), top):
        if path.is_dir() or files:
            path.chmod(0o500 if path.is_dir() else 0o400)


def make_writable(top):
    """Let the owner delete everything below `top`."""
    for path in (top, *top.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)


@pytest.fixture(params=["all of it", "its directories", "while it is open"])
def at(request, tmp_path):
    """Run commands over a read-only home; the attributes of the function describe the home."""
    home, work, out = (tmp_path / name for name in ("home", "work", "out"))
    (work / ".git").mkdir(parents=True)
    out.mkdir(mode=0o777)
    policy = write_policy(tmp_path, require='"none"')
    with library.open(work, home=home, policy=policy, in_process=True) as memory:
        (path,) = memory.remember("The door is green", scope="project").files_touched
        task = memory.remember("The gate is blue", scope="project").task_id
    with ExitStack() as stack:
        if request.param == "while it is open":
            # These commits exist only in the write-ahead log.
            memory = stack.enter_context(library.open(work, home=home, policy=policy, in_process=True))
            memory.remember("The window is red", scope="project")
            assert (home / "state" / "ledger.db-wal").stat().st_size
        make_read_only(home, files=request.param == "all of it")
        before = take_snapshot(home)

        def run(command, stdin=None):
            line = command.format(path=path, out=out, task=task).split()
            workspace = [] if line[0] in {"projects", "audit"} else [f"--workspace={work}"]
            return run_in_process([*line, *workspace], {"MUNIMENT_HOME": str(home)}, stdin)

        run.home, run.work, run.policy, run.before = home, work, policy, before
        run.facts = {"The door is green", "The gate is blue"}
        run.facts |= {"The window is red"} if request.param == "while it is open" else set()
        with enforce_file_modes():
            yield run
        assert take_snapshot(home) == before
        make_writable(home)


def test_read_only_home_is_read(at):
    for command in (*READS, *DOCUMENTS, *OTHER_READS, *EXPORTS):
        done = at(command)
        problems = [line for line in done.stderr.splitlines() if not REMARKS.fullmatch(line)]
        assert (command, done.exit_code, problems) == (command, 0, [])
    listed = json.loads(at("ls --json").stdout)["entries"]
    assert {each["name"] for each in listed} == at.facts
    (entry,) = json.loads(at("recall door --json").stdout)["entries"]
    assert (entry["path"], entry["trust"]) == ("project/door-green.md", "owner")
    assert len(at("history").stdout.splitlines()) == len(at.facts)
    assert json.loads(at("why {path} --json").stdout)["state"] == "committed"


def test_read_only_home_answers_the_hook(at):
    for _ in range(2):
        done = at("recall --hook", stdin='{"prompt": "which door", "session_id": "one"}')
        assert (done.exit_code, done.stderr, "The door is green" in done.stdout) == (0, "", True)


WRITES = (
    "remember --scope=project Tea",
    "forget door --yes",
    "undo {task}",
    "index rebuild",
    "erase {path} --yes",
    "dream --yes",
)


def test_read_only_home_rejects_writes_in_one_line(at):
    for command in WRITES:
        done = at(command)
        (line,) = done.stderr.splitlines()
        assert (command, done.exit_code) == (command, 1)
        assert f"{at.home}/state: cannot be written, so the memory can only be read" in line, command
        assert line.endswith("[managed_memory_unavailable]")


def test_read_only_home_with_linked_ledger_is_rejected(tmp_path):
    home, other_home = tmp_path / "home", tmp_path / "elsewhere"
    for each in (home, other_home):
        with closing(State(each / "state")):
            pass
    (home / "state" / "ledger.db").unlink()
    (home / "state" / "ledger.db").symlink_to(other_home / "state" / "ledger.db")
    (home / "user").mkdir(mode=0o700)
    make_read_only(home, files=False)
    with enforce_file_modes():
        done = run_in_process(["ls"], {"MUNIMENT_HOME": str(home)})
    make_writable(home)
    assert (done.exit_code, "symbolic link" in done.stderr) == (1, True)


@contextmanager
def open_memory(at):
    with library.open(at.work, home=at.home, policy=at.policy, in_process=True) as memory:
        yield memory


def test_read_only_home_is_read_by_the_library(at):
    with open_memory(at) as memory:
        assert "The door is green" in memory.recall("door").text
        with pytest.raises(library.errors.ManagedMemoryUnavailable, match="can only be read"):
            memory.remember("The roof is grey", scope="project")


def test_interrupted_commit_in_a_read_only_home_is_named(tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    (work / ".git").mkdir(parents=True)
    policy = write_policy(tmp_path, require='"none"')
    with library.open(work, home=home, policy=policy, in_process=True) as memory:
        memory.remember("The door is green", scope="project")
    with closing(State(home / "state")) as state, state.ledger.transaction() as connection:
        connection.execute("UPDATE change_set SET done = NULL")
    make_read_only(home, files=True)
    with enforce_file_modes(), library.open(work, home=home, policy=policy, in_process=True) as memory:
        (note,) = memory.context.notes
        assert note.startswith("a commit in project was interrupted and is not rolled back: ")
        assert str(home / "state") in note
        assert "The door is green" in memory.recall("door").text
    make_writable(home)
