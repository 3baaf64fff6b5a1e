"""`muniment recall`: for a person, for a program, and as a hook of a host that cannot import us."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from muniment.cli.inspect import MemoryArguments
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
from muniment.kernel.cancel import Patience
from muniment.opening import find_place
from muniment.recall.recaller import Recalled, Recaller
from muniment.settings import parse_roots, read_settings

HOOK_SECONDS: Final = 4.0
"""Seconds until a hook answers, whatever goes on; with the start of the program fewer than 5."""

MAX_EVENT_BYTES: Final = 4 << 20
"""Bytes of a hook's event that are read."""


@dataclass(frozen=True, slots=True)
class RecallArguments:
    """The command line of a recall."""

    query: str
    limit: int
    budget: int
    exclude: tuple[str, ...]
    scope: str | None


class _NoEvent(Exception):
    """Standard input holds nothing that can be answered; the text says why."""


def run_recall(where: MemoryArguments, asked: RecallArguments) -> int:
    """Recall, and print what came of it; the exit code."""
    configure_logging()
    try:
        recalled = _recalled(where, asked, Patience(float("inf")))
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

    Why nothing could be recalled is said on standard error.
    """
    configure_logging()
    answers: list[dict[str, Any]] = []

    def work() -> None:
        try:
            answers.append(_hooked(where, asked, Patience(time.monotonic() + HOOK_SECONDS)))
        except (MunimentError, _NoEvent) as error:
            reasons.append(str(error))

    reasons: list[str] = []
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HOOK_SECONDS)
    if not answers:
        if not reasons:
            reasons.append(f"it took more than {HOOK_SECONDS:g} s" if thread.is_alive() else "a defect")
        print(f"nothing was recalled: {on_one_line(reasons[0])}", file=sys.stderr)
    print_document(answers[0] if answers else _answer(""), indent=None)
    return 0


def _hooked(where: MemoryArguments, asked: RecallArguments, patience: Patience) -> dict[str, Any]:
    event = _event()
    recalled = _recalled(where, replace(asked, query=event["prompt"]), patience, record="hook")
    if recalled.error is not None:
        raise recalled.error
    return _answer(recalled.text, event.get("hook_event_name"))


def _event() -> dict[str, Any]:
    """The event on standard input.

    Raises:
        _NoEvent: there is none.
    """
    try:
        event = json.loads(_input())
    except (ValueError, RecursionError, OSError):
        raise _NoEvent("there is no JSON on standard input") from None
    if not isinstance(event, dict) or not isinstance(event.get("prompt"), str):
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


def _answer(text: str, event_name: object = None) -> dict[str, Any]:
    """What a host reads; some look for it below the name of the event."""
    answer: dict[str, Any] = {"additionalContext": text}
    if isinstance(event_name, str):
        answer["hookSpecificOutput"] = {"hookEventName": event_name, "additionalContext": text}
    return answer


def _recalled(
    where: MemoryArguments, asked: RecallArguments, patience: Patience, *, record: str | None = None
) -> Recalled:
    """What is recalled; raises as `find_place`.

    Args:
        where: the memory.
        asked: what, and how much.
        patience: until when to look.
        record: where it is brought in, for the ledger; None: it is not put before a model.
    """
    settings = read_settings(os.environ, policy=where.policy, roots=parse_roots(where.roots))
    with closing(find_place(settings, where.workspace, create=False, reads=True)) as place:
        say_notes(place.notes)
        if asked.scope is not None and asked.scope not in place.policy.scopes:
            scopes = ", ".join(place.policy.scopes)
            raise InvalidScope(f"there is no scope {asked.scope!r}; there are {scopes}")
        with closing(Recaller(place.policy, place.roots, place.state)) as recaller:
            recalled = recaller.recall(
                asked.query,
                exclude=recaller.keys_of(asked.exclude),
                scopes=None if asked.scope is None else [asked.scope],
                limit=asked.limit,
                budget=asked.budget,
                patience=patience,
            )
            if record is not None and recalled.entries:
                recaller.record(recalled, record)
            return recalled
