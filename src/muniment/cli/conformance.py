"""`muniment conformance`: the attack corpus against memory tools, and a table of what held.

The exit code is 1 where the target under test escaped, leaked, hung or crashed, where Muniment did anything
else than the corpus asks, and where nothing could be tried. Peers are told of, and change nothing.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from muniment.cli.terminal import (
    EXIT_FAILED,
    configure_logging,
    on_one_line,
    output,
    print_document,
    print_failure,
    say,
)
from muniment.errors import Cancelled, ManagedMemoryUnavailable
from muniment.names import __version__
from muniment.testing.conformance import (
    CaseOutcome,
    Finding,
    Result,
    Target,
    examine,
    parse_target,
    select,
)
from muniment.testing.corpus import Case, Corpus, load_corpus
from muniment.testing.corpus.stage import BAD

MAX_JOBS: Final = 4
"""Cases at a time, unless told otherwise: a race needs a processor for each side."""

SEEN_LINES: Final = 3
SEEN_CHARACTERS: Final = 240
"""What is shown of a failure; `--json` has all of it."""


@dataclass(frozen=True, slots=True)
class ConformanceArguments:
    """What was asked for."""

    target: str
    peers: Sequence[str]
    classes: Sequence[str]
    ids: Sequence[str]
    jobs: int | None
    json: bool


class Misused(ValueError):
    """The command line asks for what there is not.

    Attributes:
        option: the one that does.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


def conform(asked: ConformanceArguments) -> int:
    """Try the target and its peers; the exit code.

    Raises:
        Misused: there is no such target, class or case, or a target is named twice.
    """
    configure_logging()
    targets, corpus = _targets(asked), load_corpus()
    cases = _cases(asked, corpus)
    jobs = asked.jobs or min(MAX_JOBS, len(os.sched_getaffinity(0)))
    try:
        with _Counter(len(targets) * (1 + len(cases)) if sys.stderr.isatty() else 0) as progress:
            results = examine(targets, corpus, cases, jobs=jobs, told=progress.step)
    except KeyboardInterrupt:
        return print_failure(Cancelled("by Ctrl-C"), as_json=asked.json, what="not examined")
    except OSError as error:
        failure = ManagedMemoryUnavailable("the temporary directory", error.strerror or str(error))
        return print_failure(failure, as_json=asked.json, what="not examined")
    if asked.json:
        print_document(_document(results, cases))
    else:
        _print(results, cases)
    return 0 if results[0].is_passed else EXIT_FAILED


def _targets(asked: ConformanceArguments) -> list[Target]:
    found: list[Target] = []
    for option, spec in (("--target", asked.target), *(("--peer", peer) for peer in asked.peers)):
        try:
            target = parse_target(spec)
        except ValueError as error:
            raise Misused(option, str(error)) from None
        if target in found:
            raise Misused(option, f"{spec!r} is named twice")
        found.append(target)
    return found


def _cases(asked: ConformanceArguments, corpus: Corpus) -> Mapping[str, Case]:
    classes = {case["class"] for case in corpus.cases.values()}
    for name in asked.classes:
        if name not in classes:
            raise Misused("--class", f"there is no class {name!r}; there are {', '.join(sorted(classes))}")
    for name in asked.ids:
        if name not in corpus.cases:
            raise Misused("--case", f"there is no case {name!r}")
    return select(corpus, classes=asked.classes, ids=asked.ids)


