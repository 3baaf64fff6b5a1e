"""The state directory: who may open it, in what version, and what is told when it cannot be used."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kit.where import TESTS
from muniment.errors import ManagedMemoryUnavailable, StateTooNew
from muniment.store import database, state
from muniment.store.audit import append, verify
from muniment.store.database import Database
from muniment.store.state import LEDGER_MIGRATIONS, State, open_catalog, open_ledger

AT = "2026-11-22T10:00:00.000Z"
ROW = "INSERT INTO written (root, rel, digest) VALUES ('a', 'b', 'c')"
NEWEST = len(LEDGER_MIGRATIONS)
NEXT = (
    *LEDGER_MIGRATIONS,
    "CREATE TABLE later (word TEXT NOT NULL) STRICT;\nINSERT INTO later VALUES ('x');\n",
)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state"


def photograph(directory):
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes())
        for path in directory.iterdir()
    }


def version_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def tables_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}


def in_process(script, *arguments, wrapper=(), **options):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [*wrapper, sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


STATE = {"ledger.db", "ledger.db-series", "catalog.db", "audit.key"}
"""Its files while it is closed."""


# Opening.


def test_all_that_it_keeps_is_private_whatever_the_umask(directory):
    before = os.umask(0)
    try:
        with State(directory) as opened:
            append(opened, AT, "test", None, {})
            with opened.catalog.transaction() as connection:
                connection.execute(ROW)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) == {
        f"{name}{suffix}" for name in ("ledger.db", "catalog.db") for suffix in ("", "-wal", "-shm")
    } | {"audit.key", "ledger.db-series"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_without_a_directory_it_is_kept_in_a_temporary_one_that_goes():
    with State(None) as opened:
        assert stat.S_IMODE(opened.directory.stat().st_mode) == 0o700
        append(opened, AT, "test", None, {})
    assert not opened.directory.exists()


def test_what_was_written_is_there_in_the_next_process_with_the_same_key(directory):
    with State(directory) as opened:
        append(opened, AT, "test", "task-1", {"word": "x"})
        keyed = opened.keyed("a fact")
    with State(directory) as opened:
        assert verify(opened).problems == ()
        assert verify(opened).records == 1
        assert opened.keyed("a fact") == keyed
    with State(None) as other:
        assert other.keyed("a fact") != keyed


def test_the_parts_of_a_keyed_digest_do_not_run_together():
    with State(None) as opened:
        assert opened.mac(b"ab", b"c") != opened.mac(b"a", b"bc")


def test_closing_twice_is_harmless_and_use_afterwards_is_told(directory):
    opened = State(directory)
    opened.close()
    opened.close()
    with pytest.raises(ManagedMemoryUnavailable, match="closed"):
        opened.ledger.rows("SELECT 1")


OPENER = """
import sys
from pathlib import Path
from muniment.store.audit import append
from muniment.store.state import State
sys.stdin.readline()
for number in range(5):
    with State(Path(sys.argv[1])) as opened:
        append(opened, "2026", "test", sys.argv[2], {"number": number})
        opened.catalog.rows("SELECT * FROM entry")
