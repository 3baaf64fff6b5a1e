"""Several real processes on one memory: what was acknowledged is there once, and the index is exact."""

from __future__ import annotations

import pytest

from kit.store.processes import at_once
from muniment.store import audit
from muniment.store.state import State
from muniment.testing.corpus.index_oracle import memory_problems

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
