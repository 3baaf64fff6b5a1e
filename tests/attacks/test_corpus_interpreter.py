"""Tests of the corpus interpreter: a naive tool fails, and every check can fail."""

import os
from dataclasses import replace

import pytest

from kit.corpus.naive import NaiveTools, RealpathTools
from kit.memories import write_file
from muniment.testing.corpus import CallResult, CommitOutcome, Stage, load_corpus, run_case
from muniment.testing.corpus.judging import CHECKS, Effect, list_tree_changes, run_check

CORPUS = load_corpus()
SHOWN = "the canary is in the answer"


def find_failures(tmp_path, case, subject=NaiveTools):
    return list(map(str, run_case(case, tmp_path / "case", CORPUS.canary, subject)))


# -- a naive tool fails


EXPECTED_FAILURES = {
    **dict.fromkeys(("prefix-dotdot", "sym-read-file-rel", "hard-read", "race-dir-0"), SHOWN),
    **dict.fromkeys(("ro-scope-write", "edit-crlf"), "file_equals"),
    "race-dir-2": "'outside/secret.md' changed",
    "sym-write-dangling": "'outside/born.md' appeared",
}
EXPECTED_FAILURES |= {"sym-ls-link": "not_in_output", "uni-name-00": "absent", "mode-new-private": "mode_max"}
EXPECTED_FAILURES |= {"forge-fm-11": "index_safe: an address that is rendered as a link"}
EXPECTED_FAILURES |= {"forge-fm-huge": "index_line_max"}


@pytest.mark.sweep(5)
@pytest.mark.parametrize("case_id", EXPECTED_FAILURES)
def test_naive_tool_fails_its_cases(tmp_path, case_id):
    found = find_failures(tmp_path, CORPUS.cases[case_id])
    assert any(EXPECTED_FAILURES[case_id] in failure for failure in found), found


def test_tool_that_checks_before_it_opens_loses_the_race(tmp_path):
    found = find_failures(tmp_path, CORPUS.cases["race-dir-0"], RealpathTools)
    assert any(SHOWN in failure for failure in found), found


def test_naive_tool_passes_harmless_cases(tmp_path):
    for case_id in ("ok-read-relative", "ok-edit", "ok-ls-root", "ok-grep-literal", "ok-name-08"):
        assert find_failures(tmp_path / case_id, CORPUS.cases[case_id]) == []


# -- checks of every case can fail


SIDE_EFFECTS = {
    "'outside/secret.md' changed: modified": lambda stage: os.utime(stage.outside / "secret.md"),
    "'outside/secret.md' was read": lambda stage: (stage.outside / "secret.md").read_bytes(),
    "'user-evil' was read": lambda stage: list(stage.get_scope_path("user-evil").iterdir()),
    "'outside/secret.md' changed: links": lambda stage: os.link(
        stage.outside / "secret.md", stage.aside / "x"
    ),
    "'elsewhere' is next to the roots": lambda stage: (stage.tree / "elsewhere").mkdir(),
    "'project' changed: modified": lambda stage: write_file(stage.get_scope_path("project"), ".new").unlink(),
    # Files that exist before the call may contain the canary, because setups link to it.
    "the canary was written to 'state:ledger'": lambda stage: write_file(stage.state, "ledger", stage.canary),
    "the canary was written to 'project/c.md'": lambda stage: write_file(
        stage.get_scope_path("project"), "c.md", stage.canary
    ),
}


@pytest.mark.parametrize("expected", SIDE_EFFECTS)
def test_side_effect_of_a_correct_answer_is_found(tmp_path, expected):
    if expected.endswith("was read") and not has_access_times(tmp_path):
        pytest.skip("this mount keeps no access times")

    class Culprit(NaiveTools):
        def __init__(self, stage, case):
            super().__init__(stage, case)
            self.at("open")

        def call(self, tool, arguments):
            self.at("call")
            return super().call(tool, arguments)

        def commit(self):
            self.at("commit")
            return super().commit()

        def at(self, now):
            if now == moment:
                SIDE_EFFECTS[expected](self.stage)

    for moment in ("call", "commit") if "canary" in expected else ("open", "call", "commit"):
        found = find_failures(tmp_path / moment, CORPUS.cases["ok-read-relative"], Culprit)
        assert any(expected in failure for failure in found), (moment, found)


def has_access_times(directory):
    stage = Stage(directory / "probe", CORPUS.canary)
    before = stage.take_snapshot()
    (stage.outside / "secret.md").read_bytes()
    return list_tree_changes(before, stage.take_snapshot(), roots=True) != []


def make_subject_class(answer=None, *, commit=None, log="", **fields):
    often = commit is None

    class Liar(NaiveTools):
        commits_often = often

        def call(self, tool, arguments):
            right = super().call(tool, arguments)
            return answer(self.stage, right) if answer else replace(right, **fields)

        def commit(self):
            return commit(self.stage) if commit else super().commit()

        def close(self):
            return log

    return Liar


