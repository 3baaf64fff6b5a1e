"""A cancellation token (`Cancel`), and functions to run cancellable work in a thread.

C3 `Cancel.set` may be called from any thread and from a signal handler. It never waits for the lock of one
   token while it holds the lock of another. The thread that a signal interrupts may hold any of these locks.
C4 Setting a token also sets its children; setting a child does not affect its parent. Parent and child may be
   closed in any order.

`Cancel` needs only the standard library. Attacked by `tests/units/kernel/test_cancel.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

from muniment.kernel.syscalls import os

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Cancel:
    """A token that cancels the work of threads. Once it is set, it stays set."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False
        self._children: set[Cancel] = set()
        self._remove_from_parent: Callable[[Cancel], None] | None = None
        # Reentrant: a signal handler may call `set` while this thread holds the lock.
        self._lock = threading.RLock()

    def set(self) -> None:
        """Set the token and its children, and wake all threads that wait on them.

        A second call has no effect.

        Cost: one system call for each token.
        """
        with self._lock:
            is_first, self._is_set = not self._is_set, True  # Before a waiting thread wakes and checks it.
            if is_first and self._fd >= 0:
                os.eventfd_write(self._fd, 1)
            children = tuple(self._children)
        # Without the lock: another thread may hold a child's lock and wait for this one.
        for child in children:
            child.set()

    def child(self) -> Cancel:
        """Return a new token that is set together with this token, or immediately if this token is set.

        Close the child after use: until then, it uses a descriptor, and this token refers to it.

        Raises:
            OSError: the process has no descriptor left.
        """
        child = Cancel()
        child._remove_from_parent = self._remove
        with self._lock:
            self._children.add(child)
            is_set = self._is_set
        if is_set:
            child.set()
        return child

    def is_set(self) -> bool:
        """Return whether `set` was called on this token or on its parent."""
        return self._is_set

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the token is cancelled.

        Raises:
            ValueError: the token was closed.
        """
        if self._fd < 0:
            raise ValueError("this cancellation token was closed")
        return self._fd

    def close(self) -> None:
        """Close the descriptor of the token. Call this only when no thread waits on the token any more."""
        if self._remove_from_parent is not None:
            self._remove_from_parent(self)
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _remove(self, child: Cancel) -> None:
        with self._lock:
            self._children.discard(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


async def run_in_thread(work: Callable[[Cancel], T]) -> T:
    """Run `work` in a thread while the event loop continues, and return its result.

    If the awaiting task is cancelled, this function returns immediately, without waiting for `work`.

    Args:
        work: called with a token that is set if the task is cancelled; `work` must then stop without
            writing anything that is not committed yet.
    """
    import anyio
    import anyio.to_thread

    cancel, begun = Cancel(), list[bool]()

    def run() -> T:
        begun.append(True)
        try:
            return work(cancel)
        finally:
            cancel.close()

    try:
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        cancel.set()
        if not begun:  # If work begins after this, it will not wait on the token.
            cancel.close()
        raise


async def await_completion(running: asyncio.Future[T], cancel: Cancel) -> T:
    """Wait until work in a thread ends, and return its result; never return before the end.

    If the awaiting task is cancelled, set `cancel`, wait for the end of the work, then raise
    `CancelledError`. Further cancellations do not shorten this wait. Therefore the token can be closed
    afterwards.

    Args:
        running: the work.
        cancel: the token that stops the work.
    """
    import asyncio

    import anyio

    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            cancel.set()
        while not running.done():
            # The scope protects each wait from the cancellation of an outer scope; a task has no such scope.
            with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # Mark the exception as retrieved.
        raise
