"""Policies without the checks of their meaning."""

import os
from functools import partial
from pathlib import Path

from threats.switches import around, control, none, nothing, same, table, true


def relax(off, *models, **config):
    """Let pydantic models accept more than they declare; list nested models first."""
    for model in models:
        before = dict(vars(model))
        model.model_config = {**model.model_config, **config}
        model.model_rebuild(force=True)
        off.then(partial(_put_back, model, before))


def _put_back(model, before):
    for name, value in before.items():
        if vars(model)[name] is not value:
            setattr(model, name, value)


def _tables(off, **config):
    from muniment.policy import tables

    parts = (
        *(tables.ConfinementTable, tables.LimitsTable, tables.ChangesTable, tables.ScopeTable),
        *(
            tables.RuleTable,
            tables.AllowTable,
            tables.QuotaTable,
            tables.ContentTable,
            tables.CheckTable,
            tables.PolicyFile,
        ),
    )
    relax(off, *parts, **config)


# fmt: off
table({
    "pattern_subset": ("Accept every pattern that pathspec accepts.", {
        "policy.pattern:_outside_subset": none}),
    "firing_denies": ("Accept deny patterns that match nothing.", {"policy.load:defects": nothing}),
    "pattern_cost": ("Accept patterns of any length with any number of wildcards.", {
        "policy.pattern:_too_costly": none}),
    "meets": ("Ignore the parents of a policy.", {
        "*policy.tables:meet": same}),
    "locks_held": ("Ignore the lock of a policy.", {"policy.family:_require_locked": none}),
    "signatures_asked": ("Accept a policy signed by anyone.", {
        "policy.signatures:verify_policy": lambda *_: "anybody"}),
    "policies_outside": ("Accept a root that contains the policy files.", {
        "policy.ownership:require_outside": none}),
    "inline_tests": ("Skip the inline tests of a policy.", {"policy.load:failure": none}),
    "grants_needed": ("Allow everything that no rule denies.", {
        "policy.load:failure": none, "kernel.decide:AllowPatterns.match": true}),
    "denies": ("Ignore deny rules.", {
        "policy.load:failure": none, "kernel.decide:Judge._denied": none}),
    "narrowed_writes": ("Let a request for one scope write to any.", {
        "*policy.tables:narrow_writes": lambda policy, _scope: policy}),
    "read_by_folding": ("Let the prover match deny patterns case-sensitively.", {
        "policy.automaton:fold": str}),
    "prover_denies": ("Let the prover ignore deny rules.", {
        "lab.proofs:Prover.denied": lambda self, *_: self.tree(())}),
    "confirmed_witnesses": ("Report a path of the prover without checking the decision.", {
        "lab.proofs:_are_in": true}),
    "undecided_counts": ("Treat an incomplete search as one without a result.", {
        "lab.proofs:_Comparison._note": none}),
    "terms_compared": ("Compare only the rules of two policies.", {
        "lab.proofs:changed_terms": nothing, "lab.proofs:changed_quotas": nothing}),
    "key_parts": ("Accept keys of any number of parts.", {"*policy.family:refuse_long_keys": none}),
    "closed_tables": ("Ignore unknown keys.", partial(_tables, extra="ignore")),
})
# fmt: on


@control()
def own_matching(off):
    """Match deny patterns with pathspec's best installed backend."""
    from pathspec import PathSpec

    specs = {}

    def make(real):
        def init(self, patterns):
            kept = tuple(patterns)
            real(self, kept)
            specs[id(self)] = PathSpec.from_lines("gitignore", kept)

        return init

    off.wrap("kernel.decide:DenyPatterns.__init__", make)
    off.put("kernel.decide:DenyPatterns.match", lambda self, text, _: specs[id(self)].match_file(text))


@control()
def every_deny(off):
    """Apply only the last of several deny rules."""
    off.put("policy.load:failure", none)
    off.wrap("kernel.decide:_denies", lambda real: lambda policy, verb: real(policy, verb)[-1:])


@around("policy.family:_find")
def shipped_names(real, policies_dir, entry, folder):
    """Prefer a policy in a user's folder to a shipped one of the same name."""
    for place in (folder, policies_dir):
        if place is not None and (place / f"{entry}.toml").is_file():
            return real(policies_dir, str(place / f"{entry}.toml"), None)
    return real(policies_dir, entry, None)


@around("policy.signatures:_run")
def signatures_checked(real, arguments, given, seconds, environment):
    """Accept a signer's signature of any file."""
    kept = ["check-novalidate" if each == "verify" else each for each in arguments]
    done = real(kept, given, seconds, environment)
    done.returncode = 0 if "check-novalidate" in kept else done.returncode
    return done


@control()
def mapped_tools(off):
    """Accept tools without declared verbs."""
    from muniment.sandbox.tools import calls as arguments

    off.item(arguments.VERBS, "grep", ())


@around("policy.family:read_text")
def asked_of_the_descriptor(real, path):
    """Check the location of a policy by name, after reading it."""
    read = real(path)
    return None if read is None else read._replace(folder=Path(os.path.realpath(path)).parent)


@control()
def links_that_lead_nowhere(off):
    """Treat a dangling link as a missing file."""

    def make(real):
        return lambda path: real(path) if os.path.exists(path) else None  # noqa: PTH110

    for module in ("policy.family", "policy.signatures"):
        off.wrap(f"{module}:read_text", make)
