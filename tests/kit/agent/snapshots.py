"""Snapshots of all prompts as files, so that reviewers see every change of a prompt.

Run `python tests/kit/agent/snapshots.py` to write them again.
"""

import json
from pathlib import Path

from muniment.agent import chat
from muniment.agent import model as protocol
from muniment.agent.questions import Asker
from muniment.cancelling import Cancel
from muniment.kernel.decide import Limits
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import canonicalise
from muniment.names import ContextMode
from muniment.testing.minds import ScriptedModel, say

PROMPTS = Path(__file__).with_name("prompts")
TOKEN = "0123456789abcdef"
FACT = "The user prefers dark mode in all editors"
SCOPES = tuple(protocol.ScopeBrief(Scope(name), writable=name == "user") for name in ("user", "project"))
EMPTY = "# Memory index\n\nGenerated from the 0 entries of user; changes made here are lost."


def related(path, body, **more):
    given = {"is_ours": True, "is_shown": True, "sayings": frozenset(), **more}
    at = canonicalise(path, [scope.name for scope in SCOPES])
    seen = (at, Digest("0" * 64), Trust.OWNER, "3 days ago", None)
    return protocol.Related("", *seen, title=body[:20], body=body, **given)


RELATED = (related("user/editor/theme.md", "The user prefers light mode\nin all editors"),)


def request(context=ContextMode.WORKSPACE, said=(), *, last=False, index=EMPTY, related=()):
    brief = protocol.Brief(FACT, SCOPES, context, related)
    indexes = () if context is ContextMode.CLEAN else (chat.IndexExcerpt(Scope("user"), Trust.OWNER, index),)
    messages = (chat.system_message(brief), chat.job_message(brief, indexes, TOKEN), *said)
    tools = () if last else chat.offered_tools(context)
    return protocol.ModelRequest(brief, messages, tools, 295.0, turns_left=1 if last else 6, token=TOKEN)


CALLED = protocol.ToolCall("a1", "grep", {"pattern": "dark"}), protocol.ToolCall("a2", "bash", "rm -rf")
SAID = (
    protocol.AssistantMessage("", CALLED),
    protocol.ToolMessage("a1", "allow", None, "user/a.md:7: Prefers dark mode"),
    protocol.ToolMessage("a2", "error", "unknown_tool", "no such tool"),
    *(protocol.AssistantMessage(""), chat.NUDGE),
)


def bodies():
    """Yield the name and body of every kind of request."""
    requests = {"first": request(), "clean": request(ContextMode.CLEAN)}
    requests |= {"later": request(said=SAID), "last": request(said=SAID, last=True)}
    for name, each in requests.items():
        yield f"tools-{name}", chat.body(each, "tools", "model")
        yield f"json-{name}", chat.body(chat.with_actions(each), "json", "model")
        yield f"text-{name}", chat.body(chat.with_actions(each), "text", "model")
    near = request(related=RELATED)
    yield "tools-related", chat.body(near, "tools", "model")
    asked = chat.update_question(near, RELATED[0])
    yield "decide-update", chat.body(asked, "json", "model")
    for name in ("first", "clean"):
        each = requests[name]
        yield f"decide-{name}", chat.body(chat.question(each), "json", "model")
    for name, each in choices():
        yield f"choose-{name}", chat.body(each, "json", "model")


def choices():
    """Yield the name and request of every kind of question about stored entries."""
    entries = [FACT, f"{FACT} at night"]
    for name, answer in (("forget", '{"remove": []}'), ("merge", '{"merges": []}')):
        model = ScriptedModel([say(answer)])
        with Cancel() as cancel:
            asker = Asker(model, protocol.Budget(Limits(), cancel, lambda: 0.0), TOKEN)
            asker.which_to_forget("dark mode", entries) if name == "forget" else asker.which_to_merge(entries)
        yield name, model.requests[0]


def rendered(document):
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
    for name, document in bodies():
        (PROMPTS / f"{name}.txt").write_text(rendered(document))
