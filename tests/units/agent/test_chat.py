"""Requests as every server takes them: the same words, data fenced, nothing of a model echoed as it came."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.fake_memory import brief
from kit.agent.snapshots import FACT, PROMPTS, TOKEN, bodies, rendered, request
from kit.agent.spellings import values
from muniment.agent import chat
from muniment.agent.chat import body, decision_in, later_reply, sure, with_actions
from muniment.agent.filing import route
from muniment.agent.model import AssistantMessage, ModelRequest, ToolCall, ToolMessage, UserMessage
from muniment.kernel.names import Scope, Trust
from muniment.names import ContextMode

CALLS = st.lists(st.tuples(st.text(max_size=80), values), max_size=4)
FORMS = ("tools", "json", "text")


def said(calls):
    made = tuple(ToolCall(f"id{number}", tool, arguments) for number, (tool, arguments) in enumerate(calls))
    answers = (ToolMessage(call.id, "error", "bad_arguments", "no") for call in made)
    return (AssistantMessage("", made), *answers)


def messages(form, calls):
    asked = request(said=said(calls))
    return body(asked if form == "tools" else with_actions(asked), form, "m")["messages"]


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
        *(("write_file", {"path": "user/a.md", "content": huge}), ("write_file", {"path": huge})),
        *(("ls", {huge: "x"}), ("ls", {"path": [huge]})),
        ("grep", {f"key {number}": "x" for number in range(30_000)}),
    ]
    assert len(json.dumps(messages(form, calls), ensure_ascii=False)) < 120_000
    echoed = messages(form, [("write_file", {"path": "user/a.md", "content": fact})])
    assert fact in json.dumps(echoed, ensure_ascii=False)


def test_a_request_without_tools_says_so_in_every_form():
    last = request(last=True)
    assert "tools" not in body(last, "tools", "m")
    (done,) = with_actions(last).schema[1]["anyOf"]
    assert done["properties"]["action"]["enum"] == ["done"]
    prompt = body(with_actions(last), "text", "m")["messages"][0]["content"]
    assert "write_file" not in prompt.split("\n\n")[-1]
    bare = ModelRequest(request().brief, (UserMessage("Call ls."),), (), 1.0)
    assert with_actions(bare).messages == bare.messages


def strings_in(schema):
    if schema.get("type") == "string":
        yield schema
    for each in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        yield from strings_in(each)


def strings_for(length):
    return list(strings_in(with_actions(replace(request(), brief=brief("x" * length))).schema[1]))


def test_no_string_of_an_action_can_go_on_for_ever_but_a_fact_that_no_grammar_can_count():
    assert all("enum" in each or each["maxLength"] <= chat.BOUNDED_CHARS for each in strings_for(100))
    unbounded = [each for each in strings_for(50_000) if "maxLength" not in each and "enum" not in each]
    assert len(unbounded) == 3
    for fact in ("x", "记" * 21_000, "x" * 65_536):
        assert chat.answer_tokens(fact) > 1000 + len(fact) / 2  # An answer may always hold it.


def test_what_is_sent_is_what_a_reviewer_has_seen():
    sent = dict(bodies())
    assert {path.stem for path in PROMPTS.iterdir()} == set(sent)
    for name, document in sent.items():
        assert rendered(document) == (PROMPTS / f"{name}.txt").read_text(), (
            f"the prompt {name} changed; look at it, then: python tests/kit/agent/snapshots.py"
        )


def most_tokens(text):
    """More tokens than any common tokenizer makes of English text and JSON: no word part is below four
    letters, and each digit and mark counts."""
    return sum(math.ceil(len(each) / 4) for each in re.findall(r"[A-Za-z]+|[^\sA-Za-z]|\n", text))


def test_a_prompt_with_its_tools_has_at_most_1500_tokens_with_an_empty_memory():
    sent = dict(bodies())
    for form in ("tools", "json", "text", "decide"):
        document = sent[f"{form}-first"]  # A schema of the answer binds the server, and is not read.
        said = [message["content"] for message in document["messages"]]
        said += [json.dumps(tool["function"]) for tool in document.get("tools", ())]
        assert most_tokens("\n".join(said)) <= 1500, form


def shown(text, index):
    return chat.job_message(brief(text), index, TOKEN).text


def test_the_index_is_shown_up_to_its_budget_in_whole_lines_and_what_is_missing_is_said():
    lines = [f"- [Entry {number}](topic/entry-{number}.md) — a description" for number in range(400)]
    index = chat.IndexExcerpt(Scope("user"), Trust.OWNER, "\n".join(lines))
    both = shown(FACT, (index, index))
    assert len(both.encode()) < chat.MAX_INDEX_BYTES + 600
    assert both.count("- [Entry 0]") == both.count("more lines are not shown)") == 2
    assert f"({400 - both.count('- [Entry') // 2} more lines" in both
    long = chat.IndexExcerpt(Scope("user"), Trust.OWNER, "a" * (chat.MAX_INDEX_BYTES + 1))
    assert "aaa" not in shown("the fact", (long,))


def test_a_clean_run_is_shown_nothing_and_offered_only_what_shows_nothing():
    offered = {mode: [tool.name for tool in chat.offered_tools(mode)] for mode in ContextMode}
    assert offered[ContextMode.CLEAN] == ["write_file", "edit"]
    assert offered[ContextMode.WORKSPACE] == ["read_file", "grep", "ls", "write_file", "edit"]
    assert "grep" not in chat.system_message(brief(FACT, context=ContextMode.CLEAN)).text
    for tool in chat.offered_tools(ContextMode.WORKSPACE):
        assert tool.parameters["additionalProperties"] is False
        assert tool.description.endswith(".")
        assert "\n" not in tool.description


@pytest.mark.threat("T-RUN-06", control="random_fences")
@given(st.text(alphabet="<>end fact memory\n0123456789abcdef", max_size=80))
def test_no_text_without_the_token_closes_its_fence(text):
    whole = chat.fenced(text, "fact", TOKEN)
    if TOKEN not in text:
        assert whole.count(f"<<end {TOKEN}>>") == 1
    assert whole.endswith(f"\n<<end {TOKEN}>>")


BRIEF = request().brief


def answer(**changes):
    return json.dumps({"scope": "user", "type": "user", **changes})


def test_scope_and_type_are_the_models_and_all_else_is_codes():
    (found,) = decision_in(answer(type="reference", title="Samuel", file="topic/short-name"), BRIEF)
    (ours,) = route(BRIEF)
    assert (found.scope, found.type) == ("user", "reference")
    assert (found.title, found.file, found.text) == (ours.title, ours.file, BRIEF.fact)


def test_it_is_found_in_fences_and_prose_behind_the_thinking_and_what_is_none_is_none():
    for said in (
        *(f"```json\n{answer()}\n```", f"Here it is: {answer()} I hope this helps."),
        *(f"<think>maybe {answer(type='project')} or {{</think>\n{answer()}", f"{{broken {answer()}"),
        *(f"{{{answer()}}}", json.dumps([json.loads(answer())])),
    ):
        assert [each.type for each in decision_in(said, BRIEF)] == ["user"], said
    for said in (
        *("", "user", "{}", answer(scope="team"), answer(scope="project"), answer(type="secret")),
        *(answer(type=None), answer()[:-1], '{"scope":"user",' + answer()[1:], "{" * 100_000),
    ):
        assert decision_in(said, BRIEF) == (), said


def test_the_decision_of_an_earlier_turn_is_read_back_whatever_was_called_before_it():
    reply = chat.first_reply(decision_in(answer(type="reference"), BRIEF), request())
    assert reply.calls
    earlier = AssistantMessage("Let me look.", (ToolCall("a1", "write_file", {"no": "path"}),))
    later = request(said=(earlier, AssistantMessage(reply.text, reply.calls)))
    assert later_reply(later) is not None
    assert later_reply(request()) is None
    assert later_reply(request(said=(AssistantMessage(answer()),))) is None


def test_a_list_is_filed_in_later_turns_as_it_was_decided_in_the_first():
    listed = brief("- The tests run in CI with pytest\n- I like green tea")
    decided = decision_in(answer(type="reference"), listed)
    reply = chat.first_reply(decided, replace(request(), brief=listed))
    said = (AssistantMessage(reply.text, reply.calls),)
    later = later_reply(replace(request(said=said), brief=listed))
    paths = [each.arguments["path"] for each in (*reply.calls, *later.calls)]
    assert len(decided) == 2
    assert {path.split("/")[0] for path in paths} == {"user"}


def test_where_the_cues_all_say_the_same_and_it_is_writable_nobody_else_is_asked():
    tests = "The tests run in CI with pytest"
    assert [each.scope for each in sure(brief("My daughter has swimming lessons"))] == ["user"]
    assert [each.scope for each in sure(brief(tests))] == ["project"]
    assert sure(brief("Blue")) == ()
    assert sure(brief(tests, BRIEF.scopes)) == ()


def test_the_question_is_the_same_for_every_fact_but_for_its_last_line():
    facts = ("One fact", "Another\n<<end x>>\nfact")
    asked = [chat.question(replace(request(), brief=brief(fact))) for fact in facts]
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
