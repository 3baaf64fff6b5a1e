"""How policies combine. The result allows a request iff every part of it does, so it can only narrow.

| field            | of two policies                                                                |
|------------------|--------------------------------------------------------------------------------|
| layers, quotas   | all of them, each once                                                         |
| scopes           | those that both declare, with the lower trust; `review` over `auto`            |
| limits           | the smaller number, each by itself                                             |
| content gates    | all of them                                                                    |
| confinement      | the stronger of `full` > `partial` > `none`; `abort` over `refuse`             |
| secrets          | `reject` over `redact`                                                         |
| instructions     | `quarantine` over `allow`                                                      |
| provenance       | `reject` over `quarantine` over `allow`                                        |
| retention        | the fewer days, each by itself; `never` is more than any number                |
| changes          | `fail` over `retry`; the smaller number, each by itself                        |

`meet` is commutative (in digest; names and the order of scopes aside, which is that of the first),
associative and idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from muniment.names import Scope, Trust, Verb
from muniment.policy.model import (
    NEVER,
    Changes,
    Commit,
    Confinement,
    Content,
    Days,
    Layer,
    Limits,
    Policy,
    Provenance,
    Quota,
    Retention,
    Rule,
    ScopeTerms,
)

REQUEST_LAYER: Final = "request"
"""Name of the layer that `narrow_writes` adds; no policy file may bear it."""

_BY_TRUST: Final = tuple(Trust)  # from most to least trusted
_BY_COMMIT: Final[tuple[Commit, ...]] = ("auto", "review")
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
        changes=_smaller_changes(a.changes, b.changes),
        content=_stricter_content(a.content, b.content),
        provenance=_stricter_provenance(a.provenance, b.provenance),
        retention=_shorter(a.retention, b.retention),
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
    others = {terms.name: terms for terms in b.scope_terms}
    return tuple(
        ScopeTerms(
            name=terms.name,
            trust=_later(_BY_TRUST, terms.trust, others[terms.name].trust),
            commit=_later(_BY_COMMIT, terms.commit, others[terms.name].commit),
        )
        for terms in a.scope_terms
        if terms.name in others
    )


_Term = TypeVar("_Term")


def _later(order: tuple[_Term, ...], a: _Term, b: _Term) -> _Term:
    """The one of `a` and `b` that stands later in `order`, which goes from loose to strict."""
    return max(a, b, key=order.index)


def _smaller(a: Limits, b: Limits) -> Limits:
    other: dict[str, Any] = b.model_dump()
    return Limits(**{name: min(value, other[name]) for name, value in a.model_dump().items()})


def _stricter(a: Confinement, b: Confinement) -> Confinement:
    return Confinement(
        require=a.require if a.require.satisfies(b.require) else b.require,
        on_escape="abort" if "abort" in {a.on_escape, b.on_escape} else "refuse",
    )


def _smaller_changes(a: Changes, b: Changes) -> Changes:
    return Changes(
        conflict=_later(("retry", "fail"), a.conflict, b.conflict),
        max_forget=min(a.max_forget, b.max_forget),
        max_scope_share=min(a.max_scope_share, b.max_scope_share),
    )


def _stricter_content(a: Content, b: Content) -> Content:
    return Content(
        reject=tuple(sorted({*a.reject, *b.reject})),
        secrets=_later(("redact", "reject"), a.secrets, b.secrets),
        instructions=_later(("allow", "quarantine"), a.instructions, b.instructions),
    )


def _stricter_provenance(a: Provenance, b: Provenance) -> Provenance:
    return Provenance(
        untrusted_sources=_later(("allow", "quarantine", "reject"), a.untrusted_sources, b.untrusted_sources)
    )


def _shorter(a: Retention, b: Retention) -> Retention:
    return Retention(
        default=_fewer_days(a.default, b.default), untrusted=_fewer_days(a.untrusted, b.untrusted)
    )


def _fewer_days(a: Days, b: Days) -> Days:
    if a == NEVER:
        return b
    return a if b == NEVER else min(a, b)
