"""What a policy says besides rules, as named values, and which of two values is the looser one.

Which value is stricter is defined in one place, `meet`: of two policies, the one whose value is not that of
their meet is the looser one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from muniment.policy.meet import meet
from muniment.policy.model import Policy

Value = str | int | float


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term on which two policies differ.

    Attributes:
        name: as in a policy file, such as `limits.turns` or `scopes.user.trust`.
        old: the value of the first.
        new: the value of the second.
        is_looser: the second binds a run less than the first in this.
    """

    name: str
    old: Value
    new: Value
    is_looser: bool


def terms_of(policy: Policy) -> dict[str, Value]:
    """Every term but quotas, by name. Gates are joined by commas."""
    tables = ("limits", "confinement", "changes", "content", "provenance", "retention")
    terms: dict[str, Value] = {
        f"{table}.{key}": ", ".join(value) or "none" if isinstance(value, list) else value
        for table in tables
        for key, value in getattr(policy, table).model_dump(mode="json").items()
    }
    for scope in policy.scope_terms:
        terms[f"scopes.{scope.name}.trust"] = str(scope.trust)
        terms[f"scopes.{scope.name}.commit"] = scope.commit
    return terms


def changed_terms(old: Policy, new: Policy) -> Iterator[TermChange]:
    """The terms on which they differ, but for quotas and for scopes that only one of them declares."""
    before, after, both = terms_of(old), terms_of(new), terms_of(meet(old, new))
    for name, strict in both.items():
        if before[name] != after[name]:
            yield TermChange(name, before[name], after[name], is_looser=after[name] != strict)
