"""Implement `muniment policy lint`, `explain`, `test`, `prove` and `diff`: review and compare policies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muniment.cli.command import Report, command, load_settings
from muniment.cli.options import PolicyArgument
from muniment.cli.terminal import EXIT_FAILED, color_text, read_input_file
from muniment.content.gates import clean_line
from muniment.errors import ConfigInvalid, PolicyInvalid, printable

if TYPE_CHECKING:
    from muniment.lab.explain import Explanation
    from muniment.lab.proofs import Cause, Difference, Gain, InvariantFinding, Mutant
    from muniment.lab.review import LintFinding
    from muniment.policy.files import LoadedPolicy, PolicyText
    from muniment.policy.load import Act

Policies = Annotated[list[str], typer.Argument(metavar="POLICY…", help="Names or paths of policies.")]

# -- policy review -----------------------------------------------------------------------------------
#
# `muniment policy lint`, `explain`, `test` and `prove`: review one policy.

_COLOURS: Final = {"E": "red", "W": "yellow", "I": "dim"}


def load_for_review(policy: str, *, tested: bool = True) -> LoadedPolicy:
    """Load a policy from its file.

    A lock file next to it is ignored, because the policy may just have been edited.

    Args:
        policy: name or path of the policy.
        tested: whether to run its inline tests.
    """
    from muniment.policy.load import load_files
    from muniment.policy.tables import is_path

    return load_files(
        policy,
        policies_dir=load_settings().policies,
        unlocked=Path(policy).parent if is_path(policy) else None,
        run_tests=tested,
    )


def locate_rule(files: Iterable[PolicyText], layer: str, kind: str, rule: str, pattern: str | None) -> str:
    """Return the location of a rule, such as `policies/strict.toml:31`; without a line if it is unknown.

    Args:
        files: the files of the policy and of those that it extends.
        layer: the name of the policy file that contains the rule.
        kind: `allow` or `deny`.
        rule: the id of the rule.
        pattern: a path pattern of the rule, to locate its line; None: locate the rule.
    """
    from muniment.policy.tables import find_line

    for file in files:
        if file.name == layer:
            line = find_line(file.text, kind, rule, "paths", pattern) or find_line(file.text, kind, rule)
            return f"{file.where}:{line}" if line else file.where
    return layer


# -- lint -----------------------------------------------------------------------------------------


@command("not checked")
def policy_lint(*, policies: Policies) -> Report:
    """Report errors and risks in policies.

    Each finding has a line and a fix. Exit 1 if a policy has errors.
    """
    from muniment.lab.review import lint_policy

    folder = load_settings().policies
    found = {policy: lint_policy(policy, policies_dir=folder) for policy in policies}
    errors = sum(each.is_error for findings in found.values() for each in findings)
    documents = {policy: [asdict(each) for each in findings] for policy, findings in found.items()}
    return Report(
        {"status": "unfit" if errors else "fit", "findings": documents},
        _format_findings(found),
        code=EXIT_FAILED if errors else 0,
    )


def _format_findings(found: Mapping[str, Sequence[LintFinding]]) -> Iterator[str]:
    for policy, findings in found.items():
        for each in findings:
            line = f":{each.line}" if each.line else ""
            file, rule = _split_location(each.where, printable(policy))
            message = ": ".join(filter(None, [rule, each.problem]))
            yield color_text(f"{file}{line}: {each.code} {message}", _COLOURS[each.code[0]])
            yield color_text(f"    fix: {each.fix}", "dim")
        if not findings:
            yield color_text(f"{policy}: no findings", "green")


def _split_location(location: str, policy: str) -> tuple[str, str]:
    """Split the location of a finding into the file and the rule in the file.

    Args:
        location: the location, such as `strict.toml deny[secrets]`.
        policy: the name of the reviewed policy.
    """
    if location == policy or location.startswith(f"{policy} "):
        return policy, location.removeprefix(policy).strip()
    file, end, rule = location.partition(".toml ")
    return (
        (file + end.strip(), rule)
        if end
        else (location, "")
        if location.endswith(".toml")
        else _split_policy(location)
    )


def _split_policy(where: str) -> tuple[str, str]:
    name, _, rule = where.partition(" ")
    return name, rule


# -- explain --------------------------------------------------------------------------------------


@command("not explained")
def policy_explain(
    *,
    policy: PolicyArgument,
    verb: Annotated[
        str, typer.Argument(help="list, read, create, modify, delete, or removal (by Muniment itself).")
    ],
    path: Annotated[str, typer.Argument(help="A path as a model would write it, such as user/editor.md.")],
) -> Report:
    """Show how a policy decides a request, and why.

    Also show the rules that were checked, and the messages for the model and the operator.
    """
    from muniment.lab.explain import explain_decision

    act = _parse_act(verb)
    loaded = load_for_review(policy)
    explained = explain_decision(loaded.policy, act, path)
    policy_document = {"policy": loaded.policy.name, "digest": loaded.policy.digest}
    document = {"status": "explained", **policy_document, **_create_explanation(loaded, explained)}
    return Report(document, _format_explanation(loaded, explained))


def _parse_act(verb: str) -> Act:
    from muniment.policy.load import ACTS

    for act in ACTS:
        if act == verb:
            return act
    raise ConfigInvalid(f"unknown verb {printable(verb)!r}; use one of {', '.join(ACTS)}")


def _create_explanation(loaded: LoadedPolicy, explained: Explanation) -> dict[str, Any]:
    document = asdict(explained)
    document["model_is_told"] = document.pop("model_message")
    document["operator_is_told"] = document.pop("operator_message")
    for each in document["consulted"]:
        each["at"] = locate_rule(loaded.files, each["layer"], each["kind"], each["rule"], each["pattern"])
        each["why"] = _find_reason(loaded, each["layer"], each["kind"], each["rule"])
    return document


def _format_explanation(loaded: LoadedPolicy, explained: Explanation) -> Iterator[str]:
    from muniment.kernel.decide import NO_GRANT

    allowed = explained.verdict == "allow"
    what = f"{explained.act} {explained.path or explained.asked}"
    if allowed:
        decided = "every layer allows it"
    elif explained.rule == NO_GRANT:
        decided = f"no rule of the layer {explained.layer!r} allows it"
    else:
        decided = f"by the rule {explained.rule!r} of the layer {explained.layer!r}"
    yield color_text(f"{explained.verdict.upper()}  {what}: {decided}", "green" if allowed else "red")
    if not allowed:
        why = clean_line(_find_reason(loaded, explained.layer or "", "deny", explained.rule or ""))
        messages = {
            "why": why,
            "the model": _format_model_message(explained),
            "the operator": explained.operator_message,
        }
        for receiver, message in messages.items():
            if message:
                yield color_text(f"  {receiver:15} {message}", "dim")
    for each in explained.consulted:
        hit = f"matches {each.pattern!r}" if each.pattern is not None else "does not match"
        location = locate_rule(loaded.files, each.layer, each.kind, each.rule, each.pattern)
        line = f"  {each.kind:5} {each.rule:24} {hit}  ({location})"
        yield color_text(line, "dim" if each.pattern is None else "green" if each.kind == "allow" else "red")


def _format_model_message(explained: Explanation) -> str:
    return (
        f"receives: {explained.model_message}"
        if explained.model_message
        else "receives no message: the run ends"
    )


def _find_reason(loaded: LoadedPolicy, layer: str, kind: str, rule: str) -> str:
    for file in loaded.files:
        if file.name == layer:
            tables = file.tables.allow if kind == "allow" else file.tables.deny
            return next((table.why for table in tables if table.id == rule), "")
    return ""


# -- test -----------------------------------------------------------------------------------------


@command("not tested")
def policy_test(*, policies: Policies) -> Report:
    """Run the inline tests of policies.

    Also weaken each rule in turn, and check that a test then fails. Exit 1 if a test fails, or if no test
    detects a weakened rule.
    """
    from muniment.lab.proofs import generate_mutants
    from muniment.policy.load import find_failed_tests

    results: list[tuple[LoadedPolicy, list[PolicyInvalid], list[Mutant]]] = []
    for policy in policies:
        loaded = load_for_review(policy, tested=False)
        failed = list(find_failed_tests(loaded.files[0], loaded.policy))
        results.append((loaded, failed, [] if failed else list(generate_mutants(loaded))))
    is_good = all(not failed and not _select_undetected(made) for _, failed, made in results)
    return Report(
        {
            "status": "passed" if is_good else "failed",
            "policies": [_create_test_document(*each) for each in results],
        },
        (line for each in results for line in _format_test_result(*each)),
        code=0 if is_good else EXIT_FAILED,
    )


def _select_undetected(mutants: Iterable[Mutant]) -> list[Mutant]:
    return [each for each in mutants if each.status in {"survived", "undecided"}]


def _create_test_document(
    loaded: LoadedPolicy, failed: list[PolicyInvalid], mutants: list[Mutant]
) -> dict[str, Any]:
    return {
        "policy": loaded.files[0].where,
        "tests": len(loaded.files[0].tables.test),
        "failed": [{"line": each.line, "problem": each.problem} for each in failed],
        "mutants": [{**asdict(each), "suggestion": "\n".join(each.suggestion)} for each in mutants],
    }


def _format_test_result(
    loaded: LoadedPolicy, failed: list[PolicyInvalid], mutants: list[Mutant]
) -> Iterator[str]:
    where, tests = loaded.files[0].where, len(loaded.files[0].tables.test)
    for each in failed:
        location = f"{where}:{each.line}" if each.line else where
        yield color_text(f"{location}: {each.where.removeprefix(where).strip()} {each.problem}", "red")
    for mutant in _select_undetected(mutants):
        location = locate_rule(
            loaded.files[:1], loaded.files[0].name, mutant.kind, mutant.rule, mutant.pattern
        )
        yield color_text(f"{location}: no test detects {mutant.what}", "red")
        for line in _suggest_fix(mutant):
            yield color_text(f"    {line}", "dim")
    count = Counter(each.status for each in mutants)
    counts = ", ".join(
        f"{count[status]} {status}" for status in ("caught", "equivalent", "survived", "undecided")
    )
    summary = f"{len(failed)} failed" if failed else f"all passed; {len(mutants)} weakened variants: {counts}"
    yield color_text(
        f"{where}: {tests} {'test' if tests == 1 else 'tests'}, {summary}",
        "red" if failed or _select_undetected(mutants) else "green",
    )


def _suggest_fix(mutant: Mutant) -> list[str]:
    """Return a test that would detect the weakened rule, to paste into the policy; or other advice."""
    if mutant.status == "undecided":
        return ["fix: simplify the policy; it is too complex to compute the effect of this rule"]
    return ["fix: correct the rule if it has no effect, or add this test:", *mutant.suggestion]


# -- prove ----------------------------------------------------------------------------------------


@command("not proved")
def policy_prove(
    *,
    invariants: Annotated[
        str, typer.Argument(help="A file of invariants, such as policies/invariants.toml.")
    ],
    policies: Policies,
) -> Report:
    """Prove invariants, or refute them with a path.

    Exit 0 only if all invariants are proved for all policies.
    """
    from muniment.events import track_progress
    from muniment.lab import proofs
    from muniment.policy.files import parse_toml, read_text

    read, where = read_text(Path(invariants)), printable(invariants)
    if read is None:
        raise PolicyInvalid("E100", where, "file not found")
    invariants_read = proofs.read_invariants(parse_toml(read[0], where), where)
    found: dict[str, tuple[InvariantFinding, ...]] = {}
    with track_progress("proving the invariants", unit="policies", total=len(policies)) as progress:
        for policy in policies:
            found[policy] = proofs.prove_invariants(invariants_read, load_for_review(policy).policy)
            progress.done += 1
    is_proved = all(each.status == "proved" for findings in found.values() for each in findings)
    documents = {policy: [asdict(each) for each in findings] for policy, findings in found.items()}
    return Report(
        {"status": "proved" if is_proved else "not proved", "findings": documents},
        (
            line
            for policy, findings in found.items()
            for each in findings
            for line in _format_invariant(policy, each)
        ),
        code=0 if is_proved else EXIT_FAILED,
    )


def _format_invariant(policy: str, finding: InvariantFinding) -> Iterator[str]:
    paths = " and ".join(f"{each.act} {each.path}" for each in finding.witnesses)
    detail = {"proved": "", "broken": f": allows {paths}", "undecided": f": {finding.reason}"}[finding.status]
    line = f"{finding.status:9} {policy}: {finding.kind}[{finding.id}]{detail}"
    yield color_text(line, "green" if finding.status == "proved" else "red")
    if finding.why and finding.status != "proved":
        yield color_text(f"          {clean_line(finding.why)}", "dim")


# -- policy diff -------------------------------------------------------------------------------------
#
# `muniment policy diff`: show whether a new policy allows more than an old one, and where. A policy that
# allows more can be accepted: by a heading in a file, such as `policies/WIDENINGS.md`, with its name and the
# digests of the old and the new policy. The heading accepts only this change, because any further edit has
# another digest.

DIGEST_CHARS: Final = 32
"""Characters of a digest in such a heading: 128 bits, so that no other policy can be made to fit it."""

MAX_ACCEPTED_BYTES: Final = 1 << 20
"""Maximum bytes of a file with accepted changes."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
"""Matches a comment of Markdown, as CommonMark defines it.

A comment that is not closed extends to the end.
"""


