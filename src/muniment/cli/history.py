"""`muniment history`, `why` and `undo`: what became of the memory, and taking it back."""

from __future__ import annotations

from dataclasses import asdict

from muniment.cli.inspect import Where, with_place
from muniment.cli.interrupt import cancel_on_interrupt
from muniment.cli.report import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    on_one_line,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.jobs.place import Place
from muniment.jobs.review import history_of, undo, why_of
from muniment.store.ledger import MAX_STEPS, Step, Why

_WORDS = {"create": "brought back", "modify": "as before", "delete": "gone again"}
_STATES = {
    "committed": "is as this task left it",
    "edited": "was edited by hand since this task",
    "foreign": "was not written by Muniment; it has the trust of its scope",
    "removed": "was removed by this task",
    "missing": "was there after this task, and went by hand since",
}


def show_history(where: Where, unsafe_path: str) -> int:
    """Print what was committed; the exit code."""

    def body(place: Place) -> int:
        steps = history_of(place, unsafe_path or None)
        if where.json:
            print_document({"steps": [asdict(step) for step in steps], "complete": len(steps) < MAX_STEPS})
            return 0
        for step in steps:
            say(_line(step))
        if not steps:
            say("nothing was committed here yet")
        if len(steps) == MAX_STEPS:
            say(f"these are the newest {MAX_STEPS}; name a path to see older ones of it")
        return 0

    return with_place(where, body, "no history")


def show_why(where: Where, unsafe_path: str) -> int:
    """Print where an entry comes from; the exit code."""

    def body(place: Place) -> int:
        found = why_of(place, unsafe_path)
        if where.json:
            print_document(asdict(found))
        else:
            _print_why(found)
        return 0

    return with_place(where, body, "not known")


def undo_task(where: Where, task: str) -> int:
    """Take a task back; the exit code."""

    def body(place: Place) -> int:
        with cancel_on_interrupt() as cancel:
            result = undo(task, place, cancel=cancel)
        if where.json:
            print_document(result.as_json())
        elif result.error is not None:
            print_failure(result.error, as_json=False, what="not undone")
        say_notes(() if where.json else result.notes)
        if result.error is not None:
            return EXIT_CANCELLED if result.status == "cancelled" else EXIT_FAILED
        if not where.json:
            for change in result.changes:
                say(f"undone ({_WORDS[change.kind]}): {on_one_line(change.path)}")
            say(f"  to have it again: muniment undo {result.task_id}")
        return 0

    return with_place(where, body, "not undone")


def _line(step: Step) -> str:
    of = f"{step.asked} of {step.undoes}" if step.undoes else step.asked
    trust = f", trust {step.trust}" if step.trust is not None else ""
    erased = ", erased" if step.is_erased else ""
    return on_one_line(
        f"{step.at} {step.task}: {step.kind} {step.path} "
        f"({of}{trust}, by {step.decided_by}, policy {step.policy}{erased})"
    )


def _print_why(found: Why) -> None:
    trust = f"; trust {found.trust}" if found.trust is not None else ""
    say(on_one_line(f"{found.path} {_STATES[found.state]}{trust}"))
    if found.source is None:
        return
    source = found.source
    say("  " + on_one_line(f"task {source.task} ({found.asked}), {source.at}"))
    say("  " + on_one_line(f"decided by {source.decided_by}, trust {source.trust}, policy {source.policy}"))
    if found.fact is not None:
        say(f"  fact {found.fact} (a keyed digest)")
