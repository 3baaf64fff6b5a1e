"""Without what keeps recalled text from being more than data."""

from threats.switches import instead, none, table

# fmt: off
table({
    "external_cap": ("Entries of strangers may be all of an answer.", {"recall.recaller:MAX_EXTERNAL": 1000}),
    "newer_of_less_trust": ("What was written later stands before what is trusted more.", {
        "recall.search:_may_precede": lambda *_: True}),
    "recall_gates": ("What is read for a recall is shown, whatever it says and to whom.", {
        "recall.recaller:_gate": none}),
})
# fmt: on


@instead("*recall.recaller:system_block_of")
def owner_in_system_prompts(notes, *_budget_and_count):
    """What anybody said may stand in a system prompt."""
    from muniment.recall.recaller import Block

    bodies = tuple(note.body for note in notes)
    return Block("\n".join(bodies), 0, bodies)
