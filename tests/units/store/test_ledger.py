"""The ledger: an intent holds all that recovery needs, and history begins with `finish`."""

from __future__ import annotations

import pytest

from kit.store.ground import laid_out, origin
from muniment.confine.writing import is_temporary
from muniment.names import Trust
from muniment.store.audit import records
from muniment.store.ledger import (
    KeptChange,
    abandon,
    begin,
    commits,
    finish,
    is_of_index,
    new_token,
    of_task,
    root_key,
    source_of,
    temporary_of,
    temporary_of_index,
    temporary_prefix,
    unfinished,
)
from muniment.tools.overlay import digest

AT = "2026-11-22T10:00:00.000Z"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


@pytest.fixture
def state(ground):
    return ground.state


def key(ground, scope="user"):
    return root_key(ground.state, ground.roots[scope])


def kept(ground, rel="n.md", before=None, after=b"new\n", number=0, scope="user", made=(), trust=Trust.AGENT):
    return KeptChange(number, key(ground, scope), scope, rel, before, after, tuple(made), trust)


def test_an_intent_holds_everything_and_is_no_history(ground, state):
    asked = origin("task-1", fact="f" * 64, undoes="task-0", kind="remember", trust=Trust.EXTERNAL)
    changes = [
        kept(ground, "a.md", b"\xff before\n", b"after\n", 0),
        kept(ground, "x/y/n.md", None, b"new\n", 1, "project", made=("x", "x/y")),
        kept(ground, "gone.md", b"gone\n", None, 2, trust=None),
    ]
    token = new_token()
    number = begin(state, asked, token, changes)
    (found,) = unfinished(state, [key(ground)])
    assert (found.id, found.origin, found.token, found.done) == (number, asked, token, None)
    assert found.changes == tuple(changes)
    assert of_task(state, "task-1") is None
    assert records(state) == ()


def test_an_abandoned_intent_is_gone_and_its_task_may_begin_again(ground, state):
    number = begin(
        state, origin("task-1"), new_token(), [kept(ground), kept(ground, scope="project", number=1)]
    )
    abandon(state, number, [key(ground)])
    (left,) = unfinished(state, [key(ground, "project")])
    assert [change.scope for change in left.changes] == ["project"]
    assert unfinished(state, [key(ground)]) == ()
    abandon(state, number, [key(ground, "project")])
    assert commits(state) == ()
    begin(state, origin("task-1"), new_token(), [kept(ground)])


def test_what_is_done_cannot_be_abandoned(state):
    number = begin(state, origin("task-1"), new_token(), [])
    finish(state, number, origin("task-1"), [], [], AT)
    abandon(state, number)
    assert of_task(state, "task-1") is not None


def test_the_source_of_bytes_is_the_last_task_that_wrote_them_there(ground, state):
    for task, trust in (("task-1", Trust.AGENT), ("task-2", Trust.OWNER)):
        change = kept(ground, trust=trust)
        number = begin(state, origin(task), new_token(), [change])
        assert source_of(state, key(ground), "n.md", digest(b"new\n")).task in {"task-1", task}
        finish(state, number, origin(task), [change], [], AT)
    source = source_of(state, key(ground), "n.md", digest(b"new\n"))
    assert (source.task, source.trust, source.decided_by) == ("task-2", Trust.OWNER, "tests")
    assert source_of(state, key(ground), "n.md", digest(b"other\n")) is None
    assert source_of(state, key(ground), "m.md", digest(b"new\n")) is None
    assert source_of(state, key(ground, "project"), "n.md", digest(b"new\n")) is None


def test_a_commit_under_way_is_a_source_and_an_undo_never_is(ground, state):
    begin(state, origin("task-1"), new_token(), [kept(ground)])
    assert source_of(state, key(ground), "n.md", digest(b"new\n")).task == "task-1"
    change = kept(ground, after=b"restored\n")
    undoing = origin("undo-1", undoes="task-0")
    number = begin(state, undoing, new_token(), [change])
    assert source_of(state, key(ground), "n.md", digest(b"restored\n")) is None
    finish(state, number, undoing, [change], [], AT)
    assert source_of(state, key(ground), "n.md", digest(b"restored\n")) is None


def test_temporary_names_belong_to_one_commit_and_tell_files_from_indexes():
    token, other = new_token(), new_token()
    names = [temporary_of(token, number) for number in (0, 1, 32_767)]
    indexes = [temporary_of_index(token, number) for number in (0, 32_767)]
    assert len({*names, *indexes}) == 5
    for name in (*names, *indexes):
        assert is_temporary(name)
        assert name.startswith(temporary_prefix(token))
        assert not name.startswith(temporary_prefix(other))
        assert is_of_index(name) == (name in indexes)
