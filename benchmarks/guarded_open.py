"""Measure the cost of a guarded open, compared with a bare one and with the usual string checks.

Everything is measured in one run, in turns, on one file at depth 5; figures are medians of CPU time. Compare
ratios between machines, not microseconds. Run: `python benchmarks/guarded_open.py`. Install `anthropic` to
compare with the path validation of that SDK's memory tool.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Resolver, Root
from muniment.kernel.syscalls import Openat2Resolver, is_openat2_available
from muniment.kernel.walk import WalkResolver

REL = "one/two/three/four/note.md"
ROUNDS = 25
OPENS = 2_000


def main() -> None:
    """Print a line for each way to open."""
    with tempfile.TemporaryDirectory() as directory:
        top = str(Path(directory).resolve() / "memories")
        path = Path(top, REL)
        path.parent.mkdir(parents=True)
        path.write_text("A memory.")
        root_fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
        ways = {"os.open and os.close, nothing checked": build_bare(str(path))}
        if is_openat2_available():
            ways["guarded, openat2"] = build_guarded(root_fd, Openat2Resolver())
        ways["guarded, component walk"] = build_guarded(root_fd, WalkResolver())
        ways["realpath, commonpath, os.open, os.close"] = build_string_check(top)
        if find_spec("anthropic"):
            ways[f"anthropic {version('anthropic')}: validate, open, close"] = build_vendor_check(top)
        report(measure(ways))
        os.close(root_fd)


def build_bare(path: str) -> Callable[[], None]:
    """Return an open without any check, the baseline."""

    def way() -> None:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    return way


def build_guarded(root_fd: int, resolver: Resolver) -> Callable[[], None]:
    """Return an open by `Root.open_file` with its checks of path and descriptor."""
    root = Root(Scope("user"), root_fd, resolver)
    path = CanonicalPath(root.scope, RelPath(REL))

    def way() -> None:
        root.open_file(path).close()

    return way


def build_string_check(top: str) -> Callable[[], None]:
    """Return the usual check, which is open to a race and to hard links."""

    def way() -> None:
        real = os.path.realpath(f"{top}/{REL}")
        if os.path.commonpath((top, real)) != top:
            raise PermissionError(real)
        os.close(os.open(real, os.O_RDONLY | os.O_CLOEXEC))

    return way


def build_vendor_check(top: str) -> Callable[[], None]:
    """Return the path check of the memory tool of a vendor's SDK, with an open."""
    from anthropic.tools import BetaLocalFilesystemMemoryTool

    validate = BetaLocalFilesystemMemoryTool(str(Path(top).parent))._validate_path  # noqa: SLF001  tested
    text = f"/memories/{REL}"

    def way() -> None:
        os.close(os.open(validate(text), os.O_RDONLY | os.O_CLOEXEC))

    return way


def measure(ways: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the median microseconds of CPU time of one open, by way; the ways take turns."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _round in range(ROUNDS):
        for name, way in ways.items():
            began = time.process_time_ns()
            for _open in range(OPENS):
                way()
            samples[name].append((time.process_time_ns() - began) / OPENS / 1000)
    return {name: statistics.median(times) for name, times in samples.items()}


def report(medians: dict[str, float]) -> None:
    """Print microseconds, and the ratio to the bare open."""
    floor = next(iter(medians.values()))
    for name, median in medians.items():
        print(f"{name:42} {median:7.2f} µs  {median / floor:6.2f} x")


if __name__ == "__main__":
    main()
