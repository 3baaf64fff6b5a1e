"""Recall without the controls that keep its text data."""

import json

from threats.switches import instead, none, table, true

# fmt: off
table({
    "external_cap": ("Allow results that consist only of external entries.", {
        "recall.shelf:MAX_EXTERNAL": 1000}),
    "newer_of_less_trust": ("Rank newer entries before more trusted ones.", {
        "recall.search:_may_precede": lambda *_: True}),
    "recall_gates": ("Show recalled entries to every reader without the gates.", {
        "recall.reading:gate_of": none}),
    "meaning_policy": ("Return entries hidden by the policy if their vectors match.", {
        "recall.shelf:Shelf.accepts": true}),
    "meaning_gates": ("Store vectors of withheld entries and return them if they match.", {
        "*content.admission:held_for": none, "recall.reading:gate_of": none}),
    "meaning_expiry": ("Return expired entries if their vectors match.", {
        "recall.meaning:shown": lambda wanted: (json.dumps(list(wanted.roots)), "", "[]")}),
    "related_policy": ("Show a run similar entries that its policy hides.", {
        "recall.shelf:Shelf.accepts": true}),
    "related_gates": ("Show a run similar entries that address it or contain hidden text.", {
        "*content.admission:held_for": none, "recall.reading:gate_of": none}),
    "related_trust": ("Show a run similar entries of every trust.", {
        "operations.related:_may_speak": true}),
    "related_claims": ("Make no claims of the entries that a run was shown first.", {
        "sandbox.tools.overlay:Overlay.claim": none,
        "sandbox.sandbox:Sandbox._change_set": lambda self: self._bench.change_set()}),
    "related_expiry": ("Show a run expired entries.", {
        "recall.search:shown": lambda wanted: (json.dumps(list(wanted.roots)), "", "[]")}),
})
# fmt: on


@instead("*recall.block:system_block_of")
def owner_in_system_prompts(entries, *_budget_count_and_weight):
    """Put entries of every author into a system prompt."""
    from muniment.types import Recalled

    return Recalled(entries=tuple(entries), text="\n".join(each.text for each in entries))
