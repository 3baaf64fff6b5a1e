"""The two clients, `Client` for threads and `AsyncClient` for asyncio.

Each method of `ClientCore` is a plan: it describes requests, and does no I/O. `operation` turns a plan into a
method of both clients, with the same signature and docstring. Only creating, closing and the event stream are
written twice, because they differ.
"""

from __future__ import annotations

import inspect
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, closing
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from muniment.client.core import (
    CALL_SECONDS,
    AcceptedTask,
    ClientCore,
    ReceivedExport,
    parse_caller_kind,
)
from muniment.client.discovery import create_locator, resolve_workspace
from muniment.client.exchange import Plan
from muniment.client.follower import MARK
from muniment.client.results import Event, Result, Task
from muniment.client.transport import AsyncShell, ThreadShell
from muniment.types import ExportResult, Kind

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Result)
C = TypeVar("C")


class operation(Generic[P, T]):  # noqa: N801  a decorator, as `property` is
    """A method that both clients have: a plan that each client executes in its own way.

    Args:
        plan: a method of `ClientCore`. If it returns an accepted task, the method of the client returns a
            handle.
    """

    def __init__(self, plan: Callable[Concatenate[ClientCore, P], Plan[T]]) -> None:
        @wraps(plan)
        def call_in_thread(client: Client, *args: P.args, **more: P.kwargs) -> object:
            return client._call(plan, *args, **more)  # noqa: SLF001  of this module

        @wraps(plan)
        async def call_in_loop(client: AsyncClient, *args: P.args, **more: P.kwargs) -> object:
            return await client._call(plan, *args, **more)  # noqa: SLF001  of this module

        for method, handle in ((call_in_thread, "TaskHandle"), (call_in_loop, "AsyncTaskHandle")):
            signature = inspect.signature(plan)
            return_type = signature.return_annotation.removeprefix("Plan[")[:-1].replace(
                "AcceptedTask", handle
            )
            return_type = return_type.replace("ReceivedExport", "ExportResult")
            vars(method)["__signature__"] = signature.replace(return_annotation=return_type)
        self._thread_method, self._loop_method = call_in_thread, call_in_loop

    @overload
    def __get__(
        self: operation[P, AcceptedTask[R]], client: Client, owner: object
    ) -> Callable[P, TaskHandle[R]]: ...
    @overload
    def __get__(
        self: operation[P, AcceptedTask[R]], client: AsyncClient, owner: object
    ) -> Callable[P, Coroutine[Any, Any, AsyncTaskHandle[R]]]: ...
    @overload
    def __get__(
        self: operation[P, ReceivedExport], client: Client, owner: object
    ) -> Callable[P, ExportResult]: ...
    @overload
    def __get__(
        self: operation[P, ReceivedExport], client: AsyncClient, owner: object
    ) -> Callable[P, Coroutine[Any, Any, ExportResult]]: ...
    @overload
    def __get__(self, client: Client, owner: object) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: object) -> Callable[..., object]: ...
    def __get__(self, client: object, owner: Any) -> Callable[..., object]:
        made: Any = self._loop_method if issubclass(owner, AsyncClient) else self._thread_method
        method: Callable[..., object] = made.__get__(client, owner)
        return method