"""


def test_processes_that_open_an_empty_directory_at_once_share_one_key_and_one_chain(directory):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, directory, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    for opener in openers:
        opener.stdin.write(b"go\n")
        opener.stdin.flush()
    for opener in openers:
        _, errors = opener.communicate()
        assert opener.returncode == 0, errors.decode()
    with State(directory) as opened:
        assert verify(opened).problems == ()
        assert verify(opened).records == 20
    assert {path.name for path in directory.iterdir()} == STATE


def test_a_process_that_hangs_while_it_opens_is_waited_for_only_so_long(directory, monkeypatch):
    State(directory).close()
    monkeypatch.setattr(state, "BUSY_SECONDS", 0.05)
    with (
        state._alone(directory),
        pytest.raises(ManagedMemoryUnavailable, match="another process has kept it locked"),
    ):
        State(directory)


def test_a_writer_of_another_process_is_waited_for_only_so_long(directory, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with State(directory) as one, State(directory) as two, one.ledger.transaction():
        with pytest.raises(ManagedMemoryUnavailable, match="another process has kept it busy"):
            append(two, AT, "test", None, {})
        assert two.ledger.rows("SELECT * FROM record") == []  # Readers do not wait.


# The key.


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_key_of_another_size_is_refused(directory, content):
    State(directory).close()
    (directory / "audit.key").write_bytes(content)
    with pytest.raises(ManagedMemoryUnavailable, match="instead of 32; bring it back"):
        State(directory)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700])
def test_a_key_that_others_may_read_is_refused_with_the_command_that_helps(directory, mode):
    State(directory).close()
    (directory / "audit.key").chmod(mode)
    with pytest.raises(ManagedMemoryUnavailable, match="chmod 600") as raised:
        State(directory)
    subprocess.run(raised.value.reason.partition("run: ")[2], shell=True, check=True)
    State(directory).close()


def test_no_new_key_is_made_beside_a_ledger_that_was_signed_with_another(directory):
    State(directory).close()
    (directory / "audit.key").unlink()
    before = photograph(directory)
    with pytest.raises(ManagedMemoryUnavailable, match=r"missing.*backup"):
        State(directory)
    assert photograph(directory) == before


def test_a_key_that_was_being_made_when_the_process_died_is_made_again(directory):
    directory.mkdir(mode=0o700)
    (directory / "audit.key.unfinished").write_bytes(b"half")
    State(directory).close()
    assert {path.name for path in directory.iterdir()} == STATE


# The directory.


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_directory_that_others_may_write_is_refused(directory, mode):
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ManagedMemoryUnavailable, match="chmod 700"):
        State(directory)
    assert list(directory.iterdir()) == []


def test_a_directory_of_somebody_else_is_refused(directory, monkeypatch):
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ManagedMemoryUnavailable, match="belongs to another user"):
        State(directory)


@pytest.mark.parametrize("name", ["ledger.db", "catalog.db"])
def test_a_database_that_this_user_may_not_use_is_refused(directory, monkeypatch, name):
    State(directory).close()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != name and may(path, mode))
    with pytest.raises(ManagedMemoryUnavailable, match="this user may not read and write it"):
        State(directory)


@pytest.mark.parametrize("name", ["ledger.db", "catalog.db"])
def test_a_database_that_is_a_link_is_not_followed(directory, tmp_path, name):
    State(directory).close()
    (directory / name).rename(tmp_path / name)
    (directory / name).symlink_to(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(ManagedMemoryUnavailable, match="is a symbolic link"):
        State(directory)
    assert (tmp_path / name).read_bytes() == before


def test_a_file_where_the_directory_should_be_and_a_directory_where_a_file_should_be(tmp_path, directory):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ManagedMemoryUnavailable, match="not a directory"):
        State(tmp_path / "file")
    (directory / "catalog.db").mkdir(parents=True, mode=0o700)
    directory.chmod(0o700)
    with pytest.raises(ManagedMemoryUnavailable, match="is a directory"):
        State(directory)


# Versions.


@pytest.mark.parametrize("version", [len(LEDGER_MIGRATIONS) + 1, 2**31 - 1])
def test_a_newer_state_is_refused_and_nothing_of_it_touched(directory, version):
    State(directory).close()
    with closing(sqlite3.connect(directory / "ledger.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = photograph(directory)
    with pytest.raises(StateTooNew, match=f"has version {version}"):
        State(directory)
    assert photograph(directory) == before
    (directory / "audit.key").unlink()
    with pytest.raises(StateTooNew):
        State(directory)
    assert not (directory / "audit.key").exists()


NEWER = """
import os, sys
from pathlib import Path
from muniment.store.state import Database
Database(Path(sys.argv[1]), synchronous="FULL").rows("PRAGMA user_version = 9")
os._exit(0)
"""


def test_a_newer_version_that_stands_in_the_log_alone_is_refused_too(directory):
    State(directory).close()
    assert in_process(NEWER, directory / "ledger.db").returncode == 0
    assert (directory / "ledger.db-wal").stat().st_size > 0
    with pytest.raises(StateTooNew):
        State(directory)
    assert version_of(directory / "ledger.db") == 9


def test_a_migration_copies_first_and_keeps_what_is_there(directory):
    path = directory / "ledger.db"
    with State(directory) as opened:
        append(opened, AT, "test", None, {})
    with closing(open_ledger(path, NEXT)) as migrated:
        assert migrated.rows("SELECT word FROM later") == [("x",)]
        assert len(migrated.rows("SELECT * FROM record")) == 1
    assert version_of(path) == NEWEST + 1
    copy = directory / f"ledger.db.version-{NEWEST}"
    assert (version_of(copy), stat.S_IMODE(copy.stat().st_mode)) == (NEWEST, 0o600)
    assert "later" not in tables_of(copy)
    with pytest.raises(StateTooNew):
        State(directory)
    with closing(open_ledger(path, NEXT)) as again:
        assert again.rows("SELECT word FROM later") == [("x",)]


def test_an_older_state_that_still_has_its_copy_is_migrated_without_another(directory):
    State(directory).close()
    copy = directory / f"ledger.db.version-{NEWEST}"
    copy.write_bytes(b"the copy of an attempt that was killed later")
    open_ledger(directory / "ledger.db", NEXT).close()
    assert copy.read_bytes().startswith(b"the copy")


def test_a_copy_that_was_not_finished_is_made_again(directory):
    State(directory).close()
    (directory / f"ledger.db.version-{NEWEST}.unfinished").write_bytes(b"half")
    open_ledger(directory / "ledger.db", NEXT).close()
    assert version_of(directory / f"ledger.db.version-{NEWEST}") == NEWEST
    assert not (directory / f"ledger.db.version-{NEWEST}.unfinished").exists()


def test_a_migration_that_fails_leaves_the_old_version(directory):
    State(directory).close()
    broken = (*LEDGER_MIGRATIONS, "CREATE TABLE later (word TEXT);\nCREATE TABLE later (word TEXT);\n")
    with pytest.raises(ManagedMemoryUnavailable, match="later already exists"):
        open_ledger(directory / "ledger.db", broken)
    with State(directory) as opened:
        assert verify(opened).problems == ()
    assert "later" not in tables_of(directory / "ledger.db")


KILLED = """
import os, sys
from pathlib import Path
from muniment.store import state
from muniment.store.state import LEDGER_MIGRATIONS
made = state.statements
def statements(script):
    for number, statement in enumerate(made(script)):
        yield statement
        if "later" in statement:
            os.kill(os.getpid(), 9)
