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

from kit.fleet.homes import KEY, Base
from kit.server.process import Asking, HeldModel
from kit.server.raw import SECONDS, looping
from muniment.agent.filing import RuleWriter
from muniment.fleet import homes
from muniment.fleet.copies import MEMORY, directory_of
from muniment.fleet.node import FleetNode, NodeOptions
from muniment.kernel.names import Trust
from muniment.server.service import Daemon, Options
from muniment.server.tokens import TOKEN_NAME
from muniment.settings import Settings


def until(condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Wait until a condition in another thread or process is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


class AtNode(Asking):
    """Requests to one node with one token."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token, self._epoch = url, token, ""
        self.http = httpx2.Client(base_url=url, trust_env=False, timeout=60)

    def cursor(self, number: int) -> str:
        """Return the cursor of an event by its number."""
        if not self._epoch:
            whose = {"Authorization": f"Bearer {self.token}"}
            with self.http.stream("GET", "/workspace/memory/events", headers=whose) as answer:
                self._epoch = answer.headers["x-qwen-event-epoch"]
        return f"{self._epoch}-{number}"

    def recalled(self, query: str) -> list[str]:
        """Return the texts that a recall finds; it must not fail."""
        answer = self.post("/workspace/memory/recall", {"query": query})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("error") is None, answer.text
        return [each["text"] for each in answer.json()["entries"]]

    def close(self) -> None:
        """Close its connections."""
        self.http.close()


class InNode:
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

    def memory(self, home: str) -> Path:
        """Return the directory of the files in the working copy of a home."""
        return directory_of(self.copies, home) / MEMORY


@dataclass
class NewHome:
    """A home of a test.

    Attributes:
        token: of its owner.
        at: requests with this token, for each node.
    """

    name: str
    token: str
    at: tuple[AtNode, ...]


class Nodes:
    """Nodes over one database, on one event loop in a thread.

    Attributes:
        nodes: all nodes.
        loop: their event loop.
    """

    def __init__(self, base: Base, loop: asyncio.AbstractEventLoop, stack: ExitStack, policy: str) -> None:
        self.base, self.loop, self._stack, self._policy = base, loop, stack, policy
        self.nodes: list[InNode] = []

    def start(
        self, directory: Path, name: str, model: HeldModel | None = None, *, lease: float, slots: int = 4
    ) -> InNode:
        """Start another node."""
        state = directory / "state"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state / "audit.key").write_bytes(KEY)
        (state / "audit.key").chmod(0o600)
        settings = Settings(directory, policy=self._policy, on_model_failure="fail" if model else "rules")
        thinks = self._stack.enter_context(closing(model.asked())) if model else RuleWriter()
        node = FleetNode(settings, thinks, NodeOptions(self.base.node, name, slots, lease))
        daemon = Daemon(Options(settings, (), grace=5.0), thinks, node)
        self.run(daemon.__aenter__())
        self._stack.callback(lambda: self.run(daemon.stop()))
        if model:
            self._stack.callback(model.release)
        made = InNode(daemon, node, directory)
        self.nodes.append(made)
        return made

    def stop(self, node: InNode) -> None:
        """Stop a node."""
        self.run(node.daemon.stop())

    def run(self, coroutine):
        """Run a coroutine on the event loop of the nodes."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def at(self, number: int, token: str) -> AtNode:
        """Return requests to a node with a token."""
        return self._stack.enter_context(closing(AtNode(self.nodes[number].url, token)))

    def home(self) -> NewHome:
        """Create a home with requests to each node."""
        name = self.base.new_home()
        token = homes.add_token(self.base.owner, KEY, name)
        return NewHome(name, token, tuple(self.at(each, token) for each in range(len(self.nodes))))

    def client(self, home: NewHome, name: str = "client", *clients: str, trust: Trust = Trust.AGENT) -> str:
        """Create a token for a client of a home."""
        return homes.add_token(self.base.owner, KEY, home.name, name, clients, trust)


@contextmanager
def nodes(
    base: Base,
    directory: Path,
    count: int = 2,
    model: HeldModel | None = None,
    *,
    lease: float = 15.0,
    policy: str = "strict",
) -> Iterator[Nodes]:
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
        made = Nodes(base, stack.enter_context(looping()), stack, policy)
        for number in range(count):
            made.start(directory / f"node-{number}", f"{directory.name}-{number}", model, lease=lease)
        yield made
