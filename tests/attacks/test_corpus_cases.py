"""The cases are in the format that their README describes, and the attacks of our own bite."""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from kit.where import TESTS
from muniment.testing.corpus import load_corpus
from muniment.testing.corpus import stage as corpus_files
from muniment.testing.corpus.judging import CHECKS
from muniment.testing.corpus.running import run_driver
from muniment.testing.corpus.stage import OPERATIONS

CORPUS = load_corpus()
OWN = load_corpus("own.json").cases
NOT_CONVICTED = "No weak tool here falls for it: "
TOOLS = {"read_file", "grep", "ls", "write_file", "edit"}
VERDICTS = {"allow", "deny", "error"}
REQUIRED = {"id", "class", "setup", "call", "expect", "effect", "why", "source"}
OPTIONAL = {"first", "accept", "checks", "policy", "repeat"}
pytestmark = pytest.mark.timeout(300)  # The first test waits for all weak tools.

VARIANTS = {"symlinks", "dotfiles", "readonly", "limits", "quota", "outside_changes"}


def test_every_case_is_in_the_format_and_the_published_file_uses_none_of_what_we_added():
    for name, case in CORPUS.cases.items():
        assert REQUIRED <= case.keys() <= REQUIRED | OPTIONAL, name
        assert {case["expect"], *case.get("accept", ())} <= VERDICTS, name
        assert {operation["op"] for operation in case["setup"]} <= OPERATIONS.keys() | {"swap"}, name
        assert {check["check"] for check in case.get("checks", ())} <= CHECKS.keys(), name
        assert case.get("policy", {}).keys() <= VARIANTS, name
        for call in (*case.get("first", ()), case["call"]):
            assert call["tool"] in TOOLS, name
            assert {"tool", "args"} <= call.keys() <= {"tool", "args", "lands"}, name
    for name, case in load_corpus("escapes.json").cases.items():
        assert "first" not in case, name
        assert "lands" not in case["call"], name
        assert not case.get("policy", {}).keys() & {"limits", "quota"}, name


def test_files_that_do_not_belong_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "files", lambda _package: tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"canary": "x", "cases": [{"id": "1"}]}))
    (tmp_path / "b.json").write_text(json.dumps({"canary": "y", "cases": [{"id": "2"}]}))
    assert list(load_corpus("a.json").cases) == ["1"]
    with pytest.raises(ValueError, match="twice"):
        load_corpus("a.json", "a.json")
    with pytest.raises(ValueError, match="several canaries"):
        load_corpus("a.json", "b.json")


# -- weak tools ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_attack_of_our_own_convicts_a_weak_tool_or_says_why_not_and_what_is_legitimate_can_be_done(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    found, left = {}, list(OWN)
    for tool in ("NaiveTools", "LateTools"):  # Each in the cases in which the one before did nothing wrong.
        command = [sys.executable, "-P", "-m", "kit.corpus.weak_driver", tool, str(tmp_path / tool)]
        (tmp_path / tool).mkdir()
        with ThreadPoolExecutor(2) as pool:
            halves = pool.map(partial(run_driver, command, canary=CORPUS.canary), (left[::2], left[1::2]))
            found[tool] = {name: failures for half in halves for name, failures in half.items()}
        left = [name for name in left if not found[tool][name]]
    convicted = {name for told in found.values() for name, failures in told.items() if failures}
    excused = {name for name, case in OWN.items() if NOT_CONVICTED in case["why"]}
    refusals = {name for name, case in OWN.items() if case["expect"] != "allow"}
    assert refusals - convicted - excused == set()
    assert excused & convicted == set()
    late = {"own-late-dir", "own-late-hardlink", "own-over-alias", "own-follow-one-state"}
    assert late <= {name for name, failures in found["LateTools"].items() if failures}
    legitimate = [name for name, case in OWN.items() if case["class"] == "legit"]
    assert [name for name in legitimate if found["NaiveTools"][name]] == []


def test_our_own_cases_reach_every_tool_and_verdict():
    assert {case["call"]["tool"] for case in OWN.values()} == TOOLS
    assert {case["expect"] for case in OWN.values()} == VERDICTS
    assert Counter(case.get("policy", {}).get("symlinks") for case in OWN.values())["follow"] >= 12
