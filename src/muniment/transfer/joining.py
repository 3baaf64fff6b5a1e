"""Join two memories of one project: import the entries of one into the other.

J1 Each entry keeps its bytes, its id and the trust that the ledger records. It is judged like an import, and
   a change that needs a review waits for the owner.
J2 Nothing is replaced. If another text already has the path, the entry gets a free name. If its id exists
   already, the entry gets a new id.
J3 The memory that the entries come from is not changed. `undo` removes the entries that a join added.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from muniment.cancelling import Cancel
from muniment.content.entry import Entry, completed, parse
from muniment.content.gates import decode, encode
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.names import RelPath, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.operations.place import Place
from muniment.store.trust import entry_id, new_ulid
from muniment.store.upkeep import view_of
from muniment.transfer.formats import SourceItem
from muniment.transfer.import_report import ImportRequest, ImportResult
from muniment.transfer.importing import bring_in


def join_entries(
    place: Place,
    other: BoundRoot,
    *,
    cancel: Cancel | None = None,
    observe: Callable[[int], None] = lambda _: None,
) -> ImportResult:
    """Copy the entries of another memory into the scope of the same name (J1 to J3).

    Args:
        place: the destination; the caller closes it.
        other: the source memory; the caller closes it.
        cancel: see `bring_in`.
        observe: see `bring_in`.

    Returns:
        The outcome of each entry. The notes list files that are not entries.

    Cost: as `bring_in`.
    """
    source = replace(place, roots={other.scope: other})
    unreadable: list[SourceItem] = []
    items = list(_items(place, source, other, unreadable))
    request = ImportRequest("muniment", Trust.OWNER, other.scope)
    result = bring_in([*items, *unreadable], request, place, cancel=cancel, observe=observe)
    odd = view_of(source.state, other, source.policy).odd()
    result.notes += [f"skipped {other.scope}/{each.path}: {each.reason}" for each in odd]
    return result


def _items(
    place: Place, source: Place, other: BoundRoot, unreadable: list[SourceItem]
) -> Iterator[SourceItem]:
    """Yield the entries of another memory, each at a path that is free or has the same bytes (J2)."""
    scope = other.scope
    view = view_of(place.state, place.roots[scope], place.policy, sweep=True)
    taken, ids = {fold(row.rel) for row in view.entries()}, {*view.idents()} - {""}
    for row in view_of(source.state, other, source.policy, sweep=True).entries():
        path = CanonicalPath(scope, row.rel)
        try:
            data = source.read(path)
            entry = parse(decode(data))
        except (PathEscape, Refusal, ToolError) as problem:
            unreadable.append(SourceItem(path.text, problem=str(problem)))
            continue
        trust = source.trust_at(path, data)
        if _read_or_none(place, path) != data:
            if fold(path.rel) in taken:
                path = _free_path(path, taken)
            if entry_id(entry) in ids:
                data = _with_new_id(entry)
        taken.add(fold(path.rel))
        ids |= {entry_id(entry)} - {""}
        yield SourceItem(path.text, entry.body, path=path.text, entry=data, trust=trust)


def _with_new_id(entry: Entry) -> bytes:
    """Return an entry with another id in its provenance."""
    told = {key: value for key, value in (entry.muniment or {}).items() if isinstance(value, str)}
    return encode(completed(entry, {}, {**told, "id": new_ulid()}))


def _read_or_none(place: Place, path: CanonicalPath) -> bytes | None:
    """Return the bytes of a file, or None if it cannot be read."""
    try:
        return place.read(path)
    except (PathEscape, Refusal, ToolError):
        return None


def _free_path(path: CanonicalPath, taken: set[str]) -> CanonicalPath:
    """Return the first numbered path that no entry has."""
    stem = path.rel.removesuffix(FILE_SUFFIX)
    rels = (RelPath(f"{stem}-{number}{FILE_SUFFIX}") for number in itertools.count(2))
    return CanonicalPath(path.scope, next(rel for rel in rels if fold(rel) not in taken))
