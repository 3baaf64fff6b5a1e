"""Measure the cost of storing one fact, here and with popular memory tools that promise less.

    python benchmarks/peers.py [DIRECTORY] [--mcp-memory COMMAND] [--mcp-filesystem COMMAND]

Every way stores facts of about 300 bytes, one at a time, into a memory that already has 10, 1 000 and 10 000
facts, on the file system of DIRECTORY (default: here). The ways take turns, in batches; a batch of a slow way
is cut short. Wall is the median of the calls. CPU is their mean, since an ended worker is counted in ticks.
It covers all processes involved: this one, a server, the zygote and its workers, which are already running.
Ratios are to the bare write of `commit.py` in the same run.

Peers are included if available: the memory tool of `anthropic` if it can be imported, and the servers that
the authors of the Model Context Protocol publish if a command starts one, such as

    --mcp-memory "npx -y @modelcontextprotocol/server-memory"
    --mcp-filesystem "npx -y @modelcontextprotocol/server-filesystem"

The promises of each row are printed with it. They follow from the code and from `strace`, for the versions in
`RESULTS.md`; they are not measured here. If an fsync is expensive, a row without syncs has an advantage.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from commit import Bare, MunimentStore
from measuring import IN_A_TOPIC, create_tree, entry, measure_cpu

import muniment
from muniment.sandbox.fence.pool import get_shared_zygote
from muniment.testing.conformance.targets import Server

SIZES = (10, 1_000, 10_000)
ROUNDS = 3
CALLS = 20
BATCH_SECONDS = 3.0
LEGEND = """\
durable   yes: file and directory are synced before the response; file: only the file is synced, not its name
atomic    a reader, also after the writer was killed, finds the complete fact or none of it
undo      it can be undone later, by the name of the task that stored it, also if it replaced an entry
confined  fence: by the kernel, and handles: links and races have no effect; text: the path is resolved and
          compared, then opened by name; one file: accepts no path; no: no check"""


@dataclass(slots=True)
class Way:
    """One way to store a fact, with its promises and its cost.

    Attributes:
        name: the called function.
        promises: durable, atomic, undoable, confined.
        store: stores the fact of a number.
        pid: of its server process, whose descendants also count.
        walls: seconds of each call.
        cpu: seconds of all calls.
    """

    name: str
    promises: tuple[str, str, str, str]
    store: Callable[[int], object]
    pid: int | None = None
    walls: list[float] = field(default_factory=list)
    cpu: float = 0.0

    def run_batch(self) -> None:
        """Store some facts and measure the time."""
        started_batch, used = time.perf_counter(), self.measure_used_cpu()
        for _call in range(CALLS):
            started = time.perf_counter()
            self.store(1 + len(self.walls))
            self.walls.append(time.perf_counter() - started)
            if time.perf_counter() - started_batch > BATCH_SECONDS:
                break
        self.cpu += self.measure_used_cpu() - used

    def measure_used_cpu(self) -> float:
        """Return the CPU seconds until now of all processes involved."""
        return time.process_time() + (0.0 if self.pid is None else measure_cpu(self.pid))


Opener = Callable[[Path, int], AbstractContextManager[Way]]
"""Creates a memory below a directory, with a number of facts in it."""


def build_path(number: int, size: int) -> str:
    """Return the path of a new fact, below the root."""
    return f"topic-{number % max(1, size // IN_A_TOPIC)}/new-{number}.md"


def body(number: int) -> str:
    """Return a fact without its front matter."""
    return entry(number).decode().rpartition("---\n")[2].strip()


@contextmanager
def open_bare(base: Path, _size: int) -> Iterator[Way]:
    """Yield the minimum that is durable, with a record; it ignores existing entries."""
    yield Way("bare: fsync, rename, 2 transactions", ("yes", "yes", "no", "no"), Bare(base / "bare").write)


@contextmanager
def open_commit(base: Path, size: int) -> Iterator[Way]:
    """Yield the store alone: judge, ledger, file, catalog, index."""
    muniment_store = MunimentStore(base / "commit", size, IN_A_TOPIC)
    yield Way("muniment: commit", ("yes", "yes", "yes", "handles"), muniment_store.write)
    muniment_store.close()


@contextmanager
def open_sandbox(base: Path, size: int) -> Iterator[Way]:
    """Yield a tool call in a separate fenced worker, then the commit."""
    root = create_tree(base / "sandbox", size)
    with muniment.Sandbox(roots={"user": root}, state=base / "sandbox-state") as box:

        def store(number: int) -> None:
            path = f"user/{build_path(number, size)}"
            outcome = box.call("write_file", {"path": path, "content": entry(number).decode()})
            if outcome.code is not None:
                raise RuntimeError(outcome.text)
            box.commit()

        store(0)
        yield Way(
            "muniment: write_file + commit", ("yes", "yes", "yes", "fence"), store, get_shared_zygote().pid
        )


@contextmanager
def open_remember(base: Path, size: int) -> Iterator[Way]:
    """Yield a full remember: duplicates, placement, tool calls in a fenced worker, the commit."""
    root = create_tree(base / "remember", size)
    with muniment.open(base, home=base / "home", roots={"user": root}) as memory:

        def store(number: int) -> None:
            memory.remember(f"Fact {number + size} of the user: {body(number + size)}", scope="user")

        store(0)
        yield Way(
            "muniment: remember, by rules", ("yes", "yes", "yes", "fence"), store, get_shared_zygote().pid
        )


@contextmanager
def open_memory_tool(base: Path, size: int) -> Iterator[Way]:
    """Yield the same command of Muniment's memory tool for that SDK."""
    from muniment.integrations.anthropic import MunimentMemoryTool

    root = create_tree(base / "tool", size)
    with muniment.open(base, home=base / "tool-home", roots={"user": root}) as memory:
        tool = MunimentMemoryTool(memory)

        def store(number: int) -> None:
            path = f"/memories/user/{build_path(number, size)}"
            tool.call({"command": "create", "path": path, "file_text": entry(number).decode()})

        store(0)
        name = f"muniment: create for anthropic {version('anthropic')}"
        yield Way(name, ("yes", "yes", "yes", "fence"), store, get_shared_zygote().pid)


