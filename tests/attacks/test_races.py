"""A second process exchanges a folder with a link to outside as fast as it can, while the tools work.

Each race has a number of exchanges, and of calls during which one happened. Nothing outside may be read,
listed or changed, its secret may not appear in an answer, and the tools must do honest work now and then: a
tool that always refuses would win, too. A control that loses such a race: `test_corpus_interpreter.py`.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import pytest

from muniment.testing.corpus import Stage
from muniment.testing.corpus.judging import list_tree_changes
from muniment.testing.corpus.subjects import SandboxSubject
from muniment.testing.race import Swap, make_decoy
from muniment.testing.snapshots import find_text

CANARY = "canary-90e2"
OUTSIDE_NAME = "only-outside.md"
NOTES = 40
"""Honest files; an edit needs one that it has not proposed yet."""

EXCHANGES = 4_000
SLOW_EXCHANGES = 40_000
"""In each race; there are thirty, so 10^6 in all with --slow."""

OVERTAKEN = 25
HONEST = 10
"""Minimum of calls during which an exchange happened, and of calls that did honest work; without them a race
shows nothing. An idle machine reaches hundreds at once; on a busy one both sides take turns, which takes
longer.
"""


HONEST_WORK = {"read_file": "inside", "grep": "inside", "ls": "note-"}
HONEST_WORK |= {"write_file": "created", "edit": "changed"}
"""A part of an answer that shows the requested work."""

COMMITS = 5
"""Minimum of commits that succeeded, and of commits that failed; without them a race of commits shows
nothing.
"""


TARGETS = {
    "the folder": ("top/mid", "symlink", "mid"),
    "its parent": ("top", "symlink", ""),
    "the file": ("top/mid/note-00.md", "hardlink", "mid/note-00.md"),
}
"""The exchanged path, the kind of the exchange, and its target, relative to the scope and to outside."""

COMMIT_RACES = [("in-process", target_name) for target_name in TARGETS]
COMMIT_RACES += [("worker", "the folder"), ("worker", "its parent")]
RACES = [*itertools.product(("worker", "in-process"), HONEST_WORK, TARGETS)]


@dataclass
class RaceGround:
    """A memory with notes in a folder, and outside the same names with a secret in them."""

    stage: Stage
    answers: list[object] = field(default_factory=list)
    overtaken: int = 0
    """Calls during which there was an exchange."""

    def __post_init__(self):
        for top, word in (
            (self.stage.get_scope_path("user") / "top", "inside"),
            (self.stage.outside, CANARY),
        ):
            folder = top / "mid"
            folder.mkdir(parents=True)
            for number in range(NOTES):
                (folder / f"note-{number:02}.md").write_text(f"word {word}\n")
        (self.stage.outside / "mid" / OUTSIDE_NAME).write_text(f"word {CANARY}\n")

    def swap(self, target_name):
        path, kind, target = TARGETS[target_name]
        decoy = make_decoy(self.stage.aside / "decoy", kind, self.stage.outside / target)
        return Swap(self.stage.get_scope_path("user") / path, decoy)

    def record_answer(self, swap, act):
        """Return the answer of `deed`, and store it for the search."""
        before = swap.exchanges
        answer = act()
        self.overtaken += swap.exchanges > before
        self.answers.append(answer)
        return answer

    def find_problems(self, before, *, written):
        """Return the problems of the race."""
        own = {"said": self.answers, "user": self.stage.get_scope_path("user"), "state": self.stage.state}
        leaks = find_text(CANARY, own) + find_text(OUTSIDE_NAME, {"said": self.answers})
        return (
            list_tree_changes(before, self.stage.take_snapshot(), roots=not written, is_swapped=True)
            + leaks[:3]
        )


@pytest.fixture
def ground(tmp_path):
    return RaceGround(Stage(tmp_path / "case", CANARY))


def open_subject(ground, mode):
    return SandboxSubject(ground.stage, {}, in_process=mode == "in-process")


def make_arguments(tool, number):
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
@pytest.mark.parametrize(("mode", "tool", "target_name"), RACES)
def test_no_tool_reads_or_writes_outside_in_a_race(request, ground, mode, tool, target_name):
    exchanges = SLOW_EXCHANGES if request.config.getoption("--slow") else EXCHANGES
    done = Counter()

    def enough():
        return ground.overtaken >= OVERTAKEN and done["honest"] >= HONEST

    attacker = ground.swap(target_name)
    before = ground.stage.take_snapshot()
    with attacker as swap:
        subject = open_subject(ground, mode)
        for number in swap.rounds(exchanges=exchanges, enough=enough):
            answer = ground.record_answer(
                swap, partial(subject.call, tool, make_arguments(tool, number % NOTES))
            )
            done["honest"] += answer.verdict == "allow" and HONEST_WORK[tool] in answer.text
            if number % NOTES == NOTES - 1:  # All notes are proposed.
                ground.answers.append(subject.close())
                subject = open_subject(ground, mode)
        ground.answers.append(subject.close())
    assert swap.exchanges >= exchanges
    assert ground.find_problems(before, written=False) == []


@pytest.mark.sweep(1)
@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize(("mode", "target_name"), COMMIT_RACES)
def test_racing_commit_is_whole_or_absent_and_inside(ground, mode, target_name):
    committed, unknown, ends = set(), set(), Counter()

    def enough():
        return ground.overtaken >= COMMITS <= ends[None] and ends.total() - ends[None] >= COMMITS

    attacker = ground.swap(target_name)
    before = ground.stage.take_snapshot()
    with attacker as swap:
        for number in swap.rounds(exchanges=EXCHANGES, enough=enough):
            subject = open_subject(ground, mode)
            new = f"user/top/mid/new-{number}.md"
            for path in ("user/top/mid/note-00.md", new):
                subject.call("write_file", {"path": path, "content": f"round {number}\n"})
            proposed = {change.path for change in subject.sandbox.changes()}
            if proposed:
                done = ground.record_answer(swap, subject.commit)
                ends[done.error] += 1
                if done.error is None and new in proposed:
                    committed.add(new)
                if done.error == "managed_memory_unavailable":
                    unknown.add(new)  # The rollback failed.
            ground.answers.append(subject.close())
    assert swap.exchanges >= EXCHANGES
    assert ground.find_problems(before, written=True) == []
    found = (ground.stage.get_scope_path("user") / "top" / "mid").glob("new-*.md")
    assert {f"user/top/mid/{path.name}" for path in found} - unknown == committed - unknown
