"""Find entries by their meaning, even if they share no word with the query.

A static embedding model has a vector for each word that it knows. The vector of an entry or a query is the
mean of the vectors of its words. No neural network runs: looking up and adding vectors takes about 50 µs. The
model is a directory in the format of model2vec (https://github.com/MinishLab/model2vec) with `tokenizer.json`
and `model.safetensors`, which the owner provides. Nothing is downloaded: no code that could do so is
imported.

- M1. A vector only proposes an entry. Proposed entries must satisfy the same conditions as matches by words,
  and are read and checked before they are displayed (`recaller.py`, E2).
- M2. Only complete words that the model knows count, without case and accents. Of these, only words that
  identify a subject count (`query.py`, Q2 to Q5), because a model splits an unknown name into pieces with
  random vectors.
- M3. If no entry is near enough to the query, no entry is found by meaning. For this test, only the query
  words that the entry does not contain are compared, because the search by words has already rated the others
  (`search.py`, step 5). If one entry is near enough, all near entries are returned.
- M4. The results by words and by meaning are merged by reciprocal rank: each list adds `1 / (RANK_OFFSET +
  rank)` to the score of an entry.
- M5. The vectors in memory are those of the catalog: a vector that was deleted there is removed at the next
  search.
- M6. If the model cannot be read, an event is logged and only the search by words is used.

Not guaranteed: that entries are found beyond `MAX_VECTORS` entries, or beyond the `MAX_NEAR` nearest entries
of the requested roots; nor that a model knows the languages of a memory.

Attacked in tests/units/recall/test_meaning.py; test_paraphrases.py measures how often the right entry is
found.

Source: Cormack, Clarke and Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank
    Learning Methods (2009), for M4 and its constant.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from muniment import events
from muniment.errors import ConfigInvalid, printable
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import RelPath
from muniment.policy.ownership import require_trusted
from muniment.recall.query import is_specific
from muniment.recall.ranking import Ranking, Score
from muniment.recall.search import (
    DISPLAYABLE,
    HIT_COLUMNS,
    PAGE,
    RANKED_CHARS,
    Hit,
    Search,
    SearchRequest,
    SearchResult,
    build_filter_values,
    build_hit,
    move_updates_first,
)
from muniment.recall.stems import Stemmer
from muniment.store.database import Database
from muniment.store.rows import Columns
from muniment.types.keys import RootKey

RANK_OFFSET: Final = 60
"""The constant of reciprocal rank fusion, from the source in the module docstring."""

MIN_MATCH_SIMILARITY: Final = 0.38
"""Cosine similarity from which an entry matches a query; chosen with half of `quality/paraphrases.toml`."""

MIN_NEAR_SIMILARITY: Final = 0.25
"""Cosine similarity from which an entry is returned if another entry matches the query."""

MAX_VECTORS: Final = 100_000
"""Maximum number of vectors in memory; they take 27 MB at 272 dimensions."""

MAX_NEAR: Final = 192
"""Maximum number of nearest entries whose rows are checked."""

MAX_WORDS: Final = 256
"""Number of words at the beginning of an entry that count; the mean of more words is too general."""

_FILES: Final = ("tokenizer.json", "model.safetensors")
_NEEDED: Final = ("numpy", "safetensors")
_PREFIX_CHARS: Final = 5
"""Number of first characters by which a word of a query and a word of an entry are compared, as in
`ranking.py`.
"""

_MARKS: Final = (
    "\u2581",
    "\u0120",
    "",
)  # at the beginning of a word's first token, in SentencePiece, byte BPE, others
_BLOCK_ROWS: Final = 1_024
_MAX_BYTE_VALUE: Final = 127.0
_MAX_VALUE: Final = 1e9  # A larger number is damage, and its products would not be finite.
_WORD_CHARS: Final = 100
_MATRIX_DIMENSIONS: Final = 2
_WORD: Final = re.compile(r"[^\W_]+")

Array = Any
"""A numpy array; numpy is imported only if a model is configured."""


class _Model(NamedTuple):
    """A loaded embedding model.

    The vector of the word with number `n` is `vectors[vector_rows[n]] * weights[n]`. Without `vector_rows`,
    it is row `n` of `vectors`; without `weights`, the factor is 1.

    Attributes:
        bases: the replacements of letters with accents, for `str.translate`.
        numbers: the number of each word.
        vectors: the vectors, one in each row.
        vector_rows: the row of each number; None: the number itself.
        weights: the factor of each number; None: 1.
    """

    bases: Mapping[int, str]
    numbers: Mapping[str, int]
    vectors: Array
    vector_rows: Array | None
    weights: Array | None


class StaticModel:
    """A static embedding model in a directory (implements `store.rows.Embedder`). Threads may share one.

    Args:
        directory: the directory with `tokenizer.json` and `model.safetensors`.

    Raises:
        ConfigInvalid: a file is missing, another user can write it, or `muniment[semantic]` is not installed.

    Cost: opening needs a few `stat` calls; `identity` reads all bytes once. The first vector loads the model:
        0.3 s and 46 MB for 90 000 words of 272 dimensions at half precision.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._loaded: _Model | None = None
        self._is_loaded = False
        self.vector_cache = VectorCache()
        displayed_path = printable(str(directory))
        if missing := [name for name in _FILES if not (directory / name).is_file()]:
            raise ConfigInvalid(
                f"the embedding model {displayed_path} has no {missing[0]}; use a folder of a model2vec model"
            )
        for each in (directory, *(directory / name for name in _FILES)):
            require_trusted(each)
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            raise ConfigInvalid(
                f"the embedding model {displayed_path} needs {missing[0]}: pip install 'muniment[semantic]'"
            )

    @cached_property
    def identity(self) -> str:
        """Return a digest of the names, sizes and bytes of the model's files."""
        found = hashlib.sha256()
        for name in _FILES:
            with (self._directory / name).open("rb") as file:
                of_file = hashlib.file_digest(file, "sha256").hexdigest()
                found.update(f"{name} {file.tell()} {of_file}\n".encode())
        return found.hexdigest()

    def compute_vector(self, columns: Columns) -> bytes | None:
        """Return the vector of an entry as bytes, one signed byte for each dimension.

        Args:
            columns: the texts of the entry.

        Returns:
            None if the model cannot be read, or knows no word of the entry.
        """
        text = "\n".join([columns.name, columns.description, columns.context, columns.body[:RANKED_CHARS]])
        tables = self._load()
        words = [] if tables is None else find_specific_words(text.translate(tables.bases))
        found = self.compute_mean(words[:MAX_WORDS])
        if found is None:
            return None
        import numpy as np

        return bytes(np.rint(found * (_MAX_BYTE_VALUE / np.abs(found).max())).astype(np.int8).tobytes())

    def compute_mean(self, words: Sequence[str]) -> Array | None:
        """Return the mean of the vectors of some words, scaled to length 1.

        Words that the model does not know are ignored. If it knows none of the words, return None.
        """
        tables = self._load()
        if tables is None or not (
            numbers := [tables.numbers[word] for word in words if word in tables.numbers]
        ):
            return None
        import numpy as np

        rows = tables.vectors[numbers if tables.vector_rows is None else tables.vector_rows[numbers]].astype(
            np.float32
        )
        if tables.weights is not None:
            rows *= tables.weights[numbers][:, None]
        found = rows.mean(axis=0)
        length = float(np.linalg.norm(found))
        return found / length if length > 0 else None

    def _load(self) -> _Model | None:
        with self._lock:
            if not self._is_loaded:
                self._is_loaded = True
                try:
                    self._loaded = _read_model(self._directory)
                except Exception as defect:  # noqa: BLE001  for any content of the files (M6)
                    events.emit_defect("embeddings_not_loaded", defect)
            return self._loaded


