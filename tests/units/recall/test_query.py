"""The words of a message, cut and stemmed as SQLite does it, and their weight in a text."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import process_time

from muniment.recall import stems
from muniment.recall.query import MAX_WORDS, read_query
from muniment.recall.stems import Stemmer
from muniment.store.rows import normalize_for_index


def read_words(text, stemmer):
    """Return the words of a message, phrases with their spaces."""
    return [word.text for word in read_query(text, stemmer)]


def test_question_around_a_paste_is_read_and_words_are_bounded(stemmer):
    frames = " ".join(f"frame{number}" for number in range(300))
    pastes = ["2026-11-22 ERROR x.y: failed\n" * 40_000, "lorem " * 200_000, "x" * 500_000, frames]
    pastes += ["深" * 300_000, '("*' * 200_000]
    for paste in pastes:
        assert "rollback" in read_words(f"what was our rollback?\n{paste}", stemmer)
        assert {"rollback", "nodes"} <= set(read_words(f"{paste}\nso, rollback all nodes?", stemmer))
    for text in ("ﬃ", "a", "a.", "\ufdfa", "中", "ab-", "\u0315\u0300"):
        for count in (4_000, 1_000_000):
            assert len(read_words(text * (count // len(text)), stemmer)) <= MAX_WORDS


def test_message_after_many_blocks_is_read_in_linear_time(stemmer):
    started = process_time()
    assert read_words("<a></a>" * 600_000 + "rollback", stemmer) == ["rollback"]
    assert process_time() - started < 20


def test_text_is_its_words_in_order_with_their_stems(stemmer):
    for text, expected in (
        *(("", []), ("Deployments", [("deployments", "deploy")]), ("ﬁling", [("filing", "file")])),
        ("the CAFÉ's naïve", [("the", "the"), ("cafe", "cafe"), ("s", "s"), ("naive", "naiv")]),
        ("snake_case", [("snake", "snake"), ("case", "case")]),
        ("東京塔", [("東京", "東京"), ("京塔", "京塔")]),
    ):
        assert [tuple(term) for term in stemmer.split_terms(normalize_for_index(text))] == expected


def test_stem_cache_is_bounded_and_keeps_the_last_used(monkeypatch):
    monkeypatch.setattr(stems, "MAX_CACHED_STEMS", 2)
    with closing(Stemmer()) as stemmer:
        assert stemmer.find_stems(["reads", "writes", "hopes"]).keys() == {"reads", "writes", "hopes"}
        for word in ("hopes", "opens", "hopes", "reads"):
            stemmer.find_stems([word])
        assert set(stemmer._cache) == {"hopes", "reads"}


def test_threads_that_share_a_stemmer_get_their_own_words(stemmer):
    def has_wrong_stems(number):
        words = [f"first{number % 8}", f"walking{number % 8}x"]
        found = [term.word for term in stemmer.split_terms(" ".join(words))]
        return found != words or stemmer.find_stems(words[1:]).keys() != {words[1]}

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(has_wrong_stems, range(160)))
