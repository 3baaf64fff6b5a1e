"""Files of a working copy that were changed on disk: no answer shows them, and they are restored."""

import os
import shutil

import pytest

from kit.fleet.homes import is_idle
from kit.fleet.local_nodes import wait_until

FACT = "The user keeps box 17 in cellar marmot-0017."
QUERY = "where is box 17, marmot-0017 or wombat-0017?"
FOREIGN = "wombat-0017"


class Copy:
    """The working copy of a new home at a node, with one fact."""

    def __init__(self, nodes):
        self.nodes, self.home = nodes, nodes.create_home()
        self.writes, self.reads = self.home.nodes
        self.task = self.writes.run_task("remember", {"content": FACT, "scope": "user"})
        self.wait_until_idle()
        assert self.reads.recall_texts(QUERY)
        self.user = nodes.nodes[1].get_copy_path(self.home.name) / "user"
        self.entry = self.entry_with(b"marmot")
        self.original = self.entry.read_bytes()

    def wait_until_idle(self):
        """Wait until no node has the lease: a node that has it does not compare files, see T-FLT-04."""
        name = self.home.name
        wait_until(lambda: is_idle(self.nodes.base, name))
        wait_until(lambda: all(each.node.home(name).copy.leased_ledger is None for each in self.nodes.nodes))

    def entry_with(self, word):
        """Return the path of the only entry that contains `word`."""
        entries = (each for each in self.user.rglob("*.md") if each.name != "MEMORY.md")
        (found,) = (each for each in entries if word in each.read_bytes())
        return found

    @property
    def foreign(self):
        """Bytes that no commit wrote."""
        return self.original.replace(b"marmot-0017", FOREIGN.encode())

    def files(self):
        """Return every file of the scope by its path."""
        return {
            each.relative_to(self.user): each.read_bytes() for each in self.user.rglob("*") if each.is_file()
        }


@pytest.fixture
def copy(two_nodes):
    return Copy(two_nodes)


def replace_in_place(copy):
    copy.entry.write_bytes(copy.foreign)


def replace_by_rename(copy):
    temporary = copy.entry.with_name("beside.tmp")
    temporary.write_bytes(copy.foreign)
    temporary.replace(copy.entry)


def replace_with_old_times(copy):
    before = copy.entry.stat()
    copy.entry.write_bytes(copy.foreign)
    os.utime(copy.entry, ns=(before.st_atime_ns, before.st_mtime_ns))


def add_file(copy):
    copy.entry.with_name("stray.md").write_bytes(copy.foreign)


def add_folder(copy):
    (copy.user / "deep" / "deeper").mkdir(parents=True)
    (copy.user / "deep" / "deeper" / "stray.md").write_bytes(copy.foreign)


def add_known_bytes_at_other_path(copy):
    copy.entry.with_name(f"{FOREIGN}.md").write_bytes(copy.original)


def rename_entry(copy):
    copy.entry.rename(copy.entry.with_name(f"{FOREIGN}.md"))


def remove_entry(copy):
    copy.entry.unlink()


def replace_with_link(copy):
    outside = copy.user.parents[2] / "elsewhere.md"
    outside.write_bytes(copy.foreign)
    copy.entry.unlink()
    copy.entry.symlink_to(outside)


def remove_all(copy):
    for each in copy.user.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def replace_scope(copy):
    copy.user.rename(copy.user.with_name("moved"))
    copy.user.mkdir(mode=0o700)
    (copy.user / "stray.md").write_bytes(copy.foreign)


def link_scope(copy):
    moved = copy.user.rename(copy.user.parents[1] / "moved")
    (moved / "stray.md").write_bytes(copy.foreign)
    copy.user.symlink_to(moved)


def remove_scope(copy):
    shutil.rmtree(copy.user)


def remove_copy(copy):
    shutil.rmtree(copy.user.parents[1])


CHANGES = (
    replace_in_place,
    replace_by_rename,
    replace_with_old_times,
    add_file,
    add_folder,
    add_known_bytes_at_other_path,
    rename_entry,
    remove_entry,
    replace_with_link,
    remove_all,
    replace_scope,
    link_scope,
    remove_scope,
    remove_copy,
)


@pytest.mark.threat("T-FLT-04", control="compared_copies")
@pytest.mark.parametrize("change", CHANGES)
def test_recall_after_file_changed_returns_ledger_text(copy, change):
    before = copy.files()
    change(copy)
    found = copy.reads.recall_texts(QUERY)
    assert any("marmot-0017" in each for each in found), found
    assert not any(FOREIGN in each for each in found), found
    assert copy.files() == before


@pytest.mark.threat("T-FLT-04", control="compared_copies")
@pytest.mark.parametrize("change", CHANGES)
def test_task_after_file_changed_starts_from_ledger_files(copy, change):
    change(copy)
    done = copy.reads.run_task("remember", {"content": "The user keeps box 18 in cellar heron-0018."})
    assert done["status"] == "completed", done
    for at in copy.home.nodes:
        found = at.recall_texts(f"{QUERY} heron-0018")
        assert any("marmot-0017" in each for each in found), found
        assert any("heron-0018" in each for each in found), found
        assert not any(FOREIGN in each for each in found), found
    assert FOREIGN.encode() not in b"".join(copy.files().values())
    assert not any(FOREIGN in str(each) for each in copy.files())


@pytest.mark.threat("T-FLT-04", control="compared_copies")
def test_recall_after_forgotten_file_restored_is_empty(copy):
    forgotten = copy.writes.run_task("forget", {"query": f"user/{copy.entry.relative_to(copy.user)}"})
    assert forgotten["status"] == "completed", forgotten
    copy.wait_until_idle()
    assert copy.reads.recall_texts(QUERY) == []
    copy.entry.parent.mkdir(exist_ok=True)
    copy.entry.write_bytes(copy.original)
    assert copy.reads.recall_texts(QUERY) == []
    assert not copy.entry.exists()


@pytest.mark.threat("T-FLT-04", control="current_bytes")
def test_recall_after_old_version_restored_returns_new_version(copy):
    undone = copy.writes.post("/workspace/memory/undo", {"taskId": copy.task["taskId"]})
    assert undone.status_code == 200, undone.text
    second = copy.writes.run_task("remember", {"content": FACT.replace("marmot", "heron"), "scope": "user"})
    assert second["status"] == "completed", second
    copy.wait_until_idle()
    assert copy.reads.recall_texts("box 17 in cellar heron-0017")
    copy.entry_with(b"heron").rename(copy.entry)
    copy.entry.write_bytes(copy.original)
    found = copy.reads.recall_texts("where is box 17, heron-0017 or marmot-0017?")
    assert any("heron-0017" in each for each in found), found
    assert not any("marmot-0017" in each for each in found), found
