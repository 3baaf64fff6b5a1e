"""Two roots, an outside tree, and an oracle over them that shares no code with the subject."""

from __future__ import annotations

import hashlib
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, FileChange, read_proposal
from muniment.kernel.names import Trust
from muniment.kernel.path import canonicalise
from muniment.policy.load import load_policy, parse_policy
from muniment.store.commit import CommitOptions, commit
from muniment.store.ledger import Run
from muniment.store.state import State
from muniment.store.trust import build_constant_rule, generate_ulid

STRICT = load_policy("strict")
INITIAL_FILES = {
    "user/a.md": b"# A\nalpha\n",
    "user/topic/t.md": b"# T\ntopic\n",
    "project/p.md": b"# P\nproject\n",
}

LAX_POLICY = """
schema = "muniment-policy/1"
name = "lax"
description = "Everything in both scopes, within the limits of each test."
scopes = { user = { trust = "owner", commit = "auto" }, project = { trust = "workspace", commit = "auto" } }
allow = [
{ id = "all", verbs = ["list", "read", "create", "modify"], paths = ["/**"], why = "tests" }
]
content = { reject = ["control", "bidi", "tag-chars", "zero-width", "ansi"] }
"""


def make_lax_policy(*, max_file_bytes=1 << 20, max_files=100, max_total_bytes=1 << 26, **limits):
    """Return a policy that grants everything, with these limits."""
    quota = {"max_file_bytes": max_file_bytes, "max_files": max_files, "max_total_bytes": max_total_bytes}
    spelled = [", ".join(f"{name} = {value}" for name, value in each.items()) for each in (limits, quota)]
    more = 'limits = {{ {} }}\nquota = [{{ id = "all", paths = ["/**"], {} }}]\n'.format(*spelled)
    return parse_policy(LAX_POLICY + more, where="lax", parents=lambda name: name)


class ProposedFile(NamedTuple):
    """A file as a worker proposes it."""

    path: str
    base: str | None
    content: bytes


class Claim(NamedTuple):
    """A claim of a worker about what it read, or a removal."""

    path: str
    digest: str | None


SCOPES = ("user", "project")


def make_change_set(changes=(), claims=(), removals=(), scopes=SCOPES):
    """Build a change set as read from a worker, with removals."""
    read = read_proposal(tuple(changes), tuple(claims), scopes)
    removed = tuple(FileChange(canonicalise(path, scopes), base, None) for path, base in removals)
    return ChangeSet((*read.changes, *removed), read.claims)


def assign_trust(whole, trusts):
    """Return the change set with the trust given for each path."""
    changes = (replace(each, trust=trusts.get(each.path.text)) for each in whole.changes)
    return replace(whole, changes=tuple(changes))


def compute_digest(content):
    return hashlib.sha256(content).hexdigest()


def propose_new(path, content=b"new\n"):
    return ProposedFile(path, None, content)


def make_claim(path, content):
    """Return a claim that `path` contains `content`; None: that it does not exist."""
    return Claim(path, None if content is None else compute_digest(content))


def make_run(task=None, **more):
    """Return a run that is an edit by the owner."""
    fields = {"kind": "edit", "at": "2026-11-22T10:00:00.000Z", "trust": Trust.OWNER, **more}
    return Run(task or f"edit-{generate_ulid()}", decided_by="tests", policy="tests@0", **fields)


def make_deadline(seconds=30.0, cancel=None):
    return Deadline(time.monotonic() + seconds, cancel)


@dataclass(frozen=True)
class StoreBench:
    """`user` and `project` are roots; `outside` is not part of the memory."""

    base: Path
    roots: dict
    state: State
    user = property(lambda self: self.base / "user")
    project = property(lambda self: self.base / "project")
    outside = property(lambda self: self.base / "outside")

    def propose_edit(self, path, content=b"edited\n"):
        """Return a proposal to replace the current file."""
        return ProposedFile(path, compute_digest((self.base / path).read_bytes()), content)

    def make_options(self, policy=STRICT, **more):
        defaults = {"deadline": make_deadline(), "state": self.state, "run": make_run()}
        return CommitOptions(
            policy, self.roots, **{**defaults, "trust": build_constant_rule(Trust.OWNER), **more}
        )

    def commit(self, *changes, claims=(), removals=(), policy=STRICT, **more):
        return commit(
            [make_change_set(changes, claims, removals, self.roots)], self.make_options(policy, **more)
        )

    def take_snapshot(self):
        """Return everything about every name, for comparisons after calls that must not change anything."""
        return take_snapshot(self.base)

    def claim_removal(self, path):
        """Return a claim to remove a file of `create_store_bench`."""
        return make_claim(path, INITIAL_FILES[path])

    def read_contents(self):
        """Return names and bytes only, for comparisons after a rollback."""
        return {path: status[2] for path, status in self.take_snapshot().items()}


def take_snapshot(base):
    found = {}
    for path in base.rglob("*"):
        status = path.lstat()
        times = (status.st_mtime_ns, status.st_ino)
        if stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = compute_digest(path.read_bytes())
        else:
            content, times = stat.filemode(status.st_mode)[0], (status.st_ino,)
        found[str(path.relative_to(base))] = (status.st_mode, times, content, status.st_nlink)
    return found


@contextmanager
def open_store_bench(base, state, open_state=State):
    """Bind both roots and open the state."""
    roots = bind_all({scope: base / scope for scope in ("user", "project")})
    try:
        with open_state(state) as opened_state:
            yield StoreBench(base, roots, opened_state)
    finally:
        for root in roots.values():
            root.close()


def write_files(base, files):
    for path, data in files.items():
        (base / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (base / path).write_bytes(data)


def create_store_bench(base, open_state=State):
    """Open both roots, with an entry, a topic and its entry in `user`, and an outside tree."""
    write_files(base, {**INITIAL_FILES, "outside/secret.md": b"secret\n"})
    return open_store_bench(base, None, open_state)
