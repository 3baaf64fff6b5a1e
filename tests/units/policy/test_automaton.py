"""Patterns as automata: against the real matchers, pathspec and a budget; and the search for a path."""

import pytest

from kit.policy.reading import SCOPES, compared
from muniment.kernel.decide import AllowPatterns, DenyPatterns
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import CanonicalPath, fold
from muniment.policy import automaton as subject
from muniment.policy.automaton import FoundPath, Letter, Nothing, Patterns, Steps, Undecided, letters_for


@pytest.mark.sweep(1)
@pytest.mark.threat("T-POL-02", control="read_by_folding")
@pytest.mark.parametrize("seed", range(20))
def test_automata_decisions_and_pathspec_agree_on_random_patterns_and_paths(seed):
    assert compared(seed, sets=10, paths=100) == (1_000, [])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_they_agree_on_a_hundred_thousand_pairs_and_where_pathspec_has_no_other_backend():
    assert compared("long", sets=500, paths=200) == (100_000, [])
    assert compared(99, sets=60, paths=200, backend="simple") == (12_000, [])


def test_a_letter_that_folds_to_more_than_it_takes_is_read_to_its_end():
    """No letter folds to a slash; if one did, what it is certain of after that would stay so."""
    x = Letter("x", subject.OTHER, "/x", subject.OTHER)
    letters = (Letter("a", "a", "a", "a"), x, Letter("/", "/", "/", "/"))
    language = Patterns.tree(["a/"], letters, Steps(10_000_000))
    assert language.step(language.step(language.start, 0), 1) == subject.ALWAYS


# -- the shortest path of a set, or the proof that there is none; against small worlds in test_diff.py --


def searched(exact, trees, confirms=None):
    """The shortest path that `exact` match and `trees` do not."""
    letters, budget = letters_for(exact, trees), Steps(4_000_000)
    denies = Patterns.tree(trees, letters, budget)
    language = subject.All([Patterns.exact(exact, letters, budget), subject.Not(denies)])
    granted, denied = AllowPatterns(exact), DenyPatterns(trees)

    def decided(path):
        return granted.match(path) and not denied.match(path.text, fold(path.text))

    return subject.shortest(language, letters, SCOPES, budget, confirms or decided)


def test_what_no_name_may_be_is_proved_to_be_nothing_or_left_open_but_never_found(monkeypatch):
    nothing = ["/user/a/b/c/d/e/f/g/h/i", "/user/a/b/c/d/e/f/g/h/**", "/team/**"]
    for exact, trees in ([["/user/*"], ["*"]], [["/user/x"], ["X"]], *([[each], []] for each in nothing)):
        assert isinstance(searched(exact, trees), Nothing), exact
    for exact in ("/user/con", "/user/" + "x" * 256):
        assert isinstance(searched([exact], []), Undecided), exact
    monkeypatch.setattr("muniment.policy.automaton.MAX_STATES", 20)  # Too many are undecided, too.
    assert isinstance(searched(["/user/" + "a" * 30], []), Undecided)


def test_where_path_after_path_is_not_confirmed_the_search_ends_undecided_or_keeps_what_it_found():
    asked = []
    names = [f"/user/{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    outcome = searched(names, [], confirms=asked.append)
    assert (isinstance(outcome, Undecided), len(asked) < 300) == (True, True)
    asked.clear()
    outcome = searched(["/user/a", "/user/bb"], [], confirms=lambda to: asked.append(to) or len(asked) == 2)
    assert outcome == FoundPath(CanonicalPath(Scope("user"), RelPath("bb")), is_shortest=False)
    assert len(asked) > 2
