"""`muniment import`, `export`, `backup` and `restore`: memory comes, goes and is kept."""

from __future__ import annotations

import math
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from muniment.cli.command import Report, command, place_at, settings_of
from muniment.cli.options import MemoryFlags
from muniment.cli.terminal import EXIT_FAILED, cancel_on_interrupt, progress, say_notes
from muniment.content.gates import on_one_line
from muniment.errors import ConfigInvalid, DeadlineExceeded, PlatformUnsupported
from muniment.files import new_file
from muniment.kernel.names import Scope, Trust
from muniment.portable import IS_WINDOWS

if TYPE_CHECKING:
    from muniment.cancelling import Cancel
    from muniment.operations.exporting import ExportFormat
    from muniment.operations.place import Place
    from muniment.settings import Settings
    from muniment.transfer.backup import BackedUp
    from muniment.transfer.import_report import ImportResult


def _require_links() -> None:
    """Raise on Windows, which opens no file without following a link.

    Raises:
        PlatformUnsupported: this is Windows.
    """
    if IS_WINDOWS:
        raise PlatformUnsupported(
            "this does not run on Windows; export or import on Linux (docs/platforms.md)"
        )


# -- import ------------------------------------------------------------------------------------------

AUTO: Final = "auto"

SHOWN: Final = 20
"""Items of a kind that are named to a person; `--json` names all."""


@command("not imported", before=_require_links)
def import_(
    *,
    path: Annotated[Path, typer.Argument(help="A file, a folder, a zip or an exported tar.")],
    format: Annotated[  # noqa: A002  hidden behind `--from`
        str,
        typer.Option(
            "--from",
            metavar="auto|markdown|claude-code|mcp-memory|mem0|chatgpt|basic-memory|muniment",
            help="What it is.",
        ),
    ] = AUTO,
    trust: Annotated[
        str,
        typer.Option(
            metavar="owner|workspace|agent|external",
            help="Of all of it. owner: each word is yours. external: a stranger's, which waits for review.",
        ),
    ] = "agent",
    scope: Annotated[str | None, typer.Option(help="The one scope that it goes to.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge and report; write nothing.")] = False,
    where: MemoryFlags,
) -> Report:
    """Import the memory of another tool, or an export; what is there already is not written twice.

    Exit 1 if anything was refused; the rest is imported all the same.
    """
    from muniment.transfer.formats import FORMATS
    from muniment.transfer.import_report import ImportRequest
    from muniment.transfer.importing import bring_in
    from muniment.transfer.sources import read_source

    if format not in {AUTO, *FORMATS}:
        raise ConfigInvalid(f"--from takes {AUTO}, {', '.join(FORMATS)}")
    if trust not in set(Trust):
        raise ConfigInvalid(f"--trust takes {', '.join(Trust)}")
    settings = settings_of(where)
    source = read_source(path, format)
    with place_at(where, settings=settings, asks=not dry_run, create=not dry_run, reads=dry_run) as place:
        to_make = _to_make(place, settings, where["workspace"]) if dry_run else frozenset[Scope]()
        request = ImportRequest(source.format, Trust(trust), scope, dry_run, to_make)
        with cancel_on_interrupt() as cancel, progress("importing", len(source.items)) as observe:
            result = bring_in(
                source.items, request, place, cancel=cancel, observe=observe, files=source.files
            )
    return Report(
        result.as_json,
        _imported(result, path),
        result.notes,
        error=result.error,
        what="ended before its end",
        code=EXIT_FAILED if result.refused else 0,
    )


def _to_make(place: Place, settings: Settings, workspace: Path | None) -> frozenset[Scope]:
    """Scopes whose directories the import would make."""
    from muniment.workspaces.projects import find_project

    missing = set(place.policy.scopes) - set(place.roots)
    is_project = workspace is not None or "user" not in place.policy.scopes
    is_project = is_project or find_project(settings.home, Path()).checkout.is_repository
    return frozenset(missing if is_project else missing - {"project"})


