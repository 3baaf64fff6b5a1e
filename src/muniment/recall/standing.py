"""Choose the entries that every session of an assistant starts with, and write them as one text.

1. *Instructions*: entries of trust `owner`, and the owner's sentences of entries with mixed trust. The model
   is instructed to follow them.
2. *Data between marks*: pinned entries of lower trust except `external`, and rules of trust `workspace`,
   which come with a repository; each has a label.
3. *Index*: the number of other entries by topic, so that the model knows what a recall can find.

Pinned entries come first. The others are ordered by their words: instructions, facts about the user and
conventions of the project come before occasions, and of two equal entries the newer one. The first entries of
a memory usually introduce the user and the project, so they get an additional score. An entry about an
occasion is not a standing fact, even if there is room: a recall finds it.

- N1. An entry of trust `agent`, `workspace` or `external` is never among the instructions.
- N2. An entry of trust `external`, and an unpinned one of trust `agent`, is only counted in the index. A
  topic is named only if it has entries of the owner or the workspace.
- N3. The text takes at most the budget.
- N4. Entries of lower trust do not displace those of the owner, however many there are. Of each lower trust,
  at most `_MAX_READ_OF_TRUST` entries are read. In the text, they take at most half of the budget together.

Attacked in tests/surface/test_standing_everywhere.py and tests/surface/cli/test_hook.py. The script
benchmarks/standing.py measures how many useful facts the text has.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Final, NamedTuple

from muniment.content.entry import PINNED_FOLDER, is_pinned, shorten
from muniment.content.expiry import compute_local_day
from muniment.content.gates import clean_line
from muniment.content.markdown import create_fence_token
from muniment.files import load_package_tables
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import RelPath, Trust
from muniment.kernel.path import fold
from muniment.recall.block import MAX_STANDING_CHARS, Count, build_standing_block
from muniment.recall.context import GLOBAL_SCOPE
from muniment.recall.reading import ReadEntry
from muniment.recall.recaller import Recaller
from muniment.recall.root_reader import RootReader
from muniment.recall.search import DISPLAYABLE_IN_ROOTS, HIT_COLUMNS, Hit, build_hit
from muniment.types import Recalled, RecalledEntry
from muniment.types.keys import EntryKey, RootKey

MAX_CANDIDATES: Final = 5_000
"""Maximum number of entries whose rows are compared: those of the owner come first, of these the pinned ones,
then `feedback`, then the newest.
"""

_MAX_READ: Final = 150
"""Maximum number of entries that are read from their files."""

_MAX_READ_OF_TRUST: Final = 50
"""Maximum number of these entries that have the same trust, if it is lower than `owner`."""

_MIN_SCORE: Final = 0.3
"""Minimum score of a standing fact that is not pinned."""

_FEEDBACK_SCORE: Final = 0.5
"""Score of the type `feedback`, which the rules give to instructions in any of their languages."""

_USER_SCORE: Final = 0.4
"""Score of an entry of the scope `user`: it is about the user, so it helps in more sessions."""

_FIRST_SCORE: Final = 3.2
_FIRST_SHARE: Final = 0.06
_MAX_FIRST: Final = 25
"""Score of the first entries of a memory; their share of all entries, and their maximum number."""

_MAX_TOPICS: Final = 8
_TOPIC_CHARS: Final = 30
"""Maximum number of topics of a scope in the index, and maximum characters of each."""

_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+|\n+|\s[-\u2013\u2014]\s")
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")

_CANDIDATE_ROWS: Final = f"""
    SELECT {HIT_COLUMNS}, entry.type, entry.description, entry.sort FROM entry
    WHERE {DISPLAYABLE_IN_ROOTS} AND (entry.ends IS NULL OR entry.ends >= ?) AND entry.trust <> 'external'
    ORDER BY entry.trust = 'owner' DESC, entry.sort LIKE '{PINNED_FOLDER}/%' DESC,
        entry.type = 'feedback' DESC, entry.mtime_ns DESC, entry.rel
    LIMIT {MAX_CANDIDATES}