class _Operations:
    """The methods that `Client` and `AsyncClient` share."""

    _shell: Any
    _shell_class: ClassVar[type[Any]]
    _handle_class: ClassVar[type[Any]]

    remember = operation(ClientCore.remember)
    forget = operation(ClientCore.forget)
    dream = operation(ClientCore.dream)
    get = operation(ClientCore.get)
    wait = operation(ClientCore.wait)
    cancel = operation(ClientCore.cancel)
    tasks = operation(ClientCore.tasks)
    recall = operation(ClientCore.recall)
    standing_context = operation(ClientCore.standing_context)
    list = operation(ClientCore.list)
    show = operation(ClientCore.show)
    export = operation(ClientCore.export)
    capabilities = operation(ClientCore.capabilities)

    remember_workspace_memory = operation(ClientCore.remember_workspace_memory)
    forget_workspace_memory = operation(ClientCore.forget_workspace_memory)
    dream_workspace_memory = operation(ClientCore.dream_workspace_memory)
    get_workspace_memory_remember_task = operation(ClientCore.get_workspace_memory_remember_task)
    get_workspace_memory_forget_task = operation(ClientCore.get_workspace_memory_forget_task)
    get_workspace_memory_dream_task = operation(ClientCore.get_workspace_memory_dream_task)

    edit = operation(ClientCore.edit)
    pin = operation(ClientCore.pin)
    index = operation(ClientCore.index)
    history = operation(ClientCore.history)
    why = operation(ClientCore.why)
    reviews = operation(ClientCore.reviews)
    review = operation(ClientCore.review)
    approve = operation(ClientCore.approve)
    reject = operation(ClientCore.reject)
    undo = operation(ClientCore.undo)
    erase = operation(ClientCore.erase)
    audit_head = operation(ClientCore.audit_head)
    explain = operation(ClientCore.explain)
    open_ui = operation(ClientCore.open_ui)

    def __init__(
        self,
        url: str | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        token: str | None = None,
        client_id: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] | None = None,
        timeout: float = CALL_SECONDS,
    ) -> None:
        """Create a client of a daemon.

        Args:
            url: URL of the daemon, such as `http://HOST:PORT`; None: use the daemon of `home`, over its
                socket if it has one.
            socket: path of the daemon's Unix socket, instead of `url`; no token is needed there.
            token: the token for the daemon at `url`; without `url`, it replaces the token of the owner.
            client_id: one of the client ids of the token; the client then sees only tasks with this id.
            workspace: a directory of the workspace, or its key; None: the current directory. If the daemon
                does not serve this workspace, calls raise a `Problem` that explains how to serve it.
            home: the home of the daemon; None: `$MUNIMENT_HOME`, or `~/.muniment` if that is not set.
            timeout: seconds that a call may take in total, with all its retries.

        Raises:
            ConfigInvalid: invalid argument.

        Cost: none; the first call connects.
        """
        self._shell = self._shell_class(
            create_locator(os.environ, url=url, socket=socket, token=token, home=home)
        )
        self._core = ClientCore(
            new_key=lambda: str(uuid.uuid4()),
            clock=time.monotonic,
            client_id=client_id,
            workspace=resolve_workspace(workspace),
            timeout=timeout,
        )

    def _convert_result(self, result: object) -> object:
        """Convert the result of a plan for the caller.

        An accepted task becomes a handle, an export is written to its file, and other results stay unchanged.
        """
        if isinstance(result, ReceivedExport):
            return result.write()
        if not isinstance(result, AcceptedTask):
            return result
        return self._handle_class(self, result.task.task_id, replayed=result.is_replayed)


class _Handle(Generic[C, R]):
    """A task that the daemon has accepted. It continues if this program ends, and if the daemon restarts.

    Attributes:
        task_id: the id of the task.
        kind: `remember`, `forget` or `dream`.
        replayed: whether the daemon had accepted the same request with the same key before.
    """

    def __init__(self, client: C, task_id: str, *, replayed: bool = False) -> None:
        self._client, self.task_id, self.replayed = client, task_id, replayed
        self.kind: Kind = parse_caller_kind(task_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task_id!r})"


class TaskHandle(_Handle["Client", R]):
    """The handle of an accepted task, for `Client`.

    The task continues if this program ends, and if the daemon restarts.

    Attributes:
        task_id: the id of the task.
        kind: `remember`, `forget` or `dream`.
        replayed: whether the daemon had accepted the same request with the same key before.
    """

    def get(self) -> Task:
        """Return the current state of the task. Raises as described at `Client`."""
        return self._client.get(self.task_id)

    def wait(self, timeout: float | None = None) -> R:
        """Wait until the task is over, and return its result; arguments and errors as in `Client.wait`."""
        return cast("R", self._client.wait(self.task_id, timeout))

    def cancel(self) -> Task:
        """Cancel the task if it is not over yet, and return its state after that.

        Raises as described at `Client`.
        """
        return self._client.cancel(self.task_id)


