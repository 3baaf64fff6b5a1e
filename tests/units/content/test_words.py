"""Words: significant words of a query, and texts that contain all of them, in any script."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content import words as subject
from muniment.content.words import (
    build_comparison_key,
    build_vocabulary,
    extract_features,
    find_significant_words,
    group_similar,
)

NOTHING = ["", " ", "a", "I", "the", "of the", "x y z", "!", "— …", "的", "を", "the のa", "🎉", "́"]


@pytest.mark.threat("T-MEM-08", control="significant_words")
def test_query_without_meaning_has_no_significant_word():
    assert [query for query in NOTHING if find_significant_words(query) != ()] == []
    negating = ["no", "not", "never", "without", "nicht", "kein", "pas", "ne", "sin", "nunca", "non"]
    assert not subject.STOP_WORDS.intersection(negating)


CONTAINED = """The user prefers dark mode. > dark mode; mode DARK; dark | start of the art > art | ﬁle > file
用户喜欢使用深色模式 > 深色 | 사용자는 다크모드를 씁니다 > 다크모드 | ผู้ใช้ชอบโหมดมืด > โหมดมืด
Использует вкладки > вкладки | हिन्दी में लिखो > हिन्दी | foo_bar > foo bar"""
MISSING = """a darker modem > dark | start of it > art | prefers dark; prefers dark chocolate > dark mode
用户喜欢使用深色模式 > 深式 | 深色 模式 > 色模 | cafe > café"""


@pytest.mark.threat("T-MEM-08", control="every_word")
def test_text_matches_query_only_if_it_has_every_word():
    for rows, is_contained in (CONTAINED, True), (MISSING, False):
        for row in rows.replace("\n", " | ").split(" | "):
            texts, queries = (each.split("; ") for each in row.split(" > "))
            results = {
                build_vocabulary(text).contains_all(find_significant_words(query))
                for text in texts
                for query in queries
            }
            assert results == {is_contained}, row


@given(text=st.text(max_size=40), more=st.text(max_size=10))
def test_text_contains_its_own_words_in_any_context(text, more):
    query = find_significant_words(text)
    assert build_vocabulary(f"{more} {text}\n{more}").contains_all(query) is bool(query)
    assert query == find_significant_words(f" {text} ")


def test_features_are_words_and_pairs_of_neighbours():
    expected = {"Use the 深色模式, use": {"use", "the", "深色", "色模", "模式"}, "深": {"深"}, "!?": set()}
    assert {text: extract_features(text) for text in expected} == expected


# -- equal and similar texts --

SAME = "The user prefers dark mode in all editors"


def test_comparison_ignores_case_spacing_and_final_marks():
    wide = SAME.replace("dark", "\uff44\uff41\uff52\uff4b")
    for same in (f"{SAME}.", f"  {SAME}\n", SAME.upper(), SAME.replace(" ", "\n"), f"{SAME} ...", wide):
        assert build_comparison_key(same) == build_comparison_key(SAME), same
    light = SAME.replace("dark", "light")
    for other in (f"{SAME}?", light, f"not {SAME}", f"{SAME} 2", SAME[:-1], f'"{SAME}"'):
        assert build_comparison_key(other) != build_comparison_key(SAME), other


def test_similar_pairs_are_found_without_false_positives():
    rng = random.Random(1)
    known = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(1_000)]
    texts = {f"t{number:04}": rng.choices(known, k=20) for number in range(200)}
    for number in range(20):
        text_words = texts[f"u{number:04}"] = [*texts[f"t{number:04}"]]
        text_words[rng.randrange(20)] = f"changed{number}"
    found = group_similar({key: " ".join(text_words) for key, text_words in texts.items()})
    assert found == [(f"t{number:04}", f"u{number:04}") for number in range(20)]


TEXTS = st.lists(st.sampled_from(["one", "two", "three", "four", "five", "six"]), max_size=6).map(" ".join)


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=3), TEXTS, max_size=8))
def test_similar_group_members_resemble_each_other(texts):
    """Check that each member resembles another: the bands may miss a pair, but add none."""
    for group in group_similar(texts):
        assert len(group) > 1
        for key in group:
            others = (extract_features(texts[other]) for other in group if other != key)
            assert any(
                subject.compute_similarity(extract_features(texts[key]), other)
                >= subject.SIMILARITY_THRESHOLD
                for other in others
            )
    assert group_similar({"a": "", "b": "!", "c": "..."}) == []  # Texts without words are similar to nothing.


def test_large_group_and_many_marks_are_compared_in_time():
    pasted = "entry {} of the list that somebody pasted into the memory"
    (group,) = group_similar({f"{number:05}": pasted.format(number) for number in range(1_500)})
    assert len(group) == 1_500
    assert build_comparison_key(
        "a" + "\u0301\u0323" * 100_000
    )  # If normalized in one step, this takes a minute.
