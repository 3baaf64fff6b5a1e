"""`muniment import`, `export`, `backup` and `restore`: memory comes, goes and is kept."""

from __future__ import annotations

import errno
import math
import os
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import BinaryIO, Final

from muniment.cancelling import Cancel
from muniment.cli.inspect import MemoryArguments, with_place
from muniment.cli.progress import progress
from muniment.cli.projects import ask_which_memory
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    cancel_on_interrupt,
    configure_logging,
    on_one_line,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.content.formats import FORMATS
from muniment.errors import Cancelled, ConfigInvalid, MunimentError, printable
from muniment.files import placing
from muniment.jobs.exporting import ExportFormat, export
from muniment.jobs.importing import ImportRequest, ImportResult, bring_in
from muniment.jobs.place import Place
from muniment.jobs.sources import read_source
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Scope, Trust
from muniment.opening import find_place, open_state
from muniment.projects import find_project, read_projects
from muniment.settings import Settings, parse_roots, read_settings
from muniment.store.backup import SCRATCH, BackedUp, back_up, restore
from muniment.store.state import sync

# -- import ------------------------------------------------------------------------------------------

AUTO: Final = "auto"

SHOWN: Final = 20
"""Items of a kind that are named to a person; `--json` names all."""


@dataclass(frozen=True, slots=True)
class ImportArguments:
    """The command line of `import`."""

    path: Path
    format: str
    trust: str
    scope: str | None
    dry_run: bool


def import_from(where: MemoryArguments, asked: ImportArguments) -> int:
    """Import what stands at a path; the exit code is 1 if some of it was refused."""
    configure_logging()
    try:
        if asked.format not in {AUTO, *FORMATS}:
            raise ConfigInvalid(f"--from takes {AUTO}, {', '.join(FORMATS)}")
        if asked.trust not in set(Trust):
            raise ConfigInvalid(f"--trust takes {', '.join(Trust)}")
        settings = read_settings(os.environ, policy=where.policy, roots=parse_roots(where.roots))
        found, items = read_source(asked.path, asked.format)
        is_dry = asked.dry_run
        if not is_dry:
            ask_which_memory(where.workspace, where.roots, as_json=where.json)
        with closing(find_place(settings, where.workspace, create=not is_dry, reads=is_dry)) as place:
            say_notes(place.notes)
            to_make = _to_make(place, settings, where.workspace) if is_dry else frozenset[Scope]()
            request = ImportRequest(found, Trust(asked.trust), asked.scope, is_dry, to_make)
            with cancel_on_interrupt() as cancel, progress("importing", len(items)) as observe:
                result = bring_in(items, request, place, cancel=cancel, observe=observe)
    except MunimentError as error:
        return print_failure(error, as_json=where.json, what="not imported")
    if where.json:
        print_document(result.as_json())
    else:
        _say_imported(result, asked.path)
    if result.error is not None:
        return EXIT_CANCELLED if isinstance(result.error, Cancelled) else EXIT_FAILED
    return EXIT_FAILED if result.refused else 0


def _to_make(place: Place, settings: Settings, workspace: Path | None) -> frozenset[Scope]:
    """Scopes whose directories the import would make."""
    missing = set(place.policy.scopes) - set(place.roots)
    is_project = workspace is not None or "user" not in place.policy.scopes
    is_project = is_project or find_project(settings.home, Path()).checkout.is_repository
    return frozenset(missing if is_project else missing - {"project"})


def _say_imported(result: ImportResult, path: Path) -> None:
    is_dry, counts = result.request.dry_run, result.counts
    say_notes(result.notes)
    for each in result.refused[:SHOWN]:
        say(f"refused: {on_one_line(each.name)} ({on_one_line(each.reason)})")
    if len(result.refused) > SHOWN:
        say(f"  and {len(result.refused) - SHOWN} more that are refused; --json names them")
    say(
        f"{'would be ' if is_dry else ''}imported: {counts['imported']}, known already: {counts['known']}, "
        f"{'would wait' if is_dry else 'waiting'} for review: {counts['held']}, "
        f"refused: {counts['refused']} ({result.request.format}, trust {result.request.trust})"
    )
    reviews = list(dict.fromkeys(each.review for each in result.held if each.review))
    for review in reviews[:SHOWN]:
        say(f"  to decide about what waits: muniment review show {review}")
    if len(reviews) > SHOWN:
        say(f"  and {len(reviews) - SHOWN} more reviews; see: muniment review list")
    for task in result.tasks:
        say(f"  to take it back: muniment undo {task}")
    if result.lowered:
        again = f"muniment import {shlex.quote(str(path))} --trust owner"
        say(
            f"  {result.lowered} entries say that they are trusted more than {result.request.trust}; "
            f"if you made this export yourself, take it back and run: {on_one_line(again)}"
        )
    if result.error is not None:
        print_failure(result.error, as_json=False, what="ended before its end")


# -- export ------------------------------------------------------------------------------------------

