"""Implement `muniment review`, `erase` and `audit`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muniment.cli.command import Report, command, load_settings, open_command_context
from muniment.cli.display import FactLine, describe_fact, format_facts, format_place
from muniment.cli.options import MemoryFlags
from muniment.cli.suggestions import suggest_entries
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    can_ask,
    cancel_on_interrupt,
    confirm_preview,
    is_interactive,
    read_input_file,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid
from muniment.kernel.names import MAX_FILE_BYTES

if TYPE_CHECKING:
    from muniment.operations.job_context import JobContext
    from muniment.store.audit import Head
    from muniment.store.review import PendingChange
    from muniment.store.state import State
    from muniment.types import ErasePlan, EraseResult, ReviewDecision, ReviewShown

# -- review ------------------------------------------------------------------------------------------
#
# `muniment review`: the owner decides about pending reviews.

ReviewId = Annotated[
    str, typer.Argument(metavar="ID", help="The id printed by `review list`, such as r3k9x2m.")
]


@command("not listed")
def review_list(*, where: MemoryFlags) -> Report:
    """List the pending reviews."""
    from muniment.operations.review import list_pending
    from muniment.store.review import read_pending

    with open_command_context(where) as context:
        reviews = list_pending(context)
        other_count = len(read_pending(context.state)) - len(reviews)
    remarks = [] if reviews else ["nothing waits for you"]
    if other_count:
        remarks.append(f"{other_count} more pending reviews in other workspaces")
    return Report(
        {"reviews": [_summarize_review(each) for each in reviews], "elsewhere": other_count},
        format_facts(map(_create_review_line, reviews)),
        remarks=remarks,
    )


def _create_review_line(review: PendingChange) -> FactLine:
    from muniment.store.ledger import build_changes

    changes = [each for each in build_changes(review.change_set.changes) if each.renamed_from is None]
    first, others = changes[0], len(changes) - 1
    return FactLine(
        f"{first.title or first.path}, and {others} more" if others else first.title or first.path,
        review.run.at,
        format_place(first.path),
        str(review.run.trust),
        review.id,
        "; ".join(review.reasons),
        {"create": "+", "modify": "~", "delete": "-"}[first.kind],
    )


@command("not shown")
def review_show(*, review_id: ReviewId, where: MemoryFlags) -> Report:
    """Show a pending review and its digest.

    Invisible characters of the text are printed as visible escapes.
    """
    from muniment.operations import review

    with open_command_context(where) as context:
        preview = review.show_review(review_id, context)
        lines = _list_preview_lines(preview, context)
    document = {"review_id": preview.review_id, "text": preview.text, "digest": preview.digest}
    commands = f"muniment review approve {preview.review_id}, or muniment review reject {preview.review_id}"
    return Report(document, lines, remarks=[f"to decide: {commands}"] if sys.stdout.isatty() else [])


def _list_preview_lines(preview: ReviewShown, context: JobContext) -> list[str]:
    """Return the lines of a review: on a terminal the fact first, then everywhere the complete text."""
    from muniment.store.review import load_pending

    lines = preview.text.removesuffix("\n").split("\n")
    if not sys.stdout.isatty():
        return lines
    review = load_pending(context.state, preview.review_id)
    return [*format_facts([_create_review_line(review)]), "", *lines]


@command("not approved")
def review_approve(
    *,
    review_id: ReviewId,
    where: MemoryFlags,
    digest: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="Approve only the content with this digest of `review show`."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve the current content without showing it.")
    ] = False,
) -> Report | int:
    """Commit a pending review.

    On a terminal, the command shows the review first, and asks for confirmation.
    """
    from muniment.operations import review

    if not (digest or yes or is_interactive()):
        raise typer.BadParameter("without a terminal, give --digest (printed by `review show`) or --yes")
    with open_command_context(where) as context:
        approved_digest = digest
        if approved_digest is None:
            preview = review.show_review(review_id, context)
            approved_digest = preview.digest
            if not yes and not _confirm_decision("approve", preview, context):
                return EXIT_CANCELLED
        with cancel_on_interrupt() as cancel:
            done = review.approve_review(review_id, approved_digest, context, cancel=cancel)
    return _report_decision(done)


def _confirm_decision(verb: str, preview: ReviewShown, context: JobContext) -> bool:
    """Show a review, ask whether to approve or reject it, and return the answer."""
    lines = _list_preview_lines(preview, context)
    return confirm_preview(lines, f"{verb} this?", "nothing was decided; the review is still pending")


@command("not rejected")
def review_reject(
    *,
    review_id: ReviewId,
    where: MemoryFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Reject without showing the review.")] = False,
) -> Report | int:
    """Reject a pending review.

    Its changes are never committed. On a terminal, the command shows the review first, and asks for
    confirmation.
    """
    from muniment.operations import review

    with open_command_context(where) as context:
        if can_ask(where, yes=yes):
            preview = review.show_review(review_id, context)
            if not _confirm_decision("reject", preview, context):
                return EXIT_CANCELLED
            review_id = preview.review_id  # The beginning of an id can name another review by now.
        with cancel_on_interrupt() as cancel:
            return _report_decision(review.reject_review(review_id, context, cancel=cancel))


def _report_decision(done: ReviewDecision) -> Report:
    from muniment.operations.review import CHANGE_TEXTS

    if done.task_id is None:
        lines = [f"rejected: {done.review_id}; nothing was written"]
    else:
        lines = [
            f"approved ({CHANGE_TEXTS[each.kind]}): {describe_fact(each.title, each.path, each.handle)}"
            for each in done.changes
        ]
    return Report(done.as_json, lines, done.notes)


def _summarize_review(review: PendingChange) -> dict[str, object]:
    return {
        "review_id": review.id,
        "at": review.run.at,
        "kind": review.run.kind,
        "task_id": review.run.task,
        "paths": [path.text for path in review.change_set.paths],
        "reasons": list(review.reasons),
    }


# -- erase -------------------------------------------------------------------------------------------
#
# `muniment erase`: preview, erase, or search for the remains of a text.


def _describe_erase_failure(options: Mapping[str, Any]) -> str:
    if options["verify"] is not None:
        return "not searched"
    return "not erased" if options["yes"] else "not shown"


@command(_describe_erase_failure)
def erase(
    *,
    target: Annotated[
        str,
        typer.Argument(
            help="An entry by its handle or path; or a task by its handle or id, to erase all its files.",
            autocompletion=suggest_entries,
        ),
    ] = "",
    where: MemoryFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Erase (default: preview only).")] = False,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Search for remains of the text in this file (- for standard input)."
        ),
    ] = None,
) -> Report:
    """Erase an entry and its history permanently.

    With --verify, search for remains of a text instead.
    """
    from muniment.operations.owner import erase
    from muniment.operations.undoable import resolve_target
    from muniment.store.erase import EraseContext, find_remains
    from muniment.types import ErasePlan

    if bool(target) == (verify is not None) or (verify is not None and yes):
        raise typer.BadParameter(
            "give either an entry or a task to erase, or --verify FILE to search for a text"
        )
    with open_command_context(where) as context:
        if verify is not None:
            ground = EraseContext(context.state, context.roots, context.policy, context.start_deadline())
            return _report_remains(find_remains(read_input_file(verify, MAX_FILE_BYTES), ground), context)
        found = target if "/" in target else resolve_target(context, target)
        name = target if isinstance(found, str) else found.text
        with cancel_on_interrupt() as cancel:
            done = erase(context, name, dry_run=not yes, cancel=cancel)
    if isinstance(done, ErasePlan):
        return Report(done.as_json, _format_plan(done))
    return Report(done.as_json, _format_receipt(done, name), done.notes)


def _report_remains(found: Mapping[str, int], context: JobContext) -> Report:
    """Report how many parts of a text were found in each file of the state directory.

    Args:
        found: the number of parts for each file name; empty: nothing was found. Otherwise the exit code is 1.
        context: the opened memory.
    """
    from muniment.store.erase import NOT_COVERED
    from muniment.store.tasks import RUN_BYTES

    problems = [
        f"{name} contains {count} parts of the text, each of {RUN_BYTES} bytes"
        for name, count in found.items()
    ]
    lines = ["no remains found, except in existing entries", f"not covered: {NOT_COVERED}"]
    if found:
        where = (
            f"the files are in {context.state.directory}; erase the entry or task that wrote the text, "
            "and delete your copies"
        )
        problems, lines = [*problems, where], []
    document = {"left": found, "run_bytes": RUN_BYTES, "not_covered": NOT_COVERED}
    return Report(document, lines, problems=problems, code=EXIT_FAILED if found else 0)


def _format_plan(plan: ErasePlan) -> Iterator[str]:
    from muniment.store.erase import NOT_COVERED

    yield clean_foreign_line(f"would be erased permanently: {plan.target}")
    for path in plan.files:
        yield "  " + clean_foreign_line(f"the file {path}")
    yield f"  {plan.versions} versions in the history; undo and show will report them as erased"
    for path in plan.others:
        yield "  " + clean_foreign_line(f"including older versions of {path} that contain part of the text")
    for review in plan.reviews:
        yield f"  review {review}"
    yield f"  the content of {plan.records} audit records; the records themselves remain"
    if plan.lane_tasks:
        yield f"  requests and results of {plan.lane_tasks} daemon tasks; waiting tasks will fail"
    for name in plan.copies:
        yield "  " + clean_foreign_line(f"the copy {name}, made before an upgrade of the ledger")
    yield f"not covered: {NOT_COVERED}"
    yield clean_foreign_line(f"nothing was erased; to erase it: muniment erase {plan.target} --yes")


def _format_receipt(receipt: EraseResult, target: str) -> Iterator[str]:
    from muniment.store.erase import NOT_COVERED

    yield clean_foreign_line(
        f"erased: {target} ({receipt.files} files, {receipt.versions} versions, "
        f"{receipt.reviews} reviews, the content of {receipt.records} audit records)"
    )
    yield f"  task {receipt.task_id}; to check: muniment erase --verify FILE, with the text in the file"
    yield f"not covered: {NOT_COVERED}"


# -- audit -------------------------------------------------------------------------------------------
#
# `muniment audit`: check and show the chain of audit records.

MAX_HEAD_BYTES: Final = 1_024
"""Maximum bytes of a file that contains the head of the chain of audit records."""


@command("not verified")
def audit_verify(
    *,
    head_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with an earlier output of `audit head`, to compare."),
    ] = None,
) -> Report:
    """Check the complete chain of audit records.

    Exit 1 if a record was edited or removed, or if the end of the chain is missing.
    """
    from muniment.store.audit import verify

    with _open_state() as state:
        expected_head = None if head_file is None else _read_head(head_file)
        found = verify(state, expected_head=expected_head)
    document = {
        "whole": not found.problems,
        "records": found.records,
        "problems": list(found.problems),
        "head": str(found.head),
    }
    if found.problems:
        return Report(document, problems=found.problems, code=EXIT_FAILED)
    lines = [f"{found.records} records; none was edited, removed or added without the key"]
    if expected_head is None:
        lines.append("to also detect that the ledger was replaced by an earlier copy, use --head-file")
    return Report(document, lines)


@command("no head")
def audit_head() -> Report:
    """Print the head of the chain of audit records.

    Store the printed line in another place than the ledger: `audit verify --head-file` compares it later.
    """
    from muniment.store.audit import read_head

    with _open_state() as state:
        found = read_head(state)
    return Report({"head": str(found), "records": found.seq}, [str(found)])


@command("not shown")
def audit_show(
    *,
    task: Annotated[
        str | None, typer.Option(help="Only the records of this task, by its handle or id.")
    ] = None,
) -> Report:
    """Print the audit records."""
    from muniment.operations.undoable import resolve_task
    from muniment.store.audit import read_records

    with _open_state() as state:
        found = list(read_records(state, task=task and resolve_task(state, task)))
    lines = []
    for record in found:
        about = "(erased)" if record.body is None else json.dumps(record.body, ensure_ascii=False)
        lines.append(
            clean_foreign_line(f"{record.seq} {record.at} {record.kind} {record.task or '-'} {about}")
        )
    if not found:
        lines = ["no records" if task is None else "no records of this task; see: muniment history"]
    return Report({"records": [asdict(record) for record in found]}, lines)


@contextmanager
def _open_state() -> Iterator[State]:
    """Open the state directory of the home, for the block. A missing directory is not created."""
    from muniment.store.state import State, is_writable

    directory = load_settings().state
    exists = directory.is_dir()
    is_read_only = exists and not is_writable(directory)
    with State(directory if exists else None, is_read_only=is_read_only) as state:
        yield state


def _read_head(path: Path) -> Head:
    from muniment.store.audit import Head

    try:
        text = read_input_file(path, MAX_HEAD_BYTES).decode("ascii")
    except UnicodeDecodeError:
        raise ConfigInvalid(
            f"{path} does not contain the head of an audit chain; use the output of `audit head`"
        ) from None
    return Head.parse(text)
