"""The store without its records and checks."""

from unittest.mock import ANY

from threats.switches import around, control, instead, none, nothing, table, true

# fmt: off
table({
    "kept_conflicts": ("Forget an intent that ended with a conflict, and the trust of its text.", {
        "*store.ledger:keep_conflicts": none}),
    "recovery": ("Skip recovery of an interrupted commit.", {"*kernel.land:_restore": none}),
    "code_names": ("Let a run choose titles and names.", {
        "operations.labels:FactWords.rename": lambda _, change, __: change.path.rel,
        "operations.labels:FactWords.labelled": lambda _, after, __: after}),
    "no_write_up": ("Let any trust replace and remove any other.", {
        "store.commit:reasons_for_review": nothing}),
    "claimed_files": ("Replace a file without checking its content.", {
        "kernel._directory:Directory._require": none,
        "kernel.commit:settle": lambda parts, _: (tuple(parts), ())}),
    "kept_records": ("Write no records.", {"*store.audit:append": none}),
    "held_files": ("Skip the gates for files of other authors.", {"store.trust:held_for": none}),
    "low_labels": ("Show the words of entries of every trust in the index.", {
        "store.index:_label": lambda row: "held" if row.held else ""}),
    "bound_approvals": ("Approve the current proposal of an id, without its digest.", {
        "store.review:Pending.digest": lambda *_: ANY}),
    "marked_lines": ("Show the text of a review unescaped.", {
        "store.review:_diff": lambda _before, after: after}),
    "held_text": ("Skip the gates for text of other authors.", {"*content.admission:held_for": none}),
    "overlaps": ("Let an undo ignore later changes of its files.", {
        "operations.review:_is_as_left": true,
        "kernel.commit:settle": lambda parts, _: (tuple(parts), ())}),
    "one_review_a_task": ("Create a review for each proposal of a task.", {
        "store.review:_is_repeated": lambda *_: False}),
    "capped_reviews": ("Accept any number of pending reviews.", {"store.review:_check_caps": none}),
    "waits_once": ("Skip the check for a pending review of the task.", {"operations.job:waiting_of": none}),
})
# fmt: on


@instead("*store.trust:by_words")
def capped_trust(_fact, request, _shown, _replaces):
    """Give a run's text the trust of its request, regardless of entries shown."""
    from muniment.store.trust import Ruling

    return lambda *_: Ruling(request)


@control()
def own_words(off):
    """Treat any text of a run as the requester's words."""
    from muniment.content.provenance import Whose

    off.put("*content.provenance:whose", lambda *_: Whose.FACT)
    off.put("*content.provenance:is_made_of", lambda *_: True)


@instead("*store.trust:assessing")
def ledger_trust(*_):
    """Use the trust that an entry claims."""
    from muniment.content.entry import parse
    from muniment.kernel.names import Trust
    from muniment.store.rows import Assessed

    return lambda _rel, _digest, data: Assessed(Trust((parse(data).muniment or {}).get("trust", "owner")))


@instead("*store.passages:read_authorship")
def moved_trust(_state, _root, _rel, _data, ours):
    """Give foreign bytes at a path the trust of their scope."""
    from muniment.store.passages import Authorship

    return Authorship(ours)


@instead("store.passages:_TextComparison.read")
def compared_text(comparison, _text):
    """Compare only the bytes of a file with the ledger."""
    from muniment.store.passages import Authorship

    return Authorship(comparison._ours)


@instead("*store.trust:by_person")
def whole_edits(_state, _key, _before, _policy):
    """Give all text of an edited entry the editor's trust."""
    from muniment.kernel.names import Trust
    from muniment.store.trust import constant

    return constant(Trust.OWNER)


@control()
def pulled_trust(off):
    """Treat foreign files as the owner's words, also inside a repository."""
    from muniment.kernel.names import Trust

    off.put("kernel.decide:Policy.trust_of", lambda *_: Trust.OWNER)
    off.put("opening:_require_inside", lambda *_: None)


@around("store.visit:row_of")
def held_rows(real, rel, data, digest, assessed, embedder):
    """Inject withheld entries like any other."""
    row, words = real(rel, data, digest, assessed._replace(held=None), embedder)
    return row._replace(held=assessed.held), words


@instead("*store.audit:verify")
def chained_records(*_, **__):
    """Skip the check of the chain of records."""
    from muniment.store.audit import Head, Verified

    return Verified(0, (), Head(0, b""))


@instead("operations.review:_approved_all_the_same")
def told_as_it_is(_state, _review, _task, problem):
    """Report a failed approval as one without effect."""
    raise problem


@around("kernel.write:_roll_back")
def proven_rollback(real, intent, *args):
    """Close the intent after any error or interrupt of a rollback."""
    from muniment.kernel.refusal import ManagedMemoryUnavailable
    from muniment.kernel.write import Recovered

    try:
        return real(intent, *args)
    except (ManagedMemoryUnavailable, KeyboardInterrupt, MemoryError):
        return Recovered(intent, (), ())
