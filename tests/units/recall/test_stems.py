"""Words and stems: as SQLite cuts them, asked of the catalog's own table and of text that is none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from muniment.recall import search
from muniment.recall.search import Stemmer
from muniment.store.rows import folded


@pytest.fixture(scope="module")
def stemmer():
    stemmer = Stemmer()
    yield stemmer
    stemmer.close()


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
