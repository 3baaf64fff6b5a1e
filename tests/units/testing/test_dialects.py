"""How a thought is spelled, in each dialect and for each form that a request can have."""

from __future__ import annotations

import json

import pytest

from kit.testing.raw_client import said
from muniment.testing.chat_server import ChatServer
from muniment.testing.minds import DIALECTS, AskForCalls, Decide, Say, spell, thinking

LS = ("ls", {"path": "user"})
WRITE = ("write_file", {"path": "user/x.md", "content": "Two\nlines."})


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


# -- calls in their own place --------------------------------------------------------------------------


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
