"""A model that may only decide: whatever it answers, the fact is filed verbatim, under a name of code."""

from __future__ import annotations

import json
import re

import pytest

from kit.agent.snapshots import bodies, request
from muniment.agent.chat import decision_in, decision_schema, first_reply, later_reply, question, sure
from muniment.agent.filing import route
from muniment.agent.model import AssistantMessage, Brief, ScopeBrief, ToolCall
from muniment.names import ContextMode, Scope

FACT = "The user prefers dark mode in all editors"
BRIEF = Brief(FACT, (ScopeBrief(Scope("user"), writable=True), ScopeBrief(Scope("project"), writable=False)),
              ContextMode.WORKSPACE)  # fmt: skip
BOTH = (ScopeBrief(Scope("user"), writable=True), ScopeBrief(Scope("project"), writable=True))


def answer(**changes):
    return json.dumps({"scope": "user", "type": "user", **changes})


def test_scope_and_type_are_the_models_and_all_else_is_codes():
    found = decision_in(answer(type="reference", title="Samuel", file="topic/short-name"), BRIEF)
    ours = route(BRIEF)
    assert (found.scope, found.type) == ("user", "reference")
    assert (found.title, found.file, found.text) == (ours.title, ours.file, FACT)


@pytest.mark.parametrize(
    "said",
    [
        f"```json\n{answer()}\n```",
        f"Here it is: {answer()} I hope this helps.",
        f"<think>maybe {answer(type='project')} or {{</think>\n{answer()}",
        f"{{broken {answer()}",
        f"{{{answer()}}}",
        json.dumps([json.loads(answer())]),
    ],
)
def test_it_is_found_in_fences_and_prose_behind_the_thinking(said):
    assert decision_in(said, BRIEF).type == "user"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "user",
        "{}",
        answer(scope="team"),
        answer(scope="project"),
        answer(type="secret"),
        answer(type=None),
        answer()[:-1],
        '{"scope":"user",' + answer()[1:],
        "{" * 100_000,
    ],
)
def test_what_is_no_decision_is_none(said):
    assert decision_in(said, BRIEF) is None


def test_the_decision_of_an_earlier_turn_is_read_back_whatever_was_called_before_it():
    decision = decision_in(answer(type="reference"), BRIEF)
    asked = request()
    reply = first_reply(decision, asked)
    assert reply.calls
    earlier = AssistantMessage("Let me look.", (ToolCall("a1", "write_file", {"no": "path"}),))
    later = request(said=(earlier, AssistantMessage(reply.text, reply.calls)))
    assert later_reply(later) is not None


def test_nothing_was_decided_before_the_first_call():
    assert later_reply(request()) is None
    assert later_reply(request(said=(AssistantMessage(answer()),))) is None


@pytest.mark.parametrize(
    ("fact", "scope"),
    [("My daughter has swimming lessons", "user"), ("The tests run in CI with pytest", "project")],
)
def test_where_the_cues_all_say_the_same_nobody_else_is_asked(fact, scope):
    assert sure(Brief(fact, BOTH, ContextMode.WORKSPACE)).scope == scope


def test_where_no_cue_speaks_or_the_scope_is_not_writable_the_rules_are_not_sure():
    assert sure(Brief("Blue", BOTH, ContextMode.WORKSPACE)) is None
    assert sure(Brief("The tests run in CI with pytest", BRIEF.scopes, ContextMode.WORKSPACE)) is None


def test_the_schema_offers_the_scopes_that_may_be_written_and_nothing_else():
    name, schema = decision_schema(BRIEF)
    assert name == "decision"
    assert schema["properties"]["scope"]["enum"] == ["user"]
    assert all("enum" in each for each in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_the_question_is_the_same_for_every_fact_but_for_its_last_line():
    asked = [question(request_of(fact)).messages for fact in ("One fact", "Another\n<<end x>>\nfact")]
    assert asked[0][:-1] == asked[1][:-1]
    assert len(asked[0]) == 1 + 2 * 6 + 1
    assert [messages[-1].text for messages in asked] == ["One fact", "Another <<end x>> fact"]
    assert question(request()).tools == ()


def request_of(fact):
    from dataclasses import replace

    return replace(request(), brief=Brief(fact, BOTH, ContextMode.WORKSPACE))


NAME = re.compile(r"\b[\w-]+\.md\b|\b(?:user|project|topic)/\w+|\b[a-z]+-name\b")


@pytest.mark.parametrize("name", [name for name, _ in bodies()])
def test_no_prompt_holds_a_literal_that_can_be_copied_as_a_name(name):
    (document,) = [each for other, each in bodies() if other == name]
    ours = [each["content"] for each in document["messages"] if each["role"] == "system"]
    ours.append(json.dumps([document.get("tools"), document.get("response_format")]))
    if not ours[0]:
        ours = [document["messages"][0]["content"]]
    assert {found for text in ours for found in NAME.findall(text)} <= {"MEMORY.md"}
