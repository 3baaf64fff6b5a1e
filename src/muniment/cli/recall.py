"""`muniment recall`: for a person, for a program, and as a hook of a host that cannot import us.

Each host is answered as its own documents say, told apart by what stands in its event, so that one command
serves all of them. An answer that holds more is refused by Codex, and by Claude Code for some events.
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
"""Seconds until a hook answers, whatever goes on; with the start of the program fewer than 5."""

AFTER_SECONDS: Final = 0.5
"""Seconds that remain then to keep what was told; it takes milliseconds, unless another process writes."""

MAX_EVENT_BYTES: Final = 4 << 20
"""Bytes of a hook's event that are read."""

MAX_HOOK_TOKENS: Final = 3_300
"""Of a hook's text, whatever budget is asked for: 9 900 bytes. Claude Code and Cursor take 10 000 characters,
and Codex cuts what is longer than about that (docs/setup.md names their pages)."""


class _RecallTerms(NamedTuple):
    """How much is recalled, and what of."""

    limit: int
    budget: int
    exclude: list[str]
    scope: str | None


_ANEW: Final = re.compile(r"compact|compress|^session_?start$", re.IGNORECASE)
"""In the name of an event: its conversation loses what it was told, or begins."""

_AGAIN: Final = "resume"
"""The `source` of a session's start that brings the old conversation back, with what it was told."""

_PROMPTS: Final = ("submitted_prompt", "prompt")
"""Where an event has the words of the user, the best first: Qwen Code's `prompt` may hold what it added."""

_SESSIONS: Final = ("session_id", "conversation_id")
"""Where an event names its conversation; Cursor has the second."""

_Give = Callable[[dict[str, Any]], bool]
"""Answers; whether the answer was printed in time."""


# -- the command -------------------------------------------------------------------------------------


@command("not recalled")
def recall(
    *,
    words: Annotated[
        list[str] | None, typer.Argument(help="A message, or some words of what is meant.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Entries at most.")] = 5,
    budget: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Tokens of the text at most.")] = 2_000,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="An entry that was shown, by its id in --json. May be repeated."),
    ] = None,
    scope: Annotated[str | None, typer.Option(help="The one scope to look in.")] = None,
    where: MemoryFlags,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help="Answer a coding tool's JSON event on standard input with what helps with its prompt.",
        ),
    ] = False,
) -> Report | int:
    """Recall what helps with a message.

    With --hook the exit code is 0 and an answer is there within 5 seconds, whatever goes wrong.
    """
    from muniment.kernel.cancel import Patience
    from muniment.types.documents import document

    query, terms = " ".join(words or []), _RecallTerms(limit, budget, exclude or [], scope)
    if hook:
        if words or where["json"]:
            raise typer.BadParameter("it reads what is asked from standard input", param_hint="--hook")
        return _answer_hook(where, terms)
    if not query.strip():
        raise typer.BadParameter("say what to recall", param_hint="WORDS")
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
        yield "nothing in the memory is about that"
    for note in recalled.notes:
        yield f"note: {on_one_line(note)}"


# -- the hook ----------------------------------------------------------------------------------------


def _answer_hook(where: MemoryFlags, terms: _RecallTerms) -> int:
    """Answer the event on standard input with what helps with its prompt; 0, whatever happens.

    What a session was told is kept once the answer is printed: who is killed before may be told it again, and
    nobody misses what was never said. Why nothing could be recalled is said on standard error.
    """
    # What it takes to recall is loaded before the clock runs, as the start of the program that it is.
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
            reasons.append("a defect" if is_ready else f"it took more than {HOOK_SECONDS:g} s")
        print(f"nothing was recalled: {on_one_line(reasons[0])}", file=sys.stderr)
    try:
        print_document(given[0] if given else {}, indent=None)
        printed += given
    finally:
        over.set()
    thread.join(max(0.0, end - time.monotonic()) + AFTER_SECONDS)
    return 0


def _hooked(where: MemoryFlags, terms: _RecallTerms, patience: Patience, give: _Give) -> None:
    """Answer an event; raises where nothing can be recalled."""
    from muniment.store.told import HookSession
    from muniment.types.keys import EntryKey, RootKey

    event = _event()
    prompt, unsafe_id = _first_text(event, _PROMPTS), _first_text(event, _SESSIONS)
    name = event.get("hook_event_name")
    is_turn = isinstance(name, str) and _ANEW.search(name) is not None
    if prompt is None and not is_turn:
        raise ConfigInvalid('the event on standard input is no object with a text as "prompt"')
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
    """Which memory an event means: Cursor starts a hook anywhere and names the workspace."""
    roots = event.get("workspace_roots")
    if where["workspace"] is not None or not _is_cursors(event) or not isinstance(roots, list) or not roots:
        return where
    return {**where, "workspace": Path(roots[0])} if isinstance(roots[0], str) else where


def _first_text(event: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these members that is a text."""
    return next((text for name in names if isinstance(text := event.get(name), str)), None)


def _event() -> dict[str, Any]:
    """The event on standard input.

    Raises:
        ConfigInvalid: there is none.
    """
    try:
        event = json.loads(_input())
    except (ValueError, RecursionError, OSError):
        raise ConfigInvalid("there is no JSON on standard input") from None
    if not isinstance(event, dict):
        raise ConfigInvalid('the event on standard input is no object with a text as "prompt"')
    return event


def _input() -> bytes:
    """Standard input, to its end.

    Past the buffer of `sys.stdin`: a thread that waits in there would end the program with an abort.
    """
    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    data = bytearray()
    while len(data) < MAX_EVENT_BYTES and (block := stream.read(MAX_EVENT_BYTES - len(data))):
        data += block
    return bytes(data)


def _answer(text: str, event: dict[str, Any]) -> dict[str, Any]:
    """What the host of an event reads: nothing but what it accepts, and `{}` where there is nothing to tell.

    Codex refuses members that it does not know, and makes a message of a text that is empty; Claude Code
    refuses `hookSpecificOutput` of events that take no context; Gemini CLI takes standard error where there
    is no output.
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
    """The memory, and what recalls from it; raises as `find_place`."""
    from muniment.opening import recaller_of

    with place_at(where, asks=asks, reads=True, advises=False) as place:
        if terms.scope is not None and terms.scope not in place.policy.scopes:
            scopes = ", ".join(place.policy.scopes)
            raise InvalidScope(f"there is no scope {terms.scope!r}; there are {scopes}")
        with closing(recaller_of(place)) as recaller:
            yield place, recaller


def _recalled(
    recaller: Recaller, query: str, terms: _RecallTerms, patience: Patience, told: Collection[EntryKey] = ()
) -> Recalled:
    """What is recalled.

    Args:
        recaller: recalls.
        query: what is asked.
        terms: how much.
        patience: until when to look.
        told: what is left out besides.
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
