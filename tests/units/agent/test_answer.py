"""Responses of model servers: strict JSON and the classification of errors."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.spellings import values
from kit.catching import catch_error
from muniment.agent.complaint import parse_complaint
from muniment.agent.response import parse_response
from muniment.content.exact_json import NotJson, parse_first_json, parse_json


@given(
    values,
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
    st.sampled_from(["", "\ufeff", " \r\n", "\ufeff\t"]),
)
def test_parse_json_round_trips_dumped_values(value, ascii_only, indent, before):
    text = before + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + "\n "
    assert (parse_json(text), parse_json(text.encode())) == (value, value)


@pytest.mark.threat("T-RUN-03", control="exact_json")
def test_parse_json_rejects_invalid_documents():
    for text in (
        *('{"path": "a", "path": "b"}', '{"a": {"b": 1, "\\u0062": 2}}', '[{"a": [{"": 0, "": 0}]}]', "NaN"),
        *("[Infinity]", '{"a": -Infinity}', "1e999", "[-1E+400]", "9" * 5000, '["\\ud800"]'),
        *('{"\\uDFFF": 1}', '"\\ude00\\ud83d"', '"\ud83d"', "[" * 100_000, "", " ", "\ufeff", "{} {}"),
        *('{"a":' * 100_000 + "1" + "}" * 100_000, "1 2", "{}x", "\u00a0{}", " \ufeff{}", "{'a': 1}", "[1,]"),
        *('{"a": 1,}', "01", "+1", ".5", '"a\nb"', '"\\x41"', "// no\n1", "True", "undefined"),
        *('{"a": "cut o', '{"a"', b'"\xff"', b"\xed\xa0\x80", b'"\xc0\xaf"', '{"a": 1}'.encode("utf-16")),
    ):
        with pytest.raises(NotJson):
            pytest.fail(f"{text!r:.80}: {parse_json(text)}")


@given(st.text() | st.text(alphabet='{}[]",:\\ud8e1.-+ \n') | st.binary())
def test_parse_json_any_text_returns_value_or_raises_not_json(text):
    try:
        value = parse_json(text)
    except NotJson:
        return
    assert parse_json(json.dumps(value, allow_nan=False)) == value


def test_parse_json_joins_surrogates_and_keeps_number_types():
    assert parse_json('{"\\ud83d\\ude00": "\\uD835\\uDCB3"}') == {"\U0001f600": "\U0001d4b3"}
    value = parse_json("[1, 1.0, -0.0, 123456789012345678901234567890, 1e-999]")
    assert [type(each) for each in value] == [int, float, float, int, float]
    assert (value[3], math.copysign(1, value[2])) == (123456789012345678901234567890, -1)


def test_first_json_reads_one_document_at_offset():
    text = 'see {"a": [1]} {"b": 2'
    assert (parse_first_json(text, 4), parse_first_json("1, 2", 3)) == (({"a": [1]}, 14), (2, 4))
    for at in (0, 3, 15, len(text), len(text) + 9):
        catch_error(NotJson, parse_first_json, text, at)


def test_not_json_error_contains_no_input():
    for text in ('{"secret-1": 1, "secret-1": 2}', '["secret-1', '{"secret-1": "\\ud800"}'):
        error = catch_error(NotJson, parse_json, text)
        assert "secret" not in str(error)
        assert error.__cause__ is None
        assert isinstance(error, ValueError)


def make_error_body(message, **more):
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_complaint_kind_follows_from_status_and_body():
    for status, content, kind in (
        *((status, b"", "final") for status in (301, 307)),
        *((status, b"", "form") for status in (422, 501)),
        *((status, b"", "failed") for status in (500, 599)),
        *((status, b"", "busy") for status in (408, 409, 504)),
        *((status, make_error_body("no"), "final") for status in (401, 402, 403, 404)),
        *(
            (403, b"<html>", "final"),
            (404, make_error_body("No endpoints found that support tool use."), "form"),
        ),
        (400, make_error_body("too long", code="context_length_exceeded"), "overflow"),
        (
            400,
            make_error_body("the request exceeds the available context size, try increasing it"),
            "overflow",
        ),
        (400, make_error_body("no", type="exceed_context_size_error"), "overflow"),
        (400, b'{"object":"error","message":"maximum context length is 10","code":400}', "overflow"),
        *(
            (500, make_error_body("the prompt is too long: context window full"), "overflow"),
            (413, b"", "overflow"),
        ),
        (
            400,
            make_error_body("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
            "limit",
        ),
        (422, b'{"detail":"max_tokens: extra fields not permitted"}', "limit"),
        (400, make_error_body("registry.ollama.ai/library/x does not support tools"), "form"),
        *(
            (500, make_error_body(text), "form")
            for text in ("tools param requires --jinja", "failed to parse grammar")
        ),
        (500, make_error_body("out of memory"), "failed"),
        *((status, b"<html>", "busy") for status in (429, 502, 503)),
    ):
        complaint = parse_complaint(status, content)
        assert complaint.kind == kind, (status, content)
        assert str(status) in complaint.message


def test_complaint_401_names_missing_or_rejected_key():
    assert "none was sent" in parse_complaint(401, b"", has_key=False).message
    assert "rejected the key" in parse_complaint(401, b"", has_key=True).message


@given(st.integers(300, 599), st.binary(max_size=60), st.text(max_size=30))
def test_complaint_of_any_response_does_not_raise(status, content, header):
    complaint = parse_complaint(status, content, header)
    assert complaint.message.isprintable()
    assert complaint.wait >= 0


def test_error_in_success_response_uses_status_in_body():
    for shape in ('{"error":{"message":7}}', '{"error":7}', '{"error":null}', "[]", '{"detail":["x"]}'):
        assert parse_complaint(400, shape.encode()).kind == "form", shape
    assert parse_complaint(400, b'{"error":"x"}').kind == "form"
    for content, kind in (
        *(
            (make_error_body("slow down", code=429), "busy"),
            (make_error_body("does not support tools", code=400), "form"),
        ),
        (make_error_body("the model crashed", code=200), "failed"),
        (make_error_body("the model crashed", code="server_error"), "failed"),
        (b'{"detail": "the model crashed"}', "failed"),
    ):
        assert parse_response(content).kind == kind, content
