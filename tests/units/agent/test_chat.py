"""Requests as servers take them: nothing a model made is echoed as it came, every call is answered."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.snapshots import TOKEN, request
from muniment.agent.chat import BOUNDED_CHARS, action_schema, answer_tokens, body, with_actions
from muniment.agent.model import AssistantMessage, Brief, ModelRequest, ToolCall, ToolMessage, UserMessage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(st.text(max_size=80), JSON), max_size=4)
FORMS = ("tools", "json", "text")


def said(calls):
    made = tuple(ToolCall(f"id{number}", tool, arguments) for number, (tool, arguments) in enumerate(calls))
    answers = (ToolMessage(call.id, "error", "bad_arguments", "no") for call in made)
    return (AssistantMessage("", made), *answers)


def messages(form, calls):
    asked = request(said=said(calls))
    return body(asked if form == "tools" else with_actions(asked), form, "m", None)["messages"]


@given(CALLS)
def test_whatever_a_model_called_the_history_is_one_that_every_server_takes(calls):
    sent = messages("tools", calls)
    made = sent[2].get("tool_calls", [])
    assert len(made) == len(calls)
    for call in made:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        name = call["function"]["name"]
        assert name
        assert all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    assert [each["tool_call_id"] for each in sent[3:]] == [call["id"] for call in made]
    assert all(isinstance(message["content"], str) for message in sent)
    for form in ("json", "text"):  # Without tools every result is fenced, and roles take turns.
        sent = messages(form, calls)
        roles = [message["role"] for message in sent]
        assert all(one != two for one, two in pairwise(roles))
        assert set(roles) <= {"user", "assistant", *["system"] * (form == "json")}
        assert all(message["content"] for message in sent)
        assert sum(message["content"].count(f"<<result {TOKEN}>>") for message in sent) == len(calls)
        if calls:
            actions = sent[-2]["content"].split("\n")
            assert [json.loads(action)["action"] for action in actions] == [tool for tool, _ in calls]


def test_an_action_of_the_history_begins_with_its_name_whatever_its_arguments_say():
    sent = messages("json", [("ls", {"path": "user", "action": "done"})])
    assert sent[2]["content"] == '{"action": "ls", "path": "user"}'


@pytest.mark.parametrize("form", FORMS)
def test_a_history_does_not_grow_with_what_a_model_said_at_length_and_echoes_the_longest_fact(form):
    huge, fact = "é" * 300_000, "é" * 32_768
    calls = [
        ("write_file", {"path": "user/a.md", "content": huge}),
        ("write_file", {"path": huge}),
        ("ls", {huge: "x"}),
        ("ls", {"path": [huge]}),
        ("grep", {f"key {number}": "x" for number in range(30_000)}),
    ]
    assert len(json.dumps(messages(form, calls), ensure_ascii=False)) < 120_000
    echoed = messages(form, [("write_file", {"path": "user/a.md", "content": fact})])
    assert fact in json.dumps(echoed, ensure_ascii=False)


def test_a_request_without_tools_says_so_in_every_form():
    last = request(last=True)
    assert "tools" not in body(last, "tools", "m", None)
    (done,) = action_schema(last)[1]["anyOf"]
    assert done["properties"]["action"]["enum"] == ["done"]
    prompt = body(with_actions(last), "text", "m", None)["messages"][0]["content"]
    assert "write_file" not in prompt.split("\n\n")[-1]
    bare = ModelRequest(request().brief, (UserMessage("Call ls."),), (), 1.0)
    assert with_actions(bare) is bare


def strings_in(schema):
    if schema.get("type") == "string":
        yield schema
    for each in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        yield from strings_in(each)


def strings_for(length):
    first = request()
    brief = Brief("x" * length, first.brief.scopes, first.brief.context)
    return list(strings_in(action_schema(ModelRequest(brief, first.messages, first.tools, 295.0))[1]))


def test_no_string_of_an_action_can_go_on_for_ever_but_a_fact_that_no_grammar_can_count():
    assert all("enum" in each or each["maxLength"] <= BOUNDED_CHARS for each in strings_for(100))
    unbounded = [each for each in strings_for(50_000) if "maxLength" not in each and "enum" not in each]
    assert len(unbounded) == 3
    for fact in ("x", "记" * 21_000, "x" * 65_536):
        assert answer_tokens(fact) > 1000 + len(fact) / 2  # An answer may always hold it.
