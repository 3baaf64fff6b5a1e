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

from kit.fleet.homes import KEY, Base
from kit.fleet.nodes import NodeProcess
from kit.postgres import Server
from muniment.fleet import homes
from muniment.fleet.copies import MEMORY, CopyTerms, WorkingCopy, directory_of
from muniment.fleet.postgres import LedgerPool
from muniment.kernel.cancel import Patience
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
        between: minimum and maximum seconds between two faults.
        paused: seconds of a SIGSTOP, longer than the lease.
        restarts: whether the database is also restarted.
    """

    seed: int
    homes: int
    tasks: int
    seconds: float
    between: tuple[float, float] = (2.0, 5.0)
    lease: float = 2.0
    paused: float = 4.0
    restarts: bool = True


@dataclass
class HomeDriven:
    """A home and the requests sent to it."""

    name: str
    token: str
    accepted: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    seen: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    resyncs: int = 0


class Storm:
    """One run of a plan over a database and some nodes."""

    def __init__(self, plan: Plan, base: Base, server: Server | None, nodes: Sequence[NodeProcess]) -> None:
        self.plan, self.base, self.server, self.nodes = plan, base, server, list(nodes)
        self.random = random.Random(plan.seed)
        self.homes = []
        for _ in range(plan.homes):
            name = base.new_home()
            self.homes.append(HomeDriven(name, homes.add_token(base.owner, KEY, name)))
        self.faults: Counter[str] = Counter()
        self._calm = asyncio.Event()

    async def run(self) -> None:
        """Use all homes while faults happen; then wait until everything has finished."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            await asyncio.to_thread(node.wait)
        followers = [asyncio.create_task(self._follow(home)) for home in self.homes]
        breaking = asyncio.create_task(self._break())
        await asyncio.gather(*(self._drive(home) for home in self.homes))
        await breaking
        deadline = time.monotonic() + QUIET_SECONDS
        while pending := self._pending():
            assert time.monotonic() < deadline, f"still pending: {pending}"
            await asyncio.sleep(0.2)
        for home in self.homes:
            last = self._last(home)
            while not home.seen or home.seen[-1][0] < last:
                assert time.monotonic() < deadline, (home.name, last, home.seen[-1:])
                await asyncio.sleep(0.1)
        for each in followers:
            each.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    # -- requests

    def _client(self, home: HomeDriven) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            trust_env=False, headers={"Authorization": f"Bearer {home.token}"}, timeout=10.0
        )

    async def _asked(
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
                assert answer.status_code != 500, answer.text
                await asyncio.sleep(0.2)
                continue
            return answer

    async def _drive(self, home: HomeDriven) -> None:
        async with self._client(home) as client:
            for number in range(self.plan.tasks):
                await self._one(client, home, number)
                await asyncio.sleep(self.random.uniform(0, 2 * self.plan.seconds / self.plan.tasks))

    async def _one(self, client: httpx2.AsyncClient, home: HomeDriven, number: int) -> None:
        kind = self.random.choices(("remember", "forget", "undo"), (6, 2, 2))[0]
        if kind == "undo" and home.accepted:
            of = self.random.choice(home.accepted)
            answer = await self._asked(client, "POST", "/workspace/memory/undo", json={"taskId": of})
            assert answer.status_code in {200, 404, 409}, answer.text
            if answer.status_code == 200:
                home.undone.append(of)
            return
        if kind == "forget":
            path, body = "forget", {"query": f"number {self.random.randrange(1 + number)} of the box"}
        else:
            text = f"The user keeps item {number} of the box {uuid.uuid4().hex[:8]} in the cellar."
            path, body = "remember", {"content": text}
        key = {"Idempotency-Key": uuid.uuid4().hex}
        answer = await self._asked(client, "POST", f"/workspace/memory/{path}", json=body, headers=key)
        assert answer.status_code == 202, answer.text
        home.accepted.append(answer.json()["taskId"])

    async def _follow(self, home: HomeDriven) -> None:
        """Follow the events of a home on changing nodes, each from the last cursor."""
        cursor = None
        while True:
            node = self.random.choice(self.nodes)
            headers = {"Authorization": f"Bearer {home.token}"}
            if cursor is not None:
                headers["Last-Event-ID"] = cursor
            else:
                headers["Last-Event-ID"] = f"{self._epoch(home)}-0"
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
                                home.seen.append((document["id"], document))
                        found = {}
            await asyncio.sleep(0.2)

    # -- faults

    async def _break(self) -> None:
        until = time.monotonic() + self.plan.seconds
        kinds = ["kill", "pause", *(["restart"] if self.server is not None and self.plan.restarts else [])]
        turn = 0
        while time.monotonic() < until or turn < len(kinds):
            await asyncio.sleep(self.random.uniform(*self.plan.between))
            kind = kinds[turn] if turn < len(kinds) else self.random.choice(kinds)
            turn += 1
            self.faults[kind] += 1
            if kind == "restart":
                assert self.server is not None
                await asyncio.to_thread(self.server.stop, self.random.choice((signal.SIGINT, signal.SIGQUIT)))
                await asyncio.sleep(self.random.uniform(0, 1))
                await asyncio.to_thread(self.server.start)
                continue
            node = await asyncio.to_thread(self._at_work)
            if kind == "kill":
                await asyncio.to_thread(node.kill)
                node.start()
                await asyncio.to_thread(node.wait)
            else:
                node.signal(signal.SIGSTOP)
                await asyncio.sleep(self.plan.paused)
                node.signal(signal.SIGCONT)

    def _at_work(self) -> NodeProcess:
        """Return a node that is running a task, if one is found soon, or any other node."""
        for _ in range(200):
            with suppress(psycopg.OperationalError):
                for (name,) in self._rows(
                    "SELECT node FROM home JOIN task ON task.home = home.home WHERE status = 'running'"
                ):
                    return next(each for each in self.nodes if name in {None, each.name})
        return self.random.choice(self.nodes)

    # -- checks afterwards, with independent statements on the database

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.base.superuser, options="-c search_path=muniment") as connection:
            return connection.execute(query, values).fetchall()

    def _pending(self) -> list[tuple[Any, ...]]:
        try:
            return self._rows("SELECT home, id, status FROM task WHERE status IN ('queued', 'running')")
        except psycopg.OperationalError:
            return [("the database", "", "away")]

    def _last(self, home: HomeDriven) -> int:
        return int(self._rows("SELECT last FROM series WHERE home = %s", home.name)[0][0])

    def _epoch(self, home: HomeDriven) -> str:
        while True:
            with suppress(psycopg.OperationalError):
                return str(self._rows("SELECT epoch FROM series WHERE home = %s", home.name)[0][0])

    def lost(self) -> list[str]:
        """Return accepted tasks that have not ended or have no row."""
        over = {row[0] for row in self._rows("SELECT id FROM task WHERE status = ANY(%s)", sorted(TERMINAL))}
        return [each for home in self.homes for each in home.accepted if each not in over]

    def not_once(self) -> list[str]:
        """Return tasks without exactly one end, by the events of the ledger, or with more than one commit."""
        ended = Counter(
            task
            for task, data in self._rows("SELECT task, data FROM event WHERE type = 'task'")
            if json.loads(data)["status"] in TERMINAL
        )
        return [each for home in self.homes for each in home.accepted if ended[each] != 1]

    def failed(self) -> Counter[str]:
        """Count the error codes of failed tasks."""
        return Counter(
            json.loads(error)["code"]
            for (error,) in self._rows("SELECT error FROM task WHERE status = 'failed'")
        )

    def out_of_order(self) -> list[str]:
        """Return where two tasks of a home overlapped, or one began before an earlier one."""
        found = []
        for home in self.homes:
            order = dict(self._rows("SELECT id, seq FROM task WHERE home = %s", home.name))
            running, begun = None, set()
            for number, task, data in self._rows(
                "SELECT number, task, data FROM event WHERE type = 'task' AND home = %s ORDER BY number",
                home.name,
            ):
                told = json.loads(data)
                status = told["status"]
                if status == "running" and "turn" not in told:
                    if running is not None:
                        found.append(f"{home.name} {number}: {task} began while {running} ran")
                    running = task
                    if task not in begun and any(order[each] > order[task] for each in begun):
                        found.append(f"{home.name} {number}: {task} began after a later one")
                    begun.add(task)
                elif running == task and status != "running":
                    running = None
        return found

    def gaps(self) -> list[str]:
        """Return the homes whose follower missed an event or received one twice."""
        found = []
        for home in self.homes:
            numbers = [number for number, _ in home.seen]
            if numbers != list(range(1, len(numbers) + 1)):
                found.append(f"{home.name}: {numbers[:50]}")
            if home.resyncs:
                found.append(f"{home.name}: resynced {home.resyncs} times")
        return found

    def forged(self) -> list[str]:
        """Return problems of the audit chains."""
        found = []
        with closing(LedgerPool(self.base.node, 2)) as pool:
            for home in self.homes:
                done = verify(LedgerState(pool.home(home.name), homes.key_of(KEY, home.name)))
                found += [f"{home.name}: {problem}" for problem in done.problems]
        return found

    def entries(self, home: HomeDriven) -> dict[str, bytes]:
        """Return the files of a home according to the ledger: the newest bytes of each path."""
        rows = self._rows(
            "SELECT convert_from(root.path, 'UTF8'), kept.rel, blob.content FROM change_kept AS kept "
            "JOIN change_set AS done ON done.home = kept.home AND done.id = kept.change_set "
            "JOIN root ON root.home = kept.home AND root.id = kept.root "
            "LEFT JOIN blob ON blob.home = kept.home AND blob.digest = kept.after_blob "
            "WHERE kept.home = %s AND done.done IS NOT NULL ORDER BY done.number",
            home.name,
        )
        newest = {f"{scope}/{rel}": content for scope, rel, content in rows}
        return {path: bytes(content) for path, content in newest.items() if content is not None}

    async def brought_up(self) -> None:
        """Let every node read every home once, so that its copy matches the ledger."""
        for node in self.nodes:
            for home in self.homes:
                async with self._client(home) as client:
                    while True:
                        answer = await client.post(
                            f"{node.url}/workspace/memory/recall", json={"query": "items in the cellar"}
                        )
                        if answer.status_code == 200 and answer.json().get("error") is None:
                            break
                        await asyncio.sleep(0.2)

    def differing(self) -> list[str]:
        """Return copies that differ from the ledger, or from each other in derived files."""
        found = []
        for home in self.homes:
            wanted, first = self.entries(home), None
            for node in self.nodes:
                files = files_below(directory_of(node.copies, home.name) / MEMORY)
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

    def unlike_new(self, cache: Path) -> list[str]:
        """Return copies that differ from what the product builds from the ledger in an empty directory, with
        indexes.
        """
        terms = CopyTerms(load_policy("strict"), "judge")
        found = []
        with closing(LedgerPool(self.base.node, 4)) as pool:
            for home in self.homes:
                key, directory = homes.key_of(KEY, home.name), directory_of(cache, home.name)
                copy = WorkingCopy(directory, pool.home(home.name), key, terms)
                patience = Patience(time.monotonic() + QUIET_SECONDS)
                with copy.reading(patience):
                    wanted = files_below(directory / MEMORY)
                for node in self.nodes:
                    files = files_below(directory_of(node.copies, home.name) / MEMORY)
                    found += [
                        f"{home.name} on {node.name}: {path}: {files.get(path)!r}, new: {wanted.get(path)!r}"
                        for path in sorted(files.keys() | wanted.keys())
                        if files.get(path) != wanted.get(path)
                    ]
                copy.close(patience)
        return found


def files_below(directory: Path) -> dict[str, bytes]:
    """Return every file under a directory, by relative path."""
    return {
        str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()
    }


def is_index(path: str) -> bool:
    """Return whether a path is one of a generated file."""
    _, _, rel = path.partition("/")
    return rel == "MEMORY.md" or rel.startswith("index/")
