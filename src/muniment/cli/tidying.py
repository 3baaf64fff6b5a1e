"""Implement `muniment forget` and `dream`; both may use a model, but no worker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, load_settings, open_command_context, open_model_and_drop_key
from muniment.cli.options import MemoryFlags, ModelFlags
from muniment.cli.terminal import cancel_on_interrupt, show_progress
from muniment.content.gates import clean_foreign_line, escape_invisible

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.cancelling import Cancel
    from muniment.operations.job_context import JobContext
    from muniment.types import Counts, DreamResult, ForgetResult, RetainedEntry

MAX_LISTED_GROUPS: Final = 5
"""Maximum number of groups of similar entries in the text output; `--json` lists all groups."""


@command("nothing forgotten")
def forget(
    *,
    words: Annotated[list[str], typer.Argument(help="The path of an entry, or a description of it.")],
    scope: Annotated[str | None, typer.Option(help="Search only this scope.")] = None,
    where: MemoryFlags,
    flags: ModelFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change (default: preview only).")] = False,
) -> Report:
    """Forget an entry, by its path or a description.

    `muniment undo` restores the entry, unless it is erased later.
    """
    from muniment.operations import forget as job
    from muniment.types import ForgetRequest

    request = ForgetRequest(" ".join(words), scope=scope, dry_run=not yes)
    with _open_resources(where, flags, yes=yes) as (context, model, cancel):
        result = job.forget(request, context, model, cancel=cancel)
    return _create_report(result, _format_forget_result(result))


@command("nothing tidied")
def dream(
    *,
    scope: Annotated[str | None, typer.Option(help="Tidy only this scope.")] = None,
    where: MemoryFlags,
    flags: ModelFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change (default: preview only).")] = False,
) -> Report:
    """Tidy the memory: merge duplicates, remove expired entries.

    Other problems, such as broken links, are only counted.
    """
    from muniment.operations import dream as job
    from muniment.types import DreamRequest

    with _open_resources(where, flags, yes=yes) as (context, model, cancel), show_progress("dreaming"):
        result = job.dream(DreamRequest(scope, dry_run=not yes), context, model, cancel=cancel)
    return _create_report(result, _format_dream_result(result))


@contextmanager
def _open_resources(
    memory_flags: MemoryFlags, model_flags: ModelFlags, *, yes: bool
) -> Iterator[tuple[JobContext, Model, Cancel]]:
    """Open the memory and the model, and create a token that Ctrl-C cancels, for the block.

    Raises as `open_context`.

    Args:
        memory_flags: the options that select the memory.
        model_flags: the options that select the model.
        yes: whether the command may write; missing directories are then created.
    """
    settings = load_settings(memory_flags, model_flags)
    with (
        open_command_context(memory_flags, settings=settings, create=yes) as context,
        open_model_and_drop_key(settings) as model,
        cancel_on_interrupt() as cancel,
    ):
        yield context, model, cancel


def _create_report(result: ForgetResult | DreamResult, lines: Iterable[str]) -> Report:
    printed_lines = lines if result.error is None else ()
    return Report(result.as_json, printed_lines, result.notes, error=result.error)


def _format_forget_result(result: ForgetResult) -> Iterator[str]:
    done = "forgotten" if result.status == "completed" else "would be forgotten"
    for each in result.removed_entries:
        yield f"{done}: {clean_foreign_line(each.path)} ({clean_foreign_line(each.summary)})"
        if result.status == "preview" and each.line is not None:
            for number, line in enumerate(re.split("\r\n|\n|\r", each.text or ""), each.line):
                yield f"  {number} | {escape_invisible(line)}"
    yield from _format_unchanged(result.kept)
    if not result.removed_entries:
        yield clean_foreign_line(result.summary)
    yield from _format_decision(result)
    if result.status == "preview" and result.removed_entries:
        yield "  preview only; to remove it, run this again with --yes"


def _format_dream_result(result: DreamResult) -> Iterator[str]:
    would = "" if result.status == "completed" else "would be "
    for path in result.deduped_paths:
        yield f"{would}merged: {clean_foreign_line(path)}"
    for path in result.expired_paths:
        yield f"{would}removed (expired): {clean_foreign_line(path)}"
    for path in result.ended_paths:
        yield f"ended, according to its text: {clean_foreign_line(path)}"
        yield f"  to remove it: muniment forget {clean_foreign_line(path)} --yes"
    yield from _format_unchanged(result.kept)
    for group in result.similar_paths[:MAX_LISTED_GROUPS]:
        yield f"similar: {', '.join(map(clean_foreign_line, group))}"
    if len(result.similar_paths) > MAX_LISTED_GROUPS:
        count = len(result.similar_paths) - MAX_LISTED_GROUPS
        yield f"  and {count} more groups of similar entries; --json lists them"
    yield clean_foreign_line(result.summary)
    yield from _format_counts(result.counts)
    yield from _format_decision(result)
    if result.status == "preview" and (result.deduped_paths or result.expired_paths):
        yield "  preview only; to apply it, run this again with --yes"


def _format_counts(counts: Counts) -> Iterator[str]:
    labels = {
        "cannot be read": counts.unreadable,
        "are similar": counts.near_duplicates,
        "were rewritten": counts.rewritten,
        "groups changed meanwhile": counts.rejected,
        "links are broken": counts.broken_links,
    }
    some = [f"{number} {what}" for what, number in labels.items() if number]
    if some:
        yield f"  {', '.join(some)}"


def _format_unchanged(unchanged: Iterable[RetainedEntry]) -> Iterator[str]:
    """Yield one line for each entry that matched but stays, with the reason."""
    for path, reason in unchanged:
        yield f"not changed: {clean_foreign_line(path)} ({clean_foreign_line(reason)})"


def _format_decision(result: ForgetResult | DreamResult) -> Iterator[str]:
    """Yield a line with the decider and the duration; after a change, also the command that undoes it."""
    yield (
        f"  {clean_foreign_line(result.decided_by)}, {result.turns} turns, {result.seconds:.2f} s, "
        f"policy {clean_foreign_line(result.policy)}"
    )
    if result.status == "completed" and result.touched_scopes:
        yield f"  to undo it: muniment undo {result.task_id}"
