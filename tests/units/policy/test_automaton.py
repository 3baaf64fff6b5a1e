"""Patterns as automata, against the real matchers, against pathspec, and against a budget."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kit.policy.reading import Reader, compared
from kit.where import TESTS
from muniment.policy.automaton import (
    ALWAYS,
    OTHER,
    Letter,
    Patterns,
    Steps,
    letters_for,
)

ROOMY = 10_000_000


def trees(*patterns, work=ROOMY):
    letters = letters_for((), patterns)
    return Reader(letters), Patterns.tree(patterns, letters, Steps(work))


@pytest.mark.sweep(2)
@pytest.mark.threat("T-POL-02", control="read_by_folding")
@pytest.mark.parametrize("seed", range(6))
def test_automata_decisions_and_pathspec_agree_on_random_patterns_and_paths(seed):
    pairs, apart = compared(seed, sets=85, paths=200)
    assert (pairs, apart) == (17_000, [])


@pytest.mark.slow
def test_they_agree_where_no_other_backend_of_pathspec_can_be_imported():
    code = (
        "import sys; sys.modules['re2'] = sys.modules['hyperscan'] = None\n"
        f"sys.path.append({str(TESTS)!r})\n"
        "from pathspec import PathSpec; from policy.reading import compared\n"
        "print(type(PathSpec.from_lines('gitignore', ['a'])._backend).__name__, *compared(99, 60, 200))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("SimplePsBackend 12000 []\n", 0), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_they_agree_on_a_hundred_thousand_pairs():
    assert compared("long", sets=500, paths=200) == (100_000, [])


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a?b", "user/a\xdfb", True),
        ("a??b", "user/a\xdfb", True),
        ("A?B", "user/a\xdfb", True),
        ("a???b", "user/a\xdfb", False),
        ("*s", "user/\xdf", True),
        ("\xdf", "user/SS/x", True),
        ("i\u0307", "user/\u0130", True),
        ("user", "user/x", True),
        ("team", "user/x", False),
        ("/us?r/x/", "user/x", False),
        ("/us?r/x/", "user/X/y", True),
        ("/**/x/**", "user/x", False),
        ("/**/x/**", "user/x/y", True),
        ("/user/*", "user/x/y", True),
        ("**", "user/x", True),
    ],
)
def test_a_tree_pattern_is_read_in_all_three_forms(pattern, text, expected):
    reader, language = trees(pattern)
    assert reader.reads(language, text) is expected


def test_a_letter_that_folds_to_more_than_it_takes_is_read_to_its_end():
    """No letter folds to a slash; if one did, what it is certain of after that would stay so."""
    letters = (Letter("a", "a", "a", "a"), Letter("x", OTHER, "/x", OTHER), Letter("/", "/", "/", "/"))
    language = Patterns.tree(["a/"], letters, Steps(ROOMY))
    assert language.step(language.step(language.start, 0), 1) == ALWAYS
