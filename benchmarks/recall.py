"""Measure the cost and the hit rate of recall, compared with plain full-text search.

    python benchmarks/recall.py [ENTRIES ...]

The memory is generated with a fixed seed: files of 40 to 120 words with front matter, half of them in each of
two scopes, in folders of 50. Words are English function words and invented ones, by Zipf's law, in text that
repeats the subject of its entry. A query targets one entry: it has some words of its subject and of the rest,
some of them shortened or with another ending, and some wrong words. recall@5 is the share of queries whose
entry is among the first five; an empty result counts as a miss. Rows are read from the files, as always.

CPU and wall are milliseconds of one query, median and 95th percentile. These ways take turns:

    search        from the text of a query to entries: the gate, the ranking, the abstaining
    recall        the complete recall: the check for changes, the search, five files read and judged, the text
    every word    the same table, all words of the query joined by OR, bm25 with the same weights, LIMIT 5
    same words    the same, with only the words that search uses: no stop words

For the last two only the SQL is timed. Libraries run afterwards, if they can be imported: `tantivy`, `bm25s`,
`rank_bm25`, and PyStemmer for their stems. They store each entry in memory, as one field; with four weighted
fields the first finds less. A way that has used a minute is stopped.
"""

from __future__ import annotations

import argparse
import gc
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import Scope
from muniment.policy.load import load_policy
from muniment.recall.query import read_query
from muniment.recall.ranking import COLUMN_WEIGHTS
from muniment.recall.recaller import Recaller
from muniment.recall.root_reader import RootReader
from muniment.recall.search import Search, SearchRequest
from muniment.recall.stems import Stemmer
from muniment.store.state import State
from muniment.store.watching import get_watcher

SIZES = (1_000, 10_000, 100_000)
FOLDER = 50
QUERIES, WARM_UP, BATCH = 400, 20, 20
CHANGES = 100
LIMIT = 5
MOST_SECONDS = 60.0  # Per way.
SETTLED_SECONDS = 0.1  # After this time, file times are old enough to prove that a file is unchanged.
SCOPES = (Scope("user"), Scope("project"))
VOCABULARY = 100_000
COMMON = """
the of and to in a is that for it as was with be by on not he i this are or his from at which but have an had
they you were their one all we can her has there been if more when will would who so no out up said what its
about into than them only other time new some could these two may first then do any like my now over such our
man me even most made after also did many off before must well back through years where much your way down
should because long each just state people those too mr how
""".split()  # noqa: SIM905
FRAMES = ("how do we {}", "what did i say about {}?", "where is the {}", "{}", "{} again?")
ENGLISH: Any = import_module("Stemmer").Stemmer("english") if find_spec("Stemmer") else None
PLAIN = f"""
    SELECT rowid FROM text WHERE text MATCH ? AND rank MATCH 'bm25({", ".join(map(str, COLUMN_WEIGHTS))})'
    ORDER BY rank LIMIT {LIMIT}
"""
Query = tuple[str, int]  # The text, and the number of the target entry.


class Entry(NamedTuple):
    """A generated entry: its file, and the words that a query may use."""

    path: str
    file: str
    subject: Sequence[str]
    others: Sequence[str]


