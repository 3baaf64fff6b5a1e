"""Scripted models: one that does its job from the body of a request alone, and one that does anything."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.testing.raw_client import said
from kit.testing.wire import FORMS, Run, fenced, job
from muniment.testing.chat_server import ChatRequest, ChatServer
from muniment.testing.minds import (
    DIALECTS,
    AskForCalls,
    Decide,
    Say,
    Utter,
    fences,
    instance,
    noise,
    perfect,
    through,
)

FACT = "The user prefers dark mode in all editors"
LONG = "x" * 180 + " is how the user begins every line, and this line goes on for far more than two hundred"


def request_of(body):
    return ChatRequest("POST", "/v1/chat/completions", {}, json.dumps(body).encode(), body)


def finish(run, turns=6):
    """Let a perfect model do the run; its last words."""
    for _ in range(turns):
        thought = perfect(request_of(run.body()))
        if isinstance(thought, Say):
            return thought.text
        run.make(list(thought.calls))
    raise AssertionError("no end")


def tools_of(run):
    return [tool for calls, _ in run.turns for tool, _ in calls]


# -- the perfect one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fact", [FACT, "First.\nSecond: more.", LONG])
def test_a_fact_that_a_file_holds_is_read_there_and_said_to_be_known(form, fact):
    run = Run(form, fact, {"project/a.md": "dark\n", "user/known.md": f"---\nname: x\n---\n{fact}\n"})
    last = finish(run)
    assert tools_of(run) == ["grep", "read_file"]
    assert "user/known.md" in last
    assert set(run.memory) == {"project/a.md", "user/known.md"}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_holds_no_more_than_a_line_of_the_fact_is_read_and_then_it_is_written(form):
    run = Run(form, "First editor line.\nSecond.", {"user/half.md": "First editor line.\nThird.\n"})
    assert "Saved" in finish(run)
    assert tools_of(run) == ["grep", "read_file", "write_file"]


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_without_tools_ends_in_words(form):
    run = Run(form, FACT)
    run.make([("grep", {"pattern": "dark"})])
    run.offered = ()
    assert finish(run, turns=1).startswith("Not saved")


def test_asked_for_a_decision_it_decides():
    schema = {"name": "decision", "schema": {}}
    constrained = {
        "messages": [{"role": "system", "content": "Decide."}, {"role": "user", "content": job(FACT)}],
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    prompted = {"messages": [{"role": "user", "content": f"File it: its scope is user\n\n{job(FACT)}"}]}
    first, second = (perfect(request_of(body)) for body in (constrained, prompted))
    assert first == second
    assert isinstance(first, Decide)
    assert set(first.decision) == {"scope", "type"}
    assert first.decision["scope"] == "user"


def test_where_there_is_no_fact_it_lists_as_doctor_asks():
    thought = perfect(request_of({"messages": [{"role": "user", "content": "List the scopes."}]}))
    assert thought == AskForCalls([("ls", {"path": "user"})])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_mind_speaks_its_dialect_through_a_server(dialect):
    run = Run("tools", FACT)
    with ChatServer(through(perfect, DIALECTS[dialect])) as server:
        message, _ = said(server, run.body())
    assert "grep" in json.dumps(message)
    assert "prefers" in json.dumps(message)


def test_fences_are_found_in_order_and_none_inside_another():
    text = f"a\n{fenced('memory', '<<fact 1>>')}\n{fenced('result', '')}\n<<fact 2>>\nopen"
    assert list(fences(text)) == [("memory", "<<fact 1>>"), ("result", "")]


# -- the random one ------------------------------------------------------------------------------------


def conforms(value, schema):
    """Whether a value is an instance of a schema, of the few keywords that requests use."""
    if "anyOf" in schema:
        return any(conforms(value, each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    match schema["type"]:
        case "object":
            properties = schema["properties"]
            return (
                isinstance(value, dict)
                and set(schema.get("required", ())) <= set(value) <= set(properties)
                and all(conforms(each, properties[name]) for name, each in value.items())
            )
        case "array":
            return isinstance(value, list) and all(conforms(each, schema["items"]) for each in value)
        case "string":
            least, most = schema.get("minLength", 0), schema.get("maxLength", 10**9)
            return isinstance(value, str) and least <= len(value) <= most
        case "integer":
            least, most = schema.get("minimum", -(10**9)), schema.get("maximum", 10**9)
            return type(value) is int and least <= value <= most
        case "boolean":
            return type(value) is bool
        case "null":
            return value is None


SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["read_file"]},
                "path": {"type": "string", "maxLength": 30},
                "offset": {"type": "integer", "minimum": 0, "default": 0},
                "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
            },
            "required": ["action", "path"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "action": {"const": "edit"},
                "old_string": {"type": "string", "minLength": 1, "maxLength": 1900},
                "replace_all": {"type": "boolean"},
                "other": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]},
            },
            "required": ["action", "old_string", "other"],
        },
    ]
}


def constrained_to(schema):
    form = {"type": "json_schema", "json_schema": {"name": "action", "schema": schema}}
    return request_of({"messages": [{"role": "user", "content": "Do it."}], "response_format": form})


def thoughts(seed, count, request=None, **how):
    mind = noise(seed, **how)
    return [mind(request or request_of({"messages": [], "tools": [{}]})) for _ in range(count)]


@given(st.integers())
def test_under_a_schema_every_answer_conforms_to_it(seed):
    for thought in thoughts(seed, 20, constrained_to(SCHEMA), constrained=True):
        assert isinstance(thought, Utter)
        assert conforms(json.loads(thought.content), SCHEMA), thought


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "^a"}, {"type": "number"}, {}])
def test_a_schema_that_it_cannot_honour_is_a_mistake_of_the_test(schema):
    with pytest.raises(ValueError, match="no instance"):
        instance(schema, random.Random(1))


@given(st.integers(), st.sampled_from(sorted(DIALECTS)), st.sampled_from(FORMS))
def test_noise_can_be_spelled_in_every_dialect(seed, dialect, form):
    answer = through(noise(seed), DIALECTS[dialect])(request_of(Run(form, FACT).body()))
    assert json.loads(answer.body)["choices"]
