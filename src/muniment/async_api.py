"""The library for asyncio: `AsyncMemory` has the operations of `Memory`, each run in a thread.

    async with await muniment.AsyncMemory.open(workspace=".") as memory:
        result = await memory.remember("The user prefers dark mode in all editors")

A cancelled task ends its operation early: changes that are not committed yet are not written.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

from muniment import api
from muniment.api import Memory
from muniment.cancelling import Cancel, until_ended
from muniment.kernel.cancel import Patience

P = ParamSpec("P")
T = TypeVar("T")

_LONG: Final = 1_000_000.0
"""Seconds of a recall that has no other limit than the cancellation of its task."""

MAX_THREADS: Final = 8
"""Concurrent operations of one memory; others wait."""


class _Awaited(Generic[P, T]):
    """A method of `AsyncMemory`, derived from a method of `Memory`: same arguments, same documentation."""

    def __init__(self, method: Callable[Concatenate[Memory, P], T]) -> None:
        takes = inspect.signature(method).parameters

        @wraps(method)
        async def awaited(memory: AsyncMemory, *args: P.args, **more: P.kwargs) -> T:
            def work(cancel: Cancel) -> T:
                ends: dict[str, Any] = {
                    "cancel": cancel,
                    "patience": Patience(time.monotonic() + _LONG, cancel),
                }
                given: Any = {name: end for name, end in ends.items() if name in takes} | more
                return method(memory.memory, *args, **given)

            return await memory._carry_out(work)  # noqa: SLF001  of this module

        self._method = awaited

    @overload
    def __get__(self, memory: AsyncMemory, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, memory: None, owner: object) -> Callable[..., object]: ...
    def __get__(self, memory: AsyncMemory | None, owner: Any) -> Callable[..., object]:
        return self._method if memory is None else partial(self._method, memory)


def _opener(make: Callable[P, Memory]) -> Callable[P, Coroutine[Any, Any, AsyncMemory]]:
    @wraps(make)
    async def opened(*args: P.args, **more: P.kwargs) -> AsyncMemory:
        opening = asyncio.get_running_loop().run_in_executor(None, partial(make, *args, **more))
        try:
            return AsyncMemory(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    return opened


def _close_opened(opening: asyncio.Future[Memory]) -> None:
    """Close a memory that no caller waits for any more, if it was opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class AsyncMemory:
    """An open memory for asyncio; belongs to one event loop. Create one with `AsyncMemory.open`.

    If an operation receives a `cancel` argument, cancelling its task sets another token, and waits until the
    operation ends.

    Attributes:
        memory: the memory for threads, for its conversations; closed with this object.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._threads = ThreadPoolExecutor(MAX_THREADS, "memory")

    open = staticmethod(_opener(api.open))
    remember = _Awaited(Memory.remember)
    forget = _Awaited(Memory.forget)
    dream = _Awaited(Memory.dream)
    recall = _Awaited(Memory.recall)
    list = _Awaited(Memory.list)
    show = _Awaited(Memory.show)
    edit = _Awaited(Memory.edit)
    pin = _Awaited(Memory.pin)
    history = _Awaited(Memory.history)
    why = _Awaited(Memory.why)
    undo = _Awaited(Memory.undo)
    reviews = _Awaited(Memory.reviews)
    review = _Awaited(Memory.review)
    approve = _Awaited(Memory.approve)
    reject = _Awaited(Memory.reject)
    export = _Awaited(Memory.export)
    index = _Awaited(Memory.index)
    explain = _Awaited(Memory.explain)
    erase = _Awaited(Memory.erase)

    async def close(self) -> None:
        """Wait for operations in progress, then close the memory; also if this call is cancelled."""
        with Cancel() as unused:
            await until_ended(asyncio.get_running_loop().run_in_executor(None, self._close), unused)

    def _close(self) -> None:
        self._threads.shutdown()
        self.memory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _carry_out(self, work: Callable[[Cancel], T]) -> T:
        with Cancel() as cancel:
            body = partial(copy_context().run, work, cancel)
            return await until_ended(asyncio.get_running_loop().run_in_executor(self._threads, body), cancel)
