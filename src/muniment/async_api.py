"""The library for asyncio: `AsyncMemory` has the operations of `Memory` and runs each in a thread.

    async with await muniment.AsyncMemory.open(workspace=".") as memory:
        result = await memory.remember("The user prefers dark mode in all editors")

If the task that awaits an operation is cancelled, the operation ends early. Changes that are not committed
yet are then not written.
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
from muniment.cancelling import Cancel, await_completion
from muniment.kernel.cancel import Deadline

P = ParamSpec("P")
T = TypeVar("T")

_NO_LIMIT_SECONDS: Final = 1_000_000.0
"""Time limit of a recall for which the caller sets none; cancelling its task ends the recall earlier."""

MAX_THREADS: Final = 8
"""Maximum number of operations that run at the same time on one memory; further operations wait."""


class _AsyncMethod(Generic[P, T]):
    """A descriptor that makes a method of `Memory` asynchronous, with the same arguments and docstring."""

    def __init__(self, method: Callable[Concatenate[Memory, P], T]) -> None:
        parameters = inspect.signature(method).parameters

        @wraps(method)
        async def run_async(memory: AsyncMemory, *args: P.args, **more: P.kwargs) -> T:
            def work(cancel: Cancel) -> T:
                ends: dict[str, Any] = {
                    "cancel": cancel,
                    "deadline": Deadline(time.monotonic() + _NO_LIMIT_SECONDS, cancel),
                }
                arguments: Any = {name: end for name, end in ends.items() if name in parameters} | more
                return method(memory.memory, *args, **arguments)

            return await memory._run_in_thread(work)  # noqa: SLF001  of this module

        self._method = run_async

    @overload
    def __get__(self, memory: AsyncMemory, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, memory: None, owner: object) -> Callable[..., object]: ...
    def __get__(self, memory: AsyncMemory | None, owner: Any) -> Callable[..., object]:
        return self._method if memory is None else partial(self._method, memory)


def _build_async_opener(make: Callable[P, Memory]) -> Callable[P, Coroutine[Any, Any, AsyncMemory]]:
    @wraps(make)
    async def open_async(*args: P.args, **more: P.kwargs) -> AsyncMemory:
        opening = asyncio.get_running_loop().run_in_executor(None, partial(make, *args, **more))
        try:
            return AsyncMemory(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    return open_async


def _close_opened(opening: asyncio.Future[Memory]) -> None:
    """Close the memory if it was opened; called when the task that opened it was cancelled.

    Args:
        opening: the completed call that opens the memory.
    """
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class AsyncMemory:
    """An open memory for asyncio. Create it with `AsyncMemory.open`, and use it in only one event loop.

    If the task that awaits an operation is cancelled, the task waits until the operation ends. If the caller
    passed its own `cancel` token, the operation continues to its normal end.

    Attributes:
        memory: the same memory for threads, for example for its method `conversation`. Closing this object
            also closes it.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._threads = ThreadPoolExecutor(MAX_THREADS, "memory")

    open = staticmethod(_build_async_opener(api.open))
    remember = _AsyncMethod(Memory.remember)
    forget = _AsyncMethod(Memory.forget)
    dream = _AsyncMethod(Memory.dream)
    recall = _AsyncMethod(Memory.recall)
    standing_context = _AsyncMethod(Memory.standing_context)
    list = _AsyncMethod(Memory.list)
    show = _AsyncMethod(Memory.show)
    edit = _AsyncMethod(Memory.edit)
    pin = _AsyncMethod(Memory.pin)
    history = _AsyncMethod(Memory.history)
    why = _AsyncMethod(Memory.why)
    undo = _AsyncMethod(Memory.undo)
    reviews = _AsyncMethod(Memory.reviews)
    review = _AsyncMethod(Memory.review)
    approve = _AsyncMethod(Memory.approve)
    reject = _AsyncMethod(Memory.reject)
    export = _AsyncMethod(Memory.export)
    index = _AsyncMethod(Memory.index)
    explain = _AsyncMethod(Memory.explain)
    erase = _AsyncMethod(Memory.erase)

    async def close(self) -> None:
        """Wait for operations in progress, then close the memory, even if this call is cancelled."""
        with Cancel() as unused:
            await await_completion(asyncio.get_running_loop().run_in_executor(None, self._close), unused)

    def _close(self) -> None:
        self._threads.shutdown()
        self.memory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _run_in_thread(self, work: Callable[[Cancel], T]) -> T:
        with Cancel() as cancel:
            body = partial(copy_context().run, work, cancel)
            return await await_completion(
                asyncio.get_running_loop().run_in_executor(self._threads, body), cancel
            )
