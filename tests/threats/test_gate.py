"""Tests of the gate: which runs it fails, and that a red run reports proofs that prove nothing."""

from __future__ import annotations

import os
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import settings

from threats import red
from threats.catalogue import load_threats
from threats.gate import find_unproved, pytest_collection_modifyitems
from threats.switches import load_controls, switch_off

MITIGATED = load_threats()["T-PATH-03"]
EXCUSED = MITIGATED.model_copy(update={"skips": "Some systems cannot."})
PARTIAL = MITIGATED.model_copy(update={"status": "partial"})


def test_gate_reports_unproved_threats():
    for threat, outcomes, is_whole, expected in (
        (MITIGATED, ["passed", "passed"], True, None),
        (MITIGATED, [], False, None),
        (MITIGATED, [], True, "no proof of it passed"),
        (MITIGATED, ["passed", "failed"], True, "a proof of it failed"),
        (MITIGATED, ["passed", "skipped"], True, "without a reason"),
        (MITIGATED, ["skipped"], False, "without a reason"),
        (EXCUSED, ["passed", "skipped"], True, None),
        (EXCUSED, ["skipped", "failed"], True, "a proof of it failed"),
        (PARTIAL, ["failed", "skipped"], True, None),
    ):
        found = find_unproved({threat.id: threat}, {threat.id: outcomes}, is_whole=is_whole)
        assert len(found) == (expected is not None)
        assert expected is None or (threat.id in found[0] and expected in found[0])


MARK = pytest.mark.threat

SUITE = """
import pytest
from muniment.kernel._directory import build_temporary_name
from threats import switches

@pytest.mark.threat("T-PATH-07", control="random_names")
@pytest.mark.parametrize("count", [1, 2])
def test_names_differ(count):
    assert len({build_temporary_name(__import__("os").urandom) for _ in range(count)}) == count

@pytest.mark.threat("T-PATH-07", control="exclusive_staging")
def test_decoration():
    assert True

@pytest.mark.threat("T-PATH-07", control="random_names")
def test_broken_without(real=build_temporary_name):
    assert build_temporary_name is real or undefined

@pytest.mark.threat("T-PATH-07", control="random_names")
def test_lost_worker():
    if switches._off:
        raise pytest.importorskip("muniment.errors").WorkerLost("the zygote died")

@pytest.mark.threat("T-PATH-07", control="random_names")
def test_hanging():
    if switches._off:
        __import__("threading").Event().wait()

@pytest.mark.threat("T-PATH-09", control="folding")
def test_skipped():
    pytest.skip("not today")

@pytest.mark.slow
@pytest.mark.threat("T-PATH-08", control="one_name")
def test_slow():
    pytest.skip("thorough")
"""


@pytest.fixture
def session(tmp_path):
    """Run a separate pytest session over that suite in this process; return its exit code and output."""
    option = 'parser.addoption("--slow", action="store_true")'
    conftest = f'pytest_plugins = ["threats.gate"]\ndef pytest_addoption(parser):\n    {option}\n'
    (tmp_path / "proofs").mkdir()
    (tmp_path / "proofs" / "conftest.py").write_text(conftest)
    (tmp_path / "proofs" / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: x\n  threat: x\ntestpaths = proofs\n")

    def run(*arguments):
        others = ("randomly", "cacheprovider", "xdist", "timeout", "cov")
        plugins = [word for name in others for word in ("-p", f"no:{name}")]
        with chdir(tmp_path), redirect_stdout(StringIO()) as output, redirect_stderr(output):
            code = pytest.main(["-s", "--import-mode=importlib", *plugins, *arguments])
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
        for name in [name for name in sys.modules if name.split(".")[0] == "proofs"]:
            del sys.modules[name]
        return code, output.getvalue()

    return run


def test_whole_session_fails_for_unproved_threats(session):
    code, output = session()
    assert code == 1
    assert "T-PATH-09 is not proved: a proof was skipped without a reason" in output
    assert "T-PATH-03 is not proved: no proof of it passed" in output
    assert "T-PATH-07 is" not in output
    assert session("-k", "test_names_differ or test_slow")[0] == 0


def test_unknown_threat_or_control_ends_the_session():
    mark = pytest.mark.threat
    for marked, expected in (
        (mark("T-PATH-09", control="folding"), None),
        (mark("T-PATH-99", control="folding"), "unknown threat 'T-PATH-99'"),
        (mark("T-PATH-09", control="hope"), "unknown control 'hope'"),
        (mark("T-PATH-09"), "control="),
        (mark("T-PATH-09", control="folding", status="done"), "control="),
    ):
        item = SimpleNamespace(nodeid="x.py::test_one", iter_markers=lambda _, mark=marked: [mark.mark])
        config = SimpleNamespace(getoption=lambda _: False)
        with (
            nullcontext()
            if expected is None
            else pytest.raises(pytest.UsageError, match=f"test_one.*{expected}")
        ):
            pytest_collection_modifyitems(config, [item])


def test_red_run_passes_only_failing_proofs(session, monkeypatch):
    monkeypatch.setattr(red, "SECONDS", 2.0)
    code, output = session("--red", "-v", "-rA")
    assert code == 1
    for line in (
        "PASSED proofs/test_suite.py::test_names_differ[without random_names]",
        "FAILED proofs/test_suite.py::test_decoration[without exclusive_staging]",
        "test_decoration passed with its control 'exclusive_staging' switched off",
        *(f"test_{name} is inconclusive" for name in ("broken_without", "lost_worker", "hanging")),
        *("NameError: name 'undefined' is not defined", "still running after 2.0 s"),
        *("SKIPPED [1]", "4 failed, 1 passed, 1 skipped"),
    ):
        assert line in output
    assert "test_slow" not in output


@pytest.fixture(scope="module")
def original_state():
    """The contents of Muniment's modules before a control is switched off."""
    with switch_off("folding"):
        pass  # This imports every module.
    return read_state()


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", load_controls())
def test_control_is_restored_after_the_block(name, original_state):
    with switch_off(name):
        pass
    assert read_state() == original_state


def read_state():
    """Return all values of Muniment's modules and their classes, by identity."""
    found = {}
    for key, module in list(sys.modules.items()):
        if key.split(".")[0] == "muniment":
            for name, value in vars(module).items():
                found[key, name] = id(value)
                if isinstance(value, type):
                    found |= {(key, name, each): id(member) for each, member in vars(value).items()}
                elif isinstance(value, dict) and not name.startswith("__"):
                    found |= {(key, name, repr(each)): id(member) for each, member in value.items()}
    return found
