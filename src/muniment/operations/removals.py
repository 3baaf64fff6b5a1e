"""Entries that jobs removed, as results name them, also of a commit that was made before.

Of a commit that is long done this is what its bytes and the policy of today tell: of two items of a list that
say the same it may name the other one, and of what was erased since it says nothing.
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
    """An entry, or a part of one, as it is told that it went.

    Args:
        path: of the entry.
        entry: as it was.
        said: its name, or the text of the part; only the start of it is told.
    """
    start = said[: 10 * MAX_DESCRIPTION_CHARS]
    return RemovedEntry(topic_of(entry), shortened(one_line(start), MAX_DESCRIPTION_CHARS), path.text)


def removals(path: CanonicalPath, entry: Entry, parts: Sequence[Item]) -> Iterator[RemovedEntry]:
    """Some parts of an entry as it is told that they went, each with its lines."""
    behind = len(entry.text) - len(entry.body)
    ends = [found.end() for found in _BREAK.finditer(entry.text)] if parts else []
    for part in parts:
        lines = entry.body[part.start : part.end].rstrip()
        start = part.start + len(lines) - len(lines.lstrip("\r\n"))
        line = bisect_right(ends, behind + start) + 1
        yield replace(removal(path, entry, part.own), line=line, text=lines.lstrip("\r\n"))


def topic_of(entry: Entry) -> str:
    """The type of an entry; of one that says none what most of those are."""
    return entry.type or EntryType.REFERENCE


def topics_of(changes: Iterable[ChangeRow]) -> tuple[str, ...]:
    """The topics of what a commit changed, sorted, each once; as far as its bytes are known."""
    known = (each.change.before or each.change.after for each in changes if not each.is_erased)
    return tuple(sorted({topic_of(parse(data)) for data in known if data is not None}))


def forgotten_by(place: Place, done: CommitRow) -> tuple[RemovedEntry, ...]:
    """The entries and items that the commit of a forget removed, as far as their bytes are known."""
    return tuple(each for item in done.changes if not item.is_erased for each in _of_change(place, item))


def expired_by(place: Place, done: CommitRow) -> frozenset[str]:
    """The paths that the commit of a dream removed because their time was over, as far as that is known."""
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
    """The name of an entry; of one whose text is held back that of its file."""
    path = item.change.path
    is_ours = source_of(place.state, item.root, path.rel, digest(data)) is not None
    if not is_ours and held_for(data, path.text, place.policy.trust_of(path.scope)) is not None:
        return path.name.removesuffix(FILE_SUFFIX)
    return titled(parse(data), path.rel).name


def _gone(items: Sequence[Item], left: Sequence[Item]) -> Iterator[Item]:
    """Those of `items` that are not among `left`, which has the others in the same order."""
    rest = list(left)
    for each in items:
        if rest and rest[0].own.strip() == each.own.strip():
            yield from _gone(each.items, rest.pop(0).items)
        else:
            yield each


def preview_digest(place: Place, kind: str, change_sets: Iterable[ChangeSet]) -> str | None:
    """Return the digest of exactly what would change; None: nothing would.

    It is keyed, so that nobody can make it who was not shown the preview.
    """
    every = (change for change_set in change_sets for change in change_set.changes)
    changes = [[each.path.text, each.base, each.digest] for each in every]
    return place.state.keyed(f"{kind} {json.dumps(sorted(changes))}") if changes else None


def check_preview(wanted: str | None, found: str | None, *, is_dry: bool) -> None:
    """Refuse to change something else than the preview showed whose digest a request names.

    Raises:
        JobError: what would change now has another digest; `preview_changed`.
    """
    if not is_dry and wanted not in {None, found}:
        raise JobError(
            "what would go now is not what the preview of this digest showed; nothing was removed; "
            "look at a preview again, and give its digest",
            code="preview_changed",
        )
