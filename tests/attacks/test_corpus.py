"""The escape corpus, against the Sandbox in both forms and against the command line."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from muniment.errors import PathEscape
from muniment.testing.corpus import Stage, load_corpus
from muniment.testing.corpus.judging import tree_changes
from muniment.testing.corpus.running import driver_command, run_driver
from muniment.testing.corpus.subjects import SandboxSubject

CORPUS = load_corpus()
IDS = list(CORPUS.cases)
MODES = ("worker", "in-process")


def first_of_each_class():
    plain = [
        case_id
        for case_id in IDS
        if all(operation["op"] != "swap" for operation in CORPUS.cases[case_id]["setup"])
    ]
    by_class = {}
    for case_id in plain:
        by_class.setdefault(CORPUS.cases[case_id]["class"], case_id)
    return list(by_class.values())


RUNS = [*itertools.product(MODES, IDS), *(("tool", case_id) for case_id in first_of_each_class())]

pytestmark = pytest.mark.timeout(300)  # The first test waits for all cases.


@pytest.fixture(scope="session")
def failures(request, tmp_path_factory):
    """What went wrong in the selected runs, by mode and id; two drivers at a time."""
    wanted = [
        item.callspec.params["run"]
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_a_case_ends_as_the_corpus_says"
    ]
    jobs = {}
    for mode, parts in (("worker", 1), ("in-process", 1), ("tool", 2)):
        ids = [case_id for run_mode, case_id in wanted if run_mode == mode]
        jobs |= {(mode, part): ids[part::parts] for part in range(parts)}

    folders = {job: tmp_path_factory.mktemp(job[0]) for job in jobs}

    def work(job):
        return run_driver(driver_command(job[0], folders[job]), jobs[job], canary=CORPUS.canary)

    with ThreadPoolExecutor(2) as pool:
        found = zip(jobs, pool.map(work, jobs), strict=True)
        return {(mode, case_id): lines for (mode, _), told in found for case_id, lines in told.items()}


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=[pytest.mark.slow] * (run[0] == "in-process")) for run in RUNS],
    ids="-".join,
)
def test_a_case_ends_as_the_corpus_says(run, failures):
    assert failures[run] == [], CORPUS.cases[run[1]]["why"]


def test_every_class_is_run_in_every_way():
    classes = {case["class"] for case in CORPUS.cases.values()}
    for mode in (*MODES, "tool"):
        assert {CORPUS.cases[case_id]["class"] for run_mode, case_id in RUNS if run_mode == mode} == classes


ESCAPES = [
    ("write_file", {"path": "user/../outside/new.md", "content": "x"}),
    ("write_file", {"path": "/etc/new.md", "content": "x"}),
    ("write_file", {"path": "user/link.md", "content": "x"}),
    ("edit", {"path": "user/link.md", "old_string": "a", "new_string": "b"}),
    ("write_file", {"path": "user/hard.md", "content": "x"}),
    ("write_file", {"path": "user/folder/new.md", "content": "x"}),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("tool", "arguments"), ESCAPES)
def test_where_an_escape_aborts_nothing_of_the_run_lands(tmp_path, mode, tool, arguments):
    stage = Stage(tmp_path / "case", CORPUS.canary)
    for operation in (
        {"op": "symlink", "path": "{user}/link.md", "target": "{outside}/secret.md"},
        {"op": "hardlink", "path": "{user}/hard.md", "target": "{outside}/secret.md"},
        {"op": "symlink", "path": "{user}/folder", "target": "{outside}"},
    ):
        stage.prepare(operation)
    before = stage.photograph()
    subject = SandboxSubject(stage, {}, in_process=mode == "in-process", on_escape="abort")
    assert subject.call("write_file", {"path": "user/fine.md", "content": "fine\n"}).verdict == "allow"
    assert subject.call(tool, arguments).code == "path_escape"
    assert subject.call("write_file", {"path": "project/fine.md", "content": "fine\n"}).verdict == "allow"
    with pytest.raises(PathEscape):
        subject.box.commit()
    subject.close()
    assert tree_changes(before, stage.photograph(), roots=True) == []


@pytest.mark.parametrize("mode", MODES)
def test_where_an_escape_is_only_refused_the_rest_of_the_run_lands(tmp_path, mode):
    stage = Stage(tmp_path / "case", CORPUS.canary)
    subject = SandboxSubject(stage, {}, in_process=mode == "in-process", on_escape="refuse")
    assert subject.call("write_file", {"path": "user/../x.md", "content": "x"}).code == "path_escape"
    assert subject.call("write_file", {"path": "user/fine.md", "content": "fine\n"}).verdict == "allow"
    assert subject.commit().error is None
    subject.close()
    assert (stage.scope("user") / "fine.md").read_text() == "fine\n"
