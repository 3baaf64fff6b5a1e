"""A working copy holds what the ledger says is done: nothing erased, never done, or that leads elsewhere."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from kit.fleet.homes import KEY
from kit.raising import raised
from kit.store.ground import STRICT, Ground, by, new, patience, photograph, sha
from muniment.errors import LeaseLost, ManagedMemoryUnavailable, MunimentError, StoreConflict
from muniment.fleet import copied
from muniment.fleet.copies import MEMORY, CopyTerms, WorkingCopy
from muniment.fleet.homes import key_of
from muniment.kernel.write import replay
from muniment.store.erase import EraseGround, erase

TEXT = b"# Tea\nThe user keeps a marmot in the cellar.\n"
WORD = b"marmot"


class Nodes:
    """A home, and its copies on some nodes."""

    def __init__(self, fleet, base):
        self.fleet, self.base, self.home = fleet, base, fleet.new_home()
        self._copies = []

    def copy(self, name, policy=STRICT):
        """That of a node."""
        ledger = self.fleet.pool.home(self.home)
        made = WorkingCopy(self.base / name / "copy", ledger, key_of(KEY, self.home), CopyTerms(policy, name))
        self._copies.append(made)
        return made

    def taken_over(self):
        """A node that is none of these takes the lease, and lets it go."""
        self.execute("UPDATE home SET epoch = epoch + 1, until = '-infinity'")

    def execute(self, statement, *values):
        """By the nodes' role, in the home."""
        with self.fleet.pool.connection() as connection, connection.transaction():
            connection.execute("SELECT set_config('muniment.home', %s, true)", (self.home,))
            connection.execute(statement, values)

    def close(self):
        for each in self._copies:
            each.close(patience())


@pytest.fixture
def nodes(fleet, tmp_path):
    made = Nodes(fleet, tmp_path)
    yield made
    made.close()


@contextmanager
def changing(copy):
    """The home, under the lease of a copy's node."""
    with copy.holding(patience()) as (_, place):
        yield Ground(copy.directory / MEMORY, place.roots, place.state)


def commit(copy, *changes, **more):
    with changing(copy) as ground:
        ground.commit(*changes, **more)


def files(copy):
    """The files of a copy, as the ledger stands, but for its indexes."""
    with copy.reading(patience()):
        base = copy.directory / MEMORY
        found = {str(each.relative_to(base)): each.read_bytes() for each in base.rglob("*") if each.is_file()}
    return {
        path: content for path, content in found.items() if "MEMORY" not in path and "/index/" not in path
    }


def held_by(copy):
    """Every byte below the directory of a copy."""
    return b"".join(each.read_bytes() for each in copy.directory.rglob("*") if each.is_file())


def recalled(copy, query):
    """The paths of the entries that a recall from a copy returns."""
    with copy.reading(patience()) as opened:
        return [each.path for each in opened.workspace.recaller().recall(query).entries]


def noted(calls, real):
    """A method that also notes what it is called on."""

    def method(self, *given):
        calls.append(self)
        return real(self, *given)

    return method


