"""The ledger: an intent holds all that recovery needs, and history begins with `finish`."""

from __future__ import annotations

import pytest

from muniment.confine.writing import is_temporary
from muniment.errors import ManagedMemoryUnavailable
from muniment.names import Trust
from muniment.store.audit import records, verify
from muniment.store.ledger import (
    KeptChange,
    abandon,
    begin,
    commits,
    erased_name,
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
from muniment.store.state import State
from muniment.tools.overlay import digest
from store.ground import laid_out, origin

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


def test_a_root_keeps_its_key_and_another_directory_has_another(ground, tmp_path):
    assert key(ground) == key(ground)
    assert key(ground) != key(ground, "project")
    (tmp_path / "other").mkdir()
    with laid_out(tmp_path / "other") as other:
        assert root_key(ground.state, other.roots["user"]) != key(ground)
    with State(None) as another:
        assert root_key(another, ground.roots["user"]) != key(ground)


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


def test_a_commit_is_history_once_it_is_finished(ground, state):
    change = kept(ground)
    asked = origin("task-1", fact="f" * 64)
    number = begin(state, asked, new_token(), [change])
    finish(state, number, asked, [change], ["a note"], AT)
    found = of_task(state, "task-1")
    assert (found.done, found.notes, found.changes) == (AT, ("a note",), (change,))
    assert unfinished(state, [key(ground)]) == ()
    (record,) = records(state, task="task-1")
    assert record.body["changes"] == [{"path": "user/n.md", "before": None, "after": digest(b"new\n")}]
    assert record.body["fact"] == "f" * 64
    assert verify(state).problems == ()


def test_the_public_view_of_a_change_says_what_became_of_the_file(ground):
    kinds = {
        kept(ground, before=before, after=after).change.kind
        for before, after in ((None, b"x"), (b"x", b"y"), (b"x", None))
    }
    assert kinds == {"create", "modify", "delete"}
    assert kept(ground, "x/n.md").path == "user/x/n.md"


def test_a_task_begins_once(ground, state):
    begin(state, origin("task-1"), new_token(), [kept(ground)])
    with pytest.raises(ManagedMemoryUnavailable, match="UNIQUE"):
        begin(state, origin("task-1"), new_token(), [kept(ground)])
    assert len(commits(state)) == 1


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


def test_the_newest_intent_is_taken_back_first(ground, state):
    for task in ("task-1", "task-2"):
        begin(state, origin(task), new_token(), [kept(ground)])
    assert [each.origin.task for each in unfinished(state, [key(ground)])] == ["task-2", "task-1"]
    assert unfinished(state, [key(ground, "project")]) == ()


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


def test_an_erased_change_says_so(ground, state):
    number = begin(state, origin("task-1"), new_token(), [kept(ground, before=b"x")])
    finish(state, number, origin("task-1"), [kept(ground, before=b"x")], [], AT)
    with state.ledger.transaction() as connection:
        connection.execute("UPDATE change SET before = NULL, before_digest = 'erased'")
    assert of_task(state, "task-1").changes[0].is_erased
    name = erased_name(state, key(ground), "n.md")
    assert name != erased_name(state, key(ground, "project"), "n.md")
    assert "n.md" not in name


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
