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
from muniment.errors import LedgerAway, MunimentError
from muniment.fleet import schema
from muniment.fleet.copies import CopyTerms, WorkingCopy, directory_of, marked
from muniment.fleet.home import HomeCore
from muniment.fleet.homes import key_of, keyed
from muniment.fleet.lease import LEASE_SECONDS
from muniment.fleet.postgres import LOOK_SECONDS, LedgerPool, connection_options
from muniment.fleet.queue import TurnQueue
from muniment.kernel.cancel import Patience
from muniment.names import __version__, hello_key, hello_name, hello_proof
from muniment.opening import embedder_of
from muniment.policy.grammar import check_symlinks
from muniment.policy.ownership import create_private_directory
from muniment.server.contract import AWAY_SECONDS, HttpProblem
from muniment.server.core import MAX_OWNER, RETRY_SECONDS, Recalls, ServedCore, ServingCore
from muniment.server.tokens import THE_OWNER, Principal, Shares, is_token, owner_token
from muniment.settings import Settings, load_configured
from muniment.store.state import LedgerState, read_key
from muniment.store.tasks import OWNER

SLOTS: Final = 8
"""Turns at once: each runs one task of its home; who asks a model waits for it most of the time."""

MAX_OPEN: Final = 256
"""Working copies that are kept open, some 0.5 MB each."""

CACHE_BYTES: Final = 8 << 30
"""Bytes of working copies on disk; the ones that were used longest ago go."""

MIN_FREE_BYTES: Final = 64 << 20
"""Bytes that the disk of the working copies has left at least; below that a node takes no work."""

MAX_HOMES: Final = 10_000
"""Homes that are known, some 5 KB each."""

TIDY_SECONDS: Final = 60.0
"""Seconds between two looks at all working copies, besides those that a notice asks for."""

_THREADS: Final = 16
_PAUSE_SECONDS: Final = 1.0
_GONE_SECONDS: Final = 86_400.0
_CLOSE_SECONDS: Final = 5.0

_CHANNELS: Final = ("muniment_home", "muniment_cancelled", "muniment_token", "muniment_stale")
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


