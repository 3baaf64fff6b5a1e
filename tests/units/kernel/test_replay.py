"""Replay of commits in a copy: only entries, only over the expected old content."""

from __future__ import annotations

import hashlib
import math
from contextlib import ExitStack

import pytest

from kit.catching import catch_error
from kit.memories import take_snapshot
from kit.paths import make_path
from muniment.errors import BadName, PathEscape, Refused, StoreConflict
from muniment.kernel.apply import lock_roots
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import FileChange
from muniment.kernel.names import Via
from muniment.kernel.write import replay

ONE = b"inside one"


def make_change(rel, before, after, scope="user"):
    base = None if before is None else hashlib.sha256(before).hexdigest()
    return FileChange(make_path(scope, rel), base, after, before)


def read_contents(trees):
    """Return every name with its mode and content."""
    found = take_snapshot(trees.inside, trees.other, trees.outside)
    return {path: (mode, content) for path, (mode, _, _, content) in found.items()}


@pytest.fixture
def locked_roots(trees):
    """Yield the locked roots: one of two roots is locked."""
    with ExitStack() as opened:
        user = opened.enter_context(bind("user", trees.inside))
        opened.enter_context(bind("project", trees.other))
        yield opened.enter_context(lock_roots([user], Deadline(math.inf)))


def test_replay_creates_changes_and_removes_files(trees, locked_roots):
    replay(
        [
            make_change("new/deep/three.md", None, b"three"),
            make_change("topic/one.md", ONE, b"another one"),
            make_change("topic/deep/two.md", b"inside two", None),
        ],
        locked_roots,
    )
    assert (trees.inside / "new/deep/three.md").read_bytes() == b"three"
    assert (trees.inside / "topic/one.md").read_bytes() == b"another one"
    assert list((trees.inside / "topic/deep").iterdir()) == []
    found = {each.name for each in trees.inside.rglob("*") if each.is_file()}
    assert found == {"note.md", "one.md", "three.md"}  # No temporary names are left.
    replay([], locked_roots)


@pytest.mark.threat("T-FLT-05", control="replayed_names")
@pytest.mark.parametrize("rel", ["MEMORY.md", "index/a.md", "index/deep/a.md"])
def test_replay_rejects_index_files(trees, locked_roots, rel):
    before = take_snapshot(trees.inside)
    error = catch_error(
        Refused, replay, [make_change("topic/new.md", None, b"n"), make_change(rel, None, b"x")], locked_roots
    )
    assert (error.rule, take_snapshot(trees.inside)) == ("replay", before)
    replay(
        [make_change(f"topic/{rel}", None, b"x")], locked_roots
    )  # In another directory it is the name of an entry.


@pytest.mark.threat("T-FLT-05", control="replayed_names")
@pytest.mark.parametrize("rel", ["topic/one", "topic/one.txt", "topic/.md", "a.MD"])
def test_replay_rejects_invalid_entry_names(trees, locked_roots, rel):
    before = take_snapshot(trees.inside)
    catch_error(
        BadName, replay, [make_change("topic/new.md", None, b"n"), make_change(rel, None, b"x")], locked_roots
    )
    assert take_snapshot(trees.inside) == before


@pytest.mark.threat("T-FLT-05", control="claimed_file")
@pytest.mark.parametrize(
    "other",
    [
        make_change("topic/one.md", b"something else", b"x"),
        make_change("topic/one.md", b"something else", None),
        make_change("topic/one.md", None, b"x"),
        make_change("topic/gone.md", b"what was there", b"x"),
        make_change("topic/gone.md", b"what was there", None),
    ],
    ids=["edits other text", "removes other text", "exists already", "edits missing", "removes missing"],
)
def test_replay_over_different_content_changes_nothing(trees, locked_roots, other):
    before = read_contents(trees)
    whole = [
        make_change("new/three.md", None, b"three"),
        other,
        make_change("note.md", b"inside note", b"changed"),
    ]
    assert catch_error(StoreConflict, replay, whole, locked_roots).paths == (other.path.text,)
    assert read_contents(trees) == before


@pytest.mark.threat("T-FLT-05", control="resolvers")
def test_replay_does_not_follow_links(trees, locked_roots):
    (trees.inside / "out").symlink_to(trees.outside)
    before = take_snapshot(trees.outside)
    error = catch_error(PathEscape, replay, [make_change("out/new.md", None, b"x")], locked_roots)
    assert (error.via, take_snapshot(trees.outside)) == (Via.SYMLINK, before)


def test_replay_requires_changes_and_locked_roots(trees, locked_roots):
    before = read_contents(trees)
    for odd in ([{"user/a.md": b"x"}], ["user/a.md"], [make_change("a.md", None, bytearray(b"x"))]):
        catch_error(TypeError, replay, odd, locked_roots)
    catch_error(
        KeyError,
        replay,
        [make_change("a.md", None, b"x"), make_change("b.md", None, b"x", "project")],
        locked_roots,
    )
    for roots in ({}, dict(locked_roots), None):
        catch_error(TypeError, replay, [make_change("a.md", None, b"x")], roots)
    locked_roots.release()
    catch_error(KeyError, replay, [make_change("a.md", None, b"x")], locked_roots)
    assert read_contents(trees) == before
