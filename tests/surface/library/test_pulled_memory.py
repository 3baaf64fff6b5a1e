"""Memory in a repository after `run_git pull`: recall and the index reflect the pulled changes; with real
git.
"""

import json

import pytest

import muniment
from kit.cli.commands import run_in_process
from kit.git import clone, commit_file, create_repository, needs_git, run_git
from kit.server.process import write_policy
from kit.server.raw import start_local_daemon
from muniment.client import Client
from muniment.workspaces import projects
from muniment.workspaces.projects import bind_checkout, read_projects, set_memory_folder

pytestmark = needs_git


def make_entry(fact):
    return f"---\nname: {fact}\ndescription: About it\ntype: project\n---\n{fact}\n"


class Colleague:
    """A user with a home and a clone that contains the memory of the project."""

    def __init__(self, base, source, name):
        self.home, self.clone = base / f"home of {name}", clone(source, base / name)
        self.memory = self.clone / ".muniment"
        self.memory.mkdir(exist_ok=True)
        self.policy = write_policy(base, require='"none"')
        set_memory_folder(self.home, self.clone, ".muniment")

    def open(self):
        return muniment.open(self.clone, home=self.home, policy=self.policy, in_process=True)

    def remember_all(self, *facts):
        with self.open() as memory:
            return [memory.remember(fact, scope="project") for fact in facts]

    def run(self, *arguments):
        result = run_in_process([*arguments, f"--workspace={self.clone}"], {"MUNIMENT_HOME": str(self.home)})
        assert result.exit_code == 0, result.output
        return result.stdout

    def list_names(self):
        return {each["name"] for each in json.loads(self.run("ls", "project", "--json"))["entries"]}

    def read_index(self):
        return (self.memory / "MEMORY.md").read_text(encoding="utf-8")

    def push(self):
        run_git(self.clone, "add", "--all")
        run_git(self.clone, "commit", "--quiet", "--message", "Remember")
        run_git(self.clone, "push", "--quiet", "origin", "HEAD:main")


@pytest.fixture
def source(tmp_path):
    source = create_repository(tmp_path / "source")
    run_git(source, "config", "receive.denyCurrentBranch", "updateInstead")
    for name in ("kept", "changed", "removed"):
        commit_file(source, f".muniment/{name}.md", make_entry(f"The {name} fact"))
    return source


@pytest.fixture
def ann(tmp_path, source):
    return Colleague(tmp_path, source, "ann")


def commit_changes(source):
    """Add, change and remove several files at once."""
    for animal in ANIMALS:
        commit_file(source, f".muniment/topic/{animal}.md", make_entry(f"The added {animal} fact"))
    commit_file(source, ".muniment/changed.md", make_entry("The fact is another one"))
    run_git(source, "rm", "--quiet", ".muniment/removed.md")
    run_git(source, "commit", "--quiet", "--message", "Remove")


ANIMALS = ("gnu", "ibis", "yak")
BEFORE = {"The kept fact", "The changed fact", "The removed fact"}
AFTER = {"The kept fact", "The fact is another one", *(f"The added {animal} fact" for animal in ANIMALS)}


@pytest.mark.slow
def test_pulled_changes_are_visible_and_indexed(ann, source):
    assert ann.list_names() == BEFORE
    with ann.open() as memory:
        assert memory.recall("removed").entries
        commit_changes(source)
        run_git(ann.clone, "pull", "--quiet")
        assert not memory.recall("removed").entries
        assert memory.recall("the yak").entries[0].path == "project/topic/yak.md"
        assert "another one" in memory.recall("fact is another").text
        assert ann.list_names() == AFTER
        assert "added ibis fact" in ann.run("recall", "added", "ibis")
        memory.remember("This project keeps zebras", scope="project")
    index = ann.read_index()
    assert [name for name in AFTER if name not in index] == []
    assert ("The removed fact" in index, "The changed fact" in index) == (False, False)
    assert json.loads(ann.run("index", "verify", "--json"))["problems"] == []
    run_git(ann.clone, "checkout", "--quiet", "HEAD~4", ".muniment/changed.md")  # An older branch, in place.
    assert ann.list_names() >= {"The changed fact", "The kept fact"}


