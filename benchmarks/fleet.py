"""Measure the cost of the PostgreSQL of a fleet, compared with the SQLite of one machine, in one run.

    python benchmarks/fleet.py [--disk DIRECTORY] [--json FILE] [PART ...]

The server is the one that the tests start, on this machine: its share of the two cores is also in the
figures, and a network is not. Data of both engines are in the directory for temporary files, and the server
runs without fsync. With `--disk`, writes are measured again with the data of both in a directory there and
with fsync, which SQLite always uses. `--json` writes the input of `benchmarks/fleet_at_scale.py`.

throughput  tasks per second that do nothing, over eight lanes: of a `Writer` and its runners, and of one node
            with its queue; each in one process with its client, which keeps eight tasks in progress.
waits       from acceptance to start, by the times in the ledger: on one of two nodes, homes idle.
cold        a home of 1 000 entries, until its working copy can be read: CPU of the node and of the server.
warm        a recall without changes, on a node and on SQLite; a recall after one commit.
idle        connections while 1 000 homes are known and unused, and under load.
costs       CPU of the server for each request of a node.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from measuring import FACTS, measure_cpu

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

import psycopg  # noqa: E402

from kit.fleet.homes import KEY, FleetDatabase, create_database  # noqa: E402
from kit.postgres import start_server  # noqa: E402
from muniment.agent.filing import RuleWriter  # noqa: E402
from muniment.errors import QueueFull  # noqa: E402
from muniment.fleet import home as served  # noqa: E402
from muniment.fleet.homes import derive_home_key  # noqa: E402
from muniment.fleet.lease import LEASE_SECONDS  # noqa: E402
from muniment.fleet.node import FleetNode, NodeOptions  # noqa: E402
from muniment.fleet.postgres import HomeLedger, LedgerPool  # noqa: E402
from muniment.fleet.queue import TurnQueue, build_queue_name  # noqa: E402
from muniment.fleet.working_copies import CopyOptions, WorkingCopy  # noqa: E402
from muniment.kernel.apply import lock_roots  # noqa: E402
from muniment.kernel.binding import BoundRoot, bind_all  # noqa: E402
from muniment.kernel.cancel import Deadline  # noqa: E402
from muniment.kernel.change import FileChange  # noqa: E402
from muniment.kernel.names import RelPath, Scope, Trust  # noqa: E402
from muniment.kernel.path import CanonicalPath  # noqa: E402
from muniment.kernel.write import replay  # noqa: E402
from muniment.names import ContextMode  # noqa: E402
from muniment.operations.job_context import JobContext  # noqa: E402
from muniment.policy.load import load_policy  # noqa: E402
from muniment.policy.ownership import create_private_directory  # noqa: E402
from muniment.server import lane_tasks  # noqa: E402
from muniment.server.lane import Lane  # noqa: E402
from muniment.server.lane_tasks import NewTask, TaskOutcome  # noqa: E402
from muniment.server.runner import LaneRunner  # noqa: E402
from muniment.server.work import TaskExecutor, Workspace  # noqa: E402
from muniment.server.writer import Writer  # noqa: E402
from muniment.settings import read_settings  # noqa: E402
from muniment.store.audit import timestamp  # noqa: E402
from muniment.store.ledger import ChangeRow, CommitRow, Run, begin, finish, get_root_key  # noqa: E402
from muniment.store.state import LedgerState, State  # noqa: E402
from muniment.store.tasks import Originator  # noqa: E402
from muniment.store.trust import stamp_entry  # noqa: E402
from muniment.store.upkeep import open_view  # noqa: E402

IDLE_SECONDS, REST_SECONDS = 3.0, 0.03
ROUNDS, LANES, TASKS, AT_ONCE = 5, 8, 200, 8
ENTRIES = 1_000
HOMES = 1_000
SCOPE = Scope("user")
RESULT = {"summary": "", "filesTouched": [], "touchedScopes": [], "enforcement": None, "decidedBy": "none"}
OWNER = Originator("owner")
ASKED = NewTask("remember", {"content": "The build number is 7"}, OWNER, {})
POLICY = load_policy("strict")


class NoWork:
    """A job that ends every task at once, and wakes clients that wait for space in its lane."""

    ended: Callable[[str], object] = staticmethod(lambda _: None)

    def __init__(self, workspace: Any, *_: object) -> None:
        self._key = workspace.key

    def __call__(self, *_: object) -> TaskOutcome:
        """Do nothing."""
        NoWork.ended(self._key)
        return TaskOutcome("completed", result=RESULT)


@contextmanager
def replace_jobs() -> Iterator[None]:
    """Replace the jobs of nodes by one that does nothing."""
    served.TaskExecutor = NoWork  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        served.TaskExecutor = TaskExecutor  # type: ignore[misc]


@dataclass
class Environment:
    """The environment of the measurement.

    Attributes:
        base: a fleet's database.
        pid: of its server.
        directory: for all other files.
    """

    base: FleetDatabase
    pid: int
    directory: Path

    def fresh(self, name: str) -> Path:
        """Create a new directory."""
        return Path(tempfile.mkdtemp(prefix=name, dir=self.directory))

    def node(self, name: str, lease: float) -> FleetNode:
        """Return a node that is not open."""
        at = self.fresh("node-")
        create_private_directory(at / "state")
        (at / "state" / "audit.key").write_bytes(KEY)
        (at / "state" / "audit.key").chmod(0o600)
        settings = read_settings({"MUNIMENT_HOME": str(at), "MUNIMENT_POLICY": "strict"})
        return FleetNode(settings, RuleWriter(), NodeOptions(self.base.node, name, lease=lease))

    @asynccontextmanager
    async def nodes(self, count: int, lease: float = LEASE_SECONDS) -> AsyncIterator[list[FleetNode]]:
        """Open nodes, and yield them."""
        found = [self.node(f"bench-{number}", lease) for number in range(count)]
        for each in found:
            await each.open(())
        try:
            yield found
        finally:
            for each in found:
                await each.stop(5)
                await each.close()

    def home(self) -> str:
        """Return the name of a new home."""
        return self.base.create_home()

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query over all homes."""
        with psycopg.connect(self.base.superuser, options="-c search_path=muniment") as connection:
            return connection.execute(query).fetchall()

    def do(self, statement: str) -> None:
        """Run a statement over all homes."""
        with psycopg.connect(self.base.superuser, options="-c search_path=muniment") as connection:
            connection.execute(statement)

    def connections(self) -> int:
        """Return the connections of the nodes' role, without the observer's."""
        ((count,),) = self.query("SELECT count(*) FROM pg_stat_activity WHERE usename = 'muniment_node'")
        return int(count)

    def server_ms(self) -> float:
        """Return the CPU of the server until now."""
        return 1e3 * measure_cpu(self.pid)


