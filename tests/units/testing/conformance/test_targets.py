"""Targets are named, lack what they lack, and are started with what they asked for."""

from __future__ import annotations

import pytest

from muniment.testing.conformance.targets import (
    ALL_TOOLS,
    ANTHROPIC,
    MCP_FILESYSTEM,
    UnknownTarget,
    filled,
    parse_target,
)
from muniment.testing.corpus import Kind, Stage, load_corpus
from muniment.testing.corpus.subjects import JsonLinesSubject, SandboxSubject

CORPUS = load_corpus()


@pytest.mark.parametrize(
    "spec", ["", "munimentt", "muniment=x", "anthropic=x", "mcp", "mcp=", "command= ", "command='"]
)
def test_what_is_no_target_is_refused(spec):
    with pytest.raises(UnknownTarget):
        parse_target(spec)


def test_muniment_lacks_nothing():
    target = parse_target("muniment")
    assert [case["id"] for case in CORPUS.cases.values() if target.lacks(case)] == []
    assert {call["tool"] for case in CORPUS.cases.values() for call in [case["call"]]} == ALL_TOOLS


@pytest.mark.parametrize(
    ("spec", "case_id", "lack"),
    [
        ("anthropic", "ok-grep-literal", "no grep"),
        ("mcp=server", "ok-grep-literal", "no grep"),
        ("command=tool", "ok-grep-literal", None),
        ("command=tool", "sym-follow-scope", "no policy for symlinks"),
        ("command=tool {symlinks}", "sym-follow-scope", None),
        ("command=tool", "ro-scope-write", "no policy for readonly"),
        ("command=tool {policy}", "ro-scope-write", None),
        ("mcp=server", "cross-dir-rename", None),
        ("mcp=server", "forge-fm-11", "no index"),
        ("command=tool", "forge-fm-11", None),
    ],
)
def test_a_case_that_a_target_cannot_express_is_told_with_the_reason(spec, case_id, lack):
    assert parse_target(spec).lacks(CORPUS.cases[case_id]) == lack


def test_placeholders_become_directories_of_the_case(tmp_path):
    stage, case = Stage(tmp_path / "case", CORPUS.canary), CORPUS.cases["sym-follow-scope"]
    words = ("a={user}", "{project}", "{state}{state}", "{symlinks}", "{policy}", "{other}")
    root = str(stage.tree)
    state = str(stage.state)
    expected = (f"a={root}/user", f"{root}/project", state * 2, "beneath", str(stage.policy), "{other}")
    assert filled(words, stage, case) == expected
    assert 'name = "corpus"' in stage.policy.read_text()


def test_a_target_is_bound_to_a_stage(tmp_path):
    answer = '{"verdict": "allow", "code": null, "text": ""}'
    program = f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)"
    (tmp_path / "tool.py").write_text(program)
    for number, (spec, kind) in enumerate(
        [("muniment", SandboxSubject), (f"command=python3 {tmp_path}/tool.py", JsonLinesSubject)]
    ):
        stage = Stage(tmp_path / str(number), CORPUS.canary)
        subject = parse_target(spec).open(stage, {})
        assert isinstance(subject, kind)
        subject.close()


@pytest.mark.parametrize("claims", [ANTHROPIC, MCP_FILESYSTEM])
def test_claims_name_classes_and_cases_that_there_are_and_their_sources(claims):
    assert claims.beyond <= {case["class"] for case in CORPUS.cases.values()} | CORPUS.cases.keys()
    assert claims.leaves_out
    assert claims.sources


@pytest.mark.parametrize(
    ("case_id", "bad", "excused"),
    [
        ("race-dir-0", {Kind.READ}, True),
        ("disk-huge-read", {Kind.HUNG}, True),
        ("sym-write-file", {Kind.LEFT}, False),
        ("surr-0", {Kind.PATH}, True),
        ("surr-0", {Kind.PATH, Kind.CANARY}, False),
        ("surr-0", set(), False),
    ],
)
def test_a_tool_is_excused_where_its_authors_make_no_claim(case_id, bad, excused):
    assert ANTHROPIC.leave_out(CORPUS.cases[case_id], bad) is excused
