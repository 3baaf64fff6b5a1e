"""The client and the adapter of the Model Context Protocol, against servers of every temper."""

from __future__ import annotations

import os
import sys

import pytest

from kit.where import TESTS
from muniment.testing.conformance import targets
from muniment.testing.corpus import Inexpressible, Stage, load_corpus, run_case

CORPUS = load_corpus()
FAKE = TESTS / "kit" / "testing" / "conformance" / "fake_server.py"


def command(temper, *roots):
    return [sys.executable, "-S", str(FAKE), temper, *roots]


@pytest.fixture
def opened(tmp_path):
    """Opens the adapter of a server of a temper."""
    stage = Stage(tmp_path / "case", CORPUS.canary)
    return lambda temper: targets.McpSubject(stage, command(temper, str(stage.scope("user"))))


def test_a_tool_is_called_its_failure_is_an_error_and_a_server_that_ended_is_lost(tmp_path):
    (tmp_path / "a.md").write_text("alpha\n")
    with targets.Server(command("chatty", str(tmp_path)), {}) as server:
        assert server.name == "fake 1.0"
        said = server.call("read_text_file", {"path": f"{tmp_path}/a.md"})
        assert said["content"] == [{"type": "text", "text": "alpha\n"}]
        with pytest.raises(targets.ServerRefused, match="outside"):
            server.call("read_text_file", {"path": "/etc/passwd"})
        server._process.kill()
        server._process.wait()
        with pytest.raises(targets.ServerLost):
            server.ask("tools/list", {"padding": "x" * (1 << 20)})


def test_a_server_that_does_not_speak_the_protocol_or_end_is_told_and_killed(monkeypatch, opened):
    monkeypatch.setattr(targets, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.1)
    for temper, error in (
        *((temper, targets.ServerLost) for temper in ("ends", "garbage", "silent", "mute-tools")),
        ("refuses", targets.ServerRefused),
    ):
        with pytest.raises(error):
            opened(temper)
    for own_session in (True, False):
        server = targets.Server(command("deaf"), {}, own_session=own_session)
        assert (os.getpgid(server.pid) == server.pid) is own_session
        server.close()
        assert server._process.returncode == -9


def test_a_case_is_run_through_a_server_and_one_that_compares_text_is_convicted(tmp_path):
    for case_id, temper, expected in (
        ("ok-read-relative", "fair", targets.Outcome.HELD),
        ("ok-edit", "fair", targets.Outcome.HELD),
        ("ok-ls-root", "fair", targets.Outcome.HELD),
        ("trav-inroot-dotdot", "fair", targets.Outcome.DIFFERS),
        ("hard-read", "fair", targets.Outcome.LEAKED),
        ("sym-write-file", "text", targets.Outcome.ESCAPED),
    ):
        case, target = CORPUS.cases[case_id], targets.parse_target(f"mcp={sys.executable} -S {FAKE} {temper}")
        found = run_case(case, tmp_path / case_id, CORPUS.canary, target.open)
        assert targets.outcome_of(case, found, target.promises) is expected, case_id


def test_what_a_server_has_no_call_for_is_inexpressible_and_a_request_that_is_refused_an_error(
    opened, monkeypatch
):
    def refuse(_method, _params):
        raise targets.ServerRefused("bad arguments")

    for temper, tool, arguments, reason in (
        ("bare", "grep", {"pattern": "x"}, "no grep"),
        ("bare", "write_file", {"path": "user/a.md", "content": ""}, "no write_file"),
        ("bare", "read_file", ["user/a.md"], "no object"),
        ("fair", "ls", {"path": ""}, "all scopes"),
    ):
        subject = opened(temper)
        with pytest.raises(Inexpressible, match=reason):
            subject.call(tool, arguments)
        if temper == "fair":
            assert subject.call("read_file", {"path": 3}).verdict == "error"
            monkeypatch.setattr(subject._server, "ask", refuse)
            assert subject.call("read_file", {"path": "user/a.md"}).text == "bad arguments"
        assert subject.close() == ""
