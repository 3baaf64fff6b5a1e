"""A database that is open here looks open to every other process, whatever else here reads its files."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from muniment.errors import ManagedMemoryUnavailable
from muniment.store import database
from muniment.store.audit import append, records
from muniment.store.database import Database
from muniment.store.state import State

AT = "2026-11-22T10:00:00.000Z"
COME_AND_GO = (
    "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
    "connection.execute('SELECT count(*) FROM record').fetchall(); connection.close()"
)

COUNT = (
    "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
    "print(connection.execute('SELECT count(*) FROM ' + sys.argv[2]).fetchone()[0])"
)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state"


def another_process_comes_and_goes(directory):
    """As every command does: the last one that closes a ledger deletes its write-ahead log."""
    subprocess.run([sys.executable, "-c", COME_AND_GO, directory / "ledger.db"], check=True, timeout=30)


def counted(directory, table):
    """The rows that another process finds in a table of the ledger."""
    command = [sys.executable, "-c", COUNT, directory / "ledger.db", table]
    return int(subprocess.run(command, check=True, timeout=30, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda directory, _: State(directory).close(), id="a-second-state"),
        pytest.param(
            lambda directory, _: Database(directory / "ledger.db", synchronous="FULL").close(),
            id="a-second-connection",
        ),
        pytest.param(lambda _, state: list(state.blocks("ledger.db", 15)), id="its-bytes"),
        pytest.param(lambda _, state: list(state.blocks("ledger.db-shm", 15)), id="the-index-of-its-log"),
    ],
)
def test_nothing_is_lost_when_its_files_are_read_here_and_another_process_ends(directory, meanwhile):
    with State(directory) as state:
        append(state, AT, "test", None, {"number": 1})
        meanwhile(directory, state)
        another_process_comes_and_goes(directory)
        append(state, AT, "test", None, {"number": 2})
        assert len(records(state)) == 2
        assert counted(directory, "record") == 2


def descriptors(directory):
    """How many descriptors of files of the directory this process has."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # The one of this very listing.
            found += str(each.readlink()).startswith(f"{directory}/")
    return found


def test_a_file_that_was_replaced_meanwhile_is_read_anew_and_the_old_one_let_go(directory):
    with State(directory) as state:

        def renewed():
            list(state.blocks("catalog.db", 15))
            state.renew_catalog()
            (block,) = state.blocks("catalog.db", 15)
            assert block == (directory / "catalog.db").read_bytes()
            return descriptors(directory)

        first = renewed()
        assert {renewed() for _ in range(5)} == {first}


def test_a_reader_that_ends_while_a_connection_is_made_leaves_it_its_locks(directory, monkeypatch):
    State(directory).close()
    reader = ExitStack()
    reader.enter_context(database.reading(directory / "ledger.db"))
    real = Database._connect

    def connect(self):
        made = real(self)
        reader.close()
        return made

    monkeypatch.setattr(Database, "_connect", connect)
    with closing(Database(directory / "ledger.db", synchronous="FULL")) as ledger:
        another_process_comes_and_goes(directory)
        with ledger.transaction() as connection:
            connection.execute("INSERT INTO root VALUES ('a', x'00')")
        told = counted(directory, "root")
    assert told == 1


def test_a_connection_that_cannot_be_made_keeps_nothing_open(tmp_path):
    path = tmp_path / "none.db"
    path.write_bytes(b"no database, " * 100)
    with database.reading(path):
        pass
    with pytest.raises(ManagedMemoryUnavailable):
        Database(path, synchronous="FULL")
    with database.reading(path):
        pass
    assert descriptors(tmp_path) == 0
