"""Throwaway memories: roots, policies based on a strict one, and a snapshot of everything under them."""

from __future__ import annotations

import gc
import os
import stat
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from kit.sandbox.machine import HAS_FENCE
from muniment.kernel.decide import Changes, ConfinementRequirement, Layer, Limits, Rule
from muniment.kernel.names import Enforcement, Scope, Verb
from muniment.kernel.root import Root, choose_resolver
from muniment.policy.load import load_policy

SCOPES = (Scope("user"), Scope("project"))
CANARY = "canary-7f3a"
WORKER_CONFINEMENT = Enforcement.FULL if HAS_FENCE else Enforcement.PARTIAL
"""The confinement that the kernel of this machine supports; `tests/units/sandbox/test_fence.py` verifies it.
"""


def make_roots(base):
    """Create private roots `user` and `project` under `base`, and an `outside` whose files contain the
    canary.
    """
    roots = {scope: base / scope for scope in SCOPES}
    for directory in (*roots.values(), base / "outside"):
        directory.mkdir(mode=0o700, parents=True)
    (base / "outside" / "secret.md").write_text(f"{CANARY}\n")
    return roots


def write_file(root, rel, content="text\n"):
    """Write a file with its directories."""
    path = Path(root) / rel
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def take_snapshot(*directories):
    """Return mode, inode, time, and target or bytes of every name: everything an attacker could change."""
    found = {}
    for top in directories:
        for where, names, files in os.walk(top):
            for name in (*names, *files, "."):
                path = Path(where) / name
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    content = path.read_bytes()
                elif stat.S_ISLNK(status.st_mode):
                    content = os.fsencode(path.readlink())
                else:
                    content = b""
                found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return found


def read_tree(*directories):
    """Return every path in directories, with the bytes of each file; a missing directory has no paths."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for directory in directories
        for path in [directory, *directory.rglob("*")]
        if path.exists()
    }


@cache
def load_shipped_policy(name):
    """Load a built-in policy, once."""
    return load_policy(name)


def make_strict_policy(
    *, require="partial", on_escape="abort", conflict="retry", deny=(), allow=(), **changes
):
    """Build a variant of the strict policy. `deny` and `allow` are (verbs, paths) pairs."""
    policy = load_shipped_policy("strict")
    (layer,) = policy.layers
    more = {
        kind: tuple(
            Rule(id=f"test-{kind}-{number}", verbs=tuple(map(Verb, verbs)), paths=tuple(paths))
            for number, (verbs, paths) in enumerate(rules)
        )
        for kind, rules in (("deny", deny), ("allow", allow))
    }
    limits = asdict(policy.limits) | changes.pop("limits", {})
    update = {
        "confinement": ConfinementRequirement(require=Enforcement(require), on_escape=on_escape),
        "changes": Changes(conflict=conflict),
        "limits": Limits(**limits),
        "layers": (
            Layer(name="test", allow=(*layer.allow, *more["allow"]), deny=(*layer.deny, *more["deny"])),
        ),
        **changes,
    }
    return replace(policy, **update)


def count_descriptors():
    """Count the open descriptors of this process after collecting garbage of earlier tests."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def open_roots(roots):
    """Open roots as a worker does. The descriptors stay open until the process ends."""
    resolver = choose_resolver()
    return {
        scope: Root(scope, os.open(path, os.O_PATH | os.O_DIRECTORY), resolver)
        for scope, path in roots.items()
    }
