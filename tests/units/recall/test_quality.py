"""Whether the right entry comes first, and nothing where nothing is right, whatever way it is asked."""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter, defaultdict

import pytest

from kit.recall.library import QUALITY, entry_of, library, quality_entries, quality_queries
from muniment.recall import search as subject

ENTRIES = quality_entries()
QUERIES = quality_queries()
NOTHING = "no-result"
KINDS = {
    *("english", "question", "chinese", "japanese", "korean", "mixed", "full-width", "accents"),
    *("body-only", "inflected", "prefix", "identifier", NOTHING),
}
OFF_TOPIC = tomllib.loads((QUALITY / "off_topic.toml").read_text(encoding="utf-8"))["messages"]
DISTRACTORS = 2_500


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    """A memory of these entries, nothing else."""
    with library(tmp_path_factory.mktemp("year"), ENTRIES) as shelves:
        shelves.refresh()
        yield shelves


def distractors(least):
    """Notes about something else: words that `least` of the real ones have, strewn among invented ones."""
    dice = random.Random(20_261_122)
    counts = Counter(word for text in ENTRIES.values() for word in set(re.findall(r"[a-zA-Z]{4,}", text)))
    real = sorted(word for word, count in counts.items() if count >= least)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    invented = ["".join(dice.choices(syllables, k=3)) for _ in range(4_000)]

    def text(count):
        return " ".join(dice.choice(real if dice.random() < 0.2 else invented) for _ in range(count))

    return {
        f"{dice.choice(('user', 'project'))}/other/{number}.md": entry_of(text(3), text(40), text(8))
        for number in range(DISTRACTORS)
    }


def among(tmp_path_factory, others):
    """A score of the same entries among others."""
    with library(tmp_path_factory.mktemp("decade"), ENTRIES | others) as shelves:
        shelves.refresh()
        return Score(shelves)


class Score:
    """How the queries went; its text lists those that missed."""

    def __init__(self, shelves):
        self.asked, self.first, self.among = Counter(), Counter(), Counter()
        self.false, self.missed = 0, defaultdict(list)
        for query in QUERIES:
            kind, right = query["kind"], query["right"]
            found = shelves.ask(query["text"], as_it_is=True)
            self.asked[kind] += 1
            is_first = found[:1] == [] if not right else bool(found) and found[0] in right
            self.first[kind] += is_first
            self.among[kind] += bool(set(found) & set(right))
            self.false += not right and bool(found)
            if not is_first:
                self.missed[kind].append(f"{query['text']!r}: {found[:3]}, not {right or 'nothing'}")

    def share(self, kind=None):
        """Of the queries that something answers, or of one kind, how many had it first."""
        kinds = [kind] if kind else KINDS - {NOTHING}
        return sum(self.first[each] for each in kinds) / sum(self.asked[each] for each in kinds)

    def __str__(self):
        return f"{self.share():.4f} first, {self.false} false\n" + "\n".join(
            f"{kind}: {line}" for kind, lines in sorted(self.missed.items()) for line in lines
        )


@pytest.fixture(scope="module")
def scored(year):
    return Score(year)


def test_the_set_is_large_and_of_every_kind():
    kinds = Counter(query["kind"] for query in QUERIES)
    assert len(ENTRIES) >= 60
    assert len(QUERIES) >= 120
    assert kinds.keys() == KINDS
    assert min(kinds.values()) >= 10
    assert kinds[NOTHING] >= 45
    assert len({query["text"] for query in QUERIES}) == len(QUERIES)
    for query in QUERIES:
        assert (query["kind"] == NOTHING) == (not query["right"])
        assert set(query["right"]) <= ENTRIES.keys()
        assert len(query["right"]) <= 3


def test_the_right_entry_comes_first(scored):
    assert scored.share() >= 0.99, str(scored)


@pytest.mark.parametrize("kind", sorted(KINDS - {NOTHING}))
def test_the_right_entry_comes_first_for_queries_of_each_kind(scored, kind):
    assert scored.share(kind) >= 0.9, "\n".join(scored.missed[kind])


def test_where_nothing_is_right_nothing_is_found(scored):
    assert scored.false == 0, "\n".join(scored.missed[NOTHING])


def test_where_a_message_is_about_something_else_nothing_is_found(year):
    assert len(set(OFF_TOPIC)) >= 60
    answered = [message for message in OFF_TOPIC if year.ask(message, as_it_is=True)]
    assert len(answered) <= 0.05 * len(OFF_TOPIC), answered


def test_the_gate_loses_nothing(year, monkeypatch):
    monkeypatch.setattr(subject, "_GATE_FROM", 0)
    gated = Score(year)
    assert gated.share() >= 0.95, str(gated)
    assert gated.false == 0, str(gated)


@pytest.mark.slow
def test_it_is_so_among_thousands_of_others(tmp_path_factory):
    score = among(tmp_path_factory, distractors(2))
    assert score.share() >= 0.99, str(score)
    assert score.false <= 2, str(score)


@pytest.mark.slow
def test_it_is_nearly_so_where_others_have_the_rarest_words_too(tmp_path_factory):
    score = among(tmp_path_factory, distractors(1))  # What one word asks for is in some of them as well.
    assert score.share() >= 0.9, str(score)
    assert score.false <= 3, str(score)
