"""The shortest path of a set, or the proof that there is none: against every path of small worlds."""

from __future__ import annotations

import random

import pytest

from kit.policy.changed import all_paths
from kit.policy.reading import SCOPES, some_pattern
from muniment.names import RelPath, Scope
from muniment.policy.automaton import (
    All,
    FoundPath,
    Not,
    Nothing,
    Patterns,
    Steps,
    Undecided,
    letters_for,
    shortest,
)
from muniment.policy.decide import AllowPatterns, DenyPatterns
from muniment.policy.grammar import CanonicalPath, fold

ROOMY = 4_000_000
ALPHABET = "aA\xdfs\u0130. /"
WORLD = list(all_paths(ALPHABET, 4))
"""Every canonical path of up to four characters below the scope, shortest first."""


def searched(exact, trees, scopes=SCOPES, work=ROOMY, confirms=None):
    """The shortest path that `exact` match and `trees` do not."""
    letters, budget = letters_for(exact, trees), Steps(work)
    language = All([Patterns.exact(exact, letters, budget), Not(Patterns.tree(trees, letters, budget))])
    granted, denied = AllowPatterns(exact), DenyPatterns(trees)

    def decided(path):
        return granted.match(path) and not denied.match(path.text, fold(path.text))

    return shortest(language, letters, scopes, budget, confirms or decided), decided


@pytest.mark.parametrize("seed", range(40))
def test_no_path_of_a_small_world_is_shorter_than_the_one_that_is_found(seed):
    rng = random.Random(seed)
    names = ["".join(rng.choices(ALPHABET[:-1], k=rng.choice((1, 1, 2)))) for _ in range(3)]
    exact = [some_pattern(rng, deny=False, names=names) for _ in range(2)]
    trees = [some_pattern(rng, deny=True, names=names) for _ in range(rng.choice((1, 2, 3)))]
    outcome, decided = searched(exact, trees)
    first = next((path for path in WORLD if decided(path)), None)
    if isinstance(outcome, Nothing):
        assert first is None, (exact, trees)
    elif isinstance(outcome, FoundPath):
        assert decided(outcome.path)
        assert first is None or not outcome.is_shortest or len(outcome.path.text) <= len(first.text)
    elif first is not None:
        pytest.fail(f"gave up on {exact} {trees} where {first.text} is one")


@pytest.mark.parametrize(
    ("exact", "trees", "kind"),
    [
        (["/user/*"], ["*"], Nothing),
        (["/user/x"], ["X"], Nothing),
        (["/user/a/b/c/d/e/f/g/h/i"], [], Nothing),
        (["/user/a/b/c/d/e/f/g/h/**"], [], Nothing),
        (["/user/con"], [], Undecided),
        (["/user/" + "x" * 256], [], Undecided),
        (["/team/**"], [], Nothing),
    ],
)
def test_what_no_name_may_be_is_proved_to_be_nothing_or_left_open_but_never_found(exact, trees, kind):
    assert isinstance(searched(exact, trees)[0], kind)


def test_where_path_after_path_is_not_confirmed_the_search_ends_undecided():
    asked = []
    names = [f"/user/{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    outcome, _ = searched(names, [], confirms=asked.append)
    assert isinstance(outcome, Undecided)
    assert len(asked) < 300


def test_too_many_states_are_undecided(monkeypatch):
    monkeypatch.setattr("muniment.policy.automaton.MAX_STATES", 20)
    assert isinstance(searched(["/user/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"], [])[0], Undecided)


def test_a_path_that_was_found_is_kept_where_a_closer_look_finds_none():
    asked = []

    def once(path):
        asked.append(path)
        return len(asked) == 2

    outcome, _ = searched(["/user/a", "/user/bb"], [], confirms=once)
    assert outcome == FoundPath(CanonicalPath(Scope("user"), RelPath("bb")), is_shortest=False)
    assert len(asked) > 2
