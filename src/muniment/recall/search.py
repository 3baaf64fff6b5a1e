"""Find the entries that match a query, best first, in the full-text rows of the catalog.

1. Words that occur in no row are searched by prefix, if they have at least `MIN_PREFIX_CHARS` letters.
2. Gate: an entry must contain one of the words. In a large memory it must contain a rare word, or a less rare
   word and another one. Rows with common words only are many and rarely relevant; they are used if nothing
   else is found.
3. The query leaves out entries that must not be displayed or were displayed before, so that the best `PAGE`
   rows by bm25 are all usable.
4. These are ranked again, with weights that also work in a small memory: SQLite gives no weight to words in
   every second entry. Entries written just before or after the best ones, by file time, are ranked too, and
   get a share of the score of their neighbour: an answer seldom repeats the question. Of two entries about
   the same subject the newer one comes directly before the other (`move_updates_first`); none is dropped for
   that, and none precedes an entry of higher trust.
5. Abstain, once per query: one entry must contain two of the words, or the only one, a share of their total
   weight, and a word that identifies a subject. If one does, all entries with any of the words are returned,
   the best first. No entry is dropped for too few words, so that no result of a plain search is lost.
6. Of two words an entry may contain one, if no entry contains the other, and its name or context has that
   word, and few other entries do: `editor theme` finds entries about editors.

A row only proposes an entry: code that displays one reads its file (`reading.py`).

Not guaranteed: entries after `PAGE * _MAX_PAGES` rows that `accepts` rejects are not found. A word that ends
inside an ending that stems lack (`configura`) is not found as a prefix.

Attacked in tests/units/recall/test_search.py; test_quality.py measures how often the right entry is first.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), for weights;
sqlite.org/fts5.html, 5.1.1 for bm25 and 6 for the vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from muniment.content.words import build_comparison_key
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Digest, RelPath, Trust
from muniment.recall.query import Word, count_units
from muniment.recall.ranking import COLUMN_WEIGHTS, Ranking, Score, WeighedWord
from muniment.recall.stems import MAX_CACHED_STEMS, Stemmer
from muniment.store.database import Database
from muniment.store.index_pages import EXPIRES_AT
from muniment.store.rows import digest_statement
from muniment.store.visit import Stamp
from muniment.types.keys import EntryKey, RootKey

MIN_PREFIX_CHARS: Final = 4
"""Minimum letters of a word that is searched as a prefix; shorter ones match too many words."""

PAGE: Final = 24
"""Rows that are ranked again at a time, about 20 µs each."""

_MAX_PAGES: Final = 8
_RARE_SHARE: Final = 0.02
_RAREST_SHARE: Final = 0.01
_MIN_GATED_ENTRIES: Final = 2_000
"""Number of entries from which the gate saves more time than it costs."""

RANKED_CHARS: Final = 32_768
"""Characters of a body that are ranked: complete texts of people, and the beginning of pasted text."""

_PRIOR_ROWS: Final = 20
"""Entries that are added to the total, so that words of a very small memory have some weight."""

_MIN_WEIGHT_SHARE: Final = 0.2
_MIN_WEIGHT: Final = 0.75
"""Minimum weight of the query words in one entry: this share of all, or so many times a word of one row."""

_MAX_RANKED_WITH_NEIGHBOURS: Final = 6
"""The number of best entries whose neighbours are ranked too."""

_NEIGHBOURS_PER_SIDE: Final = 2
"""Entries on either side, in order of time, that are neighbours."""

_MAX_NEIGHBOUR_DISTANCE_NS: Final = 60_000_000_000
_NEIGHBOUR_SHARE: Final = 0.35
_MAX_NEIGHBOUR_BYTES: Final = 4_096
"""A longer entry, such as a page of notes, has no neighbours."""


_MIN_NAME_WEIGHT: Final = 0.5
"""Minimum weight of the one word of two: the weight of a word in the square root of all rows."""

_TWO: Final = 2

_MAX_REORDERED: Final = 5
"""The number of best entries before which newer ones are moved; the order after them does not matter."""

_NEAR_SHARE: Final = 0.75
"""Minimum share of the score of an entry for another one about the same subject."""

HIT_COLUMNS: Final = (
    "entry.root, entry.rel, entry.digest, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns, "
    "entry.trust, entry.ident, entry.sees"
)
"""Columns of a row for `build_hit`."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that was found, from its row.

    Attributes:
        stamp: of its file, when it was read.
        score: its score, to compare with others.
        trust: who it comes from.
        claimed_id: its name in its own provenance, or None.
        references: the entries that it replaces or refers to, by its provenance: such names, and digests of
            files.
    """

    key: EntryKey
    stamp: Stamp
    score: float
    trust: Trust
    claimed_id: str | None
    references: frozenset[str]

    @property
    def mtime_ns(self) -> int:
        """Return when its file was written."""
        return self.stamp[2]

    def refers_to(self, other: Hit) -> bool:
        """Return whether it replaces or refers to another entry, by its own provenance."""
        return other.key.digest in self.references or (
            other.claimed_id is not None and other.claimed_id in self.references
        )


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search request.

    Attributes:
        roots: the roots to search.
        exclude: entries that were displayed before.
        now: ISO-8601 UTC; entries that have expired by then are not found.
        limit: maximum number of entries.
        accepts: whether the entry at a path of a root may be displayed.
    """

    query: Sequence[Word]
    roots: Sequence[RootKey]
    exclude: Collection[EntryKey]
    now: str
    limit: int
    accepts: Callable[[RootKey, RelPath], bool]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The entries that a search found, best first, with the ranking that ordered them."""

    hits: tuple[Hit, ...]
    ranking: Ranking


_Rows = dict[int, tuple[Any, ...]]
"""Values of `HIT_COLUMNS` by row number."""


class Search:
    """A search over the catalog. Threads may share one.

    Args:
        catalog: up to date; the caller closes it.
        stemmer: the caller closes it.
    """

    def __init__(self, catalog: Database, stemmer: Stemmer) -> None:
        self._catalog, self._stemmer = catalog, stemmer
        self._counts: dict[str, int] = {}
        self._counted_at = 0

    def find(self, request: SearchRequest, deadline: Deadline) -> SearchResult:
        """Return the entries that match a query; empty if none matches its subject.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be read.
            Cancelled, DeadlineExceeded: the call was cancelled or ran out of time.

        Cost: about 2 ms of CPU in a memory of 1 000 entries, 7 ms in one of 100 000.
        """
        found, ranking = self._rank_matches(request, deadline, abstains=True)
        return SearchResult(move_updates_first(found), ranking)

    def find_similar(
        self, texts: Sequence[str], request: SearchRequest, deadline: Deadline
    ) -> tuple[Hit, ...]:
        """Return the entries that are most similar to some texts, best first, on any subject.

        Entries that contain one of the texts as a statement (`content.words.list_statements`) come first.

        Args:
            texts: all in the query of `request`.
            request: the request.
            deadline: the time limit.

        Raises:
            ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `find`.

        Cost: as `find`.
        """
        fact_digests = json.dumps([digest_statement(build_comparison_key(text)) for text in texts])
        rows = self._catalog.rows(
            _STATEMENT_ROWS, (fact_digests, *build_filter_values(request), request.limit), deadline=deadline
        )
        equal = [hit for row in rows if request.accepts((hit := build_hit(row)).key.root, hit.key.rel)]
        found = move_updates_first(self._rank_matches(request, deadline, abstains=False)[0])
        return tuple({hit.key: hit for hit in (*equal, *found)}.values())[: request.limit]

    def _rank_matches(
        self, request: SearchRequest, deadline: Deadline, *, abstains: bool
    ) -> tuple[list[tuple[Hit, Score]], Ranking]:
        """Return the found entries, best first, with their scores, and the ranking."""
        total = self._count_entries(deadline)
        every = self._weigh_words(request.query, total, deadline)
        words = [each for each in every if each.rows]
        ranking = Ranking(every, self._stemmer)
        if not any(not each.word.is_weak for each in words):
            return [], ranking
        is_match = _build_match_test(every, total) if abstains else lambda _: True
        for gate in _list_gates(words, total):
            rows = self._read_page(gate, request, deadline)
            scores = self._score_rows(rows, ranking, deadline)
            if any(map(is_match, scores.values())):
                return self._rank_with_neighbours(rows, scores, request, ranking, deadline), ranking
        return [], ranking

    def _weigh_words(self, query: Sequence[Word], total: int, deadline: Deadline) -> list[WeighedWord]:
        """Return the words of a query with their weights (1), including words that occur in no row."""
        rows = self._count_rows({part for word in query for part in word.stem.split()}, total, deadline)
        weighed: list[WeighedWord] = []
        for word in query:
            # The count of a phrase is unknown; it is at most the count of its rarest word.
            count = min(rows.get(part, 0) for part in word.stem.split())
            may_begin = not (count or word.is_weak or word.is_phrase) and len(word.text) >= MIN_PREFIX_CHARS
            if may_begin:
                count = self._count_prefix(word.text, deadline)
            count = min(count, total)
            weight = (1 + word.is_phrase) * math.log(1 + (total - count + 0.5) / (count + 0.5))
            weighed.append(WeighedWord(word, count, weight, is_prefix=may_begin and count > 0))
        return weighed

    def _count_rows(self, stems: set[str], total: int, deadline: Deadline) -> Mapping[str, int]:
        """Return in how many rows some stems occur.

        Counting scans all these rows. So in a large memory the counts are cached until the memory has grown
        or shrunk by a hundredth: weights do not need more accuracy. A count of zero is never cached.
        """
        if (
            total < _MIN_GATED_ENTRIES
            or abs(total - self._counted_at) > total // 100
            or len(self._counts) > MAX_CACHED_STEMS
        ):
            self._counts, self._counted_at = {}, total
        known = self._counts
        if unknown := stems - known.keys():
            query = "SELECT term, doc FROM word WHERE term IN (SELECT value FROM json_each(?))"
            known |= self._catalog.rows(query, (json.dumps(sorted(unknown)),), deadline=deadline)
        return known

    def _count_prefix(self, text: str, deadline: Deadline) -> int:
        query = "SELECT coalesce(sum(doc), 0) FROM word WHERE term >= ? AND term < ?"
        ((count,),) = self._catalog.rows(query, (text, f"{text}\U0010ffff"), deadline=deadline)
        return int(count)

    def _count_entries(self, deadline: Deadline) -> int:
        ((files,),) = self._catalog.rows("SELECT coalesce(sum(files), 0) FROM total", deadline=deadline)
        return int(files) + _PRIOR_ROWS

    def _read_page(self, gate: str, request: SearchRequest, deadline: Deadline) -> _Rows:
        """Return the best rows for a gate that may be displayed (3)."""
        rows: _Rows = {}  # By number: another thread may move rows between pages.
        for page in range(_MAX_PAGES):
            values = (gate, *build_filter_values(request), page * PAGE)
            more = self._catalog.rows(_ROWS, values, deadline=deadline)
            rows |= {row[0]: row[1:] for row in more if request.accepts(RootKey(row[1]), RelPath(row[2]))}
            if len(more) < PAGE or len(rows) >= request.limit:
                break
        return rows

    def _score_rows(self, rows: Collection[int], ranking: Ranking, deadline: Deadline) -> dict[int, Score]:
        texts = self._read_texts(rows, deadline)
        scored = ranking.score_rows([columns for _, columns in texts])
        return {number: score for (number, _), score in zip(texts, scored, strict=True)}

    def _read_texts(self, numbers: Collection[int], deadline: Deadline) -> list[tuple[int, list[str]]]:
        """Return the full-text rows with some numbers, each with its number."""
        rows = self._catalog.rows(_TEXTS, (json.dumps(list(numbers)),), deadline=deadline)
        return [(number, columns) for number, *columns in rows]

    def _rank_with_neighbours(
        self,
        rows: _Rows,
        scores: Mapping[int, Score],
        request: SearchRequest,
        ranking: Ranking,
        deadline: Deadline,
    ) -> list[tuple[Hit, Score]]:
        """Return some rows and the neighbours of the best of them, ranked again (4)."""
        best = sorted(scores, key=lambda number: -scores[number].score)[:_MAX_RANKED_WITH_NEIGHBOURS]
        sides = self._catalog.rows(_NEIGHBOURS, (json.dumps(best),), deadline=deadline)
        neighbours_by_row = {one: {*json.loads(before), *json.loads(after)} for one, before, after in sides}
        unknown = set[int]().union(*neighbours_by_row.values()) - rows.keys()
        others = self._catalog.rows(
            _OTHER_ROWS, (json.dumps(list(unknown)), *build_filter_values(request)), deadline=deadline
        )
        near: _Rows = {row[0]: row[1:] for row in others}
        scores = {**scores, **self._score_rows(near, ranking, deadline)}
        ranks = {number: score.score for number, score in scores.items() if score.units}
        for one, neighbours in neighbours_by_row.items():
            for other in neighbours & ranks.keys():
                shared = scores[other].score + _NEIGHBOUR_SHARE * scores[one].score
                ranks[other] = max(ranks[other], shared)
        found = list[tuple[Hit, Score]]()
        for number in sorted(ranks, key=lambda number: -ranks[number]):
            hit = build_hit(rows.get(number) or near[number], ranks[number])
            if number in rows or request.accepts(hit.key.root, hit.key.rel):
                found.append((hit, scores[number]))
            if len(found) == request.limit:
                break
        return found


def move_updates_first(found: Sequence[tuple[Hit, Score]]) -> tuple[Hit, ...]:
    """Return hits, best first, but each before the first hit that it updates (4).

    A hit updates another one if its provenance refers to it; or if it is newer, scores nearly as high,
    contains the same words of the query and shares half of its words with it. A reference changes the order
    only: anyone who can edit a file can write it.
    """
    ordered: list[tuple[Hit, Score]] = []
    for hit, score in found:
        position = len(ordered)
        for at, (old, old_score) in enumerate(ordered[:_MAX_REORDERED]):
            if _can_precede(hit, old) and (hit.refers_to(old) or _is_update(hit, score, old, old_score)):
                position, hit = at, replace(hit, score=max(hit.score, old.score))  # noqa: PLW2901
                break
        ordered.insert(position, (hit, score))
    return tuple(hit for hit, _ in ordered)


def _can_precede(new: Hit, old: Hit) -> bool:
    return new.key.root == old.key.root and new.trust.satisfies(old.trust)


def _is_update(new: Hit, score: Score, old: Hit, old_score: Score) -> bool:
    is_later = new.mtime_ns > old.mtime_ns and not old.refers_to(new)
    return is_later and new.score >= _NEAR_SHARE * old.score and score.is_similar_to(old_score)


def find_remaining_entries(
    catalog: Database, roots: Sequence[RootKey], injected: Collection[EntryKey], now: str, deadline: Deadline
) -> Iterator[EntryKey]:
    """Yield the entries of some roots that may be displayed, except `injected`; policies are not checked.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: 2 ms for each 1 000 that a caller reads, and a list of all injected entries.
    """
    last = 0
    while rows := catalog.rows(
        _REMAINING_ROWS, (last, *_encode_filter_values(roots, now, injected)), deadline=deadline
    ):
        yield from (build_hit(row).key for _, *row in rows)
        last = rows[-1][0]


def build_filter_values(request: SearchRequest) -> tuple[str, ...]:
    """Return the values for `DISPLAYABLE`."""
    return _encode_filter_values(request.roots, request.now, request.exclude)


def _encode_filter_values(
    roots: Sequence[RootKey], now: str, exclude: Collection[EntryKey]
) -> tuple[str, ...]:
    excluded = [f"{key.root}{key.digest}{key.rel}" for key in exclude]
    return json.dumps(list(roots)), now, json.dumps(excluded)


DISPLAYABLE_IN_ROOTS: Final = f"""
        entry.root IN (SELECT value FROM json_each(?))
        AND entry.readable AND entry.held IS NULL AND (entry.expires IS NULL OR {EXPIRES_AT} > ?)
