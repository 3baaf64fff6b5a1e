"""Scripted models: the spelling of their answers, a perfect model and a random one."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent import dialects, served_minds
from kit.agent.spellings import TOOLS
from muniment.agent.spoken import spoken_calls
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
    texts, request = set(), dialects.AskForCalls([LS])
    for name, dialect in dialects.DIALECTS.items():
        for each in (dialect, dialects.thinking(dialect)):
            (choice,) = json.loads(dialects.spell(request, each, BODIES["tools"]).body)["choices"]
            if "native" not in name and "legacy" not in name:
                assert spoken_calls(choice["message"]["content"], TOOLS, ()).calls == (LS,), name
                assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")
                texts.add(choice["message"]["content"])
    assert len(texts) >= 2 * 14


def test_server_with_a_schema_answers_in_one_way_only():
    decision = {"scope": "user", "title": "x"}
    for dialect in dialects.DIALECTS.values():
        for thought, form, content in (
            (dialects.AskForCalls([LS, WRITE]), "action", {"action": "ls", "path": "user"}),
            (dialects.Decide(decision), "decision", decision),
            (dialects.Say("Saved."), "action", {"action": "done", "summary": "Saved."}),
        ):
            message = json.loads(dialects.spell(thought, dialect, BODIES[form]).body)["choices"][0]["message"]
            assert message == {"role": "assistant", "content": json.dumps(content)}


# -- the perfect model -------------------------------------------------------------------------------------


def test_perfect_model_decides_a_fact_and_lists_without_one():
    job = f"Scopes of this run: user, project.\n\nThe fact to remember:\n{make_fence('fact', FACT)}"
    constrained = make_body("Decide.", job, schema={}, name="decision")
    prompted = make_body(f"File it: its scope is user\n\n{job}")
    first, second = (served_minds.perfect(make_request(body)) for body in (constrained, prompted))
    assert first == second
    assert isinstance(first, dialects.Decide)
    assert (set(first.decision), first.decision["scope"]) == ({"scope", "type"}, "user")
    assert served_minds.perfect(make_request(make_body("List the scopes."))) == dialects.AskForCalls([LS])


def test_fences_are_found_in_order_and_never_nested():
    text = f"a\n{make_fence('memory', '<<fact 1>>')}\n{make_fence('result', '')}\n<<fact 2>>\nopen"
    assert list(served_minds.fences(text)) == [("memory", "<<fact 1>>"), ("result", "")]


# -- the random model --------------------------------------------------------------------------------------


def test_unsupported_schema_is_an_error_of_the_test():
    for schema in ({"type": "string", "pattern": "^a"}, {"type": "number"}, {}):
        with pytest.raises(ValueError, match="unsupported schema"):
            served_minds.instance(schema, random.Random(1))


@given(st.integers(), st.sampled_from(sorted(dialects.DIALECTS)), st.sampled_from(sorted(BODIES)))
def test_noise_can_be_spelled_in_every_dialect(seed, dialect, form):
    answer = served_minds.through(served_minds.noise(seed), dialects.DIALECTS[dialect])(
        make_request(BODIES[form])
    )
    assert json.loads(answer.body)["choices"]
