"""`muniment erase`: shows what would go, erases it, or looks for what is left of a text."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from muniment.cli.inspect import Where, with_place
from muniment.cli.interrupt import cancel_on_interrupt
from muniment.cli.named_file import read_named
from muniment.cli.report import EXIT_FAILED, on_one_line, print_document, say, say_notes
from muniment.confine.cancel import Cancel, Patience
from muniment.jobs.place import Place
from muniment.names import MAX_FILE_BYTES
from muniment.store import erase as store
from muniment.store.tasks import RUN_BYTES

WAIT_SECONDS: Final = 60.0
"""Seconds that an erasure waits for the locks of its roots."""


def erase_target(where: Where, unsafe_target: str, *, yes: bool) -> int:
    """Show what would go, or erase it; the exit code."""

    def body(place: Place) -> int:
        with cancel_on_interrupt() as cancel:
            on = _where(place, cancel)
            if not yes:
                plan = store.plan(unsafe_target, on)
                print_document(plan.as_json()) if where.json else _print_plan(plan)
                return 0
            receipt = store.erase(unsafe_target, on)
        print_document(receipt.as_json()) if where.json else _print_receipt(receipt, unsafe_target)
        return 0

    return with_place(where, body, "not erased" if yes else "not shown")


def look_for(where: Where, file: Path) -> int:
    """Look for pieces of a text in the state directory; the exit code is 1 if there are any."""

    def body(place: Place) -> int:
        text = read_named(file, MAX_FILE_BYTES)
        found = store.left_over(text, _where(place, None))
        if where.json:
            print_document({"left": found, "run_bytes": RUN_BYTES, "not_covered": store.NOT_COVERED})
        for name, count in found.items() if not where.json else ():
            print(on_one_line(f"{name} holds {count} pieces of {RUN_BYTES} bytes"), file=sys.stderr)
        if found:
            if not where.json:
                print(
                    f"in {place.state.directory}; erase what wrote it, and delete copies of your own",
                    file=sys.stderr,
                )
            return EXIT_FAILED
        if not where.json:
            say("nothing of it is left there but what entries still say")
            say(f"not covered: {store.NOT_COVERED}")
        return 0

    return with_place(where, body, "not looked for")


def _where(place: Place, cancel: Cancel | None) -> store.EraseGround:
    return store.EraseGround(
        place.state, place.roots, place.policy, Patience(time.monotonic() + WAIT_SECONDS, cancel)
    )


def _print_plan(plan: store.Plan) -> None:
    say(on_one_line(f"would be erased, for good: {plan.target}"))
    for path in plan.files:
        say("  " + on_one_line(f"the file {path}"))
    say(f"  {plan.versions} versions in the history; undo and show will say that they were erased")
    for path in plan.others:
        say("  " + on_one_line(f"among them older versions of {path}, which hold a piece of the text"))
    for review in plan.reviews:
        say(f"  review {review}")
    say(f"  what {plan.records} audit records say, but not that they are there")
    if plan.lane_tasks:
        say(f"  what {plan.lane_tasks} tasks of the daemon were asked and say; those that wait will fail")
    for name in plan.copies:
        say("  " + on_one_line(f"the copy {name}, with which an older Muniment could be gone back to"))
    say(f"not covered: {store.NOT_COVERED}")
    say(on_one_line(f"nothing was erased yet; to do it: muniment erase {plan.target} --yes"))


def _print_receipt(receipt: store.Receipt, target: str) -> None:
    say_notes(receipt.notes)
    say(
        on_one_line(
            f"erased: {target} ({receipt.files} files, {receipt.versions} versions, "
            f"{receipt.reviews} reviews, what {receipt.records} records said)"
        )
    )
    say(f"  as {receipt.task_id}; to check: muniment erase --verify FILE, with the text in the file")
    say(f"not covered: {store.NOT_COVERED}")
