"""`muniment forget`."""

from __future__ import annotations

from muniment.agent.model import Model
from muniment.cli.inspect import Where
from muniment.cli.model import ModelFlags
from muniment.cli.report import on_one_line, say
from muniment.cli.tidying import carry_out, say_how, say_kept
from muniment.confine.cancel import Cancel
from muniment.jobs.forget import forget
from muniment.jobs.place import Place
from muniment.jobs.request import ForgetRequest, ForgetResult


def run(where: Where, flags: ModelFlags, request: ForgetRequest) -> int:
    """Forget what was asked, or say what would be; the exit code."""

    def job(place: Place, model: Model, cancel: Cancel) -> ForgetResult:
        return forget(request, place, model, cancel=cancel)

    return carry_out(where, flags, job, _show, "nothing forgotten", yes=request.yes)


def _show(result: ForgetResult) -> None:
    done = "forgotten" if result.status == "completed" else "would be forgotten"
    for _, summary, path in result.removed_entries:
        say(f"{done}: {on_one_line(path)} ({on_one_line(summary)})")
    say_kept(result.kept)
    if not result.removed_entries:
        say(on_one_line(result.summary))
    say_how(result)
    if result.status == "preview" and result.removed_entries:
        say("  nothing was removed; to do it, run this again with --yes")
