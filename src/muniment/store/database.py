"""One SQLite database of the state directory: a connection that threads share, and errors for people.

On success of `Database`:

- D1 the file is private (0600, and so what SQLite puts beside it) and no link was followed to it.
- D2 one transaction at a time; a second thread waits for the first, another process up to `BUSY_SECONDS`.
- D3 whatever SQLite or the system reports is a `ManagedMemoryUnavailable` that says what to do.

Does not hold: anything on a network file system, where SQLite's locks and shared memory do not work.

Source: sqlite.org/wal.html; sqlite.org/pragma.html, `synchronous`; sqlite.org/rescode.html;
sqlite.org/c3ref/progress_handler.html (it ends one query of a connection that threads share, where
sqlite3_interrupt() would end whichever runs).
"""

from __future__ import annotations

import errno
import sqlite3
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from muniment.errors import ManagedMemoryUnavailable, MunimentError, printable
from muniment.kernel.cancel import Patience
from muniment.kernel.syscalls import os

T = TypeVar("T")

# -- beside ------------------------------------------------------------------------------------------
#
# Reads files of a directory as bytes while this process may have databases in it open.
#
# Locks of a process on a file end when it closes any descriptor of that file, whoever opened it. Without
# its locks a database that is still open here looks closed to other processes, and one of them would delete
# its write-ahead log. So what was opened here is closed only once no connection to the directory is left,
# or no name of the file. Until then whoever reads it again does so by the same descriptor: a file has one
# at most.
#
# Source: fcntl(2), advisory record locking; sqlite.org/howtocorrupt.html, 2.2.

_LOCK: Final = threading.Lock()
_CONNECTIONS: Final[Counter[Path]] = Counter()


@dataclass(slots=True, eq=False)
class _Held:
    """A descriptor, and how many read by it now."""

    fd: int
    readers: int = 0


_HELD: Final[dict[Path, list[_Held]]] = {}


class OwnReading:
    """A file from its start on, at a place of this reader's own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end.

        Raises:
            OSError: they cannot be read.
        """
        data = os.pread(self._fd, size, self._at)
        self._at += len(data)
        return data


def connected(directory: Path) -> None:
    """A database in a directory is open from now on, or about to be opened."""
    with _LOCK:
        _CONNECTIONS[directory.resolve()] += 1


def disconnected(directory: Path) -> None:
    """A database in a directory was closed, or is about to be closed as the last one."""
    key = directory.resolve()
    with _LOCK:
        _CONNECTIONS[key] -= 1
        if _CONNECTIONS[key] == 0:
            del _CONNECTIONS[key]
        _let_go(key)


@contextmanager
def reading(path: Path) -> Iterator[OwnReading]:
    """A file to be read.

    Raises:
        OSError: it cannot be opened.
    """
    key = path.parent.resolve()
    with _LOCK:
        held = _held(key, path)
        held.readers += 1
    try:
        yield OwnReading(held.fd)
    finally:
        with _LOCK:
            held.readers -= 1
            _let_go(key)


