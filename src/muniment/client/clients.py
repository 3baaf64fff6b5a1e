"""The two clients, one for threads and one for asyncio: methods of both are the plans of `ClientCore`.

A plan says what is asked, and `operation` makes a method of each client of it, with its signature and its
documentation. What two kinds of program do differently stands here twice: to begin, to follow, to end.

Apart from `core`, which does no I/O.
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

from muniment.client.core import CALL_SECONDS, MARK, Accepted, ClientCore, Exported, named_kind
from muniment.client.exchange import Plan
from muniment.client.finding import name_workspace, place
from muniment.client.results import Event, Result, Task
from muniment.client.transport import Loop, Threads
from muniment.types import ExportResult, Kind

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Result)
C = TypeVar("C")


class operation(Generic[P, T]):  # noqa: N801  a decorator, as `property` is
    """A method of both clients: a plan that each carries out in its way.

    Args:
        plan: of the core. One that has a task accepted gives a handle of it.
    """

    def __init__(self, plan: Callable[Concatenate[ClientCore, P], Plan[T]]) -> None:
        @wraps(plan)
        def threaded(client: Client, *args: P.args, **more: P.kwargs) -> object:
            return client._call(plan, *args, **more)  # noqa: SLF001  of this module

        @wraps(plan)
        async def looped(client: AsyncClient, *args: P.args, **more: P.kwargs) -> object:
            return await client._call(plan, *args, **more)  # noqa: SLF001  likewise

        for made, handle in ((threaded, "TaskHandle"), (looped, "AsyncTaskHandle")):
            asked = inspect.signature(plan)
            told = asked.return_annotation.removeprefix("Plan[")[:-1].replace("Accepted", handle)
            told = told.replace("Exported", "ExportResult")
            vars(made)["__signature__"] = asked.replace(return_annotation=told)
        self._threaded, self._looped = threaded, looped

    @overload
    def __get__(
        self: operation[P, Accepted[R]], client: Client, owner: object
    ) -> Callable[P, TaskHandle[R]]: ...
    @overload
    def __get__(
        self: operation[P, Accepted[R]], client: AsyncClient, owner: object
    ) -> Callable[P, Coroutine[Any, Any, AsyncTaskHandle[R]]]: ...
    @overload
    def __get__(self: operation[P, Exported], client: Client, owner: object) -> Callable[P, ExportResult]: ...
    @overload
    def __get__(
        self: operation[P, Exported], client: AsyncClient, owner: object
    ) -> Callable[P, Coroutine[Any, Any, ExportResult]]: ...
    @overload
    def __get__(self, client: Client, owner: object) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: object) -> Callable[..., object]: ...
    def __get__(self, client: object, owner: Any) -> Callable[..., object]:
        made: Any = self._looped if issubclass(owner, AsyncClient) else self._threaded
        method: Callable[..., object] = made.__get__(client, owner)
        return method


class _Operations:
    """What both clients do."""

    _shell: Any
    _shells: ClassVar[type[Any]]
    _handles: ClassVar[type[Any]]

    remember = operation(ClientCore.remember)
    forget = operation(ClientCore.forget)
    dream = operation(ClientCore.dream)
    get = operation(ClientCore.get)
    wait = operation(ClientCore.wait)
    cancel = operation(ClientCore.cancel)
    tasks = operation(ClientCore.tasks)
    recall = operation(ClientCore.recall)
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
        """Make a client of a daemon.

        Args:
            url: `http://HOST:PORT`; None: the daemon of the home, by its socket if it has one.
            socket: path of the daemon's Unix socket, instead; it needs no token.
            token: for `url`; with the home: instead of the owner's.
            client_id: one of the token's ids; the client then sees that id's tasks only.
            workspace: a directory in it, or its key; None: the current directory. What is asked of one that
                the daemon does not serve is a `Problem` that says how to have it served.
            home: None: `$MUNIMENT_HOME`, else `~/.muniment`.
            timeout: seconds of a call with all its tries.

        Raises:
            ConfigInvalid: an argument cannot be.

        Cost: connects at the first call.
        """
        self._shell = self._shells(place(os.environ, url=url, socket=socket, token=token, home=home))
        self._core = ClientCore(
            new_key=lambda: str(uuid.uuid4()),
            clock=time.monotonic,
            client_id=client_id,
            workspace=name_workspace(workspace),
            timeout=timeout,
        )

    def _given(self, result: object) -> object:
        """What a call gives: of what was accepted, a handle; of an export, what was written."""
        if isinstance(result, Exported):
            return result.write()
        if not isinstance(result, Accepted):
            return result
        return self._handles(self, result.task.task_id, replayed=result.replayed)


class _Handle(Generic[C, R]):
    """A task that the daemon has accepted: it survives this program, and the daemon.

    Attributes:
        task_id: its id.
        kind: `remember`, `forget` or `dream`.
        replayed: whether the daemon had accepted the same request before.
    """

    def __init__(self, client: C, task_id: str, *, replayed: bool = False) -> None:
        self._client, self.task_id, self.replayed = client, task_id, replayed
        self.kind: Kind = named_kind(task_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task_id!r})"


class TaskHandle(_Handle["Client", R]):
    """A task that the daemon has accepted, see `_Handle`, for threads."""

    def get(self) -> Task:
        """The task as it is now; raises what every call of the client does."""
        return self._client.get(self.task_id)

    def wait(self, timeout: float | None = None) -> R:
        """What the task did, once it is over; see `Client.wait`, and what that raises."""
        return cast("R", self._client.wait(self.task_id, timeout))

    def cancel(self) -> Task:
        """End the task, if it is not over; the task as it is then. Raises what every call does."""
        return self._client.cancel(self.task_id)


class AsyncTaskHandle(_Handle["AsyncClient", R]):
    """A task that the daemon has accepted, for asyncio."""

    async def get(self) -> Task:
        """As `TaskHandle.get`."""
        return await self._client.get(self.task_id)

    async def wait(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  that of the wait
        """As `TaskHandle.wait`."""
        return cast("R", await self._client.wait(self.task_id, timeout))

    async def cancel(self) -> Task:
        """As `TaskHandle.cancel`."""
        return await self._client.cancel(self.task_id)


class Client(_Operations):
    """The client for programs with threads; they may share one.

        with Client() as client:
            handle = client.remember("We deploy on Thursdays.")
            print(handle.wait(timeout=60).files_touched)

    Every call but `handle` and `close` raises, see `errors`:
        Unreachable: the daemon did not answer in time.
        Problem: it does not do what it was asked; a class of it says why.
        BadAnswer: what answered does not speak the contract.
        ClientError: this was closed.
        ManagedMemoryUnavailable: the home does not say where its daemon is.
        ConfigInvalid: an id, key or digest among the arguments can be none; before anything is sent.
        BadArguments: an argument has the wrong type, or a limit is out of range; before anything is sent.
    A call raises more than these only where it says so.
    """

    _shell: Threads
    _shells, _handles = Threads, TaskHandle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, once one that is being made is there, some seconds; tasks go on.

        A call under way ends with `client_closed`, or with `Unreachable` where what it asked may have been
        carried out.
        """
        self._shell.close()

    def handle(self, task_id: str) -> TaskHandle[Result]:
        """The handle of a task that was accepted before; nothing is asked yet.

        Raises:
            ConfigInvalid: there can be no task of this id.
        """
        return TaskHandle(self, task_id)

    def events(self, after: str | None = None) -> Generator[Event]:
        """What happens in the workspace, for as long as one asks; goes on over lost connections.

        Args:
            after: the id of an event, or a `cursor`; None: from the first connection on, which is made when
                the first event is asked for.

        Yields:
            Events, each once. One of the type `resync`: some were missed.
        """
        with closing(self._shell.follow(self._core, after)) as told:
            for event in told:
                if event.type != MARK:
                    yield event

    def cursor(self) -> str:
        """Where the events stand; `events` after this misses nothing that happens from now on."""
        with closing(self._shell.follow(self._core, None)) as told:
            return next(told).id

    def _call(
        self, plan: Callable[Concatenate[ClientCore, P], Plan[T]], *args: P.args, **more: P.kwargs
    ) -> object:
        return self._given(self._shell.run(plan(self._core, *args, **more)))


