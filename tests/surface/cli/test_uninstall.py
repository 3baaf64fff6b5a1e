"""`muniment uninstall`: out of the tools at a yes, and nothing of the memory without a word of its own."""

import fcntl
import json
import os

import pytest

from kit.memories import put
from muniment.cli import setup
from muniment.integrations.coding_tools.tools import Program

VARIABLES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "QWEN_HOME")


@pytest.fixture
def user(tmp_path):
    directory = tmp_path / "me"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def run(muniment, user, monkeypatch):
    """Runs commands for a person with a home as it is by default."""
    monkeypatch.setattr(setup, "find_program", lambda _: Program(("/opt/muniment",)))
    given = {"HOME": str(user), "MUNIMENT_HOME": None, **dict.fromkeys(VARIABLES)}
    monkeypatch.setenv("HOME", str(user))
    return lambda *words, **more: muniment(*words, **{**given, **more}, bound=False)


@pytest.fixture
def remembered(run, user, tmp_path):
    """A home with facts of a person and of a project, and two tools that are set up."""
    work = tmp_path / "work"
    work.mkdir()
    for fact in ("I prefer tabs over spaces", "The staging database runs on Postgres 16"):
        assert run("remember", fact, f"--workspace={work}").exit_code == 0
    for tool in ("codex", "gemini-cli"):
        assert run("setup", tool, "--yes").exit_code == 0
    return user / ".muniment"


def tree(directory):
    return {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}


def test_it_says_what_there_is_and_does_nothing_without_a_yes(run, user, remembered):
    before = tree(user)
    done = run("uninstall", stdin="yes\n")
    assert (done.exit_code, tree(user) == before) == (1, True)
    config = user / ".codex/config.toml"
    assert f"to remove: the entries in Codex ({config})" in done.stdout
    assert f"stays: {remembered}, with 2 entries, their history and settings" in done.stdout
    assert "nothing was changed; answer yes at a terminal, or use --yes" in done.stdout
    document = json.loads(run("uninstall", "--json").stdout)
    assert document == {
        "taken_out_of": [],
        "in_tools": ["codex", "gemini-cli"],
        "daemon_runs": False,
        "home": str(remembered),
        "entries": 2,
        "erased": False,
    }


def test_a_yes_takes_it_out_of_the_tools_and_leaves_the_memory(run, user, remembered):
    memory = tree(remembered / "user") | tree(remembered / "projects")
    done = run("uninstall", "--yes")
    assert (done.exit_code, "removed from codex, gemini-cli" in done.stdout) == (0, True)
    assert "to also erase the memory: muniment uninstall --erase-memory" in done.stdout
    assert "pip uninstall muniment" in done.stdout
    assert not (user / ".codex/config.toml").exists()
    assert tree(remembered / "user") | tree(remembered / "projects") == memory
    again = run("uninstall", "--yes")
    assert (again.exit_code, "no coding tool has entries" in again.stdout) == (0, True)


def test_the_memory_goes_only_when_that_is_asked_by_itself_and_what_is_not_ours_stays(
    run, user, remembered, tmp_path
):
    (remembered / "mine.txt").write_text("mine")
    (remembered / "projects" / "thesis").mkdir()
    (remembered / "projects" / "thesis" / "a.md").write_text("not ours")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    put(elsewhere, "a.md", "bound\n")
    (remembered / "policies").symlink_to(elsewhere)
    done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, f"erased: the memory in {remembered}" in done.stdout) == (0, True)
    for path in (remembered / "mine.txt", remembered / "policies", remembered / "projects" / "thesis"):
        assert f"stays: {path} (not created by muniment, or a link)" in done.stdout
    left = {path.relative_to(remembered).as_posix() for path in remembered.rglob("*") if not path.is_dir()}
    assert left == {"mine.txt", "projects/thesis/a.md"}
    assert (elsewhere / "a.md").read_text() == "bound\n"
    assert not (user / ".codex/config.toml").exists()


@pytest.mark.usefixtures("terminal")
def test_at_a_terminal_the_memory_is_asked_for_by_itself(run, user, remembered):
    assert run("uninstall", stdin="n\n").exit_code == 1
    done = run("uninstall", "--erase-memory", stdin="yes\nn\n")
    assert (done.exit_code, (user / ".codex/config.toml").exists()) == (1, False)
    assert (remembered / "state" / "ledger.db").exists()
    done = run("uninstall", "--erase-memory", stdin="yes\n")
    assert (done.exit_code, remembered.exists()) == (0, False)
    assert run("uninstall", "--yes").exit_code == 0


def test_while_a_daemon_runs_it_is_said_and_not_ended_and_no_memory_is_erased(run, remembered):
    fd = os.open(remembered / "state" / "daemon.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        before = tree(remembered)
        done = run("uninstall", "--erase-memory", "--yes")
        assert (done.exit_code, tree(remembered) == before) == (1, True)
        assert "a daemon runs for" in done.stderr
        assert "stays: the running daemon; stop it separately" in done.stdout
    finally:
        os.close(fd)


def test_a_home_that_is_no_memory_or_holds_the_persons_own_is_not_erased(user, remembered, muniment):
    other = user / "projects"
    other.mkdir(mode=0o700)
    for home, told in (
        (user / "none", "contains no ledger of muniment"),
        (user, "is or contains your home directory"),
    ):
        if home == user:
            remembered.joinpath("state").rename(user / "state")
        environment = {"HOME": str(user), "MUNIMENT_HOME": str(home), **dict.fromkeys(VARIABLES)}
        done = muniment("uninstall", "--erase-memory", "--yes", **environment)
        assert (done.exit_code, told in done.stderr) == (1, True), done.output
    assert other.exists()
    assert (user / "state" / "ledger.db").exists()


def test_what_was_set_up_elsewhere_or_cannot_be_read_is_said(run, user, remembered, tmp_path):
    run("setup", "qwen-code", "--yes", QWEN_HOME=str(tmp_path / "moved"))
    (user / ".gemini/settings.json").write_text("{,}")
    done = run("uninstall", "--yes")
    assert (done.exit_code, "settings.json is not JSON" in done.stdout) == (0, True)
    assert (user / ".gemini/settings.json").read_text() == "{,}"
    assert not (user / ".codex/config.toml").exists()
    told = f"{tmp_path / 'moved' / 'settings.json'} was set up with other variables; set these, then: "
    assert f"{told}muniment setup qwen-code --remove" in done.stdout
    assert remembered.exists()


def test_a_home_without_a_ledger_goes_while_nothing_else_lies_there(run, user):
    run("setup", "codex", "--yes")
    home = user / ".muniment"
    assert [path.name for path in home.iterdir()] == ["setup"]
    (home / "mine.txt").write_text("mine")
    done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, "contains no ledger of muniment" in done.stderr) == (1, True)
    (home / "mine.txt").unlink()
    assert run("uninstall", "--erase-memory", "--yes").exit_code == 0
    assert not home.exists()
