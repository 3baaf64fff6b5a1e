"""Whether the right entry comes first, and nothing where nothing is right, whatever way it is asked."""

import random
import re
import tomllib
from collections import Counter

import pytest

from kit.recall.library import QUALITY, entry_of, library
from muniment.recall import search as subject


def tables(name):
    return tomllib.loads((QUALITY / f"{name}.toml").read_text(encoding="utf-8"))


ENTRIES = {table.pop("path"): entry_of(**table) for table in tables("entries")["entry"]}
# Tables of `text`, `kind`, and `right`, the entries that answer it.
QUERIES = tables("queries")["query"]
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


class Score:
    """How the queries went; its text lists those that missed."""

    def __init__(self, shelves, queries=QUERIES):
        self.asked, self.first, self.false, self.missed = Counter(), Counter(), 0, []
        for query in queries:
            kind, right, found = query["kind"], query["right"], shelves.ask(query["text"], as_it_is=True)
            is_first = found[0] in right if found else not right
            self.asked[kind] += 1
            self.first[kind] += is_first
            self.false += not right and bool(found)
            if not is_first:
                self.missed.append(f"{kind}: {query['text']!r}: {found[:3]}, not {right or 'nothing'}")

    def share(self, *kinds):
        """Of the queries that something answers, or of some kinds, how many had it first."""
        kinds = kinds or KINDS - {NOTHING}
        return sum(self.first[each] for each in kinds) / sum(self.asked[each] for each in kinds)

    def __str__(self):
        return "\n".join([f"{self.share():.4f} first, {self.false} false", *sorted(self.missed)])


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_right_entry_comes_first_for_each_kind_and_nothing_where_none_is(year, monkeypatch, step):
    for most in (0.99, 0.95):
        score = Score(year, QUERIES[::step])
        assert score.share() >= most, str(score)
        assert score.false == 0, str(score)
        for kind in KINDS if most == 0.99 else ():
            assert score.share(kind) >= 0.9, str(score)
        monkeypatch.setattr(subject, "_GATE_FROM", 0)  # The gate loses nearly nothing.


def test_where_a_message_is_about_something_else_nothing_is_found(year):
    messages = tables("off_topic")["messages"]
    assert len(set(messages)) >= 60
    answered = [message for message in messages if year.ask(message, as_it_is=True)]
    assert len(answered) <= 0.05 * len(messages), answered


def distractors(least):
    """Notes about something else: words that `least` of the real ones have, strewn among invented ones."""
    dice = random.Random(20_261_122)
    counts = Counter(word for text in ENTRIES.values() for word in set(re.findall(r"[a-zA-Z]{4,}", text)))
    real = sorted(word for word, count in counts.items() if count >= least)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    invented = ["".join(dice.choices(syllables, k=3)) for _ in range(4_000)]

    def text(count):
        return " ".join(dice.choice(real if dice.random() < 0.2 else invented) for _ in range(count))

    return {f"user/other/{number}.md": entry_of(text(3), text(40), text(8)) for number in range(2_500)}


@pytest.mark.slow
def test_it_is_nearly_so_among_thousands_of_others_even_with_the_rarest_words(tmp_path):
    for least, share, false in ((2, 0.99, 2), (1, 0.9, 3)):
        with library(tmp_path / str(least), ENTRIES | distractors(least)) as shelves:
            shelves.refresh()
            score = Score(shelves)
        assert score.share() >= share, str(score)
        assert score.false <= false, str(score)
