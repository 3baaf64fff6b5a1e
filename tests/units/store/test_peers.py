"""Programs that edit the memory while commits run, and ask nobody: none of their edits is lost unseen.

They put whole files into place, as editors do. What a program writes into a file that it opened before a
commit replaced it goes where that file went: `muniment.confine.writing` says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest

from kit.store.ground import STRICT, laid_out, sha
from muniment.errors import StoreConflict
from muniment.store.ledger import commits
from muniment.store.upkeep import verify
from muniment.tools.overlay import Proposed

FILES = 120

PEER = """
import random, sys, time
from pathlib import Path
root = Path(sys.argv[1])
chosen = random.Random(7)
for number, line in enumerate(sys.stdin):
    name = line.strip()
    until = time.perf_counter() + chosen.uniform(0, 0.008)  # somewhere within the commit
    while time.perf_counter() < until:
        pass
    data = f"the peer's edit of {name}\\n".encode()
    if number % 3:  # as most editors do
        spare = root / "t" / f".{name}.swp"
        spare.write_bytes(data)
        spare.rename(root / "t" / name)
    else:
        (root / "t" / f"peer-{number}.md").write_bytes(data)
    print(name, flush=True)
"""


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        (tmp_path / "user" / "t").mkdir()
        for number in range(FILES):
            (tmp_path / "user" / "t" / f"f{number}.md").write_bytes(b"# F\nfirst\n")
        yield made


@pytest.mark.threat("T-RUN-08", control="claimed_files")
def test_an_edit_of_a_peer_is_kept_or_was_seen_by_the_commit_that_replaced_it(ground):
    """Each file is edited by the peer once; a commit that replaced that edit has it as its before-state."""
    names = [f"f{number}.md" for number in range(FILES)]
    conflicts = 0
    with subprocess.Popen(
        [sys.executable, "-c", PEER, ground.user], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        for number, name in enumerate(names):
            first = (ground.user / "t" / name).read_bytes()
            print(name, file=peer.stdin, flush=True)
            try:
                ground.commit(Proposed(f"user/t/{name}", sha(first), b"# F\nours %d\n" % number))
            except StoreConflict:
                conflicts += 1
            assert peer.stdout.readline() == f"{name}\n"
        peer.stdin.close()
    known = defaultdict(set)
    for kept in commits(ground.state):
        for item in kept.changes:
            known[item.rel].add(item.before)
    for at, name in enumerate(names):
        theirs = f"the peer's edit of {name}\n".encode()
        if at % 3 == 0:
            assert (ground.user / "t" / f"peer-{at}.md").read_bytes() == theirs
            continue
        standing = (ground.user / "t" / name).read_bytes()
        assert standing == theirs or theirs in known[f"t/{name}"]
    assert 0 < conflicts < FILES
    assert not list(ground.user.rglob(".muniment-*"))
    ground.commit(Proposed("user/last.md", None, b"last\n"))
    assert verify(ground.state, ground.roots["user"], STRICT).problems == ()


def test_names_that_a_peer_takes_are_theirs(ground):
    """A peer creates what a commit is about to create: either the commit conflicts, or it was first."""
    program = """
import sys
from pathlib import Path
root = Path(sys.argv[1])
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    try:
        with (root / f"n{number}.md").open("xb") as file:
            file.write(b"the peer's")
        print(number, flush=True)
    except FileExistsError:
        pass
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, ground.user / "t", "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        ours = set()
        peer.stdin.write("go\n")
        peer.stdin.flush()
        for number in range(59, -1, -1):
            try:
                ground.commit(Proposed(f"user/t/n{number}.md", None, b"ours\n"))
            except StoreConflict:
                continue
            ours.add(number)
        theirs = {int(line) for line in peer.stdout.read().split()}
    assert ours | theirs == set(range(60))
    assert not ours & theirs
    for number in range(60):
        expected = b"ours\n" if number in ours else b"the peer's"
        assert (ground.user / "t" / f"n{number}.md").read_bytes() == expected
