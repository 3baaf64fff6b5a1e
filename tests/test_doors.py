"""One example test for each of the eight entry points."""

from __future__ import annotations

import pytest

from kit.paths import at
from kit.policy.files import READS, rule
from kit.store.ground import new
from muniment.errors import PathEscape
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.testing.chat_server import tool_call, tool_calls, words
from muniment.testing.minds import ScriptedModel, call, calls, say

FACT = "The user prefers dark mode in all editors"


def test_link_out_of_a_root_is_not_opened(paths, tmp_path):
    (tmp_path / "secret.md").write_text("secret")
    (paths.trusted_path / "note.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(PathEscape):
        paths.root.read_bytes(at("user", "note.md"))


def test_commit_writes_one_change(ground):
    outcome = ground.commit(new("user/b.md", b"# B\nbeta\n"))
    assert [change.path for change in outcome.changes] == ["user/b.md"]
    assert (ground.user / "b.md").read_bytes() == b"# B\nbeta\n"


def test_denied_path_is_rejected(judge_of):
    judge = judge_of(READS + rule("deny", "drafts", ["read"], ["drafts/"]))
    path = canonicalise("user/drafts/a.md", ("user",))
    assert not judge.allows(Verb.READ, path)
    assert judge.allows(Verb.READ, canonicalise("user/a.md", ("user",)))


def test_escape_is_denied_and_writes_nothing(sandbox, tmp_path):
    box = sandbox()
    outcome = box.call("write_file", {"path": "user/../outside/new.md", "content": "x"})
    assert (outcome.verdict, outcome.code) == ("deny", "path_escape")
    with pytest.raises(PathEscape):
        box.commit()
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["secret.md"]


def test_remembered_fact_is_recalled(memory):
    opened = memory()
    (path,) = opened.remember(FACT).files_touched
    assert [entry.path for entry in opened.recall("dark mode").entries] == [path]


def test_client_remembers_a_fact(http):
    daemon = http()
    result = daemon.open_client().remember(FACT).wait()
    assert result.files_touched
    assert any("dark mode" in text for text in daemon.files().values())


def test_remember_command_prints_the_path(command):
    code, document = command("remember", FACT, "--json")
    assert (code, document["status"]) == (0, "completed")
    assert document["files_touched"][0] in command("ls")[1]


def test_model_stores_a_fact_with_tools(model_behind, memory):
    write = tool_call("write_file", {"path": "user/editor.md", "content": f"{FACT}\n"})
    model, server = model_behind([tool_calls(write), words("Saved.")], protocol="tools")
    result = memory(model=model).remember(FACT)
    assert result.files_touched == ("user/editor.md",)
    assert len(server.requests) == result.turns


def test_scripted_model_falls_back_to_rules(memory):
    model = ScriptedModel([calls(call("ls", path="user")), say("Nothing to do.")])
    assert memory(model=model).remember(FACT).decided_by == "rules"
