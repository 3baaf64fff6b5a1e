"""Measure the daemon over loopback: accept, start and finish tasks, respond, send events.

Run it with `python benchmarks/daemon.py`; a name, such as `followers`, runs only that part. The clients are
one asyncio process that writes prepared requests to raw sockets, on the same machine: its CPU time is also in
the figures. Rates are medians of `ROUNDS`. All except those of the rule writer and `ready` use tasks that do
nothing (`services/idle_work.py`), so that they measure the daemon and not the jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROUNDS = 5
WORKSPACES = 8
ACCEPTED, FULL = 202, 429
HERE = Path(__file__).parent
PROGRAM = (str(Path(sys.executable).with_name("muniment")), "serve")
IDLE = (sys.executable, str(HERE / "services" / "idle_work.py"))


@dataclass
class RunningDaemon:
    """A running daemon."""

    process: subprocess.Popen[str]
    home: Path
    keys: list[str]
    ready: float

    def __post_init__(self) -> None:
        address = json.loads((self.home / "state" / "daemon.json").read_text())
        self.host, _, port = address["url"].removeprefix("http://").partition(":")
        self.port = int(port)
        self.token = (self.home / "state" / "token").read_text().strip()

    def memory(self) -> float:
        """Return the resident MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def cpu(self) -> float:
        """Return the CPU seconds until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(each) for each in fields[11:13]) / os.sysconf("SC_CLK_TCK")

    def request(self, method: str, path: str, body: object = None, extra: str = "") -> bytes:
        """Return a request as bytes for the wire."""
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n{extra}\r\n"
        )
        return head.encode() + data


@contextmanager
def start_daemon(program: tuple[str, ...], workspaces: int = 1) -> Iterator[RunningDaemon]:
    """Start a daemon over new workspaces in a throwaway home."""
    with tempfile.TemporaryDirectory() as base:
        home, arguments = Path(base, "home"), []
        for number in range(workspaces):
            Path(base, f"w{number}", ".git").mkdir(parents=True)
            arguments += ["--workspace", str(Path(base, f"w{number}"))]
        environment = {**os.environ, "MUNIMENT_HOME": str(home)}
        started = time.perf_counter()
        process = subprocess.Popen(
            [*program, *arguments, "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            document = process.stdout.readline()
            ready = time.perf_counter() - started
            yield RunningDaemon(process, home, list(json.loads(document)["workspaces"]), ready)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            process.stdout.close()


class Line:
    """A persistent connection."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self.daemon.host, self.daemon.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body of the response."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        return int(head[9:12]), await self.reader.readexactly(size)

    async def post(self, key: str, number: int) -> str:
        """Submit a task, with retries while the queue is full; return its id."""
        request = self.daemon.request(
            "POST", f"/workspaces/{key}/memory/remember", {"content": f"The build number is {number}"}
        )
        while True:
            status, body = await self.send(request)
            if status == ACCEPTED:
                return json.loads(body)["taskId"]
            assert status == FULL, body
            await asyncio.sleep(0.005)

    async def wait_for_end(self, key: str, task: str) -> str:
        """Wait for a task; return its status."""
        path = f"/workspaces/{key}/memory/remember/{task}"
        while True:
            _, body = await self.send(self.daemon.request("GET", path, extra="Prefer: wait=60\r\n"))
            if (status := json.loads(body)["status"]) not in {"queued", "running"}:
                return status


async def run_clients(
    daemon: RunningDaemon, clients: int, work: Callable[[Line, int], Awaitable[None]]
) -> float:
    """Return the seconds that concurrent clients need."""

    async def one(number: int) -> None:
        async with Line(daemon) as line:
            await work(line, number)

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return time.perf_counter() - started


def measure_rate(
    daemon: RunningDaemon, clients: int, count: int, work: Callable[[Line, int], Awaitable[None]]
) -> str:
    """Return median and range over the rounds of operations per second; all clients together do `count`."""
    rates = [count / asyncio.run(run_clients(daemon, clients, work)) for _ in range(ROUNDS)]
    return f"{statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})"


def ready() -> None:
    """Measure start and memory of an idle daemon."""
    starts, sizes = [], []
    for _ in range(2 * ROUNDS + 1):
        with start_daemon(PROGRAM) as daemon:
            starts.append(daemon.ready)
            sizes.append(daemon.memory())
    print(f"ready after {statistics.median(starts):.2f} s ({min(starts):.2f}-{max(starts):.2f}); goal 0.5")
    print(f"resident {statistics.median(sizes):.0f} MB; goal 80")


def answers() -> None:
    """Measure requests per second that change nothing."""
    with start_daemon(IDLE) as daemon:
        key = daemon.keys[0]

        async def a_task() -> str:
            async with Line(daemon) as line:
                return await line.post(key, 0)

        task = asyncio.run(a_task())
        paths = {"/healthz": "/healthz", "a task": f"/workspaces/{key}/memory/remember/{task}"}
        for name, path in paths.items():
            request = daemon.request("GET", path)
            for clients in (1, 8):

                async def ask(
                    line: Line, _: int, request: bytes = request, each: int = 800 // clients
                ) -> None:
                    for _ in range(each):
                        await line.send(request)

                print(f"GET {name}, c={clients}: {measure_rate(daemon, clients, 800, ask)}/s")


