"""Explain the decision of a policy, with every rule that was consulted.

The verdict is the real decision, for the path as a model would write it. The rules are then consulted one by
one with the same matchers, so that the user sees which rule matched, and by which pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from muniment.errors import PathEscape, Refusal, Refused
from muniment.kernel.decide import NOT_A_NAME, AllowPatterns, DenyPatterns, Policy, PolicyEvaluator
from muniment.kernel.path import GRAMMAR_LAYER, CanonicalPath, canonicalise, fold
from muniment.policy.load import Act, get_denying_verbs, get_granting_verb, require_act


@dataclass(frozen=True, slots=True)
class ConsultedRule:
    """A rule that applies to the requested act, and whether it matches the path.

    Attributes:
        layer: name of the policy file that contains the rule.
        kind: whether the rule grants or denies.
        rule: id of the rule.
        pattern: the pattern of the rule that matches the path; None if none matches.
    """

    layer: str
    kind: Literal["allow", "deny"]
    rule: str
    pattern: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision about a request, and the reason.

    Attributes:
        act: the requested act.
        asked: the path as it was written.
        path: the canonical path; None if the text is not a path.
        verdict: the decision.
        code: code of the denial, as tools return it; None if the request is allowed.
        layer: the layer that decided; None if the request is allowed.
        rule: the rule that decided: the id of a deny rule, `default` if no rule grants the request, `scopes`,
            or `name` if the name grammar rejected the path before any rule; None if the request is allowed.
        model_message: the line that the model receives; empty if the request is allowed, or if the run ends.
        operator_message: the text in the result, the audit record and the log.
        consulted: every rule about the act, layer by layer; empty if the name grammar rejected the path.
    """

    act: Act
    asked: str
    path: str | None
    verdict: Literal["allow", "deny"]
    code: str | None = None
    layer: str | None = None
    rule: str | None = None
    model_message: str = ""
    operator_message: str = "no message: it is granted"
    consulted: tuple[ConsultedRule, ...] = ()


def explain_decision(
    policy: Policy, act: Act, unsafe_path: str, judge: PolicyEvaluator | None = None
) -> Explanation:
    """Return the decision about a request on a file, with the reason.

    Args:
        policy: the effective policy.
        act: a verb, or `removal`: a deletion by code.
        unsafe_path: the path as a model would write it.
        judge: evaluator of the policy; None: create one.
    """
    path: CanonicalPath | None = None
    consulted: tuple[ConsultedRule, ...] = ()
    try:
        path = canonicalise(unsafe_path, policy.scopes)
        consulted = tuple(consult_rules(policy, act, path))
        require_act(act, path, judge or PolicyEvaluator(policy))
    except (PathEscape, Refusal) as refusal:
        rule, layer = (
            (refusal.rule, refusal.layer) if isinstance(refusal, Refused) else (NOT_A_NAME, GRAMMAR_LAYER)
        )
        model_message, operator_message = _build_messages(
            policy, refusal, f"rule {rule!r} of layer {layer!r}"
        )
        return Explanation(
            act,
            unsafe_path,
            path.text if path else None,
            "deny",
            refusal.code,
            layer,
            rule,
            model_message,
            operator_message,
            consulted,
        )
    return Explanation(act, unsafe_path, path.text, "allow", consulted=consulted)


def _build_messages(policy: Policy, refusal: PathEscape | Refusal, source: str) -> tuple[str, str]:
    """Return the message of a denial for the model, and the message for the operator."""
    if not isinstance(refusal, PathEscape):
        return str(refusal), f"{refusal.code}: denied by {source}; the run continues"
    is_aborting = policy.confinement.on_escape == "abort"
    if is_aborting:
        return "", f"remember_path_escape: the run ends without a commit ({refusal})"
    return str(refusal), f"{refusal.code}: {refusal}; the run continues"


def consult_rules(policy: Policy, act: Act, path: CanonicalPath) -> Iterator[ConsultedRule]:
    """Yield every rule about the act, in the order of layers, with its pattern that matches the path."""
    text, folded = path.text, fold(path.text)
    for layer in policy.layers:
        for rule in layer.allow:
            if get_granting_verb(act) in rule.verbs:
                hits = (each for each in rule.paths if AllowPatterns((each,)).match(path))
                yield ConsultedRule(layer.name, "allow", rule.id, next(hits, None))
        for rule in layer.deny:
            if get_denying_verbs(act).intersection(rule.verbs):
                hits = (each for each in rule.paths if DenyPatterns((each,)).match(text, folded))
                yield ConsultedRule(layer.name, "deny", rule.id, next(hits, None))
