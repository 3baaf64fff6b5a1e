"""Nodes in this process, each with separate files, and clients of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from kit.fleet.homes import KEY, FleetDatabase
from kit.server.process import DaemonRequests, PausableModel
from kit.server.raw import SECONDS, run_event_loop
from muniment.agent.filing import RuleWriter
from muniment.fleet import homes
from muniment.fleet.node import FleetNode, NodeOptions
from muniment.fleet.working_copies import MEMORY_NAME, build_copy_path
from muniment.kernel.names import Trust
from muniment.server.service import Daemon, Options
from muniment.server.tokens import TOKEN_NAME
from muniment.settings import Settings


def wait_until(condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Wait until a condition in another thread or process is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


class NodeRequests(DaemonRequests):
    """Requests to one node with one token."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token, self._epoch = url, token, ""
        self.http = httpx2.Client(base_url=url, trust_env=False, timeout=60)

    def cursor(self, number: int) -> str:
        """Return the cursor of an event by its number."""
        if not self._epoch:
            headers = {"Authorization": f"Bearer {self.token}"}
            with self.http.stream("GET", "/workspace/memory/events", headers=headers) as answer:
                self._epoch = answer.headers["x-qwen-event-epoch"]
        return f"{self._epoch}-{number}"

    def recall_texts(self, query: str) -> list[str]:
        """Return the texts that a recall finds; it must not fail."""
        answer = self.post("/workspace/memory/recall", {"query": query})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("error") is None, answer.text
        return [each["text"] for each in answer.json()["entries"]]

    def close(self) -> None:
        """Close its connections."""
        self.http.close()


class LocalNode:
    """A node of this process.

    Attributes:
        node: the node object.
        url: its address.
        token: of its operator.
    """

    def __init__(self, daemon: Daemon, node: FleetNode, directory: Path) -> None:
        self.daemon, self.node, self.directory, self.url = daemon, node, directory, daemon.url
        self.token = (directory / "state" / TOKEN_NAME).read_text("ascii").strip()

    @property
    def copies(self) -> Path:
        """Return the directory of its working copies."""
        return self.directory / "state" / "copies"

    def get_copy_path(self, home: str) -> Path:
        """Return the directory of the files in the working copy of a home."""
        return build_copy_path(self.copies, home) / MEMORY_NAME


@dataclass
class HomeAccess:
    """A home of a test.

    Attributes:
        token: of its owner.
        nodes: requests with this token, for each node.
    """

    name: str
    token: str
    nodes: tuple[NodeRequests, ...]


class LocalNodes:
    """Nodes over one database, on one event loop in a thread.

    Attributes:
        nodes: all nodes.
        loop: their event loop.
    """

    def __init__(
        self, base: FleetDatabase, loop: asyncio.AbstractEventLoop, stack: ExitStack, policy: str
    ) -> None:
        self.base, self.loop, self._stack, self._policy = base, loop, stack, policy
        self.nodes: list[LocalNode] = []

    def start(
        self, directory: Path, name: str, model: PausableModel | None = None, *, lease: float, slots: int = 4
    ) -> LocalNode:
        """Start another node."""
        state = directory / "state"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state / "audit.key").write_bytes(KEY)
        (state / "audit.key").chmod(0o600)
        settings = Settings(directory, policy=self._policy, on_model_failure="fail" if model else "rules")
        model_or_rules = self._stack.enter_context(closing(model.create_client())) if model else RuleWriter()
        node = FleetNode(settings, model_or_rules, NodeOptions(self.base.node, name, slots, lease))
        daemon = Daemon(Options(settings, (), grace=5.0), model_or_rules, node)
        self.run(daemon.__aenter__())
        self._stack.callback(lambda: self.run(daemon.stop()))
        if model:
            self._stack.callback(model.resume)
        local_node = LocalNode(daemon, node, directory)
        self.nodes.append(local_node)
        return local_node

    def stop(self, node: LocalNode) -> None:
        """Stop a node."""
        self.run(node.daemon.stop())

    def run(self, coroutine):
        """Run a coroutine on the event loop of the nodes."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def open_requests(self, number: int, token: str) -> NodeRequests:
        """Return requests to a node with a token."""
        return self._stack.enter_context(closing(NodeRequests(self.nodes[number].url, token)))

    def create_home(self) -> HomeAccess:
        """Create a home with requests to each node."""
        name = self.base.create_home()
        token = homes.add_token(self.base.owner, KEY, name)
        return HomeAccess(
            name, token, tuple(self.open_requests(each, token) for each in range(len(self.nodes)))
        )

    def add_client(
        self, home: HomeAccess, name: str = "client", *clients: str, trust: Trust = Trust.AGENT
    ) -> str:
        """Create a token for a client of a home."""
        return homes.add_token(self.base.owner, KEY, home.name, name, clients, trust)


@contextmanager
def start_nodes(
    base: FleetDatabase,
    directory: Path,
    count: int = 2,
    model: PausableModel | None = None,
    *,
    lease: float = 15.0,
    policy: str = "strict",
) -> Iterator[LocalNodes]:
    """Run nodes.

    Args:
        base: their database.
        directory: contains the directory of each node.
        count: number of nodes.
        model: None: the rules; it is released at the end.
        lease: seconds.
        policy: the name of a built-in policy, or the path of one.
    """
    with ExitStack() as stack:
        nodes = LocalNodes(base, stack.enter_context(run_event_loop()), stack, policy)
        for number in range(count):
            nodes.start(directory / f"node-{number}", f"{directory.name}-{number}", model, lease=lease)
        yield nodes
