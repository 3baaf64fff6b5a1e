"""Search: which entries are about what a query asks, best first; over the full-text rows of the catalog.

1. Words that stand in no row are asked for by their beginning, from `MIN_PREFIX_CHARS` letters on.
2. Gate: an entry must hold one of the words. In a large memory it must hold a rare one, or one that is less
   rare and another; rows with common words alone are many and seldom meant, and are looked at where nothing
   else is found.
3. What may not be shown or was shown before is left out by the query, so that the best `PAGE` rows by bm25
   are of the rest.
4. These are ranked again, by weights that hold in a small memory too: SQLite gives words that stand in every
   second entry none at all. What was written just before or after the best ones, by the times of their files,
   is ranked with them, and has a share of what its neighbour holds: an answer seldom repeats the question.
   Of two that are about the same the newer comes right before the other (`newer_first`); none is left out
   for that, and none goes before what is trusted more.
5. Abstain, once for a query: one entry must hold two of the words, or the only one, some of what they weigh
   together, and a word that tells a subject. If one does, all that hold any word are the answer, the best
   first: no entry is left out for holding too little, so that nothing is lost that plain search finds.
6. Of two words it may hold one, if no entry holds the other, and its name or context has that one, and few
   others do: `editor theme` finds what is about editors.

A row is not believed beyond that: whoever shows an entry reads its file (`reading.py`).

What does not hold: that anything is found behind `PAGE * _MAX_PAGES` rows that `accepts` refuses; nor that a
word which ends inside an ending that stems lack (`configura`) is the beginning of one.

Attacked in tests/units/recall/test_search.py; how often the right entry comes first, in test_quality.py.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), for weights;
sqlite.org/fts5.html, 5.1.1 for bm25 and 6 for the vocabulary.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from operator import mul
from typing import Any, Final, NamedTuple, TypeVar

from muniment.content.gates import drop_invisible
from muniment.content.words import STOP_WORDS, comparable
from muniment.files import shipped_tables
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Digest, RelPath, Trust
from muniment.store.database import Database
from muniment.store.index import EXPIRES_AT
from muniment.store.ledger import RootKey
from muniment.store.rows import as_indexed, saying_digest
from muniment.store.visit import Stamp

# -- stems -------------------------------------------------------------------------------------------
#
# Words as the full-text rows know them: cut, and without their endings, by SQLite itself.
#
# Asked of an empty full-text table in memory with the tokenizer of the catalog's, so that both always
# agree.
#
# Attacked in tests/units/recall/test_query.py.

MAX_KEPT: Final = 20_000
"""Words whose stems are kept, about 4 MB; the ones asked for longest ago go first."""

_TABLES: Final = """
    CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'unicode61');
    CREATE VIRTUAL TABLE word USING fts5vocab (words, instance);
    CREATE VIRTUAL TABLE stems USING fts5 (text, tokenize = 'porter unicode61');
    CREATE VIRTUAL TABLE stem USING fts5vocab (stems, instance);
"""
_CUTS: Final = (("words", "word"), ("stems", "stem"))
"""A table that cuts, and what shows how it did."""

_ACCENTS: Final = tuple(map(chr, range(0x300, 0x370)))
_ACCENTED: Final = tuple(
    char
    for char in map(chr, (*range(0xC0, 0x528), *range(0x1E00, 0x2000)))
    if char.isalpha() and char.islower()
)


class Term(NamedTuple):
    """A word without case and accents, and its stem."""

    word: str
    stem: str


class Stemmer:
    """Cuts text into words and finds their stems. Threads may share one; close it when done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bases: dict[int, str] | None = None
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(_TABLES)

    def terms(self, folded: str) -> tuple[Term, ...]:
        """The words of a text in order, with their stems.

        Args:
            folded: as `store.rows.as_indexed` makes it. Halves of surrogate pairs stand between words.

        Cost: 90 µs and about 1 µs a word.
        """
        with self._lock:
            return self._cut(folded)

    def stems(self, words: Iterable[str]) -> dict[str, str]:
        """The stems of words, each of which is one to the tokenizer; those that are not are left out.

        Cost: that of `terms` for the words that are not kept.
        """
        wanted = set(words)
        with self._lock:
            unknown = [word for word in wanted if word not in self._kept]
            if unknown:
                self._kept.update(self._cut(" ".join(unknown)))
            found = {word: self._kept[word] for word in wanted if word in self._kept}
            for word in found:
                self._kept.move_to_end(word)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return found

    def without_accents(self, folded: str) -> str:
        """A folded text as the tokenizer sees it: without the accents that it takes away.

        Cost: linear; the first text that is not ASCII takes 1 ms more.
        """
        return folded if folded.isascii() else folded.translate(self.bases())

    def bases(self) -> dict[int, str]:
        """What the tokenizer takes letters with accents for, as `str.translate` takes it."""
        with self._lock:
            if self._bases is None:
                self._bases = self._find_bases()
            return self._bases

    def close(self) -> None:
        """Give the table back."""
        with self._lock:
            self._connection.close()

    def _find_bases(self) -> dict[int, str]:
        """What the tokenizer makes of letters with accents, and of accents that stand by themselves."""
        cut = self._cut(" ".join(_ACCENTED))
        bases = dict(zip(_ACCENTED, (term.word for term in cut), strict=True))
        words = iter(term.word for term in self._cut(" ".join(f"a{accent}b" for accent in _ACCENTS)))
        for accent in _ACCENTS:
            if next(words) == "ab":
                bases[accent] = ""
            else:
                next(words)  # It parts words.
        return str.maketrans(bases)

    def _cut(self, text: str) -> tuple[Term, ...]:
        text = text.encode("utf-8", "replace").decode()  # SQLite takes no half of a surrogate pair.
        cut = []
        for table, view in _CUTS:
            self._connection.execute(f"INSERT INTO {table} (rowid, text) VALUES (1, ?)", (text,))  # noqa: S608
            rows = self._connection.execute(f"SELECT offset, term FROM {view}").fetchall()  # noqa: S608
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608
            cut.append([term for _, term in sorted(rows)])
        return tuple(map(Term, *cut))


