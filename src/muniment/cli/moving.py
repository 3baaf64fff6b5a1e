"""`muniment import`, `export`, `backup` and `restore`: memory comes, goes and is kept."""

from __future__ import annotations

import os
import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muniment.cli.inspect import MemoryArguments
from muniment.cli.progress import progress
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
from muniment.errors import Cancelled, ConfigInvalid, MunimentError
from muniment.jobs.importing import ImportRequest, ImportResult, bring_in
from muniment.jobs.sources import opened_source
from muniment.kernel.names import Trust
from muniment.opening import find_place
from muniment.settings import parse_roots, read_settings

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
        with (
            opened_source(asked.path, asked.format) as (found, items),
            closing(find_place(settings, where.workspace, create=not asked.dry_run)) as place,
        ):
            say_notes(place.notes)
            request = ImportRequest(found, Trust(asked.trust), asked.scope, dry_run=asked.dry_run)
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
