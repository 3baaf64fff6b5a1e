"""A node of a fleet: everything of it but HTTP, for whatever home is asked for.

N1 A token leads to its home and to no other; with the node's own token its operator asks about the node.
N2 What was accepted is in the ledger, with its place in the queue; any node carries it out.
N3 While the database is away nothing is accepted; what runs commits or is put back, and everything goes on
   when the database is back. A node whose disk is full takes no work and says so.

Nothing here waits on the loop for the database: what asks it does so in a thread.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg

from muniment import events
from muniment.adapters.threads import until_ended
from muniment.agent.model import Model
from muniment.cancelling import Cancel
from muniment.daemon.contract import AWAY_SECONDS, HttpProblem
from muniment.daemon.core import MAX_OWNER, RETRY_SECONDS, Recalls
from muniment.daemon.page.door import PageDoor
from muniment.daemon.tokens import THE_OWNER, Principal, Shares, owner_token
from muniment.daemon.work import Metrics
from muniment.errors import LedgerAway, MunimentError
from muniment.fence.pool import shared_zygote
from muniment.fleet import schema
from muniment.fleet.copies import CopyTerms, WorkingCopy, directory_of, home_of
from muniment.fleet.home import HomeCore
from muniment.fleet.homes import key_of, keyed
from muniment.fleet.lease import LEASE_SECONDS
from muniment.fleet.queue import TurnQueue
from muniment.kernel.cancel import Patience
from muniment.lane import OWNER
from muniment.names import __version__, hello_key, hello_name, hello_proof
from muniment.opening import embedder_of
from muniment.ownership import create_private_directory
from muniment.policy.grammar import check_symlinks
from muniment.settings import Settings
from muniment.signatures import load_configured
from muniment.store.postgres import ALIVE, LOOK_SECONDS, LedgerPool, session_options
from muniment.store.state import LedgerState, read_key

if TYPE_CHECKING:
    from muniment.daemon.core import DaemonCore

SLOTS: Final = 8
"""Turns at once: each runs one task of its home; who asks a model waits for it most of the time."""

MAX_OPEN: Final = 256
"""Working copies that are kept open, some 0.5 MB each."""

CACHE_BYTES: Final = 8 << 30
"""Bytes of working copies on disk; the ones that were used longest ago go."""

MIN_FREE_BYTES: Final = 64 << 20
"""Bytes that the disk of the working copies has left at least; below that a node takes no work."""

_THREADS: Final = 16
_PAUSE_SECONDS: Final = 1.0
_REST_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 5.0

_CHANNELS: Final = ("muniment_home", "muniment_cancelled", "muniment_token", "muniment_erased")
"""On which the database says what happens in homes; see its migrations."""

OPEN_PATHS: Final = frozenset({"/healthz", "/health", "/readyz"})
"""What a load balancer asks, which has no token."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node takes part in a fleet.

    Attributes:
        url: of the database, as the nodes' role.
        name: of the node, unlike all others.
        slots: turns at once.
        lease: seconds of a lease, after which others go on where this node is gone.
        cache: bytes of working copies on disk.
    """

    url: str
    name: str
    slots: int = SLOTS
    lease: float = LEASE_SECONDS
    cache: int = CACHE_BYTES


def as_core(node: Node) -> DaemonCore:
    """A node as `Daemon` serves it: it has whatever routes ask of a core, and so has each of its homes."""
    return cast("DaemonCore", node)


class Node:
    """Open with `open`, close with `close`; what `DaemonCore` is for one machine.

    Attributes:
        metrics, model, recalls, queue: what all homes share.
        terms: of all working copies.
        is_draining: nothing is accepted any more.
        problem: why it takes no work; None: it does.
        door: of no page.
    """

    recalls: Recalls
    queue: TurnQueue

    def __init__(self, settings: Settings, model: Model, options: NodeOptions) -> None:
        self._settings, self._options, self.model = settings, options, model
        self._opened = AsyncExitStack()
        self._homes: OrderedDict[str, HomeCore] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, "ledger")
        self._look_threads = ThreadPoolExecutor(1, "look")
        self._turns = ThreadPoolExecutor(options.slots, "turn")
        self._owner_threads = ThreadPoolExecutor(MAX_OWNER, "owner")
        self._owners: dict[asyncio.Future[Any], Cancel] = {}
        self._places = Shares(MAX_OWNER, RETRY_SECONDS, reserve=0)
        self._running: set[asyncio.Future[None]] = set()
        self._last_turn = time.monotonic()
        self._stale: set[str] = set()
        self._over = threading.Event()
        self.metrics, self.door, self.mcp = Metrics(), PageDoor(), None
        self.epoch = secrets.token_hex(4)
        self.is_draining = False
        self.problem: str | None = None
        self.workspaces: dict[str, HomeCore] = {}
        self.open_paths = OPEN_PATHS

    # -- life

    async def open(self, directories: tuple[Path, ...]) -> None:
        """Connect, and begin to take turns.

        Raises:
            ConfigInvalid, StateTooNew: the database is not as `schema.check` wants it.
            PolicyInvalid: the policy cannot be used.
            LedgerAway: nobody answers.
        """
        del directories
        async with AsyncExitStack() as opened:
            self._loop = asyncio.get_running_loop()
            self.recalls = Recalls(self.metrics)
            opened.push_async_callback(self._end_threads)
            await asyncio.to_thread(self._prepare)
            opened.callback(self._pool.close)
            opened.callback(self._over.set)
            name, lease = self._options.name, self._options.lease
            self.queue = TurnQueue(
                self._options.url, self._pool, self._turn, slots=self._options.slots, node=name, stalled=lease
            )
            for work in (self.queue.run(), self._listen(), self._rest()):
                running = asyncio.create_task(work)
                opened.push_async_callback(_ended, running)
            beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            beating.start()
            opened.push_async_callback(asyncio.to_thread, self._close_copies)
            self._opened = opened.pop_all()

    def _prepare(self) -> None:
        settings, options = self._settings, self._options
        create_private_directory(settings.state)
        self._key = read_key(settings.state)
        self._own_token = owner_token(settings.state)
        loaded = load_configured(settings)
        self.terms = CopyTerms(
            loaded.policy,
            options.name,
            options.lease,
            check_symlinks(settings.symlinks),
            settings.on_model_failure,
            embedder_of(settings),
        )
        self._cache = settings.state / "copies"
        create_private_directory(self._cache)
        self._pool = LedgerPool(options.url, options.slots + _THREADS)
        try:
            schema.check(self._pool, self._key)
        except BaseException:
            self._pool.close()
            raise

    async def stop(self, grace: float) -> bool:
        """Accept nothing more, and give what runs `grace` seconds; whether everything is at rest then."""
        self.is_draining = True
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        for home in self._homes.values():
            home.give_up()
        for cancel in self._owners.values():
            cancel.set()
        has_recalled = await self.recalls.stop()
        if left := {*self._running, *self._owners}:
            await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        return has_recalled and not self._running and not self._owners

    def end_followers(self) -> None:
        """End whoever follows events or waits for them."""
        for home in self._homes.values():
            home.end_followers()

    async def close(self) -> None:
        """Give everything back; after `stop`."""
        await self._opened.aclose()

    # -- whoever asks

    def keyed(self, text: str) -> str:
        """The digest of a token, by which its home is found."""
        return keyed(self._key, text)

    async def whose(self, unsafe_token: str) -> Principal | None:
        """Who a token belongs to; None: nobody.

        Raises:
            HttpProblem: the database is away.
        """
        sent = self.keyed(f"token {unsafe_token}")
        if hmac.compare_digest(sent, self.keyed(f"token {self._own_token}")):
            return THE_OWNER
        if self.problem == LedgerAway.code:
            raise self.unavailable()  # Else whoever asks would wait, and in the end nobody could.
        try:
            return await self.asked(lambda: self._principal(sent))
        except MunimentError:
            raise self.unavailable() from None

    def _principal(self, digest: str) -> Principal | None:
        with self._pool.connection() as connection:
            found = connection.execute("SELECT home_of(%s)", (digest,)).fetchone()
        if found is None or found[0] is None:
            return None
        return self.home(found[0]).principal(digest)

    def of(self, principal: Principal) -> HomeCore | Node:
        """What whoever asks is served by: his home, or for the node's operator the node."""
        return self.home(principal.home) if principal.home else self

    async def proof(self, unsafe_name: str, nonce: str, address: str) -> str:
        """Proof that a token is known, see `Tokens.proof`."""
        found = hmac.digest(self._key, b"hello\n" + unsafe_name.encode(), "sha256")
        own = hello_key(self._own_token)
        if hmac.compare_digest(hello_name(own), unsafe_name):
            found = own
        else:
            if self.problem == LedgerAway.code:
                raise self.unavailable()
            known = await self.asked(lambda: self._hello(unsafe_name))
            found = known or found
        return hello_proof(found, nonce, address)

    def _hello(self, name: str) -> bytes | None:
        with self._pool.connection() as connection:
            found = connection.execute("SELECT hello_of(%s)", (name,)).fetchone()
        return None if found is None or found[0] is None else bytes(found[0])

    async def problems(self) -> dict[str, str | None]:
        """By the node's name, the code of what keeps it from taking tasks now; None: nothing does."""
        looking = self._loop.run_in_executor(self._look_threads, self._looked)
        try:  # Also where others ask, too, and nobody answers.
            problem = await asyncio.wait_for(looking, LOOK_SECONDS)
        except TimeoutError:
            problem = LedgerAway.code
        return {self._options.name: problem}

    async def workspace(self, unsafe_name: str | None) -> HomeCore:
        """None: the node's own token is of no home.

        Raises:
            HttpProblem: always.
        """
        del unsafe_name
        raise HttpProblem("untrusted_workspace")

    async def still_knows(self, principal: Principal) -> bool:
        """Whether a token of the node itself is known: it is as long as it runs."""
        return principal.is_owner

    def open_ui(self) -> tuple[str, str]:
        """There is no page for a fleet.

        Raises:
            HttpProblem: always.
        """
        raise HttpProblem("not_found")

    def unavailable(self) -> HttpProblem:
        """Why nothing is accepted now."""
        if self.problem not in {None, LedgerAway.code}:
            return HttpProblem("not_ready", headers={"Retry-After": str(AWAY_SECONDS)}, reason=self.problem)
        return HttpProblem(LedgerAway.code, headers={"Retry-After": str(AWAY_SECONDS)})

    async def asked(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, in a thread."""
        return await self._loop.run_in_executor(self._threads, ask)

    async def carried_out(self, home: str, body: Callable[[Cancel], T]) -> T:
        """Carry out what is no task of a home, in a thread; it is cancelled with whoever awaits it.

        Raises:
            HttpProblem: the node stops, or too much is asked for at once.
        """
        if self.is_draining:
            raise HttpProblem("workspace_draining", headers={"Retry-After": "1"})
        share = f"{home}/{OWNER}"
        self._places.take(share)
        cancel = Cancel()

        def ended(done: asyncio.Future[Any]) -> None:
            self._places.leave(share)
            self._owners.pop(done).close()

        asked = self._loop.run_in_executor(self._owner_threads, lambda: body(cancel))
        self._owners[asked] = cancel
        asked.add_done_callback(ended)
        return await until_ended(asked, cancel)

    # -- homes

    def home(self, name: str) -> HomeCore:
        """A home, which its token has led to."""
        found = self._homes.get(name)
        if found is None:
            ledger, key = self._pool.home(name), key_of(self._key, name)
            core = HomeCore(self, ledger, LedgerState(ledger, key), self._copy(name))
            found = self._homes.setdefault(name, core)
        self._homes.move_to_end(name)
        return found

    async def _turn(self, home: str) -> None:
        """A job of the queue: the turn of a home."""
        if self.problem is not None or self.is_draining:
            await self.asked(lambda: self._put_back(home))
            return
        self._last_turn = time.monotonic()
        running = self._loop.run_in_executor(self._turns, self.home(home).turn)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        await asyncio.shield(running)  # Whoever cancels the job does not end the thread.

    def _put_back(self, home: str) -> None:
        with self._pool.connection() as connection:
            self.queue.defer(connection, home, 1)

    # -- what goes on beside

    def _beat(self) -> None:
        """Renew leases, and look whether this node can work; in a thread of its own, until closed."""
        while not self._over.wait(self.terms.seconds / 4):
            if self._looked() == LedgerAway.code:
                continue
            for home in list(self._homes.values()):
                with suppress(MunimentError):
                    home.renew()
            with suppress(MunimentError):
                self._sign()
            with suppress(MunimentError, OSError):
                self._make_room()
            self._drop_erased()

    def _looked(self) -> str | None:
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

    def _sign(self) -> None:
        told = (self._options.name, __version__, len(self._running), self.problem)
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO node (name, version, running, problem) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (name) DO UPDATE SET version = excluded.version, running = excluded.running, "
                "problem = excluded.problem, seen = now()",
                told,
            )

    def _make_room(self) -> None:
        """Close copies that are too many, and delete what is too much on disk, the longest unused first."""
        idle = sorted(
            (home for home in list(self._homes.values()) if home.copy.is_idle),
            key=lambda home: home.last_used,
        )
        for home in idle[: max(0, len(self._homes) - MAX_OPEN)]:
            with suppress(MunimentError):
                home.copy.close(Patience(time.monotonic()))
                if not home.is_followed:
                    self._homes.pop(home.name, None)
        kept = sorted(self._cache.iterdir(), key=lambda each: each.stat().st_mtime)
        sizes = {each: _size(each) for each in kept}
        used = {home.copy.directory for home in list(self._homes.values())}
        left = sum(sizes.values()) - self._options.cache
        for each in kept:
            if left <= 0:
                return
            if each not in used:
                _delete(each)
                left -= sizes[each]

    async def _listen(self) -> None:
        """Be told by the database what happens in homes, until cancelled."""
        while True:
            with suppress(psycopg.Error, OSError):
                connection = await psycopg.AsyncConnection.connect(
                    self._options.url,
                    autocommit=True,
                    options=session_options(),
                    connect_timeout=5,
                    **ALIVE,
                )
                async with connection:
                    for channel in _CHANNELS:
                        await connection.execute(f"LISTEN {channel}")
                    self._stale |= await self.asked(self._copied)  # What happened while nobody listened.
                    self._threads.submit(self._drop_erased)
                    for home in list(self._homes.values()):
                        home.wake()
                        home.ask_again()
                    async for told in connection.notifies():
                        self._hear(told.channel, told.payload)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _hear(self, channel: str, payload: str) -> None:
        name, _, task = payload.partition(" ")
        if channel == "muniment_erased":
            self._stale.add(name)
            self._threads.submit(self._drop_erased)
        home = self._homes.get(name)
        if home is None:
            return
        if channel == "muniment_token":
            home.ask_again()
        if channel == "muniment_cancelled":
            self._threads.submit(home.interrupt, task)
        home.wake()

    def _copied(self) -> set[str]:
        """The homes of which there are copies here; one that is not whole and that nobody uses is deleted."""
        found = set()
        for each in self._cache.iterdir():
            name = home_of(each)
            if name is not None:
                found.add(name)
            elif each not in {home.copy.directory for home in list(self._homes.values())}:
                _delete(each)
        return found | set(self._homes)

    def _drop_erased(self) -> None:
        """Throw copies away that hold what was erased elsewhere; in a thread."""
        for name in list(self._stale):
            with suppress(MunimentError, OSError):
                if not directory_of(self._cache, name).exists() or self._copy(name).drop_erased(
                    Patience(time.monotonic() + _CLOSE_SECONDS)
                ):
                    self._stale.discard(name)

    def _copy(self, name: str) -> WorkingCopy:
        home = self._homes.get(name)
        if home is not None:
            return home.copy
        return WorkingCopy(
            directory_of(self._cache, name), self._pool.home(name), key_of(self._key, name), self.terms
        )

    async def _rest(self) -> None:
        """End the zygote whenever there was no turn for a while, until cancelled."""
        while True:
            await asyncio.sleep(_REST_SECONDS / 10)
            if time.monotonic() - self._last_turn >= _REST_SECONDS:
                await asyncio.to_thread(shared_zygote().rest)

    def _close_copies(self) -> None:
        for home in self._homes.values():
            with suppress(MunimentError):
                home.copy.close(Patience(time.monotonic() + 1.0))

    async def _end_threads(self) -> None:
        def end() -> None:
            for pool in (self._threads, self._look_threads, self._turns, self._owner_threads):
                pool.shutdown(wait=False)
            self.recalls.close()

        await asyncio.to_thread(end)


async def _ended(running: asyncio.Task[None]) -> None:
    running.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await running


def _size(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())


def _delete(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
