"""Scripted models: how their thoughts are spelled, one that does its job from a request alone, one that does
anything."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.testing.raw_client import said
from kit.testing.wire import FORMS, Run, fenced, job
from muniment.testing import minds
from muniment.testing.chat_server import ChatRequest, ChatServer

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
NAMED = '{"name": "ls", "arguments": {"path": "user"}}'
PARAMETRISED = '{"name": "ls", "parameters": {"path": "user"}}'
BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
SEP = "<\uff5ctool\u2581sep\uff5c>"
END = "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>"
WORDS = {
    "fence": f"```json\n{NAMED}\n```",
    "prose and fence": f"Let me take the next step.\n\n```json\n{NAMED}\n```\n\nThis is what I would do.",
    "tag": f"<tool_call>\n{NAMED}\n</tool_call>",
    "unclosed tag": f"<tool_call>\n{NAMED}",
    "bare": NAMED,
    "bare, parameters": PARAMETRISED,
    "bare, tool and args": '{"tool": "ls", "args": {"path": "user"}}',
    "bare, function": f'{{"type": "function", "function": {NAMED}}}',
    "list": f"[{NAMED}]",
    "python tag": f"<|python_tag|>{PARAMETRISED}",
    "function tag": '<function=ls>{"path": "user"}</function>',
    "TOOL_CALLS": f"[TOOL_CALLS] [{NAMED}]",
    "xml": "<tool_call>\n<function=ls>\n<parameter=path>\nuser\n</parameter>\n</function>\n</tool_call>",
    "deepseek": f'{BEGIN}function{SEP}ls\n```json\n{{"path": "user"}}\n```{END}',
    "deepseek 3.1": f'{BEGIN}ls{SEP}{{"path": "user"}}{END}',
}
BODIES = {
    "tools": asking("Store it.", tools=[{"type": "function", "function": {"name": "ls"}}]),
    "action": asking("Store it.", schema={"type": "object", "properties": {}}),
    "decision": asking("Decide.", schema={"type": "object", "properties": {}}, name="decision"),
}


def test_calls_are_spelled_in_the_words_of_each_dialect_and_any_can_be_thought_in():
    native = {name for name in minds.DIALECTS if name.startswith(("native", "legacy", "thinking"))}
    assert set(minds.DIALECTS) == native | set(WORDS)
    for dialect, content in WORDS.items():
        answer = json.loads(
            minds.spell(minds.AskForCalls([LS]), minds.DIALECTS[dialect], BODIES["tools"]).body
        )
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": content}, dialect
        assert choice["finish_reason"] == "stop"
    thought = json.loads(
        minds.spell(minds.AskForCalls([LS]), minds.thinking(minds.DIALECTS["xml"]), BODIES["tools"]).body
    )
    assert thought["choices"][0]["message"]["content"].endswith(WORDS["xml"])


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


@pytest.mark.sweep(3)
@pytest.mark.parametrize("dialect", minds.DIALECTS)
def test_a_mind_speaks_its_dialect_through_a_server(dialect):
    with ChatServer(minds.through(minds.perfect, minds.DIALECTS[dialect])) as server:
        message, _ = said(server, Run("tools", FACT).body())
    assert "grep" in json.dumps(message)
    assert "prefers" in json.dumps(message)


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


SCHEMA = {
    "anyOf": [
        object_of(
            "action",
            "path",
            action={"type": "string", "enum": ["read_file"]},
            path={"type": "string", "maxLength": 30},
            offset={"type": "integer", "minimum": 0, "default": 0},
            limit={"type": "integer", "minimum": 1, "maximum": 2000},
        )
        | {"additionalProperties": False},
        object_of(
            "action",
            "old_string",
            "other",
            action={"const": "edit"},
            old_string={"type": "string", "minLength": 1, "maxLength": 1900},
            replace_all={"type": "boolean"},
            other={"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]},
        ),
    ]
}


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
