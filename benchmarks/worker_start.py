"""Measure the time until a worker responds, compared with a fresh interpreter for every run.

Usage: `python benchmarks/worker_start.py [RUNS]`. Medians of wall time, and CPU time of all processes
involved, both in one run on one machine; compare only the ratios. The goal: a worker of a warm zygote sends
its first response at least five times sooner.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from muniment.kernel.cancel import Deadline
from muniment.sandbox.fence.pool import Zygote

GOAL = 5.0
FRESH = (sys.executable, "-I", "-c", "import pydantic, pathspec, re2")


def main(runs: int) -> int:
    """Measure and print; return 0 if the goal is met."""
    with Zygote() as zygote:
        began = time.perf_counter()
        zygote.start()
        zygote.wait_ready(Deadline(time.monotonic() + 60))
        ready = time.perf_counter() - began
        _worker(zygote)
        workers, worker_cpu = _measure(lambda: _worker(zygote), runs, lambda: _cpu_seconds(zygote))
    _fresh()
    fresh, fresh_cpu = _measure(_fresh, max(5, runs // 10), lambda: _cpu_seconds(None))
    print(f"zygote, start to ready        {ready * 1e3:8.1f} ms")
    print(
        f"worker, request to answer     {workers * 1e3:8.2f} ms   cpu with its end {worker_cpu * 1e3:8.2f} ms"
    )
    print(f"fresh interpreter and imports {fresh * 1e3:8.2f} ms   cpu              {fresh_cpu * 1e3:8.2f} ms")
    print(f"ratio {fresh / workers:.1f}, cpu {fresh_cpu / worker_cpu:.1f} (goal: at least {GOAL:.0f})")
    return 0 if fresh / workers >= GOAL else 1


def _measure(run: Callable[[], float], runs: int, cpu: Callable[[], float]) -> tuple[float, float]:
    before = cpu()
    seconds = [run() for _ in range(runs)]
    return statistics.median(seconds), (cpu() - before) / runs


def _worker(zygote: Zygote) -> float:
    """Return the seconds from the request for a worker to its first message, without its end."""
    began = time.perf_counter()
    patience = Deadline(time.monotonic() + 60)
    with zygote.spawn_worker({}, patience) as worker:
        worker.receive(max_body=0, deadline=patience)
        return time.perf_counter() - began


def _fresh() -> float:
    began = time.perf_counter()
    subprocess.run(FRESH, check=True)
    return time.perf_counter() - began


def _cpu_seconds(zygote: Zygote | None) -> float:
    """Return the CPU of this process, of its ended children, and of the zygote with its ended workers."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + children.ru_utime + children.ru_stime
    if zygote is not None:
        # proc(5): utime, stime, cutime and cstime are fields 14 to 17; the name before them may contain
        # spaces.
        fields = Path(f"/proc/{zygote.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
