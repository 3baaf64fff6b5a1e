"""Run one case and find its failures, by rules that apply to every case and by the case's own checks.

The rules for every case:

- J1 Every call of `first` was allowed. The case accepts the verdict of the call, and the code belongs to the
  verdict. A commit of an allowed change succeeds, unless the case changed the roots after the start.
- J2 The forbidden trees are unchanged, including the access times that reveal a read, and no new file exists
  next to the roots.
- J3 If no write was allowed, both roots are unchanged. Otherwise only the requested files, their parent
  folders and the index of their scopes changed. In a race a file may also have a second name, because it may
  have been exchanged during its replacement.
- J4 The canary is not in any response, change set, log, state or written file, and the output contains no
  host path that was not in the input.
- J5 In a race, the attacker was running.
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
    CallResult,
    Case,
    CommitOutcome,
    Failure,
    FailureKind,
    OpenSubject,
    Stage,
    Subject,
)
from muniment.testing.race import Swap
from muniment.testing.snapshots import Snapshot, SnapshotEntry, compare_snapshots, find_text, take_snapshot

# -- checks ------------------------------------------------------------------------------------------
#
# The effects that a case may require, judged after the commit.

INDEX: Final = "MEMORY.md"
PAGES: Final = "index"
PURPOSE_CHECKS: Final = frozenset({"file_equals", "b64_equals", "exists_if_allowed", "size", "in_output"})
"""The checks that require the purpose of a call. The other checks forbid side effects."""
INDEX_CHECKS: Final = frozenset({"index_safe", "index_targets", "index_contains", "index_line_max"})


@dataclass(frozen=True, slots=True)
class Effect:
    """The observed effect of a case, which its checks examine.

    Attributes:
        stage: the directories of the case.
        is_allowed: whether the judged call was allowed.
        outputs: the text of every response.
        seconds: elapsed time of all calls and commits.
    """

    stage: Stage
    is_allowed: bool
    outputs: tuple[str, ...]
    seconds: float

    @property
    def output(self) -> str:
        """Return the text of all responses, joined by line breaks."""
        return "\n".join(self.outputs)


Parameters = Mapping[str, Any]
Check = Callable[[Effect, Parameters], Iterator[str]]
CHECKS: Final = dict[str, Check]()
"""All checks by name. The name of a check is the name of its function without the underscore."""


def _check(check: Check) -> Check:
    return CHECKS.setdefault(check.__name__[1:], check)


def run_check(effect: Effect, check: Parameters) -> Iterator[Failure]:
    """Yield the failures that a check finds in the effect of a case.

    Raises:
        KeyError: unknown check.
    """
    parameters = effect.stage.expand(check)
    name = check["check"]
    kind = (
        FailureKind.EFFECT
        if name in PURPOSE_CHECKS
        else FailureKind.INDEX
        if name in INDEX_CHECKS
        else FailureKind.MANNER
    )
    for problem in CHECKS[name](effect, parameters):
        yield Failure(kind, f"{name}: {problem}")


@_check
def _file_equals(_effect: Effect, check: Parameters) -> Iterator[str]:
    yield from _compare_content(Path(check["path"]), check["content"].encode())


@_check
def _b64_equals(_effect: Effect, check: Parameters) -> Iterator[str]:
    yield from _compare_content(Path(check["path"]), base64.b64decode(check["content_b64"]))


def _compare_content(path: Path, expected: bytes) -> Iterator[str]:
    if path.is_symlink() or not path.is_file():
        yield f"no file {path.name!r}"
    elif (found := path.read_bytes()) != expected:
        yield f"{path.name!r} contains {found[:80]!r}, not {expected[:80]!r}"


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
    if effect.is_allowed and not _exists(check["path"]):
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


def _read_index(effect: Effect, check: Parameters) -> bytes | None:
    path = effect.stage.get_scope_path(check["scope"]) / INDEX
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


@_check
def _index_safe(effect: Effect, check: Parameters) -> Iterator[str]:
    index = _read_index(effect, check)
    if index is not None:
        from muniment.testing.corpus.index_oracle import find_memory_problems

        root = effect.stage.get_scope_path(check["scope"])
        yield from find_memory_problems(root, list_entries(root))
    elif effect.is_allowed:
        yield "no index"


@_check
def _index_targets(effect: Effect, check: Parameters) -> Iterator[str]:
    from muniment.testing.corpus.index_oracle import list_targets

    targets = list_targets(_read_index(effect, check) or b"")
    if sorted(targets) != sorted(check["files"]):
        yield f"targets are {targets}"


@_check
def _index_contains(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"].encode() not in (_read_index(effect, check) or b""):
        yield f"no {check['text']!r} in the index"


@_check
def _index_line_max(effect: Effect, check: Parameters) -> Iterator[str]:
    longest = max(map(len, (_read_index(effect, check) or b"").split(b"\n")))
    if longest > check["value"]:
        yield f"a line has {longest} bytes"


def list_entries(root: Path) -> set[str]:
    """Return the paths of the files that the index of `root` must list."""
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
"""Minimum number of exchanges in a race; usually there are tens of thousands."""

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
"""The codes that may accompany each verdict."""


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A call that was made, with its final arguments and its result.

    Attributes:
        tool: name of the tool.
        arguments: the arguments, with placeholders replaced.
        written_path: the file that an allowed write modifies, if it differs from the path of the call.
        answer: the response.
    """

    tool: str
    arguments: Any
    written_path: str | None
    answer: CallResult

    @property
    def target(self) -> str | None:
        """Return the file that the call was allowed to write, as `scope/path`; None: it was allowed none."""
        if self.answer.verdict != "allow" or self.tool in READING_TOOLS:
            return None
        return self.written_path or _get_logical_path(self.arguments)

    @property
    def scope(self) -> str | None:
        """Return the scope in the path of the call, or None."""
        named = _get_logical_path(self.arguments).split("/", maxsplit=1)[0]
        return named if named in ROOTS else None


