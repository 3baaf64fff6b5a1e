"""What is judged in every case, whatever its own checks ask for.

- J1 every call of `first` was allowed; the verdict of the call is one that the case accepts, and its code
  belongs to it. A commit of something allowed succeeds, unless somebody tampered with the roots.
- J2 the forbidden trees are as they were, down to the access times that tell of a read; nothing appeared
  beside the roots.
- J3 if nothing was allowed to be written, both roots are as they were; otherwise nothing changed but the
  named files, folders on their way and the index of their scopes. In a race a file may also have a second
  name, since it may have been exchanged while it was replaced.
- J4 the canary stands in no answer, change-set, log, state or file written, and no host path comes out that
  did not go in.
- J5 a race was one: the attacker was at work.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from muniment.testing.corpus.case import Case
from muniment.testing.corpus.failure import Failure, Kind
from muniment.testing.corpus.stage import FORBIDDEN, ROOTS, Stage
from muniment.testing.corpus.subject import Answer, Committed
from muniment.testing.witness import Entry, Photograph, differences, sightings

MIN_EXCHANGES: Final = 50
"""Exchanges without which a race was none; there are tens of thousands."""

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
class Call:
    """A call that was made, with its arguments filled in.

    Attributes:
        lands: the file that an allowed write goes to, where it is not the named one.
    """

    tool: str
    arguments: Any
    lands: str | None
    answer: Answer

    @property
    def target(self) -> str | None:
        """The file that it was allowed to write, as `scope/path`."""
        if self.answer.verdict != "allow" or self.tool in READING_TOOLS:
            return None
        return self.lands or _logical(self.arguments)

    @property
    def scope(self) -> str | None:
        """The scope that it named."""
        named = _logical(self.arguments).split("/", maxsplit=1)[0]
        return named if named in ROOTS else None


@dataclass(slots=True)
class Run:
    """What happened to one case.

    Attributes:
        first: the calls before the one that is judged.
        calls: that one, as often as it was made.
        log: what the subject logged.
        seconds: wall clock of all calls and commits.
        exchanges: in a race.
        problem: why there were not more of them.
        decoy: what a name was exchanged with.
    """

    first: list[Call] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    log: str = ""
    seconds: float = 0.0
    exchanges: int | None = None
    problem: str | None = None
    decoy: Entry | None = None

    @property
    def allowed(self) -> bool:
        """Whether the call was allowed, once at least."""
        return any(call.answer.verdict == "allow" for call in self.calls)

    @property
    def targets(self) -> set[str]:
        """Files that were allowed to be written."""
        return {call.target for call in (*self.first, *self.calls) if call.target is not None}

    @property
    def scopes(self) -> set[str]:
        """Scopes that were named."""
        return {call.scope for call in (*self.first, *self.calls) if call.scope is not None}


def failures_of(
    case: Case, stage: Stage, run: Run, before: Photograph, after: Photograph
) -> Iterator[Failure]:
    """What is wrong with a run.

    Args:
        case: what was run.
        stage: where.
        run: what happened.
        before: photograph from just before the call.
        after: from after the last commit.
    """
    yield from _verdict_failures(case, run)
    yield from _tree_failures(run, before, after)
    yield from _leaks(case, stage, run, before, after)


def tree_changes(before: Photograph, after: Photograph, *, roots: bool, swapped: bool = False) -> list[str]:
    """What changed that may not have, a line a name; as `tree_failures`."""
    return [failure.text for failure in tree_failures(before, after, roots=roots, swapped=swapped)]


def tree_failures(
    before: Photograph,
    after: Photograph,
    *,
    roots: bool,
    swapped: bool = False,
    scopes: Collection[str] = (),
) -> list[Failure]:
    """What changed that may not have.

    Args:
        before: an earlier photograph of a stage.
        after: the next one.
        roots: whether the scope roots may not have changed either. They may have been read.
        swapped: whether somebody exchanged names in them; this alone changes the times of directories.
        scopes: that were named, if any was: what changes elsewhere has crossed.
    """
    found = [
        failure
        for top in FORBIDDEN
        for name in sorted({*_part(before, top), *_part(after, top)})
        for failure in _outside_failures(name, before, after)
    ]
    beside = {_top(name) for name in (*before, *after)} - {*FORBIDDEN, *ROOTS}
    found += [Failure(Kind.LEFT, f"{name!r} stands beside the roots") for name in sorted(beside)]
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


def _verdict_failures(case: Case, run: Run) -> Iterator[Failure]:
    for call in run.first:
        if call.answer.verdict != "allow":
            text = f"the first {call.tool} was not allowed: {call.answer.text[:200]!r}"
            yield Failure(Kind.REFUSED, text)
    accepted = {case["expect"], *case.get("accept", ())}
    answers = {(call.answer.verdict, call.answer.code): call.answer.text for call in run.calls}
    for (verdict, code), said in answers.items():
        if verdict not in accepted:
            text = f"verdict {verdict} ({code}) where {sorted(accepted)} is right: {said[:200]!r}"
            yield Failure(_verdict_kind(verdict, accepted), text)
        if code not in CODES.get(verdict, ()):
            yield Failure(Kind.WORDING, f"code {code!r} does not belong to {verdict!r}")
    tampered = any(operation.get("when") == "after_open" for operation in case["setup"])
    if (run.allowed or run.first) and not tampered:
        for one in run.commits:
            if one.error:
                yield Failure(Kind.REFUSED, f"the commit failed: {str(one.everything)[:300]}")
    if run.exchanges is not None and (run.problem or run.exchanges < MIN_EXCHANGES):
        yield Failure(Kind.NO_RACE, f"the race was not run: {run.exchanges} exchanges, {run.problem}")


def _verdict_kind(verdict: str, accepted: set[str]) -> Kind:
    if verdict == "allow":
        return Kind.ALLOWED
    return Kind.REFUSED if accepted == {"allow"} else Kind.WORDING


def _tree_failures(run: Run, before: Photograph, after: Photograph) -> Iterator[Failure]:
    still = not run.targets
    swapped = run.exchanges is not None
    yield from tree_failures(before, after, roots=still, swapped=swapped, scopes=run.scopes)
    for name in () if still else _changed_names(before, after):
        displaced = run.decoy is not None and _is_copy(name, before, after, run.decoy)
        if not displaced and not any(_may_change(name, target) for target in run.targets):
            yield Failure(_inside(_top(name), run.scopes), f"{name!r} was written as well")


def _changed_names(before: Photograph, after: Photograph) -> list[str]:
    """Names beneath the roots that stand for something else now, whatever their times."""
    return [
        name
        for name in sorted({*before, *after})
        if _top(name) in ROOTS and _substance(before.get(name)) != _substance(after.get(name))
    ]


def _may_change(name: str, target: str) -> bool:
    """Whether writing `target` may change `name`: itself, a folder on its way, or a part of the index."""
    scope = target.split("/", maxsplit=1)[0]
    of_index = tuple(f"{scope}/{made}" for made in ("MEMORY.md", "index", "memory-before-muniment"))
    return f"{target}/".startswith(f"{name}/") or name.startswith(of_index)


def _is_copy(name: str, before: Photograph, after: Photograph, decoy: Entry) -> bool:
    """Whether a new name leads to the decoy itself, or to a file that holds what another one held or holds.

    Who replaces a name while somebody exchanges it may come to hold what is not theirs, and must not drop it.
    """
    if name in before:
        return False
    new = after[name]
    if new.kind != "file":
        return (new.kind, new.content) == (decoy.kind, decoy.content)
    others = [*before.values(), *(entry for other, entry in after.items() if other != name)]
    return any(entry.content == new.content for entry in others)


def _leaks(case: Case, stage: Stage, run: Run, before: Photograph, after: Photograph) -> Iterator[Failure]:
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
    """The path of a call as `scope/path`; empty where it has none."""
    path = arguments.get("path") if isinstance(arguments, Mapping) else None
    return path.removeprefix("/").removeprefix("memories/") if isinstance(path, str) else ""


def _part(look: Photograph, top: str) -> Photograph:
    """What lies beneath one name of the tree."""
    return {name: entry for name, entry in look.items() if _top(name) == top}


def _top(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def _substance(entry: Entry | None) -> tuple[str, int, str] | None:
    return (entry.kind, entry.mode, entry.content) if entry else None


def _without_time(entry: Entry) -> Entry:
    return entry if entry.kind == "file" else replace(entry, modified=0)