@contextmanager
def open_environment(disk: Path | None) -> Iterator[Environment]:
    """Yield a server with a database; with `disk`, its data are durable there."""
    with (
        start_server(disk) as found,
        create_database(found.url) as base,
        tempfile.TemporaryDirectory(prefix="fleet-", dir=disk) as directory,
    ):
        yield Environment(base, found.pid, Path(directory))


def _list_pending(ledger: HomeLedger) -> int:
    return sum(lane_tasks.count_pending(ledger, ledger.home).values())


def create_deadline() -> Deadline:
    """Return a deadline that is sufficient for every part."""
    return Deadline(time.monotonic() + 60)


def format_spread(values: list[float], digits: int = 0) -> str:
    """Return median and range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


# -- tasks


async def run_tasks(
    keys: list[str], submit: Callable[[str], Awaitable[object]], pending: Callable[[str], int]
) -> float:
    """Return tasks per second: `TASKS` of each lane, with at most `AT_ONCE` in progress."""
    loop = asyncio.get_running_loop()
    room = {key: asyncio.Semaphore(AT_ONCE) for key in keys}
    NoWork.ended = staticmethod(lambda key: loop.call_soon_threadsafe(room[key].release))

    async def one(key: str) -> None:
        for _ in range(TASKS):
            await room[key].acquire()
            while True:
                try:
                    await submit(key)
                    break
                except QueueFull:
                    await asyncio.sleep(0.005)
        while pending(key):  # noqa: ASYNC110  only the ledger knows when
            await asyncio.sleep(0.005)

    started = time.perf_counter()
    await asyncio.gather(*map(one, keys))
    return len(keys) * TASKS / (time.perf_counter() - started)


def measure_sqlite(directory: Path) -> float:
    """Return tasks per second of one machine."""
    with (
        State(directory / "state") as state,
        closing(Writer(state.ledger)) as writer,
        closing(state.open_reader()) as reads,
    ):
        keys = [f"lane-{number}" for number in range(LANES)]
        lanes = {key: Lane(state, key) for key in keys}
        runners = {
            key: LaneRunner(each, writer, NoWork(SimpleNamespace(key=key))) for key, each in lanes.items()
        }
        for each in runners.values():
            each.start()

        async def submit(key: str) -> None:
            submitted = writer.submit(lambda: lanes[key].submit(ASKED))
            submitted.add_done_callback(lambda _: runners[key].wake())
            await asyncio.wrap_future(submitted)

        rate = asyncio.run(
            run_tasks(keys, submit, lambda key: sum(lane_tasks.count_pending(reads, key).values()))
        )
        for each in runners.values():
            each.stop(5)
        return rate


def measure_fleet(environment: Environment) -> tuple[float, float]:
    """Return tasks per second of one node, and its maximum of connections."""
    most = 0.0

    async def run() -> float:
        nonlocal most
        async with environment.nodes(1) as (node,):
            homes = {name: node.home(name) for name in (environment.home() for _ in range(LANES))}
            with closing(LedgerPool(environment.base.node, 2)) as pool:
                waiting = {name: pool.home(name) for name in homes}

                async def submit(name: str) -> None:
                    await homes[name].submit(homes[name], ASKED)

                async def watch() -> None:
                    nonlocal most
                    while True:
                        most = max(most, await asyncio.to_thread(environment.connections))
                        await asyncio.sleep(0.25)

                watching = asyncio.create_task(watch())
                try:
                    return await run_tasks(list(homes), submit, lambda name: _list_pending(waiting[name]))
                finally:
                    watching.cancel()

    with replace_jobs():
        return asyncio.run(run()), most


def throughput(environment: Environment) -> dict[str, float]:
    """Measure tasks per second, one engine after the other."""
    one, fleet, most = [], [], 0.0
    for _ in range(ROUNDS):
        one.append(measure_sqlite(environment.fresh("sqlite-")))
        rate, connections = measure_fleet(environment)
        fleet.append(rate)
        most = max(most, connections)
    ratio = median(each / other for each, other in zip(one, fleet, strict=True))
    print(
        f"no-op tasks over {LANES} lanes: SQLite {format_spread(one)}/s, "
        f"PostgreSQL {format_spread(fleet)}/s (goal 150)"
    )
    print(f"  SQLite : PostgreSQL {ratio:.1f} (goal 3); at most {most:.0f} connections of a node")
    return {}


def waits(environment: Environment) -> dict[str, float]:
    """Measure the time from acceptance to start, and server CPU per task, in sequence in idle homes."""
    count = 200

    async def run() -> tuple[float, float]:
        async with environment.nodes(2) as nodes:
            names = [environment.home() for _ in range(20)]
            await _one_by_one(nodes, names, len(names))
            before, since = environment.server_ms(), time.perf_counter()
            await asyncio.sleep(IDLE_SECONDS)
            idle = (environment.server_ms() - before) / (time.perf_counter() - since)
            before, since = environment.server_ms(), time.perf_counter()
            await _one_by_one(nodes, names, count)
            spent = environment.server_ms() - before - idle * (time.perf_counter() - since)
            return spent / count, idle

    with replace_jobs():
        each, idle = asyncio.run(run())
    rows = environment.query(
        "SELECT extract(epoch FROM running.at::timestamptz - queued.at::timestamptz) * 1000 "
        "FROM event AS queued JOIN event AS running USING (home, task) WHERE queued.data LIKE '%\"queued\"%' "
        f"AND running.data LIKE '%\"running\"%' ORDER BY queued.at DESC LIMIT {count}"
    )
    times = sorted(float(row[0]) for row in rows)
    print(
        f"acceptance to beginning, {len(times)} tasks: p50 {median(times):.1f} ms (goal 25), "
        f"p99 {times[len(times) * 99 // 100]:.1f} ms"
    )
    print(f"  of the server's CPU {each:.2f} ms each, and {idle:.1f} ms a second for two idle nodes")
    return {}


async def _one_by_one(nodes: list[FleetNode], names: list[str], count: int) -> None:
    """Run tasks that each start in an idle home; any node may accept them."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    NoWork.ended = staticmethod(lambda _: loop.call_soon_threadsafe(ended.set))
    for at in range(count):
        home = nodes[at % len(nodes)].home(names[at % len(names)])
        ended.clear()
        await home.submit(home, ASKED)
        await ended.wait()
        await asyncio.sleep(REST_SECONDS)