@dataclass(slots=True)
class CaseRun:
    """The events while a case ran.

    Attributes:
        first: the calls of `first`, before the judged call.
        calls: the judged call, once for each repetition.
        commits: the results of the commits.
        log: the log of the subject.
        seconds: elapsed time of all calls and commits.
        exchanges: number of exchanges in a race; None without a race.
        problem: why the attacker stopped early; None: it did not.
        decoy: the recorded state of the file with which a name was exchanged.
    """

    first: list[CompletedCall] = field(default_factory=list)
    calls: list[CompletedCall] = field(default_factory=list)
    commits: list[CommitOutcome] = field(default_factory=list)
    log: str = ""
    seconds: float = 0.0
    exchanges: int | None = None
    problem: str | None = None
    decoy: SnapshotEntry | None = None

    @property
    def is_allowed(self) -> bool:
        """Return whether the judged call was allowed at least once."""
        return any(call.answer.verdict == "allow" for call in self.calls)

    @property
    def targets(self) -> set[str]:
        """Return the files that allowed calls wrote, as `scope/path`."""
        return {call.target for call in (*self.first, *self.calls) if call.target is not None}

    @property
    def scopes(self) -> set[str]:
        """Return the scopes in the paths of all calls."""
        return {call.scope for call in (*self.first, *self.calls) if call.scope is not None}


def find_failures(
    case: Case, stage: Stage, run: CaseRun, before: Snapshot, after: Snapshot
) -> Iterator[Failure]:
    """Yield the failures of a case that the rules for every case find.

    Args:
        case: the case.
        stage: the directories of the case.
        run: the events while the case ran.
        before: snapshot from directly before the judged call.
        after: snapshot from after the last commit.
    """
    yield from _find_verdict_failures(case, run)
    yield from _find_run_tree_failures(run, before, after)
    yield from _find_leaks(case, stage, run, before, after)


