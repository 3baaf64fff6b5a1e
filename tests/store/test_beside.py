"""A database that is open here looks open to every other process, whatever else here reads its files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from muniment.store import beside
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
    "print(connection.execute('SELECT count(*) FROM record').fetchone()[0])"
)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state"


def another_process_comes_and_goes(directory):
    """As every command does: the last one that closes a ledger deletes its write-ahead log."""
    subprocess.run([sys.executable, "-c", COME_AND_GO, directory / "ledger.db"], check=True, timeout=30)


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
        told = subprocess.run(
            [sys.executable, "-c", COUNT, directory / "ledger.db"],
            check=True,
            timeout=30,
            capture_output=True,
            text=True,
        )
        assert told.stdout.strip() == "2"


def test_what_was_read_is_closed_with_the_last_connection(directory):
    first, second = State(directory), State(directory)
    with beside.reading(directory / "ledger.db") as file:
        assert file.read(6) == b"SQLite"
    first.close()
    assert not file.closed
    second.close()
    second.close()
    assert file.closed


def test_where_no_database_is_open_a_file_is_closed_at_once(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"text")
    with beside.reading(path) as file:
        assert file.read() == b"text"
    assert file.closed
