"""Review a policy file: find errors, ineffective rules and risks, each with its line and a correction."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from muniment.errors import PathEscape, PolicyInvalid, Refusal, printable
from muniment.kernel.decide import GATES, QUOTA_NUMBERS, Policy, Rule
from muniment.kernel.names import Enforcement, Scope, Verb
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.lab.explain import ConsultedRule, consult_rules
from muniment.lab.proofs import SCHEMA as INVARIANTS
from muniment.lab.proofs import PathSet, Prover
from muniment.policy.automaton import FoundPath
from muniment.policy.combine import SECTIONS
from muniment.policy.family import FamilyMember, read_family
from muniment.policy.files import LoadedPolicy, get_shipped_folder, parse_toml, read_text
from muniment.policy.load import (
    REMOVAL,
    Act,
    find_failed_tests,
    find_pattern_errors,
    get_act,
    load_files,
)
from muniment.policy.tables import CheckTable, build_quota, find_errors, find_line, is_path

# -- finding -----------------------------------------------------------------------------------------
#
# A finding of `lint_policy`: the problem, its line, and the correction.

_FIXES: Final = {
    "E100": "pass a policy file that you can read",
    "E101": "correct or remove the key; policies/policy.schema.json lists every valid key",
    "E102": "correct the TOML at this place",
    "E103": "add the key that is missing",
    "E104": "use one of the possible values",
    "E105": 'write schema = "muniment-policy/1"',
    "E107": "change one of the two ids",
    "E108": "list at least one item, or remove the table",
    "E109": "use the verbs list, read, create, modify, delete; * in deny rules only",
    "E110": "use a number within the bounds",
    "E111": "use another name, of a-z, 0-9, - and _",
    "E120": "create the policy, or correct the name",
    "E121": "remove the entry of `extends` that closes the cycle",
    "E122": "reduce the depth of `extends`",
    "E123": "use the same name in the file and in the reference to it",
    "E124": "rename one of the two policies",
    "E125": "declare a scope in [scopes]",
    "E127": "write the path relative to the folder of this file",
    "E130": "review the change, then run: muniment policy lock FOLDER",
    "E131": "review the file, then run: muniment policy lock FOLDER",
    "E132": "review the policies in FOLDER, then run: muniment policy lock FOLDER",
    "E201": "remove the pattern, or correct the name that no file can have",
    "E202": "use fewer wildcards, or several patterns",
    "E203": "write the pattern with literals, *, ? and ** only",
    "E204": "write the pattern in another way, or install the required version of pathspec",
    "E205": "start the pattern with / and a scope",
    "E206": "declare the scope or correct its name; for every scope, write /**/ in front, or only a name",
    "E401": "correct the rule, or the expectation of the test",
}


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A finding about a policy.

    Attributes:
        code: code of the problem, see the list above `lint_policy`; only codes with `E` make a file invalid.
        where: the file, and the key or rule in it.
        line: line in that file; None if it is unknown.
        problem: a description of the problem.
        fix: a description of the correction.
    """

    code: str
    where: str
    line: int | None
    problem: str
    fix: str

    @property
    def is_error(self) -> bool:
        """Return whether the code is an error (`E`)."""
        return self.code.startswith("E")


def convert_to_findings(problems: Iterable[PolicyInvalid]) -> list[LintFinding]:
    """Convert load errors to findings, each with a suggested fix."""
    return sort_findings(
        [LintFinding(each.rule, each.where, each.line, each.problem, _suggest_fix(each)) for each in problems]
    )


def sort_findings(findings: list[LintFinding]) -> list[LintFinding]:
    """Return errors first, then warnings, then information, each group in the order of lines."""
    return sorted(findings, key=lambda each: ("EWI".index(each.code[0]), each.line or 0, each.code))


def _suggest_fix(problem: PolicyInvalid) -> str:
    """Return a suggested correction, with the exact text to write if it is known."""
    if suggestion := re.search(r"did you mean ('[^']+')\?", problem.problem):
        return f"write {suggestion[1]}"
    if remedy := re.search(r"; run: (.+)$", problem.problem):
        return f"run: {remedy[1]}"
    if quoted := re.match(r"pattern ('(?:[^'\\]|\\.)*'|\"[^\"]*\") ", problem.problem):
        pattern: str = literal_eval(quoted[1])
        corrected = normalise("NFKC", pattern).strip()
        if problem.rule == "E205" and "/" not in pattern:
            return f"write {'/**/' + pattern!r}, or start with one scope instead of **"
        if problem.rule == "E205":
            return f"write {'/' + pattern!r}"
        is_normalisation = any(each in problem.problem[quoted.end() :] for each in ("white space", "NFKC"))
        if is_normalisation and corrected not in {pattern, ""} and corrected.isprintable():
            return f"write {corrected!r}"
    return _FIXES.get(problem.rule, "correct the reported problem")