def _imported(result: ImportResult, path: Path) -> Iterator[str]:
    is_dry, counts = result.request.dry_run, result.counts
    for each in result.refused[:SHOWN]:
        yield f"refused: {on_one_line(each.name)} ({on_one_line(each.reason)})"
    if len(result.refused) > SHOWN:
        yield f"  and {len(result.refused) - SHOWN} more that are refused; --json names them"
    for each in result.not_taken[:SHOWN]:
        lines = f":{each.lines}" if each.lines else ""
        yield f"not taken: {on_one_line(each.name)}{lines} ({on_one_line(each.reason)})"
    if len(result.not_taken) > SHOWN:
        yield f"  and {len(result.not_taken) - SHOWN} more that are not taken; --json names them"
    yield (
        f"{'would be ' if is_dry else ''}imported: {counts['imported']}, known already: {counts['known']}, "
        f"{'would wait' if is_dry else 'waiting'} for review: {counts['held']}, "
        f"refused: {counts['refused']}, not taken: {counts['not_taken']} "
        f"({result.request.format}, trust {result.request.trust})"
    )
    reviews = list(dict.fromkeys(each.review for each in result.held if each.review))
    for review in reviews[:SHOWN]:
        yield f"  to decide about what waits: muniment review show {review}"
    if len(reviews) > SHOWN:
        yield f"  and {len(reviews) - SHOWN} more reviews; see: muniment review list"
    for task in result.tasks:
        yield f"  to take it back: muniment undo {task}"
    if result.lowered:
        again = f"muniment import {shlex.quote(str(path))} --trust owner"
        yield (
            f"  {result.lowered} entries say that they are trusted more than {result.request.trust}; "
            f"if you made this export yourself, take it back and run: {on_one_line(again)}"
        )


# -- export ------------------------------------------------------------------------------------------

_KINDS: Final[Mapping[str, ExportFormat]] = {".tar": "tar", ".jsonl": "jsonl"}


@command("not exported", before=_require_links)
def export(
    *,
    to: Annotated[str, typer.Option(metavar="FILE.tar|FILE.jsonl|-", help="A new file, or standard output.")],
    scope: Annotated[str | None, typer.Option(help="The one scope to export.")] = None,
    where: MemoryFlags,
) -> Report | None:
    """Write every entry, with where it comes from, to one file that `import` reads.

    Notes name what only `backup` carries, before anything is written.
    """
    from muniment.operations import exporting

    with place_at(where, reads=True) as place:
        kind = "jsonl" if to == "-" else _KINDS.get(Path(to).suffix)
        if kind is None or (to == "-" and where["json"]):
            raise ConfigInvalid("--to takes FILE.tar, FILE.jsonl, or - for lines of JSON (without --json)")
        with progress("exporting") as observe:
            outgoing = exporting.collect(place, kind, scope=scope, observe=observe)
        say_notes(outgoing.notes)
        with _written(to) as file:
            exporting.write(outgoing, file, kind)
    lines = [
        on_one_line(f"exported {len(outgoing.entries)} entries to {to}"),
        "  history and undo are not in it; for these: muniment backup FILE",
    ]
    document = {"file": to, "entries": len(outgoing.entries), "notes": list(outgoing.notes)}
    return Report(document, [] if to == "-" else lines)


@contextmanager
def _written(target: str) -> Iterator[BinaryIO]:
    """A new file of this user alone, whole under its name or not there; standard output for `-`.

    Raises:
        ConfigInvalid: something stands there, or it cannot be written.
    """
    if target == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with new_file(target) as file:
        yield file


# -- backup ------------------------------------------------------------------------------------------

WAIT_SECONDS: Final = 60.0
"""Seconds that a backup waits for those who write."""

NOT_IN_IT: Final = (
    "keys of model servers, tokens, models, directories that only --root names, "
    "memory that init keeps in a repository"
)


