"""Implement `muniment conformance`: attack memory tools with a corpus of cases, and report the results.

The exit code is 1 if the target under test escaped, leaked, hung or crashed, if Muniment did not behave
exactly as the corpus expects, or if no case could be tried. The results of other tools (peers) are reported,
but do not change the exit code.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muniment.cli.command import Report, command, convert_temp_errors, require_fence
from muniment.cli.terminal import EXIT_FAILED, draw_tables
from muniment.content.gates import clean_foreign_line
from muniment.names import __version__

if TYPE_CHECKING:
    from muniment.testing.conformance import Finding, Result, Target
    from muniment.testing.corpus import Case, Corpus

MAX_JOBS: Final = 4
"""Maximum number of cases at the same time, if the user sets none: a race needs a processor for each side."""

MAX_FAILURE_LINES: Final = 3
MAX_FAILURE_CHARACTERS: Final = 240
"""Maximum lines of one case, and characters of one line, in the text output; `--json` contains everything."""


@command("not tested", interrupt_message="by Ctrl-C", precheck=require_fence)
def conformance(
    *,
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET", help="Tool under test: muniment, anthropic, mcp=COMMAND or command=COMMAND."
        ),
    ] = "muniment",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET", help="Another tool to compare with the tool under test. May be repeated."
        ),
    ] = None,
    attack_class: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="CLASS", help="Only the cases of this class. May be repeated."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this case; with --class: also this case. May be repeated."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Number of cases to run at the same time.",
            show_default="number of processors, at most 4",
        ),
    ] = None,
) -> Report:
    """Attack a memory tool with the packaged corpus.

    The attacks run in temporary directories; the command reports the results. A COMMAND implements the JSON
    lines of `muniment tool`, or the Model Context Protocol. In a COMMAND, {user}, {project} and {state} are
    replaced by directories. Exit 1 if anything escaped, leaked, hung or crashed.
    """
    from itertools import count

    from muniment.events import track_progress
    from muniment.testing.conformance import run_cases
    from muniment.testing.corpus import load_corpus

    targets, corpus = _parse_targets(target, peer or []), load_corpus()
    cases = _select_cases(attack_class or [], case or [], corpus)
    parallel_jobs = jobs or min(MAX_JOBS, len(os.sched_getaffinity(0)))
    total = len(targets) * (1 + len(cases))
    with convert_temp_errors(), track_progress("trying", unit="cases", total=total) as progress:
        ended = count(1)

        def count_case() -> None:
            progress.done = next(ended)

        results = run_cases(targets, corpus, cases, jobs=parallel_jobs, on_case_ended=count_case)
    code = 0 if results[0].is_passed else EXIT_FAILED
    return Report(_create_document(results, cases), _format_results(results, cases), code=code)


def _parse_targets(target: str, peers: Sequence[str]) -> list[Target]:
    """Parse the tools to attack.

    Args:
        target: the tool under test, such as `mcp=COMMAND`.
        peers: other tools to compare.

    Raises:
        BadParameter: a tool is unknown, or is listed twice.
    """
    from muniment.testing.conformance import parse_target

    found: list[Target] = []
    for option, spec in (("--target", target), *(("--peer", peer) for peer in peers)):
        try:
            parsed = parse_target(spec)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=option) from None
        if parsed in found:
            raise typer.BadParameter(f"target {spec!r} is listed twice; list it once", param_hint=option)
        found.append(parsed)
    return found


def _select_cases(attack_classes: Sequence[str], ids: Sequence[str], corpus: Corpus) -> Mapping[str, Case]:
    """Select the cases to run.

    Args:
        attack_classes: select all cases of these classes.
        ids: select these cases in addition. If both lists are empty, all cases are selected.
        corpus: the cases to select from.

    Raises:
        BadParameter: a class or a case is unknown.
    """
    from muniment.testing.conformance import select_cases

    known = {case["class"] for case in corpus.cases.values()}
    for name in attack_classes:
        if name not in known:
            message = f"unknown class {name!r}; use one of {', '.join(sorted(known))}"
            raise typer.BadParameter(message, param_hint="--class")
    for name in ids:
        if name not in corpus.cases:
            raise typer.BadParameter(
                f"case {name!r} not found; use the id of a case of the corpus", param_hint="--case"
            )
    return select_cases(corpus, classes=attack_classes, ids=ids)


# -- text --------------------------------------------------------------------------------------------


def _format_rerun(result: Result, finding: Finding) -> str:
    arguments = ["muniment", "conformance", "--target", result.target.spec, "--case", finding.case["id"]]
    return shlex.join(arguments)


def _select_findings(result: Result) -> Iterator[Finding]:
    """Yield the results to list: those that are bad, and for Muniment all that did not pass."""
    from muniment.testing.conformance import CaseOutcome
    from muniment.testing.corpus.stage import BAD

    for finding in result.findings:
        if finding.outcome in BAD or (
            result.target.promises.is_exact and finding.outcome is not CaseOutcome.PASSED
        ):
            yield finding


def _format_counts(findings: Sequence[Finding]) -> str:
    """Return a text such as `2 escaped*, 1 differs`, the worst outcome first.

    A `*` marks cases that the tool does not claim to withstand.
    """
    from muniment.testing.conformance import CaseOutcome
    from muniment.testing.corpus.stage import BAD

    counts = Counter(
        (list(CaseOutcome).index(each.outcome), each.is_beyond_claims and each.outcome in BAD)
        for each in findings
    )
    counts_by_outcome = [
        f"{count} {list(CaseOutcome)[at]}{'*' if is_beyond else ''}"
        for (at, is_beyond), count in sorted(counts.items())
    ]
    return ", ".join(counts_by_outcome) or "-"


def _count_skipped(result: Result) -> Counter[str]:
    """Count the skipped cases of a target, by the reason why they were skipped."""
    from muniment.testing.conformance import CaseOutcome

    skipped = (each for each in result.findings if each.outcome is CaseOutcome.SKIPPED)
    return Counter(each.failures[0].text for each in skipped)


def _create_titles(results: Sequence[Result]) -> list[str]:
    """Return a title for each target: its name, with a number if several targets have the same name."""
    names = [result.target.name for result in results]
    return [
        name if names.count(name) == 1 else f"{name} {names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _create_rows(results: Sequence[Result], cases: Mapping[str, Case]) -> Iterator[list[str]]:
    classes = dict.fromkeys(case["class"] for case in cases.values())
    for of_class in sorted(classes):
        yield [of_class, *(_format_counts(_select_class(result, of_class)) for result in results)]
    yield ["all", *(_format_counts(result.findings) for result in results)]


def _select_class(result: Result, of_class: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.case["class"] == of_class]


def _create_notes(results: Sequence[Result]) -> Iterator[str]:
    """Yield remarks about each target, which are printed below the table."""
    for head, result in zip(_create_titles(results), results, strict=True):
        name = head if result.about == result.target.name else f"{head}, {result.about}"
        if result.unusable is not None:
            yield f"{name}: not tried: {result.unusable}"
            continue
        yield f"{name}: claims: {result.target.claims.covers}"
        if result.target.claims.exclusions:
            yield f"  * outside of the claims: {result.target.claims.exclusions}"
        for reason, count in _count_skipped(result).most_common():
            yield f"  {count} skipped: {reason}"


def _format_verdict(result: Result, head: str) -> str:
    if result.unusable is not None:
        return f"{head}: not tried"
    return f"{head}: {'passed' if result.is_passed else 'FAILED'}: {_format_counts(result.findings)}"


# -- output ------------------------------------------------------------------------------------------


def _format_results(results: Sequence[Result], cases: Mapping[str, Case]) -> Iterator[str]:
    heads, rows = ["class", *_create_titles(results)], list(_create_rows(results, cases))
    if sys.stdout.isatty():
        draw_tables([(heads, [(row, _choose_style(row)) for row in rows])])
    else:
        widths = [max(len(row[index]) for row in (heads, *rows)) for index in range(len(heads))]
        for row in (heads, *rows):
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for note in _create_notes(results):
        yield clean_foreign_line(note) if not note.startswith("  ") else f"  {clean_foreign_line(note[2:])}"
    for head, result in zip(_create_titles(results), results, strict=True):
        for finding in _select_findings(result):
            yield from _format_finding(head, result, finding)
    yield clean_foreign_line(_format_verdict(results[0], heads[1]))


def _choose_style(row: Sequence[str]) -> str | None:
    """Return the style of a table row, or None.

    The outcomes in a cell are sorted, the worst first, so the first one decides.
    """
    from muniment.testing.corpus.stage import BAD

    is_bad = any(cell.split(" ")[1].strip("*,") in BAD for cell in row[1:] if " " in cell)
    return "bold red" if is_bad else None


def _format_finding(head: str, result: Result, finding: Finding) -> Iterator[str]:
    from muniment.testing.corpus.stage import BAD

    mark = "*" if finding.is_beyond_claims and finding.outcome in BAD else ""
    yield f"{head}: {finding.outcome}{mark}: {finding.case['id']} ({finding.case['class']})"
    yield f"  why   {clean_foreign_line(finding.case['why'])}"
    for failure in finding.failures[:MAX_FAILURE_LINES]:
        yield f"  seen  {clean_foreign_line(failure.text[-MAX_FAILURE_CHARACTERS:])}"
    if len(finding.failures) > MAX_FAILURE_LINES:
        yield f"  and {len(finding.failures) - MAX_FAILURE_LINES} more; --json has all"
    yield f"  rerun {clean_foreign_line(_format_rerun(result, finding))}"


def _create_document(results: Sequence[Result], cases: Mapping[str, Case]) -> dict[str, Any]:
    return {
        "version": __version__,
        "cases": len(cases),
        "passed": results[0].is_passed,
        "target": _create_result_document(results[0], cases),
        "peers": [_create_result_document(result, cases) for result in results[1:]],
    }


def _create_result_document(result: Result, cases: Mapping[str, Case]) -> dict[str, Any]:
    from muniment.testing.conformance import CaseOutcome

    claims = result.target.claims
    classes = sorted({case["class"] for case in cases.values()})
    tried = result.unusable is None
    return {
        "target": result.target.spec,
        "about": result.about,
        "unusable": result.unusable,
        "claims": {
            "covers": claims.covers,
            "leaves_out": claims.exclusions,
            "beyond": sorted(claims.excluded),
            "sources": list(claims.sources),
        },
        "outcomes": dict(result.count_outcomes()),
        "classes": {name: dict(result.count_outcomes(name)) for name in classes} if tried else {},
        "skipped": dict(_count_skipped(result)),
        "findings": [
            {
                "case": finding.case["id"],
                "class": finding.case["class"],
                "outcome": finding.outcome,
                "beyond_claims": finding.is_beyond_claims,
                "why": finding.case["why"],
                "seen": [{"kind": each.kind, "text": each.text} for each in finding.failures],
                "again": _format_rerun(result, finding),
            }
            for finding in result.findings
            if finding.outcome not in {CaseOutcome.PASSED, CaseOutcome.SKIPPED}
        ],
    }
