"""One SQLite database of the state directory: a connection that threads share, and readable errors.

`Database` guarantees:

- D1 The database file and the files that SQLite adds are private (mode 0600). No symbolic link is followed to
  open them.
- D2 One transaction at a time: a second thread waits for the first, another process waits up to
  `BUSY_SECONDS`.
- D3 Every error of SQLite or the system becomes a `ManagedMemoryUnavailable` that states what to do.

Not guaranteed: anything on a network file system. SQLite's locks and shared memory do not work there.

Source: sqlite.org/wal.html; sqlite.org/pragma.html, `synchronous`; sqlite.org/rescode.html;
sqlite.org/c3ref/progress_handler.html (a progress handler ends one query of a connection that threads share;
sqlite3_interrupt() would end every running query).
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
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from muniment.errors import ManagedMemoryUnavailable, MunimentError, printable
from muniment.files import locate_package
from muniment.kernel.cancel import Deadline
from muniment.kernel.syscalls import os

T = TypeVar("T")

LEDGER_NAME: Final = "ledger.db"
CATALOG_NAME: Final = "catalog.db"
"""Names of the two databases in a state directory, see `state`."""

# -- shared descriptors ------------------------------------------------------------------------------
#
# Reads files of a directory as bytes while this process may have databases in it open.
#
# A process loses its locks on a file when it closes any descriptor of that file, no matter which code opened
# it. Without its locks, a database that is still open here seems closed to other processes, and one of them
# would delete its write-ahead log. Therefore a descriptor is closed only if no connection to the directory
# is left, or if the file no longer has a name. Until then, later readers of the file share that descriptor:
# there is at most one for each file.
#
# Source: fcntl(2), advisory record locking; sqlite.org/howtocorrupt.html, 2.2.

_LOCK: Final = threading.Lock()
_CONNECTIONS: Final[Counter[Path]] = Counter()


@dataclass(slots=True, eq=False)
class _SharedDescriptor:
    """An open file descriptor that several readers of the same file share.

    Attributes:
        fd: the descriptor.
        readers: number of current readers.
    """

    fd: int
    readers: int = 0


_DESCRIPTORS: Final[dict[Path, list[_SharedDescriptor]]] = {}


class PositionedReader:
    """Reads a file from its start through a shared descriptor, at an independent position."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer at the end of the file.

        Raises:
            OSError: the file cannot be read.
        """
        data = os.pread(self._fd, size, self._position)
        self._position += len(data)
        return data


def register_connection(directory: Path) -> None:
    """Record that a database in `directory` is about to be opened: `open_shared` must respect its locks."""
    with _LOCK:
        _CONNECTIONS[directory.resolve()] += 1


def unregister_connection(directory: Path) -> None:
    """Record that a database in `directory` was closed, or that its last connection is about to be closed."""
    key = directory.resolve()
    with _LOCK:
        _CONNECTIONS[key] -= 1
        if _CONNECTIONS[key] == 0:
            del _CONNECTIONS[key]
        _close_unused(key)


@contextmanager
def open_shared(path: Path) -> Iterator[PositionedReader]:
    """Open a file for reading, without releasing the locks that this process has on it.

    All readers of the file share one descriptor, which is closed only when no lock depends on it.

    Raises:
        OSError: the file cannot be opened.
    """
    key = path.parent.resolve()
    with _LOCK:
        descriptor = _share_descriptor(key, path)
        descriptor.readers += 1
    try:
        yield PositionedReader(descriptor.fd)
    finally:
        with _LOCK:
            descriptor.readers -= 1
            _close_unused(key)


def _share_descriptor(key: Path, path: Path) -> _SharedDescriptor:
    """Return the shared descriptor of a file; open the file if it is not shared yet.

    Args:
        key: the resolved directory of the file.
        path: the file.
    """
    found = path.stat()
    descriptors = _DESCRIPTORS.get(key, [])
    for each in descriptors:
        if os.path.samestat(os.fstat(each.fd), found):
            return each
    new = _SharedDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    _DESCRIPTORS[key] = [*descriptors, new]
    return new


def _close_unused(key: Path) -> None:
    """Close the descriptors of a directory that have no readers, unless a lock of a connection needs them."""
    remaining: list[_SharedDescriptor] = []
    for each in _DESCRIPTORS.pop(key, ()):
        if each.readers or (key in _CONNECTIONS and os.fstat(each.fd).st_nlink):
            remaining.append(each)
        else:
            os.close(each.fd)
    if remaining:
        _DESCRIPTORS[key] = remaining


# -- ledger ------------------------------------------------------------------------------------------
#
# The storage of a ledger: this machine's SQLite (below), or a PostgreSQL that nodes share
# (`fleet/postgres.py`). Statements use SQL that both understand. Parameters are `?`, or `?1` if one occurs
# twice.


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Return the number of rows that the statement changed."""

    def fetchone(self) -> Any:
        """Return the next row; None after the last one."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""

    def __iter__(self) -> Iterator[Any]: ...


class Transaction(Protocol):
    """An open transaction."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Cursor:
        """Execute a statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement once for each row."""


