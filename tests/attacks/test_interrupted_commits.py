"""An interrupt at any line of a commit: all of it is done or nothing, in files, listing and history alike."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from pathlib import Path

import pytest

import muniment

SHARES = 40
PACKAGE = Path(muniment.__file__).parent
INTERRUPTED = {
    contextlib.__file__,
    *(str(PACKAGE / name) for name in ("kernel/commit.py", "kernel/write.py", "store/commit.py")),
    *(str(PACKAGE / name) for name in ("store/journal.py", "store/ledger.py")),
}


class Interrupt:
    """Raise `KeyboardInterrupt` before the line of a number, counted from the first line of `commit`."""

    def __init__(self, number):
        self.left, self.place, self.is_begun = number, None, False

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, _event, _argument):
        code = frame.f_code
        is_commit = (code.co_name, Path(code.co_filename).parts[-2:]) == ("commit", ("store", "commit.py"))
        self.is_begun |= is_commit
        if not self.is_begun or code.co_filename not in INTERRUPTED:
            return None
        return self._line

    def _line(self, frame, event, _argument):
        if event == "line":
            self.left -= 1
            if self.left < 0 and self.place is None:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


def entries(home):
    """Return the names of the entries on disk."""
    return {
        path.name for path in home.rglob("*.md") if path.name != "MEMORY.md" and path.parent.name != "index"
    }


def committed(memory):
    return {Path(step.path).name for step in memory.history()}


def interrupted(memory, home, number, word):
    """Return where a commit was interrupted, and whether files and history agreed while the error was kept.

    In a thread of its own: an error raised by a trace can leave the state of a thread's exceptions behind.
    """
    outcome = []

    def commit():
        kept = None
        with Interrupt(number) as interrupt:
            try:
                memory.remember(f"The user calls the machine {word} at home")
            except KeyboardInterrupt as error:
                kept = error  # As an interactive session does.
        outcome[:] = interrupt.place, entries(home) == committed(memory)
        del kept

    thread = threading.Thread(target=commit)
    thread.start()
    thread.join()
    return outcome


@pytest.mark.sweep(3)
@pytest.mark.parametrize("share", range(SHARES))
def test_interrupted_commit_is_whole_or_absent(tmp_path, monkeypatch, share):
    home, workspace = tmp_path / "home", tmp_path / "work"
    (workspace / ".git").mkdir(parents=True)
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    wrong, outcomes, number = [], set(), share
    with muniment.open(workspace=workspace) as memory:
        memory.remember("The user prefers dark mode in all editors")
        while True:
            word, before = f"quux{number}", entries(home)
            place, at_once = interrupted(memory, home, number, word)
            if place is None:
                break
            gc.collect()  # An interrupt keeps the frames, and so the locks, until then.
            with muniment.open(workspace=workspace) as fresh:
                is_done = entries(home) != before
                found = {
                    "at once": at_once,
                    "history": entries(home) == committed(fresh),
                    "index": any(word in page.read_text() for page in home.rglob("MEMORY.md")) == is_done,
                    "recall": any(word in entry.text for entry in fresh.recall(word).entries) == is_done,
                    "names": not list(home.rglob(".muniment-*")),
                }
            wrong += [(number, place, what) for what, is_right in found.items() if not is_right]
            outcomes.add(is_done)
            number += SHARES
    assert wrong == []
    assert False in outcomes
