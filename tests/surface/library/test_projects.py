"""Which memory a clone, worktree, or renamed, moved, copied or plain directory sees; with real git.

Tests the table of docs/projects.md.
"""

import errno
import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from kit.cli.commands import run_in_process
from kit.git import clone, create_repository, needs_git, run_git
from kit.locations import REPOSITORY
from kit.memories import take_snapshot
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.opening import open_context
from muniment.settings import read_settings
from muniment.store.upkeep import open_view
from muniment.workspaces import projects
from muniment.workspaces.checkouts import find_checkout, normalize_remote, read_remote
from muniment.workspaces.projects import compute_project_id, find_project, read_projects

pytestmark = needs_git
FACT = "This project is deployed from the harbour"


class User:
    """A user with one home, who runs commands in directories.

    Attributes:
        notes: standard error of the last command, or notes of the last opened context.
    """

    def __init__(self, home):
        self.home, self.notes = home, ""

    def run(self, *arguments, code=0):
        result = run_in_process([*map(str, arguments), "--json"], {"MUNIMENT_HOME": str(self.home)})
        assert result.exit_code == code, result.output
        self.notes = result.stderr
        return json.loads(result.stdout)

    def list_facts(self, directory):
        """Return the facts of the project that the user sees in a directory; change nothing."""
        settings = read_settings({"MUNIMENT_HOME": str(self.home)})
        with closing(open_context(settings, directory, create=False, is_reader=True)) as context:
            self.notes = "\n".join(context.notes)
            if "project" not in context.roots:
                return set()
            root = context.roots["project"]
            return {
                each.name for each in open_view(context.state, root, context.policy, sweep=True).entries()
            }

    def store_fact(self, directory, fact=FACT):
        """Store a fact in the project of a directory: open the memory for writing and write the file."""
        settings = read_settings({"MUNIMENT_HOME": str(self.home)})
        with closing(open_context(settings, directory)) as context:
            notes, name = context.notes, f"{len(self.list_facts(directory))}.md"
            entry = f"---\nname: {fact}\n---\n{fact}\n"
            (context.roots["project"].trusted_path / name).write_text(entry, encoding="utf-8")
        self.notes = "\n".join(notes)

    def projects(self):
        return {each["id"]: each for each in self.run("projects", "list")["projects"]}


@pytest.fixture
def user(tmp_path):
    return User(tmp_path / "home")


@pytest.fixture
def shop(tmp_path, user):
    """A clone of a remote, with one stored fact."""
    create_repository(tmp_path / "remote")
    shop = clone(tmp_path / "remote", tmp_path / "shop")
    user.store_fact(shop)
    assert user.list_facts(shop) == {FACT}
    return shop


@pytest.fixture
def other_file_system(tmp_path):
    """A directory on another file system: a checkout that moves there is copied and has new inodes."""
    here = tmp_path.stat().st_dev
    others = [each for each in ("/dev/shm", "/tmp", "/var/tmp") if Path(each).stat().st_dev != here]
    if not others:
        pytest.skip("only one file system is available")
    directory = Path(others[0], f"muniment-{os.getpid()}-{tmp_path.name}")
    directory.mkdir(mode=0o700)
    yield directory
    shutil.rmtree(directory)


# -- the table -------------------------------------------------------------------------------------------


def test_clone_is_recognized_from_subdirectory_and_symlink(shop, user, tmp_path):
    (shop / "src").mkdir()
    (tmp_path / "link").symlink_to(shop)
    for directory in (shop, shop / "src", tmp_path / "link"):
        assert user.list_facts(directory) == {FACT}


def test_all_worktrees_of_a_clone_share_one_memory(shop, user, tmp_path):
    for name in ("one", "two"):
        run_git(shop, "worktree", "add", "--quiet", str(tmp_path / name))
        assert user.list_facts(tmp_path / name) == {FACT}
    user.store_fact(tmp_path / "two", "This project ships on Thursdays")
    both = {FACT, "This project ships on Thursdays"}
    assert [user.list_facts(each) for each in (shop, tmp_path / "one")] == [both, both]
    assert [each["places"] for each in user.projects().values()] == [[str(shop)]]


