"""`muniment remember`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

from muniment import api
from muniment.agent.model import Message
from muniment.agent.runner import Observer, ToolDecision, Witness
from muniment.cancelling import Cancel
from muniment.cli.projects import ask_which_memory
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    ModelFlags,
    configure_logging,
    forget_key,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.content.gates import one_line, visible
from muniment.errors import Cancelled, ConfigInvalid, InvalidContent, MunimentError
from muniment.jobs.job import id_of_task
from muniment.jobs.remember import KIND
from muniment.jobs.request import RememberReport, RememberRequest
from muniment.kernel.names import Enforcement
from muniment.names import MAX_FACT_BYTES
from muniment.sandbox import Sandbox
from muniment.settings import parse_roots, read_settings
from muniment.signatures import load_configured
from muniment.store.commit import Commit
from muniment.store.tasks import note
from muniment.tools.calls import TOOLS

# -- transcript --------------------------------------------------------------------------------------
#
# `--transcript FILE`: what was said between model and run, one JSON object a line, written as it is said.

_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC"))
)
"""Windows has neither of the last."""


@contextmanager
def writing(path: Path | None, outside: Iterable[Path]) -> Iterator[Witness]:
    """Witness a run into a new file that only its owner can read; into nothing for None.

    A file that cannot be written any more is told on standard error, once, and ends no run. One to which
    nothing was written is taken away again.

    Args:
        path: the file to make.
        outside: directories that it may not lie in: a run that reads its own transcript knows every fact.

    Raises:
        ConfigInvalid: there is something at `path` already, it lies in one of `outside`, or no file can be
            made there.
    """
    if path is None:
        yield lambda _: None
        return
    where = path.parent.resolve()
    if any(where.is_relative_to(root.resolve()) for root in outside):
        raise ConfigInvalid(f"the transcript {str(path)!r} would lie in the memory; name a file elsewhere")
    try:
        file = os.fdopen(os.open(path, _FLAGS, 0o600), "w", encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid(f"the transcript {str(path)!r} cannot be made: {error.strerror}") from None
    try:
        yield to_file(file)
    finally:
        is_empty = os.fstat(file.fileno()).st_size == 0 if not file.closed else False
        _close(file)
        if is_empty:
            path.unlink(missing_ok=True)


def to_file(file: TextIO) -> Witness:
    """Write each message to `file`, until that fails."""

    def witness(message: Message) -> None:
        if file.closed:
            return
        kind = type(message).__name__.removesuffix("Message").lower()
        try:
            # In ASCII, so that half a character which a model made up can be written as well.
            print(json.dumps({"from": kind, **asdict(message)}), file=file, flush=True)
        except (OSError, TypeError, ValueError, RecursionError) as error:
            _close(file)
            print(f"the transcript ends here: {error}", file=sys.stderr)

    return witness


def _close(file: TextIO) -> None:
    """Close `file`. What a write could not say, closing cannot either; that was told when it was written."""
    with suppress(OSError):
        file.close()


# -- remember ----------------------------------------------------------------------------------------

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
class RememberArguments:
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
    expires: str | None
    json: bool


def run_remember(asked: RememberArguments) -> int:
    """Remember what was asked; the exit code."""
    configure_logging()
    with Cancel() as cancel:
        try:
            # Both before the handler: a read goes on after one, and Ctrl-C must end a wait for the fact on
            # standard input, or for a key that somebody has to unlock.
            fact = _read_fact(asked.fact)
            ask_which_memory(asked.workspace, asked.roots, as_json=asked.json)
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
                    expires=asked.expires,
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


def _report(result: RememberReport, *, as_json: bool) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # What is done is done; it only remains to say so.
    say_notes(result.notes)
    if as_json:
        print_document(result.as_json())
    elif result.error is not None:
        print_failure(result.error, as_json=False, what="not saved")
    elif result.unchanged or result.repeated:
        say(visible(result.summary))
    else:
        would = "would be " if result.status == "dry_run" else ""
        for change in result.changes:
            if change.superseded is not None:
                say(f'{would}updated: {change.path} (was: "{change.superseded.was}")')
            else:
                say(f"{would}saved ({'new' if change.kind == 'create' else 'changed'}): {change.path}")
        if result.expires is not None:
            say(f"  it ends: from {result.expires} on it is no longer told")
        say(
            f"  {visible(one_line(result.decided_by))}, {result.turns} turns, {result.seconds:.2f} s, "
            f"policy {result.policy}, enforcement {_enforcement(result)}"
        )
    if result.detail is not None and not as_json:
        say(result.detail)
    if result.status == "cancelled":
        return EXIT_CANCELLED
    return 0 if result.error is None else EXIT_FAILED


def _enforcement(result: RememberReport) -> str:
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


# -- tool --------------------------------------------------------------------------------------------
#
# `muniment tool`: the five tools as JSON lines, for harnesses in any language.

MAX_LINE_BYTES: Final = 64 << 20
"""Bytes of one request line; longer input ends the program."""


def serve(
    policy: str, roots: list[str], symlinks: str, state: Path | None, *, in_process: bool, commit: bool
) -> int:
    """Answer each line of standard input with a line; commit at the end if asked for."""
    configure_logging()
    try:
        loaded = load_configured(read_settings(os.environ, policy=policy))
        with Sandbox(
            loaded, parse_roots(roots), symlinks=symlinks, state=state, in_process=in_process
        ) as box:
            while line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    _print({"verdict": "error", "code": "too_large", "text": "the line is too long"})
                    return 1
                if line.strip():
                    _print(_answer(box, line))
            if commit:
                _report_tools(box.commit())
    except MunimentError as error:
        print(f"{visible(str(error))} [{error.code}]", file=sys.stderr)
        return 1
    return 0


def _answer(box: Sandbox, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or set(request) != {"tool", "args"}:
        text = 'a request is a JSON object {"tool": …, "args": {…}} on one line'
        return {"verdict": "error", "code": "bad_arguments", "text": text}
    outcome = box.call(request["tool"], request["args"])
    return {"verdict": outcome.verdict, "code": outcome.code, "text": outcome.text}


def _report_tools(done: Commit) -> None:
    """What was committed, on standard error: standard output holds one answer a request."""
    for line in (*(f"committed: {change.path}" for change in done.changes), *done.notes):
        print(visible(line), file=sys.stderr)


def _print(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)
