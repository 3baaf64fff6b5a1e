"""The chain of records: whoever lacks the key cannot edit it unseen, byte by byte."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.store import audit
from muniment.store.audit import Head, append, records, verify
from muniment.store.state import State

AT = "2026-11-22T10:00:00.000Z"
TASKS = ("task-1", None, "task-2", "", "task-1")
COLUMNS = ("at", "kind", "task", "body", "body_mac", "mac")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A state with five records and its head, never changed."""
    directory = tmp_path_factory.mktemp("audit") / "state"
    with State(directory) as state:
        for number, task in enumerate(TASKS):
            append(state, AT, f"kind{number}", task, {"number": number, "path": "user/é.md"})
        head = audit.head(state)
    return directory, head


@pytest.fixture
def copy(written, tmp_path):
    return shutil.copytree(written[0], tmp_path / "state")


def edit(directory, *statements):
    """What somebody does to the file who lacks the key."""
    with closing(sqlite3.connect(directory / "ledger.db", isolation_level=None)) as connection:
        for statement, *values in statements:
            connection.execute(statement, values)


def problems(directory, kept=None):
    with State(directory) as state:
        return verify(state, kept=kept).problems


def test_an_empty_chain_is_whole_and_has_a_head():
    with State(None) as state:
        assert verify(state) == audit.Verified(0, (), Head(0, bytes(32)))
        assert audit.head(state) == Head(0, bytes(32))


@pytest.mark.threat("T-LOG-02", control="chained_records")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("seq", range(1, 6))
def test_every_edited_byte_of_every_column_is_found(written, tmp_path, column, seq):
    copy = shutil.copytree(written[0], tmp_path / "state")
    with closing(sqlite3.connect(copy / "ledger.db")) as connection:
        (value,) = connection.execute(
            f"SELECT CAST({column} AS BLOB) FROM record WHERE seq = ?", (seq,)
        ).fetchone()
    kind = "BLOB" if "mac" in column else "TEXT"
    change = f"UPDATE record SET {column} = CAST(? AS {kind}) WHERE seq = ?"
    with State(copy) as state, closing(sqlite3.connect(copy / "ledger.db", isolation_level=None)) as forger:
        for position in range(len(value or b"")):
            for flip in (0x01, 0x80):
                forged = bytearray(value)
                forged[position] ^= flip
                forger.execute(change, (bytes(forged), seq))
                assert verify(state).problems, (position, flip)
        for other in {b"", None if value is not None else b"task-1", (value or b"") + b" "} - {value}:
            if other is None and column not in {"task", "body"}:
                continue  # The table itself refuses it.
            forger.execute(change, (other, seq))
            assert verify(state).problems, other
        forger.execute(change, (value, seq))
        assert verify(state).problems == ()


@pytest.mark.parametrize("seq", range(1, 6))
def test_a_removed_record_is_found(copy, seq):
    edit(copy, ("DELETE FROM record WHERE seq = ?", seq))
    (problem,) = problems(copy)
    assert f"record {seq}" in problem or "record 4, but" in problem


def test_a_copied_record_is_found_in_the_middle_and_at_the_end(copy):
    again = "INSERT INTO record SELECT {}, at, kind, task, body, body_mac, mac FROM record WHERE seq = 3"
    edit(copy, (again.format(6),))
    (problem, *_) = problems(copy)
    assert "record 6" in problem
    edit(copy, ("UPDATE head SET seq = 6",))
    assert problems(copy)
    moved = [("UPDATE record SET seq = ? WHERE seq = ?", to + 1, to) for to in (6, 5, 4)]
    edit(copy, *moved, (again.format(4),))
    assert problems(copy)