class AsyncTaskHandle(_Handle["AsyncClient", R]):
    """The handle of an accepted task, for `AsyncClient`; attributes as in `TaskHandle`."""

    async def get(self) -> Task:
        """Return the current state of the task, as `TaskHandle.get` does."""
        return await self._client.get(self.task_id)

    async def wait(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  the timeout of the wait
        """Wait until the task is over, and return its result, as `TaskHandle.wait` does."""
        return cast("R", await self._client.wait(self.task_id, timeout))

    async def cancel(self) -> Task:
        """Cancel the task, as `TaskHandle.cancel` does."""
        return await self._client.cancel(self.task_id)


class Client(_Operations):
    """The client for programs with threads; several threads may share one object.

        with Client() as client:
            handle = client.remember("We deploy on Thursdays.")
            print(handle.wait(timeout=60).files_touched)

    Every call except `handle` and `close` may raise these errors, see `errors`:
        Unreachable: the daemon did not respond in time.
        Problem: the daemon rejected the request; a subclass states the reason.
        BadAnswer: the response does not follow the contract of the daemon.
        ClientError: this client is closed.
        ManagedMemoryUnavailable: the home does not contain the address of its daemon.
        ConfigInvalid: an argument is not a valid id, key or digest; raised before anything is sent.
        BadArguments: an argument has the wrong type, or a limit is out of range; raised before anything is
            sent.
    The docstring of a method lists only its additional errors.
    """

    _shell: ThreadShell
    _shell_class, _handle_class = ThreadShell, TaskHandle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; accepted tasks continue.

        If another thread is opening a connection, this may take some seconds. If another thread waits for a
        response, its call raises `Unreachable` if the request may have been processed, otherwise
        `ClientError` (closed client).
        """
        self._shell.close()

    def handle(self, task_id: str) -> TaskHandle[Result]:
        """Return the handle of a task that was accepted earlier, without sending a request.

        Raises:
            ConfigInvalid: invalid task id.
        """
        return TaskHandle(self, task_id)

    def events(self, after: str | None = None) -> Generator[Event]:
        """Yield the events of the workspace until the caller stops; reconnect after a lost connection.

        Args:
            after: the id of an event, or the result of `cursor`: events after it are yielded. None: events
                from the first connection on, which is opened when the caller requests the first event.

        Yields:
            Each event once. An event of the type `resync` means that some events were missed.
        """
        with closing(self._shell.follow(self._core, after)) as stream:
            for event in stream:
                if event.type != MARK:
                    yield event

    def cursor(self) -> str:
        """Return the current position in the event stream, for the argument `after` of `events`.

        `events(after=position)` then yields every later event.
        """
        with closing(self._shell.follow(self._core, None)) as stream:
            return next(stream).id

    def _call(
        self, plan: Callable[Concatenate[ClientCore, P], Plan[T]], *args: P.args, **more: P.kwargs
    ) -> object:
        return self._convert_result(self._shell.run(plan(self._core, *args, **more)))


class AsyncClient(_Operations):
    """The client for programs with asyncio: like `Client`, but its calls are awaited.

        async with AsyncClient() as client:
            handle = await client.remember("We deploy on Thursdays.")
            print((await handle.wait(timeout=60)).files_touched)

    One object may be used in only one event loop. If you cancel a call, its connection is closed, but the
    task in the daemon continues.
    """

    _shell: AsyncShell
    _shell_class, _handle_class = AsyncShell, AsyncTaskHandle

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, as `Client.close` does, without waiting for connection attempts."""
        await self._shell.close()

    def handle(self, task_id: str) -> AsyncTaskHandle[Result]:
        """Return the handle of a task that was accepted earlier, as `Client.handle` does."""
        return AsyncTaskHandle(self, task_id)

    async def events(self, after: str | None = None) -> AsyncGenerator[Event]:
        """Yield the events of the workspace, as `Client.events` does."""
        async with aclosing(self._shell.follow(self._core, after)) as stream:
            async for event in stream:
                if event.type != MARK:
                    yield event

    async def cursor(self) -> str:
        """Return the current position in the event stream, as `Client.cursor` does."""
        async with aclosing(self._shell.follow(self._core, None)) as stream:
            return (await anext(stream)).id

    async def _call(
        self, plan: Callable[Concatenate[ClientCore, P], Plan[T]], *args: P.args, **more: P.kwargs
    ) -> object:
        return self._convert_result(await self._shell.run(plan(self._core, *args, **more)))
