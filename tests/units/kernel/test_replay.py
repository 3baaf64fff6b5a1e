"""What was done elsewhere is carried out in a copy: of entries alone, over what stood there before."""

from __future__ import annotations

import hashlib
import math
from contextlib import ExitStack

import pytest

from kit.memories import photograph
from kit.paths import at
from kit.raising import raised
from muniment.errors import BadName, PathEscape, Refused, StoreConflict
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Patience
from muniment.kernel.change import FileChange
from muniment.kernel.land import lock_roots
from muniment.kernel.names import Via
from muniment.kernel.write import replay

ONE = b"inside one"


def change(rel, before, after, scope="user"):
    base = None if before is None else hashlib.sha256(before).hexdigest()
    return FileChange(at(scope, rel), base, after, before)


def contents(trees):
    """Every name, and what stands there."""
    found = photograph(trees.inside, trees.other, trees.outside)
    return {path: (mode, content) for path, (mode, _, _, content) in found.items()}


@pytest.fixture
def held(trees):
    """Two roots, of which one is locked."""
    with ExitStack() as opened:
        user = opened.enter_context(bind("user", trees.inside))
        opened.enter_context(bind("project", trees.other))
        yield opened.enter_context(lock_roots([user], Patience(math.inf)))


def test_files_come_change_and_go_with_the_directories_that_they_need(trees, held):
    replay(
        [
            change("new/deep/three.md", None, b"three"),
            change("topic/one.md", ONE, b"another one"),
            change("topic/deep/two.md", b"inside two", None),
        ],
        held,
    )
    assert (trees.inside / "new/deep/three.md").read_bytes() == b"three"
    assert (trees.inside / "topic/one.md").read_bytes() == b"another one"
    assert list((trees.inside / "topic/deep").iterdir()) == []
    found = {each.name for each in trees.inside.rglob("*") if each.is_file()}
    assert found == {"note.md", "one.md", "three.md"}  # Nothing under a temporary name is left.
    replay([], held)


@pytest.mark.threat("T-FLT-05", control="replayed_names")
@pytest.mark.parametrize("rel", ["MEMORY.md", "index/a.md", "index/deep/a.md"])
def test_an_index_is_not_replayed(trees, held, rel):
    before = photograph(trees.inside)
    told = raised(Refused, replay, [change("topic/new.md", None, b"n"), change(rel, None, b"x")], held)
    assert (told.rule, photograph(trees.inside)) == ("replay", before)
    replay([change(f"topic/{rel}", None, b"x")], held)  # Below another directory it is an entry's name.


@pytest.mark.threat("T-FLT-05", control="replayed_names")
@pytest.mark.parametrize("rel", ["topic/one", "topic/one.txt", "topic/.md", "a.MD"])
def test_what_is_no_name_of_an_entry_is_not_replayed(trees, held, rel):
    before = photograph(trees.inside)
    raised(BadName, replay, [change("topic/new.md", None, b"n"), change(rel, None, b"x")], held)
    assert photograph(trees.inside) == before


@pytest.mark.threat("T-FLT-05", control="claimed_file")
@pytest.mark.parametrize(
    "other",
    [
        change("topic/one.md", b"something else", b"x"),
        change("topic/one.md", b"something else", None),
        change("topic/one.md", None, b"x"),
        change("topic/gone.md", b"what was there", b"x"),
        change("topic/gone.md", b"what was there", None),
    ],
    ids=["changes another", "removes another", "is there already", "changes none", "removes none"],
)
def test_where_something_else_stands_nothing_at_all_is_replayed(trees, held, other):
    before = contents(trees)
    whole = [change("new/three.md", None, b"three"), other, change("note.md", b"inside note", b"changed")]
    assert raised(StoreConflict, replay, whole, held).paths == (other.path.text,)
    assert contents(trees) == before


@pytest.mark.threat("T-FLT-05", control="resolvers")
def test_a_link_in_a_copy_leads_nothing_out_of_it(trees, held):
    (trees.inside / "out").symlink_to(trees.outside)
    before = photograph(trees.outside)
    told = raised(PathEscape, replay, [change("out/new.md", None, b"x")], held)
    assert (told.via, photograph(trees.outside)) == (Via.SYMLINK, before)


def test_only_changes_are_replayed_and_only_under_locks_of_their_roots(trees, held):
    before = contents(trees)
    for odd in ([{"user/a.md": b"x"}], ["user/a.md"], [change("a.md", None, bytearray(b"x"))]):
        raised(TypeError, replay, odd, held)
    raised(KeyError, replay, [change("a.md", None, b"x"), change("b.md", None, b"x", "project")], held)
    for roots in ({}, dict(held), None):
        raised(TypeError, replay, [change("a.md", None, b"x")], roots)
    held.release()
    raised(KeyError, replay, [change("a.md", None, b"x")], held)
    assert contents(trees) == before
