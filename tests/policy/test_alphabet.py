"""The letters of the prover, held to every character there is."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given

from muniment.errors import BadName, PathEscape, Refused
from muniment.policy.automaton import CASED_BELOW, OTHER, cased_characters, letters_for, plain_letters_for
from muniment.policy.decide import fold_single
from muniment.policy.grammar import canonicalise, fold, is_canonical_character, segment_problem
from muniment.testing.strategies import unsafe_paths
from policy.reading import SCOPES, Reader

EVERY = [char for char in map(chr, range(sys.maxunicode + 1)) if is_canonical_character(char)]
"""Every character that a name may hold: some 130 000."""

PATTERNS = {
    "none": ((), ()),
    "ordinary": (("/user/**/*.md",), (".*", "pinned/", "MEMORY.md", "/*/index/")),
    "only written": (("/user/A\xdf\u0130\u03a3.md",), ()),
    "only folded": ((), ("straSSe", "\u0130x", "\u03a3")),
    "all three": (("/user/a.md",), ("A?s\xdf", "?\u0130\u0345", "\u1e9e?")),
    "marks": (("/user/\u0301*",), ("?\u0331", "*\u0345", "\u0915\u094d*")),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_character_of_a_name_is_covered_by_exactly_one_letter(name):
    reader = Reader(letters_for(*PATTERNS[name]))
    assert [char for char in EVERY if len(reader.covering(char)) != 1] == []
    assert reader.covering("/") == [len(reader.letters) - 1]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_letter_is_itself_one_of_the_characters_that_it_stands_for(name):
    reader = Reader(letters_for(*PATTERNS[name]))
    assert [reader.covering(letter.text) for letter in reader.letters] == [
        [number] for number in range(len(reader.letters))
    ]


def test_a_slash_a_dot_and_a_space_are_never_hidden_in_another_letter():
    """How segments end is read off the text of a letter, so none may stand for these and something else."""
    letters = letters_for(["/user/. a"], ["*. ?"])
    for char in "/. ":
        (letter,) = [each for each in letters if char in each.written + each.folded + each.single]
        assert (letter.text, letter.written, letter.folded, letter.single) == (char,) * 4


def test_no_character_folds_to_a_separator_a_dot_a_space_or_something_that_no_name_holds():
    for char in EVERY:
        for form in (fold(char), fold_single(char)):
            assert char in ". " or not {"/", ".", " "} & set(form), hex(ord(char))
            assert all(map(is_canonical_character, form)), hex(ord(char))


def test_every_character_that_any_folding_changes_is_known():
    known = set(cased_characters())
    assert known == {char for char in EVERY if fold(char) != char}
    assert {char for char in EVERY if fold_single(char) != char} <= known
    assert max(map(ord, known)) < CASED_BELOW


def test_the_noncharacter_that_stands_for_all_others_is_in_no_name_and_no_pattern():
    assert not is_canonical_character(OTHER)
    assert not OTHER.isprintable()
    assert segment_problem(OTHER) is not None


def test_the_first_letter_stands_for_what_no_pattern_names_and_is_none_that_one_does():
    crowded = "".join(map(chr, range(0x20, 0x7F))).translate(
        dict.fromkeys(map(ord, '\\:*?"<>|[](){}%#!$~^`/'))
    )
    first = letters_for([f"/user/{crowded}"], [crowded])[0]
    assert (first.written, first.folded, first.single) == (OTHER, OTHER, OTHER)
    assert first.text not in crowded
    assert unicodedata.category(first.text) == "Lo"


@pytest.mark.parametrize("mark", ["\u0301", "\u0331", "\u0338", "\u0345", "\u05b8", "\u094d"])
def test_beside_a_mark_the_first_letter_composes_with_nothing(mark):
    for letters in (letters_for((), [f"?{mark}"]), plain_letters_for(f"?{mark}")):
        assert segment_problem(letters[0].text + mark) is None


def test_letters_to_spell_a_pattern_have_no_capitals():
    assert [letter.text for letter in plain_letters_for("Ab?")] == ["c", "a", "b", "/"]


@pytest.mark.parametrize(
    "name", ["H\u0331.md", "J\u030c.md", "T\u0308.md", "W\u030a.md", "Y\u030a.md", "a/H\u0331/b.md"]
)
def test_a_name_that_does_not_fold_letter_by_letter_is_refused_and_its_small_form_is_not(name):
    """Only so can a prover read names by single letters and miss nothing."""
    with pytest.raises(BadName, match="become others when case is ignored"):
        canonicalise(f"user/{name}", SCOPES)
    assert canonicalise(f"user/{fold(name)}", SCOPES).text == f"user/{fold(name)}"


@pytest.mark.parametrize(
    "name",
    [
        *("\u0130stanbul.md", "Stra\xdfe.md", "\u1e9e.md", "\u0939\u093f\u0928\u094d\u0926\u0940.md"),
        *(
            "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22.md",
            "\u0391\u0398\u0397\u039d\u0391.md",
            "Vi\u1ec7t.md",
            "VI\u1ec6T.md",
        ),
        *(
            "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd.md",
            "\u1f88\u03b4\u03b7\u03c2.md",
            "\u0421\u044a\u0435\u0448\u044c.md",
            "\ud55c\uad6d\uc5b4.md",
        ),
    ],
)
def test_names_of_living_languages_fold_letter_by_letter_and_stay(name):
    assert canonicalise(f"user/{name}", SCOPES).text == f"user/{name}"
    assert fold(name) == "".join(map(fold, name))


@given(unsafe_paths())
def test_whatever_is_canonical_folds_letter_by_letter(text):
    try:
        path = canonicalise(text, SCOPES)
    except (PathEscape, BadName, Refused):
        return
    assert fold(path.text) == "".join(map(fold, path.text))
