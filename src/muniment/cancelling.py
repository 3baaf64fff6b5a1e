"""A cancellation token, and work in threads for asynchronous callers.

C3 `Cancel.set` may be called from any thread and from a signal handler. It never holds one of its locks while
   it waits for another, and an interrupted thread may hold any of them.
C4 A child is cancelled with its parent; its own cancellation does not affect the parent. Either may be closed
   first, without an effect on the other.

Standard library only, except for asynchronous callers; attacked by `tests/units/kernel/test_cancel.py`.
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
    """A token that cancels the threads of a run. Set once, never unset."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False
        self._children: set[Cancel] = set()
        self._remove_from_parent: Callable[[Cancel], None] | None = None
        # Reentrant: a signal handler may call `set` while this thread holds the lock.
        self._lock = threading.RLock()

    def set(self) -> None:
        """Cancel: wake every wait on this token or a child of it; a second call has no effect.

        Cost: a system call for each of them.
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
        """Return a token that is set when this one is, or was (C4).

        Close it after use: until then this token refers to it, and it uses a descriptor.

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
        """Return whether `set` was called."""
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
        """Close the descriptor; only call this after all waits on the token have ended."""
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
    """Return the result of `work`, which runs in a thread while the event loop continues.

    Args:
        work: receives a token that is set if the task is cancelled. In that case the caller continues at
            once, and work that has not committed yet writes nothing.
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
    """Return the result of work in a thread; if the caller is cancelled, set the token and await its end.

    This is true for any number of cancellations: a caller that counts work in progress counts it until the
    end, and the token can be closed after it.
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
