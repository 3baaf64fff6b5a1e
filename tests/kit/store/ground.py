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
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, read_proposal
from muniment.kernel.names import Trust
from muniment.kernel.path import canonicalise
from muniment.policy.load import load_policy, parse_policy
from muniment.store.commit import Terms, commit
from muniment.store.ledger import Run
from muniment.store.state import State
from muniment.store.trust import constant, new_ulid

STRICT = load_policy("strict")
STANDING = {
    "user/a.md": b"# A\nalpha\n",
    "user/topic/t.md": b"# T\ntopic\n",
    "project/p.md": b"# P\nproject\n",
}

LAX = """
schema = "muniment-policy/1"
name = "lax"
description = "Everything in both scopes, within the limits of each test."
scopes = { user = { trust = "owner", commit = "auto" }, project = { trust = "workspace", commit = "auto" } }
allow = [
{ id = "all", verbs = ["list", "read", "create", "modify"], paths = ["/**"], why = "tests" }
]
content = { reject = ["control", "bidi", "tag-chars", "zero-width", "ansi"] }
"""


def lax(*, max_file_bytes=1 << 20, max_files=100, max_total_bytes=1 << 26, **limits):
    """Return a policy that grants everything, with these limits."""
    quota = {"max_file_bytes": max_file_bytes, "max_files": max_files, "max_total_bytes": max_total_bytes}
    spelled = [", ".join(f"{name} = {value}" for name, value in each.items()) for each in (limits, quota)]
    more = 'limits = {{ {} }}\nquota = [{{ id = "all", paths = ["/**"], {} }}]\n'.format(*spelled)
    return parse_policy(LAX + more, where="lax", parents=lambda name: name)


class Proposed(NamedTuple):
    """A file as a worker proposes it."""

    path: str
    base: str | None
    content: bytes


class Claim(NamedTuple):
    """A claim of a worker about what it read, or a removal."""

    path: str
    digest: str | None


SCOPES = ("user", "project")


def change_set(changes=(), claims=(), removals=(), scopes=SCOPES):
    """Build a change set as read from a worker, with removals."""
    read = read_proposal(tuple(changes), tuple(claims), scopes)
    gone = tuple(FileChange(canonicalise(path, scopes), base, None) for path, base in removals)
    return ChangeSet((*read.changes, *gone), read.claims)


def trusted(whole, trusts):
    """Return the change set with the trust given for each path."""
    changes = (replace(each, trust=trusts.get(each.path.text)) for each in whole.changes)
    return replace(whole, changes=tuple(changes))


def sha(content):
    return hashlib.sha256(content).hexdigest()


def new(path, content=b"new\n"):
    return Proposed(path, None, content)


def claim(path, content):
    """Return a claim that `path` contains `content`; None: that it does not exist."""
    return Claim(path, None if content is None else sha(content))


def by(task=None, **more):
    """Return a run that is an edit by the owner."""
    kept = {"kind": "edit", "at": "2026-11-22T10:00:00.000Z", "trust": Trust.OWNER, **more}
    return Run(task or f"edit-{new_ulid()}", decided_by="tests", policy="tests@0", **kept)


def patience(seconds=30.0, cancel=None):
    return Patience(time.monotonic() + seconds, cancel)


@dataclass(frozen=True)
class Ground:
    """`user` and `project` are roots; `outside` is not part of the memory."""

    base: Path
    roots: dict
    state: State
    user = property(lambda self: self.base / "user")
    project = property(lambda self: self.base / "project")
    outside = property(lambda self: self.base / "outside")

    def edit(self, path, content=b"edited\n"):
        """Return a proposal to replace the current file."""
        return Proposed(path, sha((self.base / path).read_bytes()), content)

    def terms(self, policy=STRICT, **more):
        kept = {"patience": patience(), "state": self.state, "run": by()}
        return Terms(policy, self.roots, **{**kept, "trust": constant(Trust.OWNER), **more})

    def commit(self, *changes, claims=(), removals=(), policy=STRICT, **more):
        return commit([change_set(changes, claims, removals, self.roots)], self.terms(policy, **more))

    def photograph(self):
        """Return everything about every name, for comparisons after calls that must not change anything."""
        return photograph(self.base)

    def gone(self, path):
        """Return a claim to remove a file of `laid_out`."""
        return claim(path, STANDING[path])

    def contents(self):
        """Return names and bytes only, for comparisons after a rollback."""
        return {path: kept[2] for path, kept in self.photograph().items()}


def photograph(base):
    found = {}
    for path in base.rglob("*"):
        status = path.lstat()
        times = (status.st_mtime_ns, status.st_ino)
        if stat.S_ISLNK(status.st_mode):
            kept = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            kept = sha(path.read_bytes())
        else:
            kept, times = stat.filemode(status.st_mode)[0], (status.st_ino,)
        found[str(path.relative_to(base))] = (status.st_mode, times, kept, status.st_nlink)
    return found


@contextmanager
def opened(base, state, opening=State):
    """Bind both roots and open the state."""
    roots = bind_all({scope: base / scope for scope in ("user", "project")})
    try:
        with opening(state) as held:
            yield Ground(base, roots, held)
    finally:
        for root in roots.values():
            root.close()


def lay(base, files):
    for path, data in files.items():
        (base / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (base / path).write_bytes(data)


def laid_out(base, opening=State):
    """Open both roots, with an entry, a topic and its entry in `user`, and an outside tree."""
    lay(base, {**STANDING, "outside/secret.md": b"secret\n"})
    return opened(base, None, opening)
