"""`muniment conformance`: a table, a document, what escaped and how to see it again, honest exit codes."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit.cli.launched import launch
from kit.confine.probe import soon
from kit.where import TESTS
from muniment.cli import conformance as command
from muniment.cli.app import app
from muniment.testing.conformance import Finding, Outcome, Result, parse_target
from muniment.testing.corpus import Failure, Kind, load_corpus

CORPUS = load_corpus()
PROGRAMS = TESTS / "kit" / "testing" / "conformance"
WEAK = f"command={sys.executable} {PROGRAMS}/weak_lines.py RealpathTools {{user}} {{project}}"
SERVER = f"mcp={sys.executable} {PROGRAMS}/fake_server.py text"
FEW = ("--case=ok-edit", "--case=sym-write-file", "--case=hard-read", "--case=sym-follow-scope")


def conformance(*flags):
    return CliRunner().invoke(app, ["conformance", *flags])


@pytest.mark.slow
def test_muniment_holds_and_the_table_says_so():
    done = conformance(*FEW)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["class", "muniment"],
        ["hardlink", "1", "held"],
        ["legit", "1", "held"],
        ["symlink", "2", "held"],
        ["all", "4", "held"],
    ]
    assert lines[-1] == "muniment: passed: 4 held"
    assert not any(line.startswith("muniment: leaked") for line in lines)
    assert done.stderr == ""


@pytest.mark.slow
def test_what_leaves_the_target_under_test_fails_and_is_listed_with_the_way_to_see_it_again():
    done = conformance("--target", WEAK, *FEW)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    at = lines.index("command: leaked: hard-read (hardlink)")
    assert lines[at + 1] == "  why   hard link to an outside inode: only st_nlink tells"
    assert any("  seen  the canary is in the answer" in line for line in lines[at:])
    (again,) = (line.removeprefix("  again ") for line in lines if line.startswith("  again "))
    assert shlex.split(again) == ["muniment", "conformance", "--target", WEAK, "--case", "hard-read"]
    assert "  1 skipped: no policy for symlinks" in lines
    assert lines[-1] == "command: FAILED: 1 leaked, 1 skipped, 2 held"
    assert conformance(*shlex.split(again)[2:]).exit_code == 1


@pytest.mark.slow
def test_peers_are_told_of_and_change_nothing():
    done = conformance("--peer", WEAK, "--peer", SERVER, "--peer", "command=/no/such/tool", *FEW)
    assert done.exit_code == 0, done.output
    head, *_ = done.stdout.splitlines()
    assert head.split() == ["class", "muniment", "command", "1", "mcp", "command", "2"]
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("hardlink"))
    assert row.split() == ["hardlink", "1", "held", "1", "leaked", "1", "leaked*", "-"]
    assert "mcp: escaped: sym-write-file (symlink)" in done.stdout
    assert "mcp: leaked*: hard-read (hardlink)" in done.stdout
    assert "mcp, fake 1.0: claims: All operations are restricted" in done.stdout
    assert "  * outside of that: Directories that are exchanged" in done.stdout
    assert "command 2: not tried: FileNotFoundError" in done.stdout
    assert done.stdout.splitlines()[-1] == "muniment: passed: 4 held"


def test_a_target_under_test_that_cannot_be_used_is_a_failure():
    done = conformance("--target", "command=/no/such/tool", "--case=ok-edit")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "command: not tried"


@pytest.mark.slow
def test_the_document_has_everything():
    done = conformance("--json", "--peer", WEAK, "--peer", "command=/no/such/tool", *FEW)
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["passed"], document["cases"]) == (True, 4)
    assert document["target"]["outcomes"] == {"held": 4}
    assert document["target"]["findings"] == []
    weak, absent = document["peers"]
    assert weak["classes"]["hardlink"] == {"leaked": 1}
    assert weak["skipped"] == {"no policy for symlinks": 1}
    (finding,) = weak["findings"]
    assert (finding["case"], finding["outcome"], finding["beyond_claims"]) == ("hard-read", "leaked", False)
    assert {"allowed", "canary"} <= {each["kind"] for each in finding["seen"]}
    assert absent["classes"] == {}
    assert "FileNotFoundError" in absent["unusable"]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--target", "elsewhere"], "is no target"),
        (["--peer", "mcp="], "is no target"),
        (["--peer", "muniment"], "is named twice"),
        (["--class", "nonsense"], "there is no class"),
        (["--case", "nonsense"], "there is no case"),
        (["--jobs", "0"], "Invalid value for '--jobs'"),
    ],
)
def test_what_there_is_not_is_a_matter_of_usage(flags, why):
    done = conformance(*flags)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
    assert done.stdout == ""


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.HELD])
def test_muniment_has_to_hold_every_case(monkeypatch, outcome):
    case, seen = (
        CORPUS.cases["ok-edit"],
        [Failure(Kind.EFFECT, f"line {number}\x1b[2J") for number in range(5)],
    )

    def examine(targets, *_args, **_options):
        return [Result(targets[0], "muniment", [Finding(case, outcome, seen, is_beyond_claims=False)])]

    monkeypatch.setattr(command, "examine", examine)
    done = conformance("--case=ok-edit")
    assert done.exit_code == 1
    assert f"muniment: {outcome}: ok-edit (legit)" in done.stdout
    assert "  and 2 more; --json has all" in done.stdout
    assert "\x1b" not in done.stdout


def test_of_another_tool_stricter_or_laxer_is_no_failure():
    findings = [
        Finding(CORPUS.cases["ok-edit"], outcome, [Failure(Kind.EFFECT, "")], is_beyond_claims=False)
        for outcome in (Outcome.BROKEN, Outcome.DIFFERS, Outcome.SKIPPED)
    ]
    assert Result(parse_target("anthropic"), "", findings).is_passed


def test_a_temporary_directory_that_cannot_be_used_is_told(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/no/such/directory")
    done = conformance("--case=ok-edit")
    assert done.exit_code == 1
    assert "temporary directory" in done.stderr


def in_a_terminal(*arguments):
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "muniment", "conformance", *arguments]
    process = subprocess.Popen(program, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # How a terminal tells that nobody is there any more.
        pass
    os.close(ours)
    return process.wait(), said.decode()


@pytest.mark.slow
def test_on_a_terminal_there_is_progress_and_a_drawn_table():
    code, said = in_a_terminal("--peer", WEAK, "--case=ok-edit", "--case=hard-read")
    assert code == 0, said
    assert "\r1 of 6 cases" in said
    assert "━━┳━━" in said
    assert "1 leaked" in said


def test_a_drawn_row_shows_what_is_bad(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    result = Result(
        parse_target("muniment"),
        "muniment",
        [Finding(CORPUS.cases["ok-edit"], Outcome.ESCAPED, [], is_beyond_claims=True)],
    )
    command._print([result, Result(parse_target(SERVER), "mcp", (), "why")], {"x": CORPUS.cases["ok-edit"]})
    assert "1 escaped*" in capsys.readouterr().out


def test_progress_is_for_terminals(capsys):
    with command._Counter(2) as progress:
        progress.step()
    with command._Counter(0) as silent:
        silent.step()
    assert capsys.readouterr().err == "\r1 of 2 cases\r\033[K"


def test_an_interrupt_is_told_in_the_document(monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "examine", interrupted)
    done = conformance("--json")
    assert done.exit_code == 130
    assert json.loads(done.stdout)["status"] == "cancelled"


@pytest.mark.slow
def test_an_interrupt_ends_every_process_and_leaves_no_directory(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = launch(tmp_path, "conformance", "--class", "race", TMPDIR=str(scratch))
    deadline = soon()
    while not list(scratch.rglob("tree")) and time.monotonic() < deadline:
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    assert (process.returncode, out) == (130, b""), err
    assert b"cancelled: by Ctrl-C" in err
    assert list(scratch.iterdir()) == []
    assert [each for each in Path("/proc").glob("[0-9]*") if str(scratch) in read(each / "cmdline")] == []


def read(path):
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
