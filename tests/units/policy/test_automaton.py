"""Patterns as automata, against the real matchers, against pathspec, and against a budget."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kit.policy.reading import Reader, compared
from kit.where import TESTS
from muniment.policy.automaton import ALWAYS, OTHER, Letter, Patterns, Steps, letters_for

ROOMY = 10_000_000


@pytest.mark.sweep(1)
@pytest.mark.threat("T-POL-02", control="read_by_folding")
@pytest.mark.parametrize("seed", range(20))
def test_automata_decisions_and_pathspec_agree_on_random_patterns_and_paths(seed):
    assert compared(seed, sets=10, paths=100) == (1_000, [])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_they_agree_on_a_hundred_thousand_pairs_and_where_pathspec_has_no_other_backend():
    assert compared("long", sets=500, paths=200) == (100_000, [])
    code = (
        "import sys; sys.modules['re2'] = sys.modules['hyperscan'] = None\n"
        f"sys.path.append({str(TESTS)!r})\n"
        "from pathspec import PathSpec; from kit.policy.reading import compared\n"
        "print(type(PathSpec.from_lines('gitignore', ['a'])._backend).__name__, *compared(99, 60, 200))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("SimplePsBackend 12000 []\n", 0), done.stderr


READ = {
    "a?b": ("user/a\xdfb", ""),
    "a??b": ("user/a\xdfb", ""),
    "A?B": ("user/a\xdfb", ""),
    "a???b": ("", "user/a\xdfb"),
    "*s": ("user/\xdf", ""),
    "\xdf": ("user/SS/x", ""),
    "i\u0307": ("user/\u0130", ""),
    "user": ("user/x", ""),
    "team": ("", "user/x"),
    "/us?r/x/": ("user/X/y", "user/x"),
    "/**/x/**": ("user/x/y", "user/x"),
    "/user/*": ("user/x/y", ""),
    "**": ("user/x", ""),
}


def test_a_tree_pattern_is_read_in_all_three_forms():
    for pattern, (held, others) in READ.items():
        letters = letters_for((), [pattern])
        reader, language = Reader(letters), Patterns.tree([pattern], letters, Steps(ROOMY))
        assert all(reader.reads(language, text) for text in held.split()), pattern
        assert not any(reader.reads(language, text) for text in others.split()), pattern


def test_a_letter_that_folds_to_more_than_it_takes_is_read_to_its_end():
    """No letter folds to a slash; if one did, what it is certain of after that would stay so."""
    letters = (Letter("a", "a", "a", "a"), Letter("x", OTHER, "/x", OTHER), Letter("/", "/", "/", "/"))
    language = Patterns.tree(["a/"], letters, Steps(ROOMY))
    assert language.step(language.step(language.start, 0), 1) == ALWAYS