_KINDS: Final[dict[str, ExportFormat]] = {".tar": "tar", ".jsonl": "jsonl"}


def export_to(where: MemoryArguments, target: str, scope: str | None) -> int:
    """Write the entries to a new file, or as lines of JSON to standard output for `-`; the exit code."""

    def body(place: Place) -> int:
        kind = "jsonl" if target == "-" else _KINDS.get(Path(target).suffix)
        if kind is None or (target == "-" and where.json):
            raise ConfigInvalid("--to takes FILE.tar, FILE.jsonl, or - for lines of JSON (without --json)")
        with progress("exporting") as observe, _written(target) as file:
            done = export(place, file, kind, scope=scope, observe=observe)
        say_notes(() if where.json else done.notes)
        if where.json:
            print_document({"file": target, "entries": done.entries, "notes": list(done.notes)})
        elif target != "-":
            say(on_one_line(f"exported {done.entries} entries to {target}"))
            say("  history and undo are not in it; for these: muniment backup FILE")
        return 0

    return with_place(where, body, "not exported", reads=True)


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
    path, shown = Path(target), printable(target)
    if not path.name:
        raise ConfigInvalid(f"{shown!r} is no name of a file to write")
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it is there already; choose another name, or remove it")
        with placing(path, _name) as file:
            yield file
    except OSError as error:
        raise ConfigInvalid(f"{shown} cannot be written: {error.strerror or error}") from error


def _name(unfinished: Path, path: Path) -> None:
    """Give a file its name, in the place of none; where there are no hard links, as on a stick, nearly so."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise
        unfinished.rename(path)
    with suppress(OSError):  # Some file systems have no sync of a directory.
        sync(path.parent)


# -- backup ------------------------------------------------------------------------------------------

WAIT_SECONDS: Final = 60.0
"""Seconds that a backup waits for those who write."""

NOT_IN_IT: Final = (
    "keys of model servers, tokens, models, directories that only --root names, "
    "memory that init keeps in a repository"
)


def back_up_to(target: str, *, as_json: bool) -> int:
    """Write a backup of the whole home to a new file; the exit code."""
    configure_logging()
    try:
        settings = read_settings(os.environ)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # Two for each project at once.
        if not settings.home.is_dir():
            raise ConfigInvalid(f"there is no memory at {settings.home}; set MUNIMENT_HOME")
        if target == "-" or Path(os.path.realpath(target)).is_relative_to(os.path.realpath(settings.home)):
            raise ConfigInvalid("name a file outside the home, or it would be lost with it")
        with (
            open_state(settings) as state,
            cancel_on_interrupt() as cancel,
            progress("backing up") as observe,
            _written(target) as file,
        ):
            done = back_up(
                settings.home,
                state,
                settings.roots,
                file,
                scratch=Path(target).absolute().parent,
                patience=Patience(time.monotonic() + WAIT_SECONDS, cancel),
                observe=_stepping(observe, cancel),
            )
        done.notes += _left_beside(Path(target), f".{escape(Path(target).name)}.*.unfinished", f"{SCRATCH}*")
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not backed up")
    if as_json:
        print_document({"file": target, **_told(done), "not_in_it": NOT_IN_IT})
        return 0
    say_notes(done.notes)
    say(on_one_line(f"backed up {done.files} files, {done.size} bytes, to {target}"))
    say("  who has it can read all of it, and what was forgotten too: keep it as you keep the home")
    say(f"  not in it: {NOT_IN_IT}")
    say(f"  the end of its records, to be kept elsewhere: {done.head}")
    return 0


def restore_from(source: Path, *, as_json: bool) -> int:
    """Make the home of a backup; the exit code."""
    configure_logging()
    try:
        home = read_settings(os.environ).home
        try:
            file = source.open("rb")
        except OSError as error:
            raise ConfigInvalid(f"{source} cannot be read: {error.strerror}") from error
        with file, cancel_on_interrupt() as cancel, progress("restoring") as observe:
            done = restore(home, file, check=_check_projects, observe=_stepping(observe, cancel))
        done.notes += _left_beside(home, f".{escape(home.name)}.*.restoring")
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not restored")
    if as_json:
        print_document({"home": str(home), **_told(done)})
        return 0
    say_notes(done.notes)
    say(on_one_line(f"restored {done.files} files, {done.size} bytes, to {home}; its records are whole"))
    for scope in done.outside:
        say(on_one_line(f"  {scope} lay outside the home; it is in {home / 'restored' / scope} now"))
    say(f"  compare the end of its records with what you kept: {done.head}")
    return 0


def _stepping(observe: Callable[[int], None], cancel: Cancel) -> Callable[[int], None]:
    """Tells of each step, and ends with the token."""

    def step(files: int) -> None:
        observe(files)
        Patience(math.inf, cancel).check()

    return step


def _check_projects(home: Path) -> None:
    """Raise unless the projects of a restored home can be read.

    Raises:
        ConfigInvalid: they cannot.
    """
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
