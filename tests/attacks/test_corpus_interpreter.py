"""The interpreter notices what goes wrong: it convicts a naive tool, and every check of it can fail."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kit.corpus.naive import NaiveTools, RealpathTools
from kit.where import TESTS
from muniment.testing.corpus import Answer, Committed, Failure, Kind, Stage, load_corpus, run_case
from muniment.testing.corpus.judging import CHECKS, Effect, problems, tree_changes
from muniment.testing.corpus.running import run_driver

CORPUS = load_corpus()
SHOWN = "the canary is in the answer"


def found_in(tmp_path, case, subject=NaiveTools):
    return list(map(str, run_case(case, tmp_path / "case", CORPUS.canary, subject)))


# -- a naive tool is convicted -----------------------------------------------------------------------


@pytest.mark.sweep(7)
@pytest.mark.parametrize(
    ("case_id", "crime"),
    [
        ("prefix-dotdot", SHOWN),
        ("sym-read-file-rel", SHOWN),
        ("hard-read", SHOWN),
        ("root-replaced-link", SHOWN),
        ("race-dir-0", SHOWN),
        ("race-dir-2", "'outside/secret.md' changed"),
        ("sym-write-file", "'outside/secret.md' changed: size, content"),
        ("sym-write-dangling", "'outside/born.md' appeared"),
        ("sym-write-dir", "'outside/new.md' appeared"),
        ("sym-ls-link", "not_in_output"),
        ("trav-inroot-dotdot", "verdict allow"),
        ("ro-scope-write", "file_equals"),
        ("case-collide", "verdict allow"),
        ("uni-name-00", "absent"),
        ("mode-new-private", "mode_max"),
        ("forge-fm-11", "index_safe: an address that readers make a link"),
        ("forge-fm-05", "index_safe: image"),
        ("forge-fm-huge", "index_line_max"),
        ("edit-crlf", "file_equals"),
    ],
)
def test_a_naive_tool_is_convicted(tmp_path, case_id, crime):
    found = found_in(tmp_path, CORPUS.cases[case_id])
    assert any(crime in failure for failure in found), found


def test_a_tool_that_checks_first_and_opens_later_loses_the_race(tmp_path):
    found = found_in(tmp_path, CORPUS.cases["race-dir-0"], RealpathTools)
    assert any(SHOWN in failure for failure in found), found


@pytest.mark.parametrize(
    "case_id", ["ok-read-relative", "ok-edit", "ok-ls-root", "ok-grep-literal", "ok-name-08"]
)
def test_what_even_a_naive_tool_does_right_is_no_crime(tmp_path, case_id):
    assert found_in(tmp_path, CORPUS.cases[case_id]) == []


# -- what is always checked can fail -----------------------------------------------------------------


def touches(stage):
    os.utime(stage.outside / "secret.md")


def changes_mode(stage):
    stage.outside.chmod(0o711)


def reads(stage):
    (stage.outside / "secret.md").read_bytes()


def lists(stage):
    list(stage.scope("user-evil").iterdir())


def links(stage):
    (stage.aside / "copy").hardlink_to(stage.outside / "secret.md")


def makes_a_sibling(stage):
    (stage.tree / "elsewhere").mkdir()


def leaves_a_file(stage):
    (stage.scope("project") / "left.md").touch()


def leaves_a_trace(stage):
    path = stage.scope("project") / ".temporary"
    path.touch()
    path.unlink()


def keeps_the_canary(stage):
    (stage.state / "ledger").write_text(stage.canary)


def lands_the_canary(stage):
    (stage.scope("project") / "copy.md").write_text(stage.canary)


MISDEEDS = {
    touches: "'outside/secret.md' changed: modified",
    changes_mode: "'outside' changed: mode",
    reads: "'outside/secret.md' was read",
    lists: "'user-evil' was read",
    links: "'outside/secret.md' changed: links",
    makes_a_sibling: "'elsewhere' stands beside the roots",
    leaves_a_file: "'project/left.md' appeared",
    leaves_a_trace: "'project' changed: modified",
    keeps_the_canary: "the canary was written to 'state:ledger'",
    lands_the_canary: "the canary was written to 'project/copy.md'",
}


def is_seen(misdeed, moment):
    """Files that are there before the call may hold the canary: setups link to it."""
    return moment != "open" or misdeed not in {keeps_the_canary, lands_the_canary}


@pytest.mark.parametrize(
    ("misdeed", "moment"),
    [
        pytest.param(misdeed, moment, id=f"{misdeed.__name__}-{moment}")
        for misdeed in MISDEEDS
        for moment in ("open", "call", "commit")
        if is_seen(misdeed, moment)
    ],
)
def test_a_misdeed_beside_a_right_answer_is_seen(tmp_path, misdeed, moment):
    if misdeed in {reads, lists} and not keeps_access_times(tmp_path):
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
                misdeed(self.stage)

    found = found_in(tmp_path, CORPUS.cases["ok-read-relative"], Culprit)
    assert any(MISDEEDS[misdeed] in failure for failure in found), found


def keeps_access_times(directory):
    stage = Stage(directory / "probe", CORPUS.canary)
    before = stage.photograph()
    reads(stage)
    return tree_changes(before, stage.photograph(), roots=True) != []


def answering(answer=None, *, commit=None, log=""):
    class Liar(NaiveTools):
        def call(self, tool, arguments):
            right = super().call(tool, arguments)
            return answer(self.stage, right) if answer else right

        def commit(self):
            return commit(self.stage) if commit else super().commit()

        def close(self):
            return log

    return Liar


@pytest.mark.parametrize(
    ("liar", "crime"),
    [
        (answering(lambda stage, _: Answer("allow", None, "alpha", stage.canary)), SHOWN),
        (
            answering(lambda stage, _: Answer("allow", None, f"alpha {stage.tree}", "")),
            "a host path is in the",
        ),
        (answering(lambda *_: Answer("allow", "refused", "alpha", "")), "code 'refused' does not belong"),
        (answering(lambda *_: Answer("error", "refused", "alpha", "")), "code 'refused' does not belong"),
        (answering(lambda *_: Answer("error", "not_found", "alpha", "")), "verdict error"),
        (answering(commit=lambda _: Committed("store_conflict", "")), "the commit failed"),
        (answering(commit=lambda stage: Committed(None, stage.canary)), "the canary is in the commit"),
        (answering(log=f"debug: {CORPUS.canary}"), "the canary is in the log"),
    ],
)
def test_what_a_subject_says_is_judged(tmp_path, liar, crime):
    found = found_in(tmp_path, CORPUS.cases["ok-read-relative"], liar)
    assert any(crime in failure for failure in found), found


def test_a_refusal_after_the_deed_is_seen(tmp_path):
    liar = answering(lambda *_: Answer("deny", "refused", "no", ""))
    found = found_in(tmp_path, CORPUS.cases["idx-edit"], liar)
    assert "'user/MEMORY.md' changed: size, content, modified" in found


def test_whatever_is_written_beside_the_named_file_is_seen(tmp_path):
    class Untidy(NaiveTools):
        def commit(self):
            (self.stage.scope("user") / ".a.md.tmp").touch()
            (self.stage.scope("project") / "MEMORY.md").touch()
            return super().commit()

    assert found_in(tmp_path, CORPUS.cases["ok-edit"], Untidy) == [
        "'project/MEMORY.md' was written as well",
        "'user/.a.md.tmp' was written as well",
    ]


def test_a_race_without_an_attacker_is_none(tmp_path):
    case = {**CORPUS.cases["race-dir-0"], "repeat": 1}
    case["setup"] = [operation for operation in case["setup"] if operation["op"] == "swap"]
    found = found_in(tmp_path, case)
    assert any("the race was not run: 0 exchanges" in failure for failure in found), found


def test_a_first_call_that_is_not_allowed_is_seen(tmp_path):
    case = {**CORPUS.cases["own-over-alias"], "first": [{"tool": "ls", "args": {"path": "user/missing"}}]}
    assert "the first ls was not allowed: 'FileNotFoundError'" in found_in(tmp_path, case)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("left", "tolerated"), [("inside\n", True), ("new\n", True), ("half of it", False)])
def test_in_a_race_a_file_may_have_a_second_name_but_nothing_else_is_left(tmp_path, left, tolerated):
    class Displacing(NaiveTools):
        commits_often = False

        def call(self, _tool, _arguments):
            return Answer("allow", None, "", "")

        def commit(self):
            (self.stage.scope("user") / "s.md").write_text("new\n")
            (self.stage.scope("user") / ".s.md.tmp").write_text(left)
            return Committed(None, "")

    case = {**CORPUS.cases["own-race-hard-write"], "repeat": 1}
    case["setup"] = [
        *case["setup"][:1],
        {"op": "write", "path": "{user}/other.md", "content": "inside\n"},
        {**case["setup"][1], "path": "{user}/other.md"},
    ]
    found = found_in(tmp_path, case, Displacing)
    assert found == ([] if tolerated else ["'user/.s.md.tmp' was written as well"])


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("target", "tolerated"), [("{outside}/secret.md", True), ("{outside}", False)])
def test_in_a_race_the_link_that_was_swapped_in_may_be_left_but_no_other(tmp_path, target, tolerated):
    class Displacing(NaiveTools):
        commits_often = False

        def call(self, _tool, _arguments):
            return Answer("allow", None, "", "")

        def commit(self):
            (self.stage.scope("user") / "n.md").write_text("hello\n")
            (self.stage.scope("user") / ".n.md.tmp").symlink_to(self.stage.expand(target))
            return Committed(None, "")

    found = found_in(tmp_path, {**CORPUS.cases["own-race-index"], "repeat": 1}, Displacing)
    assert found == ([] if tolerated else ["'user/.n.md.tmp' was written as well"])


# -- each effect can fail ----------------------------------------------------------------------------

GOOD_INDEX = "# Memory\n\nNotice.\n\n- [a](a.md) — text with \\[brackets\\] &amp; more\n- [b c](t/b%20c.md)\n"
EFFECTS = [
    (
        {"check": "file_equals", "path": "{user}/a.md", "content": "one"},
        {"user/a.md": "one"},
        {"user/a.md": "two"},
    ),
    ({"check": "b64_equals", "path": "{user}/a.md", "content_b64": "b25l"}, {"user/a.md": "one"}, {}),
    (
        {"check": "not_in_file", "path": "{user}/a.md", "text": "on"},
        {"user/a.md": "two"},
        {"user/a.md": "one"},
    ),
    ({"check": "absent", "path": "{user}/a.md"}, {}, {"user/a.md": "one"}),
    ({"check": "exists_if_allowed", "path": "{user}/a.md"}, {"user/a.md": "one"}, {}),
    ({"check": "size", "path": "{user}/a.md", "value": 3}, {"user/a.md": "one"}, {"user/a.md": "three"}),
    (
        {"check": "dir_names", "path": "{user}", "names": ["a.md"], "ignore": ["MEMORY.md"]},
        {"user/a.md": "", "user/MEMORY.md": ""},
        {"user/a.md": "", "user/.tmp": ""},
    ),
    (
        {"check": "index_safe", "scope": "user"},
        {"user/MEMORY.md": GOOD_INDEX, "user/a.md": "", "user/t/b c.md": "", "user/.hidden.md": ""},
        {"user/MEMORY.md": GOOD_INDEX, "user/a.md": ""},
    ),
    ({"check": "index_safe", "scope": "user"}, {"user/MEMORY.md": "# Memory\n"}, {}),
    (
        {"check": "index_targets", "scope": "user", "files": ["a.md", "t/b c.md"]},
        {"user/MEMORY.md": GOOD_INDEX},
        {"user/MEMORY.md": f"{GOOD_INDEX}- [c](c.md)\n"},
    ),
    ({"check": "index_contains", "scope": "user", "text": "Not"}, {"user/MEMORY.md": GOOD_INDEX}, {}),
    (
        {"check": "index_line_max", "scope": "user", "value": 60},
        {"user/MEMORY.md": GOOD_INDEX},
        {"user/MEMORY.md": "x" * 61},
    ),
    ({"check": "in_output", "text": "said"}, {"output": "it said so"}, {"output": "silence"}),
    ({"check": "not_in_output", "text": "said"}, {"output": "silence"}, {"output": "it said so"}),
    ({"check": "output_utf8"}, {"output": "é"}, {"output": "\udcff"}),
    ({"check": "output_max", "value": 3}, {"output": "abc"}, {"output": "abcd"}),
    ({"check": "max_seconds", "value": 2}, {"seconds": 1.9}, {"seconds": 2.1}),
    ({"check": "mode_max", "path": "{user}/a.md", "value": 0o600}, {"mode": 0o400}, {"mode": 0o640}),
]


@pytest.mark.parametrize(("check", "good", "bad"), EFFECTS, ids=lambda value: value.get("check", ""))
def test_an_effect_is_told_from_its_absence(tmp_path, check, good, bad):
    assert list(problems(arranged(tmp_path / "good", good), check)) == []
    assert list(problems(arranged(tmp_path / "bad", bad), check)) != []


def test_every_effect_of_the_corpus_is_tried():
    asked = {check["check"] for case in CORPUS.cases.values() for check in case.get("checks", ())}
    assert asked <= CHECKS.keys()
    assert {check["check"] for check, _, _ in EFFECTS} == CHECKS.keys()


def arranged(directory, world):
    stage = Stage(directory, CORPUS.canary)
    for name, content in world.items():
        if "/" in name:
            stage.prepare({"op": "write", "path": f"{{stage}}/{name}", "content": content})
    if "mode" in world:
        stage.prepare({"op": "write", "path": "{user}/a.md", "content": ""})
        stage.prepare({"op": "chmod", "path": "{user}/a.md", "mode": world["mode"]})
    return Effect(stage, allowed=True, outputs=(world.get("output", ""),), seconds=world.get("seconds", 0.0))


# -- drivers -----------------------------------------------------------------------------------------

DRIVER = """
import json, signal, sys
for name in sys.argv[1:]:
    print(json.dumps({"start": name}), flush=True)
    if name == "b":
        FATE
    print(json.dumps({"id": name, "failures": []}), flush=True)
