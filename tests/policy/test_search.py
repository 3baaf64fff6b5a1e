"""The shortest path of a set, or the proof that there is none: against every path of small worlds."""

from __future__ import annotations

import random

import pytest

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
from policy.changed import all_paths
from policy.reading import SCOPES, some_pattern

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


def path_of(outcome):
    assert isinstance(outcome, FoundPath), outcome
    return outcome.path.text


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
    ("exact", "trees", "path"),
    [
        (["/**"], [], "user/a"),
        (["/**"], ["/user/"], "team-2/a"),
        (["/user/*.md"], [".*"], "user/a.md"),
        (["/user/**/*.md"], ["/user/*.md"], "user/a/.md"),
        (["/user/con*"], [], "user/cona"),
        (["/user/e*\u0301"], [], "user/e-\u0301"),
        (["/user/H*\u0331"], [], "user/H-\u0331"),
        (["/user/a*", "/user/*/b"], ["a*"], "user/c/b"),
        (["/user/a. /b", "/user/a b"], [], "user/a b"),
        (["/*/*"], ["?"], "user/aa"),
        (["/user/*", "/team-2/x"], ["*"], None),
        (["/user/con", "/user/nul.md", "/user/aux/b"], [], None),
        (["/user/" + "x" * 256], [], None),
        (["/user/a/b/c/d/e/f/g/h/i"], [], None),
        (["/user/a/*/*/*/*/*/*/*"], [], "user/a/b/b/b/b/b/b/b"),
        ([f"/user/{'/'.join('ab' * 4)}/**"], [], None),
        (["/us?r/*", "/*-?/*"], ["/user/"], "team-2/a"),
        (["/user/\xdf"], ["ss"], None),
        (["/user/\xdf?"], ["s??"], "user/\xdf\xdf"),
        (["/user/?"], ["s", "a?"], "user/b"),
    ],
)
def test_the_path_that_is_found_is_the_shortest_and_the_plainest(exact, trees, path):
    outcome, _ = searched(exact, trees)
    assert (outcome.path.text if isinstance(outcome, FoundPath) else None) == path


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


def test_a_path_is_not_called_shortest_where_a_shorter_one_was_none():
    assert searched(["/user/a*"], [])[0].is_shortest
    assert not searched(["/user/con*"], [])[0].is_shortest


def test_no_scopes_are_no_paths():
    assert searched(["/**"], [], scopes=())[0] == Nothing(0)


def test_a_scope_that_nothing_reaches_is_left_out_and_two_that_read_alike_are_one():
    assert path_of(searched(["/project/**"], [], scopes=(*SCOPES, Scope("project")))[0]) == "project/a"
    assert isinstance(searched(["/**"], ["**"], scopes=(Scope("aa"), Scope("bb")))[0], Nothing)


def test_the_path_of_a_longer_scope_can_be_the_shorter_one():
    assert path_of(searched(["/user/aaaaa", "/team-2/a"], [])[0]) == "team-2/a"


def test_only_paths_that_are_confirmed_are_found():
    outcome, _ = searched(["/user/a*"], [], confirms=lambda path: path.name != "a")
    assert outcome == FoundPath(CanonicalPath(Scope("user"), RelPath("ab")), is_shortest=False)


def test_where_path_after_path_is_not_confirmed_the_search_ends_undecided():
    asked = []
    names = [f"/user/{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    outcome, _ = searched(names, [], confirms=asked.append)
    assert isinstance(outcome, Undecided)
    assert len(asked) < 300


def test_a_search_without_the_steps_that_it_needs_is_undecided():
    assert isinstance(searched(["/user/aaaaaaaa"], [], work=10)[0], Undecided)


def test_a_path_that_was_found_is_kept_when_looking_for_a_shorter_one_takes_too_many_steps():
    steps = next(
        work for work in range(1, 5_000) if isinstance(searched(["/user/con*"], [], work=work)[0], FoundPath)
    )
    outcomes = [searched(["/user/con*", "/user/conx"], [], work=steps + more)[0] for more in range(0, 200, 5)]
    assert {path_of(each) for each in outcomes if isinstance(each, FoundPath)} <= {"user/cona", "user/conx"}


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
