"""Limits, quotas and other terms of two policies: each change is told, and whether it binds a run less."""

from __future__ import annotations

import json

import pytest

from kit.policy.changed import BOTH, allow, made
from muniment.lab.proofs import diff, terms_of
from muniment.policy.decide import Policy

ONE = "user = {}\n"
LOOSER = {
    **{
        f"limits.{name}": (1, 2)
        for name in "turns seconds tool_calls read_bytes scan_bytes write_bytes files_written".split()  # noqa: SIM905
    },
    "confinement.require": ("full", "partial"),
    "confinement.on_escape": ("abort", "refuse"),
    "changes.conflict": ("fail", "retry"),
    "changes.max_forget": (1, 2),
    "changes.max_scope_share": (0.1, 0.2),
    "content.reject": (["ansi", "bidi"], ["bidi"]),
    "content.secrets": ("reject", "redact"),
    "content.instructions": ("quarantine", "allow"),
    "provenance.untrusted_sources": ("reject", "quarantine"),
    "retention.default": (1, "never"),
    "retention.untrusted": (14, 15),
}
"""Every term of a policy: a value, and one that binds a run less."""


def with_term(name, value):
    table, _, key = name.partition(".")
    return made([allow("/**")], ONE, f"[{table}]\n{key} = {json.dumps(value)}\n")


def changes(old, new):
    difference = diff(old, new)
    return difference.verdict, [(term.name, term.old, term.new, term.is_looser) for term in difference.terms]


def test_the_table_has_every_term_there_is():
    scopes = {"scopes.user.trust", "scopes.user.commit"}
    assert set(terms_of(made([], ONE))) == {*LOOSER, *scopes}
    known = {"name", "scope_terms", "layers", "quotas"}
    assert {name.partition(".")[0] for name in LOOSER} == set(Policy.model_fields) - known


def test_what_lasts_for_ever_is_longer_than_any_number_of_days():
    longest, never = (with_term("retention.default", each) for each in (36_500, "never"))
    assert changes(longest, never)[0] == "wider"
    assert changes(never, longest)[0] == "proved"


def quota(name="q", paths=("/**",), **numbers):
    lines = "".join(f"{key} = {value}\n" for key, value in numbers.items())
    return f'[[quota]]\nid = "{name}"\npaths = {json.dumps(list(paths))}\n{lines}'


def with_quotas(*quotas, scopes=BOTH):
    return made([allow("/user/**")], scopes, "".join(quotas))


FIELDS = ("max_file_bytes", "max_files", "max_total_bytes")


@pytest.mark.threat("T-POL-02", control="terms_compared")
@pytest.mark.parametrize("field", FIELDS)
def test_a_number_of_a_quota_that_changed_is_told_in_both_directions(field):
    low, high = (with_quotas(quota(**{field: number})) for number in (1, 2))
    assert changes(low, high) == ("wider", [(f"quota[q].{field}", 1, 2, True)])
    assert changes(high, low) == ("proved", [(f"quota[q].{field}", 2, 1, False)])


def test_a_quota_for_fewer_files_is_looser():
    old = with_quotas(quota("a", ["/user/t/**"], max_files=5))
    verdict, told = changes(old, with_quotas(quota("a", ["/user/t/*.md"], max_files=5)))
    assert (verdict, told[0]) == ("wider", ("quota[a].max_files", 5, 20_000, True))


def test_two_quotas_that_share_the_files_of_one_count_as_looser():
    """Each alone keeps its number; both together may hold twice as much."""
    old = with_quotas(quota("a", ["/user/t/**", "/user/u/**"], max_files=5))
    new = with_quotas(quota("t", ["/user/t/**"], max_files=5), quota("u", ["/user/u/**"], max_files=5))
    verdict, told = changes(old, new)
    assert (verdict, told[0]) == ("wider", ("quota[a].max_files", 5, 20_000, True))
