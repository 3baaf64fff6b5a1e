"""Recall the entries that help with a message, as a text for a model.

- E1. `recall` never raises, and never waits past its time limit. After an error, the result is empty; it
  contains the reason, and a `memory_retrieval_failed` event is logged.
- E2. The policy makes every returned entry visible. The entry is not withheld, not expired and not excluded,
  and has the current content of its file (`reading.py`).
- E3. At most `root_reader.MAX_EXTERNAL` of the returned entries have trust `external`. External matches never
  displace other entries, however many there are: an outsider who adds entries can neither fill nor empty a
  result.
- E4. If a chooser (a language model that selects entries) is used, its choices come first, in its order, and
  then the other search results. If it fails, or names entries that do not exist, the order of the search is
  used.
- E5. If an entry is not the owner's, a chooser receives only a name that code derived from its path. So its
  author cannot address the chooser with a title.
- E6. Entries that no longer apply according to their text come after the others, with their last day. A
  result that has other entries contains at most `MAX_ENDED` of them.

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
from muniment.content.markdown import create_fence_token
from muniment.errors import (
    Cancelled,
    ConfigInvalid,
    ManagedMemoryUnavailable,
    MunimentError,
    build_recall_failure,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.recall.block import Count, build_block, build_system_block, estimate_tokens
from muniment.recall.excerpt import Weight, cut_excerpt, weigh_equally
from muniment.recall.query import read_query
from muniment.recall.reading import ReadEntry
from muniment.recall.root_reader import PickedEntries, RootReader
from muniment.recall.search import (
    HIT_COLUMNS,
    Search,
    SearchRequest,
    SearchResult,
    build_hit,
    find_remaining_entries,
)
from muniment.recall.stems import Stemmer
from muniment.store.audit import append, timestamp
from muniment.store.database import Database
from muniment.store.index import shorten_path
from muniment.store.ledger import get_root_key
from muniment.store.rows import normalize_for_index
from muniment.store.state import State
from muniment.types import Recalled, RecalledEntry
from muniment.types.keys import EntryKey, RootKey

MAX_ENTRIES: Final = 5
"""Default maximum number of entries in a result."""

MAX_TOKENS: Final = 2_000
"""Default maximum number of tokens of a result: five of the longest entries."""

CANDIDATES: Final = 12
"""Number of entries that a search finds beyond the limit, because some may not be displayed."""

MAX_DESCRIPTION_CHARS: Final = 150
"""Maximum characters of the description of an entry that a chooser receives."""

MAX_CHECKED_FILES: Final = 24
"""Number of found entries whose files are compared with their rows; each takes about 10 µs."""

_ID: Final = re.compile(r"(?P<scope>[^/]*)/(?P<rel>.*)@(?P<digest>[^@]*)", re.DOTALL)

Chooser = Callable[[str, Sequence[str], int, Deadline], Sequence[int] | None]
"""Function that selects the entries that help with a message.