LIARS = [
    (make_subject_class(lambda stage, _: CallResult("allow", None, "alpha", stage.canary)), SHOWN),
    (
        make_subject_class(lambda stage, _: CallResult("allow", None, f"alpha {stage.tree}", "")),
        "a host path is in the",
    ),
    (make_subject_class(code="refused"), "code 'refused' does not belong"),
    (make_subject_class(verdict="error", code="refused"), "code 'refused' does not belong"),
    (make_subject_class(verdict="error", code="not_found"), "verdict error"),
    (make_subject_class(commit=lambda _: CommitOutcome("store_conflict", "")), "the commit failed"),
    (
        make_subject_class(commit=lambda stage: CommitOutcome(None, stage.canary)),
        "the canary is in the commit",
    ),
    (make_subject_class(log=f"debug: {CORPUS.canary}"), "the canary is in the log"),
]


def test_invalid_answer_of_a_subject_is_found(tmp_path):
    for number, (liar, crime) in enumerate(LIARS):
        found = find_failures(tmp_path / str(number), CORPUS.cases["ok-read-relative"], liar)
        assert any(crime in failure for failure in found), (crime, found)


def test_write_of_a_denied_call_or_extra_file_is_found(tmp_path):
    liar = make_subject_class(lambda *_: CallResult("deny", "refused", "no", ""))
    found = find_failures(tmp_path / "refusal", CORPUS.cases["idx-edit"], liar)
    assert "'user/MEMORY.md' changed: size, content, modified" in found

    class Untidy(NaiveTools):
        def commit(self):
            (self.stage.get_scope_path("user") / ".a.md.tmp").touch()
            (self.stage.get_scope_path("project") / "MEMORY.md").touch()
            return super().commit()

    assert find_failures(tmp_path / "untidy", CORPUS.cases["ok-edit"], Untidy) == [
        "'project/MEMORY.md' was also written",
        "'user/.a.md.tmp' was also written",
    ]


# -- each effect can fail

GOOD_INDEX = "# Memory\n\nNotice.\n\n- [a](a.md) — text with \\[brackets\\] &amp; more\n- [b c](t/b%20c.md)\n"
ONE = {"user/a.md": "one"}
TWO = {**ONE, "user/.tmp": ""}
INDEXED, FILES = {"user/MEMORY.md": GOOD_INDEX}, {"user/a.md": "", "user/t/b c.md": ""}
MORE = {"user/MEMORY.md": f"{GOOD_INDEX}- [c](c.md)\n"}
EFFECTS = [
    ("file_equals", {"path": "{user}/a.md", "content": "one"}, ONE, {"user/a.md": "two"}),
    ("b64_equals", {"path": "{user}/a.md", "content_b64": "b25l"}, ONE, {}),
    ("not_in_file", {"path": "{user}/a.md", "text": "on"}, {"user/a.md": "two"}, ONE),
    ("absent", {"path": "{user}/a.md"}, {}, ONE),
    ("exists_if_allowed", {"path": "{user}/a.md"}, ONE, {}),
    ("size", {"path": "{user}/a.md", "value": 3}, ONE, {"user/a.md": "three"}),
    ("dir_names", {"path": "{user}", "names": ["a.md"], "ignore": ["MEMORY.md"]}, {**ONE, **INDEXED}, TWO),
    ("index_safe", {"scope": "user"}, {**FILES, **INDEXED, "user/.h.md": ""}, {**INDEXED, "user/a.md": ""}),
    ("index_safe", {"scope": "user"}, {"user/MEMORY.md": "# Memory\n"}, {}),
    ("index_targets", {"scope": "user", "files": ["a.md", "t/b c.md"]}, INDEXED, MORE),
    ("index_contains", {"scope": "user", "text": "Not"}, INDEXED, {}),
    ("index_line_max", {"scope": "user", "value": 60}, INDEXED, {"user/MEMORY.md": "x" * 61}),
    ("in_output", {"text": "said"}, {"output": "it said so"}, {"output": "silence"}),
    ("not_in_output", {"text": "said"}, {"output": "silence"}, {"output": "it said so"}),
    ("output_utf8", {}, {"output": "é"}, {"output": "\udcff"}),
    ("output_max", {"value": 3}, {"output": "abc"}, {"output": "abcd"}),
    ("max_seconds", {"value": 2}, {"seconds": 1.9}, {"seconds": 2.1}),
    ("mode_max", {"path": "{user}/a.md", "value": 0o600}, {"mode": 0o400}, {"mode": 0o640}),
]


def test_every_effect_check_can_pass_and_fail(tmp_path):
    for number, (check, terms, good, bad) in enumerate(EFFECTS):
        check = {"check": check, **terms}  # noqa: PLW2901
        assert list(run_check(prepare_effect(tmp_path / f"{number}-good", good), check)) == [], check
        assert list(run_check(prepare_effect(tmp_path / f"{number}-bad", bad), check)) != [], check
    used = {check["check"] for case in CORPUS.cases.values() for check in case.get("checks", ())}
    assert used <= CHECKS.keys() == {check for check, *_ in EFFECTS}


def prepare_effect(directory, world):
    stage = Stage(directory, CORPUS.canary)
    for name, content in world.items():
        if "/" in name:
            stage.prepare({"op": "write", "path": f"{{stage}}/{name}", "content": content})
    if "mode" in world:
        stage.prepare({"op": "write", "path": "{user}/a.md", "content": ""})
        stage.prepare({"op": "chmod", "path": "{user}/a.md", "mode": world["mode"]})
    return Effect(
        stage, is_allowed=True, outputs=(world.get("output", ""),), seconds=world.get("seconds", 0.0)
    )
