"""Limits, quotas and other terms of two policies: each change is told, and whether it binds a run less."""

from __future__ import annotations

import json

import pytest

from kit.policy.changed import BOTH, allow, made
from muniment.lab.proofs import diff, terms_of
from muniment.policy.decide import Policy

LIMITS = "turns seconds tool_calls read_bytes scan_bytes write_bytes files_written"
LOOSER = {
    **{f"limits.{name}": (1, 2) for name in LIMITS.split()},
    "confinement.require": ("full", "partial"),
    "confinement.on_escape": ("abort", "refuse"),
    "changes.conflict": ("fail", "retry"),
    "changes.max_forget": (1, 2),
    "changes.max_scope_share": (0.1, 0.2),
    "content.reject": (["ansi", "bidi"], ["bidi"]),
    "content.secrets": ("reject", "redact"),
    "content.instructions": ("quarantine", "allow"),
    "provenance.untrusted_sources": ("reject", "quarantine"),
    "retention.default": (36_500, "never"),
    "retention.untrusted": (14, 15),
}
"""Every term of a policy: a value, and one that binds a run less."""


def with_term(name, value):
    return made(
        [allow("/user/a")],
        terms=f"[{name.partition('.')[0]}]\n{name.partition('.')[2]} = {json.dumps(value)}\n",
    )


def changes(old, new):
    difference = diff(old, new)
    return difference.verdict, [(term.name, term.old, term.new, term.is_looser) for term in difference.terms]


@pytest.mark.threat("T-POL-02", control="terms_compared")
def test_a_term_that_changed_is_told_in_both_directions():
    scopes = {"scopes.user.trust", "scopes.user.commit"}
    assert set(terms_of(made([], "user = {}\n"))) == {*LOOSER, *scopes}
    known = {"name", "scope_terms", "layers", "quotas"}
    assert {name.partition(".")[0] for name in LOOSER} == set(Policy.model_fields) - known
    for name, values in LOOSER.items():
        strict, loose = (with_term(name, value) for value in values)
        verdict, ((told, *_, is_looser),) = changes(strict, loose)
        assert (verdict, told, is_looser) == ("wider", name, True)
        verdict, ((told, *_, is_looser),) = changes(loose, strict)
        assert (verdict, told, is_looser) == ("proved", name, False)


def quotas(**patterns):
    tables = "".join(
        f'[[quota]]\nid = "{name}"\npaths = {json.dumps(paths)}\nmax_files = 5\n'
        for name, paths in patterns.items()
    )
    return made([allow("/user/**")], BOTH, tables)


@pytest.mark.threat("T-POL-02", control="terms_compared")
def test_a_quota_that_changed_is_told_in_both_directions_and_one_for_fewer_files_is_looser():
    for field in ("max_file_bytes", "max_files", "max_total_bytes"):
        head = '[[quota]]\nid = "q"\npaths = ["/**"]\n'
        low, high = (made([allow("/user/**")], terms=f"{head}{field} = {number}\n") for number in (1, 2))
        assert changes(low, high) == ("wider", [(f"quota[q].{field}", 1, 2, True)])
        assert changes(high, low) == ("proved", [(f"quota[q].{field}", 2, 1, False)])
    for old, new in (
        (quotas(a=["/user/t/**"]), quotas(a=["/user/t/*.md"])),
        # Each alone keeps its number; both together may hold twice as much.
        (quotas(a=["/user/t/**", "/user/u/**"]), quotas(t=["/user/t/**"], u=["/user/u/**"])),
    ):
        verdict, told = changes(old, new)
        assert (verdict, told[0]) == ("wider", ("quota[a].max_files", 5, 20_000, True))
