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


def said(calls):
    made = tuple(ToolCall(f"id{number}", tool, arguments) for number, (tool, arguments) in enumerate(calls))
    answers = (ToolMessage(call.id, "error", "bad_arguments", "no") for call in made)
    return (AssistantMessage("", made), *answers)


@pytest.mark.slow
@given(CALLS)
def test_whatever_a_model_called_the_history_is_one_that_every_server_takes(calls):
    messages = body(request(said=said(calls)), "tools", "m", None)["messages"]
    made = messages[2].get("tool_calls", [])
    assert len(made) == len(calls)
    for call in made:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        name = call["function"]["name"]
        assert name
        assert all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    assert [each["tool_call_id"] for each in messages[3:]] == [call["id"] for call in made]
    assert all(isinstance(message["content"], str) for message in messages)


@given(CALLS)
@pytest.mark.parametrize("form", ["json", "text"])
def test_without_tools_every_result_is_fenced_and_roles_take_turns(form, calls):
    messages = body(with_actions(request(said=said(calls))), form, "m", None)["messages"]
    roles = [message["role"] for message in messages]
    assert all(one != two for one, two in pairwise(roles))
    assert set(roles) <= ({"user", "assistant"} if form == "text" else {"system", "user", "assistant"})
    assert all(message["content"] for message in messages)
    assert sum(message["content"].count(f"<<result {TOKEN}>>") for message in messages) == len(calls)
    if calls:
        actions = messages[-2]["content"].split("\n")
        assert [json.loads(action)["action"] for action in actions] == [tool for tool, _ in calls]


def test_an_action_of_the_history_begins_with_its_name_whatever_its_arguments_say():
    history = said([("ls", {"path": "user", "action": "done"})])
    messages = body(with_actions(request(said=history)), "json", "m", None)["messages"]
    assert messages[2]["content"] == '{"action": "ls", "path": "user"}'


@pytest.mark.parametrize("form", ["tools", "json", "text"])
def test_a_history_does_not_grow_with_what_a_model_said_at_length(form):
    huge = "é" * 3_000_000
    calls = [
        ("write_file", {"path": "user/a.md", "content": huge}),
        ("write_file", {"path": huge}),
        ("ls", {huge: "x"}),
        ("ls", {"path": [huge]}),
        ("grep", {f"key {number}": "x" for number in range(100_000)}),
    ]
    whole = json.dumps(body(request(said=said(calls)), form, "m", None), ensure_ascii=False)
    assert len(whole) < 120_000


@pytest.mark.parametrize("form", ["tools", "json", "text"])
def test_the_longest_fact_is_echoed_whole(form):
    fact = "é" * 32_768
    history = said([("write_file", {"path": "user/a.md", "content": fact})])
    assert fact in json.dumps(body(request(said=history), form, "m", None), ensure_ascii=False)


def test_a_request_without_tools_says_so_in_every_form():
    last = request(last=True)
    assert "tools" not in body(last, "tools", "m", None)
    _, schema = action_schema(last)
    (done,) = schema["anyOf"]
    assert done["properties"]["action"]["enum"] == ["done"]
    assert (
        "write_file"
        not in body(with_actions(last), "text", "m", None)["messages"][0]["content"].split("\n\n")[-1]
    )


def strings_in(schema):
    if schema.get("type") == "string":
        yield schema
    for each in schema.get("properties", {}).values():
        yield from strings_in(each)
    for each in schema.get("anyOf", ()):
        yield from strings_in(each)


def of_length(length):
    first = request()
    brief = Brief("x" * length, first.brief.scopes, first.brief.context)
    return ModelRequest(brief, first.messages, first.tools, 295.0)


def test_no_string_of_an_action_can_go_on_for_ever():
    _, schema = action_schema(of_length(100))
    assert all("enum" in each or each["maxLength"] <= BOUNDED_CHARS for each in strings_in(schema))


def test_a_fact_that_no_grammar_can_count_is_not_cut():
    _, schema = action_schema(of_length(50_000))
    unbounded = [each for each in strings_in(schema) if "maxLength" not in each and "enum" not in each]
    assert len(unbounded) == 3


@pytest.mark.parametrize("fact", ["x", "记" * 21_000, "x" * 65_536])
def test_an_answer_may_always_hold_the_fact(fact):
    assert answer_tokens(fact) > 1000 + len(fact) / 2


def test_messages_without_a_system_message_stay_as_they_are():
    bare = ModelRequest(request().brief, (UserMessage("Call ls."),), (), 1.0)
    assert with_actions(bare) is bare
