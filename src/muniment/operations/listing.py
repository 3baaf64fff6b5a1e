"""List entries and show one entry, as a reader may see them.

L1 A reader below the owner's trust gets an entry only if a recall may return it now
   (`operations.visibility`). Every other path is reported as missing to this reader.
L2 The owner gets every entry that the policy does not hide, withheld and expired entries included. A person
   at the command line can also list the hidden ones.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from muniment.cancelling import Cancel
from muniment.content.entry import is_pinned, parse, read_titles
from muniment.content.expiry import is_expired
from muniment.content.gates import decode
from muniment.errors import NotFound
from muniment.kernel.change import digest
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.job_context import JobContext, is_visible
from muniment.operations.renames import read_entry_file
from muniment.operations.visibility import Reader, Visibility
from muniment.store.audit import timestamp
from muniment.store.catalog import CatalogEntry
from muniment.store.handles import read_handle
from muniment.store.rows import Assessment
from muniment.types import EntryList, EntryShown, ListedEntry, SkippedFile

OWNER_READER: Final = Reader(Trust.OWNER)


def list_entries(  # noqa: PLR0913  as in the command
    context: JobContext,
    reader: Reader = OWNER_READER,
    *,
    scope: str | None = None,
    below: str = "",
    limit: int | None = None,
    expired: bool = False,
    after: str | None = None,
    with_hidden: bool = False,
    cancel: Cancel | None = None,
) -> EntryList:
    """List the entries that a reader may see, sorted by path.

    Args:
        context: the memory; the caller closes it.
        reader: the reader who gets the list.
        scope: the only scope to list; None: all.
        below: list only this file or folder of each scope; empty: all.
        limit: the maximum number of entries; None: all.
        expired: also list expired entries (owner only).
        after: `next_cursor` of the page before; None: start at the beginning.
        with_hidden: also list entries that the policy hides (only for a person at the command line).
        cancel: cancels the call.

    Raises:
        InvalidScope: no bound scope has this name.
        ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.

    Cost: a check of every file; for a reader below the owner's trust, a read of each entry of the page.
    """
    visibility, now = Visibility(context, reader, cancel), timestamp()
    views = {name: visibility.load_view(name) for name in sorted(context.select_scopes(scope))}
    matching = [
        (path, row)
        for name, view in views.items()
        for row in view.entries()
        if _is_below((path := CanonicalPath(name, row.rel)).rel, below)
        and (with_hidden or visibility.can_list(path, row))
    ]
    current = [each for each in matching if expired or not is_expired(each[1].expires, now)]
    listed = (
        _create_listed_entry(path, row)
        for path, row in current
        if (after is None or path.text > after) and (reader.is_owner or visibility.load_entry(path))
    )
    entries = (found := tuple(islice(listed, None if limit is None else limit + 1)))[:limit]
    skipped = (
        SkippedFile(path=f"{name}/{skipped_file.path}", reason=skipped_file.reason)
        for name, view in views.items()
        for skipped_file in view.list_odd_names()
        if reader.is_owner and _is_below(skipped_file.path, below)
    )
    return EntryList(
        entries=entries,
        expired=len(matching) - len(current),
        skipped=tuple(skipped),
        complete=all(view.is_complete for view in views.values()),
        next_cursor=entries[-1].path if len(found) > len(entries) and entries else None,
    )


def _is_below(rel: str, below: str) -> bool:
    return not below or rel == below or rel.startswith(f"{below}/")


def _create_listed_entry(path: CanonicalPath, row: CatalogEntry) -> ListedEntry:
    return ListedEntry(
        path=path.text,
        title=row.name,
        description=row.description,
        type=row.type,
        size=row.size,
        trust=row.trust,
        expires=row.expires,
        ends=row.ends,
        readable=row.readable,
        withheld=row.held,
        note=row.note,
        handle=row.handle,
        at=row.at,
    )


def show_entry(context: JobContext, unsafe_path: str, reader: Reader = OWNER_READER) -> EntryShown:
    """Return one entry as a reader may see it.

    Args:
        context: the memory; the caller closes it.
        unsafe_path: the path of an entry, its address or its handle.
        reader: the reader who gets the entry.

    Raises:
        NotFound: the path has no entry that the reader may see.
        PathEscape, Refusal, ToolError: the path is invalid, or its file is not a readable text.
        ManagedMemoryUnavailable: a root or the state cannot be used.

    Cost: a read of the file; for a reader below the owner's trust, a check of every file of the scope.
    """
    path = Visibility(context, reader).resolve_entry(unsafe_path)
    context.select_scopes(path.scope)
    if not is_visible(PolicyEvaluator(context.policy), path):
        raise _create_missing_error(path)
    if reader.is_owner:
        data = read_entry_file(context, path)
        assessment = context.assess(path, data)
    else:
        loaded = Visibility(context, reader).load_entry(path)
        if loaded is None:
            raise _create_missing_error(path)
        data, assessment = loaded.data, Assessment(loaded.trust, loaded.row.expires)
    with context.roots[path.scope].root.open_file(path) as file:
        written = datetime.fromtimestamp(os.fstat(file.fd).st_mtime, UTC)
    entry = parse(decode(data))
    return EntryShown(
        path=path.text,
        id=str((entry.muniment or {}).get("id", "")),
        handle=read_handle(entry, path) if assessment.held is None else "",
        title=read_titles(entry, path.rel).name,
        text=entry.body,
        trust=assessment.trust,
        at=timestamp(written),
        expires=assessment.expires,
        ends=None if entry.ends is None else str(entry.ends),
        pinned=is_pinned(path.rel),
        withheld=assessment.held,
        digest=digest(data),
    )


def _create_missing_error(path: CanonicalPath) -> NotFound:
    return NotFound(f"entry {path.text} not found")