@pytest.mark.slow
def test_running_daemon_sees_pulled_changes(ann, source, tmp_path):
    with (
        start_local_daemon(tmp_path, workspaces=(ann.clone,)) as daemon,
        Client(url=daemon.url, token=daemon.token, workspace=ann.clone) as client,
    ):
        set_memory_folder(daemon.home, ann.clone, ".muniment")
    with (
        start_local_daemon(tmp_path, workspaces=(ann.clone,)) as daemon,
        Client(url=daemon.url, token=daemon.token, workspace=ann.clone) as client,
    ):
        assert client.recall("removed").entries
        commit_changes(source)
        run_git(ann.clone, "pull", "--quiet")
        assert not client.recall("removed").entries
        assert client.recall("the yak").entries[0].path == "project/topic/yak.md"


@pytest.mark.slow
def test_merge_conflict_in_index_loses_no_entry(ann, source, tmp_path):
    ben = Colleague(tmp_path, source, "ben")
    ann.remember_all("This project keeps zebras")
    ben.remember_all("This project keeps okapis")
    ann.push()
    run_git(ben.clone, "add", "--all")
    run_git(ben.clone, "commit", "--quiet", "--message", "Remember")
    run_git(ben.clone, "pull", "--quiet", fails=True)  # Both changed the index.
    assert "<<<<<<< " in ben.read_index()
    everything = BEFORE | {"Project keeps okapis", "Project keeps zebras"}
    assert len(ben.list_names()) == len(everything)
    with ben.open() as memory:
        assert [memory.recall(word).entries != () for word in ("zebras", "okapis")] == [True, True]
        assert "<<<<<<<" not in memory.recall("zebras okapis").text
        done = memory.remember("This project keeps lemurs", scope="project")
        assert not [note for note in done.notes if "not generated by Muniment" in note]
    assert ("<<<<<<< " in ben.read_index(), "zebras" in ben.read_index(), "okapis" in ben.read_index()) == (
        False,
        True,
        True,
    )
    assert len(ben.list_names()) == len(everything) + 1
    assert json.loads(ben.run("index", "verify", "--json"))["problems"] == []
    ben.push()
    run_git(ann.clone, "pull", "--quiet")
    assert ann.list_names() == ben.list_names()
    ann.remember_all("This project keeps wombats")
    assert len(ann.list_names()) == len(everything) + 2


@pytest.mark.parametrize("human_text", ["", "Read this first, says Ann.\n"])
def test_conflicted_index_is_replaced_and_human_text_kept(ann, human_text):
    ann.remember_all("This project keeps zebras")
    line = next(line for line in ann.read_index().splitlines() if "kept.md" in line)
    conflicted = f"<<<<<<< HEAD\n{ann.read_index()}||||||| base\n=======\n{human_text}{line}\n>>>>>>> x\n"
    (ann.memory / "MEMORY.md").write_text(conflicted, encoding="utf-8")
    (done,) = ann.remember_all("This project keeps okapis")
    copies = [each for each in ann.memory.glob("*.md") if each.read_text(encoding="utf-8") == conflicted]
    assert (len(copies), len([note for note in done.notes if "not generated by Muniment" in note])) == (
        bool(human_text),
        bool(human_text),
    )
    assert ("<<<<<<<" in ann.read_index(), "okapis" in ann.read_index()) == (False, True)


def test_entry_with_conflict_markers_is_ordinary_entry(ann):
    (ann.memory / "kept.md").write_text(
        "<<<<<<< HEAD\n" + make_entry("Ours") + "=======\n" + make_entry("Theirs") + ">>>>>>> x\n"
    )
    assert len(ann.list_names()) == 3
    ann.remember_all("This project keeps okapis")
    assert json.loads(ann.run("index", "verify", "--json"))["problems"] == []


def test_command_and_open_memory_see_pulled_changes(ann, source):
    with ann.open() as memory:
        assert memory.recall("removed").entries
        commit_changes(source)
        run_git(ann.clone, "pull", "--quiet")
        assert not memory.recall("removed").entries
        assert "project/topic/yak.md" in {each.path for each in memory.recall("the yak").entries}
    assert ann.list_names() == AFTER


