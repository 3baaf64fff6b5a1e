"""Find the entries that match a query, the best first, in the full-text rows of the catalog.

1. *Prefixes.* A word of the query that occurs in no row is searched as a prefix, if it has at least
   `MIN_PREFIX_CHARS` letters.
2. *Gates.* A gate is a condition on the words that a row contains. In a large memory, a row must contain a
   rare word of the query, or a less rare word and another one. Only if no such row matches, all rows with any
   word are used: there are many of them, and they are rarely relevant.
3. *Filter.* The database query excludes entries that must not be displayed or that were displayed before.
   Therefore all of the best `PAGE` rows by bm25 can be used.
4. *Ranking.* The rows are ranked again with weights that also work in a small memory, because SQLite ignores
   words that occur in every second entry. Entries whose files were written just before or after the best
   entries get a share of their score: an answer seldom repeats the words of the question. Of two entries
   about the same subject, the newer one is moved directly before the older one (`move_updates_first`), but
   never before an entry of higher trust. No entry is removed.
5. *Abstaining.* If no entry is about the query, the result is empty. An entry is about the query if it
   contains two words of the query (or its only word), a minimum share of the weight of all words, and a word
   that identifies a subject. If there is such an entry, all entries with any of the words are returned, the
   best first.
6. *Two words.* If a query has two words and no entry contains one of them, an entry that contains the other
   is sufficient. That word must be in the name or context of the entry, and in few other entries: `editor
   theme` finds entries about editors.

A row only proposes an entry. Code that displays the entry must read its file (`reading.py`).

Not guaranteed: an entry is not found after `PAGE * _MAX_PAGES` rows that `accepts` rejects. A word that is
cut inside an ending that the stemmer does not know (`configura`) is not found as a prefix.

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
"""Minimum letters of a word that is searched as a prefix; a shorter prefix matches too many words."""

PAGE: Final = 24
"""Number of rows that are read and ranked at a time; each costs about 20 µs."""

_MAX_PAGES: Final = 8
_RARE_SHARE: Final = 0.02
_RAREST_SHARE: Final = 0.01
_MIN_GATED_ENTRIES: Final = 2_000
"""Number of entries from which the conditions for rare words (step 2) save more time than they cost."""

RANKED_CHARS: Final = 32_768
"""Characters of a text that are ranked: the complete text of most entries, the beginning of pasted text."""

_PRIOR_ROWS: Final = 20
"""Number that is added to the count of entries, so that words have some weight in a very small memory."""

_MIN_WEIGHT_SHARE: Final = 0.2
_MIN_WEIGHT: Final = 0.75
"""Minimum total weight of the query words that an entry contains: the smaller of these two limits.

