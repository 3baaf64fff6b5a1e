"""Policies, without what makes them mean what they say."""

import os
from functools import partial
from pathlib import Path

from threats.switches import around, control, none, nothing, same, table, true


def relax(off, *models, **config):
    """Let pydantic models take more than they say; those that others are made of come first."""
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
    "pattern_subset": ("A pattern may hold anything that pathspec takes.", {
        "policy.pattern:_outside_subset": none}),
    "firing_denies": ("A deny pattern need not match anything.", {"policy.load:defects": nothing}),
    "pattern_cost": ("A pattern may have any length and any number of wildcards.", {
        "policy.pattern:_too_costly": none}),
    "meets": ("What a policy extends does not bind it: its own rules and numbers count.", {
        "*policy.tables:meet": same}),
    "locks_held": ("No policy is held to the lock beside it.", {"policy.family:_require_locked": none}),
    "signatures_asked": ("A policy runs whoever has signed it.", {
        "policy.signatures:verify_policy": lambda *_: "anybody"}),
    "policies_outside": ("A root may hold the files of the policy that bounds it.", {
        "policy.ownership:require_outside": none}),
    "inline_tests": ("The tests in a policy are not run.", {"policy.load:failure": none}),
    "grants_needed": ("What no rule denies is allowed.", {
        "policy.load:failure": none, "kernel.decide:AllowPatterns.match": true}),
    "denies": ("No deny rule denies anything.", {
        "policy.load:failure": none, "kernel.decide:Judge._denied": none}),
    "narrowed_writes": ("A request for one scope may write to any.", {
        "*policy.tables:narrow_writes": lambda policy, _scope: policy}),
    "read_by_folding": ("The prover reads deny patterns as they are written, in capitals and all.", {
        "policy.automaton:fold": str}),
    "prover_denies": ("The prover leaves out what is denied.", {
        "lab.proofs:Prover.denied": lambda self, *_: self.tree(())}),
    "confirmed_witnesses": ("Whatever path the prover finds is shown, without asking the decision.", {
        "lab.proofs:_are_in": true}),
    "undecided_counts": ("A search that gave up is taken for one that found nothing.", {
        "lab.proofs:_Comparison._note": none}),
    "terms_compared": ("Of two policies only the rules are compared.", {
        "lab.proofs:changed_terms": nothing, "lab.proofs:changed_quotas": nothing}),
    "key_parts": ("A key may have any number of parts.", {"*policy.family:refuse_long_keys": none}),
    "closed_tables": ("A key that nobody knows is passed over.", partial(_tables, extra="ignore")),
})
# fmt: on


@control()
def own_matching(off):
    """A deny pattern matches what pathspec's best backend at hand says."""
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
    """Of several deny rules the last one counts."""
    off.put("policy.load:failure", none)
    off.wrap("kernel.decide:_denies", lambda real: lambda policy, verb: real(policy, verb)[-1:])


@around("policy.family:_find")
def shipped_names(real, policies_dir, entry, folder):
    """A policy in somebody's folder comes before a shipped one of its name."""
    for place in (folder, policies_dir):
        if place is not None and (place / f"{entry}.toml").is_file():
            return real(policies_dir, str(place / f"{entry}.toml"), None)
    return real(policies_dir, entry, None)


@around("policy.signatures:_run")
def signatures_checked(real, arguments, given, seconds, environment):
    """A signature counts as good if it is one by a signer, of whatever it may be."""
    kept = ["check-novalidate" if each == "verify" else each for each in arguments]
    done = real(kept, given, seconds, environment)
    done.returncode = 0 if "check-novalidate" in kept else done.returncode
    return done


@control()
def mapped_tools(off):
    """A tool need not say what it asks of a policy."""
    from muniment.sandbox.tools import calls as arguments

    off.item(arguments.VERBS, "grep", ())


@around("policy.family:read_text")
def asked_of_the_descriptor(real, path):
    """Where a policy stands is asked by its name, after it was read."""
    read = real(path)
    return None if read is None else read._replace(folder=Path(os.path.realpath(path)).parent)


@control()
def links_that_lead_nowhere(off):
    """A link that leads nowhere is taken for no file."""

    def make(real):
        return lambda path: real(path) if os.path.exists(path) else None  # noqa: PTH110

    for module in ("policy.family", "policy.signatures"):
        off.wrap(f"{module}:read_text", make)