# -- query -------------------------------------------------------------------------------------------
#
# What a message asks of the memory: its words that say something, each once. Pure but for the stemmer.
#
# - Q1. No syntax of the full-text search comes from a message: every word is one that the tokenizer cut.
# - Q2. Left out are single characters, stop words, and words of talk that are about no subject (`please`,
#   `谢谢`).
# - Q3. Weak words rank what others found, and find nothing themselves: words of two letters, words that stand
#   in any message to a coding agent (`file`), and pairs of Hiragana, which are endings more often than words.
# - Q4. What is written as one name (`10.42.7.19`, `snake_case`, `src/app.py`) is asked for as a phrase, too,
#   if one of its parts says something, or is a number.
# - Q5. Common words (`two`, `begin`, `after`) find and rank, and tell no subject: what holds no other word of
#   a message is not what it is about.
# - Q6. Linear time. Of a long message only the beginning and the end are looked at, `_END_CHARS` of each; of
#   many words the first and the last, `MAX_WORDS` in all: what is asked stands there, what was pasted stands
#   between.
#
# Attacked in tests/units/recall/test_query.py.

MAX_WORDS: Final = 48
"""Words of a message that are looked up, phrases included; each costs some 10 µs."""

_MIN_CHARS: Final = 2
_WEAK_CHARS: Final = 2
_PAIR: Final = 2
_MAX_PHRASES: Final = 4
_MAX_PHRASE_WORDS: Final = 16
"""Of a phrase; an address, a path or a date with its time has fewer."""

_END_CHARS: Final = 2_000

_Item = TypeVar("_Item")


@cache
def _lists() -> dict[str, frozenset[str]]:
    """Those of `talk.toml`, as the tokenizer cuts words. Cost: reads a file of ours, once a process."""
    tables = shipped_tables("muniment.recall", "talk")
    return {name: frozenset(words.replace("'", " ").split()) for name, words in tables.items()}


_GREETING: Final = re.compile(r"\bgood (?:morning|afternoon|evening|night|day)\b")
_HIRAGANA: Final = re.compile("[\u3041-\u309f]+")
# From the beginning of a word alone: else a long one is gone through once for each of its letters.
_NAME: Final = re.compile(r"(?<![^\W_])[^\W_]+(?:[._/:@#-]+[^\W_]+)+")
_IS_ONE_NAME: Final = re.compile(r"[0-9._/:@#]")
_SYMBOL: Final = re.compile(r"[^\w\x00-\x7f\u0300-\u036f]")
"""What parts words: also an emoji that SQLite's older Unicode does not know, and takes for a letter."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that is looked up, or a phrase.

    Attributes:
        text: without case and accents; the words of a phrase have a space between them.
        stem: what the full-text rows know it by; of a phrase, likewise of its words.
        is_weak: whether it finds nothing by itself (Q3).
        goes_on: whether it shares a character with the strong word before it, as pairs of one word do.
        is_common: whether it tells no subject by itself (Q5).
    """

    text: str
    stem: str
    is_weak: bool = False
    goes_on: bool = False
    is_common: bool = False

    @property
    def is_phrase(self) -> bool:
        """Whether it is one (Q4)."""
        return " " in self.text


def read_query(text: str, stemmer: Stemmer, *, is_fact: bool = False) -> tuple[Word, ...]:
    """What is looked up for a message (Q1 to Q6): at most `MAX_WORDS` words in their order; none: nothing.

    Args:
        text: any.
        stemmer: stays the caller's.
        is_fact: it is one, and no message: what is talk in that (Q2) may be what a fact tells of (`works`).

    Cost: 0.2 ms for a sentence, some ms for a message of any length.
    """
    text = text if is_fact else without_blocks(text)
    if len(text) > 2 * _END_CHARS:
        text = f"{text[:_END_CHARS]} {text[-_END_CHARS:]}"
    plain = _GREETING.sub(" ", as_indexed(drop_invisible(text)))
    phrases = tuple(_phrases(plain, stemmer))
    words = tuple(_words(stemmer.terms(_SYMBOL.sub(" ", plain)), is_fact=is_fact))
    first, last = _ends(words, MAX_WORDS - len(phrases))
    if last:
        last = (replace(last[0], goes_on=False), *last[1:])
    return (*phrases, *first, *last)


