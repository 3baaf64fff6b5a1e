"""What the memory holds that is like a fact: for the brief of a run, so that nothing is filed unseen.

The candidates come from the search of recall, and are read and judged as there. What the run's policy does
not let it see, what is held, has expired, speaks to an agent as it may not, or is of another scope, is none
(E2 of `recall/recaller.py`). Each that a run goes by is a claim of it, whether a model is shown it or not.

R1  Whoever asks relies on what an entry says where it is trusted as far as he is, and ends no sooner than the
    fact, or the item of a list of facts, that says the same.
R2  He may put a fact in its place where he is trusted as far as it is, the policy lets the run change it, and
    neither ends.
R3  A language model is shown what is trusted as far as whoever asks, or as a workspace: what agents and
    strangers wrote speaks to nobody who is trusted more.

Apart from `remember.py`, which commits: this only reads. Attacked in tests/units/operations/test_related.py.
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
"""Characters of an entry that is related: a longer one is a document, which no fact is and none replaces."""

_BEYOND: Final = 8
"""Entries that are looked for beyond those that are wanted, as some may not be shown."""


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
    """The entries that are like the fact of a brief, the nearest first; none in a run that may see nothing.

    Args:
        brief: of the run.
        request: the trust of whoever asks.
        place: the memory.
        policy: of the run, which may be narrower than that of the place.
        patience: until when to look.
        end_of: asked when the fact ends, and each item of a list of facts.

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
            is_kept = is_kept or brief.ends is not None  # Nobody would have it back when the fact ends.
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
    """Those that a run goes by: shown to a model, known to whoever asks, or his to replace."""
    return {each.path: each.digest for each in related if each.is_shown or each.is_ours or each.sayings}


def linked_entries(place: Place, done: CommitRow) -> tuple[SimilarEntry, ...]:
    """Return the entries that may be recalled now and that the new entries of a commit are linked to.

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
    """Whether a text may be put before the model of a request (R3)."""
    return trust.satisfies(request) or trust.satisfies(Trust.WORKSPACE)


@cache
def _stemmer() -> Stemmer:
    """One for all runs of a process."""
    return Stemmer()