def generate(count: int) -> tuple[list[Entry], list[Query]]:
    """Generate the entries of a memory, and the queries."""
    dice = random.Random(20261122)
    syllables = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "l", "n", "r", "t")]
    made: dict[str, None] = {}
    while len(made) < VOCABULARY:  # The most frequent ones are shorter.
        length = dice.choice((2, 2, 3)) + (len(made) > VOCABULARY // 50)
        made["".join(dice.choices(syllables, k=length))] = None
    content, words = list(made), [*COMMON, *made]
    shares = [1 / rank for rank in range(1, len(words) + 1)]
    of_words, of_content = list(accumulate(shares)), list(accumulate(shares[len(COMMON) :]))

    def choose_function_words(number: int) -> list[str]:
        return dice.choices(COMMON, cum_weights=of_words[: len(COMMON)], k=number)

    def choose_content_words(number: int) -> list[str]:
        return dice.choices(content, cum_weights=of_content, k=number)

    def inflect(word: str) -> str:
        return word + dice.choice(("s", "ed", "ing")) if dice.random() < 1 / 5 else word

    def recall_word(word: str) -> str:
        return word[: max(4, len(word) * 2 // 3)] if dice.random() < 1 / 10 else inflect(word)

    def choose_words(subject: Sequence[str], number: int) -> list[str]:
        plain = dice.choices(words, cum_weights=of_words, k=number)
        about = (dice.choice(subject) if dice.random() < 1 / 8 else word for word in plain)
        return [word if word in COMMON else inflect(word) for word in about]

    def entry(number: int, folder: Sequence[str]) -> Entry:
        subject = [*choose_content_words(4), *dice.sample(folder, 2)]  # Partly the subject of its folder.
        body = choose_words(subject, dice.randint(40, 120))
        lines = [" ".join(body[at : at + 12]).capitalize() for at in range(0, len(body), 12)]
        title, keywords = (
            f"{subject[0]} {choose_function_words(1)[0]} {subject[1]}",
            ", ".join(dice.sample(subject, 3)),
        )
        head = f"name: {title}\ndescription: {' '.join(choose_words(subject, 9))}\nkeywords: [{keywords}]"
        path = f"{SCOPES[number * len(SCOPES) // count]}/{'-'.join(folder[:3])}/{subject[0]}-{number}.md"
        file = f"---\n{head}\n---\n\n{'. '.join(lines)}.\n"
        return Entry(path, file, subject, sorted({*body} - {*COMMON, *subject}))

    entries: list[Entry] = []
    while len(entries) < count:
        folder = choose_content_words(6)
        entries += [entry(len(entries) + at, folder) for at in range(min(FOLDER, count - len(entries)))]

    def query() -> Query:
        right = dice.randrange(count)
        known = dice.sample(entries[right].subject, dice.choice((1, 2, 2)))
        known += dice.sample(entries[right].others, dice.choice((1, 2)))
        asked = [recall_word(word) for word in known] + choose_content_words(dice.choice((0, 1, 2)))
        dice.shuffle(asked)
        text = " ".join(map(" ".join, zip(choose_function_words(len(asked)), asked, strict=True)))
        return dice.choice(FRAMES).format(text), right

    return entries, [query() for _ in range(WARM_UP + QUERIES)]


@dataclass
class Way:
    """A way to find entries, with its results."""

    name: str
    search: Callable[[str], Iterable[int]]
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    right: int = 0
    empty: int = 0

    def run(self, query: Query) -> None:
        """Run one query, unless this way has used its time."""
        if sum(self.wall) > MOST_SECONDS * 1e3:
            return
        re.purge()  # Every query is new, also to this way.
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        found = list(self.search(query[0]))
        self.cpu.append((time.process_time_ns() - cpu) / 1e6)
        self.wall.append((time.perf_counter_ns() - wall) / 1e6)
        self.right += query[1] in found
        self.empty += not found


def compare(ways: Sequence[Way], queries: Sequence[Query]) -> None:
    """Let the ways take turns, and print a line for each."""
    gc.collect()
    gc.freeze()  # Existing objects should not be scanned while a way is timed.
    for way in ways:
        for query in queries[:WARM_UP]:
            list(way.search(query[0]))
    for batch in range(WARM_UP, len(queries), BATCH):
        for way in ways:
            for query in queries[batch : batch + BATCH]:
                way.run(query)
    for way in ways:
        asked = len(way.cpu)
        both = (way.cpu, way.wall)
        times = "".join(f"{median(each):10.2f}{quantiles(each, n=20)[-1]:9.2f}" for each in both)
        more = "" if asked == QUERIES else f"  ({asked} queries)"
        print(f"  {way.name:12}{times}{way.right / asked:10.3f}{way.empty / asked:8.3f}{more}")


def measure(base: Path, entries: Sequence[Entry], queries: Sequence[Query], stack: ExitStack) -> None:
    """Print the figures of recall, and of plain full-text search of the same rows."""
    for entry in entries:
        (base / entry.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (base / entry.path).write_text(entry.file)
    time.sleep(SETTLED_SECONDS)
    policy, state = load_policy("strict"), stack.enter_context(closing(State(base / "state")))
    roots = bind_all({scope: base / scope for scope in SCOPES})
    for root in roots.values():
        stack.callback(root.close)
    recaller = stack.enter_context(closing(Recaller(policy, roots, state)))
    stemmer, patience = stack.enter_context(closing(Stemmer())), Deadline(float("inf"))
    entries_source = RootReader(policy, roots, state, PolicyEvaluator(policy), policy, None, patience)
    finder = Search(state.catalog, stemmer)
    numbers = {row: number(rel) for row, rel in state.catalog.rows("SELECT id, rel FROM entry")}

    def search_numbers(text: str) -> list[int]:
        query = read_query(text, stemmer)
        wanted = SearchRequest(
            query, entries_source.keys, (), "2026-11-22T00:00:00Z", LIMIT, entries_source.can_display
        )
        return [number(hit.key.rel) for hit in finder.find(wanted, patience).hits]

    def plain(name: str, words: Callable[[str], Iterable[str]]) -> Way:
        ready = {text: " OR ".join(f'"{word}"' for word in words(text)) or '""' for text, _ in queries}
        rows = state.catalog.rows
        return Way(name, lambda text: [numbers[row] for (row,) in rows(PLAIN, (ready[text],))])

    search = Way("search", search_numbers)
    recall = Way("recall", lambda text: [number(each.path) for each in recaller.recall(text).entries])
    every = plain("every word", re.compile("[a-z]+").findall)
    same = plain("same words", lambda text: [word.text for word in read_query(text, stemmer)])
    compare([search, recall, every, same], queries)
    for way in (every, same):
        print(f"  {way.name}: {median(way.cpu) / median(search.cpu):.1f} x the CPU of search")
    watcher = get_watcher(state)
    views = [watcher.open_view(root, policy, patience) for root in roots.values()]
    folders = sum(len(view.directories()) for view in views)
    fresh = median(
        [
            cpu(lambda: [watcher.open_view(root, policy, patience) for root in roots.values()])
            for _ in range(CHANGES)
        ]
    )
    print(f"  check without changes in {folders} folders: {fresh:.2f} ms of CPU")
    upserts = []
    for entry in entries[: len(entries) // 2 : FOLDER][:CHANGES]:  # one of each folder of the first scope
        target = base / entry.path
        target.with_name(".staged").write_text(f"{entry.file}One line more.\n")
        target.with_name(".staged").rename(target)
        upserts.append(cpu(partial(views[0].rescan, [target.parent.name])))
    print(f"  update after one write, committed: {median(upserts):.2f} ms of CPU")


def list_libraries(texts: Sequence[list[str]]) -> Iterator[Way]:
    """Yield the installed libraries, with the words of all entries."""
    if find_spec("tantivy"):
        tantivy = import_module("tantivy")
        schema = tantivy.SchemaBuilder().add_unsigned_field("number", stored=True).add_text_field("text")
        index = tantivy.Index(schema.build())
        writer = index.writer(num_threads=1)
        for number, text in enumerate(texts):
            writer.add_document(tantivy.Document(number=number, text=" ".join(text)))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        searcher = index.searcher()

        def ask(text: str) -> list[int]:
            hits = searcher.search(index.parse_query(" ".join(stem_words(text))), LIMIT).hits
            return [searcher.doc(address)["number"][0] for _, address in hits]

        yield Way("tantivy", ask)
    if find_spec("bm25s"):
        quick = import_module("bm25s").BM25()
        quick.index(texts, show_progress=False)
        retrieve = partial(quick.retrieve, k=LIMIT, show_progress=False)
        yield Way("bm25s", lambda text: retrieve([stem_words(text)])[0][0].tolist())
    if find_spec("rank_bm25"):
        usual = import_module("rank_bm25").BM25Okapi(texts)
        yield Way("rank_bm25", lambda text: usual.get_scores(stem_words(text)).argsort()[-LIMIT:].tolist())


def stem_words(text: str) -> list[str]:
    """Return the content words, stemmed if PyStemmer is installed."""
    words = [word for word in re.findall("[a-z]+", text.lower()) if word not in COMMON]
    return ENGLISH.stemWords(words) if ENGLISH else words


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("entries", type=int, nargs="*", default=SIZES, help="sizes of a memory")
    for size in parser.parse_args().entries:
        entries, queries = generate(size)
        print(f"{size} entries, {QUERIES} queries")
        print(f"  {'':12}{'CPU p50':>10}{'p95':>9}{'wall p50':>10}{'p95':>9}{'recall@5':>10}{'empty':>8}")
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            measure(Path(directory).resolve(), entries, queries, stack)
        for way in list_libraries([stem_words(f"{entry.path} {entry.file}") for entry in entries]):
            compare([way], queries)


def number(path: str) -> int:
    """Return the number of the entry at a path."""
    return int(path.rpartition("-")[2].removesuffix(".md"))


def cpu(act: Callable[[], object]) -> float:
    """Return the CPU milliseconds of one call."""
    began = time.process_time_ns()
    act()
    return (time.process_time_ns() - began) / 1e6


if __name__ == "__main__":
    main()
