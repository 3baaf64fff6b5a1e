"""`muniment ls`, `show` and `index`: what the owner sees of the memory, without an agent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from muniment.api import find_place
from muniment.cli.report import configure_logging, output, print_document, print_failure, say
from muniment.confine.cancel import Patience
from muniment.content.gates import decode, one_line, visible
from muniment.errors import MunimentError, NotFound
from muniment.jobs.request import Place
from muniment.names import Scope
from muniment.policy.grammar import CanonicalPath, canonicalise
from muniment.settings import parse_roots, read_settings
from muniment.store.indexing import rebuild_index, verify_index
from muniment.store.scan import Scan, scan

REBUILD_SECONDS: Final = 60.0
"""Seconds that a rebuild waits for the lock of a root."""


@dataclass(frozen=True, slots=True)
class Where:
    """The command line that these commands share."""

    workspace: Path
    policy: str | None
    roots: list[str]
    json: bool


def list_memory(where: Where, unsafe_path: str) -> int:
    """Print the entries at or below a path, and whatever cannot be read or named; the exit code."""

    def body(place: Place) -> int:
        below = canonicalise(unsafe_path.removesuffix("/"), place.policy.scopes) if unsafe_path else None
        scans = {
            scope: scan(bound.root)
            for scope, bound in place.roots.items()
            if below is None or scope == below.scope
        }
        if below is not None and below.rel:
            scans = {scope: _below(found, below) for scope, found in scans.items()}
            if not any(found.entries or found.odd for found in scans.values()):
                raise NotFound(f"nothing is remembered at {below.text}")
        if where.json:
            print_document(_listing(scans))
        else:
            _print_listing(place, scans)
        return 0

    return _with_place(where, body, "not listed")


def show_entry(where: Where, unsafe_path: str) -> int:
    """Print one file; on a terminal with everything invisible made visible. The exit code."""

    def body(place: Place) -> int:
        path = canonicalise(unsafe_path, place.policy.scopes)
        if path.scope not in place.roots:
            raise NotFound(f"nothing is remembered in {path.scope} yet")
        text = decode(place.roots[path.scope].root.read_bytes(path.rel))
        if where.json:
            print_document({"path": path.text, "content": text})
        elif sys.stdout.isatty():
            say(visible(text).removesuffix("\n"))
        else:
            with output():
                sys.stdout.buffer.write(text.encode())
        return 0

    return _with_place(where, body, "not shown")


def rebuild_indexes(where: Where) -> int:
    """Write every index anew; the exit code is 1 if one could not be."""

    def body(place: Place) -> int:
        patience = Patience(time.monotonic() + REBUILD_SECONDS)
        notes = {
            scope: rebuild_index(bound, place.policy.trust_of(scope), patience)
            for scope, bound in place.roots.items()
        }
        problems = [problem for scope in notes for problem in _problems(place, scope)]
        told = [note for each in notes.values() for note in each if note not in problems]
        _print_notes(told, problems, where, "rebuilt")
        return 1 if problems else 0

    return _with_place(where, body, "not rebuilt")


def verify_indexes(where: Where) -> int:
    """Compare every index with its entries; the exit code is 1 if one differs."""

    def body(place: Place) -> int:
        problems = [problem for scope in place.roots for problem in _problems(place, scope)]
        odd = [
            f"{scope}/{item.path}: {item.reason}"
            for scope, bound in place.roots.items()
            for item in scan(bound.root).odd
        ]
        _print_notes(odd, problems, where, "correct")
        return 1 if problems else 0

    return _with_place(where, body, "not verified")


def _problems(place: Place, scope: Scope) -> tuple[str, ...]:
    return verify_index(place.roots[scope], place.policy.trust_of(scope))


def _with_place(where: Where, body: Callable[[Place], int], what: str) -> int:
    configure_logging()
    try:
        settings = read_settings(os.environ, policy=where.policy, roots=parse_roots(where.roots))
        with closing(find_place(settings, where.workspace, create=False)) as place:
            return body(place)
    except MunimentError as error:
        return print_failure(error, as_json=where.json, what=what)


def _below(found: Scan, path: CanonicalPath) -> Scan:
    """What a scan found at `path` and beneath it."""

    def is_below(rel: str) -> bool:
        return rel == path.rel or rel.startswith(f"{path.rel}/")

    entries = tuple(entry for entry in found.entries if is_below(entry.rel))
    return replace(found, entries=entries, odd=tuple(item for item in found.odd if is_below(item.path)))


def _listing(scans: dict[Scope, Scan]) -> dict[str, object]:
    return {
        "entries": [
            {
                "path": f"{scope}/{entry.rel}",
                "name": entry.name,
                "description": entry.description,
                "type": entry.type,
                "size": entry.size,
                "readable": entry.readable,
                "note": entry.note,
            }
            for scope, found in scans.items()
            for entry in found.entries
        ],
        "odd": [
            {"path": f"{scope}/{item.path}", "reason": item.reason}
            for scope, found in scans.items()
            for item in found.odd
        ],
        "complete": all(found.complete for found in scans.values()),
    }


def _print_listing(place: Place, scans: dict[Scope, Scan]) -> None:
    for scope in place.policy.scopes:
        if scope not in place.roots:
            say(f"{scope}: nothing yet")
    for scope, found in scans.items():
        count = len(found.entries)
        say(f"{scope}: {count} {'entry' if count == 1 else 'entries'}")
        for entry in found.entries:
            note = f" ({_on_one_line(entry.note)})" if entry.note else ""
            name = _on_one_line(entry.name) if entry.readable else "cannot be read"
            say(f"  {scope}/{entry.rel}  {name}{note}")
        for item in found.odd:
            say(f"  passed over: {scope}/{visible(item.path)} ({_on_one_line(item.reason)})")
        if not found.complete:
            say(f"  {scope} could not be read completely")


def _print_notes(notes: list[str], problems: list[str], where: Where, done: str) -> None:
    if where.json:
        print_document({"correct": not problems, "problems": problems, "notes": notes})
        return
    for note in notes:
        print(f"note: {_on_one_line(note)}", file=sys.stderr)
    for problem in problems:
        print(_on_one_line(problem), file=sys.stderr)
    if not problems:
        say(f"the indexes are {done}")


def _on_one_line(text: str) -> str:
    """What others wrote, so that it forges no line of ours and hides nothing in one."""
    return visible(one_line(text))
