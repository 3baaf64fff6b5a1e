"""Without what keeps recalled text from being more than data."""

import json

from threats.switches import instead, none, table, true

# fmt: off
table({
    "external_cap": ("Entries of strangers may be all of an answer.", {"recall.shelf:MAX_EXTERNAL": 1000}),
    "newer_of_less_trust": ("What was written later stands before what is trusted more.", {
        "recall.search:_may_precede": lambda *_: True}),
    "recall_gates": ("What is read for a recall is shown, whatever it says and to whom.", {
        "recall.reading:gate_of": none}),
    "meaning_policy": ("What the policy hides comes, if it means what is asked.", {
        "recall.shelf:Shelf.accepts": true}),
    "meaning_gates": ("What is held has a vector, and comes if it means what is asked.", {
        "*content.admission:held_for": none, "recall.reading:gate_of": none}),
    "meaning_expiry": ("What has expired comes, if it means what is asked.", {
        "recall.meaning:shown": lambda wanted: (json.dumps(list(wanted.roots)), "", "[]")}),
    "related_policy": ("A run is shown what its policy hides, if it is like the fact.", {
        "recall.shelf:Shelf.accepts": true}),
    "related_gates": ("A run is shown what addresses it, or holds what nobody sees.", {
        "*content.admission:held_for": none, "recall.reading:gate_of": none}),
    "related_trust": ("A run is shown what anybody wrote, if it is like the fact.", {
        "operations.related:_may_speak": true}),
    "related_claims": ("A run does not rest on what it was shown before it began.", {
        "sandbox.tools.overlay:Overlay.claim": none,
        "sandbox.sandbox:Sandbox._change_set": lambda self: self._bench.change_set()}),
    "related_expiry": ("A run is shown what has expired.", {
        "recall.search:shown": lambda wanted: (json.dumps(list(wanted.roots)), "", "[]")}),
})
# fmt: on


@instead("*recall.block:system_block_of")
def owner_in_system_prompts(entries, *_budget_count_and_weight):
    """What anybody said may stand in a system prompt."""
    from muniment.types import Recalled

    return Recalled(entries=tuple(entries), text="\n".join(each.text for each in entries))
