"""The chain of records: whoever lacks the key cannot edit it unseen, byte by byte."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from itertools import product

import pytest

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.store import audit
from muniment.store.audit import Head, append, records, verify
from muniment.store.state import State

AT = "2026-11-22T10:00:00.000Z"
TASKS = ("task-1", None, "task-2", "", "task-1")


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


@pytest.mark.threat("T-LOG-02", control="chained_records")
@pytest.mark.parametrize("seq", [1, *(pytest.param(seq, marks=pytest.mark.slow) for seq in (2, 3, 4, 5))])
def test_every_edited_byte_of_every_column_is_found(copy, seq):
    forger = sqlite3.connect(copy / "ledger.db", isolation_level=None)
    with State(copy) as state, closing(forger):
        for column in ("at", "kind", "task", "body", "body_mac", "mac"):
            whole = f"SELECT CAST({column} AS BLOB) FROM record WHERE seq = ?"
            ((value,),) = forger.execute(whole, (seq,)).fetchall()
            kind = "BLOB" if "mac" in column else "TEXT"
            change = f"UPDATE record SET {column} = CAST(? AS {kind}) WHERE seq = ?"
            others = {b"", None if value is not None else b"task-1", (value or b"") + b" "} - {value}
            for at, flip in product(range(len(value or b"")), (0x01, 0x80)):
                others.add(value[:at] + bytes([value[at] ^ flip]) + value[at + 1 :])
            for other in others:
                if other is not None or column in {"task", "body"}:  # The table itself refuses it.
                    forger.execute(change, (other, seq))
                    assert verify(state).problems, (column, other)
            forger.execute(change, (value, seq))
        assert verify(state).problems == ()


@pytest.mark.threat("T-LOG-02", control="chained_records")
def test_a_removed_or_copied_record_and_a_cut_tail_are_found_whatever_the_head_row_says(written, tmp_path):
    def copied(*statements):
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        edit(shutil.copytree(written[0], tmp_path / "state"), *statements)
        return " ".join(problems(tmp_path / "state"))

    again = "INSERT INTO record SELECT {}, at, kind, task, body, body_mac, mac FROM record WHERE seq = 3"
    moved = [("UPDATE record SET seq = ? WHERE seq = ?", to + 1, to) for to in (5, 4)]
    for seq in range(1, 6):
        found = copied(("DELETE FROM record WHERE seq = ?", seq))
        assert f"record {seq}" in found or "record 4, but" in found
    assert "record 6" in copied((again.format(6),))
    assert copied((again.format(6),), ("UPDATE head SET seq = 6",))
    assert copied(*moved, (again.format(4),), ("UPDATE head SET seq = 6",))
    last = "UPDATE head SET mac = (SELECT mac FROM record ORDER BY seq DESC LIMIT 1)"
    for left in range(5):
        cut = [("DELETE FROM record WHERE seq > ?", left), ("UPDATE head SET seq = ?", left), (last,)]
        for told in range(1, 4 if left else 3):
            assert "removed or added" in copied(*cut[:told]), (left, told)
        assert not left or "not marked" in copied(*cut, ("DELETE FROM head",))


def test_an_erased_body_needs_a_later_erasure_that_names_it_and_is_not_forged(copy):
    gone, said = (
        "UPDATE record SET body = NULL WHERE seq = ?",
        "its body is gone, and no later erasure says so",
    )
    edit(copy, (gone, 2))
    assert problems(copy) == (f"record 2: {said}",)
    with State(copy) as state:
        append(state, AT, audit.ERASE, None, {"records": [2]})
        assert verify(state).problems == ()
        assert records(state)[1].body is None
        for body in ({}, {"records": 7}, {"records": [[1]]}, {"records": [11]}, {"later": 1}):
            append(state, AT, audit.ERASE, None, body)
    edit(copy, (gone, 3), (gone, 11))
    assert problems(copy) == (f"record 3: {said}", f"record 11: {said}")
    for forged in ('{"records": [3]}', "no json"):
        edit(copy, ("UPDATE record SET kind = 'erase', body = ? WHERE seq = 4", forged))
        assert len(problems(copy)) >= 3


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


def test_another_key_makes_every_record_false_and_what_cannot_be_read_says_to_verify(copy):
    for body, words in (("'no json'", "record 2 .*audit verify"), ("CAST(x'ff' AS TEXT)", "")):
        edit(copy, (f"UPDATE record SET body = {body} WHERE seq = 2",))
        with State(copy) as state, pytest.raises(ManagedMemoryUnavailable, match=f".*{words}"):
            records(state)
    (copy / "audit.key").write_bytes(bytes(32))
    assert len(problems(copy)) == 11


def test_a_head_reads_back_as_it_was_written_and_nothing_else_is_one():
    with State(None) as state:
        assert verify(state) == audit.Verified(0, (), Head(0, bytes(32)))
    for head in (Head(0, bytes(32)), Head(10**18 - 1, bytes(range(32)))):
        assert Head.parse(f" {head}\n") == head
    for text in ("", "5", "5:", "5:00", "-1:" + "0" * 64, "5:" + "g" * 64, "٣:" + "0" * 64):
        with pytest.raises(ConfigInvalid, match="no head"):
            Head.parse(text)
