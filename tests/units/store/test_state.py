"""The state directory: who may open it, in which version, and the error if it cannot be used."""

from __future__ import annotations

import errno
import math
import os
import resource
import sqlite3
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from kit.catching import catch_error
from kit.interleave import act_at_call
from kit.operations.contexts import make_raising_step
from kit.store.processes import assert_dies, die, run_program
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable, StateTooNew
from muniment.kernel.cancel import Deadline
from muniment.store import database, state
from muniment.store.audit import append, read_records, verify
from muniment.store.database import Database, load_migrations
from muniment.store.state import CATALOG_VERSION, LEDGER_VERSION, State, open_catalog, open_ledger, write_file

AT = "2026-11-22T10:00:00.000Z"

NEWEST = LEDGER_VERSION

LATER = "CREATE TABLE later (word TEXT NOT NULL) STRICT;\nINSERT INTO later VALUES ('x');\n"

NEXT = (LATER,)

STATE = {"ledger.db", "ledger.db-series", "catalog.db", "audit.key"}

"""The files of a closed state."""


@pytest.fixture
def directory(tmp_path):
    """A closed state directory with one record and one row of the catalog."""
    with State(tmp_path / "state") as opened:
        append(opened, AT, "test", "task-1", {"word": "x"})
        with opened.catalog.transaction() as connection:
            connection.execute("INSERT INTO written (root, rel, digest) VALUES ('a', 'b', 'c')")
    return tmp_path / "state"


expect_unavailable = partial(catch_error, ManagedMemoryUnavailable)


def photograph(directory):
    files = [(path, path.stat()) for path in directory.iterdir()]
    return {path.name: (status.st_mtime_ns, status.st_mode, path.read_bytes()) for path, status in files}


