"""(verb, path) → verdict.

    1. The path lies in a declared scope and names something in it; otherwise deny.
    2. A matching deny rule of any layer: deny.
    3. Every layer has an allow rule that matches: allow. Otherwise deny, rule `default`.

Contract:
    D1  `decide` answers for every verb and every `CanonicalPath`, also one that no grammar let through, and
        never raises.
    D2  Rules commute: neither their order nor that of layers changes a verdict. More deny rules or more
        layers never grant more.
    D3  A judge holds nothing but its policy; the same question has the same answer in broker and worker.

Cost: building takes about 2 ms for the shipped `strict`, deciding about 10 µs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from muniment.errors import Refused
from muniment.names import Scope, Verb
from muniment.policy.grammar import GRAMMAR_LAYER, CanonicalPath, fold
from muniment.policy.model import Policy, Quota
from muniment.policy.pattern import AllowPatterns, DenyPatterns

Act = Verb | Literal["removal"]
"""What a policy grants on a file: one of the verbs to the model, or its removal to code."""

REMOVAL: Final = "removal"
ACTS: Final[tuple[Act, ...]] = (*Verb, REMOVAL)

NO_GRANT: Final = "default"
"""The rule that denies what nothing grants."""

NOT_A_SCOPE: Final = "scopes"
NOT_A_NAME: Final = "name"
"""What refuses before any rule of a policy is asked. No rule may have one of these three as its id."""

MAX_SHOWN_PATTERNS: Final = 4
"""Allow patterns that a refusal names, so that the model can choose another path and the line stays short."""


@dataclass(frozen=True, slots=True)
class Allow:
    """Every layer grants the request and no rule denies it."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The request is denied.

    Attributes:
        rule: id of the deny rule, or `default` where nothing grants it, or `scopes`.
        layer: the name of the layer that decided.
        reason: one line for the model, with what to do instead.
    """

    rule: str
    layer: str
    reason: str


Verdict = Allow | Deny

_ALLOW: Final = Allow()


@dataclass(frozen=True, slots=True)
class _DenyRule:
    id: str
    layer: str
    patterns: DenyPatterns


@dataclass(frozen=True, slots=True)
class _Grants:
    """What one layer grants for one verb."""

    layer: str
    patterns: AllowPatterns
    shown: str


class Judge:
    """Answers for one policy. Compiles its patterns once."""

    __slots__ = ("_denies", "_grants", "_quotas", "_scopes")

    def __init__(self, policy: Policy) -> None:
        self._scopes = frozenset(policy.scopes)
        self._denies = {verb: _deny_rules(policy, verb) for verb in Verb}
        self._grants = {verb: _grants(policy, verb) for verb in Verb}
        self._quotas = tuple((AllowPatterns(quota.paths), quota) for quota in policy.quotas)

    def decide(self, verb: Verb, path: CanonicalPath) -> Verdict:
        """Whether the policy grants `verb` on the file `path`. A scope itself is no file."""
        if (denied := self._outside(path)) is not None:
            return denied
        if (rule := self._denying(verb, path.text)) is not None:
            return _denied(rule, verb, path)
        for grants in self._grants[verb]:
            if not grants.patterns.match(path):
                return _not_granted(grants, verb, path)
        return _ALLOW

    def decide_directory(self, path: CanonicalPath) -> Verdict:
        """Whether `ls` and `grep` may look into the directory or scope `path`.

        They may if every layer grants `list` on something in its scope and no deny covers the directory.
        What is in it is decided file by file.
        """
        if (denied := self._outside(path)) is not None:
            return denied
        if (rule := self._denying(Verb.LIST, f"{path.text}/")) is not None:
            return _denied(rule, Verb.LIST, path)
        for grants in self._grants[Verb.LIST]:
            if not grants.patterns.reach(path.scope):
                return _not_granted(grants, Verb.LIST, path)
        return _ALLOW

    def allows(self, verb: Verb, path: CanonicalPath) -> bool:
        """`decide`, for filtering what is shown."""
        return isinstance(self.decide(verb, path), Allow)

    def covered(self, path: CanonicalPath) -> bool:
        """Whether a deny on `list` covers the whole directory."""
        return self._outside(path) is not None or self._denying(Verb.LIST, f"{path.text}/") is not None

    def reaches(self, verb: Verb, scope: Scope) -> bool:
        """Whether `verb` may be granted on something in the scope; False is certain, True is not."""
        covered = scope not in self._scopes or self._denying(verb, f"{scope}/") is not None
        return not covered and all(grants.patterns.reach(scope) for grants in self._grants[verb])

    def require(self, verb: Verb, path: CanonicalPath) -> None:
        """Raise unless `decide` allows.

        Raises:
            Refused: with the rule, the layer, and one line for the model.
        """
        _raise_if_denied(self.decide(verb, path))

    def decide_removal(self, path: CanonicalPath) -> Verdict:
        """Whether code may remove the file: `modify` is granted on it, and no deny covers `delete`."""
        verdict = self.decide(Verb.MODIFY, path)
        if isinstance(verdict, Allow) and (rule := self._denying(Verb.DELETE, path.text)) is not None:
            return _denied(rule, Verb.DELETE, path)
        return verdict

    def require_removal(self, path: CanonicalPath) -> None:
        """Raise unless `decide_removal` allows.

        Raises:
            Refused: as `require`.
        """
        _raise_if_denied(self.decide_removal(path))

    def grants(self, act: Act, path: CanonicalPath) -> bool:
        """Whether the policy grants the act on the file."""
        verdict = self.decide_removal(path) if act == REMOVAL else self.decide(Verb(act), path)
        return isinstance(verdict, Allow)

    def require_directory(self, path: CanonicalPath) -> None:
        """Raise unless `decide_directory` allows.

        Raises:
            Refused: as `require`.
        """
        _raise_if_denied(self.decide_directory(path))

    def quotas_for(self, path: CanonicalPath) -> tuple[Quota, ...]:
        """Every quota that counts the file; at least one for any `.md` file of a declared scope."""
        return tuple(quota for patterns, quota in self._quotas if patterns.match(path))

    def _outside(self, path: CanonicalPath) -> Deny | None:
        if path.scope not in self._scopes:
            return Deny(NOT_A_SCOPE, GRAMMAR_LAYER, f"{path.text} is in no part of this memory")
        if not path.text.isprintable():  # No canonical path is; and `.` in a deny pattern stops at a newline.
            return Deny(
                NOT_A_NAME, GRAMMAR_LAYER, "the name holds characters that do not print; leave them out"
            )
        return None

    def _denying(self, verb: Verb, text: str) -> _DenyRule | None:
        folded = fold(text)
        for rule in self._denies[verb]:
            if rule.patterns.match(text, folded):
                return rule
        return None


def _deny_rules(policy: Policy, verb: Verb) -> tuple[_DenyRule, ...]:
    return tuple(
        _DenyRule(rule.id, layer.name, DenyPatterns(rule.paths))
        for layer in policy.layers
        for rule in layer.deny
        if verb in rule.verbs
    )


def _grants(policy: Policy, verb: Verb) -> tuple[_Grants, ...]:
    return tuple(
        _Grants(layer.name, AllowPatterns(paths), _shown(paths))
        for layer in policy.layers
        for paths in [[path for rule in layer.allow if verb in rule.verbs for path in rule.paths]]
    )


def _shown(paths: list[str]) -> str:
    more = ", …" if len(paths) > MAX_SHOWN_PATTERNS else ""
    return ", ".join(paths[:MAX_SHOWN_PATTERNS]) + more


def _denied(rule: _DenyRule, verb: Verb, path: CanonicalPath) -> Deny:
    reason = f"the rule {rule.id!r} forbids to {verb} {path.text}; use another name or folder"
    return Deny(rule.id, rule.layer, reason)


def _not_granted(grants: _Grants, verb: Verb, path: CanonicalPath) -> Deny:
    instead = f"only {grants.shown}" if grants.shown else "nothing at all; go on without it"
    return Deny(
        NO_GRANT, grants.layer, f"not allowed to {verb} {path.text}; this memory lets you {verb} {instead}"
    )


def _raise_if_denied(verdict: Verdict) -> None:
    if isinstance(verdict, Deny):
        raise Refused(verdict.reason, rule=verdict.rule, layer=verdict.layer)
