"""Several real processes on one memory: what was acknowledged is there once, and the index is exact.

Some are programs that ask nobody, and put whole files into place as editors do. What a program writes into a
file that it opened before a commit replaced it goes where that file went: `muniment.confine.writing` says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest

from kit.store.ground import STRICT, sha
from kit.store.processes import at_once
from muniment.errors import StoreConflict
from muniment.store import audit
from muniment.store.ledger import commits
from muniment.store.state import State
from muniment.store.upkeep import verify
from muniment.testing.corpus.index_oracle import memory_problems
from muniment.tools.overlay import Proposed

REMEMBERER = """
import json, sys
import muniment
me, base, home, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
saved, roots = [], {scope: f"{base}/{scope}" for scope in ("user", "project")}
with muniment.open(workspace=base, roots=roots, home=home) as memory:
    memory.remember(f"Warm-up of the process {me}", scope="project")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        fact = f"The user calls plant number {number} of shelf {me} by a name of its own"
        saved.append([fact, *memory.remember(fact, scope="user").files_touched])
print(json.dumps(saved))
"""


def texts_of(ground):
    """The entries of `user` by path, without front matter; the index is exact, and nothing is left."""
    paths = [
        path for path in ground.user.rglob("*.md") if path.name != "MEMORY.md" and path.parent.name != "index"
    ]
    found = {str(path.relative_to(ground.user)): path.read_text() for path in paths}
    assert list(memory_problems(ground.user, set(found))) == []
    assert not list(ground.base.rglob(".muniment-*"))
    return {rel: text.split("\n---\n", 1)[-1].strip() for rel, text in found.items()}


@pytest.mark.parametrize(
    ("homes", "count"),
    [("aa", 4), *(pytest.param(homes, 200, marks=pytest.mark.slow) for homes in ("ab", "aaaa", "aabb"))],
)
def test_every_fact_that_was_acknowledged_is_there_exactly_once_and_the_index_is_exact(ground, homes, count):
    """Those of one home have one key and one chain; `homes` says whose home each has."""
    where = [(me, ground.base, ground.base / f"home-{home}", count) for me, home in enumerate(homes)]
    said = [pair for each in at_once(*((REMEMBERER, *each) for each in where)) for pair in each]
    bodies = texts_of(ground)
    assert len(said) == len(homes) * count
    for home in ground.base.glob("home-*"):
        with State(home) as state:
            assert audit.verify(state).problems == ()
    assert {bodies[path.removeprefix("user/")] for _, path in said} == {fact for fact, _ in said}
    assert sorted(bodies.values()) == sorted([*(fact for fact, _ in said), "# A\nalpha", "# T\ntopic"])


PEER = """
import random, sys, time
from pathlib import Path
root, chosen = Path(sys.argv[1]), random.Random(7)
for number, line in enumerate(sys.stdin):
    name, until = line.strip(), time.perf_counter() + chosen.uniform(0, 0.008)  # somewhere within the commit
    while time.perf_counter() < until:
        pass
    if number % 3:  # as most editors do
        (root / f".{name}.swp").write_text(f"the peer's edit of {name}\\n")
        (root / f".{name}.swp").rename(root / name)
    else:
        (root / f"peer-{number}.md").write_text("the peer's")
    try:
        with (root / f"new-{name}").open("x") as file:
            file.write("the peer's")
    except FileExistsError:
        name = "taken"
    print(name, flush=True)
"""


@pytest.mark.threat("T-RUN-08", control="claimed_files")
def test_an_edit_of_a_peer_is_kept_or_was_seen_by_the_commit_that_replaced_it_and_its_names_are_its_own(
    ground,
):
    """Each file is edited by the peer once; a commit that replaced that edit has it as its before-state."""
    top, names, conflicts, ours, taken = (
        ground.user / "t",
        [f"f{number}.md" for number in range(60)],
        0,
        set(),
        set(),
    )
    top.mkdir()
    for name in names:
        (top / name).write_bytes(b"# F\nfirst\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PEER, top], **pipes) as peer:
        for name in names:
            changes = [Proposed(f"user/t/{name}", sha((top / name).read_bytes()), b"# F\nours\n")]
            print(name, file=peer.stdin, flush=True)
            for change in (*changes, Proposed(f"user/t/new-{name}", None, b"ours\n")):
                try:
                    ground.commit(change)
                    ours.add(change.unsafe_path)
                except StoreConflict:
                    conflicts += 1
            taken |= {name} if peer.stdout.readline() == "taken\n" else set()
        peer.stdin.close()
    known = defaultdict(set)
    for kept in commits(ground.state):
        for item in kept.changes:
            known[item.rel].add(item.before)
    for at, name in enumerate(names):
        theirs = f"the peer's edit of {name}\n".encode()
        if at % 3:
            assert (top / name).read_bytes() == theirs or theirs in known[f"t/{name}"]
        else:
            assert (top / f"peer-{at}.md").read_bytes() == b"the peer's"
        is_ours = f"user/t/new-{name}" in ours
        assert is_ours == (name in taken)
        assert (top / f"new-{name}").read_bytes() == (b"ours\n" if is_ours else b"the peer's")
    assert 0 < conflicts < 2 * len(names)
    assert not list(ground.user.rglob(".muniment-*"))
    ground.commit(Proposed("user/last.md", None, b"last\n"))
    assert verify(ground.state, ground.roots["user"], STRICT).problems == ()