def find_specific_words(plain: str) -> list[str]:
    """Return the different words of a text that identify a subject.

    Args:
        plain: a text from `store.rows.normalize_for_index`, without accents.
    """
    words = dict.fromkeys(_WORD.findall(plain))
    return [word for word in words if len(word) <= _WORD_CHARS and is_specific(word)]


def _read_model(directory: Path) -> _Model:
    from safetensors.numpy import load_file

    vocabulary = json.loads((directory / _FILES[0]).read_text(encoding="utf-8"))["model"]["vocab"]
    if isinstance(vocabulary, list):  # A unigram model: tokens with their likelihoods.
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    word_mark = next(mark for mark in _MARKS if any(token.startswith(mark) for token in vocabulary))
    numbers = {
        token.removeprefix(word_mark): number
        for token, number in vocabulary.items()
        if token.startswith(word_mark) and token.removeprefix(word_mark).isalnum()
    }
    tensors = load_file(directory / _FILES[1])
    vectors = tensors["embeddings" if "embeddings" in tensors else "embedding.weight"]
    vector_rows, weights = tensors.get("mapping"), tensors.get("weights")
    _require_matching_tables(numbers.values(), vectors, vector_rows, weights)
    with closing(Stemmer()) as stemmer:
        bases = stemmer.load_accent_table()
    return _Model(bases, numbers, vectors, vector_rows, weights)


