"""Simulate a larger fleet: its capacity, the capacity of one PostgreSQL, and when to shard by home.

    python benchmarks/fleet_at_scale.py [--wakes all|one|home] [--reads any|token] [--costs FILE] [--quick]

A simulation of discrete events, without Muniment and without a server: the same seed prints the same result.
`--costs` reads the output of `benchmarks/fleet.py --json FILE`, so that the cost of a task is
measured and only the size is simulated.

Included: homes that are active for a while and are then replaced by others; tasks in bursts, most of them by
the rules (CPU of a node), some by a model (seconds in a slot, no CPU); recalls; the lock of a home; slots,
cores, connections and working copies (the least recently used is evicted) of each node; cores of the
database, and its one lock for commits that notify. Not included: disks and other locks of the database,
networks, node failures, homes of more than 1 000 entries, and catching up with a few commits of another node.
Database times are exponentially distributed, which is worse than in reality.

Source of the lock: postgresql.org/docs/current/sql-notify.html, and `PreCommit_Notify` of its async.c.
Commits that notify are serialised; each ends when its log is on the disk.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Final

LIMIT_SECONDS: Final = 1.0
"""A fleet is saturated if p95 is larger, of the time until acceptance or from acceptance to start."""

NEVER_IDLE: Final = 0.98
"""A share of the measured time. It detects a slowly growing queue before the queue is long."""

SHARD_AT: Final = 0.6
"""A share of the database's capacity. The rest is for bursts, vacuum, a backup, and a failover."""

DATABASE: Final = "cores of the database"
WAKES: Final = ("all", "one", "home")
READS: Final = ("any", "token")


@dataclass(frozen=True)
class Costs:
    """CPU of the server or of a node, or time; all in milliseconds.

    The defaults are the results of `benchmarks/fleet.py`, see RESULTS.md, except `notify_ms`, which depends
    on the disk with the log of the database.

    Attributes:
        submit_ms: server CPU to accept a task.
        turn_ms: server CPU to run it, half of it before it starts.
        ask_ms: server CPU of a query to an empty queue.
        recall_ms: server CPU to check whether a working copy is current.
        cold_server_ms, cold_node_ms: CPU to build the working copy of 1 000 entries.
        heartbeat_ms: server CPU of a node's heartbeat.
        notify_ms: time that a commit that notifies holds the lock, including the write to the disk.
        rule_ms, recall_node_ms: node CPU of a task by the rules, or around a model, and of a recall.
    """

    submit_ms: float = 2.05
    turn_ms: float = 17.8
    ask_ms: float = 0.12
    recall_ms: float = 0.13
    cold_server_ms: float = 57.7
    cold_node_ms: float = 322.0
    heartbeat_ms: float = 0.76
    notify_ms: float = 0.3
    rule_ms: float = 128.0
    recall_node_ms: float = 10.9


@dataclass(frozen=True)
class Fleet:
    """The machines, and the distribution of work to them.

    Attributes:
        nodes, slots, cores: number of nodes; concurrent tasks per node; cores per node.
        pool: maximum of connections of a node, without the listening one.
        copies: working copies that a node caches.
        database_cores: of PostgreSQL.
        heartbeat_seconds: interval of a node's heartbeats.
        reads: "token": the load balancer routes a token to one node; "any": to each node in turn.
        wakes: the nodes with a free slot that a task wakes to query the queue. "all": each; "one": one of
            them, and the others leave the task to it; "home": the node with the home's working copy, if it
            has a slot. `fleet/queue.py` implements the last one, Q3.
    """

    nodes: int = 100
    slots: int = 32
    cores: int = 4
    pool: int = 8
    copies: int = 2_000
    database_cores: int = 16
    heartbeat_seconds: float = 5.0
    reads: str = "token"
    wakes: str = "home"


