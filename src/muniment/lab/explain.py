"""Why a policy decides as it does, with every rule that was consulted.

The verdict is that of the real decision, asked with the path as a model would write it; the rules are then
consulted one by one with the same matchers, so that a reader sees which of them matched by which pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from muniment.errors import PathEscape, Refusal, Refused
from muniment.kernel.decide import NOT_A_NAME, AllowPatterns, DenyPatterns, Judge, Policy
from muniment.kernel.path import GRAMMAR_LAYER, CanonicalPath, canonicalise, fold
from muniment.policy.load import Act, denying, granting, require


@dataclass(frozen=True, slots=True)
class Consulted:
    """A rule that is about the act.

    Attributes:
        layer: the name of its file.
        kind: whether it grants or denies.
        rule: its id.
        pattern: the pattern of it that matches the path; None if none does.
    """

    layer: str
    kind: Literal["allow", "deny"]
    rule: str
    pattern: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happens to a request, and why.

    Attributes:
        act: what is asked.
        asked: the path as it was written.
        path: the canonical path; None if it spells none.
        verdict: what the policy says.
        code: of the refusal, as tools give it; None if it is allowed.
        layer: which decided; None if it is allowed.
        rule: which decided: the id of a deny rule, `default` where nothing grants it, `scopes`, or `name`
            where the name grammar refused before any rule was asked; None if it is allowed.
        model_is_told: the line that the model gets; empty if it is allowed, or if the run ends.
        operator_is_told: what result, record and log say.
        consulted: every rule about the act, layer by layer; empty if the name grammar refused.
    """

    act: Act
    asked: str
    path: str | None
    verdict: Literal["allow", "deny"]
    code: str | None = None
    layer: str | None = None
    rule: str | None = None
    model_is_told: str = ""
    operator_is_told: str = "nothing: it is granted"
    consulted: tuple[Consulted, ...] = ()


def explain(policy: Policy, act: Act, unsafe_path: str, judge: Judge | None = None) -> Explanation:
    """What becomes of a request on a file.

    Args:
        policy: the effective policy.
        act: a verb, or `removal`: what code may take away.
        unsafe_path: as a model would write it.
        judge: of the policy, if there is one already.
    """
    path: CanonicalPath | None = None
    consulted: tuple[Consulted, ...] = ()
    try:
        path = canonicalise(unsafe_path, policy.scopes)
        consulted = tuple(consult(policy, act, path))
        require(act, path, judge or Judge(policy))
    except (PathEscape, Refusal) as refusal:
        rule, layer = (
            (refusal.rule, refusal.layer) if isinstance(refusal, Refused) else (NOT_A_NAME, GRAMMAR_LAYER)
        )
        model_is_told, operator_is_told = _told(policy, refusal, f"rule {rule!r} of layer {layer!r}")
        return Explanation(
            act,
            unsafe_path,
            path.text if path else None,
            "deny",
            refusal.code,
            layer,
            rule,
            model_is_told,
            operator_is_told,
            consulted,
        )
    return Explanation(act, unsafe_path, path.text, "allow", consulted=consulted)


def _told(policy: Policy, refusal: PathEscape | Refusal, by: str) -> tuple[str, str]:
    """What the model and the operator are told of a refusal, and of whether the run ends."""
    if not isinstance(refusal, PathEscape):
        return str(refusal), f"{refusal.code}: denied by {by}; the run goes on"
    ends = policy.confinement.on_escape == "abort"
    if ends:
        return "", f"remember_path_escape: the run ends, and nothing of it is committed ({refusal})"
    return str(refusal), f"{refusal.code}: {refusal}; the run goes on"


def consult(policy: Policy, act: Act, path: CanonicalPath) -> Iterator[Consulted]:
    """Every rule about the act, in the order of layers, with the pattern that matches."""
    text, folded = path.text, fold(path.text)
    for layer in policy.layers:
        for rule in layer.allow:
            if granting(act) in rule.verbs:
                hits = (each for each in rule.paths if AllowPatterns((each,)).match(path))
                yield Consulted(layer.name, "allow", rule.id, next(hits, None))
        for rule in layer.deny:
            if denying(act).intersection(rule.verbs):
                hits = (each for each in rule.paths if DenyPatterns((each,)).match(text, folded))
                yield Consulted(layer.name, "deny", rule.id, next(hits, None))
