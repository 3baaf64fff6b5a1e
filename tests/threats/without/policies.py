"""Policies, without what makes them mean what they say."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from threats.switches import Patches, control


def relax(off: Patches, *models, **config) -> None:
    """Let pydantic models take more than they say; those that others are made of come first."""
    for model in models:
        before = dict(vars(model))
        model.model_config = {**model.model_config, **config}
        model.model_rebuild(force=True)
        off.then(partial(_put_back, model, before))


def _put_back(model, before: dict[str, Any]) -> None:
    for name, value in before.items():
        if vars(model)[name] is not value:
            setattr(model, name, value)


def _tables(off: Patches, **config) -> None:
    from muniment.policy import decide as model
    from muniment.policy import tables

    parts = (
        *(model.Confinement, model.Limits, model.Changes, tables.ScopeTable, tables.RuleTable),
        *(tables.AllowTable, tables.QuotaTable, tables.ContentTable, tables.CheckTable, tables.PolicyFile),
    )
    relax(off, *parts, **config)


@control()
def closed_tables(off: Patches) -> None:
    """A key that nobody knows is passed over."""
    _tables(off, extra="ignore")


@control()
def pattern_subset(off: Patches) -> None:
    """A pattern may hold anything that pathspec takes."""
    off.put("muniment.policy.decide:_outside_subset", lambda _pattern, deny: None)  # noqa: ARG005


@control()
def firing_denies(off: Patches) -> None:
    """A deny pattern need not match anything."""
    off.put("muniment.policy.load:silent_denies", lambda _policy: ())


@control()
def pattern_cost(off: Patches) -> None:
    """A pattern may have any length and any number of wildcards."""
    off.put("muniment.policy.decide:_too_costly", lambda _: None)


@control()
def own_matching(off: Patches) -> None:
    """A deny pattern matches what pathspec's best backend at hand says."""
    from pathspec import PathSpec

    def make(real):
        def init(self, patterns):
            kept = tuple(patterns)
            real(self, kept)
            off_spec[id(self)] = PathSpec.from_lines("gitignore", kept)

        return init

    off_spec: dict[int, PathSpec] = {}
    off.wrap("muniment.policy.decide:DenyPatterns.__init__", make)
    off.put(
        "muniment.policy.decide:DenyPatterns.match",
        lambda self, text, _folded: off_spec[id(self)].match_file(text),
    )


@control()
def meets(off: Patches) -> None:
    """What a policy extends does not bind it: its own rules and numbers count."""
    off.put("muniment.policy.tables:sorted_layers", lambda layers: (next(iter(layers)),))
    off.put("muniment.policy.tables:_smaller", lambda a, _b: a)
    off.put("muniment.policy.tables:_stricter", lambda a, _b: a)
    off.put("muniment.policy.tables:_smaller_changes", lambda a, _b: a)
    off.put("muniment.policy.tables:_stricter_content", lambda a, _b: a)
    off.put("muniment.policy.tables:_stricter_provenance", lambda a, _b: a)
    off.put("muniment.policy.tables:_shorter", lambda a, _b: a)


@control()
def every_deny(off: Patches) -> None:
    """Of several deny rules the last one counts."""

    inline_tests(off)

    def make(real):
        return lambda policy, verb: real(policy, verb)[-1:]

    off.wrap("muniment.policy.decide:_deny_rules", make)


@control()
def shipped_names(off: Patches) -> None:
    """A policy in somebody's folder comes before a shipped one of its name."""

    def make(real):
        def find(self, entry: str, folder: Path | None):
            for place in (folder, self._policies_dir):
                if place is not None and (place / f"{entry}.toml").is_file():
                    return real(self, str(place / f"{entry}.toml"), None)
            return real(self, entry, None)

        return find

    off.wrap("muniment.policy.family:_Folders.find", make)


@control()
def locks_held(off: Patches) -> None:
    """No policy is held to the lock beside it."""
    off.put("muniment.policy.family:_require_locked", lambda *_: None)


@control()
def signatures_asked(off: Patches) -> None:
    """A policy runs whoever has signed it."""
    off.put("muniment.signatures:verify_policy", lambda *_: "anybody")


@control()
def signatures_checked(off: Patches) -> None:
    """A signature counts as good if it is one by a signer, of whatever it may be."""

    def make(real):
        def run(arguments, given, seconds, environment):
            kept = ["check-novalidate" if each == "verify" else each for each in arguments]
            done = real(kept, given, seconds, environment)
            done.returncode = 0 if "check-novalidate" in kept else done.returncode
            return done

        return run

    off.wrap("muniment.signatures:_run", make)


@control()
def policies_outside(off: Patches) -> None:
    """A root may hold the files of the policy that bounds it."""
    off.put("muniment.confine.binding:require_outside", lambda *_: None)


@control()
def inline_tests(off: Patches) -> None:
    """The tests in a policy are not run."""
    off.put("muniment.policy.load:failure", lambda *_: None)


@control()
def grants_needed(off: Patches) -> None:
    """What no rule denies is allowed."""
    inline_tests(off)
    off.put("muniment.policy.decide:AllowPatterns.match", lambda *_: True)


@control()
def denies(off: Patches) -> None:
    """No deny rule denies anything."""
    inline_tests(off)
    off.put("muniment.policy.decide:Judge._denying", lambda *_: None)


@control()
def mapped_tools(off: Patches) -> None:
    """A tool need not say what it asks of a policy."""
    from muniment.tools import calls as arguments

    off.item(arguments.VERBS, "grep", ())


@control()
def narrowed_writes(off: Patches) -> None:
    """A request for one scope may write to any."""
    off.everywhere("muniment.policy.tables:narrow_writes", lambda policy, _scope: policy)


@control()
def read_by_folding(off: Patches) -> None:
    """The prover reads deny patterns as they are written, in capitals and all."""
    off.put("muniment.policy.automaton:fold", str)


@control()
def prover_denies(off: Patches) -> None:
    """The prover leaves out what is denied."""
    off.put("muniment.lab.proofs:Prover.denied", lambda self, *_: self.tree(()))


@control()
def confirmed_witnesses(off: Patches) -> None:
    """Whatever path the prover finds is shown, without asking the decision."""
    off.put("muniment.lab.proofs:_Comparison._confirms", lambda *_: True)


@control()
def undecided_counts(off: Patches) -> None:
    """A search that gave up is taken for one that found nothing."""
    off.put("muniment.lab.proofs:_Comparison._note", lambda *_: None)


@control()
def terms_compared(off: Patches) -> None:
    """Of two policies only the rules are compared."""
    off.put("muniment.lab.proofs:changed_terms", lambda *_: ())
    off.put("muniment.lab.proofs:changed_quotas", lambda *_: ())


@control()
def asked_of_the_descriptor(off: Patches) -> None:
    """Where a policy stands is asked by its name, after it was read."""

    def make(real):
        def read_text(path):
            read = real(path)
            return None if read is None else read._replace(folder=Path(os.path.realpath(path)).parent)

        return read_text

    off.wrap("muniment.policy.family:read_text", make)


@control()
def links_that_lead_nowhere(off: Patches) -> None:
    """A link that leads nowhere is taken for no file."""

    def make(real):
        def read_text(path):
            return real(path) if os.path.exists(path) else None  # noqa: PTH110

        return read_text

    for module in ("policy.family", "signatures"):
        off.wrap(f"muniment.{module}:read_text", make)


@control()
def key_parts(off: Patches) -> None:
    """A key may have any number of parts."""
    off.everywhere("muniment.policy.family:refuse_long_keys", lambda _: None)
