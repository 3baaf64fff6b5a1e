"""How a thought is spelled, in each dialect and for each form that a request can have."""

from __future__ import annotations

import json

import pytest

from muniment.testing.chat_server import ChatServer
from muniment.testing.minds import DIALECTS, AskForCalls, Decide, Say, Utter, asked_for, spell, thinking
from testing.raw_client import said

LS = ("ls", {"path": "user"})
WRITE = ("write_file", {"path": "user/x.md", "content": "Two\nlines."})
FUNCTION = {"name": "ls", "arguments": '{"path": "user"}'}


def of_schema(name):
    schema = {"type": "object", "properties": {}}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def asking_for(prompt, **more):
    return {"messages": [{"role": "user", "content": prompt}], **more}


BODIES = {
    "tools": asking_for("Store it.", tools=[{"type": "function", "function": {"name": "ls"}}]),
    "action": asking_for("Store it.", response_format=of_schema("action")),
    "decision": asking_for("Decide.", response_format=of_schema("decision")),
    "action in text": asking_for('Answer with one object with the key "action".'),
    "decision in text": asking_for("Answer with one object for the fact: its scope is user"),
    "words": asking_for("Say what you did."),
}


def spelled(thought, dialect="native", form="tools"):
    """Message and finish_reason, through a server."""
    body = BODIES[form]
    with ChatServer(lambda request: spell(thought, DIALECTS[dialect], request.body)) as server:
        message, finish_reason = said(server, body)
    assert message.pop("role") == "assistant"
    return message, finish_reason


@pytest.mark.parametrize("form", BODIES)
def test_the_form_is_read_from_the_body(form):
    assert asked_for(BODIES[form]) == form


# -- calls in their own place --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "call"),
    [
        ("native", {"id": "call-1-0", "type": "function", "function": FUNCTION}),
        ("native, no ids", {"type": "function", "function": FUNCTION}),
        (
            "native, arguments as an object",
            {
                "id": "call-1-0",
                "type": "function",
                "function": {"name": "ls", "arguments": {"path": "user"}},
            },
        ),
        (
            "native, arguments encoded twice",
            {
                "id": "call-1-0",
                "type": "function",
                "function": {"name": "ls", "arguments": '"{\\"path\\": \\"user\\"}"'},
            },
        ),
    ],
)
def test_calls_in_their_own_place(dialect, call):
    assert spelled(AskForCalls([LS]), dialect) == ({"content": None, "tool_calls": [call]}, "tool_calls")


def test_a_server_may_say_stop_though_there_are_calls():
    message, finish_reason = spelled(AskForCalls([LS]), "native, finish_reason stop")
    assert (message["tool_calls"][0]["function"], finish_reason) == (FUNCTION, "stop")


def test_the_older_function_call_holds_one():
    assert spelled(AskForCalls([LS, WRITE]), "legacy function_call") == (
        {"content": None, "function_call": FUNCTION},
        "function_call",
    )


def test_ids_are_never_given_twice_in_a_run():
    calls = AskForCalls([LS, LS])
    first = spell(calls, DIALECTS["native"], BODIES["tools"])
    later = spell(calls, DIALECTS["native"], {**BODIES["tools"], "messages": [{}, {}, {}]})
    ids = [
        call["id"]
        for answer in (first, later)
        for call in json.loads(answer.body)["choices"][0]["message"]["tool_calls"]
    ]
    assert len(set(ids)) == 4


# -- calls in the words --------------------------------------------------------------------------------

NAMED = '{"name": "ls", "arguments": {"path": "user"}}'
PARAMETRISED = '{"name": "ls", "parameters": {"path": "user"}}'
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
    "deepseek": "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function"
    '<\uff5ctool\u2581sep\uff5c>ls\n```json\n{"path": "user"}\n```<\uff5ctool\u2581call\u2581end\uff5c>'
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
    "deepseek 3.1": "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>ls"
    '<\uff5ctool\u2581sep\uff5c>{"path": "user"}<\uff5ctool\u2581call\u2581end\uff5c>'
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
}


@pytest.mark.parametrize("dialect", WORDS)
def test_calls_in_the_words(dialect):
    assert spelled(AskForCalls([LS]), dialect) == ({"content": WORDS[dialect]}, "stop")


def test_every_dialect_is_tested():
    native = {name for name in DIALECTS if name.startswith(("native", "legacy", "thinking"))}
    assert set(DIALECTS) == native | set(WORDS)


def test_several_calls_stand_one_after_the_other():
    content = spelled(AskForCalls([LS, WRITE]), "tag")[0]["content"]
    assert content.count("<tool_call>") == content.count("</tool_call>") == 2
    assert json.loads(spelled(AskForCalls([LS, WRITE]), "list")[0]["content"])[1]["name"] == "write_file"


def test_arguments_between_tags_are_texts_as_they_are_and_json_else():
    call = ("edit", {"new_string": 'a\n"b"', "replace_all": True})
    content = spelled(AskForCalls([call]), "xml")[0]["content"]
    assert '<parameter=new_string>\na\n"b"\n</parameter>\n' in content
    assert "<parameter=replace_all>\ntrue\n</parameter>\n" in content


@pytest.mark.parametrize("dialect", ["thinking, native", "thinking, tag", "thinking, bare"])
def test_a_model_that_thinks_drafts_a_call_that_it_does_not_make(dialect):
    message, _ = spelled(AskForCalls([LS]), dialect)
    thought, closing, rest = message["content"].partition("</think>")
    assert thought.startswith("<think>")
    assert closing
    assert "user/never/draft.md" in thought
    assert "never" not in rest
    assert message.get("tool_calls", [{}])[0].get("function", {}) == FUNCTION or NAMED in rest


def test_any_dialect_can_be_thought_in():
    content = json.loads(spell(AskForCalls([LS]), thinking(DIALECTS["xml"]), BODIES["tools"]).body)
    assert content["choices"][0]["message"]["content"].endswith(WORDS["xml"])


# -- forms without tools -------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_held_to_a_schema_answers_in_one_way_only(dialect):
    action = '{"action": "ls", "path": "user"}'
    decision = {"scope": "user", "title": "x"}
    assert spelled(AskForCalls([LS, WRITE]), dialect, "action")[0] == {"content": action}
    assert spelled(Decide(decision), dialect, "decision")[0] == {"content": json.dumps(decision)}
    done = json.loads(spelled(Say("Saved."), dialect, "action")[0]["content"])
    assert done == {"action": "done", "summary": "Saved."}


@pytest.mark.parametrize(
    ("dialect", "begins", "ends"),
    [
        ("native", "{", "}"),
        ("bare", "{", "}"),
        ("fence", "```json\n{", "}\n```"),
        ("prose and fence", "Let me", "would do."),
        ("thinking, bare", "<think>", "}"),
    ],
)
def test_an_action_asked_for_in_the_prompt_is_wrapped(dialect, begins, ends):
    for thought, form in (
        (AskForCalls([LS]), "action in text"),
        (Decide({"action": "ls"}), "decision in text"),
    ):
        content = spelled(thought, dialect, form)[0]["content"]
        assert content.startswith(begins)
        assert content.endswith(ends)
        assert '{"action": "ls"' in content


def test_words_are_words_where_nothing_else_is_asked_for():
    for form in ("tools", "words", "decision", "decision in text"):
        assert spelled(Say("Saved."), "native", form) == ({"content": "Saved."}, "stop")


@pytest.mark.parametrize("form", BODIES)
def test_what_is_uttered_is_not_changed(form):
    assert spelled(Utter("]} \ud83d"), "thinking, tag", form)[0] == {"content": "]} \ud83d"}