def list_tree_changes(
    before: Snapshot, after: Snapshot, *, roots: bool, is_swapped: bool = False
) -> list[str]:
    """Return the forbidden changes as text, one line for each name; see `find_tree_failures`."""
    return [failure.text for failure in find_tree_failures(before, after, roots=roots, is_swapped=is_swapped)]


def find_tree_failures(
    before: Snapshot,
    after: Snapshot,
    *,
    roots: bool,
    is_swapped: bool = False,
    scopes: Collection[str] = (),
) -> list[Failure]:
    """Return the forbidden changes between two snapshots of a stage.

    Args:
        before: the earlier snapshot.
        after: the next snapshot.
        roots: whether changes of the scope roots are forbidden too. Reads in the roots are always allowed.
        is_swapped: whether names in the roots were exchanged, which changes the times of directories.
        scopes: the scopes in the paths of the calls, if any; a change in another scope is a `CROSSED`
            failure.
    """
    found = [
        failure
        for top in FORBIDDEN
        for name in sorted({*_select_tree(before, top), *_select_tree(after, top)})
        for failure in _find_outside_failures(name, before, after)
    ]
    siblings = {_get_top_name(name) for name in (*before, *after)} - {*FORBIDDEN, *ROOTS}
    found += [Failure(FailureKind.LEFT, f"{name!r} is next to the roots") for name in sorted(siblings)]
    for top in ROOTS if roots else ():
        snapshots = [_select_tree(snapshot, top) for snapshot in (before, after)]
        if is_swapped:
            snapshots = [
                {name: _clear_time(entry) for name, entry in snapshot.items()} for snapshot in snapshots
            ]
        kind = _choose_inside_kind(top, scopes)
        found += [Failure(kind, line) for line in compare_snapshots(*snapshots, reads=False)]
    return found


def _find_outside_failures(name: str, before: Snapshot, after: Snapshot) -> Iterator[Failure]:
    snapshots = [{name: snapshot[name]} if name in snapshot else {} for snapshot in (before, after)]
    old, new = before.get(name), after.get(name)
    changes = compare_snapshots(*snapshots, reads=False)
    is_detached = (
        old and new and new.links < old.links and replace(new, links=old.links, read=old.read) == old
    )
    for line in compare_snapshots(*snapshots):
        if line not in changes:
            yield Failure(FailureKind.READ, line)
        else:
            yield Failure(FailureKind.DETACHED if is_detached else FailureKind.LEFT, line)


def _choose_inside_kind(top: str, scopes: Collection[str]) -> FailureKind:
    return FailureKind.CROSSED if scopes and top not in scopes else FailureKind.STRAYED


def _find_verdict_failures(case: Case, run: CaseRun) -> Iterator[Failure]:
    for call in run.first:
        if call.answer.verdict != "allow":
            text = f"the first {call.tool} was not allowed: {call.answer.text[:200]!r}"
            yield Failure(FailureKind.REFUSED, text)
    accepted = {case["expect"], *case.get("accept", ())}
    answers = {(call.answer.verdict, call.answer.code): call.answer.text for call in run.calls}
    for (verdict, code), message in answers.items():
        if verdict not in accepted:
            text = f"verdict {verdict} ({code}), expected {sorted(accepted)}: {message[:200]!r}"
            yield Failure(_choose_verdict_kind(verdict, accepted), text)
        if code not in CODES.get(verdict, ()):
            yield Failure(FailureKind.WORDING, f"code {code!r} does not belong to {verdict!r}")
    is_tampered = any(operation.get("when") == "after_open" for operation in case["setup"])
    if (run.is_allowed or run.first) and not is_tampered:
        for result in run.commits:
            if result.error:
                yield Failure(FailureKind.REFUSED, f"the commit failed: {str(result.full_output)[:300]}")
    if run.exchanges is not None and (run.problem or run.exchanges < MIN_EXCHANGES):
        yield Failure(FailureKind.NO_RACE, f"the race did not run: {run.exchanges} exchanges, {run.problem}")


