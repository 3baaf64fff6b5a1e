"""RE2 over whole files gives what a plain search line by line would, and is linear whatever the pattern."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import BadArguments
from muniment.tools.workbench import MAX_LINE_CHARS, Pattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "^", "$", "a*", "b+", "a?", "(a|b)", "é", "^$", " "])
PATTERNS = st.lists(ATOMS, min_size=1, max_size=5).map("".join)
LINES = st.lists(st.text(alphabet="ab é", max_size=6), max_size=6)


def by_line(pattern, text):
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [(number, line) for number, line in enumerate(lines, 1) if re.search(pattern, line)]


@given(pattern=PATTERNS, lines=LINES, ends=st.booleans())
def test_it_finds_the_lines_that_a_search_line_by_line_finds(pattern, lines, ends):
    text = "\n".join(lines) + ("\n" if ends and lines else "")
    found = list(Pattern(pattern, ignore_case=False).matching_lines(text.encode()))
    assert found == by_line(pattern, text)


def test_case_can_be_ignored_in_every_script():
    assert list(Pattern("ÉCOLE", ignore_case=True).matching_lines("l'école".encode())) == [(1, "l'école")]
    assert list(Pattern("ÉCOLE", ignore_case=False).matching_lines("l'école".encode())) == []


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "[", "*", "a{1001}", r"\1(a)", "(?=a)", "(?<!a)b", "(((a{100}){100}){100})", "\ud800"),
        r"\p{No}{900}{9}",
    ],
)
def test_what_re2_cannot_compile_is_told_in_a_line(pattern):
    with pytest.raises(BadArguments) as caught:
        Pattern(pattern, ignore_case=False)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.threat("T-PATH-13", control="linear_search")
@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*$b", "(a+)+$", "a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)x"])
def test_a_pattern_that_ruins_others_takes_no_time(pattern):
    data = b"a" * 200_000
    began = time.monotonic()
    list(Pattern(pattern, ignore_case=False).matching_lines(data))
    assert time.monotonic() - began < 5


def test_no_pattern_sees_across_a_line():
    data = b"one\ntwo\n"
    for pattern in ("one.two", r"one\ntwo", r"one\stwo", "(?s)one.*two"):
        assert list(Pattern(pattern, ignore_case=False).matching_lines(data)) == []


def test_a_long_line_is_cut_and_a_cut_character_does_no_harm():
    ((_, shown),) = Pattern("x", ignore_case=False).matching_lines(("é" * 1000 + "x").encode())
    assert shown == "é" * MAX_LINE_CHARS + "…"


def test_what_follows_the_final_newline_is_no_line():
    for pattern in ("^$", "$", "x*$"):
        assert (2, "") not in list(Pattern(pattern, ignore_case=False).matching_lines(b"a\n"))
    assert list(Pattern("^$", ignore_case=False).matching_lines(b"a\n\n")) == [(2, "")]
