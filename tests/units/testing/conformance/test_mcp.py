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


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("temper", "error"),
    [
        ("ends", targets.ServerLost),
        ("garbage", targets.ServerLost),
        ("silent", targets.ServerLost),
        ("refuses", targets.ServerRefused),
    ],
)
def test_a_server_that_does_not_speak_the_protocol_is_told_and_ended(monkeypatch, temper, error):
    monkeypatch.setattr(targets, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.1)
    with pytest.raises(error):
        targets.Server(command(temper), {})


@pytest.mark.parametrize("own_session", [True, False])
def test_a_server_that_does_not_end_is_killed(monkeypatch, own_session):
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.1)
    server = targets.Server(command("deaf"), {}, own_session=own_session)
    assert (os.getpgid(server.pid) == server.pid) is own_session
    server.close()
    assert server._process.returncode == -9


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("case_id", "temper", "expected"),
    [
        ("ok-read-relative", "fair", targets.Outcome.HELD),
        ("ok-edit", "fair", targets.Outcome.HELD),
        ("ok-ls-root", "fair", targets.Outcome.HELD),
        ("sym-read-file-rel", "fair", targets.Outcome.HELD),
        ("trav-inroot-dotdot", "fair", targets.Outcome.DIFFERS),
        ("ok-name-02", "fair", targets.Outcome.HELD),  # There is no index.
        ("uni-name-00", "fair", targets.Outcome.DIFFERS),
        ("hard-read", "fair", targets.Outcome.LEAKED),
        ("sym-read-file-rel", "text", targets.Outcome.LEAKED),
        ("sym-write-file", "text", targets.Outcome.ESCAPED),
    ],
)
def test_a_case_is_run_through_a_server_and_one_that_compares_text_is_convicted(
    tmp_path, case_id, temper, expected
):
    case, target = CORPUS.cases[case_id], targets.parse_target(f"mcp={sys.executable} -S {FAKE} {temper}")
    found = run_case(case, tmp_path / "case", CORPUS.canary, target.open)
    assert targets.outcome_of(case, found, target.promises) is expected


def test_what_a_server_has_no_call_for_is_inexpressible(opened):
    subject = opened("bare")
    for tool, arguments, reason in (
        ("grep", {"pattern": "x"}, "no grep"),
        ("write_file", {"path": "user/a.md", "content": ""}, "no write_file"),
        ("read_file", ["user/a.md"], "no object"),
        ("ls", {"path": ""}, "no ls"),
    ):
        with pytest.raises(Inexpressible, match=reason):
            subject.call(tool, arguments)
    assert subject.close() == ""


def test_a_listing_of_all_scopes_is_inexpressible_and_a_request_that_is_refused_an_error(opened, monkeypatch):
    def refuse(_method, _params):
        raise targets.ServerRefused("bad arguments")

    subject = opened("fair")
    with pytest.raises(Inexpressible, match="all scopes"):
        subject.call("ls", {"path": ""})
    assert subject.call("read_file", {"path": 3}).verdict == "error"
    monkeypatch.setattr(subject._server, "ask", refuse)
    assert subject.call("read_file", {"path": "user/a.md"}).text == "bad arguments"
    subject.close()


def test_a_server_that_does_not_tell_its_tools_is_ended(opened):
    with pytest.raises(targets.ServerLost):
        opened("mute-tools")