def without_blocks(text: str) -> str:
    """Return a message without the tagged blocks before it; all of it if it has nothing else.

    Cost: linear.
    """
    rest = text
    while block := _BLOCK.match(rest):
        rest = rest[block.end() :]
    return rest if rest.strip() else text


_BLOCK: Final = re.compile(r"\s*<([A-Za-z][\w:-]{0,60})(?:\s[^<>]{0,500})?>(?s:.*?)</\1>")
"""Context that a host puts before what the user asks, such as `<context>…</context>`."""


def units(words: Iterable[Word]) -> int:
    """As how many words some strong ones count: of pairs that share characters every other, a phrase two."""
    count = run = 0
    for word in words:
        run = run + 1 if word.goes_on else 1
        count += 2 if word.is_phrase else run % 2
    return count


def _phrases(plain: str, stemmer: Stemmer) -> Iterator[Word]:
    names = dict.fromkeys(name[0] for name in _NAME.finditer(plain) if _IS_ONE_NAME.search(name[0]))
    first, last = _ends(tuple(names), _MAX_PHRASES)
    for name in (*first, *last):
        terms = stemmer.terms(name)
        if 1 < len(terms) <= _MAX_PHRASE_WORDS and any(map(_tells, terms)):
            yield Word(" ".join(term.word for term in terms), " ".join(term.stem for term in terms))


def _words(terms: Sequence[Term], *, is_fact: bool) -> Iterator[Word]:
    common = _lists()["common"]
    seen: set[str] = set()
    before = ""
    for term in terms:
        word, stem = term
        if _says_nothing(word, is_fact=is_fact) or stem in seen:
            before = ""
            continue
        seen.add(stem)
        is_weak = _is_weak(word)
        goes_on = not is_weak and _overlap(before, word)
        yield Word(word, stem, is_weak=is_weak, goes_on=goes_on, is_common=bool({word, stem} & common))
        before = "" if is_weak else word


def _ends(items: tuple[_Item, ...], limit: int) -> tuple[tuple[_Item, ...], tuple[_Item, ...]]:
    """The first and the last of some things, `limit` in all; where they are no more, the first are all."""
    if len(items) <= limit:
        return items, ()
    half = limit // 2
    return items[: limit - half], items[len(items) - half :]


def _says_nothing(word: str, *, is_fact: bool = False) -> bool:
    """Whether a word is left out (Q2)."""
    return len(word) < _MIN_CHARS or word in STOP_WORDS or (not is_fact and word in _lists()["talk"])


def _tells(term: Term) -> bool:
    """Whether a part of a name tells it from `e.g.` and `and/or` (Q4)."""
    return term.word.isdigit() or not _says_nothing(term.word)


@lru_cache(MAX_KEPT)
def is_telling(word: str) -> bool:
    """Whether a word finds something and tells a subject by itself (Q2, Q3, Q5); a number does not."""
    return not (_says_nothing(word) or _is_weak(word) or word in _lists()["common"] or word.isdigit())


def _overlap(first: str, second: str) -> bool:
    """Whether two words are neighbouring pairs of one run of characters."""
    return len(first) == len(second) == _PAIR and first[1] == second[0] and not second.isascii()


def _is_weak(word: str) -> bool:
    """Whether a word finds nothing by itself (Q3)."""
    is_short = len(word) <= _WEAK_CHARS and word.isascii()
    return is_short or word in _lists()["weak"] or _HIRAGANA.fullmatch(word) is not None


# -- ranking -----------------------------------------------------------------------------------------
#
# How much a text says of what is asked: the words of a query, weighed by how rare they are.
#
# Pure but for the stemmer. Attacked in tests/units/recall/test_query.py.

COLUMN_WEIGHTS: Final = (2.0, 2.0, 1.0, 1.5)
"""Of name, description, body, context: a name says more of what an entry is about than a line of its body."""

_BODY: Final = 2

_ALIKE_CHARS: Final = 2_000
"""Characters of an entry that is one fact, and may be about the same as another."""

_NAMING: Final = (0, 3)
"""The columns that say what an entry is about: its name, and its context (topic, keywords)."""

_SATURATION: Final = 1.2
"""How soon a word that is said again adds nothing: the usual `k1` of bm25."""

_LETTERS: Final = re.compile(r"[^\W_]+")

