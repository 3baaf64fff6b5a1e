"""Targets: missing abilities, excused failures, and adapters for servers of every behaviour."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kit.catching import catch_error
from kit.locations import TESTS
from muniment.testing.conformance import targets
from muniment.testing.conformance.targets import CaseOutcome, judge_outcome, parse_target
from muniment.testing.corpus import Failure, FailureKind, Stage, UnsupportedCall, load_corpus, run_case

CORPUS = load_corpus()


def test_invalid_target_is_rejected():
    for spec in ("", "munimentt", "muniment=x", "anthropic=x", "mcp", "mcp=", "command= ", "command='"):
        catch_error(ValueError, parse_target, spec)


def test_inexpressible_case_has_a_reason_and_muniment_has_none():
    for spec, case_id, lack in (
        ("anthropic", "ok-grep-literal", "no grep"),
        ("command=tool", "sym-follow-scope", "no policy for symlinks"),
        ("command=tool", "ro-scope-write", "no policy for readonly"),
        *(("command=tool {policy}", "ro-scope-write", None), ("mcp=server", "cross-dir-rename", None)),
        ("mcp=server", "forge-fm-11", "no index"),
    ):
        assert parse_target(spec).find_missing(CORPUS.cases[case_id]) == lack, (spec, case_id)
    target = parse_target("muniment")
    assert [case["id"] for case in CORPUS.cases.values() if target.find_missing(case)] == []
    assert {case["call"]["tool"] for case in CORPUS.cases.values()} == targets.ALL_TOOLS


def test_placeholders_become_directories_of_the_case(tmp_path):
    stage, case = Stage(tmp_path / "case", CORPUS.canary), CORPUS.cases["sym-follow-scope"]
    words = ("a={user}", "{project}", "{state}{state}", "{symlinks}", "{policy}", "{other}")
    root, state = str(stage.tree), str(stage.state)
    expected = (f"a={root}/user", f"{root}/project", state * 2, "beneath", str(stage.policy), "{other}")
    assert targets.fill_placeholders(words, stage, case) == expected
    assert 'name = "corpus"' in stage.policy.read_text()


def test_claims_name_known_classes_and_excuse_only_excluded_ones():
    for claims in (targets.ANTHROPIC, targets.MCP_FILESYSTEM):
        assert claims.excluded <= {case["class"] for case in CORPUS.cases.values()} | CORPUS.cases.keys()
        assert all((claims.exclusions, claims.sources))
    for case_id, bad, excused in (
        *(("disk-huge-read", {FailureKind.HUNG}, True), ("surr-0", {FailureKind.PATH}, True)),
        *(
            ("sym-write-file", {FailureKind.LEFT}, False),
            ("surr-0", {FailureKind.PATH, FailureKind.CANARY}, False),
        ),
        ("surr-0", set(), False),
    ):
        assert targets.ANTHROPIC.exclude(CORPUS.cases[case_id], bad) is excused, (case_id, bad)


def test_every_failure_counts_unless_it_was_not_promised():
    def outcome(kind, promises):
        return judge_outcome({"expect": "deny"}, [Failure(kind, "")], promises)

    assert {kind.outcome for kind in FailureKind} == set(CaseOutcome) - {CaseOutcome.PASSED}
    for kind, promises, forgiven in (
        *(
            (kind, targets.Promises(), CaseOutcome.PASSED)
            for kind in (FailureKind.WORDING, FailureKind.READ_AT_START)
        ),
        (FailureKind.PATH, targets.Promises(hides_paths=False), CaseOutcome.PASSED),
        (FailureKind.INDEX, targets.Promises(keeps_index=False), CaseOutcome.PASSED),
        (FailureKind.CROSSED, targets.Promises(separates_scopes=False), CaseOutcome.DIFFERS),
    ):
        assert outcome(kind, promises) is forgiven
        assert outcome(kind, targets.Promises(is_exact=True)) is kind.outcome


FAKE = TESTS / "kit" / "testing" / "conformance" / "fake_server.py"


def make_command(mode, *roots):
    return [sys.executable, "-S", str(FAKE), mode, *roots]


@pytest.fixture
def open_adapter(tmp_path):
    """Return a function that opens the adapter of a server in a mode."""
    stage = Stage(tmp_path / "case", CORPUS.canary)
    return lambda mode: targets.McpSubject(stage, make_command(mode, str(stage.get_scope_path("user"))))


def test_server_tool_call_answers_fails_or_loses_the_server(tmp_path):
    (tmp_path / "a.md").write_text("alpha\n")
    with targets.Server(make_command("chatty", str(tmp_path)), {}) as server:
        assert server.name == "fake 1.0"
        answer = server.call("read_text_file", {"path": f"{tmp_path}/a.md"})
        assert answer["content"] == [{"type": "text", "text": "alpha\n"}]
        catch_error(
            targets.ServerError, server.call, "read_text_file", {"path": "/etc/passwd"}, match="outside"
        )
        server._process.kill()
        server._process.wait()
        catch_error(targets.ServerLost, server.request, "tools/list", {"padding": "x" * (1 << 20)})


def test_server_that_breaks_the_protocol_is_reported_and_killed(monkeypatch, open_adapter):
    monkeypatch.setattr(targets, "RESPONSE_SECONDS", 1.0)
    monkeypatch.setattr(targets, "EXIT_SECONDS", 0.1)
    for mode, error in (
        *((mode, targets.ServerLost) for mode in ("ends", "garbage", "silent", "mute-tools")),
        ("refuses", targets.ServerError),
    ):
        catch_error(error, open_adapter, mode)
    for own_session in (True, False):
        server = targets.Server(make_command("deaf"), {}, own_session=own_session)
        assert (os.getpgid(server.pid) == server.pid) is own_session
        server.close()
        assert server._process.returncode == -9


def test_case_is_run_through_a_server_and_text_check_is_caught(tmp_path):
    for case_id, mode, expected in (
        *(("ok-read-relative", "fair", CaseOutcome.PASSED), ("ok-edit", "fair", CaseOutcome.PASSED)),
        *(("ok-ls-root", "fair", CaseOutcome.PASSED), ("trav-inroot-dotdot", "fair", CaseOutcome.DIFFERS)),
        *(("hard-read", "fair", CaseOutcome.LEAKED), ("sym-write-file", "text", CaseOutcome.ESCAPED)),
    ):
        case, target = CORPUS.cases[case_id], parse_target(f"mcp={sys.executable} -S {FAKE} {mode}")
        found = run_case(case, tmp_path / case_id, CORPUS.canary, target.open)
        assert judge_outcome(case, found, target.promises) is expected, case_id


def test_missing_server_call_is_inexpressible(open_adapter, monkeypatch):
    def refuse(_method, _params):
        raise targets.ServerError("bad arguments")

    for mode, tool, arguments, reason in (
        ("bare", "grep", {"pattern": "x"}, "no grep"),
        ("bare", "write_file", {"path": "user/a.md", "content": ""}, "no write_file"),
        *(("bare", "read_file", ["user/a.md"], "not an object"), ("fair", "ls", {"path": ""}, "all scopes")),
    ):
        subject = open_adapter(mode)
        catch_error(UnsupportedCall, subject.call, tool, arguments, match=reason)
        if mode == "fair":
            assert subject.call("read_file", {"path": 3}).verdict == "error"
            monkeypatch.setattr(subject._server, "request", refuse)
            assert subject.call("read_file", {"path": "user/a.md"}).text == "bad arguments"
        assert subject.close() == ""


class ToolError(Exception):
    pass


class MemoryTool:
    """Resolves, compares and opens by path like the real tool, with three of its commands."""

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


@pytest.fixture
def sdk(monkeypatch):
    tools = ModuleType("anthropic.tools")
    tools.BetaLocalFilesystemMemoryTool = MemoryTool
    monkeypatch.setitem(sys.modules, "anthropic", ModuleType("anthropic"))
    monkeypatch.setitem(sys.modules, "anthropic.tools", tools)
    monkeypatch.setattr(targets, "version", lambda _name: "0.1")


@pytest.mark.usefixtures("sdk")
def test_case_is_run_through_the_memory_tool(tmp_path):
    for case_id, expected in (
        *(("ok-read-relative", CaseOutcome.PASSED), ("ok-edit", CaseOutcome.PASSED)),
        ("ok-ls-root", CaseOutcome.LEAKED),  # This tool lists host paths.
        *(("prefix-dotdot", CaseOutcome.PASSED), ("trav-inroot-dotdot", CaseOutcome.DIFFERS)),
        ("hard-read", CaseOutcome.LEAKED),
    ):
        case = CORPUS.cases[case_id]
        found = run_case(case, tmp_path / case_id, CORPUS.canary, parse_target("anthropic").open)
        assert judge_outcome(case, found) is expected, found


@pytest.mark.usefixtures("sdk")
def test_memory_tool_reads_bare_files_under_its_root(tmp_path):
    stage = Stage(tmp_path / "case", CORPUS.canary)
    (stage.get_scope_path("project") / "p.md").write_text("one\ntwo\n")
    subject = parse_target("anthropic").open(stage, {"expect": "allow"})
    assert subject.about == "anthropic 0.1"
    assert subject.call("read_file", {"path": "/memories/project/p.md"}).text == "one\ntwo\n"
    assert subject.call("read_file", {"path": "user-evil/secret.md"}).verdict == "error"
    assert "got: other/a.md" in subject.call("read_file", {"path": "other/a.md"}).text
    for tool, arguments, reason in (
        *(("grep", {"path": "user", "pattern": "x"}, "no grep"), ("read_file", 3, "not an object")),
        ("ls", {"path": ""}, "all scopes"),
        ("write_file", {"path": "project/p.md", "content": "x"}, "does not replace"),
    ):
        catch_error(UnsupportedCall, subject.call, tool, arguments, match=reason)
    assert subject.close() == ""
