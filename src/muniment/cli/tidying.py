"""Implement `muniment forget` and `dream`, which use a model but no worker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, model_of, place_at, settings_of
from muniment.cli.options import MemoryFlags, ModelFlags
from muniment.cli.terminal import cancel_on_interrupt, progress
from muniment.content.gates import on_one_line, visible

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.cancelling import Cancel
    from muniment.operations.place import Place
    from muniment.types import Counts, DreamResult, ForgetResult, KeptEntry

SHOWN_GROUPS: Final = 5
"""Maximum number of groups of similar entries in the text output; `--json` contains all."""


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

    `undo` restores it until it is erased.
    """
    from muniment.operations import forget as job
    from muniment.types import ForgetRequest

    request = ForgetRequest(" ".join(words), scope=scope, dry_run=not yes)
    with _at_work(where, flags, yes=yes) as (place, model, cancel):
        result = job.forget(request, place, model, cancel=cancel)
    return _answer(result, _forgotten(result))


@command("nothing tidied")
def dream(
    *,
    scope: Annotated[str | None, typer.Option(help="Tidy only this scope.")] = None,
    where: MemoryFlags,
    flags: ModelFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change (default: preview only).")] = False,
) -> Report:
    """Tidy the memory: merge duplicates, remove expired entries.

    Other problems are counted.
    """
    from muniment.operations import dream as job
    from muniment.types import DreamRequest

    with _at_work(where, flags, yes=yes) as (place, model, cancel), progress("dreaming"):
        result = job.dream(DreamRequest(scope, dry_run=not yes), place, model, cancel=cancel)
    return _answer(result, _dreamt(result))


@contextmanager
def _at_work(where: MemoryFlags, flags: ModelFlags, *, yes: bool) -> Iterator[tuple[Place, Model, Cancel]]:
    """Open the memory, the model and a token that Ctrl-C cancels; raise as `find_place`.

    Args:
        where: the command line.
        flags: its model options.
        yes: the memory may be written, so create a missing history.
    """
    settings = settings_of(where, flags)
    with (
        place_at(where, settings=settings, create=yes) as place,
        model_of(settings) as model,
        cancel_on_interrupt() as cancel,
    ):
        yield place, model, cancel


def _answer(result: ForgetResult | DreamResult, lines: Iterable[str]) -> Report:
    told = lines if result.error is None else ()
    return Report(result.as_json, told, result.notes, error=result.error)


def _forgotten(result: ForgetResult) -> Iterator[str]:
    done = "forgotten" if result.status == "completed" else "would be forgotten"
    for each in result.removed_entries:
        yield f"{done}: {on_one_line(each.path)} ({on_one_line(each.summary)})"
        if result.status == "preview" and each.line is not None:
            for number, line in enumerate(re.split("\r\n|\n|\r", each.text or ""), each.line):
                yield f"  {number} | {visible(line)}"
    yield from _kept(result.kept)
    if not result.removed_entries:
        yield on_one_line(result.summary)
    yield from _how(result)
    if result.status == "preview" and result.removed_entries:
        yield "  preview only; to remove it, run this again with --yes"


def _dreamt(result: DreamResult) -> Iterator[str]:
    would = "" if result.status == "completed" else "would be "
    for path in result.deduped_paths:
        yield f"{would}merged: {on_one_line(path)}"
    for path in result.expired_paths:
        yield f"{would}removed (expired): {on_one_line(path)}"
    for path in result.ended_paths:
        yield f"ended, according to its text: {on_one_line(path)}"
        yield f"  to remove it: muniment forget {on_one_line(path)} --yes"
    yield from _kept(result.kept)
    for group in result.alike[:SHOWN_GROUPS]:
        yield f"similar: {', '.join(map(on_one_line, group))}"
    if len(result.alike) > SHOWN_GROUPS:
        yield f"  and {len(result.alike) - SHOWN_GROUPS} more groups of similar entries; --json lists them"
    yield on_one_line(result.summary)
    yield from _counted(result.counts)
    yield from _how(result)
    if result.status == "preview" and (result.deduped_paths or result.expired_paths):
        yield "  preview only; to apply it, run this again with --yes"


def _counted(counts: Counts) -> Iterator[str]:
    told = {
        "cannot be read": counts.unreadable,
        "are similar": counts.near_duplicates,
        "were rewritten": counts.rewritten,
        "groups changed during the run": counts.rejected,
        "links are broken": counts.broken_links,
    }
    some = [f"{number} {what}" for what, number in told.items() if number]
    if some:
        yield f"  {', '.join(some)}"


def _kept(kept: Iterable[KeptEntry]) -> Iterator[str]:
    """Format the entries that matched but stay, one line each."""
    for path, reason in kept:
        yield f"not changed: {on_one_line(path)} ({on_one_line(reason)})"


def _how(result: ForgetResult | DreamResult) -> Iterator[str]:
    """Format who decided, the duration, and how to undo."""
    yield (
        f"  {on_one_line(result.decided_by)}, {result.turns} turns, {result.seconds:.2f} s, "
        f"policy {on_one_line(result.policy)}"
    )
    if result.status == "completed" and result.touched_scopes:
        yield f"  to undo it: muniment undo {result.task_id}"
