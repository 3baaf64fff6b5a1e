"""The state directory: who may open it, in what version, and what is told when it cannot be used."""

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

from kit.meanwhile import nth
from kit.operations.places import raising
from kit.raising import raised
from kit.store.processes import die, killed, program
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable, StateTooNew
from muniment.kernel.cancel import Patience
from muniment.store import database, state
from muniment.store.audit import append, records, verify
from muniment.store.database import Database, migrations
from muniment.store.state import CATALOG_VERSION, LEDGER_VERSION, State, open_catalog, open_ledger, put

AT = "2026-11-22T10:00:00.000Z"

NEWEST = LEDGER_VERSION

LATER = "CREATE TABLE later (word TEXT NOT NULL) STRICT;\nINSERT INTO later VALUES ('x');\n"

NEXT = (LATER,)

STATE = {"ledger.db", "ledger.db-series", "catalog.db", "audit.key"}

"""Its files while it is closed."""


@pytest.fixture
def directory(tmp_path):
    """One that was opened, holds a record and a row of the catalog, and was closed."""
    with State(tmp_path / "state") as opened:
        append(opened, AT, "test", "task-1", {"word": "x"})
        with opened.catalog.transaction() as connection:
            connection.execute("INSERT INTO written (root, rel, digest) VALUES ('a', 'b', 'c')")
    return tmp_path / "state"


unavailable = partial(raised, ManagedMemoryUnavailable)


