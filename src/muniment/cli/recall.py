"""Implement `muniment recall`: for a user, for a program, and as the hook of a coding tool."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, open_command_context
from muniment.cli.display import FactLine, format_facts, format_place
from muniment.cli.options import MemoryFlags, create_scope_option
from muniment.cli.terminal import print_document
from muniment.content.gates import clean_foreign_line, escape_invisible
from muniment.errors import ConfigInvalid, InvalidScope, MunimentError

if TYPE_CHECKING:
    from muniment.integrations.coding_tools.hook import HookAnswer, HookMemory, HookOptions
    from muniment.kernel.cancel import Deadline
    from muniment.types import RecalledEntry

RECORD_SECONDS: Final = 0.5
"""Seconds to record the injected entries after the response; normally it takes milliseconds."""

# -- the command -------------------------------------------------------------------------------------


@command("not recalled")
def recall(
    *,
    words: Annotated[list[str] | None, typer.Argument(help="A message, or words to search for.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of entries.")] = 5,
    budget: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Maximum tokens of the text.")] = 2_000,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Skip the entry with this id (see --json). May be repeated."),
    ] = None,
    scope: Annotated[str | None, create_scope_option(help="Search only this scope.")] = None,
    where: MemoryFlags,
    standing: Annotated[
        bool,
        typer.Option("--standing", help="Print the text that each session of a coding tool starts with."),
    ] = False,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help="Read the JSON event of a coding tool from standard input; print entries for its prompt.",
        ),
    ] = False,
) -> Report | int:
    """Recall entries that help with a message.

    In a pipe: one line for each entry with text, time, place, trust and handle, separated by tabs.

    With --hook the exit code is always 0, and a response is printed within 5 seconds, even after an error.
    """
    from muniment.integrations.coding_tools.hook import HookOptions, search_memory
    from muniment.kernel.cancel import Deadline
    from muniment.types.documents import create_document

    query, options = " ".join(words or []), HookOptions(limit, budget, exclude or [], scope)
    if hook:
        if words or where["json"]:
            raise typer.BadParameter(
                "it reads its query from standard input; remove WORDS and --json", param_hint="--hook"
            )
        return _respond_to_hook(where, options)
    if standing:
        if words:
            raise typer.BadParameter("it takes no WORDS; remove them", param_hint="--standing")
        return _show_standing(where, options)
    if not query.strip():
        raise typer.BadParameter("the query is empty: describe what to recall", param_hint="WORDS")
    with _open_memory(where, options, can_ask=True) as memory:
        recalled = search_memory(memory.recaller, query, options, Deadline(float("inf")))
    if recalled.error is not None:
        raise recalled.error
    return Report(
        create_document(recalled),
        format_facts(map(_create_line, recalled.entries)),
        recalled.notes,
        remarks=[] if recalled.entries else ["no entry matches; to list all entries: muniment ls"],
    )


def _show_standing(flags: MemoryFlags, options: HookOptions) -> Report:
    """Return the report of the standing context, also if it is switched off."""
    from muniment.kernel.cancel import Deadline
    from muniment.recall.standing import read_standing
    from muniment.types.documents import create_document

    with _open_memory(flags, options, can_ask=True) as memory:
        recaller = memory.recaller
        standing = read_standing(recaller, recaller.standing_tokens, Deadline(float("inf")))
    if standing.error is not None:
        raise standing.error
    lines = escape_invisible(standing.text).splitlines() or ["no standing facts are stored"]
    return Report(create_document(standing), lines)


def _create_line(entry: RecalledEntry) -> FactLine:
    from muniment.recall.block import format_entry

    return FactLine(
        "\n".join(format_entry(entry)),
        entry.at,
        format_place(entry.path),
        str(entry.trust),
        entry.handle,
        "" if entry.ended is None else f"ended on {entry.ended}",
        path="" if entry.handle else entry.path,
    )


# -- the hook ----------------------------------------------------------------------------------------


def _respond_to_hook(flags: MemoryFlags, options: HookOptions) -> int:
    """Read the event on standard input, print the answer to it, and return 0.

    The injected entries are recorded after the answer was printed. If the process is killed in between, the
    conversation may receive the entries again, but loses none. A failure is reported on standard error.
    """
    # Import before the clock starts: the imports count as part of the program's start.
    from muniment.integrations.coding_tools.hook import HOOK_SECONDS
    from muniment.kernel.cancel import Deadline

    answers: list[HookAnswer] = []
    reasons: list[str] = []
    printed: list[HookAnswer] = []
    ready, finished = threading.Event(), threading.Event()

    def work() -> None:
        try:
            with _answer_event(flags, options, Deadline(end)) as answer:
                answers.append(answer)
                ready.set()
                finished.wait()
                if printed:
                    answer.record()
        except MunimentError as error:
            reasons.append(str(error))
        finally:
            ready.set()

    # A client of the daemon may have waited before.
    seconds = HOOK_SECONDS - getattr(getattr(sys.stdin.buffer, "raw", None), "seconds", 0.0)
    end = time.monotonic() + seconds
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    is_ready = ready.wait(seconds)
    found = answers[:1]
    if not found:
        if not reasons:
            reasons.append("internal error" if is_ready else f"it took longer than {HOOK_SECONDS:g} s")
        print(f"nothing was recalled: {clean_foreign_line(reasons[0])}", file=sys.stderr)
    try:
        print_document(found[0].response if found else {}, indent=None)
        printed += found
    finally:
        finished.set()
    thread.join(max(0.0, end - time.monotonic()) + RECORD_SECONDS)
    return 0


@contextmanager
def _answer_event(flags: MemoryFlags, options: HookOptions, deadline: Deadline) -> Iterator[HookAnswer]:
    """Open the memory for the event on standard input, and yield the answer to it.

    Raises:
        MunimentError: the event is invalid, or the memory cannot be read.
    """
    from muniment.integrations.coding_tools.hook import answer_event, find_workspace, parse_event

    try:
        event = parse_event(_read_stdin())
    except OSError:
        raise ConfigInvalid("invalid event on standard input: it cannot be read") from None
    workspace = flags["workspace"] or find_workspace(event)
    with _open_memory({**flags, "workspace": workspace}, options, can_ask=False) as memory:
        yield answer_event(event, memory, options, deadline)


def _read_stdin() -> bytes:
    """Read standard input to its end, but at most `MAX_EVENT_BYTES`.

    The buffer of `sys.stdin` is not used: a thread that waits inside it would abort the program at exit.
    """
    from muniment.integrations.coding_tools.hook import MAX_EVENT_BYTES

    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    data = bytearray()
    while len(data) < MAX_EVENT_BYTES and (block := stream.read(MAX_EVENT_BYTES - len(data))):
        data += block
    return bytes(data)


@contextmanager
def _open_memory(flags: MemoryFlags, options: HookOptions, *, can_ask: bool) -> Iterator[HookMemory]:
    """Open the memory and its recaller, for the block.

    Args:
        flags: the options that select the memory.
        options: the limits of the recall; its scope is checked.
        can_ask: whether the user may be asked which memory to use.

    Raises:
        InvalidScope: the policy does not declare the scope.
        MunimentError: the memory cannot be opened, as in `open_context`.
    """
    from muniment.integrations.coding_tools.hook import HookMemory
    from muniment.opening import create_recaller

    with open_command_context(flags, can_ask=can_ask, reads_entries=True, prints_advice=False) as context:
        if options.scope is not None and options.scope not in context.policy.scopes:
            scopes = ", ".join(context.policy.scopes)
            raise InvalidScope(f"unknown scope {options.scope!r}; use one of {scopes}")
        with closing(create_recaller(context)) as recaller:
            yield HookMemory(context, recaller)
