"""What a refusing server means, by status and by the words of several servers."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from muniment.agent.answer import complaint_in, complaint_of


def body(message, **more):
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_what_may_be_tried_follows_from_status_and_words():
    for status, content, kind in (
        *((status, b"", "final") for status in (301, 307)),
        *((status, b"", "form") for status in (422, 501)),
        *((status, b"", "failed") for status in (500, 599)),
        *((status, b"", "busy") for status in (408, 409, 504)),
        *((status, body("no"), "final") for status in (401, 402, 403, 404)),
        (403, b"<html>", "final"),
        (404, body("No endpoints found that support tool use."), "form"),
        (400, body("too long", code="context_length_exceeded"), "overflow"),
        (400, body("This model's maximum context length is 4096 tokens."), "overflow"),
        (400, body("the request exceeds the available context size, try increasing it"), "overflow"),
        (400, body("no", type="exceed_context_size_error"), "overflow"),
        (400, b'{"object":"error","message":"maximum context length is 10","code":400}', "overflow"),
        (500, body("the prompt is too long: context window full"), "overflow"),
        (413, b"", "overflow"),
        (400, body("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."), "limit"),
        (422, b'{"detail":"max_tokens: extra fields not permitted"}', "limit"),
        (400, body("registry.ollama.ai/library/x does not support tools"), "form"),
        (400, body('"auto" tool choice requires --enable-auto-tool-choice'), "form"),
        *((500, body(text), "form") for text in ("tools param requires --jinja", "failed to parse grammar")),
        (500, body("out of memory"), "failed"),
        *((status, b"<html>", "busy") for status in (429, 502, 503)),
    ):
        complaint = complaint_of(status, content)
        assert complaint.kind == kind, (status, content)
        assert str(status) in complaint.told


def test_a_server_that_wants_a_key_and_got_none_is_told_apart():
    assert "none was given" in complaint_of(401, b"", has_key=False).told
    assert "refused the key" in complaint_of(401, b"", has_key=True).told


@given(st.integers(300, 599), st.binary(max_size=60), st.text(max_size=30))
def test_no_answer_makes_it_raise(status, content, header):
    complaint = complaint_of(status, content, header)
    assert complaint.told.isprintable()
    assert complaint.wait >= 0


def test_an_error_of_any_shape_is_an_error_and_in_a_success_counts_by_the_status_that_it_names():
    for shape in ('{"error":{"message":7}}', '{"error":7}', '{"error":null}', "[]", '{"detail":["x"]}'):
        assert complaint_of(400, shape.encode()).kind == "form", shape
    assert complaint_of(400, b'{"error":"x"}').kind == "form"
    for content, kind in (
        (body("slow down", code=429), "busy"),
        (body("does not support tools", code=400), "form"),
        (body("the model crashed", code=200), "failed"),
        (body("the model crashed", code="server_error"), "failed"),
        (b'{"detail": "the model crashed"}', "failed"),
    ):
        assert complaint_in(content).kind == kind, content