It gets the message, descriptions of entries, the maximum number of entries to select, and a time limit. It
returns the positions of the selected entries, the best first, or None if it has no answer. It raises
`Cancelled` or `DeadlineExceeded` if it was cancelled or ran out of time. Any other error counts as no answer.
"""


class Recaller:
    """Searches the memory for entries that help with a message. Threads may share it; close it when done.

    Args:
        policy: decides which entries are visible.
        roots: the bound roots; the caller closes them and the state.
        state: the ledger and the catalog.
        count: counts tokens; by default, a third of the bytes.
        clock: returns the time, for ages and expiry.
        notes: notices for the user, added to every result of `recall`.
        standing_tokens: maximum tokens of the standing context if its caller gives none, see
            `recall.standing`.
    """

    def __init__(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        *,
        count: Count = estimate_tokens,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        notes: tuple[str, ...] = (),
        standing_tokens: int = 0,
    ) -> None:
        self._policy, self._roots, self._state, self._notes = policy, roots, state, notes
        self._clock = clock
        self._judge = PolicyEvaluator(policy)
        self.count, self.standing_tokens = count, standing_tokens
        self.stemmer = Stemmer()
        self._search = _create_search(state, self.stemmer)

    def recall(
        self,
        query: str,
        *,
        exclude: Collection[EntryKey] = (),
        scopes: Collection[str] | None = None,
        limit: int = MAX_ENTRIES,
        budget: int = MAX_TOKENS,
        choose: Chooser | None = None,
        deadline: Deadline | None = None,
        needs_entry: bool = False,
    ) -> Recalled:
        """Return the entries that help with `query`, the best first.

        After an error, return an empty result that contains the error.

        Args:
            query: a message, or some words.
            exclude: versions of entries that the caller already has. If an entry has changed since, it may be
                returned again.
            scopes: the scopes to search; None: all. An unknown scope has no entries.
            limit: maximum number of entries; below one: no search.
            budget: maximum tokens of the complete text; below one: no search.
            choose: selects among the search results; None: use the order of the search.
            deadline: the time limit; None: unlimited.
            needs_entry: if the budget is too small for one entry, return an error with the minimum budget.

        Cost: 3 ms of CPU if nothing changed since the last call; 5 ms in a memory of 100 000 entries.
        """
        until = deadline or Deadline(float("inf"))

        def work(reader: RootReader) -> Recalled:
            if limit < 1 or budget < 1:
                return Recalled()
            words = read_query(query, self.stemmer)
            request = SearchRequest(
                words, reader.keys, exclude, self.now, limit + CANDIDATES, reader.can_display
            )
            found, picked = self._pick_entries(request, reader, limit, until)
            if len(picked.readings) < min(limit, len(found.hits)) and self._is_crowded(found, picked, until):
                picked = self._add_entries_hidden_by_external(request, reader, picked, limit, until)
            readings = picked.readings[:limit]
            if readings and choose is not None:
                readings = _apply_chooser(choose, query, readings, limit, until)
            readings = sorted(readings, key=self._has_ended)
            if not readings:
                return Recalled(abstained=True, withheld=picked.withheld)

            def weight(passage: str) -> float:
                return found.ranking.score_passage(normalize_for_index(passage))

            result = self.build_result(readings, reader, budget, weight=weight)
            if needs_entry and not result.entries:
                raise self._build_budget_error(readings[0], reader, budget)
            return replace(result, withheld=picked.withheld)

        return replace(self.run_with_roots(work, scopes, until), notes=self._notes)

    def _build_budget_error(self, reading: ReadEntry, reader: RootReader, budget: int) -> ConfigInvalid:
        """Return the error for a budget that is too small for one entry, with the minimum in its message."""
        needs = range(budget + 1, budget + MAX_TOKENS)
        least = bisect_left(
            needs, 1, key=lambda each: len(self.build_result([reading], reader, each).entries)
        )
        return ConfigInvalid(
            f"the budget of {budget} tokens is too small for one entry; use at least {needs[least]}"
        )

    def run_with_roots(
        self, work: Callable[[RootReader], Recalled], scopes: Collection[str] | None, deadline: Deadline
    ) -> Recalled:
        """Run `work` with the roots of some scopes, and return its result; after an error, an empty result.

        If the catalog is damaged, rebuild it and retry once.

        Args:
            work: reads entries.
            scopes: the scopes to open; None: all.
            deadline: the time limit.
        """
        try:
            try:
                return work(self._open_roots(scopes, deadline))
            except ManagedMemoryUnavailable as error:
                if not self.catalog.is_damaged(error):
                    raise  # If the ledger is damaged, rebuilding the catalog would not help.
            self._state.recreate_catalog()
            return work(self._open_roots(scopes, deadline))
        except Cancelled as error:
            return Recalled(error=error)
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return Recalled(error=error)
        except Exception as defect:  # noqa: BLE001  the caller continues without a result (E1)
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=build_recall_failure(type(defect).__name__))

    def has_injected_all(self, injected: Collection[EntryKey], deadline: Deadline) -> bool:
        """Return whether all visible entries are in `injected`; False if an error occurs.

        Cost: a query that ends at the first entry that is not in `injected`.
        """
        found = True

        def work(reader: RootReader) -> Recalled:
            nonlocal found
            rows = find_remaining_entries(self.catalog, reader.keys, injected, self.now, deadline)
            found = not any(reader.can_display(key.root, key.rel) for key in rows)
            return Recalled()

        return self.run_with_roots(work, None, deadline).error is None and found

    def read_keys(self, unsafe_ids: Iterable[str]) -> set[EntryKey]:
        """Return the identifiers of the entries with these ids (`RecalledEntry.id`); skip unknown ids.

        If the ledger cannot be read, log an event and return an empty set.
        """
        roots = self._read_root_keys()
        named = filter(None, map(_ID.fullmatch, unsafe_ids))
        return {
            EntryKey(roots[Scope(found["scope"])], RelPath(found["rel"]), Digest(found["digest"]))
            for found in named
            if found["scope"] in roots
        }

    def list_ids(self, keys: Iterable[EntryKey]) -> list[str]:
        """Return the sorted ids (`RecalledEntry.id`) of entries; skip entries that are not in this memory."""
        scopes = {key: scope for scope, key in self._read_root_keys().items()}
        return sorted(f"{scopes[key.root]}/{key.rel}@{key.digest}" for key in keys if key.root in scopes)

    def record(self, recalled: Recalled, where: str) -> None:
        """Write to the ledger which entries a model received; if that fails, only log an event.

        Args:
            recalled: the entries.
            where: how the model received them, such as `user_turn`.

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
        """Release the stemmer of this recaller; the roots and the state stay open."""
        self.stemmer.close()

    @property
    def catalog(self) -> Database:
        """Return the catalog of the memory."""
        return self._state.catalog

    @property
    def now(self) -> str:
        """Return the current time in the format of the catalog's rows."""
        return timestamp(self._clock())

    def build_result(
        self,
        readings: Sequence[ReadEntry],
        reader: RootReader,
        budget: int,
        *,
        weight: Weight = weigh_equally,
        is_system: bool = False,
    ) -> Recalled:
        """Return the result with the text of some entries for a model, within a budget.

        Args:
            readings: the entries, the most important first.
            reader: the roots of the entries.
            budget: maximum tokens of the text.
            weight: returns the relevance of a passage, see `cut_excerpt`.
            is_system: the text is for a system prompt; raise `ValueError` if the trust of an entry is not
                `owner`.
        """
        entries = self.build_entries(readings, reader)
        if is_system:
            return build_system_block(entries, budget, self.count, weight)
        return build_block(entries, budget, create_fence_token(), self.count, weight)

    def build_entries(self, readings: Sequence[ReadEntry], reader: RootReader) -> list[RecalledEntry]:
        """Return entries that were read from some roots in the form of a result, with their complete text."""
        return [
            RecalledEntry(
                id=f"{reader.build_path(each.hit)}@{each.hit.key.digest}",
                path=reader.build_path(each.hit),
                handle=each.hit.handle,
                name=each.name,
                trust=each.trust,
                at=timestamp(each.written_at),
                text=each.entry.body,
                ended=str(each.entry.ends) if self._has_ended(each) else None,
                key=each.hit.key,
            )
            for each in readings
        ]

    def _has_ended(self, reading: ReadEntry) -> bool:
        """Return whether an entry no longer applies, according to its text."""
        return has_ended(reading.entry.ends, self._clock())

    def remove_entries(self, recalled: Recalled, keys: Collection[EntryKey], budget: int) -> Recalled:
        """Return a result without some entries, within a budget; return the same object if nothing changes.

        It is for callers that learn only after the recall that other code has injected some entries. It never
        raises, and does no I/O.

        Args:
            recalled: a result that is not for a system prompt.
            keys: the identifiers of the entries to remove.
            budget: maximum tokens of the complete text.
        """
        left = [each for each in recalled.entries if each.key not in keys]
        if len(left) == len(recalled.entries) and recalled.tokens <= budget:
            return recalled
        try:
            block = build_block(left, budget, create_fence_token(), self.count)
        except Exception as defect:  # noqa: BLE001  as in `recall`: the caller's count may be broken
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=build_recall_failure(type(defect).__name__))
        return replace(recalled, entries=block.entries, text=block.text, tokens=block.tokens)

    def _open_roots(self, scopes: Collection[str] | None, deadline: Deadline) -> RootReader:
        return RootReader(self._policy, self._roots, self._state, self._judge, self._policy, scopes, deadline)

    def _read_root_keys(self) -> dict[Scope, RootKey]:
        """Return the identifiers of the roots by scope.

        If the ledger cannot be read, log an event and return an empty mapping.
        """
        try:
            return {scope: get_root_key(self._state, bound) for scope, bound in self._roots.items()}
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return {}

    def _pick_entries(
        self, request: SearchRequest, reader: RootReader, enough: int, deadline: Deadline
    ) -> tuple[SearchResult, PickedEntries]:
        """Return the search result, and its entries that may be displayed.

        If files differ from their rows, update the rows and search once more.

        Args:
            request: the search request.
            reader: the roots to search.
            enough: the number of entries to read.
            deadline: the time limit.
        """
        search = self._search
        found = search.find(request, deadline)
        if reader.refresh_changed(found.hits[:MAX_CHECKED_FILES]):
            found = search.find(request, deadline)
        picked = reader.read_entries(found.hits, enough, self._has_ended)
        if picked.changed:
            reader.refresh_rows(picked.changed)
            found = search.find(request, deadline)
            picked = reader.read_entries(found.hits, enough, self._has_ended)
        return found, picked

    def _is_crowded(self, found: SearchResult, picked: PickedEntries, deadline: Deadline) -> bool:
        """Return whether the search found more external entries than may be displayed.

        They may have displaced other entries.
        """
        entries = json.dumps([hit.key[:2] for hit in found.hits])
        query = (
            "SELECT count(*) FROM json_each(?) AS place CROSS JOIN entry"
            " ON entry.root = json_extract(place.value, '$[0]')"
            " AND entry.rel = json_extract(place.value, '$[1]') AND entry.trust = ?"
        )
        ((external,),) = self.catalog.rows(query, (entries, Trust.EXTERNAL), deadline=deadline)
        return bool(external > sum(each.trust is Trust.EXTERNAL for each in picked.readings))

    def _add_entries_hidden_by_external(
        self,
        request: SearchRequest,
        reader: RootReader,
        picked: PickedEntries,
        enough: int,
        deadline: Deadline,
    ) -> PickedEntries:
        """Search again without external entries, and add the external entries that were picked before.

        Cost: a scan of all rows; 30 ms in a memory of 100 000 entries.
        """
        query = (
            f"SELECT {HIT_COLUMNS} FROM entry "  # noqa: S608  columns from `search.py`
            "WHERE entry.root IN (SELECT value FROM json_each(?)) AND entry.trust = ?"
        )
        values = (json.dumps(list(reader.keys)), Trust.EXTERNAL)
        external_keys = {build_hit(row).key for row in self.catalog.rows(query, values, deadline=deadline)}
        external = [each for each in picked.readings if each.trust is Trust.EXTERNAL]
        without_external = replace(request, exclude={*request.exclude, *external_keys})
        _, others = self._pick_entries(without_external, reader, enough - len(external), deadline)
        readings = sorted([*external, *others.readings], key=lambda each: -each.hit.score)
        return PickedEntries(readings, withheld=max(picked.withheld, others.withheld))


