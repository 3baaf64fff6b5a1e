"""The gate itself: what it lets pass and what it fails, and that a red run convicts what proves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from threats.catalogue import REPOSITORY, threats
from threats.gate import complaints, pytest_collection_modifyitems
from threats.switches import controls, switched_off

MITIGATED = threats()["T-PATH-03"]
EXCUSED = MITIGATED.model_copy(update={"skips": "Some systems cannot."})
PARTIAL = MITIGATED.model_copy(update={"status": "partial"})


def test_a_run_is_judged_by_its_proofs():
    for threat, outcomes, is_whole, told in (
        (MITIGATED, ["passed", "passed"], True, None),
        (MITIGATED, ["passed"], False, None),
        (MITIGATED, [], False, None),
        (MITIGATED, [], True, "no proof of it passed"),
        (MITIGATED, ["passed", "failed"], True, "a proof of it failed"),
        (MITIGATED, ["failed"], False, "a proof of it failed"),
        (MITIGATED, ["passed", "skipped"], True, "gives no reason"),
        (MITIGATED, ["skipped"], False, "gives no reason"),
        (EXCUSED, ["skipped"], True, None),
        (EXCUSED, ["passed", "skipped"], True, None),
        (EXCUSED, ["skipped", "failed"], True, "a proof of it failed"),
        (EXCUSED, [], True, "no proof of it passed"),
        (PARTIAL, [], True, None),
        (PARTIAL, ["failed", "skipped"], True, None),
    ):
        found = complaints({threat.id: threat}, {threat.id: outcomes}, is_whole=is_whole)
        assert len(found) == (told is not None)
        assert told is None or (threat.id in found[0] and told in found[0])


MARK = pytest.mark.threat

CONFTEST = """
pytest_plugins = ["threats.gate"]
def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true")
"""

SUITE = """
import pytest
from muniment.confine.writing import temporary_name

@pytest.mark.threat("T-PATH-07", control="random_names")
@pytest.mark.parametrize("count", [1, 2])
def test_names_differ(count):
    assert len({temporary_name(__import__("os").urandom) for _ in range(count)}) == count

@pytest.mark.threat("T-PATH-07", control="exclusive_staging")
def test_decoration():
    assert True

@pytest.mark.threat("T-PATH-07", control="random_names")
def test_broken_without(real=temporary_name):
    assert temporary_name is real or undefined

@pytest.mark.threat("T-PATH-09", control="folding")
def test_skipped():
    pytest.skip("not today")

@pytest.mark.slow
@pytest.mark.threat("T-PATH-08", control="one_name")
def test_slow():
    pytest.skip("thorough")
