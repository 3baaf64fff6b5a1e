"""Normal forms: what comes out is Unicode's, and no run of marks is long where they are made."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import BadName
from muniment.policy.grammar import MAX_MARKS, canonicalise, is_normalised, normalised, overlong_run

MARKS = "\u0301\u0316\u0327\u0344\u0345\u05b0\u0f71\u0f73\u0f75\u0f81\u3099\uff9e\uff9f\U0001d165"
TEXTS = st.text(st.sampled_from(f"ae \n-{MARKS}"), max_size=120) | st.text(max_size=40)
REAL = unicodedata.normalize


def has_short_runs(text):
    """Whether the characters that the text decomposes into hold no longer run of marks than some can make."""
    run = longest = 0
    for char in text:
        for part in REAL("NFKD", char):
            run = run + 1 if unicodedata.combining(part) else 0
            longest = max(longest, run)
    return longest <= 2 * MAX_MARKS  # Some marks are two.


def test_a_run_without_end_is_cut_before_it_is_normalised(monkeypatch):
    seen = []
    monkeypatch.setattr(unicodedata, "normalize", lambda form, text: seen.append(text) or REAL(form, text))
    for marks in ("\u0301\u0316", "\u0301", "\u0f73\u0316", "\uff9e\u0316", "\u0344\u0316"):
        seen.clear()
        text = f"e{marks * 4_000} \u00e9"
        outcome = normalised("NFKC", text)
        assert [has_short_runs(each) for each in seen] == [True]
        assert outcome == normalised("NFKC", f"e{(marks * 4_000)[:MAX_MARKS]} \u00e9")
        assert not is_normalised("NFKC", text)


@given(text=TEXTS)
def test_text_without_such_runs_is_normalised_as_unicode_says(text):
    for form in ("NFKC", "NFKD"):
        if overlong_run(text) is None:
            assert normalised(form, text) == REAL(form, text)
            assert is_normalised(form, text) == unicodedata.is_normalized(form, text)
        assert has_short_runs(normalised(form, text))


def test_the_first_run_is_found_wherever_it_stands_and_a_name_that_holds_one_is_none():
    fits, over = "\u0301" * MAX_MARKS, "\u0316" * (MAX_MARKS + 1)
    assert overlong_run(f"a{fits} {fits}-{fits}") is None
    assert overlong_run(f"a{fits} {'-' * 40}{over}b") == 1 + MAX_MARKS + 41
    assert overlong_run(over) == 0
    assert overlong_run("-" * 100) is None
    assert canonicalise(f"user/q{over[1:]}.md", ("user",)).name == f"q{over[1:]}.md"
    with pytest.raises(BadName, match="more than 30 marks"):
        canonicalise(f"user/q{over}.md", ("user",))
