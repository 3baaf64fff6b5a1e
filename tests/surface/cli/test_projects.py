"""`muniment projects` and `init`, and the question about a clone; with real git."""

import os
import pty
import shutil
import subprocess
import sys

import pytest

from kit.git import clone, create_repository, needs_git, run_git
from muniment.workspaces.checkouts import find_checkout
from muniment.workspaces.projects import bind_checkout, find_project, read_projects

pytestmark = needs_git
FACT = "This project is deployed from the harbour"


@pytest.fixture
def run_in(tmp_path, cli):
    """Create a clone with an entry in its project and another clone; return a function that runs commands
    there.
    """
    create_repository(tmp_path / "source")
    for name in ("shop", "second"):
        clone(tmp_path / "source", tmp_path / name)
    write_entry(cli, tmp_path / "shop", FACT)
    return lambda name, *arguments, **more: cli.run_for_lines(
        *arguments, f"--workspace={tmp_path / name}", bound=False, **more
    )


def write_entry(muniment, directory, fact):
    """Write an entry into the memory of the project."""
    home = muniment.base / "home"
    memory = bind_checkout(home, directory).build_memory_path(home)
    memory.mkdir(parents=True, mode=0o700, exist_ok=True)
    (memory / f"{fact.split()[-1]}.md").write_text(f"---\nname: {fact}\n---\n{fact}\n")
    return memory


@pytest.mark.usefixtures("fake_terminal")
def test_clone_may_share_memory_after_one_question(run_in, cli, tmp_path):
    lines = run_in("second", "ls", stdin="perhaps\ns\n")
    question = f"{tmp_path}/second is another clone of {tmp_path}/source that already has a memory:"
    assert lines[:2] == [question, f"  shop, 1 entry, used by {tmp_path}/shop"]
    assert lines[2] == "  saved; to change it: muniment projects link, or muniment projects unlink"
    assert FACT in str(lines)
    assert question not in run_in("second", "ls", stdin="")
    assert "a separate one" not in str(run_in("second", "recall", "harbour", stdin=""))
    (project,) = cli.run_for_document("projects", "list")["projects"]
    assert project["places"] == [str(tmp_path / "shop"), str(tmp_path / "second")]


@pytest.mark.usefixtures("fake_terminal")
def test_clone_may_start_own_memory_after_one_question(run_in, tmp_path):
    shutil.copytree(tmp_path / "shop", tmp_path / "copy")
    for name, reason in (
        ("second", "another clone of"),
        ("copy", "a copy of a repository that already has a memory"),
    ):
        lines = run_in(name, "ls", stdin="OWN\n")
        assert (reason in lines[0], FACT in str(lines)) == (True, False)
        assert reason not in str(run_in(name, "ls", stdin=""))
    assert FACT in str(run_in("shop", "ls"))


@pytest.mark.usefixtures("fake_terminal")
def test_project_question_without_answer_decides_nothing(run_in, cli, roots, tmp_path):
    second = tmp_path / "second"
    lines = run_in("second", "ls", stdin="\n")
    assert (FACT in str(lines), "muniment projects link" in str(lines)) == (False, True)
    arguments = ("ls", f"--workspace={second}")
    assert cli.run_for_document(*arguments, bound=False)["entries"] == []
    assert "that already has a memory" not in str(
        cli.run_for_lines(*arguments, f"--root=project={roots['project']}", bound=False)
    )
    assert find_project(tmp_path / "home", second).needs_decision