# -- review ------------------------------------------------------------------------------------------
#
# The findings of `lint_policy` for a policy that loads, without errors.

_STRICTER_FIX: Final = "remove the key, or use a value that is at least as strict"

USER: Final = Scope("user")
TEAM: Final = Scope("team")
"""Names of two scopes: `user` is the memory of one user; other users read `team`. See finding W804."""


_Location = tuple[str, str | None, *tuple[str, ...]]
"""The place of a finding: a kind of table, its id (None if there is only one), and a pattern or a key."""

_Remark = tuple[str, str, str, _Location]
"""The code of a finding, the problem, the fix, and the place."""


class PolicyReview:
    """Finds problems in a policy that has loaded."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        self._file, self._policy = loaded.files[0], loaded.policy
        self._own_layer = loaded.own_layer
        self._others = [layer for layer in self._policy.layers if layer is not self._own_layer]
        counted = [path for file in loaded.files for quota in file.tables.quota for path in quota.paths]
        self._parent_quotas = [build_quota(table) for file in loaded.files[1:] for table in file.tables.quota]
        self._prover = Prover([self._policy], exact=counted)

    def find_all(self) -> Iterator[LintFinding]:
        """Yield all findings about the policy, except load errors."""
        wider = self._find_wider_terms() if self._others else ()
        for remark in chain(
            self._check_allow_rules(),
            self._check_deny_rules(),
            self._find_untested_rules(),
            wider,
            self._find_risks(),
        ):
            yield self._create_finding(*remark)

    def _check_allow_rules(self) -> Iterator[_Remark]:
        """Yield findings about allow rules that match no path (W301) or grant nothing (W302)."""
        for rule in self._own_layer.allow:
            empty = [path for path in rule.paths if self._is_empty(self._prover.exact([path]))]
            for path in empty:
                problem = "matches no path that the name grammar allows"
                yield "W301", problem, "remove or correct the pattern", ("allow", rule.id, path)
            requested = self._prover.exact(rule.paths)
            if len(empty) < len(rule.paths) and all(
                self._is_empty(requested, self._prover.build_granted_set(self._policy, verb))
                for verb in rule.verbs
            ):
                problem = "grants nothing: each of its paths is denied, or not granted by a parent"
                yield "W302", problem, "remove the rule, or the rules that deny it", ("allow", rule.id)

    def _check_deny_rules(self) -> Iterator[_Remark]:
        """Yield findings about deny patterns that others cover (W303) or that deny nothing granted (W304)."""
        for rule in self._own_layer.deny:
            for path in rule.paths:
                acts: list[Act] = [REMOVAL if verb is Verb.DELETE else verb for verb in rule.verbs]
                location = ("deny", rule.id, path)
                requested = (
                    self._prover.build_requested_set(self._policy.layers, act) for act in (*acts, *rule.verbs)
                )
                tree = self._prover.match_tree([path])
                if all(self._is_empty(tree, each) for each in requested):
                    problem = "denies only paths that no rule grants"
                    yield "W304", problem, "keep it as a safeguard, or remove it", location
                elif all(
                    self._is_empty(tree, ~self._build_covered_set(verb, rule, path)) for verb in rule.verbs
                ):
                    problem = "denies only paths that other patterns deny"
                    yield "W303", problem, "remove it or the pattern that covers it, but not both", location

    def _build_covered_set(self, verb: Verb, rule: Rule, path: str) -> PathSet:
        """Return the set of paths that all deny patterns except `path` of `rule` cover, for `verb`.

        Another rule may contain an equal pattern.
        """
        return self._prover.match_tree(
            each
            for layer in self._policy.layers
            for other in layer.deny
            if verb in other.verbs
            for each in other.paths
            if other is not rule or each != path
        )

    def _find_untested_rules(self) -> Iterator[_Remark]:
        """Yield a finding (I501) for each rule that no inline test uses: no path of a test matches it."""
        used = {
            (each.kind, each.rule)
            for check in self._file.tables.test
            for each in _consult_or_skip(self._policy, check)
            if each.pattern is not None and each.layer == self._own_layer.name
        }
        for kind, rules in (("allow", self._own_layer.allow), ("deny", self._own_layer.deny)):
            for rule in rules:
                if (kind, rule.id) not in used:
                    fix = "add a [[test]] with a path that it matches"
                    yield "I501", "is not used by any inline test", fix, (kind, rule.id)

    def _find_wider_terms(self) -> Iterator[_Remark]:
        """Yield findings (E601) for rules, scopes, quotas and terms that are wider than the parents allow."""
        yield from self._find_wider_rules()
        yield from self._find_wider_scopes()
        for kind, name, key, applied in (*self._find_larger_quotas(), *self._find_looser_terms()):
            yield (
                "E601",
                f"is looser than in a parent policy; {applied} applies",
                _STRICTER_FIX,
                (kind, name, key),
            )

    def _find_wider_rules(self) -> Iterator[_Remark]:
        for rule in self._own_layer.allow:
            for verb in rule.verbs:
                sets = (self._prover.exact(rule.paths), ~self._prover.build_requested_set(self._others, verb))
                path = self._find_path(self._policy.scopes, *sets)
                if path is not None:
                    problem = f"requests {verb} on {path.text}, which a parent does not grant"
                    fix = "request at most the grants of the parents, or extend another policy"
                    yield "E601", problem, fix, ("allow", rule.id)
                    break

    def _find_wider_scopes(self) -> Iterator[_Remark]:
        effective = {effective_scope.name: effective_scope for effective_scope in self._policy.scope_options}
        for name, requested in (self._file.tables.scopes or {}).items():
            location = ("scopes", None, name)
            effective_scope = effective.get(Scope(name))
            if effective_scope is None:
                problem = f"declares the scope {name!r}, but a parent does not"
                yield "E601", problem, "remove the scope", location
                continue
            for key in sorted(requested.model_fields_set):
                requested_value, applied = getattr(requested, key), getattr(effective_scope, key)
                if requested_value != applied:
                    problem = f"sets {key} = {str(requested_value)!r}; {str(applied)!r} of a parent applies"
                    yield "E601", problem, _STRICTER_FIX, location

    def _find_larger_quotas(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield kind, id and key of each quota number looser than a parent's, and the number that applies."""
        for quota in self._file.tables.quota:
            counted = self._prover.exact(build_quota(quota).paths)
            covering = [
                each
                for each in self._parent_quotas
                if self._is_empty(counted, ~self._prover.exact(each.paths))
            ]
            for key in sorted(quota.model_fields_set & {*QUOTA_NUMBERS}):
                least = min((getattr(each, key) for each in covering), default=getattr(quota, key))
                if least < getattr(quota, key):
                    yield "quota", quota.id, key, least

    def _find_looser_terms(self) -> Iterator[tuple[str, None, str, str]]:
        """Yield table and key of each term that a parent overrides, and the value that applies."""
        for table in SECTIONS:
            own, effective = getattr(self._file.tables, table), getattr(self._policy, table)
            for key in sorted(own.model_fields_set):
                requested, applied = _format_value(getattr(own, key)), _format_value(getattr(effective, key))
                if requested != applied:
                    yield table, None, key, applied

    def _find_risks(self) -> Iterator[_Remark]:
        """Yield findings about risks of the effective policy (W801 to W806)."""
        policy = self._policy
        if (path := self._find_granted_path(Verb.DELETE, policy.scopes)) is not None:
            problem = f"the model may delete {path.text}"
            yield "W801", problem, "do not grant delete; forget and dream remove entries", ("allow", None)
        for code, is_risky, table, key, problem, fix in (
            ("W802", policy.confinement.require is Enforcement.NONE, "confinement", "require",
             "the tools may run in the broker's own process", 'set require = "partial" or "full"'),
            ("W803", policy.provenance.untrusted_sources == "allow", "provenance", "untrusted_sources",
             "external facts are stored without review", 'set "quarantine" or "reject"'),
            ("W805", set(policy.content.reject) != set(GATES), "content", "reject",
             "characters that hide text, or active markup, are allowed", "omit `reject` to apply all gates"),
            ("W805", policy.content.instructions == "allow", "content", "instructions",
             "text that addresses an agent is stored without review", 'set "quarantine"'),
            ("W805", policy.content.poison == "allow", "content", "poison",
             "facts of agents that could cause harm later are stored without review", 'set "quarantine"'),
            ("W806", policy.confinement.on_escape == "refuse", "confinement", "on_escape",
             "a run that tried to escape continues and is committed", 'set "abort"'),
        ):  # fmt: skip
            if is_risky:
                yield code, problem, fix, (table, None, key)
        yield from self._find_team_leaks()

    def _find_team_leaks(self) -> Iterator[_Remark]:
        """Yield a finding (W804) if a run may read the scope `user` and write the scope `team`."""
        if not {TEAM, USER} <= set(self._policy.scopes):
            return
        reads = self._find_granted_path(Verb.READ, [USER])
        writes = [self._find_granted_path(verb, [TEAM]) for verb in (Verb.CREATE, Verb.MODIFY)]
        written = next((path for path in writes if path is not None), None)
        if reads is not None and written is not None:
            problem = f"one run may read {reads.text} and write {written.text}, which other users read"
            yield "W804", problem, "split the policy into two", ("scopes", None, TEAM)

    def _find_granted_path(self, verb: Verb, scopes: Collection[Scope]) -> CanonicalPath | None:
        """Return the shortest path on which the policy grants the verb, or None."""
        return self._find_path(scopes, self._prover.build_granted_set(self._policy, verb))

    def _find_path(self, scopes: Collection[Scope], *sets: PathSet) -> CanonicalPath | None:
        outcome = self._prover.find_path(scopes, *sets)
        return outcome.path if isinstance(outcome, FoundPath) else None

    def _is_empty(self, *sets: PathSet) -> bool:
        return self._prover.is_empty(self._policy.scopes, *sets)

    def _create_finding(self, code: str, problem: str, fix: str, location: _Location) -> LintFinding:
        """Return a finding about a rule, one of its patterns, or a key, with its line in the file."""
        kind, name, *rest = location
        named = f"{kind}[{name}]" if name else ".".join([kind, *rest])
        is_pattern = name is not None and kind != "quota" and bool(rest)
        key, value = ("paths", rest[0]) if is_pattern else (rest[0] if rest else None, None)
        line = find_line(self._file.text, kind, name, key, value) or find_line(self._file.text, kind)
        subject = f"pattern {value!r} " if value else f"{key} " if name and key else ""
        return LintFinding(code, f"{self._file.where} {named}", line, subject + problem, fix)


