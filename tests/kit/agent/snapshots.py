"""Snapshots of all prompts as files, so that reviewers see every change of a prompt.

Run `python tests/kit/agent/snapshots.py` to write them again.
"""

import json
from pathlib import Path

from muniment.agent import chat
from muniment.agent import model as protocol
from muniment.agent.questions import ModelQuery
from muniment.cancelling import Cancel
from muniment.kernel.decide import Limits
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import canonicalise
from muniment.names import ContextMode
from muniment.testing.scripted_models import ScriptedModel, reply_with_text

PROMPTS = Path(__file__).with_name("prompts")
TOKEN = "0123456789abcdef"
FACT = "The user prefers dark mode in all editors"
SCOPES = tuple(protocol.ScopeBrief(Scope(name), writable=name == "user") for name in ("user", "project"))
EMPTY = "# Memory index\n\nGenerated from the 0 entries of user; changes made here are lost."


def make_related(path, body, **more):
    flags = {"is_replaceable": True, "is_visible": True, "statements": frozenset(), **more}
    logical_path = canonicalise(path, [scope.name for scope in SCOPES])
    values = (logical_path, Digest("0" * 64), Trust.OWNER, "3 days ago", None)
    return protocol.RelatedEntry("", *values, title=body[:20], body=body, **flags)


RELATED = (make_related("user/editor/theme.md", "The user prefers light mode\nin all editors"),)


def make_request(context=ContextMode.WORKSPACE, history=(), *, last=False, index=EMPTY, related=()):
    brief = protocol.Brief(FACT, SCOPES, context, related)
    indexes = () if context is ContextMode.CLEAN else (chat.IndexExcerpt(Scope("user"), Trust.OWNER, index),)
    messages = (chat.create_system_message(brief), chat.create_job_message(brief, indexes, TOKEN), *history)
    tools = () if last else chat.list_tools(context)
    return protocol.ModelRequest(brief, messages, tools, 295.0, turns_left=1 if last else 6, token=TOKEN)


CALLS = protocol.ToolCall("a1", "grep", {"pattern": "dark"}), protocol.ToolCall("a2", "bash", "rm -rf")
HISTORY = (
    protocol.AssistantMessage("", CALLS),
    protocol.ToolMessage("a1", "allow", None, "user/a.md:7: Prefers dark mode"),
    protocol.ToolMessage("a2", "error", "unknown_tool", "no such tool"),
    *(protocol.AssistantMessage(""), chat.NUDGE),
)


def build_bodies():
    """Yield the name and body of every kind of request."""
    requests = {"first": make_request(), "clean": make_request(ContextMode.CLEAN)}
    requests |= {"later": make_request(history=HISTORY), "last": make_request(history=HISTORY, last=True)}
    for name, each in requests.items():
        yield f"tools-{name}", chat.build_body(each, "tools", "model")
        yield f"json-{name}", chat.build_body(chat.add_actions(each), "json", "model")
        yield f"text-{name}", chat.build_body(chat.add_actions(each), "text", "model")
    with_related = make_request(related=RELATED)
    yield "tools-related", chat.build_body(with_related, "tools", "model")
    update_request = chat.create_update_query(with_related, RELATED[0])
    yield "decide-update", chat.build_body(update_request, "json", "model")
    for name in ("first", "clean"):
        each = requests[name]
        yield f"decide-{name}", chat.build_body(chat.create_decision_query(each), "json", "model")
    for name, each in build_choices():
        yield f"choose-{name}", chat.build_body(each, "json", "model")


def build_choices():
    """Yield the name and request of every kind of question about stored entries."""
    entries = [FACT, f"{FACT} at night"]
    for name, answer in (("forget", '{"remove": []}'), ("merge", '{"merges": []}')):
        model = ScriptedModel([reply_with_text(answer)])
        with Cancel() as cancel:
            query = ModelQuery(model, protocol.Budget(Limits(), cancel, lambda: 0.0), TOKEN)
            query.choose_forgotten("dark mode", entries) if name == "forget" else query.propose_merges(
                entries
            )
        yield name, model.requests[0]


def render(document):
    """Format a body for readers: messages as text, the rest as JSON."""
    parts = [
        f"--- {message['role']}\n{message['content']}"
        + "".join(f"\n>>> {json.dumps(call, sort_keys=True)}" for call in message.get("tool_calls", ()))
        + (f"\n(answers {message['tool_call_id']})" if "tool_call_id" in message else "")
        for message in document["messages"]
    ]
    rest = {key: value for key, value in document.items() if key not in {"messages", "model"}}
    return "\n".join([*parts, "--- other members", json.dumps(rest, indent=1), ""])


if __name__ == "__main__":
    PROMPTS.mkdir(exist_ok=True)
    for name, document in build_bodies():
        (PROMPTS / f"{name}.txt").write_text(render(document))
