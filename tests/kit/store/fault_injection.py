"""Fault injection at system calls: each call of a commit and its recoveries can fail, be interrupted or be
the last.

A case is a commit in a process with faults, recoveries in other processes that may have faults too, and a
final recovery without faults. Peers edit the files at any call. The oracle knows the committed files, the
edits of peers, and the final journal; it shares no code with the subject.

`PYTHONPATH=tests python -m kit.store.fault_injection --cases 100000` runs many cases and prints a summary.

Faults: an error number once, or at every call from then on; MemoryError and KeyboardInterrupt, before or
after the call; the end of the process: later calls have no effect, as after SIGKILL. The journal is in
memory, and its steps are calls too.
"""

import argparse
import ctypes
import errno
import fcntl
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

from muniment.kernel import _directory, apply, binding, listing, root, syscalls, walk
from muniment.kernel.apply import lock_roots, seal_index_files
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, FileChange, IndexFile, Precondition, digest
from muniment.kernel.commit import transaction
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.kernel.refusal import ManagedMemoryUnavailable, MunimentError
from muniment.kernel.write import Intent, clear_index_leftovers, get_index_temporary_name, recover
from muniment.policy.load import parse_policy

SCOPE = Scope("user")
BEFORE = {
    "a.md": b"# A\nold line one\nold line two\n",
    "topic/t.md": b"# T\nold t\n",
    "gone.md": b"# G\nold gone\n",
}
AFTER = {
    "a.md": b"AGENT-a says this\nand more\n",
    "new/deep.md": b"AGENT-new says this\nand more\n",
    "topic/t.md": b"AGENT-t says this\nand more\n",
    "gone.md": None,
}
INDEX = "MEMORY.md"
OLD_INDEX, NEW_INDEX = b"# Memory index\nold\n", b"# Memory index\nnew\n"

ERRORS = ("EIO", "EMFILE", "EACCES", "ENOSPC", "EINTR")
KINDS = (
    *(("once", name) for name in ERRORS),
    *(("always", name) for name in ("EIO", "EMFILE", "ENOSPC")),
    *((kind, when) for kind in ("MemoryError", "KeyboardInterrupt", "kill") for when in ("before", "after")),
    ("kill", "half"),
)
"""Faults at a call."""
PEER_ACTIONS = ("write", "replace", "append", "shorten", "remove")

POLICY = parse_policy(
    """
schema = "muniment-policy/1"
name = "faulty"
description = "Everything."
scopes = { user = { trust = "owner", commit = "auto" } }
allow = [{ id = "all", verbs = ["list", "read", "create", "modify"], paths = ["/**"], why = "tests" }]
content = { reject = ["control"] }
""",
    where="faulty",
    parents=lambda name: name,
)


class ProcessKilled(BaseException):
    """The process has ended: its later calls have no effect."""


@dataclass
class FaultCase:
    """The faults and edits of one case.

    Attributes:
        faults: for the commit and each recovery: call numbers with their fault.
        peers: for the same: call numbers with the edits of peers before them, and the file.
    """

    faults: list[dict[int, tuple[str, str]]]
    peers: list[dict[int, tuple[str, str]]]


