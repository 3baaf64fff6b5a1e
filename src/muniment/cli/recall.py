"""Implement `muniment recall`: for a user, for a program, and as the hook of a coding tool.

Each coding tool (host) expects another response, which its documentation defines. The members of the event
identify the host, so that one command serves all hosts. Codex rejects a response with unknown members, and so
does Claude Code for some events.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from muniment.cli.command import Report, command, open_command_context
from muniment.cli.options import MemoryFlags
from muniment.cli.terminal import print_document
from muniment.content.gates import clean_foreign_line, escape_invisible
from muniment.errors import ConfigInvalid, InvalidScope, MunimentError
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath

if TYPE_CHECKING:
    from muniment.kernel.cancel import Deadline
    from muniment.operations.job_context import JobContext
    from muniment.recall.recaller import Recaller
    from muniment.types import Recalled
    from muniment.types.keys import EntryKey

HOOK_SECONDS: Final = 4.0
"""Seconds after which the hook responds in every case.

With the start of the program, this is less than 5 seconds.
"""

RECORD_SECONDS: Final = 0.5
"""Seconds to record the injected entries after the response; normally it takes milliseconds."""

MAX_EVENT_BYTES: Final = 4 << 20
"""Maximum bytes of the event that the hook reads."""

MAX_HOOK_TOKENS: Final = 3_300
"""Maximum tokens of the text that the hook injects, even if the user sets a larger budget: 9 900 bytes.

Claude Code and Cursor accept 10 000 characters, and Codex truncates a longer text (docs/setup.md links to
their pages).
"""


class _RecallOptions(NamedTuple):
    """The limits of a recall, the ids to exclude, and the only scope to search (None: all scopes)."""

    limit: int
    budget: int
    exclude: list[str]
    scope: str | None


_RESET_EVENT: Final = re.compile(r"compact|compress|^session_?start$", re.IGNORECASE)
"""Matches the names of events after which a conversation contains none of the injected entries.

These are the events for the start of a conversation and for its compaction.
"""

_RESUME_SOURCE: Final = "resume"
"""The `source` of a session start that continues an old conversation, with its injected entries."""

_PROMPT_MEMBERS: Final = ("submitted_prompt", "prompt")
"""The members of an event that may contain the user's text.

