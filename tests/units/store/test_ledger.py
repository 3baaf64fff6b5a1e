"""The ledger: an intent is no history, which begins with `finish`, and tells of every step."""

from __future__ import annotations

import pytest

from kit.store.ground import claim, new, origin
from muniment.confine.writing import is_temporary
from muniment.errors import NotFound
from muniment.names import Trust
from muniment.policy.grammar import canonicalise
from muniment.store import ledger
from muniment.store.audit import records
from muniment.store.judge import Author
from muniment.store.ledger import KeptChange, abandon, begin, finish, new_token, of_task, unfinished
from muniment.store.trust import constant
from muniment.tools.overlay import digest

AT = "2026-11-22T10:00:00.000Z"


def key(ground, scope="user"):
    return ledger.root_key(ground.state, ground.roots[scope])


def kept(ground, rel="n.md", after=b"new\n", number=0, scope="user", trust=Trust.AGENT):
    return KeptChange(number, key(ground, scope), scope, rel, None, after, (), trust)


def test_an_abandoned_intent_is_gone_and_its_task_may_begin_again_but_not_if_it_is_done(ground):
    state, task = ground.state, origin("task-1", fact="f" * 64, undoes="task-0", kind="remember")
    number = begin(state, task, new_token(), [kept(ground), kept(ground, scope="project", number=1)])
    abandon(state, number, [key(ground)])
    (left,) = unfinished(state, [key(ground, "project")])
    assert [change.scope for change in left.changes] == ["project"]
    assert (left.id, left.origin, left.done) == (number, task, None)
    assert (of_task(state, "task-1"), records(state)) == (None, ())
    assert unfinished(state, [key(ground)]) == ()
    abandon(state, number, [key(ground, "project")])
    assert ledger.commits(state) == ()
    number = begin(state, task, new_token(), [])
    finish(state, number, task, [], [], AT)
    abandon(state, number)
    assert of_task(state, "task-1") is not None


def test_the_source_of_bytes_is_the_last_task_that_wrote_them_there_and_never_an_undo(ground):
    def source(rel="n.md", data=b"new\n", scope="user"):
        return ledger.source_of(ground.state, key(ground, scope), rel, digest(data))

    def committed(task, change):
        number = begin(ground.state, task, new_token(), [change])
        meanwhile = source(data=change.after)
        finish(ground.state, number, task, [change], [], AT)
        return meanwhile, source(data=change.after)

    found, _ = committed(origin("task-1"), kept(ground))
    assert found.task == "task-1"  # Of a commit under way, too.
    found, last = committed(origin("task-2"), kept(ground, trust=Trust.OWNER))
    assert (found.task, last.task, last.trust, last.decided_by) == ("task-1", "task-2", Trust.OWNER, "tests")
    assert source(data=b"other\n") is source("m.md") is source(scope="project") is None
    undo = origin("undo-1", undoes="task-0")
    assert committed(undo, kept(ground, after=b"restored\n")) == (None, None)


def test_temporary_names_belong_to_one_commit_and_tell_files_from_indexes():
    token, other = map(ledger.temporary_prefix, tokens := (new_token(), new_token()))
    names = [ledger.temporary_of(tokens[0], number) for number in (0, 1, 32_767)]
    indexes = [ledger.temporary_of_index(tokens[0], number) for number in (0, 32_767)]
    assert len({*names, *indexes}) == 5
    for name in (*names, *indexes):
        assert (is_temporary(name), name.startswith(token), name.startswith(other)) == (True, True, False)
        assert ledger.is_of_index(name) == (name in indexes)


# History.


def at(ground, path, task):
    found = canonicalise(path, ground.roots)
    return ledger.content_at(ground.state, key(ground, found.scope), found, task)


def because(ground, path, present):
    now = None if present is None else digest(present)
    return ledger.why(ground.state, key(ground), canonicalise(path, ground.roots), now, Trust.WORKSPACE)


def test_a_file_is_shown_as_each_task_left_it_and_told_why_until_it_is_erased(ground):
    x, two = "user/x.md", b"\xff two\r\n"
    ground.commit(new(x, b"one\n"), origin=origin("task-1", fact="f" * 64), trust=constant(Trust.AGENT))
    found = because(ground, x, b"one\n")
    assert (found.state, found.trust, found.asked, found.fact) == ("committed", Trust.AGENT, "edit", "f" * 64)
    assert (found.source.task, found.source.decided_by, found.source.policy) == ("task-1", "tests", "tests@0")
    found = because(ground, x, b"by hand\n")
    assert (found.state, found.trust, found.source.task) == ("edited", Trust.WORKSPACE, "task-1")
    assert because(ground, x, None).state == "missing"
    found = because(ground, "user/a.md", b"# A\nalpha\n")
    assert (found.state, found.trust, found.source, found.asked) == ("foreign", Trust.WORKSPACE, None, None)
    ground.commit(ground.edit(x, two), origin=origin("task-2"), author=Author.RESTORE)
    ground.commit(removals=[claim(x, two)], origin=origin("task-3"))
    found = because(ground, x, None)
    assert (found.state, found.trust, found.source.task) == ("removed", None, "task-3")
    with pytest.raises(NotFound, match="nor was it"):
        because(ground, "user/never.md", None)
    assert [at(ground, x, f"task-{number}") for number in (1, 2, 3)] == [b"one\n", two, None]
    for path, task in (("user/a.md", "task-1"), (x, "task-9"), ("project/x.md", "task-1")):
        with pytest.raises(NotFound, match=f"history {path}"):
            at(ground, path, task)
    # A root has one history, whatever its scope is called.
    assert [step.path for step in ledger.history(ground.state, {key(ground): "team"})] == ["team/x.md"] * 3


def test_a_task_is_undone_by_the_last_undo_that_was_not_undone_itself(ground):
    for task, undoes, *expected in (
        ("task-1", None, None, None),
        ("undo-1", "task-1", "undo-1", None),
        ("undo-2", "undo-1", None, "undo-2"),
        ("undo-3", "undo-2", "undo-1", None),
        ("undo-4", "undo-3", None, "undo-2"),
        ("undo-5", "task-1", "undo-5", "undo-2"),
    ):
        ground.commit(new(f"user/{task}.md"), origin=origin(task, undoes=undoes))
        assert [ledger.undone_by(ground.state, each) for each in ("task-1", "undo-1")] == expected
