"""Scripted models: the spelling of their answers, a perfect model and a random one."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent import dialects, simulated_models
from kit.agent.spellings import TOOLS
from muniment.agent.text_calls import parse_text_calls
from muniment.testing.chat_server import ChatRequest

FACT = "The user prefers dark mode in all editors"


def make_fence(kind, text, token="5d1c0ffee5d1c0ff"):
    return f"<<{kind} {token}>>\n{text}\n<<end {token}>>"


def make_request(body):
    return ChatRequest("POST", "/v1/chat/completions", {}, json.dumps(body).encode(), body)


def make_body(*texts, schema=None, name="action", **more):
    """Return the body of a request."""
    roles = ("system", "user")[-len(texts) :]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    if schema is not None:
        form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
        return {"messages": messages, "response_format": form}
    return {"messages": messages, **more}


# -- how an answer is spelled ----------------------------------------------------------------------------

LS = ("ls", {"path": "user"})
WRITE = ("write_file", {"path": "user/x.md", "content": "Two\nlines."})
BODIES = {
    "tools": make_body("Store it.", tools=[{"type": "function", "function": {"name": "ls"}}]),
    "action": make_body("Store it.", schema={"type": "object", "properties": {}}),
    "decision": make_body("Decide.", schema={"type": "object", "properties": {}}, name="decision"),
}


def test_calls_of_every_dialect_are_read_back():
    texts, request = set(), dialects.RequestCalls([LS])
    for name, dialect in dialects.DIALECTS.items():
        for each in (dialect, dialects.add_thinking(dialect)):
            (choice,) = json.loads(dialects.encode_response(request, each, BODIES["tools"]).body)["choices"]
            if "native" not in name and "legacy" not in name:
                assert parse_text_calls(choice["message"]["content"], TOOLS, ()).calls == (LS,), name
                assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")
                texts.add(choice["message"]["content"])
    assert len(texts) >= 2 * 14


def test_server_with_a_schema_answers_in_one_way_only():
    decision = {"scope": "user", "title": "x"}
    for dialect in dialects.DIALECTS.values():
        for thought, form, content in (
            (dialects.RequestCalls([LS, WRITE]), "action", {"action": "ls", "path": "user"}),
            (dialects.Decide(decision), "decision", decision),
            (dialects.FinishWithText("Saved."), "action", {"action": "done", "summary": "Saved."}),
        ):
            message = json.loads(dialects.encode_response(thought, dialect, BODIES[form]).body)["choices"][0][
                "message"
            ]
            assert message == {"role": "assistant", "content": json.dumps(content)}


# -- the perfect model -------------------------------------------------------------------------------------


def test_perfect_model_decides_a_fact_and_lists_without_one():
    job = f"Scopes of this run: user, project.\n\nThe fact to remember:\n{make_fence('fact', FACT)}"
    constrained = make_body("Decide.", job, schema={}, name="decision")
    prompted = make_body(f"File it: its scope is user\n\n{job}")
    first, second = (simulated_models.remember_fact(make_request(body)) for body in (constrained, prompted))
    assert first == second
    assert isinstance(first, dialects.Decide)
    assert (set(first.decision), first.decision["scope"]) == ({"scope", "type"}, "user")
    assert simulated_models.remember_fact(
        make_request(make_body("List the scopes."))
    ) == dialects.RequestCalls([LS])


def test_fences_are_found_in_order_and_never_nested():
    text = f"a\n{make_fence('memory', '<<fact 1>>')}\n{make_fence('result', '')}\n<<fact 2>>\nopen"
    assert list(simulated_models.find_fences(text)) == [("memory", "<<fact 1>>"), ("result", "")]


# -- the random model --------------------------------------------------------------------------------------


def test_unsupported_schema_is_an_error_of_the_test():
    for schema in ({"type": "string", "pattern": "^a"}, {"type": "number"}, {}):
        with pytest.raises(ValueError, match="unsupported schema"):
            simulated_models.make_instance(schema, random.Random(1))


@given(st.integers(), st.sampled_from(sorted(dialects.DIALECTS)), st.sampled_from(sorted(BODIES)))
def test_noise_can_be_spelled_in_every_dialect(seed, dialect, form):
    answer = simulated_models.build_answerer(
        simulated_models.make_random_behavior(seed), dialects.DIALECTS[dialect]
    )(make_request(BODIES[form]))
    assert json.loads(answer.body)["choices"]
