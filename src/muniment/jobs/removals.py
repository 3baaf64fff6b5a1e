"""What jobs say of entries that they removed; and what a commit removed, read from the ledger.

Of a commit that is long done this is what its bytes and the policy of today tell: of two items of a list that
say the same it may name the other one, and of what was erased since it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from muniment.content.admission import held_for
from muniment.content.entry import MAX_DESCRIPTION_CHARS, Entry, EntryType, parse, shortened, titled
from muniment.content.gates import one_line
from muniment.content.markdown import Item, outline
from muniment.jobs.forget_request import Removed
from muniment.jobs.place import Place
from muniment.policy.grammar import FILE_SUFFIX, CanonicalPath
from muniment.store.ledger import Kept, KeptChange, source_of
from muniment.store.trust import assessing
from muniment.tools.overlay import digest


def removal(path: CanonicalPath, entry: Entry, said: str) -> Removed:
    """An entry, or an item of one, as it is told that it went.

    Args:
        path: of the entry.
        entry: as it was.
        said: its name, or the text of the item; only the start of it is told.
    """
    start = said[: 10 * MAX_DESCRIPTION_CHARS]
    return Removed(topic_of(entry), shortened(one_line(start), MAX_DESCRIPTION_CHARS), path.text)


def topic_of(entry: Entry) -> str:
    """The type of an entry; of one that says none what most of those are."""
    return entry.type or EntryType.REFERENCE


def topics_of(changes: Iterable[KeptChange]) -> tuple[str, ...]:
    """The topics of what a commit changed, sorted, each once; as far as its bytes are known."""
    known = (each.before or each.after for each in changes if not each.is_erased)
    return tuple(sorted({topic_of(parse(data)) for data in known if data is not None}))


def forgotten_by(place: Place, done: Kept) -> tuple[Removed, ...]:
    """The entries and items that the commit of a forget removed, as far as their bytes are known."""
    return tuple(each for item in done.changes if not item.is_erased for each in _of_change(place, item))


def expired_by(place: Place, done: Kept) -> frozenset[str]:
    """The paths that the commit of a dream removed because their time was over, as far as that is known."""
    found: set[str] = set()
    for item in done.changes:
        if item.after is not None or item.before is None:
            continue
        assess = assessing(place.state, item.root, item.scope, place.policy)
        expires = assess(item.rel, digest(item.before), item.before).expires
        if expires is not None and expires <= done.origin.at:
            found.add(item.path)
    return frozenset(found)


def _of_change(place: Place, item: KeptChange) -> Iterator[Removed]:
    path, before = CanonicalPath(item.scope, item.rel), item.before or b""
    entry = parse(before)
    if item.after is None:
        yield removal(path, entry, _name(place, item, before))
        return
    ours, left = outline(entry.body).items, outline(parse(item.after).body).items
    yield from (removal(path, entry, each.own) for each in _gone(ours, left))


def _name(place: Place, item: KeptChange, data: bytes) -> str:
    """The name of an entry; of one whose text is held back that of its file."""
    is_ours = source_of(place.state, item.root, item.rel, digest(data)) is not None
    if not is_ours and held_for(data, item.rel, place.policy.trust_of(item.scope)) is not None:
        return item.rel.rpartition("/")[2].removesuffix(FILE_SUFFIX)
    return titled(parse(data), item.rel).name


def _gone(items: Sequence[Item], left: Sequence[Item]) -> Iterator[Item]:
    """Those of `items` that are not among `left`, which has the others in the same order."""
    rest = list(left)
    for each in items:
        if rest and rest[0].own.strip() == each.own.strip():
            yield from _gone(each.items, rest.pop(0).items)
        else:
            yield each