# -- memory


def fact(number: int) -> bytes:
    """Return a typical fact; with its provenance about 400 bytes."""
    words = " ".join(f"word{(number * 31 + at) % 997}" for at in range(6))
    return f"{FACTS[number % len(FACTS)].format(number)}, {words}.\n".encode()


class Author:
    """Commits facts to a ledger like `remember`, without a worker."""

    def __init__(self, state: State, roots: Mapping[Scope, BoundRoot]) -> None:
        self._state, self._key = state, get_root_key(state, roots[SCOPE])

    def commit(self, number: int) -> FileChange:
        """Commit a fact as a separate task."""
        now = timestamp(datetime.now(UTC))
        run = Run(
            f"remember-{uuid.uuid4()}", now, Trust.OWNER, "rules", "strict@00000000", "remember", "0" * 64
        )
        path = CanonicalPath(SCOPE, RelPath(f"topic-{number % 20}/fact-{number}.md"))
        after = stamp_entry(fact(number), None, path, run)
        change = FileChange(path, None, after, None, Trust.OWNER)
        row = CommitRow(0, run, "0" * 32, changes=(ChangeRow(0, 0, self._key, change, change.digest),))
        number = begin(self._state, row)
        finish(self._state, replace(row, id=number, done=now))
        return change


@contextmanager
def open_author(environment: Environment, home: str) -> Iterator[Author]:
    """Yield an author for a home, on a node that has no copy of it."""
    base = environment.fresh("author-")
    roots = bind_all({scope: _made(base / scope) for scope in POLICY.scopes})
    with ExitStack() as opened:
        for each in roots.values():
            opened.callback(each.close)
        yield Author(opened.enter_context(environment.base.open_state(base, home)), roots)


