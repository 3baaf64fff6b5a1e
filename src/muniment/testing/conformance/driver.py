"""Runs cases against a target, in a process that has something to lose (`muniment.testing.corpus.driver`).

    python -m muniment.testing.conformance.driver TARGET DIRECTORY ID…

Apart from `run.py`, which starts it.

What the target calls itself, version included, is left in `DIRECTORY/about`.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from muniment.testing.conformance.targets import parse_target
from muniment.testing.corpus import Case, Stage, Subject
from muniment.testing.corpus.driver import drive

ABOUT: Final = "about"

MEMORY_BYTES: Final = 1 << 32
"""Address space of a driver with another's tool in it: a case has a file of 4 GiB."""


def main(spec: str, directory: Path, ids: Sequence[str]) -> None:
    """Run the cases in order.

    Raises:
        UnknownTarget: there is no such target.
        KeyError: there is no such case.
    """
    target = parse_target(spec)
    if target.sort == "anthropic":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # HOME leads into `outside`; what `npx` keeps there would look like an escape of the server it starts.
    os.environ.setdefault("npm_config_cache", str(Path.home() / ".npm"))

    def opens(stage: Stage, case: Case) -> Subject:
        subject = target.open(stage, case)
        about = directory / ABOUT
        if not about.exists():
            about.write_text(getattr(subject, "about", target.name))
        return subject

    drive(opens, directory, ids)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