The first limit is a share of the weight of all query words. The second one is a multiple of the weight of a
word that occurs in one row.
"""

_MAX_RANKED_WITH_NEIGHBOURS: Final = 6
"""Number of the best entries for which the entries written just before and after are ranked too."""

_NEIGHBOURS_PER_SIDE: Final = 2
"""Number of entries written before and number of entries written after an entry that count as its neighbours.
"""

_MAX_NEIGHBOUR_DISTANCE_NS: Final = 60_000_000_000
_NEIGHBOUR_SHARE: Final = 0.35
_MAX_NEIGHBOUR_BYTES: Final = 4_096
"""Maximum size of an entry with neighbours; a longer entry, such as a page of notes, has none."""


_MIN_NAME_WEIGHT: Final = 0.5
"""Minimum weight of the only word that an entry contains (step 6): that of a word in the square root of all
rows.
"""

_TWO: Final = 2

_MAX_REORDERED: Final = 5
"""Number of the best entries before which a newer one is moved; the order of later entries does not matter.
"""

_NEAR_SHARE: Final = 0.75
"""Minimum score of an update, as a share of the score of the entry that it updates."""

HIT_COLUMNS: Final = (
    "entry.root, entry.rel, entry.digest, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns, "
    "entry.trust, entry.ident, entry.sees, entry.handle"
)
"""The columns that a row needs for `build_hit`."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that a search found, with data from its row in the catalog.

    Attributes:
        key: the identifier of the entry and its version.
        stamp: size, times and inode of the file when the row was written.
        score: how well the entry matches the query, to compare with other hits.
        trust: who the entry comes from.
        claimed_id: the id that the entry has in its own provenance; None without provenance.
        references: the ids or file digests of entries that this entry replaces or refers to, by its
            provenance.
        handle: the handle of the entry, see `store.handles`.
    """

    key: EntryKey
    stamp: Stamp
    score: float
    trust: Trust
    claimed_id: str | None
    references: frozenset[str]
    handle: str = ""

    @property
    def mtime_ns(self) -> int:
        """Return the time when the file of the entry was written, in nanoseconds since 1970."""
        return self.stamp[2]

    def refers_to(self, other: Hit) -> bool:
        """Return whether the provenance of this entry names `other` as replaced or related."""
        return other.key.digest in self.references or (
            other.claimed_id is not None and other.claimed_id in self.references
        )


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The query and the conditions of a search.

    Attributes:
        query: the words to search.
        roots: the roots to search.
        exclude: versions of entries that were displayed before.
        now: the time, ISO-8601 UTC; entries that have expired by then are not found.
        limit: maximum number of entries.
        accepts: returns whether the entry at a path of a root may be displayed.
    """

    query: Sequence[Word]
    roots: Sequence[RootKey]
    exclude: Collection[EntryKey]
    now: str
    limit: int
    accepts: Callable[[RootKey, RelPath], bool]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The entries that a search found, the best first, and the ranking that ordered them."""

    hits: tuple[Hit, ...]
    ranking: Ranking


_Rows = dict[int, tuple[Any, ...]]
"""The values of `HIT_COLUMNS`, by the number of the row."""


class Search:
    """Searches the entries of a catalog by words. Threads may share one.

    Args:
        catalog: an up-to-date catalog; the caller closes it.
        stemmer: the caller closes it.
    """

    def __init__(self, catalog: Database, stemmer: Stemmer) -> None:
        self._catalog, self._stemmer = catalog, stemmer
        self._counts: dict[str, int] = {}
        self._counted_at = 0

    def find(self, request: SearchRequest, deadline: Deadline) -> SearchResult:
        """Return the entries that match a query, the best first; empty if no entry is about the query.

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
        """Return the entries that are most similar to some texts, the best first.

        Their subject may be another one. Entries that contain one of the texts as a statement
        (`content.words.list_statements`) come first.

        Args:
            texts: the texts; the query of `request` must contain their words.
            request: the search request.
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
        """Return the found entries with their scores, the best first, and the ranking.

        Args:
            request: the search request.
            deadline: the time limit.
            abstains: return an empty list if no entry is about the query (step 5).
        """
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
        """Return all words of a query with their weights, including words that occur in no row.

        A word that occurs in no row becomes a prefix, if it is long enough (step 1).
        """
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
        """Return the number of rows in which each stem occurs.

        A stem that occurs in no row is missing in the result. Counting reads all rows of a stem. Therefore
        the counts are cached in a large memory, until its number of entries has changed by one percent:
        weights do not need more accuracy. A count of zero is never cached.
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
        """Return the best rows that satisfy a gate and may be displayed (step 3)."""
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
        """Return the number and the columns of full-text rows.

        Args:
            numbers: the numbers of the rows.
            deadline: the time limit.
        """
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
        """Return the found rows and the neighbours of the best ones as hits, in the final order (step 4).

        Args:
            rows: the rows that the search found.
            scores: the score of each row.
            request: the search request.
            ranking: scores the neighbours.
            deadline: the time limit.
        """
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
    """Return the hits in their order, except that an update is moved before the first hit that it updates.

    A hit updates another hit if its provenance refers to the other. It also does if it is newer, has nearly
    the same score, contains the same words of the query, and shares half of its words with the other hit. A
    reference in the provenance changes only the order, because anyone who can edit the file can write it.

    Args:
        found: hits with their scores, the best first.
    """
    ordered: list[tuple[Hit, Score]] = []
    for hit, score in found:
        position = len(ordered)
        for index, (old, old_score) in enumerate(ordered[:_MAX_REORDERED]):
            if _can_precede(hit, old) and (hit.refers_to(old) or _is_update(hit, score, old, old_score)):
                position, hit = index, replace(hit, score=max(hit.score, old.score))  # noqa: PLW2901
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
    """Yield the displayable entries of some roots that are not in `injected`; policies are not checked.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: 2 ms for each 1 000 entries that the caller reads, and a list of all injected entries.
    """
    last = 0
    while rows := catalog.rows(
        _REMAINING_ROWS, (last, *_encode_filter_values(roots, now, injected)), deadline=deadline
    ):
        yield from (build_hit(row).key for _, *row in rows)
        last = rows[-1][0]


def build_filter_values(request: SearchRequest) -> tuple[str, ...]:
    """Return the values for the placeholders of the SQL condition `DISPLAYABLE`."""
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
"""SQL condition for the entries of some roots that may be displayed; the last placeholder is the time."""

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
    """Return a function that decides from the score of an entry whether the entry is about the query.

    See steps 5 and 6 of the module.

    Args:
        words: all words of the query, including words that occur in no row.
        total: the number of entries in the memory.
    """
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
    """Yield full-text conditions, the strictest first.

    If a condition finds nothing, the caller tries the next one.
    """
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
    """Yield conditions that require one of `words` together with another one of `words` or `others`."""
    for index, each in enumerate(words, 1):
        if more := [*words[index:], *others]:
            yield f"({each.expression} AND ({_join_expressions(more)}))"


def _join_expressions(words: Sequence[WeighedWord]) -> str:
    return " OR ".join(each.expression for each in words)


def build_hit(row: Sequence[Any], score: float = 0.0) -> Hit:
    """Return the hit for a row.

    Args:
        row: the values of `HIT_COLUMNS`.
        score: the score of the row.
    """
    root, rel, digest, inode, size, mtime_ns, ctime_ns, trust, ident, sees, handle = row
    key = EntryKey(RootKey(root), RelPath(rel), Digest(digest))
    stamp = Stamp(inode, size, mtime_ns, ctime_ns)
    return Hit(key, stamp, score, Trust(trust), ident, frozenset(sees.split()), handle)
