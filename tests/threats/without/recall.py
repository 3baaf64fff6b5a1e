"""Switch off the mechanisms that keep recalled text data."""

import json

from threats.switches import add_controls, do_nothing, replace_target, return_true, wrap_target

# fmt: off
add_controls({
    "external_cap": ("All entries of an answer may be external.", {"recall.root_reader:MAX_EXTERNAL": 1000}),
    "newer_of_less_trust": ("A newer entry precedes a more trusted one.", {
        "recall.search:_can_precede": lambda *_: True}),
    "recall_gates": ("Recall shows entries without a check of their text.", {
        "recall.reading:find_display_gate": do_nothing}),
    "meaning_policy": ("Search by meaning finds entries that the policy hides.", {
        "recall.root_reader:RootReader.can_display": return_true}),
    "meaning_gates": ("Search by meaning finds withheld entries.", {
        "*content.admission:find_withholding_gate": do_nothing,
        "recall.reading:find_display_gate": do_nothing}),
    "meaning_expiry": ("Search by meaning finds expired entries.", {
        "recall.semantic_search:build_filter_values":
            lambda wanted: (json.dumps(list(wanted.roots)), "", "[]")}),
    "related_policy": ("A run sees related entries that its policy hides.", {
        "recall.root_reader:RootReader.can_display": return_true}),
    "related_gates": ("A run sees related entries that a gate withholds.", {
        "*content.admission:find_withholding_gate": do_nothing,
        "recall.reading:find_display_gate": do_nothing}),
    "related_trust": ("A run sees related entries of any trust.", {
        "operations.related:_is_visible_to_model": return_true}),
    "related_claims": ("A run makes no claim on the related entries that it saw.", {
        "sandbox.tools.overlay:Overlay.claim": do_nothing,
        "sandbox.sandbox:Sandbox._read_change_set": lambda self: self._executor.change_set()}),
    "related_expiry": ("A run sees expired related entries.", {
        "recall.search:build_filter_values": lambda wanted: (json.dumps(list(wanted.roots)), "", "[]")}),
})
# fmt: on


@replace_target("*recall.block:build_system_block")
def owner_in_system_prompts(entries, *_budget_count_and_weight):
    """Text of any trust may be in a system prompt."""
    from muniment.types import Recalled

    return Recalled(entries=tuple(entries), text="\n".join(each.text for each in entries))


@wrap_target("*recall.block:build_standing_block")
def standing_trust(build, entries, *others):
    """Every entry of a standing context is an instruction."""
    from dataclasses import replace

    from muniment.kernel.names import Trust

    return build([replace(each, trust=Trust.OWNER) for each in entries], *others)
