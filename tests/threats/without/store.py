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
        "*store.ledger:record_conflicts": do_nothing}),
    "recovery": ("The remains of an interrupted commit stay.", {"*kernel.apply:_restore": do_nothing}),
    "code_names": ("A run chooses titles and names.", {
        "operations.labels:FactLabels.choose_path": lambda _, change, __: change.path.rel,
        "operations.labels:FactLabels.add_labels": lambda _, after, __: after}),
    "no_write_up": ("Any author may replace and remove entries of any trust.", {
        "store.commit:find_review_reasons": return_empty}),
    "claimed_files": ("A file is replaced without a check of its content.", {
        "kernel._directory:Directory._require_digest": do_nothing,
        "kernel.commit:drop_conflicting": lambda parts, _: (tuple(parts), ())}),
    "kept_records": ("No audit record is written.", {"*store.audit:append": do_nothing}),
    "withheld_files": ("Files of other authors are not checked.", {
        "content.admission:find_withholding_gate": do_nothing}),
    "low_labels": ("The index shows labels of entries of any trust.", {
        "store.index:_choose_label": lambda row: "withheld" if row.is_withheld else ""}),
    "bound_approvals": ("An approval applies to any content of the review.", {
        "store.review:PendingChange.compute_digest": lambda *_: ANY}),
    "marked_lines": ("The text of a review is shown unmarked.", {
        "store.review:_format_diff": lambda _before, after: after}),
    "withheld_text": ("Text of other authors passes no gate.", {
        "*content.admission:find_withholding_gate": do_nothing}),
    "overlaps": ("An undo ignores later changes of its files.", {
        "operations.review:_is_unchanged_since": return_true,
        "kernel.commit:drop_conflicting": lambda parts, _: (tuple(parts), ())}),
    "one_review_a_task": ("Every proposal of a task is a separate review.", {
        "store.review:_is_same_request": lambda *_: False}),
    "capped_reviews": ("Any number of reviews may be pending.", {"store.review:_check_limits": do_nothing}),
    "single_reviews": ("A task may have several pending reviews.", {
        "operations.job:find_pending": do_nothing}),
})
# fmt: on


@replace_target("*store.trust:build_fact_rule")
def capped_trust(_fact, request, _shown, _replaces):
    """Text of a run has the trust of its request, even if the run has read texts of lower trust."""
    from muniment.store.trust import TrustDecision

    return lambda *_: TrustDecision(request)


@control()
def own_words(off):
    """All text of a run counts as the requester's words."""
    from muniment.content.provenance import Authorship

    off.put("*content.provenance:determine_authorship", lambda *_: Authorship.FACT)
    off.put("*content.provenance:consists_of", lambda *_: True)


@replace_target("*store.trust:build_assessment")
def ledger_trust(*_):
    """An entry has the trust that it claims."""
    from muniment.content.entry import parse
    from muniment.kernel.names import Trust
    from muniment.store.rows import Assessment

    return lambda _rel, _digest, data: Assessment(Trust((parse(data).muniment or {}).get("trust", "owner")))


@replace_target("*store.passages:read_text_trust")
def moved_trust(_state, _root, _rel, _data, scope_trust):
    """Bytes without a commit have the trust of their scope."""
    from muniment.store.passages import TextTrust

    return TextTrust(scope_trust)


@replace_target("store.passages:_TextComparison.compute")
def compared_text(comparison, _text):
    """Only whole files are compared with the ledger."""
    from muniment.store.passages import TextTrust

    return TextTrust(comparison._scope_trust)


@replace_target("*store.trust:build_edit_rule")
def whole_edits(_state, _key, _before, _policy):
    """An edited entry has the trust of the editor."""
    from muniment.kernel.names import Trust
    from muniment.store.trust import build_constant_rule

    return build_constant_rule(Trust.OWNER)


@control()
def pulled_trust(off):
    """Files of other programs have owner trust, also inside a repository."""
    from muniment.kernel.names import Trust

    off.put("kernel.decide:Policy.get_trust", lambda *_: Trust.OWNER)
    off.put("opening:_require_inside", lambda *_: None)


@wrap_target("store.visit:build_entry_row")
def withheld_rows(real, scope, rel, data, digest, assessed, embedder):
    """Withheld entries are shown like others."""
    row, words = real(scope, rel, data, digest, assessed._replace(held=None), embedder)
    return row._replace(held=assessed.held), words


@replace_target("*store.audit:verify")
def chained_records(*_, **__):
    """The chain of audit records is not verified."""
    from muniment.store.audit import Head, VerificationResult

    return VerificationResult(0, (), Head(0, b""))


@replace_target("operations.review:_recover_approval")
def approval_errors(_state, _review, _task, problem):
    """An error of an approval is reported as if nothing was written."""
    raise problem


@wrap_target("kernel.write:_roll_back")
def proven_rollback(real, intent, *args):
    """An intent is closed after any rollback, even after an error or interrupt."""
    from muniment.kernel.refusal import ManagedMemoryUnavailable
    from muniment.kernel.write import Recovery

    try:
        return real(intent, *args)
    except (ManagedMemoryUnavailable, KeyboardInterrupt, MemoryError):
        return Recovery(intent, (), ())
