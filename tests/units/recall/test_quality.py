"""The right entry ranks first, and unanswerable questions find nothing, for every kind of question."""

import random
import re
import tomllib
from collections import Counter

import pytest

from kit.recall.library import QUALITY, format_entry, open_library
from muniment.recall import search as subject


def load_tables(name):
    return tomllib.loads((QUALITY / f"{name}.toml").read_text(encoding="utf-8"))


ENTRIES = {table.pop("path"): format_entry(**table) for table in load_tables("entries")["entry"]}
# Tables of `text`, `kind`, and `right`, the entries that answer it.
QUERIES = load_tables("queries")["query"]
NOTHING = "no-result"
KINDS = {
    *("english", "question", "chinese", "japanese", "korean", "mixed", "full-width", "accents"),
    *("body-only", "inflected", "prefix", "identifier", NOTHING),
}


@pytest.fixture(scope="module")
def quality_memory(tmp_path_factory):
    """A memory of only these entries."""
    with open_library(tmp_path_factory.mktemp("year"), ENTRIES) as memory:
        memory.refresh()
        yield memory


class Score:
    """The results of the queries; its text lists the failed ones."""

    def __init__(self, memory, queries=QUERIES):
        self.counts, self.first, self.false, self.missed = Counter(), Counter(), 0, []
        for query in queries:
            kind, right, found = (
                query["kind"],
                query["right"],
                memory.search_paths(query["text"], skip_refresh=True),
            )
            is_first = found[0] in right if found else not right
            self.counts[kind] += 1
            self.first[kind] += is_first
            self.false += not right and bool(found)
            if not is_first:
                self.missed.append(f"{kind}: {query['text']!r}: {found[:3]}, not {right or 'nothing'}")

    def share(self, *kinds):
        """Return the share of answerable queries, or of some kinds, whose right entry is first."""
        kinds = kinds or KINDS - {NOTHING}
        return sum(self.first[each] for each in kinds) / sum(self.counts[each] for each in kinds)

    def __str__(self):
        return "\n".join([f"{self.share():.4f} first, {self.false} false", *sorted(self.missed)])


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_right_entry_ranks_first_for_every_kind(quality_memory, monkeypatch, step):
    for most in (0.99, 0.95):
        score = Score(quality_memory, QUERIES[::step])
        assert score.share() >= most, str(score)
        assert score.false == 0, str(score)
        for kind in KINDS if most == 0.99 else ():
            assert score.share(kind) >= 0.9, str(score)
        monkeypatch.setattr(subject, "_MIN_GATED_ENTRIES", 0)  # The gate loses almost nothing.


def test_off_topic_message_finds_nothing(quality_memory):
    messages = load_tables("off_topic")["messages"]
    assert len(set(messages)) >= 60
    answered = [message for message in messages if quality_memory.search_paths(message, skip_refresh=True)]
    assert len(answered) <= 0.05 * len(messages), answered


def make_distractors(least):
    """Make entries on other subjects: words that at least `least` real entries have, among invented ones."""
    dice = random.Random(20_261_122)
    counts = Counter(word for text in ENTRIES.values() for word in set(re.findall(r"[a-zA-Z]{4,}", text)))
    real = sorted(word for word, count in counts.items() if count >= least)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    invented = ["".join(dice.choices(syllables, k=3)) for _ in range(4_000)]

    def text(count):
        return " ".join(dice.choice(real if dice.random() < 0.2 else invented) for _ in range(count))

    return {f"user/other/{number}.md": format_entry(text(3), text(40), text(8)) for number in range(2_500)}


@pytest.mark.slow
def test_ranking_holds_among_thousands_of_distractors(tmp_path):
    for least, share, false in ((2, 0.99, 2), (1, 0.9, 3)):
        with open_library(tmp_path / str(least), ENTRIES | make_distractors(least)) as memory:
            memory.refresh()
            score = Score(memory)
        assert score.share() >= share, str(score)
        assert score.false <= false, str(score)
