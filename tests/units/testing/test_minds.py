"""Scripted models: how their thoughts are spelled, one that does its job from a request alone, one that does
anything."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.testing.wire import FORMS, TOOLS, Run, fenced, job
from muniment.agent.answer import spoken_calls
from muniment.testing import minds
from muniment.testing.chat_server import ChatRequest

FACT = "The user prefers dark mode in all editors"
LONG = "x" * 180 + " is how the user begins every line, and this line goes on for far more than two hundred"


def request_of(body):
    return ChatRequest("POST", "/v1/chat/completions", {}, json.dumps(body).encode(), body)


def asking(*texts, schema=None, name="action", **more):
    """The body of a request."""
    roles = ("system", "user")[-len(texts) :]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    if schema is not None:
        form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
        return {"messages": messages, "response_format": form}
    return {"messages": messages, **more}


# -- how a thought is spelled ----------------------------------------------------------------------------

LS = ("ls", {"path": "user"})
WRITE = ("write_file", {"path": "user/x.md", "content": "Two\nlines."})
BODIES = {
    "tools": asking("Store it.", tools=[{"type": "function", "function": {"name": "ls"}}]),
    "action": asking("Store it.", schema={"type": "object", "properties": {}}),
    "decision": asking("Decide.", schema={"type": "object", "properties": {}}, name="decision"),
}


def test_calls_are_spelled_as_readers_of_their_dialect_take_them_and_any_can_be_thought_in():
    texts, asked = set(), minds.AskForCalls([LS])
    for name, dialect in minds.DIALECTS.items():
        for each in (dialect, minds.thinking(dialect)):
            (choice,) = json.loads(minds.spell(asked, each, BODIES["tools"]).body)["choices"]
            if "native" not in name and "legacy" not in name:
                assert spoken_calls(choice["message"]["content"], TOOLS, ()).calls == (LS,), name
                assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")
                texts.add(choice["message"]["content"])
    assert len(texts) >= 2 * 14


def test_a_server_held_to_a_schema_answers_in_one_way_only():
    decision = {"scope": "user", "title": "x"}
    for dialect in minds.DIALECTS.values():
        for thought, form, content in (
            (minds.AskForCalls([LS, WRITE]), "action", {"action": "ls", "path": "user"}),
            (minds.Decide(decision), "decision", decision),
            (minds.Say("Saved."), "action", {"action": "done", "summary": "Saved."}),
        ):
            message = json.loads(minds.spell(thought, dialect, BODIES[form]).body)["choices"][0]["message"]
            assert message == {"role": "assistant", "content": json.dumps(content)}


# -- the perfect one -------------------------------------------------------------------------------------


def finish(run, turns=6):
    """Let a perfect model do the run; its last words, and the tools that it called."""
    for _ in range(turns):
        thought = minds.perfect(request_of(run.body()))
        if isinstance(thought, minds.Say):
            return thought.text, [tool for calls, _ in run.turns for tool, _ in calls]
        run.make(list(thought.calls))
    raise AssertionError("no end")


@pytest.mark.parametrize("form", FORMS)
def test_a_fact_that_a_file_holds_is_known_and_one_of_which_it_holds_a_line_is_written(form):
    for fact in (FACT, "First.\nSecond: more.", LONG):
        run = Run(form, fact, {"project/a.md": "dark\n", "user/known.md": f"---\nname: x\n---\n{fact}\n"})
        last, tools = finish(run)
        assert tools == ["grep", "read_file"]
        assert "user/known.md" in last
        assert set(run.memory) == {"project/a.md", "user/known.md"}
    run = Run(form, "First editor line.\nSecond.", {"user/half.md": "First editor line.\nThird.\n"})
    last, tools = finish(run)
    assert "Saved" in last
    assert tools == ["grep", "read_file", "write_file"]
    run = Run(form, FACT)
    run.make([("grep", {"pattern": "dark"})])
    run.offered = ()
    assert finish(run, turns=1)[0].startswith("Not saved")


def test_asked_for_a_decision_it_decides_and_without_a_fact_it_lists_as_doctor_asks():
    constrained = asking("Decide.", job(FACT), schema={}, name="decision")
    prompted = asking(f"File it: its scope is user\n\n{job(FACT)}")
    first, second = (minds.perfect(request_of(body)) for body in (constrained, prompted))
    assert first == second
    assert isinstance(first, minds.Decide)
    assert set(first.decision) == {"scope", "type"}
    assert first.decision["scope"] == "user"
    assert minds.perfect(request_of(asking("List the scopes."))) == minds.AskForCalls([LS])


def test_fences_are_found_in_order_and_none_inside_another():
    text = f"a\n{fenced('memory', '<<fact 1>>')}\n{fenced('result', '')}\n<<fact 2>>\nopen"
    assert list(minds.fences(text)) == [("memory", "<<fact 1>>"), ("result", "")]


# -- the random one --------------------------------------------------------------------------------------


def conforms(value, schema):
    """Whether a value is an instance of a schema, of the few keywords that requests use."""
    if "anyOf" in schema:
        return any(conforms(value, each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    match schema["type"]:
        case "object":
            fields, needed = schema["properties"], set(schema.get("required", ()))
            is_sound = isinstance(value, dict) and needed <= set(value) <= set(fields)
            return is_sound and all(conforms(each, fields[name]) for name, each in value.items())
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


def object_of(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


READ = {"type": "string", "enum": ["read_file"]}, {"type": "string", "minLength": 1, "maxLength": 30}
OFFSET, LIMIT = ({"type": "integer", "minimum": least, "maximum": 2000} for least in (0, 1))
FLAGS = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]}
READS = object_of("action", "path", action=READ[0], path=READ[1], offset=OFFSET, limit=LIMIT)
EDITS = object_of("action", "other", action={"const": "edit"}, other=FLAGS)
SCHEMA = {"anyOf": [READS | {"additionalProperties": False}, EDITS]}


@given(st.integers())
def test_under_a_schema_every_answer_conforms_to_it(seed):
    mind, request = minds.noise(seed, constrained=True), request_of(asking("Do it.", schema=SCHEMA))
    for thought in [mind(request) for _ in range(20)]:
        assert isinstance(thought, minds.Utter)
        assert conforms(json.loads(thought.content), SCHEMA), thought


def test_a_schema_that_it_cannot_honour_is_a_mistake_of_the_test():
    for schema in ({"type": "string", "pattern": "^a"}, {"type": "number"}, {}):
        with pytest.raises(ValueError, match="no instance"):
            minds.instance(schema, random.Random(1))


@given(st.integers(), st.sampled_from(sorted(minds.DIALECTS)), st.sampled_from(FORMS))
def test_noise_can_be_spelled_in_every_dialect(seed, dialect, form):
    answer = minds.through(minds.noise(seed), minds.DIALECTS[dialect])(request_of(Run(form, FACT).body()))
    assert json.loads(answer.body)["choices"]