_BETWEEN: Final = r"[\W_]{1,3}"
"""What stands between the words of a name in a text."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A word of a query with what the catalog knows of it.

    Attributes:
        rows: in how many it stands.
        weight: how much it tells, its inverse document frequency; of a phrase, which is two words, twice.
        is_prefix: whether it is asked for by its beginning.
    """

    word: Word
    rows: int
    weight: float
    is_prefix: bool = False

    @property
    def expression(self) -> str:
        """It, for the full-text search; it has letters, digits and spaces only, so nothing else gets in."""
        return f'"{self.word.text}"{"*" * self.is_prefix}'


@dataclass(frozen=True)
class Score:
    """What an entry says of a query.

    Attributes:
        score: how good it is among others.
        units: how many strong words of the query it holds, see `query.units`.
        weight: what these weigh together.
        named: what the rarest of those weighs that stand in its name or its context.
        telling: as how many words those of them count that tell a subject by themselves.
        held: which words of the query these are, by their numbers.
        said: the body; empty for a long one.
    """

    score: float
    units: int
    weight: float
    named: float
    telling: int
    held: frozenset[int]
    said: str

    @cached_property
    def beginnings(self) -> frozenset[str]:
        """Those of the words of the body that say something, so that endings do not count."""
        words = _LETTERS.findall(self.said)
        return frozenset(word[:_BEGINNING] for word in words if not _says_nothing(word))

    def is_like(self, other: Score) -> bool:
        """Whether what says the one is about the same as what says the other."""
        if self.held != other.held:
            return False
        mine, theirs = self.beginnings, other.beginnings
        return _TWO * len(mine & theirs) >= min(len(mine), len(theirs)) > 0


class Ranking:
    """Scores texts by the words of one query.

    Args:
        words: all of it, those in no row too, in their order.
        stemmer: as that of the query.
    """

    def __init__(self, words: Sequence[Weighed], stemmer: Stemmer) -> None:
        self._every, self._stemmer = words, stemmer
        self._words = [each for each in words if each.rows]
        self._starts = {_start(each) for each in self._words if not each.word.is_phrase}
        self._phrases = {
            each.word.text: re.compile(
                rf"(?<![^\W_]){_BETWEEN.join(map(re.escape, each.word.text.split()))}(?![^\W_])"
            )
            for each in self._words
            if each.word.is_phrase
        }
        self._is_plain = not any(each.word.goes_on or each.word.is_phrase for each in words)

    def scores(self, rows: Sequence[Sequence[str]]) -> list[Score]:
        """The scores of full-text rows.

        Args:
            rows: of each name, description, body and context, as `store.fulltext` folds them.

        Cost: linear in the columns, some 2 µs a KiB; 0.1 ms if a word is among them that never was before.
        """
        texts = [[self._stemmer.without_accents(column) for column in columns] for columns in rows]
        found = [[self._begun(text) for text in row] for row in texts]
        meant = self._meant({word for row in found for words in row for word in words})
        return [self._score(row, words, meant) for row, words in zip(texts, found, strict=True)]

    def _begun(self, text: str) -> Collection[str]:
        """The words of a text that begin as a word of the query does, as often as they stand there."""
        found: dict[int, str] = {}  # By their places: several words of a query may begin one.
        for start in self._starts:  # A search for a text is ten times quicker than one for a pattern.
            at = text.find(start)
            while at >= 0:
                if not (at and text[at - 1].isalnum()) and (word := _LETTERS.match(text, at)):
                    found[at] = word[0]
                at = text.find(start, at + 1)
        return found.values()

    def _meant(self, found: Collection[str]) -> dict[str, list[int]]:
        """Which words of the query, by their numbers, each word of a text is."""
        stems = self._stemmer.stems(found)
        numbers = {each.word.stem: at for at, each in enumerate(self._words) if not each.is_prefix}
        begun = [(each.word.text, at) for at, each in enumerate(self._words) if each.is_prefix]
        return {
            word: [numbers[stem] for stem in (stems.get(word),) if stem in numbers]
            + [at for text, at in begun if word.startswith(text)]
            for word in found
        }

    def _score(
        self, texts: Sequence[str], found: Sequence[Collection[str]], meant: Mapping[str, Sequence[int]]
    ) -> Score:
        said, naming = [0.0] * len(self._words), set[int]()  # how often, weighed by column
        for column, (weight, words) in enumerate(zip(COLUMN_WEIGHTS, found, strict=False)):
            numbers = [at for word in words for at in meant[word]]
            for at in numbers:
                said[at] += weight
            if column in _NAMING:
                naming.update(numbers)
        for at, each in enumerate(self._words):
            if each.word.is_phrase:
                times = [len(self._phrases[each.word.text].findall(text)) for text in texts]
                said[at] = sum(map(mul, COLUMN_WEIGHTS, times))
                naming.update(at for column in _NAMING if column < len(times) and times[column])
        score, held, named, numbers_held = 0.0, list[Weighed](), 0.0, set[int]()
        for at, each in enumerate(self._words):
            if said[at]:
                score += each.weight * said[at] / (said[at] + _SATURATION)
                if not each.word.is_weak:
                    held.append(each)
                    numbers_held.add(at)
                    named = max(named, each.weight) if at in naming else named
        telling = sum(not each.word.is_common for each in held)
        weight = sum(each.weight for each in held)
        body = texts[_BODY] if len(texts[_BODY]) <= _ALIKE_CHARS else ""
        return Score(score, self._units(held), weight, named, telling, frozenset(numbers_held), body)

    def weight(self, folded: str) -> float:
        """How much a passage says, by itself.

        Cost: as `scores`, and 20 µs.
        """
        return self.scores([("", "", folded)])[0].score

    def _units(self, held: Sequence[Weighed]) -> int:
        """As how many words those count that a text holds; a pair goes on only where the last one is held."""
        if self._is_plain:
            return len(held)
        present = {each.word for each in held}
        counted: list[Word] = []
        before: Word | None = None
        for each in self._every:
            if each.word in present:
                counted.append(each.word if before in present else replace(each.word, goes_on=False))
            before = each.word
        return units(counted)


