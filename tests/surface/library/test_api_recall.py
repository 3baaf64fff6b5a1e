"""`Memory.recall`, `conversation` and `subagent`: what a library user holds of recall."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

import muniment
from kit.memories import make_roots, put
from muniment.agent.model import ModelError
from muniment.testing.minds import ScriptedModel, say

DARK, STAGING = "The user prefers dark mode in all editors", "Staging runs on Postgres 16 behind pgbouncer"
NONSENSE = ["", "@", "user/x.md", "nowhere/x.md@00", "user/x.md@zz", "\ud800@\0"]


@pytest.fixture
def workspace(tmp_path):
    workspace = tmp_path / "workspace"
    (workspace / ".git").mkdir(parents=True)
    return workspace


@pytest.fixture
def memory(tmp_path, workspace):
    with muniment.open(workspace, home=tmp_path / "home") as memory:
        yield memory


def paths(recalled):
    return [entry.path for entry in recalled.entries]


def test_what_was_remembered_is_recalled_by_words_about_it_until_it_was_shown_and_edited(memory):
    (path,) = memory.remember(DARK).files_touched
    recalled = memory.recall("editor theme", choose=True)  # The rules pick nothing, so the search decides.
    assert paths(recalled) == [path] == ["user/editor/prefers-dark-mode-in-all-editors.md"]
    assert DARK in recalled.text
    assert not recalled.abstained
    assert recalled.tokens == -(-len(recalled.text.encode()) // 3)
    assert paths(memory.recall("dark mode editors", exclude=NONSENSE)) == [path]
    shown = [entry.id for entry in recalled.entries]
    assert memory.recall("dark mode editors", exclude=shown).abstained
    file = memory.place.roots["user"].trusted_path / path.removeprefix("user/")
    file.write_text(file.read_text().replace("all editors", "every editor"))
    assert paths(memory.recall("dark mode editors", exclude=shown)) == [path]


def test_scope_limit_and_budget_hold(memory):
    for fact in ("The user prefers dark mode in editors", "The user prefers dark chocolate, never milk"):
        memory.remember(fact)
    assert memory.recall("dark mode", scope="project").abstained
    assert memory.recall("dark mode", scope="nowhere").abstained
    assert len(memory.recall("what does the user prefer, dark?", limit=1).entries) <= 1
    assert memory.recall("dark mode", budget=1).text == ""


def test_a_memory_that_is_closed_leaves_no_thread_and_recalls_nothing_and_raises_nothing(tmp_path, workspace):
    before = set(threading.enumerate())
    with muniment.open(workspace, home=tmp_path / "home") as memory, memory.conversation() as conversation:
        memory.remember(DARK)
        conversation.on_user_turn("dark mode editors")
    assert set(threading.enumerate()) - before == set()
    assert memory.recall("dark mode editors").error is not None


def test_the_model_picks_where_it_is_asked_to(tmp_path, workspace):
    roots = make_roots(tmp_path)
    put(roots["user"], "one.md", "Dark mode in the editor, at night\n")
    put(roots["user"], "two.md", "Dark mode in the editor, on trains\n")
    answers = [say('{"read": ["c2"]}'), ModelError("gone"), say('{"read": ["c9"]}'), say('{"read": []}')]
    model = ScriptedModel(answers)
    with muniment.open(workspace, home=tmp_path / "home", roots=roots, model=model) as memory:
        every = paths(memory.recall("dark mode editor"))
        assert set(every) == {"user/one.md", "user/two.md"}
        for choose in (True, False):
            with memory.conversation(choose=choose) as conversation:
                assert (conversation.session._choose is not None) is choose
        assert model.requests == []
        picked = [paths(memory.recall("dark mode editor", choose=True)) for _ in answers]
        # Its pick first, and nothing dropped; else it failed, named what it was not shown, or helps not.
        assert picked == [every[::-1], every, every, every]
        assert len(model.requests) == len(answers)


def test_a_subagent_searches_and_hands_in(memory):
    memory.remember(STAGING)
    handed_in = []
    subagents = memory.subagent(lambda fact: handed_in.append(fact) or "t1")
    assert [tool["function"]["name"] for tool in subagents.tools] == ["search_memory", "remember_this"]
    assert "pgbouncer" in subagents.call("search_memory", json.dumps({"query": "staging postgres"}))
    assert subagents.call("remember_this", {"fact": "x"}) == "handed in as task t1"
    assert handed_in == ["x"]
    assert [tool["function"]["name"] for tool in memory.subagent().tools] == ["search_memory"]


def test_a_conversation_goes_on_where_its_state_says(memory):
    memory.remember(STAGING)
    asked = [{"role": "user", "content": "Where is the moon?"}]
    with memory.conversation() as conversation:
        first = conversation.before_turn(asked)
        state = json.loads(json.dumps(conversation.as_json()))
    assert "pgbouncer" in first[0]["content"], "the project tier"
    with memory.conversation(state=state) as conversation:
        assert conversation.before_turn(asked) == asked


def test_opening_a_memory_loads_no_client_of_a_model_for_recall(tmp_path, workspace):
    code = (
        "import sys, muniment\n"
        f"with muniment.open({str(workspace)!r}, home={str(tmp_path / 'home')!r}) as memory:\n"
        "    memory.recall('dark mode')\n"
        "print({'openai', 'httpx2', 'starlette'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
