"""Through each of the eight doors once: what a test of each looks like."""

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


def test_a_link_that_leads_out_of_a_root_is_not_opened(paths, tmp_path):
    (tmp_path / "secret.md").write_text("secret")
    (paths.trusted_path / "note.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(PathEscape):
        paths.root.read_bytes(at("user", "note.md"))


def test_a_commit_lands_as_one_change(ground):
    outcome = ground.commit(new("user/b.md", b"# B\nbeta\n"))
    assert [change.path for change in outcome.changes] == ["user/b.md"]
    assert (ground.user / "b.md").read_bytes() == b"# B\nbeta\n"


def test_what_no_rule_allows_is_denied(judge_of):
    judge = judge_of(READS + rule("deny", "drafts", ["read"], ["drafts/"]))
    path = canonicalise("user/drafts/a.md", ("user",))
    assert not judge.allows(Verb.READ, path)
    assert judge.allows(Verb.READ, canonicalise("user/a.md", ("user",)))


def test_an_escape_is_denied_and_nothing_of_it_lands(sandbox, tmp_path):
    box = sandbox()
    outcome = box.call("write_file", {"path": "user/../outside/new.md", "content": "x"})
    assert (outcome.verdict, outcome.code) == ("deny", "path_escape")
    with pytest.raises(PathEscape):
        box.commit()
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["secret.md"]


def test_what_is_remembered_is_recalled(memory):
    opened = memory()
    (path,) = opened.remember(FACT).files_touched
    assert [entry.path for entry in opened.recall("dark mode").entries] == [path]


def test_a_client_has_a_fact_remembered(http):
    daemon = http()
    result = daemon.open_client().remember(FACT).wait()
    assert result.files_touched
    assert any("dark mode" in text for text in daemon.files().values())


def test_a_command_says_where_a_fact_went(command):
    code, told = command("remember", FACT, "--json")
    assert (code, told["status"]) == (0, "completed")
    assert told["files_touched"][0] in command("ls")[1]


def test_a_language_model_files_a_fact_by_our_tools(model_behind, memory):
    write = tool_call("write_file", {"path": "user/editor.md", "content": f"{FACT}\n"})
    model, server = model_behind([tool_calls(write), words("Saved.")], protocol="tools")
    result = memory(model=model).remember(FACT)
    assert result.files_touched == ("user/editor.md",)
    assert len(server.requests) == result.turns


def test_a_scripted_model_is_as_good_where_no_socket_matters(memory):
    model = ScriptedModel([calls(call("ls", path="user")), say("Nothing to do.")])
    assert memory(model=model).remember(FACT).decided_by == "rules"
