"""Targets are read from the command line, lack what they lack, and are forgiven what they never promised."""

from __future__ import annotations

import pytest

from muniment.testing.conformance import targets
from muniment.testing.corpus import Failure, Kind, Stage, load_corpus

CORPUS = load_corpus()


def test_what_is_no_target_is_refused():
    for spec in ("", "munimentt", "muniment=x", "anthropic=x", "mcp", "mcp=", "command= ", "command='"):
        with pytest.raises(targets.UnknownTarget):
            targets.parse_target(spec)


def test_a_case_that_a_target_cannot_express_is_told_with_the_reason_and_muniment_lacks_none():
    for spec, case_id, lack in (
        ("anthropic", "ok-grep-literal", "no grep"),
        ("command=tool", "sym-follow-scope", "no policy for symlinks"),
        ("command=tool", "ro-scope-write", "no policy for readonly"),
        ("command=tool {policy}", "ro-scope-write", None),
        ("mcp=server", "cross-dir-rename", None),
        ("mcp=server", "forge-fm-11", "no index"),
    ):
        assert targets.parse_target(spec).lacks(CORPUS.cases[case_id]) == lack, (spec, case_id)
    target = targets.parse_target("muniment")
    assert [case["id"] for case in CORPUS.cases.values() if target.lacks(case)] == []
    assert {case["call"]["tool"] for case in CORPUS.cases.values()} == targets.ALL_TOOLS


def test_placeholders_become_directories_of_the_case(tmp_path):
    stage, case = Stage(tmp_path / "case", CORPUS.canary), CORPUS.cases["sym-follow-scope"]
    words = ("a={user}", "{project}", "{state}{state}", "{symlinks}", "{policy}", "{other}")
    root, state = str(stage.tree), str(stage.state)
    expected = (f"a={root}/user", f"{root}/project", state * 2, "beneath", str(stage.policy), "{other}")
    assert targets.filled(words, stage, case) == expected
    assert 'name = "corpus"' in stage.policy.read_text()


def test_claims_name_classes_and_cases_and_excuse_only_what_is_beyond_them():
    for claims in (targets.ANTHROPIC, targets.MCP_FILESYSTEM):
        assert claims.beyond <= {case["class"] for case in CORPUS.cases.values()} | CORPUS.cases.keys()
        assert all((claims.leaves_out, claims.sources))
    for case_id, bad, excused in (
        ("disk-huge-read", {Kind.HUNG}, True),
        ("surr-0", {Kind.PATH}, True),
        ("sym-write-file", {Kind.LEFT}, False),
        ("surr-0", {Kind.PATH, Kind.CANARY}, False),
        ("surr-0", set(), False),
    ):
        assert targets.ANTHROPIC.leave_out(CORPUS.cases[case_id], bad) is excused, (case_id, bad)


def test_every_kind_of_failure_counts_unless_it_was_never_promised_not_to_be():
    def outcome(kind, promises):
        return targets.outcome_of({"expect": "deny"}, [Failure(kind, "")], promises)

    assert targets.MEANS.keys() == set(Kind)
    assert set(targets.MEANS.values()) == set(targets.Outcome) - {targets.Outcome.HELD}
    for kind, promises, forgiven in (
        *((kind, targets.Promises(), targets.Outcome.HELD) for kind in (Kind.WORDING, Kind.LOOKED)),
        (Kind.PATH, targets.Promises(hides_paths=False), targets.Outcome.HELD),
        (Kind.INDEX, targets.Promises(keeps_index=False), targets.Outcome.HELD),
        (Kind.CROSSED, targets.Promises(separates_scopes=False), targets.Outcome.DIFFERS),
    ):
        assert outcome(kind, promises) is forgiven
        assert outcome(kind, targets.Promises(is_exact=True)) is targets.MEANS[kind]