state.statements = statements
numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
filler = f"CREATE TABLE filler AS {numbers} SELECT hex(randomblob(50)) FROM n;\\n"
state.open_ledger(Path(sys.argv[1]), (*LEDGER_MIGRATIONS, filler + "CREATE TABLE later (word TEXT);\\n"))
"""


def test_a_migration_that_is_killed_in_the_middle_leaves_the_old_version_usable(directory):
    with State(directory) as opened:
        append(opened, AT, "test", None, {})
    assert in_process(KILLED, directory / "ledger.db").returncode == -9
    with State(directory) as opened:
        assert verify(opened).problems == ()
        append(opened, AT, "test", None, {})
        assert verify(opened).records == 2
    assert not {"later", "filler"} & tables_of(directory / "ledger.db")


# The catalog may be anything.


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, None], ids=["empty", "noise", "torn"])
def test_a_catalog_that_is_none_is_replaced(directory, content):
    with State(directory) as opened, opened.catalog.transaction() as connection:
        connection.execute(ROW)
    path = directory / "catalog.db"
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000 if content is None else content)
    with State(directory) as opened:
        assert opened.catalog.rows("SELECT root FROM written") == []


def test_a_catalog_of_another_version_is_replaced_and_one_of_this_is_kept(directory):
    with State(directory) as opened, opened.catalog.transaction() as connection:
        connection.execute(ROW)
    with State(directory) as opened:
        assert opened.catalog.rows("SELECT root FROM written") == [("a",)]
        opened.catalog.rows("PRAGMA user_version = 7")
    with State(directory) as opened:
        assert opened.catalog.rows("SELECT root FROM written") == []


def test_a_renewed_catalog_is_empty_and_usable(directory):
    with State(directory) as opened:
        with opened.catalog.transaction() as connection:
            connection.execute(ROW)
        opened.renew_catalog()
        assert opened.catalog.rows("SELECT root FROM written") == []


def test_a_ledger_that_is_damaged_is_told_and_left_alone(directory):
    State(directory).close()
    (directory / "ledger.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(ManagedMemoryUnavailable, match="damaged or no database; bring it back"):
        State(directory)
    assert (directory / "ledger.db").read_bytes() == b"no database at all" * 100


def test_a_catalog_that_cannot_be_made_is_told(directory, monkeypatch):
    monkeypatch.setattr(state, "CATALOG_SCHEMA", "CREATE TABLE one (a);\nCREATE TABLE one (a);\n")
    with pytest.raises(ManagedMemoryUnavailable, match="already exists"):
        State(directory)
    monkeypatch.undo()
    State(directory).close()


def test_a_catalog_that_is_out_of_reach_is_told_and_not_replaced(directory, monkeypatch):
    with State(directory) as opened, opened.catalog.transaction() as connection:
        connection.execute(ROW)

    def busy(_):
        raise ManagedMemoryUnavailable("catalog", "busy")

    with monkeypatch.context() as patch:
        patch.setattr(state, "_version", busy)
        with pytest.raises(ManagedMemoryUnavailable, match="busy"):
            state.open_catalog(directory / "catalog.db")
    with State(directory) as opened:
        assert opened.catalog.rows("SELECT root FROM written") == [("a",)]


# One connection.


def fail_after(opened):
    append(opened, AT, "test", None, {})
    assert len(opened.ledger.rows("SELECT * FROM record")) == 1
    raise ZeroDivisionError


def test_transactions_nest_as_one_and_roll_back_as_one(directory):
    with State(directory) as opened:
        with pytest.raises(ZeroDivisionError), opened.ledger.transaction():
            fail_after(opened)
        assert opened.ledger.rows("SELECT * FROM record") == []
        append(opened, AT, "test", None, {})
        assert verify(opened).records == 1


def test_threads_wait_for_each_other(directory):
    with State(directory) as opened:

        def work():
            for _ in range(25):
                append(opened, AT, "test", None, {})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert verify(opened) == verify(opened)
        assert (verify(opened).records, verify(opened).problems) == (100, ())


def test_a_file_system_without_shared_memory_is_refused(tmp_path, monkeypatch):
    class Lacking:
        def execute(self, _):
            return self

        def fetchone(self):
            return ("delete",)

        def close(self):
            pass

    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: Lacking())
    with pytest.raises(ManagedMemoryUnavailable, match="local disk"):
        Database(tmp_path / "x.db", synchronous="FULL")


def test_a_log_that_somebody_reads_from_is_not_drained_and_that_is_told(directory, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with State(directory) as one, State(directory) as two:
        append(one, AT, "test", None, {})
        reader = two.ledger._connection.execute("SELECT * FROM record UNION ALL SELECT * FROM record")
        reader.fetchone()
        append(one, AT, "test", None, {})
        with pytest.raises(ManagedMemoryUnavailable, match="busy"):
            one.ledger.drain()
        reader.close()
        one.ledger.drain()
        assert (directory / "ledger.db-wal").stat().st_size == 0


SENTENCES = [
    (sqlite3.SQLITE_FULL, "make room and try again"),
    (sqlite3.SQLITE_IOERR_SHMSIZE, "make room and try again"),
    (sqlite3.SQLITE_IOERR_READ, "the disk reports an error"),
    (sqlite3.SQLITE_READONLY_DIRECTORY, "read-only"),
    (sqlite3.SQLITE_CANTOPEN, "see that this user may write in its directory"),
    (sqlite3.SQLITE_CORRUPT_INDEX, "bring it back from a backup"),
    (sqlite3.SQLITE_MISUSE, "the words of SQLite"),
]


@pytest.mark.parametrize(("code", "words"), SENTENCES)
def test_every_error_says_what_to_do(tmp_path, code, words):
    error = sqlite3.OperationalError("the words of SQLite")
    error.sqlite_errorcode = code
    with pytest.raises(ManagedMemoryUnavailable, match=words) as raised, database.reporting(tmp_path):
        raise error
    assert database.is_corrupt(raised.value) == (code == sqlite3.SQLITE_CORRUPT_INDEX)


# Full and read-only disks, really.

SMALL = """
import json, subprocess, sys
from pathlib import Path
base = Path(sys.argv[1])
small = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", base]
if subprocess.run(small, capture_output=True).returncode:
    sys.exit(77)
