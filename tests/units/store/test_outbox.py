"""The outbox: an event exactly if what it tells of was committed, by a number that is never used again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from kit.store.ground import STRICT, laid_out, new, origin, patience
from kit.where import TESTS
from muniment.agent.filing import RuleWriter
from muniment.errors import ManagedMemoryUnavailable, PendingReview
from muniment.jobs.forget import forget
from muniment.jobs.place import Place
from muniment.jobs.request import ForgetRequest
from muniment.jobs.review import approve, reject, show, undo
from muniment.names import Trust
from muniment.store import state as series
from muniment.store import tasks
from muniment.store.erase import EraseGround, erase, scrub
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.tasks import Event, append, read, span
from muniment.store.trust import constant
from muniment.store.upkeep import recover_all

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}
AT = "2026-11-22T10:00:00.000Z"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


@pytest.fixture
def state(tmp_path):
    with State(tmp_path / "state") as state:
        yield state


def add(state, count=1, **more):
    for _ in range(count):
        append(state, Event("task", AT, "task-1", {"status": "queued"}, **more))


def numbers(state, after=0, limit=100_000):
    return [event.number for event in read(state.ledger, after, limit)]


def rolled_back(state, count):
    """Add events in a transaction that fails; the numbers that it saw."""
    with suppress(ZeroDivisionError), state.ledger.transaction():
        add(state, count)
        seen = numbers(state)
        raise ZeroDivisionError
    return seen


def told(ground):
    return [event for event in read(ground.state.ledger, 0, 1_000) if event.type == "memory_changed"]


def keys(ground, *scopes):
    return tuple(sorted(root_key(ground.state, ground.roots[scope]) for scope in scopes))


# What is told, and when: O1


def test_a_commit_is_told_once_with_the_roots_that_it_changed_and_nothing_else_of_it(ground):
    ground.commit(
        new("user/x.md", b"the text\n"), new("project/y.md"), origin=origin("task-1", kind="remember")
    )
    (event,) = told(ground)
    assert (event.number, event.task, event.workspace) == (1, "task-1", None)
    assert event.roots == keys(ground, "user", "project")
    assert (event.token, event.client) == (None, None)
    assert event.data == {"source": "workspace_memory_remember"}
    ((at,),) = ground.state.ledger.rows("SELECT done FROM change_set")
    assert event.at == at
    ground.commit(new("user/z.md"), origin=origin("task-2"))
    assert [event.roots for event in told(ground)[1:]] == [keys(ground, "user")]


def test_a_task_that_commits_again_is_not_told_again(ground):
    for _ in range(2):
        ground.commit(new("user/x.md"), origin=origin("task-1"))
    assert len(told(ground)) == 1


def test_each_way_to_change_the_memory_has_a_source_of_its_own(ground):
    """An approval has that of the task that it answers; what was rejected has none."""
    place = Place(STRICT, ground.roots, ground.state)
    ground.commit(new("user/x.md", b"dark mode\n"), origin=origin("task-1", kind="remember"))
    forget(ForgetRequest("dark mode", yes=True, task_id="task-2"), place, RuleWriter())
    assert undo("task-2", place).error is None
    for number, kind in ((3, "remember"), (4, "dream")):
        with pytest.raises(PendingReview) as waiting:
            ground.commit(
                new(f"user/{number}.md"),
                origin=origin(f"task-{number}", kind=kind),
                trust=constant(Trust.EXTERNAL),
            )
        review = waiting.value.review_id
        if kind == "dream":
            reject(review, place)
        else:
            decided = approve(review, show(review, place).digest, place)
    erased = erase("user/x.md", EraseGround(ground.state, ground.roots, STRICT, patience()))
    events = [(event.data["source"].removeprefix("workspace_memory_"), event.task) for event in told(ground)]
    assert events[:2] == [("remember", "task-1"), ("forget", "task-2")]
    assert [source for source, _ in events] == ["remember", "forget", "undo", "remember", "erase"]
    assert [task for _, task in events[3:]] == [decided.task_id, erased.task_id]


def test_a_commit_whose_last_step_fails_is_not_told_and_its_repetition_is_once(ground, monkeypatch):
    def full(*_):
        raise ManagedMemoryUnavailable("ledger.db", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("muniment.store.ledger.audit.append", full)  # After the event, in one transaction.
        with pytest.raises(ManagedMemoryUnavailable):
            ground.commit(new("user/x.md"), origin=origin("task-1"))
    assert told(ground) == []
    ground.commit(new("user/x.md"), origin=origin("task-1"))
    assert [event.number for event in told(ground)] == [1]


KILLED = """
import os, signal, sys
from pathlib import Path
from muniment.confine.binding import bind_all
from muniment.store import commit as commits
from muniment.store.state import State
from kit.store.ground import Ground, new, origin
base, when = Path(sys.argv[1]), sys.argv[2]
real = commits.finish
def finish(state, *arguments):
    if when == "before":
        with state.ledger.transaction():
            real(state, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)
    real(state, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)
