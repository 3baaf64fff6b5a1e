"""`muniment review`: the owner decides about changes that wait."""

from __future__ import annotations

import sys
from collections.abc import Callable

from muniment.cli.inspect import Where, with_place
from muniment.cli.interrupt import cancel_on_interrupt
from muniment.cli.report import EXIT_CANCELLED, on_one_line, print_document, say, say_notes
from muniment.confine.cancel import Cancel
from muniment.jobs.place import Place
from muniment.jobs.review import Decided, approve, reject, show
from muniment.store.ledger import root_key
from muniment.store.review import Pending, pending

_DONE = {"create": "new", "modify": "changed", "delete": "removed"}


def is_asked_on_terminal() -> bool:
    """Whether somebody is there to look and to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def list_reviews(where: Where) -> int:
    """Print what waits; the exit code."""

    def body(place: Place) -> int:
        keys = {root_key(place.state, root) for root in place.roots.values()}
        waiting = pending(place.state)
        here = [each for each in waiting if keys.issuperset(each.roots.values())]
        elsewhere = len(waiting) - len(here)
        if where.json:
            print_document({"reviews": [_summary(each) for each in here], "elsewhere": elsewhere})
            return 0
        for each in here:
            paths = ", ".join(each.change_set.unsafe_paths)
            say(on_one_line(f"{each.id}: {each.origin.kind} of {paths}, {each.at}"))
            say(f"  because {on_one_line('; '.join(each.reasons))}")
        if not here:
            say("nothing waits")
        if elsewhere:
            say(f"{elsewhere} more wait in other workspaces")
        return 0

    return with_place(where, body, "not listed")


def show_review(where: Where, review_id: str) -> int:
    """Print one that waits; the exit code."""

    def body(place: Place) -> int:
        shown = show(review_id, place)
        if where.json:
            print_document({"review_id": shown.review_id, "text": shown.text, "digest": shown.digest})
        else:
            say(shown.text.removesuffix("\n"))
        return 0

    return with_place(where, body, "not shown")


def approve_review(where: Where, review_id: str, digest: str | None, *, yes: bool) -> int:
    """Commit what waits, after a look at it where neither a digest nor `yes` is given; the exit code."""

    def body(place: Place) -> int:
        bound_to = digest
        if bound_to is None:
            shown = show(review_id, place)
            bound_to = shown.digest
            if not yes:
                say(shown.text.removesuffix("\n"))
                if not _says_yes("approve this? [y/N] "):
                    print("not approved; it still waits", file=sys.stderr)
                    return EXIT_CANCELLED
        return _decide(where, lambda cancel: approve(review_id, bound_to, place, cancel=cancel))

    return with_place(where, body, "not approved")


def reject_review(where: Where, review_id: str) -> int:
    """Decide that what waits is never committed; the exit code."""

    def body(place: Place) -> int:
        return _decide(where, lambda cancel: reject(review_id, place, cancel=cancel))

    return with_place(where, body, "not rejected")


def _says_yes(question: str) -> bool:
    print(question, end="", flush=True)  # `input` would write it to standard error.
    try:
        return input().strip().casefold() in {"y", "yes"}
    except EOFError:
        return False


def _decide(where: Where, decision: Callable[[Cancel], Decided]) -> int:
    with cancel_on_interrupt() as cancel:
        done = decision(cancel)
    say_notes(() if where.json else done.notes)
    if where.json:
        print_document(done.as_json())
    elif done.task_id is None:
        say(f"rejected: {done.review_id}; nothing was written")
    else:
        for change in done.changes:
            say(f"approved ({_DONE[change.kind]}): {on_one_line(change.path)}")
        say(f"  to take it back: muniment undo {done.task_id}")
    return 0


def _summary(waiting: Pending) -> dict[str, object]:
    return {
        "review_id": waiting.id,
        "at": waiting.at,
        "kind": waiting.origin.kind,
        "task_id": waiting.origin.task,
        "paths": list(waiting.change_set.unsafe_paths),
        "reasons": list(waiting.reasons),
    }
