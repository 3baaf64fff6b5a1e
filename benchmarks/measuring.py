"""Helpers of several benchmarks; independent of the package, and so usable for any checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

IN_A_TOPIC = 50
FACTS = (
    "The user prefers font size {} in all editors",
    "The project pins pnpm to version {}",
    "Always keep functions below {} lines",
    "Staging runs Postgres {} behind pgbouncer",
    "We deploy at {} o'clock on Thursdays",
    "The API listens on port {} in development",
    "My desk is in room {} of the Berlin office",
    "CI keeps artifacts for {} days",
    "Sprint {} ends with a demo for the sales team",
    "Ticket {} tracks the flaky login test",
)
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


def entry(number: int) -> bytes:
    """Return about 400 bytes, like an entry of the rule writer."""
    words = " ".join(f"word{(number * 31 + at) % 997}" for at in range(30))
    return f"---\nname: Fact {number}\ndescription: The fact {number}\ntype: user\n---\n{words}\n".encode()


def create_tree(root: Path, size: int, in_a_topic: int = IN_A_TOPIC) -> Path:
    """Create a tree of `size` entries."""
    root.mkdir(mode=0o700, parents=True)
    for number in range(size):
        topic = root / f"topic-{number // in_a_topic}"
        topic.mkdir(exist_ok=True, mode=0o700)
        (topic / f"fact-{number}.md").write_bytes(entry(number))
    return root


def measure_cpu(pid: int) -> float:
    """Return the CPU seconds of a process, of its live descendants and of its reaped ones, in ticks.

    Source: clock_getcpuclockid(3), for the number of another process's clock; proc_pid_stat(5).
    """
    try:
        own = time.clock_gettime((~pid << 3) | 2)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [each for path in Path(f"/proc/{pid}/task").iterdir() for each in list_children(path)]
    except OSError:
        return 0.0  # The process has just ended; its time is now in its parent.
    return own + sum(map(int, fields[13:15])) / TICKS_A_SECOND + sum(map(measure_cpu, children))


def list_children(task: Path) -> list[int]:
    """Return the child processes of one thread that are not reaped yet."""
    return [int(pid) for pid in (task / "children").read_text().split()]


def unfenced_policy(base: Path) -> Path:
    """Write a policy like `strict` that lets the tools run in the process itself; return its path."""
    spec = find_spec("muniment")
    strict = Path(str(spec.origin)).with_name("policies") / "strict.toml" if spec else Path()
    path = base / "none.toml"
    text = strict.read_text().replace('require = "partial"', 'require = "none"')
    path.write_text(text.replace('name = "strict"', 'name = "none"'))
    return path


def build_environment(checkout: Path) -> dict[str, str]:
    """Return an environment for the package of a checkout that allows byte code files."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return variables | {"PYTHONPATH": str(checkout / "src")}


def run_json(checkout: Path, *arguments: str, before: tuple[str, ...] = ()) -> Any:
    """Run Python with the package of a checkout and return its JSON output; `before` starts it."""
    command = [*before, sys.executable, "-W", "ignore", *arguments]
    return json.loads(
        subprocess.run(command, env=build_environment(checkout), check=True, stdout=subprocess.PIPE).stdout
    )
