"""The letters of the prover, held to every character there is."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given

from kit.policy.reading import SCOPES
from muniment.errors import BadName, PathEscape, Refused
from muniment.policy.decide import fold_single
from muniment.policy.grammar import canonicalise, fold, is_canonical_character
from muniment.testing.strategies import unsafe_paths

EVERY = [char for char in map(chr, range(sys.maxunicode + 1)) if is_canonical_character(char)]
"""Every character that a name may hold: some 130 000."""


def test_no_character_folds_to_a_separator_a_dot_a_space_or_something_that_no_name_holds():
    for char in EVERY:
        for form in (fold(char), fold_single(char)):
            assert char in ". " or not {"/", ".", " "} & set(form), hex(ord(char))
            assert all(map(is_canonical_character, form)), hex(ord(char))


@pytest.mark.parametrize(
    "name", ["H\u0331.md", "J\u030c.md", "T\u0308.md", "W\u030a.md", "Y\u030a.md", "a/H\u0331/b.md"]
)
def test_a_name_that_does_not_fold_letter_by_letter_is_refused_and_its_small_form_is_not(name):
    """Only so can a prover read names by single letters and miss nothing."""
    with pytest.raises(BadName, match="become others when case is ignored"):
        canonicalise(f"user/{name}", SCOPES)
    assert canonicalise(f"user/{fold(name)}", SCOPES).text == f"user/{fold(name)}"


@given(unsafe_paths())
def test_whatever_is_canonical_folds_letter_by_letter(text):
    try:
        path = canonicalise(text, SCOPES)
    except (PathEscape, BadName, Refused):
        return
    assert fold(path.text) == "".join(map(fold, path.text))
