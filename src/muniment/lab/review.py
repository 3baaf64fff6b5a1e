"""Review a policy: explain its decisions, report the findings of `lint`, and locate them by line."""

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
from muniment.kernel.normal_forms import normalised
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.lab.explain import Consulted, consult
from muniment.lab.proofs import SCHEMA as INVARIANTS
from muniment.lab.proofs import PathSet, Prover
from muniment.policy.automaton import FoundPath
from muniment.policy.family import Member, parse_toml, read_family, read_text, shipped_folder
from muniment.policy.load import (
    REMOVAL,
    Act,
    Loaded,
    act_of,
    failed_tests,
    load_files,
    wrong_patterns,
)
from muniment.policy.tables import SECTIONS, CheckTable, complaints, is_path, line_of, quota_of

# -- finding -----------------------------------------------------------------------------------------
#
# A finding of `lint`: the problem, its line, and the correction.

_FIXES: Final = {
    "E100": "pass a policy file that you can read",
    "E101": "correct or remove the key; policies/policy.schema.json lists every one",
    "E102": "correct the TOML there",
    "E103": "add the key",
    "E104": "use one of the possible values",
    "E105": 'write schema = "muniment-policy/1"',
    "E107": "change one of the two ids",
    "E108": "list at least one, or remove the table",
    "E109": "use the verbs list, read, create, modify, delete; * in deny rules only",
    "E110": "choose a number within the bounds",
    "E111": "use another name, of a-z, 0-9, - and _",
    "E120": "create the policy, or correct the name",
    "E121": "remove the entry of `extends` that closes the cycle",
    "E122": "reduce the depth of `extends`",
    "E123": "use the same name in the file and in the reference to it",
    "E124": "rename one of the two",
    "E125": "declare a scope in [scopes]",
    "E127": "write the path relative to the folder of this file",
    "E130": "review the change, then run: muniment policy lock FOLDER",
    "E131": "review the file, then run: muniment policy lock FOLDER",
    "E132": "review the policies there, then run: muniment policy lock FOLDER",
    "E201": "remove the pattern, or correct the name in it",
    "E202": "use fewer wildcards, or several patterns",
    "E203": "write the pattern with literals, *, ? and ** only",
    "E204": "write the pattern in another way, or install the required version of pathspec",
    "E205": "start the pattern with / and a scope",
    "E206": "declare the scope or correct its name; for every scope, write /**/ in front, or only a name",
    "E401": "correct the rule, or the expectation of the test",
}


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding about a policy.

    Attributes:
        code: of the list below; `E` makes a file invalid, `W` and `I` do not.
        where: the file, and the key or rule in it.
        line: in that file; None if it is unknown.
        problem: the problem.
        fix: the correction.
    """

    code: str
    where: str
    line: int | None
    problem: str
    fix: str

    @property
    def is_error(self) -> bool:
        """Return whether the file is invalid."""
        return self.code.startswith("E")


def as_findings(problems: Iterable[PolicyInvalid]) -> list[LintFinding]:
    """Return the load errors as findings, each with a fix."""
    return in_order(
        [LintFinding(each.rule, each.where, each.line, each.problem, _fix(each)) for each in problems]
    )


def in_order(findings: list[LintFinding]) -> list[LintFinding]:
    """Return errors first, then the other findings in the order of lines."""
    return sorted(findings, key=lambda each: ("EWI".index(each.code[0]), each.line or 0, each.code))


def _fix(problem: PolicyInvalid) -> str:
    """Return the correction, with the exact text if it is known."""
    if meant := re.search(r"did you mean ('[^']+')\?", problem.problem):
        return f"write {meant[1]}"
    if remedy := re.search(r"; run: (.+)$", problem.problem):
        return f"run: {remedy[1]}"
    if quoted := re.match(r"pattern ('(?:[^'\\]|\\.)*'|\"[^\"]*\") ", problem.problem):
        pattern: str = literal_eval(quoted[1])
        corrected = normalised("NFKC", pattern).strip()
        if problem.rule == "E205" and "/" not in pattern:
            return f"write {'/**/' + pattern!r}, or start with one scope instead of **"
        if problem.rule == "E205":
            return f"write {'/' + pattern!r}"
        is_of_form = any(each in problem.problem[quoted.end() :] for each in ("white space", "NFKC"))
        if is_of_form and corrected not in {pattern, ""} and corrected.isprintable():
            return f"write {corrected!r}"
    return _FIXES.get(problem.rule, "correct the reported problem")


# -- review ------------------------------------------------------------------------------------------
#
# The findings of `lint` for a policy that loads, without errors.

_AS_STRICT: Final = "remove the key, or use a value as strict"

USER: Final = Scope("user")
TEAM: Final = Scope("team")
"""The scope of one user, and the scope that other users read; see W804."""


_Place = tuple[str, str | None, *tuple[str, ...]]
"""A kind of table, its id if there are several, and a pattern or a key."""

_Remark = tuple[str, str, str, _Place]
"""The code of a finding, the problem, the fix, and the place."""


class PolicyReview:
    """One policy with its files."""

    def __init__(self, loaded: Loaded) -> None:
        self._file, self._policy = loaded.files[0], loaded.policy
        self._own = loaded.own
        self._others = [layer for layer in self._policy.layers if layer is not self._own]
        counted = [path for file in loaded.files for quota in file.tables.quota for path in quota.paths]
        self._parent_quotas = [quota_of(table) for file in loaded.files[1:] for table in file.tables.quota]
        self._prover = Prover([self._policy], exact=counted)

    def findings(self) -> Iterator[LintFinding]:
        """Yield all findings except load errors."""
        wider = self._wider_than_parents() if self._others else ()
        for remark in chain(self._allows(), self._denies(), self._untested(), wider, self._risks()):
            yield self._found(*remark)

    def _allows(self) -> Iterator[_Remark]:
        """Yield W301 and W302."""
        for rule in self._own.allow:
            empty = [path for path in rule.paths if self._is_empty(self._prover.exact([path]))]
            for path in empty:
                problem = "matches no path that the name grammar allows"
                yield "W301", problem, "remove or correct the pattern", ("allow", rule.id, path)
            asked = self._prover.exact(rule.paths)
            if len(empty) < len(rule.paths) and all(
                self._is_empty(asked, self._prover.grant(self._policy, verb)) for verb in rule.verbs
            ):
                problem = "grants nothing: each of its paths is denied, or not granted by a parent"
                yield "W302", problem, "remove the rule, or the rules that deny it", ("allow", rule.id)

    def _denies(self) -> Iterator[_Remark]:
        """Yield W303 and W304."""
        for rule in self._own.deny:
            for path in rule.paths:
                acts: list[Act] = [REMOVAL if verb is Verb.DELETE else verb for verb in rule.verbs]
                place = ("deny", rule.id, path)
                asked = (self._prover.asked(self._policy.layers, act) for act in (*acts, *rule.verbs))
                tree = self._prover.tree([path])
                if all(self._is_empty(tree, each) for each in asked):
                    problem = "denies only paths that no rule grants"
                    yield "W304", problem, "keep it as a safeguard, or remove it", place
                elif all(self._is_empty(tree, ~self._covered(verb, rule, path)) for verb in rule.verbs):
                    problem = "denies only paths that other patterns deny"
                    yield "W303", problem, "remove it or the pattern that covers it, but not both", place

    def _covered(self, verb: Verb, rule: Rule, path: str) -> PathSet:
        """Return the paths that all other patterns deny. Another rule may have an equal pattern."""
        return self._prover.tree(
            each
            for layer in self._policy.layers
            for other in layer.deny
            if verb in other.verbs
            for each in other.paths
            if other is not rule or each != path
        )

    def _untested(self) -> Iterator[_Remark]:
        """Yield I501: no inline test uses a path that the rule matches."""
        reached = {
            (each.kind, each.rule)
            for check in self._file.tables.test
            for each in _consulted(self._policy, check)
            if each.pattern is not None and each.layer == self._own.name
        }
        for kind, rules in (("allow", self._own.allow), ("deny", self._own.deny)):
            for rule in rules:
                if (kind, rule.id) not in reached:
                    fix = "add a [[test]] with a path that it matches"
                    yield "I501", "is not used by any inline test", fix, (kind, rule.id)

    def _wider_than_parents(self) -> Iterator[_Remark]:
        """Yield E601: rules, scopes, quotas and terms that request more than the meet allows."""
        yield from self._wider_rules()
        yield from self._wider_scopes()
        for kind, name, key, holds in (*self._larger_quotas(), *self._looser_terms()):
            yield "E601", f"is looser than in a parent; {holds} applies", _AS_STRICT, (kind, name, key)

    def _wider_rules(self) -> Iterator[_Remark]:
        for rule in self._own.allow:
            for verb in rule.verbs:
                sets = (self._prover.exact(rule.paths), ~self._prover.asked(self._others, verb))
                path = self._path_in(self._policy.scopes, *sets)
                if path is not None:
                    problem = f"requests {verb} on {path.text}, which a parent does not grant"
                    fix = "request at most the grants of the parents, or extend another policy"
                    yield "E601", problem, fix, ("allow", rule.id)
                    break

    def _wider_scopes(self) -> Iterator[_Remark]:
        effective = {terms.name: terms for terms in self._policy.scope_terms}
        for name, asked in (self._file.tables.scopes or {}).items():
            place = ("scopes", None, name)
            terms = effective.get(Scope(name))
            if terms is None:
                yield "E601", f"declares the scope {name!r}, which a parent does not", "remove it", place
                continue
            for key in sorted(asked.model_fields_set):
                own, holds = getattr(asked, key), getattr(terms, key)
                if own != holds:
                    problem = f"sets {key} = {str(own)!r}; {str(holds)!r} of a parent applies"
                    yield "E601", problem, _AS_STRICT, place

    def _larger_quotas(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield kind, id and key of each number looser than a parent's, and the number that applies."""
        for quota in self._file.tables.quota:
            counted = self._prover.exact(quota_of(quota).paths)
            holding = [
                each
                for each in self._parent_quotas
                if self._is_empty(counted, ~self._prover.exact(each.paths))
            ]
            for key in sorted(quota.model_fields_set & {*QUOTA_NUMBERS}):
                least = min((getattr(each, key) for each in holding), default=getattr(quota, key))
                if least < getattr(quota, key):
                    yield "quota", quota.id, key, least

    def _looser_terms(self) -> Iterator[tuple[str, None, str, str]]:
        """Yield table and key of each term that differs from the effective one, and the effective value."""
        for table in SECTIONS:
            own, effective = getattr(self._file.tables, table), getattr(self._policy, table)
            for key in sorted(own.model_fields_set):
                asked, holds = _plain(getattr(own, key)), _plain(getattr(effective, key))
                if asked != holds:
                    yield table, None, key, holds

    def _risks(self) -> Iterator[_Remark]:
        """Yield W8xx for the effective policy."""
        policy = self._policy
        if (path := self._granted(Verb.DELETE, policy.scopes)) is not None:
            problem = f"the model may delete {path.text}"
            yield "W801", problem, "leave removals to code: forget, dream", ("allow", None)
        for code, is_risky, table, key, problem, fix in (
            ("W802", policy.confinement.require is Enforcement.NONE, "confinement", "require",
             "the tools may run in the broker's own process", 'require = "partial" or "full"'),
            ("W803", policy.provenance.untrusted_sources == "allow", "provenance", "untrusted_sources",
             "external facts are stored without review", '"quarantine" or "reject"'),
            ("W805", set(policy.content.reject) != set(GATES), "content", "reject",
             "characters that hide text, or active markup, are allowed", "omit `reject`: all gates"),
            ("W805", policy.content.instructions == "allow", "content", "instructions",
             "text that addresses an agent is stored without review", '"quarantine"'),
            ("W805", policy.content.poison == "allow", "content", "poison",
             "facts of agents that could cause harm later are stored without review", '"quarantine"'),
            ("W806", policy.confinement.on_escape == "refuse", "confinement", "on_escape",
             "a run with an escape attempt continues and is committed", '"abort"'),
        ):  # fmt: skip
            if is_risky:
                yield code, problem, fix, (table, None, key)
        yield from self._leaks_to_team()

    def _leaks_to_team(self) -> Iterator[_Remark]:
        """Yield W804."""
        if not {TEAM, USER} <= set(self._policy.scopes):
            return
        reads = self._granted(Verb.READ, [USER])
        writes = [self._granted(verb, [TEAM]) for verb in (Verb.CREATE, Verb.MODIFY)]
        written = next((path for path in writes if path is not None), None)
        if reads is not None and written is not None:
            problem = f"one run may read {reads.text} and write {written.text}, which other users read"
            yield "W804", problem, "split it into two policies", ("scopes", None, TEAM)

    def _granted(self, verb: Verb, scopes: Collection[Scope]) -> CanonicalPath | None:
        """Return the shortest path on which the policy grants the verb, or None."""
        return self._path_in(scopes, self._prover.grant(self._policy, verb))

    def _path_in(self, scopes: Collection[Scope], *sets: PathSet) -> CanonicalPath | None:
        outcome = self._prover.find(scopes, *sets)
        return outcome.path if isinstance(outcome, FoundPath) else None

    def _is_empty(self, *sets: PathSet) -> bool:
        return self._prover.is_empty(self._policy.scopes, *sets)

    def _found(self, code: str, problem: str, fix: str, place: _Place) -> LintFinding:
        """Return a finding about a rule, one of its patterns, or a key."""
        kind, name, *rest = place
        named = f"{kind}[{name}]" if name else ".".join([kind, *rest])
        is_pattern = name is not None and kind != "quota" and bool(rest)
        key, value = ("paths", rest[0]) if is_pattern else (rest[0] if rest else None, None)
        line = line_of(self._file.text, kind, name, key, value) or line_of(self._file.text, kind)
        subject = f"pattern {value!r} " if value else f"{key} " if name and key else ""
        return LintFinding(code, f"{self._file.where} {named}", line, subject + problem, fix)


