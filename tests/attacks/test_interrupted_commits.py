"""An interrupt at any line of a commit leaves all or nothing of it, in files, index and history."""

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
    """Raise `KeyboardInterrupt` before the line with this number, counted from the first line of `commit`."""

    def __init__(self, number):
        self.left, self.location, self.has_begun = number, None, False

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, _event, _argument):
        code = frame.f_code
        is_commit = (code.co_name, Path(code.co_filename).parts[-2:]) == ("commit", ("store", "commit.py"))
        self.has_begun |= is_commit
        if not self.has_begun or code.co_filename not in INTERRUPTED:
            return None
        return self._line

    def _line(self, frame, event, _argument):
        if event == "line":
            self.left -= 1
            if self.left < 0 and self.location is None:
                self.location = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


def list_entries(home):
    """Return the names of the entries on disk."""
    return {
        path.name for path in home.rglob("*.md") if path.name != "MEMORY.md" and path.parent.name != "index"
    }


def list_history(memory):
    return {Path(step.path).name for step in memory.history()}


def interrupt_commit(memory, home, number, word):
    """Interrupt a commit; return at which line, and whether files and history agreed before the error was
    released.

    Runs in its own thread, because an error raised by a trace can corrupt the exception state of a thread.
    """
    outcome = []

    def commit():
        kept = None
        with Interrupt(number) as interrupt:
            try:
                memory.remember(f"The user calls the machine {word} at home")
            except KeyboardInterrupt as error:
                kept = error  # Keep the error as an interactive session does.
        outcome[:] = interrupt.location, list_entries(home) == list_history(memory)
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
            word, before = f"quux{number}", list_entries(home)
            location, at_once = interrupt_commit(memory, home, number, word)
            if location is None:
                break
            gc.collect()  # Releases the frames of the interrupt, and so the locks.
            with muniment.open(workspace=workspace) as fresh:
                is_done = list_entries(home) != before
                found = {
                    "at once": at_once,
                    "history": list_entries(home) == list_history(fresh),
                    "index": any(word in page.read_text() for page in home.rglob("MEMORY.md")) == is_done,
                    "recall": any(word in entry.text for entry in fresh.recall(word).entries) == is_done,
                    "names": not list(home.rglob(".muniment-*")),
                }
            wrong += [(number, location, kind) for kind, is_right in found.items() if not is_right]
            outcomes.add(is_done)
            number += SHARES
    assert wrong == []
    assert False in outcomes
