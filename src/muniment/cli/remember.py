"""Implement `muniment remember` and `muniment tool`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from muniment.cli.command import Report, command, drop_key, load_settings, parse_flags
from muniment.cli.display import describe_entry, describe_fact, quote_fact, wrap_words
from muniment.cli.options import (
    Color,
    Expires,
    Json,
    PolicyName,
    Roots,
    RunFlags,
    Symlinks,
    Verbose,
    Workspace,
    create_scope_option,
)
from muniment.cli.terminal import print_notes
from muniment.content.gates import clean_foreign_line, escape_invisible
from muniment.errors import ConfigInvalid, InvalidContent
from muniment.files import CREATE_FLAGS, PRIVATE
from muniment.kernel.names import Enforcement, Trust
from muniment.names import MAX_FACT_BYTES

if TYPE_CHECKING:
    from muniment.agent.model import Message
    from muniment.agent.runner import Witness
    from muniment.api import Memory
    from muniment.cancelling import Cancel
    from muniment.sandbox.sandbox import Sandbox
    from muniment.types import RememberRequest, RememberResult

# -- transcript --------------------------------------------------------------------------------------
#
# `--transcript FILE`: the messages between model and run, one JSON object per line, written immediately.


@contextmanager
def open_transcript(path: Path | None, memory_roots: Iterable[Path]) -> Iterator[Witness]:
    """Open a new private file for the transcript of a run; yield a function that writes messages to it.

    For the path None, the function does nothing. If the file can no longer be written, this is reported once
    on standard error, and the run continues. A file without messages is removed at the end.

    Args:
        path: path of the file to create; None: write no transcript.
        memory_roots: directories that must not contain the file: a run that could read its own transcript
            would find every fact in it.

    Raises:
        ConfigInvalid: `path` exists, is inside one of `memory_roots`, or cannot be created.
    """
    if path is None:
        yield lambda _: None
        return
    where = path.parent.resolve()
    if any(where.is_relative_to(root.resolve()) for root in memory_roots):
        raise ConfigInvalid(f"the transcript {str(path)!r} is inside the memory; use a file outside of it")
    try:
        file = os.fdopen(os.open(path, CREATE_FLAGS, PRIVATE), "w", encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid(f"the transcript {str(path)!r} cannot be created: {error.strerror}") from None
    try:
        yield create_witness(file)
    finally:
        is_empty = os.fstat(file.fileno()).st_size == 0 if not file.closed else False
        _close(file)
        if is_empty:
            path.unlink(missing_ok=True)


def create_witness(file: TextIO) -> Witness:
    """Return a function that writes each message of a run to `file` as a JSON line, until a write fails."""

    def witness(message: Message) -> None:
        if file.closed:
            return
        kind = type(message).__name__.removesuffix("Message").lower()
        try:
            # In ASCII, so that a lone surrogate from a model can be written.
            print(json.dumps({"from": kind, **asdict(message)}), file=file, flush=True)
        except (OSError, TypeError, ValueError, RecursionError) as error:
            _close(file)
            print(f"the transcript stops here: {error}", file=sys.stderr)

    return witness


def _close(file: TextIO) -> None:
    """Close `file` without raising an error: a failed write was already reported."""
    with suppress(OSError):
        file.close()


# -- remember ----------------------------------------------------------------------------------------

MAX_INPUT_BYTES: Final = 2 * MAX_FACT_BYTES
"""Maximum bytes of standard input: the longest fact, and as much white space around it, which is removed."""

Transcript = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the messages between model and run to a new file."),
]

FAILED_DOCUMENT: Final[Mapping[str, Any]] = MappingProxyType(
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
"""The keys of the JSON document for a request whose run could not start, with their values."""


@command("not saved", interrupt_message="nothing was written", default_keys=FAILED_DOCUMENT)
def remember(  # noqa: PLR0913  every argument is an option of the command
    *,
    fact: Annotated[str, typer.Argument(help="The fact, or - to read it from standard input.")],
    scope: Annotated[str | None, create_scope_option(help="Write only to this scope.")] = None,
    workspace: Workspace = None,
    context: Annotated[
        str, typer.Option(metavar="workspace|clean", help="clean: the agent sees no existing entries.")
    ] = "workspace",
    flags: RunFlags,
    task_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Your id for this task; it is not carried out twice for the same id."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and report; commit nothing.")] = False,
    transcript: Transcript = None,
    detail: Annotated[bool, typer.Option("--detail", help="Also print the model's last text.")] = False,
    expires: Expires = None,
    verbose: Verbose = False,
    color: Color = None,  # noqa: ARG001  `command` uses it
    json: Json = False,
) -> Report:
    """Remember a fact."""
    from muniment import api
    from muniment.cancelling import Cancel
    from muniment.cli.which_memory import ask_which_memory
    from muniment.operations.job import choose_task_id
    from muniment.operations.remember_job import KIND
    from muniment.types import RememberRequest

    with Cancel() as cancel:
        # Both steps run before the signal handler is installed. They may wait: for the fact on standard
        # input, or for a key that the user must unlock. Ctrl-C must end such a wait, but with the handler the
        # wait would continue.
        text = _read_fact(fact)
        ask_which_memory(load_settings({"root": flags["root"] or []}), workspace, as_json=json)
        with api.open(workspace, **parse_flags(flags)) as memory:
            drop_key()
            print_notes(memory.context.notes)
            signal.signal(signal.SIGINT, lambda *_: cancel.set())
            request = RememberRequest(
                text,
                scope,
                context,
                dry_run=dry_run,
                task_id=choose_task_id(KIND, task_id),
                detail=detail,
                expires=expires,
            )
            result = _run_request(memory, request, transcript, cancel)
            similar = [describe_entry(memory.context, each.path) for each in result.similar]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The task is finished; only the output remains.
    print_notes(each for each in result.notes if each not in memory.context.advice)
    return Report(
        result.as_json,
        _format_result(result, request.content, similar, verbose=verbose),
        error=result.error,
        remarks=[f"note: {clean_foreign_line(each)}" for each in memory.context.advice],
    )


def _run_request(
    memory: Memory, request: RememberRequest, transcript: Path | None, cancel: Cancel
) -> RememberResult:
    """Run a request, and return its result.

    Args:
        memory: the opened memory.
        request: the request.
        transcript: the file for the messages of the run; None: no file.
        cancel: the token that Ctrl-C cancels.
    """
    from muniment.store.tasks import record_transcript

    roots = [root.trusted_path for root in memory.context.roots.values()]
    with open_transcript(transcript, roots) as witness:
        if transcript is not None:
            record_transcript(memory.context.state, request.task_id or "", transcript)
        return memory.try_remember(request, cancel=cancel, witness=witness)


def _read_fact(argument: str) -> str:
    """Return the fact: the argument itself, or for `-` the text on standard input.

    Raises:
        InvalidContent: standard input has more than `MAX_INPUT_BYTES`, or is not UTF-8.
    """
    if argument != "-":
        return argument
    data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidContent(f"standard input is too long: a fact may have at most {MAX_FACT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidContent("standard input is not UTF-8 text") from None


def _format_result(
    result: RememberResult, fact: str, similar: Sequence[str], *, verbose: bool
) -> Iterator[str]:
    """Yield the lines of a result: one for each entry, and more only if something is unusual.

    Args:
        result: the result.
        fact: the text of the request.
        similar: the similar entries, each as `describe_entry` returns it.
        verbose: whether to print also policy, turns, time and confinement.
    """
    if result.error is None:
        yield from _format_changes(result, fact)
        for each in similar:
            yield from wrap_words(f"  similar entry, not changed: {each}", indent=4)
        if result.expires is not None:
            yield f"  expires: hidden after {result.expires}"
        if result.ends is not None:
            yield f"  ends on {result.ends}, according to its text; after that date recall marks it as ended"
        is_unusual = result.enforcement not in {Enforcement.FULL, None} and not result.unchanged
        if verbose or is_unusual:
            yield from wrap_words(f"  confinement {_format_enforcement(result)}", indent=4)
        if verbose:
            yield from wrap_words(
                f"  decided by {clean_foreign_line(result.decided_by)}, {result.turns} turns, "
                f"{result.seconds:.2f} s, policy {result.policy}, task {clean_foreign_line(result.task_id)}",
                indent=4,
            )
            yield from (f"  {clean_foreign_line(path)}" for path in result.files_touched)
    if result.detail is not None:
        yield result.detail


def _format_changes(result: RememberResult, fact: str) -> Iterator[str]:
    from muniment.operations.visibility import ALREADY_KNOWN

    if result.unchanged:
        known = result.summary.startswith(ALREADY_KNOWN)
        yield from wrap_words(f"already known: {quote_fact(fact)}" if known else result.summary, indent=2)
        return
    would = "would be " if result.status == "dry_run" else ""
    trust = "" if result.trust in {Trust.OWNER, None} else f"trust {result.trust}"
    for change in result.changes:
        if change.kind == "delete":  # It was renamed.
            continue
        text = describe_fact(change.title, change.path, change.handle, trust)
        verb = "saved" if change.kind == "create" and change.renamed_from is None else "changed"
        if change.superseded is not None:
            text, verb = f"{quote_fact(change.superseded.previous_text)} → {text}", "updated"
        verb = f"already {verb} by this task" if result.repeated else f"{would}{verb}"
        yield from wrap_words(f"{verb}: {text}", indent=2)
    if result.repeated and not result.changes:
        yield escape_invisible(result.summary)


def _format_enforcement(result: RememberResult) -> str:
    """Return the confinement of the run as text; if it is partial, with the missing layers."""
    if result.enforcement is not Enforcement.PARTIAL:
        return str(result.enforcement)
    return f"{result.enforcement} (without {', '.join(result.missing_layers)}; see muniment doctor)"


# -- tool --------------------------------------------------------------------------------------------
#
# `muniment tool`: the five tools as JSON lines, for harnesses in any language.

MAX_LINE_BYTES: Final = 64 << 20
"""Maximum bytes of one request line; a longer line ends the program."""


@command("", has_json=False)
def tool(
    *,
    root: Roots = None,
    policy: PolicyName = None,
    symlinks: Symlinks = None,
    state: Annotated[Path | None, typer.Option(help="Directory for the state of Muniment.")] = None,
    in_process: Annotated[
        bool,
        typer.Option("--in-process", help='Run without a worker; the policy must contain require = "none".'),
    ] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the changes at the end of input.")] = False,
) -> int:
    """Run tool calls that standard input contains as JSON lines.

    Each line is an object with "tool" and "args". The response to each is a line with "verdict", "code" and
    "text". Bind every directory with --root: this command does not use the default directories.
    """
    from muniment.sandbox.sandbox import Sandbox
    from muniment.settings import load_configured_policy, parse_roots, read_settings

    loaded = load_configured_policy(read_settings(os.environ, policy=policy or "strict"))
    roots, links = parse_roots(root or ()), symlinks or "refuse"
    with Sandbox(loaded, roots, symlinks=links, state=state, in_process=in_process) as box:
        while line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                _print_json(
                    {
                        "verdict": "error",
                        "code": "too_large",
                        "text": "the line is too long: at most 64 MiB are allowed",
                    }
                )
                return 1
            if line.strip():
                _print_json(_call_tool(box, line))
        if commit:  # On standard error: standard output contains one response per request.
            done = box.commit()
            for message in (*(f"committed: {change.path}" for change in done.changes), *done.notes):
                print(escape_invisible(message), file=sys.stderr)
    return 0


def _call_tool(sandbox: Sandbox, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or set(request) != {"tool", "args"}:
        text = 'invalid request: expected a JSON object {"tool": …, "args": {…}} on one line'
        return {"verdict": "error", "code": "bad_arguments", "text": text}
    outcome = sandbox.call(request["tool"], request["args"])
    return {"verdict": outcome.verdict, "code": outcome.code, "text": outcome.text}


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)
