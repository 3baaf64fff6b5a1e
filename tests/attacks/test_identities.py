"""A whole run behind the fence as root, as another user, and as a user of a namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import muniment
from kit.memories import IN_A_WORKER
from kit.sandbox.one_run import CANARY
from kit.where import TESTS
from muniment.names import Enforcement, FenceLayer

PROGRAM = TESTS / "kit" / "sandbox" / "one_run.py"
NOBODY = 65534
NOTHING = "0" * 16
IMPORTS = os.pathsep.join([str(Path(muniment.__file__).parents[1]), sysconfig.get_path("purelib")])


def run(command, base, **identity):
    """What a run tells, by whoever `command` and `identity` make it."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": IMPORTS, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, "-P", "-W", "error", str(PROGRAM), str(base)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=50,
        **identity,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_a_whole_run(report):
    """Everything that is so whoever runs it."""
    assert report["enforcement"] == IN_A_WORKER
    if IN_A_WORKER is Enforcement.FULL:
        assert set(report["missing"]) <= {FenceLayer.MDWE}
    assert report["codes"] == [None, None, "path_escape", None, None, None]
    assert CANARY not in str(report["texts"])
    assert report["committed"] == ["user/known.md", "user/topic/new.md"]
    assert report["known"] == "Another line.\n"
    assert report["files"]["topic/new.md"] == [True, "0o600"]
    status = report["status"]
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {NOTHING}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_a_run_of_whoever_runs_these_tests_is_held_and_its_worker_has_no_privilege(tmp_path):
    report = run([sys.executable], tmp_path)
    check_a_whole_run(report)
    assert report["euid"] == os.geteuid()
    if os.geteuid() == 0:
        assert report["status"]["CapBnd"] == NOTHING
    else:
        assert report["memory"] == "PermissionError"


@pytest.fixture
def their_directory():
    """A directory that belongs to nobody in particular, where that user can reach it."""
    directory = Path(tempfile.mkdtemp(prefix="muniment-test-"))
    os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)


def interpreter_for(identity):
    """An interpreter that this identity may execute, and that finds all packages."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin")):
        if candidate is None:
            continue
        try:
            probe = subprocess.run(
                [candidate, "-P", "-c", "import muniment.sandbox"],
                env={"PYTHONPATH": IMPORTS, "PYTHONDONTWRITEBYTECODE": "1"},
                check=False,
                capture_output=True,
                cwd="/",
                **identity,
            )
        except PermissionError:
            continue
        if probe.returncode == 0:
            return candidate
    pytest.skip("another user can execute no interpreter of this version with our packages")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_run_of_an_ordinary_user_is_held_and_keeps_its_memory_from_that_user(their_directory):
    identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    report = run([interpreter_for(identity)], their_directory, **identity)
    check_a_whole_run(report)
    assert report["euid"] == NOBODY
    assert report["memory"] == "PermissionError"


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["1000", "0"])
def test_a_run_in_a_user_namespace_is_held(tmp_path, inside):
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare(1) to make a user namespace with")
    namespace = [unshare, "--user", f"--map-user={inside}", f"--map-group={inside}"]
    probe = subprocess.run([*namespace, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this system gives no user namespace: {probe.stderr.strip()}")
    report = run([*namespace, sys.executable], tmp_path)
    check_a_whole_run(report)
    assert report["euid"] == int(inside)
    if inside != "0":
        assert report["memory"] == "PermissionError"
