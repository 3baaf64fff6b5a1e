"""Kill and stop nodes and restart the database while homes are in use."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from kit.fleet.homes import KEY, FleetDatabase
from kit.fleet.nodes import NodeProcess
from kit.postgres import Server
from muniment.fleet import homes
from muniment.fleet.postgres import LedgerPool
from muniment.fleet.working_copies import MEMORY_NAME, CopyOptions, WorkingCopy, build_copy_path
from muniment.kernel.cancel import Deadline
from muniment.policy.load import load_policy
from muniment.store.audit import verify
from muniment.store.state import LedgerState

TERMINAL = {"completed", "failed", "cancelled"}
QUIET_SECONDS = 120.0


@dataclass
class Plan:
    """Size and severity of a run.

    Attributes:
        seconds: duration of the faults.
        fault_interval: minimum and maximum seconds between two faults.
        pause_seconds: seconds of a SIGSTOP, longer than the lease.
        restarts_database: whether the database is also restarted.
    """

    seed: int
    homes: int
    tasks: int
    seconds: float
    fault_interval: tuple[float, float] = (2.0, 5.0)
    lease: float = 2.0
    pause_seconds: float = 4.0
    restarts_database: bool = True


@dataclass
class HomeLoad:
    """A home and the requests sent to it."""

    name: str
    token: str
    accepted_tasks: list[str] = field(default_factory=list)
    undone_tasks: list[str] = field(default_factory=list)
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    resyncs: int = 0


class ChaosRun:
    """One run of a plan over a database and some nodes."""

    def __init__(
        self, plan: Plan, base: FleetDatabase, server: Server | None, nodes: Sequence[NodeProcess]
    ) -> None:
        self.plan, self.base, self.server, self.nodes = plan, base, server, list(nodes)
        self.random = random.Random(plan.seed)
        self.homes = []
        for _ in range(plan.homes):
            name = base.create_home()
            self.homes.append(HomeLoad(name, homes.add_token(base.owner, KEY, name)))
        self.faults: Counter[str] = Counter()
        self._calm = asyncio.Event()

    async def run(self) -> None:
        """Use all homes while faults happen; then wait until everything has finished."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            await asyncio.to_thread(node.wait)
        followers = [asyncio.create_task(self._follow(home)) for home in self.homes]
        breaking = asyncio.create_task(self._inject_faults())
        await asyncio.gather(*(self._send_tasks(home) for home in self.homes))
        await breaking
        deadline = time.monotonic() + QUIET_SECONDS
        while pending := self._list_pending():
            assert time.monotonic() < deadline, f"still pending: {pending}"
            await asyncio.sleep(0.2)
        for home in self.homes:
            last = self._read_last_event(home)
            while not home.events or home.events[-1][0] < last:
                assert time.monotonic() < deadline, (home.name, last, home.events[-1:])
                await asyncio.sleep(0.1)
        for each in followers:
            each.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    # -- requests

    def _open_client(self, home: HomeLoad) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            trust_env=False, headers={"Authorization": f"Bearer {home.token}"}, timeout=10.0
        )

    async def _send_until_answered(
        self, client: httpx2.AsyncClient, method: str, path: str, **more: Any
    ) -> httpx2.Response:
        """Send a request to random nodes until one responds, without a time limit."""
        while True:
            node = self.random.choice(self.nodes)
            try:
                answer = await client.request(method, f"{node.url}{path}", **more)
            except httpx2.HTTPError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code in {429, 500, 502, 503}:
                assert answer.status_code != 500, f"{answer.text}\n{node.log[-3000:]}"
                await asyncio.sleep(0.2)
                continue
            return answer

    async def _send_tasks(self, home: HomeLoad) -> None:
        async with self._open_client(home) as client:
            for number in range(self.plan.tasks):
                await self._send_task(client, home, number)
                await asyncio.sleep(self.random.uniform(0, 2 * self.plan.seconds / self.plan.tasks))

    async def _send_task(self, client: httpx2.AsyncClient, home: HomeLoad, number: int) -> None:
        kind = self.random.choices(("remember", "forget", "undo"), (6, 2, 2))[0]
        if kind == "undo" and home.accepted_tasks:
            task = self.random.choice(home.accepted_tasks)
            answer = await self._send_until_answered(
                client, "POST", "/workspace/memory/undo", json={"taskId": task}
            )
            assert answer.status_code in {200, 404, 409}, answer.text
            if answer.status_code == 200:
                home.undone_tasks.append(task)
            return
        if kind == "forget":
            path, body = "forget", {"query": f"number {self.random.randrange(1 + number)} of the box"}
        else:
            text = f"The user keeps item {number} of the box {uuid.uuid4().hex[:8]} in the cellar."
            path, body = "remember", {"content": text}
        key = {"Idempotency-Key": uuid.uuid4().hex}
        answer = await self._send_until_answered(
            client, "POST", f"/workspace/memory/{path}", json=body, headers=key
        )
        assert answer.status_code == 202, answer.text
        home.accepted_tasks.append(answer.json()["taskId"])

    async def _follow(self, home: HomeLoad) -> None:
        """Follow the events of a home on changing nodes, each from the last cursor."""
        cursor = None
        while True:
            node = self.random.choice(self.nodes)
            headers = {"Authorization": f"Bearer {home.token}"}
            if cursor is not None:
                headers["Last-Event-ID"] = cursor
            else:
                headers["Last-Event-ID"] = f"{self._read_epoch(home)}-0"
            with suppress(httpx2.HTTPError):
                async with (
                    httpx2.AsyncClient(trust_env=False, timeout=httpx2.Timeout(5.0, read=3.0)) as client,
                    client.stream("GET", f"{node.url}/workspace/memory/events", headers=headers) as answer,
                ):
                    found: dict[str, str] = {}
                    async for line in answer.aiter_lines():
                        name, _, value = line.partition(": ")
                        if line:
                            found[name] = value
                            continue
                        if "id" in found:
                            cursor = found["id"]
                        if "data" in found:
                            document = json.loads(found["data"])
                            home.resyncs += document["type"] == "resync"
                            if document["type"] != "resync":
                                home.events.append((document["id"], document))
                        found = {}
            await asyncio.sleep(0.2)

    # -- faults

    async def _inject_faults(self) -> None:
        until = time.monotonic() + self.plan.seconds
        kinds = [
            "kill",
            "pause",
            *(["restart"] if self.server is not None and self.plan.restarts_database else []),
        ]
        turn = 0
        while time.monotonic() < until or turn < len(kinds):
            await asyncio.sleep(self.random.uniform(*self.plan.fault_interval))
            kind = kinds[turn] if turn < len(kinds) else self.random.choice(kinds)
            turn += 1
            self.faults[kind] += 1
            if kind == "restart":
                assert self.server is not None
                await asyncio.to_thread(self.server.stop, self.random.choice((signal.SIGINT, signal.SIGQUIT)))
                await asyncio.sleep(self.random.uniform(0, 1))
                await asyncio.to_thread(self.server.start)
                continue
            node = await asyncio.to_thread(self._choose_busy_node)
            if kind == "kill":
                await asyncio.to_thread(node.kill)
                node.start()
                await asyncio.to_thread(node.wait)
            else:
                node.signal(signal.SIGSTOP)
                await asyncio.sleep(self.plan.pause_seconds)
                node.signal(signal.SIGCONT)

    def _choose_busy_node(self) -> NodeProcess:
        """Return a node that is running a task, if one is found soon, or any other node."""
        for _ in range(200):
            with suppress(psycopg.OperationalError):
                for (name,) in self._query_rows(
                    "SELECT node FROM home JOIN task ON task.home = home.home WHERE status = 'running'"
                ):
                    return next(each for each in self.nodes if name in {None, each.name})
        return self.random.choice(self.nodes)

    # -- checks afterwards, with independent statements on the database

    def _query_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.base.superuser, options="-c search_path=muniment") as connection:
            return connection.execute(query, values).fetchall()

    def _list_pending(self) -> list[tuple[Any, ...]]:
        try:
            return self._query_rows("SELECT home, id, status FROM task WHERE status IN ('queued', 'running')")
        except psycopg.OperationalError:
            return [("the database", "", "away")]

    def _read_last_event(self, home: HomeLoad) -> int:
        return int(self._query_rows("SELECT last FROM series WHERE home = %s", home.name)[0][0])

    def _read_epoch(self, home: HomeLoad) -> str:
        while True:
            with suppress(psycopg.OperationalError):
                return str(self._query_rows("SELECT epoch FROM series WHERE home = %s", home.name)[0][0])

    def find_lost_tasks(self) -> list[str]:
        """Return accepted tasks that have not ended or have no row."""
        over = {
            row[0] for row in self._query_rows("SELECT id FROM task WHERE status = ANY(%s)", sorted(TERMINAL))
        }
        return [each for home in self.homes for each in home.accepted_tasks if each not in over]

    def find_repeated_tasks(self) -> list[str]:
        """Return tasks without exactly one end, by the events of the ledger, or with more than one commit."""
        ended = Counter(
            task
            for task, data in self._query_rows("SELECT task, data FROM event WHERE type = 'task'")
            if json.loads(data)["status"] in TERMINAL
        )
        return [each for home in self.homes for each in home.accepted_tasks if ended[each] != 1]

    def count_failures(self) -> Counter[str]:
        """Count the error codes of failed tasks."""
        return Counter(
            json.loads(error)["code"]
            for (error,) in self._query_rows("SELECT error FROM task WHERE status = 'failed'")
        )

    def find_misordered_tasks(self) -> list[str]:
        """Return where two tasks of a home overlapped, or one began before an earlier one."""
        found = []
        for home in self.homes:
            order = dict(self._query_rows("SELECT id, seq FROM task WHERE home = %s", home.name))
            running, begun = None, set()
            for number, task, data in self._query_rows(
                "SELECT number, task, data FROM event WHERE type = 'task' AND home = %s ORDER BY number",
                home.name,
            ):
                event = json.loads(data)
                status = event["status"]
                if status == "running" and "turn" not in event:
                    if running is not None:
                        found.append(f"{home.name} {number}: {task} began while {running} ran")
                    running = task
                    if task not in begun and any(order[each] > order[task] for each in begun):
                        found.append(f"{home.name} {number}: {task} began after a later one")
                    begun.add(task)
                elif running == task and status != "running":
                    running = None
        return found

    def find_event_gaps(self) -> list[str]:
        """Return the homes whose follower missed an event or received one twice."""
        found = []
        for home in self.homes:
            numbers = [number for number, _ in home.events]
            if numbers != list(range(1, len(numbers) + 1)):
                found.append(f"{home.name}: {numbers[:50]}")
            if home.resyncs:
                found.append(f"{home.name}: resynced {home.resyncs} times")
        return found

    def find_audit_problems(self) -> list[str]:
        """Return problems of the audit chains."""
        found = []
        with closing(LedgerPool(self.base.node, 2)) as pool:
            for home in self.homes:
                done = verify(LedgerState(pool.home(home.name), homes.derive_home_key(KEY, home.name)))
                found += [f"{home.name}: {problem}" for problem in done.problems]
        return found

    def read_ledger_files(self, home: HomeLoad) -> dict[str, bytes]:
        """Return the files of a home according to the ledger: the newest bytes of each path."""
        rows = self._query_rows(
            "SELECT convert_from(root.path, 'UTF8'), kept.rel, blob.content FROM change_kept AS kept "
            "JOIN change_set AS done ON done.home = kept.home AND done.id = kept.change_set "
            "JOIN root ON root.home = kept.home AND root.id = kept.root "
            "LEFT JOIN blob ON blob.home = kept.home AND blob.digest = kept.after_blob "
            "WHERE kept.home = %s AND done.done IS NOT NULL ORDER BY done.number",
            home.name,
        )
        newest = {f"{scope}/{rel}": content for scope, rel, content in rows}
        return {path: bytes(content) for path, content in newest.items() if content is not None}

    async def refresh_copies(self) -> None:
        """Let every node read every home once, so that its copy matches the ledger."""
        for node in self.nodes:
            for home in self.homes:
                async with self._open_client(home) as client:
                    while True:
                        answer = await client.post(
                            f"{node.url}/workspace/memory/recall", json={"query": "items in the cellar"}
                        )
                        if answer.status_code == 200 and answer.json().get("error") is None:
                            break
                        await asyncio.sleep(0.2)

    def find_differing_copies(self) -> list[str]:
        """Return copies that differ from the ledger, or from each other in derived files."""
        found = []
        for home in self.homes:
            wanted, first = self.read_ledger_files(home), None
            for node in self.nodes:
                files = read_files(build_copy_path(node.copies, home.name) / MEMORY_NAME)
                entries = {path: content for path, content in files.items() if not is_index(path)}
                if entries != wanted:
                    odd = {
                        path
                        for path in entries.keys() | wanted.keys()
                        if entries.get(path) != wanted.get(path)
                    }
                    found.append(f"{home.name} on {node.name}: {sorted(odd)[:5]}")
                first = first or files
                if files != first:
                    found.append(f"{home.name} on {node.name}: another index")
        return found

    def find_unreproducible_copies(self, cache: Path) -> list[str]:
        """Return copies that differ from what the product builds from the ledger in an empty directory, with
        indexes.
        """
        options = CopyOptions(load_policy("strict"), "judge")
        found = []
        with closing(LedgerPool(self.base.node, 4)) as pool:
            for home in self.homes:
                key, directory = homes.derive_home_key(KEY, home.name), build_copy_path(cache, home.name)
                copy = WorkingCopy(directory, pool.home(home.name), key, options)
                deadline = Deadline(time.monotonic() + QUIET_SECONDS)
                with copy.open_for_reading(deadline):
                    wanted = read_files(directory / MEMORY_NAME)
                for node in self.nodes:
                    files = read_files(build_copy_path(node.copies, home.name) / MEMORY_NAME)
                    found += [
                        f"{home.name} on {node.name}: {path}: {files.get(path)!r}, new: {wanted.get(path)!r}"
                        for path in sorted(files.keys() | wanted.keys())
                        if files.get(path) != wanted.get(path)
                    ]
                copy.close(deadline)
        return found


def read_files(directory: Path) -> dict[str, bytes]:
    """Return every file under a directory, by relative path."""
    return {
        str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()
    }


def is_index(path: str) -> bool:
    """Return whether a path is one of a generated file."""
    _, _, rel = path.partition("/")
    return rel == "MEMORY.md" or rel.startswith("index/")