def _held(key: Path, path: Path) -> _Held:
    """The descriptor of a file, opened if there is none yet."""
    found = path.stat()
    ours = _HELD.get(key, [])
    for each in ours:
        if os.path.samestat(os.fstat(each.fd), found):
            return each
    new = _Held(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    _HELD[key] = [*ours, new]
    return new


def _let_go(key: Path) -> None:
    """Close what nobody reads any more, as far as no lock of a connection can depend on it."""
    left: list[_Held] = []
    for each in _HELD.pop(key, ()):
        if each.readers or (key in _CONNECTIONS and os.fstat(each.fd).st_nlink):
            left.append(each)
        else:
            os.close(each.fd)
    if left:
        _HELD[key] = left


# -- ledger ------------------------------------------------------------------------------------------
#
# What a ledger is kept in: this machine's SQLite below, or a PostgreSQL that nodes share
# (`fleet/postgres.py`). Statements are written once, in words that both take; parameters are `?`, or `?1`
# where one comes twice.


class Cursor(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """The next row; None: no more."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class Transaction(Protocol):
    """A transaction that is open."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Cursor:
        """Carry out a statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Carry it out for each of some rows."""


class Ledger(Protocol):
    """Tables that transactions change one after the other, and threads share."""

    @property
    def name(self) -> str:
        """What people know it by."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A write transaction: committed when the block ends, rolled back when it raises. They nest as one.

        Raises:
            ManagedMemoryUnavailable: it cannot be written. Nothing of the transaction holds.
        """

    def carry_out(self, work: Callable[[Transaction], T]) -> T:
        """Return what `work` returns, from one `transaction`.

        Where the ledger is a file, an interrupt at any moment leaves no transaction open.
        """
        with self.transaction() as opened:
            return work(opened)

    def rows(
        self, query: str, values: Sequence[Any] = (), *, patience: Patience | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of one query; inside a transaction as that sees them.

        Raises:
            ManagedMemoryUnavailable: it cannot be read.
            Cancelled, DeadlineExceeded: the patience ended.
        """

    def each(self, query: str) -> AbstractContextManager[Iterator[tuple[Any, ...]]]:
        """The rows of a query one after the other, where all do not fit into memory; raises as `rows`."""

    def is_lasting(self) -> bool:
        """Whether a transaction is open, which an error of a statement may have ended."""

    def limit(self, patience: Patience) -> None:  # noqa: ARG002  a server limits its statements itself
        """Have every later statement fail once a patience has ended, where the ledger is a file.

        Cost: as `rows` with a patience, which lifts it.
        """
        return

    @property
    def failures(self) -> int:
        """How often it could not be asked or written, where it is elsewhere."""
        return 0

    def tidy(self) -> bool:
        """Leave nothing of rows that went beside the tables, as far as nobody has to be waited for.

        A server sees to it by itself.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.
        """
        return True

    def scrub(self) -> None:
        """Leave nothing of rows that went in the tables either.

        A server sees to it when it next vacuums; its backups are its operator's.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.

        Cost: where it is a file, that is written anew.
        """
        return

    def version(self) -> int:
        """A number that is another one once somebody else has changed anything, unless the server tells."""
        return 0

    def is_lost(self) -> bool:
        """Whether it is no longer where it was opened."""
        return False

    def close(self) -> None:
        """Give back what it holds; harmless when repeated."""
        return


# -- database ----------------------------------------------------------------------------------------

BUSY_SECONDS: Final = 30.0
"""Seconds that a transaction waits for one of another process; each takes some milliseconds."""

COMPANIONS: Final = ("", "-wal", "-shm", "-journal")
"""What SQLite adds to the name of a database for the files beside it; first the database itself."""

_PAUSE: Final = 0.05
"""Seconds between two looks whether a caller still waits for a lock."""

_STEPS: Final = 2_000
"""Instructions of SQLite's machine between two looks whether a caller still waits for a query: some 20 µs."""

_PRIVATE: Final = 0o600
_PRIMARY: Final = 0xFF
"""The part of an SQLite code that says what kind of error it is."""

_FULL: Final = "the disk is full; make room and try again"
_READ_ONLY: Final = "it cannot be written: the file system is read-only"
_FORBIDDEN: Final = "this user may not read and write it; correct its owner and permissions"
_FAILING: Final = "the disk reports an error while reading or writing"
_DAMAGED: Final = "is damaged or no database; bring it back from a backup"

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; see that this user may write in its directory",
    sqlite3.SQLITE_BUSY: f"another process has kept it busy for {BUSY_SECONDS:.0f} s; try again",
    sqlite3.SQLITE_IOERR: _FAILING,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_INTERRUPT: "the query was interrupted",
}
_SYSTEM: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota is used up; make room and try again",
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EIO: _FAILING,
    errno.ELOOP: "is a symbolic link; put the file itself there",
    errno.EISDIR: "is a directory; move it away",
}


@contextmanager
def held(lock: threading.Lock | threading.RLock, patience: Patience) -> Iterator[None]:
    """Hold a lock of a thread.

    Raises:
        Cancelled, DeadlineExceeded: the patience ended before.
    """
    while not lock.acquire(timeout=_PAUSE):
        patience.check()
    try:
        yield
    finally:
        lock.release()


class Database(Ledger):
    """One connection, for one transaction at a time; threads wait for each other.

    Args:
        path: made empty if it is missing.
        synchronous: SQLite's word for what a commit waits for: `FULL`, the disk; `NORMAL`, nothing.
        cache_kib: KiB of it that are held in memory at most.

    Raises:
        ManagedMemoryUnavailable: it cannot be used, with the reason.
    """

    def __init__(self, path: Path, *, synchronous: str, cache_kib: int = 2_000) -> None:
        self.path = path
        self._synchronous, self._cache_kib = synchronous, cache_kib
        self._lock = threading.RLock()
        self._is_open = False
        connected(path.parent)  # Before it has any locks that could be lost.
        try:
            self._connection = self._connect()
        except BaseException:
            disconnected(path.parent)
            raise
        self._is_connected, self._file = True, _identity(path)

    @property
    def name(self) -> str:
        """Its path."""
        return printable(str(self.path))

    def _connect(self) -> sqlite3.Connection:
        with reporting(self.path):
            make_private(self.path)
            connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                distrust_schema(connection)
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                connection.execute(f"PRAGMA cache_size = -{self._cache_kib}")
                connection.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                connection.close()
                raise
        if mode != "wal":
            connection.close()
            raise unavailable(self.path, "its file system lacks what SQLite needs; keep it on a local disk")
        return connection

    def begin_anew(self, script: str, version: int) -> None:
        """Delete the database and make an empty one, for everybody who holds this object.

        Args:
            script: makes its tables.
            version: to be written into it.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be written; then only `close` can be called.
        """
        with self._lock:
            self._connection.close()
            delete(self.path)
            self._connection = self._connect()
            with self.transaction() as connection:
                for statement in statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed when the block ends, rolled back when it raises. They nest as one.

        Raises:
            ManagedMemoryUnavailable: the disk is full, read-only or broken, the file is no database, or
                another process held it for `BUSY_SECONDS`. Nothing of the transaction holds.
        """
        with self._lock, reporting(self.path):
            if self._is_open:
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._is_open = True
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite rolls some failed transactions back by itself.
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._is_open = False

    def carry_out(self, work: Callable[[Transaction], T]) -> T:
        """See `Ledger`. A generator that an interrupt leaves suspended would keep its transaction open."""
        with self._lock, reporting(self.path):
            if self._is_open:
                return work(self._connection)
            try:
                self._is_open = True
                self._connection.execute("BEGIN IMMEDIATE")
                result = work(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # As in `transaction`.
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._is_open = False
            return result

    def save(self) -> bool:
        """Inside a transaction that is in no other one: commit what it did, and begin the next.

        Returns:
            Whether no other process wrote in between.

        Raises:
            ManagedMemoryUnavailable: as `transaction`; what was committed stays.
        """
        version = "PRAGMA data_version"
        with reporting(self.path):
            before = self._connection.execute(version).fetchall()
            self._connection.execute("COMMIT")
            self._connection.execute("BEGIN IMMEDIATE")
            return before == self._connection.execute(version).fetchall()

    def rows(
        self, query: str, values: Sequence[object] = (), *, patience: Patience | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of one query; inside a transaction as that sees them.

        Args:
            query: SQL.
            values: of its parameters.
            patience: ends the wait for other threads, and the query while it runs, within `_PAUSE` seconds;
                not the wait for another process (D2), which one that only reads hardly ever has. None:
                however long it takes.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.
            Cancelled, DeadlineExceeded: the patience ended; queries of other threads go on.

        Cost: with a patience, a look at it every `_STEPS` instructions.
        """
        if patience is None:
            with self._lock, reporting(self.path):
                return self._connection.execute(query, values).fetchall()
        with held(self._lock, patience):
            return self._watched(query, values, patience)

    def _watched(self, query: str, values: Sequence[object], patience: Patience) -> list[tuple[Any, ...]]:
        patience.check()
        ended: list[BaseException] = []

        def has_ended() -> bool:
            try:
                patience.check()
            except (MunimentError, KeyboardInterrupt) as reason:  # SQLite would swallow it.
                ended.append(reason)
            return bool(ended)

        with reporting(self.path):
            self._connection.set_progress_handler(has_ended, _STEPS)
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.OperationalError:
                if ended:
                    raise ended[0] from None
                raise
            finally:
                self._connection.set_progress_handler(None, 0)

    def limit(self, patience: Patience) -> None:
        """See `Ledger`."""

        def has_ended() -> bool:
            return time.monotonic() >= patience.deadline or (
                patience.cancel is not None and patience.cancel.is_set()
            )

        with self.bare() as connection:
            connection.set_progress_handler(has_ended, _STEPS)

    @contextmanager
    def bare(self) -> Iterator[sqlite3.Connection]:
        """The connection outside any transaction, for what cannot be in one, such as `VACUUM`.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.
        """
        with self._lock, reporting(self.path):
            yield self._connection

    @contextmanager
    def each(self, query: str) -> Iterator[Iterator[tuple[Any, ...]]]:
        """See `Ledger`."""
        with self.bare() as connection:
            yield iter(connection.execute(query))

    def is_lasting(self) -> bool:
        """See `Ledger`: SQLite takes back a whole transaction where the disk is full, for one."""
        return self._connection.in_transaction

    def version(self) -> int:
        """See `Ledger`."""
        return int(self.rows("PRAGMA data_version")[0][0])

    def is_lost(self) -> bool:
        """See `Ledger`: another file, or none, is where its path leads.

        Cost: one `stat`.
        """
        return _identity(self.path) != self._file

    def scrub(self) -> None:
        """See `Ledger`."""
        with self.bare() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("VACUUM")
        self.drain()

    def drain(self) -> None:
        """Move what stands in the write-ahead log into the database and empty the log.

        Raises:
            ManagedMemoryUnavailable: as `transaction`; also where another process reads for `BUSY_SECONDS`.
        """
        ((is_busy, _, _),) = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_busy:
            raise unavailable(self.path, _SQLITE[sqlite3.SQLITE_BUSY])

    def tidy(self) -> bool:
        """As `drain`, but waits for nobody; whether the log is empty now.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.

        Cost: two fsyncs where anything stands in the log.
        """
        with self.bare() as connection:
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
        return not is_busy

    def close(self) -> None:
        """Close the connection; harmless when repeated."""
        with self._lock:
            self._connection.close()
            if self._is_connected:
                self._is_connected = False
                disconnected(self.path.parent)

    def is_damaged(self, error: ManagedMemoryUnavailable) -> bool:
        """Whether an error says that this very database is damaged."""
        return is_corrupt(error) and error.what == self.name


def distrust_schema(connection: sqlite3.Connection) -> None:
    """Have SQLite trust neither the schema nor the pages of a database that may be anybody's.

    Raises:
        sqlite3.Error: it is no database.

    Cost: some microseconds.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to; None: to none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def delete(path: Path) -> None:
    """Delete a database that nobody here has open.

    Raises:
        ManagedMemoryUnavailable: the directory cannot be written.
    """
    with reporting(path):
        for companion in COMPANIONS:
            path.with_name(path.name + companion).unlink(missing_ok=True)


def is_corrupt(error: ManagedMemoryUnavailable) -> bool:
    """Whether a database was found to be damaged, rather than busy, full or out of reach."""
    if isinstance(error.__cause__, UnicodeDecodeError):
        return True
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    return code & _PRIMARY in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@cache
def migrations(package: str) -> Mapping[int, str]:
    """The scripts that make the tables of a ledger: the numbered files of a package, in order."""
    found = (each for each in files(package).joinpath("migrations").iterdir() if each.name[:4].isdigit())
    return dict(sorted((int(each.name[:4]), each.read_text("utf-8")) for each in found))


def statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit the transaction that they belong to."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def make_private(path: Path) -> None:
    """Make sure that a file is there, ours alone, and no link, before anything else opens it.

    SQLite gives the mode of a database to the files beside it. One that is there is not opened: to close it
    would take away the locks that this process has on it by other connections, and another process would
    delete the write-ahead log from under them (sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        OSError: the system refuses.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
    except FileExistsError:
        problem = _problem(path)
        if problem:
            raise OSError(problem, os.strerror(problem), path) from None


def _problem(path: Path) -> int:
    """The error number with which a file cannot be opened to read and write; 0: it can."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return errno.ELOOP
    if stat.S_ISDIR(mode):
        return errno.EISDIR
    if os.access(path, os.R_OK | os.W_OK):
        return 0
    return errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system about `path` into `ManagedMemoryUnavailable` (D3)."""
    try:
        yield
    except sqlite3.Error as error:
        raise unavailable(path, _meaning(error)) from error
    except UnicodeDecodeError as error:  # SQLite quotes the bytes of a damaged schema, and Python cannot.
        raise unavailable(path, _DAMAGED) from error
    except OSError as error:
        raise unavailable(path, _SYSTEM.get(error.errno or 0) or error.strerror or str(error)) from error


def unavailable(what: Path | str, reason: str) -> ManagedMemoryUnavailable:
    """The error that says why a file of the state directory, or a ledger, cannot be used."""
    return ManagedMemoryUnavailable(printable(str(what)), reason)


def _meaning(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return _FULL  # The shared memory beside the database could not grow.
    return _SQLITE.get(code & _PRIMARY) or str(error)
