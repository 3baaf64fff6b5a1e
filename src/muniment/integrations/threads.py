"""Work of ours for an asynchronous caller: in a thread, and ended early where its task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from muniment.cancelling import Cancel

T = TypeVar("T")


async def in_thread(work: Callable[[Cancel], T]) -> T:
    """What `work` returns or raises, while the loop goes on.

    Args:
        work: is given a token, which is set where the task is cancelled: the caller goes on at once, and work
            that has not committed by then writes nothing.
    """
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
    """What comes of work that is under way in a thread; cancelled, it is told so, and its end awaited.

    So whoever counts what is under way counts it until then, though nobody asks for it any more.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            cancel.set()
            with anyio.CancelScope(shield=True):  # Each further wait would be cancelled again.
                await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # Nobody asks for it any more.
        raise
