"""The shortest path of a set, or the proof that there is none: against every path of small worlds."""

from __future__ import annotations

import random

import pytest

from kit.policy.changed import ALPHABET, small_world
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


def searched(exact, trees, confirms=None):
    """The shortest path that `exact` match and `trees` do not."""
    letters, budget = letters_for(exact, trees), Steps(4_000_000)
    language = All([Patterns.exact(exact, letters, budget), Not(Patterns.tree(trees, letters, budget))])
    granted, denied = AllowPatterns(exact), DenyPatterns(trees)

    def decided(path):
        return granted.match(path) and not denied.match(path.text, fold(path.text))

    return shortest(language, letters, SCOPES, budget, confirms or decided), decided


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(20))
def test_no_path_of_a_small_world_is_shorter_than_the_one_that_is_found(seed):
    for rng in map(random.Random, (seed, f"another {seed}")):
        names = ["".join(rng.choices(ALPHABET[:-1], k=rng.choice((1, 1, 2)))) for _ in range(3)]
        exact = [some_pattern(rng, deny=False, names=names) for _ in range(2)]
        trees = [some_pattern(rng, deny=True, names=names) for _ in range(rng.choice((1, 2, 3)))]
        outcome, decided = searched(exact, trees)
        first = next((path for path in small_world() if decided(path)), None)
        assert first is None or isinstance(outcome, FoundPath), (exact, trees, first.text)
        if isinstance(outcome, FoundPath):
            assert decided(outcome.path)
            assert first is None or not outcome.is_shortest or len(outcome.path.text) <= len(first.text)


def test_what_no_name_may_be_is_proved_to_be_nothing_or_left_open_but_never_found(monkeypatch):
    nothing = ["/user/a/b/c/d/e/f/g/h/i", "/user/a/b/c/d/e/f/g/h/**", "/team/**"]
    for exact, trees in ([["/user/*"], ["*"]], [["/user/x"], ["X"]], *([[each], []] for each in nothing)):
        assert isinstance(searched(exact, trees)[0], Nothing), exact
    for exact in ("/user/con", "/user/" + "x" * 256):
        assert isinstance(searched([exact], [])[0], Undecided), exact
    monkeypatch.setattr("muniment.policy.automaton.MAX_STATES", 20)  # Too many are undecided, too.
    assert isinstance(searched(["/user/" + "a" * 30], [])[0], Undecided)


def test_where_path_after_path_is_not_confirmed_the_search_ends_undecided():
    asked = []
    names = [f"/user/{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    outcome, _ = searched(names, [], confirms=asked.append)
    assert isinstance(outcome, Undecided)
    assert len(asked) < 300


def test_a_path_that_was_found_is_kept_where_a_closer_look_finds_none():
    asked = []

    def once(path):
        asked.append(path)
        return len(asked) == 2

    outcome, _ = searched(["/user/a", "/user/bb"], [], confirms=once)
    assert outcome == FoundPath(CanonicalPath(Scope("user"), RelPath("bb")), is_shortest=False)
    assert len(asked) > 2
