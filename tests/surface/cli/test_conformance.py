"""`muniment conformance`: the table, the document, how to repeat a failure, exit codes."""

import shlex
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from kit.cli.process import launch, wait_until
from kit.locations import TESTS
from muniment.events import watch_progress
from muniment.testing.conformance import CaseOutcome, Finding, Result, parse_target
from muniment.testing.corpus import Failure, FailureKind, load_corpus

CORPUS = load_corpus()
PROGRAMS = TESTS / "kit" / "testing" / "conformance"
WEAK = f"command={sys.executable} {PROGRAMS}/weak_lines.py RealpathTools {{user}} {{project}}"
SERVER = f"mcp={sys.executable} {PROGRAMS}/fake_server.py text"
ABSENT = "command=/no/such/tool"
FEW = ("--case=ok-edit", "--case=sym-write-file", "--case=hard-read", "--case=sym-follow-scope")


def make_finding(outcome, *seen, is_beyond_claims=False):
    return Finding(CORPUS.cases["ok-edit"], outcome, list(seen), is_beyond_claims=is_beyond_claims)


@pytest.mark.slow
def test_conformance_lists_leaks_with_command_to_repeat(cli):
    lines = cli.run_for_lines("conformance", "--target", WEAK, *FEW, code=1)
    at = lines.index("command: leaked: hard-read (hardlink)")
    assert lines[at + 1] == "  why   hard link to an outside inode: only st_nlink tells"
    assert any("  seen  the canary is in the answer" in line for line in lines[at:])
    (repeat_command,) = (line.removeprefix("  rerun ") for line in lines if line.startswith("  rerun "))
    assert shlex.split(repeat_command) == ["muniment", "conformance", "--target", WEAK, "--case", "hard-read"]
    assert "  1 skipped: no policy for symlinks" in lines
    assert lines[-1] == "command: FAILED: 1 leaked, 1 skipped, 2 held"
    assert cli(*shlex.split(repeat_command)[1:]).exit_code == 1


@pytest.mark.slow
def test_conformance_reports_peers_without_changing_result(cli):
    peers = ("--peer", WEAK, "--peer", SERVER, "--peer", ABSENT)
    head, *lines = cli.run_for_lines("conformance", *peers, *FEW)
    assert head.split() == ["class", "muniment", "command", "1", "mcp", "command", "2"]
    for begin, row in (("hardlink", "hardlink 1 held 1 leaked 1 leaked* -"), ("all ", "all 4 held")):
        assert " ".join(next(line for line in lines if line.startswith(begin)).split()).startswith(row)
    assert not any(line.startswith("muniment: leaked") for line in lines)
    output = "\n".join(lines)
    for expected in (
        *("mcp: escaped: sym-write-file (symlink)", "mcp: leaked*: hard-read (hardlink)"),
        *("mcp, fake 1.0: claims: All operations are restricted", "command 2: not tried: FileNotFoundError"),
        "  * outside of the claims: Directories that are exchanged",
    ):
        assert expected in output
    assert lines[-1] == "muniment: passed: 4 held"
    document = cli.run_for_document("conformance", "--peer", WEAK, "--peer", ABSENT, *FEW)
    assert (document["passed"], document["cases"]) == (True, 4)
    assert (document["target"]["outcomes"], document["target"]["findings"]) == ({"held": 4}, [])
    weak, absent = document["peers"]
    assert (weak["classes"]["hardlink"], weak["skipped"]) == ({"leaked": 1}, {"no policy for symlinks": 1})
    (leak,) = weak["findings"]
    assert (leak["case"], leak["outcome"], leak["beyond_claims"]) == ("hard-read", "leaked", False)
    assert {each["kind"] for each in leak["seen"]} >= {"allowed", "canary"}
    assert (absent["classes"], "FileNotFoundError" in absent["unusable"]) == ({}, True)


def test_conformance_requires_every_case_of_muniment_only(cli, monkeypatch):
    seen = [Failure(FailureKind.EFFECT, f"line {number}\x1b[2J") for number in range(5)]
    for outcome in set(CaseOutcome) - {CaseOutcome.PASSED}:
        result = Result(parse_target("muniment"), "muniment", [make_finding(outcome, *seen)])
        monkeypatch.setattr(
            "muniment.testing.conformance.run_cases", lambda *_, result=result, **__: [result]
        )
        lines = cli.run_for_lines("conformance", "--case=ok-edit", code=1)
        assert {f"muniment: {outcome}: ok-edit (legit)", "  and 2 more; --json has all"} <= set(lines)
        assert "\x1b" not in "".join(lines)
        assert cli.run_for_document("conformance", "--case=ok-edit", code=1)["passed"] is False
    allowed = [
        make_finding(outcome) for outcome in (CaseOutcome.BROKEN, CaseOutcome.DIFFERS, CaseOutcome.SKIPPED)
    ]
    assert Result(parse_target("anthropic"), "", allowed).is_passed


@pytest.mark.usefixtures("fake_terminal")
def test_conformance_on_terminal_draws_table(cli, monkeypatch):
    result = Result(
        parse_target("muniment"), "muniment", [make_finding(CaseOutcome.ESCAPED, is_beyond_claims=True)]
    )
    other = Result(parse_target(SERVER), "mcp", (), "why")

    def run_cases(*_args, on_case_ended, **_options):
        on_case_ended()
        return [result, other]

    monkeypatch.setattr("muniment.testing.conformance.run_cases", run_cases)
    with watch_progress(recorder := Mock()):
        done = cli("conformance", "--case=ok-edit", COLUMNS="200")
    assert ("━━┳━━" in done.stdout, "1 escaped*" in done.stdout) == (True, True)
    (((progress,), _),) = recorder.end.call_args_list
    assert (progress.doing, progress.done, progress.total) == ("trying", 1, 2)


def test_conformance_reports_unusable_target_and_environment(cli, monkeypatch):
    absent = cli.run_for_lines("conformance", "--target", ABSENT, "--case=ok-edit", code=1)
    assert absent[-1] == "command: not tried"
    monkeypatch.setattr("tempfile.tempdir", "/no/such/directory")
    (message,) = cli.run_for_lines("conformance", "--case=ok-edit", code=1)
    assert "temporary directory" in message
    monkeypatch.setattr("muniment.testing.conformance.run_cases", Mock(side_effect=KeyboardInterrupt))
    assert cli.run_for_document("conformance", code=130)["status"] == "cancelled"


@pytest.mark.slow
def test_conformance_interrupt_leaves_no_process_or_directory(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = launch(tmp_path, "conformance", "--class", "race", TMPDIR=str(scratch))
    wait_until(process, lambda: list(scratch.rglob("tree")))
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
