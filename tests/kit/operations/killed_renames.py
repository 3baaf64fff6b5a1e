"""Supersede entries in processes that are killed at chosen lines of their commits, and check what is left.

Run as `python -m kit.operations.killed_renames WORKSPACE SEED COUNT`: it forks one process after the other,
which supersede `ENTRIES` entries in turn, and are killed by the kernel (SIGKILL). After each kill another new
process opens the memory, which recovers it, and checks the files with its own parser. Prints a JSON document.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
from pathlib import Path

import muniment
from muniment.sandbox import sandbox

FACTS = (
    ("The project{} pins pnpm to mark{}", "project-pins-pnpm-mark{}"),
    ("The staging server{} runs on mark{}", "staging-server-runs-mark{}"),
    ("The Oslo office{} uses mark{}", "oslo-office-uses-mark{}"),
    ("The nightly backup{} uses mark{}", "nightly-backup-uses-mark{}"),
    ("The release train{} leaves from mark{}", "release-train-leaves-mark{}"),
    ("The payment gateway{} runs on mark{}", "payment-gateway-runs-mark{}"),
    ("Our Jira board{} uses mark{}", "jira-board-uses-mark{}"),
    ("The kitchen{} uses mark{}", "kitchen-uses-mark{}"),
    ("My locker{} uses mark{}", "locker-uses-mark{}"),
    ("The cache{} runs on mark{}", "cache-runs-mark{}"),
)
"""Facts and their names, with the place of a value that changes."""

ENTRIES = len(FACTS)
LINES_PER_KILL = 50_000
"""Maximum number of lines of commits that a process runs until it is killed: those of some commits."""

ACKNOWLEDGED = "acknowledged"
"""Name of a file with the number of facts that the killed processes reported as stored."""

PACKAGE = Path(muniment.__file__).parent
TRACED = {
    contextlib.__file__,
    *(str(PACKAGE / name) for name in ("kernel/commit.py", "kernel/write.py", "kernel/apply.py")),
    *(str(PACKAGE / name) for name in ("store/commit.py", "store/journal.py", "store/ledger.py")),
    *(str(PACKAGE / name) for name in ("store/naming.py", "store/index_upkeep.py", "store/index.py")),
}
PROVENANCE = re.compile(r"^muniment: (\{.*\})$", re.MULTILINE)


def make_fact(number):
    """Return the fact with this number: a new version for one of the entries."""
    version, entry = divmod(number, ENTRIES)
    return FACTS[entry][0].format(" now" if version else "", version + 11)


def make_name(fact):
    """Return the file name of a fact."""
    value = fact.rpartition("mark")[2]
    names = {text.format(now, value): name for text, name in FACTS for now in ("", " now")}
    return f"{names[fact].format(value)}.md"


def kill_in_commit(limit):
    """Kill this process in a commit, before the line of the traced files with this number."""
    left, commit = limit, sandbox.commit

    def trace_line(_frame, event, _argument):
        nonlocal left
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace_line

    def trace_call(frame, _event, _argument):
        return trace_line if frame.f_code.co_filename in TRACED else None

    def trace_commit(*arguments):
        sys.settrace(trace_call)  # Only here, because it makes every call slower.
        try:
            return commit(*arguments)
        finally:
            sys.settrace(None)

    sandbox.commit = trace_commit


def run_forked(function, *arguments):
    """Run a function in a new process, and return its result, or None if the process was killed."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reading)
        code = 1
        try:
            answer = json.dumps(function(*arguments)).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if status:
        raise AssertionError("a process failed; its traceback is above")
    return json.loads(answer)


def supersede_entries(workspace, first, last, lines):
    """Remember the facts with these numbers; if `lines` is not 0, this process is killed at this line."""
    with muniment.open(workspace=workspace) as memory:
        if lines:
            kill_in_commit(lines)
        for number in range(first, last):
            memory.remember(make_fact(number), scope="user", task_id=f"task-{number}")
            Path(workspace, ACKNOWLEDGED).write_text(str(number + 1))
    return last


def read_files(home):
    """Return the name, id and text of each entry on disk, and the names of all other files."""
    found, others = [], []
    for path in sorted((home / "user").rglob("*")):
        if path.is_dir() or path.name == "MEMORY.md" or path.parent.name == "index":
            continue
        text = path.read_text() if path.suffix == ".md" else ""
        if match := PROVENANCE.search(text):
            found.append((path.name, json.loads(match[1])["id"], text.rpartition("---\n")[2].strip()))
        else:
            others.append(path.name)
    return found, others


def check_files(workspace, home, identities):
    """Open the memory, which recovers it; return the number of facts that are stored, and the problems."""
    with muniment.open(workspace=workspace) as memory:
        handles = {entry.id: entry.handle for entry in map(memory.show, list_paths(memory))}
    found, others = read_files(home)
    acknowledged = int(Path(workspace, ACKNOWLEDGED).read_text())
    texts = {text for _, _, text in found}
    stored = acknowledged + (make_fact(acknowledged) in texts)  # A kill between commit and report.
    expected = {make_fact(number) for number in range(max(0, stored - ENTRIES), stored)}
    problems = [f"unexpected file {name}" for name in others]
    if sorted(text for _, _, text in found) != sorted(expected):
        problems.append(f"{len(found)} entries, not the newest version of each")
    problems += [f"{name} contains: {text}" for name, _, text in found if name != make_name(text)]
    if lost := [each for each in identities if identities[each] != handles.get(each)]:
        problems.append(f"ids or handles changed: {lost}")
    index = (home / "user" / "MEMORY.md").read_text() if found else ""
    problems += [f"{name} is not in the index" for name, _, _ in found if name not in index]
    return stored, problems, handles


def list_paths(memory):
    return [each.path for each in memory.list().entries]


def check_history(workspace, stored):
    """Return the problems of the history of each entry, and of an undo and its undo."""
    problems = []
    with muniment.open(workspace=workspace) as memory:
        for path in list_paths(memory):
            last = next(each for each in range(stored) if path.endswith(f"/{make_name(make_fact(each))}"))
            numbers = range(last % ENTRIES, stored, ENTRIES)
            steps = [step for step in memory.history(path) if step.kind == "new"]
            if [step.task for step in steps] != [f"task-{number}" for number in reversed(numbers)]:
                problems.append(f"history of {path}: {len(steps)} steps for {len(numbers)} facts")
            handle, facts = memory.show(path).handle, [make_fact(each) for each in numbers[-2:]]
            task = f"task-{numbers[-1]}"
            for fact in facts:
                task = memory.undo(task).task_id
                entry = memory.show(handle)
                if (entry.text.strip(), Path(entry.path).name) != (fact, make_name(fact)):
                    problems.append(f"{path} after an undo: {entry.path}")
    return problems


def main(workspace, seed, count):
    """Supersede entries `count` times with kills, and return the number of kills and all problems."""
    home, chance = Path(os.environ["MUNIMENT_HOME"]), random.Random(int(seed))
    total, stored, kills, problems = int(count) + ENTRIES, ENTRIES, 0, []
    run_forked(supersede_entries, workspace, 0, ENTRIES, 0)
    identities = run_forked(check_files, workspace, home, {})[2]
    if len(set(identities.values())) != ENTRIES:
        problems.append("two entries have one handle")
    while stored < total and not problems:
        lines = chance.randrange(1, LINES_PER_KILL)
        kills += run_forked(supersede_entries, workspace, stored, total, lines) is None
        stored, problems, _ = run_forked(check_files, workspace, home, identities)
    problems = problems or run_forked(check_history, workspace, stored)
    return {"kills": kills, "stored": stored, "problems": problems}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
