"""Tests of the corpus drivers: their results, their file descriptors, and the command-line protocol."""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.corpus.naive import NaiveTools
from kit.raising import raised
from muniment.testing.corpus import Inexpressible, Stage, driver, load_corpus
from muniment.testing.corpus import stage as corpus_files
from muniment.testing.corpus.judging import CHECKS
from muniment.testing.corpus.stage import OPERATIONS, obey_file_modes
from muniment.testing.corpus.subjects import JsonLinesSubject

CORPUS = load_corpus()


def test_error_of_a_subject_is_a_result_of_its_case(tmp_path, monkeypatch):
    class Broken(NaiveTools):
        def call(self, tool, _arguments):
            raise Inexpressible(f"no {tool}") if tool == "edit" else LookupError("broken")

    monkeypatch.setenv("HOME", "")  # Restored afterwards, as the other changes.
    monkeypatch.chdir(tmp_path)
    saved = [os.dup(descriptor) for descriptor in range(3)]
    with (tmp_path / "results").open("wb") as file:
        os.dup2(file.fileno(), 1)
    with ThreadPoolExecutor(1) as pool:  # Only its thread drops its privileges.
        ended = pool.submit(driver.drive, Broken, tmp_path / "cases", ["ok-read-relative", "ok-edit"])
    for number, descriptor in enumerate(saved):
        os.dup2(descriptor, number)
        os.close(descriptor)
    assert ended.exception() is None
    lines = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert [line["start"] for line in lines[::2]] == [line["id"] for line in lines[1::2]]
    assert "broken" in str(lines[1]["failures"])
    assert lines[3]["failures"] == [{"kind": "inexpressible", "text": "no edit"}]


# -- the command line as a subject --------------------------------------------------------------------


def make_subject(program, tmp_path):
    stage = Stage(Path(tempfile.mkdtemp(dir=tmp_path)) / "case", CORPUS.canary)
    return JsonLinesSubject(stage, ["/bin/sh", "-c", program])


def test_invalid_answer_of_a_command_commits_nothing(tmp_path):
    for program, problem in (
        ('echo \'{"verdict": "allow"}\'; cat', "expected verdict, code and text"),
        ('echo \'{"verdict": "allow", "code": null, "text": 3}\'; cat', "expected verdict, code and text"),
        ("echo hello; cat", "Expecting value"),
        ("read line; echo why >&2", "ended without a response: why"),
    ):
        with pytest.raises(OSError if "ended" in problem else ValueError, match=problem):
            make_subject(program, tmp_path)
    program = 'echo \'{"verdict": "allow", "code": null, "text": ""}\'; cat >/dev/null; exit 3'
    assert make_subject(program, tmp_path).commit().error == "exit 3"
    subject = make_subject(program, tmp_path)
    subject.close()
    assert subject._process.returncode == -9, "a subject that was closed early must be killed"


# -- privileges ---------------------------------------------------------------------------------------


def test_thread_without_privileges_obeys_file_modes(tmp_path):
    path = tmp_path / "secret"
    path.touch(mode=0)
    with ThreadPoolExecutor(1, initializer=obey_file_modes) as pool:
        assert isinstance(pool.submit(path.read_bytes).exception(), PermissionError)


# -- stages follow the format


def test_expand_replaces_placeholders_at_any_depth(tmp_path):
    stage = Stage(tmp_path / "case", "canary")
    value = {"a": ["{user}/x", {"$repeat": ["ab", 2], "$pre": "<", "$post": "{outside}"}, None, 3]}
    assert stage.expand(value) == {"a": [f"{stage.tree}/user/x", f"<abab{stage.tree}/outside", None, 3]}
    literals = {"{{a,b}}": "{a,b}", "{{user}}": "{user}"} | {text: text for text in ("(.*a){25}$", "${HOME}")}
    assert {text: stage.expand(text) for text in literals} == literals


# -- the cases follow the format


def test_every_case_has_the_published_format():
    required = {"id", "class", "setup", "call", "expect", "effect", "why", "source"}
    for name, case in CORPUS.cases.items():
        assert required <= case.keys() <= required | {"first", "accept", "checks", "policy", "repeat"}, name
        assert {case["expect"], *case.get("accept", ())} <= {"allow", "deny", "error"}, name
        assert {operation["op"] for operation in case["setup"]} <= OPERATIONS.keys() | {"swap"}, name
        assert {check["check"] for check in case.get("checks", ())} <= CHECKS.keys(), name
        for call in (*case.get("first", ()), case["call"]):
            assert {"tool", "args"} <= call.keys() <= {"tool", "args", "lands"}, name
    for name, case in load_corpus("escapes.json").cases.items():
        assert not {"first", "limits", "quota"} & {*case, *case.get("policy", {})}, name
        assert "lands" not in case["call"], name


def test_unrelated_case_files_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "files", lambda _package: tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"canary": "x", "cases": [{"id": "1"}]}))
    (tmp_path / "b.json").write_text(json.dumps({"canary": "y", "cases": [{"id": "2"}]}))
    assert list(load_corpus("a.json").cases) == ["1"]
    raised(ValueError, load_corpus, "a.json", "a.json", match="duplicate id")
    raised(ValueError, load_corpus, "a.json", "b.json", match="different canaries")
