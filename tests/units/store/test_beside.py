"""A database that is open here looks open to every other process, whatever else here reads its files."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kit.store.processes import program
from muniment.errors import ManagedMemoryUnavailable
from muniment.store import database
from muniment.store.audit import append, records
from muniment.store.database import Database
from muniment.store.state import State

AT = "2026-11-22T10:00:00.000Z"


ELSEWHERE = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM " + sys.argv[2]).fetchone()[0])
"""


def elsewhere(directory, table="record"):
    """The rows that another process finds: the last one that closes a ledger deletes its write-ahead log."""
    return int(program(ELSEWHERE, directory / "ledger.db", table).stdout)


READERS = {
    "a second state": lambda directory, _: State(directory).close(),
    "a second connection": lambda directory, _: Database(directory / "ledger.db", synchronous="FULL").close(),
    "its bytes": lambda _, state: list(state.blocks("ledger.db", 15)),
    "the index of its log": lambda _, state: list(state.blocks("ledger.db-shm", 15)),
}


@pytest.mark.parametrize("reader", READERS)
def test_nothing_is_lost_when_its_files_are_read_here_and_another_process_ends(tmp_path, reader):
    directory = tmp_path / "state"
    with State(directory) as state:
        append(state, AT, "test", None, {"number": 1})
        READERS[reader](directory, state)
        elsewhere(directory)
        append(state, AT, "test", None, {"number": 2})
        assert len(records(state)) == elsewhere(directory) == 2


def descriptors(directory):
    """How many descriptors of files of the directory this process has."""
    links = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return sum(link.startswith(f"{directory}/") for link in links)


def test_a_file_that_was_replaced_meanwhile_is_read_anew_and_the_old_one_let_go(tmp_path):
    directory = tmp_path / "state"
    counts = set()
    with State(directory) as state:
        for _ in range(3):
            list(state.blocks("catalog.db", 15))
            state.renew_catalog()
            assert list(state.blocks("catalog.db", 15)) == [(directory / "catalog.db").read_bytes()]
            counts.add(descriptors(directory))
    assert len(counts) == 1


def test_a_reader_that_ends_while_a_connection_is_made_leaves_it_its_locks(tmp_path, monkeypatch):
    directory = tmp_path / "state"
    State(directory).close()
    reader, real = ExitStack(), Database._connect
    reader.enter_context(database.reading(directory / "ledger.db"))
    monkeypatch.setattr(Database, "_connect", lambda self: (real(self), reader.close())[0])
    with closing(Database(directory / "ledger.db", synchronous="FULL")) as ledger:
        elsewhere(directory)
        with ledger.transaction() as connection:
            connection.execute("INSERT INTO root VALUES ('a', x'00')")
        assert elsewhere(directory, "root") == 1


def test_a_connection_that_cannot_be_made_keeps_nothing_open(tmp_path):
    path = tmp_path / "none.db"
    path.write_bytes(b"no database, " * 100)
    for _ in range(2):
        with pytest.raises(ManagedMemoryUnavailable), database.reading(path):
            Database(path, synchronous="FULL")
    assert descriptors(tmp_path) == 0
