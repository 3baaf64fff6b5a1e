"""Judge every case: rules that apply in addition to its own checks.

- J1 every call of `first` was allowed. The case accepts the verdict of the call, and the code belongs to the
  verdict. A commit of an allowed change succeeds, unless the roots were tampered with.
- J2 the forbidden trees are unchanged, including the access times that reveal a read, and no new file exists
  next to the roots.
- J3 if no write was allowed, both roots are unchanged. Otherwise only the requested files, their parent
  folders and the index of their scopes changed. In a race a file may also have a second name, since it may
  have been exchanged during its replacement.
- J4 the canary is not in any answer, change set, log, state or written file, and the output contains no host
  path that was not in the input.
- J5 a race was real: the attacker was running.
"""

from __future__ import annotations

import base64
import json
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from muniment.testing.corpus.stage import (
    FORBIDDEN,
    ROOTS,
    Answer,
    Case,
    Committed,
    Failure,
    Kind,
    OpenSubject,
    Stage,
    Subject,
)
from muniment.testing.race import Swap
from muniment.testing.witness import Photograph, PhotographedName, differences, photograph, sightings

# -- checks ------------------------------------------------------------------------------------------
#
# The effects that a case may require, judged after the commit.

INDEX: Final = "MEMORY.md"
PAGES: Final = "index"
BRINGS_ABOUT: Final = frozenset({"file_equals", "b64_equals", "exists_if_allowed", "size", "in_output"})
"""The checks that require the purpose of a call. The others forbid side effects."""
OF_THE_INDEX: Final = frozenset({"index_safe", "index_targets", "index_contains", "index_line_max"})


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a case.

    Attributes:
        stage: its directories.
        allowed: whether a call was allowed.
        outputs: the text of every answer.
        seconds: wall clock of all calls and commits.
    """

    stage: Stage
    allowed: bool
    outputs: tuple[str, ...]
    seconds: float

    @property
    def output(self) -> str:
        """Return all answers."""
        return "\n".join(self.outputs)


Parameters = Mapping[str, Any]
Check = Callable[[Effect, Parameters], Iterator[str]]
CHECKS: Final = dict[str, Check]()
"""All checks by name, which is the name of the function."""


def _check(check: Check) -> Check:
    return CHECKS.setdefault(check.__name__[1:], check)


def problems(effect: Effect, check: Parameters) -> Iterator[Failure]:
    """Yield the failures of an effect under a check.

    Raises:
        KeyError: unknown check.
    """
    parameters = effect.stage.expand(check)
    name = check["check"]
    kind = Kind.EFFECT if name in BRINGS_ABOUT else Kind.INDEX if name in OF_THE_INDEX else Kind.MANNER
    for problem in CHECKS[name](effect, parameters):
        yield Failure(kind, f"{name}: {problem}")


@_check
def _file_equals(_effect: Effect, check: Parameters) -> Iterator[str]:
    yield from _holds(Path(check["path"]), check["content"].encode())


@_check
def _b64_equals(_effect: Effect, check: Parameters) -> Iterator[str]:
    yield from _holds(Path(check["path"]), base64.b64decode(check["content_b64"]))


def _holds(path: Path, wanted: bytes) -> Iterator[str]:
    if path.is_symlink() or not path.is_file():
        yield f"no file {path.name!r}"
    elif (found := path.read_bytes()) != wanted:
        yield f"{path.name!r} contains {found[:80]!r}, not {wanted[:80]!r}"


@_check
def _not_in_file(_effect: Effect, check: Parameters) -> Iterator[str]:
    path = Path(check["path"])
    if path.is_file() and check["text"].encode() in path.read_bytes():
        yield f"{path.name!r} contains {check['text']!r}"


@_check
def _absent(_effect: Effect, check: Parameters) -> Iterator[str]:
    if _exists(check["path"]):
        yield f"{check['path']!r} exists"


@_check
def _exists_if_allowed(effect: Effect, check: Parameters) -> Iterator[str]:
    if effect.allowed and not _exists(check["path"]):
        yield f"{check['path']!r} does not exist"


def _exists(path: str) -> bool:
    try:
        Path(path).lstat()
    except (OSError, ValueError):
        return False
    return True


@_check
def _in_output(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"] not in effect.output:
        yield f"no {check['text']!r} in {effect.output[:200]!r}"


@_check
def _not_in_output(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"] in effect.output:
        yield f"{check['text']!r} is in the output"


@_check
def _output_utf8(effect: Effect, _check: Parameters) -> Iterator[str]:
    try:
        effect.output.encode()
    except UnicodeEncodeError:
        yield "an answer is not Unicode text"


@_check
def _output_max(effect: Effect, check: Parameters) -> Iterator[str]:
    longest = max(len(text.encode("utf-8", "surrogatepass")) for text in effect.outputs)
    if longest > check["value"]:
        yield f"an answer has {longest} bytes"


@_check
def _max_seconds(effect: Effect, check: Parameters) -> Iterator[str]:
    if effect.seconds > check["value"]:
        yield f"took {effect.seconds:.1f} s"


@_check
def _mode_max(_effect: Effect, check: Parameters) -> Iterator[str]:
    mode = stat.S_IMODE(Path(check["path"]).lstat().st_mode)
    if mode & ~check["value"]:
        yield f"mode is {mode:04o}"


@_check
def _size(_effect: Effect, check: Parameters) -> Iterator[str]:
    if (size := Path(check["path"]).lstat().st_size) != check["value"]:
        yield f"size is {size}"


@_check
def _dir_names(_effect: Effect, check: Parameters) -> Iterator[str]:
    names = {path.name for path in Path(check["path"]).iterdir()} - set(check.get("ignore", ()))
    if names != set(check["names"]):
        yield f"names are {sorted(names)}"


def _index(effect: Effect, check: Parameters) -> bytes | None:
    path = effect.stage.scope(check["scope"]) / INDEX
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


@_check
def _index_safe(effect: Effect, check: Parameters) -> Iterator[str]:
    index = _index(effect, check)
    if index is not None:
        from muniment.testing.corpus.index_oracle import memory_problems

        root = effect.stage.scope(check["scope"])
        yield from memory_problems(root, entries(root))
    elif effect.allowed:
        yield "no index"


@_check
def _index_targets(effect: Effect, check: Parameters) -> Iterator[str]:
    from muniment.testing.corpus.index_oracle import index_targets

    targets = index_targets(_index(effect, check) or b"")
    if sorted(targets) != sorted(check["files"]):
        yield f"targets are {targets}"


@_check
def _index_contains(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"].encode() not in (_index(effect, check) or b""):
        yield f"no {check['text']!r} in the index"


@_check
def _index_line_max(effect: Effect, check: Parameters) -> Iterator[str]:
    longest = max(map(len, (_index(effect, check) or b"").split(b"\n")))
    if longest > check["value"]:
        yield f"a line has {longest} bytes"


def entries(root: Path) -> set[str]:
    """Return the files that the index of `root` must list."""
    paths = (
        path.relative_to(root) for path in root.rglob("*.md") if path.is_file() and not path.is_symlink()
    )
    return {
        path.as_posix()
        for path in paths
        if path.as_posix() != INDEX
        and path.parts[0] != PAGES
        and not any(part.startswith(".") for part in path.parts)
    }


# -- judging -----------------------------------------------------------------------------------------

MIN_EXCHANGES: Final = 50
"""The minimum of exchanges in a race; usually there are tens of thousands."""

READING_TOOLS: Final = frozenset({"read_file", "grep", "ls"})

CODES: Final[Mapping[str, frozenset[str | None]]] = {
    "allow": frozenset({None}),
    "deny": frozenset({"path_escape", "bad_name", "refused"}),
    "error": frozenset(
        {
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
        }
    ),
}
"""The codes that belong to each verdict."""


@dataclass(frozen=True, slots=True)
class CallMade:
    """A completed call with its final arguments.

    Attributes:
        lands: the file that an allowed write modifies, if it differs from the path of the call.
    """

    tool: str
    arguments: Any
    lands: str | None
    answer: Answer

    @property
    def target(self) -> str | None:
        """Return the file that it was allowed to write, as `scope/path`."""
        if self.answer.verdict != "allow" or self.tool in READING_TOOLS:
            return None
        return self.lands or _logical(self.arguments)

    @property
    def scope(self) -> str | None:
        """Return the scope in its path, or None."""
        named = _logical(self.arguments).split("/", maxsplit=1)[0]
        return named if named in ROOTS else None


@dataclass(slots=True)
class CaseRun:
    """The events of one case.

    Attributes:
        first: the calls before the judged one.
        calls: the judged call, once per repetition.
        log: the log of the subject.
        seconds: wall clock of all calls and commits.
        exchanges: number of exchanges in a race.
        problem: why the attacker stopped early, or None.
        decoy: the file that a name was exchanged with.
    """

    first: list[CallMade] = field(default_factory=list)
    calls: list[CallMade] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    log: str = ""
    seconds: float = 0.0
    exchanges: int | None = None
    problem: str | None = None
    decoy: PhotographedName | None = None

    @property
    def allowed(self) -> bool:
        """Return whether the judged call was allowed at least once."""
        return any(call.answer.verdict == "allow" for call in self.calls)

    @property
    def targets(self) -> set[str]:
        """Return the files that were allowed to be written."""
        return {call.target for call in (*self.first, *self.calls) if call.target is not None}

    @property
    def scopes(self) -> set[str]:
        """Return the scopes in the paths of the calls."""
        return {call.scope for call in (*self.first, *self.calls) if call.scope is not None}


def failures_of(
    case: Case, stage: Stage, run: CaseRun, before: Photograph, after: Photograph
) -> Iterator[Failure]:
    """Yield the failures of a run.

    Args:
        case: the case.
        stage: its directories.
        run: its events.
        before: photograph from just before the call.
        after: from after the last commit.
    """
    yield from _verdict_failures(case, run)
    yield from _tree_failures(run, before, after)
    yield from _leaks(case, stage, run, before, after)


def tree_changes(before: Photograph, after: Photograph, *, roots: bool, swapped: bool = False) -> list[str]:
    """Return the forbidden changes, one line per name; see `tree_failures`."""
    return [failure.text for failure in tree_failures(before, after, roots=roots, swapped=swapped)]


def tree_failures(
    before: Photograph,
    after: Photograph,
    *,
    roots: bool,
    swapped: bool = False,
    scopes: Collection[str] = (),
) -> list[Failure]:
    """Return the forbidden changes.

    Args:
        before: an earlier photograph of a stage.
        after: the next one.
        roots: whether changes of the scope roots are also forbidden. Reads are allowed.
        swapped: whether names in them were exchanged, which changes the times of directories.
        scopes: the scopes in the paths of the calls, if any; a change in another scope is a crossing.
    """
    found = [
        failure
        for top in FORBIDDEN
        for name in sorted({*_part(before, top), *_part(after, top)})
        for failure in _outside_failures(name, before, after)
    ]
    beside = {_top(name) for name in (*before, *after)} - {*FORBIDDEN, *ROOTS}
    found += [Failure(Kind.LEFT, f"{name!r} is next to the roots") for name in sorted(beside)]
    for top in ROOTS if roots else ():
        looks = [_part(look, top) for look in (before, after)]
        if swapped:
            looks = [{name: _without_time(entry) for name, entry in look.items()} for look in looks]
        kind = _inside(top, scopes)
        found += [Failure(kind, line) for line in differences(*looks, reads=False)]
    return found


def _outside_failures(name: str, before: Photograph, after: Photograph) -> Iterator[Failure]:
    looks = [{name: look[name]} if name in look else {} for look in (before, after)]
    old, new = before.get(name), after.get(name)
    changes = differences(*looks, reads=False)
    detached = old and new and new.links < old.links and replace(new, links=old.links, read=old.read) == old
    for line in differences(*looks):
        if line not in changes:
            yield Failure(Kind.READ, line)
        else:
            yield Failure(Kind.DETACHED if detached else Kind.LEFT, line)


def _inside(top: str, scopes: Collection[str]) -> Kind:
    return Kind.CROSSED if scopes and top not in scopes else Kind.STRAYED


def _verdict_failures(case: Case, run: CaseRun) -> Iterator[Failure]:
    for call in run.first:
        if call.answer.verdict != "allow":
            text = f"the first {call.tool} was not allowed: {call.answer.text[:200]!r}"
            yield Failure(Kind.REFUSED, text)
    accepted = {case["expect"], *case.get("accept", ())}
    answers = {(call.answer.verdict, call.answer.code): call.answer.text for call in run.calls}
    for (verdict, code), said in answers.items():
        if verdict not in accepted:
            text = f"verdict {verdict} ({code}), expected {sorted(accepted)}: {said[:200]!r}"
            yield Failure(_verdict_kind(verdict, accepted), text)
        if code not in CODES.get(verdict, ()):
            yield Failure(Kind.WORDING, f"code {code!r} does not belong to {verdict!r}")
    tampered = any(operation.get("when") == "after_open" for operation in case["setup"])
    if (run.allowed or run.first) and not tampered:
        for one in run.commits:
            if one.error:
                yield Failure(Kind.REFUSED, f"the commit failed: {str(one.everything)[:300]}")
    if run.exchanges is not None and (run.problem or run.exchanges < MIN_EXCHANGES):
        yield Failure(Kind.NO_RACE, f"the race did not run: {run.exchanges} exchanges, {run.problem}")


def _verdict_kind(verdict: str, accepted: set[str]) -> Kind:
    if verdict == "allow":
        return Kind.ALLOWED
    return Kind.REFUSED if accepted == {"allow"} else Kind.WORDING


def _tree_failures(run: CaseRun, before: Photograph, after: Photograph) -> Iterator[Failure]:
    still = not run.targets
    swapped = run.exchanges is not None
    yield from tree_failures(before, after, roots=still, swapped=swapped, scopes=run.scopes)
    for name in () if still else _changed_names(before, after):
        displaced = run.decoy is not None and _is_copy(name, before, after, run.decoy)
        if not displaced and not any(_may_change(name, target) for target in run.targets):
            yield Failure(_inside(_top(name), run.scopes), f"{name!r} was also written")


def _changed_names(before: Photograph, after: Photograph) -> list[str]:
    """Return the names in the roots whose kind, mode or content changed; times do not count."""
    return [
        name
        for name in sorted({*before, *after})
        if _top(name) in ROOTS and _substance(before.get(name)) != _substance(after.get(name))
    ]


def _may_change(name: str, target: str) -> bool:
    """Return whether a write of `target` may change `name`: the file, its parents, or parts of the index."""
    scope = target.split("/", maxsplit=1)[0]
    of_index = tuple(f"{scope}/{made}" for made in ("MEMORY.md", "index", "memory-before-muniment"))
    return f"{target}/".startswith(f"{name}/") or name.startswith(of_index)


def _is_copy(name: str, before: Photograph, after: Photograph, decoy: PhotographedName) -> bool:
    """Return whether a new name is the decoy, or a file with the content of another file.

    A program that replaces a name during an exchange may get a file that belongs to another name, and must
    not delete it.
    """
    if name in before:
        return False
    new = after[name]
    if new.kind != "file":
        return (new.kind, new.content) == (decoy.kind, decoy.content)
    others = [*before.values(), *(entry for other, entry in after.items() if other != name)]
    return any(entry.content == new.content for entry in others)


def _leaks(
    case: Case, stage: Stage, run: CaseRun, before: Photograph, after: Photograph
) -> Iterator[Failure]:
    arguments = json.dumps(stage.expand(case["call"]["args"]), ensure_ascii=False)
    answers = [call.answer for call in (*run.first, *run.calls)]
    said = {"answer": answers, "commit": run.commits, "log": run.log}
    for place in sightings(stage.canary, said)[:3]:
        yield Failure(Kind.CANARY, f"the canary is in the {place}")
    if str(stage.tree) not in arguments:
        for place in sightings(str(stage.tree), {"answer": answers})[:3]:
            yield Failure(Kind.PATH, f"a host path is in the {place}")
    if stage.canary in arguments:
        return
    written = {
        name: stage.tree / name
        for name, entry in after.items()
        if _top(name) in ROOTS
        and entry.kind == "file"
        and (name not in before or before[name].content != entry.content)
    }
    for place in sightings(stage.canary, {"state": stage.state, **written}):
        yield Failure(Kind.CANARY, f"the canary was written to {place!r}")


def _logical(arguments: Any) -> str:
    """Return the path of a call as `scope/path`; empty if it has none."""
    path = arguments.get("path") if isinstance(arguments, Mapping) else None
    return path.removeprefix("/").removeprefix("memories/") if isinstance(path, str) else ""


def _part(look: Photograph, top: str) -> Photograph:
    """Return the entries of one top-level name."""
    return {name: entry for name, entry in look.items() if _top(name) == top}


def _top(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def _substance(entry: PhotographedName | None) -> tuple[str, int, str] | None:
    return (entry.kind, entry.mode, entry.content) if entry else None


def _without_time(entry: PhotographedName) -> PhotographedName:
    return entry if entry.kind == "file" else replace(entry, modified=0)


# -- interpreter -------------------------------------------------------------------------------------
#
# Executes one case of the corpus against a subject:
#
#     1. Build the stage: roots, forbidden trees, the operations of `setup`. Photograph it.
#     2. Open the subject. No change is allowed.
#     3. Make the calls of `first`, which must be allowed.
#     4. Run the operations of `when: after_open`. Photograph it again.
#     5. Make the call; in a race, repeatedly while another process exchanges a name. Commit.
#     6. Photograph it again, and judge: the general rules (see above), then the checks of the case.
#
# Hangs are not judged here; `running.py` detects them.

RACE_SECONDS: Final = 0.4
"""Minimum duration of a race in seconds."""

CALLS_PER_COMMIT: Final = 20
"""Calls per commit of a writing tool in a race: a commit waits for the disk."""


def run_case(case: Case, directory: Path, canary: str, open_subject: OpenSubject) -> list[Failure]:
    """Run a case and return all failures of the subject.

    Args:
        case: from the corpus, or any other in its format.
        directory: the directory of the stage; must not exist. It is not deleted.
        canary: the text that must not occur in any output.
        open_subject: binds a new subject to the roots of the stage.

    Raises:
        KeyError: the case has an operation, kind or check that is not in the format.
        Exception: any exception of the subject.
    """
    stage = Stage(directory, canary)
    for operation in case["setup"]:
        if operation.get("when") != "after_open":
            stage.prepare(operation)
    untouched = stage.photograph()
    subject = open_subject(stage, case)
    run = CaseRun()
    with ExitStack() as ends:
        ends.callback(lambda: setattr(run, "log", subject.close()))
        opened = tree_failures(untouched, stage.photograph(), roots=True)
        run.first = [_made(subject, stage, call) for call in case.get("first", ())]
        swap = _tamper(case, stage)
        before = stage.photograph()
        _call(case, stage, subject, swap, run)
    after = stage.photograph()
    effect = Effect(stage, run.allowed, tuple(call.answer.text for call in run.calls), run.seconds)
    return [
        *(_at_opening(failure) for failure in opened),
        *failures_of(case, stage, run, before, after),
        *(problem for check in case.get("checks", ()) for problem in problems(effect, check)),
    ]


def _at_opening(failure: Failure) -> Failure:
    kind = Kind.LOOKED if failure.kind is Kind.READ else failure.kind
    return Failure(kind, f"opening: {failure.text}")


def _made(subject: Subject, stage: Stage, call: Any) -> CallMade:
    arguments = stage.expand(call["args"])
    return CallMade(call["tool"], arguments, call.get("lands"), subject.call(call["tool"], arguments))


def _tamper(case: Case, stage: Stage) -> Swap | None:
    swap = None
    for operation in case["setup"]:
        if operation["op"] == "swap":
            swap = stage.swap(operation)
        elif operation.get("when") == "after_open":
            stage.prepare(operation)
    return swap


def _call(case: Case, stage: Stage, subject: Subject, swap: Swap | None, run: CaseRun) -> None:
    def call() -> None:
        run.calls.append(_made(subject, stage, case["call"]))

    started = time.monotonic()
    try:
        if swap is None:
            for _ in range(case.get("repeat", 1)):
                call()
            run.commits.append(subject.commit())
            return
        run.decoy = photograph({"decoy": swap.decoy})["decoy"]
        with swap:
            _race(case, subject, call, run)
            run.commits.append(subject.commit())
    finally:
        run.seconds = time.monotonic() - started
        if swap is not None:
            run.exchanges, run.problem = swap.exchanges, swap.problem


def _race(case: Case, subject: Subject, call: Callable[[], None], run: CaseRun) -> None:
    end = time.monotonic() + RACE_SECONDS
    commits = subject.commits_often and case["call"]["tool"] not in READING_TOOLS
    count = 0
    while count < case.get("repeat", 1) or time.monotonic() < end:
        call()
        count += 1
        if commits and count % CALLS_PER_COMMIT == 0:
            run.commits.append(subject.commit())
