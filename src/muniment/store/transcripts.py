"""Which transcripts of runs were written and where, so that an erasure reaches them.

A transcript is a file that the operator asked for, anywhere (`cli/transcript.py`): it holds all that was
said. One of a task that is erased, or that holds a run of the text (`traces.py`), is deleted whole: what a
model made of the text is in it in other words as well. A file that was moved, or replaced by another one, is
left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from muniment.store.database import reporting
from muniment.store.placing import put
from muniment.store.state import State
from muniment.store.traces import Runs

NAME: Final = "transcripts.jsonl"
"""In the state directory: a line for each, with its task, its path, and by what the file is known."""

_PRIVATE: Final = 0o600


def note(state: State, task: str, path: Path) -> None:
    """Keep in mind that a transcript of a task is written to a file, which is there.

    Raises:
        ManagedMemoryUnavailable: the state directory cannot be written.
    """
    file = state.directory / NAME
    with reporting(file):
        line = json.dumps([task, str(path.absolute()), *_identity(path)])
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        with os.fdopen(fd, "w", encoding="ascii") as lines:
            print(line, file=lines)


def remove_telling(state: State, tasks: Collection[str], runs: Runs) -> int:
    """Delete the transcripts of some tasks, and those that hold one of some runs; how many those were.

    Raises:
        ManagedMemoryUnavailable: one cannot be read or deleted.
    """
    file = state.directory / NAME
    with reporting(file):
        if not file.exists():
            return 0
        lines = file.read_text("ascii").splitlines(keepends=True)
        kept, removed = [], 0
        for line in lines:
            task, name, *identity = json.loads(line)
            path = Path(name)
            if not path.is_file() or _identity(path) != identity or not _is_transcript(path):
                continue
            if task in tasks or runs.found_in("\n".join(_said(path)).encode("utf-8", "replace")):
                path.unlink()
                removed += 1
            else:
                kept.append(line)
        if kept != lines:
            put(file, "".join(kept).encode("ascii"), over=True)
    return removed


def _identity(path: Path) -> list[int]:
    found = path.stat(follow_symlinks=False)
    return [found.st_dev, found.st_ino]


def _is_transcript(path: Path) -> bool:
    """Whether a file begins as one does; a number of a file that went may be another one's by now."""
    return path.read_text("utf-8", "replace").startswith('{"from": "system"')


def _said(path: Path) -> Iterator[str]:
    """What a transcript says, as it reads once the JSON is read."""
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            yield from _strings(json.loads(line))
        except (ValueError, RecursionError):
            yield line


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for each in value.values() if isinstance(value, dict) else value:
                yield from _strings(each)
