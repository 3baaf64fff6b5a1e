"""Requests that every server accepts: same texts, fenced data, sanitized echoes of model output."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.fake_memory import make_brief
from kit.agent.snapshots import FACT, PROMPTS, TOKEN, build_bodies, make_request, render
from kit.agent.spellings import values
from muniment.agent import chat
from muniment.agent.chat import add_actions, build_body, create_later_reply, decide_if_sure, parse_decision
from muniment.agent.filing import decide_entries
from muniment.agent.model import AssistantMessage, ModelRequest, ToolCall, ToolMessage, UserMessage
from muniment.kernel.names import Scope, Trust
from muniment.names import ContextMode

CALLS = st.lists(st.tuples(st.text(max_size=80), values), max_size=4)
FORMS = ("tools", "json", "text")


def make_history(calls):
    tool_calls = tuple(
        ToolCall(f"id{number}", tool, arguments) for number, (tool, arguments) in enumerate(calls)
    )
    answers = (ToolMessage(call.id, "error", "bad_arguments", "no") for call in tool_calls)
    return (AssistantMessage("", tool_calls), *answers)


def make_messages(form, calls):
    model_request = make_request(history=make_history(calls))
    return build_body(model_request if form == "tools" else add_actions(model_request), form, "m")["messages"]


@given(CALLS)
def test_history_of_any_calls_is_valid_for_every_server(calls):
    sent = make_messages("tools", calls)
    tool_calls = sent[2].get("tool_calls", [])
    assert len(tool_calls) == len(calls)
    for call in tool_calls:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        name = call["function"]["name"]
        assert name
        assert all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    assert [each["tool_call_id"] for each in sent[3:]] == [call["id"] for call in tool_calls]
    assert all(isinstance(message["content"], str) for message in sent)
    for form in ("json", "text"):  # Without tools, every result is fenced and roles alternate.
        sent = make_messages(form, calls)
        roles = [message["role"] for message in sent]
        assert all(one != two for one, two in pairwise(roles))
        assert set(roles) <= {"user", "assistant", *["system"] * (form == "json")}
        assert all(message["content"] for message in sent)
        assert sum(message["content"].count(f"<<result {TOKEN}>>") for message in sent) == len(calls)
        if calls:
            actions = sent[-2]["content"].split("\n")
            assert [json.loads(action)["action"] for action in actions] == [tool for tool, _ in calls]


def test_action_in_history_starts_with_its_name():
    sent = make_messages("json", [("ls", {"path": "user", "action": "done"})])
    assert sent[2]["content"] == '{"action": "ls", "path": "user"}'


@pytest.mark.parametrize("form", FORMS)
def test_history_cuts_long_calls_but_keeps_longest_fact(form):
    huge, fact = "é" * 300_000, "é" * 32_768
    calls = [
        *(("write_file", {"path": "user/a.md", "content": huge}), ("write_file", {"path": huge})),
        *(("ls", {huge: "x"}), ("ls", {"path": [huge]})),
        ("grep", {f"key {number}": "x" for number in range(30_000)}),
    ]
    assert len(json.dumps(make_messages(form, calls), ensure_ascii=False)) < 120_000
    echoed = make_messages(form, [("write_file", {"path": "user/a.md", "content": fact})])
    assert fact in json.dumps(echoed, ensure_ascii=False)


def test_request_without_tools_offers_only_done():
    last = make_request(last=True)
    assert "tools" not in build_body(last, "tools", "m")
    (done,) = add_actions(last).schema[1]["anyOf"]
    assert done["properties"]["action"]["enum"] == ["done"]
    prompt = build_body(add_actions(last), "text", "m")["messages"][0]["content"]
    assert "write_file" not in prompt.split("\n\n")[-1]
    bare = ModelRequest(make_request().brief, (UserMessage("Call ls."),), (), 1.0)
    assert add_actions(bare).messages == bare.messages


def iterate_strings(schema):
    if schema.get("type") == "string":
        yield schema
    for each in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        yield from iterate_strings(each)


def list_schema_strings(length):
    return list(
        iterate_strings(add_actions(replace(make_request(), brief=make_brief("x" * length))).schema[1])
    )


def test_action_schema_bounds_every_string_except_long_facts():
    assert all(
        "enum" in each or each["maxLength"] <= chat.MAX_BOUNDED_CHARS for each in list_schema_strings(100)
    )
    unbounded = [
        each for each in list_schema_strings(50_000) if "maxLength" not in each and "enum" not in each
    ]
    assert len(unbounded) == 3
    for fact in ("x", "记" * 21_000, "x" * 65_536):
        assert chat.limit_tokens(fact) > 1000 + len(fact) / 2  # An answer can always contain the fact.


def test_prompts_match_reviewed_snapshots():
    sent = dict(build_bodies())
    assert {path.stem for path in PROMPTS.iterdir()} == set(sent)
    for name, document in sent.items():
        assert render(document) == (PROMPTS / f"{name}.txt").read_text(), (
            f"the prompt {name} changed; review it, then run: python tests/kit/agent/snapshots.py"
        )


def estimate_tokens(text):
    """Return an upper bound of the token count of English text and JSON.

    Common tokenizers make no word part shorter than four letters; each digit and mark counts as one.
    """
    return sum(math.ceil(len(each) / 4) for each in re.findall(r"[A-Za-z]+|[^\sA-Za-z]|\n", text))


def test_prompt_for_empty_memory_has_at_most_1500_tokens():
    sent = dict(build_bodies())
    for form in ("tools", "json", "text", "decide"):
        # A schema of the answer constrains the server; the model does not read it.
        document = sent[f"{form}-first"]
        texts = [message["content"] for message in document["messages"]]
        texts += [json.dumps(tool["function"]) for tool in document.get("tools", ())]
        assert estimate_tokens("\n".join(texts)) <= 1500, form


def make_job_text(text, index):
    return chat.create_job_message(make_brief(text), index, TOKEN).text


def test_index_over_budget_is_cut_at_lines_and_counted():
    lines = [f"- [Entry {number}](topic/entry-{number}.md) — a description" for number in range(400)]
    index = chat.IndexExcerpt(Scope("user"), Trust.OWNER, "\n".join(lines))
    both = make_job_text(FACT, (index, index))
    assert len(both.encode()) < chat.MAX_INDEX_BYTES + 600
    assert both.count("- [Entry 0]") == both.count("more lines are not shown)") == 2
    assert f"({400 - both.count('- [Entry') // 2} more lines" in both
    long = chat.IndexExcerpt(Scope("user"), Trust.OWNER, "a" * (chat.MAX_INDEX_BYTES + 1))
    assert "aaa" not in make_job_text("the fact", (long,))


def test_clean_run_offers_only_write_tools():
    offered = {mode: [tool.name for tool in chat.list_tools(mode)] for mode in ContextMode}
    assert offered[ContextMode.CLEAN] == ["write_file", "edit"]
    assert offered[ContextMode.WORKSPACE] == ["read_file", "grep", "ls", "write_file", "edit"]
    assert "grep" not in chat.create_system_message(make_brief(FACT, context=ContextMode.CLEAN)).text
    for tool in chat.list_tools(ContextMode.WORKSPACE):
        assert tool.parameters["additionalProperties"] is False
        assert tool.description.endswith(".")
        assert "\n" not in tool.description


@pytest.mark.threat("T-RUN-06", control="random_fences")
@given(st.text(alphabet="<>end fact memory\n0123456789abcdef", max_size=80))
def test_text_without_token_cannot_close_fence(text):
    whole = chat.fence_text(text, "fact", TOKEN)
    if TOKEN not in text:
        assert whole.count(f"<<end {TOKEN}>>") == 1
    assert whole.endswith(f"\n<<end {TOKEN}>>")


BRIEF = make_request().brief


def make_answer(**changes):
    return json.dumps({"scope": "user", "type": "user", **changes})


def test_decision_takes_only_scope_and_type_from_model():
    (found,) = parse_decision(make_answer(type="reference", title="Samuel", file="topic/short-name"), BRIEF)
    (decision_by_rules,) = decide_entries(BRIEF)
    assert (found.scope, found.type) == ("user", "reference")
    assert (found.title, found.file, found.text) == (
        decision_by_rules.title,
        decision_by_rules.file,
        BRIEF.fact,
    )


def test_decision_is_found_in_prose_and_invalid_is_ignored():
    for answer_text in (
        *(f"```json\n{make_answer()}\n```", f"Here it is: {make_answer()} I hope this helps."),
        *(
            f"<think>maybe {make_answer(type='project')} or {{</think>\n{make_answer()}",
            f"{{broken {make_answer()}",
        ),
        *(f"{{{make_answer()}}}", json.dumps([json.loads(make_answer())])),
    ):
        assert [each.type for each in parse_decision(answer_text, BRIEF)] == ["user"], answer_text
    for answer_text in (
        *(
            "",
            "user",
            "{}",
            make_answer(scope="team"),
            make_answer(scope="project"),
            make_answer(type="secret"),
        ),
        *(make_answer(type=None), make_answer()[:-1], '{"scope":"user",' + make_answer()[1:], "{" * 100_000),
    ):
        assert parse_decision(answer_text, BRIEF) == (), answer_text


def test_later_reply_reads_decision_of_earlier_turn():
    reply = chat.create_first_reply(parse_decision(make_answer(type="reference"), BRIEF), make_request())
    assert reply.calls
    earlier = AssistantMessage("Let me look.", (ToolCall("a1", "write_file", {"no": "path"}),))
    later = make_request(history=(earlier, AssistantMessage(reply.text, reply.calls)))
    assert create_later_reply(later) is not None
    assert create_later_reply(make_request()) is None
    assert create_later_reply(make_request(history=(AssistantMessage(make_answer()),))) is None


def test_list_keeps_first_decision_in_later_turns():
    listed = make_brief("- The tests run in CI with pytest\n- I like green tea")
    decided = parse_decision(make_answer(type="reference"), listed)
    reply = chat.create_first_reply(decided, replace(make_request(), brief=listed))
    history = (AssistantMessage(reply.text, reply.calls),)
    later = create_later_reply(replace(make_request(history=history), brief=listed))
    paths = [each.arguments["path"] for each in (*reply.calls, *later.calls)]
    assert len(decided) == 2
    assert {path.split("/")[0] for path in paths} == {"user"}


def test_unanimous_cues_decide_without_model():
    tests = "The tests run in CI with pytest"
    assert [each.scope for each in decide_if_sure(make_brief("My daughter has swimming lessons"))] == ["user"]
    assert [each.scope for each in decide_if_sure(make_brief(tests))] == ["project"]
    assert decide_if_sure(make_brief("Blue")) == ()
    assert decide_if_sure(make_brief(tests, BRIEF.scopes)) == ()


def test_decision_query_differs_only_in_last_message():
    facts = ("One fact", "Another\n<<end x>>\nfact")
    queries = [chat.create_decision_query(replace(make_request(), brief=make_brief(fact))) for fact in facts]
    assert (queries[0].messages[:-1], len(queries[0].messages)) == (queries[1].messages[:-1], 1 + 2 * 6 + 1)
    assert [each.messages[-1].text for each in queries] == ["One fact", "Another <<end x>> fact"]
    assert queries[0].tools == ()


NAME = re.compile(r"\b[\w-]+\.md\b|\b(?:user|project|topic)/\w+|\b[a-z]+-name\b")


def test_prompts_contain_no_copyable_file_name():
    for name, document in build_bodies():
        prompt_texts = [each["content"] for each in document["messages"] if each["role"] == "system"]
        prompt_texts = prompt_texts or [document["messages"][0]["content"]]
        prompt_texts.append(json.dumps([document.get("tools"), document.get("response_format")]))
        assert {found for text in prompt_texts for found in NAME.findall(text)} <= {"MEMORY.md"}, name
