"""The kit finds on weak tools what it must, on Muniment nothing, and says why others were not tried."""

import os
import subprocess
import sys

import pytest

from kit.where import TESTS
from muniment.testing.conformance import run as kit
from muniment.testing.conformance.run import examine, select
from muniment.testing.conformance.targets import parse_target
from muniment.testing.corpus import load_corpus
from muniment.testing.corpus.running import Leash, run_driver
from muniment.testing.corpus.stage import BAD, CaseOutcome

CORPUS = load_corpus()
HERE = TESTS / "kit" / "testing" / "conformance"
pytestmark = pytest.mark.timeout(120)  # Races take their time, and a hang is waited for.

SOME = [
    *("ok-read-relative", "ok-edit", "trav-read-00", "trav-inroot-dotdot", "prefix-dotdot", "prefix-plain"),
    *("sym-read-file-rel", "sym-write-file", "sym-write-dir", "sym-follow-scope", "hard-read", "hard-deep"),
    *("race-dir-0", "race-dir-2", "own-root-link-write"),
]
"""A few of each class in which a weak tool has to fail, and of those in which it may not."""


def weak(tool):
    return f"command={sys.executable} {HERE}/weak_lines.py {tool} {{user}} {{project}}"


def server(temper):
    return f"mcp={sys.executable} {HERE}/fake_server.py {temper}"


def results(*specs, ids=SOME, **options):
    cases = select(CORPUS, ids=[each for each in ids if each in CORPUS.cases])
    return examine([parse_target(spec) for spec in specs], CORPUS, cases, jobs=2, **options)


def bad_classes(result):
    return {each.case["class"] for each in result.findings if each.outcome in BAD}


@pytest.mark.slow
def test_muniment_holds_a_selection_and_weak_tools_escape_in_every_class_in_which_they_must():
    ours, naive, real, mcp = results("muniment", weak("NaiveTools"), weak("RealpathTools"), server("text"))
    assert [each.case["id"] for each in ours.findings if each.outcome is not CaseOutcome.HELD] == []
    assert (ours.is_passed, naive.is_passed, ours.tally("race").total()) == (True, False, 2)
    assert bad_classes(naive) >= {"prefix-confusion", "symlink", "hardlink", "race", "root"}
    assert bad_classes(real) >= {"hardlink", "race"}
    assert not bad_classes(real) & {"prefix-confusion", "symlink", "traversal"}

    outcomes = {each.case["id"]: each.outcome for each in naive.findings}
    told = [
        outcomes[name] for name in ("sym-read-file-rel", "sym-write-file", "trav-inroot-dotdot", "ok-edit")
    ]
    assert told == [CaseOutcome.LEAKED, CaseOutcome.ESCAPED, CaseOutcome.DIFFERS, CaseOutcome.HELD]

    # What a tool cannot express is skipped and counted.
    assert ours.tally()[CaseOutcome.SKIPPED] == 0
    (skipped,) = (each for each in naive.findings if each.outcome is CaseOutcome.SKIPPED)
    assert skipped.case["id"] == "sym-follow-scope"
    assert [failure.text for failure in skipped.failures] == ["no policy for symlinks"]
    assert all(each.tally().total() == len(each.findings) for each in (ours, naive, real, mcp))
    assert len({len(each.findings) for each in (ours, naive, real, mcp)}) == 1

    # An escape that its authors do not speak of is marked.
    bad = [each for each in mcp.findings if each.outcome in BAD]
    marks = {each.case["class"]: each.is_beyond_claims for each in bad}
    assert (marks["symlink"], marks["hardlink"], mcp.about) == (False, True, "fake 1.0")
    assert not any(each.is_beyond_claims for each in naive.findings)


@pytest.mark.slow
def test_a_tool_that_says_no_to_everything_or_is_never_asked_has_not_passed_and_one_that_hangs_is_ended(
    monkeypatch,
):
    answer = r"{\"verdict\": \"deny\", \"code\": \"refused\", \"text\": \"no\"}"
    (result,) = results(f"command=/bin/sh -c \"while read -r line; do echo '{answer}'; done\"")
    assert "verdict deny" in str(result.unusable)
    (result,) = results(server("fair"), ids=["ok-grep-literal"])
    assert (result.tally(), result.is_passed) == ({CaseOutcome.SKIPPED: 1}, False)
    monkeypatch.setattr(kit, "HANG_SECONDS", 2.0)
    (result,) = results(weak("NaiveTools"), ids=["own-fifo-read", "ok-edit"])  # It waits at a fifo.
    outcomes = {each.case["id"]: each.outcome for each in result.findings}
    assert outcomes == {"own-fifo-read": CaseOutcome.HUNG, "ok-edit": CaseOutcome.HELD}


def test_a_class_or_case_that_there_is_not_is_an_error():
    for wrong in ({"classes": ["redos", "nonsense"]}, {"ids": ["nonsense"]}):
        with pytest.raises(KeyError, match="nonsense"):
            select(CORPUS, **wrong)


def test_a_driver_that_is_put_on_a_pulled_leash_is_ended_at_once():
    leash = Leash()
    leash.pull()
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as driver:
        with leash.hold(driver):
            os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        assert driver.wait() == -9
    assert run_driver(["no-such-program"], ["a"], canary="", leash=leash) == {}
