"""`muniment projects` and `init`, and the question about a clone, as a person meets them; with real git."""

import os
import pty
import shutil
import subprocess
import sys

import pytest

from kit.git import clone, git, needs_git, repository
from muniment.workspaces.checkouts import find_checkout
from muniment.workspaces.projects import bind_checkout, find_project, read_projects

pytestmark = needs_git
FACT = "This project is deployed from the harbour"


@pytest.fixture
def at(tmp_path, muniment):
    """A clone with an entry in its project, and another clone; and commands there, with no roots bound."""
    repository(tmp_path / "source")
    for name in ("shop", "second"):
        clone(tmp_path / "source", tmp_path / name)
    keep(muniment, tmp_path / "shop", FACT)
    return lambda name, *arguments, **more: muniment.lines(
        *arguments, f"--workspace={tmp_path / name}", bound=False, **more
    )


def keep(muniment, directory, fact):
    """Lay an entry into the project's memory there."""
    home = muniment.base / "home"
    memory = bind_checkout(home, directory).memory(home)
    memory.mkdir(parents=True, mode=0o700, exist_ok=True)
    (memory / f"{fact.split()[-1]}.md").write_text(f"---\nname: {fact}\n---\n{fact}\n")
    return memory


@pytest.mark.usefixtures("terminal")
def test_a_person_is_asked_once_which_memory_another_clone_has_and_may_share_it(at, muniment, tmp_path):
    said = at("second", "ls", stdin="perhaps\ns\n")
    asked = f"{tmp_path}/second is another clone of {tmp_path}/source that already has a memory:"
    assert said[:2] == [asked, f"  shop, 1 entry, used by {tmp_path}/shop"]
    assert said[2] == "  saved; to change it: muniment projects link, or unlink"
    assert FACT in str(said)
    assert asked not in at("second", "ls", stdin="")
    assert "a separate one" not in str(at("second", "recall", "harbour", stdin=""))
    (project,) = muniment.document("projects", "list")["projects"]
    assert project["places"] == [str(tmp_path / "shop"), str(tmp_path / "second")]


@pytest.mark.usefixtures("terminal")
def test_or_begin_one_of_its_own_and_is_not_asked_again(at, tmp_path):
    shutil.copytree(tmp_path / "shop", tmp_path / "copy")
    for name, what in (
        ("second", "another clone of"),
        ("copy", "a copy of a repository that already has a memory"),
    ):
        said = at(name, "ls", stdin="OWN\n")
        assert (what in said[0], FACT in str(said)) == (True, False)
        assert what not in str(at(name, "ls", stdin=""))
    assert FACT in str(at("shop", "ls"))


@pytest.mark.usefixtures("terminal")
def test_who_gives_no_answer_has_decided_nothing_and_nobody_is_asked_for_json_or_of_a_bound_root(
    at, muniment, roots, tmp_path
):
    second = tmp_path / "second"
    said = at("second", "ls", stdin="\n")
    assert (FACT in str(said), "muniment projects link" in str(said)) == (False, True)
    where = ("ls", f"--workspace={second}")
    assert muniment.document(*where, bound=False)["entries"] == []
    assert "that already has a memory" not in str(
        muniment.lines(*where, f"--root=project={roots['project']}", bound=False)
    )
    assert find_project(tmp_path / "home", second).is_asked


