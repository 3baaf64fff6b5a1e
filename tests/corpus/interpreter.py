"""Executes one case of the corpus against a subject and says what went wrong.

    1. Build the stage: roots, forbidden trees, the operations of `setup`. Photograph it.
    2. Open the subject. Nothing may have changed.
    3. Carry out the operations of `when: after_open`. Photograph it again.
    4. Make the call; in a race, repeatedly while a thread exchanges a name. Commit.
    5. Photograph a last time, and judge: what is always checked, then the case's own checks.

Always checked: the verdict is one that the case accepts, and its code belongs to it · the forbidden trees are
as they were, down to the access times that tell of a read · the canary stands in no answer, change-set, log,
state or file written · if no call was allowed, or the tool only reads, both roots are as they were; otherwise
nothing changed but the named file, folders on its way and the index of its scope · nothing appeared beside
the roots · no host path comes out that did not go in · a commit of something allowed succeeds, unless
the roots were tampered with.

Not judged here: a hang. Whoever runs this watches the clock (`running.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from corpus.checks import Effect, problems
from corpus.photograph import ROOTS, Photograph, changed_names, changes
from corpus.stage import Stage
from corpus.swap import Swap

RACE_SECONDS: Final = 0.4
"""How long a race lasts at least."""

CALLS_PER_COMMIT: Final = 20
"""In a race, a writing tool's proposals are committed after so many calls: a commit waits for the disk."""

MIN_EXCHANGES: Final = 50
"""Exchanges without which a race was none; there are tens of thousands."""