class _Counter:
    """A counter on standard error, for a terminal; 0: none is shown."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lock = total, 0, threading.Lock()

    def __enter__(self) -> Self:
        return self

    def step(self) -> None:
        with self._lock:
            self._done += 1
            if self._total:
                print(f"\r{self._done} of {self._total} cases", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_exc: object) -> None:
        if self._total:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# -- words -------------------------------------------------------------------------------------------


def _again(result: Result, finding: Finding) -> str:
    words = ["muniment", "conformance", "--target", result.target.spec, "--case", finding.case["id"]]
    return shlex.join(words)


def _told_of(result: Result) -> Iterator[Finding]:
    """What is listed: whatever is bad, and of Muniment whatever did not hold."""
    for finding in result.findings:
        if finding.outcome in BAD or (
            result.target.promises.is_exact and finding.outcome is not CaseOutcome.HELD
        ):
            yield finding


def _counted(findings: Sequence[Finding]) -> str:
    """Such as `2 escaped*, 1 differs, 10 held`, the worst first; marked what lies beyond the claims."""
    counts = Counter(
        (list(CaseOutcome).index(each.outcome), each.is_beyond_claims and each.outcome in BAD)
        for each in findings
    )
    said = [
        f"{count} {list(CaseOutcome)[at]}{'*' if beyond else ''}"
        for (at, beyond), count in sorted(counts.items())
    ]
    return ", ".join(said) or "-"


def _skipped(result: Result) -> Counter[str]:
    """Why cases were skipped, with how many for each reason."""
    skipped = (each for each in result.findings if each.outcome is CaseOutcome.SKIPPED)
    return Counter(each.failures[0].text for each in skipped)


def _heads(results: Sequence[Result]) -> list[str]:
    """A name for each target, numbered where there are several of a sort."""
    names = [result.target.name for result in results]
    return [
        name if names.count(name) == 1 else f"{name} {names[: at + 1].count(name)}"
        for at, name in enumerate(names)
    ]


def _rows(results: Sequence[Result], cases: Mapping[str, Case]) -> Iterator[list[str]]:
    classes = dict.fromkeys(case["class"] for case in cases.values())
    for of_class in sorted(classes):
        yield [of_class, *(_counted(_of_class(result, of_class)) for result in results)]
    yield ["all", *(_counted(result.findings) for result in results)]


def _of_class(result: Result, of_class: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.case["class"] == of_class]


def _notes(results: Sequence[Result]) -> Iterator[str]:
    """What a reader of the table has to know of each target."""
    for head, result in zip(_heads(results), results, strict=True):
        name = head if result.about == result.target.name else f"{head}, {result.about}"
        if result.unusable is not None:
            yield f"{name}: not tried: {result.unusable}"
            continue
        yield f"{name}: claims: {result.target.claims.covers}"
        if result.target.claims.leaves_out:
            yield f"  * outside of that: {result.target.claims.leaves_out}"
        for reason, count in _skipped(result).most_common():
            yield f"  {count} skipped: {reason}"


def _verdict(result: Result, head: str) -> str:
    if result.unusable is not None:
        return f"{head}: not tried"
    return f"{head}: {'passed' if result.is_passed else 'FAILED'}: {_counted(result.findings)}"


# -- shapes ------------------------------------------------------------------------------------------


def _print(results: Sequence[Result], cases: Mapping[str, Case]) -> None:
    heads, rows = ["class", *_heads(results)], list(_rows(results, cases))
    if sys.stdout.isatty():
        _draw(heads, rows)
    else:
        widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
        for row in (heads, *rows):
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for note in _notes(results):
        say(on_one_line(note) if not note.startswith("  ") else f"  {on_one_line(note[2:])}")
    for head, result in zip(_heads(results), results, strict=True):
        for finding in _told_of(result):
            _print_finding(head, result, finding)
    say(on_one_line(_verdict(results[0], heads[1])))


def _draw(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*heads)
    for row in rows:
        # The outcomes stand the worst first, so the first word of a cell tells whether it is bad.
        worst = any(cell.split(" ")[1].strip("*,") in BAD for cell in row[1:] if " " in cell)
        table.add_row(*row, style="bold red" if worst else None)
    with output():
        Console(markup=False, highlight=False, emoji=False).print(table)


def _print_finding(head: str, result: Result, finding: Finding) -> None:
    beyond = "*" if finding.is_beyond_claims and finding.outcome in BAD else ""
    say(f"{head}: {finding.outcome}{beyond}: {finding.case['id']} ({finding.case['class']})")
    say(f"  why   {on_one_line(finding.case['why'])}")
    for failure in finding.failures[:SEEN_LINES]:
        say(f"  seen  {on_one_line(failure.text[-SEEN_CHARACTERS:])}")
    if len(finding.failures) > SEEN_LINES:
        say(f"  and {len(finding.failures) - SEEN_LINES} more; --json has all")
    say(f"  again {on_one_line(_again(result, finding))}")


def _document(results: Sequence[Result], cases: Mapping[str, Case]) -> dict[str, Any]:
    return {
        "version": __version__,
        "cases": len(cases),
        "passed": results[0].is_passed,
        "target": _result(results[0], cases),
        "peers": [_result(result, cases) for result in results[1:]],
    }


def _result(result: Result, cases: Mapping[str, Case]) -> dict[str, Any]:
    claims = result.target.claims
    classes = sorted({case["class"] for case in cases.values()})
    tried = result.unusable is None
    return {
        "target": result.target.spec,
        "about": result.about,
        "unusable": result.unusable,
        "claims": {
            "covers": claims.covers,
            "leaves_out": claims.leaves_out,
            "beyond": sorted(claims.beyond),
            "sources": list(claims.sources),
        },
        "outcomes": dict(result.tally()),
        "classes": {name: dict(result.tally(name)) for name in classes} if tried else {},
        "skipped": dict(_skipped(result)),
        "findings": [
            {
                "case": finding.case["id"],
                "class": finding.case["class"],
                "outcome": finding.outcome,
                "beyond_claims": finding.is_beyond_claims,
                "why": finding.case["why"],
                "seen": [{"kind": each.kind, "text": each.text} for each in finding.failures],
                "again": _again(result, finding),
            }
            for finding in result.findings
            if finding.outcome not in {CaseOutcome.HELD, CaseOutcome.SKIPPED}
        ],
    }
