"""`muniment.client.sync`: written from `muniment.client.aio`, which is the same for asyncio.

    PYTHONPATH=tests .venv/bin/python -m kit.client.twin

`tests/surface/client/test_twin.py` fails where it is not what this writes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from muniment.client import aio, sync

SYNC = Path(sync.__file__)
COMMAND = "PYTHONPATH=tests .venv/bin/python -m kit.client.twin"

WORDS = {
    "An object belongs to one event loop. Cancelling a call closes its connection, and no task.": "Threads "
    "may share a client. Closing it waits for a connection that is being made, some seconds.",
    "`sync` is written from this file; after a change": "Written from `aio`; after a change of that",
}
WORDS |= {"with asyncio": "with threads", "import Loop": "import Threads", "Loop(": "Threads("}
WORDS |= {each: each.removeprefix("Async") for each in ("AsyncTaskHandle", "AsyncClient", "AsyncGenerator")}
WORDS |= {each: each.replace("a", "", 1) for each in ("aclosing", "__aenter__", "__aexit__", "anext(")}
WORDS |= dict.fromkeys(
    ("  # noqa: ASYNC109  that of the wait", "  # noqa: ASYNC109  likewise", "async ", "await "), ""
)
"""What stands in the one, and what instead in the other."""


def written() -> str:
    """What `sync.py` should be."""
    text = Path(aio.__file__).read_text(encoding="utf-8")
    for word, other in WORDS.items():
        assert word in text, word
        text = text.replace(word, other)
    for command in (["check", "--select=I", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, f"--stdin-filename={SYNC}", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    SYNC.write_text(written(), encoding="utf-8")
