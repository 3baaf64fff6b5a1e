"""Drivers, in this process: what they tell, what they point where, and how the command line is spoken to."""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.corpus.naive import NaiveTools
from muniment.testing.conformance import driver as conformance_driver
from muniment.testing.corpus import Inexpressible, Stage, driver, load_corpus, run_case, subjects
from muniment.testing.corpus import stage as privileges
from muniment.testing.corpus.stage import obey_file_modes
from muniment.testing.corpus.subjects import ToolSubject, open_subject

CORPUS = load_corpus()


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Runs a driver in a thread, which alone gives up its privileges; what it told, and from where."""
    monkeypatch.setenv("HOME", "")  # Restored afterwards, like all that follows.
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    kept = [os.dup(descriptor) for descriptor in range(3)]
    places = []

    def run(drives, *arguments):
        def drive():
            drives(*arguments)
            places.append(Path.cwd())

        with results.open("wb") as file:
            os.dup2(file.fileno(), 1)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(drive).result()
        return [json.loads(line) for line in results.read_text().splitlines()], places

    yield run
    for place, descriptor in enumerate(kept):
        os.dup2(descriptor, place)
        os.close(descriptor)


def test_a_driver_tells_each_case_as_it_goes(told, tmp_path):
    ids = ["ok-read-relative", "trav-read-00"]
    lines, places = told(driver.main, "in-process", tmp_path / "cases", ids)
    assert lines == [line for name in ids for line in ({"start": name}, {"id": name, "failures": []})]
    assert places == [Path("/")]


def test_whatever_a_subject_raises_is_a_result_and_the_next_case_goes_on(told, tmp_path):
    class Broken(NaiveTools):
        def call(self, tool, _arguments):
            raise Inexpressible(f"no {tool}") if tool == "edit" else LookupError("broken")

    lines, _ = told(driver.drive, Broken, tmp_path / "cases", ["ok-read-relative", "ok-edit"])
    assert "broken" in str(lines[1]["failures"])
    assert lines[3]["failures"] == [{"kind": "inexpressible", "text": "no edit"}]


def test_there_is_something_to_steal_in_every_case(told, tmp_path):
    class Thief(NaiveTools):
        def call(self, tool, arguments):
            os.write(1, b"said aloud\n")
            found = os.pread(0, 100, 0).decode()
            self.found = f"{found} {Path(os.environ['HOME']).name} {Path.cwd().name}"
            return super().call(tool, arguments)

        def close(self):
            os.write(2, f"{self.found}\n".encode())
            return self.stage.log.read_text()

    lines, _ = told(driver.drive, Thief, tmp_path / "cases", ["ok-read-relative"])
    assert {"kind": "canary", "text": "the canary is in the log"} in lines[1]["failures"]
    log = tmp_path / "cases" / "ok-read-relative" / "log"
    assert log.read_text() == f"said aloud\n{CORPUS.canary}\n outside outside\n"


def test_an_unknown_mode_and_an_unknown_case_are_errors(told, tmp_path):
    with pytest.raises(ValueError, match="none of worker, in-process, tool"):
        driver.main("elsewhere", tmp_path, [])
    with pytest.raises(KeyError):
        told(driver.drive, NaiveTools, tmp_path / "cases", ["no-such-case"])


# -- the command line as a subject --------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "name", ["ok-write-relative", "sym-write-file", "own-quota-files", "own-follow-edit"]
)
@pytest.mark.parametrize("mode", ["tool", "worker"])
def test_a_case_is_run_through_a_subject(tmp_path, mode, name):
    found = run_case(
        CORPUS.cases[name],
        tmp_path / "case",
        CORPUS.canary,
        lambda stage, case: open_subject(mode, stage, case),
    )
    assert found == []


def test_a_commit_of_the_command_line_that_fails_has_a_code(tmp_path):
    class Tampering(ToolSubject):
        def __init__(self, stage, case):
            super().__init__(stage, case)
            self.stage = stage

        def commit(self):
            (self.stage.scope("project") / "n.md").write_text("somebody was faster\n")
            return super().commit()

    found = run_case(CORPUS.cases["ok-write-relative"], tmp_path / "case", CORPUS.canary, Tampering)
    assert any("the commit failed" in each.text and "store_conflict" in each.text for each in found), found


def tool_that_says(program, tmp_path, monkeypatch):
    (tmp_path / "muniment").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "muniment").chmod(0o700)
    monkeypatch.setattr(subjects.sys, "executable", str(tmp_path / "python"))
    return ToolSubject(Stage(Path(tempfile.mkdtemp(dir=tmp_path)) / "case", CORPUS.canary), {})


def test_a_command_line_that_breaks_its_protocol_is_an_error_and_one_that_fails_at_its_end_commits_nothing(
    tmp_path, monkeypatch
):
    for program, problem in (
        ('echo \'{"verdict": "allow"}\'; cat', "an answer has"),
        ("echo 3; cat", "an answer has"),
        ('echo \'{"verdict": "allow", "code": null, "text": 3}\'; cat', "an answer has"),
        ("echo hello; cat", "Expecting value"),
        ("read line; echo why >&2", "ended without an answer: why"),
    ):
        with pytest.raises(OSError if "ended" in problem else ValueError, match=problem):
            tool_that_says(program, tmp_path, monkeypatch)
    program = 'echo \'{"verdict": "allow", "code": null, "text": ""}\'; cat >/dev/null; exit 3'
    assert tool_that_says(program, tmp_path, monkeypatch).commit().error == "exit 3"
    subject = tool_that_says(program, tmp_path, monkeypatch)
    subject.close()
    assert subject._process.returncode == -9, "one that is left is ended"


# -- privileges ---------------------------------------------------------------------------------------


def test_a_thread_that_obeys_file_modes_cannot_read_what_nobody_may(tmp_path):
    path = tmp_path / "secret"
    path.touch(mode=0)
    with ThreadPoolExecutor(1, initializer=obey_file_modes) as pool:
        assert isinstance(pool.submit(path.read_bytes).exception(), PermissionError)


def test_whoever_is_not_root_obeys_anyway_and_a_kernel_that_refuses_is_an_error(monkeypatch):
    with pytest.raises(OSError, match="Errno"):
        privileges._require(-1)
    monkeypatch.setattr(privileges.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privileges, "_require", None)
    obey_file_modes()


# -- the driver of a target ----------------------------------------------------------------------------


def test_a_driver_of_a_target_leaves_what_it_calls_itself(told, tmp_path, monkeypatch):
    monkeypatch.setenv("npm_config_cache", "")
    directory = tmp_path / "cases"
    directory.mkdir()
    ids = ["ok-read-relative", "sym-write-file"]
    lines, _ = told(conformance_driver.main, "muniment", directory, ids)
    assert [line["failures"] for line in lines if "id" in line] == [[], []]
    assert (directory / "about").read_text() == "muniment"


def test_a_driver_with_anothers_tool_in_it_has_limited_memory(told, tmp_path, monkeypatch):
    limits = []
    monkeypatch.setattr(conformance_driver.resource, "setrlimit", lambda *limit: limits.append(limit))
    told(conformance_driver.main, "anthropic", tmp_path, [])
    assert limits == [(conformance_driver.resource.RLIMIT_AS, (1 << 32, 1 << 32))]