def _start(each: Weighed) -> str:
    """With what every word begins that has the same stem: an ending changes no more than its last letter."""
    return each.word.text if each.is_prefix else each.word.stem[: max(1, len(each.word.stem) - 1)]


# -- search ------------------------------------------------------------------------------------------

MIN_PREFIX_CHARS: Final = 4
"""Letters of a word that may be the beginning of another one; shorter ones begin too many."""

PAGE: Final = 24
"""Rows that are ranked again at a time, some 20 µs each."""

_MAX_PAGES: Final = 8
_RARE_SHARE: Final = 0.02
_RAREST_SHARE: Final = 0.01
_GATE_FROM: Final = 2_000
"""Entries from which on the gate is quicker than what it saves."""

RANKED_CHARS: Final = 32_768
"""Characters of a body that are looked at; all of what people write, and the beginning of what they paste."""

_PRIOR_ROWS: Final = 20
"""Entries that a memory is taken to hold besides, so that the words of a very small one weigh something."""

_ENOUGH_SHARE: Final = 0.2
_ENOUGH_WEIGHT: Final = 0.75
"""What one entry must hold of what the query weighs: that share, or so many times a word of one row."""

_WITH_NEIGHBOURS: Final = 6
"""The best entries, whose neighbours are ranked too."""

_REACH: Final = 2
"""Entries on either side that are neighbours, in the order of time."""

_MOST_APART_NS: Final = 60_000_000_000
_NEIGHBOUR_SHARE: Final = 0.35
_OWN_CONTEXT_BYTES: Final = 4_096
"""A longer entry, such as a page of notes, stands for itself."""


_ENOUGH_NAMED: Final = 0.5
"""What the one word of two must weigh: as one that stands in the square root of all rows."""

_TWO: Final = 2

_HEADED: Final = 5
"""The best entries, before which newer ones go; behind them nobody cares for the order."""

_NEAR_SHARE: Final = 0.75
"""Of the score of an entry: what another one that is about the same has at least."""

_BEGINNING: Final = 5
"""Characters by which words of two entries are compared: `Tuesday` and `Tuesdays` are one."""

HIT_COLUMNS: Final = (
    "entry.root, entry.rel, entry.digest, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns, "
    "entry.trust, entry.ident, entry.sees"
)
"""Of a row that `hit_of` takes."""


