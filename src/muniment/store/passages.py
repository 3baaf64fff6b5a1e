"""Recognize sentences of a text that the ledger knows, and return their trust, independent of their format.

With each row of `provenance` the ledger stores keyed digests of the comparable text (`content/sentences.py`):
a digest of the body, and, unless the text is the owner's, digests of its grams. A gram is a sequence of a few
consecutive words. The following applies to bytes that the ledger does not know at their path:

- A1. A sentence has the trust of the entry in which its words were committed. At the path of that entry, the
  last commit with these words counts; at another path, the lowest trust of all commits with these words.
- A2. A sentence has the trust of the scope if it has one new word for every `MAX_KNOWN_PER_NEW_WORD` words of
  lower trust, and contains no complete sentence of lower trust. A word is new if no commit contained it, in
  any spelling.
- A3. The entry has the lowest trust of its sentences. A text that is too long to be compared has the lowest
  trust that the ledger knows.
- A4. An edit by a user is not a source of trust: sentences that existed before retain their trust.

Not guaranteed: sentences of fewer than `MIN_SENTENCE_WORDS` words are recognized only at their own path, or
in a body that is otherwise the same. Erased text is unknown.

Attacked in tests/attacks/test_formatted_files.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from muniment.content.sentences import (
    MAX_KNOWN_PER_NEW_WORD,
    ComparedText,
    ComparedWord,
    Gram,
    GramValue,
    Sentence,
    SentenceMatch,
    compare_sentences,
    find_known_words,
    is_respelled,
    list_known_grams,
    list_short_grams,
    read_text,
)
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath, Trust
from muniment.store.database import Transaction
from muniment.store.state import State
from muniment.store.table import Table
from muniment.types import TrustedText

PERSON: Final = "owner"
"""The value of `Run.decided_by` if a user edited an entry."""

NO_SOURCE: Final = 0
"""Value stored instead of the digest of a body, if its sentences have different authors."""

MAX_VERSIONS: Final = 8
"""Maximum committed versions of a file that are compared as its own; older ones are compared like other
files.
"""

MAX_CACHED: Final = 4_096
"""Maximum cached results of `read_text_trust`; if there are more, the cache is emptied."""

MAX_SIMILAR: Final = 4
"""Maximum number of other entries with which the spelling of a sentence is compared."""

MAX_STEPS: Final = 20_000
"""Maximum pairs of sentences whose spelling is compared for one text; further sentences count as known."""

MAX_ALIGNED: Final = 60
"""Maximum words of a sentence whose spelling is compared word by word."""

_SIZE: Final = 4
"""Number of words in a gram (sequence of words) that is searched in all entries."""
_SIZE_AT_PATH: Final = 3
"""Number of words in a gram (sequence of words) that is searched in versions of the same file."""
_ALIGNMENT: Final = 40
"""Number of steps, of `MAX_STEPS`, that one comparison word by word uses."""
_AROUND: Final = 8
"""Number of words before and after a matching part of a known text that are also compared."""
_AT_ONCE: Final = 256
_BITS: Final = 63
_TRUSTS: Final = tuple(Trust)
_FIND: Final = (
    "SELECT passage.digest, passage.body, known.trust, known.at FROM passage "  # noqa: S608
    "JOIN provenance AS known ON known.body = passage.body "
    f"WHERE passage.digest IN ({', '.join('?' * _AT_ONCE)})"
)
_VERSIONS: Final = (
    "SELECT step.after, known.trust, known.at FROM step JOIN provenance AS known "  # noqa: S608
    "ON known.root = step.root AND known.rel = step.rel AND known.digest = step.after_digest "
    "WHERE step.root = ? AND step.rel = ? AND step.done IS NOT NULL AND step.after IS NOT NULL "
    f"AND known.body <> {NO_SOURCE} ORDER BY step.change_set DESC LIMIT {MAX_VERSIONS}"
)
_CONTENT: Final = (
    "SELECT change.rel, change.after, known.trust "
    "FROM provenance AS known JOIN change ON change.root = known.root "
    "AND change.rel = known.rel AND change.after_digest = known.digest "
    "WHERE known.body = ? AND change.after IS NOT NULL LIMIT 1"
)
_POSITION: Final = "SELECT max(id), (SELECT count(*) FROM change_set WHERE done IS NULL) FROM change_set"
"""SQL query whose result changes with each commit: only commits add sources of trust."""
_INCOMPLETE: Final = (
    "SELECT root, rel, digest, trust, (SELECT after FROM change WHERE change.root = known.root "  # noqa: S608
    "AND change.rel = known.rel AND change.after_digest = known.digest AND after IS NOT NULL LIMIT 1) "
    f"FROM provenance AS known WHERE body IS NULL LIMIT {_AT_ONCE}"
)


class _Passage(NamedTuple):
    digest: int
    body: int


_PASSAGES: Final = Table("passage", _Passage)


@dataclass(frozen=True, slots=True)
class TextTrust:
    """The trust of a text, in total and by sentence.

    Attributes:
        trust: the lowest trust of the sentences, or lower.
        sentences: sentences of the body, then of the titles; empty if all have the trust of the text.
        since: when the text of lower trust that this text may contain was first committed; None without such
            text.
    """

    trust: Trust
    sentences: tuple[TrustedText, ...] = ()
    since: str | None = None

    @property
    def highest_trust(self) -> Trust:
        """Return the highest trust of the sentences: a run needs it to replace or remove the text."""
        return next(
            trust for trust in Trust if trust in {self.trust, *(each.trust for each in self.sentences)}
        )

    def select_sentences(self, trust: Trust) -> str:
        """Return the sentences of the body that have exactly this trust, one per line."""
        return "\n".join(each.text for each in self.sentences if each.trust is trust and not each.is_title)


class _TextTrustCache:
    """Cache of the results of `read_text_trust` until the next commit.

    Threads may share it. `cached` is replaced as one object; results are only added for the position of the
    ledger that it contains.
    """

    def __init__(self) -> None:
        self.cached: tuple[tuple[object, ...], dict[tuple[str, str, str, Trust], TextTrust]] = ((), {})

    def close(self) -> None:
        """Drop all cached results."""
        self.cached = (), {}


def digest_body(state: State, text: ComparedText) -> int:
    """Return the keyed digest of the comparable form of a body, as stored in `provenance`."""
    return _digest_gram(state, text.body_gram)


def store_passages(
    state: State, connection: Transaction, texts: Iterable[tuple[int, ComparedText, Trust]]
) -> None:
    """Store the digests by which later texts with the same sentences are recognized.

    Args:
        state: has the key of the ledger.
        connection: a transaction of the ledger.
        texts: the digest of the body, the comparable text, and its trust. Texts of the owner, and those with
            the digest `NO_SOURCE`, are skipped.
    """
    rows = [
        _Passage(each, body)
        for body, text, trust in texts
        if trust is not Trust.OWNER and body != NO_SOURCE
        for each in {_digest_gram(state, gram) for gram in list_known_grams(text, _SIZE)}
    ]
    _PASSAGES.insert(connection, rows, suffix="ON CONFLICT DO NOTHING")


def read_text_trust(state: State, root: str, rel: RelPath, data: bytes, scope_trust: Trust) -> TextTrust:
    """Return the trust of bytes that no commit of this ledger put at a path.

    The rules are A1 to A4 in the module docstring.

    Args:
        state: has the ledger.
        root: key of the root.
        rel: path inside the scope.
        data: the bytes.
        scope_trust: the trust of text that was written in the scope by hand.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: a few index queries. If the ledger contains text of lower trust and there was a commit since the
    last call: also linear in the text, about 15 µs a word.
    """
    cache = cast("_TextTrustCache", state.get_resource("authorships", _TextTrustCache))
    (position,) = state.ledger.rows(_POSITION)
    before, found = cache.cached
    cache_key = (root, rel, digest(data), scope_trust)
    if before == position and cache_key in found:
        return found[cache_key]
    authorship = _compute_text_trust(state, root, rel, data, scope_trust)
    if before != position or len(found) >= MAX_CACHED:
        found = {}
        cache.cached = (position, found)
    found[cache_key] = authorship
    return authorship


def _compute_text_trust(state: State, root: str, rel: RelPath, data: bytes, scope_trust: Trust) -> TextTrust:
    """Compute the result of `read_text_trust` without its cache; the arguments are the same."""
    _add_missing_digests(state)
    same = "SELECT trust, at FROM provenance WHERE digest = ? AND body <> ?"
    known = state.ledger.rows(same, (digest(data), NO_SOURCE))
    least = scope_trust.cap(*(Trust(trust) for trust, _ in known))
    if least is not scope_trust:
        return TextTrust(least, since=min(position for _, position in known))
    versions = state.ledger.rows(_VERSIONS, (root, rel))
    is_any_lower = any(not Trust(trust).satisfies(scope_trust) for _, trust, _ in versions)
    if not is_any_lower and not state.ledger.rows("SELECT 1 FROM passage LIMIT 1"):
        return TextTrust(scope_trust)
    text = read_text(data, rel)
    if not text.is_whole:
        return TextTrust(scope_trust.cap(*_read_all_trusts(state)))
    return _TextComparison(state, rel, scope_trust, versions).compute(text)


class _KnownText:
    """The words of an entry in the ledger, and the positions of each sequence of three words."""

    def __init__(self, text: ComparedText) -> None:
        self._words = [word for sentence in (*text.body, *text.titles) for word in sentence.words]
        keys = [word.key for word in self._words]
        self._gram_positions = {
            tuple(keys[index : index + _SIZE_AT_PATH]): index
            for index in range(len(keys) - _SIZE_AT_PATH + 1)
        }

    def find_similar_part(self, sentence: Sentence) -> list[ComparedWord]:
        """Return the words around the first three words that `sentence` shares with this text, if any."""
        keys, size = [word.key for word in sentence.words], _SIZE_AT_PATH
        for offset in range(len(keys) - size + 1):
            position = self._gram_positions.get(tuple(keys[offset : offset + size]))
            if position is not None:
                return self._words[
                    max(0, position - offset - _AROUND) : position - offset + len(keys) + _AROUND
                ]
        return []


class _TextComparison:
    """Compares one text with the texts that the ledger knows.

    Args:
        state: has the ledger.
        rel: path of the text.
        scope_trust: trust of new text in the scope.
        versions: committed versions of the file, the newest first: content, trust and time.
    """

    def __init__(
        self, state: State, rel: RelPath, scope_trust: Trust, versions: Sequence[tuple[bytes, str, str]]
    ) -> None:
        self._state, self._scope_trust = state, scope_trust
        lower = [position for _, trust, position in versions if not Trust(trust).satisfies(scope_trust)]
        self._since = min(lower, default=None)
        self._at_path: dict[Gram, GramValue] = {}
        self._known: list[_KnownText] = []
        self._bodies: Counter[int] = Counter()
        self._lower: list[tuple[Sentence, Trust]] = []
        self._steps_left = MAX_STEPS
        self._least_of_long = scope_trust
        for order, (content, trust, _) in enumerate(versions):
            known = read_text(bytes(content), rel)
            self._add_known(known, Trust(trust))
            if not known.is_whole:
                self._least_of_long = self._least_of_long.cap(Trust(trust))
            for gram in (*list_known_grams(known, _SIZE_AT_PATH), *list_short_grams(known, _SIZE_AT_PATH)):
                self._at_path.setdefault(gram, (order, -_TRUSTS.index(Trust(trust))))

    def compute(self, text: ComparedText) -> TextTrust:
        """Return the trust of the text, in total and by sentence."""
        if self._least_of_long is not self._scope_trust:  # Its last sentences are not compared.
            return TextTrust(self._least_of_long, since=self._since)
        whole = self._find_anywhere([text.body_gram]).get(text.body_gram)
        known = self._at_path.get(text.body_gram, whole)
        if known is not None and not (least := _decode_trust(known)).satisfies(self._scope_trust):
            return TextTrust(least, since=self._since)  # Only the format differs from a known text.
        found = [
            (each.text, trust, is_title)
            for is_title, some in ((False, text.body), (True, text.titles))
            for each, trust in zip(some, self._compute_sentence_trusts(some), strict=True)
        ]
        least = self._scope_trust.cap(*(trust for _, trust, _ in found if trust is not None))
        sentences = tuple(
            TrustedText(text=each, trust=trust or least, is_title=of) for each, trust, of in found
        )
        is_mixed = len({each.trust for each in sentences}) > 1
        return TextTrust(
            least, sentences if is_mixed else (), None if least is self._scope_trust else self._since
        )

    def _compute_sentence_trusts(self, sentences: Sequence[Sentence]) -> list[Trust | None]:
        path_matches = compare_sentences(sentences, _SIZE_AT_PATH, self._find_at_path, match_short=True)
        if all(None not in match.known for match in path_matches):
            return [
                self._compute_sentence_trust(each, match, match)
                for each, match in zip(sentences, path_matches, strict=True)
            ]
        ledger_matches = compare_sentences(sentences, _SIZE, self._find_anywhere, match_short=False)
        self._read_similar()
        return [
            self._compute_sentence_trust(*each)
            for each in zip(sentences, path_matches, ledger_matches, strict=True)
        ]

    def _compute_sentence_trust(
        self, sentence: Sentence, path_match: SentenceMatch, ledger_match: SentenceMatch
    ) -> Trust | None:
        """Return the trust of a sentence; None if the sentence has only words that do not count.

        Args:
            sentence: the sentence.
            path_match: its words that versions of the same file contain.
            ledger_match: its words that any entry contains.
        """
        known = [
            at_path or anywhere
            for at_path, anywhere in zip(path_match.known, ledger_match.known, strict=True)
        ]
        trusts = [None if value is None else _decode_trust(value) for value in known]
        lower = [trust for trust in trusts if trust is not None and not trust.satisfies(self._scope_trust)]
        if None in trusts and (respelled := self._find_respelled_trust(sentence)):
            return respelled
        if not lower:
            return self._scope_trust if sentence.is_counted or any(trusts) else None
        others = {
            index
            for index, (word, trust) in enumerate(zip(sentence.words, trusts, strict=True))
            if word.is_counted and not word.is_small and (trust is None or trust.satisfies(self._scope_trust))
        }
        new = len(self._remove_known_words(others, sentence))
        is_original = new * MAX_KNOWN_PER_NEW_WORD >= len(lower) and not (
            path_match.is_intact or ledger_match.is_intact
        )
        return self._scope_trust if new and is_original else self._scope_trust.cap(*lower)

    def _remove_known_words(self, new: set[int], sentence: Sentence) -> set[int]:
        """Return those words in `new` that no similar known text contains in another spelling.

        Args:
            new: positions of words of the sentence.
            sentence: the sentence.
        """
        for each in self._known if new and len(sentence.words) <= MAX_ALIGNED else ():
            if part := each.find_similar_part(sentence):
                new = (
                    new - find_known_words(part, sentence.words)
                    if self._has_steps_left(_ALIGNMENT)
                    else set()
                )
        return new

    def _has_steps_left(self, steps: int) -> bool:
        """Count `steps` and return whether more spellings may be compared.

        After the limit, sentences count as known without a comparison.
        """
        self._steps_left -= steps
        return self._steps_left >= 0

    def _find_respelled_trust(self, sentence: Sentence) -> Trust | None:
        """Return the trust of a known sentence with the same words in another spelling, or None."""
        for known, trust in self._lower:
            if not self._has_steps_left(1):
                return trust
            if is_respelled(known.words, sentence.words):
                old = find_known_words(known.words, sentence.words)
                if all(index in old or word.is_small for index, word in enumerate(sentence.words)):
                    return trust
        return None

    def _add_known(self, text: ComparedText, trust: Trust) -> None:
        self._known.append(_KnownText(text))
        if not trust.satisfies(self._scope_trust):
            self._lower += [(each, trust) for each in text.body]

    def _read_similar(self) -> None:
        """Read the entries that share the most word sequences with the text, to compare spellings later."""
        for body, _ in self._bodies.most_common(MAX_SIMILAR):
            for rel, content, trust in self._state.ledger.rows(_CONTENT, (body,)):
                self._add_known(read_text(bytes(content), rel), Trust(trust))
        self._bodies.clear()

    def _find_at_path(self, grams: Collection[Gram]) -> Mapping[Gram, GramValue]:
        return {gram: self._at_path[gram] for gram in grams if gram in self._at_path}

    def _find_anywhere(self, grams: Collection[Gram]) -> Mapping[Gram, GramValue]:
        digests = {_digest_gram(self._state, gram): gram for gram in grams}
        found: dict[Gram, GramValue] = {}
        wanted = list(digests)
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            values = (*some, *[-1] * (_AT_ONCE - len(some)))
            for each, body, trust, position in self._state.ledger.rows(_FIND, values):
                self._bodies[body] += 1
                if not Trust(trust).satisfies(self._scope_trust):
                    self._since = min(position, self._since or position)
                value = (0, -_TRUSTS.index(Trust(trust)))
                found[digests[each]] = min(value, found.get(digests[each], value))
        return found


def _decode_trust(value: GramValue) -> Trust:
    return _TRUSTS[-value[1]]


def _read_all_trusts(state: State) -> list[Trust]:
    return [Trust(trust) for (trust,) in state.ledger.rows("SELECT DISTINCT trust FROM provenance")]


def _digest_gram(state: State, gram: Gram) -> int:
    """Return the keyed digest of a gram (some consecutive words), as a number that both engines can store."""
    return int.from_bytes(state.mac(b"passage", "\0".join(gram).encode())[:8]) >> (64 - _BITS)


def _add_missing_digests(state: State) -> None:
    """Add the missing digests of bodies and grams to rows that an earlier version wrote.

    A row whose bytes are not stored gets the digest of an empty text.
    """
    while rows := state.ledger.rows(_INCOMPLETE):
        texts = [read_text(bytes(row[4] or b""), row[1]) for row in rows]
        bodies = [digest_body(state, text) for text in texts]
        with state.ledger.transaction() as connection:
            connection.executemany(
                "UPDATE provenance SET body = ? WHERE root = ? AND rel = ? AND digest = ?",
                [(body, *row[:3]) for body, row in zip(bodies, rows, strict=True)],
            )
            trusts = [Trust(row[3]) for row in rows]
            store_passages(state, connection, zip(bodies, texts, trusts, strict=True))