@command("not backed up", before=_require_links)
def backup(*, file: Annotated[str, typer.Argument(help="A new file.")]) -> Report:
    """Back up the whole home, as it is at one moment, while others go on: files, ledger, configuration."""
    import resource  # Windows has none.

    from muniment.kernel.cancel import Patience
    from muniment.opening import open_state
    from muniment.transfer.backup import SCRATCH, back_up

    settings = settings_of()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # Two for each project at once.
    if not settings.home.is_dir():
        raise ConfigInvalid(f"there is no memory at {settings.home}; set MUNIMENT_HOME")
    if file == "-" or Path(os.path.realpath(file)).is_relative_to(os.path.realpath(settings.home)):
        raise ConfigInvalid("name a file outside the home, or it would be lost with it")
    with (
        open_state(settings) as state,
        cancel_on_interrupt() as cancel,
        progress("backing up") as observe,
        _written(file) as written,
    ):
        done = back_up(
            settings.home,
            state,
            settings.roots,
            written,
            scratch=Path(file).absolute().parent,
            patience=Patience(time.monotonic() + WAIT_SECONDS, cancel),
            observe=_stepping(observe, cancel),
        )
    done.notes += _left_beside(Path(file), f".{escape(Path(file).name)}.*.unfinished", f"{SCRATCH}*")
    lines = [
        on_one_line(f"backed up {done.files} files, {done.size} bytes, to {file}"),
        "  who has it can read all of it, and what was forgotten too: keep it as you keep the home",
        f"  not in it: {NOT_IN_IT}",
        f"  the end of its records, to be kept elsewhere: {done.head}",
    ]
    return Report({"file": file, **_told(done), "not_in_it": NOT_IN_IT}, lines, done.notes)


@command("not restored", before=_require_links)
def restore(*, file: Annotated[Path, typer.Argument(help="What `backup` wrote.")]) -> Report:
    """Make the home of a backup, once all of it is checked; a home that holds anything is left alone."""
    from muniment.kernel.cancel import Patience
    from muniment.transfer import backup as backing

    home = settings_of().home
    with _backup_file(file) as source, cancel_on_interrupt() as cancel, progress("restoring") as observe:
        patience = Patience(time.monotonic() + backing.RESTORE_SECONDS, cancel)
        try:
            done = backing.restore(home, source, patience=patience, check=_check_projects, observe=observe)
        except DeadlineExceeded as error:
            limit = f"{file} could not be restored within {backing.RESTORE_SECONDS:.0f} s"
            raise ConfigInvalid(
                f"{limit}; use a faster disk, or another backup; nothing was restored"
            ) from error
    done.notes += _left_beside(home, f".{escape(home.name)}.*.restoring")
    lines = [on_one_line(f"restored {done.files} files, {done.size} bytes, to {home}; its records are whole")]
    for scope in done.outside:
        lies = home / "restored" / scope
        lines.append(on_one_line(f"  {scope} lay outside the home; it is in {lies} now"))
    lines.append(f"  compare the end of its records with what you kept: {done.head}")
    return Report({"home": str(home), **_told(done)}, lines, done.notes)


def _backup_file(path: Path) -> BinaryIO:
    """Open a backup to read; a pipe or device, which may never end, is rejected.

    Raises:
        ConfigInvalid: it cannot be read, or is not a file.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ConfigInvalid(f"{path} is not a file; name the file that `backup` wrote; nothing was restored")
    return file


def _stepping(observe: Callable[[int], None], cancel: Cancel) -> Callable[[int], None]:
    """Tells of each step, and ends with the token."""
    from muniment.kernel.cancel import Patience

    def step(files: int) -> None:
        observe(files)
        Patience(math.inf, cancel).check()

    return step


def _check_projects(home: Path) -> None:
    """Raise unless the projects of a restored home can be read.

    Raises:
        ConfigInvalid: they cannot.
    """
    from muniment.workspaces.projects import read_projects

    try:
        read_projects(home)
    except ConfigInvalid as error:
        raise ConfigInvalid("its projects.json is damaged; nothing was restored") from error


def _left_beside(path: Path, *patterns: str) -> Iterator[str]:
    """Notes of what others like this left beside a path when they were killed."""
    for pattern in patterns:
        for each in sorted(path.absolute().parent.glob(pattern)):
            yield f"{each} is left of one that was killed, unless it still runs: remove it"


def _told(done: BackedUp) -> dict[str, object]:
    return {
        "files": done.files,
        "bytes": done.size,
        "head": str(done.head),
        "outside": list(done.outside),
        "notes": done.notes,
    }
