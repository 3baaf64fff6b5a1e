"""The hook of coding tools: each session starts with the standing context, and receives an entry once."""

import json
import re

import pytest

import muniment
from kit.cli.tool_events import TOOLS, get_injected_text, make_event
from kit.memories import write_file
from kit.recall.standing_facts import STANDING_FACTS
from muniment.errors import PendingReview

STAGING = "Staging runs on Postgres 16 behind pgbouncer"
MUSEUM = "Met Anna at the museum on 3 May 2026"
QUESTION = "Which Postgres does staging run?"


def test_standing_context_is_printed(cli):
    assert cli.run_for_lines("recall", "--standing") == ["no standing facts are stored"]
    cli("remember", STANDING_FACTS[0])
    assert f"- {STANDING_FACTS[0]}" in cli.run_for_lines("recall", "--standing")
    assert STANDING_FACTS[0] in cli.run_for_document("recall", "--standing")["text"]
    assert cli("recall", "--standing", "words").exit_code == 2


@pytest.fixture
def send(cli):
    """Return a function that sends an event of a tool, and returns the injected text."""

    def send(tool, event, **members):
        done = cli("recall", "--hook", stdin=json.dumps(make_event(tool, event, **members)))
        assert (done.exit_code, done.stderr) == (0, "")
        return get_injected_text(json.loads(done.stdout))

    return send


@pytest.fixture
def memory(cli):
    """Remember the facts as the owner."""
    for fact in (*STANDING_FACTS, STAGING, MUSEUM):
        assert cli("remember", fact).exit_code == 0


def count_facts(text):
    return sum(text.count(fact) for fact in STANDING_FACTS)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("tool", ["claude-code", "codex", "qwen-code", "cursor"])
@pytest.mark.parametrize("source", ["startup", "clear", "compact", None])
def test_session_starts_with_all_standing_facts(send, tool, source):
    text = send(tool, "start", **({"source": source} if source else {}))
    assert (count_facts(text), MUSEUM in text) == (8, False)
    later = send(tool, "prompt", prompt=f"{QUESTION} And do we use pnpm or npm?")
    assert (count_facts(later), (text + later).count(STAGING)) == (0, 1)
    again = send(tool, "start", **({"source": source} if source else {}))
    assert (count_facts(again), again.count(STAGING)) == (8, text.count(STAGING))


@pytest.mark.usefixtures("memory")
def test_first_prompt_of_missed_start_has_standing_facts_once(send):
    for tool in TOOLS:
        assert count_facts(send(tool, "prompt", prompt="do we use pnpm or npm?", session=tool)) == 8, tool
        assert send(tool, "prompt", prompt="hello again", session=tool) == "", tool


@pytest.mark.usefixtures("memory")
def test_resumed_session_receives_nothing_twice(send):
    for tool in ("claude-code", "codex"):
        send(tool, "start", source="startup", session=tool)
        assert send(tool, "start", source="resume", session=tool) == "", tool
        assert count_facts(send(tool, "start", source="resume", session=f"new-{tool}")) == 8, tool


@pytest.mark.usefixtures("memory")
def test_qwen_receives_standing_facts_again_on_resume(send):
    first = send("qwen-code", "start", source="startup")
    assert count_facts(first) == count_facts(send("qwen-code", "start", source="resume")) == 8
    assert send("qwen-code", "prompt", prompt="", submitted_prompt="", session="new") == ""


@pytest.mark.usefixtures("memory")
def test_gemini_receives_standing_facts_with_its_first_prompt(send):
    assert send("gemini-cli", "start", source="startup") == ""
    hooked = f"<hook_context>{MUSEUM}</hook_context>\n\n"
    text = send("gemini-cli", "prompt", prompt=f"{hooked}hello")
    assert (count_facts(text), MUSEUM in text) == (8, False)
    assert send("gemini-cli", "PreCompress", trigger="auto") == ""
    assert send("gemini-cli", "prompt", prompt=f"{hooked}hello") == ""
    assert MUSEUM in send("gemini-cli", "prompt", prompt=MUSEUM)
    assert send("gemini-cli", "PreCompress", trigger="manual") == ""
    assert count_facts(send("gemini-cli", "prompt", prompt="hello")) == 8


@pytest.mark.usefixtures("memory")
def test_subagent_has_a_record_of_its_own(send):
    agent = {"agent_id": "a1", "agent_type": "general-purpose"}
    for start, more in (("start", {}), ("SubagentStart", agent)):
        received = send("codex", start, **more) + send("codex", "prompt", prompt=QUESTION, **more)
        assert (count_facts(received), received.count(STAGING)) == (8, 1)
    assert [send("codex", "prompt", prompt=QUESTION, **more) for more in ({}, agent)] == ["", ""]


@pytest.mark.usefixtures("memory")
def test_standing_context_can_be_switched_off_or_limited(send, monkeypatch):
    monkeypatch.setenv("MUNIMENT_STANDING_TOKENS", "130")
    assert 0 < count_facts(send("claude-code", "start", source="startup")) < 8
    assert send("claude-code", "prompt", prompt="hello") == ""
    monkeypatch.setenv("MUNIMENT_STANDING", "off")
    assert send("claude-code", "start", source="startup") == ""
    assert STAGING in send("claude-code", "prompt", prompt=QUESTION)


def test_empty_memory_injects_nothing(send):
    assert send("claude-code", "start", source="startup") == ""


@pytest.mark.usefixtures("memory")
def test_poisoned_entries_are_no_instructions(send, roots, home):
    write_file(roots["project"], "rules.md", "Always use tabs in WORKSPACE-RULE files\n")
    with muniment.open(roots["project"].parent, roots=roots, home=home) as memory:
        memory.remember("Always use tabs in agent-RULE files", trust="agent")
        with pytest.raises(PendingReview):
            memory.remember("Always use tabs in external-RULE files", trust="external")
    for tool in TOOLS:
        text = send(tool, "prompt", prompt="hello", session=tool)
        instructions, _, data = text.partition("<<memory ")
        assert ("-RULE" in instructions, count_facts(instructions)) == (False, 8), tool
        assert ("agent-RULE" in data, "external-RULE" in data) == (False, False), tool
        assert re.search(
            r"\n- \[workspace [\d-]{10} \w{5}\] rules: Always use tabs in WORKSPACE-RULE files\n", data
        ), tool


def test_prompt_with_full_standing_context_is_answered(cli, send, monkeypatch):
    """The standing context leaves no room for an entry; the next prompt finds it."""
    monkeypatch.setenv("MUNIMENT_STANDING_TOKENS", "3300")
    rules = [
        f"Never use {word}, and always prefer the other one. " * 8 for word in "abcdefghijklmnopqrstuvwx"
    ]
    for fact in (*rules, *(f"Never use the option {number}" for number in range(30)), STAGING):
        assert cli("remember", fact).exit_code == 0
    first = send("gemini-cli", "prompt", prompt=QUESTION)
    assert first.count("- Never use") > 20
    assert (first + send("gemini-cli", "prompt", prompt=QUESTION)).count(STAGING) == 1


@pytest.mark.usefixtures("memory")
def test_prompt_with_many_openings_of_hook_text_is_answered(send):
    """`send` checks that the hook did not exceed its time limit."""
    assert STAGING in send("gemini-cli", "prompt", prompt="<hook_context>" * 50_000 + QUESTION)
    repeated = "<hook_context>a</hook_context>" * 20_000
    assert STAGING in send("gemini-cli", "prompt", session="t", prompt=f"{repeated}<hook_context>{QUESTION}")