class EntryKey(NamedTuple):
    """An entry as it was: which, and what it said."""

    root: RootKey
    rel: RelPath
    digest: Digest


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that is found, as its row says.

    Attributes:
        stamp: of its file, when it was read.
        score: how good it is among others.
        trust: who it comes from.
        ident: what its own provenance calls it; None: nothing.
        sees: what that says it replaces or is about as well: such names, and digests of files.
    """

    key: EntryKey
    stamp: Stamp
    score: float
    trust: Trust
    ident: str | None
    sees: frozenset[str]

    @property
    def mtime_ns(self) -> int:
        """When its file was written."""
        return self.stamp[2]

    def names(self, other: Hit) -> bool:
        """Whether it says of itself that it replaces another one, or is about it too."""
        return other.key.digest in self.sees or (other.ident is not None and other.ident in self.sees)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked.

    Attributes:
        roots: where.
        exclude: what was shown already.
        now: ISO-8601 UTC; what has expired by then is not found.
        limit: how many at most.
        accepts: whether the entry at a path of a root may be shown.
    """

    query: Sequence[Word]
    roots: Sequence[RootKey]
    exclude: Collection[EntryKey]
    now: str
    limit: int
    accepts: Callable[[RootKey, RelPath], bool]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search finds, best first, with what ranked it."""

    hits: tuple[Hit, ...]
    ranking: Ranking


_Rows = dict[int, tuple[Any, ...]]
"""By their numbers, `HIT_COLUMNS` of rows."""


class Search:
    """Searches the catalog. Threads may share one.

    Args:
        catalog: up to date; stays the caller's.
        stemmer: likewise.
    """

    def __init__(self, catalog: Database, stemmer: Stemmer) -> None:
        self._catalog, self._stemmer = catalog, stemmer
        self._counts: dict[str, int] = {}
        self._counted_at = 0

    def find(self, wanted: Wanted, patience: Patience) -> SearchResult:
        """The entries that are asked for; none where nothing is about it.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be read.
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: some 2 ms of CPU in a memory of 1 000 entries, 7 ms in one of 100 000.
        """
        found, ranking = self._searched(wanted, patience, abstains=True)
        return SearchResult(newer_first(found), ranking)

    def nearest(self, texts: Sequence[str], wanted: Wanted, patience: Patience) -> tuple[Hit, ...]:
        """The entries that are most like some texts, best first, whether or not they are about them.

        Those that say one of them by themselves (`content.words.sayings`) come first, whatever their words.

        Args:
            texts: all in the query of `wanted`.
            wanted: what is asked.
            patience: until when to look.

        Raises:
            ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `find`.

        Cost: that of `find`.
        """
        said = json.dumps([saying_digest(comparable(text)) for text in texts])
        rows = self._catalog.rows(_SAYING, (said, *shown(wanted), wanted.limit), patience=patience)
        same = [hit for row in rows if wanted.accepts((hit := hit_of(row)).key.root, hit.key.rel)]
        found = newer_first(self._searched(wanted, patience, abstains=False)[0])
        return tuple({hit.key: hit for hit in (*same, *found)}.values())[: wanted.limit]

    def _searched(
        self, wanted: Wanted, patience: Patience, *, abstains: bool
    ) -> tuple[list[tuple[Hit, Score]], Ranking]:
        """What is found, best first, with what it says of the query; and what ranked it."""
        total = self._total(patience)
        every = self._weighed(wanted.query, total, patience)
        words = [each for each in every if each.rows]
        ranking = Ranking(every, self._stemmer)
        if not any(not each.word.is_weak for each in words):
            return [], ranking
        is_meant = _judge_of(every, total) if abstains else lambda _: True
        for gate in _gates(words, total):
            rows = self._page(gate, wanted, patience)
            scores = self._scores(rows, ranking, patience)
            if any(map(is_meant, scores.values())):
                return self._ranked(rows, scores, wanted, ranking, patience), ranking
        return [], ranking

    def _weighed(self, query: Sequence[Word], total: int, patience: Patience) -> list[Weighed]:
        """The words of a query with their weights (1), those in no row too."""
        rows = self._counted({part for word in query for part in word.stem.split()}, total, patience)
        weighed: list[Weighed] = []
        for word in query:
            # Of a phrase it is not known; it cannot stand in more rows than the rarest of its words.
            count = min(rows.get(part, 0) for part in word.stem.split())
            may_begin = not (count or word.is_weak or word.is_phrase) and len(word.text) >= MIN_PREFIX_CHARS
            if may_begin:
                count = self._beginning_with(word.text, patience)
            count = min(count, total)
            weight = (1 + word.is_phrase) * math.log(1 + (total - count + 0.5) / (count + 0.5))
            weighed.append(Weighed(word, count, weight, is_prefix=may_begin and count > 0))
        return weighed

    def _counted(self, stems: set[str], total: int, patience: Patience) -> Mapping[str, int]:
        """In how many rows some stems stand.

        To count is to go through all of these. So in a large memory it is done once, until it has grown or
        shrunk by a hundredth: weights are of no greater accuracy. That a word stands nowhere is never kept.
        """
        if total < _GATE_FROM or abs(total - self._counted_at) > total // 100 or len(self._counts) > MAX_KEPT:
            self._counts, self._counted_at = {}, total
        known = self._counts
        if unknown := stems - known.keys():
            query = "SELECT term, doc FROM word WHERE term IN (SELECT value FROM json_each(?))"
            known |= self._catalog.rows(query, (json.dumps(sorted(unknown)),), patience=patience)
        return known

    def _beginning_with(self, text: str, patience: Patience) -> int:
        query = "SELECT coalesce(sum(doc), 0) FROM word WHERE term >= ? AND term < ?"
        ((count,),) = self._catalog.rows(query, (text, f"{text}\U0010ffff"), patience=patience)
        return int(count)

    def _total(self, patience: Patience) -> int:
        ((files,),) = self._catalog.rows("SELECT coalesce(sum(files), 0) FROM total", patience=patience)
        return int(files) + _PRIOR_ROWS

    def _page(self, gate: str, wanted: Wanted, patience: Patience) -> _Rows:
        """The best rows behind a gate that may be shown (3)."""
        rows: _Rows = {}  # Another thread may change what stands on which page.
        for page in range(_MAX_PAGES):
            values = (gate, *shown(wanted), page * PAGE)
            more = self._catalog.rows(_ROWS, values, patience=patience)
            rows |= {row[0]: row[1:] for row in more if wanted.accepts(RootKey(row[1]), RelPath(row[2]))}
            if len(more) < PAGE or len(rows) >= wanted.limit:
                break
        return rows

    def _scores(self, rows: Collection[int], ranking: Ranking, patience: Patience) -> dict[int, Score]:
        texts = self._texts(rows, patience)
        scored = ranking.scores([columns for _, columns in texts])
        return {number: score for (number, _), score in zip(texts, scored, strict=True)}

    def _texts(self, numbers: Collection[int], patience: Patience) -> list[tuple[int, list[str]]]:
        """The full-text rows with some numbers, each with its number."""
        rows = self._catalog.rows(_TEXTS, (json.dumps(list(numbers)),), patience=patience)
        return [(number, columns) for number, *columns in rows]

    def _ranked(
        self, rows: _Rows, scores: Mapping[int, Score], wanted: Wanted, ranking: Ranking, patience: Patience
    ) -> list[tuple[Hit, Score]]:
        """Some rows and the neighbours of the best of them, ranked again (4)."""
        best = sorted(scores, key=lambda number: -scores[number].score)[:_WITH_NEIGHBOURS]
        sides = self._catalog.rows(_NEIGHBOURS, (json.dumps(best),), patience=patience)
        beside = {one: {*json.loads(before), *json.loads(after)} for one, before, after in sides}
        unknown = set[int]().union(*beside.values()) - rows.keys()
        others = self._catalog.rows(_OTHERS, (json.dumps(list(unknown)), *shown(wanted)), patience=patience)
        near: _Rows = {row[0]: row[1:] for row in others}
        scores = {**scores, **self._scores(near, ranking, patience)}
        ranks = {number: score.score for number, score in scores.items() if score.units}
        for one, neighbours in beside.items():
            for other in neighbours & ranks.keys():
                shared = scores[other].score + _NEIGHBOUR_SHARE * scores[one].score
                ranks[other] = max(ranks[other], shared)
        found = list[tuple[Hit, Score]]()
        for number in sorted(ranks, key=lambda number: -ranks[number]):
            hit = hit_of(rows.get(number) or near[number], ranks[number])
            if number in rows or wanted.accepts(hit.key.root, hit.key.rel):
                found.append((hit, scores[number]))
            if len(found) == wanted.limit:
                break
        return found


def newer_first(found: Sequence[tuple[Hit, Score]]) -> tuple[Hit, ...]:
    """Some hits, the best first, but each before the first of which it says something newer (4).

    So does one whose provenance names the other, and one that was written later, is nearly as good, holds the
    same words of the query and shares half of its own with it. To name another changes the order and nothing
    else: anybody who may edit a file can write that.
    """
    placed: list[tuple[Hit, Score]] = []
    for hit, said in found:
        place = len(placed)
        for at, (old, other) in enumerate(placed[:_HEADED]):
            if _may_precede(hit, old) and (hit.names(old) or _is_update(hit, said, old, other)):
                place, hit = at, replace(hit, score=max(hit.score, old.score))  # noqa: PLW2901
                break
        placed.insert(place, (hit, said))
    return tuple(hit for hit, _ in placed)


def _may_precede(new: Hit, old: Hit) -> bool:
    return new.key.root == old.key.root and new.trust.satisfies(old.trust)


def _is_update(new: Hit, said: Score, old: Hit, other: Score) -> bool:
    is_later = new.mtime_ns > old.mtime_ns and not old.names(new)
    return is_later and new.score >= _NEAR_SHARE * old.score and said.is_like(other)


def left_over(
    catalog: Database, roots: Sequence[RootKey], told: Collection[EntryKey], now: str, patience: Patience
) -> Iterator[EntryKey]:
    """The entries of some roots that may be shown, but for `told`; what a policy says of them is not asked.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: 2 ms for each 1 000 that a caller takes, and a list of all places that are told.
    """
    last = 0
    while rows := catalog.rows(_LEFT, (last, *_values(roots, now, told)), patience=patience):
        yield from (hit_of(row).key for _, *row in rows)
        last = rows[-1][0]


def shown(wanted: Wanted) -> tuple[str, ...]:
    """The values of `MAY_BE_SHOWN`."""
    return _values(wanted.roots, wanted.now, wanted.exclude)


def _values(roots: Sequence[RootKey], now: str, exclude: Collection[EntryKey]) -> tuple[str, ...]:
    shown = [f"{key.root}{key.digest}{key.rel}" for key in exclude]
    return json.dumps(list(roots)), now, json.dumps(shown)


TOLD_THERE: Final = f"""
        entry.root IN (SELECT value FROM json_each(?))
        AND entry.readable AND entry.held IS NULL AND (entry.expires IS NULL OR {EXPIRES_AT} > ?)