def accepted() -> None:
    """Measure tasks accepted durably per second, and tasks finished per second."""
    with start_daemon(IDLE, WORKSPACES) as daemon:
        for clients, count in ((1, 400), (8, 1600)):

            async def post(line: Line, number: int, clients: int = clients, count: int = count) -> None:
                for at in range(count // clients):
                    await line.post(daemon.keys[(at if clients == 1 else number) % WORKSPACES], at)

            print(f"POST, c={clients}: {measure_rate(daemon, clients, count, post)}/s accepted")

        async def finish(line: Line, number: int) -> None:
            key = daemon.keys[number]
            for at in range(100):
                task = await line.post(key, at)
            assert await line.wait_for_end(key, task) == "completed"

        before = daemon.cpu()
        print(f"no-op tasks over {WORKSPACES} lanes: {measure_rate(daemon, 8, 800, finish)}/s; goal 250")
        print(f"  {1e3 * (daemon.cpu() - before) / (800 * ROUNDS):.2f} ms of the daemon's CPU each")


def waits() -> None:
    """Measure the time from acceptance to start in an idle lane, by the times in the ledger."""
    with start_daemon(IDLE) as daemon:

        async def one_by_one(line: Line, _: int) -> None:
            for at in range(400):
                task = await line.post(daemon.keys[0], at)
                await line.wait_for_end(daemon.keys[0], task)

        asyncio.run(run_clients(daemon, 1, one_by_one))
        with closing(sqlite3.connect(daemon.home / "state" / "ledger.db")) as ledger:
            rows = ledger.execute(
                "SELECT (julianday(running.at) - julianday(queued.at)) * 86400000 FROM event AS queued "
                "JOIN event AS running USING (task) WHERE queued.data LIKE '%\"queued\"%' "
                "AND running.data LIKE '%\"running\"%'"
            ).fetchall()
    times = sorted(row[0] for row in rows)
    print(
        f"enqueue → start over {len(times)} tasks: p50 {statistics.median(times):.1f} ms (goal 15), "
        f"p99 {times[len(times) * 99 // 100]:.1f} ms"
    )


def rules() -> None:
    """Measure facts per second that the rule writer files."""
    for lanes in (1, WORKSPACES):
        with start_daemon(PROGRAM, lanes) as daemon:
            count = 0

            async def finish(line: Line, number: int) -> None:
                nonlocal count
                for at in range(10):
                    count += 1
                    task = await line.post(daemon.keys[number], 100 * count + at)
                assert await line.wait_for_end(daemon.keys[number], task) == "completed"

            asyncio.run(run_clients(daemon, lanes, finish))
            print(f"rule writer over {lanes} lanes: {measure_rate(daemon, lanes, 10 * lanes, finish)}/s")


def followers() -> None:
    """Measure 200 followers of events while 500 tasks run."""
    with start_daemon(IDLE, WORKSPACES) as daemon:

        async def follow(line: Line, key: str, ends: int, is_there: asyncio.Event) -> int:
            line.writer.write(daemon.request("GET", f"/workspaces/{key}/memory/events"))
            seen, left = 0, b""
            while ends:
                block = left + await line.reader.read(65536)
                is_there.set()
                *frames, left = block.split(b"\n\n")
                seen += sum(b"event:" in frame for frame in frames)
                ends -= sum(b'"completed"' in frame for frame in frames)
            return seen

        async def all_of_it() -> tuple[float, int]:
            lines = [await Line(daemon).__aenter__() for _ in range(200)]
            there = [asyncio.Event() for _ in lines]
            each = 500 // WORKSPACES
            following = [
                asyncio.create_task(follow(line, daemon.keys[at % WORKSPACES], each, there[at]))
                for at, line in enumerate(lines)
            ]
            for event in there:
                await event.wait()

            async def post(line: Line, number: int) -> None:
                for at in range(each):
                    await line.post(daemon.keys[number], at)

            started = time.perf_counter()
            await run_clients(daemon, WORKSPACES, post)
            seen = sum(await asyncio.gather(*following))
            for line in lines:
                line.writer.close()
            return time.perf_counter() - started, seen

        before, size = daemon.cpu(), daemon.memory()
        seconds, seen = asyncio.run(all_of_it())
        tasks = 500 // WORKSPACES * WORKSPACES
        print(
            f"200 followers, {tasks} tasks: all {seen} events sent after {seconds:.1f} s, "
            f"{daemon.cpu() - before:.1f} s of CPU, {size:.0f} → {daemon.memory():.0f} MB"
        )


def memory() -> None:
    """Measure the resident memory over 10 000 tasks."""
    with start_daemon(IDLE, WORKSPACES) as daemon:
        sizes = [daemon.memory()]
        for _ in range(10):

            async def post(line: Line, number: int) -> None:
                for at in range(125):
                    task = await line.post(daemon.keys[number], at)
                await line.wait_for_end(daemon.keys[number], task)

            asyncio.run(run_clients(daemon, WORKSPACES, post))
            sizes.append(daemon.memory())
        ledger = (daemon.home / "state" / "ledger.db").stat().st_size / 1e6
    print(f"resident MB at every 1000 of 10 000 tasks: {' '.join(f'{size:.0f}' for size in sizes)}")
    print(f"  the ledger has {ledger:.1f} MB then")


PARTS = (ready, answers, accepted, waits, rules, followers, memory)

if __name__ == "__main__":
    for part in PARTS:
        if len(sys.argv) == 1 or part.__name__ in sys.argv[1:]:
            part()
