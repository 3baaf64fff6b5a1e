"""`muniment dream`."""

from __future__ import annotations

from typing import Final

from muniment.agent.model import Model
from muniment.cli.inspect import Where
from muniment.cli.model import ModelFlags
from muniment.cli.report import on_one_line, say
from muniment.cli.tidying import carry_out, say_how, say_kept
from muniment.confine.cancel import Cancel
from muniment.jobs.dream import dream
from muniment.jobs.place import Place
from muniment.jobs.request import Counts, DreamRequest, DreamResult

SHOWN_GROUPS: Final = 5
"""Groups of similar entries that are shown to a person; `--json` has all."""


def run(where: Where, flags: ModelFlags, request: DreamRequest) -> int:
    """Tidy the memory, or say what would be done; the exit code."""

    def job(place: Place, model: Model, cancel: Cancel) -> DreamResult:
        return dream(request, place, model, cancel=cancel)

    return carry_out(where, flags, job, _show, "nothing tidied", yes=request.yes)


def _show(result: DreamResult) -> None:
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
