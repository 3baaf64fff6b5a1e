"""A working copy contains the committed state of the ledger: no erased text, no unfinished change."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from kit.catching import catch_error
from kit.fleet.homes import KEY
from kit.store.bench import (
    STRICT,
    StoreBench,
    compute_digest,
    make_deadline,
    make_run,
    propose_new,
    take_snapshot,
)
from muniment.errors import LeaseLost, ManagedMemoryUnavailable, MunimentError, StoreConflict
from muniment.fleet import copy_files
from muniment.fleet.homes import derive_home_key
from muniment.fleet.working_copies import MEMORY_NAME, CopyOptions, WorkingCopy
from muniment.kernel.write import replay
from muniment.store.erase import EraseContext, erase

TEXT = b"# Tea\nThe user keeps a marmot in the cellar.\n"
WORD = b"marmot"


class Nodes:
    """A home and its copies on some nodes."""

    def __init__(self, fleet, base):
        self.fleet, self.base, self.home = fleet, base, fleet.create_home()
        self._copies = []

    def copy(self, name, policy=STRICT):
        """Create the copy of a node."""
        ledger = self.fleet.pool.home(self.home)
        made = WorkingCopy(
            self.base / name / "copy", ledger, derive_home_key(KEY, self.home), CopyOptions(policy, name)
        )
        self._copies.append(made)
        return made

    def take_over(self):
        """Let another node acquire and release the lease."""
        self.execute("UPDATE home SET epoch = epoch + 1, until = '-infinity'")

    def execute(self, statement, *values):
        """Run a statement as the node role, in the home."""
        with self.fleet.pool.connection() as connection, connection.transaction():
            connection.execute("SELECT set_config('muniment.home', %s, true)", (self.home,))
            connection.execute(statement, values)

    def close(self):
        for each in self._copies:
            each.close(make_deadline())


@pytest.fixture
def nodes(fleet, tmp_path):
    made = Nodes(fleet, tmp_path)
    yield made
    made.close()


@contextmanager
def open_for_change(copy):
    """Yield the home under the lease of the node of a copy."""
    with copy.open_for_writing(make_deadline()) as (_, context):
        yield StoreBench(copy.directory / MEMORY_NAME, context.roots, context.state)


def commit(copy, *changes, **more):
    with open_for_change(copy) as ground:
        ground.commit(*changes, **more)


def read_files(copy):
    """Return the files of an updated copy, without its indexes."""
    with copy.open_for_reading(make_deadline()):
        base = copy.directory / MEMORY_NAME
        found = {str(each.relative_to(base)): each.read_bytes() for each in base.rglob("*") if each.is_file()}
    return {
        path: content for path, content in found.items() if "MEMORY" not in path and "/index/" not in path
    }


def read_all_bytes(copy):
    """Return all bytes in the directory of a copy."""
    return b"".join(each.read_bytes() for each in copy.directory.rglob("*") if each.is_file())


def recall_paths(copy, query):
    """Return the paths that a recall from a copy finds."""
    with copy.open_for_reading(make_deadline()) as opened:
        return [each.path for each in opened.workspace.get_recaller().recall(query).entries]


def record_calls(calls, original):
    """Wrap a method so that its objects are recorded."""

    def method(self, *arguments):
        calls.append(self)
        return original(self, *arguments)

    return method


def test_copy_is_created_and_follows_other_nodes(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"), propose_new("project/p/b.md", b"# B\n"))
    assert read_files(two) == read_files(one) == {"user/a.md": b"# A\n", "project/p/b.md": b"# B\n"}
    with open_for_change(two) as ground:
        ground.commit(ground.propose_edit("user/a.md", b"# Other\n"), propose_new("user/c.md", b"# C\n"))
    assert read_files(one) == read_files(two) == {
        "user/a.md": b"# Other\n", "project/p/b.md": b"# B\n", "user/c.md": b"# C\n",
    }  # fmt: skip
    three = nodes.copy("three")
    assert read_files(three) == read_files(one)
    three.close(make_deadline())
    assert read_files(three) == read_files(one)  # The copy is reused.


def test_empty_scope_has_its_index_in_every_copy(nodes):
    one, outdated, made_after = (nodes.copy(name) for name in ("one", "two", "three"))
    assert read_files(outdated) == {}
    commit(one, propose_new("user/a.md", b"# A\n"))
    with open_for_change(one) as ground:
        ground.commit(removals=[("user/a.md", compute_digest(b"# A\n"))])
    for copy in (outdated, made_after, one):
        assert read_files(copy) == {}
        indexes = [
            each.relative_to(copy.directory / MEMORY_NAME) for each in copy.directory.rglob("MEMORY.md")
        ]
        assert list(map(str, indexes)) == ["user/MEMORY.md"]


@pytest.mark.threat("T-FLT-04", control="counted_erasures")
def test_erased_text_is_in_no_copy_read_afterwards(nodes):
    one, two, three = (nodes.copy(name) for name in ("one", "two", "three"))
    commit(one, propose_new("user/tea.md", TEXT), propose_new("user/a.md", b"# A\n"))
    for copy in (two, three):
        assert read_files(copy)["user/tea.md"] == TEXT
        assert WORD in read_all_bytes(copy)
    three.close(make_deadline())
    with open_for_change(one) as ground:
        erase("user/tea.md", EraseContext(ground.state, ground.roots, STRICT, make_deadline()))
    for copy in (one, two, three):
        assert read_files(copy) == {"user/a.md": b"# A\n"}
        assert WORD not in read_all_bytes(copy)


@pytest.mark.threat("T-FLT-04", control="spoiled_copies")
def test_changes_after_lost_lease_are_removed_from_copy(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"))
    with open_for_change(one) as ground:
        nodes.take_over()
        commit(two, propose_new("user/of-two.md", b"# Two\n"))
        catch_error(LeaseLost, ground.commit, propose_new("user/late.md"))
        (one.directory / MEMORY_NAME / "user/never.md").write_bytes(b"# What a step left that was cut off\n")
    assert read_files(one) == read_files(two) == {"user/a.md": b"# A\n", "user/of-two.md": b"# Two\n"}


def test_reader_during_lost_lease_does_not_block_writer(nodes):
    one = nodes.copy("one")
    commit(one, propose_new("user/a.md", b"# A\n"))
    with ThreadPoolExecutor(1) as threads:
        with one.open_for_writing(make_deadline()):
            nodes.take_over()
            reading = threads.submit(read_files, one)
            while not one.is_spoiled:
                assert not reading.done()
        # If both waited for each other, the reader's timeout would expire and raise.
        assert reading.result() == {"user/a.md": b"# A\n"}
    assert one.leased_ledger is None


def test_copy_newer_than_ledger_is_rebuilt(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"), run=make_run("task-1"))
    commit(one, propose_new("user/b.md", b"# B\n"), run=make_run("task-2"))
    assert read_files(two) == read_files(one)
    # A standby that never received the last commit takes over.
    nodes.execute("UPDATE home SET number = number - 1")
    nodes.execute("DELETE FROM change_set WHERE number = (SELECT max(number) FROM change_set)")
    two.close(make_deadline())
    for copy in (one, two):
        assert read_files(copy) == {"user/a.md": b"# A\n"}


@pytest.mark.threat("T-FLT-04", control="unmarked_copies")
def test_half_changed_copy_is_not_reused(nodes):
    one, after_a_kill = nodes.copy("one"), nodes.copy("killed")
    commit(one, propose_new("user/a.md", b"# A\n"))
    read_files(one)
    with open_for_change(one):
        never = one.directory / MEMORY_NAME / "user/never.md"
        never.write_bytes(b"# Never done\n")
        shutil.copytree(one.directory, after_a_kill.directory)  # The state after a kill.
        never.unlink()
    assert read_files(after_a_kill) == read_files(one) == {"user/a.md": b"# A\n"}


@pytest.mark.threat("T-FLT-04", control="claimed_copies")
def test_copy_with_foreign_changes_is_rebuilt(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"))
    assert read_files(two) == {"user/a.md": b"# A\n"}
    (two.directory / MEMORY_NAME / "user/a.md").write_bytes(b"# By somebody\n")
    (two.directory / MEMORY_NAME / "user/stray.md").write_bytes(b"# By somebody\n")
    with open_for_change(one) as ground:
        ground.commit(ground.propose_edit("user/a.md", b"# Other\n"))
    assert read_files(two) == {"user/a.md": b"# Other\n"}


@pytest.mark.threat("T-FLT-04", control="current_bytes")
def test_commit_after_file_changed_under_lease_is_rejected(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"))
    with open_for_change(one) as ground:
        (one.directory / MEMORY_NAME / "user/a.md").write_bytes(TEXT)
        catch_error(StoreConflict, ground.commit, ground.propose_edit("user/a.md", TEXT + b"And more.\n"))
        catch_error(StoreConflict, ground.commit, removals=[("user/a.md", compute_digest(TEXT))])
    assert read_files(two) == read_files(one) == {"user/a.md": b"# A\n"}


@pytest.mark.threat("T-FLT-04", control="current_bytes")
def test_recall_after_file_changed_under_lease_omits_it(nodes):
    one = nodes.copy("one")
    commit(one, propose_new("user/a.md", b"# A\nThe user keeps a heron in the garden.\n"))
    with open_for_change(one):
        (one.directory / MEMORY_NAME / "user/a.md").write_bytes(TEXT)
        (one.directory / MEMORY_NAME / "user/stray.md").write_bytes(TEXT)
        for query in ("where is the marmot in the cellar?", "where is the heron in the garden?"):
            assert recall_paths(one, query) == []
    assert recall_paths(one, "where is the marmot in the cellar?") == []
    assert recall_paths(one, "where is the heron in the garden?") == ["user/a.md"]


@pytest.mark.threat("T-FLT-04", control="compared_copies")
def test_index_changed_in_copy_is_rebuilt_before_change(nodes):
    one = nodes.copy("one")
    commit(one, propose_new("user/a.md", b"# A\n"))
    index = one.directory / MEMORY_NAME / "user/MEMORY.md"
    before = index.read_bytes()
    for change in (lambda: index.write_bytes(TEXT), index.unlink):
        change()
        with open_for_change(one):
            assert index.read_bytes() == before
    assert read_files(one) == {"user/a.md": b"# A\n"}


@pytest.mark.parametrize("is_closed", [False, True])
def test_outdated_copy_does_not_index_stray_file(nodes, is_closed):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"))
    assert read_files(two) == {"user/a.md": b"# A\n"}
    if is_closed:
        two.close(make_deadline())
    (two.directory / MEMORY_NAME / "user/marmot.md").write_bytes(TEXT)
    commit(one, propose_new("user/b.md", b"# B\n"), run=make_run("task-2"))
    assert read_files(two) == {"user/a.md": b"# A\n", "user/b.md": b"# B\n"}
    assert WORD not in read_all_bytes(two)


def test_copy_interrupted_in_replay_is_rebuilt(nodes, monkeypatch):
    one, two, killed = (nodes.copy(name) for name in ("one", "two", "killed"))
    commit(one, propose_new("user/a.md", b"# A\n"))
    assert read_files(two) == {"user/a.md": b"# A\n"}
    with open_for_change(one) as ground:
        ground.commit(
            ground.propose_edit("user/a.md", b"# Other\n"),
            propose_new("user/b.md", b"# B\n"),
            run=make_run("task-2"),
        )

    def interrupt_replay(changes, locked_roots):
        replay(changes[:1], locked_roots)
        shutil.copytree(two.directory, killed.directory)  # The state after a kill.
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copy_files, "replay", interrupt_replay)
        catch_error(KeyboardInterrupt, read_files, two)
    for copy in (two, killed):
        assert read_files(copy) == {"user/a.md": b"# Other\n", "user/b.md": b"# B\n"}


def test_unmodified_copy_is_never_rebuilt(nodes, monkeypatch):
    made = []
    monkeypatch.setattr(WorkingCopy, "_build", record_calls(made, WorkingCopy._build))
    one, two = nodes.copy("one"), nodes.copy("two")
    for number in range(4):
        commit(
            one,
            propose_new(f"user/{number}.md"),
            propose_new(f"project/{number}.md"),
            run=make_run(f"task-{number}"),
        )
        read_files(two)
    with open_for_change(two) as ground:
        ground.commit(
            ground.propose_edit("user/0.md"),
            removals=[("user/1.md", compute_digest(b"new\n"))],
            run=make_run("task-5"),
        )
    for copy in (one, two):
        assert len(read_files(copy)) == 7
        copy.close(make_deadline())
        assert len(read_files(copy)) == 7
    assert made == [one, two]


def test_change_starts_with_zero_timeout(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"))
    with two.open_for_writing(make_deadline(0)) as (_, context):
        assert context.roots
    assert read_files(two) == read_files(one)


# -- hostile ledgers -------------------------------------------------------------------------------------

HOSTILE = ("../../../../outside/x.md", "/outside/x.md", "MEMORY.md", "index/x.md", "x")


@pytest.mark.threat("T-FLT-05", control="replayed_names")
@pytest.mark.threat("T-FLT-05", control="canonical_rows")
@pytest.mark.parametrize("rel", HOSTILE)
def test_hostile_ledger_paths_write_nothing_outside_copy(nodes, rel):
    warm, cold, by_hand = nodes.copy("warm"), nodes.copy("cold"), b"# Planted\n"
    (nodes.base / "outside").mkdir()
    commit(warm, propose_new("user/a.md", b"# A\n"), run=make_run("task-1"))
    read_files(warm)
    nodes.execute("UPDATE change SET rel = %s WHERE rel = 'a.md'", rel)
    nodes.execute("UPDATE blob SET content = %s", by_hand)
    nodes.execute("UPDATE change_kept SET after_digest = %s", hashlib.sha256(by_hand).hexdigest())
    nodes.execute("UPDATE home SET number = number + 1")
    nodes.execute("UPDATE change_set SET number = number + 1")
    outside = take_snapshot(nodes.base / "outside")
    for copy in (warm, cold):
        catch_error(MunimentError, read_files, copy)
        planted = [each for each in nodes.base.rglob("*") if each.is_file() and each.suffix == ".md"]
        assert by_hand not in {each.read_bytes() for each in planted}
    assert take_snapshot(nodes.base / "outside") == outside


def test_unknown_root_in_ledger_creates_nothing(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"), propose_new("project/b.md", b"# B\n"))
    nodes.execute("INSERT INTO root (id, path) VALUES ('odd', '../../outside')")
    nodes.execute("UPDATE change_kept SET root = 'odd' WHERE rel = 'a.md'")
    assert read_files(two) == {"project/b.md": b"# B\n"}
    assert not (nodes.base / "outside").exists()


def test_copy_of_removed_home_raises(nodes):
    one = nodes.copy("one")
    commit(one, propose_new("user/a.md", b"# A\n"))
    with psycopg.connect(nodes.fleet.superuser, options="-c search_path=muniment") as owner:
        owner.execute("DELETE FROM home WHERE home = %s", (nodes.home,))
    catch_error(MunimentError, read_files, one, match="home not found")


def test_copy_follows_reverted_change_or_is_rebuilt_if_old(nodes, monkeypatch):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, propose_new("user/a.md", b"# A\n"))
    assert read_files(two) == {"user/a.md": b"# A\n"}
    with open_for_change(one) as ground:
        ground.commit(ground.propose_edit("user/a.md", b"# Other\n"), run=make_run("task-2"))
        ground.commit(ground.propose_edit("user/a.md", b"# A\n"), run=make_run("task-3"))
    assert read_files(two) == {"user/a.md": b"# A\n"}
    commit(
        one, propose_new("user/b.md", b"# B\n"), propose_new("user/c.md", b"# C\n"), run=make_run("task-4")
    )
    monkeypatch.setattr(copy_files, "MAX_MISSING_CHANGES", 1)
    assert read_files(two) == {"user/a.md": b"# A\n", "user/b.md": b"# B\n", "user/c.md": b"# C\n"}


def test_scope_removed_from_policy_is_in_no_copy(nodes):
    one = nodes.copy("one")
    commit(one, propose_new("user/a.md", b"# A\n"), propose_new("project/b.md", b"# B\n"))
    of_user = tuple(scope for scope in STRICT.scope_options if scope.name == "user")
    two = nodes.copy("two", replace(STRICT, scope_options=of_user))
    assert read_files(two) == {"user/a.md": b"# A\n"}
    commit(one, propose_new("project/c.md", b"# C\n"), run=make_run("task-2"))
    assert read_files(two) == {"user/a.md": b"# A\n"}


def test_root_renamed_in_ledger_raises(nodes):
    one = nodes.copy("one")
    commit(one, propose_new("user/a.md", b"# A\n"))
    nodes.execute("UPDATE root SET path = 'elsewhere' WHERE path = 'user'")
    catch_error(
        ManagedMemoryUnavailable,
        read_files,
        nodes.copy("two"),
        match="list of roots was changed by another program",
    )