def _consulted(policy: Policy, check: CheckTable) -> Iterator[Consulted]:
    with suppress(PathEscape, Refusal):
        yield from consult(policy, act_of(check), canonicalise(check.path, policy.scopes))


def _plain(value: object) -> str:
    """Return a value as text; lists are sorted."""
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
# W3xx, E601 and W801, W804 are proved by automata; undecided cases are not reported.


def lint(name_or_path: str, *, policies_dir: Path | None = None) -> list[LintFinding]:
    """Return all findings about a policy, errors first, then in the order of lines.

    Args:
        name_or_path: as for `load_files`.
        policies_dir: as for `load_files`. Locks next to the file are ignored: it is being edited.

    Cost: as `diff` for each deny pattern and allow rule; a policy like `strict` takes 0.3 s.
    """
    try:
        member = read_family(name_or_path, policies_dir)
    except PolicyInvalid as problem:
        return as_findings(_complaints(name_or_path, policies_dir) or [problem])
    path = member.file.path
    folder = path.parent if path else None
    try:
        loaded = load_files(name_or_path, policies_dir=policies_dir, unlocked=folder, tested=False)
    except PolicyInvalid as problem:
        return as_findings(_pattern_problems(member) or [problem])
    failed = as_findings(failed_tests(loaded.files[0], loaded.policy))
    return in_order([*failed, *PolicyReview(loaded).findings()])


def _complaints(name_or_path: str, policies_dir: Path | None) -> list[PolicyInvalid]:
    """Return the problems of a file without its parents, if it can be read."""
    named = [folder / f"{name_or_path}.toml" for folder in (shipped_folder(), policies_dir) if folder]
    where = printable(name_or_path)
    with suppress(PolicyInvalid):
        for path in [Path(name_or_path)] if is_path(name_or_path) else named:
            if (read := read_text(path)) is not None:
                data = parse_toml(read[0], where)
                if data.get("schema") == INVARIANTS:
                    problem = "is an invariants file; run: muniment policy prove FILE POLICY"
                    return [PolicyInvalid("E105", where, problem)]
                return complaints(data, where, read[0])
    return []


def _pattern_problems(member: Member) -> list[PolicyInvalid]:
    with suppress(PolicyInvalid):
        return wrong_patterns(member)
    return []