"""  # noqa: S608  a constant of the store
"""Condition for entries of some roots that may be displayed at a time."""

DISPLAYABLE: Final = f"""
        AND {DISPLAYABLE_IN_ROOTS}
        AND entry.root || entry.digest || entry.rel NOT IN (SELECT value FROM json_each(?))
"""  # noqa: S608  constants of this package

_ROWS: Final = f"""
    SELECT entry.id, {HIT_COLUMNS}
    FROM text CROSS JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? AND rank MATCH 'bm25({", ".join(map(str, COLUMN_WEIGHTS))})'
        {DISPLAYABLE}
    ORDER BY rank LIMIT {PAGE} OFFSET ?
"""  # noqa: S608  constants of this package

_REMAINING_ROWS: Final = f"""
    SELECT entry.id, {HIT_COLUMNS} FROM entry WHERE entry.id > ? {DISPLAYABLE} ORDER BY entry.id LIMIT 100
"""  # noqa: S608  constants of this package

_OTHER_ROWS: Final = f"""
    SELECT entry.id, {HIT_COLUMNS} FROM entry WHERE entry.id IN (SELECT value FROM json_each(?))
        {DISPLAYABLE}
"""  # noqa: S608  constants of this package

_STATEMENT_ROWS: Final = f"""
    SELECT {HIT_COLUMNS} FROM saying CROSS JOIN entry ON entry.id = saying.entry
    WHERE saying.digest IN (SELECT value FROM json_each(?))
        {DISPLAYABLE}
    ORDER BY entry.root, entry.rel LIMIT ?