"""  # noqa: S608  a constant of the store
"""Whether an entry may be shown, of some roots and at a time."""

MAY_BE_SHOWN: Final = f"""
        AND {TOLD_THERE}
        AND entry.root || entry.digest || entry.rel NOT IN (SELECT value FROM json_each(?))
"""  # noqa: S608  constants of this package

_ROWS: Final = f"""
    SELECT entry.id, {HIT_COLUMNS}
    FROM text CROSS JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? AND rank MATCH 'bm25({", ".join(map(str, COLUMN_WEIGHTS))})'
        {MAY_BE_SHOWN}
    ORDER BY rank LIMIT {PAGE} OFFSET ?
"""  # noqa: S608  constants of this package

_LEFT: Final = f"""
    SELECT entry.id, {HIT_COLUMNS} FROM entry WHERE entry.id > ? {MAY_BE_SHOWN} ORDER BY entry.id LIMIT 100
"""  # noqa: S608  likewise

_OTHERS: Final = f"""
    SELECT entry.id, {HIT_COLUMNS} FROM entry WHERE entry.id IN (SELECT value FROM json_each(?))
        {MAY_BE_SHOWN}
"""  # noqa: S608  likewise

_SAYING: Final = f"""
    SELECT {HIT_COLUMNS} FROM saying CROSS JOIN entry ON entry.id = saying.entry
    WHERE saying.digest IN (SELECT value FROM json_each(?))
        {MAY_BE_SHOWN}
    ORDER BY entry.root, entry.rel LIMIT ?
