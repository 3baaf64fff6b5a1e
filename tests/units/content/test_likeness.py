"""What says the same, and what is almost the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content.words import ALIKE, alike, comparable, features, resemblance

SAME = "The user prefers dark mode in all editors"


def test_case_white_space_forms_and_final_punctuation_make_no_other_fact_and_words_do():
    wide = SAME.replace("dark", "\uff44\uff41\uff52\uff4b")
    for same in (f"{SAME}.", f"  {SAME}\n", SAME.upper(), SAME.replace(" ", "\n"), f"{SAME} ...", wide):
        assert comparable(same) == comparable(SAME), same
    light = SAME.replace("dark", "light")
    for other in (f"{SAME}?", light, f"not {SAME}", f"{SAME} 2", SAME[:-1], f'"{SAME}"'):
        assert comparable(other) != comparable(SAME), other


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
    vocabulary = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(1_000)]
    texts = {f"t{number:04}": " ".join(rng.choices(vocabulary, k=length)) for number in range(count)}
    for number in range(count // 10):
        words = texts[f"t{number:04}"].split()
        words[rng.randrange(length)] = f"changed{number}"
        texts[f"u{number:04}"] = " ".join(words)
    return texts


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_pairs_are_found_and_nothing_else(seed):
    texts = texts_of(random.Random(seed), 200, 20)
    found = alike(texts)
    assert found == groups_by_force(texts)
    assert len(found) == 20


FEW = ["one", "two", "three", "four", "five", "six"]


@given(
    st.dictionaries(
        st.text("xyz", min_size=1, max_size=3),
        st.lists(st.sampled_from(FEW), max_size=6).map(" ".join),
        max_size=8,
    )
)
def test_every_group_is_made_of_texts_that_are_alike(texts):
    """Each member resembles another one of its group: the bands may overlook a pair, they invent none."""
    for group in alike(texts):
        assert len(group) > 1
        for key in group:
            others = (features(texts[other]) for other in group if other != key)
            assert any(resemblance(features(texts[key]), other) >= ALIKE for other in others)
    assert alike({"a": "", "b": "!", "c": "..."}) == []  # Without a word they are like none.


@pytest.mark.timeout(60)
def test_a_crowd_of_one_pattern_and_a_run_of_marks_come_to_their_end():
    pasted = "entry {} of the list that somebody pasted into the memory"
    (group,) = alike({f"{number:05}": pasted.format(number) for number in range(1_500)})
    assert len(group) == 1_500
    assert comparable("a" + "\u0301\u0323" * 100_000)  # Normalised as one it is a minute.
