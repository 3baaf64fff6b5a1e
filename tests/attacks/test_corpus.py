"""Run the escape corpus against the sandbox in both forms and against the command line."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.raising import raised
from kit.where import TESTS
from muniment.errors import PathEscape
from muniment.testing.corpus import Stage, load_corpus
from muniment.testing.corpus.judging import READING_TOOLS, tree_changes
from muniment.testing.corpus.running import driver_command, run_driver
from muniment.testing.corpus.subjects import SandboxSubject

CORPUS = load_corpus()
MODES = ("worker", "in-process")
TOOL = "tool --root=user={user} --root=project={project} --policy={policy} --symlinks {symlinks}"
TOOL = f"command={Path(sys.executable).with_name('muniment')} {TOOL} --state={{state}} --commit"
DRIVEN = {
    "worker": driver_command("muniment", Path())[2:-1],
    "in-process": [str(TESTS / "kit" / "corpus" / "in_process.py")],
    "tool": driver_command(TOOL, Path())[2:-1],
}
DRIVERS = 2
SAMPLE = 24


def find_failures(mode, ids, directory):
    """Return the failures of the cases by id; run two drivers at a time."""

    def run_part(part):
        where = str(directory / str(part))
        command = [sys.executable, "-P", "-W", "error", *DRIVEN[mode], where]
        (directory / str(part)).mkdir()
        return run_driver(command, ids[part::DRIVERS], canary=CORPUS.canary)

    with ThreadPoolExecutor(DRIVERS) as pool:
        results = {each: lines for part in pool.map(run_part, range(DRIVERS)) for each, lines in part.items()}
    assert set(results) == set(ids)
    return {each: (lines, CORPUS.cases[each]["why"]) for each, lines in results.items() if lines}


def list_swaps(case):
    return [operation for operation in case["setup"] if operation["op"] == "swap"]


def select_one_per_class():
    first = {}
    for case_id, case in CORPUS.cases.items():
        if not list_swaps(case):
            first.setdefault(case["class"], case_id)
    assert set(first) == {case["class"] for case in CORPUS.cases.values()}
    return list(first.values())


def select_quick():
    """Select all cases without a race, and the first race of each decoy for reading and for writing tools."""
    races = {}
    for case_id, case in CORPUS.cases.items():
        for swap in list_swaps(case):
            races.setdefault((swap["kind"], case["call"]["tool"] in READING_TOOLS), case_id)
    assert len(races) == 6
    return [
        case_id for case_id, case in CORPUS.cases.items() if not list_swaps(case) or case_id in races.values()
    ]


@pytest.mark.parametrize(
    ("mode", "ids"),
    [
        pytest.param(MODES[0], select_quick(), id="worker-quick"),
        *(pytest.param(mode, list(CORPUS.cases), id=mode, marks=pytest.mark.slow) for mode in MODES),
    ],
)
def test_every_case_has_the_expected_result(tmp_path, mode, ids):
    assert find_failures(mode, ids, tmp_path) == {}


@pytest.mark.parametrize("step", [SAMPLE, pytest.param(1, marks=pytest.mark.slow)])
def test_cases_of_every_class_pass_on_the_command_line(tmp_path, step):
    assert find_failures("tool", select_one_per_class()[::step], tmp_path) == {}


ESCAPES = [
    ("write_file", {"path": "user/../outside/new.md", "content": "x"}),
    ("write_file", {"path": "/etc/new.md", "content": "x"}),
    ("write_file", {"path": "user/link.md", "content": "x"}),
    ("edit", {"path": "user/link.md", "old_string": "a", "new_string": "b"}),
    ("write_file", {"path": "user/hard.md", "content": "x"}),
    ("write_file", {"path": "user/folder/new.md", "content": "x"}),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_escape", ["abort", "refuse"])
def test_escape_aborts_the_run_or_only_the_call(tmp_path, mode, on_escape):
    for number, (tool, arguments) in enumerate(ESCAPES):
        stage = Stage(tmp_path / str(number), CORPUS.canary)
        stage.prepare({"op": "hardlink", "path": "{user}/hard.md", "target": "{outside}/secret.md"})
        for name, target in {"link.md": "{outside}/secret.md", "folder": "{outside}"}.items():
            stage.prepare({"op": "symlink", "path": f"{{user}}/{name}", "target": target})
        before = stage.photograph()
        subject = SandboxSubject(stage, {}, in_process=mode == "in-process", on_escape=on_escape)
        assert subject.call("write_file", {"path": "user/fine.md", "content": "fine\n"}).verdict == "allow"
        assert subject.call(tool, arguments).code == "path_escape", (tool, arguments)
        assert subject.call("write_file", {"path": "project/fine.md", "content": "x\n"}).verdict == "allow"
        if on_escape == "abort":
            raised(PathEscape, subject.box.commit)
            subject.close()
            assert tree_changes(before, stage.photograph(), roots=True) == []
        else:
            assert subject.commit().error is None
            subject.close()
            assert (stage.scope("user") / "fine.md").read_text() == "fine\n"
