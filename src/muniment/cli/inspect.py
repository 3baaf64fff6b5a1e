"""`muniment ls`, `show`, `index`, `edit` and `pin`: what the owner sees of the memory, and edits in it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from muniment.cli.command import Report, command, place_at
from muniment.cli.options import MemoryFlags
from muniment.cli.terminal import cancel_on_interrupt, output, progress, say_notes
from muniment.content.gates import decode, on_one_line, visible
from muniment.errors import ConfigInvalid, MunimentError, NotFound
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import FILE_SUFFIX, canonicalise
from muniment.types import members

if TYPE_CHECKING:
    from muniment.kernel.binding import BoundRoot
    from muniment.operations.place import Place
    from muniment.store.catalog import CatalogEntry
    from muniment.store.upkeep import IndexCheck
    from muniment.store.visit import Odd

REBUILD_SECONDS: Final = 60.0
"""Seconds that a rebuild waits for the lock of a root."""

# -- ls ----------------------------------------------------------------------------------------------


class _ScopeListing(NamedTuple):
    """What was found in a scope."""

    scope: Scope
    entries: tuple[CatalogEntry, ...]
    odd: tuple[Odd, ...]
    complete: bool
    expired: int


@command("not listed")
def ls(
    *,
    path: Annotated[str, typer.Argument(help="Scope or directory; all scopes if empty.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Also list entries that have expired.")] = False,
    where: MemoryFlags,
) -> Report:
    """List the entries, with whatever cannot be read or named."""
    with place_at(where, reads=True) as place:
        from muniment.operations.place import path_of_address

        below = canonicalise(path_of_address(path).removesuffix("/"), place.policy.scopes) if path else None
        found = [
            _listed(place, bound, RelPath("") if below is None else below.rel, every=every)
            for scope, bound in place.roots.items()
            if below is None or scope == below.scope
        ]
        if (
            below is not None
            and below.rel
            and not any(each.entries or each.odd or each.expired for each in found)
        ):
            raise NotFound(f"nothing is remembered at {below.text}")
        missing = [scope for scope in place.policy.scopes if scope not in place.roots]
    return Report(lambda: _listing(found), _listing_lines(found, missing))


def _listed(place: Place, bound: BoundRoot, below: RelPath, *, every: bool) -> _ScopeListing:
    """Return what a look at every file of a root finds at a path and under it."""
    from muniment.content.expiry import is_expired
    from muniment.store.audit import timestamp
    from muniment.store.upkeep import view_of

    view = view_of(place.state, bound, place.policy, sweep=True)

    def is_below(rel: str) -> bool:
        return not below or rel == below or rel.startswith(f"{below}/")

    now, found = timestamp(), [entry for entry in view.entries() if is_below(entry.rel)]
    shown = [entry for entry in found if every or not is_expired(entry.expires, now)]
    return _ScopeListing(
        bound.scope,
        tuple(shown),
        tuple(item for item in view.odd() if is_below(item.path)),
        complete=view.complete,
        expired=len(found) - len(shown),
    )


def _listing(found: list[_ScopeListing]) -> dict[str, object]:
    told = ("name", "description", "type", "size", "trust", "expires", "ends", "readable", "held", "note")
    return {
        "entries": [
            {"path": f"{each.scope}/{entry.rel}", **{name: getattr(entry, name) for name in told}}
            for each in found
            for entry in each.entries
        ],
        "odd": [
            {"path": f"{each.scope}/{item.path}", "reason": item.reason}
            for each in found
            for item in each.odd
        ],
        "complete": all(each.complete for each in found),
        "expired": sum(each.expired for each in found),
    }


def _listing_lines(found: list[_ScopeListing], missing: list[Scope]) -> Iterator[str]:
    from muniment.content.expiry import has_ended

    for scope in missing:
        yield f"{scope}: nothing yet"
    for each in found:
        count = len(each.entries)
        yield f"{each.scope}: {count} {'entry' if count == 1 else 'entries'}"
        for entry in each.entries:
            notes = [f"ended on {entry.ends}" if has_ended(entry.ends) else "", on_one_line(entry.note)]
            note = f" ({'; '.join(filter(None, notes))})" if any(notes) else ""
            yield f"  {each.scope}/{entry.rel}  {_named(entry)}{note}"
        if each.expired:
            yield f"  {each.expired} expired, not listed; to list them: muniment ls --all"
        for item in each.odd:
            yield f"  passed over: {each.scope}/{visible(item.path)} ({on_one_line(item.reason)})"
        if not each.complete:
            yield f"  {each.scope} could not be read completely"


def _named(entry: CatalogEntry) -> str:
    if not entry.readable:
        return "cannot be read"
    return f"held back ({entry.held})" if entry.held else on_one_line(entry.name)


# -- show --------------------------------------------------------------------------------------------


@command("not shown")
def show(
    *,
    path: Annotated[
        str,
        typer.Argument(
            help="An entry, such as user/editor/dark-mode.md, or ENTRY@TASK: as that task left it."
        ),
    ],
    where: MemoryFlags,
) -> Report | None:
    """Print an entry."""
    named, at, task = path.rpartition("@")
    if not at or task.endswith(FILE_SUFFIX):  # A file may have an @ in its name.
        named, task = path, ""
    with place_at(where) as place:
        found = place.path(named)
        if task:
            from muniment.operations.review import content_of

            data = content_of(place, named, task)
        else:
            data = place.read(found)
    if data is None:
        removed = f"{task} removed {found.text}"
        return Report({"path": found.text, "content": None, "task": task}, problems=[removed])
    text = decode(data)
    if where["json"] or sys.stdout.isatty():  # On a terminal everything invisible is made visible.
        document = {"path": found.text, "content": text} | ({"task": task} if task else {})
        return Report(document, [visible(text).removesuffix("\n")])
    with output():
        sys.stdout.buffer.write(text.encode())
    return None


# -- index -------------------------------------------------------------------------------------------


@command("not rebuilt")
def index_rebuild(*, where: MemoryFlags) -> Report:
    """Write the index of every scope anew from its entries."""
    from muniment.kernel.cancel import Patience
    from muniment.store.upkeep import rebuild, verify

    notes: list[str] = []
    checks: list[IndexCheck] = []
    with place_at(where, reads=True) as place, progress("rebuilding", 2 * len(place.roots)) as observe:
        patience = Patience(time.monotonic() + REBUILD_SECONDS)
        for bound in place.roots.values():
            notes += rebuild(place.state, bound, place.policy, patience)
            observe(1)
        for bound in place.roots.values():
            checks.append(verify(place.state, bound, place.policy))
            observe(1)
    problems = _problems(checks)
    return _checked([note for note in notes if note not in problems], problems, "rebuilt")


@command("not verified")
def index_verify(*, where: MemoryFlags) -> Report:
    """Compare every index with its entries; exit 1 if one differs."""
    from muniment.store.upkeep import verify, view_of

    with place_at(where, reads=True) as place:
        checks = [verify(place.state, bound, place.policy) for bound in place.roots.values()]
        odd = [
            f"{bound.scope}/{item.path}: {item.reason}"
            for bound in place.roots.values()
            for item in view_of(place.state, bound, place.policy).odd()
        ]
    notes = [note for check in checks for note in check.notes]
    return _checked([*odd, *notes], _problems(checks), "correct")


def _problems(checks: Iterable[IndexCheck]) -> list[str]:
    return [problem for check in checks for problem in check.problems]


def _checked(notes: list[str], problems: list[str], done: str) -> Report:
    return Report(
        {"correct": not problems, "problems": problems, "notes": notes},
        [] if problems else [f"the indexes are {done}"],
        notes,
        problems,
        code=1 if problems else 0,
    )


# -- edit --------------------------------------------------------------------------------------------


@command("not saved")
def edit(
    *,
    path: Annotated[str, typer.Argument(help="An entry, such as user/editor/dark-mode.md.")],
    where: MemoryFlags,
) -> Report:
    """Open an entry in your editor, and commit it as yours when you close it."""
    from muniment.operations.edit import check_editable, replace_text

    with place_at(where) as place:
        editor = _editor()
        found = place.path(path)
        check_editable(place, found)
        before = place.read(found)
        directory = Path(tempfile.mkdtemp(prefix="muniment-edit-"))
        copy = directory / found.name
        copy.write_bytes(before)
        after = _after_editing(editor, copy)
        if after == before:
            shutil.rmtree(directory)
            return Report({"task_id": None, "path": found.text, "notes": []}, ["nothing was changed"])
        try:
            result = replace_text(place, found, before, after)
        except MunimentError:
            say_notes([f"what you wrote is kept in {copy}"])
            raise
        shutil.rmtree(directory)
    return Report(
        members(result, "task_id path notes"),
        [
            f"saved (changed): {on_one_line(result.path)}",
            f"  to take it back: muniment undo {result.task_id}",
        ],
        result.notes,
    )


@command("not pinned")
def pin(
    *,
    path: Annotated[str, typer.Argument(help="An entry, such as user/editor/dark-mode.md.")],
    where: MemoryFlags,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge and report; commit nothing.")] = False,
) -> Report:
    """Pin an entry, so that no run changes it and recall looks there first; or unpin a pinned one."""
    from muniment.operations import edit as operation

    with place_at(where) as place, cancel_on_interrupt() as cancel:
        result = operation.pin(place, path, dry_run=dry_run, cancel=cancel)
    done = "pinned" if result.pinned else "unpinned"
    lines = [f"{'would be ' if dry_run else ''}{done}: {on_one_line(result.path)}"]
    if result.task_id is not None:
        lines.append(f"  to take it back: muniment undo {result.task_id}")
    return Report(members(result, "task_id path previous_path pinned notes"), lines, result.notes)


def _editor() -> list[str]:
    """The command that the environment names.

    Raises:
        ConfigInvalid: there is none, or it is no command.
    """
    try:
        editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    except ValueError:
        editor = []
    if not editor:
        raise ConfigInvalid("no editor is named; set VISUAL or EDITOR, such as EDITOR=nano")
    return editor


def _after_editing(editor: list[str], copy: Path) -> bytes:
    """What stands in a file once an editor was closed.

    Raises:
        ConfigInvalid: it could not be started, or says that it failed.
    """
    try:
        ended = subprocess.run([*editor, str(copy)], check=False).returncode  # noqa: S603  the owner named it
        if ended == 0:
            return copy.read_bytes()
        problem = f"ended with {ended}"
    except OSError as error:
        problem = f"cannot be used: {error.strerror}"
    where = f", the copy is {copy}" if copy.exists() else ""
    raise ConfigInvalid(f"the editor {editor[0]!r} {problem}; nothing was saved{where}")
