"""`muniment recall`: for a person, for a program, and as a hook of a host that cannot import us.

Each host is answered as its own documents say, told apart by what stands in its event, so that one command
serves all of them. An answer that holds more is refused by Codex, and by Claude Code for some events.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from muniment.cli.inspect import MemoryArguments
from muniment.cli.projects import ask_which_memory
from muniment.cli.terminal import (
    configure_logging,
    on_one_line,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.content.gates import visible
from muniment.errors import InvalidScope, MunimentError
from muniment.jobs.place import Place
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Digest, RelPath
from muniment.opening import find_place
from muniment.recall.recaller import Recaller, Recollection
from muniment.recall.search import EntryKey
from muniment.settings import parse_roots, read_settings
from muniment.store.ledger import RootKey
from muniment.store.told import HookSession, ToldEntry

HOOK_SECONDS: Final = 4.0
"""Seconds until a hook answers, whatever goes on; with the start of the program fewer than 5."""

AFTER_SECONDS: Final = 0.5
"""Seconds that remain then to keep what was told; it takes milliseconds, unless another process writes."""

MAX_EVENT_BYTES: Final = 4 << 20
"""Bytes of a hook's event that are read."""

MAX_HOOK_TOKENS: Final = 3_300
"""Of a hook's text, whatever budget is asked for: 9 900 bytes. Claude Code and Cursor take 10 000 characters,
and Codex cuts what is longer than about that (docs/setup.md names their pages)."""


@dataclass(frozen=True, slots=True)
class RecallArguments:
    """The command line of a recall."""

    query: str
    limit: int
    budget: int
    exclude: tuple[str, ...]
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


class _NoEvent(Exception):
    """Standard input holds nothing that can be answered; the text says why."""


def run_recall(where: MemoryArguments, asked: RecallArguments) -> int:
    """Recall, and print what came of it; the exit code."""
    configure_logging()
    try:
        ask_which_memory(where.workspace, where.roots, as_json=where.json)
        with _opened(where, asked) as (_, recaller):
            recalled = _recalled(recaller, asked, Patience(float("inf")))
        if recalled.error is not None:
            raise recalled.error
    except MunimentError as error:
        return print_failure(error, as_json=where.json, what="not recalled")
    if where.json:
        print_document(recalled.as_json())
    elif recalled.entries:
        for entry in recalled.entries:
            say(f"{on_one_line(entry.path)} (trust: {entry.trust}, {entry.at:%Y-%m-%d})")
            for line in entry.text.splitlines():
                say(f"  {visible(line)}".rstrip())
    else:
        say("nothing in the memory is about that")
    return 0


def answer_hook(where: MemoryArguments, asked: RecallArguments) -> int:
    """Answer the event on standard input with what helps with its prompt; 0, whatever happens.

    What a session was told is kept once the answer is printed: who is killed before may be told it again, and
    nobody misses what was never said. Why nothing could be recalled is said on standard error.
    """
    configure_logging()
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
            _hooked(where, asked, Patience(end), give)
        except (MunimentError, _NoEvent) as error:
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


def _hooked(where: MemoryArguments, asked: RecallArguments, patience: Patience, give: _Give) -> None:
    """Answer an event; raises where nothing can be recalled."""
    event = _event()
    prompt, unsafe_id = _first_text(event, _PROMPTS), _first_text(event, _SESSIONS)
    name = event.get("hook_event_name")
    is_turn = isinstance(name, str) and _ANEW.search(name) is not None
    if prompt is None and not is_turn:
        raise _NoEvent('the event on standard input is no object with a text as "prompt"')
    with _opened(_where(where, event), asked) as (place, recaller):
        session = HookSession(place.state, unsafe_id) if unsafe_id else None
        if session is not None and is_turn and event.get("source") != _AGAIN:
            session.clear()
        if prompt is None:
            give({})
            return
        told = () if session is None else session.told(datetime.now(UTC), patience)
        exclude = [EntryKey(RootKey(each.root), RelPath(each.rel), Digest(each.digest)) for each in told]
        within = replace(asked, query=prompt, budget=min(asked.budget, MAX_HOOK_TOKENS))
        recalled = _recalled(recaller, within, patience, exclude)
        if recalled.error is not None:
            raise recalled.error
        if give(_answer(recalled.text, event)) and recalled.entries:
            if session is not None:
                session.tell([ToldEntry(*key) for key in recalled.keys], datetime.now(UTC))
            recaller.record(recalled, "hook")


def _is_cursors(event: dict[str, Any]) -> bool:
    return "cursor_version" in event or "conversation_id" in event


def _where(where: MemoryArguments, event: dict[str, Any]) -> MemoryArguments:
    """Which memory an event means: Cursor starts a hook anywhere and names the workspace."""
    roots = event.get("workspace_roots")
    if where.workspace is not None or not _is_cursors(event) or not isinstance(roots, list) or not roots:
        return where
    return replace(where, workspace=Path(roots[0])) if isinstance(roots[0], str) else where


def _first_text(event: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these members that is a text."""
    return next((text for name in names if isinstance(text := event.get(name), str)), None)


def _event() -> dict[str, Any]:
    """The event on standard input.

    Raises:
        _NoEvent: there is none.
    """
    try:
        event = json.loads(_input())
    except (ValueError, RecursionError, OSError):
        raise _NoEvent("there is no JSON on standard input") from None
    if not isinstance(event, dict):
        raise _NoEvent('the event on standard input is no object with a text as "prompt"')
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
def _opened(where: MemoryArguments, asked: RecallArguments) -> Iterator[tuple[Place, Recaller]]:
    """The memory, and what recalls from it; raises as `find_place`."""
    settings = read_settings(os.environ, policy=where.policy, roots=parse_roots(where.roots))
    with closing(find_place(settings, where.workspace, create=False, reads=True)) as place:
        say_notes(place.notes)
        if asked.scope is not None and asked.scope not in place.policy.scopes:
            scopes = ", ".join(place.policy.scopes)
            raise InvalidScope(f"there is no scope {asked.scope!r}; there are {scopes}")
        with closing(Recaller(place.policy, place.roots, place.state)) as recaller:
            yield place, recaller


def _recalled(
    recaller: Recaller, asked: RecallArguments, patience: Patience, told: Collection[EntryKey] = ()
) -> Recollection:
    """What is recalled.

    Args:
        recaller: recalls.
        asked: what, and how much.
        patience: until when to look.
        told: what is left out besides.
    """
    return recaller.recall(
        asked.query,
        exclude={*recaller.keys_of(asked.exclude), *told},
        scopes=None if asked.scope is None else [asked.scope],
        limit=asked.limit,
        budget=asked.budget,
        patience=patience,
    )
