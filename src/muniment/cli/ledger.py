"""Implement `muniment history`, `why`, `undo`, `review`, `erase` and `audit`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muniment.cli.command import ENTRY_HELP, Report, command, load_settings, open_command_context
from muniment.cli.options import MemoryFlags
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    cancel_on_interrupt,
    confirm,
    is_interactive,
    print_line,
    read_input_file,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid, Erased, NotFound, ToolError
from muniment.kernel.names import MAX_FILE_BYTES
from muniment.kernel.path import FILE_SUFFIX

if TYPE_CHECKING:
    from muniment.operations.job_context import JobContext
    from muniment.store.audit import Head
    from muniment.store.review import PendingChange
    from muniment.store.state import State
    from muniment.types import CommittedStep, ErasePlan, EraseResult, Origin, ReviewDecision

# -- history -----------------------------------------------------------------------------------------
#
# `muniment history`, `why` and `undo`: list, explain and undo committed changes.

_UNDO_LABELS: Final = {"create": "restored", "modify": "reverted", "delete": "removed"}


@command("no history")
def history(
    *,
    path: Annotated[str, typer.Argument(help="An entry, folder or scope; everything if empty.")] = "",
    where: MemoryFlags,
) -> Report:
    """List the committed changes, newest first."""
    from muniment.operations.review import STATE_TEXTS, load_history
    from muniment.store.ledger import MAX_STEPS

    with open_command_context(where) as context:
        steps = load_history(context, path or None, MAX_STEPS)
        is_edited = path.endswith(FILE_SUFFIX) and _is_edited_by_hand(context, path)
    lines = [clean_foreign_line(f"{path} {STATE_TEXTS['edited']}")] if is_edited else []
    lines += [_format_step(step) for step in steps] or ["no changes were committed yet"]
    if len(steps) == MAX_STEPS:
        lines.append(f"only the newest {MAX_STEPS} are listed; give a path to list its older changes")
    document = {"steps": [asdict(step) for step in steps], "complete": len(steps) < MAX_STEPS}
    return Report(document | ({"edited_by_hand": True} if is_edited else {}), lines)


def _is_edited_by_hand(context: JobContext, unsafe_path: str) -> bool:
    """Return whether an entry was edited by hand after its last task; False if it is deleted or erased."""
    from muniment.operations.review import load_origin

    try:
        return load_origin(context, unsafe_path).state == "edited"
    except (NotFound, Erased, ToolError):
        return False


def _format_step(step: CommittedStep) -> str:
    origin = f"{step.asked} of {step.undoes}" if step.undoes else step.asked
    trust = f", trust {step.trust}" if step.trust is not None else ""
    erased = ", erased" if step.is_erased else ""
    return clean_foreign_line(
        f"{step.at} {step.task}: {step.kind} {step.path} "
        f"({origin}{trust}, by {step.decided_by}, policy {step.policy}{erased})"
    )


@command("not explained")
def why(
    *,
    path: Annotated[str, typer.Argument(help=ENTRY_HELP)],
    where: MemoryFlags,
) -> Report:
    """Show the origin of an entry.

    Also show whether the entry was edited by hand after its last task.
    """
    from muniment.operations.review import load_origin

    with open_command_context(where) as context:
        found = load_origin(context, path)
    return Report(found.as_json, _format_origin(found))


def _format_origin(found: Origin) -> Iterator[str]:
    from muniment.operations.review import STATE_TEXTS

    trust = f"; trust {found.trust}" if found.trust is not None else ""
    yield clean_foreign_line(f"{found.path} {STATE_TEXTS[found.state]}{trust}")
    yield from (f"  {each.trust}: {clean_foreign_line(each.text)}" for each in found.sentences)
    if found.task is None:
        return
    yield "  " + clean_foreign_line(f"task {found.task} ({found.asked}), {found.at}")
    decided = f"decided by {found.decided_by}, trust {found.request_trust}, policy {found.policy}"
    yield "  " + clean_foreign_line(decided)
    if found.fact is not None:
        yield f"  fact {found.fact} (a keyed digest)"


@command("not undone")
def undo(
    *,
    task: Annotated[str, typer.Argument(help="The id of a task, as printed by `history`.")],
    where: MemoryFlags,
) -> Report:
    """Undo a task.

    If its files were changed after the task, nothing is undone.
    """
    from muniment.operations import review

    with open_command_context(where) as context, cancel_on_interrupt() as cancel:
        result = review.undo_task(task, context, cancel=cancel)
    lines = [
        f"undone ({_UNDO_LABELS[change.kind]}): {clean_foreign_line(change.path)}"
        for change in result.changes
    ]
    lines += [f"  to redo it: muniment undo {result.task_id}"] if result.error is None else []
    return Report(result.as_json, lines, result.notes, error=result.error)


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
    return Report(
        {"reviews": [_summarize_review(each) for each in reviews], "elsewhere": other_count},
        _format_reviews(reviews, other_count),
    )


def _format_reviews(reviews: Sequence[PendingChange], other_count: int) -> Iterator[str]:
    for each in reviews:
        paths = ", ".join(path.text for path in each.change_set.paths)
        yield clean_foreign_line(f"{each.id}: {each.run.kind} of {paths}, {each.run.at}")
        yield f"  reason: {clean_foreign_line('; '.join(each.reasons))}"
    if not reviews:
        yield "no pending reviews"
    if other_count:
        yield f"{other_count} more pending reviews in other workspaces"


@command("not shown")
def review_show(*, review_id: ReviewId, where: MemoryFlags) -> Report:
    """Show a pending review and its digest.

    Invisible characters of the text are printed as visible escapes.
    """
    from muniment.operations import review

    with open_command_context(where) as context:
        preview = review.show_review(review_id, context)
    document = {"review_id": preview.review_id, "text": preview.text, "digest": preview.digest}
    return Report(document, [preview.text.removesuffix("\n")])


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
            if not yes:
                print_line(preview.text.removesuffix("\n"))
                if not confirm("approve this? [y/N] "):
                    print("not approved; the review is still pending", file=sys.stderr)
                    return EXIT_CANCELLED
        with cancel_on_interrupt() as cancel:
            done = review.approve_review(review_id, approved_digest, context, cancel=cancel)
    return _report_decision(done)


@command("not rejected")
def review_reject(*, review_id: ReviewId, where: MemoryFlags) -> Report:
    """Reject a pending review.

    Its changes are never committed.
    """
    from muniment.operations import review

    with open_command_context(where) as context, cancel_on_interrupt() as cancel:
        return _report_decision(review.reject_review(review_id, context, cancel=cancel))


def _report_decision(done: ReviewDecision) -> Report:
    from muniment.operations.review import CHANGE_TEXTS

    if done.task_id is None:
        lines = [f"rejected: {done.review_id}; nothing was written"]
    else:
        lines = [
            f"approved ({CHANGE_TEXTS[change.kind]}): {clean_foreign_line(change.path)}"
            for change in done.changes
        ]
        lines.append(f"  to undo it: muniment undo {done.task_id}")
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
        str, typer.Argument(help="An entry; or the id of a task, to erase all files that it wrote.")
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
        with cancel_on_interrupt() as cancel:
            done = erase(context, target, dry_run=not yes, cancel=cancel)
    if isinstance(done, ErasePlan):
        return Report(done.as_json, _format_plan(done))
    return Report(done.as_json, _format_receipt(done, target), done.notes)


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
    *, task: Annotated[str | None, typer.Option(help="Only the records of this task.")] = None
) -> Report:
    """Print the audit records."""
    from muniment.store.audit import read_records

    with _open_state() as state:
        found = list(read_records(state, task=task))
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