@pytest.mark.slow
@pytest.mark.usefixtures("at")
def test_on_a_real_terminal_the_question_waits_for_its_answer(tmp_path):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "muniment", "ls", f"--workspace={tmp_path / 'second'}"]
    env = {**os.environ, "MUNIMENT_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env) as asked:
        os.close(slave)
        said = b""
        while b"[same/own]" not in said:
            said += os.read(master, 4096)
        os.write(master, b"same\n")
        while asked.poll() is None or FACT.encode() not in said:
            try:
                said += os.read(master, 4096)
            except OSError:
                break
    os.close(master)
    assert (asked.returncode, FACT.encode() in said) == (0, True)


@pytest.mark.usefixtures("at")
def test_the_list_says_where_each_project_lies_and_what_it_holds(muniment, tmp_path):
    gone = repository(tmp_path / "gone")
    bind_checkout(tmp_path / "home", gone)
    shutil.rmtree(gone)
    (tmp_path / "home" / "projects" / ("old-" + "0" * 32) / "memory").mkdir(parents=True, mode=0o700)
    (project,) = (key for key in read_projects(tmp_path / "home") if key.startswith("shop-"))
    said = muniment.lines("projects", "list")
    assert said[:3] == [
        f"shop: 1 entry ({project})",
        f"  at {tmp_path}/shop",
        f"  from {tmp_path}/source",
    ]
    assert f"  at {gone}, not found" in said
    assert said[-2:] == [
        f"old: 0 entries (old-{'0' * 32})",
        "  not used by a known repository; to use it in one: muniment projects link",
    ]


def test_a_home_without_projects_says_when_one_begins(muniment):
    assert "no projects yet" in muniment.lines("projects", "list")[0]
    assert muniment.document("projects", "list") == {"projects": []}


def test_link_and_unlink_print_commands_that_work(at, muniment, tmp_path):
    second, home = tmp_path / "second", tmp_path / "home"
    own = keep(muniment, second, "This project has a canary")
    said = muniment.lines("projects", "link", "shop", second, "--leave")
    assert said[0].startswith(f"linked: {second} uses the memory of shop (shop-")
    assert said[1] == f"  previous memory: 1 entry in {own}"
    command = said[2].partition("here: ")[2].partition(" && muniment")[0]
    subprocess.run(command, shell=True, check=True)
    assert [name in str(at("second", "ls")) for name in (FACT, "canary")] == [True, True]
    said = muniment.lines("projects", "unlink", second)
    assert said[0].startswith(f"unlinked: {second} now has a separate memory (second-")
    assert "previous memory: 2 entries in " in said[1]
    assert said[3].startswith("  to use the previous one again: muniment projects link shop-")
    assert FACT not in str(at("second", "ls"))
    (home / "state").mkdir(exist_ok=True, mode=0o700)
    (home / "state" / "daemon.json").write_text("{}")
    said = muniment.lines("projects", "link", *said[3].split()[-1:], second)
    assert said[-1] == "note: the daemon uses this after its next start"
    assert FACT in str(at("second", "ls"))


@pytest.mark.usefixtures("at")
def test_a_project_is_named_by_id_or_by_a_name_that_is_its_alone(muniment, tmp_path):
    (project_id,) = read_projects(tmp_path / "home")
    assert muniment.lines("projects", "rename", "shop", "The Shop") == [
        f"renamed: {project_id} is now called The Shop"
    ]
    assert muniment.document("projects", "rename", project_id, "store")["name"] == "store"
    keep(muniment, tmp_path / "second", FACT)
    muniment.document("projects", "rename", "second", "store")
    for arguments, why in (
        (("link", "store", tmp_path / "second"), "several projects"),
        (("link", "../x", tmp_path / "second"), "project '../x' not found"),
        (("link", "x-" + "0" * 32, tmp_path / "second"), "project 'x-"),
        (("rename", project_id, ""), "1 to 80"),
        (("rename", project_id, "a\nb"), "1 to 80"),
        (("link", project_id, tmp_path / "missing"), "not found"),
    ):
        failed = muniment.document("projects", *arguments, code=1)["error"]
        assert (failed["code"], why in failed["message"]) == ("config_invalid", True), failed


@pytest.mark.slow
def test_a_worktree_and_its_clone_remember_into_one_memory(at, tmp_path):
    git(tmp_path / "shop", "worktree", "add", "--quiet", str(tmp_path / "tree"))
    at("tree", "remember", "This project ships on Thursdays", "--scope=project")
    assert {FACT, "This project ships on Thursdays"} <= {
        line.partition("  ")[2].partition("  ")[2] or line for line in at("shop", "ls")
    }


# -- init ------------------------------------------------------------------------------------------------


def test_init_keeps_the_memory_inside_each_checkout_and_git_takes_it_along(muniment, tmp_path):
    shop = repository(tmp_path / "shop")
    (shop / ".gitignore").write_text("/.muniment/MEMORY.md\n/.muniment/index/\n")
    said = muniment.lines("init", shop)
    assert said[0] == f"the memory of {shop} is stored in {shop}/.muniment"
    patterns = ("/.muniment/MEMORY.md", "/.muniment/index/", "/.muniment/**/.muniment-*")
    assert tuple(each.strip() for each in said[2:5]) == patterns
    where = (f"--workspace={shop}",)
    muniment.lines("remember", FACT, "--scope=project", *where, bound=False)
    assert git(shop, "status", "--porcelain", "--untracked-files=all", ".muniment").count("\n") == 0
    git(shop, "add", "--all")
    git(shop, "commit", "--quiet", "--message", "Remember")
    git(shop, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert FACT in str(muniment.lines("ls", f"--workspace={tmp_path / 'tree'}", bound=False))
    moved = shop.rename(tmp_path / "moved")
    assert FACT in str(muniment.lines("ls", f"--workspace={moved}", bound=False))
    (project,) = muniment.document("projects", "list")["projects"]
    assert (project["inside"], project["entries"]) == (".muniment", 0)  # Where it lay last, it is gone.
    assert "  stored in .muniment of each checkout" in muniment.lines("projects", "list")
    assert muniment.lines("init", moved, "--home", "--leave")[0].startswith(
        f"the memory of {moved} is stored in {tmp_path}/home"
    )
    assert FACT not in str(muniment.lines("ls", f"--workspace={moved}", bound=False))


def test_init_leaves_no_entry_behind_unless_somebody_says_so(at, muniment, tmp_path):
    shop = tmp_path / "shop"
    failed = muniment.document("init", shop, "--folder=docs/memory", code=1)["error"]
    assert "1 entry in " in failed["message"]
    assert not (shop / "docs").exists()
    command = failed["message"].partition("them: ")[2].partition("; then")[0]
    subprocess.run(command, shell=True, check=True)
    told = muniment.document("init", shop, "--folder=docs/memory", "--leave")
    assert (told["status"], told["memory"], told["entries"]) == ("kept", f"{shop}/docs/memory", 1)
    assert FACT in str(at("shop", "ls"))
    assert (
        muniment.document("init", shop, "--folder=docs/memory")["inside"] == "docs/memory"
    )  # Nothing changes.


@pytest.mark.parametrize("folder", ["../x", ".git/x", "", "README", "README/x"])
def test_init_refuses_a_folder_that_cannot_hold_a_memory_and_changes_nothing(muniment, tmp_path, folder):
    shop = repository(tmp_path / "shop")
    assert muniment.failure("init", shop, f"--folder={folder}") in {
        "config_invalid",
        "managed_memory_unavailable",
    }
    assert muniment.document("ls", f"--workspace={shop}", bound=False)["entries"] == []
    assert find_project(tmp_path / "home", shop).inside is None
    assert find_checkout(shop).path == shop
