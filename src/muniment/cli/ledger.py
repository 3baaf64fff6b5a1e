"""`muniment history`, `why`, `undo`, `review`, `erase` and `audit`: what became of the memory."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from muniment.cancelling import Cancel
from muniment.cli.inspect import MemoryArguments, with_place
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    cancel_on_interrupt,
    configure_logging,
    on_one_line,
    print_document,
    print_failure,
    read_named,
    say,
    say_notes,
    says_yes,
)
from muniment.errors import ConfigInvalid, Erased, MunimentError, NotFound, ToolError
from muniment.jobs.place import Place
from muniment.jobs.review import (
    BECAME,
    STATES,
    ReviewDecision,
    approve,
    history_of,
    reject,
    show,
    undo,
    waiting,
    why_of,
)
from muniment.kernel.cancel import Patience
from muniment.kernel.names import MAX_FILE_BYTES
from muniment.kernel.path import FILE_SUFFIX
from muniment.settings import read_settings
from muniment.store import erase as erasing
from muniment.store.audit import Head, head, records, verify
from muniment.store.ledger import MAX_STEPS, Step, Why
from muniment.store.review import Pending, pending
from muniment.store.state import State
from muniment.store.tasks import RUN_BYTES

# -- history -----------------------------------------------------------------------------------------
#
# `muniment history`, `why` and `undo`: what became of the memory, and taking it back.

_WORDS = {"create": "brought back", "modify": "as before", "delete": "gone again"}


def show_history(where: MemoryArguments, unsafe_path: str) -> int:
    """Print what was committed; the exit code."""

    def body(place: Place) -> int:
        steps = history_of(place, unsafe_path or None, MAX_STEPS)
        is_edited = unsafe_path.endswith(FILE_SUFFIX) and _is_edited(place, unsafe_path)
        if where.json:
            told = {"steps": [asdict(step) for step in steps], "complete": len(steps) < MAX_STEPS}
            print_document(told | ({"edited_by_hand": True} if is_edited else {}))
            return 0
        if is_edited:
            say(on_one_line(f"{unsafe_path} {STATES['edited']}"))
        for step in steps:
            say(_line(step))
        if not steps:
            say("nothing was committed here yet")
        if len(steps) == MAX_STEPS:
            say(f"these are the newest {MAX_STEPS}; name a path to see older ones of it")
        return 0

    return with_place(where, body, "no history")


def _is_edited(place: Place, unsafe_path: str) -> bool:
    """Whether an entry was edited by hand since its last task; not of one that is gone or erased."""
    try:
        return why_of(place, unsafe_path).state == "edited"
    except (NotFound, Erased, ToolError):
        return False


def show_why(where: MemoryArguments, unsafe_path: str) -> int:
    """Print where an entry comes from; the exit code."""

    def body(place: Place) -> int:
        found = why_of(place, unsafe_path)
        if where.json:
            print_document(found.as_json())
        else:
            _print_why(found)
        return 0

    return with_place(where, body, "not known")


def undo_task(where: MemoryArguments, task: str) -> int:
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
    say(on_one_line(f"{found.path} {STATES[found.state]}{trust}"))
    if found.source is None:
        return
    source = found.source
    say("  " + on_one_line(f"task {source.task} ({source.kind}), {source.at}"))
    say("  " + on_one_line(f"decided by {source.decided_by}, trust {source.trust}, policy {source.policy}"))
    if source.fact is not None:
        say(f"  fact {source.fact} (a keyed digest)")


# -- review ------------------------------------------------------------------------------------------
#
# `muniment review`: the owner decides about changes that wait.


def list_reviews(where: MemoryArguments) -> int:
    """Print what waits; the exit code."""

    def body(place: Place) -> int:
        here = waiting(place)
        elsewhere = len(pending(place.state)) - len(here)
        if where.json:
            print_document({"reviews": [_summary(each) for each in here], "elsewhere": elsewhere})
            return 0
        for each in here:
            paths = ", ".join(path.text for path in each.change_set.paths)
            say(on_one_line(f"{each.id}: {each.run.kind} of {paths}, {each.run.at}"))
            say(f"  because {on_one_line('; '.join(each.reasons))}")
        if not here:
            say("nothing waits")
        if elsewhere:
            say(f"{elsewhere} more wait in other workspaces")
        return 0

    return with_place(where, body, "not listed")


def show_review(where: MemoryArguments, review_id: str) -> int:
    """Print one that waits; the exit code."""

    def body(place: Place) -> int:
        shown = show(review_id, place)
        if where.json:
            print_document({"review_id": shown.review_id, "text": shown.text, "digest": shown.digest})
        else:
            say(shown.text.removesuffix("\n"))
        return 0

    return with_place(where, body, "not shown")


def approve_review(where: MemoryArguments, review_id: str, digest: str | None, *, yes: bool) -> int:
    """Commit what waits, after a look at it where neither a digest nor `yes` is given; the exit code."""

    def body(place: Place) -> int:
        bound_to = digest
        if bound_to is None:
            shown = show(review_id, place)
            bound_to = shown.digest
            if not yes:
                say(shown.text.removesuffix("\n"))
                if not says_yes("approve this? [y/N] "):
                    print("not approved; it still waits", file=sys.stderr)
                    return EXIT_CANCELLED
        return _decide(where, lambda cancel: approve(review_id, bound_to, place, cancel=cancel))

    return with_place(where, body, "not approved")


def reject_review(where: MemoryArguments, review_id: str) -> int:
    """Decide that what waits is never committed; the exit code."""

    def body(place: Place) -> int:
        return _decide(where, lambda cancel: reject(review_id, place, cancel=cancel))

    return with_place(where, body, "not rejected")


def _decide(where: MemoryArguments, decision: Callable[[Cancel], ReviewDecision]) -> int:
    with cancel_on_interrupt() as cancel:
        done = decision(cancel)
    say_notes(() if where.json else done.notes)
    if where.json:
        print_document(done.as_json())
    elif done.task_id is None:
        say(f"rejected: {done.review_id}; nothing was written")
    else:
        for change in done.changes:
            say(f"approved ({BECAME[change.kind]}): {on_one_line(change.path)}")
        say(f"  to take it back: muniment undo {done.task_id}")
    return 0


def _summary(waiting: Pending) -> dict[str, object]:
    return {
        "review_id": waiting.id,
        "at": waiting.run.at,
        "kind": waiting.run.kind,
        "task_id": waiting.run.task,
        "paths": [path.text for path in waiting.change_set.paths],
        "reasons": list(waiting.reasons),
    }


# -- erase -------------------------------------------------------------------------------------------
#
# `muniment erase`: shows what would go, erases it, or looks for what is left of a text.

WAIT_SECONDS: Final = 60.0
"""Seconds that an erasure waits for the locks of its roots."""


def erase_target(where: MemoryArguments, unsafe_target: str, *, yes: bool) -> int:
    """Show what would go, or erase it; the exit code."""

    def body(place: Place) -> int:
        with cancel_on_interrupt() as cancel:
            on = _where(place, cancel)
            if not yes:
                plan = erasing.plan(unsafe_target, on)
                print_document(plan.as_json()) if where.json else _print_plan(plan)
                return 0
            receipt = erasing.erase(unsafe_target, on)
        print_document(receipt.as_json()) if where.json else _print_receipt(receipt, unsafe_target)
        return 0

    return with_place(where, body, "not erased" if yes else "not shown")


def look_for(where: MemoryArguments, file: Path) -> int:
    """Look for pieces of a text in the state directory; the exit code is 1 if there are any."""

    def body(place: Place) -> int:
        text = read_named(file, MAX_FILE_BYTES)
        found = erasing.left_over(text, _where(place, None))
        if where.json:
            print_document({"left": found, "run_bytes": RUN_BYTES, "not_covered": erasing.NOT_COVERED})
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
            say(f"not covered: {erasing.NOT_COVERED}")
        return 0

    return with_place(where, body, "not looked for")


def _where(place: Place, cancel: Cancel | None) -> erasing.EraseGround:
    return erasing.EraseGround(
        place.state, place.roots, place.policy, Patience(time.monotonic() + WAIT_SECONDS, cancel)
    )


def _print_plan(plan: erasing.Plan) -> None:
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
    say(f"not covered: {erasing.NOT_COVERED}")
    say(on_one_line(f"nothing was erased yet; to do it: muniment erase {plan.target} --yes"))


def _print_receipt(receipt: erasing.Receipt, target: str) -> None:
    say_notes(receipt.notes)
    say(
        on_one_line(
            f"erased: {target} ({receipt.files} files, {receipt.versions} versions, "
            f"{receipt.reviews} reviews, what {receipt.records} records said)"
        )
    )
    say(f"  as {receipt.task_id}; to check: muniment erase --verify FILE, with the text in the file")
    say(f"not covered: {erasing.NOT_COVERED}")


# -- audit -------------------------------------------------------------------------------------------
#
# `muniment audit`: the chain of records, checked and shown.

MAX_HEAD_BYTES: Final = 1_024
"""Bytes of a file that holds one head."""


def verify_chain(head_file: Path | None, *, as_json: bool) -> int:
    """Check the chain; the exit code is 1 if something is wrong with it."""

    def body(state: State) -> int:
        kept = None if head_file is None else _read_head(head_file)
        found = verify(state, kept=kept)
        if as_json:
            print_document(
                {
                    "whole": not found.problems,
                    "records": found.records,
                    "problems": list(found.problems),
                    "head": str(found.head),
                }
            )
        for problem in found.problems if not as_json else ():
            print(problem, file=sys.stderr)
        if found.problems:
            return EXIT_FAILED
        if not as_json:
            say(f"{found.records} records, none edited, removed or added by anybody without the key")
            if kept is None:
                say("that the ledger was not put back to an earlier copy, only --head-file shows")
        return 0

    return _with_state(body, "not verified", as_json=as_json)


def print_head(*, as_json: bool) -> int:
    """Print the end of the chain; the exit code."""

    def body(state: State) -> int:
        found = head(state)
        if as_json:
            print_document({"head": str(found), "records": found.seq})
        else:
            say(str(found))
        return 0

    return _with_state(body, "no head", as_json=as_json)


def show_records(task: str | None, *, as_json: bool) -> int:
    """Print the records; the exit code."""

    def body(state: State) -> int:
        found = records(state, task=task)
        if as_json:
            print_document({"records": [asdict(record) for record in found]})
            return 0
        for record in found:
            about = "(erased)" if record.body is None else json.dumps(record.body, ensure_ascii=False)
            say(on_one_line(f"{record.seq} {record.at} {record.kind} {record.task or '-'} {about}"))
        if not found:
            say("no records" if task is None else "no records of this task; see: muniment history")
        return 0

    return _with_state(body, "not shown", as_json=as_json)


def _with_state(body: Callable[[State], int], what: str, *, as_json: bool) -> int:
    configure_logging()
    try:
        directory = read_settings(os.environ).state
        # Looking at what is not there makes nothing.
        with State(directory if directory.is_dir() else None) as state:
            return body(state)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what=what)


def _read_head(path: Path) -> Head:
    try:
        text = read_named(path, MAX_HEAD_BYTES).decode("ascii")
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{path} holds no head of an audit chain") from None
    return Head.parse(text)
