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

Attacked in tests/recall/test_recaller.py and test_recall_bad_input.py.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from muniment import events
from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.errors import Cancelled, ManagedMemoryUnavailable, MunimentError, RecallFailed
from muniment.names import Digest, RelPath, Scope, Trust
from muniment.policy.decide import Judge, Policy
from muniment.recall.block import Block, Count, Note, block_of, estimated, system_block_of
from muniment.recall.excerpt import excerpt
from muniment.recall.query import read_query
from muniment.recall.reading import Reading
from muniment.recall.recalled import Recalled, RecalledEntry
from muniment.recall.search import HIT_COLUMNS, EntryKey, Found, Search, Wanted, hit_of
from muniment.recall.shelf import Picked, Shelf
from muniment.recall.stems import Stemmer
from muniment.store.audit import append, timestamp
from muniment.store.database import Database
from muniment.store.index import shown_path
from muniment.store.ledger import root_key
from muniment.store.rows import folded
from muniment.store.state import State

MAX_ENTRIES: Final = 5
"""Entries of one answer, unless the caller says otherwise."""

MAX_TOKENS: Final = 2_000
"""Tokens of one answer, unless the caller says otherwise: five entries of the longest that are shown."""

CANDIDATES: Final = 12
"""Entries that are looked for beyond those that are wanted, as some may not be shown."""

ABOUT_CHARS: Final = 150
"""Characters that a chooser is shown of an entry without a description."""

_TOKEN_BYTES: Final = 8
_ID: Final = re.compile(r"(?P<scope>[^/]*)/(?P<rel>.*)@(?P<digest>[^@]*)", re.DOTALL)

Chooser = Callable[[str, Sequence[str], int, Patience], Sequence[int] | None]
"""Given a message, what some entries are about and a limit, the numbers of at most so many that help, the
best first; None: it has no answer. Raises `Cancelled` or `DeadlineExceeded` once the patience ended; whatever
else it raises is no answer."""


@dataclass(frozen=True, slots=True)
class _Asked:
    message: str
    exclude: frozenset[EntryKey]
    limit: int
    budget: int
    choose: Chooser | None


