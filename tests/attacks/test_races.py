"""A second process exchanges a folder with a link to outside as fast as it can, while the tools are at work.

Each race has so many exchanges, and calls that exchanges fell into. Nothing outside may be read, listed or
changed, its secret may not come out, and the tools must get their honest work done every now and then: a tool
that always refuses would win as well. A control that loses such a race: `test_corpus_interpreter.py`.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import pytest

from muniment.testing.corpus import Stage
from muniment.testing.corpus.judging import tree_changes
from muniment.testing.corpus.subjects import SandboxSubject
from muniment.testing.race import Swap, make_decoy
from muniment.testing.witness import sightings

CANARY = "canary-90e2"
OUTSIDE_NAME = "only-outside.md"
NOTES = 40
"""Honest files; an edit needs one that it has not proposed yet."""

EXCHANGES = 4_000
SLOW_EXCHANGES = 40_000
"""In each race; there are thirty, so 10^6 in all when they are run thoroughly."""

OVERTAKEN = 25
HONEST = 10
"""Calls that exchanges fell into, and calls that did honest work, without which a race shows nothing. On an
idle machine there are hundreds at once; on a busy one both sides take turns, and it takes longer."""


HONEST_WORK = {"read_file": "inside", "grep": "inside", "ls": "note-"}
HONEST_WORK |= {"write_file": "created", "edit": "changed"}
"""What an answer holds that did what was asked of it."""

COMMITS = 5
"""Commits that landed, and commits that did not, without which a race of commits shows nothing."""


PLACES = {
    "the folder": ("top/mid", "symlink", "mid"),
    "its parent": ("top", "symlink", ""),
    "the file": ("top/mid/note-00.md", "hardlink", "mid/note-00.md"),
}
"""What is exchanged, and with what: relative to the root of the scope, and to outside."""

COMMIT_RACES = [("in-process", place) for place in PLACES]
COMMIT_RACES += [("worker", "the folder"), ("worker", "its parent")]
RACES = [*itertools.product(("worker", "in-process"), HONEST_WORK, PLACES)]


@dataclass
class Ground:
    """A memory with notes in a folder, and outside the same names with a secret in them."""

    stage: Stage
    said: list[object] = field(default_factory=list)
    overtaken: int = 0
    """Calls during which there was an exchange."""

    def __post_init__(self):
        for top, word in ((self.stage.scope("user") / "top", "inside"), (self.stage.outside, CANARY)):
            folder = top / "mid"
            folder.mkdir(parents=True)
            for number in range(NOTES):
                (folder / f"note-{number:02}.md").write_text(f"word {word}\n")
        (self.stage.outside / "mid" / OUTSIDE_NAME).write_text(f"word {CANARY}\n")

    def swap(self, place):
        path, kind, target = PLACES[place]
        decoy = make_decoy(self.stage.aside / "decoy", kind, self.stage.outside / target)
        return Swap(self.stage.scope("user") / path, decoy)

    def hear(self, swap, deed):
        """What `deed` answers, kept to be searched."""
        before = swap.exchanges
        answer = deed()
        self.overtaken += swap.exchanges > before
        self.said.append(answer)
        return answer

    def problems(self, before, *, written):
        """What went wrong."""
        ours = {"said": self.said, "user": self.stage.scope("user"), "state": self.stage.state}
        leaks = sightings(CANARY, ours) + sightings(OUTSIDE_NAME, {"said": self.said})
        return tree_changes(before, self.stage.photograph(), roots=not written, swapped=True) + leaks[:3]


@pytest.fixture
def ground(tmp_path):
    return Ground(Stage(tmp_path / "case", CANARY))


def opened(ground, mode):
    return SandboxSubject(ground.stage, {}, in_process=mode == "in-process")


def arguments(tool, number):
    note, of_number = "user/top/mid/note-00.md", f"user/top/mid/note-{number:02}.md"
    return {
        "read_file": {"path": note},
        "grep": {"pattern": "word", "path": "user"},
        "ls": {"path": "user/top/mid"},
        "write_file": {"path": f"user/top/mid/new-{number}.md", "content": "new\n"},
        "edit": {"path": of_number, "old_string": "inside", "new_string": "changed"},
    }[tool]


@pytest.mark.sweep(3)
@pytest.mark.timeout(600)
@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize(("mode", "tool", "place"), RACES)
def test_no_tool_is_led_outside_by_who_is_faster(request, ground, mode, tool, place):
    exchanges = SLOW_EXCHANGES if request.config.getoption("--slow") else EXCHANGES
    done = Counter()

    def enough():
        return ground.overtaken >= OVERTAKEN and done["honest"] >= HONEST

    attacker = ground.swap(place)
    before = ground.stage.photograph()
    with attacker as swap:
        subject = opened(ground, mode)
        for number in swap.rounds(exchanges=exchanges, enough=enough):
            answer = ground.hear(swap, partial(subject.call, tool, arguments(tool, number % NOTES)))
            done["honest"] += answer.verdict == "allow" and HONEST_WORK[tool] in answer.text
            if number % NOTES == NOTES - 1:  # Nothing is pending any more.
                ground.said.append(subject.close())
                subject = opened(ground, mode)
        ground.said.append(subject.close())
    assert swap.exchanges >= exchanges
    assert ground.problems(before, written=False) == []


@pytest.mark.sweep(1)
@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize(("mode", "place"), COMMIT_RACES)
def test_no_commit_is_led_outside_and_each_lands_whole_or_not_at_all(ground, mode, place):
    landed, unknown, ends = set(), set(), Counter()

    def enough():
        return ground.overtaken >= COMMITS <= ends[None] and ends.total() - ends[None] >= COMMITS

    attacker = ground.swap(place)
    before = ground.stage.photograph()
    with attacker as swap:
        for number in swap.rounds(exchanges=EXCHANGES, enough=enough):
            subject = opened(ground, mode)
            new = f"user/top/mid/new-{number}.md"
            for path in ("user/top/mid/note-00.md", new):
                subject.call("write_file", {"path": path, "content": f"round {number}\n"})
            proposed = {change.path for change in subject.box.changes()}
            if proposed:
                done = ground.hear(swap, subject.commit)
                ends[done.error] += 1
                if done.error is None and new in proposed:
                    landed.add(new)
                if done.error == "managed_memory_unavailable":
                    unknown.add(new)  # It says what it could not take back.
            ground.said.append(subject.close())
    assert swap.exchanges >= EXCHANGES
    assert ground.problems(before, written=True) == []
    found = (ground.stage.scope("user") / "top" / "mid").glob("new-*.md")
    assert {f"user/top/mid/{path.name}" for path in found} - unknown == landed - unknown