class AsyncClient(_Operations):
    """The client for programs with asyncio: as `Client`, but that its calls are awaited.

        async with AsyncClient() as client:
            handle = await client.remember("We deploy on Thursdays.")
            print((await handle.wait(timeout=60)).files_touched)

    An object belongs to one event loop. Cancelling a call closes its connection, and no task.
    """

    _shell: Loop
    _shells, _handles = Loop, AsyncTaskHandle

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`, without waiting for a connection that is being made."""
        await self._shell.close()

    def handle(self, task_id: str) -> AsyncTaskHandle[Result]:
        """As `Client.handle`."""
        return AsyncTaskHandle(self, task_id)

    async def events(self, after: str | None = None) -> AsyncGenerator[Event]:
        """As `Client.events`."""
        async with aclosing(self._shell.follow(self._core, after)) as told:
            async for event in told:
                if event.type != MARK:
                    yield event

    async def cursor(self) -> str:
        """As `Client.cursor`."""
        async with aclosing(self._shell.follow(self._core, None)) as told:
            return (await anext(told)).id

    async def _call(
        self, plan: Callable[Concatenate[ClientCore, P], Plan[T]], *args: P.args, **more: P.kwargs
    ) -> object:
        return self._given(await self._shell.run(plan(self._core, *args, **more)))