commits.finish = finish
roots = bind_all({"user": base / "user", "project": base / "project"})
with State(base / "state") as state:
    Ground(base, roots, state).commit(new("user/x.md"), origin=origin("task-1"))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_around_the_end_of_its_commit_leaves_one_event_or_none(ground, tmp_path, when):
    command = [sys.executable, "-c", KILLED, tmp_path, when]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with State(tmp_path / "state") as state:
        ours = replace(ground, state=state)
        recover_all(state, ground.roots, STRICT, patience())
        assert len(told(ours)) == (when == "after")
        assert (ground.user / "x.md").exists() == (when == "after")
        ours.commit(new("user/x.md"), origin=origin("task-1"))
        assert [(event.number, event.task) for event in told(ours)] == [(1, "task-1")]


# Their numbers: O2


def test_numbers_go_on_where_all_events_were_deleted_and_after_a_scrub_in_another_process(state):
    add(state, 3)
    epoch, *_ = span(state.ledger)
    with state.ledger.transaction() as connection:
        connection.execute("DELETE FROM event")
    assert span(state.ledger) == (epoch, 3, 3)
    scrub(state)
    state.close()
    program = """
import json, sys
from pathlib import Path
from muniment.store.tasks import Event, append, read, span
from muniment.store.state import State
with State(Path(sys.argv[1])) as state:
    append(state, Event("task", "2026", "task-1", {}))
    print(json.dumps([span(state.ledger), [event.number for event in read(state.ledger, 0, 9)]]))
"""
    command = [sys.executable, "-c", program, state.directory]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[epoch, 3, 4], [4]]


def backed_up(state, path):
    """A copy as `sqlite3 ledger.db .backup` makes one while the state is open."""
    with closing(sqlite3.connect(path)) as copy, state.ledger.bare() as connection:
        connection.backup(copy)


def test_a_ledger_that_is_put_back_as_documented_begins_another_series(state, tmp_path):
    """Its numbers are used again, so whoever has read up to one of the old series must be told."""
    add(state, 3)
    backed_up(state, tmp_path / "backup.db")
    add(state, 2)
    epoch, *_ = span(state.ledger)
    state.close()
    for path in state.directory.glob("ledger.db*"):
        path.unlink()
    shutil.copyfile(tmp_path / "backup.db", state.directory / "ledger.db")
    with State(state.directory) as restored:
        again, first, last = span(restored.ledger)
        assert (first, last) == (0, 3)
        assert again != epoch
    with State(state.directory) as opened:
        assert span(opened.ledger)[0] == again


@pytest.mark.parametrize("over", [False, True], ids=["anew", "over-it"])
def test_a_state_that_is_put_back_as_a_whole_begins_another_series(state, tmp_path, over):
    """Also where the copy keeps times and is written over what is there, so that the inodes are the same."""
    add(state, 3)
    epoch, *_ = span(state.ledger)
    state.close()
    shutil.copytree(state.directory, tmp_path / "backup")
    with State(state.directory) as more:
        add(more, 2)
        assert span(more.ledger)[0] == epoch
    if not over:
        shutil.rmtree(state.directory)
    shutil.copytree(tmp_path / "backup", state.directory, dirs_exist_ok=True)
    state.directory.chmod(0o700)
    with State(state.directory) as restored:
        assert numbers(restored) == [1, 2, 3]
        assert span(restored.ledger)[0] != epoch


def test_a_series_that_could_not_be_written_down_is_begun_at_the_next_opening(state, monkeypatch):
    """The mark stands already, but the ledger does not know it."""
    epoch, *_ = span(state.ledger)
    state.close()
    (state.directory / "ledger.db-series").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(series, "token_hex", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            State(state.directory)
    with State(state.directory) as opened:
        again, *_ = span(opened.ledger)
        assert again != epoch
    with State(state.directory) as opened:
        assert span(opened.ledger)[0] == again


def test_who_reads_while_others_write_misses_nothing_and_sees_nothing_twice(state):
    """By connections of their own, as in processes of their own; some transactions are rolled back."""
    writers, each = 3, 60
    left = threading.Barrier(writers + 1)

    def write(number):
        with State(state.directory) as mine:
            left.wait()
            for count in range(each):
                if count % 5 == 4:
                    rolled_back(mine, 2)
                append(mine, Event("task", AT, f"task-{number}", {"count": count}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    left.wait()
    seen = []
    while len(seen) < writers * each:
        seen += read(state.ledger, seen[-1].number if seen else 0, 7)
    for thread in threads:
        thread.join()
    assert [event.number for event in seen] == list(range(1, writers * each + 1))
    for number in range(writers):
        ours = [event.data["count"] for event in seen if event.task == f"task-{number}"]
        assert ours == list(range(each))


# How many are kept: O3


def test_the_newest_events_are_kept_and_their_span_tells_from_where(state, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_EVENTS", 300)
    epoch, *_ = span(state.ledger)
    with state.ledger.transaction():
        add(state, 511)
    assert span(state.ledger) == (epoch, 0, 511)
    add(state)
    assert span(state.ledger) == (epoch, 212, 512)
    assert numbers(state) == list(range(213, 513))
    with state.ledger.transaction():
        add(state, 255)
    assert span(state.ledger) == (epoch, 212, 767)
    add(state)
    assert numbers(state) == list(range(469, 769))


def test_a_sweep_that_is_rolled_back_forgets_nothing(state, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_EVENTS", 1)
    add(state, 255)
    assert rolled_back(state, 1) == [256]
    assert numbers(state) == list(range(1, 256))
