"""Implement `muniment forget` and `dream`; both may use a model, but no worker.

On a terminal both show what would change, and ask. The answer applies exactly to what was shown: if a file
changed in the meantime, nothing is changed. A model is queried only once, for the preview.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, load_settings, open_command_context, open_model_and_drop_key
from muniment.cli.display import (
    FactLine,
    describe_entry,
    format_facts,
    format_groups,
    format_place,
    quote_fact,
    wrap_words,
)
from muniment.cli.options import MemoryFlags, ModelFlags, Verbose, create_scope_option
from muniment.cli.suggestions import suggest_entries
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    can_ask,
    cancel_on_interrupt,
    confirm,
    confirm_preview,
    print_line,
    print_notes,
    read_answer,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import MunimentError

if TYPE_CHECKING:
    from muniment.agent.model import Model, ModelRequest, Reply
    from muniment.operations.job_context import JobContext
    from muniment.types import Counts, DreamResult, EntryPart, ForgetResult, RetainedEntry, TidyStep

MAX_LISTED_GROUPS: Final = 5
"""Maximum number of groups of similar entries in the text output; `--json` lists all groups."""

MAX_REMARKS: Final = 10
"""Maximum number of entries that stay and are listed with the reason; `--json` lists all."""

_REASONS: Final = {
    "expired": "expired",
    "duplicate": "the same text",
    "outdated": "outdated",
    "merged": "merged",
}

# -- forget ------------------------------------------------------------------------------------------


@command("nothing forgotten")
def forget(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            help="An entry by its path or handle, or a description of it.", autocompletion=suggest_entries
        ),
    ],
    scope: Annotated[str | None, create_scope_option(help="Search only this scope.")] = None,
    where: MemoryFlags,
    flags: ModelFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Forget all matches without asking.")] = False,
    verbose: Verbose = False,
) -> Report | int:
    """Forget entries, by their handle, path or description.

    On a terminal, the command shows the matches and asks: about one match yes or no, about several which to
    forget. Without a terminal, it only shows them, or forgets all with --yes. `muniment undo` restores an
    entry, unless it is erased later.
    """
    from muniment.agent.filing import RuleWriter
    from muniment.operations import forget as job
    from muniment.types import ForgetRequest

    request = ForgetRequest(" ".join(words), scope=scope, dry_run=not yes)
    is_asking = can_ask(where, yes=yes)
    with _open_resources(where, flags, yes=yes, is_asking=is_asking) as (context, model):
        with cancel_on_interrupt() as cancel:
            result = job.forget(request, context, model, cancel=cancel)
        if is_asking and result.error is None and result.entries:
            chosen = _ask_which(context, result, verbose=verbose)
            if not chosen:
                print("nothing was forgotten", file=sys.stderr)
                return EXIT_CANCELLED
            with cancel_on_interrupt() as cancel:
                picked = replace(request, dry_run=False, chosen=chosen)
                result = job.forget(picked, context, RuleWriter(), cancel=cancel)
        retained = list(_format_retained(context, result.kept, "not forgotten"))
    return _report_forget(result, retained, is_asking=is_asking, verbose=verbose)


def _ask_which(context: JobContext, result: ForgetResult, *, verbose: bool) -> tuple[EntryPart, ...]:
    """Show the entries that a preview found, and ask which to forget; return the chosen ones."""
    entries, limit = result.entries, context.policy.changes.max_forget
    is_near, is_single = not result.removed_entries, len(entries) == 1
    print_notes(each for each in result.notes if each != result.summary)
    if is_near:
        print_line(f"no entry matches exactly; {'this one is' if is_single else 'these are'} near:")
    # With a sign, the lines of a wrapped text are indented, so that a text cannot imitate the question.
    signs = ["-"] if is_single else [str(number) for number in range(1, len(entries) + 1)]
    facts = [_create_line(part, sign, verbose=verbose) for part, sign in zip(entries, signs, strict=True)]
    for line in (*format_facts(facts), *_format_retained(context, result.kept, "not listed")):
        print_line(line)
    if is_single:
        return entries if confirm("forget this?") else ()
    numbers = _ask_numbers(len(entries), limit)
    return tuple(entries[number - 1] for number in numbers)


def _ask_numbers(count: int, limit: int) -> tuple[int, ...]:
    """Ask for some of the numbers from 1 to `count`, at most `limit`, until the answer is valid."""
    choice = "numbers such as 1 3, all, or Enter for none"
    if count > limit:
        choice = f"at most {limit} numbers such as 1 3, or Enter for none"
    while True:
        answer = read_answer(f"forget which? ({choice}) ")
        numbers = () if answer is None else _parse_numbers(answer, count)
        if numbers is not None and len(numbers) <= limit:
            return numbers
        reason = (
            f"choose at most {limit} numbers"
            if numbers
            else f"use numbers from 1 to {count} with spaces between them"
        )
        print_line(f"invalid answer {quote_fact((answer or '')[:40])}: {reason}")


def _parse_numbers(answer: str, count: int) -> tuple[int, ...] | None:
    """Return the different numbers in an answer; None if it is invalid."""
    words = re.split(r"[\s,]+", answer.casefold().strip(" ,"))
    if words in (["all"], ["none"], ["n"], ["no"], [""]):
        return tuple(range(1, count + 1)) if words == ["all"] else ()
    if not all(re.fullmatch("[1-9][0-9]{0,3}", word) and int(word) <= count for word in words):
        return None
    return tuple(dict.fromkeys(map(int, words)))


def _report_forget(
    result: ForgetResult, retained: Sequence[str], *, is_asking: bool, verbose: bool
) -> Report:
    is_done = result.status == "completed"
    lines: Iterable[str] = ()
    remarks: list[str] = []
    if result.error is None:
        if is_done and result.removed_entries:
            lines = _format_forgotten(result)
        elif not is_asking:
            lines = _format_forget_preview(result, verbose=verbose)
        if not (is_done and is_asking):  # The question has shown them.
            remarks += retained
        remarks += _list_forget_remarks(result, is_asking=is_asking)
        remarks += _format_decision(result) if verbose else ()
    notes = [each for each in result.notes if each != result.summary]
    error = _explain(result.error) if is_asking else result.error
    return Report(result.as_json, lines, notes, error=error, remarks=remarks)


def _format_forgotten(result: ForgetResult) -> Iterator[str]:
    """Yield one line for each entry or part that was removed."""
    texts = [each.text for each in result.entries] or [each.summary for each in result.removed_entries]
    for text in texts:
        yield from wrap_words(f"forgot: {quote_fact(text)}", indent=2)


def _format_forget_preview(result: ForgetResult, *, verbose: bool) -> Iterator[str]:
    """Yield the entries that would be removed; without a match, those that are near."""
    if result.entries:
        is_near = not result.removed_entries
        lines = [_create_line(each, "" if is_near else "-", verbose=verbose) for each in result.entries]
        if is_near:
            lines = [each._replace(label="; ".join(filter(None, ["near", each.label]))) for each in lines]
        yield from format_facts(lines)
        return
    yield from format_facts(
        FactLine(each.summary, place=format_place(each.path), sign="-", path=each.path)
        for each in result.removed_entries
    )


def _list_forget_remarks(result: ForgetResult, *, is_asking: bool) -> Iterator[str]:
    if result.status == "completed":
        yield from _format_undo(result, len(result.removed_entries))
    if not result.removed_entries or (result.digest is None and result.status == "preview"):
        summary, _, _ = result.summary.partition("; similar entries: ")
        yield from wrap_words(clean_foreign_line(summary), indent=2)
    elif result.status == "preview" and not is_asking:
        yield "preview only; to forget, run this again with --yes"


# -- dream -------------------------------------------------------------------------------------------


@command("nothing tidied")
def dream(
    *,
    scope: Annotated[str | None, create_scope_option(help="Tidy only this scope.")] = None,
    where: MemoryFlags,
    flags: ModelFlags,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the changes without asking.")] = False,
    verbose: Verbose = False,
) -> Report | int:
    """Tidy the memory: merge duplicates, remove expired entries.

    On a terminal, the command shows the changes and asks. Without one, it only shows them, or applies them
    with --yes. Other problems, such as broken links, are only counted.
    """
    from muniment.agent.filing import RuleWriter
    from muniment.operations import dream as job
    from muniment.types import DreamRequest

    is_asking = can_ask(where, yes=yes)
    request = DreamRequest(scope, dry_run=not yes)
    with _open_resources(where, flags, yes=yes, is_asking=is_asking) as (context, opened_model):
        recorded = _RecordedModel(opened_model)
        model = recorded if is_asking and not isinstance(opened_model, RuleWriter) else opened_model
        with cancel_on_interrupt() as cancel:
            result = job.dream(request, context, model, cancel=cancel)
        remarks = [] if result.error else list(_list_findings(context, result))
        if is_asking and result.error is None and result.steps:
            print_notes(result.notes)
            preview = (*_format_steps(result, verbose=verbose), *remarks)
            if not confirm_preview(preview, "apply these changes?", "nothing was changed"):
                return EXIT_CANCELLED
            with cancel_on_interrupt() as cancel:
                recorded.is_replay = True
                shown = replace(request, dry_run=False, digest=result.digest)
                result = job.dream(shown, context, model, cancel=cancel)
            remarks = []
    return _report_dream(result, remarks, is_asking=is_asking, verbose=verbose)


class _RecordedModel:
    """A model that answers a query only once; if the query is repeated, it gives the same answer again.

    So an apply makes the changes of its preview, or the digest of the changes differs and nothing is changed.

    Attributes:
        name: the name of the model.
        is_replay: whether to give only recorded answers; any other query fails.
    """

    def __init__(self, model: Model) -> None:
        self._model, self.name = model, model.name
        self._answers: dict[str, Reply] = {}
        self.is_replay = False

    def respond(self, request: ModelRequest) -> Reply:
        """Return the recorded answer to a query, or in the preview that of the model."""
        from muniment.agent.model import ModelError

        subject = request.brief.fact
        if self.is_replay:
            if subject not in self._answers:
                raise ModelError("no answer from the preview", has_answered=True)
            return self._answers[subject]
        self._answers[subject] = self._model.respond(request)
        return self._answers[subject]


def _report_dream(result: DreamResult, remarks: Iterable[str], *, is_asking: bool, verbose: bool) -> Report:
    lines: Iterable[str] = ()
    listed = list(remarks)
    if result.error is None:
        is_done = result.status == "completed"
        lines = _format_tidied(result) if is_done else _format_steps(result, verbose=verbose)
        if is_done:
            listed += _format_undo(result, sum(len(each.removed) for each in result.steps))
            if result.repeated or result.counts.rejected:
                listed.append(clean_foreign_line(result.summary))
        elif not result.steps:
            listed.insert(0, "nothing to tidy")
        elif not is_asking:
            listed.append("preview only; to apply it, run this again with --yes")
        listed += _format_decision(result) if verbose else ()
    error = _explain(result.error) if is_asking else result.error
    return Report(result.as_json, lines, result.notes, error=error, remarks=listed)


def _format_steps(result: DreamResult, *, verbose: bool) -> Iterator[str]:
    """Yield the entries that a dream would remove, each with the entry that stays; then similar entries."""
    yield from format_facts(line for step in result.steps for line in _list_step_lines(step, verbose=verbose))
    yield from _format_similar(result)


def _list_step_lines(step: TidyStep, *, verbose: bool) -> Iterator[FactLine]:
    if step.stays is not None:
        line = _create_line(step.stays, "=", verbose=verbose)
        yield line._replace(label="stays")
        if step.new_text:
            yield line._replace(text=step.new_text, sign="~", label="its new text")
    for part in step.removed:
        yield _create_line(part, "-", verbose=verbose)._replace(label=_REASONS[step.reason])


def _format_similar(result: DreamResult) -> Iterator[str]:
    """Yield the first groups of similar entries, which only a person can decide about."""
    groups = result.similar[:MAX_LISTED_GROUPS]
    if groups and result.steps and sys.stdout.isatty():
        yield ""
    yield from format_groups(
        (
            "similar, for you to decide:",
            [
                _create_line(part)._replace(label="" if sys.stdout.isatty() else f"similar, group {number}")
                for part in group
            ],
        )
        for number, group in enumerate(groups, 1)
    )


def _format_tidied(result: DreamResult) -> Iterator[str]:
    """Yield one line for each entry that a dream removed."""
    for step in result.steps:
        for part in step.removed:
            reason = _REASONS[step.reason]
            if step.stays is not None:
                text = step.new_text or step.stays.text
                word = {"duplicate": "the same as", "outdated": "outdated by"}.get(step.reason, "merged into")
                reason = f"{word} {quote_fact(text)}"
            yield from wrap_words(f"removed: {quote_fact(part.text)} ({reason})", indent=2)
    if not result.steps:
        yield "nothing to tidy" if not result.repeated else clean_foreign_line(result.summary)


def _list_findings(context: JobContext, result: DreamResult) -> Iterator[str]:
    """Yield the findings that a dream does not change, and the counts."""
    for path in result.ended_paths[:MAX_REMARKS]:
        yield from wrap_words(f"ended, according to its text: {describe_entry(context, path)}", indent=2)
    if result.ended_paths:
        yield "to remove an entry that ended: muniment forget HANDLE"
    if len(result.ended_paths) > MAX_REMARKS:
        yield f"and {len(result.ended_paths) - MAX_REMARKS} more that ended; --json lists them"
    yield from _format_retained(context, result.kept, "not removed")
    if len(result.similar) > MAX_LISTED_GROUPS:
        count = len(result.similar) - MAX_LISTED_GROUPS
        yield f"and {count} more groups of similar entries; --json lists them"
    yield from wrap_words(_describe_counts(result.counts), indent=2)


def _describe_counts(counts: Counts) -> str:
    checked = "1 entry checked" if counts.entries == 1 else f"{counts.entries} entries checked"
    labels = {
        "cannot be read": counts.unreadable,
        "are similar": counts.near_duplicates,
        "were rewritten": counts.rewritten,
        "groups changed meanwhile": counts.rejected,
        "links are broken": counts.broken_links,
        "are left for the next dream": counts.left,
    }
    return ", ".join([checked, *(f"{number} {what}" for what, number in labels.items() if number)])


# -- shared ------------------------------------------------------------------------------------------


@contextmanager
def _open_resources(
    memory_flags: MemoryFlags, model_flags: ModelFlags, *, yes: bool, is_asking: bool
) -> Iterator[tuple[JobContext, Model]]:
    """Open the memory and the model for the block.

    Raises as `open_context`.

    Args:
        memory_flags: the options that select the memory.
        model_flags: the options that select the model.
        yes: whether the command writes; missing directories are then created.
        is_asking: whether the command may write after a question; it then needs a state directory.
    """
    settings = load_settings(memory_flags, model_flags)
    with (
        open_command_context(memory_flags, settings=settings, create=yes, reads_entries=is_asking) as context,
        open_model_and_drop_key(settings) as model,
    ):
        yield context, model


def _explain(error: MunimentError | None) -> MunimentError | None:
    """Return the error of a command that has asked; a person cannot send the digest of a preview."""
    from muniment.operations.removals import create_preview_error

    if error is None or error.code != "preview_changed":
        return error
    return create_preview_error(advice="run this again")


def _create_line(part: EntryPart, sign: str = "", *, verbose: bool = False) -> FactLine:
    return FactLine(
        part.text,
        part.at,
        format_place(part.path),
        str(part.trust),
        part.handle,
        part.remark,
        sign,
        part.path if verbose or not part.handle else "",
    )


def _format_retained(context: JobContext, retained: Iterable[RetainedEntry], prefix: str) -> Iterator[str]:
    """Yield one line for each entry that matched but stays, with the reason."""
    listed = list(retained)
    for path, reason in islice(listed, MAX_REMARKS):
        fact = describe_entry(context, path)
        yield from wrap_words(f"{prefix}: {fact}: {clean_foreign_line(reason)}", indent=2)
    if len(listed) > MAX_REMARKS:
        yield f"and {len(listed) - MAX_REMARKS} more that stay; --json lists them"


def _format_undo(result: ForgetResult | DreamResult, count: int) -> Iterator[str]:
    """Yield the command that restores the removed entries, if any were removed."""
    from muniment.store.handles import build_task_handle

    if result.touched_scopes:
        task = "" if sys.stdout.isatty() else f" {build_task_handle(result.task_id)}"
        yield f"to restore {'it' if count == 1 else 'them'}: muniment undo{task}"


def _format_decision(result: ForgetResult | DreamResult) -> Iterator[str]:
    """Yield a line with the decider, the cost, the policy and the task."""
    yield from wrap_words(
        f"decided by {clean_foreign_line(result.decided_by)}, {result.turns} turns, {result.seconds:.2f} s, "
        f"policy {clean_foreign_line(result.policy)}, task {clean_foreign_line(result.task_id)}",
        indent=2,
    )
