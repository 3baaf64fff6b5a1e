"""Implement `muniment recall`: for a user, for a program, and as a hook of another host.

Each host gets the response that its documentation defines. The members of its event identify the host, so
that one command serves all hosts. Codex rejects a response with other members, and so does Claude Code for
some events.
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

from muniment.cli.command import Report, command, place_at
from muniment.cli.options import MemoryFlags
from muniment.cli.terminal import print_document
from muniment.content.gates import on_one_line, visible
from muniment.errors import ConfigInvalid, InvalidScope, MunimentError
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath

if TYPE_CHECKING:
    from muniment.kernel.cancel import Patience
    from muniment.operations.place import Place
    from muniment.recall.recaller import Recaller
    from muniment.types import Recalled
    from muniment.types.keys import EntryKey

HOOK_SECONDS: Final = 4.0
"""Seconds until a hook responds, in every case; less than 5 including the start of the program."""

AFTER_SECONDS: Final = 0.5
"""Seconds after the response to record what was injected; milliseconds, unless another process writes."""

MAX_EVENT_BYTES: Final = 4 << 20
"""Maximum bytes of a hook's event."""

MAX_HOOK_TOKENS: Final = 3_300
"""Maximum tokens of a hook's text, for every budget: 9 900 bytes. Claude Code and Cursor accept 10 000
characters, and Codex truncates a text longer than about that (docs/setup.md links to their pages).
"""


class _RecallTerms(NamedTuple):
    """The limits and the scope of a recall."""

    limit: int
    budget: int
    exclude: list[str]
    scope: str | None


_ANEW: Final = re.compile(r"compact|compress|^session_?start$", re.IGNORECASE)
"""Matches the names of events after which a conversation has lost what was injected, or starts."""

_AGAIN: Final = "resume"
"""The `source` of a session start that restores the old conversation, with its injected entries."""

_PROMPTS: Final = ("submitted_prompt", "prompt")
"""Members of an event with the user's text, the best first: Qwen Code's `prompt` may contain added text."""

_SESSIONS: Final = ("session_id", "conversation_id")
"""The members of an event with the id of its conversation; Cursor uses the second."""

_Give = Callable[[dict[str, Any]], bool]
"""Prints a response; returns whether it was printed in time."""


# -- the command -------------------------------------------------------------------------------------


@command("not recalled")
def recall(
    *,
    words: Annotated[list[str] | None, typer.Argument(help="A message, or words to search for.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of entries.")] = 5,
    budget: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Maximum tokens of the text.")] = 2_000,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Skip this entry, by its id in --json. May be repeated."),
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Search only this scope.")] = None,
    where: MemoryFlags,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help="Read a coding tool's JSON event from standard input; print entries for its prompt.",
        ),
    ] = False,
) -> Report | int:
    """Recall entries that help with a message.

    With --hook the exit code is always 0, and a response is printed within 5 seconds, even after an error.
    """
    from muniment.kernel.cancel import Patience
    from muniment.types.documents import document

    query, terms = " ".join(words or []), _RecallTerms(limit, budget, exclude or [], scope)
    if hook:
        if words or where["json"]:
            raise typer.BadParameter(
                "it reads its query from standard input; remove WORDS and --json", param_hint="--hook"
            )
        return _answer_hook(where, terms)
    if not query.strip():
        raise typer.BadParameter("the query is empty: describe what to recall", param_hint="WORDS")
    with _opened(where, terms, asks=True) as (_, recaller):
        recalled = _recalled(recaller, query, terms, Patience(float("inf")))
    if recalled.error is not None:
        raise recalled.error
    return Report(document(recalled), _lines(recalled))


def _lines(recalled: Recalled) -> Iterator[str]:
    for entry in recalled.entries:
        ended = "" if entry.ended is None else f", ended on {entry.ended}"
        yield f"{on_one_line(entry.path)} (trust: {entry.trust}, {entry.at.partition('T')[0]}{ended})"
        for line in entry.text.splitlines():
            yield f"  {visible(line)}".rstrip()
    if not recalled.entries:
        yield "no entry matches"
    for note in recalled.notes:
        yield f"note: {on_one_line(note)}"


# -- the hook ----------------------------------------------------------------------------------------


def _answer_hook(where: MemoryFlags, terms: _RecallTerms) -> int:
    """Respond to the event on standard input with entries for its prompt; return 0 in every case.

    Injected entries are recorded after the response is printed. If the process is killed in between, the
    session may receive the entries again, but loses no entry. A failure is reported on standard error.
    """
    # Imports count as part of the program's start, so they run before the clock.
    import muniment.opening
    import muniment.recall.recaller
    import muniment.store.told  # noqa: F401
    from muniment.kernel.cancel import Patience

    answers: list[dict[str, Any]] = []
    reasons: list[str] = []
    printed: list[dict[str, Any]] = []
    ready, over = threading.Event(), threading.Event()

    def give(answer: dict[str, Any]) -> bool:
        answers.append(answer)
        ready.set()
        over.wait()
        return answer in printed

    def work() -> None:
        try:
            _hooked(where, terms, Patience(end), give)
        except MunimentError as error:
            reasons.append(str(error))
        finally:
            ready.set()

    end = time.monotonic() + HOOK_SECONDS
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    is_ready = ready.wait(HOOK_SECONDS)
    given = answers[:1]
    if not given:
        if not reasons:
            reasons.append("internal error" if is_ready else f"it took longer than {HOOK_SECONDS:g} s")
        print(f"nothing was recalled: {on_one_line(reasons[0])}", file=sys.stderr)
    try:
        print_document(given[0] if given else {}, indent=None)
        printed += given
    finally:
        over.set()
    thread.join(max(0.0, end - time.monotonic()) + AFTER_SECONDS)
    return 0