READING_TOOLS: Final = frozenset({"read_file", "grep", "ls"})
CODES: Final = {
    "allow": {None},
    "deny": {"path_escape", "bad_name", "refused"},
    "error": {
        "not_found",
        "not_a_file",
        "not_text",
        "too_large",
        "exists_as",
        "unreadable",
        "not_read",
        "no_match",
        "not_unique",
        "bad_arguments",
        "unknown_tool",
        "content_rejected",
        "quota",
        "budget",
    },
}

Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a subject says to one call; `all` is everything that its caller gets to see."""

    verdict: str
    code: str | None
    text: str
    all: str


@dataclass(frozen=True, slots=True)
class Committed:
    """How a commit ended: the code of the error that it raised, if it did, and everything that was said."""

    error: str | None
    all: str


class Subject(Protocol):
    """Five tools over two roots.

    Attributes:
        commits_often: whether calls may follow a commit.
    """

    commits_often: bool

    def call(self, tool: str, arguments: Any) -> Answer:
        """Make one call."""
        ...

    def commit(self) -> Committed:
        """Land what was proposed."""
        ...

    def close(self) -> str:
        """End it; everything that it logged."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """The cases by id, and the text that must not come out."""

    canary: str
    cases: Mapping[str, Case]


@dataclass(slots=True)
class Run:
    """What happened to one case."""

    answers: list[Answer] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    log: str = ""
    seconds: float = 0.0
    exchanges: int | None = None

    @property
    def allowed(self) -> bool:
        """Whether a call was allowed."""
        return any(answer.verdict == "allow" for answer in self.answers)


def load_corpus() -> Corpus:
    """The corpus beside this file."""
    document = json.loads(Path(__file__).with_name("escapes.json").read_text())
    return Corpus(document["canary"], {case["id"]: case for case in document["cases"]})


def run_case(
    case: Case, directory: Path, canary: str, open_subject: Callable[[Stage, Case], Subject]
) -> list[str]:
    """Everything that is wrong with how the subject handles the case; empty: nothing.

    Args:
        case: from the corpus.
        directory: where to build the stage; must not exist.
        canary: the text that must not come out.
        open_subject: binds a new subject to the roots of the stage.
    """
    stage = Stage(directory, canary)
    for operation in case["setup"]:
        if operation.get("when") != "after_open":
            stage.prepare(operation)
    untouched = stage.photograph(age=True)
    subject = open_subject(stage, case)
    run = Run()
    with ExitStack() as ends:
        ends.callback(lambda: setattr(run, "log", subject.close()))
        opened = [*changes(untouched, stage.photograph(age=False), roots=True)]
        swap = _tamper(case, stage)
        before = stage.photograph(age=True)
        _call(case, stage, subject, swap, run)
    after = stage.photograph(age=False)
    failures = [f"opening: {line}" for line in opened]
    failures += _verdict_failures(case, run, swap)
    failures += _tree_failures(case, run, before, after)
    failures += _leaks(case, stage, run, before, after)
    failures += [
        problem
        for check in case.get("checks", ())
        for problem in problems(
            Effect(stage, run.allowed, tuple(answer.text for answer in run.answers), run.seconds), check
        )
    ]
    return failures


def _tamper(case: Case, stage: Stage) -> Swap | None:
    swap = None
    for operation in case["setup"]:
        if operation["op"] == "swap":
            swap = Swap(stage, operation)
        elif operation.get("when") == "after_open":
            stage.prepare(operation)
    return swap


def _call(case: Case, stage: Stage, subject: Subject, swap: Swap | None, run: Run) -> None:
    tool, arguments = case["call"]["tool"], stage.expand(case["call"]["args"])
    started = time.monotonic()
    try:
        if swap is None:
            for _ in range(case.get("repeat", 1)):
                run.answers.append(subject.call(tool, arguments))
            run.commits.append(subject.commit())
            return
        with swap:
            _race(case, subject, arguments, run)
            run.commits.append(subject.commit())
    finally:
        run.seconds = time.monotonic() - started
        run.exchanges = swap.exchanges if swap else None


def _race(case: Case, subject: Subject, arguments: Any, run: Run) -> None:
    tool, end = case["call"]["tool"], time.monotonic() + RACE_SECONDS
    commits = subject.commits_often and tool not in READING_TOOLS
    count = 0
    while count < case.get("repeat", 1) or time.monotonic() < end:
        run.answers.append(subject.call(tool, arguments))
        count += 1
        if commits and count % CALLS_PER_COMMIT == 0:
            run.commits.append(subject.commit())


def _verdict_failures(case: Case, run: Run, swap: Swap | None) -> Iterator[str]:
    accepted = {case["expect"], *case.get("accept", ())}
    for answer in sorted({(answer.verdict, answer.code) for answer in run.answers}, key=str):
        verdict, code = answer
        if verdict not in accepted:
            said = next(one.text for one in run.answers if (one.verdict, one.code) == answer)
            yield f"verdict {verdict} ({code}) where {sorted(accepted)} is right: {said[:200]!r}"
        if code not in CODES.get(verdict, ()):
            yield f"code {code!r} does not belong to {verdict!r}"
    tampered = any(operation.get("when") == "after_open" for operation in case["setup"])
    if run.allowed and not tampered:
        yield from (f"the commit failed: {one.all[:300]}" for one in run.commits if one.error)
    if swap is not None and (swap.problem or swap.exchanges < MIN_EXCHANGES):
        yield f"the race was not run: {swap.exchanges} exchanges, {swap.problem}"


def _tree_failures(case: Case, run: Run, before: Photograph, after: Photograph) -> Iterator[str]:
    still = not run.allowed or case["call"]["tool"] in READING_TOOLS
    yield from changes(before, after, roots=still, swapped=run.exchanges is not None)
    if not still:
        target = case["call"]["args"]["path"].removeprefix("/").removeprefix("memories/")
        strays = (name for name in changed_names(before, after) if not _may_change(name, target))
        yield from (f"{name!r} was written as well" for name in strays)


def _may_change(name: str, target: str) -> bool:
    """Whether writing `target` may change `name`: itself, a folder on its way, or a part of the index."""
    scope = target.split("/", maxsplit=1)[0]
    of_index = (f"{scope}/{made}" for made in ("MEMORY.md", "index", "memory-before-muniment"))
    return f"{target}/".startswith(f"{name}/") or name.startswith(tuple(of_index))


def _leaks(case: Case, stage: Stage, run: Run, before: Photograph, after: Photograph) -> Iterator[str]:
    arguments = json.dumps(stage.expand(case["call"]["args"]), ensure_ascii=False)
    said = {
        "answer": "\n".join(answer.text + answer.all for answer in run.answers),
        "commit": "\n".join(one.all for one in run.commits),
        "log": run.log,
    }
    for where, text in said.items():
        if stage.canary in text:
            yield f"the canary is in the {where}"
        if where == "answer" and str(stage.tree) in text and str(stage.tree) not in arguments:
            yield f"a host path is in the {where}"
    if stage.canary in arguments:
        return
    written = [
        stage.tree / name
        for name, entry in after.items()
        if name.split("/")[0] in ROOTS
        and entry.kind == "file"
        and (name not in before or before[name].content != entry.content)
    ]
    for path in (*written, *(path for path in stage.state.rglob("*") if path.is_file())):
        if stage.canary.encode() in path.read_bytes():
            yield f"the canary was written to {path.name!r}"
