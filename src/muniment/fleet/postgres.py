"""A ledger in a PostgreSQL that nodes share: of each home its rows.

P1 A transaction names its home and sees the rows of that one alone; a connection outside of one sees none.
   The server sees to that (row-level security), whatever the statement is.
P2 Write transactions of a home come one after the other, on all nodes together: each begins by locking the
   row of its home. So a statement may rely on what the one before it has found.
P3 One with an epoch holds only while that is the epoch of its home: who slept while another node took over
   changes nothing any more (`LeaseLost`).
P4 Whatever goes wrong is a `ManagedMemoryUnavailable`; where nobody answers, a `LedgerAway`. Of a commit that
   was cut off nobody can tell whether it holds: whoever goes on asks.
P5 What of a transaction has no answer is sent with the statement that follows it, in this order, and may fail
   there; at last with the commit, which then does not hold.

Does not hold: anything against who has the role's password; he may name any home.

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

from muniment.errors import LeaseLost, LedgerAway, ManagedMemoryUnavailable
from muniment.kernel.cancel import Patience
from muniment.store.database import Ledger

WAIT_SECONDS: Final = 2.0
"""Seconds that a transaction waits for a connection, or for the server to take one."""

KEPT_SECONDS: Final = 60.0
"""Seconds that a connection is kept which nobody uses."""

LOCK_SECONDS: Final = 30
"""Seconds that a transaction waits for the one before it; a node that stopped in one is cut off sooner."""

IDLE_SECONDS: Final = 10
"""Seconds that a transaction may do nothing: its node was stopped, or is gone."""

ANSWER_SECONDS: Final = 45.0
"""Seconds that a statement of a home waits for its answer: a server that hangs closes no connection."""

LOOK_SECONDS: Final = 3.0
"""Likewise what is asked of all homes, of some rows: whose a token is, whether anybody answers."""

_SESSION: Final = (
    f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s "
    "-c search_path=muniment -c client_min_messages=warning -c plan_cache_mode=force_generic_plan"
)
_HOME: Final = "SELECT set_config('muniment.home', $1, true)"
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL muniment.home = %s; "
    "SELECT epoch FROM home FOR NO KEY UPDATE"
)
"""One message to the server and back, which a pipeline would be too, for three times the work here. The level
is said, whatever the server takes for the default: who has waited sees what it has waited for (P2)."""

_BLOCK: Final = 500
"""Rows that come at a time where all are more than fits into memory."""

_REASONS: Final = {
    problems.DiskFull: "the disk of the database is full; make room there and try again",
    problems.ReadOnlySqlTransaction: "the database is read-only: this is a standby, or is being repaired",
    problems.InsufficientPrivilege: "the role may not do this; run: muniment fleet migrate",
    problems.UndefinedTable: "the database has no ledger; run: muniment fleet migrate",
    problems.LockNotAvailable: f"another node has kept the home busy for {LOCK_SECONDS} s; try again",
}
_AWAY: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    PoolTimeout,
    problems.IdleInTransactionSessionTimeout,
)
_STAYS: Final = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})
T = TypeVar("T")

_PLACEHOLDER: Final = re.compile(r"'[^']*'|\?([0-9]*)|CAST\((\w+) AS BLOB\)|INDEXED BY \w+")


def connection_options(name: str) -> dict[str, Any]:
    """How every connection to the database is made: by a name there; a line that is dead is found so."""
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
def translated(statement: str) -> str:
    """A statement in PostgreSQL's words: parameters are numbered, and what it lacks is written otherwise."""
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


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed where no answer comes in time.

    Attributes:
        seconds: for an answer.
    """

    seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """See `psycopg.Connection.wait`."""
        limit = self.seconds if timeout is None else timeout
        until = time.monotonic() + limit
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError:
            if time.monotonic() >= until:
                self.close()
            raise


class LedgerPool:
    """Connections to the database, for all homes of a node. Close it when done.

    Args:
        url: of the application's role, see `fleet.address`.
        size: connections at most.
    """

    def __init__(self, url: str, size: int) -> None:
        self.pool: ConnectionPool[_Bounded] = ConnectionPool(
            url,
            connection_class=_Bounded,
            min_size=0,
            max_size=size,
            open=True,
            timeout=WAIT_SECONDS,
            reconnect_timeout=1.0,
            max_idle=KEPT_SECONDS,
            num_workers=2,
            kwargs={"autocommit": True, "prepare_threshold": 0, **connection_options("muniment")},
        )

    def home(self, name: str, epoch: int | None = None) -> HomeLedger:
        """The ledger of a home; with an epoch as P3 says."""
        return HomeLedger(self, name, epoch)

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection that sees no home, for what is answered at once.

        Raises:
            ManagedMemoryUnavailable: there is none, or as P4.
        """
        with _reporting("the database"), self.pool.connection() as connection:
            connection.seconds = LOOK_SECONDS
            try:
                yield connection
            finally:
                connection.seconds = ANSWER_SECONDS

    def close(self) -> None:
        """Close all connections."""
        self.pool.close()


