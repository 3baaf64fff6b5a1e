"""Limits, quotas and other terms of two policies: each change is told, and whether it binds a run less."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from muniment.lab.proofs import TermChange, changed_terms, diff, terms_of
from muniment.names import Trust
from muniment.policy.decide import GATES, Policy
from policy.changed import BOTH, allow, made

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


@pytest.mark.threat("T-POL-02", control="terms_compared")
@pytest.mark.parametrize("name", LOOSER)
def test_a_term_that_changed_is_told_in_both_directions(name):
    strict, loose = LOOSER[name]
    old, new = with_term(name, strict), with_term(name, loose)
    shown = [", ".join(each) if isinstance(each, list) else each for each in (strict, loose)]
    assert changes(old, new) == ("wider", [(name, *shown, True)])
    assert changes(new, old) == ("proved", [(name, *shown[::-1], False)])


@pytest.mark.parametrize(
    ("old", "new", "looser"),
    [
        ("none", "partial", False),
        ("full", "none", True),
    ],
)
def test_the_order_of_enforcement_is_that_of_the_meet(old, new, looser):
    one, other = (with_term("confinement.require", each) for each in (old, new))
    (change,) = changed_terms(one, other)
    assert change == TermChange("confinement.require", old, new, looser)


def test_one_gate_for_another_is_looser_and_no_gate_is_called_none():
    one, other, none = (with_term("content.reject", each) for each in (["ansi"], ["bidi"], []))
    assert changes(one, other) == ("wider", [("content.reject", "ansi", "bidi", True)])
    assert changes(other, one) == ("wider", [("content.reject", "bidi", "ansi", True)])
    assert changes(none, one) == ("proved", [("content.reject", "none", "ansi", False)])
    assert changes(one, none) == ("wider", [("content.reject", "ansi", "none", True)])
    assert terms_of(made([], ONE))["content.reject"] == ", ".join(GATES)


def test_what_lasts_for_ever_is_longer_than_any_number_of_days():
    longest, never = (with_term("retention.default", each) for each in (36_500, "never"))
    assert changes(longest, never)[0] == "wider"
    assert changes(never, longest)[0] == "proved"


@pytest.mark.threat("T-POL-02", control="terms_compared")
def test_the_terms_of_a_scope_are_compared():
    trusts = list(Trust)
    for high, low in pairwise(trusts):
        one, other = (made([allow("/**")], f'user = {{ trust = "{trust}" }}\n') for trust in (high, low))
        assert changes(one, other) == ("proved", [("scopes.user.trust", high, low, False)])
        assert changes(other, one) == ("wider", [("scopes.user.trust", low, high, True)])
    auto, review = (made([allow("/**")], f'user = {{ commit = "{each}" }}\n') for each in ("auto", "review"))
    assert changes(auto, review) == ("proved", [("scopes.user.commit", "auto", "review", False)])
    assert changes(review, auto) == ("wider", [("scopes.user.commit", "review", "auto", True)])


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


@pytest.mark.parametrize("field", FIELDS)
def test_a_quota_that_is_gone_leaves_the_next_smaller_number(field):
    both = with_quotas(quota(), quota("small", ["/user/t/**"], **{field: 1}))
    all_left = with_quotas(quota())
    verdict, told = changes(both, all_left)
    assert (verdict, told[0][0], told[0][1], told[0][3]) == ("wider", f"quota[small].{field}", 1, True)
    assert changes(all_left, both)[0] == "proved"


def test_a_quota_under_another_name_and_one_for_more_files_are_as_strict():
    old = with_quotas(quota("a", ["/user/t/**"], max_files=5))
    assert changes(old, with_quotas(quota("b", ["/user/t/**"], max_files=5))) == ("proved", [])
    assert changes(old, with_quotas(quota("b", ["/user/**"], max_files=5)))[0] == "proved"


def test_a_quota_that_counts_one_scope_keeps_what_one_for_all_of_them_did_there():
    old = with_quotas(quota("all", max_files=5))
    user, team, wider = (
        quota(name, [f"/{name}/**"], max_files=most)
        for name, most in (("user", 5), ("team-2", 4), ("team-2", 6))
    )
    assert changes(old, with_quotas(user, team)) == ("proved", [("quota[team-2].max_files", 5, 4, False)])
    assert changes(old, with_quotas(user, wider)) == ("wider", [("quota[all].max_files", 5, 6, True)])


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


def test_a_quota_of_a_scope_that_is_gone_is_no_loss():
    old = with_quotas(quota(max_files=9), quota("t", ["/team-2/**"], max_files=5))
    assert changes(old, with_quotas(quota(max_files=9), scopes=ONE)) == ("proved", [])
    assert [name for name, *_ in changes(with_quotas(quota(max_files=9), scopes=ONE), old)[1]] == []


def test_a_quota_that_nothing_covers_is_told_as_none():
    old, new = with_quotas(quota("a", ["/user/**"])), with_quotas(quota("a", ["/user/**"]))
    narrow = new.model_copy(update={"quotas": (new.quotas[0].model_copy(update={"paths": ("/user/*.md",)}),)})
    told = changes(old, narrow)[1]
    assert ("quota[a].max_files", 20_000, "none", True) in told
    assert ("quota[a].max_files", "none", 20_000, False) in changes(narrow, old)[1]
