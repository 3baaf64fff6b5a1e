"""What `muniment forget` and `muniment dream` share: a memory with a model, and no worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TypeVar

from muniment.agent.model import Model
from muniment.cli.inspect import Where
from muniment.cli.interrupt import cancel_on_interrupt
from muniment.cli.model import ModelFlags, forget_key
from muniment.cli.report import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    configure_logging,
    on_one_line,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.confine.cancel import Cancel
from muniment.errors import Cancelled, MunimentError
from muniment.jobs.place import Place
from muniment.jobs.request import DreamResult, ForgetResult, Spared
from muniment.opening import find_place, open_model
from muniment.settings import parse_roots, read_settings

R = TypeVar("R", ForgetResult, DreamResult)


def carry_out(
    where: Where,
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


def say_kept(kept: Iterable[Spared]) -> None:
    """What was meant and stays, a line each."""
    for path, reason in kept:
        say(f"kept: {on_one_line(path)} ({on_one_line(reason)})")


def say_how(result: ForgetResult | DreamResult) -> None:
    """Who decided, how long it took, and how to go on."""
    say(
        f"  {on_one_line(result.decided_by)}, {result.turns} turns, {result.seconds:.2f} s, "
        f"policy {on_one_line(result.policy)}"
    )
    if result.status == "completed" and result.touched_scopes:
        say(f"  to take it back: muniment undo {result.task_id}")
