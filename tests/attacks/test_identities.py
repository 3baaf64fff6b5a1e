"""Whole runs in the fence as root, as another user, and in a user namespace."""

import contextlib
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
from muniment.kernel.names import Enforcement
from muniment.names import FenceLayer

PROGRAM = TESTS / "kit" / "sandbox" / "one_run.py"
NOBODY = 65534
NOTHING = "0" * 16
IMPORTS = os.pathsep.join([str(Path(muniment.__file__).parents[1]), sysconfig.get_path("purelib")])


def run_as(command, base, **identity):
    """Return the report of a run with the identity of `command` and `identity`."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": IMPORTS, "PYTHONDONTWRITEBYTECODE": "1"}
    terms = {"env": environment, "capture_output": True, "text": True, "cwd": "/", "timeout": 50, **identity}
    done = subprocess.run([*command, "-P", "-W", "error", str(PROGRAM), str(base)], check=False, **terms)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_report(report):
    """Check everything that does not depend on the user."""
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


def test_run_of_this_user_is_confined(tmp_path):
    report = run_as([sys.executable], tmp_path)
    check_report(report)
    assert report["euid"] == os.geteuid()
    if os.geteuid() == 0:
        assert report["status"]["CapBnd"] == NOTHING
    else:
        assert report["memory"] == "PermissionError"


def can_execute(interpreter, **identity):
    """Return whether that user can execute an interpreter that finds all packages."""
    with contextlib.suppress(OSError):
        probe = [interpreter, "-P", "-c", "import muniment.sandbox.sandbox"]
        terms = {"env": {"PYTHONPATH": IMPORTS, "PYTHONDONTWRITEBYTECODE": "1"}, "cwd": "/", **identity}
        return subprocess.run(probe, check=False, capture_output=True, **terms).returncode == 0
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_run_of_another_user_is_confined_and_unreadable():
    identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin"))
    usable = [each for each in candidates if each and can_execute(each, **identity)]
    if not usable:
        pytest.skip("another user can execute no interpreter of this version with our packages")
    with tempfile.TemporaryDirectory(prefix="muniment-test-") as directory:
        os.chown(directory, NOBODY, NOBODY)
        report = run_as(usable[:1], directory, **identity)
    check_report(report)
    assert (report["euid"], report["memory"]) == (NOBODY, "PermissionError")


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["1000", "0"])
def test_run_in_a_user_namespace_is_confined(tmp_path, inside):
    unshare = shutil.which("unshare") or "false"
    namespace = [unshare, "--user", f"--map-user={inside}", f"--map-group={inside}"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system gives no user namespace")
    report = run_as([*namespace, sys.executable], tmp_path)
    check_report(report)
    assert report["euid"] == int(inside)
    if inside != "0":
        assert report["memory"] == "PermissionError"