@dataclass(frozen=True)
class Load:
    """The work of the clients.

    Attributes:
        homes, active: homes, and the share of them that is active at a time.
        per_minute: tasks of an active home.
        recalls: for each task.
        by_model, model_seconds: the share of tasks that use a model, and their average duration.
        burst, burst_share, burst_seconds: the factor of the average rate in a burst, the share of time in
            bursts, and the duration of one.
        session_minutes: after this time another home becomes active instead.
    """

    homes: int = 1_000_000
    active: float = 0.01
    per_minute: float = 1.0
    recalls: float = 3.0
    by_model: float = 0.1
    model_seconds: float = 4.0
    burst: float = 3.0
    burst_share: float = 0.1
    burst_seconds: float = 0.3
    session_minutes: float = 30.0

    @property
    def at_once(self) -> int:
        """Return the number of concurrently active homes."""
        return max(1, round(self.homes * self.active))

    @property
    def rate(self) -> float:
        """Return the average number of tasks per second."""
        return self.at_once * self.per_minute / 60


Process = Generator["float | Station", None, None]
"""The life of one object: it yields seconds to wait, or a station of which it needs a server."""


class Simulation:
    """The current time, and the scheduled events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process]] = []
        self._numbers = count()

    def start(self, process: Process, after: float = 0.0) -> None:
        """Resume a process after some seconds, after all events already due by then."""
        heappush(self._due, (self.now + after, next(self._numbers), process))

    def run(self, until: float) -> None:
        """Advance the time."""
        due = self._due
        while due and due[0][0] <= until:
            self.now, _, process = heappop(due)
            for wanted in process:
                if isinstance(wanted, Station):
                    if wanted.acquire(process):
                        continue
                else:
                    self.start(process, wanted)
                break
        self.now = until


class Station:
    """Some servers with one queue: first come, first served."""

    def __init__(self, simulation: Simulation, servers: int) -> None:
        self.servers, self.free = servers, servers
        self.line: deque[Process] = deque()
        self._simulation = simulation
        self._since = self._busy = self._waited = 0.0

    def _pass(self) -> None:
        now = self._simulation.now
        self._busy += (now - self._since) * (self.servers - self.free)
        self._waited += (now - self._since) * len(self.line)
        self._since = now

    def acquire(self, process: Process) -> bool:
        """Acquire a server and return True, or wait in the queue and return False."""
        self._pass()
        if not self.free:
            self.line.append(process)
            return False
        self.free -= 1
        return True

    def release(self) -> None:
        """Release a server to the first process in the queue."""
        self._pass()
        if self.line:
            self._simulation.start(self.line.popleft())
        else:
            self.free += 1

    def reset(self) -> None:
        """Reset the counters."""
        self._pass()
        self._busy = self._waited = 0.0

    def busy(self, seconds: float) -> float:
        """Return the average number of busy servers since the reset."""
        self._pass()
        return self._busy / seconds

    def mean_waiting(self, seconds: float) -> float:
        """Return the average number of waiting processes since the reset."""
        self._pass()
        return self._waited / seconds


@dataclass
class Task:
    """One task."""

    number: int
    home: int
    accepted: float

    def __lt__(self, other: Task) -> bool:
        """Return whether this task is older."""
        return self.number < other.number


class Node:
    """A node: its slots, cores, connections and working copies."""

    def __init__(self, simulation: Simulation, fleet: Fleet) -> None:
        self.free, self.most = fleet.slots, fleet.copies
        self.cores, self.pool = Station(simulation, fleet.cores), Station(simulation, fleet.pool)
        self.copies: OrderedDict[int, None] = OrderedDict()
        self.own: list[Task] = []
        self.is_querying = self.is_woken = False

    def use_copy(self, home: int) -> bool:
        """Return whether it has the working copy of a home, and add it."""
        found = home in self.copies
        self.copies[home] = None
        self.copies.move_to_end(home)
        if len(self.copies) > self.most:
            self.copies.popitem(last=False)
        return found


@dataclass
class Seen:
    """The observations during the measured time."""

    accepts: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    recalls: list[float] = field(default_factory=list)
    copy_uses: int = 0
    hits: int = 0
    queries: int = 0
    empty_queries: int = 0
    most_connections: int = 0


@dataclass(frozen=True)
class Figures:
    """The results of a run: arrived and started tasks per second; seconds; shares; utilisation."""

    rate: float
    done: float
    accept_95: float
    wait_50: float
    wait_95: float
    recall_95: float
    hit: float
    empty_queries: float
    connections: int
    busy: dict[str, float]

    @property
    def is_saturated(self) -> bool:
        """Return whether tasks wait too long, or a part is never idle."""
        return max(self.accept_95, self.wait_95) > LIMIT_SECONDS or max(self.busy.values()) > NEVER_IDLE

    @property
    def weakest(self) -> str:
        """Return the part closest to its limit."""
        name = max(self.busy, key=lambda each: self.busy[each])
        return f"{name} ({self.busy[name]:.0%})"


class Run:
    """A fleet under a load."""

    def __init__(self, costs: Costs, fleet: Fleet, load: Load, seed: int) -> None:
        self.costs, self.fleet, self.load = costs, fleet, load
        self.random = random.Random(seed)
        self.time = Simulation()
        self.cores, self.commits = Station(self.time, fleet.database_cores), Station(self.time, 1)
        self.nodes = [Node(self.time, fleet) for _ in range(fleet.nodes)]
        self.active, self.next_home = list(range(load.at_once)), load.at_once
        self.numbers = count()
        self.ready: list[Task] = []
        self.waiting_by_home: dict[int, deque[Task]] = {}
        self.seen = Seen()
        self.connections = 0

    def figures(self, seconds: float) -> Figures:
        """Run the simulation, after a warm-up of a fifth of the time.

        Args:
            seconds: the measured time.
        """
        self._warm()
        for node in self.nodes:
            self.time.start(self._beat(node), self.random.random() * self.fleet.heartbeat_seconds)
        self.time.start(self._arrive(self.load.rate, self._task))
        self.time.start(self._arrive(self.load.rate * self.load.recalls, self._recall))
        self.time.run(seconds / 5)
        self.seen, fleet, nodes = Seen(), self.fleet, self.nodes
        for station in (self.cores, self.commits, *(node.cores for node in nodes)):
            station.reset()
        self.time.run(seconds * 1.2)
        seen = self.seen
        late = (self.time.now - task.accepted for task in self._list_unclaimed())
        waits = sorted([*seen.waits, *(each for each in late if each > LIMIT_SECONDS)])
        return Figures(
            rate=self.load.rate,
            done=len(seen.waits) / seconds,
            accept_95=_quantile(sorted(seen.accepts), 0.95),
            wait_50=_quantile(waits, 0.5),
            wait_95=_quantile(waits, 0.95),
            recall_95=_quantile(sorted(seen.recalls), 0.95),
            hit=seen.hits / max(1, seen.copy_uses),
            empty_queries=seen.empty_queries / max(1, seen.queries),
            connections=seen.most_connections,
            busy={
                DATABASE: self.cores.busy(seconds) / fleet.database_cores,
                "commits that notify": self.commits.busy(seconds),
                "cores of the nodes": sum(each.cores.busy(seconds) for each in nodes)
                / len(nodes)
                / fleet.cores,
                "slots of the nodes": 1 - sum(each.free for each in nodes) / len(nodes) / fleet.slots,
            },
        )

    def _list_unclaimed(self) -> Iterable[Task]:
        lines = (self.ready, *(node.own for node in self.nodes), *self.waiting_by_home.values())
        return (task for line in lines for task in line)

    # -- what comes -----------------------------------------------------------------------------------

    def _arrive(self, rate: float, what: Callable[[int], Process]) -> Process:
        """Yield a Poisson process whose rate alternates between bursts and calm periods."""
        load, is_burst = self.load, False
        calm = (1 - load.burst * load.burst_share) / (1 - load.burst_share)
        phases = {True: load.burst_seconds, False: load.burst_seconds * (1 / load.burst_share - 1)}
        ends = phases[is_burst] / 2  # So that a burst and the time after it are within the measured time.
        while True:
            after = self.random.expovariate(rate * (load.burst if is_burst else calm))
            if self.time.now + after > ends:  # Memoryless: at the next rate it starts again.
                yield max(0.0, ends - self.time.now)
                is_burst = not is_burst
                ends += phases[is_burst]
                continue
            yield after
            self.time.start(what(self._home()))

    def _home(self) -> int:
        """Return an active home, sometimes one that was not active before."""
        load = self.load
        at = self.random.randrange(len(self.active))
        uses = load.session_minutes * load.per_minute * (1 + load.recalls)
        if self.random.random() * uses < 1:
            self.active[at] = self.next_home
            self.next_home += 1
        return self.active[at]

    def _node(self, home: int, *, is_led: bool) -> Node:
        return self.nodes[home % len(self.nodes) if is_led else self.random.randrange(len(self.nodes))]

    def _warm(self) -> None:
        """Add working copies as after hours of use: on the node of a home if routed, else on any node."""
        leads_tasks, leads_reads = self.fleet.wakes == "home", self.fleet.reads == "token"
        if leads_tasks or leads_reads:
            for home in self.active:
                self._node(home, is_led=True).use_copy(home)
        if leads_tasks and leads_reads:
            return
        of_tasks = 1 / (1 + self.load.recalls)  # The share of all uses of a working copy.
        share = of_tasks if leads_reads else 1 - of_tasks if leads_tasks else 1.0
        uses = len(self.active) * self.load.session_minutes * self.load.per_minute * (1 + self.load.recalls)
        for _ in range(min(round(uses * share), 2 * self.fleet.nodes * self.fleet.copies)):
            self._node(0, is_led=False).use_copy(self._home())

    # -- what happens ---------------------------------------------------------------------------------

    def _server(self, node: Node, milliseconds: float, *, notifies: bool = False) -> Process:
        """Run a transaction on a connection of a node."""
        yield node.pool
        self._connect()
        yield self.cores
        yield self.random.expovariate(1_000 / milliseconds)
        self.cores.release()
        if notifies:
            yield self.commits
            yield self.costs.notify_ms / 1_000
            self.commits.release()
        self._hang_up(node)

    def _connect(self) -> None:
        self.connections += 1
        self.seen.most_connections = max(self.seen.most_connections, self.connections)

    def _hang_up(self, node: Node) -> None:
        self.connections -= 1
        node.pool.release()

    def _work(self, node: Node, milliseconds: float) -> Process:
        """Use CPU of a node."""
        yield node.cores
        yield milliseconds / 1_000
        node.cores.release()

    def _copy(self, node: Node, home: int) -> Process:
        """Ensure that a node has the working copy of a home."""
        found = node.use_copy(home)
        self.seen.copy_uses += 1
        self.seen.hits += found
        if not found:
            yield from self._server(node, self.costs.cold_server_ms)
            yield from self._work(node, self.costs.cold_node_ms)

    def _beat(self, node: Node) -> Process:
        while True:
            yield from self._server(node, self.costs.heartbeat_ms)
            yield self.fleet.heartbeat_seconds

    def _recall(self, home: int) -> Process:
        began, node = self.time.now, self._node(home, is_led=self.fleet.reads == "token")
        yield from self._server(node, self.costs.recall_ms)
        yield from self._copy(node, home)
        yield from self._work(node, self.costs.recall_node_ms)
        self.seen.recalls.append(self.time.now - began)

    def _task(self, home: int) -> Process:
        """Accept a task; it waits for earlier tasks of its home."""
        arrived, node = self.time.now, self._node(home, is_led=self.fleet.reads == "token")
        yield from self._server(node, self.costs.submit_ms, notifies=True)
        task = Task(next(self.numbers), home, self.time.now)
        self.seen.accepts.append(self.time.now - arrived)
        if home in self.waiting_by_home:
            self.waiting_by_home[home].append(task)
        else:
            self.waiting_by_home[home] = deque()
            self._offer(task)

    def _offer(self, task: Task) -> None:
        """Announce a task that may start to the nodes."""
        if self.fleet.wakes == "all":
            heappush(self.ready, task)
            first = self.random.randrange(len(self.nodes))
            for node in (*self.nodes[first:], *self.nodes[:first]):
                self._wake(node)
            return
        node = self._node(task.home, is_led=self.fleet.wakes == "home")
        if not node.free:
            free = [each for each in self.nodes if each.free]
            if not free:
                heappush(self.ready, task)  # The next node with a free slot queries by itself.
                return
            node = self.random.choice(free)
        heappush(node.own, task)
        self._wake(node)

    def _wake(self, node: Node) -> None:
        node.is_woken = True
        if node.free and not node.is_querying:
            node.is_querying = True
            self.time.start(self._query_queue(node))

    def _query_queue(self, node: Node) -> Process:
        """Claim tasks, one after the other, until the queue is empty or no slot is free."""
        while node.free:
            node.is_woken = False
            node.free -= 1
            yield node.pool
            self._connect()
            yield self.cores
            task = self._claim(node)
            self.seen.queries += 1
            self.seen.empty_queries += task is None
            yield self.random.expovariate(1_000 / (self.costs.turn_ms / 2 if task else self.costs.ask_ms))
            self.cores.release()
            self._hang_up(node)
            if task is not None:
                self.time.start(self._carry_out(node, task))
            else:
                node.free += 1
                if not node.is_woken:
                    break
        node.is_querying = False

    def _claim(self, node: Node) -> Task | None:
        """Return the oldest task that woke the node, otherwise the oldest for any node."""
        line = node.own or self.ready
        return heappop(line) if line else None

    def _carry_out(self, node: Node, task: Task) -> Process:
        costs, load = self.costs, self.load
        yield from self._copy(node, task.home)
        self.seen.waits.append(self.time.now - task.accepted)
        yield from self._work(node, costs.rule_ms)
        if self.random.random() < load.by_model:
            yield self.random.expovariate(1 / load.model_seconds)
        yield from self._server(node, costs.turn_ms / 2, notifies=True)
        line = self.waiting_by_home[task.home]
        if line:
            self._offer(line.popleft())
        else:
            del self.waiting_by_home[task.home]
        node.free += 1
        self._wake(node)


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def bound(costs: Costs, fleet: Fleet, load: Load) -> float:
    """Return the maximum of tasks per second without cold copies and empty queries."""
    server_ms = costs.submit_ms + costs.turn_ms + load.recalls * costs.recall_ms
    node_ms = costs.rule_ms + load.recalls * costs.recall_node_ms
    slot_seconds = costs.rule_ms / 1_000 + load.by_model * load.model_seconds
    return min(
        1_000 * fleet.database_cores / server_ms,
        1_000 / (2 * costs.notify_ms),
        1_000 * fleet.nodes * fleet.cores / node_ms,
        fleet.nodes * fleet.slots / slot_seconds,
    )


def at_rate(load: Load, rate: float) -> Load:
    """Return a load of this many tasks per second, from more homes with the same activity."""
    return replace(load, homes=round(rate * 60 / load.per_minute / load.active))


@dataclass(frozen=True)
class Effort:
    """The measured time of each run, and the number of bisections for the saturation."""

    seconds: float
    halvings: int


def saturation(costs: Costs, fleet: Fleet, load: Load, effort: Effort, seed: int) -> tuple[float, Figures]:
    """Return the tasks per second at saturation, and the figures just below it."""
    low, high = 0.0, bound(costs, fleet, load)
    below: Figures | None = None
    for _ in range(effort.halvings):
        middle = (low + high) / 2
        found = Run(costs, fleet, at_rate(load, middle), seed).figures(effort.seconds)
        if found.is_saturated:
            high = middle
        else:
            low, below = middle, found
    return low, below or found


def table(title: str, heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Print a Markdown table, each row as soon as it is known."""
    print(f"\n{title}\n")
    for row in (heads, tuple("---" for _ in heads)):
        print("| " + " | ".join(row) + " |")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def short(seconds: float) -> str:
    """Return a time in a readable form."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1_000:.0f} ms"


def count_busy_cores(found: Figures, fleet: Fleet) -> str:
    """Return the number of busy cores of the database."""
    return f"{found.busy[DATABASE] * fleet.database_cores:.1f}"


def round_number(number: float) -> str:
    """Return a number with two digits."""
    text = f"{number:.2g}"
    return f"{float(text):,.0f}" if "e" in text else text


def print_ways(costs: Costs, fleet: Fleet, load: Load, effort: Effort, seed: int) -> None:
    """Print the effect of the routing of requests and of the nodes that a task wakes."""
    ways = [("any", "all"), ("token", "all"), ("token", "one"), ("token", "home")]

    def rows() -> Iterable[tuple[object, ...]]:
        for reads, wakes in ways:
            way = replace(fleet, reads=reads, wakes=wakes)
            found = Run(costs, way, load, seed).figures(effort.seconds)
            yield (
                *(
                    reads,
                    wakes,
                    f"{found.hit:.0%}",
                    f"{found.empty_queries:.0%}",
                    count_busy_cores(found, fleet),
                ),
                *(short(found.wait_50), short(found.wait_95), short(found.recall_95)),
            )

    table(
        f"Routing of requests, and nodes woken by a task: {load.rate:.0f} tasks/s",
        ("reads", "wakes", "copy present", "empty queries", "database cores", "p50", "p95", "recall p95"),
        rows(),
    )


def print_loads(costs: Costs, fleet: Fleet, load: Load, effort: Effort, seed: int) -> None:
    """Print how waits grow with the number of homes."""
    most, _ = saturation(costs, fleet, load, effort, seed)

    def rows() -> Iterable[tuple[object, ...]]:
        for share in (0.25, 0.5, 0.75, 0.9, 1.0, 1.2):
            one = at_rate(load, most * share)
            found = Run(costs, fleet, one, seed).figures(effort.seconds)
            yield (
                *(round_number(one.homes), f"{one.rate:.0f}", f"{found.done:.0f}"),
                *map(short, (found.accept_95, found.wait_50, found.wait_95, found.recall_95)),
                *(f"{found.hit:.0%}", count_busy_cores(found, fleet), found.connections, found.weakest),
            )

    table(
        f"Loads of {fleet.nodes} nodes: saturated from {round_number(most)} tasks/s on",
        (
            *("homes", "tasks/s", "started/s", "accepted p95", "p50", "p95", "recall p95"),
            *("copy present", "database cores", "connections in use", "first limit"),
        ),
        rows(),
    )


def print_databases(costs: Costs, fleet: Fleet, load: Load, effort: Effort, seed: int) -> None:
    """Print the capacity of a PostgreSQL by its size, and from which load homes need two of them."""
    size = fleet.database_cores

    def rows() -> Iterable[tuple[object, ...]]:
        for cores in (size // 4, size // 2, size, size * 2):
            sized = replace(fleet, database_cores=cores)
            most, below = saturation(costs, sized, load, effort, seed)
            shard = most * SHARD_AT
            yield (
                *(cores, round_number(most), below.weakest, below.connections),
                *(
                    round_number(shard),
                    round_number(at_rate(load, shard).homes),
                    round_number(shard / load.at_once * 60),
                ),
            )

    table(
        f"One PostgreSQL, and from which load homes need two: {SHARD_AT:.0%} of its capacity",
        (
            *("cores", "tasks/s at most", "first limit", "connections in use", "shard at tasks/s"),
            *(
                f"or homes, at {load.per_minute:g} a minute each",
                f"or tasks a minute, of {load.homes:,} homes",
            ),
        ),
        rows(),
    )


def read_costs(path: Path) -> Costs:
    """Return the costs of a file; missing ones have their defaults."""
    found = json.loads(path.read_text(encoding="utf-8"))
    known = {each.name for each in fields(Costs)}
    if not isinstance(found, dict) or not found.keys() <= known:
        sys.exit(f"{path} has unknown costs; the known ones are {', '.join(sorted(known))}")
    if not all(isinstance(value, int | float) and value > 0 for value in found.values()):
        sys.exit(f"{path} has a cost that is not a number above 0")
    return Costs(**found)


def main(arguments: list[str] | None = None) -> None:
    """Print the inputs and three tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small and short, as a smoke test")
    parser.add_argument("--costs", type=Path, help="measured costs, from benchmarks/fleet.py --json FILE")
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--wakes", choices=WAKES, default=Fleet.wakes, help="the nodes that a task wakes")
    parser.add_argument(
        "--reads", choices=READS, default=Fleet.reads, help="the routing of a home's requests"
    )
    options = parser.parse_args(arguments)
    costs = read_costs(options.costs) if options.costs else Costs()
    fleet, load, effort = Fleet(wakes=options.wakes, reads=options.reads), Load(), Effort(6.0, 6)
    if options.quick:
        fleet, load, effort = (
            replace(fleet, nodes=4, database_cores=4),
            replace(load, homes=50_000),
            Effort(0.4, 3),
        )
    source = str(options.costs) if options.costs else "measured, see RESULTS.md"
    print(f"seed {options.seed}; costs ({source}), ms:")
    print(
        "  "
        + ", ".join(
            f"{each.name.removesuffix('_ms')} {getattr(costs, each.name):g}" for each in fields(Costs)
        )
    )
    print(f"  {fleet}\n  {load}")
    for each in (print_ways, print_loads, print_databases):
        each(costs, fleet, load, effort, options.seed)


if __name__ == "__main__":
    main()
