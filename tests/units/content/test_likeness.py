"""What says the same, and what is almost the same."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content.words import ALIKE, alike, comparable, features, resemblance

SAME = "The user prefers dark mode in all editors"


@pytest.mark.parametrize(
    "other",
    [
        f"{SAME}.",
        f"  {SAME}\n",
        SAME.upper(),
        SAME.replace(" ", "\n"),
        f"{SAME} ...",
        SAME.replace("dark", "ｄａｒｋ"),  # noqa: RUF001
    ],
)
def test_case_white_space_forms_and_final_punctuation_make_no_other_fact(other):
    assert comparable(other) == comparable(SAME)


@pytest.mark.parametrize(
    "other", [f"{SAME}?", SAME.replace("dark", "light"), f"not {SAME}", f"{SAME} 2", SAME[:-1], f'"{SAME}"']
)
def test_a_word_a_number_a_question_make_another(other):
    assert comparable(other) != comparable(SAME)


def test_a_run_of_marks_takes_a_moment():
    started = time.process_time()
    assert comparable("a" + "\u0301\u0323" * 100_000)
    assert time.process_time() - started < 3  # Normalised as one it is a minute.


def groups_by_force(texts):
    """The groups of texts that are alike pair by pair, by comparing all of them."""
    words = {key: set(text.split()) for key, text in texts.items()}
    groups = [{key} for key in texts]
    for one in texts:
        for other in texts:
            both = len(words[one] & words[other])
            if one < other and both and both / len(words[one] | words[other]) >= ALIKE:
                joined = [group for group in groups if group & {one, other}]
                groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return sorted(tuple(sorted(group)) for group in groups if len(group) > 1)


def texts_of(rng, count, length):
    vocabulary = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(5_000)]
    texts = {f"t{number:04}": " ".join(rng.choices(vocabulary, k=length)) for number in range(count)}
    for number in range(count // 10):
        words = texts[f"t{number:04}"].split()
        words[rng.randrange(length)] = f"changed{number}"
        texts[f"u{number:04}"] = " ".join(words)
    return texts


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_pairs_are_found_and_nothing_else(seed):
    texts = texts_of(random.Random(seed), 300, 20)
    found = alike(texts)
    assert found == groups_by_force(texts)
    assert len(found) == 30


@given(
    texts=st.dictionaries(
        st.text("xyz", min_size=1, max_size=3),
        st.lists(st.sampled_from("one two three four five six".split()), max_size=6).map(" ".join),  # noqa: SIM905
        max_size=8,
    )
)
def test_every_group_is_made_of_texts_that_are_alike(texts):
    """Each member resembles another one of its group: the bands may overlook a pair, they invent none."""
    for group in alike(texts):
        assert len(group) > 1
        for key in group:
            assert any(
                resemblance(features(texts[key]), features(texts[other])) >= ALIKE
                for other in group
                if other != key
            )


def test_texts_without_a_word_are_like_none():
    assert alike({"a": "", "b": "!", "c": "..."}) == []


def test_a_crowd_of_one_pattern_costs_no_square():
    texts = {
        f"{number:05}": f"entry {number} of the list that somebody pasted into the memory"
        for number in range(4_000)
    }
    started = time.process_time()
    (group,) = alike(texts)
    assert len(group) == 4_000
    assert time.process_time() - started < 4
