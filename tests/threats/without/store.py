"""Without what the store keeps of its own work."""

from unittest.mock import ANY

from threats.switches import around, control, instead, none, nothing, table, true

# fmt: off
table({
    "kept_conflicts": ("An intent that ended with a conflict is forgotten, with the trust of its text.", {
        "*store.ledger:keep_conflicts": none}),
    "recovery": ("What an interrupted commit left stays as it is.", {"*kernel.land:_restore": none}),
    "code_names": ("Titles and names are a run's own words.", {
        "operations.labels:FactWords.rename": lambda _, change, __: change.path.rel,
        "operations.labels:FactWords.labelled": lambda _, after, __: after}),
    "no_write_up": ("Any trust may replace and remove any other.", {
        "store.commit:reasons_for_review": nothing}),
    "claimed_files": ("A file is replaced whatever stands there.", {
        "kernel._directory:Directory._require": none,
        "kernel.commit:settle": lambda parts, _: (tuple(parts), ())}),
    "kept_records": ("Nothing is put on record.", {"*store.audit:append": none}),
    "held_files": ("Nobody looks at files that somebody else wrote.", {"store.trust:held_for": none}),
    "low_labels": ("The index shows the words of entries of any trust.", {
        "store.index:_label": lambda row: "held" if row.held else ""}),
    "bound_approvals": ("An approval is of whatever has the id.", {
        "store.review:Pending.digest": lambda *_: ANY}),
    "marked_lines": ("The text of a review is shown as it is.", {
        "store.review:_diff": lambda _before, after: after}),
    "held_text": ("Text of others is looked at by no gate.", {"*content.admission:held_for": none}),
    "overlaps": ("An undo does not ask what became of its files since.", {
        "operations.review:_is_as_left": true,
        "kernel.commit:settle": lambda parts, _: (tuple(parts), ())}),
    "one_review_a_task": ("Whatever a task proposes waits, each for itself.", {
        "store.review:_is_repeated": lambda *_: False}),
    "capped_reviews": ("Any number of reviews may wait.", {"store.review:_check_caps": none}),
    "waits_once": ("Nobody asks whether a task waits already.", {"operations.job:waiting_of": none}),
})
# fmt: on


@instead("*store.trust:by_words")
def capped_trust(_fact, request, _shown, _replaces):
    """What a run writes has the trust of its request, whatever it was shown."""
    from muniment.store.trust import Ruling

    return lambda *_: Ruling(request)


@control()
def own_words(off):
    """Whatever a run writes is in the requester's words."""
    from muniment.content.provenance import Whose

    off.put("*content.provenance:whose", lambda *_: Whose.FACT)
    off.put("*content.provenance:is_made_of", lambda *_: True)


@instead("*store.trust:assessing")
def ledger_trust(*_):
    """An entry is trusted as it says of itself."""
    from muniment.content.entry import parse
    from muniment.kernel.names import Trust
    from muniment.store.rows import Assessed

    return lambda _rel, _digest, data: Assessed(Trust((parse(data).muniment or {}).get("trust", "owner")))


@instead("*store.passages:read_authorship")
def moved_trust(_state, _root, _rel, _data, ours):
    """Bytes at a path that no commit gave them have the trust of their scope, whoever wrote them."""
    from muniment.store.passages import Authorship

    return Authorship(ours)


@instead("store.passages:_TextComparison.read")
def compared_text(comparison, _text):
    """Only the bytes of a file are compared with what the ledger knows."""
    from muniment.store.passages import Authorship

    return Authorship(comparison._ours)


@instead("*store.trust:by_person")
def whole_edits(_state, _key, _before, _policy):
    """What a person edits is all theirs."""
    from muniment.kernel.names import Trust
    from muniment.store.trust import constant

    return constant(Trust.OWNER)


@control()
def pulled_trust(off):
    """Files that Muniment did not write count as the owner's words, also inside a repository."""
    from muniment.kernel.names import Trust

    off.put("kernel.decide:Policy.trust_of", lambda *_: Trust.OWNER)
    off.put("opening:_require_inside", lambda *_: None)


@around("store.visit:row_of")
def held_rows(real, rel, data, digest, assessed, embedder):
    """What is held is told like anything else."""
    row, words = real(rel, data, digest, assessed._replace(held=None), embedder)
    return row._replace(held=assessed.held), words


@instead("*store.audit:verify")
def chained_records(*_, **__):
    """Nobody looks at the chain of records."""
    from muniment.store.audit import Head, Verified

    return Verified(0, (), Head(0, b""))


@instead("operations.review:_approved_all_the_same")
def told_as_it_is(_state, _review, _task, problem):
    """An error of an approval is told as if it had done nothing."""
    raise problem


@around("kernel.write:_roll_back")
def proven_rollback(real, intent, *args):
    """Whatever a rollback meets, even an error or an interrupt, the intent is closed."""
    from muniment.kernel.refusal import ManagedMemoryUnavailable
    from muniment.kernel.write import Recovered

    try:
        return real(intent, *args)
    except (ManagedMemoryUnavailable, KeyboardInterrupt, MemoryError):
        return Recovered(intent, (), ())
