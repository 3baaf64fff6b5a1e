"""Whether the right entry comes first, and nothing where nothing is right, whatever way it is asked."""

from __future__ import annotations

import importlib.util
import random
import re
import tomllib
from collections import Counter, defaultdict

import pytest

from kit.recall.library import QUALITY, entry_of, library
from kit.where import REPOSITORY
from muniment.recall import search as subject
from muniment.recall.search import COLUMN_WEIGHTS


def tables(name):
    return tomllib.loads((QUALITY / f"{name}.toml").read_text(encoding="utf-8"))


ENTRIES = {table.pop("path"): entry_of(**table) for table in tables("entries")["entry"]}
QUERIES = tables("queries")["query"]
"""Tables of `text`, `kind`, and `right`, the entries that answer it."""
NOTHING = "no-result"
KINDS = {
    *("english", "question", "chinese", "japanese", "korean", "mixed", "full-width", "accents"),
    *("body-only", "inflected", "prefix", "identifier", NOTHING),
}


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    """A memory of these entries, nothing else."""
    with library(tmp_path_factory.mktemp("year"), ENTRIES) as shelves:
        shelves.refresh()
        yield shelves


SAMPLE = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])


class Score:
    """How the queries went; its text lists those that missed."""

    def __init__(self, shelves, queries=QUERIES):
        self.asked, self.first, self.false, self.missed = Counter(), Counter(), 0, defaultdict(list)
        for query in queries:
            kind, right = query["kind"], query["right"]
            found = shelves.ask(query["text"], as_it_is=True)
            is_first = found[0] in right if found else not right
            self.asked[kind] += 1
            self.first[kind] += is_first
            self.false += not right and bool(found)
            if not is_first:
                self.missed[kind].append(f"{query['text']!r}: {found[:3]}, not {right or 'nothing'}")

    def share(self, *kinds):
        """Of the queries that something answers, or of some kinds, how many had it first."""
        kinds = kinds or KINDS - {NOTHING}
        return sum(self.first[each] for each in kinds) / sum(self.asked[each] for each in kinds)

    def __str__(self):
        missed = (f"{kind}: {line}" for kind, lines in sorted(self.missed.items()) for line in lines)
        return "\n".join([f"{self.share():.4f} first, {self.false} false", *missed])


def test_the_set_is_large_and_of_every_kind():
    kinds = Counter(query["kind"] for query in QUERIES)
    assert (len(ENTRIES) >= 60, len(QUERIES) >= 120, kinds.keys()) == (True, True, KINDS)
    assert min(kinds.values()) >= 10
    assert kinds[NOTHING] >= 45
    assert len({query["text"] for query in QUERIES}) == len(QUERIES)
    for query in QUERIES:
        assert (query["kind"] == NOTHING) == (not query["right"])
        assert set(query["right"]) <= ENTRIES.keys()
        assert len(query["right"]) <= 3


@SAMPLE
def test_the_right_entry_comes_first_for_queries_of_each_kind_and_nothing_where_nothing_is_right(year, step):
    score = Score(year, QUERIES[::step])
    assert score.share() >= 0.99, str(score)
    assert score.false == 0, str(score)
    for kind in KINDS:
        assert score.share(kind) >= 0.9, str(score)


def test_where_a_message_is_about_something_else_nothing_is_found(year):
    messages = tables("off_topic")["messages"]
    assert len(set(messages)) >= 60
    answered = [message for message in messages if year.ask(message, as_it_is=True)]
    assert len(answered) <= 0.05 * len(messages), answered


@SAMPLE
def test_the_gate_loses_nothing(year, monkeypatch, step):
    monkeypatch.setattr(subject, "_GATE_FROM", 0)
    gated = Score(year, QUERIES[::step])
    assert gated.share() >= 0.95, str(gated)
    assert gated.false == 0, str(gated)


def distractors(least):
    """Notes about something else: words that `least` of the real ones have, strewn among invented ones."""
    dice = random.Random(20_261_122)
    counts = Counter(word for text in ENTRIES.values() for word in set(re.findall(r"[a-zA-Z]{4,}", text)))
    real = sorted(word for word, count in counts.items() if count >= least)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    invented = ["".join(dice.choices(syllables, k=3)) for _ in range(4_000)]

    def text(count):
        return " ".join(dice.choice(real if dice.random() < 0.2 else invented) for _ in range(count))

    names = (f"{dice.choice(('user', 'project'))}/other/{number}.md" for number in range(2_500))
    return {name: entry_of(text(3), text(40), text(8)) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(("least", "share", "false"), [(2, 0.99, 2), (1, 0.9, 3)])
def test_it_is_nearly_so_among_thousands_of_others_even_with_the_rarest_words(tmp_path, least, share, false):
    with library(tmp_path, ENTRIES | distractors(least)) as shelves:
        shelves.refresh()
        score = Score(shelves)
    assert score.share() >= share, str(score)
    assert score.false <= false, str(score)


@pytest.mark.slow
def test_of_long_conversations_recall_finds_more_than_plain_full_text_search(tmp_path):
    """The generated conversations of the benchmark, by the same rows."""
    spec = importlib.util.spec_from_file_location("dialogues", REPOSITORY / "benchmarks" / "dialogues.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    plainly = f"""
        SELECT entry.rel FROM text JOIN entry ON entry.id = text.rowid
        WHERE text MATCH ? ORDER BY bm25(text, {", ".join(map(str, COLUMN_WEIGHTS))}) LIMIT 10
    """
    ours, plain, count = Counter(), Counter(), 0
    for number, (sessions, asked) in enumerate(module.dialogues(2)):
        turns = [turn for turns in sessions for turn in turns]
        entries = {f"user/{turn.id.replace(':', '/')}.md": entry_of(turn.head, turn.text) for turn in turns}
        with library(tmp_path / str(number), entries) as shelves:
            shelves.refresh()
            for question in asked:
                right, count = f"{question.evidence.replace(':', '/')}.md", count + 1
                words = " OR ".join(f'"{word}"' for word in re.findall(r"[a-z]+", question.text.lower()))
                hits = [hit.key.rel for hit in shelves.hits(question.text, limit=10, as_it_is=True)]
                rows = [rel for (rel,) in shelves.catalog.rows(plainly, (words,))]
                for depth in (5, 10):
                    ours[depth] += right in hits[:depth]
                    plain[depth] += right in rows[:depth]
    assert count >= 300
    assert all(ours[depth] > plain[depth] + 0.05 * count for depth in (5, 10)), (ours, plain, count)