@command("not compared")
def policy_diff(
    *,
    old: Annotated[str, typer.Argument(help="Name or path of a policy.")],
    new: Annotated[str, typer.Argument(help="Name or path of the policy to compare with it.")],
    accepted: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of accepted changes, such as WIDENINGS.md.")
    ] = None,
) -> Report:
    """Prove that NEW allows no more than OLD.

    Otherwise show the shortest path that only NEW allows, with its rule. Exit 0 only if this is proved or
    accepted.
    """
    from muniment.lab.proofs import compare_policies

    before, after = load_for_review(old), load_for_review(new)
    entries = read_input_file(accepted, MAX_ACCEPTED_BYTES).decode(errors="replace") if accepted else ""
    found = compare_policies(before.policy, after.policy)
    is_accepted = found.verdict != "proved" and create_heading(before, after) in _read_headings(entries)
    lines = [*_format_difference(before, after, found)]
    if is_accepted:
        lines += [color_text(f"accepted in {accepted}", "yellow")]
    elif found.verdict != "proved":
        where = accepted or "a file given with --accepted"
        lines += [
            color_text(
                f"to accept it, add this heading to {where}, with the approver and the reason:", "yellow"
            )
        ]
        lines += [f"## {create_heading(before, after)}"]
    return Report(
        _create_document(before, after, found, is_accepted=is_accepted),
        lines,
        code=0 if found.verdict == "proved" or is_accepted else EXIT_FAILED,
    )


