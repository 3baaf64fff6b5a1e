"""Group commit: changes of the ledger by many threads, as many as wait at once in one durable transaction.

Each change is carried out alone, inside a savepoint: one that raises takes back only itself. A future is done
once the transaction of its change is durable, or has failed.

Source: sqlite.org/lang_savepoint.html; group commit as in DeWitt et al., 1984.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from muniment.store.database import Database

MAX_GROUP: Final = 256
"""Changes of one transaction: some 10 ms of work, which whoever reads meanwhile has to wait for."""

T = TypeVar("T")
_Waiting = tuple[Callable[[], Any], "Future[Any]"]


class Writer:
    """One thread that changes a ledger for all others. Close it when done; what waits then is still done."""

    def __init__(self, ledger: Database) -> None:
        self._ledger = ledger
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """Have `change` carried out inside a transaction; what it returns, once that is durable.

        The future raises what `change` raised, or `ManagedMemoryUnavailable`: then nothing of it holds.
        """
        future: Future[T] = Future()
        self._waiting.put((change, future))
        return future

    def run(self, change: Callable[[], T]) -> T:
        """As `submit`, and wait."""
        return self.submit(change).result()

    def close(self) -> None:
        """End the thread, after everything that waits; nothing may be submitted any more."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group, is_last = self._group(first)
            self._carry_out(group)
            if is_last:
                return

    def _group(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """`first` and what waits with it; whether nothing will follow."""
        group = [first]
        while len(group) < MAX_GROUP:
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
        return group, False

    def _carry_out(self, group: list[_Waiting]) -> None:
        done: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with self._ledger.transaction() as connection:
                for change, future in group:
                    connection.execute("SAVEPOINT one")
                    try:
                        done.append((future, change(), None))
                    except Exception as error:  # noqa: BLE001  told to the one who waits for it
                        connection.execute("ROLLBACK TO one")
                        done.append((future, None, error))
                    connection.execute("RELEASE one")
        except Exception as error:  # noqa: BLE001  told to all of them
            done = [(future, None, error) for _, future in group]
        for future, value, problem in done:
            if problem is None:
                future.set_result(value)
            else:
                future.set_exception(problem)