@contextmanager
def open_anthropic(base: Path, size: int) -> Iterator[Way]:
    """Yield the local memory tool of that SDK, in this process."""
    from anthropic.tools import BetaLocalFilesystemMemoryTool

    tool = BetaLocalFilesystemMemoryTool(str(base))
    tool.memory_root.rmdir()
    create_tree(tool.memory_root, size)

    def store(number: int) -> None:
        path = f"/memories/{build_path(number, size)}"
        tool.call({"command": "create", "path": path, "file_text": entry(number).decode()})

    store(0)
    promises = ("file", "no", "no", "text")
    yield Way(f"anthropic {version('anthropic')}: create", promises, store)


def build_mcp_memory(command: str) -> Opener:
    """Return the opener of the knowledge graph, a single file of JSON lines."""

    def entity(number: int) -> dict[str, Any]:
        return {"name": f"Fact {number}", "entityType": "user", "observations": [body(number)]}

    @contextmanager
    def way(base: Path, size: int) -> Iterator[Way]:
        file = base / "graph.jsonl"
        lines = (json.dumps({"type": "entity", **entity(number)}) for number in range(size))
        file.write_text("\n".join(lines))
        with Server(shlex.split(command), {"MEMORY_FILE_PATH": str(file)}) as server:

            def store(number: int) -> None:
                server.call("create_entities", {"entities": [entity(size + number)]})

            store(0)
            promises = ("no", "yes", "no", "one file")
            yield Way(f"{server.name}: create_entities", promises, store, server.pid)

    return way


def build_mcp_filesystem(command: str) -> Opener:
    """Return the opener of the filesystem server, for files in allowed directories."""

    @contextmanager
    def way(base: Path, size: int) -> Iterator[Way]:
        root = create_tree(base / "filesystem", size)
        with Server([*shlex.split(command), str(root)], {}) as server:

            def store(number: int) -> None:
                path = str(root / build_path(number, size))
                server.call("write_file", {"path": path, "content": entry(number).decode()})

            store(0)
            yield Way(f"{server.name}: write_file", ("no", "no", "no", "text"), store, server.pid)

    return way


def measure(openers: list[Opener], size: int, where: str) -> list[Way]:
    """Measure all ways, over memories of `size` facts."""
    with TemporaryDirectory(dir=where) as directory, ExitStack() as opened:
        base = Path(directory).resolve()
        ways = [opened.enter_context(opener(base, size)) for opener in openers]
        for _round in range(ROUNDS):
            for way in ways:
                way.run_batch()
    return ways


def report(ways: list[Way], size: int) -> None:
    """Print the table of one size."""
    print(f"\n{size} existing facts; milliseconds")
    print(f"{'':44}    wall     CPU   x bare (CPU) calls  durable atomic undo confined")
    bare = statistics.median(ways[0].walls), ways[0].cpu / len(ways[0].walls)
    for way in ways:
        wall, cpu = statistics.median(way.walls), way.cpu / len(way.walls)
        durable, atomic, undoable, confined = way.promises
        print(
            f"{way.name:44}{1e3 * wall:8.2f}{1e3 * cpu:8.2f}{wall / bare[0]:8.1f}{cpu / bare[1]:8.1f}"
            f"{len(way.walls):6}  {durable:8}{atomic:7}{undoable:5}{confined}"
        )


def main() -> None:
    """Print a table for each size, and a legend."""
    parser = argparse.ArgumentParser(
        description="Measure the cost of storing one fact, here and with other tools."
    )
    parser.add_argument("directory", nargs="?", default=".", help="its file system is used; default: here")
    parser.add_argument("--mcp-memory", metavar="COMMAND", help="starts the memory server")
    parser.add_argument("--mcp-filesystem", metavar="COMMAND", help="starts the filesystem server")
    options = parser.parse_args()
    openers: list[Opener] = [open_bare, open_commit, open_sandbox, open_remember]
    if find_spec("anthropic"):
        openers += [open_memory_tool, open_anthropic]
    if options.mcp_memory:
        openers.append(build_mcp_memory(options.mcp_memory))
    if options.mcp_filesystem:
        openers.append(build_mcp_filesystem(options.mcp_filesystem))
    print(LEGEND)
    for size in SIZES:
        report(measure(openers, size, options.directory), size)


if __name__ == "__main__":
    main()