from muniment.errors import ManagedMemoryUnavailable
from muniment.store.audit import append, verify
from muniment.store.state import State
said = set()
def fill(leave):
    (base / "filler").unlink(missing_ok=True)
    try:
        with (base / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"f" * 4096):
                pass
    except OSError:
        pass
    with (base / "filler").open("r+b") as filler:
        filler.truncate(max(0, filler.seek(0, 2) - leave * 4096))
for leave in range(0, 100, 4):
    subprocess.run(["rm", "-rf", base / "state"], check=True)
    fill(leave)
    try:
        State(base / "state").close()
    except ManagedMemoryUnavailable as error:
        said.add(error.reason)
    else:
        break
else:
    sys.exit("it never fitted")
(base / "filler").unlink()
kept = 0
with State(base / "state") as opened:
    append(opened, "2026", "test", None, {})
    kept = 1
    fill(0)
    try:
        while kept < 10_000:
            append(opened, "2026", "test", None, {"filler": "x" * 4000})
            kept += 1
    except ManagedMemoryUnavailable as error:
        said.add(error.reason)
    assert kept < 10_000
    assert (verify(opened).records, verify(opened).problems) == (kept, ())
(base / "filler").unlink()
with State(base / "state") as opened:
    append(opened, "2026", "test", None, {})
    assert (verify(opened).records, verify(opened).problems) == (kept + 1, ())