def read_mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def query(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def read_version(path):
    return query(path, "PRAGMA user_version")[0][0]


def list_tables(path):
    return {name for (name,) in query(path, "SELECT name FROM sqlite_schema")}


def expect_rejection(directory, words, error=ManagedMemoryUnavailable):
    """Return the reason of the error for a state that is left unchanged."""
    before = photograph(directory)
    error = catch_error(error, State, directory, match=words)
    assert photograph(directory) == before
    return getattr(error, "reason", None)


def is_complete(directory, records=1):
    with State(directory) as opened:
        found = verify(opened)
        return (found.records, found.problems) == (records, ())


def list_written_roots(opened):
    """Return the roots that have a row in the catalog."""
    return [root for (root,) in opened.catalog.rows("SELECT root FROM written")]


def test_state_files_are_private_and_temporary_ones_removed(tmp_path):
    before, directory = os.umask(0), tmp_path / "state"
    directory.mkdir(0o700)
    (directory / "audit.key.unfinished").write_bytes(b"half")  # The process that created it has died.
    try:
        with State(directory) as opened:
            append(opened, AT, "test", None, {})
            opened.catalog.rows("PRAGMA user_version = 1")
            modes = {path.name: read_mode(path) for path in directory.iterdir()}
        with State(None) as temporary:
            assert read_mode(temporary.directory) == read_mode(directory) == 0o700
    finally:
        os.umask(before)
    assert not temporary.directory.exists()
    logs = {f"{name}{suffix}" for name in ("ledger.db", "catalog.db") for suffix in ("-wal", "-shm")}
    assert modes == dict.fromkeys(STATE | logs, 0o600)


def test_state_is_the_same_at_the_next_opening(directory):
    with State(directory) as opened, State(None) as other:
        assert is_complete(directory)
        keyed = opened.compute_keyed_digest("a fact")
        assert other.compute_keyed_digest("a fact") != keyed
        assert opened.mac(b"ab", b"c") != opened.mac(b"a", b"bc")
    expect_unavailable(opened.ledger.rows, "SELECT 1", match="closed")
    with State(directory) as opened:
        assert opened.compute_keyed_digest("a fact") == keyed


def test_hanging_process_is_waited_for_only_so_long(directory, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(state, "BUSY_SECONDS", 0.05)
    with state._lock_private_directory(directory):
        expect_unavailable(State, directory, match="another process has locked it for")
    with State(directory) as one, State(directory) as two:
        with one.ledger.transaction():
            expect_unavailable(append, two, AT, "test", None, {}, match="another process has locked it for")
            assert len(two.ledger.rows("SELECT * FROM record")) == 1  # Readers do not wait.
        reader = two.ledger._connection.execute("SELECT * FROM record UNION ALL SELECT * FROM record")
        reader.fetchone()
        append(one, AT, "test", None, {})
        expect_unavailable(one.ledger.truncate_log, match="locked")
        reader.close()
        one.ledger.truncate_log()
        assert (directory / "ledger.db-wal").stat().st_size == 0


def test_wrong_public_or_missing_key_is_rejected_with_advice(directory):
    path = directory / "audit.key"
    whole = path.read_bytes()
    for content in (b"", whole[:31], whole + b"x"):
        path.write_bytes(content)
        expect_rejection(directory, "instead of 32; restore it")
    path.write_bytes(whole)
    for mode in (0o640, 0o604, 0o700):
        path.chmod(mode)
        subprocess.run(expect_rejection(directory, "chmod 600").partition("run: ")[2], shell=True, check=True)
        assert is_complete(directory)
    path.unlink()
    expect_rejection(directory, r"missing.*backup")


def test_directory_or_database_of_another_user_is_rejected(directory, tmp_path):
    for mode in (0o770, 0o702):
        directory.chmod(mode)
        expect_rejection(directory, "chmod 700")
    directory.chmod(0o700)
    with patch.object(os, "geteuid", lambda: os.getuid() + 1):
        expect_rejection(directory, "belongs to another user")
    real = os.access
    for path in (directory / "ledger.db", directory / "catalog.db"):
        with patch.object(os, "access", lambda at, mode, path=path: Path(at) != path and real(at, mode)):
            expect_rejection(directory, "this user cannot read and write it")
        moved = path.rename(tmp_path / path.name)
        path.symlink_to(moved)
        expect_rejection(directory, "is a symbolic link")
        moved.replace(path)
    (directory / "catalog.db").unlink()
    (directory / "catalog.db").mkdir()
    expect_unavailable(State, directory, match="is a directory")
    expect_unavailable(State, directory / "ledger.db", match="not a directory")


def test_newer_state_is_rejected_and_unchanged(directory):
    for version in (NEWEST + 1, 2**31 - 1):
        query(directory / "ledger.db", f"PRAGMA user_version = {version}")
        expect_rejection(directory, f"has version {version}", StateTooNew)
    key = (directory / "audit.key").rename(directory.parent / "key")
    expect_rejection(directory, None, StateTooNew)
    key.rename(directory / "audit.key")
    query(directory / "ledger.db", f"PRAGMA user_version = {NEWEST}")

    def write_newer():
        Database(directory / "ledger.db", synchronous="FULL").rows("PRAGMA user_version = 9999")
        die()

    assert_dies(write_newer)
    assert (directory / "ledger.db-wal").stat().st_size > 0
    catch_error(StateTooNew, State, directory)
    assert read_version(directory / "ledger.db") == 9999


def test_migration_copies_first_and_keeps_the_content(directory):
    path, copy = directory / "ledger.db", directory / f"ledger.db.version-{NEWEST}"
    assert [*load_migrations("muniment.store")] == [*range(1, NEWEST + 1)]
    unfinished = copy.with_name(f"{copy.name}.unfinished")
    unfinished.write_bytes(b"half")
    for is_repeated in (False, True):
        with closing(open_ledger(path, NEXT)) as migrated:
            assert migrated.rows("SELECT word FROM later") == [("x",)]
            assert len(migrated.rows("SELECT * FROM record")) == 1
        assert not unfinished.exists()
        assert (read_version(path), read_version(copy), read_mode(copy)) == (NEWEST + 1, NEWEST, 0o600)
        assert "later" not in list_tables(copy)
        if not is_repeated:  # An attempt that was killed after its copy makes no second one.
            inode = copy.stat().st_ino
            query(path, "DROP TABLE later")
            query(path, f"PRAGMA user_version = {NEWEST}")
    assert copy.stat().st_ino == inode
    catch_error(StateTooNew, State, directory)


def test_failed_or_killed_migration_leaves_the_old_version(directory):
    twice = "CREATE TABLE later (word TEXT);\nCREATE TABLE later (word TEXT);\n"
    expect_unavailable(open_ledger, directory / "ledger.db", (twice,), match="later already exists")
    assert is_complete(directory)

    def migrate_and_die():
        made = state.split_statements
        state.split_statements = lambda script: (each or die() for each in (*made(script), ""))
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        filler = f"CREATE TABLE filler AS {numbers} SELECT hex(randomblob(50)) FROM n;\n"
        open_ledger(directory / "ledger.db", (filler,))

    assert_dies(migrate_and_die)
    with State(directory) as opened:
        append(opened, AT, "test", None, {})
    assert is_complete(directory, 2)
    assert not {"later", "filler"} & list_tables(directory / "ledger.db")


DAMAGES = {
    "empty": lambda _: b"",
    "noise": lambda _: b"no database at all" * 100,
    "torn": lambda whole: whole[:100] + b"\xff" * 5000,
    "a damaged schema": lambda whole: whole[:4096] + b"\xa5" * (len(whole) - 4096),
    "an undecodable schema": lambda whole: whole.replace(b"CREATE", b"CREAT\xff"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_invalid_catalog_is_rebuilt_and_ledger_is_left_alone(directory, damage):
    path, ledger = directory / "catalog.db", directory / "ledger.db"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with State(directory) as opened:
        assert list_written_roots(opened) == []
    if damage != "empty":
        broken = DAMAGES[damage](ledger.read_bytes())
        ledger.write_bytes(broken)
        error = expect_unavailable(State, directory, match="damaged or not a database; restore it")
        assert ledger.read_bytes() == broken
        with closing(open_catalog(path)) as catalog:
            assert not catalog.is_damaged(error)


def test_catalog_of_another_version_is_emptied(directory):
    with State(directory) as opened:
        assert list_written_roots(opened) == ["a"]
        opened.recreate_catalog()
        assert list_written_roots(opened) == []
        opened.catalog.rows("INSERT INTO written (root, rel, digest) VALUES ('a', 'b', 'c')")
        opened.catalog.rows(f"PRAGMA user_version = {CATALOG_VERSION + 1}")
    with State(directory) as opened:
        assert list_written_roots(opened) == []


def test_unreadable_catalog_is_reported_a_corrupt_one_rebuilt(directory, monkeypatch):
    path = directory / "catalog.db"
    before, error = path.read_bytes(), sqlite3.DatabaseError("database disk image is malformed")
    monkeypatch.setattr(state, "_read_version", database.convert_errors(path)(make_raising_step(error)))
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    expect_unavailable(open_catalog, path, match="the disk reports")
    assert path.read_bytes() == before
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with closing(open_catalog(path)) as catalog:
        assert catalog.rows("SELECT root FROM written") == []


def test_file_system_without_shared_memory_is_rejected(tmp_path, monkeypatch):
    lacking = Mock(**{"execute.return_value.fetchone.return_value": ("delete",)})
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: lacking)
    expect_unavailable(Database, tmp_path / "x.db", match="local disk", synchronous="FULL")


SENTENCES = {
    sqlite3.SQLITE_FULL: "free some space and try again",
    sqlite3.SQLITE_IOERR_SHMSIZE: "free some space and try again",
    sqlite3.SQLITE_IOERR_READ: "the disk reports an error",
    sqlite3.SQLITE_READONLY_DIRECTORY: "read-only",
    sqlite3.SQLITE_CANTOPEN: "check that this user can write to its directory",
    sqlite3.SQLITE_CORRUPT_INDEX: "restore it from a backup",
    sqlite3.SQLITE_MISUSE: "the words of SQLite",
}


def test_every_error_has_advice(tmp_path):
    for code, words in SENTENCES.items():
        error = sqlite3.OperationalError("the words of SQLite")
        error.sqlite_errorcode = code
        error_raised = expect_unavailable(
            database.convert_errors(tmp_path)(make_raising_step(error)), match=words
        )
        assert database.is_corrupt(error_raised) == (code == sqlite3.SQLITE_CORRUPT_INDEX)


def test_file_is_written_completely_or_not_and_not_through_links(tmp_path):
    path, target, limits = (
        tmp_path / "file",
        tmp_path / "elsewhere",
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    path.write_bytes(b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        error = catch_error(OSError, write_file, path, b"more than sixteen bytes", replace=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.errno == errno.EFBIG
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"before", [path])
    path.rename(target)
    path.symlink_to(target)
    write_file(path, b"after it all", replace=True)
    assert (target.read_bytes(), path.is_symlink()) == (b"before", False)
    assert path.read_bytes() == b"after it all"


# -- A database that is open here looks open to every other process, even if its files are read here.


COUNT_ROWS = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM " + sys.argv[2]).fetchone()[0])
"""


def count_in_other_process(directory, table="record"):
    """Return the number of rows that another process finds; the last process that closes a ledger deletes its
    log.
    """
    return int(run_program(COUNT_ROWS, directory / "ledger.db", table).stdout)


READERS = {
    "a second state": lambda directory, _: State(directory).close(),
    "a second connection": lambda directory, _: Database(directory / "ledger.db", synchronous="FULL").close(),
    "its bytes": lambda _, state: list(state.read_blocks("ledger.db", 15)),
    "the index of its log": lambda _, state: list(state.read_blocks("ledger.db-shm", 15)),
}


@pytest.mark.parametrize("reader", READERS)
def test_reading_files_loses_nothing_when_another_process_ends(tmp_path, reader):
    tmp_path.chmod(0o700)
    with State(tmp_path) as state:
        append(state, AT, "test", None, {"number": 1})
        READERS[reader](tmp_path, state)
        count_in_other_process(tmp_path)
        append(state, AT, "test", None, {"number": 2})
        assert len(read_records(state)) == count_in_other_process(tmp_path) == 2


def count_descriptors(directory):
    """Return the number of descriptors of this process for files of the directory."""
    links = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return sum(link.startswith(f"{directory}/") for link in links)


def test_replaced_file_is_read_again_and_the_old_one_is_closed(tmp_path):
    directory, counts = tmp_path / "state", set()
    with State(directory) as state:
        for _ in range(3):
            list(state.read_blocks("catalog.db", 15))
            state.recreate_catalog()
            assert list(state.read_blocks("catalog.db", 15)) == [(directory / "catalog.db").read_bytes()]
            counts.add(count_descriptors(directory))
    assert len(counts) == 1


def test_reader_that_closes_during_a_connect_keeps_the_locks(tmp_path):
    directory = tmp_path / "state"
    State(directory).close()
    reader = ExitStack()
    reader.enter_context(database.open_shared(directory / "ledger.db"))
    with act_at_call(Database, "_connect", 1, reader.close, after=True):
        made = Database(directory / "ledger.db", synchronous="FULL")
    with closing(made) as ledger:
        count_in_other_process(directory)
        with ledger.transaction() as connection:
            connection.execute("INSERT INTO root VALUES ('a', x'00')")
        assert count_in_other_process(directory, "root") == 1


def test_failed_connection_leaves_nothing_open(tmp_path):
    path = tmp_path / "none.db"
    path.write_bytes(b"no database, " * 100)
    for _ in range(2):
        with pytest.raises(ManagedMemoryUnavailable), database.open_shared(path):
            Database(path, synchronous="FULL")
    assert count_descriptors(tmp_path) == 0


# -- A query ends at its deadline, and does not end the query of another caller.


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

LONG = ENDLESS.replace("FROM n)", "FROM n LIMIT 50000)")

KEPT = "SELECT word FROM kept ORDER BY word"

WAIT = 20.0

FOREVER = Deadline(math.inf)


@pytest.fixture
def db(tmp_path):
    with closing(Database(tmp_path / "some.db", synchronous="NORMAL")) as db:
        with db.transaction() as connection:
            connection.execute("CREATE TABLE kept (word TEXT)")
            connection.execute("INSERT INTO kept VALUES ('there')")
        yield db


def call_when_started(db, act):
    """Make the queries above call `act` when they start."""
    with db.open_outside_transaction() as connection:
        connection.create_function("begun", 0, lambda: (act(), 1)[1])


def start_query(db, query, patience=None):
    """Start a query on its own thread and return its future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(db.rows, query, deadline=patience)
    pool.shutdown(wait=False)
    return future


def is_usable(db):
    with db.transaction() as connection:
        connection.execute("INSERT INTO kept VALUES ('and more')")
    call_when_started(db, int)
    assert db.rows(KEPT) == [("and more",), ("there",)]
    return db.rows(LONG) == [(50_000,)]


@pytest.mark.parametrize("patience", [None, FOREVER])
def test_cancelled_endless_query_ends_and_the_next_is_answered(db, patience):
    begun = threading.Event()
    call_when_started(db, begun.set)
    with Cancel() as cancel:
        first = start_query(db, ENDLESS, Deadline(math.inf, cancel))
        assert begun.wait(WAIT)
        second = start_query(db, LONG, patience)
        assert not first.done()
        cancel.set()
        assert isinstance(first.exception(WAIT), Cancelled)
        assert second.result(WAIT) == [(50_000,)]
    assert is_usable(db)


def test_cancelled_query_does_not_roll_back_its_transaction(db):
    with Cancel() as cancel, db.transaction() as connection:
        call_when_started(db, cancel.set)
        connection.execute("INSERT INTO kept VALUES ('written before')")
        catch_error(Cancelled, db.rows, ENDLESS, deadline=Deadline(math.inf, cancel))
        connection.execute("INSERT INTO kept VALUES ('written behind')")
    assert len(db.rows(KEPT)) == 3


def test_query_of_another_thread_survives_a_waiting_one(db):
    """`sqlite3_interrupt` would end it, because it runs on the connection."""
    begun, go = threading.Event(), threading.Event()
    call_when_started(db, lambda: (begun.set(), go.wait(WAIT)))
    with Cancel() as cancel:
        other = start_query(db, LONG)
        assert begun.wait(WAIT)
        waiting = start_query(db, KEPT, Deadline(math.inf, cancel))
        catch_error(DeadlineExceeded, db.rows, KEPT, deadline=Deadline(time.monotonic() + 0.01))
        cancel.set()
        assert isinstance(waiting.exception(WAIT), Cancelled)
        assert not other.done()
        go.set()
        assert other.result(WAIT) == [(50_000,)]
    assert is_usable(db)


def test_interrupt_or_failure_in_a_query_is_raised_as_such(db):
    call_when_started(db, int)
    pressed = Mock(**{"check.side_effect": [None, None, KeyboardInterrupt]})
    catch_error(KeyboardInterrupt, db.rows, ENDLESS, deadline=pressed)
    expect_unavailable(db.rows, "SELECT word FROM nowhere", deadline=FOREVER)
    assert is_usable(db)
