"""Implement `muniment ls`, `show`, `index`, `edit` and `pin`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, open_command_context
from muniment.cli.display import (
    FactLine,
    describe_entry,
    format_facts,
    format_groups,
    format_place,
    quote_fact,
)
from muniment.cli.options import ENTRY_HELP, EntryArgument, MemoryFlags
from muniment.cli.suggestions import suggest_entries, suggest_folders
from muniment.cli.terminal import cancel_on_interrupt, guard_output, print_notes
from muniment.content.gates import clean_foreign_line, decode, escape_invisible
from muniment.errors import ConfigInvalid, MunimentError, NotFound
from muniment.kernel.names import Scope
from muniment.kernel.path import FILE_SUFFIX
from muniment.types.documents import select_members

if TYPE_CHECKING:
    from muniment.kernel.path import CanonicalPath
    from muniment.types import EntryList, IndexResult, ListedEntry

# -- ls ----------------------------------------------------------------------------------------------

MAX_DRAWN: Final = 200
"""Maximum number of entries on a terminal that are all listed; of more, each topic shows the newest."""

_NEWEST: Final = 5
"""Number of entries that each topic shows if there are more than `MAX_DRAWN`."""


@command("not listed")
def ls(
    *,
    path: Annotated[
        str,
        typer.Argument(
            help="A scope, a folder or an entry; everything if empty.", autocompletion=suggest_folders
        ),
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Also list entries that have expired.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Also print the path of each entry.")] = False,
    where: MemoryFlags,
) -> Report:
    """List the entries by scope and topic.

    Files that were skipped are listed with the reason.

    In a pipe: one line for each entry with text, time, place, trust and handle, separated by tabs.
    """
    with open_command_context(where, reads_entries=True) as context:
        from muniment.operations.listing import list_entries
        from muniment.operations.visibility import resolve_place

        below = resolve_place(context, path) if path else None
        found = {
            scope: list_entries(
                context,
                scope=scope,
                below="" if below is None else below.rel,
                expired=every,
                with_hidden=True,
            )
            for scope in context.roots
            if below is None or scope == below.scope
        }
        if (
            below is not None
            and below.rel
            and not any(each.entries or each.skipped or each.expired for each in found.values())
        ):
            raise NotFound(f"no entries found at {below.text}")
        missing = [scope for scope in context.policy.scopes if scope not in context.roots]
    groups = _group_entries(found.values(), "" if below is None else below.text, long=long)
    return Report(
        lambda: _create_list_document(found.values()),
        format_groups(groups),
        remarks=_list_remarks(found, missing if below is None else []),
    )


def _create_list_document(found: Collection[EntryList]) -> dict[str, object]:
    names = {"title": "name", "withheld": "held"}
    member_names = "path title description type size trust expires ends readable withheld note handle at"
    return {
        "entries": [
            {names.get(name, name): value for name, value in select_members(entry, member_names).items()}
            for each in found
            for entry in each.entries
        ],
        "odd": [select_members(item, "path reason") for each in found for item in each.skipped],
        "complete": all(each.complete for each in found),
        "expired": sum(each.expired for each in found),
    }


def _group_entries(
    found: Iterable[EntryList], below: str, *, long: bool
) -> Iterator[tuple[str, list[FactLine]]]:
    """Yield the heading and the facts of each topic; the facts are sorted by time, the newest first.

    Args:
        found: the entries of each scope.
        below: the path that was listed; a topic with this path is always complete.
        long: whether to show paths.
    """
    topics: dict[str, list[ListedEntry]] = {}
    for each in found:
        for entry in each.entries:
            topics.setdefault(format_place(entry.path), []).append(entry)
    is_short = sys.stdout.isatty() and sum(map(len, topics.values())) > MAX_DRAWN
    for topic, entries in sorted(topics.items()):
        entries.sort(key=lambda entry: entry.at, reverse=True)
        shown = entries[:_NEWEST] if is_short and topic != below else entries
        facts = [_create_line(entry, long=long) for entry in shown]
        if len(shown) < len(entries):
            hint = f"and {len(entries) - len(shown)} more: muniment ls {shlex.quote(topic)}"
            facts.append(FactLine(hint))
        yield f"{clean_foreign_line(topic)} ({len(entries)})", facts


def _create_line(entry: ListedEntry, *, long: bool) -> FactLine:
    from muniment.content.expiry import has_ended

    labels = [f"ended on {entry.ends}" if has_ended(entry.ends) else "", entry.note]
    text = entry.title
    if not entry.readable:
        text = "cannot be read"
    elif entry.withheld:
        text = f"withheld ({entry.withheld})"
    is_drawn = sys.stdout.isatty()
    return FactLine(
        text,
        entry.at,
        "" if is_drawn else format_place(entry.path),  # On a terminal the heading has it.
        str(entry.trust),
        entry.handle,
        "; ".join(filter(None, labels)),
        path=entry.path if long or not entry.handle else "",
    )


def _list_remarks(found: Mapping[Scope, EntryList], missing: list[Scope]) -> Iterator[str]:
    """Yield remarks about a listing: what is empty, expired, skipped or could not be read."""
    if not any(each.entries for each in found.values()):
        yield 'nothing is saved here yet; to save a fact: muniment remember "We deploy on Thursdays"'
    elif missing:
        yield f"no entries yet: {', '.join(missing)}"
    for scope, each in found.items():
        if each.expired:
            yield f"{scope}: {each.expired} expired, not listed; to list them: muniment ls --all"
        for item in each.skipped:
            yield f"skipped: {escape_invisible(item.path)} ({clean_foreign_line(item.reason)})"
        if not each.complete:
            yield f"{scope} could not be read completely"


# -- show --------------------------------------------------------------------------------------------


@command("not shown")
def show(
    *,
    path: Annotated[
        str,
        typer.Argument(
            help=f"{ENTRY_HELP} ENTRY@TASK prints its text after a task.", autocompletion=suggest_entries
        ),
    ],
    where: MemoryFlags,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the complete file.")] = False,
) -> Report | None:
    """Print an entry.

    On a terminal its text is printed, in a pipe the complete file.
    """
    from muniment.operations.renames import read_entry_file
    from muniment.operations.visibility import resolve_for_owner

    entry_path, separator, task = path.rpartition("@")
    if not separator or task.endswith(FILE_SUFFIX):  # A file name may contain an @.
        entry_path, task = path, ""
    with open_command_context(where) as context:
        found = resolve_for_owner(context, entry_path)
        if task:
            from muniment.operations.review import read_content

            data = read_content(context, found.text, task)
        else:
            data = read_entry_file(context, found)
    if data is None:
        removed = f"{task} removed {found.text}"
        return Report({"path": found.text, "content": None, "task": task}, problems=[removed])
    text = decode(data)
    if where["json"] or sys.stdout.isatty():
        document = {"path": found.text, "content": text} | ({"task": task} if task else {})
        return Report(document, _format_entry(data, found, verbose=verbose))
    with guard_output():
        sys.stdout.buffer.write(text.encode())
    return None


def _format_entry(data: bytes, path: CanonicalPath, *, verbose: bool) -> Iterator[str]:
    """Yield the text of an entry for a terminal; invisible characters become visible escapes.

    Args:
        data: the bytes of the file.
        path: its path.
        verbose: whether to yield the complete file instead of the text.
    """
    from muniment.content.entry import parse
    from muniment.store.ledger import read_label

    entry, (title, handle) = parse(decode(data)), read_label(path, data)
    at = (entry.muniment or {}).get("updated")
    body = (entry.text if verbose else entry.body).strip("\n")
    is_one_line = "\n" not in body
    heading = escape_invisible(body) or title if is_one_line else title
    yield from format_facts(
        [FactLine(heading, at if isinstance(at, str) else "", format_place(path.text), handle=handle)]
    )
    if not is_one_line:
        yield from ("", *escape_invisible(body).split("\n"))


# -- index -------------------------------------------------------------------------------------------


@command("not rebuilt")
def index_rebuild(*, where: MemoryFlags) -> Report:
    """Rebuild the index of every scope from its entries."""
    from muniment.operations.owner import rebuild_indexes

    with open_command_context(where, reads_entries=True) as context:
        return _report_index(rebuild_indexes(context), "rebuilt")


@command("not verified")
def index_verify(*, where: MemoryFlags) -> Report:
    """Compare every index with its entries.

    Exit 1 if an index differs.
    """
    from muniment.operations.owner import rebuild_indexes

    with open_command_context(where, reads_entries=True) as context:
        return _report_index(rebuild_indexes(context, dry_run=True), "correct")


def _report_index(result: IndexResult, done: str) -> Report:
    return Report(
        select_members(result, "correct problems notes"),
        [f"the indexes are {done}"] if result.correct else [],
        result.notes,
        result.problems,
        code=0 if result.correct else 1,
    )


# -- edit --------------------------------------------------------------------------------------------


@command("not saved")
def edit(
    *,
    path: EntryArgument,
    where: MemoryFlags,
) -> Report:
    """Edit an entry in your editor.

    When you close the editor, the new text is committed with your trust, `owner`.
    """
    import tempfile

    from muniment.operations.edit import check_editable, replace_text
    from muniment.operations.renames import read_entry_file
    from muniment.operations.visibility import resolve_for_owner
    from muniment.store.ledger import read_label

    with open_command_context(where) as context:
        editor = _find_editor()
        found = resolve_for_owner(context, path)
        check_editable(context, found)
        before = read_entry_file(context, found)
        directory = Path(tempfile.mkdtemp(prefix="muniment-edit-"))
        copy = directory / found.name
        copy.write_bytes(before)
        after = _run_editor(editor, copy)
        if after == before:
            shutil.rmtree(directory)
            return Report({"task_id": None, "path": found.text, "notes": []}, ["nothing was changed"])
        try:
            result = replace_text(context, found, before, after)
        except MunimentError:
            print_notes([f"your text is saved in {copy}"])
            raise
        shutil.rmtree(directory)
        shown = describe_entry(context, result.path)
        old_title, _ = read_label(found, before)
        if quote_fact(old_title) not in shown:
            shown = f"{quote_fact(old_title)} → {shown}"
    return Report(select_members(result, "task_id path notes"), [f"changed: {shown}"], result.notes)


_PIN_TEXTS: Final = {
    True: ("pinned", "agents can no longer change it"),
    False: ("unpinned", "agents can change it again"),
}


@command("not pinned")
def pin(
    *,
    path: EntryArgument,
    where: MemoryFlags,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and report; commit nothing.")] = False,
) -> Report:
    """Protect an entry from agents, or end that protection.

    Agents cannot change a pinned entry. It moves to the folder `pinned` of its scope, and recall prefers it.
    """
    from muniment.operations import edit as operation

    with open_command_context(where) as context, cancel_on_interrupt() as cancel:
        result = operation.toggle_pin(context, path, dry_run=dry_run, cancel=cancel)
        shown = describe_entry(context, result.previous_path if dry_run else result.path)
    done, effect = _PIN_TEXTS[result.pinned]
    lines = [f"would be {done}: {shown}"] if dry_run else [f"{done}: {shown}", f"  {effect}"]
    return Report(select_members(result, "task_id path previous_path pinned notes"), lines, result.notes)


def _find_editor() -> list[str]:
    """Return the command of the editor, from the environment variables VISUAL or EDITOR.

    Raises:
        ConfigInvalid: neither is set, or its value is not a valid command.
    """
    try:
        editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    except ValueError:
        editor = []
    if not editor:
        raise ConfigInvalid("no editor is configured; set VISUAL or EDITOR, such as EDITOR=nano")
    return editor


def _run_editor(editor: list[str], copy: Path) -> bytes:
    """Run the editor on a copy of an entry, and return the content of the copy after the editor has exited.

    Args:
        editor: the command of the editor.
        copy: the file to edit.

    Raises:
        ConfigInvalid: the editor cannot be started, or exits with an error.
    """
    try:
        exit_code = subprocess.run([*editor, str(copy)], check=False).returncode  # noqa: S603  the owner configured it
        if exit_code == 0:
            return copy.read_bytes()
        problem = f"exited with {exit_code}"
    except OSError as error:
        problem = f"cannot be used: {error.strerror}"
    copy_hint = f"; your text is in {copy}" if copy.exists() else ""
    raise ConfigInvalid(f"the editor {editor[0]!r} {problem}; nothing was saved{copy_hint}")