@dataclass
class Disk:
    """State that outlives every process: the files, the journal, and the edits of peers."""

    base: Path
    intents: dict[int, tuple] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    conflicts: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    indexes: set[bytes] = field(default_factory=lambda: {OLD_INDEX, NEW_INDEX})
    edited_paths: set[str] = field(default_factory=set)
    expected_texts: list[bytes] = field(default_factory=list)
    number: itertools.count = field(default_factory=itertools.count)

    def act_as_peer(self, action, rel):
        """Edit a file like an editor: read it, then write, replace or remove it."""
        path = self.base / rel
        with suppress(OSError):
            found = path.read_bytes() if path.is_file() else None
            content = b"PEER-%d wrote this here\n" % next(self.number)
            if action == "append" and found is not None:
                content = found + content
            elif action == "shorten" and found is not None and len(found) > 1:
                content = found[: len(found) // 2]
            elif action == "remove":
                content = None
            if content is None:
                path.unlink()
            elif action == "replace":
                sibling = self.base.parent / "beside"
                sibling.write_bytes(content)
                sibling.rename(path)
            else:
                path.write_bytes(content)
            self.edited_paths.add(rel)
            if found in self.expected_texts:
                self.expected_texts.remove(found)
            if content is not None:
                self.expected_texts.append(content)


class FaultyProcess:
    """A process: counts its calls, injects their faults, and has no effect after it was killed."""

    def __init__(self, disk, faults, peers):
        self.disk, self.faults, self.peers = disk, faults, peers
        self.calls, self.is_dead, self.always = 0, False, None

    def call(self, real, *arguments, writes=False, by_errno=False, **options):
        """Make a call unless it has a fault."""
        if self.is_dead:
            raise ProcessKilled
        self.calls += 1
        for deed, rel in self.peers.get(self.calls, ()):
            self.disk.act_as_peer(deed, rel)
        kind, what = (
            self.faults.get(self.calls, (None, None)) if self.always is None else ("once", self.always)
        )
        if kind == "always":
            kind, self.always = "once", what
        if kind == "once":
            return self.raise_fault(what, by_errno=by_errno)
        if kind is None:
            return real(*arguments, **options)
        if what == "half" and writes:
            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif what == "after":
            real(*arguments, **options)
        self.is_dead = kind == "kill"
        raise {"MemoryError": MemoryError, "KeyboardInterrupt": KeyboardInterrupt, "kill": ProcessKilled}[
            kind
        ]

    def raise_fault(self, name, *, by_errno):
        number = getattr(errno, name)
        if by_errno:
            ctypes.set_errno(number)
            return -1
        raise OSError(number, os.strerror(number))

    def wrap(self, real, **options):
        return lambda *arguments, **more: self.call(real, *arguments, **options, **more)

    def close_descriptor(self, fd):
        """Close in any case: an ended process has nothing open."""
        os.close(fd)
        if not self.is_dead:
            self.call(lambda: None)

    def lock_descriptor(self, fd, flags):
        if self.is_dead or flags == fcntl.LOCK_UN:
            return fcntl.flock(fd, fcntl.LOCK_UN)
        return self.call(fcntl.flock, fd, flags)

    @contextmanager
    def install(self):
        """Route the system calls of the kernel through this process."""
        calls = (
            "open",
            "fsync",
            "fchmod",
            "mkdir",
            "rmdir",
            "unlink",
            "stat",
            "pread",
            "rename",
            "fstat",
            "scandir",
        )
        wrapped = {name: self.wrap(getattr(os, name)) for name in calls}
        wrapped |= {"write": self.wrap(os.write, writes=True), "close": self.close_descriptor}
        system = _ModuleOverride(os, **wrapped)
        numbered = {
            "_openat2": syscalls,
            "_fstat": syscalls,
            "_getdents64": syscalls,
            "_renameat2": _directory,
        }
        with ExitStack() as patches:
            for module in (apply, root, walk, listing, binding, _directory):
                patches.enter_context(patch.object(module, "os", system))
            patches.enter_context(
                patch.object(apply, "fcntl", _ModuleOverride(fcntl, flock=self.lock_descriptor))
            )
            for name, owner in numbered.items():
                wrapped = self.wrap(getattr(owner, name), by_errno=True)
                patches.enter_context(patch.object(owner, name, wrapped))
            yield


class _ModuleOverride:
    """A module with some names replaced."""

    def __init__(self, real, **names):
        self._real = real
        self.__dict__.update(names)

    def __getattr__(self, name):
        return getattr(self._real, name)


class MemoryJournal:
    """A journal that outlives its processes; each step is a call, and durable afterwards."""

    def __init__(self, disk, process):
        self.disk, self.process = disk, process

    def begin(self, judged, token):
        number = len(self.disk.intents) + len(self.disk.done) + 1
        made = tuple(each for row in judged.new_directories for each in row)
        intent = Intent(number, token, dict(enumerate(judged.change_set.changes)), made, "task")
        self.run_step(lambda: self.disk.intents.__setitem__(number, intent))
        return number

    def finish(self, number, _judged, _notes):
        self.run_step(lambda: (self.disk.intents.pop(number), self.disk.done.add(number)))

    def abandon(self, number, _scopes, recovered=None):
        def close():
            self.disk.intents.pop(number)
            if recovered is not None:
                self.disk.conflicts |= {path.rel for path in recovered.skipped}
                self.disk.sources |= {each.path.rel for each in recovered.intent.changes.values()}

        self.run_step(close)

    def list_unfinished(self, _scopes):
        return self.run_step(lambda: list(self.disk.intents.values()))

    def is_known(self, path, of):
        known = {digest(BEFORE[path.rel])} if path.rel in BEFORE else set()
        return of in known

    def run_step(self, real):
        try:
            return self.process.call(real)
        except OSError as error:
            raise ManagedMemoryUnavailable("ledger", str(error)) from error


class PlainRootInfo:
    """Information about a root without similar names."""

    def __init__(self, disk):
        self.disk = disk

    def find_aliases(self, *_):
        return frozenset()

    def usage(self, *_):
        return 0, 0

    def is_index(self, _scope, content):
        return content in self.disk.indexes


def make_change_set(base):
    """Return the change set of every case, based on the current files."""
    at = {rel: base / rel for rel in AFTER}
    return ChangeSet(
        tuple(
            FileChange(
                CanonicalPath(SCOPE, RelPath(rel)),
                digest(BEFORE[rel]) if rel in BEFORE and path.exists() else None,
                AFTER[rel],
                trust=Trust.AGENT,
            )
            for rel, path in at.items()
        )
    )


def write_index(locked, token):
    """Update the index like the store: an error in it does not stop a commit."""
    path, before = CanonicalPath(SCOPE, RelPath(INDEX)), OLD_INDEX
    with suppress(MunimentError):
        before = locked[SCOPE].root.read_bytes(path)
    before = before if before in {OLD_INDEX, NEW_INDEX} else None
    if before is not None:
        index = IndexFile(path, before or Precondition.ABSENT, NEW_INDEX)
        with suppress(MunimentError):
            apply.apply_changes(
                seal_index_files([index]), locked, partial(get_index_temporary_name, token), durable=False
            )


def make_deadline():
    return Deadline(time.monotonic() + 60)


def run_commit(disk, process):
    journal, facts = MemoryJournal(disk, process), PlainRootInfo(disk)
    parts = [make_change_set(disk.base)]
    with (
        bind(SCOPE, disk.base) as bound,
        process.install(),
        transaction(
            parts,
            policy=POLICY,
            roots={SCOPE: bound},
            journal=journal,
            gates=lambda _: None,
            root_info=facts,
            deadline=make_deadline(),
        ) as tx,
    ):
        with tx.recover():
            pass
        current, _ = tx.resolve(parts)
        with tx.write(tx.judge(current)) as writing:
            writing.apply()
            write_index(tx.locked, writing.token)
            writing.finish(())


def run_recovery(disk, process):
    journal, facts = MemoryJournal(disk, process), PlainRootInfo(disk)
    with bind(SCOPE, disk.base) as bound, process.install(), lock_roots([bound], make_deadline()) as locked:
        with recover(locked, journal, POLICY, facts):
            pass
        clear_index_leftovers(locked, SCOPE, facts)


def run_case(case, where):
    """Run a case in a fresh directory; return the disk, how each process ended, and the calls of each."""
    base = where / "root"
    base.mkdir(mode=0o700)
    for rel, content in {**BEFORE, INDEX: OLD_INDEX}.items():
        (base / rel).parent.mkdir(mode=0o700, exist_ok=True)
        (base / rel).write_bytes(content)
    disk, calls, ends = Disk(base), [], []
    acts = [run_commit, *[run_recovery] * (len(case.faults) - 1)]
    for act, faults, peers in zip(acts, case.faults, case.peers, strict=True):
        process = FaultyProcess(disk, faults, peers)
        try:
            act(disk, process)
        except (ProcessKilled, KeyboardInterrupt, MemoryError, MunimentError, OSError) as error:
            ends.append(type(error).__name__)
        else:
            ends.append("ended")
        calls.append(process.calls)
    run_recovery(disk, FaultyProcess(disk, {}, {}))  # Without faults.
    return disk, ends, calls


def find_problems(disk):
    """Yield what is wrong after a recovery without faults; nothing if all guarantees were met."""
    files = {
        str(path.relative_to(disk.base)): path.read_bytes()
        for path in disk.base.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    if disk.intents:
        yield "an intent remains"
    yield from (f"a temporary name: {rel}" for rel in files if ".muniment-" in rel)
    wanted = AFTER if disk.done else {rel: BEFORE.get(rel) for rel in AFTER}
    for rel, content in wanted.items():
        if rel not in disk.edited_paths and files.get(rel) != content:
            yield f"incomplete: {rel}"
    yield from (f"lost: {content!r}" for content in disk.expected_texts if content not in files.values())
    if disk.done:
        return
    for (rel, content), (name, text) in itertools.product(files.items(), AFTER.items()):
        if text is not None and content.startswith(text[:8]) and name not in disk.sources:
            yield f"raised: {rel} contains text of an agent without provenance"
    if "new/deep.md" not in disk.edited_paths and (disk.base / "new").is_dir():
        yield "a directory remains"


def draw_case(rng, counts):
    """Draw a random case: the first fault anywhere in a commit, more faults and peers at random calls."""
    faults = [{rng.randrange(1, counts[0] + 1): rng.choice(KINDS)}]
    if rng.random() < 0.5:  # A second one during the rollback of the first.
        faults[0][rng.randrange(1, counts[0] + counts[1])] = rng.choice(KINDS)
    recoveries = range(rng.choice((0, 1, 1, 2)))
    faults += [{rng.randrange(1, counts[1] + 1): rng.choice(KINDS)} for _ in recoveries]
    peers = [{} for _ in faults]
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        at = rng.randrange(len(faults))
        action = rng.choice(PEER_ACTIONS), rng.choice([*AFTER, "a.md"])
        peers[at].setdefault(rng.randrange(1, counts[min(at, 1)] + 1), []).append(action)
    return FaultCase(faults, peers)


def list_single_faults(counts):
    """Yield every fault at every call of a commit, and of the recovery of one killed before its end."""
    for at, kind in itertools.product(range(1, counts[0] + 1), KINDS):
        yield FaultCase([{at: kind}], [{}])
    for at, kind in itertools.product(range(1, counts[1] + 1), KINDS):
        yield FaultCase([{counts[2]: ("kill", "before")}, {at: kind}], [{}, {}])


def count_calls(where):
    """Count the calls of a commit, and of a recovery of one killed as late as possible; return also that
    call.
    """
    (where / "one").mkdir()
    _, _, (commit_calls,) = run_case(FaultCase([{}], [{}]), where / "one")
    for at in range(commit_calls, 0, -1):
        (where / str(at)).mkdir()
        disk, _, (_, recovery_calls) = run_case(
            FaultCase([{at: ("kill", "before")}, {}], [{}, {}]), where / str(at)
        )
        if not disk.done:
            return commit_calls, recovery_calls, at
    raise AssertionError("a commit that is killed at its first call is done")


def run_cases(cases, where):
    """Run cases; yield each with its problems and how it ended."""
    for number, case in enumerate(cases):
        directory = where / f"case-{number}"
        directory.mkdir()
        disk, ends, _ = run_case(case, directory)
        yield (
            case,
            tuple(find_problems(disk)),
            (*ends, "done" if disk.done else "not done", bool(disk.conflicts)),
        )
        shutil.rmtree(directory)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--cases", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        where = Path(name)
        counts = count_calls(where)
        rng = random.Random(chosen.seed)
        singles = list(list_single_faults(counts))
        more = (draw_case(rng, counts) for _ in range(max(0, chosen.cases - len(singles))))
        bad, total, ends, started = Counter(), 0, Counter(), time.process_time()
        for case, wrong, end in run_cases(itertools.chain(singles, more), where):
            total += 1
            ends[end[-2:]] += 1
            if wrong:
                bad.update(each.split(":")[0] for each in wrong)
                sys.stdout.write(f"{case}\n  {wrong}\n")
        seconds = time.process_time() - started
    sys.stdout.write(
        f"a commit makes {counts[0]} calls, a recovery {counts[1]}; {len(singles)} cases of one fault\n"
    )
    sys.stdout.write(f"{total} cases, {seconds:.0f} s CPU; {dict(ends)}; wrong: {dict(bad) or 'none'}\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