class Ledger(Protocol):
    """The storage of a ledger: an SQLite file, or a PostgreSQL database that machines share.

    Threads may share it; one transaction at a time changes it.
    """

    @property
    def name(self) -> str:
        """Return the display name of the ledger."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction: commit it when the block ends, roll it back if the block raises.

        A nested transaction becomes part of the outer one.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. The transaction has no effect.
        """

    def run_transaction(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one `transaction` and return its result.

        If the ledger is a file, an interrupt at any moment leaves no transaction open.
        """
        with self.transaction() as opened:
            return work(opened)

    def rows(
        self, query: str, values: Sequence[Any] = (), *, deadline: Deadline | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of one query. Inside a transaction, they include its changes.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be read.
            Cancelled, DeadlineExceeded: `deadline` ended.
        """

    def iterate_rows(self, query: str) -> AbstractContextManager[Iterator[tuple[Any, ...]]]:
        """Yield the rows of a query one by one, for results that may not fit into memory; raise as `rows`."""

    def is_transaction_open(self) -> bool:
        """Return whether a transaction is open. An error of a statement may have ended it."""

    def limit_statements(self, deadline: Deadline) -> None:  # noqa: ARG002  a server limits its statements itself
        """Make every later statement fail after `deadline` has ended, if the ledger is a file.

        Calling `rows` with a `deadline` removes this limit.

        Cost: as `rows` with `deadline`.
        """
        return

    @property
    def failures(self) -> int:
        """Return the number of failed reads and writes; always 0 if the ledger is a file."""
        return 0

    def try_truncate_log(self) -> bool:
        """Remove deleted data from the log of the database, without waiting for another process.

        A server does this by itself.

        Returns:
            Whether the log is free of deleted data.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.
        """
        return True

    def scrub(self) -> None:
        """Overwrite deleted data in all files of the ledger.

        A server does this at its next vacuum. The operator must delete the data from the backups of the
        server.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.

        Cost: if the ledger is a file, rewrites that file.
        """
        return

    def read_data_version(self) -> int:
        """Return a number that differs after another process changed the ledger.

        On a server it is always 0: a server sends notifications instead.
        """
        return 0

    def is_lost(self) -> bool:
        """Return whether the database file was moved, replaced or deleted after it was opened."""
        return False

    def close(self) -> None:
        """Close the ledger; more calls have no effect."""
        return


# -- database ----------------------------------------------------------------------------------------

BUSY_SECONDS: Final = 30.0
"""Seconds that a transaction waits for a transaction of another process; each takes a few milliseconds."""

COMPANIONS: Final = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files of a database: first the database itself, then the files that SQLite adds."""

_PAUSE: Final = 0.05
"""Seconds between two checks whether a caller still waits for a lock."""

_STEPS: Final = 2_000
"""Instructions of SQLite's virtual machine between two checks whether a caller still waits: about 20 µs."""

_PRIVATE: Final = 0o600
_PRIMARY: Final = 0xFF
"""The bits of an SQLite result code that contain the primary code."""

_FULL: Final = "the disk is full; free some space and try again"
_READ_ONLY: Final = "it cannot be written: the file system is read-only"
_FORBIDDEN: Final = "this user cannot read and write it; correct its owner and permissions"
_FAILING: Final = "the disk reports an error while reading or writing; check the disk"
_DAMAGED: Final = "is damaged or not a database; restore it from a backup"

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that this user can write to its directory",
    sqlite3.SQLITE_BUSY: f"another process has locked it for {BUSY_SECONDS:.0f} s; try again",
    sqlite3.SQLITE_IOERR: _FAILING,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_INTERRUPT: "the query was interrupted; try again",
}
_SYSTEM: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EIO: _FAILING,
    errno.ELOOP: "is a symbolic link; replace it by the file itself",
    errno.EISDIR: "is a directory; move it away",
}