def _consult_or_skip(policy: Policy, check: CheckTable) -> Iterator[ConsultedRule]:
    with suppress(PathEscape, Refusal):
        yield from consult_rules(policy, get_act(check), canonicalise(check.path, policy.scopes))


def _format_value(value: object) -> str:
    """Return a value of a policy as text; a list is sorted."""
    return ", ".join(sorted(map(str, value))) if isinstance(value, tuple) else str(value)


# -- lint --------------------------------------------------------------------------------------------
#
# Findings about a policy file, with the line and the correction:
#
#     E1xx E2xx E4xx   as in `load`: the file does not load; all errors of the first stage that has any, but
#                      only the first error of a parent
#     E601  the file requests more than its parents grant; harmless because of the meet, but misleading
#     W301  an allow pattern that matches no path          W302  an allow rule that is denied completely
#     W303  a deny pattern that others cover               W304  a deny pattern for paths without grants
#     I501  a rule that no inline test uses
#     W801  delete is granted to the model                 W802  no confinement is required
#     W803  external facts are stored without review       W804  a run may read `user` and write `team`
#     W805  gates are disabled                             W806  an escape does not end the run
#
# The findings W3xx, E601, W801 and W804 are proved by automata; undecided cases are not reported.


def lint_policy(name_or_path: str, *, policies_dir: Path | None = None) -> list[LintFinding]:
    """Return all findings about a policy: errors first, then warnings and information, by line.

    Args:
        name_or_path: name or path of the policy, as for `load_files`.
        policies_dir: folder with more policies, as for `load_files`. Lock files next to the policy are
            ignored, because the policy is being edited.

    Cost: a search for each deny pattern and allow rule; a policy like `strict` takes 0.3 s.
    """
    try:
        member = read_family(name_or_path, policies_dir)
    except PolicyInvalid as problem:
        return convert_to_findings(_find_file_problems(name_or_path, policies_dir) or [problem])
    path = member.file.path
    folder = path.parent if path else None
    try:
        loaded = load_files(name_or_path, policies_dir=policies_dir, unlocked=folder, run_tests=False)
    except PolicyInvalid as problem:
        return convert_to_findings(_find_pattern_problems(member) or [problem])
    failed = convert_to_findings(find_failed_tests(loaded.files[0], loaded.policy))
    return sort_findings([*failed, *PolicyReview(loaded).find_all()])


def _find_file_problems(name_or_path: str, policies_dir: Path | None) -> list[PolicyInvalid]:
    """Return the problems of one file, without its parents; empty if the file cannot be read."""
    named = [folder / f"{name_or_path}.toml" for folder in (get_shipped_folder(), policies_dir) if folder]
    where = printable(name_or_path)
    with suppress(PolicyInvalid):
        for path in [Path(name_or_path)] if is_path(name_or_path) else named:
            if (read := read_text(path)) is not None:
                data = parse_toml(read[0], where)
                if data.get("schema") == INVARIANTS:
                    problem = "is an invariants file; run: muniment policy prove FILE POLICY"
                    return [PolicyInvalid("E105", where, problem)]
                return find_errors(data, where, read[0])
    return []


def _find_pattern_problems(member: FamilyMember) -> list[PolicyInvalid]:
    with suppress(PolicyInvalid):
        return find_pattern_errors(member)
    return []
