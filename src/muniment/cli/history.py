"""Implement `muniment history`, `why`, `undo` and `redo`: list, explain and reverse committed changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, time, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, open_command_context
from muniment.cli.display import FactLine, describe_fact, format_facts, format_place, quote_fact, wrap_words
from muniment.cli.options import EntryArgument, MemoryFlags, Verbose, create_scope_option
from muniment.cli.suggestions import suggest_changes, suggest_places, suggest_undos
from muniment.cli.terminal import EXIT_CANCELLED, can_ask, cancel_on_interrupt, confirm_preview
from muniment.content.gates import clean_foreign_line
from muniment.errors import BadArguments, ConfigInvalid, Erased, NotFound, ToolError, printable
from muniment.kernel.path import FILE_SUFFIX

if TYPE_CHECKING:
    from muniment.operations.fact_changes import FactChange
    from muniment.operations.job_context import JobContext
    from muniment.types import CommittedStep, Origin

DEFAULT_LIMIT: Final = 20
"""Number of changes in the text output; `--json` prints as many as one result may have."""

_SIGNS: Final = {"new": "+", "changed": "~", "moved": "~", "removed": "-"}
_ORDINARY_TASKS: Final = {"new": "remember", "changed": "remember", "removed": "forget"}
_UNDO_VERBS: Final = {
    "new": "restored",
    "changed": "changed back",
    "moved": "moved back",
    "removed": "removed",
}
_MAX_DIFF_LINES: Final = 12
"""Maximum number of changes, and of lines of one text, in the preview of an undo."""

# -- history -----------------------------------------------------------------------------------------


@command("no history")
def history(
    *,
    path: Annotated[
        str,
        typer.Argument(
            help="An entry, a folder, a scope or a task; everything if empty.", autocompletion=suggest_places
        ),
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Maximum number of changes.", show_default="20")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DATE|2d|12h", help="Only changes since then: a day, or an age such as 2d."),
    ] = None,
    scope: Annotated[str | None, create_scope_option(help="Only changes of this scope.")] = None,
    where: MemoryFlags,
    verbose: Verbose = False,
) -> Report:
    """List the committed changes, newest first.

    The signs mean: + new, ~ changed, - removed.

    In a pipe: one line for each change with text, time, place, trust and the handle of the task, separated by
    tabs.
    """
    from muniment.operations.review import STATE_TEXTS
    from muniment.store.ledger import MAX_STEPS, find_redos

    start = "" if since is None else parse_start(since, datetime.now().astimezone())
    if scope and path:
        raise typer.BadParameter("give a path or --scope, not both", param_hint="--scope")
    maximum = limit or (MAX_STEPS if where["json"] else DEFAULT_LIMIT)
    with open_command_context(where) as context:
        # A rename has two steps, and one more line shows whether there are older changes.
        steps = _load_steps(
            context, path or scope or "", maximum if where["json"] else 2 * maximum + 2, start
        )
        redos = find_redos(context.state)
        is_edited = path.endswith(FILE_SUFFIX) and _is_edited_by_hand(context, path)
    changes = list_changes(steps)
    remarks = [clean_foreign_line(f"{path} {STATE_TEXTS['edited']}")] if is_edited else []
    if not changes:
        name = path or scope
        place = f" of {printable(name)}" if name else ""
        remarks.append(f"no changes{place} " + (f"since {since}" if since else "were committed yet"))
    elif len(changes) > maximum:
        remarks.append(f"only the newest {maximum} are listed; for more, use --limit")
    document = {"steps": [asdict(step) for step in steps], "complete": len(steps) < maximum}
    lines = format_facts(
        create_change_line(*each, redos=redos, verbose=verbose) for each in changes[:maximum]
    )
    return Report(document | ({"edited_by_hand": True} if is_edited else {}), lines, remarks=remarks)


def _load_steps(context: JobContext, path: str, limit: int, start: str) -> tuple[CommittedStep, ...]:
    """Return the newest steps of an entry, a folder, a scope or a task.

    Args:
        context: the memory.
        path: the path or handle; empty: everything.
        limit: the maximum number of steps.
        start: the earliest time, ISO-8601 in UTC; empty: any.
    """
    from muniment.operations.review import load_history
    from muniment.operations.undoable import load_task_steps, resolve_target

    target = resolve_target(context, path) if path else None
    if isinstance(target, str):
        if not (steps := load_task_steps(context, target)):
            raise NotFound(f"no changes found for {printable(path)!r}; use a scope, a path or a handle")
        return tuple(each for each in steps if each.at >= start)[:limit]
    return load_history(context, None if target is None else target.text, limit, since=start)


def parse_start(text: str, now: datetime) -> str:
    """Return the start of a time range as a time of the ledger.

    Args:
        text: `today`, `yesterday`, a day (`2026-11-01`), or an age in hours, days or weeks (`12h`, `2d`,
            `3w`).
        now: the current time in the time zone of the system, in which days begin.

    Raises:
        ConfigInvalid: the text has another form.
    """
    days = {"today": 0, "yesterday": 1}
    units = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
    number, unit = text[:-1], text[-1:]
    try:
        if text in days:
            start = datetime.combine(now.date() - timedelta(days=days[text]), time.min)
        elif number.isascii() and number.isdigit() and unit in units:
            start = now - int(number) * units[unit]
        else:
            start = datetime.fromisoformat(text)
        # Without a time zone, the start has the offset that the zone of the system has on that day.
        return start.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise ConfigInvalid(
            f"invalid --since {text!r}: use a day (2026-11-01), today, yesterday, or an age (12h, 2d, 3w)"
        ) from None


def list_changes(steps: Iterable[CommittedStep]) -> list[tuple[CommittedStep, FactChange]]:
    """Return the changes of facts, each with a step of its task; the steps of a task follow each other."""
    from muniment.operations.fact_changes import merge_steps

    tasks = [tuple(group) for _, group in groupby(steps, key=lambda step: step.task)]
    return [(task[0], change) for task in tasks for change in merge_steps(task)]


def create_change_line(
    step: CommittedStep, change: FactChange, *, redos: Collection[str] = (), verbose: bool = False
) -> FactLine:
    """Return the line that shows a change; its handle is the handle of the task.

    Args:
        step: a step of the task.
        change: the change.
        redos: the result of `find_redos`.
        verbose: whether to show the path and all attributes of the task.
    """
    is_known = bool(change.new or change.old)
    text = change.title if is_known else "(erased)" if step.is_erased else change.path
    if change.old and change.new and change.old != change.new:
        text = f"{change.old} → {change.new}"
    asked = "redo" if step.task in redos else step.asked
    label = "" if asked == _ORDINARY_TASKS.get(change.kind) else asked
    if change.kind == "moved":
        label = f"moved from {format_place(change.previous_path)}"
    if verbose:
        undone = f" of {step.undoes}" if step.undoes else ""
        label = f"{step.asked}{undone}, by {step.decided_by}, policy {step.policy}, task {step.task}"
    return FactLine(
        text,
        step.at,
        format_place(change.path),
        "" if change.trust is None else str(change.trust),
        step.task_handle,
        label,
        _SIGNS[change.kind],
        change.path if verbose else "",
    )


def _is_edited_by_hand(context: JobContext, unsafe_path: str) -> bool:
    """Return whether an entry was edited by hand after its last task; False if it is deleted or erased."""
    from muniment.operations.review import load_origin

    try:
        return load_origin(context, unsafe_path).state == "edited"
    except (NotFound, Erased, ToolError):
        return False


# -- why ---------------------------------------------------------------------------------------------

_AUTHORS: Final = {
    "owner": "you",
    "workspace": "a person of this workspace",
    "agent": "an agent, in its own words",
    "external": "an external source",
}
"""The author of a text, by its trust."""


@command("not explained")
def why(
    *,
    path: EntryArgument,
    where: MemoryFlags,
    verbose: Verbose = False,
) -> Report:
    """Show the origin of an entry: who wrote it, and when.

    Also show whether it was edited by hand since.
    """
    from muniment.operations.review import load_origin

    with open_command_context(where) as context:
        found = load_origin(context, path)
    return Report(found.as_json, _format_origin(found, verbose=verbose))


def _format_origin(found: Origin, *, verbose: bool) -> Iterator[str]:
    from muniment.operations.review import STATE_TEXTS

    yield from format_facts(
        [
            FactLine(
                found.title or found.path,
                found.at or "",
                format_place(found.path),
                str(found.trust or ""),
                found.handle,
            )
        ]
    )
    author = "" if found.trust is None else f"written by {_AUTHORS[found.trust]} (trust {found.trust})"
    if found.task is not None and found.at:
        author += f" on {_format_time(found.at)}, with {found.asked} ({found.task_handle})"
    if author:
        yield from _indent(author)
    yield from _indent(f"it {STATE_TEXTS[found.state]}")
    for each in found.sentences:
        yield from _indent(f"{each.trust}: {clean_foreign_line(each.text)}")
    if verbose and found.task is not None:
        yield from _indent(f"path {found.path}, task {found.task}, {found.at}")
        yield from _indent(
            f"decided by {found.decided_by}, trust {found.request_trust}, policy {found.policy}"
        )
        if found.fact is not None:
            yield from _indent(f"fact {found.fact} (a keyed digest)")


def _format_time(at: str) -> str:
    """Return a time of the ledger as a local time of the user, such as `22 Nov 2026, 08:07`."""
    return datetime.fromisoformat(at).astimezone().strftime("%-d %b %Y, %H:%M")


def _indent(text: str) -> Iterator[str]:
    return wrap_words(f"  {clean_foreign_line(text)}", indent=4)


# -- undo and redo -----------------------------------------------------------------------------------


@command("not undone")
def undo(
    *,
    task: Annotated[
        str,
        typer.Argument(
            help="A task by its handle or id, or an entry, for its last change (default: the last change).",
            autocompletion=suggest_changes,
        ),
    ] = "",
    show_list: Annotated[bool, typer.Option("--list", help="List the changes that can be undone.")] = False,
    where: MemoryFlags,
    yes: Annotated[
        bool, typer.Option("--yes", help="Undo the last change of any author, without asking.")
    ] = False,
) -> Report | int:
    """Undo a change; without an argument, the last one.

    On a terminal, the last one is shown first, and the command asks. It does not ask if you name a change. If
    you name an entry, and its last task changed other entries too, it asks.

    If an entry was changed again after the task, nothing is undone.
    """
    if show_list:
        return _list_tasks(where)
    return _reverse(task, where, yes=yes, is_redo=False)


@command("not redone")
def redo(
    *,
    task: Annotated[
        str,
        typer.Argument(
            help="The handle or id of an undo (default: the last undo).", autocompletion=suggest_undos
        ),
    ] = "",
    where: MemoryFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Redo the last undo without asking.")] = False,
) -> Report | int:
    """Redo a change that was undone.

    On a terminal, the last undo is shown first, and the command asks. It does not ask if you name an undo.
    """
    return _reverse(task, where, yes=yes, is_redo=True)


def _list_tasks(where: MemoryFlags) -> Report:
    from muniment.operations.undoable import list_undoable
    from muniment.store.ledger import find_redos

    with open_command_context(where) as context:
        tasks = [*islice(list_undoable(context), DEFAULT_LIMIT)]
        redos = find_redos(context.state)
    document = {"tasks": [[asdict(step) for step in steps] for steps in tasks]}
    remarks = [] if tasks else ["no change is left to undo"]
    return Report(document, format_facts(_summarize_task(each, redos) for each in tasks), remarks=remarks)


def _summarize_task(steps: Sequence[CommittedStep], redos: Collection[str]) -> FactLine:
    """Return one line for a task: its first change, and the number of the others."""
    changes = list_changes(steps)
    line, others = create_change_line(*changes[0], redos=redos), len(changes) - 1
    return line._replace(text=f"{line.text}, and {others} more") if others else line


def _reverse(task: str, where: MemoryFlags, *, yes: bool, is_redo: bool) -> Report | int:
    """Undo or redo a task; if it was not given, show what would change, and ask."""
    from muniment.operations import review
    from muniment.operations.undoable import find_undoable, load_task_steps

    word = "redo" if is_redo else "undo"
    is_asking = not task and not yes
    if is_asking and not can_ask(where, yes=yes):
        raise typer.BadParameter(f"without a terminal, give a task (see: muniment {word} --help), or --yes")
    with open_command_context(where) as context:
        found = find_undoable(context, task or None, is_redo=is_redo)
        steps = load_task_steps(context, found)
        if task and not yes and not _names_task(task, found) and len(list_changes(steps)) > 1:
            is_asking = can_ask(where, yes=yes)
            if not is_asking:
                raise BadArguments(
                    f"the last task that changed {printable(task)} has several changes; "
                    f"to {word} all: muniment {word} {steps[0].task_handle}"
                )
        if is_asking:
            preview = _preview_undo(context, steps, word)
            if not confirm_preview(preview, f"{word} this?", "nothing was changed"):
                return EXIT_CANCELLED
        with cancel_on_interrupt() as cancel:
            result = review.undo_task(found, context, cancel=cancel)
        done = load_task_steps(context, result.task_id) if result.error is None else ()
    return Report(result.as_json, _format_undo(done, f"{word[:2]}done"), result.notes, error=result.error)


def _names_task(text: str, task: str) -> bool:
    """Return whether a text is the id or a handle of a task; otherwise it names an entry or a place."""
    from muniment.store.handles import build_task_handle

    return text == task or build_task_handle(task).startswith(text.lower())


def _preview_undo(context: JobContext, steps: Sequence[CommittedStep], word: str) -> Iterator[str]:
    """Yield the lines that show what the undo of a task would change."""
    from muniment.operations.undoable import diff_undo
    from muniment.store.ledger import find_redos

    changes, first = list_changes(steps), steps[0]
    asked = "redo" if first.task in find_redos(context.state) else first.asked
    heading = "redo of the change that was undone:" if word == "redo" else f"undo of a change by {asked}:"
    yield from format_facts([FactLine(heading, first.at, handle=first.task_handle)])
    for step, change in changes[:_MAX_DIFF_LINES]:
        yield from format_facts(_reverse_change(change))
        if change.kind == "changed" and change.old in {"", change.new}:
            lines = diff_undo(context, replace(step, path=change.path))
            yield from (f"  {line}" for line in islice(lines, _MAX_DIFF_LINES))
    if len(changes) > _MAX_DIFF_LINES:
        hint = f"to list them: muniment history {first.task_handle}"
        yield f"and {len(changes) - _MAX_DIFF_LINES} more; {hint}"


def _reverse_change(change: FactChange) -> Iterator[FactLine]:
    """Yield the facts that the undo of a change removes and restores."""
    place, handle = format_place(change.path), change.handle
    if change.kind == "moved":
        to = format_place(change.previous_path)
        yield FactLine(change.title, place=place, handle=handle, sign="~", label=f"back to {to}")
    elif change.kind == "changed" and change.old in {"", change.new}:
        yield FactLine(change.title, place=place, handle=handle, sign="~")
    else:
        if change.kind != "removed":
            yield FactLine(change.new or change.path, place=place, handle=handle, sign="-")
        if change.kind != "new":
            yield FactLine(change.old or change.path, place=place, handle=handle, sign="+")


def _format_undo(steps: Iterable[CommittedStep], word: str) -> Iterator[str]:
    """Yield one line for each entry that an undo changed."""
    for _, change in list_changes(steps):
        verb = f"{_UNDO_VERBS[change.kind]} "
        if change.kind == "changed" and change.old not in {"", change.new}:
            verb = f"{quote_fact(change.old)} → "
        yield from wrap_words(
            f"{word}: {verb}{describe_fact(change.title, change.path, change.handle)}", indent=2
        )
