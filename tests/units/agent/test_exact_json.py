"""Strict JSON: nothing comes back that another reader would read otherwise, or that cannot be written."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.agent.model import NotJson, first_json, parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    values,
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
    st.sampled_from(["", "\ufeff", " \r\n", "\ufeff\t"]),
)
def test_what_json_writes_is_read_again(value, ascii_only, indent, before):
    text = before + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + "\n "
    assert (parse_json(text), parse_json(text.encode())) == (value, value)


@pytest.mark.threat("T-RUN-03", control="exact_json")
def test_anything_but_one_strict_document_is_refused():
    for text in (
        *('{"path": "a", "path": "b"}', '{"a": {"b": 1, "\\u0062": 2}}', '[{"a": [{"": 0, "": 0}]}]'),
        *("NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "[-1E+400]", "9" * 5000, '["\\ud800"]'),
        *('{"\\uDFFF": 1}', '"\\ude00\\ud83d"', '"\ud83d"', "[" * 100_000, "", " ", "\ufeff", "{} {}"),
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        *("1 2", "{}x", "\u00a0{}", " \ufeff{}", "{'a': 1}", "[1,]", '{"a": 1,}', "01", "+1", ".5"),
        *('"a\nb"', '"\\x41"', "// no\n1", "True", "undefined", '{"a": "cut o', '{"a"'),
        *(b'"\xff"', b"\xed\xa0\x80", b'"\xc0\xaf"', '{"a": 1}'.encode("utf-16")),
    ):
        with pytest.raises(NotJson):
            pytest.fail(f"{text!r:.80}: {parse_json(text)}")


@given(st.text() | st.text(alphabet='{}[]",:\\ud8e1.-+ \n') | st.binary())
def test_no_text_does_anything_but_be_read_or_be_refused(text):
    try:
        value = parse_json(text)
    except NotJson:
        return
    assert parse_json(json.dumps(value, allow_nan=False)) == value


def test_pairs_of_surrogates_are_characters_and_numbers_stay_what_they_are():
    assert parse_json('{"\\ud83d\\ude00": "\\uD835\\uDCB3"}') == {"\U0001f600": "\U0001d4b3"}
    value = parse_json("[1, 1.0, -0.0, 123456789012345678901234567890, 1e-999]")
    assert [type(each) for each in value] == [int, float, float, int, float]
    assert (value[3], math.copysign(1, value[2])) == (123456789012345678901234567890, -1)


def test_the_first_document_is_read_where_it_begins_and_no_further():
    text = 'see {"a": [1]} {"b": 2'
    assert (first_json(text, 4), first_json("1, 2", 3)) == (({"a": [1]}, 14), (2, 4))
    for at in (0, 3, 15, len(text), len(text) + 9):
        with pytest.raises(NotJson):
            first_json(text, at)


def test_an_error_repeats_nothing_of_the_text():
    for text in ('{"secret-1": 1, "secret-1": 2}', '["secret-1', '{"secret-1": "\\ud800"}'):
        with pytest.raises(NotJson) as refused:
            parse_json(text)
        assert "secret" not in str(refused.value)
        assert refused.value.__cause__ is None
        assert isinstance(refused.value, ValueError)