def _hooked(where: MemoryFlags, terms: _RecallTerms, patience: Patience, give: _Give) -> None:
    """Respond to an event; raise if nothing can be recalled."""
    from muniment.store.told import HookSession
    from muniment.types.keys import EntryKey, RootKey

    event = _event()
    prompt, unsafe_id = _first_text(event, _PROMPTS), _first_text(event, _SESSIONS)
    name = event.get("hook_event_name")
    is_turn = isinstance(name, str) and _ANEW.search(name) is not None
    if prompt is None and not is_turn:
        raise ConfigInvalid('invalid event on standard input: expected an object with a string "prompt"')
    with _opened(_where(where, event), terms, asks=False) as (place, recaller):
        session = HookSession(place.state, unsafe_id) if unsafe_id else None
        if session is not None and is_turn and event.get("source") != _AGAIN:
            session.clear()
        if prompt is None:
            give({})
            return
        told = () if session is None else session.told(datetime.now(UTC), patience)
        shown_notes = [EntryKey(RootKey(""), RelPath("note"), digest(each.encode())) for each in place.advice]
        notes = (
            [] if set(shown_notes) <= set(told) else [f"note: {on_one_line(each)}" for each in place.advice]
        )
        room = MAX_HOOK_TOKENS - recaller.count("\n".join(notes))
        within = terms._replace(budget=min(terms.budget, room))
        recalled = _recalled(recaller, prompt, within, patience, told)
        if recalled.error is not None:
            raise recalled.error
        text = "\n".join(filter(None, [recalled.text, *notes]))
        if give(_answer(text, event)) and text:
            if session is not None:
                session.tell([*recalled.keys, *shown_notes], datetime.now(UTC))
            if recalled.entries:
                recaller.record(recalled, "hook")


def _is_cursors(event: dict[str, Any]) -> bool:
    return "cursor_version" in event or "conversation_id" in event


def _where(where: MemoryFlags, event: dict[str, Any]) -> MemoryFlags:
    """Return the flags for an event: Cursor starts a hook anywhere and lists the workspace in the event."""
    roots = event.get("workspace_roots")
    if where["workspace"] is not None or not _is_cursors(event) or not isinstance(roots, list) or not roots:
        return where
    return {**where, "workspace": Path(roots[0])} if isinstance(roots[0], str) else where


def _first_text(event: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of these members that is a string."""
    return next((text for name in names if isinstance(text := event.get(name), str)), None)


def _event() -> dict[str, Any]:
    """Read the event on standard input.

    Raises:
        ConfigInvalid: it is missing or invalid.
    """
    try:
        event = json.loads(_input())
    except (ValueError, RecursionError, OSError):
        raise ConfigInvalid("invalid event on standard input: not JSON") from None
    if not isinstance(event, dict):
        raise ConfigInvalid('invalid event on standard input: expected an object with a string "prompt"')
    return event


def _input() -> bytes:
    """Read standard input to its end.

    Bypass the buffer of `sys.stdin`: a thread that waits inside it would abort the program at exit.
    """
    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    data = bytearray()
    while len(data) < MAX_EVENT_BYTES and (block := stream.read(MAX_EVENT_BYTES - len(data))):
        data += block
    return bytes(data)


def _answer(text: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the response for the host of an event: only accepted members; `{}` for an empty text.

    Codex rejects unknown members, and turns an empty text into a message. Claude Code rejects
    `hookSpecificOutput` for events that accept no context. Gemini CLI reads standard error if the output is
    empty.
    """
    name = event.get("hook_event_name")
    if not text:
        return {}
    if not isinstance(name, str):
        return {"additionalContext": text}
    if _is_cursors(event):
        return {"continue": True, "additional_context": text}
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}


@contextmanager
def _opened(where: MemoryFlags, terms: _RecallTerms, *, asks: bool) -> Iterator[tuple[Place, Recaller]]:
    """Open the memory and its recaller; raise as `find_place`."""
    from muniment.opening import recaller_of

    with place_at(where, asks=asks, reads=True, advises=False) as place:
        if terms.scope is not None and terms.scope not in place.policy.scopes:
            scopes = ", ".join(place.policy.scopes)
            raise InvalidScope(f"unknown scope {terms.scope!r}; use one of {scopes}")
        with closing(recaller_of(place)) as recaller:
            yield place, recaller


def _recalled(
    recaller: Recaller, query: str, terms: _RecallTerms, patience: Patience, told: Collection[EntryKey] = ()
) -> Recalled:
    """Recall entries for a query.

    Args:
        recaller: the recaller of the memory.
        query: the text to search for.
        terms: the limits.
        patience: deadline of the search.
        told: entries to exclude in addition.
    """
    return recaller.recall(
        query,
        exclude={*recaller.keys_of(terms.exclude), *told},
        scopes=None if terms.scope is None else [terms.scope],
        limit=terms.limit,
        budget=terms.budget,
        patience=patience,
        needs_entry=True,
    )