def test_a_copy_is_made_and_follows_what_other_nodes_do(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"), new("project/p/b.md", b"# B\n"))
    assert files(two) == files(one) == {"user/a.md": b"# A\n", "project/p/b.md": b"# B\n"}
    with changing(two) as ground:
        ground.commit(ground.edit("user/a.md", b"# Other\n"), new("user/c.md", b"# C\n"))
    assert files(one) == files(two) == {
        "user/a.md": b"# Other\n", "project/p/b.md": b"# B\n", "user/c.md": b"# C\n",
    }  # fmt: skip
    three = nodes.copy("three")
    assert files(three) == files(one)
    three.close(patience())
    assert files(three) == files(one)  # Taken up again.


def test_a_scope_of_which_nothing_is_left_has_its_index_in_every_copy(nodes):
    one, behind, made_after = (nodes.copy(name) for name in ("one", "two", "three"))
    assert files(behind) == {}
    commit(one, new("user/a.md", b"# A\n"))
    with changing(one) as ground:
        ground.commit(removals=[("user/a.md", sha(b"# A\n"))])
    for copy in (behind, made_after, one):
        assert files(copy) == {}
        indexes = [each.relative_to(copy.directory / MEMORY) for each in copy.directory.rglob("MEMORY.md")]
        assert list(map(str, indexes)) == ["user/MEMORY.md"]


@pytest.mark.threat("T-FLT-04", control="counted_erasures")
def test_what_was_erased_is_in_no_copy_that_is_read_afterwards(nodes):
    one, two, three = (nodes.copy(name) for name in ("one", "two", "three"))
    commit(one, new("user/tea.md", TEXT), new("user/a.md", b"# A\n"))
    for copy in (two, three):
        assert files(copy)["user/tea.md"] == TEXT
        assert WORD in held_by(copy)
    three.close(patience())
    with changing(one) as ground:
        erase("user/tea.md", EraseGround(ground.state, ground.roots, STRICT, patience()))
    for copy in (one, two, three):
        assert files(copy) == {"user/a.md": b"# A\n"}
        assert WORD not in held_by(copy)


@pytest.mark.threat("T-FLT-04", control="spoiled_copies")
def test_what_a_node_did_whose_lease_was_lost_is_in_its_copy_no_more(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"))
    with changing(one) as ground:
        nodes.taken_over()
        commit(two, new("user/of-two.md", b"# Two\n"))
        raised(LeaseLost, ground.commit, new("user/late.md"))
        (one.directory / MEMORY / "user/never.md").write_bytes(b"# What a step left that was cut off\n")
    assert files(one) == files(two) == {"user/a.md": b"# A\n", "user/of-two.md": b"# Two\n"}


def test_who_reads_while_a_lease_is_lost_keeps_who_had_it_from_nothing(nodes):
    one = nodes.copy("one")
    commit(one, new("user/a.md", b"# A\n"))
    with ThreadPoolExecutor(1) as threads:
        with one.holding(patience()):
            nodes.taken_over()
            reading = threads.submit(files, one)
            while not one.is_spoiled:
                assert not reading.done()
        # If both waited for each other, the reader's patience would end, and this would raise.
        assert reading.result() == {"user/a.md": b"# A\n"}
    assert one.held is None


def test_a_copy_of_more_than_the_ledger_knows_is_made_anew(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"), run=by("task-1"))
    commit(one, new("user/b.md", b"# B\n"), run=by("task-2"))
    assert files(two) == files(one)
    # A standby that never had the last commit takes over.
    nodes.execute("UPDATE home SET number = number - 1")
    nodes.execute("DELETE FROM change_set WHERE number = (SELECT max(number) FROM change_set)")
    two.close(patience())
    for copy in (one, two):
        assert files(copy) == {"user/a.md": b"# A\n"}


@pytest.mark.threat("T-FLT-04", control="unmarked_copies")
def test_a_copy_that_a_node_left_half_changed_is_not_taken_up_again(nodes):
    one, after_a_kill = nodes.copy("one"), nodes.copy("killed")
    commit(one, new("user/a.md", b"# A\n"))
    files(one)
    with changing(one):
        never = one.directory / MEMORY / "user/never.md"
        never.write_bytes(b"# Never done\n")
        shutil.copytree(one.directory, after_a_kill.directory)  # What a kill leaves.
        never.unlink()
    assert files(after_a_kill) == files(one) == {"user/a.md": b"# A\n"}


@pytest.mark.threat("T-FLT-04", control="claimed_copies")
def test_a_copy_in_which_something_else_stands_is_made_anew(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"))
    assert files(two) == {"user/a.md": b"# A\n"}
    (two.directory / MEMORY / "user/a.md").write_bytes(b"# By somebody\n")
    (two.directory / MEMORY / "user/stray.md").write_bytes(b"# By somebody\n")
    with changing(one) as ground:
        ground.commit(ground.edit("user/a.md", b"# Anew\n"))
    assert files(two) == {"user/a.md": b"# Anew\n"}


@pytest.mark.threat("T-FLT-04", control="current_bytes")
def test_commit_after_file_changed_under_lease_is_rejected(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"))
    with changing(one) as ground:
        (one.directory / MEMORY / "user/a.md").write_bytes(TEXT)
        raised(StoreConflict, ground.commit, ground.edit("user/a.md", TEXT + b"And more.\n"))
        raised(StoreConflict, ground.commit, removals=[("user/a.md", sha(TEXT))])
    assert files(two) == files(one) == {"user/a.md": b"# A\n"}


@pytest.mark.threat("T-FLT-04", control="current_bytes")
def test_recall_after_file_changed_under_lease_omits_it(nodes):
    one = nodes.copy("one")
    commit(one, new("user/a.md", b"# A\nThe user keeps a heron in the garden.\n"))
    with changing(one):
        (one.directory / MEMORY / "user/a.md").write_bytes(TEXT)
        (one.directory / MEMORY / "user/stray.md").write_bytes(TEXT)
        for query in ("where is the marmot in the cellar?", "where is the heron in the garden?"):
            assert recalled(one, query) == []
    assert recalled(one, "where is the marmot in the cellar?") == []
    assert recalled(one, "where is the heron in the garden?") == ["user/a.md"]


@pytest.mark.threat("T-FLT-04", control="compared_copies")
def test_index_changed_in_copy_is_made_anew_for_a_change(nodes):
    one = nodes.copy("one")
    commit(one, new("user/a.md", b"# A\n"))
    index = one.directory / MEMORY / "user/MEMORY.md"
    before = index.read_bytes()
    for change in (lambda: index.write_bytes(TEXT), index.unlink):
        change()
        with changing(one):
            assert index.read_bytes() == before
    assert files(one) == {"user/a.md": b"# A\n"}


@pytest.mark.parametrize("is_closed", [False, True])
def test_copy_with_stray_file_that_is_behind_indexes_none_of_it(nodes, is_closed):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"))
    assert files(two) == {"user/a.md": b"# A\n"}
    if is_closed:
        two.close(patience())
    (two.directory / MEMORY / "user/marmot.md").write_bytes(TEXT)
    commit(one, new("user/b.md", b"# B\n"), run=by("task-2"))
    assert files(two) == {"user/a.md": b"# A\n", "user/b.md": b"# B\n"}
    assert WORD not in held_by(two)


def test_copy_cut_off_in_replay_is_made_anew(nodes, monkeypatch):
    one, two, killed = (nodes.copy(name) for name in ("one", "two", "killed"))
    commit(one, new("user/a.md", b"# A\n"))
    assert files(two) == {"user/a.md": b"# A\n"}
    with changing(one) as ground:
        ground.commit(ground.edit("user/a.md", b"# Other\n"), new("user/b.md", b"# B\n"), run=by("task-2"))

    def cut_off(changes, held):
        replay(changes[:1], held)
        shutil.copytree(two.directory, killed.directory)  # What a kill leaves.
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copied, "replay", cut_off)
        raised(KeyboardInterrupt, files, two)
    for copy in (two, killed):
        assert files(copy) == {"user/a.md": b"# Other\n", "user/b.md": b"# B\n"}


def test_copy_that_nobody_changed_is_never_made_anew(nodes, monkeypatch):
    made = []
    monkeypatch.setattr(WorkingCopy, "_build", noted(made, WorkingCopy._build))
    one, two = nodes.copy("one"), nodes.copy("two")
    for number in range(4):
        commit(one, new(f"user/{number}.md"), new(f"project/{number}.md"), run=by(f"task-{number}"))
        files(two)
    with changing(two) as ground:
        ground.commit(ground.edit("user/0.md"), removals=[("user/1.md", sha(b"new\n"))], run=by("task-5"))
    for copy in (one, two):
        assert len(files(copy)) == 7
        copy.close(patience())
        assert len(files(copy)) == 7
    assert made == [one, two]


def test_change_begins_however_slow_the_node_is(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"))
    with two.holding(patience(0)) as (_, place):
        assert place.roots
    assert files(two) == files(one)


# -- A ledger that somebody wrote into ---------------------------------------------------------------------

HOSTILE = ("../../../../outside/x.md", "/outside/x.md", "MEMORY.md", "index/x.md", "x")


@pytest.mark.threat("T-FLT-05", control="replayed_names")
@pytest.mark.threat("T-FLT-05", control="canonical_rows")
@pytest.mark.parametrize("rel", HOSTILE)
def test_by_what_a_ledger_says_of_its_paths_no_copy_is_led_elsewhere(nodes, rel):
    warm, cold, by_hand = nodes.copy("warm"), nodes.copy("cold"), b"# Planted\n"
    (nodes.base / "outside").mkdir()
    commit(warm, new("user/a.md", b"# A\n"), run=by("task-1"))
    files(warm)
    nodes.execute("UPDATE change SET rel = %s WHERE rel = 'a.md'", rel)
    nodes.execute("UPDATE blob SET content = %s", by_hand)
    nodes.execute("UPDATE change_kept SET after_digest = %s", hashlib.sha256(by_hand).hexdigest())
    nodes.execute("UPDATE home SET number = number + 1")
    nodes.execute("UPDATE change_set SET number = number + 1")
    outside = photograph(nodes.base / "outside")
    for copy in (warm, cold):
        raised(MunimentError, files, copy)
        planted = [each for each in nodes.base.rglob("*") if each.is_file() and each.suffix == ".md"]
        assert by_hand not in {each.read_bytes() for each in planted}
    assert photograph(nodes.base / "outside") == outside


def test_of_a_root_that_is_none_of_a_home_nothing_is_made(nodes):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"), new("project/b.md", b"# B\n"))
    nodes.execute("INSERT INTO root (id, path) VALUES ('odd', '../../outside')")
    nodes.execute("UPDATE change_kept SET root = 'odd' WHERE rel = 'a.md'")
    assert files(two) == {"project/b.md": b"# B\n"}
    assert not (nodes.base / "outside").exists()


def test_a_home_that_is_removed_has_no_copy_that_answers(nodes):
    one = nodes.copy("one")
    commit(one, new("user/a.md", b"# A\n"))
    with psycopg.connect(nodes.fleet.superuser, options="-c search_path=muniment") as owner:
        owner.execute("DELETE FROM home WHERE home = %s", (nodes.home,))
    raised(MunimentError, files, one, match="the home does not exist")


def test_a_copy_follows_to_where_a_file_is_as_it_was_or_went_and_comes_anew_where_there_is_too_much(
    nodes, monkeypatch
):
    one, two = nodes.copy("one"), nodes.copy("two")
    commit(one, new("user/a.md", b"# A\n"))
    assert files(two) == {"user/a.md": b"# A\n"}
    with changing(one) as ground:
        ground.commit(ground.edit("user/a.md", b"# Other\n"), run=by("task-2"))
        ground.commit(ground.edit("user/a.md", b"# A\n"), run=by("task-3"))
    assert files(two) == {"user/a.md": b"# A\n"}
    commit(one, new("user/b.md", b"# B\n"), new("user/c.md", b"# C\n"), run=by("task-4"))
    monkeypatch.setattr(copied, "MOST_BEHIND", 1)
    assert files(two) == {"user/a.md": b"# A\n", "user/b.md": b"# B\n", "user/c.md": b"# C\n"}


def test_a_scope_that_the_policy_has_no_more_is_in_no_copy(nodes):
    one = nodes.copy("one")
    commit(one, new("user/a.md", b"# A\n"), new("project/b.md", b"# B\n"))
    of_user = tuple(terms for terms in STRICT.scope_terms if terms.name == "user")
    two = nodes.copy("two", replace(STRICT, scope_terms=of_user))
    assert files(two) == {"user/a.md": b"# A\n"}
    commit(one, new("project/c.md", b"# C\n"), run=by("task-2"))
    assert files(two) == {"user/a.md": b"# A\n"}


def test_a_root_that_somebody_gave_another_name_in_the_ledger_is_told(nodes):
    one = nodes.copy("one")
    commit(one, new("user/a.md", b"# A\n"))
    nodes.execute("UPDATE root SET path = 'elsewhere' WHERE path = 'user'")
    raised(
        ManagedMemoryUnavailable,
        files,
        nodes.copy("two"),
        match="list of roots was changed by another program",
    )
