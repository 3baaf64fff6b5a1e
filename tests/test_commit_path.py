"""The path of one commit: a real commit calls the functions of the review page in that order."""

import os
import sys
from functools import cache
from pathlib import Path

import muniment
from kit.store.bench import propose_new
from threats.review import COMMIT_PATH, functions

PACKAGE = Path(muniment.__file__).parent
MAX_STOPS = 25
FSYNC = "os:fsync"


class Trace:
    """The calls of a block: each function of kernel and store, and each `os.fsync`, with their callers."""

    def __init__(self):
        self.calls = []

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, argument):
        if event == "c_call" and argument is os.fsync:
            self.calls.append((FSYNC, list_callers(frame)))
        elif event == "call" and (name := name_function(frame.f_code)).startswith(("kernel/", "store/")):
            self.calls.append((name, list_callers(frame.f_back)))


def list_callers(frame):
    """Return the functions of a frame and of those that called it."""
    names = []
    while frame is not None:
        names.append(name_function(frame.f_code))
        frame = frame.f_back
    return names


@cache
def name_function(code):
    """Return the file and name of a function of the package, or an empty text for others."""
    path = Path(code.co_filename)
    return f"{path.relative_to(PACKAGE)}:{code.co_qualname}" if path.is_relative_to(PACKAGE) else ""


def trace_commit(ground):
    ground.commit(propose_new("user/first.md"))  # Loads tables once.
    with Trace() as trace:
        ground.commit(propose_new("user/n.md"), ground.propose_edit("user/a.md"))
    return trace.calls


def test_commit_calls_the_listed_functions_in_order(store_bench):
    trace = trace_commit(store_bench)
    calls = [name for name, _ in trace]
    first_calls = [name for name in dict.fromkeys(calls) if name in COMMIT_PATH]
    assert first_calls == COMMIT_PATH
    assert len(COMMIT_PATH) <= MAX_STOPS
    last_fsync = len(calls) - 1 - calls[::-1].index(FSYNC)
    assert "kernel/_directory.py:Directory.sync" in trace[last_fsync][1]
    assert {"store/commit.py:_update_derived", "store/journal.py:LedgerJournal.finish"} <= {
        *calls[last_fsync:]
    }


def test_commit_path_is_in_order_of_the_source():
    for path in {stop.split(":")[0] for stop in COMMIT_PATH}:
        lines = functions((PACKAGE / path).read_text())
        names = [stop.split(":")[1] for stop in COMMIT_PATH if stop.startswith(f"{path}:")]
        assert names == sorted(names, key=lambda name: lines[name].lineno), path


def test_kernel_calls_no_function_of_the_committing_module(store_bench):
    called_back = {
        name
        for name, callers in trace_commit(store_bench)
        if name.startswith("store/commit.py:") and any(each.startswith("kernel/") for each in callers)
    }
    assert called_back == set()
