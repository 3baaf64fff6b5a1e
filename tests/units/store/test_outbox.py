"""The outbox: an event exactly if what it tells of was committed, by a number that is never used again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from unittest.mock import Mock

import pytest

from kit.store.ground import new, origin
from muniment.errors import ManagedMemoryUnavailable
from muniment.store import state as series
from muniment.store import tasks
from muniment.store.erase import scrub
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.tasks import Event, append, read, span

AT = "2026-11-22T10:00:00.000Z"


@pytest.fixture
def state(tmp_path):
    with State(tmp_path / "state") as state:
        yield state


def add(state, count=1):
    for _ in range(count):
        append(state, Event("task", AT, "task-1", {"status": "queued"}))


def numbers(state):
    return [event.number for event in read(state.ledger, 0, 100_000)]


def test_a_commit_is_told_once_it_is_done_with_the_roots_that_it_changed_alone(ground, monkeypatch):
    def told():
        return [event for event in read(ground.state.ledger, 0, 1_000) if event.type == "memory_changed"]

    full = Mock(side_effect=ManagedMemoryUnavailable("ledger.db", "the disk is full"))
    changes, task = (new("user/x.md"), new("project/y.md")), origin("task-1", kind="remember")
    with monkeypatch.context() as patched:
        patched.setattr("muniment.store.ledger.audit.append", full)  # After the event, in one transaction.
        with pytest.raises(ManagedMemoryUnavailable):
            ground.commit(*changes, origin=task)
    assert told() == []
    for _ in range(2):
        ground.commit(*changes, origin=task)
    (event,) = told()
    keys = {scope: root_key(ground.state, root) for scope, root in ground.roots.items()}
    assert (event.number, event.task, event.roots) == (1, "task-1", tuple(sorted(keys.values())))
    assert (event.workspace, event.token, event.client) == (None, None, None)
    assert event.data == {"source": "workspace_memory_remember"}
    assert ground.state.ledger.rows("SELECT done FROM change_set") == [(event.at,)]
    ground.commit(new("user/z.md"), origin=origin("task-2"))
    assert [event.roots for event in told()[1:]] == [(keys["user"],)]


# Their numbers.


def test_numbers_go_on_where_all_events_were_deleted_and_after_a_scrub_in_another_opening(state):
    add(state, 3)
    epoch, *_ = span(state.ledger)
    with state.ledger.transaction() as connection:
        connection.execute("DELETE FROM event")
    assert span(state.ledger) == (epoch, 3, 3)
    scrub(state)
    state.close()
    with State(state.directory) as again:
        add(again)
        assert (span(again.ledger), numbers(again)) == ((epoch, 3, 4), [4])


@pytest.mark.parametrize("how", ["as documented", "as a whole", "as a whole, over what is there"])
def test_a_state_that_is_put_back_begins_another_series(state, tmp_path, how):
    """Its numbers are used again, so whoever has read up to one of the old series must be told.

    Also where the copy keeps times and is written over what is there, so that the inodes are the same.
    """
    add(state, 3)
    epoch, *_ = span(state.ledger)
    directory, backup = state.directory, tmp_path / "backup"
    backup.mkdir()
    if how == "as documented":  # `sqlite3 ledger.db .backup`, while the state is open
        with closing(sqlite3.connect(backup / "ledger.db")) as copy, state.ledger.bare() as connection:
            connection.backup(copy)
    state.close()
    if how != "as documented":
        shutil.copytree(directory, backup, dirs_exist_ok=True)
    with State(directory) as more:
        add(more, 2)
        assert span(more.ledger)[0] == epoch
    if "over" not in how:
        for path in directory.glob("ledger.db*" if how == "as documented" else "*"):
            path.unlink()
    shutil.copytree(backup, directory, dirs_exist_ok=True)
    directory.chmod(0o700)
    with State(directory) as restored:
        again, first, last = span(restored.ledger)
        assert (first, last, numbers(restored)) == (0, 3, [1, 2, 3])
        assert again != epoch
    with State(directory) as opened:
        assert span(opened.ledger)[0] == again


def test_a_series_that_could_not_be_written_down_is_begun_at_the_next_opening(state, monkeypatch):
    """The mark stands already, but the ledger does not know it."""
    epochs = [span(state.ledger)[0]]
    state.close()
    (state.directory / "ledger.db-series").unlink()
    monkeypatch.setattr(series, "token_hex", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        State(state.directory)
    monkeypatch.undo()
    for _ in range(2):
        with State(state.directory) as opened:
            epochs.append(span(opened.ledger)[0])
    assert epochs[0] != epochs[1] == epochs[2]


def test_the_newest_events_are_kept_and_their_span_tells_from_where(state, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_EVENTS", 300)
    epoch, *_ = span(state.ledger)
    for more, first, lands in ((511, 0, 1), (1, 0, 0), (1, 212, 1), (255, 212, 1), (1, 468, 1)):
        with suppress(ZeroDivisionError), state.ledger.transaction():
            add(state, more)
            assert lands or numbers(state)[-1] == 512
            1 / lands  # Rolled back, it forgets nothing.
        kept = numbers(state)
        assert (epoch, kept[0] - 1, kept[-1]) == span(state.ledger) == (epoch, first, kept[-1])
        assert kept == list(range(first + 1, kept[-1] + 1))
