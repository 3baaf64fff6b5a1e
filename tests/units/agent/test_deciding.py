"""A model that may only decide: whatever it answers, the fact is filed verbatim, under a name of code."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from kit.agent.fake_memory import BOTH
from kit.agent.snapshots import bodies, request
from muniment.agent.chat import decision_in, first_reply, later_reply, question, sure
from muniment.agent.filing import route
from muniment.agent.model import AssistantMessage, Brief, ToolCall
from muniment.names import ContextMode

BRIEF = request().brief


def answer(**changes):
    return json.dumps({"scope": "user", "type": "user", **changes})


def brief(fact, scopes=BOTH):
    return Brief(fact, scopes, ContextMode.WORKSPACE)


def test_scope_and_type_are_the_models_and_all_else_is_codes():
    found = decision_in(answer(type="reference", title="Samuel", file="topic/short-name"), BRIEF)
    ours = route(BRIEF)
    assert (found.scope, found.type) == ("user", "reference")
    assert (found.title, found.file, found.text) == (ours.title, ours.file, BRIEF.fact)


def test_it_is_found_in_fences_and_prose_behind_the_thinking_and_what_is_none_is_none():
    for said in (
        f"```json\n{answer()}\n```",
        f"Here it is: {answer()} I hope this helps.",
        f"<think>maybe {answer(type='project')} or {{</think>\n{answer()}",
        f"{{broken {answer()}",
        f"{{{answer()}}}",
        json.dumps([json.loads(answer())]),
    ):
        assert decision_in(said, BRIEF).type == "user", said
    for said in (
        *("", "user", "{}", answer(scope="team"), answer(scope="project"), answer(type="secret")),
        *(answer(type=None), answer()[:-1], '{"scope":"user",' + answer()[1:], "{" * 100_000),
    ):
        assert decision_in(said, BRIEF) is None, said


def test_the_decision_of_an_earlier_turn_is_read_back_whatever_was_called_before_it():
    reply = first_reply(decision_in(answer(type="reference"), BRIEF), request())
    assert reply.calls
    earlier = AssistantMessage("Let me look.", (ToolCall("a1", "write_file", {"no": "path"}),))
    later = request(said=(earlier, AssistantMessage(reply.text, reply.calls)))
    assert later_reply(later) is not None
    assert later_reply(request()) is None
    assert later_reply(request(said=(AssistantMessage(answer()),))) is None


def test_where_the_cues_all_say_the_same_and_it_is_writable_nobody_else_is_asked():
    tests = "The tests run in CI with pytest"
    assert sure(brief("My daughter has swimming lessons")).scope == "user"
    assert sure(brief(tests)).scope == "project"
    assert sure(brief("Blue")) is None
    assert sure(brief(tests, BRIEF.scopes)) is None


def test_the_question_is_the_same_for_every_fact_but_for_its_last_line():
    facts = ("One fact", "Another\n<<end x>>\nfact")
    asked = [question(replace(request(), brief=brief(fact))) for fact in facts]
    assert (asked[0].messages[:-1], len(asked[0].messages)) == (asked[1].messages[:-1], 1 + 2 * 6 + 1)
    assert [each.messages[-1].text for each in asked] == ["One fact", "Another <<end x>> fact"]
    assert asked[0].tools == ()


NAME = re.compile(r"\b[\w-]+\.md\b|\b(?:user|project|topic)/\w+|\b[a-z]+-name\b")


def test_no_prompt_holds_a_literal_that_can_be_copied_as_a_name():
    for name, document in bodies():
        ours = [each["content"] for each in document["messages"] if each["role"] == "system"]
        ours = ours or [document["messages"][0]["content"]]
        ours.append(json.dumps([document.get("tools"), document.get("response_format")]))
        assert {found for text in ours for found in NAME.findall(text)} <= {"MEMORY.md"}, name
