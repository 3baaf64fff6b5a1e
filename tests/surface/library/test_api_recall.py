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


@pytest.fixture
def workspace(tmp_path):
    workspace = tmp_path / "workspace"
    (workspace / ".git").mkdir(parents=True)
    return workspace


@pytest.fixture
def memory(tmp_path, workspace):
    with muniment.open(workspace, home=tmp_path / "home") as memory:
        yield memory


def test_what_was_remembered_is_recalled_by_words_about_it(memory):
    memory.remember("The user prefers dark mode in all editors")
    recalled = memory.recall("editor theme")
    assert recalled.entries[0].path == "user/editor/prefers-dark-mode-in-all-editors.md"
    assert "The user prefers dark mode in all editors" in recalled.text
    assert not recalled.abstained
    assert recalled.tokens == -(-len(recalled.text.encode()) // 3)


def test_ids_exclude_an_entry_until_it_is_edited(memory):
    result = memory.remember("The user prefers dark mode in all editors")
    shown = [entry.id for entry in memory.recall("dark mode editors").entries]
    assert memory.recall("dark mode editors", exclude=shown).abstained
    path = memory.place.roots["user"].trusted_path / result.files_touched[0].removeprefix("user/")
    path.write_text(path.read_text().replace("all editors", "every editor"))
    again = memory.recall("dark mode editors", exclude=shown)
    assert [entry.path for entry in again.entries] == list(result.files_touched)


@pytest.mark.parametrize("nonsense", ["", "@", "user/x.md", "nowhere/x.md@00", "user/x.md@zz", "\ud800@\0"])
def test_an_id_that_is_none_excludes_nothing(memory, nonsense):
    memory.remember("The user prefers dark mode in all editors")
    assert len(memory.recall("dark mode editors", exclude=[nonsense]).entries) == 1


def test_scope_limit_and_budget_hold(memory):
    for fact in ("The user prefers dark mode in editors", "The user prefers dark chocolate, never milk"):
        memory.remember(fact)
    assert memory.recall("dark mode", scope="project").abstained
    assert memory.recall("dark mode", scope="nowhere").abstained
    assert len(memory.recall("what does the user prefer, dark?", limit=1).entries) <= 1
    assert memory.recall("dark mode", budget=1).text == ""


def test_closing_the_memory_leaves_no_thread(tmp_path, workspace):
    before = set(threading.enumerate())
    with muniment.open(workspace, home=tmp_path / "home") as memory, memory.conversation() as conversation:
        memory.remember("The user prefers dark mode in all editors")
        conversation.on_user_turn("dark mode editors")
    assert set(threading.enumerate()) - before == set()


def test_a_closed_memory_recalls_nothing_and_raises_nothing(tmp_path, workspace):
    with muniment.open(workspace, home=tmp_path / "home") as memory:
        memory.recall("dark mode editors")
    assert memory.recall("dark mode editors").error is not None


def test_the_model_picks_where_it_is_asked_to(tmp_path, workspace):
    roots = make_roots(tmp_path)
    put(roots["user"], "one.md", "Dark mode in the editor, at night\n")
    put(roots["user"], "two.md", "Dark mode in the editor, on trains\n")
    model = ScriptedModel(
        [say('{"read": ["c2"]}'), ModelError("gone"), say('{"read": ["c9"]}'), say('{"read": []}')]
    )
    with muniment.open(workspace, home=tmp_path / "home", roots=roots, model=model) as memory:
        every = [entry.path for entry in memory.recall("dark mode editor").entries]
        assert set(every) == {"user/one.md", "user/two.md"}

        def picked():
            return [entry.path for entry in memory.recall("dark mode editor", choose=True).entries]

        assert picked() == every[::-1], "its pick first, and nothing dropped"
        assert picked() == every, "it failed: the search"
        assert picked() == every, "it named what it was not shown: the search"
        assert picked() == every, "it says that none helps: it may drop nothing"


def test_the_rules_pick_nothing_so_the_search_decides(memory):
    memory.remember("The user prefers dark mode in all editors")
    assert len(memory.recall("dark mode editors", choose=True).entries) == 1


def test_a_subagent_searches_and_hands_in(memory):
    memory.remember("Staging runs on Postgres 16 behind pgbouncer")
    handed_in = []
    subagents = memory.subagent(lambda fact: handed_in.append(fact) or "t1")
    assert [tool["function"]["name"] for tool in subagents.tools] == ["search_memory", "remember_this"]
    assert "pgbouncer" in subagents.call("search_memory", json.dumps({"query": "staging postgres"}))
    assert subagents.call("remember_this", {"fact": "x"}) == "handed in as task t1"
    assert handed_in == ["x"]
    assert [tool["function"]["name"] for tool in memory.subagent().tools] == ["search_memory"]


def test_a_conversation_goes_on_where_its_state_says(memory):
    memory.remember("Staging runs on Postgres 16 behind pgbouncer")
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