def test_worktrees_of_bare_clone_share_memory_with_parent_folder(user, tmp_path):
    source = create_repository(tmp_path / "source")
    (around := tmp_path / "around").mkdir()
    run_git(source, "clone", "--quiet", "--bare", str(source), str(around / ".bare"))
    (around / ".git").write_text("gitdir: ./.bare\n")
    for name in ("one", "two"):
        run_git(around, "worktree", "add", "--quiet", name)
    user.store_fact(around / "one")
    assert [user.list_facts(each) for each in (around, around / "two")] == [{FACT}] * 2


def test_moved_checkout_keeps_memory_across_file_systems(shop, user, tmp_path, other_file_system):
    run_git(shop, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    renamed = shop.rename(tmp_path / "store")
    assert user.list_facts(renamed) == {FACT}
    assert user.notes == ""
    moved = Path(shutil.move(renamed, other_file_system / "kiosk"))
    assert user.list_facts(moved) == {FACT}
    user.store_fact(moved, "This project ships on Thursdays")
    assert f"its repository was moved to {moved}" in user.notes
    assert [each["places"] for each in user.projects().values()] == [[str(moved)]]
    # git does not recognize the worktree until it is repaired.
    assert user.list_facts(tmp_path / "tree") == set()
    assert "git worktree repair" in user.notes
    run_git(moved, "worktree", "repair", str(tmp_path / "tree"))
    back = Path(shutil.move(moved, tmp_path / "back"))
    run_git(back, "worktree", "repair", str(tmp_path / "tree"))
    for directory in (back, tmp_path / "tree"):
        assert user.list_facts(directory) == {FACT, "This project ships on Thursdays"}


def test_second_clone_has_no_shared_memory_until_linked(shop, user, tmp_path):
    second = clone(tmp_path / "remote", tmp_path / "second")
    (project_id,) = user.projects()
    assert user.list_facts(second) == set()
    assert f"muniment projects link {project_id}" in user.notes
    user.store_fact(second, "This project ships on Thursdays")
    assert f"muniment projects link {project_id}" in user.notes
    assert (user.list_facts(second), user.notes) == ({"This project ships on Thursdays"}, "")
    assert (user.list_facts(shop), user.notes) == ({FACT}, "")
    user.run("projects", "link", project_id, second)
    both = {FACT, "This project ships on Thursdays"}
    assert [user.list_facts(each) for each in (shop, second)] == [both, both]
    user.store_fact(second, "This project has two clones")
    assert user.list_facts(shop) == {*both, "This project has two clones"}
    # Each of them may move; neither is mistaken for a copy.
    third = second.rename(tmp_path / "third")
    assert user.list_facts(third) == user.list_facts(shop)
    user.run("projects", "unlink", third)
    assert (user.list_facts(third), user.notes) == (set(), "")
    assert user.list_facts(shop) == {*both, "This project has two clones"}


def test_copy_of_checkout_starts_without_memory(shop, user, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shop, copy, symlinks=True)
    assert user.list_facts(copy) == set()
    assert "copy of the repository of shop" in user.notes
    user.store_fact(copy, "This project is a copy")
    assert (user.list_facts(copy), user.list_facts(shop)) == ({"This project is a copy"}, {FACT})
    assert user.notes == ""


def test_recloned_repository_keeps_memory_and_another_does_not(shop, user, tmp_path):
    shutil.rmtree(shop)
    clone(tmp_path / "remote", shop)
    assert user.list_facts(shop) == {FACT}
    shutil.rmtree(shop)
    create_repository(shop)
    assert user.list_facts(shop) == set()
    shutil.rmtree(shop)
    clone(create_repository(tmp_path / "unrelated"), shop)
    assert user.list_facts(shop) == set()
    assert "another repository was here before" in user.notes
    user.store_fact(shop, "This project is unrelated")
    assert user.list_facts(shop) == {"This project is unrelated"}
    assert len(user.projects()) == 2
    shutil.rmtree(shop)
    clone(tmp_path / "remote", shop)
    user.run("projects", "link", "shop-" + compute_project_id(shop).removeprefix("shop-"), shop)
    assert user.list_facts(shop) == {FACT}


def test_submodule_is_separate_project_and_moves_with_parent(shop, user, tmp_path):
    run_git(shop, "submodule", "add", "--quiet", str(create_repository(tmp_path / "part")), "part")
    assert user.list_facts(shop / "part") == set()
    user.store_fact(shop / "part", "This project is a part")
    assert [user.list_facts(each) for each in (shop / "part", shop)] == [{"This project is a part"}, {FACT}]
    moved = shop.rename(tmp_path / "moved")
    assert [user.list_facts(each) for each in (moved / "part", moved)] == [{"This project is a part"}, {FACT}]


def test_plain_directory_keeps_memory_after_git_init(user, tmp_path):
    (plain := tmp_path / "plain").mkdir()
    user.store_fact(plain)
    assert (user.list_facts(plain), user.list_facts(plain.rename(tmp_path / "other"))) == ({FACT}, set())
    (tmp_path / "other").rename(plain)
    run_git(plain, "init", "--quiet")
    assert user.list_facts(plain) == {FACT}
    user.store_fact(plain, "This project has a history")
    assert FACT in user.list_facts(plain.rename(tmp_path / "other"))


def test_memory_without_project_list_is_found_by_path(user, tmp_path):
    old = create_repository(tmp_path / "old")
    user.store_fact(old)
    (user.home / "projects.json").unlink()  # As an older version leaves it.
    (old / ".git" / "muniment").unlink()
    assert user.list_facts(old) == {FACT}
    run_git(old, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    memory = user.home / "projects" / compute_project_id(tmp_path / "tree") / "memory"
    memory.mkdir(parents=True, mode=0o700)
    assert (user.list_facts(tmp_path / "tree"), str(memory) in user.notes) == ({FACT}, True)
    user.run("projects", "rename", compute_project_id(tmp_path / "tree"), "before")
    assert (user.list_facts(tmp_path / "tree"), user.notes) == ({FACT}, "")
    user.store_fact(old, "This project is old")
    assert FACT in user.list_facts(old.rename(tmp_path / "new"))


def test_repository_that_cannot_be_marked_is_found_by_path(shop, user, tmp_path):
    (shop / ".git" / "muniment").unlink()
    (shop / ".git" / "muniment").mkdir()  # Another user's.
    user.store_fact(shop, "This project is marked by nobody")
    assert FACT in user.list_facts(shop)
    assert list((shop / ".git" / "muniment").iterdir()) == []
    assert user.list_facts(shop.rename(tmp_path / "moved")) == set()


# -- the list of projects


def test_project_list_and_mark_are_private_without_credentials(user, tmp_path):
    shop = create_repository(tmp_path / "shop")
    run_git(shop, "remote", "add", "origin", "https://me:hunter2@example.org:443/acme/shop.git?token=s3cr3t")
    user.store_fact(shop)
    files = [user.home / "projects.json", shop / ".git" / "muniment"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600, 0o600]
    (project,) = user.projects().values()
    assert project["remote"] == "example.org/acme/shop"
    stored = str(project) + "".join(each.read_text() for each in files)
    assert not [word for word in ("hunter2", "s3cr3t", "me:") if word in stored]
    (secret,) = (each.secret for each in read_projects(user.home).values())
    assert secret not in str(project)
    assert run_git(shop, "status", "--porcelain") == ""


REMOTES = {
    "github.com/acme/shop": [
        "https://github.com/acme/shop.git",
        "https://GitHub.com/acme/shop/",
        "http://github.com:80/acme/shop",
        "ssh://git@github.com/acme/shop.git",
        "ssh://git@github.com:22/acme/shop",
        "git@github.com:acme/shop.git",
        "github.com:/acme/shop",
        "https://user:p%40ss@github.com/acme/shop.git#x",
        "git://github.com/acme/shop",
    ],
    "github.com:8443/acme/shop": ["https://github.com:8443/acme/shop"],
    "[::1]:2222/srv/shop": ["ssh://git@[::1]:2222/srv/shop.git"],
    "/srv/shop": ["/srv/shop.git", "file:///srv/shop", "../../srv/shop"],
    None: [
        *("", "ext::sh -c evil", "https://user:pa/ss@example.org/x", "https://token/x@example.org/y"),
        *("user:pass@example.org:x", "https://example.org:port/x", "a\nb", "x" * 600, "https://[::1/x"),
        *("https://", "C:\\shop@x", "me:secret@host"),
    ],
}


def test_remote_url_is_normalized_without_credentials(subtests):
    for wanted, urls in REMOTES.items():
        for url in urls:
            with subtests.test(url):
                assert normalize_remote(url, Path("/home/me")) == wanted


def test_remote_is_origin_or_the_only_one_in_git_config(tmp_path):
    here = create_repository(tmp_path / "here")
    for name, url in (("up", "https://example.org/up"), ("origin", "https://example.org/o;x#y")):
        run_git(here, "remote", "add", name, url)
        assert read_remote(here / ".git") == url.removeprefix("https://").partition("#")[0]
    (here / ".git" / "config").write_text(
        '[core]\nurl = no\n[REMOTE "a\\"b"] URL = "https://example.org/\\\nquoted" ; why\n[other]\nurl = no\n'
    )
    assert read_remote(here / ".git") == "example.org/quoted"


# -- a damaged list, many projects


DAMAGES = [
    "",
    "{",
    "[]",
    '{"version": 1}',
    "[" * 100_000,
    '{"version": 1, "projects": {"../x": {"name": "x"}}}',
]
PROJECT = '{"version": 1, "projects": {"x-%s": {"name": "x", %s}}}'
DAMAGES += [
    PROJECT % ("0" * 32, more)
    for more in ('"places": []', '"places": {"/x": 1}', '"inside": "../x"', '"more": 1', '"remote": 1')
]


def test_damaged_project_list_raises_and_keeps_memory(shop, user, subtests):
    path, before = user.home / "projects.json", take_snapshot(user.home / "projects")
    for damage in DAMAGES:
        with subtests.test(damage[:60]):
            path.write_text(damage)
            for operation in (user.list_facts, user.store_fact):
                with pytest.raises(ConfigInvalid, match="is damaged"):
                    operation(shop)
    path.unlink()
    assert (user.list_facts(shop), take_snapshot(user.home / "projects")) == ({FACT}, before)


def test_newer_or_writable_project_list_is_rejected(shop, user):
    path = user.home / "projects.json"
    path.chmod(0o622)
    with pytest.raises(ConfigInvalid, match="chmod go-w"):
        user.list_facts(shop)
    path.chmod(0o600)
    path.write_text('{"version": 2}')
    with pytest.raises(ConfigInvalid, match="newer"):
        user.list_facts(shop)


def test_lookup_among_many_projects_reads_few_files(shop, user, tmp_path, monkeypatch):
    run_git(shop, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    with projects.lock_projects(user.home) as known:
        for number in range(1000):
            paths = {f"/nowhere/{number}": True}
            known[f"p-{number:032x}"] = projects.Project(f"p{number}", f"example.org/{number}", places=paths)
    opened, original = [], os.open
    monkeypatch.setattr(
        os, "open", lambda path, *more, **rest: opened.append(str(path)) or original(path, *more, **rest)
    )
    for directory, most in (
        (shop, 1),
        (tmp_path / "tree", 4),
        (clone(tmp_path / "remote", tmp_path / "new"), 2),
    ):
        opened.clear()
        find_project(user.home, directory)
        assert len(opened) <= most, opened  # Plus the list.


def test_full_disk_keeps_project_list_and_next_try_works(shop, user, tmp_path, monkeypatch):
    before, original = (user.home / "projects.json").read_bytes(), os.fsync
    second = clone(tmp_path / "remote", tmp_path / "second")
    written = []

    def fail_fsync(fd):
        written.append(fd)
        if len(written) > 2:  # The mark and its folder are written first, then the list.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_fsync)
        with pytest.raises(ManagedMemoryUnavailable, match="disk is full"):
            user.store_fact(second)
    assert ((user.home / "projects.json").read_bytes(), (second / ".git" / "muniment").exists()) == (
        before,
        True,
    )
    assert (user.list_facts(second), user.list_facts(shop)) == (set(), {FACT})
    assert not list(user.home.glob("*.unfinished"))
    user.store_fact(second, "This project has room again")
    assert (user.list_facts(second), user.list_facts(shop)) == ({"This project has room again"}, {FACT})


def test_concurrent_binds_lose_no_project(user, tmp_path):
    repositories = [create_repository(tmp_path / f"r{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda each: projects.bind_checkout(user.home, each), repositories * 2))
    assert {path for each in read_projects(user.home).values() for path in each.places} == set(
        map(str, repositories)
    )
    assert all(find_project(user.home, each).is_bound for each in repositories)


def test_missing_directory_is_config_error(tmp_path):
    with pytest.raises(ConfigInvalid, match="not found"):
        find_checkout(tmp_path / "missing")


def test_page_has_row_for_each_layout(subtests):
    page = (REPOSITORY / "docs" / "projects.md").read_text(encoding="utf-8")
    rows = "worktree|bare clone|renamed|another file system|cp -r|second clone|deleted|submodule|without git"
    for row in rows.split("|"):
        with subtests.test(row):
            assert [line for line in page.splitlines() if line.startswith("|") and row in line]


@pytest.mark.parametrize("loss", ["missing", "of another home", "a .git symlink"])
def test_copy_does_not_take_memory_if_original_lost_its_mark(shop, user, tmp_path, loss):
    copy, mark = tmp_path / "copy", shop / ".git" / "muniment"
    shutil.copytree(shop, copy, symlinks=True)
    if loss == "missing":
        mark.unlink()
    elif loss == "of another home":
        mark.write_text(f"muniment 1 other-{'0' * 32} {'0' * 32}\n")
    else:
        (shop / ".git").rename(tmp_path / "repository")
        (shop / ".git").symlink_to(tmp_path / "repository")
    user.store_fact(copy, "This project is a copy")
    assert "copy of the repository of shop" in user.notes
    if loss.startswith("a .git"):
        (shop / ".git").unlink()
        (tmp_path / "repository").rename(shop / ".git")
    assert (user.list_facts(copy), user.list_facts(shop)) == ({"This project is a copy"}, {FACT})
    user.store_fact(shop, "This project is the first")
    assert (user.list_facts(shop), user.notes) == ({FACT, "This project is the first"}, "")


def test_moved_repository_keeps_memory_if_another_replaces_it(shop, user, tmp_path):
    moved = shop.rename(tmp_path / "moved")
    run_git(create_repository(shop), "remote", "add", "origin", "https://example.org/other")
    assert (user.list_facts(moved), user.list_facts(shop)) == ({FACT}, set())
    user.store_fact(moved, "This project is moved")
    user.store_fact(shop, "This project is another")
    assert user.list_facts(moved) == {FACT, "This project is moved"}
    assert user.list_facts(shop) == {"This project is another"}


def test_repository_moved_and_moved_back_has_one_place(shop, user, tmp_path):
    for target in (tmp_path / "moved", shop):
        (tmp_path / "moved" if target == shop else shop).rename(target)
        user.store_fact(target)
    (project,) = read_projects(user.home).values()
    assert (list(project.places), project.before) == ([str(shop)], {str(tmp_path / "moved"): str(shop)})


def test_repository_of_several_homes_is_found_after_move(user, tmp_path):
    shop, other = create_repository(tmp_path / "shop"), User(tmp_path / "other home")
    other.store_fact(shop, "This project has two homes")
    user.store_fact(shop)
    for _ in range(2):
        other.store_fact(shop, "This project has two homes")
    assert len((shop / ".git" / "muniment").read_text().splitlines()) == 2
    moved = shop.rename(tmp_path / "moved")
    assert (user.list_facts(moved), other.list_facts(moved)) == ({FACT}, {"This project has two homes"})
    # Each home replaces only its own mark, and many marks do not make the file unreadable.
    user.run("projects", "unlink", moved)
    assert (user.list_facts(moved), other.list_facts(moved)) == (set(), {"This project has two homes"})
    for number in range(40):
        mark = moved / ".git" / "muniment"
        with mark.open("a") as file:
            file.write(f"muniment 1 {'x' * 40}-{number:032x} {'0' * 32}\n")
        other.run("projects", "unlink", moved)
        user.run("projects", "unlink", moved)
    renamed = moved.rename(tmp_path / "again")
    user.store_fact(renamed, "This project is the last")
    assert user.list_facts(renamed.rename(moved)) == {"This project is the last"}


@pytest.mark.parametrize("run_command", ["rename", "link"])
def test_unlisted_memory_survives_project_rename_and_link(user, tmp_path, run_command):
    tree = create_repository(tmp_path / "old")
    user.store_fact(tree, FACT)
    (tree / ".git" / "muniment").unlink()
    (user.home / "projects.json").unlink()
    before = compute_project_id(tree)
    if run_command == "rename":
        user.run("projects", "rename", before, "older")
    else:
        user.run("projects", "link", before, create_repository(tmp_path / "other"))
        assert user.list_facts(tmp_path / "other") == {FACT}
    assert user.list_facts(tree) == {FACT}
    user.run("projects", "unlink", tree)
    assert user.list_facts(tree) == set(), "the repository has its own memory from now on"
