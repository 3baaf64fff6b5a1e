"""Words and stems: as SQLite cuts them, asked of the catalog's own table and of text that is none."""

from __future__ import annotations

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muniment.recall import search
from muniment.recall.search import Stemmer
from muniment.store.rows import folded
from muniment.store.state import CATALOG_SCHEMA

ALPHABET = "abingsédüßёйάѐ深東京モ다ー 0.5_-/'\"*\n\u0301\u0308\u0323\u0338\u0345\u0361\u036f"
WORD = re.compile(r"[^\W_]+")


@pytest.fixture(scope="module")
def stemmer():
    stemmer = Stemmer()
    yield stemmer
    stemmer.close()


@pytest.fixture(scope="module")
def stems_of():
    """The stems that the catalog's own table has of a folded text, sorted."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    (create,) = (part for part in CATALOG_SCHEMA.split(";") if "USING fts5 (" in part)
    connection.execute(create)
    connection.execute("CREATE VIRTUAL TABLE each USING fts5vocab (text, instance)")

    def stems(text):
        connection.execute("INSERT INTO text (body) VALUES (?)", (text,))
        found = sorted(term for (term,) in connection.execute("SELECT term FROM each"))
        connection.execute("DELETE FROM text")
        return found

    yield stems
    connection.close()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        (" .,;*\"'() ", []),
        ("Deployments", [("deployments", "deploy")]),
        ("Deploy", [("deploy", "deploi")]),
        ("the CAFÉ's naïve", [("the", "the"), ("cafe", "cafe"), ("s", "s"), ("naive", "naiv")]),
        ("snake_case", [("snake", "snake"), ("case", "case")]),
        ("東京塔", [("東京", "東京"), ("京塔", "京塔")]),
        ("ﬁling", [("filing", "file")]),
        ("one one", [("one", "on"), ("one", "on")]),
    ],
)
def test_a_text_is_its_words_in_order_with_their_stems(stemmer, text, terms):
    assert [tuple(term) for term in stemmer.terms(folded(text))] == terms


@given(text=st.text(ALPHABET, max_size=60))
@example(text="running runner ran easily ponies")
def test_the_stems_are_those_of_the_catalog(stemmer, stems_of, text):
    plain = folded(text)
    assert sorted(term.stem for term in stemmer.terms(plain)) == stems_of(plain)


@given(text=st.text(ALPHABET, max_size=60))
@example(text="a\u0338b c\u0301d e\u0361f")
def test_a_text_without_accents_has_the_words_of_the_tokenizer(stemmer, text):
    plain = folded(text)
    assert WORD.findall(stemmer.without_accents(plain)) == [term.word for term in stemmer.terms(plain)]


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("plain ascii", "plain ascii"),
        ("café", "cafe"),
        ("cafe\u0301", "cafe"),
        ("naïve ångström", "naive angstrom"),
        ("東京", "東京"),
        ("ёлка", "ёлка"),  # no accent to this tokenizer
    ],
)
def test_accents_go_and_letters_stay(stemmer, text, without):
    assert stemmer.without_accents(text) == without


@given(words=st.sets(st.text("aeinostrgy", min_size=1, max_size=9), max_size=12))
def test_the_stem_of_a_word_is_the_one_that_it_has_in_a_text(stemmer, words):
    expected = {term.word: term.stem for word in words for term in stemmer.terms(word)}
    assert stemmer.stems(words) == expected
    assert stemmer.stems(words) == expected


def test_what_is_no_word_has_no_stem(stemmer):
    assert stemmer.stems(["two words", "…", "", "opened"]) == {"opened": "open"}


def test_no_more_stems_are_kept_than_the_limit_and_all_are_told(monkeypatch):
    monkeypatch.setattr(search, "MAX_KEPT", 3)
    stemmer = Stemmer()
    assert stemmer.stems(["hopes", "opens", "reads", "writes"]).keys() == {
        "hopes",
        "opens",
        "reads",
        "writes",
    }
    assert len(stemmer._kept) == 3
    stemmer.close()


def test_the_stems_that_were_asked_for_last_are_the_ones_that_are_kept(monkeypatch):
    monkeypatch.setattr(search, "MAX_KEPT", 2)
    stemmer = Stemmer()
    for word in ("hopes", "opens", "hopes", "reads"):
        stemmer.stems([word])
    assert set(stemmer._kept) == {"hopes", "reads"}
    stemmer.close()


@pytest.mark.parametrize(
    "text", ["deploy \ud800 it", "\udfffdeploy\ud800it", "deploy\0it", "deploy\x1b\x07it"]
)
def test_text_that_is_none_cannot_break_it_and_parts_words(stemmer, text):
    assert [term.word for term in stemmer.terms(text)] == ["deploy", "it"]
    assert [term.word for term in stemmer.terms("deploy")] == ["deploy"]


def test_half_a_character_has_no_stem(stemmer):
    assert stemmer.stems(["\ud800", "opened"]) == {"opened": "open"}


def test_threads_that_share_one_get_each_their_own_words(stemmer):
    def wrong(number):
        word, other = f"first{number}", f"walking{number}x"
        return [
            turn
            for turn in range(20)
            if [term.word for term in stemmer.terms(f"{word} {other}")] != [word, other]
            or stemmer.stems([other]).keys() != {other}
        ]

    with ThreadPoolExecutor(8) as pool:
        assert [turn for turns in pool.map(wrong, range(8)) for turn in turns] == []


def test_once_closed_it_cuts_nothing():
    stemmer = Stemmer()
    stemmer.close()
    stemmer.close()
    with pytest.raises(sqlite3.ProgrammingError):
        stemmer.terms("word")