class FleetNode(ServingCore):
    """Open with `open`, close with `close`; what `DaemonCore` is for one machine.

    Attributes:
        metrics, model, recalls, queue: what all homes share.
        terms: of all working copies.
        problem: why it takes no work; None: it does.
        door: of no page.
    """

    queue: TurnQueue

    def __init__(self, settings: Settings, model: Model, options: NodeOptions) -> None:
        super().__init__(settings, model)
        self._options = options
        self._homes: dict[str, HomeCore] = {}
        # With those that are dropped while somebody still uses them: two copies in one directory never are.
        self._used: WeakValueDictionary[str, HomeCore] = WeakValueDictionary()
        self._lock = threading.Lock()  # Of what homes are known, and of copies of those that are not.
        self._threads = ThreadPoolExecutor(_THREADS, "ledger")
        self._look_threads = ThreadPoolExecutor(1, "look")
        self._turns = ThreadPoolExecutor(options.slots, "turn")
        self._places = Shares(MAX_OWNER, RETRY_SECONDS, reserve=0)
        self._running: set[asyncio.Future[None]] = set()
        self._over = threading.Event()
        self._open_nodes: tuple[str, ...] = ()
        self.epoch = secrets.token_hex(4)
        self.problem: str | None = None
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
                self._options.url,
                self._pool,
                self._turn,
                lambda: self._open_nodes,
                slots=self._options.slots,
                node=name,
                stalled=lease,
            )
            for work in (self.queue.run(), self._rest()):
                running = asyncio.create_task(work)
                opened.push_async_callback(_ended, running)
            for each, seconds in (
                (self._beat, lease / 4),
                (self._listen, _PAUSE_SECONDS),
                (self._tidy, TIDY_SECONDS),
            ):
                loop = partial(self._again_and_again, each, seconds)
                threading.Thread(target=loop, name=each.__name__, daemon=True).start()
            opened.push_async_callback(asyncio.to_thread, self._leave)
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
            self._sign()
        except BaseException:
            self._pool.close()
            raise

    async def stop(self, grace: float) -> bool:
        """Accept nothing more, and give what runs `grace` seconds; whether everything is at rest then."""
        self._is_draining = True
        with suppress(MunimentError, TimeoutError):  # Else the others find it themselves, a lease later.
            await asyncio.wait_for(self.asked(self._hand_over), _CLOSE_SECONDS)
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        for home in list(self._used.values()):
            home.give_up()
        for cancel in self._owners.values():
            cancel.set()
        has_recalled = await self.recalls.stop()
        if left := {*self._running, *self._owners}:
            await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        return has_recalled and not self._running and not self._owners

    def _hand_over(self) -> None:
        self._sign()
        self.queue.hand_over()

    def end_followers(self) -> None:
        """End whoever follows events or waits for them."""
        for home in list(self._used.values()):
            home.end_followers()

    # -- whoever asks

    def keyed(self, text: str) -> str:
        """The digest of a token, by which its home is found."""
        return keyed(self._key, text)

    async def whose(self, unsafe_token: str) -> Principal | None:
        """Who a token belongs to; None: nobody.

        Raises:
            HttpProblem: the database is away.
        """
        if not is_token(unsafe_token):
            return None
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
        home = self._at_door("SELECT home_of(%s)", digest)
        return None if home is None else self.home(home).principal(digest)

    def _at_door(self, query: str, sent: str) -> Any:
        """What is known of a token or its name, whosever it is."""
        with self._pool.connection() as connection:
            found = connection.execute(query, (sent,)).fetchone()
        return None if found is None else found[0]

    def of(self, principal: Principal) -> ServedCore:
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
            known = await self.asked(partial(self._at_door, "SELECT hello_of(%s)", unsafe_name))
            found = found if known is None else bytes(known)
        return hello_proof(found, nonce, address)

    async def problems(self) -> dict[str, str | None]:
        """By the node's name, the code of what keeps it from taking tasks now; None: nothing does."""
        looking = self._loop.run_in_executor(self._look_threads, self._looked)
        try:  # Also where others ask, too, and nobody answers.
            problem = await asyncio.wait_for(looking, LOOK_SECONDS)
        except TimeoutError:
            problem = LedgerAway.code
        return {self._options.name: problem}

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
        self.require_open()
        share = f"{home}/{OWNER}"
        self._places.take(share)
        return await self._carried_out(body, partial(self._places.leave, share))

    # -- homes

    def home(self, name: str) -> HomeCore:
        """A home, which its token has led to."""
        with self._lock:
            found = self._used.get(name)
            if found is None:
                ledger, key = self._pool.home(name), key_of(self._key, name)
                copy = WorkingCopy(directory_of(self._cache, name), ledger, key, self.terms)
                found = self._used[name] = HomeCore(self, ledger, LedgerState(ledger, key), copy)
            self._homes[name], found.last_used = found, time.monotonic()
            return found

    async def _turn(self, home: str) -> None:
        """A job of the queue: the turn of a home."""
        if self.problem is not None or self.is_draining:
            await self.asked(lambda: self._put_back(home))
            return
        self._last_task = time.monotonic()
        running = self._loop.run_in_executor(self._turns, self.home(home).turn)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        await asyncio.shield(running)  # Whoever cancels the job does not end the thread.

    def _put_back(self, home: str) -> None:
        with self._pool.connection() as connection:
            self.queue.defer(connection, home, 1)

    @property
    def running(self) -> int:
        """How many turns there are now."""
        return len(self._running)

    # -- what goes on beside

    def _again_and_again(self, do: Callable[[], None], seconds: float) -> None:
        """Do something in a thread of its own, with a pause after it, until closed."""
        told = ""
        while not self._over.is_set():
            try:
                do()
                told = ""
            except Exception as error:  # noqa: BLE001  Without this thread leases would run out, and notices be missed.
                if told != (told := type(error).__name__) and not self._over.is_set():
                    events.emit_defect("node_failed", error, what=do.__name__.strip("_"))
            self._over.wait(seconds)

    def _beat(self) -> None:
        """Renew leases, and look whether this node can work."""
        if self._looked() == LedgerAway.code:
            return
        for home in list(self._used.values()):
            with suppress(MunimentError):  # The next beat is in time.
                home.renew()
            if home.is_followed:
                self._told(home.wake)  # Where a notice was lost.
        self._sign()

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
        """Tell the others whether this node is open, and learn which of them are."""
        problem = self.problem or ("draining" if self.is_draining else None)
        told = (self._options.name, __version__, self.running, self._options.slots, problem)
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO node (name, version, running, slots, problem) VALUES (%s, %s, %s, %s, %s) "
                "ON CONFLICT (name) DO UPDATE SET version = excluded.version, running = excluded.running, "
                "slots = excluded.slots, problem = excluded.problem, seen = now()",
                told,
            )
            found = connection.execute(
                "SELECT name, running < slots FROM node WHERE problem IS NULL "
                "AND seen > now() - make_interval(secs => %s)",
                (self._options.lease,),
            ).fetchall()
        free = tuple(name for name, is_free in found if is_free)
        # Where all are full, each keeps what waits for it: else they would take it from each other.
        self._open_nodes = free or tuple(name for name, _ in found)

    def _leave(self) -> None:
        self._over.set()  # Else the next beat would sign again.
        with suppress(MunimentError), self._pool.connection() as connection:
            connection.execute("DELETE FROM node WHERE name = %s", (self._options.name,))

    def _tidy(self) -> None:
        """Throw away copies that may hold what was erased, and what is too much (W3 of `copies`).

        Apart from `_beat`: many files take longer than a lease.
        """
        marks = {each: marked(each) for each in self._cache.iterdir()}
        told = [mark for mark in marks.values() if mark is not None]
        with self._pool.connection() as connection:
            names, seen = [name for name, _ in told], [position.erased for _, position in told]
            found = connection.execute("SELECT stale_copies(%s, %s::bigint[])", (names, seen)).fetchall()
            connection.execute(
                "DELETE FROM node WHERE seen < now() - make_interval(secs => %s)", (_GONE_SECONDS,)
            )
        for (name,) in found:
            self._discard(name, only_stale=True)
        for home in list(self._used.values()):
            if home.copy.is_spoiled:  # Whatever became of its home while it was changed.
                self._discard(home.name)
        for each in (each for each, mark in marks.items() if mark is None):
            with self._lock:  # One at a time: whoever asks for a home waits for this.
                if each not in self._copies():
                    shutil.rmtree(each)
        self._make_room()

    def _copies(self) -> dict[Path, HomeCore]:
        """The homes that are known, or still in somebody's use, by the directories of their copies."""
        return {home.copy.directory: home for home in list(self._used.values())}

    def _make_room(self) -> None:
        """Close copies that are too many, and delete what is too much on disk, the longest unused first."""
        known = list(self._homes.values())
        idle = sorted(
            (home for home in known if home.copy.is_idle and not home.is_followed),
            key=lambda home: home.last_used,
        )
        opened = [home for home in idle if home.copy.is_open]
        for home in opened[: max(0, len(opened) - MAX_OPEN)]:
            with suppress(MunimentError):  # Somebody uses it again.
                home.copy.close(Patience(time.monotonic()))
        for home in idle[: max(0, len(known) - MAX_HOMES)]:
            with self._lock:
                is_used = home.copy.is_open or home.last_used > time.monotonic() - TIDY_SECONDS
                if not is_used:
                    del self._homes[home.name]
                    self._told(home.rest)
        sizes = {each: _size(each) for each in self._cache.iterdir()}
        left = sum(sizes.values()) - self._options.cache
        for each in sorted(sizes, key=_changed):
            if left <= 0:
                return
            name = (marked(each) or ("", None))[0]
            if name and self.home(name).copy.is_idle:
                self._discard(name)
                left -= sizes[each]

    def _discard(self, name: str, *, only_stale: bool = False) -> None:
        patience = Patience(time.monotonic() + _CLOSE_SECONDS)
        with suppress(MunimentError):
            self.home(name).copy.discard(patience, only_stale=only_stale)

    def _listen(self) -> None:
        """Be told by the database what happens in homes, as long as it is there."""
        options = connection_options(f"muniment {self._options.name}")
        with psycopg.connect(self._options.url, autocommit=True, **options) as connection:
            for channel in _CHANNELS:
                connection.execute(f"LISTEN {channel}")
            self._told(self._missed)
            while not self._over.is_set():
                for told in connection.notifies(timeout=_PAUSE_SECONDS):
                    self._hear(told.channel, told.payload)

    def _told(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop was closed meanwhile.
            self._loop.call_soon_threadsafe(what)

    def _beside(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The threads were ended meanwhile.
            self._threads.submit(what)

    def _missed(self) -> None:
        """Look for what happened while nobody listened."""
        for home in list(self._used.values()):
            home.wake()
            home.ask_again()

    def _hear(self, channel: str, payload: str) -> None:
        name, _, task = payload.partition(" ")
        home = self._used.get(name)
        if channel == "muniment_stale" and directory_of(self._cache, name).exists():
            self._beside(partial(self._discard, name, only_stale=True))
        if home is None:
            return
        if channel == "muniment_token":
            self._told(home.ask_again)
        if channel == "muniment_cancelled":
            self._beside(partial(home.interrupt, task))
        if home.is_followed:
            self._told(home.wake)

    def _close_copies(self) -> None:
        for home in list(self._used.values()):
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
    """Bytes below a directory; where somebody deletes meanwhile, those that were counted by then."""
    size = 0
    with suppress(OSError):
        for each in directory.rglob("*"):
            size += each.lstat().st_size
    return size


def _changed(directory: Path) -> float:
    """When a copy was last marked; one that is gone by now is no more to delete."""
    try:
        return directory.stat().st_mtime
    except OSError:
        return math.inf
