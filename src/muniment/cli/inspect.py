"""`muniment ls`, `show` and `index`: what the owner sees of the memory, without an agent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muniment.cli.progress import progress
from muniment.cli.projects import ask_which_memory
from muniment.cli.terminal import (
    configure_logging,
    on_one_line,
    output,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.content.gates import decode, visible
from muniment.errors import MunimentError, NotFound
from muniment.jobs.place import Place
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import FILE_SUFFIX, canonicalise
from muniment.opening import find_place
from muniment.settings import parse_roots, read_settings
from muniment.store.catalog import CatalogEntry
from muniment.store.upkeep import IndexCheck, rebuild, verify, view_of
from muniment.store.visit import Odd

REBUILD_SECONDS: Final = 60.0
"""Seconds that a rebuild waits for the lock of a root."""


@dataclass(frozen=True, slots=True)
class MemoryArguments:
    """The command line that these commands share."""

    workspace: Path | None
    policy: str | None
    roots: list[str]
    json: bool


@dataclass(frozen=True, slots=True)
class _Listed:
    """What was found in a scope."""

    scope: Scope
    entries: tuple[CatalogEntry, ...]
    odd: tuple[Odd, ...]
    complete: bool


def list_memory(where: MemoryArguments, unsafe_path: str) -> int:
    """Print the entries at or below a path, and whatever cannot be read or named; the exit code."""

    def body(place: Place) -> int:
        below = canonicalise(unsafe_path.removesuffix("/"), place.policy.scopes) if unsafe_path else None
        found = [
            _listed(place, bound, RelPath("") if below is None else below.rel)
            for scope, bound in place.roots.items()
            if below is None or scope == below.scope
        ]
        if below is not None and below.rel and not any(each.entries or each.odd for each in found):
            raise NotFound(f"nothing is remembered at {below.text}")
        if where.json:
            print_document(_listing(found))
        else:
            _print_listing(place, found)
        return 0

    return with_place(where, body, "not listed", reads=True)


def show_entry(where: MemoryArguments, unsafe_path: str) -> int:
    """Print one file, or with `@TASK` what a task left of it; the exit code.

    On a terminal everything invisible is made visible.
    """

    def body(place: Place) -> int:
        named, at, task = unsafe_path.rpartition("@")
        if not at or task.endswith(FILE_SUFFIX):  # A file may have an @ in its name.
            named, task = unsafe_path, ""
        path = place.path(named)
        if task:
            from muniment.jobs.review import content_of

            data = content_of(place, named, task)
        else:
            data = place.read(path)
        if data is None:
            return _report_removed(path.text, task, where)
        text = decode(data)
        if where.json:
            print_document({"path": path.text, "content": text} | ({"task": task} if task else {}))
        elif sys.stdout.isatty():
            say(visible(text).removesuffix("\n"))
        else:
            with output():
                sys.stdout.buffer.write(text.encode())
        return 0

    return with_place(where, body, "not shown")


def _report_removed(path: str, task: str, where: MemoryArguments) -> int:
    if where.json:
        print_document({"path": path, "content": None, "task": task})
    else:
        print(on_one_line(f"{task} removed {path}"), file=sys.stderr)
    return 0


def rebuild_indexes(where: MemoryArguments) -> int:
    """Write every index anew; the exit code is 1 if one could not be."""

    def body(place: Place) -> int:
        patience = Patience(time.monotonic() + REBUILD_SECONDS)
        notes, checks = list[str](), list[IndexCheck]()
        with progress("rebuilding", 2 * len(place.roots)) as observe:
            for bound in place.roots.values():
                notes += rebuild(place.state, bound, place.policy, patience)
                observe(1)
            for bound in place.roots.values():
                checks.append(verify(place.state, bound, place.policy))
                observe(1)
        problems = [problem for check in checks for problem in check.problems]
        _print_notes([note for note in notes if note not in problems], problems, where, "rebuilt")
        return 1 if problems else 0

    return with_place(where, body, "not rebuilt", reads=True)


def verify_indexes(where: MemoryArguments) -> int:
    """Compare every index with its entries; the exit code is 1 if one differs."""

    def body(place: Place) -> int:
        checks = [verify(place.state, bound, place.policy) for bound in place.roots.values()]
        problems = [problem for check in checks for problem in check.problems]
        odd = [
            f"{bound.scope}/{item.path}: {item.reason}"
            for bound in place.roots.values()
            for item in view_of(place.state, bound, place.policy).odd()
        ]
        notes = [note for check in checks for note in check.notes]
        _print_notes([*odd, *notes], problems, where, "correct")
        return 1 if problems else 0

    return with_place(where, body, "not verified", reads=True)


def with_place(
    where: MemoryArguments, body: Callable[[Place], int], what: str, *, reads: bool = False
) -> int:
    """Run `body` over the memory that a command line names; its exit code, or that of its failure.

    Args:
        where: the command line.
        body: what to do; makes nothing in a memory that is not there yet.
        what: what did not happen, where it fails.
        reads: whether it reads entries, as `find_place`.
    """
    configure_logging()
    try:
        settings = read_settings(os.environ, policy=where.policy, roots=parse_roots(where.roots))
        ask_which_memory(where.workspace, where.roots, as_json=where.json)
        with closing(find_place(settings, where.workspace, create=False, reads=reads)) as place:
            say_notes(place.notes)
            return body(place)
    except MunimentError as error:
        return print_failure(error, as_json=where.json, what=what)


def _listed(place: Place, bound: BoundRoot, below: RelPath) -> _Listed:
    """What a look at every file of a root finds at a path and beneath it."""
    view = view_of(place.state, bound, place.policy, sweep=True)

    def is_below(rel: str) -> bool:
        return not below or rel == below or rel.startswith(f"{below}/")

    return _Listed(
        bound.scope,
        tuple(entry for entry in view.entries() if is_below(entry.rel)),
        tuple(item for item in view.odd() if is_below(item.path)),
        complete=view.complete,
    )


def _listing(found: list[_Listed]) -> dict[str, object]:
    return {
        "entries": [
            {
                "path": f"{each.scope}/{entry.rel}",
                "name": entry.name,
                "description": entry.description,
                "type": entry.type,
                "size": entry.size,
                "trust": entry.trust,
                "expires": entry.expires,
                "readable": entry.readable,
                "held": entry.held,
                "note": entry.note,
            }
            for each in found
            for entry in each.entries
        ],
        "odd": [
            {"path": f"{each.scope}/{item.path}", "reason": item.reason}
            for each in found
            for item in each.odd
        ],
        "complete": all(each.complete for each in found),
    }


def _print_listing(place: Place, found: list[_Listed]) -> None:
    for scope in place.policy.scopes:
        if scope not in place.roots:
            say(f"{scope}: nothing yet")
    for each in found:
        count = len(each.entries)
        say(f"{each.scope}: {count} {'entry' if count == 1 else 'entries'}")
        for entry in each.entries:
            note = f" ({on_one_line(entry.note)})" if entry.note else ""
            say(f"  {each.scope}/{entry.rel}  {_named(entry)}{note}")
        for item in each.odd:
            say(f"  passed over: {each.scope}/{visible(item.path)} ({on_one_line(item.reason)})")
        if not each.complete:
            say(f"  {each.scope} could not be read completely")


def _named(entry: CatalogEntry) -> str:
    if not entry.readable:
        return "cannot be read"
    return f"held back ({entry.held})" if entry.held else on_one_line(entry.name)


def _print_notes(notes: list[str], problems: list[str], where: MemoryArguments, done: str) -> None:
    if where.json:
        print_document({"correct": not problems, "problems": problems, "notes": notes})
        return
    say_notes(notes)
    for problem in problems:
        print(on_one_line(problem), file=sys.stderr)
    if not problems:
        say(f"the indexes are {done}")
