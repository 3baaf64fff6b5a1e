"""A ledger in a PostgreSQL database that nodes share: each home has its own rows.

P1 A transaction names its home and sees only the rows of that home. A connection without a home sees no rows.
   The server enforces this (row-level security) for every statement.
P2 Write transactions of a home run one after the other, across all nodes: each begins by locking the row of
   its home. So a statement may rely on the results of the previous statement.
P3 A transaction with an epoch commits only while that is the epoch of its home. So a node that was paused
   while another node took over changes nothing any more (`LeaseLost`).
P4 Every error is a `ManagedMemoryUnavailable`, or a `LedgerUnreachable` if the server does not respond.
   After an interrupted commit it is unknown whether the commit is durable: the caller must query it.
P5 Statements without a result are sent with the next statement, in order. They may fail there, or at the
   latest with the commit, which is then rolled back.

Not guaranteed: protection against an attacker with the role's password, who may set any home.

Source: postgresql.org/docs/current/ddl-rowsecurity.html; psycopg.org/psycopg3/docs/advanced/pipeline.html.
"""

from __future__ import annotations

import functools
import re
import select
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors as problems
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from muniment.errors import LeaseLost, LedgerUnreachable, ManagedMemoryUnavailable
from muniment.kernel.cancel import Deadline
from muniment.store.database import Ledger

WAIT_SECONDS: Final = 2.0
"""Seconds that a transaction waits for a free connection, or for the server to accept a connection."""

IDLE_CONNECTION_SECONDS: Final = 60.0
"""Seconds after which an idle connection is closed."""

LOCK_SECONDS: Final = 30
"""Seconds that a transaction waits for the previous transaction of its home. If a node stops within a
transaction, the server disconnects the node sooner.
"""

IDLE_TRANSACTION_SECONDS: Final = 10
"""Seconds that a transaction may be idle; after that, its node is assumed to have stopped."""

RESPONSE_SECONDS: Final = 45.0
"""Seconds that a statement of a home waits for its result; needed because a server that hangs closes no
connection.
"""

CHECK_SECONDS: Final = 3.0
"""Seconds that a short query over all homes waits for its result: for the home of a token, or a health check.
"""

_SESSION: Final = (
    f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_TRANSACTION_SECONDS}s "
    "-c search_path=muniment -c client_min_messages=warning -c plan_cache_mode=force_generic_plan"
)
_HOME: Final = "SELECT set_config('muniment.home', $1, true)"
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL muniment.home = %s; "
    "SELECT epoch FROM home FOR NO KEY UPDATE"
)
"""One message to the server and back; a pipeline would do the same for three times the work here. The
isolation level is set explicitly, in case the server has another default: a transaction must see the changes
that it waited for.
"""

_BLOCK_ROWS: Final = 500
"""Rows per fetch, if all rows together may not fit into memory."""

_REASONS: Final = {
    problems.DiskFull: "the disk of the database is full; free space there and try again",
    problems.ReadOnlySqlTransaction: "the database is read-only (a standby?); use the primary server",
    problems.InsufficientPrivilege: "the role lacks a permission; run: muniment fleet migrate",
    problems.UndefinedTable: "the database has no ledger; run: muniment fleet migrate",
    problems.LockNotAvailable: f"another node has used the home for {LOCK_SECONDS} s; try again",
}
_UNAVAILABLE_ERRORS: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    PoolTimeout,
    problems.IdleInTransactionSessionTimeout,
)
_USABLE_STATUSES: Final = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})
T = TypeVar("T")

_PLACEHOLDER: Final = re.compile(r"'[^']*'|\?([0-9]*)|CAST\((\w+) AS BLOB\)|INDEXED BY \w+")


def build_connection_options(name: str) -> dict[str, Any]:
    """Return the options of every connection: its application name, and the detection of dead connections."""
    return {
        "options": _SESSION,
        "application_name": name,
        "connect_timeout": round(WAIT_SECONDS),
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }


@functools.lru_cache(maxsize=1_000)
def translate(statement: str) -> str:
    """Translate an SQLite statement to PostgreSQL: number its parameters, and replace SQLite's syntax."""
    count = 0

    def each(found: re.Match[str]) -> str:
        nonlocal count
        if found[0].startswith("?"):
            count += 1
            return f"${found[1] or count}"
        if found[2]:
            return f"as_bytes({found[2]})"
        return "" if found[0].startswith("INDEXED") else found[0]

    return _PLACEHOLDER.sub(each, statement)