@contextmanager
def acquire_lock(lock: threading.Lock | threading.RLock, deadline: Deadline) -> Iterator[None]:
    """Acquire the lock, and release it when the block ends.

    Raises:
        Cancelled, DeadlineExceeded: `deadline` ended before the lock was free.
    """
    while not lock.acquire(timeout=_PAUSE):
        deadline.check()
    try:
        yield
    finally:
        lock.release()


class Database(Ledger):
    """One SQLite connection with one transaction at a time; threads wait for each other.

    Args:
        path: the file; created empty if it is missing.
        synchronous: when SQLite waits for the disk: at each commit (`FULL`), or not at a commit (`NORMAL`).
        cache_kib: maximum size of SQLite's page cache, in KiB.

    Raises:
        ManagedMemoryUnavailable: the database cannot be used; the error contains the reason.
    """

    def __init__(self, path: Path, *, synchronous: str, cache_kib: int = 2_000) -> None:
        self.path = path
        self._synchronous, self._cache_kib = synchronous, cache_kib
        self._lock = threading.RLock()
        self._is_open = False
        register_connection(path.parent)  # Before the connection has any locks that could be lost.
        try:
            self._connection = self._connect()
        except BaseException:
            unregister_connection(path.parent)
            raise
        self._is_registered, self._file = True, _read_identity(path)

    @property
    def name(self) -> str:
        """Return the path of the database in printable form."""
        return printable(str(self.path))

    def _connect(self) -> sqlite3.Connection:
        with convert_errors(self.path):
            ensure_private_file(self.path)
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
            raise build_unavailable_error(
                self.path, "its file system does not support SQLite's WAL mode; move it to a local disk"
            )
        return connection

    def recreate(self, script: str, version: int) -> None:
        """Delete the database and create an empty one, which every user of this object then sees.

        Args:
            script: SQL that creates the tables.
            version: value for `PRAGMA user_version`.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be written. After this error only `close` may be
                called.
        """
        with self._lock:
            self._connection.close()
            delete_database(self.path)
            self._connection = self._connect()
            with self.transaction() as connection:
                for statement in split_statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a write transaction: commit it when the block ends, roll it back if the block raises.

        A nested transaction becomes part of the outer one.

        Raises:
            ManagedMemoryUnavailable: the disk is full, read-only or broken; the file is not a database; or
                another process locked it for `BUSY_SECONDS`. The transaction has no effect.
        """
        with self._lock, convert_errors(self.path):
            if self._is_open:
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._is_open = True
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite rolls back some failed transactions by itself.
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._is_open = False

    def run_transaction(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction and return its result, as in `Ledger`.

        The transaction is not opened by a generator: an interrupt could suspend the generator and leave it
        open.
        """
        with self._lock, convert_errors(self.path):
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
        """Commit the changes of the outermost transaction and begin the next transaction.

        Returns:
            False if another process wrote between the two transactions.

        Raises:
            ManagedMemoryUnavailable: as `transaction`; changes that were already committed stay committed.
        """
        version = "PRAGMA data_version"
        with convert_errors(self.path):
            before = self._connection.execute(version).fetchall()
            self._connection.execute("COMMIT")
            self._connection.execute("BEGIN IMMEDIATE")
            return before == self._connection.execute(version).fetchall()

    def rows(
        self, query: str, values: Sequence[object] = (), *, deadline: Deadline | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of one query. Inside a transaction, they include its changes.

        Args:
            query: the SQL.
            values: values for its parameters.
            deadline: limits the wait for other threads and the query itself, to within `_PAUSE` seconds. It
                does not limit the wait for another process, which a reader rarely has. None: no limit.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.
            Cancelled, DeadlineExceeded: `deadline` ended; queries of other threads continue.

        Cost: with `deadline`, one check of the deadline every `_STEPS` instructions.
        """
        if deadline is None:
            with self._lock, convert_errors(self.path):
                return self._connection.execute(query, values).fetchall()
        with acquire_lock(self._lock, deadline):
            return self._query_with_deadline(query, values, deadline)

    def _query_with_deadline(
        self, query: str, values: Sequence[object], deadline: Deadline
    ) -> list[tuple[Any, ...]]:
        deadline.check()
        reasons: list[BaseException] = []

        def has_ended() -> bool:
            try:
                deadline.check()
            except (MunimentError, KeyboardInterrupt) as reason:  # SQLite would swallow it.
                reasons.append(reason)
            return bool(reasons)

        with convert_errors(self.path):
            self._connection.set_progress_handler(has_ended, _STEPS)
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.OperationalError:
                if reasons:
                    raise reasons[0] from None
                raise
            finally:
                self._connection.set_progress_handler(None, 0)

    def limit_statements(self, deadline: Deadline) -> None:
        """Make later statements fail after `deadline` has ended, as in `Ledger`."""

        def has_ended() -> bool:
            return time.monotonic() >= deadline.expires_at or (
                deadline.cancel is not None and deadline.cancel.is_set()
            )

        with self.open_outside_transaction() as connection:
            connection.set_progress_handler(has_ended, _STEPS)

    @contextmanager
    def open_outside_transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection outside any transaction, for statements such as `VACUUM`.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.
        """
        with self._lock, convert_errors(self.path):
            yield self._connection

    @contextmanager
    def iterate_rows(self, query: str) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Yield the rows of a query one by one, as in `Ledger`."""
        with self.open_outside_transaction() as connection:
            yield iter(connection.execute(query))

    def is_transaction_open(self) -> bool:
        """Return whether a transaction is open; on a full disk, for example, SQLite itself rolls it back."""
        return self._connection.in_transaction

    def read_data_version(self) -> int:
        """Return SQLite's data version, which differs after another process changed the database."""
        return int(self.rows("PRAGMA data_version")[0][0])

    def is_lost(self) -> bool:
        """Return whether the path of the database now resolves to another file or to no file.

        Cost: one `stat`.
        """
        return _read_identity(self.path) != self._file

    def scrub(self) -> None:
        """Overwrite deleted data in the database and empty its log, as in `Ledger`."""
        with self.open_outside_transaction() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("VACUUM")
        self.truncate_log()

    def truncate_log(self) -> None:
        """Move the content of the write-ahead log into the database and empty the log.

        Raises:
            ManagedMemoryUnavailable: as `transaction`, or another process reads the database for
                `BUSY_SECONDS`.
        """
        ((is_busy, _, _),) = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_busy:
            raise build_unavailable_error(self.path, _SQLITE[sqlite3.SQLITE_BUSY])

    def try_truncate_log(self) -> bool:
        """Empty the log as `truncate_log` does, without waiting for another process.

        Returns:
            Whether the log is empty now.

        Raises:
            ManagedMemoryUnavailable: as `transaction`.

        Cost: two fsyncs if the log is not empty.
        """
        with self.open_outside_transaction() as connection:
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
        return not is_busy

    def close(self) -> None:
        """Close the connection; more calls have no effect."""
        with self._lock:
            self._connection.close()
            if self._is_registered:
                self._is_registered = False
                unregister_connection(self.path.parent)

    def is_damaged(self, error: ManagedMemoryUnavailable) -> bool:
        """Return whether `error` reports that this database is damaged."""
        return is_corrupt(error) and error.what == self.name


def distrust_schema(connection: sqlite3.Connection) -> None:
    """Make SQLite distrust the schema and the pages of a database, which an attacker may have written.

    Raises:
        sqlite3.Error: the file is not a database.

    Cost: a few microseconds.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)


def _read_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file that a path resolves to; None if the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def delete_database(path: Path) -> None:
    """Delete a database that this process does not have open.

    Raises:
        ManagedMemoryUnavailable: the directory cannot be written.
    """
    with convert_errors(path):
        for companion in COMPANIONS:
            path.with_name(path.name + companion).unlink(missing_ok=True)


def is_corrupt(error: ManagedMemoryUnavailable) -> bool:
    """Return whether `error` means that a database is damaged, not only busy, full or inaccessible."""
    if isinstance(error.__cause__, UnicodeDecodeError):
        return True
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    return code & _PRIMARY in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@cache
def load_migrations(package: str) -> Mapping[int, str]:
    """Return the SQL scripts that create the tables of a ledger, by version number.

    Args:
        package: has a directory `migrations` with one numbered file for each version.
    """
    found = (
        each for each in locate_package(package).joinpath("migrations").iterdir() if each.name[:4].isdigit()
    )
    return dict(sorted((int(each.name[:4]), each.read_text("utf-8")) for each in found))


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script one by one, so that all can run in one transaction.

    `executescript` would commit that transaction.
    """
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def ensure_private_file(path: Path) -> None:
    """Create a private file, or check that an existing file is accessible and not a link.

    Call this before SQLite opens the file.

    SQLite gives the mode of a database to the files that it adds. This function does not open an existing
    file: closing it would release the locks that this process has on the file by other connections. Another
    process would then delete the write-ahead log that these connections still use
    (sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        OSError: the file cannot be created, read or written, or is a symbolic link or a directory.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
    except FileExistsError:
        problem = _find_access_problem(path)
        if problem:
            raise OSError(problem, os.strerror(problem), path) from None


def _find_access_problem(path: Path) -> int:
    """Return the number of the error that opening a file for reading and writing would raise; 0 if none."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return errno.ELOOP
    if stat.S_ISDIR(mode):
        return errno.EISDIR
    if os.access(path, os.R_OK | os.W_OK):
        return 0
    return errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES


@contextmanager
def convert_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the system in the block into `ManagedMemoryUnavailable` about `path`."""
    try:
        yield
    except sqlite3.Error as error:
        raise build_unavailable_error(path, _describe_error(error)) from error
    # SQLite quotes the bytes of a damaged schema, and Python cannot decode them.
    except UnicodeDecodeError as error:
        raise build_unavailable_error(path, _DAMAGED) from error
    except OSError as error:
        raise build_unavailable_error(
            path, _SYSTEM.get(error.errno or 0) or error.strerror or str(error)
        ) from error


def build_unavailable_error(what: Path | str, reason: str) -> ManagedMemoryUnavailable:
    """Return the error that states why a file of the state directory, or a ledger, cannot be used.

    Args:
        what: path of the file, or name of the ledger.
        reason: the problem and what to do; it follows the name in the message.
    """
    return ManagedMemoryUnavailable(printable(str(what)), reason)


def _describe_error(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return _FULL  # The shared-memory file could not grow.
    return _SQLITE.get(code & _PRIMARY) or str(error)