def test_history_and_trust_survive_rename_of_clone(ann, tmp_path):
    (done,) = ann.remember_all("This project keeps zebras")
    ann.clone = ann.clone.rename(tmp_path / "renamed")
    for _ in ("first use", "later use"):
        assert "This project keeps zebras" in ann.run("recall", "zebras")
        explained = ann.run("why", done.files_touched[0])
        assert "written by you (trust owner) on " in explained
        assert explained.endswith("  it is unchanged since this task\n")
        with ann.open() as memory:
            assert [each.trust for each in memory.recall("zebras").entries] == ["owner"]
    with ann.open() as memory:
        memory.undo(done.task_id)
        assert memory.recall("zebras").entries == ()
    assert ann.list_names() == BEFORE


@pytest.mark.parametrize("first", ["init", "link", "recorded alone", "moved twice", "recorded twice"])
def test_history_follows_clone_whichever_step_records_move(ann, tmp_path, first):
    ann.remember_all("This project keeps zebras")
    (project,) = read_projects(ann.home)
    ann.clone = ann.clone.rename(tmp_path / "renamed")
    match first:
        case "init":
            set_memory_folder(ann.home, ann.clone, ".muniment")
        case "link":
            projects.link_checkout(ann.home, ann.clone, project)
        case _:
            bind_checkout(ann.home, ann.clone)  # As if the power failed after this step.
    if first.endswith("twice"):
        ann.clone = ann.clone.rename(tmp_path / "again")
    if first == "recorded twice":
        bind_checkout(ann.home, ann.clone)
    for _ in ("first use", "later use"):
        assert "This project keeps zebras" in ann.run("recall", "zebras")
        with ann.open() as memory:
            assert [each.trust for each in memory.recall("zebras").entries] == ["owner"]


def test_worktree_after_move_does_not_take_clone_history(ann, tmp_path):
    """If the memory is in the repository, each checkout has its own."""
    ann.remember_all("This project keeps zebras")
    run_git(ann.clone, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    ann.clone = ann.clone.rename(tmp_path / "renamed")
    run_git(ann.clone, "worktree", "repair")
    with muniment.open(tmp_path / "tree", home=ann.home, policy=ann.policy, in_process=True) as memory:
        assert not memory.history()
    with ann.open() as memory:
        assert [each.trust for each in memory.recall("zebras").entries] == ["owner"]


def test_repository_replacing_moved_one_has_separate_history(ann, source, tmp_path):
    """It keeps this history even if the moved repository has not fetched its own yet."""
    original_path = ann.clone
    ann.remember_all("This project keeps zebras")
    bind_checkout(ann.home, original_path.rename(tmp_path / "renamed"))
    other = clone(source, original_path)
    projects.unlink_checkout(ann.home, other)
    set_memory_folder(ann.home, other, ".muniment")
    ann.remember_all("This project keeps okapis")
    ann.clone = tmp_path / "renamed"
    ann.run("recall", "zebras")
    ann.clone = other
    with ann.open() as memory:
        assert [each.trust for each in memory.recall("okapis").entries] == ["owner"]


def test_memory_folder_under_git_is_supported(ann, tmp_path):
    """Some users keep the memory in their home under version control."""
    work = create_repository(tmp_path / "work")
    with muniment.open(work, home=ann.home, policy=ann.policy, in_process=True) as memory:
        memory.remember("This project keeps zebras", scope="project")
        root = memory.context.roots["project"].trusted_path
        run_git(root, "init", "--quiet")
        run_git(root, "add", "--all")
        run_git(root, "commit", "--quiet", "--message", "Remember")
        assert memory.recall("zebras").entries
        memory.remember("This project keeps okapis", scope="project")
        run_git(root, "reset", "--quiet", "--hard")
        run_git(root, "clean", "--quiet", "--force")
        assert not memory.recall("okapis").entries
        memory.remember("This project keeps lemurs", scope="project")
        assert "okapis" not in (root / "MEMORY.md").read_text(encoding="utf-8")
