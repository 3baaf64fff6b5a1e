"""`muniment uninstall`: cleans the tools after a yes, and erases the memory only with its own option."""

import json
from functools import partial

import pytest

from kit.memories import read_tree, write_file
from kit.server.process import lock_home


@pytest.fixture
def run(run):
    """Return a function that runs commands with the default home."""
    return partial(run, MUNIMENT_HOME=None)


@pytest.fixture
def filled_home(run, user, tmp_path):
    """Create a home with facts of a user and of a project, and set up two tools."""
    work = tmp_path / "work"
    work.mkdir()
    for fact in ("I prefer tabs over spaces", "The staging database runs on Postgres 16"):
        assert run("remember", fact, f"--workspace={work}").exit_code == 0
    for tool in ("codex", "gemini-cli"):
        assert run("setup", tool, "--yes").exit_code == 0
    return user / ".muniment"


def test_uninstall_lists_findings_and_writes_nothing_without_yes(run, user, filled_home):
    before = read_tree(user)
    done = run("uninstall", stdin="yes\n")
    assert (done.exit_code, read_tree(user) == before) == (1, True)
    config = user / ".codex/config.toml"
    assert f"to remove: the entries in Codex ({config})" in done.stdout
    assert f"stays: {filled_home}, with 2 entries, their history and settings" in done.stdout
    assert "nothing was changed; answer yes at a terminal, or use --yes" in done.stdout
    document = json.loads(run("uninstall", "--json").stdout)
    assert document == {
        "taken_out_of": [],
        "service": None,
        "in_tools": ["codex", "gemini-cli"],
        "daemon_runs": False,
        "home": str(filled_home),
        "entries": 2,
        "erased": False,
    }


def test_uninstall_with_yes_cleans_tools_and_keeps_memory(run, user, filled_home):
    memory = read_tree(filled_home / "user", filled_home / "projects")
    done = run("uninstall", "--yes")
    assert done.exit_code == 0
    assert "removed: the entries in Codex, the entries in Gemini CLI\n" in done.stdout
    assert "to also erase the memory: muniment uninstall --erase-memory" in done.stdout
    assert "pip uninstall muniment" in done.stdout
    assert not (user / ".codex/config.toml").exists()
    assert read_tree(filled_home / "user", filled_home / "projects") == memory
    second = run("uninstall", "--yes")
    assert (second.exit_code, "no coding tool has entries" in second.stdout) == (0, True)


def test_uninstall_erases_memory_only_with_option(run, user, filled_home, tmp_path):
    (filled_home / "mine.txt").write_text("mine")
    (filled_home / "projects" / "thesis").mkdir()
    (filled_home / "projects" / "thesis" / "a.md").write_text("not ours")
    outside = tmp_path / "elsewhere"
    outside.mkdir(mode=0o700)
    write_file(outside, "a.md", "bound\n")
    (filled_home / "policies").symlink_to(outside)
    done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, f"erased: the memory in {filled_home}" in done.stdout) == (0, True)
    for path in (filled_home / "mine.txt", filled_home / "policies", filled_home / "projects" / "thesis"):
        assert f"stays: {path} (not created by muniment, or a link)" in done.stdout
    remaining = {
        path.relative_to(filled_home).as_posix() for path in filled_home.rglob("*") if not path.is_dir()
    }
    assert remaining == {"mine.txt", "projects/thesis/a.md"}
    assert (outside / "a.md").read_text() == "bound\n"
    assert not (user / ".codex/config.toml").exists()


@pytest.mark.usefixtures("fake_terminal")
def test_uninstall_on_terminal_asks_for_memory_separately(run, user, filled_home):
    assert run("uninstall", stdin="n\n").exit_code == 1
    done = run("uninstall", "--erase-memory", stdin="yes\nn\n")
    assert (done.exit_code, (user / ".codex/config.toml").exists()) == (1, False)
    assert (filled_home / "state" / "ledger.db").exists()
    done = run("uninstall", "--erase-memory", stdin="yes\n")
    assert (done.exit_code, filled_home.exists()) == (0, False)
    assert run("uninstall", "--yes").exit_code == 0


def test_uninstall_with_running_daemon_erases_nothing(run, filled_home):
    with lock_home(filled_home):
        before = read_tree(filled_home)
        done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, read_tree(filled_home) == before) == (1, True)
    assert "a daemon runs for" in done.stderr
    assert "stays: the running daemon; stop it separately" in done.stdout


def test_uninstall_never_erases_other_directories(run, user, filled_home):
    other = user / "projects"
    other.mkdir(mode=0o700)
    for home, reason in (
        (user / "none", "contains no ledger of muniment"),
        (user, "is or contains your home directory"),
    ):
        if home == user:
            filled_home.joinpath("state").rename(user / "state")
        done = run("uninstall", "--erase-memory", "--yes", MUNIMENT_HOME=str(home))
        assert (done.exit_code, reason in done.stderr) == (1, True), done.output
    assert other.exists()
    assert (user / "state" / "ledger.db").exists()


def test_uninstall_names_moved_and_unreadable_settings(run, user, filled_home, tmp_path):
    run("setup", "qwen-code", "--yes", QWEN_HOME=str(tmp_path / "moved"))
    (user / ".gemini/settings.json").write_text("{,}")
    done = run("uninstall", "--yes")
    assert (done.exit_code, "settings.json is not JSON" in done.stdout) == (0, True)
    assert (user / ".gemini/settings.json").read_text() == "{,}"
    assert not (user / ".codex/config.toml").exists()
    note = f"{tmp_path / 'moved' / 'settings.json'} was set up with other environment variables; set them"
    assert f"{note} again, then run: muniment setup qwen-code --remove" in done.stdout
    assert filled_home.exists()


def test_uninstall_erases_home_without_ledger_if_nothing_else(run, user):
    run("setup", "codex", "--yes")
    home = user / ".muniment"
    assert [path.name for path in home.iterdir()] == ["setup"]
    (home / "mine.txt").write_text("mine")
    done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, "contains no ledger of muniment" in done.stderr) == (1, True)
    (home / "mine.txt").unlink()
    assert run("uninstall", "--erase-memory", "--yes").exit_code == 0
    assert not home.exists()
