"""Two real processes on one memory: what was acknowledged is there once, and the index is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kit.store.ground import laid_out
from kit.where import TESTS
from muniment.testing.corpus.index_oracle import index_problems

COMMITTER = """
import json, sys
from muniment.confine.binding import bind_all
from muniment.errors import StoreConflict
from muniment.tools.overlay import ChangeSet, Claim, Proposed, digest
from muniment.names import Trust
from muniment.store.commit import Terms, commit
from muniment.store.state import State
from muniment.store.trust import constant
from kit.store.ground import STRICT, new, origin, patience
from pathlib import Path

me, base, home, count = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
root = base / "user"
log = root / "topic" / "log.md"
acknowledged, conflicts = [], 0
sys.stdin.readline()
with bind_all({"user": root})["user"] as bound, State(home) as state:
    owner = constant(Trust.OWNER)
    for number in range(count):
        fact = f"{me}-{number}"
        while True:
            before = log.read_bytes()
            edit = Proposed("user/topic/log.md", digest(before), before + fact.encode() + b"\\n")
            changes = new(f"user/topic/{fact}.md", f"# {fact}\\nfact\\n".encode()), edit
            claims = Claim("user/topic/log.md", digest(before)), Claim(changes[0].unsafe_path, None)
            try:
                terms = Terms(STRICT, {"user": bound}, patience(50), state, origin(), owner)
                commit([ChangeSet(changes, claims)], terms)
            except StoreConflict:
                conflicts += 1
            else:
                acknowledged.append(fact)
                break
print(json.dumps([acknowledged, conflicts]))
"""

REMEMBERER = """
import json, sys
import muniment
me, base, home, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
paths = []
sys.stdin.readline()
roots = {"user": f"{base}/user", "project": f"{base}/project"}
with muniment.open(workspace=base, roots=roots, home=home) as memory:
    for number in range(count):
        fact = f"The user prefers the editor called {me}{number} for language number {me}{number}"
        result = memory.remember(fact, scope="user")
        assert result.files_touched and not result.unchanged, result
        paths.append([fact, result.files_touched[0]])
print(json.dumps(paths))
"""


def together(program, base, homes, count):
    """Run `program` in two processes that start at the same time; what each printed."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, me, base, base / f"home-{home}", str(count)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for me, home in zip(("one", "two"), homes, strict=True)
    ]
    try:
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=55) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert [(process.returncode, error) for process, (_, error) in zip(both, printed, strict=True)] == [
        (0, "")
    ] * 2
    return [json.loads(output) for output, _ in printed]


def files(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


HOMES = pytest.mark.parametrize("homes", [("one", "one"), ("one", "two")], ids=["one home", "two homes"])


@pytest.mark.sweep(1)
@HOMES
def test_every_acknowledged_commit_of_two_processes_is_there_exactly_once(ground, homes):
    (ground.user / "topic" / "log.md").write_bytes(b"")
    said = together(COMMITTER, ground.base, homes, 30)
    facts = [f"{me}-{number}" for me in ("one", "two") for number in range(30)]
    assert [fact for acknowledged, _ in said for fact in acknowledged] == facts
    assert sorted((ground.user / "topic" / "log.md").read_text().split()) == sorted(facts)
    entries = {"a.md", "topic/t.md", "topic/log.md", *(f"topic/{fact}.md" for fact in facts)}
    assert files(ground.user) == {*entries, "MEMORY.md"}
    assert {(ground.user / f"topic/{fact}.md").read_text() for fact in facts} == {
        f"# {fact}\nfact\n" for fact in facts
    }
    assert list(index_problems((ground.user / "MEMORY.md").read_bytes(), entries)) == []


@pytest.mark.sweep(1)
@HOMES
def test_facts_that_two_processes_remember_are_all_there_exactly_once(ground, homes):
    said = [pair for each in together(REMEMBERER, ground.base, homes, 6) for pair in each]
    assert len({path for _, path in said}) <= len(said) == 12
    texts = {path: (ground.user / path).read_text() for path in files(ground.user) if path != "MEMORY.md"}
    for fact, path in said:
        assert texts[path.removeprefix("user/")].count(fact) >= 1
        bodies = [text.split("\n---\n", 1)[-1] for text in texts.values()]
        assert sum(body.count(fact) for body in bodies) == 1, fact
    assert list(index_problems((ground.user / "MEMORY.md").read_bytes(), set(texts))) == []
    assert not [path for path in ground.contents() if ".tmp" in path]
