"""Switch off checks of the store."""

from unittest.mock import ANY

from threats.switches import (
    add_controls,
    control,
    do_nothing,
    replace_target,
    return_empty,
    return_true,
    wrap_target,
)

# fmt: off
add_controls({
    "kept_conflicts": ("A conflicting intent is deleted with the trust of its text.", {
        "*store.ledger:keep_conflicts": do_nothing}),
    "recovery": ("The remains of an interrupted commit stay.", {"*kernel.land:_restore": do_nothing}),
    "code_names": ("A run chooses titles and names.", {
        "operations.labels:FactWords.rename": lambda _, change, __: change.path.rel,
        "operations.labels:FactWords.labelled": lambda _, after, __: after}),
    "no_write_up": ("Any author may replace and remove entries of any trust.", {
        "store.commit:reasons_for_review": return_empty}),
    "claimed_files": ("A file is replaced without a check of its content.", {
        "kernel._directory:Directory._require": do_nothing,
        "kernel.commit:settle": lambda parts, _: (tuple(parts), ())}),
    "kept_records": ("No audit record is written.", {"*store.audit:append": do_nothing}),
    "withheld_files": ("Files of other authors are not checked.", {"store.trust:held_for": do_nothing}),
    "low_labels": ("The index shows labels of entries of any trust.", {
        "store.index:_label": lambda row: "held" if row.held else ""}),
    "bound_approvals": ("An approval applies to any content of the review.", {
        "store.review:Pending.digest": lambda *_: ANY}),
    "marked_lines": ("The text of a review is shown unmarked.", {
        "store.review:_diff": lambda _before, after: after}),
    "withheld_text": ("Text of other authors passes no gate.", {"*content.admission:held_for": do_nothing}),
    "overlaps": ("An undo ignores later changes of its files.", {
        "operations.review:_is_as_left": return_true,
        "kernel.commit:settle": lambda parts, _: (tuple(parts), ())}),
    "one_review_a_task": ("Every proposal of a task is a separate review.", {
        "store.review:_is_repeated": lambda *_: False}),
    "capped_reviews": ("Any number of reviews may be pending.", {"store.review:_check_caps": do_nothing}),
    "single_reviews": ("A task may have several pending reviews.", {"operations.job:waiting_of": do_nothing}),
})
# fmt: on


@replace_target("*store.trust:by_words")
def capped_trust(_fact, request, _shown, _replaces):
    """Text of a run has the trust of its request, whatever the run has read."""
    from muniment.store.trust import Ruling

    return lambda *_: Ruling(request)


@control()
def own_words(off):
    """All text of a run counts as the requester's words."""
    from muniment.content.provenance import Whose

    off.put("*content.provenance:whose", lambda *_: Whose.FACT)
    off.put("*content.provenance:is_made_of", lambda *_: True)


@replace_target("*store.trust:assessing")
def ledger_trust(*_):
    """An entry has the trust that it claims."""
    from muniment.content.entry import parse
    from muniment.kernel.names import Trust
    from muniment.store.rows import Assessed

    return lambda _rel, _digest, data: Assessed(Trust((parse(data).muniment or {}).get("trust", "owner")))


@replace_target("*store.passages:read_authorship")
def moved_trust(_state, _root, _rel, _data, scope_trust):
    """Bytes without a commit have the trust of their scope, whoever wrote them."""
    from muniment.store.passages import Authorship

    return Authorship(scope_trust)


@replace_target("store.passages:_TextComparison.read")
def compared_text(comparison, _text):
    """Only whole files are compared with the ledger."""
    from muniment.store.passages import Authorship

    return Authorship(comparison._ours)


@replace_target("*store.trust:by_person")
def whole_edits(_state, _key, _before, _policy):
    """An edited entry has the trust of the editor."""
    from muniment.kernel.names import Trust
    from muniment.store.trust import constant

    return constant(Trust.OWNER)


@control()
def pulled_trust(off):
    """Files of other programs have owner trust, also inside a repository."""
    from muniment.kernel.names import Trust

    off.put("kernel.decide:Policy.trust_of", lambda *_: Trust.OWNER)
    off.put("opening:_require_inside", lambda *_: None)


@wrap_target("store.visit:row_of")
def withheld_rows(real, rel, data, digest, assessed, embedder):
    """Withheld entries are shown like others."""
    row, words = real(rel, data, digest, assessed._replace(held=None), embedder)
    return row._replace(held=assessed.held), words


@replace_target("*store.audit:verify")
def chained_records(*_, **__):
    """The chain of audit records is not verified."""
    from muniment.store.audit import Head, Verified

    return Verified(0, (), Head(0, b""))


@replace_target("operations.review:_approved_all_the_same")
def approval_errors(_state, _review, _task, problem):
    """An error of an approval is reported as if nothing was written."""
    raise problem


@wrap_target("kernel.write:_roll_back")
def proven_rollback(real, intent, *args):
    """An intent is closed after any rollback, even after an error or interrupt."""
    from muniment.kernel.refusal import ManagedMemoryUnavailable
    from muniment.kernel.write import Recovered

    try:
        return real(intent, *args)
    except (ManagedMemoryUnavailable, KeyboardInterrupt, MemoryError):
        return Recovered(intent, (), ())