The first is preferred, because the `prompt` of Qwen Code may contain text that the tool added.
"""

_SESSION_MEMBERS: Final = ("session_id", "conversation_id")
"""The members of an event that may contain the id of its conversation; Cursor uses the second."""

_Respond = Callable[[dict[str, Any]], bool]
"""A function that prints the response of the hook, and returns whether it was printed in time."""


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
    scope: Annotated[str | None, typer.Option(help="Search only this scope.")] = None,
    where: MemoryFlags,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help="Read the JSON event of a coding tool from standard input; print entries for its prompt.",
        ),
    ] = False,
) -> Report | int:
    """Recall entries that help with a message.

    With --hook the exit code is always 0, and a response is printed within 5 seconds, even after an error.
    """
    from muniment.kernel.cancel import Deadline
    from muniment.types.documents import create_document

    query, options = " ".join(words or []), _RecallOptions(limit, budget, exclude or [], scope)
    if hook:
        if words or where["json"]:
            raise typer.BadParameter(
                "it reads its query from standard input; remove WORDS and --json", param_hint="--hook"
            )
        return _respond_to_hook(where, options)
    if not query.strip():
        raise typer.BadParameter("the query is empty: describe what to recall", param_hint="WORDS")
    with _open_recaller(where, options, can_ask=True) as (_, recaller):
        recalled = _recall_entries(recaller, query, options, Deadline(float("inf")))
    if recalled.error is not None:
        raise recalled.error
    return Report(create_document(recalled), _format_recalled(recalled))


def _format_recalled(recalled: Recalled) -> Iterator[str]:
    for entry in recalled.entries:
        ended = "" if entry.ended is None else f", ended on {entry.ended}"
        yield f"{clean_foreign_line(entry.path)} (trust: {entry.trust}, {entry.at.partition('T')[0]}{ended})"
        for line in entry.text.splitlines():
            yield f"  {escape_invisible(line)}".rstrip()
    if not recalled.entries:
        yield "no entry matches"
    for note in recalled.notes:
        yield f"note: {clean_foreign_line(note)}"


# -- the hook ----------------------------------------------------------------------------------------


def _respond_to_hook(flags: MemoryFlags, options: _RecallOptions) -> int:
    """Read the event on standard input, print a response with entries for its prompt, and return 0.

    The injected entries are recorded after the response was printed. If the process is killed in between, the
    conversation may receive the entries again, but loses none. A failure is reported on standard error.
    """
    # Import before the clock starts: the imports count as part of the program's start.
    import muniment.opening
    import muniment.recall.recaller
    import muniment.store.injected  # noqa: F401
    from muniment.kernel.cancel import Deadline

    responses: list[dict[str, Any]] = []
    reasons: list[str] = []
    printed: list[dict[str, Any]] = []
    ready, finished = threading.Event(), threading.Event()

    def respond(response: dict[str, Any]) -> bool:
        responses.append(response)
        ready.set()
        finished.wait()
        return response in printed

    def work() -> None:
        try:
            _handle_event(flags, options, Deadline(end), respond)
        except MunimentError as error:
            reasons.append(str(error))
        finally:
            ready.set()

    end = time.monotonic() + HOOK_SECONDS
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    is_ready = ready.wait(HOOK_SECONDS)
    response = responses[:1]
    if not response:
        if not reasons:
            reasons.append("internal error" if is_ready else f"it took longer than {HOOK_SECONDS:g} s")
        print(f"nothing was recalled: {clean_foreign_line(reasons[0])}", file=sys.stderr)
    try:
        print_document(response[0] if response else {}, indent=None)
        printed += response
    finally:
        finished.set()
    thread.join(max(0.0, end - time.monotonic()) + RECORD_SECONDS)
    return 0


def _handle_event(flags: MemoryFlags, options: _RecallOptions, deadline: Deadline, respond: _Respond) -> None:
    """Recall entries for the prompt of an event, and print them; raise if nothing can be recalled.

    Args:
        flags: the options that select the memory.
        options: the limits of the recall.
        deadline: the time at which the search must end.
        respond: prints the response.
    """
    from muniment.store.injected import HookSession
    from muniment.types.keys import EntryKey, RootKey

    event = _read_event()
    prompt, unsafe_id = _find_first_text(event, _PROMPT_MEMBERS), _find_first_text(event, _SESSION_MEMBERS)
    name = event.get("hook_event_name")
    is_reset = isinstance(name, str) and _RESET_EVENT.search(name) is not None
    if prompt is None and not is_reset:
        raise ConfigInvalid('invalid event on standard input: expected an object with a string "prompt"')
    with _open_recaller(_select_workspace(flags, event), options, can_ask=False) as (context, recaller):
        session = HookSession(context.state, unsafe_id) if unsafe_id else None
        if session is not None and is_reset and event.get("source") != _RESUME_SOURCE:
            session.clear()
        if prompt is None:
            respond({})
            return
        injected = () if session is None else session.read_injected(datetime.now(UTC), deadline)
        note_keys = [EntryKey(RootKey(""), RelPath("note"), digest(each.encode())) for each in context.advice]
        notes = (
            []
            if set(note_keys) <= set(injected)
            else [f"note: {clean_foreign_line(each)}" for each in context.advice]
        )
        remaining_tokens = MAX_HOOK_TOKENS - recaller.count("\n".join(notes))
        limited_options = options._replace(budget=min(options.budget, remaining_tokens))
        recalled = _recall_entries(recaller, prompt, limited_options, deadline, injected)
        if recalled.error is not None:
            raise recalled.error
        text = "\n".join(filter(None, [recalled.text, *notes]))
        if respond(_build_response(text, event)) and text:
            if session is not None:
                session.record_injected([*recalled.keys, *note_keys], datetime.now(UTC))
            if recalled.entries:
                recaller.record(recalled, "hook")


def _is_cursor_event(event: dict[str, Any]) -> bool:
    return "cursor_version" in event or "conversation_id" in event


def _select_workspace(flags: MemoryFlags, event: dict[str, Any]) -> MemoryFlags:
    """Return the options that select the memory for an event.

    Cursor may start the hook in any directory, but the event names the workspace.
    """
    roots = event.get("workspace_roots")
    if (
        flags["workspace"] is not None
        or not _is_cursor_event(event)
        or not isinstance(roots, list)
        or not roots
    ):
        return flags
    return {**flags, "workspace": Path(roots[0])} if isinstance(roots[0], str) else flags


def _find_first_text(event: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of the members `names` whose value is a string; None: not found."""
    return next((text for name in names if isinstance(text := event.get(name), str)), None)


