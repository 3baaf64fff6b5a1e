"""What a message asks: of every kind, in any script, and of text that is made to be slow or to be syntax."""

from __future__ import annotations

import time

import pytest

from muniment.recall.search import Stemmer, read_query


@pytest.fixture(scope="module")
def stemmer():
    stemmer = Stemmer()
    yield stemmer
    stemmer.close()


@pytest.fixture
def asked(stemmer):
    """The words of a message, phrases with their spaces."""
    return lambda text: [word.text for word in read_query(text, stemmer).words]


# -- Q1 and Q2


@pytest.mark.parametrize(
    "message",
    [
        'rollback" OR "x',
        "rollback*",
        "^rollback",
        "-rollback",
        "(rollback",
        "{rollback} :",
        "rollback AND NOT OR",
        "'; rollback --",
        "\\rollback\\",
        "rollback\0",
        "\ud800rollback\udfff",
        "\x1brollback\x07",
    ],
)
def test_a_message_cannot_put_syntax_into_the_search(asked, message):
    assert asked(message) == ["rollback"]


# -- Q3


# -- Q4


# -- Q5


@pytest.mark.parametrize("paste", ["2026-11-22 ERROR x.y: failed\n" * 40_000, "lorem " * 200_000])
def test_a_question_before_or_behind_a_long_paste_is_read(asked, paste):
    assert "rollback" in asked(f"what was our rollback?\n{paste}")
    assert "rollback" in asked(f"{paste}\nwhat was our rollback?")


def test_a_question_behind_a_paste_of_many_words_is_read(asked):
    paste = " ".join(f"frame{number}" for number in range(300))
    assert {"rollback", "nodes"} <= set(asked(f"{paste} so, rollback all nodes"))


@pytest.mark.parametrize(
    "text",
    [
        "ﬃ" * 4_000,
        "a" * 4_000,
        "a." * 2_000,
        "\ufdfa" * 4_000,
        "中" * 4_000,
        "ab-" * 1_300,
        "\u0315\u0300" * 2_000,
    ],
)
def test_a_message_cannot_be_made_to_take_long(stemmer, text):
    def cost(message):
        began = time.process_time()
        read_query(message, stemmer)
        return time.process_time() - began

    assert min(cost(text) for _ in range(3)) < 0.25
    assert min(cost(text * 250) for _ in range(3)) < 0.25


# -- units
