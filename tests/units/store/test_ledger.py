"""The ledger: an intent is not history; history starts with `finish` and contains every step."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import product
from unittest.mock import Mock, patch

import pytest

from kit.catching import catch_error
from kit.fleet.engines import ENGINES, sqlite_only
from kit.store.bench import make_run, propose_new
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.kernel import write
from muniment.kernel._directory import is_temporary
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import new_token
from muniment.store import audit, ledger, tasks
from muniment.store import state as series
from muniment.store.audit import Head, append, read_records, verify
from muniment.store.database import Database
from muniment.store.erase import scrub
from muniment.store.ledger import (
    ChangeRow,
    CommitRow,
    abandon,
    begin,
    find_commit,
    finish,
    get_root_key,
    list_unfinished,
)
from muniment.store.state import State
from muniment.store.tasks import OutboxEvent, read_events, read_range

AT = "2026-11-22T10:00:00.000Z"


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """The engine of the ledger."""
    return request.param


def get_key(ground, scope="user"):
    return ledger.get_root_key(ground.state, ground.roots[scope])


def make_row(ground, rel="n.md", after=b"new\n", number=0, scope="user", trust=Trust.AGENT):
    change = FileChange(CanonicalPath(scope, rel), None, after, trust=trust)
    return ChangeRow(0, number, get_key(ground, scope), change, digest(after))


def begin_intent(ground, run, *rows):
    """Begin an intent and return it with its number."""
    intent = CommitRow(0, run, new_token(), changes=rows)
    return replace(intent, id=begin(ground.state, intent))


def test_abandoned_intent_is_removed_and_may_be_begun_again(store_bench):
    state, task = store_bench.state, make_run("task-1", fact="f" * 64, undoes="task-0", kind="remember")
    number = begin_intent(
        store_bench, task, make_row(store_bench), make_row(store_bench, scope="project", number=1)
    ).id
    abandon(state, number, [get_key(store_bench)])
    (left,) = list_unfinished(state, [get_key(store_bench, "project")])
    assert [row.change.path.scope for row in left.changes] == ["project"]
    assert (left.id, left.run, left.done) == (number, task, None)
    assert (find_commit(state, "task-1"), read_records(state)) == (None, ())
    assert list_unfinished(state, [get_key(store_bench)]) == ()
    abandon(state, number, [get_key(store_bench, "project")])
    assert ledger.read_commits(state) == ()
    intent = begin_intent(store_bench, task)
    finish(state, replace(intent, done=AT))
    abandon(state, intent.id)
    assert find_commit(state, "task-1") is not None


def test_source_of_bytes_is_the_last_task_and_never_an_undo(store_bench):
    def source(rel="n.md", data=b"new\n", scope="user"):
        return ledger.find_source(store_bench.state, get_key(store_bench, scope), rel, digest(data))

    def commit_row(task, row):
        intent = begin_intent(store_bench, task, row)
        meanwhile = source(data=row.change.after)
        finish(store_bench.state, replace(intent, done=AT))
        return meanwhile, source(data=row.change.after)

    found, _ = commit_row(make_run("task-1"), make_row(store_bench))
    assert found.task == "task-1"  # A commit in progress counts, too.
    found, last = commit_row(make_run("task-2"), make_row(store_bench, trust=Trust.OWNER))
    assert (found.task, last.task, last.trust, last.decided_by) == ("task-1", "task-2", Trust.OWNER, "tests")
    assert source(data=b"other\n") is source("m.md") is source(scope="project") is None
    assert commit_row(make_run("undo-1", undoes="task-0"), make_row(store_bench, after=b"restored\n")) == (
        None,
        None,
    )


def test_temporary_names_belong_to_one_commit_and_kind():
    token, other = new_token(), new_token()
    names = [write.get_temporary_name(token, number) for number in (0, 1, 32_767)]
    indexes = [write.get_index_temporary_name(token, number) for number in (0, 32_767)]
    assert len({*names, *indexes}) == 5
    for name in (*names, *indexes):
        assert (is_temporary(name), token in name, other in name) == (True, True, False)
        assert write.is_index_temporary_name(name) == (name in indexes)


def test_task_is_undone_by_the_last_undo_still_in_force(store_bench):
    for task, undoes, *expected in (
        ("task-1", None, None, None),
        ("undo-1", "task-1", "undo-1", None),
        ("undo-2", "undo-1", None, "undo-2"),
        ("undo-3", "undo-2", "undo-1", None),
        ("undo-4", "undo-3", None, "undo-2"),
        ("undo-5", "task-1", "undo-5", "undo-2"),
    ):
        store_bench.commit(propose_new(f"user/{task}.md"), run=make_run(task, undoes=undoes))
        assert [
            ledger.find_undoing_task(store_bench.state, each) for each in ("task-1", "undo-1")
        ] == expected
        (step, *_) = ledger.read_history(store_bench.state, {get_key(store_bench): "team"})
        assert step.path == f"team/{task}.md"  # The history is independent of the name of the scope.


def test_unbound_root_has_no_history(store_bench):
    store_bench.commit(propose_new("user/n.md"), run=make_run("task-1"))
    assert len(ledger.read_history(store_bench.state, {get_key(store_bench): "user"})) == 1
    assert ledger.read_history(store_bench.state, {}) == ()
    assert (
        ledger.read_history(store_bench.state, {get_key(store_bench): "user"}, CanonicalPath("other", "n.md"))
        == ()
    )
    assert ledger.count_by_day(store_bench.state, {}, "2026") == ()


# -- The chain of records: without the key, no edit of any byte is unnoticed.


TASKS = ("task-1", None, "task-2", "", "task-1")


@pytest.fixture
def state(open_state, tmp_path):
    with open_state(tmp_path / "state") as state:
        yield state


def begin_chain(state):
    for number, task in enumerate(TASKS):
        append(state, AT, f"kind{number}", task, {"number": number, "path": "user/é.md"})


class RolledBack(Exception):
    """Ends a transaction that must not be committed."""


@contextmanager
def roll_back_after(state):
    with suppress(RolledBack), state.ledger.transaction() as connection:
        yield connection
        raise RolledBack


def execute_all(connection, *statements):
    """Edit the ledger without the key."""
    for statement, *values in statements:
        connection.execute(statement, values)


def iterate_other_values(value):
    """Yield values that differ by one byte, at every position, or as a whole."""
    yield from {b"", None if value is not None else b"task-1", (value or b"") + b" "} - {value}
    for at, flip in product(range(len(value or b"")), (0x01, 0x80)):
        yield value[:at] + bytes([value[at] ^ flip]) + value[at + 1 :]


def decode(value):
    """Return bytes as text if they are valid text."""
    with suppress(UnicodeDecodeError):
        return None if value is None else value.decode()
    return value


@pytest.mark.threat("T-LOG-02", control="chained_records")
@pytest.mark.parametrize("seq", [1, *(pytest.param(seq, marks=pytest.mark.slow) for seq in (2, 3, 4, 5))])
def test_every_edited_byte_of_every_column_is_found(engine, state, seq):
    begin_chain(state)
    with roll_back_after(state) as connection:
        for column in ("at", "kind", "task", "body", "body_mac", "mac"):
            whole = f"SELECT CAST({column} AS BLOB) FROM record WHERE seq = ?"
            ((value,),) = state.ledger.rows(whole, (seq,))
            placeholder = "?" if "mac" in column else "CAST(? AS TEXT)"
            change = f"UPDATE record SET {column} = {placeholder} WHERE seq = ?"
            for other in (*iterate_other_values(value), value):
                changed = decode(other) if "TEXT" in placeholder else other
                if other is None and column not in {"task", "body"}:
                    continue  # The table itself rejects it.
                if engine == "postgres" and "TEXT" in placeholder and isinstance(changed, bytes):
                    continue  # The server rejects it: it is not text.
                connection.execute(change, (changed, seq))
                assert bool(verify(state).problems) == (other != value), (column, other)


@pytest.mark.threat("T-LOG-02", control="chained_records")
def test_removed_copied_or_cut_records_are_found(state):
    def find_problems(*statements):
        with roll_back_after(state) as connection:
            execute_all(connection, *statements)
            found = verify(state).problems
        return " ".join(found)

    begin_chain(state)
    columns = "at, kind, task, body, body_mac, mac"
    copy_record = f"INSERT INTO record (seq, {columns}) SELECT {{}}, {columns} FROM record WHERE seq = 3"
    shifts = [("UPDATE record SET seq = ? WHERE seq = ?", to + 1, to) for to in (5, 4)]
    for seq in range(1, 6):
        found = find_problems(("DELETE FROM record WHERE seq = ?", seq))
        assert f"record {seq}" in found or "record 4, but" in found
    assert "record 6" in find_problems((copy_record.format(6),))
    assert find_problems((copy_record.format(6),), ("UPDATE head SET seq = 6",))
    assert find_problems(*shifts, (copy_record.format(4),), ("UPDATE head SET seq = 6",))
    last = "UPDATE head SET mac = (SELECT mac FROM record ORDER BY seq DESC LIMIT 1)"
    for left in range(5):
        cut = [("DELETE FROM record WHERE seq > ?", left), ("UPDATE head SET seq = ?", left)]
        cut += [(last,)] * bool(left)  # Without a record, no MAC is left.
        for steps in range(1, len(cut) + 1):
            assert "removed or added" in find_problems(*cut[:steps]), (left, steps)
        assert not left or "not marked" in find_problems(*cut, ("DELETE FROM head",))
    for more in ([], [("UPDATE head SET seq = 3",)]):  # A record after it does not hide it.
        with roll_back_after(state) as connection:
            execute_all(connection, ("DELETE FROM record WHERE seq > 3",), *more)
            append(state, AT, "later", None, {})
            assert verify(state).problems


def test_erased_body_needs_a_later_erasure_record(state):
    def problems(*statements):
        with state.ledger.transaction() as connection:
            execute_all(connection, *statements)
        return verify(state).problems

    remove_body = "UPDATE record SET body = NULL WHERE seq = ?"
    missing = "its body is missing, but no later erasure lists it"
    begin_chain(state)
    assert problems((remove_body, 2)) == (f"record 2: {missing}",)
    append(state, AT, audit.ERASE, None, {"records": [2]})
    assert verify(state).problems == ()
    assert read_records(state)[1].body is None
    for body in ({}, {"records": 7}, {"records": [[1]]}, {"records": [11]}, {"later": 1}):
        append(state, AT, audit.ERASE, None, body)
    assert problems((remove_body, 3), (remove_body, 11)) == (f"record 3: {missing}", f"record 11: {missing}")
    for forged in ('{"records": [3]}', "no json"):
        assert len(problems(("UPDATE record SET kind = 'erase', body = ? WHERE seq = 4", forged))) >= 3


def test_unreadable_body_error_names_audit_verify(state):
    begin_chain(state)
    for body, words in (("'no json'", "record 2 .*audit verify"), ("CAST(x'ff' AS TEXT)", "")):
        if "CAST" in body and not isinstance(state.ledger, Database):
            continue  # The server rejects such text.
        with state.ledger.transaction() as connection:
            connection.execute(f"UPDATE record SET body = {body} WHERE seq = 2")
        with pytest.raises(ManagedMemoryUnavailable, match=f".*{words}"):
            read_records(state)


@sqlite_only  # For a fleet: units/fleet/test_isolation.py.
def test_another_key_invalidates_every_record(state):
    begin_chain(state)
    state.close()
    (state.directory / "audit.key").write_bytes(bytes(32))
    with State(state.directory) as other:
        assert len(verify(other).problems) == 11


def test_head_reads_back_and_a_missing_head_is_noticed(state):
    assert verify(state) == audit.VerificationResult(0, (), Head(0, bytes(32)))
    for _ in range(2):
        append(state, AT, "kind", None, {})
    assert verify(state, expected_head=audit.read_head(state)).problems == ()
    (problem,) = verify(
        state, expected_head=Head(1, bytes(32))
    ).problems  # Also of a record that is not the last.
    assert "removed or replaced" in problem
    for head in (Head(0, bytes(32)), Head(10**18 - 1, bytes(range(32)))):
        assert Head.parse(f" {head}\n") == head
    for text in ("", "5", "5:", "5:00", "-1:" + "0" * 64, "5:" + "g" * 64, "٣:" + "0" * 64):
        catch_error(ConfigInvalid, Head.parse, text, match="invalid head")


# -- The outbox: an event exists if and only if its change was committed; numbers are never reused.


def add_events(state, count=1):
    for _ in range(count):
        tasks.append_event(state, OutboxEvent("task", AT, "task-1", {"status": "queued"}))


def read_numbers(state):
    return [event.number for event in read_events(state.ledger, 0, 100_000)]


def test_edited_event_row_makes_the_ledger_unavailable(state):
    add_events(state)
    with state.ledger.transaction() as connection:
        connection.execute("UPDATE event SET data = '{'")
    catch_error(ManagedMemoryUnavailable, read_numbers, state, match="was changed after it was written")


def test_commit_event_is_written_once_with_its_changed_roots(store_bench):
    def list_events():
        return [
            event
            for event in read_events(store_bench.state.ledger, 0, 1_000)
            if event.type == "memory_changed"
        ]

    full = Mock(side_effect=ManagedMemoryUnavailable("ledger.db", "the disk is full"))
    changes, task = (
        (propose_new("user/x.md"), propose_new("project/y.md")),
        make_run("task-1", kind="remember"),
    )
    with patch("muniment.store.ledger.audit.append", full):  # After the event, in one transaction.
        catch_error(ManagedMemoryUnavailable, store_bench.commit, *changes, run=task)
    assert list_events() == []
    for _ in range(2):
        store_bench.commit(*changes, run=task)
    (event,) = list_events()
    keys = {scope: get_root_key(store_bench.state, root) for scope, root in store_bench.roots.items()}
    assert (event.number, event.task, event.roots) == (1, "task-1", tuple(sorted(keys.values())))
    assert (event.workspace, event.token, event.client) == (None, None, None)
    assert event.data == {"source": "workspace_memory_remember"}
    assert store_bench.state.ledger.rows("SELECT done FROM change_set") == [(event.at,)]
    store_bench.commit(propose_new("user/z.md"), run=make_run("task-2"))
    assert [event.roots for event in list_events()[1:]] == [(keys["user"],)]


def test_numbers_continue_after_deleting_all_events_and_a_scrub(state, open_state):
    add_events(state, 3)
    epoch, *_ = read_range(state.ledger)
    with state.ledger.transaction() as connection:
        connection.execute("DELETE FROM event")
    assert read_range(state.ledger) == (epoch, 3, 3)
    scrub(state)
    state.close()
    with open_state(state.directory) as reopened:
        add_events(reopened)
        assert (read_range(reopened.ledger), read_numbers(reopened)) == ((epoch, 3, 4), [4])


@sqlite_only
@pytest.mark.parametrize("how", ["as documented", "as a whole, over existing files"])
def test_restored_state_starts_a_new_series(state, tmp_path, how):
    """Its numbers are used again, so a reader of the old series must notice it.

    Also if the copy keeps times and overwrites existing files, so that the inodes are equal.
    """
    add_events(state, 3)
    epoch, *_ = read_range(state.ledger)
    directory, backup = state.directory, tmp_path / "backup"
    backup.mkdir()
    if how == "as documented":  # `sqlite3 ledger.db .backup`, while the state is open
        with (
            closing(sqlite3.connect(backup / "ledger.db")) as made,
            state.ledger.open_outside_transaction() as connection,
        ):
            connection.backup(made)
    state.close()
    if how != "as documented":
        shutil.copytree(directory, backup, dirs_exist_ok=True)
    with State(directory) as more:
        add_events(more, 2)
        assert read_range(more.ledger)[0] == epoch
    for path in directory.glob("ledger.db*" if how == "as documented" else ".none"):
        path.unlink()
    shutil.copytree(backup, directory, dirs_exist_ok=True)
    directory.chmod(0o700)
    with State(directory) as restored:
        restored_span = read_range(restored.ledger)
        assert (restored_span[1:], read_numbers(restored), restored_span[0] == epoch) == (
            (0, 3),
            [1, 2, 3],
            False,
        )
    with State(directory) as opened:
        assert read_range(opened.ledger) == restored_span


@sqlite_only
def test_unwritten_series_is_new_at_the_next_open(state, monkeypatch):
    """The mark exists already, but the ledger does not contain it."""
    epochs = [read_range(state.ledger)[0]]
    state.close()
    (state.directory / "ledger.db-series").unlink()
    monkeypatch.setattr(series.secrets, "token_hex", lambda _: 1 / 0)
    catch_error(ZeroDivisionError, State, state.directory)
    monkeypatch.undo()
    for _ in range(2):
        with State(state.directory) as opened:
            epochs.append(read_range(opened.ledger)[0])
    assert epochs[0] != epochs[1] == epochs[2]


def test_newest_events_are_kept_and_the_span_has_their_start(state, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_EVENTS", 300)
    epoch, *_ = read_range(state.ledger)
    for more, first, is_committed in ((511, 0, 1), (1, 0, 0), (1, 212, 1), (255, 212, 1), (1, 468, 1)):
        with suppress(ZeroDivisionError), state.ledger.transaction():
            add_events(state, more)
            assert is_committed or read_numbers(state)[-1] == 512
            1 / is_committed  # The rollback deletes nothing.
        remaining = read_numbers(state)
        assert (
            (epoch, remaining[0] - 1, remaining[-1])
            == read_range(state.ledger)
            == (epoch, first, remaining[-1])
        )
        assert remaining == list(range(first + 1, remaining[-1] + 1))


def test_root_with_its_own_history_keeps_it(store_bench, tmp_path):
    """For a moved checkout; `surface/library/test_projects.py` tests a root without history."""
    own, before = (get_root_key(store_bench.state, store_bench.roots[scope]) for scope in ("user", "project"))
    ledger.move_root(store_bench.state, store_bench.roots["project"].trusted_path, store_bench.roots["user"])
    assert [get_root_key(store_bench.state, store_bench.roots[scope]) for scope in ("user", "project")] == [
        own,
        before,
    ]
    ledger.move_root(store_bench.state, tmp_path / "nowhere", store_bench.roots["user"])
    assert get_root_key(store_bench.state, store_bench.roots["user"]) == own
