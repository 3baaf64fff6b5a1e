"""Join two memories of one project: import the entries of one memory into the other.

J1 Each entry keeps its bytes, its id and the trust that the ledger records. The entry is judged like an
   import, and a change that needs a review waits for the owner.
J2 No file is replaced. If a file with another text has the path already, the entry gets a free path. If
   another entry has the id already, the entry gets a new id.
J3 The memory that the entries come from is not changed. `undo` removes the entries that a join added.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from muniment.cancelling import Cancel
from muniment.content.entry import Entry, complete_front_matter, parse
from muniment.content.gates import decode, encode
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.names import RelPath, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.operations.job_context import JobContext
from muniment.store.handles import read_entry_id
from muniment.store.trust import generate_ulid
from muniment.store.upkeep import open_view
from muniment.transfer.formats import SourceItem
from muniment.transfer.import_report import ImportRequest, ImportResult
from muniment.transfer.importing import import_items


def join_entries(
    context: JobContext,
    other: BoundRoot,
    *,
    cancel: Cancel | None = None,
) -> ImportResult:
    """Copy the entries of another memory into the scope with the same name.

    Existing files are not replaced, and the other memory is not changed.

    Args:
        context: the context of the destination memory; the caller closes it.
        other: the root of the memory to copy from; the caller closes it.
        cancel: as in `import_items`.

    Returns:
        The outcome of each entry. Its notes list the files of the other memory that are not entries.

    Cost: as `import_items`.
    """
    source = replace(context, roots={other.scope: other})
    unreadable: list[SourceItem] = []
    items = list(_list_items(context, source, other, unreadable))
    request = ImportRequest("muniment", Trust.OWNER, other.scope)
    result = import_items([*items, *unreadable], request, context, cancel=cancel)
    odd = open_view(source.state, other, source.policy).list_odd_names()
    result.notes += [f"skipped {other.scope}/{each.path}: {each.reason}" for each in odd]
    return result


def _list_items(
    context: JobContext, source: JobContext, other: BoundRoot, unreadable: list[SourceItem]
) -> Iterator[SourceItem]:
    """Yield the entries of `other` as items, each with a path that is free or whose file is identical.

    Entries that cannot be read are added to `unreadable`.
    """
    scope = other.scope
    view = open_view(context.state, context.roots[scope], context.policy, sweep=True)
    used_paths, ids = {fold(row.rel) for row in view.entries()}, {*view.read_claimed_ids()} - {""}
    for row in open_view(source.state, other, source.policy, sweep=True).entries():
        path = CanonicalPath(scope, row.rel)
        try:
            data = source.read_file(path)
            entry = parse(decode(data))
        except (PathEscape, Refusal, ToolError) as problem:
            unreadable.append(SourceItem(path.text, problem=str(problem)))
            continue
        trust = source.read_trust(path, data)
        if _read_or_none(context, path) != data:
            if fold(path.rel) in used_paths:
                path = _find_free_path(path, used_paths)
            if read_entry_id(entry) in ids:
                data = _replace_id(entry)
        used_paths.add(fold(path.rel))
        ids |= {read_entry_id(entry)} - {""}
        yield SourceItem(path.text, entry.body, path=path.text, entry=data, trust=trust)


def _replace_id(entry: Entry) -> bytes:
    """Return the file of an entry with a new id in its provenance."""
    provenance = {key: value for key, value in (entry.muniment or {}).items() if isinstance(value, str)}
    return encode(complete_front_matter(entry, {}, {**provenance, "id": generate_ulid()}))


def _read_or_none(context: JobContext, path: CanonicalPath) -> bytes | None:
    """Return the bytes of the file at `path`, or None if it cannot be read."""
    try:
        return context.read_file(path)
    except (PathEscape, Refusal, ToolError):
        return None


def _find_free_path(path: CanonicalPath, used_paths: set[str]) -> CanonicalPath:
    """Return `path` with the first number that makes it free, such as `name-2.md`."""
    stem = path.rel.removesuffix(FILE_SUFFIX)
    rels = (RelPath(f"{stem}-{number}{FILE_SUFFIX}") for number in itertools.count(2))
    return CanonicalPath(path.scope, next(rel for rel in rels if fold(rel) not in used_paths))
