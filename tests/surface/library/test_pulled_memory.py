"""A memory inside a repository after `git pull`: what came is told, and the index follows; with real git."""

import json

import pytest

import muniment
from kit.cli.commands import invoked
from kit.git import clone, committed, git, needs_git, repository
from kit.server.process import policy_file
from kit.server.raw import running
from muniment.client import Client
from muniment.workspaces import projects
from muniment.workspaces.projects import bind_checkout, keep_inside, read_projects

pytestmark = needs_git


def entry(fact):
    return f"---\nname: {fact}\ndescription: About it\ntype: project\n---\n{fact}\n"


class Colleague:
    """Somebody with a home and a clone, who keeps the memory of the project in it."""

    def __init__(self, base, source, name):
        self.home, self.clone = base / f"home of {name}", clone(source, base / name)
        self.memory = self.clone / ".muniment"
        self.memory.mkdir(exist_ok=True)
        self.policy = policy_file(base, require='"none"')
        keep_inside(self.home, self.clone, ".muniment")

    def open(self):
        return muniment.open(self.clone, home=self.home, policy=self.policy, in_process=True)

    def remembers(self, *facts):
        with self.open() as memory:
            return [memory.remember(fact, scope="project") for fact in facts]

    def command(self, *arguments):
        said = invoked([*arguments, f"--workspace={self.clone}"], {"MUNIMENT_HOME": str(self.home)})
        assert said.exit_code == 0, said.output
        return said.stdout

    def names(self):
        return {each["name"] for each in json.loads(self.command("ls", "project", "--json"))["entries"]}

    def index(self):
        return (self.memory / "MEMORY.md").read_text(encoding="utf-8")

    def pushes(self):
        git(self.clone, "add", "--all")
        git(self.clone, "commit", "--quiet", "--message", "Remember")
        git(self.clone, "push", "--quiet", "origin", "HEAD:main")


@pytest.fixture
def source(tmp_path):
    source = repository(tmp_path / "source")
    git(source, "config", "receive.denyCurrentBranch", "updateInstead")
    for name in ("kept", "changed", "removed"):
        committed(source, f".muniment/{name}.md", entry(f"The {name} fact"))
    return source


@pytest.fixture
def ann(tmp_path, source):
    return Colleague(tmp_path, source, "ann")


def change(source):
    """Several files are added, changed and removed at once."""
    for animal in ANIMALS:
        committed(source, f".muniment/topic/{animal}.md", entry(f"The added {animal} fact"))
    committed(source, ".muniment/changed.md", entry("The fact is another one"))
    git(source, "rm", "--quiet", ".muniment/removed.md")
    git(source, "commit", "--quiet", "--message", "Remove")


ANIMALS = ("gnu", "ibis", "yak")
BEFORE = {"The kept fact", "The changed fact", "The removed fact"}
AFTER = {"The kept fact", "The fact is another one", *(f"The added {animal} fact" for animal in ANIMALS)}


@pytest.mark.slow
def test_what_a_pull_brings_and_takes_is_seen_by_the_next_command_and_by_a_memory_that_is_open(ann, source):
    assert ann.names() == BEFORE
    with ann.open() as memory:
        assert memory.recall("removed").entries
        change(source)
        git(ann.clone, "pull", "--quiet")
        assert not memory.recall("removed").entries
        assert memory.recall("the yak").entries[0].path == "project/topic/yak.md"
        assert "another one" in memory.recall("fact is another").text
        assert ann.names() == AFTER
        assert "added ibis fact" in ann.command("recall", "added", "ibis")
        memory.remember("This project keeps zebras", scope="project")
    index = ann.index()
    assert [name for name in AFTER if name not in index] == []
    assert ("The removed fact" in index, "The changed fact" in index) == (False, False)
    assert json.loads(ann.command("index", "verify", "--json"))["problems"] == []
    git(ann.clone, "checkout", "--quiet", "HEAD~4", ".muniment/changed.md")  # An older branch, in place.
    assert ann.names() >= {"The changed fact", "The kept fact"}


