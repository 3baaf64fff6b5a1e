"""One example test for each of the eight entry points."""

from __future__ import annotations

import pytest

from kit.paths import make_path
from kit.policy.files import READS, format_rule
from kit.store.bench import propose_new
from muniment.errors import PathEscape
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.testing.chat_server import make_tool_call, text_response, tool_calls_response
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

FACT = "The user prefers dark mode in all editors"


def test_link_out_of_a_root_is_not_opened(paths, tmp_path):
    (tmp_path / "secret.md").write_text("secret")
    (paths.trusted_path / "note.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(PathEscape):
        paths.root.read_bytes(make_path("user", "note.md"))


def test_commit_writes_one_change(store_bench):
    outcome = store_bench.commit(propose_new("user/b.md", b"# B\nbeta\n"))
    assert [change.path for change in outcome.changes] == ["user/b.md"]
    assert (store_bench.user / "b.md").read_bytes() == b"# B\nbeta\n"


def test_denied_path_is_rejected(make_judge):
    judge = make_judge(READS + format_rule("deny", "drafts", ["read"], ["drafts/"]))
    path = canonicalise("user/drafts/a.md", ("user",))
    assert not judge.allows(Verb.READ, path)
    assert judge.allows(Verb.READ, canonicalise("user/a.md", ("user",)))


def test_escape_is_denied_and_writes_nothing(open_sandbox, tmp_path):
    box = open_sandbox()
    outcome = box.call("write_file", {"path": "user/../outside/new.md", "content": "x"})
    assert (outcome.verdict, outcome.code) == ("deny", "path_escape")
    with pytest.raises(PathEscape):
        box.commit()
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["secret.md"]


def test_remembered_fact_is_recalled(open_memory):
    opened = open_memory()
    (path,) = opened.remember(FACT).files_touched
    assert [entry.path for entry in opened.recall("dark mode").entries] == [path]


def test_client_remembers_a_fact(start_http):
    daemon = start_http()
    result = daemon.open_client().remember(FACT).wait()
    assert result.files_touched
    assert any("dark mode" in text for text in daemon.read_files().values())


def test_remember_command_prints_the_path(run_command):
    code, document = run_command("remember", FACT, "--json")
    assert (code, document["status"]) == (0, "completed")
    assert document["files_touched"][0] in run_command("ls", "--long")[1]


def test_model_stores_a_fact_with_tools(connect_model, open_memory):
    write = make_tool_call("write_file", {"path": "user/editor.md", "content": f"{FACT}\n"})
    model, server = connect_model([tool_calls_response(write), text_response("Saved.")], protocol="tools")
    result = open_memory(model=model).remember(FACT)
    assert result.files_touched == ("user/editor.md",)
    assert len(server.requests) == result.turns


def test_scripted_model_falls_back_to_rules(open_memory):
    model = ScriptedModel([reply_with_calls(make_call("ls", path="user")), reply_with_text("Nothing to do.")])
    assert open_memory(model=model).remember(FACT).decided_by == "rules"