class HomeLedger(Ledger):
    """The ledger of one home; see the module. Threads may share it, each has a transaction of its own."""

    def __init__(
        self, pool: LedgerPool, home: str, epoch: int | None, failed: Counter[str] | None = None
    ) -> None:
        self._pool, self.home, self.epoch = pool, home, epoch
        self._own = threading.local()
        self._failed: Counter[str] = Counter() if failed is None else failed

    @property
    def name(self) -> str:
        """What people know it by."""
        return f"the ledger of the home {self.home}"

    def at(self, epoch: int) -> HomeLedger:
        """The same ledger, as whoever has the lease of this epoch may change it (P3)."""
        return HomeLedger(self._pool, self.home, epoch, self._failed)

    @property
    def failures(self) -> int:
        """See `Ledger`, by whichever of these: then somebody may have gone on without it."""
        return self._failed.total()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            with _reporting(self.name):
                yield
        except ManagedMemoryUnavailable as error:
            self._failed[error.code] += 1
            raise

    @property
    def _open(self) -> HomeTransaction | None:
        """This thread's transaction."""
        return getattr(self._own, "open", None)

    @contextmanager
    def transaction(self) -> Iterator[HomeTransaction]:
        """See `Ledger`, and P2, P3.

        Raises:
            LeaseLost: the epoch is not that of the home, or there is no such home any more.
        """
        inside = self._open
        if inside is not None:
            with self._reporting():  # Here, too: whoever began it may go on behind a savepoint.
                yield inside
            return
        with self._reporting(), self._begun() as connection:
            self._own.open = opened = HomeTransaction(connection)
            try:
                yield opened
                opened.commit()
            finally:
                self._own.open = None

    @contextmanager
    def _begun(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection on which a transaction of the home has begun; what is not committed is rolled back."""
        with self._connected() as connection:
            try:
                begun = psycopg.ClientCursor(connection).execute(_BEGIN, (self.home,))
                while begun.nextset():
                    pass
                found = begun.fetchone()
                if found is None and self.epoch is None:
                    raise ManagedMemoryUnavailable(self.name, "there is no such home")
                # With a home its lease has gone: whoever went on would try for ever.
                if self.epoch is not None and (found is None or found[0] != self.epoch):
                    raise LeaseLost(self.home)
                yield connection
            finally:
                if connection.info.transaction_status is not TransactionStatus.IDLE:
                    with suppress(psycopg.Error):  # It is closed, or was cut off: nothing holds anyway.
                        connection.execute("ROLLBACK")

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection that answers: after a restart of the server those that are kept do so no more."""
        pool = self._pool.pool
        connection = pool.getconn()
        if connection.info.transaction_status is not TransactionStatus.IDLE or _is_cut(connection):
            pool.putconn(connection)
            pool.check()
            connection = pool.getconn()
        try:
            yield connection
        finally:
            pool.putconn(connection)

    def rows(
        self, query: str, values: Sequence[Any] = (), *, patience: Patience | None = None
    ) -> list[tuple[Any, ...]]:
        """See `Ledger`."""
        if patience is not None:
            patience.check()
        with self._reporting():
            if self._open is not None:
                return self._open.execute(query, values).fetchall()
            with self._connected() as connection:
                with connection.pipeline():  # One transaction, and one message to the server and back.
                    _execute(connection, _HOME, (self.home,))
                    found = _execute(connection, translated(query), values)
                return found.fetchall()

    @contextmanager
    def each(self, query: str) -> Iterator[Iterator[tuple[Any, ...]]]:
        """See `Ledger`."""
        with self.transaction() as opened:
            opened.execute(f"DECLARE every NO SCROLL CURSOR FOR {query}")
            try:
                yield self._blocks(opened)
            finally:
                if opened.raw.info.transaction_status is TransactionStatus.INTRANS:
                    opened.execute("CLOSE every")

    def _blocks(self, opened: HomeTransaction) -> Iterator[tuple[Any, ...]]:
        while self._open is opened and (
            block := opened.execute(f"FETCH FORWARD {_BLOCK} FROM every").fetchall()
        ):
            yield from block

    def is_lasting(self) -> bool:
        """See `Ledger`."""
        return self._open is not None and self._open.raw.info.transaction_status in _STAYS


class HomeTransaction:
    """A transaction of a home that is open, as `Transaction` has it.

    Attributes:
        raw: its connection, for what is to hold exactly if the transaction does.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.raw = connection
        self._unsent: list[tuple[str, Sequence[Any]]] = []

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        """See `Transaction`; raises also what is wrong with what was not sent before."""
        if statement.startswith("ROLLBACK"):
            self._unsent = []
        with self._sending():
            return _execute(self.raw, translated(statement), values)

    def commit(self) -> None:
        """Have all of it hold; raises as `execute`."""
        with self._sending():
            self.raw.execute("COMMIT")

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Send what was not sent with the next statement, as one message to the server and back."""
        if not self._unsent:
            yield
            return
        unsent, self._unsent = self._unsent, []
        with self.raw.pipeline():
            for each in unsent:
                _execute(self.raw, *each)
            yield

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """See `Transaction`: nobody asks what comes of it, and so it is sent with the next statement (P5)."""
        self._unsent += [(translated(statement), tuple(each)) for each in rows]
        return None


def _execute(
    connection: psycopg.Connection[tuple[Any, ...]], statement: str, values: Sequence[Any]
) -> psycopg.Cursor[tuple[Any, ...]]:
    return psycopg.RawCursor(connection).execute(statement, values)


def _is_cut(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Whether the server has ended a connection that waits for nothing: then there is something to read."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))


@contextmanager
def _reporting(what: str) -> Iterator[None]:
    """Turn errors of the server into `ManagedMemoryUnavailable` (P4)."""
    try:
        yield
    except tuple(_REASONS) as error:
        raise ManagedMemoryUnavailable(what, _REASONS[type(error)]) from error
    except _AWAY as error:
        raise LedgerAway(what) from error
    except psycopg.Error as error:
        raise ManagedMemoryUnavailable(what, _first_line(error)) from error


def _first_line(error: psycopg.Error) -> str:
    """What the server says, without the values that it quotes."""
    return error.diag.message_primary or type(error).__name__