"""


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        ("signal.pause()", (Kind.HUNG, "hung for 1.0 s")),
        ("sys.exit('why')", (Kind.DIED, "the driver died: why")),
    ],
)
def test_a_case_that_does_not_end_is_a_failure_and_the_next_one_runs(fate, told):
    command = [sys.executable, "-c", DRIVER.replace("FATE", fate)]
    found = run_driver(command, ["a", "b", "c"], canary="", hang_seconds=1.0)
    stripped = {
        name: [(each.kind, each.text.strip()) for each in failures] for name, failures in found.items()
    }
    assert stripped == {"a": [], "b": [told], "c": []}


def test_a_driver_that_does_not_start_fails_every_case():
    found = run_driver([sys.executable, "-c", "raise SystemExit('broken')"], ["a", "b"], canary="")
    assert found == {name: [Failure(Kind.DIED, "the driver died: broken\n")] for name in "ab"}


def test_a_driver_and_what_it_executes_obey_file_modes(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(mode=0)
    program = (
        "import subprocess, sys\n"
        "from muniment.testing.corpus.stage import obey_file_modes\n"
        "obey_file_modes()\n"
        "sys.exit(subprocess.run(['cat', sys.argv[1]], capture_output=True).returncode)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", program, secret], env=environment, check=False)
    assert done.returncode == 1
