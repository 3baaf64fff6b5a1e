"""What is wrong with a policy file, or looks so: all of it, with the line and what to write instead.

    E1xx E2xx E4xx   as `load`: the file does not load; here every complaint of the first stage that has any
    E601  the file asks for more than its parents grant; the meet makes it harmless, and the file is misread
    W301  an allow pattern that matches no path          W302  an allow rule all of which is denied
    W303  a deny pattern that others cover               W304  a deny pattern where nothing is granted
    I501  a rule that no inline test reaches
    W801  delete is granted to the model                 W802  no enforcement is required
    W803  facts from outside are taken as they come      W804  a run may read `user` and write `team`
    W805  gates are off                                  W806  an escape does not end the run

W3xx, E601 and W801, W804 are proved by automata; what those cannot decide is not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muniment.errors import PathEscape, PolicyInvalid, Refusal
from muniment.names import Enforcement, Scope, Verb
from muniment.policy.automaton import All, Language, Not
from muniment.policy.decide import REMOVAL, Act, Judge
from muniment.policy.explain import Consulted, consult
from muniment.policy.family import parse_toml, read_text
from muniment.policy.grammar import CanonicalPath, canonicalise
from muniment.policy.load import Loaded, failed_tests, load_files, pattern_problems
from muniment.policy.model import GATES, Policy
from muniment.policy.pattern import AllowPatterns
from muniment.policy.places import line_of
from muniment.policy.prover import Prover
from muniment.policy.search import Found, Nothing, Outcome
from muniment.policy.tables import CheckTable, complaints, read_tables

USER: Final = Scope("user")
TEAM: Final = Scope("team")
"""The scope of a person, and the one that others read: see W804."""

_FIXES: Final = {
    "E101": "correct or remove the key; policies/policy.schema.json lists every one",
    "E102": "correct the TOML there",
    "E103": "add the key",
    "E104": "write one of the values that are possible",
    "E105": 'write schema = "muniment-policy/1"',
    "E107": "give one of the two another id",
    "E108": "name at least one, or remove the table",
    "E109": "name verbs out of list, read, create, modify, delete; * in deny rules only",
    "E110": "choose a number within the bounds",
    "E111": "use another name, of a-z, 0-9, - and _",
    "E201": "remove the pattern, or correct the name in it",
    "E202": "use fewer wildcards, or several patterns",
    "E203": "write the pattern with literals, *, ? and ** only",
    "E205": "begin the pattern with / and a scope",
    "E206": "declare the scope, correct its name, or drop the slash in front so that it holds at any depth",
    "E401": "correct the rule, or what the test expects",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at.

    Attributes:
        code: of the list above; `E` makes a file unfit, `W` and `I` do not.
        where: the file, and the key or rule in it.
        line: in that file; None if nobody can tell.
        problem: what is wrong.
        fix: what to do about it.
    """

    code: str
    where: str
    line: int | None
    problem: str
    fix: str

    @property
    def is_error(self) -> bool:
        """Whether the file is unfit."""
        return self.code.startswith("E")


def lint(name_or_path: str, *, policies_dir: Path | None = None) -> list[Finding]:
    """Everything about a policy that a reviewer should look at, errors first, in the order of lines.

    Args:
        name_or_path: as for `load_files`.
        policies_dir: as for `load_files`. Locks beside the file do not count: it is being edited.

    Cost: as `diff` for each deny pattern and allow rule; a policy like `strict` takes 0.3 s.
    """
    folder = Path(name_or_path).parent if "/" in name_or_path else None
    try:
        loaded = load_files(name_or_path, policies_dir=policies_dir, unlocked=folder, tested=False)
    except PolicyInvalid as problem:
        return [_as_finding(each) for each in _all_like(problem, name_or_path)]
    file = loaded.files[0]
    found = [_as_finding(each) for each in failed_tests(file, loaded.policy)]
    found += _Review(loaded).findings()
    return sorted(found, key=lambda each: ("EWI".index(each.code[0]), each.line or 0, each.code))


