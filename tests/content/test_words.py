"""Words: what a query says, and whether a text says all of it, in any script."""

# ruff: noqa: RUF001 -- letters of many scripts are the point
from __future__ import annotations

import re
import time
import unicodedata

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
    ("query", "words"),
    [
        ("Dark mode", ("dark", "mode")),
        ("the dark and the DARK", ("dark",)),
        ("not tabs", ("not", "tabs")),
        ("no tabs", ("no", "tabs")),
        ("never use os.path", ("never", "use", "os", "path")),
        ("ＴｙｐｅＳｃｒｉｐｔ", ("typescript",)),
        ("Straße", ("strasse",)),
        ("使用TypeScript", ("使用", "typescript")),
        ("ダークモード", ("ダークモード",)),
        ("사용자는 다크 모드", ("사용자는", "다크", "모드")),
        ("port 5432", ("port", "5432")),
        ("snake_case", ("snake", "case")),
        ("ภาษาไทย", ("ภาษาไทย",)),
        ("café", ("café",)),
    ],
)
def test_a_query_is_its_telling_words(query, words):
    assert significant(query) == words


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


def test_no_words_are_held_by_no_text():
    assert not vocabulary("anything at all").holds(())


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


WORDS = st.text(st.sampled_from("abcdeé5 -_,.\n"), max_size=30)


@given(text=WORDS, query=WORDS)
def test_the_words_of_spaced_scripts_are_those_that_a_regular_expression_finds(text, query):
    def words(of):
        return set(re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", of.casefold())))

    wanted = {word for word in words(query) if len(word) > 1} - STOP_WORDS
    assert set(significant(query)) == wanted
    assert vocabulary(text).holds(significant(query)) == (bool(wanted) and wanted <= words(text))


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
