"""Automata of patterns, compared with the matchers, with pathspec and under a step budget, and the path
search.
"""

import pytest

from kit.policy.patterns import SCOPES, compare_matchers
from muniment.kernel.decide import AllowPatterns, DenyPatterns
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import CanonicalPath, fold
from muniment.policy import automaton as subject
from muniment.policy.automaton import (
    EmptySet,
    FoundPath,
    Letter,
    Patterns,
    StepBudget,
    Undecided,
    build_letters,
)


@pytest.mark.sweep(1)
@pytest.mark.threat("T-POL-02", control="read_by_folding")
@pytest.mark.parametrize("seed", range(20))
def test_automata_matchers_and_pathspec_agree_on_random_input(seed):
    assert compare_matchers(seed, sets=10, paths=100) == (1_000, [])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_automata_agree_on_a_large_sample():
    assert compare_matchers("long", sets=500, paths=200) == (100_000, [])
    assert compare_matchers(99, sets=60, paths=200, backend="simple") == (12_000, [])


def test_automaton_reads_multi_letter_folds_to_their_end():
    """No letter folds to a slash. If one did, a certain match would stay certain."""
    x = Letter("x", subject.OTHER, "/x", subject.OTHER)
    letters = (Letter("a", "a", "a", "a"), x, Letter("/", "/", "/", "/"))
    language = Patterns.tree(["a/"], letters, StepBudget(10_000_000))
    assert language.step(language.step(language.start, 0), 1) == subject.ALWAYS


# -- the shortest path of a set, or the proof that the set is empty; test_diff.py compares it with small
# worlds --


def search_shortest(exact, trees, confirms=None):
    """Return the shortest path that `exact` matches and `trees` does not."""
    letters, budget = build_letters(exact, trees), StepBudget(4_000_000)
    denies = Patterns.tree(trees, letters, budget)
    language = subject.Intersection([Patterns.exact(exact, letters, budget), subject.Complement(denies)])
    granted, denied = AllowPatterns(exact), DenyPatterns(trees)

    def is_granted_path(path):
        return granted.match(path) and not denied.match(path.text, fold(path.text))

    return subject.find_shortest_path(language, letters, SCOPES, budget, confirms or is_granted_path)


def test_search_never_finds_a_path_that_is_not_a_valid_name(monkeypatch):
    empty_sets = ["/user/a/b/c/d/e/f/g/h/i", "/user/a/b/c/d/e/f/g/h/**", "/team/**"]
    for exact, trees in ([["/user/*"], ["*"]], [["/user/x"], ["X"]], *([[each], []] for each in empty_sets)):
        assert isinstance(search_shortest(exact, trees), EmptySet), exact
    for exact in ("/user/con", "/user/" + "x" * 256):
        assert isinstance(search_shortest([exact], []), Undecided), exact
    # Above the limit of states the search is undecided, too.
    monkeypatch.setattr("muniment.policy.automaton.MAX_STATES", 20)
    assert isinstance(search_shortest(["/user/" + "a" * 30], []), Undecided)


def test_search_without_confirmation_is_undecided_or_best_effort():
    tried = []
    names = [f"/user/{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    outcome = search_shortest(names, [], confirms=tried.append)
    assert (isinstance(outcome, Undecided), len(tried) < 300) == (True, True)
    tried.clear()
    outcome = search_shortest(
        ["/user/a", "/user/bb"], [], confirms=lambda to: tried.append(to) or len(tried) == 2
    )
    assert outcome == FoundPath(CanonicalPath(Scope("user"), RelPath("bb")), is_shortest=False)
    assert len(tried) > 2