def create_heading(before: LoadedPolicy, after: LoadedPolicy) -> str:
    """Return the heading in a file of accepted changes that accepts the change from one policy to another.

    Args:
        before: the old policy.
        after: the new policy.
    """
    old, new = (each.policy.digest[:DIGEST_CHARS] for each in (before, after))
    return f"{after.policy.name} {old} → {new}"


def _read_headings(text: str) -> set[str]:
    """Return the headings of the second level that accept a change.

    Headings in code blocks and comments are ignored.
    """
    found = (re.fullmatch(r"## (\S+ \S+ → \S+)[ \t\r]*", line) for line in _select_prose(text))
    return {match[1] for match in found if match}


def _select_prose(text: str) -> Iterator[str]:
    """Yield the lines of a Markdown text that are outside fenced blocks and comments."""
    fence: str | None = None
    for line in _COMMENT.sub("", text).split("\n"):
        marks = _FENCE.match(line)
        if fence is not None:
            is_end = marks is not None and marks[1].startswith(fence) and line.strip() == marks[1]
            fence = None if is_end else fence
        elif marks is not None:
            fence = marks[1]
        else:
            yield line


def _format_difference(before: LoadedPolicy, after: LoadedPolicy, found: Difference) -> Iterator[str]:
    old, new = before.policy.label, after.policy.label
    if found.verdict == "proved":
        yield color_text(f"proved: {new} allows nothing that {old} denies", "green")
    elif found.verdict == "wider":
        yield color_text(f"WIDER: {new} allows requests that {old} denies", "red")
    else:
        yield color_text(f"UNDECIDED, which counts as wider: {new} compared with {old}", "red")
    for gain in found.widenings:
        yield color_text(f"  wider     {', '.join(gain.acts)}  {gain.path}", "red")
        yield color_text(f"            {_describe_cause(gain.cause, before, after, wider=True)}", "red")
    for why in found.undecided:
        yield color_text(f"  undecided {why}", "red")
    for gain in found.narrowings:
        yield color_text(f"  narrower  {', '.join(gain.acts)}  {gain.path}", "green")
        yield color_text(f"            {_describe_cause(gain.cause, after, before, wider=False)}", "dim")
    for option in found.terms:
        line = (
            f"  {'LOOSER  ' if option.is_looser else 'stricter'}  {option.name}: {option.old} → {option.new}"
        )
        yield color_text(line, "red" if option.is_looser else "green")


