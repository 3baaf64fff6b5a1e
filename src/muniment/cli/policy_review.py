"""`muniment policy lint`, `explain`, `test` and `prove`: what a reviewer asks about one policy."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from muniment.cli.report import EXIT_FAILED, coloured, configure_logging, print_document, print_failure, say
from muniment.content.gates import one_line
from muniment.errors import ConfigInvalid, MunimentError, PolicyInvalid, printable
from muniment.lab import proofs
from muniment.lab.explain import Explanation
from muniment.lab.explain import explain as explanation_of
from muniment.lab.proofs import Mutant, mutants
from muniment.lab.review import LintFinding
from muniment.lab.review import lint as findings_of
from muniment.policy.decide import ACTS, NO_GRANT, Act
from muniment.policy.family import PolicyText, parse_toml, read_text
from muniment.policy.load import Loaded, failed_tests, load_files
from muniment.policy.tables import is_path, line_of
from muniment.settings import read_settings

_COLOURS: Final = {"E": "red", "W": "yellow", "I": "dim"}


def load_for_review(policy: str, *, tested: bool = True) -> Loaded:
    """The policy as it stands, whatever a lock beside it says: it may just be edited."""
    return load_files(
        policy,
        policies_dir=read_settings(os.environ).policies,
        unlocked=Path(policy).parent if is_path(policy) else None,
        tested=tested,
    )


def place_of(files: Iterable[PolicyText], layer: str, kind: str, rule: str, pattern: str | None) -> str:
    """Where a pattern of a rule stands, or the rule: `policies/strict.toml:31`, without a line if unknown."""
    for file in files:
        if file.name == layer:
            line = line_of(file.text, kind, rule, "paths", pattern) or line_of(file.text, kind, rule)
            return f"{file.where}:{line}" if line else file.where
    return layer


# -- lint -----------------------------------------------------------------------------------------


def lint(policies: Sequence[str], *, as_json: bool) -> int:
    """Say everything that is wrong with policies, or looks so; 1 if one of them is unfit."""
    configure_logging()
    try:
        folder = read_settings(os.environ).policies
        found = {policy: findings_of(policy, policies_dir=folder) for policy in policies}
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not examined")
    errors = sum(each.is_error for findings in found.values() for each in findings)
    if as_json:
        shown = {policy: [asdict(each) for each in findings] for policy, findings in found.items()}
        print_document({"status": "unfit" if errors else "fit", "findings": shown})
    else:
        for policy, findings in found.items():
            for each in findings:
                _say_finding(policy, each)
            if not findings:
                say(coloured(f"{policy}: nothing to say", "green"))
    return EXIT_FAILED if errors else 0


def _say_finding(policy: str, finding: LintFinding) -> None:
    line = f":{finding.line}" if finding.line else ""
    file, rule = _parted(finding.where, printable(policy))
    said = ": ".join(filter(None, [rule, finding.problem]))
    say(coloured(f"{file}{line}: {finding.code} {said}", _COLOURS[finding.code[0]]))
    say(coloured(f"    fix: {finding.fix}", "dim"))


def _parted(where: str, policy: str) -> tuple[str, str]:
    """The file and the rule in it; the file is the policy or one that it extends."""
    if where == policy or where.startswith(f"{policy} "):
        return policy, where.removeprefix(policy).strip()
    file, end, rule = where.partition(".toml ")
    return (file + end.strip(), rule) if end else (where, "") if where.endswith(".toml") else _named(where)


def _named(where: str) -> tuple[str, str]:
    name, _, rule = where.partition(" ")
    return name, rule


# -- explain --------------------------------------------------------------------------------------


def explain(policy: str, verb: str, path: str, *, as_json: bool) -> int:
    """Say what a policy answers to one request, and why; 0 whatever the answer is."""
    configure_logging()
    try:
        act = _act(verb)
        loaded = load_for_review(policy)
        explained = explanation_of(loaded.policy, act, path)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not explained")
    if as_json:
        print_document(
            {
                "status": "explained",
                "policy": loaded.policy.name,
                "digest": loaded.policy.digest,
                **_explained(loaded, explained),
            }
        )
    else:
        _say_explanation(loaded, explained)
    return 0


def _act(verb: str) -> Act:
    for act in ACTS:
        if act == verb:
            return act
    raise ConfigInvalid(f"{printable(verb)!r} is no verb; there are {', '.join(ACTS)}")


def _explained(loaded: Loaded, explained: Explanation) -> dict[str, Any]:
    document = asdict(explained)
    for each in document["consulted"]:
        each["at"] = place_of(loaded.files, each["layer"], each["kind"], each["rule"], each["pattern"])
        each["why"] = _why(loaded, each["layer"], each["kind"], each["rule"])
    return document


def _say_explanation(loaded: Loaded, explained: Explanation) -> None:
    allowed = explained.verdict == "allow"
    what = f"{explained.act} {explained.path or explained.asked}"
    if allowed:
        decided = "every layer grants it"
    elif explained.rule == NO_GRANT:
        decided = f"nothing in the layer {explained.layer!r} grants it"
    else:
        decided = f"by the rule {explained.rule!r} of the layer {explained.layer!r}"
    say(coloured(f"{explained.verdict.upper()}  {what}: {decided}", "green" if allowed else "red"))
    if not allowed:
        why = one_line(_why(loaded, explained.layer or "", "deny", explained.rule or ""))
        told = {"why": why, "the model": _told(explained), "the operator": explained.operator_is_told}
        for whom, words in told.items():
            if words:
                say(coloured(f"  {whom:15} {words}", "dim"))
    for each in explained.consulted:
        hit = f"matches by {each.pattern!r}" if each.pattern is not None else "does not match"
        at = place_of(loaded.files, each.layer, each.kind, each.rule, each.pattern)
        line = f"  {each.kind:5} {each.rule:24} {hit}  ({at})"
        say(coloured(line, "dim" if each.pattern is None else "green" if each.kind == "allow" else "red"))


def _told(explained: Explanation) -> str:
    return (
        f"is told: {explained.model_is_told}" if explained.model_is_told else "is told nothing: the run ends"
    )


def _why(loaded: Loaded, layer: str, kind: str, rule: str) -> str:
    for file in loaded.files:
        if file.name == layer:
            tables = file.tables.allow if kind == "allow" else file.tables.deny
            return next((table.why for table in tables if table.id == rule), "")
    return ""


# -- test -----------------------------------------------------------------------------------------


def test(policies: Sequence[str], *, as_json: bool) -> int:
    """Run inline tests, and say which weakening of a policy they would not notice; 1 if there is one."""
    configure_logging()
    try:
        results = [_tested(policy) for policy in policies]
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not tested")
    is_good = all(not failed and not _missed(made) for _, failed, made in results)
    if as_json:
        print_document(
            {"status": "passed" if is_good else "failed", "policies": [_result(*each) for each in results]}
        )
    else:
        for result in results:
            _say_result(*result)
    return 0 if is_good else EXIT_FAILED


def _tested(policy: str) -> tuple[Loaded, list[PolicyInvalid], list[Mutant]]:
    loaded = load_for_review(policy, tested=False)
    failed = list(failed_tests(loaded.files[0], loaded.policy))
    return loaded, failed, [] if failed else list(mutants(loaded))


def _missed(made: Iterable[Mutant]) -> list[Mutant]:
    return [each for each in made if each.status in {"survived", "undecided"}]


def _result(loaded: Loaded, failed: list[PolicyInvalid], made: list[Mutant]) -> dict[str, Any]:
    return {
        "policy": loaded.files[0].where,
        "tests": len(loaded.files[0].tables.test),
        "failed": [{"line": each.line, "problem": each.problem} for each in failed],
        "mutants": [{**asdict(each), "suggestion": "\n".join(each.suggestion)} for each in made],
    }


def _say_result(loaded: Loaded, failed: list[PolicyInvalid], made: list[Mutant]) -> None:
    where, tests = loaded.files[0].where, len(loaded.files[0].tables.test)
    for each in failed:
        at = f"{where}:{each.line}" if each.line else where
        say(coloured(f"{at}: {each.where.removeprefix(where).strip()} {each.problem}", "red"))
    for mutant in _missed(made):
        at = place_of(loaded.files[:1], loaded.files[0].name, mutant.kind, mutant.rule, mutant.pattern)
        say(coloured(f"{at}: no test notices {mutant.what}", "red"))
        for line in _fix(mutant):
            say(coloured(f"    {line}", "dim"))
    count = Counter(each.status for each in made)
    counted = ", ".join(
        f"{count[status]} {status}" for status in ("caught", "equivalent", "survived", "undecided")
    )
    told = f"{len(failed)} failed" if failed else f"all hold; weakened in {len(made)} ways: {counted}"
    say(
        coloured(
            f"{where}: {tests} {'test' if tests == 1 else 'tests'}, {told}",
            "red" if failed or _missed(made) else "green",
        )
    )


def _fix(mutant: Mutant) -> list[str]:
    """A test to paste, or what to do where nobody knows one."""
    if mutant.status == "undecided":
        return ["fix: make the policy simpler; nobody can tell what this rule does"]
    return ["fix: correct the rule if it is idle, or add", *mutant.suggestion]


# -- prove ----------------------------------------------------------------------------------------


def prove(sentences: str, policies: Sequence[str], *, as_json: bool) -> int:
    """Prove a file of invariants for policies; 1 unless every one is proved."""
    configure_logging()
    try:
        read, where = read_text(Path(sentences)), printable(sentences)
        if read is None:
            raise PolicyInvalid("E100", where, "there is no such file")
        asked = proofs.read_invariants(parse_toml(read[0], where), where)
        found = {policy: proofs.prove(asked, load_for_review(policy).policy) for policy in policies}
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not proved")
    is_proved = all(each.status == "proved" for findings in found.values() for each in findings)
    if as_json:
        shown = {policy: [asdict(each) for each in findings] for policy, findings in found.items()}
        print_document({"status": "proved" if is_proved else "not proved", "findings": shown})
    else:
        for policy, findings in found.items():
            for each in findings:
                _say_invariant(policy, each)
    return 0 if is_proved else EXIT_FAILED


def _say_invariant(policy: str, finding: proofs.InvariantFinding) -> None:
    shown = " and ".join(f"{each.act} {each.path}" for each in finding.witnesses)
    told = {"proved": "", "broken": f": grants {shown}", "undecided": f": {finding.reason}"}[finding.status]
    line = f"{finding.status:9} {policy}: {finding.kind}[{finding.id}]{told}"
    say(coloured(line, "green" if finding.status == "proved" else "red"))
    if finding.why and finding.status != "proved":
        say(coloured(f"          {one_line(finding.why)}", "dim"))
