"""How much a text says of a query: which words it holds, with SQLite as the oracle, and what they weigh."""

from __future__ import annotations

import pytest

from muniment.recall.search import Ranking, Stemmer, Weighed, read_query
from muniment.store.rows import folded


@pytest.fixture(scope="module")
def stemmer():
    stemmer = Stemmer()
    yield stemmer
    stemmer.close()


@pytest.fixture
def ranked(stemmer):
    """A ranking by the words of a message, of equal weight unless given; `rows` in how many they stand."""

    def ranked(message, *, weights=None, rows=None, prefix=()):
        weigh, stand = weights or {}, rows or {}
        words = [
            Weighed(word, stand.get(word.text, 1), weigh.get(word.text, 1.0), is_prefix=word.text in prefix)
            for word in read_query(message, stemmer).words
        ]
        return Ranking(words, stemmer)

    return ranked


def columns(name="", description="", body="", context=""):
    return [folded(text) for text in (name, description, body, context)]


# -- which words a text holds


@pytest.mark.parametrize(
    ("message", "text", "is_held"),
    [
        ("10.42.7.19", "the node at 10.42.7.19 is down", True),
        ("10.42.7.19", "10_42-7/19", True),
        ("10.42.7.19", "42.10.7.19", False),
        ("10.42.7.19", "110.42.7.19", False),
        ("10.42.7.19", "10.42.7.190", False),
        ("10.42.7.19", "10.42.7", False),
        ("snake_case", "Snake_Case!", True),
        ("snake_case", "the snake in this case", False),
        ("std::vector", "std::vector<int>", True),
        ("модуль.имя", "модуль.имя", True),
        ("модуль.имя", "модульжжимя", False),
        ("café.py", "cafe\u0301.py", True),
    ],
)
def test_a_name_is_held_where_its_parts_stand_side_by_side(stemmer, message, text, is_held):
    (name,) = (word for word in read_query(message, stemmer).words if word.is_phrase)
    score = Ranking([Weighed(name, 1, 1.0)], stemmer).score(columns(body=text))
    assert (score.score > 0, score.units) == (is_held, 2 * is_held)


def test_an_empty_query_says_nothing_of_any_text(ranked):
    assert ranked("").score(columns(body="anything")).score == 0
    assert ranked("").weight("anything") == 0


# -- what it is worth


def test_a_weak_word_adds_to_the_score_alone(ranked):
    ranking = ranked("js rollback")
    without, with_it = (ranking.score(columns(body=text)) for text in ("rollback", "js rollback"))
    assert with_it.score > without.score
    assert (with_it.units, with_it.weight) == (without.units, without.weight) == (1, 1.0)
