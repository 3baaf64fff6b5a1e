"""Words: what a query says, and whether a text says all of it, in any script."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content.words import STOP_WORDS, features, significant, vocabulary


@pytest.mark.threat("T-MEM-08", control="significant_words")
@pytest.mark.parametrize(
    "query", ["", " ", "a", "I", "the", "of the", "x y z", "!", "— …", "的", "を", "the のa", "🎉", "\u0301"]
)
def test_what_says_nothing_has_no_word(query):
    assert significant(query) == ()


@pytest.mark.parametrize(
    ("text", "query", "is_said"),
    [
        ("The user prefers dark mode.", "dark mode", True),
        ("The user prefers dark mode.", "mode DARK", True),
        ("The user prefers dark mode.", "dark", True),
        ("a darker modem", "dark", False),
        ("start of the art", "art", True),
        ("start of it", "art", False),
        ("prefers dark", "dark mode", False),
        ("用户喜欢使用深色模式", "深色", True),
        ("用户喜欢使用深色模式", "深式", False),
        ("深色 模式", "色模", False),
        ("사용자는 다크모드를 씁니다", "다크모드", True),
        ("ผู้ใช้ชอบโหมดมืด", "โหมดมืด", True),
        ("Использует вкладки", "вкладки", True),
        ("ﬁle", "file", True),
        ("cafe", "café", False),
        ("foo_bar", "foo bar", True),
    ],
)
def test_a_text_says_a_query_if_it_holds_every_word_whole(text, query, is_said):
    assert vocabulary(text).holds(significant(query)) is is_said


@pytest.mark.threat("T-MEM-08", control="every_word")
def test_one_word_of_several_does_not_say_it():
    assert not vocabulary("prefers dark chocolate").holds(("dark", "mode"))


def test_stop_words_negate_nothing():
    assert not STOP_WORDS & {
        "no",
        "not",
        "never",
        "without",
        "nicht",
        "kein",
        "pas",
        "ne",
        "sin",
        "nunca",
        "non",
    }


@given(text=st.text(max_size=40), more=st.text(max_size=10))
def test_a_text_says_all_its_own_words_whatever_stands_around_it(text, more):
    words = significant(text)
    assert vocabulary(f"{more} {text}\n{more}").holds(words) is bool(words)
    assert words == significant(f" {text} ")


def test_features_are_words_and_pairs_of_neighbours():
    assert features("Use the tabs, use 深色模式") == {"use", "the", "tabs", "深色", "色模", "模式"}
    assert features("深") == {"深"}
    assert features("!?") == frozenset()


def test_a_megabyte_takes_a_moment():
    for text in (
        "a" * 1_000_000,
        "é " * 500_000,
        "深" * 300_000,
        "a\u0301" * 300_000,
        "\u0301\u0323" * 200_000,
    ):
        started = time.process_time()
        assert vocabulary(text).holds(significant(text[:10])) in {True, False}
        assert time.process_time() - started < 3
