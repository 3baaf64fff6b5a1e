"""What the ledger tells of a file: every step, what it was then, and where it is from."""

from __future__ import annotations

import pytest

from kit.store.ground import laid_out, new, origin
from muniment.confine.binding import bind_all
from muniment.errors import Erased, NotFound
from muniment.names import Trust
from muniment.policy.grammar import canonicalise
from muniment.store.judge import Author
from muniment.store.ledger import content_at, history, root_key, undone_by, why
from muniment.store.trust import constant
from muniment.tools.overlay import Claim, digest


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


def keys(ground):
    return {root_key(ground.state, root): scope for scope, root in ground.roots.items()}


def told(ground, path=None):
    return history(ground.state, keys(ground), canonicalise(path, ground.roots) if path else None)


def at(ground, path, task):
    found = canonicalise(path, ground.roots)
    return content_at(ground.state, root_key(ground.state, ground.roots[found.scope]), found, task)


def because(ground, path, present):
    found = canonicalise(path, ground.roots)
    key = root_key(ground.state, ground.roots[found.scope])
    now = None if present is None else digest(present)
    return why(ground.state, key, found, now, Trust.WORKSPACE)


def test_a_root_has_one_history_whatever_its_scope_is_called(ground):
    ground.commit(new("project/x.md"), origin=origin("task-1"))
    with bind_all({"user": ground.project})["user"] as bound:
        (step,) = history(ground.state, {root_key(ground.state, bound): "user"})
        assert step.path == "user/x.md"


def test_a_file_is_shown_as_each_task_left_it(ground):
    ground.commit(new("user/x.md", b"one\n"), origin=origin("task-1"))
    ground.commit(ground.edit("user/x.md", b"\xff two\r\n"), origin=origin("task-2"), author=Author.RESTORE)
    ground.commit(removals=[Claim("user/x.md", digest(b"\xff two\r\n"))], origin=origin("task-3"))
    assert [at(ground, "user/x.md", f"task-{number}") for number in (1, 2, 3)] == [
        b"one\n",
        b"\xff two\r\n",
        None,
    ]
    for path, task in (("user/a.md", "task-1"), ("user/x.md", "task-9"), ("project/x.md", "task-1")):
        with pytest.raises(NotFound, match=f"history {path}"):
            at(ground, path, task)


def test_why_tells_committed_edited_foreign_removed_and_missing_apart(ground):
    ground.commit(
        new("user/x.md", b"one\n"), origin=origin("task-1", fact="f" * 64), trust=constant(Trust.AGENT)
    )
    found = because(ground, "user/x.md", b"one\n")
    assert (found.state, found.trust, found.asked, found.fact) == ("committed", Trust.AGENT, "edit", "f" * 64)
    assert (found.source.task, found.source.decided_by, found.source.policy) == ("task-1", "tests", "tests@0")
    found = because(ground, "user/x.md", b"by hand\n")
    assert (found.state, found.trust, found.source.task) == ("edited", Trust.WORKSPACE, "task-1")
    assert because(ground, "user/x.md", None).state == "missing"
    found = because(ground, "user/a.md", b"# A\nalpha\n")
    assert (found.state, found.trust, found.source, found.asked) == ("foreign", Trust.WORKSPACE, None, None)
    ground.commit(removals=[Claim("user/x.md", digest(b"one\n"))], origin=origin("task-2"))
    found = because(ground, "user/x.md", None)
    assert (found.state, found.trust, found.source.task) == ("removed", None, "task-2")
    with pytest.raises(NotFound, match="nor was it"):
        because(ground, "user/never.md", None)


def test_what_was_erased_is_said_to_be(ground):
    ground.commit(new("user/x.md", b"one\n"), origin=origin("task-1"))
    with ground.state.ledger.transaction() as connection:
        connection.execute("UPDATE change SET after = NULL, after_digest = 'erased'")
    assert told(ground)[0].is_erased
    with pytest.raises(Erased, match="task-1"):
        at(ground, "user/x.md", "task-1")


def undoing(ground, *pairs):
    for task, undoes in pairs:
        ground.commit(new(f"user/{task}.md"), origin=origin(task, undoes=undoes))


def test_a_task_is_undone_by_the_last_undo_that_was_not_undone_itself(ground):
    undoing(ground, ("task-1", None))
    assert undone_by(ground.state, "task-1") is None
    undoing(ground, ("undo-1", "task-1"))
    assert undone_by(ground.state, "task-1") == "undo-1"
    undoing(ground, ("undo-2", "undo-1"))
    assert (undone_by(ground.state, "task-1"), undone_by(ground.state, "undo-1")) == (None, "undo-2")
    undoing(ground, ("undo-3", "undo-2"))
    assert (undone_by(ground.state, "task-1"), undone_by(ground.state, "undo-1")) == ("undo-1", None)
    undoing(ground, ("undo-4", "undo-3"), ("undo-5", "task-1"))
    assert undone_by(ground.state, "task-1") == "undo-5"
