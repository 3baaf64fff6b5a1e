"""How policies combine. The result allows a request iff every part of it does, so it can only narrow.

| field            | of two policies                                                                |
|------------------|--------------------------------------------------------------------------------|
| layers, quotas   | all of them, each once                                                         |
| scopes           | those that both declare, with the lower trust; order of the first              |
| limits           | the smaller number, each by itself                                             |
| content gates    | all of them                                                                    |
| confinement      | the stronger of `full` > `partial` > `none`; `abort` over `refuse`             |
| conflict         | `fail` over `retry`                                                            |

`meet` is commutative (in digest; names and the order of scopes aside), associative and idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from muniment.names import Scope, Trust, Verb
from muniment.policy.model import (
    Changes,
    Confinement,
    Layer,
    Limits,
    Policy,
    Quota,
    Rule,
    ScopeTerms,
)

REQUEST_LAYER: Final = "request"
"""Name of the layer that `narrow_writes` adds; no policy file may bear it."""

_BY_TRUST: Final = tuple(Trust)  # from most to least trusted
_WRITING: Final = (Verb.CREATE, Verb.DELETE, Verb.MODIFY)


def meet(a: Policy, b: Policy) -> Policy:
    """The policy that grants what both grant. Disjoint scopes leave one that grants nothing."""
    return Policy(
        name=a.name if a.name == b.name else f"{a.name}+{b.name}",
        scope_terms=_common_scopes(a, b),
        layers=sorted_layers([*a.layers, *b.layers]),
        quotas=sorted_quotas([*a.quotas, *b.quotas]),
        limits=_smaller(a.limits, b.limits),
        confinement=_stricter(a.confinement, b.confinement),
        changes=Changes(conflict="fail" if "fail" in {a.changes.conflict, b.changes.conflict} else "retry"),
        content_reject=tuple(sorted({*a.content_reject, *b.content_reject})),
    )


def narrow_writes(policy: Policy, scope: Scope) -> Policy:
    """`policy`, but nothing outside `scope` can be created, changed or deleted.

    The new layer is named `request`, its deny rule `request-scope`. A scope that the policy does not
    declare leaves nothing to write to.
    """
    others = tuple(sorted(f"/{other}/" for other in policy.scopes if other != scope))
    layer = Layer(
        name=REQUEST_LAYER,
        allow=(Rule(id="request", verbs=tuple(sorted(Verb)), paths=("/**",)),),
        deny=(Rule(id="request-scope", verbs=_WRITING, paths=others),) if others else (),
    )
    return policy.model_copy(update={"layers": sorted_layers([*policy.layers, layer])})


def sorted_layers(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Each layer once, in an order that depends on nothing but their content."""
    return tuple(sorted(set(layers), key=_content))


def sorted_quotas(quotas: Iterable[Quota]) -> tuple[Quota, ...]:
    """Each quota once, in an order that depends on nothing but their content."""
    return tuple(sorted(set(quotas), key=_content))


def _content(part: Layer | Quota) -> str:
    return part.model_dump_json()


def _common_scopes(a: Policy, b: Policy) -> tuple[ScopeTerms, ...]:
    trusts = {terms.name: terms.trust for terms in b.scope_terms}
    return tuple(
        ScopeTerms(name=terms.name, trust=max(terms.trust, trusts[terms.name], key=_BY_TRUST.index))
        for terms in a.scope_terms
        if terms.name in trusts
    )


def _smaller(a: Limits, b: Limits) -> Limits:
    other: dict[str, Any] = b.model_dump()
    return Limits(**{name: min(value, other[name]) for name, value in a.model_dump().items()})


def _stricter(a: Confinement, b: Confinement) -> Confinement:
    return Confinement(
        require=a.require if a.require.satisfies(b.require) else b.require,
        on_escape="abort" if "abort" in {a.on_escape, b.on_escape} else "refuse",
    )