"""  # noqa: S608  likewise

_SIDE: Final = f"""
    (SELECT json_group_array(id) FROM (
        SELECT id FROM entry AS other
        WHERE other.root = entry.root AND other.mtime_ns {{within}} {_MOST_APART_NS}
            AND (other.mtime_ns, other.topic, length(other.rel), other.rel)
                {{side}} (entry.mtime_ns, entry.topic, length(entry.rel), entry.rel)
        ORDER BY other.mtime_ns {{order}}, other.topic {{order}},
            length(other.rel) {{order}}, other.rel {{order}}
        LIMIT {_REACH}
    ))
"""  # noqa: S608  likewise

_NEIGHBOURS: Final = f"""
    SELECT entry.id,
        {_SIDE.format(within=">= entry.mtime_ns -", side="<", order="DESC")},
        {_SIDE.format(within="<= entry.mtime_ns +", side=">", order="ASC")}
    FROM entry WHERE entry.size <= {_OWN_CONTEXT_BYTES} AND entry.id IN (SELECT value FROM json_each(?))
"""  # noqa: S608  likewise

_TEXTS: Final = f"""
    SELECT rowid, name, description, substr(body, 1, {RANKED_CHARS}), context
    FROM text WHERE rowid IN (SELECT value FROM json_each(?))
"""  # noqa: S608  likewise


def _judge_of(words: Sequence[Weighed], total: int) -> Callable[[Score], bool]:
    """What tells of the entries that were found whether a message is about one of them (5, 6)."""
    strong = [each for each in words if not each.word.is_weak]
    single = [each for each in strong if not each.word.is_phrase]
    known = [each.word for each in single if each.rows]
    if units(each.word for each in single) == _TWO and units(known) == 1:
        return lambda score: score.named >= _ENOUGH_NAMED * math.log(1 + total)
    enough = min(_ENOUGH_SHARE * sum(each.weight for each in strong), _ENOUGH_WEIGHT * math.log(1 + total))
    needed = min(_TWO, units(each.word for each in strong))
    telling = min(1, sum(not each.word.is_common for each in strong))
    return lambda score: score.units >= needed and score.weight >= enough and score.telling >= telling


def _gates(words: Sequence[Weighed], total: int) -> Iterator[str]:
    """Which rows are looked at, one after the other until something is found (2)."""
    finding = [each for each in words if not each.word.is_weak]
    if total >= _GATE_FROM:
        rare = [each for each in finding if each.rows <= _RARE_SHARE * total]
        rare = rare or [min(finding, key=lambda each: each.rows)]
        rarest = [each for each in rare if each.rows <= _RAREST_SHARE * total]
        if 0 < len(rarest) < len(rare):
            less_rare = [each for each in rare if each not in rarest]
            others = [each for each in finding if each not in rare]
            yield " OR ".join([_any(rarest), *_pairs(less_rare, others)])
        if len(rare) < len(finding):
            yield f"({_any(rare)}) AND ({_any(words)})"
    yield _any(finding) if len(finding) == len(words) else f"({_any(finding)}) AND ({_any(words)})"


def _pairs(words: Sequence[Weighed], others: Sequence[Weighed]) -> Iterator[str]:
    """One of some words, and another one of these or of others."""
    for at, each in enumerate(words, 1):
        if more := [*words[at:], *others]:
            yield f"({each.expression} AND ({_any(more)}))"


def _any(words: Sequence[Weighed]) -> str:
    return " OR ".join(each.expression for each in words)


def hit_of(row: Sequence[Any], score: float = 0.0) -> Hit:
    """The hit that `HIT_COLUMNS` of a row are."""
    root, rel, digest, inode, size, mtime_ns, ctime_ns, trust, ident, sees = row
    key = EntryKey(RootKey(root), RelPath(rel), Digest(digest))
    stamp = Stamp(inode, size, mtime_ns, ctime_ns)
    return Hit(key, stamp, score, Trust(trust), ident, frozenset(sees.split()))