"""  # noqa: S608  constants of this package

_SIDE: Final = f"""
    (SELECT json_group_array(id) FROM (
        SELECT id FROM entry AS other
        WHERE other.root = entry.root AND other.mtime_ns {{within}} {_MAX_NEIGHBOUR_DISTANCE_NS}
            AND (other.mtime_ns, other.topic, length(other.rel), other.rel)
                {{side}} (entry.mtime_ns, entry.topic, length(entry.rel), entry.rel)
        ORDER BY other.mtime_ns {{order}}, other.topic {{order}},
            length(other.rel) {{order}}, other.rel {{order}}
        LIMIT {_NEIGHBOURS_PER_SIDE}
    ))
"""  # noqa: S608  constants of this package

_NEIGHBOURS: Final = f"""
    SELECT entry.id,
        {_SIDE.format(within=">= entry.mtime_ns -", side="<", order="DESC")},
        {_SIDE.format(within="<= entry.mtime_ns +", side=">", order="ASC")}
    FROM entry WHERE entry.size <= {_MAX_NEIGHBOUR_BYTES} AND entry.id IN (SELECT value FROM json_each(?))
"""  # noqa: S608  constants of this package

_TEXTS: Final = f"""
    SELECT rowid, name, description, substr(body, 1, {RANKED_CHARS}), context
    FROM text WHERE rowid IN (SELECT value FROM json_each(?))
