"""Which memory a clone, worktree, renamed, moved, copied, cloned or plain directory sees; with real git.

The table of docs/projects.md is the one that is tried here.
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

from kit.cli.commands import invoked
from kit.git import clone, git, needs_git, repository
from kit.memories import photograph
from kit.where import REPOSITORY
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.opening import find_place
from muniment.settings import read_settings
from muniment.store.upkeep import view_of
from muniment.workspaces import projects
from muniment.workspaces.checkouts import find_checkout, normalised, remote_of
from muniment.workspaces.projects import find_project, read_projects, workspace_key

pytestmark = needs_git
FACT = "This project is deployed from the harbour"


class User:
    """Somebody with one home, who asks from directories.

    Attributes:
        notes: what was said besides at the last command.
    """

    def __init__(self, home):
        self.home, self.notes = home, ""

    def run(self, *arguments, code=0):
        said = invoked([*map(str, arguments), "--json"], {"MUNIMENT_HOME": str(self.home)})
        assert said.exit_code == code, said.output
        self.notes = said.stderr
        return json.loads(said.stdout)

    def sees(self, directory):
        """The facts of the project that somebody sees there; changes nothing."""
        settings = read_settings({"MUNIMENT_HOME": str(self.home)})
        with closing(find_place(settings, directory, create=False, reads=True)) as place:
            self.notes = "\n".join(place.notes)
            if "project" not in place.roots:
                return set()
            root = place.roots["project"]
            return {each.name for each in view_of(place.state, root, place.policy, sweep=True).entries()}

    def remembers(self, directory, fact=FACT):
        """Have a fact in the project there: the memory is opened to be written, and the file laid in it."""
        settings = read_settings({"MUNIMENT_HOME": str(self.home)})
        with closing(find_place(settings, directory)) as place:
            notes, name = place.notes, f"{len(self.sees(directory))}.md"
            entry = f"---\nname: {fact}\n---\n{fact}\n"
            (place.roots["project"].trusted_path / name).write_text(entry, encoding="utf-8")
        self.notes = "\n".join(notes)

    def projects(self):
        return {each["id"]: each for each in self.run("projects", "list")["projects"]}


@pytest.fixture
def user(tmp_path):
    return User(tmp_path / "home")


@pytest.fixture
def shop(tmp_path, user):
    """A clone of a remote, in which a fact was remembered."""
    repository(tmp_path / "remote")
    shop = clone(tmp_path / "remote", tmp_path / "shop")
    user.remembers(shop)
    assert user.sees(shop) == {FACT}
    return shop


@pytest.fixture
def elsewhere(tmp_path):
    """A directory on another file system, so that moving there copies and gives other inodes."""
    here = tmp_path.stat().st_dev
    others = [each for each in ("/dev/shm", "/tmp", "/var/tmp") if Path(each).stat().st_dev != here]
    if not others:
        pytest.skip("there is one file system here")
    made = Path(others[0], f"muniment-{os.getpid()}-{tmp_path.name}")
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made)


# -- the table -------------------------------------------------------------------------------------------


def test_the_clone_itself_is_known_also_from_below_and_by_a_link(shop, user, tmp_path):
    (shop / "src").mkdir()
    (tmp_path / "link").symlink_to(shop)
    for directory in (shop, shop / "src", tmp_path / "link"):
        assert user.sees(directory) == {FACT}


def test_all_worktrees_of_a_clone_share_one_memory(shop, user, tmp_path):
    for name in ("one", "two"):
        git(shop, "worktree", "add", "--quiet", str(tmp_path / name))
        assert user.sees(tmp_path / name) == {FACT}
    user.remembers(tmp_path / "two", "This project ships on Thursdays")
    both = {FACT, "This project ships on Thursdays"}
    assert [user.sees(each) for each in (shop, tmp_path / "one")] == [both, both]
    assert [each["places"] for each in user.projects().values()] == [[str(shop)]]


def test_worktrees_of_a_bare_clone_share_one_memory_with_the_directory_around_it(user, tmp_path):
    source = repository(tmp_path / "source")
    (around := tmp_path / "around").mkdir()
    git(source, "clone", "--quiet", "--bare", str(source), str(around / ".bare"))
    (around / ".git").write_text("gitdir: ./.bare\n")
    for name in ("one", "two"):
        git(around, "worktree", "add", "--quiet", name)
    user.remembers(around / "one")
    assert [user.sees(each) for each in (around, around / "two")] == [{FACT}] * 2


def test_a_renamed_checkout_finds_its_memory_and_so_does_one_that_is_moved_to_another_file_system(
    shop, user, tmp_path, elsewhere
):
    git(shop, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    renamed = shop.rename(tmp_path / "store")
    assert user.sees(renamed) == {FACT}
    assert user.notes == ""
    moved = Path(shutil.move(renamed, elsewhere / "kiosk"))
    assert user.sees(moved) == {FACT}
    user.remembers(moved, "This project ships on Thursdays")
    assert f"its repository was moved to {moved}" in user.notes
    assert [each["places"] for each in user.projects().values()] == [[str(moved)]]
    # git itself does not know the worktree until it is told where the clone is.
    assert user.sees(tmp_path / "tree") == set()
    assert "git worktree repair" in user.notes
    git(moved, "worktree", "repair", str(tmp_path / "tree"))
    back = Path(shutil.move(moved, tmp_path / "back"))
    git(back, "worktree", "repair", str(tmp_path / "tree"))
    for directory in (back, tmp_path / "tree"):
        assert user.sees(directory) == {FACT, "This project ships on Thursdays"}


def test_another_clone_of_the_remote_sees_nothing_until_somebody_says_so_and_is_asked_about_once(
    shop, user, tmp_path
):
    second = clone(tmp_path / "remote", tmp_path / "second")
    (project_id,) = user.projects()
    assert user.sees(second) == set()
    assert f"muniment projects link {project_id}" in user.notes
    user.remembers(second, "This project ships on Thursdays")
    assert f"muniment projects link {project_id}" in user.notes
    assert (user.sees(second), user.notes) == ({"This project ships on Thursdays"}, "")
    assert (user.sees(shop), user.notes) == ({FACT}, "")
    user.run("projects", "link", project_id, second)
    both = {FACT, "This project ships on Thursdays"}
    assert [user.sees(each) for each in (shop, second)] == [both, both]
    user.remembers(second, "This project has two clones")
    assert user.sees(shop) == {*both, "This project has two clones"}
    # Each of them may be moved without the other being taken for a copy.
    third = second.rename(tmp_path / "third")
    assert user.sees(third) == user.sees(shop)
    user.run("projects", "unlink", third)
    assert (user.sees(third), user.notes) == (set(), "")
    assert user.sees(shop) == {*both, "This project has two clones"}


def test_a_copy_sees_nothing_until_somebody_says_so(shop, user, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shop, copy, symlinks=True)
    assert user.sees(copy) == set()
    assert "copy of the repository of shop" in user.notes
    user.remembers(copy, "This project is a copy")
    assert (user.sees(copy), user.sees(shop)) == ({"This project is a copy"}, {FACT})
    assert user.notes == ""


def test_another_repository_at_the_place_of_one_begins_anew_and_the_same_cloned_again_does_not(
    shop, user, tmp_path
):
    shutil.rmtree(shop)
    clone(tmp_path / "remote", shop)
    assert user.sees(shop) == {FACT}
    shutil.rmtree(shop)
    repository(shop)
    assert user.sees(shop) == set()
    shutil.rmtree(shop)
    clone(repository(tmp_path / "unrelated"), shop)
    assert user.sees(shop) == set()
    assert "another repository was here" in user.notes
    user.remembers(shop, "This project is unrelated")
    assert user.sees(shop) == {"This project is unrelated"}
    assert len(user.projects()) == 2
    shutil.rmtree(shop)
    clone(tmp_path / "remote", shop)
    user.run("projects", "link", "shop-" + workspace_key(shop).removeprefix("shop-"), shop)
    assert user.sees(shop) == {FACT}


def test_a_submodule_is_a_project_of_its_own_that_moves_with_its_repository(shop, user, tmp_path):
    git(shop, "submodule", "add", "--quiet", str(repository(tmp_path / "part")), "part")
    assert user.sees(shop / "part") == set()
    user.remembers(shop / "part", "This project is a part")
    assert [user.sees(each) for each in (shop / "part", shop)] == [{"This project is a part"}, {FACT}]
    moved = shop.rename(tmp_path / "moved")
    assert [user.sees(each) for each in (moved / "part", moved)] == [{"This project is a part"}, {FACT}]


def test_a_directory_without_git_is_known_by_its_path_alone_and_stays_known_once_git_is_there(user, tmp_path):
    (plain := tmp_path / "plain").mkdir()
    user.remembers(plain)
    assert (user.sees(plain), user.sees(plain.rename(tmp_path / "other"))) == ({FACT}, set())
    (tmp_path / "other").rename(plain)
    git(plain, "init", "--quiet")
    assert user.sees(plain) == {FACT}
    user.remembers(plain, "This project has a history")
    assert FACT in user.sees(plain.rename(tmp_path / "other"))


def test_a_memory_from_before_there_was_a_list_is_found_by_its_path_and_moves_from_then_on(user, tmp_path):
    old = repository(tmp_path / "old")
    user.remembers(old)
    (user.home / "projects.json").unlink()  # As an older version leaves it.
    (old / ".git" / "muniment").unlink()
    assert user.sees(old) == {FACT}
    git(old, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    memory = user.home / "projects" / workspace_key(tmp_path / "tree") / "memory"
    memory.mkdir(parents=True, mode=0o700)
    assert (user.sees(tmp_path / "tree"), str(memory) in user.notes) == ({FACT}, True)
    user.run("projects", "rename", workspace_key(tmp_path / "tree"), "before")
    assert (user.sees(tmp_path / "tree"), user.notes) == ({FACT}, "")
    user.remembers(old, "This project is old")
    assert FACT in user.sees(old.rename(tmp_path / "new"))


def test_who_cannot_mark_a_repository_knows_it_by_its_path(shop, user, tmp_path):
    (shop / ".git" / "muniment").unlink()
    (shop / ".git" / "muniment").mkdir()  # Somebody else's.
    user.remembers(shop, "This project is marked by nobody")
    assert FACT in user.sees(shop)
    assert list((shop / ".git" / "muniment").iterdir()) == []
    assert user.sees(shop.rename(tmp_path / "moved")) == set()


# -- what is kept ------------------------------------------------------------------------------------------


def test_list_and_mark_are_this_users_alone_and_hold_no_credential(user, tmp_path):
    shop = repository(tmp_path / "shop")
    git(shop, "remote", "add", "origin", "https://me:hunter2@example.org:443/acme/shop.git?token=s3cr3t")
    user.remembers(shop)
    kept = [user.home / "projects.json", shop / ".git" / "muniment"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in kept] == [0o600, 0o600]
    (project,) = user.projects().values()
    assert project["remote"] == "example.org/acme/shop"
    said = str(project) + "".join(each.read_text() for each in kept)
    assert not [word for word in ("hunter2", "s3cr3t", "me:") if word in said]
    (secret,) = (each.secret for each in read_projects(user.home).values())
    assert secret not in str(project)
    assert git(shop, "status", "--porcelain") == ""


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


def test_a_remote_is_one_text_however_it_is_written_and_no_credential_is_in_it(subtests):
    for wanted, urls in REMOTES.items():
        for url in urls:
            with subtests.test(url):
                assert normalised(url, Path("/home/me")) == wanted


def test_the_remote_is_origin_else_the_only_one_as_git_reads_its_configuration(tmp_path):
    here = repository(tmp_path / "here")
    for name, url in (("up", "https://example.org/up"), ("origin", "https://example.org/o;x#y")):
        git(here, "remote", "add", name, url)
        assert remote_of(here / ".git") == url.removeprefix("https://").partition("#")[0]
    (here / ".git" / "config").write_text(
        '[core]\nurl = no\n[REMOTE "a\\"b"] URL = "https://example.org/\\\nquoted" ; why\n[other]\nurl = no\n'
    )
    assert remote_of(here / ".git") == "example.org/quoted"


# -- a list that is damaged, a thousand projects -----------------------------------------------------------


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


def test_a_damaged_list_is_told_and_nothing_begins_anew(shop, user, subtests):
    path, before = user.home / "projects.json", photograph(user.home / "projects")
    for damage in DAMAGES:
        with subtests.test(damage[:60]):
            path.write_text(damage)
            for see in (user.sees, user.remembers):
                with pytest.raises(ConfigInvalid, match="is damaged"):
                    see(shop)
    path.unlink()
    assert (user.sees(shop), photograph(user.home / "projects")) == ({FACT}, before)


def test_the_list_of_a_newer_version_or_one_that_others_may_write_is_not_obeyed(shop, user):
    path = user.home / "projects.json"
    path.chmod(0o622)
    with pytest.raises(ConfigInvalid, match="chmod go-w"):
        user.sees(shop)
    path.chmod(0o600)
    path.write_text('{"version": 2}')
    with pytest.raises(ConfigInvalid, match="newer"):
        user.sees(shop)


def test_a_lookup_reads_a_handful_of_small_files_also_among_a_thousand_projects(
    shop, user, tmp_path, monkeypatch
):
    git(shop, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    with projects.changing(user.home) as known:
        for number in range(1000):
            place = {f"/nowhere/{number}": True}
            known[f"p-{number:032x}"] = projects.Project(f"p{number}", f"example.org/{number}", places=place)
    opened, honest = [], os.open
    monkeypatch.setattr(
        os, "open", lambda path, *more, **rest: opened.append(str(path)) or honest(path, *more, **rest)
    )
    for directory, most in (
        (shop, 1),
        (tmp_path / "tree", 4),
        (clone(tmp_path / "remote", tmp_path / "new"), 2),
    ):
        opened.clear()
        find_project(user.home, directory)
        assert len(opened) <= most, opened  # And the list.


def test_a_disk_that_is_full_or_a_death_between_mark_and_list_leaves_what_was_and_the_next_try_works(
    shop, user, tmp_path, monkeypatch
):
    before, honest = (user.home / "projects.json").read_bytes(), os.fsync
    second = clone(tmp_path / "remote", tmp_path / "second")
    written = []

    def full(fd):
        written.append(fd)
        if len(written) > 2:  # The mark's file and its folder come first, then the list.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ManagedMemoryUnavailable, match="disk is full"):
            user.remembers(second)
    assert ((user.home / "projects.json").read_bytes(), (second / ".git" / "muniment").exists()) == (
        before,
        True,
    )
    assert (user.sees(second), user.sees(shop)) == (set(), {FACT})
    assert not list(user.home.glob("*.unfinished"))
    user.remembers(second, "This project has room again")
    assert (user.sees(second), user.sees(shop)) == ({"This project has room again"}, {FACT})


def test_two_processes_that_bind_at_once_lose_nothing(user, tmp_path):
    made = [repository(tmp_path / f"r{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda each: projects.bind_checkout(user.home, each), made * 2))
    assert {place for each in read_projects(user.home).values() for place in each.places} == set(
        map(str, made)
    )
    assert all(find_project(user.home, each).is_bound for each in made)


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigInvalid, match="not found"):
        find_checkout(tmp_path / "missing")


def test_the_page_has_the_table(subtests):
    page = (REPOSITORY / "docs" / "projects.md").read_text(encoding="utf-8")
    rows = "worktree|bare clone|renamed|another file system|cp -r|cloned again|deleted|submodule|without git"
    for row in rows.split("|"):
        with subtests.test(row):
            assert [line for line in page.splitlines() if line.startswith("|") and row in line]


@pytest.mark.parametrize("loss", ["gone", "of another home", "a .git that is not believed"])
def test_a_copy_does_not_become_the_owner_where_the_original_lost_its_mark(shop, user, tmp_path, loss):
    copy, mark = tmp_path / "copy", shop / ".git" / "muniment"
    shutil.copytree(shop, copy, symlinks=True)
    if loss == "gone":
        mark.unlink()
    elif loss == "of another home":
        mark.write_text(f"muniment 1 other-{'0' * 32} {'0' * 32}\n")
    else:
        (shop / ".git").rename(tmp_path / "repository")
        (shop / ".git").symlink_to(tmp_path / "repository")
    user.remembers(copy, "This project is a copy")
    assert "copy of the repository of shop" in user.notes
    if loss.startswith("a .git"):
        (shop / ".git").unlink()
        (tmp_path / "repository").rename(shop / ".git")
    assert (user.sees(copy), user.sees(shop)) == ({"This project is a copy"}, {FACT})
    user.remembers(shop, "This project is the first")
    assert (user.sees(shop), user.notes) == ({FACT, "This project is the first"}, "")


def test_a_moved_repository_stays_the_owner_where_one_of_another_remote_took_its_place(shop, user, tmp_path):
    moved = shop.rename(tmp_path / "moved")
    git(repository(shop), "remote", "add", "origin", "https://example.org/other")
    assert (user.sees(moved), user.sees(shop)) == ({FACT}, set())
    user.remembers(moved, "This project is moved")
    user.remembers(shop, "This project is another")
    assert user.sees(moved) == {FACT, "This project is moved"}
    assert user.sees(shop) == {"This project is another"}


def test_a_repository_that_moves_there_and_back_is_as_it_was(shop, user, tmp_path):
    for place in (tmp_path / "moved", shop):
        (tmp_path / "moved" if place == shop else shop).rename(place)
        user.remembers(place)
    (project,) = read_projects(user.home).values()
    assert (list(project.places), project.before) == ([str(shop)], {str(tmp_path / "moved"): str(shop)})


def test_a_repository_that_several_homes_know_is_found_by_each_of_them_after_it_was_moved(user, tmp_path):
    shop, other = repository(tmp_path / "shop"), User(tmp_path / "other home")
    other.remembers(shop, "This project has two homes")
    user.remembers(shop)
    for _ in range(2):
        other.remembers(shop, "This project has two homes")
    assert len((shop / ".git" / "muniment").read_text().splitlines()) == 2
    moved = shop.rename(tmp_path / "moved")
    assert (user.sees(moved), other.sees(moved)) == ({FACT}, {"This project has two homes"})
    # Each replaces its own alone, and too many do not make it unreadable.
    user.run("projects", "unlink", moved)
    assert (user.sees(moved), other.sees(moved)) == (set(), {"This project has two homes"})
    for number in range(40):
        mark = moved / ".git" / "muniment"
        with mark.open("a") as file:
            file.write(f"muniment 1 {'x' * 40}-{number:032x} {'0' * 32}\n")
        other.run("projects", "unlink", moved)
        user.run("projects", "unlink", moved)
    again = moved.rename(tmp_path / "again")
    user.remembers(again, "This project is the last")
    assert user.sees(again.rename(moved)) == {"This project is the last"}


@pytest.mark.parametrize("command", ["rename", "link"])
def test_a_memory_from_before_the_list_of_projects_stays_its_repositorys_whatever_it_is_called_or_shares(
    user, tmp_path, command
):
    tree = repository(tmp_path / "old")
    user.remembers(tree, FACT)
    (tree / ".git" / "muniment").unlink()
    (user.home / "projects.json").unlink()
    before = workspace_key(tree)
    if command == "rename":
        user.run("projects", "rename", before, "older")
    else:
        user.run("projects", "link", before, repository(tmp_path / "other"))
        assert user.sees(tmp_path / "other") == {FACT}
    assert user.sees(tree) == {FACT}
    user.run("projects", "unlink", tree)
    assert user.sees(tree) == set(), "it is its own from now on"
