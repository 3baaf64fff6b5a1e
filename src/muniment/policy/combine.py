"""Combine policies: of two policies, the stricter; and copies that allow less or more for one operation.

Separate from `tables`: commands that only use a policy do not load the models of its file.

The result of `meet` allows a request iff every part of it does, so it can only narrow.

The result has the layers and quotas of both, each once, and the scopes that both declare. Of each other
option the stricter value applies: of two numbers the smaller one, where `never` is more than any; of gates
all of them; and of other ordered values the one that is later in `_LOOSE_TO_STRICT`.

`meet` is commutative (in digest; names and the order of scopes, which is that of the first, may differ),
associative and idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import inf
from typing import Any, Final, TypeVar

from muniment.kernel.decide import (
    GATES,
    NEVER,
    Changes,
    ConfinementRequirement,
    Content,
    Layer,
    Limits,
    Policy,
    PolicyEvaluator,
    Provenance,
    Retention,
    Rule,
    ScopeOptions,
)
from muniment.kernel.names import Enforcement, Scope, Trust, Verb

SECTIONS: Final = ("limits", "confinement", "changes", "content", "provenance", "retention")
"""The tables that occur once in a file, and are fields of a `Policy`."""

REQUEST_LAYER: Final = "request"
"""Name of the layer that `narrow_writes` adds; a policy file must not have it."""

_LOOSE_TO_STRICT: Final[Mapping[str, tuple[object, ...]]] = {
    "trust": tuple(Trust),
    "commit": ("auto", "review"),
    "require": (Enforcement.NONE, Enforcement.PARTIAL, Enforcement.FULL),
    "on_escape": ("refuse", "abort"),
    "conflict": ("retry", "fail"),
    "secrets": ("redact", "reject"),
    "instructions": ("allow", "quarantine"),
    "poison": ("allow", "quarantine"),
    "untrusted_sources": ("allow", "quarantine", "reject"),
}
_WRITING: Final = (Verb.CREATE, Verb.DELETE, Verb.MODIFY)


def meet(a: Policy, b: Policy) -> Policy:
    """Return a policy that grants a request only if both `a` and `b` do.

    If they have no scope in common, it grants nothing.
    """
    others = {options.name: options for options in b.scope_options}
    sections: dict[str, Any] = {
        each: _choose_stricter(getattr(a, each), getattr(b, each)) for each in SECTIONS
    }
    return Policy(
        name=a.name if a.name == b.name else f"{a.name}+{b.name}",
        scope_options=tuple(
            _choose_stricter(each, others[each.name]) for each in a.scope_options if each.name in others
        ),
        layers=(*a.layers, *b.layers),
        quotas=(*a.quotas, *b.quotas),
        **sections,
    )


_Options = TypeVar(
    "_Options", ScopeOptions, Limits, ConfinementRequirement, Changes, Content, Provenance, Retention
)


def _choose_stricter(a: _Options, b: _Options) -> _Options:
    """Return options that have, for each option, the stricter of the two values."""
    options: dict[str, Any] = {
        option.name: _choose_stricter_value(option.name, getattr(a, option.name), getattr(b, option.name))
        for option in fields(a)
        if option.name != "name"
    }
    return replace(a, **options)


def _choose_stricter_value(name: str, a: Any, b: Any) -> Any:
    if name in _LOOSE_TO_STRICT:
        return max(a, b, key=_LOOSE_TO_STRICT[name].index)
    if isinstance(a, tuple):
        return tuple(gate for gate in GATES if gate in {*a, *b})
    # A word without an order is not a number, and raises here.
    return min(a, b, key=lambda number: inf if number == NEVER else float(number))


def narrow_writes(policy: Policy, scope: Scope) -> Policy:
    """Return a copy of `policy` that does not allow to create, change or delete files outside `scope`.

    The new layer is named `request`, its deny rule `request-scope`. If the policy does not declare the scope,
    nothing can be written.
    """
    others = tuple(sorted(f"/{other}/" for other in policy.scopes if other != scope))
    layer = Layer(
        name=REQUEST_LAYER,
        allow=(Rule(id="request", verbs=tuple(sorted(Verb)), paths=("/**",)),),
        deny=(Rule(id="request-scope", verbs=_WRITING, paths=others),) if others else (),
    )
    return replace(policy, layers=(*policy.layers, layer))


_EXPORT_RULE: Final = "export"


def grant_readable(policy: Policy) -> Policy:
    """Return a copy of `policy` that allows to create and change every file that it allows to read.

    This applies only to scopes in which the policy allows creation. It is for the owner who imports an export
    or undoes a task. For example, a person moved an entry to a deeper folder than the policy lets models
    create, and the entry must return there. Deny rules, quotas and all other options stay.
    """
    judge = PolicyEvaluator(policy)
    others = tuple(sorted(f"/{each}/" for each in policy.scopes if not judge.may_grant_in(Verb.CREATE, each)))

    def widen(layer: Layer) -> Layer:
        readable = {path for rule in layer.allow if Verb.READ in rule.verbs for path in rule.paths}
        rule = Rule(_EXPORT_RULE, (Verb.CREATE, Verb.MODIFY), tuple(sorted(readable)))
        deny = Rule(_EXPORT_RULE, _WRITING, others)
        return replace(layer, allow=(*layer.allow, rule), deny=(*layer.deny, deny))

    return replace(policy, layers=tuple(map(widen, policy.layers)))