"""  # noqa: S608  constants of this package


def _build_match_test(words: Sequence[WeighedWord], total: int) -> Callable[[Score], bool]:
    """Return a function that decides from the score of an entry whether a query is about it (5, 6)."""
    strong = [each for each in words if not each.word.is_weak]
    single = [each for each in strong if not each.word.is_phrase]
    known = [each.word for each in single if each.rows]
    if count_units(each.word for each in single) == _TWO and count_units(known) == 1:
        return lambda score: score.name_weight >= _MIN_NAME_WEIGHT * math.log(1 + total)
    enough = min(_MIN_WEIGHT_SHARE * sum(each.weight for each in strong), _MIN_WEIGHT * math.log(1 + total))
    needed = min(_TWO, count_units(each.word for each in strong))
    specific = min(1, sum(not each.word.is_common for each in strong))
    return lambda score: score.units >= needed and score.weight >= enough and score.specific_words >= specific


def _list_gates(words: Sequence[WeighedWord], total: int) -> Iterator[str]:
    """Yield the conditions for rows, to be tried in order until something is found (2)."""
    finding = [each for each in words if not each.word.is_weak]
    if total >= _MIN_GATED_ENTRIES:
        rare = [each for each in finding if each.rows <= _RARE_SHARE * total]
        rare = rare or [min(finding, key=lambda each: each.rows)]
        rarest = [each for each in rare if each.rows <= _RAREST_SHARE * total]
        if 0 < len(rarest) < len(rare):
            less_rare = [each for each in rare if each not in rarest]
            others = [each for each in finding if each not in rare]
            yield " OR ".join([_join_expressions(rarest), *_list_pairs(less_rare, others)])
        if len(rare) < len(finding):
            yield f"({_join_expressions(rare)}) AND ({_join_expressions(words)})"
    yield (
        _join_expressions(finding)
        if len(finding) == len(words)
        else f"({_join_expressions(finding)}) AND ({_join_expressions(words)})"
    )


def _list_pairs(words: Sequence[WeighedWord], others: Sequence[WeighedWord]) -> Iterator[str]:
    """Yield conditions for one of some words together with another one of these or of others."""
    for at, each in enumerate(words, 1):
        if more := [*words[at:], *others]:
            yield f"({each.expression} AND ({_join_expressions(more)}))"


def _join_expressions(words: Sequence[WeighedWord]) -> str:
    return " OR ".join(each.expression for each in words)


def build_hit(row: Sequence[Any], score: float = 0.0) -> Hit:
    """Return the hit for the `HIT_COLUMNS` of a row."""
    root, rel, digest, inode, size, mtime_ns, ctime_ns, trust, ident, sees = row
    key = EntryKey(RootKey(root), RelPath(rel), Digest(digest))
    stamp = Stamp(inode, size, mtime_ns, ctime_ns)
    return Hit(key, stamp, score, Trust(trust), ident, frozenset(sees.split()))
