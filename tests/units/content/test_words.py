"""Words: what a query says, and whether a text says all of it, in any script."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content import words as subject
from muniment.content.words import alike, comparable, features, significant, vocabulary

NOTHING = ["", " ", "a", "I", "the", "of the", "x y z", "!", "— …", "的", "を", "the のa", "🎉", "́"]


@pytest.mark.threat("T-MEM-08", control="significant_words")
def test_what_says_nothing_has_no_word():
    assert [query for query in NOTHING if significant(query) != ()] == []
    negating = ["no", "not", "never", "without", "nicht", "kein", "pas", "ne", "sin", "nunca", "non"]
    assert not subject.STOP_WORDS.intersection(negating)


SAID = """The user prefers dark mode. > dark mode; mode DARK; dark | start of the art > art | ﬁle > file
用户喜欢使用深色模式 > 深色 | 사용자는 다크모드를 씁니다 > 다크모드 | ผู้ใช้ชอบโหมดมืด > โหมดมืด
Использует вкладки > вкладки | हिन्दी में लिखो > हिन्दी | foo_bar > foo bar"""
UNSAID = """a darker modem > dark | start of it > art | prefers dark; prefers dark chocolate > dark mode
用户喜欢使用深色模式 > 深式 | 深色 模式 > 色模 | cafe > café"""


@pytest.mark.threat("T-MEM-08", control="every_word")
def test_a_text_says_a_query_if_it_holds_every_word_whole():
    for rows, says in (SAID, True), (UNSAID, False):
        for row in rows.replace("\n", " | ").split(" | "):
            texts, queries = (each.split("; ") for each in row.split(" > "))
            told = {vocabulary(text).holds(significant(query)) for text in texts for query in queries}
            assert told == {says}, row


@given(text=st.text(max_size=40), more=st.text(max_size=10))
def test_a_text_says_all_its_own_words_whatever_stands_around_it(text, more):
    words = significant(text)
    assert vocabulary(f"{more} {text}\n{more}").holds(words) is bool(words)
    assert words == significant(f" {text} ")


def test_features_are_words_and_pairs_of_neighbours():
    expected = {"Use the 深色模式, use": {"use", "the", "深色", "色模", "模式"}, "深": {"深"}, "!?": set()}
    assert {text: features(text) for text in expected} == expected


# -- what says the same, and what is almost the same --

SAME = "The user prefers dark mode in all editors"


def test_case_white_space_forms_and_final_punctuation_make_no_other_fact_and_words_do():
    wide = SAME.replace("dark", "\uff44\uff41\uff52\uff4b")
    for same in (f"{SAME}.", f"  {SAME}\n", SAME.upper(), SAME.replace(" ", "\n"), f"{SAME} ...", wide):
        assert comparable(same) == comparable(SAME), same
    light = SAME.replace("dark", "light")
    for other in (f"{SAME}?", light, f"not {SAME}", f"{SAME} 2", SAME[:-1], f'"{SAME}"'):
        assert comparable(other) != comparable(SAME), other


def test_planted_pairs_are_found_and_nothing_else():
    rng = random.Random(1)
    known = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(1_000)]
    texts = {f"t{number:04}": rng.choices(known, k=20) for number in range(200)}
    for number in range(20):
        words = texts[f"u{number:04}"] = [*texts[f"t{number:04}"]]
        words[rng.randrange(20)] = f"changed{number}"
    found = alike({key: " ".join(words) for key, words in texts.items()})
    assert found == [(f"t{number:04}", f"u{number:04}") for number in range(20)]


TEXTS = st.lists(st.sampled_from(["one", "two", "three", "four", "five", "six"]), max_size=6).map(" ".join)


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=3), TEXTS, max_size=8))
def test_every_group_is_made_of_texts_that_are_alike(texts):
    """Each member resembles another one of its group: the bands may overlook a pair, they invent none."""
    for group in alike(texts):
        assert len(group) > 1
        for key in group:
            others = (features(texts[other]) for other in group if other != key)
            assert any(subject.resemblance(features(texts[key]), other) >= subject.ALIKE for other in others)
    assert alike({"a": "", "b": "!", "c": "..."}) == []  # Without a word they are like none.


def test_a_crowd_of_one_pattern_and_a_run_of_marks_come_to_their_end():
    pasted = "entry {} of the list that somebody pasted into the memory"
    (group,) = alike({f"{number:05}": pasted.format(number) for number in range(1_500)})
    assert len(group) == 1_500
    assert comparable("a" + "\u0301\u0323" * 100_000)  # Normalised as one it is a minute.