@pytest.mark.slow
@pytest.mark.usefixtures("run_in")
def test_project_question_waits_on_real_terminal(tmp_path):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "muniment", "ls", f"--workspace={tmp_path / 'second'}"]
    env = {**os.environ, "MUNIMENT_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env) as process:
        os.close(slave)
        output = b""
        while b"[same/own]" not in output:
            output += os.read(master, 4096)
        os.write(master, b"same\n")
        while process.poll() is None or FACT.encode() not in output:
            try:
                output += os.read(master, 4096)
            except OSError:
                break
    os.close(master)
    assert (process.returncode, FACT.encode() in output) == (0, True)


@pytest.mark.usefixtures("run_in")
def test_projects_list_prints_location_and_entry_count(cli, tmp_path):
    gone = create_repository(tmp_path / "gone")
    bind_checkout(tmp_path / "home", gone)
    shutil.rmtree(gone)
    (tmp_path / "home" / "projects" / ("old-" + "0" * 32) / "memory").mkdir(parents=True, mode=0o700)
    (project,) = (key for key in read_projects(tmp_path / "home") if key.startswith("shop-"))
    lines = cli.run_for_lines("projects", "list")
    assert lines[:3] == [
        f"shop: 1 entry ({project})",
        f"  at {tmp_path}/shop",
        f"  from {tmp_path}/source",
    ]
    assert f"  at {gone}, not found" in lines
    assert lines[-2:] == [
        f"old: 0 entries (old-{'0' * 32})",
        "  not used by a known repository; to use it in one: muniment projects link",
    ]


def test_projects_list_of_empty_home_explains_start(cli):
    assert "no projects yet" in cli.run_for_lines("projects", "list")[0]
    assert cli.run_for_document("projects", "list") == {"projects": []}


def test_link_and_unlink_print_working_commands(run_in, cli, tmp_path):
    second, home = tmp_path / "second", tmp_path / "home"
    own_memory = write_entry(cli, second, "This project has a canary")
    lines = cli.run_for_lines("projects", "link", "shop", second, "--leave")
    assert lines[0].startswith(f"linked: {second} uses the memory of shop (shop-")
    assert lines[1] == f"  previous memory: 1 entry in {own_memory}"
    command = lines[2].partition("here: ")[2].partition(" && muniment")[0]
    subprocess.run(command, shell=True, check=True)
    assert [name in str(run_in("second", "ls")) for name in (FACT, "canary")] == [True, True]
    lines = cli.run_for_lines("projects", "unlink", second)
    assert lines[0].startswith(f"unlinked: {second} now has a separate memory (second-")
    assert "previous memory: 2 entries in " in lines[1]
    assert lines[3].startswith("  to use the previous one again: muniment projects link shop-")
    assert FACT not in str(run_in("second", "ls"))
    (home / "state").mkdir(exist_ok=True, mode=0o700)
    (home / "state" / "daemon.json").write_text("{}")
    lines = cli.run_for_lines("projects", "link", *lines[3].split()[-1:], second)
    assert lines[-1] == "note: the running daemon uses this only after a restart"
    assert FACT in str(run_in("second", "ls"))


@pytest.mark.usefixtures("run_in")
def test_project_is_named_by_id_or_unique_name(cli, tmp_path):
    (project_id,) = read_projects(tmp_path / "home")
    assert cli.run_for_lines("projects", "rename", "shop", "The Shop") == [
        f"renamed: {project_id} is now called The Shop"
    ]
    assert cli.run_for_document("projects", "rename", project_id, "store")["name"] == "store"
    write_entry(cli, tmp_path / "second", FACT)
    cli.run_for_document("projects", "rename", "second", "store")
    for arguments, reason in (
        (("link", "store", tmp_path / "second"), "several projects"),
        (("link", "../x", tmp_path / "second"), "project '../x' not found"),
        (("link", "x-" + "0" * 32, tmp_path / "second"), "project 'x-"),
        (("rename", project_id, ""), "1 to 80"),
        (("rename", project_id, "a\nb"), "1 to 80"),
        (("link", project_id, tmp_path / "missing"), "not found"),
    ):
        failed = cli.run_for_document("projects", *arguments, code=1)["error"]
        assert (failed["code"], reason in failed["message"]) == ("config_invalid", True), failed


@pytest.mark.slow
def test_worktree_and_clone_share_one_memory(run_in, tmp_path):
    run_git(tmp_path / "shop", "worktree", "add", "--quiet", str(tmp_path / "tree"))
    run_in("tree", "remember", "This project ships on Thursdays", "--scope=project")
    assert {FACT, "This project ships on Thursdays"} <= {
        line.partition("  ")[2].partition("  ")[2] or line for line in run_in("shop", "ls")
    }


# -- init ----------------------------------------------------------------------------------------------


def test_init_keeps_memory_in_checkout_under_git(cli, tmp_path):
    shop = create_repository(tmp_path / "shop")
    (shop / ".gitignore").write_text("/.muniment/MEMORY.md\n/.muniment/index/\n")
    lines = cli.run_for_lines("init", shop)
    assert lines[0] == f"the memory of {shop} is stored in {shop}/.muniment"
    patterns = ("/.muniment/MEMORY.md", "/.muniment/index/", "/.muniment/**/.muniment-*")
    assert tuple(each.strip() for each in lines[2:5]) == patterns
    workspace = (f"--workspace={shop}",)
    cli.run_for_lines("remember", FACT, "--scope=project", *workspace, bound=False)
    assert run_git(shop, "status", "--porcelain", "--untracked-files=all", ".muniment").count("\n") == 0
    run_git(shop, "add", "--all")
    run_git(shop, "commit", "--quiet", "--message", "Remember")
    run_git(shop, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert FACT in str(cli.run_for_lines("ls", f"--workspace={tmp_path / 'tree'}", bound=False))
    moved = shop.rename(tmp_path / "moved")
    assert FACT in str(cli.run_for_lines("ls", f"--workspace={moved}", bound=False))
    (project,) = cli.run_for_document("projects", "list")["projects"]
    assert (project["inside"], project["entries"]) == (".muniment", 0)  # The last location no longer exists.
    assert "  stored in .muniment of each checkout" in cli.run_for_lines("projects", "list")
    assert cli.run_for_lines("init", moved, "--home", "--leave")[0].startswith(
        f"the memory of {moved} is stored in {tmp_path}/home"
    )
    assert FACT not in str(cli.run_for_lines("ls", f"--workspace={moved}", bound=False))


def test_init_abandons_no_entries_without_leave_option(run_in, cli, tmp_path):
    shop = tmp_path / "shop"
    failed = cli.run_for_document("init", shop, "--folder=docs/memory", code=1)["error"]
    assert "1 entry in " in failed["message"]
    assert not (shop / "docs").exists()
    command = failed["message"].partition("them: ")[2].partition("; then")[0]
    subprocess.run(command, shell=True, check=True)
    document = cli.run_for_document("init", shop, "--folder=docs/memory", "--leave")
    assert (document["status"], document["memory"], document["entries"]) == ("kept", f"{shop}/docs/memory", 1)
    assert FACT in str(run_in("shop", "ls"))
    assert (
        cli.run_for_document("init", shop, "--folder=docs/memory")["inside"] == "docs/memory"
    )  # This changes nothing.


@pytest.mark.parametrize("folder", ["../x", ".git/x", "", "README", "README/x"])
def test_init_rejects_unusable_folder_and_changes_nothing(cli, tmp_path, folder):
    shop = create_repository(tmp_path / "shop")
    assert cli.run_for_error_code("init", shop, f"--folder={folder}") in {
        "config_invalid",
        "managed_memory_unavailable",
    }
    assert cli.run_for_document("ls", f"--workspace={shop}", bound=False)["entries"] == []
    assert find_project(tmp_path / "home", shop).inside is None
    assert find_checkout(shop).path == shop
