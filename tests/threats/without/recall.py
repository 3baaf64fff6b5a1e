"""Without what keeps recalled text from being more than data."""

from __future__ import annotations

from threats.switches import Patches, control


@control()
def external_cap(off: Patches) -> None:
    """Entries of strangers may be all of an answer."""
    off.put("muniment.recall.recaller:MAX_EXTERNAL", 1_000)


@control()
def owner_in_system_prompts(off: Patches) -> None:
    """What anybody said may stand in a system prompt."""

    def whole(notes, *_budget_and_count):  # type: ignore[no-untyped-def]
        from muniment.recall.recaller import Block

        bodies = tuple(note.body for note in notes)
        return Block("\n".join(bodies), 0, bodies)

    off.everywhere("muniment.recall.recaller:system_block_of", whole)


@control()
def recall_gates(off: Patches) -> None:
    """What is read for a recall is shown, whatever it says and to whom."""
    off.put("muniment.recall.recaller:_gate", lambda *_: None)
