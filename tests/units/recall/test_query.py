"""What a message asks, cut and stemmed as SQLite does it, and how much a text says of that."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from muniment.recall import stems
from muniment.recall.query import MAX_WORDS, read_query
from muniment.recall.stems import Stemmer
from muniment.store.rows import as_indexed


def asked(text, stemmer):
    """The words of a message, phrases with their spaces."""
    return [word.text for word in read_query(text, stemmer)]


def test_a_question_before_or_behind_a_paste_is_read_and_no_message_asks_for_many_words(stemmer):
    frames = " ".join(f"frame{number}" for number in range(300))
    pastes = ["2026-11-22 ERROR x.y: failed\n" * 40_000, "lorem " * 200_000, "x" * 500_000, frames]
    pastes += ["深" * 300_000, '("*' * 200_000]
    for paste in pastes:
        assert "rollback" in asked(f"what was our rollback?\n{paste}", stemmer)
        assert {"rollback", "nodes"} <= set(asked(f"{paste}\nso, rollback all nodes?", stemmer))
    for text in ("ﬃ", "a", "a.", "\ufdfa", "中", "ab-", "\u0315\u0300"):
        for count in (4_000, 1_000_000):
            assert len(asked(text * (count // len(text)), stemmer)) <= MAX_WORDS


def test_a_text_is_its_words_in_order_with_their_stems(stemmer):
    for text, terms in (
        *(("", []), ("Deployments", [("deployments", "deploy")]), ("ﬁling", [("filing", "file")])),
        ("the CAFÉ's naïve", [("the", "the"), ("cafe", "cafe"), ("s", "s"), ("naive", "naiv")]),
        ("snake_case", [("snake", "snake"), ("case", "case")]),
        ("東京塔", [("東京", "東京"), ("京塔", "京塔")]),
    ):
        assert [tuple(term) for term in stemmer.terms(as_indexed(text))] == terms


def test_no_more_stems_are_kept_than_the_limit_those_that_were_asked_for_last(monkeypatch):
    monkeypatch.setattr(stems, "MAX_KEPT", 2)
    with closing(Stemmer()) as stemmer:
        assert stemmer.stems(["reads", "writes", "hopes"]).keys() == {"reads", "writes", "hopes"}
        for word in ("hopes", "opens", "hopes", "reads"):
            stemmer.stems([word])
        assert set(stemmer._kept) == {"hopes", "reads"}


def test_threads_that_share_one_get_each_their_own_words(stemmer):
    def wrong(number):
        words = [f"first{number % 8}", f"walking{number % 8}x"]
        found = [term.word for term in stemmer.terms(" ".join(words))]
        return found != words or stemmer.stems(words[1:]).keys() != {words[1]}

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(wrong, range(160)))