def _require_matching_tables(
    numbers: Iterable[object], vectors: Array, vector_rows: Array | None, weights: Array | None
) -> None:
    """Raise `ValueError` if a word of the tokenizer has no usable vector."""
    import numpy as np

    known = range(len(vectors) if vector_rows is None else len(vector_rows))
    fits = [
        len(vectors.shape) == _MATRIX_DIMENSIONS and vectors.shape[1] > 0,
        (np.abs(vectors) < _MAX_VALUE).all(),
    ]
    if weights is not None:
        fits += [weights.ndim == 1, len(weights) >= len(known), (np.abs(weights) < _MAX_VALUE).all()]
    if vector_rows is not None:
        fits += [
            vector_rows.ndim == 1,
            vector_rows.dtype.kind in "iu",
            np.isin(vector_rows, range(len(vectors))).all(),
        ]
    fits += (type(number) is int and number in known for number in numbers)
    if not all(fits):
        raise ValueError("the tokenizer and the vectors do not match")


class VectorCache:
    """Keeps the vectors of a catalog in memory. Threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: tuple[str, int] = ("", -1)
        self._ids: Array = None
        self._roots: Array = None
        self._vectors: Array = None
        self._lengths: Array = None
        self._numbers: dict[str, int] = {}

    def find_nearest(
        self, catalog: Database, roots: Iterable[RootKey], vector: Array, deadline: Deadline
    ) -> dict[int, Array]:
        """Return the vectors of some roots that are nearest to `vector`, at most `MAX_NEAR`, by their ids.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be read.
            Cancelled, DeadlineExceeded: the call was cancelled or ran out of time.

        Cost: linear; 1 ms for 10 000 vectors of 256 dimensions, and loading the changes since the last call.
        """
        import numpy as np

        with self._lock:
            self._refresh(catalog, len(vector), deadline)
            ids, root_numbers, vectors, lengths = self._ids, self._roots, self._vectors, self._lengths
            wanted = [self._numbers[root] for root in roots if root in self._numbers]
        if not len(ids):
            return {}
        near = np.empty(len(ids), np.float32)
        for position in range(0, len(ids), _BLOCK_ROWS):
            block = vectors[position : position + _BLOCK_ROWS].astype(np.float32)
            near[position : position + _BLOCK_ROWS] = np.einsum(
                "ij,j->i", block, vector
            )  # `@` would start threads for it.
        near /= lengths
        near[~np.isin(root_numbers, wanted)] = -1
        best = np.argpartition(-near, min(MAX_NEAR, len(near)) - 1)[:MAX_NEAR]
        best = best[np.argsort(-near[best])]
        return {
            int(ids[position]): normalize_vector(vectors[position])
            for position in best
            if near[position] >= MIN_NEAR_SIMILARITY
        }

    def _refresh(self, catalog: Database, dimensions: int, deadline: Deadline) -> None:
        """Load the vectors that were added to the catalog since the last call, and remove deleted ones."""
        import numpy as np

        ((series, changes),) = catalog.rows("SELECT series, changes FROM meant", deadline=deadline)
        if self._seen == (series, changes):
            return
        if self._seen[0] != series:
            self._ids, self._roots = np.empty(0, np.int64), np.empty(0, np.int32)
            self._vectors, self._lengths = np.empty((0, dimensions), np.int8), np.empty(0, np.float32)
        live = np.array([number for (number,) in catalog.rows(_LIVE_IDS, deadline=deadline)], np.int64)
        is_live = np.isin(self._ids, live)
        last = int(self._ids[-1]) if len(self._ids) else 0
        new = catalog.rows(_NEW_VECTORS, (last, MAX_VECTORS - int(is_live.sum())), deadline=deadline)
        new = [row for row in new if len(row[2]) == dimensions]
        for _, root, _ in new:
            self._numbers.setdefault(root, len(self._numbers))
        values = np.frombuffer(b"".join(row[2] for row in new), np.int8).reshape(-1, dimensions)
        self._ids = np.concatenate([self._ids[is_live], np.array([row[0] for row in new], np.int64)])
        new_roots = np.array([self._numbers[row[1]] for row in new], np.int32)
        self._roots = np.concatenate([self._roots[is_live], new_roots])
        self._vectors = np.concatenate([self._vectors[is_live], values])
        new_lengths = np.linalg.norm(values.astype(np.float32), axis=1)
        self._lengths = np.concatenate([self._lengths[is_live], new_lengths])
        self._seen = (series, changes)


def normalize_vector(vector: Array) -> Array:
    """Return a vector with the same direction and the length 1."""
    import numpy as np

    floats = vector.astype(np.float32)
    return floats / np.linalg.norm(floats)


class CombinedSearch(Search):
    """Searches the entries of a catalog by words and by meaning. Threads may share one.

    Args:
        catalog: an up-to-date catalog with the vectors of `model`; the caller closes it.
        stemmer: the caller closes it.
        model: the embedding model.
    """

    def __init__(self, catalog: Database, stemmer: Stemmer, model: StaticModel) -> None:
        super().__init__(catalog, stemmer)
        self._model = model

    def find(self, request: SearchRequest, deadline: Deadline) -> SearchResult:
        """Return the entries that match by words or by meaning; scores are those of the merged order.

        Cost: as `Search.find` and `VectorCache.find_nearest`, and 1 ms.
        """
        found, ranking = self._rank_matches(request, deadline, abstains=True)
        near = self._find_near(request, ranking, deadline, is_answered=bool(found))
        hits = move_updates_first(_merge_ranks(found, near)[: request.limit])
        ranked = (replace(hit, score=1 / (RANK_OFFSET + index)) for index, hit in enumerate(hits, 1))
        return SearchResult(tuple(ranked), ranking)

    def _find_near(
        self, request: SearchRequest, ranking: Ranking, deadline: Deadline, *, is_answered: bool
    ) -> list[tuple[Hit, Score]]:
        """Return the entries that are near enough in meaning, the nearest first.

        Args:
            request: the search request.
            ranking: scores the entries by words.
            deadline: the time limit.
            is_answered: an entry matches by words; then near entries are returned even if none matches by
                meaning.
        """
        words = [each.text for each in request.query if not each.is_phrase and is_specific(each.text)]
        query_vector = self._model.compute_mean(words)
        if query_vector is None:
            return []
        nearest = self._model.vector_cache.find_nearest(self._catalog, request.roots, query_vector, deadline)
        rows = self._catalog.rows(
            _CANDIDATE_ROWS, (json.dumps(list(nearest)), *build_filter_values(request)), deadline=deadline
        )
        order = {number: index for index, number in enumerate(nearest)}
        rows.sort(key=lambda row: order[row[0]])
        rows = [row for row in rows if request.accepts(RootKey(row[2]), RelPath(row[3]))][:PAGE]
        numbers = [number for _, number, *_ in rows]
        texts = dict(self._read_texts(numbers, deadline))
        rows = [row for row in rows if row[1] in texts]
        if not is_answered and not any(self._is_about(words, nearest[row[0]], texts[row[1]]) for row in rows):
            return []
        scores = ranking.score_rows([texts[number] for _, number, *_ in rows])
        return [
            (build_hit(hit, score.score), score) for (_, _, *hit), score in zip(rows, scores, strict=True)
        ]

    def _is_about(self, words: Sequence[str], vector: Array, columns: Sequence[str]) -> bool:
        """Return whether an entry is near enough to those query words that the entry does not contain.

        Args:
            words: the query words.
            vector: the vector of the entry.
            columns: the texts of the entry.
        """
        text = self._stemmer.strip_accents("\n".join(columns))
        remaining_vector = self._model.compute_mean([word for word in words if not _has_prefix(text, word)])
        return remaining_vector is not None and float(vector @ remaining_vector) >= MIN_MATCH_SIMILARITY


def _has_prefix(text: str, word: str) -> bool:
    """Return whether a word of a text begins like `word`; different endings are ignored."""
    return re.search(rf"(?<![^\W_]){re.escape(word[:_PREFIX_CHARS])}", text) is not None


def _merge_ranks(
    found: Sequence[tuple[Hit, Score]], near: Sequence[tuple[Hit, Score]]
) -> list[tuple[Hit, Score]]:
    """Return the hits of both lists in the order of their merged ranks.

    If merged ranks are equal, matches by words come first.

    Args:
        found: matches by words, the best first.
        near: matches by meaning, the nearest first.
    """
    ranks: dict[Any, float] = {}
    for order in (found, near):
        for index, (hit, _) in enumerate(order, 1):
            ranks[hit.key] = ranks.get(hit.key, 0.0) + 1 / (RANK_OFFSET + index)
    every = {hit.key: (hit, score) for hit, score in (*near, *found)}
    return [every[key] for key in sorted(ranks, key=lambda key: -ranks[key])]


_LIVE_IDS: Final = f"SELECT id FROM vector ORDER BY id LIMIT {MAX_VECTORS}"  # noqa: S608  a constant
_NEW_VECTORS: Final = """
    SELECT vector.id, entry.root, vector.value FROM vector JOIN entry ON entry.id = vector.entry
    WHERE vector.id > ? ORDER BY vector.id LIMIT ?
"""
_CANDIDATE_ROWS: Final = f"""
    SELECT vector.id, entry.id, {HIT_COLUMNS} FROM vector CROSS JOIN entry ON entry.id = vector.entry
    WHERE vector.id IN (SELECT value FROM json_each(?)) {DISPLAYABLE}
"""  # noqa: S608  constants of this package