subprocess.run(["mount", "-o", "remount,ro", base], check=True)
try:
    State(base / "state")
except ManagedMemoryUnavailable as error:
    read_only = error.reason
print(json.dumps([sorted(said), read_only]))
"""


def test_a_disk_that_is_really_full_or_read_only_is_told_and_the_chain_stays_whole(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to mount a small file system with")
    done = in_process(SMALL, tmp_path, wrapper=("unshare", "-Urm"))
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this system lets nobody mount a small file system of their own")
    assert done.returncode == 0, done.stderr
    said, read_only = json.loads(done.stdout)
    assert set(said) <= {
        "the disk is full; make room and try again",
        "cannot be created (No space left on device)",
    }
    assert "the disk is full; make room and try again" in said
    assert "read-only" in read_only
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_that_is_out_of_reach_is_not_taken_for_a_damaged_one(directory, monkeypatch):
    def refuse(_database):
        raise ManagedMemoryUnavailable("catalog.db", "the disk reports an error")

    State(directory).close()
    before = (directory / "catalog.db").read_bytes()
    monkeypatch.setattr(state, "_version", refuse)
    with pytest.raises(ManagedMemoryUnavailable, match="the disk reports"):
        state.open_catalog(directory / "catalog.db")
    assert (directory / "catalog.db").read_bytes() == before


def test_a_catalog_whose_schema_is_damaged_is_begun_anew(directory):
    State(directory).close()
    path = directory / "catalog.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    with State(directory) as opened:
        assert opened.catalog.rows("SELECT count(*) FROM entry") == [(0,)]


def test_a_catalog_whose_version_cannot_be_read_is_begun_anew(directory, monkeypatch):
    def damaged(_database):
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        with database.reporting(directory / "catalog.db"):
            raise error

    State(directory).close()
    with monkeypatch.context() as patched:
        patched.setattr(state, "_version", damaged)
        catalog = state.open_catalog(directory / "catalog.db")
    try:
        assert catalog.rows("SELECT count(*) FROM entry") == [(0,)]
    finally:
        catalog.close()


def test_a_catalog_with_a_schema_that_cannot_even_be_quoted_is_begun_anew(tmp_path):
    path = tmp_path / "catalog.db"
    open_catalog(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE", b"CREAT\xff"))
    with closing(open_catalog(path)) as catalog:
        assert catalog.rows("SELECT count(*) FROM entry") == [(0,)]


def test_a_damaged_ledger_is_told_and_no_reason_to_begin_the_catalog_anew(tmp_path):
    path = tmp_path / "state" / "ledger.db"
    State(path.parent).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE", b"CREAT\xff"))
    with pytest.raises(ManagedMemoryUnavailable, match="damaged") as raised:
        State(path.parent)
    with closing(open_catalog(tmp_path / "catalog.db")) as catalog:
        assert not catalog.is_damaged(raised.value)
