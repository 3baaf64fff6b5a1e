"""The kit finds the known defects of weak tools and none of Muniment, and reports why cases were skipped."""

import os
import subprocess
import sys

import pytest

from kit.locations import TESTS
from muniment.testing.conformance import run as kit
from muniment.testing.conformance.run import run_cases, select_cases
from muniment.testing.conformance.targets import parse_target
from muniment.testing.corpus import load_corpus
from muniment.testing.corpus.running import DriverGroup, run_driver
from muniment.testing.corpus.stage import BAD, CaseOutcome

CORPUS = load_corpus()
HERE = TESTS / "kit" / "testing" / "conformance"
pytestmark = pytest.mark.timeout(120)  # Races take time, and the test waits for a hang.

SOME = [
    *("ok-read-relative", "ok-edit", "trav-read-00", "trav-inroot-dotdot", "prefix-dotdot", "prefix-plain"),
    *("sym-read-file-rel", "sym-write-file", "sym-write-dir", "sym-follow-scope", "hard-read", "hard-deep"),
    *("race-dir-0", "race-dir-2", "own-root-link-write"),
]
"""Cases of each class in which a weak tool must fail, and of those in which it must not."""


def make_weak_spec(tool):
    return f"command={sys.executable} {HERE}/weak_lines.py {tool} {{user}} {{project}}"


def make_server_spec(mode):
    return f"mcp={sys.executable} {HERE}/fake_server.py {mode}"


def run_kit(*specs, ids=SOME, **options):
    cases = select_cases(CORPUS, ids=[each for each in ids if each in CORPUS.cases])
    return run_cases([parse_target(spec) for spec in specs], CORPUS, cases, jobs=2, **options)


def find_bad_classes(result):
    return {each.case["class"] for each in result.findings if each.outcome in BAD}


@pytest.mark.slow
def test_muniment_passes_and_weak_tools_fail_in_known_classes():
    muniment_result, naive, real, mcp = run_kit(
        "muniment", make_weak_spec("NaiveTools"), make_weak_spec("RealpathTools"), make_server_spec("text")
    )
    assert [
        each.case["id"] for each in muniment_result.findings if each.outcome is not CaseOutcome.PASSED
    ] == []
    assert (muniment_result.is_passed, naive.is_passed, muniment_result.count_outcomes("race").total()) == (
        True,
        False,
        2,
    )
    assert find_bad_classes(naive) >= {"prefix-confusion", "symlink", "hardlink", "race", "root"}
    assert find_bad_classes(real) >= {"hardlink", "race"}
    assert not find_bad_classes(real) & {"prefix-confusion", "symlink", "traversal"}

    outcomes = {each.case["id"]: each.outcome for each in naive.findings}
    named_outcomes = [
        outcomes[name] for name in ("sym-read-file-rel", "sym-write-file", "trav-inroot-dotdot", "ok-edit")
    ]
    assert named_outcomes == [
        CaseOutcome.LEAKED,
        CaseOutcome.ESCAPED,
        CaseOutcome.DIFFERS,
        CaseOutcome.PASSED,
    ]

    # A case that a tool cannot express is skipped and counted.
    assert muniment_result.count_outcomes()[CaseOutcome.SKIPPED] == 0
    (skipped,) = (each for each in naive.findings if each.outcome is CaseOutcome.SKIPPED)
    assert skipped.case["id"] == "sym-follow-scope"
    assert [failure.text for failure in skipped.failures] == ["no policy for symlinks"]
    assert all(
        each.count_outcomes().total() == len(each.findings) for each in (muniment_result, naive, real, mcp)
    )
    assert len({len(each.findings) for each in (muniment_result, naive, real, mcp)}) == 1

    # An escape that the documentation of a tool does not mention is marked.
    bad = [each for each in mcp.findings if each.outcome in BAD]
    marks = {each.case["class"]: each.is_beyond_claims for each in bad}
    assert (marks["symlink"], marks["hardlink"], mcp.about) == (False, True, "fake 1.0")
    assert not any(each.is_beyond_claims for each in naive.findings)


@pytest.mark.slow
def test_tool_that_denies_or_skips_everything_has_not_passed(
    monkeypatch,
):
    answer = r"{\"verdict\": \"deny\", \"code\": \"refused\", \"text\": \"no\"}"
    (result,) = run_kit(f"command=/bin/sh -c \"while read -r line; do echo '{answer}'; done\"")
    assert "verdict deny" in str(result.unusable)
    (result,) = run_kit(make_server_spec("fair"), ids=["ok-grep-literal"])
    assert (result.count_outcomes(), result.is_passed) == ({CaseOutcome.SKIPPED: 1}, False)
    monkeypatch.setattr(kit, "HANG_SECONDS", 2.0)
    # It blocks at a fifo.
    (result,) = run_kit(make_weak_spec("NaiveTools"), ids=["own-fifo-read", "ok-edit"])
    outcomes = {each.case["id"]: each.outcome for each in result.findings}
    assert outcomes == {"own-fifo-read": CaseOutcome.HUNG, "ok-edit": CaseOutcome.PASSED}


def test_unknown_class_or_case_is_an_error():
    for wrong in ({"classes": ["redos", "nonsense"]}, {"ids": ["nonsense"]}):
        with pytest.raises(KeyError, match="nonsense"):
            select_cases(CORPUS, **wrong)


def test_driver_with_an_expired_timeout_is_killed_at_once():
    case_timeout = DriverGroup()
    case_timeout.kill()
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as driver:
        with case_timeout.register(driver):
            os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        assert driver.wait() == -9
    assert run_driver(["no-such-program"], ["a"], canary="", drivers=case_timeout) == {}