def _create_search(state: State, stemmer: Stemmer) -> Search:
    """Return an object that searches by words, and also by meaning if an embedding model is configured."""
    if state.embedder is not None:
        from muniment.recall.semantic_search import CombinedSearch, StaticModel

        if isinstance(state.embedder, StaticModel):
            return CombinedSearch(state.catalog, stemmer, state.embedder)
    return Search(state.catalog, stemmer)


def _apply_chooser(
    choose: Chooser, message: str, readings: list[ReadEntry], limit: int, deadline: Deadline
) -> list[ReadEntry]:
    """Return all entries, those that the chooser selected first; no entry is removed.

    If the chooser fails or returns invalid numbers, keep the order of the search.
    """
    about = [_describe_entry(each) for each in readings]
    try:
        picks = choose(message, about, limit, deadline)
        numbers = list(dict.fromkeys(picks or ()))
        is_answer = picks is not None and all(number in range(len(readings)) for number in numbers)
    except Exception as defect:  # noqa: BLE001  a model may fail in any way; the search result stays
        deadline.check()
        events.emit_defect("recall_not_chosen", defect)
        return readings
    if not is_answer:
        events.emit("recall_not_chosen")
        return readings
    rest = [number for number in range(len(readings)) if number not in set(numbers)]
    return [readings[number] for number in (*numbers, *rest)]


def _describe_entry(reading: ReadEntry) -> str:
    """Return the description of an entry for a chooser.

    If the entry is not the owner's, the description has only its trust and its path.
    """
    if reading.trust is not Trust.OWNER:
        return f"[{reading.trust}] {shorten_path(reading.hit.key.rel)}"
    description = reading.entry.description or cut_excerpt(reading.entry.body, MAX_DESCRIPTION_CHARS)
    return f"{reading.name}: {description}"