def photograph(directory):
    files = [(path, path.stat()) for path in directory.iterdir()]
    return {path.name: (status.st_mtime_ns, status.st_mode, path.read_bytes()) for path, status in files}


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def asked(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def version_of(path):
    return asked(path, "PRAGMA user_version")[0][0]


def tables_of(path):
    return {name for (name,) in asked(path, "SELECT name FROM sqlite_schema")}


def refused(directory, words, error=ManagedMemoryUnavailable):
    """The reason that was told of a state that is left as it is."""
    before = photograph(directory)
    error = raised(error, State, directory, match=words)
    assert photograph(directory) == before
    return getattr(error, "reason", None)


def is_whole(directory, records=1):
    with State(directory) as opened:
        found = verify(opened)
        return (found.records, found.problems) == (records, ())


def written(opened):
    """Roots of which the catalog has a row."""
    return [root for (root,) in opened.catalog.rows("SELECT root FROM written")]


def test_all_that_it_keeps_is_private_whatever_the_umask_and_a_temporary_one_goes(tmp_path):
    before, directory = os.umask(0), tmp_path / "state"
    directory.mkdir(0o700)
    (directory / "audit.key.unfinished").write_bytes(b"half")  # The process died that made it.
    try:
        with State(directory) as opened:
            append(opened, AT, "test", None, {})
            opened.catalog.rows("PRAGMA user_version = 1")
            modes = {path.name: mode_of(path) for path in directory.iterdir()}
        with State(None) as temporary:
            assert mode_of(temporary.directory) == mode_of(directory) == 0o700
    finally:
        os.umask(before)
    assert not temporary.directory.exists()
    logs = {f"{name}{suffix}" for name in ("ledger.db", "catalog.db") for suffix in ("-wal", "-shm")}
    assert modes == dict.fromkeys(STATE | logs, 0o600)


def test_what_was_written_is_there_at_the_next_opening_with_the_same_key(directory):
    with State(directory) as opened, State(None) as other:
        assert is_whole(directory)
        keyed = opened.keyed("a fact")
        assert other.keyed("a fact") != keyed
        assert opened.mac(b"ab", b"c") != opened.mac(b"a", b"bc")
    unavailable(opened.ledger.rows, "SELECT 1", match="closed")
    with State(directory) as opened:
        assert opened.keyed("a fact") == keyed


def test_who_hangs_while_it_opens_writes_or_reads_is_waited_for_only_so_long(directory, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(state, "BUSY_SECONDS", 0.05)
    with state._alone(directory):
        unavailable(State, directory, match="another process has locked it for")
    with State(directory) as one, State(directory) as two:
        with one.ledger.transaction():
            unavailable(append, two, AT, "test", None, {}, match="another process has locked it for")
            assert len(two.ledger.rows("SELECT * FROM record")) == 1  # Readers do not wait.
        reader = two.ledger._connection.execute("SELECT * FROM record UNION ALL SELECT * FROM record")
        reader.fetchone()
        append(one, AT, "test", None, {})
        unavailable(one.ledger.drain, match="locked")
        reader.close()
        one.ledger.drain()
        assert (directory / "ledger.db-wal").stat().st_size == 0


def test_a_key_of_another_size_that_others_may_read_or_that_is_missing_is_refused_with_what_helps(directory):
    path = directory / "audit.key"
    whole = path.read_bytes()
    for content in (b"", whole[:31], whole + b"x"):
        path.write_bytes(content)
        refused(directory, "instead of 32; restore it")
    path.write_bytes(whole)
    for mode in (0o640, 0o604, 0o700):
        path.chmod(mode)
        subprocess.run(refused(directory, "chmod 600").partition("run: ")[2], shell=True, check=True)
        assert is_whole(directory)
    path.unlink()
    refused(directory, r"missing.*backup")


def test_a_directory_or_a_database_that_is_not_this_users_alone_is_refused(directory, tmp_path):
    for mode in (0o770, 0o702):
        directory.chmod(mode)
        refused(directory, "chmod 700")
    directory.chmod(0o700)
    with patch.object(os, "geteuid", lambda: os.getuid() + 1):
        refused(directory, "belongs to another user")
    real = os.access
    for path in (directory / "ledger.db", directory / "catalog.db"):
        with patch.object(os, "access", lambda at, mode, path=path: Path(at) != path and real(at, mode)):
            refused(directory, "this user cannot read and write it")
        moved = path.rename(tmp_path / path.name)
        path.symlink_to(moved)
        refused(directory, "is a symbolic link")
        moved.replace(path)
    (directory / "catalog.db").unlink()
    (directory / "catalog.db").mkdir()
    unavailable(State, directory, match="is a directory")
    unavailable(State, directory / "ledger.db", match="not a directory")


def test_a_newer_state_is_refused_and_nothing_of_it_touched_also_where_its_log_alone_tells(directory):
    for version in (NEWEST + 1, 2**31 - 1):
        asked(directory / "ledger.db", f"PRAGMA user_version = {version}")
        refused(directory, f"has version {version}", StateTooNew)
    key = (directory / "audit.key").rename(directory.parent / "key")
    refused(directory, None, StateTooNew)
    key.rename(directory / "audit.key")
    asked(directory / "ledger.db", f"PRAGMA user_version = {NEWEST}")

    def newer():
        Database(directory / "ledger.db", synchronous="FULL").rows("PRAGMA user_version = 9999")
        die()

    killed(newer)
    assert (directory / "ledger.db-wal").stat().st_size > 0
    raised(StateTooNew, State, directory)
    assert version_of(directory / "ledger.db") == 9999


def test_a_migration_copies_first_and_keeps_what_is_there(directory):
    path, copy = directory / "ledger.db", directory / f"ledger.db.version-{NEWEST}"
    assert [*migrations("muniment.store")] == [*range(1, NEWEST + 1)]
    unfinished = copy.with_name(f"{copy.name}.unfinished")
    unfinished.write_bytes(b"half")
    for again in (False, True):
        with closing(open_ledger(path, NEXT)) as migrated:
            assert migrated.rows("SELECT word FROM later") == [("x",)]
            assert len(migrated.rows("SELECT * FROM record")) == 1
        assert not unfinished.exists()
        assert (version_of(path), version_of(copy), mode_of(copy)) == (NEWEST + 1, NEWEST, 0o600)
        assert "later" not in tables_of(copy)
        if not again:  # An attempt that was killed after its copy makes no other one.
            inode = copy.stat().st_ino
            asked(path, "DROP TABLE later")
            asked(path, f"PRAGMA user_version = {NEWEST}")
    assert copy.stat().st_ino == inode
    raised(StateTooNew, State, directory)


def test_a_migration_that_fails_or_is_killed_in_the_middle_leaves_the_old_version_usable(directory):
    twice = "CREATE TABLE later (word TEXT);\nCREATE TABLE later (word TEXT);\n"
    unavailable(open_ledger, directory / "ledger.db", (twice,), match="later already exists")
    assert is_whole(directory)

    def migrating():
        made = state.statements
        state.statements = lambda script: (each or die() for each in (*made(script), ""))
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        filler = f"CREATE TABLE filler AS {numbers} SELECT hex(randomblob(50)) FROM n;\n"
        open_ledger(directory / "ledger.db", (filler,))

    killed(migrating)
    with State(directory) as opened:
        append(opened, AT, "test", None, {})
    assert is_whole(directory, 2)
    assert not {"later", "filler"} & tables_of(directory / "ledger.db")


DAMAGES = {
    "empty": lambda _: b"",
    "noise": lambda _: b"no database at all" * 100,
    "torn": lambda whole: whole[:100] + b"\xff" * 5000,
    "a schema that is damaged": lambda whole: whole[:4096] + b"\xa5" * (len(whole) - 4096),
    "a schema that cannot even be quoted": lambda whole: whole.replace(b"CREATE", b"CREAT\xff"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_catalog_that_is_none_is_begun_anew_and_a_ledger_is_told_and_left_alone(directory, damage):
    path, ledger = directory / "catalog.db", directory / "ledger.db"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with State(directory) as opened:
        assert written(opened) == []
    if damage != "empty":
        broken = DAMAGES[damage](ledger.read_bytes())
        ledger.write_bytes(broken)
        error = unavailable(State, directory, match="damaged or not a database; restore it")
        assert ledger.read_bytes() == broken
        with closing(open_catalog(path)) as catalog:
            assert not catalog.is_damaged(error)


def test_a_catalog_of_another_version_or_one_that_is_renewed_is_empty_and_one_of_this_is_kept(directory):
    with State(directory) as opened:
        assert written(opened) == ["a"]
        opened.renew_catalog()
        assert written(opened) == []
        opened.catalog.rows("INSERT INTO written (root, rel, digest) VALUES ('a', 'b', 'c')")
        opened.catalog.rows(f"PRAGMA user_version = {CATALOG_VERSION + 1}")
    with State(directory) as opened:
        assert written(opened) == []


def test_a_catalog_out_of_reach_is_told_and_one_without_version_begun_anew(directory, monkeypatch):
    path = directory / "catalog.db"
    before, error = path.read_bytes(), sqlite3.DatabaseError("database disk image is malformed")
    monkeypatch.setattr(state, "_version", database.reporting(path)(raising(error)))
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    unavailable(open_catalog, path, match="the disk reports")
    assert path.read_bytes() == before
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with closing(open_catalog(path)) as catalog:
        assert catalog.rows("SELECT root FROM written") == []


def test_a_file_system_without_shared_memory_is_refused(tmp_path, monkeypatch):
    lacking = Mock(**{"execute.return_value.fetchone.return_value": ("delete",)})
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: lacking)
    unavailable(Database, tmp_path / "x.db", match="local disk", synchronous="FULL")


SENTENCES = {
    sqlite3.SQLITE_FULL: "free some space and try again",
    sqlite3.SQLITE_IOERR_SHMSIZE: "free some space and try again",
    sqlite3.SQLITE_IOERR_READ: "the disk reports an error",
    sqlite3.SQLITE_READONLY_DIRECTORY: "read-only",
    sqlite3.SQLITE_CANTOPEN: "check that this user can write to its directory",
    sqlite3.SQLITE_CORRUPT_INDEX: "restore it from a backup",
    sqlite3.SQLITE_MISUSE: "the words of SQLite",
}


def test_every_error_says_what_to_do(tmp_path):
    for code, words in SENTENCES.items():
        error = sqlite3.OperationalError("the words of SQLite")
        error.sqlite_errorcode = code
        told = unavailable(database.reporting(tmp_path)(raising(error)), match=words)
        assert database.is_corrupt(told) == (code == sqlite3.SQLITE_CORRUPT_INDEX)


def test_a_file_is_put_whole_or_not_at_all_and_through_no_link(tmp_path):
    path, elsewhere, limits = (
        tmp_path / "file",
        tmp_path / "elsewhere",
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    path.write_bytes(b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        error = raised(OSError, put, path, b"more than sixteen bytes", over=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.errno == errno.EFBIG
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"before", [path])
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    put(path, b"after it all", over=True)
    assert (elsewhere.read_bytes(), path.is_symlink()) == (b"before", False)
    assert path.read_bytes() == b"after it all"


# -- A database that is open here looks open to every other process, whatever else here reads its files.


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
    tmp_path.chmod(0o700)
    with State(tmp_path) as state:
        append(state, AT, "test", None, {"number": 1})
        READERS[reader](tmp_path, state)
        elsewhere(tmp_path)
        append(state, AT, "test", None, {"number": 2})
        assert len(records(state)) == elsewhere(tmp_path) == 2


def descriptors(directory):
    """How many descriptors of files of the directory this process has."""
    links = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return sum(link.startswith(f"{directory}/") for link in links)


def test_a_file_that_was_replaced_meanwhile_is_read_anew_and_the_old_one_let_go(tmp_path):
    directory, counts = tmp_path / "state", set()
    with State(directory) as state:
        for _ in range(3):
            list(state.blocks("catalog.db", 15))
            state.renew_catalog()
            assert list(state.blocks("catalog.db", 15)) == [(directory / "catalog.db").read_bytes()]
            counts.add(descriptors(directory))
    assert len(counts) == 1


def test_a_reader_that_ends_while_a_connection_is_made_leaves_it_its_locks(tmp_path):
    directory = tmp_path / "state"
    State(directory).close()
    reader = ExitStack()
    reader.enter_context(database.reading(directory / "ledger.db"))
    with nth(Database, "_connect", 1, reader.close, after=True):
        made = Database(directory / "ledger.db", synchronous="FULL")
    with closing(made) as ledger:
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


# -- Whoever asks a database with a patience is let go when it ends, and takes nobody else's query along.


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

LONG = ENDLESS.replace("FROM n)", "FROM n LIMIT 50000)")

KEPT = "SELECT word FROM kept ORDER BY word"

WAIT = 20.0

FOREVER = Patience(math.inf)


@pytest.fixture
def db(tmp_path):
    with closing(Database(tmp_path / "some.db", synchronous="NORMAL")) as db:
        with db.transaction() as connection:
            connection.execute("CREATE TABLE kept (word TEXT)")
            connection.execute("INSERT INTO kept VALUES ('there')")
        yield db


def when_begun(db, act):
    """Have the queries above call `act` as they begin."""
    with db.bare() as connection:
        connection.create_function("begun", 0, lambda: (act(), 1)[1])


def asking(db, query, patience=None):
    """A query on a thread of its own; what ends it: its rows, or the error that it met."""
    pool = ThreadPoolExecutor(1)
    asked = pool.submit(db.rows, query, patience=patience)
    pool.shutdown(wait=False)
    return asked


def is_usable(db):
    with db.transaction() as connection:
        connection.execute("INSERT INTO kept VALUES ('and more')")
    when_begun(db, int)
    assert db.rows(KEPT) == [("and more",), ("there",)]
    return db.rows(LONG) == [(50_000,)]


@pytest.mark.parametrize("patience", [None, FOREVER])
def test_a_query_without_end_ends_once_it_is_cancelled_and_who_waits_for_it_is_answered(db, patience):
    begun = threading.Event()
    when_begun(db, begun.set)
    with Cancel() as cancel:
        first = asking(db, ENDLESS, Patience(math.inf, cancel))
        assert begun.wait(WAIT)
        second = asking(db, LONG, patience)
        assert not first.done()
        cancel.set()
        assert isinstance(first.exception(WAIT), Cancelled)
        assert second.result(WAIT) == [(50_000,)]
    assert is_usable(db)


def test_a_query_that_is_cancelled_within_a_transaction_takes_nothing_of_that_back(db):
    with Cancel() as cancel, db.transaction() as connection:
        when_begun(db, cancel.set)
        connection.execute("INSERT INTO kept VALUES ('written before')")
        raised(Cancelled, db.rows, ENDLESS, patience=Patience(math.inf, cancel))
        connection.execute("INSERT INTO kept VALUES ('written behind')")
    assert len(db.rows(KEPT)) == 3


def test_a_query_of_another_thread_goes_on_when_one_that_waits_for_it_ends(db):
    """What `sqlite3_interrupt` would end, since it is what runs on the connection."""
    begun, go = threading.Event(), threading.Event()
    when_begun(db, lambda: (begun.set(), go.wait(WAIT)))
    with Cancel() as cancel:
        other = asking(db, LONG)
        assert begun.wait(WAIT)
        waiting = asking(db, KEPT, Patience(math.inf, cancel))
        raised(DeadlineExceeded, db.rows, KEPT, patience=Patience(time.monotonic() + 0.01))
        cancel.set()
        assert isinstance(waiting.exception(WAIT), Cancelled)
        assert not other.done()
        go.set()
        assert other.result(WAIT) == [(50_000,)]
    assert is_usable(db)


def test_ctrl_c_or_a_failure_in_a_query_is_told_as_that_though_somebody_waits(db):
    when_begun(db, int)
    pressed = Mock(**{"check.side_effect": [None, None, KeyboardInterrupt]})
    raised(KeyboardInterrupt, db.rows, ENDLESS, patience=pressed)
    unavailable(db.rows, "SELECT word FROM nowhere", patience=FOREVER)
    assert is_usable(db)
