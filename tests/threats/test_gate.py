"""The gate: the runs that it passes and fails, and red runs that detect proofs without effect."""

from __future__ import annotations

import os
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import settings

from threats import red
from threats.catalogue import threats
from threats.gate import complaints, pytest_collection_modifyitems
from threats.switches import controls, switched_off

MITIGATED = threats()["T-PATH-03"]
EXCUSED = MITIGATED.model_copy(update={"skips": "Some systems cannot."})
PARTIAL = MITIGATED.model_copy(update={"status": "partial"})


def test_a_run_is_judged_by_its_proofs():
    for threat, outcomes, is_whole, told in (
        (MITIGATED, ["passed", "passed"], True, None),
        (MITIGATED, [], False, None),
        (MITIGATED, [], True, "none of its proofs passed"),
        (MITIGATED, ["passed", "failed"], True, "one of its proofs failed"),
        (MITIGATED, ["passed", "skipped"], True, "gives no reason"),
        (MITIGATED, ["skipped"], False, "gives no reason"),
        (EXCUSED, ["passed", "skipped"], True, None),
        (EXCUSED, ["skipped", "failed"], True, "one of its proofs failed"),
        (PARTIAL, ["failed", "skipped"], True, None),
    ):
        found = complaints({threat.id: threat}, {threat.id: outcomes}, is_whole=is_whole)
        assert len(found) == (told is not None)
        assert told is None or (threat.id in found[0] and told in found[0])


MARK = pytest.mark.threat

SUITE = """
import pytest
from muniment.kernel._directory import temporary_name
from threats import switches

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
    """Return a function that runs a session over that suite in this process: exit code and output."""
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


def test_a_whole_session_fails_for_what_is_skipped_and_for_what_nothing_proves_and_a_part_does_not(session):
    code, output = session()
    assert code == 1
    assert "T-PATH-09 is not proved: a proof was skipped, and its file gives no reason" in output
    assert "T-PATH-03 is marked as mitigated, but none of its proofs passed" in output
    assert "T-PATH-07 is" not in output
    assert session("-k", "test_names_differ or test_slow")[0] == 0


def test_a_mark_that_names_no_threat_or_control_ends_the_session_before_it_begins():
    mark = pytest.mark.threat
    for marked, told in (
        (mark("T-PATH-09", control="folding"), None),
        (mark("T-PATH-99", control="folding"), "unknown threat 'T-PATH-99'"),
        (mark("T-PATH-09", control="hope"), "unknown control 'hope'"),
        (mark("T-PATH-09"), "control="),
        (mark("T-PATH-09", control="folding", status="done"), "control="),
    ):
        item = SimpleNamespace(nodeid="x.py::test_one", iter_markers=lambda _, mark=marked: [mark.mark])
        config = SimpleNamespace(getoption=lambda _: False)
        with nullcontext() if told is None else pytest.raises(pytest.UsageError, match=f"test_one.*{told}"):
            pytest_collection_modifyitems(config, [item])


def test_a_red_run_passes_what_fails_and_convicts_the_rest(session, monkeypatch):
    monkeypatch.setattr(red, "SECONDS", 2.0)
    code, output = session("--red", "-v", "-rA")
    assert code == 1
    for line in (
        "PASSED proofs/test_suite.py::test_names_differ[without random_names]",
        "FAILED proofs/test_suite.py::test_decoration[without exclusive_staging]",
        "test_decoration passed with its control 'exclusive_staging' switched off",
        *(f"test_{name} has no valid result" for name in ("broken_without", "lost_worker", "hanging")),
        *("NameError: name 'undefined' is not defined", "still running after 2.0 s"),
        *("SKIPPED [1]", "4 failed, 1 passed, 1 skipped"),
    ):
        assert line in output
    assert "test_slow" not in output


@pytest.fixture(scope="module")
def untouched():
    """Return the state of Muniment's modules before any control is switched off."""
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
    """Return the identity of every object in modules of muniment and in their classes."""
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
