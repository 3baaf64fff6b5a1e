"""Switch off checks of policies."""

import os
from functools import partial
from pathlib import Path

from threats.switches import (
    add_controls,
    control,
    do_nothing,
    return_argument,
    return_empty,
    return_true,
    wrap_target,
)


def relax(off, *models, **config):
    """Let pydantic models accept more; nested models must come first."""
    for model in models:
        before = dict(vars(model))
        model.model_config = {**model.model_config, **config}
        model.model_rebuild(force=True)
        off.add_undo(partial(_restore, model, before))


def _restore(model, before):
    for name, value in before.items():
        if vars(model)[name] is not value:
            setattr(model, name, value)


def _relax_tables(off, **config):
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
add_controls({
    "pattern_subset": ("A pattern may contain any syntax of pathspec.", {
        "policy.pattern:_check_subset": do_nothing}),
    "firing_denies": ("A deny pattern may match nothing.", {"policy.load:find_defects": return_empty}),
    "pattern_cost": ("A pattern may have any length and any number of wildcards.", {
        "policy.pattern:_check_cost": do_nothing}),
    "meets": ("An extended policy does not limit its child.", {
        "*policy.combine:meet": return_argument}),
    "locked_policies": ("A policy may differ from its lock file.", {
        "policy.family:_require_locked": do_nothing}),
    "required_signatures": ("A policy needs no signature.", {
        "policy.signatures:verify_policy": lambda *_: "anybody"}),
    "policies_outside": ("A root may contain the files of its policy.", {
        "policy.ownership:require_outside": do_nothing}),
    "inline_tests": ("The tests in a policy are not run.", {"policy.load:find_failure": do_nothing}),
    "grants_needed": ("Everything that no rule denies is allowed.", {
        "policy.load:find_failure": do_nothing, "kernel.decide:AllowPatterns.match": return_true}),
    "denies": ("Deny rules have no effect.", {
        "policy.load:find_failure": do_nothing, "kernel.decide:PolicyEvaluator._find_denial": do_nothing}),
    "narrowed_writes": ("A request for one scope may write to any.", {
        "*policy.combine:narrow_writes": lambda policy, _scope: policy}),
    "read_by_folding": ("The prover reads deny patterns without case folding.", {
        "policy.automaton:fold": str}),
    "prover_denies": ("The prover ignores deny rules.", {
        "lab.proofs:Prover.build_denied_set": lambda self, *_: self.match_tree(())}),
    "confirmed_witnesses": ("Witnesses of the prover are not confirmed by the decision.", {
        "lab.proofs:_is_in_all": return_true}),
    "undecided_counts": ("An incomplete search counts as one without a result.", {
        "lab.proofs:_Comparison._note_undecided": do_nothing}),
    "terms_compared": ("A comparison of two policies covers only their rules.", {
        "lab.proofs:compare_terms": return_empty, "lab.proofs:compare_quotas": return_empty}),
    "key_parts": ("A key may have any number of parts.", {"*policy.files:reject_long_keys": do_nothing}),
    "closed_tables": ("Unknown keys are ignored.", partial(_relax_tables, extra="ignore")),
})
# fmt: on


@control()
def own_matching(off):
    """The best backend of pathspec matches deny patterns."""
    from pathspec import PathSpec

    specs = {}

    def make(real):
        def init(self, patterns):
            saved = tuple(patterns)
            real(self, saved)
            specs[id(self)] = PathSpec.from_lines("gitignore", saved)

        return init

    off.wrap("kernel.decide:DenyPatterns.__init__", make)
    off.put("kernel.decide:DenyPatterns.match", lambda self, text, _: specs[id(self)].match_file(text))


@control()
def every_deny(off):
    """Only the last deny rule counts."""
    off.put("policy.load:find_failure", do_nothing)
    off.wrap("kernel.decide:_collect_deny_rules", lambda real: lambda policy, verb: real(policy, verb)[-1:])


@wrap_target("policy.family:_find_policy")
def shipped_names(real, policies_dir, entry, folder):
    """A policy in the user's folder replaces a packaged one of the same name."""
    for candidate in (folder, policies_dir):
        if candidate is not None and (candidate / f"{entry}.toml").is_file():
            return real(policies_dir, str(candidate / f"{entry}.toml"), None)
    return real(policies_dir, entry, None)


@wrap_target("policy.signatures:_run_ssh_keygen")
def signatures_checked(real, arguments, given, seconds, environment):
    """Any signature of a signer is valid, for any content."""
    saved = ["check-novalidate" if each == "verify" else each for each in arguments]
    done = real(saved, given, seconds, environment)
    done.returncode = 0 if "check-novalidate" in saved else done.returncode
    return done


@control()
def mapped_tools(off):
    """A tool needs no permission of the policy."""
    from muniment.sandbox.tools import calls as arguments

    off.put_item(arguments.VERBS, "grep", ())


@wrap_target("policy.files:read_text")
def descriptor_folders(real, path):
    """The folder of a policy is resolved by name after the file was read."""
    read = real(path)
    return None if read is None else read._replace(folder=Path(os.path.realpath(path)).parent)


@control()
def dangling_links(off):
    """A dangling link counts as a missing file."""

    def make(real):
        return lambda path: real(path) if os.path.exists(path) else None  # noqa: PTH110

    for module in ("policy.files", "policy.family", "policy.signatures"):
        off.wrap(f"{module}:read_text", make)
