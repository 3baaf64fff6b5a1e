"""What a model is told: the same words each time, data fenced, nothing about where it runs."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.snapshots import FACT, PROMPTS, SCOPES, TOKEN, bodies, rendered
from muniment.agent import chat
from muniment.agent.model import Brief
from muniment.names import ContextMode, Scope, Trust


def brief(fact=FACT, context=ContextMode.WORKSPACE):
    return Brief(fact, SCOPES, context)


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
    assert "grep" not in chat.system_message(brief(context=ContextMode.CLEAN)).text
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