def _made(directory: Path) -> Path:
    create_private_directory(directory)
    return directory


@contextmanager
def open_cold_copy(environment: Environment, home: str) -> Iterator[WorkingCopy]:
    """Yield a cold working copy."""
    with closing(LedgerPool(environment.base.node, 4)) as pool:
        terms = CopyOptions(POLICY, "bench")
        copy = WorkingCopy(
            environment.fresh("copy-") / "copy", pool.home(home), derive_home_key(KEY, home), terms
        )
        yield copy
        copy.discard(create_deadline())


def cold(environment: Environment) -> dict[str, float]:
    """Measure the working copy of a home that was never on this node."""
    home = environment.home()
    with open_author(environment, home) as by:
        size = sum(len(by.commit(number).after or b"") for number in range(ENTRIES)) / ENTRIES
    own, servers, walls = [], [], []
    for _ in range(ROUNDS + 1):
        with open_cold_copy(environment, home) as copy:
            server_ms, own_ms, wall = environment.server_ms(), time.process_time(), time.perf_counter()
            with copy.open_for_reading(create_deadline()):
                own.append(1e3 * (time.process_time() - own_ms))
                walls.append(1e3 * (time.perf_counter() - wall))
                servers.append(environment.server_ms() - server_ms)
    print(
        f"a cold home of {ENTRIES} entries of {size:.0f} bytes: "
        f"{format_spread(own[1:])} ms of CPU (goal 300), "
        f"{format_spread(servers[1:])} of the server's; {format_spread(walls[1:])} ms"
    )
    return {"cold_node_ms": median(own[1:]), "cold_server_ms": median(servers[1:])}


@contextmanager
def on_one_machine(environment: Environment) -> Iterator[tuple[Workspace, Author]]:
    """Yield the same memory with SQLite."""
    at = environment.fresh("sqlite-")
    roots = bind_all({scope: _made(at / scope) for scope in POLICY.scopes})
    with State(at / "state") as state:
        by = Author(state, roots)
        with lock_roots(roots.values(), create_deadline()) as held:
            replay([by.commit(number) for number in range(ENTRIES)], held)
        for root in roots.values():
            open_view(state, root, POLICY)
        with closing(Workspace(at, "one", state, lambda: JobContext(POLICY, roots, state))) as workspace:
            yield workspace, by