@pytest.mark.slow
def test_a_daemon_that_runs_sees_what_a_pull_brought(ann, source, tmp_path):
    with (
        running(tmp_path, workspaces=(ann.clone,)) as daemon,
        Client(url=daemon.url, token=daemon.token, workspace=ann.clone) as client,
    ):
        keep_inside(daemon.home, ann.clone, ".muniment")
    with (
        running(tmp_path, workspaces=(ann.clone,)) as daemon,
        Client(url=daemon.url, token=daemon.token, workspace=ann.clone) as client,
    ):
        assert client.recall("removed").entries
        change(source)
        git(ann.clone, "pull", "--quiet")
        assert not client.recall("removed").entries
        assert client.recall("the yak").entries[0].path == "project/topic/yak.md"


@pytest.mark.slow
def test_colleagues_who_commit_the_index_too_lose_nothing_and_no_index_becomes_an_entry(
    ann, source, tmp_path
):
    ben = Colleague(tmp_path, source, "ben")
    ann.remembers("This project keeps zebras")
    ben.remembers("This project keeps okapis")
    ann.pushes()
    git(ben.clone, "add", "--all")
    git(ben.clone, "commit", "--quiet", "--message", "Remember")
    git(ben.clone, "pull", "--quiet", fails=True)  # Both changed the index.
    assert "<<<<<<< " in ben.index()
    everything = BEFORE | {"Project keeps okapis", "Project keeps zebras"}
    assert len(ben.names()) == len(everything)
    with ben.open() as memory:
        assert [memory.recall(word).entries != () for word in ("zebras", "okapis")] == [True, True]
        assert "<<<<<<<" not in memory.recall("zebras okapis").text
        done = memory.remember("This project keeps lemurs", scope="project")
        assert not [note for note in done.notes if "not generated by Muniment" in note]
    assert ("<<<<<<< " in ben.index(), "zebras" in ben.index(), "okapis" in ben.index()) == (
        False,
        True,
        True,
    )
    assert len(ben.names()) == len(everything) + 1
    assert json.loads(ben.command("index", "verify", "--json"))["problems"] == []
    ben.pushes()
    git(ann.clone, "pull", "--quiet")
    assert ann.names() == ben.names()
    ann.remembers("This project keeps wombats")
    assert len(ann.names()) == len(everything) + 2


@pytest.mark.parametrize("said", ["", "Read this first, says Ann.\n"])
def test_an_index_with_marks_of_a_merge_is_replaced_and_kept_whole_where_a_person_wrote_in_it(ann, said):
    ann.remembers("This project keeps zebras")
    line = next(line for line in ann.index().splitlines() if "kept.md" in line)
    theirs = f"<<<<<<< HEAD\n{ann.index()}||||||| base\n=======\n{said}{line}\n>>>>>>> x\n"
    (ann.memory / "MEMORY.md").write_text(theirs, encoding="utf-8")
    (done,) = ann.remembers("This project keeps okapis")
    kept = [each for each in ann.memory.glob("*.md") if each.read_text(encoding="utf-8") == theirs]
    assert (len(kept), len([note for note in done.notes if "not generated by Muniment" in note])) == (
        bool(said),
        bool(said),
    )
    assert ("<<<<<<<" in ann.index(), "okapis" in ann.index()) == (False, True)


def test_an_entry_with_marks_of_a_merge_is_an_entry_like_any_other(ann):
    (ann.memory / "kept.md").write_text(
        "<<<<<<< HEAD\n" + entry("Ours") + "=======\n" + entry("Theirs") + ">>>>>>> x\n"
    )
    assert len(ann.names()) == 3
    ann.remembers("This project keeps okapis")
    assert json.loads(ann.command("index", "verify", "--json"))["problems"] == []


def test_the_next_command_and_a_memory_that_is_open_see_what_a_pull_changed(ann, source):
    with ann.open() as memory:
        assert memory.recall("removed").entries
        change(source)
        git(ann.clone, "pull", "--quiet")
        assert not memory.recall("removed").entries
        assert "project/topic/yak.md" in {each.path for each in memory.recall("the yak").entries}
    assert ann.names() == AFTER


