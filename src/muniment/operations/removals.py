"""Entries that jobs removed, as results list them, also for a commit from the past.

For a past commit the list is derived from its stored bytes and today's policy. It may report the other one of
two items of a list with the same text, and it omits bytes that were erased since.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from muniment.content.admission import held_for
from muniment.content.entry import MAX_DESCRIPTION_CHARS, Entry, EntryType, parse, shortened, titled
from muniment.content.expiry import is_expired
from muniment.content.gates import one_line
from muniment.content.markdown import Item, outline
from muniment.errors import JobError
from muniment.kernel.change import ChangeSet, digest
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.operations.place import Place
from muniment.store.ledger import ChangeRow, CommitRow, source_of
from muniment.types import RemovedEntry

_BREAK: Final = re.compile("\r\n|\n|\r")


def removal(path: CanonicalPath, entry: Entry, said: str) -> RemovedEntry:
    """Return an entry, or a part of one, as results report its removal.

    Args:
        path: of the entry.
        entry: the entry before the removal.
        said: its name, or the text of the part; only the start is reported.
    """
    start = said[: 10 * MAX_DESCRIPTION_CHARS]
    return RemovedEntry(topic_of(entry), shortened(one_line(start), MAX_DESCRIPTION_CHARS), path.text)


def removals(path: CanonicalPath, entry: Entry, parts: Sequence[Item]) -> Iterator[RemovedEntry]:
    """Return some parts of an entry as results report their removal, each with its line number."""
    behind = len(entry.text) - len(entry.body)
    ends = [found.end() for found in _BREAK.finditer(entry.text)] if parts else []
    for part in parts:
        lines = entry.body[part.start : part.end].rstrip()
        start = part.start + len(lines) - len(lines.lstrip("\r\n"))
        line = bisect_right(ends, behind + start) + 1
        yield replace(removal(path, entry, part.own), line=line, text=lines.lstrip("\r\n"))


def topic_of(entry: Entry) -> str:
    """Return the type of an entry, or `reference` (the most common type) if it has none."""
    return entry.type or EntryType.REFERENCE


def topics_of(changes: Iterable[ChangeRow]) -> tuple[str, ...]:
    """Return the topics of the entries that a commit changed, sorted, if their bytes are known."""
    known = (each.change.before or each.change.after for each in changes if not each.is_erased)
    return tuple(sorted({topic_of(parse(data)) for data in known if data is not None}))


def forgotten_by(place: Place, done: CommitRow) -> tuple[RemovedEntry, ...]:
    """Return the entries and items that the commit of a forget removed, if their bytes are known."""
    return tuple(each for item in done.changes if not item.is_erased for each in _of_change(place, item))


def expired_by(place: Place, done: CommitRow) -> frozenset[str]:
    """Return the paths that the commit of a dream removed because they had expired, if that is known."""
    found: set[str] = set()
    for item in done.changes:
        path, before = item.change.path, item.change.before
        if item.change.after is not None or before is None:
            continue
        if is_expired(place.assessed(path, before).expires, done.run.at):
            found.add(path.text)
    return frozenset(found)


def _of_change(place: Place, item: ChangeRow) -> Iterator[RemovedEntry]:
    path, before, after = item.change.path, item.change.before or b"", item.change.after
    entry = parse(before)
    if after is None:
        yield removal(path, entry, _name(place, item, before))
        return
    yield from removals(
        path, entry, tuple(_gone(outline(entry.body).parts, outline(parse(after).body).parts))
    )


def _name(place: Place, item: ChangeRow, data: bytes) -> str:
    """Return the name of an entry, or the name of its file if its text is withheld."""
    path = item.change.path
    is_ours = source_of(place.state, item.root, path.rel, digest(data)) is not None
    if not is_ours and held_for(data, path.text, place.policy.trust_of(path.scope)) is not None:
        return path.name.removesuffix(FILE_SUFFIX)
    return titled(parse(data), path.rel).name


def _gone(items: Sequence[Item], left: Sequence[Item]) -> Iterator[Item]:
    """Return the items that are not in `left`, which has the remaining ones in the same order."""
    rest = list(left)
    for each in items:
        if rest and rest[0].own.strip() == each.own.strip():
            yield from _gone(each.items, rest.pop(0).items)
        else:
            yield each


def preview_digest(place: Place, kind: str, change_sets: Iterable[ChangeSet]) -> str | None:
    """Return the digest of exactly the changes that would be made, or None without changes.

    The digest is keyed: a caller can only know it from the preview.
    """
    every = (change for change_set in change_sets for change in change_set.changes)
    changes = [[each.path.text, each.base, each.digest] for each in every]
    return place.state.keyed(f"{kind} {json.dumps(sorted(changes))}") if changes else None


def check_preview(wanted: str | None, found: str | None, *, is_dry: bool) -> None:
    """Check that the changes are those of the preview whose digest a request contains.

    Raises:
        JobError: the changes have another digest now; `preview_changed`.
    """
    if not is_dry and wanted not in {None, found}:
        raise JobError(
            "the entries to remove changed since the preview with this digest; nothing was removed; "
            "request a new preview, and send its digest",
            code="preview_changed",
        )