@pytest.mark.threat("T-LOG-02", control="chained_records")
@pytest.mark.parametrize("left", range(5))
def test_a_cut_tail_is_found_also_when_the_head_row_says_otherwise(copy, left):
    edit(copy, ("DELETE FROM record WHERE seq > ?", left))
    assert "removed or added" in problems(copy)[0]
    edit(copy, ("UPDATE head SET seq = ?", left))
    assert "removed or added" in problems(copy)[0]
    if left:
        edit(copy, ("UPDATE head SET mac = (SELECT mac FROM record ORDER BY seq DESC LIMIT 1)",))
        assert "removed or added" in problems(copy)[0]
        edit(copy, ("DELETE FROM head",))
        assert "not marked" in problems(copy)[0]


def test_a_record_that_is_appended_behind_a_cut_tail_does_not_hide_the_cut(copy):
    edit(copy, ("DELETE FROM record WHERE seq > 3",))
    with State(copy) as state:
        append(state, AT, "later", None, {})
        assert verify(state).problems


def test_an_erased_body_needs_an_erasure_that_names_it(copy):
    edit(copy, ("UPDATE record SET body = NULL WHERE seq = 2",))
    assert problems(copy) == ("record 2: its body is gone, and no later erasure says so",)
    with State(copy) as state:
        append(state, AT, audit.ERASE, None, {"records": [2]})
        assert verify(state).problems == ()
        assert records(state)[1].body is None
        with state.ledger.transaction() as connection:
            connection.execute("UPDATE record SET body = NULL WHERE seq = 3")
        assert verify(state).problems == ("record 3: its body is gone, and no later erasure says so",)


@pytest.mark.parametrize("body", [{}, {"records": 7}, {"records": [[1]]}, {"records": [7]}])
def test_an_erasure_that_names_nothing_or_only_later_records_excuses_none(copy, body):
    with State(copy) as state:
        append(state, AT, audit.ERASE, None, body)
        append(state, AT, "later", None, {})
    edit(copy, ("UPDATE record SET body = NULL WHERE seq IN (2, 7)",))
    assert len(problems(copy)) == 2


def test_a_forged_erasure_excuses_nothing(copy):
    edit(
        copy,
        ("UPDATE record SET body = NULL WHERE seq = 2",),
        ("UPDATE record SET kind = 'erase', body = ? WHERE seq = 4", '{"records": [2]}'),
    )
    assert problems(copy)
    edit(copy, ("UPDATE record SET body = 'no json' WHERE seq = 4",))
    assert len(problems(copy)) >= 2


def test_a_ledger_put_back_to_an_earlier_copy_is_found_only_with_a_head_that_was_kept(written, copy):
    with State(copy) as state:
        append(state, AT, "later", None, {})
        kept = audit.head(state)
        assert verify(state, kept=kept).problems == ()
    earlier, earlier_head = written
    assert problems(earlier) == ()
    assert "cut or replaced" in problems(earlier, kept)[0]
    assert problems(copy, earlier_head) == ()
    assert "cut or replaced" in problems(copy, Head(3, bytes(32)))[0]


def test_another_key_makes_every_record_false(copy):
    (copy / "audit.key").write_bytes(bytes(32))
    assert len(problems(copy)) == 11


def test_records_that_cannot_be_read_say_to_verify(copy):
    edit(copy, ("UPDATE record SET body = 'no json' WHERE seq = 2",))
    with State(copy) as state, pytest.raises(ManagedMemoryUnavailable, match=r"record 2 .*audit verify"):
        records(state)
    edit(copy, ("UPDATE record SET body = CAST(x'ff' AS TEXT) WHERE seq = 2",))
    with State(copy) as state, pytest.raises(ManagedMemoryUnavailable):
        records(state)


@given(st.integers(0, 10**18 - 1), st.binary(min_size=32, max_size=32))
def test_a_head_reads_back_as_it_was_written(seq, mac):
    assert Head.parse(f" {Head(seq, mac)}\n") == Head(seq, mac)


@pytest.mark.parametrize("text", ["", "5", "5:", "5:00", "-1:" + "0" * 64, "5:" + "g" * 64, "٣:" + "0" * 64])
def test_what_is_no_head_is_refused(text):
    with pytest.raises(ConfigInvalid, match="no head"):
        Head.parse(text)