def _read_event() -> dict[str, Any]:
    """Read the event of the coding tool from standard input.

    Raises:
        ConfigInvalid: standard input does not contain a JSON object.
    """
    try:
        event = json.loads(_read_stdin())
    except (ValueError, RecursionError, OSError):
        raise ConfigInvalid("invalid event on standard input: not JSON; use a JSON object") from None
    if not isinstance(event, dict):
        raise ConfigInvalid('invalid event on standard input: expected an object with a string "prompt"')
    return event


def _read_stdin() -> bytes:
    """Read standard input to its end, but at most `MAX_EVENT_BYTES`.

    The buffer of `sys.stdin` is not used: a thread that waits inside it would abort the program at exit.
    """
    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    data = bytearray()
    while len(data) < MAX_EVENT_BYTES and (block := stream.read(MAX_EVENT_BYTES - len(data))):
        data += block
    return bytes(data)


def _build_response(text: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the response for the host of an event, with only the members that this host accepts.

    For an empty text, the response is `{}`. Codex rejects unknown members, and turns an empty text into a
    message. Claude Code rejects `hookSpecificOutput` for events that accept no context. Gemini CLI reads
    standard error if the output is empty.

    Args:
        text: the text to inject.
        event: the event of the host.
    """
    name = event.get("hook_event_name")
    if not text:
        return {}
    if not isinstance(name, str):
        return {"additionalContext": text}
    if _is_cursor_event(event):
        return {"continue": True, "additional_context": text}
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}


@contextmanager
def _open_recaller(
    flags: MemoryFlags, options: _RecallOptions, *, can_ask: bool
) -> Iterator[tuple[JobContext, Recaller]]:
    """Open the memory and its recaller, for the block.

    Args:
        flags: the options that select the memory.
        options: the limits of the recall; its scope is checked.
        can_ask: whether the user may be asked which memory to use.

    Raises:
        InvalidScope: the policy does not declare the scope.
        MunimentError: the memory cannot be opened, as in `open_context`.
    """
    from muniment.opening import create_recaller

    with open_command_context(flags, can_ask=can_ask, reads_entries=True, prints_advice=False) as context:
        if options.scope is not None and options.scope not in context.policy.scopes:
            scopes = ", ".join(context.policy.scopes)
            raise InvalidScope(f"unknown scope {options.scope!r}; use one of {scopes}")
        with closing(create_recaller(context)) as recaller:
            yield context, recaller


def _recall_entries(
    recaller: Recaller,
    query: str,
    options: _RecallOptions,
    deadline: Deadline,
    injected: Collection[EntryKey] = (),
) -> Recalled:
    """Return the entries that match a query.

    Args:
        recaller: the recaller of the memory.
        query: the text to search for.
        options: the limits, the ids to exclude, and the scope.
        deadline: the time at which the search must end.
        injected: entries that the conversation has already received; they are excluded, too.
    """
    return recaller.recall(
        query,
        exclude={*recaller.read_keys(options.exclude), *injected},
        scopes=None if options.scope is None else [options.scope],
        limit=options.limit,
        budget=options.budget,
        deadline=deadline,
        needs_entry=True,
    )