class Recaller:
    """Recalls from the scopes of a policy. Threads may share one; close it when done.

    Args:
        policy: says what may be seen.
        roots: the bound roots; they and the state stay the caller's.
        state: knows their history.
        count: of tokens; by default a third of the bytes.
        clock: the time, for ages and what has expired.
    """

    def __init__(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        *,
        count: Count = estimated,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._policy, self._roots, self._state = policy, roots, state
        self._clock = clock
        self._judge = Judge(policy)
        self.count = count
        self.stemmer = Stemmer()

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

        Cost: 3 ms of CPU where nothing changed since the last time; 15 ms in a memory of 100 000 entries in
        2 000 folders, of which 6 ms are for looking whether a folder changed.
        """
        patience = patience or Patience(float("inf"))

        def work(shelf: Shelf) -> Recalled:
            return self._found(_Asked(query, frozenset(exclude), limit, budget, choose), shelf, patience)

        return self.answer(work, scopes, patience)

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
            return Recalled(error=RecallFailed(type(defect).__name__))

    def keys_of(self, unsafe_ids: Iterable[str]) -> set[EntryKey]:
        """The entries that ids name, see `RecalledEntry.id`; what names nothing of this memory is left out.

        None at all where the ledger cannot be read, which an event tells.
        """
        try:
            roots = {scope: root_key(self._state, bound) for scope, bound in self._roots.items()}
        except MunimentError as error:
            events.emit("memory_retrieval_failed", code=error.code)
            return set()
        named = filter(None, map(_ID.fullmatch, unsafe_ids))
        return {
            EntryKey(roots[Scope(found["scope"])], RelPath(found["rel"]), Digest(found["digest"]))
            for found in named
            if found["scope"] in roots
        }

    def record(self, recalled: Recalled, where: str) -> None:
        """Write to the ledger what was put before a model; what goes wrong is only told in an event.

        Cost: a durable transaction, some milliseconds; it waits for one of another process.
        """
        body = {
            "where": where,
            "tokens": recalled.tokens,
            "entries": [{"path": each.path, "digest": each.key.digest} for each in recalled.entries],
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
        readings: Sequence[Reading],
        shelf: Shelf,
        budget: int,
        *,
        weight: Callable[[str], float] = lambda _: 0.0,
        is_system: bool = False,
    ) -> Recalled:
        """What is put before a model of some entries, as far as a budget goes.

        Args:
            readings: the most important first.
            shelf: that they are of.
            budget: tokens.
            weight: how much a passage says, see `excerpt`.
            is_system: for a system prompt; raises ValueError where an entry's trust is not `owner`.
        """
        notes = [
            Note(shelf.path(each.hit), each.name, each.trust, each.at, each.entry.body, weight)
            for each in readings
        ]
        block = system_block_of(notes, budget, self.count) if is_system else self._block(notes, budget)
        entries = tuple(
            RecalledEntry(note.path, each.hit.key, note.name, note.trust, note.at, body)
            for note, each, body in zip(notes, readings, block.bodies, strict=False)
        )
        return Recalled(entries, block.text, block.tokens)

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
            block = self._block(
                [Note(each.path, each.name, each.trust, each.at, each.text, lambda _: 0.0) for each in left],
                budget,
            )
        except Exception as defect:  # noqa: BLE001  as `answer`: the caller's own count may be broken
            events.emit_defect("memory_retrieval_failed", defect)
            return Recalled(error=RecallFailed(type(defect).__name__))
        entries = tuple(replace(each, text=body) for each, body in zip(left, block.bodies, strict=False))
        return replace(recalled, entries=entries, text=block.text, tokens=block.tokens)

    def _block(self, notes: Sequence[Note], budget: int) -> Block:
        return block_of(notes, budget, secrets.token_hex(_TOKEN_BYTES), self._clock(), self.count)

    def _shelf(self, scopes: Collection[str] | None, patience: Patience) -> Shelf:
        return Shelf(self._policy, self._roots, self._state, self._judge, scopes, patience)

    def _found(self, asked: _Asked, shelf: Shelf, patience: Patience) -> Recalled:
        if asked.limit < 1 or asked.budget < 1:
            return Recalled()
        enough = asked.limit
        query = read_query(asked.message, self.stemmer)
        wanted = Wanted(query, shelf.keys, asked.exclude, self.now, enough + CANDIDATES, shelf.accepts)
        found, picked = self._picked(wanted, shelf, enough, patience)
        if len(picked.readings) < min(enough, len(found.hits)) and self._is_crowded(found, picked, patience):
            picked = self._beside_external(wanted, shelf, picked, enough, patience)
        readings = _chosen(asked, picked.readings[: asked.limit], patience)
        if not readings:
            return Recalled(abstained=True, withheld=picked.withheld)

        def weight(passage: str) -> float:
            return found.ranking.weight(folded(passage))

        return replace(self.told(readings, shelf, asked.budget, weight=weight), withheld=picked.withheld)

    def _picked(self, wanted: Wanted, shelf: Shelf, enough: int, patience: Patience) -> tuple[Found, Picked]:
        """What is found, and what of it may be shown; once more where files are not what their rows say."""
        search = Search(self.catalog, self.stemmer)
        found = search.find(wanted, patience)
        picked = shelf.read(found.hits, enough)
        if picked.changed:
            shelf.look_again(picked.changed)
            found = search.find(wanted, patience)
            picked = shelf.read(found.hits, enough)
        return found, picked

    def _is_crowded(self, found: Found, picked: Picked, patience: Patience) -> bool:
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


def _chosen(asked: _Asked, readings: list[Reading], patience: Patience) -> list[Reading]:
    """All of them, what the chooser picks first: it may put them in order, and drop nothing (E4)."""
    if asked.choose is None or not readings:
        return readings
    about = [_about(each) for each in readings]
    try:
        picks = asked.choose(asked.message, about, asked.limit, patience)
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


def _about(reading: Reading) -> str:
    """What a chooser is shown of an entry: in the words of others than the owner, nothing (E5)."""
    if reading.trust is not Trust.OWNER:
        return f"[{reading.trust}] {shown_path(reading.hit.key.rel)}"
    return f"{reading.name}: {reading.entry.description or excerpt(reading.entry.body, ABOUT_CHARS)}"