"""


def pytest_of(folder: Path, suite: str, *arguments: str):
    """A session of its own over one file; its exit code and output."""
    tests = folder / "proofs"
    tests.mkdir()
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_suite.py").write_text(suite)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: x\n  threat: x\ntestpaths = proofs\n")
    if "-n" not in arguments:
        return _pytest_here(folder, *arguments)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _pytest_here(folder, *arguments):
    """In this process, which has loaded everything already."""
    others = ("randomly", "cacheprovider", "xdist", "timeout", "cov")
    plugins = [word for name in others for word in ("-p", f"no:{name}")]
    with chdir(folder), redirect_stdout(StringIO()) as output, redirect_stderr(output):
        code = pytest.main(["-s", "--import-mode=importlib", *plugins, *arguments])
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
    for name in [name for name in sys.modules if name.split(".")[0] == "proofs"]:
        del sys.modules[name]
    return code, output.getvalue()


def test_a_session_of_proved_threats_passes_whatever_else_is_not_proved(tmp_path):
    code, output = pytest_of(tmp_path, SUITE, "-k", "test_names_differ or test_slow")
    assert (code, "2 passed, 1 skipped" in output) == (0, True), output


@pytest.mark.sweep(1)
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "shared"])
def test_a_whole_session_fails_for_what_is_skipped_and_for_what_nothing_proves(tmp_path, processes):
    code, output = pytest_of(tmp_path, SUITE, *processes)
    assert code == 1
    assert "T-PATH-09 is not proved: a proof was skipped, and its file gives no reason" in output
    assert "T-PATH-03 is called mitigated, and no proof of it passed" in output
    assert "T-PATH-07 is" not in output


def test_a_mark_that_names_no_threat_or_control_ends_the_session_before_it_begins():
    for mark, told in (
        (MARK("T-PATH-09", control="folding"), None),
        (MARK("T-PATH-99", control="folding"), "there is no threat 'T-PATH-99'"),
        (MARK("T-PATH-09", control="hope"), "there is no control 'hope'"),
        (MARK("T-PATH-09"), "control="),
        (MARK(control="folding"), "control="),
        (MARK("T-PATH-09", control="folding", status="done"), "control="),
    ):
        item = SimpleNamespace(nodeid="x.py::test_one", iter_markers=lambda _, mark=mark: [mark.mark])
        config = SimpleNamespace(getoption=lambda _: False)
        with nullcontext() if told is None else pytest.raises(pytest.UsageError, match=f"test_one.*{told}"):
            pytest_collection_modifyitems(config, [item])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "shared"])
def test_a_red_run_passes_what_fails_and_convicts_the_rest(tmp_path, processes):
    code, output = pytest_of(tmp_path, SUITE, "--red", "-v", "-rA", *processes)
    assert code == 1
    for line in (
        "PASSED proofs/test_suite.py::test_names_differ[without random_names]",
        "FAILED proofs/test_suite.py::test_decoration[without exclusive_staging]",
        "FAILED proofs/test_suite.py::test_broken_without[without random_names]",
        "SKIPPED [1]",
        "test_decoration passed with its control 'exclusive_staging' switched off",
        "test_broken_without could not be judged",
        "NameError: name 'undefined' is not defined",
        "1 passed, 1 skipped",
    ):
        assert line in output
    assert "test_slow" not in output


SHAMS = """
import threading
import pytest
from muniment.errors import WorkerLost
from threats import red, switches

red.SECONDS = 0.5
switches.controls()["unknown_to_children"] = switches.Control(
    "unknown_to_children", lambda off: None, "nothing", in_workers=True, hangs_after=None
)

@pytest.mark.threat("T-PATH-07", control="unknown_to_children")
def test_dead_zygote():
    assert not switches._off

@pytest.mark.threat("T-PATH-07", control="random_names")
def test_lost_worker():
    if switches._off:
        raise WorkerLost("the zygote died")

@pytest.mark.threat("T-PATH-07", control="random_names")
def test_slow():
    if switches._off:
        threading.Event().wait()

@pytest.mark.threat("T-PATH-07", control="random_names")
@pytest.mark.parametrize("way", ["a mistake", "by the effect"])
def test_half_broken(way):
    assert not switches._off or way == "a mistake" and undefined
"""


@pytest.mark.slow
def test_a_red_run_takes_a_dead_worker_slowness_and_mistakes_for_no_proof(tmp_path):
    code, output = pytest_of(tmp_path, SHAMS, "--red", "-rA", "-n", "1")
    assert code == 1
    assert "4 failed" in output
    for name in ("test_dead_zygote", "test_lost_worker", "test_slow", "test_half_broken"):
        assert f"{name} could not be judged" in output
    for why in ("no worker can be had", "still running after 0.5 s", "'undefined' is not defined"):
        assert why in output


@pytest.fixture(scope="module")
def untouched():
    """What the modules of muniment hold before anything is switched off."""
    with switched_off("folding"):
        pass  # Every module is loaded now.
    return state()


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", controls())
def test_a_control_that_was_switched_off_is_on_again(name, untouched):
    with switched_off(name):
        pass
    assert state() == untouched


def state():
    """Everything that modules of muniment and classes in them hold, by identity."""
    found = {}
    for key, module in list(sys.modules.items()):
        if key.split(".")[0] == "muniment":
            for name, value in vars(module).items():
                found[key, name] = id(value)
                if isinstance(value, type):
                    found |= {(key, name, each): id(held) for each, held in vars(value).items()}
                elif isinstance(value, dict) and not name.startswith("__"):
                    found |= {(key, name, repr(each)): id(held) for each, held in value.items()}
    return found
