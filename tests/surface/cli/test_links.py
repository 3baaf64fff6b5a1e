"""`--symlinks beneath` on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kit.memories import make_roots
from muniment.cli.app import app
from muniment.testing.minds import ScriptedModel, call, calls, say

FACT = "The user prefers dark mode"


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    (roots["user"] / "topic").mkdir()
    (roots["user"] / "t").symlink_to("topic")
    return roots


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def invoke(home, roots, *arguments, stdin=None):
    bound = [f"--root={scope}={path}" for scope, path in roots.items()]
    env = {"MUNIMENT_HOME": str(home)}
    return CliRunner().invoke(app, [*arguments, *bound], input=stdin, env=env)


def test_the_tools_on_the_command_line_resolve_links_if_asked_to(home, roots):
    request = json.dumps({"tool": "write_file", "args": {"path": "user/t/new.md", "content": "new\n"}})
    refused = invoke(home, roots, "tool", stdin=request)
    assert json.loads(refused.stdout)["code"] == "path_escape"
    done = invoke(home, roots, "tool", "--symlinks", "beneath", "--commit", stdin=request)
    assert json.loads(done.stdout)["text"] == "created user/topic/new.md (4 bytes); user/t/new.md leads there"
    assert done.stderr == "committed: user/topic/new.md\n"
    assert invoke(home, roots, "tool", "--symlinks", "follow", stdin=request).exit_code == 1


def test_remember_on_the_command_line_resolves_links_if_asked_to(home, roots, monkeypatch):
    model = ScriptedModel(
        [calls(call("write_file", path="user/t/new.md", content=f"{FACT}\n")), say("Saved.")]
    )
    monkeypatch.setattr("muniment.agent.filing.RuleWriter", lambda: model)
    workspace = f"--workspace={home.parent}"
    done = invoke(home, roots, "remember", FACT, workspace, "--symlinks", "beneath", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["files_touched"] == ["user/topic/prefers-dark-mode.md"]