def time_calls(body: Callable[[], object], count: int) -> tuple[float, float]:
    """Return the milliseconds of the clock and of CPU, for one of many calls."""
    walls, own = [], []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        body()
        own.append(1e3 * (time.process_time() - cpu))
        walls.append(1e3 * (time.perf_counter() - wall))
    return median(walls), median(own)


def warm(environment: Environment) -> dict[str, float]:
    """Measure the additional cost of a recall on a node, and of reading one missed commit."""
    home = environment.home()
    with (
        open_author(environment, home) as by,
        on_one_machine(environment) as (workspace, _),
        open_cold_copy(environment, home) as copy,
    ):
        for number in range(ENTRIES):
            by.commit(number)
        words = "which pnpm version does the project pin, word62?"

        def on_node() -> None:
            with copy.open_for_reading(create_deadline()) as opened:
                assert opened.workspace.get_recaller().recall(words).entries

        def on_sqlite() -> None:
            assert workspace.get_recaller().recall(words).entries

        def look() -> None:
            with copy.open_for_reading(create_deadline()):
                pass

        for each in (on_node, on_sqlite, on_node, on_sqlite):
            each()
        ratios, recalls = [], []
        for _ in range(ROUNDS):
            one, other = time_calls(on_node, 40), time_calls(on_sqlite, 40)
            ratios.append((one[0] / other[0], one[1] / other[1]))
            recalls.append((*one, *other))
        wall, cpu, wall_one, cpu_one = (median(each) for each in zip(*recalls, strict=True))
        before = environment.server_ms()
        checked = time_calls(look, 300)
        checked_server = (environment.server_ms() - before) / 300
        missed = []
        for number in range(30):
            by.commit(ENTRIES + number)
            before = environment.server_ms()
            missed.append((*time_calls(look, 1), environment.server_ms() - before))
        later = [median(each) for each in zip(*missed, strict=True)]
    by_wall, by_cpu = (median(each) for each in zip(*ratios, strict=True))
    print(
        f"a recall in {ENTRIES} entries: {wall:.1f} ms on a node (CPU {cpu:.1f}), "
        f"{wall_one:.1f} with SQLite ({cpu_one:.1f})"
    )
    print(
        f"  ratio {by_wall:.2f} of the clock, {by_cpu:.2f} of CPU; the check alone {checked[0]:.2f} ms, "
        f"of the server's CPU {checked_server:.2f}"
    )
    print(f"  after one missed commit: {later[0]:.1f} ms, CPU {later[1]:.1f}, of the server's {later[2]:.1f}")
    return {"recall_ms": checked_server, "recall_node_ms": cpu}


# -- connections, and the server


def idle(environment: Environment) -> dict[str, float]:
    """Count the connections of a node that knows many homes."""
    with psycopg.connect(environment.base.owner, options="-c search_path=muniment") as connection:
        for number in range(HOMES):
            connection.execute(
                "INSERT INTO home (home) VALUES (%s) ON CONFLICT DO NOTHING", (f"idle-{number}",)
            )

    async def run() -> tuple[int, int, int]:
        async with environment.nodes(1) as (node,):
            await asyncio.sleep(1)
            none = environment.connections()
            for number in range(HOMES):
                node.home(f"idle-{number}")
            await asyncio.sleep(1)
            known = environment.connections()
            used = 0
            home = node.home("idle-7")
            options = [asyncio.create_task(home.tasks(home, before=None)) for _ in range(100)]
            await asyncio.gather(*options)
            used = environment.connections()
            return none, known, used

    none, known, used = asyncio.run(run())
    print(
        f"connections of a node: {none} without homes, {known} with {HOMES} known homes; "
        f"{used} after 100 concurrent queries"
    )
    return {}


def costs(environment: Environment) -> dict[str, float]:
    """Measure the CPU of the server for the requests of nodes, without other work."""
    submitting = _measure_submit(environment)
    remembering = _measure_remember(environment, submitting["submit_ms"])
    return {**submitting, **remembering, **_measure_queries(environment), **_measure_heartbeat(environment)}


