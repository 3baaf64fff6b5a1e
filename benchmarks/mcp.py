"""Measure the cost of a recall over the Model Context Protocol, compared with the library.

    python benchmarks/mcp.py [ENTRIES] [--starts N] [--recalls N]

start   from the start of `muniment mcp` to the response of `initialize`: milliseconds of wall clock, and
        of CPU of the process; compared with a Python that answers a line of JSON, and with the SDK imported.
recall  one recall by the library, by `muniment mcp` over its pipe, and by `/mcp` of a daemon through
        `muniment mcp --daemon`, in turns over the same memory: median milliseconds of wall clock and of
        CPU of the process that recalls, and their ratios to the library's. Injected entries are recorded in
        the ledger before the response; the library is called so that it also does this.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from measuring import create_tree, measure_cpu

import muniment

ENTRIES = 1_000
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
PROGRAM = (sys.executable, "-P", "-m", "muniment")
LOOP = (
    "import sys, json\nfor line in sys.stdin: print(json.dumps({'id': json.loads(line)['id']}), flush=True)"
)


class Host:
    """A server of this project and its pipe."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
        )

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the response."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        while (answer := json.loads(self.process.stdout.readline())).get("id") != message["id"]:
            pass
        return answer

    def recall(self, query: str) -> None:
        """Call the tool."""
        params = {"name": "recall", "arguments": {"query": query}}
        answer = self.request({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        assert answer["result"]["structuredContent"]["entries"], answer

    def close(self) -> None:
        """Stop the server."""
        self.process.communicate()


def measure_starts(count: int, environment: dict[str, str]) -> None:
    """Print the cost of a start."""
    sdk = f"import mcp.server.lowlevel\n{LOOP}"
    ways = {
        "python": (sys.executable, "-c", LOOP),
        "python, SDK": (sys.executable, "-c", sdk),
        "muniment mcp": (*PROGRAM, "mcp"),
        "muniment mcp --daemon": (*PROGRAM, "mcp", "--daemon"),
    }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(count):
        for way, command in ways.items():
            began = time.perf_counter()
            with closing(Host(command, environment)) as host:
                host.request(HELLO)
                found[way].append((time.perf_counter() - began, measure_cpu(host.process.pid)))
    print(f"{'start':24}{'wall ms':>10}{'CPU ms':>10}")
    for way, costs in found.items():
        wall, cpu = (statistics.median(each) * 1_000 for each in zip(*costs, strict=True))
        print(f"{way:24}{wall:10.0f}{cpu:10.0f}")


def measure_recalls(count: int, base: Path, environment: dict[str, str]) -> None:
    """Print the cost of a recall."""
    queries = [f"word{(number * 31) % 997} word{(number * 31 + 1) % 997} fact" for number in range(count)]
    flags = ("mcp", f"--workspace={base / 'work'}")
    with (
        muniment.open(base / "work", home=environment["MUNIMENT_HOME"]) as memory,
        closing(Host((*PROGRAM, *flags), environment)) as pipe,
        closing(Host((*PROGRAM, *flags, "--daemon"), environment)) as daemon,
    ):
        served = json.loads((Path(environment["MUNIMENT_HOME"]) / "state" / "daemon.json").read_text())["pid"]

        def library(query: str) -> None:
            recalled = memory.recall(query)
            assert recalled.entries
            memory.recaller.record(recalled, "benchmark")

        ways = {
            "library": (library, os.getpid()),
            "muniment mcp": (pipe.recall, pipe.process.pid),
            "/mcp, by --daemon": (daemon.recall, served),
        }
        for host in (pipe, daemon):
            host.request(HELLO)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number, query in enumerate(queries):
            for way, (ask, pid) in ways.items():
                cpu, began = measure_cpu(pid), time.perf_counter()
                ask(query)
                if number >= count // 10:  # Earlier calls read rows for the first time.
                    found[way].append((time.perf_counter() - began, measure_cpu(pid) - cpu))
        print(f"\n{'recall':24}{'wall ms':>10}{'CPU ms':>10}{'wall ratio':>12}{'CPU ratio':>12}")
        first: tuple[float, ...] = ()
        for way, costs in found.items():
            medians = tuple(statistics.median(each) * 1_000 for each in zip(*costs, strict=True))
            first = first or medians
            print(
                f"{way:24}{medians[0]:10.2f}{medians[1]:10.2f}"
                f"{medians[0] / first[0]:12.2f}{medians[1] / first[1]:12.2f}"
            )


def main() -> None:
    """Create a memory, serve it, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("entries", nargs="?", type=int, default=ENTRIES)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--recalls", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        home = base / "home"
        home.mkdir(mode=0o700)
        create_tree(home / "user", options.entries)
        (base / "work" / ".git").mkdir(parents=True)
        environment = {"MUNIMENT_HOME": str(home)}
        command = (*PROGRAM, "serve", f"--workspace={base / 'work'}", "--json")
        with closing(Host(command, environment)) as daemon:
            assert daemon.process.stdout is not None
            daemon.process.stdout.readline()
            measure_starts(options.starts, environment)
            measure_recalls(options.recalls, base, environment)
            daemon.process.terminate()


if __name__ == "__main__":
    main()