def test_the_history_of_a_memory_inside_goes_with_a_clone_that_is_renamed_and_words_stay_whose_they_were(
    ann, tmp_path
):
    (done,) = ann.remembers("This project keeps zebras")
    ann.clone = ann.clone.rename(tmp_path / "renamed")
    for _ in ("as it is read", "as it is known from then on"):
        assert "owner" in ann.command("recall", "zebras")
        assert "is unchanged since this task; trust owner" in ann.command("why", done.files_touched[0])
        with ann.open() as memory:
            assert [each.trust for each in memory.recall("zebras").entries] == ["owner"]
    with ann.open() as memory:
        memory.undo(done.task_id)
        assert memory.recall("zebras").entries == ()
    assert ann.names() == BEFORE


@pytest.mark.parametrize("first", ["init", "link", "recorded alone", "moved twice", "recorded twice"])
def test_that_history_waits_for_the_next_use_whatever_records_the_move_first(ann, tmp_path, first):
    ann.remembers("This project keeps zebras")
    (project,) = read_projects(ann.home)
    ann.clone = ann.clone.rename(tmp_path / "renamed")
    match first:
        case "init":
            keep_inside(ann.home, ann.clone, ".muniment")
        case "link":
            projects.link(ann.home, ann.clone, project)
        case _:
            bind_checkout(ann.home, ann.clone)  # And then, say, the power fails.
    if first.endswith("twice"):
        ann.clone = ann.clone.rename(tmp_path / "again")
    if first == "recorded twice":
        bind_checkout(ann.home, ann.clone)
    for _ in ("as it is read", "as it is known from then on"):
        assert "owner" in ann.command("recall", "zebras")
        with ann.open() as memory:
            assert [each.trust for each in memory.recall("zebras").entries] == ["owner"]


def test_a_worktree_that_comes_first_after_a_move_does_not_take_the_history_of_its_clone(ann, tmp_path):
    """Where the memory is kept inside, each checkout has its own."""
    ann.remembers("This project keeps zebras")
    git(ann.clone, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    ann.clone = ann.clone.rename(tmp_path / "renamed")
    git(ann.clone, "worktree", "repair")
    with muniment.open(tmp_path / "tree", home=ann.home, policy=ann.policy, in_process=True) as memory:
        assert not memory.history()
    with ann.open() as memory:
        assert [each.trust for each in memory.recall("zebras").entries] == ["owner"]


def test_a_repository_that_takes_the_place_of_a_moved_one_has_its_own_history(ann, source, tmp_path):
    """And keeps it, though the moved one has still to fetch its own."""
    place = ann.clone
    ann.remembers("This project keeps zebras")
    bind_checkout(ann.home, place.rename(tmp_path / "renamed"))
    other = clone(source, place)
    projects.unlink(ann.home, other)
    keep_inside(ann.home, other, ".muniment")
    ann.remembers("This project keeps okapis")
    ann.clone = tmp_path / "renamed"
    ann.command("recall", "zebras")
    ann.clone = other
    with ann.open() as memory:
        assert [each.trust for each in memory.recall("okapis").entries] == ["owner"]


def test_git_in_the_memory_folder_itself_is_passed_over(ann, tmp_path):
    """As people have who keep the memory in their home under version control."""
    work = repository(tmp_path / "work")
    with muniment.open(work, home=ann.home, policy=ann.policy, in_process=True) as memory:
        memory.remember("This project keeps zebras", scope="project")
        root = memory.place.roots["project"].trusted_path
        git(root, "init", "--quiet")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", "Remember")
        assert memory.recall("zebras").entries
        memory.remember("This project keeps okapis", scope="project")
        git(root, "reset", "--quiet", "--hard")
        git(root, "clean", "--quiet", "--force")
        assert not memory.recall("okapis").entries
        memory.remember("This project keeps lemurs", scope="project")
        assert "okapis" not in (root / "MEMORY.md").read_text(encoding="utf-8")
