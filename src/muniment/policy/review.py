"""A policy that loads, seen by a reviewer: what `lint` says of it but for errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from muniment.errors import PathEscape, Refusal
from muniment.names import Enforcement, Scope, Verb
from muniment.policy.automaton import All, Language, Not
from muniment.policy.checks import act_of
from muniment.policy.decide import REMOVAL, Act, Judge
from muniment.policy.explain import Consulted, consult
from muniment.policy.finding import Finding
from muniment.policy.grammar import CanonicalPath, canonicalise
from muniment.policy.load import Loaded
from muniment.policy.model import GATES, QUOTA_NUMBERS, Policy, Quota, Rule
from muniment.policy.pattern import AllowPatterns
from muniment.policy.places import line_of
from muniment.policy.prover import Prover
from muniment.policy.search import Found, Nothing, Outcome
from muniment.policy.tables import CheckTable

USER: Final = Scope("user")
TEAM: Final = Scope("team")
"""The scope of a person, and the one that others read: see W804."""


class Review:
    """One policy with its files."""

    def __init__(self, loaded: Loaded) -> None:
        self._file, self._policy = loaded.files[0], loaded.policy
        self._judge = Judge(self._policy)
        self._own = next(layer for layer in self._policy.layers if layer.name == self._file.name)
        self._others = [layer for layer in self._policy.layers if layer is not self._own]
        counted = [path for file in loaded.files for quota in file.tables.quota for path in quota.paths]
        self._parent_quotas = [quota for file in loaded.files[1:] for quota in file.tables.quota]
        self._prover = Prover([self._policy], exact=counted)

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
                elif all(
                    self._is_empty(All([tree, Not(self._covered(verb, rule, path))])) for verb in rule.verbs
                ):
                    problem = "denies only what other patterns deny"
                    yield self._found(("W303", problem, "remove it, or what covers it, but not both"), place)

    def _covered(self, verb: Verb, rule: Rule, path: str) -> Language:
        """What every pattern denies but this one of this rule; another rule may have the same one."""
        patterns = {
            each
            for layer in self._policy.layers
            for other in layer.deny
            if verb in other.verbs
            for each in other.paths
            if other is not rule or each != path
        }
        return self._prover.tree(patterns)

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
        """E601: rules, scopes, quotas and terms that ask for more than the meet leaves."""
        yield from self._wider_rules()
        yield from self._wider_scopes()
        yield from self._larger_quotas()
        yield from self._looser_terms()

    def _wider_rules(self) -> Iterator[Finding]:
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

    def _wider_scopes(self) -> Iterator[Finding]:
        effective = {terms.name: terms for terms in self._policy.scope_terms}
        for name, asked in (self._file.tables.scopes or {}).items():
            place = ("scopes", None, name)
            terms = effective.get(Scope(name))
            if terms is None:
                problem = f"declares the scope {name!r}, which a parent does not"
                yield self._found(("E601", problem, "remove it"), place)
                continue
            for key in sorted(asked.model_fields_set):
                own, holds = getattr(asked, key), getattr(terms, key)
                if own != holds:
                    problem = f"asks for {key} = {str(own)!r}; a parent has {str(holds)!r}, which holds"
                    yield self._found(("E601", problem, "remove the key, or be as strict"), place)

    def _larger_quotas(self) -> Iterator[Finding]:
        for quota in self._file.tables.quota:
            holding = [each for each in self._parent_quotas if self._counts_all_of(each, quota)]
            for key in sorted(quota.model_fields_set & {*QUOTA_NUMBERS}):
                least = min((getattr(each, key) for each in holding), default=getattr(quota, key))
                if least < getattr(quota, key):
                    problem = f"is looser than a parent has it; {least} holds"
                    fix = "remove the key, or be as strict"
                    yield self._found(("E601", problem, fix), ("quota", quota.id, key))

    def _counts_all_of(self, quota: Quota, other: Quota) -> bool:
        return self._is_empty(All([self._prover.exact(other.paths), Not(self._prover.exact(quota.paths))]))

    def _looser_terms(self) -> Iterator[Finding]:
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
        is_pattern = name is not None and kind != "quota" and bool(rest)
        key, value = ("paths", rest[0]) if is_pattern else (rest[0] if rest else None, None)
        line = line_of(self._file.text, kind, name, key, value) or line_of(self._file.text, kind)
        subject = f"pattern {value!r} " if value else f"{key} " if name and key else ""
        return Finding(code, f"{self._file.where} {named}", line, subject + problem, fix)


def _path(outcome: Outcome) -> CanonicalPath | None:
    return outcome.path if isinstance(outcome, Found) else None


def _consulted(policy: Policy, check: CheckTable) -> Iterator[Consulted]:
    with suppress(PathEscape, Refusal):
        yield from consult(policy, act_of(check), canonicalise(check.path, policy.scopes))


def _plain(value: object) -> object:
    """As a reader would write it; lists without order."""
    return ", ".join(sorted(map(str, value))) if isinstance(value, tuple) else str(value)