def _describe_cause(cause: Cause, less: LoadedPolicy, more: LoadedPolicy, *, wider: bool) -> str:
    """Describe why one policy denies a request that the other allows.

    Args:
        cause: the cause that the comparison found.
        less: the policy that denies the request.
        more: the policy that allows the request.
        wider: whether `more` is the new policy.
    """
    if cause.kind == "scope":
        change = "is now declared" if wider else "is no longer declared"
        return f"the scope {cause.rule!r} ({_locate_cause(cause, less, more)}) {change}"
    if cause.kind == "layer":
        change = "is no longer part of the policy" if wider else "is now part of the policy"
        location = _locate_cause(cause, less, more)
        place = "" if location == cause.layer else f" ({location})"
        return f"the file {cause.layer!r}{place}, which denies it, {change}"
    location = _locate_cause(cause, less, more)
    rule_text = f"the {cause.kind} rule {cause.rule!r}, pattern {cause.pattern!r} ({location}),"
    if cause.kind == "deny":
        return f"{rule_text} {'no longer denies it' if wider else 'now denies it'}"
    return f"{rule_text} {'now allows it' if wider else 'no longer allows it'}"


def _locate_cause(cause: Cause, less: LoadedPolicy, more: LoadedPolicy) -> str:
    """Return the location of the rule or scope that is the cause.

    If the cause is a complete file, return the file.

    Args:
        cause: the cause that the comparison found.
        less: the policy that denies the request.
        more: the policy that allows the request.
    """
    from muniment.policy.tables import find_line

    if cause.kind == "scope":
        file = next(each for each in more.files if cause.rule in (each.tables.scopes or ()))
        line = find_line(file.text, "scopes", None, cause.rule)
        return f"{file.where}:{line}" if line else file.where
    policy = more if cause.kind == "allow" else less
    return locate_rule(policy.files, cause.layer, cause.kind, cause.rule, cause.pattern)


def _create_document(
    before: LoadedPolicy, after: LoadedPolicy, found: Difference, *, is_accepted: bool
) -> dict[str, Any]:
    return {
        "status": "compared",
        "verdict": found.verdict,
        "accepted": is_accepted,
        "entry": create_heading(before, after),
        "old": {"name": before.policy.name, "digest": before.policy.digest},
        "new": {"name": after.policy.name, "digest": after.policy.digest},
        "widenings": _create_gains(found.widenings, before, after),
        "narrowings": _create_gains(found.narrowings, after, before),
        "terms": [asdict(term) for term in found.terms],
        "undecided": list(found.undecided),
    }


def _create_gains(gains: Sequence[Gain], less: LoadedPolicy, more: LoadedPolicy) -> list[dict[str, Any]]:
    return [{**asdict(gain), "at": _locate_cause(gain.cause, less, more)} for gain in gains]