def _all_like(problem: PolicyInvalid, name_or_path: str) -> list[PolicyInvalid]:
    """Every complaint of the stage that ended loading, if the file itself is at fault."""
    try:
        read = read_text(Path(name_or_path))
        if read is None:
            return [problem]
        data = parse_toml(read[0], name_or_path)
    except PolicyInvalid:
        return [problem]
    found = complaints(data, name_or_path, read[0])
    if found or problem.rule[:2] != "E2":
        return found or [problem]
    return _pattern_problems(read[0], name_or_path) or [problem]


def _pattern_problems(text: str, where: str) -> list[PolicyInvalid]:
    file = read_tables(parse_toml(text, where), where, text)
    scopes = [Scope(name) for name in file.scopes or ()]
    return list(pattern_problems(file, scopes, where, text)) if scopes else []


def _as_finding(problem: PolicyInvalid) -> Finding:
    fix = _FIXES.get(problem.rule, "correct that file, or what is said about it here")
    return Finding(problem.rule, problem.where, problem.line, problem.problem, fix)


class _Review:
    """A policy that loads, seen by a reviewer."""

    def __init__(self, loaded: Loaded) -> None:
        self._file, self._policy = loaded.files[0], loaded.policy
        self._judge = Judge(self._policy)
        self._own = next(layer for layer in self._policy.layers if layer.name == self._file.name)
        self._others = [layer for layer in self._policy.layers if layer is not self._own]
        self._prover = Prover([self._policy])

    def findings(self) -> Iterator[Finding]:
        """All but errors of loading."""
        yield from self._allows()
        yield from self._denies()
        yield from self._untested()
        if self._others:
            yield from self._wider_than_parents()
        yield from self._risks()

    def _allows(self) -> Iterator[Finding]:
        """W301, W302."""
        for rule in self._own.allow:
            empty = [path for path in rule.paths if self._is_empty(self._prover.exact([path]))]
            for path in empty:
                yield self._found(
                    ("W301", "matches no path that the name grammar allows", "remove or correct the pattern"),
                    ("allow", rule.id, path),
                )
            granted = (
                All([self._prover.exact(rule.paths), self._prover.grant(self._policy, verb)])
                for verb in rule.verbs
            )
            if len(empty) < len(rule.paths) and all(map(self._is_empty, granted)):
                problem = "grants nothing: every path of it is denied, or not granted by a parent"
                yield self._found(("W302", problem, "remove the rule, or what denies it"), ("allow", rule.id))

    def _denies(self) -> Iterator[Finding]:
        """W303, W304."""
        for rule in self._own.deny:
            for path in rule.paths:
                acts: list[Act] = [REMOVAL if verb is Verb.DELETE else verb for verb in rule.verbs]
                place = ("deny", rule.id, path)
                asked = (self._prover.asked(self._policy.layers, act) for act in (*acts, *rule.verbs))
                tree = self._prover.tree([path])
                if all(self._is_empty(All([tree, each])) for each in asked):
                    problem = "denies only what nothing grants"
                    yield self._found(("W304", problem, "keep it as a safeguard, or remove it"), place)
                elif all(self._is_empty(All([tree, Not(self._covered(verb, path))])) for verb in rule.verbs):
                    problem = "denies only what other patterns deny"
                    yield self._found(("W303", problem, "remove it, or the narrower of the others"), place)

    def _covered(self, verb: Verb, path: str) -> Language:
        """What every other pattern denies."""
        patterns = {
            each
            for layer in self._policy.layers
            for rule in layer.deny
            if verb in rule.verbs
            for each in rule.paths
        }
        return self._prover.tree(patterns - {path})

    def _untested(self) -> Iterator[Finding]:
        """I501: no inline test asks about a path that the rule matches."""
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
                    yield self._found(("I501", "is reached by no inline test", fix), (kind, rule.id))

    def _wider_than_parents(self) -> Iterator[Finding]:
        """E601: rules, scopes and terms that ask for more than the meet leaves."""
        for rule in self._own.allow:
            for verb in rule.verbs:
                beyond = Not(self._prover.asked(self._others, verb))
                asked = AllowPatterns(rule.paths)
                wider = All([self._prover.exact(rule.paths), beyond])
                path = _path(self._prover.find(wider, self._policy.scopes, asked.match))
                if path is not None:
                    problem = f"asks for {verb} on {path.text}, which a parent does not grant"
                    fix = "ask for no more than the parents, or extend another policy"
                    yield self._found(("E601", problem, fix), ("allow", rule.id))
                    break
        for scope in self._file.tables.scopes or ():
            if scope not in self._policy.scopes:
                problem = f"declares the scope {scope!r}, which a parent does not"
                yield self._found(("E601", problem, "remove it"), ("scopes", None, scope))
        for table in ("limits", "confinement", "changes", "content", "provenance", "retention"):
            own, effective = getattr(self._file.tables, table), getattr(self._policy, table)
            for key in sorted(own.model_fields_set):
                if _plain(getattr(own, key)) != _plain(getattr(effective, key)):
                    problem = f"is looser than a parent has it; {_plain(getattr(effective, key))} holds"
                    yield self._found(
                        ("E601", problem, "remove the key, or be as strict"), (table, None, key)
                    )

    def _risks(self) -> Iterator[Finding]:
        """W8xx: of the effective policy."""
        policy = self._policy
        if (path := self._granted(Verb.DELETE, policy.scopes)) is not None:
            problem = f"the model may delete {path.text}"
            yield self._found(("W801", problem, "let code remove: forget, dream"), ("allow", None))
        for code, is_risky, table, key, problem, fix in (
            ("W802", policy.confinement.require is Enforcement.NONE, "confinement", "require",
             "the tools may run in the broker's own process", 'require = "partial" or "full"'),
            ("W803", policy.provenance.untrusted_sources == "allow", "provenance", "untrusted_sources",
             "what a stranger says is remembered without review", '"quarantine" or "reject"'),
            ("W805", set(policy.content.reject) != set(GATES), "content", "reject",
             "characters that hide text, or active markup, are let in", "leave `reject` out: all gates"),
            ("W805", policy.content.instructions == "allow", "content", "instructions",
             "text that addresses an agent is stored without review", '"quarantine"'),
            ("W806", policy.confinement.on_escape == "refuse", "confinement", "on_escape",
             "a run that tried to escape goes on, and is committed", '"abort"'),
        ):  # fmt: skip
            if is_risky:
                yield self._found((code, problem, fix), (table, None, key))
        yield from self._leaks_to_team()

    def _leaks_to_team(self) -> Iterator[Finding]:
        """W804."""
        if not {TEAM, USER} <= set(self._policy.scopes):
            return
        reads = self._granted(Verb.READ, [USER])
        writes = [self._granted(verb, [TEAM]) for verb in (Verb.CREATE, Verb.MODIFY)]
        written = next((path for path in writes if path is not None), None)
        if reads is not None and written is not None:
            problem = f"one run may read {reads.text} and write {written.text}, which others read"
            yield self._found(("W804", problem, "split it into two policies"), ("scopes", None, TEAM))

    def _granted(self, verb: Verb, scopes: Collection[Scope]) -> CanonicalPath | None:
        """The shortest path on which the policy grants the verb."""
        grant = self._prover.grant(self._policy, verb)
        return _path(self._prover.find(grant, scopes, lambda path: self._judge.grants(verb, path)))

    def _is_empty(self, language: Language) -> bool:
        outcome = self._prover.find(language, self._policy.scopes, lambda _path: True)
        return isinstance(outcome, Nothing)

    def _found(self, said: tuple[str, str, str], place: tuple[str, str | None, *tuple[str, ...]]) -> Finding:
        """A finding on a rule, a pattern of it, or a key."""
        code, problem, fix = said
        kind, name, *rest = place
        named = f"{kind}[{name}]" if name else ".".join([kind, *rest])
        key, value = ("paths", rest[0]) if name and rest else (rest[0] if rest else None, None)
        line = line_of(self._file.text, kind, name, key, value) or line_of(self._file.text, kind)
        pattern = f"pattern {value!r} " if value else ""
        return Finding(code, f"{self._file.where} {named}", line, pattern + problem, fix)


def _path(outcome: Outcome) -> CanonicalPath | None:
    return outcome.path if isinstance(outcome, Found) else None


def _consulted(policy: Policy, check: CheckTable) -> Iterator[Consulted]:
    with suppress(PathEscape, Refusal):
        yield from consult(policy, check.verb, canonicalise(check.path, policy.scopes))


def _plain(value: object) -> object:
    """As a reader would write it; lists without order."""
    return ", ".join(sorted(map(str, value))) if isinstance(value, tuple) else str(value)