def _measure_submit(environment: Environment) -> dict[str, float]:
    """Accept a task in an idle home, with its job, as `HomeCore` does."""
    count = 300
    homes = [environment.home() for _ in range(count)]
    with closing(LedgerPool(environment.base.node, 2)) as pool:
        queue = TurnQueue(
            environment.base.node, pool, _no_turn, list, slots=1, node="bench", stalled=LEASE_SECONDS
        )
        ledgers = [pool.home(home) for home in homes]
        lanes = [Lane(LedgerState(each, KEY), each.home) for each in ledgers]
        ms, before = time.perf_counter(), environment.server_ms()
        for ledger, each in zip(ledgers, lanes, strict=True):
            with ledger.transaction() as connection:
                each.submit(ASKED)
                queue.defer(connection.raw, ledger.home)
        spent = (environment.server_ms() - before) / count
        ms = 1e3 * (time.perf_counter() - ms) / count
    environment.do("DELETE FROM procrastinate_jobs")
    environment.do("DELETE FROM task")
    print(f"submit: {spent:.2f} ms of the server's CPU, {ms:.1f} ms in all")
    return {"submit_ms": spent}


async def _no_turn(home: str) -> None:
    raise AssertionError(home)


def _measure_queries(environment: Environment) -> dict[str, float]:
    """Query an empty queue."""
    count = 300
    ask = "SELECT id FROM procrastinate_fetch_job_v2(ARRAY[%s]::varchar[], NULL)"
    with psycopg.connect(
        environment.base.node, autocommit=True, options="-c search_path=muniment"
    ) as connection:
        connection.execute(ask, (build_queue_name("bench"),))
        before = environment.server_ms()
        for _ in range(count):
            connection.execute(ask, (build_queue_name("bench"),))
        spent = (environment.server_ms() - before) / count
    print(f"asking the queue for nothing: {spent:.2f} ms of the server's CPU")
    return {"ask_ms": spent}


def _measure_heartbeat(environment: Environment) -> dict[str, float]:
    """Measure a heartbeat: the additional cost of an idle node that sends many."""

    async def run(lease: float) -> float:
        async with environment.nodes(1, lease):
            await asyncio.sleep(1)
            before = environment.server_ms()
            await asyncio.sleep(IDLE_SECONDS)
            return (environment.server_ms() - before) / IDLE_SECONDS

    lease = 0.2
    more = asyncio.run(run(lease)) - asyncio.run(run(LEASE_SECONDS))
    spent = more / (4 / lease - 4 / LEASE_SECONDS)
    print(f"heartbeat: {spent:.2f} ms of the server's CPU")
    return {"heartbeat_ms": spent}


def _measure_remember(environment: Environment, accepting: float) -> dict[str, float]:
    """Remember facts by the rules on one node, one after the other in idle homes."""
    count = 80

    async def run() -> tuple[float, float]:
        async with environment.nodes(1) as (node,):
            homes = [node.home(environment.home()) for _ in range(10)]

            async def each(numbers: range) -> None:
                for number in numbers:
                    home = homes[number % len(homes)]
                    options = NewTask(
                        "remember",
                        {"content": fact(number).decode(), "scope": None, "context": ContextMode.WORKSPACE},
                        OWNER,
                        {},
                    )
                    task = (await home.submit(home, options)).task
                    ended = await home.wait(home, task.id, 60)
                    assert ended.status == "completed", ended
                    await asyncio.sleep(REST_SECONDS)

            await each(range(count))
            own, before = measure_cpu(os.getpid()), environment.server_ms()
            await each(range(count, 2 * count))
            return (environment.server_ms() - before) / count, 1e3 * (measure_cpu(os.getpid()) - own) / count

    spent, own = asyncio.run(run())
    spent -= accepting
    print(
        f"a fact by the rules: {spent:.1f} ms of the server's CPU without its acceptance, "
        f"{own:.1f} of the node's with its worker's"
    )
    return {"turn_ms": spent, "rule_ms": own}


PARTS = (throughput, waits, cold, warm, idle, costs)
WRITING = (throughput, waits)


def main() -> None:
    """Print the requested parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *(each.__name__ for each in PARTS)], metavar="PART")
    parser.add_argument("--disk", type=Path, help="a directory on a disk, to repeat with fsync")
    parser.add_argument("--json", type=Path, help="output file for the inputs of the simulation")
    options = parser.parse_args()
    found: dict[str, float] = {}
    with open_environment(None) as environment:
        for part in PARTS:
            if not options.parts or part.__name__ in options.parts:
                found |= part(environment)
    if options.disk:
        print("with fsync:")
        with open_environment(options.disk) as environment:
            for part in WRITING:
                if not options.parts or part.__name__ in options.parts:
                    part(environment)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "ascii")


if __name__ == "__main__":
    main()
