"""The client for programs with threads.

    with Client() as client:
        handle = client.remember("We deploy on Thursdays.")
        result = handle.wait(timeout=60)
        print(result.files_touched)

Threads may share a client. Closing it waits for a connection that is being made, some seconds.
Written from `aio`; after a change of that run: PYTHONPATH=tests .venv/bin/python -m kit.client.twin
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Generator, Iterable
from contextlib import closing
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from muniment.client import core, results
from muniment.client.core import CALL_SECONDS, MARK, Accepted, ClientCore, named_kind
from muniment.client.finding import name_workspace, place
from muniment.client.results import (
    Document,
    DreamResult,
    Event,
    ForgetResult,
    Kind,
    RememberResult,
    Result,
    Task,
)
from muniment.client.transport import Threads

R = TypeVar("R", bound=Result)


class TaskHandle(Generic[R]):
    """A task that the daemon has accepted: it survives this program, and the daemon.

    Attributes:
        task_id: its id.
        kind: `remember`, `forget` or `dream`.
        replayed: whether it was accepted before, under the same idempotency key.
    """

    def __init__(self, client: Client, task_id: str, *, replayed: bool = False) -> None:
        self._client, self.task_id, self.replayed = client, task_id, replayed
        self.kind: Kind = named_kind(task_id)

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def get(self) -> Task:
        """The task as it is now; raises what every call of the client does."""
        return self._client.get(self.task_id)

    def wait(self, timeout: float | None = None) -> R:
        """What the task did, once it is over; the daemon may be started anew meanwhile.

        Args:
            timeout: seconds; None: as long as the daemon is not silent for the time of a call.

        Raises:
            TaskFailed: nothing; a class of it says why.
            WaitTimeout: it is not over yet. Until then no `Unreachable` is raised where there is a timeout.
            ClientError: as every call of the client.
        """
        return cast("R", self._client.wait(self.task_id, timeout))

    def cancel(self) -> Task:
        """End the task, if it is not over; the task as it is then. Raises what every call does."""
        return self._client.cancel(self.task_id)


class Client:
    """A client of the daemon.

    Every call but `handle` and `close` raises, see `errors`:
        Unreachable: the daemon did not answer in time.
        Problem: it does not do what it was asked; a class of it says why.
        BadAnswer: what answered does not speak the contract.
        ClientError: this was closed.
        ManagedMemoryUnavailable: the home does not say where its daemon is.
        ConfigInvalid: an id, key or digest among the arguments can be none; before anything is sent.
    A call raises more than these only where it says so.

    Args:
        url: `http://HOST:PORT`; None: the daemon of the home, by its socket if it has one.
        socket: path of the daemon's Unix socket, instead; it needs no token.
        token: for `url`; with the home: instead of the owner's.
        client_id: one of the token's ids; the client then sees that id's tasks only.
        workspace: a directory in it, or its key; None: the current directory. What is asked of one that the
            daemon does not serve is a `Problem` that says how to have it served.
        home: None: `$MUNIMENT_HOME`, else `~/.muniment`.
        timeout: seconds of a call with all its tries.

    Raises:
        ConfigInvalid: an argument cannot be.

    Cost: connects at the first call.
    """

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
        self._shell = Threads(place(os.environ, url=url, socket=socket, token=token, home=home))
        self._core = ClientCore(
            new_key=lambda: str(uuid.uuid4()),
            clock=time.monotonic,
            client_id=client_id,
            workspace=name_workspace(workspace),
            timeout=timeout,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; tasks go on.

        A call under way ends with `client_closed`, or with `Unreachable` where what it asked may have been
        carried out.
        """
        self._shell.close()

    # -- tasks ---------------------------------------------------------------------------------------------

    def remember(
        self,
        content: str,
        *,
        scope: str | None = None,
        context_mode: str | None = None,
        trust: str | None = None,
        ref: str | None = None,
        expires: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskHandle[RememberResult]:
        """Have a fact remembered.

        Args:
            content: 1 to 65536 bytes of UTF-8 after trimming.
            scope: one of the policy; None: the daemon chooses.
            context_mode: `workspace` (None), or `clean`: the agent sees nothing of the memory.
            trust: who it comes from, up to the token's trust: `owner`, `workspace`, `agent`, `external`.
            ref: where it comes from, in the caller's words.
            expires: the day on which it is no longer told, such as `2026-12-31`, or in how many days, such as
                `30d`; None: as its words say, else never.
            idempotency_key: the same request under the same key is one task, also from another client object;
                None: one of this call's own.
        """
        accepted = self._shell.run(
            self._core.remember(
                content,
                scope=scope,
                context_mode=context_mode,
                trust=trust,
                ref=ref,
                expires=expires,
                idempotency_key=idempotency_key,
            )
        )
        return self._handle(accepted)

    def forget(
        self,
        query: str,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        digest: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskHandle[ForgetResult]:
        """Have an entry removed by its path, or what holds the words of `query`.

        Args:
            query: the path, or the words.
            scope: where alone to look; None: everywhere.
            dry_run: only say what would go.
            digest: that a dry run's result has: where something else would go by now, nothing does.
            idempotency_key: as of `remember`.
        """
        plan = self._core.forget(
            query, scope=scope, dry_run=dry_run, digest=digest, idempotency_key=idempotency_key
        )
        return self._handle(self._shell.run(plan))

    def dream(self, *, idempotency_key: str | None = None) -> TaskHandle[DreamResult]:
        """Have the memory tidied."""
        return self._handle(self._shell.run(self._core.dream(idempotency_key=idempotency_key)))

    def handle(self, task_id: str) -> TaskHandle[Result]:
        """The handle of a task that was accepted before; nothing is asked yet.

        Raises:
            ConfigInvalid: there can be no task of this id.
        """
        return TaskHandle(self, task_id)

    def get(self, task_id: str) -> Task:
        """A task as it is now."""
        return self._shell.run(self._core.get(task_id))

    def wait(self, task_id: str, timeout: float | None = None) -> Result:
        """As `TaskHandle.wait`, with what that raises."""
        return self._shell.run(self._core.wait(task_id, timeout))

    def cancel(self, task_id: str) -> Task:
        """As `TaskHandle.cancel`."""
        return self._shell.run(self._core.cancel(task_id))

    def tasks(self, status: str | None = None) -> tuple[Task, ...]:
        """The tasks that this client may see, the newest first; those of one status, if it is given."""
        return self._shell.run(self._core.tasks(status))

    def recall(
        self, query: str, *, exclude: Iterable[str] = (), limit: int | None = None
    ) -> results.Recalled:
        """What of the memory helps with a message; put its `text` before the model as it is.

        What is wrong with the memory leaves it empty, with the reason in `error`; nothing is raised for that.

        Args:
            query: the message, or some words: 1 to 65536 bytes of UTF-8 after trimming.
            exclude: ids of entries that the model has seen, at most 500; one that was changed since comes
                again, and what is the id of none leaves nothing out.
            limit: how many entries at most, 1 to 20; None: 5.
        """
        return self._shell.run(self._core.recall(query, exclude=exclude, limit=limit))

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
            mark = next(told)
        return mark.id

    def capabilities(self) -> Document:
        """What the daemon offers, under its own names."""
        return self._shell.run(self._core.capabilities())

    # -- the names that existing clients use ----------------------------------------------------------------

    def remember_workspace_memory(
        self, content: str, *, context_mode: str | None = None, scope: str | None = None
    ) -> Task:
        """As `remember`, but gives the task as it was accepted."""
        plan = self._core.remember(content, scope=scope, context_mode=context_mode)
        accepted = self._shell.run(plan)
        return accepted.task

    def forget_workspace_memory(self, query: str, *, scope: str | None = None) -> Task:
        """As `forget`, but gives the task as it was accepted."""
        accepted = self._shell.run(self._core.forget(query, scope=scope))
        return accepted.task

    def dream_workspace_memory(self) -> Task:
        """As `dream`, but gives the task as it was accepted."""
        accepted = self._shell.run(self._core.dream())
        return accepted.task

    def get_workspace_memory_remember_task(self, task_id: str) -> Task:
        """A task that remembers, as it is now."""
        return self._shell.run(self._core.get(task_id, "remember"))

    def get_workspace_memory_forget_task(self, task_id: str) -> Task:
        """A task that forgets, as it is now."""
        return self._shell.run(self._core.get(task_id, "forget"))

    def get_workspace_memory_dream_task(self, task_id: str) -> Task:
        """A task that tidies, as it is now."""
        return self._shell.run(self._core.get(task_id, "dream"))

    # -- the owner's ---------------------------------------------------------------------------------------

    def reviews(self) -> tuple[results.Review, ...]:
        """The change-sets that wait for the owner."""
        return self._shell.run(core.reviews(self._core))

    def review(self, review_id: str) -> results.ReviewShown:
        """A change-set as it would be approved now, with the digest to approve."""
        return self._shell.run(core.review(self._core, review_id))

    def approve(self, review_id: str, digest: str) -> results.Decided:
        """Commit a change-set exactly as `review` showed it."""
        return self._shell.run(core.approve(self._core, review_id, digest))

    def reject(self, review_id: str) -> results.Decided:
        """Turn a change-set down."""
        return self._shell.run(core.reject(self._core, review_id))

    def undo(self, task_id: str) -> results.Undone:
        """Take back what a task changed."""
        return self._shell.run(core.undo(self._core, task_id))

    def erase(self, target: str, *, yes: bool = False) -> results.ErasePlan | results.EraseReceipt:
        """Erase for good what is known of a task or a path; without `yes` it is only said what would go."""
        return self._shell.run(core.erase(self._core, target, yes=yes))

    def audit_head(self) -> results.AuditHead:
        """The end of the chain of records."""
        return self._shell.run(core.audit_head(self._core))

    def explain(self, verb: str, path: str) -> results.Explained:
        """What the policy says to `list`, `read`, `create`, `modify` or `delete` on a path."""
        return self._shell.run(core.explain(self._core, verb, path))

    def open_ui(self) -> results.UiOpened:
        """Open the page of the daemon, with a code to sign in there."""
        return self._shell.run(self._core.open_ui())

    # -- how ----------------------------------------------------------------------------------------------

    def _handle(self, accepted: Accepted) -> TaskHandle[R]:
        return TaskHandle(self, accepted.task.task_id, replayed=accepted.replayed)
