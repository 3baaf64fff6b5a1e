"""Words: what a query says, and whether a text says all of it, in any script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content.words import STOP_WORDS, features, significant, vocabulary

NOTHING = "| |a|I|the|of the|x y z|!|— …|的|を|the のa|🎉|\u0301"


@pytest.mark.threat("T-MEM-08", control="significant_words")
def test_what_says_nothing_has_no_word():
    assert {query: significant(query) for query in NOTHING.split("|")} == dict.fromkeys(
        NOTHING.split("|"), ()
    )
    negating = {*["no", "not", "never", "without", "nicht", "kein", "pas", "ne", "sin", "nunca", "non"]}
    assert not STOP_WORDS & negating


SAID = {
    "The user prefers dark mode.": ["dark mode", "mode DARK", "dark"],
    "start of the art": ["art"],
    "用户喜欢使用深色模式": ["深色"],
    "사용자는 다크모드를 씁니다": ["다크모드"],
    "ผู้ใช้ชอบโหมดมืด": ["โหมดมืด"],
    "Использует вкладки": ["вкладки"],
    "ﬁle": ["file"],
    "foo_bar": ["foo bar"],
}
UNSAID = {
    "a darker modem": "dark",
    "start of it": "art",
    "prefers dark": "dark mode",
    "prefers dark chocolate": "dark mode",
    "用户喜欢使用深色模式": "深式",
    "深色 模式": "色模",
    "cafe": "café",
}


@pytest.mark.threat("T-MEM-08", control="every_word")
def test_a_text_says_a_query_if_it_holds_every_word_whole():
    for text, queries in SAID.items():
        assert all(vocabulary(text).holds(significant(query)) for query in queries), text
    assert [text for text, query in UNSAID.items() if vocabulary(text).holds(significant(query))] == []


@given(text=st.text(max_size=40), more=st.text(max_size=10))
def test_a_text_says_all_its_own_words_whatever_stands_around_it(text, more):
    words = significant(text)
    assert vocabulary(f"{more} {text}\n{more}").holds(words) is bool(words)
    assert words == significant(f" {text} ")


def test_features_are_words_and_pairs_of_neighbours():
    assert features("Use the tabs, use 深色模式") == {"use", "the", "tabs", "深色", "色模", "模式"}
    assert features("深") == {"深"}
    assert features("!?") == frozenset()


@pytest.mark.sweep(2)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ["a", "é ", "深", "a\u0301", "\u0301\u0323"])
def test_a_long_text_comes_to_its_end(unit):
    text = unit * 300_000
    assert vocabulary(text).holds(significant(text[:10])) in {True, False}
