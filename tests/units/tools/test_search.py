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


def found(pattern, data, *, ignore_case=False):
    return list(Pattern(pattern, ignore_case=ignore_case).matching_lines(data))


@given(pattern=PATTERNS, lines=LINES, ends=st.booleans())
def test_it_finds_the_lines_that_a_search_line_by_line_finds(pattern, lines, ends):
    text = "\n".join(lines) + ("\n" if ends and lines else "")
    split = text.removesuffix("\n").split("\n") if text else []
    by_line = [(number, line) for number, line in enumerate(split, 1) if re.search(pattern, line)]
    assert found(pattern, text.encode()) == by_line


def test_no_pattern_sees_across_a_line_and_none_follows_the_final_newline():
    for pattern in ("one.two", r"one\ntwo", r"one\stwo", "(?s)one.*two"):
        assert found(pattern, b"one\ntwo\n") == []
    for pattern in ("^$", "$", "x*$"):
        assert (2, "") not in found(pattern, b"a\n")
    assert found("^$", b"a\n\n") == [(2, "")]


def test_case_can_be_ignored_in_every_script_and_a_long_line_is_cut_without_harm():
    assert found("ÉCOLE", "l'école".encode(), ignore_case=True) == [(1, "l'école")]
    assert found("ÉCOLE", "l'école".encode()) == []
    assert found("x", ("é" * 1000 + "x").encode()) == [(1, "é" * MAX_LINE_CHARS + "…")]


def test_what_re2_cannot_compile_is_told_in_a_line():
    bad = ["(", "[", "*", "a{1001}", r"\1(a)", "(?=a)", "(?<!a)b", "(((a{100}){100}){100})", "\ud800"]
    for pattern in (*bad, r"\p{No}{900}{9}"):
        with pytest.raises(BadArguments) as caught:
            Pattern(pattern, ignore_case=False)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200


@pytest.mark.threat("T-PATH-13", control="linear_search")
@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*$b", "(a+)+$", "a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)x"])
def test_a_pattern_that_ruins_others_takes_no_time(pattern):
    began = time.monotonic()
    found(pattern, b"a" * 200_000)
    assert time.monotonic() - began < 5