class _TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed if a response does not arrive in time.

    Attributes:
        seconds: time limit of a response.
    """

    seconds = RESPONSE_SECONDS

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for a response of the server; if none arrives in time, close the connection.

        Args:
            gen: see `psycopg.Connection.wait`.
            interval: see `psycopg.Connection.wait`.
            timeout: time limit in seconds; None: `seconds` of the connection.
        """
        limit = self.seconds if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError:
            if time.monotonic() >= deadline:
                self.close()
            raise


class LedgerPool:
    """Connections to the database, for all homes of a node. Close the pool when it is no longer needed.

    Args:
        url: URL for the nodes' role, see `fleet.address`.
        size: maximum number of connections.
    """

    def __init__(self, url: str, size: int) -> None:
        self.pool: ConnectionPool[_TimedConnection] = ConnectionPool(
            url,
            connection_class=_TimedConnection,
            min_size=0,
            max_size=size,
            open=True,
            timeout=WAIT_SECONDS,
            reconnect_timeout=1.0,
            max_idle=IDLE_CONNECTION_SECONDS,
            num_workers=2,
            kwargs={"autocommit": True, "prepare_threshold": 0, **build_connection_options("muniment")},
        )

    def home(self, name: str, epoch: int | None = None) -> HomeLedger:
        """Return the ledger of a home.

        Args:
            name: name of the home.
            epoch: epoch of the home's lease; the ledger can be written only while it is current. None: no
                check.
        """
        return HomeLedger(self, name, epoch)

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Provide a connection that sees the rows of no home, for short queries.

        Raises:
            ManagedMemoryUnavailable: no connection is available, or a query failed.
        """
        with _convert_errors("the database"), self.pool.connection() as connection:
            connection.seconds = CHECK_SECONDS
            try:
                yield connection
            finally:
                connection.seconds = RESPONSE_SECONDS

    def close(self) -> None:
        """Close all connections to the database."""
        self.pool.close()


class HomeLedger(Ledger):
    """The ledger of one home. Threads may share it; each thread has a separate transaction.

    The rules P1 to P5 in the module docstring apply.
    """

    def __init__(
        self, pool: LedgerPool, home: str, epoch: int | None, failed: Counter[str] | None = None
    ) -> None:
        self._pool, self.home, self.epoch = pool, home, epoch
        self._thread_local = threading.local()
        self._failure_counts: Counter[str] = Counter() if failed is None else failed

    @property
    def name(self) -> str:
        """Return the name of the ledger in messages."""
        return f"the ledger of the home {self.home}"

    def with_epoch(self, epoch: int) -> HomeLedger:
        """Return the same ledger, whose transactions commit only while `epoch` is the epoch of the home."""
        return HomeLedger(self._pool, self.home, epoch, self._failure_counts)

    @property
    def failures(self) -> int:
        """Return the number of failed reads and writes, including those through ledgers of `with_epoch`."""
        return self._failure_counts.total()

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            with _convert_errors(self.name):
                yield
        except ManagedMemoryUnavailable as error:
            self._failure_counts[error.code] += 1
            raise

    @property
    def _open(self) -> HomeTransaction | None:
        """Return the open transaction of this thread, or None."""
        return getattr(self._thread_local, "open", None)

    @contextmanager
    def transaction(self) -> Iterator[HomeTransaction]:
        """Open a transaction for the duration of the block, and commit it at the end.

        Inside an open transaction of the thread, provide that transaction.

        Raises:
            LeaseLost: the home has another epoch, or no longer exists.
            ManagedMemoryUnavailable: the database does not respond, or a statement failed.
        """
        inside = self._open
        if inside is not None:
            with (
                self._convert_errors()
            ):  # Also here, because the outer caller may continue after a savepoint.
                yield inside
            return
        with self._convert_errors(), self._begin_transaction() as connection:
            self._thread_local.open = opened = HomeTransaction(connection)
            try:
                yield opened
                opened.commit()
            finally:
                self._thread_local.open = None

    @contextmanager
    def _begin_transaction(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Begin a transaction of the home, and provide its connection; roll back if it was not committed."""
        with self._get_connection() as connection:
            try:
                cursor = psycopg.ClientCursor(connection).execute(_BEGIN, (self.home,))
                while cursor.nextset():
                    pass
                found = cursor.fetchone()
                if found is None and self.epoch is None:
                    raise ManagedMemoryUnavailable(self.name, "home not found; see: muniment fleet home list")
                # The lease of a deleted home is lost too: otherwise its holder would retry for ever.
                if self.epoch is not None and (found is None or found[0] != self.epoch):
                    raise LeaseLost(self.home)
                yield connection
            finally:
                if connection.info.transaction_status is not TransactionStatus.IDLE:
                    # The connection is closed or was cut off: the server rolls back anyway.
                    with suppress(psycopg.Error):
                        connection.execute("ROLLBACK")

    @contextmanager
    def _get_connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Provide a working connection: after a restart of the server, connections in the pool are dead."""
        pool = self._pool.pool
        connection = pool.getconn()
        if connection.info.transaction_status is not TransactionStatus.IDLE or _is_disconnected(connection):
            pool.putconn(connection)
            pool.check()
            connection = pool.getconn()
        try:
            yield connection
        finally:
            pool.putconn(connection)

    def rows(
        self, query: str, values: Sequence[Any] = (), *, deadline: Deadline | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query; see `Ledger.rows`."""
        if deadline is not None:
            deadline.check()
        with self._convert_errors():
            if self._open is not None:
                return self._open.execute(query, values).fetchall()
            with self._get_connection() as connection:
                with connection.pipeline():  # One transaction, and one message to the server and back.
                    _execute(connection, _HOME, (self.home,))
                    found = _execute(connection, translate(query), values)
                return found.fetchall()

    @contextmanager
    def iterate_rows(self, query: str) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Provide an iterator over the rows of a query, fetched in blocks; see `Ledger.iterate_rows`."""
        with self.transaction() as opened:
            opened.execute(f"DECLARE every NO SCROLL CURSOR FOR {query}")
            try:
                yield self._iterate_blocks(opened)
            finally:
                if opened.raw.info.transaction_status is TransactionStatus.INTRANS:
                    opened.execute("CLOSE every")

    def _iterate_blocks(self, opened: HomeTransaction) -> Iterator[tuple[Any, ...]]:
        while self._open is opened and (
            block := opened.execute(f"FETCH FORWARD {_BLOCK_ROWS} FROM every").fetchall()
        ):
            yield from block

    def is_transaction_open(self) -> bool:
        """Return whether the open transaction of this thread can continue; an error may have ended it."""
        return self._open is not None and self._open.raw.info.transaction_status in _USABLE_STATUSES


class HomeTransaction:
    """An open transaction of a home, with the interface of `Transaction`.

    Attributes:
        raw: connection of the transaction; a statement on it is committed or rolled back together with it.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.raw = connection
        self._queued: list[tuple[str, Sequence[Any]]] = []

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement after all queued statements, and return its cursor; see `Transaction`.

        Raises:
            psycopg.Error: this statement or a queued one failed.
        """
        if statement.startswith("ROLLBACK"):
            self._queued = []
        with self._send_queued():
            return _execute(self.raw, translate(statement), values)

    def commit(self) -> None:
        """Execute the queued statements, and commit the transaction.

        Raises:
            psycopg.Error: a queued statement or the commit failed.
        """
        with self._send_queued():
            self.raw.execute("COMMIT")

    @contextmanager
    def _send_queued(self) -> Iterator[None]:
        """Send the queued statements together with those of the block, as one message to the server."""
        if not self._queued:
            yield
            return
        unsent, self._queued = self._queued, []
        with self.raw.pipeline():
            for each in unsent:
                _execute(self.raw, *each)
            yield

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Queue a statement for each row of values. The statements are sent with the next statement."""
        self._queued += [(translate(statement), tuple(each)) for each in rows]
        return None


def _execute(
    connection: psycopg.Connection[tuple[Any, ...]], statement: str, values: Sequence[Any]
) -> psycopg.Cursor[tuple[Any, ...]]:
    return psycopg.RawCursor(connection).execute(statement, values)


def _is_disconnected(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Return whether the server has closed an idle connection; only then it has readable data."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))


@contextmanager
def _convert_errors(what: str) -> Iterator[None]:
    """Convert errors of the server in the block to `ManagedMemoryUnavailable` or `LedgerUnreachable`."""
    try:
        yield
    except tuple(_REASONS) as error:
        raise ManagedMemoryUnavailable(what, _REASONS[type(error)]) from error
    except _UNAVAILABLE_ERRORS as error:
        raise LedgerUnreachable(what) from error
    except psycopg.Error as error:
        raise ManagedMemoryUnavailable(what, _get_message(error)) from error


def _get_message(error: psycopg.Error) -> str:
    """Return the main message of a server error, which quotes no values of the statement."""
    return error.diag.message_primary or type(error).__name__
