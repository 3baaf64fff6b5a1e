"""Recall: what of a memory helps with a message, as a text to be put before a model.

- E1. It never raises, and never waits past its patience: what goes wrong makes it empty, with the reason in
  the result and in a `memory_retrieval_failed` event.
- E2. What is shown may be seen by the policy, is not held, has not expired, was not excluded, and is what its
  file says now (`reading.py`).
- E3. Of trust `external` are never more than `shelf.MAX_EXTERNAL` of the entries, and however many match,
  they keep no other entry out: whoever can have something filed can neither fill an answer nor empty it.
- E4. With a chooser, its picks, in its order, out of what the search found; without an answer from it that
  names these and nothing else, what the search found.
- E5. A chooser is shown names of code's making of what is not the owner's: nobody speaks to it by a title.
- E6. Entries that have ended, by their own words, come after the others, with the day. At most `MAX_ENDED` of
  them are in an answer that has others.

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
"""Entries of one answer, unless the caller says otherwise."""

MAX_TOKENS: Final = 2_000
"""Tokens of one answer, unless the caller says otherwise: five entries of the longest that are shown."""

CANDIDATES: Final = 12
"""Entries that are looked for beyond those that are wanted, as some may not be shown."""

ABOUT_CHARS: Final = 150
"""Characters that a chooser is shown of an entry without a description."""

MAX_ASKED: Final = 24
"""Candidates whose files are asked whether they are as their rows say, some 10 µs each."""

_ID: Final = re.compile(r"(?P<scope>[^/]*)/(?P<rel>.*)@(?P<digest>[^@]*)", re.DOTALL)

Chooser = Callable[[str, Sequence[str], int, Patience], Sequence[int] | None]
"""Given a message, what some entries are about and a limit, the numbers of at most so many that help, the
best first; None: it has no answer. Raises `Cancelled` or `DeadlineExceeded` once the patience ended; whatever
else it raises is no answer."""


class Recaller:
    """Recalls from the scopes of a policy. Threads may share one; close it when done.

    Args:
        policy: says what may be seen.
        roots: the bound roots; they and the state stay the caller's.
        state: knows their history.
        count: of tokens; by default a third of the bytes.
        clock: the time, for ages and what has expired.
        notes: for every answer to `recall`.
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
        """What helps with `query` (E1 to E4).

        Args:
            query: a message, or some words.
            exclude: entries that were shown already, as they were then; one that was changed since may come.
            scopes: where alone to look; None: everywhere. Unknown ones hold nothing.
            limit: entries at most; fewer than one: nothing is looked for.
            budget: tokens of the whole text at most; likewise.
            choose: picks among what the search finds (E4); None: the search alone.
            patience: until when to look; None: however long it takes.
            needs_entry: a budget that has no room for one entry is an error, which names the least that has.

        Cost: 3 ms of CPU where nothing changed since the last time; 5 ms in a memory of 100 000 entries.
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
        """Return the error of a budget that has no room for one entry, with the least that has."""
        needs = range(budget + 1, budget + MAX_TOKENS)
        least = bisect_left(needs, 1, key=lambda each: len(self.told([reading], shelf, each).entries))
        return ConfigInvalid(
            f"the budget of {budget} tokens has no room for one entry; use at least {needs[least]}"
        )

    def answer(
        self, work: Callable[[Shelf], Recalled], scopes: Collection[str] | None, patience: Patience
    ) -> Recalled:
        """What `work` makes of the entries of some scopes; empty where something goes wrong (E1).

        A catalog that turns out to be damaged is begun anew, once.
        """
        try:
            try:
                return work(self._shelf(scopes, patience))
            except ManagedMemoryUnavailable as error:
                if not self.catalog.is_damaged(error):
                    raise  # Were it the ledger, the catalog would be made anew again and again, for nothing.
            self._state.renew_catalog()
            return work(self._shelf(scopes, patience))
        except Cancelled as error:
            return Recalled(error=error)
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return Recalled(error=error)
        except Exception as defect:  # noqa: BLE001  whoever recalls goes on without (E1)
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=recall_failed(type(defect).__name__))

    def has_told_all(self, told: Collection[EntryKey], patience: Patience) -> bool:
        """Whether nothing that may be shown is left besides what was told; False where nobody can tell.

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
        """The entries that ids name, see `RecalledEntry.id`; what names nothing here is left out.

        None at all where the ledger cannot be read, which an event tells.
        """
        roots = self._root_keys()
        named = filter(None, map(_ID.fullmatch, unsafe_ids))
        return {
            EntryKey(roots[Scope(found["scope"])], RelPath(found["rel"]), Digest(found["digest"]))
            for found in named
            if found["scope"] in roots
        }

    def ids_of(self, keys: Iterable[EntryKey]) -> list[str]:
        """The ids that name entries, sorted; those of another memory are left out, see `keys_of`."""
        scopes = {key: scope for scope, key in self._root_keys().items()}
        return sorted(f"{scopes[key.root]}/{key.rel}@{key.digest}" for key in keys if key.root in scopes)

    def record(self, recalled: Recalled, where: str) -> None:
        """Write to the ledger what was put before a model; what goes wrong is only told in an event.

        Cost: a durable transaction, some milliseconds; it waits for one of another process.
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
        except Exception as defect:  # noqa: BLE001  nobody can do anything about it (E1)
            events.emit_defect("injection_not_recorded", defect)

    def close(self) -> None:
        """Give back what a recaller holds by itself."""
        self.stemmer.close()

    @property
    def catalog(self) -> Database:
        """Where the rows are."""
        return self._state.catalog

    @property
    def now(self) -> str:
        """The time, as rows have it."""
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
        """What is put before a model of some entries, as far as a budget goes.

        Args:
            readings: the most important first.
            shelf: that they are of.
            budget: tokens.
            weight: of passages, see `excerpt`.
            is_system: for a system prompt; raises ValueError where an entry's trust is not `owner`.
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
        """Whether an entry no longer holds, as its words say (E6)."""
        return has_ended(reading.entry.ends, self._clock())

    def without(self, recalled: Recalled, keys: Collection[EntryKey], budget: int) -> Recalled:
        """What was recalled, without some entries, within a budget: itself where that changes nothing.

        For those who learn only then what is told already. It never raises (E1), and asks no disk.

        Args:
            recalled: not of the system tier.
            keys: of the entries that are to go.
            budget: tokens of the whole text.
        """
        left = [each for each in recalled.entries if each.key not in keys]
        if len(left) == len(recalled.entries) and recalled.tokens <= budget:
            return recalled
        try:
            block = self._block(left, budget)
        except Exception as defect:  # noqa: BLE001  as `answer`: the caller's own count may be broken
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=recall_failed(type(defect).__name__))
        return replace(recalled, entries=block.entries, text=block.text, tokens=block.tokens)

    def _block(self, entries: Sequence[RecalledEntry], budget: int, weight: Weight = unweighed) -> Recalled:
        token, now = fence_token(), self._clock()
        return block_of(entries, budget, token, now, self.count, weight)

    def _shelf(self, scopes: Collection[str] | None, patience: Patience) -> Shelf:
        return Shelf(self._policy, self._roots, self._state, self._judge, self._policy, scopes, patience)

    def _root_keys(self) -> dict[Scope, RootKey]:
        """The keys of the roots; none at all where the ledger cannot be read, which an event tells."""
        try:
            return {scope: root_key(self._state, bound) for scope, bound in self._roots.items()}
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return {}

    def _picked(
        self, wanted: Wanted, shelf: Shelf, enough: int, patience: Patience
    ) -> tuple[SearchResult, Picked]:
        """What is found, and what of it may be shown; once more where files are not what their rows say."""
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
        """Whether entries of trust `external` were found that are not shown, and may hide others (E3)."""
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
        """What was picked of trust `external`, and of all others what is found where there is no such (E3).

        Cost: a look at all rows; 30 ms in a memory of 100 000 entries.
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
    """By words; where the state has a model for that, by meaning as well."""
    if state.embedder is not None:
        from muniment.recall.meaning import JointSearch, StaticModel

        if isinstance(state.embedder, StaticModel):
            return JointSearch(state.catalog, stemmer, state.embedder)
    return Search(state.catalog, stemmer)


def _chosen(
    choose: Chooser, message: str, readings: list[ReadEntry], limit: int, patience: Patience
) -> list[ReadEntry]:
    """All of them, what the chooser picks first: it may put them in order, and drop nothing (E4)."""
    about = [_about(each) for each in readings]
    try:
        picks = choose(message, about, limit, patience)
        numbers = list(dict.fromkeys(picks or ()))
        is_answer = picks is not None and all(number in range(len(readings)) for number in numbers)
    except Exception as defect:  # noqa: BLE001  a model may fail in any way, and the search has answered
        patience.check()
        events.emit_defect("recall_not_chosen", defect)
        return readings
    if not is_answer:
        events.emit("recall_not_chosen")
        return readings
    rest = [number for number in range(len(readings)) if number not in set(numbers)]
    return [readings[number] for number in (*numbers, *rest)]


def _about(reading: ReadEntry) -> str:
    """What a chooser is shown of an entry: in the words of others than the owner, nothing (E5)."""
    if reading.trust is not Trust.OWNER:
        return f"[{reading.trust}] {shown_path(reading.hit.key.rel)}"
    return f"{reading.name}: {reading.entry.description or excerpt(reading.entry.body, ABOUT_CHARS)}"
