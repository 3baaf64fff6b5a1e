"""Group commit: changes of a ledger by many threads, as many as wait at once in one durable transaction.

W1 Changes are carried out in the order in which they were submitted, each alone inside a savepoint: one
   that raises takes back only itself.
W2 A future is done once the transaction of its change is durable, or has failed; then nothing of the group
   holds. None is left pending: what was submitted before `close` is carried out, later ones are refused.
W3 A future that is cancelled before its change begins takes it along; later, `Future.cancel` does nothing.
W4 Nothing that a change raises ends the thread, `SystemExit` neither: its future raises it.

Does not hold: a change may not wait for another one, which would be behind it in the same thread.

Source: sqlite.org/lang_savepoint.html; group commit as in DeWitt et al., 1984.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from muniment import events
from muniment.errors import LaneError
from muniment.store.database import Ledger, Transaction

T = TypeVar("T")

MAX_GROUP: Final = 128
"""Changes of one transaction: some 40 ms of work, which whoever else writes meanwhile has to wait for."""

_Waiting = tuple[Callable[[], Any], "Future[Any]"]
_Outcome = tuple[Any, BaseException | None]


class Carrier(Protocol):
    """What carries out changes of a ledger: a `Writer`, or whoever has a transaction for each."""

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """See `Writer.submit`."""

    def run(self, change: Callable[[], T]) -> T:
        """As `submit`, and wait."""
        return self.submit(change).result()


class Writer(Carrier):
    """One thread that changes a ledger for all others. Close it when done.

    Args:
        ledger: its connection; others may use it, too.
        committed: called in that thread after every durable group, before its futures are done.
    """

    def __init__(self, ledger: Ledger, *, committed: Callable[[], None] = lambda: None) -> None:
        self._ledger, self._committed = ledger, committed
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """Have `change` carried out inside a transaction; what it returns, once that is durable.

        The future raises what `change` raised, or `ManagedMemoryUnavailable`: then nothing of it holds.

        Raises:
            LaneError: the writer was closed. Nothing will be carried out.
        """
        future: Future[T] = Future()
        with self._lock:  # Nothing may come to stand behind the end of the queue.
            if self._is_closed:
                raise LaneError(
                    "the daemon is stopping; send it again to the next one", code="workspace_draining"
                )
            self._waiting.put((change, future))
        return future

    def close(self) -> None:
        """End the thread, after everything that waits; harmless when repeated."""
        with self._lock:
            if not self._is_closed:
                self._waiting.put(None)
            self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            group, is_last = self._group()
            wanted = [each for each in group if each[1].set_running_or_notify_cancel()]
            if wanted:
                self._carry_out(wanted)

    def _group(self) -> tuple[list[_Waiting], bool]:
        """What waits, once something does; whether nothing will follow."""
        group: list[_Waiting] = []
        while len(group) < MAX_GROUP:
            try:
                item = self._waiting.get(block=not group)
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
        return group, False

    def _carry_out(self, group: list[_Waiting]) -> None:
        try:
            with self._ledger.transaction() as connection:
                outcomes = [self._carried_out(connection, change) for change, _ in group]
        except BaseException as error:  # noqa: BLE001  told to all of them; without the thread all would hang
            outcomes = [(None, error)] * len(group)
        else:
            self._tell()
        for (_, future), (value, problem) in zip(group, outcomes, strict=True):
            if problem is None:
                future.set_result(value)
            else:
                future.set_exception(problem)

    def _tell(self) -> None:
        try:
            self._committed()
        except BaseException as error:  # noqa: BLE001  what is durable is so, whoever fails to hear of it
            events.emit("commit_untold", problem=type(error).__name__)

    def _carried_out(self, connection: Transaction, change: Callable[[], Any]) -> _Outcome:
        """What a change returned or raised; if it raised, nothing of it is left in the transaction.

        Raises:
            BaseException: as it did, where the whole transaction was taken back: a full disk, for one.
        """
        connection.execute("SAVEPOINT one")
        try:
            value = change()
            connection.execute("RELEASE one")  # Some of the change may be sent only with this.
        except BaseException as error:  # told to the one who waits for it
            if not self._ledger.is_lasting():
                raise
            connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            return None, error
        return value, None
