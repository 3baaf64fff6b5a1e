"""Implement `muniment import`, `export`, `backup` and `restore`."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from muniment.cli.command import Report, command, load_settings, open_command_context
from muniment.cli.display import FactLine, format_facts, format_place, wrap_words
from muniment.cli.options import MemoryFlags, create_scope_option
from muniment.cli.terminal import EXIT_FAILED, cancel_on_interrupt, print_notes
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid, DeadlineExceeded, PlatformUnsupported, printable
from muniment.files import create_file
from muniment.kernel.names import Scope, Trust
from muniment.portable import IS_WINDOWS

if TYPE_CHECKING:
    from muniment.operations.exporting import ExportFormat
    from muniment.operations.fact_changes import FactChange
    from muniment.operations.job_context import JobContext
    from muniment.settings import Settings
    from muniment.transfer.backup import BackupSummary
    from muniment.transfer.import_report import ImportResult
    from muniment.types import CommittedStep


def _require_nofollow() -> None:
    """Check that this system can open a file without following a link; Windows cannot.

    Raises:
        PlatformUnsupported: this system is Windows.
    """
    if IS_WINDOWS:
        raise PlatformUnsupported("not supported on Windows; export or import on Linux (docs/platforms.md)")


# -- import ------------------------------------------------------------------------------------------

AUTO: Final = "auto"

MAX_LISTED: Final = 20
"""Maximum number of items of one kind in the text output; `--json` lists all items."""


@command("not imported", precheck=_require_nofollow)
def import_(
    *,
    path: Annotated[Path, typer.Argument(help="A file, a folder, a zip or an exported tar.")],
    format: Annotated[  # noqa: A002  the option is `--from`
        str,
        typer.Option(
            "--from",
            metavar="auto|markdown|claude-code|mcp-memory|mem0|chatgpt|basic-memory|muniment",
            help="The format.",
        ),
    ] = AUTO,
    trust: Annotated[
        str,
        typer.Option(
            metavar="owner|workspace|agent|external",
            help="Trust of all entries. owner: all text is yours. external: from others; needs review.",
        ),
    ] = "agent",
    scope: Annotated[str | None, create_scope_option(help="Import only into this scope.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and report; write nothing.")] = False,
    where: MemoryFlags,
) -> Report:
    """Import the memory of another tool, or an export.

    Entries that the memory already contains are not written again. Exit 1 if anything was rejected; the rest
    is imported.
    """
    return import_source(path, where, format=format, trust=trust, scope=scope, dry_run=dry_run)


def import_source(
    path: Path,
    where: MemoryFlags,
    *,
    format: str,  # noqa: A002  as the option
    trust: str = "agent",
    scope: str | None = None,
    dry_run: bool = False,
) -> Report:
    """Import a source as `muniment import` does, and return the report.

    Args:
        path: the source.
        where: the options that select the memory.
        format: the format of the source, or `auto`.
        trust: the trust of all entries.
        scope: the scope of all entries; None: the type or the text of an item decides.
        dry_run: whether to check and report only.

    Raises:
        ConfigInvalid: an option is invalid, or the source cannot be read.
    """
    from muniment.transfer.formats import FORMATS
    from muniment.transfer.import_report import ImportRequest
    from muniment.transfer.importing import import_items
    from muniment.transfer.sources import read_source

    if format not in {AUTO, *FORMATS}:
        raise ConfigInvalid(f"unknown --from {printable(format)!r}; use one of {AUTO}, {', '.join(FORMATS)}")
    if trust not in set(Trust):
        raise ConfigInvalid(f"unknown --trust {printable(trust)!r}; use one of {', '.join(Trust)}")
    settings = load_settings(where)
    source = read_source(path, format)
    with open_command_context(
        where, settings=settings, can_ask=not dry_run, create=not dry_run, reads_entries=dry_run
    ) as context:
        to_make = (
            _list_missing_scopes(context, settings, where["workspace"]) if dry_run else frozenset[Scope]()
        )
        request = ImportRequest(source.format, Trust(trust), scope, dry_run, to_make)
        with cancel_on_interrupt() as cancel:
            result = import_items(source.items, request, context, cancel=cancel, files=source.files)
        facts = _list_imported(result, context) if sys.stdout.isatty() and not where["json"] else []
    return Report(
        result.as_json,
        chain(format_facts(facts), _format_import(result, path)),
        result.notes,
        error=result.error,
        failure_prefix="not completed",
        code=EXIT_FAILED if result.refused else 0,
    )


def _list_missing_scopes(context: JobContext, settings: Settings, workspace: Path | None) -> frozenset[Scope]:
    """Return the scopes whose directories do not exist yet, and which an import would create."""
    from muniment.workspaces.projects import find_project

    missing = set(context.policy.scopes) - set(context.roots)
    is_project = workspace is not None or "user" not in context.policy.scopes
    is_project = is_project or find_project(settings.home, Path()).checkout.is_repository
    return frozenset(missing if is_project else missing - {"project"})


def _list_imported(result: ImportResult, context: JobContext) -> list[FactLine]:
    """Return the first facts of an import, for a terminal, and a line with the number of the others."""
    from muniment.cli.history import create_change_line, list_changes
    from muniment.operations.undoable import load_task_steps

    if result.request.dry_run:
        lines = [
            FactLine(each.name, place=format_place(each.path), sign="+")
            for each in result.imported[:MAX_LISTED]
        ]
    else:
        changes: list[tuple[CommittedStep, FactChange]] = []
        for task in result.tasks:
            if len(changes) < MAX_LISTED:
                changes += list_changes(load_task_steps(context, task))
        changes = changes[:MAX_LISTED]
        lines = [
            create_change_line(step, change)._replace(label="", handle=change.handle)
            for step, change in changes
        ]
    others = len(result.imported) - len(lines)
    return [*lines, FactLine(f"and {others} more")] if others > 0 and lines else lines


def _format_import(result: ImportResult, path: Path) -> Iterator[str]:
    from muniment.store.handles import build_task_handle

    is_dry, counts = result.request.dry_run, result.counts
    for verb, outcomes in (("rejected", result.refused), ("skipped", result.not_taken)):
        for each in outcomes[:MAX_LISTED]:
            lines = f":{each.lines}" if each.lines else ""
            text = f"{verb}: {clean_foreign_line(each.name)}{lines} ({clean_foreign_line(each.reason)})"
            yield from wrap_words(text, indent=2)
        if len(outcomes) > MAX_LISTED:
            yield f"  and {len(outcomes) - MAX_LISTED} more {verb}; --json lists them"
    labels = {
        f"{'would be ' if is_dry else ''}imported": counts["imported"],
        "already known": counts["known"],
        f"{'would wait' if is_dry else 'waiting'} for review": counts["held"],
        "rejected": counts["refused"],
        "skipped": counts["not_taken"],
    }
    listed = [f"{label}: {count}" for label, count in labels.items() if count or "imported" in label]
    yield from wrap_words(f"{', '.join(listed)} ({result.request.format}, trust {result.request.trust})", 2)
    if any(each.review for each in result.held):
        yield "  to decide about what waits: muniment review list"
    for task in result.tasks:
        yield f"  to undo it: muniment undo {build_task_handle(task)}"
    if result.lowered:
        command_line = f"muniment import {shlex.quote(str(path))} --trust owner"
        yield from wrap_words(
            f"  {result.lowered} entries claim more trust than {result.request.trust}; "
            f"if you created this export, undo the import and run: {clean_foreign_line(command_line)}",
            indent=2,
        )


# -- export ------------------------------------------------------------------------------------------

_KINDS: Final[Mapping[str, ExportFormat]] = {".tar": "tar", ".jsonl": "jsonl"}


@command("not exported", precheck=_require_nofollow)
def export(
    *,
    to: Annotated[str, typer.Option(metavar="FILE.tar|FILE.jsonl|-", help="A new file, or standard output.")],
    scope: Annotated[str | None, create_scope_option(help="Export only this scope.")] = None,
    where: MemoryFlags,
) -> Report | None:
    """Write every entry with its provenance to one file.

    `import` reads that file. Before anything is written, notes list the data that only `backup` contains.
    """
    from muniment.operations import exporting

    with open_command_context(where, reads_entries=True) as context:
        kind = "jsonl" if to == "-" else _KINDS.get(Path(to).suffix)
        if kind is None or (to == "-" and where["json"]):
            raise ConfigInvalid(
                f"invalid --to {printable(to)!r}: use FILE.tar, FILE.jsonl or - (without --json)"
            )
        collected = exporting.collect(context, kind, scope=scope)
        print_notes(collected.notes)
        with _open_output(to) as file:
            exporting.write(collected, file, kind)
    lines = [
        clean_foreign_line(f"exported {len(collected.entries)} entries to {to}"),
        "  it does not contain history and undo; for these: muniment backup FILE",
    ]
    document = {"file": to, "entries": len(collected.entries), "notes": list(collected.notes)}
    return Report(document, [] if to == "-" else lines)


@contextmanager
def _open_output(target: str) -> Iterator[BinaryIO]:
    """Open a new private file for the block; it gets its name only when it is complete.

    `-` means standard output.

    Raises:
        ConfigInvalid: the file exists, or cannot be written.
    """
    if target == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with create_file(target) as file:
        yield file


# -- backup ------------------------------------------------------------------------------------------

WAIT_SECONDS: Final = 60.0
"""Maximum seconds that a backup waits for other processes that write."""

NOT_INCLUDED: Final = (
    "keys of model servers, tokens, models, directories given only with --root, "
    "memory that `init` stored in a repository"
)


@command("not backed up", precheck=_require_nofollow)
def backup(*, file: Annotated[str, typer.Argument(help="A new file.")]) -> Report:
    """Back up the complete home: files, ledger, configuration.

    The backup contains the state of one moment, even if other processes write meanwhile.
    """
    import resource  # missing on Windows

    from muniment.kernel.cancel import Deadline
    from muniment.opening import open_state
    from muniment.transfer.backup import SCRATCH_PREFIX, back_up

    settings = load_settings()
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (maximum, maximum)
    )  # Two descriptors for each project at once.
    if not settings.home.is_dir():
        raise ConfigInvalid(f"no memory found at {settings.home}; set MUNIMENT_HOME")
    if file == "-" or Path(os.path.realpath(file)).is_relative_to(os.path.realpath(settings.home)):
        raise ConfigInvalid(
            "the backup file is inside the home and would be lost with it; use a path outside"
        )
    with (
        open_state(settings) as state,
        cancel_on_interrupt() as cancel,
        _open_output(file) as written,
    ):
        done = back_up(
            settings.home,
            state,
            settings.roots,
            written,
            scratch=Path(file).absolute().parent,
            deadline=Deadline(time.monotonic() + WAIT_SECONDS, cancel),
        )
    done.notes += _find_leftovers(
        Path(file), f".{escape(Path(file).name)}.*.unfinished", f"{SCRATCH_PREFIX}*"
    )
    lines = [
        clean_foreign_line(f"backed up {done.files} files, {done.size} bytes, to {file}"),
        "  it contains all entries unencrypted, including forgotten ones: protect it like the home",
        f"  not included: {NOT_INCLUDED}",
        f"  the head of its audit records, to store elsewhere: {done.head}",
    ]
    return Report({"file": file, **_create_members(done), "not_in_it": NOT_INCLUDED}, lines, done.notes)


@command("not restored", precheck=_require_nofollow)
def restore(*, file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")]) -> Report:
    """Restore a home from a backup, after a complete check.

    If the home is not empty, nothing is restored.
    """
    from muniment.kernel.cancel import Deadline
    from muniment.transfer import backup as backing

    home = load_settings().home
    with _open_backup(file) as source, cancel_on_interrupt() as cancel:
        deadline = Deadline(time.monotonic() + backing.RESTORE_SECONDS, cancel)
        try:
            done = backing.restore(home, source, deadline=deadline, check=_check_projects)
        except DeadlineExceeded as error:
            limit = f"{file} could not be restored within {backing.RESTORE_SECONDS:.0f} s"
            raise ConfigInvalid(
                f"{limit}; use a faster disk, or another backup; nothing was restored"
            ) from error
    done.notes += _find_leftovers(home, f".{escape(home.name)}.*.restoring")
    lines = [
        clean_foreign_line(
            f"restored {done.files} files, {done.size} bytes, to {home}; its audit records are complete"
        )
    ]
    for scope in done.outside:
        path = home / "restored" / scope
        lines.append(clean_foreign_line(f"  {scope} was outside the home; it is now in {path}"))
    lines.append(f"  compare the head of its audit records with the one you stored: {done.head}")
    return Report({"home": str(home), **_create_members(done)}, lines, done.notes)


def _open_backup(path: Path) -> BinaryIO:
    """Open a backup file to read it. A pipe or device is rejected, because reading it may never end.

    Raises:
        ConfigInvalid: the path cannot be read, or is not a regular file.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ConfigInvalid(f"{path} is not a file; give the file that `backup` wrote; nothing was restored")
    return file


def _check_projects(home: Path) -> None:
    """Check that the file `projects.json` of a restored home can be read.

    Raises:
        ConfigInvalid: it cannot be read.
    """
    from muniment.workspaces.projects import read_projects

    try:
        read_projects(home)
    except ConfigInvalid as error:
        raise ConfigInvalid("projects.json in the backup is damaged; nothing was restored") from error


def _find_leftovers(path: Path, *patterns: str) -> Iterator[str]:
    """Yield a note for each temporary file next to `path` that a killed process has left.

    Args:
        path: the file or directory that the command creates.
        patterns: the names of such files, as glob patterns.
    """
    for pattern in patterns:
        for each in sorted(path.absolute().parent.glob(pattern)):
            yield f"{each} was left by a killed process: remove it, unless that process still runs"


def _create_members(done: BackupSummary) -> dict[str, object]:
    return {
        "files": done.files,
        "bytes": done.size,
        "head": str(done.head),
        "outside": list(done.outside),
        "notes": done.notes,
    }
