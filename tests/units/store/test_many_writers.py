"""Several real processes remember at once: what each was told is saved is there once, and in the index."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kit.store.ground import laid_out
from kit.where import TESTS
from muniment.testing.corpus.index_oracle import memory_problems

WRITER = """
import json, sys
import muniment
me, base, home, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
roots = {"user": f"{base}/user", "project": f"{base}/project"}
saved = []
with muniment.open(workspace=base, roots=roots, home=home) as memory:
    memory.remember(f"Warm-up of the process {me}", scope="project")
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for number in range(count):
        fact = f"The user calls plant number {number} of shelf {me} by a name of its own"
        result = memory.remember(fact, scope="user")
        saved.append([fact, list(result.files_touched)])
sys.stdout.write(json.dumps(saved))
"""


def together(base, homes, count):
    """What each process was told is saved; `homes` says how many there are, and whose home each has."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number), base, base / f"home-{home}", str(count)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, home in enumerate(homes)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        said = [json.loads(writer.communicate(timeout=280)[0]) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * len(writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    return said


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


@pytest.mark.sweep(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("homes", "count"),
    [
        ("aabb", 15),
        pytest.param("aa", 200, marks=pytest.mark.slow),
        pytest.param("ab", 200, marks=pytest.mark.slow),
        pytest.param("aaaa", 200, marks=pytest.mark.slow),
        pytest.param("aabb", 200, marks=pytest.mark.slow),
    ],
)
def test_every_fact_that_was_acknowledged_is_there_exactly_once_and_the_index_is_exact(ground, homes, count):
    said = together(ground.base, homes, count)
    found = {
        str(path.relative_to(ground.user)): path.read_text()
        for path in ground.user.rglob("*.md")
        if path.name != "MEMORY.md" and path.parent.name != "index"
    }
    bodies = {rel: text.split("\n---\n", 1)[-1].strip() for rel, text in found.items()}
    facts = [fact for each in said for fact, _ in each]
    assert len(facts) == len(homes) * count
    for each in said:
        for fact, (path,) in each:
            assert bodies[path.removeprefix("user/")] == fact
    assert sorted(set(bodies.values()) - {"# A\nalpha", "# T\ntopic"}) == sorted(facts)
    assert len(bodies) == len(facts) + 2
    assert not list(ground.base.rglob(".muniment-*"))
    assert list(memory_problems(ground.user, set(found))) == []
