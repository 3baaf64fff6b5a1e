"""How much a text says of a query: which words it holds, with SQLite as the oracle, and what they weigh."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muniment.recall.search import Ranking, Stemmer, Weighed, Word, read_query
from muniment.store.rows import folded

ENDINGS = (
    *("", "s", "es", "ies", "ed", "ing", "er", "ly", "ness", "ments", "able", "ible", "ation", "ational"),
    *("ization", "izer", "ize", "ive", "iveness", "ivity", "ability", "bility", "ful", "fulness", "y", "al"),
    *("ality", "ence", "ance", "ion", "sses", "eed", "ical", "icate", "ous", "ousness", "ism", "e", "ll"),
)
WORDS = st.builds(
    "{}{}".format, st.text("aeioubdlmnprst", min_size=2, max_size=5), st.sampled_from(ENDINGS)
) | st.text("abcé東京塔の1", min_size=1, max_size=4)


@pytest.fixture(scope="module")
def stemmer():
    stemmer = Stemmer()
    yield stemmer
    stemmer.close()


@pytest.fixture(scope="module")
def matches():
    """Whether SQLite finds words, one behind the other, in a folded text."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE VIRTUAL TABLE t USING fts5 (x, tokenize = 'porter unicode61')")

    def matches(text, words):
        connection.execute("INSERT INTO t (x) VALUES (?)", (text,))
        found = connection.execute("SELECT 1 FROM t WHERE t MATCH ?", (f'"{words}"',)).fetchall()
        connection.execute("DELETE FROM t")
        return bool(found)

    yield matches
    connection.close()


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


@given(asked=WORDS, said=st.lists(WORDS, max_size=4))
@example(asked="relational", said=["relate"])
@example(asked="troubled", said=["troubling"])
@example(asked="sized", said=["size"])
@example(asked="sized", said=["sizing"])
@example(asked="happiness", said=["happy"])
@example(asked="cafe", said=["cafés"])
@example(asked="happy", said=["happiness"])
@example(asked="deploy", said=["deployments"])
def test_a_text_holds_a_word_if_sqlite_finds_it_there(stemmer, matches, asked, said):
    text = folded(" ".join(said))
    for term in stemmer.terms(folded(asked)):
        score = Ranking([Weighed(Word(*term), 1, 1.0)], stemmer).score(("", "", text, ""))
        assert (score.score > 0) == (score.units > 0) == matches(text, term.word)


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


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("kubernetes", True),
        ("Kube", True),
        ("minikube", False),
        ("kub", False),
        ("a kubélet", True),
        ("ku be", False),
    ],
)
def test_the_beginning_of_a_word_is_held_by_words_that_begin_so(ranked, text, is_held):
    assert (ranked("kube", prefix={"kube"}).score(columns(body=text)).score > 0) is is_held


def test_words_in_no_row_count_for_nothing(ranked):
    score = ranked("tabs spaces", rows={"spaces": 0}).score(columns(body="tabs spaces"))
    assert (score.units, score.weight) == (1, 1.0)


def test_an_empty_query_says_nothing_of_any_text(ranked):
    assert ranked("").score(columns(body="anything")).score == 0
    assert ranked("").weight("anything") == 0


def test_the_words_of_a_query_are_no_pattern(stemmer):
    words = [Weighed(Word(text, text), 1, 1.0) for text in (".*", "(a|b)+", "[", "a.c b+")]
    assert Ranking(words, stemmer).score(columns(body="anything at all abc b")).score == 0


# -- what it is worth


def test_a_name_tells_more_than_the_context_and_that_more_than_the_body(ranked):
    ranking = ranked("rollback")
    name, description, body, context = (
        ranking.score(columns(**{column: "rollback"})).score
        for column in ("name", "description", "body", "context")
    )
    assert name == description > context > body > 0


def test_a_word_that_is_said_again_adds_less_each_time_and_never_more_than_its_weight(ranked):
    ranking = ranked("rollback", weights={"rollback": 3.0})
    scores = [ranking.score(columns(body="rollback " * times)).score for times in (1, 2, 3, 1_000)]
    steps = [after - before for before, after in zip([0, *scores], scores, strict=False)]
    assert steps[0] > steps[1] > steps[2] > 0
    assert scores[-1] < 3.0


def test_a_rare_word_weighs_more_than_two_that_are_common(ranked):
    ranking = ranked("helm tabs spaces", weights={"helm": 5.0})
    rare = ranking.score(columns(body="helm"))
    common = ranking.score(columns(body="tabs spaces"))
    assert rare.score > common.score
    assert (rare.units, common.units) == (1, 2)
    assert (rare.weight, common.weight) == (5.0, 2.0)


def test_a_weak_word_adds_to_the_score_alone(ranked):
    ranking = ranked("js rollback")
    without, with_it = (ranking.score(columns(body=text)) for text in ("rollback", "js rollback"))
    assert with_it.score > without.score
    assert (with_it.units, with_it.weight) == (without.units, without.weight) == (1, 1.0)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("東京都市", 2),
        ("東京", 1),
        ("東京 都市", 2),
        ("京都", 1),
        ("京都市", 1),
        ("東京都", 1),
        ("市都京東", 0),
    ],
)
def test_pairs_count_as_words_as_far_as_they_are_held_in_a_row(ranked, text, count):
    assert ranked("東京都市").score(columns(body=text)).units == count


def test_a_passage_weighs_what_it_says(ranked):
    ranking = ranked("rollback production", weights={"production": 2.0})
    nothing, one, both = (
        ranking.weight(folded(text)) for text in ("the weather", "Rollbacks", "rollback of production")
    )
    assert nothing == 0 < one < both


def test_a_column_cannot_be_made_to_break_it(ranked):
    ranking = ranked("rollback")
    for text in (
        "\0rollback\0",
        "rollback\ud800",
        "\u0301" * 10_000 + " rollback",
        "rollback" * 10_000 + " rollback",
    ):
        assert ranking.score(["", "", text, ""]).units == 1