def _choose_verdict_kind(verdict: str, accepted: set[str]) -> FailureKind:
    if verdict == "allow":
        return FailureKind.ALLOWED
    return FailureKind.REFUSED if accepted == {"allow"} else FailureKind.WORDING


def _find_run_tree_failures(run: CaseRun, before: Snapshot, after: Snapshot) -> Iterator[Failure]:
    is_unchanged = not run.targets
    is_swapped = run.exchanges is not None
    yield from find_tree_failures(before, after, roots=is_unchanged, is_swapped=is_swapped, scopes=run.scopes)
    for name in () if is_unchanged else _list_changed_names(before, after):
        is_displaced = run.decoy is not None and _is_copy(name, before, after, run.decoy)
        if not is_displaced and not any(_may_change(name, target) for target in run.targets):
            yield Failure(_choose_inside_kind(_get_top_name(name), run.scopes), f"{name!r} was also written")


def _list_changed_names(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the names in the roots whose kind, mode or content changed. Changed times do not count."""
    return [
        name
        for name in sorted({*before, *after})
        if _get_top_name(name) in ROOTS
        and _get_content_state(before.get(name)) != _get_content_state(after.get(name))
    ]


def _may_change(name: str, target: str) -> bool:
    """Return whether a write of `target` may change `name`: the file, its parents, or the index."""
    scope = target.split("/", maxsplit=1)[0]
    index_paths = tuple(
        f"{scope}/{index_name}" for index_name in ("MEMORY.md", "index", "memory-before-muniment")
    )
    return f"{target}/".startswith(f"{name}/") or name.startswith(index_paths)


def _is_copy(name: str, before: Snapshot, after: Snapshot, decoy: SnapshotEntry) -> bool:
    """Return whether a new name is the decoy, or a file with the content of another file.

    During a race, a program that replaces a name may get a file that belongs to another name. It must not
    delete such a file.
    """
    if name in before:
        return False
    new = after[name]
    if new.kind != "file":
        return (new.kind, new.content) == (decoy.kind, decoy.content)
    others = [*before.values(), *(entry for other, entry in after.items() if other != name)]
    return any(entry.content == new.content for entry in others)


def _find_leaks(
    case: Case, stage: Stage, run: CaseRun, before: Snapshot, after: Snapshot
) -> Iterator[Failure]:
    arguments = json.dumps(stage.expand(case["call"]["args"]), ensure_ascii=False)
    answers = [call.answer for call in (*run.first, *run.calls)]
    outputs = {"answer": answers, "commit": run.commits, "log": run.log}
    for location in find_text(stage.canary, outputs)[:3]:
        yield Failure(FailureKind.CANARY, f"the canary is in the {location}")
    if str(stage.tree) not in arguments:
        for location in find_text(str(stage.tree), {"answer": answers})[:3]:
            yield Failure(FailureKind.PATH, f"a host path is in the {location}")
    if stage.canary in arguments:
        return
    written = {
        name: stage.tree / name
        for name, entry in after.items()
        if _get_top_name(name) in ROOTS
        and entry.kind == "file"
        and (name not in before or before[name].content != entry.content)
    }
    for location in find_text(stage.canary, {"state": stage.state, **written}):
        yield Failure(FailureKind.CANARY, f"the canary was written to {location!r}")


def _get_logical_path(arguments: Any) -> str:
    """Return the path in the arguments of a call as `scope/path`; empty if it is missing."""
    path = arguments.get("path") if isinstance(arguments, Mapping) else None
    return path.removeprefix("/").removeprefix("memories/") if isinstance(path, str) else ""


def _select_tree(snapshot: Snapshot, top: str) -> Snapshot:
    """Return the entries of a snapshot under one top-level name."""
    return {name: entry for name, entry in snapshot.items() if _get_top_name(name) == top}


def _get_top_name(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def _get_content_state(entry: SnapshotEntry | None) -> tuple[str, int, str] | None:
    return (entry.kind, entry.mode, entry.content) if entry else None


def _clear_time(entry: SnapshotEntry) -> SnapshotEntry:
    return entry if entry.kind == "file" else replace(entry, modified=0)


# -- interpreter -------------------------------------------------------------------------------------
#
# Executes one case of the corpus against a subject:
#
#     1. Build the stage: roots, forbidden trees, the operations of `setup`. Take a snapshot.
#     2. Open the subject. No change is allowed.
#     3. Make the calls of `first`, which must be allowed.
#     4. Run the operations with `when: after_open`. Take another snapshot.
#     5. Make the call; in a race, repeatedly while another process exchanges a name. Commit.
#     6. Take the last snapshot. Check the rules for every case (see the module docstring), then the checks of
#        the case.
#
# Hangs are not judged here; `running.py` detects them.

RACE_SECONDS: Final = 0.4
"""Minimum duration of a race in seconds."""

CALLS_PER_COMMIT: Final = 20
"""Calls between two commits of a writing tool in a race. Not every call is committed, because a commit waits
for the disk.
"""


def run_case(case: Case, directory: Path, canary: str, open_subject: OpenSubject) -> list[Failure]:
    """Run a case and return all failures of the subject.

    Args:
        case: a case of the corpus, or another one in its format.
        directory: the directory of the stage; must not exist. It is not deleted.
        canary: the text that must not occur in any output.
        open_subject: binds a new subject to the roots of the stage.

    Raises:
        KeyError: the case has an operation, kind or check that the format does not define.
        Exception: any exception of the subject.
    """
    stage = Stage(directory, canary)
    for operation in case["setup"]:
        if operation.get("when") != "after_open":
            stage.prepare(operation)
    initial = stage.take_snapshot()
    subject = open_subject(stage, case)
    run = CaseRun()
    with ExitStack() as stack:
        stack.callback(lambda: setattr(run, "log", subject.close()))
        opening_failures = find_tree_failures(initial, stage.take_snapshot(), roots=True)
        run.first = [_make_call(subject, stage, call) for call in case.get("first", ())]
        swap = _tamper(case, stage)
        before = stage.take_snapshot()
        _call(case, stage, subject, swap, run)
    after = stage.take_snapshot()
    effect = Effect(stage, run.is_allowed, tuple(call.answer.text for call in run.calls), run.seconds)
    return [
        *(_mark_opening(failure) for failure in opening_failures),
        *find_failures(case, stage, run, before, after),
        *(problem for check in case.get("checks", ()) for problem in run_check(effect, check)),
    ]


def _mark_opening(failure: Failure) -> Failure:
    kind = FailureKind.READ_AT_START if failure.kind is FailureKind.READ else failure.kind
    return Failure(kind, f"opening: {failure.text}")


def _make_call(subject: Subject, stage: Stage, call: Any) -> CompletedCall:
    arguments = stage.expand(call["args"])
    return CompletedCall(call["tool"], arguments, call.get("lands"), subject.call(call["tool"], arguments))


def _tamper(case: Case, stage: Stage) -> Swap | None:
    swap = None
    for operation in case["setup"]:
        if operation["op"] == "swap":
            swap = stage.create_swap(operation)
        elif operation.get("when") == "after_open":
            stage.prepare(operation)
    return swap


def _call(case: Case, stage: Stage, subject: Subject, swap: Swap | None, run: CaseRun) -> None:
    def call() -> None:
        run.calls.append(_make_call(subject, stage, case["call"]))

    started = time.monotonic()
    try:
        if swap is None:
            for _ in range(case.get("repeat", 1)):
                call()
            run.commits.append(subject.commit())
            return
        run.decoy = take_snapshot({"decoy": swap.decoy})["decoy"]
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
