"""A node of a fleet without HTTP: serves all homes.

N1 The token of a home gives access only to this home. The node's own token gives its operator information
   about the node.
N2 Accepted tasks are in the ledger, with their jobs in the queue; any node runs them.
N3 While the database does not respond, nothing is accepted. Running tasks commit or are queued again, and
   work continues when the database responds. A node whose disk is full accepts no work and reports it.

The event loop never waits for the database: threads run the queries.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import psycopg

from muniment import events
from muniment.agent.model import Model
from muniment.cancelling import Cancel
from muniment.errors import LedgerUnreachable, MunimentError
from muniment.fleet import schema
from muniment.fleet.home import HomeCore
from muniment.fleet.homes import compute_keyed_digest, derive_home_key
from muniment.fleet.lease import LEASE_SECONDS
from muniment.fleet.postgres import CHECK_SECONDS, LedgerPool, build_connection_options
from muniment.fleet.queue import TurnQueue
from muniment.fleet.working_copies import CopyOptions, WorkingCopy, build_copy_path, read_mark
from muniment.kernel.cancel import Deadline
from muniment.names import __version__, compute_hello_proof, derive_hello_key, derive_hello_name
from muniment.opening import create_embedder
from muniment.policy.grammar import parse_symlinks
from muniment.policy.ownership import create_private_directory
from muniment.server.contract import DATABASE_RETRY_SECONDS, HttpProblem
from muniment.server.core import MAX_OWNER_OPERATIONS, RETRY_SECONDS, ServedCore, ServingCore
from muniment.server.recalls import Recalls
from muniment.server.tokens import OWNER_PRINCIPAL, Principal, SlotShares, is_token, load_owner_token
from muniment.settings import Settings, load_configured_policy
from muniment.store.state import LedgerState, read_key
from muniment.store.tasks import OWNER

SLOTS: Final = 8
"""Maximum concurrent turns. A turn runs the tasks of a home one at a time, and mostly waits for a model."""

MAX_OPEN: Final = 256
"""Maximum open working copies, about 0.5 MB each."""

CACHE_BYTES: Final = 8 << 30
"""Maximum bytes of working copies on disk. If they exceed it, the least recently used copies are deleted."""

MIN_FREE_BYTES: Final = 64 << 20
"""Minimum free bytes on the disk of the working copies. If fewer are free, the node accepts no work."""

MAX_HOMES: Final = 10_000
"""Maximum homes that a node keeps in memory, about 5 KB each."""

TIDY_SECONDS: Final = 60.0
"""Seconds between two checks of all working copies. A notice from the database causes an earlier check."""

_THREADS: Final = 16
_PAUSE_SECONDS: Final = 1.0
_ENDED_NODE_SECONDS: Final = 86_400.0
_CLOSE_SECONDS: Final = 5.0

_CHANNELS: Final = ("muniment_home", "muniment_cancelled", "muniment_token", "muniment_stale")
"""Channels on which the database notifies nodes of events in homes; its migrations create them."""

OPEN_PATHS: Final = frozenset({"/healthz", "/health", "/readyz"})
"""Paths that need no token, for load balancers."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of a node.

    Attributes:
        url: URL of the database for the nodes' role.
        name: unique name of the node.
        slots: maximum concurrent turns.
        lease: duration of a lease in seconds; if a node ends, other nodes take over its homes after this
            time.
        cache: maximum bytes of working copies on disk.
    """

    url: str
    name: str
    slots: int = SLOTS
    lease: float = LEASE_SECONDS
    cache: int = CACHE_BYTES


class FleetNode(ServingCore):
    """The core of a fleet node. Open it with `open`, close it with `close`.

    Attributes:
        metrics, model, recalls, queue: shared by all homes.
        problem: code of the problem that prevents work, or None.
        page_access: unused, because a node has no page.
    """

    queue: TurnQueue

    def __init__(self, settings: Settings, model: Model, options: NodeOptions) -> None:
        super().__init__(settings, model)
        self._options = options
        self._homes: dict[str, HomeCore] = {}
        # Includes homes that were dropped while still in use, so that a directory never has two copies.
        self._homes_in_use: WeakValueDictionary[str, HomeCore] = WeakValueDictionary()
        self._lock = threading.Lock()  # Protects the known homes, and the copies of unknown homes.
        self._threads = ThreadPoolExecutor(_THREADS, "ledger")
        self._check_threads = ThreadPoolExecutor(1, "check")
        self._turns = ThreadPoolExecutor(options.slots, "turn")
        self._operation_slots = SlotShares(MAX_OWNER_OPERATIONS, RETRY_SECONDS, reserve=0)
        self._running: set[asyncio.Future[None]] = set()
        self._closing = threading.Event()
        self._open_nodes: tuple[str, ...] = ()
        self.epoch = secrets.token_hex(4)
        self.problem: str | None = None
        self.open_paths = OPEN_PATHS

    # -- life

    async def open(self, directories: tuple[Path, ...]) -> None:
        """Connect to the database, and start to run turns.

        Args:
            directories: not used.

        Raises:
            ConfigInvalid, StateTooNew: the node cannot use the database, see `schema.check_database`.
            PolicyInvalid: invalid policy.
            LedgerUnreachable: the database does not respond.
        """
        del directories
        async with AsyncExitStack() as opened:
            self._loop = asyncio.get_running_loop()
            self.recalls = Recalls(self.metrics)
            opened.push_async_callback(self._end_threads)
            await asyncio.to_thread(self._prepare)
            opened.callback(self._pool.close)
            opened.callback(self._closing.set)
            name, lease = self._options.name, self._options.lease
            self.queue = TurnQueue(
                self._options.url,
                self._pool,
                self._run_turn,
                lambda: self._open_nodes,
                slots=self._options.slots,
                node=name,
                stalled=lease,
            )
            for work in (self.queue.run(), self._end_idle_zygote()):
                running = asyncio.create_task(work)
                opened.push_async_callback(_cancel_task, running)
            for each, seconds in (
                (self._beat, lease / 4),
                (self._listen, _PAUSE_SECONDS),
                (self._delete_stale_copies, TIDY_SECONDS),
            ):
                loop = partial(self._run_repeatedly, each, seconds)
                threading.Thread(target=loop, name=each.__name__, daemon=True).start()
            opened.push_async_callback(asyncio.to_thread, self._unregister)
            opened.push_async_callback(asyncio.to_thread, self._close_copies)
            self._opened = opened.pop_all()

    def _prepare(self) -> None:
        settings, options = self.settings, self._options
        create_private_directory(settings.state)
        self._key = read_key(settings.state)
        self._operator_token = load_owner_token(settings.state)
        loaded = load_configured_policy(settings)
        self.copy_options = CopyOptions(
            loaded.policy,
            options.name,
            options.lease,
            parse_symlinks(settings.symlinks),
            settings.on_model_failure,
            create_embedder(settings),
        )
        self._cache = settings.state / "copies"
        create_private_directory(self._cache)
        self._pool = LedgerPool(options.url, options.slots + _THREADS)
        try:
            schema.check_database(self._pool, self._key)
            self._report_state()
        except BaseException:
            self._pool.close()
            raise

    async def stop(self, grace: float) -> bool:
        """Stop accepting requests, and give running turns `grace` seconds to end.

        Returns:
            Whether all turns, recalls and operations have ended.
        """
        self._is_draining = True
        with suppress(MunimentError, TimeoutError):  # If this fails, other nodes take over after a lease.
            await asyncio.wait_for(self.run_query(self._hand_over), _CLOSE_SECONDS)
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        for home in list(self._homes_in_use.values()):
            home.interrupt_and_stop()
        for cancel in self._operations.values():
            cancel.set()
        has_recalled = await self.recalls.stop()
        if left := {*self._running, *self._operations}:
            await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        return has_recalled and not self._running and not self._operations

    def _hand_over(self) -> None:
        self._report_state()
        self.queue.hand_over()

    def disconnect_followers(self) -> None:
        """Disconnect all clients that follow or wait for events."""
        for home in list(self._homes_in_use.values()):
            home.disconnect_followers()

    # -- callers

    def compute_keyed_digest(self, text: str) -> str:
        """Return the digest of `text` under the key of the fleet.

        The database maps the digest of a token to the home of the token.
        """
        return compute_keyed_digest(self._key, text)

    async def find_principal(self, unsafe_token: str) -> Principal | None:
        """Return the principal of a token, or None if the token is unknown.

        Raises:
            HttpProblem: the database does not respond.
        """
        if not is_token(unsafe_token):
            return None
        sent = self.compute_keyed_digest(f"token {unsafe_token}")
        if hmac.compare_digest(sent, self.compute_keyed_digest(f"token {self._operator_token}")):
            return OWNER_PRINCIPAL
        if self.problem == LedgerUnreachable.code:
            raise self.build_unavailable_problem()  # Otherwise callers would wait, until no thread is free.
        try:
            return await self.run_query(lambda: self._find_principal(sent))
        except MunimentError:
            raise self.build_unavailable_problem() from None

    def _find_principal(self, digest: str) -> Principal | None:
        home = self._query_token("SELECT home_of(%s)", digest)
        return None if home is None else self.home(home).find_principal(digest)

    def _query_token(self, query: str, sent: str) -> Any:
        """Return the value that a query over all homes finds for a token's digest or public name, or None."""
        with self._pool.connection() as connection:
            found = connection.execute(query, (sent,)).fetchone()
        return None if found is None else found[0]

    def get_core(self, principal: Principal) -> ServedCore:
        """Return the core that serves this principal: its home or, for the operator of the node, the node."""
        return self.home(principal.home) if principal.home else self

    async def create_proof(self, unsafe_name: str, nonce: str, address: str) -> str:
        """Return a proof that the fleet knows a token, see `Tokens.create_proof`.

        Raises:
            HttpProblem: the database does not respond.
        """
        found = hmac.digest(self._key, b"hello\n" + unsafe_name.encode(), "sha256")
        operator_key = derive_hello_key(self._operator_token)
        if hmac.compare_digest(derive_hello_name(operator_key), unsafe_name):
            found = operator_key
        else:
            if self.problem == LedgerUnreachable.code:
                raise self.build_unavailable_problem()
            known = await self.run_query(partial(self._query_token, "SELECT hello_of(%s)", unsafe_name))
            found = found if known is None else bytes(known)
        return compute_hello_proof(found, nonce, address)

    async def list_problems(self) -> dict[str, str | None]:
        """Return the code of the problem that prevents tasks, or None, by the name of the node."""
        looking = self._loop.run_in_executor(self._check_threads, self._check_problem)
        try:  # With a time limit, because other checks may wait for the database too.
            problem = await asyncio.wait_for(looking, CHECK_SECONDS)
        except TimeoutError:
            problem = LedgerUnreachable.code
        return {self._options.name: problem}

    def build_unavailable_problem(self) -> HttpProblem:
        """Return the error to send while the node accepts no work."""
        if self.problem not in {None, LedgerUnreachable.code}:
            return HttpProblem(
                "not_ready", headers={"Retry-After": str(DATABASE_RETRY_SECONDS)}, reason=self.problem
            )
        return HttpProblem(LedgerUnreachable.code, headers={"Retry-After": str(DATABASE_RETRY_SECONDS)})

    async def run_query(self, query: Callable[[], T]) -> T:
        """Run `query` in a thread and return its result."""
        return await self._loop.run_in_executor(self._threads, query)

    async def run_operation(self, home: str, operation: Callable[[Cancel], T]) -> T:
        """Run an operation that is not a task in a thread; if its caller is cancelled, cancel the operation.

        Args:
            home: name of the home, which has a share of the slots for operations.
            operation: the operation; it should end early when its `Cancel` is set.

        Raises:
            HttpProblem: the node stops, or too many operations are running.
        """
        self.require_open()
        share = f"{home}/{OWNER}"
        self._operation_slots.acquire(share)
        return await self._run_operation(operation, partial(self._operation_slots.release, share))

    # -- homes

    def home(self, name: str) -> HomeCore:
        """Return the core of the home `name`; create it if it is not in memory."""
        with self._lock:
            found = self._homes_in_use.get(name)
            if found is None:
                ledger, key = self._pool.home(name), derive_home_key(self._key, name)
                copy = WorkingCopy(build_copy_path(self._cache, name), ledger, key, self.copy_options)
                found = self._homes_in_use[name] = HomeCore(self, ledger, LedgerState(ledger, key), copy)
            self._homes[name], found.last_used = found, time.monotonic()
            return found

    async def _run_turn(self, home: str) -> None:
        """Run a job of the queue: a turn of a home. If the node accepts no work, queue the job again."""
        if self.problem is not None or self.is_draining:
            await self.run_query(lambda: self._requeue(home))
            return
        self._last_task = time.monotonic()
        running = self._loop.run_in_executor(self._turns, self.home(home).run_turn)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        await asyncio.shield(running)  # Cancelling the job does not end the thread.

    def _requeue(self, home: str) -> None:
        with self._pool.connection() as connection:
            self.queue.defer(connection, home, 1)

    @property
    def turn_count(self) -> int:
        """Return the number of running turns."""
        return len(self._running)

    # -- background work

    def _run_repeatedly(self, operation: Callable[[], None], seconds: float) -> None:
        """Run `operation` repeatedly, with a pause of `seconds` after each run, until the node closes."""
        reported = ""
        while not self._closing.is_set():
            try:
                operation()
                reported = ""
            except Exception as error:  # noqa: BLE001  Without this thread leases would expire, and notices be missed.
                if reported != (reported := type(error).__name__) and not self._closing.is_set():
                    events.emit_defect("node_failed", error, what=operation.__name__.strip("_"))
            self._closing.wait(seconds)

    def _beat(self) -> None:
        """Check the database; if it responds, renew the leases of this node and report its state."""
        if self._check_problem() == LedgerUnreachable.code:
            return
        for home in list(self._homes_in_use.values()):
            with suppress(MunimentError):  # The next beat is in time.
                home.renew_lease()
            if home.is_followed:
                self._call_on_loop(home.wake)  # In case a notice was lost.
        self._report_state()

    def _check_problem(self) -> str | None:
        problem = None
        try:
            with self._pool.connection() as connection:
                connection.execute("SELECT 1")
        except MunimentError as error:
            problem = error.code
        with suppress(OSError):
            found = os.statvfs(self._cache)
            if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
                problem = problem or "disk_full"
        if problem != self.problem:
            events.emit("node_problem", code=problem or "", was=self.problem or "")
            self.problem = problem
        return problem

    def _report_state(self) -> None:
        """Report the state of this node to the other nodes, and read which nodes are open."""
        problem = self.problem or ("draining" if self.is_draining else None)
        values = (self._options.name, __version__, self.turn_count, self._options.slots, problem)
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO node (name, version, running, slots, problem) VALUES (%s, %s, %s, %s, %s) "
                "ON CONFLICT (name) DO UPDATE SET version = excluded.version, running = excluded.running, "
                "slots = excluded.slots, problem = excluded.problem, seen = now()",
                values,
            )
            found = connection.execute(
                "SELECT name, running < slots FROM node WHERE problem IS NULL "
                "AND seen > now() - make_interval(secs => %s)",
                (self._options.lease,),
            ).fetchall()
        free = tuple(name for name, is_free in found if is_free)
        # If all are full, each keeps its waiting homes: otherwise they would take them from each other.
        self._open_nodes = free or tuple(name for name, _ in found)

    def _unregister(self) -> None:
        self._closing.set()  # Otherwise the next beat would register the node again.
        with suppress(MunimentError), self._pool.connection() as connection:
            connection.execute("DELETE FROM node WHERE name = %s", (self._options.name,))

    def _delete_stale_copies(self) -> None:
        """Delete copies that may contain erased data, and copies above the limits of memory and disk.

        Separate from `_beat`, because deleting many files may take longer than a lease.
        """
        marks = {each: read_mark(each) for each in self._cache.iterdir()}
        valid_marks = [mark for mark in marks.values() if mark is not None]
        with self._pool.connection() as connection:
            names, seen = [name for name, _ in valid_marks], [position.erased for _, position in valid_marks]
            found = connection.execute("SELECT stale_copies(%s, %s::bigint[])", (names, seen)).fetchall()
            connection.execute(
                "DELETE FROM node WHERE seen < now() - make_interval(secs => %s)", (_ENDED_NODE_SECONDS,)
            )
        for (name,) in found:
            self._discard(name, only_stale=True)
        for home in list(self._homes_in_use.values()):
            if home.copy.is_spoiled:  # Also if its home was deleted during a change.
                self._discard(home.name)
        for each in (each for each, mark in marks.items() if mark is None):
            with self._lock:  # One at a time, because requests for a home wait for this lock.
                if each not in self._map_copies():
                    shutil.rmtree(each)
        self._evict_copies()

    def _map_copies(self) -> dict[Path, HomeCore]:
        """Return the homes that are known or in use, by the directory of their copy."""
        return {home.copy.directory: home for home in list(self._homes_in_use.values())}

    def _evict_copies(self) -> None:
        """Close copies above `MAX_OPEN` and delete copies above the disk limit, least recently used first."""
        known = list(self._homes.values())
        idle = sorted(
            (home for home in known if home.copy.is_idle and not home.is_followed),
            key=lambda home: home.last_used,
        )
        opened = [home for home in idle if home.copy.is_open]
        for home in opened[: max(0, len(opened) - MAX_OPEN)]:
            with suppress(MunimentError):  # It is in use again.
                home.copy.close(Deadline(time.monotonic()))
        for home in idle[: max(0, len(known) - MAX_HOMES)]:
            with self._lock:
                is_used = home.copy.is_open or home.last_used > time.monotonic() - TIDY_SECONDS
                if not is_used:
                    del self._homes[home.name]
                    self._call_on_loop(home.close_stream)
        sizes = {each: _measure_directory(each) for each in self._cache.iterdir()}
        left = sum(sizes.values()) - self._options.cache
        for each in sorted(sizes, key=_read_change_time):
            if left <= 0:
                return
            name = (read_mark(each) or ("", None))[0]
            if name and self.home(name).copy.is_idle:
                self._discard(name)
                left -= sizes[each]

    def _discard(self, name: str, *, only_stale: bool = False) -> None:
        deadline = Deadline(time.monotonic() + _CLOSE_SECONDS)
        with suppress(MunimentError):
            self.home(name).copy.discard(deadline, only_stale=only_stale)

    def _listen(self) -> None:
        """Receive notices of the database about homes, until the node closes or the connection fails."""
        options = build_connection_options(f"muniment {self._options.name}")
        with psycopg.connect(self._options.url, autocommit=True, **options) as connection:
            for channel in _CHANNELS:
                connection.execute(f"LISTEN {channel}")
            self._call_on_loop(self._check_missed_events)
            while not self._closing.is_set():
                for notice in connection.notifies(timeout=_PAUSE_SECONDS):
                    self._handle_notice(notice.channel, notice.payload)

    def _call_on_loop(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop was closed in the meantime.
            self._loop.call_soon_threadsafe(callback)

    def _run_in_thread(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The threads were ended in the meantime.
            self._threads.submit(callback)

    def _check_missed_events(self) -> None:
        """Read events, and check permissions, that this node may have missed while it did not listen."""
        for home in list(self._homes_in_use.values()):
            home.wake()
            home.recheck_permissions()

    def _handle_notice(self, channel: str, payload: str) -> None:
        name, _, task = payload.partition(" ")
        home = self._homes_in_use.get(name)
        if channel == "muniment_stale" and build_copy_path(self._cache, name).exists():
            self._run_in_thread(partial(self._discard, name, only_stale=True))
        if home is None:
            return
        if channel == "muniment_token":
            self._call_on_loop(home.recheck_permissions)
        if channel == "muniment_cancelled":
            self._run_in_thread(partial(home.interrupt, task))
        if home.is_followed:
            self._call_on_loop(home.wake)

    def _close_copies(self) -> None:
        for home in list(self._homes_in_use.values()):
            with suppress(MunimentError):
                home.copy.close(Deadline(time.monotonic() + 1.0))

    async def _end_threads(self) -> None:
        def end() -> None:
            for pool in (self._threads, self._check_threads, self._turns, self._operation_threads):
                pool.shutdown(wait=False)
            self.recalls.close()

        await asyncio.to_thread(end)


async def _cancel_task(running: asyncio.Task[None]) -> None:
    running.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await running


def _measure_directory(directory: Path) -> int:
    """Return the bytes of all files under a directory.

    If files are deleted in the meantime, return the bytes that were counted until then.
    """
    size = 0
    with suppress(OSError):
        for each in directory.rglob("*"):
            size += each.lstat().st_size
    return size


def _read_change_time(directory: Path) -> float:
    """Return the time when a copy was last marked as complete; infinite if it was deleted in the meantime."""
    try:
        return directory.stat().st_mtime
    except OSError:
        return math.inf
