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
description = "Everything in both scopes, but for what each test takes away."
scopes = { user = { trust = "owner", commit = "auto" }, project = { trust = "workspace", commit = "auto" } }
allow = [
{ id = "all", verbs = ["list", "read", "create", "modify"], paths = ["/**"], why = "tests" }
]
content = { reject = ["control", "bidi", "tag-chars", "zero-width", "ansi"] }
"""


def lax(*, max_file_bytes=1 << 20, max_files=100, max_total_bytes=1 << 26, **limits):
    """A policy that grants everything, with the limits asked for."""
    quota = {"max_file_bytes": max_file_bytes, "max_files": max_files, "max_total_bytes": max_total_bytes}
    spelled = [", ".join(f"{name} = {value}" for name, value in each.items()) for each in (limits, quota)]
    more = 'limits = {{ {} }}\nquota = [{{ id = "all", paths = ["/**"], {} }}]\n'.format(*spelled)
    return parse_policy(LAX + more, where="lax", parents=lambda name: name)


class Proposed(NamedTuple):
    """A file in a worker's words."""

    path: str
    base: str | None
    content: bytes


class Claim(NamedTuple):
    """What a worker says that it read, or what goes."""

    path: str
    digest: str | None


SCOPES = ("user", "project")


def change_set(changes=(), claims=(), removals=(), scopes=SCOPES):
    """A change-set in words: as a worker's is read, and files that go besides."""
    read = read_proposal(tuple(changes), tuple(claims), scopes)
    gone = tuple(FileChange(canonicalise(path, scopes), base, None) for path, base in removals)
    return ChangeSet((*read.changes, *gone), read.claims)


def trusted(whole, trusts):
    """A change-set of which each file has the trust that is said of its path."""
    changes = (replace(each, trust=trusts.get(each.path.text)) for each in whole.changes)
    return replace(whole, changes=tuple(changes))


def sha(content):
    return hashlib.sha256(content).hexdigest()


def new(path, content=b"new\n"):
    return Proposed(path, None, content)


def claim(path, content):
    """A claim that `path` holds `content`; None: that nothing is there."""
    return Claim(path, None if content is None else sha(content))


def by(task=None, **more):
    """The owner's own edit."""
    kept = {"kind": "edit", "at": "2026-11-22T10:00:00.000Z", "trust": Trust.OWNER, **more}
    return Run(task or f"edit-{new_ulid()}", decided_by="tests", policy="tests@0", **kept)


def patience(seconds=30.0, cancel=None):
    return Patience(time.monotonic() + seconds, cancel)


@dataclass(frozen=True)
class Ground:
    """`user` and `project` are roots; `outside` is nobody's."""

    base: Path
    roots: dict
    state: State
    user = property(lambda self: self.base / "user")
    project = property(lambda self: self.base / "project")
    outside = property(lambda self: self.base / "outside")

    def edit(self, path, content=b"edited\n"):
        """A proposal to replace what is there now."""
        return Proposed(path, sha((self.base / path).read_bytes()), content)

    def terms(self, policy=STRICT, **more):
        kept = {"patience": patience(), "state": self.state, "run": by()}
        return Terms(policy, self.roots, **{**kept, "trust": constant(Trust.OWNER), **more})

    def commit(self, *changes, claims=(), removals=(), policy=STRICT, **more):
        return commit([change_set(changes, claims, removals, self.roots)], self.terms(policy, **more))

    def photograph(self):
        """Everything about every name: what must be the same where nothing may have happened."""
        return photograph(self.base)

    def gone(self, path):
        """A claim to remove what `laid_out` put there."""
        return claim(path, STANDING[path])

    def contents(self):
        """Names and bytes only: what must be the same once something was taken back."""
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
    """Both roots bound."""
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
    """Both roots bound, with an entry, a topic and its entry in `user`, and an outside tree."""
    lay(base, {**STANDING, "outside/secret.md": b"secret\n"})
    return opened(base, None, opening)
