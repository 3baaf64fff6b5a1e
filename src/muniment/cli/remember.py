"""`muniment remember`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from muniment import api
from muniment.agent.runner import Observer, ToolDecision
from muniment.cli.model import ModelFlags, forget_key
from muniment.cli.report import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    configure_logging,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.cli.transcript import writing
from muniment.confine.cancel import Cancel
from muniment.content.gates import one_line, visible
from muniment.errors import Cancelled, InvalidContent, MunimentError
from muniment.jobs.place import id_of_task
from muniment.jobs.remember import KIND
from muniment.jobs.request import RememberRequest, RememberResult
from muniment.names import MAX_FACT_BYTES, Enforcement
from muniment.settings import parse_roots
from muniment.store.tasks import note
from muniment.tools.calls import TOOLS

MAX_INPUT_BYTES: Final = 2 * MAX_FACT_BYTES
"""Bytes of standard input: a fact, and as much white space around it, which is trimmed."""

BLANK: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "task_id": None,
        "status": "failed",
        "summary": "",
        "files_touched": [],
        "touched_scopes": [],
        "enforcement": None,
        "missing_layers": [],
        "decided_by": None,
        "trust": None,
        "turns": 0,
        "seconds": 0.0,
        "timeline": [],
        "policy": None,
        "error": None,
    }
)
"""The document of a request for which no run could begin."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line."""

    fact: str
    scope: str | None
    context: str
    workspace: Path | None
    policy: str | None
    roots: list[str]
    symlinks: str | None
    model: ModelFlags
    transcript: Path | None
    task_id: str | None
    dry_run: bool
    detail: bool
    json: bool


def run(asked: Asked) -> int:
    """Remember what was asked; the exit code."""
    configure_logging()
    with Cancel() as cancel:
        try:
            # Both before the handler: a read goes on after one, and Ctrl-C must end a wait for the fact on
            # standard input, or for a key that somebody has to unlock.
            fact = _read_fact(asked.fact)
            with api.open(
                asked.workspace,
                policy=asked.policy,
                roots=parse_roots(asked.roots),
                symlinks=asked.symlinks,
                **asked.model,
            ) as memory:
                forget_key()
                say_notes(memory.place.notes)
                signal.signal(signal.SIGINT, lambda *_: cancel.set())
                request = RememberRequest(
                    fact,
                    asked.scope,
                    asked.context,
                    dry_run=asked.dry_run,
                    task_id=id_of_task(KIND, asked.task_id),
                    detail=asked.detail,
                )
                roots = [root.trusted_path for root in memory.place.roots.values()]
                with writing(asked.transcript, roots) as witness, _progress() as observe:
                    if asked.transcript is not None:
                        note(memory.place.state, request.task_id or "", asked.transcript)
                    result = memory.attempt(request, cancel=cancel, observe=observe, witness=witness)
        except MunimentError as error:
            return print_failure(error, as_json=asked.json, what="not saved", blank=BLANK)
        except KeyboardInterrupt:
            stopped = Cancelled("nothing was written")
            return print_failure(stopped, as_json=asked.json, what="not saved", blank=BLANK)
    return _report(result, as_json=asked.json)


def _read_fact(argument: str) -> str:
    """The fact itself, or standard input for `-`; read no further than `MAX_INPUT_BYTES`."""
    if argument != "-":
        return argument
    data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidContent(f"standard input is too long; a fact may have {MAX_FACT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidContent("standard input is not UTF-8 text") from None


def _report(result: RememberResult, *, as_json: bool) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # What is done is done; it only remains to say so.
    say_notes(result.notes)
    if as_json:
        print_document(result.as_json())
    elif result.error is not None:
        print_failure(result.error, as_json=False, what="not saved")
    elif result.unchanged or result.repeated:
        say(visible(result.summary))
    else:
        done = "would be saved" if result.status == "dry_run" else "saved"
        for change in result.changes:
            say(f"{done} ({'new' if change.kind == 'create' else 'changed'}): {change.path}")
        say(
            f"  {visible(one_line(result.decided_by))}, {result.turns} turns, {result.seconds:.2f} s, "
            f"policy {result.policy}, enforcement {_enforcement(result)}"
        )
    if result.detail is not None and not as_json:
        say(result.detail)
    if result.status == "cancelled":
        return EXIT_CANCELLED
    return 0 if result.error is None else EXIT_FAILED


def _enforcement(result: RememberResult) -> str:
    """What held the worker, with what was missing where the kernel held less than all."""
    if result.enforcement is not Enforcement.PARTIAL:
        return str(result.enforcement)
    return f"{result.enforcement} (without {', '.join(result.missing_layers)}; see muniment doctor)"


@contextmanager
def _progress() -> Iterator[Observer]:
    """A line on a terminal that says what the agent is doing; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield _telling(status.update)


def _telling(update: Callable[[str], None]) -> Observer:
    def observe(decision: ToolDecision) -> None:
        tool = decision.tool if decision.tool in TOOLS else "unknown tool"
        update(f"turn {decision.turn}: {tool} {decision.outcome.verdict}")

    return observe
