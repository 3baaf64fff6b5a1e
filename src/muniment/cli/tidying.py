"""`muniment forget` and `muniment dream`: a memory with a model, and no worker."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final, TypeVar

from muniment.agent.model import Model
from muniment.cancelling import Cancel
from muniment.cli.inspect import MemoryArguments
from muniment.cli.progress import progress
from muniment.cli.projects import ask_which_memory
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    ModelFlags,
    cancel_on_interrupt,
    configure_logging,
    forget_key,
    on_one_line,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.content.gates import visible
from muniment.contract import KeptEntry
from muniment.errors import Cancelled, MunimentError
from muniment.jobs.dream import dream
from muniment.jobs.forget import forget
from muniment.jobs.place import Place
from muniment.jobs.request import Counts, DreamReport, DreamRequest, ForgetReport, ForgetRequest
from muniment.opening import find_place, open_model
from muniment.settings import parse_roots, read_settings

# -- tidying -----------------------------------------------------------------------------------------
#
# What `muniment forget` and `muniment dream` share: a memory with a model, and no worker.

R = TypeVar("R", ForgetReport, DreamReport)


def carry_out(
    where: MemoryArguments,
    flags: ModelFlags,
    job: Callable[[Place, Model, Cancel], R],
    show: Callable[[R], None],
    what: str,
    *,
    yes: bool,
) -> int:
    """Do a job and say what came of it; the exit code.

    Args:
        where: the command line.
        flags: which model it names.
        job: what to do.
        show: says what came of it, to a person, unless it failed.
        what: what did not happen, if it did.
        yes: whether it may write, and so keep a history where there was none.
    """
    configure_logging()
    try:
        settings = read_settings(os.environ, policy=where.policy, roots=parse_roots(where.roots), **flags)
        ask_which_memory(where.workspace, where.roots, as_json=where.json)
        with (
            closing(find_place(settings, where.workspace, create=yes)) as place,
            open_model(settings, os.environ) as model,
        ):
            forget_key()
            say_notes(place.notes)
            with cancel_on_interrupt() as cancel:
                result = job(place, model, cancel)
    except MunimentError as error:
        return print_failure(error, as_json=where.json, what=what)
    if where.json:
        print_document(result.as_json())
    else:
        say_notes(result.notes)
        if result.error is not None:
            print_failure(result.error, as_json=False, what=what)
        else:
            show(result)
    if result.error is None:
        return 0
    return EXIT_CANCELLED if isinstance(result.error, Cancelled) else EXIT_FAILED


def say_kept(kept: Iterable[KeptEntry]) -> None:
    """What was meant and stays, a line each."""
    for path, reason in kept:
        say(f"kept: {on_one_line(path)} ({on_one_line(reason)})")


def say_how(result: ForgetReport | DreamReport) -> None:
    """Who decided, how long it took, and how to go on."""
    say(
        f"  {on_one_line(result.decided_by)}, {result.turns} turns, {result.seconds:.2f} s, "
        f"policy {on_one_line(result.policy)}"
    )
    if result.status == "completed" and result.touched_scopes:
        say(f"  to take it back: muniment undo {result.task_id}")


# -- forget ------------------------------------------------------------------------------------------
#
# `muniment forget`.


def run_forget(where: MemoryArguments, flags: ModelFlags, request: ForgetRequest) -> int:
    """Forget what was asked, or say what would be; the exit code."""

    def job(place: Place, model: Model, cancel: Cancel) -> ForgetReport:
        return forget(request, place, model, cancel=cancel)

    return carry_out(where, flags, job, _show_forgotten, "nothing forgotten", yes=request.yes)


def _show_forgotten(result: ForgetReport) -> None:
    done = "forgotten" if result.status == "completed" else "would be forgotten"
    for each in result.removed_entries:
        say(f"{done}: {on_one_line(each.path)} ({on_one_line(each.summary)})")
        if result.status == "preview" and each.line is not None:
            for number, line in enumerate(re.split("\r\n|\n|\r", each.text or ""), each.line):
                say(f"  {number} | {visible(line)}")
    say_kept(result.kept)
    if not result.removed_entries:
        say(on_one_line(result.summary))
    say_how(result)
    if result.status == "preview" and result.removed_entries:
        say("  nothing was removed; to do it, run this again with --yes")


# -- dream -------------------------------------------------------------------------------------------
#
# `muniment dream`.

SHOWN_GROUPS: Final = 5
"""Groups of similar entries that are shown to a person; `--json` has all."""


def run_dream(where: MemoryArguments, flags: ModelFlags, request: DreamRequest) -> int:
    """Tidy the memory, or say what would be done; the exit code."""

    def job(place: Place, model: Model, cancel: Cancel) -> DreamReport:
        with progress("dreaming"):
            return dream(request, place, model, cancel=cancel)

    return carry_out(where, flags, job, _show_dreamt, "nothing tidied", yes=request.yes)


def _show_dreamt(result: DreamReport) -> None:
    would = "" if result.status == "completed" else "would be "
    for path in result.deduped_entries:
        say(f"{would}merged: {on_one_line(path)}")
    for path in result.expired_entries:
        say(f"{would}removed, its time is over: {on_one_line(path)}")
    say_kept(result.kept)
    for group in result.alike[:SHOWN_GROUPS]:
        say(f"alike: {', '.join(map(on_one_line, group))}")
    if len(result.alike) > SHOWN_GROUPS:
        say(f"  and {len(result.alike) - SHOWN_GROUPS} more groups that are alike; --json names them")
    say(on_one_line(result.summary))
    _say_counts(result.counts)
    say_how(result)
    if result.status == "preview" and (result.deduped_entries or result.expired_entries):
        say("  nothing was changed; to do it, run this again with --yes")


def _say_counts(counts: Counts) -> None:
    told = {
        "cannot be read": counts.unreadable,
        "are alike": counts.near_duplicates,
        "were given a new text": counts.rewritten,
        "groups changed meanwhile": counts.rejected,
        "links lead to nothing": counts.broken_links,
    }
    some = [f"{number} {what}" for what, number in told.items() if number]
    if some:
        say(f"  {', '.join(some)}")
