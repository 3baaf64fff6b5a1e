"""A cancellation token: its holder wants no more of a run; and work in threads for asynchronous callers.

C3 `Cancel.set` may be called from any thread and from a signal handler: none of its locks is held while
   another one is waited for, and a thread that it interrupts may hold any of them.
C4 A child is cancelled with its parent, and alone without it. Whichever is closed first, closing takes
   nothing from the other.

Standard library only, but for asynchronous callers; attacked by `tests/units/kernel/test_cancel.py`.
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
    """Tells the threads of a run that its caller wants no more of it. Set once, never unset."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False
        self._children: set[Cancel] = set()
        self._leave: Callable[[Cancel], None] | None = None
        # Reentrant: a signal handler may call `set` while this very thread holds the lock.
        self._lock = threading.RLock()

    def set(self) -> None:
        """Cancel. Wakes every wait that watches this token or a child of it; a second call changes nothing.

        Cost: a system call for each of them.
        """
        with self._lock:
            is_first, self._is_set = not self._is_set, True  # Before it wakes anybody who asks.
            if is_first and self._fd >= 0:
                os.eventfd_write(self._fd, 1)
            children = tuple(self._children)
        for child in children:  # Not under the lock: another thread may hold a child's, and wait for ours.
            child.set()

    def child(self) -> Cancel:
        """A token of its own that is set when this one is, or was (C4).

        Close it when done: until then this token keeps it, and the descriptor that it takes.

        Raises:
            OSError: the process has no descriptor left.
        """
        child = Cancel()
        child._leave = self._remove
        with self._lock:
            self._children.add(child)
            is_set = self._is_set
        if is_set:
            child.set()
        return child

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def fileno(self) -> int:
        """A descriptor that is readable once cancelled.

        Raises:
            ValueError: the token was closed.
        """
        if self._fd < 0:
            raise ValueError("this cancellation token was closed")
        return self._fd

    def close(self) -> None:
        """Give the descriptor back; only when nothing waits on the token any more."""
        if self._leave is not None:
            self._leave(self)
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


async def in_thread(work: Callable[[Cancel], T]) -> T:
    """Return the result of `work`, which runs in a thread while the loop goes on.

    Args:
        work: gets a token that is set if the task is cancelled. Then the caller goes on at once, and work
            that has not committed by then writes nothing.
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
        if not begun:  # Nor will it wait on the token, should it begin after this.
            cancel.close()
        raise


async def until_ended(running: asyncio.Future[T], cancel: Cancel) -> T:
    """Return the result of work in a thread; if the caller is cancelled, set the token and await its end.

    However often it is cancelled: so whoever counts work in progress counts it until then, and whoever closes
    the token does so after it.
    """
    import asyncio

    import anyio

    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            cancel.set()
        while not running.done():
            # The scope keeps each wait from being cancelled again by one around it; a task has no such scope.
            with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # Nobody asks for it any more.
        raise
