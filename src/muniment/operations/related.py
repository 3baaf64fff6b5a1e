"""Find the entries that are similar to a fact, for the brief of a run, so that the run can update them.

The candidates come from the search of recall, and are read and judged in the same way (E2 of
`recall/recaller.py`). Excluded are entries that the run's policy hides, withheld and expired entries, entries
with text that addresses an agent against the rules, and entries of other scopes. Each entry that a run
depends on is a precondition of its commit, whether the model sees it or not.

R1  The requester relies on an entry for a fact if the entry has at least the requester's trust. It must not
    end before the fact, or before the item of a list of facts with the same text.
R2  A fact may replace an entry if the requester has at least the entry's trust, the policy lets the run
    change the entry, and neither of them ends.
R3  A language model sees entries with at least the requester's trust or at least workspace trust. Text of
    agents and external authors does not reach a model for a requester with more trust.

Separate from `remember.py`, which commits: this module only reads. Attacked in
tests/units/operations/test_related.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final

from muniment.agent.model import Brief, Related
from muniment.content.entry import parse
from muniment.content.expiry import End
from muniment.content.provenance import separate_items
from muniment.content.words import comparable, sayings
from muniment.kernel.cancel import Patience
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import Digest, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.operations.place import Place
from muniment.recall.block import age
from muniment.recall.context import PINNED
from muniment.recall.query import read_query
from muniment.recall.reading import ReadEntry
from muniment.recall.search import TOLD_THERE, Search, Wanted
from muniment.recall.shelf import Shelf
from muniment.recall.stems import Stemmer
from muniment.store.audit import timestamp
from muniment.store.ledger import CommitRow
from muniment.store.trust import SEE, entry_id
from muniment.types import SimilarEntry
from muniment.types.keys import RootKey

MAX_RELATED: Final = 8
"""Entries of a brief."""

MAX_BODY_CHARS: Final = 4_000
"""Characters of a related entry; a longer one is a document, which is not a fact and is not replaced by one.
"""

_BEYOND: Final = 8
"""Extra candidates of the search, because some may be excluded."""


_LINKED: Final = f"""
    SELECT entry.root, entry.rel, entry.ident FROM entry WHERE {TOLD_THERE}
        AND (entry.ident IN (SELECT value FROM json_each(?))
            OR entry.digest IN (SELECT value FROM json_each(?)))
    ORDER BY entry.root, entry.rel
"""  # noqa: S608  constants of this package


def related_to(
    brief: Brief,
    request: Trust,
    place: Place,
    policy: Policy,
    patience: Patience,
    end_of: Callable[[str], End | None],
) -> tuple[Related, ...]:
    """Return the entries that are similar to the fact of a brief, the nearest first; none for a clean run.

    Args:
        brief: of the run.
        request: the trust of the requester.
        place: the memory.
        policy: of the run, which may be narrower than that of the place.
        patience: the deadline of the search.
        end_of: returns when the fact ends, or an item of a list of facts.

    Raises:
        ManagedMemoryUnavailable, PathEscape, Cancelled, DeadlineExceeded: as `Shelf`.

    Cost: that of a recall.
    """
    if brief.context is ContextMode.CLEAN:
        return ()
    judge, now = Judge(policy), datetime.now(UTC)
    scopes = {each.name for each in brief.scopes}
    shelf = Shelf(policy, place.roots, place.state, judge, place.policy, scopes, patience)
    query = read_query(brief.fact, _stemmer(), is_fact=True)
    wanted = Wanted(query, shelf.keys, (), timestamp(now), MAX_RELATED + _BEYOND, shelf.accepts)
    search = Search(place.state.catalog, _stemmer())
    texts = (brief.fact, *separate_items(brief.fact))
    picked = shelf.read_found(lambda: search.nearest(texts, wanted, patience), MAX_RELATED)
    ends = {comparable(text): end_of(text) for text in texts}
    found: list[Related] = []
    for reading in picked.readings:
        path = CanonicalPath(shelf.scope(reading.hit), reading.hit.key.rel)
        if len(reading.entry.body) <= MAX_BODY_CHARS:
            is_kept = PINNED in path.rel.split("/")[:-1] or not judge.allows(Verb.MODIFY, path)
            # The old entry would not be restored when the fact ends.
            is_kept = is_kept or brief.ends is not None
            found.append(_related(reading, path, ends, request, now, is_kept=is_kept))
    return tuple(found)


def _related(
    reading: ReadEntry,
    path: CanonicalPath,
    ends: Mapping[str, End | None],
    request: Trust,
    now: datetime,
    *,
    is_kept: bool,
) -> Related:
    entry = reading.entry
    says = sayings(entry.body) if reading.trust.satisfies(request) else ()
    is_ours = request.satisfies(reading.most) and not entry.has_end
    return Related(
        id=entry_id(entry),
        path=path,
        digest=reading.hit.key.digest,
        trust=reading.trust,
        age=age(reading.at, now),
        type=entry.type,
        title=reading.name,
        body=entry.body.strip(),
        sayings=frozenset(said for said in says if entry.lasts(ends.get(said))),
        is_ours=is_ours and not is_kept,
        is_shown=_may_speak(reading.trust, request),
    )


def gone_by(related: Iterable[Related]) -> dict[CanonicalPath, Digest]:
    """Return the entries that the run depends on.

    These are visible to a model, known to the requester, or replaceable.
    """
    return {each.path: each.digest for each in related if each.is_shown or each.is_ours or each.sayings}


def linked_entries(place: Place, done: CommitRow) -> tuple[SimilarEntry, ...]:
    """Return the recallable entries that the new entries of a commit are linked to.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    new = (item.change.after for item in done.changes if item.change.before is None and not item.is_erased)
    named = [(parse(after).muniment or {}).get(SEE) for after in new if after is not None]
    names = json.dumps([name for each in named for name in (each if isinstance(each, list) else [each])])
    scopes = place.scopes_by_key()
    values = (json.dumps(list(scopes)), timestamp(), names, names)
    rows = place.state.catalog.rows(_LINKED, values)
    return tuple(SimilarEntry(f"{scopes[RootKey(root)]}/{rel}", ident or "") for root, rel, ident in rows)


def _may_speak(trust: Trust, request: Trust) -> bool:
    """Return whether a text may be shown to the model of a request (R3)."""
    return trust.satisfies(request) or trust.satisfies(Trust.WORKSPACE)


@cache
def _stemmer() -> Stemmer:
    """Return the stemmer of all runs of a process."""
    return Stemmer()
