"""The adapter for the local memory tool of the `anthropic` SDK, against one that behaves like it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from muniment.testing.conformance import targets
from muniment.testing.conformance.targets import Outcome, outcome_of, parse_target
from muniment.testing.corpus import Inexpressible, Stage, load_corpus, run_case

CORPUS = load_corpus()


class ToolError(Exception):
    pass


class MemoryTool:
    """Resolves, compares, and opens by path, as the real one; and knows three of its commands."""

    def __init__(self, base_path):
        self.memory_root = Path(base_path) / "memories"

    def call(self, command):
        path, root = command["path"], self.memory_root.resolve()
        if not path.startswith("/memories"):
            raise ToolError(f"Path must start with /memories, got: {path}")
        full = (root / path.removeprefix("/memories").lstrip("/")).resolve()
        if not full.is_relative_to(root):
            raise ToolError("it would escape")
        return getattr(self, f"_{command['command']}")(full, command)

    def _view(self, full, command):
        if full.is_dir():
            return f"Here're the files in {command['path']}:\n" + "\n".join(map(str, full.iterdir()))
        lines = full.read_text().split("\n")
        numbered = [f"{number:6}\t{line}" for number, line in enumerate(lines, 1)]
        return "\n".join([f"Here's the content of {command['path']} with line numbers:", *numbered])

    def _create(self, full, command):
        if full.exists():
            raise ToolError(f"File {command['path']} already exists")
        full.write_text(command["file_text"])

    def _str_replace(self, full, command):
        text = full.read_text()
        full.write_text(text.replace(command["old_str"], command["new_str"]))
        return "edited"


@pytest.fixture(autouse=True)
def _sdk(monkeypatch):
    tools = ModuleType("anthropic.tools")
    tools.BetaLocalFilesystemMemoryTool = MemoryTool
    monkeypatch.setitem(sys.modules, "anthropic", ModuleType("anthropic"))
    monkeypatch.setitem(sys.modules, "anthropic.tools", tools)
    monkeypatch.setattr(targets, "version", lambda _name: "0.1")


def test_a_case_is_run_through_the_tool(tmp_path):
    for case_id, expected in (
        ("ok-read-relative", Outcome.HELD),
        ("ok-edit", Outcome.HELD),
        ("ok-ls-root", Outcome.LEAKED),  # This one lists host paths.
        ("prefix-dotdot", Outcome.HELD),
        ("trav-inroot-dotdot", Outcome.DIFFERS),
        ("hard-read", Outcome.LEAKED),
    ):
        case = CORPUS.cases[case_id]
        found = run_case(case, tmp_path / case_id, CORPUS.canary, parse_target("anthropic").open)
        assert outcome_of(case, found) is expected, found


def test_files_come_bare_names_begin_at_the_memory_and_what_has_no_command_is_inexpressible(tmp_path):
    stage = Stage(tmp_path / "case", CORPUS.canary)
    (stage.scope("project") / "p.md").write_text("one\ntwo\n")
    subject = parse_target("anthropic").open(stage, {"expect": "allow"})
    assert subject.about == "anthropic 0.1"
    assert subject.call("read_file", {"path": "/memories/project/p.md"}).text == "one\ntwo\n"
    assert subject.call("read_file", {"path": "user-evil/secret.md"}).verdict == "error"
    assert "got: other/a.md" in subject.call("read_file", {"path": "other/a.md"}).text
    for tool, arguments, reason in (
        ("grep", {"path": "user", "pattern": "x"}, "no grep"),
        ("read_file", 3, "no object"),
        ("ls", {"path": ""}, "all scopes"),
        ("write_file", {"path": "project/p.md", "content": "x"}, "does not replace"),
    ):
        with pytest.raises(Inexpressible, match=reason):
            subject.call(tool, arguments)
    assert subject.close() == ""