"""  # noqa: S608  constants of this package

_TOPIC_ROWS: Final = f"""
    SELECT entry.root, entry.rel, entry.topic, entry.trust IN ('owner', 'workspace') FROM entry
    WHERE {DISPLAYABLE_IN_ROOTS}
"""  # noqa: S608  constants of this package


class _Candidate(NamedTuple):
    """An entry with its score, by the catalog; its file is read before it is used."""

    hit: Hit
    is_pinned: bool
    score: float


class _WordClass(NamedTuple):
    """Phrases in the form of `_normalize`, and the score of a text that contains one of them."""

    phrases: tuple[str, ...]
    weight: float


def read_standing(
    recaller: Recaller, budget: int, deadline: Deadline, exclude: Collection[EntryKey] = ()
) -> Recalled:
    """Return the entries that a session starts with; after an error, an empty result that contains the error.

    Args:
        recaller: searches the memory.
        budget: maximum tokens of the text; below one: an empty result.
        deadline: the time limit.
        exclude: versions of entries that the session already has. If all entries are excluded, the text is
            empty.

    Cost: a scan of the rows, some 30 µs for each, and reading up to 150 files.
    """

    def work(reader: RootReader) -> Recalled:
        if budget < 1:
            return Recalled()
        now = recaller.now

        def find_hits() -> list[Hit]:
            return _select_hits(_rank_candidates(recaller, reader, now, deadline))

        readings = reader.find_and_read(find_hits, _MAX_READ).readings
        chosen = [part for each in readings if (part := _select_part(each)) is not None]
        new = [each for each in chosen if each.hit.key not in exclude]
        if not new and exclude:
            return Recalled()
        entries = _limit_lower_trust(recaller.build_entries(new, reader), recaller.count, budget // 2)
        index = _build_index(recaller, reader, now, deadline, {each.hit.key for each in chosen})
        return build_standing_block(entries, index, budget, create_fence_token(), recaller.count)

    return recaller.run_with_roots(work, None, deadline)


def score_text(text: str) -> float:
    """Return how much a fact helps in every session, by its words.

    The score is positive for instructions, facts about a person and conventions, and negative for occasions.

    Source: logistic regression over facts whose usefulness people judged, see `standing.toml`.

    Cost: about 30 µs.
    """
    normalized = _normalize(text)
    return sum(each.weight for each in _load_classes() if any(map(normalized.__contains__, each.phrases)))


def _normalize(text: str) -> str:
    """Return the folded words of a text between spaces, with a `^` before each sentence."""
    sentences = [
        " ".join(["^", *_WORD.findall(sentence.replace("\u2019", "'"))])
        for sentence in _SENTENCE_END.split(fold(text))
    ]
    return f" {' '.join(sentences)} "


def _rank_candidates(
    recaller: Recaller, reader: RootReader, now: str, deadline: Deadline
) -> list[_Candidate]:
    """Return the candidates, the most useful first."""
    today = str(compute_local_day(datetime.fromisoformat(now)))
    values = (json.dumps(list(reader.keys)), now, today)
    rows = [
        (build_hit(tuple(row)), kind, description, sort)
        for *row, kind, description, sort in recaller.catalog.rows(_CANDIDATE_ROWS, values, deadline=deadline)
    ]
    rows.sort(key=lambda row: -row[0].mtime_ns)
    first_count = min(_MAX_FIRST, max(5, len(rows) * _FIRST_SHARE))
    found: list[_Candidate] = []
    for position, (hit, kind, description, sort) in enumerate(rows):
        score = score_text(description)
        score += _FEEDBACK_SCORE if kind == "feedback" else 0.0
        score += _USER_SCORE if reader.get_scope(hit.key.root) == GLOBAL_SCOPE else 0.0
        score += _FIRST_SCORE if position >= len(rows) - first_count else 0.0
        pinned = is_pinned(sort)
        if (pinned or score >= _MIN_SCORE) and reader.can_display(hit.key.root, hit.key.rel):
            found.append(_Candidate(hit, pinned, score))
    return sorted(found, key=lambda each: (not each.is_pinned, -each.score))


def _select_hits(candidates: Sequence[_Candidate]) -> list[Hit]:
    """Return the entries to read, with at most `_MAX_READ_OF_TRUST` of each lower trust."""
    found: list[Hit] = []
    counts = Counter[str]()
    for each in candidates:
        counts[each.hit.trust] += 1
        if each.hit.trust == Trust.OWNER or counts[each.hit.trust] <= _MAX_READ_OF_TRUST:
            found.append(each.hit)
    return found


def _limit_lower_trust(entries: Sequence[RecalledEntry], count: Count, budget: int) -> list[RecalledEntry]:
    """Return the entries of the owner, and as many of the first other ones as take at most a budget."""
    found: list[RecalledEntry] = []
    for each in entries:
        if each.trust is not Trust.OWNER:
            budget -= count(each.text[:MAX_STANDING_CHARS])
        if each.trust is Trust.OWNER or budget >= 0:
            found.append(each)
    return found


def _select_part(reading: ReadEntry) -> ReadEntry | None:
    """Return the part of an entry that a session may start with, by its trust; None: no part."""
    if (owned := reading.owner_part) is not None:
        return owned
    is_accepted = is_pinned(reading.hit.key.rel) and reading.trust is not Trust.EXTERNAL
    if reading.trust is Trust.WORKSPACE or is_accepted:
        return reading
    return None


def _build_index(
    recaller: Recaller, reader: RootReader, now: str, deadline: Deadline, chosen: Collection[EntryKey]
) -> str:
    """Return a line with the number of the other entries, by scope and topic; may be empty.

    Entries that the policy hides from models are not counted.
    """
    rows = recaller.catalog.rows(_TOPIC_ROWS, (json.dumps(list(reader.keys)), now), deadline=deadline)
    entries, trusted = Counter[tuple[RootKey, str]](), set[tuple[RootKey, str]]()
    for root, rel, topic, is_trusted in rows:
        if reader.can_display(RootKey(root), RelPath(rel)):
            entries[RootKey(root), topic] += 1
            trusted |= {(RootKey(root), topic)} if is_trusted else set()
    entries.subtract((key.root, key.rel.rpartition("/")[0]) for key in chosen)
    left: dict[RootKey, Counter[str]] = {}
    for (root, topic), count in entries.items():
        name = shorten(clean_line(topic.partition("/")[0]), _TOPIC_CHARS) if (root, topic) in trusted else ""
        left.setdefault(root, Counter())[name] += count
    parts = [
        f"{reader.get_scope(root)}: {', '.join(_format_topics(topics))}"
        for root, topics in left.items()
        if topics.total() > 0
    ]
    return f"Also stored: {'; '.join(parts)}" if parts else ""


def _format_topics(topics: Counter[str]) -> Iterator[str]:
    named = [(topic, count) for topic, count in topics.most_common() if topic and count > 0][:_MAX_TOPICS]
    yield from (f"{topic} {count}" for topic, count in named)
    others = topics.total() - sum(count for _, count in named)
    if others:
        noun = ("other", "others") if named else ("entry", "entries")
        yield f"{others} {noun[others > 1]}"


@cache
def _load_classes() -> tuple[_WordClass, ...]:
    """Return the classes of `standing.toml`."""
    tables = load_package_tables("muniment.recall", "standing")
    return tuple(_WordClass(_list_phrases(table), float(table["weight"])) for table in tables.values())


def _list_phrases(table: Mapping[str, str]) -> tuple[str, ...]:
    """Return the phrases of a class in the form in which they occur in a normalized text."""
    found: list[str] = []
    for language in table.keys() - {"why", "weight"}:
        for phrase in table[language].split(","):
            text = " ".join(fold(phrase).split())
            if language != "unspaced":
                text = f" {text.removesuffix('*')}" if text.endswith("*") else f" {text} "
            found.append(text)
    return tuple(sorted(found))
