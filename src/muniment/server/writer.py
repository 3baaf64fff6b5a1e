"""Group commit: one thread writes the ledger changes of many threads in shared durable transactions.

W1 Changes run in the order in which they were submitted, each inside a separate savepoint. A change that
   raises rolls back only itself.
W2 A future is done after the transaction of its change is durable or has failed; after a failure no change of
   the group remains. No future stays pending: changes submitted before `close` run, later ones are rejected.
W3 Cancelling a future before its change begins cancels the change; later, `Future.cancel` has no effect.
W4 No exception of a change ends the thread, not even `SystemExit`: the future of the change raises it.

Not supported: a change must not wait for another change, because both run in the same thread.

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
"""Maximum changes in one transaction: they take about 40 ms, during which other writers must wait."""

_PendingChange = tuple[Callable[[], Any], "Future[Any]"]
_Outcome = tuple[Any, BaseException | None]


class ChangeWriter(Protocol):
    """Runs changes of a ledger: a `Writer`, or a class that uses one transaction for each change."""

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """Schedule `change` to run inside a transaction, see `Writer.submit`."""

    def run(self, change: Callable[[], T]) -> T:
        """Submit a change, wait until it is durable, and return its result."""
        return self.submit(change).result()


class Writer(ChangeWriter):
    """One thread that changes a ledger for all other threads. Close it when it is no longer needed.

    Args:
        ledger: connection to the ledger; other threads may use the connection too.
        on_commit: called in the writer's thread after every durable group, before the group's futures are
            done.
    """

    def __init__(self, ledger: Ledger, *, on_commit: Callable[[], None] = lambda: None) -> None:
        self._ledger, self._on_commit = ledger, on_commit
        self._pending: queue.SimpleQueue[_PendingChange | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """Schedule `change` to run inside a transaction, and return its future.

        When the change is durable, the future returns the result of `change`. If the change was rolled back,
        the future raises the exception of `change`, or `ManagedMemoryUnavailable`.

        Raises:
            LaneError: the writer is closed. The change will not run.
        """
        future: Future[T] = Future()
        with self._lock:  # Nothing may enter the queue after its end marker.
            if self._is_closed:
                raise LaneError(
                    "the daemon is stopping; send the request again after its restart",
                    code="workspace_draining",
                )
            self._pending.put((change, future))
        return future

    def close(self) -> None:
        """Let the thread end after all pending changes, and wait for it; repeated calls have no effect."""
        with self._lock:
            if not self._is_closed:
                self._pending.put(None)
            self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            group, is_last = self._collect_group()
            active = [each for each in group if each[1].set_running_or_notify_cancel()]
            if active:
                self._commit_group(active)

    def _collect_group(self) -> tuple[list[_PendingChange], bool]:
        """Wait for a change; return all pending ones up to `MAX_GROUP`, and whether the queue has ended."""
        group: list[_PendingChange] = []
        while len(group) < MAX_GROUP:
            try:
                item = self._pending.get(block=not group)
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
        return group, False

    def _commit_group(self, group: list[_PendingChange]) -> None:
        try:
            with self._ledger.transaction() as connection:
                outcomes = [self._run_change(connection, change) for change, _ in group]
        except BaseException as error:  # noqa: BLE001  every future raises it; without the thread all would hang
            outcomes = [(None, error)] * len(group)
        else:
            self._notify_commit()
        for (_, future), (value, problem) in zip(group, outcomes, strict=True):
            if problem is None:
                future.set_result(value)
            else:
                future.set_exception(problem)

    def _notify_commit(self) -> None:
        try:
            self._on_commit()
        except BaseException as error:  # noqa: BLE001  the changes are durable even if the callback fails
            events.emit("commit_callback_failed", problem=type(error).__name__)

    def _run_change(self, connection: Transaction, change: Callable[[], Any]) -> _Outcome:
        """Run a change inside a savepoint.

        Returns:
            The result of the change and None. If the change raised and was rolled back: None and its
            exception.

        Raises:
            BaseException: raised by the change, if the whole transaction was rolled back, for example because
                of a full disk.
        """
        connection.execute("SAVEPOINT one")
        try:
            value = change()
            connection.execute("RELEASE one")  # This may send part of the change.
        except BaseException as error:  # Raised by the future.
            if not self._ledger.is_transaction_open():
                raise
            connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            return None, error
        return value, None
