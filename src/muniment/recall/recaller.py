"""Recall the entries that help with a message, as a text for a model.

- E1. It never raises, and never waits past its time limit: an error gives an empty result with the reason in
  it and in a `memory_retrieval_failed` event.
- E2. Every returned entry is visible by the policy, not withheld, not expired, not excluded, and has the
  current content of its file (`reading.py`).
- E3. At most `shelf.MAX_EXTERNAL` of the entries have trust `external`. Any number of external matches keeps
  no other entry out: an outsider who adds entries can neither fill a result nor empty it.
- E4. With a chooser, its picks come first, in its order, followed by the other search results. If its answer
  contains anything else, or it fails, the search order is used.
- E5. For entries that are not the owner's, a chooser receives only names that code derived: no other author
  can address it with a title.
- E6. Entries that have ended, according to their text, come after the others, with the day. At most
  `MAX_ENDED` of them are in a result that has others.

Attacked in tests/units/recall/test_recaller.py and test_recall_bad_input.py.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from muniment import events
from muniment.content.expiry import has_ended
from muniment.content.markdown import fence_token
from muniment.errors import Cancelled, ConfigInvalid, ManagedMemoryUnavailable, MunimentError, recall_failed
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.recall.block import Count, block_of, estimated, system_block_of
from muniment.recall.excerpt import Weight, excerpt, unweighed
from muniment.recall.query import read_query
from muniment.recall.reading import ReadEntry
from muniment.recall.search import HIT_COLUMNS, Search, SearchResult, Wanted, hit_of, left_over
from muniment.recall.shelf import Picked, Shelf
from muniment.recall.stems import Stemmer
from muniment.store.audit import append, timestamp
from muniment.store.database import Database
from muniment.store.index import shown_path
from muniment.store.ledger import root_key
from muniment.store.rows import as_indexed
from muniment.store.state import State
from muniment.types import Recalled, RecalledEntry
from muniment.types.keys import EntryKey, RootKey

MAX_ENTRIES: Final = 5
"""Default maximum of entries of a result."""

MAX_TOKENS: Final = 2_000
"""Default maximum of tokens of a result: five of the longest entries."""

CANDIDATES: Final = 12
"""Entries that are searched beyond the limit, as some may not be displayed."""

ABOUT_CHARS: Final = 150
"""Characters of an entry without a description that a chooser receives."""

MAX_ASKED: Final = 24
"""Candidates whose files are compared with their rows, about 10 µs each."""

_ID: Final = re.compile(r"(?P<scope>[^/]*)/(?P<rel>.*)@(?P<digest>[^@]*)", re.DOTALL)

Chooser = Callable[[str, Sequence[str], int, Patience], Sequence[int] | None]
"""Function that, given a message, descriptions of some entries and a limit, returns the numbers of at most so
many that help, the best first; None: it has no answer. Raises `Cancelled` or `DeadlineExceeded` if it was
cancelled or out of time; any other error counts as no answer.
"""


class Recaller:
    """Recalls entries from the scopes of a policy. Threads may share one; close it when done.

    Args:
        policy: decides which entries are visible.
        roots: the bound roots; the caller closes them and the state.
        state: the ledger and the catalog.
        count: counts tokens; by default a third of the bytes.
        clock: the time, for ages and expiry.
        notes: added to every result of `recall`.
    """

    def __init__(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        *,
        count: Count = estimated,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        notes: tuple[str, ...] = (),
    ) -> None:
        self._policy, self._roots, self._state, self._notes = policy, roots, state, notes
        self._clock = clock
        self._judge = Judge(policy)
        self.count = count
        self.stemmer = Stemmer()
        self._search = _search_of(state, self.stemmer)

    def recall(
        self,
        query: str,
        *,
        exclude: Collection[EntryKey] = (),
        scopes: Collection[str] | None = None,
        limit: int = MAX_ENTRIES,
        budget: int = MAX_TOKENS,
        choose: Chooser | None = None,
        patience: Patience | None = None,
        needs_entry: bool = False,
    ) -> Recalled:
        """Return the entries that help with `query` (E1 to E4).

        Args:
            query: a message, or some words.
            exclude: entries that were displayed before, with their content; an entry that was changed since
                may be returned.
            scopes: the scopes to search; None: all. Unknown scopes have no entries.
            limit: maximum number of entries; below one: no search.
            budget: maximum tokens of the complete text; below one: no search.
            choose: picks among the search results (E4); None: search only.
            patience: the time limit; None: unlimited.
            needs_entry: a budget that is too small for one entry is an error with the minimum budget.

        Cost: 3 ms of CPU if nothing changed since the last call; 5 ms in a memory of 100 000 entries.
        """
        until = patience or Patience(float("inf"))

        def work(shelf: Shelf) -> Recalled:
            if limit < 1 or budget < 1:
                return Recalled()
            asked = read_query(query, self.stemmer)
            wanted = Wanted(asked, shelf.keys, exclude, self.now, limit + CANDIDATES, shelf.accepts)
            found, picked = self._picked(wanted, shelf, limit, until)
            if len(picked.readings) < min(limit, len(found.hits)) and self._is_crowded(found, picked, until):
                picked = self._beside_external(wanted, shelf, picked, limit, until)
            readings = picked.readings[:limit]
            if readings and choose is not None:
                readings = _chosen(choose, query, readings, limit, until)
            readings = sorted(readings, key=self._has_ended)
            if not readings:
                return Recalled(abstained=True, withheld=picked.withheld)

            def weight(passage: str) -> float:
                return found.ranking.weight(as_indexed(passage))

            told = self.told(readings, shelf, budget, weight=weight)
            if needs_entry and not told.entries:
                raise self._too_small(readings[0], shelf, budget)
            return replace(told, withheld=picked.withheld)

        return replace(self.answer(work, scopes, until), notes=self._notes)

    def _too_small(self, reading: ReadEntry, shelf: Shelf, budget: int) -> ConfigInvalid:
        """Return the error for a budget that is too small for one entry, with the minimum budget."""
        needs = range(budget + 1, budget + MAX_TOKENS)
        least = bisect_left(needs, 1, key=lambda each: len(self.told([reading], shelf, each).entries))
        return ConfigInvalid(
            f"the budget of {budget} tokens is too small for one entry; use at least {needs[least]}"
        )

    def answer(
        self, work: Callable[[Shelf], Recalled], scopes: Collection[str] | None, patience: Patience
    ) -> Recalled:
        """Return the result of `work` for the entries of some scopes; empty after an error (E1).

        A damaged catalog is rebuilt, once.
        """
        try:
            try:
                return work(self._shelf(scopes, patience))
            except ManagedMemoryUnavailable as error:
                if not self.catalog.is_damaged(error):
                    raise  # If the ledger is damaged, rebuilding the catalog would not help.
            self._state.renew_catalog()
            return work(self._shelf(scopes, patience))
        except Cancelled as error:
            return Recalled(error=error)
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return Recalled(error=error)
        except Exception as defect:  # noqa: BLE001  the caller continues without a result (E1)
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=recall_failed(type(defect).__name__))

    def has_told_all(self, told: Collection[EntryKey], patience: Patience) -> bool:
        """Return whether all visible entries are in `told`; False if this is unknown.

        Cost: a query that ends at the first entry that is left.
        """
        found = True

        def work(shelf: Shelf) -> Recalled:
            nonlocal found
            rows = left_over(self.catalog, shelf.keys, told, self.now, patience)
            found = not any(shelf.accepts(key.root, key.rel) for key in rows)
            return Recalled()

        return self.answer(work, None, patience).error is None and found

    def keys_of(self, unsafe_ids: Iterable[str]) -> set[EntryKey]:
        """Return the entries for ids, see `RecalledEntry.id`; unknown ids are left out.

        Returns an empty set if the ledger cannot be read; an event is logged.
        """
        roots = self._root_keys()
        named = filter(None, map(_ID.fullmatch, unsafe_ids))
        return {
            EntryKey(roots[Scope(found["scope"])], RelPath(found["rel"]), Digest(found["digest"]))
            for found in named
            if found["scope"] in roots
        }

    def ids_of(self, keys: Iterable[EntryKey]) -> list[str]:
        """Return the ids of entries, sorted; entries of another memory are left out, see `keys_of`."""
        scopes = {key: scope for scope, key in self._root_keys().items()}
        return sorted(f"{scopes[key.root]}/{key.rel}@{key.digest}" for key in keys if key.root in scopes)

    def record(self, recalled: Recalled, where: str) -> None:
        """Write to the ledger which entries a model received; errors are only logged as an event.

        Cost: a durable transaction, some milliseconds; it waits for the transaction of another process.
        """
        body = {
            "where": where,
            "tokens": recalled.tokens,
            "entries": [
                {"path": each.path, "digest": each.id.rpartition("@")[2]} for each in recalled.entries
            ],
        }
        try:
            append(self._state, timestamp(self._clock()), "injection", None, body)
        except MunimentError as error:
            events.emit("injection_not_recorded", code=error.code)
        except Exception as defect:  # noqa: BLE001  the caller cannot handle it (E1)
            events.emit_defect("injection_not_recorded", defect)

    def close(self) -> None:
        """Release the resources of this recaller."""
        self.stemmer.close()

    @property
    def catalog(self) -> Database:
        """Return the catalog."""
        return self._state.catalog

    @property
    def now(self) -> str:
        """Return the time in the format of rows."""
        return timestamp(self._clock())

    def told(
        self,
        readings: Sequence[ReadEntry],
        shelf: Shelf,
        budget: int,
        *,
        weight: Weight = unweighed,
        is_system: bool = False,
    ) -> Recalled:
        """Return the text for a model with some entries, within a budget.

        Args:
            readings: the most important first.
            shelf: the roots of the entries.
            budget: tokens.
            weight: relevance of passages, see `excerpt`.
            is_system: for a system prompt; raises ValueError if the trust of an entry is not `owner`.
        """
        entries = [
            RecalledEntry(
                id=f"{shelf.path(each.hit)}@{each.hit.key.digest}",
                path=shelf.path(each.hit),
                name=each.name,
                trust=each.trust,
                at=timestamp(each.at),
                text=each.entry.body,
                ended=str(each.entry.ends) if self._has_ended(each) else None,
                key=each.hit.key,
            )
            for each in readings
        ]
        if is_system:
            return system_block_of(entries, budget, self.count, weight)
        return self._block(entries, budget, weight)

    def _has_ended(self, reading: ReadEntry) -> bool:
        """Return whether an entry has ended according to its text (E6)."""
        return has_ended(reading.entry.ends, self._clock())

    def without(self, recalled: Recalled, keys: Collection[EntryKey], budget: int) -> Recalled:
        """Return a result without some entries, within a budget; the same object if nothing changes.

        For callers that learn only later which entries were injected elsewhere. It never raises (E1), and
        does no I/O.

        Args:
            recalled: not of the system tier.
            keys: of the entries to remove.
            budget: tokens of the complete text.
        """
        left = [each for each in recalled.entries if each.key not in keys]
        if len(left) == len(recalled.entries) and recalled.tokens <= budget:
            return recalled
        try:
            block = self._block(left, budget)
        except Exception as defect:  # noqa: BLE001  as `answer`: the caller's count may be broken
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=recall_failed(type(defect).__name__))
        return replace(recalled, entries=block.entries, text=block.text, tokens=block.tokens)

    def _block(self, entries: Sequence[RecalledEntry], budget: int, weight: Weight = unweighed) -> Recalled:
        token, now = fence_token(), self._clock()
        return block_of(entries, budget, token, now, self.count, weight)

    def _shelf(self, scopes: Collection[str] | None, patience: Patience) -> Shelf:
        return Shelf(self._policy, self._roots, self._state, self._judge, self._policy, scopes, patience)

    def _root_keys(self) -> dict[Scope, RootKey]:
        """Return the keys of the roots; empty if the ledger cannot be read; an event is logged."""
        try:
            return {scope: root_key(self._state, bound) for scope, bound in self._roots.items()}
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return {}

    def _picked(
        self, wanted: Wanted, shelf: Shelf, enough: int, patience: Patience
    ) -> tuple[SearchResult, Picked]:
        """Return the search result and its visible entries; retry once if files differ from their rows."""
        search = self._search
        found = search.find(wanted, patience)
        if shelf.have_changed(found.hits[:MAX_ASKED]):
            found = search.find(wanted, patience)
        picked = shelf.read(found.hits, enough, self._has_ended)
        if picked.changed:
            shelf.look_again(picked.changed)
            found = search.find(wanted, patience)
            picked = shelf.read(found.hits, enough, self._has_ended)
        return found, picked

    def _is_crowded(self, found: SearchResult, picked: Picked, patience: Patience) -> bool:
        """Return whether external entries were found that are not displayed, and may hide others (E3)."""
        places = json.dumps([hit.key[:2] for hit in found.hits])
        query = (
            "SELECT count(*) FROM json_each(?) AS place CROSS JOIN entry"
            " ON entry.root = json_extract(place.value, '$[0]')"
            " AND entry.rel = json_extract(place.value, '$[1]') AND entry.trust = ?"
        )
        ((external,),) = self.catalog.rows(query, (places, Trust.EXTERNAL), patience=patience)
        return bool(external > sum(each.trust is Trust.EXTERNAL for each in picked.readings))

    def _beside_external(
        self, wanted: Wanted, shelf: Shelf, picked: Picked, enough: int, patience: Patience
    ) -> Picked:
        """Return the picked external entries, and the results of a search without external entries (E3).

        Cost: a scan of all rows; 30 ms in a memory of 100 000 entries.
        """
        query = (
            f"SELECT {HIT_COLUMNS} FROM entry "  # noqa: S608  columns from `search.py`
            "WHERE entry.root IN (SELECT value FROM json_each(?)) AND entry.trust = ?"
        )
        values = (json.dumps(list(shelf.keys)), Trust.EXTERNAL)
        crowd = {hit_of(row).key for row in self.catalog.rows(query, values, patience=patience)}
        external = [each for each in picked.readings if each.trust is Trust.EXTERNAL]
        ours = replace(wanted, exclude={*wanted.exclude, *crowd})
        _, others = self._picked(ours, shelf, enough - len(external), patience)
        readings = sorted([*external, *others.readings], key=lambda each: -each.hit.score)
        return Picked(readings, withheld=max(picked.withheld, others.withheld))


def _search_of(state: State, stemmer: Stemmer) -> Search:
    """Return a search by words, and also by meaning if the state has a model."""
    if state.embedder is not None:
        from muniment.recall.meaning import JointSearch, StaticModel

        if isinstance(state.embedder, StaticModel):
            return JointSearch(state.catalog, stemmer, state.embedder)
    return Search(state.catalog, stemmer)


def _chosen(
    choose: Chooser, message: str, readings: list[ReadEntry], limit: int, patience: Patience
) -> list[ReadEntry]:
    """Return all entries, the picks of the chooser first: it may reorder, but not remove any (E4)."""
    about = [_about(each) for each in readings]
    try:
        picks = choose(message, about, limit, patience)
        numbers = list(dict.fromkeys(picks or ()))
        is_answer = picks is not None and all(number in range(len(readings)) for number in numbers)
    except Exception as defect:  # noqa: BLE001  a model may fail in any way; the search result stays
        patience.check()
        events.emit_defect("recall_not_chosen", defect)
        return readings
    if not is_answer:
        events.emit("recall_not_chosen")
        return readings
    rest = [number for number in range(len(readings)) if number not in set(numbers)]
    return [readings[number] for number in (*numbers, *rest)]


def _about(reading: ReadEntry) -> str:
    """Return the description of an entry for a chooser, without text of other authors than the owner (E5)."""
    if reading.trust is not Trust.OWNER:
        return f"[{reading.trust}] {shown_path(reading.hit.key.rel)}"
    return f"{reading.name}: {reading.entry.description or excerpt(reading.entry.body, ABOUT_CHARS)}"
